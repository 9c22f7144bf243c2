"""Laws of runs whose sessions begin in their middle, held by the real scheduler in virtual time.

Each law is written once and looked for in small invented sessions, in the shared recordings where
they are at hand, and in random sessions under random plans. What a law needs to know of a session
(streams, primers, when what is free) is worked out here a second time, in another way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import anyio
import httpx
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import needs_shared, weka_sessions
from test_end_to_end import simulate
from virtually import ANSWER, DIALECT, call, chain, oracle, replay

from agentreplay.client.stream import Reply, Sink
from agentreplay.errors import TraceError
from agentreplay.metrics.record import Record, Request
from agentreplay.metrics.summary import Summary, summarize
from agentreplay.metrics.window import Ending
from agentreplay.opening import opening
from agentreplay.plan import Plan, first_sessions, gap_s, visits
from agentreplay.replay import Replay
from agentreplay.sim import virtual
from agentreplay.trace.model import Call, Session
from agentreplay.trace.structure import common_prefix, in_order, link
from agentreplay.trace.synth import synthesise

S = 1_000_000_000

random_cases = settings(deadline=None, database=None, derandomize=True, max_examples=60)

MIDDLE = Plan(
    users=64,
    duration_s=900.0,
    order="recorded",
    max_gap_s=None,
    max_tree_idle_s=300.0,
    max_idle_s=10.0,
    start=(0.25, 0.75),
    warmup_calls=10,
)
"""The rules of the published benchmark."""


@cache
def invented() -> tuple[Session, ...]:
    """Small sessions, some with subagents, of one call up to forty."""
    return tuple(synthesise(80, 7, calls=(1, 40), largest_tokens=6_000))


SETS = [
    pytest.param(invented, id="invented"),
    pytest.param(weka_sessions, id="recorded", marks=needs_shared),
]

Trace = Callable[[], tuple[Session, ...]]


# --- Runs -----------------------------------------------------------------------------------------


@dataclass
class Course:
    """A run, and what was seen of it.

    Attributes:
        plan: What was to be done.
        sessions: The trace.
        records: All records, in order of their ends.
        ending: How it ended.
        sent: The requests as they reached the server, with their bodies where they were kept.
        lanes: How many lanes were live at each sending.
    """

    plan: Plan
    sessions: Sequence[Session]
    records: list[Record] = field(default_factory=list)
    ending: Ending = field(default_factory=lambda: Ending("work", 0, 0))
    sent: list[tuple[Request, bytes]] = field(default_factory=list)
    lanes: list[int] = field(default_factory=list)

    @property
    def begun_ns(self) -> int:
        """When ordinary calls began to be sent."""
        assert self.ending.opened_ns is not None
        return self.ending.opened_ns - round(self.plan.lead_s * S)

    @property
    def tries(self) -> list[Record]:
        """The records that are no refusals of a busy server."""
        return [record for record in self.records if record.retry_s is None]

    @property
    def warmup(self) -> list[Record]:
        """The calls of one token, in order of sending."""
        found = [record for record in self.tries if record.request.warmup]
        return sorted(found, key=lambda record: record.sent_ns)

    @property
    def primers(self) -> list[Record]:
        """Those of them that came before the moment at which their session begins."""
        return [r for r in self.warmup if r.request.call < self.opened[r.request.lane].begun]

    @property
    def ordinary(self) -> list[Record]:
        """All others, in order of sending."""
        found = [record for record in self.tries if not record.request.warmup]
        return sorted(found, key=lambda record: record.sent_ns)

    @property
    def summary(self) -> Summary:
        return summarize(self.records, self.plan, self.ending)

    @cached_property
    def plays(self) -> dict[tuple[int, int], list[Record]]:
        """The records of each play, warm-up included."""
        found: dict[tuple[int, int], list[Record]] = defaultdict(list)
        for record in self.tries:
            found[record.request.lane, record.request.visit].append(record)
        return dict(sorted(found.items()))

    @cached_property
    def firsts(self) -> list[Session]:
        """The sessions that the lanes play first."""
        return [self.sessions[i] for i in first_sessions(self.plan, len(self.sessions))]

    @cached_property
    def opened(self) -> list[Begins]:
        """Where they begin."""
        return [begins(self.plan, lane, first) for lane, first in enumerate(self.firsts)]


@dataclass(frozen=True)
class Begins:
    """Where a lane's first session begins, worked out a second time."""

    at_s: float
    begun: int
    primers: tuple[int, ...]
    warmup: tuple[int, ...]


def streams(calls: Sequence[Call]) -> dict[int, int]:
    """For each call that is gone on from by one of its own agent, which that is."""
    goes_on: dict[int, int] = {}
    for i, each in enumerate(calls):
        before = [j for j in each.after if calls[j].agent == each.agent and j not in goes_on]
        if before:
            goes_on[before[0]] = i
    return goes_on


def drawn_s(plan: Plan, lane: int, session: Session) -> float:
    """The moment that is drawn for a lane, whatever follows it."""
    return opening(changed(plan, warmup_calls=0), lane, session).at_s


def begins(plan: Plan, lane: int, session: Session) -> Begins:
    starts_s = [each.start_s for each in session.calls]
    at_s = starts_s[0] if plan.start is None else drawn_s(plan, lane, session)
    least = plan.warmup_calls + 1
    if plan.start is not None and sum(start_s >= at_s for start_s in starts_s) < least:
        at_s = starts_s[max(0, len(starts_s) - least)]
    begun = sum(start_s < at_s for start_s in starts_s)
    primers = tuple(j for j, i in streams(session.calls).items() if j < begun <= i)
    left = range(begun, len(starts_s) - 1)
    return Begins(at_s, begun, tuple(sorted(primers)), tuple(left[: plan.warmup_calls]))


def run(
    plan: Plan,
    sessions: Sequence[Session],
    *,
    factor: float = 1.0,
    warmup_s: float | None = 0.5,
    apart_s: float = 0.0,
    fails: Callable[[Request], bool] = lambda request: False,
    keep: bool = False,
    stop_s: float | None = None,
) -> Course:
    """Run a plan.

    Args:
        plan: The plan.
        sessions: The trace.
        factor: Answers take so many times as long as recorded.
        warmup_s: Those of one token take so long; None: they never end.
        apart_s: And by so much longer for each lane, so that none end together or at a limit.
        fails: Which requests fail, at the end of their time.
        keep: Keep the bodies.
        stop_s: Interrupt the run then.
    """
    course = Course(plan, sessions)
    answers = oracle(sessions, factor)
    scheduler: list[Replay] = []

    async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
        course.sent.append((request, body if keep else b""))
        course.lanes.append(scheduler[0].progress.live_lanes)
        if request.warmup:
            takes_s = float("inf") if warmup_s is None else warmup_s
            await anyio.sleep(takes_s + (request.lane + 1) * apart_s)
        elif fails(request):
            await anyio.sleep(0.5)
        if fails(request):
            raise httpx.ReadError("connection lost")
        if not request.warmup:
            return await answers(request, body, sink)
        sink(virtual.clock(), ANSWER)
        return Reply(200, "text/event-stream", b"")

    async def beside(it: Replay) -> None:
        scheduler.append(it)
        if stop_s is not None:
            await anyio.sleep(stop_s)
            it.stop("interrupted", 5.0)

    outcome = replay(plan, sessions, stream, beside=beside)
    course.records, course.ending = outcome.records, outcome.ending
    return course


@cache
def ran(plan: Plan, trace: Trace) -> Course:
    """A run for all tests that only look at it, in which no two calls end at one instant."""
    return run(plan, trace(), apart_s=0.0013)


def big(trace: Trace, **changes: Any) -> Course:
    """64 lanes under the rules of the published benchmark, or a change of them."""
    return ran(changed(MIDDLE, **changes), trace)


# --- Random sessions and plans --------------------------------------------------------------------


@st.composite
def sessions(draw: st.DrawFn) -> list[Session]:
    """Up to four sessions of up to ten calls: main agents, subagents, and equal times."""
    made = []
    for number in range(draw(st.integers(1, 4))):
        at_s, calls = 0.0, list[Call]()
        latest: dict[str, int] = {}
        for i in range(draw(st.integers(1, 10))):
            at_s += (
                draw(st.sampled_from([0.0, 0.0, 0.5, 2.0, 7.0, 20.0, 400.0, 3000.0])) if i else 0
            )
            agent = draw(st.sampled_from(["", "", "", "a", "b"]))
            before = latest.get(agent, latest.get("") if draw(st.booleans()) else None)
            shared = 0 if before is None else calls[before].isl
            calls.append(
                call(
                    at_s,
                    at_s + draw(st.sampled_from([0.25, 0.5, 2.0, 8.0, 30.0, 600.0])),
                    isl=shared + 64 * draw(st.integers(1, 4)),
                    parent=before,
                    shared=shared,
                    agent=agent,
                )
            )
            latest[agent] = i
        made.append(Session(f"s{number}", None, link(calls, 64), 64, ""))
    return made


plans = st.builds(
    Plan,
    users=st.integers(1, 6),
    duration_s=st.sampled_from([5.0, 60.0, 700.0]),
    timing=st.sampled_from(["think", "think", "recorded", "none"]),
    order=st.sampled_from(["causal", "recorded", "serial"]),
    speed=st.sampled_from([0.5, 1.0, 4.0]),
    max_gap_s=st.sampled_from([None, None, 10.0]),
    max_tree_idle_s=st.sampled_from([None, 5.0, 300.0]),
    max_idle_s=st.sampled_from([None, 1.0, 10.0]),
    start=st.sampled_from([None, (0.0, 1.0), (0.25, 0.75)]),
    warmup_calls=st.integers(0, 12),
    warmup_s=st.sampled_from([0.0, 0.0, 40.0]),
    warmup_limit_s=st.sampled_from([None, 0.5, 3.0, 60.0]),
    seed=st.integers(0, 9),
)

warmups = st.sampled_from([0.0, 0.25, 0.5, 20.0])
factors = st.sampled_from([1.0, 3.0])


def at_random(law: Callable[[Course], None]) -> Callable[[], None]:
    """The law over random sessions and plans."""

    @random_cases
    @given(plans, sessions(), warmups, factors)
    def holds(plan: Plan, trace: list[Session], warmup_s: float, factor: float) -> None:
        law(run(plan, trace, warmup_s=warmup_s, factor=factor))

    return holds


# --- As many trees as users -----------------------------------------------------------------------


def all_users_are_live(course: Course) -> None:
    """In the whole window each lane has a tree that has begun and has not drained."""
    span = course.summary.window
    assert set(course.lanes) == {course.plan.users}
    for lane in range(course.plan.users):
        plays = [play for (of, _), play in course.plays.items() if of == lane]
        for play, after in pairwise(plays):
            drained_ns = max(record.done_ns for record in play)
            assert {r.request.call for r in play} >= set(whole(play))
            assert min(record.sent_ns for record in after) == drained_ns
        if plays and max(record.done_ns for record in plays[-1]) < span.close_ns:
            assert not {r.request.call for r in plays[-1]} >= set(whole(plays[-1]))
    if span.measures_rates:
        lanes = course.summary.metrics["concurrency"]["lanes_mean"]
        assert lanes == pytest.approx(course.plan.users)


def whole(play: Sequence[Record]) -> range:
    """The calls of a play from the first that is no warm-up on."""
    first = max(record.request.first for record in play)
    return range(first, play[0].request.calls)


@pytest.mark.parametrize("trace", SETS)
@pytest.mark.parametrize("warmup_calls", [0, 10])
def test_as_many_trees_are_live_as_users(trace: Trace, warmup_calls: int) -> None:
    """64 lanes: at every moment of the window 64 trees are live; a lane whose tree has drained
    begins its next at that instant."""
    course = big(trace, warmup_calls=warmup_calls)
    assert len(course.plays) > 64
    all_users_are_live(course)


def test_as_many_trees_are_live_at_random() -> None:
    """Whatever the sessions and the plan, as many trees are live as there are users."""
    at_random(all_users_are_live)()


def test_a_lane_is_live_while_its_warm_up_is_answered() -> None:
    """A tree whose last answer is one of the warm-up drains with it, in the metric too."""
    calls = [call(0, 1), call(1, 2, agent="a"), call(2, 3, agent="b")]
    trace = [Session("s", None, link(calls, 64, given=[(), (), ()]), 64, "")]
    plan = Plan(users=1, duration_s=60, start=(0.1, 0.4), warmup_calls=1, warmup_limit_s=5.0)
    course = run(plan, trace, warmup_s=30.0)
    all_users_are_live(course)


def test_a_failure_that_is_passed_over_ends_no_tree() -> None:
    """With on_error continue a lane is live to its tree's last call, in the metric too."""
    plan = Plan(users=2, duration_s=50, on_error="continue", max_gap_s=None)
    trace = [chain(n, 4, gap_s=30) for n in range(2)]
    course = run(plan, trace, fails=lambda request: request.call == 0 and request.lane == 0)
    assert course.summary.metrics["concurrency"]["lanes_mean"] == pytest.approx(2)


# --- The moment at which a session begins ---------------------------------------------------------


@pytest.mark.parametrize("trace", SETS)
def test_the_moment_follows_from_seed_and_lane(trace: Trace) -> None:
    """The same seed and lane give the same moment, however many lanes there are; others differ."""
    session = max(trace(), key=lambda session: len(session.calls))
    few, many = MIDDLE, changed(MIDDLE, users=3)
    for lane in range(3):
        assert opening(few, lane, session) == opening(many, lane, session)
    plans = [few, changed(few, seed=1)]
    assert len({drawn_s(plan, lane, session) for lane in range(64) for plan in plans}) == 128


@pytest.mark.parametrize("trace", SETS)
@pytest.mark.parametrize("calls", [0, 1, 10, 1000])
def test_the_moment_lies_in_its_share_or_just_so_far_back(trace: Trace, calls: int) -> None:
    """It lies in the given share of the starts' span, unless fewer than N + 1 calls follow: then
    it is the latest start that N + 1 follow, or the first."""
    plan = changed(MIDDLE, warmup_calls=calls)
    for lane, session in enumerate(trace()):
        within(plan, lane, session)


@random_cases
@given(plans.filter(lambda plan: plan.start is not None), sessions())
def test_the_moment_at_random(plan: Plan, trace: list[Session]) -> None:
    """That holds for every session and plan."""
    for lane, session in enumerate(trace):
        within(plan, lane, session)


def within(plan: Plan, lane: int, session: Session) -> None:
    assert plan.start is not None
    found, drawn = opening(plan, lane, session), drawn_s(plan, lane, session)
    starts_s = [each.start_s for each in session.calls]
    span_s = starts_s[-1] - starts_s[0]
    assert plan.start[0] * span_s <= drawn - starts_s[0] <= plan.start[1] * span_s

    def follow(at_s: float) -> int:
        return sum(start_s >= at_s for start_s in starts_s)

    least = plan.warmup_calls + 1
    assert found.moved_back == (follow(drawn) < least and starts_s[0] < drawn)
    if not found.moved_back:
        assert found.at_s == drawn
    else:
        assert follow(found.at_s) >= least or found.at_s == starts_s[0]
        assert all(follow(start_s) < least for start_s in starts_s if start_s > found.at_s)
    assert found.begun == len(starts_s) - follow(found.at_s)


@pytest.mark.parametrize("trace", SETS)
def test_what_moved_back_is_counted(trace: Trace) -> None:
    """The run counts the lanes whose moment was moved back."""
    course = big(trace)
    moved = 0
    for lane in range(64):
        session = course.firsts[lane]
        moved += course.opened[lane].at_s != drawn_s(course.plan, lane, session)
    assert course.ending.moved_back == moved > 0
    assert course.summary.warmup is not None
    assert course.summary.warmup.moved_back == moved


# --- What is sent, and in which order -------------------------------------------------------------


def nothing_is_sent_too_early(course: Course) -> None:
    """What is sent waits for all that it waits for in the plan's order, but for what lay before
    the moment at which its session begins; and nothing is sent twice."""
    for (lane, visit), play in course.plays.items():
        session = in_order(course.sessions[play[0].request.index], course.plan.order)
        known = {record.request.call: record for record in play}
        assert len(known) == len(play)
        opened = course.opened[lane] if visit == 0 and course.plan.warms_up else None
        for i, record in known.items():
            if opened is not None and i < opened.begun:
                assert record.request.warmup
                assert i in opened.primers
                continue
            for j in session.calls[i].after:
                if j in known:
                    assert known[j].done_ns <= record.sent_ns
                else:
                    assert opened is not None
                    assert j < opened.begun
    lags_ns = {record.sent_ns - due_ns(record) for record in course.ordinary}
    assert min(lags_ns, default=0) >= -1


def due_ns(record: Record) -> int:
    request = record.request
    return request.due_ns + round(request.behind_s * S)


@pytest.mark.parametrize("trace", SETS)
def test_nothing_is_sent_before_what_it_waits_for(trace: Trace) -> None:
    """64 lanes: every call waits for the ends of all that it waits for, and none is sent twice."""
    nothing_is_sent_too_early(big(trace))


def test_nothing_is_sent_too_early_at_random() -> None:
    """Whatever the sessions and the plan, nothing is sent too early, or twice."""
    at_random(nothing_is_sent_too_early)()


def test_an_end_at_the_instant_of_the_hand_over_frees_once() -> None:
    """One lane's last warm-up call ends as another's is sent: what it frees is sent once."""
    trace = [chain(0, 4), chain(1, 4)]
    trace = [trace[0], changed(trace[1], calls=trace[1].calls[:2])]
    for seed in range(4):
        plan = Plan(users=2, duration_s=None, sessions=2, warmup_calls=2, seed=seed)
        nothing_is_sent_too_early(run(plan, trace))


@pytest.mark.parametrize("trace", SETS)
def test_every_call_from_the_moment_on_is_sent(trace: Trace) -> None:
    """Given the time, all that comes from a session's moment on is sent, and before it primers."""
    plan = changed(MIDDLE, duration_s=None, sessions=64)
    course = run(plan, trace())
    assert course.ending.reason == "work"
    for (lane, _), play in course.plays.items():
        opened = course.opened[lane]
        calls = range(opened.begun, len(course.firsts[lane].calls))
        assert sorted(r.request.call for r in play) == [*opened.primers, *calls]
        warmed = {r.request.call for r in play if r.request.warmup}
        assert warmed == {*opened.primers, *opened.warmup}


def nothing_overtakes(course: Course) -> None:
    """What had ended in the recording before a call began has ended when it is sent."""
    for play in course.plays.values():
        calls = course.sessions[play[0].request.index].calls
        known = {record.request.call: record for record in play}
        begun = {i for i in known if known[i].request.warmup}
        for i, record in known.items():
            for j in known:
                if j < i and calls[j].end_s <= calls[i].start_s and not {i, j} <= begun:
                    assert known[j].done_ns <= record.sent_ns


@pytest.mark.parametrize("trace", SETS)
@pytest.mark.parametrize("factor", [1.0, 3.0, 10.0])
def test_nothing_overtakes_in_recorded_order(trace: Trace, factor: float) -> None:
    """With a server that is three and ten times as slow, and caps on idle time, no call overtakes
    what it did not overtake in the recording."""
    plan = changed(MIDDLE, duration_s=None, sessions=64, max_tree_idle_s=5.0)
    nothing_overtakes(run(plan, trace(), factor=factor))


@random_cases
@given(plans.map(lambda plan: changed(plan, order="recorded")), sessions(), warmups, factors)
def test_nothing_overtakes_at_random(
    plan: Plan, trace: list[Session], warmup_s: float, factor: float
) -> None:
    """In recorded order that holds for all sessions and plans."""
    nothing_overtakes(run(plan, trace, warmup_s=warmup_s, factor=factor))


# --- Primers, and the calls after them ------------------------------------------------------------


def primers_are_in_order(course: Course) -> None:
    """A primer for each stream that lives at the moment; over all lanes they come in order of
    their distance to it, as far apart as recorded, cut, and scaled by one factor to the limit."""
    plan = course.plan
    opened = course.opened
    lanes = range(len(opened))
    away_s = {
        (lane, i): distance_s(plan, opened[lane].at_s - course.firsts[lane].calls[i].start_s)
        for lane in lanes
        for i in opened[lane].primers
    }
    sent_ns = {(r.request.lane, r.request.call): r.sent_ns for r in course.primers}
    assert set(sent_ns) <= set(away_s)
    if course.ending.warmup_cut == 0:
        assert set(sent_ns) == set(away_s)
    leads_s = sorted(away_s.values(), reverse=True)
    cap_s = 10.0 if plan.max_idle_s is None else plan.max_idle_s
    apart_s = [min(a - b, cap_s) for a, b in pairwise([*leads_s, 0.0])]
    factor = 1.0
    if plan.warmup_limit_s is not None and sum(apart_s) > 0:
        factor = min(1.0, plan.warmup_limit_s / sum(apart_s))
    for key, at_ns in sent_ns.items():
        before = sum(apart_s[: leads_s.index(away_s[key])])
        assert at_ns == pytest.approx(before * factor * S, abs=1000)
    in_time = sorted(sent_ns, key=lambda key: (sent_ns[key], -away_s[key]))
    assert all(away_s[a] >= away_s[b] for a, b in pairwise(in_time))
    assert all(sent_ns[b] - sent_ns[a] <= cap_s * S + 1 for a, b in pairwise(in_time))


def distance_s(plan: Plan, recorded_s: float) -> float:
    return 0.0 if plan.timing == "none" else recorded_s / plan.speed


@pytest.mark.parametrize("trace", SETS)
@pytest.mark.parametrize("limit_s", [None, 20.0])
@pytest.mark.parametrize("calls", [0, 10])
def test_primers_come_in_order(trace: Trace, limit_s: float | None, calls: int) -> None:
    """64 lanes: one primer for each living stream, in order, no further apart than the cap."""
    course = big(trace, warmup_limit_s=limit_s, warmup_calls=calls)
    assert course.primers
    primers_are_in_order(course)


def test_primers_come_in_order_at_random() -> None:
    """Whatever the sessions and the plan, primers come in order."""
    at_random(primers_are_in_order)()


def the_next_calls_follow(course: Course) -> None:
    """After its primers a lane sends its next calls, one at a time, each as the one before ends."""
    for lane, opened in enumerate(course.opened):
        mine = [r for r in course.warmup if r.request.lane == lane]
        next_ones = [r for r in mine if r.request.call >= opened.begun]
        calls = [r.request.call for r in next_ones]
        assert calls == list(opened.warmup[: len(calls)])
        if not course.ending.warmup_cut:
            assert calls == list(opened.warmup)
        for before, after in pairwise(next_ones):
            assert after.request.due_ns == before.done_ns <= after.sent_ns
        primers = [r for r in mine if r.request.call < opened.begun]
        assert all(r.done_ns <= next_ones[0].sent_ns for r in primers if next_ones)


@pytest.mark.parametrize("trace", SETS)
def test_the_next_calls_follow_the_primers(trace: Trace) -> None:
    """64 lanes: ten calls of each, one after another, or all but one where there are fewer."""
    the_next_calls_follow(big(trace))


@random_cases
@given(plans.filter(lambda plan: plan.warms_up), sessions(), warmups)
def test_the_next_calls_follow_at_random(plan: Plan, trace: list[Session], warmup_s: float) -> None:
    """Whatever the sessions and the plan, the next calls follow one after another."""
    the_next_calls_follow(run(plan, trace, warmup_s=warmup_s))


@pytest.mark.parametrize("trace", SETS)
@pytest.mark.parametrize("warmup_s", [0.5, 15.0, None])
@pytest.mark.parametrize("calls", [0, 10])
def test_the_warm_up_is_waited_for_as_long_as_it_gets_on(
    trace: Trace, warmup_s: float | None, calls: int
) -> None:
    """Primers are sent within the limit, and measuring begins when no call of the warm-up has
    ended for as long after that, at the latest: also if they never end."""
    plan = changed(MIDDLE, warmup_limit_s=20.0, warmup_calls=calls, duration_s=60.0)
    course = run(plan, trace(), warmup_s=warmup_s)
    openings = course.opened
    primers = [r for r in course.warmup if r.request.call < openings[r.request.lane].begun]
    assert all(record.sent_ns <= 20 * S for record in primers)
    assert all(record.sent_ns <= course.begun_ns for record in course.warmup)
    ends = sorted(r.done_ns for r in course.warmup if r.done_ns <= course.begun_ns)
    marks = [20 * S, *(at_ns for at_ns in ends if at_ns > 20 * S), course.begun_ns]
    assert all(later - earlier <= 20 * S for earlier, later in pairwise(marks))
    assert course.ordinary or warmup_s is None  # where all wait for what never ends
    unended = len(course.warmup) - len(ends)
    asked = sum(len(each.primers) + len(each.warmup) for each in openings)
    cut = asked - len(course.warmup) + unended
    stalled = calls > 0 and warmup_s is None
    assert course.ending.warmup_cut == (cut if stalled else 0)
    warned = [warning.id for warning in course.summary.verdict.warnings]
    assert ("warmup_cut" in warned) == stalled


# --- The hand-over --------------------------------------------------------------------------------


def measuring_begins_as_recorded(course: Course) -> None:
    """What is free at the hand-over is as far from the moment that its lane has reached as in the
    recording, and the earliest of all is sent at once; all others wait for what is in flight."""
    plan, at_ns = course.plan, course.begun_ns
    away_s: dict[tuple[int, int], float] = {}
    for lane in range(plan.users):
        session, opened = in_order(course.firsts[lane], plan.order), course.opened[lane]
        mine = [r for r in course.warmup if r.request.lane == lane]
        reached_s, first = opened.at_s, opened.begun
        for record in mine:
            if record.request.call >= opened.begun:
                first = record.request.call + 1
                reached_s = session.calls[record.request.call].start_s
        flying = {r.request.call for r in mine if r.done_ns > at_ns or r.sent_ns == at_ns}
        for i in range(first, len(session.calls)):
            after = session.calls[i].after
            if all(j < first and j not in flying for j in after):
                recorded_s = session.calls[i].start_s - reached_s
                away_s[lane, i] = (
                    recorded_s / plan.speed
                    if plan.timing == "recorded"
                    else gap_s(plan, recorded_s)
                )
    earliest_s = min(away_s.values(), default=0.0)
    sent = {(r.request.lane, r.request.call): r for r in course.ordinary if r.request.visit == 0}
    for key, wait_s in away_s.items():
        due = at_ns + round((wait_s - earliest_s) * S)
        if key in sent:
            assert sent[key].sent_ns == pytest.approx(due, abs=2)
        else:
            assert course.ending.reason == "duration"
            assert due >= course.ending.closed_ns - 2
    if away_s:
        assert min(sent[key].sent_ns for key in away_s if key in sent) == at_ns


UNCAPPED: dict[str, Any] = {"max_tree_idle_s": None, "max_idle_s": None}


@pytest.mark.parametrize("trace", SETS)
@pytest.mark.parametrize("calls", [0, 10])
def test_measuring_begins_as_recorded(trace: Trace, calls: int) -> None:
    """64 lanes: the earliest call is sent at once, all others at their recorded distance."""
    course = big(trace, warmup_calls=calls, **UNCAPPED)
    measuring_begins_as_recorded(course)


@random_cases
@given(
    plans.filter(lambda plan: plan.warms_up).map(lambda plan: changed(plan, **UNCAPPED)),
    sessions(),
    st.sampled_from([0.3, 0.7, 20.0]),
)
def test_measuring_begins_as_recorded_at_random(
    plan: Plan, trace: list[Session], warmup_s: float
) -> None:
    """Whatever the sessions and the plan, measuring begins as recorded."""
    measuring_begins_as_recorded(run(plan, trace, warmup_s=warmup_s, apart_s=0.0013))


def test_recorded_times_go_on_from_the_moment() -> None:
    """With recorded times a session that begins in its middle keeps its offsets from there on."""
    trace = [chain(0, 9, gap_s=9.0)]  # a call each 10 s
    plan = Plan(users=1, sessions=1, duration_s=None, timing="recorded", start=(0.5, 0.6))
    course = run(plan, trace)
    sent_s = [(record.sent_ns - course.begun_ns) / S for record in course.ordinary]
    assert len(sent_s) == 4
    assert 0 < sent_s[0] < 10  # its primer was under way, and the moment lies between two calls
    assert [round(b - a, 9) for a, b in pairwise(sent_s)] == [10, 10, 10]


# --- Bytes, and what they foretell ----------------------------------------------------------------


def words(body: bytes) -> list[str]:
    """All text of a prompt."""
    return " ".join(message["content"] for message in orjson.loads(body)["messages"]).split()


def alike(one: Sequence[str], other: Sequence[str]) -> int:
    """How many words two prompts begin with together."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


CHANCE = 4
"""So many words may be the same by chance: there are 512."""


def prompts(course: Course) -> dict[tuple[int, int], dict[int, list[str]]]:
    """The prompts of each play, by call."""
    found: dict[tuple[int, int], dict[int, list[str]]] = defaultdict(dict)
    for request, body in course.sent:
        found[request.lane, request.visit][request.call] = words(body)
    return found


def plays_keep_their_prefixes(course: Course) -> None:
    """Any two calls of a play, warm-up or not, share what they shared in the recording."""
    for key, texts in prompts(course).items():
        session = course.sessions[course.plays[key][0].request.index]
        for i, text in texts.items():
            for j in texts:
                if j < i:
                    assert alike(text, texts[j]) >= common_prefix(session.prompts, i, j)


FEW: dict[str, Any] = {"users": 6, "duration_s": 300.0, "warmup_calls": 3}


@pytest.mark.parametrize("trace", SETS)
def test_warm_up_and_measured_calls_share_their_prefix(trace: Trace) -> None:
    """What a primer or a call of the warm-up has put into the cache is found by those after it."""
    few = sorted(trace(), key=lambda session: sum(each.isl for each in session.calls))[10:30]
    course = run(changed(MIDDLE, **FEW, timing="none"), few, keep=True)
    assert {r.request.warmup for r in course.records} == {True, False}
    plays_keep_their_prefixes(course)


@random_cases
@given(plans, sessions())
def test_plays_keep_their_prefixes_at_random(plan: Plan, trace: list[Session]) -> None:
    """Whatever the sessions and the plan, calls of a play share what the recording shares."""
    plays_keep_their_prefixes(run(changed(plan, duration_s=60.0), trace, keep=True))


@pytest.mark.parametrize("share", ["session", "pass", "play"])
@pytest.mark.parametrize("trace", SETS)
def test_plays_share_no_more_than_their_system_prompt(trace: Trace, share: str) -> None:
    """Plays of a session share at most its system tokens; with a system prompt for each pass
    nothing across passes, with one for each play nothing at all."""
    small = sorted(trace(), key=lambda session: sum(each.isl for each in session.calls))[2:5]
    plan = changed(MIDDLE, users=5, duration_s=900.0, timing="none", warmup_calls=2)
    course = run(changed(plan, share_system=share), small, keep=True, factor=0.5)  # type: ignore[arg-type]
    texts = prompts(course)
    laps = {
        (lane, visit.number): visit.lap
        for lane in range(5)
        for visit, _ in zip(visits(plan, lane, 3), range(len(texts)), strict=False)
    }
    compared = shared = 0
    played = {key: play[0].request.index for key, play in course.plays.items()}
    for one in played:
        for other in played:
            if one < other:
                session = small[played[one]]
                i, j = min(texts[one]), min(texts[other])
                found = alike(texts[one][i], texts[other][j])
                most = 0
                same = played[one] == played[other]
                if same and (share == "session" or (share == "pass" and laps[one] == laps[other])):
                    most = min(session.calls[i].system, session.calls[j].system)
                assert found < most + CHANCE
                compared += same
                shared += same and found > CHANCE
    assert compared
    assert bool(shared) == (share == "session")


def blocks_seen(course: Course) -> list[int]:
    """What an endless cache of blocks finds of each prompt that was sent, in tokens."""
    known: set[int] = set()
    found = []
    for request, body in course.sent:
        text, block = words(body), course.sessions[request.index].block_size
        seen, name, hit = 0, 0, True
        for end in range(block, len(text) + 1, block):
            name = hash((name, *text[end - block : end]))
            hit = hit and name in known
            seen = end if hit else seen
            known.add(name)
        found.append(seen)
    return found


@pytest.mark.parametrize("trace", SETS)
def test_reuse_is_what_an_endless_cache_finds(trace: Trace) -> None:
    """The reuse that requests foretell is that of a set of all blocks that were sent before."""
    course = run(changed(MIDDLE, **FEW), trace(), keep=True)
    assert blocks_seen(course) == [request.reuse for request, _ in course.sent]


@random_cases
@given(plans, sessions(), st.sampled_from(["session", "pass", "play"]))
def test_reuse_is_what_an_endless_cache_finds_at_random(
    plan: Plan, trace: list[Session], share: str
) -> None:
    """Whatever the sessions and the plan, foretold reuse is what is found."""
    plan = changed(plan, share_system=share, duration_s=60.0)  # type: ignore[arg-type]
    course = run(plan, trace, keep=True)
    assert blocks_seen(course) == [request.reuse for request, _ in course.sent]


def test_the_simulated_server_finds_what_is_foretold() -> None:
    """With a cache that holds everything, the server's cached tokens are the foretold reuse."""
    plan = changed(MIDDLE, users=3, duration_s=600.0, warmup_calls=2)
    few = []
    for n in range(5):  # prompts end within a block, which pays for the template
        calls = [each._replace(isl=each.isl + 24) for each in chain(n, 12).calls]
        few.append(Session(f"s{n}", None, tuple(calls), 64, ""))
    outcome, summary = simulate(plan, few)
    cached = [record.cached for record in outcome.records if not record.request.warmup]
    assert cached == [r.request.reuse for r in outcome.records if not r.request.warmup]
    assert summary.metrics["prefix_reuse"]["captured"] == pytest.approx(1.0)


# --- Idle time ------------------------------------------------------------------------------------


def longest_idle_ns(spans: Iterable[tuple[int, int]], from_ns: int, until_ns: int) -> int:
    """The longest time within which none of the spans lasts."""
    longest, reached_ns = 0, from_ns
    for start_ns, stop_ns in [*sorted(spans), (until_ns, until_ns)]:
        if stop_ns >= from_ns:
            longest = max(longest, min(start_ns, until_ns) - reached_ns)
            reached_ns = max(reached_ns, stop_ns)
    return longest


def idle_time_is_capped(course: Course) -> None:
    """From the hand-over to the end of sending, no tree and not all together are idle too long."""
    plan, until_ns = course.plan, course.ending.closed_ns
    if plan.max_idle_s is not None:
        spans = [(record.sent_ns, record.done_ns) for record in course.tries]
        assert longest_idle_ns(spans, course.begun_ns, until_ns) <= plan.max_idle_s * S + 1
    if plan.max_tree_idle_s is not None:
        for play in course.plays.values():
            spans = [(record.sent_ns, record.done_ns) for record in play]
            from_ns = max(course.begun_ns, min(sent_ns for sent_ns, _ in spans))
            last_ns = max(sent_ns for sent_ns, _ in spans)
            assert longest_idle_ns(spans, from_ns, last_ns) <= plan.max_tree_idle_s * S + 1


@pytest.mark.parametrize("trace", SETS)
@pytest.mark.parametrize(("tree_s", "all_s"), [(300.0, 10.0), (5.0, None), (None, 0.5)])
def test_idle_time_is_capped(trace: Trace, tree_s: float | None, all_s: float | None) -> None:
    """64 lanes and three: neither a tree nor all together are idle longer than the caps say."""
    for users in (64, 3):
        idle_time_is_capped(big(trace, users=users, max_tree_idle_s=tree_s, max_idle_s=all_s))


def test_idle_time_is_capped_at_random() -> None:
    """Whatever the sessions and the plan, idle time is capped."""
    at_random(idle_time_is_capped)()


@random_cases
@given(
    plans.map(lambda plan: changed(plan, start=None, warmup_calls=0)),
    sessions(),
    st.sampled_from(["continue", "end-session"]),
    st.integers(2, 5),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([None, 5, 20]),
)
def test_idle_time_is_capped_through_failures(
    plan: Plan,
    trace: list[Session],
    on_error: str,
    every: int,
    most: int | None,
    requests: int | None,
) -> None:
    """Also where calls fail, lanes run out of sessions or calls, and sessions are played again."""
    plan = changed(plan, on_error=on_error, sessions=most, requests=requests)  # type: ignore[arg-type]
    course = run(plan, trace, fails=lambda request: (request.call + 1) % every == 0)
    spans = [(record.sent_ns, record.done_ns) for record in course.tries]
    pauses_s = 30.0 if on_error == "end-session" else 0.0  # of lanes whose plays failed
    if plan.max_idle_s is not None and spans:
        until_ns = max(sent_ns for sent_ns, _ in spans)
        idle_ns = longest_idle_ns(spans, 0, until_ns)
        assert idle_ns <= max(plan.max_idle_s, pauses_s) * S + 1
    if on_error == "continue" and not requests and not most:
        idle_time_is_capped(course)


@pytest.mark.parametrize("left_s", [5, 500])
def test_a_lane_that_has_ended_holds_no_other_up(left_s: float) -> None:
    """One lane's only session fails, the other's next call is 1000 s away: it comes after 10 s,
    and all that was skipped is in its record, whenever the failed one's next would have come."""
    trace = [
        Session(
            "a",
            None,
            link([call(0, 1), call(left_s, left_s + 1, agent="x")], 64, given=[(), ()]),
            64,
            "",
        ),
        Session("b", None, link([call(0, 0.1), call(1000, 1001)], 64), 64, ""),
    ]
    plan = Plan(users=2, sessions=2, duration_s=None, max_gap_s=None, max_idle_s=10.0)
    course = run(plan, trace, fails=lambda request: request.session == "a")
    (last,) = [r for r in course.records if r.request.session == "b" and r.request.call == 1]
    assert last.sent_ns == 10.5 * S
    assert last.request.idle_skip_s == 989.5


def skipped_ns(record: Record) -> int:
    return round((record.request.tree_skip_s + record.request.idle_skip_s) * S)


def skips_are_what_was_cut(plan: Plan, trace: Sequence[Session], factor: float) -> None:
    """Without caps each call is later by all that was skipped up to it."""
    free = run(changed(plan, **UNCAPPED), trace, factor=factor)
    course = run(plan, trace, factor=factor)
    when = {
        (r.request.lane, r.request.visit, r.request.call, r.request.warmup): r.sent_ns
        for r in free.tries
    }
    skipped = 0
    for record in sorted(course.tries, key=lambda r: (r.sent_ns, -skipped_ns(r))):
        skipped += skipped_ns(record)
        request = record.request
        key = request.lane, request.visit, request.call, request.warmup
        assert when[key] - record.sent_ns == pytest.approx(skipped, abs=100)


@random_cases
@given(
    plans.map(
        lambda plan: changed(plan, users=1, duration_s=None, sessions=1, warmup_limit_s=None)
    ),
    sessions(),
    factors,
)
def test_skips_of_one_lane_are_what_was_cut(
    plan: Plan, trace: list[Session], factor: float
) -> None:
    """One lane: the skips in records add up to what each call comes earlier, and pending calls
    keep their distances."""
    free = changed(plan, start=None, warmup_calls=0)
    skips_are_what_was_cut(free, trace, factor)


@random_cases
@given(plans, sessions(), factors)
def test_skips_of_all_lanes_are_what_was_cut(
    plan: Plan, trace: list[Session], factor: float
) -> None:
    """Several lanes under the cap for all together: they move together."""
    free = changed(plan, start=None, warmup_calls=0, duration_s=None, sessions=plan.users)
    skips_are_what_was_cut(changed(free, max_tree_idle_s=None), trace, factor)


def test_skips_with_recorded_times_move_all_that_follows() -> None:
    """A night of 1000 s is skipped once: what follows it keeps its recorded distances."""
    calls = [call(0, 1), call(1000, 1001), call(1003, 1004), call(1006, 1007)]
    trace = [Session("s", None, link(calls, 64), 64, "")]
    plan = Plan(users=1, sessions=1, duration_s=None, timing="recorded", max_tree_idle_s=5.0)
    course = run(plan, trace)
    assert [record.sent_ns / S for record in course.records] == [0, 6, 9, 12]
    assert [record.request.tree_skip_s for record in course.records] == [0, 994, 0, 0]
    assert course.summary.metrics["lag"]["max"] == 0


# --- Ends and failures ----------------------------------------------------------------------------


def test_calls_of_the_lead_are_ordinary() -> None:
    """With a lead of 40 s calls are whole, unmeasured, and the window opens after it."""
    plan = changed(MIDDLE, users=4, warmup_s=40.0, duration_s=60.0)
    course = run(plan, invented())
    early = [r for r in course.ordinary if r.sent_ns < course.begun_ns + 40 * S]
    assert early
    assert course.ending.opened_ns == course.begun_ns + 40 * S
    assert course.ending.closed_ns == course.begun_ns + 100 * S
    requests = course.summary.metrics["requests"]
    assert requests["warmup"] == len(course.warmup) + len(early)
    assert requests["attempted"] == len(course.ordinary) - len(early)


def test_too_many_failures_stop_the_run() -> None:
    """More than a tenth of the measured requests failed: nothing more is sent, and it is said."""
    plan = changed(MIDDLE, failure_limit=0.1, on_error="continue")
    course = run(plan, invented(), fails=lambda r: not r.warmup and r.call % 5 == 0)
    assert course.ending.reason == "failures"
    assert "error_rate" in [reason.id for reason in course.summary.verdict.reasons]
    ended = sorted(course.ordinary, key=lambda record: record.done_ns)
    failed = [record.error is not None for record in ended]
    stop = next(n for n in range(20, len(ended)) if sum(failed[:n]) > 0.1 * n)
    assert course.ordinary[-1].sent_ns <= ended[stop].done_ns


MAIN = [chain(n, 20) for n in range(4)]


@pytest.mark.parametrize("on_error", ["end-session", "continue", "stop"])
def test_a_failed_call_of_the_main_agent_stops_a_warm_up(on_error: str) -> None:
    """Its session can't do without: the run stops, nothing is measured, and the verdict says so."""
    plan = changed(MIDDLE, users=4, on_error=on_error)  # type: ignore[arg-type]
    course = run(plan, MAIN, fails=lambda request: request.warmup and request.lane == 2)
    assert course.ending.reason == "warmup_failed"
    assert course.ending.opened_ns is None
    assert not course.ordinary
    assert [reason.id for reason in course.summary.verdict.reasons] == ["warmup_failed"]


def test_a_failed_call_of_a_subagent_stops_no_warm_up() -> None:
    """The others go on, and so does the session, as if it had ended."""
    calls = [call(n, n + 0.5, agent="" if n % 2 else "a") for n in range(20)]
    trace = [Session("s", None, link(calls, 64), 64, "")]
    plan = changed(MIDDLE, users=1, duration_s=None, sessions=1)
    course = run(plan, trace, fails=lambda request: request.warmup and request.agent == "a")
    assert course.ending.reason == "work"
    assert course.summary.warmup is not None
    assert course.summary.warmup.failed > 0
    first = max(record.request.first for record in course.ordinary)
    assert [r.request.call for r in course.ordinary] == list(range(first, 20))


def test_an_interrupted_warm_up_measures_nothing() -> None:
    """A signal in the warm-up: nothing is sent any more, and no window has opened."""
    course = run(MIDDLE, invented(), stop_s=3.0)
    assert course.ending.reason == "interrupted"
    assert course.ending.opened_ns is None
    assert not course.ordinary
    assert max(record.sent_ns for record in course.warmup) <= 3 * S
    assert course.summary.window.seconds == 0
    assert not course.summary.verdict.valid


def test_a_short_duration_ends_the_run_in_time() -> None:
    """A window of 2 s after a warm-up of 1 s: sending ends and the drain begins at 3 s."""
    trace = [chain(0, 9, gap_s=0.5, takes_s=100.0)]
    plan = Plan(users=1, duration_s=2.0, drain_s=1.0, warmup_calls=2)
    course = run(plan, trace, warmup_s=1.0)
    assert course.ending.closed_ns == 3 * S
    assert course.ending.done_ns == 4 * S


def test_the_end_of_work_in_the_lead_measures_nothing() -> None:
    """All is sent before the window would open: the run ends, and is invalid."""
    plan = Plan(users=2, sessions=2, duration_s=60, warmup_calls=1, warmup_s=500.0)
    course = run(plan, [chain(0, 3), chain(1, 3)])
    assert (course.ending.reason, course.ending.opened_ns) == ("work", None)
    assert course.summary.window.seconds == 0
    assert [reason.id for reason in course.summary.verdict.reasons] == ["nothing_measured"]


def test_requests_are_counted_without_the_warm_up() -> None:
    """A limit of 7 requests over 4 lanes: 7 ordinary ones, besides those of the warm-up."""
    plan = changed(MIDDLE, users=4, requests=7, duration_s=None, warmup_calls=2)
    course = run(plan, MAIN)
    assert len(course.ordinary) == 7
    assert course.warmup


def test_a_lane_without_a_call_warms_nothing_up() -> None:
    """Fewer requests than lanes: the lanes that may send none are not waited for."""
    plan = changed(MIDDLE, users=4, requests=2, duration_s=None, warmup_calls=2)
    course = run(plan, MAIN)
    assert len(course.ordinary) == 2
    assert {record.request.lane for record in course.warmup} == {0, 1}


def test_sessions_are_dealt_with_a_warm_up() -> None:
    """A limit of 6 sessions over 4 lanes: six plays, the first four of them begun in the middle."""
    plan = changed(MIDDLE, users=4, sessions=6, duration_s=None, warmup_calls=2)
    course = run(plan, MAIN)
    assert len(course.plays) == 6
    begun = {r.request.visit for r in course.ordinary if r.request.first}
    assert begun == {0}


def test_more_lanes_than_sessions_begin_at_moments_of_their_own() -> None:
    """Eight lanes share two sessions: each has a moment and a text of its own."""
    trace = [chain(n, 60) for n in range(2)]
    plan = changed(MIDDLE, users=8, warmup_calls=1, duration_s=30.0)
    course = run(plan, trace, keep=True)
    assert len({r.request.first for r in course.ordinary if r.request.visit == 0}) == 8
    texts = prompts(course).values()
    assert len({tuple(text[min(text)][:64]) for text in texts}) == len(texts)


def test_a_busy_server_is_waited_for_in_the_warm_up() -> None:
    """Refused twice with 429, a call of the warm-up is sent a third time, and the run is whole."""
    tries: dict[tuple[int, int, int], int] = defaultdict(int)

    async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
        key = request.lane, request.visit, request.call
        tries[key] += 1
        await anyio.sleep(0.5)
        if request.warmup and tries[key] < 3:
            return Reply(429, "application/json", b"busy", retry_after_s=2.0)
        sink(virtual.clock(), ANSWER)
        return Reply(200, "text/event-stream", b"")

    plan = changed(MIDDLE, users=4, retry_busy=True, duration_s=60.0, warmup_calls=2)
    outcome = replay(plan, MAIN, stream)
    course = Course(plan, MAIN, outcome.records, outcome.ending)
    assert course.ending.reason == "duration"
    assert set(tries.values()) == {1, 3}
    the_next_calls_follow(course)
    nothing_is_sent_too_early(course)
    assert course.summary.metrics["busy"]["refusals"] == 0  # in the window there was none
    assert course.summary.metrics["error_rate"] == 0


def test_sessions_that_cannot_be_read_are_passed_over() -> None:
    """Every second session can't be read: lanes begin with those that can, all in their middle."""
    records: list[Record] = []

    async def draw(index: int) -> Session:
        if index % 2:
            raise TraceError("unreadable")
        return invented()[index]

    async def main() -> Ending:
        plan = changed(MIDDLE, users=8, duration_s=60.0)
        answers = oracle(invented())
        return await Replay(plan, 80, draw, DIALECT, answers, virtual.clock, records.append).run()

    ending = virtual.run(main)
    assert ending.reason == "duration"
    assert all(record.request.index % 2 == 0 for record in records)
    assert {r.request.lane for r in records if r.request.warmup} == set(range(8))
    summary = summarize(records, changed(MIDDLE, users=8, duration_s=60.0), ending)
    assert summary.metrics["concurrency"]["lanes_mean"] == pytest.approx(8)


@pytest.mark.parametrize("timing", ["think", "recorded", "none"])
@pytest.mark.parametrize("order", ["causal", "recorded", "serial"])
def test_sessions_of_one_call_or_one_instant(timing: str, order: str) -> None:
    """Sessions of one call, of calls at one instant, or with all their last calls at one: whole."""
    trace = [
        Session(name, None, link(calls, 64), 64, "")
        for name, calls in {
            "one": [call(0, 1)],
            "together": [call(0, 1, agent=str(n)) for n in range(6)],
            "at last": [call(0, 1), *(call(50, 51, agent=str(n)) for n in range(6))],
        }.items()
    ]
    for calls in (0, 1, 3, 10):
        plan = changed(
            MIDDLE,
            users=3,
            sessions=6,
            duration_s=None,
            timing=timing,  # type: ignore[arg-type]
            order=order,  # type: ignore[arg-type]
            warmup_calls=calls,
        )
        course = run(plan, trace)
        assert course.ending.reason == "work"
        nothing_is_sent_too_early(course)
        primers_are_in_order(course)
        for (lane, visit), play in course.plays.items():
            asked = range(len(course.sessions[play[0].request.index].calls))
            left = asked[course.opened[lane].begun :] if visit == 0 else asked
            assert {r.request.call for r in play} >= set(left)
