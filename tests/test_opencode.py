"""The reader of opencode's storage: files or rows of a database in, sessions and notes out."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import readers
from hypothesis import given, settings

from agentreplay.trace.formats import opencode
from agentreplay.trace.model import Call, Notes, Session
from agentreplay.trace.recorded import Draft, session

Row = dict[str, Any]

BASE_MS = 1767348000000


def drafts(*files: list[Any]) -> tuple[list[Draft], Notes]:
    """The drafts of files given as records, and the notes of all of them."""
    return readers.drafts(opencode, readers.numbered(files, ".json"))


def sessions(*rows: Any) -> list[Session]:
    """The sessions of records that are a file each."""
    return readers.put_together(drafts(*([row] for row in rows))[0])[0]


def calls(*rows: Any) -> tuple[Call, ...]:
    """The calls of the one session that the records make."""
    (found,) = sessions(*rows)
    return found.calls


def notes(*rows: Any) -> dict[str, int]:
    """The notes on records that are a file each."""
    return dict(drafts(*([row] for row in rows))[1])


def ms(seconds: float) -> int:
    """A stamp in milliseconds."""
    return BASE_MS + int(seconds * 1000)


def tokens(new: object, read: int = 0, write: int = 0, output: int = 10) -> Row:
    """Token counts with 5 of reasoning."""
    return {"input": new, "output": output, "reasoning": 5, "cache": {"read": read, "write": write}}


def head(identity: str = "ses_1", **fields: object) -> Row:
    """A session."""
    row = {"id": identity, "projectID": "p", "directory": "/w", "version": "1", "title": "x"}
    return row | {"time": {"created": ms(0), "updated": ms(9)}} | fields


def answer(name: str, start: float, end: float | None, counts: object, **fields: object) -> Row:
    """An assistant's message of the session `ses_1`."""
    times = {"created": ms(start)} | ({} if end is None else {"completed": ms(end)})
    row = {"id": f"msg_{name}", "sessionID": "ses_1", "role": "assistant", "time": times}
    return row | {"modelID": "m", "providerID": "q", "tokens": counts} | fields


def piece(message: str, name: str, kind: str, **fields: object) -> Row:
    """A part of a message."""
    row = {"id": f"prt_{name}", "sessionID": "ses_1", "messageID": f"msg_{message}", "type": kind}
    return row | fields


def tool(message: str, name: str, start: float, end: float) -> Row:
    """A tool part."""
    state = {"status": "completed", "time": {"start": ms(start), "end": ms(end)}}
    return piece(message, name, "tool", callID="c", tool="bash", state=state)


def text(message: str, name: str, start: float, end: float) -> Row:
    """A text part."""
    return piece(message, name, "text", text="y", time={"start": ms(start), "end": ms(end)})


def as_rows(records: list[Row]) -> list[Row]:
    """The records as rows of the database: ids are columns, all else is JSON."""
    rows: list[Row] = []
    for record in records:
        created = record.get("time", {}).get("created")
        row = {"id": record["id"], "time_created": created, "time_updated": created}
        data = {key: value for key, value in record.items() if not key.endswith(("ID", "id"))}
        data |= {key: record[key] for key in ("modelID", "providerID") if key in record}
        if "messageID" in record:
            columns = {"message_id": record["messageID"], "session_id": record["sessionID"]}
            rows.append({"table": "part", **row, "time_created": ms(99), **columns, "data": data})
        elif "sessionID" in record:
            rows.append(
                {"table": "message", **row, "session_id": record["sessionID"], "data": data}
            )
        else:
            columns = {"project_id": record["projectID"], "parent_id": record.get("parentID")}
            rows.append({"table": "session", **row, "directory": record["directory"], **columns})
    return rows


EXAMPLE = [
    head(),
    {"id": "msg_0", "sessionID": "ses_1", "role": "user", "time": {"created": ms(0)}},
    answer("1", 1, 9, tokens(40, 64, 16)),
    piece("1", "11", "step-start"),
    text("1", "12", 2, 3),
    tool("1", "13", 4, 8),
    piece("1", "14", "step-finish", reason="tool-calls", tokens=tokens(40, 64, 16)),
    answer("2", 10, 12, tokens(100, 128)),
    piece("2", "21", "step-start"),
    text("2", "22", 11, 11.5),
    piece("2", "23", "step-finish", reason="stop", tokens=tokens(100, 128)),
]

# --- Calls ----------------------------------------------------------------------------------------


def test_a_step_is_a_call() -> None:
    """Cached tokens are added to the input and reasoning to the output."""
    found, found_notes = drafts(*([row] for row in EXAMPLE))
    assert [(call.isl, call.osl, call.cached, call.model) for call in found[0].calls] == [
        (120, 15, 64, "m"),
        (228, 15, 128, "m"),
    ]
    assert (found[0].id, found[0].source, found[0].project) == ("ses_1", "2.json:1", "/w")
    assert (found[0].start_s, found_notes) == (1767348001.0, {})


def test_a_step_with_tools_ends_when_the_model_was_done() -> None:
    """A message completes after its tools: a call with tools ends when the last one began."""
    assert [(call.start_s, call.end_s, call.gap_s, call.timed) for call in calls(*EXAMPLE)] == [
        (0, 3, 0, True),
        (9, 11, 6, True),
    ]


def test_rows_of_the_database_read_as_files_do() -> None:
    """The database gives the session that the files give, in any order."""
    rows = as_rows(EXAMPLE)
    Random(1).shuffle(rows)
    found, found_notes = drafts(rows)
    assert session(found[0])[0].calls == calls(*EXAMPLE)
    assert (found[0].id, found[0].project, found_notes) == ("ses_1", "/w", {})


def test_files_and_database_count_once() -> None:
    """What was moved into the database and left in its files is there once."""
    found = drafts(*([row] for row in EXAMPLE), as_rows(EXAMPLE))[0]
    assert [len(draft.calls) for draft in found] == [2]


def test_a_message_may_hold_several_steps() -> None:
    """Each step that ended is a call, which begins with the tools' results of the one before."""
    found = calls(
        answer("1", 0, 20, tokens(300)),
        piece("1", "10", "step-start"),
        tool("1", "11", 4, 6),
        tool("1", "12", 5, 8),
        piece("1", "13", "step-finish", tokens=tokens(100)),
        piece("1", "14", "step-start"),
        text("1", "15", 9, 18),
        piece("1", "16", "step-finish", tokens=tokens(300)),
    )
    assert [(call.start_s, call.end_s, call.isl) for call in found] == [(0, 5, 100), (8, 20, 300)]


def test_parts_are_in_order_of_their_ids() -> None:
    """The order of files means nothing."""
    rows = [
        piece("1", "16", "step-finish", tokens=tokens(300)),
        piece("1", "13", "step-finish", tokens=tokens(100)),
        tool("1", "11", 4, 6),
        answer("1", 0, 20, tokens(300)),
    ]
    assert [(call.start_s, call.isl) for call in calls(*rows)] == [(0, 100), (6, 300)]


def test_a_message_without_steps_is_a_call() -> None:
    """Older storage has no step parts: the message's own counts are its call's."""
    rows = [answer("1", 0, 4, tokens(100)), answer("2", 5, 9, tokens(200)), tool("2", "1", 7, 8)]
    assert [(call.start_s, call.end_s, call.isl) for call in calls(*rows)] == [
        (0, 4, 100),
        (5, 7, 200),
    ]


def test_a_message_without_an_end_is_estimated() -> None:
    """An answer that was never completed has no recorded end."""
    assert [call.timed for call in calls(answer("1", 0, None, tokens(100)))] == [False]


def test_answers_without_counts_are_left_out() -> None:
    """An answer that failed counts nothing: it is left out and noted."""
    rows = [answer("1", 0, 4, tokens(0, output=0)), answer("2", 5, 9, None)]
    rows.append(answer("3", 10, 12, tokens(-5)))
    assert sessions(*rows) == []
    assert notes(*rows) == {"answers without token counts, left out": 3}


def test_answers_without_a_time_are_left_out() -> None:
    """An answer without a stamp is left out and noted; a column may have it."""
    row = answer("1", 0, 4, tokens(100), time={})
    assert notes(row) == {"answers without a time, left out": 1}
    (draft,) = drafts([as_rows([row])[0] | {"time_created": ms(3)}])[0]
    assert draft.start_s == 1767348003.0


def test_calls_of_a_copied_session_count_once() -> None:
    """A session copied from another holds the same calls under other ids."""
    copies = [row | {"id": f"{row['id']}9", "sessionID": "ses_2"} for row in EXAMPLE[1:]
              if "messageID" not in row]  # fmt: skip
    copies.append(answer("3", 30, 31, tokens(300), sessionID="ses_2"))
    found = sessions(*reversed([*[row for row in EXAMPLE if "messageID" not in row], *copies]))
    assert [(each.id, len(each.calls)) for each in found] == [("ses_1", 2), ("ses_2", 1)]


# --- Prefixes -------------------------------------------------------------------------------------


def relations(*rows: Row) -> list[tuple[int | None, int]]:
    """(parent, shared tokens) of the calls of one session."""
    return [(call.parent, call.shared) for call in calls(*rows)]


def test_a_prompt_that_grew_continues_the_last_one() -> None:
    """A prompt at least as long as the one before shares all of it, whatever was cached."""
    rows = [answer("1", 0, 1, tokens(640)), answer("2", 2, 3, tokens(1280))]
    assert relations(*rows) == [(None, 0), (0, 640)]


def test_a_prompt_that_shrank_shares_what_was_cached() -> None:
    """After a compaction, or with another model, only cached tokens are known to be shared."""
    rows = [answer("1", 0, 1, tokens(1280)), answer("2", 2, 3, tokens(64, 128))]
    rows.append(answer("3", 4, 5, tokens(640), modelID="n"))
    assert relations(*rows) == [(None, 0), (0, 128), (None, 0)]


# --- Subagents ------------------------------------------------------------------------------------


def test_a_child_session_is_an_agent() -> None:
    """Sessions with a parent are agents of the one at the top, numbered by their start."""
    rows = [
        head(), head("ses_b", parentID="ses_1"), head("ses_a", parentID="ses_1"),
        head("ses_c", parentID="ses_a"),
        answer("1", 0, 2, tokens(100)), answer("2", 30, 32, tokens(200)),
        answer("3", 12, 14, tokens(50), sessionID="ses_a"),
        answer("4", 5, 7, tokens(60), sessionID="ses_b"),
        answer("5", 20, 22, tokens(70), sessionID="ses_c"),
    ]  # fmt: skip
    assert [(call.start_s, call.agent) for call in calls(*rows)] == [
        (0, ""), (5, "agent 1"), (12, "agent 2"), (20, "agent 3"), (30, "")
    ]  # fmt: skip
    found = drafts(as_rows(rows))[0]
    assert [len(draft.calls) for draft in found] == [5]


def test_children_of_a_missing_session_stay_together() -> None:
    """Sessions of one parent that isn't there are agents of a session of its name."""
    rows = [head("ses_a", parentID="ses_0"), head("ses_b", parentID="ses_0"),
            answer("1", 0, 2, tokens(100), sessionID="ses_a"),
            answer("2", 5, 7, tokens(60), sessionID="ses_b")]  # fmt: skip
    (found,) = sessions(*rows)
    assert (found.id, [call.agent for call in found.calls]) == ("ses_0", ["agent 1", "agent 2"])


def test_sessions_that_are_each_others_parents_end_nothing() -> None:
    """A circle of parents is no end of the reading."""
    rows = [head("ses_a", parentID="ses_b"), head("ses_b", parentID="ses_a"),
            answer("1", 0, 2, tokens(100), sessionID="ses_a"),
            answer("2", 5, 7, tokens(60), sessionID="ses_b")]  # fmt: skip
    assert sum(len(each.calls) for each in sessions(*rows)) == 2


# --- Bad records ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((row, True) for row in EXAMPLE),
        *((row, True) for row in as_rows(EXAMPLE)),
        ({"id": "ses_1", "time": {}}, False),
        ({"id": "proj", "worktree": "/w", "time": {}}, False),
        ({"id": "x", "directory": "/w", "time": {}}, False),
        ({"role": "assistant", "time": {}}, False),
        ({"table": "project", "time_created": 1}, False),
        ({"table": ["part"], "time_created": 1}, False),
        (EXAMPLE, False),
        (None, False),
        ("time", False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_record_is_recognised(value: object, expected: bool) -> None:
    """Ids and times make a session, message or part; the loader names rows of the database."""
    assert opencode.recognises(value) is expected


def test_unknown_records_are_noted_with_their_lines() -> None:
    """What is no record of opencode, or has no id, is counted with its line."""
    found = drafts([None, 3, answer("1", 0, 1, tokens(9), id=None)])[1]
    assert found == {"records of no known kind, left out": 2, "records without an id, left out": 1}
    assert found.lines["records of no known kind, left out"] == [1, 2]


def test_rows_without_data_are_noted() -> None:
    """A row of the database whose `data` could not be decoded is counted."""
    assert notes(as_rows(EXAMPLE)[2] | {"data": "{broken"}) == {"rows without data, left out": 1}


BASE = [*EXAMPLE, head("ses_2", parentID="ses_1"), answer("9", 4, 6, tokens(9), sessionID="ses_2")]
VALUES = readers.any_json("msg_1", "ses_1", "step-finish", "tool", "assistant", "part")


@settings(max_examples=150, deadline=None)
@given(readers.damaged(BASE, VALUES) | readers.damaged(as_rows(BASE), VALUES))
def test_any_value_in_any_field_gives_sessions_by_the_rules(rows: list[Any]) -> None:
    """Damaged records in any order give no exception, and calls that keep the rules."""
    readers.assert_survives(opencode, readers.numbered(([row] for row in rows), ".json"))
