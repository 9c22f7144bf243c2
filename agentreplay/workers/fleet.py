"""The driver's side of a run that several workers play: one start, one stop, one file. I/O.

Each worker plays its share of the lanes. What it records comes back as lines and goes into the
one file of the run, so that everything is computed from all records together, exactly as in a run
of one process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from agentreplay.errors import AgentReplayError
from agentreplay.metrics.summary import ClientHealth
from agentreplay.metrics.window import Ending, Reason
from agentreplay.replay import GIVE_UP_DRAIN_S, Progress
from agentreplay.share import Share
from agentreplay.workers.link import Link, LinkLost
from agentreplay.workers.messages import (
    Done,
    Learn,
    Message,
    Ping,
    Pong,
    Ready,
    Refused,
    Report,
    Start,
    Stop,
)

SILENT_S = 30.0
"""A worker that says nothing for so long is taken for dead; it reports four times a second."""

PINGS = 16
"""The one that came back soonest tells the difference of two clocks best."""

START_LEAD_NS = 200_000_000
"""All begin so long after the last one has said that it is ready."""

_REASONS: tuple[Reason, ...] = ("interrupted", "gave_up", "failed", "duration", "work")
"""Why shares end; that of the run is the first one that some share has."""


@dataclass(slots=True)
class Member:
    """A worker as its driver sees it.

    Attributes:
        link: The way to it.
        lanes: Those that it plays.
        where: The process, in words.
        offset_ns: Its clock less the driver's.
        residual_ns: By how much that may be off; None where both have one clock.
        progress: What it said last of how far it is.
        done: How its share ended.
        lost: Why it said no more before that.
    """

    link: Link
    lanes: range
    where: str = ""
    offset_ns: int = 0
    residual_ns: int | None = None
    progress: Progress = field(default_factory=Progress)
    done: Done | None = None
    lost: str | None = None


class Fleet:
    """Workers that play one run. `prepare` them, and `play` once; `stop` from another task.

    Args:
        links: One to each worker.
        one_clock: All of them have the driver's own monotonic clock.
    """

    def __init__(self, links: Sequence[Link], *, one_clock: bool) -> None:
        self._links = links
        self._one_clock = one_clock
        self._members: list[Member] = []
        self._to_send: list[MemoryObjectSendStream[Message]] = []
        self._clock: Callable[[], int] = lambda: 0
        self._drain_s = 0.0

    async def prepare(self, share: Share) -> None:
        """Give every worker its part of *share*, and wait until all have read what comes first.

        Raises:
            AgentReplayError: one of them can't play it, or is gone.
        """
        count, self._drain_s = len(self._links), share.plan.drain_s
        self._members = [
            Member(link, share.lanes[number::count]) for number, link in enumerate(self._links)
        ]
        async with anyio.create_task_group() as group:
            for number, member in enumerate(self._members):
                group.start_soon(self._prepare, number, member, share)

    async def _prepare(self, number: int, member: Member, share: Share) -> None:
        try:
            await member.link.send(replace(share, lanes=member.lanes))
            answer = await member.link.receive()
            if isinstance(answer, Refused):
                raise AgentReplayError(f"worker {number}: {answer.why}")
            assert isinstance(answer, Ready)
            member.where = answer.where
            if not self._one_clock:
                await _compare_clocks(member)
        except LinkLost as error:
            raise AgentReplayError(f"worker {number} ended before it began: {error}") from None

    async def play(
        self, origin_ns: int, take: Callable[[bytes], None]
    ) -> tuple[Ending, ClientHealth | None]:
        """Let all begin at one instant, and wait until each has ended or is lost.

        Args:
            origin_ns: The instant by `time.monotonic_ns` of this process.
            take: Takes records as they come, as lines of the run directory's file.
        """
        self._clock = lambda: time.monotonic_ns() - origin_ns
        async with anyio.create_task_group() as group:
            for member in self._members:
                self._begin(group, member, origin_ns, take)
        return self._ending(), _worst([done.health for done in self.done])

    def stop(self, reason: Reason, drain_s: float) -> None:
        """Send nothing more; cut what is still in flight after *drain_s*."""
        for to_send in self._to_send:
            to_send.send_nowait(Stop(reason, drain_s))

    @property
    def progress(self) -> Progress:
        """How far all are together."""
        each = [member.progress for member in self._members if member.lost is None]
        opened = [progress.opened_ns for progress in each if progress.opened_ns is not None]
        return Progress(
            opened_ns=max(opened, default=None),
            live_lanes=sum(progress.live_lanes for progress in each),
            in_flight=sum(progress.in_flight for progress in each),
            health=_worst([progress.health for progress in each if progress.health is not None]),
        )

    @property
    def done(self) -> list[Done]:
        """What those said that came to their end."""
        return [member.done for member in self._members if member.done is not None]

    def facts(self) -> list[dict[str, Any]]:
        """What end.json says of each worker."""
        return [
            {
                "where": member.where,
                "lanes": len(member.lanes),
                "lost": member.lost,
                "clock_residual_s": (
                    None if member.residual_ns is None else member.residual_ns / 1e9
                ),
            }
            for member in self._members
        ]

    def _begin(
        self, group: TaskGroup, member: Member, origin_ns: int, take: Callable[[bytes], None]
    ) -> None:
        to_send, sending = anyio.create_memory_object_stream[Message](float("inf"))
        self._to_send.append(to_send)
        to_send.send_nowait(Start(origin_ns + member.offset_ns))
        scope = anyio.CancelScope()
        group.start_soon(_send_all, member.link, sending, scope)
        group.start_soon(self._listen, member, to_send, scope, take)

    async def _listen(
        self,
        member: Member,
        to_send: MemoryObjectSendStream[Message],
        sending: anyio.CancelScope,
        take: Callable[[bytes], None],
    ) -> None:
        try:
            while member.done is None:
                with anyio.fail_after(SILENT_S):
                    message = await member.link.receive()
                if isinstance(message, Report):
                    member.progress = message.progress
                    if message.lines:
                        take(message.lines)
                    if message.news:
                        self._tell(Learn(message.news), but=to_send)
                elif isinstance(message, Done):
                    member.done = message
                    self._end_others(message.ending.reason)
        except LinkLost as error:
            member.lost = str(error)
        except TimeoutError:
            member.lost = f"it said nothing for {SILENT_S:.0f} s"
        self._to_send.remove(to_send)
        to_send.close()
        sending.cancel()

    def _end_others(self, reason: Reason) -> None:
        """What ends a run of one process ends all shares."""
        if reason == "gave_up":
            self.stop(reason, GIVE_UP_DRAIN_S)
        elif reason == "failed":
            self.stop(reason, self._drain_s)

    def _tell(self, message: Message, but: MemoryObjectSendStream[Message]) -> None:
        for to_send in self._to_send:
            if to_send is not but:
                to_send.send_nowait(message)

    def _ending(self) -> Ending:
        """How the run ended: as the shares that came to their end did."""
        endings = [done.ending for done in self.done]
        if not endings:
            now_ns = self._clock()
            return Ending("interrupted", now_ns, now_ns)
        opened = [each.opened_ns for each in endings if each.opened_ns is not None]
        reasons = {each.reason for each in endings}
        return Ending(
            reason=min(reasons, key=_REASONS.index),
            closed_ns=min(each.closed_ns for each in endings),
            done_ns=max(each.done_ns for each in endings),
            opened_ns=max(opened, default=None),
        )


def _worst(each: Sequence[ClientHealth]) -> ClientHealth | None:
    """How several processes kept up: shares and delays of the one that did worst."""
    if not each:
        return None
    stamps = {health.stamps for health in each if health.stamps is not None}
    delays_s = [health.read_delay_max_s for health in each if health.read_delay_max_s is not None]
    shares = [health.loop_late_share for health in each if health.loop_late_share is not None]
    return ClientHealth(
        loop_late_share=max(shares, default=None),
        loop_late_max_s=max(health.loop_late_max_s for health in each),
        cpu_share=tuple(share for health in each for share in health.cpu_share),
        stamps=stamps.pop() if len(stamps) == 1 else "mixed" if stamps else None,
        read_delay_max_s=max(delays_s, default=None),
        clock_steps=tuple(step for health in each for step in health.clock_steps),
    )


async def _send_all(
    link: Link, sending: MemoryObjectReceiveStream[Message], scope: anyio.CancelScope
) -> None:
    with scope, sending:
        try:
            async for message in sending:
                await link.send(message)
        except LinkLost:
            return  # who listens notices, too


async def _compare_clocks(member: Member) -> None:
    """Exchange stamps, and take the exchange that was quickest.

    The worker's stamp lies somewhere between the two of the driver; taken for the middle, it is off
    by half the time between them at most (Cristian 1989).
    """
    for _ in range(PINGS):
        asked_ns = time.monotonic_ns()
        await member.link.send(Ping())
        answer = await member.link.receive()
        back_ns = time.monotonic_ns()
        assert isinstance(answer, Pong)
        residual_ns = (back_ns - asked_ns + 1) // 2
        if member.residual_ns is None or residual_ns < member.residual_ns:
            member.residual_ns = residual_ns
            member.offset_ns = answer.clock_ns - (asked_ns + back_ns) // 2
