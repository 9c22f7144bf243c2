"""Published logs of when requests came and how long they were: Bailian, BurstGPT, Azure.

Pure: decoded lines, or rows of tables by header, in, drafts of sessions out. docs/formats.md
describes the formats. A file is a trace of its own. Only Bailian's requests belong together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from agentreplay.trace.fields import count, number, string, unix_s
from agentreplay.trace.formats.mooncake import block_ids, block_size, consistent
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import BLOCK_TOKENS, Draft, Reading, Recorded

BAILIAN_BLOCK = 16
"""Tokens a block of Bailian's, unless the numbers of ids say otherwise."""


@dataclass(slots=True, eq=False)
class _Row:
    """A request; those of Bailian have a chat, ids of blocks, and may continue another chat."""

    line: int
    call: Recorded
    dated: bool = False
    chat: str | None = None
    parent: str | None = None
    ids: Any = None


def recognises(record: object) -> bool:
    """Whether a record is a line of Bailian's, or a row of BurstGPT's or Azure's tables."""
    return _kind(record) is not None


def read(
    records: Iterable[tuple[int, Any]], path: PurePath, reading: Reading, notes: Notes
) -> list[Draft]:
    """The sessions of one file.

    Raises:
        TraceError: the file has block ids, and no row's fit its length.
    """
    rows = []
    for line, record in records:
        kind = _kind(record)
        row = None if kind is None else kind(record)
        if row is None:
            what = "a time, an input and an output length" if kind else "a known kind"
            notes.add(f"rows without {what}, left out", line)
            continue
        row.line, row.ids = line, block_ids(row.ids, line, notes)
        if not row.call.osl:
            notes.add("calls without output, sent with one token", line)
        rows.append(row)
    size = block_size([(row.call.isl, len(row.ids)) for row in rows], BAILIAN_BLOCK, notes)
    rows = consistent(rows, size, path, notes)
    sessions = _chains(rows, notes)
    file, drafts = str(path), []
    for first, session in sessions.items():
        source = f"{file}:{session[0].line}"
        for row in session:
            row.call.prompt = row.ids[: row.call.isl // size]
        calls = [row.call for row in session]
        name = first if isinstance(first, str) else source
        tokens = size if any(row.ids for row in session) else BLOCK_TOKENS
        dated = session[0].dated
        drafts.append(Draft(name, source, calls, dated, notes, tokens, scope=file))
    return drafts


def drafts(parts: Sequence[list[Draft]], reading: Reading) -> list[Draft]:
    """The sessions of all files."""
    return [draft for part in parts for draft in part]


def _kind(record: object) -> Callable[[Mapping[str, Any]], _Row | None] | None:
    """The reader of a record; None where it is of no known kind."""
    if not isinstance(record, dict):
        return None
    if "chat_id" in record and "input_length" in record:
        return _bailian
    if "Request tokens" in record and "Response tokens" in record:
        return _burstgpt
    if "ContextTokens" in record and "GeneratedTokens" in record:
        return _azure
    return None


def _bailian(record: Mapping[str, Any]) -> _Row | None:
    row = _row(number(record.get("timestamp")), record, "input_length", "output_length")
    if row is not None:
        row.chat, row.parent = _id(record.get("chat_id")), _id(record.get("parent_chat_id"))
        row.ids = record.get("hash_ids")
    return row


def _burstgpt(record: Mapping[str, Any]) -> _Row | None:
    row = _row(number(_first(record, "Timestamp")), record, "Request tokens", "Response tokens")
    if row is not None and row.call.start_s is not None:
        row.call.model = string(record.get("Model"))
        elapsed_s = number(record.get("Elapsed time"))
        if elapsed_s is not None and elapsed_s > 0:
            row.call.end_s = row.call.start_s + elapsed_s
    return row


def _azure(record: Mapping[str, Any]) -> _Row | None:
    row = _row(unix_s(_first(record, "TIMESTAMP")), record, "ContextTokens", "GeneratedTokens")
    if row is not None:
        row.dated = True
    return row


def _row(start_s: float | None, record: Mapping[str, Any], taken: str, given: str) -> _Row | None:
    isl, osl = count(record.get(taken)), count(record.get(given))
    if start_s is None or not isl or osl is None:
        return None
    return _Row(0, Recorded(start_s, None, isl, osl))


def _first(record: Mapping[str, Any], name: str) -> object:
    """The value of the first column, whose name may begin with a byte order mark."""
    return record.get(name, record.get(f"\ufeff{name}"))


def _id(value: object) -> str | None:
    """A chat's number as text; None where there is none, as -1 says."""
    named = count(value)
    if named is not None:
        return str(named)
    return value or None if isinstance(value, str) and value != "-1" else None


def _chains(rows: Sequence[_Row], notes: Notes) -> dict[str | _Row, list[_Row]]:
    """Rows by the first chat of their chain, or by themselves.

    A chat whose parent isn't there is a first one.
    """
    parents: dict[str, str | None] = {}
    for row in rows:
        if row.chat is not None:
            parents.setdefault(row.chat, row.parent)
    firsts: dict[str, str] = {}
    sessions: dict[str | _Row, list[_Row]] = {}
    for row in rows:
        if row.chat is None:
            sessions[row] = [row]
            continue
        way: dict[str, None] = {}
        chat = row.chat
        while chat not in firsts:
            way[chat] = None
            parent = parents[chat]
            if parent is None or parent not in parents:
                break
            if parent in way:
                notes.add("chats that continue each other, taken as one", row.line)
                break
            chat = parent
        first = firsts.get(chat, chat)
        firsts |= dict.fromkeys(way, first)
        sessions.setdefault(first, []).append(row)
    return sessions
