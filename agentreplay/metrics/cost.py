"""What tokens cost: by the GPU-hour, and by a provider's prices. Values and arithmetic only.

Money is in dollars. Prices are for a million tokens; input tokens that come from a cache have a
price of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentreplay.metrics.record import Record, Request, input_tokens, reused_tokens


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens that a provider counts.

    Attributes:
        input: Of prompts, cached ones included.
        cached: Of these, what was read from a cache.
        output: Of answers.
    """

    input: int = 0
    cached: int = 0
    output: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.input + other.input, self.cached + other.cached, self.output + other.output
        )

    def __sub__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.input - other.input, self.cached - other.cached, self.output - other.output
        )


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars for a million tokens of each kind.

    Attributes:
        input: Of input that no cache held.
        cached: Of input from a cache.
        output: Of output.
    """

    input: float
    cached: float
    output: float

    def dollars(self, tokens: Tokens) -> float:
        """cached × p_cached + (input − cached) × p_input + output × p_output."""
        fresh = tokens.input - tokens.cached
        millionths = fresh * self.input + tokens.cached * self.cached + tokens.output * self.output
        return millionths / 1e6


@dataclass(frozen=True, slots=True)
class Money:
    """What makes money of a run's figures; None where it is not known.

    Attributes:
        gpus: How many GPUs serve.
        gpu_hour: Dollars for an hour of one of them.
        prices: What tokens cost.
    """

    gpus: int | None = None
    gpu_hour: float | None = None
    prices: Prices | None = None

    def updated(self, newer: Money) -> Money:
        """The same, with whatever is known in *newer*."""
        return Money(
            self.gpus if newer.gpus is None else newer.gpus,
            self.gpu_hour if newer.gpu_hour is None else newer.gpu_hour,
            self.prices if newer.prices is None else newer.prices,
        )


def money_of(value: Mapping[str, Any] | None) -> Money:
    """What `dataclasses.asdict` made a value of; nothing is known where there is none."""
    found = dict(value or {})
    prices = found.pop("prices", None)
    return Money(**found, prices=Prices(**prices) if prices else None)


def tokens_per_dollar(token_rate: float | None, gpu_hour: float | None) -> float | None:
    """Tokens for a dollar, of tokens a second of one GPU and dollars for its hour."""
    return token_rate * 3600 / gpu_hour if token_rate and gpu_hour else None


def dollars_per_million(per_dollar: float | None) -> float | None:
    """Dollars for a million tokens, of tokens for a dollar."""
    return 1e6 / per_dollar if per_dollar else None


def expected(request: Request) -> Tokens:
    """What a request will be counted with if it is answered as planned."""
    isl = request.isl + request.overlong
    osl = 1 if request.warmup else max(1, request.osl)
    return Tokens(isl, min(request.reuse, isl), osl)


def billed(record: Record) -> Tokens | None:
    """What a request is counted with; None for one that brought no token, which costs nothing.

    Of one that failed or was cut, its prompt and the tokens that came. Where the server says
    nothing about cached tokens, they are as predicted.
    """
    if record.first_token_ns is None:
        return None
    isl = input_tokens(record)
    cached = reused_tokens(record) if record.cached is None else record.cached
    return Tokens(isl, min(cached, isl), record.osl or 0)


class Spending:
    """Keeps a run's bill at its limit or below while it goes.

    Requests in flight count as `expected`; the server may find less in its cache, so that the bill
    ends higher by what these cost more.

    Args:
        prices: What tokens cost.
        limit: Dollars.
    """

    def __init__(self, prices: Prices, limit: float) -> None:
        self._prices = prices
        self._limit = limit
        self._tokens = Tokens()

    @property
    def over(self) -> bool:
        """Whether the limit is reached."""
        return self._prices.dollars(self._tokens) >= self._limit

    def affords(self, tokens: Tokens) -> bool:
        """Count what is about to be sent, unless that goes over the limit."""
        total = self._tokens + tokens
        if self._prices.dollars(total) > self._limit:
            return False
        self._tokens = total
        return True

    def settle(self, tokens: Tokens, came: Tokens | None) -> None:
        """Count what a request came to, in place of what was expected of it."""
        self._tokens += (came or Tokens()) - tokens
