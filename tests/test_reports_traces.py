"""Public bug reports of tools that read traces, and traps of the formats, through `load`.

Rows are of a list of public reports, traps of a list of what has killed parsers. Each test writes
the row's small case into files and states the right behaviour. Traps that one reader alone can fall
into stand in that format's tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from command import agentreplay
from format_samples import (
    SAMPLES,
    Sample,
    changed,
    file_places,
    iso,
    lines,
    sums,
    text,
    with_change,
    write,
)
from virtually import oracle, replay

from agentreplay.errors import TraceError
from agentreplay.plan import Plan
from agentreplay.trace.export import exported
from agentreplay.trace.load import TraceSet, load, open_set
from agentreplay.trace.model import Call, Session
from agentreplay.trace.statistics import statistics

Row = dict[str, Any]

BROKEN = "lines of broken JSON, left out"


def loaded(folder: Path, files: dict[str, Sequence[Any]], **options: Any) -> TraceSet:
    """The set of files of JSON lines."""
    return load(write(folder, {path: lines(rows) for path, rows in files.items()}), **options)


def only(trace: Sequence[Session]) -> Session:
    (session,) = trace
    return session


def lengths(calls: Sequence[Call]) -> list[tuple[int, int]]:
    """Input and output of calls."""
    return [(call.isl, call.osl) for call in calls]


# --- Lines of Claude Code -------------------------------------------------------------------------


def line(kind: str, uuid: str, parent: str | None, t: float, session: str, **fields: Any) -> Row:
    row: Row = {"type": kind, "uuid": uuid, "parentUuid": parent, "timestamp": iso(t)}
    return row | {"sessionId": session, "isSidechain": False, "cwd": "/w"} | fields


def user(uuid: str, parent: str | None, t: float, session: str = "S", **fields: Any) -> Row:
    message = {"role": "user", "content": "words"}
    return line("user", uuid, parent, t, session, message=message) | fields


def answer(
    uuid: str,
    parent: str,
    t: float,
    name: str,
    new: int,
    read: int,
    osl: int,
    *blocks: str,
    session: str = "S",
    **fields: Any,
) -> Row:
    """A line of an answer with blocks of these types."""
    usage = {"input_tokens": new, "cache_read_input_tokens": read, "output_tokens": osl}
    content = [{"type": block} for block in blocks or ("text",)]
    message = {"id": name, "role": "assistant", "model": "m", "content": content, "usage": usage}
    told = message | {"stop_reason": "end_turn"}
    return line("assistant", uuid, parent, t, session, message=told) | fields


# --- Rows of codex --------------------------------------------------------------------------------


def meta(t: float, thread: str, **fields: Any) -> Row:
    payload = {"id": thread, "timestamp": iso(t), "cwd": "/w", "source": "cli"} | fields
    return {"timestamp": iso(t), "type": "session_meta", "payload": payload}


def item(t: float, kind: str, **fields: Any) -> Row:
    return {"timestamp": iso(t), "type": "response_item", "payload": {"type": kind} | fields}


def asked(t: float) -> Row:
    return item(t, "message", role="user", content=[{"type": "input_text", "text": "words"}])


def counts(t: float, total: int, last: int) -> Row:
    """A token count of so many input tokens, a tenth of each being output."""

    def usage(tokens: int) -> Row:
        return {"input_tokens": tokens, "cached_input_tokens": 0, "output_tokens": tokens // 10}

    info = {"total_token_usage": usage(total), "last_token_usage": usage(last)}
    payload = {"type": "token_count", "info": info}
    return {"timestamp": iso(t), "type": "event_msg", "payload": payload}


# --- Reports --------------------------------------------------------------------------------------


def test_row_03_an_answer_on_three_lines_is_one_request(tmp_path: Path) -> None:
    """Usage that is repeated on each line of an answer counts once."""
    usage = ("A", 2, 61_608, 211)
    rows = [
        user("u", None, 0),
        answer("a1", "u", 2, *usage, "thinking"),
        answer("a2", "a1", 3, *usage, "text"),
        answer("a3", "a2", 4, *usage, "tool_use"),
    ]
    session = only(loaded(tmp_path, {"p/S.jsonl": rows}))
    assert lengths(session.calls) == [(61_610, 211)]
    assert (session.calls[0].cached, session.calls[0].end_s) == (61_608, 4.0)


@pytest.mark.parametrize("named", [True, False], ids=["fork", "subagent"])
@pytest.mark.parametrize("stamped", ["anew", "as it was"])
def test_row_04_history_that_a_fork_copied_is_no_call(
    tmp_path: Path, named: bool, stamped: str
) -> None:
    """A parent of 100 tokens and a fork that counts from there to 150 are 100 and 50, once each."""
    parent = [meta(0, "P"), asked(1), item(4, "message", role="assistant"), counts(4.1, 100, 100)]
    spawned = {"subagent": {"thread_spawn": {"parent_thread_id": "P", "depth": 1}}}
    origin: Row = {"forked_from_id": "P"} if named else {"source": spawned}
    times = (60.01, 60.02, 60.03) if stamped == "anew" else (1, 4, 4.1)
    fork = [
        meta(60, "F", **origin),
        asked(times[0]),
        item(times[1], "message", role="assistant"),
        counts(times[2], 100, 100),
        asked(70),
        item(74, "message", role="assistant"),
        counts(74.1, 150, 50),
    ]
    folder = "sessions/2026/01/02/rollout-2026-01-02T10-0"
    trace = loaded(tmp_path, {f"{folder}0-00-P.jsonl": parent, f"{folder}1-00-F.jsonl": fork})
    calls = [call for session in trace for call in session.calls]
    assert (len(trace), sorted(lengths(calls))) == (2 if named else 1, [(50, 5), (100, 10)])


def test_row_05_of_the_lines_of_an_answer_the_largest_output_counts(tmp_path: Path) -> None:
    """The first lines hold a placeholder: the call has all its output, and its own duration."""
    rows = [
        user("u", None, 0),
        answer("a1", "u", 2, "A", 10, 0, 1, "thinking"),
        answer("a2", "a1", 3, "A", 10, 0, 1, "text"),
        answer("a3", "a2", 4, "A", 10, 0, 90, "tool_use"),
        user("t", "a3", 9),
        answer("b", "t", 12, "B", 200, 0, 7),
    ]
    calls = only(loaded(tmp_path, {"p/S.jsonl": rows})).calls
    assert lengths(calls) == [(10, 90), (200, 7)]
    assert [(call.start_s, call.end_s) for call in calls] == [(0, 4), (9, 12)]


NESTED = [(1000, 2), (1500, 3), (2000, 4)]


def rows_of_a_session(ids: Sequence[Sequence[int]], *inputs: int) -> list[Row]:
    return [
        {"session_id": "s", "input_length": isl, "output_length": 10, "hash_ids": list(blocks)}
        | ({"timestamp": 0} if number == 0 else {"delay": 1000})
        for number, (blocks, isl) in enumerate(zip(ids, inputs, strict=True))
    ]


def test_row_16_rows_that_nest_are_whole_prompts(tmp_path: Path) -> None:
    """Prompts of 1000, 1500 and 2000 are these, and not 1000, 2500 and 4500."""
    rows = rows_of_a_session([[1, 2], [1, 2, 3], [1, 2, 3, 4]], 1000, 1500, 2000)
    trace = loaded(tmp_path, {"x.jsonl": rows})
    assert lengths(only(trace).calls) == [(1000, 10), (1500, 10), (2000, 10)]
    (notes,) = trace.notes.values()
    assert "rows of sessions hold whole prompts (decided by block ids)" in notes


def test_row_16_rows_without_ids_are_asked_about(tmp_path: Path) -> None:
    """Where nothing tells whether lengths are increments, nothing is guessed."""
    rows = rows_of_a_session([[], [], []], 1000, 1500, 2000)
    with pytest.raises(TraceError, match="--turn-lengths"):
        loaded(tmp_path, {"x.jsonl": rows})
    full = only(load(tmp_path, turn_lengths="full"))
    delta = only(load(tmp_path, turn_lengths="delta"))
    assert [isl for isl, _ in lengths(full.calls)] == [1000, 1500, 2000]
    assert [isl for isl, _ in lengths(delta.calls)] == [1000, 2510, 4520]


@pytest.mark.parametrize("name", ["output_len", "osl", "max_tokens"])
def test_row_16_an_output_length_of_another_name_is_none(tmp_path: Path, name: str) -> None:
    """A row without the output's length is left out with its line, and not sent with 0."""
    row = {"timestamp": 0, "input_length": 600, "hash_ids": [1, 2]}
    trace = loaded(tmp_path, {"x.jsonl": [row | {"output_length": 5}, row | {name: 5}]})
    assert lengths(only(trace).calls) == [(600, 5)]
    (notes,) = trace.notes.values()
    assert notes.lines["rows without an output length, left out"] == [2]


WEKA: Row = {
    "id": "demo",
    "models": ["m"],
    "block_size": 64,
    "hash_id_scope": "local",
    "tool_tokens": 64,
    "system_tokens": 64,
    "requests": [
        {
            "t": 0.0,
            "type": "s",
            "model": "m",
            "in": 300,
            "out": 40,
            "hash_ids": [1, 2, 3, 4],
            "input_types": ["text"],
            "output_types": ["tool_use"],
            "stop": "tool_use",
            "api_time": 2.5,
            "think_time": 0.0,
            "ttft": 0.9,
        }
    ],
    "totals": {"parent_tokens": {"input": 300, "output": 40}, "subagent_count": 0},
}
"""A session with every field of its format."""


@pytest.mark.parametrize("place", [(), ("requests", 0)], ids=["session", "request"])
def test_row_17_an_unknown_field_is_counted_and_ignored(
    tmp_path: Path, place: tuple[Any, ...]
) -> None:
    """Every field of the format is known; one that isn't costs a note and nothing else."""
    plain = loaded(tmp_path / "plain", {"x.jsonl": [WEKA]})
    session = only(plain)
    assert (lengths(session.calls), plain.notes) == ([(300, 40)], {})
    odd = changed(WEKA, place, lambda value: value | {"colour": "red"})
    trace = loaded(tmp_path / "odd", {"x.jsonl": [odd]})
    assert only(trace).calls == session.calls
    assert [dict(notes) for notes in trace.notes.values()] == [
        {"unknown field 'colour', ignored": 1}
    ]


CONTROLS: list[Row] = [
    {"type": "queue-operation", "operation": "enqueue", "timestamp": iso(0), "sessionId": "S"},
    {"type": "last-prompt", "lastPrompt": "words", "sessionId": "S"},
    {"type": "mode", "mode": "normal", "sessionId": "S"},
    {"type": "permission-mode", "permissionMode": "default", "sessionId": "S"},
    {"type": "ai-title", "aiTitle": "words", "sessionId": "S"},
    {"type": "file-history-snapshot", "messageId": "x", "snapshot": {}, "isSnapshotUpdate": False},
    {"type": "summary", "summary": "words", "leafUuid": "y"},
    {"type": "custom-title", "customTitle": "words", "sessionId": "S"},
]


@pytest.mark.parametrize("times", [1, 40], ids=["a few", "hundreds"])
def test_row_18_a_file_may_begin_with_other_records(tmp_path: Path, times: int) -> None:
    """Records that hold no message are no reason not to know a file, however many there are."""
    turns = [user("u", None, 0), answer("a", "u", 3, "A", 100, 0, 5)]
    turns += [user("v", "a", 9), answer("b", "v", 12, "B", 150, 0, 6)]
    trace = loaded(tmp_path, {"p/S.jsonl": [*CONTROLS * times, *turns]})
    assert lengths(only(trace).calls) == [(100, 5), (150, 6)]
    assert set(trace.formats.values()) == {"claude-code"}


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: str(control["type"]))
def test_row_18_each_kind_of_record_may_come_first(tmp_path: Path, control: Row) -> None:
    """So does a file that begins with a hundred records of one kind."""
    turns = [user("u", None, 0), answer("a", "u", 3, "A", 100, 0, 5)]
    trace = loaded(tmp_path, {"p/S.jsonl": [*[control] * 100, *turns]})
    assert lengths(only(trace).calls) == [(100, 5)]


def test_row_19_no_prompt_holds_an_abandoned_branch(tmp_path: Path) -> None:
    """A turn that was taken back was sent, but the one in its place continues what was before."""
    rows = [
        user("u1", None, 0),
        answer("a1", "u1", 3, "A", 640, 0, 10),
        user("u2", "a1", 10),
        answer("a2", "u2", 13, "B", 6400, 0, 10),
        user("u2'", "a1", 20),
        answer("a2'", "u2'", 23, "C", 1280, 0, 10),
        user("u3", "a2'", 30),
        answer("a3", "u3", 33, "D", 1920, 0, 10),
    ]
    calls = only(loaded(tmp_path, {"p/S.jsonl": rows})).calls
    assert [isl for isl, _ in lengths(calls)] == [640, 6400, 1280, 1920]
    assert [(call.parent, call.shared) for call in calls] == [
        (None, 0),
        (0, 640),
        (0, 640),
        (2, 1280),
    ]


def arrivals(*stamps: float) -> list[Row]:
    return [
        {"timestamp": stamp, "input_length": 512, "output_length": 1, "hash_ids": [10 + number]}
        for number, stamp in enumerate(stamps)
    ]


def test_row_36_stamps_of_rows_are_milliseconds(tmp_path: Path) -> None:
    """0, 1000, 2000 are two seconds, and nothing to wonder about."""
    trace = loaded(tmp_path, {"x.jsonl": arrivals(0, 1000, 2000)})
    assert ([session.start_s for session in trace], trace.notes) == ([0, 1, 2], {})


def test_row_36_stamps_that_look_like_seconds_are_said(tmp_path: Path) -> None:
    """0, 0.5, 1.0 are read as milliseconds too, and that they are odd ones is noted."""
    trace = loaded(tmp_path, {"x.jsonl": arrivals(0, 0.5, 1.0)})
    assert [session.start_s for session in trace] == [0, 0.0005, 0.001]
    (notes,) = trace.notes.values()
    assert any("stamps look like seconds" in what for what in notes)


def test_row_36_blocks_are_as_large_as_the_rows_say(tmp_path: Path) -> None:
    """Traces of blocks of 16 tokens are read as such, and it is said."""
    rows = [
        {"timestamp": 0, "input_length": 160, "output_length": 5, "hash_ids": list(range(10))},
        {"timestamp": 9000, "input_length": 330, "output_length": 5, "hash_ids": list(range(21))},
    ]
    trace = loaded(tmp_path, {"x.jsonl": rows})
    session = only(trace)
    assert (session.block_size, session.calls[1].shared) == (16, 160)
    assert [len(notes) for notes in trace.notes.values()] == [1]


def test_row_37_a_row_that_contradicts_itself_is_named(tmp_path: Path) -> None:
    """20 tokens have no two blocks of 512: the row is left out, and its line said."""
    bad = {"timestamp": 0, "input_length": 20, "output_length": 5, "hash_ids": [0, 1]}
    good = [
        {"timestamp": 1000 * n, "input_length": 513, "output_length": 5, "hash_ids": [2 * n, 99]}
        for n in range(1, 4)
    ]
    good.append(
        {"timestamp": 9000, "input_length": 1536, "output_length": 5, "hash_ids": [7, 8, 9]}
    )
    trace = loaded(tmp_path, {"x.jsonl": [good[0], bad, *good[1:]]})
    assert sorted(isl for session in trace for isl, _ in lengths(session.calls)) == [
        *(513, 513, 513, 1536)
    ]
    (notes,) = trace.notes.values()
    assert [2] in notes.lines.values()


def test_row_37_a_file_of_such_rows_is_refused(tmp_path: Path) -> None:
    """Where no row fits, the error names line and values."""
    bad = {"timestamp": 0, "input_length": 20, "output_length": 5, "hash_ids": [0, 1]}
    with pytest.raises(TraceError) as raised:
        loaded(tmp_path, {"x.jsonl": [bad]})
    said = str(raised.value)
    assert "x.jsonl:1" in said
    assert "20" in said
    assert "512" in said


def test_row_37_the_begun_block_counts(tmp_path: Path) -> None:
    """513 tokens have two blocks."""
    row = {"timestamp": 0, "input_length": 513, "output_length": 5, "hash_ids": [0, 1]}
    trace = loaded(tmp_path, {"x.jsonl": [row]})
    assert (lengths(only(trace).calls), trace.notes) == ([(513, 5)], {})


def test_row_60_a_broken_line_costs_only_itself(tmp_path: Path) -> None:
    """Good, half a line, good: two requests, and one bad line with its number."""
    first = lines([user("u", None, 0), answer("a", "u", 3, "A", 100, 0, 5)])
    last = lines([user("w", "a", 9), answer("b", "w", 12, "B", 150, 0, 6)])
    half = lines([answer("x", "a", 5, "X", 999, 0, 9)])[:120] + b"\n"
    trace = load(write(tmp_path, {"p/S.jsonl": first + half + last}))
    assert lengths(only(trace).calls) == [(100, 5), (150, 6)]
    (notes,) = trace.notes.values()
    assert (notes[BROKEN], notes.lines[BROKEN]) == (1, [3])
    ended = agentreplay("check", tmp_path, COLUMNS="1000")
    assert "lines of broken JSON, left out" in ended.stdout
    assert "3" in ended.stdout.partition(BROKEN)[2].partition("\n")[0]


def test_row_60_totals_that_fall_are_a_new_base(tmp_path: Path) -> None:
    """A running total that begins again is no negative call."""
    rows = [
        meta(0, "T"),
        *(asked(1), item(3, "message", role="assistant"), counts(3.1, 500, 500)),
        *(asked(10), item(13, "message", role="assistant"), counts(13.1, 1200, 700)),
        *(asked(20), item(23, "message", role="assistant"), counts(23.1, 800, 800)),
        *(asked(30), item(33, "message", role="assistant"), counts(33.1, 1700, 900)),
    ]
    trace = loaded(tmp_path, {"rollout-2026-01-02T10-00-00-T.jsonl": rows})
    assert [isl for isl, _ in lengths(only(trace).calls)] == [500, 700, 800, 900]


def test_row_60_a_large_file_is_not_skipped(tmp_path: Path) -> None:
    """A log of more than 128 MiB is read to its end, in a stream."""
    filler = orjson.dumps(item(2, "function_call_output", output="x" * (4 << 20))) + b"\n"
    begin = lines([meta(0, "T"), asked(1), item(3, "message"), counts(3.1, 500, 500)])
    end = lines([asked(10), item(13, "message", role="assistant"), counts(13.1, 1200, 700)])
    path = tmp_path / "rollout-2026-01-02T10-00-00-T.jsonl"
    with path.open("wb") as opened:
        opened.write(begin)
        for _ in range(33):
            opened.write(filler)
        opened.write(end)
    assert path.stat().st_size > 128 << 20
    session = only(load(path))
    path.unlink()
    assert [isl for isl, _ in lengths(session.calls)] == [500, 700]


def test_row_66_what_is_shared_holds_no_text_and_no_hash(tmp_path: Path) -> None:
    """A key in a tool's result is found nowhere in an export; two exports share no block."""
    key = "sk-live-7Q2wXo91"
    result = {"role": "user", "content": [{"type": "tool_result", "content": f"key={key}"}]}
    rows = [
        user("u", None, 0),
        answer("a", "u", 3, "A", 1000, 0, 5),
        user("t", "a", 4, message=result, toolUseResult={"stdout": key}, cwd=f"/home/{key}"),
        answer("b", "t", 7, "B", 2000, 0, 6),
    ]
    trace = loaded(tmp_path, {f"{key}/S.jsonl": rows})
    one, other = (b"".join(exported(trace, "weka", first)) for first in (1000, 900_000))
    for data in (one, other, *exported(trace, "native", 0), text(str(trace.notes)).encode()):
        assert key.encode() not in data
    blocks = [
        {block for row in orjson.loads(data)["requests"] for block in row["hash_ids"]}
        for data in (one, other)
    ]
    assert [len(each) for each in blocks] == [31, 31]
    assert not blocks[0] & blocks[1]


def test_row_67_reuse_is_defined_and_printed(tmp_path: Path) -> None:
    """Rows [1,2], [1,2,3], [9]: two of six blocks, and the tokens in them, had been sent before."""
    rows = [
        {"timestamp": 1000 * n, "input_length": 512 * len(ids), "output_length": 5, "hash_ids": ids}
        for n, ids in enumerate(([1, 2], [1, 2, 3], [9]))
    ]
    found = statistics(loaded(tmp_path, {"x.jsonl": rows}))
    assert found.prefix_reuse_blocks == pytest.approx(2 / 6)
    assert found.prefix_reuse == pytest.approx(1024 / 3072)
    said = agentreplay("inspect", tmp_path, COLUMNS="200").stdout
    assert "33.3 %  by tokens, nothing ever evicted" in said
    assert "33.3 %  by blocks" in said


def test_row_67_tokens_and_blocks_are_told_apart(tmp_path: Path) -> None:
    """Tokens of begun blocks are input, and no part of a block: the two shares differ."""
    ids = ([1, 2, 3], [1, 2, 4, 5], [9])
    rows = [
        {"timestamp": 1000 * n, "input_length": isl, "output_length": 5, "hash_ids": blocks}
        for n, (isl, blocks) in enumerate(zip((1100, 1600, 512), ids, strict=True))
    ]
    found = statistics(loaded(tmp_path, {"x.jsonl": rows}))
    assert found.prefix_reuse_blocks == pytest.approx(2 / 6)
    assert found.prefix_reuse == pytest.approx(1024 / 3212)


# --- Traps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "p/agent-x1.jsonl",
        "p/S/subagents/agent-x1.jsonl",
        "p/S/subagents/workflows/w1/agent-x1.jsonl",
    ],
)
@pytest.mark.parametrize("named", [True, False], ids=["named", "by its file"])
def test_trap_05_a_subagents_file_belongs_to_its_session(
    tmp_path: Path, path: str, named: bool
) -> None:
    """In every layout, and where its id is in the name only, it is an agent of the session."""
    main = [user("u", None, 0), answer("a", "u", 3, "A", 100, 0, 5)]
    main += [user("t", "a", 30), answer("b", "t", 33, "B", 150, 0, 6)]
    side: Row = {"isSidechain": True} | ({"agentId": "x1"} if named else {})
    agent = [user("v", None, 5, **side), answer("c", "v", 9, "C", 80, 0, 7, **side)]
    other = [user("u", None, 0, "R"), answer("d", "u", 3, "D", 60, 0, 8, session="R")]
    trace = loaded(tmp_path, {"p/S.jsonl": main, path: agent, "p/R.jsonl": other})
    found = {session.id: [(c.agent, c.isl) for c in session.calls] for session in trace}
    assert found == {"S": [("", 100), ("agent 1", 80), ("", 150)], "R": [("", 60)]}
    (session,) = (session for session in trace if session.id == "S")
    assert session.calls[2].after == (0, 1)


def test_trap_10_a_night_between_two_turns_is_capped(tmp_path: Path) -> None:
    """A session that was resumed the next morning waits no longer than --max-gap."""
    night = {"timestamp": "2026-01-03T09:00:00.000Z"}
    rows = [
        user("u", None, 0),
        answer("a", "u", 3, "A", 100, 0, 5),
        user("v", "a", 0) | night,
        answer("b", "v", 0, "B", 150, 0, 6) | {"timestamp": "2026-01-03T09:00:04.000Z"},
    ]
    session = only(loaded(tmp_path, {"p/S.jsonl": rows}))
    assert session.calls[1].gap_s == pytest.approx(23 * 3600 - 3)
    for plan, sent_s in (
        (Plan(users=1, duration_s=None, sessions=1), 13.0),
        (Plan(users=1, duration_s=None, sessions=1, max_gap_s=None), 23 * 3600.0),
    ):
        records = replay(plan, [session], oracle([session])).records
        assert [record.sent_ns / 1e9 for record in records] == [0.0, pytest.approx(sent_s)]


def test_trap_14_a_place_in_the_list_is_no_join(tmp_path: Path) -> None:
    """A parent that goes on while its subagent works does not wait for it, whatever the order."""

    def request(t: float, first: int, blocks: int, took: float) -> Row:
        ids = list(range(first, first + blocks))
        row: Row = {"t": t, "type": "n", "model": "m", "in": 64 * blocks, "out": 5}
        return row | {"hash_ids": ids, "api_time": took}

    entry = {"t": 3.0, "type": "subagent", "agent_id": "x", "requests": [request(0, 50, 3, 20)]}
    requests = [request(0, 1, 4, 2.5), entry, request(9, 1, 5, 2), request(40, 1, 6, 2)]
    calls = only(loaded(tmp_path, {"x.jsonl": [WEKA | {"requests": requests}]})).calls
    assert [(c.agent, c.start_s, c.after) for c in calls] == [
        ("", 0, ()),
        ("x", 3, (0,)),
        ("", 9, (0,)),
        ("", 40, (2,)),
    ]


def test_trap_15_five_seconds_are_five_seconds_in_every_unit(tmp_path: Path) -> None:
    """Weka and Bailian count seconds, Mooncake and Dynamo milliseconds, OTLP nanoseconds."""
    zero = 1_767_348_000

    def dynamo(name: str, t: float) -> Row:
        request: Row = {"request_id": name, "model": "m", "input_tokens": 128, "output_tokens": 5}
        request |= {"request_received_ms": (zero + t) * 1000, "total_time_ms": 1000.0}
        row: Row = {"schema": "dynamo.request.trace.v1", "event_type": "request_end"}
        return row | {"agent_context": {"session_id": "s"}, "request": request}

    def span(name: str, t: float) -> Row:
        told: Row = {"gen_ai.operation.name": "chat", "gen_ai.conversation.id": "c"}
        counted = {"gen_ai.usage.input_tokens": "128", "gen_ai.usage.output_tokens": "5"}
        attributes = [{"key": key, "value": {"stringValue": each}} for key, each in told.items()]
        attributes += [{"key": key, "value": {"intValue": each}} for key, each in counted.items()]
        row: Row = {"traceId": "0" * 31 + "1", "spanId": name * 16, "name": "chat"}
        row |= {"startTimeUnixNano": str(int((zero + t) * 10**9)), "attributes": attributes}
        return row | {"endTimeUnixNano": str(int((zero + t + 1) * 10**9))}

    def weka(t: float) -> Row:
        row: Row = {"t": t, "type": "n", "in": 128, "out": 5, "api_time": 1.0}
        return row | {"hash_ids": [1, 2]}

    def chat(number: int, t: float) -> Row:
        row: Row = {"chat_id": number, "parent_chat_id": number - 1, "timestamp": t}
        told = {"input_length": 128, "output_length": 5, "hash_ids": list(range(8))}
        return row | told | {"type": "text", "turn": number}

    def mooncake(t: float) -> Row:
        row: Row = {"timestamp": t, "input_length": 1024, "output_length": 5}
        return row | {"hash_ids": [1, 2]}

    spans = [{"scope": {"name": "x"}, "spans": [span("a", 0), span("b", 5)]}]
    files: dict[str, list[Any]] = {
        "weka": [WEKA | {"requests": [weka(0), weka(5)]}],
        "bailian": [chat(1, 61), chat(2, 66)],
        "mooncake": [mooncake(0), mooncake(5000)],
        "dynamo": [dynamo("a", 0), dynamo("b", 5)],
        "otlp": [{"resourceSpans": [{"resource": {}, "scopeSpans": spans}]}],
    }
    starts_s = {
        name: [call.start_s for call in only(loaded(tmp_path / name, {"x.jsonl": rows})).calls]
        for name, rows in files.items()
    }
    assert starts_s == {name: [0.0, pytest.approx(5.0)] for name in files}


def test_trap_21_a_hidden_history_is_part_of_the_prompt(tmp_path: Path) -> None:
    """A request that names the answer before instead of repeating it shares that one's prompt."""

    def entry(t: float, name: str, isl: int, **body: Any) -> Row:
        usage = {"input_tokens": isl, "output_tokens": 20}
        answer = {"id": name, "model": "m", "output": [], "usage": usage}
        asked = {"model": "m", "instructions": "Be brief.", "tools": [{"name": "ls"}]} | body
        request = {"method": "POST", "url": "https://h/v1/responses", "headers": []}
        row: Row = {"startedDateTime": iso(t), "time": 2000}
        row |= {"request": request | {"postData": {"text": text(asked)}}}
        return row | {"response": {"status": 200, "content": {"text": text(answer)}}}

    first = entry(0, "r1", 1000, input="words " * 300)
    second = entry(9, "r2", 1200, input="more words " * 5, previous_response_id="r1")
    value = {"log": {"version": "1.2", "entries": [first, second]}}
    calls = only(load(write(tmp_path, {"x.har": orjson.dumps(value)}))).calls
    assert lengths(calls) == [(1000, 20), (1200, 20)]
    assert (calls[1].parent, calls[1].after) == (0, (0,))
    assert calls[1].shared >= 896


OF_CACHES = frozenset(
    "cached cached_tokens cached_input_tokens cache_read_input_tokens cache_read_tokens read "
    "prefix_tokens".split()
)
CACHED = [
    (sample, path, place)
    for sample in SAMPLES
    for path, place, value in file_places(sample.files)
    if isinstance(value, int) and place[-1] in OF_CACHES
]


@pytest.mark.parametrize(
    ("sample", "path", "place"), CACHED, ids=[f"{sample}-{place}" for sample, _, place in CACHED]
)
def test_trap_23_more_cached_than_input_gives_no_share_above_one(
    tmp_path: Path, sample: Sample, path: str, place: tuple[Any, ...]
) -> None:
    """Such counts stand beside the input, and are added; what makes no sense is refused."""
    files = with_change(sample.files, path, place, lambda _: 10_000_000)
    trace = open_set(sample.write(tmp_path, files), **sample.options)
    sessions = list(trace.readable())
    found = statistics(sessions)
    assert (found.cached_tokens or 0) <= found.input_tokens
    assert all((c.cached or 0) <= c.isl for session in sessions for c in session.calls)


def test_trap_26_a_wait_for_a_permission_is_capped(tmp_path: Path) -> None:
    """A tool that a person allowed after five minutes is a gap like others: --max-gap cuts it."""
    rows = [
        user("u", None, 0),
        answer("a", "u", 3, "A", 100, 0, 5, "tool_use"),
        user("t", "a", 303),
        answer("b", "t", 306, "B", 150, 0, 6),
    ]
    session = only(loaded(tmp_path, {"p/S.jsonl": rows}))
    assert session.calls[1].gap_s == pytest.approx(300)
    plan = Plan(users=1, duration_s=None, sessions=1)
    records = replay(plan, [session], oracle([session])).records
    assert records[1].sent_ns / 1e9 == pytest.approx(13)
    assert records[1].request.gap_cut_s == pytest.approx(290)


@pytest.mark.parametrize("sample", [s for s in SAMPLES if not s.options], ids=str)
@pytest.mark.parametrize("chars", [0.01, 1000.0])
def test_trap_27_recorded_lengths_are_stronger_than_texts(
    tmp_path: Path, sample: Sample, chars: float
) -> None:
    """Texts in a log are less than was sent: where there are counts, these are the lengths."""
    assert sums(list(sample.load(sample.write(tmp_path), chars_per_token=chars))) == sample.sums


@pytest.mark.parametrize("name", ["mooncake-new", "mooncake-agentic", "arrivals-bailian"])
def test_trap_28_ids_of_one_file_mean_nothing_in_another(tmp_path: Path, name: str) -> None:
    """Two people's files may hold the same ids of sessions: they are twice as many sessions."""
    (sample,) = (sample for sample in SAMPLES if sample.name == name)
    sample.write(tmp_path / "one")
    sample.write(tmp_path / "other")
    found = sums(list(sample.load(tmp_path)))
    assert found == tuple(2 * number for number in sample.sums)
