"""What the tests of the readers of logs have in common.

Files of records are read as the loader reads them; records are damaged with values of any kind;
and every session that comes of either keeps the rules of the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite
from pathlib import PurePath
from typing import Any, Protocol

import orjson
from hypothesis import strategies as st

from agentreplay.errors import TraceError
from agentreplay.trace import recorded
from agentreplay.trace.model import Notes, Session
from agentreplay.trace.recorded import Draft, Reading

READING = Reading(key=b"key")


class Reader(Protocol):
    """A module of `agentreplay.trace.formats` that reads logs."""

    def recognises(self, record: object, /) -> bool: ...

    def read(
        self, records: Iterable[tuple[int, Any]], path: PurePath, reading: Reading, notes: Notes, /
    ) -> Any: ...

    def drafts(self, parts: Sequence[Any], reading: Reading, /) -> list[Draft]: ...


# --- Reading --------------------------------------------------------------------------------------


def numbered(files: Iterable[Any], ending: str = ".jsonl") -> dict[str, Any]:
    """Files by names that count from 0."""
    return {f"{number}{ending}": file for number, file in enumerate(files)}


def drafts(
    reader: Reader, files: Mapping[str, Iterable[object]], reading: Reading = READING
) -> tuple[list[Draft], Notes]:
    """The drafts of files, given by path as values that were written in JSON, and all notes."""
    decoded = {
        path: enumerate([orjson.loads(orjson.dumps(value)) for value in values], 1)
        for path, values in files.items()
    }
    return drafts_of(reader, decoded, reading)


def drafts_of(
    reader: Reader, files: Mapping[str, Iterable[tuple[int, Any]]], reading: Reading = READING
) -> tuple[list[Draft], Notes]:
    """The same of records as they are, with their numbers."""
    parts, noted = [], []
    for path, records in files.items():
        noted.append(Notes())
        parts.append(reader.read(records, PurePath(path), reading, noted[-1]))
    found, notes = reader.drafts(parts, reading), Notes()
    for each in noted:
        notes.merge(each)
    return found, notes


def sessions(
    reader: Reader, files: Mapping[str, Iterable[object]], reading: Reading = READING
) -> list[Session]:
    """The sessions of files, given by path as values that were written in JSON."""
    return put_together(drafts(reader, files, reading)[0], reading)[0]


def put_together(found: Iterable[Draft], reading: Reading = READING) -> tuple[list[Session], Notes]:
    """The sessions of drafts, and the notes on making them."""
    made, notes = [], Notes()
    for draft in found:
        session, more = recorded.session(draft, reading.gap_s)
        made.append(session)
        notes.merge(more)
    return made, notes


# --- The rules of the model -----------------------------------------------------------------------


def assert_well_formed(session: Session, *, labelled: bool = True) -> None:
    """A session keeps the rules of the model; *labelled* ones also those of logs."""
    broken = fault(session, labelled=labelled)
    assert broken is None, f"{broken}: {session}"


def fault(session: Session, *, labelled: bool) -> str | None:
    """The first rule of the model that a session breaks."""
    if not session.calls:
        return "no calls"
    if labelled and not session.id:
        return "no id"
    if session.start_s is not None and not isfinite(session.start_s):
        return "arrival"
    before_s = 0.0 if labelled else -inf
    for i, call in enumerate(session.calls):
        parent = None if call.parent is None else session.prompts[call.parent]
        ended_s = max((session.calls[j].end_s for j in call.after if 0 <= j < i), default=0.0)
        rules = {
            "lengths are whole": all(type(n) is int for n in (call.isl, call.osl, call.system)),
            "isl": call.isl >= 1,
            "osl": call.osl >= 0,
            "system": 0 <= call.system <= call.isl,
            "cached": call.cached is None or 0 <= call.cached <= call.isl,
            "finite": all(map(isfinite, (call.start_s, call.end_s, call.gap_s))),
            "order": before_s <= call.start_s <= call.end_s,
            "gap": call.gap_s >= 0,
            "after": all(0 <= j < i for j in call.after),
            "due": not labelled or ended_s + call.gap_s >= call.start_s - 1e-6,
            "parent": call.parent is None or -len(session.lent) <= call.parent < i,
            "parent shares": not labelled or (call.parent is None) == (call.shared == 0),
            "shared": call.shared % session.block_size == 0
            and 0 <= call.shared <= min(call.isl, 0 if parent is None else parent.isl),
            "model": call.model is None
            or (type(call.model) is str and (call.model or not labelled)),
            "agent": not labelled or re.fullmatch(r"|(agent|helper) [1-9]\d*", call.agent),
        }
        for rule, kept in rules.items():
            if not kept:
                return f"call {i}: {rule}: {call}"
        before_s = call.start_s
    return None


# --- Damage ---------------------------------------------------------------------------------------

TEXT = st.text(st.characters(), max_size=9)
"""Text of any characters, lone surrogates too, which decoders let through."""


def any_json(*likely: object, keys: st.SearchStrategy[str] = TEXT) -> st.SearchStrategy[Any]:
    """Any value that a decoder can give, and those that are *likely* to mean something."""
    return st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.integers(0, 3000)
        | st.floats()
        | TEXT
        | st.sampled_from(["", "0", "12", "-1", "1e400", *likely]),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=8,
    )


ANY_JSON = any_json()


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a value."""
    found: list[tuple[Any, Any]] = []
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        found.append((value, key))
        found += _places(inner)
    return found


@st.composite
def damaged(
    draw: st.DrawFn,
    records: Sequence[object],
    values: st.SearchStrategy[Any] = ANY_JSON,
    fields: Iterable[str] = (),
) -> list[Any]:
    """Some of valid records in any order, or some of them more than once, changed in places.

    Args:
        draw: Hypothesis gives it.
        records: The valid ones.
        values: What stands in a place then, which may be a whole record or at any depth in it.
        fields: Of these any may be changed in a record, whether it has it or not.
    """
    if draw(st.booleans()):
        chosen = draw(st.permutations(records))[: draw(st.integers(0, len(records)))]
    else:
        chosen = draw(st.lists(st.sampled_from(records), max_size=8))
    rows: list[Any] = [orjson.loads(orjson.dumps(each)) for each in chosen]
    names = sorted(fields)
    for _ in range(draw(st.integers(0, 8))):
        found = _places(rows)
        found += [(row, name) for row in rows if isinstance(row, dict) for name in names]
        if not found:
            break
        holder, key = found[draw(st.integers(0, len(found) - 1))]
        holder[key] = draw(values)
    return rows


def assert_survives(
    reader: Reader,
    files: Mapping[str, Sequence[Any]],
    reading: Reading = READING,
    *,
    may_refuse: bool = False,
) -> list[Session]:
    """Files of whatever records give sessions by the rules; *may_refuse* them for the user to mend.

    They are refused when they are read, not later.
    """
    parts = []
    for path, records in files.items():
        for record in records:
            reader.recognises(record)
        try:
            parts.append(reader.read(enumerate(records, 1), PurePath(path), reading, Notes()))
        except TraceError:
            if not may_refuse:
                raise
            return []
    made, _ = put_together(reader.drafts(parts, reading), reading)
    for session in made:
        assert_well_formed(session)
    return made
