"""The scheduler, in virtual time: what is sent, when, and when it stops."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import anyio
import httpx
import orjson
import pytest
from shared_data import needs_shared, weka_sessions
from virtually import ANSWER, DIALECT, Outcome, call, chain, oracle, replay

from agentreplay.client.stream import Reply, Sink, Stream
from agentreplay.metrics.record import Record, Request
from agentreplay.metrics.window import Ending
from agentreplay.plan import Plan
from agentreplay.replay import Replay, Turns
from agentreplay.sim import virtual
from agentreplay.trace.load import load
from agentreplay.trace.model import Session
from agentreplay.trace.structure import link, recorded_order
from agentreplay.wire import chat

EXCEPTIONS = {"trace_0274", "trace_0282"}
"""Sessions that in causal order, with slow answers, have one call more in flight than recorded:
their main agent went on while subagents that it had not started since were still at work."""

FOREVER = Plan(users=1, duration_s=None, sessions=1, max_gap_s=None)


@functools.cache
def bundled() -> list[Session]:
    """The sessions in traces/."""
    return list(load(Path(__file__).parents[1] / "traces").readable())


def in_flight(spans: list[tuple[float, float]]) -> int:
    """The most spans that overlap at one instant; one that ends makes room for one that starts."""
    edges = sorted([(start, 1) for start, _ in spans] + [(stop, -1) for _, stop in spans])
    most = now = 0
    for _, step in sorted(edges, key=lambda edge: (edge[0], edge[1])):
        now += step
        most = max(most, now)
    return most


def starts_as_recorded(sessions: Sequence[Session], within_s: float) -> None:
    for session in sessions:
        outcome = replay(FOREVER, [session], oracle([session]))
        assert len(outcome.records) == len(session.calls)
        for record in outcome.records:
            recorded_s = session.calls[record.request.call].start_s
            assert record.sent_ns / 1e9 == pytest.approx(recorded_s, abs=within_s), session.id


def stretched(sessions: Sequence[Session], plan: Plan, factor: float) -> set[str]:
    """The sessions with more calls in flight than recorded when each call takes longer."""
    more = set()
    for session in sessions:
        records = replay(plan, [session], oracle([session], factor)).records
        assert len(records) == len(session.calls)
        spans = [(record.sent_ns / 1e9, record.done_ns / 1e9) for record in records]
        recorded = [(call.start_s, call.end_s) for call in session.calls]
        if in_flight(spans) > in_flight(recorded):
            more.add(session.id)
        done = {record.request.call: record.done_ns for record in records}
        for record in records:
            for before in session.calls[record.request.call].after:
                assert done[before] <= record.sent_ns
    return more


def test_bundled_sessions_start_every_call_as_recorded() -> None:
    """Identity: when each call takes its recorded time, each starts at its recorded time."""
    starts_as_recorded(bundled(), within_s=0.001)


@needs_shared
def test_recorded_sessions_start_every_call_as_recorded() -> None:
    """Identity holds over real sessions to the second of their stamps."""
    starts_as_recorded(weka_sessions(), within_s=1.0)


@pytest.mark.parametrize("factor", [3, 10])
def test_slow_answers_never_add_calls_in_flight_to_bundled_sessions(factor: int) -> None:
    """Stretch: with slower answers no session has more calls in flight than recorded."""
    assert stretched(bundled(), FOREVER, factor) == set()


@needs_shared
@pytest.mark.parametrize("factor", [3, 10])
def test_slow_answers_never_add_calls_in_flight_to_recorded_sessions(factor: int) -> None:
    """Stretch holds over real sessions but for the two named ones."""
    assert stretched(weka_sessions(), FOREVER, factor) <= EXCEPTIONS


def answered_at_once(sessions: Sequence[Session]) -> Stream:
    """Answers each call after its recorded duration, those of the warm-up at once."""
    recorded = oracle(sessions)

    async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
        if not request.warmup:
            return await recorded(request, body, sink)
        sink(virtual.clock(), ANSWER)
        return Reply(200, "text/event-stream", b"")

    return stream


def test_what_the_last_answer_of_a_warmup_frees_is_sent_once() -> None:
    """A warm-up that ends at the moment of handing over frees its followers, each once."""
    sessions, plan = [chain(0, 3)], changed(FOREVER, warmup_calls=1)
    records = replay(plan, sessions, answered_at_once(sessions)).records
    assert [(record.request.call, record.request.warmup) for record in records] == [
        (0, True), (1, False), (2, False),
    ]  # fmt: skip


def test_a_lane_without_requests_has_no_warmup() -> None:
    """Where there are more users than requests, nobody waits for the warm-up of the rest."""
    sessions, plan = [chain(0, 3)], changed(FOREVER, users=2, sessions=None, requests=1)
    records = replay(changed(plan, warmup_calls=1), sessions, answered_at_once(sessions)).records
    assert [(record.request.lane, record.request.warmup) for record in records] == [
        (0, True), (0, False),
    ]  # fmt: skip


def test_the_loop_comes_round_between_two_bodies() -> None:
    """However many bodies are due together, none is made in the same round as another."""
    rounds = made = 0

    def came_round() -> None:
        nonlocal rounds
        rounds += 1

    def body(model: str, messages: Sequence[bytes], fields: Mapping[str, Any]) -> bytes:
        nonlocal made
        assert rounds == made
        made += 1
        asyncio.get_running_loop().call_soon(came_round)
        return chat.body(model, messages, fields)

    sessions = [chain(n, 2, gap_s=1.0) for n in range(20)]
    dialect = changed(DIALECT, api=changed(chat.API, body=body))
    records = replay(
        changed(FOREVER, users=20, sessions=20), sessions, oracle(sessions), dialect=dialect
    )
    assert len(records.records) == made == 40


def test_what_is_due_first_has_its_turn_first() -> None:
    """One turn at a time, in order of what is due; who gives up waiting holds up nobody."""
    taken: list[int] = []

    async def take(turns: Turns, due_ns: int) -> None:
        await turns.take(due_ns)
        taken.append(due_ns)
        await anyio.sleep(1)
        turns.end()

    async def main() -> None:
        turns = Turns()
        async with anyio.create_task_group() as group:
            group.start_soon(take, turns, 50)
            await anyio.sleep(0.1)
            with anyio.move_on_after(0.5) as cut:
                for due_ns in (40, 10, 30, 20):
                    group.start_soon(take, turns, due_ns)
                await take(turns, 5)
            assert cut.cancelled_caught
        assert taken == [50, 10, 20, 30, 40]
        await turns.take(60)

    virtual.run(main)


@needs_shared
def test_recorded_order_has_no_exceptions() -> None:
    """In recorded order nothing overtakes, so no session exceeds its recorded concurrency."""
    sessions = [recorded_order(session) for session in weka_sessions()]
    assert stretched(sessions, changed(FOREVER, order="recorded"), 10) == set()


def test_no_request_is_sent_before_it_is_due() -> None:
    """Lag is never negative, and zero where nothing holds the scheduler up."""
    sessions = [chain(n, 9, gap_s=0.1234567 + n / 7) for n in range(4)]
    outcome = replay(Plan(users=4, duration_s=30), sessions, oracle(sessions))
    assert {record.sent_ns - record.request.due_ns for record in outcome.records} == {0}


def test_a_call_waits_its_gap_after_the_live_end() -> None:
    """End at 10 s instead of 1 s: the recorded gap of 2 s counts from the live end."""
    session = chain(0, 2)
    outcome = replay(FOREVER, [session], oracle([session], 10))
    assert [record.sent_ns / 1e9 for record in outcome.records] == [0, 12]


def test_long_gaps_are_cut_and_counted() -> None:
    """A gap of 30 s under a limit of 5 s is waited 5 s, and 25 s are noted as cut."""
    session = chain(0, 2, gap_s=30)
    outcome = replay(changed(FOREVER, max_gap_s=5.0), [session], oracle([session]))
    assert [record.sent_ns / 1e9 for record in outcome.records] == [0, 6]
    assert [record.request.gap_cut_s for record in outcome.records] == [0, 25]


def test_speed_scales_gaps_and_not_answers() -> None:
    """At speed 2 gaps of 2 s become 1 s while answers still take 1 s."""
    session = chain(0, 4)
    outcome = replay(changed(FOREVER, speed=2.0), [session], oracle([session]))
    assert [record.sent_ns / 1e9 for record in outcome.records] == [0, 2, 4, 6]


def test_timing_none_sends_at_once() -> None:
    """Without gaps each call follows the end of the one before."""
    session = chain(0, 4)
    outcome = replay(changed(FOREVER, timing="none"), [session], oracle([session]))
    assert [record.sent_ns / 1e9 for record in outcome.records] == [0, 1, 2, 3]


def test_timing_recorded_keeps_the_recorded_offsets() -> None:
    """A slow answer delays only what waits for it, until the recorded offsets are reached again."""
    session = chain(0, 4)
    outcome = replay(changed(FOREVER, timing="recorded"), [session], oracle([session], 3.5))
    assert [record.sent_ns / 1e9 for record in outcome.records] == [0, 3.5, 7, 10.5]
    faster = replay(
        changed(FOREVER, timing="recorded", speed=2.0), [session], oracle([session], 0.1)
    )
    assert [record.sent_ns / 1e9 for record in faster.records] == [0, 1.5, 3, 4.5]


def test_arrivals_start_each_session_at_its_own_time() -> None:
    """In an open loop a session begins when it arrived, however slow the others are."""
    sessions = [changed(chain(n, 2), start_s=5.0 * n) for n in range(3)]
    plan = Plan(users=3, duration_s=None, sessions=3, timing="recorded", arrivals=True)
    outcome = replay(plan, sessions, oracle(sessions, 20))
    first = {r.request.session: r.sent_ns / 1e9 for r in outcome.records if r.request.call == 0}
    assert first == {"chain-0": 0, "chain-1": 5, "chain-2": 10}


def test_nothing_is_sent_after_the_end() -> None:
    """The last request leaves before the duration is over; the window closes with it."""
    sessions = [chain(n, 50) for n in range(4)]
    outcome = replay(Plan(users=4, duration_s=20), sessions, oracle(sessions))
    assert max(record.sent_ns for record in outcome.records) < 20e9
    assert outcome.ending.reason == "duration"
    assert outcome.ending.closed_ns == 20e9


def test_a_late_loop_sends_nothing_after_the_end() -> None:
    """When the clock runs ahead of the loop's timers, the end is still the clock's."""
    session = chain(0, 9, gap_s=1.0)
    records: list[Record] = []

    async def draw(index: int) -> Session:
        return session

    def ahead() -> int:
        return virtual.clock() + 400_000_000 * (virtual.clock() > 7e9)

    async def main() -> Ending:
        plan = Plan(users=1, duration_s=8.2)
        run = Replay(plan, 1, draw, DIALECT, oracle([session]), ahead, records.append)
        return await run.run()

    ending = virtual.run(main)
    assert max(record.sent_ns for record in records) < 8.2e9
    assert ending.closed_ns == 8.2e9


def test_answers_in_flight_at_the_end_may_finish() -> None:
    """What was sent before the end is drained and counts as a success."""
    session = chain(0, 2, takes_s=15)
    outcome = replay(Plan(users=1, duration_s=10, drain_s=30), [session], oracle([session]))
    assert [record.error for record in outcome.records] == [None]
    assert outcome.ending.done_ns == 15e9


def test_what_does_not_finish_in_time_is_cancelled() -> None:
    """What is in flight at the drain limit is cut and recorded as cancelled."""
    session = chain(0, 2, takes_s=100)
    outcome = replay(Plan(users=1, duration_s=10, drain_s=5), [session], oracle([session]))
    (record,) = outcome.records
    assert record.error is not None
    assert record.error.kind == "cancelled"
    assert record.done_ns == 15e9


@pytest.mark.parametrize("requests", [1, 7, 10, 23])
def test_requests_are_dealt_exactly(requests: int) -> None:
    """With a limit of N requests exactly N are sent."""
    sessions = [chain(n, 5) for n in range(3)]
    plan = Plan(users=4, duration_s=None, requests=requests)
    outcome = replay(plan, sessions, oracle(sessions))
    assert len(outcome.records) == requests
    assert outcome.ending.reason == "work"


def test_a_spent_budget_ends_the_waiting() -> None:
    """Once the last request is sent, nobody waits for gaps that lead to none."""
    session = Session(
        "s", None, link([call(0, 1), call(2, 3), call(1000, 1001, agent="late")], 64), 64, ""
    )
    plan = Plan(users=1, duration_s=None, requests=2, max_gap_s=None)
    outcome = replay(plan, [session], oracle([session]))
    assert len(outcome.records) == 2
    assert outcome.ending.done_ns == 3e9


@pytest.mark.parametrize("sessions", [1, 3, 8, 13])
def test_sessions_are_dealt_exactly(sessions: int) -> None:
    """With a limit of N sessions exactly N plays are made, all of them whole."""
    trace = [chain(n, 3) for n in range(5)]
    outcome = replay(Plan(users=4, duration_s=None, sessions=sessions), trace, oracle(trace))
    plays = Counter((r.request.lane, r.request.visit) for r in outcome.records)
    assert len(plays) == sessions
    assert set(plays.values()) == {3}


def test_the_window_closes_when_a_lane_runs_out_of_work() -> None:
    """Two lanes with sessions of 3 s and 30 s: the window is the first 3 s."""
    trace = [chain(0, 1, takes_s=3), chain(1, 1, takes_s=30)]
    outcome = replay(Plan(users=2, duration_s=None, sessions=2), trace, oracle(trace))
    assert outcome.ending.closed_ns == 3e9 + 1
    assert outcome.ending.done_ns == 30e9


def test_lanes_start_spread_over_the_ramp() -> None:
    """Four lanes over a ramp of 8 s start 2 s apart."""
    trace = [chain(n, 1) for n in range(4)]
    plan = Plan(users=4, duration_s=None, sessions=4, ramp_s=8)
    outcome = replay(plan, trace, oracle(trace))
    assert sorted(record.sent_ns / 1e9 for record in outcome.records) == [0, 2, 4, 6]


def test_the_same_plan_gives_the_same_run() -> None:
    """Two runs of one plan make equal records, stamps included."""
    sessions = bundled()
    plan = Plan(users=5, duration_s=300)
    first = replay(plan, sessions, oracle(sessions))
    assert replay(plan, sessions, oracle(sessions)) == first


def test_what_waits_is_woken_in_order() -> None:
    """So they do where all that waits is woken at once and only some of it may still be sent."""
    sessions = bundled()[:2]
    plan = Plan(users=9, requests=23, timing="recorded", order="recorded", max_idle_s=0.0)
    plan = changed(plan, start=(0.5, 0.5), warmup_calls=20)
    first, *others = (replay(plan, sessions, answered_at_once(sessions)) for _ in range(8))
    assert others == [first] * 7


def test_plays_of_one_session_share_its_system_prompt_only() -> None:
    """The second play's first prompt repeats the system message and nothing else."""
    session = Session("s", None, link([call(0, 1, isl=1280, system=640)], 64), 64, "")
    bodies: list[list[str]] = []

    async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
        bodies.append([message["content"] for message in orjson.loads(body)["messages"]])
        sink(virtual.clock(), ANSWER)
        return Reply(200, "text/event-stream", b"")

    outcome = replay(Plan(users=2, duration_s=None, sessions=2), [session], stream)
    (system, user), (other_system, other_user) = bodies
    assert system == other_system
    assert user.split()[:3] != other_user.split()[:3]
    assert [record.request.reuse for record in outcome.records] == [0, 640]


def failing(after: int) -> tuple[list[int], object]:
    """A stream that fails from its *after*-th request on."""
    sent: list[int] = []

    async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
        sent.append(virtual.clock())
        await anyio.sleep(0.5)
        if len(sent) > after:
            raise httpx.ReadError("connection lost")
        sink(virtual.clock(), ANSWER)
        return Reply(200, "text/event-stream", b"")

    return sent, stream


def run_failing(after: int, plan: Plan, trace: list[Session]) -> tuple[list[int], Outcome]:
    sent, stream = failing(after)
    return sent, replay(plan, trace, stream)  # type: ignore[arg-type]


def test_a_failed_call_ends_its_session() -> None:
    """After a failure nothing more of the session is sent."""
    _, outcome = run_failing(2, FOREVER, [chain(0, 9)])
    assert [record.error is None for record in outcome.records] == [True, True, False]


def test_a_failed_call_can_be_passed_over() -> None:
    """With on_error continue the session goes on to its end."""
    plan = changed(FOREVER, on_error="continue")
    _, outcome = run_failing(2, plan, [chain(0, 5)])
    assert [record.error is None for record in outcome.records] == [
        True, True, False, False, False,
    ]  # fmt: skip


def test_a_failed_call_can_stop_the_run() -> None:
    """With on_error stop nothing is sent after the first failure; what is in flight ends."""
    plan = Plan(users=4, duration_s=600, on_error="stop")
    _, outcome = run_failing(6, plan, [chain(n, 9) for n in range(4)])
    assert outcome.ending.reason == "failed"
    first = min(r.done_ns for r in outcome.records if r.error is not None)
    assert max(record.sent_ns for record in outcome.records) <= first


def test_a_refused_key_ends_the_run_at_once() -> None:
    """401 is no matter of patience: after the first, nothing more is sent."""
    sent = 0

    async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
        nonlocal sent
        sent += 1
        await anyio.sleep(0.1)
        return Reply(401, "application/json", b'{"error":"Unauthorized"}')

    outcome = replay(Plan(users=3, duration_s=600), [chain(n, 9) for n in range(3)], stream)
    assert outcome.ending.reason == "gave_up"
    assert sent == 3


def test_a_failing_lane_waits_longer_each_time() -> None:
    """After k failures in a row a lane waits min(2^(k−1), 30) s before the next session."""
    sent, _ = run_failing(1, Plan(users=1, duration_s=100, timing="none"), [chain(0, 1)])
    pauses = [(later - earlier) / 1e9 - 0.5 for earlier, later in itertools.pairwise(sent)]
    assert pauses == [0, 1, 2, 4, 8, 16, 30, 30]


def test_a_run_that_brings_nothing_is_given_up_after_twenty_calls() -> None:
    """Twenty failures without a success end the run, whatever its duration."""
    trace = [chain(n, 3) for n in range(40)]
    _, outcome = run_failing(0, Plan(users=40, duration_s=3600), trace)
    assert outcome.ending.reason == "gave_up"
    assert outcome.ending.done_ns <= 2e9


def test_a_run_that_brings_nothing_is_given_up_after_ten_seconds() -> None:
    """One user whose calls all fail: the run ends at 10 s."""
    _, outcome = run_failing(0, Plan(users=1, duration_s=3600), [chain(0, 3)])
    assert outcome.ending.reason == "gave_up"
    assert outcome.ending.done_ns == 10e9


def test_a_slow_start_is_no_failure() -> None:
    """A server that needs a minute for its first answers is waited for."""
    trace = [chain(0, 2, takes_s=60)]
    outcome = replay(Plan(users=1, duration_s=None, sessions=1), trace, oracle(trace))
    assert [record.error for record in outcome.records] == [None, None]


def stalling(first_s: float, gaps_s: list[float]) -> Stream:
    """A stream with its first token after *first_s* and further ones after the gaps."""
    token = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'

    async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
        for gap_s in (first_s, *gaps_s):
            await anyio.sleep(gap_s)
            sink(virtual.clock(), token)
        sink(virtual.clock(), ANSWER)
        return Reply(200, "text/event-stream", b"")

    return stream


@pytest.mark.parametrize(
    ("first_s", "gaps_s", "failed_at_s"),
    [
        (30, [], 20.0),
        (19, [4, 4, 4, 4], None),
        (19, [4, 6], 28.0),
        (1, [], None),
    ],
)
def test_tokens_that_stay_away_fail_the_request_in_time(
    first_s: float, gaps_s: list[float], failed_at_s: float | None
) -> None:
    """At most 20 s to the first token and 5 s to each other: whoever exceeds it has failed then."""
    plan = changed(FOREVER, first_token_s=20.0, next_token_s=5.0)
    (record,) = replay(plan, [chain(0, 1)], stalling(first_s, gaps_s)).records
    if failed_at_s is None:
        assert record.error is None
    else:
        assert record.error is not None
        assert record.error.kind == "timeout"
        assert record.done_ns == failed_at_s * 1e9


def test_without_limits_a_server_is_waited_for() -> None:
    """By default a first token may take an hour."""
    (record,) = replay(FOREVER, [chain(0, 1)], stalling(3600, [1000])).records
    assert record.error is None


def test_the_next_token_is_limited_without_a_limit_on_the_first() -> None:
    """Only the wait between tokens is limited: it is noticed within a second of its end."""
    plan = changed(FOREVER, next_token_s=5.0)
    (record,) = replay(plan, [chain(0, 1)], stalling(100, [60])).records
    assert record.error is not None
    assert 105e9 <= record.done_ns <= 106e9


def test_stopping_sends_nothing_more_and_drains() -> None:
    """After a stop nothing is sent, waits end at once, and answers have the time given."""
    trace = [chain(n, 50, takes_s=3, gap_s=1) for n in range(3)]

    async def stop(run: Replay) -> None:
        await anyio.sleep(9.5)
        run.stop("interrupted", 2.0)

    outcome = replay(Plan(users=3, duration_s=None), trace, oracle(trace), beside=stop)
    assert outcome.ending.reason == "interrupted"
    assert outcome.ending.closed_ns == 9.5e9
    assert outcome.ending.done_ns == 11e9
    assert max(record.sent_ns for record in outcome.records) <= 9.5e9
    assert all(record.error is None for record in outcome.records)


def test_a_second_stop_cuts_what_is_in_flight() -> None:
    """A stop without time to drain cancels at once."""
    trace = [chain(0, 5, takes_s=30)]

    async def stop(run: Replay) -> None:
        await anyio.sleep(5)
        run.stop("interrupted", 20.0)
        await anyio.sleep(1)
        run.stop("interrupted", 0.0)

    outcome = replay(Plan(users=1, duration_s=None), trace, oracle(trace), beside=stop)
    (record,) = outcome.records
    assert record.error is not None
    assert record.error.kind == "cancelled"
    assert outcome.ending.done_ns == 6e9


async def at_once(request: Request, body: bytes, sink: Sink) -> Reply:
    """A server that answers in no time."""
    sink(virtual.clock(), ANSWER)
    return Reply(200, "text/event-stream", b"")


@pytest.mark.parametrize("start", [None, (0.5, 0.5)])
def test_a_warm_up_may_be_answered_at_once(start: tuple[float, float] | None) -> None:
    """Whether it begins at the start or in the middle: every call is sent once, those of the
    warm-up with one token, and the answer to the last one frees the next."""
    plan = changed(FOREVER, users=2, sessions=2, start=start, warmup_calls=2)
    outcome = replay(plan, [chain(0, 9), chain(1, 9)], at_once)
    begun = 0 if start is None else 3  # the primer is call 3, of those that are done the last
    calls = [(each, i) for each in (0, 1) for i in range(begun, 9)]
    sent = [(record.request.lane, record.request.call) for record in outcome.records]
    assert sorted(sent) == calls
    warm = sum(record.request.warmup for record in outcome.records)
    assert warm == 2 * (2 + (start is not None))
    assert outcome.ending.opened_ns == max(
        record.sent_ns for record in outcome.records if record.request.warmup
    )


def test_recorded_times_go_on_from_the_middle() -> None:
    """With recorded times calls from the middle on are as far apart as in the recording."""
    plan = changed(FOREVER, timing="recorded", start=(0.5, 0.5))
    session = chain(0, 9)
    records = replay(plan, [session], at_once).records
    measured = [record for record in records if not record.request.warmup]
    offsets = [record.sent_ns / 1e9 - session.calls[record.request.call].start_s
               for record in measured]  # fmt: skip
    assert len(measured) == 5
    assert offsets == pytest.approx([offsets[0]] * 5)
