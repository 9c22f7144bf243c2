"""Calls of a proxy's log put into sessions: by the names they bear, else by what they continue.

A log of bodies (HAR, mitmproxy, LiteLLM) holds calls of many conversations, mixed. Pure: numbers
and keyed names in, sessions of labelled calls out.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from agentreplay.errors import TraceError
from agentreplay.trace.formats.bodies import Exchange, recorded
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import Draft, Reading, Recorded, continue_by_counts, had_ended

RETRY_S = 60.0
"""A request that is made again comes this soon."""


@dataclass(frozen=True, slots=True)
class Logged:
    """A call that is to find its session.

    Attributes:
        call: The call; its `prompt` are the names of its pieces. `sessions` sets its `agent`.
        session: What the log says it belongs to, as anything that tells sessions apart.
        agent: Likewise the agent; None for the main one, or where unknown.
        helper: As `Exchange.helper`.
        retry: As `Exchange.retry`.
    """

    call: Recorded
    session: str | None = None
    agent: str | None = None
    helper: bool = False
    retry: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a log.

    Attributes:
        exchange: What it says.
        start_s: When the request was sent, in Unix time.
        end_s: When the answer had come; None where not recorded.
        source: Where it was read.
        key: What copies of it have in common; None where nothing tells them.
        names: What the log calls its session, the surest first.
    """

    exchange: Exchange
    start_s: float
    end_s: float | None
    source: str
    key: Hashable = None
    names: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """What is kept of one file of a log of bodies."""

    entries: Sequence[Entry]
    notes: Notes


def entry(
    told: Exchange | None,
    status: int | None,
    start_s: float | None,
    end_s: float | None,
    place: tuple[PurePath, int],
    notes: Notes,
) -> Entry | None:
    """The entry of a request to an LLM path, which began at *place* (file and number in it).

    None, with a note, where it has no readable body or failed.
    """
    path, number = place
    if told is None:
        notes.add("LLM requests without a readable body, left out", number)
        return None
    if told.failed or status is None or not 200 <= status < 300:
        notes.add("failed calls, left out", number)
        return None
    if start_s is None:
        notes.add("calls without a time, left out", number)
        return None
    if told.outside:
        notes.add("calls with more cached tokens than input, added to it", number)
    if told.osl == 0:
        notes.add("calls without output, sent with one token", number)
    key = (told.response_id, start_s, told.model, *told.names[-1:])
    return Entry(told, start_s, end_s, f"{path}:{number}", key)


def part(
    entries: Sequence[Entry], path: PurePath, kind: str, reading: Reading, notes: Notes
) -> Part:
    """The part of a file of format *kind*.

    Raises:
        TraceError: no call has lengths, and the user gives none for characters.
    """
    with_lengths = any(each.exchange.isl and each.exchange.osl is not None for each in entries)
    if entries and not with_lengths and reading.chars_per_token is None:
        raise TraceError(
            f"{path}: {kind} without usage records no lengths; --chars-per-token supplies them"
        )
    return Part(entries, notes)


def drafts(parts: Sequence[Part], reading: Reading) -> list[Draft]:
    """The sessions of all files of one log format; a call that two files hold counts once.

    A session's name that only one call has is no evidence: some proxies give each a new one. A
    session most of whose calls have no prompt is told by counts.
    """
    entries: list[tuple[Entry, Notes]] = []
    seen: set[Hashable] = set()
    for part in parts:
        for entry in part.entries:
            if entry.key is not None and entry.key in seen:
                part.notes.add("calls that were read before, left out")
                continue
            seen.add(entry.key)
            entries.append((entry, part.notes))
    times = Counter(name for entry, _ in entries for name in set(entry.names))
    calls: list[Logged] = []
    origins: dict[Recorded, tuple[str, str, Notes]] = {}
    whole = histories([entry.exchange for entry, _ in entries], reading)
    for told, (entry, notes) in zip(whole, entries, strict=True):
        call = recorded(told, entry.start_s, entry.end_s, reading)
        if call is None:
            notes.add("calls without usage, left out")
            continue
        name = next((each for each in entry.names if times[each] > 1), None)
        origins[call] = name or next(iter(entry.names), entry.source), entry.source, notes
        calls.append(Logged(call, name or told.session, told.agent, told.helper, told.retry))
    made = []
    for group in sessions(calls, parts[0].notes if parts else None):
        if 2 * sum(bool(call.prompt) for call in group) < len(group):
            for call in group:
                call.prompt = call.ends = ()
            if any(call.cached for call in group):  # else they may have nothing in common
                continue_by_counts(group)
        name, source, notes = origins[group[0]]
        made.append(Draft(name, source, group, dated=True, notes=notes))
    return made


def histories(exchanges: Sequence[Exchange], reading: Reading) -> list[Exchange]:
    """The exchanges with the history that `previous` hides before their own pieces.

    An exchange of such a chain without a session gets its chain's.
    """
    places = {each.response_id: i for i, each in enumerate(exchanges) if each.response_id}
    whole: list[Exchange | None] = [None] * len(exchanges)
    begins = {each.previous for each in exchanges if each.previous}
    for i in range(len(exchanges)):
        chain: dict[int, None] = {}  # as a set that keeps its order
        at: int | None = i
        while at is not None and whole[at] is None and at not in chain:
            chain[at] = None
            at = places.get(exchanges[at].previous or "")
        before = whole[at] if at is not None else None
        for j in reversed(chain):
            own = exchanges[j]
            if before is not None:
                own = _after(own, before, reading)
            elif own.session is None and own.response_id in begins:
                own = replace(own, session=own.response_id)
            whole[j] = before = own
    return [each for each in whole if each is not None]


def sessions(calls: Sequence[Logged], notes: Notes | None = None) -> list[list[Recorded]]:
    """Put the calls of a set into sessions, in order of their starts, and label their agents.

    A call belongs to the session that it names, where another names it too, else to that of the
    call whose prompt it continues. Of a request made again only the last is kept.
    """
    order = sorted(calls, key=lambda each: (each.call.start_s is None, each.call.start_s or 0.0))
    order = _once(order, notes)
    named = Counter(each.session for each in order)
    prompts = _Prompts()
    groups: list[list[tuple[Logged, Recorded | None]]] = []
    by_name: dict[str, int] = {}
    places: dict[Recorded, int] = {}
    for each in order:
        before = prompts.continued_by(each.call)
        if each.session is not None and named[each.session] > 1:
            place = by_name.setdefault(each.session, len(groups))
        elif before is not None:
            place = places[before]
        else:
            place = len(groups)
        if place == len(groups):
            groups.append([])
        inside = before is not None and places[before] == place
        groups[place].append((each, before if inside else None))
        places[each.call] = place
        prompts.add(each.call)
    for group in groups:
        _label(group)
    return [[each.call for each, _ in group] for group in groups]


# --- Histories ------------------------------------------------------------------------------------


def _after(own: Exchange, before: Exchange, reading: Reading) -> Exchange:
    """The exchange with the prompt and the answer of *before* after its own system pieces."""
    k = own.system_pieces
    session = own.session or before.session
    if own.names[:k] != before.names[: before.system_pieces]:
        return replace(own, session=session)
    names, chars = array("q", before.names), array("q", before.chars)
    name = names[-1] if names else 0
    length = (chars[-1] if chars else 0) + before.answer_chars
    system_chars = own.chars[k - 1] if k else 0
    for piece, end in zip(own.names[k:], own.chars[k:], strict=True):
        name = reading.name(piece.to_bytes(8, "little"), name)
        names.append(name)
        chars.append(length + end - system_chars)
    return replace(own, session=session, names=names, chars=chars)


# --- Sessions -------------------------------------------------------------------------------------


class _Prompts:
    """The prompts so far, to be found by what continues them."""

    LOOKED_AT = 64  # of calls with the same prompt, so that thousands of them cost little

    def __init__(self) -> None:
        self._whole: dict[int, list[Recorded]] = {}
        self._but_last: dict[int, list[Recorded]] = {}
        self._continued: set[Recorded] = set()

    def add(self, call: Recorded) -> None:
        if call.prompt:
            self._whole.setdefault(call.prompt[-1], []).append(call)
        # A client may rewrite a prompt's last message in the next call. What two messages and
        # the one after them have in common is no chance.
        if len(call.prompt) > 2 and _system_pieces(call) + 2 < len(call.prompt):
            self._but_last.setdefault(call.prompt[-2], []).append(call)

    def continued_by(self, call: Recorded) -> Recorded | None:
        """The call with the longest prompt that is the beginning of this one's."""
        for k in range(len(call.prompt) - 2, -1, -1):
            name = call.prompt[k]
            for table, longest in ((self._whole, k + 1), (self._but_last, k + 2)):
                found = table.get(name)
                if not found or longest >= len(call.prompt):
                    continue
                ended = [each for each in found[-self.LOOKED_AT :] if had_ended(each, call)]
                if ended:
                    best = max(ended, key=lambda each: self._rank(each, call))
                    self._continued.add(best)
                    return best
        return None

    def _rank(self, before: Recorded, call: Recorded) -> tuple[bool, bool, float]:
        return before.model == call.model, before not in self._continued, before.start_s or 0.0


def _system_pieces(call: Recorded) -> int:
    return bisect_right(call.ends, call.system) if call.system else 0


def _once(calls: Iterable[Logged], notes: Notes | None) -> list[Logged]:
    """The calls without those that were made again; they are in order of their starts."""
    kept: dict[Recorded, Logged] = {}
    latest: dict[tuple[int, str | None], Recorded] = {}
    for each in calls:
        call = each.call
        if call.prompt:
            body = call.prompt[-1], call.model
            before = latest.get(body)
            if each.retry and before is not None and _soon(before, call):
                kept.pop(before, None)
                if notes is not None:
                    notes.add("calls that were made again, left out")
            latest[body] = call
        kept[call] = each
    return list(kept.values())


def _soon(before: Recorded, call: Recorded) -> bool:
    ended = before.start_s if before.end_s is None else before.end_s
    return ended is not None and call.start_s is not None and call.start_s - ended <= RETRY_S


def _label(group: Sequence[tuple[Logged, Recorded | None]]) -> None:
    """Label the agents of a session: by what the log names, what a prompt continues, or its
    system prompt, which is the main agent's or another's."""
    helpers = not all(each.helper for each, _ in group)
    agents: dict[object, str] = {}
    helped = 0
    main: int | None = None
    for each, before in group:
        call = each.call
        if each.agent is not None:
            call.agent = agents.setdefault(each.agent, f"agent {len(agents) + 1}")
        elif before is not None:
            call.agent = before.agent
        elif helpers and each.helper:
            helped += 1
            call.agent = f"helper {helped}"
        else:
            pieces = _system_pieces(call)
            system = call.prompt[pieces - 1] if pieces else 0
            if main is None:
                main = system
            other = system != main
            call.agent = agents.setdefault(system, f"agent {len(agents) + 1}") if other else ""
