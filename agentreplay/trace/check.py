"""What could be read of a trace set and what not, file by file. I/O."""

from __future__ import annotations

from dataclasses import dataclass

from agentreplay.errors import TraceError
from agentreplay.trace.load import TraceSet


@dataclass(frozen=True, slots=True)
class Note:
    """Something left out or repaired in a file.

    Attributes:
        what: In words.
        times: How often.
        lines: The first lines where, for files of lines.
    """

    what: str
    times: int
    lines: list[int]


@dataclass(slots=True)
class CheckedFile:
    """What a file gave.

    Attributes:
        path: The file, or member of an archive.
        format: What it is; None where it couldn't be read.
        sessions: Sessions that begin in it.
        calls: Their calls.
        notes: What was left out or repaired.
        skipped: Parts that could not be read, as place and cause.
    """

    path: str
    format: str | None
    sessions: int
    calls: int
    notes: list[Note]
    skipped: dict[str, str]


@dataclass(frozen=True, slots=True)
class Checked:
    """What a set of files gave.

    Attributes:
        files: File by file, in order.
        sessions: Sessions in all.
        calls: Calls in all.
        left_out: Sessions that were not chosen, by why.
    """

    files: list[CheckedFile]
    sessions: int
    calls: int
    left_out: dict[str, int]


def checked(trace: TraceSet) -> Checked:
    """Read every session of a set, and say what came of each file.

    Raises:
        TraceError: the set is strict, and one can't be read.
    """
    files: dict[str, CheckedFile] = {}

    def file(path: str) -> CheckedFile:
        return files.setdefault(path, CheckedFile(path, trace.formats.get(path), 0, 0, [], {}))

    for path in trace.formats:
        file(path)
    for index in range(len(trace)):
        found = file(trace.file_of(index))
        try:
            session = trace[index]
        except TraceError:
            if trace.strict:
                raise
            continue  # it is in `skipped` now
        found.format = trace.formats.get(found.path)
        found.sessions += 1
        found.calls += len(session.calls)
    for source, cause in trace.skipped.items():
        path, _, line = source.rpartition(":")
        file(path if line.isdigit() and path in files else source).skipped[source] = cause
    for path, notes in trace.notes.items():
        file(path).notes = [
            Note(what, times, notes.lines.get(what, [])) for what, times in notes.most_common()
        ]
    return Checked(
        files=[files[path] for path in sorted(files)],
        sessions=sum(found.sessions for found in files.values()),
        calls=sum(found.calls for found in files.values()),
        left_out=dict(trace.left_out),
    )
