"""What a server's own metrics say of a run, and whether its counts are those of the answers. Pure.

Counts are compared over the whole run, between a reading before the first request and one after
the last answer. All else is over the window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Any

from agentreplay.metrics.record import Record, input_tokens
from agentreplay.metrics.window import Window

MILLION = 1_000_000
"""From here on six digits are not exact: each of two readings may be half of the last one off,
together a hundred-thousandth."""

UNSERVED = ("connect", "tls", "client")
"""Failures of requests that no server has seen."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a server said of itself at one moment; None where it says nothing.

    Attributes:
        at_ns: When it was asked, in nanoseconds of the run; below zero before the run.
        url: The address of the metrics.
        running: Requests that are being worked on.
        waiting: Requests that wait for that.
        kv_use: Share of the KV cache that requests hold, of the fullest engine.
        acceptance: Share of drafted tokens that were accepted lately, where it counts no tokens.
        prompt_tokens: Input tokens so far, cached ones included.
        generated_tokens: Output tokens so far.
        looked_up_tokens: Input tokens that were looked up in the prefix cache so far.
        found_tokens: Those of them that were found.
        drafted_tokens: Tokens that speculative decoding has proposed so far.
        accepted_tokens: Those of them that were accepted.
        preemptions: How often a running request had to give way so far.
        error: Why nothing could be read; None where something was.
    """

    at_ns: int
    url: str
    running: int | None = None
    waiting: int | None = None
    kv_use: float | None = None
    acceptance: float | None = None
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    looked_up_tokens: int | None = None
    found_tokens: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    preemptions: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What several addresses say of one moment: their requests added up, the fullest KV cache."""

    running: int | None
    waiting: int | None
    kv_use: float | None


def together(readings: Sequence[Reading]) -> Load:
    """The load of all addresses, of one good reading each."""
    running = [each.running for each in readings if each.running is not None]
    waiting = [each.waiting for each in readings if each.waiting is not None]
    return Load(
        running=sum(running) if running else None,
        waiting=sum(waiting) if waiting else None,
        kv_use=max((each.kv_use for each in readings if each.kv_use is not None), default=None),
    )


@dataclass(slots=True)
class Answered:
    """Tokens of a run's requests, as the answers say; what only the server can know is *open*.

    A request that was cut or failed may have been counted by the server in part. Refused ones and
    those that never got there are in no count.

    Attributes:
        prompt_tokens: Of prompts that were answered, at least in part.
        open_prompt_tokens: Of prompts without any token of an answer.
        generated_tokens: Of answers, as far as they came.
        open_generated_tokens: What was still to come of those that were cut or failed.
        cached_tokens: What the server said it had found; None where it never did.
        open_cached_tokens: Of prompts of which it didn't say that.
        estimated: Successful requests without usage: their tokens are ours, not the server's.
    """

    prompt_tokens: int = 0
    open_prompt_tokens: int = 0
    generated_tokens: int = 0
    open_generated_tokens: int = 0
    cached_tokens: int | None = None
    open_cached_tokens: int = 0
    estimated: int = 0

    def add(self, record: Record) -> None:
        """Take a record."""
        error, prompt, osl = record.error, input_tokens(record), record.osl or 0
        if error is not None and (error.kind in UNSERVED or error.status not in (None, 200)):
            return
        if record.isl is None and record.first_token_ns is None:
            self.open_prompt_tokens += prompt
        else:
            self.prompt_tokens += prompt
        self.generated_tokens += osl
        if error is not None:
            self.open_generated_tokens += max(0, record.request.osl - osl)
        elif record.isl is None or record.estimated:
            self.estimated += 1
        if record.cached is None:
            self.open_cached_tokens += prompt
        else:
            self.cached_tokens = (self.cached_tokens or 0) + record.cached


@dataclass(frozen=True, slots=True)
class Count:
    """Tokens as the server counted them, and as its answers said.

    Attributes:
        server: By its metrics; None where these don't say.
        ours: By its answers; None where these never say.
        open: So many more it may have counted for requests that were cut or failed.
        rounding: What six digits of its counters can't tell; llama.cpp writes no more.
    """

    server: int | None
    ours: int | None
    open: int
    rounding: int

    @property
    def unexplained(self) -> int:
        """What the server counted beyond what requests of ours can account for; negative where it
        counted less than it answered."""
        if self.server is None or self.ours is None:
            return 0
        more = self.server - self.ours
        if more > 0:
            return max(0, more - self.open - self.rounding)
        return min(0, more + self.rounding)


@dataclass(frozen=True, slots=True)
class Spread:
    """Of the readings in the window."""

    mean: float
    max: float


@dataclass(frozen=True, slots=True)
class Source:
    """An address of metrics.

    Attributes:
        url: The address.
        readings: How often it was read.
        failed: How often nothing came of that.
        error: Why not, the last time; None where it never failed.
    """

    url: str
    readings: int
    failed: int
    error: str | None


@dataclass(frozen=True, slots=True)
class Server:
    """What the server's metrics say of a run; None where they don't say.

    Attributes:
        sources: The addresses that were read.
        running: Requests that it worked on, in the window.
        waiting: Requests that waited, in the window.
        kv_use: Share of the KV cache that requests held, in the window.
        preemptions: How many running requests had to give way, in the window.
        hit_share: Found / looked-up tokens of the prefix cache, in the window.
        drafted_tokens: Tokens that speculative decoding proposed, in the whole run.
        draft_acceptance: Share of these that was accepted, in the window.
        drafts: Whether it decoded speculatively at any time of the run.
        prompt: Input tokens, over the whole run.
        generated: Output tokens, over the whole run.
        cached: Input tokens found in the prefix cache, over the whole run.
        unchecked: Why the server's counts of the whole run aren't known; None where they are.
        estimated: Successful requests that came without usage, so that ours aren't exact.
    """

    sources: tuple[Source, ...]
    running: Spread | None
    waiting: Spread | None
    kv_use: Spread | None
    preemptions: int | None
    hit_share: float | None
    drafted_tokens: int | None
    draft_acceptance: float | None
    drafts: bool
    prompt: Count
    generated: Count
    cached: Count
    unchecked: str | None
    estimated: int


@dataclass(frozen=True, slots=True)
class Moment:
    """What all addresses together say of a moment, and of the time since the moment before it.

    Attributes:
        at_ns: When they were asked, in nanoseconds of the run.
        load: What they say; None where one that answers otherwise couldn't be read.
        acceptance: Share of drafted tokens that were accepted lately, where no tokens are counted.
        seconds: The time since the moment before; None where that, or this one, is missing.
        grown: By how much each counter of `COUNTERS` has grown in that time; what isn't told, or
            has gone back, is not in it.
        error: Why this moment is missing, or some of its counters.
    """

    at_ns: int
    load: Load | None
    acceptance: float | None
    seconds: float | None
    grown: dict[str, int]
    error: str | None


def course(readings: Iterable[Reading]) -> list[Moment]:
    """What the server said from moment to moment.

    As in `Server`, addresses that never answered don't count, and moments at which an address
    that did is still waited for are left out.
    """
    by_url: dict[str, list[Reading]] = {}
    for each in readings:
        by_url.setdefault(each.url, []).append(each)
    moments: dict[int, list[Reading]] = {}
    for each in (each for found in by_url.values() for each in _begun(found)):
        moments.setdefault(each.at_ns, []).append(each)
    answering = {
        url for url, found in by_url.items() if any(each.error is None for each in found)
    } or set(by_url)
    found, before = [], dict[str, Reading]()
    for at_ns, asked in sorted(moments.items()):
        now = {each.url: each for each in asked if each.url in answering}
        errors = [
            f"{each.url}: {each.error}" if len(by_url) > 1 else each.error
            for each in now.values()
            if each.error is not None
        ]
        if errors:
            found.append(Moment(at_ns, None, None, None, {}, "; ".join(errors)))
            before = {}
        elif len(now) == len(answering):
            found.append(_moment(at_ns, now, before))
            before = now
    return found


def _begun(readings: Sequence[Reading]) -> Iterator[Reading]:
    """The same with 0 for each counter that stands on the page only later."""
    later = {name for name in COUNTERS if any(getattr(each, name) is not None for each in readings)}
    for each in readings:
        later -= {name for name in later if getattr(each, name) is not None}
        zeros: dict[str, Any] = dict.fromkeys(later, 0)
        yield replace(each, **zeros) if each.error is None else each


def _moment(at_ns: int, now: dict[str, Reading], before: dict[str, Reading]) -> Moment:
    known = [each.acceptance for each in now.values() if each.acceptance is not None]
    acceptance = sum(known) / len(known) if known else None
    load = together(list(now.values()))
    if not before:
        return Moment(at_ns, load, acceptance, None, {}, None)
    pairs = [(before[url], each) for url, each in now.items()]
    grown = {name: more for name in COUNTERS if (more := _grown(pairs, name)) is not None}
    back = any(_went_back(pair, name) for pair in pairs for name in COUNTERS)
    seconds = (at_ns - pairs[0][0].at_ns) / 1e9
    return Moment(at_ns, load, acceptance, seconds, grown, "its counts went back" if back else None)


COUNTERS = (
    *("prompt_tokens", "generated_tokens", "looked_up_tokens", "found_tokens"),
    *("drafted_tokens", "accepted_tokens", "preemptions"),
)


def server_of(
    readings: Iterable[Reading], window: Window, done_ns: int, answered: Answered
) -> Server | None:
    """Everything about the server; None where its metrics were never read.

    Args:
        readings: In order of time.
        window: What most of it is over.
        done_ns: When the last answer was in.
        answered: What the answers say.
    """
    by_url: dict[str, list[Reading]] = {}
    for each in readings:
        by_url.setdefault(each.url, []).append(each)
    if not by_url:
        return None
    good = [[each for each in found if each.error is None] for found in by_url.values()]
    unchecked = _unchecked(good, done_ns)
    whole = [found[max(0, sum(each.at_ns <= 0 for each in found) - 1) :] for found in good]
    inside = [_span(found, window.open_ns, window.close_ns) for found in good]
    loads = _loads(good, window)
    lately = [
        each.acceptance
        for found in good
        for each in found
        if each.acceptance and window.holds(each.at_ns)
    ]
    drafted, accepted = (_grown(inside, f"{name}_tokens") for name in ("drafted", "accepted"))
    acceptance = _share(accepted, drafted)
    if acceptance is None and lately:
        acceptance = sum(lately) / len(lately)
    drafted_whole = _grown(whole, "drafted_tokens")

    def count(name: str, ours: int | None, still_open: int) -> Count:
        last = sum(values[-1] for found in whole if found and (values := _values(found, name)))
        rounding = ceil(last / 100_000) if last >= MILLION else 0
        return Count(None if unchecked else _grown(whole, name), ours, still_open, rounding)

    return Server(
        sources=tuple(_source(url, found) for url, found in by_url.items()),
        running=_spread([each.running for each in loads]),
        waiting=_spread([each.waiting for each in loads]),
        kv_use=_spread([each.kv_use for each in loads]),
        preemptions=_grown(inside, "preemptions"),
        hit_share=_share(_grown(inside, "found_tokens"), _grown(inside, "looked_up_tokens")),
        drafted_tokens=drafted_whole,
        draft_acceptance=acceptance,
        drafts=bool(drafted_whole or drafted)
        or any(each.acceptance for found in whole for each in found[1:]),
        prompt=count("prompt_tokens", answered.prompt_tokens, answered.open_prompt_tokens),
        generated=count(
            "generated_tokens", answered.generated_tokens, answered.open_generated_tokens
        ),
        cached=count("found_tokens", answered.cached_tokens, answered.open_cached_tokens),
        unchecked=unchecked,
        estimated=answered.estimated,
    )


def _source(url: str, readings: Sequence[Reading]) -> Source:
    errors = [each.error for each in readings if each.error is not None]
    return Source(url, len(readings), len(errors), errors[-1] if errors else None)


def _unchecked(good: Sequence[Sequence[Reading]], done_ns: int) -> str | None:
    """Why what the server counted over the whole run can't be told."""
    if not any(good):
        return "no reading succeeded"
    if any(not found or found[0].at_ns > 0 for found in good):
        return "no reading before the first request"
    if any(found[-1].at_ns < done_ns for found in good):
        return "no reading after the last answer"
    if any(_went_back(found, name) for found in good for name in COUNTERS):
        return "its counts went back: it was started again, or several servers answer there"
    return None


def _span(readings: Sequence[Reading], open_ns: int, close_ns: int) -> Sequence[Reading]:
    """From the last one before a span of time to the first one after it, where there are such."""
    first = sum(each.at_ns <= open_ns for each in readings) - 1
    last = sum(each.at_ns < close_ns for each in readings)
    return readings[max(0, first) : last + 1]


def _values(readings: Sequence[Reading], name: str) -> list[int]:
    """The values of a counter. It stands on the page from its first step on: before, it was 0."""
    values = [value for each in readings if (value := getattr(each, name)) is not None]
    return [0, *values] if values and getattr(readings[0], name) is None else values


def _went_back(readings: Sequence[Reading], name: str) -> bool:
    return any(later < earlier for earlier, later in pairwise(_values(readings, name)))


def _grown(spans: Sequence[Sequence[Reading]], name: str) -> int | None:
    """By how much a counter has grown, over all addresses that have it."""
    known = [span for span in spans if len(span) > 1 and _values(span, name)]
    if not known or any(_went_back(span, name) for span in known):
        return None
    return sum((values := _values(span, name))[-1] - values[0] for span in known)


def _loads(good: Sequence[Sequence[Reading]], window: Window) -> list[Load]:
    """The load at each moment of the window at which every address was read that ever was."""
    moments: dict[int, list[Reading]] = {}
    for each in (each for found in good for each in found):
        if window.holds(each.at_ns):
            moments.setdefault(each.at_ns, []).append(each)
    answering = sum(bool(found) for found in good)
    return [together(found) for found in moments.values() if len(found) == answering]


def _spread(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(sum(known) / len(known), max(known)) if known else None


def _share(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None
