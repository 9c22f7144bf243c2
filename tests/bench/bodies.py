"""What the body of a call of 142,000 tokens costs, beside a plain copy of the same bytes."""

from __future__ import annotations

import gc
import time
import tracemalloc
from pathlib import Path

from agentreplay.client.transport import raise_malloc_threshold
from agentreplay.plan import Plan, Visit
from agentreplay.play import Dialect, Play
from agentreplay.prompt.messages import Template
from agentreplay.trace.model import Session

from .sets import BLOCK, call, chain
from .table import Line, Row, ratio_row

CASES = ("cold", "end of a chain")
COPY = {name: Line(f"body, {name} / copy") for name in CASES}
CPU = {name: Line(f"body, {name}", "ms", 3.0) for name in CASES}
MEMORY = {name: Line(f"body, {name}: peak / size", goal=2.0) for name in CASES}
"""Bytes beyond what the conversation keeps for later calls, which it has to."""

LINES = (*COPY.values(), *CPU.values(), *MEMORY.values())

TOKENS = 142_000
CALLS = 40
OUTPUT = 400

ROUNDS = 15
COPIES = 20
"""Copies in one reading of the clock: one alone takes some ten microseconds."""

DIALECT = Dialect("model", Template(prompt=8, system=5, pair=10), {"ignore_eos": True})


def bodies(_: Path) -> list[Row]:
    """A prompt of one message with nothing made before it, and the last one of a chain."""
    raise_malloc_threshold()  # as a run does
    lone = Session("cold", None, (call(TOKENS, OUTPUT, system=0),), BLOCK, "made for the bench")
    grown = chain("chain", TOKENS // 4, TOKENS, CALLS, OUTPUT)
    # One more call, so that the conversation keeps the messages of the one that is measured.
    shared = TOKENS // BLOCK * BLOCK
    after = call(TOKENS + 1000, OUTPUT, CALLS - 1, shared)
    grown = Session(grown.id, None, (*grown.calls, after), BLOCK, grown.source)
    measured = {"cold": _measured(lone, 0), "end of a chain": _measured(grown, CALLS - 1)}
    found: dict[Line, Row] = {}
    for name, (taken, copied, peak, kept) in measured.items():
        found[COPY[name]] = ratio_row(COPY[name], taken, copied, "ms")
        found[CPU[name]] = Row(CPU[name], tuple(taken))
        found[MEMORY[name]] = Row(MEMORY[name], (round(peak - kept, 2),), {"kept_sizes": kept})
    return [found[line] for line in LINES]


def _measured(session: Session, i: int) -> tuple[list[float], list[float], float, float]:
    """CPU milliseconds of the body of call *i* in fresh plays, the calls before it having been
    made, and of copies of it; memory in sizes of the body: its peak, and what is kept."""
    taken, copied, size = list[float](), list[float](), 0
    for number in range(ROUNDS + 1):
        play = _before(session, i, number)
        began_s = time.process_time()
        body = play.body(i)
        taken.append((time.process_time() - began_s) * 1e3)
        copied.append(_copy_ms(body))
        size = len(body)
    peak, kept = _memory(session, i)
    # The first round pays for the table of words.
    return taken[1:], copied[1:], peak / size, kept / size


def _before(session: Session, i: int, number: int) -> Play:
    play = Play(Plan(), Visit(0, number, 0, number), session, DIALECT)
    play.begin(0)
    for each in range(i):
        play.body(each)
        play.request(each)
        play.end(each, each)
    gc.collect()
    return play


def _copy_ms(body: bytes) -> float:
    began_s = time.process_time()
    for _ in range(COPIES):
        b"".join((body[:1], memoryview(body)[1:]))
    return (time.process_time() - began_s) / COPIES * 1e3


def _memory(session: Session, i: int) -> tuple[int, int]:
    """Bytes at the peak and bytes kept beside the body, both beyond what was held before."""
    tracemalloc.start()
    try:
        play = _before(session, i, ROUNDS + 1)
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        body = play.body(i)
        _, peak = tracemalloc.get_traced_memory()
        play.request(i)
        after, _ = tracemalloc.get_traced_memory()
        return peak - before, max(0, after - before - len(body))
    finally:
        tracemalloc.stop()
