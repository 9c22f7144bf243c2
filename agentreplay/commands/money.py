"""`cost` and `curve`: what a run cost, and what systems give for their money."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentreplay import options
from agentreplay.commands.output import print_json, print_report, save_page
from agentreplay.errors import AgentReplayError

if TYPE_CHECKING:
    from agentreplay.metrics.cost import Money

_MONEY = (
    "total_token_rate_per_gpu",
    "total_token_rate_run_per_gpu",
    "tokens_per_dollar",
    "dollars_per_million_tokens",
    "bill",
)

_PER_GPU = _MONEY[:2]

_AXES = {
    "interactivity",
    "interactivity_corrected",
    "interactivity_normalised",
    "user_output_rate",
    "user_output_rate_streaming",
    "total_token_rate",
    "input_token_rate",
    "output_token_rate",
    "request_rate",
    "total_token_rate_run",
    "input_token_rate_run",
    "output_token_rate_run",
    "request_rate_run",
    *_PER_GPU,
    "tokens_per_dollar",
}
"""Figures of which more is better; of others a front would be turned round."""


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@options.priced
@options.JSON
def cost(directory: Path, money: Money, as_json: bool) -> None:
    """Say what the run in DIRECTORY cost: its bill, and its tokens per dollar.

    \b
    agentreplay cost runs/one --prices input=3,cached=0.3,output=15
    agentreplay cost runs/one --gpus 8 --gpu-hour 1.50
    """
    from agentreplay.report.cost import cost_report
    from agentreplay.report.text import banner

    value = _value(directory, money)
    known = value["money"]
    if not known["prices"] and not known["gpu_hour"]:
        raise AgentReplayError(
            f"nothing says what {directory} cost: give --prices, or --gpus and --gpu-hour"
        )
    if as_json:
        names = ("agentreplay", "simulated", "verdict", "ended", "money")
        print_json(
            {name: value[name] for name in names}
            | {"metrics": {name: value["metrics"][name] for name in _MONEY}}
        )
    else:
        simulated = value["simulated"]
        print_report(cost_report(value, banner(simulated) if simulated else None))


@dataclass(frozen=True, slots=True)
class _Given:
    """An argument of `curve`: a run directory, or figures.

    Attributes:
        system: The system that it names; None where it names none.
        name: What it is shown as.
        path: The run directory.
        figures: Or x and y.
    """

    system: str | None
    name: str
    path: Path | None = None
    figures: tuple[float, float] | None = None


@click.command()
@click.argument("points", nargs=-1, required=True)
@click.option(
    "--at",
    "target",
    metavar="FIGURE[=VALUE]",
    default="interactivity.p90",
    show_default=True,
    help="Figure of the axis, and where on it the systems are read, as interactivity.p90=50.",
)
@click.option(
    "--y",
    metavar="FIGURE",
    help="Figure of the other axis.  [default: total_token_rate_run_per_gpu where GPUs are known, "
    "else total_token_rate_run]",
)
@click.option(
    "--gpus",
    multiple=True,
    metavar="[NAME=]N",
    help="GPUs of every system, or of the one that is named.  [default: as its runs were told]",
)
@click.option(
    "--gpu-hour",
    multiple=True,
    metavar="[NAME=]DOLLARS",
    help="What an hour of a GPU costs, likewise: gives tokens per dollar.",
)
@options.HTML
@options.JSON
def curve(
    points: tuple[str, ...],
    target: str,
    y: str | None,
    gpus: tuple[str, ...],
    gpu_hour: tuple[str, ...],
    html: Path | None,
    as_json: bool,
) -> None:
    """Compare systems at a target: POINTS are run directories, as DIR or NAME=DIR, or NAME=X,Y.

    Runs of one NAME are the points of one system, and a folder stands for all runs in it. The
    value at the target lies on the front of a system's points, between its two neighbours.

    \b
    agentreplay curve new=runs/new old=runs/old --at interactivity.p90=50 --gpus 8
    agentreplay curve new=50,7567 old=50,6083 --at interactivity.p90=50
    """
    from agentreplay.report.curve import curve_report, curve_value
    from agentreplay.report.html.curves import curve_page
    from agentreplay.report.text import banner

    x, value_at = _target(target)
    given = [each for text in points for each in _given(text)]
    counts = _per_system("--gpus", gpus)
    if any(not each.is_integer() for each in counts.values()):
        raise AgentReplayError("--gpus is a number of GPUs: write it as 8, or new=8")
    runs = _read(given, counts)
    if y is None:
        told = [run["money"]["gpus"] for _, _, run in runs if run]
        y = "total_token_rate_run" if told and not any(told) else "total_token_rate_run_per_gpu"
    _refuse_axis("--y", y)
    hours = _per_system("--gpu-hour", gpu_hour)
    if hours and y not in _PER_GPU:
        raise AgentReplayError(
            f"--gpu-hour needs figures per GPU, and y is {y}: give --gpus, or --y {_PER_GPU[1]}"
        )
    names = {name for name, _, _ in runs}
    for option, values in (("--gpus", counts), ("--gpu-hour", hours)):
        for name in values.keys() - names - {""}:
            raise AgentReplayError(
                f"{option} {name}=…: there is no such system, but {', '.join(sorted(names))}"
            )
    systems, left_out = _systems(runs, x, y, hours)
    found = curve_value(systems, left_out, x, y, value_at)
    if as_json:
        print_json(found)
    else:
        simulated = found["simulated"]
        print_report(curve_report(found, banner(simulated) if simulated else None))
    save_page(html, lambda: curve_page(found))
    if not any(system.measured for system in systems):
        raise AgentReplayError(f"no point has both {x} and {y}")


def _value(directory: Path, money: Money) -> dict[str, Any]:
    """A run as summary.json holds it, computed anew and written nowhere."""
    from agentreplay.report.value import summary_value
    from agentreplay.store import read_run

    run = read_run(directory).priced(money)
    options.sensible(run.money)
    return summary_value(run.manifest, run.ending, run.facts, run.summary())


def _target(text: str) -> tuple[str, float | None]:
    figure, equals, value = text.partition("=")
    _refuse_axis("--at", figure)
    if not equals:
        return figure, None
    return figure, _number(f"--at {text}", value)


def _number(what: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (isfinite(value) and value > 0):
        raise AgentReplayError(f"{what}: {text!r} is no number above 0")
    return value


def _refuse_axis(option: str, figure: str) -> None:
    from agentreplay.metrics.gate import known_metrics

    if figure.partition(".")[0] not in _AXES or figure not in known_metrics():
        raise AgentReplayError(
            f"{option} {figure}: an axis is a figure of which more is better, as "
            "interactivity.p90, user_output_rate.p50, total_token_rate_run or output_token_rate"
        )


def _per_system(option: str, texts: tuple[str, ...]) -> dict[str, float]:
    """Numbers by the names of systems; that for all others under ""."""
    found: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        if name in found:
            raise AgentReplayError(f"{option} is given twice{f' for {name}' if name else ''}")
        found[name] = _number(f"{option} {text}", number)
    return found


def _given(text: str) -> Iterator[_Given]:
    """What an argument stands for: one point, or every run of a folder."""
    name, equals, rest = text.partition("=")
    if not equals or Path(text).exists():
        name, rest = "", text
    if name and (numbers := re.fullmatch(r"([^,]+),([^,]+)", rest)) and not Path(rest).exists():
        x, y = (_number(text, number) for number in numbers.groups())
        yield _Given(name, rest, figures=(x, y))
        return
    path = Path(rest)
    inside = sorted(each.parent for each in path.glob("*/run.json"))
    if inside and not (path / "run.json").exists():
        for each in inside:
            yield _Given(name or None, str(each), each)
    else:
        yield _Given(name or None, rest, path)


def _read(
    given: list[_Given], gpus: dict[str, float]
) -> list[tuple[str, _Given, dict[str, Any] | None]]:
    """Each point with the name of its system and, where it is one, its run."""
    from agentreplay.metrics.cost import Money

    found = []
    for each in given:
        run = None
        if each.path is not None:
            number = gpus.get(each.system or "", gpus.get(""))
            run = _value(each.path, Money(None if number is None else int(number)))
        found.append((each, run))
    plain = [(each, run) for each, run in found if each.system is None]
    name = _common_name(plain)
    return [(each.system or name, each, run) for each, run in found]


def _common_name(plain: list[tuple[_Given, dict[str, Any] | None]]) -> str:
    """Of the runs that are given without a name: their folder's, or their model's."""
    folders = {each.path.resolve().parent.name for each, _ in plain if each.path}
    models = {run["endpoint"].get("model") for _, run in plain if run}
    return str((folders if len(folders) == 1 else models).pop() or "runs") if plain else ""


def _systems(
    runs: list[tuple[str, _Given, dict[str, Any] | None]],
    x: str,
    y: str,
    hours: dict[str, float],
) -> tuple[list[Any], list[Any]]:
    from agentreplay.metrics.curve import Point
    from agentreplay.metrics.gate import figure
    from agentreplay.report.curve import LeftOut, Measured, System

    measured: dict[str, list[Measured]] = {}
    told: dict[str, set[float | None]] = {}
    left_out = []
    for name, given, run in runs:
        points = measured.setdefault(name, [])
        if given.figures is not None:
            points.append(Measured(Point(given.name, *given.figures)))
            continue
        assert run is not None
        told.setdefault(name, set()).add(run["money"]["gpu_hour"])
        values = {metric: figure(run, metric) for metric in (x, y)}
        absent = [metric for metric, value in values.items() if not isinstance(value, int | float)]
        if absent:
            why = " and ".join(absent) + " was not measured"
            if y in absent and y in _PER_GPU and not run["money"]["gpus"]:
                why += ": give --gpus"
            left_out.append(LeftOut(name, given.name, why))
            continue
        reasons = tuple(reason["id"] for reason in run["verdict"]["reasons"])
        point = Point(given.name, float(values[x] or 0), float(values[y] or 0))
        sha256 = run["trace"]["sha256"]
        points.append(Measured(point, run["simulated"], reasons, sha256))
    systems = []
    for name, points in measured.items():
        gpu_hour = hours.get(name, hours.get(""))
        if gpu_hour is None and y in _PER_GPU and len(told.get(name, ())) == 1:
            (gpu_hour,) = told[name]
        systems.append(System(name, tuple(points), gpu_hour))
    return systems, left_out
