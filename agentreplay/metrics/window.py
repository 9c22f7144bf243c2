"""The measuring window: which requests and tokens count. Values and arithmetic only.

A request belongs to the window in which it was sent; a token to the one in which it arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentreplay.plan import Plan

Reason = Literal["duration", "work", "interrupted", "gave_up", "failed"]

SHORTEST_NS = 1_000_000_000
"""A window shorter than this gives no rates."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended.

    Attributes:
        reason: `duration`: the plan's time was over; `work`: nothing was left to send;
            `interrupted`: a signal; `gave_up`: no call had succeeded, or the key was refused;
            `failed`: a call failed, and the plan stops then.
        closed_ns: When the window closed: at the end of sending, or when the first lane had no
            work left.
        done_ns: When the last answer was in, or cut.
    """

    reason: Reason
    closed_ns: int
    done_ns: int


@dataclass(frozen=True, slots=True)
class Window:
    """From `open_ns` up to, not including, `close_ns`."""

    open_ns: int
    close_ns: int

    @property
    def seconds(self) -> float:
        """Length; 0 where it never opened."""
        return max(0, self.close_ns - self.open_ns) / 1e9

    @property
    def measures_rates(self) -> bool:
        """Long enough for rates."""
        return self.close_ns - self.open_ns >= SHORTEST_NS

    def holds(self, at_ns: int) -> bool:
        """Whether an instant lies inside."""
        return self.open_ns <= at_ns < self.close_ns


def window(plan: Plan, ending: Ending | None, last_ns: int) -> Window:
    """The window of a run; of one that was killed, up to the last thing recorded, *last_ns*."""
    return Window(int(plan.ramp_s * 1e9), ending.closed_ns if ending else last_ns)
