"""What a set of sessions is like: lengths, times, reuse. Pure.

Sessions are read as a stream, and of each call only a few numbers are kept.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from agentreplay.metrics.distribution import Distribution, distribution
from agentreplay.trace.model import Session
from agentreplay.trace.prefix import Reuse, reuse_of, seen_tokens


@dataclass(frozen=True, slots=True)
class Statistics:
    """Figures over recorded sessions; `dataclasses.asdict` makes a JSON value of them.

    Attributes:
        sessions: Number of sessions.
        calls: Number of calls.
        subagents: Number of agents other than the main one, over all sessions.
        input_tokens: Sum of all prompts, cached tokens included.
        output_tokens: Sum of all outputs.
        cached_tokens: Sum of what recorded servers read from their caches, over the calls that
            say so; None where none does.
        recorded_seconds: Sum of the sessions' lengths.
        prefix_reuse: Share of the input tokens that the same session had sent before, in whole
            blocks, or any session of the set where they share prefixes; None without input.
        prefix_reuse_blocks: The same as a share of all whole blocks; None without a block.
        input: Input tokens a call.
        output: Output tokens a call.
        gap_s: Seconds from the latest end of the calls that a call waits for to its start; calls
            that wait for none have no gap.
        duration_s: Seconds from start to end of a call, of calls with both stamps recorded.
        calls_per_session: Calls a session, those of subagents included.
        largest_prompt: Input tokens of each session's largest prompt.
        session_s: Seconds from a session's start to its last end.
        estimated_durations: Number of calls whose end was not recorded.
        zero_outputs: Number of calls that were recorded without output.
        models: Number of calls of each recorded model, most used first; calls of unknown models
            are not among them.
        largest_in_flight: Most calls of one session that ran at once.
    """

    sessions: int
    calls: int
    subagents: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int | None
    recorded_seconds: float
    prefix_reuse: float | None
    prefix_reuse_blocks: float | None
    input: Distribution
    output: Distribution
    gap_s: Distribution
    duration_s: Distribution
    calls_per_session: Distribution
    largest_prompt: Distribution
    session_s: Distribution
    estimated_durations: int
    zero_outputs: int
    models: dict[str, int]
    largest_in_flight: int


def statistics(
    sessions: Iterable[Session],
    also: Callable[[Session, Sequence[int], Mapping[int, float]], None] | None = None,
) -> Statistics:
    """Read sessions one by one and sum them up.

    Args:
        sessions: The sessions.
        also: Takes each, how many leading tokens of each of its prompts had been sent before, and
            its `in_flight_s`.
    """
    inputs, outputs, gaps_s, durations_s = array("q"), array("q"), array("d"), array("d")
    sizes, largest, lengths_s = array("q"), array("q"), array("d")
    cached, cached_calls, subagents, in_flight = 0, 0, 0, 0
    models: Counter[str] = Counter()
    reuse, sent = Reuse(), dict[int, int]()
    for session in sessions:
        calls = session.calls
        inputs.extend(call.isl for call in calls)
        outputs.extend(call.osl for call in calls)
        gaps_s.extend(call.gap_s for call in calls if call.after)
        durations_s.extend(call.end_s - call.start_s for call in calls if call.timed)
        sizes.append(len(calls))
        largest.append(max((call.isl for call in calls), default=0))
        lengths_s.append(max((call.end_s for call in calls), default=0.0))
        known = [call.cached for call in calls if call.cached is not None]
        cached, cached_calls = cached + sum(known), cached_calls + len(known)
        subagents += len({call.agent for call in calls} - {""})
        models.update(call.model for call in calls if call.model is not None)
        levels = in_flight_s(session)
        in_flight = max([in_flight, *levels])
        seen = seen_tokens(session, sent)
        reuse += reuse_of(session, seen)
        if also is not None:
            also(session, seen, levels)
    return Statistics(
        sessions=len(sizes),
        calls=len(inputs),
        subagents=subagents,
        input_tokens=sum(inputs),
        output_tokens=sum(outputs),
        cached_tokens=cached if cached_calls else None,
        recorded_seconds=sum(lengths_s),
        prefix_reuse=reuse.by_tokens,
        prefix_reuse_blocks=reuse.by_blocks,
        input=distribution(inputs),
        output=distribution(outputs),
        gap_s=distribution(gaps_s),
        duration_s=distribution(durations_s),
        calls_per_session=distribution(sizes),
        largest_prompt=distribution(largest),
        session_s=distribution(lengths_s),
        estimated_durations=len(inputs) - len(durations_s),
        zero_outputs=outputs.count(0),
        models=dict(models.most_common()),
        largest_in_flight=in_flight,
    )


def in_flight_s(session: Session) -> dict[int, float]:
    """For how many seconds so many calls of a session ran at once; 0 of them between its first
    start and its last end. The most that ran at once is in it, be it for no time.

    A call that another waits for has ended when that one begins, though whole-second stamps may
    say otherwise.
    """
    calls = session.calls
    ends_s = [call.end_s for call in calls]
    for call in calls:
        for j in call.after:
            if ends_s[j] > call.start_s:
                ends_s[j] = call.start_s
    found: dict[int, float] = {}
    running: list[float] = []
    at_s = calls[0].start_s if calls else 0.0
    for call, end_s in zip(calls, ends_s, strict=True):
        start_s = call.start_s
        while running and running[0] <= start_s:
            level, until_s = len(running), heappop(running)
            found[level] = found.get(level, 0.0) + until_s - at_s
            at_s = until_s
        level = len(running)
        found[level] = found.get(level, 0.0) + start_s - at_s
        at_s = start_s
        heappush(running, max(start_s, end_s))
        found.setdefault(level + 1, 0.0)
    while running:
        level, until_s = len(running), heappop(running)
        found[level] = found.get(level, 0.0) + until_s - at_s
        at_s = until_s
    return found
