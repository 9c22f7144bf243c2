"""A connection to a server: sockets of our own, read and stamped here, or asyncio's where need be.

Plain TCP and unix sockets are ours in every loop that can watch a socket (asyncio's and uvloop's).
TLS, and loops that can't, take asyncio's streams of bytes. Either is a `Connection`: the same few
acts, and three calls back.

Rule: bytes are stamped before anything else is done with them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast
from urllib.parse import unquote

from agentreplay.client.arrivals import ANCILLARY_BYTES, Arrivals

READ_BYTES: Final = 64 * 1024
"""Taken off a socket at once: many events, and below what malloc maps afresh for each read."""

SEND_BYTES: Final = 64 * 1024
"""Of a body so much goes to the kernel at once, and the rest when the loop comes round: prompts of
megabytes that are due together must not wait for each other, nor what arrives for them."""

_JOIN_LIMIT: Final = 64 * 1024
_FULL_S: Final = 0.005
_YEAR_S: Final = 365 * 86400.0  # create_connection knows no "never" for the TLS handshake


_NOTHING: Final = memoryview(b"")


class Place(NamedTuple):
    """Where a server listens: scheme, host and port; of a unix socket the quoted path as host."""

    scheme: str
    host: str
    port: int

    @property
    def shown(self) -> str:
        """As it stands in the words of errors."""
        if self.scheme == "unix":
            return f"unix:{unquote(self.host)}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Owner(Protocol):
    """Who is told what becomes of a connection."""

    def gone(self, cause: Exception | None) -> None:
        """The peer has closed, or the connection is lost for *cause*; close it."""

    def closed(self) -> None:
        """It is closed, whoever did it. Comes once, after all else."""


class Connection(Protocol):
    """An open connection; whoever opened it sets both attributes before anything else is done.

    Attributes:
        owner: Is told what becomes of it.
        received: Takes each read: its stamp, and its bytes.
    """

    owner: Owner
    received: Callable[[int, bytes], None]

    @property
    def unsent(self) -> int:
        """Bytes of what was written that have not been handed to the kernel."""

    @property
    def usable(self) -> bool:
        """Nothing speaks against using it."""

    def write(self, head: bytes, body: bytes) -> None:
        """Send both, one after the other, as fast as they are taken; nothing else is unsent."""

    def pause(self) -> None:
        """Read no more until `resume`."""

    def resume(self) -> None:
        """Read again."""

    def abort(self) -> None:
        """Close at once, without waiting for the peer."""


class OwnSocket:
    """A socket that this module reads and writes when the loop says that it can be."""

    __slots__ = (
        "_arrivals",
        "_body",
        "_fd",
        "_head",
        "_last_ns",
        "_loop",
        "_reading",
        "_socket",
        "_spoiled",
        "owner",
        "received",
    )

    owner: Owner
    received: Callable[[int, bytes], None]

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connected: socket.socket,
        arrivals: Arrivals,
        *,
        stamped: bool,
    ) -> None:
        """*stamped*: the kernel was asked to stamp what comes."""
        self._loop = loop
        self._socket = connected
        self._fd = connected.fileno()
        self._arrivals = arrivals
        self._last_ns = 0
        self._head = b""
        self._body = _NOTHING
        self._spoiled: OSError | None = None  # why nothing more can be sent
        self._reading = self._read_stamped if stamped else self._read
        loop.add_reader(self._fd, self._reading)

    @property
    def unsent(self) -> int:
        """Bytes of what was written that have not been handed to the kernel."""
        return len(self._head) + len(self._body)

    @property
    def usable(self) -> bool:
        """Nothing speaks against using it."""
        return self._fd >= 0 and self._spoiled is None

    def write(self, head: bytes, body: bytes) -> None:
        """Send both, one after the other, as fast as they are taken."""
        self._last_ns = max(self._last_ns, self._arrivals.clock())  # no answer comes before
        self._head, self._body = head, memoryview(body)
        self._send()
        if self._body or self._head:
            self._loop.add_writer(self._fd, self._send_rest)

    def pause(self) -> None:
        """Read no more until `resume`."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        """Read again."""
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._reading)

    def abort(self) -> None:
        """Close at once, without waiting for the peer."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._fd = -1
            self._head, self._body = b"", _NOTHING
            self._socket.close()
            self.owner.closed()

    def _read_stamped(self) -> None:
        try:
            data, ancillary, _, _ = self._socket.recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except OSError as error:
            self._unread(error)
            return
        if data:
            at_ns = self._arrivals.stamp(ancillary)
            if at_ns < self._last_ns:
                at_ns = self._last_ns  # clocks were set, or compared more closely
            self._last_ns = at_ns
            self.received(at_ns, data)
        else:
            self._ended()

    def _read(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except OSError as error:
            self._unread(error)
            return
        if data:
            self.received(self._arrivals.now(), data)
        else:
            self._ended()

    def _unread(self, error: OSError) -> None:
        if not isinstance(error, BlockingIOError | InterruptedError):
            self.owner.gone(error)

    def _ended(self) -> None:
        # Who can't be written to has closed; why is said by the error of the writing.
        self.owner.gone(self._spoiled)

    def _send(self) -> None:
        try:
            sent = self._socket.sendmsg((self._head, self._body[:SEND_BYTES]))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            # An answer may have come before, and is read first; then the reading fails, too.
            self._spoiled = error
            self._head, self._body = b"", _NOTHING
            return
        of_head = min(sent, len(self._head))
        self._head, self._body = self._head[of_head:], self._body[sent - of_head :]

    def _send_rest(self) -> None:
        self._send()
        if not (self._body or self._head):
            self._loop.remove_writer(self._fd)


class LoopStream(asyncio.Protocol):
    """A connection that the loop reads and writes; stamped where the loop hands its bytes over."""

    __slots__ = ("_arrivals", "_transport", "owner", "received")

    owner: Owner
    received: Callable[[int, bytes], None]

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """For the loop."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """For the loop."""
        if self._is_owned:
            self.received(self._arrivals.now(), data)
        else:
            self.abort()  # it answers nothing that was asked

    def eof_received(self) -> None:
        """For the loop, which closes it then."""
        if self._is_owned:
            self.owner.gone(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """For the loop."""
        if self._is_owned:
            self.owner.gone(exc)
            self.owner.closed()

    @property
    def unsent(self) -> int:
        """Bytes of what was written that have not been handed to the kernel; of TLS, where
        asyncio tells no more, that have not been encrypted."""
        return self._open.get_write_buffer_size()

    @property
    def usable(self) -> bool:
        """Nothing speaks against using it."""
        return not self._open.is_closing()

    def write(self, head: bytes, body: bytes) -> None:
        """Send both, one after the other, as fast as they are taken."""
        if len(body) <= _JOIN_LIMIT:
            self._open.write(head + body)
        else:
            # asyncio's writelines would join them, and copy a prompt of a megabyte for it.
            self._open.write(head)
            self._open.write(body)

    def pause(self) -> None:
        """Read no more until `resume`."""
        self._open.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if not self._open.is_closing():
            self._open.resume_reading()

    def abort(self) -> None:
        """Close at once, without waiting for the peer."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def _is_owned(self) -> bool:
        """The loop may hand things over before whoever opened it has been woken."""
        return hasattr(self, "owner")

    @property
    def _open(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport


async def connect(
    place: Place, arrivals: Arrivals, tls: ssl.SSLContext | None, server_name: str | None
) -> Connection:
    """Open a connection to *place*, over TLS where there is a context for it.

    Raises:
        OSError: it could not be opened; of several addresses each is named with its cause.
        ValueError: the name is none that could be looked up.
    """
    loop = asyncio.get_running_loop()
    # Loops that can't watch a socket have this from their base, and raise.
    watches = type(loop).add_reader is not asyncio.AbstractEventLoop.add_reader
    if tls is None and watches and hasattr(socket.socket, "sendmsg"):
        return await _own_socket(loop, place, arrivals)
    if place.scheme == "unix":
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    stream = LoopStream(arrivals)
    try:
        await loop.create_connection(
            lambda: stream,
            place.host,
            place.port,
            ssl=tls,
            server_hostname=server_name if tls else None,
            ssl_handshake_timeout=_YEAR_S if tls else None,
        )
        if not stream.usable:
            raise ConnectionAbortedError(errno.ECONNABORTED, "closed as soon as it was open")
    except BaseException:
        stream.abort()
        raise
    return stream


async def _own_socket(
    loop: asyncio.AbstractEventLoop, place: Place, arrivals: Arrivals
) -> OwnSocket:
    """A socket that is connected to the first address of *place* that takes it."""
    if place.scheme == "unix":
        connected = await _connected_to_path(unquote(place.host))
        return OwnSocket(loop, connected, arrivals, stamped=False)
    failed: list[tuple[str, OSError]] = []
    for family, kind, protocol, _, address in await _addresses(loop, place):
        attempt = socket.socket(family, kind, protocol)
        try:
            attempt.setblocking(False)
            attempt.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stamped = arrivals.ask(attempt)  # before: it takes a moment to come into force
            await _established(loop, attempt, address)
            return OwnSocket(loop, attempt, arrivals, stamped=stamped)
        except OSError as error:
            attempt.close()
            failed.append((str(address[0]), error))
        except BaseException:
            attempt.close()
            raise
    causes = {error.errno for _, error in failed}
    if len(causes) == 1:
        raise failed[0][1]
    raise OSError("; ".join(f"{address}: {words(error)}" for address, error in failed))


async def _established(
    loop: asyncio.AbstractEventLoop, attempt: socket.socket, address: Any
) -> None:
    """Connect *attempt*. The loop's own way may look up even numbers, in a thread."""
    try:
        attempt.connect(address)
    except (BlockingIOError, InterruptedError):
        done: asyncio.Future[None] = loop.create_future()
        loop.add_writer(attempt, _settle, done)
        try:
            await done
        finally:
            loop.remove_writer(attempt)
        if code := attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(code, os.strerror(code)) from None


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


async def _connected_to_path(path: str) -> socket.socket:
    attempt = socket.socket(socket.AF_UNIX)
    try:
        attempt.setblocking(False)
        while True:
            try:
                attempt.connect(path)
                return attempt
            except BlockingIOError:
                # The server's queue is full. Of a unix socket there is nothing to wait at.
                await asyncio.sleep(_FULL_S)
    except BaseException:
        attempt.close()
        raise


async def _addresses(
    loop: asyncio.AbstractEventLoop, place: Place
) -> Sequence[tuple[int, int, int, str, Any]]:
    """What the host's name stands for; a number needs no looking up, and no thread for it."""
    try:
        return socket.getaddrinfo(
            place.host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    except socket.gaierror:
        return await loop.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)


def words(error: Exception) -> str:
    """The cause of an error in words."""
    if (
        isinstance(error, OSError)
        and not isinstance(error, ssl.SSLError | socket.gaierror)
        and error.errno
    ):
        # asyncio's own texts name the address and leave out the cause.
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
