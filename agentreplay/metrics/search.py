"""The search for the most users within limits: what to run next, given what has been run. Pure.

Users are doubled, and from the third step on raised to where a line through the last two would
meet the limit, but to four times as many at most. Once a limit is missed, the bracket is narrowed
the same way, on a line in logarithms; or halved, where there are just enough runs left for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, isqrt, log
from statistics import median
from typing import Any

from agentreplay.metrics.condition import Condition
from agentreplay.metrics.gate import outcome

MOST_RUNS = 12
NEAR = 0.05
"""A figure this near to its limit is measured again; a bracket this narrow is an answer."""

MOST_NEAR = 3
"""So many runs of one number of users, of which the majority decides."""

USERS_A_STEP = 10
"""Up to so many users the requests of a step are as many as asked; more in proportion."""

CLEAR = 2.0
"""Where the worst figure is so many times better or worse than its limit, a twentieth of the
requests is enough, and one for each user."""

MOST_GROWTH = 4
"""A step has at most so many times the users of the largest one before it."""

IN_HAND = 1.25
"""A step is planned for so many times the requests that it needs; twice as many where it has more
users than any before, since more users are slower ones."""


@dataclass(frozen=True, slots=True)
class Hunt:
    """What is searched for.

    Attributes:
        limits: The conditions that must hold, beside the validity of the run.
        first: Users of the first step.
        last: Most users that are tried.
        duration_s: Least length of a step.
        requests: Fewest measured requests of a step of ten users or less; of more users, a tenth
            of it for each.
    """

    limits: tuple[Condition, ...]
    first: int = 1
    last: int = 1024
    duration_s: float = 60.0
    requests: int = 100

    def needed(self, users: int, clear: bool = False) -> int:
        """How many measured requests a step needs for its figures to count."""
        if clear:
            return max(users, ceil(self.requests / 20))
        return ceil(self.requests * max(1.0, users / USERS_A_STEP))


@dataclass(frozen=True, slots=True)
class Step:
    """A run of the search.

    Attributes:
        users: Of how many users.
        duration_s: How long it was to measure.
        requests: How many measured requests succeeded.
        valid: Whether it can be trusted.
        holds: Whether it is valid and all limits hold.
        load: How far the worst figure is at its limit: 1 is there, 2 misses it twofold; infinite
            without a figure, or for a run that is not valid.
        client_limited: Whether this machine was too slow in it.
    """

    users: int
    duration_s: float
    requests: int
    valid: bool
    holds: bool
    load: float
    client_limited: bool = False

    @property
    def clear(self) -> bool:
        """Whether the worst figure is far from its limit."""
        return self.load <= 1 / CLEAR or self.load >= CLEAR

    @property
    def doubtful(self) -> bool:
        """Whether another run might say the opposite."""
        near = 1 - NEAR <= self.load <= 1 + NEAR
        return near or self.client_limited


@dataclass(frozen=True, slots=True)
class Next:
    """What to run next."""

    users: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Found:
    """The end of a search.

    Attributes:
        most: The most users at which all limits were seen to hold; 0 for none.
        fails: The fewest at which one was seen to be missed; None where it never was.
        settled: Whether both are neighbours, or within 5 %, or the last number was reached; else
            the runs were used up before.
    """

    most: int
    fails: int | None
    settled: bool


def step(
    users: int, duration_s: float, value: Mapping[str, Any], limits: Sequence[Condition]
) -> Step:
    """What a run says, given as summary.json holds it."""
    valid = bool(value["verdict"]["valid"])
    found = [outcome(limit, value) for limit in limits]
    loads = [_load(each.gate, each.value, each.passed) for each in found]
    return Step(
        users,
        duration_s,
        value["metrics"]["ttft"]["n"],
        valid,
        valid and all(each.passed for each in found),
        max(loads) if valid else inf,
        "client_limited" in [reason["id"] for reason in value["verdict"]["reasons"]],
    )


def following(hunt: Hunt, steps: Sequence[Step]) -> Next | Found:
    """What to run after *steps*, or what they have found."""
    by_users: dict[int, list[Step]] = {}
    for each in steps:
        by_users.setdefault(each.users, []).append(each)
    decided = {users: _decision(hunt, runs) for users, runs in by_users.items()}
    low = max((users for users, holds in decided.items() if holds), default=0)
    high = min((users for users, holds in decided.items() if holds is False), default=None)
    settled = low >= hunt.last if high is None else high - low <= _width(low)
    if settled or len(steps) >= MOST_RUNS:
        return Found(low, high, settled)
    open_ones = [users for users, holds in decided.items() if holds is None]
    if open_ones:
        users = open_ones[0]
    elif high is None:
        users = min(_above(by_users), hunt.last) if low else hunt.first
    else:
        at_low = _typical(by_users[low]) if low else None
        left = MOST_RUNS - len(steps)
        users = _between(low, high, at_low, _typical(by_users[high]), left)
    return Next(users, _duration_s(hunt, steps, users))


def evidence(hunt: Hunt, runs: Sequence[Step]) -> list[Step]:
    """Of the runs of one number of users those that count.

    One with too few requests is run again for longer, once; one that is not valid says enough.
    """
    short, counted = False, []
    for each in runs:
        enough = each.requests >= hunt.needed(each.users, each.clear)
        if short or enough or not each.valid:
            counted.append(each)
        else:
            short = True
    return counted


def _decision(hunt: Hunt, runs: Sequence[Step]) -> bool | None:
    """Whether the limits hold at a number of users; None where another run has to tell."""
    counted = evidence(hunt, runs)
    for_it = sum(each.holds for each in counted)
    against = len(counted) - for_it
    if not counted:
        return None
    if counted[0].doubtful and max(for_it, against) <= MOST_NEAR // 2:
        return None
    return for_it > against


def _load(limit: Condition, value: float | str | None, passed: bool) -> float:
    if (
        isinstance(value, str)
        or isinstance(limit.limit, str)
        or value is None
        or limit.operator in ("==", "!=")
        or limit.limit <= 0
        or value <= 0
    ):
        return 0.0 if passed else inf
    return limit.limit / value if limit.operator in (">=", ">") else value / limit.limit


def _typical(runs: Sequence[Step]) -> float:
    return median(each.load for each in runs)


def _width(low: int) -> int:
    return max(1, int(low * NEAR))


def _above(by_users: Mapping[int, Sequence[Step]]) -> int:
    """The next number of users, while all limits have held."""
    low, *below = sorted(by_users, reverse=True)
    if not below:
        return 2 * low
    load, less = _typical(by_users[low]), _typical(by_users[below[0]])
    most = MOST_GROWTH * low
    if load <= less:
        return most
    guess = low + (1 - load) / (load - less) * (low - below[0])
    return int(min(max(guess, low + _width(low)), most))


def _between(low: int, high: int, at_low: float | None, at_high: float, runs_left: int) -> int:
    """Where to look within an open bracket."""
    if _halvings(low, high) != runs_left and at_low and at_low < 1 < at_high < inf:
        guess = low + int((high - low) * log(1 / at_low) / log(at_high / at_low))
        # Not so near to an end that the bracket would stay open if it is on that side.
        lowest, highest = low + _width(low), high - 1
        while (high - highest + 1) <= _width(highest - 1) and highest > lowest:
            highest -= 1
        return min(max(guess, lowest), highest)
    return _middle(low, high)


def _middle(low: int, high: int) -> int:
    """The geometric one, since answers are as good as the bracket's ratio."""
    return min(max(isqrt(low * high), low + 1), high - 1) if low else high // 2


def _halvings(low: int, high: int) -> int:
    """How many runs close a bracket at worst."""
    if high - low <= _width(low):
        return 0
    middle = _middle(low, high)
    return 1 + max(_halvings(low, middle), _halvings(middle, high))


def _duration_s(hunt: Hunt, steps: Sequence[Step], users: int) -> float:
    """How long a step measures: as asked, or as long as the rate of calls of others says."""
    known = [each for each in steps if each.requests]
    if not known:
        return hunt.duration_s
    # The slowest comparable one: of as many users or the next above, else the most users so far.
    above = [each for each in known if each.users >= users]
    nearest = min(above, key=_users) if above else max(known, key=_users)
    rate_a_user = nearest.requests / nearest.duration_s / nearest.users
    clear = all(each.load <= 1 / CLEAR for each in steps)
    wanted = IN_HAND * hunt.needed(users, clear) * (1 if above else 2)
    return max(hunt.duration_s, float(ceil(wanted / (rate_a_user * users))))


def _users(step: Step) -> int:
    return step.users
