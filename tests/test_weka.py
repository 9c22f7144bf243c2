"""The Weka reader: decoded JSON in, a session and notes out."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from typing import Any

import orjson
import pytest
from shared_data import needs_shared, weka_files, weka_sessions

from agentreplay.errors import TraceError
from agentreplay.trace.formats import weka
from agentreplay.trace.model import Call, Notes, Session

Row = dict[str, Any]


def request(t: object, isl: object, ids: object, **fields: object) -> Row:
    """A request of 10 output tokens in one second, unless told otherwise."""
    row: Row = {"t": t, "type": "n", "model": "m", "in": isl, "out": 10, "hash_ids": ids}
    return row | {"api_time": 1.0} | fields


def without(row: Row, *names: str) -> Row:
    """The row without some of its fields."""
    return {name: value for name, value in row.items() if name not in names}


def subagent(t: object, *rows: object, **fields: object) -> Row:
    """An entry that holds the requests of a subagent."""
    return {"t": t, "type": "subagent", "agent_id": "sub", "requests": list(rows)} | fields


def trace(*rows: object, **fields: object) -> Row:
    """A session of blocks of 4 tokens with one namespace of ids."""
    value: Row = {"id": "own", "block_size": 4, "hash_id_scope": "local", "requests": list(rows)}
    return value | fields


def read(value: Row) -> Session:
    """The session alone."""
    return weka.session(value, "own.json")[0]


def notes(value: Row) -> Notes:
    """The notes alone."""
    return weka.session(value, "own.json")[1]


def calls(*rows: object, **fields: object) -> tuple[Call, ...]:
    """The calls of a session made of these rows."""
    return read(trace(*rows, **fields)).calls


def starts(*rows: object, **fields: object) -> list[float]:
    """When the calls of a session made of these rows start."""
    return [call.start_s for call in calls(*rows, **fields)]


EXAMPLE: Row = {
    "id": "example",
    "models": ["large"],
    "block_size": 64,
    "hash_id_scope": "local",
    "tool_tokens": 64,
    "system_tokens": 60,
    "requests": [
        {"t": 0.0, "type": "s", "model": "large", "in": 290, "out": 50, "hash_ids": [7, 8, 9, 10],
         "input_types": ["text"], "output_types": ["tool_use"], "stop": "tool_use",
         "api_time": 2.0, "think_time": 0.0, "ttft": 0.5},
        {"t": 3.1, "type": "subagent", "agent_id": "agent_x", "subagent_type": "Explore",
         "duration_ms": 3900, "total_tokens": 222, "tool_use_count": 2, "status": "completed",
         "models": ["large"], "tool_tokens": 32, "system_tokens": 64,
         "requests": [
             {"t": 0.0, "type": "n", "model": "large", "in": 210, "out": 12,
              "hash_ids": [90, 91, 92], "input_types": ["text"], "output_types": ["text"],
              "stop": "end_turn", "api_time": 3.0, "think_time": 0.0}]},
        {"t": 10.0, "type": "n", "model": "large", "in": 430, "out": 31,
         "hash_ids": [7, 8, 9, 10, 11, 12], "input_types": ["tool_result"],
         "output_types": ["text"], "stop": "end_turn", "api_time": 1.5, "think_time": 8.0},
    ],
    "totals": {"parent_tokens": {"input": 720, "output": 81}, "subagent_count": 1},
}  # fmt: skip

# --- The example ----------------------------------------------------------------------------------


def test_a_session_keeps_its_identity() -> None:
    """A session has the id and block size of its file, knows its source and no arrival."""
    session = weka.session(EXAMPLE, "folder/example.json")[0]
    assert (session.id, session.block_size, session.source, session.start_s) == (
        "example",
        64,
        "folder/example.json",
        None,
    )


@pytest.mark.parametrize("identity", [None, "", 17], ids=["null", "empty", "number"])
def test_a_session_without_a_name_is_called_after_its_source(identity: object) -> None:
    """A session whose id is no text is named by where it was read."""
    assert read(trace(request(0.0, 8, [1, 2]), id=identity)).id == "own.json"


def test_a_subagent_with_relative_times_starts_at_its_entry() -> None:
    """Requests of a subagent stand among the others at the entry's time plus their own."""
    spans = [(call.agent, call.start_s, call.end_s) for call in read(EXAMPLE).calls]
    assert spans == [("", 0.0, 2.0), ("agent_x", 3.1, 6.1), ("", 10.0, 11.5)]


def test_a_prompt_shares_the_blocks_it_has_in_common() -> None:
    """The third call of the example finds four of its six blocks in the first."""
    third = read(EXAMPLE).calls[2]
    assert (third.parent, third.shared, third.isl // 64) == (0, 4 * 64, 6)


def test_lengths_and_model_are_as_recorded() -> None:
    """Input, output and model are those of the request."""
    sizes = [(call.isl, call.osl, call.model) for call in read(EXAMPLE).calls]
    assert sizes == [(290, 50, "large"), (210, 12, "large"), (430, 31, "large")]


def test_tools_and_system_prompt_belong_to_the_agent() -> None:
    """A call's `system` is the sum of its own agent's tools and system tokens."""
    assert [call.system for call in read(EXAMPLE).calls] == [124, 96, 124]


def test_system_is_no_longer_than_the_prompt() -> None:
    """A prompt shorter than its agent's tools and system prompt is all `system`."""
    assert calls(request(0.0, 8, [1, 2]), tool_tokens=20)[0].system == 8


def test_a_parent_waits_for_the_subagent_that_came_and_went() -> None:
    """A call continues its chain, joins the subagent and counts its gap from the later end."""
    third = read(EXAMPLE).calls[2]
    assert third.after == (0, 1)
    assert third.gap_s == pytest.approx(10.0 - 6.1)


def test_what_the_format_defines_is_not_noted() -> None:
    """A file with every field of the format gives no notes."""
    assert notes(EXAMPLE) == {}


def test_reading_leaves_the_value_alone() -> None:
    """The decoded value is the same after it was read."""
    value = deepcopy(EXAMPLE)
    read(value)
    assert value == EXAMPLE


# --- Times ----------------------------------------------------------------------------------------


def test_the_first_call_starts_the_session() -> None:
    """Times count from the first request, whatever the file counts from."""
    assert starts(request(100.0, 8, [1, 2]), request(105.0, 12, [1, 2, 3])) == [0.0, 5.0]


def test_calls_are_in_order_of_start() -> None:
    """A request that stands too late in its file is put where its time says."""
    late_first = calls(request(9.0, 12, [1, 2, 3]), request(0.0, 8, [1, 2]))
    assert [(call.start_s, call.isl) for call in late_first] == [(0.0, 8), (9.0, 12)]


@pytest.mark.parametrize(
    ("entry_t", "inner", "expected"),
    [
        pytest.param(50.0, [0.0, 4.0], [50.0, 54.0], id="first is 0: relative"),
        pytest.param(0.5, [0.0, 4.0], [0.5, 4.5], id="first is 0, entry soon after: relative"),
        pytest.param(50.0, [3.0, 60.0], [53.0, 110.0], id="one before its entry: relative"),
        pytest.param(50.0, [50.0, 54.0], [50.0, 54.0], id="at its entry: absolute"),
        pytest.param(50.0, [49.5, 54.0], [49.5, 54.0], id="a rounding before: absolute"),
        pytest.param(50.0, [120.0, 130.0], [120.0, 130.0], id="all after it: absolute"),
        pytest.param(0.0, [0.0, 4.0], [0.0, 4.0], id="entry at 0: the same"),
    ],
)
def test_inner_times_follow_either_convention(
    entry_t: float, inner: list[float], expected: list[float]
) -> None:
    """Inner times count from the entry where one can only be meant so, else from the session."""
    rows = [request(t, 8, [8, 9]) for t in inner]
    session = calls(request(0.0, 8, [1, 2]), subagent(entry_t, *rows))
    assert [call.start_s for call in session if call.agent] == expected


def test_one_subagent_settles_the_convention_for_all() -> None:
    """Where one entry shows relative times, those of the others are relative too."""
    first = subagent(10.0, request(0.0, 8, [8, 9]), agent_id="a")
    second = subagent(20.0, request(25.0, 8, [8, 9]), agent_id="b")
    assert starts(request(0.0, 8, [1, 2]), first, second) == [0.0, 10.0, 45.0]


@pytest.mark.parametrize("think_time", [None, 0.0, 55.0, 9e9])
def test_think_time_does_not_matter(think_time: float | None) -> None:
    """Waits come from the starts: what `think_time` says changes nothing, as it is cumulative."""
    value = deepcopy(EXAMPLE)
    value["requests"][2]["think_time"] = think_time
    assert read(value) == weka.session(EXAMPLE, "own.json")[0]


def test_a_missing_api_time_is_estimated_at_the_median_speed() -> None:
    """A call without `api_time` takes its output at the session's median speed, not `timed`."""
    measured = [
        request(0.0, 8, [1, 2], out=10, api_time=1.0),
        request(5.0, 8, [1, 2], out=80, api_time=4.0),
        request(10.0, 8, [1, 2], out=160, api_time=4.0),
    ]
    estimated = calls(*measured, without(request(20.0, 8, [1, 2], out=100), "api_time"))[3]
    assert (estimated.timed, estimated.end_s) == (False, 25.0)


@pytest.mark.parametrize("api_time", [None, -1.0, "3.0", True])
def test_an_api_time_that_is_no_duration_is_missing(api_time: object) -> None:
    """Null, a negative number and other types of `api_time` are estimated and noted."""
    value = trace(request(0.0, 8, [1, 2]), request(5.0, 8, [1, 2], api_time=api_time))
    assert read(value).calls[1].timed is False
    assert notes(value) == {"calls without api_time, duration estimated": 1}


def test_an_estimate_ends_before_the_next_call_of_its_agent() -> None:
    """An estimated duration is cut at the start of the agent's next call, so no gap is negative."""
    first, second = calls(
        request(0.0, 8, [1, 2], out=1000, api_time=None), request(3.0, 12, [1, 2, 3])
    )
    assert (first.end_s, second.gap_s) == (3.0, 0.0)


def test_an_estimate_may_run_past_a_call_of_another_agent() -> None:
    """Only the agent's own next call limits an estimate."""
    session = calls(
        request(0.0, 8, [1, 2], out=100, api_time=None),
        subagent(2.0, request(0.0, 8, [8, 9], out=10, api_time=1.0)),
    )
    assert session[0].end_s == 10.0


def test_a_measured_api_time_is_kept_even_where_calls_overlap() -> None:
    """A recorded duration is never cut."""
    assert calls(request(0.0, 8, [1, 2], api_time=9.0), request(3.0, 8, [1, 2]))[0].end_s == 9.0


# --- Odd rows -------------------------------------------------------------------------------------


@pytest.mark.parametrize("out", [0, None], ids=["zero", "null"])
def test_a_call_without_output_is_kept_and_noted(out: object) -> None:
    """A request without output is a call of 0 output tokens."""
    value = trace(request(0.0, 8, [1, 2], out=out))
    assert read(value).calls[0].osl == 0
    assert notes(value) == {"calls without output, sent with one token": 1}


ARROW_COLUMNS = weka.REQUEST_FIELDS | weka.SUBAGENT_FIELDS


def arrow_row(row: Row) -> Row:
    """The row as a table gives it back: every column is there, null where it was absent."""
    full: Row = dict.fromkeys(ARROW_COLUMNS) | row
    if row.get("requests") is not None:
        full["requests"] = [arrow_row(inner) for inner in row["requests"]]
    return full


def arrow(value: Row) -> Row:
    """The whole session as a table gives it back."""
    return value | {"requests": [arrow_row(row) for row in value["requests"]]}


def test_null_is_absent() -> None:
    """A row of a table, where every field is there and null if unused, reads as without them."""
    assert read(arrow(EXAMPLE)) == read(EXAMPLE)


def test_null_fields_are_not_noted() -> None:
    """A field that is null is absent, so one of another kind of row is not worth a note."""
    assert notes(arrow(EXAMPLE)) == {}


@pytest.mark.parametrize(
    "name", ["hash_ids", "model", "think_time", "ttft", "stop", "input_types", "output_types"]
)
def test_a_request_stands_without_its_optional_fields(name: str) -> None:
    """Null in any field but time and input leaves a call."""
    assert len(calls(request(0.0, 8, [1, 2]), request(5.0, 8, [1, 2], **{name: None}))) == 2


@pytest.mark.parametrize("name", ["tool_tokens", "system_tokens", "models", "totals", "id"])
def test_a_session_stands_without_its_optional_fields(name: str) -> None:
    """Null in any field but block size and requests leaves a session."""
    assert len(calls(request(0.0, 8, [1, 2]), **{name: None})) == 1


@pytest.mark.parametrize("name", ["agent_id", "status", "duration_ms", "models", "tool_tokens"])
def test_a_subagent_stands_without_its_optional_fields(name: str) -> None:
    """Null in any field of an entry but its requests leaves its calls."""
    entry = subagent(5.0, request(0.0, 8, [8, 9]), **{name: None})
    assert starts(request(0.0, 8, [1, 2]), entry) == [0.0, 5.0]


def test_whole_numbers_may_be_floats() -> None:
    """A column of a table makes floats of lengths, ids and the block size; they stay whole."""
    floats = trace(request(0, 9.0, [1.0, 2.0], out=7.0), request(5, 8, [1, 2]), block_size=4.0)
    session = read(floats)
    lengths = [(call.isl, call.osl, call.shared) for call in session.calls]
    assert [*lengths, session.block_size] == [(9, 7, 0), (8, 10, 8), 4]
    assert {type(each) for row in lengths for each in row} == {int}


@pytest.mark.parametrize(
    ("value", "note"),
    [
        (trace(request(0.0, 8, [1, 2]), colour=1), "unknown field 'colour', ignored"),
        (trace(request(0.0, 8, [1, 2], mood=1)), "unknown field 'mood', ignored"),
        (
            trace(request(0.0, 8, [1, 2]), subagent(1.0, request(0.0, 8, [3, 4]), rank=1)),
            "unknown field 'rank', ignored",
        ),
    ],
    ids=["session", "request", "subagent"],
)
def test_unknown_fields_are_noted(value: Row, note: str) -> None:
    """A field that the format does not have is named in the notes and otherwise ignored."""
    assert notes(value) == {note: 1}


def test_notes_count() -> None:
    """The same oddity in several rows is one note with their number."""
    rows = [request(float(t), 8, [1, 2], mood=t) for t in range(3)]
    assert notes(trace(*rows)) == {"unknown field 'mood', ignored": 3}


def test_entries_that_are_no_objects_are_left_out() -> None:
    """What is no object in the list of requests is counted and left out."""
    value = trace(None, "text", 3, request(0.0, 8, [1, 2]), [1])
    assert len(read(value).calls) == 1
    assert notes(value) == {"entries that are no objects, left out": 4}


@pytest.mark.parametrize(
    "row",
    [
        request(None, 8, [1, 2]),
        request(True, 8, [1, 2]),
        request("1.0", 8, [1, 2]),
        request(1.0, None, [1, 2]),
        request(1.0, 0, []),
        request(1.0, -8, [1, 2]),
        request(1.0, 8.5, [1, 2]),
        request(1.0, True, [1, 2]),
        request(1.0, "8", [1, 2]),
    ],
    ids=str,
)
def test_a_request_needs_a_time_and_an_input(row: Row) -> None:
    """A request without a number for its time or a positive whole input is noted and left out."""
    value = trace(request(0.0, 8, [1, 2]), row)
    assert len(read(value).calls) == 1
    assert notes(value) == {"requests without a time or an input length, left out": 1}


def test_a_subagent_without_requests_is_noted() -> None:
    """A subagent entry that holds no list of requests is left out and counted."""
    value = trace(request(0.0, 8, [1, 2]), {"t": 1.0, "type": "subagent", "requests": None})
    assert len(read(value).calls) == 1
    assert notes(value) == {"subagents without requests, left out": 1}


# --- Prompts --------------------------------------------------------------------------------------


def relations(*rows: object, **fields: object) -> list[tuple[int | None, int]]:
    """(parent, shared blocks of 4 tokens) of each call."""
    return [(call.parent, call.shared // 4) for call in calls(*rows, **fields)]


def test_more_ids_than_whole_blocks_are_cut() -> None:
    """The id of a partial block at the end counts for nothing, and is noted."""
    value = trace(request(0.0, 10, [1, 2, 3]), request(5.0, 10, [1, 2, 3]))
    assert [call.shared for call in read(value).calls] == [0, 8]
    assert notes(value) == {"calls with more block ids than whole blocks, cut": 2}


def test_fewer_ids_than_whole_blocks_share_no_more_than_they_name() -> None:
    """Blocks without an id are shared with nobody."""
    assert relations(request(0.0, 40, [1, 2]), request(5.0, 40, [1, 2])) == [(None, 0), (0, 2)]


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        pytest.param([[1, 2, 3], [9, 2, 3]], [(None, 0), (None, 0)], id="another first block"),
        pytest.param(
            [[1, 2, 3], [9, 2, 3], [1, 2, 5]],
            [(None, 0), (None, 0), (0, 2)],
            id="same id after different blocks",
        ),
        pytest.param([[1, 2], [2]], [(None, 0), (None, 0)], id="an id at another position"),
        pytest.param([[1, 1, 1], [1, 1, 2]], [(None, 0), (0, 2)], id="an id twice in a prompt"),
        pytest.param(
            [[1, 2], [3, 2], [3, 2, 1]], [(None, 0), (None, 0), (1, 2)], id="the right parent"
        ),
    ],
)
def test_ids_that_name_only_their_block_share_by_prefix(
    prompts: list[list[int]], expected: list[tuple[int | None, int]]
) -> None:
    """Where ids are not chained, only an equal beginning is shared, not an equal id."""
    rows = [request(5.0 * n, 4 * len(ids), ids) for n, ids in enumerate(prompts)]
    assert relations(*rows) == expected


@pytest.mark.parametrize(
    ("scope", "shared"),
    [("local", 2), ("global", 2), (None, 0)],
)
def test_scope_says_whether_agents_share_ids(scope: str | None, shared: int) -> None:
    """Ids name the same blocks in all agents of a session only where the file gives a scope."""
    entry = subagent(5.0, request(0.0, 12, [1, 2, 3]))
    rows = relations(request(0.0, 8, [1, 2]), entry, hash_id_scope=scope)
    assert rows[1] == (0 if shared else None, shared)


def test_agents_of_one_namespace_each_share_with_themselves() -> None:
    """Without a scope an agent still finds its own earlier blocks."""
    entry = subagent(5.0, request(0.0, 8, [1, 2]), request(5.0, 12, [1, 2, 3]))
    rows = relations(request(0.0, 8, [1, 2]), entry, hash_id_scope=None)
    assert rows == [(None, 0), (None, 0), (1, 2)]


def test_global_ids_of_a_session_alone_are_noted() -> None:
    """That of a session by itself only its own prefixes are shared is said."""
    value = trace(request(0.0, 8, [1, 2]), hash_id_scope="global")
    said = "global block ids, read alone: prefixes are shared within the session only"
    assert notes(value) == {said: 1}


@pytest.mark.parametrize("ids", [[[1], [2]], [{"a": 1}]], ids=str)
def test_block_ids_that_can_name_nothing_are_refused(ids: list[object]) -> None:
    """Lists and objects are no ids: the session is refused in words."""
    with pytest.raises(TraceError, match="hash_ids"):
        read(trace(request(0.0, 8, ids), request(5.0, 8, ids)))


@pytest.mark.parametrize("ids", [["x", "y"], [1.5, 2.5]], ids=str)
def test_block_ids_need_not_be_numbers(ids: list[object]) -> None:
    """Whatever can be told apart names a block."""
    assert relations(request(0.0, 8, ids), request(5.0, 8, ids)) == [(None, 0), (0, 2)]


# --- Subagents ------------------------------------------------------------------------------------


def test_subagents_nest() -> None:
    """A subagent of a subagent counts its times from its own entry."""
    inner = subagent(2.0, request(0.0, 8, [5, 6]), agent_id="deep")
    outer = subagent(10.0, request(0.0, 8, [3, 4]), inner, agent_id="wide")
    session = calls(request(0.0, 8, [1, 2]), outer)
    assert [(call.agent, call.start_s) for call in session] == [
        ("", 0.0),
        ("wide", 10.0),
        ("deep", 12.0),
    ]


def test_subagents_nest_with_absolute_times() -> None:
    """Absolute times stay so at every depth."""
    inner = subagent(12.0, request(12.5, 8, [5, 6]), agent_id="deep")
    outer = subagent(10.0, request(10.5, 8, [3, 4]), inner, agent_id="wide")
    assert starts(request(0.0, 8, [1, 2]), outer) == [0.0, 10.5, 12.5]


def test_subagents_without_a_name_are_told_apart() -> None:
    """Two entries without `agent_id` are two agents, and neither is the main one."""
    entries = [subagent(t, request(0.0, 8, [5, 6]), agent_id=None) for t in (5.0, 9.0)]
    labels = [call.agent for call in calls(request(0.0, 8, [1, 2]), *entries)]
    assert labels[0] == ""
    assert len(set(labels)) == 3


def test_a_session_may_begin_with_a_subagent() -> None:
    """A session's first call may be a subagent's; times count from it."""
    session = calls(subagent(5.0, request(0.0, 8, [8, 9])), request(9.0, 8, [1, 2]))
    assert [(call.agent, call.start_s) for call in session] == [("sub", 0.0), ("", 4.0)]


# --- Broken files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [None, 0, -4, 2.5, "64", True])
def test_a_session_needs_a_block_size(size: object) -> None:
    """Without a positive whole block size there is an error that names source and cause."""
    with pytest.raises(TraceError, match=r"^own\.json: block_size "):
        read(trace(request(0.0, 8, [1, 2]), block_size=size))


@pytest.mark.parametrize(
    "rows",
    [[], [None], [request(None, 8, [1, 2])], [subagent(0.0)], [{"type": "subagent", "t": 0.0}]],
    ids=["none", "no object", "no time", "empty subagent", "no inner requests"],
)
def test_a_session_needs_a_usable_request(rows: list[object]) -> None:
    """Without a request that can be sent there is an error that names source and cause."""
    with pytest.raises(TraceError, match=r"^own\.json: no usable request"):
        read(trace(*rows))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (EXAMPLE, True),
        ({"requests": [], "block_size": 64}, True),
        ({"requests": [], "hash_id_scope": "local"}, True),
        ({"requests": []}, False),
        ({"requests": None, "block_size": 64}, False),
        ({"requests": {}, "block_size": 64}, False),
        ({"block_size": 64}, False),
        ([EXAMPLE], False),
        (None, False),
    ],
    ids=str,
)
def test_a_weka_session_is_recognised(value: object, expected: bool) -> None:
    """A list of requests and a block size or a scope of ids make a Weka session."""
    assert weka.recognises(value) is expected


# --- The shared recordings ------------------------------------------------------------------------


@needs_shared
def test_shared_totals() -> None:
    """All shared files are read whole: sessions, calls, input and output tokens."""
    every = [call for session in weka_sessions() for call in session.calls]
    assert (
        len(weka_sessions()),
        len(every),
        sum(call.isl for call in every),
        sum(call.osl for call in every),
    ) == (75, 6_740, 678_893_960, 3_035_067)


def raw_requests(holder: Row, origin_s: float = 0.0) -> list[tuple[float, Row]]:
    """(absolute start, request) of all requests, by the convention of the shared files."""
    found = []
    for row in holder["requests"]:
        if row["type"] == "subagent":
            found += raw_requests(row, origin_s + row["t"])
        else:
            found.append((origin_s + row["t"], row))
    return sorted(found, key=lambda pair: pair[0])


@needs_shared
def test_shared_calls_are_the_requests() -> None:
    """Start, lengths, model and measured end of every call are those of its request."""
    for path, session in zip(weka_files(), weka_sessions(), strict=True):
        rows = raw_requests(orjson.loads(path.read_bytes()))
        wanted = [
            (t, row["in"], row["out"], row["model"], "api_time" in row, t + row["api_time"])
            if "api_time" in row
            else (t, row["in"], row["out"], row["model"], False, None)
            for t, row in rows
        ]
        found = [
            (c.start_s, c.isl, c.osl, c.model, c.timed, c.end_s if c.timed else None)
            for c in session.calls
        ]
        assert found == wanted, session.id


@needs_shared
def test_shared_sessions_have_the_names_of_their_files() -> None:
    """The id in a file equals the file's name."""
    names = [path.stem for path in weka_files()]
    assert [session.id for session in weka_sessions()] == names


@needs_shared
def test_shared_notes() -> None:
    """Nothing is left out of the shared files; only estimates and empty outputs are noted."""
    found: Counter[str] = Counter()
    for path in weka_files():
        found += weka.session(orjson.loads(path.read_bytes()), path.name)[1]
    assert found == {
        "calls without api_time, duration estimated": 679,
        "calls without output, sent with one token": 9,
    }


@needs_shared
def test_shared_estimates_end_before_the_agents_next_call() -> None:
    """No estimated call of a shared session runs past the next call of its agent."""
    late = []
    for session in weka_sessions():
        following: dict[str, float] = {}
        for call in reversed(session.calls):
            if not call.timed and call.end_s > following.get(call.agent, call.end_s):
                late.append((session.id, call.start_s))
            following[call.agent] = call.start_s
    assert late == []


@needs_shared
def test_shared_sessions_keep_the_rules_of_the_model() -> None:
    """Calls are in order, name only earlier calls, and share whole blocks that both hold."""
    broken = [
        (session.id, i)
        for session in weka_sessions()
        for i, call in enumerate(session.calls)
        if call.start_s < session.calls[max(i - 1, 0)].start_s
        or not call.start_s <= call.end_s
        or call.gap_s < 0
        or any(not 0 <= j < i for j in call.after)
        or (call.parent is None) != (call.shared == 0)
        or call.shared % session.block_size
        or (call.parent is not None and not 0 <= call.parent < i)
        or (call.parent is not None and call.shared > session.calls[call.parent].isl)
        or not 0 <= call.system <= call.isl
    ]
    assert broken == []
