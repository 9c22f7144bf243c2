"""The scheduler: sends a plan's requests when they are due, and stops as the plan says. I/O.

A lane is a task, a play of a session a task group, a call a child of it that starts when every
call it waits for has ended. Reading time is `clock`, waiting is anyio's; nothing is sent before
it is due, and nothing is sent after the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TypeAlias

import anyio

from agentreplay import plan as planning
from agentreplay.client.exchange import Patience, exchange
from agentreplay.client.stream import Stream
from agentreplay.errors import TraceError
from agentreplay.metrics.cost import Spending, billed, expected
from agentreplay.metrics.record import Record, Request
from agentreplay.metrics.summary import ClientHealth
from agentreplay.metrics.window import Ending, Reason
from agentreplay.opening import Opening, opening, timetable
from agentreplay.plan import Plan, Visit
from agentreplay.play import Dialect, Play
from agentreplay.trace.model import Session
from agentreplay.trace.prefix import News, Sent

NO_SUCCESS_CALLS = 20
NO_SUCCESS_S = 10.0
"""A run whose first calls, or first seconds, bring failures and no success is given up."""

GIVE_UP_DRAIN_S = 1.0
LONGEST_BACKOFF_S = 30.0
LOOK_AHEAD_NS = 100_000_000
"""A body is made this long before it is due: early enough for some dozens of the longest prompts
that are due together to be ready, too late to pile up."""

STALLED_WARMUP_S = 600.0
"""Without a limit of the plan, so long is waited for another end of a call of the warm-up."""

_Waits: TypeAlias = dict[anyio.CancelScope, None]
"""What waits, in the order in which it began to: so are they woken, and a run in virtual time
takes the same course every time, as it would not with a set."""

FAILURE_LIMIT_CALLS = 20
"""Fewer measured calls say nothing about the share that fails (`Plan.failure_limit`)."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    Attributes:
        opened_ns: When the window opens; None while that isn't known.
        live_lanes: Lanes that have not run out of work.
        in_flight: Requests sent and not ended.
        warmup_total: Calls of one token that the warm-up has.
        warmup_left: Those of them that have not been sent.
        health: How the measuring process keeps up, of several the worst; None where it isn't
            looked at.
    """

    opened_ns: int | None = None
    live_lanes: int = 0
    in_flight: int = 0
    warmup_total: int = 0
    warmup_left: int = 0
    health: ClientHealth | None = None


class Replay:
    """One run of a plan. `run` it once; `stop` it from another task.

    Args:
        plan: What to send, and when.
        sessions: How many sessions the trace has.
        draw: Reads a session by its index; raises `TraceError` where it can't be read.
        dialect: How requests must look.
        stream: Sends them.
        clock: Nanoseconds since the start of the run.
        on_record: Takes each Record as it is made.
        patience_calls: After so many failed calls without a success the run is given up.
        lanes: The lanes that are played here; all of the plan's where None.
        tell: Takes what was sent that lanes played elsewhere can find again.
    """

    def __init__(
        self,
        plan: Plan,
        sessions: int,
        draw: Callable[[int], Awaitable[Session]],
        dialect: Dialect,
        stream: Stream,
        clock: Callable[[], int],
        on_record: Callable[[Record], None],
        patience_calls: int = NO_SUCCESS_CALLS,
        lanes: range | None = None,
        tell: Callable[[News], None] | None = None,
    ) -> None:
        self.plan = plan
        numbers = range(plan.users) if lanes is None else lanes
        self._lanes = [_Lane(plan, number, sessions) for number in numbers]
        self._in_flight = 0
        self._live_lanes = len(self._lanes)
        self._opened_ns: int | None = None
        self._warmup_total = self._warmup_left = 0
        self._sessions = sessions
        self._draw = draw
        self._dialect = dialect
        self._stream = stream
        self._clock = clock
        self._on_record = on_record
        self._patience_calls = patience_calls
        self._end_ns: int | None = None
        self._begun = anyio.Event()
        self._reason: Reason | None = None
        self._closed_ns: int | None = None
        self._succeeded = self._failed = 0
        self._ended_measured = self._failed_measured = 0
        self._spending: Spending | None = None
        if plan.max_cost is not None and plan.prices is not None:
            self._spending = Spending(plan.prices, plan.max_cost)
        self._sent = Sent(plan, len(self._lanes), tell)
        self._plays: dict[Play, _Waits] = {}  # with what waits in each
        self._unended = self._drawing = 0
        self._unreadable: set[int] = set()
        self._turns = Turns()
        self._idle_since_ns = 0
        self._moved_back = self._warmup_cut = 0
        self._progress_ns = 0  # when a call of the warm-up ended last, its primers being due before
        self._waits: _Waits = {}
        self._drain = anyio.CancelScope()

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return Progress(
            self._opened_ns,
            self._live_lanes,
            self._in_flight,
            self._warmup_total,
            self._warmup_left,
        )

    def learn(self, news: Iterable[News]) -> None:
        """Note what lanes that are played elsewhere have sent."""
        self._sent.learn(news)

    async def prepare(self) -> None:
        """Draw the first sessions of lanes that begin at once, and make what they send first.

        To be called, if at all, before the clock begins, so that nothing is late at the start.
        """
        if self.plan.warms_up or self.plan.arrivals:
            return
        for lane in self._lanes:
            if planning.lane_start_s(self.plan, lane.number) > 0 or lane.budget.spent:
                continue
            drawn = await self._next_session(lane)
            if drawn is not None:
                lane.play = self._play_of(*drawn)
                lane.play.make_first()

    async def run(self) -> Ending:
        """Send everything, wait for the answers, and tell how it ended."""
        async with anyio.create_task_group() as beside:
            beside.start_soon(self._keep_time)
            with self._drain:
                await self._run_lanes()
            beside.cancel_scope.cancel()
        assert self._closed_ns is not None  # the last lane has closed it, if nothing else
        ended_ns = self._clock()
        opened_ns = self._opened_ns
        if opened_ns is not None and opened_ns > ended_ns:
            opened_ns = None
        return Ending(
            reason=self._reason or "work",
            closed_ns=self._closed_ns,
            done_ns=ended_ns,
            opened_ns=opened_ns,
            moved_back=self._moved_back,
            warmup_cut=self._warmup_cut,
        )

    def stop(self, reason: Reason, drain_s: float) -> None:
        """Send nothing more; cut what is still in flight after *drain_s*."""
        if self._reason is None:
            self._reason = reason
            now_ns = self._clock()
            self._close(now_ns if self._end_ns is None else min(now_ns, self._end_ns))
            self._begun.set()
            _wake(self._waits)
        self._drain.deadline = min(self._drain.deadline, anyio.current_time() + drain_s)

    def _close(self, at_ns: int) -> None:
        if self._closed_ns is None:
            self._closed_ns = at_ns

    def _begin(self, at_ns: int) -> None:
        """Ordinary calls are sent from now on, and measured when the lead is over."""
        self._opened_ns = at_ns + round(self.plan.lead_s * 1e9)
        if self.plan.duration_s is not None:
            self._end_ns = self._opened_ns + round(self.plan.duration_s * 1e9)
        self._begun.set()

    async def _keep_time(self) -> None:
        """End the sending in time; before that, look whether the first seconds brought anything."""
        first_ns = int(NO_SUCCESS_S * 1e9)
        if self._end_ns is None or self._end_ns > first_ns:
            # A warm-up that is over tells the end, which may be sooner.
            await self._until(lambda: min(first_ns, self._end_ns or first_ns), self._waits)
            if self._failed and not self._succeeded and not self._in_flight:
                self.stop("gave_up", GIVE_UP_DRAIN_S)
        await self._begun.wait()
        if self._end_ns is not None:
            await self._until(_at(self._end_ns), self._waits)

    async def _until(
        self,
        due_ns: Callable[[], int],
        waits: _Waits,
        over: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Wait for an instant of the clock, which may be moved; False where the run or what is
        waited for is over by then.

        The loop's timers are coarser than the clock and may fire early, so look and sleep again.
        A loop that is late must not send after the end either, so whoever sees it ends the run.

        Args:
            due_ns: The instant.
            waits: Whose scopes are cancelled when there is something new to look at.
            over: Whether there is nothing left to wait for.
        """
        while self._reason is None and not over() and (left_ns := due_ns() - self._clock()) > 0:
            with anyio.CancelScope() as scope:
                waits[scope] = self._waits[scope] = None
                await anyio.sleep(left_ns / 1e9)
            waits.pop(scope)
            self._waits.pop(scope, None)  # they may be the same
        if self._end_ns is not None and self._clock() >= self._end_ns:
            self.stop("duration", self.plan.drain_s)
        return self._reason is None and not over()

    async def _run_lanes(self) -> None:
        if self.plan.warms_up:
            await self._open()
        else:
            self._begin(0)
        async with anyio.create_task_group() as group:
            for lane in self._lanes:
                group.start_soon(self._lane, lane)
            if self.plan.warms_up:
                group.start_soon(self._limit_warmup)

    async def _open(self) -> None:
        """Draw the first session of every lane, and plan the warm-up of all together."""
        openings = []
        for lane in self._lanes:
            drawn = None if lane.budget.spent else await self._next_session(lane)
            if drawn is not None:
                visit, session = drawn
                opened = opening(self.plan, lane.number, session)
                openings.append((session, opened))
                lane.play = self._play_of(visit, session, opened)
                self._moved_back += opened.moved_back
        self._warmup_total = sum(opened.calls for _, opened in openings)
        self._warmup_left = self._warmup_total
        table, now_ns = timetable(self.plan, openings), self._clock()
        warmed = [lane for lane in self._lanes if lane.play is not None]
        for lane, primers_s in zip(warmed, table.primers_s, strict=True):
            lane.primers_ns = {i: now_ns + round(at_s * 1e9) for i, at_s in primers_s.items()}
            lane.opened_ns = now_ns + round(table.reached_s * 1e9)
        if not self._warmup_left:
            self._hand_over()

    async def _limit_warmup(self) -> None:
        """Measure when nothing of the warm-up has ended for too long, whatever is left of it."""
        limit_s = self.plan.warmup_limit_s
        limit_ns = round((STALLED_WARMUP_S if limit_s is None else limit_s) * 1e9)
        self._progress_ns = max((lane.opened_ns for lane in self._lanes), default=0)
        while not self._begun.is_set():
            seen_ns = self._progress_ns
            await self._until(_at(seen_ns + limit_ns), self._waits, self._begun.is_set)
            if not self._begun.is_set() and self._progress_ns == seen_ns:
                self._warmup_cut = self._warmup_left + self._unended
                self._hand_over()

    def _hand_over(self) -> None:
        """Begin all plays, each next call as far away as it was recorded, the earliest at once.

        What is in flight of the warm-up is not waited for; who waits for it in the recording does.
        """
        now_ns = self._clock()
        for play in self._plays:
            play.end_warmup()
        away_s = [away_s for play in self._plays if (away_s := play.away_s()) is not None]
        for play in self._plays:
            play.begin(now_ns, min(away_s, default=0.0))
            play.cap_idle(now_ns)
        self._idle_since_ns = now_ns
        self._begin(now_ns)
        _wake(self._waits)

    async def _lane(self, lane: _Lane) -> None:
        """Play visit after visit, until the plan or the lane's share of it is done.

        A play is due as soon as its lane is free: what it takes to read the session is lag.
        """
        plan, pause_s = self.plan, 0.0
        free_ns = int(planning.lane_start_s(plan, lane.number) * 1e9)
        await self._until(_at(free_ns), self._waits)
        while self._reason is None and not lane.budget.spent:
            play, lane.play = lane.play, None
            if play is None:
                drawn = await self._next_session(lane)
                if drawn is None:
                    break
                visit, session = drawn
                if plan.arrivals:
                    free_ns = max(free_ns, int((session.start_s or 0.0) / plan.speed * 1e9))
                    await self._until(_at(free_ns), self._waits)
                play = self._play_of(visit, session)
            if await self._play(play, lane, free_ns):
                lane.failures, pause_s = 0, 0.0
            else:
                lane.failures += 1
                pause_s = min(2.0 ** (lane.failures - 1), LONGEST_BACKOFF_S)
            free_ns = self._clock() + int(pause_s * 1e9)
            await self._until(_at(free_ns), self._waits)
        self._live_lanes -= 1
        self._look_for_idle()
        if not plan.arrivals or not self._live_lanes:
            self._close(self._clock() + 1)  # what arrived at this instant lies inside

    async def _next_session(self, lane: _Lane) -> tuple[Visit, Session] | None:
        """The lane's next visit whose session can be read; None where there is none."""
        for visit in lane.visits:
            if len(self._unreadable) == self._sessions:
                break
            if visit.session in self._unreadable:
                continue
            self._drawing += 1
            try:
                return visit, await self._draw(visit.session)
            except TraceError:
                self._unreadable.add(visit.session)
            finally:
                self._drawing -= 1
        return None

    def _play_of(self, visit: Visit, session: Session, opened: Opening | None = None) -> Play:
        play = Play(self.plan, visit, session, self._dialect, self._sent, opened)
        self._plays[play] = {}
        return play

    async def _play(self, play: Play, lane: _Lane, due_ns: int) -> bool:
        """Send a play's calls as they become free; False where one of them failed.

        It begins at *due_ns*, or when the warm-up is over.

        After a failure what is in flight ends, and nothing new of the play is sent, unless the
        plan goes on.
        """
        waits, budget = self._plays[play], lane.budget
        failed = begun = False

        def over() -> bool:
            return failed and self.plan.on_error != "continue"

        def out() -> bool:
            return over() or budget.spent

        def ended(i: int) -> None:
            """Note the end of a call that others may wait for."""
            freed = play.end(i, self._clock())
            if begun:  # those that a warm-up's end has freed before are among all that wait
                for each in freed:
                    calls.start_soon(call, each)

        async def call(i: int) -> None:
            nonlocal failed
            if not await self._until(lambda: play.waiting[i] - LOOK_AHEAD_NS, waits, out):
                del play.waiting[i]
                return
            budget.spend()
            if budget.spent:
                play.over = True
                _wake(waits)
            body = await self._body(play, i, play.waiting[i])
            if not await self._until(lambda: play.waiting[i], waits, over):
                del play.waiting[i]
                return
            self._unended += 1
            succeeded = await self._send(play, i, play.request(i), body, waits, over)
            failed = failed or not succeeded
            play.over = out()
            if succeeded or self.plan.on_error == "continue":
                ended(i)
            else:
                _wake(waits)
            self._end_flight(play)

        async with anyio.create_task_group() as calls:
            if play.opening is not None:
                calls.start_soon(self._warm_up, play, lane, ended)
                await self._begun.wait()
            else:
                play.begin(due_ns)
            begun = True
            for i in play.waiting:
                calls.start_soon(call, i)
            self._look_for_idle(play)
        del self._plays[play]
        self._look_for_idle()
        return not failed

    async def _warm_up(self, play: Play, lane: _Lane, ended: Callable[[int], None]) -> None:
        """Send the lane's primers when they are due, and then its next calls, one after another."""
        assert play.opening is not None

        async def send(i: int, due_ns: int) -> None:
            if not await self._until(_at(due_ns), self._waits, self._begun.is_set):
                return
            body = await self._body(play, i, due_ns, warmup=True)
            request = play.request(i, due_ns)
            self._unended += 1
            self._warmup_left -= 1
            if not self._warmup_left:
                self._hand_over()
            await self._send(play, i, request, body, self._waits, lambda: False)
            self._progress_ns = max(self._progress_ns, self._clock())
            ended(i)
            self._end_flight(play)

        async with anyio.create_task_group() as primers:
            for i, due_ns in lane.primers_ns.items():
                primers.start_soon(send, i, due_ns)
        await self._until(_at(lane.opened_ns), self._waits, self._begun.is_set)
        for i in play.opening.warmup:
            await send(i, self._clock())

    async def _body(self, play: Play, i: int, due_ns: int, *, warmup: bool = False) -> bytes:
        """Make the body of a call when it is its turn, also where it has no text: a forecast takes
        the course that a run takes."""
        await self._turns.take(due_ns)
        try:
            return play.body(i, warmup=warmup)
        finally:
            self._turns.end()

    def _end_flight(self, play: Play) -> None:
        self._unended -= 1
        if not self._unended:
            self._idle_since_ns = self._clock()
        self._look_for_idle(play)

    def _look_for_idle(self, play: Play | None = None) -> None:
        """Keep within the plan's limits of idle time; *play* has changed, or one has gone."""
        now_ns = self._clock()
        if play is not None and play.cap_idle(now_ns):
            _wake(self._plays[play])
        if self.plan.max_idle_s is None or self._unended or self._drawing:
            return
        plays = [play for play in self._plays if play.waiting and not play.over]
        if not plays:
            return
        first = min(plays, key=Play.next_ns)
        latest_ns = self._idle_since_ns + round(self.plan.max_idle_s * 1e9)
        skip_ns = first.next_ns() - max(now_ns, latest_ns)
        if skip_ns > 0:
            for each in plays:
                each.skip_idle(skip_ns, first=each is first)
            _wake(self._waits)

    async def _send(
        self,
        play: Play,
        i: int,
        request: Request,
        body: bytes,
        waits: _Waits,
        over: Callable[[], bool],
    ) -> bool:
        """Send one call, again where the server is busy; whether it succeeded.

        One that the plan's limit in dollars has no room for ends the run instead.
        """
        plan, cost = self.plan, expected(request)
        if self._spending is not None and not self._spending.affords(cost):
            self.stop("cost", plan.drain_s)
            return False
        patience = Patience(plan.first_token_s, plan.next_token_s, plan.retry_busy)
        kept: list[bytes] | None = None
        if plan.history == "live" and not request.warmup:
            kept = []
        while True:
            self._in_flight += 1
            try:
                record = await exchange(
                    self._stream,
                    self._dialect.api,
                    request,
                    body,
                    self._clock,
                    self._on_record,
                    kept,
                    patience,
                )
            finally:
                self._in_flight -= 1
            if record.retry_s is None:
                break
            again_ns = record.done_ns + round(record.retry_s * 1e9)
            if not await self._until(_at(again_ns), waits, over):
                if self._spending is not None:
                    self._spending.settle(cost, None)
                return False
            waited_s = (again_ns - request.due_ns) / 1e9 - request.behind_s
            request = replace(request, busy_s=waited_s)
        self._count(record)
        if self._spending is not None:
            self._spending.settle(cost, billed(record))
            if self._spending.over:
                self.stop("cost", plan.drain_s)
        if record.error is None and kept is not None:
            play.answered(i, record, kept)
        return record.error is None

    def _count(self, record: Record) -> None:
        """Stop the run where its failures speak for it."""
        plan, opened_ns = self.plan, self._opened_ns
        failed = record.error is not None
        if not record.request.warmup and opened_ns is not None and record.sent_ns >= opened_ns:
            self._ended_measured += 1
            self._failed_measured += failed
        if record.error is None:
            self._succeeded += 1
            return
        self._failed += 1
        if record.request.warmup and not record.request.agent:
            self.stop("warmup_failed", GIVE_UP_DRAIN_S)
        late = self._clock() >= NO_SUCCESS_S * 1e9
        if record.error.kind == "auth":
            self.stop("gave_up", GIVE_UP_DRAIN_S)  # whoever is refused once is refused always
        elif plan.on_error == "stop":
            self.stop("failed", plan.drain_s)
        if not self._succeeded and (self._failed >= self._patience_calls or late):
            self.stop("gave_up", GIVE_UP_DRAIN_S)
        if (
            plan.failure_limit is not None
            and self._ended_measured >= FAILURE_LIMIT_CALLS
            and self._failed_measured > plan.failure_limit * self._ended_measured
        ):
            self.stop("failures", plan.drain_s)


def _at(at_ns: int) -> Callable[[], int]:
    """An instant that nothing moves."""
    return lambda: at_ns


def _wake(waits: _Waits) -> None:
    """Let everything that waits look again at what it waits for."""
    for wait in list(waits):
        wait.cancel()


class Turns:
    """One at a time, what is due first going first; in between the loop does all else.

    A long body takes a millisecond to make: dozens in a row would hold up whatever is to be sent
    and read meanwhile.
    """

    def __init__(self) -> None:
        self._taken = False
        self._waiting: list[tuple[int, int, anyio.Event]] = []
        self._numbers = count()

    async def take(self, due_ns: int) -> None:
        """Wait for a turn."""
        if not self._taken:
            self._taken = True
            return
        turn = (due_ns, next(self._numbers), anyio.Event())
        heappush(self._waiting, turn)
        try:
            await turn[-1].wait()
        except BaseException:
            if turn in self._waiting:
                self._waiting.remove(turn)
                heapify(self._waiting)
            else:
                self.end()
            raise

    def end(self) -> None:
        """Let the next one have its turn, when the loop has come round."""
        asyncio.get_running_loop().call_soon(self._pass_on)

    def _pass_on(self) -> None:
        if self._waiting:
            heappop(self._waiting)[-1].set()
        else:
            self._taken = False


class _Lane:
    """One user: its visits, and what is left of its share of the plan."""

    def __init__(self, plan: Plan, number: int, sessions: int) -> None:
        self.number = number
        self.visits = planning.visits(plan, number, sessions)
        self.budget = _Budget(planning.lane_requests(plan, number))
        self.failures = 0  # plays on end that failed
        self.play: Play | None = None  # its first, where that is drawn before the lane begins
        self.primers_ns: dict[int, int] = {}
        self.opened_ns = 0  # when it has reached the moment that its first play begins at


class _Budget:
    """How many calls a lane may still send; without end where the plan sets no limit."""

    def __init__(self, calls: int | None) -> None:
        self._calls = calls

    @property
    def spent(self) -> bool:
        return self._calls == 0

    def spend(self) -> None:
        if self._calls is not None:
            self._calls -= 1
