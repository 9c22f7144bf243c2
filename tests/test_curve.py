"""Fronts and the values on them: worked by hand, and laws."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentreplay.metrics.curve import Point, at, front

A, B, C = Point("a", 20, 900), Point("b", 50, 600), Point("c", 80, 100)
DOMINATED = Point("d", 40, 550)

figures = st.one_of(st.integers(1, 40).map(float), st.floats(0.001, 1e7))
clouds = st.lists(st.tuples(figures, figures), min_size=1, max_size=12).map(
    lambda pairs: [Point(f"p{n}", x, y) for n, (x, y) in enumerate(pairs)]
)


@pytest.mark.parametrize(
    ("points", "kept"),
    [
        pytest.param([], [], id="none"),
        pytest.param([B], [B], id="one"),
        pytest.param([C, A, B, DOMINATED], [A, B, C], id="one is beaten on both axes"),
        pytest.param([B, Point("e", 50, 599)], [B], id="the same x"),
        pytest.param([B, Point("e", 49, 600)], [B], id="the same y"),
        pytest.param([Point("z", 50, 600), B], [B], id="equal ones: the first by name"),
        pytest.param([Point("e", 10, 50), Point("f", 20, 90)], [Point("f", 20, 90)], id="rising"),
    ],
)
def test_a_front_is_what_no_other_point_beats(points: list[Point], kept: list[Point]) -> None:
    """By x, without what another point reaches on both axes."""
    assert front(points) == kept


@given(clouds)
def test_every_point_is_on_the_front_or_beaten_by_it(points: list[Point]) -> None:
    """Some point of the front has at least as much of both."""
    edge = front(points)
    assert set(edge) <= set(points)
    for point in points:
        assert any(each.x >= point.x and each.y >= point.y for each in edge)


@given(clouds)
def test_a_front_falls(points: list[Point]) -> None:
    """From point to point x grows and y falls, strictly."""
    edge = front(points)
    assert all(one.x < two.x and one.y > two.y for one, two in pairwise(edge))
    assert front(edge) == edge


@given(clouds, st.randoms(use_true_random=False), figures)
def test_the_order_of_points_does_not_matter(
    points: list[Point], draw: random.Random, x: float
) -> None:
    """Neither for the front nor for a value on it."""
    shuffled = draw.sample(points, len(points))
    assert front(shuffled) == front(points)
    assert at(shuffled, x) == at(points, x)


@given(clouds, figures)
def test_a_value_lies_between_those_of_its_neighbours(points: list[Point], x: float) -> None:
    """Which stand next to each other on the front, on both sides of the target."""
    edge, found = front(points), at(points, x)
    if found.y is None:
        assert x < edge[0].x or x > edge[-1].x
        return
    assert found.below is not None
    assert found.above is not None
    assert found.below.x <= x <= found.above.x
    assert found.above.y <= found.y <= found.below.y
    assert edge.index(found.above) - edge.index(found.below) in (0, 1)


@given(clouds)
def test_at_a_measured_point_the_value_is_its_own(points: list[Point]) -> None:
    """Exactly, and both neighbours are that point."""
    for point in front(points):
        found = at(points, point.x)
        assert (found.y, found.below, found.above) == (point.y, point, point)


@pytest.mark.parametrize(
    ("x", "y", "below", "above"),
    [
        (35, 750, A, B),
        (40, 700, A, B),
        (65, 350, B, C),
        (20, 900, A, A),
        (80, 100, C, C),
        (19.9, None, None, A),
        (80.1, None, C, None),
    ],
)
def test_a_value_is_read_from_the_line_between_two_points(
    x: float, y: float | None, below: Point | None, above: Point | None
) -> None:
    """Half of the way between 20 and 50 it is half of the way between 900 and 600, whatever lies
    below the front there; beyond its ends there is none, and the nearest point is named."""
    found = at([C, DOMINATED, A, B], x)
    assert (found.y, found.below, found.above) == (y, below, above)


def test_nothing_measured_has_no_value() -> None:
    """And no neighbours."""
    found = at([], 50)
    assert (found.y, found.below, found.above) == (None, None, None)
