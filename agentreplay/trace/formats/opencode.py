"""opencode's storage: sessions, messages and parts, as JSON files or as rows of its database.

Each record is a file or a row of its own; they are put together by their ids over all files. A
message may hold several calls, one for each step. System prompt and tools are not in the storage,
so what prompts share comes from counts. Pure: numbers only are kept. docs/formats.md describes the
format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from agentreplay.trace.fields import count, inside, string, unix_s
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import Draft, Reading, Recorded, continue_by_counts

TABLES = frozenset({"session", "message", "part"})
ROLES = frozenset({"user", "assistant"})

_Lengths = tuple[int, int, int | None]
"""Input, output and cached tokens."""


@dataclass(frozen=True, slots=True)
class _Session:
    parent: str | None
    project: str | None


@dataclass(frozen=True, slots=True)
class _Message:
    """An answer; `lengths` are those of its last step."""

    session: str
    start_s: float | None
    end_s: float | None
    lengths: _Lengths | None
    model: str | None
    path: PurePath
    line: int
    notes: Notes


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of an answer.

    Attributes:
        id: Grows with time.
        begins: A step starts here.
        created_s: When it was written, where the storage says so.
        output_s: When the model had put it out.
        result_s: When its tool had a result.
        lengths: Those of the step that ends here.
    """

    id: str
    begins: bool
    created_s: float | None
    output_s: float | None
    result_s: float | None
    lengths: _Lengths | None


@dataclass(frozen=True, slots=True)
class Part:
    """What one file holds: sessions and answers by id, pieces by the id of their answer."""

    sessions: dict[str, _Session]
    messages: dict[str, _Message]
    pieces: dict[str, list[_Piece]]


def recognises(record: object) -> bool:
    """Whether a decoded JSON value is a session, message or part of opencode."""
    return isinstance(record, dict) and _table(record) is not None


def read(
    records: Iterable[tuple[int, Any]], path: PurePath, reading: Reading, notes: Notes
) -> Part:
    """The sessions, answers and parts of one file."""
    del reading
    part = Part({}, {}, {})
    for line, record in records:
        table = _table(record) if isinstance(record, dict) else None
        if table is None:
            notes.add("records of no known kind, left out", line)
            continue
        data = record.get("data")
        row = {**record, **data} if "table" in record and isinstance(data, dict) else record
        identity = row.get("id")
        if not isinstance(identity, str) or not identity:
            notes.add("records without an id, left out", line)
        elif row is record and table != "session" and "table" in record:
            notes.add("rows without data, left out", line)
        elif table == "session":
            part.sessions[identity] = _Session(
                parent=_named(row, "parentID", "parent_id"),
                project=_named(row, "directory", "projectID", "project_id"),
            )
        elif table == "part":
            owner = _named(row, "messageID", "message_id")
            piece = _piece(identity, row)
            if owner is not None and piece is not None:
                part.pieces.setdefault(owner, []).append(piece)
        elif row.get("role") == "assistant":
            times = inside(row, "time")
            created_s = unix_s(times.get("created"))
            part.messages[identity] = _Message(
                session=_named(row, "sessionID", "session_id") or f"{path}:{line}",
                start_s=unix_s(row.get("time_created")) if created_s is None else created_s,
                end_s=unix_s(times.get("completed")),
                lengths=_lengths(row.get("tokens")),
                model=string(row.get("modelID")),
                path=path,
                line=line,
                notes=notes,
            )
    return part


def drafts(parts: Sequence[Part], reading: Reading) -> list[Draft]:
    """The sessions of all files, each with the subagents that name it as their parent."""
    del reading
    sessions: dict[str, _Session] = {}
    messages: dict[str, _Message] = {}
    pieces: dict[str, dict[str, _Piece]] = {}
    for part in parts:
        sessions |= part.sessions
        messages |= part.messages
        for owner, found in part.pieces.items():
            pieces.setdefault(owner, {}).update((piece.id, piece) for piece in found)
    agents: dict[str, list[tuple[Recorded, _Message]]] = {}
    seen: set[tuple[object, ...]] = set()
    for identity in sorted(messages):  # ids grow with time, so a copy comes after its original
        message = messages[identity]
        for call in _calls(
            message, sorted(pieces.get(identity, {}).values(), key=lambda piece: piece.id)
        ):
            same = (call.start_s, call.end_s, call.isl, call.osl, call.model)
            if same in seen:
                message.notes.add("calls copied from another session, left out", message.line)
                continue
            seen.add(same)
            agents.setdefault(message.session, []).append((call, message))
    roots: dict[str, list[str]] = {}
    for identity, calls in agents.items():
        calls.sort(key=lambda pair: pair[0].start_s or 0.0)
        continue_by_counts(call for call, _ in calls)
        roots.setdefault(_root(identity, sessions), []).append(identity)
    return [_draft(root, members, agents, sessions) for root, members in roots.items()]


def _draft(
    root: str,
    members: list[str],
    agents: Mapping[str, list[tuple[Recorded, _Message]]],
    sessions: Mapping[str, _Session],
) -> Draft:
    members.sort(key=lambda name: (name != root, agents[name][0][0].start_s or 0.0))
    number = 0
    for name in members:
        number += name != root
        for call, _ in agents[name]:
            call.agent = f"agent {number}" if name != root else ""
    first = agents[members[0]][0][1]
    known = sessions.get(root) or sessions.get(members[0])
    return Draft(
        id=root,
        source=f"{first.path}:{first.line}",
        calls=[call for name in members for call, _ in agents[name]],
        dated=True,
        notes=first.notes,
        project=known.project if known else None,
    )


def _root(identity: str, sessions: Mapping[str, _Session]) -> str:
    """The session at the top of a session's parents."""
    passed = {identity}
    while (known := sessions.get(identity)) and known.parent and known.parent not in passed:
        identity = known.parent
        passed.add(identity)
    return identity


def _calls(message: _Message, pieces: Sequence[_Piece]) -> Iterator[Recorded]:
    """The calls of an answer: one for each step that ended, or else one for all of it."""
    finishes = sum(piece.lengths is not None for piece in pieces)
    start_s = message.start_s
    output_s = result_s = None
    for piece in pieces:
        if piece.begins and start_s is None:
            start_s = piece.created_s
        output_s = _later(output_s, piece.output_s)
        result_s = _later(result_s, piece.result_s)
        if piece.lengths is None:
            continue
        finishes -= 1
        end_s = piece.created_s if finishes or message.end_s is None else message.end_s
        # A step counts as ended when its tools have their results: the model was done before.
        end_s = output_s if result_s is not None or end_s is None else end_s
        if start_s is None:
            message.notes.add("answers without a time, left out", message.line)
        else:
            yield _call(message, piece.lengths, start_s, end_s)
        start_s = _later(_later(result_s, end_s), start_s)
        output_s = result_s = None
    if any(piece.lengths is not None for piece in pieces):
        return
    if message.lengths is None:
        message.notes.add("answers without token counts, left out", message.line)
    elif start_s is None:
        message.notes.add("answers without a time, left out", message.line)
    else:
        end_s = message.end_s if result_s is None and message.end_s is not None else output_s
        yield _call(message, message.lengths, start_s, end_s)


def _call(message: _Message, lengths: _Lengths, start_s: float, end_s: float | None) -> Recorded:
    isl, osl, cached = lengths
    return Recorded(start_s, end_s, isl, osl, model=message.model, cached=cached)


def _table(record: Mapping[str, Any]) -> str | None:
    """Whether a record is of a session, a message or a part."""
    table = record.get("table")
    if isinstance(table, str) and table in TABLES and "time_created" in record:
        return table
    if "messageID" in record and "sessionID" in record and "type" in record:
        return "part"
    if "time" not in record:
        return None
    role = record.get("role")
    if "sessionID" in record and isinstance(role, str) and role in ROLES:
        return "message"
    if ("projectID" in record or "directory" in record) and (identity := string(record.get("id"))):
        return "session" if identity.startswith("ses") else None
    return None


def _piece(identity: str, row: Mapping[str, Any]) -> _Piece | None:
    """What a part says about times and lengths; None where it says nothing."""
    kind = row.get("type")
    created_s = output_s = result_s = lengths = None
    if kind == "step-finish":
        lengths = _lengths(row.get("tokens"))
        created_s = unix_s(row.get("time_created"))
    elif kind == "step-start":
        created_s = unix_s(row.get("time_created"))
    elif kind == "tool":
        times = inside(row, "state", "time")
        output_s, result_s = unix_s(times.get("start")), unix_s(times.get("end"))
    elif kind == "text" or kind == "reasoning":
        output_s = unix_s(inside(row, "time").get("end"))
    if lengths is None and created_s is None and output_s is None and result_s is None:
        return None
    return _Piece(identity, kind == "step-start", created_s, output_s, result_s, lengths)


def _lengths(tokens: object) -> _Lengths | None:
    """Cached tokens are beside the input, and reasoning beside the output."""
    if not isinstance(tokens, dict):
        return None
    new, osl = count(tokens.get("input")), count(tokens.get("output"))
    if new is None or osl is None:
        return None
    cache = inside(tokens, "cache")
    cached = count(cache.get("read"))
    isl = new + (cached or 0) + (count(cache.get("write")) or 0)
    return (isl, osl + (count(tokens.get("reasoning")) or 0), cached) if isl else None


def _later(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


def _named(record: Mapping[str, Any], *names: str) -> str | None:
    """The first of these fields that holds a text: files and columns are named differently."""
    return next((found for name in names if (found := string(record.get(name)))), None)
