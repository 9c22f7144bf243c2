"""MLPerf Endpoints' agentic data set: one row a message, a call before each of the assistant's.

The rows hold texts and no lengths, delays and no times. Prompts are whole, so what they share is
exact. Pure: of a text its length and a keyed name are kept. docs/formats.md describes the format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import PurePath
from typing import Any

from agentreplay.errors import TraceError
from agentreplay.trace.fields import count, number, objects, string
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import Draft, Reading, Recorded

ROLES = frozenset({"user", "assistant", "tool", "system"})

LONGEST_DELAY_S = 365 * 86_400.0

_Piece = tuple[int, int]
"""The name of a text and its characters."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A message; `head` are the tools and the system prompt that stand on its row."""

    turn: int
    answer: bool
    text: _Piece
    head: _Piece | None
    delay_s: float | None
    model: str | None
    line: int


@dataclass(slots=True)
class _Conversation:
    line: int
    rows: list[_Row] = field(default_factory=list)
    calls: list[Recorded] = field(default_factory=list)
    name: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """The conversations of one file by id."""

    path: PurePath
    conversations: dict[str, _Conversation]
    notes: Notes


def recognises(record: object) -> bool:
    """Whether a decoded JSON value is a row of the data set."""
    if not isinstance(record, dict) or "turn" not in record:
        return False
    role = record.get("role")
    return (
        isinstance(role, str) and role in ROLES and isinstance(record.get("conversation_id"), str)
    )


def read(
    records: Iterable[tuple[int, Any]], path: PurePath, reading: Reading, notes: Notes
) -> Part:
    """The conversations of one file.

    Raises:
        TraceError: the user gives no length of a token.
    """
    chars_per_token = reading.chars_per_token
    if chars_per_token is None:
        raise TraceError(
            f"{path}: MLPerf Endpoints records no lengths; --chars-per-token supplies them"
        )
    part = Part(path, {}, notes)
    for line, record in records:
        if not recognises(record):
            notes.add("records that are no messages, left out", line)
            continue
        conversation = part.conversations.setdefault(record["conversation_id"], _Conversation(line))
        rows = conversation.rows
        last = rows[-1].turn if rows else 0
        turn = count(record["turn"])
        model = record.get("model")
        delay_s = number(record.get("delay_seconds"))
        if delay_s is not None and not 0 <= delay_s <= LONGEST_DELAY_S:
            notes.add("delays below 0 or above a year, taken as none", line)
            delay_s = 0.0
        rows.append(
            _Row(
                turn=last if turn is None else turn,
                answer=record["role"] == "assistant",
                text=_piece(_message(record), reading),
                head=_piece(_head(record), reading) if _has_head(record) else None,
                delay_s=delay_s,
                model=string(model),
                line=line,
            )
        )
    for conversation in part.conversations.values():
        _fill(conversation, reading, chars_per_token, notes)
    return part


def drafts(parts: Sequence[Part], reading: Reading) -> list[Draft]:
    """The conversations of all files, each once."""
    del reading
    found = []
    seen: set[tuple[str, int]] = set()
    for part in parts:
        for identity, conversation in part.conversations.items():
            if not conversation.calls:
                part.notes.add("conversations without a call, left out", conversation.line)
                continue
            if (identity, conversation.name) in seen:
                part.notes.add("conversations recorded twice, left out", conversation.line)
                continue
            seen.add((identity, conversation.name))
            source = f"{part.path}:{conversation.line}"
            found.append(
                Draft(
                    id=identity or source,
                    source=source,
                    calls=conversation.calls,
                    dated=False,
                    notes=part.notes,
                )
            )
    return found


def _fill(
    conversation: _Conversation, reading: Reading, chars_per_token: float, notes: Notes
) -> None:
    """Make the calls: each has all rows before an answer as its prompt."""
    rows = sorted(conversation.rows, key=lambda row: row.turn)
    if rows != conversation.rows:
        notes.add("conversations whose turns go back, put in order", conversation.line)
    conversation.rows = []
    head = next((row.head for row in rows if row.head), None)
    if any(row.head and row.head != head for row in rows):
        notes.add("conversations that change tools or system prompt, not followed", rows[0].line)
    names, ends = [], []
    name = chars = 0
    if head:
        name, chars = head
        names.append(name)
        ends.append(ceil(chars / chars_per_token))
    system = ends[0] if ends else 0
    delay_s = model = None
    before: _Row | None = None
    for row in rows:
        if before is not None and (row.turn, row.answer, row.text) == (
            (before.turn, before.answer, before.text)
        ):
            notes.add("rows recorded twice, left out", row.line)
            continue
        before = row
        model = row.model or model
        delay_s = delay_s if row.delay_s is None else row.delay_s
        if row.answer:
            if ends and ends[-1]:
                conversation.calls.append(
                    Recorded(
                        start_s=None,
                        end_s=None,
                        isl=ends[-1],
                        osl=ceil(row.text[1] / chars_per_token),
                        model=model,
                        system=system,
                        delay_s=delay_s,
                        prompt=tuple(names),
                        ends=tuple(ends),
                    )
                )
            else:
                notes.add("answers to nothing, left out", row.line)
            delay_s = None
        name = reading.name(row.text[0].to_bytes(8, "little"), name)
        chars += row.text[1]
        names.append(name)
        ends.append(ceil(chars / chars_per_token))
    conversation.name = name


def _piece(texts: Iterable[str], reading: Reading) -> _Piece:
    text = "".join(texts)
    return reading.named(text), len(text)


def _message(record: Mapping[str, Any]) -> Iterator[str]:
    """What a message adds to a prompt, or to an answer."""
    for name in ("reasoning_content", "content"):
        yield from _texts(record.get(name))
    for call in objects(record.get("tool_calls")):
        function = call.get("function")
        if isinstance(function, dict):
            yield from _texts(function.get("name"))
            arguments = function.get("arguments")
            yield arguments if isinstance(arguments, str) else _json(arguments)
    for result in objects(record.get("tool_results")):
        yield from _texts(result.get("content"))


def _has_head(record: Mapping[str, Any]) -> bool:
    return bool(record.get("system") or record.get("tools"))


def _head(record: Mapping[str, Any]) -> Iterator[str]:
    yield _json(record.get("tools"))
    yield from _texts(record.get("system"))


def _texts(content: object) -> Iterator[str]:
    """The texts of a message's content, which is one text or a list of parts."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                yield text


def _json(value: object) -> str:
    """A value as JSON text, as it stands in a prompt; nothing for an absent one."""
    if value is None:
        return ""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return ""
