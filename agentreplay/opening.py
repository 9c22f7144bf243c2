"""How a run opens: where lanes' first sessions begin, and what fills the server's cache. Pure.

A session that begins within its recorded span is put into the state that it had there. Everything
before that moment counts as done; the last call before it of each line of calls that goes on, a
*primer*, is sent with an output of one token, so that the server holds what it held; then come the
session's next calls, one token each. Measuring goes on from there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from agentreplay.plan import Plan
from agentreplay.trace.model import Session
from agentreplay.trace.structure import lines

PRIMERS_APART_S = 10.0
"""Primers are at most so far apart, where the plan caps no idle time."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The state in which a lane's first session begins.

    Attributes:
        at_s: The moment in recorded seconds; calls that began before it are done.
        begun: How many calls that are.
        primers: The last call before it of each line that goes on.
        warmup: The calls after it that are sent with one token, in order; at least one call of the
            session is left.
        moved_back: Too few calls followed on the moment that was drawn, so it lies earlier.
    """

    at_s: float
    begun: int
    primers: tuple[int, ...]
    warmup: range
    moved_back: bool

    @property
    def calls(self) -> int:
        """How many calls of one token it asks for."""
        return len(self.primers) + len(self.warmup)


def opening(plan: Plan, lane: int, session: Session) -> Opening:
    """Where *session* begins when it is the first of *lane*, and what is sent before.

    The moment is drawn from `Plan.start`'s share of the time from the first to the last recorded
    start, by the plan's seed and the lane alone.
    """
    calls = session.calls
    starts_s = [call.start_s for call in calls]
    at_s, begun, moved_back = starts_s[0], 0, False
    if plan.start is not None:
        share = float(np.random.default_rng((plan.seed, lane)).uniform(*plan.start))
        at_s += share * (starts_s[-1] - starts_s[0])
        latest = max(0, len(calls) - 1 - plan.warmup_calls)
        begun = bisect_left(starts_s, at_s)
        if begun > latest:
            at_s, moved_back = starts_s[latest], True
            begun = bisect_left(starts_s, at_s)
    last_before: dict[int, int] = {}
    going_on: set[int] = set()
    for i, line in enumerate(lines(calls)):
        if i < begun:
            last_before[line] = i
        else:
            going_on.add(line)
    primers = sorted(i for line, i in last_before.items() if line in going_on)
    warmup = range(begun, min(begun + plan.warmup_calls, len(calls) - 1))
    return Opening(at_s, begun, tuple(primers), warmup, moved_back)


@dataclass(frozen=True, slots=True)
class Timetable:
    """When primers are sent, in seconds from the start of the run.

    Attributes:
        primers_s: For each opening its primers with their times.
        reached_s: When every session has reached the moment that it begins at.
    """

    primers_s: tuple[dict[int, float], ...]
    reached_s: float


def timetable(plan: Plan, openings: Sequence[tuple[Session, Opening]]) -> Timetable:
    """When the primers of all lanes are sent, so that all reach their moments together.

    They keep their order. Successive ones are as far apart as in the recording, up to the cap on
    idle time, and all distances are scaled by one factor to keep within half of the plan's limit,
    the other half being for the calls after them; within all of it where there are none.
    """
    leads = sorted(
        (
            (_distance_s(plan, opened.at_s - session.calls[i].start_s), -lane, -i)
            for lane, (session, opened) in enumerate(openings)
            for i in opened.primers
        ),
        reverse=True,
    )
    cap_s = PRIMERS_APART_S if plan.max_idle_s is None else plan.max_idle_s
    sent_s, at_s = [], 0.0
    for (lead_s, _, _), (next_s, _, _) in pairwise([*leads, (0.0, 0, 0)]):
        sent_s.append(at_s)
        at_s += min(lead_s - next_s, cap_s)
    factor = 1.0
    if plan.warmup_limit_s is not None and at_s > 0:
        more = any(opened.warmup for _, opened in openings)
        factor = min(1.0, plan.warmup_limit_s / (2 if more else 1) / at_s)
    primers_s: tuple[dict[int, float], ...] = tuple({} for _ in openings)
    for (_, lane, i), due_s in zip(leads, sent_s, strict=True):
        primers_s[-lane][-i] = due_s * factor
    return Timetable(primers_s, at_s * factor)


def _distance_s(plan: Plan, recorded_s: float) -> float:
    return 0.0 if plan.timing == "none" else recorded_s / plan.speed
