"""Whether a run can be trusted: `valid`, or the reasons against it with their numbers. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from agentreplay.metrics.server import Count, Server

COUNTS_DIFFER = 0.01
"""Of so many of our tokens the server may count more or fewer without a warning."""


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
        usage_missing: Successful requests of which the server stated no usage.
        dropped_tokens: Tokens of the drawn sessions that were left out, being too long.
        coverage: How far into the window times to first token and per token must reach.
        window_s: Least length of the window.
    """

    error_rate: float = 0.01
    context_overflow_rate: float = 0.01
    cancelled_rate: float = 0.05
    loop_late_share: float = 0.01
    loop_late_max_s: float = 0.25
    lag_p99_s: float = 0.05
    osl_error: float = 0.05
    isl_error: float = 0.02
    usage_missing: float = 1.0
    dropped_tokens: float = 0.5
    coverage: float = 0.0
    window_s: float = 0.0

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """What can be set."""
        return tuple(field.name for field in fields(cls))


LIMITED = {
    "too_short": ("window_s",),
    "error_rate": ("error_rate",),
    "context_overflow": ("context_overflow_rate",),
    "cut_short": ("cancelled_rate",),
    "client_limited": ("loop_late_share", "loop_late_max_s", "lag_p99_s"),
    "length_not_controlled": ("osl_error",),
    "prompt_length_drift": ("isl_error",),
    "too_little_fits": ("dropped_tokens",),
    "coverage": ("coverage",),
    "prompt_usage_missing": ("usage_missing",),
}
"""The reasons that have limits, with the names of these."""


CLOCK_STEPS_SHOWN = 3


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


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a verdict needs beside the metrics.

    Attributes:
        ended: Why the run ended.
        window_s: Length of the window.
        isl_error: Median relative error of the input lengths of all measured requests, those after
            the window too; None where they are not judged, the server's own answers being in the
            history.
        osl_error: The same of the output lengths.
        usage_missing: Share of the measured successes without usage; None without a success.
        dropped_tokens: Share of the drawn tokens that were left out, being too long.
        warmup_failure: Words of a failure in the warm-up.
        warmup_cut: Calls of the warm-up that were not sent or not answered when its time was over.
        overrides: In what the plan differs from the scenario that it names.
        max_cost: Dollars at which the run was to stop; None for no limit.
        lost_workers: Which of several processes were lost, in words; "" where none was.
        server: What the server's metrics say; None where they were never read.
    """

    ended: str
    window_s: float
    isl_error: float | None = None
    osl_error: float | None = None
    usage_missing: float | None = None
    dropped_tokens: float | None = None
    warmup_failure: str = ""
    warmup_cut: int = 0
    overrides: tuple[str, ...] = ()
    max_cost: float | None = None
    lost_workers: str = ""
    server: Server | None = None


def judge(metrics: dict[str, Any], about: Circumstances, limits: Limits) -> Verdict:
    """Judge a run by its metrics (docs/metrics.md names the ids)."""
    requests = metrics["requests"]
    attempted = requests["attempted"]
    reasons: list[Reason] = []
    warnings: list[Reason] = []
    if about.overrides:
        reasons.append(Reason("scenario_override", "; ".join(about.overrides)))
    if about.ended == "interrupted":
        reasons.append(Reason("interrupted", "the run was stopped before its end"))
    if about.lost_workers:
        reasons.append(Reason("worker_lost", about.lost_workers))
    if about.ended == "warmup_failed":
        what = f"a call of the main agent failed in the warm-up: {about.warmup_failure}"
        reasons.append(Reason("warmup_failed", what))
    elif not requests["succeeded"]:
        reasons.append(Reason("nothing_measured", f"none of {attempted} requests succeeded"))
    elif not metrics["ttft"]["n"]:
        what = "no request that was sent in the window succeeded"
        reasons.append(Reason("nothing_measured", what))
    elif about.window_s < limits.window_s:
        what = f"the window was {about.window_s:.0f} s long (limit {limits.window_s:.0f} s)"
        reasons.append(Reason("too_short", what))
    _judge_failures(reasons, metrics, about, limits)
    if limited := _client_limited(metrics, limits):
        reasons.append(Reason("client_limited", limited))
    what = "is the median error of the output length: the server does not keep to it"
    _over(reasons, "length_not_controlled", about.osl_error, limits.osl_error, what)
    what = "is the median error of the input length: prompts differ from the recording"
    _over(reasons, "prompt_length_drift", about.isl_error, limits.isl_error, what)
    what = "of the tokens of drawn sessions were left out: they don't fit the model's context"
    _over(reasons, "too_little_fits", about.dropped_tokens, limits.dropped_tokens, what)
    covered = [share for share in metrics["coverage"].values() if share is not None]
    if requests["succeeded"] and covered and min(covered) < limits.coverage:
        which = " and ".join(
            f"{name.upper()} {share:.1%}" for name, share in metrics["coverage"].items()
        )
        what = f"samples cease within the window, after {which} of it (limit {limits.coverage:.1%})"
        reasons.append(Reason("coverage", what))
    if about.usage_missing:
        what = "of successes came without usage: input lengths unknown, output taken as one a chunk"
        missing = Reason("prompt_usage_missing", f"{about.usage_missing:.1%} {what}")
        (reasons if about.usage_missing > limits.usage_missing else warnings).append(missing)
    if about.warmup_cut:
        what = "calls of the warm-up were not sent or not answered when its time was over"
        warnings.append(Reason("warmup_cut", f"{about.warmup_cut:,} {what}"))
    if steps := metrics["client"]["clock_steps"]:
        said = "; ".join(
            f"by {step['by_ns'] / 1e9:+.3f} s, {step['to_ns'] / 1e9:.1f} s into the run"
            for step in steps[:CLOCK_STEPS_SHOWN]
        )
        times = "once" if len(steps) == 1 else f"{len(steps)} times"
        what = f"the system's clock was set {times}: {said}"
        warnings.append(Reason("clock_step", what))
    if about.ended == "cost":
        what = (
            f"the run was stopped when another call would have cost over $ {about.max_cost:,.10g}"
        )
        warnings.append(Reason("cost_limit", what))
    if about.server is not None:
        _judge_server(warnings, about.server)
    return Verdict(not reasons, tuple(reasons), tuple(warnings))


def _judge_failures(
    reasons: list[Reason], metrics: dict[str, Any], about: Circumstances, limits: Limits
) -> None:
    attempted = metrics["requests"]["attempted"]
    rate = metrics["error_rate"]
    what = "of requests failed"
    # Few failures are too many where one of them ended the run: a refused key, --on-error stop.
    within = rate is not None and rate <= limits.error_rate
    stopped = about.ended == "failures" or (within and about.ended in ("failed", "gave_up"))
    if stopped and rate is not None:
        what += ", and the run was stopped for that"
        reasons.append(Reason("error_rate", f"{rate:.1%} {what}"))
    else:
        _over(reasons, "error_rate", rate, limits.error_rate, what)
    overflow = metrics["context_overflow_rate"]
    what = "of requests were too long for the model's context"
    _over(reasons, "context_overflow", overflow, limits.context_overflow_rate, what)
    cancelled = metrics["requests"]["cancelled"] / attempted if attempted else None
    if about.ended != "interrupted":
        what = "of requests were cut at the drain limit"
        _over(reasons, "cut_short", cancelled, limits.cancelled_rate, what)


def _judge_server(warnings: list[Reason], server: Server) -> None:
    if server.drafts:
        drafted, share = server.drafted_tokens, server.draft_acceptance
        tokens = "tokens" if drafted is None else f"{drafted:,} tokens"
        accepted = "" if share is None else f" and accepted {share:.1%} of them"
        what = (
            f"the server drafted {tokens} by speculative decoding{accepted}: the words of a replay "
            "are drawn at random, so its speed here is not its speed on real text"
        )
        warnings.append(Reason("speculative_on_synthetic_text", what))
    counts = (("input", server.prompt), ("output", server.generated))
    differ = [text for name, count in counts if (text := _differ(name, count))]
    if differ and not server.estimated:
        warnings.append(Reason("server_counts_differ", differ[0]))


def _differ(name: str, count: Count) -> str | None:
    """Words about counts of the server that its answers don't account for."""
    ours, more = count.ours, count.unexplained
    if ours is None or abs(more) <= COUNTS_DIFFER * ours:
        return None
    text = f"the server counted {count.server:,} {name} tokens, its answers to this run {ours:,}"
    if more > 0:
        return f"{text}: someone else used it meanwhile, or something between sent requests again"
    return f"{text}: its metrics are not those of all servers that answered"


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
