"""Drawing sessions: fitted, counted, and read ahead."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from virtually import chain

from agentreplay.errors import TraceError
from agentreplay.plan import Plan, first_sessions, visits
from agentreplay.run import run_plan
from agentreplay.trace.draw import Draws
from agentreplay.trace.formats import native
from agentreplay.trace.load import TraceSet, load


@pytest.fixture
def trace(tmp_path: Path) -> TraceSet:
    """Four sessions of one to four calls: prompts of 640, 704, 768 and 832 tokens."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(native.line(chain(n, n + 1)) for n in range(4)))
    return load(path)


def test_what_does_not_fit_is_refused_and_counted_once(trace: TraceSet) -> None:
    """With room for 800 tokens one of four sessions is left out, however often it is drawn."""
    draws = Draws(trace, "drop-session")
    draws.context_tokens = 800

    async def main() -> list[int]:
        drawn = []
        for index in (0, 1, 2, 3, 3, 0):
            try:
                drawn.append(len((await draws.draw(index)).calls))
            except TraceError:
                drawn.append(0)
        return drawn

    assert anyio.run(main) == [1, 2, 3, 0, 0, 1]
    facts = draws.facts()
    assert (facts["sessions"], facts["dropped_sessions"], facts["dropped_calls"]) == (4, 1, 4)


def test_without_a_known_context_everything_is_drawn(trace: TraceSet) -> None:
    """A server that does not say its context gets every session."""
    draws = Draws(trace, "drop-session")
    assert len(anyio.run(draws.draw, 3).calls) == 4
    assert draws.facts()["dropped_calls"] == 0


def test_looking_through_finds_what_does_not_fit(trace: TraceSet) -> None:
    """With fail a session too long is an error before anything is drawn."""
    draws = Draws(trace, "fail")
    draws.context_tokens = 800
    with pytest.raises(TraceError, match="needs 842 tokens"):
        anyio.run(draws.look_through)
    draws.context_tokens = 842
    anyio.run(draws.look_through)
    assert draws.facts()["looked_through_s"] is not None


def test_what_was_read_ahead_is_drawn_without_reading(trace: TraceSet) -> None:
    """A session that was fetched is there even when its file has gone; others are not."""
    draws = Draws(trace, "drop-session")
    anyio.run(draws.fetch, [2])
    trace.files[0].unlink()
    assert len(anyio.run(draws.draw, 2).calls) == 3
    with pytest.raises(TraceError, match="No such file"):
        anyio.run(draws.draw, 1)


def test_the_first_sessions_are_those_of_the_first_visits() -> None:
    """What is read ahead is what the lanes play first."""
    plan = Plan(users=5)
    assert list(first_sessions(plan, 7)) == [
        next(visits(plan, lane, 7)).session for lane in range(5)
    ]


def test_a_run_raises_what_the_user_can_mend(trace: TraceSet, tmp_path: Path) -> None:
    """What comes up beside other tasks of a run is raised as it is, not wrapped in a group."""
    plan = Plan(users=1, sessions=1, duration_s=None, fit="fail", context_tokens=800)
    with pytest.raises(TraceError, match="needs 842 tokens"):
        anyio.run(run_plan, trace, plan, tmp_path / "out")
