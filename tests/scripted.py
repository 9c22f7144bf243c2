"""A server that plays a script: timed events over a real socket, and a log of when each left.

Rule: the notation is that of the reports. A script is a list of (ms after the request's body has
been received, event); `c(3)` is one chunk of three tokens, `cut()` closes the socket.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

MODEL = "scripted"


@dataclass(frozen=True, slots=True)
class Control:
    """Something that is done to the connection instead of sending bytes."""

    act: Literal["cut", "reset", "stall", "hold"]
    until: asyncio.Event | None = None


class Raw(bytes):
    """Bytes that go out as they are, where others become a chunk of the body."""


@dataclass(frozen=True, slots=True)
class Again:
    """An event that is sent so often, None for until the client closes; it is held once."""

    event: bytes
    times: int | None


Event: TypeAlias = bytes | Control | Again
Script: TypeAlias = Sequence[tuple[float, Event]]


def _data(value: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps(value).encode()


def _chunk(delta: dict[str, Any] | None, finish: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return _data(
        {
            "id": "chatcmpl-0",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": MODEL,
            "choices": [] if delta is None else [choice],
            **more,
        }
    )


def role() -> bytes:
    """A delta with a role and no text."""
    return _chunk({"role": "assistant", "content": ""})


def c(n: int, **more: Any) -> bytes:
    """One chunk whose content is *n* tokens, with *more* in place of or beside its own fields."""
    return _chunk({"content": " word" * n}, **more)


def r(n: int, key: str = "reasoning") -> bytes:
    """One chunk with *n* tokens of reasoning; some servers have the key `reasoning_content`."""
    return _chunk({key: " word" * n})


def k(n: int, name: str | None = None) -> bytes:
    """One chunk with *n* tokens of tool-call arguments; with *name* the call's first chunk."""
    function = {"arguments": " word" * n} if n else {}
    if name is None:
        return _chunk({"tool_calls": [{"index": 0, "function": function}]})
    call = {"index": 0, "id": "call-0", "type": "function", "function": {"name": name} | function}
    return _chunk({"tool_calls": [call]})


def usage(p: int, c: int, cached: int | None = None) -> bytes:
    """The usage chunk: *p* prompt tokens, *c* completion tokens."""
    counts: dict[str, Any] = {"prompt_tokens": p, "completion_tokens": c, "total_tokens": p + c}
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return _chunk(None, usage=counts)


def fin(reason: str = "stop") -> bytes:
    """The chunk with the finish reason."""
    return _chunk({}, reason)


def done() -> bytes:
    """The end mark of OpenAI's streams."""
    return b"data: [DONE]\n\n"


def err(message: str) -> bytes:
    """An error within the stream."""
    return _data({"error": {"message": message, "type": "server_error", "code": 500}})


def cut() -> Control:
    """Close the socket."""
    return Control("cut")


def reset() -> Control:
    """Reset the connection."""
    return Control("reset")


def stall() -> Control:
    """Send nothing more, until the client closes."""
    return Control("stall")


def hold(until: asyncio.Event) -> Control:
    """Go on when *until* is set."""
    return Control("hold", until)


@dataclass(frozen=True, slots=True)
class Request:
    """A request as the server received it.

    Attributes:
        method: GET or POST.
        path: With the query.
        headers: Names in lower case.
        body: All of it.
        connection: Number of the connection, from 0.
        nth: Number of the request on its connection, from 0.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    nth: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server does with a request.

    Attributes:
        status: None sends no head at all.
        headers: Replace those that `body` or `script` bring along; names in lower case.
        script: An event stream, each event a chunk and a write of its own.
        body: A plain body instead of a script.
        pieces: `bytes`: every byte is written on its own.
        close_after: Say `Connection: close`, and do it.
        idle_close_s: Close without a word when no other request comes for so long.
        head_at_ms: When the head is sent, in milliseconds after the request.
    """

    status: int | None = 200
    headers: dict[str, str] = field(default_factory=dict)
    script: Script = ()
    body: bytes | None = None
    pieces: Literal["events", "bytes"] = "events"
    close_after: bool = False
    idle_close_s: float | None = None
    head_at_ms: float = 0.0

    def head(self) -> bytes:
        """The status line and headers."""
        if self.status is None:
            return b""
        if self.body is None:
            framing = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
        else:
            framing = {"content-type": "application/json", "content-length": str(len(self.body))}
        if self.close_after:
            framing["connection"] = "close"
        lines = [f"{name}: {value}\r\n" for name, value in (framing | self.headers).items()]
        return f"HTTP/1.1 {self.status} Scripted\r\n{''.join(lines)}\r\n".encode()


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that nobody vouches for, and its key, made in *folder*."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=scripted"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


MODELS = Answer(body=json.dumps({"object": "list", "data": [{"id": MODEL}]}).encode())


class ScriptedServer:
    """Listens on a port of 127.0.0.1, or on a unix socket, while its context is open.

    Attributes:
        requests: All requests so far.
        sent: When bytes were handed to the socket (monotonic ns, read before), and the bytes.
        connections: How many were accepted.
    """

    def __init__(
        self,
        answer: Callable[[Request], Answer | None],
        *,
        ssl_context: ssl.SSLContext | None = None,
        path: Path | None = None,
        greeting: bytes | None = None,
    ) -> None:
        """Where *answer* gives None, the server answers with a list of one model.

        With a *path* it listens on a unix socket there.

        With a *greeting* nothing is answered: it is sent as soon as a connection is accepted, and
        no more.
        """
        self.requests: list[Request] = []
        self.sent: list[tuple[int, bytes]] = []
        self.connections = 0
        self._answer = answer
        self._ssl_context = ssl_context
        self._path = path
        self._greeting = greeting
        self._tasks: set[asyncio.Task[None]] = set()
        self._unused = asyncio.Event()
        self._port = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        if self._path is not None:
            return f"unix:{self._path}"
        return f"{'https' if self._ssl_context else 'http'}://127.0.0.1:{self._port}"

    async def all_closed(self) -> None:
        """Wait until no connection is open."""
        while self._tasks:
            self._unused.clear()
            await self._unused.wait()

    async def __aenter__(self) -> Self:
        if self._path is not None:
            self._server = await asyncio.start_unix_server(self._accept, self._path, backlog=1024)
            return self
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", 0, backlog=1024, ssl=self._ssl_context
        )
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await self.all_closed()
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.connections
        self.connections += 1
        task = asyncio.create_task(self._serve(number, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._unused.set()
        if not task.cancelled():
            task.result()

    async def _serve(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            if self._greeting is not None:
                writer.write(self._greeting)
                writer.write_eof()
                await reader.read()
                return
            idle_s: float | None = None
            nth = 0
            while True:
                async with asyncio.timeout(idle_s):
                    head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line, *fields = head.split("\r\n")[:-2]
                method, path, _ = line.split(" ")
                headers = {
                    name.lower(): value for name, value in (text.split(": ", 1) for text in fields)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                request = Request(method, path, headers, body, number, nth)
                self.requests.append(request)
                answer = self._answer(request) or MODELS
                await self._play(answer, reader, writer)
                if answer.close_after:
                    break
                idle_s = answer.idle_close_s
                nth += 1
        except (OSError, asyncio.IncompleteReadError):
            pass  # the script or the client has closed, or the connection was idle for too long
        finally:
            writer.close()
            try:
                await writer.wait_closed()
            except OSError:
                pass  # that is closed, too

    async def _play(
        self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await asyncio.sleep(answer.head_at_ms / 1e3)
        await self._send(writer, answer.head() + (answer.body or b""), answer.pieces)
        if answer.body is not None:
            return
        for at_ms, event in answer.script:
            await asyncio.sleep(began_s + at_ms / 1e3 - loop.time())
            if isinstance(event, Control):
                await _control(event, reader, writer)
                continue
            again = event if isinstance(event, Again) else Again(event, 1)
            data = again.event
            data = bytes(data) if isinstance(data, Raw) else b"%x\r\n%b\r\n" % (len(data), data)
            for _ in itertools.count() if again.times is None else range(again.times):
                await self._send(writer, data, answer.pieces)
        await self._send(writer, b"0\r\n\r\n", answer.pieces)

    async def _send(self, writer: asyncio.StreamWriter, data: bytes, pieces: str) -> None:
        size = 1 if pieces == "bytes" else max(len(data), 1)
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            self.sent.append((time.monotonic_ns(), piece))
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)  # uvloop sends when the loop comes round


async def _control(
    control: Control, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    if control.until is not None:
        await control.until.wait()
        return
    if control.act == "stall":
        await reader.read()
    elif control.act == "reset":
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
    raise ConnectionAbortedError("by the script")
