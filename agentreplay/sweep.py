"""Runs of one job over numbers of users, one after another into one folder. I/O.

    OUT/sweep.json     what all runs have in common, and what they came to; renewed after each run
    OUT/users-8/       a run directory; the second one of 8 users is users-8-2

What is finished in OUT stays as it is, so that a sweep that was broken off goes on.
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import orjson

from agentreplay.client.endpoint import Endpoint, open_client, shown
from agentreplay.errors import (
    EXIT_INVALID,
    EXIT_MISSED,
    EXIT_SIGNALLED,
    EXIT_UNUSABLE,
    AgentReplayError,
)
from agentreplay.job import Job
from agentreplay.metrics.condition import Condition
from agentreplay.metrics.search import Found, Hunt, Next, Step, evidence, following, step
from agentreplay.outcome import Reports
from agentreplay.plan import Plan
from agentreplay.report.sweep import Target, found_value, run_line, run_value, sweep_value
from agentreplay.report.value import summary_value
from agentreplay.run import Show, manifest_of, run_plan
from agentreplay.store import read_run, read_sweep, write_sweep
from agentreplay.trace.load import files_of

PAUSE_S = 5.0
"""Between runs, that a server may come to rest; the simulated one is started anew."""

RESET_S = 30.0

TOO_FEW = "too few requests: it was run again for longer"


@dataclass(frozen=True, slots=True)
class Settings:
    """How the runs of a sweep are made, and what is read off them.

    Attributes:
        out: The folder.
        pause_s: How long to wait between runs; None for 5 s, and no time for the simulated server.
        reset_url: Asked by POST between runs to empty the server's cache.
        exports: What each run writes for other programs besides.
        targets: Where the curve is read.
        gates: What the figures of each run are held against.
    """

    out: Path
    pause_s: float | None = None
    reset_url: str | None = None
    exports: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()
    gates: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Views:
    """Who looks on.

    Attributes:
        show: Makes what looks on at a run of a plan.
        say: Is told each run's outcome in a line.
    """

    show: Callable[[Plan], Show] | None = None
    say: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a sweep came to.

    Attributes:
        value: As sweep.json holds it.
        signal: The signal that ended it, if any.
    """

    value: dict[str, Any]
    signal: int | None


class _InterruptedError(Exception):
    """A signal came, and the runs end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(slots=True)
class _Runs:
    """The runs of a sweep as they are made.

    Attributes:
        job: What to run; the number of users is that of the largest.
        settings: How.
        common: What all runs have in common.
        views: Who looks on.
        also: Further figures to keep.
        done: The runs so far, as sweep.json holds them.
        search: What was searched for and found, as sweep.json holds it.
        warnings: What went wrong between runs.
    """

    job: Job
    settings: Settings
    common: dict[str, Any]
    views: Views
    also: set[str]
    done: list[dict[str, Any]] = field(default_factory=list)
    search: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)
    _sent: bool = False

    async def run(self, users: int, duration_s: float | None) -> dict[str, Any]:
        """Make a run, or find it made; returns what its summary.json holds.

        Raises:
            _InterruptedError: a signal ended it, or came before it.
        """
        plan = replace(self.job.plan, users=users, duration_s=duration_s, salt=secrets.randbits(63))
        path, value = self._found(plan)
        number = None
        if value is None:
            if self._sent:
                await self._between()
            self._sent = True
            result = await run_plan(
                self.job.trace,
                plan,
                path,
                endpoint=self.job.endpoint,
                profile=self.job.profile,
                limits=self.job.limits,
                goodput=self.job.goodput,
                gates=self.settings.gates,
                show=self.views.show(plan) if self.views.show else None,
                reports=Reports(self.settings.exports),
                money=self.job.money,
                crew=self.job.crew,
            )
            value, number = result.value, result.signal
        entry = run_value(path.name, users, duration_s, value, self.also, self.settings.gates)
        self.done.append(entry)
        self.views.say(run_line(entry))
        if number is not None:
            raise _InterruptedError(number)
        return value

    @property
    def dead(self) -> bool:
        """Whether nothing has ever succeeded."""
        return not any(run["requests"]["succeeded"] for run in self.done)

    def keep(self, ended: str | None) -> dict[str, Any]:
        """Write what there is."""
        value = sweep_value(
            self.common,
            self.done,
            targets=self.settings.targets,
            gpus=self.job.money.gpus,
            search=self.search,
            ended=ended,
            warnings=self.warnings,
        )
        write_sweep(self.settings.out, value)
        return value

    def _found(self, plan: Plan) -> tuple[Path, dict[str, Any] | None]:
        """Where the next run of a plan lies, and what it came to if it is finished.

        One that was broken off, or in which nothing succeeded, is moved aside: it is made again.
        """
        taken = {run["directory"] for run in self.done}
        for number in count(1):
            name = f"users-{plan.users}" + (f"-{number}" if number > 1 else "")
            path = self.settings.out / name
            if name in taken:
                continue
            if not (path / "run.json").exists():
                return path, None
            read = read_run(path)
            if not self._is_ours(read.manifest, read.plan, plan):
                continue
            value = summary_value(read.manifest, read.ending, read.facts, read.summary())
            ended = read.ending is not None and read.ending.reason != "interrupted"
            if ended and value["metrics"]["requests"]["succeeded"]:
                return path, value
            _move_aside(path)
            return path, None
        raise AssertionError("count never ends")

    def _is_ours(self, manifest: dict[str, Any], plan: Plan, wanted: Plan) -> bool:
        """Whether a run is of the same job and length; where it was sent is seen at its start."""
        urls, files = manifest["endpoint"].get("urls"), manifest["trace"].get("files")
        return (
            replace(plan, salt=wanted.salt) == wanted
            and manifest["limits"] == self.common["limits"]
            and files in (None, self.common["trace"]["files"])  # None where it was killed early
            and (self.job.endpoint is None or urls in (None, self.common["endpoint"]["urls"]))
        )

    async def _between(self) -> None:
        """Keep what there is, wait, and have the server's cache emptied; a signal ends it."""
        pause_s = self.settings.pause_s
        if pause_s is None:
            pause_s = PAUSE_S if self.job.endpoint is not None else 0.0
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            came: list[int] = []
            self.keep(None)
            async with anyio.create_task_group() as group:

                async def watch() -> None:
                    async for number in signals:
                        came.append(number)
                        group.cancel_scope.cancel()

                group.start_soon(watch)
                await anyio.sleep(pause_s)
                await self._reset()
                group.cancel_scope.cancel()
        if came:
            raise _InterruptedError(came[0])

    async def _reset(self) -> None:
        url, endpoint = self.settings.reset_url, self.job.endpoint
        if url is None or endpoint is None:
            return
        try:
            async with _client_for(url, endpoint) as client:
                answer = await client.post(url, content=b"", timeout=RESET_S)
            cause = None if answer.is_success else f"HTTP {answer.status_code}"
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            cause = str(error) or type(error).__name__
        if cause is not None:
            warning = endpoint.mask(f"the cache was not reset: {shown(url)}: {cause}")
            self.views.say(warning)
            if warning not in self.warnings:
                self.warnings.append(warning)


def _client_for(url: str, endpoint: Endpoint) -> httpx.AsyncClient:
    """With the endpoint's key only where it is the same server."""
    if urlsplit(url).netloc in {urlsplit(each).netloc for each in endpoint.urls}:
        return open_client(endpoint, time.monotonic_ns)
    return httpx.AsyncClient()


def _move_aside(path: Path) -> None:
    for number in count(1):
        aside = path.with_name(f"{path.name}.unfinished" + (f"-{number}" if number > 1 else ""))
        if not aside.exists():
            path.rename(aside)
            return


async def curve(
    job: Job,
    settings: Settings,
    users: Sequence[int],
    repeat: int = 1,
    views: Views | None = None,
) -> Outcome:
    """Run a job with each number of users, all of them so often.

    Args:
        job: What to run.
        settings: How, and where to.
        users: The numbers of users.
        repeat: How often; every number once, and then again.
        views: Who looks on.

    Raises:
        AgentReplayError: the folder holds another sweep, or a run can't begin.
    """
    runs = _begin(job, settings, "curve", views, set())

    async def all_of_them() -> None:
        for _ in range(repeat):
            for each in users:
                await runs.run(each, job.plan.duration_s)
                if runs.dead:
                    return

    return await _to_the_end(runs, all_of_them)


async def search(
    job: Job,
    settings: Settings,
    hunt: Hunt,
    limits: Sequence[str],
    views: Views | None = None,
) -> Outcome:
    """Search for the most users at which limits hold; *limits* are those of *hunt* in words.

    Raises:
        AgentReplayError: the folder holds another sweep, or a run can't begin.
    """
    runs = _begin(job, settings, "search", views, {each.metric for each in hunt.limits})
    runs.search = found_value(None, limits, job.money.gpus)
    steps: list[Step] = []

    async def until_found() -> None:
        while isinstance(todo := following(hunt, steps), Next):
            value = await runs.run(todo.users, todo.duration_s)
            steps.append(step(todo.users, todo.duration_s, value, hunt.limits))
            for run, each in zip(runs.done, steps, strict=True):
                those = [other for other in steps if other.users == each.users]
                counted = any(each is other for other in evidence(hunt, those))
                run["passed_over"] = None if counted else TOO_FEW
                run["holds"] = each.holds
            if runs.dead:
                return
        assert isinstance(todo, Found)
        runs.search = found_value(todo, limits, job.money.gpus)

    return await _to_the_end(runs, until_found)


def exit_code(outcome: Outcome) -> tuple[int, str]:
    """The exit code of a sweep, and its reason in words."""
    value = outcome.value
    if outcome.signal is not None:
        return EXIT_SIGNALLED + outcome.signal, "interrupted"
    if value["ended"] == "unusable":
        words = [f"{each['kind']}: {each['example']}" for each in value["runs"][-1]["failures"]]
        return EXIT_UNUSABLE, ": ".join(["nothing succeeded", *words[:1]])
    if found := value["search"]:
        if not found["most_users"]:
            return EXIT_INVALID, "no number of users was seen to hold the limits"
        return _judged(value, f"{found['most_users']} users")
    asked, good = len({run["users"] for run in value["runs"]}), len(value["fronts"][0]["users"])
    complete = [p for p in value["points"] if None not in _axes(p)]
    if len(complete) < min(2, asked):
        return EXIT_INVALID, f"{len(complete)} of {asked} points can be used"
    return _judged(value, f"{len(complete)} of {asked} points can be used, {good} on the front")


def _judged(value: dict[str, Any], words: str) -> tuple[int, str]:
    """The code of a sweep with a result: whether each run that counts passed its gates.

    Of a search those count that are its answer: it also looks where limits are missed.
    """
    most = value["search"]["most_users"] if value["search"] else None
    missed = [
        f"{run['directory']}: {each}"
        for run in value["runs"]
        if run["valid"] and not run["passed_over"] and most in (None, run["users"])
        for each in run["missed"]
    ]
    return (EXIT_MISSED, "gate missed: " + "; ".join(missed)) if missed else (0, words)


def _axes(point: dict[str, Any]) -> tuple[float | None, float | None]:
    return point["figures"]["interactivity.p90"], point["figures"]["total_token_rate"]


def _begin(
    job: Job,
    settings: Settings,
    kind: str,
    views: Views | None,
    also: set[str],
) -> _Runs:
    common = orjson.loads(orjson.dumps(_common(job, kind)))
    known = read_sweep(settings.out)
    if known is not None and (other := _difference(known["job"], common)):
        raise AgentReplayError(
            f"{settings.out} holds a sweep of another job, which differs in {other}: name another "
            "folder with --out"
        )
    also = also | {each.metric for each in settings.targets}
    runs = _Runs(job, settings, common, views or Views(), also)
    if known is None:
        runs.keep(None)
    return runs


def _common(job: Job, kind: str) -> dict[str, Any]:
    """What the runs of a sweep have in common; two sweeps that differ in it are not one."""
    manifest, endpoint = manifest_of(job.trace, job.plan), job.endpoint
    trace = manifest["trace"]
    where: dict[str, Any] = {"simulated": job.profile}
    if endpoint is not None:
        urls = list(map(shown, endpoint.urls))
        where = {"urls": urls, "api": endpoint.api.name, "model": endpoint.model}
    plan = {name: value for name, value in asdict(job.plan).items() if name not in _OF_A_RUN}
    # Times of choice are not kept: 30d means other ones each time it is asked.
    kept = {
        "paths": trace["paths"],
        "sessions": trace["sessions"],
        "files": files_of(job.trace),
    }
    return {
        "kind": kind,
        "plan": plan,
        "limits": asdict(job.limits),
        "goodput": [each.text for each in job.goodput],
        "endpoint": where,
        "trace": kept,
    }


_OF_A_RUN = ("users", "salt")


def _difference(known: dict[str, Any], common: dict[str, Any]) -> str:
    """The first thing in which two jobs differ, in words."""
    for name, value in common.items():
        there = known.get(name)
        if value == there:
            continue
        if name not in ("plan", "limits", "endpoint") or not isinstance(there, dict):
            return {"kind": "what is asked of it", "trace": "its traces"}.get(name, name)
        for key in {**there, **value}:
            if there.get(key) != value.get(key):
                return f"{key} ({there.get(key)} there)"
    return ""


async def _to_the_end(runs: _Runs, work: Callable[[], Any]) -> Outcome:
    number, ended = None, "complete"
    try:
        await work()
    except _InterruptedError as error:
        number, ended = error.number, "interrupted"
    if number is None and runs.dead:
        ended = "unusable"
    return Outcome(runs.keep(ended), number)
