"""What to replay, with how many users, for how long, in which order. Values and arithmetic only.

A *lane* is one user: it replays one session after another. Each of these plays is a *visit*.
Which session a visit plays follows from the plan alone, so any lane can be computed anywhere and
lanes share no queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from agentreplay.metrics.cost import Prices

if TYPE_CHECKING:
    from numpy.typing import NDArray

Timing = Literal["think", "recorded", "none"]
Order = Literal["causal", "recorded", "serial"]
History = Literal["recorded", "live"]
OnError = Literal["end-session", "continue", "stop"]
Fit = Literal["drop-session", "drop-calls", "fail"]
ShareSystem = Literal["session", "pass", "play"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides what is sent and when, besides the trace and the server.

    Attributes:
        users: Lanes that are live at once.
        duration_s: No call is sent later than this after the window opened; None for no limit.
        requests: At most this many calls in all; None for no limit.
        sessions: At most this many visits in all; None for no limit.
        ramp_s: The lanes start evenly spread over this time.
        timing: `think`: recorded gaps after the live end of what a call waits for; `recorded`:
            each call at its recorded offset at the earliest; `none`: no gaps.
        order: `causal`: a call waits for what it continues and joins; `recorded`: also for every
            other chain's latest call that had ended when it began; `serial`: a session has one
            call in flight, in order of the recorded starts.
        speed: Gaps and recorded offsets are divided by this; service times never are.
        max_gap_s: Longest gap that is waited with timing `think`; None for no limit.
        max_tree_idle_s: When nothing of a session is in flight and its next call is further away
            than this, all that wait in it move forward together; None for no limit.
        max_idle_s: The same for everything together, when nothing at all is in flight.
        start: Where within its recorded span a lane's first session begins: drawn between these
            two shares of it; None for the beginning.
        warmup_calls: So many calls of each lane's first session are sent with an output of one
            token, to fill the server's cache, before anything is measured.
        warmup_s: So long ordinary calls are sent before the window opens.
        warmup_limit_s: The primers among them are sent within this time, and when none of them all
            has ended for as long after that, they are waited for no longer; None: they take as
            long as recorded, and ten minutes are waited.
        drain_s: How long answers in flight at the end may still take.
        arrivals: Each lane plays one session, from the session's own recorded arrival on.
        first_token_s: A call without a token after this long has failed; None for no limit.
        next_token_s: One without another token for this long has failed; None for no limit.
        on_error: What a failed call does: it ends its session, or nothing, or the run.
        retry_busy: Whether a call that is refused with 429 or 503 waits and is sent again.
        failure_limit: The run is stopped when more than this share of the measured requests have
            failed; None for no limit.
        max_cost: The run is stopped when what has ended and what is in flight cost so many dollars,
            the warm-up included; None for no limit.
        prices: At which that is counted; needed with `max_cost`.
        share_system: Who has tools and system prompt of a session in common: all its plays, its
            plays of one pass over the set, or no two plays.
        history: Whether assistant turns are sent as recorded, or as the server answered.
        fit: What becomes of sessions that are too long for the model's context: they are left
            out, or their calls that are too long, or the run fails before it sends anything.
        context_tokens: The context, where the server doesn't say it.
        seed: Decides the order of the sessions.
        salt: Makes the text of this run new to the server, so that it finds nothing of an
            earlier run in its cache.
        scenario: The named scenario whose rules these are, where they are one's.
        overrides: In which they differ from it, in words.
    """

    users: int = 8
    duration_s: float | None = 60.0
    requests: int | None = None
    sessions: int | None = None
    ramp_s: float = 0.0
    timing: Timing = "think"
    order: Order = "causal"
    speed: float = 1.0
    max_gap_s: float | None = 10.0
    max_tree_idle_s: float | None = None
    max_idle_s: float | None = None
    start: tuple[float, float] | None = None
    warmup_calls: int = 0
    warmup_s: float = 0.0
    warmup_limit_s: float | None = None
    drain_s: float = 30.0
    arrivals: bool = False
    first_token_s: float | None = None
    next_token_s: float | None = None
    on_error: OnError = "end-session"
    retry_busy: bool = False
    failure_limit: float | None = None
    max_cost: float | None = None
    prices: Prices | None = None
    share_system: ShareSystem = "session"
    history: History = "recorded"
    fit: Fit = "drop-session"
    context_tokens: int | None = None
    seed: int = 42
    salt: int = 0
    scenario: str | None = None
    overrides: tuple[str, ...] = ()

    @property
    def warms_up(self) -> bool:
        """Whether calls of one token fill the server's cache before anything else is sent."""
        return self.start is not None or self.warmup_calls > 0

    @property
    def run_id(self) -> str:
        """What a run of the plan is called in the names of its plays and requests."""
        return f"{self.salt:x}"

    @property
    def lead_s(self) -> float:
        """How long ordinary calls are sent before the window opens."""
        return max(self.ramp_s, self.warmup_s)


@dataclass(frozen=True, slots=True)
class Visit:
    """One play of a session by a lane.

    Attributes:
        lane: The lane that plays it.
        number: 0 for the lane's first visit, 1 for its second, ...
        session: Index into the trace.
        place: The visit's place among all visits of the plan; no two visits share one, so it
            keys the text that only this play has.
        lap: 0 in the first pass over the sessions, 1 in the second, ...; no session is played
            twice in one.
    """

    lane: int
    number: int
    session: int
    place: int
    lap: int = 0


def visits(plan: Plan, lane: int, sessions: int) -> Iterator[Visit]:
    """The visits of *lane* over a trace of *sessions*, without end unless the plan limits them.

    All lanes walk one seeded permutation with a stride of the number of lanes, and another one in
    each further pass: with the same one, lanes that share a divisor with the set would see some of
    its sessions only.
    """
    number = 0
    while plan.sessions is None or (place := lane + number * plan.users) < plan.sessions:
        place = lane + number * plan.users
        lap, at = divmod(place, sessions)
        session = at if plan.arrivals else int(_order(plan.seed, lap, sessions)[at])
        yield Visit(lane, number, session, place, lap)
        number += 1


@lru_cache(maxsize=4)
def _order(seed: int, lap: int, sessions: int) -> NDArray[np.int64]:
    """The order of the sessions in a pass; one for all lanes, since there may be many of both."""
    return np.random.default_rng((seed, lap) if lap else seed).permutation(sessions)


def first_sessions(plan: Plan, sessions: int, lanes: range | None = None) -> Iterator[int]:
    """The sessions that *lanes* (or all) play that begin at once, of a trace of *sessions*."""
    for lane in range(plan.users) if lanes is None else lanes:
        if lane_start_s(plan, lane) > 0:
            break
        for visit in visits(plan, lane, sessions):
            yield visit.session
            break


def all_sessions(plan: Plan, sessions: int) -> set[int]:
    """The sessions that lanes can come to play, of a trace of *sessions*."""
    if plan.sessions is None or plan.sessions >= sessions:
        return set(range(sessions))
    lanes = range(plan.users)
    return {visit.session for lane in lanes for visit in visits(plan, lane, sessions)}


def lane_start_s(plan: Plan, lane: int) -> float:
    """When *lane* begins, in seconds after the start of the run."""
    return plan.ramp_s * lane / plan.users


def lane_requests(plan: Plan, lane: int) -> int | None:
    """How many calls *lane* may send in all: its share of `Plan.requests`; None for no limit."""
    if plan.requests is None:
        return None
    return len(range(lane, plan.requests, plan.users))


def gap_s(plan: Plan, recorded_s: float) -> float:
    """The gap that *plan* makes of a recorded one."""
    if plan.timing == "none":
        return 0.0
    scaled = recorded_s / plan.speed
    return scaled if plan.max_gap_s is None else min(scaled, plan.max_gap_s)
