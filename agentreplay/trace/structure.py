"""Who waits for whom, and who shares what: derived once, in one way, for every trace format.

A reader delivers calls with their times, lengths and models, in order of `start_s`, and for each
either its block ids (`shared_prefixes`) or what it shares with an earlier call. `link` adds the
waiting. Nothing here knows a format.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from agentreplay.plan import Order
from agentreplay.trace.model import Call, Session

ROUNDING_S = 1.0
"""Stamps of whole seconds may seem to overlap by this much."""

EXACT_S = 1e-3
"""And stamps of milliseconds by this much."""

TAIL_BLOCKS = 2
"""A continued prompt may differ from its predecessor in its last blocks: the tail is tokenised
anew when text is appended."""

FALLBACK_TOKENS_S = 35.0
"""Output tokens a second of a call without an end in a session without any measured call: the
median output over the median duration of the published Weka sessions."""


def median_tokens_s(calls: Iterable[tuple[int, float]]) -> float:
    """The median output tokens a second of calls, given as output tokens and seconds."""
    speeds = [tokens / seconds for tokens, seconds in calls if tokens and seconds > 0]
    return median(speeds) if speeds else FALLBACK_TOKENS_S


def with_estimated_ends(calls: Sequence[Call]) -> list[Call]:
    """Fill in `end_s` of the calls that are not `timed`; the calls are in order of `start_s`.

    An unknown duration is the call's output at the median speed of the session's measured ones,
    and at most the time to its agent's next call, so that no gap becomes negative.
    """
    filled = list(calls)
    if all(call.timed for call in calls):
        return filled
    tokens_s = median_tokens_s(
        (call.osl, call.end_s - call.start_s) for call in calls if call.timed
    )
    next_start_s: dict[str, float] = {}
    for i in range(len(calls) - 1, -1, -1):
        call = calls[i]
        if not call.timed:
            end_s = call.start_s + call.osl / tokens_s
            end_s = min(end_s, next_start_s.get(call.agent, end_s))
            filled[i] = Call._make((call.start_s, end_s, *call[2:]))
        next_start_s[call.agent] = call.start_s
    return filled


def shared_prefixes(
    prompts: Sequence[Sequence[Any]], sessions: Sequence[int] | None = None
) -> list[tuple[int | None, int]]:
    """For each prompt, given as block ids: its parent, and how many blocks they share.

    An id names a block and all before it, so the ids of a prompt that occurred before are a
    prefix of it.

    Args:
        prompts: Sequences of one type, in order of time.
        sessions: The session of each prompt; None: they are all of one.

    Returns:
        (index of the latest earlier prompt of the session that shares the most leading blocks;
        where those of other sessions share more, of the first that does; or None; number of
        blocks).
    """
    blocks: set[Any] = set()
    first: dict[Any, int] = {}  # where there are sessions, blocks with the prompt that brought them
    seen = blocks if sessions is None else first
    earlier: dict[int, list[int]] = {}
    relations: list[tuple[int | None, int]] = []
    for i, ids in enumerate(prompts):
        own = earlier.setdefault(sessions[i] if sessions is not None else 0, [])
        parent, shared = _longest_shared(prompts, i, own, seen, first)
        own.append(i)
        new = ids[shared:]
        known = len(seen)
        if sessions is None:
            blocks.update(new)
        else:
            first.update(dict.fromkeys(new, i))
        if len(seen) - known < len(new) or (shared and parent is None):
            return shared_prefixes(_chained(prompts), sessions)
        relations.append((parent, shared))
    return relations


def _longest_shared(
    prompts: Sequence[Sequence[Any]],
    i: int,
    own: Sequence[int],
    seen: Container[Any],
    first: Mapping[Any, int],
) -> tuple[int | None, int]:
    """The parent of prompt *i*, and how many of its blocks were *seen*.

    Without a parent though blocks were seen, ids don't name all before them.
    """
    ids, before = prompts[i], prompts[own[-1]] if own else ()
    shared = len(before)
    if shared and ids[:shared] == before and (shared == len(ids) or ids[shared] not in seen):
        return own[-1], shared  # most prompts continue the one before
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        if ids[middle] in seen:
            low = middle + 1
        else:
            high = middle
    if low:
        last = ids[low - 1]
        for j in reversed(own):
            earlier = prompts[j]
            if len(earlier) >= low and earlier[low - 1] == last:
                return (j if earlier[:low] == ids[:low] else None), low
        if last in first and prompts[first[last]][:low] == ids[:low]:
            return first[last], low
    return None, low


def _chained(prompts: Sequence[Sequence[Any]]) -> list[list[int]]:
    """Rename ids that name only their own block so that they name all before it as well."""
    names: dict[tuple[int, Any], int] = {}
    chained = []
    for ids in prompts:
        name, renamed = 0, []
        for block in ids:
            name = names.setdefault((name, block), len(names) + 1)
            renamed.append(name)
        chained.append(renamed)
    return chained


def common_prefix(calls: Sequence[Call], i: int, j: int, at_least: int = 1) -> int:
    """How many leading tokens the prompts of calls *i* and *j* share; 0 where below *at_least*.

    Walks the two up the tree of parents to where they meet: the least `shared` on the way, since
    a call shares with no earlier one more than with its parent.
    """
    least = calls[i].isl
    way = {i: least}  # what call i shares with each of those above it
    call = calls[i]
    while call.parent is not None and call.shared >= at_least:
        least = min(least, call.shared)
        way[call.parent] = least
        call = calls[call.parent]
    shared = calls[j].isl
    while j not in way:
        call = calls[j]
        shared = min(shared, call.shared)
        if call.parent is None or shared < at_least:
            return 0
        j = call.parent
    shared = min(shared, way[j])
    return shared if shared >= at_least else 0


def link(
    calls: Sequence[Call],
    block_size: int,
    lent: tuple[Call, ...] = (),
    given: Sequence[tuple[int, ...] | None] = (),
    rounding_s: float = ROUNDING_S,
) -> tuple[Call, ...]:
    """Fill in `after` and `gap_s` of calls that are in order of `start_s`, in causal order.

    A call that continues a chain waits for the chain's last call; the first one of another agent
    begins a chain of its own there, so that the agent it came from can join it. One that continues
    none waits for the call of its own agent that ended last before it, or, where the agent is new,
    of the session; without one it is a root. Either also waits for every chain that came and went
    since its predecessor ended.

    Args:
        given: For each call what it waits for, where that is known; None: it is derived.
        rounding_s: How much two stamps may seem to overlap.
    """
    known = list(given) or [None] * len(calls)
    if None not in known:
        return tuple(waiting(calls, i, after or ()) for i, after in enumerate(known))
    rounding_s = max(rounding_s, EXACT_S)
    chains, predecessors = _chains(calls, block_size, lent, rounding_s)
    members = list(_members(chains).items())
    begun_s = [calls[indices[0]].start_s for _, indices in members]  # ascending, as the calls are
    linked = []
    for i, call in enumerate(calls):
        after, before = known[i], predecessors[i]
        if after is not None:
            linked.append(waiting(calls, i, after))
            continue
        joined = [] if before is None else [before]
        if len(members) > 1:
            since_s = (calls[before].end_s if before is not None else 0.0) - rounding_s
            until_s = call.start_s + rounding_s
            for chain, indices in members[bisect_left(begun_s, since_s) :]:
                last = indices[-1]
                if indices[0] >= i:
                    break
                if (
                    chain != chains[i]
                    and last < i
                    and last not in joined
                    and calls[last].end_s <= until_s
                ):
                    joined.append(last)
        linked.append(waiting(calls, i, joined))
    return tuple(linked)


def alone(session: Session) -> Session:
    """The session with what its calls share among each other, and nothing of other sessions."""
    calls, prompts = [], session.prompts
    for i, call in enumerate(session.calls):
        if call.parent is not None and call.parent < 0:
            shares = ((common_prefix(prompts, i, j), j) for j in range(i))
            shared, parent = max(shares, default=(0, 0))
            call = call._replace(parent=parent if shared else None, shared=shared)
        calls.append(call)
    return replace(session, calls=tuple(calls), lent=(), names=())


def in_order(session: Session, order: Order) -> Session:
    """The session as its calls wait for each other in an order; it is in causal order as read."""
    if order == "recorded":
        return recorded_order(session)
    return serial_order(session) if order == "serial" else session


def recorded_order(session: Session) -> Session:
    """The session in which nothing overtakes what it did not overtake in the recording.

    Each call also waits for the latest call of every other line that had ended when it began.
    """
    calls, own = session.calls, lines(session.calls)
    members: list[list[int]] = []
    ordered = []
    for i, call in enumerate(calls):
        after = list(call.after)
        for line, indices in enumerate(members):
            if line != own[i]:
                ended = next((j for j in reversed(indices) if calls[j].end_s <= call.start_s), None)
                if ended is not None and ended not in after:
                    after.append(ended)
        if own[i] == len(members):
            members.append([])
        members[own[i]].append(i)
        ordered.append(waiting(calls, i, after))
    return replace(session, calls=tuple(ordered))


def serial_order(session: Session) -> Session:
    """The session with one call in flight at a time, in order of the recorded starts."""
    calls = session.calls
    ordered = [waiting(calls, i, (i - 1,) if i else ()) for i in range(len(calls))]
    return replace(session, calls=tuple(ordered))


def lines(calls: Sequence[Call]) -> list[int]:
    """The line of each call, numbered as they begin.

    A line is made of calls of one agent, each waiting for the one before it.
    """
    last: dict[int, int] = {}  # the line of its last call
    numbered: list[int] = []
    begun = 0
    for i, call in enumerate(calls):
        before = next((j for j in call.after if j in last and calls[j].agent == call.agent), None)
        if before is None:
            number, begun = begun, begun + 1
        else:
            number = last.pop(before)
        last[i] = number
        numbered.append(number)
    return numbered


def waiting(calls: Sequence[Call], i: int, after: Sequence[int]) -> Call:
    """Call *i* when it waits for the calls *after*, with the gap that was recorded after them."""
    call = calls[i]
    if len(after) == 1:
        gap_s = call.start_s - calls[after[0]].end_s
    else:
        gap_s = call.start_s - max((calls[j].end_s for j in after), default=0.0)
    return Call._make((*call[:5], tuple(after), gap_s if gap_s > 0 else 0.0, *call[7:]))


def _chains(
    calls: Sequence[Call], block_size: int, lent: tuple[Call, ...], rounding_s: float
) -> tuple[list[int], list[int | None]]:
    """The chain of each call, and the call that it waits for first."""
    prompts = (*calls, *lent)
    chains: list[int] = []
    predecessors: list[int | None] = []
    lasts: list[int] = []  # the last call of each chain
    ends: dict[str | None, list[tuple[float, int]]] = {None: []}  # by agent, and of all
    agents: set[str] = set()
    for i, call in enumerate(calls):
        known = call.agent in agents
        agents.add(call.agent)
        continued = _continued(prompts, i, chains, lasts, block_size, rounding_s, known)
        if continued is None:
            for j in range(len(ends[None]), i):
                end = calls[j].end_s, -j
                for ordered in ends[None], ends.setdefault(calls[j].agent, []):
                    if ordered and end < ordered[-1]:
                        insort(ordered, end)
                    else:
                        ordered.append(end)
            until_s = call.start_s + rounding_s
            before = _ended_last(ends.get(call.agent, ()), until_s)
            predecessors.append(_ended_last(ends[None], until_s) if before is None else before)
        else:
            predecessors.append(lasts[continued])
        if continued is None or calls[lasts[continued]].agent != call.agent:
            chains.append(len(lasts))
            lasts.append(i)
        else:
            chains.append(continued)
            lasts[continued] = i
    return chains, predecessors


def _continued(
    calls: Sequence[Call],
    i: int,
    chains: Sequence[int],
    lasts: Sequence[int],
    block_size: int,
    rounding_s: float,
    known: bool,
) -> int | None:
    """The chain that call *i* continues: the one it shares most with, of equal ones its own.

    An agent that is *known*, since it called before, continues its own chains only.
    """
    call = calls[i]
    if call.parent is None:
        return None  # it shares with none
    until_s = call.start_s + rounding_s
    chain = chains[call.parent] if call.parent >= 0 else None
    if chain is not None and lasts[chain] == call.parent:
        needed = _least_shared(calls[call.parent], call, block_size, until_s)
        own = calls[call.parent].agent == call.agent
        if own and needed is not None and call.shared >= needed:
            return chain  # with no other call it shares more
    continued, longest = None, 0
    for chain, last in enumerate(lasts):
        own = calls[last].agent == call.agent
        if known and not own:
            continue
        needed = _least_shared(calls[last], call, block_size, until_s)
        if needed is not None:
            shared = common_prefix(calls, i, last, at_least=max(needed, longest))
            if shared > longest or (own and 0 < shared == longest):
                continued, longest = chain, shared
    return continued


def _least_shared(before: Call, call: Call, block_size: int, until_s: float) -> int | None:
    """How many tokens a call must share with one before it to continue it; None: it can't."""
    if before.model != call.model or before.end_s > until_s:
        return None
    return max((before.isl // block_size - TAIL_BLOCKS) * block_size, block_size)


def _ended_last(ends: Sequence[tuple[float, int]], until_s: float) -> int | None:
    """The call that ended last until some time, of calls as (end, minus index) in order."""
    ended = bisect_left(ends, (until_s, 1))
    return -ends[ended - 1][1] if ended else None


def _members(chains: Sequence[int]) -> dict[int, list[int]]:
    members: dict[int, list[int]] = {}
    for i, chain in enumerate(chains):
        members.setdefault(chain, []).append(i)
    return members
