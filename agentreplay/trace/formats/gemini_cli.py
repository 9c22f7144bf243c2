"""Gemini CLI's chats: one JSON document a session, or its newer log of JSON lines.

A message has one stamp, of its end. System prompt and tools are not in the file, so what prompts
share comes from counts. Pure: numbers only are kept. docs/formats.md describes the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from agentreplay.trace.fields import count, objects, string, unix_s
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import Draft, Reading, Recorded, continue_by_counts, total_input

CONTROLS = ("$set", "$rewindTo")
"""Fields of lines that change what stands before them."""

_Lengths = tuple[int, int, int | None]
"""Input, output and cached tokens."""


@dataclass(frozen=True, slots=True)
class _Message:
    """A message; `tools_s` is when the last of its tools had a result."""

    type: str
    time_s: float | None
    tools_s: float | None
    lengths: _Lengths | None
    model: str | None
    line: int


@dataclass(slots=True, eq=False)
class _Chat:
    """The messages of a session by their ids, in order. `folder` is where its file lies."""

    id: str | None
    project: str | None
    subagent: bool
    folder: str
    path: PurePath
    line: int
    start_s: float | None
    notes: Notes
    messages: dict[str, _Message] = field(default_factory=dict)
    calls: list[Recorded] = field(default_factory=list)

    def add(self, messages: Mapping[str, _Message]) -> None:
        """Add messages; a later copy of one replaces it, except by one without lengths."""
        for name, message in messages.items():
            known = self.messages.get(name)
            if known is None or message.lengths or not known.lengths:
                self.messages[name] = message


@dataclass(frozen=True, slots=True)
class Part:
    """The sessions of one file."""

    chats: list[_Chat]


def recognises(record: object) -> bool:
    """Whether a decoded JSON value is a chat, or a line that only a log of a chat has."""
    if not isinstance(record, dict):
        return False
    if "projectHash" in record:
        return isinstance(record.get("messages"), list) or "sessionId" in record
    if record.get("type") == "gemini":
        return "id" in record
    return len(record) == 1 and any(name in record for name in CONTROLS)


def read(
    records: Iterable[tuple[int, Any]], path: PurePath, reading: Reading, notes: Notes
) -> Part:
    """The sessions of one file."""
    del reading
    chats: list[_Chat] = []
    for line, record in records:
        if not isinstance(record, dict):
            notes.add("records of no known kind, left out", line)
            continue
        opens = "projectHash" in record or "sessionId" in record
        if opens or not chats:
            chats.append(_chat(record if opens else {}, path, line, notes))
        chat = chats[-1]
        if opens:
            _add(chat, record.get("messages"), line)
        elif "$set" in record:
            change = record["$set"]
            _add(chat, change.get("messages") if isinstance(change, dict) else None, line)
        elif isinstance(record.get("type"), str):
            _add(chat, [record], line)
        elif "$rewindTo" not in record:
            notes.add("records of no known kind, left out", line)
    return Part(chats)


def drafts(parts: Sequence[Part], reading: Reading) -> list[Draft]:
    """The sessions of all files with their subagents; a session may be in several files."""
    del reading
    chats: dict[tuple[str | None, str], _Chat] = {}
    for part in parts:
        for chat in part.chats:
            known = chats.setdefault((chat.project, chat.id or f"{chat.path}:{chat.line}"), chat)
            if known is not chat:
                known.add(chat.messages)
    members: dict[_Chat, list[_Chat]] = {chat: [] for chat in chats.values()}
    for chat in chats.values():
        _fill(chat)
        parent = chats.get((chat.project, chat.folder)) if chat.subagent else None
        if parent is not None and not parent.subagent:
            del members[chat]
            members[parent].append(chat)
        elif chat.subagent:
            chat.notes.add("subagents whose session isn't here, kept as sessions", chat.line)
    found = []
    for chat, others in members.items():
        others = [other for other in others if other.calls]
        others.sort(key=lambda other: other.calls[0].start_s or 0.0)
        for number, other in enumerate(others, 1):
            for call in other.calls:
                call.agent = f"agent {number}"
        source = f"{chat.path}:{chat.line}"
        calls = [call for each in (chat, *others) for call in each.calls]
        if calls:
            found.append(
                Draft(chat.id or source, source, calls, True, chat.notes, project=chat.project)
            )
    return found


def _chat(record: Mapping[str, Any], path: PurePath, line: int, notes: Notes) -> _Chat:
    return _Chat(
        id=string(record.get("sessionId")),
        project=string(record.get("projectHash")),
        subagent=record.get("kind") == "subagent",
        folder=path.parent.name,
        path=path,
        line=line,
        start_s=unix_s(record.get("startTime")),
        notes=notes,
    )


def _add(chat: _Chat, records: object, line: int) -> None:
    """Add the messages of a list; those without an id are never taken for each other."""
    for record in records if isinstance(records, list) else ():
        kind = record.get("type") if isinstance(record, dict) else None
        if not isinstance(kind, str):
            chat.notes.add("messages without a type, left out", line)
            continue
        times = (unix_s(tool.get("timestamp")) for tool in objects(record.get("toolCalls")))
        message = _Message(
            type=kind,
            time_s=unix_s(record.get("timestamp")),
            tools_s=max((each for each in times if each is not None), default=None),
            lengths=_lengths(record.get("tokens"), chat.notes, line) if kind == "gemini" else None,
            model=string(record.get("model")),
            line=line,
        )
        chat.add({string(record.get("id")) or f"{chat.path}:{line} {len(chat.messages)}": message})


def _lengths(tokens: object, notes: Notes, line: int) -> _Lengths | None:
    """Thoughts are beside the output, and tokens of built-in tools beside the input."""
    if not isinstance(tokens, dict):
        return None
    isl, osl = count(tokens.get("input")), count(tokens.get("output"))
    if not isl or osl is None:
        return None
    osl += count(tokens.get("thoughts")) or 0
    tool, total = count(tokens.get("tool")) or 0, count(tokens.get("total"))
    if total is None or total >= isl + osl + tool:
        isl += tool
    cached = count(tokens.get("cached"))
    what = "answers with more cached than input tokens, both added"
    return total_input(isl, cached, notes, what, line), osl, cached


def _fill(chat: _Chat) -> None:
    """Make the calls: an answer began when the input before it came."""
    notes = chat.notes
    input_s = chat.start_s
    chat.calls = []
    for message in chat.messages.values():
        time_s = message.time_s
        if message.type == "user" and time_s is not None:
            input_s = time_s
        if message.type != "gemini":
            continue
        if message.lengths is None:
            notes.add("answers without token counts, left out", message.line)
        elif time_s is None:
            notes.add("answers without a time, left out", message.line)
        else:
            isl, osl, cached = message.lengths
            call = Recorded(
                start_s=time_s if input_s is None else min(input_s, time_s),
                end_s=time_s,
                isl=isl,
                osl=osl,
                model=message.model,
                cached=cached,
            )
            if input_s is None or input_s > time_s:
                notes.add("answers without an input before them, duration estimated", message.line)
                call.end_s = None
            chat.calls.append(call)
        if time_s is not None:
            input_s = max(time_s, message.tools_s or time_s)
    continue_by_counts(chat.calls)
