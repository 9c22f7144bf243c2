"""Whether this process kept up: how late its loop was, and how much CPU it used."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio

from agentreplay.client.arrivals import Arrivals
from agentreplay.metrics.summary import ClientHealth

TICK_NS = 5_000_000
LATE_NS = 10_000_000
"""A tick that comes later than this is late."""

FEWEST_TICKS = 200


class LoopWatch:
    """Ticks every 5 ms and counts how often the loop came too late. `run` it beside a replay.

    A loop that is held up misses ticks. Each one counts, as late as it would have been, so that
    one long delay weighs as much as it took.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._began_ns = clock()
        self._cpu_s = time.process_time()
        self._ticks = 0
        self._late = 0
        self._longest_ns = 0

    async def run(self) -> None:
        """Tick until cancelled."""
        due_ns = self._clock() + TICK_NS
        while True:
            await anyio.sleep(max(0, due_ns - self._clock()) / 1e9)
            late_ns = max(0, self._clock() - due_ns)
            missed = late_ns // TICK_NS
            self._ticks += 1 + missed
            if late_ns > LATE_NS:
                self._late += 1 + (late_ns - LATE_NS) // TICK_NS
            self._longest_ns = max(self._longest_ns, late_ns)
            due_ns += (1 + missed) * TICK_NS

    def health(self, arrivals: Arrivals) -> ClientHealth:
        """How it went from the making of the watch until now, with what *arrivals* counted."""
        wall_s = max(1, self._clock() - self._began_ns) / 1e9
        return ClientHealth(
            loop_late_share=self._late / self._ticks if self._ticks >= FEWEST_TICKS else None,
            loop_late_max_s=self._longest_ns / 1e9,
            cpu_share=((time.process_time() - self._cpu_s) / wall_s,),
            stamps=arrivals.source,
            read_delay_max_s=arrivals.longest_wait_ns / 1e9 if arrivals.by_kernel else None,
            clock_steps=tuple(arrivals.steps),
        )
