"""What a run is held against, and where its reports go: options of all commands that judge one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentreplay import options
from agentreplay.errors import AgentReplayError

if TYPE_CHECKING:
    from agentreplay.metrics.condition import Condition


def _gate(text: str) -> Condition:
    from agentreplay.metrics.gate import gate

    return gate(text)


GATE = click.option(
    "--gate",
    "gates",
    multiple=True,
    callback=options.conditions(_gate),
    metavar="COND",
    help="End with 1 unless this holds, as 'ttft.p95 < 2s' or 'interactivity.p90 >= 50'.",
)

JUDGED = (
    GATE,
    options.EXPORT,
    click.option(
        "--junit",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write verdict and gates as a JUnit file.",
    ),
    click.option(
        "--summary-md",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write a summary in Markdown; also appended to GITHUB_STEP_SUMMARY where that is set.",
    ),
    click.option(
        "--html",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write the page to look at there.  [default: report.html in the run directory]",
    ),
)


def need_limits(conditions: Iterable[Condition], goodput: Sequence[str]) -> None:
    """Refuse conditions on goodput where no single request is limited.

    Raises:
        AgentReplayError: there is one.
    """
    for each in conditions:
        if each.metric == "goodput" and not goodput:
            raise AgentReplayError(f"{each.text!r} needs --goodput: nothing is limited")


def judged(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options, as its conditions `gates` and the files `reports`."""

    @wraps(command)
    def packed(
        exports: tuple[str, ...],
        junit: Path | None,
        summary_md: Path | None,
        html: Path | None,
        **values: Any,
    ) -> None:
        from agentreplay.outcome import Reports

        step_summary = os.environ.get("GITHUB_STEP_SUMMARY")
        page = Path(step_summary) if step_summary else None
        command(reports=Reports(exports, junit, summary_md, page, html), **values)

    for option in reversed(JUDGED):
        packed = option(packed)
    return packed
