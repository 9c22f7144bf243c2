"""What a run shows while it goes: whether it is worth waiting for. I/O.

`Tally` takes the records as they come and keeps a few numbers of each; `screen` and `line` put
things in words, for a terminal and for a log; `LiveView` shows them.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentreplay.metrics.record import Record
from agentreplay.metrics.server import Load
from agentreplay.metrics.summary import ClientHealth
from agentreplay.plan import Plan
from agentreplay.replay import Progress
from agentreplay.report.text import banner
from agentreplay.units import as_duration, as_number, as_percent

RECENT_NS = 10_000_000_000
"""Rates are over the last ten seconds."""

PLAIN_LINE_NS = 10_000_000_000
"""Without a terminal there is a line every so many nanoseconds."""

BAR_CHARS = 40

LATE_SHARE, LATE_S, LAG_S = 0.01, 0.25, 0.05
"""A client that is later than this is shown in red: so it would make a run invalid."""


class _Running:
    """Percentiles of values that become ever more.

    They are taken again when there are 2 % more, so that a long run does not hold up its own loop.
    """

    def __init__(self, *percents: int) -> None:
        self._percents = percents
        self._values = array("f")  # seven digits are enough for a screen, and half the memory
        self._known: list[float] | None = None
        self._next = 1

    def append(self, value: float) -> None:
        self._values.append(value)

    def percentiles(self) -> list[float] | None:
        if len(self._values) >= self._next:
            self._known = np.percentile(self._values, self._percents).tolist()
            self._next = len(self._values) * 51 // 50 + 1
        return self._known


class Tally:
    """The running figures of a run.

    Attributes:
        succeeded: Requests that succeeded.
        failures: Failed requests by kind.
        last_failure: The latest cause.
        busy: Refusals of a busy server that were waited out.
    """

    def __init__(self) -> None:
        self.succeeded = 0
        self.failures: Counter[str] = Counter()
        self.last_failure = ""
        self.busy = 0
        self._recent: deque[tuple[int, int, int]] = deque()
        self._tpot_s = _Running(90)
        self._ttft_s = _Running(50, 90)
        self._lag_s = _Running(99)

    def take(self, record: Record) -> None:
        """Count a record; of one of the warm-up only a failure."""
        if record.retry_s is not None:
            self.busy += 1
            return
        if record.error is not None:
            if record.error.kind != "cancelled":
                self.failures[record.error.kind] += 1
                self.last_failure = record.error.message
            return
        request = record.request
        if request.warmup:
            return
        self.succeeded += 1
        first, last, osl = record.first_token_ns, record.last_token_ns, record.osl or 0
        self._recent.append((record.done_ns, record.isl or request.isl, osl))
        lag_s = (record.sent_ns - request.due_ns) / 1e9
        self._lag_s.append(lag_s - request.behind_s - request.busy_s)
        if first is None or last is None:
            return
        self._ttft_s.append((first - record.sent_ns) / 1e9)
        if osl > 1 and last > first and not record.burst:
            self._tpot_s.append((last - first) / 1e9 / (osl - 1))

    def rates(self, now_ns: int) -> tuple[float, float]:
        """Total and output tokens a second of the answers that ended in the last seconds."""
        while self._recent and self._recent[0][0] < now_ns - RECENT_NS:
            self._recent.popleft()
        seconds = min(now_ns, RECENT_NS) / 1e9
        if seconds <= 0:
            return 0.0, 0.0
        output = sum(osl for _, _, osl in self._recent)
        return (sum(isl for _, isl, _ in self._recent) + output) / seconds, output / seconds

    @property
    def interactivity_p90(self) -> float | None:
        """Tokens a second that 90 % of the requests so far reach."""
        slow_s = self._tpot_s.percentiles()
        return 1 / slow_s[0] if slow_s else None

    @property
    def ttft_s(self) -> tuple[float, float] | None:
        """Median and 90th percentile of the time to first token so far."""
        found = self._ttft_s.percentiles()
        return (found[0], found[1]) if found else None

    @property
    def lag_p99_s(self) -> float | None:
        """How late 99 % of the requests so far were sent at most."""
        found = self._lag_s.percentiles()
        return found[0] if found else None


def phase(now_ns: int, progress: Progress, duration_s: float | None) -> tuple[str, float | None]:
    """What a run does, in words, and how much of it is done. Its duration counts from the opening
    of the window.

    Args:
        now_ns: Time since the start of the run.
        progress: What it has come to.
        duration_s: How long is measured; None for no limit.
    """
    opened_ns, left, total = progress.opened_ns, progress.warmup_left, progress.warmup_total
    if opened_ns is None and not total:
        return "starting", None
    if opened_ns is None:
        words = f"warming up {now_ns / 1e9:.0f} s · {left} of {total} calls left"
        return words, (total - left) / total
    elapsed_s = (now_ns - opened_ns) / 1e9
    if elapsed_s < 0:
        return f"the window opens in {-elapsed_s:.0f} s", None
    if duration_s is None:
        return f"measuring {as_duration(round(elapsed_s))}", None
    if elapsed_s <= duration_s:
        words = f"measuring {elapsed_s:.0f}/{duration_s:.0f} s"
        return f"{words}, {duration_s - elapsed_s:.0f} s left", elapsed_s / duration_s
    return f"draining {elapsed_s - duration_s:.0f} s", 1.0


def figures(tally: Tally, now_ns: int, progress: Progress, server: Load | None) -> dict[str, str]:
    """The figures of this moment in words, by what they are about."""
    total, output = tally.rates(now_ns)
    so_far = [f"{tally.succeeded:,} done"]
    if tally.interactivity_p90 is not None:
        so_far.append(f"P90 {tally.interactivity_p90:.1f} tok/s/user")
    if tally.ttft_s is not None:
        p50_s, p90_s = tally.ttft_s
        so_far.append(f"TTFT {as_duration(p50_s)}, P90 {as_duration(p90_s)}")
    found = {
        "users": f"{progress.live_lanes:,} users, {progress.in_flight:,} in flight",
        "last 10 s": (f"{as_number(round(total))} tok/s total, {as_number(round(output))} output"),
        "so far": " · ".join(so_far),
        "failed": _failures(tally),
        "client": _client(tally, progress.health),
    }
    if server is not None:
        found["server"] = _server(server)
    return found


def _failures(tally: Tally) -> str:
    kinds = [f"{count:,} {kind}" for kind, count in tally.failures.most_common(3)]
    words = f"{', '.join(kinds)}: {tally.last_failure}" if kinds else "none"
    return f"{words} · {tally.busy:,} × busy" if tally.busy else words


def _client(tally: Tally, health: ClientHealth | None) -> str:
    said = []
    if tally.lag_p99_s is not None:
        said.append(f"lag P99 {as_duration(max(0.0, tally.lag_p99_s))}")
    if health is not None:
        if health.loop_late_share is not None:
            said.append(f"late {as_percent(health.loop_late_share)} of the time")
        said.append(f"CPU {as_percent(max(health.cpu_share, default=0.0))}")
    return " · ".join(said) or "–"


def _server(load: Load) -> str:
    said = []
    if load.running is not None:
        said.append(f"{load.running:,} running")
    if load.waiting is not None:
        said.append(f"{load.waiting:,} waiting")
    if load.kv_use is not None:
        said.append(f"KV {as_percent(load.kv_use)}")
    return " · ".join(said)


def is_too_slow(tally: Tally, health: ClientHealth | None) -> bool:
    """Whether the client is so late that the run would not be valid."""
    late = health is not None and (
        (health.loop_late_share or 0.0) > LATE_SHARE or health.loop_late_max_s > LATE_S
    )
    return late or (tally.lag_p99_s or 0.0) > LAG_S


def line(
    tally: Tally,
    now_ns: int,
    progress: Progress,
    duration_s: float | None,
    server: Load | None = None,
) -> str:
    """This moment in a line."""
    words, _ = phase(now_ns, progress, duration_s)
    found = figures(tally, now_ns, progress, server)
    parts = [words, found["users"], found["last 10 s"], found["so far"]]
    if is_too_slow(tally, progress.health):
        parts.append(f"CLIENT TOO SLOW {found['client']}")
    if server is not None:
        parts.append(f"server {found['server']}")
    if tally.failures or tally.busy:
        parts.append(f"FAILED {found['failed']}")
    return " · ".join(parts)


def screen(
    tally: Tally,
    now_ns: int,
    progress: Progress,
    duration_s: float | None,
    server: Load | None = None,
) -> Table:
    """This moment for a terminal: the same lines at any number of users."""
    words, share = phase(now_ns, progress, duration_s)
    bar = ProgressBar(total=1.0, completed=share or 0.0, width=BAR_CHARS)
    found = figures(tally, now_ns, progress, server)
    styles = {
        "failed": "bold red" if tally.failures else "",
        "client": "bold red" if is_too_slow(tally, progress.health) else "",
    }
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(style="dim", no_wrap=True, width=9)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_row("", bar)
    table.add_row("phase", Text(words))
    for name, said in found.items():
        table.add_row(name, Text(said, styles.get(name, ""), no_wrap=True, overflow="ellipsis"))
    return table


class _Screen(Console):
    """Standard error; when nobody reads it any more, the run goes on without."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class LiveView:
    """The screen on standard error, renewed in place; where that is no terminal, a line now and
    then. Use it in a with statement, as a run's `View`.

    Args:
        plan: The plan of the run.
        manifest: What run.json says.
    """

    def __init__(self, plan: Plan, manifest: Mapping[str, Any]) -> None:
        self._console = _Screen(stderr=True, highlight=False, markup=False)
        self._plan = plan
        self._endpoint = manifest["endpoint"]
        self._cautions = manifest["cautions"]
        self._tally = Tally()
        self._next_ns = PLAIN_LINE_NS
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True, redirect_stdout=False
            )

    def __enter__(self) -> LiveView:
        if self._endpoint["simulated"]:
            self._console.print(banner(self._endpoint["simulated"]), style="bold yellow")
        where = ", ".join(self._endpoint["urls"])
        self._console.print(f"{where} · {self._endpoint['model']}", soft_wrap=True)
        for caution in self._cautions:
            self._console.print(caution, style="bold yellow", soft_wrap=True)
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def take(self, record: Record) -> None:
        """Count a record."""
        self._tally.take(record)

    def show(self, now_ns: int, progress: Progress, server: Load | None = None) -> None:
        """Show how things stand, and how the server says that it does."""
        duration_s = self._plan.duration_s
        if self._live:
            self._live.update(
                screen(self._tally, now_ns, progress, duration_s, server), refresh=True
            )
        elif now_ns >= self._next_ns:
            self._next_ns += PLAIN_LINE_NS
            shown = line(self._tally, now_ns, progress, duration_s, server)
            self._console.print(shown, soft_wrap=True)
