"""The reader of MLPerf Endpoints' agentic data set: messages in, conversations and notes out."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from pathlib import PurePath
from typing import Any

import orjson
import pytest
import readers
from hypothesis import given, settings
from shared_data import SHARED, needs_shared

from agentreplay.errors import TraceError
from agentreplay.trace.formats import mlperf
from agentreplay.trace.model import Call, Notes, Session
from agentreplay.trace.recorded import Draft, Reading, session

Row = dict[str, Any]

READING = Reading(key=b"key", chars_per_token=1.0)


def drafts(*files: list[Any], reading: Reading = READING) -> tuple[list[Draft], Notes]:
    """The drafts of files given as rows, and the notes of all of them."""
    return readers.drafts(mlperf, readers.numbered(files), reading)


def sessions(*files: list[Any], gap_s: float | None = None) -> list[Session]:
    """The sessions of files given as rows."""
    return readers.sessions(mlperf, readers.numbered(files), replace(READING, gap_s=gap_s))


def calls(*rows: Any, gap_s: float | None = None) -> tuple[Call, ...]:
    """The calls of the one conversation that the rows make."""
    (found,) = sessions(list(rows), gap_s=gap_s)
    return found.calls


def message(turn: object, role: str, content: object, **fields: object) -> Row:
    """A message of the conversation `a`."""
    row: Row = {"conversation_id": "a", "turn": turn, "role": role, "content": content}
    return row | fields


EXAMPLE = [
    {"conversation_id": "a", "turn": 1, "role": "user", "system": "You fix code.",
     "content": "Fix it."},
    {"conversation_id": "a", "turn": 2, "role": "assistant", "content": None,
     "tool_calls": [{"id": "c1", "type": "function",
                     "function": {"name": "bash", "arguments": "{\"cmd\":\"ls\"}"}}]},
    {"conversation_id": "a", "turn": 3, "role": "tool",
     "tool_results": [{"tool_call_id": "c1", "content": "a.py"}], "delay_seconds": 0.7},
    {"conversation_id": "a", "turn": 4, "role": "assistant", "content": "done"},
]  # fmt: skip


# --- Calls and lengths ----------------------------------------------------------------------------


def test_an_answer_is_a_call() -> None:
    """Before each assistant row there is a call; the second one comes after the tool's delay."""
    found, notes = drafts(EXAMPLE)
    made = session(found[0])[0]
    assert [(call.isl, call.osl, call.gap_s, call.timed) for call in made.calls] == [
        (20, 16, 0.0, False),
        (40, 4, pytest.approx(0.7), False),
    ]
    assert (made.id, made.source, made.start_s, notes) == ("a", "0.jsonl:1", None, {})


def test_characters_of_a_token_are_the_users() -> None:
    """A length is the characters over those of a token, rounded up once."""
    reading = Reading(key=b"key", chars_per_token=3.0)
    (draft,) = drafts(EXAMPLE, reading=reading)[0]
    assert [(call.isl, call.osl) for call in draft.calls] == [(7, 6), (14, 2)]


def test_without_characters_of_a_token_the_file_is_refused() -> None:
    """No length of a token, no lengths: the message names the option."""
    with pytest.raises(TraceError, match=r"^0\.jsonl: .* --chars-per-token "):
        drafts(EXAMPLE, reading=Reading(key=b"key"))


def test_every_text_of_a_message_counts() -> None:
    """Reasoning, parts of contents, names, arguments and results are what a message holds."""
    function = {"name": "bash", "arguments": {"a": 1}}
    parts = [{"type": "text", "text": "12"}, "345", {"type": "image"}]
    results = [{"content": "6"}, {"content": [{"type": "text", "text": "78"}]}, None]
    found = calls(
        message(1, "user", parts),
        message(2, "assistant", "ab", reasoning_content="cd", tool_calls=[{"function": function}]),
        message(3, "tool", None, tool_results=results),
        message(4, "assistant", "x"),
        gap_s=1.0,
    )
    assert [(call.isl, call.osl) for call in found] == [(5, 16), (24, 1)]


def test_tools_and_system_prompt_lead() -> None:
    """Tools count as JSON text, and are `system` together with the system prompt."""
    tools = [{"name": "t"}]
    (call,) = calls(
        message(1, "user", "hello", system="sys", tools=tools), message(2, "assistant", "x")
    )
    assert (call.system, call.isl) == (len('[{"name": "t"}]sys'), len('[{"name": "t"}]syshello'))


def test_other_tools_later_are_not_followed() -> None:
    """What changes tools or the system prompt on the way is noted; the same again is not."""
    rows = [
        *EXAMPLE,
        message(5, "user", "more", system="You fix code."),
        message(6, "assistant", ""),
    ]
    assert drafts(rows)[1] == {}
    rows.append(message(7, "user", "more", system="You are a cat."))
    assert drafts(rows)[1] == {"conversations that change tools or system prompt, not followed": 1}


def test_an_empty_answer_has_no_output() -> None:
    """An answer without any text is a call of output 0."""
    assert [call.osl for call in calls(message(1, "user", "x"), message(2, "assistant", None))] == [
        0
    ]


def test_an_answer_to_nothing_is_left_out() -> None:
    """Without anything before it an answer has no prompt."""
    rows = [
        message(1, "assistant", "Hello!"),
        message(2, "user", "x"),
        message(3, "assistant", "y"),
    ]
    assert [call.isl for call in calls(*rows)] == [7]
    assert drafts(rows)[1] == {"answers to nothing, left out": 1}


def test_models_are_kept() -> None:
    """A call has the model of its row, or the last one named."""
    rows = [message(1, "user", "x", model="m"), message(2, "assistant", "y")]
    rows += [message(3, "user", "z"), message(4, "assistant", "y", model="n")]
    assert [call.model for call in calls(*rows, gap_s=1.0)] == ["m", "n"]


# --- Delays ---------------------------------------------------------------------------------------


def test_without_delays_the_user_supplies_the_gaps() -> None:
    """A request without a recorded delay needs a gap, except the first."""
    rows = [message(1, "user", "x"), message(2, "assistant", "y")]
    assert len(calls(*rows)) == 1
    rows += [message(3, "user", "z"), message(4, "assistant", "y")]
    with pytest.raises(TraceError, match=r"^0\.jsonl:1: .* --gap "):
        calls(*rows)
    assert [call.gap_s for call in calls(*rows, gap_s=3.0)] == [0.0, pytest.approx(3.0)]


def test_a_delay_of_none_is_no_gap() -> None:
    """A recorded delay of 0 is recorded."""
    rows = [*EXAMPLE[:2], EXAMPLE[2] | {"delay_seconds": 0}, EXAMPLE[3]]
    assert calls(*rows, gap_s=3.0)[1].gap_s == 0


@pytest.mark.parametrize("delay", [-1, 1e300])
def test_a_delay_that_cannot_be_is_none(delay: float) -> None:
    """A delay below 0 or above a year counts as 0 and is noted."""
    rows = [*EXAMPLE[:2], EXAMPLE[2] | {"delay_seconds": delay}, EXAMPLE[3]]
    assert calls(*rows)[1].gap_s == 0
    assert drafts(rows)[1] == {"delays below 0 or above a year, taken as none": 1}


def test_a_delay_belongs_to_the_next_request() -> None:
    """Of several rows before an answer the last recorded delay counts, and only there."""
    rows = [*EXAMPLE[:3], message(4, "tool", "b", delay_seconds=2), message(5, "user", "c")]
    rows += [message(6, "assistant", "y"), message(7, "user", "z"), message(8, "assistant", "y")]
    assert [round(call.gap_s, 6) for call in calls(*rows, gap_s=9.0)] == [0, 2, 9]


# --- Prefixes -------------------------------------------------------------------------------------


def test_a_prompt_continues_the_one_before() -> None:
    """Recorded answers are history, so each prompt holds the whole one before."""
    found = calls(message(1, "user", "x" * 640), *EXAMPLE[1:])
    assert [(call.parent, call.shared, call.after) for call in found] == [
        (None, 0, ()),
        (0, 640, (0,)),
    ]


# --- Grouping -------------------------------------------------------------------------------------


def test_conversations_are_sessions() -> None:
    """Each id is a session; rows of several may alternate."""
    other = [row | {"conversation_id": "b"} for row in EXAMPLE]
    rows = [row for pair in zip(EXAMPLE, other, strict=True) for row in pair]
    assert [(each.id, len(each.calls), each.source) for each in sessions(rows)] == [
        ("a", 2, "0.jsonl:1"),
        ("b", 2, "0.jsonl:2"),
    ]


def test_a_conversation_counts_once() -> None:
    """The same conversation in another file is left out; another one of its id is kept."""
    changed = [*EXAMPLE[:3], message(4, "assistant", "done differently")]
    found, notes = drafts(EXAMPLE, EXAMPLE, changed)
    assert [draft.source for draft in found] == ["0.jsonl:1", "2.jsonl:1"]
    assert notes == {"conversations recorded twice, left out": 1}


def test_turns_order_the_rows() -> None:
    """Rows out of order are put in order of their turns, and a row counts once."""
    shuffled = [EXAMPLE[i] for i in (3, 1, 0, 2, 1)]
    assert [(call.isl, call.osl) for call in calls(*shuffled)] == [(20, 16), (40, 4)]
    assert drafts(shuffled)[1] == {
        "conversations whose turns go back, put in order": 1,
        "rows recorded twice, left out": 1,
    }


def test_a_conversation_without_an_answer_is_noted() -> None:
    """Without an assistant row there is no call."""
    found, notes = drafts(EXAMPLE[:1])
    assert found == []
    assert notes == {"conversations without a call, left out": 1}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (EXAMPLE[0], True),
        (EXAMPLE[2], True),
        (EXAMPLE[0] | {"role": "cook"}, False),
        (EXAMPLE[0] | {"role": ["user"]}, False),
        (EXAMPLE[0] | {"conversation_id": 7}, False),
        ({"conversation_id": "a", "role": "user"}, False),
        (EXAMPLE, False),
        (None, False),
        ("turn", False),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_row_is_recognised(value: object, expected: bool) -> None:
    """An id, a turn and a role make a row."""
    assert mlperf.recognises(value) is expected


def test_other_records_are_noted() -> None:
    """What is no message is counted with its line."""
    notes = drafts([*EXAMPLE, None, [1]])[1]
    assert notes == {"records that are no messages, left out": 2}
    assert notes.lines == {"records that are no messages, left out": [5, 6]}


def test_text_that_is_no_unicode_counts() -> None:
    """A lone surrogate and deep values, which other decoders let through, end nothing."""
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    rows = [message(1, "user", "\ud83d", tools=deep), message(2, "assistant", "x")]
    part = mlperf.read(enumerate(rows, 1), PurePath("x"), READING, Notes())
    assert [call.isl for call in part.conversations["a"].calls] == [1]


@settings(max_examples=150, deadline=None)
@given(
    readers.damaged(
        [*EXAMPLE, message(5, "user", "x"), message(6, "assistant", "y")],
        readers.any_json("a", "user", "assistant", 1e300),
    )
)
def test_any_value_in_any_field_gives_sessions_by_the_rules(rows: list[Any]) -> None:
    """Damaged rows in any order give no exception, and calls that keep the rules."""
    readers.assert_survives(mlperf, {"0.jsonl": rows}, replace(READING, gap_s=1.0))


# --- The shared conversations ---------------------------------------------------------------------


@needs_shared
def test_shared_conversations() -> None:
    """The sample's two conversations have a call for each of their 116 answers, in a chain."""
    path = SHARED / "data" / "formats" / "mlperf-endpoints" / "agentic_coding_first2.jsonl"
    rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    found, notes = drafts(rows, reading=Reading(key=b"key", chars_per_token=4.0))
    assert ([draft.id for draft in found], notes) == (
        (["django__django-16899", "sympy__sympy-12096"], {})
    )
    for draft in found:
        made = session(draft)[0]
        delays = [row["delay_seconds"] for row in rows
                  if row["conversation_id"] == draft.id and "delay_seconds" in row]  # fmt: skip
        assert [call.gap_s for call in made.calls[1:]] == pytest.approx(delays)
        assert [call.after for call in made.calls] == [(i - 1,) if i else () for i in range(58)]
        assert [call.shared for call in made.calls[1:]] == [
            call.isl // 64 * 64 for call in made.calls[:-1]
        ]
    answers = sum(
        len(row.get("content") or "") + len(row.get("reasoning_content") or "")
        for row in rows if row["role"] == "assistant"
    )  # fmt: skip
    assert sum(call.osl for draft in found for call in draft.calls) > ceil(answers / 4)
