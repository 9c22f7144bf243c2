"""Conditions on the figures of a run, as `interactivity.p90 >= 50` or `ttft.p95 < 2s`. Pure.

A condition on a figure that was not measured is missed, never passed.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from agentreplay import units
from agentreplay.errors import AgentReplayError
from agentreplay.metrics.summary import summarize
from agentreplay.metrics.window import Ending
from agentreplay.plan import Plan

VERDICT = "verdict"

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}

_FORM = re.compile(r"\s*([\w.]+)\s*(>=|<=|==|!=|>|<)\s*(\S+)\s*")


@dataclass(frozen=True, slots=True)
class Gate:
    """A condition.

    Attributes:
        metric: Id of the figure, with a dot before a percentile or part; or `verdict`.
        operator: How it is compared.
        limit: With what, in seconds, tokens a second or as a share of 1; a word for the verdict.
    """

    metric: str
    operator: str
    limit: float | str

    @property
    def text(self) -> str:
        """The condition in one form, however it was written."""
        limit = self.limit if isinstance(self.limit, str) else f"{self.limit:.10g}"
        return f"{self.metric} {self.operator} {limit}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a condition came to.

    Attributes:
        gate: The condition.
        value: The figure; None where it was not measured.
    """

    gate: Gate
    value: float | str | None

    @property
    def passed(self) -> bool:
        """Whether the figure meets the condition; not where there is none."""
        compare = _OPERATORS[self.gate.operator]
        return self.value is not None and compare(self.value, self.gate.limit)


def gate(text: str) -> Gate:
    """Read a condition.

    Raises:
        AgentReplayError: it is none, or of a figure that does not exist.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise AgentReplayError(f"{text!r} is no condition: write it as 'ttft.p95 < 2s'")
    metric, compared, limit = found.groups()
    if metric == VERDICT:
        if limit not in ("valid", "invalid") or compared not in ("==", "!="):
            raise AgentReplayError(f"{text!r}: the verdict is valid or invalid: 'verdict == valid'")
        return Gate(metric, compared, limit)
    known = known_metrics()
    if metric not in known:
        near = get_close_matches(metric, known, 3)
        hint = f"; there is {', '.join(near)}" if near else ""
        raise AgentReplayError(f"{text!r}: there is no figure {metric}{hint}")
    return Gate(metric, compared, _number(text, limit))


def outcome(condition: Gate, value: Mapping[str, Any]) -> Outcome:
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
    """The ids of all figures that a run has."""
    nothing = summarize([], Plan(), Ending("work", 0, 0))
    return list(_ids(nothing.metrics, ""))


def _ids(found: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, value in found.items():
        if isinstance(value, Mapping) and value:
            yield from _ids(value, f"{prefix}{name}.")
        elif not isinstance(value, list | Mapping):
            yield prefix + name


def _number(text: str, limit: str) -> float:
    try:
        return float(limit)
    except ValueError:
        pass
    for read in (units.seconds, units.share):
        try:
            return read(limit)
        except AgentReplayError:
            continue
    raise AgentReplayError(f"{text!r}: {limit} is no number: write 50, 2s, 500ms or 1%")
