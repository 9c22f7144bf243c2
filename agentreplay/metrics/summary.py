"""Records to numbers: every metric of docs/metrics.md that a run's records can give. Pure.

Records are read once, as a stream. What was not measured is None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from agentreplay.metrics.collector import Collector
from agentreplay.metrics.distribution import (
    Distribution,
    distribution,
    rates,
    rates_from_times,
)
from agentreplay.metrics.fidelity import Shortfalls, shortfalls
from agentreplay.metrics.record import Record
from agentreplay.metrics.verdict import Limits, Verdict, judge
from agentreplay.metrics.window import Ending, Window, window
from agentreplay.plan import Plan

SLOWDOWN_CALLS = 3
"""A session with fewer measured calls says nothing about its slowdown."""


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """Whether the measuring process kept up.

    Attributes:
        loop_late_share: Share of the sending time in which its loop was over 10 ms late; None
            where that was under a second, which tells nothing.
        loop_late_max_s: The longest delay.
        cpu_share: CPU seconds a second, for each process.
    """

    loop_late_share: float | None
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
        live: Measured requests whose last assistant's turn was the server's own answer.
        substituted: Those for which it could not go back, and the recorded one was sent.
        after_window: Measured requests that were sent after the window had closed.
        gaps_binned: Gaps between chunks were too many to be kept apart: `chunk_gap` is from bins
            of 1 %.
        shortfalls: Where the server's cache fell short of the prediction; None where it doesn't
            report cached tokens.
    """

    verdict: Verdict
    metrics: dict[str, Any]
    window: Window
    failures: tuple[FailureGroup, ...]
    gaps_cut: int
    gaps_cut_s: float
    overlong: int
    live: int
    substituted: int
    after_window: int
    gaps_binned: bool
    shortfalls: Shortfalls | None


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
    sums = Collector(span)
    for record in records:
        sums.add(record)
    metrics = _metrics(sums, plan, span, health)
    interrupted = ending is None or ending.reason == "interrupted"
    return Summary(
        verdict=judge(metrics, interrupted, limits or Limits(), lengths=plan.history == "recorded"),
        metrics=metrics,
        window=span,
        failures=tuple(
            FailureGroup(kind, count, sums.examples[kind])
            for kind, count in sums.errors.most_common()
        ),
        gaps_cut=sums.counts["gaps_cut"],
        gaps_cut_s=sums.cut_s,
        overlong=sums.counts["overlong"],
        live=sums.counts["live"],
        substituted=sums.counts["substituted"],
        after_window=sums.counts["after_window"],
        gaps_binned=sums.gaps.binned,
        shortfalls=shortfalls(sums.found) if sums.found else None,
    )


def _metrics(
    sums: Collector, plan: Plan, span: Window, health: ClientHealth | None
) -> dict[str, Any]:
    counts = sums.counts
    attempted, failed = counts["attempted"], sums.errors.total()
    seconds = span.seconds if span.measures_rates and counts["tokens_out"] else None
    run_s = None
    if sums.run_first_ns is not None and sums.run_last_ns > sums.run_first_ns:
        run_s = (sums.run_last_ns - sums.run_first_ns) / 1e9
    in_window = attempted - counts["after_window"]
    theoretical = _ratio(counts["reuse"], counts["isl"])
    server = _ratio(counts["cached"], counts["cached_isl"])
    reporting = _ratio(counts["cached_reuse"], counts["cached_planned"])
    metrics: dict[str, Any] = {
        "total_token_rate": _ratio(counts["tokens_in"] + counts["tokens_out"], seconds),
        "input_token_rate": _ratio(counts["tokens_in"], seconds),
        "output_token_rate": _ratio(counts["tokens_out"], seconds),
        "request_rate": _ratio(in_window, seconds),
        "total_token_rate_run": _ratio(counts["run_tokens_in"] + counts["run_tokens_out"], run_s),
        "input_token_rate_run": _ratio(counts["run_tokens_in"], run_s),
        "output_token_rate_run": _ratio(counts["run_tokens_out"], run_s),
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
        "partial_tokens": counts["partial"],
        "busy": {"refusals": counts["busy"], "waited": sums.busy_s},
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


def _user_rates(sums: Collector, plan: Plan, seconds: float | None) -> Distribution:
    """Of lanes that are users all the time: those of an open loop come and go."""
    if seconds is None or plan.arrivals:
        return Distribution(0)
    return rates([sums.lane_tokens[lane] / seconds for lane in range(plan.users)])


def _streaming_rates(sums: Collector, plan: Plan, seconds: float | None) -> Distribution:
    if seconds is None or plan.arrivals:
        return Distribution(0)
    return rates(
        [
            sums.lane_tokens[lane] / (_union_ns(spans) / 1e9)
            for lane, spans in sums.lane_spans.items()
        ]
    )


def _sessions(sums: Collector) -> dict[str, int]:
    started = len(sums.visits)
    distinct = len({visit.index for visit in sums.visits.values()})
    completed = sum(visit.succeeded == visit.calls for visit in sums.visits.values())
    return {
        "started": started,
        "completed": completed,
        "distinct": distinct,
        "reused": started - distinct,
        "calls_unsent": sum(
            visit.calls - visit.sent
            for visit in sums.visits.values()
            if visit.failed and not visit.cancelled
        ),
    }


def _concurrency(sums: Collector, span: Window) -> dict[str, float | int | None]:
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


def _ratio(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None
