"""Gates: conditions on the figures of a run, as `interactivity.p90 >= 50`. Pure.

A condition on a figure that was not measured is missed, never passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from agentreplay.errors import AgentReplayError
from agentreplay.metrics.condition import Condition, number, split, told_apart
from agentreplay.metrics.cost import Money, Prices
from agentreplay.metrics.summary import ClientHealth, summarize
from agentreplay.metrics.window import Ending
from agentreplay.plan import Plan

VERDICT = "verdict"

NO_SAMPLE = "no sample"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a condition came to.

    Attributes:
        gate: The condition.
        value: The figure; None where it was not measured.
    """

    gate: Condition
    value: float | str | None

    @property
    def passed(self) -> bool:
        """Whether the figure meets the condition; not where there is none."""
        return self.value is not None and self.gate.holds(self.value)

    @property
    def reason(self) -> str | None:
        """Why it was missed, the value in people's units; None where it was not."""
        if self.passed:
            return None
        if self.value is None:
            return NO_SAMPLE
        return f"it is {told_apart(self.gate.metric, self.value, self.gate.limit)}"


def gate(text: str) -> Condition:
    """Read a condition on a figure of a run.

    Raises:
        AgentReplayError: it is none, or of a figure that does not exist.
    """
    metric, compared, limit = split(text, "ttft.p95 < 2s")
    if metric == VERDICT:
        if limit not in ("valid", "invalid") or compared not in ("==", "!="):
            raise AgentReplayError(f"{text!r}: the verdict is valid or invalid: 'verdict == valid'")
        return Condition(metric, compared, limit, limit)
    known = known_metrics()
    if metric not in known:
        parts = [name for name in known if name.startswith(f"{metric}.")]
        near = parts or get_close_matches(metric, [*known, VERDICT], 3)
        hint = f"; there is {', '.join(near)}" if near else ""
        raise AgentReplayError(f"{text!r}: there is no figure {metric}{hint}")
    return Condition(metric, compared, number(text, metric, limit), limit)


def outcome(condition: Condition, value: Mapping[str, Any]) -> Outcome:
    """Hold a condition against a run, as summary.json holds it."""
    return Outcome(condition, figure(value, condition.metric))


def figure(value: Mapping[str, Any], metric: str) -> float | str | None:
    """A figure of a run by its id, as `ttft.p95`; None where it was not measured."""
    if metric == VERDICT:
        return "valid" if value["verdict"]["valid"] else "invalid"
    found: Any = value["metrics"]
    for part in metric.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found if isinstance(found, int | float) else None


def known_metrics() -> list[str]:
    """The ids of all figures that a run has: what is a single number when measured."""
    health = ClientHealth(None, 0.0, (), stamps="")
    prices = Money(prices=Prices(0.0, 0.0, 0.0))  # without any there is no bill
    nothing = summarize([], Plan(), Ending("work", 0, 0), health, money=prices)
    return list(_ids(nothing.metrics, ""))


def _ids(found: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, value in found.items():
        if isinstance(value, Mapping) and value:
            yield from _ids(value, f"{prefix}{name}.")
        elif not isinstance(value, list | Mapping | str):
            yield prefix + name
