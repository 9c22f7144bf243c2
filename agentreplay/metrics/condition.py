"""Conditions as people write them, `ttft.p95 < 2s`, and figures in people's units. Pure."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any

from agentreplay import units
from agentreplay.errors import AgentReplayError

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}

_FORM = re.compile(r"\s*([\w.]+)\s*(>=|<=|==|!=|>|<)\s*([^\s<>=!](?:.*\S)?)\s*")

_SECONDS = frozenset(
    (
        *("ttft", "ttft_visible", "tpot", "latency", "latency_from_due", "lag", "chunk_gap"),
        *("session_seconds", "session_model_seconds", "session_wait_seconds"),
        *("busy.waited", "client.loop_late_max", "client.read_delay_max"),
    )
)
_SHARES = frozenset(
    (
        *("error_rate", "context_overflow_rate", "goodput", "prefix_reuse", "coverage"),
        *("isl_error", "osl_error", "isl_bias", "osl_bias", "client.loop_late_share"),
    )
)
_RATES = (
    (("interactivity",), "tok/s/user"),
    (("total_token_rate", "input_token_rate", "output_token_rate", "user_output_rate"), "tok/s"),
    (("request_rate",), "requests/s"),
)


@dataclass(frozen=True, slots=True)
class Condition:
    """What a figure is held against.

    Attributes:
        metric: Id of the figure.
        operator: How it is compared.
        limit: With what, in seconds, tokens a second or as a share of 1; a word for the verdict.
        written: The limit as it was written, without spaces.
    """

    metric: str
    operator: str
    limit: float | str
    written: str

    @property
    def text(self) -> str:
        """The condition; it reads back as the same one."""
        return f"{self.metric} {self.operator} {self.written}"

    def holds(self, value: float | str) -> bool:
        """Whether a figure meets it."""
        return _OPERATORS[self.operator](value, self.limit)


def split(text: str, example: str) -> tuple[str, str, str]:
    """The figure, the operator and the limit of a condition.

    Raises:
        AgentReplayError: it is none; *example* shows how one is written.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise AgentReplayError(f"{text!r} is no condition: write it as {example!r}")
    metric, compared, limit = found.groups()
    return metric, compared, "".join(limit.split())


def number(text: str, metric: str, limit: str) -> float:
    """The limit of the condition *text* in the unit of its figure.

    Raises:
        AgentReplayError: it is no number, or has another unit; a time needs one, since nobody can
            tell whether 200 was meant as seconds.
    """
    unit = unit_of(metric)
    if unit == "s":
        try:
            return units.seconds(limit)
        except AgentReplayError as error:
            raise AgentReplayError(f"{text!r}: {error}") from None
    percent = unit == "share" and limit.endswith("%")
    try:
        value = float(limit[:-1]) / 100 if percent else float(limit)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        how = "write 1% or 0.01" if unit == "share" else "write it without a unit, as 50"
        raise AgentReplayError(f"{text!r}: {limit} is no number: {how}")
    return value


def unit_of(metric: str) -> str:
    """The unit of a figure by its id: `s`, `share`, a rate's; empty for counts and factors."""
    if metric.endswith(".n"):
        return ""
    names = {metric, metric.partition(".")[0]}
    if names & _SECONDS:
        return "s"
    if names & _SHARES:
        return "share"
    return next((unit for starts, unit in _RATES if metric.startswith(starts)), "")


def shown(metric: str, value: float | str | None) -> str:
    """A figure in people's units."""
    if value is None or isinstance(value, str):
        return value or units.ABSENT
    unit = unit_of(metric)
    if unit == "s":
        return units.as_duration(value)
    if unit == "share":
        return units.as_percent(value)
    return f"{units.as_number(value)} {unit}".rstrip()


def told_apart(metric: str, value: float | str, limit: float | str) -> str:
    """The same, to as many digits as tell it from a limit that it is not."""
    text = shown(metric, value)
    if isinstance(value, str) or value == limit or text != shown(metric, limit):
        return text
    if unit_of(metric) == "share":
        return f"{100 * value:.10g} %"
    return f"{value:.10g} {unit_of(metric)}".rstrip()
