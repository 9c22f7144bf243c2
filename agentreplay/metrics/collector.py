"""The metrics collector: takes records as they go by and keeps a few numbers of each. Pure.

What is kept is enough for `metrics.summary` to compute every metric, in whatever order the records
came.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentreplay.metrics.distribution import Distribution, distribution
from agentreplay.metrics.fidelity import Found
from agentreplay.metrics.record import Record
from agentreplay.metrics.window import Window

GAPS_KEPT = 1_000_000
"""Gaps between chunks are pooled exactly up to here, then in bins of 1 %."""


@dataclass(slots=True)
class Visited:
    """What is kept of a play of a session.

    Attributes:
        index: The session's place in the trace.
        calls: How many calls it has.
        sent: How many of them were sent.
        succeeded: How many of them succeeded.
        failed: One of them did not.
        cancelled: One of them was cut at the end of the run.
        first_ns: When the first was due.
        last_ns: When the last ended.
        timed: How many succeeded whose recorded duration is known.
        latency_s: How long those took.
        recorded_s: How long those took when recorded.
    """

    index: int
    calls: int
    sent: int = 0
    succeeded: int = 0
    failed: bool = False
    cancelled: bool = False
    first_ns: int = 0
    last_ns: int = 0
    timed: int = 0
    latency_s: float = 0.0
    recorded_s: float = 0.0


class Collector:
    """Numbers of the records of a run.

    Attributes:
        columns: Values of each distribution over requests, by name.
        counts: Sums of whole numbers, by name.
        errors: Failed requests by kind.
        examples: The words of one failure of each kind.
        visits: What is kept of each play, by lane and number.
        lane_tokens: Output tokens that arrived in the window, by lane.
        lane_spans: When answers were streaming in the window, by lane.
        flights: From when to when each request was under way.
        gaps: Pooled gaps between chunks.
        found: What the server found of each prompt, where it says so.
        cut_s: Seconds by which waits were cut.
        busy_s: Seconds that were waited for a busy server.
        run_first_ns: When the first successful measured request was sent.
        run_last_ns: When the last of them ended.
    """

    def __init__(self, window: Window) -> None:
        self.window = window
        self.columns: dict[str, list[float]] = {}
        self.counts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self.visits: dict[tuple[int, int], Visited] = {}
        self.lane_tokens: Counter[int] = Counter()
        self.lane_spans: dict[int, list[tuple[int, int]]] = {}
        self.flights: list[tuple[int, int]] = []
        self.gaps = _Gaps()
        self.found: list[Found] = []
        self.cut_s = 0.0
        self.busy_s = 0.0
        self.run_first_ns: int | None = None
        self.run_last_ns = 0

    def column(self, name: str) -> list[float]:
        """The values of a distribution; empty where none was measured."""
        return self.columns.get(name, [])

    def _keep(self, name: str, value: float | None) -> None:
        if value is not None:
            self.columns.setdefault(name, []).append(value)

    def add(self, record: Record) -> None:
        """Take a record."""
        request, error = record.request, record.error
        if record.retry_s is not None:
            self._add_refusal(record.sent_ns, record.done_ns, record.retry_s)
            return
        failed = error is not None and error.kind != "cancelled"
        if not failed:
            self._add_tokens(record)
        self._add_to_visit(record)
        self.flights.append((record.sent_ns, record.done_ns))
        self.counts["reconnects"] += record.reconnected
        self.counts["bursts"] += record.burst
        self.counts["bundled_reads"] += record.bundled_reads
        if record.sent_ns < self.window.open_ns:
            self.counts["warmup"] += 1
            return
        self.counts["attempted"] += 1
        self.counts["gaps_cut"] += request.gap_cut_s > 0
        self.cut_s += request.gap_cut_s
        self.counts["overlong"] += request.overlong > 0
        self.counts[request.history] += 1
        if error is not None:
            if failed:
                self.errors[error.kind] += 1
                self.counts["partial"] += record.osl or 0
                self.examples.setdefault(error.kind, error.message)
            else:
                self.counts["cancelled"] += 1
        else:
            self.counts["succeeded"] += 1
            self.counts["run_tokens_in"] += input_tokens(record)
            self.counts["run_tokens_out"] += record.osl or 0
            first = self.run_first_ns
            self.run_first_ns = record.sent_ns if first is None else min(first, record.sent_ns)
            self.run_last_ns = max(self.run_last_ns, record.done_ns)
        if not self.window.holds(record.sent_ns):
            self.counts["after_window"] += 1
            return
        not_ours_s = request.behind_s + request.busy_s
        self._keep("lag", (record.sent_ns - request.due_ns) / 1e9 - not_ours_s)
        isl = input_tokens(record) if request.history == "live" else request.isl
        self.counts["isl"] += isl
        self.counts["reuse"] += _reuse(record)
        self.counts["blocks"] += isl // request.block
        self.counts["reuse_blocks"] += _reuse(record) // request.block
        self.counts["shared_blocks"] += request.shared // request.block
        if error is None:
            self._add_success(record)

    def _add_refusal(self, sent_ns: int, done_ns: int, retry_s: float) -> None:
        """A busy server's, which was waited out: the next try stands for the request."""
        self.flights.append((sent_ns, done_ns))
        if sent_ns >= self.window.open_ns:
            self.counts["busy"] += 1
            self.busy_s += retry_s

    def _add_success(self, record: Record) -> None:
        """The distributions over requests."""
        request, osl = record.request, record.osl
        first, last = record.first_token_ns, record.last_token_ns
        assert first is not None
        assert last is not None
        latency_s = (last - record.sent_ns) / 1e9
        self._keep("ttft", (first - record.sent_ns) / 1e9)
        if record.first_visible_ns is not None:
            self._keep("ttft_visible", (record.first_visible_ns - record.sent_ns) / 1e9)
        self._keep("latency", latency_s)
        self._keep("latency_from_due", (last - request.due_ns) / 1e9)
        self._keep("isl", input_tokens(record))
        self._keep("osl", osl)
        if osl and latency_s > 0:
            self._keep("token_latency", latency_s / osl)
        if osl and osl > 1 and not record.burst and last > first:
            self._keep("tpot", (last - first) / 1e9 / (osl - 1))
            n_first = record.chunk_tokens[0] if record.chunk_tokens else 1
            if osl > n_first:
                self._keep("corrected", (last - first) / 1e9 / (osl - n_first))
        if not record.burst:
            self.gaps.add(record.chunk_us)
        if record.isl is not None:
            self._keep("isl_error", abs(record.isl - request.isl) / request.isl)
            self._keep("isl_bias", (record.isl - request.isl) / request.isl)
            if record.cached is not None:
                self.found.append(
                    Found(
                        record.sent_ns,
                        first,
                        (request.lane, request.visit),
                        request.session,
                        request.call,
                        request.block,
                        _reuse(record),
                        record.cached,
                        request.history == "live",
                    )
                )
                self.counts["cached"] += record.cached
                self.counts["cached_isl"] += record.isl
                self.counts["cached_reuse"] += _reuse(record)
                planned = record.isl if request.history == "live" else request.isl
                self.counts["cached_planned"] += planned
        if request.osl and not record.estimated and osl is not None:
            self._keep("osl_error", abs(osl - request.osl) / request.osl)
            self._keep("osl_bias", (osl - request.osl) / request.osl)

    def _add_tokens(self, record: Record) -> None:
        """Tokens that arrived inside the window; input counts when its first token comes back."""
        first, last = record.first_token_ns, record.last_token_ns
        if first is None or last is None:
            return
        if self.window.holds(first):
            self.counts["tokens_in"] += input_tokens(record)
        lane = record.request.lane
        tokens = _output_tokens(record, self.window)
        self.counts["tokens_out"] += tokens
        self.lane_tokens[lane] += tokens
        low, high = max(first, self.window.open_ns), min(last, self.window.close_ns)
        if low < high:
            self.lane_spans.setdefault(lane, []).append((low, high))

    def _add_to_visit(self, record: Record) -> None:
        request = record.request
        key = request.lane, request.visit
        visit = self.visits.get(key)
        if visit is None:
            visit = Visited(request.index, request.calls, first_ns=request.due_ns)
            self.visits[key] = visit
        visit.first_ns = min(visit.first_ns, request.due_ns)
        visit.last_ns = max(visit.last_ns, record.done_ns)
        visit.sent += 1
        if record.error is not None:
            visit.failed = True
            visit.cancelled = visit.cancelled or record.error.kind == "cancelled"
            return
        visit.succeeded += 1
        if request.recorded_s is not None and record.last_token_ns is not None:
            visit.timed += 1
            visit.latency_s += (record.last_token_ns - record.sent_ns) / 1e9
            visit.recorded_s += request.recorded_s


def input_tokens(record: Record) -> int:
    """Input tokens as the server counted them, else as sent."""
    return record.request.isl + record.request.overlong if record.isl is None else record.isl


def _reuse(record: Record) -> int:
    """Leading tokens that the server had seen: what it generated may be fewer as a prompt."""
    request = record.request
    return min(request.reuse, input_tokens(record)) if request.history == "live" else request.reuse


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
