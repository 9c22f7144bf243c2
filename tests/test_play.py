"""Rules of one play of a session: what is free, when it is due, what it says and finds cached."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from agentreplay.plan import Order, Plan, Visit
from agentreplay.play import Dialect, Play
from agentreplay.prompt.messages import Template
from agentreplay.trace.model import Call, Session
from agentreplay.trace.prefix import Sent

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
