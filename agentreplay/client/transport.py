"""The transport that httpx is given: an event stream's bytes are handed over where they arrive.

Rule: no task wakes for the reads of an event stream.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Final, TypeAlias, cast

import httpx

from agentreplay.client.arrivals import Arrivals
from agentreplay.client.connection import Connection, Place, connect, words
from agentreplay.client.stream import Sink
from agentreplay.wire.http1 import BadResponse, ResponseReader

IDLE_LIMIT_S: Final = 4.0
"""A connection idle for longer is not used again: servers close theirs after 5 s."""

UNREAD_LIMIT: Final = 1 << 20
"""A body that nobody reads is taken off the socket up to about this many bytes."""

CONNECTING: Final = 64
"""So many connections are set up at once. Servers keep some hundred waiting, and drop what comes
beyond; it is asked for again after a second, which would be taken for the server's. A queue of 100
dropped 169 of 1,000 connections that were set up at once, and 27 with this limit."""

_PORTS: Final = {"http": 80, "https": 443, "unix": 0}

_Key: TypeAlias = tuple[Place, object]
"""Where to, and what the request's extension `connections` says: requests share connections only
where both are equal."""


def raise_malloc_threshold() -> None:
    """Let glibc keep the buffers of reads on its heap.

    asyncio reads TLS into 256 KiB of fresh memory. Until a larger block has been freed, glibc maps
    and unmaps each of these, which costs more than all else that is done with a read.
    """
    x = bytes(4 << 20)
    del x


class Transport(httpx.AsyncBaseTransport):
    """HTTP/1.1 over asyncio or uvloop, by TCP, TLS or a unix socket, from a pool without a limit.

    A request whose extension `sse_sink` is a `Sink` has the body of its event stream handed to it
    as the bytes arrive; the response then says `sink_used`, and its stream yields nothing and ends
    with the body. Any other response is read as usual. The response's extension `reconnected` says
    that a reused connection died before any byte of the response, and that the request was sent
    once more on a new one; `held_ns` how long the request waited until it was its turn to connect.

    A unix socket is addressed as `unix://` with its path, quoted, as the host.

    Attributes:
        reconnects: How often a request was sent once more.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        arrivals: Arrivals | None = None,
        *,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """*clock* gives nanoseconds, and *arrivals* the same clock's stamps of what comes; without
        them it is stamped when it is read. Without *ssl_context* https uses httpx's default."""
        self.reconnects = 0
        self._clock = clock
        self._arrivals = arrivals or Arrivals(clock, kernel=False)
        self._ssl_context = ssl_context
        self._connecting = asyncio.Semaphore(CONNECTING)
        self._idle: dict[_Key, dict[_Pooled, int]] = {}
        self._open: set[_Pooled] = set()
        self._all_lost: asyncio.Event | None = None

    @property
    def idle(self) -> int:
        """How many connections wait for a request."""
        return sum(map(len, self._idle.values()))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send *request*; return when the head of its response has come."""
        # Bytes that are one piece, as ours are, stay that piece.
        if isinstance(request.stream, httpx.ByteStream):
            body = b"".join(request.stream)
        else:
            stream = cast(httpx.AsyncByteStream, request.stream)
            body = b"".join([part async for part in stream])
        head = _head(request, len(body))
        key = _key(request)
        connection, held_ns = self._take_idle(key), 0
        reused = connection is not None
        if connection is None:
            connection, held_ns = await self._connect(key, request)
        exchange = await self._exchange(connection, request, head, body)
        reconnected = reused and exchange.died and not exchange.heard
        if reconnected:
            self.reconnects += 1
            connection, held_ns = await self._connect(key, request)
            exchange = await self._exchange(connection, request, head, body)
        reader = exchange.reader
        if not reader.head_complete:
            assert exchange.error is not None
            raise exchange.error
        return httpx.Response(
            reader.status,
            headers=reader.headers,
            stream=_Body(exchange),
            extensions={
                "http_version": reader.http_version,
                "reason_phrase": reader.reason,
                "sink_used": exchange.sink is not None,
                "reconnected": reconnected,
                "held_ns": held_ns,
            },
        )

    async def aclose(self) -> None:
        """Close every connection; what is in flight fails."""
        self._all_lost = asyncio.Event()
        for connection in list(self._open):
            connection.fail(httpx.ReadError(f"{connection.where}: closed by the client itself"))
        if self._open:
            await self._all_lost.wait()

    async def _exchange(
        self, connection: _Pooled, request: httpx.Request, head: bytes, body: bytes
    ) -> _Exchange:
        """Send *request*; return when the head of its response has come, or it has failed."""
        exchange = _Exchange(connection, request, self._clock)
        connection.begin(exchange, head, body)
        await exchange.head()
        return exchange

    async def _connect(self, key: _Key, request: httpx.Request) -> tuple[_Pooled, int]:
        """A new connection, and for how many nanoseconds others went first."""
        began_ns, held_ns = self._clock(), 0
        if self._connecting.locked():
            await self._connecting.acquire()
            held_ns = self._clock() - began_ns
        else:
            await self._connecting.acquire()
        place, limit_s = key[0], _timeout_s(request, "connect")
        try:
            async with asyncio.timeout(limit_s):
                link = await connect(place, self._arrivals, *self._tls(place, request))
        except (OSError, ValueError) as error:
            raise _connect_error(place.shown, error, limit_s) from error
        finally:
            self._connecting.release()
        pooled = _Pooled(self, key, link)
        self._open.add(pooled)
        return pooled, held_ns

    def _tls(
        self, place: Place, request: httpx.Request
    ) -> tuple[ssl.SSLContext | None, str | None]:
        """How to speak TLS to *place*, and with whom; nothing where it is not spoken."""
        if place.scheme != "https":
            return None, None
        if self._ssl_context is None:
            self._ssl_context = httpx.create_ssl_context()
            self._ssl_context.set_alpn_protocols(["http/1.1"])
        return self._ssl_context, request.extensions.get("sni_hostname") or place.host

    def _take_idle(self, key: _Key) -> _Pooled | None:
        idle = self._idle.get(key)
        oldest_ns = self._clock() - int(IDLE_LIMIT_S * 1e9)
        while idle:
            connection, since_ns = idle.popitem()
            if since_ns >= oldest_ns and connection.link.usable:
                return connection
            connection.close()
        return None

    def _give_back(self, connection: _Pooled) -> None:
        if self._all_lost is None:
            self._idle.setdefault(connection.key, {})[connection] = self._clock()
        else:
            connection.close()

    def _forget(self, connection: _Pooled) -> None:
        idle = self._idle.get(connection.key)
        if idle is not None:
            idle.pop(connection, None)
            if not idle:
                del self._idle[connection.key]

    def _lost(self, connection: _Pooled) -> None:
        self._open.discard(connection)
        if self._all_lost is not None and not self._open:
            self._all_lost.set()


class _Pooled:
    """A connection of the pool. It has one exchange, or is idle, or closed."""

    __slots__ = ("_exchange", "_pool", "key", "link", "where")

    def __init__(self, pool: Transport, key: _Key, link: Connection) -> None:
        self.key = key
        self.link = link
        self.where = key[0].shown
        self._pool = pool
        self._exchange: _Exchange | None = None
        link.owner = self
        link.received = self._unasked

    def gone(self, cause: Exception | None) -> None:
        """The peer has closed, or the connection is lost for *cause*."""
        self._pool._forget(self)
        if self._exchange is not None:
            self._exchange.gone(cause)
        else:
            self.link.abort()

    def closed(self) -> None:
        """It is closed, whoever did it."""
        self._pool._forget(self)
        self._pool._lost(self)

    def begin(self, exchange: _Exchange, head: bytes, body: bytes) -> None:
        self._exchange = exchange
        self.link.received = exchange.received
        self.link.write(head, body)

    def end(self, *, keep: bool) -> None:
        """The exchange is over; *keep* the connection for another if it is fit for that."""
        self._exchange = None
        self.link.received = self._unasked
        # A response that came before all of the request was sent leaves the rest in the way.
        if keep and self.link.usable and not self.link.unsent:
            self._pool._give_back(self)
        else:
            self.close()

    def fail(self, error: Exception) -> None:
        if self._exchange is None:
            self.close()
        else:
            self._exchange.fail(error)

    def close(self) -> None:
        """Close at once, without waiting for the peer."""
        self._pool._forget(self)
        self.link.abort()

    def _unasked(self, now_ns: int, data: bytes) -> None:
        """What has come answers nothing that was asked."""
        self.close()


class _Exchange:
    """A request that was sent, and as much of its response as has come."""

    __slots__ = (
        "_clock",
        "_connection",
        "_heard_ns",
        "_limit_s",
        "_loop",
        "_offered",
        "_over",
        "_paused",
        "_take",
        "_timer",
        "_unread",
        "_unread_bytes",
        "_waiter",
        "died",
        "error",
        "heard",
        "reader",
        "sink",
    )

    _take: Sink  # the sink, where there is one

    def __init__(
        self, connection: _Pooled, request: httpx.Request, clock: Callable[[], int]
    ) -> None:
        self.reader = ResponseReader(to_head=request.method == "HEAD")
        self.sink: Sink | None = None
        self.error: Exception | None = None
        self.heard = False  # a byte of the response has come
        self.died = False  # the peer closed before the response was complete
        self._offered: Sink | None = request.extensions.get("sse_sink")
        self._connection = connection
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._over = False
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._paused = False
        self._heard_ns = clock()
        self._limit_s = _timeout_s(request, "read")
        self._timer: asyncio.TimerHandle | None = None
        if self._limit_s is not None:
            self._timer = self._loop.call_later(self._limit_s, self._look, self._limit_s)

    def received(self, now_ns: int, data: bytes) -> None:
        """Take a read of which nobody knows yet what it is."""
        self.heard = True
        self._heard_ns = now_ns
        reader = self.reader
        in_body = reader.head_complete
        try:
            body = reader.feed(data)
        except BadResponse as error:
            self._refuse(error)
            return
        if reader.head_complete and not in_body:
            if self._offered is not None and _is_event_stream(reader):
                self.sink = self._take = self._offered
                self._connection.link.received = self._streamed
            self._wake()
        if body:
            if self.sink is None:
                self._keep(body)
            else:
                try:
                    self.sink(now_ns, body)
                except Exception as error:
                    self.fail(error)
                    return
        if reader.complete:
            self._finish(keep=reader.keep_alive)

    def _streamed(self, now_ns: int, data: bytes) -> None:
        """Take a read of an event stream."""
        self._heard_ns = now_ns
        reader = self.reader
        try:
            body = reader.feed(data)
            if body:
                self._take(now_ns, body)
        except BadResponse as error:
            self._refuse(error)
        except Exception as error:
            self.fail(error)
        else:
            if reader.complete:
                self._finish(keep=reader.keep_alive)

    def gone(self, cause: Exception | None) -> None:
        """The peer has closed, or the connection is lost for *cause*."""
        self.died = True
        if cause is not None:
            where = self._connection.where
            error = httpx.ReadError(f"{where}: connection lost: {words(cause)}")
            error.__cause__ = cause
            self.fail(error)
            return
        try:
            self.reader.eof()
        except BadResponse as bad:
            self._refuse(bad)
        else:
            self._finish(keep=False)

    def fail(self, error: Exception) -> None:
        self.error = error
        self._finish(keep=False)

    def abandon(self) -> None:
        """Nobody wants the rest."""
        self._unread.clear()
        if not self._over:
            self._finish(keep=False)

    async def head(self) -> None:
        """Wait until the head of the response is complete, or the exchange over."""
        while not self.reader.head_complete and not self._over:
            await self._wait()

    async def read(self) -> bytes:
        """What has come of a body that no sink takes, once there is any; empty at its end."""
        while not self._unread and not self._over:
            await self._wait()
        if self._unread:
            body = b"".join(self._unread)
            self._unread.clear()
            self._unread_bytes = 0
            self._resume()
            return body
        if self.error is not None:
            raise self.error
        return b""

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        except BaseException:
            self.abandon()
            raise
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _keep(self, body: bytes) -> None:
        self._unread.append(body)
        self._unread_bytes += len(body)
        if self._unread_bytes > UNREAD_LIMIT and not self._paused:
            self._paused = True
            self._connection.link.pause()
        self._wake()

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._heard_ns = self._clock()  # the silence was ours
            self._connection.link.resume()

    def _refuse(self, bad: BadResponse) -> None:
        error = httpx.RemoteProtocolError(f"{self._connection.where}: {bad}")
        error.__cause__ = bad
        self.fail(error)

    def _look(self, limit_s: float) -> None:
        """Has nothing been heard for *limit_s*? If something has, look again when it may be so."""
        silent_s = 0.0 if self._paused else (self._clock() - self._heard_ns) / 1e9
        if silent_s < limit_s:
            self._timer = self._loop.call_later(limit_s - silent_s, self._look, limit_s)
        else:
            what = "of the body" if self.reader.head_complete else "of a response"
            where = self._connection.where
            self.fail(httpx.ReadTimeout(f"{where}: no byte {what} for {limit_s:g} s"))

    def _finish(self, *, keep: bool) -> None:
        if keep:
            self._resume()
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        self._connection.end(keep=keep)
        self._wake()


class _Body(httpx.AsyncByteStream):
    """The body of a response: of what no sink took, the bytes."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while body := await self._exchange.read():
            yield body

    async def aclose(self) -> None:
        self._exchange.abandon()


def _key(request: httpx.Request) -> _Key:
    url = request.url
    if url.scheme not in _PORTS:
        raise httpx.UnsupportedProtocol(f"{url}: neither http nor https nor unix")
    place = Place(url.scheme, url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme])
    return place, request.extensions.get("connections")


def _head(request: httpx.Request, length: int) -> bytes:
    """The request line and headers; a body of unknown length has been read, and has one now."""
    lines = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    for name, value in request.headers.raw:
        if name.lower() == b"transfer-encoding":
            lines.append(b"Content-Length: %d" % length)
        elif request.url.scheme == "unix" and name.lower() == b"host":
            lines.append(b"Host: localhost")
        else:
            lines.append(b"%b: %b" % (name, value))
    head = b"\r\n".join(lines) + b"\r\n\r\n"
    if head.count(b"\n") != len(lines) + 1 or head.count(b"\r") != len(lines) + 1:
        raise httpx.LocalProtocolError("a header of the request holds a line break")
    return head


def _timeout_s(request: httpx.Request, which: str) -> float | None:
    limit_s: float | None = request.extensions.get("timeout", {}).get(which)
    return limit_s


def _is_event_stream(reader: ResponseReader) -> bool:
    return (
        reader.status == 200
        and reader.header(b"content-type").partition(b";")[0].strip().lower()
        == b"text/event-stream"
        and reader.header(b"content-encoding").strip().lower() in (b"", b"identity")
    )


def _connect_error(
    where: str, error: OSError | ValueError, limit_s: float | None
) -> httpx.TransportError:
    if isinstance(error, ssl.SSLError):
        return httpx.ConnectError(f"{where}: TLS: {words(error)}")
    if isinstance(error, TimeoutError):
        # The kernel gives up, too, and says so with an errno.
        said = words(error) if error.errno else f"no connection within {limit_s:g} s"
        return httpx.ConnectTimeout(f"{where}: {said}")
    if isinstance(error, socket.gaierror):
        return httpx.ConnectError(f"{where}: name not resolved: {words(error)}")
    return httpx.ConnectError(f"{where}: can't connect: {words(error)}")
