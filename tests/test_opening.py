"""How a run opens: where a session begins, what is sent before, and when. By hand and at random."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtually import call, chain

from agentreplay.opening import PRIMERS_APART_S, Opening, opening, timetable
from agentreplay.plan import Plan
from agentreplay.trace.model import Call, Session
from agentreplay.trace.structure import lines, link


def session(*calls: Call) -> Session:
    """A session of these calls, linked."""
    return Session("s", None, link(calls, 64), 64, "made by hand")


def at(share: float, warmup_calls: int = 0) -> Plan:
    """A plan whose sessions begin at exactly this share."""
    return Plan(start=(share, share), warmup_calls=warmup_calls)


# The main agent calls at 0, 20, 40, 60, 80 and 100 s; a subagent at 10, 30 and 50 s, another one
# at 90 s only.
FAMILY = session(
    call(0, 5),
    call(10, 12, isl=128, agent="sub"),
    call(20, 25, isl=704, parent=0, shared=640),
    call(30, 32, isl=192, parent=1, shared=128, agent="sub"),
    call(40, 45, isl=768, parent=2, shared=704),
    call(50, 52, isl=256, parent=3, shared=192, agent="sub"),
    call(60, 65, isl=832, parent=4, shared=768),
    call(80, 85, isl=896, parent=6, shared=832),
    call(90, 92, isl=320, agent="late"),
    call(100, 105, isl=960, parent=7, shared=896),
)


@pytest.mark.parametrize(
    ("share", "begun", "primers"),
    [
        pytest.param(0.0, 0, (), id="at the start there is nothing before"),
        pytest.param(0.05, 1, (0,), id="one line goes on"),
        pytest.param(0.15, 2, (0, 1), id="both lines go on"),
        pytest.param(0.45, 5, (3, 4), id="the last call of each"),
        pytest.param(0.55, 6, (4,), id="a line that made its last call is over"),
        pytest.param(0.95, 9, (7,), id="a line of one call before is over"),
    ],
)
def test_the_last_call_of_each_line_that_goes_on_is_a_primer(
    share: float, begun: int, primers: tuple[int, ...]
) -> None:
    """Lines without a call before the moment, or without one after it, have no primer."""
    found = opening(at(share), 0, FAMILY)
    assert found.at_s == pytest.approx(share * 100.0)
    assert found == Opening(found.at_s, begun, primers, range(begun, begun), moved_back=False)


def test_the_next_calls_of_all_agents_are_the_warm_up() -> None:
    """After the moment the session's next calls are sent, whoever makes them."""
    assert opening(at(0.45, 4), 0, FAMILY).warmup == range(5, 9)


def test_a_moment_with_too_few_calls_after_it_moves_back() -> None:
    """With three warm-up calls four calls must follow: from 95 s it moves to the fourth last."""
    found = opening(at(0.95, 3), 0, FAMILY)
    assert found == Opening(60.0, 6, (4,), range(6, 9), moved_back=True)


def test_enough_calls_after_it_leave_the_moment_where_it_is() -> None:
    """Exactly one call more than the warm-up has follows: nothing moves."""
    found = opening(at(0.52, 3), 0, FAMILY)
    assert (found.at_s, found.begun, found.moved_back) == (52.0, 6, False)


def test_a_session_shorter_than_the_warm_up_begins_at_its_start() -> None:
    """All calls but the last are sent with one token then."""
    found = opening(at(0.5, 30), 0, FAMILY)
    assert found == Opening(0.0, 0, (), range(9), moved_back=True)


@pytest.mark.parametrize("plan", [at(0.5), at(0.5, 10), Plan(warmup_calls=10)])
def test_a_session_of_one_call_has_no_warm_up(plan: Plan) -> None:
    """Its only call is left to be measured."""
    assert opening(plan, 0, chain(0, 1)) == Opening(0.0, 0, (), range(0), moved_back=False)


def test_without_a_start_a_session_begins_at_its_first_call() -> None:
    """Nothing counts as done, and the warm-up is of its first calls."""
    late = session(call(7, 8), call(9, 10, parent=0, shared=640), call(11, 12))
    found = opening(Plan(warmup_calls=2), 0, late)
    assert found == Opening(7.0, 0, (), range(2), moved_back=False)


def test_calls_that_start_at_one_instant_stay_together() -> None:
    """A moment that moves back to one of three equal starts lies before all of them."""
    fan = session(
        call(0, 1),
        *(call(10, 12, isl=128, agent=name) for name in "abc"),
        call(20, 21, isl=704, parent=0, shared=640),
    )
    found = opening(at(0.9, 1), 0, fan)
    assert found == Opening(10.0, 1, (0,), range(1, 2), moved_back=True)


def test_a_call_at_the_very_moment_is_not_done() -> None:
    """Only what began before the moment is."""
    assert opening(at(0.5), 0, session(call(0, 1), call(10, 11), call(20, 21))).begun == 1


def test_the_share_is_of_the_time_between_first_and_last_start() -> None:
    """Neither the session's zero nor the end of its last call counts."""
    late = session(call(100, 101), call(150, 151), call(200, 900))
    assert opening(at(0.25), 0, late).at_s == 125.0


def test_a_start_is_drawn_for_each_lane() -> None:
    """The same seed and lane give the same moment; other lanes and other seeds others."""
    plan = Plan(start=(0.25, 0.75), seed=5)
    moments = [opening(plan, lane, chain(0, 500)).at_s for lane in range(50)]
    assert moments == [opening(plan, lane, chain(0, 500)).at_s for lane in range(50)]
    other = [opening(Plan(start=(0.25, 0.75)), lane, chain(0, 500)).at_s for lane in range(50)]
    assert len({*moments, *other}) == 100


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    """Calls of up to three agents at whole seconds, many of them at once."""
    starts = sorted(draw(st.lists(st.integers(0, 30), min_size=1, max_size=12)))
    calls = [
        call(
            float(start),
            float(start + draw(st.integers(0, 8))),
            isl=64 * (i + 1),
            parent=draw(st.integers(0, i - 1)) if i and draw(st.booleans()) else None,
            agent=draw(st.sampled_from(["", "", "one", "two"])),
        )
        for i, start in enumerate(starts)
    ]
    calls = [
        each if each.parent is None else each._replace(shared=calls[each.parent].isl)
        for each in calls
    ]
    return session(*calls)


def shares(low: int = 0, high: int = 100) -> st.SearchStrategy[tuple[float, float]]:
    """Two shares, the smaller first."""
    one = st.integers(low, high)
    return st.tuples(one, one).map(lambda pair: (min(pair) / 100, max(pair) / 100))


@given(sessions(), shares(), st.integers(0, 6), st.integers(0, 9))
def test_any_opening_leaves_a_call_and_keeps_to_its_share(
    made: Session, start: tuple[float, float], warmup_calls: int, lane: int
) -> None:
    """The moment lies within its share, or before it where it moved; what began before it is done;
    as many calls as asked for are the warm-up, and at least one is left, where there are so many.
    """
    found = opening(Plan(start=start, warmup_calls=warmup_calls), lane, made)
    first, span = made.calls[0].start_s, made.calls[-1].start_s - made.calls[0].start_s
    assert found.at_s <= first + start[1] * span + 1e-9
    assert found.moved_back or found.at_s >= first + start[0] * span - 1e-9
    assert [i for i, each in enumerate(made.calls) if each.start_s < found.at_s] == list(
        range(found.begun)
    )
    assert found.warmup == range(found.begun, min(found.begun + warmup_calls, len(made.calls) - 1))
    if len(made.calls) > warmup_calls:
        assert len(found.warmup) == warmup_calls
        assert found.warmup.stop < len(made.calls)
    else:
        assert found.at_s == first
    assert found.calls == len(found.primers) + len(found.warmup)


@given(sessions(), shares())
def test_any_primer_is_the_last_before_the_moment_of_a_line_with_more(
    made: Session, start: tuple[float, float]
) -> None:
    """One for each line that has calls on both sides of the moment, in their order."""
    found = opening(Plan(start=start), 0, made)
    numbers = lines(made.calls)
    expected = []
    for line in set(numbers):
        own = [i for i, number in enumerate(numbers) if number == line]
        before = [i for i in own if i < found.begun]
        if before and len(before) < len(own):
            expected.append(before[-1])
    assert found.primers == tuple(sorted(expected))


# --- When primers are sent ------------------------------------------------------------------------


def opened(at_s: float, *primers: int, warmup: int = 0) -> Opening:
    """An opening of which only the primers count."""
    begun = max(primers, default=-1) + 1
    return Opening(at_s, begun, primers, range(begun, begun + warmup), moved_back=False)


def starts(*seconds: float) -> Session:
    """Calls at these times."""
    return Session("s", None, tuple(call(each, each) for each in seconds), 64, "made by hand")


ONE = starts(0, 4, 9, 50), opened(10.0, 0, 1, 2)
"""Primers 10, 6 and 1 s before the moment."""
TWO = starts(100, 1000), opened(103.0, 0)
"""One 3 s before it."""


def test_all_sessions_reach_their_moments_together() -> None:
    """Whatever their own clocks say, primers are as far from the common instant as recorded."""
    found = timetable(Plan(), [ONE, TWO])
    assert found.primers_s == ({0: 0.0, 1: 4.0, 2: 9.0}, {0: 7.0})
    assert found.reached_s == 10.0


def test_twice_the_speed_is_half_the_distance() -> None:
    """Distances of primers follow the plan's speed as gaps do."""
    found = timetable(Plan(speed=2.0), [ONE, TWO])
    assert found.primers_s == ({0: 0.0, 1: 2.0, 2: 4.5}, {0: 3.5})
    assert found.reached_s == 5.0


def test_without_gaps_primers_are_sent_at_once() -> None:
    """With timing `none` nothing is waited for."""
    found = timetable(Plan(timing="none"), [ONE, TWO])
    assert found.primers_s == ({0: 0.0, 1: 0.0, 2: 0.0}, {0: 0.0})
    assert found.reached_s == 0.0


@pytest.mark.parametrize(
    ("max_idle_s", "apart_s"), [(None, PRIMERS_APART_S), (3.0, 3.0), (500.0, 100.0)]
)
def test_distances_are_cut_to_the_cap_on_idle_time(
    max_idle_s: float | None, apart_s: float
) -> None:
    """To ten seconds where the plan has none; also the last one, to the moment itself."""
    far = starts(0, 100, 900), opened(200.0, 0, 1)
    found = timetable(Plan(max_idle_s=max_idle_s), [far])
    assert found.primers_s == ({0: 0.0, 1: apart_s},)
    assert found.reached_s == 2 * apart_s


@pytest.mark.parametrize("warmup", [0, 1])
def test_a_limit_scales_all_distances_alike(warmup: int) -> None:
    """Primers keep to it, whether or not calls follow them."""
    plan = Plan(warmup_limit_s=5.0)
    found = timetable(plan, [ONE, (TWO[0], opened(103.0, 0, warmup=warmup))])
    assert found.reached_s == pytest.approx(5.0)
    assert found.primers_s[0] == pytest.approx({0: 0.0, 1: 2.0, 2: 4.5})
    assert found.primers_s[1] == pytest.approx({0: 3.5})


@pytest.mark.parametrize("limit_s", [20.0, 1e6])
def test_a_limit_longer_than_needed_changes_nothing(limit_s: float) -> None:
    """Distances are never stretched."""
    assert timetable(Plan(warmup_limit_s=limit_s), [ONE, TWO]) == timetable(Plan(), [ONE, TWO])


def test_no_primers_are_reached_at_once() -> None:
    """Where every session begins at its start there is nothing to wait for."""
    found = timetable(Plan(warmup_limit_s=5.0), [(starts(0, 1), opened(0.0, warmup=1))] * 2)
    assert found.primers_s == ({}, {})
    assert found.reached_s == 0.0


@given(
    st.lists(sessions(), min_size=1, max_size=4),
    shares(),
    st.integers(0, 3),
    st.sampled_from([None, 0.5, 2.0, 100.0]),
    st.sampled_from([None, 1.0, 7.0, 1000.0]),
    st.sampled_from([0.5, 1.0, 4.0]),
)
def test_any_timetable_keeps_order_distance_and_limit(
    made: Sequence[Session],
    start: tuple[float, float],
    warmup_calls: int,
    max_idle_s: float | None,
    limit_s: float | None,
    speed: float,
) -> None:
    """Primers are sent in order of their recorded distance to the moment; successive ones are as
    far apart as recorded or the cap, times one factor; the end keeps within the limit.
    """
    plan = Plan(
        start=start,
        warmup_calls=warmup_calls,
        max_idle_s=max_idle_s,
        warmup_limit_s=limit_s,
        speed=speed,
    )
    openings = [(each, opening(plan, lane, each)) for lane, each in enumerate(made)]
    found = timetable(plan, openings)
    points = [(0.0, found.reached_s)]  # each with its recorded distance, and its time
    for (each, begins), primers_s in zip(openings, found.primers_s, strict=True):
        assert tuple(sorted(primers_s)) == begins.primers
        points += [
            ((begins.at_s - each.calls[i].start_s) / speed, at_s) for i, at_s in primers_s.items()
        ]
    points.sort(key=lambda point: (-point[0], point[1]))
    assert points[0][1] == 0.0
    cap_s = PRIMERS_APART_S if max_idle_s is None else max_idle_s
    pairs = list(pairwise(points))
    wanted: list[float] = [min(a - b, cap_s) for (a, _), (b, _) in pairs]
    factor = 1.0
    if limit_s is not None and any(wanted):
        factor = min(1.0, limit_s / sum(wanted))
    assert [b - a for (_, a), (_, b) in pairs] == pytest.approx(
        [each * factor for each in wanted], abs=1e-9
    )
