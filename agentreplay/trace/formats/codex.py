"""Codex CLI sessions (rollouts): JSON lines, one thread a file, usage as running totals. Pure.

A file names neither its calls nor when they began. A call is a change of the totals; it began with
the last line that went into its prompt and ended with the last line that came from the model.
docs/formats.md describes the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from operator import itemgetter
from pathlib import PurePath
from typing import Any, TypeAlias

import orjson

from agentreplay.errors import TraceError
from agentreplay.trace.fields import count, unix_s
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import Draft, Reading, Recorded

LATE_S = 1.0
"""A token count that comes later than this after the model's last line says no more when the
answer ended."""

BURST_S = 5.0
"""A history is copied within this time from the making of a file."""

UNREAL_S = 0.5
"""What took less than this, just after a file was made, was copied and not asked for."""

_LINES = frozenset(
    "session_meta turn_context response_item event_msg compacted world_state "
    "inter_agent_communication inter_agent_communication_metadata rollout_reference "
    "token_usage_record".split()
)
_BARE_META = {"id", "timestamp", "instructions"}
_CONTENT = ("input_text", "output_text", "input_image")
_COMPACTIONS = ("compaction", "compaction_summary", "context_compaction")
_TURN_EVENTS = frozenset(
    "task_started turn_started user_message thread_rolled_back context_compacted "
    "entered_review_mode exited_review_mode turn_aborted".split()
)
_WAITS = frozenset("wait wait_agent close_agent".split())
"""Tools that give something when agents have ended."""

_REVIEW = ("",)
"""What is joined after a review, in place of agents' ids."""

_USAGE = (
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "reasoning_output_tokens",
    "total_tokens",
)
_USAGE_OF = itemgetter(*_USAGE)
_LARGEST = 1 << 40

_CUT = "calls without a token count, left out"
_COPIED = "calls copied from another session, left out"
_ALONE = "subagents of a session that is not in the set, sessions of their own"

_Usage: TypeAlias = tuple[int | None, ...]


@dataclass(slots=True, eq=False)
class _Call:
    """One call of a file, own or copied.

    Attributes:
        total: The running totals after it, which name it in all files that hold a copy.
        before: Index of the call of the file whose prompt it continues.
        anew: Its prompt was put together anew: the cached count alone says what it shares.
        old: It ended before the file was made.
        spawned_s: When it first asked for an agent.
        joins: Ids of the agents whose results it got; empty: of all that had ended; None: of none.
    """

    line: int
    start_s: float
    end_s: float | None
    isl: int
    osl: int
    cached: int | None
    model: str | None
    total: _Usage | None
    before: int | None
    anew: bool
    old: bool
    spawned_s: float | None
    joins: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """One file: a thread with all that was copied into it.

    Attributes:
        made_s: When the file was made.
        subagent: Another thread made it, for a part of its work.
        asked: The program made it, for a review or a compaction, and not a call.
        spawned_by: That thread's id.
        ancestors: Ids of threads whose history the file may hold.
        calls: Copied and own calls, in the order of the file.
        notes: Those of the file.
    """

    path: PurePath
    id: str
    project: str | None
    made_s: float | None
    subagent: bool
    asked: bool
    spawned_by: str | None
    ancestors: tuple[str, ...]
    calls: tuple[_Call, ...]
    notes: Notes


def recognises(record: object) -> bool:
    """Whether a decoded line is one of Codex: of a session, old or new, or of `codex exec`."""
    if not isinstance(record, dict):
        return False
    kind = record.get("type")
    if isinstance(kind, str) and kind in _LINES and isinstance(record.get("payload"), dict):
        return True
    return _is_exec(record) or _is_bare(record)


def _is_exec(record: Mapping[str, Any]) -> bool:
    """Whether it is a line that `codex exec --json` prints."""
    kind = record.get("type")
    if not isinstance(kind, str) or "payload" in record:
        return False
    if kind == "thread.started":
        return isinstance(record.get("thread_id"), str)
    if kind == "turn.completed":
        return isinstance(record.get("usage"), dict)
    if kind in ("item.started", "item.updated", "item.completed"):
        return isinstance(record.get("item"), dict)
    return kind in ("turn.started", "turn.failed")


def _is_bare(record: Mapping[str, Any]) -> bool:
    """Whether it is a line of a session of mid-2025: an item without a stamp, or what leads it."""
    if "record_type" in record:
        return bool(record["record_type"] == "state")
    if "payload" in record:
        return False
    kind = record.get("type")
    if kind is None:
        return record.keys() >= _BARE_META and record.keys() <= _BARE_META | {"git"}
    if kind == "message":
        content = record.get("content")
        first = content[0] if isinstance(content, list) and content else None
        return "role" in record and _get(first, "type") in _CONTENT
    if kind == "reasoning":
        return isinstance(record.get("summary"), list)
    return _from_model(kind) is not None and "call_id" in record


def _from_model(what: object) -> bool | None:
    """Whether the model made an item of a type, or got it; None for messages and other types."""
    if isinstance(what, str):
        if what == "reasoning" or what.endswith("_call"):
            return True
        if what.endswith("_output"):
            return False
    return None


def read(
    records: Iterable[tuple[int, Any]], path: PurePath, reading: Reading, notes: Notes
) -> Rollout:
    """What is kept of one file: numbers only.

    Raises:
        TraceError: no call of the file has a token count.
    """
    log = _Log(notes)
    printed = bare = False
    for line, record in records:
        if not isinstance(record, dict):
            notes.add("lines that are no Codex records, left out", line)
            continue
        kind, payload = record.get("type"), record.get("payload")
        if not isinstance(payload, dict):
            printed = printed or _is_exec(record)
            bare = bare or _is_bare(record)
            notes.add("lines without a payload, left out", line)
        elif kind == "response_item":
            log.item(payload, record.get("timestamp"), line)
        elif kind == "event_msg":
            what = payload.get("type")
            if what == "token_count":
                log.token_count(payload, record.get("timestamp"), line)
            elif isinstance(what, str) and what in _TURN_EVENTS:
                log.turn_event(what, payload, record.get("timestamp"))
        elif kind == "turn_context":
            log.model = _text(payload.get("model")) or log.model
            log.project = log.project or _text(payload.get("cwd"))
        elif kind == "session_meta":
            log.meta(payload, record.get("timestamp"))
        elif kind == "compacted":
            log.anew = True
            log.mark = record.get("timestamp") or log.mark
        elif not isinstance(kind, str) or kind not in _LINES:
            notes.add("lines of unknown types, left out", line)
    if log.calls:
        return log.rollout(path)
    if printed:
        why = "output of codex exec --json: usage per turn and no times, not enough for replay"
    elif bare:
        why = "a Codex session of mid-2025: it holds neither times nor token counts"
    else:
        why = "a Codex session without a token count: the lengths of its calls are unknown"
    raise TraceError(f"{path}: {why}")


class _Log:
    """What the lines of a file so far say. Stamps are kept as written: few of them are needed.

    Attributes:
        mark: Stamp of the last line that goes into the next call's prompt.
        joins: The agents whose results go into it, as a call has them.
        opened: Mark, model, line and joins of the answer that is read.
        spawned: Stamp of its first line that asks for an agent.
        waits: Ids of the tools that wait for agents, with those of the agents.
        open: Lines of an answer were read whose token count was not.
        ran: A tool of that answer gave something.
        turned: A new turn began since.
        head: Index of the call whose prompt the next one continues.
        turns: The heads when the turns of the user began, and how many calls there were.
        left: Index of the first of the calls that were taken back since the last call.
    """

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.calls: list[_Call] = []
        self.id: str | None = None
        self.named = False
        self.subagent = self.asked_for = False
        self.spawned_by: str | None = None
        self.ancestors: list[str] = []
        self.project: str | None = None
        self.model: str | None = None
        self.made_s: float | None = None
        self.mark: object = None
        self.open = self.turned = self.late = False
        self.joins: tuple[str, ...] | None = None
        self.opened: tuple[object, str | None, int, tuple[str, ...] | None] = (None, None, 0, None)
        self.spawned: object = None
        self.waits: dict[str | None, tuple[str, ...]] = {}
        self.answered: object = None
        self.total: _Usage | None = None
        self.totals: object = None  # as written
        self.end_s: float | None = None
        self.shift_s = 0.0
        self.head: int | None = None
        self.left: int | None = None
        self.reviewed: int | None = None
        self.turns: list[tuple[int | None, int]] = []
        self.asked = ""
        self.anew = self.anew_before = self.ran = False

    def meta(self, payload: Mapping[str, Any], stamp: object) -> None:
        """The first one is the file's own, others belong to the history that was copied."""
        named = _text(payload.get("id"))
        if self.named:
            if named and named != self.id:
                self.ancestors.append(named)
            return
        self.named, self.id = True, named
        self.made_s = unix_s(stamp or payload.get("timestamp"))
        self.project = _text(payload.get("cwd")) or self.project
        kind = _get(payload.get("source"), "subagent")
        forked_from = _text(payload.get("forked_from_id"))
        self.spawned_by = _text(payload.get("parent_thread_id")) or _text(
            _get(_get(kind, "thread_spawn"), "parent_thread_id")
        )
        self.asked_for = isinstance(kind, str)
        self.subagent = bool(kind or self.spawned_by or payload.get("thread_source") == "subagent")
        if self.subagent and self.spawned_by is None:
            self.spawned_by = forked_from
        self.ancestors += [name for name in (self.spawned_by, forked_from) if name]

    def item(self, payload: Mapping[str, Any], stamp: object, line: int) -> None:
        what = payload.get("type")
        from_model = _from_model(what)
        if from_model is None:
            if what in _COMPACTIONS:
                self.anew = True
                return
            role = payload.get("role")
            if role is None:
                return
            from_model = role == "assistant"
            self.turned = self.turned or not from_model
        if not from_model:
            self.ran = self.ran or what != "message"
            awaited = self.waits.get(_text(payload.get("call_id"))) if self.waits else None
            if awaited is not None:
                some = self.joins is None or (self.joins and awaited)
                self.joins = (*(self.joins or ()), *awaited) if some else ()
            self.mark = stamp or self.mark
            self.late = True
            return
        if self.open and self.turned:
            self.cut()
        if not self.open:
            self.open, self.ran = True, False
            self.opened = (self.mark, self.model, line, self.joins)
            self.answered = self.spawned = None
            self.joins = None
        if what == "function_call":
            name = payload.get("name")
            if name == "spawn_agent":
                self.spawned = self.spawned or stamp
            elif isinstance(name, str) and name in _WAITS:
                self.waits[_text(payload.get("call_id"))] = _awaited(payload.get("arguments"))
        self.turned = self.late = False
        self.answered = stamp or self.answered
        self.asked = ""

    def turn_event(self, what: str, payload: Mapping[str, Any], stamp: object) -> None:
        if what in ("task_started", "turn_started", "user_message"):
            # A turn has both marks or one of them; a message while a call is made is a turn too.
            mark, other = ("user", "task") if what == "user_message" else ("task", "user")
            if self.asked != other:
                self.turns.append((self.head, len(self.calls)))
                self.asked = mark
            else:
                self.asked = "both"
            self.mark = stamp or self.mark
            self.turned = self.late = True
        elif what == "thread_rolled_back":
            made = len(self.calls)
            for _ in range(min(count(payload.get("num_turns")) or 0, len(self.turns))):
                self.head, made = self.turns.pop()
            if made < len(self.calls):
                self.left = made
            self.anew = True
        elif what == "turn_aborted":
            if self.open and not self.ran:
                self.cut()  # what comes after its tools have run may still be its token count
        elif what == "entered_review_mode":
            self.reviewed, self.anew_before, self.anew = self.head, self.anew, True
        elif what == "exited_review_mode":
            self.head, self.anew = self.reviewed, self.anew_before or self.reviewed is None
            self.joins = _REVIEW
        else:
            self.anew = True

    def token_count(self, payload: Mapping[str, Any], stamp: object, line: int) -> None:
        info = payload.get("info")
        if not isinstance(info, dict):
            return  # limits of the rate only
        totals = info.get("total_token_usage")
        if totals and totals == self.totals:
            return  # most come twice
        before, total = self.total, _usage(totals)
        if total is not None:
            if total == before:
                return
            self.total, self.totals = total, totals
        fell = bool(total and before and (total[0] or 0) < (before[0] or 0))
        if fell:
            self.notes.add("running totals that fell, counted on from there", line)
        used = _usage(info.get("last_token_usage"))
        if used is None:
            used = total if before is None or fell else _difference(total, before)
        if used is None:
            self.notes.add("token counts without an input or output length, left out", line)
            return
        isl, cached, osl = used[:3]
        if isl == 0 and osl == 0:
            self.anew = True  # the history was made shorter
        elif not isl or osl is None:
            self.notes.add("token counts without an input or output length, left out", line)
            self.close()
        else:
            if cached is not None and cached > isl:
                self.notes.add("calls with more cached than input tokens, added up", line)
                isl += cached
            self.call((isl, osl, cached), total, stamp, line)

    def call(
        self,
        used: tuple[int, int, int | None],
        total: _Usage | None,
        stamp: object,
        line: int,
    ) -> None:
        spawned_s = None
        if self.open:
            mark, model, _, joins = self.opened
            spawned_s = unix_s(self.spawned)
        else:
            mark, model, joins, self.joins = self.mark, self.model, self.joins, None
        start_s, end_s = unix_s(mark), unix_s(stamp)
        answered_s = unix_s(self.answered) if self.open else None
        if answered_s is not None and (
            end_s is None or self.late or not 0 <= end_s - answered_s <= LATE_S
        ):
            end_s = answered_s
        self.close()
        if end_s is None:
            self.notes.add("calls without a time, left out", line)
            return
        old = self.made_s is not None and end_s < self.made_s
        end_s += self.shift_s
        start_s = None if start_s is None else start_s + self.shift_s
        spawned_s = None if spawned_s is None else spawned_s + self.shift_s
        if self.end_s is not None:
            if end_s < self.end_s:
                self.notes.add("clock steps back, taken out", line)
                back_s = self.end_s - (end_s if start_s is None else min(start_s, end_s))
                self.shift_s += back_s
                end_s += back_s
                start_s = None if start_s is None else start_s + back_s
            start_s = self.end_s if start_s is None else max(start_s, self.end_s)
        elif start_s is None and self.made_s is not None and self.made_s <= end_s:
            start_s = self.made_s
        if start_s is None:
            self.notes.add("calls of which only the end is known, duration estimated", line)
        before = self.head if self.head is not None or not self.calls else 0
        if self.left is not None and before is not None:
            if (used[2] or 0) > self.calls[before].isl:
                before = self.left  # the beginning of what was taken back was asked once more
            self.left = None
        self.head, self.end_s = len(self.calls), end_s if start_s is None else max(start_s, end_s)
        self.calls.append(
            _Call(  # by position: by name it takes three times as long
                line,
                end_s if start_s is None else start_s,
                None if start_s is None else end_s,
                *used,
                model,
                total,
                before,
                self.anew,
                old,
                spawned_s,
                joins,
            )
        )
        self.anew = False

    def close(self) -> None:
        """The token count of the call was read."""
        if not self.late:
            self.mark = None  # older than the answer
        self.open = self.turned = self.late = False

    def cut(self) -> None:
        """The answer so far gets no token count any more."""
        *_, line, joins = self.opened
        self.notes.add(_CUT, line)
        self.open, self.joins = False, joins if self.joins is None else self.joins

    def rollout(self, path: PurePath) -> Rollout:
        if self.open:
            self.cut()
        name = _name(path)
        in_name = name[-len("xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx") :]
        known = self.id or (in_name if name.startswith("rollout-") else f"{path}:1")
        return Rollout(
            path=path,
            id=known,
            project=self.project,
            made_s=self.made_s,
            subagent=self.subagent,
            asked=self.asked_for,
            spawned_by=self.spawned_by,
            ancestors=tuple(self.ancestors),
            calls=tuple(self.calls),
            notes=self.notes,
        )


def _usage(value: object) -> _Usage | None:
    """(input, cached, output, reasoning, total) tokens; None where none of them is known."""
    if not isinstance(value, dict):
        return None
    try:
        quick: tuple[int, ...] = _USAGE_OF(value)
    except KeyError:
        quick = (-1,)
    for tokens in quick:
        if type(tokens) is not int or not 0 <= tokens < _LARGEST:
            break
    else:
        return quick
    used = tuple([count(value.get(name)) for name in _USAGE])
    return used if any(tokens is not None for tokens in used) else None


def _difference(total: _Usage | None, before: _Usage | None) -> _Usage | None:
    if total is None or before is None:
        return total
    return tuple(
        None if now is None else max(0, now - (then or 0))
        for now, then in zip(total, before, strict=True)
    )


def _awaited(arguments: object) -> tuple[str, ...]:
    """The ids of the agents that a tool waits for; none where it names none."""
    try:
        given = orjson.loads(arguments) if isinstance(arguments, str) else arguments
    except orjson.JSONDecodeError:
        return ()
    named = [_get(given, name) for name in ("ids", "targets", "id", "target")]
    flat = [each for value in named for each in (value if isinstance(value, list) else [value])]
    return tuple(each for each in flat if isinstance(each, str) and each)


def _text(value: object) -> str | None:
    """Text, or a number as text; None where there is nothing."""
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _get(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


def _name(path: PurePath) -> str:
    """A file's name without what says that it is packed, and without what says that it is JSON."""
    return path.name.removesuffix(".zst").removesuffix(".gz").removesuffix(".jsonl")


# --- From files to sessions -----------------------------------------------------------------------


def drafts(parts: Sequence[Rollout], reading: Reading) -> list[Draft]:
    """The sessions of all files: each thread that no other one made, with its subagents."""
    threads = _once(parts)
    named: dict[str, list[Rollout]] = {}
    for thread in threads:
        named.setdefault(thread.id, []).append(thread)
    spawners: dict[Rollout, Rollout] = {}
    families: dict[Rollout, list[Rollout]] = {}
    for thread in threads:
        spawner = _nearest(named.get(thread.spawned_by or "", []), thread)
        if spawner is not None and thread not in _line(spawner, spawners):
            spawners[thread] = spawner
        elif thread.subagent:
            thread.notes.add(_ALONE)
    for thread in threads:
        families.setdefault(_line(thread, spawners)[-1], []).append(thread)
    made = []
    for root, family in families.items():
        family.sort(
            key=lambda thread: (len(_line(thread, spawners)), thread.made_s or 0.0, thread.id)
        )
        if calls := _calls(root, family, spawners, named):
            made.append(
                Draft(
                    id=root.id,
                    source=str(root.path),
                    calls=calls,
                    dated=True,
                    notes=root.notes,
                    project=root.project,
                )
            )
    return made


def _once(parts: Sequence[Rollout]) -> list[Rollout]:
    """Each thread once, of all copies of its file: a plain one, and the longest of these."""
    keys: list[Callable[[Rollout], object]] = [
        lambda part: _name(part.path) if part.path.name.startswith("rollout-") else part.path,
        # Two users may have sessions of one name, but hardly ones that were made at one time.
        lambda part: (part.id, part.made_s),
    ]
    kept = list(parts)
    for key in keys:
        best: dict[object, Rollout] = {}
        for part in kept:
            rival = best.setdefault(key(part), part)
            if _rank(part) > _rank(rival):
                best[key(part)] = part
        for part in kept:
            if best[key(part)] is not part:
                part.notes.add("copies of a session that another file holds, left out")
        kept = [part for part in kept if best[key(part)] is part]
    return kept


def _rank(part: Rollout) -> tuple[bool, int]:
    return part.path.suffix not in (".zst", ".gz"), len(part.calls)


def _nearest(threads: Sequence[Rollout], to: Rollout) -> Rollout | None:
    """Of threads of one name, the one whose file lies nearest."""

    def together(thread: Rollout) -> int:
        pairs = zip(thread.path.parts, to.path.parts, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    return max((each for each in threads if each is not to), key=together, default=None)


def _line(thread: Rollout, spawners: Mapping[Rollout, Rollout]) -> list[Rollout]:
    """The thread, the one that made it, the one that made that, and so on."""
    line = [thread]
    while line[-1] in spawners:
        line.append(spawners[line[-1]])
    return line


def _calls(
    root: Rollout,
    family: Sequence[Rollout],
    spawners: Mapping[Rollout, Rollout],
    named: Mapping[str, list[Rollout]],
) -> list[Recorded]:
    """The own calls of a thread and its subagents; those who made others come first."""
    own = {thread: thread.calls[_copied(thread, named) :] for thread in family}
    working = [thread for thread in family if own[thread]]
    others = sorted(
        (thread for thread in working if thread is not root),
        key=lambda thread: (own[thread][0].start_s, thread.id),
    )
    labels = {thread: f"agent {number}" for number, thread in enumerate(others, 1)}
    made: list[Recorded] = []
    known: dict[Rollout, dict[_Usage, Recorded]] = {}
    calls_of: dict[Rollout, list[Recorded]] = {}
    for thread in family:
        spawner = spawners.get(thread)
        by_total = dict(known[spawner]) if spawner else {}
        system = min((call.cached for call in thread.calls if call.cached), default=0)
        label = labels.get(thread, "")
        copies = len(thread.calls) - len(own[thread])
        placed: list[Recorded | None] = []
        for call in thread.calls[:copies]:
            thread.notes.add(_COPIED, call.line)
            placed.append(by_total.get(call.total) if call.total else None)
        for call in own[thread]:
            parent = None if call.before is None else placed[call.before]
            anew = call.anew
            if parent is None and spawner and len(placed) == copies:
                parent, anew = _latest(calls_of[spawner], call), True
            whole = parent and parent.isl <= call.isl and parent.model == call.model and not anew
            recorded = Recorded(
                call.start_s, call.end_s, call.isl, call.osl, label, call.model, call.cached, system
            )
            recorded.parent = parent
            recorded.shared = parent.isl if parent and whole else call.cached or 0
            placed.append(recorded)
            if call.total:
                by_total[call.total] = recorded
        known[thread] = by_total
        calls_of[thread] = [each for each in placed[copies:] if each]
        made += calls_of[thread]
    for thread in family:
        _wait(thread, family, spawners, own, calls_of)
    return made


def _wait(
    thread: Rollout,
    family: Sequence[Rollout],
    spawners: Mapping[Rollout, Rollout],
    own: Mapping[Rollout, Sequence[_Call]],
    calls_of: Mapping[Rollout, Sequence[Recorded]],
) -> None:
    """Say what the calls of a thread waited for, those of its maker known.

    Each waits for the one before it, the first one for the call that made the thread: the maker's
    last one that had ended or asked for an agent by then. Where that call still was at work, the
    thread waits for what it waited for. Where agents of the thread are at hand, but not the calls
    that asked for them, it does not say what it waited for.
    """
    calls = calls_of[thread]
    if not calls:
        return
    spawner = spawners.get(thread)
    if spawner is None:
        calls[0].after = ()
    else:
        start_s = calls[0].start_s or 0.0
        maker = None
        for call, recorded in zip(own[spawner], calls_of[spawner], strict=True):
            ended = _ended_s(recorded) <= start_s
            if ended or (call.spawned_s is not None and call.spawned_s <= start_s):
                maker = (recorded,) if ended else recorded.after
        calls[0].after = maker
    agents = [each for each in family if spawners.get(each) is thread and calls_of[each]]
    if not all(each.asked for each in agents) and all(
        call.spawned_s is None for call in thread.calls
    ):
        return
    for before, recorded in pairwise(calls):
        recorded.after = (before,)
    for call, recorded in zip(own[thread], calls, strict=True):
        if call.joins is not None and agents:
            over = [
                each
                for each in agents
                if (each.asked if call.joins == _REVIEW else not each.asked)
                and (call.joins in ((), _REVIEW) or each.id in call.joins)
                and _ended_s(calls_of[each][-1]) <= (recorded.start_s or 0.0)
            ]
            agents = [each for each in agents if each not in over]
            recorded.after = (*(recorded.after or ()), *(calls_of[each][-1] for each in over))


def _ended_s(call: Recorded) -> float:
    """When a call ended, as far as that is known."""
    return (call.start_s if call.end_s is None else call.end_s) or 0.0


def _copied(thread: Rollout, named: Mapping[str, list[Rollout]]) -> int:
    """How many of a file's calls, all at its beginning, were made by another thread.

    Their totals are those of an ancestor, or they are older than a file that names one. Where an
    ancestor is not at hand, those too that came and went in no time when the file was made.
    """
    ancestors = [_nearest(named.get(name, []), thread) for name in thread.ancestors]
    totals = {call.total for each in ancestors if each for call in each.calls if call.total}
    made_s = thread.made_s if None in ancestors else None
    calls = thread.calls
    copied = max((n for n, call in enumerate(calls, 1) if call.total in totals), default=0)
    while copied < len(calls):
        call = calls[copied]
        end_s = call.start_s if call.end_s is None else call.end_s
        at_once = (
            made_s is not None
            and 0 <= end_s - made_s <= BURST_S
            and end_s - call.start_s < UNREAL_S
        )
        if not ((call.old and thread.ancestors) or at_once):
            break
        copied += 1
    return copied


def _latest(calls: Sequence[Recorded], before: _Call) -> Recorded | None:
    """The last call of a model that began before another call to that model.

    It is the last of those that are as long as what that one found in the cache, if there are any.
    """
    return max(
        (
            call
            for call in calls
            if call.model == before.model and (call.start_s or 0.0) <= before.start_s
        ),
        key=lambda call: (call.isl >= (before.cached or 0), call.start_s or 0.0),
        default=None,
    )
