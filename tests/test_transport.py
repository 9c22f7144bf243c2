"""Rules of the transport, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import httpx
import pytest
import uvloop
from scripted import (
    Answer,
    Event,
    Request,
    ScriptedServer,
    c,
    cut,
    done,
    fin,
    hold,
    reset,
    role,
    stall,
)

from agentreplay.client.arrivals import Arrivals
from agentreplay.client.endpoint import api_url
from agentreplay.client.transport import CONNECTING, IDLE_LIMIT_S, Transport

Run: TypeAlias = Callable[[Callable[[], Awaitable[None]]], None]

GUARD_S = 20.0
"""Bounds a test that hangs; nothing is measured with it."""

STREAM: list[tuple[float, Event]] = [(0, role()), (0, c(1)), (5, c(2)), (5, fin()), (5, done())]
STALL: list[tuple[float, Event]] = [(0, stall())]
EVENTS = b"".join(event for _, event in STREAM if isinstance(event, bytes))


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine function in each kind of loop."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(main: Callable[[], Awaitable[None]]) -> None:
        async def guarded() -> None:
            async with asyncio.timeout(GUARD_S):
                await main()

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(guarded())

    return run


@dataclass(frozen=True, slots=True)
class Way:
    """A kind of connection.

    Attributes:
        kind: "tcp", stamped by the process; "stamped", by the kernel where it can; "unix"; "tls".
        served: What the server encrypts with.
        trusting: What the client trusts.
        path: Where a unix socket is to lie.
    """

    kind: str
    served: ssl.SSLContext | None = None
    trusting: ssl.SSLContext | None = None
    path: Path | None = None

    @property
    def where(self) -> str:
        """The words of errors that say where it is, as a pattern."""
        return r"127\.0\.0\.1:\d+" if self.path is None else f"unix:{self.path}"

    def server(self, answer: Callable[[Request], Answer | None]) -> ScriptedServer:
        """A server that is reached so."""
        return ScriptedServer(answer, ssl_context=self.served, path=self.path)

    def transport(self) -> Transport:
        """A transport that reaches it so."""
        arrivals = Arrivals(time.monotonic_ns) if self.kind == "stamped" else None
        return Transport(time.monotonic_ns, arrivals, ssl_context=self.trusting)


@pytest.fixture(params=["tcp", "stamped", "unix", "tls"])
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Way:
    """Each kind of connection."""
    if request.param == "unix":
        return Way("unix", path=tmp_path_factory.mktemp("unix") / "Server.sock")
    if request.param != "tls":
        return Way(request.param)
    certificate: tuple[Path, Path] = request.getfixturevalue("certificate")
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(*certificate)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.load_verify_locations(certificate[0])
    return Way("tls", served, trusting)


class Seen:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, bytes]] = []
        self.first = asyncio.Event()

    def __call__(self, at_ns: int, body: bytes) -> None:
        self.reads.append((at_ns, body))
        self.first.set()

    @property
    def body(self) -> bytes:
        return b"".join(body for _, body in self.reads)


def client_of(
    server: ScriptedServer, transport: Transport, read_s: float | None = None
) -> httpx.AsyncClient:
    """A client that sends to *server* only."""
    timeout = httpx.Timeout(None, read=read_s)
    return httpx.AsyncClient(
        transport=transport,
        base_url=api_url(server.url).removesuffix("/v1/chat/completions"),
        timeout=timeout,
        trust_env=False,
    )


def sink_of(sink: Callable[[int, bytes], None]) -> dict[str, Any]:
    """The request extension that offers *sink*."""
    return {"sse_sink": sink}


@pytest.mark.parametrize("pieces", ["events", "bytes"])
def test_event_stream_goes_to_the_sink(
    run: Run, way: Way, pieces: Literal["events", "bytes"]
) -> None:
    """A sink gets the whole body of an event stream, and whoever reads the response none of it."""

    async def main() -> None:
        seen, transport = Seen(), way.transport()
        async with (
            way.server(lambda _: Answer(script=STREAM, pieces=pieces)) as server,
            client_of(server, transport) as client,
        ):
            answer = await client.post("/v1", content=b"{}", extensions=sink_of(seen))
            assert answer.extensions["sink_used"] is True
            assert answer.extensions["reconnected"] is False
            assert answer.content == b""
            assert seen.body == EVENTS
            assert all(body for _, body in seen.reads)

    run(main)


def test_no_stamp_precedes_the_sending(run: Run, way: Way) -> None:
    """Every byte is stamped after it was sent, and stamps never go back."""

    async def main() -> None:
        seen, transport = Seen(), way.transport()
        async with (
            way.server(lambda _: Answer(script=STREAM)) as server,
            client_of(server, transport) as client,
        ):
            await client.post("/v1", content=b"{}", extensions=sink_of(seen))
            stamps = [at_ns for at_ns, _ in seen.reads]
            assert stamps == sorted(stamps)
            for _, event in STREAM:
                assert isinstance(event, bytes)
                sent_ns = next(at_ns for at_ns, data in server.sent if event in data)
                end = seen.body.index(event) + len(event)
                got = 0
                for at_ns, body in seen.reads:
                    got += len(body)
                    if got >= end:
                        assert at_ns >= sent_ns
                        break

    run(main)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(body=b'{"a": 1}'),
        Answer(status=404, headers={"content-type": "text/event-stream"}, body=b"data: no\n\n"),
        Answer(
            headers={"content-type": "text/event-stream", "content-encoding": "gzip"},
            body=gzip.compress(b"data: 1\n\n"),
        ),
    ],
    ids=["json", "error", "gzip"],
)
def test_anything_else_is_read_as_usual(run: Run, answer: Answer) -> None:
    """JSON, errors and compressed streams are left to httpx, and the sink gets nothing."""

    async def main() -> None:
        seen, transport = Seen(), Transport(time.monotonic_ns)
        async with (
            ScriptedServer(lambda _: answer) as server,
            client_of(server, transport) as client,
        ):
            url, offer = "/v1", sink_of(seen)
            async with client.stream("POST", url, content=b"{}", extensions=offer) as response:
                assert response.extensions["sink_used"] is False
                assert response.status_code == answer.status
                raw = b"".join([part async for part in response.aiter_raw()])
            assert raw == answer.body
            decoded = await client.post(url, content=b"{}", extensions=offer)
            assert decoded.content in (b'{"a": 1}', b"data: no\n\n", b"data: 1\n\n")
            assert seen.reads == []

    run(main)


def test_failing_sink_fails_the_request(run: Run, way: Way) -> None:
    """What a sink raises comes out of the response's stream, and the connection is closed."""

    def sink(at_ns: int, body: bytes) -> None:
        raise LookupError("the sink's own")

    async def main() -> None:
        transport = way.transport()
        script = [(0.0, c(1)), *STALL]
        async with (
            way.server(lambda _: Answer(script=script)) as server,
            client_of(server, transport) as client,
        ):
            with pytest.raises(LookupError, match="the sink's own"):
                await client.post("/v1", content=b"{}", extensions=sink_of(sink))
            await server.all_closed()

    run(main)


def test_request_arrives_as_it_was_made(run: Run, way: Way) -> None:
    """Method, path, headers and bodies of any size and kind reach the server unchanged."""

    async def parts() -> AsyncIterator[bytes]:
        yield b"one "
        yield b"two"

    async def main() -> None:
        transport = way.transport()
        async with way.server(lambda _: None) as server, client_of(server, transport) as client:
            large = bytes(range(256)) * 16384
            await client.post("/a%20b?c=d", content=large, headers={"X-Key": "v"})
            await client.post("/", content=parts())
            models = await client.get("/v1/models")
            assert models.json()["data"] == [{"id": "scripted"}]
            first, second, third = server.requests
            assert (first.method, first.path, first.body) == ("POST", "/a%20b?c=d", large)
            assert first.headers["x-key"] == "v"
            host = "localhost" if way.kind == "unix" else server.url.partition("://")[2]
            assert first.headers["host"] == host
            assert second.body == b"one two"
            assert "transfer-encoding" not in second.headers
            assert (third.method, third.body) == ("GET", b"")
            assert [request.nth for request in server.requests] == [0, 1, 2]

    run(main)


def test_line_break_in_a_header_is_refused(run: Run) -> None:
    """A header can't smuggle in another one."""

    async def main() -> None:
        transport = Transport(time.monotonic_ns)
        async with ScriptedServer(lambda _: None) as server, client_of(server, transport) as client:
            with pytest.raises(httpx.LocalProtocolError, match="line break"):
                await client.get("/", headers={"X-Key": "a\r\nX-Other: b"})
            assert server.requests == []

    run(main)


def test_last_freed_connection_is_taken_first(run: Run, way: Way) -> None:
    """Of two idle connections the one that was freed last is used again."""
    # Larger than what is taken off the socket unread: it ends when it is read, not before.
    answer = Answer(body=bytes(16 << 20))

    async def main() -> None:
        transport = way.transport()

        def respond(request: Request) -> Answer | None:
            return answer if request.path == "/large" else None

        async with way.server(respond) as server, client_of(server, transport) as client:
            async with client.stream("GET", "/large") as a, client.stream("GET", "/large") as b:
                assert transport.idle == 0
                await a.aread()
                assert transport.idle == 1
                await b.aread()
                assert transport.idle == 2
            connection_of_b = server.requests[1].connection
            for _ in range(3):
                await client.get("/small")
            assert [request.connection for request in server.requests[2:]] == 3 * [connection_of_b]

    run(main)


def test_connection_is_free_when_the_body_is_complete(run: Run, way: Way) -> None:
    """The end of the body frees the connection, not the reader's later close."""

    async def main() -> None:
        seen, transport = Seen(), way.transport()
        async with (
            way.server(lambda _: Answer(script=STREAM)) as server,
            client_of(server, transport) as client,
        ):
            offer = sink_of(seen)
            async with client.stream("POST", "/v1", content=b"{}", extensions=offer) as response:
                assert [part async for part in response.aiter_raw()] == []
                assert transport.idle == 1
                await client.post("/v1", content=b"{}")
            assert server.connections == 1

    run(main)


def test_half_read_response_closes_its_connection(run: Run, way: Way) -> None:
    """A response that is closed before its end takes its connection along."""

    async def main() -> None:
        transport = way.transport()
        script = [(0.0, c(1)), *STALL]
        async with (
            way.server(lambda _: Answer(script=script)) as server,
            client_of(server, transport) as client,
        ):
            async with client.stream("POST", "/v1", content=b"{}") as response:
                async for part in response.aiter_raw():
                    assert part == c(1)
                    break
            await server.all_closed()
            assert transport.idle == 0

    run(main)


def test_there_is_no_limit_of_connections(run: Run) -> None:
    """300 requests at once are 300 connections at once."""

    async def main() -> None:
        transport = Transport(time.monotonic_ns)
        all_here = asyncio.Event()

        def respond(request: Request) -> Answer:
            if len(server.requests) == 300:
                all_here.set()
            return Answer(script=[(0, hold(all_here)), *STREAM])

        async def one(client: httpx.AsyncClient) -> bytes:
            seen = Seen()
            await client.post("/v1", content=b"{}", extensions=sink_of(seen))
            return seen.body

        async with ScriptedServer(respond) as server, client_of(server, transport) as client:
            bodies = await asyncio.gather(*(one(client) for _ in range(300)))
            assert bodies == 300 * [EVENTS]
            assert server.connections == 300
            assert transport.idle == 300

    run(main)


def test_connection_that_the_server_closed_leaves_the_pool(run: Run, way: Way) -> None:
    """An idle connection that is closed by the server is gone before anyone can take it."""

    async def main() -> None:
        transport = way.transport()
        async with (
            way.server(lambda _: Answer(body=b"{}", idle_close_s=0)) as server,
            client_of(server, transport) as client,
        ):
            for _ in range(2):
                await client.get("/")
                while transport.idle:
                    await asyncio.sleep(0)
            assert server.connections == 2
            assert transport.reconnects == 0

    run(main)


def test_connection_that_was_idle_too_long_is_not_used(run: Run) -> None:
    """A connection idle for more than four seconds is closed instead of used again."""
    now_ns = 0

    def clock() -> int:
        return now_ns

    async def main() -> None:
        nonlocal now_ns
        transport = Transport(clock)
        async with ScriptedServer(lambda _: None) as server, client_of(server, transport) as client:
            await client.get("/")
            now_ns += int(IDLE_LIMIT_S * 1e9)
            await client.get("/")
            assert server.connections == 1
            now_ns += int(IDLE_LIMIT_S * 1e9) + 1
            await client.get("/")
            assert server.connections == 2
            assert transport.idle == 1

    run(main)


@pytest.mark.parametrize("how", [cut, reset])
def test_stale_connection_is_replaced_once(run: Run, way: Way, how: Callable[[], Event]) -> None:
    """A request on a reused connection that dies without a byte is sent once more, and counted."""

    async def main() -> None:
        transport = way.transport()

        def respond(request: Request) -> Answer | None:
            return Answer(status=None, script=[(0, how())]) if request.nth else None

        async with way.server(respond) as server, client_of(server, transport) as client:
            fresh = await client.post("/v1", content=b"first")
            again = await client.post("/v1", content=b"second")
            assert fresh.extensions["reconnected"] is False
            assert again.extensions["reconnected"] is True
            assert transport.reconnects == 1
            assert [request.body for request in server.requests] == [b"first", b"second", b"second"]

    run(main)


def test_only_one_replacement(run: Run, way: Way) -> None:
    """When the new connection dies, too, the request fails."""

    async def main() -> None:
        transport = way.transport()

        def respond(request: Request) -> Answer | None:
            return Answer(status=None, script=[(0, cut())]) if len(server.requests) > 1 else None

        async with way.server(respond) as server, client_of(server, transport) as client:
            await client.get("/")
            with pytest.raises(httpx.RemoteProtocolError, match="before any byte"):
                await client.get("/")
            assert len(server.requests) == 3
            assert transport.reconnects == 1

    run(main)


def test_no_second_try_after_a_byte_or_on_a_new_connection(run: Run) -> None:
    """A connection that is new, or has brought a byte of the response, is not replaced."""

    async def main() -> None:
        transport = Transport(time.monotonic_ns)

        def respond(request: Request) -> Answer | None:
            if request.path == "/no-byte":
                return Answer(status=None, script=[(0, cut())])
            # Of a response without a head, its chunk's size line is the first byte.
            return Answer(status=None, script=[(0, b"x"), (0, cut())]) if request.nth else None

        async with ScriptedServer(respond) as server, client_of(server, transport) as client:
            with pytest.raises(httpx.RemoteProtocolError, match="before any byte"):
                await client.get("/no-byte")
            await client.get("/")
            with pytest.raises(httpx.RemoteProtocolError, match="status line"):
                await client.get("/")
            assert len(server.requests) == 3
            assert transport.reconnects == 0

    run(main)


def test_connection_close_is_heeded(run: Run, way: Way) -> None:
    """After `Connection: close` no other request goes that way."""

    async def main() -> None:
        transport = way.transport()
        async with (
            way.server(lambda _: Answer(script=STREAM, close_after=True)) as server,
            client_of(server, transport) as client,
        ):
            for _ in range(2):
                await client.post("/v1", content=b"{}")
                assert transport.idle == 0
            assert server.connections == 2
            assert transport.reconnects == 0

    run(main)


@pytest.mark.parametrize("start", [[], [(0.0, c(1))]], ids=["no-event", "one-event"])
def test_silence_is_bounded(run: Run, way: Way, start: list[tuple[float, Event]]) -> None:
    """Silence longer than the read time-out fails the request, before and within the body."""

    async def main() -> None:
        transport = way.transport()
        script = [*start, *STALL]
        async with (
            way.server(lambda _: Answer(status=200 if start else None, script=script)) as server,
            client_of(server, transport, read_s=0.05) as client,
        ):
            with pytest.raises(httpx.ReadTimeout, match=f"^{way.where}: no byte .* 0\\.05 s"):
                await client.post("/v1", content=b"{}", extensions=sink_of(Seen()))
            await server.all_closed()

    run(main)


def test_time_out_is_of_silence_only(run: Run) -> None:
    """A response may take longer than the read time-out, if the clock sees no gap as long as it."""
    now_ns = 0
    limit_s = 0.001

    def clock() -> int:
        return now_ns

    async def main() -> None:
        nonlocal now_ns
        seen, transport = Seen(), Transport(clock)
        holds = [asyncio.Event() for _ in range(5)]
        script = [step for until in holds for step in ((0, hold(until)), (0, c(1)))]
        async with (
            ScriptedServer(lambda _: Answer(script=[*script, *STALL])) as server,
            client_of(server, transport, read_s=limit_s) as client,
        ):
            task = asyncio.create_task(client.post("/v1", content=b"", extensions=sink_of(seen)))
            for until in holds:
                now_ns += int(0.6e9 * limit_s)
                await asyncio.sleep(2 * limit_s)  # the transport looks, and must not mind
                seen.first.clear()
                until.set()
                await seen.first.wait()
            assert [at_ns for at_ns, _ in seen.reads] == [600_000 * i for i in range(1, 6)]
            now_ns += int(1e9 * limit_s)
            with pytest.raises(httpx.ReadTimeout, match="no byte of the body"):
                await task

    run(main)


class Unwatching(asyncio.SelectorEventLoop):
    """A loop that can't watch a socket for others, as that of Windows."""

    add_reader = asyncio.AbstractEventLoop.add_reader


def test_loop_that_watches_no_socket() -> None:
    """There, too, a stream comes whole and its connection is used again; a unix socket is refused
    in words."""

    async def main() -> None:
        seen, transport = Seen(), Transport(time.monotonic_ns)
        async with (
            ScriptedServer(lambda _: Answer(script=STREAM)) as server,
            client_of(server, transport) as client,
        ):
            large = bytes(range(256)) * 4096
            for _ in range(2):
                await client.post("/v1", content=large, extensions=sink_of(seen))
            assert seen.body == 2 * EVENTS
            assert server.requests[1].body == large
            assert server.connections == 1
            with pytest.raises(httpx.ConnectError, match=r"^unix:/x: can't connect: \w+"):
                await client.get(api_url("unix:/x"))

    with asyncio.Runner(loop_factory=Unwatching) as runner:
        runner.run(main())


Info: TypeAlias = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int]]


class Named(asyncio.SelectorEventLoop):
    """A loop to which every name stands for the same addresses, in this order."""

    addresses: tuple[str, ...] = ()

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Info]:  # type: ignore[override]
        kind = socket.SOCK_STREAM
        return [(socket.AF_INET, kind, 0, "", (address, port)) for address in self.addresses]


def test_addresses_are_tried_in_turn() -> None:
    """Of several addresses of a name the first that takes a connection is used."""

    async def main(loop: Named) -> None:
        async with ScriptedServer(lambda _: None) as server:
            loop.addresses = ("255.255.255.255", "127.0.0.1")
            transport = Transport(time.monotonic_ns)
            async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
                answer = await client.get(server.url.replace("127.0.0.1", "name.test"))
                assert answer.json()["data"] == [{"id": "scripted"}]

    with asyncio.Runner(loop_factory=Named) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Named)
        runner.run(main(loop))


def test_each_address_is_named_with_its_cause() -> None:
    """Where none of them takes it, the error says of each why."""

    async def main(loop: Named) -> None:
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            loop.addresses = ("255.255.255.255", "127.0.0.1")
            transport = Transport(time.monotonic_ns)
            async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
                with pytest.raises(httpx.ConnectError) as caught:
                    await client.get(f"http://name.test:{bound.getsockname()[1]}/")
        said = str(caught.value)
        assert said.startswith("name.test:")
        assert "255.255.255.255: " in said
        assert "127.0.0.1: Connection refused" in said

    with asyncio.Runner(loop_factory=Named) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Named)
        runner.run(main(loop))


def test_some_connect_while_others_wait(run: Run) -> None:
    """At most so many connections are set up at once; who waits for a turn says for how long."""

    async def main() -> None:
        transport = Transport(time.monotonic_ns)
        async with ScriptedServer(lambda _: None) as server, client_of(server, transport) as client:
            answers = await asyncio.gather(*(client.get("/") for _ in range(CONNECTING + 10)))
            held = sorted(answer.extensions["held_ns"] for answer in answers)
            assert held[:CONNECTING] == [0] * CONNECTING
            assert all(held[CONNECTING:])
            again = await asyncio.gather(*(client.get("/") for _ in range(CONNECTING + 10)))
            assert {answer.extensions["held_ns"] for answer in again} == {0}
            assert server.connections == CONNECTING + 10

    run(main)


def test_no_more_handshakes_at_once(run: Run) -> None:
    """While the first ones are not through, the next ones have not even begun to connect."""

    async def main() -> None:
        begun = 0
        enough = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal begun
            begun += 1
            if begun == CONNECTING:
                enough.set()
            await reader.read()
            writer.close()

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        transport = Transport(time.monotonic_ns, ssl_context=context)
        server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=2 * CONNECTING)
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with server, httpx.AsyncClient(transport=transport, timeout=None) as client:
            tasks = [asyncio.create_task(client.get(url)) for _ in range(CONNECTING + 10)]
            await enough.wait()
            await asyncio.sleep(0.01)
            assert begun == CONNECTING
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    run(main)


@pytest.mark.parametrize("ended", ["open", "closed"])
def test_answer_before_the_request_is_sent(run: Run, way: Way, ended: str) -> None:
    """An answer that comes while the body is still being sent is read; no other request goes
    that way."""
    if way.kind == "tls" and ended == "open":
        pytest.skip("how much of a TLS stream is unsent is in asyncio's own hands")

    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Large\r\nContent-Length: 5\r\n\r\nlarge")
            await writer.drain()
            if ended == "closed":
                writer.close()
            else:
                await released.wait()
                writer.transport.abort()

        released = asyncio.Event()
        if way.path is not None:
            server = await asyncio.start_unix_server(serve, way.path)
            url = api_url(f"unix:{way.path}")
        else:
            server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=way.served)
            scheme = "https" if way.served else "http"
            url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        transport = way.transport()
        async with server, httpx.AsyncClient(transport=transport, timeout=None) as client:
            answer = await client.post(url, content=bytes(16 << 20))
            assert (answer.status_code, answer.content) == (413, b"large")
            assert transport.idle == 0
            released.set()

    run(main)


def test_refused_connection_says_so(run: Run) -> None:
    """A port where nobody listens gives its address and the cause in words."""

    async def main() -> None:
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            port = bound.getsockname()[1]
            async with httpx.AsyncClient(transport=Transport(time.monotonic_ns)) as client:
                with pytest.raises(
                    httpx.ConnectError, match=f"^127.0.0.1:{port}: .*Connection refused"
                ):
                    await client.get(f"http://127.0.0.1:{port}/")

    run(main)


def test_connecting_is_bounded(run: Run) -> None:
    """A TLS handshake that is not answered fails after the connect time-out."""

    async def main() -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            port = silent.getsockname()[1]
            timeout = httpx.Timeout(None, connect=0.05)
            transport = Transport(time.monotonic_ns, ssl_context=ssl.create_default_context())
            async with httpx.AsyncClient(transport=transport, timeout=timeout) as client:
                with pytest.raises(httpx.ConnectTimeout, match=f"127.0.0.1:{port}: .* 0.05 s"):
                    await client.get(f"https://127.0.0.1:{port}/")

    run(main)


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        (reset, httpx.ReadError, "Connection reset by peer"),
        (cut, httpx.RemoteProtocolError, "closed before the last chunk"),
    ],
)
@pytest.mark.parametrize("sink", [None, Seen], ids=["raw", "sink"])
def test_broken_stream(
    run: Run,
    way: Way,
    how: Callable[[], Event],
    error: type[Exception],
    words: str,
    sink: type[Seen] | None,
) -> None:
    """A stream that is reset or cut fails with address and cause, whoever reads it."""
    if way.kind == "unix" and how is reset:
        pytest.skip("a unix socket knows no reset")

    async def main() -> None:
        transport = way.transport()
        script = [(0.0, c(1)), (10.0, how())]
        async with (
            way.server(lambda _: Answer(script=script)) as server,
            client_of(server, transport) as client,
        ):
            offer = sink_of(sink()) if sink else {}
            with pytest.raises(error, match=f"^{way.where}: .*{words}"):
                await client.post("/v1", content=b"{}", extensions=offer)
            await server.all_closed()
            assert transport.reconnects == 0

    run(main)


@pytest.mark.parametrize("at", ["head", "raw", "sink"])
def test_cancelling_closes_the_connection(run: Run, way: Way, at: str) -> None:
    """A request that is cancelled leaves no connection behind, wherever it was waiting."""

    async def main() -> None:
        seen, transport = Seen(), way.transport()
        script = STALL if at == "head" else [(0.0, c(1)), *STALL]
        arrived = asyncio.Event()

        def respond(request: Request) -> Answer:
            arrived.set()
            return Answer(status=None if at == "head" else 200, script=script)

        async with way.server(respond) as server, client_of(server, transport) as client:

            async def ask() -> None:
                offer = sink_of(seen) if at == "sink" else {}
                async with client.stream("POST", "/v1", content=b"", extensions=offer) as response:
                    async for part in response.aiter_raw():
                        seen(0, part)

            task = asyncio.create_task(ask())
            await (arrived if at == "head" else seen.first).wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await server.all_closed()
            assert transport.idle == 0

    run(main)


def test_cancelling_while_connecting(run: Run) -> None:
    """A request that is cancelled in the TLS handshake leaves no connection behind."""

    async def main() -> None:
        ended = asyncio.Event()
        begun = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(1)
            begun.set()
            try:
                await reader.read()
            except ConnectionError:
                pass  # closed as well
            writer.close()
            ended.set()

        context = ssl.create_default_context()
        transport = Transport(time.monotonic_ns, ssl_context=context)
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with server, httpx.AsyncClient(transport=transport, timeout=None) as client:
            task = asyncio.create_task(client.get(url))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await ended.wait()

    run(main)


def test_closing_the_client_fails_what_is_in_flight(run: Run, way: Way) -> None:
    """`aclose` closes idle and busy connections; a busy one's request fails in words."""

    async def main() -> None:
        seen, transport = Seen(), way.transport()
        script = [(0.0, c(1)), *STALL]

        def respond(request: Request) -> Answer | None:
            return Answer(script=script) if request.method == "POST" else None

        async with way.server(respond) as server, client_of(server, transport) as client:
            busy = asyncio.create_task(client.post("/v1", content=b"{}", extensions=sink_of(seen)))
            await seen.first.wait()
            await client.get("/")
            assert transport.idle == 1
            await transport.aclose()
            with pytest.raises(httpx.ReadError, match="closed by the client itself"):
                await busy
            await server.all_closed()
            assert transport.idle == 0

    run(main)


def test_body_that_nobody_reads_waits_at_the_server(run: Run, way: Way) -> None:
    """A body is not taken into memory faster than it is read, and comes whole all the same."""
    body = bytes(range(256)) * (16 << 12)

    async def main() -> None:
        transport = way.transport()

        def respond(request: Request) -> Answer | None:
            return Answer(body=body) if request.path == "/large" else None

        async with way.server(respond) as server, client_of(server, transport) as client:
            async with client.stream("GET", "/large") as response:
                for _ in range(20):
                    await client.get("/small")
                assert transport.idle == 1
                first = await anext(parts := response.aiter_raw())
                assert len(first) < len(body)
                rest = b"".join([part async for part in parts])
                assert first + rest == body
            assert transport.idle == 2

    run(main)


def test_tls(run: Run, certificate: tuple[Path, Path]) -> None:
    """A trusted certificate gives the same stream, pool and large bodies as plain TCP."""
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(*certificate)
    trusting = ssl.create_default_context(cafile=certificate[0])

    async def main() -> None:
        seen = Seen()
        transport = Transport(time.monotonic_ns, ssl_context=trusting)
        async with (
            ScriptedServer(lambda _: Answer(script=STREAM), ssl_context=served) as server,
            client_of(server, transport) as client,
        ):
            large = bytes(range(256)) * 4096
            for _ in range(2):
                await client.post("/v1", content=large, extensions=sink_of(seen))
            assert seen.body == 2 * EVENTS
            assert server.requests[1].body == large
            assert server.connections == 1

    run(main)


def test_untrusted_certificate(run: Run, certificate: tuple[Path, Path]) -> None:
    """A certificate that is not trusted fails to connect, because of TLS."""
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(*certificate)

    async def main() -> None:
        transport = Transport(time.monotonic_ns, ssl_context=ssl.create_default_context())
        async with (
            ScriptedServer(lambda _: None, ssl_context=served) as server,
            client_of(server, transport) as client,
        ):
            with pytest.raises(httpx.ConnectError, match=r"^127.*: TLS: .*certificate") as caught:
                await client.get("/")
            assert isinstance(caught.value.__cause__, ssl.SSLError)
            assert server.requests == []

    run(main)
