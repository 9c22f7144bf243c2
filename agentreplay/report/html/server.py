"""What the server's own metrics said over the time of a run, as its page shows it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean
from typing import Any

from agentreplay.metrics.server import Count, Moment, Reading, course
from agentreplay.report.html.columns import Columns
from agentreplay.report.html.figures import marked, time_layout
from agentreplay.report.html.page import (
    Column,
    Figure,
    Kind,
    Section,
    Table,
    finite,
    notes_html,
    table_html,
)

STEPS = 600
"""Of more moments than this, neighbours are put together."""

_ADDRESSES = 6
"""So many addresses have a line of their own."""


@dataclass(frozen=True, slots=True)
class Step:
    """A moment, or the means of several that follow each other; None where it isn't told.

    Attributes:
        at_s: When, in seconds of the run.
        middle_s: The middle of the time that the rates are over.
        running: Requests that were worked on.
        waiting: Requests that waited.
        kv_use: Share of the KV cache that requests held.
        prompt_rate: Input tokens a second.
        generated_rate: Output tokens a second.
        hit_share: Tokens found in the prefix cache / tokens looked up.
        acceptance: Share of drafted tokens that were accepted.
        preemptions: Running requests that had to give way.
        missing: Why a reading, or some of its counters, is missing.
    """

    at_s: float
    middle_s: float
    running: float | None
    waiting: float | None
    kv_use: float | None
    prompt_rate: float | None
    generated_rate: float | None
    hit_share: float | None
    acceptance: float | None
    preemptions: int | None
    missing: str | None


@dataclass(frozen=True, slots=True)
class _Line:
    """A figure of the server: its name in `Step`, in words, its panel, and how it is drawn."""

    name: str
    title: str
    panel: str
    kind: Kind
    colour: str
    symbol: str


_LINES = (
    _Line("running", "running", "requests", "number", "var:--decode", "circle"),
    _Line("waiting", "waiting", "requests", "number", "var:--wait", "square"),
    _Line("kv_use", "KV cache in use", "share", "percent", "var:--other", "diamond"),
    _Line("hit_share", "found in the prefix cache", "share", "percent", "var:--warm", "circle"),
    _Line("acceptance", "drafts accepted", "share", "percent", "var:--wait", "x"),
    _Line("prompt_rate", "input tok/s", "input tok/s", "number", "var:--input", "circle"),
    _Line("generated_rate", "output tok/s", "output tok/s", "number", "var:--decode", "circle"),
    _Line("preemptions", "preemptions", "preempted", "count", "var:--bad", "triangle-up"),
)

_AT_MOMENTS = ("running", "waiting", "kv_use")


def server_section(
    readings: Iterable[Reading], server: Mapping[str, Any] | None, found: Columns
) -> Section | None:
    """The section of a run's page about its server; None where its metrics were never read.

    Args:
        readings: What the server said of itself, in order of time.
        server: What that came to, as summary.json holds it.
        found: The columns of the run's records.
    """
    by_url: dict[str, list[Reading]] = {}
    for each in readings:
        by_url.setdefault(each.url, []).append(each)
    if server is None or not by_url:
        return None
    parts: list[Figure | str] = [
        _over_time(steps(course(each for found in by_url.values() for each in found)), found)
    ]
    if len(by_url) > 1:
        parts.append(_by_address(by_url, found))
    parts.append(_checked(server))
    return Section("server", "The server", tuple(parts))


def steps(moments: Sequence[Moment], most: int = STEPS) -> list[Step]:
    """Moments as they are drawn, *most* or fewer."""
    size = max(1, ceil(len(moments) / most))
    return [_step(moments[n : n + size]) for n in range(0, len(moments), size)]


def _step(moments: Sequence[Moment]) -> Step:
    loads = [each.load for each in moments if each.load is not None]
    timed = [each for each in moments if each.seconds is not None]
    errors = [each.error for each in moments if each.error is not None]
    at_s = fmean(each.at_ns for each in moments) / 1e9
    last_s, first = moments[-1].at_ns / 1e9, moments[0]
    begun_s = first.at_ns / 1e9 - (first.seconds or 0.0)

    def grown(name: str) -> tuple[int, float] | None:
        known = [each for each in timed if name in each.grown]
        if not known:
            return None
        return sum(each.grown[name] for each in known), sum(each.seconds or 0.0 for each in known)

    def rate(name: str) -> float | None:
        more = grown(name)
        return more[0] / more[1] if more and more[1] else None

    def share(part: str, whole: str) -> float | None:
        of, all_of = grown(part), grown(whole)
        return of[0] / all_of[0] if of and all_of and all_of[0] else None

    preemptions = grown("preemptions")
    acceptance = share("accepted_tokens", "drafted_tokens")
    return Step(
        at_s=at_s,
        middle_s=(begun_s + last_s) / 2,
        running=_mean(each.running for each in loads),
        waiting=_mean(each.waiting for each in loads),
        kv_use=_mean(each.kv_use for each in loads),
        prompt_rate=rate("prompt_tokens"),
        generated_rate=rate("generated_tokens"),
        hit_share=share("found_tokens", "looked_up_tokens"),
        acceptance=_mean(each.acceptance for each in moments) if acceptance is None else acceptance,
        preemptions=preemptions[0] if preemptions else None,
        missing=f"{errors[-1]} ({len(errors)} of {len(moments)})"
        if errors and len(moments) > 1
        else next(iter(errors), None),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _over_time(found: Sequence[Step], run: Columns) -> Figure:
    """All that it said, a panel for each unit, on the axis of time of the token rates."""
    values = {line.name: [getattr(step, line.name) for step in found] for line in _LINES}
    known = [line for line in _LINES if any(value is not None for value in values[line.name])]
    drawn = [line for line in known if line.panel != "preempted" or any(values[line.name])]
    panels = list(dict.fromkeys(line.panel for line in drawn))
    axes = {panel: f"y{n + 1 if n else ''}" for n, panel in enumerate(panels)}
    traces = [
        {
            **_line(
                [step.at_s if line.name in _AT_MOMENTS else step.middle_s for step in found],
                values[line.name],
                line.title,
                line.colour,
                line.symbol,
            ),
            "yaxis": axes[line.panel],
            "showlegend": line.panel in ("requests", "share"),
            "hovertemplate": "%{y:.1%}" if line.kind == "percent" else "%{y:,.4~g}",
        }
        for line in drawn
    ]
    high = 1 / max(1, len(panels))
    layout = time_layout(run.span, run.until_ns, axes[panels[-1]] if panels else "y")
    for n, panel in enumerate(panels):
        layout[f"yaxis{n + 1 if n else ''}"] = {
            "title": panel,
            "domain": [1 - (n + 1) * high + (0.05 if n + 1 < len(panels) else 0), 1 - n * high],
            "rangemode": "tozero",
            "nticks": 4,
            **({"tickformat": ".0%"} if panel == "share" else {}),
        }
    head = (
        Column("at (s)"),
        *(Column(line.title, line.kind) for line in known),
        *([Column("why missing", "text")] if any(step.missing for step in found) else []),
    )
    rows = [
        (step.at_s, *(getattr(step, line.name) for line in known), step.missing)[: len(head)]
        for step in found
    ]
    about = (
        "By its own metrics: requests, the KV cache of the fullest engine, and what its counters "
        "grew by from reading to reading. Where it couldn't be read there is a gap, and the table "
        "says why."
    )
    return Figure(
        "server",
        "What the server said over time",
        about,
        traces,
        layout,
        Table(head, rows),
        None if drawn else "No reading of the server's metrics succeeded.",
        height=90 + 105 * len(panels),
        wide=True,
    )


def _by_address(by_url: Mapping[str, Sequence[Reading]], run: Columns) -> Figure:
    """Requests and KV cache of each address."""
    of = {url: steps(course(readings)) for url, readings in by_url.items()}

    def requests(step: Step) -> float | None:
        known = [each for each in (step.running, step.waiting) if each is not None]
        return sum(known) if known else None

    def busy(url: str) -> float:
        return sum(requests(step) or 0.0 for step in of[url])

    drawn = sorted(of, key=busy, reverse=True)[:_ADDRESSES]
    symbols = ("circle", "square", "diamond", "x", "triangle-up", "cross")
    traces = [
        {
            **_line([step.at_s for step in of[url]], values, url, f"var:--s{n + 1}", symbols[n]),
            "yaxis": axis,
            "legendgroup": f"{n}",
            "showlegend": axis == "y",
            "hovertemplate": "%{y:.1%}" if axis == "y2" else "%{y:,.4~g}",
        }
        for n, url in enumerate(drawn)
        for axis, values in (
            ("y", [requests(step) for step in of[url]]),
            ("y2", [step.kv_use for step in of[url]]),
        )
        if any(value is not None for value in values)
    ]
    layout = {
        **time_layout(run.span, run.until_ns, "y2"),
        "yaxis": {"title": "requests", "domain": [0.55, 1], "rangemode": "tozero"},
        "yaxis2": {
            "title": "KV cache",
            "domain": [0, 0.45],
            "rangemode": "tozero",
            "tickformat": ".0%",
        },
    }
    head = (
        Column("address", "text"),
        Column("at (s)"),
        Column("running"),
        Column("waiting"),
        Column("KV cache in use", "percent"),
        Column("why missing", "text"),
    )
    rows = [
        (url, step.at_s, step.running, step.waiting, step.kv_use, step.missing)
        for url in drawn
        for step in of[url]
    ]
    some = (
        f"; of {len(of)} addresses the {len(drawn)} with the most" if len(drawn) < len(of) else ""
    )
    return Figure(
        "server-addresses",
        "Each address",
        f"Requests there, running and waiting, and the use of its KV cache{some}.",
        traces,
        layout,
        Table(head, rows),
        None if traces else "No reading of the server's metrics succeeded.",
        wide=True,
    )


def _line(
    x: Sequence[float], y: Sequence[float | None], name: str, colour: str, symbol: str
) -> dict[str, Any]:
    """A line that is broken where a value is missing."""
    trace = marked(
        finite(x),
        [None if value is None else finite([value])[0] for value in y],
        name,
        colour,
        symbol,
    )
    size = 5 if len(x) <= 120 else 3
    return {**trace, "marker": {"symbol": symbol, "size": size}, "connectgaps": False}


def _checked(server: Mapping[str, Any]) -> str:
    """Our counts beside the server's, and how often each address was read."""
    counts = [
        (title, each["server"], each["ours"], each["open"], each["rounding"], _beyond(each))
        for title, name in (("input", "prompt"), ("output", "generated"), ("cached", "cached"))
        if (each := server[name])
    ]
    head = (
        Column("tokens of the whole run", "text"),
        Column("server", "count"),
        Column("its answers", "count"),
        Column("cut or failed, at most", "count"),
        Column("rounding", "count"),
        Column("unexplained", "count"),
    )
    sources = Table(
        (
            Column("address", "text"),
            Column("readings", "count"),
            Column("failed", "count"),
            Column("the last reason", "text"),
        ),
        [
            (each["url"], each["readings"], each["failed"], each["error"])
            for each in server["sources"]
        ],
    )
    said = [f"What the server counted is not compared: {server['unchecked']}."]
    return (
        f'<div class="wide">{table_html(Table(head, counts), "Are its counts ours?")}'
        f"{notes_html(said if server['unchecked'] else ())}"
        f"{table_html(sources, 'Readings')}</div>"
    )


def _beyond(count: Mapping[str, Any]) -> int | None:
    """What requests of ours can't account for, as `metrics.server.Count` says it."""
    if count["server"] is None or count["ours"] is None:
        return None
    return Count(**count).unexplained
