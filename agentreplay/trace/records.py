"""The decoded records of a file, whatever its shape: JSON, JSON lines, CSV, parquet, SQLite, flows.

What the shape is, is seen from the first bytes; what can't be read is counted and left out. I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from io import DEFAULT_BUFFER_SIZE
from itertools import islice
from typing import Any, BinaryIO

import orjson

from agentreplay.errors import TraceError
from agentreplay.trace.files import DAMAGED, File
from agentreplay.trace.formats.mitmproxy import flows
from agentreplay.trace.lenient import concatenated, leniently, parsed
from agentreplay.trace.model import Notes
from agentreplay.trace.tables import PARQUET, SQLITE, csv_rows, parquet_rows, sqlite_rows

HEAD_BYTES = 4096
"""How much of a file is looked at to see its shape."""

PROBED_RECORDS = 50
"""How many of a file's records are looked at to see what they are."""

_BROKEN = "lines of broken JSON, left out"
_CUT = "packed files that are cut or damaged, read up to there"
_REST = "ends of files that are no JSON, left out"
_AHEAD_BYTES = 1 << 16  # twice as fast as the usual size where all lines of a file are read
_TNETSTRING = re.compile(rb"\d+:")
_JSON = (b"{", b"[")

Records = Iterator[tuple[int, Any]]
"""Records with their numbers: lines, rows, or places in a list, from 1."""


def records(file: File, notes: Notes) -> tuple[Records, bool]:
    """The decoded records of a file; whether they are JSON on lines.

    Raises:
        TraceError: the file is empty, or nothing in it can be read.
    """
    head, fault = _content(file, HEAD_BYTES)
    if fault is not None and not head:
        raise TraceError(f"{file.path}: broken packing: {fault}")
    if head.startswith(PARQUET):
        return _streamed(file, notes, partial(parquet_rows, file.path)), False
    if head.startswith(SQLITE):
        if not file.is_plain():
            raise TraceError(f"{file.path}: a database can only be read as a file of its own")
        return sqlite_rows(file.path), False
    if _TNETSTRING.match(head):
        return _streamed(file, notes, lambda stream: flows(stream.read())), False
    if not head.strip():
        raise TraceError(f"{file.path}: the file is empty")
    objects = (isinstance(parsed(line), dict) for line in _first_lines(file))
    is_json = head.lstrip().startswith(_JSON)
    by_lines = next(objects, False)
    if not by_lines and is_json:
        values = _document(file, notes)
        if values is not None and (not notes[_REST] or sum(objects) <= len(values)):
            return enumerate(values, 1), False
        notes.clear()
        objects = (isinstance(parsed(line), dict) for line in _first_lines(file))
    if by_lines or any(objects):
        return _streamed(file, notes, partial(_by_lines, notes), _AHEAD_BYTES), True
    if not is_json and _is_header(head.partition(b"\n")[0]):
        return _streamed(file, notes, csv_rows), False
    raise TraceError(f"{file.path}: {_why_broken(file)}")


def refuse_faults(file: File, notes: Notes) -> None:
    """Make an error of what the notes of a file say that couldn't be read.

    Raises:
        TraceError: there is such a note.
    """
    if notes[_BROKEN]:
        raise TraceError(f"{file.path}:{notes.lines[_BROKEN][0]}: broken JSON")
    for fault in (_CUT, _REST):
        if notes[fault]:
            raise TraceError(f"{file.path}: {fault.partition(',')[0]}")


def lines(file: File) -> Iterator[tuple[int, int, int, bytes]]:
    """Number, offset, length and head of the lines of a plain file that are not blank."""
    with file.open(_AHEAD_BYTES) as stream:
        offset = stream.tell()  # behind a byte-order mark
        for number, line in enumerate(stream, 1):
            if line.strip():
                yield number, offset, len(line), line[:HEAD_BYTES]
            offset += len(line)


def value_at(file: File, source: str, offset: int = 0, length: int | None = None) -> Any:
    """The JSON value in a file, or in a part of it; *source* is its name for people.

    Raises:
        TraceError: there is none.
    """
    try:
        if length is None:
            with file.open() as stream:
                data = stream.read()
        else:
            data = file.span(offset, length)
    except OSError as error:
        raise TraceError(f"{source}: {error.strerror}") from None
    value = parsed(data)
    if value is None:
        raise TraceError(f"{source}: {_why_no_json(data)}")
    return value


def _content(file: File, most: int = -1) -> tuple[bytes, Exception | None]:
    """What can be read of a file, at *most* so many bytes, and what ended it too early."""
    data = b""
    try:
        with file.open() as stream:
            data = stream.read(most)
    except DAMAGED as error:
        return data, error
    return data, None


def _streamed(
    file: File,
    notes: Notes,
    read: Callable[[BinaryIO], Records],
    ahead_bytes: int = DEFAULT_BUFFER_SIZE,
) -> Records:
    try:
        with file.open(ahead_bytes) as stream:
            yield from read(stream)
    except DAMAGED:
        notes.add(_CUT)


def _first_lines(file: File) -> Iterator[bytes]:
    try:
        with file.open() as stream:
            yield from islice((line for line in stream if not line.isspace()), PROBED_RECORDS)
    except DAMAGED:
        pass  # told when it is read


def _by_lines(notes: Notes, stream: BinaryIO) -> Records:
    loads = orjson.loads
    for number, line in enumerate(stream, 1):
        try:
            yield number, loads(line)
        except orjson.JSONDecodeError:
            value = leniently(line)
            if value is not None:
                yield number, value
            elif not line.isspace():
                notes.add(_BROKEN, number)


def _document(file: File, notes: Notes) -> list[Any] | None:
    """The records of a file that is one JSON document, or several one after the other."""
    data, fault = _content(file)
    value, rest = parsed(data), ""
    values = value if isinstance(value, list) else [value]
    if value is None:
        values, rest = concatenated(data.decode("utf-8", "replace"))
        if not values:
            return None
    if fault is not None:
        notes.add(_CUT)
    if rest:
        notes.add(_REST)
    return values


def _is_header(line: bytes) -> bool:
    """Whether a line may be the names of a table's columns."""
    return b"," in line and line.isascii() and line.strip().decode().isprintable()


def _why_broken(file: File) -> str:
    data, fault = _content(file)
    if fault is not None:
        return f"broken packing: {fault}"
    return _why_no_json(data) if data.lstrip().startswith(_JSON) else "it is no JSON"


def _why_no_json(data: bytes) -> str:
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return f"broken JSON: {error}"
    return "it holds no object"
