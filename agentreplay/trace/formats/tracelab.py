"""TraceLab (UW SyFI): one row a round of Claude Code or Codex, with lengths and stamped events.

A round has no end of its own and no text: times come from its events, and what its prompt shares
with the round before from counts. Subagents are sessions of their own without a link: one that
lies inside the time that another session of its project spent on subagents belongs to it, where
only one such session is found. Pure: numbers only are kept. docs/formats.md describes the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from agentreplay.trace.fields import count, objects, string, unix_s
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import Draft, Reading, Recorded, continue_by_counts, total_input

INPUTS = frozenset({"user_message", "tool_result"})
OUTPUTS = frozenset({"reasoning", "text", "tool_call"})

SUBAGENT_TOOLS = frozenset({"Agent", "Task"})
"""Claude Code's tools that are at work as long as a subagent is."""

SHORTEST_WINDOW_S = 10.0
"""A shorter time with subagents at work is no sign: what lies in it may be chance."""

_Key = tuple[str | None, ...]


@dataclass(slots=True, eq=False)
class _Round:
    """One row. `delegated` are the times at which a subagent came (1) or went (-1)."""

    session: _Key
    project: _Key | None
    name: int | None
    index: int
    first_s: float
    start_s: float | None
    end_s: float | None
    isl: int
    osl: int
    cached: int | None
    model: str | None
    delegated: tuple[tuple[float, int], ...]
    line: int


@dataclass(frozen=True, slots=True)
class Part:
    """The rounds of one file."""

    path: PurePath
    rounds: list[_Round]
    notes: Notes


@dataclass(slots=True, eq=False)
class _Session:
    """The rounds of one session with the file of each; `root` is the session it belongs to."""

    key: _Key
    rounds: list[tuple[_Round, Part]] = field(default_factory=list)
    calls: list[Recorded] = field(default_factory=list)
    start_s: float = 0.0
    end_s: float = 0.0
    root: _Session | None = None

    def top(self) -> _Session:
        """The session that this one belongs to in the end, or itself."""
        session = self
        while session.root is not None:
            session = session.root
        return session


def recognises(record: object) -> bool:
    """Whether a decoded JSON value is a round of TraceLab."""
    return (
        isinstance(record, dict)
        and "provider" in record
        and "round_index" in record
        and isinstance(record.get("timing_events"), list)
    )


def read(
    records: Iterable[tuple[int, Any]], path: PurePath, reading: Reading, notes: Notes
) -> Part:
    """The rounds of one file that have a time and lengths."""
    part = Part(path, [], notes)
    sessions: dict[_Key, _Key] = {}  # equal keys are kept once
    for line, record in records:
        if not recognises(record):
            notes.add("records that are no rounds, left out", line)
            continue
        lengths = _lengths(record, notes, line)
        if lengths is None:
            continue
        first_s, start_s, end_s = _times(record["timing_events"], notes, line)
        if first_s is None:
            notes.add("rounds without a time, left out", line)
            continue
        owner = tuple(string(record.get(name)) for name in ("provider", "user", "home"))
        project, identity = string(record.get("project")), string(record.get("session_id"))
        key = (identity or f"{path}:{line}", project, *owner)
        place = project or string(record.get("cwd"))
        name = string(record.get("round_id"))
        part.rounds.append(
            _Round(
                session=sessions.setdefault(key, key),
                project=(place, *owner) if place else None,
                name=reading.named(name) if name else None,
                index=count(record["round_index"]) or 0,
                first_s=first_s,
                start_s=start_s,
                end_s=end_s,
                isl=lengths[0],
                osl=lengths[1],
                cached=lengths[2],
                model=string(record.get("model")),
                delegated=tuple(_delegated(record.get("tools"))),
                line=line,
            )
        )
    return part


def drafts(parts: Sequence[Part], reading: Reading) -> list[Draft]:
    """The sessions of all files, each with the subagents that were found for it."""
    del reading
    sessions = _sessions(parts)
    for session in sessions:
        _fill(session)
    _adopt(sessions)
    members: dict[_Session, list[_Session]] = {}
    for session in sessions:
        members.setdefault(session.top(), []).append(session)
    found = []
    for root in sessions:
        if root.root is not None:
            continue
        others = [session for session in members[root] if session is not root]
        others.sort(key=lambda session: session.start_s)
        for number, session in enumerate(others, 1):
            for call in session.calls:
                call.agent = f"agent {number}"
        first, part = root.rounds[0]
        found.append(
            Draft(
                id=root.key[0] or "",
                source=f"{part.path}:{first.line}",
                calls=[call for session in (root, *others) for call in session.calls],
                dated=True,
                notes=part.notes,
                project=first.project[0] if first.project else None,
            )
        )
    return found


def _sessions(parts: Sequence[Part]) -> list[_Session]:
    """The rounds by session, each round once and in order of its first input."""
    sessions: dict[_Key, _Session] = {}
    seen: set[tuple[int | None, str | None, int, int]] = set()
    for part in parts:
        for each in part.rounds:
            same = (each.name, each.model, each.isl, each.osl)
            if each.name is not None and same in seen:
                part.notes.add("rounds recorded twice, left out", each.line)
                continue
            seen.add(same)
            session = sessions.get(each.session)
            if session is None:
                session = sessions[each.session] = _Session(each.session)
            session.rounds.append((each, part))
    for session in sessions.values():
        session.rounds.sort(key=lambda row: (row[0].first_s, row[0].index))
    return list(sessions.values())


def _fill(session: _Session) -> None:
    """Make the calls of a session: a round begins no earlier than the one before it ended."""
    system = min((each.cached for each, _ in session.rounds if each.cached), default=0)
    before: Recorded | None = None
    for each, part in session.rounds:
        start_s = each.start_s
        since = None if before is None else before.end_s
        if start_s is None:
            part.notes.add("rounds without an input event, begun at the last end before", each.line)
            start_s = each.first_s if since is None else min(since, each.first_s)
        elif since is not None and start_s < since:
            # A tool may answer while the round that called it is still at its last words.
            part.notes.add("rounds begun before the last one's end, begun at that end", each.line)
            start_s = since
        call = Recorded(
            start_s=start_s,
            end_s=each.end_s,
            isl=each.isl,
            osl=each.osl,
            model=each.model,
            cached=each.cached,
            system=min(system, each.isl),
        )
        session.calls.append(call)
        before = call
    continue_by_counts(session.calls)
    times = [call.start_s for call in session.calls if call.start_s is not None]
    ends = [call.end_s for call in session.calls if call.end_s is not None]
    session.start_s, session.end_s = min(times), max(times + ends)


def _adopt(sessions: Sequence[_Session]) -> None:
    """Give each session that lies inside one session's time with subagents that one as root."""
    windows: dict[_Key, list[tuple[float, float, _Session]]] = {}
    for session in sessions:
        project = session.rounds[0][0].project
        if project is not None:
            for begin_s, end_s in _windows(session):
                windows.setdefault(project, []).append((begin_s, end_s, session))
    for session in sorted(sessions, key=lambda session: session.start_s):
        first, part = session.rounds[0]
        roots = {
            owner.top()
            for begin_s, end_s, owner in windows.get(first.project or (), ())
            if owner is not session and begin_s <= session.start_s and session.end_s <= end_s
        }
        roots.discard(session)
        if len(roots) == 1:
            session.root = roots.pop()
        elif roots:
            part.notes.add("sessions inside several others' subagent times, kept apart", first.line)


def _windows(session: _Session) -> Iterator[tuple[float, float]]:
    """The times during which a session had subagents at work."""
    marks = sorted(mark for each, _ in session.rounds for mark in each.delegated)
    at_work, begin_s, end_s = 0, 0.0, None
    for time_s, change in marks:
        if not at_work:
            if change < 0:
                continue
            begin_s = time_s
        at_work += change
        end_s = time_s if change < 0 else end_s
        if not at_work and time_s - begin_s >= SHORTEST_WINDOW_S:
            yield begin_s, time_s
    if at_work and end_s is not None and end_s - begin_s >= SHORTEST_WINDOW_S:
        yield begin_s, end_s  # some were never closed


def _lengths(
    record: Mapping[str, Any], notes: Notes, line: int
) -> tuple[int, int, int | None] | None:
    """Input, output and cached tokens."""
    isl, osl = count(record.get("input_tokens_total")), count(record.get("output_tokens"))
    cached = count(record.get("prefix_tokens"))
    if isl is None and cached is not None:
        new = count(record.get("newly_append_tokens"))
        isl = None if new is None else cached + new
    if not isl or osl is None:
        notes.add("rounds without an input or output length, left out", line)
        return None
    what = "rounds with more cached than input tokens, both added"
    return total_input(isl, cached, notes, what, line), osl, cached


def _times(
    events: Iterable[Any], notes: Notes, line: int
) -> tuple[float | None, float | None, float | None]:
    """When the first input of a round came (or the first event at all), the last one, the end."""
    first_s = start_s = end_s = report_s = earliest_s = None
    for event in events:
        kind = event.get("event_type") if isinstance(event, dict) else None
        time_s = unix_s(event.get("timestamp")) if isinstance(kind, str) else None
        if time_s is None:
            notes.add("timing events without a type or a time, ignored", line)
            continue
        if kind in INPUTS:
            first_s = time_s if first_s is None else min(first_s, time_s)
            start_s = time_s if start_s is None else max(start_s, time_s)
        elif kind in OUTPUTS:
            end_s = time_s if end_s is None else max(end_s, time_s)
        elif kind == "usage_report":
            report_s = time_s
        else:
            notes.add("timing events of an unknown type, ignored", line)
            continue
        earliest_s = time_s if earliest_s is None else min(earliest_s, time_s)
    if end_s is None:
        end_s = report_s
    return (earliest_s if first_s is None else first_s), start_s, end_s


def _delegated(tools: object) -> Iterator[tuple[float, int]]:
    """When the tools of a round started a subagent (1) or saw one end (-1)."""
    for tool in objects(tools):
        name = string(tool.get("tool_name"))
        if name in SUBAGENT_TOOLS:
            begin_s, end_s = unix_s(tool.get("emitted_at")), unix_s(tool.get("result_at"))
            if begin_s is not None and end_s is not None:
                yield begin_s, 1
                yield end_s, -1
        elif name == "spawn_agent" and (begin_s := unix_s(tool.get("emitted_at"))) is not None:
            yield begin_s, 1
        elif name == "close_agent" and (end_s := unix_s(tool.get("result_at"))) is not None:
            yield end_s, -1
