"""Runs of the real scheduler in virtual time, against an oracle that knows how long calls took."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from agentreplay.client.stream import Reply, Sink, Stream
from agentreplay.metrics.record import Record, Request
from agentreplay.metrics.summary import Summary, summarize
from agentreplay.metrics.window import Ending
from agentreplay.plan import Plan
from agentreplay.play import Dialect
from agentreplay.prompt.messages import Template
from agentreplay.replay import Replay
from agentreplay.sim import virtual
from agentreplay.sim.engine import Profile
from agentreplay.sim.server import SimServer
from agentreplay.trace.model import Call, Session
from agentreplay.trace.structure import link

DIALECT = Dialect("m", Template(), {})

SIM = Dialect(
    "sim",
    Template(prompt=8, system=5, pair=10),
    {"stream_options": {"include_usage": True}, "ignore_eos": True},
)

ANSWER = (
    b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n'
    b"data: [DONE]\n\n"
)


@dataclass(frozen=True)
class Outcome:
    records: list[Record]
    ending: Ending


def call(
    start_s: float,
    end_s: float,
    *,
    isl: int = 640,
    osl: int = 10,
    parent: int | None = None,
    shared: int = 0,
    system: int = 0,
    agent: str = "",
    cached: int | None = None,
) -> Call:
    """A call that is not linked yet."""
    return Call(start_s, end_s, True, isl, osl, (), 0.0, parent, shared, system, agent, "m", cached)


def chain(number: int, calls: int, *, gap_s: float = 2.0, takes_s: float = 1.0) -> Session:
    """A session of one agent whose calls follow each other."""
    made = [
        call(
            i * (gap_s + takes_s),
            i * (gap_s + takes_s) + takes_s,
            isl=640 + 64 * i,
            parent=i - 1 if i else None,
            shared=640 + 64 * (i - 1) if i else 0,
        )
        for i in range(calls)
    ]
    return Session(f"chain-{number}", None, link(made, 64), 64, "")


def oracle(sessions: Iterable[Session], factor: float = 1.0) -> Stream:
    """Answers each call after its recorded duration times *factor*."""
    took_s = {
        (session.id, i): call.end_s - call.start_s
        for session in sessions
        for i, call in enumerate(session.calls)
    }

    async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
        await anyio.sleep(took_s[request.session, request.call] * factor)
        sink(virtual.clock(), ANSWER)
        return Reply(200, "text/event-stream", b"")

    return stream


def replay(
    plan: Plan,
    sessions: Sequence[Session],
    stream: Stream,
    *,
    dialect: Dialect = DIALECT,
    beside: Callable[[Replay], Coroutine[Any, Any, None]] | None = None,
    server: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> Outcome:
    """Run the scheduler in virtual time.

    Args:
        plan: The plan.
        sessions: The trace.
        stream: Answers.
        dialect: How requests look.
        beside: An async function that is given the scheduler and runs beside it.
        server: An async function that runs beside it, as a server's.
    """
    records: list[Record] = []

    async def draw(index: int) -> Session:
        return sessions[index]

    async def main() -> Ending:
        run = Replay(plan, len(sessions), draw, dialect, stream, virtual.clock, records.append)
        async with anyio.create_task_group() as group:
            if beside is not None:
                group.start_soon(beside, run)
            if server is not None:
                group.start_soon(server)
            ending = await run.run()
            group.cancel_scope.cancel()
        return ending

    return Outcome(records, virtual.run(main))


def simulated(
    plan: Plan, trace: Sequence[Session], profile: Profile, stall_s: float = 0.0
) -> tuple[Outcome, Summary]:
    """Replay against the simulated server; *stall_s*: one call of each ten stalls so long."""
    servers: list[SimServer] = []
    asked = 0

    async def serve() -> None:
        servers.append(SimServer(profile, virtual.clock))
        await servers[0].run()

    async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
        nonlocal asked
        asked += 1
        while not servers:
            await anyio.sleep(0)
        if stall_s and asked % 10 == 0:
            await anyio.sleep(stall_s)
        return await servers[0].stream(request, body, sink)

    outcome = replay(plan, trace, stream, dialect=SIM, server=serve)
    return outcome, summarize(outcome.records, plan, outcome.ending)
