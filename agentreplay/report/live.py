"""What a run shows while it goes: one line of the figures that tell whether to wait. I/O.

`Tally` takes the records as they come and keeps a few numbers of each, `line` puts things in
words, and `LiveView` keeps the line on the screen.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from agentreplay.metrics.record import Record
from agentreplay.plan import Plan
from agentreplay.replay import Progress
from agentreplay.report.text import banner
from agentreplay.units import as_duration, as_number

RECENT_NS = 10_000_000_000
"""Rates are over the last ten seconds."""

PLAIN_LINE_NS = 10_000_000_000
"""Without a terminal there is a line every so many nanoseconds."""


class _Running:
    """A percentile of values that become ever more.

    It is taken again when they are 2 % more, so that a long run does not hold up its own loop.
    """

    def __init__(self, q: int) -> None:
        self._q = q
        self._values = array("d")
        self._known: float | None = None
        self._next = 1

    def append(self, value: float) -> None:
        self._values.append(value)

    def percentile(self) -> float | None:
        if len(self._values) >= self._next:
            self._known = float(np.percentile(self._values, self._q))
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
        self._ttft_s = _Running(50)

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
        if record.request.warmup:
            return
        self.succeeded += 1
        first, last, osl = record.first_token_ns, record.last_token_ns, record.osl or 0
        self._recent.append((record.done_ns, record.isl or record.request.isl, osl))
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
        slow_s = self._tpot_s.percentile()
        return 1 / slow_s if slow_s else None

    @property
    def ttft_p50_s(self) -> float | None:
        """Median time to first token so far."""
        return self._ttft_s.percentile()


def how_far(now_ns: int, progress: Progress, duration_s: float | None) -> str:
    """How far a run is, in words. Its duration counts from the opening of the window.

    Args:
        now_ns: Time since the start of the run.
        progress: What it has come to.
        duration_s: How long is measured; None for no limit.
    """
    opened_ns, left, total = progress.opened_ns, progress.warmup_left, progress.warmup_total
    if opened_ns is None and not total:
        return "starting"
    if opened_ns is None:
        return f"warming up {now_ns / 1e9:.0f} s · {left} of {total} calls left"
    elapsed_s = (now_ns - opened_ns) / 1e9
    if elapsed_s < 0:
        return f"the window opens in {-elapsed_s:.0f} s"
    if duration_s is None:
        return as_duration(round(elapsed_s))
    if elapsed_s <= duration_s:
        return f"{elapsed_s:.0f}/{duration_s:.0f} s"
    return f"draining {elapsed_s - duration_s:.0f} s"


def line(tally: Tally, now_ns: int, progress: Progress, duration_s: float | None) -> str:
    """The figures of this moment."""
    total, output = tally.rates(now_ns)
    parts = [
        how_far(now_ns, progress, duration_s),
        f"{progress.live_lanes} users",
        f"{progress.in_flight} in flight",
        f"{tally.succeeded} done",
        f"{as_number(round(total))} tok/s total, {as_number(round(output))} output",
    ]
    if tally.interactivity_p90 is not None:
        parts.append(f"P90 {tally.interactivity_p90:.1f} tok/s/user")
    if tally.ttft_p50_s is not None:
        parts.append(f"TTFT {as_duration(tally.ttft_p50_s)}")
    if tally.busy:
        parts.append(f"{tally.busy} × busy")
    if tally.failures:
        kinds = ", ".join(f"{count} {kind}" for kind, count in tally.failures.most_common(3))
        parts.append(f"FAILED {kinds}: {tally.last_failure}")
    return " · ".join(parts)


class _Screen(Console):
    """Standard error; when nobody reads it any more, the run goes on without."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class LiveView:
    """The line on standard error, renewed in place; where that is no terminal, a line now and then.

    Use it in a with statement, as a run's `View`.

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
            self._live = Live(console=self._console, auto_refresh=False, transient=True)

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

    def show(self, now_ns: int, progress: Progress) -> None:
        """Show how things stand."""
        if self._live or now_ns >= self._next_ns:
            self._next_ns += PLAIN_LINE_NS
            shown = line(self._tally, now_ns, progress, self._plan.duration_s)
            if self._live:
                self._live.update(Text(shown, overflow="ellipsis", no_wrap=True), refresh=True)
            else:
                self._console.print(shown, soft_wrap=True)
