"""The Codex reader: lines of rollout files in, sessions out."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import SHARED, needs_shared

from agentreplay.errors import TraceError
from agentreplay.trace.formats import codex
from agentreplay.trace.load import load
from agentreplay.trace.model import Call, Notes, Session
from agentreplay.trace.recorded import Draft, Reading, session

Row = dict[str, Any]

READING = Reading(key=b"a key of the tests")
START = datetime(2026, 1, 2, 10, tzinfo=UTC)
SAMPLES = SHARED / "data" / "formats"

# --- Lines ----------------------------------------------------------------------------------------


def at(t: float) -> str:
    """The stamp *t* seconds after ten o'clock."""
    return (START + timedelta(seconds=t)).isoformat(timespec="milliseconds")[:-6] + "Z"


def row(t: float, kind: str, **payload: object) -> Row:
    return {"timestamp": at(t), "type": kind, "payload": payload}


def meta(t: float, name: str = "T1", **fields: object) -> Row:
    return row(t, "session_meta", **({"id": name, "timestamp": at(t), "cwd": "/w"} | fields))


def spawned(by: str, **fields: object) -> Row:
    """The source of a subagent's thread."""
    return {"subagent": {"thread_spawn": {"parent_thread_id": by, "depth": 1} | fields}}


def event(t: float, what: str, **fields: object) -> Row:
    return row(t, "event_msg", type=what, **fields)


def turn(t: float, model: str = "gpt-x") -> list[Row]:
    """A turn begins: task, model, the user's message twice."""
    text = [{"type": "input_text", "text": "go on"}]
    return [
        event(t - 0.02, "task_started", turn_id="1"),
        row(t - 0.01, "turn_context", model=model, cwd="/w"),
        row(t, "response_item", type="message", role="user", content=text),
        event(t, "user_message", message="go on"),
    ]


def said(t: float) -> Row:
    return row(t, "response_item", type="message", role="assistant", content=[])


def tool(t: float, name: str = "c") -> Row:
    return row(t, "response_item", type="function_call", name="shell", call_id=name)


def result(t: float, name: str = "c") -> Row:
    return row(t, "response_item", type="function_call_output", call_id=name, output="x")


def usage(isl: int, cached: int, osl: int) -> Row:
    return {
        "input_tokens": isl,
        "cached_input_tokens": cached,
        "output_tokens": osl,
        "reasoning_output_tokens": 0,
        "total_tokens": isl + osl,
    }


def counts(t: float, total: Row | None, last: Row | None, **fields: object) -> Row:
    info = {"total_token_usage": total, "last_token_usage": last}
    return event(t, "token_count", info=info, **fields)


class Thread:
    """Writes the calls of a thread; keeps its running totals."""

    def __init__(self, total: Sequence[int] = (0, 0, 0)) -> None:
        self.total = list(total)

    def counts(self, t: float, isl: int, cached: int, osl: int = 10) -> Row:
        used = (isl, cached, osl)
        self.total = [sum(pair) for pair in zip(self.total, used, strict=True)]
        return counts(t, usage(*self.total), usage(*used))

    def call(self, end: float, isl: int, cached: int = 0, osl: int = 10) -> list[Row]:
        """An answer that ends in a tool call."""
        return [tool(end), self.counts(end, isl, cached, osl)]


# --- Reading --------------------------------------------------------------------------------------


def part(rows: Iterable[object], path: str = "rollout-own.jsonl") -> codex.Rollout:
    decoded = ((n, orjson.loads(orjson.dumps(value))) for n, value in enumerate(rows, 1))
    return codex.read(decoded, PurePath(path), READING, Notes())


def drafts(*files: Iterable[object]) -> list[Draft]:
    parts = [part(rows, f"rollout-{n}.jsonl") for n, rows in enumerate(files)]
    return codex.drafts(parts, READING)


def sessions(*files: Iterable[object]) -> list[Session]:
    return [session(draft)[0] for draft in drafts(*files)]


def calls(*rows: Row) -> tuple[Call, ...]:
    """The calls of the one session of one file."""
    (made,) = sessions(rows)
    return made.calls


def notes(*rows: Row) -> Notes:
    read = part(rows)
    codex.drafts([read], READING)
    return read.notes


def lengths(made: Iterable[Call]) -> list[tuple[int, int | None, int]]:
    return [(call.isl, call.cached, call.osl) for call in made]


def spans(made: Iterable[Call]) -> list[tuple[float, float]]:
    return [(round(call.start_s, 3), round(call.end_s, 3)) for call in made]


def shares(made: Iterable[Call]) -> list[tuple[int | None, int]]:
    return [(call.parent, call.shared) for call in made]


EXAMPLE = [
    meta(0.0, cli_version="0.114.0", source="cli"),
    event(1.0, "task_started", turn_id="1"),
    row(1.01, "response_item", type="message", role="user",
        content=[{"type": "input_text", "text": "fix it"}]),
    row(1.02, "turn_context", turn_id="1", cwd="/w", model="gpt-x", effort="medium"),
    row(4.0, "response_item", type="reasoning", summary=[], encrypted_content="opaque"),
    tool(4.5),
    counts(4.6, usage(9000, 3000, 80), usage(9000, 3000, 80)),
    result(4.9),
    counts(4.95, usage(9000, 3000, 80), usage(9000, 3000, 80), rate_limits={"primary": None}),
    said(7.0),
    counts(7.05, usage(18200, 12000, 90), usage(9200, 9000, 10)),
]  # fmt: skip


# --- The example ----------------------------------------------------------------------------------


def test_a_call_is_a_change_of_the_totals() -> None:
    """Each new total is one call, with the lengths of its last usage; a repeat is none."""
    assert lengths(calls(*EXAMPLE)) == [(9000, 3000, 80), (9200, 9000, 10)]


def test_a_call_spans_from_its_input_to_its_token_count() -> None:
    """It begins with the last line of its prompt, and ends with a token count soon after."""
    assert spans(calls(*EXAMPLE)) == [(0.0, 3.59), (3.89, 6.04)]
    assert all(call.timed for call in calls(*EXAMPLE))


def test_a_call_continues_the_one_before() -> None:
    """A prompt that grew holds all of the one before; the tool took what lies between them."""
    second = calls(*EXAMPLE)[1]
    assert (second.parent, second.shared, second.after) == (0, 9000 // 64 * 64, (0,))
    assert second.gap_s == pytest.approx(0.3)


def test_a_session_keeps_its_identity() -> None:
    """A session has the thread's id, its folder as project, its start and its file."""
    (draft,) = drafts(EXAMPLE)
    assert (draft.id, draft.project, draft.source) == ("T1", "/w", "rollout-0.jsonl")
    assert (draft.dated, draft.start_s) == (True, START.timestamp() + 1.01)


def test_a_thread_without_an_id_has_that_of_its_file() -> None:
    """The name of a rollout file ends in the thread's id; else the session has the file's name."""
    name = "01a7c9e4-6d12-7b3a-9f42-8c6d5e1a0b73"
    path = f"d/rollout-2026-01-02T10-00-00-{name}.jsonl.zst"
    assert codex.drafts([part(EXAMPLE[1:], path)], READING)[0].id == name
    assert codex.drafts([part(EXAMPLE[1:], "d/own.jsonl")], READING)[0].id == "d/own.jsonl:1"


def test_the_least_cached_count_is_tools_and_system_prompt() -> None:
    """What every call found in the cache, but those that found nothing, is the system prompt."""
    thread = Thread()
    rows = [meta(0), *turn(1), *thread.call(2, 9000, 0), *thread.call(4, 9100, 6000)]
    rows += thread.call(6, 9200, 3072)
    assert [call.system for call in calls(*rows)] == [3072] * 3
    assert [call.system for call in calls(*rows[:7])] == [0]


def test_the_model_is_that_of_the_turn() -> None:
    """A call has the model of the latest turn before it, not of one that began since."""
    thread = Thread()
    rows = [meta(0), *turn(1, "a"), tool(2), result(2.1), row(2.2, "turn_context", model="b")]
    rows += [thread.counts(2.3, 900, 0), *thread.call(4, 990)]
    assert [call.model for call in calls(*rows)] == ["a", "b"]


# --- Token counts ---------------------------------------------------------------------------------


def test_token_counts_without_usage_are_no_calls() -> None:
    """A count with null info tells limits only; no note is made of it."""
    empty = event(0.5, "token_count", info=None, rate_limits={"primary": {}})
    assert len(calls(meta(0), empty, *EXAMPLE[1:])) == 2
    assert notes(meta(0), empty, *EXAMPLE[1:]) == {}


def test_a_count_of_zero_is_a_compaction() -> None:
    """A zero last usage is no call, whatever its total; the next prompt was made anew."""
    thread = Thread()
    rows = [meta(0), *turn(1), *thread.call(3, 9000), *thread.call(5, 9500, 8960)]
    zero = usage(0, 0, 0) | {"total_tokens": 258400}
    rows += [counts(5.5, usage(*thread.total) | {"total_tokens": 258400}, zero), result(6)]
    rows += thread.call(8, 9600, 3072)
    assert lengths(calls(*rows)) == [(9000, 0, 10), (9500, 8960, 10), (9600, 3072, 10)]
    assert shares(calls(*rows))[2] == (1, 3072)


def test_totals_that_fall_are_a_new_base() -> None:
    """After a resume the totals may begin again: the last usage counts, and a note is made."""
    rows = [*EXAMPLE, *turn(20), said(22)]
    rows.append(counts(22, usage(9300, 9000, 5), usage(9300, 9000, 5)))
    rows += [*turn(30), said(32), counts(32, usage(18700, 18000, 10), usage(9400, 9000, 5))]
    assert [call.isl for call in calls(*rows)] == [9000, 9200, 9300, 9400]
    assert notes(*rows) == {"running totals that fell, counted on from there": 1}


@pytest.mark.parametrize("last", [None, {}, "none", {"input_tokens": None}], ids=str)
def test_without_a_last_usage_the_totals_differ_by_it(last: Any) -> None:
    """A call's lengths are then the new totals less the old ones, or all of a fallen total."""
    rows = [
        meta(0),
        counts(3, usage(900, 300, 8), last),
        counts(5, usage(1900, 1100, 20), last),
        counts(7, usage(1000, 900, 7), last),
    ]
    assert lengths(calls(*rows)) == [(900, 300, 8), (1000, 800, 12), (1000, 900, 7)]


def test_differences_are_never_negative() -> None:
    """A part of the totals that falls counts as 0."""
    rows = [counts(3, usage(900, 300, 8), None), counts(5, usage(1900, 200, 20), None)]
    assert lengths(calls(*rows))[1] == (1000, 0, 12)


def test_without_totals_each_count_is_a_call() -> None:
    """Where the totals are missing nothing says that a count is a repeat."""
    rows = [counts(3, None, usage(900, 300, 8)), counts(5, None, usage(900, 300, 8))]
    assert len(calls(*rows)) == 2


def test_a_call_without_totals_is_no_copy() -> None:
    """What names a call in other files is its own total, not the one before it."""
    thread = Thread((18500, 12032, 20))
    rows = fork(moved(parent(), 100.1), forked_from_id="P")
    rows[-1] = counts(118, None, usage(10400, 0, 10))
    made = {each.id: each.calls for each in sessions(parent(), rows)}
    assert [call.isl for call in made["F"]] == [10000, 10400]
    rows[-3:-1] = [counts(113, None, usage(700, 0, 10)), *thread.call(117, 10000)]
    made = {each.id: each.calls for each in sessions(parent(), rows)}
    assert [call.isl for call in made["F"]] == [700, 10000, 10400]


def test_more_cached_than_input_is_the_outside_convention() -> None:
    """The cached tokens are then not in the input: both are added up, and a note is made."""
    rows = [meta(0), counts(3, usage(100, 900, 8), usage(100, 900, 8))]
    assert lengths(calls(*rows)) == [(1000, 900, 8)]
    assert notes(*rows) == {"calls with more cached than input tokens, added up": 1}


@pytest.mark.parametrize(
    "last",
    [{"input_tokens": 5}, {"output_tokens": 5}, {"input_tokens": 0, "output_tokens": 5}],
    ids=str,
)
def test_counts_without_lengths_are_left_out(last: Row) -> None:
    """A usage without an input or an output is no call; a note is made, with its line."""
    rows = [*EXAMPLE, counts(9, usage(20000, 12000, 99), last)]
    assert len(calls(*rows)) == 2
    made = notes(*rows)
    assert made == {"token counts without an input or output length, left out": 1}
    assert list(made.lines.values()) == [[12]]


def test_lengths_may_be_floats_or_text() -> None:
    """A count is whole however it is written; unknown fields of a usage are ignored."""
    last = {"input_tokens": "900", "cached_input_tokens": 300.0, "output_tokens": 8.0}
    last |= {"cache_write_input_tokens": 100}
    assert lengths(calls(meta(0), counts(3, last, last))) == [(900, 300, 8)]


def test_cached_tokens_may_be_unknown() -> None:
    """Absent is not 0."""
    last = {"input_tokens": 900, "output_tokens": 8}
    assert lengths(calls(meta(0), counts(3, last, last))) == [(900, None, 8)]


# --- Times ----------------------------------------------------------------------------------------


def test_a_late_token_count_does_not_lengthen_the_call() -> None:
    """After a tool's output, or more than a second late, the answer's own line says its end."""
    thread = Thread()
    rows = [meta(0), *turn(1), tool(3), result(3.2), thread.counts(3.4, 900, 0)]
    rows += [said(5), thread.counts(7, 990, 900), *turn(20), said(21), thread.counts(21.5, 999, 0)]
    assert spans(calls(*rows)) == [(0.0, 2.0), (2.2, 4.0), (19.0, 20.5)]


def test_the_last_of_parallel_results_begins_the_next_call() -> None:
    """A call waits for all tools; one that ended while the answer still came begins none."""
    thread = Thread()
    rows = [meta(0), *turn(1), tool(2, "a"), result(2.1, "a"), tool(3, "b"), tool(3.1, "c")]
    rows += [thread.counts(3.2, 900, 0), result(4, "b"), result(5, "c"), *thread.call(7, 990)]
    assert spans(calls(*rows)) == [(0.0, 2.2), (4.0, 6.0)]


def test_a_call_without_new_input_begins_when_the_last_one_ended() -> None:
    """Where no line says what was sent, nothing was waited for."""
    thread = Thread()
    rows = [meta(0), *turn(1), *thread.call(3, 900), *thread.call(5, 990)]
    assert spans(calls(*rows)) == [(0.0, 2.0), (2.0, 4.0)]


def test_startup_lines_are_no_turn() -> None:
    """Instructions and environment carry the user's role: the call begins with what came last."""
    text = [{"type": "input_text", "text": "<environment_context>"}]
    first = row(1, "response_item", type="message", role="user", content=text)
    thread = Thread()
    rows = [meta(0), first, *turn(500), *thread.call(503, 900)]
    (draft,) = drafts(rows)
    assert draft.start_s == START.timestamp() + 500


def test_a_turn_may_be_marked_by_events_alone() -> None:
    """Without a user's item the call begins with the event."""
    thread = Thread()
    rows = [meta(0), event(5, "user_message", message="a"), *thread.call(7, 900)]
    rows += [event(20, "user_message", message="b"), *thread.call(23, 990)]
    assert spans(calls(*rows)) == [(0.0, 2.0), (15.0, 18.0)]


def test_a_resumed_file_has_a_long_pause() -> None:
    """Hours between two lines are the user's, not a call's."""
    thread = Thread()
    rows = [meta(0), *turn(1), *thread.call(3, 900), *turn(30_001), *thread.call(30_004, 990)]
    second = calls(*rows)[1]
    assert (round(second.gap_s, 3), round(second.end_s - second.start_s, 3)) == (29_998.0, 3.0)


def test_a_call_begins_no_earlier_than_the_one_before_ended() -> None:
    """A stamp of its input that is older than the answer before it is not used."""
    thread = Thread()
    rows = [meta(0), *turn(1), *thread.call(3, 900), result(2.5), *thread.call(5, 990)]
    assert spans(calls(*rows)) == [(0.0, 2.0), (2.0, 4.0)]


def test_a_clock_that_steps_back_in_a_call_changes_no_order() -> None:
    """A call that seems to end before it began is estimated; later ones still come after it."""
    thread = Thread()
    rows = [meta(0), *turn(10), *thread.call(8, 900), result(8.5), *thread.call(9, 990)]
    made = calls(*rows)
    assert [(call.isl, call.timed) for call in made] == [(900, False), (990, True)]
    assert made[1].end_s - made[1].start_s == pytest.approx(0.5)


def test_a_clock_that_steps_back_is_taken_out() -> None:
    """After the step calls keep their order and durations; the pause at the step is lost."""
    thread = Thread()
    rows = [meta(0), *turn(4000), *thread.call(4003, 900), *turn(1000), *thread.call(1002, 990)]
    rows += [result(1005), *thread.call(1006, 999)]
    assert spans(calls(*rows)) == [(0.0, 3.0), (3.0, 5.0), (8.0, 9.0)]
    assert notes(*rows) == {"clock steps back, taken out": 1}


def test_a_call_of_which_only_the_end_is_known_is_estimated() -> None:
    """Without any line before it a call has no measured duration."""
    (call,) = calls(counts(5, usage(900, 0, 35), usage(900, 0, 35)))
    assert (call.timed, call.start_s, call.end_s) == (False, 0.0, 1.0)


def test_calls_without_a_time_are_left_out() -> None:
    """A token count without a stamp has the time of its answer; without both it is no call."""
    thread = Thread()
    bare = thread.counts(9, 990, 0) | {"timestamp": None}
    assert spans(calls(meta(0), *turn(1), said(3), bare)) == [(0.0, 2.0)]
    rows = [meta(0), *turn(1), *Thread().call(3, 900), bare]
    assert len(calls(*rows)) == 1
    assert notes(*rows) == {"calls without a time, left out": 1}


# --- Turns that fail or are taken back ------------------------------------------------------------


def test_an_aborted_call_is_left_out() -> None:
    """What was answered before an abort has no token count: noted, and no part of later calls."""
    thread = Thread()
    rows = [meta(0), *turn(1), *thread.call(3, 900), result(4), tool(6)]
    rows += [event(7, "turn_aborted", reason="interrupted"), *turn(100), *thread.call(102, 990)]
    assert spans(calls(*rows)) == [(0.0, 2.0), (99.0, 101.0)]
    made = notes(*rows)
    assert made == {"calls without a token count, left out": 1}
    assert list(made.lines.values()) == [[9]]


def test_an_answer_at_the_end_without_a_count_is_left_out() -> None:
    """A file that ends in the middle of a call has one call less; a note is made."""
    assert notes(*EXAMPLE, *turn(20), said(22)) == {"calls without a token count, left out": 1}


def test_a_new_turn_ends_an_answer_without_a_count() -> None:
    """Without an abort too, what a new turn follows gets no token count any more."""
    thread = Thread()
    for begin in (turn(50), turn(50)[1:3], turn(50)[3:]):
        rows = [meta(0), *turn(1), said(3), *begin, said(53), thread.counts(53, 900, 0)]
        assert spans(calls(*rows)) == [(0.0, 3.0)]
        assert notes(*rows) == {"calls without a token count, left out": 1}


def test_turns_that_are_rolled_back_are_left_behind() -> None:
    """The next call continues the one before those turns, as far as the cache says."""
    thread = Thread()
    rows = [meta(0), *turn(1), *thread.call(3, 9000), result(4), *thread.call(5, 9500, 8960)]
    rows += [*turn(10), *thread.call(12, 9900, 9472), *turn(20), *thread.call(22, 9990, 9856)]
    rows += [event(25, "thread_rolled_back", num_turns=2), *turn(30)]
    rows += thread.call(33, 9700, 9472)
    assert shares(calls(*rows))[1:] == [(0, 8960), (1, 9472), (2, 9856), (1, 9472)]


@pytest.mark.parametrize("turns", [1, 7])
def test_when_all_turns_are_rolled_back_the_cache_says_what_is_left(turns: int) -> None:
    """Tools and system prompt are still those of the first call."""
    thread = Thread()
    rows = [meta(0), *turn(1), *thread.call(3, 9000), result(4), *thread.call(5, 9500, 8960)]
    rows += [event(25, "thread_rolled_back", num_turns=turns), *turn(30)]
    rows += thread.call(33, 9700, 3072)
    assert shares(calls(*rows))[2] == (0, 3072)


def test_turns_are_marked_once_or_twice() -> None:
    """A turn counts once, whether a task, a message or both mark it, in either order."""
    for marks in (["task_started"], ["user_message"], ["user_message", "task_started"]):
        thread = Thread()
        rows = [meta(0)]
        for n in range(3):
            rows += [event(10 * n + 1, mark) for mark in marks]
            rows += thread.call(10 * n + 3, 9000 + 100 * n, 8960)
        rows += [event(50, "thread_rolled_back", num_turns=1), event(51, marks[0])]
        assert shares(calls(*rows, *thread.call(53, 9500, 8960)))[3] == (1, 8960), marks


@pytest.mark.parametrize(
    "mark",
    [
        row(6, "compacted", message="short", replacement_history=[{"type": "message"}]),
        event(6, "context_compacted"),
        row(6, "response_item", type="compaction", encrypted_content="opaque"),
        event(6, "entered_review_mode"),
    ],
    ids=["compacted", "event", "item", "review"],
)
def test_a_prompt_made_anew_shares_what_was_cached(mark: Row) -> None:
    """After a compaction, and in a review, the cached count says what is shared, not the growth."""
    thread = Thread()
    rows = [meta(0), *turn(1), *thread.call(3, 9000), mark, *thread.call(9, 9500, 3072)]
    rows += thread.call(11, 9600, 3072)
    assert shares(calls(*rows))[1:] == [(0, 3072), (1, 9472)]


def test_after_a_review_the_thread_goes_on() -> None:
    """The call after a review continues the one before it."""
    thread = Thread()
    rows = [meta(0), *turn(1), *thread.call(3, 9000), event(4, "entered_review_mode")]
    rows += [*thread.call(6, 5000, 3072), event(7, "exited_review_mode")]
    rows += thread.call(9, 9500, 8960)
    assert shares(calls(*rows))[1:] == [(0, 3072), (0, 8960)]


def test_a_cache_miss_is_no_changed_prompt() -> None:
    """A cached count that falls without cause leaves the prefix whole."""
    thread = Thread()
    rows = [meta(0), *turn(1), *thread.call(3, 9000, 8000), *thread.call(5, 9500, 0)]
    assert shares(calls(*rows))[1] == (0, 8960)


@pytest.mark.parametrize("cached", [3072, 0])
def test_a_prompt_that_shrank_shares_what_was_cached(cached: int) -> None:
    """An input that falls was cut somewhere: the cached count says where."""
    thread = Thread()
    rows = [meta(0), *turn(1), *thread.call(3, 9000, 8000), *thread.call(5, 8500, cached)]
    assert shares(calls(*rows))[1] == ((0, 3072) if cached else (None, 0))


def test_another_model_has_another_cache() -> None:
    """After a change of the model the cached count says what is shared."""
    thread = Thread()
    rows = [meta(0), *turn(1, "a"), *thread.call(3, 9000), *turn(5, "b"), *thread.call(7, 9500)]
    assert shares(calls(*rows))[1] == (None, 0)


def test_after_a_rollback_more_may_come_from_the_cache() -> None:
    """What was read beyond the call it went back to was sent by the first call taken back."""
    thread = Thread()
    made = calls(meta(0), *turn(1), *thread.call(3, 6000, 3072), *turn(20),
                 *thread.call(23, 9900, 5888), event(30, "thread_rolled_back", num_turns=1),
                 *turn(40), *thread.call(43, 9800, 9472))  # fmt: skip
    assert shares(made) == [(None, 0), (0, 5952), (1, 9472)]


def test_an_aborted_answer_lends_its_start_to_no_call() -> None:
    """The next token count is of a call after `turn_aborted`."""
    thread = Thread()
    made = calls(meta(0), *turn(1), *thread.call(3, 9000, 3072), *turn(20), said(22),
                 event(23, "turn_aborted", reason="interrupted"), *turn(100),
                 thread.counts(105, 9900, 8960))  # fmt: skip
    assert spans(made)[1] == (99.0, 104.0)


def test_a_call_after_a_compaction_begins_with_it() -> None:
    """`compacted` goes into the prompt: the next call is not sent before."""
    thread = Thread()
    made = calls(meta(0), *turn(1), *thread.call(3, 9000, 3072), result(4),
                 row(30, "compacted", message="s"), *thread.call(33, 6000, 3072))  # fmt: skip
    assert spans(made)[1] == (29.0, 32.0)


def test_a_call_before_a_step_of_the_clock_is_no_copy() -> None:
    """A file that names no other thread holds no copies, however old its calls seem."""
    thread = Thread()
    made = calls(meta(10), *turn(10.1), *thread.call(7, 9000), *turn(30), *thread.call(33, 9500))
    assert lengths(made) == [(9000, 0, 10), (9500, 0, 10)]


# --- Forks and copies -----------------------------------------------------------------------------


def parent() -> list[Row]:
    thread = Thread()
    rows = [meta(0, "P"), *turn(1), *thread.call(3, 9000, 3072), result(4)]
    return [*rows, *thread.call(6, 9500, 8960)]


def moved(rows: Iterable[Row], t: float) -> list[Row]:
    """Lines stamped anew, a millisecond after one another from *t* on."""
    return [each | {"timestamp": at(t + 0.001 * n)} for n, each in enumerate(rows)]


def fork(copies: list[Row], **fields: object) -> list[Row]:
    """A thread that goes on from a copy of the parent's history."""
    thread = Thread((18500, 12032, 20))
    own = meta(100, "F", **fields)
    return [own, *copies, *turn(110), *thread.call(113, 10000, 9472), *thread.call(118, 10400)]


COPIES: list[Callable[[], list[Row]]] = [parent, lambda: moved(parent(), 100.1)]


@pytest.mark.parametrize("alone", [False, True], ids=["with its parent", "alone"])
@pytest.mark.parametrize("copies", COPIES, ids=["old stamps", "new stamps"])
def test_copied_calls_are_not_those_of_a_fork(copies: Callable[[], list[Row]], alone: bool) -> None:
    """A fork has its own calls only, its first one without a parent; the copies are noted."""
    files = [fork(copies(), forked_from_id="P")] + ([] if alone else [parent()])
    parts = [part(rows, f"rollout-{n}.jsonl") for n, rows in enumerate(files)]
    made = {each.id: session(each)[0].calls for each in codex.drafts(parts, READING)}
    assert spans(made["F"]) == [(0.0, 3.0), (3.0, 8.0)]
    assert shares(made["F"]) == [(None, 0), (0, 9984)]
    assert [call.isl for call in made.get("P", ())] == ([] if alone else [9000, 9500])
    assert parts[0].notes == {"calls copied from another session, left out": 2}


def test_a_fork_that_counts_on_is_counted_once() -> None:
    """A parent of 100 tokens and a fork up to 150 are 100 and 50."""
    first = usage(100, 0, 1)
    whole = [meta(0, "P"), counts(5, first, first)]
    rest = [meta(50, "F", forked_from_id="P"), counts(50.01, first, first)]
    rest.append(counts(60, usage(150, 0, 2), usage(50, 0, 1)))
    for files in ([whole, rest], [rest, whole]):
        found = {each.id: [call.isl for call in each.calls] for each in sessions(*files)}
        assert found == {"P": [100], "F": [50]}
    assert [call.isl for call in sessions(rest)[0].calls] == [50]


def test_copied_counts_without_items_are_no_clock_step() -> None:
    """Counts older than the file are copies, whatever else of the history is missing."""
    copies = [each for each in parent() if each["payload"].get("type") == "token_count"]
    read = part(fork(copies, forked_from_id="P"))
    assert spans(session(codex.drafts([read], READING)[0])[0].calls) == [(0.0, 3.0), (3.0, 8.0)]
    assert "clock steps back, taken out" not in read.notes


def test_a_second_meta_line_names_an_ancestor() -> None:
    """The first meta line is the file's own; a fork need not say otherwise whose history it has."""
    made = {each.id: each.calls for each in sessions(parent(), fork(moved(parent(), 200)))}
    assert [call.isl for call in made["F"]] == [10000, 10400]


def test_a_fork_of_a_fork_copies_both() -> None:
    """Copies are found over several generations, also where the middle one is missing."""
    thread = Thread((38900, 21504, 40))
    middle = fork(moved(parent(), 100.1), forked_from_id="P")
    last = [meta(200, "G", forked_from_id="F"), *moved(middle, 200.1), *turn(210)]
    last += thread.call(215, 11000, 9984)
    for files in ([parent(), middle, last], [parent(), last], [last]):
        made = {each.id: each.calls for each in sessions(*files)}
        assert [call.isl for call in made["G"]] == [11000]


def test_a_copy_that_the_parent_has_not_is_still_one() -> None:
    """A call that was lost in the parent's file is a copy where later calls are."""
    rows = parent()
    del rows[6]
    made = {
        each.id: each.calls
        for each in sessions(rows, fork(moved(parent(), 100.1), forked_from_id="P"))
    }
    assert [call.isl for call in made["F"]] == [10000, 10400]


def test_a_thread_that_copies_nothing_loses_nothing() -> None:
    """Short calls just after the beginning are a thread's own where it has no ancestor."""
    thread = Thread()
    rows = [meta(0), *turn(0.1), *thread.call(0.2, 9000), *turn(0.3), *thread.call(0.4, 9500)]
    assert len(calls(*rows)) == 2


def test_a_fork_without_own_calls_gives_no_session() -> None:
    """A file of copies alone leaves a note."""
    assert [each.id for each in drafts(parent(), fork(parent())[:10])] == ["P"]


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ("a/rollout-x.jsonl", "archived_sessions/rollout-x.jsonl", "a/rollout-x.jsonl"),
        ("a/rollout-x.jsonl.zst", "a/rollout-x.jsonl", "a/rollout-x.jsonl"),
        ("a/rollout-x.jsonl", "a/rollout-x.jsonl.gz", "a/rollout-x.jsonl"),
        ("a/one.jsonl", "b/two.jsonl", "a/one.jsonl"),
    ],
)
def test_copies_of_a_file_are_read_once(first: str, second: str, kept: str) -> None:
    """Files of one name, or of one thread, are one session: the plain one, and the first."""
    parts = [part(EXAMPLE, first), part(EXAMPLE, second)]
    assert [each.source for each in codex.drafts(parts, READING)] == [kept]
    noted = [each.notes for each in parts if str(each.path) != kept]
    assert noted == [{"copies of a session that another file holds, left out": 1}]


def test_of_two_copies_the_longer_one_is_read() -> None:
    """A thread that went on after it was copied has all its calls."""
    parts = [part(EXAMPLE[:8], "a/rollout-x.jsonl"), part(EXAMPLE, "b/rollout-x.jsonl")]
    assert [each.source for each in codex.drafts(parts, READING)] == ["b/rollout-x.jsonl"]


def test_two_threads_may_have_one_name() -> None:
    """Ids are not unique over users: threads that were made at different times are two."""
    other = [meta(0.5), *EXAMPLE[1:]]
    parts = [part(EXAMPLE, "one/rollout-x.jsonl"), part(other, "two/rollout-y.jsonl")]
    assert len(codex.drafts(parts, READING)) == 2


# --- Subagents ------------------------------------------------------------------------------------


def family() -> list[list[Row]]:
    """A main thread that has two subagents between its calls, one of which has one itself."""
    main, one, two, deep = Thread(), Thread(), Thread(), Thread()
    return [
        [meta(0, "M"), *turn(1), *main.call(3, 9000, 3072), result(20), *main.call(23, 9600, 8960)],
        [meta(4, "B", source=spawned("M")), *turn(4.5), *two.call(9, 7000, 3072)],
        [meta(4, "A", parent_thread_id="M"), *turn(4), *one.call(7, 5000, 3072), result(15),
         *one.call(16, 6000, 4992)],
        [meta(8, "C", source=spawned("A")), *turn(8), *deep.call(14, 4000, 3072)],
    ]  # fmt: skip


def test_subagents_are_agents_of_the_session() -> None:
    """Threads that others made join them, at all depths, numbered in the order of their start."""
    (made,) = sessions(*family())
    assert made.id == "M"
    assert [(call.agent, call.isl) for call in made.calls] == [
        ("", 9000),
        ("agent 1", 5000),
        ("agent 2", 7000),
        ("agent 3", 4000),
        ("agent 1", 6000),
        ("", 9600),
    ]


def test_subagents_begin_after_the_call_that_made_them() -> None:
    """A subagent's first call waits for the call before it, and the main agent's next for all."""
    (made,) = sessions(*family())
    after = [call.after for call in made.calls]
    assert after[0] == ()
    assert after[1] == after[2] == (0,)
    assert after[4][0] == 1
    assert after[5][0] == 0
    assert set(after[5]) == {0, 2, 3, 4}
    assert made.calls[5].gap_s == pytest.approx(4.0)


def spawning(waited: Row | None = None) -> list[list[Row]]:
    """A thread makes agents A (done at 30) and B (at 35) and goes on; it asks for one at 12."""
    main, one, two = Thread(), Thread(), Thread()

    def asked(t: float, name: str, what: str, **fields: object) -> Row:
        return row(t, "response_item", type="function_call", name=what, call_id=name, **fields)

    wait = {} if waited is None else {"arguments": orjson.dumps(waited).decode()}
    return [
        [meta(0, "M"), *turn(1), asked(3, "a", "spawn_agent"), asked(3, "b", "spawn_agent"),
         main.counts(3, 9000, 3072), result(5, "a"), result(5, "b"),
         asked(12, "w", "wait_agent", **wait), main.counts(12, 9100, 8960),
         result(40, "w"), *main.call(44, 9200, 9088)],
        [meta(4, "A", source=spawned("M")), *turn(6), *one.call(30, 5000, 3072)],
        [meta(4, "B", source=spawned("M")), *turn(6), *two.call(35, 6000, 3072)],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("waited", "joined"),
    [(None, {2, 3}), ({"targets": ["A"]}, {2}), ({"ids": ["A", "B"]}, {2, 3}), ({"id": "B"}, {3})],
    ids=str,
)
def test_a_thread_waits_for_the_agents_that_it_names(waited: Row | None, joined: set[int]) -> None:
    """The call after a wait's output waits for the agents named; without names for all."""
    (made,) = sessions(*spawning(waited))
    assert [call.agent for call in made.calls] == ["", "", "agent 1", "agent 2", ""]
    assert [call.after for call in made.calls[:4]] == [(), (0,), (0,), (0,)]
    assert set(made.calls[4].after) == {1} | joined


def test_a_thread_waits_for_a_review() -> None:
    """The call after a review waits for it; its prompt is the one before the review."""
    main, review = Thread(), Thread()
    lines = [meta(0, "M"), *turn(1), *main.call(3, 9000, 3072),
             event(10, "entered_review_mode"), event(30, "exited_review_mode"),
             *turn(2000), *main.call(2003, 9500, 3072)]  # fmt: skip
    other = [meta(10, "R", source={"subagent": "review"}, parent_thread_id="M"), *turn(11),
             *review.call(29, 5000, 3072)]  # fmt: skip
    (made,) = sessions(lines, other)
    assert [call.after for call in made.calls] == [(), (0,), (0, 1)]
    assert made.calls[2].shared == 8960


def test_a_subagent_shares_with_its_maker_what_was_cached() -> None:
    """A first call finds tools and system prompt in the cache: that much of the maker's prompt."""
    (made,) = sessions(*family())
    assert shares(made.calls) == [
        (None, 0), (0, 3072), (0, 3072), (1, 3072), (1, 4992), (0, 8960),
    ]  # fmt: skip


def test_the_order_of_files_means_nothing() -> None:
    """The same files in any order give the same session."""
    files = family()
    wanted = sessions(*files)[0].calls
    for seed in range(6):
        random.Random(seed).shuffle(files)
        assert sessions(*files)[0].calls == wanted


def test_a_subagent_of_another_model_shares_nothing() -> None:
    """What another model cached is of no use to it, whatever it read from a cache."""
    files = family()[:2]
    files[1][3] = row(4.5, "turn_context", model="small")
    (made,) = sessions(*files)
    assert [(call.model, call.parent) for call in made.calls][1] == ("small", None)


def test_a_subagent_joins_the_maker_that_lies_nearest() -> None:
    """Ids are not unique over users: of two makers of one name it is the one in the same folder."""
    later = [meta(0.5, "M"), *family()[0][1:]]
    rows = {"a/rollout-1": family()[0], "b/rollout-2": later, "b/rollout-3": family()[1]}
    made = codex.drafts([part(each, path) for path, each in rows.items()], READING)
    assert {each.source: len(each.calls) for each in made} == {"a/rollout-1": 2, "b/rollout-2": 3}


@pytest.mark.parametrize("kind", ["review", "compact", {"other": "x"}], ids=str)
def test_subagents_of_any_kind_join_the_session(kind: object) -> None:
    """A review names its maker at the top, or is a fork of it."""
    thread = Thread()
    work = [*turn(4), *thread.call(6, 5000)]
    for link in ("parent_thread_id", "forked_from_id"):
        child = [meta(4, "R", source={"subagent": kind}, **{link: "P"}), *work]
        (made,) = sessions(parent(), child)
        assert [call.agent for call in made.calls].count("agent 1") == 1


@pytest.mark.parametrize("source", [spawned("nobody"), {"subagent": "review"}], ids=str)
def test_a_subagent_without_its_maker_is_a_session(source: Row) -> None:
    """Where the maker is not in the set the subagent is the main agent of its own session."""
    thread = Thread()
    child = part([meta(4, "R", source=source), *turn(14), *thread.call(16, 5000)])
    made = codex.drafts([part(parent(), "rollout-p.jsonl"), child], READING)
    assert [(each.id, each.calls[0].agent) for each in made] == [("P", ""), ("R", "")]
    note = "subagents of a session that is not in the set, sessions of their own"
    assert child.notes == {note: 1}


def test_threads_that_made_one_another_are_told_apart() -> None:
    """A circle of makers is cut, and no call is lost."""
    files = []
    for name, by, isl in (("A", "B", 901), ("B", "A", 902), ("C", "C", 903)):
        work = [*turn(20), *Thread().call(22, isl)]
        files.append([meta(0, name, parent_thread_id=by), *work])
    assert sorted(len(each.calls) for each in sessions(*files)) == [1, 2]


@pytest.mark.parametrize("copies", COPIES, ids=["old stamps", "new stamps"])
def test_a_subagent_goes_on_from_the_history_it_copied(copies: Callable[[], list[Row]]) -> None:
    """Its first own call continues the maker's call that it copied last; no copy is a call."""
    child = fork(copies()[:7], source=spawned("P"))
    (made,) = sessions(parent(), child)
    assert [(call.agent, call.isl) for call in made.calls] == [
        ("", 9000), ("", 9500), ("agent 1", 10000), ("agent 1", 10400),
    ]  # fmt: skip
    assert shares(made.calls) == [(None, 0), (0, 8960), (0, 8960), (2, 9984)]


def test_a_maker_without_calls_leaves_its_subagents() -> None:
    """A session may consist of subagents only."""
    made = sessions([*parent()[:1], *fork(parent(), forked_from_id="Q")[1:-4]], *family()[1:])
    assert sorted(len(each.calls) for each in made) == [1, 2, 3]


# --- What is none of it ---------------------------------------------------------------------------

BARE = [
    {"id": "T", "timestamp": at(0), "instructions": None, "git": {}},
    {"record_type": "state"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
    {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "opaque"},
    {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c"},
    {"type": "function_call_output", "call_id": "c", "output": "x"},
]
PRINTED = [
    {"type": "thread.started", "thread_id": "T"},
    {"type": "turn.started"},
    {"type": "item.completed", "item": {"type": "agent_message", "text": "x"}},
    {"type": "turn.completed", "usage": {"input_tokens": 9, "output_tokens": 1}},
]


@pytest.mark.parametrize(
    "record",
    [*EXAMPLE, *BARE, *PRINTED, row(0, "world_state"), row(0, "compacted")],
    ids=lambda record: f"{record.get('type')}",
)
def test_lines_of_codex_are_recognised(record: object) -> None:
    """Current lines, those of mid-2025 and those of `codex exec --json` are lines of Codex."""
    assert codex.recognises(record)


@pytest.mark.parametrize(
    "record",
    [
        None, 3, "session_meta", [EXAMPLE[0]], {}, {"type": None}, {"type": ["event_msg"]},
        {"type": "session_meta", "payload": None},
        {"type": "user", "sessionId": "s", "message": {"role": "user"}, "uuid": "u"},
        {"type": "summary", "summary": "x", "leafUuid": "u"},
        {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "x"}]},
        {"type": "message", "role": "user", "content": "x"},
        {"type": "event", "timestamp": 1, "payload": {}},
        {"id": "x", "block_size": 64, "requests": []},
        {"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]},
        {"timestamp": 0, "event": {"schema": "dynamo.request.trace.v1"}},
        {"resourceSpans": []}, {"log": {"entries": []}}, {"custom_id": "a", "body": {}},
        {"conversation_id": "a", "turn": 1, "role": "user"}, {"agentreplay": 1, "calls": []},
    ],
    ids=str,
)  # fmt: skip
def test_other_lines_are_not_recognised(record: object) -> None:
    """Values of other formats, and of none, are no lines of Codex."""
    assert not codex.recognises(record)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (BARE, "mid-2025: it holds neither times nor token counts"),
        (PRINTED, "usage per turn and no times, not enough for replay"),
        (EXAMPLE[:6], "without a token count"),
        ([], "without a token count"),
    ],
    ids=["mid-2025", "exec", "no count", "empty"],
)
def test_a_file_without_calls_is_refused_in_words(rows: list[Row], why: str) -> None:
    """What has no usable call is an error that names the file and says why."""
    with pytest.raises(TraceError, match=rf"^d/own\.jsonl: .*{why}"):
        part(rows, "d/own.jsonl")


def test_strange_lines_are_counted() -> None:
    """What is no record, has no payload or an unknown type is noted with its line."""
    made = notes(*EXAMPLE, row(9, "new"), {"type": "event_msg"}, [1], None)  # type: ignore[arg-type]
    assert made == {
        "lines of unknown types, left out": 1,
        "lines without a payload, left out": 1,
        "lines that are no Codex records, left out": 2,
    }
    assert sorted(made.lines.values()) == [[12], [13], [14, 15]]


def test_known_lines_that_say_nothing_are_silent() -> None:
    """World states, messages between agents and unknown events are no news."""
    rows = [row(9, "world_state"), row(9, "inter_agent_communication"), event(9, "new")]
    rows += [row(9, "response_item", type="ghost_snapshot"), row(9, "response_item", type="new")]
    assert notes(*EXAMPLE, *rows) == {}


@pytest.mark.parametrize("kind", ["new_call", "custom_tool_call", "local_shell_call"])
def test_items_of_new_types_have_their_side(kind: str) -> None:
    """Whatever is a call comes from the model, and its output goes into the next prompt."""
    thread = Thread()
    rows = [meta(0), *turn(1), row(3, "response_item", type=kind), thread.counts(3, 900, 0)]
    rows += [row(6, "response_item", type=f"{kind}_output"), *thread.call(8, 990)]
    assert spans(calls(*rows)) == [(0.0, 2.0), (5.0, 7.0)]


def test_items_may_lack_a_type() -> None:
    """An item with a role is a message."""
    thread = Thread()
    rows = [
        meta(0),
        row(2, "response_item", role="user"),
        row(4, "response_item", role="assistant"),
    ]
    assert spans(calls(*rows, thread.counts(4.1, 900, 0))) == [(0.0, 2.1)]


# --- Through the loader ---------------------------------------------------------------------------


def file_of(rows: Iterable[object]) -> bytes:
    return b"".join(orjson.dumps(each) + b"\n" for each in rows)


def test_a_folder_of_sessions_is_loaded(tmp_path: Path) -> None:
    """Days and archive are searched; packed and archived copies count once, agents join."""
    day, archive = tmp_path / "sessions" / "2026" / "01" / "02", tmp_path / "archived_sessions"
    day.mkdir(parents=True)
    archive.mkdir()
    for n, rows in enumerate([*family(), parent(), fork(parent(), forked_from_id="P")]):
        (day / f"rollout-{n}.jsonl").write_bytes(file_of(rows))
    (day / "rollout-0.jsonl.gz").write_bytes(gzip.compress(file_of(family()[0])))
    (archive / "rollout-4.jsonl").write_bytes(file_of(parent()))
    assert {each.id: len(each.calls) for each in load(tmp_path)} == {"M": 6, "P": 2, "F": 2}


def test_a_broken_line_costs_only_itself(tmp_path: Path) -> None:
    """Half a line in the middle is skipped, and its number told; the session is read."""
    file = tmp_path / "rollout-0.jsonl"
    lines = file_of(EXAMPLE).splitlines(keepends=True)
    lines.insert(7, lines[7][:40] + b"\n")
    file.write_bytes(b"".join(lines))
    found = load(tmp_path)
    assert lengths(found[0].calls) == [(9000, 3000, 80), (9200, 9000, 10)]
    (made,) = found.notes.values()
    assert [8] in made.lines.values()


# --- Privacy and robustness -----------------------------------------------------------------------


def test_no_text_is_kept() -> None:
    """What stands in messages, arguments, results and events is nowhere in what is read."""
    secret = "sk-planted-0123456789"
    rows = [
        *EXAMPLE[:4],
        row(
            3, "response_item", type="function_call", arguments=secret, name=secret, call_id=secret
        ),
        row(3.1, "response_item", type="function_call_output", output=secret, call_id=secret),
        row(3.2, "response_item", type="message", role="user", content=[{"text": secret}]),
        event(3.3, "user_message", message=secret),
        row(3.4, secret, type=secret),
        {secret: secret},
        row(3.5, "compacted", message=secret),
        *EXAMPLE[4:],
    ]
    read = part(rows)
    (draft,) = codex.drafts([read], READING)
    for kept in (read, read.notes, draft, draft.calls, session(draft)):
        assert secret not in repr(kept)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats()
    | st.sampled_from(
        ["", "P", "F", "message", "token_count", at(3), "2026-01-02", "9" * 400, "NaN"]
    )
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "id", "x", "input_tokens"]), inner, max_size=3)
    ),
    max_leaves=5,
)


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to all fields inside a JSON value."""
    keys: Iterable[Any] = ()
    if isinstance(value, dict):
        keys = value.keys()
    elif isinstance(value, list):
        keys = range(len(value))
    ways = [(*path, key) for key in keys]
    return ways + [way for key in keys for way in places(value[key], (*path, key))]  # type: ignore[index]


@settings(max_examples=300)
@given(st.data())
def test_whatever_a_line_holds_something_comes_of_it(data: st.DataObject) -> None:
    """Any JSON in any field, lines lost or in any order: sessions that keep the model's rules."""
    files = [
        parent(),
        fork(moved(parent(), 100.1), source=spawned("P"), forked_from_id="P"),
        [*EXAMPLE[:6], event(5, "turn_aborted"), *EXAMPLE,
         event(8, "thread_rolled_back", num_turns=1), event(8, "entered_review_mode"), *turn(9),
         *EXAMPLE, event(8, "exited_review_mode")],
        [*BARE, *PRINTED, *EXAMPLE],
    ]  # fmt: skip
    rows = json.loads(json.dumps(data.draw(st.sampled_from(files))))
    for _ in range(data.draw(st.integers(0, 6))):
        way = data.draw(st.sampled_from(places(rows)))
        holder = rows
        for key in way[:-1]:
            holder = holder[key] if isinstance(holder, dict | list) else {}
        if isinstance(holder, dict) or (isinstance(holder, list) and way[-1] < len(holder)):
            holder[way[-1]] = data.draw(JSON)
    if data.draw(st.booleans()):
        rows = data.draw(st.permutations(rows))[: data.draw(st.integers(0, len(rows)))]
    parts = []
    for n, lines in enumerate([rows, parent()]):
        for record in lines:
            assert codex.recognises(record) in (True, False)
        try:
            parts.append(
                codex.read(enumerate(lines, 1), PurePath(f"rollout-{n}"), READING, Notes())
            )
        except TraceError:
            continue
    for draft in codex.drafts(parts, READING):
        assert draft.calls
        keeps_the_rules(session(draft)[0])


def keeps_the_rules(made: Session) -> None:
    for i, call in enumerate(made.calls):
        assert call.isl >= 1
        assert call.osl >= 0
        assert call.cached is None or 0 <= call.cached <= call.isl
        assert call.start_s <= call.end_s
        assert call.gap_s >= 0
        assert all(0 <= j < i for j in call.after)
        assert 0 <= call.system <= call.isl
        assert call.shared % made.block_size == 0
        assert (call.parent is None) == (call.shared == 0)
        assert call.parent is None or call.shared <= made.calls[call.parent].isl
    assert all(a.start_s <= b.start_s for a, b in pairwise(made.calls))
    for call in made.calls:
        due = max((made.calls[j].end_s for j in call.after), default=0.0) + call.gap_s
        assert call.start_s == pytest.approx(due) or (call.gap_s == 0 and call.start_s < due)


@pytest.mark.parametrize("files", [[EXAMPLE], family(), [parent(), fork(parent())]], ids=len)
def test_answered_in_time_every_call_starts_in_time(files: list[list[Row]]) -> None:
    """The waits and gaps of a session give its recorded starts."""
    for made in sessions(*files):
        keeps_the_rules(made)


# --- The shared samples ---------------------------------------------------------------------------


@needs_shared
@pytest.mark.parametrize("file", sorted((SAMPLES / "codex").glob("*.jsonl")), ids=lambda f: f.stem)
def test_shared_counts(file: Path) -> None:
    """Calls, input, cached and output tokens of the shared files are those expected."""
    wanted = orjson.loads((SAMPLES / "EXPECTED.json").read_bytes())[f"codex/{file.name}"]
    names = ("llm_calls_after_dedup", "input", "cached", "output")
    rows = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    if not wanted["llm_calls_after_dedup"]:
        with pytest.raises(TraceError, match="without a token count"):
            part(rows)
        return
    (made,) = sessions(rows)
    keeps_the_rules(made)
    sums = [sum(column) for column in zip(*lengths(made.calls), strict=True)]
    assert [len(made.calls), *sums] == [wanted[name] for name in names]


@needs_shared
def test_shared_samples_of_other_formats_are_not_recognised() -> None:
    """No line of another agent's log is one of Codex."""
    for file in (SAMPLES / "claude-code").rglob("*.jsonl"):
        for line in file.read_bytes().split(b"\n"):
            try:
                assert not codex.recognises(orjson.loads(line)), file
            except orjson.JSONDecodeError:
                continue
