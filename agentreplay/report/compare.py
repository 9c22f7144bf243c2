"""A comparison as one plain value, and that for the terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from agentreplay.metrics.compare import CONFIDENCE, FAILING, HEADLINE, Comparison
from agentreplay.report.text import banner
from agentreplay.units import ABSENT, as_duration, as_number, as_percent

_STYLES = {"worse": "bold red", "lost": "bold red", "better": "green"}

_WORDS = {
    "lost": "worse: not measured any more",
    "absent": "not measured in BASE",
    "slightly worse": "slightly worse, within {}",
    "slightly better": "slightly better, within {}",
    "same": "no change beyond {}",
}

FEW_IN_COMMON = 0.5
"""Below this share of the requests of either side, the report says so."""


def comparison_value(
    found: Comparison,
    tolerance: float,
    base: Sequence[Mapping[str, Any]],
    new: Sequence[Mapping[str, Any]],
    let_through: Sequence[str],
) -> dict[str, Any]:
    """Everything that is known of a comparison.

    Args:
        found: What it came to.
        tolerance: By how much a figure may get worse.
        base: What is said of each run of BASE: path, simulated, valid, reasons.
        new: The same of NEW.
        let_through: Why the runs are not comparable.
    """
    return {
        "verdict": "worse" if found.failing else "not worse",
        "worse": list(found.failing),
        "tolerance": tolerance,
        "confidence": CONFIDENCE,
        "not_comparable": list(let_through),
        "base": list(base),
        "new": list(new),
        "requests": {
            "common": found.requests,
            "base": found.base_requests,
            "new": found.new_requests,
        },
        "lanes": found.lanes,
        "metrics": {name: asdict(change) for name, change in found.changes.items()},
    }


def comparison_report(value: Mapping[str, Any]) -> RenderableType:
    """The same for people."""
    parts: list[RenderableType] = [
        Text(banner(name), style="bold yellow")
        for name in dict.fromkeys(run["simulated"] for run in (*value["base"], *value["new"]))
        if name
    ]
    for title in ("base", "new"):
        paths = ", ".join(run["path"] for run in value[title])
        parts.append(Text(f"{title.upper():4}  {paths}"))
    parts.append(Text(counted(value) + "\n"))
    if value["not_comparable"]:
        lines = "\n  ".join(value["not_comparable"])
        parts.append(Text(f"Not comparable, and compared all the same:\n  {lines}\n", style="red"))
    parts += [_table(value), Text("")]
    parts += [Text(note, style="dim") for note in remarks(value)]
    return Group(*parts)


def counted(value: Mapping[str, Any]) -> str:
    """What the comparison is of."""
    requests = value["requests"]
    return (
        f"{requests['common']:,} requests that both measured, of {requests['base']:,} and "
        f"{requests['new']:,}, from {value['lanes']:,} lanes"
    )


def in_words(value: Mapping[str, Any]) -> str:
    """What it came to, in one line."""
    found = [f"{name} {_change(name, value['metrics'][name])}" for name in value["worse"]]
    return f"worse: {', '.join(found)}" if found else "nothing worse is shown"


def _table(value: Mapping[str, Any]) -> RenderableType:
    table = Table(box=None, header_style="dim", padding=(0, 1))
    table.add_column("", style="bold", no_wrap=True)
    for column in COLUMNS[1:-1]:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column(COLUMNS[-1])
    for (name, *cells, words), change in zip(rows(value), value["metrics"].values(), strict=True):
        style = _STYLES.get(change["verdict"], "")
        table.add_row(escape(name), *cells, Text(words, style=style))
    return table


COLUMNS = ("figure", "base", "new", "change", "interval", "smallest", "verdict")


def rows(value: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """What is said of each figure, in the order of `COLUMNS`."""
    for name, change in value["metrics"].items():
        verdict = change["verdict"]
        yield (
            name,
            _figure(name, change["base"]),
            _figure(name, change["new"]),
            ABSENT if verdict in ("lost", "absent") else _change(name, change),
            _interval(name, change),
            ABSENT if change["smallest"] is None else _size(name, change["smallest"]),
            _WORDS.get(verdict, verdict).format(_short(value["tolerance"])),
        )


def _figure(name: str, value: float | None) -> str:
    if HEADLINE[name] == "time":
        return as_duration(value)
    return as_percent(value) if HEADLINE[name] == "share" else as_number(value)


def _change(name: str, change: Mapping[str, Any]) -> str:
    if change["verdict"] in FAILING[1:]:
        return "not measured"
    return ABSENT if change["change"] is None else _signed(name, change["change"])


def _interval(name: str, change: Mapping[str, Any]) -> str:
    if change["low"] is None:
        return ABSENT
    return f"{_signed(name, change['low'])} … {_signed(name, change['high'])}"


def _signed(name: str, share: float) -> str:
    sign = "+" if share >= 0.0005 else "−" if share <= -0.0005 else ""
    return sign + _size(name, abs(share))


def _size(name: str, share: float) -> str:
    return f"{share * 100:.1f} " + ("points" if HEADLINE[name] == "share" else "%")


def _short(share: float) -> str:
    return f"{share * 100:.3g} %"


def remarks(value: Mapping[str, Any]) -> list[str]:
    """What has to be known to read it, a sentence each."""
    found = [
        f"Intervals: in {_short(value['confidence'])} of comparisons all of them together hold the "
        "true changes, as far as lanes are independent; what hits a whole run at once is not in "
        "them. Smallest: a change to the worse of this size is told from none every second time."
    ]
    requests = value["requests"]
    for side in ("base", "new"):
        if requests["common"] < FEW_IN_COMMON * requests[side]:
            share = as_percent(requests["common"] / requests[side])
            found.append(f"Only {share} of the requests of {side.upper()} have one like them.")
    return found
