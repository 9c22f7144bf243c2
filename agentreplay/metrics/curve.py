"""Runs as points of a curve: the Pareto front, and the value at a target. Pure.

Both axes are better when larger: interactivity against tokens a second.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """A run, or several, on two axes.

    Attributes:
        name: What it is shown as.
        x: Its figure on the axis of the target.
        y: Its figure on the other axis.
    """

    name: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Reading:
    """The value at a target.

    Attributes:
        x: The target.
        y: The value; None outside of what was measured.
        below: The point of the front next to the target on the side of the small values, or at it.
        above: The one on the other side, or at it.
    """

    x: float
    y: float | None
    below: Point | None
    above: Point | None


def front(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats on both axes, by x; of equal ones the first by name.

    From point to point x grows and y falls.
    """
    kept: list[Point] = []
    for point in sorted(points, key=lambda each: (-each.x, -each.y, each.name)):
        if not kept or point.y > kept[-1].y:
            kept.append(point)
    return kept[::-1]


def at(points: Sequence[Point], x: float) -> Reading:
    """The value at a target on the front of *points*, between its two neighbours by a line."""
    edge = front(points)
    n = bisect_left([point.x for point in edge], x)
    above = edge[n] if n < len(edge) else None
    if above is not None and above.x == x:
        return Reading(x, above.y, above, above)
    below = edge[n - 1] if n else None
    if below is None or above is None:
        return Reading(x, None, below, above)
    share = (above.x - x) / (above.x - below.x)
    y = min(below.y, above.y + share * (below.y - above.y))  # rounding may go beyond
    return Reading(x, y, below, above)
