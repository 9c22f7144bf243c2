"""What a log says about LLM calls, and the session that is made of it: shared by all readers. Pure.

A log (of an agent, a proxy, a tracer) knows each call's stamps and lengths, and something from
which to tell what its prompt shares with earlier ones: block ids, texts, or counts. A reader puts
that into `Recorded`, in numbers only, groups the calls into a `Draft`, and `session` does the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count

from agentreplay.errors import TraceError
from agentreplay.trace.model import Call, Notes, Session
from agentreplay.trace.structure import (
    ROUNDING_S,
    link,
    median_tokens_s,
    shared_prefixes,
    with_estimated_ends,
)

BLOCK_TOKENS = 64
"""Tokens a block where the log has no blocks of its own."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the user supplies where a log doesn't say it, and the key of texts' names.

    Attributes:
        key: At most 64 random bytes, new for each reading: the names of texts lead nowhere.
        gap_s: Seconds before calls of logs without times; None: such logs are refused.
        chars_per_token: Length of a token in logs of texts without lengths; None: refused.
        turn_lengths: "delta" where rows after a session's first hold what is new only, "full"
            where they hold the whole prompt, None to see it from the rows.
    """

    key: bytes
    gap_s: float | None = None
    chars_per_token: float | None = None
    turn_lengths: str | None = None

    def name(self, text: bytes, before: int = 0) -> int:
        """A number that stands for *text* after everything that *before* stands for."""
        named = blake2b(text, digest_size=8, key=self.key, salt=before.to_bytes(8, "little"))
        return int.from_bytes(named.digest()) >> 1

    def named(self, text: str) -> int:
        """A number that stands for a text of any characters, as a recorded id."""
        return self.name(text.encode("utf-8", "surrogatepass"))


@dataclass(slots=True, eq=False)
class Recorded:
    """One LLM call as a log has it; no text, and no hash but keyed ones.

    Attributes:
        start_s: When it was sent: Unix time, or seconds from the log's start. None where the log
            has no times: then it began `delay_s` after the call listed before it had ended.
        end_s: When its last token came, on the same clock; None where not recorded.
        isl: Input tokens, cached ones included; at least 1.
        osl: Output tokens, reasoning included.
        agent: Label of the agent that made it; "" is the main agent.
        model: The recorded model.
        cached: Input tokens that were read from the server's cache.
        system: Leading tokens that are tool definitions and system prompt.
        delay_s: Seconds between the end of the call listed before it and its start, in logs
            without times.
        prompt: Names of the pieces of the prompt (blocks, or messages), each standing for all
            before it too. For blocks, those of whole blocks only.
        ends: How many tokens the prompt has up to the end of each piece; empty for blocks.
        parent: The earlier call whose prompt this one continues, where the log tells that by
            counts and not by pieces, or `relate` has found it.
        shared: How many leading tokens it has in common with `parent`.
        name: Its number in the set, in order of time, where sessions share prefixes.
        after: The calls that had to end before it was sent, where the log tells: its agent's call
            before, its maker, the agents whose results it got. None: it is derived from times and
            prefixes.
    """

    start_s: float | None
    end_s: float | None
    isl: int
    osl: int
    agent: str = ""
    model: str | None = None
    cached: int | None = None
    system: int = 0
    delay_s: float | None = None
    prompt: Sequence[int] = ()
    ends: Sequence[int] = ()
    parent: Recorded | None = None
    shared: int = 0
    name: int | None = None
    after: tuple[Recorded, ...] | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """The calls of one session, before it is put together.

    Attributes:
        id: The session's name.
        source: File and line at which it begins.
        calls: Its calls, in the order of the log; at least one.
        dated: Stamps are Unix time, not seconds from the log's start.
        notes: Of the file that it begins in.
        block_size: Tokens a block.
        project: The project, or folder, that the session worked on.
        scope: Within what its block ids name the same as those of other sessions (a file, a
            trace); None where they are its own.
        rounding_s: How much its stamps may seem to overlap: 1 s where they are whole seconds.
    """

    id: str
    source: str
    calls: list[Recorded]
    dated: bool
    notes: Notes = field(default_factory=Notes)
    block_size: int = BLOCK_TOKENS
    project: str | None = None
    scope: str | None = None
    rounding_s: float = 0.0

    @property
    def start_s(self) -> float | None:
        """The earliest recorded start, on the log's clock."""
        return min((call.start_s for call in self.calls if call.start_s is not None), default=None)


def total_input(
    isl: int, cached: int | None, notes: Notes, what: str, line: int | None = None, written: int = 0
) -> int:
    """The input with its cached tokens.

    More of them than input are beside it, as the Messages API counts: they are added, and so are
    those *written* to the cache, and *what* is noted.
    """
    if cached is None or cached <= isl:
        return isl
    notes.add(what, line)
    return isl + cached + written


def had_ended(before: Recorded, call: Recorded, rounding_s: float = ROUNDING_S) -> bool:
    """Whether a call began after another's end, or its start where no end is recorded."""
    end_s = before.start_s if before.end_s is None else before.end_s
    return end_s is None or call.start_s is None or end_s <= call.start_s + rounding_s


def continue_by_counts(calls: Iterable[Recorded]) -> None:
    """Find what prompts share where a log has only counts, and set `parent` and `shared`.

    A prompt at least as long as its agent's last one before, of the same model, continues all of
    it, whatever was cached: a cache that forgot is no other prompt. Of any other prompt, and of
    helpers' prompts, which don't grow, that is shared which was read from the cache.

    Args:
        calls: The calls of a session with their agents, in order of their starts.
    """
    agents: dict[str, list[Recorded]] = {}
    longest: dict[str | None, Recorded] = {}
    for call in calls:
        own = agents.setdefault(call.agent, [])
        before = next((each for each in reversed(own[-16:]) if had_ended(each, call)), None)
        same = before if before is not None and before.model == call.model else None
        if same is not None and same.isl <= call.isl and not call.agent.startswith("helper"):
            call.parent, call.shared = same, same.isl
        elif call.cached:
            call.parent = same or longest.get(call.model) or before
            call.shared = call.cached
        own.append(call)
        most = longest.setdefault(call.model, call)
        if most.isl <= call.isl:
            longest[call.model] = call


def relate(drafts: Iterable[Draft], gap_s: float | None = None) -> None:
    """Find what sessions whose block ids have one scope share, each with all before it in time.

    Each call gets its parent and a number in the set; the ids have served, and go.
    """
    scopes: dict[tuple[str, int], list[Draft]] = {}
    for draft in drafts:
        if draft.scope is not None and not any(call.ends for call in draft.calls):
            scopes.setdefault((draft.scope, draft.block_size), []).append(draft)
    names = count()
    for (_, size), members in scopes.items():
        rows: list[tuple[float, int, Recorded]] = []
        for place, draft in enumerate(members):
            try:
                timed = _in_time(draft, gap_s, Notes())
            except TraceError:
                continue  # whoever reads it is told
            if any(call.prompt for call, *_ in timed[1:]):
                for call, *_ in timed:
                    call.parent, call.shared = None, 0  # ids tell more than counts
            rows += [(start_s, place, call) for call, start_s, _ in timed]
        rows.sort(key=lambda row: row[0])
        if _share(rows, size):
            for *_, call in rows:
                call.name = next(names)


def _share(rows: Sequence[tuple[float, int, Recorded]], size: int) -> bool:
    """Relate calls in order of time, given with their sessions; whether sessions share."""
    named = [(place, call) for _, place, call in rows if call.prompt]
    prompts = [call.prompt for _, call in named]
    if len(set(map(type, prompts))) > 1:
        prompts = list(map(list, prompts))
    places = [place for place, _ in named]
    across = False
    for (place, call), (parent, blocks) in zip(
        named, shared_prefixes(prompts, places), strict=True
    ):
        call.prompt = ()
        if parent is not None:
            across = across or places[parent] != place
            call.parent = named[parent][1]
            call.shared = min(blocks * size, call.isl, call.parent.isl)
    return across


def session(draft: Draft, gap_s: float | None = None) -> tuple[Session, Notes]:
    """Put a session together: order, ends, prefixes, who waits for whom.

    Raises:
        TraceError: calls have neither times nor delays, and no *gap_s* is given for them.
    """
    notes = Notes()
    rows = _in_time(draft, gap_s, notes)
    origin_s = rows[0][1]
    size = draft.block_size
    own = [call for call, *_ in rows]
    others = _others(own)
    places = {call: i for i, call in enumerate(own)}
    places |= {call: i - len(others) for i, call in enumerate(others)}
    relations = _relations(own, size, places)
    calls = [
        Call(  # by position: there are many
            start_s - origin_s,
            (start_s if end_s is None else end_s) - origin_s,
            end_s is not None and call.start_s is not None,
            call.isl,
            call.osl,
            (),
            0.0,
            parent if shared >= size else None,
            shared // size * size,
            min(call.system, call.isl),
            call.agent,
            call.model,
            call.cached,
        )
        for (call, start_s, end_s), (parent, shared) in zip(rows, relations, strict=True)
    ]
    lent = tuple(_lent(call, size, places) for call in others)
    names = tuple(call.name for call in (*own, *others) if call.name is not None)
    given = [_given(i, call, places) for i, call in enumerate(own)]
    linked = link(with_estimated_ends(calls), size, lent, given, draft.rounding_s)
    return Session(draft.id, draft.start_s, linked, size, draft.source, lent, names), notes


def _given(i: int, call: Recorded, places: Mapping[Recorded, int]) -> tuple[int, ...] | None:
    """What the log says that a call waited for; None where it says nothing, or nothing is left."""
    if not call.after:
        return None if call.after is None else ()
    after = dict.fromkeys(places.get(each, -1) for each in call.after)
    return tuple(j for j in after if 0 <= j < i) or None


def _lent(call: Recorded, size: int, places: Mapping[Recorded, int]) -> Call:
    """A call of another session, of which only the prompt counts."""
    return Call(
        start_s=0.0,
        end_s=0.0,
        timed=False,
        isl=call.isl,
        osl=call.osl,
        after=(),
        gap_s=0.0,
        parent=None if call.parent is None or call.shared < size else places[call.parent],
        shared=call.shared // size * size,
        system=min(call.system, call.isl),
        agent=call.agent,
        model=call.model,
        cached=call.cached,
    )


def _others(calls: Sequence[Recorded]) -> list[Recorded]:
    """The calls of other sessions above these, in order of time; none where sessions share none."""
    own, found = set(calls), dict[Recorded, int]()
    for call in calls:
        above = call.parent
        while above is not None and above.name is not None:
            if above in own or above in found:
                break
            found[above] = above.name
            above = above.parent
    return sorted(found, key=found.__getitem__)


_Timed = tuple[Recorded, float, float | None]


def _in_time(draft: Draft, gap_s: float | None, notes: Notes) -> list[_Timed]:
    """The calls with their starts and recorded ends, in order of their starts."""
    follow = any(call.start_s is None for call in draft.calls)  # from the end of the one before
    tokens_s = median_tokens_s(
        (call.osl, call.end_s - call.start_s)
        for call in (draft.calls if follow else ())
        if call.start_s is not None and call.end_s is not None
    )
    rows: list[_Timed] = []
    clock_s = 0.0  # the end of the call before
    for call in draft.calls:
        start_s, end_s = call.start_s, call.end_s
        if start_s is None:
            delay_s = call.delay_s if call.delay_s is not None or not rows else gap_s
            if delay_s is None and rows:
                raise TraceError(
                    f"{draft.source}: the log records no times; --gap supplies the seconds "
                    "between calls"
                )
            start_s = clock_s + max(0.0, delay_s or 0.0)
        elif end_s is not None and end_s < start_s:
            notes.add("calls that end before they begin, duration estimated")
            end_s = None
        rows.append((call, start_s, end_s))
        if follow:
            clock_s = start_s + call.osl / tokens_s if end_s is None else end_s
    rows.sort(key=lambda row: row[1])
    return rows


def _relations(
    calls: Sequence[Recorded], block_size: int, places: Mapping[Recorded, int]
) -> list[tuple[int | None, int]]:
    """For each call, the earlier one that it shares the most leading tokens with, and how many."""
    if not any(call.prompt for call in calls[1:]):
        return [_counted(places, i, call) for i, call in enumerate(calls)]
    relations: list[tuple[int | None, int]] = []
    for call, (parent, pieces) in zip(
        calls, shared_prefixes([call.prompt for call in calls]), strict=True
    ):
        if parent is None:
            relations.append((None, 0))
            continue
        before = calls[parent]
        if not call.ends:
            tokens = pieces * block_size
        elif pieces == len(before.prompt):
            tokens = before.isl
        else:
            tokens = min(before.ends[pieces - 1], call.ends[pieces - 1])
        relations.append((parent, min(tokens, before.isl, call.isl)))
    return relations


def _counted(places: Mapping[Recorded, int], i: int, call: Recorded) -> tuple[int | None, int]:
    if call.parent is None or places.get(call.parent, i) >= i:
        return None, 0
    return places[call.parent], min(call.shared, call.isl, call.parent.isl)
