"""The pages of systems as curves, and of a sweep over numbers of users. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from agentreplay.metrics.condition import shown, unit_of
from agentreplay.metrics.gate import gate
from agentreplay.report.curve import (
    about_point,
    at_target,
    conclusions,
    other_work,
    value_rows,
)
from agentreplay.report.html.page import (
    Cell,
    Column,
    Figure,
    Page,
    Section,
    Table,
    banner_html,
    escaped,
    in_figure,
    notes_html,
    table_html,
)
from agentreplay.report.sweep import RATE, SPEED, WAIT, answers, missing
from agentreplay.report.text import banner

_MARKS = tuple(
    (f"var:--s{n}", symbol, dash)
    for n, (symbol, dash) in enumerate(
        (
            ("circle", "solid"),
            ("square", "dash"),
            ("diamond", "dot"),
            ("triangle-up", "dashdot"),
            ("star", "longdash"),
            ("hexagon", "longdashdot"),
        ),
        1,
    )
)
"""Of the first system, the second, …: told apart by colour, form and line."""


_BY_USERS = (SPEED, WAIT, RATE, "output_token_rate")


def curve_page(value: Mapping[str, Any]) -> Page:
    """The page of `report.curve.curve_value`."""
    parts: list[Figure | str] = [_systems(value, "y", value["y"], "curve")]
    if any(p["tokens_per_dollar"] for system in value["systems"] for p in system["points"]):
        parts.append(_systems(value, "tokens_per_dollar", "tokens per dollar", "dollars"))
    head = [banner_html(banner(value["simulated"]))] if value["simulated"] else []
    head.append("<h1>Systems compared</h1>")
    if warning := other_work(value):
        head.append(f'<div class="verdict invalid" role="status"><p><b>{warning}</b></p></div>')
    if value["at"] is not None:
        columns = (
            Column("system", "text"),
            *(Column(each, "figure") for each in (value["y"], "tokens per dollar", "$ a million")),
            Column("read from", "text"),
        )
        table = Table(columns, list(value_rows(value)))
        head.append(f"<h3>{escaped(at_target(value))}</h3>{table_html(table)}")
    head.append(notes_html(conclusions(value)))
    return Page(
        "Systems compared · agentreplay",
        "".join(head),
        (Section("curves", "Curves", tuple(parts)),),
    )


def _systems(value: Mapping[str, Any], of: str, title: str, name: str) -> Figure:
    traces: list[dict[str, Any]] = []
    rows: list[list[Cell]] = []
    for system, (colour, symbol, dash) in zip(value["systems"], cycle(_MARKS), strict=False):
        points = [point for point in system["points"] if point[of] is not None]
        rows += [[system["name"], p["name"], p["x"], p[of], about_point(p)] for p in points]
        label, group = in_figure(system["name"]), {"legendgroup": system["name"]}
        edge = [point for point in points if point["front"]]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": label,
                "x": [point["x"] for point in edge],
                "y": [point[of] for point in edge],
                "line": {"color": colour, "width": 2, "dash": dash},
                "hoverinfo": "skip",
                "showlegend": False,
                **group,
            }
        )
        for invalid in (False, True):
            some = [point for point in points if bool(point["invalid"]) == invalid]
            if not some and invalid:
                continue
            traces.append(
                _dots(
                    [point["x"] for point in some],
                    [point[of] for point in some],
                    [f"{system['name']}: {p['name']} {about_point(p)}" for p in some],
                    label + (", not valid" if invalid else ""),
                    {"color": colour, "symbol": "x-thin-open" if invalid else symbol, "size": 9},
                )
                | group
            )
        if system["value"] and (read := system["value"][of]) is not None:
            said = f"{system['name']} at the target, read off the front"
            mark = {"color": colour, "symbol": "star-diamond", "size": 14}
            traces.append(
                _dots([value["at"]], [read], [said], label, mark) | {"showlegend": False} | group
            )
    columns = (
        Column("system", "text"),
        Column("point", "text"),
        Column(value["x"]),
        Column(title),
        Column("", "text"),
    )
    about = (
        "Lines are the Pareto front of each system."
        + (
            " The dashed line is the target, stars are what is read there."
            if value["at"] is not None
            else ""
        )
        + " Crosses are runs that are not valid."
    )
    return Figure(
        name,
        f"{title} against {value['x']}",
        about,
        traces,
        _axes(_with_unit(value["x"]), _with_unit(title), value["at"]),
        Table(columns, rows),
        None if rows else "No point has both figures.",
        height=440,
        wide=True,
    )


def sweep_page(name: str, value: Mapping[str, Any]) -> Page:
    """The page of sweep.json.

    Args:
        name: What the sweep is called.
        value: What sweep.json holds.
    """
    head = [banner_html(banner(value["simulated"]))] if value["simulated"] else []
    head.append(f"<h1>{escaped(name)}</h1>")
    paths = ", ".join(value["job"]["trace"]["paths"])
    where = ", ".join(value["job"]["endpoint"].get("urls", ["the simulated server"]))
    numbers = sorted({run["users"] for run in value["runs"]})
    users = ", ".join(map(str, numbers))
    head.append(
        f'<p class="what">{escaped(paths)} → {escaped(where)}<br>users: {escaped(users)}</p>'
    )
    if found := answers(value):
        words = "".join(f"<p><b>{escaped(each)}</b></p>" for each in found)
        head.append(f'<div class="verdict" role="status">{words}</div>')
    head.append(notes_html([*missing(value), *value["warnings"]]))
    head.append(table_html(_runs(value)))
    by_users = [_by_users(value, metric, None) for metric in _BY_USERS]
    parts = (*(_front(value, each["x"]) for each in value["fronts"]), *by_users)
    sections = [Section("curve", "Curve", parts)]
    if value["search"]:
        limits = tuple(
            _by_users(value, gate(text).metric, text) for text in value["search"]["limits"]
        )
        sections.insert(0, Section("search", "The search", limits))
    return Page(f"{name} · agentreplay", "".join(head), tuple(sections))


def _runs(value: Mapping[str, Any]) -> Table:
    columns = (
        Column("run", "text"),
        Column("users", "count"),
        Column("P90 tok/s/user"),
        Column("total tok/s"),
        Column("output tok/s"),
        Column("TTFT P95", "duration"),
        Column("failed", "percent"),
        Column("verdict", "text"),
    )
    names = (SPEED, RATE, "output_token_rate", WAIT, "error_rate")
    rows = [
        [
            run["directory"],
            run["users"],
            *(run["figures"].get(name) for name in names),
            run["passed_over"]
            or ("valid" if run["valid"] else ", ".join(r["id"] for r in run["reasons"])),
        ]
        for run in value["runs"]
    ]
    return Table(columns, rows)


def _front(value: Mapping[str, Any], metric: str) -> Figure:
    """The curve: medians by number of users, the front of them, single runs, targets."""
    points = [
        (point["users"], point["figures"].get(metric), point["figures"].get(RATE))
        for point in value["points"]
    ]
    placed = [(n, x, y) for n, x, y in points if x is not None and y is not None]
    best = next(each["users"] for each in value["fronts"] if each["x"] == metric)
    edge = sorted((x, y) for n, x, y in placed if n in best)
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "Pareto front",
            "x": [x for x, _ in edge],
            "y": [y for _, y in edge],
            "line": {"color": "var:--s1", "width": 2},
            "hoverinfo": "skip",
        },
        _dots(
            [x for _, x, _ in placed],
            [y for _, _, y in placed],
            [f"{n} users: {shown(metric, x)}, {shown(RATE, y)}" for n, x, y in placed],
            "median of valid runs",
            {"color": "var:--s1", "symbol": "circle", "size": 10},
        )
        | {
            "mode": "markers+text",
            "text": [str(n) for n, _, _ in placed],
            "textposition": "top right",
        },
    ]
    others = [run for run in value["runs"] if not run["valid"] or run["passed_over"]]
    bad = [(run, run["figures"].get(metric), run["figures"].get(RATE)) for run in others]
    bad = [each for each in bad if each[1] is not None and each[2] is not None]
    if bad:
        traces.append(
            _dots(
                [x for _, x, _ in bad],
                [y for _, _, y in bad],
                [f"{run['directory']}: {run['users']} users, left out" for run, _, _ in bad],
                "left out",
                {"color": "var:--bad", "symbol": "x-thin-open", "size": 10},
            )
        )
    targets = [each for each in value["at"] if each["x"] == metric]
    read = [each for each in targets if each["value"] is not None]
    if read:
        traces.append(
            _dots(
                [each["target"] for each in read],
                [each["value"] for each in read],
                [f"{shown(RATE, each['value'])} at {each['target']:g}" for each in read],
                "read at the target",
                {"color": "var:--s2", "symbol": "star-diamond", "size": 14},
            )
        )
    layout = _axes(_with_unit(metric), _with_unit(RATE), *(each["target"] for each in targets))
    return Figure(
        f"front-{metric.replace('.', '-')}",
        f"Total token rate against {metric}",
        "Each number of users as a point, marked with it; the line is the Pareto front. Crosses "
        "are runs that are left out, dashed lines targets.",
        traces,
        layout,
        Table((Column("users", "count"), Column(metric), Column(RATE)), placed),
        None if placed or bad else "No run has both figures.",
        height=440,
        wide=True,
    )


def _by_users(value: Mapping[str, Any], metric: str, limit: str | None) -> Figure:
    """A figure against the number of users, single runs apart from medians."""
    runs = [(run, run["figures"].get(metric)) for run in value["runs"]]
    known = sorted(
        ((run["users"], y, run) for run, y in runs if y is not None), key=lambda each: each[:2]
    )
    groups = (
        ("holds" if limit else "valid", "var:--s1", "circle"),
        ("missed", "var:--bad", "triangle-down"),
        ("left out", "var:--muted", "x-thin-open"),
    )

    def group(run: Mapping[str, Any]) -> str:
        if not run["valid"] or run["passed_over"]:
            return "left out"
        return "missed" if limit and run["holds"] is False else groups[0][0]

    traces = []
    for name, colour, symbol in groups:
        some = [each for each in known if group(each[2]) == name]
        if some:
            traces.append(
                _dots(
                    [users for users, _, _ in some],
                    [y for _, y, _ in some],
                    [f"{run['directory']}: {shown(metric, y)}" for _, y, run in some],
                    name,
                    {"color": colour, "symbol": symbol, "size": 9},
                )
            )
    numbers = sorted({users for users, _, _ in known})
    layout: dict[str, Any] = {
        "xaxis": {
            "title": "users",
            "type": "log",
            "tickvals": numbers,
            "ticktext": [str(n) for n in numbers],
        },
        "yaxis": {"title": _with_unit(metric), "rangemode": "tozero"},
    }
    if limit:
        layout["shapes"] = [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": gate(limit).limit,
                "y1": gate(limit).limit,
                "line": {"color": "var:--bad", "width": 1.5, "dash": "dash"},
            }
        ]
    rows = [[users, y, run["directory"], group(run)] for users, y, run in known]
    columns = (Column("users", "count"), Column(metric), Column("run", "text"), Column("", "text"))
    name = f"users-{metric.replace('.', '-')}" + ("-limit" if limit else "")
    return Figure(
        name,
        f"{metric} by users",
        f"Each run; the dashed line is the limit {limit}." if limit else "Each run.",
        traces,
        layout,
        Table(columns, rows),
        None if known else "No run has this figure.",
    )


def _dots(
    x: Sequence[Any], y: Sequence[Any], said: Sequence[str], name: str, mark: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": x,
        "y": y,
        "marker": {**mark, "line": {"width": 3 if "open" in mark["symbol"] else 0}},
        "customdata": [in_figure(each) for each in said],
        "hovertemplate": "%{customdata}: %{x:,.4~g}, %{y:,.5~g}<extra></extra>",
    }


def _axes(x: str, y: str, *targets: float | None) -> dict[str, Any]:
    return {
        "xaxis": {"title": in_figure(x)},
        "yaxis": {"title": in_figure(y), "rangemode": "tozero"},
        "shapes": [
            {
                "type": "line",
                "yref": "paper",
                "x0": target,
                "x1": target,
                "y0": 0,
                "y1": 1,
                "line": {"color": "var:--muted", "width": 1.5, "dash": "dash"},
            }
            for target in targets
            if target is not None
        ],
        "hovermode": "closest",
    }


def _with_unit(metric: str) -> str:
    unit = unit_of(metric)
    return f"{metric} ({unit})" if unit else metric
