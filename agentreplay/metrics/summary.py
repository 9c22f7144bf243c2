"""Records to numbers: every metric of docs/metrics.md that a run's records can give. Pure.

Records are read once, as a stream, and only scalars of each are kept. What was not measured is
None, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentreplay.metrics.distribution import (
    Distribution,
    distribution,
    rates,
    rates_from_times,
)
from agentreplay.metrics.record import Record
from agentreplay.metrics.verdict import Limits, Verdict, judge
from agentreplay.metrics.window import Ending, Window, window
from agentreplay.plan import Plan

SLOWDOWN_CALLS = 3
"""A session with fewer measured calls says nothing about its slowdown."""

GAPS_KEPT = 1_000_000
"""Gaps between chunks are pooled exactly up to here, then in bins of 1 %."""


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """Whether the measuring process kept up.

    Attributes:
        loop_late_share: Share of the sending time in which its loop was over 10 ms late.
        loop_late_max_s: The longest delay.
        cpu_share: CPU seconds a second, for each process.
    """

    loop_late_share: float
    loop_late_max_s: float
    cpu_share: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failures of one kind, with one of them as an example."""

    kind: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run came to.

    Attributes:
        verdict: Whether it can be trusted.
        metrics: By id; docs/metrics.md defines each.
        window: What the rates and distributions are over.
        failures: By kind, most frequent first.
        gaps_cut: How many waits were cut by `Plan.max_gap_s`, of those before measured requests.
        gaps_cut_s: By how many seconds in all.
        overlong: Requests sent longer than recorded, being too short to pay for the template.
        after_window: Measured requests that were sent after the window had closed.
    """

    verdict: Verdict
    metrics: dict[str, Any]
    window: Window
    failures: tuple[FailureGroup, ...]
    gaps_cut: int
    gaps_cut_s: float
    overlong: int
    after_window: int


@dataclass(slots=True)
class _Visit:
    """What is kept of a play of a session."""

    index: int
    calls: int
    succeeded: int = 0
    failed: bool = False
    first_ns: int = 0
    last_ns: int = 0
    timed: int = 0
    latency_s: float = 0.0
    recorded_s: float = 0.0


@dataclass(slots=True)
class _Sums:
    """Scalars of the records, as they go by."""

    columns: dict[str, list[float]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    visits: dict[tuple[int, int], _Visit] = field(default_factory=dict)
    lane_tokens: Counter[int] = field(default_factory=Counter)
    lane_spans: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    flights: list[tuple[int, int]] = field(default_factory=list)
    tokens_in: int = 0
    tokens_out: int = 0
    run_tokens_in: int = 0
    run_tokens_out: int = 0
    run_first_ns: int | None = None
    run_last_ns: int = 0
    cut_s: float = 0.0
    gaps: _Gaps = field(default_factory=lambda: _Gaps())

    def add(self, name: str, value: float | None) -> None:
        if value is not None:
            self.columns.setdefault(name, []).append(value)

    def column(self, name: str) -> list[float]:
        return self.columns.get(name, [])


class _Gaps:
    """Pooled gaps between chunks, in microseconds: exact while they are few, then in 1 % bins."""

    def __init__(self) -> None:
        self._exact: list[NDArray[np.int64]] = []
        self._kept = 0
        self._bins: Counter[int] = Counter()

    def add(self, gaps_us: tuple[int, ...]) -> None:
        if not gaps_us:
            return
        self._exact.append(np.asarray(gaps_us, dtype=np.int64))
        self._kept += len(gaps_us)
        if self._bins or self._kept > GAPS_KEPT:
            values = np.concatenate(self._exact)
            bins = np.round(np.log(np.maximum(values, 1)) / np.log(1.01)).astype(int)
            keys, counts = np.unique(bins, return_counts=True)
            self._bins.update(dict(zip(keys.tolist(), counts.tolist(), strict=True)))
            self._exact, self._kept = [], 0

    @property
    def binned(self) -> bool:
        return bool(self._bins)

    def distribution(self) -> Distribution:
        if not self._bins:
            pooled = np.concatenate(self._exact) if self._exact else np.empty(0)
            return distribution(pooled / 1e6)
        keys = sorted(self._bins)
        values = 1.01 ** np.asarray(keys) / 1e6
        return distribution(np.repeat(values, [self._bins[key] for key in keys]))


def summarize(
    records: Iterable[Record],
    plan: Plan,
    ending: Ending | None,
    health: ClientHealth | None = None,
    limits: Limits | None = None,
    last_ns: int = 0,
) -> Summary:
    """Compute everything from a run's records, in any order.

    Args:
        records: All records of the run.
        plan: What was to be sent.
        ending: How the run ended; None for one that was killed.
        health: How the client kept up, where known.
        limits: Where a run stops being valid; the defaults where None.
        last_ns: For a run that was killed: the last instant that was recorded.
    """
    span = window(plan, ending, last_ns)
    sums = _Sums()
    for record in records:
        _take(sums, record, span)
    metrics = _metrics(sums, plan, span, health)
    interrupted = ending is None or ending.reason == "interrupted"
    return Summary(
        verdict=judge(metrics, interrupted, limits or Limits()),
        metrics=metrics,
        window=span,
        failures=tuple(
            FailureGroup(kind, count, sums.examples[kind])
            for kind, count in sums.errors.most_common()
        ),
        gaps_cut=sums.counts["gaps_cut"],
        gaps_cut_s=sums.cut_s,
        overlong=sums.counts["overlong"],
        after_window=sums.counts["after_window"],
    )


def _take(sums: _Sums, record: Record, span: Window) -> None:
    request, error = record.request, record.error
    failed = error is not None and error.kind != "cancelled"
    if not failed:
        _take_tokens(sums, record, span)
    _take_visit(sums, record)
    sums.flights.append((record.sent_ns, record.done_ns))
    sums.counts["reconnects"] += record.reconnected
    sums.counts["bursts"] += record.burst
    sums.counts["bundled_reads"] += record.bundled_reads
    if record.sent_ns < span.open_ns:
        sums.counts["warmup"] += 1
        return
    sums.counts["attempted"] += 1
    sums.counts["gaps_cut"] += request.gap_cut_s > 0
    sums.cut_s += request.gap_cut_s
    sums.counts["overlong"] += request.overlong > 0
    if error is not None:
        if failed:
            sums.errors[error.kind] += 1
            sums.examples.setdefault(error.kind, error.message)
        else:
            sums.counts["cancelled"] += 1
    else:
        sums.counts["succeeded"] += 1
        sums.run_tokens_in += _isl(record)
        sums.run_tokens_out += record.osl or 0
        first = sums.run_first_ns
        sums.run_first_ns = record.sent_ns if first is None else min(first, record.sent_ns)
        sums.run_last_ns = max(sums.run_last_ns, record.done_ns)
    if not span.holds(record.sent_ns):
        sums.counts["after_window"] += 1
        return
    sums.add("lag", (record.sent_ns - request.due_ns) / 1e9)
    sums.counts["isl"] += request.isl
    sums.counts["reuse"] += request.reuse
    sums.counts["blocks"] += request.isl // request.block
    sums.counts["reuse_blocks"] += request.reuse // request.block
    sums.counts["shared_blocks"] += request.shared // request.block
    if error is None:
        _take_success(sums, record)


def _take_success(sums: _Sums, record: Record) -> None:
    """The distributions over requests."""
    request, osl = record.request, record.osl
    first, last = record.first_token_ns, record.last_token_ns
    assert first is not None
    assert last is not None
    latency_s = (last - record.sent_ns) / 1e9
    sums.add("ttft", (first - record.sent_ns) / 1e9)
    if record.first_visible_ns is not None:
        sums.add("ttft_visible", (record.first_visible_ns - record.sent_ns) / 1e9)
    sums.add("latency", latency_s)
    sums.add("latency_from_due", (last - request.due_ns) / 1e9)
    sums.add("isl", _isl(record))
    sums.add("osl", osl)
    if osl and latency_s > 0:
        sums.add("token_latency", latency_s / osl)
    if osl and osl > 1 and not record.burst and last > first:
        sums.add("tpot", (last - first) / 1e9 / (osl - 1))
        n_first = record.chunk_tokens[0] if record.chunk_tokens else 1
        if osl > n_first:
            sums.add("corrected", (last - first) / 1e9 / (osl - n_first))
    if not record.burst:
        sums.gaps.add(record.chunk_us)
    if record.isl is not None:
        sums.add("isl_error", abs(record.isl - request.isl) / request.isl)
        sums.add("isl_bias", (record.isl - request.isl) / request.isl)
        if record.cached is not None:
            sums.counts["cached"] += record.cached
            sums.counts["cached_isl"] += record.isl
            sums.counts["cached_reuse"] += request.reuse
            sums.counts["cached_planned"] += request.isl
    if request.osl and not record.estimated and osl is not None:
        sums.add("osl_error", abs(osl - request.osl) / request.osl)
        sums.add("osl_bias", (osl - request.osl) / request.osl)


def _take_tokens(sums: _Sums, record: Record, span: Window) -> None:
    """Tokens that arrived inside the window; input counts when its first token comes back."""
    first, last = record.first_token_ns, record.last_token_ns
    if first is None or last is None:
        return
    if span.holds(first):
        sums.tokens_in += _isl(record)
    lane = record.request.lane
    tokens = _output_tokens(record, span)
    sums.tokens_out += tokens
    sums.lane_tokens[lane] += tokens
    low, high = max(first, span.open_ns), min(last, span.close_ns)
    if low < high:
        sums.lane_spans.setdefault(lane, []).append((low, high))


def _output_tokens(record: Record, span: Window) -> int:
    first, last = record.first_token_ns, record.last_token_ns
    assert first is not None
    assert last is not None
    if last < span.open_ns or first >= span.close_ns:
        return 0
    if span.holds(first) and span.holds(last):
        return record.osl or 0
    stamps = first + np.concatenate(([0], np.cumsum(record.chunk_us, dtype=np.int64))) * 1000
    inside = (stamps >= span.open_ns) & (stamps < span.close_ns)
    if record.chunk_tokens is None:
        return int(inside.sum())
    return int(np.asarray(record.chunk_tokens)[inside].sum())


def _take_visit(sums: _Sums, record: Record) -> None:
    request = record.request
    key = request.lane, request.visit
    visit = sums.visits.get(key)
    if visit is None:
        visit = _Visit(request.index, request.calls, first_ns=request.due_ns)
        sums.visits[key] = visit
    visit.first_ns = min(visit.first_ns, request.due_ns)
    visit.last_ns = max(visit.last_ns, record.done_ns)
    if record.error is not None:
        visit.failed = True
        return
    visit.succeeded += 1
    if request.recorded_s is not None and record.last_token_ns is not None:
        visit.timed += 1
        visit.latency_s += (record.last_token_ns - record.sent_ns) / 1e9
        visit.recorded_s += request.recorded_s


def _metrics(sums: _Sums, plan: Plan, span: Window, health: ClientHealth | None) -> dict[str, Any]:
    counts = sums.counts
    attempted, failed = counts["attempted"], sums.errors.total()
    seconds = span.seconds if span.measures_rates and sums.tokens_out else None
    run_s = None
    if sums.run_first_ns is not None and sums.run_last_ns > sums.run_first_ns:
        run_s = (sums.run_last_ns - sums.run_first_ns) / 1e9
    in_window = attempted - counts["after_window"]
    theoretical = _ratio(counts["reuse"], counts["isl"])
    server = _ratio(counts["cached"], counts["cached_isl"])
    reporting = _ratio(counts["cached_reuse"], counts["cached_planned"])
    metrics: dict[str, Any] = {
        "total_token_rate": _ratio(sums.tokens_in + sums.tokens_out, seconds),
        "input_token_rate": _ratio(sums.tokens_in, seconds),
        "output_token_rate": _ratio(sums.tokens_out, seconds),
        "request_rate": _ratio(in_window, seconds),
        "total_token_rate_run": _ratio(sums.run_tokens_in + sums.run_tokens_out, run_s),
        "input_token_rate_run": _ratio(sums.run_tokens_in, run_s),
        "output_token_rate_run": _ratio(sums.run_tokens_out, run_s),
        "request_rate_run": _ratio(counts["succeeded"], run_s),
        "interactivity": rates_from_times(sums.column("tpot")),
        "interactivity_corrected": rates_from_times(sums.column("corrected")),
        "interactivity_normalised": rates_from_times(sums.column("token_latency")),
        "user_output_rate": _user_rates(sums, plan, seconds),
        "user_output_rate_streaming": _streaming_rates(sums, plan, seconds),
        "chunk_gap": sums.gaps.distribution(),
        "prefix_reuse": {
            "theoretical": theoretical,
            "theoretical_blocks": _ratio(counts["reuse_blocks"], counts["blocks"]),
            "trace_blocks": _ratio(counts["shared_blocks"], counts["blocks"]),
            "server": server,
            "captured": _ratio(server, reporting) if server is not None else None,
        },
        "requests": {
            "attempted": attempted,
            "succeeded": counts["succeeded"],
            "failed": failed,
            "cancelled": counts["cancelled"],
            "warmup": counts["warmup"],
        },
        "errors": dict(sorted(sums.errors.items())),
        "error_rate": _ratio(failed, attempted),
        "context_overflow_rate": _ratio(sums.errors["context_overflow"], attempted),
        "sessions": _sessions(sums),
        "session_slowdown": distribution(
            [
                visit.latency_s / visit.recorded_s
                for visit in sums.visits.values()
                if visit.timed >= SLOWDOWN_CALLS and visit.recorded_s
            ]
        ),
        "session_seconds": distribution(
            [
                (visit.last_ns - visit.first_ns) / 1e9
                for visit in sums.visits.values()
                if visit.succeeded == visit.calls
            ]
        ),
        "concurrency": _concurrency(sums, span),
        "client": {
            "loop_late_share": health.loop_late_share if health else None,
            "loop_late_max": health.loop_late_max_s if health else None,
            "cpu_share": list(health.cpu_share) if health else None,
            "reconnects": counts["reconnects"],
            "bursts": counts["bursts"],
            "bundled_reads": counts["bundled_reads"],
        },
    }
    for name in ("ttft", "ttft_visible", "tpot", "latency", "latency_from_due", "lag"):
        metrics[name] = distribution(sums.column(name))
    for name in ("isl", "osl", "isl_error", "osl_error"):
        metrics[name] = distribution(sums.column(name))
    for name in ("isl_bias", "osl_bias"):
        metrics[name] = distribution(sums.column(name)).mean
    return {
        name: asdict(value) if isinstance(value, Distribution) else value
        for name, value in metrics.items()
    }


def _user_rates(sums: _Sums, plan: Plan, seconds: float | None) -> Distribution:
    """Of lanes that are users all the time: those of an open loop come and go."""
    if seconds is None or plan.arrivals:
        return Distribution(0)
    return rates([sums.lane_tokens[lane] / seconds for lane in range(plan.users)])


def _streaming_rates(sums: _Sums, plan: Plan, seconds: float | None) -> Distribution:
    if seconds is None or plan.arrivals:
        return Distribution(0)
    return rates(
        [
            sums.lane_tokens[lane] / (_union_ns(spans) / 1e9)
            for lane, spans in sums.lane_spans.items()
        ]
    )


def _sessions(sums: _Sums) -> dict[str, int]:
    started = len(sums.visits)
    distinct = len({visit.index for visit in sums.visits.values()})
    completed = sum(visit.succeeded == visit.calls for visit in sums.visits.values())
    return {
        "started": started,
        "completed": completed,
        "distinct": distinct,
        "reused": started - distinct,
    }


def _concurrency(sums: _Sums, span: Window) -> dict[str, float | int | None]:
    """Means are over time. A lane is live from its session's first call to its last answer."""
    lanes = [
        (
            visit.first_ns,
            visit.last_ns if visit.failed or visit.succeeded == visit.calls else span.close_ns,
        )
        for visit in sums.visits.values()
    ]
    if not span.measures_rates:
        return {"lanes_mean": None, "in_flight_mean": None, "in_flight_max": None}
    return {
        "lanes_mean": _mean_open(lanes, span),
        "in_flight_mean": _mean_open(sums.flights, span),
        "in_flight_max": _most_open(sums.flights, span),
    }


def _mean_open(spans: list[tuple[int, int]], window: Window) -> float:
    inside = sum(
        max(0, min(stop, window.close_ns) - max(start, window.open_ns)) for start, stop in spans
    )
    return inside / (window.close_ns - window.open_ns)


def _most_open(spans: list[tuple[int, int]], window: Window) -> int:
    edges = []
    for start, stop in spans:
        low, high = max(start, window.open_ns), min(stop, window.close_ns)
        if low < high:
            edges += [(low, 1), (high, -1)]
    most = now = 0
    for _, step in sorted(edges):  # at one instant, what ends goes before what starts
        now += step
        most = max(most, now)
    return most


def _union_ns(spans: list[tuple[int, int]]) -> int:
    total, reached = 0, 0
    for start, stop in sorted(spans):
        total += max(0, stop - max(start, reached))
        reached = max(reached, stop)
    return total


def _isl(record: Record) -> int:
    """Input tokens as the server counted them, else as sent."""
    return record.request.isl + record.request.overlong if record.isl is None else record.isl


def _ratio(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None
