"""What pictures of a set of sessions need: columns of numbers, taken in one pass. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappush, heapreplace
from typing import TypeVar

from agentreplay.trace.model import Session

LISTED = 1_000
"""So many sessions are kept by name: those with the most calls."""

DRAWN, DRAWN_CALLS = 8, 20_000
"""Of so many sessions at most, with so many calls at most in all, every call is kept."""

NONE = -1
"""Stands for what was not recorded."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """A session in a few numbers.

    Attributes:
        id: Its name.
        calls: Its calls.
        input_tokens: The sum of its prompts.
        output_tokens: The sum of its answers.
        seconds: From its start to its last end.
        subagents: Agents besides the main one.
        most_in_flight: Most of its calls that ran at once.
        seen_tokens: Of its prompts, what had been sent before.
        largest_prompt: Tokens of its largest prompt.
    """

    id: str
    calls: int
    input_tokens: int
    output_tokens: int
    seconds: float
    subagents: int
    most_in_flight: int
    seen_tokens: int
    largest_prompt: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """A call as it is drawn: its agent by number (0 is the main one), seconds, and tokens."""

    agent: int
    start_s: float
    end_s: float
    isl: int
    osl: int
    seen: int


class Survey:
    """Takes sessions as they go by, and keeps numbers only.

    Attributes:
        isl: Input tokens of each call.
        osl: Output tokens.
        seen: Leading tokens of the prompt that had been sent before.
        cached: What the recorded server read from its cache; `NONE` where not recorded.
        place: The call's number in its session, from 1.
        turn: The call's number among those of the main agent, from 1; 0 for subagents.
        gap_s: Of calls that wait for others, the gap before them.
        duration_s: Of calls with both stamps.
        calls: Of each session, its calls.
        session_s: Its seconds from start to end.
        subagents: Its agents besides the main one.
        most_in_flight: Most of its calls that ran at once.
        reuse: Share of its input tokens that had been sent before; of sessions with input.
        in_flight_s: Seconds of all sessions by how many calls ran at once.
    """

    def __init__(self) -> None:
        self.isl, self.osl, self.seen = array("q"), array("q"), array("q")
        self.cached, self.place, self.turn = array("q"), array("i"), array("i")
        self.gap_s, self.duration_s = array("d"), array("d")
        self.calls, self.subagents, self.most_in_flight = array("i"), array("i"), array("i")
        self.session_s, self.reuse = array("d"), array("d")
        self.in_flight_s: dict[int, float] = {}
        self._listed: list[tuple[int, int, int, Sketch]] = []
        self._drawn: list[tuple[int, int, int, tuple[Sketch, tuple[Drawn, ...]]]] = []

    def add(self, session: Session, seen: Sequence[int], levels: Mapping[int, float]) -> None:
        """Take one, what of each of its prompts had been sent before, and its `in_flight_s`."""
        calls = session.calls
        self.isl.extend(call.isl for call in calls)
        self.osl.extend(call.osl for call in calls)
        self.seen.extend(seen)
        self.cached.extend(NONE if call.cached is None else call.cached for call in calls)
        self.place.extend(range(1, len(calls) + 1))
        turn = 0
        for call in calls:
            turn += not call.agent
            self.turn.append(0 if call.agent else turn)
        self.gap_s.extend(call.gap_s for call in calls if call.after)
        self.duration_s.extend(call.end_s - call.start_s for call in calls if call.timed)
        for level, seconds in levels.items():
            self.in_flight_s[level] = self.in_flight_s.get(level, 0.0) + seconds
        agents = {"": 0}
        for call in calls:
            agents.setdefault(call.agent, len(agents))
        sketch = Sketch(
            id=session.id,
            calls=len(calls),
            input_tokens=sum(call.isl for call in calls),
            output_tokens=sum(call.osl for call in calls),
            seconds=max((call.end_s for call in calls), default=0.0),
            subagents=len(agents) - 1,
            most_in_flight=max(levels, default=0),
            seen_tokens=sum(seen),
            largest_prompt=max((call.isl for call in calls), default=0),
        )
        self.calls.append(sketch.calls)
        self.session_s.append(sketch.seconds)
        self.subagents.append(sketch.subagents)
        self.most_in_flight.append(sketch.most_in_flight)
        if sketch.input_tokens:
            self.reuse.append(sketch.seen_tokens / sketch.input_tokens)
        _keep(self._listed, LISTED, len(self.calls), sketch, sketch)
        size = (sketch.calls, sketch.input_tokens)
        if len(self._drawn) < DRAWN or size > self._drawn[0][:2]:
            drawn = tuple(
                Drawn(agents[call.agent], call.start_s, call.end_s, call.isl, call.osl, found)
                for call, found in zip(calls, seen, strict=True)
            )
            _keep(self._drawn, DRAWN, len(self.calls), sketch, (sketch, drawn))

    @property
    def listed(self) -> list[Sketch]:
        """The sessions with the most calls, in that order."""
        return [sketch for *_, sketch in sorted(self._listed, reverse=True)]

    @property
    def drawn(self) -> list[tuple[Sketch, tuple[Drawn, ...]]]:
        """The first of these with their calls, in order; of the longest only the first ones."""
        found, left = [], DRAWN_CALLS
        for *_, (sketch, calls) in sorted(self._drawn, reverse=True):
            if calls and left:
                found.append((sketch, calls[:left]))
                left -= len(found[-1][1])
        return found


_Kept = TypeVar("_Kept")


def _keep(
    heap: list[tuple[int, int, int, _Kept]], most: int, number: int, sketch: Sketch, what: _Kept
) -> None:
    """Keep what has the most calls; of two with as many the one with more tokens, or the first."""
    entry = (sketch.calls, sketch.input_tokens, -number, what)
    if len(heap) < most:
        heappush(heap, entry)
    elif entry[:3] > heap[0][:3]:
        heapreplace(heap, entry)
