"""The reader of Claude Code's session logs: JSON lines in, sessions out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePath
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import SHARED, needs_shared

from agentreplay.errors import TraceError
from agentreplay.trace import recorded
from agentreplay.trace.formats import claude_code
from agentreplay.trace.model import Call, Notes, Session
from agentreplay.trace.recorded import Draft, Reading

Row = dict[str, Any]
Files = dict[str, list[Any]]

READING = Reading(key=b"key of the tests")
SAMPLES = SHARED / "data" / "formats"
START = datetime(2026, 1, 2, 10, tzinfo=UTC)
MAIN = "p/S.jsonl"


def at(t: float) -> str:
    """A stamp *t* seconds after the start, as the log writes it."""
    return (START + timedelta(seconds=t)).isoformat(timespec="milliseconds")[:-6] + "Z"


def row(kind: str, uuid: str, parent: str | None, t: float, **fields: Any) -> Row:
    """A line of session S."""
    line = {"type": kind, "uuid": uuid, "parentUuid": parent, "timestamp": at(t), "sessionId": "S"}
    return line | {"isSidechain": False, "cwd": "/w"} | fields


def user(uuid: str, parent: str | None, t: float, **fields: Any) -> Row:
    """A line of input."""
    return row("user", uuid, parent, t, message={"role": "user", "content": "words"}) | fields


def answer(
    uuid: str,
    parent: str | None,
    t: float,
    name: str | None,
    isl: int = 1000,
    cached: int = 0,
    osl: object = 50,
    model: object = "m",
    stop: object = "tool_use",
    **fields: Any,
) -> Row:
    """A line of answer *name*, with *isl* tokens of input in all."""
    usage = {"input_tokens": 1, "cache_creation_input_tokens": isl - cached - 1}
    message = {
        "id": name,
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": "words"}],
        "stop_reason": stop,
        "usage": usage | {"cache_read_input_tokens": cached, "output_tokens": osl},
    }
    return row("assistant", uuid, parent, t, message=message) | fields


def parts(files: Files) -> list[claude_code.Part]:
    """What is kept of the files, after a way through JSON."""
    return [
        claude_code.read(
            [(number, orjson.loads(orjson.dumps(line))) for number, line in enumerate(lines, 1)],
            PurePath(path),
            READING,
            Notes(),
        )
        for path, lines in files.items()
    ]


def drafts(files: Files) -> list[Draft]:
    """The drafts of the files."""
    return claude_code.drafts(parts(files), READING)


def sessions(files: Files) -> list[Session]:
    """The sessions of the files."""
    return [recorded.session(draft)[0] for draft in drafts(files)]


def calls(*lines: Any) -> tuple[Call, ...]:
    """The calls of one main file."""
    (session,) = sessions({MAIN: list(lines)})
    return session.calls


def notes(*lines: Any) -> Notes:
    """The notes of one main file."""
    kept = parts({MAIN: list(lines)})
    claude_code.drafts(kept, READING)
    return kept[0].notes


def spans(found: Sequence[Call]) -> list[tuple[str, float, float]]:
    """Agent, start and end of calls, in whole milliseconds."""
    return [(call.agent, round(call.start_s, 3), round(call.end_s, 3)) for call in found]


def prefixes(found: Sequence[Call]) -> list[tuple[int | None, int]]:
    """What calls share with which earlier one."""
    return [(call.parent, call.shared) for call in found]


TURN = [user("u1", None, 0), answer("a1", "u1", 3, "A")]
"""One prompt and its answer."""

EXAMPLE = [
    user("u1", None, 0),
    answer("a1", "u1", 3.1, "A", 12_904, 12_000, 8, stop=None, requestId="r1"),
    answer("a2", "a1", 4.2, "A", 12_904, 12_000, 212, requestId="r1"),
    user("u2", "a2", 4.9),
    answer("a3", "u2", 7, "B", 13_135, 12_900, 3, stop="end_turn", requestId="r2"),
]

# --- One call -------------------------------------------------------------------------------------


def test_an_answer_on_several_lines_is_one_call() -> None:
    """The worked example: two calls with the input of the cache, and the larger output."""
    found = calls(*EXAMPLE)
    assert [(c.isl, c.cached, c.osl) for c in found] == [(12_904, 12_000, 212), (13_135, 12_900, 3)]


def test_a_call_lasts_from_its_input_to_its_last_line() -> None:
    """The example's calls begin with the prompt and the tool's result and end with their lines."""
    found = calls(*EXAMPLE)
    assert spans(found) == [("", 0.0, 4.2), ("", 4.9, 7.0)]
    assert found[1].gap_s == pytest.approx(0.7)
    assert all(call.timed for call in found)


def test_a_session_keeps_its_identity() -> None:
    """Id, arrival, folder and source are the log's."""
    (draft,) = drafts({MAIN: EXAMPLE})
    assert (draft.id, draft.start_s, draft.project, draft.source, draft.dated) == (
        "S",
        START.timestamp(),
        "/w",
        "p/S.jsonl:2",
        True,
    )


@pytest.mark.parametrize(
    ("outputs", "osl"),
    [([211, 211, 211], 211), ([1, 1, 90], 90), ([90, 0], 90)],
    ids=["repeated", "growing", "zero at last"],
)
def test_of_the_counts_of_an_answer_the_largest_is_right(outputs: list[int], osl: int) -> None:
    """Counts of one answer are neither added up, nor is the first or the last one taken."""
    lines = [answer(f"a{i}", "u1", 3 + i, "A", osl=count) for i, count in enumerate(outputs)]
    (call,) = calls(user("u1", None, 0), *lines)
    assert (call.isl, call.osl) == (1000, osl)


def test_of_equal_outputs_the_larger_input_is_right() -> None:
    """A later line of an answer may hold zeros."""
    lines = [answer("a1", "u1", 3, "A", 1000), answer("a2", "a1", 4, "A", 1, osl=50)]
    assert calls(user("u1", None, 0), *lines)[0].isl == 1000


def test_a_tool_may_answer_while_the_call_still_speaks() -> None:
    """Lines of one answer need not follow each other, and its input is not the tool's result."""
    found = calls(
        user("u1", None, 0),
        answer("a1", "u1", 3, "A"),
        user("r1", "a1", 3.2),
        answer("a2", "a1", 3.5, "A"),
        user("r2", "a2", 6),
        answer("a3", "r2", 8, "B", 1200),
    )
    assert spans(found) == [("", 0.0, 3.5), ("", 6.0, 8.0)]


def test_several_blocks_on_a_line_are_one_call() -> None:
    """An exporter may write a whole answer on one line."""
    line = answer("a1", "u1", 3, "A")
    line["message"]["content"] = [{"type": "tool_use", "id": f"t{i}"} for i in range(3)]
    assert len(calls(user("u1", None, 0), line)) == 1


def test_a_line_of_another_request_does_not_lengthen_a_call() -> None:
    """A copy of an answer that a resumed session wrote later is no part of its duration."""
    found = calls(*EXAMPLE[:3], answer("x", None, 60, "A", 12_904, 12_000, 212))
    assert spans(found) == [("", 0.0, 4.2)]


def test_answers_without_an_id_are_calls_of_their_own() -> None:
    """Nothing joins their lines, which is noted."""
    lines = [answer("a1", "u1", 3, None), answer("a2", "a1", 4, None)]
    assert len(calls(user("u1", None, 0), *lines)) == 2
    assert notes(*TURN, *lines)["answers without an id, each one counted as a call"] == 2


@pytest.mark.parametrize(
    "usage", [None, 7, {}, {"input_tokens": 5}, {"output_tokens": 5}, {"input_tokens": True}]
)
def test_answers_without_counts_are_left_out(usage: object) -> None:
    """What has no input or no output length is no call, and is named."""
    line = answer("a2", "a1", 5, "B")
    line["message"]["usage"] = usage
    assert len(calls(*TURN, line)) == 1
    assert notes(*TURN, line)["answers without a token count, left out"] == 1


def test_what_follows_an_answer_without_counts_continues_the_one_before() -> None:
    """An answer that is left out is no gap in the conversation."""
    line = answer("a2", "u2", 5, "B") | {"message": {"id": "B", "role": "assistant"}}
    found = calls(
        *TURN, user("u2", "a1", 4), line, user("u3", "a2", 6), answer("a3", "u3", 8, "C", 1200)
    )
    assert prefixes(found) == [(None, 0), (0, 960)]


def test_counts_may_be_text_or_floats() -> None:
    """Lengths are read however an exporter wrote them."""
    line = answer("a1", "u1", 3, "A")
    line["message"]["usage"] = {"input_tokens": "900", "output_tokens": 12.0}
    (call,) = calls(user("u1", None, 0), line)
    assert (call.isl, call.osl, call.cached) == (900, 12, None)


@pytest.mark.parametrize("made_up", [{"model": "<synthetic>"}, {"isApiErrorMessage": True}])
def test_answers_that_the_program_made_up_are_no_calls(made_up: Row) -> None:
    """Messages about errors look like answers; they are noted."""
    line = answer("a2", "a1", 5, "B", **made_up)
    assert len(calls(*TURN, line)) == 1
    assert notes(*TURN, line)["answers that the program made up, no calls"] == 1


def test_progress_is_never_counted() -> None:
    """Progress lines hold copies of subagents' messages, and are links of the chain only."""
    copy = {"data": {"type": "agent_progress", "message": answer("x", None, 4, "X")}}
    progress = row("progress", "g1", "a1", 3.5, **copy)
    found = calls(*TURN, progress, user("u2", "g1", 4), answer("a2", "u2", 6, "B", 1200))
    assert spans(found) == [("", 0.0, 3.0), ("", 4.0, 6.0)]
    assert prefixes(found) == [(None, 0), (0, 960)]


def test_an_interrupted_call_is_kept_and_noted() -> None:
    """Its output count may be what it was when it began."""
    stop = user("u2", "a1", 4)
    stop["message"]["content"] = [{"type": "text", "text": "[Request interrupted by user]"}]
    lines = [user("u1", None, 0), answer("a1", "u1", 3, "A", osl=5, stop=None), stop]
    assert calls(*lines)[0].osl == 5
    assert dict(notes(*lines)) == {
        "calls that the user interrupted, output may be a placeholder": 1,
        "answers of few tokens and without a stop reason, output may be a placeholder": 1,
    }


# --- Times ----------------------------------------------------------------------------------------


def test_of_parallel_results_the_last_one_begins_the_next_call() -> None:
    """Also where the next call's own chain leads past the last one."""
    found = calls(
        *TURN, user("r1", "a1", 9), user("r2", "a1", 5), answer("a2", "r2", 12, "B", 1200)
    )
    assert spans(found)[1] == ("", 9.0, 12.0)


@pytest.mark.parametrize("kind", ["attachment", "user"])
def test_injected_context_is_input_too(kind: str) -> None:
    """What the program adds after a tool's result goes along with it."""
    added = row(kind, "i1", "r1", 5.5, isMeta=True, message={"role": "user", "content": "x"})
    found = calls(*TURN, user("r1", "a1", 5), added, answer("a2", "i1", 8, "B", 1200))
    assert found[1].start_s == 5.5


def test_a_repeated_call_begins_after_the_wait() -> None:
    """After failed attempts the one that succeeds begins when the last wait was over."""
    failed = [
        row("system", f"e{i}", before, t, subtype="api_error", retryInMs=wait)
        for i, before, t, wait in [(1, "u1", 2, 500), (2, "e1", 4, 1500)]
    ]
    found = calls(user("u1", None, 0), *failed, answer("a1", "e2", 9, "A"), *EXAMPLE[3:])
    assert spans(found)[0] == ("", 0.0, 3.5)  # counted from its own start, 5.5 s after the prompt
    assert drafts({MAIN: [user("u1", None, 0), *failed, answer("a1", "e2", 9, "A")]})[
        0
    ].start_s == pytest.approx(START.timestamp() + 5.5)


def test_a_second_try_with_the_same_input_begins_after_the_first() -> None:
    """An answer that was given anew did not take the time of the first one too."""
    found = calls(*TURN, answer("a2", "u1", 9, "B"))
    assert spans(found) == [("", 0.0, 3.0), ("", 3.0, 9.0)]


def test_a_start_that_is_not_recorded_is_estimated() -> None:
    """Without an input a call's output tells how long it took, and it counts as estimated."""
    lines = [*TURN, answer("a2", "a1", 20, "B", osl=100)]
    second = calls(*lines)[1]
    assert second.start_s == pytest.approx(20 - 100 / (50 / 3))
    assert not second.timed
    assert notes(*lines)["answers without an input before them, start estimated"] == 1


def test_an_answer_stamped_before_its_input_is_estimated() -> None:
    """A clock that was set back gives no negative duration."""
    lines = [*TURN, user("u2", "a1", 30), answer("a2", "u2", 28, "B")]
    second = calls(*lines)[1]
    assert second.start_s == pytest.approx(28 - 50 / (50 / 3))
    assert not second.timed
    assert notes(*lines)["answers stamped before their input, start estimated"] == 1


def test_a_call_begins_no_earlier_than_the_one_it_continues() -> None:
    """A clock that was set back between two calls moves the second one's start, noted."""
    lines = [
        user("u1", None, 100),
        answer("a1", "u1", 103, "A"),
        user("u2", "a1", 50),
        answer("a2", "u2", 110, "B", 1200),
    ]
    assert spans(calls(*lines)) == [("", 0.0, 3.0), ("", 0.0, 10.0)]
    assert notes(*lines)["calls stamped before the one they continue, start moved"] == 1


def test_a_call_without_a_time_among_others_is_left_out() -> None:
    """Nothing says where it belongs."""
    line = answer("a2", "a1", 5, "B") | {"timestamp": None}
    assert len(calls(*TURN, line)) == 1
    assert notes(*TURN, line)["calls without a time, left out"] == 1


def test_a_log_without_times_needs_a_gap() -> None:
    """Without any stamp the user supplies the seconds between calls."""
    lines = [line | {"timestamp": None} for line in EXAMPLE]
    (draft,) = drafts({MAIN: lines})
    with pytest.raises(TraceError, match="--gap"):
        recorded.session(draft)
    assert [call.gap_s for call in recorded.session(draft, 2.0)[0].calls] == [0.0, 2.0]


# --- Prefixes -------------------------------------------------------------------------------------


def turns(*rows: tuple[int, int], between: Sequence[Row] = ()) -> list[Row]:
    """A conversation of calls of (input, cached) tokens, *between* before the last prompt."""
    lines: list[Row] = []
    before = None
    for i, (isl, cached) in enumerate(rows):
        if between and i == len(rows) - 1:
            lines += between
            before = between[-1]["uuid"]
        lines += [
            user(f"u{i}", before, 10 * i),
            answer(f"a{i}", f"u{i}", 10 * i + 3, f"M{i}", isl, cached),
        ]
        before = f"a{i}"
    return lines


def test_a_call_shares_the_whole_prompt_before_it() -> None:
    """As its input grew, it is that of the call before and more."""
    assert prefixes(calls(*turns((6400, 0), (7000, 6390)))) == [(None, 0), (0, 6400)]


def test_a_cache_miss_is_not_a_changed_prefix() -> None:
    """A cache that had expired says nothing about the prompt."""
    assert prefixes(calls(*turns((6400, 0), (7000, 0))))[1] == (0, 6400)


def test_where_the_input_falls_the_cache_tells_what_is_shared() -> None:
    """A shorter prompt was rewritten; what was read from the cache was not."""
    assert prefixes(calls(*turns((6400, 640), (7000, 6400), (3200, 1280))))[2] == (1, 1280)


def test_after_a_cold_fall_tools_and_system_prompt_are_shared() -> None:
    """A rewritten prompt still begins with them."""
    assert prefixes(calls(*turns((6400, 640), (7000, 6400), (3200, 0))))[2] == (1, 640)


def test_system_is_the_least_that_was_read_from_the_cache() -> None:
    """Tools and system prompt are in the cache of every call; no prompt is shorter than them."""
    found = calls(*turns((6400, 0), (7000, 6390), (8000, 1500), (1000, 0)))
    assert [call.system for call in found] == [1500, 1500, 1500, 1000]


def test_a_rewound_conversation_shares_with_the_call_that_it_went_back_to() -> None:
    """An abandoned branch was sent, but is no part of what came after."""
    found = calls(
        *turns((6400, 0)),
        user("x1", "a0", 10),
        answer("xa", "x1", 13, "X", 9600, 6400),
        user("y1", "a0", 20),
        answer("ya", "y1", 23, "Y", 12800, 6400),
        user("y2", "ya", 30),
        answer("yb", "y2", 33, "Z", 13000, 12800),
    )
    assert prefixes(found) == [(None, 0), (0, 6400), (0, 6400), (2, 12800)]
    assert [call.after for call in found] == [(), (0,), (1,), (2,)]


def test_another_model_shares_what_it_read_from_its_cache() -> None:
    """Each model has a cache of its own; back at the first, its last prompt is continued."""
    lines = turns((6400, 0), (7000, 0), (8000, 6400), (9000, 640))
    lines[3]["message"]["model"] = "other"
    lines[7]["message"]["model"] = "third"
    assert prefixes(calls(*lines)) == [(None, 0), (None, 0), (0, 6400), (2, 640)]


def test_without_links_calls_follow_each_other_in_the_file() -> None:
    """Exporters leave the links out."""
    lines = turns((6400, 0), (7000, 6400))
    for line in lines:
        del line["uuid"], line["parentUuid"]
    found = calls(*lines)
    assert prefixes(found)[1] == (0, 6400)
    assert spans(found) == [("", 0.0, 3.0), ("", 10.0, 13.0)]


COMPACTED = {"subtype": "compact_boundary", "logicalParentUuid": "a1", "cwd": "/w"}


def compacted(**metadata: Any) -> list[Row]:
    """A compaction and its summary, after the second call."""
    return [
        row("system", "cb", None, 15, compactMetadata={"preTokens": 7000} | metadata, **COMPACTED),
        user("cs", "cb", 16, isCompactSummary=True),
    ]


@pytest.mark.parametrize(("cached", "shared"), [(1280, 1280), (0, 640)], ids=["warm", "cold"])
def test_a_compaction_leaves_tools_and_system_prompt(cached: int, shared: int) -> None:
    """However long the summary is, the prompt behind it is a new one; noted without its call."""
    lines = turns((6400, 640), (7000, 6400), (9000, cached), between=compacted())
    assert prefixes(calls(*lines))[2] == (1, shared)
    assert notes(*lines)["compactions whose own call is not in the log"] == 1


def test_a_compaction_that_a_helper_made_is_in_the_log() -> None:
    """Newer versions log the call that writes the summary in a file of its own."""
    lines = turns((6400, 640), (7000, 6400), (3000, 640), between=compacted())
    helper = [user("h1", None, 13.5), answer("h2", "h1", 15, "H", 7100, 6900)]
    files = {MAIN: lines, "p/S/subagents/agent-acompact-1.jsonl": helper}
    (draft,) = drafts(files)
    assert not draft.notes
    helped = recorded.session(draft)[0].calls[2]
    assert (helped.agent, helped.parent, helped.shared) == ("helper 1", 1, 6848)


def test_a_message_that_a_compaction_kept_is_the_call_that_it_was() -> None:
    """Written again behind the compaction it keeps its time, and what follows is compacted."""
    kept = answer("a1", "cs", 13, "M1", 7000, 6400)
    after = [user("u2", "a1", 20), answer("a2", "u2", 23, "M2", 9000, 640)]
    lines = turns((6400, 640), (7000, 6400))
    found = calls(*lines, *compacted(), kept, *after)
    assert spans(found)[1:] == [("", 10.0, 13.0), ("", 20.0, 23.0)]
    assert prefixes(found) == [(None, 0), (0, 6400), (1, 640)]
    assert found == calls(*lines[:-1], *compacted(), kept, *after)


@pytest.mark.parametrize(
    "kept", [{"preservedSegment": {"tailUuid": "a1"}}, {"preservedMessages": {"uuids": ["a1"]}}]
)
def test_what_follows_a_kept_message_is_compacted(kept: Row) -> None:
    """Kept messages need not be written again."""
    after = [user("u2", "a1", 20), answer("a2", "u2", 23, "M2", 9000, 640)]
    found = calls(*turns((6400, 640), (7000, 6400)), *compacted(**kept), *after)
    assert prefixes(found)[2] == (1, 640)
    assert found[2].start_s == 20.0


def test_blanked_results_change_the_prompt() -> None:
    """After a microcompaction the cache tells what is shared."""
    blanked = [row("system", "mb", "a1", 15, subtype="microcompact_boundary")]
    lines = turns((6400, 640), (7000, 6400), (7100, 3200), between=blanked)
    assert prefixes(calls(*lines))[2] == (1, 3200)


# --- Copies ---------------------------------------------------------------------------------------


def other(lines: Sequence[Row], **fields: Any) -> list[Row]:
    """The lines as another session has them."""
    return [line | {"sessionId": "T"} | fields for line in lines]


MORE = [user("u9", "a3", 100), answer("a9", "u9", 104, "N", 14_000, 13_100)]


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_a_resumed_session_does_not_repeat_calls(names: tuple[str, str]) -> None:
    """Copied calls belong to the session that ended first, whatever the files are called."""
    first, second = names
    files = {f"p/{first}.jsonl": EXAMPLE, f"p/{second}.jsonl": other([*EXAMPLE, *MORE])}
    kept = parts(files)
    found = {draft.id: draft.calls for draft in claude_code.drafts(kept, READING)}
    assert [call.isl for call in found["S"]] == [12_904, 13_135]
    assert [(call.isl, call.parent) for call in found["T"]] == [(14_000, None)]
    assert kept[1].notes["copies of calls, counted once"] == 2


def test_a_fork_does_not_repeat_calls() -> None:
    """What says that it is copied is, though the original went on for longer."""
    fork = other(EXAMPLE, forkedFrom={"sessionId": "S", "messageUuid": "x"})
    files = {"p/a.jsonl": [*fork, *other(MORE)], "p/b.jsonl": [*EXAMPLE, user("z", "a3", 900)]}
    late = answer("z2", "z", 905, "Z", 20_000)
    files["p/b.jsonl"].append(late)
    assert {d.id: len(d.calls) for d in drafts(files)} == {"S": 3, "T": 1}


def test_a_side_question_does_not_repeat_calls() -> None:
    """Copies on a sidechain are not the original, in a file of their own or in the same."""
    aside = [line | {"isSidechain": True, "requestId": "new"} for line in EXAMPLE]
    (session,) = sessions({"p/S/subagents/agent-x.jsonl": aside, MAIN: EXAMPLE})
    assert [call.agent for call in session.calls] == ["", ""]


def test_a_helper_continues_the_conversation_that_it_copied() -> None:
    """Its own call shares the prompt of the copied call before it."""
    helper = [*EXAMPLE, user("h1", "a3", 8), answer("h2", "h1", 9, "H", 13_400, 13_100)]
    path = "p/S/subagents/agent-aprompt_suggestion-1.jsonl"
    (session,) = sessions({MAIN: EXAMPLE, path: helper})
    assert [call.agent for call in session.calls] == ["", "", "helper 1"]
    assert prefixes(session.calls)[2] == (1, 13_120)


def test_an_id_that_comes_again_with_another_input_is_another_call() -> None:
    """Some gateways begin their ids anew in each session."""
    files = {MAIN: TURN, "p/T.jsonl": other([TURN[0], answer("a1", "u1", 3, "A", 1001)])}
    assert [(d.id, len(d.calls)) for d in drafts(files)] == [("S", 1), ("T", 1)]


def test_a_backup_of_a_folder_adds_nothing() -> None:
    """Files that lie there twice are one session."""
    assert len(drafts({MAIN: EXAMPLE, "backup/p/S.jsonl": EXAMPLE})) == 1


def test_sessions_of_two_projects_may_have_one_id() -> None:
    """An id names a session within its project's folder."""
    files = {"p/S.jsonl": TURN, "q/S.jsonl": [user("u", None, 0), answer("a", "u", 1, "B")]}
    assert [(d.id, len(d.calls)) for d in drafts(files)] == [("S", 1), ("S", 1)]


def test_the_order_of_files_does_not_matter() -> None:
    """A set of files gives the same sessions however it was listed."""
    files: Files = {
        "p/S/subagents/agent-1.jsonl": agent("X", 4),
        MAIN: EXAMPLE,
        "p/T.jsonl": other([*EXAMPLE, *MORE]),
    }
    assert sessions(files) == sessions(dict(reversed(files.items())))


# --- Subagents ------------------------------------------------------------------------------------


def agent(name: str, t: float, seconds: float = 2, **fields: Any) -> list[Row]:
    """The lines of a subagent that makes one call of 3200 tokens."""
    return [
        user(f"{name}u", None, t, isSidechain=True) | fields,
        answer(f"{name}a", f"{name}u", t + seconds, name, 3200, isSidechain=True, **fields),
    ]


SYNC = [*TURN, user("r1", "a1", 9), answer("a2", "r1", 12, "B", 1200)]
"""A call whose tool takes six seconds, and the next one."""


@pytest.mark.parametrize(
    "path",
    [
        "p/agent-1.jsonl",
        "p/S/subagents/agent-1.jsonl",
        "p/S/subagents/workflows/w/agent-1.jsonl",
        MAIN,
    ],
    ids=["beside", "folder", "workflow", "inline"],
)
def test_a_subagent_is_part_of_its_session(path: str) -> None:
    """In whichever layout, its call stands between, and the next call of its parent waits."""
    inner = agent("X", 3.5)
    files: Files = {MAIN: SYNC}
    files[path] = [*files.get(path, []), *inner]
    (session,) = sessions(files)
    assert spans(session.calls) == [("", 0.0, 3.0), ("agent 1", 3.5, 5.5), ("", 9.0, 12.0)]
    assert [call.after for call in session.calls] == [(), (0,), (0, 1)]
    assert session.calls[2].gap_s == pytest.approx(3.5)


def test_interleaved_subagents_are_told_apart_by_their_links() -> None:
    """Two of them in the main file are two, in the order in which they began."""
    x, y = agent("X", 3.6), agent("Y", 3.5)
    more = [
        user("Xr", "Xa", 6, isSidechain=True),
        user("Yr", "Ya", 6.1, isSidechain=True),
        answer("Xb", "Xr", 7, "X2", 3400, isSidechain=True),
        answer("Yb", "Yr", 8, "Y2", 3500, isSidechain=True),
    ]
    found = calls(*SYNC[:2], x[0], y[0], x[1], y[1], *more, *SYNC[2:])
    assert [(c.agent, c.isl) for c in found[1:5]] == [
        ("agent 1", 3200),
        ("agent 2", 3200),
        ("agent 2", 3400),
        ("agent 1", 3500),
    ]
    assert prefixes(found)[3:5] == [(2, 3200), (1, 3200)]
    assert set(found[5].after) == {0, 3, 4}


def test_subagents_beside_two_sessions_go_to_their_own() -> None:
    """The id of the session is in their lines."""
    files = {MAIN: SYNC, "p/T.jsonl": other([user("u", None, 0), answer("a", "u", 3, "T")])}
    files["p/agent-1.jsonl"] = agent("X", 4)
    files["p/agent-2.jsonl"] = other(agent("Y", 4))
    assert [[call.agent for call in s.calls] for s in sessions(files)] == [
        ["", "agent 1", ""],
        ["", "agent 1"],
    ]


def test_an_agent_in_the_background_does_not_hold_up_its_parent() -> None:
    """The result that says it was launched is no join, nor are three notices of its end calls."""
    text = "<task-notification><tool-use-id>t</tool-use-id></task-notification>"
    notice = {"message": {"role": "user", "content": text}}
    main = [
        *TURN,
        user("r1", "a1", 3.1, toolUseResult={"status": "async_launched", "isAsync": True}),
        answer("a2", "r1", 6, "B", 1200),
        {"type": "queue-operation", "operation": "enqueue", "timestamp": at(20), "content": text},
        row("attachment", "q1", "a2", 20.1, attachment={"type": "queued_command", "prompt": text}),
        user("q2", "q1", 20.2, **notice),
        answer("a3", "q2", 24, "C", 1400),
    ]
    (session,) = sessions({MAIN: main, "p/S/subagents/agent-1.jsonl": agent("X", 3.2, 16)})
    assert spans(session.calls) == [
        ("", 0.0, 3.0),
        ("", 3.1, 6.0),
        ("agent 1", 3.2, 19.2),
        ("", 20.2, 24.0),
    ]
    assert [call.after for call in session.calls][1] == (0,)
    assert 1 in session.calls[3].after


def test_the_size_that_a_task_reports_is_not_counted() -> None:
    """`totalTokens` is the last call's context; the calls are in the agent's own file."""
    result = {"status": "completed", "totalTokens": 13_751, "usage": {"output_tokens": 308}}
    found = calls(*TURN, user("r1", "a1", 9, toolUseResult=result), answer("a2", "r1", 12, "B"))
    assert [call.isl for call in found] == [1000, 1000]


def test_an_agent_that_starts_warm_shares_with_one_of_its_kind() -> None:
    """Its first call shares what it read with an earlier agent's first call of its model."""
    files: Files = {MAIN: SYNC}
    for name, t, model, cached in [("X", 3.5, "m", 0), ("Y", 4, "o", 0), ("Z", 6, "m", 2560)]:
        lines = agent(name, t)
        lines[1] = answer(f"{name}a", f"{name}u", t + 1, name, 3200, cached, model=model)
        files[f"p/S/subagents/agent-{name}.jsonl"] = lines
    (session,) = sessions(files)
    assert [c.agent for c in session.calls] == ["", "agent 1", "agent 2", "agent 3", ""]
    assert prefixes(session.calls)[1:4] == [(None, 0), (None, 0), (1, 2560)]
    assert session.calls[3].system == 2560


def test_the_first_agent_that_starts_warm_shares_with_the_main_agent() -> None:
    """Where no agent was before, the cache held the main agent's prompt."""
    lines = agent("X", 3.5)
    lines[1] = answer("Xa", "Xu", 5, "X", 3200, 640)
    (session,) = sessions({MAIN: SYNC, "p/S/subagents/agent-X.jsonl": lines})
    assert prefixes(session.calls)[1] == (0, 640)


def test_labels_hold_no_recorded_names() -> None:
    """Agents and helpers are numbered as they appear."""
    files = {
        MAIN: SYNC,
        "p/S/subagents/agent-zed.jsonl": agent("X", 3.5),
        "p/S/subagents/agent-abc.jsonl": agent("Y", 4),
        "p/S/subagents/agent-acompact-9.jsonl": agent("Z", 5),
    }
    (session,) = sessions(files)
    assert [(c.agent, c.start_s) for c in session.calls[1:4]] == [
        ("agent 1", 3.5),
        ("agent 2", 4.0),
        ("helper 1", 5.0),
    ]


def test_subagents_without_their_main_file_are_a_session() -> None:
    """What is there is read."""
    (session,) = sessions({"p/S/subagents/agent-1.jsonl": agent("X", 0)})
    assert [(session.id, call.agent) for call in session.calls] == [("S", "agent 1")]


def asks(tool: str, name: str = "Agent") -> Row:
    """A block that asks for an agent."""
    return {"type": "tool_use", "id": tool, "name": name, "input": {}}


def asking(line: Row, *tools: str) -> Row:
    """An answer's line that asks for agents."""
    return line | {"message": line["message"] | {"content": [asks(tool) for tool in tools]}}


def returned(uuid: str, parent: str, t: float, tool: str, **outcome: Any) -> Row:
    """What the tool gave."""
    content = [{"type": "tool_result", "tool_use_id": tool, "content": "x"}]
    message = {"role": "user", "content": content}
    return user(uuid, parent, t, message=message, toolUseResult=outcome)


def test_an_agent_that_began_while_its_maker_spoke_is_joined() -> None:
    """It waits for what its maker waited for, and the call that gets its result waits for it."""
    main = [
        *TURN,
        user("u2", "a1", 10),
        asking(answer("a2", "u2", 12, "B", 1200), "t"),
        answer("a3", "a2", 15, "B", 1200),
        returned("r1", "a2", 30, "t", agentId="x", status="completed"),
        answer("a4", "r1", 33, "C", 1300),
    ]
    (session,) = sessions({MAIN: main, "p/S/subagents/agent-x.jsonl": agent("X", 12.1, 16)})
    assert [call.agent for call in session.calls] == ["", "", "agent 1", ""]
    assert [call.after for call in session.calls] == [(), (0,), (0,), (1, 2)]


def test_an_agent_waits_for_the_call_whose_result_names_it() -> None:
    """Of two calls that asked for agents, each agent waits for its own; none holds the next up."""
    away = {"isAsync": True, "status": "async_launched"}
    main = [
        user("u1", None, 0),
        asking(answer("a1", "u1", 2, "A", 1000), "t1"),
        returned("r1", "a1", 2.1, "t1", agentId="late", **away),
        asking(answer("a2", "r1", 5, "B", 1100), "t2"),
        returned("r2", "a2", 5.1, "t2", agentId="soon", **away),
        answer("a3", "r2", 9, "C", 1200),
        user("u2", "a3", 40),
        answer("a4", "u2", 44, "D", 1300),
    ]
    files: Files = {
        MAIN: main,
        "p/S/subagents/agent-late.jsonl": agent("late", 7, 10),
        "p/S/subagents/agent-soon.jsonl": agent("soon", 8, 10),
    }
    (session,) = sessions(files)
    assert [call.agent for call in session.calls] == ["", "", "", "agent 1", "agent 2", ""]
    assert [call.after for call in session.calls] == [(), (0,), (1,), (0,), (1,), (2,)]


def test_a_prompt_without_a_link_goes_back_to_the_beginning() -> None:
    """It shares what was read from the cache, not the prompt before it."""
    found = calls(
        user("u1", None, 0),
        answer("a1", "u1", 3, "A", 9000, 3200),
        user("u2", None, 40),
        answer("a2", "u2", 43, "B", 9900, 3200),
    )
    assert prefixes(found) == [(None, 0), (0, 3200)]


def test_an_older_backup_is_part_of_its_session() -> None:
    """A copy that was made while a session went on adds nothing, and takes nothing."""
    lines = [*TURN, user("u2", "a1", 10), answer("a2", "u2", 12, "B", 1200)]
    for backup in "a/S.jsonl", "z/S.jsonl":
        (session,) = sessions({MAIN: lines, backup: lines[: len(TURN)]})
        assert len(session.calls) == 2


def test_a_resumed_session_without_a_call_of_its_own_takes_none() -> None:
    """Calls belong to the session whose last line is the earliest, also where no call follows."""
    lines = [*TURN, user("u2", "a1", 10), answer("a2", "u2", 12, "B", 1200)]
    resumed = [line | {"sessionId": "R"} for line in TURN]
    resumed.append(user("u3", "a1", 30, sessionId="R"))
    (session,) = sessions({MAIN: lines, "p/R.jsonl": resumed})
    assert (session.id, len(session.calls)) == ("S", 2)


# --- Files ----------------------------------------------------------------------------------------


def test_a_file_alone_is_a_session() -> None:
    """No project folder is needed; without a session id the place names it."""
    lines = [{k: v for k, v in line.items() if k not in ("sessionId", "cwd")} for line in EXAMPLE]
    (draft,) = drafts({"x.jsonl": lines})
    assert (draft.id, draft.project, len(draft.calls)) == ("x.jsonl:2", None, 2)
    assert drafts({"folder/x.jsonl": lines})[0].project == "folder"


def test_lines_without_a_type_are_answers() -> None:
    """Usage exports hold the message only."""
    lines = [
        {"timestamp": at(t), "message": {"id": name, "model": "m", "usage": usage}}
        for t, name, usage in [
            (0, "A", {"input_tokens": 900, "output_tokens": 35}),
            (10, "B", {"input_tokens": 1000, "output_tokens": 35}),
        ]
    ]
    assert all(claude_code.recognises(line) for line in lines)
    (session,) = sessions({"usage.jsonl": lines})
    assert [(c.isl, c.osl, round(c.end_s - c.start_s, 3)) for c in session.calls] == [
        (900, 35, 1.0),
        (1000, 35, 1.0),
    ]
    assert prefixes(session.calls)[1] == (0, 896)


def test_a_file_of_summaries_holds_no_session() -> None:
    """Titles of other sessions are no calls, and nothing to note."""
    kept = parts({MAIN: [{"type": "summary", "summary": "words", "leafUuid": "x"}] * 3})
    assert claude_code.drafts(kept, READING) == []
    assert not kept[0].notes


def test_what_is_unknown_is_counted() -> None:
    """Records of types to come and lines that are no records are passed over."""
    assert dict(notes(*TURN, {"type": "new", "uuid": "n"}, 42, "words", [1], None)) == {
        "records of an unknown type, left out": 1,
        "lines that are no objects, left out": 4,
    }


CONTROLS: list[Row] = [
    {"type": "summary", "summary": "words", "leafUuid": "x"},
    {"type": "file-history-snapshot", "messageId": "x", "snapshot": {}},
    {"type": "mode", "mode": "normal", "sessionId": "S"},
    {"type": "queue-operation", "operation": "enqueue", "sessionId": "S", "timestamp": at(0)},
    row("attachment", "x", None, 0, attachment={"type": "goal_status"}),
    row("system", "x", None, 0, subtype="informational"),
]


@pytest.mark.parametrize("record", [*CONTROLS, *EXAMPLE], ids=lambda record: record["type"])
def test_its_records_are_recognised(record: Row) -> None:
    """No real file begins with a turn, so records without messages are known too."""
    assert claude_code.recognises(record)


@pytest.mark.parametrize(
    "record",
    [
        {"type": "response_item", "timestamp": at(0), "payload": {"role": "user"}},
        {"type": "user", "id": "x", "timestamp": at(0), "content": "words"},
        {"sessionId": "S", "projectHash": "x", "messages": []},
        row("user", "x", None, 0, message={"role": "user", "parts": []}),
        row("system", "x", None, 0, subtype="ui_telemetry", systemPayload={}),
        {"type": "assistant", "message": {"role": "assistant"}, "session_id": "S", "uuid": "x"},
        {"type": "message", "id": "x", "message": {"role": "user", "content": []}},
        {"display": "words", "timestamp": 1, "project": "/w", "sessionId": "S"},
        {"custom_id": "x", "response": {"body": {"id": "m", "usage": {}}}},
    ],
    ids="codex gemini header qwen telemetry stream message history batch".split(),
)
def test_records_of_others_are_not_recognised(record: Row) -> None:
    """Formats with the same words are told apart."""
    assert not claude_code.recognises(record)


# --- Whatever comes -------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "u1", "a1", "S", "12", at(3), "1e400", "compact_boundary"])
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)

WHOLE = [
    *CONTROLS,
    *turns((6400, 640), (7000, 6400), (9000, 1280), between=compacted(preservedMessages={})),
    row("system", "e1", "a2", 24, subtype="api_error", retryInMs=100),
    *agent("X", 3.5),
    *agent("Y", 3.6, agentId="Y"),
    row("progress", "g", "a2", 25),
    *MORE,
]

PATHS = [MAIN, "p/agent-1.jsonl", "p/S/subagents/agent-2.jsonl", "subagents/x.jsonl", "x"]


@st.composite
def changes(draw: st.DrawFn, holder: Row) -> Row:
    """The object, perhaps with anything in one of its fields, or without it."""
    if not holder or draw(st.integers(0, 2)):
        return holder
    name = draw(st.sampled_from(sorted(holder)))
    kept = {key: value for key, value in holder.items() if key != name}
    value = draw(JSON | st.just("left out"))
    return kept if value == "left out" else kept | {name: value}


@st.composite
def damaged(draw: st.DrawFn) -> Files:
    """Files of lines in any order, some without or with other fields."""
    files: Files = {}
    for path in draw(st.lists(st.sampled_from(PATHS), min_size=1, max_size=3, unique=True)):
        lines: list[Any] = []
        for line in draw(st.lists(st.sampled_from(WHOLE), max_size=12)):
            changed: Row = dict(line)
            inner = sorted(name for name, value in line.items() if isinstance(value, dict))
            for name in inner:
                changed[name] = draw(changes(line[name]))
                if isinstance(usage := changed[name].get("usage"), dict):
                    changed[name] = changed[name] | {"usage": draw(changes(usage))}
            changed = draw(changes(changed))
            lines.append(changed)
        files[path] = [*lines, *draw(st.lists(JSON, max_size=1))]
    return files


@settings(max_examples=300, deadline=None)
@given(damaged())
def test_damaged_logs_give_sessions_that_keep_the_rules(files: Files) -> None:
    """Any value in any field is read or left out, and calls are possible ones in causal order."""
    kept = [
        claude_code.read(list(enumerate(lines, 1)), PurePath(path), READING, Notes())
        for path, lines in files.items()
    ]
    for draft in claude_code.drafts(kept, READING):
        check(recorded.session(draft, 1.0)[0])


@given(JSON | st.dictionaries(st.sampled_from([*WHOLE[-1], "message", "type"]), JSON))
def test_anything_may_be_asked_about(value: Any) -> None:
    """Whether it is a record of this format is answered for every value."""
    assert claude_code.recognises(value) in (True, False)


def check(session: Session) -> None:
    """The rules of the model, and that each call starts when what it waits for lets it."""
    assert session.calls
    for i, call in enumerate(session.calls):
        assert call.isl >= 1
        assert call.osl >= 0
        assert call.cached is None or 0 <= call.cached <= call.isl
        assert 0 <= call.system <= call.isl
        assert 0 <= call.shared <= call.isl
        assert call.parent is None or call.parent < i
        assert all(j < i for j in call.after)
        assert call.end_s >= call.start_s
        since = max((session.calls[j].end_s for j in call.after), default=0.0)
        assert call.gap_s == pytest.approx(max(0.0, call.start_s - since))


def test_no_recorded_text_is_kept() -> None:
    """A key in prompts, results, commands or folders is nowhere but in the project's name."""
    key = "sk-planted-4711"
    content = [{"type": "tool_result", "tool_use_id": key, "content": key, "text": key}]
    planted = {"cwd": f"/home/{key}", "gitBranch": key, "slug": key, "toolUseResult": key}
    lines = [
        line | planted | {"message": line.get("message", {}) | {"content": content}}
        for line in [*EXAMPLE, *compacted(), *agent("X", 5)]
    ]
    kept = parts({MAIN: lines})
    (draft,) = claude_code.drafts(kept, READING)
    assert draft.project == f"/home/{key}"
    assert key not in repr(kept)
    assert key not in repr([draft.id, draft.source, draft.calls, draft.notes])
    assert key not in repr(recorded.session(draft))


# --- Recorded samples -----------------------------------------------------------------------------


def sample(*names: str) -> list[claude_code.Part]:
    """Sample files; lines that are no JSON are left out."""
    found = []
    for name in names:
        records = [
            (number, orjson.loads(line))
            for number, line in enumerate((SAMPLES / name).read_bytes().split(b"\n"), 1)
            if line.strip()
        ]
        found.append(claude_code.read(records, PurePath(name), READING, Notes()))
    return found


def expected() -> dict[str, Row]:
    """The counts of the samples; one is no JSON lines, which is the loader's to see."""
    file = SAMPLES / "EXPECTED.json"
    listed: dict[str, Row] = orjson.loads(file.read_bytes()) if file.exists() else {}
    return {
        name: counts
        for name, counts in listed.items()
        if name.startswith("claude-code/") and "NOT_jsonl" not in name
    }


@needs_shared
@pytest.mark.parametrize("name", expected(), ids=lambda name: Path(name).name)
def test_samples_have_the_counts_that_others_found(name: str) -> None:
    """Calls, sidechain calls and tokens of each sample are the golden ones."""
    counts = expected()[name]
    rows = [row for draft in claude_code.drafts(sample(name), READING) for row in draft.calls]
    assert {
        "llm_calls": len(rows),
        "sidechain_calls": sum(row.agent != "" for row in rows),
        "input_total": sum(row.isl for row in rows),
        "cache_read": sum(row.cached or 0 for row in rows),
        "output": sum(row.osl for row in rows),
    } == {
        key: counts[key]
        for key in "llm_calls sidechain_calls input_total cache_read output".split()
    }


@needs_shared
def test_samples_replay_as_recorded() -> None:
    """Every call of the samples starts at what it waits for plus its gap."""
    made = [recorded.session(d)[0] for d in claude_code.drafts(sample(*expected()), READING)]
    assert sum(len(session.calls) for session in made) == 211
    for session in made:
        check(session)


@needs_shared
def test_parallel_subagents_of_a_real_session_are_joined() -> None:
    """Three agents in the main file run at once, and the main agent waits for the last of each."""
    name = "claude-code/ccv_big_inline_sidechains_v1_0_98.jsonl"
    (draft,) = claude_code.drafts(sample(name), READING)
    found = recorded.session(draft)[0].calls
    joins = [i for i, call in enumerate(found) if len(call.after) > 1]
    assert [(i, found[i].agent, len(found[i].after) - 1) for i in joins] == [
        (86, "", 3),
        (166, "", 2),
    ]
    assert {found[j].agent for j in found[86].after} == {"", "agent 1", "agent 2", "agent 3"}


@needs_shared
def test_subagents_stamped_after_their_join_are_read() -> None:
    """A sample whose agents answer after their results were used is replayed in that order."""
    names = [name for name in expected() if "subagents_folder" in name]
    (draft,) = claude_code.drafts(sample(*names), READING)
    session = recorded.session(draft)[0]
    assert [call.agent for call in session.calls] == [""] * 5 + ["agent 1", "agent 2"]


@needs_shared
def test_no_other_sample_is_recognised() -> None:
    """No record of any other format's samples is taken for one of this format."""
    for file in sorted(SAMPLES.rglob("*")):
        if not file.is_file() or file.is_relative_to(SAMPLES / "claude-code"):
            continue
        data = file.read_bytes()
        for text in [data, *data.split(b"\n")]:
            try:
                value = orjson.loads(text)
            except orjson.JSONDecodeError:
                continue
            records = value if isinstance(value, list) else [value]
            assert not any(claude_code.recognises(record) for record in records), file


@needs_shared
def test_lines_of_a_file_may_come_in_any_order() -> None:
    """Shuffled lines give the same calls with the same counts, if not the same times."""
    name = "claude-code/tracelab_claude_segment.jsonl"
    records = [
        (number, orjson.loads(line))
        for number, line in enumerate((SAMPLES / name).read_bytes().splitlines(), 1)
    ]
    random.Random(1).shuffle(records)
    part = claude_code.read(records, PurePath(name), READING, Notes())
    (draft,) = claude_code.drafts([part], READING)
    assert (len(draft.calls), sum(call.isl for call in draft.calls)) == (10, 418_193)
    check(recorded.session(draft)[0])
