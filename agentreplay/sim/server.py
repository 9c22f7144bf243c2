"""The simulated server at work: the engine's steps take their time, and answers flow.

Rule: one engine, two ways in. `SimServer.stream` is the seam to the network, and in virtual time
the whole server; `SimServer.app` is the same behind HTTP. Every HTTP response names the simulation
in the header `x-simulated-server`.

As a program (`python -m agentreplay.sim.server PROFILE`) it is somebody's child: it takes a free
port of the loopback interface, prints its URL once it listens, and ends when its standard input
does, so that it can't outlive its parent. `embedded` is that parent.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import anyio

from agentreplay.client.stream import Reply, Sink
from agentreplay.errors import EndpointError
from agentreplay.sim import chat
from agentreplay.sim.engine import PROFILES, Engine, Job, Profile

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from agentreplay.metrics.record import Request as Planned

_STOP_S = 2.0
_JSON = b"application/json"
_EVENTS = b"text/event-stream; charset=utf-8"
_METRICS = "text/plain; version=0.0.4"


class Answer:
    """One answer in the making: iterating over it gives the parts of its event stream.

    Each token is a part of its own, as soon as the engine has it.
    """

    def __init__(self, ask: chat.Ask, number: int) -> None:
        self.ask = ask
        self.number = number
        self.job = Job(ask.blocks, ask.isl, ask.osl)
        self._chunks = chat.Chunks(number, ask)
        self._made = 0
        self._given = 0
        self._news: anyio.Event | None = None

    def token(self) -> None:
        """There is one token more."""
        self._made += 1
        if self._news is not None:
            self._news.set()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        given = self._given
        if given > self.ask.osl:
            raise StopAsyncIteration
        self._given += 1
        if given == self.ask.osl:
            return self._chunks.end(self.job.cached)
        if given == self._made:
            self._news = anyio.Event()
            await self._news.wait()
        return self._chunks.token(given)

    async def whole(self) -> bytes:
        """The answer in one piece, when it is complete."""
        async for _ in self:
            pass
        return chat.whole(self.number, self.ask, self.job.cached)


class SimServer:
    """A server with one engine. It answers while `run` runs.

    Args:
        profile: How big and fast it is.
        clock: The time in nanoseconds; it has to go as the event loop's own does.
    """

    def __init__(self, profile: Profile, clock: Callable[[], int]) -> None:
        self.profile = profile
        self.engine = Engine(profile)
        self._clock = clock
        self._answers: dict[Job, Answer] = {}
        self._numbers = 0
        self._prompt_tokens = self._generated_tokens = 0
        self._work: anyio.Event | None = None

    async def run(self) -> None:
        """Step the engine whenever there is work, for ever."""
        end_ns = self._clock()
        while True:
            if not self.engine.busy:
                self._work = anyio.Event()
                await self._work.wait()
                end_ns = self._clock()
            step = self.engine.step()
            # From the end of the step before: a late one must not delay all that follow.
            end_ns += round(step.cost_s * 1e9)
            await anyio.sleep(max(0, end_ns - self._clock()) / 1e9)
            for job in step.gained:
                if answer := self._answers.get(job):
                    answer.token()
                    self._generated_tokens += 1
                    if job.generated == 1:
                        self._prompt_tokens += job.isl

    @contextmanager
    def answer(self, body: bytes) -> Iterator[Answer | chat.Refusal]:
        """The answer to the request *body*; it is given up where the context ends."""
        ask = chat.read(body, self.profile)
        if isinstance(ask, chat.Refusal):
            yield ask
            return
        self._numbers += 1
        answer = Answer(ask, self._numbers)
        self.engine.submit(answer.job)
        self._answers[answer.job] = answer
        if self._work is not None:
            self._work.set()
        try:
            yield answer
        finally:
            del self._answers[answer.job]
            self.engine.cancel(answer.job)

    async def stream(self, request: Planned, body: bytes, sink: Sink) -> Reply:
        """Answer *body* without a network in between; a `client.stream.Stream`."""
        with self.answer(body) as answer:
            if isinstance(answer, chat.Refusal):
                return Reply(answer.status, "application/json", answer.body)
            if not answer.ask.stream:
                return Reply(200, "application/json", await answer.whole())
            async for part in answer:
                sink(self._clock(), part)
        return Reply(200, "text/event-stream", b"")

    def metrics(self) -> bytes:
        """The page of metrics, by the names of vLLM; a prompt counts with its first token."""
        engine, capacity = self.engine, self.profile.kv_tokens
        page = [
            ("num_requests_running", "gauge", engine.running),
            ("num_requests_waiting", "gauge", engine.waiting),
            ("kv_cache_usage_perc", "gauge", engine.held_tokens / capacity),
            ("prefix_cache_queries_total", "counter", engine.looked_up),
            ("prefix_cache_hits_total", "counter", engine.found),
            ("num_preemptions_total", "counter", 0),
            ("prompt_tokens_total", "counter", self._prompt_tokens),
            ("generation_tokens_total", "counter", self._generated_tokens),
        ]
        labels = f'engine="0",model_name="sim-{self.profile.name}"'
        return "".join(
            f"# TYPE vllm:{name} {kind}\nvllm:{name}{{{labels}}} {value}\n"
            for name, kind, value in page
        ).encode()

    def app(self) -> Starlette:
        """The server as an ASGI application."""
        # Here, because virtual time needs none of it, and it takes its time to load.
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.responses import JSONResponse, PlainTextResponse, Response
        from starlette.routing import Route

        simulated = {"x-simulated-server": self.profile.name}
        about = f"SIMULATED SERVER ({self.profile.name}): agentreplay's model of an LLM server\n"

        async def root(request: Request) -> Response:
            return PlainTextResponse(about, headers=simulated)

        async def health(request: Request) -> Response:
            return PlainTextResponse("", headers=simulated)

        async def metrics(request: Request) -> Response:
            return Response(self.metrics(), media_type=_METRICS, headers=simulated)

        async def models(request: Request) -> Response:
            body = chat.models(self.profile)
            return Response(body, media_type="application/json", headers=simulated)

        async def refuse(request: Request, error: Exception) -> Response:
            assert isinstance(error, HTTPException)
            headers = {**(error.headers or {}), **simulated}
            return JSONResponse({"detail": error.detail}, error.status_code, headers)

        return Starlette(
            routes=[
                Route("/", root),
                Route("/health", health),
                Route("/metrics", metrics),
                Route("/v1/models", models),
                Route("/v1/chat/completions", _Completions(self), methods=["POST"]),
            ],
            exception_handlers={HTTPException: refuse},
        )

    async def complete(self, receive: Receive, send: Send) -> None:
        """Answer a chat completion over ASGI."""
        body: list[bytes] = []
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body.append(message.get("body", b""))
            more = message.get("more_body", False)
        with self.answer(b"".join(body)) as answer:
            if isinstance(answer, chat.Refusal):
                await self._respond(send, answer.status, answer.body)
                return
            async with anyio.create_task_group() as group:
                group.start_soon(_cancel_on_disconnect, receive, group.cancel_scope)
                if answer.ask.stream:
                    await self._start(send, 200, (b"content-type", _EVENTS))
                    async for part in answer:
                        await send({"type": "http.response.body", "body": part, "more_body": True})
                    await send({"type": "http.response.body"})
                else:
                    await self._respond(send, 200, await answer.whole())
                group.cancel_scope.cancel()

    async def _respond(self, send: Send, status: int, body: bytes) -> None:
        length = str(len(body)).encode()
        await self._start(send, status, (b"content-type", _JSON), (b"content-length", length))
        await send({"type": "http.response.body", "body": body})

    async def _start(self, send: Send, status: int, *headers: tuple[bytes, bytes]) -> None:
        simulated = (b"x-simulated-server", self.profile.name.encode())
        await send(
            {"type": "http.response.start", "status": status, "headers": [*headers, simulated]}
        )


class _Completions:
    """A route that is an application itself, so that a token costs no more than one send."""

    def __init__(self, server: SimServer) -> None:
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._server.complete(receive, send)


async def _cancel_on_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def serve(profile: Profile, host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve HTTP until cancelled.

    Args:
        profile: How big and fast the server is.
        host: Address to listen on.
        port: Port to listen on; 0 for any free one.
        on_ready: Called with the URL as soon as connections are accepted.
    """
    import uvicorn  # here, for the same reason as Starlette

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            on_ready(url)

        def capture_signals(self) -> nullcontext[None]:  # type: ignore[override]
            # Signals are the caller's: whoever cancels this function has ended the server.
            return nullcontext()

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listener:
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        url = f"http://{shown}:{listener.getsockname()[1]}"
        sim = SimServer(profile, time.monotonic_ns)
        config = uvicorn.Config(
            sim.app(),
            interface="asgi3",
            ws="none",
            lifespan="off",
            proxy_headers=False,
            access_log=False,
            log_config=None,
            log_level="critical",
            timeout_graceful_shutdown=0,
        )
        server = Server(config)
        async with anyio.create_task_group() as group:
            group.start_soon(sim.run)
            try:
                await server.serve(sockets=[listener])
            finally:
                if server.started:
                    with anyio.CancelScope(shield=True):
                        await server.shutdown(sockets=[listener])


@asynccontextmanager
async def embedded(profile: str = "demo") -> AsyncIterator[str]:
    """A simulated server in a process of its own, and its URL.

    Args:
        profile: Name of one of the `PROFILES`.
    """
    # A session of its own keeps Ctrl-C from it: the parent still wants to drain its answers.
    process = await anyio.open_process(
        [sys.executable, "-m", "agentreplay.sim.server", profile],
        stderr=None,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            try:
                line += await process.stdout.receive()
            except anyio.EndOfStream:
                raise EndpointError(
                    f"the simulated server ended before it was ready (profile {profile!r})"
                ) from None
        yield line.decode().strip()
    finally:
        with anyio.CancelScope(shield=True):
            try:
                process.terminate()
            except ProcessLookupError:
                pass  # it has ended by itself
            with anyio.move_on_after(_STOP_S):
                await process.wait()
            if process.returncode is None:
                process.kill()
            await process.aclose()


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def main() -> None:
    """The child process of `embedded`."""
    if len(sys.argv) != 2 or sys.argv[1] not in PROFILES:
        raise SystemExit(f"usage: python -m agentreplay.sim.server PROFILE ({', '.join(PROFILES)})")

    def announce(url: str) -> None:
        sys.stdout.write(url + "\n")
        sys.stdout.flush()

    threading.Thread(target=_end_with_stdin, daemon=True).start()
    anyio.run(
        serve,
        PROFILES[sys.argv[1]],
        "127.0.0.1",
        0,
        announce,
        backend_options={"use_uvloop": sys.platform != "win32"},
    )


if __name__ == "__main__":
    main()
