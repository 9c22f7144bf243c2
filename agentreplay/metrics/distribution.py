"""Distributions over measured values: what METRICS in the docs call an object with percentiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PERCENTILES = (50, 75, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Statistics of *n* measured values; None where none was measured.

    Percentiles interpolate linearly between closest ranks. Of a rate, the percentiles run from
    the fast end: p90 is the rate that 90 % reach or exceed, and `min` is the slowest.
    """

    n: int
    mean: float | None = None
    p50: float | None = None
    p75: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    min: float | None = None
    max: float | None = None


def distribution(values: Sequence[float] | NDArray[np.float64]) -> Distribution:
    """Of times and lengths: high percentiles are the large values."""
    data = np.asarray(values, dtype=np.float64)
    if not data.size:
        return Distribution(0)
    return _described(data, np.percentile(data, PERCENTILES))


def rates_from_times(seconds: Sequence[float]) -> Distribution:
    """Of rates that are given as seconds a token (more than 0): p90 is 1 / P90 of the times."""
    data = np.asarray(seconds, dtype=np.float64)
    if not data.size:
        return Distribution(0)
    return _described(1.0 / data, 1.0 / np.percentile(data, PERCENTILES))


def rates(values: Sequence[float]) -> Distribution:
    """Of rates that may be 0: p90 is the 10th percentile from below."""
    data = np.asarray(values, dtype=np.float64)
    if not data.size:
        return Distribution(0)
    return _described(data, np.percentile(data, [100 - p for p in PERCENTILES]))


def _described(data: NDArray[np.float64], percentiles: NDArray[np.float64]) -> Distribution:
    p50, p75, p90, p95, p99 = map(float, percentiles)
    return Distribution(
        n=int(data.size),
        mean=float(data.mean()),
        p50=p50,
        p75=p75,
        p90=p90,
        p95=p95,
        p99=p99,
        min=float(data.min()),
        max=float(data.max()),
    )
