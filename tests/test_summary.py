"""Records to numbers: the definitions of docs/metrics.md by worked examples."""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import record

from agentreplay.metrics.record import Failure, Record
from agentreplay.metrics.summary import ClientHealth, ClockStep, Skips, Summary, Warmup, summarize
from agentreplay.metrics.verdict import Limits
from agentreplay.metrics.window import Ending, Reason
from agentreplay.plan import Plan

PLAN = Plan(users=2, duration_s=10)
ENDING = Ending("duration", 10_000_000_000, 12_000_000_000)
FINE = ClientHealth(0.0, 0.001, (0.1,))


def metrics(*records: Record, plan: Plan = PLAN, ending: Ending = ENDING) -> dict[str, Any]:
    return summarize(records, plan, ending, FINE).metrics


def summary(*records: Record) -> Summary:
    return summarize(records, PLAN, ENDING, FINE)


def test_a_single_token_has_no_tpot() -> None:
    """With fewer than two tokens a rate is not measured, never 0 and never infinite."""
    found = metrics(record([100]))
    assert found["tpot"]["n"] == found["interactivity"]["n"] == 0
    assert found["interactivity"]["p90"] is None
    assert found["ttft"]["n"] == 1


def test_p90_of_a_rate_is_what_ninety_percent_reach() -> None:
    """P90 interactivity is 1 / P90(TPOT), and min is the slowest."""
    rows = [record([0, 100 + 10 * n], [1, 10]) for n in range(11)]  # TPOT 10 … 20 ms
    found = metrics(*rows)["interactivity"]
    assert found["p90"] == pytest.approx(1 / 0.019)
    assert found["p50"] == pytest.approx(1 / 0.015)
    assert found["min"] == pytest.approx(50)
    assert found["max"] == pytest.approx(100)


def test_a_request_belongs_to_the_window_in_which_it_was_sent() -> None:
    """A request sent during the ramp is warm-up wherever it ends; its tokens count."""
    ending = replace(ENDING, opened_ns=1_000_000_000)
    found = metrics(record([900, *range(1100, 2100, 100)]), ending=ending)
    assert found["requests"]["warmup"] == 1
    assert found["requests"]["attempted"] == 0
    assert found["ttft"]["n"] == 0
    assert found["output_token_rate"] == pytest.approx(10 / 9)


def test_a_token_belongs_to_the_window_in_which_it_arrived() -> None:
    """Of a stream that goes on after the end, the tokens before the end count."""
    found = metrics(record([9000, 9500, 10_000, 10_500]))
    assert found["output_token_rate"] == pytest.approx(2 / 10)
    assert found["input_token_rate"] == pytest.approx(100 / 10)


def test_bundles_that_straddle_the_end_are_split_by_their_tokens() -> None:
    """A chunk of 5 tokens inside and one of 7 outside: 5 count."""
    found = metrics(record([9000, 11_000], [5, 7]))
    assert found["output_token_rate"] == pytest.approx(0.5)


def test_failures_give_no_tokens_and_stand_beside_the_latencies() -> None:
    """A failed request counts as attempted and failed by kind; its partial tokens nowhere."""
    failed = record([100, 200], error=Failure("error_event", 200, "overloaded"))
    found = summary(failed, record([100, 200], visit=1))
    assert found.metrics["requests"] == {
        "attempted": 2,
        "succeeded": 1,
        "failed": 1,
        "cancelled": 0,
        "warmup": 0,
    }
    assert found.metrics["errors"] == {"error_event": 1}
    assert found.metrics["error_rate"] == 0.5
    assert found.metrics["output_token_rate"] == pytest.approx(0.2)
    assert found.failures[0].example == "overloaded"
    assert [reason.id for reason in found.verdict.reasons] == ["error_rate"]


def test_a_window_under_a_second_gives_no_rates() -> None:
    """The whole-run rates stand where the window is too short."""
    ending = Ending("work", 900_000_000, 900_000_000)
    found = metrics(record([100, 500]), ending=ending)
    assert found["output_token_rate"] is None
    assert found["output_token_rate_run"] == pytest.approx(2 / 0.5)


def test_run_rates_are_over_first_sent_to_last_end() -> None:
    """Σ(isl + osl) of successes / (max done − min sent), as AgentX has it."""
    found = metrics(
        record([1500, 2000], sent_ms=1000),
        record([4000, 5000], sent_ms=3000, visit=1),
    )
    assert found["total_token_rate_run"] == pytest.approx((200 + 4) / 4)


def test_a_user_is_a_lane_and_an_idle_one_counts() -> None:
    """Two lanes of which one stays silent: its rate is 0 and is in the distribution."""
    found = metrics(record([1000, 2000, 3000]))
    assert found["user_output_rate"]["n"] == 2
    assert found["user_output_rate"]["max"] == pytest.approx(0.3)
    assert found["user_output_rate"]["min"] == 0


def test_streaming_rate_is_over_the_union_of_streams() -> None:
    """Two overlapping streams of one lane, [1, 3] and [2, 4] s with 3 tokens each: 6 in 3 s."""
    found = metrics(record([1000, 2000, 3000]), record([2000, 3000, 4000], call=1))
    assert found["user_output_rate_streaming"]["p50"] == pytest.approx(2.0)


def test_reuse_by_tokens_and_blocks() -> None:
    """Reuse is over all requests of the window; captured compares what the server reports."""
    found = metrics(
        record([100], isl=100, reuse=0, cached=0),
        record([100], isl=100, reuse=80, shared=80, cached=60, call=1),
    )["prefix_reuse"]
    assert found["theoretical"] == pytest.approx(0.4)
    assert found["theoretical_blocks"] == pytest.approx(8 / 20)
    assert found["trace_blocks"] == pytest.approx(8 / 20)
    assert found["server"] == pytest.approx(0.3)
    assert found["captured"] == pytest.approx(0.75)


def test_a_server_that_reports_no_cached_tokens_is_not_zero() -> None:
    """Without cached tokens the server's reuse is None."""
    found = metrics(record([100], reuse=50))["prefix_reuse"]
    assert found["server"] is None
    assert found["captured"] is None


def test_lengths_are_held_against_the_recording() -> None:
    """Errors are absolute and relative, biases signed; recorded zeros are left out."""
    found = metrics(
        record([100], isl=100, isl_served=102, osl=9, osl_recorded=10),
        record([100], isl=100, isl_served=99, osl=1, osl_recorded=0, call=1),
    )
    assert found["isl_error"]["max"] == pytest.approx(0.02)
    assert found["isl_bias"] == pytest.approx(0.005)
    assert found["osl_error"]["n"] == 1
    assert found["osl_bias"] == pytest.approx(-0.1)


def test_slowdown_needs_three_measured_calls() -> None:
    """Three calls of 2 s that took 1 s when recorded: slowdown 2; two calls say nothing."""
    calls = [
        record([2000 + n], sent_ms=n, call=n, calls=3, recorded_s=1.0, lane=lane)
        for lane, count in ((0, 3), (1, 2))
        for n in range(count)
    ]
    found = metrics(*calls)["session_slowdown"]
    assert found["n"] == 1
    assert found["p50"] == pytest.approx(2.0)


def test_sessions_are_counted_by_play_and_by_name() -> None:
    """Three plays of two sessions, one of them not finished."""
    found = metrics(
        record([100], index=0),
        record([100], index=0, visit=1),
        record([100], index=1, lane=1, calls=2),
    )["sessions"]
    assert found == {
        "started": 3,
        "completed": 2,
        "distinct": 2,
        "reused": 1,
        "most_plays": 2,
        "calls_unsent": 0,
    }


def test_calls_that_a_failure_kept_from_being_sent_are_counted() -> None:
    """Of a play of five calls whose second failed, three were not sent; the end of a run is no
    failure."""
    cut = Failure("cancelled", None, "cut")
    found = metrics(
        record([100], calls=5),
        record([100], calls=5, call=1, error=Failure("timeout", None, "late")),
        record([100], calls=5, lane=1, error=cut),
    )["sessions"]
    assert found["calls_unsent"] == 3


def test_concurrency_is_a_mean_over_time() -> None:
    """One request of 5 s in a window of 10 s: half a request in flight, one lane for 5 s."""
    found = metrics(record([5000]))["concurrency"]
    assert found == {"lanes_mean": 0.5, "in_flight_mean": 0.5, "in_flight_max": 1}


def test_a_run_that_never_opened_measured_nothing() -> None:
    """All its requests were warm-up, and there is no rate."""
    ending = Ending("interrupted", 2_000_000_000, 2_000_000_000, None)
    found = metrics(record([500]), ending=ending)
    assert found["requests"]["warmup"] == 1
    assert found["requests"]["attempted"] == 0
    assert found["output_token_rate"] is None


def test_cut_waits_are_added_up() -> None:
    """How many waits were cut, and by how much in all."""
    found = summary(record([100], gap_cut_s=25.0), record([100], call=1), record([9], gap_cut_s=5))
    assert (found.gaps_cut, found.gaps_cut_s) == (2, 30.0)


def test_a_clock_that_was_set_is_a_warning() -> None:
    """The run stays valid; how far the clock was set is said, and when."""
    steps = (ClockStep(3 * 10**9, 4 * 10**9, -2_500_000), ClockStep(5 * 10**9, 6 * 10**9, 10**12))
    health = replace(FINE, stamps="mixed", clock_steps=steps)
    found = summarize([record([100, 200])], PLAN, ENDING, health)
    assert found.verdict.valid
    assert [warning.text for warning in found.verdict.warnings] == [
        "the system's clock was set 2 times: by -0.003 s, 4.0 s into the run; by +1000.000 s, "
        "6.0 s into the run"
    ]
    assert found.metrics["client"]["clock_steps"][0] == asdict(steps[0])


@pytest.mark.parametrize(
    ("health", "lag_ms", "limited"),
    [
        (ClientHealth(0.0, 0.02, (0.1,)), 0, False),
        (ClientHealth(0.011, 0.02, (0.1,)), 0, True),
        (ClientHealth(0.0, 0.3, (0.1,)), 0, True),
        (ClientHealth(0.0, 0.02, (0.1,)), 60, True),
    ],
)
def test_a_client_that_does_not_keep_up_makes_the_run_invalid(
    health: ClientHealth, lag_ms: int, limited: bool
) -> None:
    """Late loop for over 1 % of the window, once over 250 ms, or P99 lag over 50 ms."""
    row = record([500], sent_ms=100, due_ms=100 - lag_ms)
    verdict = summarize([row], PLAN, ENDING, health).verdict
    assert ("client_limited" in [reason.id for reason in verdict.reasons]) is limited


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([record([9], isl_served=103)], "prompt_length_drift"),
        ([record([9], osl=90, osl_recorded=100)], "length_not_controlled"),
        ([record([9]), record([9], error=Failure("cancelled", None, "cut"))], "cut_short"),
        (
            [record([9]), record([], error=Failure("context_overflow", 400, "long"))],
            "context_overflow",
        ),
    ],
)
def test_reasons_against_a_run(rows: list[Record], reason: str) -> None:
    """Each rule of the verdict has its case."""
    assert reason in [found.id for found in summary(*rows).verdict.reasons]


def any_records(source: random.Random, count: int, *, warmup: bool = False) -> list[Record]:
    """Records of two lanes: successes, failures, what was cut, and refusals of a busy server."""
    rows = []
    for n in range(count):
        chunks_ms = sorted(source.sample(range(12_000), source.randint(1, 6)))
        failed = source.choice([None, None, "http_5xx", "timeout", "cancelled"])
        error = Failure(failed, None, source.choice("abc")) if failed else None
        visit = source.randint(0, 3)
        row = record(
            [] if error else chunks_ms,
            sent_ms=chunks_ms[0] - source.randint(0, chunks_ms[0]),
            done_ms=chunks_ms[-1] + source.randint(0, 9),
            lane=source.randint(0, 1),
            visit=visit,
            call=n,
            calls=count,
            first=visit % 2,
            agent=source.choice(["", "sub"]),
            isl_served=source.choice([None, 100, 107]),
            cached=source.randint(0, 90),
            reuse=source.randint(0, 10) * 10,
            recorded_s=source.choice([None, 0.5, 2.0]),
            gap_cut_s=source.choice([0.0, 1.5]),
            tree_skip_s=source.choice([0.0, 0.5]),
            idle_skip_s=source.choice([0.0, 0.25]),
            warmup=warmup,
            error=error,
            retry_s=1.0 if error and source.random() < 0.2 else None,
        )
        rows.append(row)
    return rows


@given(st.randoms(use_true_random=False), st.integers(1, 40), st.integers(0, 10))
def test_the_order_of_records_does_not_matter(
    source: random.Random, count: int, warmup: int
) -> None:
    """A summary depends on what was recorded, not on the order in which it was written."""
    rows = any_records(source, count) + any_records(source, warmup, warmup=True)
    shuffled = rows[:]
    source.shuffle(shuffled)
    plan = replace(PLAN, start=(0.0, 1.0))
    one, other = (summarize(each, plan, OPENED, FINE) for each in (rows, shuffled))
    # Sums of floats in another order differ in their last digits.
    assert flat(one.metrics) == pytest.approx(flat(other.metrics), rel=1e-9)
    assert flat([asdict(each) for each in one.plays]) == pytest.approx(
        flat([asdict(each) for each in other.plays]), rel=1e-9
    )
    assert (one.verdict, one.failures, one.warmup) == (other.verdict, other.failures, other.warmup)
    assert (one.tree_skips, one.idle_skips) == (other.tree_skips, other.idle_skips)


@given(st.randoms(use_true_random=False), st.integers(1, 20), st.integers(1, 20))
def test_the_warm_up_enters_no_measured_figure(
    source: random.Random, count: int, warmup: int
) -> None:
    """Whatever calls of one token brought, and whenever they were sent: all that is measured, and
    the verdict, is what it is without them. What they are counted in says so."""
    rows, warm = any_records(source, count), any_records(source, warmup, warmup=True)
    plan = replace(PLAN, start=(0.0, 1.0))
    without, among = (summarize(each, plan, OPENED, FINE) for each in (rows, rows + warm))
    for found in (without.metrics, among.metrics):
        del found["requests"]["warmup"], found["concurrency"], found["client"]
    assert replace(among, warmup=None) == replace(without, warmup=None)


def flat(value: Any, path: str = "") -> dict[str, float]:
    """The numbers of nested metrics by their paths; what was not measured is -1."""
    if isinstance(value, dict):
        return {
            k: v for name, part in value.items() for k, v in flat(part, f"{path}.{name}").items()
        }
    if isinstance(value, list):
        return {k: v for n, part in enumerate(value) for k, v in flat(part, f"{path}.{n}").items()}
    if isinstance(value, str):
        return {f"{path}={value}": 0.0}
    return {path: -1.0 if value is None else value}


# --- Plays ----------------------------------------------------------------------------------------


def test_a_play_has_its_result() -> None:
    """From 1 s (due) to 9 s: calls from 2 to 4, 3 to 5 and 7 to 9 s are 5 s of the model."""
    (found,) = summary(
        record([4000], sent_ms=2000, due_ms=1000, calls=4, recorded_s=1.0, index=3),
        record([5000], sent_ms=3000, call=1, calls=4, index=3),
        record([9000], sent_ms=7000, call=2, calls=4, recorded_s=0.5, index=3),
        record([], sent_ms=8000, call=3, calls=4, index=3, error=Failure("reset", None, "gone")),
    ).plays
    assert (found.lane, found.visit, found.session, found.index) == (0, 0, "s3", 3)
    assert (found.begun, found.calls, found.succeeded, found.failed) == (0, 4, 3, 1)
    assert (found.seconds, found.model_seconds, found.wait_seconds) == (8.0, 5.0, 3.0)
    assert found.slowdown is None  # of two calls only it is known how long they took


def test_slowdowns_of_main_agent_and_subagents_stand_apart() -> None:
    """Three calls each, of 2 s and of 6 s, that took 1 s: 2 and 6, and 4 for all together."""
    rows = [
        record(
            [2000 if agent == "" else 6000],
            call=n,
            calls=6,
            recorded_s=1.0,
            agent=agent,
            lane=lane,
        )
        for lane, agents in enumerate([["", "a", "", "b", "", "a"], ["a", "a"]])
        for n, agent in enumerate(agents)
    ]
    found = summary(*rows)
    first, second = found.plays
    assert (first.slowdown_main, first.slowdown_subagents, first.slowdown) == (2.0, 6.0, 4.0)
    assert (second.slowdown_main, second.slowdown_subagents, second.slowdown) == (None,) * 3
    assert found.metrics["session_slowdown_main"]["n"] == 1
    assert found.metrics["session_slowdown_subagents"]["p50"] == 6.0
    assert found.metrics["session_slowdown"]["p50"] == 4.0


def test_whole_sessions_only_have_a_length() -> None:
    """A play that began in the middle, failed or did not end is none."""
    found = summary(
        *(record([3000], sent_ms=1000, call=n, calls=2) for n in (0, 1)),
        *(record([9000], call=n, calls=3, first=1, lane=1) for n in (1, 2)),
        record([8000], calls=2, visit=1),
        record([], visit=2, error=Failure("timeout", None, "late")),
    )
    for name, seconds in (("seconds", 2.0), ("model_seconds", 2.0), ("wait_seconds", 0.0)):
        assert found.metrics[f"session_{name}"]["n"] == 1
        assert found.metrics[f"session_{name}"]["max"] == seconds
    assert [(play.begun, play.calls, play.succeeded) for play in found.plays] == [
        (0, 2, 2),
        (0, 2, 1),
        (0, 1, 0),
        (1, 2, 2),
    ]
    assert found.metrics["sessions"]["completed"] == 2  # the one from the middle is, too


def test_skipped_idle_time_is_added_up() -> None:
    """Of measured calls, session by session and of all together apart."""
    ending = replace(ENDING, opened_ns=1_000_000_000)
    rows = [
        record([100], tree_skip_s=99.0, idle_skip_s=99.0),
        record([2000], sent_ms=1500, call=1, tree_skip_s=2.0),
        record([2000], sent_ms=1500, call=2, tree_skip_s=3.0, idle_skip_s=4.0),
        record([2000], sent_ms=1500, call=3),
    ]
    found = summarize(rows, PLAN, ending, FINE)
    assert (found.tree_skips, found.idle_skips) == (Skips(2, 5.0), Skips(1, 4.0))


# --- The warm-up ----------------------------------------------------------------------------------

WARM = replace(PLAN, start=(0.25, 0.75))
OPENED = replace(ENDING, opened_ns=3_000_000_000)


def test_a_warm_up_has_its_own_figures() -> None:
    """Its calls, prompts and cache; from its first call to the opening of the window."""
    rows = [
        record([2000], sent_ms=1000, warmup=True, isl_served=640, cached=64),
        record([4000], sent_ms=2500, warmup=True, call=1, isl_served=None, isl=100),
        record([], sent_ms=2000, warmup=True, agent="a", error=Failure("timeout", None, "late")),
        record([], sent_ms=2000, warmup=True, call=2, error=Failure("cancelled", None, "cut")),
    ]
    found = summarize(rows, WARM, replace(OPENED, moved_back=2, warmup_cut=1), FINE)
    assert found.warmup == Warmup(
        calls=4,
        succeeded=2,
        failed=1,
        failure="timeout: late",
        input_tokens=740,
        cached_tokens=64,
        seconds=2.0,
        cut=1,
        moved_back=2,
    )
    assert found.metrics["requests"]["warmup"] == 4
    assert [reason.id for reason in found.verdict.warnings] == ["warmup_cut"]


def test_a_warm_up_that_never_ended_lasted_until_its_last_answer() -> None:
    """Where the window never opened."""
    ending = Ending("interrupted", 9_000_000_000, 9_000_000_000, None)
    rows = [record([2000], sent_ms=500, warmup=True), record([1500], warmup=True)]
    found = summarize(rows, WARM, ending).warmup
    assert found is not None
    assert (found.seconds, found.cached_tokens, found.failure) == (2.0, None, None)


def test_a_plan_without_a_warm_up_has_no_figures_of_one() -> None:
    """They are absent, not 0."""
    assert summary(record([100])).warmup is None
    assert summarize([], WARM, OPENED).warmup == Warmup(0, 0, 0, None, 0, None, 0.0, 0, 0)


def test_a_warmed_lane_is_live_from_the_opening_on() -> None:
    """Two lanes in a window of 7 s: one sends nothing in it, one only from 6 s to 9 s, when its
    session ends."""
    rows = [
        record([2000], warmup=True),
        record([2500], warmup=True, lane=1, calls=2, first=1),
        record([9000], sent_ms=6000, lane=1, call=1, calls=2, first=1),
    ]
    found = metrics(*rows, plan=WARM, ending=OPENED)["concurrency"]
    assert found["lanes_mean"] == pytest.approx((7 + 6) / 7)


def test_a_warm_up_call_in_flight_in_the_window_is_in_flight() -> None:
    """The last call of the warm-up is not waited for: the server works on it in the window."""
    found = metrics(record([6500], sent_ms=2900, warmup=True), plan=WARM, ending=OPENED)
    assert found["concurrency"]["in_flight_mean"] == pytest.approx(0.5)
    assert found["concurrency"]["in_flight_max"] == 1


# --- The verdict ----------------------------------------------------------------------------------


def words_of(found: Summary) -> dict[str, str]:
    """The reasons against a run, by id."""
    return {reason.id: reason.text for reason in found.verdict.reasons}


def test_a_failed_warm_up_is_told_in_the_main_agents_words() -> None:
    """What a subagent's call or one that was cut says did not end the run."""
    rows = [
        record([], warmup=True, agent="a", error=Failure("timeout", None, "sub is late")),
        record([], warmup=True, done_ms=900, error=Failure("http_5xx", 500, "second")),
        record([], warmup=True, done_ms=800, error=Failure("http_5xx", 500, "first")),
        record([], warmup=True, error=Failure("cancelled", None, "cut")),
    ]
    ending = Ending("warmup_failed", 10**9, 10**9, None)
    for each in (rows, rows[::-1]):
        assert words_of(summarize(each, WARM, ending)) == {
            "warmup_failed": "a call of the main agent failed in the warm-up: http_5xx: first"
        }


@pytest.mark.parametrize(("window_s", "short"), [(10.0, False), (10.5, True)])
def test_a_window_can_be_too_short(window_s: float, short: bool) -> None:
    """A window of 10 s is enough where 10 s are asked for."""
    found = summarize([record([9])], PLAN, ENDING, FINE, Limits(window_s=window_s))
    assert ("too_short" in words_of(found)) is short


def test_what_measured_nothing_is_not_called_too_short() -> None:
    """One reason for one fault."""
    found = summarize([], PLAN, ENDING, FINE, Limits(window_s=900))
    assert list(words_of(found)) == ["nothing_measured"]


def test_coverage_is_how_far_samples_reach_into_the_window() -> None:
    """From 3 to 10 s: a first token at 6.5 s, and a last token that gives a time per token at 8."""
    found = metrics(
        record([4000, 8000], sent_ms=3500),
        record([6500], sent_ms=6000, call=1),
        record([2000, 2900], sent_ms=1000, call=2),
        ending=OPENED,
    )
    assert found["coverage"] == {"ttft": pytest.approx(0.5), "tpot": pytest.approx(5 / 7)}


@pytest.mark.parametrize(
    ("rows", "ending", "coverage"),
    [
        pytest.param([record([20_000, 30_000])], ENDING, (1.0, 1.0), id="after the window"),
        pytest.param([record([5000])], ENDING, (0.5, 0.0), id="no time per token"),
        pytest.param([], ENDING, (0.0, 0.0), id="no sample"),
        pytest.param([], Ending("work", 5, 5, None), (None, None), id="no window"),
    ],
)
def test_coverage_is_a_share_of_the_window(
    rows: list[Record], ending: Ending, coverage: tuple[float | None, float | None]
) -> None:
    """Never more than 1, 0 where there are no samples, absent without a window."""
    found = metrics(*rows, ending=ending)["coverage"]
    assert (found["ttft"], found["tpot"]) == coverage


@pytest.mark.parametrize(("limit", "missed"), [(0.0, False), (0.8, False), (0.9, True)])
def test_samples_have_to_reach_to_the_end(limit: float, missed: bool) -> None:
    """Both kinds of them: here one ceases after 95 %, the other after 85 % of the window."""
    rows = [record([100, 8500]), record([9500], call=1)]
    found = words_of(summarize(rows, PLAN, ENDING, FINE, Limits(coverage=limit)))
    assert ("coverage" in found) is missed
    if missed:
        assert "TTFT 95.0% and TPOT 85.0%" in found["coverage"]


@pytest.mark.parametrize(
    ("limit", "kind"), [(1.0, "warnings"), (0.5, "warnings"), (0.4, "reasons")]
)
def test_missing_usage_is_a_warning_up_to_its_limit(limit: float, kind: str) -> None:
    """Half of the successes came without; failures have none and don't count."""
    rows = [
        record([9]),
        record([9], isl_served=None, call=1),
        record([], isl_served=None, call=2, error=Failure("cancelled", None, "cut")),
    ]
    limits = Limits(usage_missing=limit, cancelled_rate=1.0)
    verdict = summarize(rows, PLAN, ENDING, FINE, limits).verdict
    (found,) = getattr(verdict, kind)
    assert found.id == "prompt_usage_missing"
    assert found.text.startswith("50.0% ")
    assert len(verdict.reasons) + len(verdict.warnings) == 1


@pytest.mark.parametrize(("dropped", "few"), [(None, False), (0.5, False), (0.6, True)])
def test_too_little_that_fits_is_a_reason(dropped: float | None, few: bool) -> None:
    """More than half of the drawn tokens left out."""
    found = words_of(summarize([record([9])], PLAN, ENDING, FINE, dropped_tokens=dropped))
    assert ("too_little_fits" in found) is few


@pytest.mark.parametrize("ended", ["failures", "failed", "gave_up"])
def test_a_run_that_stopped_for_its_failures_says_so(ended: Reason) -> None:
    """Too many, a first one with --on-error stop, or a key that is refused in the middle: whatever
    the limit that it is judged by afterwards."""
    rows = [record([9]), record([], call=1, error=Failure("timeout", None, "late"))]
    ending = replace(ENDING, reason=ended)
    found = words_of(summarize(rows, PLAN, ending, FINE, Limits(error_rate=1.0)))
    assert found == {"error_rate": "50.0% of requests failed, and the run was stopped for that"}


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (record([11_500], sent_ms=11_000, isl_served=103, call=1), "prompt_length_drift"),
        (
            record([11_500], sent_ms=11_000, osl=90, osl_recorded=100, call=1),
            "length_not_controlled",
        ),
    ],
)
def test_lengths_are_judged_after_the_window_too(tail: Record, reason: str) -> None:
    """One good request in the window, two bad ones after it: the figures are of the window, the
    judgement of all."""
    rows = [record([9]), tail, replace(tail, request=replace(tail.request, call=2))]
    found = summarize(rows, PLAN, ENDING, FINE)
    assert list(words_of(found)) == [reason]
    assert found.metrics["isl_error"]["max"] == found.metrics["osl_error"]["max"] == 0.0
    assert found.after_window == 2


def test_what_differs_from_the_scenario_is_a_reason() -> None:
    """A run that keeps not to all rules of the scenario that it names is none of it."""
    plan = replace(PLAN, scenario="known", overrides=("users 9", "seed 1"))
    assert words_of(summarize([record([9])], plan, ENDING, FINE)) == {
        "scenario_override": "users 9; seed 1"
    }


def test_failures_are_told_by_their_first_words() -> None:
    """Most frequent kind first, by name where equally frequent; the example ended first."""
    rows = [
        record([], call=n, done_ms=at_ms, error=Failure(kind, None, words))
        for n, (kind, at_ms, words) in enumerate(
            [("timeout", 90, "x"), ("reset", 70, "y"), ("connect", 50, "later"),
             ("connect", 40, "first"), ("cancelled", 10, "cut")]
        )
    ]  # fmt: skip
    found = [(group.kind, group.count, group.example) for group in summary(*rows).failures]
    assert found == [("connect", 2, "first"), ("reset", 1, "y"), ("timeout", 1, "x")]
