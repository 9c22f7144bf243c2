"""Workers whose clocks have nothing to do with the driver's."""

from __future__ import annotations

import asyncio
import time

import anyio
import pytest

from agentreplay.client.calibrate import Calibration
from agentreplay.client.endpoint import Endpoint
from agentreplay.metrics.summary import ClientHealth
from agentreplay.metrics.window import Ending
from agentreplay.plan import Plan
from agentreplay.play import Dialect
from agentreplay.prompt.messages import Template
from agentreplay.share import Share
from agentreplay.workers.fleet import PINGS, Fleet
from agentreplay.workers.messages import Done, Message, Ping, Pong, Ready, Start

KNOWN = Calibration(Dialect("m", Template(), {}), measured=False)
SHARE = Share((), Plan(users=1), Endpoint(("http://127.0.0.1:1",)), KNOWN, range(1))
DAY_NS = 86_400 * 10**9


class FarLink:
    """The way to a worker whose clock is *ahead_ns* ahead, and which takes its time each way."""

    def __init__(self, ahead_ns: int, there_s: float = 0.0, back_s: float = 0.0) -> None:
        self.begins_ns = 0
        self.pings = 0
        self._ahead_ns = ahead_ns
        self._there_s = there_s
        self._back_s = back_s
        self._said: asyncio.Queue[Message] = asyncio.Queue()

    async def send(self, message: Message) -> None:
        await anyio.sleep(self._there_s)
        if isinstance(message, Share):
            self._said.put_nowait(Ready("far away"))
        elif isinstance(message, Ping):
            self.pings += 1
            self._said.put_nowait(Pong(time.monotonic_ns() + self._ahead_ns))
        elif isinstance(message, Start):
            self.begins_ns = message.origin_ns
            self._said.put_nowait(Done(Ending("work", 1, 1), ClientHealth(0, 0, ()), {}, {}, {}))

    async def receive(self) -> Message:
        message = await self._said.get()
        await anyio.sleep(self._back_s)
        return message


def begun(fleet: Fleet) -> int:
    """The instant at which a fleet is told to begin, by the driver's clock."""

    async def main() -> int:
        await fleet.prepare(SHARE)
        origin_ns = time.monotonic_ns()
        await fleet.play(origin_ns, lambda _: None)
        return origin_ns

    return anyio.run(main)


@pytest.mark.parametrize("ahead_ns", [0, 30 * DAY_NS, -30 * DAY_NS])
@pytest.mark.parametrize(("there_s", "back_s"), [(0.0, 0.0), (0.004, 0.0), (0.0, 0.004)])
def test_a_worker_begins_when_the_driver_does(ahead_ns: int, there_s: float, back_s: float) -> None:
    """By its own clock, and off by no more than is reported, however uneven the way is."""
    link = FarLink(ahead_ns, there_s, back_s)
    fleet = Fleet([link], one_clock=False)
    origin_ns = begun(fleet)
    (worker,) = fleet.facts()
    assert link.pings == PINGS
    assert abs(link.begins_ns - ahead_ns - origin_ns) <= worker["clock_residual_s"] * 1e9
    assert worker["clock_residual_s"] >= (there_s + back_s) / 2


def test_where_there_is_one_clock_nothing_is_compared() -> None:
    """Workers on the driver's machine begin at its very instant, and no residual is reported."""
    link = FarLink(0)
    fleet = Fleet([link], one_clock=True)
    assert begun(fleet) == link.begins_ns
    assert link.pings == 0
    assert fleet.facts()[0]["clock_residual_s"] is None
