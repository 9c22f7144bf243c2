"""Session logs of Claude Code (`~/.claude/projects`): JSON lines, one answer on several of them.

Pure: decoded lines in, drafts of sessions out. docs/formats.md describes the format.

A line names the line before it (`parentUuid`), so a conversation is a tree: `_Log` walks it while
it reads and keeps of each answer who came before it, when its input was complete, and its counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, TypeAlias

from agentreplay.trace.fields import count, number, unix_s
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import Draft, Reading, Recorded, had_ended
from agentreplay.trace.structure import median_tokens_s

_RECORDS = frozenset(
    "agent-color agent-name agent-setting ai-title attachment custom-title file-history-snapshot "
    "last-prompt mode permission-mode pr-link progress queue-operation saved_hook_context summary "
    "system".split()
)
"""Types of records that hold no message."""

_IDENTITY = frozenset("sessionId uuid parentUuid leafUuid messageId".split())

_FOREIGN = frozenset(
    "payload projectHash usageMetadata systemPayload session_id parent_tool_use_id custom_id "
    "request response".split()
)
"""Fields of other formats with records of the same types."""

_HELPERS = tuple(
    f"a{task}"
    for task in "agent_summary away_summary auto_dream compact extract_memories magic_docs "
    "prompt_suggestion session_memory side_question speculation".split()
)
"""How the ids of agents begin that work for the program and not for a prompt."""

_COMPACTION = "acompact"

_MAKERS = frozenset("Agent Task Workflow".split())
"""Tools that make agents."""

_AWAY = ("async_launched", "teammate_spawned")
"""What the result of such a tool says where the agent is still at work."""

_PLACEHOLDER_TOKENS = 8
"""Old versions write at most this as the output of an answer that has only begun."""


@dataclass(slots=True, eq=False)
class _Make:
    """A tool of an answer that makes agents.

    Attributes:
        call: The answer.
        asked_s: When it was asked for.
        agent: The agent's id, or the workflow's; None where its result does not say.
        over_s: When its result came, where that is what the agent came to.
    """

    call: _Call
    asked_s: float | None
    agent: str | None = None
    over_s: float | None = None

    def may_have_made(self, first: Recorded) -> bool:
        """Whether an agent of which this is the first call may be its own."""
        return self.over_s is None or first.start_s is None or first.start_s <= self.over_s


@dataclass(slots=True, eq=False)
class _Call:
    """One answer, from all its lines. Stamps are Unix time."""

    id: str | None
    request: str | None
    session: str | None
    agent: str
    forked: bool
    line: int
    start_s: float | None  # when its input was complete
    first_s: float | None  # its first line
    end_s: float | None  # its last line
    model: str | None
    parent: _Call | None = field(repr=False)  # the one before it in its conversation
    changed: bool  # the conversation was rewritten since
    usage: _Usage
    makes: tuple[_Make, ...] = ()
    got: tuple[_Make, ...] = ()  # whose results it was the first to get


_Usage: TypeAlias = tuple[int, int, bool, int]
"""Output, input, whether there is a stop reason, cached (-1: unknown): the largest one counts."""

_NO_USAGE: _Usage = (-1, 0, False, -1)


@dataclass(slots=True, eq=False)
class _Point:
    """Where a conversation can go on: after an answer, at its beginning, after a compaction."""

    agent: str
    call: _Call | None = None
    ready_s: float | None = None  # the latest input since
    changed: bool = False
    cut_s: float | None = None  # when it was compacted
    before: _Point | None = None  # where it was then
    begun: _Call | None = None  # the latest answer given here

    def keeps(self, stamp: float | None) -> bool:
        """Whether a line that follows here is one that a compaction kept, written once more."""
        return self.cut_s is not None and stamp is not None and stamp < self.cut_s


@dataclass(frozen=True, slots=True)
class Part:
    """What is kept of one file.

    Attributes:
        path: The file.
        calls: Its answers that have counts, in the order of their first lines.
        session: The session of lines that name none.
        compactions: Session and identity of each.
        folders: The working folder that each session was in last.
        written_s: The last stamp of each session's lines.
        notes: The file's notes.
    """

    path: PurePath
    calls: Sequence[_Call]
    session: str | None
    compactions: Sequence[tuple[str | None, str]]
    folders: Mapping[str | None, str] = field(repr=False)
    written_s: Mapping[str | None, float]
    notes: Notes


_Key: TypeAlias = tuple[PurePath, str | None]
"""A session: its project's folder and id, or its file where it has no id."""

_Homes: TypeAlias = Mapping[_Call, tuple[Part, _Key]]
"""The file and session that each call was found in."""


def recognises(record: object) -> bool:
    """Whether a decoded line is one of a session log of Claude Code."""
    if not isinstance(record, dict) or not _FOREIGN.isdisjoint(record):
        return False
    kind, message = record.get("type"), record.get("message")
    if kind is not None and not isinstance(kind, str):
        return False
    if not isinstance(message, dict):
        return kind in _RECORDS and not _IDENTITY.isdisjoint(record)
    if kind is None:
        return isinstance(message.get("usage"), dict) and isinstance(message.get("id"), str)
    return (
        kind in ("user", "assistant")
        and isinstance(message.get("role"), str)
        and "parts" not in message
        and not _IDENTITY.isdisjoint(record)
    )


def read(
    records: Iterable[tuple[int, Any]], path: PurePath, reading: Reading, notes: Notes
) -> Part:
    """What is kept of one file: numbers, models, and the ids that tell copies apart."""
    log = _Log(path, notes)
    for line, record in records:
        if not isinstance(record, dict):
            notes.add("lines that are no objects, left out", line)
            continue
        kind = record.get("type")
        if kind == "user" or kind == "attachment":
            log.add_input(record, line)
        elif kind == "assistant":
            log.add_answer(record, line)
        elif kind == "system":
            log.add_event(record, line)
        elif kind is None and isinstance(record.get("message"), dict):
            log.add_answer(record, line)
        elif isinstance(kind, str) and kind in _RECORDS:
            log.pass_by(record)
        else:
            notes.add("records of an unknown type, left out", line)
            log.pass_by(record)
    return log.part()


def drafts(parts: Sequence[Part], reading: Reading) -> list[Draft]:
    """The sessions of all files: agents with their main file, copies of calls counted once."""
    parts = sorted(parts, key=lambda part: part.path)
    homes: dict[_Call, tuple[Part, _Key]] = {}
    compactions: dict[str, _Key] = {}
    ends_s: dict[_Key, float] = {}
    for part in parts:
        project = _project(part.path)
        keys: dict[str | None, _Key] = {}
        for session in {call.session for call in part.calls} | {
            name for name, _ in part.compactions
        }:
            named = session or part.session
            key: _Key = (project, named) if named else (part.path, None)
            keys[session] = key
            ends_s[key] = max(ends_s.get(key, 0.0), part.written_s.get(session, 0.0))
        for call in part.calls:
            homes[call] = part, keys[call.session]
        for session, uuid in part.compactions:
            compactions.setdefault(uuid, keys[session])
    copied = _copied(homes, ends_s)
    compactions = {uuid: copied.get(key, key) for uuid, key in compactions.items()}
    originals = _originals(homes, copied, ends_s)
    outputs: dict[_Call, int] = {}
    members: dict[_Key, list[_Call]] = {}
    for call, original in originals.items():
        outputs[original] = max(outputs.get(original, 0), call.usage[0])
        part, key = homes[call]
        if call is original:
            members.setdefault(copied.get(key, key), []).append(call)
        else:
            part.notes.add("copies of calls, counted once", call.line)
    unlogged = Counter(compactions.values())
    made = []
    for key, calls in members.items():
        dated = [call for call in calls if call.first_s is not None]
        first = next((call for call in dated or calls if not call.agent), (dated or calls)[0])
        home = homes[first][0]
        if dated and len(dated) < len(calls):
            home.notes.add("calls without a time, left out", times=len(calls) - len(dated))
        runs = {call.agent: homes[call][0].path.parent.name for call in calls if call.agent}
        rows = _recorded(dated or calls, originals, outputs, runs, home.notes)
        logged = {call.agent for call in calls if call.agent.startswith(_COMPACTION)}
        if unlogged[key] > len(logged):
            what = "compactions whose own call is not in the log"
            home.notes.add(what, times=unlogged[key] - len(logged))
        source = f"{home.path}:{first.line}"
        folder = home.folders.get(first.session) or _project(home.path).name or None
        made.append(Draft(key[1] or source, source, rows, True, home.notes, project=folder))
    return made


class _Log:
    """The conversations of one file, while it is read."""

    def __init__(self, path: PurePath, notes: Notes) -> None:
        self.path, self.notes = path, notes
        self.agent = _agent(path)
        self.points: dict[str, _Point] = {}  # by the uuid of the line that led there
        self.lasts: dict[str, _Point] = {}  # by agent
        self.side: str | None = None  # the agent of the latest inline line
        self.answers: dict[tuple[str, str], _Point] = {}  # by agent and message id
        self.calls: list[_Call] = []
        self.session: str | None = None
        self.compactions: list[tuple[str | None, str]] = []
        self.folders: dict[str | None, str] = {}
        self.stamps: dict[str | None, object] = {}  # the last one of each session, as written
        self.makes: dict[str, _Make] = {}  # by the tool's id
        self.results: dict[str, tuple[_Make, ...]] = {}  # by the agent whose next call gets them

    def add_input(self, record: dict[str, Any], line: int) -> None:
        """A line that goes to the model: a prompt, a tool's result, injected context."""
        point = self._place(record, line)
        if record.get("parentUuid", line) is None and not point.changed and point.call is not None:
            point = _Point(point.agent, point.call, changed=True)  # it goes back to the beginning
        stamp = unix_s(record.get("timestamp"))
        if stamp is not None:
            origin = point.before if point.before is not None and point.keeps(stamp) else point
            if origin.ready_s is None or stamp > origin.ready_s:
                origin.ready_s = stamp
        if self.session is None:
            self.session = _text(record.get("sessionId"))
        self._remember(record, point)
        if self.makes:
            self._get(record, point.agent)
        if point.call is not None and _interrupts(record.get("message")):
            self.notes.add("calls that the user interrupted, output may be a placeholder", line)

    def add_answer(self, record: dict[str, Any], line: int) -> None:
        """A line of an answer: its first one, or one more of it."""
        point = self._place(record, line)
        message = record.get("message")
        if not isinstance(message, dict):
            self.notes.add("answers without a message, left out", line)
            return self._remember(record, point)
        if message.get("model") == "<synthetic>" or record.get("isApiErrorMessage") is True:
            self.notes.add("answers that the program made up, no calls", line)
            return self._remember(record, point)
        stamp = unix_s(record.get("timestamp"))
        kept = point.cut_s is not None and point.keeps(stamp)
        name = message.get("id")
        after = self.answers.get((point.agent, name)) if isinstance(name, str) else None
        if after is None or after.call is None:
            origin = point.before if kept and point.before is not None else point
            after = self._begin(record, message, line, origin, stamp)
            if kept:
                point.before, point.call = after, after.call
        else:
            call, usage = after.call, _usage(message)
            if usage > call.usage:
                call.usage = usage
            # Another request's line is a copy: it does not say when this one ended.
            if stamp is not None and record.get("requestId") == call.request:
                call.end_s = stamp if call.end_s is None else max(call.end_s, stamp)
        if after.call is not None:
            self._make(message.get("content"), after.call, stamp)
        return self._remember(record, point if kept else after)

    def _begin(
        self,
        record: dict[str, Any],
        message: dict[str, Any],
        line: int,
        origin: _Point,
        stamp: float | None,
    ) -> _Point:
        """The point after an answer, of which this is the first line."""
        ready_s, begun = origin.ready_s, origin.begun
        if stamp is None:
            ready_s = None
        elif ready_s is None:
            self.notes.add("answers without an input before them, start estimated", line)
        else:
            if begun is not None and begun.end_s is not None and begun.end_s <= stamp:
                ready_s = max(ready_s, begun.end_s)  # another try with the same input
            if ready_s > stamp:
                self.notes.add("answers stamped before their input, start estimated", line)
                ready_s = None
        self.session = session = _text(record.get("sessionId")) or self.session
        name = _text(message.get("id"))
        call = _Call(  # by position: by name it takes three times as long
            name,
            _text(record.get("requestId")),
            session,
            origin.agent,
            bool(record.get("forkedFrom")),
            line,
            ready_s,
            stamp,
            stamp,
            _text(message.get("model")),
            origin.call,
            origin.changed,
            _usage(message),
        )
        if self.results:
            call.got = self.results.pop(origin.agent, ())
        origin.begun = call
        self.calls.append(call)
        if folder := _text(record.get("cwd")):
            self.folders[session] = folder
        after = _Point(origin.agent, call)
        if name is None:
            self.notes.add("answers without an id, each one counted as a call", line)
        else:
            self.answers[origin.agent, name] = after
        return after

    def _make(self, content: object, call: _Call, stamp: float | None) -> None:
        """Note the tools of an answer that make agents."""
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict) and block.get("type") == "tool_use":
                name, tool = block.get("name"), block.get("id")
                if not isinstance(name, str) or name not in _MAKERS or not isinstance(tool, str):
                    continue
                if tool not in self.makes:
                    make = self.makes[tool] = _Make(call, stamp)
                    call.makes += (make,)

    def _get(self, record: dict[str, Any], agent: str) -> None:
        """Note the results of tools that made agents."""
        message = record.get("message")
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            tool = block.get("tool_use_id") if isinstance(block, dict) else None
            make = self.makes.get(tool) if isinstance(tool, str) else None
            if make is None:
                continue
            result = record.get("toolUseResult")
            if isinstance(result, dict):
                make.agent = _text(result.get("agentId")) or _text(result.get("runId"))
                if result.get("isAsync") is True or result.get("status") in _AWAY:
                    continue
            make.over_s = unix_s(record.get("timestamp"))
            self.results[agent] = (*self.results.get(agent, ()), make)

    def add_event(self, record: dict[str, Any], line: int) -> None:
        """A record of the program itself: a compaction, a failed attempt, and the like."""
        kind = record.get("subtype")
        stamp = unix_s(record.get("timestamp"))
        if kind == "compact_boundary":
            before = self.points.get(_text(record.get("logicalParentUuid")) or "")
            if before is None:
                before = self._place(record, line)
            point = _Point(before.agent, before.call, stamp, True, stamp, before)
            for uuid in _preserved(record.get("compactMetadata")):
                self.points[uuid] = point
            self.compactions.append(
                (
                    _text(record.get("sessionId")) or self.session,
                    _text(record.get("uuid")) or f"{self.path}:{line}",
                )
            )
        else:
            point = self._place(record, line)
            if kind == "microcompact_boundary":
                point = _Point(point.agent, point.call, point.ready_s, True)
            elif kind == "api_error" and stamp is not None:
                again_s = stamp + max(0.0, number(record.get("retryInMs")) or 0.0) / 1e3
                point.ready_s = max(again_s, point.ready_s or again_s)
        self._remember(record, point)

    def pass_by(self, record: dict[str, Any]) -> None:
        """A record that is nothing to a conversation, but may be a link of its chain."""
        uuid, parent = record.get("uuid"), record.get("parentUuid")
        if isinstance(uuid, str) and isinstance(parent, str) and parent in self.points:
            self.points[uuid] = self.points[parent]

    def part(self) -> Part:
        """What is kept of the file; notes what is not."""
        calls = []
        for call in self.calls:
            osl, isl, stopped, _ = call.usage
            if not isl:
                self.notes.add("answers without a token count, left out", call.line)
                continue
            if not stopped and osl <= _PLACEHOLDER_TOKENS:
                self.notes.add(
                    "answers of few tokens and without a stop reason, output may be a placeholder",
                    call.line,
                )
            calls.append(call)
        written_s = {name: unix_s(stamp) or 0.0 for name, stamp in self.stamps.items()}
        return Part(
            self.path, calls, self.session, self.compactions, self.folders, written_s, self.notes
        )

    def _place(self, record: dict[str, Any], line: int) -> _Point:
        """The point that a record follows."""
        uuid = record.get("parentUuid")
        point = self.points.get(uuid) if isinstance(uuid, str) else None
        if self.agent or record.get("isSidechain") is not True:
            if point is not None and point.agent == self.agent:
                return point
            return self._last(self.agent)
        if point is not None and point.agent:
            self.side = point.agent
            return point
        agent = _text(record.get("agentId"))
        if agent is None and point is None and (uuid is not None or "parentUuid" not in record):
            agent = self.side  # its link is lost; only a line that says it has none begins an agent
        self.side = agent = agent or f":{line} {self.path}"
        if point is not None:
            return _Point(agent, point.call)  # it leaves the main conversation here
        return self._last(agent)

    def _last(self, agent: str) -> _Point:
        point = self.lasts.get(agent)
        if point is None:
            point = self.lasts[agent] = _Point(agent)
        return point

    def _remember(self, record: dict[str, Any], point: _Point) -> None:
        self.lasts[point.agent] = point
        if stamp := record.get("timestamp"):
            self.stamps[_text(record.get("sessionId")) or self.session] = stamp
        uuid = record.get("uuid")
        if isinstance(uuid, str):
            self.points[uuid] = point


def _copied(homes: _Homes, ends_s: Mapping[_Key, float]) -> dict[_Key, _Key]:
    """For each session that another folder holds too, perhaps as it was earlier: its last state.

    Sessions of one id with calls in common are one, and that is it which was written last.
    """
    holders: dict[tuple[str, str], dict[_Key, None]] = {}
    for call, (_, key) in homes.items():
        if key[1] is not None and call.id is not None:
            holders.setdefault((key[1], call.id), {})[key] = None
    sizes = Counter(key for _, key in homes.values())
    copied: dict[_Key, _Key] = {}
    for holding in holders.values():
        if len(holding) > 1:
            found = {_last_of(key, copied) for key in holding}
            last = max(found, key=lambda key: (ends_s[key], sizes[key], key[0]))
            copied |= dict.fromkeys(found - {last}, last)
    return {key: _last_of(key, copied) for key in copied}


def _last_of(key: _Key, copied: Mapping[_Key, _Key]) -> _Key:
    while key in copied:
        key = copied[key]
    return key


def _originals(
    homes: _Homes, copied: Mapping[_Key, _Key], ends_s: Mapping[_Key, float]
) -> dict[_Call, _Call]:
    """For each call, the one that it is a copy of; itself, where it is none.

    Of copies the main conversation's is the original, then what is not said to be a fork, then
    the earliest, then that of the session which ended first: later ones were resumed from it.
    Of copies of one session it is that in its last state.
    """

    def rank(call: _Call) -> tuple[bool, bool, float, float, bool]:
        key = homes[call][1]
        first_s = call.first_s if call.first_s is not None else float("inf")
        return bool(call.agent), call.forked, first_s, ends_s[copied.get(key, key)], key in copied

    best: dict[tuple[str, int], _Call] = {}
    for call in homes:
        if call.id is not None:
            name = (call.id, call.usage[1])  # some gateways begin their ids anew
            if name not in best or rank(call) < rank(best[name]):
                best[name] = call
    return {call: call if call.id is None else best[call.id, call.usage[1]] for call in homes}


def _recorded(
    calls: Sequence[_Call],
    originals: Mapping[_Call, _Call],
    outputs: Mapping[_Call, int],
    runs: Mapping[str, str],
    notes: Notes,
) -> list[Recorded]:
    """The calls of a session, in order of their starts; *runs* are the folders of agents' files."""
    own = set(calls)
    before = {call: _before(call, originals, own) for call in calls}
    spans = _spans(calls, before, outputs, notes)
    order = sorted(calls, key=lambda call: spans[call][0] or 0.0)
    labels = _labels(order)
    systems: dict[str, int] = {}
    for call in calls:
        if (cached := call.usage[3]) > 0:
            systems[call.agent] = min(systems.get(call.agent, cached), cached)
    rows: dict[_Call, Recorded] = {}
    lasts: dict[str, _Call] = {}
    firsts: list[_Call] = []
    for call in order:
        _, isl, _, cached = call.usage
        link = before[call]
        if link is None and call.agent in lasts:
            link = (lasts[call.agent], True)
        elif link is None and cached > 0:
            found = _warm(call, firsts, lasts.get(""))
            link = None if found is None else (found, True)
        if call.agent not in lasts:
            firsts.append(call)
        cached_or_none = None if cached < 0 else cached
        row = rows[call] = Recorded(
            *spans[call], isl, outputs[call], labels[call.agent], call.model, cached_or_none
        )
        if link is not None and link[0] in rows:
            parent, changed = link
            system = systems.get(call.agent, 0)
            if parent.agent != call.agent and system:
                # It goes on with another agent's prompt, so it has that one's system prompt.
                system = systems[call.agent] = min(system, systems.get(parent.agent) or system)
            row.parent = rows[parent]
            if parent.model != call.model:
                row.shared = max(cached, 0)
            elif changed or isl < row.parent.isl:
                row.shared = max(cached, system if parent.agent == call.agent else 0)
            else:
                row.shared = row.parent.isl
            row.shared = min(row.shared, isl, row.parent.isl)
        row.system = min(systems.get(call.agent, 0), isl)
        lasts[call.agent] = call
    _wait(rows, before, runs)
    return list(rows.values())


def _wait(
    rows: Mapping[_Call, Recorded],
    before: Mapping[_Call, tuple[_Call, bool] | None],
    runs: Mapping[str, str],
) -> None:
    """Say what each call waited for, where the log tells.

    That is the call of its agent before it, and of the agents whose results it got the last calls.
    An agent's first call waits for the one that made it, or, where that was still at work, for what
    that waited for.
    """
    agents: dict[str, list[_Call]] = {}
    for call in rows:
        agents.setdefault(call.agent, []).append(call)
    makers = _makers(agents, rows, runs)
    first_s = min((row.start_s if row.end_s is None else row.end_s) or 0.0 for row in rows.values())
    for agent, calls in agents.items():
        own = not agent or agent in makers or agent.startswith(_HELPERS)
        if not own and (rows[calls[0]].start_s or first_s) >= first_s:
            return  # the log doesn't tell who made it, so it doesn't tell who waited for it
    made: dict[_Call, list[str]] = {}
    for agent, maker in makers.items():
        made.setdefault(maker, []).append(agent)
    for calls in agents.values():
        row = rows[calls[0]]
        if calls[0].agent in makers:
            of_maker = rows[makers[calls[0].agent]]
            row.after = (of_maker,) if _had_ended(of_maker, row) else of_maker.after
        elif not calls[0].agent:
            row.after = ()
        for n in range(1, len(calls)):
            call, link = calls[n], before[calls[n]]
            last, row = calls[n - 1], rows[call]
            if link is None or link[0] is not last:
                # Two may have worked on one session: each goes on where it was.
                over = (calls[m] for m in range(n - 1, -1, -1) if _had_ended(rows[calls[m]], row))
                last = next(over, last)
                if link is not None and link[0].agent == call.agent:
                    last = max(last, link[0], key=lambda each: rows[each].start_s or 0.0)
            row.after = (rows[last],)
            if call.got:
                _join(row, call.got, made, agents, rows)
        if calls[0].got:
            _join(rows[calls[0]], calls[0].got, made, agents, rows)
    for agent, calls in agents.items():
        if agent.startswith(_COMPACTION):  # what it summed up goes into the next prompt
            last_row = rows[calls[-1]]
            main = (rows[call] for call in agents.get("", ()))
            taker = next((row for row in main if _had_ended(last_row, row)), None)
            if taker is not None:
                taker.after = (*(taker.after or ()), last_row)


def _join(
    row: Recorded,
    got: Sequence[_Make],
    made: Mapping[_Call, Sequence[str]],
    agents: Mapping[str, Sequence[_Call]],
    rows: Mapping[_Call, Recorded],
) -> None:
    """Let a call wait for the agents whose results it got, as far as they had ended."""
    joined: dict[Recorded, None] = dict.fromkeys(row.after or ())
    for make in got:
        for agent in (make.agent,) if make.agent in agents else made.get(make.call, ()):
            last = rows[agents[agent or ""][-1]]
            if agent and _had_ended(last, row):
                joined[last] = None
    row.after = tuple(joined)


def _makers(
    agents: Mapping[str, Sequence[_Call]], rows: Mapping[_Call, Recorded], runs: Mapping[str, str]
) -> dict[str, _Call]:
    """The call that made each agent, where the log tells.

    It is the one whose tool's result names the agent, or else the one that last asked for an agent
    before it began; of the program's own agents it is the main agent's last one.
    """
    makes = [make for call in rows for make in call.makes]
    named = {make.agent: make for make in makes if make.agent is not None}
    asked = sorted(
        (make.asked_s, n)
        for n, make in enumerate(makes)
        if make.asked_s is not None and (make.agent is None or make.agent not in agents)
    )
    makers: dict[str, _Call] = {}
    for agent, calls in agents.items():
        first = rows[calls[0]]
        if not agent:
            continue
        if agent.startswith(_HELPERS):
            maker = max(
                (call for call in agents.get("", ()) if _had_ended(rows[call], first)),
                key=lambda call: rows[call].start_s or 0.0,
                default=None,
            )
        else:
            make = named.get(agent) or named.get(runs.get(agent, ""))
            if make is None and first.start_s is not None:
                until = bisect_right(asked, (first.start_s, len(makes)))
                latest = (makes[n] for _, n in reversed(asked[:until]))
                make = next((each for each in latest if each.may_have_made(first)), None)
            maker = make.call if make is not None and make.may_have_made(first) else None
        if maker is not None and maker.agent != agent:
            makers[agent] = maker
    return makers


def _had_ended(before: Recorded, call: Recorded) -> bool:
    return had_ended(before, call, rounding_s=0.0)


def _before(
    call: _Call, originals: Mapping[_Call, _Call], own: set[_Call]
) -> tuple[_Call, bool] | None:
    """The call that this one continues, and whether the conversation was rewritten since.

    It is the nearest one of the same model, each having a cache of its own, or else the nearest.
    """
    nearest: tuple[_Call, bool] | None = None
    changed, at = call.changed, call.parent
    while at is not None:
        original = originals.get(at)
        if original is not None and original is not call and original in own:
            if original.model == call.model:
                return original, changed
            nearest = nearest or (original, changed)
        changed, at = changed or at.changed, at.parent
    return nearest


def _warm(call: _Call, firsts: Sequence[_Call], main: _Call | None) -> _Call | None:
    """The earlier call of another agent whose prompt an agent's first call found in the cache."""
    cached = call.usage[3]
    helper = call.agent.startswith(_HELPERS)
    alike = [
        other
        for other in firsts
        if other.agent and other.model == call.model and other.usage[1] >= cached
    ]
    if alike and not (helper and main is not None):
        return max(reversed(alike), key=lambda other: other.usage[3] == cached)
    return main if main is not None and main.model == call.model else None


def _spans(
    calls: Sequence[_Call],
    before: Mapping[_Call, tuple[_Call, bool] | None],
    outputs: Mapping[_Call, int],
    notes: Notes,
) -> dict[_Call, tuple[float | None, float | None]]:
    """Start and recorded end of each call; no call begins before the one that it continues."""
    tokens_s = median_tokens_s(
        (outputs[call], call.end_s - call.start_s)
        for call in calls
        if call.start_s is not None and call.end_s is not None
    )
    spans: dict[_Call, tuple[float | None, float | None]] = {}
    for call in calls:
        link = before[call]
        parent_s, parent_end_s = spans.get(link[0], (None, None)) if link else (None, None)
        start_s, end_s = call.start_s, call.end_s
        if start_s is None and call.first_s is not None:
            start_s, end_s = call.first_s - outputs[call] / tokens_s, None
            if parent_end_s is not None and start_s < parent_end_s <= call.first_s:
                start_s = parent_end_s
        if start_s is not None and parent_s is not None and start_s < parent_s:
            if call.start_s is not None:
                notes.add("calls stamped before the one they continue, start moved", call.line)
            start_s = parent_s
        spans[call] = start_s, end_s
    return spans


def _labels(calls: Sequence[_Call]) -> dict[str, str]:
    """Neutral names of the agents, in the order of their first calls."""
    labels = {"": ""}
    numbers = {"agent": 0, "helper": 0}
    for call in calls:
        if call.agent not in labels:
            role = "helper" if call.agent.startswith(_HELPERS) else "agent"
            numbers[role] += 1
            labels[call.agent] = f"{role} {numbers[role]}"
    return labels


def _agent(path: PurePath) -> str:
    """The agent whose file this is; "" for a session's main file."""
    if path.name.startswith("agent-"):
        return path.stem.removeprefix("agent-") or path.stem
    return path.stem if "subagents" in path.parts[:-1] else ""


def _project(path: PurePath) -> PurePath:
    """The folder of the session's main file."""
    folders = path.parts[:-1]
    if "subagents" in folders:
        inner = len(folders) - 1 - folders[::-1].index("subagents")
        folders = folders[: max(inner - 1, 0)]
    return PurePath(*folders)


def _usage(message: Mapping[str, Any]) -> _Usage:
    """The counts of a line; none where its input or its output is unknown."""
    usage = message.get("usage")
    if not isinstance(usage, dict):
        return _NO_USAGE
    osl = count(usage.get("output_tokens"))
    cached = count(usage.get("cache_read_input_tokens"))
    isl = (
        (count(usage.get("input_tokens")) or 0)
        + (count(usage.get("cache_creation_input_tokens")) or 0)
        + (cached or 0)
    )
    if osl is None or not isl:
        return _NO_USAGE
    return osl, isl, message.get("stop_reason") is not None, -1 if cached is None else cached


def _interrupts(message: object) -> bool:
    """Whether a user's message says that the answer before it was cut off."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        content = content[0].get("text")
    return isinstance(content, str) and content.startswith("[Request interrupted by user")


def _preserved(metadata: object) -> Iterator[str]:
    """The lines that a compaction keeps: what follows them follows the compaction."""
    if not isinstance(metadata, dict):
        return
    for name in ("preservedSegment", "preservedMessages"):
        kept = metadata.get(name)
        if isinstance(kept, dict):
            uuids = kept.get("uuids")
            named = [*(uuids if isinstance(uuids, list) else ()), kept.get("tailUuid")]
            yield from (uuid for uuid in named if isinstance(uuid, str))


def _text(value: object) -> str | None:
    """Text that is not empty."""
    return value if isinstance(value, str) and value else None
