"""A run as a page in Markdown, as GitHub shows one below a job. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentreplay.metrics.condition import shown
from agentreplay.report.text import banner, figures, headline, tolerated_failures

_SPECIAL = re.compile(r"([\\`*_\[\]<#|~&@$]|:(?=//))")
"""What means something within a line of Markdown; a colon where an address would become a link."""

_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]+")

_EXAMPLE_CHARS = 300
"""A server's words are cut here: a page of GitHub's holds a megabyte."""


def markdown(value: Mapping[str, Any]) -> str:
    """The page: the verdict first, then gates, figures and failures, and what was run."""
    found = dict(value)
    parts = [f"## {_conclusion(value)}"]
    if value["simulated"]:
        parts.insert(0, f"**{plain(banner(value['simulated']))}**")
    if reasons := value["verdict"]["reasons"]:
        parts.append("\n".join(f"- {plain(each['id'])}: {plain(each['text'])}" for each in reasons))
    elif tolerated := tolerated_failures(found):
        parts.append(plain(tolerated))
    if gates := value["gates"]:
        rows = [
            ("passed" if each["passed"] else "**missed**", plain(each["text"]), _came_to(each))
            for each in gates
        ]
        parts.append(_table(("gate", "condition", "value"), rows))
    parts.append(_table(("figure", "value", "of"), [map(plain, row[:3]) for row in figures(found)]))
    if failures := value["failures"]:
        rows = [
            (plain(each["kind"]), str(each["count"]), plain(each["example"][:_EXAMPLE_CHARS]))
            for each in failures
        ]
        parts.append(_table(("failure", "count", "for example"), rows))
    parts.append("Run: " + plain(headline(found).replace("\n", " · ")))
    return "\n\n".join(parts) + "\n\n"


def plain(text: str) -> str:
    """Any text as Markdown that shows just that, in one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(_UNSEEN.sub(" ", text).split()))


def _conclusion(value: Mapping[str, Any]) -> str:
    if not value["verdict"]["valid"]:
        return "Verdict: invalid"
    gates = value["gates"]
    missed = sum(not each["passed"] for each in gates)
    return "Verdict: valid" + (f", {missed} of {len(gates)} gates missed" if missed else "")


def _came_to(gate: Mapping[str, Any]) -> str:
    return plain(gate["reason"] or f"it is {shown(gate['metric'], gate['value'])}")


def _table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
