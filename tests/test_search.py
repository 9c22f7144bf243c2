"""The search for the most users, on invented curves and against simulated servers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import exp, inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtually import simulated

from agentreplay.metrics.gate import gate
from agentreplay.metrics.search import MOST_RUNS, Found, Hunt, Next, Step, following, step
from agentreplay.plan import Plan
from agentreplay.sim.engine import Profile
from agentreplay.trace.model import Session
from agentreplay.trace.synth import synthesise

HUNT = Hunt((), duration_s=60.0)

Curve = Callable[[int], float]


def linear(idle: float, edge: float) -> Curve:
    """Figures that worsen evenly from *idle* on, as a time per token does."""
    return lambda users: idle + (1 - idle) * users / edge


def power(p: float, edge: float) -> Curve:
    """Ever slower, or ever faster."""
    return lambda users: float((users / edge) ** p)


def knee(idle: float, edge: float) -> Curve:
    """Nothing changes until a tenth before the edge, as with a queue that begins to grow."""
    return lambda users: idle * idle ** -min(9.0, max(0.0, 10 * users / edge - 9))


def cliff(idle: float, edge: float) -> Curve:
    """All is well up to the edge, and nothing beyond it."""
    return lambda users: idle if users <= edge else inf


EDGES = st.floats(0, 1).map(lambda place: float(exp(place * 6.9)) + 0.5)  # 1 to about 1000
IDLE = st.floats(0.05, 0.95)
CURVES = st.one_of(
    st.builds(linear, IDLE, EDGES),
    st.builds(power, st.floats(0.3, 3), EDGES),
    st.builds(knee, IDLE, EDGES),
    st.builds(cliff, IDLE, EDGES),
)


@dataclass(frozen=True)
class Search:
    found: Found
    steps: list[Step]


def searched(
    load: Curve, hunt: Hunt = HUNT, noise: float = 0.0, seed: int = 0, calls_s: float = 0.15
) -> Search:
    """A search over a curve whose figures are off by up to *noise*; users call ever less."""
    rng = random.Random(seed)
    steps: list[Step] = []
    while isinstance(todo := following(hunt, steps), Next):
        true = load(todo.users)
        seen = true * exp(rng.uniform(-noise, noise))
        requests = int(todo.users * calls_s * todo.duration_s / (1 + min(true, 9)))
        valid = seen < inf
        steps.append(Step(todo.users, todo.duration_s, requests, valid, seen <= 1, seen))
    return Search(todo, steps)


def edge_of(load: Curve, last: int = 1024) -> int:
    """What a full scan finds: the most users that hold."""
    return max((users for users in range(1, last + 1) if load(users) <= 1), default=0)


def near(found: int, true: int) -> bool:
    return abs(found - true) <= max(1, 0.05 * true)


@given(CURVES)
def test_the_edge_lies_in_what_is_answered(load: Curve) -> None:
    """Whatever the curve: at most 12 runs, the edge is in the bracket, and a settled one is
    within one user or 5 % of it."""
    search = searched(load)
    true, found = edge_of(load), search.found
    assert len(search.steps) <= MOST_RUNS
    assert found.most <= true < (inf if found.fails is None else found.fails)
    if found.settled:
        assert near(found.most, true)
    else:
        assert len(search.steps) == MOST_RUNS


@given(CURVES, st.floats(0.001, 0.045), st.integers(0, 1000))
def test_noise_misleads_only_within_itself(load: Curve, noise: float, seed: int) -> None:
    """With figures that are off by less than 5 % the true load is over its limit by no more than
    the noise at the answer, and under it by no more at what is said to miss."""
    search = searched(load, noise=noise, seed=seed)
    found = search.found
    assert len(search.steps) <= MOST_RUNS
    assert found.most == 0 or load(found.most) <= exp(noise)
    assert found.fails is None or load(found.fails) >= exp(-noise)
    assert found.settled or len(search.steps) == MOST_RUNS


@pytest.mark.parametrize(
    ("curve", "highest", "share"),
    [
        (lambda edge, x: linear(x, edge), 1000, 0.98),
        (lambda edge, x: power(0.3 + 2.7 * x, edge), 120, 0.95),
        (lambda edge, x: knee(0.05 + 0.9 * x, edge), 120, 0.95),
        (lambda edge, x: cliff(0.05 + 0.9 * x, edge), 120, 0.99),
    ],
    ids=["linear", "power", "knee", "cliff"],
)
def test_twelve_runs_are_enough(
    curve: Callable[[float, float], Curve], highest: float, share: float
) -> None:
    """Of 300 curves of each shape nearly all are answered within one user or 5 %."""
    rng, good = random.Random(5), 0
    for _ in range(300):
        edge = highest ** rng.random() + 0.5
        load = curve(edge, rng.uniform(0.05, 0.9))
        good += near(searched(load).found.most, edge_of(load))
    assert good >= share * 300


def test_users_are_doubled_first() -> None:
    """Nothing is known of a server: the second step has twice the users of the first."""
    search = searched(cliff(0.1, 100))
    assert [each.users for each in search.steps[:2]] == [1, 2]
    later = searched(cliff(0.1, 100), replace(HUNT, first=5))
    assert [each.users for each in later.steps[:2]] == [5, 10]


@given(CURVES)
def test_users_never_grow_by_more_than_four(load: Curve) -> None:
    """No step has over four times the users of the most before it, which may overwhelm a server."""
    users = [each.users for each in searched(load).steps]
    for n in range(1, len(users)):
        assert users[n] <= 4 * max(users[:n])


def test_the_last_number_ends_the_search() -> None:
    """Where all is well up to --to, that is the answer, and nothing missed."""
    assert searched(cliff(0.1, 5000)).found == Found(1024, None, True)


def test_a_first_step_that_misses_is_searched_below() -> None:
    """A search that begins too high goes down."""
    search = searched(cliff(0.1, 3), replace(HUNT, first=16))
    assert (search.found.most, search.found.fails) == (3, 4)


def test_nothing_holds() -> None:
    """Where one user misses already there is none."""
    found = searched(lambda users: 3.0 * users).found
    assert found == Found(0, 1, True)


def outcomes(*loads: float, requests: int = 1000, **more: Any) -> list[Step]:
    """Runs of one user."""
    return [Step(1, 60.0, requests, load < inf, load <= 1, load, **more) for load in loads]


@pytest.mark.parametrize(
    ("loads", "users"),
    [
        ([0.97], 1),  # near: again
        ([0.97, 0.98], 2),
        ([0.97, 1.01], 1),  # they differ: a third
        ([0.97, 1.01, 0.99], 2),
        ([1.02, 0.7], 1),
        ([1.02, 0.7, 0.8], 2),
        ([0.9], 2),  # not near
    ],
)
def test_near_the_limit_two_of_three_decide(loads: list[float], users: int) -> None:
    """A figure within 5 % of its limit is measured again, until two runs agree."""
    following_users = following(HUNT, outcomes(*loads))
    assert isinstance(following_users, Next)
    assert following_users.users == users


def test_a_slow_client_is_no_answer() -> None:
    """A run in which this machine was too slow is made again, though it is invalid."""
    again = following(HUNT, outcomes(inf, client_limited=True))
    assert isinstance(again, Next)
    assert again.users == 1
    assert following(HUNT, outcomes(inf)) == Found(0, 1, True)


def test_a_step_with_too_few_requests_is_run_again_for_longer() -> None:
    """60 requests in 60 s of 100 that are needed: again for what these take, and a quarter."""
    [short] = outcomes(0.7, requests=60)
    again = following(HUNT, [short])
    assert again == Next(1, 125.0)
    longer = Step(1, 125.0, 99, True, True, 0.7)  # short again: it counts
    assert following(HUNT, [short, longer]) != Next(1, 125.0)


def test_a_clear_step_needs_few_requests() -> None:
    """Twice as good as the limit: a twentieth is enough; less is not."""
    assert following(HUNT, outcomes(0.5, requests=8)) == Next(2, 60.0)
    assert following(HUNT, outcomes(0.5, requests=4)) == Next(1, 94.0)


@given(CURVES)
def test_steps_near_the_limit_have_the_requests_that_they_need(load: Curve) -> None:
    """Whatever decided near the limit had ten requests a user, and 100 at least; or had been
    planned for them by the rate that a shorter run of it showed."""
    search = searched(load)
    for n, each in enumerate(search.steps):
        earlier = [other for other in search.steps[:n] if other.users == each.users]
        if each.users in (search.found.most, search.found.fails) and each.load < inf and earlier:
            assert each.requests >= HUNT.needed(each.users, each.clear)


def test_a_run_is_read_by_its_worst_figure() -> None:
    """The load is that of the limit which is nearest to being missed; an absent figure misses."""
    limits = tuple(map(gate, ("interactivity.p90 >= 50", "ttft.p95 < 5s", "error_rate <= 1%")))
    metrics: dict[str, Any] = {
        "interactivity": {"p90": 80.0},
        "ttft": {"p95": 4.0, "n": 120},
        "error_rate": 0.0,
    }
    value = {"verdict": {"valid": True, "reasons": []}, "metrics": metrics}
    found = step(8, 60.0, value, limits)
    assert (found.load, found.holds, found.requests) == (0.8, True, 120)
    metrics["interactivity"]["p90"] = 40.0
    assert step(8, 60.0, value, limits).load == 1.25
    metrics["interactivity"]["p90"] = None
    assert step(8, 60.0, value, limits) == Step(8, 60.0, 120, True, False, inf)
    metrics["interactivity"]["p90"] = 80.0
    reasons = [{"id": "cut_short", "text": ""}]
    invalid = value | {"verdict": {"valid": False, "reasons": reasons}}
    assert step(8, 60.0, invalid, limits) == Step(8, 60.0, 120, False, False, inf)


SMALL = Profile("small", 100_000, 0.025, 1 / 8000, 0.008, 2048, 16, 150_000, 64)
MIDDLE = Profile("middle", 100_000, 0.015, 1 / 20_000, 0.004, 4096, 32, 1_000_000, 64)
BIG = Profile("big", 100_000, 0.010, 1 / 40_000, 0.003, 8192, 128, 4_000_000, 64)

PLAN = Plan(max_gap_s=3.0, seed=1)


@cache
def sessions() -> list[Session]:
    return list(synthesise(40, 7, calls=(20, 40), largest_tokens=12_000))


@pytest.mark.parametrize(
    ("profile", "conditions", "scanned"),
    [
        (SMALL, ["interactivity.p90 >= 10"], 12),
        (MIDDLE, ["interactivity.p90 >= 15", "ttft.p95 < 1.5s"], 18),
        (BIG, ["interactivity.p90 >= 16", "ttft.p95 < 2s"], 24),
    ],
    ids=["small", "middle", "big"],
)
def test_it_finds_what_a_full_scan_finds(
    profile: Profile, conditions: list[str], scanned: int
) -> None:
    """In virtual time, against servers of different speed and memory: within one user or 5 % of
    what runs with every number of users from above say."""
    limits = tuple(map(gate, conditions))

    @cache
    def run(users: int, duration_s: float) -> Step:
        plan = replace(PLAN, users=users, duration_s=duration_s)
        _, summary = simulated(plan, sessions(), profile)
        reasons = [reason._asdict() for reason in summary.verdict.reasons]
        verdict = {"valid": summary.verdict.valid, "reasons": reasons}
        return step(users, duration_s, {"verdict": verdict, "metrics": summary.metrics}, limits)

    most = next(users for users in range(scanned, 0, -1) if run(users, 100.0).holds)
    assert 1 < most < scanned
    hunt = Hunt(limits, duration_s=100.0)
    steps: list[Step] = []
    while isinstance(todo := following(hunt, steps), Next):
        steps.append(run(todo.users, todo.duration_s))
    assert len(steps) <= MOST_RUNS
    assert near(todo.most, most)
