"""Runs of different shape, made in virtual time against the simulated server, as run directories.

Rule: a shape is a plan, a trace, and a manner in which the server answers its n-th request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import orjson
from virtually import call, chain, replay

from agentreplay.client.stream import Reply, Sink
from agentreplay.metrics.cost import Money, Prices
from agentreplay.metrics.record import Request
from agentreplay.metrics.verdict import Limits
from agentreplay.outcome import Reports, conclude
from agentreplay.plan import Plan
from agentreplay.play import Dialect
from agentreplay.prompt.messages import Template
from agentreplay.replay import Replay
from agentreplay.sim import virtual
from agentreplay.sim.engine import Profile
from agentreplay.sim.server import SimServer
from agentreplay.store import RunWriter
from agentreplay.trace.model import Session
from agentreplay.trace.structure import link

PROFILE = Profile(
    name="known",
    context_tokens=6_000,
    step_s=0.020,
    prefill_token_s=0.0005,
    decode_seq_s=0.003,
    step_tokens=4_000,
    max_seqs=8,
    kv_tokens=6_016,
    block_size=64,
)

MONEY = Money(gpus=4, gpu_hour=2.26, prices=Prices(input=3.0, cached=0.3, output=15.0))

DIALECT = Dialect(
    "sim",
    Template(prompt=8, system=5, pair=10),
    {"stream_options": {"include_usage": True}, "ignore_eos": True},
)

ORIGIN_UNIX_NS = 1_790_000_000_123_456_789

Send = Callable[[Request, bytes, Sink], Any]
Manner = Callable[[int], str]
"""How the n-th request is answered: one of the words in `_answered`."""


@dataclass(frozen=True)
class Shape:
    """What is run, and how it goes.

    Attributes:
        plan: The plan.
        trace: The sessions.
        manner: How each request is answered.
        stop: When and how it is interrupted: seconds, and seconds of draining.
        killed: So many of its records are on disk, and no end.
    """

    plan: Plan
    trace: Sequence[Session]
    manner: Manner = lambda n: "well"
    stop: tuple[float, float] | None = None
    killed: int | None = None


def _every(**periods: int) -> Manner:
    """The first manner whose period divides the number of the request."""

    def manner(n: int) -> str:
        return next((how for how, period in periods.items() if n % period == 0), "well")

    return manner


def _team(number: int) -> Session:
    """A session whose main agent hands work to another, and goes on when that is done."""
    calls = [
        call(0, 2, isl=1280, osl=12, system=640),
        call(3, 4, isl=1408, osl=9, parent=0, shared=1280, system=640),
        call(3.5, 6, isl=704, osl=30, agent="helper"),
        call(7, 8, isl=832, osl=14, parent=2, shared=704, agent="helper"),
        call(9, 12, isl=1664, osl=40, parent=1, shared=1408, system=640),
        call(20, 21, isl=1800, osl=22, parent=4, shared=1664, system=640),
        call(22, 24, isl=1990, osl=25, parent=5, shared=1792, system=640),
    ]
    return Session(f"team-{number}", None, link(calls, 64), 64, "")


def _short(number: int) -> Session:
    """A session of answers with one, two or five tokens."""
    calls = [
        call(
            3 * i,
            3 * i + 1,
            isl=640 + 64 * i,
            osl=(1, 2, 5)[(i + number) % 3],
            parent=i - 1 if i else None,
            shared=640 + 64 * (i - 1) if i else 0,
        )
        for i in range(12)
    ]
    return Session(f"short-{number}", None, link(calls, 64), 64, "")


CHAINS = [chain(n, 8 + 3 * n) for n in range(5)]
TEAMS = [_team(n) for n in range(6)]
MIXED = [*CHAINS, *TEAMS]
MANNERS = {"refuse": 7, "overflow": 11, "error": 13, "cut": 17, "busy": 19, "forbid": 23}

SHAPES = {
    "ramp": Shape(Plan(users=4, duration_s=60, ramp_s=9.0), MIXED),
    "warm-up": Shape(
        Plan(users=3, duration_s=40, start=(0.25, 0.75), warmup_calls=2, warmup_limit_s=20),
        MIXED,
    ),
    "warm-up and lead": Shape(
        Plan(users=3, duration_s=40, start=(0.1, 0.9), warmup_calls=1, warmup_s=6.5), TEAMS
    ),
    "short": Shape(
        Plan(users=3, duration_s=60), [_short(n) for n in range(6)], _every(burst=4, uncounted=7)
    ),
    "bundles": Shape(Plan(users=4, duration_s=29.0), MIXED, _every(burst=9, well=4, bundle=1)),
    "failures": Shape(
        Plan(users=4, duration_s=40, on_error="continue", retry_busy=True), MIXED, _every(**MANNERS)
    ),
    "interrupted": Shape(Plan(users=6, duration_s=60), MIXED, stop=(16.2, 0.1)),
    "uneven": Shape(Plan(users=3, duration_s=None, sessions=5), CHAINS, _every(stall=6)),
    "killed": Shape(Plan(users=4, duration_s=60), MIXED, _every(refuse=9), killed=70),
    "killed in its warm-up": Shape(
        Plan(users=3, duration_s=40, start=(0.25, 0.75), warmup_calls=2), MIXED, killed=4
    ),
    "live": Shape(Plan(users=3, duration_s=30, history="live"), MIXED, _every(bundle=2)),
}


def made(shape: Shape, path: Path, exports: Sequence[str] = ()) -> Path:
    """Run *shape*, and leave a run directory at *path* with a summary and *exports*."""
    servers: list[SimServer] = []

    async def serve() -> None:
        servers.append(SimServer(PROFILE, virtual.clock))
        await servers[0].run()

    asked = 0

    async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
        nonlocal asked
        asked += 1
        how = shape.manner(asked)
        while not servers:
            await anyio.sleep(0)
        return await _answered(how, partial(servers[0].stream, request, body), sink)

    async def stop(run: Replay) -> None:
        if shape.stop is not None:
            after_s, drain_s = shape.stop
            await anyio.sleep(after_s)
            run.stop("interrupted", drain_s)

    outcome = replay(shape.plan, shape.trace, stream, dialect=DIALECT, server=serve, beside=stop)
    manifest = {
        "agentreplay": "0",
        "plan": asdict(shape.plan),
        "money": asdict(MONEY),
        "limits": asdict(Limits()),
        "endpoint": {"simulated": PROFILE.name},
        "trace": {"paths": [], "sessions": len(shape.trace)},
        "origin_unix_ns": ORIGIN_UNIX_NS,
    }
    with RunWriter(path, manifest) as writer:
        for record in outcome.records[: shape.killed]:
            writer.append(record)
        if shape.killed is None:
            writer.end(outcome.ending, None, {"trace_sha256": "5e7"})
    if shape.killed is not None:
        with (path / "records.jsonl").open("ab") as file:
            file.write(b'{"request":{"lane":0,"vis')
    conclude(path, reports=Reports(tuple(exports)))
    return path


async def _answered(how: str, served: Callable[[Sink], Any], sink: Sink) -> Reply:
    """What the server gives, in the manner that is asked for."""
    if how == "busy":
        return Reply(429, "application/json", b'{"error":{"message":"later"}}', retry_after_s=0.7)
    if how == "refuse":
        await anyio.sleep(0.05)
        return Reply(503, "application/json", b'{"error":{"message":"overloaded"}}')
    if how == "forbid":
        return Reply(422, "application/json", b'{"error":{"message":"no such field"}}')
    if how == "overflow":
        said = b'{"error":{"message":"This model\'s maximum context length is 10 tokens."}}'
        return Reply(400, "application/json", said)
    if how == "stall":
        await anyio.sleep(4.2)
    parts: list[bytes] = []
    given = 0

    def take(at_ns: int, data: bytes) -> None:
        nonlocal given
        given += 1
        last = data.endswith(b"[DONE]\n\n")
        if how == "error" and given == 3:
            sink(at_ns, b'data: {"error":{"message":"engine is dead","code":500}}\n\n')
        elif how == "bundle" and not last:
            parts.append(data)
            if len(parts) == 3:
                sink(at_ns, _merged(parts, "reasoning_content" if given == 3 else "content"))
                parts.clear()
        elif how == "burst":
            parts.append(data)
        elif not (how == "uncounted" and last) and not (how == "cut" and given > 3):
            sink(at_ns, (_merged(parts, "content") if parts else b"") + data)

    reply: Reply = await served(take)
    if how == "burst":
        sink(virtual.clock(), b"".join(parts))
    return reply


def _merged(parts: Sequence[bytes], key: str) -> bytes:
    """One event with the text of several, under *key*."""
    events = [orjson.loads(line[6:]) for part in parts for line in part.split(b"\n") if line]
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
    events[0]["choices"][0] = {**events[-1]["choices"][0], "delta": {key: text}}
    return b"data: %b\n\n" % orjson.dumps(events[0])
