"""Whether a run can be trusted: `valid`, or the reasons against it with their numbers. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a run stops being valid; shares are between 0 and 1.

    Attributes:
        error_rate: Failed / attempted requests.
        context_overflow_rate: Requests refused as too long / attempted.
        cancelled_rate: Requests cut at the drain limit / attempted.
        loop_late_share: Share of the window in which the client's loop was over 10 ms late.
        loop_late_max_s: Longest single delay of the client's loop.
        lag_p99_s: P99 of sent − due.
        osl_error: Median relative error of the output length.
        isl_error: Median relative error of the input length.
    """

    error_rate: float = 0.01
    context_overflow_rate: float = 0.01
    cancelled_rate: float = 0.05
    loop_late_share: float = 0.01
    loop_late_max_s: float = 0.25
    lag_p99_s: float = 0.05
    osl_error: float = 0.05
    isl_error: float = 0.02

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """What can be set."""
        return tuple(field.name for field in fields(cls))


class Reason(NamedTuple):
    """A reason by its id, and in words with its numbers."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of a run; warnings don't make it invalid."""

    valid: bool
    reasons: tuple[Reason, ...]
    warnings: tuple[Reason, ...]


def judge(
    metrics: dict[str, Any], interrupted: bool, limits: Limits, *, lengths: bool = True
) -> Verdict:
    """Judge a run by its metrics (docs/metrics.md names the ids).

    Args:
        metrics: By id.
        interrupted: Whether the run was stopped before its end.
        limits: Where a run stops being valid.
        lengths: Whether input lengths are judged; with the server's own answers in the history
            they are not ours to keep.
    """
    requests = metrics["requests"]
    attempted = requests["attempted"]
    reasons: list[Reason] = []
    warnings: list[Reason] = []
    if interrupted:
        reasons.append(Reason("interrupted", "the run was stopped before its end"))
    if not requests["succeeded"]:
        reasons.append(Reason("nothing_measured", f"none of {attempted} requests succeeded"))
    elif not metrics["ttft"]["n"]:
        what = "no request that was sent in the window succeeded"
        reasons.append(Reason("nothing_measured", what))
    _over(reasons, "error_rate", metrics["error_rate"], limits.error_rate, "of requests failed")
    overflow = metrics["context_overflow_rate"]
    what = "of requests were too long for the model's context"
    _over(reasons, "context_overflow", overflow, limits.context_overflow_rate, what)
    cancelled = requests["cancelled"] / attempted if attempted else None
    if not interrupted:
        what = "of requests were cut at the drain limit"
        _over(reasons, "cut_short", cancelled, limits.cancelled_rate, what)
    if limited := _client_limited(metrics, limits):
        reasons.append(Reason("client_limited", limited))
    what = "is the median error of the output length: the server does not keep to it"
    _over(reasons, "length_not_controlled", metrics["osl_error"]["p50"], limits.osl_error, what)
    what = "is the median error of the input length: prompts differ from the recording"
    drift = metrics["isl_error"]["p50"] if lengths else None
    _over(reasons, "prompt_length_drift", drift, limits.isl_error, what)
    if requests["succeeded"] and not metrics["isl_error"]["n"]:
        what = "the server sends no usage: its input lengths are unknown, output is one a chunk"
        warnings.append(Reason("prompt_usage_missing", what))
    return Verdict(not reasons, tuple(reasons), tuple(warnings))


def _over(reasons: list[Reason], name: str, value: float | None, limit: float, what: str) -> None:
    if value is not None and value > limit:
        reasons.append(Reason(name, f"{value:.1%} {what} (limit {limit:.1%})"))


def _client_limited(metrics: dict[str, Any], limits: Limits) -> str | None:
    client, lag_s = metrics["client"], metrics["lag"]["p99"]
    share, longest_s = client["loop_late_share"], client["loop_late_max"]
    found = []
    if share is not None and share > limits.loop_late_share:
        found.append(f"the loop was over 10 ms late for {share:.1%} of the window")
    if longest_s is not None and longest_s > limits.loop_late_max_s:
        found.append(f"the loop was once {longest_s * 1e3:.0f} ms late")
    if lag_s is not None and lag_s > limits.lag_p99_s:
        found.append(f"1 % of requests were sent over {lag_s * 1e3:.0f} ms after they were due")
    return "this machine was too slow to measure: " + "; ".join(found) if found else None
