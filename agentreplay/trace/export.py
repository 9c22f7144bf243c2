"""Trace sets as lines of a format that says lengths, times and relations only. I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from agentreplay.errors import TraceError
from agentreplay.trace.formats import native, weka
from agentreplay.trace.load import TraceSet
from agentreplay.trace.model import Notes
from agentreplay.trace.structure import alone

LOST = "tokens that are shared with other sessions only, written as new ones"


@dataclass(slots=True)
class Seen:
    """What is in lines that would be written.

    Attributes:
        sessions: Number of sessions.
        size_bytes: Their size.
        fields: Names of all fields.
        texts: Every text that is no field's name, with how often it occurs.
        first: The first line.
    """

    sessions: int = 0
    size_bytes: int = 0
    fields: dict[str, None] = field(default_factory=dict)
    texts: dict[str, int] = field(default_factory=dict)
    first: bytes = b""


def exported(
    trace: TraceSet, form: str, first_block: int, notes: Notes | None = None
) -> Iterator[bytes]:
    """Each session that can be read as a line; *notes* take what the format can't say.

    Sessions of logs, and those named after their file, are numbered: such a name leads back.
    Weka's blocks are numbered from *first_block* on; drawn at random, no two exports have an id
    in common.
    """
    block, known = first_block, dict[int, int]()
    for index in range(len(trace)):
        try:
            session = trace[index]
        except TraceError:
            if trace.strict:
                raise
            continue
        if trace.is_from_log(index) or session.id == session.source:
            session = replace(session, id=f"session {index + 1}")
        if form == "native":
            left = alone(session)
            if notes is not None and session.names:
                kept = sum(call.shared for call in left.calls)
                notes[LOST] += sum(call.shared for call in session.calls) - kept
            yield native.line(left)
        else:
            line, block = weka.line(session, block, known)
            yield line


def seen_of(lines: Iterable[bytes]) -> Seen:
    """Look through lines for everything that a reader of them would learn."""
    seen = Seen()
    for line in lines:
        seen.first = seen.first or line
        seen.sessions += 1
        seen.size_bytes += len(line)
        _look(orjson.loads(line), seen)
    return seen


def _look(value: Any, seen: Seen) -> None:
    if isinstance(value, dict):
        seen.fields.update(dict.fromkeys(value))
        for each in value.values():
            _look(each, seen)
    elif isinstance(value, list):
        for each in value:
            if not isinstance(each, int | float):
                _look(each, seen)
    elif isinstance(value, str):
        seen.texts[value] = seen.texts.get(value, 0) + 1
