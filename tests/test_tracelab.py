"""The TraceLab reader: rounds in, sessions with inferred subagents and notes out."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
import readers
from hypothesis import given, settings
from shared_data import SHARED, needs_shared

from agentreplay.trace.formats import tracelab
from agentreplay.trace.model import Notes, Session
from agentreplay.trace.recorded import Draft, session

Row = dict[str, Any]


def drafts(*files: list[Any]) -> tuple[list[Draft], Notes]:
    """The drafts of files given as rows, and the notes of all of them."""
    return readers.drafts(tracelab, readers.numbered(files))


def sessions(*files: list[Any]) -> list[Session]:
    """The sessions of files given as rows."""
    return readers.sessions(tracelab, readers.numbered(files))


def notes(*files: list[Any]) -> dict[str, int]:
    """The notes on files given as rows."""
    return dict(drafts(*files)[1])


def at(seconds: float) -> str:
    """A stamp so many seconds after ten o'clock."""
    return f"2026-01-02T10:{int(seconds) // 60:02}:{seconds % 60:06.3f}Z"


def event(kind: str, seconds: float) -> Row:
    """A timing event."""
    return {"event_type": kind, "timestamp": at(seconds)}


def tool(name: str, begin: float, end: float) -> Row:
    """A tool call with its result."""
    return {"tool_name": name, "emitted_at": at(begin), "result_at": at(end)}


def row(index: int, start: float, end: float, isl: int, prefix: int, **fields: object) -> Row:
    """A round of 10 output tokens of session `s` with one input and one output event."""
    return {
        "provider": "claude",
        "project": "p",
        "session_id": "s",
        "round_index": index,
        "round_id": f"{fields.get('session_id', 's')} {index} {start}",
        "model": "m",
        "input_tokens_total": isl,
        "prefix_tokens": prefix,
        "output_tokens": 10,
        "timing_events": [event("user_message", start), event("text", end)],
        "tools": [],
    } | fields


def without(each: Row, *names: str) -> Row:
    """The row without some of its fields."""
    return {name: value for name, value in each.items() if name not in names}


def relations(*rows: Row) -> list[tuple[int | None, int]]:
    """(parent, shared tokens) of the calls of one session."""
    return [(call.parent, call.shared) for call in sessions(list(rows))[0].calls]


EXAMPLE: Row = {
    "provider": "claude", "project": "p", "session_id": "claude:S", "round_index": 0,
    "round_id": "msg_1", "model": "m", "input_tokens_total": 13000, "prefix_tokens": 12000,
    "newly_append_tokens": 1000, "claude_uncached_input_tokens": 4,
    "claude_cache_creation_input_tokens": 996, "claude_cache_read_input_tokens": 12000,
    "output_tokens": 200, "reasoning_output_tokens": None,
    "timing_events": [
        {"event_type": "user_message", "timestamp": "2026-01-02T10:00:00.000Z",
         "content_chars": 6},
        {"event_type": "tool_call", "timestamp": "2026-01-02T10:00:04.000Z",
         "tool_call_id": "t1", "tool_name": "Bash", "tool_index": 0}],
    "tools": [
        {"tool_index": 0, "tool_name": "Bash", "tool_call_id": "t1",
         "emitted_at": "2026-01-02T10:00:04.000Z", "result_at": "2026-01-02T10:00:04.700Z",
         "input_chars": 10, "result_chars": 4, "tool_wall_latency_ms": 700,
         "tool_internal_latency_ms": None, "is_error": False}],
    "first_input_event_type": "user_message",
}  # fmt: skip


# --- The rows -------------------------------------------------------------------------------------


def test_a_round_is_a_call() -> None:
    """A call has the lengths, model, times and cached tokens of its round."""
    found, found_notes = drafts([EXAMPLE])
    (call,) = session(found[0])[0].calls
    assert (call.start_s, call.end_s, call.timed, call.isl, call.osl, call.cached, call.model) == (
        (0.0, 4.0, True, 13000, 200, 12000, "m")
    )
    assert (found[0].id, found[0].source, found[0].project) == ("claude:S", "0.jsonl:1", "p")
    assert (found[0].start_s, found_notes) == (1767348000.0, {})


def test_a_round_lasts_from_its_last_input_to_its_last_output() -> None:
    """Start is the latest input, end the last output; a report of usage is no output."""
    events = [event("tool_result", 1), event("tool_result", 3), event("reasoning", 5)]
    events += [event("text", 7), event("usage_report", 9)]
    (draft,) = drafts([row(0, 0, 1, 100, 0, timing_events=events)])[0]
    assert [(each.start_s, each.end_s) for each in draft.calls] == [(1767348003, 1767348007)]


def test_a_report_of_usage_ends_a_round_without_output_events() -> None:
    """Where no output event was recorded the report of usage is the end."""
    events = [event("user_message", 1), event("usage_report", 9)]
    (draft,) = drafts([row(0, 0, 1, 100, 0, timing_events=events)])[0]
    assert draft.calls[0].end_s == 1767348009


def test_a_round_without_an_end_is_estimated() -> None:
    """A round with an input event only has no recorded end."""
    events = [event("user_message", 1)]
    (found,) = sessions([row(0, 0, 1, 100, 0, timing_events=events)])
    assert [call.timed for call in found.calls] == [False]


def test_rounds_are_in_order_of_their_first_input() -> None:
    """Index and place in the file count only where times are equal."""
    rows = [row(7, 5, 6, 300, 0), row(9, 0, 1, 100, 0), row(8, 5, 6, 400, 0)]
    assert [call.isl for call in sessions(rows)[0].calls] == [100, 300, 400]


def test_an_index_may_repeat() -> None:
    """Two rounds of one index are two calls."""
    assert len(sessions([row(0, 0, 1, 100, 0), row(0, 5, 6, 200, 0)])[0].calls) == 2


def test_a_tool_that_answers_during_the_round_begins_nothing_early() -> None:
    """A round whose input came before the last output of the round before begins at that end."""
    events = [event("tool_result", 3), event("text", 9)]
    rows = [row(0, 0, 4, 100, 0), row(1, 0, 0, 200, 0, timing_events=events)]
    calls = sessions(rows)[0].calls
    assert [(call.start_s, call.end_s, call.gap_s) for call in calls] == [(0, 4, 0), (4, 9, 0)]
    assert notes(rows) == {"rounds begun before the last one's end, begun at that end": 1}


def test_a_round_without_an_input_event_begins_where_the_last_one_ended() -> None:
    """Without an input event a round begins at the end before it."""
    rows = [row(0, 0, 4, 100, 0), row(1, 0, 0, 200, 0, timing_events=[event("text", 9)])]
    assert [call.start_s for call in sessions(rows)[0].calls] == [0, 4]
    assert notes(rows) == {"rounds without an input event, begun at the last end before": 1}


def test_rounds_without_a_time_are_left_out() -> None:
    """A round without any event is left out and noted, and so are events without a time."""
    rows = [row(0, 0, 4, 100, 0), row(1, 0, 0, 200, 0, timing_events=[{"event_type": "text"}])]
    assert len(sessions(rows)[0].calls) == 1
    assert notes(rows) == {
        "timing events without a type or a time, ignored": 1,
        "rounds without a time, left out": 1,
    }


def test_the_input_is_the_sum_of_its_parts_where_it_is_missing() -> None:
    """Cached and new tokens make the input where the total is not recorded."""
    rows = [row(0, 0, 1, 0, 70, input_tokens_total=None, newly_append_tokens=30)]
    assert sessions(rows)[0].calls[0].isl == 100


@pytest.mark.parametrize(
    "fields",
    [{"input_tokens_total": 0}, {"input_tokens_total": "x"}, {"output_tokens": None},
     {"output_tokens": True}, {"output_tokens": -1}],
    ids=str,
)  # fmt: skip
def test_a_round_needs_lengths(fields: Row) -> None:
    """A round without an input or an output length is left out and noted."""
    rows = [row(0, 0, 1, 100, 0), row(1, 2, 3, 100, 0, **fields)]
    assert len(sessions(rows)[0].calls) == 1
    assert notes(rows) == {"rounds without an input or output length, left out": 1}


def test_lengths_may_be_text_or_floats() -> None:
    """Tables make text or floats of whole numbers."""
    fields: Row = {"input_tokens_total": "100", "output_tokens": 7.0, "prefix_tokens": "64"}
    (call,) = sessions([row(0, 0, 1, 0, 0, **fields)])[0].calls
    assert (call.isl, call.osl, call.cached) == (100, 7, 64)


def test_more_cached_than_input_is_the_other_convention() -> None:
    """Where more was cached than went in, the input is what was not cached."""
    (call,) = sessions([row(0, 0, 1, 100, 900)])[0].calls
    assert (call.isl, call.cached) == (1000, 900)
    assert notes([row(0, 0, 1, 100, 900)]) == {
        "rounds with more cached than input tokens, both added": 1
    }


def test_a_round_counts_once() -> None:
    """The same round in a second file or session is left out and noted."""
    rows = [row(0, 0, 1, 100, 0), row(1, 2, 3, 200, 100)]
    again = [each | {"session_id": "resumed"} for each in rows]
    again.append(row(2, 4, 5, 300, 200, session_id="resumed"))
    assert [len(each.calls) for each in sessions(rows, again)] == [2, 1]
    assert notes(rows, again) == {"rounds recorded twice, left out": 2}


def test_rounds_without_a_name_all_count() -> None:
    """Without a round id nothing says that two rounds are one."""
    rows = [row(0, 0, 1, 100, 0, round_id=None), row(0, 0, 1, 100, 0, round_id=None)]
    assert len(sessions(rows)[0].calls) == 2


def test_sessions_of_several_projects_may_have_one_id() -> None:
    """A session is named by its owner and project too."""
    rows = [row(0, 0, 1, 100, 0, project="p"), row(1, 0, 1, 200, 0, project="q")]
    rows.append(row(2, 0, 1, 300, 0, project="p", user="other"))
    assert [len(each.calls) for each in sessions(rows)] == [1, 1, 1]


def test_a_session_without_an_id_is_called_after_its_place() -> None:
    """A round without a session id is a session of its own."""
    rows = [row(0, 0, 1, 100, 0, session_id=None), row(1, 2, 3, 100, 0, session_id=7)]
    assert [each.id for each in sessions(rows)] == ["0.jsonl:1", "0.jsonl:2"]


# --- Prefixes -------------------------------------------------------------------------------------


def test_a_prompt_that_grew_continues_the_last_one() -> None:
    """A prompt at least as long as the one before shares all of that."""
    assert relations(row(0, 0, 1, 640, 0), row(1, 2, 3, 1280, 576)) == [(None, 0), (0, 640)]


def test_a_cache_that_forgot_is_no_other_prompt() -> None:
    """Nothing cached of a prompt that grew says nothing about what it shares."""
    assert relations(row(0, 0, 1, 640, 576), row(1, 2, 3, 1280, 0)) == [(None, 0), (0, 640)]


def test_a_prompt_that_shrank_shares_what_was_cached() -> None:
    """After a compaction only the cached tokens are known to be shared."""
    assert relations(row(0, 0, 1, 1280, 0), row(1, 2, 3, 640, 128)) == [(None, 0), (0, 128)]


def test_another_model_shares_what_was_cached() -> None:
    """A change of the model shares the cached tokens only."""
    rows = [row(0, 0, 1, 640, 0), row(1, 2, 3, 1280, 128, model="n")]
    rows.append(row(2, 4, 5, 1280, 0, model="m"))
    assert relations(*rows) == [(None, 0), (0, 128), (None, 0)]


def test_the_least_that_was_cached_is_tools_and_system_prompt() -> None:
    """`system` is the smallest positive number of cached tokens of the session."""
    rows = [row(0, 0, 1, 640, 320), row(1, 2, 3, 1280, 0), row(2, 4, 5, 300, 640)]
    assert [call.system for call in sessions(rows)[0].calls] == [320, 320, 320]


# --- Subagents ------------------------------------------------------------------------------------


def delegating(begin: float, end: float, name: str = "Task", **fields: object) -> list[Row]:
    """A session with a tool at work from *begin* to *end* between its two rounds."""
    last = row(1, end, end + 2, 200, 100, **fields)
    return [row(0, 0, begin, 100, 0, tools=[tool(name, begin, end)], **fields), last]


def worker(start: float, end: float, session_id: str = "w", **fields: object) -> Row:
    """A session of one round."""
    return row(0, start, end, 50, 0, session_id=session_id, **fields)


def agents(rows: list[Row]) -> list[list[str]]:
    """The agents of the calls of each session."""
    return [[call.agent for call in each.calls] for each in sessions(rows)]


@pytest.mark.parametrize("name", ["Task", "Agent"])
def test_a_session_in_a_tool_window_is_a_subagent(name: str) -> None:
    """A session inside the one subagent tool of its project is an agent of that session."""
    assert agents([*delegating(5, 30, name), worker(8, 20)]) == [["", "agent 1", ""]]


def test_subagents_have_numbers_by_their_start() -> None:
    """Agents are numbered by when they began, wherever their rounds stand."""
    rows = [worker(20, 25, "late"), *delegating(5, 30), worker(8, 10, "early")]
    (found,) = sessions(rows)
    assert [(call.start_s, call.agent) for call in found.calls] == [
        (0, ""), (8, "agent 1"), (20, "agent 2"), (30, "")
    ]  # fmt: skip
    assert found.calls[3].after == (0, 1, 2)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([*delegating(5, 14), worker(8, 10)], "shorter than ten seconds"),
        ([*delegating(5, 30, "Bash"), worker(8, 10)], "another tool"),
        ([*delegating(5, 30), worker(4, 10)], "begun before"),
        ([*delegating(5, 30), worker(8, 31)], "ended after"),
        ([*delegating(5, 30), worker(8, 10, project="q")], "another project"),
        ([*delegating(5, 30), worker(8, 10, provider="codex")], "another provider"),
        ([*delegating(5, 30, project=None), worker(8, 10, project=None)], "no project"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_session_outside_stays_its_own(rows: list[Row], reason: str) -> None:
    """What doesn't lie in a long tool window of its project is a session."""
    assert agents(rows) == [["", ""], [""]], reason


def test_a_session_in_two_sessions_windows_stays_its_own() -> None:
    """Where several sessions may have begun an agent it belongs to none, and is noted."""
    rows = [*delegating(5, 30), *delegating(6, 40, session_id="t"), worker(8, 10)]
    assert agents(rows) == [["", ""], ["", ""], [""]]
    assert notes(rows) == {"sessions inside several others' subagent times, kept apart": 1}


def test_a_subagents_subagent_belongs_to_the_same_session() -> None:
    """Windows that lie inside each other lead to one session."""
    rows = [*delegating(5, 50)]
    rows += [worker(8, 10, "w", tools=[tool("Task", 10, 30)]), row(1, 30, 40, 60, 50) | {
        "session_id": "w", "round_id": "w 1"
    }]  # fmt: skip
    rows.append(worker(12, 20, "deep"))
    assert agents(rows) == [["", "agent 1", "agent 2", "agent 1", ""]]


def test_a_spawned_agent_lies_between_spawn_and_close() -> None:
    """Codex's subagents live from `spawn_agent` until as many were closed."""
    codex: Row = {"provider": "codex", "project": None, "cwd": "/w"}
    rows = [
        row(0, 0, 1, 100, 0, tools=[tool("spawn_agent", 1, 2)], **codex),
        row(1, 2, 3, 200, 0, tools=[tool("spawn_agent", 3, 4)], **codex),
        row(2, 4, 5, 300, 0, tools=[tool("close_agent", 29, 30)], **codex),
        row(3, 30, 31, 400, 0, tools=[tool("close_agent", 39, 40)], **codex),
        worker(2, 35, **codex),
        worker(36, 45, "later", **codex),
    ]
    assert agents(rows) == [["", "", "agent 1", "", ""], [""]]


# --- Bad rows -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (EXAMPLE, True),
        (without(EXAMPLE, "provider"), False),
        (without(EXAMPLE, "round_index"), False),
        (EXAMPLE | {"timing_events": None}, False),
        ([EXAMPLE], False),
        (None, False),
        ("provider", False),
        (3.5, False),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_round_is_recognised(value: object, expected: bool) -> None:
    """Provider, index and a list of events make a round."""
    assert tracelab.recognises(value) is expected


def test_other_records_are_noted_with_their_lines() -> None:
    """What is no round is counted, and its line is kept."""
    found = drafts([EXAMPLE, None, 3, {"provider": "claude"}])[1]
    assert found == {"records that are no rounds, left out": 3}
    assert found.lines == {"records that are no rounds, left out": [2, 3, 4]}


BASE = [EXAMPLE, *delegating(5, 30), worker(8, 20), row(2, 40, 41, 20, 900)]


@settings(max_examples=150, deadline=None)
@given(readers.damaged(BASE, readers.any_json("2026-01-02T10:00:00Z", "0001-01-01T00:00:00+23:00")))
def test_any_value_in_any_field_gives_sessions_by_the_rules(rows: list[Any]) -> None:
    """Damaged rows in any order give no exception, and calls that keep the rules."""
    readers.assert_survives(tracelab, {"0.jsonl": rows})


# --- The shared rounds ----------------------------------------------------------------------------

SAMPLE = SHARED / "data" / "formats" / "tracelab" / "derived_round_trace.jsonl"


@needs_shared
def test_shared_rounds() -> None:
    """All rounds of the sample are read, with the counts that are known of it."""
    rows = [orjson.loads(line) for line in SAMPLE.read_bytes().splitlines()]
    expected = orjson.loads((SHARED / "data/formats/EXPECTED.json").read_bytes())
    found = sessions(rows)
    every = [call for each in found for call in each.calls]
    assert {
        "rounds": len(every),
        "sessions": len(found),
        "providers": ["claude", "codex"],
        "input": sum(call.isl for call in every),
        "prefix": sum(call.cached or 0 for call in every),
        "output": sum(call.osl for call in every),
    } == expected["tracelab/derived_round_trace.jsonl"]
    assert [len(each.calls) for each in found] == [10, 9]
    assert notes(rows) == {}


@needs_shared
def test_shared_rounds_start_when_they_did() -> None:
    """Every round of the sample waits for the one before and starts at its recorded time."""
    rows = [orjson.loads(line) for line in SAMPLE.read_bytes().splitlines()]
    for each in sessions(rows):
        for i, call in enumerate(each.calls):
            assert call.after == ((i - 1,) if i else ())
            assert call.start_s == pytest.approx(
                max((each.calls[j].end_s for j in call.after), default=0.0) + call.gap_s
            )
