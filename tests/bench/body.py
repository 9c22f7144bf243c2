"""What it costs to build the body of a call of 142,000 tokens: CPU time and memory.

Beside each figure stands what it can't cost less than, a plain copy of the same bytes, and the
goal. Run by `make bench`.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from agentreplay.client.transport import raise_malloc_threshold
from agentreplay.plan import Plan, Visit
from agentreplay.play import Dialect, Play
from agentreplay.prompt.messages import Template
from agentreplay.trace.model import Call, Session

TOKENS = 142_000
CALLS = 40
BLOCK = 64
SYSTEM = 12_000
OUTPUT = 400

ROUNDS = 15
COPIES = 20
"""Copies in one reading of the clock: one alone takes some ten microseconds."""

GOAL_MS = 3.0
GOAL_SIZES = 2.0

DIALECT = Dialect("model", Template(prompt=8, system=5, pair=10), {"ignore_eos": True})


@dataclass(frozen=True, slots=True)
class Cost:
    """What one body costs.

    Attributes:
        cpu_ms: Median CPU time of building it.
        copy_ms: Median CPU time of copying as many bytes.
        size: Its bytes.
        peak: Most memory that building it took beyond what was held before, the body included, as a
            multiple of its size.
        kept: What the conversation keeps for later calls, likewise; part of the peak.
    """

    cpu_ms: float
    copy_ms: float
    size: int
    peak: float
    kept: float


def growing(tokens: int, calls: int) -> Session:
    """A chain of calls, each of which shares all whole blocks of the one before it."""
    first = tokens // 4
    lengths = [first + (tokens - first) * n // (calls - 1) for n in range(calls)]
    chain = [_call(lengths[0])]
    for n in range(1, calls):
        shared = lengths[n - 1] // BLOCK * BLOCK
        chain.append(_call(lengths[n], after=(n - 1,), parent=n - 1, shared=shared))
    # One more, so that the conversation keeps the messages of the call that is measured.
    last = lengths[-1] // BLOCK * BLOCK
    chain.append(_call(tokens + 1000, after=(calls - 1,), parent=calls - 1, shared=last))
    return Session("chain", None, tuple(chain), BLOCK, "made for the bench")


def cold(tokens: int) -> Session:
    """One call, whose prompt is a single message."""
    return Session("cold", None, (_call(tokens, system=0),), BLOCK, "made for the bench")


def _call(
    isl: int,
    after: tuple[int, ...] = (),
    parent: int | None = None,
    shared: int = 0,
    system: int = SYSTEM,
) -> Call:
    return Call(
        start_s=0.0, end_s=0.0, timed=False, isl=isl, osl=OUTPUT, after=after, gap_s=0.0,
        parent=parent, shared=shared, system=system, agent="", model=None, cached=None,
    )  # fmt: skip


def measured(session: Session, i: int) -> Cost:
    """Build the body of call *i* in fresh plays, the calls before it having been made."""
    times, copies, size = list[float](), list[float](), 0
    for number in range(ROUNDS + 1):
        play = _before(session, i, number)
        begin = time.process_time()
        body = play.body(i)
        times.append(time.process_time() - begin)
        copies.append(_copy_s(body))
        size = len(body)
    peak, kept = _memory(session, i)
    # The first round pays for the table of words.
    return Cost(median(times[1:]) * 1e3, median(copies[1:]) * 1e3, size, peak / size, kept / size)


def _before(session: Session, i: int, number: int) -> Play:
    play = Play(Plan(), Visit(0, number, 0, number), session, DIALECT)
    play.begin(0)
    for each in range(i):
        play.body(each)
        play.request(each)
        play.end(each, each)
    gc.collect()
    return play


def _copy_s(body: bytes) -> float:
    begin = time.process_time()
    for _ in range(COPIES):
        b"".join((body[:1], memoryview(body)[1:]))
    return (time.process_time() - begin) / COPIES


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


def _row(cells: Sequence[str], out: Callable[[str], None]) -> None:
    out(f"{cells[0]:<34}" + "".join(f"{cell:>12}" for cell in cells[1:]))


def main() -> None:
    """Print the table."""

    def out(line: str) -> None:
        print(line)  # noqa: T201

    raise_malloc_threshold()  # as a run does
    chain = growing(TOKENS, CALLS)
    cases = (
        (f"last of a chain of {CALLS} calls", measured(chain, CALLS - 1)),
        ("one message, nothing made before", measured(cold(TOKENS), 0)),
    )
    out(f"The body of a call of {TOKENS:,} tokens, median of {ROUNDS} rounds")
    _row(("", "CPU ms", "copy ms", "ratio", "MB", "peak/size", "kept/size"), out)
    for name, cost in cases:
        _row(
            (
                name,
                f"{cost.cpu_ms:.2f}",
                f"{cost.copy_ms:.3f}",
                f"{cost.cpu_ms / cost.copy_ms:.1f}",
                f"{cost.size / 1e6:.2f}",
                f"{cost.peak:.2f}",
                f"{cost.kept:.2f}",
            ),
            out,
        )
    goal = f"≤ {GOAL_SIZES:.0f} + kept"
    _row(("goal", f"≤ {GOAL_MS:.0f}", "", "", "", goal, ""), out)
    for name, cost in cases:
        cpu = "met" if cost.cpu_ms <= GOAL_MS else "missed"
        memory = "met" if round(cost.peak - cost.kept, 2) <= GOAL_SIZES else "missed"
        out(f"{name}: CPU {cpu}, memory {memory}")


if __name__ == "__main__":
    main()
