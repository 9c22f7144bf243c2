"""Records to numbers: every metric of docs/metrics.md that a run's records can give. Pure.

Records are read once, as a stream. What was not measured is None, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agentreplay.metrics.collector import Collector, Pace, Visited, union_ns
from agentreplay.metrics.condition import Condition
from agentreplay.metrics.cost import Money, Prices, Tokens, dollars_per_million, tokens_per_dollar
from agentreplay.metrics.distribution import (
    Distribution,
    distribution,
    rates,
    rates_from_times,
)
from agentreplay.metrics.fidelity import Shortfalls, shortfalls
from agentreplay.metrics.record import Record
from agentreplay.metrics.server import Reading, Server, server_of
from agentreplay.metrics.verdict import Circumstances, Limits, Verdict, judge
from agentreplay.metrics.window import Ending, Window
from agentreplay.plan import Plan


@dataclass(frozen=True, slots=True)
class ClockStep:
    """The system's clock was set.

    Attributes:
        from_ns: When it was right last, in the run's time.
        to_ns: When the step was found.
        by_ns: How far it was set forward; below 0 for back.
    """

    from_ns: int
    to_ns: int
    by_ns: int


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """Whether the measuring process kept up.

    Attributes:
        loop_late_share: Share of the sending time in which its loop was over 10 ms late; None
            where that was under a second, which tells nothing.
        loop_late_max_s: The longest delay.
        cpu_share: CPU seconds a second, for each process.
        stamps: Who stamped what arrived: "kernel", "process", or "mixed"; None where nothing
            arrived, or it isn't known.
        read_delay_max_s: How long bytes that the kernel had stamped waited at most to be read;
            None where there were none.
        clock_steps: When the system's clock was set, whose time the kernel stamps with.
    """

    loop_late_share: float | None
    loop_late_max_s: float
    cpu_share: tuple[float, ...]
    stamps: str | None = None
    read_delay_max_s: float | None = None
    clock_steps: tuple[ClockStep, ...] = ()


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failures of one kind, with the first of them as an example."""

    kind: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class PlayResult:
    """What came of one play of a session; seconds are of this run.

    Attributes:
        lane: The lane that played it.
        visit: Number of the lane's visit.
        session: Id of the recorded session.
        index: Its place in the trace.
        begun: How many of its calls came before the play's beginning.
        calls: How many calls the play has.
        succeeded: How many of them succeeded.
        failed: How many did not, those that were cut included.
        seconds: From when the first call was due to the end of the last.
        model_seconds: Of these, while at least one call was under way.
        wait_seconds: Of these, the rest: tools and thinking.
        slowdown: How many times as long as recorded its calls took; None where fewer than three of
            known duration succeeded.
        slowdown_main: The same for the main agent.
        slowdown_subagents: The same for its other agents.
        dollars: What it cost, its warm-up included; None without prices.
    """

    lane: int
    visit: int
    session: str
    index: int
    begun: int
    calls: int
    succeeded: int
    failed: int
    seconds: float
    model_seconds: float
    wait_seconds: float
    slowdown: float | None
    slowdown_main: float | None
    slowdown_subagents: float | None
    dollars: float | None = None


@dataclass(frozen=True, slots=True)
class Warmup:
    """What filling the server's cache took.

    Attributes:
        calls: Calls of one token that were sent.
        succeeded: How many of them succeeded.
        failed: How many of them failed; the rest was cut.
        failure: The words of one failure, the main agent's where there is one.
        input_tokens: Their prompts.
        cached_tokens: What the server found of these; None where it doesn't say.
        seconds: From the first to the end of the last, or to the opening of the window where that
            came before it.
        cut: Calls that were not sent or not answered when its time was over.
        moved_back: Lanes whose first session begins earlier than drawn, since too few calls of it
            followed.
    """

    calls: int
    succeeded: int
    failed: int
    failure: str | None
    input_tokens: int
    cached_tokens: int | None
    seconds: float
    cut: int
    moved_back: int


@dataclass(frozen=True, slots=True)
class Skips:
    """How often what waited was moved forward, and by how many seconds in all."""

    count: int
    seconds: float


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
        warmup: What filling the server's cache took; None where the plan asks for none.
        tree_skips: Idle time of single sessions that was skipped (`Plan.max_tree_idle_s`).
        idle_skips: Idle time of all together that was skipped (`Plan.max_idle_s`).
        plays: What came of each play, in order of lane and visit.
        server: What the server's metrics say; None where they were never read.
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
    warmup: Warmup | None
    tree_skips: Skips
    idle_skips: Skips
    plays: tuple[PlayResult, ...]
    server: Server | None = None


def summarize(
    records: Iterable[Record],
    plan: Plan,
    ending: Ending,
    health: ClientHealth | None = None,
    limits: Limits | None = None,
    dropped_tokens: float | None = None,
    goodput: tuple[Condition, ...] = (),
    money: Money | None = None,
    workers: tuple[Mapping[str, Any], ...] = (),
    readings: Iterable[Reading] = (),
) -> Summary:
    """Compute everything from a run's records, in any order.

    Args:
        records: All records of the run.
        plan: What was to be sent.
        ending: How the run ended.
        health: How the client kept up, where known.
        limits: Where a run stops being valid; the defaults where None.
        dropped_tokens: Share of the drawn tokens that were left out, being too long, where known.
        goodput: Limits on single requests.
        money: What makes money of its figures, where known.
        workers: Where several processes played it, each as end.json says.
        readings: What the server said of itself, in order of time.
    """
    span, money = Window.of(ending), money or Money()
    sums = Collector(span, goodput, money.prices)
    for record in records:
        sums.add(record)
    metrics = _metrics(sums, plan, span, health, money)
    server = server_of(readings, span, ending.done_ns, sums.answered)
    about = Circumstances(
        ended=ending.reason,
        window_s=span.seconds,
        isl_error=_median(sums, "isl_error_all") if plan.history == "recorded" else None,
        osl_error=_median(sums, "osl_error_all"),
        usage_missing=_ratio(sums.counts["without_usage"], sums.counts["succeeded"]),
        dropped_tokens=dropped_tokens,
        warmup_failure=sums.warmup.failure or "",
        warmup_cut=ending.warmup_cut,
        overrides=plan.overrides,
        max_cost=plan.max_cost,
        lost_workers=_lost(workers, plan.users),
        server=server,
    )
    return Summary(
        verdict=judge(metrics, about, limits or Limits()),
        metrics=metrics,
        window=span,
        failures=tuple(
            FailureGroup(kind, count, sums.examples[kind][1])
            for kind, count in sorted(sums.errors.items(), key=lambda found: (-found[1], found[0]))
        ),
        gaps_cut=sums.counts["gaps_cut"],
        gaps_cut_s=sums.cut_s,
        overlong=sums.counts["overlong"],
        live=sums.counts["live"],
        substituted=sums.counts["substituted"],
        after_window=sums.counts["after_window"],
        gaps_binned=sums.gaps.binned,
        shortfalls=shortfalls(sums.found) if sums.found else None,
        warmup=_warmup(sums, ending, span) if plan.warms_up else None,
        tree_skips=Skips(*sums.tree_skips),
        idle_skips=Skips(*sums.idle_skips),
        plays=tuple(
            _play_result(*key, visit, sums.play_dollars.get(key, 0.0) if money.prices else None)
            for key, visit in sorted(sums.visits.items())
        ),
        server=server,
    )


def _lost(workers: Sequence[Mapping[str, Any]], users: int) -> str:
    """Which workers were lost, and what with them, in words; "" where none was."""
    lost = {number: each for number, each in enumerate(workers) if each["lost"] is not None}
    if not lost:
        return ""
    lanes = sum(each["lanes"] for each in lost.values())
    why = "; ".join(f"worker {number}: {each['lost']}" for number, each in lost.items())
    return f"{len(lost)} of {len(workers)} workers, with {lanes} of {users} users: {why}"


def _warmup(sums: Collector, ending: Ending, span: Window) -> Warmup:
    found = sums.warmup
    until_ns = min(span.open_ns, found.last_ns) if found.calls else 0
    return Warmup(
        calls=found.calls,
        succeeded=found.succeeded,
        failed=found.failed,
        failure=found.failure,
        input_tokens=found.input_tokens,
        cached_tokens=found.cached_tokens,
        seconds=(until_ns - found.first_ns) / 1e9,
        cut=ending.warmup_cut,
        moved_back=ending.moved_back,
    )


def _play_result(lane: int, number: int, visit: Visited, dollars: float | None) -> PlayResult:
    return PlayResult(
        lane=lane,
        visit=number,
        session=visit.session,
        index=visit.index,
        begun=visit.begun,
        calls=visit.calls,
        succeeded=visit.succeeded,
        failed=visit.failed,
        seconds=visit.seconds,
        model_seconds=visit.model_seconds,
        wait_seconds=visit.seconds - visit.model_seconds,
        slowdown=visit.pace.slowdown,
        slowdown_main=visit.main.slowdown,
        slowdown_subagents=visit.others.slowdown,
        dollars=dollars,
    )


def _metrics(
    sums: Collector, plan: Plan, span: Window, health: ClientHealth | None, money: Money
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
    whole = [visit for visit in sums.visits.values() if visit.whole and not visit.begun]
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
        "goodput": sums.goodput.share,
        "partial_tokens": counts["partial"],
        "busy": {"refusals": counts["busy"], "waited": sums.busy_s},
        "context_overflow_rate": _ratio(sums.errors["context_overflow"], attempted),
        "sessions": _sessions(sums),
        "session_slowdown": _slowdowns(visit.pace for visit in sums.visits.values()),
        "session_slowdown_main": _slowdowns(visit.main for visit in sums.visits.values()),
        "session_slowdown_subagents": _slowdowns(visit.others for visit in sums.visits.values()),
        "session_seconds": distribution([visit.seconds for visit in whole]),
        "session_model_seconds": distribution([visit.model_seconds for visit in whole]),
        "session_wait_seconds": distribution(
            [visit.seconds - visit.model_seconds for visit in whole]
        ),
        "coverage": {
            "ttft": _covered(span, sums.last_ttft_ns),
            "tpot": _covered(span, sums.last_tpot_ns),
        },
        "concurrency": _concurrency(sums, plan, span),
        "client": {
            "loop_late_share": health.loop_late_share if health else None,
            "loop_late_max": health.loop_late_max_s if health else None,
            "cpu_share": list(health.cpu_share) if health else None,
            "stamps": health.stamps if health else None,
            "read_delay_max": health.read_delay_max_s if health else None,
            "clock_steps": list(map(asdict, health.clock_steps)) if health else [],
            "reconnects": counts["reconnects"],
            "bursts": counts["bursts"],
            "bundled_reads": counts["bundled_reads"],
        },
    }
    metrics |= _money(sums, money, metrics)
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


def _money(sums: Collector, money: Money, metrics: dict[str, Any]) -> dict[str, Any]:
    """By the GPU-hour the tokens of the whole run count, as in published comparisons."""
    per_gpu, per_gpu_run = (
        rate / money.gpus if money.gpus and (rate := metrics[name]) is not None else None
        for name in ("total_token_rate", "total_token_rate_run")
    )
    per_dollar = tokens_per_dollar(per_gpu_run, money.gpu_hour)
    return {
        "total_token_rate_per_gpu": per_gpu,
        "total_token_rate_run_per_gpu": per_gpu_run,
        "tokens_per_dollar": per_dollar,
        "dollars_per_million_tokens": dollars_per_million(per_dollar),
        "bill": _bill(sums, money.prices) if money.prices else None,
    }


def _bill(sums: Collector, prices: Prices) -> dict[str, Any]:
    bill = sums.billed
    parts = {
        "total": bill.tokens,
        "input": Tokens(input=bill.tokens.input - bill.tokens.cached),
        "cached": Tokens(input=bill.tokens.cached, cached=bill.tokens.cached),
        "output": Tokens(output=bill.tokens.output),
        "before_window": bill.early,
        "failed": bill.failed,
    }
    whole = (key for key, visit in sums.visits.items() if visit.whole and not visit.begun)
    return {
        **{
            name: prices.dollars(tokens) if bill.requests else None
            for name, tokens in parts.items()
        },
        "per_session": asdict(distribution([sums.play_dollars[key] for key in whole])),
        "per_request": asdict(distribution(sums.column("dollars"))),
        "predicted": _ratio(bill.predicted, bill.requests),
        "unanswered": bill.unanswered,
    }


def _slowdowns(paces: Iterable[Pace]) -> Distribution:
    return distribution([found for pace in paces if (found := pace.slowdown) is not None])


def _covered(span: Window, last_ns: int | None) -> float | None:
    """The share of the window after which no sample came any more; None without a window."""
    if not span.seconds or last_ns is None:
        return 0.0 if span.seconds else None
    return min(1.0, (last_ns - span.open_ns) / (span.close_ns - span.open_ns))


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
            sums.lane_tokens[lane] / (union_ns(spans) / 1e9)
            for lane, spans in sums.lane_spans.items()
        ]
    )


def _sessions(sums: Collector) -> dict[str, int]:
    plays = Counter(visit.index for visit in sums.visits.values())
    return {
        "started": plays.total(),
        "completed": sum(visit.whole for visit in sums.visits.values()),
        "distinct": len(plays),
        "reused": plays.total() - len(plays),
        "most_plays": max(plays.values(), default=0),
        "calls_unsent": sum(
            visit.calls - visit.sent
            for visit in sums.visits.values()
            if visit.failed and not visit.cancelled
        ),
    }


def _concurrency(sums: Collector, plan: Plan, span: Window) -> dict[str, float | int | None]:
    """Means are over time. A lane is live from its session's first call to its last answer; with
    its first session from the opening of the window on, where that was warmed up."""
    first = dict(sorted(sums.visits, reverse=True))  # number of each lane's first play
    lanes = []
    for key, visit in sums.visits.items():
        lane, number = key
        opened = plan.warms_up and number == first[lane]
        ended = visit.sent == visit.calls or (visit.failed and plan.on_error != "continue")
        last_ns = max(visit.last_ns, sums.warmed.get(key, 0)) if ended else span.close_ns
        lanes.append((span.open_ns if opened else visit.first_ns, last_ns))
    if plan.warms_up:  # of the others nothing was to be sent yet
        lanes += [(span.open_ns, span.close_ns)] * (plan.users - len(first))
    flights = [*sums.flights, *(each for visit in sums.visits.values() for each in visit.flights)]
    if not span.measures_rates:
        return {"lanes_mean": None, "in_flight_mean": None, "in_flight_max": None}
    return {
        "lanes_mean": _mean_open(lanes, span),
        "in_flight_mean": _mean_open(flights, span),
        "in_flight_max": _most_open(flights, span),
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


def _median(sums: Collector, name: str) -> float | None:
    return distribution(sums.column(name)).p50


def _ratio(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None
