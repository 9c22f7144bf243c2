"""A row of the bench, and how rows are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """What one line of the table says.

    Attributes:
        id: Its name, as docs/performance.md has it.
        values: One of each round; the row's value is their median.
        unit: Of the values; "×" for a ratio.
        goal: No greater than this; None where the row has none.
        details: Medians behind the values, by names that say their units.
        left_out: Why nothing was measured.
    """

    id: str
    values: tuple[float, ...]
    unit: str = "×"
    goal: float | None = None
    details: Mapping[str, float] = field(default_factory=dict)
    left_out: str | None = None

    @property
    def value(self) -> float | None:
        """The median over the rounds."""
        return median(self.values) if self.values else None

    @property
    def met(self) -> bool | None:
        """Whether the goal is; None without a goal or a value."""
        value = self.value
        return None if value is None or self.goal is None else value <= self.goal

    def as_json(self) -> dict[str, Any]:
        """The row for programs."""
        return asdict(self) | {"value": self.value, "met": self.met}


def slope_us(low: Mapping[str, float], high: Mapping[str, float]) -> float:
    """CPU microseconds of one more token, from two phases with as many requests each.

    What requests cost is the same in both, and so is not in it.
    """
    return (high["cpu_s"] - low["cpu_s"]) / (high["tokens"] - low["tokens"]) * 1e6


def ratio_row(
    name: str, ours: Sequence[float], theirs: Sequence[float], unit: str, goal: float | None = None
) -> Row:
    """The ratio of each round's two costs, which are in *unit*."""
    ratios = tuple(a / b for a, b in zip(ours, theirs, strict=True))
    details = {f"ours_{unit}": median(ours), f"beside_{unit}": median(theirs)}
    return Row(name, ratios, goal=goal, details=details)


def table(rows: Sequence[Row], caption: str) -> Table:
    """The rows for people."""
    shown = Table("", caption=caption, caption_justify="left")
    for name in ("median", "min", "max", "goal"):
        shown.add_column(name, justify="right")
    shown.add_column("")
    shown.add_column("behind it")
    for row in rows:
        if row.left_out is not None:
            shown.add_row(row.id, "", "", "", _number(row.goal, row.unit), "left out", row.left_out)
            continue
        verdict = {None: "", True: "met", False: "[bold]missed[/]"}[row.met]
        goal = "" if row.goal is None else f"≤ {_number(row.goal, row.unit)}"
        behind = ", ".join(f"{name} {value:.3g}" for name, value in row.details.items())
        figures = (
            _number(each, row.unit) for each in (row.value, min(row.values), max(row.values))
        )
        shown.add_row(row.id, *figures, goal, verdict, behind)
    return shown


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 3
    return f"{value:.{digits}f} {unit}".rstrip() if unit != "×" else f"{value:.{digits}f}"
