"""The OpenTelemetry reader: exports of spans and log records in, sessions and notes out."""

from __future__ import annotations

import random
from base64 import b64encode
from collections.abc import Iterable
from itertools import pairwise
from pathlib import PurePath
from typing import Any

import orjson
import pytest
import readers
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import SHARED, needs_shared

from agentreplay.errors import TraceError
from agentreplay.trace.formats import otel
from agentreplay.trace.model import Call, Notes, Session
from agentreplay.trace.recorded import Reading

Row = dict[str, Any]

SAMPLES = SHARED / "data" / "formats" / "otel"
T0 = 1_767_225_600  # 2026-01-01T00:00:00Z
TRACE = "6513270e269e0d37f2a74de452e6b438"
CHAT = "gen_ai.operation.name"
INPUT, OUTPUT = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
READ = "gen_ai.usage.cache_read.input_tokens"
CREATED = "gen_ai.usage.cache_creation.input_tokens"
CONVERSATION = "gen_ai.conversation.id"
MESSAGES = "gen_ai.input.messages"


def wrapped(value: object) -> Row:
    """A value as OTLP JSON has it."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [wrapped(each) for each in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": keyed(value)}}
    return {"stringValue": value}


def keyed(attributes: Row) -> list[Row]:
    """Attributes as OTLP JSON has them."""
    return [{"key": key, "value": wrapped(value)} for key, value in attributes.items()]


def span(number: int, start: float, end: float | None, parent: int = 0, **more: Any) -> Row:
    """A span with an id made of *number*, in seconds after `T0`; without a parent where 0."""
    attributes = more.pop("attributes", {})
    made: Row = {
        "traceId": TRACE,
        "spanId": f"{number:016x}",
        "name": "span",
        "startTimeUnixNano": str(int((T0 + start) * 1e9)),
        "attributes": keyed(attributes),
    }
    if end is not None:
        made["endTimeUnixNano"] = str(int((T0 + end) * 1e9))
    if parent:
        made["parentSpanId"] = f"{parent:016x}"
    return made | more


def chat(
    number: int, start: float, end: float | None, isl: object, parent: int = 0, **more: Any
) -> Row:
    """A span of an LLM call with 10 tokens of output."""
    attributes = {CHAT: "chat", "gen_ai.request.model": "m", INPUT: isl, OUTPUT: 10}
    return span(number, start, end, parent, attributes=attributes | more.pop("attrs", {}), **more)


def agent(number: int, start: float, end: float, parent: int = 0, name: str = "coder") -> Row:
    """A span of an agent, with the summed usage of its calls."""
    attributes = {CHAT: "invoke_agent", "gen_ai.agent.name": name, INPUT: 9_999, OUTPUT: 99}
    return span(number, start, end, parent, attributes=attributes)


def export(*spans: object, service: str = "demo", scope: str = "lib") -> Row:
    """An export request."""
    scoped = [{"scope": {"name": scope, "version": "1"}, "spans": list(spans)}]
    about = {"attributes": keyed({"service.name": service})}
    return {"resourceSpans": [{"resource": about, "scopeSpans": scoped}]}


def event(name: str, end: float, **attributes: Any) -> Row:
    """A log record whose values are text."""
    given = {"session.id": "S", "event.name": name.partition(".")[2]}
    given |= {key.replace("__", "."): str(value) for key, value in attributes.items()}
    return {
        "timeUnixNano": str(int((T0 + end) * 1e9)),
        "body": {"stringValue": name},
        "attributes": keyed(given),
    }


def request(end: float, duration_ms: int, uncached: int, read: int = 0, **more: Any) -> Row:
    """Claude Code's event of a request, with 10 tokens of output."""
    return event(
        "claude_code.api_request",
        end,
        **{"model": "m", "output_tokens": 10, "cache_creation_tokens": 0}
        | {"duration_ms": duration_ms, "input_tokens": uncached, "cache_read_tokens": read}
        | more,
    )


def logs(*events: object) -> Row:
    """An export request of log records."""
    return {"resourceLogs": [{"resource": {}, "scopeLogs": [{"logRecords": list(events)}]}]}


def every(
    *files: Iterable[object], chars_per_token: float | None = None
) -> tuple[list[Session], Notes]:
    """The sessions of files, each given by its records, and all notes."""
    reading = Reading(b"key", chars_per_token=chars_per_token)
    found, notes = readers.drafts(otel, readers.numbered(files), reading)
    sessions, more = readers.put_together(found)
    notes.merge(more)
    return sessions, notes


def sessions_of(*records: object) -> list[Session]:
    """The sessions of one file."""
    return every(records)[0]


def calls_of(*records: object) -> tuple[Call, ...]:
    """The calls of the only session of one file."""
    (session,) = sessions_of(*records)
    return session.calls


def notes_of(*records: object) -> Notes:
    """The notes of one file."""
    return every(records)[1]


def sample(name: str) -> list[Any]:
    """The records of a shared file."""
    data = (SAMPLES / name).read_bytes()
    return [orjson.loads(line) for line in data.splitlines()] if "jsonl" in name else [
        orjson.loads(data)
    ]  # fmt: skip


# --- What is a call -------------------------------------------------------------------------------


def test_the_worked_example_is_one_call() -> None:
    """The example of the format: one call of 2.9 s, 1200 in, 64 out, in session c1."""
    example = (
        b'{"resourceSpans":[{"resource":{"attributes":[]},"scopeSpans":[{"scope":{"name":"x"},'
        b'"spans":[{"traceId":"6513270e269e0d37f2a74de452e6b438","spanId":"d23f0824128b2f33",'
        b'"name":"chat m","kind":3,"startTimeUnixNano":"1767225600200000000",'
        b'"endTimeUnixNano":"1767225603100000000","attributes":['
        b'{"key":"gen_ai.operation.name","value":{"stringValue":"chat"}},'
        b'{"key":"gen_ai.conversation.id","value":{"stringValue":"c1"}},'
        b'{"key":"gen_ai.usage.input_tokens","value":{"intValue":"1200"}},'
        b'{"key":"gen_ai.usage.output_tokens","value":{"intValue":"64"}}],"status":{}}]}]}]}'
    )
    (session,) = sessions_of(orjson.loads(example))
    (call,) = session.calls
    assert (session.id, call.isl, call.osl, call.timed) == ("c1", 1200, 64, True)
    assert session.start_s == pytest.approx(T0 + 0.2)
    assert call.end_s == pytest.approx(2.9, abs=1e-5)


@pytest.mark.parametrize("kind", ["chat", "generate_content", "text_completion"])
def test_operations_that_are_calls(kind: str) -> None:
    """Chat, content generation and text completion are LLM calls."""
    assert len(calls_of(export(chat(1, 0, 1, 100, attrs={CHAT: kind})))) == 1


@pytest.mark.parametrize("kind", ["embeddings", "execute_tool", "invoke_agent", "retrieval", "new"])
def test_operations_that_are_no_calls(kind: str) -> None:
    """Agents' spans with summed usage, tools, embeddings and unknown operations are no calls."""
    records = export(chat(1, 0, 1, 100), chat(2, 2, 3, 200, attrs={CHAT: kind}))
    assert [call.isl for call in calls_of(records)] == [100]


def test_tokens_of_other_operations_are_noted() -> None:
    """A span of another operation that has tokens is counted."""
    records = export(chat(1, 0, 1, 100), chat(2, 2, 3, 200, attrs={CHAT: "embeddings"}))
    assert notes_of(records) == {"spans of other operations with tokens, left out": 1}


@pytest.mark.parametrize(
    "attributes",
    [
        {"llm.request.type": "chat", "gen_ai.usage.prompt_tokens": 7,
         "gen_ai.usage.completion_tokens": 3, "gen_ai.usage.cache_read_input_tokens": 5},
        {"llm.request.type": "completion", "llm.usage.prompt_tokens": "7",
         "llm.usage.completion_tokens": 3.0, "llm.usage.cache_read_input_tokens": 5},
        {"openinference.span.kind": "LLM", "llm.token_count.prompt": 7,
         "llm.token_count.completion": 3, "llm.token_count.prompt_details.cache_read": 5},
        {"langfuse.observation.type": "generation", "langfuse.observation.usage_details":
         '{"input": 7, "output": 3, "cache_read_input_tokens": 5}'},
        {INPUT: 7, OUTPUT: 3, READ: 5},
    ],
    ids=["traceloop", "older traceloop", "openinference", "langfuse", "a server without operation"],
)  # fmt: skip
def test_names_of_libraries(attributes: Row) -> None:
    """Kinds and counts are found under the names that older and other libraries give them."""
    (call,) = calls_of(export(span(1, 0, 1, attributes=attributes)))
    assert (call.isl, call.osl, call.cached) == (7, 3, 5)


def test_of_nested_spans_of_one_call_the_innermost_counts() -> None:
    """A framework's span around an SDK's, both with usage, is left out and noted."""
    records = export(chat(2, 0.1, 0.9, 100, parent=1), chat(1, 0, 1, 101))
    assert [call.isl for call in calls_of(records)] == [100]
    assert notes_of(records) == {"spans around another span of the same call, left out": 1}


def test_a_span_without_usage_inside_one_with_it_hides_nothing() -> None:
    """Where only the outer of two nested spans has usage, it is the call."""
    inner = span(2, 0.1, 0.9, 1, attributes={CHAT: "chat"})
    assert [call.isl for call in calls_of(export(inner, chat(1, 0, 1, 101)))] == [101]


def test_calls_of_an_agent_inside_a_call_are_others() -> None:
    """A tool or agent that runs inside a call's span makes calls of its own."""
    tool = span(2, 1, 5, 1, attributes={CHAT: "execute_tool"})
    records = export(chat(1, 0, 6, 100), tool, chat(3, 2, 3, 50, parent=2))
    assert [call.isl for call in calls_of(records)] == [100, 50]


@pytest.mark.parametrize(
    ("status", "note"),
    [
        ({"code": 2}, "failed calls without token counts, left out"),
        ({"code": "STATUS_CODE_ERROR"}, "failed calls without token counts, left out"),
        ({}, "calls without token counts, left out"),
    ],
)
def test_calls_without_tokens_are_left_out(status: Row, note: str) -> None:
    """A span without token counts is no usable call; failures are counted apart."""
    bare = span(2, 2, 3, attributes={CHAT: "chat"}, status=status)
    records = export(chat(1, 0, 1, 100), bare)
    assert len(calls_of(records)) == 1
    assert notes_of(records) == {note: 1}


def test_calls_of_zero_tokens() -> None:
    """No input is no call; no output is a call sent with one token."""
    records = export(
        chat(1, 0, 1, 100, attrs={OUTPUT: 0}), chat(2, 2, 3, 0), chat(3, 4, 5, 0, attrs={OUTPUT: 0})
    )
    assert [(call.isl, call.osl) for call in calls_of(records)] == [(100, 0)]
    assert notes_of(records) == {
        "calls without output, sent with one token": 1,
        "calls without token counts, left out": 2,
    }


# --- Ids, stamps and shapes -----------------------------------------------------------------------


def test_times_are_nanoseconds() -> None:
    """Stamps are nanoseconds as text; a call without an end is estimated."""
    calls = calls_of(export(chat(1, 0, 2.5, 100), chat(2, 10, None, 200)))
    assert [(call.start_s, call.timed) for call in calls] == [(0.0, True), (10.0, False)]
    assert calls[0].end_s == pytest.approx(2.5, abs=1e-5)


@pytest.mark.parametrize("start", [None, "", "0", "soon", "-1"])
def test_a_call_without_a_start_is_left_out(start: object) -> None:
    """A span whose start is no time is left out and noted."""
    broken = chat(2, 2, 3, 200) | {"startTimeUnixNano": start}
    records = export(chat(1, 0, 1, 100), broken)
    assert len(calls_of(records)) == 1
    assert notes_of(records) == {"calls without a time, left out": 1}


def base64(value: Any) -> Any:
    """An export whose ids were written in base64."""
    text = orjson.dumps(value).decode()
    for number in range(1, 9):
        text = text.replace(f'"{number:016x}"', f'"{b64encode(number.to_bytes(8)).decode()}"')
    return orjson.loads(text.replace(TRACE, b64encode(bytes.fromhex(TRACE)).decode()))


def tree() -> list[Row]:
    """Two calls of a main agent around two of a subagent, children first."""
    return [
        chat(3, 0, 1, 1000, parent=1),
        chat(4, 3, 4, 500, parent=2),
        chat(5, 5, 6, 600, parent=2),
        agent(2, 2, 7, parent=1, name="explorer"),
        chat(6, 8, 9, 1500, parent=1),
        agent(1, 0, 10),
    ]


def test_ids_in_base64_are_those_in_hex() -> None:
    """A tree with base64 ids gives the same session, under the trace's id in hex."""
    assert sessions_of(base64(export(*tree()))) == sessions_of(export(*tree()))
    assert sessions_of(base64(export(*tree())))[0].id == TRACE


def test_one_span_a_line_is_the_same() -> None:
    """A file exporter's lines, children first and in any order, give the same calls."""
    whole = calls_of(export(*tree()))
    lines = [export(each) for each in tree()]
    for _ in range(5):
        random.Random(7).shuffle(lines)
        assert calls_of(*lines) == whole


def test_a_file_exporters_parts_over_files() -> None:
    """Spans of one trace in several files are one session."""
    (session,), _ = every([export(each) for each in tree()[:3]], [export(*tree()[3:])])
    assert session.calls == calls_of(export(*tree()))


SNAKE = {
    "resourceSpans": "resource_spans",
    "scopeSpans": "scope_spans",
    "traceId": "trace_id",
    "spanId": "span_id",
    "parentSpanId": "parent_span_id",
    "startTimeUnixNano": "start_time_unix_nano",
    "endTimeUnixNano": "end_time_unix_nano",
    "stringValue": "string_value",
    "intValue": "int_value",
}


@pytest.mark.parametrize(
    "names",
    [
        SNAKE,
        {"resourceSpans": "batches"},
        {"scopeSpans": "instrumentationLibrarySpans", "scope": "instrumentationLibrary"},
    ],
    ids=["snake case", "Tempo", "old library spans"],
)
def test_names_of_exporters(names: dict[str, str]) -> None:
    """Snake case, Tempo's batches and the old name of scopes read the same."""
    text = orjson.dumps(export(*tree())).decode()
    for name, other in names.items():
        text = text.replace(f'"{name}"', f'"{other}"')
    record = orjson.loads(text)
    assert otel.recognises(record)
    assert calls_of(record) == calls_of(export(*tree()))


def test_a_span_exported_twice_counts_once() -> None:
    """Of two copies of a span the one with an end is kept."""
    open_end, closed = chat(1, 0, None, 100), chat(1, 0, 2, 100)
    for first, second in ((open_end, closed), (closed, open_end)):
        (call,) = calls_of(export(first), export(second))
        assert call.timed
    assert notes_of(export(closed), export(closed)) == {"records exported twice, counted once": 1}
    (session,), notes = every([export(closed)], [export(closed)])
    assert len(session.calls) == 1
    assert notes == {"calls exported twice, counted once": 1}


def test_spans_printed_by_an_sdk() -> None:
    """Console spans have their ids in `context`, with 0x, and ISO times."""
    printed = {
        "name": "chat m",
        "context": {"trace_id": "0x" + TRACE, "span_id": "0x0000000000000001"},
        "parent_id": None,
        "start_time": "2026-01-01T00:00:00.000000Z",
        "end_time": "2026-01-01T00:00:02.500000Z",
        "attributes": {CHAT: "chat", INPUT: 100, OUTPUT: 10, CONVERSATION: "c"},
        "resource": {"attributes": {"service.name": "x"}},
    }
    assert otel.recognises(printed)
    (session,) = sessions_of(printed)
    assert (session.id, session.start_s, session.calls[0].end_s) == ("c", T0, 2.5)


# --- Sessions and agents --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        CONVERSATION,
        "session.id",
        "langfuse.session.id",
        "traceloop.association.properties.session_id",
    ],
)
def test_a_session_is_named_by_an_attribute(name: str) -> None:
    """Calls of several traces with one session's name are one session."""
    calls = [chat(n, n, n + 0.5, 100 * n, attrs={name: "s"}, traceId=f"{n:032x}") for n in (1, 2)]
    (session,) = sessions_of(export(*calls))
    assert (session.id, len(session.calls)) == ("s", 2)


def test_a_session_without_a_name_is_a_trace() -> None:
    """Without a name, the calls of a trace are a session."""
    calls = [chat(n, n, n + 0.5, 100, traceId=f"{n % 2 + 1:032x}") for n in range(1, 5)]
    sessions = sessions_of(export(*calls))
    assert sorted((session.id, len(session.calls)) for session in sessions) == [
        (f"{1:032x}", 2),
        (f"{2:032x}", 2),
    ]


def test_a_name_counts_for_all_spans_below() -> None:
    """A conversation that only the agent's span names is that of all calls below it."""
    top = agent(1, 0, 9)
    top["attributes"] += keyed({CONVERSATION: "c"})
    below = chat(2, 1, 2, 100, parent=1, attrs={"session.id": "browser"})
    assert [session.id for session in sessions_of(export(below, top))] == ["c"]


def test_a_nested_agent_is_a_subagent() -> None:
    """Calls below an agent's span inside another's are of "agent 1"."""
    calls = calls_of(export(*tree()))
    assert [call.agent for call in calls] == ["", "agent 1", "agent 1", ""]
    assert calls[3].after == (0, 1, 2)


def test_each_turn_of_the_main_agent_is_the_main_agent() -> None:
    """Agents' spans that lie in no other are the main agent, one for each turn."""
    turns = [agent(1, 0, 3), agent(2, 4, 9), chat(3, 1, 2, 100, 1), chat(4, 5, 6, 200, 2)]
    assert [call.agent for call in calls_of(export(*turns))] == ["", ""]


def test_a_span_around_that_of_the_same_agent_is_no_parent() -> None:
    """A framework's second span for the same agent makes no subagent."""
    records = export(agent(1, 0, 9), agent(2, 0, 9, parent=1), chat(3, 1, 2, 100, parent=2))
    assert [call.agent for call in calls_of(records)] == [""]


def test_an_agent_below_a_tool_is_a_subagent() -> None:
    """An agent that a tool runs is a subagent, also one of the same name."""
    tool = span(2, 1, 8, 1, attributes={CHAT: "execute_tool"})
    inner = [agent(3, 1, 8, parent=2), chat(4, 2, 3, 100, parent=3)]
    records = export(agent(1, 0, 9), chat(5, 0, 0.5, 90, parent=1), tool, *inner)
    assert [call.agent for call in calls_of(records)] == ["", "agent 1"]


def test_a_call_inside_a_tool_is_another_agents() -> None:
    """What a tool of an agent asks a model is no part of the agent's conversation."""
    tool = span(2, 2, 5, 1, attributes={CHAT: "execute_tool"})
    calls = [chat(3, 0, 1, 100, 1), chat(4, 3, 4, 50, 2), chat(5, 6, 7, 200, 1)]
    found = calls_of(export(agent(1, 0, 9), tool, *calls))
    assert [call.agent for call in found] == ["", "agent 1", ""]


def test_without_agents_spans_services_are_agents() -> None:
    """Calls of another service than the first call's are another agent's."""
    records = [export(chat(n, n, n + 0.5, 100), service=s) for n, s in enumerate("aba", 1)]
    assert [call.agent for call in calls_of(*records)] == ["", "agent 1", ""]


def test_parents_in_a_circle_end_the_climb() -> None:
    """Spans that are each other's parents, or their own, are read as if they had none."""
    records = export(chat(1, 0, 1, 100, parent=2), agent(2, 0, 1, parent=1), chat(3, 2, 3, 50, 3))
    assert len(calls_of(records)) == 2


def test_a_deep_tree_is_climbed() -> None:
    """Ten thousand spans inside each other are no problem."""
    spans = [span(n, 0, 1, n - 1) for n in range(1, 10_000)]
    assert len(calls_of(export(*spans, chat(10_000, 0, 1, 100, 9_999)))) == 1


# --- Cached tokens and prefixes -------------------------------------------------------------------


def test_cached_tokens_are_part_of_the_input() -> None:
    """Where no call has more cached tokens than input, they are inside it."""
    calls = calls_of(export(chat(1, 0, 1, 1000, attrs={READ: 900, CREATED: 100})))
    assert [(call.isl, call.cached) for call in calls] == [(1000, 900)]


def test_cached_tokens_beside_the_input_are_added() -> None:
    """More cached tokens than input are beside it, then in all calls that the library recorded."""
    records = export(
        chat(1, 0, 1, 4, attrs={READ: 0, CREATED: 2000}),
        chat(2, 2, 3, 6, attrs={READ: 2000, CREATED: 100}),
        chat(3, 4, 5, 3000, attrs={READ: 2100, CREATED: 50}),
    )
    calls = calls_of(records)
    assert [(call.isl, call.cached) for call in calls] == [(2004, 0), (2106, 2000), (5150, 2100)]
    what = "calls whose cached tokens are not part of the input, added to it"
    assert notes_of(records)[what] == 3


def test_one_odd_call_is_no_convention() -> None:
    """A single call with more cached tokens than input changes no other call."""
    calls = [chat(n, n, n + 0.5, 1000, attrs={READ: 900}) for n in range(5)]
    odd = chat(9, 9, 9.5, 10, attrs={READ: 900})
    assert [call.isl for call in calls_of(export(*calls, odd))] == [1000] * 5 + [910]


def test_counts_tell_the_prefix() -> None:
    """A call continues its agent's last one, wholly: an expired cache is no other prompt."""
    sizes = [(1000, 0), (1300, 960), (1600, 0), (700, 640)]
    calls = calls_of(
        export(*(chat(n, 2 * n, 2 * n + 1, i, attrs={READ: c}) for n, (i, c) in enumerate(sizes)))
    )
    assert [(call.parent, call.shared) for call in calls] == [
        (None, 0),
        (0, 960),
        (1, 1280),
        (2, 640),
    ]


def test_another_model_shares_nothing_without_a_hit() -> None:
    """A switch of the model begins anew, but for what the cache gave."""
    other = {"gen_ai.request.model": "other"}
    calls = calls_of(
        export(
            chat(1, 0, 1, 1000, attrs={READ: 500}),
            chat(2, 2, 3, 1300, attrs={READ: 0} | other),
            chat(3, 4, 5, 1400, attrs={READ: 512}),
        )
    )
    assert [(call.parent, call.shared) for call in calls] == [(None, 0), (None, 0), (0, 512)]


def test_calls_at_the_same_time_continue_each_other_not() -> None:
    """A call continues one that had ended, not one that was in flight."""
    calls = calls_of(
        export(
            chat(1, 0, 1, 1000, attrs={READ: 0}),
            chat(2, 3, 20, 1100, attrs={READ: 960}),
            chat(3, 4, 20, 1200, attrs={READ: 960}),
        )
    )
    assert [call.parent for call in calls] == [None, 0, 0]


def test_without_counts_or_texts_nothing_is_shared() -> None:
    """Growing inputs alone are no evidence of a common prefix."""
    calls = calls_of(export(chat(1, 0, 1, 1000), chat(2, 2, 3, 1100, attrs={READ: 0})))
    assert [call.shared for call in calls] == [0, 0]


def message(role: str, text: str) -> Row:
    """A message of one text."""
    return {"role": role, "parts": [{"type": "text", "content": text}]}


HISTORY = [
    message("user", "a" * 800),
    message("assistant", "b" * 100),
    message("user", "c" * 300),
    message("assistant", "d" * 50),
    message("user", "e" * 50),
]


@pytest.mark.parametrize("as_text", [True, False], ids=["JSON text", "structured"])
def test_messages_tell_the_prefix(as_text: bool) -> None:
    """Where prompts were captured, equal messages are the prefix, whatever the counts say."""
    spans = []
    for n, length in enumerate((1, 3, 5)):
        held = HISTORY[:length]
        attrs = {MESSAGES: orjson.dumps(held).decode() if as_text else held, READ: 64}
        spans.append(chat(n, 10 * n, 10 * n + 1, 500 + 200 * n, attrs=attrs))
    calls = calls_of(export(*spans))
    assert [(call.parent, call.shared) for call in calls] == [(None, 0), (0, 448), (1, 640)]


def test_numbered_messages_tell_the_prefix() -> None:
    """Messages with an attribute a field, of either library, read like a list."""
    for prefix, inner in (("gen_ai.prompt.", ""), ("llm.input_messages.", "message.")):
        spans = []
        for n, length in enumerate((1, 3)):
            attrs = {
                f"{prefix}{i}.{inner}{name}": value
                for i, each in enumerate(HISTORY[:length])
                for name, value in (
                    ("role", each["role"]),
                    ("content", each["parts"][0]["content"]),
                )
            }
            spans.append(chat(n, 10 * n, 10 * n + 1, 500 + 200 * n, attrs=attrs))
        assert [call.shared for call in calls_of(export(*spans))] == [0, 448]


def test_messages_of_events_tell_the_prefix() -> None:
    """Older libraries put the prompt into an event of the span."""
    spans = []
    for n, length in enumerate((1, 3)):
        text = orjson.dumps(HISTORY[:length]).decode()
        event = {"name": "gen_ai.content.prompt", "attributes": keyed({"gen_ai.prompt": text})}
        spans.append(chat(n + 1, 10 * n, 10 * n + 1, 500 + 200 * n, events=[event]))
    assert [call.shared for call in calls_of(export(*spans))] == [0, 448]


def test_messages_that_are_not_the_whole_prompt_are_not_used() -> None:
    """Equal messages of prompts of different lengths say nothing: counts do."""
    held = orjson.dumps(HISTORY[:1]).decode()
    records = export(
        chat(1, 0, 1, 1000, attrs={MESSAGES: held, READ: 0}),
        chat(2, 2, 3, 1500, attrs={MESSAGES: held, READ: 960}),
    )
    assert [call.shared for call in calls_of(records)] == [0, 960]
    assert notes_of(records) == {
        "sessions whose messages are not the whole prompts, prefixes from counts": 1
    }


def test_new_messages_only_are_not_the_prompt() -> None:
    """Calls that hit the cache but begin like none before have only their new messages."""
    records = export(
        *(
            chat(n, 2 * n, 2 * n + 1, 1000 + 200 * n,
                 attrs={MESSAGES: orjson.dumps([each]).decode(), READ: 900 * bool(n)})
            for n, each in enumerate(HISTORY)
        )
    )  # fmt: skip
    assert [call.shared for call in calls_of(records)] == [0, 960, 1152, 1344, 1600]


def test_messages_that_were_cut_lose_no_call() -> None:
    """JSON that an attribute's limit has cut costs the prefix only, and is noted."""
    records = export(chat(1, 0, 1, 100, attrs={MESSAGES: '[{"role": "us'}))
    assert len(calls_of(records)) == 1
    assert notes_of(records) == {"prompts that are cut or no messages, prefix not known": 1}


def test_no_text_is_kept() -> None:
    """What is kept of a file holds no message and no agent's name."""
    secret = message("user", "very secret words")
    records = [export(agent(1, 0, 9, name="very secret agent"), chat(2, 1, 2, 100, parent=1,
               attrs={MESSAGES: orjson.dumps([secret]).decode()}))]  # fmt: skip
    part = otel.read(enumerate(records, 1), PurePath("f"), Reading(b"k"), Notes())
    assert "secret" not in repr(part)


# --- Flat spans -----------------------------------------------------------------------------------


def flat(number: str, start: str, end: str, attributes: Row, service: str = "a") -> Row:
    """A span of one trace with plain attributes; stamps are seconds after `T0`."""
    return {
        "trace_id": "t",
        "span_id": number,
        "parent_span_id": None,
        "start_time": f"2026-01-01T00:00:{start}",
        "end_time": f"2026-01-01T00:00:{end}",
        "attributes": {CHAT: "chat", "exgentic.session.id": "same name"} | attributes,
        "resource_attributes": {"service.name": service},
        "status": {"code": 1},
    }


TEXT = orjson.dumps([{"role": "user", "content": "x" * 396}]).decode()


def test_flat_spans_without_lengths_need_a_length_of_tokens() -> None:
    """Texts without token counts are refused with what supplies the lengths."""
    record = {"spans": [flat("a", "00", "02", {MESSAGES: TEXT})]}
    with pytest.raises(TraceError, match=r"^0\.jsonl: .* --chars-per-token"):
        sessions_of(record)


def test_flat_spans_are_measured_by_their_texts() -> None:
    """Zoneless times are UTC; lengths are characters over characters a token, rounded up."""
    spans = [flat("a", "00", "02.5", {MESSAGES: TEXT, "gen_ai.output.text": "y" * 9})]
    (session,), _ = every([{"spans": spans}], chars_per_token=4)
    (call,) = session.calls
    assert (session.id, session.start_s, call.end_s) == ("same name", T0, 2.5)
    assert (call.isl, call.osl) == (100, 3)


def test_a_flat_record_is_a_session_of_its_own() -> None:
    """Different recordings under one session's name stay apart; a copy of one is left out."""
    first = {"session_id": "s", "spans": [flat("a", "00", "02", {INPUT: 10, OUTPUT: 1})]}
    second = {"session_id": "s", "spans": [flat("a", "30", "32", {INPUT: 20, OUTPUT: 1})]}
    sessions, _ = every([first, second], [first])
    assert [(session.id, len(session.calls)) for session in sessions] == [("same name", 1)] * 2


def test_exgentic_rows() -> None:
    """A span of type llm_call is a call; failures without tokens and others are left out."""
    call = flat("a", "00", "02", {INPUT: 10, OUTPUT: 1, CHAT: None}) | {"type": "llm_call"}
    failed = flat("b", "03", "04", {INPUT: 0, OUTPUT: 0}) | {"status": {"code": 2}, "type": None}
    other = flat("c", "05", "06", {CHAT: None}) | {"type": "tool"}
    row = {"session_id": "s", "harness": "h", "models": ["m"], "spans": [call, failed, other]}
    assert [call.isl for call in calls_of(row)] == [10]
    assert notes_of(row) == {"failed calls without token counts, left out": 1}


def test_agents_that_are_services_are_joined() -> None:
    """A call waits for all agents that its own agent set off."""
    counts = {INPUT: 100, OUTPUT: 10}
    spans = [
        flat("a", "00", "01.5", counts, "main"),
        flat("b", "02", "05", counts, "x"),
        flat("c", "02.5", "06", counts, "y"),
        flat("d", "08", "09", counts, "main"),
    ]
    calls = calls_of({"trace_id": "t", "spans": spans})
    assert [call.agent for call in calls] == ["", "agent 1", "agent 2", ""]
    assert calls[3].after == (0, 1, 2)


# --- Logs of agents -------------------------------------------------------------------------------


def test_a_log_events_time_is_the_end() -> None:
    """Start is the record's time less the duration; the input is the sum of the three counts."""
    first, second = calls_of(
        logs(request(3.1, 3100, 4, 12_000, cache_creation_tokens=900)),
        logs(request(7, 2100, 5, 12_900)),
    )
    assert (first.start_s, first.isl, first.cached) == (0.0, 12_904, 12_000)
    assert first.end_s == pytest.approx(3.1, abs=1e-5)
    assert second.start_s == pytest.approx(4.9, abs=1e-5)
    assert (second.timed, second.parent, second.shared) == (True, 0, 12_864)


@pytest.mark.parametrize("zero", ["0", 0, None])
def test_an_event_without_a_time_has_other_stamps(zero: object) -> None:
    """Where a record's time is 0, the event's own stamp counts, then the collector's."""
    record = request(0, 1000, 100, event__timestamp="2026-01-01T00:00:05.000Z")
    record |= {"timeUnixNano": zero, "observedTimeUnixNano": str((T0 + 6) * 10**9)}
    assert sessions_of(logs(record))[0].start_s == pytest.approx(T0 + 4)
    record["attributes"] = [a for a in record["attributes"] if a["key"] != "event.timestamp"]
    assert sessions_of(logs(record))[0].start_s == pytest.approx(T0 + 5)


@pytest.mark.parametrize("missing", ["body", "event.name"])
def test_an_events_name_may_be_missing_in_one_place(missing: str) -> None:
    """The event is told by the body or by the attribute."""
    record = request(3, 1000, 100)
    if missing == "body":
        del record["body"]
    record["attributes"] = [a for a in record["attributes"] if a["key"] != missing]
    assert len(calls_of(logs(record))) == 1


def test_helpers_and_subagents_of_claude_code() -> None:
    """Auxiliary requests are helpers, those of subagents are agents'; a helper grows not."""
    calls = calls_of(
        logs(
            request(1, 500, 1000),
            request(2, 500, 10, 500, query_source="auxiliary"),
            request(3, 500, 700, query_source="subagent"),
            request(4, 500, 900, query_source="auxiliary"),
            request(5, 500, 100, 1000, query_source="main"),
        )
    )
    assert [call.agent for call in calls] == ["", "helper 1", "agent 1", "helper 1", ""]
    assert [call.parent for call in calls] == [None, 0, None, None, 0]


def test_calls_in_logs_and_spans_count_once() -> None:
    """Of a session that both kinds of telemetry have, the log events count."""
    records = [
        logs(request(1, 500, 1000), request(3, 500, 1100)),
        export(chat(1, 0.5, 1, 1000, attrs={"session.id": "S"})),
    ]
    assert [call.isl for call in calls_of(*records)] == [1000, 1100]
    assert notes_of(*records) == {"spans of calls that are in the logs too, left out": 1}


def test_other_events_are_no_calls() -> None:
    """Failed requests are counted; prompts and tools are passed over."""
    records = [
        logs(request(1, 500, 1000)),
        logs(event("claude_code.api_error", 2, status_code=529, duration_ms=3)),
        logs(event("claude_code.tool_result", 3, duration_ms=3)),
    ]
    assert len(calls_of(*records)) == 1
    assert notes_of(*records) == {"failed requests, left out": 1}


def test_an_event_exported_twice_counts_once() -> None:
    """Equal events, in one file or two, are one call."""
    record = logs(request(1, 500, 1000, event__sequence=3))
    (session,), _ = every([record, record], [record])
    assert len(session.calls) == 1


def test_codex_calls_begin_at_their_request() -> None:
    """Usage stands on the last event of the answer, the start on the request's event."""

    def codex(name: str, end: float, **more: Any) -> Row:
        return event(name, end, **{"conversation__id": "c", "session__id": ""} | more)

    records = logs(
        codex("codex.api_request", 1, duration_ms=1000),
        codex("codex.sse_event", 2, event__kind="response.created"),
        codex("codex.sse_event", 5, event__kind="response.completed", input_token_count=100,
              cached_token_count=64, output_token_count=7, reasoning_token_count=3, model="m"),
        codex("codex.api_request", 7, duration_ms=500),
        codex("codex.sse_event", 9, event__kind="response.completed", input_token_count=150,
              cached_token_count=64, output_token_count=5, model="m"),
    )  # fmt: skip
    (session,) = sessions_of(records)
    assert session.id == "c"
    found = [(c.start_s, c.end_s, c.isl, c.osl, c.cached) for c in session.calls]
    assert found == [
        pytest.approx((0, 5, 100, 7, 64), abs=1e-5),
        pytest.approx((6.5, 9, 150, 5, 64), abs=1e-5),
    ]


def test_a_call_without_a_start_is_estimated() -> None:
    """An event without a duration is a call that is not timed, and noted."""
    record = request(9, 0, 100)
    record["attributes"] = [a for a in record["attributes"] if a["key"] != "duration_ms"]
    records = [logs(request(1, 1000, 50)), logs(record)]
    calls = calls_of(*records)
    assert [call.timed for call in calls] == [True, False]
    assert calls[1].end_s == pytest.approx(9, abs=1e-5)
    assert notes_of(*records) == {"calls without a start, estimated": 1}


def test_gemini_thoughts_are_output() -> None:
    """Gemini CLI counts thoughts beside the output, cached tokens inside the input."""
    (call,) = calls_of(
        logs(event("gemini_cli.api_response", 2, duration_ms=1000, input_token_count=100,
                   output_token_count=5, thoughts_token_count=7, cached_content_token_count=64))
    )  # fmt: skip
    assert (call.isl, call.osl, call.cached) == (100, 12, 64)


# --- What it is and what it is not ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (export(), True),
        (logs(), True),
        ({"batches": [{"scopeSpans": []}]}, True),
        ({"batches": [{"id": 1}]}, False),
        ({"spans": [flat("a", "00", "01", {})]}, True),
        ({"spans": [{"name": "x"}, 3]}, False),
        ({"spans": []}, False),
        ({"resourceMetrics": []}, False),
        ({"resourceSpans": None}, False),
        ({"context": {}, "attributes": {}}, False),
        ({"call_type": "completion", "startTime": 1}, False),
        ([export()], False),
        (None, False),
    ],
    ids=str,
)
def test_what_is_recognised(value: object, expected: bool) -> None:
    """Exports of spans or logs, lists of flat spans, and printed spans are of this format."""
    assert otel.recognises(value) is expected


def valid() -> list[Any]:
    """Records of all kinds."""
    held = orjson.dumps(HISTORY[:3]).decode()
    return [
        *(export(each) for each in tree()),
        export(chat(7, 9, 10, 2000, attrs={MESSAGES: held, READ: 1900, CREATED: 50})),
        logs(request(3.1, 3100, 4, 12_000, event__sequence=1), request(7, 2100, 5, 12_900)),
        {"session_id": "s", "spans": [flat("a", "00", "02", {INPUT: 10, MESSAGES: held})]},
    ]


@settings(deadline=None, max_examples=300)
@given(
    readers.damaged(valid(), readers.any_json("chat", TRACE, "[", "{}")),
    st.sampled_from([None, 4.0]),
)
def test_any_value_in_any_place_is_survived(records: list[Any], chars: float | None) -> None:
    """Whatever stands in whatever field, in whatever order: the rules of the model hold."""
    reading = Reading(b"key", chars_per_token=chars)
    readers.assert_survives(otel, {"f": records}, reading, may_refuse=True)


# --- The shared samples ---------------------------------------------------------------------------


@needs_shared
@pytest.mark.parametrize("name", ["generated_otlp_spec.json", "generated_otlp_file_exporter.jsonl"])
def test_shared_spans(name: str) -> None:
    """The counts of the oracle: one session of five calls, two of them a subagent's."""
    expected = orjson.loads((SHARED / "data/formats/EXPECTED.json").read_bytes())[f"otel/{name}"]
    (session,) = sessions_of(*sample(name))
    assert len(session.calls) == expected["spans"]["chat"]
    assert sum(call.isl for call in session.calls) == expected["input_tokens"]
    assert [call.agent for call in session.calls] == ["", "", "agent 1", "agent 1", ""]
    assert session.calls[4].after == (1, 3)


@needs_shared
def test_shared_logs() -> None:
    """The counts of the oracle: three calls, one of them a helper's."""
    name = "generated_claude_code_logs.jsonl"
    expected = orjson.loads((SHARED / "data/formats/EXPECTED.json").read_bytes())[f"otel/{name}"]
    (session,) = sessions_of(*sample(name))
    assert {
        "llm_calls": len(session.calls),
        "auxiliary": sum(call.agent.startswith("helper") for call in session.calls),
        "input_total": sum(call.isl for call in session.calls),
        "cache_read": sum(call.cached or 0 for call in session.calls),
        "output": sum(call.osl for call in session.calls),
    } == expected


@needs_shared
@pytest.mark.parametrize(
    ("name", "session", "count"),
    [
        ("simple_simple_chain.json", "session", 3),
        ("advanced_parallel_requests.json", "session_002", 5),
        ("advanced_multi_agent_research.json", "session_004", 12),
    ],
)
def test_shared_flat_spans(name: str, session: str, count: int) -> None:
    """Each file is a session; without a length of tokens it is refused."""
    with pytest.raises(TraceError, match="--chars-per-token"):
        sessions_of(*sample(name))
    (found,), _ = every(sample(name), chars_per_token=4)
    assert (found.id, len(found.calls)) == (session, count)
    assert all(a.start_s <= b.start_s for a, b in pairwise(found.calls))


@needs_shared
def test_a_fan_in_waits_for_all() -> None:
    """In the sample of several agents, the coordinator's answer waits for the three of them."""
    (found,), _ = every(sample("advanced_multi_agent_research.json"), chars_per_token=4)
    assert found.calls[4].after == (0, 1, 2, 3)


@needs_shared
def test_shared_samples_are_recognised() -> None:
    """Every record of the shared samples is of this format."""
    for path in SAMPLES.glob("*.json*"):
        assert all(otel.recognises(record) for record in sample(path.name)), path.name


@needs_shared
def test_recorded_starts_are_kept() -> None:
    """A call starts `gap_s` after the last of those that it waits for has ended."""
    for name in ("generated_otlp_spec.json", "generated_claude_code_logs.jsonl"):
        (session,) = sessions_of(*sample(name))
        for call in session.calls:
            since = max((session.calls[i].end_s for i in call.after), default=0.0)
            assert call.gap_s == max(0.0, call.start_s - since)
