"""Live histories: the server's own answers go back as the assistant's turns."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import orjson
import pytest
from scripted import c, done, fin, k, r, usage
from virtually import call, replay

from agentreplay.client.stream import Reply, Sink
from agentreplay.metrics.record import Request
from agentreplay.plan import Plan
from agentreplay.play import Dialect
from agentreplay.prompt.messages import Template
from agentreplay.sim import virtual
from agentreplay.trace.model import Session
from agentreplay.trace.structure import link
from agentreplay.wire.turn import served_turn

TEMPLATE = Template(prompt=8, system=5, pair=10)
DIALECT = Dialect("m", TEMPLATE, {})
LIVE = Plan(users=1, duration_s=None, sessions=1, max_gap_s=None, history="live")

SESSION = Session(
    "s",
    None,
    link(
        [
            call(0, 1, isl=1280, osl=100, system=640),
            call(2, 3, isl=1536, osl=100, parent=0, shared=1280, system=640),
            call(4, 5, isl=1792, osl=100, parent=1, shared=1536, system=640),
            call(6, 7, isl=1000, osl=100, parent=2, shared=640, system=640),
        ],
        64,
    ),
    64,
    "",
)


def payloads(*events: bytes) -> list[bytes]:
    return [event.removeprefix(b"data: ").strip() for event in events]


def turn(*events: bytes) -> dict[str, Any] | None:
    made = served_turn(payloads(*events))
    return None if made is None else json.loads(made)


def test_text_goes_back_as_content() -> None:
    """The pieces of an answer are one message."""
    made = turn(c(2), c(3), fin(), usage(9, 5))
    assert made is not None
    assert made["role"] == "assistant"
    assert len(made["content"].split()) == 5


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_goes_back_in_its_own_field(key: str) -> None:
    """Reasoning stays in the field that the server sent it in."""
    made = turn(r(4, key), c(1), fin())
    assert made is not None
    assert set(made) == {"role", "content", key}
    assert made[key]


def tool(name: str | None, arguments: str) -> bytes:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    delta = {"tool_calls": [{"index": 0, "id": "call_7", "function": function}]}
    return b"data: %b\n\n" % orjson.dumps({"choices": [{"delta": delta}]})


def test_tool_calls_go_back_whole() -> None:
    """Arguments that came in parts are joined, under the call's own id."""
    made = turn(tool("look", '{"a":'), tool(None, "1}"), fin("tool_calls"))
    assert made is not None
    (only,) = made["tool_calls"]
    assert only == {
        "id": "call_7",
        "type": "function",
        "function": {"name": "look", "arguments": '{"a":1}'},
    }


def test_broken_arguments_do_not_go_back() -> None:
    """A tool call whose arguments are no JSON would be refused: there is no message."""
    assert turn(tool("look", '{"a":1</x>'), fin("tool_calls")) is None
    assert turn(k(3), fin("tool_calls")) is None


class Counting:
    """A server that counts words and template, answers in its own words, and keeps all bodies."""

    def __init__(self, *answer: bytes, osl: int = 100) -> None:
        self.answer = answer
        self.osl = osl
        self.bodies: list[dict[str, Any]] = []

    async def stream(self, request: Request, body: bytes, sink: Sink) -> Reply:
        asked = json.loads(body)
        self.bodies.append(asked)
        words = sum(len((message["content"] or "").split()) for message in asked["messages"])
        isl = words + 5 * len(asked["messages"]) + 3
        for event in (*self.answer, fin(), usage(isl, self.osl), done()):
            sink(virtual.clock(), event)
        return Reply(200, "text/event-stream", b"")


def test_answers_come_back_in_the_next_prompt() -> None:
    """Each continued prompt is the one before, the answer to it, and a new user's part."""
    server = Counting(c(60), c(40))
    records = replay(LIVE, [SESSION], server.stream, dialect=DIALECT).records
    first, second, third, _ = (body["messages"] for body in server.bodies)
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    answer = second[len(first)]
    assert answer["role"] == "assistant"
    assert len(answer["content"].split()) == 100
    assert [message["role"] for message in third] == [
        "system", "user", "assistant", "user", "assistant", "user",
    ]  # fmt: skip
    assert [record.request.history for record in records] == [
        "recorded", "live", "live", "recorded",
    ]  # fmt: skip


def test_the_new_part_is_sized_by_usage() -> None:
    """Whatever the answers' lengths, the server counts the recorded length of the prompt."""
    server = Counting(c(60), c(40))
    records = replay(LIVE, [SESSION], server.stream, dialect=DIALECT).records
    assert [record.isl for record in records] == [1280, 1536, 1792, 1000]


def test_an_answer_longer_than_recorded_leaves_a_short_part() -> None:
    """Where the answer alone is too long, one word is sent, and the length is off."""
    server = Counting(c(600), osl=600)
    records = replay(LIVE, [SESSION], server.stream, dialect=DIALECT).records
    assert records[1].isl == 1280 + 600 + 10 + 1


def test_the_prediction_counts_served_answers() -> None:
    """A continued prompt repeats the whole prompt before it and its answer."""
    server = Counting(c(60), c(40))
    records = replay(LIVE, [SESSION], server.stream, dialect=DIALECT).records
    assert [record.request.reuse for record in records] == [0, 1380, 1636, 640]


def test_broken_tool_calls_are_replaced_and_counted() -> None:
    """The session goes on with recorded turns, and each replacement is told."""
    server = Counting(tool("look", '{"a":1</x>'))
    records = replay(LIVE, [SESSION], server.stream, dialect=DIALECT).records
    assert [record.error for record in records] == [None] * 4
    assert [record.request.history for record in records] == [
        "recorded", "substituted", "substituted", "recorded",
    ]  # fmt: skip
    assert not any("tool_calls" in str(body["messages"]) for body in server.bodies)


# --- From the middle of a session -----------------------------------------------------------------

LONG = Session(
    "s",
    None,
    link(
        [
            call(
                2.0 * n,
                2.0 * n + 1,
                isl=1280 + 256 * n,
                osl=100,
                parent=n - 1 if n else None,
                shared=1280 + 256 * (n - 1) if n else 0,
                system=640,
            )
            for n in range(6)
        ],
        64,
    ),
    64,
    "",
)
"""Six calls, two seconds apart: at a share of 0.5 the first three are done."""


@pytest.mark.parametrize("warmup_calls", [0, 1])
def test_a_live_history_begins_in_the_middle(warmup_calls: int) -> None:
    """What the warm-up was answered does not go back: the first call after it is sent as recorded,
    and from then on the server's answers are in the history."""
    plan = replace(LIVE, start=(0.5, 0.5), warmup_calls=warmup_calls)
    server, plain = Counting(c(60), c(40)), Counting(c(60), c(40))
    records = replay(plan, [LONG], server.stream, dialect=DIALECT).records
    replay(replace(plan, history="recorded"), [LONG], plain.stream, dialect=DIALECT)
    warm = 1 + warmup_calls
    assert [record.request.call for record in records] == [2, 3, 4, 5]
    assert [record.request.warmup for record in records] == [True] * warm + [False] * (4 - warm)
    assert [record.request.history for record in records] == (
        ["recorded"] * (warm + 1) + ["live"] * (3 - warm)
    )
    assert [record.isl for record in records] == [LONG.calls[i].isl for i in (2, 3, 4, 5)]
    assert server.bodies[: warm + 1] == plain.bodies[: warm + 1]
    for before, after in pairwise(server.bodies[warm:]):
        said = len(before["messages"])
        assert after["messages"][:said] == before["messages"]
        assert len(after["messages"][said]["content"].split()) == 100
        assert [message["role"] for message in after["messages"][said:]] == ["assistant", "user"]


def test_the_prediction_counts_what_the_warm_up_sent() -> None:
    """The first call finds what its primer sent; later ones also the answers to those before."""
    server = Counting(c(60), c(40))
    plan = replace(LIVE, start=(0.5, 0.5))
    records = replay(plan, [LONG], server.stream, dialect=DIALECT).records
    isl = [call.isl for call in LONG.calls]
    assert [record.request.reuse for record in records] == [0, isl[2], isl[3] + 100, isl[4] + 100]
