"""The main job: a plan, a trace and an endpoint in; a run directory and a summary out."""

from __future__ import annotations

import platform
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
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
from agentreplay.client.machine import allow_files, cautions
from agentreplay.client.server_metrics import Scrape
from agentreplay.client.transport import raise_malloc_threshold
from agentreplay.errors import (
    EXIT_INVALID,
    EXIT_MISSED,
    EXIT_SIGNALLED,
    EXIT_UNUSABLE,
    EXIT_USAGE,
    AgentReplayError,
    TraceError,
)
from agentreplay.metrics.condition import Condition
from agentreplay.metrics.cost import Money
from agentreplay.metrics.record import Record
from agentreplay.metrics.server import Load
from agentreplay.metrics.summary import ClientHealth, Summary
from agentreplay.metrics.verdict import Limits
from agentreplay.metrics.window import Ending
from agentreplay.plan import Plan, all_sessions, first_sessions
from agentreplay.replay import Progress
from agentreplay.share import Player, Share
from agentreplay.store import (
    EXPORTS,
    Run,
    RunWriter,
    read_run,
    records_of,
    write_export,
    write_summary,
    write_text,
)
from agentreplay.trace.draw import Draws
from agentreplay.trace.load import TraceSet, content_hash
from agentreplay.trace.model import Trace
from agentreplay.trace.shipped import ship
from agentreplay.units import as_duration
from agentreplay.workers.crew import Crew, caution
from agentreplay.workers.fleet import START_LEAD_NS, Fleet
from agentreplay.workers.link import Link
from agentreplay.workers.processes import processes
from agentreplay.workers.ray import actors

BRIEF_DRAIN_S = 5.0
"""How long answers may still take after a first signal; a second one cuts them."""

PAGE = "report.html"
"""The page to look at, in the run directory."""

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


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run.

    Attributes:
        run: The run directory, read back.
        summary: What it came to.
        value: The same as summary.json holds it.
        signal: The signal that interrupted it, if any.
        unwritten: Files that could not be written, each with the reason.
        page: The HTML page that was written of it, if any.
    """

    run: Run
    summary: Summary
    value: dict[str, Any]
    signal: int | None
    unwritten: tuple[str, ...] = ()
    page: Path | None = None


@dataclass(frozen=True, slots=True)
class Reports:
    """What is written of a run for other programs, beside its summary.

    Attributes:
        exports: Files in the run directory, by the names of `store.EXPORTS`.
        junit: Where a JUnit file is to lie.
        markdown: Where a page in Markdown is to lie.
        step_summary: A page that the same is appended to.
        html: Where a page to look at is to lie.
        csv: A folder for the tables behind it.
    """

    exports: tuple[str, ...] = ()
    junit: Path | None = None
    markdown: Path | None = None
    step_summary: Path | None = None
    html: Path | None = None
    csv: Path | None = None


class _Signals:
    """The first SIGINT or SIGTERM ends the sending, the second one cuts what is in flight."""

    def __init__(self, drain_s: float) -> None:
        self.first: int | None = None
        self.player: Player | Fleet | None = None
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
def _kept_off(first: int | None) -> Iterator[list[int]]:
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
    with _kept_off(number) as kept:
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
    raise_malloc_threshold()
    signals = _Signals(min(BRIEF_DRAIN_S, plan.drain_s))
    async with anyio.create_task_group() as beside, AsyncExitStack() as others:
        beside.start_soon(signals.watch)
        with signals.scope:
            await anyio.to_thread.run_sync(_look_through, trace, abandon_on_cancel=True)
        links: Sequence[Link] = ()
        with signals.anew():
            links = await _links(crew, plan.users, others)
        manifest = manifest_of(trace, plan) | judging
        manifest["workers"], manifest["ray"], manifest["cautions"] = len(links) or 1, crew.ray, []
        if crew.ray is None:
            manifest["cautions"] += cautions(plan.users, len(endpoint.urls) if endpoint else 1)
        if too_few := caution(plan.users, len(links) or 1):
            manifest["cautions"].append(too_few)
        with RunWriter(out, manifest) as writer:
            async with AsyncExitStack() as stack:
                content = _Content()
                beside.start_soon(content.look, trace, manifest, writer)
                ending = Ending("interrupted", 0, 0)  # where a signal comes before the replay
                health: ClientHealth | None = None
                draws: Draws | None = None
                scrape: Scrape | None = None
                fleet = Fleet(links, one_clock=crew.ray is None) if links else None
                with signals.anew():
                    if endpoint is None:
                        from agentreplay.sim.server import embedded

                        url = await stack.enter_async_context(embedded(profile))
                        endpoint = Endpoint((api_url(url),))
                    manifest["endpoint"]["urls"] = list(map(shown, endpoint.urls))
                    draws = Draws(trace, plan.fit)
                    async with anyio.create_task_group() as reading:
                        if fleet is None:
                            reading.start_soon(draws.fetch, first_sessions(plan, len(trace)))
                        known = await _prepare(endpoint)
                    manifest["endpoint"] = _described(endpoint, known)
                    writer.describe(manifest)
                    draws.context_tokens = plan.context_tokens or known.context_tokens
                    if plan.fit == "fail":
                        await draws.look_through()
                    played: Trace = trace
                    if crew.ray is not None:
                        played = await _shipped(trace, plan, manifest["cautions"])
                    share = Share(played, plan, endpoint, known, range(plan.users))
                    if fleet is not None:
                        await fleet.prepare(share)
                    scrape = await stack.enter_async_context(
                        Scrape(endpoint, writer.append_reading)
                    )
                    await scrape.read()
                    with show(manifest) if show else nullcontext() as view:
                        ending, health = await _play(
                            fleet or share, draws, writer, signals, manifest, view, scrape
                        )
                with signals.anew():
                    if scrape is not None:
                        await scrape.settle()
                    await content.known()
                for done in fleet.done if fleet else ():
                    trace.learn(done.skipped, done.notes)
                    if draws is not None:
                        draws.drawn.update(done.drawn)
                facts = {
                    "trace_sha256": content.sha256,
                    "skipped": trace.skipped,
                    "notes": {path: dict(notes) for path, notes in trace.notes.items()},
                    "fit": draws.facts() if draws else None,
                    "workers": fleet.facts() if fleet else [],
                }
                writer.end(ending, health, facts)
        beside.cancel_scope.cancel()
    return signals.first


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


async def _shipped(trace: TraceSet, plan: Plan, cautions: list[str]) -> Trace:
    """What *plan* can play of a set, for machines that don't have its files."""
    began_s, needed = time.monotonic(), sorted(all_sessions(plan, len(trace)))
    packed = await anyio.to_thread.run_sync(
        ship, trace, needed, anyio.from_thread.check_cancelled, abandon_on_cancel=True
    )
    if (took_s := time.monotonic() - began_s) > LONG_S:
        took = as_duration(took_s)
        cautions.append(f"It took {took} to read {len(needed):,} sessions for the workers.")
    return packed


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


def conclude(
    path: Path,
    gates: Iterable[Condition] = (),
    reports: Reports | None = None,
    money: Money | None = None,
) -> Result:
    """Compute the summary of a run directory, and write it there, and *reports* besides.

    What can't be written is said in the result, and the rest is written all the same.

    Args:
        path: The run directory.
        gates: Conditions on its figures, beside those that the run was given.
        reports: What is written for other programs.
        money: What counts in place of what run.json says.
    """
    from agentreplay.report.value import summary_value

    read, reports = read_run(path).priced(money or Money()), reports or Reports()
    summary = read.summary()
    held = {each.text: each for each in (*read.gates, *gates)}
    value = summary_value(read.manifest, read.ending, read.facts, summary, held.values())
    unwritten, page = [], None
    for file, write in _files(read, summary, value, reports):
        try:
            write()
            page = reports.html if file == reports.html else page
        except OSError as error:
            unwritten.append(f"can't write {file}: {error.strerror}")
    return Result(read, summary, value, None, tuple(unwritten), page)


def _files(
    read: Run, summary: Summary, value: dict[str, Any], reports: Reports
) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Each file that a run comes to, and what writes it."""
    from agentreplay.report.aiperf import Export
    from agentreplay.report.html.files import run_files
    from agentreplay.report.junit import junit
    from agentreplay.report.markdown import markdown

    yield read.path / "summary.json", partial(write_summary, read.path, value)
    for name in reports.exports:
        export = Export(read.plan, summary.window, read.manifest.get("origin_unix_ns"))
        rows, aggregate = export.rows(read.records()), partial(export.aggregate, value)
        yield read.path / EXPORTS[name], partial(write_export, read.path, name, rows, aggregate)
    if reports.junit is not None:
        yield reports.junit, partial(write_text, reports.junit, junit(value))
    if reports.markdown is not None:
        yield reports.markdown, partial(write_text, reports.markdown, markdown(value))
    if (page := reports.step_summary) is not None:
        yield page, partial(write_text, page, markdown(value), append=True)
    yield from run_files(read, summary.window, value, reports.html, reports.csv)


def exit_code(result: Result) -> tuple[int, str]:
    """The exit code of a run, and its reason in words."""
    if result.signal is not None:
        return EXIT_SIGNALLED + result.signal, "; ".join(["interrupted", *result.unwritten])
    if result.unwritten:
        return EXIT_USAGE, "; ".join(result.unwritten)
    value = result.value
    warmup = value["warmup"]
    if not value["metrics"]["requests"]["succeeded"] and not (warmup and warmup["succeeded"]):
        words = [f"{group['kind']}: {group['example']}" for group in value["failures"]]
        if warmup and warmup["failure"]:
            words.append(warmup["failure"])
        if value["ended"] == "cost":
            words.append("the first call would cost more than --max-cost")
        return EXIT_UNUSABLE, ": ".join(["nothing succeeded", *words[:1]])
    reasons = value["verdict"]["reasons"]
    if reasons:
        return EXIT_INVALID, "invalid: " + "; ".join(f"{r['id']}: {r['text']}" for r in reasons)
    missed = [f"{gate['text']} ({gate['reason']})" for gate in value["gates"] if not gate["passed"]]
    if missed:
        return EXIT_MISSED, "gate missed: " + "; ".join(missed)
    return 0, "valid, every gate passed" if value["gates"] else "valid"


async def _prepare(endpoint: Endpoint) -> Calibration:
    async with open_client(endpoint, time.monotonic_ns) as client:
        return await calibrate(endpoint, client, time.monotonic_ns)


async def _play(
    what: Share | Fleet,
    draws: Draws,
    writer: RunWriter,
    signals: _Signals,
    manifest: dict[str, Any],
    view: View | None,
    scrape: Scrape,
) -> tuple[Ending, ClientHealth | None]:
    """Play all of a run, in this process or by workers, and keep what comes."""
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

    player = what if isinstance(what, Fleet) else Player(what, draws, clock, on_record)
    if isinstance(player, Player):
        await player.prepare()
    lead_ns = START_LEAD_NS if isinstance(player, Fleet) else 0
    origin_ns = time.monotonic_ns() + lead_ns
    manifest["origin_unix_ns"] = time.time_ns() + lead_ns
    writer.describe(manifest)
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
    return played


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


def files_of(trace: TraceSet) -> list[dict[str, Any]]:
    """What run.json says of the files of a trace set.

    Raises:
        OSError: one of them has gone.
    """
    files = []
    for file in trace.files:
        stat = file.stat()
        files.append({"path": str(file), "bytes": stat.st_size, "mtime_s": stat.st_mtime})
    if trace.stdin is not None:
        files.append({"path": "-", "bytes": len(trace.stdin), "mtime_s": None})
    return files


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
