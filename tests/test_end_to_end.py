"""What the tool measures, held against what the server is known to do. In virtual time."""

from __future__ import annotations

from dataclasses import replace as changed

import pytest
from virtually import Outcome, call, chain, simulated

from agentreplay.metrics.summary import Summary
from agentreplay.plan import Plan
from agentreplay.sim.engine import Profile
from agentreplay.trace.model import Session
from agentreplay.trace.structure import link

PROFILE = Profile(
    name="known",
    context_tokens=100_000,
    step_s=0.020,
    prefill_token_s=0.001,
    decode_seq_s=0.005,
    step_tokens=10_000,
    max_seqs=8,
    kv_tokens=1_000_000,
    block_size=64,
)


def simulate(plan: Plan, trace: list[Session], stall_s: float = 0.0) -> tuple[Outcome, Summary]:
    """Replay against the known server."""
    return simulated(plan, trace, PROFILE, stall_s)


def test_one_call_has_the_ttft_and_tpot_of_the_steps_that_serve_it() -> None:
    """640 tokens prefill in one step of 20 + 640 ms; each further token is a step of 25 ms."""
    session = Session("s", None, link([call(0, 1, isl=640, osl=101)], 64), 64, "")
    _, summary = simulate(Plan(users=1, duration_s=None, sessions=1), [session])
    metrics = summary.metrics
    assert metrics["ttft"]["p50"] == pytest.approx(0.020 + 0.640)
    assert metrics["tpot"]["p50"] == pytest.approx(0.025)
    assert metrics["interactivity"]["p90"] == pytest.approx(40.0)
    assert metrics["latency"]["p50"] == pytest.approx(0.660 + 100 * 0.025)
    assert metrics["user_output_rate_streaming"]["p50"] == pytest.approx(101 / 2.5)
    assert summary.verdict.valid


def test_the_second_call_finds_what_it_shares() -> None:
    """Of 1,280 tokens 640 were sent before: half is reused, and only the rest is prefilled."""
    calls = [
        call(0, 1, isl=648, osl=64),
        call(2, 3, isl=1280, osl=2, parent=0, shared=640),
    ]
    session = Session("s", None, link(calls, 64), 64, "")
    outcome, summary = simulate(Plan(users=1, duration_s=None, sessions=1), [session])
    second = outcome.records[1]
    assert second.isl == 1280
    assert second.request.reuse == 640
    assert second.cached == 640
    assert second.first_token_ns is not None
    assert (second.first_token_ns - second.sent_ns) / 1e9 == pytest.approx(0.020 + 0.640)
    reuse = summary.metrics["prefix_reuse"]
    assert reuse["theoretical"] == pytest.approx(640 / (648 + 1280))
    assert reuse["server"] == pytest.approx(640 / (648 + 1280))
    assert reuse["captured"] == pytest.approx(1.0)


def test_server_counted_lengths_are_the_recorded_ones() -> None:
    """Every prompt and every answer is as long as recorded, without an error of one token."""
    trace = [chain(n, 12) for n in range(4)]
    outcome, summary = simulate(Plan(users=4, duration_s=None, sessions=4), trace)
    assert len(outcome.records) == 48
    assert summary.metrics["isl_error"]["max"] == 0
    assert summary.metrics["osl_error"]["max"] == 0


def test_two_users_share_the_steps() -> None:
    """Two sequences that decode together take steps of 20 + 2 × 5 ms."""
    trace = [Session(f"s{n}", None, link([call(0, 1, osl=200)], 64), 64, "") for n in range(2)]
    _, summary = simulate(Plan(users=2, duration_s=None, sessions=2), trace)
    assert summary.metrics["tpot"]["min"] == pytest.approx(0.030, rel=0.02)
    assert summary.metrics["concurrency"]["in_flight_max"] == 2


def test_a_stalling_server_shows_in_the_tail_and_not_in_the_median() -> None:
    """One call of ten that waits 5 s does not raise the median, and lifts P99 over 5 s."""
    trace = [chain(n, 30, gap_s=0.5) for n in range(4)]
    plan = Plan(users=2, duration_s=None, sessions=4)
    _, calm = simulate(plan, trace)
    _, stalled = simulate(plan, trace, stall_s=5.0)
    before, after = calm.metrics["ttft"], stalled.metrics["ttft"]
    assert after["p50"] <= before["p50"]
    assert after["p99"] > 5.0
    assert before["p99"] < 2.0


def test_token_rates_are_those_of_the_records() -> None:
    """Tokens in the window over its length: everything ends inside it here."""
    trace = [chain(n, 10) for n in range(2)]
    plan = Plan(users=2, duration_s=600, sessions=2)
    outcome, summary = simulate(plan, trace)
    tokens_out = sum(record.osl or 0 for record in outcome.records)
    tokens_in = sum(record.isl or 0 for record in outcome.records)
    first = min(record.sent_ns for record in outcome.records)
    last = max(record.done_ns for record in outcome.records)
    metrics = summary.metrics
    assert metrics["output_token_rate_run"] == pytest.approx(tokens_out / (last - first) * 1e9)
    assert metrics["total_token_rate_run"] == pytest.approx(
        (tokens_in + tokens_out) / (last - first) * 1e9
    )


def test_output_is_cut_by_the_window_chunk_by_chunk() -> None:
    """A stream of 25 ms steps that goes on after the end gives what arrived before it."""
    session = Session("s", None, link([call(0, 1, isl=640, osl=1000)], 64), 64, "")
    plan = Plan(users=1, duration_s=10, drain_s=60)
    _, summary = simulate(plan, [session])
    arrived = 1 + int((10 - 0.660) / 0.025)
    assert summary.metrics["output_token_rate"] == pytest.approx(arrived / 10, abs=0.11)
    assert summary.metrics["requests"]["succeeded"] == 1


def test_requests_of_the_ramp_are_warm_up() -> None:
    """What is sent before the window opens is counted apart and measured nowhere."""
    trace = [chain(n, 10) for n in range(4)]
    plan = changed(Plan(users=4, duration_s=60), ramp_s=20.0)
    outcome, summary = simulate(plan, trace)
    early = sum(record.sent_ns < 20e9 for record in outcome.records)
    requests = summary.metrics["requests"]
    assert requests["warmup"] == early > 0
    assert requests["attempted"] == len(outcome.records) - early
    assert summary.window.seconds == 60
