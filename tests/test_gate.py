"""Gates: conditions on the figures of a run."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import record

from agentreplay.errors import AgentReplayError
from agentreplay.metrics.condition import unit_of
from agentreplay.metrics.cost import Money, Prices
from agentreplay.metrics.gate import figure, gate, known_metrics, outcome
from agentreplay.metrics.summary import ClientHealth, summarize
from agentreplay.metrics.window import Ending
from agentreplay.plan import Plan

KNOWN = known_metrics()
OPERATORS = (">=", "<=", "==", "!=", ">", "<")
LIMITS = {"s": ("2s", "250ms", "1h30m"), "share": ("1%", "0.01", "120%", "-5%")}
NUMBERS = ("50", "0", "1e3", "-2.5")

conditions = st.sampled_from(KNOWN).flatmap(
    lambda metric: st.tuples(
        st.just(metric),
        st.sampled_from(OPERATORS),
        st.sampled_from(LIMITS.get(unit_of(metric), NUMBERS)),
    )
)
spaces = st.sampled_from(["", " ", "  "])


def run_of(**metrics: Any) -> dict[str, Any]:
    """A run with these figures alone, as summary.json holds it."""
    return {"verdict": {"valid": True}, "metrics": metrics}


@given(conditions, st.tuples(spaces, spaces, spaces, spaces))
def test_a_condition_reads_back(parts: tuple[str, str, str], gaps: tuple[str, ...]) -> None:
    """However it is spaced it is one condition, and its text reads as the same one."""
    text = "".join(f"{gap}{part}" for gap, part in zip(gaps, (*parts, ""), strict=True))
    found = gate(text)
    assert found.text == " ".join(parts)
    assert gate(found.text) == found


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("ttft.p95 < 2s", 2.0),
        ("ttft.p95<250 ms", 0.25),
        ("client.loop_late_max <= 10ms", 0.01),
        ("error_rate <= 1%", 0.01),
        ("error_rate <= 0.5 %", 0.005),
        ("prefix_reuse.captured > 1.2", 1.2),
        ("isl_bias >= -5%", -0.05),
        ("interactivity.p90 >= 50", 50.0),
        ("ttft.n >= 100", 100.0),
        ("session_slowdown.p90 < 1.5", 1.5),
        ("verdict == valid", "valid"),
    ],
)
def test_limits_are_in_the_unit_of_their_figure(text: str, limit: float | str) -> None:
    """Seconds with their unit, shares in percent or of 1, all else plain numbers."""
    assert gate(text).limit == limit


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ttft.p95", "write it as 'ttft.p95 < 2s'"),
        ("ttft.p95 =< 2s", "is no condition"),
        ("ttft.p95 < = 2s", "is no condition"),
        ("ttft p95 < 2s", "is no condition"),
        ("", "is no condition"),
        ("ttft.p95 < 200", "write it with a unit"),
        ("ttft.p95 < 50%", "write it with a unit"),
        ("interactivity.p90 >= 50%", "write it without a unit"),
        ("interactivity.p90 >= 50s", "write it without a unit"),
        ("error_rate <= 1s", "write 1% or 0.01"),
        ("error_rate <= nan", "nan is no number"),
        ("output_token_rate < inf", "inf is no number"),
        ("ttfb.p95 < 2s", "there is no figure ttfb.p95; there is ttft.p95"),
        ("interactivity >= 50", "there is interactivity.n, interactivity.mean"),
        ("verdct == valid", "there is verdict"),
        ("client.cpu_share < 1", "there is no figure client.cpu_share"),
        ("verdict > valid", "'verdict == valid'"),
        ("verdict == good", "'verdict == valid'"),
    ],
)
def test_what_is_no_gate_says_how_to_write_one(text: str, words: str) -> None:
    """Each wrong condition is refused with what to do."""
    with pytest.raises(AgentReplayError, match=re.escape(words)):
        gate(text)


@given(conditions)
def test_what_was_not_measured_is_missed(parts: tuple[str, str, str]) -> None:
    """No operator passes a figure without a sample."""
    nothing = summarize([], Plan(), Ending("work", 0, 0))
    found = outcome(gate(" ".join(parts)), run_of(**nothing.metrics))
    if found.value is None:
        assert not found.passed
        assert found.reason == "no sample"
    else:  # counts of nothing are 0
        assert found.value == 0


@pytest.mark.parametrize(("one", "other"), [("<", ">="), (">", "<="), ("==", "!=")])
@given(value=st.floats(0, 100))
def test_a_condition_or_its_opposite_holds(one: str, other: str, value: float) -> None:
    """Of a measured figure exactly one of both passes, and the other has a reason."""
    found = [
        outcome(gate(f"ttft.p95 {each} 2s"), run_of(ttft={"p95": value})) for each in (one, other)
    ]
    assert [each.passed for each in found].count(True) == 1
    assert [each.reason is None for each in found].count(True) == 1


@pytest.mark.parametrize(
    ("text", "metrics", "reason"),
    [
        ("ttft.p95 < 2s", {"ttft": {"p95": 2.3142}}, "it is 2.31 s"),
        ("ttft.p95 < 2s", {"ttft": {"p95": 2.001}}, "it is 2.001 s"),
        ("ttft.p95 < 2s", {"ttft": {"p95": 2.0}}, "it is 2 s"),
        ("error_rate <= 1%", {"error_rate": 0.01004}, "it is 1.004 %"),
        ("interactivity.p90 >= 50", {"interactivity": {"p90": 43.21}}, "it is 43.2 tok/s/user"),
        ("requests.failed == 0", {"requests": {"failed": 3}}, "it is 3"),
        ("verdict == invalid", {}, "it is valid"),
    ],
)
def test_a_miss_says_the_value_in_peoples_units(
    text: str, metrics: dict[str, Any], reason: str
) -> None:
    """To as many digits as tell it from the limit."""
    assert outcome(gate(text), run_of(**metrics)).reason == reason


def test_every_known_figure_is_a_number_once_measured() -> None:
    """No gate can be written on what never is a single number."""
    rows = [record([100, 150, 200], visit=n, cached=10, reuse=20, recorded_s=1.0) for n in range(3)]
    money = Money(gpus=8, gpu_hour=2.0, prices=Prices(3.0, 0.3, 15.0))
    ending, health = Ending("work", 10**10, 10**10), ClientHealth(0, 0, (1,), "kernel", 0.0)
    found = summarize(rows, Plan(users=1), ending, health, money=money)
    value = run_of(**found.metrics)
    never = {"goodput", *(name for name in KNOWN if name.startswith("session_slowdown"))}
    assert {name for name in KNOWN if figure(value, name) is None} <= never
