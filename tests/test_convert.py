"""Writing sessions: what comes back is what went out, and what would be written is said."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import chain as joined
from pathlib import Path
from typing import Any

import orjson
import pytest
from command import agentreplay
from hypothesis import given
from shared_data import needs_shared, weka_files, weka_sessions
from test_files import a_log
from test_load import native_line, weka_bytes, weka_value, written
from test_structure import random_cases, sessions
from virtually import call, chain

from agentreplay.errors import TraceError
from agentreplay.trace.export import exported, seen_of
from agentreplay.trace.formats import native, weka
from agentreplay.trace.load import load
from agentreplay.trace.model import Session
from agentreplay.trace.structure import link
from agentreplay.trace.synth import synthesise

BUNDLED = Path(__file__).parents[1] / "traces"
FIRST = 1000
"""The first block id of the exports made here."""


def a_session(name: str = "a", first_s: float = 0.0) -> Session:
    """A main agent with two subagents, of which one is at work while it goes on."""
    calls = [
        call(first_s, 4.5, isl=1000, osl=50, system=256),
        call(5.25, 9.0, isl=640, osl=20, agent="agent 1", system=128),
        call(6.0, 20.0, isl=700, osl=0, agent="agent 2"),
        call(9.5, 9.5, isl=900, osl=0, parent=1, shared=640, agent="agent 1", system=128),
        call(12.125, 13.0, isl=1500, parent=0, shared=960, system=256),
        call(25.0, 26.0, isl=30, system=30),
    ]
    calls[3] = calls[3]._replace(timed=False)
    calls[4] = calls[4]._replace(model=None, cached=900)
    return Session(name, None, link(calls, 64), 64, "")


def through_weka(session: Session) -> Session:
    line, _ = weka.line(session, FIRST)
    read, _ = weka.session(orjson.loads(line), session.source)
    return read


def through_native(session: Session) -> Session:
    read, notes = native.session(orjson.loads(native.line(session)), session.source)
    assert notes == {}
    return read


def timeless(session: Session) -> list[tuple[object, ...]]:
    """What a format must say exactly of each call."""
    return [
        (c.timed, c.isl, c.osl, c.parent, c.shared, c.agent, c.model, c.after)
        for c in session.calls
    ]


def times(session: Session) -> list[float]:
    return [time for c in session.calls for time in (c.start_s, c.end_s, c.gap_s)]


def same_replay(one: Session, other: Session) -> None:
    """Both sessions are the same calls at the same times, waiting and sharing alike."""
    assert timeless(one) == timeless(other)
    assert times(one) == pytest.approx(times(other), abs=1e-5)
    assert (one.id, one.block_size) == (other.id, other.block_size)


def convert(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    ended = agentreplay("convert", *arguments, COLUMNS="5000")
    assert ended.returncode == 0, ended.stderr
    return ended


# --- The native format ----------------------------------------------------------------------------


@pytest.mark.parametrize("start_s", [None, 0.0, 1234.5])
def test_a_native_session_comes_back(start_s: float | None) -> None:
    """Nothing of a session is lost on the way through the native format."""
    session = replace(a_session(), start_s=start_s)
    assert through_native(session) == session


any_session = sessions().filter(lambda session: all(c.isl for c in session.calls))


@random_cases
@given(any_session)
def test_any_native_session_comes_back(session: Session) -> None:
    """That holds for sessions of every structure."""
    assert through_native(session) == session


def test_native_bytes_come_back(tmp_path: Path) -> None:
    """A file of native sessions is converted to the same bytes."""
    data = b"".join(map(native.line, [*synthesise(20, 3), a_session()]))
    assert b"".join(exported(load(written(tmp_path / "x", data)), "native", 0)) == data


def test_the_command_gives_the_same_bytes(tmp_path: Path) -> None:
    """To standard output or to a file: the bundled sessions come out as they are."""
    expected = b"".join(path.read_bytes() for path in sorted(BUNDLED.glob("*.jsonl")))
    assert convert(BUNDLED).stdout.encode() == expected
    ended = convert(BUNDLED, "--out", tmp_path / "x.jsonl")
    assert (tmp_path / "x.jsonl").read_bytes() == expected
    assert ended.stdout == ""


# --- Weka -----------------------------------------------------------------------------------------


def test_a_session_comes_back_through_weka() -> None:
    """Calls, times, parents and waits of a session with subagents survive the Weka format."""
    same_replay(through_weka(a_session()), a_session())


def test_system_tokens_come_back_through_weka() -> None:
    """Each agent's own system tokens survive, as far as its prompts hold them."""
    assert [c.system for c in through_weka(a_session()).calls] == [256, 128, 0, 128, 256, 30]


def from_zero(session: Session, apart_s: float) -> Session:
    """The session from its first call on, as the format counts, each start moved by so much."""
    first_s = session.calls[0].start_s
    calls = [
        c._replace(start_s=c.start_s - first_s + i * apart_s, end_s=c.end_s - first_s + i * apart_s)
        for i, c in enumerate(session.calls)
    ]
    return replace(session, calls=link(calls, session.block_size))


@random_cases
@given(any_session)
def test_any_session_comes_back_through_weka(session: Session) -> None:
    """That holds for sessions of every structure."""
    session = from_zero(session, apart_s=1.0)
    same_replay(through_weka(session), session)


def lengths(session: Session) -> tuple[list[tuple[object, ...]], int]:
    """What the calls are, in whatever order, and how many tokens they share in all."""
    calls = [(c.start_s, c.end_s, c.isl, c.osl, c.agent, c.model or "") for c in session.calls]
    return sorted(calls), sum(c.shared for c in session.calls)


@random_cases
@given(any_session)
def test_calls_of_one_instant_may_change_places(session: Session) -> None:
    """Calls of several agents that start at one instant keep all but their order in the list."""
    session = from_zero(session, apart_s=0.0)
    assert lengths(through_weka(session)) == lengths(session)


@pytest.mark.parametrize("session", list(synthesise(10, 7)), ids=lambda session: session.id)
def test_artificial_sessions_come_back_through_weka(session: Session) -> None:
    """That holds for sessions with the statistics of real ones."""
    same_replay(through_weka(session), session)


@needs_shared
def test_shared_sessions_come_back_through_weka() -> None:
    """That holds for the shared recordings."""
    for session in weka_sessions():
        same_replay(through_weka(session), session)


def test_weka_is_converted_to_weka(tmp_path: Path) -> None:
    """The command turns a Weka file into one that holds the same sessions."""
    request = {"type": "n", "model": "m", "in": 640, "out": 9, "api_time": 1.0}
    inner = [
        request | {"t": 4.0, "hash_ids": list(range(50, 60))},
        request | {"t": 6.0, "hash_ids": list(range(50, 60))},
    ]
    value = weka_value(
        "a",
        block_size=64,
        system_tokens=128,
        requests=[
            request | {"t": 0.0, "hash_ids": list(range(10))},
            {"t": 4.0, "type": "subagent", "agent_id": "x", "system_tokens": 64, "requests": inner},
            request | {"t": 9.0, "in": 700, "hash_ids": list(range(10))},
        ],
    )
    source = written(tmp_path / "x.json", orjson.dumps(value))
    convert(source, "--to", "weka", "--out", tmp_path / "y.jsonl")
    (before,), (after,) = load(source), load(tmp_path / "y.jsonl")
    same_replay(before, after)
    assert [c.system for c in before.calls] == [c.system for c in after.calls]


def blocks(data: str | bytes) -> set[int]:
    """All block ids in lines of Weka sessions."""
    values = [orjson.loads(line) for line in data.splitlines()]
    entries = list(joined.from_iterable(value["requests"] for value in values))
    inner = joined.from_iterable(entry.get("requests", []) for entry in entries)
    return {block for row in (*entries, *inner) for block in row.get("hash_ids", [])}


def test_two_exports_share_no_block(tmp_path: Path) -> None:
    """An id of one export leads to no other export of the same session."""
    source = written(tmp_path / "x.jsonl", native.line(a_session()))
    one, other = (blocks(convert(source, "--to", "weka").stdout) for _ in range(2))
    assert len(one) == len(other) == 15 + 10 + 10 + 4 + 8
    assert not one & other


def test_block_ids_are_exact_in_every_reader(tmp_path: Path) -> None:
    """Ids are whole numbers below 2^53, which a reader that makes floats of them keeps."""
    source = written(tmp_path / "x.jsonl", native.line(a_session()))
    for _ in range(3):
        assert all(0 <= block < 1 << 53 for block in blocks(convert(source, "--to", "weka").stdout))


def test_sessions_of_an_export_share_no_block(tmp_path: Path) -> None:
    """Within an export every session has blocks of its own."""
    source = written(tmp_path / "x.jsonl", native.line(a_session("a")) + native.line(a_session()))
    lines = list(exported(load(source), "weka", FIRST))
    one, other = map(blocks, lines)
    assert one | other == set(range(FIRST, FIRST + 2 * len(one)))


def test_recorded_hashes_do_not_come_out(tmp_path: Path) -> None:
    """The ids of a recording are not those of its export."""
    data = weka_bytes("a").replace(b"[1,2]", b"[14879255164371896291,274632075616497421]")
    for form in ("native", "weka"):
        said = b"".join(exported(load(written(tmp_path / "x.json", data)), form, FIRST))
        assert b"14879255164371896291" not in said
        assert b"274632075616497421" not in said


# --- What is written ------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["native", "weka"])
def test_sessions_of_logs_are_numbered(tmp_path: Path, form: str) -> None:
    """The name of a session in a log leads back to it: it is written as a number."""
    written(tmp_path / "a.jsonl", native_line("mine"))
    written(tmp_path / "b.jsonl", a_log(1, 2).replace(b'"s"', b'"secret-name"'))
    ids = [orjson.loads(line)["id"] for line in exported(load(tmp_path), form, FIRST)]
    assert ids == ["mine", "session 2"]


@pytest.mark.parametrize("form", ["native", "weka"])
@pytest.mark.parametrize("shape", [b"%b", b"%b\n%b\n"], ids=["file", "lines"])
def test_a_session_without_a_name_is_not_called_after_its_file(
    tmp_path: Path, form: str, shape: bytes
) -> None:
    """No path comes out: a session without a name gets a number."""
    data = shape.replace(
        b"%b", orjson.dumps({k: v for k, v in weka_value("").items() if k != "id"})
    )
    trace = load(written(tmp_path / "secret" / "x.json", data))
    assert b"secret" not in b"".join(exported(trace, form, FIRST))


def test_what_can_not_be_read_is_left_out_and_named(tmp_path: Path) -> None:
    """A session that can't be read is skipped, and named on standard error."""
    file = written(tmp_path / "x.jsonl", native_line("a") + b"{\n" + native_line("b"))
    ended = convert(file)
    assert ended.stdout.encode() == native_line("a") + native_line("b")
    assert f"{file}:2" in ended.stderr


def test_a_dry_run_names_what_is_left_out(tmp_path: Path) -> None:
    """So does a dry run: what would not be written is said before anything is."""
    file = written(tmp_path / "x.jsonl", native_line("a") + b"{\n" + native_line("b"))
    assert f"left out: {file}:2: " in convert(file, "--dry-run").stderr


def test_strict_writes_no_part(tmp_path: Path) -> None:
    """With --strict a session that can't be read is an error."""
    file = written(tmp_path / "x.jsonl", native_line("a") + b"{\n" + native_line("b"))
    with pytest.raises(TraceError, match=r"x\.jsonl:2"):
        list(exported(load(file, strict=True), "native", 0))
    ended = agentreplay("convert", file, "--strict")
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"agentreplay: {file}:2: broken JSON")


@pytest.mark.parametrize("form", ["native", "weka"])
def test_a_file_may_be_converted_in_place(tmp_path: Path, form: str) -> None:
    """Writing over the file that is read loses nothing: it is refused, or the file is converted."""
    data = native.line(a_session("a")) + native.line(a_session("b"))
    file = written(tmp_path / "x.jsonl", data)
    agentreplay("convert", file, "--to", form, "--out", file)
    assert [session.id for session in load(file)] == ["a", "b"]


@pytest.mark.parametrize("out", ["missing/x.jsonl", "."])
def test_a_file_that_can_not_be_written_is_an_error(tmp_path: Path, out: str) -> None:
    """Where the output can't be written, that is an error of one line with its name."""
    ended = agentreplay("convert", BUNDLED, "--out", tmp_path / out)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert str(tmp_path / out) in ended.stderr


def test_an_unknown_target_is_refused() -> None:
    """Only what can be written can be asked for."""
    ended = agentreplay("convert", BUNDLED, "--to", "codex")
    assert ended.returncode == 2
    assert "'native', 'weka'" in ended.stderr


# --- What would be written ------------------------------------------------------------------------


def texts_in(value: Any) -> set[str]:
    """Every text in a JSON value that is no field's name."""
    if isinstance(value, dict):
        return set().union(*map(texts_in, value.values()))
    if isinstance(value, list):
        return set().union(*map(texts_in, value))
    return {value} if isinstance(value, str) else set()


def fields_in(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(fields_in, value.values()))
    return set().union(*map(fields_in, value)) if isinstance(value, list) else set()


@pytest.mark.parametrize("form", ["native", "weka"])
def test_all_that_would_be_written_is_seen(tmp_path: Path, form: str) -> None:
    """Every field and every text of the lines is found, with sizes and the first line."""
    data = native.line(a_session("a")) + native.line(chain(7, 3))
    lines = list(exported(load(written(tmp_path / "x.jsonl", data)), form, FIRST))
    seen, values = seen_of(lines), [orjson.loads(line) for line in lines]
    assert (seen.sessions, seen.size_bytes, seen.first) == (2, sum(map(len, lines)), lines[0])
    assert set(seen.texts) == texts_in(values)
    assert set(seen.fields) == fields_in(values)


def test_texts_are_counted(tmp_path: Path) -> None:
    """How often a text occurs is known."""
    seen = seen_of(exported(load(written(tmp_path / "x", native.line(a_session()))), "native", 0))
    assert seen.texts == {"a": 1, "agent 1": 2, "agent 2": 1, "m": 5}


@pytest.mark.parametrize("form", ["native", "weka"])
def test_a_dry_run_writes_nothing(tmp_path: Path, form: str) -> None:
    """With --dry-run there is no file, and standard output holds the report only."""
    out = tmp_path / "x.jsonl"
    ended = convert(BUNDLED, "--to", form, "--out", out, "--dry-run")
    assert not out.exists()
    assert all(not line.startswith("{") for line in ended.stdout.splitlines()[:-1])


def test_a_dry_run_leaves_the_file_that_is_there(tmp_path: Path) -> None:
    """With --dry-run an older file of that name stays as it is."""
    out = written(tmp_path / "x.jsonl", b"older")
    convert(BUNDLED, "--out", out, "--dry-run")
    assert out.read_bytes() == b"older"


def said(*arguments: str | Path) -> str:
    return convert(*arguments, "--dry-run").stdout


def test_a_dry_run_says_how_much(tmp_path: Path) -> None:
    """The report says how many sessions and bytes there would be."""
    source = written(tmp_path / "x.jsonl", native.line(a_session()) * 2)
    size = len(convert(source).stdout)
    assert said(source).startswith(f"2 sessions in {size:,} bytes (native)\n")


@pytest.mark.parametrize(
    ("form", "line"),
    [("native", native.line), ("weka", lambda session: weka.line(session, FIRST)[0])],
)
def test_a_dry_run_names_every_field(
    tmp_path: Path, form: str, line: Callable[[Session], bytes]
) -> None:
    """The report names each field that would be written."""
    source = written(tmp_path / "x.jsonl", native.line(a_session()))
    (fields,) = re.findall(r"^Fields: (.*)$", said(source, "--to", form), re.MULTILINE)
    assert set(fields.split(", ")) == fields_in(orjson.loads(line(a_session())))


@pytest.mark.parametrize("number", [1, 5, 30])
def test_a_dry_run_lists_every_text(tmp_path: Path, number: int) -> None:
    """The report lists each text that would be written, however many there are."""
    data = b"".join(native.line(a_session(f"session of {n}")) for n in range(number))
    report = said(written(tmp_path / "x.jsonl", data))
    for text in ("agent 1", "agent 2", "m", *(f"session of {n}" for n in range(number))):
        assert repr(text) in report
    assert f"{number + 3} different texts" in report


def test_a_dry_run_shows_texts_that_look_like_markup(tmp_path: Path) -> None:
    """A text is shown as it is, whatever it looks like."""
    source = written(tmp_path / "x.jsonl", native_line("[red]a[/red]"))
    assert repr("[red]a[/red]") in said(source)


def test_a_dry_run_shows_the_first_line(tmp_path: Path) -> None:
    """The report shows how the first line begins, whatever signs it holds."""
    source = written(tmp_path / "x.jsonl", native_line("é" * 600))
    assert '{"agentreplay":1,"id":"ééé' in said(source)


@needs_shared
def test_shared_sessions_are_written_without_their_hashes() -> None:
    """What is written of the shared recordings holds ids of the export only, and few texts."""
    trace = load(*sorted(weka_files(), key=lambda file: file.stat().st_size)[:20])
    lines = list(exported(trace, "weka", 1 << 52))
    assert len(lines) == 20
    assert min(map(min, map(blocks, lines))) >= 1 << 52
    calls = [c for session in trace for c in session.calls]
    known = {c.model for c in calls} | {c.agent for c in calls} | {each.id for each in trace}
    assert set(seen_of(lines).texts) <= known | {"n", "subagent", "local"}
