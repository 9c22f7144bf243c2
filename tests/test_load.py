"""Opening sets: files and folders of every shape, and what is said about those that are broken."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentreplay.errors import TraceError
from agentreplay.trace.formats import native
from agentreplay.trace.load import content_hash, load
from agentreplay.trace.model import Call, Session

BOM = b"\xef\xbb\xbf"

CALL = Call(
    start_s=0.0,
    end_s=1.0,
    timed=True,
    isl=8,
    osl=3,
    after=(),
    gap_s=0.0,
    parent=None,
    shared=0,
    system=0,
    agent="",
    model=None,
    cached=None,
)


def native_line(name: str) -> bytes:
    """A native session, with its line end."""
    return native.line(Session(name, None, (CALL,), 4, ""))


def weka_value(name: str, **fields: object) -> dict[str, Any]:
    """A Weka session."""
    requests = [{"t": 0.0, "type": "n", "in": 8, "out": 3, "hash_ids": [1, 2], "api_time": 1.0}]
    return {"id": name, "block_size": 4, "hash_id_scope": "local", "requests": requests} | fields


def weka_bytes(name: str, **fields: object) -> bytes:
    """A Weka session on one line, without a line end."""
    return orjson.dumps(weka_value(name, **fields))


def written(path: Path, data: bytes) -> Path:
    """The path, after the data went there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def names(*paths: Path) -> list[str]:
    """The ids of all sessions of a set."""
    return [session.id for session in load(*paths)]


def refusal(*paths: Path, strict: bool = False) -> str:
    """What is said of a set that can't be opened."""
    with pytest.raises(TraceError) as raised:
        load(*paths, strict=strict)
    return str(raised.value)


# --- What is found --------------------------------------------------------------------------------


def test_a_folder_is_read_in_order_of_names(tmp_path: Path) -> None:
    """A folder gives the sessions of its files, by name."""
    for name in ("b", "a", "c"):
        written(tmp_path / f"{name}.json", weka_bytes(name))
    assert names(tmp_path) == ["a", "b", "c"]


def test_a_folder_is_searched_through_all_levels(tmp_path: Path) -> None:
    """Files in folders of a folder belong to the set."""
    written(tmp_path / "deep" / "deeper" / "a.json", weka_bytes("a"))
    written(tmp_path / "b.json", weka_bytes("b"))
    assert sorted(names(tmp_path)) == ["a", "b"]


def test_other_files_of_a_folder_are_not_looked_at(tmp_path: Path) -> None:
    """In a folder only files with a suffix of JSON count."""
    written(tmp_path / "a.json", weka_bytes("a"))
    written(tmp_path / "LICENSE", b"text")
    written(tmp_path / "notes.md", weka_bytes("b"))
    trace = load(tmp_path)
    assert (trace.files, trace.skipped) == ([tmp_path / "a.json"], {})


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.ndjson", "a.txt", "a"])
def test_a_single_file_is_read_whatever_its_name(tmp_path: Path, name: str) -> None:
    """A file that is named itself needs no suffix."""
    assert names(written(tmp_path / name, weka_bytes("a"))) == ["a"]


def test_several_paths_are_one_set(tmp_path: Path) -> None:
    """Files and folders together are one set, in the order given."""
    file = written(tmp_path / "z.json", weka_bytes("z"))
    written(tmp_path / "folder" / "a.json", weka_bytes("a"))
    assert names(file, tmp_path / "folder") == ["z", "a"]


def test_formats_mix(tmp_path: Path) -> None:
    """A folder may hold files of different formats."""
    written(tmp_path / "a.json", weka_bytes("weka"))
    written(tmp_path / "b.jsonl", native_line("native"))
    assert names(tmp_path) == ["weka", "native"]


def test_formats_mix_in_a_file(tmp_path: Path) -> None:
    """Lines of a file may be of different formats."""
    data = native_line("native") + weka_bytes("weka") + b"\n"
    assert names(written(tmp_path / "a.jsonl", data)) == ["native", "weka"]


def test_a_set_is_a_sequence(tmp_path: Path) -> None:
    """A set has a length, indices from either end, slices, and an end."""
    trace = load(written(tmp_path / "a.jsonl", b"".join(map(native_line, "abc"))))
    assert (len(trace), trace[0].id, trace[-1].id) == (3, "a", "c")
    assert [session.id for session in trace[1:]] == ["b", "c"]
    with pytest.raises(IndexError):
        trace[3]


# --- Shapes of files ------------------------------------------------------------------------------

LINES = native_line("a") + native_line("b")
LONG = native.line(Session("long", None, (CALL,) * 100, 4, ""))
PRETTY = orjson.dumps(weka_value("a"), option=orjson.OPT_INDENT_2)
SEPARATED = '{"name": "\u2028 and \u2029 and \x85",'.encode()


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".ndjson", ".txt"])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(LINES, ["a", "b"], id="lines"),
        pytest.param(LINES.rstrip(), ["a", "b"], id="no line end at the end"),
        pytest.param(LINES.replace(b"\n", b"\r\n"), ["a", "b"], id="CRLF"),
        pytest.param(BOM + LINES, ["a", "b"], id="lines after a BOM"),
        pytest.param(BOM + LINES.replace(b"\n", b"\r\n"), ["a", "b"], id="BOM and CRLF"),
        pytest.param(LINES.replace(b"\n", b"\n\n  \n\r\n"), ["a", "b"], id="blank lines between"),
        pytest.param(b"\n \n" + LINES, ["a", "b"], id="blank lines before"),
        pytest.param(LONG + LINES, ["long", "a", "b"], id="a long first line"),
        pytest.param(LONG, ["long"], id="one long line"),
        pytest.param(native_line("a"), ["a"], id="one line"),
        pytest.param(BOM + native_line("a"), ["a"], id="one line after a BOM"),
        pytest.param(weka_bytes("a"), ["a"], id="one object"),
        pytest.param(BOM + weka_bytes("a"), ["a"], id="one object after a BOM"),
        pytest.param(
            b"[" + weka_bytes("a") + b"," + native_line("b") + b"]", ["a", "b"], id="list"
        ),
        pytest.param(b"[\n" + weka_bytes("a") + b"\n]\n", ["a"], id="list on lines"),
        pytest.param(BOM + b" [" + weka_bytes("a") + b"]", ["a"], id="list after a BOM"),
        pytest.param(
            SEPARATED + LINES[1:], ["a", "b"], id="line separators of Unicode inside a text"
        ),
    ],
)
def test_files_of_every_shape_are_read(
    tmp_path: Path, suffix: str, data: bytes, expected: list[str]
) -> None:
    """Lines, lists and single objects are read whatever the name, line ends and byte order mark."""
    trace = load(written(tmp_path / f"x{suffix}", data))
    assert ([session.id for session in trace], trace.skipped) == (expected, {})


@pytest.mark.parametrize("suffix", [".json", ".txt"])
@pytest.mark.parametrize(
    "data",
    [PRETTY, BOM + PRETTY, b"\n" + PRETTY, PRETTY.replace(b"\n", b"\r\n")],
    ids=["plain", "BOM", "blank line", "CRLF"],
)
def test_a_pretty_printed_object_is_read(tmp_path: Path, suffix: str, data: bytes) -> None:
    """An object over many lines is one session."""
    assert names(written(tmp_path / f"x{suffix}", data)) == ["a"]


def test_a_session_knows_its_file(tmp_path: Path) -> None:
    """The source of a session that has a file of its own is the file."""
    file = written(tmp_path / "a.json", weka_bytes("a"))
    assert load(file)[0].source == str(file)


@pytest.mark.parametrize(
    ("data", "numbers"),
    [
        (b"\n" + native_line("a") + b"\n\n" + native_line("b"), [2, 5]),
        (b"[" + weka_bytes("a") + b"," + weka_bytes("b") + b"]", [1, 2]),
    ],
    ids=["lines", "list"],
)
def test_a_session_knows_its_place(tmp_path: Path, data: bytes, numbers: list[int]) -> None:
    """The source of one of several sessions is the file with the line, or the place in the list."""
    file = written(tmp_path / "a.jsonl", data)
    assert [session.source for session in load(file)] == [f"{file}:{n}" for n in numbers]


# --- Broken files ---------------------------------------------------------------------------------


def test_a_broken_line_is_skipped_and_named(tmp_path: Path) -> None:
    """A broken line between good ones costs itself only, and is named with its number."""
    file = written(tmp_path / "a.jsonl", native_line("a") + b'{"x": \n' + native_line("b"))
    trace = load(file)
    assert [session.id for session in trace.readable()] == ["a", "b"]
    assert list(trace.skipped) == [f"{file}:2"]
    assert trace.skipped[f"{file}:2"].startswith("broken JSON: ")


def test_a_truncated_last_line_is_skipped_and_named(tmp_path: Path) -> None:
    """A last line that was not written to its end costs itself only."""
    file = written(tmp_path / "a.jsonl", native_line("a") + native_line("b")[:40])
    trace = load(file)
    assert [session.id for session in trace.readable()] == ["a"]
    assert list(trace.skipped) == [f"{file}:2"]


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b'{"x": 1}\n', "no known trace format"),
        (weka_bytes("a", requests=[]) + b"\n", "no usable request"),
        (native_line("a").replace(b'"isl":8', b'"isl":0') + b"\n", "isl must be at least 1"),
        (native_line("a").replace(b'"agentreplay":1', b'"agentreplay":7') + b"\n", "version 7"),
    ],
    ids=["unknown", "weka", "native", "version"],
)
def test_a_line_that_breaks_its_format_is_named(tmp_path: Path, data: bytes, cause: str) -> None:
    """A line that is JSON but no session is skipped and named with the cause."""
    file = written(tmp_path / "a.jsonl", native_line("a") + data)
    trace = load(file)
    assert [session.id for session in trace.readable()] == ["a"]
    assert cause in trace.skipped[f"{file}:2"]
    assert str(file) not in trace.skipped[f"{file}:2"]


def test_a_broken_session_raises_where_it_is_asked_for(tmp_path: Path) -> None:
    """Asking for a session that can't be read raises an error with its place."""
    file = written(tmp_path / "a.jsonl", native_line("a") + b"{\n")
    trace = load(file)
    with pytest.raises(TraceError, match=r"a\.jsonl:2: broken JSON"):
        trace[1]


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "the file is empty"),
        (b" \n\n", "the file is empty"),
        (b"\x00\x01", "it is no JSON"),
        (b"name,value\n1,2\n", "no known trace format"),
        (b"[{", "broken JSON"),
        (b'{"x": 1}\n{"x": 2}\n', "no known trace format"),
    ],
    ids=["empty", "blank", "binary", "table", "broken list", "unknown lines"],
)
def test_a_useless_file_of_a_folder_is_named(tmp_path: Path, data: bytes, cause: str) -> None:
    """A file that holds no session is named with the cause, and the others are read."""
    file = written(tmp_path / "a.jsonl", data)
    written(tmp_path / "b.json", weka_bytes("b"))
    trace = load(tmp_path)
    assert [session.id for session in trace] == ["b"]
    assert list(trace.skipped) == [str(file)]
    assert cause in trace.skipped[str(file)]


def test_a_useless_entry_of_a_list_is_named(tmp_path: Path) -> None:
    """An entry of a list that is no session is named with its place, and the others are read."""
    file = written(tmp_path / "a.json", b"[5," + weka_bytes("a") + b',{"x":1}]')
    trace = load(file)
    assert [session.id for session in trace] == ["a"]
    assert list(trace.skipped) == [f"{file}:1", f"{file}:3"]


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "the file is empty"),
        (b"\n", "the file is empty"),
        (b"GIF89a", "it is no JSON"),
        (b"[]", "no usable session"),
        (b"[1]", "no known trace format"),
        (b'{"x": 1}\n{"x": 2}\n', "no known trace format (known: native, weka, "),
    ],
    ids=["empty", "blank", "no JSON", "empty list", "unknown entry", "unknown lines"],
)
def test_a_set_without_a_session_is_refused(tmp_path: Path, data: bytes, cause: str) -> None:
    """A set in which nothing can be read is an error with the file and the cause."""
    file = written(tmp_path / "a.jsonl", data)
    assert str(file) in refusal(file)
    assert cause in refusal(file)


def test_all_useless_files_are_counted(tmp_path: Path) -> None:
    """The error of a set without a session says the first cause and how many more there are."""
    for name in "abc":
        written(tmp_path / f"{name}.jsonl", b"")
    assert refusal(tmp_path).endswith(f"({tmp_path / 'a.jsonl'}: the file is empty, and 2 more)")


def test_an_unknown_kind_of_object_is_named(tmp_path: Path) -> None:
    """A file whose only object is of no known kind is named with the kinds that are known."""
    file = written(tmp_path / "a.json", b'{"x": 1}')
    with pytest.raises(TraceError, match=r"a\.json: no known trace format \(known: native, weka, "):
        list(load(file))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    """A folder without trace files is an error with its name and what was looked for."""
    said = refusal(tmp_path)
    assert said.startswith(f"{tmp_path}: no trace files (looked for ")
    assert ".json, .jsonl" in said


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    """A path that does not exist is an error with its name."""
    assert refusal(tmp_path / "none") == f"{tmp_path / 'none'}: no such file or folder"


def test_a_missing_path_is_refused_beside_a_good_one(tmp_path: Path) -> None:
    """A path that does not exist is an error even where others hold sessions."""
    file = written(tmp_path / "a.json", weka_bytes("a"))
    assert "no such file or folder" in refusal(file, tmp_path / "none")


def test_a_file_that_vanished_is_named(tmp_path: Path) -> None:
    """A file that is gone when its session is asked for is an error with its name."""
    file = written(tmp_path / "a.json", weka_bytes("a"))
    trace = load(file)
    file.unlink()
    with pytest.raises(TraceError, match=r"a\.json: No such file"):
        trace[0]


# --- Strict ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"text", b"[5]", b'{"x": 1}\n{"x": 2}\n'])
def test_strict_refuses_a_useless_file(tmp_path: Path, data: bytes) -> None:
    """With `strict` a file that is found useless on opening is an error that names it."""
    file = written(tmp_path / "a.jsonl", data)
    written(tmp_path / "b.json", weka_bytes("b"))
    assert refusal(tmp_path, strict=True).startswith(str(file))


@pytest.mark.parametrize("read", [list, lambda trace: list(trace.readable())])
def test_strict_refuses_a_broken_session(tmp_path: Path, read: Callable[[Any], object]) -> None:
    """With `strict` a session that can't be read is an error whichever way it is read."""
    file = written(tmp_path / "a.jsonl", native_line("a") + b"{\n" + native_line("b"))
    trace = load(file, strict=True)
    with pytest.raises(TraceError, match=r"a\.jsonl:2: broken JSON"):
        read(trace)


def test_strict_does_not_mind_good_files(tmp_path: Path) -> None:
    """With `strict` a set without faults is read as ever."""
    file = written(tmp_path / "a.jsonl", LINES)
    assert [session.id for session in load(file, strict=True)] == ["a", "b"]


# --- Laziness -------------------------------------------------------------------------------------


def test_opening_a_folder_parses_nothing(tmp_path: Path) -> None:
    """Files are parsed when they are asked for: 300 broken ones are opened and counted."""
    for n in range(300):
        written(tmp_path / f"{n:03}.json", b'{"requests": [')
    trace = load(tmp_path)
    assert (len(trace), trace.skipped) == (300, {})


def test_only_the_session_asked_for_is_parsed(tmp_path: Path) -> None:
    """A broken file is found when its own index is asked for, not before."""
    written(tmp_path / "a.json", b'{"requests": [')
    written(tmp_path / "b.json", weka_bytes("b"))
    trace = load(tmp_path)
    assert trace[1].id == "b"
    assert trace.skipped == {}


def test_only_the_line_asked_for_is_parsed(tmp_path: Path) -> None:
    """A broken line is found when its own index is asked for, not before."""
    trace = load(written(tmp_path / "a.jsonl", native_line("a") + b"{\n" + native_line("c")))
    assert (len(trace), trace[2].id, trace.skipped) == (3, "c", {})


def test_a_session_is_read_anew(tmp_path: Path) -> None:
    """A session is not kept: asking twice gives equal values, not the same one."""
    trace = load(written(tmp_path / "a.json", weka_bytes("a")))
    assert trace[0] == trace[0]
    assert trace[0] is not trace[0]


# --- Notes ----------------------------------------------------------------------------------------


def test_notes_are_kept_by_file(tmp_path: Path) -> None:
    """What a reader noted is there under its file, once the session was read."""
    file = written(tmp_path / "a.json", weka_bytes("a", colour=1))
    written(tmp_path / "b.json", weka_bytes("b"))
    trace = load(tmp_path)
    assert trace.notes == {}
    list(trace)
    assert trace.notes == {str(file): {"unknown field 'colour', ignored": 1}}


@pytest.mark.parametrize("indices", [[0, 0], [0, -1], [-1, 0, 0]], ids=str)
def test_a_session_read_twice_counts_its_notes_once(tmp_path: Path, indices: list[int]) -> None:
    """Reading a session again, from whichever end it is counted, adds no notes."""
    file = written(tmp_path / "a.json", weka_bytes("a", colour=1))
    trace = load(file)
    for index in indices:
        trace[index]
    assert trace.notes[str(file)] == {"unknown field 'colour', ignored": 1}


@pytest.mark.parametrize("shape", ["lines", "list"])
def test_notes_of_a_file_add_up(tmp_path: Path, shape: str) -> None:
    """The notes of all sessions of a file are one sum."""
    sessions = [weka_bytes(name, colour=1) for name in "abc"]
    data = b"\n".join(sessions) if shape == "lines" else b"[" + b",".join(sessions) + b"]"
    file = written(tmp_path / "a.jsonl", data)
    trace = load(file)
    list(trace)
    list(trace)
    assert trace.notes == {str(file): {"unknown field 'colour', ignored": 3}}


def test_a_session_read_anew_after_it_failed_is_no_longer_broken(tmp_path: Path) -> None:
    """What is read is the file as it is now."""
    file = written(tmp_path / "a.json", b'{"requests": [')
    trace = load(tmp_path)
    with pytest.raises(TraceError):
        trace[0]
    written(file, weka_bytes("mended"))
    assert trace[0].id == "mended"


# --- Content hash ---------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of two files, one of them a level down."""
    written(tmp_path / "set" / "a.json", weka_bytes("a"))
    written(tmp_path / "set" / "deep" / "b.jsonl", LINES)
    return tmp_path / "set"


def test_the_hash_of_a_copy_is_the_same(folder: Path) -> None:
    """The content hash does not depend on where a set lies."""
    copy = shutil.copytree(folder, folder.parent / "elsewhere" / "copy")
    assert content_hash(load(copy)) == content_hash(load(folder))


def test_the_hash_has_64_hexadecimal_digits(folder: Path) -> None:
    """The content hash is a SHA-256 in hexadecimal."""
    assert len(bytes.fromhex(content_hash(load(folder)))) == 32


def one_byte(folder: Path) -> None:
    """Change one byte of a file."""
    file = folder / "deep" / "b.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"osl":3', b'"osl":4', 1))


@pytest.mark.parametrize(
    "change",
    [
        one_byte,
        lambda folder: (folder / "a.json").rename(folder / "aa.json"),
        lambda folder: (folder / "a.json").unlink(),
        lambda folder: shutil.copy(folder / "a.json", folder / "c.json"),
    ],
    ids=["one byte", "name", "a file less", "a file more"],
)
def test_the_hash_sees_every_change(folder: Path, change: Callable[[Path], object]) -> None:
    """A changed byte, a changed name, and a file more or less change the content hash."""
    before = content_hash(load(folder))
    change(folder)
    assert content_hash(load(folder)) != before


def test_the_hash_is_of_the_files_not_of_what_was_read(folder: Path) -> None:
    """Reading sessions does not change the content hash."""
    trace = load(folder)
    before = content_hash(trace)
    list(trace)
    assert content_hash(trace) == before


def test_a_session_is_the_same_in_every_shape(tmp_path: Path) -> None:
    """A line, an entry of a list and a file of its own hold the same session."""
    shapes = {
        "file.json": weka_bytes("a"),
        "lines.jsonl": weka_bytes("a") + b"\n",
        "list.json": b"[" + weka_bytes("a") + b"]",
        "pretty.json": PRETTY,
    }
    read = {
        replace(load(written(tmp_path / name, data))[0], source="") for name, data in shapes.items()
    }
    assert len(read) == 1
