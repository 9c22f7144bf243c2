"""The reader of OpenHands' logs: events and completions in, sessions and notes out."""

from __future__ import annotations

from typing import Any

import pytest
import readers
from hypothesis import given, settings

from agentreplay.trace.formats import openhands
from agentreplay.trace.model import Call, Notes, Session
from agentreplay.trace.recorded import Draft, session

Row = dict[str, Any]

ZERO_S = 1767348000.0


def drafts(files: dict[str, list[Any]]) -> tuple[list[Draft], Notes]:
    """The drafts of files given as records by path, and the notes of all of them."""
    return readers.drafts(openhands, files)


def sessions(files: dict[str, list[Any]]) -> list[Session]:
    """The sessions of files given as records by path."""
    return readers.sessions(openhands, files)


def calls(*events: Any) -> tuple[Call, ...]:
    """The calls of a file of events."""
    (found,) = sessions({"a.json": list(events)})
    return found.calls


def notes(*records: Any) -> dict[str, int]:
    """The notes on one file, but for the one on local times."""
    found = dict(drafts({"a.json": list(records)})[1])
    found.pop("local times, taken as UTC", None)
    return found


def at(seconds: float) -> str:
    """A local stamp so many seconds after ten o'clock."""
    return f"2026-01-02T10:{int(seconds) // 60:02}:{seconds % 60:09.6f}"


def usage(name: str, isl: object, cached: object = 0, osl: object = 10) -> Row:
    """The lengths of a response."""
    return {"model": "m", "prompt_tokens": isl, "completion_tokens": osl, "response_id": name,
            "cache_read_tokens": cached, "cache_write_tokens": 0}  # fmt: skip


def latency(name: str, seconds: object) -> Row:
    """The duration of a response."""
    return {"model": "m", "latency": seconds, "response_id": name}


def event(number: int, seconds: float, source: str = "user", **fields: object) -> Row:
    """An event."""
    kind = {} if "observation" in fields else {"action": "message"}
    return {"id": number, "timestamp": at(seconds), "source": source} | kind | fields


def act(
    number: int, seconds: float, name: str, isl: object, last_s: float | None = None,
    cached: object = 0, **fields: object,
) -> Row:  # fmt: skip
    """An agent's action from the response *name*, which took *last_s* seconds."""
    metrics: Row = {
        "accumulated_token_usage": usage("", 999_999),
        "token_usages": [usage(name, isl, cached)],
        "response_latencies": [] if last_s is None else [latency(name, last_s)],
    }
    told = {"tool_call_metadata": {"model_response": {"id": name, "model": "n"}}}
    return event(number, seconds, "agent", action="run", llm_metrics=metrics) | told | fields


def seen(number: int, seconds: float, **fields: object) -> Row:
    """An observation of the agent's environment."""
    return event(number, seconds, "agent", **{"observation": "run"} | fields)


def completion(name: str, seconds: float, last_s: float | None, isl: int, *texts: str) -> Row:
    """A logged completion of a prompt of these texts."""
    told = {"prompt_tokens": isl, "completion_tokens": 10}
    messages = [{"role": "user", "content": text} for text in texts]
    times = {} if last_s is None else {"latency": last_s}
    row = {"messages": messages, "kwargs": {"tools": [{"name": "t" * 320}]}, "cost": 0.1}
    row |= {"response": {"id": name, "model": "m", "usage": told}}
    return row | {"timestamp": ZERO_S + seconds} | times


EXAMPLE = [
    event(0, 0),
    act(1, 5, "r1", 100, 4),
    seen(2, 8, tool_call_metadata={"model_response": {"id": "r1"}}),
    act(3, 12, "r2", 200, 3, cached=64),
    seen(4, 13),
]

# --- Events ---------------------------------------------------------------------------------------


def test_a_response_is_a_call() -> None:
    """A call ended with the first event of its response, and took what its latency says."""
    found, found_notes = drafts({"a.json": EXAMPLE})
    made = session(found[0])[0].calls
    assert [
        (call.start_s, call.end_s, call.timed, call.isl, call.osl, call.cached) for call in made
    ] == [
        (0, 4, True, 100, 10, 0),
        (8, 11, True, 200, 10, 64),
    ]
    assert (found[0].id, found[0].source, found[0].start_s) == ("a.json:1", "a.json:1", ZERO_S + 1)
    assert found_notes == {"local times, taken as UTC": 5}


def test_times_with_a_zone_are_not_noted() -> None:
    """A stamp with a zone is what it says."""
    rows = [row | {"timestamp": row["timestamp"] + "+01:00"} for row in EXAMPLE]
    found, found_notes = drafts({"a.json": rows})
    assert (found[0].start_s, found_notes) == (ZERO_S + 1 - 3600, {})


def test_several_actions_of_a_response_are_one_call() -> None:
    """Tools that were called together come from one call."""
    rows = [event(0, 0), act(1, 5, "r1", 100, 4), seen(2, 8), act(3, 9, "r1", 100, 4)]
    assert [(call.start_s, call.end_s) for call in calls(*rows)] == [(0, 4)]


def test_sums_are_never_lengths() -> None:
    """What was accumulated so far is not what a call had."""
    rows = [event(0, 0), act(1, 5, "r1", 100, 4, tool_call_metadata=None)]
    rows[1]["llm_metrics"]["token_usages"] = []
    assert sessions({"a.json": rows}) == []


def test_the_response_itself_may_hold_the_lengths() -> None:
    """Without metrics the usage of the recorded response counts."""
    response = {"id": "r1", "model": "n", "usage": {"prompt_tokens": 70, "completion_tokens": 7}}
    rows = [event(0, 0), event(1, 5, "agent", tool_call_metadata={"model_response": response})]
    assert [(call.isl, call.osl, call.model) for call in calls(*rows)] == [(70, 7, "n")]


def test_without_a_response_the_newest_lengths_name_the_call() -> None:
    """An action without a recorded response comes from the response that is counted first here."""
    rows = [event(0, 0), act(1, 5, "r1", 100, 4), seen(2, 8)]
    said = act(3, 12, "r2", 200, 3, tool_call_metadata=None)
    said["llm_metrics"]["token_usages"].insert(0, usage("r1", 100))
    again = act(4, 13, "r2", 200, 3, tool_call_metadata=None)
    assert [call.isl for call in calls(*rows, said, again)] == [100, 200]


def test_without_a_latency_a_call_begins_at_the_event_before() -> None:
    """The event before stands in for a start that was not recorded."""
    rows = [event(0, 0), act(1, 5, "r1", 100), seen(2, 8), act(3, 12, "r2", 200)]
    assert [(call.start_s, call.end_s, call.timed) for call in calls(*rows)] == [
        (0, 5, True),
        (8, 12, True),
    ]
    assert notes(*rows) == {"calls without a latency, begun at the event before": 2}


def test_a_call_without_an_event_before_is_estimated() -> None:
    """A first event that is an answer has a stamp and no duration."""
    assert [call.timed for call in calls(act(1, 5, "r1", 100))] == [False]


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"llm_metrics": None}, "calls without token counts, left out"),
        ({"timestamp": "soon"}, "calls without a time, left out"),
    ],
)
def test_a_call_needs_lengths_and_a_time(change: Row, note: str) -> None:
    """A call without lengths or a time is left out and noted."""
    rows = [*EXAMPLE, act(5, 20, "r3", 300, 1) | change]
    assert len(calls(*rows)) == 2
    assert notes(*rows) == {note: 1}


def test_more_cached_than_input_is_the_other_convention() -> None:
    """Where more was cached than went in, the input is what was not cached."""
    rows = [event(0, 0), act(1, 5, "r1", 100, 4, cached=900)]
    assert [(call.isl, call.cached) for call in calls(*rows)] == [(1000, 900)]
    assert notes(*rows) == {"calls with more cached than input tokens, both added": 1}


# --- Where events lie -----------------------------------------------------------------------------


def test_a_row_of_an_evaluation_is_a_session() -> None:
    """A row of results holds the events and, beside them, the lengths of all calls."""
    plain = [{name: row[name] for name in row if name != "llm_metrics"} for row in EXAMPLE]
    metrics = {
        "token_usages": [usage("r1", 100), usage("r2", 200, 64)],
        "response_latencies": [latency("r1", 4), latency("r2", 3)],
        "accumulated_token_usage": usage("", 300),
    }
    row = {"instance_id": "i", "history": plain, "metrics": metrics, "metadata": {}}
    found = drafts({"output.jsonl": [row, row | {"instance_id": "j", "history": []}]})[0]
    assert [(draft.id, draft.source) for draft in found] == [("i", "output.jsonl:1")]
    assert session(found[0])[0].calls == calls(*EXAMPLE)


@pytest.mark.parametrize(
    "record",
    [EXAMPLE, {"trajectory": EXAMPLE}, {"history": [EXAMPLE[:2], EXAMPLE[2:4], EXAMPLE[4:]]}],
    ids=["list", "trajectory", "pairs"],
)
def test_events_may_be_in_a_list(record: Any) -> None:
    """A list, a saved trajectory and older rows of pairs hold the same events."""
    (found,) = sessions({"b.json": [record]})
    assert found.calls == calls(*EXAMPLE)


def test_events_may_be_a_file_each() -> None:
    """Files with an event's number are one session, named after the folder of the conversation."""
    files = {f"store/s1/events/{row['id'] + 8}.json": [row] for row in reversed(EXAMPLE)}
    files["store/s2/events/1.json"] = [act(1, 30, "other", 50, 1)]
    files["store/s1/event_cache/0-25.json"] = EXAMPLE
    found = sessions(files)
    assert [(each.id, len(each.calls)) for each in found] == [("s1", 2), ("s2", 1)]
    assert found[0].calls == calls(*EXAMPLE)


def test_a_call_counts_once() -> None:
    """The same conversation in a second file is left out and noted."""
    found, found_notes = drafts({"a.json": EXAMPLE, "b.json": EXAMPLE})
    assert [draft.id for draft in found] == ["a.json:1"]
    assert found_notes["calls recorded twice, left out"] == 2


# --- Prefixes -------------------------------------------------------------------------------------


def test_prompts_of_events_share_by_counts() -> None:
    """A prompt that grew continues the one before; one that shrank shares what was cached."""
    rows = [event(0, 0), act(1, 5, "r1", 640, 4), act(2, 9, "r2", 1280, 1)]
    rows.append(act(3, 12, "r3", 320, 1, cached=128))
    assert [(call.parent, call.shared) for call in calls(*rows)] == [(None, 0), (0, 640), (1, 128)]


# --- Agents ---------------------------------------------------------------------------------------


def test_a_delegate_is_an_agent() -> None:
    """Calls between an agent's handing on and the answer are the delegate's; they may nest."""
    rows = [
        event(0, 0),
        act(1, 5, "r1", 640, 4, action="delegate"),
        act(2, 9, "r2", 50, 1, action="delegate"),
        act(3, 12, "r3", 60, 1),
        seen(4, 13, observation="delegate"),
        act(5, 15, "r4", 70, 1),
        seen(6, 16, observation="delegate"),
        act(7, 20, "r5", 704, 1),
        act(8, 25, "r6", 768, 1, action="delegate"),
        act(9, 30, "r7", 50, 1),
    ]
    found = calls(*rows)
    assert [call.agent for call in found] == [
        "", "agent 1", "agent 2", "agent 1", "", "", "agent 3"
    ]  # fmt: skip
    assert [call.parent for call in found] == [None, None, None, None, 0, 4, None]


def test_a_condenser_is_a_helper() -> None:
    """A condensation that names its response is a helper's call."""
    rows = [*EXAMPLE, act(5, 20, "r3", 300, 2, action="condensation"), act(6, 25, "r4", 150, 2)]
    assert [(call.start_s, call.agent) for call in calls(*rows)] == [
        (0, ""), (8, ""), (17, "helper 1"), (22, "")
    ]  # fmt: skip


def test_condensers_calls_may_be_in_the_metrics_only() -> None:
    """Calls that no event names are those of the condensations, in their order."""
    condensed = event(5, 20, "agent", action="condensation")
    metrics = {"token_usages": [usage("c1", 300)], "response_latencies": [latency("c1", 2)]}
    row: Row = {"instance_id": "i", "history": [*EXAMPLE, condensed], "metrics": metrics}
    (found,) = sessions({"output.jsonl": [row]})
    assert [(call.start_s, call.isl, call.agent) for call in found.calls] == [
        (0, 100, ""), (8, 200, ""), (17, 300, "helper 1")
    ]  # fmt: skip
    row["history"] = EXAMPLE
    assert notes(row) == {"calls that no event names, left out": 1}
    assert notes({"history": [*EXAMPLE, condensed]}) == {
        "condensations without token counts, left out": 1
    }


# --- The log of completions -----------------------------------------------------------------------

LOGGED = {
    "logs/i/m-1.json": [completion("r1", 5, 4, 100, "x" * 640, "y")],
    "logs/i/m-2.json": [completion("r2", 12, 3, 200, "x" * 640, "y", "z" * 640)],
}


def test_a_completion_is_a_call() -> None:
    """Completions in one folder are a session; each ended when it was logged."""
    found, found_notes = drafts(LOGGED)
    assert [(draft.id, draft.start_s) for draft in found] == [("i", ZERO_S + 1)]
    made = session(found[0])[0].calls
    assert [(call.start_s, call.end_s, call.isl, call.osl) for call in made] == [
        (0, 4, 100, 10),
        (8, 11, 200, 10),
    ]
    assert found_notes == {}


def test_prompts_of_completions_share_their_text() -> None:
    """What prompts of completions share is told by their texts, and their tools lead."""
    made = sessions(LOGGED)[0].calls
    assert [(call.parent, call.shared) for call in made] == [(None, 0), (0, 64)]
    assert [call.system for call in made] == [pytest.approx(33, abs=1), pytest.approx(40, abs=1)]
    other = {"logs/i/m-2.json": [completion("r2", 12, 3, 200, "another", "y", "z" * 640)]}
    assert [call.shared for call in sessions(LOGGED | other)[0].calls] == [0, 0]


def test_completions_and_events_are_one_session() -> None:
    """Times and prompts come from the completions, agents from the events."""
    rows = [row | {"action": "delegate"} if row["id"] == 1 else row for row in EXAMPLE]
    hour = [row | {"timestamp": row["timestamp"] + "-01:00"} for row in rows]
    alone = act(9, 20, "r9", 300, 1) | {"timestamp": at(20) + "-01:00"}
    extra = {"logs/i/m-3.json": [completion("c1", 15, 1, 50, "sum up")]}
    row = {"instance_id": "i", "history": [*hour, alone]}
    found = drafts(LOGGED | extra | {"output.jsonl": [row]})[0]
    assert [(draft.id, draft.start_s) for draft in found] == [("i", ZERO_S + 1)]
    assert [(call.start_s, call.isl, call.agent) for call in session(found[0])[0].calls] == [
        (0, 100, ""), (8, 200, "agent 1"), (13, 50, "helper 1"), (18, 300, "agent 1")
    ]  # fmt: skip


def test_completions_without_an_id_all_count() -> None:
    """Without an id nothing says that two completions are one."""
    rows = {path: [row | {"response": row["response"] | {"id": None}} for row in rows]
            for path, rows in LOGGED.items()}  # fmt: skip
    assert [len(each.calls) for each in sessions(rows)] == [2]


def test_a_completion_without_a_latency_is_estimated() -> None:
    """Older logs have no latency: the end is an estimate."""
    (found,) = sessions({"logs/i/1.json": [completion("r1", 5, None, 100, "x")]})
    assert [call.timed for call in found.calls] == [False]


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"response": {"id": "r1"}}, "calls without token counts, left out"),
        ({"timestamp": None}, "calls without a time, left out"),
    ],
)
def test_a_completion_needs_lengths_and_a_time(change: Row, note: str) -> None:
    """A completion without lengths or a time is left out and noted."""
    found, found_notes = drafts({"logs/i/1.json": [completion("r1", 5, 1, 100, "x") | change]})
    assert (found, found_notes) == ([], {note: 1})


# --- Bad records ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((row, True) for row in EXAMPLE),
        (EXAMPLE, True),
        ({"history": EXAMPLE}, True),
        ({"trajectory": EXAMPLE}, True),
        ({"history": [EXAMPLE[:2]]}, True),
        (completion("r", 1, 1, 1, "x"), True),
        (completion("r", 1, 1, 1, "x") | {"call_type": "acompletion"}, False),
        ({"trajectory": [{"action": "ls", "observation": "x"}], "info": {}}, False),
        ({"history": []}, False),
        ({"source": "agent", "kind": "ActionEvent", "timestamp": at(0)}, False),
        ({"source": ["agent"], "action": "run", "timestamp": at(0)}, False),
        ({"messages": [], "response": {}}, False),
        ([], False),
        (None, False),
        ("history", False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_record_is_recognised(value: object, expected: bool) -> None:
    """A source with an action or observation makes an event; prompt and response a completion."""
    assert openhands.recognises(value) is expected


def test_unknown_records_are_noted_with_their_lines() -> None:
    """What is neither event nor completion is counted with its line."""
    found = drafts({"a.jsonl": [*EXAMPLE, None, 3, [5]]})[1]
    assert found["records of no known kind, left out"] == 3
    assert found.lines["records of no known kind, left out"] == [6, 7, 8]


WHOLE = {"instance_id": "i", "history": EXAMPLE, "metrics": {"token_usages": [usage("c", 5)]}}
MORE = [act(5, 20, "r3", 300, 2, action="condensation"), completion("r2", 9, 1, 50, "x", "y")]


@settings(max_examples=150, deadline=None)
@given(
    readers.damaged(
        [*EXAMPLE, *MORE, WHOLE],
        readers.any_json("r1", "agent", "delegate", "condensation", at(4)),
    )
)
def test_any_value_in_any_field_gives_sessions_by_the_rules(rows: list[Any]) -> None:
    """Damaged records in any order give no exception, and calls that keep the rules."""
    files = {"a.jsonl": rows[:4], **{f"s/{i}.json": [each] for i, each in enumerate(rows[4:])}}
    readers.assert_survives(openhands, files)
