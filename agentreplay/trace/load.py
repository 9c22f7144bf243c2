"""Open trace sets: find files, see what they are, and read a session when it is asked for.

Where a record is a session (native, Weka) a folder costs a listing and a look at the head of each
file; a session is parsed when its index is asked for, and not kept. In logs a session is spread
over records and files: they are read once, in a stream, and what is kept is a few numbers a call.
"""

from __future__ import annotations

import gc
import hashlib
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, overload

from agentreplay.errors import TraceError
from agentreplay.trace import hub, recorded
from agentreplay.trace.choice import Choice, Head
from agentreplay.trace.files import BOM, STDIN, SUFFIXES, File, found
from agentreplay.trace.formats import (
    arrivals,
    claude_code,
    codex,
    dynamo,
    gemini_cli,
    har,
    litellm,
    mitmproxy,
    mlperf,
    mooncake,
    native,
    openai_batch,
    opencode,
    openhands,
    otel,
    tracelab,
    unsupported,
    weka,
)
from agentreplay.trace.model import Notes, Session
from agentreplay.trace.recorded import Draft, Reading
from agentreplay.trace.records import (
    HEAD_BYTES,
    PROBED_RECORDS,
    Records,
    lines,
    records,
    refuse_faults,
    value_at,
)

SESSIONS = {"native": native, "weka": weka}
"""Formats in which a record is a session: modules with `recognises` and `session`."""

LOGS: dict[str, Any] = {
    "claude-code": claude_code,
    "codex": codex,
    "mooncake": mooncake,
    "dynamo": dynamo,
    "har": har,
    "litellm": litellm,
    "otel": otel,
    "tracelab": tracelab,
    "mitmproxy": mitmproxy,
    "openai-batch": openai_batch,
    "mlperf-endpoints": mlperf,
    "gemini-cli": gemini_cli,
    "opencode": opencode,
    "openhands": openhands,
    "arrivals": arrivals,
}
"""Formats in which it is not: modules with `recognises`, `read` and `drafts`."""

FORMATS: dict[str, Any] = SESSIONS | LOGS
"""What can be read, by name."""

_LINES = (".jsonl", ".ndjson")
_SESSION_IN_HEAD = re.compile(
    rb'"(?:(?:block_size|agentreplay)"\s*:\s*\d|hash_id_scope"\s*:\s*"|requests"\s*:\s*\[)'
)
_SCOPE_IN_HEAD = re.compile(rb'"hash_id_scope"\s*:\s*"(\w*)"')
_UNKNOWN = f"no known trace format (known: {', '.join(FORMATS)})"


class _UndecidedError(TraceError):
    """Two formats claim a file: the user is asked, since a wrong guess is worse."""


class _Place(NamedTuple):
    """Where one session lies: a whole file, a span of one, or among what was kept of logs."""

    file: File
    offset: int = 0
    length: int | None = None
    number: int | None = None  # 1 for the first of several in a file
    session: Session | None = None
    draft: Draft | None = None
    log: bool = False
    shares: bool = False  # its block ids are common to the sessions of the set

    @property
    def source(self) -> str:
        if self.draft is not None:
            return self.draft.source
        return str(self.file.path) if self.number is None else f"{self.file.path}:{self.number}"


class TraceSet(Sequence[Session]):
    """The sessions of files and folders, each read when it is asked for.

    Indexing raises `TraceError` for a session that can't be read.

    Attributes:
        paths: What was opened.
        choice: Which of the sessions found are in the set.
        formats: The format of each file (or member of an archive) that could be read, by path.
        strict: Whether what can't be read is an error instead of being skipped.
        skipped: Files and lines that could not be read so far, with the cause.
        left_out: How many sessions were not chosen, by why.
        stdin: What came through standard input.
        revisions: The commit of each published set, by its address.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        reading: Reading,
        *,
        strict: bool = False,
        form: str | None = None,
        choice: Choice | None = None,
    ) -> None:
        self.paths = tuple(paths)
        self.choice = choice or Choice()
        self.strict = strict
        self.formats: dict[str, str] = {}
        self.skipped: dict[str, str] = {}
        self.left_out: Counter[str] = Counter()
        self.stdin: bytes | None = None
        self.revisions: dict[str, str] = {}
        self._files: list[str] = []
        self._reading = reading
        self._form = form
        self._notes: dict[str, Notes] = {}
        self._read_once: set[int] = set()
        self._places: list[_Place] = []
        with _no_cycles():
            self._open()
        self._choose()
        with _no_cycles():
            for index in range(len(self)):
                self._draft_shared(index)
            drafts = [place.draft for place in self._places if place.draft is not None]
            recorded.relate(drafts, reading.gap_s)

    @property
    def files(self) -> list[Path]:
        """The files found on the disk, in order."""
        return list(map(Path, self._files))

    @property
    def notes(self) -> dict[str, Notes]:
        """What the readers left out or repaired so far, by file."""
        return {path: notes for path, notes in self._notes.items() if notes}

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
        if place.session is not None:
            return place.session
        try:
            with _no_cycles():
                if place.draft is not None:
                    session, notes = self._put_together(place.draft, place.log)
                else:
                    form, session, notes = _session(
                        value_at(place.file, place.source, place.offset, place.length),
                        place.source,
                        self._form,
                    )
                    self.formats[str(place.file.path)] = form
        except TraceError as error:
            self._skip(place.source, error)
            raise
        if index not in self._read_once:
            self._read_once.add(index)
            if notes:
                kept = self._noted(place.file) if place.draft is None else place.draft.notes
                kept.merge(notes)
        return session

    def learn(self, skipped: Mapping[str, str], notes: Mapping[str, Mapping[str, int]]) -> None:
        """Note what another process that reads the same set could not read, or left out."""
        self.skipped.update(skipped)
        for path, counts in notes.items():
            kept = self._notes.setdefault(path, Notes())
            for what, times in counts.items():
                kept[what] = max(kept[what], times)

    def file_of(self, index: int) -> str:
        """The file that a session begins in."""
        place = self._places[index]
        if place.draft is None or not place.log:
            return str(place.file.path)
        return place.draft.source.rpartition(":")[0] or place.draft.source

    def is_from_log(self, index: int) -> bool:
        """Whether a session comes from a log of somebody's work."""
        return self._places[index].log

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

    def nothing(self) -> str:
        """Why no session could be read, in words."""
        named = ", ".join(map(str, self.paths[:3]))
        if len(self.paths) > 3:
            named += f" and {len(self.paths) - 3} more"
        if self.left_out:
            why = ", ".join(f"{count} {reason}" for reason, count in self.left_out.items())
            return f"{named}: no session is left of {self.left_out.total()}: {why}"
        if not self._files and self.stdin is None:
            return f"{named}: no trace files (looked for {', '.join(sorted(SUFFIXES))})"
        source, cause = next(iter(self.skipped.items()), (named, self._why_empty()))
        more = f", and {len(self.skipped) - 1} more" if len(self.skipped) > 1 else ""
        return f"{named}: no usable session ({source}: {cause}{more})"

    def _why_empty(self) -> str:
        for path, notes in self._notes.items():
            for what, times in notes.most_common(1):
                return f"{self.formats.get(path, 'it')}: {times} {what}"
        if self.formats:
            return f"{next(iter(self.formats.values()))} without a call"
        return "the file is empty"

    def _open(self) -> None:
        """Find the files, and see what they are.

        Of a file in a folder that holds one session only the head is looked at, so that ten
        thousand of them cost little; one that was *named* is looked through.
        """
        parts: dict[str, list[Any]] = {}
        for file in self._found():
            if not file.named and self._form is None and (head := _head_of_one_session(file)):
                self._places.append(_Place(file, shares=_shares(head)))
                continue
            for member in self._members(file):
                try:
                    self._add(member, parts)
                except _UndecidedError:
                    raise
                except TraceError as error:
                    self._skip(str(member.path), error)
        for form, kept in parts.items():
            drafts = LOGS[form].drafts(kept, self._reading)
            self._places += [_Place(File(draft.source), draft=draft, log=True) for draft in drafts]

    def _found(self) -> Iterator[File]:
        """Every file that is there, once."""
        seen, here = set[str](), os.getcwd()
        for path in self.paths:
            if hub.is_address(path):
                copy = hub.published(path)
                self.revisions[f"hf://{copy.name}"] = copy.revision
                path = copy.folder
            for file in found(path):
                where = os.path.join(here, file.source)
                if where in seen:
                    continue
                seen.add(where)
                if file.data is None:
                    self._files.append(file.source)
                else:
                    self.stdin = file.data
                yield file

    def _members(self, file: File) -> list[File]:
        try:
            return file.members()
        except TraceError as error:
            self._skip(str(file.path), error)
            return []

    def _skip(self, source: str, error: TraceError) -> None:
        if self.strict:
            raise TraceError(f"{error} (--strict)") from None
        self.skipped[source] = str(error).removeprefix(f"{source}: ")

    def _noted(self, file: File) -> Notes:
        return self._notes.setdefault(str(file.path), Notes())

    def _draft_shared(self, index: int) -> None:
        """Read a session that may share prefixes with others, as far as that has to be known."""
        place = self._places[index]
        if not place.shares or place.draft is not None or self._form not in (None, "weka"):
            return
        try:
            value = value_at(place.file, place.source, place.offset, place.length)
            if not weka.recognises(value) or not weka.is_global(value):
                return
            draft, notes = weka.draft(value, place.source)
        except TraceError:
            return  # told when it is asked for
        self.formats[str(place.file.path)] = "weka"
        self._noted(place.file).merge(notes)
        self._places[index] = place._replace(draft=draft)

    def _put_together(self, draft: Draft, log: bool) -> tuple[Session, Notes]:
        session, notes = recorded.session(draft, self._reading.gap_s)
        if not log:
            session = replace(session, start_s=None)
        elif draft.dated and session.start_s is not None:
            session = replace(session, start_s=session.start_s - self._origin_s)
        return session, notes

    def _add(self, file: File, parts: dict[str, list[Any]]) -> None:
        """See what a file holds, and note where its sessions lie or keep what its log says."""
        notes = self._noted(file)
        found, by_lines = records(file, notes)
        probed: list[tuple[int, Any]] = []
        form = self._form or _format_of(file, found, probed)
        found = chain(probed, found)
        if form in LOGS:
            part = LOGS[form].read(found, file.path, self._reading, notes)
            parts.setdefault(form, []).append(part)
        elif by_lines and file.is_plain():
            notes.clear()  # they come again when the lines are read
            places = [
                _Place(file, offset, length, number, shares=_shares(head))
                for number, offset, length, head in lines(file)
            ]
            if len(places) == 1:
                places = [_Place(file, shares=places[0].shares)]
            self._places += places
        else:
            self._keep(file, found, notes)
        self.formats[str(file.path)] = form
        if self.strict:
            refuse_faults(file, notes)

    def _keep(self, file: File, found: Records, notes: Notes) -> None:
        """Read the sessions of a file that can't be cut, or not be read from the middle."""
        for number, value in found:
            place = _Place(file, number=number)
            try:
                form, session, noted = _session(value, place.source, self._form)
                if form == "weka" and weka.is_global(value):
                    draft, noted = weka.draft(value, place.source)
                    place = place._replace(draft=draft)
                else:
                    place = place._replace(session=session)
            except TraceError as error:
                self._skip(place.source, error)
                continue
            notes.merge(noted)
            self._places.append(place)

    def _choose(self) -> None:
        kept = list(range(len(self)))
        if self.choice.looks_inside:
            kept = []
            for index in range(len(self)):
                try:
                    refusal = self.choice.refusal(self._head(index))
                except TraceError:
                    if self.strict:
                        raise
                    continue  # named in `skipped`
                if refusal is None:
                    kept.append(index)
                else:
                    self.left_out[refusal] += 1
        drawn = self.choice.drawn(kept)
        if len(drawn) < len(kept):
            self.left_out["not drawn for the sample"] += len(kept) - len(drawn)
        self._places = [self._places[index] for index in drawn]
        self._read_once = {i for i, index in enumerate(drawn) if index in self._read_once}
        dates = [
            place.draft.start_s
            for place in self._places
            if place.draft is not None and place.draft.dated and place.draft.start_s is not None
        ]
        self._origin_s = min(dates, default=0.0)

    def _head(self, index: int) -> Head:
        self._draft_shared(index)
        draft = self._places[index].draft
        if draft is None:
            calls = self[index].calls
            return Head(None, None, {call.model for call in calls}, len(calls))
        return Head(
            draft.start_s if draft.dated else None,
            draft.project,
            {call.model for call in draft.calls},
            len(draft.calls),
        )


def open_set(
    *paths: str | Path,
    strict: bool = False,
    form: str | None = None,
    choice: Choice | None = None,
    gap_s: float | None = None,
    chars_per_token: float | None = None,
    turn_lengths: str | None = None,
) -> TraceSet:
    """Open trace files and folders as one set, which may be empty.

    Args:
        paths: Files, folders, patterns, hf://owner/name, or `-` for standard input; folders are
            searched through all levels.
        strict: A file that can't be read is an error instead of being named in `skipped`.
        form: Read everything as this format, one of `FORMATS`, instead of seeing what it is.
        choice: Which of the sessions found are meant.
        gap_s: Seconds between calls, for logs without times.
        chars_per_token: Length of a token, for logs that hold texts but no lengths.
        turn_lengths: "delta" or "full", for rows of sessions that don't say which they hold.

    Raises:
        TraceError: a path is missing, or two formats claim a file.
    """
    if form is not None and form not in FORMATS:
        raise TraceError(f"--format {form}: there is no such format; known: {', '.join(FORMATS)}")
    reading = Reading(secrets.token_bytes(32), gap_s, chars_per_token, turn_lengths)
    return TraceSet(
        [Path(path) for path in paths], reading, strict=strict, form=form, choice=choice
    )


def load(*paths: str | Path, **reading: Any) -> TraceSet:
    """Open trace files and folders as one set of at least one session; as `open_set`.

    Raises:
        TraceError: a path is missing, nothing in it can be read, two formats claim a file, or
            no session is left.
    """
    trace = open_set(*paths, **reading)
    if not trace:
        raise TraceError(trace.nothing())
    return trace


def files_of(trace: TraceSet) -> list[dict[str, Any]]:
    """What a run says of the files of its set: where each lies, its bytes, and when it was changed.

    Raises:
        OSError: one of them has gone.
    """
    files = []
    for path in trace._files:
        stat = os.stat(path)
        files.append({"path": path, "bytes": stat.st_size, "mtime_s": stat.st_mtime})
    if trace.stdin is not None:
        files.append({"path": str(STDIN), "bytes": len(trace.stdin), "mtime_s": None})
    return files


def content_hash(trace: TraceSet, look: Callable[[], None] = lambda: None) -> str:
    """SHA-256 over the names and contents of the set's files, as hexadecimal digits.

    *look* is called at least once a megabyte, and may end it by raising.
    """
    digest = hashlib.sha256()
    buffer = bytearray(1 << 20)
    for path in sorted(trace._files, key=os.path.basename):
        digest.update(os.fsencode(os.path.basename(path)) + b"\0")
        with open(path, "rb", buffering=0) as opened:
            content = hashlib.sha256()
            while read := opened.readinto(buffer):
                look()
                content.update(memoryview(buffer)[:read])
        digest.update(content.digest())
    if trace.stdin is not None:
        digest.update(b"-\0" + hashlib.sha256(trace.stdin).digest())
    return digest.hexdigest()


def _head_of_one_session(file: File) -> bytes:
    """The head of a file that shows one session and nothing else; nothing of other files."""
    if file.source.endswith(_LINES):
        return b""
    head = file.head(HEAD_BYTES).removeprefix(BOM)
    line = head.strip() if b"\n" in head else head.lstrip()
    if line.startswith(b"{") and b"\n" not in line and _SESSION_IN_HEAD.search(line):
        return line
    return b""


def _shares(head: bytes) -> bool:
    """Whether the head of a session says that its block ids are common to a set."""
    scope = _SCOPE_IN_HEAD.search(head)
    return scope is not None and scope[1] == b"global"


@contextmanager
def _no_cycles() -> Iterator[None]:
    """Make many objects without a search for cycles among them every now and then."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _format_of(file: File, found: Records, probed: list[tuple[int, Any]]) -> str:
    """The format of a file's first records, which move to *probed*."""
    claims: set[str] = set()
    claimed: Callable[[object], bool] | None = None
    for record in islice(found, PROBED_RECORDS):
        probed.append(record)
        if claimed is not None and claimed(record[1]):
            continue  # by the format of the one before it, and a record is of one only
        for name, module in FORMATS.items():
            if module.recognises(record[1]):
                claims.add(name)
                claimed = module.recognises
        if claims & SESSIONS.keys():
            break  # unmistakable, and such records may be large
    if len(claims) > 1:
        names = " or ".join(sorted(claims))
        raise _UndecidedError(f"{file.path}: it may be {names}: say which with --format")
    if claims:
        return next(iter(claims))
    for _, value in probed:
        if known := unsupported.name(value):
            raise TraceError(f"{file.path}: {known}: known, but not read")
    raise TraceError(f"{file.path}: {_UNKNOWN}")


def _session(value: Any, source: str, form: str | None) -> tuple[str, Session, Notes]:
    """The format of a record that is a session, and the session."""
    for name, module in SESSIONS.items():
        if form in (None, name) and module.recognises(value):
            return name, *module.session(value, source)
    raise TraceError(f"{source}: {_UNKNOWN if form is None else f'no session of format {form}'}")
