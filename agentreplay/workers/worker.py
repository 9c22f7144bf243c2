"""A worker: plays its share when its driver says so, and tells what comes of it. I/O."""

from __future__ import annotations

import os
import socket
import time

import anyio

from agentreplay.client.machine import allow_files, one_heap
from agentreplay.client.transport import raise_malloc_threshold
from agentreplay.errors import AgentReplayError
from agentreplay.metrics.record import Record
from agentreplay.share import Player, Share
from agentreplay.store import record_line
from agentreplay.trace.draw import Draws
from agentreplay.trace.load import TraceSet
from agentreplay.trace.prefix import News
from agentreplay.workers.link import Link, LinkLost
from agentreplay.workers.messages import (
    Done,
    Learn,
    Ping,
    Pong,
    Ready,
    Refused,
    Report,
    Start,
    Stop,
)

REPORT_S = 0.25


async def work(link: Link) -> None:
    """Play the share that comes by *link*; return when it is played, or the driver gone."""
    try:
        share: Share = await link.receive()
        try:
            allow_files(len(share.lanes))
            one_heap()
            raise_malloc_threshold()
            draws = share.draws()
            await draws.fetch(share.first_sessions())
            playing = _Playing(link, share, draws)
            await playing.prepare()
        except AgentReplayError as error:
            await link.send(Refused(str(error)))
            return
        await link.send(Ready(f"process {os.getpid()} on {socket.gethostname()}"))
        while isinstance(message := await link.receive(), Ping):
            await link.send(Pong(time.monotonic_ns()))
        assert isinstance(message, Start)
        await playing.play(message.origin_ns)
    except LinkLost:
        return


class _Playing:
    """A share while it is played, and what has come of it since the last report."""

    def __init__(self, link: Link, share: Share, draws: Draws) -> None:
        self._link = link
        self._draws = draws
        self._origin_ns = 0
        self._lines: list[bytes] = []
        self._news: list[News] = []
        self._player = Player(share, draws, self._clock, self._keep, self._news.append)

    def _clock(self) -> int:
        return time.monotonic_ns() - self._origin_ns

    def _keep(self, record: Record) -> None:
        self._lines.append(record_line(record))

    async def prepare(self) -> None:
        """Make what is sent first."""
        await self._player.prepare()

    async def play(self, origin_ns: int) -> None:
        """Play it from an instant on, and tell what comes of it."""
        self._origin_ns, played = origin_ns, None
        async with anyio.create_task_group() as beside:
            beside.start_soon(self._listen, beside.cancel_scope)
            beside.start_soon(self._report_now_and_then)
            played = await self._player.play()
            beside.cancel_scope.cancel()
        if played is None:
            return
        await self._report()
        trace, skipped, notes = self._draws.trace, {}, {}
        if isinstance(trace, TraceSet):
            skipped = trace.skipped
            notes = {path: dict(found) for path, found in trace.notes.items()}
        await self._link.send(Done(*played, self._draws.drawn, skipped, notes))

    async def _listen(self, all_of_it: anyio.CancelScope) -> None:
        try:
            while True:
                message = await self._link.receive()
                if isinstance(message, Stop):
                    self._player.stop(message.reason, message.drain_s)
                elif isinstance(message, Learn):
                    self._player.learn(message.news)
        except LinkLost:
            all_of_it.cancel()  # without a driver nobody wants it

    async def _report_now_and_then(self) -> None:
        try:
            while True:
                await anyio.sleep(REPORT_S)
                await self._report()
        except LinkLost:
            return  # who listens notices, too

    async def _report(self) -> None:
        lines, news = b"".join(self._lines), tuple(self._news)
        self._lines.clear()
        self._news.clear()
        await self._link.send(Report(lines, self._player.progress, news))
