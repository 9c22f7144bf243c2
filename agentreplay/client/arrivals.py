"""When bytes arrived: the kernel's own stamps where it gives them, else the moment of reading. I/O.

Linux stamps what comes by TCP when it comes, so that a loop that is late reads late and measures
right. Its stamps are of the system's clock, which can be set; they are turned into the run's time
by the distance between the two clocks, which is compared all the time.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, Literal

from agentreplay.metrics.summary import ClockStep

ANCILLARY_BYTES: Final = 64
"""Room for what `recvmsg` says beside the bytes; more than one stamp."""

COMPARE_NS: Final = 1_000_000_000
"""So often at most are the clocks compared, as long as nothing is odd."""

STEP_NS: Final = 1_000_000
"""A system's clock that moved by more against the run's was set. (On Linux both go equally fast:
adjusting the speed of one adjusts the other's.)"""

_FIRST_LOOKS: Final = 5
_TIMESTAMPNS: Final = 35  # SO_TIMESTAMPNS, which Python does not name, and its kind of message
_TIMESPEC: Final = struct.Struct("@ll")


class Arrivals:
    """Says when bytes arrived, and keeps count of how it knew.

    Rules: no stamp is later than the moment of reading. A stamp that looks over a millisecond old,
    or lies ahead, has the clocks compared before it is believed. After a step reads are stamped by
    this process for a second, until whatever was stamped before it has been read.

    Attributes:
        clock: Nanoseconds of the run.
        by_kernel: Reads with the kernel's stamp.
        by_process: Reads that were stamped when they were read.
        longest_wait_ns: How long bytes with a kernel's stamp waited at most to be read.
        steps: When the system's clock was set.
    """

    __slots__ = (
        "_compared_ns",
        "_has_compared",
        "_high_ns",
        "_kernel",
        "_low_ns",
        "_offset_ns",
        "_sure_from_ns",
        "_wall",
        "by_kernel",
        "by_process",
        "clock",
        "longest_wait_ns",
        "steps",
    )

    def __init__(
        self,
        clock: Callable[[], int],
        *,
        kernel: bool = sys.platform == "linux",
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        """*clock* gives nanoseconds of the run, *wall* those of the clock that the kernel stamps
        with; without *kernel* it is not asked for stamps."""
        self.by_kernel = 0
        self.by_process = 0
        self.longest_wait_ns = 0
        self.steps: list[ClockStep] = []
        self.clock = clock
        self._kernel = kernel
        self._wall = wall
        self._sure_from_ns: int | None = None
        self._low_ns = self._high_ns = self._offset_ns = self._compared_ns = 0
        self._has_compared = False

    @property
    def source(self) -> Literal["kernel", "process", "mixed"] | None:
        """Whose stamps they were; None where nothing has been read."""
        if self.by_kernel and self.by_process:
            return "mixed"
        if self.by_kernel:
            return "kernel"
        return "process" if self.by_process else None

    def begin(self) -> None:
        """Compare the clocks for the first time, once the run's time is known."""
        self._has_compared = True
        looks = [self._distance() for _ in range(_FIRST_LOOKS)]
        self._low_ns, self._high_ns = min(looks, key=lambda look: look[1] - look[0])
        self._offset_ns = (self._low_ns + self._high_ns) // 2
        self._compared_ns = self.clock()

    def ask(self, connection: socket.socket) -> bool:
        """Have the kernel stamp what comes by *connection*; False where it doesn't."""
        if not self._kernel:
            return False
        if not self._has_compared:  # not sooner, since the run's time may begin later than this
            self.begin()
        try:
            connection.setsockopt(socket.SOL_SOCKET, _TIMESTAMPNS, 1)
        except OSError:
            return False
        return True

    def now(self) -> int:
        """The stamp of what has just been read, and that the kernel did not stamp."""
        self.by_process += 1
        return self.clock()

    def stamp(self, ancillary: Sequence[tuple[int, int, bytes]]) -> int:
        """The stamp of what has just been read, from what `recvmsg` said beside it."""
        if not ancillary:
            return self.now()
        now_ns = self.clock()
        seconds, nanoseconds = _TIMESPEC.unpack(ancillary[0][2])
        real_ns: int = seconds * 1_000_000_000 + nanoseconds
        if now_ns - self._compared_ns > COMPARE_NS:
            self._compare(now_ns)
        waited_ns = now_ns - real_ns - self._offset_ns
        if not 0 <= waited_ns <= STEP_NS:
            self._compare(now_ns)  # it is so, or a clock was set
            waited_ns = max(0, now_ns - real_ns - self._offset_ns)
        if self._sure_from_ns is not None:
            self.by_process += 1
            return now_ns
        self.by_kernel += 1
        if waited_ns > self.longest_wait_ns:
            self.longest_wait_ns = waited_ns
        return now_ns - waited_ns

    def _compare(self, now_ns: int) -> None:
        """Look how far apart the clocks are, and whether they still are as far as before."""
        low_ns, high_ns = self._distance()
        if low_ns <= self._high_ns and self._low_ns <= high_ns:
            # Both bounds hold: they get closer with each look.
            self._low_ns, self._high_ns = max(low_ns, self._low_ns), min(high_ns, self._high_ns)
        else:
            self._low_ns, self._high_ns = low_ns, high_ns
        before_ns, self._offset_ns = self._offset_ns, (self._low_ns + self._high_ns) // 2
        set_by_ns = before_ns - self._offset_ns
        if abs(set_by_ns) > STEP_NS:
            self.steps.append(ClockStep(self._compared_ns, now_ns, set_by_ns))
            self._sure_from_ns = now_ns + COMPARE_NS
        elif self._sure_from_ns is not None and now_ns >= self._sure_from_ns:
            self._sure_from_ns = None
        self._compared_ns = now_ns

    def _distance(self) -> tuple[int, int]:
        """Bounds of clock − wall."""
        before_ns, wall_ns, after_ns = self.clock(), self._wall(), self.clock()
        return before_ns - wall_ns, after_ns - wall_ns
