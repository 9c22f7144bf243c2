"""What a plan would send, and how long that takes at the recorded speed. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agentreplay import plan as planning
from agentreplay.errors import TraceError
from agentreplay.plan import Plan, Visit
from agentreplay.trace.model import Session
from agentreplay.trace.prefix import Sends, Sent
from agentreplay.trace.structure import in_order


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars for a million tokens of each kind."""

    input: float
    cached: float
    output: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run will send if every call takes as long as it did in the recording.

    Attributes:
        plays: Plays of sessions that begin.
        sessions: Different sessions among them.
        calls: Calls sent.
        input_tokens: Their prompts, cached tokens included.
        cached_tokens: Of these, what an endless cache would hold by then, in whole blocks.
        output_tokens: Output asked for.
        largest_prompt: Input tokens of the largest prompt.
        seconds: From the start to the last recorded end; None where no call is sent.
    """

    plays: int
    sessions: int
    calls: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    largest_prompt: int
    seconds: float | None

    def dollars(self, prices: Prices) -> float:
        """What it costs."""
        fresh = self.input_tokens - self.cached_tokens
        tokens = (
            fresh * prices.input
            + self.cached_tokens * prices.cached
            + self.output_tokens * prices.output
        )
        return tokens / 1e6


@dataclass(frozen=True, slots=True)
class _Playing:
    session: Session
    visit: Visit


def forecast(plan: Plan, sessions: int, draw: Callable[[int], Session]) -> Forecast:
    """Go through a plan in recorded time.

    Args:
        plan: What to send, and when; at least one of its limits is set.
        sessions: How many sessions the trace has.
        draw: Reads a session by its index; raises `TraceError` where it can't be read.
    """
    sends: list[tuple[float, int, int, _Playing]] = []
    plays, played, last_s = 0, set[int](), 0.0
    for lane in range(plan.users):
        clock_s = planning.lane_start_s(plan, lane)
        left = planning.lane_requests(plan, lane)
        idle = 0  # visits on end that took no time
        for visit in planning.visits(plan, lane, sessions):
            if _over(plan, clock_s) or left == 0 or idle == sessions:
                break
            idle += 1
            try:
                session = draw(visit.session)
            except TraceError:
                continue
            if plan.arrivals:
                clock_s = max(clock_s, (session.start_s or 0.0) / plan.speed)
            session = in_order(session, plan.order)
            playing = _Playing(session, visit)
            due, late = _due(plan, session, clock_s)
            sent = due[:left]
            if sent:
                plays += 1
                played.add(visit.session)
            sends += [(due_s, visit.place, i, playing) for due_s, _, i in sent]
            ended_s = max((end_s for _, end_s, _ in sent), default=clock_s)
            if ended_s > clock_s:
                idle, clock_s = 0, ended_s
                last_s = max(last_s, clock_s)
            if left is not None:
                left -= len(sent)
            if late:
                break  # the lane waits for a call until the run is over
    sends.sort(key=lambda send: send[:3])
    calls = [playing.session.calls[i] for _, _, i, playing in sends]
    return Forecast(
        plays=plays,
        sessions=len(played),
        calls=len(calls),
        input_tokens=sum(call.isl for call in calls),
        cached_tokens=_cached(plan, sends),
        output_tokens=sum(max(1, call.osl) for call in calls),
        largest_prompt=max((call.isl for call in calls), default=0),
        seconds=last_s if calls else None,
    )


def _over(plan: Plan, at_s: float) -> bool:
    return plan.duration_s is not None and at_s >= plan.lead_s + plan.duration_s


def _due(
    plan: Plan, session: Session, begins_s: float
) -> tuple[list[tuple[float, float, int]], bool]:
    """When each call is due, when it ends, and which it is, in order; whether others come late."""
    ends_s: dict[int, float] = {}
    found, late = [], False
    for i, call in enumerate(session.calls):
        if any(j not in ends_s for j in call.after):
            continue  # it waits for one that comes late
        due_s = max((ends_s[j] for j in call.after), default=begins_s)
        if plan.timing == "recorded":
            due_s = max(due_s, begins_s + call.start_s / plan.speed)
        else:
            due_s += planning.gap_s(plan, call.gap_s)
        if _over(plan, due_s):
            late = True
            continue
        ends_s[i] = due_s + call.end_s - call.start_s
        found.append((due_s, ends_s[i], i))
    return sorted(found), late


def _cached(plan: Plan, sends: list[tuple[float, int, int, _Playing]]) -> int:
    sent = Sent(plan)
    plays: dict[int, Sends] = {}
    cached = 0
    for _, place, i, playing in sends:
        if place not in plays:
            plays[place] = sent.play(playing.session, playing.visit)
        cached += plays[place].send(i)
    return cached
