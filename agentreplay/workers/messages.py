"""What the driver of a run and its workers tell each other. Values only.

driver               worker
Share            →
                 ←   Ready, or Refused
Ping             →                        several times, where clocks differ
                 ←   Pong
Start            →
Stop, Learn      →                        at any time
                 ←   Report               a few times a second, and once more at the end
                 ←   Done
"""

from __future__ import annotations

from typing import Any, NamedTuple

from agentreplay.metrics.summary import ClientHealth
from agentreplay.metrics.window import Ending, Reason
from agentreplay.replay import Progress
from agentreplay.trace.prefix import News


class Ready(NamedTuple):
    """Its first sessions are read.

    Attributes:
        where: The process, in words.
    """

    where: str


class Refused(NamedTuple):
    """It can't play its share, for a cause that the user can mend."""

    why: str


class Ping(NamedTuple):
    """What does your clock say?"""


class Pong(NamedTuple):
    """The worker's clock: nanoseconds from some instant of its own."""

    clock_ns: int


class Start(NamedTuple):
    """Begin when the worker's clock says *origin_ns*, from which the run's time counts."""

    origin_ns: int


class Stop(NamedTuple):
    """Send nothing more; cut what is still in flight after *drain_s*."""

    reason: Reason
    drain_s: float


class Learn(NamedTuple):
    """What other workers have sent."""

    news: tuple[News, ...]


class Report(NamedTuple):
    """What has come since the last one.

    Attributes:
        lines: Records, as lines of the run directory's file.
        progress: How far it is.
        news: What it has sent that others can find.
    """

    lines: bytes
    progress: Progress
    news: tuple[News, ...]


class Done(NamedTuple):
    """How its share ended.

    Attributes:
        ending: How it ended.
        health: How it kept up.
        drawn: What became of the sessions that it drew, by index.
        skipped: What it could not read, with the cause.
        notes: What its readers left out or repaired, by file.
    """

    ending: Ending
    health: ClientHealth
    drawn: dict[int, tuple[int, int, int, bool]]
    skipped: dict[str, str]
    notes: dict[str, dict[str, int]]


Message = Any
"""One of these, or a Share."""
