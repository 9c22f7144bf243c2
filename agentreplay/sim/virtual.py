"""An event loop whose clock jumps to the next timer as soon as nothing is ready to run.

Rule: an hour of waiting takes no time, and the same program takes the same course every time.
That holds as long as nothing waits for the outside world: a thread, a process or a socket is
given no time, because the clock doesn't wait for it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Looks at what is ready (a signal arrives that way), and otherwise moves the clock."""

    now_ns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise RuntimeError(
                "virtual time stands still: every task waits, and no timer will ever wake one"
            )
        if timeout > 0:
            # At least one, or the rest of a nanosecond would be slept for ever.
            self.now_ns += max(1, round(timeout * 1e9))
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = _Selector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now_ns / 1e9


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Run *main* from time 0 on, and return what it returns."""
    return anyio.run(main, backend_options={"loop_factory": _Loop})


def clock() -> int:
    """Nanoseconds of virtual time since the start of the running `run`."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, _Loop):
        raise RuntimeError("there is no virtual time outside of agentreplay.sim.virtual.run")
    return loop.clock.now_ns
