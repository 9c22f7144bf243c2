"""The LiteLLM reader: logged requests and rows of spend logs in, sessions and notes out."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from io import StringIO
from pathlib import PurePath
from typing import Any

import orjson
import pytest
import readers
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import SHARED, needs_shared

from agentreplay.trace.formats import litellm
from agentreplay.trace.model import Call, Notes, Session
from agentreplay.trace.recorded import Reading

Row = dict[str, Any]

T0 = 1_767_348_000  # 2026-01-02T10:00:00Z


def dumped(value: object) -> str:
    """JSON text, as tables hold it."""
    return orjson.dumps(value).decode()


def stamp(seconds: float) -> str:
    """A stamp without a zone, up to 100 s after `T0`."""
    return f"2026-01-02 10:{int(seconds // 60):02}:{seconds % 60:09.6f}"


def spend(number: int, start: float, isl: object, cached: object = None, **more: Any) -> Row:
    """A row of the table of spend logs: 3 s, 40 tokens of output."""
    usage = {"prompt_tokens_details": {"cached_tokens": cached}}
    row = {
        "request_id": f"chatcmpl-{number}",
        "session_id": "s1",
        "call_type": "acompletion",
        "startTime": stamp(start),
        "completionStartTime": stamp(start + 0.8),
        "endTime": stamp(start + 3),
        "model": "m",
        "prompt_tokens": isl,
        "completion_tokens": 40,
        "cache_hit": "None",
        "metadata": dumped({"usage_object": usage}),
        "messages": "{}",
        "response": "{}",
        "request_tags": "[]",
        "status": "success",
    }
    return row | more


def payload(number: int, start: float, isl: int, messages: object, **more: Any) -> Row:
    """What a logger writes: 2 s, 10 tokens of output."""
    row = {
        "id": f"chatcmpl-{number}",
        "trace_id": f"trace-{number}",
        "call_type": "completion",
        "startTime": T0 + start,
        "endTime": T0 + start + 2.0,
        "completionStartTime": T0 + start + 1.0,
        "model": "m",
        "model_parameters": {},
        "prompt_tokens": isl,
        "completion_tokens": 10,
        "cache_hit": None,
        "metadata": {"user_api_key_alias": "someone"},
        "messages": messages,
        "response": {"usage": {"prompt_tokens": isl, "completion_tokens": 10}},
        "status": "success",
    }
    return row | more


def every(*files: Iterable[object]) -> tuple[list[Session], Notes]:
    """The sessions of files, each given by its rows, and all notes."""
    found, notes = readers.drafts(litellm, readers.numbered(files))
    sessions, more = readers.put_together(found)
    notes.merge(more)
    return sessions, notes


def calls_of(*rows: object) -> tuple[Call, ...]:
    """The calls of the only session of one file."""
    (session,) = every(rows)[0]
    return session.calls


def notes_of(*rows: object) -> Notes:
    """The notes of one file."""
    return every(rows)[1]


HISTORY = [
    {"role": "system", "content": "s" * 600},
    {"role": "user", "content": "a" * 1000},
    {"role": "assistant", "content": "b" * 100},
    {"role": "user", "content": "c" * 300},
    {"role": "assistant", "content": "d" * 50},
    {"role": "user", "content": "e" * 50},
]

# --- One row --------------------------------------------------------------------------------------


def test_the_worked_example_is_one_call() -> None:
    """The example of the format: 900 in, 512 of them cached, 40 out, 3.0 s, in UTC."""
    example = (
        b'{"request_id":"chatcmpl-1","session_id":"s1","call_type":"acompletion",'
        b'"startTime":"2026-01-02 10:00:00.000000",'
        b'"completionStartTime":"2026-01-02 10:00:00.800000",'
        b'"endTime":"2026-01-02 10:00:03.000000","model":"m","prompt_tokens":900,'
        b'"completion_tokens":40,"total_tokens":940,"cache_hit":"None",'
        b'"metadata":"{\\"usage_object\\":{\\"prompt_tokens_details\\":{\\"cached_tokens\\":512}}}",'
        b'"messages":"{}","response":"{}","status":"success"}'
    )
    (session,), notes = every([orjson.loads(example)])
    (call,) = session.calls
    assert (session.id, session.start_s, session.source) == ("s1", T0, "0.jsonl:1")
    assert (call.isl, call.cached, call.osl, call.end_s, call.timed) == (900, 512, 40, 3.0, True)
    assert notes == {}


def test_times_are_epoch_seconds_too() -> None:
    """Loggers write stamps as numbers."""
    (session,), _ = every([payload(1, 0.5, 100, None)])
    assert (session.start_s, session.calls[0].end_s) == (T0 + 0.5, 2.0)


def test_a_row_of_a_table_is_all_text() -> None:
    """A CSV export, where every value is text, reads like the rows it was made of."""
    rows = [spend(1, 0, 900, 512), spend(2, 5, 1000, 896)]
    text = StringIO(newline="")
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    text.seek(0)
    table = list(csv.DictReader(text))
    assert all(litellm.recognises(row) for row in table)
    assert every(table) == every(rows)


def test_a_call_without_an_end_is_estimated() -> None:
    """A row without endTime is kept, and not timed."""
    assert [call.timed for call in calls_of(spend(1, 0, 100), spend(2, 5, 200, endTime=""))] == [
        True,
        False,
    ]


@pytest.mark.parametrize("start", [None, "", "yesterday", True, -5])
def test_a_call_without_a_start_is_left_out(start: object) -> None:
    """A row whose startTime is no time is left out and noted."""
    rows = [spend(1, 0, 100), spend(2, 5, 200, startTime=start)]
    assert len(calls_of(*rows)) == 1
    assert notes_of(*rows) == {"calls without a time, left out": 1}


@pytest.mark.parametrize("hit", [True, "True", "true"])
def test_cached_answers_reached_no_model(hit: object) -> None:
    """Rows that LiteLLM answered from its own cache are left out and noted."""
    rows = [spend(1, 0, 100), spend(2, 5, 200, cache_hit=hit)]
    assert len(calls_of(*rows)) == 1
    assert notes_of(*rows) == {"answers from LiteLLM's own cache, left out": 1}


@pytest.mark.parametrize("hit", [None, "None", "False", False, ""])
def test_other_values_of_cache_hit_are_calls(hit: object) -> None:
    """Null, false and their texts are no hits."""
    assert len(calls_of(spend(1, 0, 100, cache_hit=hit))) == 1


def test_failures_without_output_are_left_out() -> None:
    """A failed row has no tokens, or no output; it is noted."""
    rows = [
        spend(1, 0, 100),
        spend(2, 5, 0, status="failure", completion_tokens=0),
        spend(3, 6, 100, status="failure", completion_tokens=0),
    ]
    assert len(calls_of(*rows)) == 1
    assert notes_of(*rows) == {"failed calls without tokens, left out": 2}


def test_rows_of_zero_tokens() -> None:
    """No input is no call; no output is a call sent with one token."""
    rows = [spend(1, 0, 100, completion_tokens=0), spend(2, 5, 0), spend(3, 9, None)]
    assert [(call.isl, call.osl) for call in calls_of(*rows)] == [(100, 0)]
    assert notes_of(*rows) == {
        "calls without output, sent with one token": 1,
        "calls without tokens, left out": 2,
    }


@pytest.mark.parametrize(
    "kind",
    ["completion", "acompletion", "aresponses", "anthropic_messages", "atext_completion", ""],
)
def test_kinds_of_calls(kind: str) -> None:
    """Completions, responses and messages, blocking or not, are LLM calls."""
    assert len(calls_of(spend(1, 0, 100, call_type=kind))) == 1


@pytest.mark.parametrize("kind", ["aembedding", "embedding", "call_mcp_tool", "aimage_generation"])
def test_kinds_of_other_rows(kind: str) -> None:
    """Embeddings, tools and images are left out and noted."""
    rows = [spend(1, 0, 100), spend(2, 5, 200, call_type=kind)]
    assert len(calls_of(*rows)) == 1
    assert notes_of(*rows) == {"rows of other kinds than LLM calls, left out": 1}


@pytest.mark.parametrize(
    "mark",
    [
        {"request_tags": '["litellm-internal-health-check"]'},
        {"request_tags": ["litellm-internal-health-check"]},
        {"api_key": "litellm-internal-health-check"},
        {"team_id": "litellm-internal-health-check"},
        {"metadata": dumped({"user_api_key_alias": "litellm-internal-health-check"})},
    ],
    ids=str,
)
def test_health_checks_are_left_out(mark: Row) -> None:
    """The proxy's own health checks are no load; they are noted."""
    rows = [spend(1, 0, 100), spend(2, 5, 200, **mark)]
    assert len(calls_of(*rows)) == 1
    assert notes_of(*rows) == {"health checks, left out": 1}


@pytest.mark.parametrize(
    "metadata",
    [
        {"usage_object": {"cache_read_input_tokens": 512}},
        {"usage_object": {"input_tokens": 88, "cache_read_input_tokens": 512}},
        {"usage_object": None, "additional_usage_values": {"cache_read_input_tokens": 512}},
    ],
    ids=str,
)
def test_cached_tokens_of_other_apis(metadata: Row) -> None:
    """Cached tokens are found under Anthropic's names; `prompt_tokens` holds them already."""
    for held in (metadata, dumped(metadata)):
        (call,) = calls_of(spend(1, 0, 900, metadata=held))
        assert (call.isl, call.cached) == (900, 512)


def test_the_usage_of_the_answer_has_cached_tokens() -> None:
    """Where metadata has no usage, the answer's counts."""
    usage = {"prompt_tokens": 900, "prompt_tokens_details": {"cached_tokens": 512}}
    (call,) = calls_of(payload(1, 0, 900, None, response={"usage": usage}))
    assert call.cached == 512


def test_more_cached_tokens_than_input_are_added() -> None:
    """Cached tokens that can't be part of the input are added to it, and noted."""
    row = spend(1, 0, 4, 512)
    assert [(call.isl, call.cached) for call in calls_of(row)] == [(516, 512)]
    assert notes_of(row) == {"calls with more cached tokens than input, added to it": 1}


@pytest.mark.parametrize("metadata", ["{", "[]", "null", "", None, 3, '{"usage_object": 3}'])
def test_metadata_that_is_none(metadata: object) -> None:
    """Metadata that is no object costs the cached count only."""
    (call,) = calls_of(spend(1, 0, 900, metadata=metadata))
    assert (call.isl, call.cached) == (900, None)


def test_a_request_in_two_files_counts_once() -> None:
    """Rows with one request id, in one file or two, are one call."""
    (session,), notes = every([spend(1, 0, 900), spend(1, 0, 900)], [spend(1, 0, 900)])
    assert len(session.calls) == 1
    assert notes == {"calls that were read before, left out": 2}


# --- Sessions -------------------------------------------------------------------------------------


def test_a_session_is_what_rows_name_together() -> None:
    """Rows with one session id are a session, those with another are another."""
    rows = [spend(n, 5 * n, 100 + n, session_id="ab"[n % 2]) for n in range(4)]
    sessions, _ = every(rows)
    assert [(session.id, len(session.calls)) for session in sessions] == [("a", 2), ("b", 2)]


def test_a_trace_id_is_a_session_too() -> None:
    """Loggers have a trace id instead of a session id."""
    rows = [payload(n, 5 * n, 100 + n, None, trace_id="t") for n in range(2)]
    assert len(calls_of(*rows)) == 2


def test_an_id_of_one_row_is_no_evidence() -> None:
    """Rows with an id each, and texts, are grouped by what their prompts continue."""
    rows = [payload(n, 5 * n, 400 + 100 * n, HISTORY[: 2 * n]) for n in (1, 2, 3)]
    other = payload(9, 7, 300, [{"role": "user", "content": "z" * 900}])
    sessions, _ = every([*rows, other])
    assert [(session.id, len(session.calls)) for session in sessions] == [
        ("trace-1", 3),
        ("trace-9", 1),
    ]
    assert [call.shared for call in sessions[0].calls] == [0, 448, 576]


def test_without_texts_rows_with_an_id_each_stay_alone() -> None:
    """Nothing tells that such rows belong together."""
    rows = [spend(n, 5 * n, 900, session_id=f"s{n}") for n in range(3)]
    assert [len(session.calls) for session in every(rows)[0]] == [1, 1, 1]


def test_counts_tell_the_prefix() -> None:
    """Without texts a call continues the one before, unless the input falls: then by its hit."""
    rows = [
        spend(1, 0, 1000, 0),
        spend(2, 5, 1300, 0),
        spend(3, 10, 1600, 1280),
        spend(4, 15, 700, 640),
    ]
    assert [(call.parent, call.shared) for call in calls_of(*rows)] == [
        (None, 0),
        (0, 960),
        (1, 1280),
        (2, 640),
    ]


@pytest.mark.parametrize("field", ["messages", "proxy_server_request"])
def test_stored_prompts_tell_the_prefix(field: str) -> None:
    """Prompts are read from `messages` or from the body of the request, as JSON text."""
    rows = []
    for n in (1, 2, 3):
        held = HISTORY[: 2 * n]
        stored = dumped(held if field == "messages" else {"model": "m", "messages": held})
        rows.append(spend(n, 5 * n, 400 + 100 * n, 64, **{field: stored}))
    assert [call.shared for call in calls_of(*rows)] == [0, 448, 576]


@pytest.mark.parametrize(
    "stored",
    [
        {"messages": "redacted-by-litellm"},
        {"messages": [{"role": "user", "content": "redacted-by-litellm"}]},
        {"messages": "{}", "proxy_server_request": dumped(
            {"messages": [{"role": "user", "content": "redacted-by-litellm"}], "input": ""})},
        {"messages": {}},
        {"messages": []},
        {"messages": "[{"},
    ],
    ids=str,
)  # fmt: skip
def test_redacted_prompts_are_none(stored: Row) -> None:
    """What stands for a prompt is not taken for one: counts tell the prefix."""
    calls = calls_of(spend(1, 0, 1000, 0, **stored), spend(2, 5, 1500, 960, **stored))
    assert [call.shared for call in calls] == [0, 960]
    assert len(every([spend(n, n, 100, session_id=f"s{n}", **stored) for n in (1, 2)])[0]) == 2


def test_another_system_prompt_is_another_agent() -> None:
    """In a session with texts, a call with another system prompt is a subagent's."""
    explorer = [{"role": "system", "content": "x" * 500}, {"role": "user", "content": "y"}]
    rows = [
        payload(1, 0, 400, HISTORY[:2], trace_id="t", model_parameters={"tools": [{"a": 1}]}),
        payload(2, 5, 300, explorer, trace_id="t", model_parameters={"tools": [{"a": 1}]}),
    ]
    assert [call.agent for call in calls_of(*rows)] == ["", "agent 1"]


def test_no_text_is_kept() -> None:
    """What is kept of a file holds no message."""
    row = payload(1, 0, 100, [{"role": "user", "content": "very secret words"}])
    part = litellm.read([(1, row)], PurePath("f"), Reading(b"k"), Notes())
    assert "secret" not in repr(part)


# --- What it is and what it is not ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (spend(1, 0, 100), True),
        (payload(1, 0, 100, None), True),
        ({"call_type": None, "startTime": None}, True),
        ({"startTime": 1, "traceId": "t", "type": "GENERATION"}, False),
        ({"call_type": "completion"}, False),
        ([spend(1, 0, 100)], False),
        ("call_type startTime", False),
        (None, False),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_recognised(value: object, expected: bool) -> None:
    """A kind of call and a start make a row of LiteLLM."""
    assert litellm.recognises(value) is expected


def test_other_lines_are_noted() -> None:
    """What is no row is counted and left out."""
    assert notes_of(3, None, {"a": 1}, spend(1, 0, 100)) == {
        "lines that are no logged requests, left out": 3
    }


def valid() -> list[Any]:
    """Rows of all kinds."""
    body = dumped({"messages": HISTORY[:4], "metadata": {"user_id": "u"}})
    return [
        spend(1, 0, 900, 512),
        spend(2, 5, 1000, 896),
        spend(3, 9, 1200, proxy_server_request=body),
        *(payload(n, 5 * n, 400 + 100 * n, HISTORY[: 2 * n]) for n in (4, 5)),
    ]


@settings(deadline=None, max_examples=300)
@given(
    readers.damaged(valid(), readers.any_json("[", "{}", '{"messages": [3]}')),
    st.sampled_from([None, 4.0]),
)
def test_any_value_in_any_place_is_survived(rows: list[Any], chars: float | None) -> None:
    """Whatever stands in whatever field, in whatever order: the rules of the model hold."""
    reading = Reading(b"key", chars_per_token=chars)
    readers.assert_survives(litellm, {"f": rows}, reading, may_refuse=True)


# --- The shared sample ----------------------------------------------------------------------------


@needs_shared
def test_the_shared_payload() -> None:
    """A payload as a JSON logger writes it, with stamps as text: one call of 10 and 20 tokens."""
    row = orjson.loads((SHARED / "data/formats/litellm/standard_logging_payload.json").read_bytes())
    assert litellm.recognises(row)
    (session,), notes = every([row])
    (call,) = session.calls
    assert (call.isl, call.osl, call.cached, call.model) == (10, 20, None, "gpt-4o")
    assert call.end_s == pytest.approx(0.004583, abs=1e-5)
    assert session.start_s == pytest.approx(1_737_710_446.847371)
    assert notes == {}


@needs_shared
def test_a_span_for_langfuse_is_no_row() -> None:
    """A span in the shape that LiteLLM sends on is not of this format."""
    path = SHARED / "data/formats/litellm/langfuse_generation_with_session.json"
    assert not litellm.recognises(orjson.loads(path.read_bytes()))
