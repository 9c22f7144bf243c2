"""Lines of the bench, what was measured for them, and how that is shown. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rich.table import Table

RATIO = ""
"""The unit of a ratio."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table, before anything is measured.

    Attributes:
        id: Its name, as docs/performance.md has it.
        unit: Of its value.
        goal: Its value is to be no greater; None where there is no goal.
    """

    id: str
    unit: str = RATIO
    goal: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured for a line.

    Attributes:
        line: Which one.
        values: One of each round; what counts is their median.
        details: What is behind them, by names that say their units.
        left_out: Why nothing was measured.
    """

    line: Line
    values: tuple[float, ...]
    details: Mapping[str, float] = field(default_factory=dict)
    left_out: str | None = None

    @property
    def value(self) -> float | None:
        """The median over the rounds; None where nothing was measured."""
        return median(self.values) if self.values else None

    @property
    def met(self) -> bool | None:
        """Whether the goal is; None without a goal or a value."""
        value, goal = self.value, self.line.goal
        return None if value is None or goal is None else value <= goal

    def as_json(self) -> dict[str, Any]:
        """The row for programs."""
        return {
            "id": self.line.id,
            "unit": self.line.unit,
            "goal": self.line.goal,
            "value": self.value,
            "met": self.met,
            "rounds": self.values,
            "details": self.details,
            "left_out": self.left_out,
        }


def slope_us(low: Mapping[str, float], high: Mapping[str, float]) -> float:
    """CPU microseconds of one more token, from two phases with as many requests each.

    What the requests themselves cost is the same in both, and so is not in it.
    """
    return (high["cpu_s"] - low["cpu_s"]) / (high["tokens"] - low["tokens"]) * 1e6


def ratio_row(line: Line, ours: Sequence[float], beside: Sequence[float], unit: str) -> Row:
    """The ratio of two costs in each round, both in *unit*."""
    ratios = tuple(a / b for a, b in zip(ours, beside, strict=True))
    return Row(line, ratios, {f"ours_{unit}": median(ours), f"beside_{unit}": median(beside)})


def table(rows: Sequence[Row], caption: str) -> Table:
    """The rows for people."""
    shown = Table(caption=caption, caption_justify="left")
    shown.add_column("")
    for name in ("median", "min", "max", "goal"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("")
    shown.add_column("behind it")
    for row in rows:
        unit, goal = row.line.unit, row.line.goal
        least = "" if goal is None else f"≤ {number(goal, unit)}"
        if row.value is None:
            shown.add_row(row.line.id, "", "", "", least, "left out", row.left_out)
            continue
        verdict = {None: "", True: "met", False: "[bold]missed[/]"}[row.met]
        figures = (number(each, unit) for each in (row.value, min(row.values), max(row.values)))
        behind = ", ".join(f"{name} {value:.4g}" for name, value in row.details.items())
        shown.add_row(row.line.id, *figures, least, verdict, behind)
    return shown


def number(value: float, unit: str) -> str:
    """A value with three digits or so, and its unit."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f} {unit}".rstrip()
