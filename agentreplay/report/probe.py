"""What a probe found, for the terminal and as JSON. Pure; nothing is computed here."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agentreplay.client.findings import BLOCKING, NOT_TRIED, Finding, Findings
from agentreplay.report.text import banner
from agentreplay.units import ABSENT, as_duration, as_number


def probe_report(findings: Findings) -> RenderableType:
    """A row for each thing that was looked at, and the verdict."""
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(width=1)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold", style="dim")
    for each in findings.findings:
        if each.value == NOT_TRIED:
            continue
        # As Text, since servers' words may look like markup.
        row = Text(each.name), Text(_shown(each)), Text(each.why)
        table.add_row(_mark(each), *row)
    style = "bold green" if findings.usable else "bold red"
    parts: list[RenderableType] = []
    if findings.simulated:
        parts.append(Text(banner(findings.simulated), style="bold yellow"))
    parts.append(table)
    if left := [each for each in findings.findings if each.value == NOT_TRIED]:
        parts.append(Text(f"– {len(left)} more not tried  {left[0].why}".rstrip(), style="dim"))
    return Group(*parts, Text(""), Text(f"Verdict: {findings.verdict}", style=style))


def probe_value(findings: Findings) -> dict[str, Any]:
    """The same as plain values, by name."""
    return {
        "usable": findings.usable,
        "verdict": findings.verdict,
        "worth_knowing": findings.worth_knowing,
        "simulated": findings.simulated,
        "findings": {
            each.name: {"value": each.value, "ok": each.ok, "why": each.why}
            for each in findings.findings
        },
    }


def _mark(finding: Finding) -> Text:
    if finding.ok is None:
        return Text("–", style="dim")
    if finding.ok:
        return Text("✓", style="green")
    return Text("✗", style="bold red" if finding.name in BLOCKING else "yellow")


def _shown(finding: Finding) -> str:
    if isinstance(finding.value, str):
        return finding.value
    if finding.value is None:
        return ABSENT
    return as_duration(finding.value) if finding.name.endswith("_s") else as_number(finding.value)
