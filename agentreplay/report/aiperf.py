"""A run as AIPerf writes it, for tools that read that: a row a request, and an aggregate. Pure.

docs/exports.md says what stands in each field, and what is left out and why.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from agentreplay.errors import AgentReplayError
from agentreplay.metrics.collector import tpot_s, trace_blocks
from agentreplay.metrics.record import Record, input_tokens
from agentreplay.metrics.window import Window
from agentreplay.plan import Plan

PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)

UNITS = {
    "time_to_first_token": "ms",
    "inter_token_latency": "ms",
    "request_latency": "ms",
    "output_token_throughput_per_user": "tokens/sec/user",
    "input_sequence_length": "tokens",
    "output_sequence_length": "tokens",
    "usage_prompt_cache_read_tokens": "tokens",
}
"""Of the metrics of a row."""

WORKER = "worker-0"
"""One process sends everything."""


class Export:
    """The rows of a run, and then their aggregate.

    Of each request a few numbers are kept: those that the aggregate has percentiles of.

    Args:
        plan: The plan of the run.
        window: What counts as measured.
        origin_ns: When the run's clock was 0, in nanoseconds since 1970; None where that isn't
            known.
    """

    def __init__(self, plan: Plan, window: Window, origin_ns: int | None) -> None:
        self._plan = plan
        self._window = window
        self._origin_ns = origin_ns
        self._columns: dict[str, array[float]] = {}
        self._succeeded = 0
        self._errors: Counter[tuple[str, int | None]] = Counter()
        self._examples: dict[tuple[str, int | None], str] = {}
        self._shared_blocks = self._blocks = 0
        self._first_ns: int | None = None
        self._last_ns = 0

    def rows(self, records: Iterable[Record]) -> Iterator[dict[str, Any]]:
        """A row for each request; none for refusals that were waited out.

        Raises:
            AgentReplayError: there are requests, and no telling when they were sent.
        """
        for record in records:
            if record.retry_s is not None:
                continue
            if self._origin_ns is None:
                raise AgentReplayError(
                    "the run can't be exported: run.json has no origin_unix_ns, the time of day "
                    "at which its clock began"
                )
            yield self._row(record, self._origin_ns)

    def _row(self, record: Record, origin_ns: int) -> dict[str, Any]:
        request, error = record.request, record.error
        warmup = request.warmup or record.sent_ns < self._window.open_ns
        timed = warmup or self._window.holds(record.sent_ns)
        metrics = _metrics(record, timed=timed) if error is None else {}
        if not warmup:
            self._keep(record, metrics)
        return {
            "metadata": {
                "session_num": request.lane + request.visit * self._plan.users,
                "x_request_id": request.request_id(self._plan.run_id),
                "x_correlation_id": request.play_id(self._plan.run_id),
                "conversation_id": request.session,
                "turn_index": request.call,
                "worker_id": WORKER,
                "benchmark_phase": "warmup" if warmup else "profiling",
                "credit_issued_ns": origin_ns + request.due_ns,
                "request_start_ns": origin_ns + record.sent_ns,
                "request_end_ns": origin_ns + record.done_ns,
                "was_cancelled": error is not None and error.kind == "cancelled",
            },
            "metrics": {
                name: {"value": value, "unit": UNITS[name]} for name, value in metrics.items()
            },
            "error": error and {"code": error.status, "type": error.kind, "message": error.message},
        }

    def _keep(self, record: Record, metrics: Mapping[str, float]) -> None:
        """What the aggregate needs of a measured request."""
        if self._window.holds(record.sent_ns):
            shared_blocks, blocks = trace_blocks(record)
            self._shared_blocks += shared_blocks
            self._blocks += blocks
        if record.error is not None:
            group = record.error.kind, record.error.status
            self._errors[group] += 1
            self._examples.setdefault(group, record.error.message)
            return
        self._succeeded += 1
        first_ns = self._first_ns
        self._first_ns = record.sent_ns if first_ns is None else min(first_ns, record.sent_ns)
        self._last_ns = max(self._last_ns, record.done_ns)
        for name, value in metrics.items():
            self._columns.setdefault(name, array("d")).append(value)

    def aggregate(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """What the rows come to, all of them having been taken.

        Args:
            value: The run as summary.json holds it.
        """
        figures, verdict = value["metrics"], value["verdict"]
        judged = {
            "submission_valid": verdict["valid"],
            "submission_invalid_reasons": [reason["id"] for reason in verdict["reasons"]],
        }
        duration_s = None if self._first_ns is None else (self._last_ns - self._first_ns) / 1e9
        numbers = {
            "request_count": ("requests", self._succeeded),
            "error_request_count": ("requests", self._errors.total()),
            "request_throughput": ("requests/sec", figures["request_rate_run"]),
            "output_token_throughput": ("tokens/sec", figures["output_token_rate_run"]),
            "total_token_throughput": ("tokens/sec", figures["total_token_rate_run"]),
            "total_isl": ("tokens", self._total("input_sequence_length")),
            "total_osl": ("tokens", self._total("output_sequence_length")),
            "benchmark_duration": ("sec", duration_s),
        }
        found: dict[str, Any] = {
            name: {"unit": unit, **_statistics(self._columns[name])}
            for name, unit in UNITS.items()
            if name in self._columns
        }
        found |= {
            name: {"unit": unit, "avg": number}
            for name, (unit, number) in numbers.items()
            if number is not None
        }
        if self._blocks:
            found["theoretical_prefix_cache_hit"] = {
                "unit": "%",
                "avg": 100 * self._shared_blocks / self._blocks,
                "sum": self._shared_blocks,
                "count": self._blocks,
            }
        return {
            "agentreplay": value["agentreplay"],
            **found,
            "error_summary": [
                {
                    "error_details": {"code": code, "type": kind, "message": self._examples[group]},
                    "count": count,
                }
                for group, count in self._errors.most_common()
                for kind, code in (group,)
            ],
            "was_cancelled": value["ended"] in (None, "interrupted"),
            "start_time": self._time_of(self._first_ns),
            "end_time": self._time_of(self._last_ns if self._succeeded else None),
            **judged,
            "metadata": {
                "scenario": verdict["scenario"],
                "simulated": value["simulated"],
                "dataset": {"hash": verdict["trace_sha256"]},
                **judged,
            },
        }

    def _total(self, name: str) -> int | None:
        return int(sum(self._columns[name])) if name in self._columns else None

    def _time_of(self, at_ns: int | None) -> str | None:
        """An instant of the run as a time of day."""
        if at_ns is None or self._origin_ns is None:
            return None
        return datetime.fromtimestamp((self._origin_ns + at_ns) / 1e9, UTC).isoformat()


def _metrics(record: Record, *, timed: bool) -> dict[str, float]:
    """The metrics of a success; without its times where they belong to no distribution."""
    first, last = record.first_token_ns, record.last_token_ns
    values: dict[str, float | None] = {}
    if timed and first is not None and last is not None:
        per_token_s = tpot_s(record)
        values["time_to_first_token"] = (first - record.sent_ns) / 1e6
        values["request_latency"] = (last - record.sent_ns) / 1e6
        values["inter_token_latency"] = None if per_token_s is None else per_token_s * 1e3
        values["output_token_throughput_per_user"] = per_token_s and 1 / per_token_s
    values["input_sequence_length"] = input_tokens(record)
    values["output_sequence_length"] = record.osl
    values["usage_prompt_cache_read_tokens"] = record.cached
    return {name: value for name, value in values.items() if value is not None}


def _statistics(column: array[float]) -> dict[str, float | int]:
    """Statistics of measured values; percentiles interpolate linearly between closest ranks."""
    data = np.frombuffer(column)
    percentiles = np.percentile(data, PERCENTILES)
    return {
        "avg": float(data.mean()),
        "min": float(data.min()),
        "max": float(data.max()),
        **{f"p{p}": float(at) for p, at in zip(PERCENTILES, percentiles, strict=True)},
        "std": float(data.std()),
        "count": len(column),
    }
