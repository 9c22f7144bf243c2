"""Goodput: limits on single requests, and which requests keep within them. Pure."""

from __future__ import annotations

from agentreplay.errors import AgentReplayError
from agentreplay.metrics.condition import Condition, number, split
from agentreplay.metrics.record import Record

_DIRECTIONS = {
    "ttft": ("<", "<="),
    "tpot": ("<", "<="),
    "latency": ("<", "<="),
    "interactivity": (">", ">="),
}
"""What can be limited, and on which side: what a request has passed it can't come back from."""


def request_limit(text: str) -> Condition:
    """Read a limit on single requests, as `ttft < 2s`.

    Raises:
        AgentReplayError: it is none, or of something that a single request doesn't have.
    """
    metric, compared, limit = split(text, "ttft < 2s")
    if metric not in _DIRECTIONS:
        raise AgentReplayError(
            f"{text!r}: a single request has {', '.join(_DIRECTIONS)}, without a percentile"
        )
    if compared not in _DIRECTIONS[metric]:
        one, other = _DIRECTIONS[metric]
        raise AgentReplayError(f"{text!r}: {metric} can be limited with {one} and {other}")
    return Condition(metric, compared, number(text, metric, limit), limit)


class Goodput:
    """Counts the requests that keep within every limit.

    A request that failed never does. One that was cut counts only where it had passed a limit
    before: where the best that it could still have come to is too much. A time per token that was
    not measured (an answer of one token, or one that came at once) passes no limit.
    """

    def __init__(self, limits: tuple[Condition, ...]) -> None:
        self._limits = limits
        self._counted = 0
        self._good = 0
        self._measured: set[str] = set()

    def add(self, record: Record, per_token_s: float | None) -> None:
        """Take a measured request and its time per token."""
        cut = record.error is not None and record.error.kind == "cancelled"
        if record.error is not None and not cut:
            self._counted += 1
            return
        found = _least(record) if cut else _measured(record, per_token_s)
        good = all(
            limit.holds(found[limit.metric]) for limit in self._limits if limit.metric in found
        )
        self._counted += not (cut and good)
        if not cut:
            self._good += good
            self._measured.update(found)

    @property
    def share(self) -> float | None:
        """Good ones of all; None without a limit or a request, and where an answer came and none
        could be held against one of the limits."""
        if not self._limits or not self._counted:
            return None
        if self._measured and not all(limit.metric in self._measured for limit in self._limits):
            return None
        return self._good / self._counted


def _measured(record: Record, per_token_s: float | None) -> dict[str, float]:
    """What can be limited of an answer."""
    first_ns, last_ns = record.first_token_ns, record.last_token_ns
    assert first_ns is not None
    assert last_ns is not None
    return _found(record, first_ns, last_ns, per_token_s)


def _least(record: Record) -> dict[str, float]:
    """The same for a request that was cut, had all that was still missing of the recorded length
    come in that moment."""
    first_ns, cut_ns = record.first_token_ns, record.done_ns
    if first_ns is None:
        return _found(record, cut_ns, cut_ns, None)
    further = max(record.request.osl, record.osl or 0) - 1
    per_token_s = (cut_ns - first_ns) / 1e9 / further if further > 0 else None
    return _found(record, first_ns, cut_ns, per_token_s)


def _found(
    record: Record, first_ns: int, last_ns: int, per_token_s: float | None
) -> dict[str, float]:
    found = {
        "ttft": (first_ns - record.sent_ns) / 1e9,
        "latency": (last_ns - record.sent_ns) / 1e9,
    }
    if per_token_s:
        found["tpot"] = per_token_s
        found["interactivity"] = 1 / per_token_s
    return found
