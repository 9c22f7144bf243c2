"""What the page of a trace set draws: hand-made sessions give hand-computed figures."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentreplay.report.html.traces import growth_rows, recorded_timeline, reuse_rows, sessions_rows
from agentreplay.trace import survey as surveys
from agentreplay.trace.model import Call, Session
from agentreplay.trace.statistics import in_flight_s, statistics
from agentreplay.trace.survey import Survey

BLOCK = 64


def call(
    start_s: float,
    end_s: float,
    isl: int = BLOCK,
    *,
    after: tuple[int, ...] = (),
    parent: int | None = None,
    shared: int = 0,
    agent: str = "",
    cached: int | None = None,
) -> Call:
    """A call of the main agent with an answer of one token."""
    gap_s = 0.0
    return Call(start_s, end_s, True, isl, 1, after, gap_s, parent, shared, 0, agent, None, cached)


def session(*calls: Call, name: str = "one") -> Session:
    """A session of blocks of 64 tokens."""
    return Session(name, None, calls, BLOCK, "")


def surveyed(*sessions: Session) -> Survey:
    """What a survey keeps of sessions."""
    found = Survey()
    statistics(sessions, found.add)
    return found


@pytest.mark.parametrize(
    ("calls", "seconds"),
    [
        ([], {}),
        ([call(0, 4)], {0: 0, 1: 4}),
        ([call(0, 4), call(6, 7)], {0: 2, 1: 5}),
        ([call(0, 10), call(2, 5), call(3, 4)], {0: 0, 1: 7, 2: 2, 3: 1}),
        ([call(0, 3), call(2, 5, after=(0,))], {0: 0, 1: 5}),
        ([call(1, 1)], {0: 0, 1: 0}),
        ([call(0, 1), call(0, 1, after=(0,))], {0: 0, 1: 1}),
    ],
)
def test_calls_in_flight_are_counted_by_time(calls: list[Call], seconds: dict[int, float]) -> None:
    """Between the first start and the last end; who is waited for has ended."""
    assert in_flight_s(session(*calls)) == seconds


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=12))
def test_time_in_flight_adds_up(spans: list[tuple[int, int]]) -> None:
    """To the time from first start to last end, and, by calls, to the time of all calls."""
    calls = [call(start, start + length) for start, length in sorted(spans)]
    found = in_flight_s(session(*calls))
    first = min((each.start_s for each in calls), default=0)
    last = max((each.end_s for each in calls), default=0)
    assert sum(found.values()) == pytest.approx(last - first)
    assert sum(level * seconds for level, seconds in found.items()) == pytest.approx(
        sum(each.end_s - each.start_s for each in calls)
    )


def test_growth_is_of_the_main_agent() -> None:
    """By the number of its calls; those of subagents don't count."""
    one = session(call(0, 1, 100), call(1, 2, 9_999, agent="a"), call(2, 3, 300))
    two = session(call(0, 1, 200))
    assert growth_rows(surveyed(one, two)) == [
        ["1", 2, 110, 150, 190],
        ["2", 1, 300, 300, 300],
    ]


def test_reuse_is_by_place_in_the_session() -> None:
    """What was sent before in whole blocks, and what was recorded as cached, where it was."""
    one = session(
        call(0, 1, 128, cached=0), call(1, 2, 256, parent=0, shared=128, cached=64), call(2, 3, 64)
    )
    two = session(call(0, 1, 128), call(1, 2, 128, parent=0, shared=64))
    found = surveyed(one, two)
    assert reuse_rows(found) == [
        ["1", 0.0, 0.0, 2],
        ["2", (128 + 64) / (256 + 128), 64 / 256, 2],
        ["3", 0.0, None, 1],
    ]
    assert list(found.reuse) == [128 / 448, 64 / 256]


def test_a_session_is_a_row() -> None:
    """With its sums, length, agents, calls at once and reuse; the ones with most calls first."""
    small = session(call(0, 1), name="small")
    large = session(
        call(0, 5, 128), call(1, 3, 64, agent="x"), call(6, 9, 192, parent=0, shared=128), name="l"
    )
    assert sessions_rows(surveyed(small, large)).rows == [
        ("l", 3, 384, 3, 192, 9, 1, 2, 128 / 384),
        ("small", 1, 64, 1, 64, 1, 0, 1, 0.0),
    ]


def test_of_many_sessions_the_longest_are_kept() -> None:
    """Some by name, few call by call; figures are of all."""
    found = Survey()
    count = surveys.LISTED + 500
    for n in range(count):
        calls = [call(i, i + 1) for i in range(1 + (n * 7) % 11 + 5 * (n == 3))]
        found.add(session(*calls, name=f"s{n}"), [0] * len(calls), {0: 0.0, 1: 1.0})
    assert len(found.calls) == count
    assert len(found.listed) == surveys.LISTED
    assert len(found.drawn) == surveys.DRAWN
    assert [sketch for sketch, _ in found.drawn] == found.listed[: surveys.DRAWN]
    sizes = [each.calls for each in found.listed]
    assert sizes == sorted(found.calls, reverse=True)[: surveys.LISTED]
    assert found.listed[0].id == "s3"


def test_calls_of_very_long_sessions_are_cut() -> None:
    """The drawing has a limit; the session's own figures have none."""
    n = surveys.DRAWN_CALLS + 10
    found = surveyed(session(*(call(i, i + 0.5) for i in range(n))), session(call(0, 1)))
    ((sketch, calls),) = found.drawn
    assert (sketch.calls, len(calls)) == (n, surveys.DRAWN_CALLS)


def test_the_timeline_holds_what_was_recorded() -> None:
    """Each session on a lane of its own, subagents on rows below the main agent, no label of an
    agent as it was recorded."""
    one = session(call(0, 5), call(1, 3, 640, agent="secret"), call(6, 9), name="a")
    found = recorded_timeline(surveyed(one, replace(session(call(2, 4)), id="b")))
    assert found is not None
    columns = {
        name: np.frombuffer(b64decode(text), "<i4").tolist()
        for name, text in found["columns"].items()
        if name in ("row", "play", "call", "agent", "isl", "sent", "done")
    }
    assert found["plays"] == [[0, 0, "a", 3], [1, 0, "b", 1]]
    assert found["lanes"] == [(0, 2), (1, 1)]
    assert found["agents"] == ["", "agent 1"]
    assert columns["row"] == [0, 0, 1, 2]
    assert columns["call"] == [0, 2, 1, 0]
    assert columns["isl"] == [64, 64, 640, 64]
    assert [each * found["unit_s"] for each in columns["sent"]] == pytest.approx([0, 6, 1, 2])
    assert [each * found["unit_s"] for each in columns["done"]] == pytest.approx([5, 9, 3, 4])
    assert recorded_timeline(Survey()) is None
