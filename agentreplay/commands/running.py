"""`run` and `report`: the main job, and its report again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentreplay import options
from agentreplay.client.machine import LOOP
from agentreplay.commands.judging import judged, need_limits
from agentreplay.commands.output import print_json, print_report, show
from agentreplay.job import job, job_of

if TYPE_CHECKING:
    from agentreplay.metrics.condition import Condition
    from agentreplay.metrics.cost import Money, Prices
    from agentreplay.outcome import Reports
    from agentreplay.plan import Plan
    from agentreplay.trace.load import TraceSet


@contextmanager
def starting() -> Iterator[None]:
    """Import and open without a search for cycles, which would find none in what is made for good;
    no later search goes through that, either."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@click.command(cls=options.Sectioned)
@job
@click.option(
    "--users",
    cls=options.Section,
    section="Load",
    type=click.IntRange(1),
    help="Sessions that are live at once.  [default: 8; with --timing recorded, one a session]",
)
@click.option(
    "--out",
    cls=options.Section,
    section="Output",
    type=click.Path(path_type=Path),
    help="Run directory.  [default: runs/TIME]",
)
@judged
@click.option("--dry-run", is_flag=True, help="Send nothing: say what would be sent.")
@click.option("--quiet", is_flag=True, help="No live screen: standard error has errors only.")
@options.JSON
def run(
    users: int | None,
    out: Path | None,
    gates: tuple[Condition, ...],
    reports: Reports,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    asked: dict[str, Any],
) -> None:
    """Replay the sessions in PATHS and report token rates and P90 interactivity.

    \b
    agentreplay run traces                                     against a simulated server
    agentreplay run traces --url http://localhost:8000 --users 16 --duration 5m
    agentreplay run ~/.claude/projects --since 30d --dry-run   what would be sent
    agentreplay run traces --scenario agentx --url http://localhost:8000
    agentreplay run traces --url http://localhost:8000 --json --quiet > summary.json

    Each option can stand in agentreplay.toml by its name (max-gap = "5s"), or in a variable
    (AGENTREPLAY_MAX_GAP=5s); `agentreplay config` shows what holds.
    """
    with starting():
        import anyio

        from agentreplay.outcome import PAGE
        from agentreplay.report.live import LiveView
        from agentreplay.run import run_plan

        need_limits(gates, asked["goodput"])
        todo = job_of(asked, users)
    if dry_run:
        _forecast(todo.trace, todo.plan, todo.money.prices, as_json)
        return
    directory = out or new_directory()
    replayed = partial(
        run_plan,
        todo.trace,
        todo.plan,
        directory,
        endpoint=todo.endpoint,
        profile=todo.profile,
        limits=todo.limits,
        goodput=todo.goodput,
        gates=gates,
        show=None if quiet else partial(LiveView, todo.plan),
        reports=replace(reports, html=reports.html or directory / PAGE),
        money=todo.money,
        crew=todo.crew,
    )
    show(anyio.run(replayed, backend_options=LOOP), as_json)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@judged
@click.option(
    "--csv",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write every request, and the table behind each figure, as CSV files.",
)
@options.priced
@options.JSON
def report(
    directory: Path,
    gates: tuple[Condition, ...],
    reports: Reports,
    csv: Path | None,
    money: Money,
    as_json: bool,
) -> None:
    """Compute the report of a run in DIRECTORY again from its records, also while it goes on."""
    from agentreplay.outcome import PAGE, conclude

    wanted = replace(reports, html=reports.html or directory / PAGE, csv=csv)
    show(conclude(directory, gates, wanted, money), as_json)


def new_directory(prefix: str = "") -> Path:
    """A folder under runs/ that is not there, named for the time."""
    stamp = prefix + datetime.now().strftime("%Y%m%d-%H%M%S")
    path, number = Path("runs") / stamp, 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{stamp}-{number}"
    return path


def _forecast(trace: TraceSet, plan: Plan, prices: Prices | None, as_json: bool) -> None:
    """Print what a plan would send."""
    from agentreplay.forecast import forecast
    from agentreplay.report.forecast import forecast_report
    from agentreplay.trace.draw import Draws

    draws = Draws(trace, plan.fit)
    draws.context_tokens = plan.context_tokens
    if plan.fit == "fail":
        for index in range(len(trace)):
            draws.read(index)
    found = forecast(plan, len(trace), draws.read)
    dollars = found.dollars(prices) if prices else None
    left_out = dict(trace.left_out)
    if too_long := draws.facts()["dropped_sessions"]:
        left_out["too long for the context"] = too_long
    if as_json:
        print_json({**asdict(found), "dollars": dollars, "left_out": left_out})
    else:
        print_report(forecast_report(found, dollars, left_out))
