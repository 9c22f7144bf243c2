"""The reader of Gemini CLI's chats: documents and logs in, sessions and notes out."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
import readers
from hypothesis import given, settings
from shared_data import SHARED, needs_shared

from agentreplay.trace.formats import gemini_cli
from agentreplay.trace.model import Call, Notes, Session
from agentreplay.trace.recorded import Draft, session

Row = dict[str, Any]


def drafts(files: dict[str, list[Any]]) -> tuple[list[Draft], Notes]:
    """The drafts of files given as records by path, and the notes of all of them."""
    return readers.drafts(gemini_cli, files)


def sessions(*rows: Any, **files: list[Any]) -> list[Session]:
    """The sessions of one file of these records, or of several files."""
    return readers.sessions(gemini_cli, files or {"chats/a.jsonl": list(rows)})


def notes(*rows: Any) -> dict[str, int]:
    """The notes on one file of these records."""
    return dict(drafts({"chats/a.jsonl": list(rows)})[1])


def at(seconds: float) -> str:
    """A stamp so many seconds after ten o'clock."""
    return f"2026-01-02T10:{int(seconds) // 60:02}:{seconds % 60:06.3f}Z"


def user(name: str, seconds: float) -> Row:
    """A message of the user."""
    return {"id": name, "timestamp": at(seconds), "type": "user", "content": [{"text": "x"}]}


def answer(name: str, seconds: float, isl: int = 100, cached: int = 0, **fields: object) -> Row:
    """An answer of 10 tokens and 5 of thought."""
    tokens = {"input": isl, "output": 10, "cached": cached, "thoughts": 5, "tool": 0,
              "total": isl + 15}  # fmt: skip
    row = {"id": name, "timestamp": at(seconds), "type": "gemini", "content": "y"}
    return row | {"model": "gemini-3", "tokens": tokens} | fields


def tools(*times: float | None) -> list[Row]:
    """Tool calls whose results came at these times."""
    return [{"id": f"t{time}", "timestamp": None if time is None else at(time)} for time in times]


META: Row = {"sessionId": "s", "projectHash": "p", "startTime": at(0), "lastUpdated": at(0)}


def document(*messages: object, **fields: object) -> Row:
    """A session in one JSON document."""
    return META | {"messages": list(messages)} | fields


def calls(*messages: object) -> tuple[Call, ...]:
    """The calls of a session of these messages."""
    (found,) = sessions(document(*messages))
    return found.calls


# --- The messages ---------------------------------------------------------------------------------


def test_an_answer_is_a_call() -> None:
    """A call lasts from the input before the answer to the answer's stamp; thoughts are output."""
    found, found_notes = drafts({"chats/a.json": [document(user("u", 2), answer("a", 5, 100, 64))]})
    (call,) = session(found[0])[0].calls
    assert (call.start_s, call.end_s, call.timed, call.isl, call.osl, call.cached, call.model) == (
        (0.0, 3.0, True, 100, 15, 64, "gemini-3")
    )
    assert (found[0].id, found[0].source, found[0].project) == ("s", "chats/a.json:1", "p")
    assert (found[0].start_s, found_notes) == (1767348002.0, {})


def test_lines_read_as_a_document_does() -> None:
    """A log of lines gives the session that its document gives."""
    messages = [user("u", 2), answer("a", 5), user("v", 9), answer("b", 12, 200)]
    (found,) = sessions(META, *messages, {"$set": {"lastUpdated": at(12)}})
    assert found.calls == calls(*messages)
    assert [(call.start_s, call.end_s) for call in found.calls] == [(0, 3), (7, 10)]


def test_a_later_copy_of_a_message_replaces_it() -> None:
    """A message that is written again under its id is one call, with its last lengths."""
    rows = [
        META,
        user("u", 2),
        answer("a", 5, tokens=None),
        answer("a", 5, 300),
        answer("a", 5, 301),
    ]
    assert [call.isl for call in sessions(*rows)[0].calls] == [301]
    assert [call.isl for call in sessions(*rows, answer("a", 5, tokens=None))[0].calls] == [301]


def test_a_checkpoint_adds_what_was_not_there() -> None:
    """`$set` with messages repeats and adds; what it leaves out was sent all the same."""
    rows = [META, user("u", 2), answer("a", 5), {"$set": {"messages": [answer("b", 9, 200)]}}]
    assert [call.isl for call in sessions(*rows)[0].calls] == [100, 200]


def test_what_was_rewound_was_sent() -> None:
    """Answers before a rewind are calls."""
    rows = [META, user("u", 2), answer("a", 5), {"$rewindTo": "u"}, user("v", 7), answer("b", 9)]
    assert len(sessions(*rows)[0].calls) == 2
    assert notes(*rows) == {}


def test_a_session_in_several_files_is_one() -> None:
    """A session that was saved twice, or goes on in another file, is one session."""
    first = document(user("u", 2), answer("a", 5))
    second = document(user("u", 2), answer("a", 5), user("v", 7), answer("b", 9, 200))
    found = sessions(**{"chats/a.json": [first], "chats/b.json": [second]})
    assert [[call.isl for call in each.calls] for each in found] == [[100, 200]]


def test_sessions_of_several_projects_may_have_one_id() -> None:
    """A session is named by its project too."""
    rows = [document(user("u", 2), answer("a", 5)), document(answer("a", 5), projectHash="q")]
    assert len(sessions(*rows)) == 2


def test_messages_without_an_id_all_count() -> None:
    """Without an id nothing says that two answers are one."""
    assert len(calls(user("u", 1), answer("", 2), answer("", 2))) == 2


def test_answers_without_token_counts_are_left_out() -> None:
    """Without lengths there is no call; the next one begins after it all the same."""
    messages = [user("u", 0), answer("a", 5, tokens=None), answer("b", 9)]
    assert [(call.end_s - call.start_s) for call in calls(*messages)] == [4]
    assert notes(document(*messages)) == {"answers without token counts, left out": 1}


def test_answers_without_a_time_are_left_out() -> None:
    """An answer without a stamp is left out and noted."""
    messages = [user("u", 0), answer("a", 5), answer("b", 9, timestamp=None)]
    assert len(calls(*messages)) == 1
    assert notes(document(*messages)) == {"answers without a time, left out": 1}


@pytest.mark.parametrize("kind", ["info", "error", "warning"])
def test_other_messages_begin_nothing(kind: str) -> None:
    """Notices between input and answer are no input."""
    notice = user("i", 3) | {"type": kind}
    assert [call.end_s for call in calls(user("u", 1), notice, answer("a", 5))] == [4]


@pytest.mark.parametrize(
    ("fields", "isl"),
    [
        ({"tool": 7, "total": 122}, 107),
        ({"tool": 7, "total": 115}, 100),
        ({"tool": 7, "total": None}, 107),
    ],
    ids=str,
)
def test_tokens_of_built_in_tools_are_input(fields: Row, isl: int) -> None:
    """`tool` is beside `input` where the total says so or says nothing."""
    row = answer("a", 5)
    row["tokens"] |= fields
    assert calls(row)[0].isl == isl


def test_more_cached_than_input_is_the_other_convention() -> None:
    """Where more was cached than went in, the input is what was not cached."""
    (call,) = calls(user("u", 1), answer("a", 5, 100, 900))
    assert (call.isl, call.cached) == (1000, 900)
    assert notes(document(answer("a", 5, 100, 900))) == {
        "answers with more cached than input tokens, both added": 1
    }


# --- Times ----------------------------------------------------------------------------------------


def test_the_next_call_begins_with_the_last_tool_result() -> None:
    """After tools a call begins when the last of them had its result."""
    found = calls(user("u", 0), answer("a", 5, toolCalls=tools(7, 8, None)), answer("b", 12, 200))
    assert [(call.start_s, call.end_s, call.gap_s) for call in found] == [(0, 5, 0), (8, 12, 3)]


def test_without_tool_times_the_next_call_begins_at_the_answer() -> None:
    """Where tools have no stamps a call begins with the answer before it."""
    found = calls(user("u", 0), answer("a", 5, toolCalls=tools(None)), answer("b", 12, 200))
    assert [(call.start_s, call.end_s) for call in found] == [(0, 5), (5, 12)]


def test_an_answer_without_input_begins_with_the_session() -> None:
    """The session's start stands in for an input before the first answer."""
    (draft,) = drafts({"a.json": [document(answer("a", 5))]})[0]
    assert draft.start_s == 1767348000.0


def test_an_answer_before_its_input_is_estimated() -> None:
    """Where the clock went back the end is an estimate."""
    messages = [user("u", 6), answer("a", 5)]
    assert [call.timed for call in calls(*messages)] == [False]
    assert notes(document(*messages)) == {
        "answers without an input before them, duration estimated": 1
    }


# --- Prefixes -------------------------------------------------------------------------------------


def relations(*messages: Row) -> list[tuple[int | None, int]]:
    """(parent, shared tokens) of the calls of one session."""
    return [(call.parent, call.shared) for call in calls(*messages)]


def test_a_prompt_that_grew_continues_the_last_one() -> None:
    """A prompt at least as long as the one before shares all of it, whatever was cached."""
    rows = [user("u", 0), answer("a", 5, 640, 576), answer("b", 9, 1280, 0)]
    assert relations(*rows) == [(None, 0), (0, 640)]


def test_a_prompt_that_shrank_shares_what_was_cached() -> None:
    """After a compression, or with another model, only cached tokens are known to be shared."""
    rows = [user("u", 0), answer("a", 5, 1280), answer("b", 9, 640, 128)]
    rows.append(answer("c", 12, 1280, 256, model="gemini-flash"))
    assert relations(*rows) == [(None, 0), (0, 128), (1, 256)]


# --- Subagents ------------------------------------------------------------------------------------


def test_a_subagents_file_lies_in_a_folder_of_its_session() -> None:
    """A chat of kind `subagent` belongs to the session that its folder is named after."""
    sub = META | {"sessionId": "sub", "kind": "subagent"}
    files = {
        "chats/s/sub.jsonl": [sub, user("u", 6), answer("a", 8)],
        "chats/a.jsonl": [META | {"kind": "main"}, user("u", 0), answer("a", 5), answer("b", 12)],
    }
    (found,) = sessions(**files)
    assert [call.agent for call in found.calls] == ["", "", "agent 1"]
    assert found.id == "s"


def test_a_subagent_alone_is_a_session() -> None:
    """A subagent whose session isn't there is read alone, and noted."""
    rows = [META | {"kind": "subagent"}, user("u", 6), answer("a", 8)]
    assert len(sessions(*rows)) == 1
    assert notes(*rows) == {"subagents whose session isn't here, kept as sessions": 1}


# --- Bad files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (document(), True),
        (META, True),
        (answer("a", 5), True),
        ({"$set": {}}, True),
        ({"$rewindTo": "a"}, True),
        ({"messages": []}, False),
        ({"projectHash": "p"}, False),
        (user("u", 1), False),
        ({"type": "gemini"}, False),
        ({"type": ["gemini"], "id": "a"}, False),
        ([document()], False),
        (None, False),
        ("messages", False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_chat_is_recognised(value: object, expected: bool) -> None:
    """A project's hash, an answer or a line of control makes a chat."""
    assert gemini_cli.recognises(value) is expected


def test_unknown_records_are_noted_with_their_lines() -> None:
    """What is no message and no control is counted with its line."""
    found = drafts({"a.jsonl": [META, None, 3, {"id": "x"}, {"type": "gemini"}]})[1]
    assert found == {
        "records of no known kind, left out": 3,
        "answers without token counts, left out": 1,
    }
    assert found.lines["records of no known kind, left out"] == [2, 3, 4]


def test_lines_without_a_head_are_a_session() -> None:
    """A log whose first line is missing is named by its place."""
    (found,) = sessions(user("u", 1), answer("a", 5))
    assert found.id == "chats/a.jsonl:1"


BASE: list[Row] = [
    META, user("u", 0), answer("a", 5, toolCalls=tools(7)), answer("b", 9, 200, 300),
    {"$set": {"messages": [answer("b", 9)]}}, document(user("u", 0), answer("z", 50)),
    META | {"sessionId": "sub", "kind": "subagent"}, answer("c", 6, 50),
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    readers.damaged(
        BASE, readers.any_json("gemini", "s", "p", "subagent", at(4), "0001-01-01T00:00+23")
    )
)
def test_any_value_in_any_field_gives_sessions_by_the_rules(rows: list[Any]) -> None:
    """Damaged records in any order give no exception, and calls that keep the rules."""
    readers.assert_survives(gemini_cli, {"s/a.jsonl": rows})


@needs_shared
def test_shared_chats() -> None:
    """The samples record no tokens: each of their answers is left out and noted."""
    folder = SHARED / "data" / "formats" / "gemini-cli"
    rows = [orjson.loads(path.read_bytes()) for path in sorted(folder.glob("*.json"))]
    assert [gemini_cli.recognises(row) for row in rows] == [True, True]
    assert sessions(*rows) == []
    assert notes(*rows) == {"answers without token counts, left out": 3}
