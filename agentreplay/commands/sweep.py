"""`sweep`: runs over numbers of users, or the search for the most of them within limits."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentreplay import options
from agentreplay.client.machine import LOOP
from agentreplay.commands.judging import GATE, need_limits
from agentreplay.commands.output import print_json, print_report, save_page
from agentreplay.commands.running import new_directory, starting
from agentreplay.errors import AgentReplayError
from agentreplay.job import job, job_of

if TYPE_CHECKING:
    from agentreplay.metrics.condition import Condition


def numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int]:
    """Numbers of users: a list of numbers and ranges, as 1,2,4 or 1-16 (doubling) or 1-16:5."""
    found: set[int] = set()
    for part in value.split(",") if value is not None else ():
        span, colon, points = part.strip().partition(":")
        low, dash, high = span.partition("-")
        texts = [low, *([high] if dash else []), *([points] if colon else [])]
        if not all(text.isdecimal() and int(text) for text in texts) or (colon and not dash):
            raise click.BadParameter(
                f"{value!r}: write numbers and ranges, as 1,2,4,8 or 1-16 or 1-16:5", ctx, param
            )
        first, last = int(low), int(high or low)
        steps = int(points) if colon else (last // first).bit_length()
        if first > last or (colon and steps < 2):
            raise click.BadParameter(
                f"{part!r} is no range: write the fewer first, and two points or more", ctx, param
            )
        if colon:
            ratio = (last / first) ** (1 / (steps - 1))
            found.update(round(first * ratio**n) for n in range(steps))
        else:
            found.update(first << n for n in range(steps))
            found.add(last)
    return sorted(found)


@click.command(cls=options.Sectioned)
@job
@click.option(
    "--users",
    cls=options.Section,
    section="Sweep",
    callback=numbers,
    metavar="NUMBERS",
    help="Numbers of users: 1,2,4,8; a range, doubling: 1-16; or with so many points: 1-16:5.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder of the runs.  [default: runs/sweep-TIME]"
)
@click.option(
    "--repeat",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Runs of each number of users.",
)
@click.option(
    "--pause",
    callback=options.duration,
    metavar="DURATION",
    help="Wait between runs.  [default: 5s; 0s for the simulated server]",
)
@click.option(
    "--reset-cache", metavar="URL", help="POST there between runs, to empty the server's cache."
)
@click.option(
    "--at",
    "targets",
    multiple=True,
    metavar="FIGURE=VALUE",
    help="Read the token rate off the front there, as interactivity.p90=50 or ttft.p95=2s.",
)
@click.option(
    "--find-max-users",
    "searching",
    is_flag=True,
    help="Search for the most users at which every --limit holds, in 12 runs at most.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="CONDITION",
    help="What must hold in the search, as 'interactivity.p90 >= 50' or 'ttft.p95 < 5s'.",
)
@click.option(
    "--from",
    "first",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Users the search begins with.",
)
@click.option(
    "--to",
    "last",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    help="Most users it tries.",
)
@click.option(
    "--step-requests",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Measured requests of a step of up to ten users, and a tenth of it for each of more: "
    "steps last longer for it.",
)
@GATE
@options.EXPORT
@options.HTML
@options.JSON
def sweep(
    users: list[int],
    out: Path | None,
    repeat: int,
    pause: float | None,
    reset_cache: str | None,
    targets: tuple[str, ...],
    searching: bool,
    limits: tuple[str, ...],
    first: int,
    last: int,
    step_requests: int,
    gates: tuple[Condition, ...],
    exports: tuple[str, ...],
    html: Path | None,
    as_json: bool,
    asked: dict[str, Any],
) -> None:
    """Replay the sessions in PATHS with several numbers of users, and compare what comes of it.

    \b
    agentreplay sweep traces --users 1-16 --url http://localhost:8000 --at interactivity.p90=50
    agentreplay sweep traces --find-max-users --limit 'ttft.p95 < 5s' --url http://localhost:8000
    """
    import anyio

    from agentreplay.metrics.gate import gate
    from agentreplay.metrics.search import Hunt
    from agentreplay.report.html.curves import sweep_page
    from agentreplay.report.live import LiveView
    from agentreplay.report.sweep import sweep_report, target
    from agentreplay.sweep import Settings, Views, curve, exit_code, search

    _refuse_nonsense(searching, bool(users), repeat, bool(limits))
    if first > last:
        raise AgentReplayError(f"--from {first} --to {last}: the search goes upwards")
    if reset_cache and not asked["urls"]:
        raise AgentReplayError("--reset-cache needs --url: the simulated server is started anew")
    conditions, aims = tuple(map(gate, limits)), tuple(map(target, targets))
    need_limits((*conditions, *gates), asked["goodput"])
    most = last if searching else users[-1]
    with starting():
        todo = job_of(asked, most)
    plan = todo.plan
    if searching and (plan.sessions is not None or plan.requests is not None):
        raise AgentReplayError(
            "--find-max-users measures for a time: it takes no --sessions and no --requests"
        )
    if plan.users < most:
        raise AgentReplayError(
            f"--sessions and --requests leave work for {plan.users} users: {most} need more"
        )
    settings = Settings(out or new_directory("sweep-"), pause, reset_cache, exports, aims, gates)
    views = Views(lambda plan: partial(LiveView, plan), partial(click.echo, err=True))
    if searching:
        assert plan.duration_s is not None
        hunt = Hunt(conditions, first, last, plan.duration_s, step_requests)
        work = partial(search, todo, settings, hunt, limits, views)
    else:
        work = partial(curve, todo, settings, users, repeat, views)
    outcome = anyio.run(work, backend_options=LOOP)
    if as_json:
        print_json(outcome.value)
    else:
        print_report(sweep_report(outcome.value))
    save_page(html, lambda: sweep_page(settings.out.resolve().name, outcome.value))
    code, why = exit_code(outcome)
    click.echo(f"{settings.out} · exit {code}: {why}", err=as_json)
    sys.exit(code)


def _refuse_nonsense(searching: bool, users: bool, repeat: int, limits: bool) -> None:
    if not searching and limits:
        raise AgentReplayError("--limit needs --find-max-users")
    if not searching and not users:
        raise AgentReplayError("give numbers of users, as --users 1,2,4,8, or --find-max-users")
    if searching and not limits:
        raise AgentReplayError("--find-max-users needs --limit, as 'interactivity.p90 >= 50'")
    if searching and (users or repeat > 1):
        raise AgentReplayError(
            "--find-max-users chooses its runs itself: it takes no --users and no --repeat"
        )
