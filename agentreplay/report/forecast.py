"""What a plan would send, for the terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agentreplay.forecast import Forecast
from agentreplay.units import as_duration, as_number, as_percent, as_tokens


def forecast_report(
    found: Forecast, dollars: float | None, left_out: dict[str, int]
) -> RenderableType:
    """The forecast of a run that sends nothing."""
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    facts.add_column(style="bold")
    facts.add_column(justify="right")
    facts.add_column(style="dim")
    for row in _rows(found):
        facts.add_row(*row)
    if dollars is not None:
        facts.add_row("Cost", f"$ {dollars:,.2f}", "at the prices given, with that reuse")
    return Group(facts, *(Text(f"{times:,} sessions {why}") for why, times in left_out.items()))


def _rows(found: Forecast) -> Iterator[tuple[str, str, str]]:
    reuse = found.cached_tokens / found.input_tokens if found.input_tokens else None
    yield "Plays", as_number(found.plays), f"of {found.sessions} sessions"
    if found.warmup_calls:
        warmup = f"of one token, with {as_tokens(found.warmup_tokens)} input tokens"
        yield "Warm-up calls", as_number(found.warmup_calls), warmup
        sent_s = as_duration(found.warmup_sent_s)
        yield "Warm-up", sent_s, "until the last of them is sent, if each is answered at once"
    yield "Calls", as_number(found.calls), ""
    yield "Input tokens", as_tokens(found.input_tokens), "cached ones included"
    yield "Prefix reuse", as_percent(reuse), f"{as_tokens(found.cached_tokens)} tokens, at best"
    yield "Output tokens", as_tokens(found.output_tokens), ""
    yield "Largest prompt", as_tokens(found.largest_prompt), "tokens"
    if found.tree_skip_s:
        yield "Idle sessions", as_duration(found.tree_skip_s), "skipped, over all plays"
    if found.idle_skip_s:
        yield "Idle time", as_duration(found.idle_skip_s), "skipped, nothing being in flight"
    yield "Duration", as_duration(found.seconds), "at the recorded speed"
