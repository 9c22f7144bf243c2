"""What one process plays of a run: some of its lanes, against one endpoint. I/O.

A share is told by the plan and the numbers of its lanes alone, so any process can play it: this
one, one of several on this machine, or one on another.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import anyio

from agentreplay.client.arrivals import Arrivals
from agentreplay.client.calibrate import Calibration
from agentreplay.client.endpoint import Endpoint, http_stream, masked, open_client
from agentreplay.client.health import LoopWatch
from agentreplay.metrics.record import Record
from agentreplay.metrics.summary import ClientHealth
from agentreplay.metrics.window import Ending, Reason
from agentreplay.plan import Plan, first_sessions
from agentreplay.replay import NO_SUCCESS_CALLS, Progress, Replay
from agentreplay.trace.draw import Draws
from agentreplay.trace.model import Trace
from agentreplay.trace.prefix import News


@dataclass(frozen=True, slots=True)
class Share:
    """Some lanes of a plan, with all that is needed to play them anywhere.

    Attributes:
        trace: The recorded sessions.
        plan: What all lanes send, and when.
        endpoint: What to send to.
        known: What was learnt of it.
        lanes: Which lanes these are.
    """

    trace: Trace
    plan: Plan
    endpoint: Endpoint
    known: Calibration
    lanes: range

    def draws(self) -> Draws:
        """Its sessions, as lanes draw them."""
        draws = Draws(self.trace, self.plan.fit)
        draws.context_tokens = self.plan.context_tokens or self.known.context_tokens
        return draws

    def first_sessions(self) -> Iterable[int]:
        """The sessions of its lanes that begin at once."""
        return first_sessions(self.plan, len(self.trace), self.lanes)


class Player:
    """Plays a share. `play` it once; `stop` it from another task.

    Args:
        share: What is played.
        draws: Its sessions.
        clock: Nanoseconds since the start of the run.
        keep: Takes each Record as it is made.
        tell: Takes what was sent that other shares' lanes can find again.
    """

    def __init__(
        self,
        share: Share,
        draws: Draws,
        clock: Callable[[], int],
        keep: Callable[[Record], None],
        tell: Callable[[News], None] | None = None,
    ) -> None:
        endpoint, failure = share.endpoint, share.known.failure
        self._clock = clock
        self._watch: LoopWatch | None = None
        self._arrivals = Arrivals(clock)
        self._client = open_client(endpoint, clock, self._arrivals)

        def on_record(record: Record) -> None:
            if record.error is not None:
                record = replace(record, error=masked(endpoint, record.error))
            keep(record)

        self._replay = Replay(
            share.plan,
            len(share.trace),
            draws.draw,
            share.known.dialect,
            http_stream(self._client, endpoint, self._arrivals.now, share.plan.run_id),
            clock,
            on_record,
            # Where the first requests failed already, one more is enough to show how.
            1 if failure and failure.kind != "bad_stream" else NO_SUCCESS_CALLS,
            share.lanes,
            tell,
        )

    @property
    def progress(self) -> Progress:
        """How far it is."""
        health = self._watch.health(self._arrivals) if self._watch else None
        return replace(self._replay.progress, health=health)

    def stop(self, reason: Reason, drain_s: float) -> None:
        """Send nothing more; cut what is still in flight after *drain_s*."""
        self._replay.stop(reason, drain_s)

    def learn(self, news: Iterable[News]) -> None:
        """Note what other shares' lanes have sent."""
        self._replay.learn(news)

    async def prepare(self) -> None:
        """Make what is sent first, before the run's time begins.

        What is there by then is left out of garbage collections: with 64 users over recorded
        sessions of a megabyte a full one took 46 ms, in which nothing else is done, and 18 ms
        without it. Only full ones look at it, so thresholds stay as they are.
        """
        await self._replay.prepare()
        gc.collect()
        gc.freeze()

    async def play(self) -> tuple[Ending, ClientHealth]:
        """Play it to its end; how it ended, and how this process kept up."""
        watch = self._watch = LoopWatch(self._clock)
        try:
            async with self._client, anyio.create_task_group() as beside:
                beside.start_soon(watch.run)
                ending = await self._replay.run()
                beside.cancel_scope.cancel()
        finally:
            gc.unfreeze()  # a program that goes on must not keep its garbage
        return ending, watch.health(self._arrivals)
