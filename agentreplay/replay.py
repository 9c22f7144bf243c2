"""The scheduler: sends a plan's requests when they are due, and stops as the plan says. I/O.

A lane is a task, a play of a session a task group, a call a child of it that starts when every
call it waits for has ended. Reading time is `clock`, waiting is anyio's; nothing is sent before
it is due, and nothing is sent after the end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio

from agentreplay import plan as planning
from agentreplay.client.exchange import Patience, exchange
from agentreplay.client.stream import Stream
from agentreplay.errors import TraceError
from agentreplay.metrics.record import Record
from agentreplay.metrics.window import Ending, Reason
from agentreplay.plan import Plan
from agentreplay.play import Dialect, Play
from agentreplay.trace.model import Session
from agentreplay.trace.prefix import Sent

NO_SUCCESS_CALLS = 20
NO_SUCCESS_S = 10.0
"""A run whose first calls, or first seconds, bring failures and no success is given up."""

GIVE_UP_DRAIN_S = 1.0
LONGEST_BACKOFF_S = 30.0
LOOK_AHEAD_NS = 20_000_000
"""A body is made this long before it is due: early enough to be ready, too late to pile up."""


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

    Attributes:
        in_flight: Requests sent and not ended.
        live_lanes: Lanes that have not run out of work.
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
    ) -> None:
        self.plan = plan
        self.in_flight = 0
        self.live_lanes = plan.users
        self._sessions = sessions
        self._draw = draw
        self._dialect = dialect
        self._stream = stream
        self._clock = clock
        self._on_record = on_record
        self._patience_calls = patience_calls
        self._end_ns = None if plan.duration_s is None else round(plan.duration_s * 1e9)
        self._reason: Reason | None = None
        self._closed_ns: int | None = None
        self._succeeded = self._failed = 0
        self._sent = Sent(plan)
        self._waits: set[anyio.CancelScope] = set()
        self._drain = anyio.CancelScope()

    async def run(self) -> Ending:
        """Send everything, wait for the answers, and tell how it ended."""
        async with anyio.create_task_group() as beside:
            beside.start_soon(self._keep_time)
            with self._drain:
                async with anyio.create_task_group() as lanes:
                    for lane in range(self.plan.users):
                        lanes.start_soon(self._lane, lane)
            beside.cancel_scope.cancel()
        assert self._closed_ns is not None  # the last lane has closed it, if nothing else
        return Ending(self._reason or "work", self._closed_ns, self._clock())

    def stop(self, reason: Reason, drain_s: float) -> None:
        """Send nothing more; cut what is still in flight after *drain_s*."""
        if self._reason is None:
            self._reason = reason
            now_ns = self._clock()
            self._close(now_ns if self._end_ns is None else min(now_ns, self._end_ns))
            for wait in list(self._waits):
                wait.cancel()
        self._drain.deadline = min(self._drain.deadline, anyio.current_time() + drain_s)

    def _close(self, at_ns: int) -> None:
        if self._closed_ns is None:
            self._closed_ns = at_ns

    async def _keep_time(self) -> None:
        """End the sending in time; before that, look whether the first seconds brought anything."""
        first_ns = int(NO_SUCCESS_S * 1e9)
        if self._end_ns is None or self._end_ns > first_ns:
            await self._until(first_ns, self._waits)
            if self._failed and not self._succeeded and not self.in_flight:
                self.stop("gave_up", GIVE_UP_DRAIN_S)
        if self._end_ns is not None:
            await self._until(self._end_ns, self._waits)

    async def _until(self, due_ns: int, waits: set[anyio.CancelScope]) -> bool:
        """Wait for an instant of the clock; False where the run or the play is over by then.

        The loop's timers are coarser than the clock and may fire early, so look and sleep again.
        A loop that is late must not send after the end either, so whoever sees it ends the run.
        """
        with anyio.CancelScope() as scope:
            waits.add(scope)
            self._waits.add(scope)
            while self._reason is None and (left_ns := due_ns - self._clock()) > 0:
                await anyio.sleep(left_ns / 1e9)
        waits.discard(scope)
        self._waits.discard(scope)
        if self._end_ns is not None and self._clock() >= self._end_ns:
            self.stop("duration", self.plan.drain_s)
        return self._reason is None and not scope.cancelled_caught

    async def _lane(self, lane: int) -> None:
        """Play visit after visit, until the plan or the lane's share of it is done."""
        plan = self.plan
        budget = _Budget(planning.lane_requests(plan, lane))
        failures = unreadable = 0
        pause_s = 0.0
        await self._until(int(planning.lane_start_s(plan, lane) * 1e9), self._waits)
        for visit in planning.visits(plan, lane, self._sessions):
            if self._reason is not None or budget.spent or unreadable == self._sessions:
                break
            await self._until(self._clock() + int(pause_s * 1e9), self._waits)
            try:
                session = await self._draw(visit.session)
            except TraceError:
                unreadable += 1
                continue
            unreadable = 0
            if plan.arrivals:
                arrival_ns = int((session.start_s or 0.0) / plan.speed * 1e9)
                await self._until(arrival_ns, self._waits)
            play = Play(plan, visit, session, self._dialect, self._clock(), self._sent)
            failures = 0 if await self._play(play, budget) else failures + 1
            pause_s = min(2.0 ** (failures - 1), LONGEST_BACKOFF_S) if failures else 0.0
        self.live_lanes -= 1
        if not plan.arrivals or not self.live_lanes:
            self._close(self._clock() + 1)  # what arrived at this instant lies inside

    async def _play(self, play: Play, budget: _Budget) -> bool:
        """Send a play's calls as they become free; False where one of them failed.

        After a failure what is in flight ends, and nothing new of the play is sent, unless the
        plan goes on.
        """
        waits: set[anyio.CancelScope] = set()
        failed = False

        def over() -> bool:
            return failed and self.plan.on_error != "continue"

        def call_off() -> None:
            for wait in list(waits):
                wait.cancel()

        async def call(i: int) -> None:
            nonlocal failed
            if budget.spent:
                return
            due_ns = play.due_ns(i)
            if not await self._until(due_ns - LOOK_AHEAD_NS, waits) or over() or budget.spent:
                return
            budget.spend()
            if budget.spent:
                call_off()
            body = play.body(i)
            if not await self._until(due_ns, set()) or over():
                return
            succeeded = await self._send(play, i, body, waits)
            failed = failed or not succeeded
            if succeeded or self.plan.on_error == "continue":
                for freed in play.end(i, self._clock()):
                    calls.start_soon(call, freed)
            else:
                call_off()

        async with anyio.create_task_group() as calls:
            for i in play.free:
                calls.start_soon(call, i)
        return not failed

    async def _send(self, play: Play, i: int, body: bytes, waits: set[anyio.CancelScope]) -> bool:
        """Send one call, again where the server is busy; whether it succeeded."""
        plan, request = self.plan, play.request(i)
        patience = Patience(plan.first_token_s, plan.next_token_s, plan.retry_busy)
        kept: list[bytes] | None = [] if plan.history == "live" else None
        while True:
            self.in_flight += 1
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
                self.in_flight -= 1
            if record.retry_s is None:
                break
            again_ns = record.done_ns + round(record.retry_s * 1e9)
            if not await self._until(again_ns, waits):
                return False
            waited_s = (again_ns - request.due_ns) / 1e9 - request.behind_s
            request = replace(request, busy_s=waited_s)
        if record.error is None:
            self._succeeded += 1
            if kept is not None:
                play.answered(i, record, kept)
            return True
        self._failed += 1
        late = self._clock() >= NO_SUCCESS_S * 1e9
        if record.error.kind == "auth":
            self.stop("gave_up", GIVE_UP_DRAIN_S)  # whoever is refused once is refused always
        elif plan.on_error == "stop":
            self.stop("failed", plan.drain_s)
        if not self._succeeded and (self._failed >= self._patience_calls or late):
            self.stop("gave_up", GIVE_UP_DRAIN_S)
        return False


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
