"""Dynamo's request trace and the older agent trace: a JSON line an event, hashes of blocks.

Pure: decoded lines in, drafts of sessions out. docs/formats.md describes the format. A trace may
be cut into files, and its lines are in the order in which requests ended.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from agentreplay.trace.fields import count, identity, inside, number, string
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import (
    BLOCK_TOKENS,
    Draft,
    Reading,
    Recorded,
    continue_by_counts,
    total_input,
)

SCHEMAS = ("dynamo.request.trace", "dynamo.agent.trace")

TOOLS = frozenset(("tool_start", "tool_end", "tool_error"))

_Chain = tuple[str | None, str]
"""A group of agents, where the trace names one, and an agent's own session."""


@dataclass(slots=True, eq=False)
class _Request:
    """One request; `parent` is the chain whose agent began this one."""

    line: int
    call: Recorded
    chain: _Chain
    parent: _Chain | None
    id: str | None
    block_size: int


@dataclass(frozen=True, slots=True)
class Part:
    """What is kept of one file."""

    path: PurePath
    requests: list[_Request]
    notes: Notes


class _Names(dict[Any, int]):
    """Numbers that stand for hashes, the same ones in all files of a reading."""

    def __init__(self, reading: Reading) -> None:
        super().__init__()
        self._name = reading.name

    def __missing__(self, found: Any) -> int:
        if not isinstance(found, int | str):
            raise TypeError(f"{found!r} is no hash")
        name = self[found] = self._name(str(found).encode("utf-8", "surrogatepass"))
        return name


def recognises(record: object) -> bool:
    """Whether a decoded line is an event of Dynamo, as such or in the envelope of a sink."""
    return _event(record) is not None


def read(
    records: Iterable[tuple[int, Any]], path: PurePath, reading: Reading, notes: Notes
) -> Part:
    """The requests of one file."""
    requests = []
    names = _Names(reading)
    for line, record in records:
        event = _event(record)
        if event is None:
            notes.add("lines that are no events, left out", line)
            continue
        kind = event.get("event_type")
        if kind == "request_end":
            request = _request(event, line, path, names, notes)
            if request is not None:
                requests.append(request)
        elif kind == "request_payload":
            notes.add("payloads of requests, left out", line)
        elif isinstance(kind, str) and kind in TOOLS:
            notes.add("events of tools, left out: gaps follow from the requests", line)
        else:
            notes.add("events of unknown types, left out", line)
    return Part(path, requests, notes)


def drafts(parts: Sequence[Part], reading: Reading) -> list[Draft]:
    """The sessions of all files: an agent with all that it began, and they began, is one."""
    found: list[tuple[_Request, Part]] = []
    seen: set[tuple[str, float | None]] = set()
    for part in parts:
        for request in part.requests:
            if request.id is not None:
                key = (request.id, request.call.start_s)
                if key in seen:
                    part.notes.add("requests that were read before, left out", request.line)
                    continue
                seen.add(key)
            found.append((request, part))
    made = []
    for top, members in _sessions(found).items():
        members.sort(key=lambda member: member[0].call.start_s or 0.0)
        first, part = members[0]
        requests = [request for request, _ in members]
        size = _one_block_size(requests, part.notes)
        _label(requests, top)
        if not any(request.call.prompt for request in requests):
            continue_by_counts(request.call for request in requests)
        made.append(
            Draft(
                top[1] if top[0] is None else top[0],
                f"{part.path}:{first.line}",
                [request.call for request in requests],
                dated=True,
                notes=part.notes,
                block_size=size,
                scope="dynamo",
            )
        )
    return made


def _event(record: object) -> Mapping[str, Any] | None:
    """The event in a line; None where there is none."""
    if not isinstance(record, dict):
        return None
    inner = record.get("event")
    event = inner if isinstance(inner, dict) and "event_type" in inner else record
    schema = event.get("schema")
    return event if isinstance(schema, str) and schema.startswith(SCHEMAS) else None


def _request(
    event: Mapping[str, Any], line: int, path: PurePath, names: _Names, notes: Notes
) -> _Request | None:
    """The request that an event is the end of; None, and a note, where it can't be a call."""
    request, replay = inside(event, "request"), inside(event, "request", "replay")
    recorded = count(replay.get("input_length"))
    isl, osl = count(request.get("input_tokens")), count(request.get("output_tokens"))
    isl = isl or recorded
    if not isl or osl is None:
        notes.add("requests without an input and an output length, left out", line)
        return None
    start_ms = number(request.get("request_received_ms"))
    total_ms, ended_ms = (
        number(request.get("total_time_ms")),
        number(event.get("event_time_unix_ms")),
    )
    if start_ms is None and ended_ms is not None and total_ms is not None:
        start_ms = ended_ms - total_ms
    if start_ms is None:
        notes.add("requests without a time, left out", line)
        return None
    if total_ms is not None:
        ended_ms = start_ms + total_ms
    if not osl:
        notes.add("calls without output, sent with one token", line)
    cached = count(request.get("cached_tokens"))
    isl = total_input(
        isl, cached, notes, "requests with more cached than input tokens, added up", line
    )
    call = Recorded(
        start_ms / 1000,
        None if ended_ms is None else ended_ms / 1000,
        isl,
        osl,
        model=string(request.get("model")),
        cached=cached,
    )
    chain, parent = _whose(event)
    size = count(replay.get("trace_block_size")) or 0
    if chain is None:
        notes.add("requests of no session, each one of its own", line)
        chain = (None, f"{path}:{line}")
    if size:
        call.prompt = _blocks(replay, recorded or isl, size, names, line, notes)
    return _Request(line, call, chain, parent, identity(request.get("request_id")), size)


def _whose(event: Mapping[str, Any]) -> tuple[_Chain | None, _Chain | None]:
    """The chain of an event, and its parent's, by the names that the releases gave them."""
    context = event.get("agent_context")
    get = (context if isinstance(context, dict) else event).get
    group = identity(get("workflow_id"))
    session, parent = identity(get("session_id")), identity(get("parent_session_id"))
    if (own := identity(get("trajectory_id"))) is not None:
        group, parent = group or session, identity(get("parent_trajectory_id"))
    elif (own := identity(get("program_id"))) is not None:
        parent = identity(get("parent_program_id"))
    else:
        own = session
    if own is None:
        return None, None
    return (group, own), None if parent is None else (group, parent)


def _blocks(
    replay: Mapping[str, Any], isl: int, size: int, names: _Names, line: int, notes: Notes
) -> Sequence[int]:
    """The names of the whole blocks of a prompt; the begun one has a hash too, which goes."""
    hashes = replay.get("input_sequence_hashes")
    if not isinstance(hashes, list):
        return ()
    if len(hashes) != -(-isl // size):
        notes.add("requests with more or fewer hashes than blocks", line)
    try:
        return array("q", list(map(names.__getitem__, hashes[: isl // size])))
    except TypeError:
        notes.add("requests with hashes that name nothing, hashes left out", line)
        return ()


def _sessions(
    found: Sequence[tuple[_Request, Part]],
) -> dict[_Chain, list[tuple[_Request, Part]]]:
    """Requests by the chain that stands above all others; that one may have none itself."""
    above: dict[_Chain, _Chain] = {}

    def top(chain: _Chain) -> _Chain:
        way = []
        while chain in above:
            way.append(chain)
            chain = above[chain]
        for each in way:
            above[each] = chain
        return chain

    for request, _ in found:
        if request.parent is not None:
            highest, parents = top(request.chain), top(request.parent)
            if highest != parents:  # else it is known, or goes in a circle
                above[highest] = parents
    leads: dict[str, _Chain] = {}
    for request, _ in found:
        if (group := request.chain[0]) is not None:
            highest = top(request.chain)
            lead = top(leads.setdefault(group, highest))
            if highest != lead:
                above[highest] = lead
    sessions: dict[_Chain, list[tuple[_Request, Part]]] = {}
    for member in found:
        sessions.setdefault(top(member[0].chain), []).append(member)
    return sessions


def _one_block_size(requests: Sequence[_Request], notes: Notes) -> int:
    """The block size of a session; prompts cut into others are left without blocks."""
    sizes = Counter(request.block_size for request in requests if request.call.prompt)
    if not sizes:
        return BLOCK_TOKENS
    size = sizes.most_common(1)[0][0]
    for request in requests:
        if request.call.prompt and request.block_size != size:
            notes.add("requests with blocks of another size than the session's, hashes left out")
            request.call.prompt = ()
    return size


def _label(requests: Sequence[_Request], top: _Chain) -> None:
    """Number the agents in order of appearance; the main one is at the top, or else the first."""
    main = top if any(request.chain == top for request in requests) else requests[0].chain
    labels = {main: ""}
    for request in requests:
        request.call.agent = labels.setdefault(request.chain, f"agent {len(labels)}")
