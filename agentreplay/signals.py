"""SIGINT and SIGTERM while a run goes: the first ends it softly, the second at once. I/O."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import anyio

from agentreplay.metrics.window import Reason

BRIEF_DRAIN_S = 5.0
"""How long answers may still take after a first signal; a second one cuts them."""


class Stoppable(Protocol):
    """What plays a run."""

    def stop(self, reason: Reason, drain_s: float) -> None:
        """Send nothing more; cut what is still in flight after *drain_s*."""


class Signals:
    """The first SIGINT or SIGTERM ends the sending, the second one cuts what is in flight.

    Args:
        drain_s: How long answers may still take after the first.

    Attributes:
        first: The first that came; None so far.
        player: Whom it stops; where None it ends `scope`.
        scope: What is done before there is a player, or after it.
    """

    def __init__(self, drain_s: float) -> None:
        self.first: int | None = None
        self.player: Stoppable | None = None
        self.scope = anyio.CancelScope()
        self._drain_s = drain_s

    def anew(self) -> anyio.CancelScope:
        """A scope for what comes after the replay: a signal ends it, also one that came before."""
        self.player = None
        self.scope = anyio.CancelScope()
        if self.first is not None:
            self.scope.cancel()
        return self.scope

    async def watch(self) -> None:
        """Take them, until cancelled."""
        with _restored(), anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                drain_s = self._drain_s if self.first is None else 0.0
                self.first = self.first or number
                if self.player is None:
                    self.scope.cancel()
                else:
                    self.player.stop("interrupted", drain_s)


@contextmanager
def _restored() -> Iterator[dict[signal.Signals, Any]]:
    """Put back what SIGINT and SIGTERM did before: a loop that took them leaves the defaults."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def kept_off(first: int | None) -> Iterator[list[int]]:
    """While files are written, a signal waits until they are; a second one does what it did."""
    kept = [] if first is None else [first]
    with _restored() as before:

        def keep(number: int, _: object) -> None:
            kept.append(number)
            for each, handler in before.items():
                signal.signal(each, handler)

        for each in before:
            signal.signal(each, keep)
        yield kept
