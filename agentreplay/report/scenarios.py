"""The named scenarios with all their rules, for the terminal. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agentreplay.scenario import Scenario


def scenarios_report(scenarios: Sequence[Scenario]) -> RenderableType:
    """Each rule as an option that can be copied."""
    parts: list[RenderableType] = []
    for scenario in scenarios:
        rules = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        rules.add_column(no_wrap=True)
        rules.add_column(style="dim")
        for option, binds in scenario.rules():
            rules.add_row(Text(option), binds)
        title = Text(scenario.title, style="bold")
        parts += [title.append(f": {scenario.about}", style="not bold"), rules, Text("")]
    return Group(*parts[:-1])
