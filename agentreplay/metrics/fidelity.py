"""Where the server's cache fell short of what it could have held, and the likely reason. Pure.

The prediction is what was sent before in this run; a server reports what it found. Engines find
whole blocks only, so less than a block of difference says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

SHOWN = 5


class Found(NamedTuple):
    """What the server found of one successful request's prompt.

    Attributes:
        sent_ns: When it was sent.
        first_token_ns: When its prompt had been computed.
        play: Lane and visit.
        session: Id of the session.
        call: Index of the call.
        block: Tokens a block of the recording.
        reuse: Tokens that it could have found.
        cached: Tokens that it did find.
        live: Its last assistant's turn is the server's own answer.
    """

    sent_ns: int
    first_token_ns: int
    play: tuple[int, int]
    session: str
    call: int
    block: int
    reuse: int
    cached: int
    live: bool = False


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A call of which the server found less than it could have."""

    session: str
    call: int
    lane: int
    visit: int
    reuse: int
    cached: int
    reason: str


@dataclass(frozen=True, slots=True)
class Shortfalls:
    """How well the server's cache did, call by call.

    Attributes:
        calls: Successful calls that report cached tokens.
        short: How many of them fell short by more than a block.
        server_block: Tokens that the server's counts are multiples of; None where it found none.
        first: The first of those that fell short.
    """

    calls: int
    short: int
    server_block: int | None
    first: tuple[Shortfall, ...]


def shortfalls(found: Sequence[Found]) -> Shortfalls:
    """Compare prediction and report, call by call, in order of sending."""
    server_block = gcd(*(each.cached for each in found)) or None
    short = [
        each
        for each in sorted(found)
        if each.reuse - each.cached > max(each.block, server_block or 0)
    ]
    first = tuple(
        Shortfall(
            session=each.session,
            call=each.call,
            lane=each.play[0],
            visit=each.play[1],
            reuse=each.reuse,
            cached=each.cached,
            reason=_reason(each, found, short),
        )
        for each in short[:SHOWN]
    )
    return Shortfalls(len(found), len(short), server_block, first)


def _precedes(other: Found, each: Found) -> bool:
    return other.play == each.play and other.sent_ns < each.sent_ns


def _reason(each: Found, found: Sequence[Found], short: Sequence[Found]) -> str:
    """The likeliest of what can keep a prefix from being found."""
    if any(
        other.play == each.play and other.sent_ns < each.sent_ns < other.first_token_ns
        for other in found
    ):
        return "sent while another prompt of the session was still being computed"
    if each.live:
        return "its own answer reads as other tokens when it comes back, or was evicted"
    before = max((other for other in found if _precedes(other, each)), default=None)
    if before is None and any(
        other.sent_ns < each.sent_ns < other.first_token_ns for other in found
    ):
        return "sent while a prompt that begins alike may still have been computed, or evicted"
    if each.cached == 0:
        return "nothing found: evicted, or sent to another server"
    if before is not None and abs(each.cached - before.reuse) <= each.block:
        return "found up to the last turn of the call before only: the template rewrites it"
    again = sum(other.play == each.play and other.cached == each.cached for other in short)
    if again > 1:
        return f"always found up to token {each.cached:,} only: the template rewrites what follows"
    return "found in part: evicted since"
