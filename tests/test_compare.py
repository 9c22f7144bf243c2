"""Runs against a baseline: what is found, what is not, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from command import agentreplay
from hypothesis import given, settings
from hypothesis import strategies as st
from noisy import measured, noisy_run
from records import record
from virtually import Outcome

from agentreplay.metrics.compare import (
    FAILING,
    HEADLINE,
    Comparison,
    Measured,
    compare,
    differences,
)
from agentreplay.metrics.gate import figure
from agentreplay.metrics.record import Failure, Record
from agentreplay.metrics.summary import summarize
from agentreplay.metrics.verdict import Limits
from agentreplay.metrics.window import Ending, Window
from agentreplay.plan import Plan
from agentreplay.store import RunWriter

PLAN = Plan(users=8, duration_s=60, max_gap_s=1.0)
PAIRS = 50

WINDOW = Window(0, 60_000_000_000)

TIMES = [name for name, kind in HEADLINE.items() if kind == "time"]
SPEEDS = ["interactivity.p90", "interactivity.p50"]


def kept(records: Sequence[Record], window: Window = WINDOW) -> Measured:
    found = Measured(window)
    for each in records:
        found.add(each)
    return found


@cache
def outcome(seed: int) -> Outcome:
    return noisy_run(replace(PLAN, duration_s=20), seed)


def verdicts(found: Comparison) -> dict[str, str]:
    return {name: change.verdict for name, change in found.changes.items()}


def slowed(each: Record, factor: int) -> Record:
    """The same request in a world in which everything takes *factor* times as long."""

    def later(at_ns: int | None) -> int | None:
        return None if at_ns is None else each.sent_ns + (at_ns - each.sent_ns) * factor

    return replace(
        each,
        first_token_ns=later(each.first_token_ns),
        last_token_ns=later(each.last_token_ns),
        done_ns=each.sent_ns + (each.done_ns - each.sent_ns) * factor,
        chunk_us=tuple(us * factor for us in each.chunk_us),
    )


@pytest.fixture(scope="module")
def judged() -> list[tuple[bool, bool]]:
    """Of fifty runs, each of 250 requests of 8 lanes: whether the next one of the same system
    fails against it, and whether one of a slower system does."""
    runs = [measured(noisy_run(PLAN, seed)) for seed in range(PAIRS + 1)]
    slow = [measured(noisy_run(PLAN, 2000 + seed, 1.1)) for seed in range(PAIRS)]
    return [
        (bool(compare([(one, other)], 0.05).failing), bool(compare([(one, worse)], 0.05).failing))
        for (one, other), worse in zip(pairwise(runs), slow, strict=True)
    ]


def test_of_fifty_comparisons_of_one_system_at_most_two_are_alarms(
    judged: list[tuple[bool, bool]],
) -> None:
    """Noise is seldom taken for a change."""
    assert sum(alarm for alarm, _ in judged) <= 2


def test_of_fifty_decode_steps_that_got_ten_percent_slower_at_most_two_are_missed(
    judged: list[tuple[bool, bool]],
) -> None:
    """A change of twice the tolerance seldom hides in the noise."""
    assert sum(not found for _, found in judged) <= 2


def test_figures_are_those_of_the_report() -> None:
    """What is compared is what a run's own report shows, where all requests are in both runs."""
    ran = outcome(1)
    summary = summarize(ran.records, PLAN, ran.ending)
    found = compare([(measured(ran), measured(ran))], 0.05)
    for name, change in found.changes.items():
        assert change.base == pytest.approx(figure({"metrics": summary.metrics}, name), rel=1e-12)


@settings(max_examples=10, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_records_does_not_matter(order: Any) -> None:
    """Runs are sets of records."""
    shuffled = list(outcome(2).records)
    order.shuffle(shuffled)
    window = Window.of(outcome(2).ending)
    one, other = measured(outcome(1)), measured(outcome(2))
    assert compare([(one, kept(shuffled, window))], 0.05) == compare([(one, other)], 0.05)


@settings(max_examples=10, deadline=None)
@given(st.integers(2, 50))
def test_times_that_are_f_times_as_long_give_f(factor: int) -> None:
    """Whatever the requests, the change is exact, and there is no doubt about it."""
    ran = outcome(1)
    slow = kept([slowed(each, factor) for each in ran.records], Window.of(ran.ending))
    found = compare([(measured(ran), slow)], 0.05)
    for name in (*TIMES, *SPEEDS):
        change, expected = found.changes[name], factor if name in TIMES else 1 / factor
        assert change.verdict == "worse"
        for value in (change.change, change.low, change.high):
            assert value is not None
            assert 1 + value == pytest.approx(expected)


# Records by hand: four calls of each of so many lanes, of ten tokens each.


def calls(
    lanes: int, *, step_ms: Callable[[int, int], int] = lambda lane, n: 20, **more: Any
) -> list[Record]:
    made = []
    for lane in range(lanes):
        for n in range(4):
            sent_ms, step = 1_000 + 3_000 * n, step_ms(lane, n)
            chunks = [sent_ms + 100 + step * k for k in range(10)]
            made.append(record(chunks, sent_ms=sent_ms, lane=lane, call=n, calls=4, **more))
    return made


def _stepping(steps_ms: list[int]) -> list[Record]:
    return calls(8, step_ms=lambda lane, n: steps_ms[4 * lane + n])


RUNS = st.lists(st.integers(5, 200), min_size=32, max_size=32).map(_stepping)


def _failed(each: Record) -> Record:
    return replace(
        each,
        first_token_ns=None,
        first_visible_ns=None,
        last_token_ns=None,
        chunk_us=(),
        osl=None,
        error=Failure("http_5xx", 500, "HTTP 500"),
    )


@settings(max_examples=25, deadline=None)
@given(RUNS)
def test_no_run_differs_from_itself(run: list[Record]) -> None:
    """However much its requests vary, every change is none, and known to be."""
    found = compare([(kept(run), kept(run))], 0.05)
    assert set(verdicts(found).values()) == {"same"}
    for change in found.changes.values():
        assert (change.change, change.low, change.high, change.p) == (0, 0, 0, 1)


@settings(max_examples=25, deadline=None)
@given(RUNS, RUNS)
def test_swapping_the_sides_mirrors_the_changes(one: list[Record], other: list[Record]) -> None:
    """Ratios become their inverses, and intervals with them; p and level stay."""
    there = compare([(kept(one), kept(other))], 0.05)
    back = compare([(kept(other), kept(one))], 0.05)
    for name, change in there.changes.items():
        mirror = back.changes[name]
        assert (change.base, change.new) == (mirror.new, mirror.base)
        assert change.level == mirror.level
        assert change.p == pytest.approx(mirror.p)
        assert change.low is not None
        assert mirror.high is not None
        if HEADLINE[name] == "share":
            assert change.low == pytest.approx(-mirror.high)
        else:
            assert 1 + change.low == pytest.approx(1 / (1 + mirror.high))


def test_only_what_both_runs_measured_is_compared() -> None:
    """A run that came further is not judged by the calls that the other never came to."""
    base = calls(8, step_ms=lambda lane, n: 20 if n < 2 else 90)
    new = [each for each in calls(8) if each.request.call < 2]
    found = compare([(kept(base), kept(new))], 0.05)
    assert (found.requests, found.base_requests, found.new_requests) == (16, 32, 16)
    assert found.changes["interactivity.p90"].base == pytest.approx(50)
    assert found.changes["interactivity.p90"].change == 0


def test_another_session_in_the_same_place_is_another_request() -> None:
    """Requests are alike by lane, visit and call, and by what they are of."""
    found = compare([(kept(calls(8)), kept(calls(8, index=1)))], 0.05)
    assert found.requests == 0
    assert found.changes["ttft.p50"].verdict == "lost"
    assert found.changes["ttft.p50"].base == pytest.approx(0.1)


def test_what_is_not_measured_any_more_is_worse() -> None:
    """Bursts have no time per token: that figure is lost, though all others are the same."""
    new = [replace(each, burst=True) for each in calls(8)]
    found = compare([(kept(calls(8)), kept(new))], 0.05)
    assert found.failing == ("interactivity.p90", "interactivity.p50")
    assert verdicts(found)["ttft.p50"] == "same"


def test_a_run_without_a_token_is_worse_in_everything() -> None:
    """A dead engine never passes, however fast it answers."""
    new = [_failed(each) for each in calls(8)]
    found = compare([(kept(calls(8)), kept(new))], 0.05)
    assert found.failing == tuple(HEADLINE)
    assert verdicts(found)["error_rate"] == "worse"
    nothing = compare([(kept(calls(8)), kept([]))], 0.05)
    assert nothing.failing == tuple(HEADLINE)


def test_what_the_baseline_did_not_measure_is_no_failure() -> None:
    """There is nothing to be worse than."""
    found = compare(
        [(kept([replace(each, burst=True) for each in calls(8)]), kept(calls(8)))], 0.05
    )
    assert verdicts(found)["interactivity.p90"] == "absent"
    assert found.failing == ()


def test_failures_in_one_lane_may_be_chance_and_in_most_they_are_not() -> None:
    """Lanes are what is independent, not requests."""
    base = kept(calls(16))
    one = [_failed(each) if each.request.lane == 3 else each for each in calls(16)]
    most = [_failed(each) if each.request.call == each.request.lane % 5 else each for each in one]
    assert verdicts(compare([(base, kept(one))], 0.05))["error_rate"] == "unclear"
    found = compare([(base, kept(most))], 0.05).changes["error_rate"]
    assert found.verdict == "worse"
    assert found.change == pytest.approx(16 / 64)


def test_a_change_within_the_tolerance_is_told_and_does_not_fail() -> None:
    """It is shown as what it is."""
    new = kept(calls(8, step_ms=lambda lane, n: 21))
    strict, mild = compare([(kept(calls(8)), new)], 0.04), compare([(kept(calls(8)), new)], 0.06)
    assert verdicts(strict)["interactivity.p50"] == "worse"
    assert verdicts(mild)["interactivity.p50"] == "slightly worse"
    assert "interactivity.p50" not in mild.failing


def test_one_lane_alone_tells_nothing() -> None:
    """Without a second one there is no telling how much lanes vary."""
    found = compare([(kept(calls(1)), kept(calls(1, step_ms=lambda lane, n: 40)))], 0.05)
    change = found.changes["interactivity.p50"]
    assert change.verdict == "unclear"
    assert change.change == pytest.approx(-0.5)
    assert change.low is None


def test_repeats_are_further_lanes_and_narrow_the_interval() -> None:
    """Three pairs say more than one."""
    runs = [(measured(outcome(n)), measured(outcome(10 + n))) for n in (1, 2, 3)]
    one, three = compare(runs[:1], 0.05), compare(runs, 0.05)
    assert (one.lanes, three.lanes) == (8, 24)
    assert three.requests > 2 * one.requests
    for name in ("interactivity.p50", "ttft.p50"):
        narrow, wide = three.changes[name].smallest, one.changes[name].smallest
        assert narrow is not None
        assert wide is not None
        assert narrow < wide


def test_rates_of_repeats_are_their_mean() -> None:
    """Two runs of the same rate have that rate together, not its double."""
    pair = kept(calls(8)), kept(calls(8))
    rates = [compare([pair] * n, 0.05).changes["output_token_rate"].base for n in (1, 2)]
    assert rates == [pytest.approx(8 * 40 / 60)] * 2


def test_the_interval_is_that_of_student() -> None:
    """For a mean of lanes, whose standard error is known: few lanes need a wide interval, whose
    quantile a million draws of Student's distribution show as well."""
    extra = [0, 1, 2, 3, 4, 5, 6, 7]
    new = [replace(each, osl=10 + extra[each.request.lane]) for each in calls(8)]
    change = compare([(kept(calls(8)), kept(new))], 0.0).changes["output_token_rate"]
    assert change.change == pytest.approx(0.35)
    assert change.low is not None
    assert change.high is not None
    assert change.level is not None
    half = (math.log1p(change.high) - math.log1p(change.low)) / 2
    error = float(np.std(extra, ddof=1)) / math.sqrt(8) / 13.5
    drawn = np.abs(np.random.default_rng(1).standard_t(7, 1_000_000))
    assert half / error == pytest.approx(float(np.quantile(drawn, change.level)), rel=0.05)


# Which runs are comparable.

LOAD: tuple[dict[str, Any], dict[str, Any]] = (
    {
        "plan": asdict(PLAN),
        "trace": {"sessions": 24, "choice": {"since_s": 1.0, "min_calls": 0}},
        "endpoint": {"api": "chat", "forces_output": True, "simulated": "demo"},
    },
    {"trace_sha256": "5e7", "fit": None},
)


def _with(**changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    manifest, facts = LOAD
    changed = {
        key: {**manifest[key], **changes.pop(key)} for key in list(changes) if key in manifest
    }
    return {**manifest, **changed}, {**facts, **changes}


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (_with(plan={"seed": 7}), ["plan seed: 42 and 7"]),
        (
            _with(plan={"users": 16, "duration_s": 90.0}),
            ["plan users: 8 and 16", "plan duration_s: 60 and 90.0"],
        ),
        (_with(plan={"scenario": "agentx"}), ["plan scenario: None and agentx"]),
        (_with(trace_sha256="beef"), ["content of the traces: 5e7 and beef"]),
        (_with(trace={"sessions": 23}), ["sessions in the traces: 24 and 23"]),
        (_with(trace={"choice": {"min_calls": 2}}), ["sessions chosen by min_calls: 0 and 2"]),
        (_with(endpoint={"simulated": None}), ["server: simulated and real"]),
        (_with(endpoint={"api": "messages"}), ["API: chat and messages"]),
        (
            _with(endpoint={"forces_output": False}),
            ["output of the recorded length: True and False"],
        ),
        (_with(plan={"salt": 99}), []),
        (_with(trace={"choice": {"since_s": 2.0, "min_calls": 0}}), []),
        (_with(endpoint={"simulated": "slow"}), []),
        (_with(fit={"dropped_calls": 0, "context_tokens": 9}), []),
        (
            _with(fit={"dropped_calls": 3, "context_tokens": 9}),
            ["the model's context, for which calls were left out: None and 9"],
        ),
    ],
)
def test_every_difference_of_the_load_is_named(
    other: tuple[dict[str, Any], dict[str, Any]], named: list[str]
) -> None:
    """All of them, a line each; what is new in every run, and the server's name, are none."""
    assert differences(LOAD, other) == named


def test_traces_of_unknown_content_are_not_the_same() -> None:
    """Of two runs that were killed before their traces were hashed, nothing is known."""
    unknown = _with(trace_sha256=None)
    assert differences(unknown, unknown) == ["content of the traces: not known"]


# The command.


def directory(path: Path, records: Sequence[Record], **changes: Any) -> Path:
    """A run directory with these records."""
    manifest, facts = _with(**changes)
    manifest = {**manifest, "agentreplay": "0", "limits": asdict(Limits())}
    with RunWriter(path, manifest) as writer:
        for each in records:
            writer.append(each)
        writer.end(Ending("duration", WINDOW.close_ns, WINDOW.close_ns), None, facts)
    return path


def test_a_run_that_got_worse_ends_with_exit_code_1(tmp_path: Path) -> None:
    """And the last line says what got worse; the same run again, with 0."""
    base = directory(tmp_path / "base", calls(8))
    same = directory(tmp_path / "same", calls(8))
    slow = directory(tmp_path / "slow", calls(8, step_ms=lambda lane, n: 25))
    assert agentreplay("compare", base, same).returncode == 0
    ended = agentreplay("compare", base, slow)
    assert ended.returncode == 1
    assert ended.stdout.startswith("SIMULATED SERVER (demo)\n")
    assert "interactivity.p90 −20.0 %" in ended.stdout.splitlines()[-1]
    assert agentreplay("compare", base, slow, "--tolerance", "30%").returncode == 0
    assert agentreplay("compare", slow, base).returncode == 0


def test_json_holds_everything(tmp_path: Path) -> None:
    """Every figure with all that is known of it, the runs, and what it came to."""
    base = directory(tmp_path / "base", calls(8))
    slow = directory(tmp_path / "slow", calls(8, step_ms=lambda lane, n: 25))
    ended = agentreplay("compare", base, slow, "--json")
    value = orjson.loads(ended.stdout)
    assert ended.returncode == 1
    assert "exit 1: worse" in ended.stderr
    assert list(value["metrics"]) == list(HEADLINE)
    assert value["metrics"]["interactivity.p50"]["change"] == pytest.approx(-0.2)
    assert value["metrics"]["interactivity.p50"]["requests"] == 32
    assert value["verdict"] == "worse"
    assert value["base"] == [{"path": str(base), "simulated": "demo", "valid": True, "reasons": []}]
    assert value["requests"] == {"common": 32, "base": 32, "new": 32}


def test_runs_that_are_not_comparable_are_refused_unless_told_otherwise(tmp_path: Path) -> None:
    """Every reason has a line, and the exit code is 2."""
    base = directory(tmp_path / "base", calls(8))
    broken = [_failed(each) if each.request.call else each for each in calls(8)]
    other = directory(tmp_path / "other", broken, plan={"users": 16, "seed": 7})
    refused = agentreplay("compare", base, other)
    assert refused.returncode == 2
    assert refused.stdout == ""
    first, *lines = refused.stderr.splitlines()
    assert "--anyway" in first
    assert len(lines) == 3
    assert "plan users: 8 and 16" in refused.stderr
    assert "plan seed: 42 and 7" in refused.stderr
    assert f"{other} is invalid: error_rate: 75.0%" in refused.stderr
    forced = agentreplay("compare", base, other, "--anyway")
    assert forced.returncode == 1
    assert "plan users: 8 and 16" in forced.stdout


def test_several_directories_are_compared_in_pairs(tmp_path: Path) -> None:
    """As many on both sides; their lanes count together."""
    paths = [directory(tmp_path / f"{n}", calls(4)) for n in range(4)]
    pairs = [f"{paths[0]},{paths[1]}", f"{paths[2]},{paths[3]}"]
    value = orjson.loads(agentreplay("compare", *pairs, "--json").stdout)
    assert value["lanes"] == 8
    assert [run["path"] for run in value["new"]] == [str(paths[2]), str(paths[3])]
    uneven = agentreplay("compare", pairs[0], paths[2])
    assert uneven.returncode == 2
    assert "BASE has 2 directories and NEW 1" in uneven.stderr


def test_what_is_no_run_directory_is_one_line(tmp_path: Path) -> None:
    """A path that holds nothing is the user's to mend."""
    ended = agentreplay("compare", tmp_path, tmp_path)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("verdict", FAILING)
def test_failing_verdicts_are_documented(verdict: str) -> None:
    """docs/compare.md says what each means."""
    page = Path(__file__).parents[1] / "docs" / "compare.md"
    assert f"`{verdict}`" in page.read_text()
