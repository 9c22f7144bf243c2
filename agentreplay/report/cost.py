"""What a run cost, for the terminal. Pure: takes the value of `report.value`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agentreplay.units import ABSENT, as_dollars, as_number, as_percent, as_tokens

MILLION = 1e6


def as_tokens_per_dollar(value: float | None) -> str:
    """Tokens for a dollar, as published comparisons print them: 18.16 M."""
    if value is None or value < MILLION:
        return as_tokens(value)
    return f"{value / MILLION:,.2f} M"


def money_rows(value: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Rows of a run's main figures, each with its id; none for what nothing is known of."""
    metrics, money = value["metrics"], value["money"]
    if money["gpus"]:
        metric = "total_token_rate_run_per_gpu"
        rate = metrics[metric]
        shown = ABSENT if rate is None else f"{as_number(rate)} tok/s"
        of = f"input + output, over the whole run; GPUs: {money['gpus']}"
        yield "Tokens per GPU", shown, of, metric
    if money["gpus"] and money["gpu_hour"]:
        yield (
            "Tokens per dollar",
            as_tokens_per_dollar(metrics["tokens_per_dollar"]),
            f"{as_dollars(metrics['dollars_per_million_tokens'])} a million, "
            f"at {as_dollars(money['gpu_hour'])} a GPU-hour",
            "tokens_per_dollar",
        )
    if bill := metrics["bill"]:
        a_request, a_session = bill["per_request"], bill["per_session"]
        said = f"a request {as_dollars(a_request['mean'])}"
        if a_session["n"]:
            said += f", a whole session {as_dollars(a_session['mean'])}"
        of = f"{said}; {cached_source(bill['predicted'])}"
        yield "Bill", as_dollars(bill["total"]), of, "bill.total"


def cached_source(predicted: float | None) -> str:
    """Where the cached tokens of a bill are from."""
    if not predicted:
        return "cached tokens as reported"
    if predicted == 1:
        return "cached tokens PREDICTED: the server reports none"
    return f"cached tokens as reported, of {as_percent(predicted)} of the requests PREDICTED"


def cost_report(value: dict[str, Any], banner: str | None) -> RenderableType:
    """The bill of a run in all its parts.

    Args:
        value: The run's, as summary.json holds it.
        banner: The first line, where there is one.
    """
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    facts.add_column(style="bold")
    facts.add_column(justify="right")
    facts.add_column(style="dim")
    for row in money_rows(value):
        facts.add_row(*row[:3])
    parts: list[RenderableType] = [Text(banner, style="bold yellow")] if banner else []
    parts.append(facts)
    if bill := value["metrics"]["bill"]:
        for title, name in (
            ("… input, uncached", "input"),
            ("… input, cached", "cached"),
            ("… output", "output"),
        ):
            facts.add_row(title, as_dollars(bill[name]), "")
        if bill["before_window"]:
            said = "of all this, before the window opened: the warm-up"
            facts.add_row("Warm-up", as_dollars(bill["before_window"]), said)
        if bill["failed"]:
            said = "of all this, requests that failed or were cut"
            facts.add_row("Failed", as_dollars(bill["failed"]), said)
        if bill["unanswered"]:
            parts.append(
                Text(
                    f"{bill['unanswered']:,} requests failed or were cut without a token; they "
                    "are taken to cost nothing.",
                    style="dim",
                )
            )
    if not value["verdict"]["valid"]:
        why = "; ".join(reason["text"] for reason in value["verdict"]["reasons"])
        parts.append(Text(f"The run is invalid: {why}", style="bold red"))
    return Group(*parts)
