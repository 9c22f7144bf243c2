"""Made-up sessions that behave as recorded ones do, from a seed. Pure: no I/O, no clock.

Lengths and times are drawn from percentiles of the published Weka sessions. The prompts are lists
of block ids, and everything derived from them (who shares what, who waits for whom) comes from
`trace.structure`, as for a recording. Only `Random.random` is drawn from, whose sequence Python
promises to keep, and times are whole milliseconds, so a seed gives the same bytes everywhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import sqrt
from random import Random

from agentreplay.errors import AgentReplayError
from agentreplay.trace.model import Call, Session
from agentreplay.trace.structure import ROUNDING_S, link, shared_prefixes

BLOCK_SIZE = 64

SMALLEST_LIMIT_TOKENS = 2_000
"""Below it a prompt has no room for a system prompt, a task and growth, a few blocks each."""

# Percentiles of the published Weka sessions at these positions; between two of them every value
# is as likely as any other. The outermost values are cut where a single draw would dominate a
# small set.
_POSITIONS = (0.0, 0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 1.0)
_CALLS = (3, 3, 4, 7, 18, 46, 94, 157, 234, 342, 561)
_TOOLS = (7_000, 7_655, 8_315, 9_292, 10_659, 12_262, 12_589, 12_974, 13_136, 14_500, 15_000)
_SYSTEM = (700, 735, 1_573, 2_048, 2_324, 2_773, 3_004, 3_701, 4_333, 5_964, 6_000)
_OUTPUT = (40, 58, 89, 105, 137, 216, 426, 898, 1_554, 3_687, 8_000)
_NEW = (-600, -516, -53, -3, 48, 277, 958, 2_837, 5_530, 16_083, 40_000)  # beyond the last output
_GAP_MS = (
    *(2_000, 2_400, 3_400, 4_000, 5_400, 9_100, 23_000, 123_900, 304_900, 2_386_300),
    3_600_000,  # nights and weekends are left out
)

# The first prompts are of two kinds. A task of some size upon tools and system prompt:
_TASK = (300, 400, 600, 900, 2_500, 5_500, 12_000, 30_000, 45_000, 65_000, 80_000)
# and, in a quarter of the sessions, a long context: they were cut out of running ones. (Of the
# published ones a tenth begin beyond a window of 200k tokens; few servers could be sent those.)
_CUT = (
    *(100_000, 101_000, 104_000, 108_000, 122_000, 140_000, 155_000, 165_000, 170_000, 175_000),
    180_000,
)
_CUT_SHARE = 0.25

_RETOKENISED = 0.046  # continuations whose last one or two blocks changed
_REWRITTEN = 0.02  # calls of a grown main agent that begin upon a summary of what was before
_TO_SYSTEM = 0.4  # of those, what keeps nothing but tools and system prompt
_SUMMARY = (800, 1_000, 1_500, 2_000, 3_000, 4_500, 6_500, 9_000, 11_000, 14_000, 16_000)

# A duration is a start-up, the new tokens of the prompt and the output: 5.7 s at the median
# output, 18 s at its P90, 69 s at its P99 (published: 6.1, 18.4, 60.7).
_STARTUP_MS = 1_600
_PREFILL_TOKENS_MS = 20.0
_DECODE_TOKENS_MS = {"large": 0.055, "small": 0.09}
_JITTER = 0.2

_SUBAGENTS_EVERY = 6  # by index, so that a small set has one as well
_MOST_SUBAGENTS = 4
_SUBAGENT_CALLS = (3, 15)
_BACKGROUND = 0.25  # subagents, from the second on, that nobody waits for

_WINDOW_TOKENS = 200_000
_LEAST_TASK_TOKENS = 4 * BLOCK_SIZE  # siblings must not seem to be one chain


def synthesise(
    sessions: int,
    seed: int,
    *,
    calls: tuple[int, int] = (5, 60),
    largest_tokens: int | None = None,
) -> Iterator[Session]:
    """Make sessions; each depends on the seed and its index only.

    Args:
        sessions: How many.
        seed: Whole number; another one gives other sessions.
        calls: Fewest and most calls of a session, those of its subagents included.
        largest_tokens: What no prompt with its output may exceed. Prompts, outputs and waits
            are scaled down to suit.

    Raises:
        AgentReplayError: an argument is out of its range.
    """
    fewest, most = calls
    if sessions < 0:
        raise AgentReplayError(f"{sessions} sessions can't be made: ask for 0 or more")
    if not 1 <= fewest <= most:
        raise AgentReplayError(f"calls {fewest}-{most} is no range: write it as 5-60")
    if largest_tokens is not None and largest_tokens < SMALLEST_LIMIT_TOKENS:
        raise AgentReplayError(
            f"a largest prompt of {largest_tokens} tokens is too small: "
            f"{SMALLEST_LIMIT_TOKENS} is the least"
        )
    return (_session(seed, index, calls, largest_tokens) for index in range(sessions))


@dataclass(slots=True)
class _Agent:
    """One agent while its calls are being made; `isl`, `osl` and `blocks` are of its last call."""

    label: str
    model: str
    system: int
    prefix: list[int]  # the whole blocks of tools and system prompt
    first_isl: int
    left: int  # calls still to be made
    made: int = 0
    awaited: bool = True
    isl: int = 0
    osl: int = 0
    blocks: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Draft:
    """A session in the making: the draws, the sizes, and the calls so far with their blocks."""

    rng: Random
    begin: float  # scale of what a prompt begins with
    step: float  # scale of what a call adds, answers and waits for
    limit: int
    next_block: int = 0
    calls: list[Call] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    ends_ms: list[int] = field(default_factory=list)

    def draw(self, percentiles: Sequence[float], scale: float = 1.0, below: float = 1.0) -> int:
        """A value of a distribution, scaled; only the lower part of it, where *below* says so."""
        at = self.rng.random() * below
        return round(_interpolated(at, _POSITIONS, percentiles) * scale)

    def between(self, low: int, high: int) -> int:
        """A whole number from *low* to *high*, each as likely."""
        return low + int(self.rng.random() * (high - low + 1))

    def happens(self, chance: float) -> bool:
        """True in this share of the cases."""
        return self.rng.random() < chance

    def fresh(self, blocks: int) -> list[int]:
        """Ids of blocks that no prompt held before."""
        first = self.next_block
        self.next_block += blocks
        return list(range(first, first + blocks))


def _session(seed: int, index: int, calls: tuple[int, int], largest_tokens: int | None) -> Session:
    limit = largest_tokens or _WINDOW_TOKENS
    begin = min(1.0, limit / _WINDOW_TOKENS)
    # Growth shrinks by the root only: scaled like the system prompt, an answer would be a word.
    draft = _Draft(Random(f"{seed}-{index}"), begin, sqrt(begin), limit)
    count = _calls(draft, *calls)
    main = _main(draft, count)
    subagents = _subagents(draft, main) if (seed + index) % _SUBAGENTS_EVERY == 0 else []
    _run(draft, main, subagents)
    shared = [
        call._replace(parent=parent, shared=blocks * BLOCK_SIZE)
        for call, (parent, blocks) in zip(draft.calls, shared_prefixes(draft.prompts), strict=True)
    ]
    linked = (call._replace(gap_s=round(call.gap_s, 3)) for call in link(shared, BLOCK_SIZE))
    return Session(f"synth-{seed}-{index:04d}", None, tuple(linked), BLOCK_SIZE, "")


def _calls(draft: _Draft, fewest: int, most: int) -> int:
    """The number of calls: the published distribution, of which what lies outside is cut away."""
    low = _interpolated(fewest - 0.5, _CALLS, _POSITIONS)
    high = _interpolated(most + 0.5, _CALLS, _POSITIONS)
    at = low + draft.rng.random() * (high - low)
    return max(fewest, min(most, round(_interpolated(at, _POSITIONS, _CALLS))))


def _main(draft: _Draft, calls: int) -> _Agent:
    system = draft.draw(_TOOLS, draft.begin) + draft.draw(_SYSTEM, draft.begin)
    if draft.happens(_CUT_SHARE):
        first_isl = draft.draw(_CUT, draft.begin)
    else:
        first_isl = system + draft.draw(_TASK, draft.step)
    first_isl = max(system + _LEAST_TASK_TOKENS, min(first_isl, draft.limit * 9 // 10))
    prefix = draft.fresh(system // BLOCK_SIZE)
    return _Agent("", "large", system, prefix, first_isl, left=calls)


def _subagents(draft: _Draft, main: _Agent) -> list[_Agent]:
    """The subagents of a session; their calls are taken from the main agent's, at most half.

    They share tools and system prompt with each other, and in half of the sessions some of the
    tools with the main agent.
    """
    fewest, most = _SUBAGENT_CALLS
    system = main.system * draft.between(50, 80) // 100
    kept = draft.between(2, 4) * len(main.prefix) // 10 if draft.happens(0.5) else 0
    prefix = main.prefix[:kept] + draft.fresh(system // BLOCK_SIZE - kept)
    subagents: list[_Agent] = []
    spare = main.left - max(2, main.left // 2)
    count = min(draft.between(1, _MOST_SUBAGENTS), spare // fewest)
    for number in range(1, count + 1):
        room = spare - fewest * (count - number)
        calls = draft.between(fewest, min(most, room))
        spare -= calls
        main.left -= calls
        task = max(_LEAST_TASK_TOKENS, draft.draw(_TASK, draft.step, below=0.5))
        awaited = number == 1 or not draft.happens(_BACKGROUND)
        subagents.append(
            _Agent(
                label=f"agent-{number}",
                model="small",
                system=system,
                prefix=prefix,
                first_isl=system + task,
                left=calls,
                awaited=awaited,
            )
        )
    return subagents


def _run(draft: _Draft, main: _Agent, subagents: list[_Agent]) -> None:
    """Make all calls in order of their starts.

    The awaited subagents start together, after one call of the main agent, which goes on when the
    last of them has ended; the others start after calls of their own and hold up nobody.
    """
    spawns: dict[int, list[_Agent]] = {}
    together = draft.between(1, main.left - 1) if subagents else 0
    for subagent in subagents:
        step = together if subagent.awaited else draft.between(1, main.left - 1)
        spawns.setdefault(step, []).append(subagent)
    waiting, resume_ms = 0, 0
    queue = [(0, 0, main)]
    numbers = {agent.label: number for number, agent in enumerate([main, *subagents])}
    while queue:
        start_ms, number, agent = heappop(queue)
        # Nothing starts within a second before another call's end: `link` would take the one for
        # waiting for the other, as it has to where stamps are whole seconds.
        still_ms = start_ms + round(ROUNDING_S * 1000) + 1
        if near := [end_ms for end_ms in draft.ends_ms if start_ms < end_ms <= still_ms]:
            heappush(queue, (max(near) + draft.between(1, 100), number, agent))
            continue
        end_ms = _call(draft, agent, start_ms)
        if agent is main:
            for place, subagent in enumerate(spawns.get(main.made, [])):
                begins_ms = end_ms + 20 + place * draft.between(5, 40)
                heappush(queue, (begins_ms, numbers[subagent.label], subagent))
                waiting += subagent.awaited
        elif agent.awaited and not agent.left:
            waiting -= 1
            resume_ms = max(resume_ms, end_ms)
            if not waiting:
                gap_ms = draft.draw(_GAP_MS, draft.step, below=0.5)
                heappush(queue, (resume_ms + gap_ms, 0, main))
        if agent.left and not (agent is main and waiting):
            # No person stands between the calls of a subagent.
            gap_ms = draft.draw(_GAP_MS, draft.step, below=1.0 if agent is main else 0.9)
            heappush(queue, (end_ms + gap_ms, number, agent))


def _call(draft: _Draft, agent: _Agent, start_ms: int) -> int:
    """Make the agent's next call and say when it ends."""
    osl = min(draft.draw(_OUTPUT, draft.step), draft.limit // 25)
    kept, isl = _prompt(draft, agent, osl)
    agent.isl, agent.osl = isl, osl
    agent.blocks = kept + draft.fresh(isl // BLOCK_SIZE - len(kept))
    agent.left, agent.made = agent.left - 1, agent.made + 1
    jitter = 1 + _JITTER * (2 * draft.rng.random() - 1)
    end_ms = start_ms + round(
        _STARTUP_MS * jitter
        + (isl - len(kept) * BLOCK_SIZE) / _PREFILL_TOKENS_MS
        + osl / (_DECODE_TOKENS_MS[agent.model] * jitter)
    )
    draft.ends_ms.append(end_ms)
    draft.prompts.append(agent.blocks)
    draft.calls.append(
        Call(
            start_s=start_ms / 1000,
            end_s=end_ms / 1000,
            timed=True,
            isl=isl,
            osl=osl,
            after=(),
            gap_s=0.0,
            parent=None,
            shared=0,
            system=agent.system,
            agent=agent.label,
            model=agent.model,
            cached=None,
        )
    )
    return end_ms


def _prompt(draft: _Draft, agent: _Agent, osl: int) -> tuple[list[int], int]:
    """What the agent's next prompt keeps of its last one, in blocks, and its length in tokens.

    A prompt grows by the last output and something new. Where it has no room for that, or now and
    then, it becomes a summary upon at most half of what was there.
    """
    if not agent.made:
        return agent.prefix, agent.first_isl
    new = min(draft.draw(_NEW, draft.step), draft.limit // 4)
    isl = agent.isl + max(1, agent.osl + new)
    grown = agent.isl >= 2 * agent.system
    if isl + osl > draft.limit or (grown and not agent.label and draft.happens(_REWRITTEN)):
        kept = agent.prefix
        if not draft.happens(_TO_SYSTEM):
            share = draft.between(10, 50)
            kept = agent.blocks[: max(len(kept), len(agent.blocks) * share // 100)]
        summary = min(draft.draw(_SUMMARY, draft.step), draft.limit // 8, agent.isl // 4)
        return kept, len(kept) * BLOCK_SIZE + summary
    changed = draft.between(1, 2) if draft.happens(_RETOKENISED) else 0
    return agent.blocks[: len(agent.blocks) - changed], isl


def _interpolated(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """The value at *x* of the straight lines through the points; level beyond the outermost."""
    right = bisect_right(xs, x)
    if right == 0:
        return ys[0]
    if right == len(xs):
        return ys[-1]
    share = (x - xs[right - 1]) / (xs[right] - xs[right - 1])
    return ys[right - 1] + share * (ys[right] - ys[right - 1])
