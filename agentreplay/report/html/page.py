"""A page of one file: its frame, its figures, and the tables behind them. Pure.

Figures are drawn in the browser by plotly.js, which stands in the page, so that nothing is asked
for anywhere. Text of others comes into a page in three ways only: as HTML (`escaped`), within
figures (`in_figure`), and as JSON (`embedded`); each shows it as it is.
"""

from __future__ import annotations

import csv
import io
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape
from math import floor, isfinite, log10
from typing import Any, Literal

import orjson

from agentreplay.units import ABSENT, as_duration, as_number, as_percent, as_tokens

Cell = str | int | float | None
Kind = Literal["text", "figure", "count", "number", "duration", "percent", "tokens"]

_SHOW: Mapping[Kind, Callable[[Any], str]] = {
    "text": lambda value: ABSENT if value is None else str(value),
    "figure": str,
    "count": lambda value: ABSENT if value is None else f"{value:,.0f}",
    "number": as_number,
    "duration": as_duration,
    "percent": as_percent,
    "tokens": as_tokens,
}

_UNSEEN: dict[int, str | int] = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"},
    0x7F: 0x2421,
    **{code: f"\\x{code:02x}" for code in range(0x80, 0xA0)},
    **{code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))},
    **dict.fromkeys((*range(0xD800, 0xE000), 0xFFFE, 0xFFFF), "\ufffd"),
}
"""What a browser would not show, or would let turn the rest around, as something to be seen."""


@dataclass(frozen=True, slots=True)
class Assets:
    """What every page holds besides its content: plotly.js, and our own script and style."""

    plotly: str
    script: str
    style: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its head; in CSV too, where numbers are in seconds, tokens and shares.
        kind: How its values are shown; a `figure` is one in words already.
    """

    name: str
    kind: Kind = "number"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values, to be shown and to be kept as CSV."""

    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with the table behind it.

    Attributes:
        id: Its name within the page, and that of its CSV file.
        title: Its heading.
        about: What it shows, in a sentence or two.
        traces: What plotly.js draws; colours are names of `style.css`, as `var:--input`.
        layout: Axes and marks, for plotly.js too.
        table: The numbers.
        empty: Said in place of the drawing where there is nothing to draw.
        height: Of the drawing, in pixels.
        wide: It takes the whole width.
    """

    id: str
    title: str
    about: str
    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    table: Table
    empty: str | None = None
    height: int = 300
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page.

    Attributes:
        id: Its name within the page.
        title: Its heading.
        parts: Figures, and HTML.
    """

    id: str
    title: str
    parts: tuple[Figure | str, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """All that a page holds.

    Attributes:
        title: What it is called.
        head: HTML above the sections.
        sections: Its parts.
        data: What the script needs besides figures.
    """

    title: str
    head: str
    sections: tuple[Section, ...]
    data: Mapping[str, Any] = field(default_factory=dict)


def visible(text: str) -> str:
    """Text with control characters, halves of pairs and turns of direction made visible."""
    return text.translate(_UNSEEN)


def escaped(text: object) -> str:
    """Any text as HTML that shows just that."""
    return escape(visible(str(text)))


def in_figure(text: str) -> str:
    """Any text as plotly.js shows just that: it knows a few tags and entities itself."""
    return visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def embedded(value: Any) -> str:
    """JSON that may stand within a script element, whatever texts are in it."""
    return orjson.dumps(_clean(value)).decode().replace("<", "\\u003c")


def _clean(value: Any) -> Any:
    """The same, its texts visible, and what is no number null."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {key: _clean(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(each) for each in value]
    return value


def packed(values: Any, kind: Literal["<i4", "<f4", "u1"]) -> str:
    """A column of numbers as the script reads it: base64 of so many bytes each."""
    return b64encode(values.astype(kind).tobytes()).decode()


def csv_text(table: Table) -> str:
    """A table as CSV. Text that a spreadsheet would take for a formula has an apostrophe before
    it (owasp.org, "CSV Injection")."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([column.name for column in table.columns])
    writer.writerows([[_plain(cell) for cell in row] for row in table.rows])
    return file.getvalue()


def _plain(cell: Cell) -> Cell:
    if isinstance(cell, str):
        cell = visible(cell)
        return "'" + cell if cell[:1] in set("=+-@\t\r") else cell
    return cell


def table_html(table: Table, caption: str = "") -> str:
    """A table that screen readers read, too; numbers stand to the right."""
    head = "".join(
        f'<th scope="col" class="{_side(column)}">{escaped(column.name)}</th>'
        for column in table.columns
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td class="{_side(column)}">{escaped(_SHOW[column.kind](cell))}</td>'
            for column, cell in zip(table.columns, row, strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    title = f"<caption>{escaped(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll"><table>{title}<thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _side(column: Column) -> str:
    return "words" if column.kind == "text" else "figure"


def details(summary: str, content: str, name: str = "") -> str:
    """What opens at a click; *content* is HTML."""
    return f'<details class="{name}"><summary>{escaped(summary)}</summary>{content}</details>'


def numbered(metric: str, values: Mapping[str, Any]) -> str:
    """The attributes by which a figure can be found in a page, with its exact value."""
    number: Any = values
    for part in metric.split("."):
        number = number[part]
    return f' data-metric="{escaped(metric)}" data-value="{escaped(orjson.dumps(number).decode())}"'


def banner_html(words: str) -> str:
    """The first line of whatever shows results of a simulated server."""
    return f'<p class="banner" role="note">{escaped(words)}</p>'


def notes_html(notes: Iterable[str]) -> str:
    """Sentences below each other."""
    found = "".join(f"<li>{escaped(note)}</li>" for note in notes)
    return f'<ul class="notes">{found}</ul>' if found else ""


def page_html(page: Page, assets: Assets) -> str:
    """The whole file."""
    figures = [
        each for section in page.sections for each in section.parts if isinstance(each, Figure)
    ]
    data = {
        **page.data,
        "figures": {
            each.id: {"data": each.traces, "layout": each.layout, "height": each.height}
            for each in figures
            if each.empty is None
        },
        "tables": {
            each.id: {
                "head": [column.name for column in each.table.columns],
                "rows": each.table.rows,
            }
            for each in figures
        },
    }
    links = "".join(
        f'<a href="#{section.id}">{escaped(section.title)}</a>' for section in page.sections
    )
    sections = "".join(map(_section_html, page.sections))
    allowed = " ".join(
        f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"
        for script in (assets.plotly, assets.script)
    )
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escaped(page.title)}</title>
<style>{assets.style}</style>
</head>
<body>
<header>{page.head}</header>
{f'<nav aria-label="Parts of this page">{links}</nav>' if len(page.sections) > 1 else ""}
<main>{sections}</main>
<script type="application/json" id="data">{embedded(data)}</script>
<script>{assets.plotly}</script>
<script>{assets.script}</script>
</body>
</html>
"""


def _section_html(section: Section) -> str:
    parts = "".join(
        _figure_html(part) if isinstance(part, Figure) else part for part in section.parts
    )
    return (
        f'<section id="{section.id}" aria-labelledby="{section.id}-title">'
        f'<h2 id="{section.id}-title">{escaped(section.title)}</h2>'
        f'<div class="parts">{parts}</div></section>'
    )


def _figure_html(figure: Figure) -> str:
    label = escaped(f"{figure.title}. {figure.about}")
    if figure.empty is None:
        drawing = (
            f'<div class="plot" data-figure="{figure.id}" role="img" aria-label="{label}" '
            f'style="height:{figure.height}px"></div>'
        )
    else:
        drawing = f'<p class="empty">{escaped(figure.empty)}</p>'
    behind = ""
    if figure.table.rows:
        button = f'<button type="button" class="csv" data-table="{figure.id}">CSV</button>'
        behind = f'<div class="behind">{button}{details("Table", table_html(figure.table))}</div>'
    return (
        f'<figure id="figure-{figure.id}" class="{"wide" if figure.wide else ""}">'
        f"<figcaption><h3>{escaped(figure.title)}</h3><p>{escaped(figure.about)}</p></figcaption>"
        f"{drawing}{behind}</figure>"
    )


_TICKS = (
    (1,),
    (1, 3),
    (1, 2, 5),
    (1, 1.5, 2, 3, 4, 5, 6, 8),
    tuple(n / 10 for n in range(10, 100)),
)


def log_ticks(low: float, high: float, show: Callable[[float], str]) -> dict[str, Any]:
    """Labels of an axis of logarithms: of round numbers, as many as there is room for.

    Args:
        low: The smallest value, more than 0.
        high: The largest.
        show: Writes a label.
    """
    decades = range(floor(log10(low)), floor(log10(high)) + 1)
    found = [low, high]
    for steps in _TICKS:
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        inside = [tick for tick in ticks if low / 1.02 <= tick <= high * 1.02]
        if len(inside) > 1:
            found = inside
        if len(inside) >= 4:
            break
    found = found[:: -(-len(found) // 8)]
    return {
        "tickvals": [log10(tick) for tick in found],
        "ticktext": [show(float(f"{tick:.3g}")) for tick in found],
    }


_TIMES_S = (
    *(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
    *(60, 180, 600, 1800, 3600, 10_800, 36_000, 86_400, 360_000, 1_080_000),
)


def time_ticks(low_s: float, high_s: float, show: Callable[[float], str]) -> dict[str, Any]:
    """The same for times, of which round numbers of minutes and hours are other ones than of
    seconds."""
    inside = [each for each in _TIMES_S if low_s / 1.02 <= each <= high_s * 1.02]
    if len(inside) < 3:
        return log_ticks(low_s, high_s, show)
    if len(inside) > 7:
        inside = [each for each in inside if _TIMES_S.index(each) % 2 == 0]
    return {"tickvals": [log10(each) for each in inside], "ticktext": [show(e) for e in inside]}


def finite(values: Iterable[float]) -> list[float | None]:
    """Numbers as JSON has them, to six digits: what is none is null."""
    return [float(f"{value:.6g}") if isfinite(value) else None for value in values]
