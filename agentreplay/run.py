"""The main job: a plan, a trace and an endpoint in; a run directory and a summary out."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.from_thread
import anyio.to_thread

from agentreplay.client.calibrate import Calibration, calibrate
from agentreplay.client.endpoint import (
    MASK,
    Endpoint,
    api_url,
    is_secret,
    metrics_pages,
    open_client,
    shown,
)
from agentreplay.client.machine import allow_files, cautions, one_heap
from agentreplay.client.server_metrics import Scrape
from agentreplay.client.transport import raise_malloc_threshold
from agentreplay.errors import AgentReplayError, TraceError
from agentreplay.metrics.condition import Condition
from agentreplay.metrics.cost import Money
from agentreplay.metrics.record import Record
from agentreplay.metrics.server import Load
from agentreplay.metrics.summary import ClientHealth
from agentreplay.metrics.verdict import Limits
from agentreplay.metrics.window import Ending
from agentreplay.outcome import Reports, Result, conclude
from agentreplay.plan import Plan, all_sessions, first_sessions
from agentreplay.replay import Progress
from agentreplay.share import Player, Share
from agentreplay.signals import BRIEF_DRAIN_S, Signals, kept_off
from agentreplay.store import RunWriter, records_of
from agentreplay.trace.draw import Draws
from agentreplay.trace.load import TraceSet, content_hash, files_of
from agentreplay.trace.model import Trace
from agentreplay.trace.shipped import ship
from agentreplay.units import as_duration
from agentreplay.workers.crew import Crew, caution
from agentreplay.workers.fleet import START_LEAD_NS, Fleet
from agentreplay.workers.link import Link
from agentreplay.workers.processes import processes
from agentreplay.workers.ray import actors

LONG_S = 2.0
"""Reading all sessions before the start is told of where it takes longer."""

FLUSH_S = 1.0
VIEW_S = 0.25

CONTENT_AFTER_S = 1.0
"""So long after its start a run begins to look at all files of its set; or at its end."""

CONTENT_LIMIT_S = 30.0
"""So long after its end that is waited for; what is larger has no hash."""


class View(Protocol):
    """Looks at a run."""

    def take(self, record: Record) -> None:
        """A record has come."""

    def show(self, now_ns: int, progress: Progress, server: Load | None) -> None:
        """How things stand so long after the start of the run, and how the server says that it
        does, where known; a few times a second."""


Show = Callable[[dict[str, Any]], AbstractContextManager[View]]
"""Makes the view once the endpoint is known, from what run.json says."""


async def run_plan(
    trace: TraceSet,
    plan: Plan,
    out: Path,
    *,
    endpoint: Endpoint | None = None,
    profile: str = "demo",
    limits: Limits | None = None,
    goodput: tuple[Condition, ...] = (),
    gates: tuple[Condition, ...] = (),
    show: Show | None = None,
    reports: Reports | None = None,
    money: Money | None = None,
    crew: Crew | None = None,
) -> Result:
    """Replay *trace* as *plan* says, and leave a run directory at *out*.

    Args:
        trace: The recorded sessions.
        plan: What to send, and when.
        out: The run directory to make.
        endpoint: What to send to; None for the embedded simulated server.
        profile: The simulated server's profile.
        limits: Where the run stops being valid.
        goodput: Limits on single requests.
        gates: Conditions that the run's figures are held against.
        show: Makes what looks on.
        reports: What is written for other programs besides.
        money: What makes money of its figures, where known.
        crew: Who plays it; this process where None.

    Raises:
        AgentReplayError: no session can be read, the directory can't be written, or the embedded
            server doesn't start.
    """
    try:
        judging = {
            "limits": asdict(limits or Limits()),
            "goodput": [each.text for each in goodput],
            "gates": [each.text for each in gates],
            "money": asdict(money or Money()),
        }
        number = await _run(trace, plan, out, endpoint, profile, judging, show, crew or Crew())
    except BaseExceptionGroup as group:
        # What came up beside other tasks is the user's to mend all the same.
        known = group.subgroup(AgentReplayError)
        if known is None:
            raise
        raise next(_leaves(known)) from None
    with kept_off(number) as kept:
        result = conclude(out, reports=reports)
    return replace(result, signal=kept[0] if kept else None)


async def _run(
    trace: TraceSet,
    plan: Plan,
    out: Path,
    endpoint: Endpoint | None,
    profile: str,
    judging: dict[str, Any],
    show: Show | None,
    crew: Crew,
) -> int | None:
    """Send it all and keep what comes; returns the signal that ended it, if one did.

    *judging* is what run.json says of how the run is judged.
    """
    if crew.ray is None:
        allow_files(-(-plan.users // (crew.workers or 1)))
    one_heap()
    raise_malloc_threshold()
    signals = Signals(min(BRIEF_DRAIN_S, plan.drain_s))
    async with anyio.create_task_group() as beside, AsyncExitStack() as workers:
        beside.start_soon(signals.watch)
        with signals.scope:
            await anyio.to_thread.run_sync(_look_through, trace, abandon_on_cancel=True)
        links: Sequence[Link] = ()
        with signals.anew():
            links = await _links(crew, plan.users, workers)
        manifest = manifest_of(trace, plan) | judging
        manifest |= {"workers": len(links) or 1, "ray": crew.ray, "cautions": []}
        if crew.ray is None:
            manifest["cautions"] += cautions(plan.users, len(endpoint.urls) if endpoint else 1)
        if too_few := caution(plan.users, len(links) or 1):
            manifest["cautions"].append(too_few)
        with RunWriter(out, manifest) as writer:
            content = _Content()
            beside.start_soon(content.look, trace, manifest, writer)
            async with AsyncExitStack() as stack:
                course = _Course(trace, plan, crew, links, manifest, writer, stack)
                with signals.anew():
                    await course.prepare(endpoint, profile)
                    await course.play(signals, show)
                with signals.anew():
                    if course.scrape is not None:
                        await course.scrape.settle()
                    await content.known()
                facts = course.facts() | {"trace_sha256": content.sha256}
                writer.end(course.ending, course.health, facts)
        beside.cancel_scope.cancel()
    return signals.first


class _Course:
    """A run from its first look at the endpoint to its end. `prepare` it, then `play` it; a signal
    may end it anywhere.

    Args:
        trace: The recorded sessions.
        plan: What to send, and when.
        crew: Who plays it.
        links: The ways to them; none where this process plays it.
        manifest: What run.json says; what is learnt is added.
        writer: Keeps what comes.
        stack: Closes what is opened.

    Attributes:
        scrape: Reads the server's metrics, once there is something to read.
        ending: How it ended.
        health: How those who played it kept up.
    """

    def __init__(
        self,
        trace: TraceSet,
        plan: Plan,
        crew: Crew,
        links: Sequence[Link],
        manifest: dict[str, Any],
        writer: RunWriter,
        stack: AsyncExitStack,
    ) -> None:
        self.scrape: Scrape | None = None
        self.ending = Ending("interrupted", 0, 0)  # where a signal comes before the replay
        self.health: ClientHealth | None = None
        self._trace = trace
        self._plan = plan
        self._crew = crew
        self._fleet = Fleet(links, one_clock=crew.ray is None) if links else None
        self._manifest = manifest
        self._writer = writer
        self._stack = stack
        self._draws = Draws(trace, plan.fit)
        self._share: Share | None = None

    async def prepare(self, endpoint: Endpoint | None, profile: str) -> None:
        """Learn the endpoint's ways, and read what is sent first meanwhile.

        Without an *endpoint* the simulated server is started, of a *profile*.
        """
        plan, draws = self._plan, self._draws
        if endpoint is None:
            from agentreplay.sim.server import embedded

            url = await self._stack.enter_async_context(embedded(profile))
            endpoint = Endpoint((api_url(url),))
        self._manifest["endpoint"]["urls"] = list(map(shown, endpoint.urls))
        async with anyio.create_task_group() as reading:
            if self._fleet is None:
                reading.start_soon(draws.fetch, first_sessions(plan, len(self._trace)))
            async with open_client(endpoint, time.monotonic_ns) as client:
                known = await calibrate(endpoint, client, time.monotonic_ns)
        self._manifest["endpoint"] = _described(endpoint, known)
        self._writer.describe(self._manifest)
        draws.context_tokens = plan.context_tokens or known.context_tokens
        if plan.fit == "fail":
            await draws.look_through()
        played = self._trace if self._crew.ray is None else await self._shipped()
        self._share = Share(played, plan, endpoint, known, range(plan.users))
        if self._fleet is not None:
            await self._fleet.prepare(self._share)
        scrape = Scrape(endpoint, self._writer.append_reading)
        self.scrape = await self._stack.enter_async_context(scrape)
        await self.scrape.read()

    async def _shipped(self) -> Trace:
        """What the plan can play of the set, for machines that don't have its files."""
        began_s = time.monotonic()
        needed = sorted(all_sessions(self._plan, len(self._trace)))
        packed = await anyio.to_thread.run_sync(
            ship, self._trace, needed, anyio.from_thread.check_cancelled, abandon_on_cancel=True
        )
        if (took_s := time.monotonic() - began_s) > LONG_S:
            took = as_duration(took_s)
            self._manifest["cautions"].append(
                f"It took {took} to read {len(needed):,} sessions for the workers."
            )
        return packed

    async def play(self, signals: Signals, show: Show | None) -> None:
        """Play all of it, in this process or by workers, and keep what comes."""
        assert self._share is not None
        assert self.scrape is not None
        writer, scrape = self._writer, self.scrape
        origin_ns = time.monotonic_ns()  # of what is done before the run's time begins

        def clock() -> int:
            return time.monotonic_ns() - origin_ns

        def on_record(record: Record) -> None:
            writer.append(record)
            if view is not None:
                view.take(record)

        def on_lines(lines: bytes) -> None:
            writer.append_lines(lines)
            if view is not None:
                for record in records_of(lines.splitlines(keepends=True)):
                    view.take(record)

        async def keep() -> None:
            while True:
                await anyio.sleep(FLUSH_S)
                writer.flush()

        async def look() -> None:
            while view is not None:
                view.show(clock(), player.progress, scrape.latest)
                await anyio.sleep(VIEW_S)

        player = self._fleet or Player(self._share, self._draws, clock, on_record)
        if isinstance(player, Player):
            await player.prepare()
        with show(self._manifest) if show else nullcontext() as view:
            lead_ns = START_LEAD_NS if isinstance(player, Fleet) else 0
            origin_ns = time.monotonic_ns() + lead_ns
            self._manifest["origin_unix_ns"] = time.time_ns() + lead_ns
            writer.describe(self._manifest)
            signals.player = player
            async with anyio.create_task_group() as beside:
                beside.start_soon(scrape.run, origin_ns)
                beside.start_soon(keep)
                beside.start_soon(look)
                if isinstance(player, Fleet):
                    played = await player.play(origin_ns, on_lines)
                else:
                    played = await player.play()
                beside.cancel_scope.cancel()
        self.ending, self.health = played

    def facts(self) -> dict[str, Any]:
        """What end.json says besides: what was read, and by whom it was played."""
        trace, draws, fleet = self._trace, self._draws, self._fleet
        for done in fleet.done if fleet else ():
            trace.learn(done.skipped, done.notes)
            draws.drawn.update(done.drawn)
        return {
            "skipped": trace.skipped,
            "notes": {path: dict(notes) for path, notes in trace.notes.items()},
            "fit": draws.facts(),
            "workers": fleet.facts() if fleet else [],
        }


async def _links(crew: Crew, users: int, stack: AsyncExitStack) -> Sequence[Link]:
    """Start those who play a run of so many users; none where this process does.

    Raises:
        AgentReplayError: they can't be started.
    """
    if crew.ray is not None:
        return await stack.enter_async_context(actors(crew.ray, crew.workers, users))
    if crew.workers in (None, 1):
        return ()
    return await stack.enter_async_context(processes(crew.workers))


def _look_through(trace: TraceSet) -> None:
    """See that there is a session; of a strict set, that all can be read.

    It fails now and not in the middle of the run.
    """
    found = 0
    for _ in islice(trace.readable(), None if trace.strict else 1):
        anyio.from_thread.check_cancelled()
        found += 1
    if not found:
        raise TraceError(trace.nothing())


class _Content:
    """What the files of a trace set are, and the hash of their content: looked at on the side, when
    the first requests have been sent. The hash is None until then, and where a file has gone
    meanwhile, so that the set can't be named any more."""

    def __init__(self) -> None:
        self.sha256: str | None = None
        self._wanted = anyio.Event()
        self._done = anyio.Event()

    async def look(self, trace: TraceSet, manifest: dict[str, Any], writer: RunWriter) -> None:
        with anyio.move_on_after(CONTENT_AFTER_S):
            await self._wanted.wait()
        try:
            manifest["trace"]["files"] = await anyio.to_thread.run_sync(files_of, trace)
            writer.describe(manifest)
            self.sha256 = await anyio.to_thread.run_sync(
                content_hash, trace, anyio.from_thread.check_cancelled, abandon_on_cancel=True
            )
        except OSError:
            pass
        self._done.set()

    async def known(self) -> None:
        """Wait until it is, but not for ever."""
        self._wanted.set()
        with anyio.move_on_after(CONTENT_LIMIT_S):
            await self._done.wait()


def _leaves(group: BaseExceptionGroup[AgentReplayError]) -> Iterator[AgentReplayError]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def manifest_of(trace: TraceSet, plan: Plan) -> dict[str, Any]:
    """What run.json says of a run before its endpoint is known, but for how it is judged.

    That of its files comes when it has begun.
    """
    return {
        "agentreplay": version("agentreplay-loadgen"),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "plan": asdict(plan),
        "endpoint": {},
        "trace": {
            "paths": [str(path) for path in trace.paths],
            "sessions": len(trace),
            "choice": asdict(trace.choice),
            "revisions": trace.revisions,
        },
        "machine": {"python": platform.python_version(), "system": platform.platform()},
    }


def _described(endpoint: Endpoint, known: Calibration) -> dict[str, Any]:
    """What is kept of an endpoint: no key, and of headers only the names."""
    dialect = known.dialect
    return {
        "urls": list(map(shown, endpoint.urls)),
        "metrics_urls": list(map(shown, metrics_pages(endpoint))),
        "api": endpoint.api.name,
        "model": dialect.model,
        "fields": {
            name: MASK if isinstance(value, str) and is_secret(name) else value
            for name, value in dialect.fields.items()
        },
        "limit": dialect.limit or endpoint.api.limits[0],
        "min_tokens": dialect.min_tokens,
        "forces_output": dialect.forces_output,
        "headers": [name for name, _ in endpoint.headers],
        "session_header": endpoint.session_header,
        "connection_per_session": endpoint.connection_per_session,
        "context_tokens": known.context_tokens,
        "template": asdict(dialect.template) if known.measured else None,
        "calibration_failure": known.failure.message if known.failure else None,
        "simulated": known.simulated,
    }
