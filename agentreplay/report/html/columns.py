"""What the page of a run draws: columns of numbers, taken from its records in one pass. Pure.

What counts where is decided as in `metrics.collector`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

from agentreplay.metrics.collector import arrivals, tpot_s
from agentreplay.metrics.record import Record, input_tokens, reused_tokens
from agentreplay.metrics.window import Window

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NONE = -1
"""Stands in columns of whole numbers for what was not measured."""

OK, FAILED, CUT, REFUSED = range(4)
"""What became of a request. `CUT`: at the end of the run; `REFUSED`: by a busy server, and sent
again."""

_WIDTHS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600)

_MESSAGES = 200
"""So many different words of failures are kept; further ones are told by their kind only."""

_INTS = (
    *("play", "lane", "visit", "call", "calls", "agent"),
    *("due", "sent", "first", "last", "done"),
    *("isl", "osl", "cached", "reuse", "prompt"),
    *("state", "warmup", "counted", "kind", "message"),
)
_FLOATS = ("ttft", "interactivity", "lag")


@dataclass(frozen=True, slots=True)
class Bins:
    """Equal parts of a run's time, of which one begins where the window opens.

    Attributes:
        start_ns: Where the first one begins.
        width_ns: How long each is.
        count: How many there are.
    """

    start_ns: int
    width_ns: int
    count: int

    @classmethod
    def over(cls, span: Window, until_ns: int, most: int = 120) -> Bins:
        """Those from the start of the run to *until_ns*, *most* or fewer."""
        seconds = until_ns / 1e9
        fitting = (width for width in _WIDTHS_S if seconds / width <= most - 1)
        width_ns = round(next(fitting, seconds / (most - 1)) * 1e9)
        open_ns = min(span.open_ns, until_ns)
        start_ns = open_ns - -(-open_ns // width_ns) * width_ns
        return cls(start_ns, width_ns, max(1, -(-(until_ns - start_ns) // width_ns)))

    @property
    def seconds(self) -> float:
        """How long each is."""
        return self.width_ns / 1e9

    @property
    def edges_ns(self) -> Ints:
        """Where each begins, and where the last one ends."""
        return self.start_ns + self.width_ns * np.arange(self.count + 1, dtype=np.int64)

    @property
    def middles_s(self) -> Floats:
        """The middle of each, in seconds of the run."""
        return np.asarray((self.edges_ns[:-1] + self.width_ns / 2) / 1e9, dtype=np.float64)

    def places(self, at_ns: Ints) -> Ints:
        """The bin of each instant; what lies beyond the ends is in the first or the last."""
        return np.clip((at_ns - self.start_ns) // self.width_ns, 0, self.count - 1)

    def sums(self, at_ns: Ints, values: Ints | Floats) -> Floats:
        """The sum of values in each bin."""
        sums = np.bincount(self.places(at_ns), weights=values, minlength=self.count)
        return np.asarray(sums, dtype=np.float64)

    def counts(self, at_ns: Ints) -> Ints:
        """How many instants lie in each bin."""
        return np.bincount(self.places(at_ns), minlength=self.count)

    def mean_open(self, starts_ns: Ints, stops_ns: Ints) -> Floats:
        """How many of some spans are open at once, as the mean over each bin."""
        edges = self.edges_ns
        open_ns = _elapsed(np.sort(starts_ns), edges) - _elapsed(np.sort(stops_ns), edges)
        return np.diff(open_ns) / self.width_ns


def _elapsed(instants: Ints, at: Ints) -> Floats:
    """The time since each of some sorted instants that have passed, added up, at some moments."""
    passed = np.searchsorted(instants, at)
    before = np.concatenate(([0.0], np.cumsum(instants, dtype=np.float64)))
    return np.asarray(at * passed - before[passed], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Played:
    """A play: whose, and of which session."""

    lane: int
    visit: int
    session: str


@dataclass(frozen=True, slots=True)
class Columns:
    """The requests of a run, a row each in order of lane, row and sending.

    Attributes:
        span: The window.
        until_ns: When the last answer was in, or cut.
        bins: Parts of the run's time.
        input_tokens: Tokens of prompts by the bin of their first token, failed requests left out.
        output_tokens: Output tokens by the bin in which they came, failed requests left out.
        ints: Columns of whole numbers by name: `play` (its number in `plays`), `lane`, `visit`,
            `call`, `calls`, `agent` (in `agents`); `due`, `sent`, `first`, `last`, `done` in
            nanoseconds; `isl` as the server counted it, else as sent, `osl`, `cached`, `reuse`
            (leading tokens that were sent before), `prompt` (tokens as `reuse` is a share of);
            `state`, `warmup`, `counted` (in the distributions over requests), `kind` and `message`
            of a failure (in `kinds` and `messages`), `row` (that it is drawn on, of its lane).
        floats: Others: `ttft` and `lag` in seconds, `interactivity`; nan where not measured.
        plays: In order of their first record.
        agents: Their labels; the first is the main agent.
        kinds: Kinds of failures.
        messages: Words of failures.
        rows: How many rows each lane is drawn on.
    """

    span: Window
    until_ns: int
    bins: Bins
    input_tokens: Floats
    output_tokens: Floats
    ints: dict[str, Ints]
    floats: dict[str, Floats]
    plays: tuple[Played, ...]
    agents: tuple[str, ...]
    kinds: tuple[str, ...]
    messages: tuple[str, ...]
    rows: dict[int, int]

    def __len__(self) -> int:
        return len(self.ints["sent"])

    def __getitem__(self, name: str) -> Ints:
        return self.ints[name]

    @property
    def counted(self) -> Bools:
        """The rows of which the distributions over requests are."""
        return self.ints["counted"] > 0


class _Names:
    """Texts that are told apart by numbers."""

    def __init__(self, *known: str, most: int | None = None) -> None:
        self._numbers = {name: number for number, name in enumerate(known)}
        self._most = most

    def number(self, name: str) -> int:
        """That of a text; `NONE` for a new one where there are too many."""
        if name not in self._numbers and self._most == len(self._numbers):
            return NONE
        return self._numbers.setdefault(name, len(self._numbers))

    def all(self) -> tuple[str, ...]:
        return tuple(self._numbers)


def columns(records: Iterable[Record], span: Window, until_ns: int) -> Columns:
    """The columns of records in any order.

    Args:
        records: All records of a run.
        span: Its window.
        until_ns: When the last answer was in, or cut.
    """
    bins = Bins.over(span, until_ns)
    came_in, came_out = np.zeros(bins.count), np.zeros(bins.count)
    ints, floats = array("q"), array("d")
    plays: dict[tuple[int, int], Played] = {}
    numbers: dict[tuple[int, int], int] = {}
    agents, kinds, messages = _Names(""), _Names(), _Names(most=_MESSAGES)
    for record in records:
        request, error = record.request, record.error
        key = request.lane, request.visit
        if key not in plays:
            numbers[key] = len(plays)
            plays[key] = Played(*key, request.session)
        state = _state(record)
        first, last = record.first_token_ns, record.last_token_ns
        measured = record.retry_s is None and not request.warmup
        if measured and state in (OK, CUT) and first is not None and last is not None:
            came_in[_place(bins, first)] += input_tokens(record)
            if (at := _place(bins, first)) == _place(bins, last):
                came_out[at] += record.osl or 0
            else:
                came_out += bins.sums(*arrivals(record))
        per_token_s = tpot_s(record) if state == OK else None
        ints.extend(
            (
                *(numbers[key], *key, request.call, request.calls, agents.number(request.agent)),
                *(request.due_ns, record.sent_ns, _or_none(first), _or_none(last), record.done_ns),
                *(input_tokens(record), _or_none(record.osl), _or_none(record.cached)),
                reused_tokens(record),
                input_tokens(record) if request.history == "live" else request.isl,
                *(state, request.warmup, measured and state == OK and span.holds(record.sent_ns)),
                kinds.number(error.kind) if error else NONE,
                messages.number(error.message) if error else NONE,
            )
        )
        floats.extend(
            (
                nan if first is None else (first - record.sent_ns) / 1e9,
                nan if per_token_s is None else 1 / per_token_s,
                (record.sent_ns - request.due_ns) / 1e9 - request.behind_s - request.busy_s,
            )
        )
    table = np.array(ints, dtype=np.int64).reshape(-1, len(_INTS))
    others = np.array(floats, dtype=np.float64).reshape(-1, len(_FLOATS))
    by = dict(zip(_INTS, table.T, strict=True))
    by["row"] = rows_of(by)
    order = np.lexsort((by["sent"], by["row"], by["lane"]))
    most = {int(lane): 1 for lane in np.unique(by["lane"])}
    for lane, row in zip(by["lane"].tolist(), by["row"].tolist(), strict=True):
        most[lane] = max(most[lane], row + 1)
    return Columns(
        span=span,
        until_ns=until_ns,
        bins=bins,
        input_tokens=came_in,
        output_tokens=came_out,
        ints={name: column[order] for name, column in by.items()},
        floats={name: each[order] for name, each in zip(_FLOATS, others.T, strict=True)},
        plays=tuple(plays.values()),
        agents=agents.all(),
        kinds=kinds.all(),
        messages=messages.all(),
        rows=most,
    )


def _state(record: Record) -> int:
    if record.retry_s is not None:
        return REFUSED
    if record.error is None:
        return OK
    return CUT if record.error.kind == "cancelled" else FAILED


def _or_none(value: int | None) -> int:
    return NONE if value is None else value


def _place(bins: Bins, at_ns: int) -> int:
    return min(max((at_ns - bins.start_ns) // bins.width_ns, 0), bins.count - 1)


def rows_of(by: Mapping[str, Ints]) -> Ints:
    """The row of its lane that each request is drawn on: no two on one row are under way at once.

    The main agent has the first one, as long as it has one call at a time; an agent keeps its row
    where it can.

    Args:
        by: The columns `play`, `lane`, `agent`, `sent` and `done`.
    """
    found = np.zeros(len(by["sent"]), dtype=np.int64)
    free: dict[int, list[int]] = {}  # when each row of a lane is free again
    kept: dict[tuple[int, int], int] = {}
    order = np.lexsort((by["sent"],))
    names = ("play", "lane", "agent", "sent", "done")
    columns = zip(order.tolist(), *(by[name][order].tolist() for name in names), strict=True)
    for place, play, lane, agent, sent, done in columns:
        rows = free.setdefault(lane, [0])
        row = kept.get((play, agent), 0 if agent == 0 else NONE)
        if row == NONE or rows[row] > sent:
            row = next((n for n in range(1, len(rows)) if rows[n] <= sent), len(rows))
            if row == len(rows):
                rows.append(0)
        if agent:
            kept[play, agent] = row
        rows[row] = max(done, sent)
        found[place] = row
    return found
