"""The figures of a run's page, and the numbers behind them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log10
from typing import Any

import numpy as np

from agentreplay.metrics.window import Window
from agentreplay.report.html.columns import (
    CUT,
    FAILED,
    OK,
    REFUSED,
    Bins,
    Bools,
    Columns,
    Floats,
    Ints,
)
from agentreplay.report.html.page import (
    Cell,
    Column,
    Figure,
    Kind,
    Table,
    finite,
    in_figure,
    log_ticks,
    time_ticks,
)
from agentreplay.units import as_duration, as_number, as_tokens

DOTS = 2_000
"""Of more requests than this, so many dots are drawn; lines and tables are of all."""

_SLOWEST = 50
"""Of these the slowest are drawn in any case."""

_BARS = 40
_COARSE = 50  # bins of what has a sample now and then only
_POSITIONS = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 750, 1000)


@dataclass(frozen=True, slots=True)
class Measure:
    """What is measured of requests, as figures show it.

    Attributes:
        name: Of its column.
        title: Of its axis.
        kind: How tables show it.
        show: How axes do.
        colour: Of its marks.
        slow: The share of the values below which the slow tenth begins.
    """

    name: str
    title: str
    kind: Kind
    show: Callable[[float | None], str]
    colour: str
    slow: float = 0.9


TTFT = Measure("ttft", "TTFT", "duration", as_duration, "var:--wait")
SPEED = Measure(
    "interactivity", "interactivity (tok/s/user)", "number", as_number, "var:--decode", 0.1
)


def over_time(found: Columns) -> Figure:
    """Token rates and calls under way."""
    bins, seconds = found.bins, found.bins.seconds
    came_in, came_out = found.input_tokens / seconds, found.output_tokens / seconds
    flying = bins.mean_open(found["sent"], found["done"])
    panels = (
        ("input + output", came_in + came_out, "y", "var:--total"),
        ("input", came_in, "y", "var:--input"),
        ("output", came_out, "y2", "var:--decode"),
        ("calls under way", flying, "y3", "var:--other"),
    )
    traces = [
        _steps(bins, values, name, colour, yaxis=axis, legend=name != "calls under way")
        for name, values, axis, colour in panels
    ]
    traces[1] |= {
        "line": {"shape": "hvh", "width": 0},
        "fill": "tozeroy",
        "fillcolor": "var:--input",
    }
    layout = {
        **time_layout(found.span, found.until_ns, "y3"),
        "yaxis": {"title": "tok/s", "domain": [0.62, 1], "rangemode": "tozero"},
        "yaxis2": {"title": "output tok/s", "domain": [0.29, 0.56], "rangemode": "tozero"},
        "yaxis3": {"title": "under way", "domain": [0, 0.23], "rangemode": "tozero"},
    }
    counts = bins.counts(found["sent"])
    rows = zip(
        (bins.edges_ns[:-1] / 1e9).tolist(),
        came_in.tolist(),
        came_out.tolist(),
        (came_in + came_out).tolist(),
        flying.tolist(),
        counts.tolist(),
        strict=True,
    )
    head = (
        Column("from (s)"),
        Column("input tok/s"),
        Column("output tok/s"),
        Column("total tok/s"),
        Column("calls under way"),
        Column("calls sent", "count"),
    )
    return Figure(
        "rates",
        "Token rates over time",
        f"Tokens by when they arrived, in steps of {as_duration(seconds)}: prompts at their first "
        "token, output chunk by chunk, failed requests left out. The window is shaded; the rates "
        "of the report are its means.",
        traces,
        layout,
        Table(head, list(rows)),
        _nothing(found),
        height=460,
        wide=True,
    )


def histogram(
    found: Columns, measure: Measure, marks: Sequence[tuple[str, float | None]]
) -> Figure:
    """How a measure is distributed over the requests that count; *marks* are its percentiles."""
    values = found.floats[measure.name][found.counted]
    values = values[values > 0]
    return log_bars(
        f"{measure.name}-distribution",
        f"{_capital(measure)}: distribution",
        f"{len(values):,} successful requests sent in the window, by bars of equal ratio.",
        values,
        measure,
        "requests",
        marks,
    )


def log_bars(
    name: str,
    title: str,
    about: str,
    values: Ints | Floats,
    measure: Measure,
    of: str,
    marks: Sequence[tuple[str, float | None]] = (),
    weights: Floats | None = None,
) -> Figure:
    """How values are distributed, on an axis of logarithms.

    Args:
        name: The figure's id.
        title: Its heading.
        about: What it shows.
        values: Not below 0; those that are 0 stand in the table only.
        measure: What they are of.
        of: What the bars count; with weights, what they are shares of.
        marks: Values that are pointed out.
        weights: How much each value counts; 1 where None.
    """
    kind: Kind = "count" if weights is None else "percent"
    head = (Column("from", measure.kind), Column("to", measure.kind), Column(of, kind))
    some = values > 0
    if not some.any():
        return Figure(name, title, about, [], {}, Table(head, ()), _UNMEASURED)
    whole = None if weights is None else weights / weights.sum()
    low, high = float(values[some].min()), float(values[some].max())
    if high < low * 1.02:
        low, high = low / 1.2, high * 1.2
    edges = np.geomspace(low, high, _BARS + 1)
    edges[0], edges[-1] = min(low, edges[0]), max(high, edges[-1])
    counts, _ = np.histogram(values[some], edges, weights=None if whole is None else whole[some])
    zeros = float((~some).sum() if whole is None else whole[~some].sum())
    x = np.log10(edges)
    ticks = time_ticks if measure.kind == "duration" and high > 100 else log_ticks
    shows = "%{y:,} " + of if whole is None else "%{y:.1%} of the " + of
    traces = [
        {
            "type": "bar",
            "x": finite((x[:-1] + x[1:]) / 2),
            "y": counts.tolist(),
            "width": float(x[1] - x[0]),
            "marker": {"color": measure.colour},
            "customdata": [
                f"{measure.show(a)} … {measure.show(b)}"
                for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
            ],
            "hovertemplate": f"%{{customdata}}: {shows}<extra></extra>",
        }
    ]
    known = [(label, value) for label, value in marks if value]
    layout = {
        "xaxis": {"title": measure.title, **ticks(low, high, measure.show)},
        "yaxis": (
            {**_counted(int(counts.max())), "title": of}
            if whole is None
            else {"title": f"of the {of}", "rangemode": "tozero", "tickformat": ".0%"}
        ),
        "bargap": 0.05,
        "margin": {"t": 12 + 16 * len(known)},
        "shapes": [_line(log10(value)) for _, value in known],
        "annotations": [
            {
                "x": log10(value),
                "y": 1,
                "yref": "paper",
                "yshift": 14 * number,
                "text": f"{label} {measure.show(value)}",
                "xanchor": "left" if log10(value) < (x[0] + x[-1]) / 2 else "right",
                "yanchor": "bottom",
                "showarrow": False,
            }
            for number, (label, value) in enumerate(known)
        ],
    }
    rows = [
        *([(0, 0, zeros)] if zeros else []),
        *zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True),
    ]
    return Figure(name, title, about, traces, layout, Table(head, rows))


def by_length(found: Columns, measure: Measure) -> Figure:
    """A measure against the length of the prompt."""
    chosen = found.counted & (found.floats[measure.name] > 0) & (found["isl"] > 0)
    lengths, values = found["isl"][chosen], found.floats[measure.name][chosen]
    name, title = f"{measure.name}-length", f"{_capital(measure)} against input length"
    bounds = _doubling(lengths)
    groups = [
        (f"{as_tokens(low)} – {as_tokens(high)}", (lengths >= low) & (lengths < high), low, high)
        for low, high in pairwise(bounds)
    ]
    table, lines = _percentiles(measure, "input tokens", values, [each[:2] for each in groups])
    drawn = _drawn(lengths, values, measure)
    about = (
        f"A dot for each request{_of(len(drawn), len(values))}; lines: median and slowest tenth."
    )
    if not len(values):
        return Figure(name, title, about, [], {}, table, _UNMEASURED)
    cached = found["cached"][chosen][drawn]
    shares = np.where(cached >= 0, cached / np.maximum(lengths[drawn], 1), np.nan)
    middles = [
        (max(low, int(lengths.min())) * min(high, int(lengths.max()) + 1)) ** 0.5
        for _, _, low, high in groups
    ]
    traces = [
        _dots(
            lengths[drawn],
            values[drawn],
            measure,
            _hints(measure, lengths[drawn], values[drawn], shares),
        ),
        *_curves(measure, middles, lines),
    ]
    layout = {
        "xaxis": {"title": "input tokens", "type": "log", **_log(lengths, _thousands)},
        "yaxis": {"title": measure.title, "type": "log", **_log(values, measure.show)},
    }
    return Figure(name, title, about, traces, layout, table)


def by_position(found: Columns, measure: Measure) -> Figure:
    """A measure against the call's place in its session."""
    chosen = found.counted & (found.floats[measure.name] > 0)
    places, values = found["call"][chosen] + 1, found.floats[measure.name][chosen]
    groups = by_place(places)
    table, lines = _percentiles(measure, "call", values, groups)
    name, title = f"{measure.name}-position", f"{_capital(measure)} by place in the session"
    about = "Calls by their number in the session; lines: median and slowest tenth."
    if not len(values):
        return Figure(name, title, about, [], {}, table, _UNMEASURED)
    layout = {
        "xaxis": {"title": "call of the session", "type": "category"},
        "yaxis": {"title": measure.title, "rangemode": "tozero"} | _linear(lines, measure),
    }
    return Figure(
        name, title, about, _curves(measure, [g[0] for g in groups], lines), layout, table
    )


def reuse_over_time(found: Columns) -> Figure:
    """What of prompts had been sent before, and what the server found of it, over time."""
    bins, sent = Bins.over(found.span, found.until_ns, _COARSE), found["sent"]
    chosen = _answerable(found)
    told = chosen & (found["state"] == OK) & (found["cached"] >= 0)
    predicted = _share(
        bins.sums(sent[chosen], found["reuse"][chosen]),
        bins.sums(sent[chosen], found["prompt"][chosen]),
    )
    served = _share(
        bins.sums(sent[told], found["cached"][told]), bins.sums(sent[told], found["isl"][told])
    )
    head = (
        Column("from (s)"),
        Column("predicted", "percent"),
        Column("served", "percent"),
        Column("calls", "count"),
    )
    calls = bins.counts(sent[chosen])
    rows = zip(
        (bins.edges_ns[:-1] / 1e9).tolist(),
        finite(predicted),
        finite(served),
        calls.tolist(),
        strict=True,
    )
    about = (
        "Share of the input tokens that had been sent before in this run (predicted), and that the "
        "server says it found in its cache (served), by when prompts were sent."
    )
    traces = [
        _behind(marked(bins.middles_s, predicted, "predicted", "var:--other", "square")),
        marked(bins.middles_s, served, "served", "var:--decode", "circle"),
    ]
    layout = {**time_layout(found.span, found.until_ns, "y"), "yaxis": _PERCENT}
    return Figure(
        "reuse-time",
        "Prefix reuse over time",
        about + ("" if told.any() else _UNTOLD),
        traces,
        layout,
        Table(head, list(rows)),
        None if chosen.any() else _UNMEASURED,
    )


def reuse_by_position(found: Columns) -> Figure:
    """The same by the call's place in its session."""
    chosen = _answerable(found)
    told = chosen & (found["state"] == OK) & (found["cached"] >= 0)
    rows: list[list[Cell]] = []
    for label, those in by_place(found["call"] + 1):
        some, known = those & chosen, those & told
        if some.any():
            predicted = found["reuse"][some].sum() / max(1, found["prompt"][some].sum())
            isl = found["isl"][known].sum()
            served = float(found["cached"][known].sum() / isl) if isl else None
            rows.append([label, float(predicted), served, int(some.sum())])
    head = (
        Column("call", "text"),
        Column("predicted", "percent"),
        Column("served", "percent"),
        Column("calls", "count"),
    )
    x = [row[0] for row in rows]
    traces = [
        _behind(marked(x, [row[1] for row in rows], "predicted", "var:--other", "square")),
        marked(x, [row[2] for row in rows], "served", "var:--decode", "circle"),
    ]
    layout = {"xaxis": {"title": "call of the session", "type": "category"}, "yaxis": _PERCENT}
    return Figure(
        "reuse-position",
        "Prefix reuse by place in the session",
        "The same shares by the number of the call in its session."
        + ("" if told.any() else _UNTOLD),
        traces,
        layout,
        Table(head, rows),
        None if rows else _UNMEASURED,
    )


def failures(found: Columns) -> Figure:
    """Failures by kind, cut requests and refusals, by when they ended."""
    bins, done, state = found.bins, found["done"], found["state"]
    groups = [
        (kind, (state == FAILED) & (found["kind"] == number), "var:--bad")
        for number, kind in enumerate(found.kinds)
    ]
    groups += [
        ("cut at the end", state == CUT, "var:--muted"),
        ("refused, sent again", state == REFUSED, "var:--wait"),
    ]
    present = [(name, those, colour) for name, those, colour in groups if those.any()]
    counts = [bins.counts(done[those]) for _, those, _ in present]
    patterns = ("", "/", "x", ".", "+", "\\", "-", "|")
    traces = [
        {
            "type": "bar",
            "name": in_figure(name),
            "x": finite(bins.middles_s),
            "y": each.tolist(),
            "width": bins.seconds,
            "marker": {"color": colour, "pattern": {"shape": patterns[n % len(patterns)]}},
            "hovertemplate": "%{y} %{fullData.name}<extra></extra>",
        }
        for n, ((name, _, colour), each) in enumerate(zip(present, counts, strict=True))
    ]
    layout = {
        **time_layout(found.span, found.until_ns, "y"),
        "yaxis": _counted(int(max(map(np.max, counts), default=0))),
        "barmode": "stack",
    }
    columns = (Column("from (s)"), *(Column(name, "count") for name, _, _ in present))
    starts = (bins.edges_ns[:-1] / 1e9).tolist()
    rows = [
        [start, *numbers]
        for start, *numbers in zip(starts, *(each.tolist() for each in counts), strict=True)
        if any(numbers)
    ]
    empty = None if present else "No request failed, was cut or was refused."
    return Figure(
        "failures",
        "Failures over time",
        "Requests that failed, by kind and by when they ended.",
        traces,
        layout,
        Table(columns, rows),
        empty,
        height=260,
        wide=True,
    )


def lag(found: Columns) -> Figure:
    """How late this side sent."""
    bins = Bins.over(found.span, found.until_ns, _COARSE)
    chosen = (found["state"] != REFUSED) & (found["warmup"] == 0)
    places, late_s = bins.places(found["sent"][chosen]), found.floats["lag"][chosen]
    order = np.argsort(places, kind="stable")
    places, late_s = places[order], late_s[order]
    starts = np.searchsorted(places, np.arange(bins.count + 1))
    middle, most = np.full(bins.count, np.nan), np.full(bins.count, np.nan)
    for n, (low, high) in enumerate(pairwise(starts.tolist())):
        if low < high:
            middle[n], most[n] = np.median(late_s[low:high]), late_s[low:high].max()
    head = (Column("from (s)"), Column("median", "duration"), Column("latest", "duration"))
    rows = zip((bins.edges_ns[:-1] / 1e9).tolist(), finite(middle), finite(most), strict=True)
    traces = [
        marked(bins.middles_s, most * 1000, "latest", "var:--wait", "circle"),
        marked(bins.middles_s, middle * 1000, "median", "var:--other", "diamond"),
    ]
    layout = {
        **time_layout(found.span, found.until_ns, "y"),
        "yaxis": {"title": "lag (ms)", "rangemode": "tozero"},
    }
    return Figure(
        "lag",
        "Lag of the client",
        "How much later than planned requests were sent: what this machine adds. Beyond 50 ms at "
        "P99 a run is not valid.",
        traces,
        layout,
        Table(head, list(rows)),
        None if chosen.any() else "No request was sent.",
        height=260,
        wide=True,
    )


_LINES = (("median", "solid", "circle"), ("P90", "dash", "x"))
_UNMEASURED = "No request gives a sample of this."
_UNTOLD = " The server does not report cached tokens."
_PERCENT = {"title": "of input tokens", "range": [0, 1.05], "tickformat": ".0%"}


def _nothing(found: Columns) -> str | None:
    return None if len(found) else "No request was sent."


def _answerable(found: Columns) -> Bools:
    """Requests of which a share of reuse is: those that were measured."""
    chosen: Bools = (found["state"] != REFUSED) & (found["warmup"] == 0) & (found["prompt"] > 0)
    return chosen


def _share(part: Floats, whole: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole > 0, part / whole, np.nan)


def _steps(
    bins: Bins, values: Floats, name: str, colour: str, *, yaxis: str, legend: bool
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": finite(bins.middles_s),
        "y": finite(values),
        "yaxis": yaxis,
        "showlegend": legend,
        "line": {"shape": "hvh", "color": colour, "width": 1.6},
        "hovertemplate": "%{y:,.4~g}",
    }


def marked(x: Any, y: Any, name: str, colour: str, symbol: str) -> dict[str, Any]:
    """A line with a mark at each value; it goes on where a value is missing."""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": in_figure(name),
        "x": finite(x) if isinstance(x, np.ndarray) else list(x),
        "y": finite(y) if isinstance(y, np.ndarray) else list(y),
        "line": {"color": colour, "width": 1.6},
        "marker": {"symbol": symbol, "size": 5},
        "connectgaps": True,
    }


def _behind(trace: dict[str, Any]) -> dict[str, Any]:
    """The same, to be seen below another one that has its values."""
    return {
        **trace,
        "line": {**trace["line"], "width": 6},
        "marker": {**trace["marker"], "size": 9},
        "opacity": 0.5,
    }


def time_layout(span: Window, until_ns: int, lowest: str) -> dict[str, Any]:
    """An axis of time with the window marked."""
    layout: dict[str, Any] = {
        "xaxis": {
            "title": "time (s); the window is shaded",
            "range": [0, max(until_ns / 1e9, 0.1)],
            "anchor": lowest,
        },
        "hovermode": "x unified",
    }
    if span.seconds:
        edges = span.open_ns / 1e9, span.close_ns / 1e9
        layout["shapes"] = [
            {
                "type": "rect",
                "yref": "paper",
                "x0": edges[0],
                "x1": edges[1],
                "y0": 0,
                "y1": 1,
                "fillcolor": "var:--window",
                "line": {"width": 0},
                "layer": "below",
            },
            *(_line(edge) for edge in edges),
        ]
    return layout


def _counted(most: int) -> dict[str, Any]:
    """An axis of requests, without halves."""
    return {"title": "requests", "rangemode": "tozero"} | ({"dtick": 1} if most < 5 else {})


def _line(x: float) -> dict[str, Any]:
    return {
        "type": "line",
        "yref": "paper",
        "x0": x,
        "x1": x,
        "y0": 0,
        "y1": 1,
        "line": {"color": "var:--muted", "width": 1, "dash": "dash"},
    }


def _capital(measure: Measure) -> str:
    return measure.title[:1].upper() + measure.title[1:].partition(" (")[0]


def _thousands(tokens: float) -> str:
    return f"{tokens / 1000:g}k" if tokens >= 1000 else f"{tokens:g}"


def _of(drawn: int, known: int) -> str:
    return f" ({drawn:,} of {known:,}, the slowest among them)" if drawn < known else ""


def _doubling(lengths: Ints) -> list[int]:
    """Bounds of groups, each twice as far as the one before, that hold all lengths."""
    if not len(lengths):
        return []
    bounds = [1 << (int(lengths.min()).bit_length() - 1)]
    while bounds[-1] <= int(lengths.max()):
        bounds.append(bounds[-1] * 2)
    return bounds


def by_place(places: Ints) -> list[tuple[str, Bools]]:
    """Groups of calls by their number in the session; further ones are wider."""
    if not len(places):
        return []
    most = int(places.max())
    bounds = [each for each in _POSITIONS if each <= most]
    while bounds and bounds[-1] * 2 <= most:
        bounds.append(bounds[-1] * 2)
    found = []
    for low, high in zip(bounds, [*bounds, most + 1][1:], strict=True):
        label = f"{low}" if high - low == 1 else f"{low}–{high - 1}"
        those = (places >= low) & (places < high)
        if those.any():
            found.append((label, those))
    return found


def _percentiles(
    measure: Measure, of: str, values: Floats, groups: Sequence[tuple[str, Bools]]
) -> tuple[Table, list[list[float]]]:
    """The table of groups, and of each its median and where its slow tenth begins."""
    rows: list[list[Cell]] = []
    lines = []
    for label, those in groups:
        n = int(those.sum())
        middle = slow = float("nan")
        if n:
            middle, slow = np.percentile(values[those], [50, measure.slow * 100]).tolist()
            rows.append([label, n, middle, slow])
        lines.append([middle, slow])
    head = (
        Column(of, "text"),
        Column("requests", "count"),
        Column(f"{measure.title} p50", measure.kind),
        Column(f"{measure.title} p90", measure.kind),
    )
    return Table(head, rows), lines


def _curves(
    measure: Measure, x: Sequence[Any], lines: Sequence[Sequence[float]]
) -> list[dict[str, Any]]:
    """The lines of medians and slow tenths."""
    return [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": list(x),
            "y": finite(line[n] for line in lines),
            "line": {"color": "var:--strong", "width": 2, "dash": dash},
            "marker": {"symbol": symbol, "size": 7},
            "connectgaps": True,
            "customdata": [measure.show(line[n]) if line[n] == line[n] else "" for line in lines],
            "hovertemplate": "%{fullData.name} %{customdata}<extra></extra>",
        }
        for n, (name, dash, symbol) in enumerate(_LINES)
    ]


def _drawn(lengths: Ints, values: Floats, measure: Measure) -> Ints:
    """Which requests are drawn: all, or evenly many of every length, and the slowest."""
    if len(values) <= DOTS:
        return np.arange(len(values))
    order = np.lexsort((values, lengths))
    some = order[:: ceil(len(values) / (DOTS - _SLOWEST))]
    slowest = np.argsort(values if measure.slow < 0.5 else -values)[:_SLOWEST]
    return np.union1d(some, slowest)


def _dots(x: Ints, y: Floats, measure: Measure, hints: list[str]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "a request",
        "x": x.tolist(),
        "y": finite(y),
        "marker": {"color": measure.colour, "size": 5, "opacity": 0.45},
        "customdata": hints,
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _hints(measure: Measure, lengths: Ints, values: Floats, shares: Floats) -> list[str]:
    return [
        f"{length:,} tokens{f', {share:.0%} cached' if share == share else ''}: "
        f"{measure.show(value)}"
        for length, value, share in zip(
            lengths.tolist(), values.tolist(), shares.tolist(), strict=True
        )
    ]


def _log(values: Ints | Floats, show: Callable[[float], str]) -> dict[str, Any]:
    """Labels of an axis that plotly.js itself takes the logarithm of."""
    ticks = log_ticks(float(values.min()), float(values.max()), show)
    return {**ticks, "tickvals": [10**tick for tick in ticks["tickvals"]]}


def _linear(lines: Sequence[Sequence[float]], measure: Measure) -> dict[str, Any]:
    """Labels of an axis from 0 in the unit that suits it."""
    most = max((value for line in lines for value in line if value == value), default=0.0)
    if not most:
        return {}
    step = 10.0 ** (ceil(log10(most)) - 1)
    step = next(each for each in (step, 2 * step, 5 * step, 10 * step) if most / each <= 6)
    ticks = [n * step for n in range(int(most / step) + 2)]
    return {"tickvals": ticks, "ticktext": [measure.show(tick) for tick in ticks]}
