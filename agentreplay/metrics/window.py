"""The measuring window: which requests and tokens count. Values and arithmetic only.

A request belongs to the window in which it was sent; a token to the one in which it arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reason = Literal[
    "duration", "work", "interrupted", "gave_up", "failed", "failures", "warmup_failed", "cost"
]

SHORTEST_NS = 1_000_000_000
"""A window shorter than this gives no rates."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended.

    Attributes:
        reason: `duration`: the plan's time was over; `work`: nothing was left to send;
            `interrupted`: a signal; `gave_up`: no call had succeeded, or the key was refused;
            `failed`: a call failed, and the plan stops then; `failures`: too large a share of them
            failed; `warmup_failed`: a call of the warm-up failed that its session can't do without;
            `cost`: the next call would have gone over the plan's limit in dollars.
        closed_ns: When the window closed: at the end of sending, or when the first lane had no
            work left.
        done_ns: When the last answer was in, or cut.
        opened_ns: When the window opened; None where the run ended before.
        moved_back: Lanes whose first session begins earlier than drawn, since too few calls of it
            followed.
        warmup_cut: Calls of the warm-up that were not sent or not answered when its time was over.
    """

    reason: Reason
    closed_ns: int
    done_ns: int
    opened_ns: int | None = 0
    moved_back: int = 0
    warmup_cut: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """From `open_ns` up to, not including, `close_ns`."""

    open_ns: int
    close_ns: int

    @classmethod
    def of(cls, ending: Ending) -> Window:
        """The window of a run; nothing lies inside of one that never opened."""
        opened_ns = ending.done_ns + 1 if ending.opened_ns is None else ending.opened_ns
        return cls(opened_ns, max(opened_ns, ending.closed_ns))

    @property
    def seconds(self) -> float:
        """Length; 0 where it never opened."""
        return (self.close_ns - self.open_ns) / 1e9

    @property
    def measures_rates(self) -> bool:
        """Long enough for rates."""
        return self.close_ns - self.open_ns >= SHORTEST_NS

    def holds(self, at_ns: int) -> bool:
        """Whether an instant lies inside."""
        return self.open_ns <= at_ns < self.close_ns
