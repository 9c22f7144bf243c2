"""Run directories made by hand: any number of calls, with every outcome there is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from agentreplay.metrics.cost import Money
from agentreplay.metrics.record import Failure, Record, Request
from agentreplay.metrics.server import Reading
from agentreplay.metrics.summary import ClientHealth
from agentreplay.metrics.verdict import Limits
from agentreplay.metrics.window import Ending
from agentreplay.plan import Plan
from agentreplay.store import RunWriter

HEALTH = ClientHealth(0.002, 0.012, (0.31,))


def sessions(lanes: int, calls: int, seed: int = 1, longest: int = 300) -> Iterator[Record]:
    """So many calls over so many lanes: chains with subagents, and every outcome now and then.

    Answers have fewer than *longest* tokens.
    """
    draw = np.random.default_rng(seed)
    number = 0
    for lane in range(lanes):
        share = calls // lanes + (lane < calls % lanes)
        now_ns, visit = 0, 0
        while share:
            size = min(share, int(draw.integers(4, 60)))
            share -= size
            name = f"session-{int(draw.integers(0, 300)):04d}"
            length, agent_until = int(draw.integers(1_000, 30_000)), 0
            for call in range(size):
                number += 1
                helper = bool(call % 9 >= 6)
                agent = f"helper-{call // 9}" if helper else ""
                gap_ns = int(draw.exponential(0.8e9))
                length += int(draw.integers(100, 2_000))
                one = _call(draw, number, longest, length, 0 if call == 0 else length - 500)
                due_ns = agent_until if call % 9 in (7, 8) else now_ns + gap_ns
                one = replace(
                    one,
                    request=replace(
                        one.request,
                        lane=lane,
                        visit=visit,
                        session=name,
                        index=int(name[-4:]),
                        call=call,
                        calls=size,
                        agent=agent if call % 9 != 8 else f"{agent}-b",
                        due_ns=due_ns,
                    ),
                )
                agent_until = due_ns if call % 9 == 6 else agent_until
                moved = _moved(one, due_ns + int(draw.exponential(2e6)))
                now_ns = max(now_ns, moved.done_ns)
                yield moved
            visit += 1


def _call(draw: np.random.Generator, number: int, longest: int, isl: int, reuse: int) -> Record:
    osl = int(draw.integers(2, longest))
    ttft_ns = int(30e6 + isl * 4e3 * draw.random())
    gap_us = int(draw.integers(8_000, 25_000))
    error = None
    if number % 97 == 0:
        error = Failure("http_5xx", 500, "engine is dead")
    elif number % 211 == 0:
        error = Failure("timeout", None, "no sign of another token for 5 s")
    elif number % 503 == 0:
        error = Failure("cancelled", None, "cut at the end of the run")
    tokens = error is None or error.kind == "timeout"
    stream_ns = gap_us * 1000 * (osl - 1) if tokens else 0
    request = Request(
        *(0, 0, "", 0, 0, 1, "", 0, isl, osl, 0, 64, reuse, reuse, "recorded", 3.0, 0.0),
        warmup=False,
    )
    return Record(
        request=request,
        sent_ns=0,
        first_token_ns=ttft_ns if tokens else None,
        first_visible_ns=ttft_ns if tokens else None,
        last_token_ns=ttft_ns + stream_ns if tokens else None,
        done_ns=ttft_ns + stream_ns + (5_000_000_000 if error and tokens else 0),
        chunk_us=(gap_us,) * (osl - 1) if tokens else (),
        chunk_tokens=None,
        burst=False,
        bundled_reads=0,
        reconnected=False,
        isl=isl if tokens else None,
        osl=osl if tokens else None,
        cached=reuse // 16 * 16 if error is None else None,
        estimated=False,
        finish="length" if error is None else None,
        error=error,
    )


def _moved(record: Record, by_ns: int) -> Record:
    """The same, sent at another time."""

    def later(at_ns: int | None) -> int | None:
        return None if at_ns is None else at_ns + by_ns

    return replace(
        record,
        sent_ns=record.sent_ns + by_ns,
        first_token_ns=later(record.first_token_ns),
        first_visible_ns=later(record.first_visible_ns),
        last_token_ns=later(record.last_token_ns),
        done_ns=record.done_ns + by_ns,
    )


def write_run(
    path: Path,
    records: Iterable[Record],
    *,
    users: int = 8,
    words: str = "a-model",
    simulated: str | None = None,
    ended: bool = True,
    readings: Iterable[Reading] = (),
) -> Path:
    """A run directory of records; one that was cut off has no end."""
    plan = Plan(users=users)
    manifest = {
        "agentreplay": "0.1.0",
        "plan": asdict(plan),
        "money": asdict(Money()),
        "limits": asdict(Limits()),
        "goodput": [],
        "gates": [],
        "cautions": [],
        "endpoint": {
            "model": words,
            "urls": [words],
            "simulated": simulated,
            "api": "chat",
            "forces_output": True,
        },
        "trace": {"paths": [words], "sessions": 300, "choice": {}, "files": []},
    }
    last_ns = 0
    with RunWriter(path, manifest) as writer:
        for record in records:
            writer.append(record)
            last_ns = max(last_ns, record.done_ns)
        for reading in readings:
            writer.append_reading(reading)
        writer.flush()
        if ended:
            ending = Ending("duration", last_ns, last_ns)
            writer.end(ending, HEALTH, {"trace_sha256": "0" * 64, "skipped": {}, "notes": {}})
    return path
