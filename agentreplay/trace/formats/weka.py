"""Weka traces (kv-cache-tester, AgentX): one JSON object a session, prompts as block ids.

Pure: a decoded JSON value in, a session and notes out. docs/formats.md describes the format.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from agentreplay.errors import TraceError
from agentreplay.trace.fields import string
from agentreplay.trace.model import MOST_TOKENS, Call, Notes, Session
from agentreplay.trace.recorded import Draft, Recorded
from agentreplay.trace.structure import ROUNDING_S, link, shared_prefixes, with_estimated_ends

SESSION_FIELDS = frozenset(
    "id models block_size hash_id_scope tool_tokens system_tokens requests totals".split()
)
REQUEST_FIELDS = frozenset(
    "t type model in out hash_ids input_types output_types stop api_time think_time ttft".split()
)
SUBAGENT_FIELDS = frozenset(
    "t type agent_id subagent_type duration_ms total_tokens tool_use_count status models "
    "tool_tokens system_tokens requests".split()
)


def recognises(value: object) -> bool:
    """Whether a decoded JSON value is a Weka session."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("requests"), list)
        and ("block_size" in value or "hash_id_scope" in value)
    )


def is_global(value: Mapping[str, Any]) -> bool:
    """Whether a session's block ids name the same in all sessions of its set."""
    return value.get("hash_id_scope") == "global"


def session(value: Mapping[str, Any], source: str) -> tuple[Session, Notes]:
    """Read one session, by itself.

    Raises:
        TraceError: the object has no usable block size or no usable request.
    """
    notes: Notes = Notes()
    block_size, rows, prompts = _rows(value, source, notes)
    if is_global(value):
        notes["global block ids, read alone: prefixes are shared within the session only"] += 1
    try:
        if value.get("hash_id_scope") is None:
            prompts = _separated([call.agent for call, _ in rows], prompts)
        relations = shared_prefixes(prompts)
    except TypeError:
        raise TraceError(f"{source}: {_NO_IDS}") from None
    origin_s = rows[0][0].start_s
    calls = [
        Call(
            call.start_s - origin_s,
            call.end_s - origin_s,
            *call[2:7],
            parent,
            blocks * block_size,
            *call[9:],
        )
        for (call, _), (parent, blocks) in zip(rows, relations, strict=True)
    ]
    name = string(value.get("id")) or source
    linked = link(with_estimated_ends(calls), block_size)
    return Session(name, None, linked, block_size, source), notes


def draft(value: Mapping[str, Any], source: str) -> tuple[Draft, Notes]:
    """Read one session whose block ids are global, for the comparison with the others.

    Its times count from its own start, so they say nothing about its arrival.

    Raises:
        TraceError: the object has no usable block size or no usable request.
    """
    notes: Notes = Notes()
    block_size, rows, prompts = _rows(value, source, notes)
    calls = [
        Recorded(
            call.start_s,
            call.end_s if call.timed else None,
            call.isl,
            call.osl,
            agent=call.agent,
            model=call.model,
            system=call.system,
            prompt=_packed(ids, source),
        )
        for (call, _), ids in zip(rows, prompts, strict=True)
    ]
    name = string(value.get("id")) or source
    draft = Draft(
        name, source, calls, False, block_size=block_size, scope="weka", rounding_s=ROUNDING_S
    )
    return draft, notes


_NO_IDS = "hash_ids holds values that are no ids"


def _packed(ids: list[Any], source: str) -> Sequence[Any]:
    try:
        return array("Q", ids)
    except (TypeError, OverflowError):
        pass
    try:
        set(ids)
    except TypeError:
        raise TraceError(f"{source}: {_NO_IDS}") from None
    return ids


def _rows(
    value: Mapping[str, Any], source: str, notes: Notes
) -> tuple[int, list[tuple[Call, list[Any]]], list[list[Any]]]:
    """The block size, the requests in order of time, and the ids of their whole blocks."""
    block_size = _count(value.get("block_size"))
    if not block_size:
        raise TraceError(f"{source}: block_size is missing or not a positive whole number")
    _note_unknown(value, SESSION_FIELDS, notes)
    rows = list(_requests(value, "", 0.0, notes))
    rows.sort(key=lambda row: row[0].start_s)
    if not rows:
        raise TraceError(f"{source}: no usable request")
    return block_size, rows, [_blocks(call, ids, block_size, notes) for call, ids in rows]


def line(
    session: Session, first_block: int, known: dict[int, int] | None = None
) -> tuple[bytes, int]:
    """The session as one line with its line end, and the first block id that is still free.

    Blocks are numbered from *first_block* on in order of their first use. Subagents are entries
    with times from the session's start; a call's waits and its cached tokens have no field.

    Args:
        session: The session.
        first_block: The first block id that is free.
        known: The ids at which the new blocks of calls begin, by the calls' names, where sessions
            share prefixes; it is added to.
    """
    size, free = session.block_size, first_block
    if known is None or not session.names:
        known = {}
    calls = session.prompts
    prompts: dict[int, list[int]] = {}
    for i in sorted(range(-len(session.lent), len(session.calls)), key=session.name):
        call = calls[i]
        inherited = [] if call.parent is None else prompts[call.parent][: call.shared // size]
        new = call.isl // size - len(inherited)
        first = known.setdefault(session.name(i), free)
        free = max(free, first + new)
        prompts[i] = inherited + list(range(first, first + new))
    entries: list[dict[str, Any]] = []
    agents: dict[str, dict[str, Any]] = {}
    for i, call in enumerate(session.calls):
        request: dict[str, Any] = {"t": round(call.start_s, 6), "type": "n"}
        if call.model is not None:
            request["model"] = call.model
        request |= {"in": call.isl, "out": call.osl, "hash_ids": prompts[i]}
        if call.timed:
            request["api_time"] = round(call.end_s - call.start_s, 6)
        if call.agent and call.agent not in agents:
            entry = {"t": request["t"], "type": "subagent", "agent_id": call.agent}
            agents[call.agent] = entry | {"system_tokens": 0, "requests": []}
            entries.append(agents[call.agent])
        if call.agent:
            holder = agents[call.agent]
            holder["requests"].append(request)
            holder["system_tokens"] = max(holder["system_tokens"], call.system)
        else:
            entries.append(request)
    value = {
        "id": session.id,
        "models": sorted({call.model for call in session.calls if call.model is not None}),
        "block_size": size,
        "hash_id_scope": "global" if session.names else "local",
        "system_tokens": max((c.system for c in session.calls if not c.agent), default=0),
        "requests": entries,
    }
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE), free


def _requests(
    holder: Mapping[str, Any], agent: str, origin_s: float, notes: Notes
) -> Iterator[tuple[Call, list[Any]]]:
    """The requests of an agent and of its subagents, with their block ids as recorded."""
    system = (_count(holder.get("tool_tokens")) or 0) + (_count(holder.get("system_tokens")) or 0)
    entries = [entry for entry in holder["requests"] if isinstance(entry, dict)]
    if others := len(holder["requests"]) - len(entries):
        notes["entries that are no objects, left out"] += others
    relative = _inner_times_are_relative(entries)
    for number, entry in enumerate(entries):
        t = _number(entry.get("t"))
        if entry.get("requests") and isinstance(entry["requests"], list):
            _note_unknown(entry, SUBAGENT_FIELDS, notes)
            label = str(entry.get("agent_id") or f"{agent}/{number}")
            yield from _requests(entry, label, origin_s + ((t or 0.0) if relative else 0.0), notes)
            continue
        if entry.get("type") == "subagent":
            notes["subagents without requests, left out"] += 1
            continue
        isl, osl = _count(entry.get("in")), _count(entry.get("out"))
        if t is None or not isl:
            notes["requests without a time or an input length, left out"] += 1
            continue
        _note_unknown(entry, REQUEST_FIELDS, notes)
        seconds = _number(entry.get("api_time"))
        timed = seconds is not None and seconds >= 0
        if not timed:
            notes["calls without api_time, duration estimated"] += 1
        if not osl:
            notes["calls without output, sent with one token"] += 1
        model, ids = entry.get("model"), entry.get("hash_ids")
        start_s = origin_s + t
        yield (
            Call(  # by position: there are many
                start_s,
                start_s + (seconds or 0.0) if timed else start_s,
                timed,
                isl,
                osl or 0,
                (),
                0.0,
                None,
                0,
                min(system, isl),
                agent,
                string(model),
                None,
            ),
            ids if isinstance(ids, list) else [],
        )


def _inner_times_are_relative(entries: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the times inside subagent entries count from the entry.

    The raw sets count from the entry, the published ones from the session's start, and a row says
    neither. An inner time of 0, or one before its entry, can only count from the entry.
    """
    for entry in entries:
        inner = entry.get("requests")
        if not isinstance(inner, list):
            continue
        t = _number(entry.get("t"))
        if t is None:
            continue
        times = [_number(row.get("t")) for row in inner if isinstance(row, dict)]
        known = [time for time in times if time is not None]
        if known and ((known[0] == 0 and t > 0) or min(known) < t - 1):
            return True
    return False


def _blocks(call: Call, ids: list[Any], block_size: int, notes: Notes) -> list[int]:
    """The ids of the whole blocks of a prompt; the rest of it has none."""
    whole = call.isl // block_size
    if len(ids) > whole:
        notes["calls with more block ids than whole blocks, cut"] += 1
        ids = ids[:whole]
    return ids


def _separated(agents: Sequence[str], prompts: Sequence[list[int]]) -> list[list[int]]:
    """Ids of recordings without a scope name blocks within their agent only: keep them apart."""
    names: dict[tuple[str, int], int] = {}
    return [
        [names.setdefault((agent, block), len(names)) for block in ids]
        for agent, ids in zip(agents, prompts, strict=True)
    ]


def _note_unknown(value: Mapping[str, Any], known: frozenset[str], notes: Notes) -> None:
    if value.keys() <= known:
        return
    for name in value.keys() - known:
        if value[name] is not None:
            notes[f"unknown field {name!r}, ignored"] += 1


def _number(value: object) -> float | None:
    """A JSON number as a float; None for null, absence and any other type."""
    if type(value) is float:
        return value
    return float(value) if type(value) is int else None


def _count(value: object) -> int | None:
    """A non-negative whole number, also where a table made a float of it."""
    if type(value) is int:
        return value if 0 <= value <= MOST_TOKENS else None
    if type(value) is not float or not 0 <= value <= MOST_TOKENS or not value.is_integer():
        return None
    return int(value)
