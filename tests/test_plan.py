"""The plan's arithmetic: who plays what, when, and how much of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentreplay.plan import (
    Plan,
    Visit,
    all_sessions,
    gap_s,
    lane_requests,
    lane_start_s,
    visits,
)

counts = st.integers(1, 40)


def played(plan: Plan, sessions: int, each: int) -> list[Visit]:
    """The first *each* visits of every lane."""
    return [
        visit for lane in range(plan.users) for visit in islice(visits(plan, lane, sessions), each)
    ]


@given(users=counts, sessions=counts, each=st.integers(1, 5))
def test_lanes_together_walk_every_session_in_turn(users: int, sessions: int, each: int) -> None:
    """No session is played a second time before all have been played once."""
    plan = Plan(users=users)
    by_place = sorted(played(plan, sessions, each), key=lambda visit: visit.place)
    assert [visit.place for visit in by_place] == list(range(users * each))
    for start in range(0, len(by_place) - sessions + 1, sessions):
        turn = {visit.session for visit in by_place[start : start + sessions]}
        assert turn == set(range(sessions))


@given(users=counts, sessions=counts, limit=counts)
def test_a_limit_of_visits_is_dealt_to_the_lanes(users: int, sessions: int, limit: int) -> None:
    """With a limit of N visits the lanes make N together, none of them twice."""
    plan = Plan(users=users, sessions=limit)
    made = [visit.place for lane in range(users) for visit in visits(plan, lane, sessions)]
    assert sorted(made) == list(range(limit))


@given(users=counts, sessions=counts, limit=st.none() | counts)
def test_the_sessions_that_can_be_played_are_known(
    users: int, sessions: int, limit: int | None
) -> None:
    """They are those of all visits; without a limit that is every session."""
    plan = Plan(users=users, sessions=limit)
    if limit is None:
        assert all_sessions(plan, sessions) == set(range(sessions))
    else:
        assert all_sessions(plan, sessions) == {
            visit.session for visit in played(plan, sessions, each=limit)
        }


@given(users=counts, requests=counts)
def test_a_limit_of_requests_is_dealt_to_the_lanes(users: int, requests: int) -> None:
    """The lanes' shares add up to the limit and differ by one at most."""
    plan = Plan(users=users, requests=requests)
    shares = [lane_requests(plan, lane) or 0 for lane in range(users)]
    assert sum(shares) == requests
    assert max(shares) - min(shares) <= 1


def test_the_seed_decides_the_order() -> None:
    """One seed gives one order, another seed another."""
    one = played(Plan(seed=1), 50, 3)
    assert one == played(Plan(seed=1), 50, 3)
    assert one != played(Plan(seed=2), 50, 3)


def test_arrivals_keep_the_order_of_the_trace() -> None:
    """In an open loop lane n plays session n."""
    plan = Plan(users=4, sessions=4, arrivals=True, timing="recorded")
    assert [(visit.lane, visit.session) for visit in played(plan, 4, 9)] == [
        (0, 0), (1, 1), (2, 2), (3, 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "expected_s"),
    [
        (Plan(), 10.0),
        (Plan(max_gap_s=None), 30.0),
        (Plan(max_gap_s=None, speed=2.0), 15.0),
        (Plan(max_gap_s=20.0, speed=2.0), 15.0),
        (Plan(timing="none"), 0.0),
    ],
)
def test_a_recorded_gap_of_thirty_seconds(plan: Plan, expected_s: float) -> None:
    """Speed divides a gap, the limit cuts what is left."""
    assert gap_s(plan, 30.0) == expected_s


def test_lanes_start_within_the_ramp() -> None:
    """The first lane starts at once, the others evenly spread."""
    plan = replace(Plan(users=5), ramp_s=10.0)
    assert [lane_start_s(plan, lane) for lane in range(5)] == [0, 2, 4, 6, 8]


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 5))
def test_every_lane_meets_every_session(users: int, sessions: int, seed: int) -> None:
    """Also where the number of lanes and that of sessions have a common divisor."""
    plan = Plan(users=users, seed=seed)
    for lane in range(users):
        met = {visit.session for visit in islice(visits(plan, lane, sessions), 100 * sessions)}
        assert met == set(range(sessions))
