"""`compare`: runs against a baseline."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentreplay import options
from agentreplay.commands.output import print_json, print_report, save_page
from agentreplay.errors import EXIT_MISSED, AgentReplayError

if TYPE_CHECKING:
    from agentreplay.metrics.compare import Measured


@click.command()
@click.argument("base")
@click.argument("new")
@click.option(
    "--tolerance",
    callback=options.share,
    default="5%",
    show_default=True,
    help="How much worse a figure may be.",
)
@click.option("--anyway", is_flag=True, help="Compare runs that are not comparable or invalid.")
@options.HTML
@options.JSON
def compare(
    base: str, new: str, tolerance: float, anyway: bool, html: Path | None, as_json: bool
) -> None:
    """Hold the run in directory NEW against the one in BASE: what changed, and how sure that is.

    Each may be several directories with commas between them: the first of NEW is held against the
    first of BASE, and so on. The exit code is 1 where a figure got worse.

    \b
    agentreplay compare baseline runs/ci
    agentreplay compare runs/a1,runs/a2,runs/a3 runs/b1,runs/b2,runs/b3 --tolerance 2%
    """
    from agentreplay.metrics import compare as metrics
    from agentreplay.report.compare import comparison_report, comparison_value, in_words
    from agentreplay.report.html.compare import compare_page

    paths = [[Path(path) for path in side.split(",")] for side in (base, new)]
    if len(paths[0]) != len(paths[1]):
        raise AgentReplayError(
            f"BASE has {len(paths[0])} directories and NEW {len(paths[1])}: they are compared in "
            "pairs"
        )
    runs, about, why = _read(list(zip(*paths, strict=True)))
    if why and not anyway:
        lines = "\n  ".join(why)
        raise AgentReplayError(f"not comparable (--anyway compares all the same):\n  {lines}")
    found = metrics.compare(runs, tolerance)
    value = comparison_value(found, tolerance, *about, why)
    if as_json:
        print_json(value)
    else:
        print_report(comparison_report(value))
    save_page(html, lambda: compare_page(value))
    code = EXIT_MISSED if found.failing else 0
    click.echo(f"exit {code}: {in_words(value)}", err=as_json)
    sys.exit(code)


def _read(
    pairs: list[tuple[Path, ...]],
) -> tuple[
    list[tuple[Measured, Measured]], tuple[list[dict[str, Any]], list[dict[str, Any]]], list[str]
]:
    """What the runs measured, what is said of each, and why they are not comparable."""
    from agentreplay.metrics.compare import Measured, differences
    from agentreplay.store import read_run

    found: list[tuple[Measured, Measured]] = []
    about: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    why: list[str] = []
    for paths in pairs:
        runs = [read_run(path) for path in paths]
        base, new = runs
        differing = differences((base.manifest, base.facts), (new.manifest, new.facts))
        why += [f"{base.path} and {new.path}: {line}" for line in differing]
        kept = []
        for run, said in zip(runs, about, strict=True):
            summary = run.summary()
            reasons = [reason._asdict() for reason in summary.verdict.reasons]
            why += [f"{run.path} is invalid: {each['id']}: {each['text']}" for each in reasons]
            said.append(
                {
                    "path": str(run.path),
                    "simulated": run.manifest["endpoint"].get("simulated"),
                    "valid": summary.verdict.valid,
                    "reasons": reasons,
                }
            )
            measured = Measured(summary.window)
            for record in run.records():
                measured.add(record)
            kept.append(measured)
        found.append((kept[0], kept[1]))
    return found, about, why
