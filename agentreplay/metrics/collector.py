"""The metrics collector: takes records as they go by and keeps a few numbers of each. Pure.

What is kept is enough for `metrics.summary` to compute every metric, in whatever order the records
came.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agentreplay.metrics.condition import Condition
from agentreplay.metrics.cost import Prices, Tokens, billed
from agentreplay.metrics.distribution import Distribution, distribution
from agentreplay.metrics.fidelity import Found
from agentreplay.metrics.goodput import Goodput
from agentreplay.metrics.record import Record, input_tokens, reused_tokens
from agentreplay.metrics.server import Answered
from agentreplay.metrics.window import Window

GAPS_KEPT = 1_000_000
"""Gaps between chunks are pooled exactly up to here, then in bins of 1 %."""


SLOWDOWN_CALLS = 3
"""With fewer calls of known duration nothing is said about a slowdown."""


@dataclass(slots=True)
class Pace:
    """How long successful calls took, and how long when recorded, where that is known.

    Attributes:
        calls: Their number.
        latency_s: From sending to the last token, added up.
        recorded_s: As recorded, added up.
    """

    calls: int = 0
    latency_s: float = 0.0
    recorded_s: float = 0.0

    def __add__(self, other: Pace) -> Pace:
        return Pace(
            self.calls + other.calls,
            self.latency_s + other.latency_s,
            self.recorded_s + other.recorded_s,
        )

    @property
    def slowdown(self) -> float | None:
        """How many times as long as recorded; None where too few are known."""
        if self.calls < SLOWDOWN_CALLS or not self.recorded_s:
            return None
        return self.latency_s / self.recorded_s


@dataclass(slots=True)
class Visited:
    """What is kept of a play of a session.

    Attributes:
        session: The session's id.
        index: The session's place in the trace.
        calls: How many calls the play has.
        begun: How many calls of the session came before the play's beginning.
        sent: How many of the play's calls were sent.
        succeeded: How many of them succeeded.
        failed: How many of them did not, those that were cut included.
        cancelled: How many of them were cut at the end of the run.
        first_ns: When the first was due.
        last_ns: When the last ended.
        flights: From when to when each was under way.
        main: The pace of the main agent.
        others: The pace of the other agents.
    """

    session: str
    index: int
    calls: int
    begun: int
    sent: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    first_ns: int = 0
    last_ns: int = 0
    flights: list[tuple[int, int]] = field(default_factory=list)
    main: Pace = field(default_factory=Pace)
    others: Pace = field(default_factory=Pace)

    @property
    def whole(self) -> bool:
        """Every call of the play succeeded."""
        return self.succeeded == self.calls

    @property
    def seconds(self) -> float:
        """From when the first call was due to the end of the last."""
        return (self.last_ns - self.first_ns) / 1e9

    @property
    def model_seconds(self) -> float:
        """While at least one call was under way."""
        return union_ns(self.flights) / 1e9

    @property
    def pace(self) -> Pace:
        """Of all agents."""
        return self.main + self.others


@dataclass(slots=True)
class WarmedUp:
    """What is kept of the calls that filled the server's cache.

    Attributes:
        calls: How many were sent.
        succeeded: How many of them succeeded.
        failed: How many of them failed.
        failure: The words of one failure: the main agent's first, where there is one, since that
            ends the run.
        input_tokens: Their prompts.
        cached_tokens: What the server found of these, where it says so.
        first_ns: When the first was sent.
        last_ns: When the last ended.
    """

    calls: int = 0
    succeeded: int = 0
    failed: int = 0
    failure: str | None = None
    input_tokens: int = 0
    cached_tokens: int | None = None
    first_ns: int = 0
    last_ns: int = 0
    _failed_first: tuple[bool, int, str] | None = None

    def add(self, record: Record) -> None:
        """Take one."""
        self.first_ns = min(self.first_ns, record.sent_ns) if self.calls else record.sent_ns
        self.last_ns = max(self.last_ns, record.done_ns)
        self.calls += 1
        if record.error is not None:
            if record.error.kind != "cancelled":
                self.failed += 1
                words = f"{record.error.kind}: {record.error.message}"
                found = bool(record.request.agent), record.done_ns, words
                if self._failed_first is None or found < self._failed_first:
                    self._failed_first, self.failure = found, words
            return
        self.succeeded += 1
        self.input_tokens += input_tokens(record)
        if record.cached is not None:
            self.cached_tokens = (self.cached_tokens or 0) + record.cached


@dataclass(slots=True)
class Billed:
    """What is kept of requests that cost money.

    Attributes:
        requests: Their number.
        predicted: How many of them the server said nothing about cached tokens of.
        tokens: Of all.
        early: Of those that were sent before the window opened.
        failed: Of those that failed or were cut.
        unanswered: How many requests failed or were cut without a token, and cost nothing.
    """

    requests: int = 0
    predicted: int = 0
    tokens: Tokens = field(default_factory=Tokens)
    early: Tokens = field(default_factory=Tokens)
    failed: Tokens = field(default_factory=Tokens)
    unanswered: int = 0


class Collector:
    """Numbers of the records of a run.

    Args:
        window: What the rates and distributions are over.
        prices: What tokens cost, where known; without them no request has a price.

    Attributes:
        columns: Values of each distribution over requests, by name.
        counts: Sums of whole numbers, by name.
        errors: Failed requests by kind.
        examples: The first failure of each kind: when it ended, and its words.
        visits: What is kept of each play, by lane and number.
        warmup: What is kept of the calls that filled the server's cache.
        warmed: When the last of them ended, by play.
        lane_tokens: Output tokens that arrived in the window, by lane.
        lane_spans: When answers were streaming in the window, by lane.
        flights: From when to when each request was under way that belongs to no play: refusals of
            a busy server, and the warm-up.
        gaps: Pooled gaps between chunks.
        goodput: How many requests keep within the limits on single ones.
        found: What the server found of each prompt, where it says so.
        answered: What the answers say of tokens, of every request.
        cut_s: Seconds by which waits were cut.
        busy_s: Seconds that were waited for a busy server.
        tree_skips: How often, and by how many seconds in all, what waited in a session was moved
            forward up to a measured call.
        idle_skips: The same for all that waited anywhere.
        last_ttft_ns: The latest first token of the requests whose time to it is measured.
        last_tpot_ns: The latest last token of those whose time per token is measured.
        run_first_ns: When the first successful measured request was sent.
        run_last_ns: When the last of them ended.
        billed: What is kept of requests that cost money.
        play_dollars: What each play cost, its warm-up included, by lane and number.
    """

    def __init__(
        self,
        window: Window,
        limits: tuple[Condition, ...] = (),
        prices: Prices | None = None,
    ) -> None:
        self.window = window
        self.goodput = Goodput(limits)
        self.prices = prices
        self.columns: dict[str, list[float]] = {}
        self.counts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.examples: dict[str, tuple[int, str]] = {}
        self.visits: dict[tuple[int, int], Visited] = {}
        self.lane_tokens: Counter[int] = Counter()
        self.lane_spans: dict[int, list[tuple[int, int]]] = {}
        self.warmup = WarmedUp()
        self.warmed: dict[tuple[int, int], int] = {}
        self.flights: list[tuple[int, int]] = []
        self.gaps = _Gaps()
        self.found: list[Found] = []
        self.answered = Answered()
        self.cut_s = 0.0
        self.busy_s = 0.0
        self.tree_skips = self.idle_skips = (0, 0.0)
        self.last_ttft_ns: int | None = None
        self.last_tpot_ns: int | None = None
        self.run_first_ns: int | None = None
        self.run_last_ns = 0
        self.billed = Billed()
        self.play_dollars: dict[tuple[int, int], float] = {}

    def column(self, name: str) -> list[float]:
        """The values of a distribution; empty where none was measured."""
        return self.columns.get(name, [])

    def _keep(self, name: str, value: float | None) -> None:
        if value is not None:
            self.columns.setdefault(name, []).append(value)

    def add(self, record: Record) -> None:
        """Take a record."""
        request, error = record.request, record.error
        self.answered.add(record)
        if record.retry_s is not None:
            self._add_refusal(record, record.retry_s)
            return
        self.counts["reconnects"] += record.reconnected
        self.counts["bursts"] += record.burst
        self.counts["bundled_reads"] += record.bundled_reads
        self._add_to_bill(record)
        if request.warmup:
            self.counts["warmup"] += 1
            self.warmup.add(record)
            key = request.lane, request.visit
            self.warmed[key] = max(self.warmed.get(key, 0), record.done_ns)
            self.flights.append((record.sent_ns, record.done_ns))
            return
        failed = error is not None and error.kind != "cancelled"
        if not failed:
            self._add_tokens(record)
        self._add_to_visit(record)
        if record.sent_ns < self.window.open_ns:
            self.counts["warmup"] += 1
            return
        self.counts["attempted"] += 1
        self.goodput.add(record, tpot_s(record))
        self.counts["gaps_cut"] += request.gap_cut_s > 0
        self.cut_s += request.gap_cut_s
        self.tree_skips = _one_more(self.tree_skips, request.tree_skip_s)
        self.idle_skips = _one_more(self.idle_skips, request.idle_skip_s)
        self.counts["overlong"] += request.overlong > 0
        self.counts[request.history] += 1
        if error is not None:
            if failed:
                self.errors[error.kind] += 1
                self.counts["partial"] += record.osl or 0
                found = record.done_ns, error.message
                self.examples[error.kind] = min(found, self.examples.get(error.kind, found))
            else:
                self.counts["cancelled"] += 1
        else:
            self.counts["succeeded"] += 1
            self.counts["run_tokens_in"] += input_tokens(record)
            self.counts["run_tokens_out"] += record.osl or 0
            first = self.run_first_ns
            self.run_first_ns = record.sent_ns if first is None else min(first, record.sent_ns)
            self.run_last_ns = max(self.run_last_ns, record.done_ns)
            self._add_lengths(record)
        if not self.window.holds(record.sent_ns):
            self.counts["after_window"] += 1
            return
        not_ours_s = request.behind_s + request.busy_s
        self._keep("lag", (record.sent_ns - request.due_ns) / 1e9 - not_ours_s)
        shared_blocks, blocks = trace_blocks(record)
        self.counts["isl"] += _prompt_tokens(record)
        self.counts["reuse"] += reused_tokens(record)
        self.counts["blocks"] += blocks
        self.counts["reuse_blocks"] += reused_tokens(record) // request.block
        self.counts["shared_blocks"] += shared_blocks
        if error is None:
            self._add_success(record)

    def _add_refusal(self, record: Record, retry_s: float) -> None:
        """A busy server's, which was waited out: the next try stands for the request."""
        self.flights.append((record.sent_ns, record.done_ns))
        if not record.request.warmup and record.sent_ns >= self.window.open_ns:
            self.counts["busy"] += 1
            self.busy_s += retry_s

    def _add_to_bill(self, record: Record) -> None:
        """Of every request, the warm-up's too: what a provider counts."""
        request, tokens, bill = record.request, billed(record), self.billed
        if tokens is None:
            bill.unanswered += 1
            return
        bill.requests += 1
        bill.predicted += record.cached is None
        bill.tokens += tokens
        if request.warmup or record.sent_ns < self.window.open_ns:
            bill.early += tokens
        if record.error is not None:
            bill.failed += tokens
        if self.prices is None:
            return
        key, dollars = (request.lane, request.visit), self.prices.dollars(tokens)
        self.play_dollars[key] = self.play_dollars.get(key, 0.0) + dollars
        if record.error is None and not request.warmup and self.window.holds(record.sent_ns):
            self._keep("dollars", dollars)

    def _add_success(self, record: Record) -> None:
        """The distributions over requests."""
        request, osl = record.request, record.osl
        first, last = record.first_token_ns, record.last_token_ns
        assert first is not None
        assert last is not None
        latency_s = (last - record.sent_ns) / 1e9
        self._keep("ttft", (first - record.sent_ns) / 1e9)
        self.last_ttft_ns = max(first, self.last_ttft_ns or 0)
        if record.first_visible_ns is not None:
            self._keep("ttft_visible", (record.first_visible_ns - record.sent_ns) / 1e9)
        self._keep("latency", latency_s)
        self._keep("latency_from_due", (last - request.due_ns) / 1e9)
        self._keep("isl", input_tokens(record))
        self._keep("osl", osl)
        if osl and latency_s > 0:
            self._keep("token_latency", latency_s / osl)
        if (per_token_s := tpot_s(record)) is not None:
            assert osl is not None
            self._keep("tpot", per_token_s)
            self.last_tpot_ns = max(last, self.last_tpot_ns or 0)
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
                        reused_tokens(record),
                        record.cached,
                        request.history == "live",
                    )
                )
                self.counts["cached"] += record.cached
                self.counts["cached_isl"] += record.isl
                self.counts["cached_reuse"] += reused_tokens(record)
                self.counts["cached_planned"] += _prompt_tokens(record)
        if request.osl and not record.estimated and osl is not None:
            self._keep("osl_error", abs(osl - request.osl) / request.osl)
            self._keep("osl_bias", (osl - request.osl) / request.osl)

    def _add_lengths(self, record: Record) -> None:
        """What the verdict judges: of every measured success, after the window too."""
        request = record.request
        self.counts["without_usage"] += record.isl is None
        if record.isl is not None:
            self._keep("isl_error_all", abs(record.isl - request.isl) / request.isl)
        if request.osl and not record.estimated and record.osl is not None:
            self._keep("osl_error_all", abs(record.osl - request.osl) / request.osl)

    def _add_tokens(self, record: Record) -> None:
        """Tokens that arrived inside the window; input counts when its first token comes back."""
        first, last = record.first_token_ns, record.last_token_ns
        if first is None or last is None:
            return
        if self.window.holds(first):
            self.counts["tokens_in"] += input_tokens(record)
        lane = record.request.lane
        tokens = output_tokens(record, self.window)
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
            calls, begun = request.calls - request.first, request.first
            visit = Visited(request.session, request.index, calls, begun, first_ns=request.due_ns)
            self.visits[key] = visit
        visit.first_ns = min(visit.first_ns, request.due_ns)
        visit.last_ns = max(visit.last_ns, record.done_ns)
        visit.flights.append((record.sent_ns, record.done_ns))
        visit.sent += 1
        if record.error is not None:
            visit.failed += 1
            visit.cancelled += record.error.kind == "cancelled"
            return
        visit.succeeded += 1
        if request.recorded_s is not None and record.last_token_ns is not None:
            pace = visit.others if request.agent else visit.main
            pace.calls += 1
            pace.latency_s += (record.last_token_ns - record.sent_ns) / 1e9
            pace.recorded_s += request.recorded_s


def union_ns(spans: Iterable[tuple[int, int]]) -> int:
    """How long at least one of some spans lasts."""
    total, reached = 0, 0
    for start, stop in sorted(spans):
        total += max(0, stop - max(start, reached))
        reached = max(reached, stop)
    return total


def _one_more(skips: tuple[int, float], skip_s: float) -> tuple[int, float]:
    return (skips[0] + 1, skips[1] + skip_s) if skip_s > 0 else skips


def tpot_s(record: Record) -> float | None:
    """Seconds that each token after the first took; None for a burst and below two tokens."""
    osl, first, last = record.osl, record.first_token_ns, record.last_token_ns
    if first is None or last is None or last <= first or record.burst or not osl or osl < 2:
        return None
    return (last - first) / 1e9 / (osl - 1)


def trace_blocks(record: Record) -> tuple[int, int]:
    """Blocks of a prompt that stood earlier in the recorded session, and all of it."""
    request = record.request
    return request.shared // request.block, _prompt_tokens(record) // request.block


def _prompt_tokens(record: Record) -> int:
    """The prompt that a share of reuse is of: as planned, where that is known beforehand."""
    request = record.request
    return input_tokens(record) if request.history == "live" else request.isl


def output_tokens(record: Record, span: Window) -> int:
    """Output tokens that arrived in the window, of a record with tokens."""
    first, last = record.first_token_ns, record.last_token_ns
    assert first is not None
    assert last is not None
    if last < span.open_ns or first >= span.close_ns:
        return 0
    if span.holds(first) and span.holds(last):
        return record.osl or 0
    stamps, tokens = arrivals(record)
    return int(tokens[(stamps >= span.open_ns) & (stamps < span.close_ns)].sum())


def arrivals(record: Record) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When each chunk of a record with tokens came, and how many tokens it had."""
    assert record.first_token_ns is not None
    after_us = np.concatenate(([0], np.cumsum(record.chunk_us, dtype=np.int64)))
    if record.chunk_tokens is None:
        tokens = np.ones(len(after_us), dtype=np.int64)
    else:
        tokens = np.asarray(record.chunk_tokens, dtype=np.int64)
    return record.first_token_ns + after_us * 1000, tokens


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
