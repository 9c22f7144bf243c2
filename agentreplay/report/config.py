"""The effective values of a command's options, for the terminal. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from agentreplay.units import ABSENT


def config_report(options: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    """Each option with its value and where that is from; what somebody set stands out."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("option", "value", "from"):
        table.add_column(column, overflow="fold")
    for name, option in options.items():
        style = "dim" if option["from"] == "default" else ""
        table.add_row(name, Text(_written(option["value"])), Text(option["from"]), style=style)
    return table


def _written(value: Any) -> str:
    if value is None or value == []:
        return ABSENT
    if isinstance(value, bool):
        return "true" if value else "false"
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)
