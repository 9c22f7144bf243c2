"""Runs against a baseline: what changed, and how sure that is. Pure.

Requests are compared with themselves: times are those of the requests that both runs measured, so
that a run that came less far is not judged by other work. Lanes are what is independent: every
figure is computed again from lanes drawn with replacement, the same ones in both runs, and how
much the change varies between these drawings is its standard error.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import atan, cos, expm1, isfinite, isnan, pi, sin, sqrt, tan
from typing import Any, Literal
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from agentreplay.metrics.collector import output_tokens, tpot_s
from agentreplay.metrics.record import Record, input_tokens
from agentreplay.metrics.window import Window

CONFIDENCE = 0.99
"""Of all figures together: how often no change is claimed of any where there is none."""

RESAMPLES = 2_000
SEED = 42

Kind = Literal["time", "rate", "share"]
"""Times are better when small, rates when large. Of shares, which are of failures, the difference
is told; of the others the ratio."""

HEADLINE: dict[str, Kind] = {
    "interactivity.p90": "rate",
    "interactivity.p50": "rate",
    "ttft.p50": "time",
    "ttft.p95": "time",
    "latency.p95": "time",
    "output_token_rate": "rate",
    "total_token_rate": "rate",
    "error_rate": "share",
}
"""What is compared. Few, since each figure more widens the intervals of all; TPOT is the inverse
of interactivity."""

FAILING = ("worse", "lost")
"""Verdicts of figures that got worse. All verdicts:

`worse`, `better`: a change beyond the tolerance that is no chance; with `slightly`, within it.
`same`: no change is shown, and one beyond the tolerance is ruled out; `unclear`: it is not.
`lost`: BASE has the figure, and NEW has not; `absent`: BASE has not.
"""

_CONTENT = "content of the traces"
_NO_LOAD = ("salt", "overrides")
"""Of a plan, what is new in each run, and what only says in words what other fields hold."""

_CHOSEN = ("project", "model", "min_calls", "sample", "seed")
"""Dates are left out: those of `--since 30d` move with the clock, and what they choose shows in the
number of sessions."""

_CELLS = 500_000  # of a table of drawings × requests that is held at once

_TIMES = ("ttft", "latency", "tpot")
_QUANTILES = {
    "interactivity.p90": ("tpot", 0.9),
    "interactivity.p50": ("tpot", 0.5),
    "ttft.p50": ("ttft", 0.5),
    "ttft.p95": ("ttft", 0.95),
    "latency.p95": ("latency", 0.95),
}

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]


@dataclass(slots=True)
class _Lane:
    tokens_in: int = 0
    tokens_out: int = 0
    attempted: int = 0
    failed: int = 0


class Measured:
    """What is kept of a run's records, in whatever order they come: 56 bytes a request."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._keys = array("q")
        self._times = array("d")
        self._lanes: dict[int, _Lane] = {}

    def add(self, record: Record) -> None:
        """Take a record; what counts is what counts in `metrics.summary`."""
        request, error = record.request, record.error
        if record.retry_s is not None or request.warmup:
            return
        lane = self._lanes.setdefault(request.lane, _Lane())
        failed = error is not None and error.kind != "cancelled"
        first, last = record.first_token_ns, record.last_token_ns
        if not failed and first is not None and last is not None:
            lane.tokens_in += input_tokens(record) if self._window.holds(first) else 0
            lane.tokens_out += output_tokens(record, self._window)
        if record.sent_ns < self._window.open_ns:
            return
        lane.attempted += 1
        lane.failed += failed
        if error is None and self._window.holds(record.sent_ns):
            assert first is not None
            assert last is not None
            name = crc32(request.session.encode())
            self._keys.extend((request.lane, request.visit, request.call, name))
            per_token_s = tpot_s(record)
            self._times.extend(
                (
                    (first - record.sent_ns) / 1e9,
                    (last - record.sent_ns) / 1e9,
                    np.nan if per_token_s is None else per_token_s,
                )
            )

    @property
    def requests(self) -> int:
        """Successful requests that were sent in the window."""
        return len(self._keys) // 4

    @property
    def lanes(self) -> set[int]:
        """Lanes that sent anything."""
        return set(self._lanes)

    def keys(self) -> _Ints:
        """A row for each request: its lane, visit, call and session, which no other has."""
        return np.array(self._keys, dtype=np.int64).reshape(-1, 4)

    def times(self) -> _Floats:
        """A row for each request, with a column for each of `_TIMES`; nan where not measured."""
        return np.array(self._times, dtype=np.float64).reshape(-1, len(_TIMES))

    def sums(self, lanes: Sequence[int]) -> _Floats:
        """A row for each of *lanes*: input and output tokens a second, attempted and failed
        requests; the rates are nan where the run measured none."""
        found = [self._lanes.get(lane, _Lane()) for lane in lanes]
        rows = [(each.tokens_in, each.tokens_out, each.attempted, each.failed) for each in found]
        table = np.array(rows, dtype=np.float64).reshape(-1, 4)
        if self._window.measures_rates and table[:, 1].any():
            table[:, :2] /= self._window.seconds
        else:
            table[:, :2] = np.nan
        return table


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one figure.

    Attributes:
        base: Its value of BASE; None where not measured.
        new: Its value of NEW.
        requests: The requests that it is of, in either run; None for what is not of requests.
        lanes: How many lanes these came from.
        change: Of times and rates (NEW − BASE) / BASE, of shares NEW − BASE.
        low: Where the interval of the change begins; None where one lane tells of none.
        high: Where it ends.
        level: How often an interval made like this holds the true change; more than `CONFIDENCE`,
            since all figures together are to keep to that.
        p: How often chance alone makes a change of this size.
        smallest: Size of a change to the worse that is told from none in every second comparison
            like this; one of half as much again is in 19 of 20.
        verdict: What that comes to, in a word (`FAILING`).
    """

    base: float | None
    new: float | None
    requests: int | None
    lanes: int
    change: float | None
    low: float | None
    high: float | None
    level: float | None
    p: float | None
    smallest: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a comparison came to.

    Attributes:
        changes: By the ids of `HEADLINE`.
        requests: Requests that both sides measured.
        base_requests: All that BASE measured.
        new_requests: All that NEW measured.
        lanes: Lanes of all runs of a side.
    """

    changes: dict[str, Change]
    requests: int
    base_requests: int
    new_requests: int
    lanes: int

    @property
    def failing(self) -> tuple[str, ...]:
        """The figures that got worse, or were lost."""
        return tuple(name for name, each in self.changes.items() if each.verdict in FAILING)


def compare(runs: Sequence[tuple[Measured, Measured]], tolerance: float) -> Comparison:
    """Compare pairs of a baseline and a new run; lanes of further pairs are further lanes.

    Args:
        runs: Each baseline with the run that is held against it.
        tolerance: Share of its value by which a figure may get worse.
    """
    lanes = [
        (number, lane)
        for number, (base, new) in enumerate(runs)
        for lane in sorted(base.lanes | new.lanes)
    ]
    pool = _Pool(*(_Side(side, lanes) for side in zip(*runs, strict=True)))
    once = np.ones((1, len(lanes)), dtype=np.int64)
    base, new = (side[:, 0] for side in pool.figures(once))
    tests = {
        name: _Test(float(effect), float(error), pool.lanes_of(name) - 1)
        for name, effect, error in zip(
            HEADLINE, _effects(base, new), pool.standard_errors(), strict=True
        )
        if isfinite(effect) and isfinite(error) and pool.lanes_of(name) > 1
    }
    levels = _holm({name: test.p for name, test in tests.items()})
    return Comparison(
        changes={
            name: _change(
                HEADLINE[name],
                None if isnan(before) else before,
                None if isnan(after) else after,
                pool.requests_of(name),
                pool.lanes_of(name),
                tests.get(name),
                levels.get(name),
                tolerance,
            )
            for name, before, after in zip(HEADLINE, base.tolist(), new.tolist(), strict=True)
        },
        requests=pool.requests,
        base_requests=sum(run.requests for run, _ in runs),
        new_requests=sum(run.requests for _, run in runs),
        lanes=len(lanes),
    )


def differences(
    base: tuple[Mapping[str, Any], Mapping[str, Any]],
    new: tuple[Mapping[str, Any], Mapping[str, Any]],
) -> list[str]:
    """In what two runs were not the same load on the same kind of server; a line for each.

    Args:
        base: What run.json says of the baseline, and what end.json knows beside how it ended.
        new: The same of the other run.
    """
    loads = [_load(*run) for run in (base, new)]
    fits = [facts.get("fit") or {} for _, facts in (base, new)]
    if any(fit.get("dropped_calls") for fit in fits):
        for load, fit in zip(loads, fits, strict=True):
            load["the model's context, for which calls were left out"] = fit.get("context_tokens")
    found = []
    for what in dict.fromkeys([*loads[0], *loads[1]]):
        before, after = (load.get(what) for load in loads)
        if before != after:
            found.append(f"{what}: {before} and {after}")
        elif what == _CONTENT and before is None:
            found.append(f"{what}: not known")
    return found


def _load(manifest: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """All that decides what is sent, and to what kind of server, by what it is called."""
    plan, trace, endpoint = (manifest.get(name) or {} for name in ("plan", "trace", "endpoint"))
    choice = trace.get("choice") or {}
    return {
        "server": "simulated" if endpoint.get("simulated") else "real",
        _CONTENT: facts.get("trace_sha256"),
        "sessions in the traces": trace.get("sessions"),
        **{f"sessions chosen by {name}": choice.get(name) for name in _CHOSEN},
        **{f"plan {name}": value for name, value in plan.items() if name not in _NO_LOAD},
        "API": endpoint.get("api"),
        "output of the recorded length": endpoint.get("forces_output"),
    }


class _Side:
    """The runs of one side, one below the other.

    Attributes:
        keys: Number of the run, and what `Measured.keys` gives, of each request.
        lanes: The place of its lane among all.
        times: What `Measured.times` gives.
        sums: What `Measured.sums` gives, of all lanes; of rates, shares of the mean over the runs.
    """

    def __init__(self, runs: Sequence[Measured], lanes: Sequence[tuple[int, int]]) -> None:
        place = {lane: n for n, lane in enumerate(lanes)}
        keys = [np.insert(run.keys(), 0, number, axis=1) for number, run in enumerate(runs)]
        self.keys = np.concatenate(keys)
        self.lanes = np.array(
            [place[number, lane] for number, lane in self.keys[:, :2].tolist()], dtype=np.int64
        )
        self.times = np.concatenate([run.times() for run in runs])
        self.sums = np.concatenate(
            [
                run.sums([lane for of, lane in lanes if of == number])
                for number, run in enumerate(runs)
            ]
        ) / np.array([len(runs), len(runs), 1, 1])


class _Pool:
    """Both sides: of each time, the values of the requests that both measured.

    A time of which there is no such request is each side's own, which can be shown, but not
    compared.
    """

    def __init__(self, base: _Side, new: _Side) -> None:
        self._sums = base.sums, new.sums
        common = _in_common(base.keys, new.keys)
        self.requests = len(common[0])
        self._lanes: dict[str, _Ints] = {}
        self._sorted: dict[str, list[tuple[_Floats, _Ints]]] = {}
        for number, column in enumerate(_TIMES):
            values = [side.times[:, number] for side in (base, new)]
            both = ~np.isnan(values[0][common[0]]) & ~np.isnan(values[1][common[1]])
            self._lanes[column] = base.lanes[common[0][both]]
            self._sorted[column] = []
            for side, times, rows in zip((base, new), values, common, strict=True):
                chosen = rows[both] if both.any() else np.flatnonzero(~np.isnan(times))
                chosen = chosen[np.argsort(times[chosen])]
                self._sorted[column].append((times[chosen], side.lanes[chosen]))

    def requests_of(self, name: str) -> int | None:
        """How many requests a figure is of, where it is of requests."""
        return len(self._lanes[_QUANTILES[name][0]]) if name in _QUANTILES else None

    def lanes_of(self, name: str) -> int:
        """How many lanes it comes from."""
        if name in _QUANTILES:
            return len(np.unique(self._lanes[_QUANTILES[name][0]]))
        return len(self._sums[0])

    def figures(self, drawn: _Ints) -> tuple[_Floats, _Floats]:
        """The figures of `HEADLINE` of both sides, a row each, with a column for each row of
        *drawn*, which says how often each lane is drawn. What can't be told is nan."""
        base, new = (self._figures(k, drawn) for k in (0, 1))
        return base, new

    def _figures(self, k: int, drawn: _Ints) -> _Floats:
        tokens_in, tokens_out, attempted, failed = (drawn @ self._sums[k]).T
        found = {"output_token_rate": tokens_out, "total_token_rate": tokens_in + tokens_out}
        with np.errstate(divide="ignore", invalid="ignore"):
            found["error_rate"] = failed / attempted
            for column in _TIMES:
                values, lanes = self._sorted[column][k]
                shares = {name: share for name, (of, share) in _QUANTILES.items() if of == column}
                rows = _quantiles(values, drawn[:, lanes], list(shares.values()))
                for name, row in zip(shares, rows, strict=True):
                    found[name] = 1 / row if HEADLINE[name] == "rate" else row
        return np.array([found[name] for name in HEADLINE])

    def standard_errors(self) -> _Floats:
        """How much each effect varies with the lanes that it is told from."""
        lanes = len(self._sums[0])
        if lanes < 2:
            return np.full(len(HEADLINE), np.nan)
        draws = np.random.default_rng(SEED)
        most = max(len(values) for sides in self._sorted.values() for values, _ in sides)
        size = max(1, _CELLS // max(1, most, lanes))
        found = []
        for start in range(0, RESAMPLES, size):
            rows = min(size, RESAMPLES - start)
            drawn = draws.multinomial(lanes, np.full(lanes, 1 / lanes), size=rows)
            found.append(_effects(*self.figures(drawn)))
        effects = np.concatenate(found, axis=1)
        counts = np.array([self.lanes_of(name) for name in HEADLINE])
        with np.errstate(divide="ignore", invalid="ignore"):
            # Drawings from n lanes vary by a factor of (n - 1) / n less than lanes themselves do.
            errors: _Floats = _spread(effects) * np.sqrt(counts / (counts - 1))
        return errors


def _in_common(base: _Ints, new: _Ints) -> tuple[_Ints, _Ints]:
    """The rows of two tables that are alike: where they are in each."""
    kinds = [("", np.int64)] * base.shape[1]
    before, after = (np.ascontiguousarray(table).view(kinds).ravel() for table in (base, new))
    _, *at = np.intersect1d(before, after, assume_unique=True, return_indices=True)
    return at[0], at[1]


def _effects(base: _Floats, new: _Floats) -> _Floats:
    """What is compared, for each figure of `HEADLINE`: logarithms of ratios, so that to and fro
    are alike, and of shares, which may be 0, differences. What can't be told is nan."""
    shares = [k for k, kind in enumerate(HEADLINE.values()) if kind == "share"]
    with np.errstate(divide="ignore", invalid="ignore"):
        effects = np.log(new / base)
    effects[shares] = new[shares] - base[shares]
    return np.where(np.isfinite(effects), effects, np.nan)


def _quantiles(values: _Floats, weights: _Ints, shares: Sequence[float]) -> list[_Floats]:
    """Quantiles of sorted *values*, each of which is there as often as a row of *weights* says, for
    each row; between the closest ranks by a line, as numpy does it."""
    rows, n = weights.shape
    counts = np.cumsum(weights, axis=1)
    total = counts[:, -1] if n else np.zeros(rows, dtype=np.int64)
    found = []
    # All rows as one ascending list, so that one search does for all.
    offsets = np.arange(rows) * (total.max(initial=0) + 1)
    ascending = (counts + offsets[:, None]).ravel()
    for share in shares:
        rank = share * np.maximum(total - 1, 0)
        low = np.floor(rank).astype(np.int64)
        ends = []
        for k in (low, np.minimum(low + 1, np.maximum(total - 1, 0))):
            at = np.searchsorted(ascending, offsets + k, side="right") - np.arange(rows) * n
            ends.append(values[np.minimum(at, n - 1)] if n else np.full(rows, np.nan))
        row = ends[0] + (rank - low) * (ends[1] - ends[0])
        found.append(np.where(total > 0, row, np.nan))
    return found


def _spread(effects: _Floats) -> _Floats:
    """The standard deviation of each row, without what can't be told."""
    known = ~np.isnan(effects)
    n = known.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = np.where(known, effects, 0).sum(axis=1) / n
        squares = np.where(known, effects - means[:, None], 0) ** 2
        spread: _Floats = np.sqrt(squares.sum(axis=1) / (n - 1))
    return spread


@dataclass(frozen=True, slots=True)
class _Test:
    """An effect, its standard error, and how freely that is estimated (lanes − 1).

    Student's distribution stands in for that of the drawings: from 8 lanes, drawings alone give
    intervals that are a third too narrow, and their far tails would need many more of them.
    """

    effect: float
    error: float
    freedom: int

    @property
    def p(self) -> float:
        """How often chance alone makes an effect of this size, in either direction."""
        if not self.error:
            return 1.0 if not self.effect else 0.0
        angle = atan(abs(self.effect) / self.error / sqrt(self.freedom))
        return max(0.0, 1 - _within(angle, self.freedom))

    def half_width(self, level: float) -> float:
        """Half the width of the interval that holds the true effect as often as *level*."""
        low, high = 0.0, pi / 2
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if _within(middle, self.freedom) < level else (low, middle)
        return self.error * tan(low) * sqrt(self.freedom)


def _within(angle: float, freedom: int) -> float:
    """How much of Student's distribution lies within ±t, with angle = atan(t / √freedom).

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    odd = freedom % 2
    steps = np.arange(1, (freedom - odd) // 2)
    ratios = (2 * steps - 1 + odd) / (2 * steps + odd) * cos(angle) ** 2
    series = sin(angle) * (1 + float(np.cumprod(ratios).sum()))
    if not odd:
        return series
    return 2 / pi * (angle + (series * cos(angle) if freedom > 1 else 0.0))


def _holm(p: Mapping[str, float]) -> dict[str, float]:
    """How sure each interval is to be, so that all together keep to `CONFIDENCE` (Holm 1979): an
    interval excludes no change exactly where Holm's procedure finds one."""
    levels: dict[str, float] = {}
    found, level = True, 0.0
    for place, name in enumerate(sorted(p, key=lambda name: p[name])):
        if found:
            alpha = (1 - CONFIDENCE) / (len(p) - place)
            level = 1 - alpha
            found = p[name] <= alpha
        levels[name] = level
    return levels


def _change(
    kind: Kind,
    base: float | None,
    new: float | None,
    requests: int | None,
    lanes: int,
    test: _Test | None,
    level: float | None,
    tolerance: float,
) -> Change:
    """Put a figure's change into words; *test* is None where it has too few lanes."""
    nothing = Change(base, new, requests, lanes, None, None, None, None, None, None, "absent")
    if base is None:
        return nothing
    if new is None or not lanes:
        return replace(nothing, verdict="lost")
    change = new - base if kind == "share" else new / base - 1 if base else None
    if test is None or level is None or change is None:
        return replace(nothing, change=change, verdict="unclear")
    half = test.half_width(level)
    ends = test.effect - half, test.effect + half
    low, high = ends if kind == "share" else map(expm1, ends)
    smallest = {"time": expm1(half), "rate": -expm1(-half), "share": half}[kind]
    allowed = tolerance * base if kind == "share" else tolerance
    if abs(test.effect) > half:
        slightly = "" if abs(change) > allowed else "slightly "
        worse = (test.effect < 0) == (kind == "rate")
        verdict = slightly + ("worse" if worse else "better")
    else:
        verdict = "same" if -allowed <= low and high <= allowed else "unclear"
    return replace(
        nothing,
        change=change,
        low=low,
        high=high,
        level=level,
        p=test.p,
        smallest=smallest if test.error else None,
        verdict=verdict,
    )
