"""Open trace sets: find files, see what they are, and read a session when it is asked for.

A folder costs a listing and a look at the head of each file; a session is parsed when its index
is asked for, and not kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import orjson

from agentreplay.errors import TraceError
from agentreplay.trace.formats import native, weka
from agentreplay.trace.model import Notes, Session

FORMATS = {"native": native, "weka": weka}
"""What can be read, by name; each module has `recognises(value)` and `session(value, source)`."""

SUFFIXES = frozenset((".json", ".jsonl", ".ndjson"))
"""What is looked at in a folder; a file that is named is looked at whatever its name."""

_BOM = b"\xef\xbb\xbf"
_HEAD_BYTES = 4096
_PROBED_LINES = 50
_UNKNOWN = f"no known trace format (known: {', '.join(FORMATS)})"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one session lies: a whole file, or a span of one; or its decoded value."""

    path: Path
    offset: int = 0
    length: int | None = None
    number: int | None = None  # 1 for the first of several in a file
    value: Session | None = None

    @property
    def source(self) -> str:
        return str(self.path) if self.number is None else f"{self.path}:{self.number}"


class TraceSet(Sequence[Session]):
    """The sessions of files and folders, each read when it is asked for.

    Indexing raises `TraceError` for a session that can't be read.

    Attributes:
        paths: What was opened.
        files: The files found, in order.
        strict: Whether what can't be read is an error instead of being skipped.
        skipped: Files and lines that could not be read so far, with the cause.
        notes: What the readers left out or repaired so far, by file.
    """

    def __init__(self, paths: Sequence[Path], *, strict: bool = False) -> None:
        self.paths = tuple(paths)
        self.strict = strict
        self.files: list[Path] = []
        self.skipped: dict[str, str] = {}
        self.notes: dict[str, Notes] = {}
        self._read_once: set[int] = set()
        self._places: list[_Place] = []
        found: set[Path] = set()
        for path in paths:
            for file in _files(path):
                if file.absolute() in found:
                    continue
                found.add(file.absolute())
                self.files.append(file)
                try:
                    self._places += self._index(file, named=file == path)
                except TraceError as error:
                    self._skip(str(file), error)
        if not self._places:
            raise TraceError(self.nothing())

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Session: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Session]: ...
    def __getitem__(self, index: int | slice) -> Session | Sequence[Session]:
        """Read a session; `TraceError` where it can't be read."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        place = self._places[index]
        if place.value is not None:
            return place.value
        try:
            session, notes = _session(_decoded(place), place.source)
        except TraceError as error:
            self._skip(place.source, error)
            raise
        if index not in self._read_once:
            self._read_once.add(index)
            self._note(place.path, notes)
        return session

    def readable(self) -> Iterator[Session]:
        """Every session that can be read, in order; the others are named in `skipped`.

        Raises:
            TraceError: the set is strict, and one can't be read.
        """
        for index in range(len(self)):
            try:
                session = self[index]
            except TraceError:
                if self.strict:
                    raise
                continue
            yield session

    def _skip(self, source: str, error: TraceError) -> None:
        if self.strict:
            raise TraceError(f"{error} (--strict)") from None
        self.skipped[source] = str(error).removeprefix(f"{source}: ")

    def _note(self, path: Path, notes: Notes) -> None:
        if notes:
            self.notes.setdefault(str(path), Notes()).update(notes)

    def nothing(self) -> str:
        """Why no session could be read, in words."""
        named = ", ".join(map(str, self.paths[:3]))
        if len(self.paths) > 3:
            named += f" and {len(self.paths) - 3} more"
        if not self.files:
            return f"{named}: no trace files (looked for {', '.join(sorted(SUFFIXES))})"
        source, cause = next(iter(self.skipped.items()), (named, "the file is empty"))
        more = f", and {len(self.skipped) - 1} more" if len(self.skipped) > 1 else ""
        return f"{named}: no usable session ({source}: {cause}{more})"

    def _index(self, path: Path, *, named: bool) -> list[_Place]:
        """Where the sessions of a file lie.

        One JSON object is one session. Objects on lines of their own are found by their line
        ends. A JSON list can't be cut without being read, so its sessions are kept: a session is
        small once its block ids are gone.

        Of a .json file in a folder only the head is looked at, so that ten thousand of them cost
        little; one that was *named* is looked through.
        """
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        start = head.removeprefix(_BOM).lstrip()[:1]
        if start == b"[":
            return self._listed(path)
        if start != b"{":
            cause = "the file is empty" if not head.strip() else "it is no JSON"
            raise TraceError(f"{path}: {cause}")
        by_lines = path.suffix in (".jsonl", ".ndjson")
        if not by_lines and not named and b"\n" not in head:
            return [_Place(path)]
        if not by_lines and not _is_object(_bytes(next(_lines(path)))):
            return [_Place(path)]
        lines = list(_lines(path))
        if not any(_is_known(_bytes(line)) for line in lines[:_PROBED_LINES]):
            raise TraceError(f"{path}: {_why_unknown(_bytes(lines[0]))}")
        return lines if len(lines) > 1 else [_Place(path)]

    def _listed(self, path: Path) -> list[_Place]:
        values = _parse(path.read_bytes(), str(path))
        places = []
        for number, value in enumerate(values, 1):
            place = _Place(path, number=number)
            try:
                session, notes = _session(value, place.source)
            except TraceError as error:
                self._skip(place.source, error)
                continue
            self._note(path, notes)
            places.append(_Place(path, number=number, value=session))
        return places


def load(*paths: str | Path, strict: bool = False) -> TraceSet:
    """Open trace files and folders as one set.

    Args:
        paths: Files or folders; folders are searched through all levels.
        strict: A file that can't be read is an error instead of being named in `skipped`.

    Raises:
        TraceError: a path is missing, or nothing in it can be read.
    """
    return TraceSet([Path(path) for path in paths], strict=strict)


def content_hash(trace: TraceSet, look: Callable[[], None] = lambda: None) -> str:
    """SHA-256 over the names and contents of the set's files, as hexadecimal digits.

    *look* is called at least once a megabyte, and may end it by raising.
    """
    digest = hashlib.sha256()
    for file in sorted(trace.files, key=lambda file: file.name):
        digest.update(file.name.encode() + b"\0")
        with file.open("rb") as opened:
            content = hashlib.sha256()
            while part := opened.read(1 << 20):
                look()
                content.update(part)
        digest.update(content.digest())
    return digest.hexdigest()


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(
            file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file()
        )
    if not path.exists():
        raise TraceError(f"{path}: no such file or folder")
    return [path]


def _lines(path: Path) -> Iterator[_Place]:
    """The non-blank lines of a file, by their line feeds only."""
    with path.open("rb") as file:
        offset = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
        file.seek(offset)
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _Place(path, offset, len(line), number)
            offset += len(line)


def _bytes(place: _Place) -> bytes:
    with place.path.open("rb") as file:
        file.seek(place.offset)
        return file.read() if place.length is None else file.read(place.length)


def _decoded(place: _Place) -> Any:
    try:
        return _parse(_bytes(place), place.source)
    except OSError as error:
        raise TraceError(f"{place.source}: {error.strerror}") from None


def _parse(data: bytes, source: str) -> Any:
    try:
        return orjson.loads(data.removeprefix(_BOM))
    except orjson.JSONDecodeError as error:
        raise TraceError(f"{source}: {_why_broken(data, error)}") from None


def _is_object(data: bytes) -> bool:
    try:
        return isinstance(orjson.loads(data), dict)
    except orjson.JSONDecodeError:
        return False


def _why_broken(data: bytes, error: orjson.JSONDecodeError) -> str:
    if _is_object(data.removeprefix(_BOM).lstrip().partition(b"\n")[0]):
        return "it holds several lines of JSON: name it .jsonl"
    return f"broken JSON: {error}"


def _why_unknown(data: bytes) -> str:
    return _UNKNOWN if _is_object(data) else "broken JSON, or " + _UNKNOWN


def _is_known(data: bytes) -> bool:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return any(module.recognises(value) for module in FORMATS.values())


def _session(value: Any, source: str) -> tuple[Session, Notes]:
    for module in FORMATS.values():
        if module.recognises(value):
            read: tuple[Session, Notes] = module.session(value, source)
            return read
    raise TraceError(f"{source}: {_UNKNOWN}")
