"""Records to numbers: the definitions of docs/metrics.md by worked examples."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import record

from agentreplay.metrics.record import Failure, Record
from agentreplay.metrics.summary import ClientHealth, Summary, summarize
from agentreplay.metrics.window import Ending
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


@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_the_order_of_records_does_not_matter(source: random.Random, count: int) -> None:
    """A summary depends on what was recorded, not on the order in which it was written."""
    rows = [
        record(
            sorted(source.sample(range(12_000), source.randint(1, 6))),
            sent_ms=0,
            lane=source.randint(0, 1),
            visit=source.randint(0, 3),
            call=n,
            calls=count,
            cached=source.randint(0, 90),
            reuse=source.randint(0, 10) * 10,
        )
        for n in range(count)
    ]
    shuffled = rows[:]
    source.shuffle(shuffled)
    # Sums of floats in another order differ in their last digits.
    assert flat(metrics(*rows)) == pytest.approx(flat(metrics(*shuffled)), rel=1e-9)


def flat(value: Any, path: str = "") -> dict[str, float]:
    """The numbers of nested metrics by their paths; what was not measured is -1."""
    if isinstance(value, dict):
        return {
            k: v for name, part in value.items() for k, v in flat(part, f"{path}.{name}").items()
        }
    if isinstance(value, list):
        return {path: sum(value)}
    return {path: -1.0 if value is None else value}
