"""The Dynamo reader: events of requests in, sessions out."""

from __future__ import annotations

import gzip
from typing import Any

import orjson
import pytest
import readers
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import SHARED, needs_shared

from agentreplay.trace import recorded
from agentreplay.trace.formats import dynamo, mooncake, weka
from agentreplay.trace.model import Notes, Session
from agentreplay.trace.recorded import Draft

Row = dict[str, Any]

SAMPLES = SHARED / "data" / "formats" / "dynamo"
ZERO_MS = 1_777_312_800_000
LARGE = 2**63 + 5


def ended(name: str, start_ms: float, isl: object, hashes: int | None = None, **fields: Any) -> Row:
    """A request of the session `root` that took a second; *hashes* is the number of its blocks."""
    request: Row = {"request_id": name, "model": "m", "input_tokens": isl, "output_tokens": 16,
                    "cached_tokens": 0, "request_received_ms": ZERO_MS + start_ms,
                    "total_time_ms": 1000.0}  # fmt: skip
    if hashes is not None:
        named = [LARGE + n for n in range(hashes)]
        request["replay"] = {"trace_block_size": 64, "input_length": isl}
        request["replay"]["input_sequence_hashes"] = named
    context = fields.pop("context", {"session_id": "root"})
    event: Row = {"schema": "dynamo.request.trace.v1", "event_type": "request_end",
                  "event_time_unix_ms": ZERO_MS + start_ms + 1000, "event_source": "dynamo",
                  "agent_context": context, "request": request | fields}  # fmt: skip
    return event


def child(name: str, start_ms: float, isl: int, **fields: Any) -> Row:
    """A request of a session that `root` began."""
    context = {"session_id": "kid", "parent_session_id": "root"}
    return ended(name, start_ms, isl, **({"context": context} | fields))


def drafts(*files: list[Any]) -> tuple[list[Draft], Notes]:
    """The drafts of files with these lines, and the notes of all of them."""
    return readers.drafts(dynamo, readers.numbered(files))


def sessions(*lines: Any) -> list[Session]:
    """The sessions of a file with these lines."""
    return readers.sessions(dynamo, {"0.jsonl": lines})


def noted(*lines: Any) -> Notes:
    """The notes of a file with these lines."""
    return drafts(list(lines))[1]


# --- Requests -------------------------------------------------------------------------------------


def test_the_example_of_the_format() -> None:
    """A request has its start, end, lengths, model and block size; times are dates."""
    event = {"schema": "dynamo.request.trace.v1", "event_type": "request_end",
             "event_time_unix_ms": 1777312801000, "event_source": "dynamo",
             "agent_context": {"session_id": "root"},
             "request": {"request_id": "r1", "model": "m", "input_tokens": 128,
                         "output_tokens": 16, "cached_tokens": 0,
                         "request_received_ms": 1777312800000, "ttft_ms": 80.0,
                         "total_time_ms": 1000.0,
                         "replay": {"trace_block_size": 64, "input_length": 128,
                                    "input_sequence_hashes": [14879255164371896291,
                                                              274632075616497421]}}}  # fmt: skip
    tool = {"schema": "dynamo.request.trace.v1", "event_type": "tool_end",
            "event_time_unix_ms": 1777312801500, "event_source": "harness",
            "agent_context": {"session_id": "root"},
            "tool": {"tool_call_id": "c1", "status": "succeeded"}}  # fmt: skip
    (draft,), _ = drafts([event, tool])
    assert (draft.id, draft.source, draft.dated, draft.block_size, draft.start_s) == (
        "root",
        "0.jsonl:1",
        True,
        64,
        1777312800.0,
    )
    (call,) = recorded.session(draft)[0].calls
    assert (call.isl, call.osl, call.cached, call.model, call.timed, call.end_s) == (
        128,
        16,
        0,
        "m",
        True,
        1.0,
    )


def test_lines_are_in_the_order_in_which_requests_ended() -> None:
    """Calls are in order of their starts, and gaps follow from starts and ends."""
    (session,) = sessions(ended("b", 3000, 192, 3), ended("a", 0, 128, 2))
    assert [(call.isl, call.start_s, call.gap_s) for call in session.calls] == [
        (128, 0.0, 0.0),
        (192, 3.0, 2.0),
    ]
    assert session.calls[1].shared == 128


def test_sessions_of_all_files_share() -> None:
    """Hashes mean the same in all sessions and files, also of requests without a context."""
    alone, other = ended("b", 2000, 192, 3), ended("c", 4000, 320, 5)
    del alone["agent_context"]
    other["agent_context"]["session_id"] = "other"
    found, _ = drafts([ended("a", 0, 128, 2)], [alone, other])
    recorded.relate(found)
    calls = [call for draft in found for call in recorded.session(draft)[0].calls]
    assert sorted((call.isl, call.shared) for call in calls) == [(128, 0), (192, 128), (320, 192)]


def test_hashes_of_64_bits_are_told_apart() -> None:
    """Values that are equal as floats are not equal as hashes."""
    first, second = ended("a", 0, 64, 1), ended("b", 2000, 64, 1)
    second["request"]["replay"]["input_sequence_hashes"] = [LARGE + 1]
    (session,) = sessions(first, second)
    assert float(LARGE) == float(LARGE + 1)
    assert [call.shared for call in session.calls] == [0, 0]


def test_hashes_may_be_text() -> None:
    """Tools that know no 64 bits write them as text: the same numbers."""
    first, second = ended("a", 0, 64, 1), ended("b", 2000, 64, 1)
    second["request"]["replay"]["input_sequence_hashes"] = [str(LARGE)]
    (session,) = sessions(first, second)
    assert session.calls[1].shared == 64


def test_the_begun_block_is_dropped() -> None:
    """Hashes are as many as blocks, begun ones included; whole ones are shared."""
    (session,) = sessions(ended("a", 0, 100, 2), ended("b", 2000, 100, 2))
    assert session.calls[1].shared == 64
    assert not noted(ended("a", 0, 100, 2))


def test_no_recorded_hash_is_kept() -> None:
    """Names are keyed ones."""
    (draft,), _ = drafts([ended("a", 0, 128, 2)])
    assert not {LARGE, LARGE + 1} & set(draft.calls[0].prompt)


@pytest.mark.parametrize("hashes", [[None, 5], [[1], 2], [1.5, 2]])
def test_hashes_that_name_nothing_are_left_out(hashes: list[Any]) -> None:
    """The request stays."""
    event = ended("a", 0, 128, 2)
    event["request"]["replay"]["input_sequence_hashes"] = hashes
    assert len(sessions(event)[0].calls) == 1
    assert noted(event) == {"requests with hashes that name nothing, hashes left out": 1}


def test_a_wrong_number_of_hashes_is_noted() -> None:
    """More hashes than blocks are cut, fewer share no more than they name."""
    rows = [ended("a", 0, 128, 5), ended("b", 2000, 192, 1), ended("c", 4000, 192, 3)]
    (session,) = sessions(*rows)
    assert [call.shared for call in session.calls] == [0, 64, 128]
    assert noted(*rows)["requests with more or fewer hashes than blocks"] == 2


def test_without_hashes_a_prompt_that_has_grown_continues() -> None:
    """What was cached tells only where the prompt shrank: a cold cache is no other prompt."""
    rows = [
        ended("a", 0, 640),
        ended("b", 2000, 704, cached_tokens=0),
        ended("c", 4000, 320, cached_tokens=130),
    ]
    (session,) = sessions(*rows)
    assert [(call.parent, call.shared) for call in session.calls] == [
        (None, 0),
        (0, 640),
        (1, 128),
    ]


def test_the_end_may_only_be_the_events() -> None:
    """Without a duration the request ended when its event was written."""
    (session,) = sessions(ended("a", 0, 64, total_time_ms=None))
    assert (session.calls[0].end_s, session.calls[0].timed) == (1.0, True)


def test_the_start_may_follow_from_the_end() -> None:
    """Event and duration give the start; without both there is no call."""
    (draft,), _ = drafts([ended("a", 0, 64, request_received_ms=None)])
    assert draft.start_s == ZERO_MS / 1000
    assert noted(ended("a", 0, 64, request_received_ms=None, total_time_ms=None)) == {
        "requests without a time, left out": 1
    }


def test_the_length_may_only_be_the_replays() -> None:
    """`input_length` of the hashes is the prompt's."""
    event = ended("a", 0, 128, 2)
    del event["request"]["input_tokens"]
    assert sessions(event)[0].calls[0].isl == 128


@pytest.mark.parametrize("name", ["input_tokens", "output_tokens"])
def test_requests_without_lengths_are_left_out(name: str) -> None:
    """They are counted with their line."""
    assert noted(ended("a", 0, 64, **{name: None})) == {
        "requests without an input and an output length, left out": 1
    }


def test_more_cached_than_input_is_added_up() -> None:
    """Such an input does not count what was cached: no share above 1 comes out."""
    event = ended("a", 0, 100, cached_tokens=900)
    (call,) = sessions(event)[0].calls
    assert (call.isl, call.cached) == (1000, 900)
    assert noted(event) == {"requests with more cached than input tokens, added up": 1}


def test_requests_that_end_before_they_begin_get_an_estimated_end() -> None:
    """Clocks step: nothing becomes negative."""
    (session,) = sessions(ended("a", 0, 64, total_time_ms=-5))
    assert (session.calls[0].timed, session.calls[0].end_s > 0) == (False, True)


# --- Sessions -------------------------------------------------------------------------------------


def test_a_child_is_an_agent_of_its_parents_session() -> None:
    """Agents are numbered, and named by nothing that was recorded."""
    (session,) = sessions(ended("a", 0, 64), child("k", 1200, 64), ended("b", 3000, 128))
    assert session.id == "root"
    assert [(call.agent, round(call.start_s, 3)) for call in session.calls] == [
        ("", 0.0),
        ("agent 1", 1.2),
        ("", 3.0),
    ]
    assert session.calls[2].after == (0, 1)


def test_grandchildren_belong_to_the_root() -> None:
    """Parents are followed to the top, whatever is read first."""
    deep = {"session_id": "deep", "parent_session_id": "kid"}
    (session,) = sessions(
        ended("d", 2000, 64, context=deep), child("k", 1200, 64), ended("a", 0, 64)
    )
    assert [call.agent for call in session.calls] == ["", "agent 1", "agent 2"]


def test_children_of_a_parent_without_requests_are_one_session() -> None:
    """The name is the parent's, the main agent the first that there is."""
    other = {"session_id": "other", "parent_session_id": "root"}
    (session,) = sessions(child("k", 0, 64), ended("o", 2000, 64, context=other))
    assert (session.id, [call.agent for call in session.calls]) == ("root", ["", "agent 1"])


def test_parents_may_go_in_a_circle() -> None:
    """Two sessions that are each other's parent are one session."""
    rows = [
        ended("a", 0, 64, context={"session_id": "a", "parent_session_id": "b"}),
        ended("b", 2000, 64, context={"session_id": "b", "parent_session_id": "a"}),
        ended("c", 4000, 64, context={"session_id": "c", "parent_session_id": "c"}),
    ]
    assert sorted(len(session.calls) for session in sessions(*rows)) == [1, 2]


def test_sessions_with_other_names_are_apart() -> None:
    """What has no parent in common is not one session."""
    found = sessions(ended("a", 0, 64), ended("b", 0, 64, context={"session_id": "two"}))
    assert [session.id for session in found] == ["root", "two"]


@pytest.mark.parametrize(
    ("contexts", "name"),
    [
        pytest.param(
            [
                {"workflow_type_id": "t", "workflow_id": "w", "program_id": "p"},
                {"workflow_id": "w", "program_id": "q", "parent_program_id": "p"},
                {"workflow_id": "w", "program_id": "r"},
            ],
            "w",
            id="early 2026",
        ),
        pytest.param(
            [
                {"session_type_id": "t", "session_id": "s", "trajectory_id": "p"},
                {"session_id": "s", "trajectory_id": "q", "parent_trajectory_id": "p"},
                {"session_id": "s", "trajectory_id": "r", "trajectory_final": True},
            ],
            "s",
            id="1.2",
        ),
        pytest.param(
            [
                {"session_id": "p"},
                {"session_id": "q", "parent_session_id": "p"},
                {"session_id": "r", "parent_session_id": "p", "session_final": True},
            ],
            "p",
            id="1.3",
        ),
    ],
)
def test_names_of_the_context_have_drifted(contexts: list[Row], name: str) -> None:
    """Every release's names say whose a request is, and what belongs together."""
    rows = [
        ended(str(n), 2000 * n, 64, context=context) | {"schema": "dynamo.agent.trace.v1"}
        for n, context in enumerate(contexts)
    ]
    (session,) = sessions(*rows)
    assert session.id == name
    assert [call.agent for call in session.calls] == ["", "agent 1", "agent 2"]


def test_chains_of_one_name_in_two_groups_are_apart() -> None:
    """A chain's name means something in its group only."""
    rows = [ended(w, 0, 64, context={"workflow_id": w, "program_id": "main"}) for w in ("w1", "w2")]
    assert [session.id for session in sessions(*rows)] == ["w1", "w2"]


def test_requests_of_no_session_are_arrivals() -> None:
    """Without a context each is a session; files that mix both are read."""
    event = ended("a", 500, 128, 2, context=None)
    for name in ("input_tokens", "model", "total_time_ms", "cached_tokens"):
        del event["request"][name]
    (lone, session) = sessions(event, ended("b", 0, 64))
    assert (lone.id, lone.start_s, [call.isl for call in lone.calls]) == (
        "0.jsonl:1",
        ZERO_MS / 1000 + 0.5,
        [128],
    )
    assert session.id == "root"
    assert noted(event) == {"requests of no session, each one of its own": 1}


def test_the_ingress_form_names_the_session_at_the_top() -> None:
    """What a harness posts has no context around its session."""
    event = ended("a", 0, 64) | {"session_id": "mine"}
    del event["agent_context"]
    assert [session.id for session in sessions(event)] == ["mine"]


def test_blocks_of_two_sizes_in_a_session() -> None:
    """The common size counts; prompts cut differently share nothing, and are noted."""
    rows = [ended("a", 0, 128, 2), ended("b", 2000, 128, 2), ended("c", 4000, 128, 2)]
    rows[2]["request"]["replay"] |= {"trace_block_size": 32, "input_sequence_hashes": [1, 2, 3, 4]}
    (session,) = sessions(*rows)
    assert (session.block_size, [call.shared for call in session.calls]) == (64, [0, 128, 0])
    assert sum("another size" in note for note in noted(*rows)) == 1


# --- Files ----------------------------------------------------------------------------------------


def test_the_envelope_of_a_sink() -> None:
    """Its time is relative; that of the event counts."""
    line = {"timestamp": 7, "event": ended("a", 0, 64)}
    (session,) = sessions(line)
    assert session.start_s == ZERO_MS / 1000


def test_a_session_may_be_spread_over_files() -> None:
    """Hashes and sessions mean the same in all files of a trace."""
    (draft,), _ = drafts(
        [ended("b", 3000, 192, 3)], [ended("z", 9000, 192, 3), ended("a", 0, 128, 2)]
    )
    session, _ = recorded.session(draft)
    assert (session.source, [call.shared for call in session.calls]) == (
        "1.jsonl:2",
        [0, 128, 192],
    )


def test_a_request_counts_once() -> None:
    """A copy in another file is left out, and noted."""
    lines = [ended("a", 0, 64), ended("b", 2000, 64)]
    (draft,), notes = drafts(lines, lines)
    assert len(draft.calls) == 2
    assert notes == {"requests that were read before, left out": 2}


@pytest.mark.parametrize(
    ("kind", "note"),
    [
        ("tool_start", "events of tools, left out: gaps follow from the requests"),
        ("tool_error", "events of tools, left out: gaps follow from the requests"),
        ("request_payload", "payloads of requests, left out"),
        ("new_kind", "events of unknown types, left out"),
        (5, "events of unknown types, left out"),
        (None, "events of unknown types, left out"),
    ],
)
def test_other_events_are_counted(kind: object, note: str) -> None:
    """They are no calls."""
    assert noted(ended("a", 0, 64), ended("b", 0, 64) | {"event_type": kind}) == {note: 1}


def test_lines_that_are_no_events_are_counted() -> None:
    """What is no object, or of no schema of Dynamo's, is left out."""
    assert noted(None, [1], {"schema": "other"}, {}) == {"lines that are no events, left out": 4}


@pytest.mark.parametrize(
    ("record", "known"),
    [
        (ended("a", 0, 64), True),
        ({"timestamp": 0, "event": ended("a", 0, 64)}, True),
        ({"schema": "dynamo.agent.trace.v1", "event_type": "request_end"}, True),
        ({"schema": "dynamo.agentic_mooncake", "version": 2}, False),
        ({"schema": 5}, False),
        ({"event": {"event_type": "request_end"}}, False),
        ({"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1]}, False),
        ({"id": "t", "block_size": 64, "requests": []}, False),
        ([ended("a", 0, 64)], False),
        (None, False),
    ],
    ids=str,
)
def test_events_are_recognised(record: object, known: bool) -> None:
    """By their schema, and by nothing else; no other reader claims them."""
    assert dynamo.recognises(record) is known
    assert not (known and (mooncake.recognises(record) or weka.recognises(record)))


# --- The samples ----------------------------------------------------------------------------------


def sample(name: str) -> list[Any]:
    """The lines of a sample."""
    data = (SAMPLES / name).read_bytes()
    data = gzip.decompress(data) if name.endswith(".gz") else data
    return [orjson.loads(line) for line in data.splitlines()]


@needs_shared
@pytest.mark.parametrize(
    "names",
    [
        ["generated_agentic_trace.jsonl"],
        ["generated_agentic_trace.000000.jsonl.gz"],
        ["generated_agentic_trace.jsonl", "generated_agentic_trace.000000.jsonl.gz"],
    ],
    ids=len,
)
def test_the_generated_sample(names: list[str]) -> None:
    """A root with a child, as it is, in envelopes, and both: the same session."""
    (draft,), _ = drafts(*map(sample, names))
    session, _ = recorded.session(draft)
    assert (session.id, session.block_size, draft.start_s) == ("root", 64, 1777312800.0)
    assert [
        (call.agent, call.isl, call.osl, call.shared, call.after) for call in session.calls
    ] == [
        ("", 1200, 60, 0, ()),
        ("agent 1", 600, 40, 0, (0,)),
        ("agent 1", 720, 55, 576, (1,)),
        ("", 1900, 120, 1152, (0, 2)),
    ]
    assert [round(call.start_s, 3) for call in session.calls] == [0.0, 1.7, 3.1, 4.4]
    assert [round(call.gap_s, 3) for call in session.calls] == [0.0, 0.2, 0.5, 0.2]
    readers.assert_well_formed(session)


@needs_shared
def test_the_rows_of_the_documents() -> None:
    """A request without a context, one with, and a tool in the ingress form."""
    rows = sample("request_trace_doc_examples.jsonl")
    (lone,), _ = drafts(rows[:1])
    assert (lone.id, lone.calls[0].isl, lone.calls[0].osl) == ("0.jsonl:1", 128, 16)
    (draft,), _ = drafts(rows[1:])
    assert (draft.id, draft.calls[0].agent, len(draft.calls)) == ("research-run-42:planner", "", 1)


# --- Damage ---------------------------------------------------------------------------------------

VALID: list[Row] = [
    ended("a", 0, 128, 2),
    ended("b", 3000, 192, 3),
    child("k", 1200, 64, hashes=1),
    ended("l", 0, 64, context=None),
    ended("w", 0, 64, context={"workflow_id": "w", "program_id": "p", "parent_program_id": "q"}),
    {"timestamp": 3, "event": ended("c", 5000, 256, 4)},
]


DAMAGED = readers.damaged(
    VALID,
    readers.any_json(
        *("root", "kid", "request_end", "tool_end", "dynamo.agent.trace.v1"),
        keys=st.sampled_from(["session_id", "replay", "event"]),
    ),
)


@settings(max_examples=400, deadline=None)
@given(DAMAGED, DAMAGED)
def test_whatever_is_in_files_is_read(one: list[Any], two: list[Any]) -> None:
    """Any value anywhere gives sessions that keep the rules of the model."""
    readers.assert_survives(dynamo, {"one": one, "two": two})
