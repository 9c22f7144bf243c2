"""Systems as curves: their points, fronts, values at a target, and ratios. Pure.

`curve_value` makes the value that `--json` prints, `curve_report` the tables of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agentreplay.metrics.cost import dollars_per_million, tokens_per_dollar
from agentreplay.metrics.curve import Point, Reading, at, front
from agentreplay.report.cost import as_tokens_per_dollar
from agentreplay.units import as_dollars, as_number, as_percent


@dataclass(frozen=True, slots=True)
class Measured:
    """A point with what has to be known to trust it.

    Attributes:
        point: Its name and figures.
        simulated: Profile of the simulated server that it was measured on, if it was.
        invalid: Ids of the reasons against its run; empty for a valid one, and for given numbers.
        trace: Content hash of what was replayed, where known.
    """

    point: Point
    simulated: str | None = None
    invalid: tuple[str, ...] = ()
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class System:
    """Points of one kind of machine.

    Attributes:
        name: What it is shown as.
        measured: Its points.
        gpu_hour: Dollars for an hour of one of its GPUs, where known and the points are per GPU.
    """

    name: str
    measured: tuple[Measured, ...]
    gpu_hour: float | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What is no point of a system, and why."""

    system: str
    name: str
    why: str


def curve_value(
    systems: Sequence[System],
    left_out: Sequence[LeftOut],
    x: str,
    y: str,
    target: float | None = None,
) -> dict[str, Any]:
    """Everything that is said of some systems.

    Args:
        systems: In the order in which they are compared: each with all after it.
        left_out: What is no point.
        x: Id of the figure of the target.
        y: Id of the other one.
        target: Where on x the systems are read; None for nowhere.
    """
    read = [_system(system, x, target) for system in systems]
    every = [each for system in systems for each in system.measured]
    return {
        "x": x,
        "y": y,
        "at": target,
        "simulated": next((each.simulated for each in every if each.simulated), None),
        "systems": read,
        "ratios": [_ratio(of, to) for of, to in combinations(read, 2)]
        if target is not None
        else [],
        "left_out": [asdict(each) for each in left_out],
        "traces": sorted({each.trace for each in every if each.trace}),
    }


def _system(system: System, x: str, target: float | None) -> dict[str, Any]:
    points = [each.point for each in system.measured]
    edge = front(points)
    found: dict[str, Any] = {
        "name": system.name,
        "gpu_hour": system.gpu_hour,
        "points": [
            {
                **asdict(each.point),
                "front": each.point in edge,
                "simulated": each.simulated,
                "invalid": list(each.invalid),
                "tokens_per_dollar": tokens_per_dollar(each.point.y, system.gpu_hour),
            }
            for each in sorted(system.measured, key=lambda each: (each.point.x, each.point.name))
        ],
        "value": None,
    }
    if target is not None:
        reading = at(points, target)
        per_dollar = tokens_per_dollar(reading.y, system.gpu_hour)
        found["value"] = {
            "y": reading.y,
            "below": asdict(reading.below) if reading.below else None,
            "above": asdict(reading.above) if reading.above else None,
            "why": _outside(reading, edge, x),
            "tokens_per_dollar": per_dollar,
            "dollars_per_million_tokens": dollars_per_million(per_dollar),
        }
    return found


def _outside(reading: Reading, edge: list[Point], x: str) -> str | None:
    """Why there is no value, in words."""
    if reading.y is not None:
        return None
    if not edge:
        return "no point was measured"
    if reading.below is None:
        return f"below the front, which begins at {x} {as_number(edge[0].x)}"
    return f"above everything that was measured: the front ends at {x} {as_number(edge[-1].x)}"


def _ratio(of: dict[str, Any], to: dict[str, Any]) -> dict[str, Any]:
    """How many times as much one system has as another, where both have a value."""

    def times(name: str) -> float | None:
        one, other = of["value"][name], to["value"][name]
        return one / other if one is not None and other else None

    return {
        "of": of["name"],
        "to": to["name"],
        "y": times("y"),
        "tokens_per_dollar": times("tokens_per_dollar"),
        "dollars_per_million_tokens": times("dollars_per_million_tokens"),
    }


def curve_report(value: dict[str, Any], banner: str | None) -> RenderableType:
    """The tables of `curve_value`.

    Args:
        value: What it made.
        banner: The first line, where a point is of a simulated server.
    """
    parts: list[RenderableType] = [Text(banner, style="bold yellow")] if banner else []
    for system in value["systems"]:
        parts += [_points(value, system), Text("")]
    if value["at"] is not None:
        parts += [_values(value), Text("")]
    parts += map(Text, conclusions(value))
    if warning := other_work(value):
        parts.append(Text(warning, "bold red"))
    return Group(*parts)


def _points(value: dict[str, Any], system: dict[str, Any]) -> RenderableType:
    table = Table(
        title=system["name"],
        title_justify="left",
        title_style="bold",
        box=None,
        header_style="dim",
        padding=(0, 1),
    )
    table.add_column("point", overflow="fold")
    for column in (value["x"], value["y"], "tokens per dollar"):
        table.add_column(column, justify="right")
    table.add_column("")
    for point in system["points"]:
        table.add_row(
            point["name"],
            as_number(point["x"]),
            as_number(point["y"]),
            as_tokens_per_dollar(point["tokens_per_dollar"]),
            about_point(point),
        )
    return table


def about_point(point: Mapping[str, Any]) -> str:
    """What has to be known of a point, in words."""
    said = ["on the front"] if point["front"] else []
    if point["simulated"]:
        said.append("SIMULATED")
    if point["invalid"]:
        said.append(f"INVALID: {', '.join(point['invalid'])}")
    return "; ".join(said)


def _values(value: dict[str, Any]) -> RenderableType:
    table = Table(
        title=at_target(value),
        title_justify="left",
        title_style="bold",
        box=None,
        header_style="dim",
        padding=(0, 1),
    )
    table.add_column("system")
    for column in (value["y"], "tokens per dollar", "$ a million"):
        table.add_column(column, justify="right")
    table.add_column("read from", overflow="fold")
    for row in value_rows(value):
        table.add_row(*row)
    return table


def at_target(value: Mapping[str, Any]) -> str:
    """Where the systems are read."""
    return f"At {value['x']} = {value['at']:.10g}"


def value_rows(value: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """What each system has at the target, what that costs, and where it is read from."""
    for system in value["systems"]:
        found = system["value"]
        source, ends = found["why"], (found["below"], found["above"])
        if source is None:
            invalid = {point["name"] for point in system["points"] if point["invalid"]}
            low, high = (
                f"{end['name']}{' (INVALID)' if end['name'] in invalid else ''}" for end in ends
            )
            source = f"measured: {low}" if low == high else f"between {low} and {high}"
        yield (
            system["name"],
            as_number(found["y"]),
            as_tokens_per_dollar(found["tokens_per_dollar"]),
            as_dollars(found["dollars_per_million_tokens"]),
            source,
        )


def conclusions(value: Mapping[str, Any]) -> list[str]:
    """How many times as much one system has as another, and what is missing, a sentence each."""
    found = [_said(ratio, value["y"]) for ratio in value["ratios"] if ratio["y"]]
    found += [
        f"Left out: {each['name']} ({each['system']}): {each['why']}" for each in value["left_out"]
    ]
    return found


def other_work(value: Mapping[str, Any]) -> str | None:
    """That the points can't be compared, where they can't."""
    if len(value["traces"]) < 2:
        return None
    return "NOT THE SAME WORK: the points are of different traces."


def _said(ratio: dict[str, Any], y: str) -> str:
    said = f"{ratio['of']} has {_more(ratio['y'])} {y} than {ratio['to']}"
    if ratio["tokens_per_dollar"] is None:
        return said
    cost = ratio["dollars_per_million_tokens"]
    cheaper = f"{as_percent(abs(1 - cost))} {'cheaper' if cost < 1 else 'dearer'} per token"
    return f"{said}; {_more(ratio['tokens_per_dollar'])} tokens per dollar, {cheaper}"


def _more(times: float) -> str:
    return f"{as_percent(abs(times - 1))} {'more' if times >= 1 else 'less'}"
