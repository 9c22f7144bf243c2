"""Files as streams: how they are found, unpacked and decoded, and what is seen in them."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import random
import sqlite3
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any

import orjson
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from command import agentreplay
from test_load import BOM, PRETTY, names, native_line, refusal, weka_bytes, weka_value, written

from agentreplay.errors import TraceError
from agentreplay.trace.files import is_trace_name
from agentreplay.trace.formats import native
from agentreplay.trace.load import FORMATS, content_hash, load, open_set
from agentreplay.trace.model import Session
from agentreplay.trace.tables import csv_rows, sqlite_rows

Rows = list[dict[str, Any]]

BROKEN = "lines of broken JSON, left out"
CUT = "packed files that are cut or damaged, read up to there"

TWO = native_line("a") + native_line("b")
MANY = b"".join(native_line(f"{random.Random(n).getrandbits(128):032x}") for n in range(2000))
"""Two thousand sessions whose names can't be packed."""

ROW: dict[str, Any] = {
    "call_type": "acompletion",
    "startTime": "2026-01-02 12:00:00",
    "endTime": "2026-01-02 12:00:03",
    "model": "m",
    "session_id": "s",
    "prompt_tokens": 100,
    "completion_tokens": 5,
}
"""A call in a log: `a_log` has several."""


def row(n: int, **fields: object) -> dict[str, Any]:
    return ROW | {"request_id": f"r{n}", "startTime": f"2026-01-02 12:00:{n:02}"} | fields


def a_log(*numbers: int) -> bytes:
    """A log of one session whose calls are on lines."""
    return b"".join(orjson.dumps(row(n)) + b"\n" for n in numbers)


def calls_of(path: Path, **options: Any) -> int:
    """The calls of the one session in a path."""
    (session,) = load(path, **options)
    return len(session.calls)


def zipped(path: Path, members: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def piped(data: bytes, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command with these bytes on its standard input."""
    ended = subprocess.run(
        [sys.executable, "-m", "agentreplay", *map(str, arguments)],
        input=data,
        capture_output=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "200"},
    )
    return subprocess.CompletedProcess(
        ended.args, ended.returncode, ended.stdout.decode(), ended.stderr.decode()
    )


# --- Packed files ---------------------------------------------------------------------------------

PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "gzip of several members": lambda data: b"".join(
        gzip.compress(data[at : at + 100]) for at in range(0, len(data), 100)
    ),
    "zstd of several frames": lambda data: b"".join(
        zstandard.compress(data[at : at + 100]) for at in range(0, len(data), 100)
    ),
    "gzip in gzip": lambda data: gzip.compress(gzip.compress(data)),
    "zstd in gzip": lambda data: gzip.compress(zstandard.compress(data)),
}
packings = pytest.mark.parametrize("pack", PACKINGS.values(), ids=PACKINGS.keys())


@packings
@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.json.zst", "x"])
def test_packing_is_seen_from_the_content(
    tmp_path: Path, pack: Callable[[bytes], bytes], name: str
) -> None:
    """Packed files are read whatever their names say."""
    trace = load(written(tmp_path / name, pack(TWO)))
    assert ([session.id for session in trace], trace.skipped, trace.notes) == (["a", "b"], {}, {})


@packings
@pytest.mark.parametrize(
    "data",
    [PRETTY, BOM + PRETTY, b"[" + weka_bytes("a") + b"]", weka_bytes("a")],
    ids=["pretty", "BOM", "list", "object"],
)
def test_a_packed_document_is_read(
    tmp_path: Path, pack: Callable[[bytes], bytes], data: bytes
) -> None:
    """A document may be packed as lines may."""
    assert names(written(tmp_path / "x.json.gz", pack(data))) == ["a"]


def test_packed_files_of_a_folder_are_found(tmp_path: Path) -> None:
    """In a folder the suffix of a packing may come behind the suffix of a trace."""
    written(tmp_path / "a.jsonl.gz", gzip.compress(native_line("a")))
    written(tmp_path / "b.json.zst", zstandard.compress(weka_bytes("b")))
    written(tmp_path / "c.txt.gz", gzip.compress(native_line("c")))
    written(tmp_path / "d.gz", gzip.compress(native_line("d")))
    assert names(tmp_path) == ["a", "b"]


def test_a_file_in_a_folder_may_be_packed_without_saying_so(tmp_path: Path) -> None:
    """A packed file in a folder needs no suffix of its packing."""
    written(tmp_path / "a.json", gzip.compress(weka_bytes("a")))
    assert names(tmp_path) == ["a"]


def test_a_session_of_a_packed_file_knows_its_line(tmp_path: Path) -> None:
    """The source of a session in a packed file is the file with the line."""
    file = written(tmp_path / "x.jsonl.gz", gzip.compress(b"\n" + TWO))
    assert [session.source for session in load(file)] == [f"{file}:2", f"{file}:3"]


def as_it_comes(data: bytes) -> bytes:
    """Packed with zstd by a program that writes what it has, now and then, with a checksum."""
    packer = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    flush = zstandard.COMPRESSOBJ_FLUSH_BLOCK
    parts = [data[at : at + 5000] for at in range(0, len(data), 5000)]
    return b"".join(packer.compress(part) + packer.flush(flush) for part in parts) + packer.flush()


def unpacked(data: bytes, pack: Callable[[bytes], bytes]) -> bytes:
    """What the libraries themselves get out of a cut file."""
    if pack is gzip.compress:
        return zlib.decompressobj(31).decompress(data)
    return zstandard.ZstdDecompressor().decompressobj().decompress(data)


either_way = pytest.mark.parametrize("pack", [gzip.compress, as_it_comes], ids=["gzip", "zstd"])


@either_way
@pytest.mark.parametrize("lost", [1, 8, 30, 1000, 20_000])
def test_of_a_cut_file_all_that_came_is_read(
    tmp_path: Path, pack: Callable[[bytes], bytes], lost: int
) -> None:
    """Of a packed file without its end every whole line that can be unpacked is read."""
    packed = pack(MANY)[:-lost]
    there = unpacked(packed, pack).count(b"\n")
    assert 100 < there <= len(load(written(tmp_path / "x.jsonl", packed)))


@either_way
@pytest.mark.parametrize("lost", [30, 1000])
def test_a_cut_file_is_noted(tmp_path: Path, pack: Callable[[bytes], bytes], lost: int) -> None:
    """That the end of a packed file is missing is said."""
    file = written(tmp_path / "x.jsonl", pack(MANY)[:-lost])
    assert load(file).notes[str(file)][CUT] == 1


def test_of_a_small_cut_file_all_that_came_is_read(tmp_path: Path) -> None:
    """Also of a file that is cut in its first kilobytes."""
    packed = gzip.compress(TWO * 5)[:-9]
    there = unpacked(packed, gzip.compress).count(b"\n")
    assert 5 < there <= len(load(written(tmp_path / "x.jsonl", packed)))


@pytest.mark.parametrize("more", [b"garbage after the end", bytes(512)], ids=["garbage", "zeros"])
def test_what_follows_a_packed_file_costs_nothing(tmp_path: Path, more: bytes) -> None:
    """Bytes behind the end of a gzip file leave what came before readable."""
    assert names(written(tmp_path / "x.jsonl.gz", gzip.compress(TWO) + more)) == ["a", "b"]


@either_way
def test_a_damaged_file_is_read_up_to_there(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """Damage within a packed file ends the reading of it, is noted and no error."""
    packed = pack(MANY)
    middle = len(packed) // 2
    file = written(tmp_path / "x", packed[:middle] + bytes(200) + packed[middle + 200 :])
    trace = load(file)
    assert 100 < len(trace) < 2000
    assert trace.notes[str(file)][CUT] == 1


@pytest.mark.parametrize("size", [3, 12])
def test_a_packed_file_that_is_hardly_there_is_named(tmp_path: Path, size: int) -> None:
    """A packed file of which nothing can be read is an error that names it."""
    file = written(tmp_path / "x.jsonl.gz", gzip.compress(TWO)[:size])
    assert refusal(file).startswith(f"{file}: no usable session ({file}: broken packing: ")


def test_a_cut_document_is_named(tmp_path: Path) -> None:
    """A packed document without its end is no document."""
    file = written(tmp_path / "x.json.gz", gzip.compress(b"[" + MANY.replace(b"\n", b",") + b"1]"))
    file.write_bytes(file.read_bytes()[:-2000])
    assert "broken packing" in refusal(file)


@either_way
def test_a_cut_log_is_read_up_to_there(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """A packed log without its end gives the calls that came."""
    data = b"".join(
        orjson.dumps(row(n % 60, request_id=f"{random.Random(n).getrandbits(128):032x}")) + b"\n"
        for n in range(1000)
    )
    assert 100 < calls_of(written(tmp_path / "x.jsonl", pack(data)[:-3000])) < 1000


def test_a_cut_table_is_read_up_to_there(tmp_path: Path) -> None:
    """A packed table without its end gives the rows that came, and no crash."""
    data = b"".join(
        b"%032x,acompletion,2026-01-02 12:00:%02d,m,s,100,5\n" % (n * 977**9 % 2**128, n % 60)
        for n in range(2000)
    )
    head = b"request_id,call_type,startTime,model,session_id,prompt_tokens,completion_tokens\n"
    packed = gzip.compress(head + data)
    assert 100 < calls_of(written(tmp_path / "x.csv.gz", packed[:-5000])) < 2000


@pytest.mark.parametrize("data", [TWO, MANY], ids=["small", "large"])
def test_strict_refuses_a_cut_file(tmp_path: Path, data: bytes) -> None:
    """With `strict` a packed file without its end is an error that names it."""
    file = written(tmp_path / "x.jsonl.gz", gzip.compress(data)[:-20])
    assert refusal(file, strict=True).startswith(str(file))


def test_an_unknown_packing_is_named(tmp_path: Path) -> None:
    """A file packed in another way is no JSON, and said to be none."""
    file = written(tmp_path / "x.jsonl.bz2", bz2.compress(TWO))
    assert f"{file}: it is no JSON" in refusal(file)


# --- Archives -------------------------------------------------------------------------------------


def test_all_members_of_an_archive_are_read(tmp_path: Path) -> None:
    """The traces in an archive are one set, by their names; other members don't count."""
    members = {
        "deep/b.jsonl": TWO,
        "a.json": weka_bytes("w"),
        "c.jsonl.gz": gzip.compress(native_line("packed")),
        "d.jsonl": b"\xff\xfe" + native_line("wide").decode().encode("utf-16-le"),
        "README.md": weka_bytes("no"),
        "history.jsonl": native_line("no"),
        "x.meta.json": weka_bytes("no"),
    }
    trace = load(zipped(tmp_path / "x.zip", members))
    assert [session.id for session in trace] == ["w", "packed", "wide", "a", "b"]
    assert trace.skipped == {}


def test_archives_of_a_folder_are_read(tmp_path: Path) -> None:
    """An archive in a folder counts as the files that are in it."""
    zipped(tmp_path / "b.zip", {"x.jsonl": native_line("b")})
    written(tmp_path / "a.json", weka_bytes("a"))
    trace = load(tmp_path)
    assert [session.id for session in trace] == ["a", "b"]
    assert trace.files == [tmp_path / "a.json", tmp_path / "b.zip"]


def test_an_archive_is_seen_from_its_content(tmp_path: Path) -> None:
    """An archive needs no suffix."""
    assert names(zipped(tmp_path / "export", {"x.jsonl": TWO})) == ["a", "b"]


def test_a_session_of_an_archive_knows_its_place(tmp_path: Path) -> None:
    """The source of a session in an archive is archive, member and line."""
    file = zipped(tmp_path / "x.zip", {"in/y.jsonl": TWO})
    assert [session.source for session in load(file)] == [
        f"{file}/in/y.jsonl:1",
        f"{file}/in/y.jsonl:2",
    ]


@pytest.mark.parametrize("name", ["/etc/x.jsonl", "../x.jsonl"])
def test_a_member_is_named_after_its_archive(tmp_path: Path, name: str) -> None:
    """A member whose name looks like another place is still said to be in its archive."""
    file = zipped(tmp_path / "x.zip", {name: native_line("a")})
    assert load(file)[0].source.startswith(f"{file}/")


def test_a_broken_member_costs_itself_only(tmp_path: Path) -> None:
    """Damage within a member is noted under its name; the other members are read."""
    file = zipped(tmp_path / "x.zip", {"a.jsonl": MANY, "b.jsonl": native_line("b")})
    data = bytearray(file.read_bytes())
    data[20_000:20_200] = bytes(200)
    file.write_bytes(data)
    trace = load(file)
    ids = [session.id for session in trace]
    assert (ids[-1], 100 < len(ids) < 2000) == ("b", True)
    assert trace.notes[f"{file}/a.jsonl"][CUT] == 1


def test_a_broken_archive_is_named(tmp_path: Path) -> None:
    """An archive without its end is skipped and named; other files are read."""
    file = zipped(tmp_path / "x.zip", {"a.jsonl": MANY})
    file.write_bytes(file.read_bytes()[:-30])
    written(tmp_path / "y.json", weka_bytes("y"))
    trace = load(tmp_path)
    assert [session.id for session in trace] == ["y"]
    assert trace.skipped[str(file)].startswith("broken archive: ")


def test_a_member_that_is_locked_is_named(tmp_path: Path) -> None:
    """A member that needs a password is skipped and named."""
    file = zipped(tmp_path / "x.zip", {"a.jsonl": TWO})
    data = bytearray(file.read_bytes())
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(header) + flags] |= 1
    file.write_bytes(data)
    trace = open_set(file)
    assert list(trace.skipped) == [f"{file}/a.jsonl"]
    assert "password" in trace.skipped[f"{file}/a.jsonl"]


@pytest.mark.parametrize("members", [{}, {"README.md": b"text"}], ids=["empty", "other files"])
def test_an_archive_without_traces_is_refused(tmp_path: Path, members: Mapping[str, bytes]) -> None:
    """An archive in which there is no trace is an error that says so, and not that it is empty."""
    file = zipped(tmp_path / "x.zip", members)
    assert "no trace files" in refusal(file)


# --- Encodings ------------------------------------------------------------------------------------

UTF16: dict[str, Callable[[bytes], bytes]] = {
    "little": lambda data: b"\xff\xfe" + data.decode().encode("utf-16-le"),
    "big": lambda data: b"\xfe\xff" + data.decode().encode("utf-16-be"),
}
utf16 = pytest.mark.parametrize("encode", UTF16.values(), ids=UTF16.keys())


@utf16
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (TWO, ["a", "b"]),
        (TWO.replace(b"\n", b"\r\n"), ["a", "b"]),
        (PRETTY, ["a"]),
        (b"[" + weka_bytes("a") + b"]", ["a"]),
        (weka_bytes("\N{PILE OF POO}\u2028"), ["\N{PILE OF POO}\u2028"]),
    ],
    ids=["lines", "CRLF", "pretty", "list", "beyond ASCII"],
)
def test_wide_text_is_read(
    tmp_path: Path, encode: Callable[[bytes], bytes], data: bytes, expected: list[str]
) -> None:
    """UTF-16 with its mark is read in both byte orders."""
    assert names(written(tmp_path / "x.jsonl", encode(data))) == expected


@utf16
def test_wide_text_may_be_packed(tmp_path: Path, encode: Callable[[bytes], bytes]) -> None:
    """UTF-16 is seen behind a packing too."""
    assert names(written(tmp_path / "x.jsonl", gzip.compress(encode(TWO)))) == ["a", "b"]


@utf16
def test_wide_text_may_be_cut(tmp_path: Path, encode: Callable[[bytes], bytes]) -> None:
    """UTF-16 that ends in the middle of a sign costs its last line only."""
    assert names(written(tmp_path / "x.jsonl", encode(TWO)[:-5])) == ["a"]


@utf16
def test_a_wide_log_is_read(tmp_path: Path, encode: Callable[[bytes], bytes]) -> None:
    """Logs are read as sessions are."""
    assert calls_of(written(tmp_path / "x.jsonl", encode(a_log(1, 2)))) == 2


LOGS = {
    "BOM": BOM + a_log(1, 2),
    "CRLF": a_log(1, 2).replace(b"\n", b"\r\n"),
    "blank lines": b"\n \r\n" + a_log(1, 2).replace(b"\n", b"\n\n \t\r\n"),
    "no line end at the end": a_log(1, 2).rstrip(),
    "separators of Unicode": a_log(1) + orjson.dumps(row(2, note="\u2028\u2029\x85\x0b\x0c")),
    "list": b"[" + a_log(1, 2).rstrip().replace(b"\n", b",") + b"]",
    "list over lines": b"[\n" + a_log(1, 2).rstrip().replace(b"\n", b",\n") + b"\n]\n",
    "pretty": b"\n".join(orjson.dumps(row(n), option=orjson.OPT_INDENT_2) for n in (1, 2)),
    "one after the other": a_log(1, 2).replace(b"\n", b" "),
    "bytes that are no UTF-8": a_log(1) + orjson.dumps(row(2, note="~")).replace(b"~", b"\xff\xfe"),
    "half a pair": a_log(1) + orjson.dumps(row(2, note="~")).replace(b"~", b"\\ud83d"),
    "no number": a_log(1) + orjson.dumps(row(2, spend=0.5)).replace(b"0.5", b"NaN"),
    "infinity": a_log(1) + orjson.dumps(row(2, spend=0.5)).replace(b"0.5", b"-Infinity"),
    "null": a_log(1) + b"null\n" + a_log(2),
}


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ""])
@pytest.mark.parametrize("data", LOGS.values(), ids=LOGS.keys())
def test_logs_of_every_shape_are_read(tmp_path: Path, suffix: str, data: bytes) -> None:
    """A log is read whatever its line ends, marks and separators, and with replacements."""
    trace = load(written(tmp_path / f"x{suffix}", data))
    assert (len(trace[0].calls), trace.skipped) == (2, {})
    assert all(BROKEN not in notes for notes in trace.notes.values())


@pytest.mark.parametrize(
    "data", [LOGS[name] for name in ("half a pair", "no number", "bytes that are no UTF-8")]
)
def test_sessions_with_the_same_flaws_are_read(tmp_path: Path, data: bytes) -> None:
    """What is repaired in a log is repaired in a session."""
    flaw = orjson.dumps(weka_value("a", note="~")).replace(b'"~"', b'NaN,"\\ud83d":"\xff"')
    assert names(written(tmp_path / "x.jsonl", flaw + b"\n" + native_line("b"))) == ["a", "b"]


SHAPES: dict[str, Callable[[bytes], bytes]] = {
    "line": lambda data: data + b"\n",
    "lines": lambda data: data + b"\n" + data + b"\n",
    "list": lambda data: b"[" + data + b"]",
    "pretty": lambda data: data.replace(b",", b",\n"),
    "pretty ones": lambda data: data.replace(b",", b",\n") * 2,
}
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())


@shapes
def test_half_a_pair_comes_to_no_session(tmp_path: Path, shape: Callable[[bytes], bytes]) -> None:
    """A lone surrogate in a name is replaced, so that the session can be written."""
    data = shape(weka_bytes("~").replace(b"~", b"\\ud83d"))
    for session in load(written(tmp_path / "x.jsonl", data)):
        assert native.line(session).isascii()


@shapes
@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
@pytest.mark.parametrize("name", [b'"t":0.0', b'"api_time":1.0'])
def test_what_is_no_number_comes_to_no_session(
    tmp_path: Path, shape: Callable[[bytes], bytes], name: bytes, value: bytes
) -> None:
    """NaN and infinities are no times in any shape of file: they count as absent."""
    field = name.partition(b":")[0] + b":" + value
    data = shape(weka_bytes("a").replace(name, field))
    trace = open_set(written(tmp_path / "x.jsonl", data))
    for session in trace.readable():
        assert [(call.start_s, call.timed) for call in session.calls] == [(0.0, False)]
        assert session.calls[0].end_s < 1


# --- Broken lines ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "broken",
    [b'{"a": \n', b"{}}\n", b"text\n", b"\x00\n", b'{"a": 1} {"b": 2}\n', b"[" * 10_000 + b"\n",
     b'{"a":' * 10_000 + b"\n"],
    ids=["cut", "too much", "text", "binary", "two objects", "deep list", "deep object"],
)  # fmt: skip
def test_a_broken_line_of_a_log_is_counted(tmp_path: Path, broken: bytes) -> None:
    """A broken line in the middle costs itself only, and is counted with its number."""
    file = written(tmp_path / "x.jsonl", a_log(1) + b"\n" + broken + a_log(2))
    trace = load(file)
    assert len(trace[0].calls) == 2
    assert trace.notes[str(file)][BROKEN] == 1
    assert trace.notes[str(file)].lines[BROKEN] == [3]


def test_deep_nesting_is_no_crash(tmp_path: Path) -> None:
    """A line that is nested 10,000 levels deep is JSON, but none that can be read."""
    deep = orjson.dumps(row(2, x=1)).replace(b'"x":1', b'"x":' + b"[" * 10_000 + b"]" * 10_000)
    file = written(tmp_path / "x.jsonl", a_log(1) + deep + b"\n" + a_log(3))
    trace = load(file)
    assert len(trace[0].calls) == 2
    assert trace.notes[str(file)].lines[BROKEN] == [2]


@pytest.mark.parametrize("shape", [b"%b", b"[%b]", b"\n%b\n%b"])
def test_a_deeply_nested_document_is_named(tmp_path: Path, shape: bytes) -> None:
    """A document that is nested too deeply is refused by name."""
    deep = b'{"a":' * 10_000 + b"1" + b"}" * 10_000
    file = written(tmp_path / "x.json", shape.replace(b"%b", deep))
    assert "broken JSON" in refusal(file)


def test_a_session_may_nest_its_subagents(tmp_path: Path) -> None:
    """Subagents of subagents are read as deep as JSON goes."""
    inner = weka_bytes("a").partition(b'"requests":')[2][:-1]
    depth = 400
    entry = b'[{"t":0,"type":"subagent","requests":' * depth + inner + b"}]" * depth
    file = written(tmp_path / "x.json", weka_bytes("a").replace(inner, entry))
    assert calls_of(file) == 1


def test_a_truncated_last_line_of_a_log_is_counted(tmp_path: Path) -> None:
    """A log that is still being written ends in half a line, which is counted with its number."""
    file = written(tmp_path / "x.jsonl", a_log(1, 2, 3)[:-40])
    trace = load(file)
    assert len(trace[0].calls) == 2
    assert trace.notes[str(file)].lines[BROKEN] == [3]


@pytest.mark.parametrize("rest", [b'text": "of a line"}\n', b'"x", "y": 1}\n', b"more}\n"])
def test_a_first_line_without_its_beginning_is_counted(tmp_path: Path, rest: bytes) -> None:
    """A log whose beginning was cut off starts in the middle of a line."""
    file = written(tmp_path / "x.jsonl", rest + a_log(1, 2))
    trace = load(file)
    assert len(trace[0].calls) == 2
    assert trace.notes[str(file)].lines[BROKEN] == [1]


def test_a_broken_first_line_is_counted(tmp_path: Path) -> None:
    """Lines are lines, also where the first one is broken."""
    file = written(tmp_path / "x.jsonl", b'{"a": \n' + a_log(1, 2))
    trace = load(file)
    assert len(trace[0].calls) == 2
    assert trace.notes[str(file)].lines[BROKEN] == [1]


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "packed"])
@pytest.mark.parametrize("data", [TWO, a_log(1, 2)], ids=["sessions", "log"])
def test_strict_refuses_a_broken_line(
    tmp_path: Path, pack: Callable[[bytes], bytes], data: bytes
) -> None:
    """With `strict` a broken line is an error with its number, packed or not."""
    file = written(tmp_path / "x.jsonl", pack(data.replace(b"\n", b"\n{\n", 1)))
    with pytest.raises(TraceError, match=r"x\.jsonl:2: broken JSON"):
        list(load(file, strict=True))


def test_a_line_may_be_very_long(tmp_path: Path) -> None:
    """A line of 50 MB is a line like others."""
    long = orjson.dumps(row(2, note="x" * 50_000_000))
    assert calls_of(written(tmp_path / "x.jsonl", a_log(1) + long + b"\n" + a_log(3))) == 3


def test_a_very_long_session_is_read(tmp_path: Path) -> None:
    """A session of 50 MB on one line is a session like others, also in a folder."""
    written(tmp_path / "x.json", weka_bytes("a", note="x" * 50_000_000))
    assert names(tmp_path) == ["a"]


def test_lines_end_with_line_feeds_only(tmp_path: Path) -> None:
    """Lines are numbered as an editor numbers them: other separators end none, blank ones count."""
    strange = b"{\x0b{\x0c{\xc2\x85{\xe2\x80\xa8{\r{\n"
    file = written(tmp_path / "x.jsonl", a_log(1) + b"\r\n \t\n" + strange + a_log(2))
    trace = load(file)
    assert len(trace[0].calls) == 2
    assert (trace.notes[str(file)][BROKEN], trace.notes[str(file)].lines[BROKEN]) == (1, [4])


# --- Documents ------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [{}, {"a": 1}], ids=["empty", "small"])
@pytest.mark.parametrize("indent", [1, 2, 4])
def test_pretty_objects_may_hold_lines_that_are_objects(
    tmp_path: Path, inner: dict[str, int], indent: int
) -> None:
    """Objects printed over lines are documents, also where one of the lines is an object too."""
    texts = [json.dumps(row(n, tools=["x", "~"]), indent=indent) for n in (1, 2)]
    data = "\n".join(text.replace('"~"', json.dumps(inner)) for text in texts)
    assert calls_of(written(tmp_path / "x.jsonl", data.encode())) == 2


def test_pretty_objects_are_numbered(tmp_path: Path) -> None:
    """Of several objects over lines each is known by its place among them."""
    data = b"\n".join(orjson.dumps(weka_value(name), option=orjson.OPT_INDENT_2) for name in "abc")
    file = written(tmp_path / "x.jsonl", data)
    assert [session.source for session in load(file)] == [f"{file}:{n}" for n in (1, 2, 3)]


def test_pretty_objects_are_read_up_to_a_broken_one(tmp_path: Path) -> None:
    """Of objects over lines of which the last is cut the others are read, and the cut is said."""
    pretty = b"\n".join(orjson.dumps(row(n), option=orjson.OPT_INDENT_2) for n in (1, 2, 3))
    file = written(tmp_path / "x.jsonl", pretty[:-50])
    trace = load(file)
    assert len(trace[0].calls) == 2
    assert trace.skipped or trace.notes


# --- Tables ---------------------------------------------------------------------------------------


def rows_of(data: bytes) -> list[tuple[int, dict[str, str]]]:
    return list(csv_rows(BufferedReader(BytesIO(data))))


def test_rows_of_a_table_are_texts_with_line_numbers() -> None:
    """A row is a dict of texts under the header's names, with the number of its last line."""
    assert rows_of(b'a,b\n1,2\n\n"x,\r\ny","say ""z"""\n') == [
        (2, {"a": "1", "b": "2"}),
        (5, {"a": "x,\r\ny", "b": 'say "z"'}),
    ]


def test_rows_may_have_too_few_or_too_many_cells() -> None:
    """Missing cells are empty, and cells without a header are left out."""
    assert rows_of(b"a,b\n1\n1,2,3\n") == [(2, {"a": "1", "b": ""}), (3, {"a": "1", "b": "2"})]


def test_bytes_that_are_no_text_are_replaced_in_tables() -> None:
    """Zeros are dropped and bytes that are no UTF-8 replaced."""
    assert rows_of(b"a,b\n\x001,\xff\n") == [(2, {"a": "1", "b": "\ufffd"})]


def test_a_cell_may_be_large() -> None:
    """A cell holds a megabyte like any text."""
    assert rows_of(b"a,b\n1," + b"x" * 1_000_000 + b"\n")[0][1]["b"] == "x" * 1_000_000


def table(rows: Rows, end: bytes = b"\n") -> bytes:
    head = list(rows[0])
    return b"".join(
        b",".join(str(cell).encode() for cell in cells) + end
        for cells in [head, *(each.values() for each in rows)]
    )


@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("before", [b"", BOM], ids=["plain", "BOM"])
def test_a_table_may_be_a_log(tmp_path: Path, before: bytes, end: bytes) -> None:
    """A log may be a table with a header."""
    file = written(tmp_path / "x.csv", before + table([row(1), row(2)], end))
    assert calls_of(file) == 2


def test_a_wide_packed_table_is_read(tmp_path: Path) -> None:
    """A table may be UTF-16, as a spreadsheet writes it, and packed."""
    data = gzip.compress(UTF16["little"](table([row(1), row(2)])))
    assert calls_of(written(tmp_path / "x.csv.gz", data)) == 2


# --- Parquet --------------------------------------------------------------------------------------


def in_parquet(path: Path, rows: Sequence[Mapping[str, Any]], rows_a_group: int = 100) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist(list(rows)), path, row_group_size=rows_a_group
    )
    return path


def with_a_subagent(name: str) -> dict[str, Any]:
    """A Weka session as a set has it: an `in` that is a float somewhere makes all of them so."""
    request = {"t": 0.0, "type": "n", "model": "m", "in": 8.0, "out": 3, "hash_ids": [1, 2]}
    inner = request | {"t": 0.0, "api_time": 2.0, "hash_ids": [7, 8]}
    agent = {"t": 5.0, "type": "subagent", "agent_id": "x", "requests": [inner]}
    last = request | {"t": 9.0, "in": 12.0, "hash_ids": [1, 2, 3], "api_time": 1.0}
    return weka_value(name, requests=[request | {"api_time": 1.0}, agent, last])


def test_rows_of_parquet_are_sessions(tmp_path: Path) -> None:
    """In a column store every key is in every row: nulls are absent, and a float is a length."""
    values = [with_a_subagent("a"), weka_value("b")]
    file = in_parquet(tmp_path / "x.parquet", values)
    read = pyarrow.parquet.read_table(file).to_pylist()
    assert read[0]["requests"][1]["in"] is None  # as published sets have it
    assert isinstance(read[1]["requests"][0]["in"], float)
    as_json = load(written(tmp_path / "x.jsonl", b"\n".join(map(orjson.dumps, values))))
    assert [replace(session, source="") for session in load(file)] == [
        replace(session, source="") for session in as_json
    ]
    assert load(file).notes == {}


def test_a_parquet_file_may_have_many_rows(tmp_path: Path) -> None:
    """Rows of all groups are read in order and known by their numbers."""
    file = in_parquet(tmp_path / "x.parquet", [weka_value(f"s{n}") for n in range(700)], 90)
    trace = load(file)
    assert [session.id for session in trace] == [f"s{n}" for n in range(700)]
    assert trace[699].source == f"{file}:700"


def test_parquet_is_seen_from_the_content(tmp_path: Path) -> None:
    """A parquet file is read whatever its name."""
    assert names(in_parquet(tmp_path / "x.json", [weka_value("a")])) == ["a"]


def test_parquet_may_be_in_an_archive(tmp_path: Path) -> None:
    """A parquet file may be a member of an archive, or packed."""
    data = in_parquet(tmp_path / "x.parquet", [weka_value("a")]).read_bytes()
    assert names(zipped(tmp_path / "x.zip", {"x.parquet": data})) == ["a"]
    for pack in (gzip.compress, zstandard.compress):
        assert names(written(tmp_path / "x.parquet.gz", pack(data))) == ["a"]


def test_a_broken_parquet_file_is_named(tmp_path: Path) -> None:
    """A parquet file without its end is skipped and named."""
    file = in_parquet(tmp_path / "x.parquet", [weka_value("a")])
    file.write_bytes(file.read_bytes()[:-10])
    assert f"{file}: broken parquet file: " in refusal(file)


def test_a_cut_packed_parquet_file_is_named(tmp_path: Path) -> None:
    """A packed parquet file without its end is skipped and named."""
    rows = [weka_value(f"{random.Random(n).getrandbits(128):032x}") for n in range(500)]
    file = in_parquet(tmp_path / "x.parquet", rows)
    file.write_bytes(gzip.compress(file.read_bytes())[:-100])
    assert refusal(file).startswith(f"{file}: no usable session ({file}: broken ")


def test_parquet_of_something_else_is_named(tmp_path: Path) -> None:
    """A parquet file of other rows is of no known format."""
    file = in_parquet(tmp_path / "x.parquet", [{"prompt": "x", "n": 1}])
    assert "no known trace format" in refusal(file)


# --- Databases ------------------------------------------------------------------------------------


def database(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as opened:
        for statement in statements:
            opened.execute(statement)
        opened.commit()
    return path


A_TABLE = ("CREATE TABLE session (id TEXT, data TEXT)",)


def test_rows_of_a_database_name_their_table(tmp_path: Path) -> None:
    """A row comes with its table, and its JSON decoded where it is some."""
    file = database(
        tmp_path / "x.db",
        "CREATE TABLE message (id TEXT, data TEXT)",
        *A_TABLE,
        "CREATE TABLE other (id TEXT)",
        "INSERT INTO other VALUES ('o')",
        "INSERT INTO message VALUES ('m', '{\"a\": [1]}'), ('n', 'text'), ('p', NULL)",
        "INSERT INTO session VALUES ('s', '5')",
    )
    assert list(sqlite_rows(file)) == [
        (1, {"table": "session", "id": "s", "data": 5}),
        (2, {"table": "message", "id": "m", "data": {"a": [1]}}),
        (3, {"table": "message", "id": "n", "data": "text"}),
        (4, {"table": "message", "id": "p", "data": None}),
    ]


@pytest.mark.parametrize("name", ["a?b.db", "a#b.db", "a%20b.db", "a b.db", "ä.db"])
def test_a_database_may_have_any_name(tmp_path: Path, name: str) -> None:
    """Signs that mean something in an address mean nothing in a name."""
    file = database(tmp_path / name, *A_TABLE, "INSERT INTO session VALUES ('s', '5')")
    assert len(list(sqlite_rows(file))) == 1


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_reading_a_database_leaves_nothing_beside_it(tmp_path: Path, mode: str) -> None:
    """An agent's folder is the same after its database was read."""
    file = database(tmp_path / "x.db", f"PRAGMA journal_mode = {mode}", *A_TABLE)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    list(sqlite_rows(file))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_database_in_use_is_read(tmp_path: Path) -> None:
    """What an agent that is at work has written last is read too."""
    with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as opened:
        opened.execute("PRAGMA journal_mode = wal")
        opened.execute(A_TABLE[0])
        opened.execute("INSERT INTO session VALUES ('s', '5')")
        assert len(list(sqlite_rows(tmp_path / "x.db"))) == 1


def test_text_in_a_database_may_be_broken(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 cost no more than themselves."""
    file = database(
        tmp_path / "x.db",
        *A_TABLE,
        "INSERT INTO session VALUES (CAST(x'61ff' AS TEXT), '1'), ('s', '5')",
    )
    assert [row["id"] for _, row in sqlite_rows(file)] == ["a\ufffd", "s"]


def test_a_database_without_the_tables_is_refused(tmp_path: Path) -> None:
    """A database of something else is of no known format."""
    file = database(tmp_path / "x.db", "CREATE TABLE other (id TEXT)")
    assert f"{file}: no known trace format" in refusal(file)


@pytest.mark.parametrize("size", [16, 50, 5000])
def test_a_broken_database_is_named(tmp_path: Path, size: int) -> None:
    """A file that begins like a database and is none is skipped and named."""
    data = database(tmp_path / "y.db", *A_TABLE).read_bytes()[:size]
    file = written(tmp_path / "x.db", data if size < 100 else data[:16] + b"x" * size)
    assert f"{file}: broken database: " in refusal(file)


@pytest.mark.parametrize("pack", ["gzip", "zip", "stdin"])
def test_a_database_must_be_a_file_of_its_own(tmp_path: Path, pack: str) -> None:
    """A packed database, a member of an archive and one in a pipe are refused for that."""
    data = database(tmp_path / "y.db", *A_TABLE).read_bytes()
    if pack == "gzip":
        said = refusal(written(tmp_path / "x.db.gz", gzip.compress(data)))
    elif pack == "zip":
        said = refusal(zipped(tmp_path / "x.zip", {"x.db": data}))
    else:
        said = piped(data, "inspect", "-").stderr
    assert "a database can only be read as a file of its own" in said


# --- What is found --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    "a.json a.jsonl a.ndjson a.har a.flow a.csv a.parquet a.db a.zip a.jsonl.gz a.json.zst "
    "b.history.jsonl a.b.json".split(),
)
def test_names_of_traces(name: str) -> None:
    """These names of files in a folder are looked at."""
    assert is_trace_name(name)


@pytest.mark.parametrize(
    "name",
    "a.md a.txt a.gz a.zst a.py a json .json a.json.bak agent-1.meta.json history.jsonl "
    "sessions-index.json session_index.jsonl journal.jsonl settings.json".split(),
)
def test_names_of_other_files(name: str) -> None:
    """These are not: other files, and what agents keep beside their sessions."""
    assert not is_trace_name(name)


def test_what_agents_keep_beside_is_not_reported(tmp_path: Path) -> None:
    """Such files are neither read nor skipped."""
    beside = "history.jsonl settings.json sessions-index.json deep/agent-1.meta.json".split()
    for name in beside:
        written(tmp_path / name, b'{"display": "x"}\n')
    written(tmp_path / "deep" / "s.jsonl", a_log(1))
    trace = load(tmp_path)
    assert (trace.files, trace.skipped) == ([tmp_path / "deep" / "s.jsonl"], {})


def test_a_file_that_is_named_is_read_whatever_its_name(tmp_path: Path) -> None:
    """What is left alone in a folder is looked at where it is named."""
    assert names(written(tmp_path / "history.jsonl", native_line("a"))) == ["a"]


def test_a_mixed_folder_is_one_set(tmp_path: Path) -> None:
    """Sessions, logs, packed files, tables and archives are one set, whatever is broken in it."""
    written(tmp_path / "a.json", weka_bytes("weka"))
    written(tmp_path / "b.jsonl.gz", gzip.compress(native_line("native")))
    written(tmp_path / "c.jsonl", a_log(1))
    in_parquet(tmp_path / "d.parquet", [weka_value("parquet")])
    zipped(tmp_path / "e.zip", {"x.jsonl": native_line("zip")})
    written(tmp_path / "f.csv", table([row(2, session_id="t"), row(3, session_id="t")]))
    broken = written(tmp_path / "g.jsonl", b"text")
    trace = load(tmp_path)
    assert sorted(session.id for session in trace) == [
        "native", "parquet", "s", "t", "weka", "zip",
    ]  # fmt: skip
    assert list(trace.skipped) == [str(broken)]


def test_a_log_in_a_folder_may_speak_of_requests(tmp_path: Path) -> None:
    """A document on one line is no session because a field of it is called as a session's."""
    tools = [{"name": "fetch", "properties": {"requests": {"type": "array"}, "block_size": {}}}]
    written(tmp_path / "a.json", orjson.dumps(row(1, tools=tools)))
    assert names(tmp_path) == ["s"]


def test_patterns_name_files(tmp_path: Path) -> None:
    """A pattern names what matches it, by name, through all levels where it says so."""
    for name in ("b.jsonl", "a.jsonl", "c.txt", "deep/d.jsonl"):
        written(tmp_path / name, native_line(name))
    assert names(tmp_path / "*.jsonl") == ["a.jsonl", "b.jsonl"]
    assert names(tmp_path / "**" / "*.jsonl") == ["a.jsonl", "b.jsonl", "deep/d.jsonl"]
    assert names(tmp_path / "[ac].*") == ["a.jsonl", "c.txt"]


def test_a_pattern_may_match_folders(tmp_path: Path) -> None:
    """A folder that matches is searched as if it were named."""
    for name in ("p1/a.jsonl", "p1/x.md", "p2/b.jsonl"):
        written(tmp_path / name, native_line(name))
    assert names(tmp_path / "p*") == ["p1/a.jsonl", "p2/b.jsonl"]


@pytest.mark.parametrize("name", ["a[1].jsonl", "a*.jsonl", "a?.jsonl", "[x]/a.jsonl"])
def test_a_file_may_be_named_like_a_pattern(tmp_path: Path, name: str) -> None:
    """What is there is meant, whatever signs its name has."""
    assert names(written(tmp_path / name, native_line("a"))) == ["a"]


def test_a_pattern_without_a_match_is_refused(tmp_path: Path) -> None:
    """A pattern that matches nothing is an error with the pattern."""
    assert refusal(tmp_path / "*.har") == f"{tmp_path / '*.har'}: no such file or folder"


def test_a_file_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    """A file that is named itself, by its folder and by a pattern is one file."""
    file = written(tmp_path / "a.jsonl", native_line("a"))
    assert names(file, tmp_path, tmp_path / "*.jsonl", tmp_path / ".") == ["a"]


@pytest.mark.parametrize("path", ["~nobody-of-this-name/x", "x" * 300, "x/" * 3000])
def test_a_path_that_can_be_nothing_is_refused(path: str) -> None:
    """Someone's home that isn't there, and names too long for the disk, are no such file."""
    assert "no such file or folder" in refusal(Path(path))


def test_a_home_is_found(tmp_path: Path) -> None:
    """A tilde that no shell has replaced means the home folder."""
    written(tmp_path / "logs" / "a.jsonl", native_line("a"))
    ended = agentreplay("inspect", "~/logs", HOME=str(tmp_path))
    assert ended.returncode == 0, ended.stderr


# --- What a file is -------------------------------------------------------------------------------

CODEX = {
    "timestamp": "2026-01-02T12:00:00.000Z",
    "type": "session_meta",
    "payload": {"id": "c", "timestamp": "2026-01-02T12:00:00.000Z", "cwd": "/w"},
}


@pytest.mark.parametrize("codex_first", [True, False])
def test_two_candidates_are_both_named(tmp_path: Path, codex_first: bool) -> None:
    """A file with lines of two formats is an error that names both and the option."""
    codex = orjson.dumps(CODEX) + b"\n"
    data = codex + a_log(1) if codex_first else a_log(1) + codex
    file = written(tmp_path / "x.jsonl", data)
    assert refusal(file) == f"{file}: it may be codex or litellm: say which with --format"


def test_two_candidates_in_a_folder_are_asked_about(tmp_path: Path) -> None:
    """A file of two formats is not skipped: a wrong guess would be worse than a question."""
    written(tmp_path / "a.json", weka_bytes("a"))
    written(tmp_path / "x.jsonl", orjson.dumps(CODEX) + b"\n" + a_log(1))
    assert "it may be codex or litellm" in refusal(tmp_path)


def test_a_format_settles_it(tmp_path: Path) -> None:
    """With the format given, the lines of other formats are left out and counted."""
    file = written(tmp_path / "x.jsonl", orjson.dumps(CODEX) + b"\n" + a_log(1, 2))
    trace = load(file, form="litellm")
    assert (len(trace[0].calls), trace.formats) == (2, {str(file): "litellm"})
    assert trace.notes[str(file)].total() == 1


@pytest.mark.parametrize("form", ["weka", "litellm"])
def test_a_format_that_is_not_there_reads_nothing(tmp_path: Path, form: str) -> None:
    """A format that is insisted on is not replaced by the one that is seen."""
    file = written(tmp_path / "x.jsonl", TWO)
    with pytest.raises(TraceError):
        list(load(file, form=form))


def test_a_format_counts_for_all_files(tmp_path: Path) -> None:
    """A format that is insisted on is insisted on in each file of a folder."""
    written(tmp_path / "a.json", weka_bytes("a"))
    written(tmp_path / "b.jsonl", native_line("b"))
    trace = load(tmp_path, form="weka")
    assert [session.id for session in trace.readable()] == ["a"]
    assert list(trace.skipped) == [str(tmp_path / "b.jsonl")]


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    """A format that there isn't is an error that names those there are."""
    written(tmp_path / "a.json", weka_bytes("a"))
    with pytest.raises(TraceError) as raised:
        load(tmp_path, form="toml")
    assert str(raised.value) == (
        f"--format toml: there is no such format; known: {', '.join(FORMATS)}"
    )


def test_the_format_of_each_file_is_known(tmp_path: Path) -> None:
    """What each file is can be asked, wherever it lies and however it is packed."""
    expected = {
        str(written(tmp_path / "a.json", weka_bytes("a"))): "weka",
        str(written(tmp_path / "b.jsonl", TWO)): "native",
        str(written(tmp_path / "c.jsonl.gz", gzip.compress(a_log(1)))): "litellm",
        str(zipped(tmp_path / "d.zip", {"x.json": PRETTY}) / "x.json"): "weka",
    }
    trace = load(tmp_path)
    list(trace)
    assert trace.formats == expected


UNSUPPORTED: dict[str, Any] = {
    "Langfuse": {"id": "1", "name": "x", "observations": []},
    "Langfuse ": {"id": "1", "traceId": "t", "type": "GENERATION"},
    "SWE-agent": {"trajectory": [{"action": "ls"}], "info": {"model_stats": {}}},
    "Cline": {"ts": 1767355200000, "type": "say", "say": "text"},
    "Applied Compute": {"num_turns": 3, "input_prompt_length": 100},
    "SageMaker": {"captureData": {}, "eventMetadata": {}},
    "EvalScope": {"body": {"messages": []}, "timestamp": 0.5},
    "AIPerf inputs": {"data": [{"session_id": "s", "payloads": []}]},
    "AIPerf dataset": {"session_id": "s", "turns": [{"text": "x"}]},
    "records by AIPerf": {"metadata": {"session_num": 0}, "metrics": {}},
    "ShareGPT": {"id": "x", "conversations": [{"from": "human", "value": "x"}]},
    "fine-tuning": {"messages": [{"role": "user", "content": "x"}]},
    "cassettes": {"version": 1, "interactions": []},
}


@pytest.mark.parametrize("shape", ["line", "lines", "list", "pretty"])
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_formats_that_are_not_read_are_named(tmp_path: Path, name: str, shape: str) -> None:
    """A file of a format that is known and not read is skipped under that format's name."""
    line = orjson.dumps(UNSUPPORTED[name])
    data = {
        "line": line,
        "lines": line + b"\n" + line + b"\n",
        "list": b"[" + line + b"]",
        "pretty": orjson.dumps(UNSUPPORTED[name], option=orjson.OPT_INDENT_2),
    }[shape]
    said = refusal(written(tmp_path / "x.json", data))
    assert name.strip() in said
    assert "known, but not read" in said


@pytest.mark.parametrize("value", [5, "text", None, True, [], [[]], {}, {"a": 1}, [1, "x", None]])
def test_what_is_no_format_at_all_says_so(tmp_path: Path, value: object) -> None:
    """Any other JSON is of no known format, and no crash."""
    data = orjson.dumps([value])
    assert "no usable session" in refusal(written(tmp_path / "x.json", data))


@pytest.mark.parametrize("value", [5, "text", None, True, [], {}])
def test_no_format_claims_any_value(value: object) -> None:
    """Values of any type are recognised by no format and raise in none."""
    assert [name for name, module in FORMATS.items() if module.recognises(value)] == []


# --- Standard input -------------------------------------------------------------------------------


def checked(data: bytes) -> list[tuple[str, str | None, int]]:
    """Path, format and sessions of what the command finds in its standard input."""
    found = orjson.loads(piped(data, "check", "-", "--json").stdout)
    return [(file["path"], file["format"], file["sessions"]) for file in found["files"]]


STREAMS = {
    "lines": (TWO, "native", 2),
    "one line": (weka_bytes("a"), "weka", 1),
    "pretty": (PRETTY, "weka", 1),
    "log": (a_log(1, 2), "litellm", 1),
    "gzip": (gzip.compress(TWO), "native", 2),
    "zstd": (zstandard.compress(TWO), "native", 2),
    "wide": (UTF16["big"](TWO), "native", 2),
    "table": (table([row(1), row(2)]), "litellm", 1),
}


@pytest.mark.parametrize(("data", "form", "sessions"), STREAMS.values(), ids=STREAMS.keys())
def test_standard_input_is_read(data: bytes, form: str, sessions: int) -> None:
    """A dash means what comes through standard input, whatever it is."""
    assert checked(data) == [("-", form, sessions)]


def test_parquet_may_come_through_a_pipe(tmp_path: Path) -> None:
    """A parquet file may come through standard input."""
    data = in_parquet(tmp_path / "x.parquet", [weka_value("a"), weka_value("b")]).read_bytes()
    assert checked(data) == [("-", "weka", 2)]


def test_an_archive_may_come_through_a_pipe(tmp_path: Path) -> None:
    """An archive may come through standard input, or is said to need a file of its own."""
    data = zipped(tmp_path / "x.zip", {"x.jsonl": TWO}).read_bytes()
    ended = piped(data, "check", "-")
    assert "2 sessions" in ended.stdout or "archive" in ended.stderr


def test_standard_input_may_stand_beside_files(tmp_path: Path) -> None:
    """Standard input is one part of a set like others, once however often it is named."""
    file = written(tmp_path / "a.jsonl", native_line("a"))
    found = orjson.loads(piped(TWO, "inspect", "-", file, "-", "--json").stdout)
    assert found["sessions"] == 3


@pytest.mark.parametrize("data", [b"", b"\n\n"])
def test_an_empty_standard_input_is_refused(data: bytes) -> None:
    """Nothing on standard input is an error that says so."""
    ended = piped(data, "inspect", "-")
    assert ended.returncode == 2
    assert ended.stderr == "agentreplay: -: no usable session (-: the file is empty)\n"


def test_a_closed_standard_input_is_refused() -> None:
    """No standard input at all is an error of one line."""
    ended = subprocess.run(
        ["sh", "-c", '"$0" -m agentreplay inspect - <&-', sys.executable],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1


def hashed(data: bytes, *paths: str | Path) -> str:
    """The content hash of a set with standard input in it."""
    script = (
        "import sys; from agentreplay.trace.load import content_hash, load; "
        "print(content_hash(load(*sys.argv[1:])))"
    )
    command = [sys.executable, "-c", script, *map(str, paths)]
    return subprocess.run(command, input=data, capture_output=True, check=True).stdout.decode()


def test_the_hash_is_of_standard_input_too(tmp_path: Path) -> None:
    """The content hash of a set holds what came through standard input, once."""
    file = written(tmp_path / "a.jsonl", native_line("a"))
    alone = hashed(TWO, "-")
    assert alone == hashed(TWO, "-") == hashed(TWO, "-", "-")
    assert len({alone, hashed(MANY, "-"), hashed(TWO, "-", file), hashed(TWO, file)}) == 4


def test_the_hash_is_of_packed_bytes(tmp_path: Path) -> None:
    """The content hash is of the files as they lie there, archives included."""
    file = zipped(tmp_path / "x.zip", {"x.jsonl": TWO})
    before = content_hash(load(file))
    zipped(file, {"x.jsonl": TWO, "README.md": b"other"})
    assert content_hash(load(file)) != before


def test_sessions_of_all_shapes_are_the_same(tmp_path: Path) -> None:
    """A session is the same from a plain file, a packed one, an archive, UTF-16 and parquet."""
    value = with_a_subagent("a")
    data = orjson.dumps(value)
    read: list[Session] = [
        load(path)[0]
        for path in (
            written(tmp_path / "plain.json", data),
            written(tmp_path / "packed.json", gzip.compress(data)),
            zipped(tmp_path / "x.zip", {"x.json": data}),
            written(tmp_path / "wide.json", UTF16["little"](data)),
            in_parquet(tmp_path / "x.parquet", [value]),
        )
    ]
    assert len({replace(session, source="") for session in read}) == 1
