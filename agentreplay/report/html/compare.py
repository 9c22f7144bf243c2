"""The page of a comparison: changes with their intervals. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentreplay.report.compare import COLUMNS, counted, in_words, remarks, rows
from agentreplay.report.html.page import (
    Column,
    Figure,
    Page,
    Section,
    Table,
    banner_html,
    escaped,
    notes_html,
    table_html,
)
from agentreplay.report.text import banner

_FORMS = {
    "worse": ("worse", "var:--bad", "x"),
    "lost": ("worse", "var:--bad", "x"),
    "slightly worse": ("slightly worse", "var:--wait", "triangle-down"),
    "better": ("better", "var:--good", "triangle-up"),
    "slightly better": ("slightly better", "var:--other", "triangle-up-open"),
    "same": ("no change beyond the tolerance", "var:--decode", "circle"),
    "unclear": ("unclear", "var:--muted", "circle-open"),
}
"""How a verdict is drawn: its name, colour and form."""

_WIDEST = 1.5
"""Changes are shown up to here on either side; the table has the rest."""


def compare_page(value: Mapping[str, Any]) -> Page:
    """The page of `report.compare.comparison_value`."""
    runs = (*value["base"], *value["new"])
    simulated = dict.fromkeys(run["simulated"] for run in runs)
    head = [banner_html(banner(name)) for name in simulated if name]
    head.append("<h1>Compared with a baseline</h1>")
    for title in ("base", "new"):
        paths = ", ".join(run["path"] for run in value[title])
        head.append(f'<p class="what">{title.upper()} {escaped(paths)}</p>')
    head.append(f'<p class="what">{escaped(counted(value))}</p>')
    word = "invalid" if value["worse"] else "valid"
    head.append(
        f'<div class="verdict {word}" role="status"><p><b>{escaped(in_words(value))}</b></p></div>'
    )
    if value["not_comparable"]:
        head.append("<p><b>Not comparable, and compared all the same:</b></p>")
        head.append(notes_html(value["not_comparable"]))
    columns = (
        Column(COLUMNS[0], "text"),
        *(Column(each, "figure") for each in COLUMNS[1:-1]),
        Column(COLUMNS[-1], "text"),
    )
    head.append(table_html(Table(columns, list(rows(value)))))
    head.append(notes_html(remarks(value)))
    return Page(
        "Compared with a baseline · agentreplay",
        "".join(head),
        (Section("changes", "Changes", (_forest(value),)),),
    )


def _forest(value: Mapping[str, Any]) -> Figure:
    """Each change with its interval, beside no change and the tolerance."""
    changes = {name: each for name, each in value["metrics"].items() if each["change"] is not None}
    traces = []
    for form in dict.fromkeys(_FORMS.values()):
        some = {name: each for name, each in changes.items() if _FORMS[each["verdict"]] == form}
        if some:
            traces.append(_intervals(form, some))
    ends = [
        abs(each[name])
        for each in changes.values()
        for name in ("change", "low", "high")
        if each[name] is not None
    ]
    tolerance = value["tolerance"]
    most = min(_WIDEST, 1.08 * max([2 * tolerance, *ends]))
    layout = {
        "xaxis": {"title": "change", "tickformat": "+.0%", "range": [-most, most]},
        "yaxis": {
            "title": "",
            "categoryorder": "array",
            "categoryarray": [*changes][::-1],
            "tickvals": [*changes],
            "range": [-0.6, len(changes) - 0.4],
        },
        "shapes": [
            {
                "type": "rect",
                "yref": "paper",
                "x0": -tolerance,
                "x1": tolerance,
                "y0": 0,
                "y1": 1,
                "fillcolor": "var:--window",
                "line": {"width": 0},
                "layer": "below",
            },
            {
                "type": "line",
                "yref": "paper",
                "x0": 0,
                "x1": 0,
                "y0": 0,
                "y1": 1,
                "line": {"color": "var:--strong", "width": 1.5},
            },
        ],
        "hovermode": "closest",
    }
    columns = (
        *(Column("figure", "text"), Column("base"), Column("new"), Column("change", "percent")),
        *(Column("low", "percent"), Column("high", "percent"), Column("verdict", "text")),
    )
    kept = ("base", "new", "change", "low", "high", "verdict")
    table = [[name, *(each[k] for k in kept)] for name, each in value["metrics"].items()]
    return Figure(
        "changes",
        "Changes and their intervals",
        "NEW against BASE, in shares of BASE (of error_rate: in points). Lines are intervals that "
        "together hold the true changes; the shaded band is the tolerance.",
        traces,
        layout,
        Table(columns, table),
        None if changes else "Nothing was measured in both.",
        height=120 + 38 * max(1, len(changes)),
        wide=True,
    )


def _intervals(form: tuple[str, str, str], some: Mapping[str, Any]) -> dict[str, Any]:
    name, colour, symbol = form
    changes = list(some.values())
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [each["change"] for each in changes],
        "y": list(some),
        "marker": {"color": colour, "symbol": symbol, "size": 11},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [
                0 if each["high"] is None else each["high"] - each["change"] for each in changes
            ],
            "arrayminus": [
                0 if each["low"] is None else each["change"] - each["low"] for each in changes
            ],
            "color": colour,
            "thickness": 2,
            "width": 5,
        },
        "customdata": [
            "no interval" if each["low"] is None else f"{each['low']:+.1%} … {each['high']:+.1%}"
            for each in changes
        ],
        "hovertemplate": "%{y}: %{x:+.1%} (%{customdata})<extra></extra>",
    }
