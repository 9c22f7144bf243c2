"""What was recorded: sessions of a coding agent, call by call. Values only, no I/O.

A *call* is one LLM request. A prompt is described without its text: it is the first `shared`
tokens of an earlier call's prompt (its `parent`), and new tokens after them. A *block* of tokens
is named by the call that first held it and its position, so equal prefixes are equal names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

MOST_TOKENS = 1 << 30
"""No prompt, answer or block has more; what says so is no length."""


class Call(NamedTuple):
    """One recorded LLM request of a session.

    A tuple, since a trace has ten thousands of them: it is made six times as fast as a dataclass.

    Attributes:
        start_s: Seconds from the session's start to the sending of this call.
        end_s: Seconds from the session's start to the last token of the answer.
        timed: Both stamps were recorded; where False, `end_s` is an estimate.
        isl: Input tokens, cached ones included.
        osl: Output tokens, reasoning included; 0 where the recording says so.
        after: Indices of the calls that must end before this one is sent; the first of them is
            its predecessor, any others are joins.
        gap_s: Seconds from the latest end of `after` (or the session's start) to `start_s`;
            never negative.
        parent: Index of the latest earlier call that shares the most leading tokens with this
            prompt; None where none shares a block. Below zero it counts from the end of
            `Session.lent`: a call of another session.
        shared: How many leading tokens `parent`'s prompt and this one share; a multiple of the
            session's block size.
        system: Leading tokens that are tool definitions and system prompt of this call's agent.
        agent: Label of the agent that made the call; "" is the main agent.
        model: The recorded model, where known.
        cached: Input tokens that the recorded server read from its cache, where recorded.
    """

    start_s: float
    end_s: float
    timed: bool
    isl: int
    osl: int
    after: tuple[int, ...]
    gap_s: float
    parent: int | None
    shared: int
    system: int
    agent: str
    model: str | None
    cached: int | None


@dataclass(frozen=True, slots=True)
class Session:
    """One agent run with all its subagents: a graph of calls, ordered by `start_s`.

    Attributes:
        id: The session's name in its recording.
        start_s: Arrival in seconds from the start of the set, where the set records arrivals.
        calls: The calls; every index in `after` and `parent` is smaller than the call's own.
        block_size: Tokens a block; every `shared` is a multiple of it.
        source: The file (and line, where a file holds several) that it was read from.
        lent: Calls of other sessions that prompts of this one begin with, where the block ids
            of a set are common to its sessions. They are not sent; only their prompts count.
        names: The numbers of `prompts` in the whole set, in order of time; empty where sessions
            share nothing. A call has its number in every session that it is lent to.
    """

    id: str
    start_s: float | None
    calls: tuple[Call, ...]
    block_size: int
    source: str
    lent: tuple[Call, ...] = ()
    names: tuple[int, ...] = ()

    @property
    def prompts(self) -> tuple[Call, ...]:
        """The calls and behind them the lent ones, so that every `parent` is an index of it."""
        return self.calls + self.lent

    def name(self, i: int) -> int:
        """What text that call *i* of `prompts` brings is named by."""
        return self.names[i] if self.names else i


Trace: TypeAlias = Sequence[Session]
"""Recorded sessions. A set on disk reads each one only when it is asked for."""


class Notes(Counter[str]):
    """What a reader left out or repaired, in words, and how often.

    Attributes:
        lines: The first lines of the file where it was so, for notes that have lines.
    """

    LINES_KEPT = 3

    def __init__(self, counts: Mapping[str, int] | Iterable[str] = ()) -> None:
        super().__init__(counts)
        self.lines: dict[str, list[int]] = {}

    def add(self, what: str, line: int | None = None, times: int = 1) -> None:
        """Count *what* once more, at *line*."""
        self[what] += times
        if line is not None:
            lines = self.lines.setdefault(what, [])
            if len(lines) < self.LINES_KEPT:
                lines.append(line)

    def merge(self, other: Notes) -> None:
        """Add the counts and lines of *other*."""
        self.update(other)
        for what, lines in other.lines.items():
            kept = self.lines.setdefault(what, [])
            kept += lines[: self.LINES_KEPT - len(kept)]
