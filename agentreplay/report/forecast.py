"""What a plan would send, for the terminal. Pure."""

from __future__ import annotations

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
    reuse = found.cached_tokens / found.input_tokens if found.input_tokens else None
    for row in (
        ("Plays", as_number(found.plays), f"of {found.sessions} sessions"),
        ("Calls", as_number(found.calls), ""),
        ("Input tokens", as_tokens(found.input_tokens), "cached ones included"),
        ("Prefix reuse", as_percent(reuse), f"{as_tokens(found.cached_tokens)} tokens, at best"),
        ("Output tokens", as_tokens(found.output_tokens), ""),
        ("Largest prompt", as_tokens(found.largest_prompt), "tokens"),
        ("Duration", as_duration(found.seconds), "at the recorded speed"),
    ):
        facts.add_row(*row)
    if dollars is not None:
        facts.add_row("Cost", f"$ {dollars:,.2f}", "at the prices given, with that reuse")
    return Group(facts, *(Text(f"{times:,} sessions {why}") for why, times in left_out.items()))
