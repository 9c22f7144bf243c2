"""Rules of one play of a session: what is free, when it is due, what it says and finds cached."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from test_messages import held_bytes

from agentreplay.client.endpoint import APIS
from agentreplay.metrics.record import Request
from agentreplay.opening import Opening
from agentreplay.plan import History, Order, Plan, Timing, Visit
from agentreplay.play import Dialect, Play
from agentreplay.prompt.messages import Form, Template
from agentreplay.trace.model import Call, Session
from agentreplay.trace.prefix import Sent
from agentreplay.wire.api import Api

S = 1_000_000_000
START = 100 * S

PLAIN = Dialect("m", Template(), {})


def call(
    start_s: float = 0.0,
    end_s: float = 1.0,
    after: tuple[int, ...] = (),
    gap_s: float = 0.0,
    *,
    isl: int = 640,
    osl: int = 100,
    parent: int | None = None,
    shared: int = 0,
    system: int = 0,
    agent: str = "",
    timed: bool = True,
) -> Call:
    """A recorded call."""
    return Call(
        start_s, end_s, timed, isl, osl, after, gap_s, parent, shared, system, agent, None, None
    )


def play_of(
    calls: Sequence[Call],
    plan: Plan | None = None,
    visit: Visit | None = None,
    dialect: Dialect = PLAIN,
    sent: Sent | None = None,
) -> Play:
    """A play of a session of *calls* that begins at `START`."""
    session = Session("s", None, tuple(calls), 64, "made by hand")
    play = Play(plan or Plan(), visit or Visit(0, 0, 0, 0), session, dialect, sent)
    play.begin(START)
    return play


def parsed(play: Play, i: int) -> dict[str, Any]:
    """The body of a call."""
    body = json.loads(play.body(i))
    assert isinstance(body, dict)
    return body


def text(play: Play, i: int) -> str:
    """All words of a call's prompt."""
    return " ".join(message["content"] for message in parsed(play, i)["messages"])


def reuses(play: Play, order: Sequence[int]) -> list[int]:
    """The reuse of each call, sent in *order*."""
    found = []
    for i in order:
        play.body(i)
        play.waiting.setdefault(i, START)
        found.append(play.request(i).reuse)
    return found


FAN = [
    call(0, 1),
    call(2, 3, (0,), 1.0),
    call(2, 5, (0,), 1.0),
    call(6, 7, (1, 2), 1.0),
    call(0, 9),
]


def test_free_at_first() -> None:
    """Calls that wait for nothing are free from the beginning."""
    assert sorted(play_of(FAN).waiting) == [0, 4]


@pytest.mark.parametrize(
    ("ends", "freed"),
    [
        ([0, 1, 2, 3, 4], [[1, 2], [], [3], [], []]),
        ([4, 0, 2, 1, 3], [[], [1, 2], [], [3], []]),
    ],
)
def test_freeing(ends: list[int], freed: list[list[int]]) -> None:
    """A call becomes free by the end of the last of those it waits for, and only once."""
    play = play_of(FAN)
    assert [play.end(i, START + n) for n, i in enumerate(ends)] == freed


@pytest.mark.parametrize(
    ("plan", "due_s"),
    [
        (Plan(timing="think", max_gap_s=None), [3.0, 10.0, 50.0]),
        (Plan(timing="think", max_gap_s=None, speed=2.0), [1.5, 8.5, 30.0]),
        (Plan(timing="think", max_gap_s=10.0), [3.0, 10.0, 20.0]),
        (Plan(timing="think", max_gap_s=10.0, speed=2.0), [1.5, 8.5, 20.0]),
        (Plan(timing="think", max_gap_s=10.0, speed=0.5), [6.0, 13.0, 20.0]),
        (Plan(timing="recorded"), [3.0, 7.0, 47.0]),
        (Plan(timing="recorded", speed=2.0), [1.5, 7.0, 23.5]),
        (Plan(timing="recorded", speed=10.0), [0.3, 7.0, 10.0]),
        (Plan(timing="recorded", max_gap_s=1.0), [3.0, 7.0, 47.0]),
        (Plan(timing="none"), [0.0, 7.0, 10.0]),
        (Plan(timing="none", speed=2.0, max_gap_s=1.0), [0.0, 7.0, 10.0]),
    ],
)
def test_due(plan: Plan, due_s: list[float]) -> None:
    """A call is due a gap after the live ends of all it waits for, as the plan takes gaps."""
    calls = [call(3, 4, (), 3.0), call(7, 7, (0,), 3.0), call(47, 48, (0, 1), 40.0)]
    play = play_of(calls, plan)
    due = [play.waiting[0]]
    play.end(0, START + 7 * S)
    due.append(play.waiting[1])
    play.end(1, START + 10 * S)
    due.append(play.waiting[2])
    assert [(at_ns - START) / S for at_ns in due] == pytest.approx(due_s)


def test_join_is_due_after_the_latest_end() -> None:
    """A call that joins others is due after the latest of their ends, whichever that is."""
    play = play_of(FAN, Plan(timing="think"))
    for i, at_s in ((0, 1), (2, 30), (1, 20)):
        play.end(i, START + at_s * S)
    assert play.waiting[3] == START + 31 * S


def test_slow_server_delays_recorded_times() -> None:
    """With recorded times nothing is sent before what it waits for has ended."""
    play = play_of(FAN, Plan(timing="recorded"))
    play.end(0, START + 90 * S)
    assert play.waiting[1] == START + 90 * S
    assert play.waiting[4] == START


@pytest.mark.parametrize(
    ("plan", "cut_s"),
    [
        (Plan(timing="think", max_gap_s=10.0), 30.0),
        (Plan(timing="think", max_gap_s=10.0, speed=2.0), 10.0),
        (Plan(timing="think", max_gap_s=10.0, speed=4.0), 0.0),
        (Plan(timing="think", max_gap_s=None), 0.0),
        (Plan(timing="recorded", max_gap_s=10.0), 0.0),
        (Plan(timing="none", max_gap_s=10.0), 0.0),
    ],
)
def test_gap_cut(plan: Plan, cut_s: float) -> None:
    """A request tells by how much the wait before it was cut by the plan's longest gap."""
    play = play_of([call(40, 41, (), 40.0)], plan)
    play.body(0)
    assert play.request(0).gap_cut_s == pytest.approx(cut_s)


CHAINS = [
    call(0, 1, isl=640),
    call(0.1, 0.5, isl=640, agent="other"),
    call(3, 4, (0,), 2.0, isl=1280, parent=0, shared=640),
]


@pytest.mark.parametrize(
    ("order", "freed", "due_s"), [("causal", [2], 12.0), ("recorded", [], 22.0)]
)
def test_order(order: Order, freed: list[int], due_s: float) -> None:
    """In recorded order a call also waits for other chains that had ended when it began."""
    play = play_of(CHAINS, Plan(order=order))
    assert play.end(0, START + 10 * S) == freed
    assert play.end(1, START + 20 * S) == [2][len(freed) :]
    assert play.waiting[2] == START + round(due_s * S)


GROWING = [
    call(isl=640, system=256),
    call(isl=1280, parent=0, shared=640, system=256),
    call(isl=1300, parent=1, shared=1280, system=256),
    call(isl=640, parent=2, shared=128, system=128, agent="sub"),
]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ([0, 1, 2, 3], [0, 640, 1280, 128]),
        ([0, 3, 1, 2], [0, 128, 640, 1280]),
        ([1, 0, 2], [0, 640, 1280]),
        ([3, 0, 1], [0, 128, 640]),
    ],
)
def test_own_reuse(order: list[int], expected: list[int]) -> None:
    """What a call finds again is what the calls sent before it had in common with it."""
    assert reuses(play_of(GROWING), order) == expected


def test_reuse_between_plays() -> None:
    """A later play finds the system blocks of an earlier one, and only those."""
    sent = Sent(Plan())
    reuses(play_of(GROWING, sent=sent), [0, 1, 2, 3])
    second = play_of(GROWING, visit=Visit(1, 0, 0, 1), sent=sent)
    assert reuses(second, [0, 1, 2, 3]) == [256, 640, 1280, 128]


def test_reuse_between_plays_follows_the_sending() -> None:
    """Of two plays that run at once, each finds what the other has sent by then."""
    sent = Sent(Plan())
    first = play_of(GROWING, sent=sent)
    second = play_of(GROWING, visit=Visit(1, 0, 0, 1), sent=sent)
    assert reuses(second, [3]) == [0]
    assert reuses(first, [0]) == [128]
    assert reuses(second, [0]) == [256]
    assert reuses(first, [3]) == [128]


def test_reuse_is_of_whole_blocks() -> None:
    """A system prompt that ends within a block is shared up to that block."""
    calls = [call(isl=640, system=300)]
    sent = Sent(Plan())
    reuses(play_of(calls, sent=sent), [0])
    assert reuses(play_of(calls, visit=Visit(1, 0, 0, 1), sent=sent), [0]) == [256]


@pytest.mark.parametrize(("osl", "max_tokens"), [(0, 1), (1, 1), (2, 2), (5000, 5000)])
def test_recorded_output_is_asked_for(osl: int, max_tokens: int) -> None:
    """As many tokens are asked for as were recorded, and one where none were."""
    play = play_of([call(osl=osl)])
    assert parsed(play, 0)["max_tokens"] == max_tokens
    assert play.request(0).osl == osl


def test_body() -> None:
    """A body is a streaming request to the model, with the fields of the dialect."""
    fields = {"ignore_eos": True, "stream_options": {"include_usage": True}}
    body = parsed(play_of([call(isl=640, system=256)], dialect=Dialect("m", Template(), fields)), 0)
    messages = body.pop("messages")
    assert [message["role"] for message in messages] == ["system", "user"]
    assert sum(len(message["content"].split()) for message in messages) == 640
    assert body == {"model": "m", "stream": True, "max_tokens": 100, **fields}


def test_fields_override() -> None:
    """Fields of the dialect stand before what would be sent otherwise."""
    dialect = Dialect("m", Template(), {"max_tokens": 7, "temperature": 0})
    body = parsed(play_of([call()], dialect=dialect), 0)
    assert body["max_tokens"] == 7
    assert body["temperature"] == 0


def test_request() -> None:
    """A request holds what was recorded of its call, and who sends it when."""
    calls = [*GROWING[:1], call(2, 5, (0,), 1.0, isl=1280, osl=0, parent=0, shared=640, agent="a")]
    play = play_of(calls, visit=Visit(lane=3, number=4, session=0, place=11))
    reuses(play, [0])
    play.end(0, START + 7 * S)
    play.body(1)
    request = play.request(1)
    assert (request.lane, request.visit, request.session) == (3, 4, "s")
    assert (request.call, request.calls, request.agent) == (1, 2, "a")
    assert request.due_ns == START + 8 * S
    assert (request.isl, request.osl, request.overlong) == (1280, 0, 0)
    assert (request.block, request.shared, request.reuse) == (64, 640, 640)
    assert request.recorded_s == 3.0
    assert request.gap_cut_s == 0.0


def test_estimated_duration_is_no_duration() -> None:
    """Where the recording has no end of a call, no recorded duration is stated."""
    play = play_of([call(timed=False)])
    play.body(0)
    assert play.request(0).recorded_s is None


def test_overlong_prompt_is_told() -> None:
    """A prompt too short to pay for the template says by how much."""
    play = play_of([call(isl=5)], dialect=Dialect("m", Template(prompt=8), {}))
    play.body(0)
    assert play.request(0).overlong == 4


@pytest.mark.parametrize(
    ("plan", "visit", "common"),
    [
        (Plan(), Visit(0, 0, 0, 0), 640),
        (Plan(users=3, seed=7), Visit(5, 9, 0, 0), 640),
        (Plan(), Visit(0, 0, 0, 1), 256),
        (Plan(), Visit(0, 0, 1, 1), 0),
        (Plan(salt=1), Visit(0, 0, 0, 0), 0),
    ],
    ids=["same", "other-lane", "other-place", "other-session", "other-salt"],
)
def test_text_of_plays(plan: Plan, visit: Visit, common: int) -> None:
    """Text follows from the salt, the session and the place: plays share the system blocks."""
    calls = [call(isl=640, system=256)]
    one, other = (text(play, 0).split() for play in (play_of(calls), play_of(calls, plan, visit)))
    same = [a == b for a, b in zip(one, other, strict=True)]
    assert all(same[:common])
    assert sum(same[common:]) < 10 or common == 640


def test_calls_of_a_play_share_text() -> None:
    """A continued prompt starts with the whole prompt that it continues."""
    play = play_of(GROWING)
    first, second = text(play, 0), text(play, 1)
    assert second.startswith(first + " ")


# --- Plays that begin with a warm-up --------------------------------------------------------------

# The main agent calls at 0, 20, 40 and 60 s, a subagent at 10 and 30 s; calls 3 and 4 are the next
# of both after 25 s, and call 5 joins the subagent.
MIDDLE = [
    call(0, 5, isl=640),
    call(10, 12, (0,), 5.0, isl=128, agent="sub"),
    call(20, 24, (0,), 15.0, isl=1280, parent=0, shared=640),
    call(30, 32, (1,), 18.0, isl=192, parent=1, shared=128, agent="sub"),
    call(40, 45, (2,), 16.0, isl=1344, parent=2, shared=1280),
    call(60, 65, (4, 3), 15.0, isl=1408, parent=4, shared=1344),
]
UNLIMITED = Plan(max_gap_s=None, start=(0.0, 1.0))


def opened(
    at_s: float,
    begun: int,
    *primers: int,
    warmup: int = 0,
    plan: Plan = UNLIMITED,
    calls: Sequence[Call] = MIDDLE,
    dialect: Dialect = PLAIN,
) -> Play:
    """A play of these calls that begins in the middle."""
    session = Session("s", None, tuple(calls), 64, "made by hand")
    found = Opening(at_s, begun, primers, range(begun, begun + warmup), moved_back=False)
    return Play(plan, Visit(0, 0, 0, 0), session, dialect, opening=found)


def warm(play: Play, i: int, due_ns: int = 0) -> Request:
    """Send a call of the warm-up."""
    play.body(i, warmup=True)
    return play.request(i, due_ns)


def waits_s(play: Play) -> dict[int, float]:
    """What waits for its time, in seconds after `START`."""
    return {i: (at_ns - START) / S for i, at_ns in play.waiting.items()}


def test_calls_before_the_moment_are_not_waited_for() -> None:
    """What is no primer counts as done: who waits for such calls only is free at once."""
    play = opened(25, 3)
    play.begin(START)
    assert waits_s(play) == {3: 5.0, 4: 15.0}


def test_who_waits_for_a_primer_waits_for_its_live_end() -> None:
    """A primer in flight when the play begins is waited for, with the recorded gap after it."""
    play = opened(25, 3, 1, 2)
    assert play.away_s() is None
    warm(play, 1)
    warm(play, 2)
    assert play.end(1, START - 1) == []
    assert play.away_s() == 5.0
    play.end_warmup()
    play.begin(START)
    assert waits_s(play) == {3: 5.0}
    assert play.end(2, START + 7 * S) == [4]
    assert waits_s(play) == {3: 5.0, 4: 23.0}


def test_an_unsent_primer_counts_as_done_when_the_warm_up_ends() -> None:
    """Of two primers one was sent: the other's line goes on as if it had been."""
    play = opened(25, 3, 1, 2)
    warm(play, 1)
    play.end_warmup()
    play.begin(START)
    assert waits_s(play) == {4: 15.0}
    assert play.end(1, START) == [3]


def test_a_warm_up_that_was_sent_is_not_ended_twice() -> None:
    """Ending the warm-up frees nothing that waits for a primer in flight."""
    play = opened(25, 3, 1, 2)
    for i in (1, 2):
        warm(play, i)
    play.end_warmup()
    play.end_warmup()
    play.begin(START)
    assert waits_s(play) == {}


def test_the_play_goes_on_from_its_last_warm_up_call() -> None:
    """After warm-up calls at 30 and 40 s the next call, at 60 s, is 20 s away."""
    play = opened(25, 3, 1, 2, warmup=2)
    for i in (1, 2, 3, 4):
        warm(play, i)
        play.end(i, START - 5)
    assert play.away_s() == 20.0
    play.begin(START)
    assert waits_s(play) == {5: 20.0}


def test_a_call_that_waits_for_the_last_warm_up_call_is_freed_by_its_end() -> None:
    """The last warm-up call is still in flight when the play begins: it is not drained."""
    play = opened(25, 3, 1, 2, warmup=2)
    for i in (1, 2, 3, 4):
        warm(play, i)
    for i in (1, 2, 3):
        play.end(i, START - 5)
    assert play.away_s() is None
    play.begin(START)
    assert waits_s(play) == {}
    assert play.in_flight == 1
    assert play.end(4, START + 2 * S) == [5]
    assert waits_s(play) == {5: 17.0}
    assert play.in_flight == 0


@pytest.mark.parametrize("timing", ["think", "recorded"])
def test_a_play_begins_sooner_than_its_next_call_is_away(timing: Timing) -> None:
    """All that waits is moved alike, so that the next call of all plays is sent at once."""
    play = opened(25, 3, plan=replace(UNLIMITED, timing=timing))
    assert play.away_s() == 5.0
    play.begin(START, 4.0)
    assert waits_s(play) == {3: 1.0, 4: 11.0}
    assert play.end(3, START + 2 * S) == []


def test_recorded_times_count_from_the_moment() -> None:
    """With recorded times also later calls are as far from the beginning as from the moment."""
    play = opened(25, 3, plan=replace(UNLIMITED, timing="recorded", speed=2.0))
    play.begin(START, play.away_s() or 0.0)
    assert waits_s(play) == {3: 0.0, 4: 5.0}
    for i in (3, 4):
        play.body(i)
        assert play.request(i).behind_s == 0.0
        play.end(i, START + 6 * S)
    assert waits_s(play) == {5: 15.0}


@pytest.mark.parametrize(
    ("plan", "away_s", "waiting_s"),
    [
        (Plan(max_gap_s=None, speed=2.0), 2.5, {3: 2.5, 4: 7.5}),
        (Plan(max_gap_s=10.0), 5.0, {3: 5.0, 4: 10.0}),
        (Plan(timing="none"), 0.0, {3: 0.0, 4: 0.0}),
    ],
)
def test_first_calls_are_away_as_the_plan_takes_gaps(
    plan: Plan, away_s: float, waiting_s: dict[int, float]
) -> None:
    """Speed, the longest gap and timing apply to the distance from the moment too."""
    play = opened(25, 3, plan=plan)
    assert play.away_s() == away_s
    play.begin(START)
    assert waits_s(play) == waiting_s


def test_a_first_call_tells_by_how_much_its_distance_was_cut() -> None:
    """Its wait is the distance from the moment, not the recorded gap."""
    play = opened(25, 3, 1, 2, plan=Plan(max_gap_s=10.0))
    for i in (1, 2):
        warm(play, i)
        play.end(i, 0)
    play.begin(START)
    cuts = []
    for i in (3, 4):
        play.body(i)
        cuts.append(play.request(i).gap_cut_s)
        play.end(i, START)
    play.body(5)
    cuts.append(play.request(5).gap_cut_s)
    assert cuts == [0.0, 5.0, 5.0]  # 15 s to 40 s, and a gap of 15 s


def test_warm_up_requests_say_so() -> None:
    """They are due when the warm-up says, nothing of their wait is cut, and they are in flight."""
    play = opened(25, 3, 1, 2, warmup=1, plan=Plan(max_gap_s=1.0))
    sent = [warm(play, i, 7 * S) for i in (1, 2, 3)]
    assert all(each.warmup and each.due_ns == 7 * S and each.gap_cut_s == 0.0 for each in sent)
    assert [(each.isl, each.osl) for each in sent] == [(128, 100), (1280, 100), (192, 100)]
    assert play.in_flight == 3
    for i in (1, 2, 3):
        play.end(i, 0)
    play.begin(START)
    play.body(4)
    assert not play.request(4).warmup


@pytest.mark.parametrize(("sent", "first"), [(0, 3), (1, 4), (2, 5)])
def test_requests_tell_where_the_measured_calls_begin(sent: int, first: int) -> None:
    """After the calls that are done and the warm-up calls that were sent, planned or not."""
    play = opened(25, 3, warmup=2)
    for i in range(3, 3 + sent):
        assert warm(play, i).first == i + 1
        play.end(i, 0)
    play.end_warmup()
    play.begin(START)
    i = min(play.waiting)
    play.body(i)
    assert play.request(i).first == first


def test_warm_up_calls_that_were_not_sent_are_sent_in_full() -> None:
    """Where the warm-up's time was over, its other calls are ordinary ones."""
    play = opened(25, 3, warmup=2)
    warm(play, 3)
    play.end(3, 0)
    play.end_warmup()
    play.begin(START)
    assert waits_s(play) == {4: 10.0}
    assert parsed(play, 4)["max_tokens"] == 100


def test_a_play_without_a_warm_up_begins_with_its_first_call() -> None:
    """Its requests say that no call came before."""
    play = play_of(MIDDLE)
    play.body(0)
    request = play.request(0)
    assert (request.first, request.warmup) == (0, False)


@pytest.mark.parametrize("order", ["causal", "recorded", "serial"])
def test_any_order_goes_on_in_the_middle(order: Order) -> None:
    """From every beginning each remaining call becomes free exactly once, in every order."""
    for begun in range(len(MIDDLE)):
        play = opened(MIDDLE[begun].start_s, begun, plan=replace(UNLIMITED, order=order))
        play.begin(START)
        sent = []
        while play.waiting:
            i = min(play.waiting, key=lambda i: (play.waiting[i], i))
            play.body(i)
            play.request(i)
            play.end(i, START)
            sent.append(i)
        assert sorted(sent) == list(range(begun, len(MIDDLE)))


def test_serial_order_waits_for_the_last_primer() -> None:
    """With one call in flight at a time the next call waits for the one recorded before it."""
    play = opened(25, 3, 1, 2, plan=replace(UNLIMITED, order="serial"))
    for i in (1, 2):
        warm(play, i)
    play.end(1, 0)
    play.begin(START)
    assert waits_s(play) == {}
    assert play.end(2, START) == [3]
    assert waits_s(play) == {3: 6.0}


@pytest.mark.parametrize("min_tokens", [False, True])
@pytest.mark.parametrize(
    ("api", "limit"), [(api, limit) for api in APIS.values() for limit in api.limits]
)
def test_a_warm_up_asks_for_one_token(api: Api, limit: str, min_tokens: bool) -> None:
    """By whatever name the API has for it, and as the least output where that is asked for."""
    form: Form = "text" if api.name == "completions" else "messages"
    dialect = Dialect("m", Template(form=form), {"ignore_eos": True}, api, limit, min_tokens)
    play = opened(25, 3, 1, dialect=dialect)
    fields = json.loads(play.body(1, warmup=True))
    lengths = {name: value for name, value in fields.items() if "tokens" in name}
    assert lengths == {limit: 1} | ({"min_tokens": 1} if min_tokens else {})


def test_a_warm_up_prompt_is_the_calls_own() -> None:
    """Only the output is shorter: who comes after finds the whole prompt."""
    play, whole = opened(25, 3, 1, 2), play_of(MIDDLE)
    for i in (1, 2):
        wanted = parsed(whole, i)
        assert json.loads(play.body(i, warmup=True)) == wanted | {"max_tokens": 1}
    for i in (3, 4, 5):
        assert parsed(play, i) == parsed(whole, i)


def test_what_a_warm_up_sent_is_found() -> None:
    """A call after the moment finds what its line's primer sent; of other calls nothing was."""
    play = opened(25, 3, 2)
    assert warm(play, 2).reuse == 0
    play.end(2, 0)
    play.end_warmup()
    play.begin(START)
    found = []
    for i in (3, 4):
        play.body(i)
        found.append(play.request(i).reuse)
    assert found == [0, 1280]


@pytest.mark.parametrize("history", ["recorded", "live"])
def test_no_text_is_kept_of_a_play_that_is_over(history: History) -> None:
    """From the middle of a session on: neither of what was sent nor of what was done before."""
    play = opened(25, 3, 1, 2, warmup=1, plan=replace(UNLIMITED, history=history))
    for i in (1, 2, 3):
        warm(play, i)
        play.end(i, 0)
    play.begin(START)
    for i in (4, 5):
        play.body(i)
        play.request(i)
        play.end(i, START)
    assert play.waiting == {}
    assert held_bytes(play) == 0


# --- Idle time ------------------------------------------------------------------------------------

APART = [call(0, 1), call(400, 401, (), 400.0), call(420, 421, (), 420.0)]


def idle(timing: Timing = "think", cap_s: float | None = 300.0) -> Play:
    """A play that waits for its calls at 400 and 420 s, one second after the first was sent."""
    play = play_of(APART, Plan(max_gap_s=None, timing=timing, max_tree_idle_s=cap_s))
    play.body(0)
    play.request(0)
    return play


@pytest.mark.parametrize("timing", ["think", "recorded"])
def test_idle_time_of_a_play_is_capped(timing: Timing) -> None:
    """All that waits in it moves forward together, until the next call is no further away."""
    play = idle(timing)
    play.end(0, START + S)
    assert play.cap_idle(START + S)
    assert waits_s(play) == {1: 301.0, 2: 321.0}
    assert play.next_ns() == START + 301 * S
    play.body(1)
    request = play.request(1)
    assert (request.tree_skip_s, request.idle_skip_s) == (99.0, 0.0)
    assert (request.due_ns, request.behind_s) == (START + 301 * S, 0.0)
    play.body(2)
    assert play.request(2).tree_skip_s == 0.0


@pytest.mark.parametrize(
    ("cap_s", "ended", "now_s"),
    [
        pytest.param(None, True, 1, id="no cap"),
        pytest.param(300.0, False, 1, id="in flight"),
        pytest.param(300.0, True, 100, id="just as far away"),
        pytest.param(300.0, True, 399, id="nearly due"),
        pytest.param(300.0, True, 500, id="overdue"),
    ],
)
def test_what_is_near_is_not_moved(cap_s: float | None, ended: bool, now_s: int) -> None:
    """A play in which something is in flight, or whose next call is near, stays as it is."""
    play = idle(cap_s=cap_s)
    if ended:
        play.end(0, START + S)
    assert not play.cap_idle(START + now_s * S)
    assert waits_s(play) == {1: 400.0, 2: 420.0}


def test_a_play_that_has_not_begun_is_not_moved() -> None:
    """Before its beginning nothing of it waits for its time."""
    play = opened(25, 3, plan=replace(UNLIMITED, max_tree_idle_s=1.0))
    assert not play.cap_idle(START)


@pytest.mark.parametrize(("first", "skipped_s"), [(True, 150.0), (False, 0.0)])
def test_idle_time_of_all_is_counted_where_the_next_call_is(first: bool, skipped_s: float) -> None:
    """Every play moves; the skip stands in the record of the one call that is next of all."""
    play = idle()
    play.end(0, START + S)
    play.skip_idle(150 * S, first=first)
    assert waits_s(play) == {1: 250.0, 2: 270.0}
    play.body(1)
    request = play.request(1)
    assert (request.tree_skip_s, request.idle_skip_s) == (0.0, skipped_s)


def test_skips_of_both_kinds_add_up_before_a_call() -> None:
    """What was skipped in several steps is told whole, by its kind."""
    play = idle()
    play.end(0, START + S)
    play.cap_idle(START + S)
    for _ in range(2):
        play.skip_idle(30 * S, first=True)
    play.body(1)
    request = play.request(1)
    assert (request.tree_skip_s, request.idle_skip_s) == (99.0, 60.0)


def test_recorded_times_stay_together_after_a_skip() -> None:
    """With recorded times a call that becomes free after a skip has moved with the others."""
    calls = [call(0, 1), call(400, 401, (), 400.0), call(420, 421, (1,), 19.0)]
    play = play_of(calls, Plan(timing="recorded", max_tree_idle_s=100.0))
    play.body(0)
    play.request(0)
    play.end(0, START + S)
    assert play.cap_idle(START + S)
    play.body(1)
    play.request(1)
    play.end(1, START + 102 * S)
    assert waits_s(play) == {2: 121.0}
