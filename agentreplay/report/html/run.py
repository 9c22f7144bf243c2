"""The page of a run: its verdict, figures, sessions, and what was run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import orjson

from agentreplay.metrics.condition import shown
from agentreplay.metrics.server import Reading
from agentreplay.report.definitions import DEFINITIONS
from agentreplay.report.html import figures
from agentreplay.report.html.columns import NONE, Columns
from agentreplay.report.html.figures import SPEED, TTFT
from agentreplay.report.html.page import (
    Cell,
    Column,
    Figure,
    Page,
    Section,
    Table,
    banner_html,
    details,
    escaped,
    notes_html,
    numbered,
    packed,
    table_html,
)
from agentreplay.report.html.server import server_section
from agentreplay.report.text import (
    COLUMNS,
    banner,
    distributions,
    headline,
    remarks,
    tolerated_failures,
)
from agentreplay.report.text import figures as main_figures
from agentreplay.units import ABSENT

_UNIT_NS = 100_000
"""Times of the timeline are whole numbers of this, or of more where 32 bits don't hold them."""

_STATES = ("succeeded", "failed", "cut at the end", "refused, sent again")


def run_page(
    name: str, value: dict[str, Any], found: Columns, readings: Iterable[Reading] = ()
) -> Page:
    """The page of a run.

    Args:
        name: What the run is called.
        value: What it came to, as summary.json holds it.
        found: The columns of its records.
        readings: What the server said of itself, in order of time.
    """
    metrics = value["metrics"]
    speed, ttft = metrics["interactivity"], metrics["ttft"]
    server = server_section(readings, value["server"], found)
    sections = [
        Section("rates", "Over time", (figures.over_time(found),)),
        *([server] if server else []),
        Section("sessions", "Sessions", (_timeline(found), _plays(value))),
        Section(
            "latency",
            "Interactivity and time to first token",
            (
                figures.histogram(found, SPEED, [("P50", speed["p50"]), ("P90", speed["p90"])]),
                figures.histogram(
                    found,
                    TTFT,
                    [("P50", ttft["p50"]), ("P95", ttft["p95"]), ("P99", ttft["p99"])],
                ),
                figures.by_length(found, SPEED),
                figures.by_length(found, TTFT),
                figures.by_position(found, SPEED),
                figures.by_position(found, TTFT),
            ),
        ),
        Section(
            "reuse",
            "Prefix reuse",
            (figures.reuse_over_time(found), figures.reuse_by_position(found)),
        ),
        Section("failures", "Failures", (figures.failures(found), _failed(value))),
        Section("client", "This machine", (_client(metrics), figures.lag(found))),
        Section("figures", "Every figure", (_distributions(metrics), _others(metrics))),
        Section("about", "What was run", (_about(value),)),
    ]
    return Page(
        f"{name} · agentreplay",
        _head(name, value),
        tuple(sections),
        {"timeline": timeline(found), "plays": plays_table(value, found)},
    )


def _head(name: str, value: dict[str, Any]) -> str:
    verdict = value["verdict"]
    parts = [banner_html(banner(value["simulated"]))] if value["simulated"] else []
    what, _, asked = headline(value).rpartition("\n")
    parts.append(
        f'<p class="made">agentreplay {escaped(value["agentreplay"])}</p><h1>{escaped(name)}</h1>'
        f'<p class="what">{escaped(what)}<br>{escaped(asked)}</p>'
    )
    said = tolerated_failures(value) if verdict["valid"] else ""
    word = "valid" if verdict["valid"] else "invalid"
    reasons = "".join(
        f"<li><b>{escaped(each['id'])}</b>: {escaped(each['text'])}</li>"
        for each in verdict["reasons"]
    )
    parts.append(
        f'<div class="verdict {word}" role="status"><p>Verdict: <b>{word}</b>'
        f"{escaped(f'; {said}') if said else ''}</p>"
        f"{f'<ul>{reasons}</ul>' if reasons else ''}</div>"
    )
    parts.append(notes_html(each["text"] for each in verdict["warnings"]))
    if value["gates"]:
        rows = [
            (
                "passed" if gate["passed"] else "missed",
                gate["text"],
                gate["reason"] or f"it is {shown(gate['metric'], gate['value'])}",
            )
            for gate in value["gates"]
        ]
        head = (Column("gate", "text"), Column("condition", "text"), Column("value", "text"))
        parts.append(table_html(Table(head, rows)))
    parts.append(f'<dl class="tiles">{"".join(_tiles(value))}</dl>')
    return "".join(parts)


def _tiles(value: dict[str, Any]) -> Iterator[str]:
    for name, figure, of, metric in main_figures(value):
        number = ""
        meaning = ""
        if metric is not None:
            number = numbered(metric, value["metrics"])
            meaning = details("definition", f"<p>{escaped(_meaning(metric))}</p>", "definition")
        yield (
            f'<div class="tile"><dt>{escaped(name)}</dt><dd><span class="big"{number}>'
            f'{escaped(figure)}</span><span class="of">{escaped(of)}</span>{meaning}</dd></div>'
        )


def _meaning(metric: str) -> str:
    name, _, part = metric.partition(".")
    return f"{metric}: {DEFINITIONS[name]}." + (f" {_PARTS[part]}" if part in _PARTS else "")


_PARTS = {
    "p50": "p50: the median.",
    "p90": "p90 of a rate: what 90 % reach or exceed.",
}


def _timeline(found: Columns) -> str:
    if not len(found):
        return '<p class="empty">No request was sent.</p>'
    return timeline_html(
        "Sessions over time",
        "A band for each user; its first row is the main agent, the others are subagents.",
        f"Timeline of {len(found):,} calls of {len(found.plays):,} plays.",
        [
            ("gap", "gap before a call"),
            ("wait", "wait for the first token"),
            ("decode", "answer streams"),
            ("warm", "warm-up"),
            ("bad", "failed"),
            ("cut", "cut at the end"),
            ("busy", "refused"),
        ],
        "requests",
        "Every request, a row each.",
        window=True,
    )


def timeline_html(
    title: str,
    about: str,
    label: str,
    keys: Sequence[tuple[str, str]],
    csv: str,
    rows: str,
    *,
    window: bool = False,
) -> str:
    """The frame in which the script draws calls over time.

    Args:
        title: Its heading.
        about: What it shows.
        label: The same for those who don't see it.
        keys: Classes of marks, and what these mean.
        csv: The name of its table.
        rows: What the table holds.
        window: There is one to be shown.
    """
    buttons = "".join(
        f'<button type="button" data-do="{do}" aria-label="{name}" title="{name}">{sign}</button>'
        for do, name, sign in (
            ("in", "zoom in", "+"),
            ("out", "zoom out", "−"),
            ("left", "earlier", "←"),
            ("right", "later", "→"),
            *([("window", "the window", "window")] if window else []),
            ("all", "all of it", "all"),
        )
    )
    marks = "".join(
        f'<span><i class="key {name}" aria-hidden="true"></i>{meaning}</span>'
        for name, meaning in keys
    )
    return f"""<figure id="figure-timeline" class="wide">
<figcaption><h3>{title}</h3>
<p>{about} Drag to zoom, drag with Shift to move; click, then the wheel zooms and the keys
+ − ← → work, n and p go to the next and the previous call of a session, Esc lets go. A click on a
call follows its session.</p></figcaption>
<div class="tools"><div class="buttons" role="group" aria-label="Move in time">{buttons}</div>
<div class="keys">{marks}</div></div>
<div class="lanes"><div class="view" tabindex="0" role="application"
aria-label="{label} Keys: plus, minus, arrows, n, p, Escape.">
<canvas></canvas><div class="tip" role="tooltip" hidden></div></div>
<aside class="visit" aria-live="polite"><p class="empty">Click a call to follow its session.</p>
</aside></div>
<div class="behind"><button type="button" class="csv" data-table="{csv}">CSV</button>
<span class="hint">{rows}</span></div></figure>"""


def _plays(value: dict[str, Any]) -> str:
    if not value["plays"]:
        return ""
    return sorted_html(
        "Plays of sessions",
        "Slowdown: how many times as long as recorded its calls took. A click on a head sorts, one "
        "on a row follows the session above.",
        "plays",
    )


def sorted_html(title: str, about: str, csv: str) -> str:
    """The frame in which the script shows a table that can be sorted."""
    return f"""<figure id="figure-{csv}" class="wide"><figcaption><h3>{title}</h3><p>{about}</p>
</figcaption><div class="scroll plays"></div>
<div class="behind"><button type="button" class="csv" data-table="{csv}">CSV</button></div>
</figure>"""


_PLAYS = (
    Column("session", "text"),
    Column("user", "count"),
    Column("visit", "count"),
    Column("calls", "count"),
    Column("ok", "count"),
    Column("failed", "count"),
    Column("seconds", "duration"),
    Column("calls run (s)", "duration"),
    Column("waits (s)", "duration"),
    Column("slowdown"),
    Column("main"),
    Column("subagents"),
)

_OF_A_PLAY = (
    *("session", "lane", "visit", "calls", "succeeded", "failed"),
    *("seconds", "model_seconds", "wait_seconds"),
    *("slowdown", "slowdown_main", "slowdown_subagents"),
)


def plays_rows(value: dict[str, Any]) -> Table:
    """What came of each play."""
    return Table(_PLAYS, [[play[name] for name in _OF_A_PLAY] for play in value["plays"]])


def plays_table(value: dict[str, Any], found: Columns) -> dict[str, Any]:
    """The same as the script shows it, each with the number by which the timeline knows it."""
    numbers = {(play.lane, play.visit): n for n, play in enumerate(found.plays)}
    plays = [numbers[play["lane"], play["visit"]] for play in value["plays"]]
    shown = [name for name in _OF_A_PLAY if name != "visit"]
    return sorted_table(
        plays_rows(value), plays, [_OF_A_PLAY.index(name) for name in shown], "slowdown"
    )


def sorted_table(
    table: Table, plays: Sequence[int | None], shown: Sequence[int], by: str
) -> dict[str, Any]:
    """A table that the script sorts.

    Args:
        table: All of it, as its CSV file holds it.
        plays: The number by which the timeline knows what each row is of; None where it doesn't.
        shown: The columns that are shown.
        by: The head of the one that it is sorted by at first.
    """
    return {
        "head": [column.name for column in table.columns],
        "kinds": [column.kind for column in table.columns],
        "rows": table.rows,
        "plays": list(plays),
        "shown": list(shown),
        "by": by,
    }


def timeline(found: Columns) -> dict[str, Any]:
    """All requests as the script draws them: columns of numbers, in order of lane, row and time.

    Times are whole numbers of `unit_s`; -1 and nan stand for what was not measured.
    """
    unit_ns = max(_UNIT_NS, -(-found.until_ns // (2**31 - 1)))

    def times(name: str) -> str:
        column = found[name]
        return packed(np.where(column == NONE, NONE, column // unit_ns), "<i4")

    calls = dict(zip(found["play"].tolist(), found["calls"].tolist(), strict=True))
    below = accumulate(found.rows.values(), initial=0)
    first_row = dict(zip(found.rows, below, strict=False))
    rows = np.array([first_row[lane] for lane in found["lane"].tolist()], dtype=np.int64)
    return {
        "n": len(found),
        "unit_s": unit_ns / 1e9,
        "until_s": found.until_ns / 1e9,
        "window": [found.span.open_ns / 1e9, found.span.close_ns / 1e9]
        if found.span.seconds
        else None,
        "lanes": [[lane, count] for lane, count in found.rows.items()],
        "plays": [
            [play.lane, play.visit, play.session, calls[n]] for n, play in enumerate(found.plays)
        ],
        "agents": found.agents,
        "kinds": found.kinds,
        "messages": found.messages,
        "states": _STATES,
        "columns": {
            "row": packed(rows + found["row"], "<i4"),
            **{name: times(name) for name in ("due", "sent", "last", "done")},
            **{
                name: packed(found[name], "<i4")
                for name in ("play", "call", "agent", "isl", "osl", "cached", "reuse")
            },
            **{name: packed(found[name], "<i4") for name in ("kind", "message")},
            **{name: packed(found[name], "u1") for name in ("state", "warmup")},
            **{name: packed(found.floats[name], "<f4") for name in ("ttft", "interactivity")},
        },
    }


def requests_table(found: Columns) -> Table:
    """Every request, a row each, in order of sending."""
    order = np.argsort(found["sent"], kind="stable")

    def whole(name: str, turned: Callable[[int], Cell] = lambda each: each) -> list[Cell]:
        values = found[name][order].tolist()
        return [None if each == NONE else turned(each) for each in values]

    def number(name: str) -> list[Cell]:
        values = found.floats[name][order].tolist()
        return [None if each != each else each for each in values]

    columns: dict[str, list[Cell]] = {
        "user": whole("lane"),
        "visit": whole("visit"),
        "session": whole("play", lambda each: found.plays[each].session),
        "call": whole("call"),
        "calls": whole("calls"),
        "agent": whole("agent", lambda each: found.agents[each]),
        "warmup": whole("warmup"),
        **{
            f"{name}_s": whole(of, lambda each: each / 1e9)
            for name, of in (
                ("due", "due"),
                ("sent", "sent"),
                ("first_token", "first"),
                ("last_token", "last"),
                ("done", "done"),
            )
        },
        "ttft_s": number("ttft"),
        "interactivity": number("interactivity"),
        "lag_s": number("lag"),
        "input_tokens": whole("isl"),
        "output_tokens": whole("osl"),
        "cached_tokens": whole("cached"),
        "reusable_tokens": whole("reuse"),
        "outcome": whole("state", lambda each: _STATES[each]),
        "failure": whole("kind", lambda each: found.kinds[each]),
        "message": whole("message", lambda each: found.messages[each]),
    }
    return Table(tuple(map(Column, columns)), list(zip(*columns.values(), strict=True)))


def _failed(value: dict[str, Any]) -> str:
    groups = value["failures"]
    parts = []
    if groups:
        head = (Column("kind", "text"), Column("count", "count"), Column("for example", "text"))
        rows = [[group["kind"], group["count"], group["example"]] for group in groups]
        parts.append(table_html(Table(head, rows)))
    if (warmup := value["warmup"]) and warmup["failure"]:
        parts.append(notes_html([f"In the warm-up: {warmup['failure']}"]))
    return f'<div class="wide">{"".join(parts)}</div>' if parts else ""


def _client(metrics: Mapping[str, Any]) -> str:
    client = metrics["client"]
    shares = client["cpu_share"]
    rows = (
        ("loop over 10 ms late", _share(client["loop_late_share"]), "client.loop_late_share"),
        (
            "longest delay of the loop",
            shown("client.loop_late_max", client["loop_late_max"]),
            "client.loop_late_max",
        ),
        (
            "CPU of each process",
            ", ".join(f"{share:.0%}" for share in shares) if shares else ABSENT,
            "client.cpu_share",
        ),
        ("reconnects", f"{client['reconnects']:,}", "client.reconnects"),
        ("answers in one read", f"{client['bursts']:,}", "client.bursts"),
        ("reads of several events", f"{client['bundled_reads']:,}", "client.bundled_reads"),
    )
    tiles = "".join(
        f'<div class="tile"><dt>{escaped(name)}</dt>'
        f'<dd><span class="big"{numbered(metric, metrics)}>{escaped(figure)}</span></dd></div>'
        for name, figure, metric in rows
    )
    meaning = details("definition", f"<p>{escaped(DEFINITIONS['client'])}</p>", "definition")
    return f'<div class="wide"><dl class="tiles small">{tiles}</dl>{meaning}</div>'


def _share(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2%}"


def _distributions(metrics: Mapping[str, Any]) -> str:
    rows = []
    for name, title, show in distributions(metrics):
        spread = metrics[name]
        texts = [f"{spread['n']:,}", *(show(spread[column]) for column in COLUMNS[1:])]
        cells = "".join(
            f'<td class="figure"{numbered(f"{name}.{column}", metrics)}>{escaped(text)}</td>'
            for column, text in zip(COLUMNS, texts, strict=True)
        )
        meaning = details(title, f"<p>{escaped(_meaning(name))}</p>", "definition")
        rows.append(f'<tr><th scope="row" class="words">{meaning}</th>{cells}</tr>')
    if not rows:
        return '<p class="empty wide">No request succeeded: there are no distributions.</p>'
    head = "".join(f'<th scope="col" class="figure">{column}</th>' for column in COLUMNS)
    note = (
        "Of rates, p90 is what 90 % reach or exceed, and min is the slowest; of times, p90 is what "
        "90 % stay within. A click on a name says what it is."
    )
    return (
        f'<div class="wide"><p class="hint">{note}</p><div class="scroll"><table>'
        f'<thead><tr><th scope="col" class="words">distribution</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></div>"
    )


def _others(metrics: Mapping[str, Any]) -> str:
    rows = []
    for name, value in metrics.items():
        if isinstance(value, Mapping) and "p50" in value:
            continue
        meaning = details(name, f"<p>{escaped(_meaning(name))}</p>", "definition")
        parts = (list(value) if isinstance(value, Mapping) else []) or [""]
        for part in parts:
            metric = f"{name}.{part}" if part else name
            number = value[part] if part else value
            said = ABSENT if number is None or number == {} else _plain(metric, number)
            title = meaning if part == parts[0] else ""
            rows.append(
                f'<tr><th scope="row" class="words">{title}</th><td class="words">{escaped(part)}'
                f'</td><td class="figure"{numbered(metric, metrics)}>{escaped(said)}</td></tr>'
            )
    table = f'<div class="scroll"><table><tbody>{"".join(rows)}</tbody></table></div>'
    return f'<div class="wide">{details("All other figures, by their ids", table)}</div>'


def _plain(metric: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {each}" for name, each in value.items() if each is not None)
    if isinstance(value, list):
        words = (
            f"{each:.3g}" if isinstance(each, float) else _plain(metric, each) for each in value
        )
        return "; ".join(words) or ABSENT
    return shown(metric, value)


def _about(value: dict[str, Any]) -> str:
    plan, endpoint, trace = value["plan"], value["endpoint"], value["trace"]
    rows: list[tuple[Cell, Cell]] = [
        ("traces", ", ".join(trace["paths"])),
        ("sessions in them", trace["sessions"]),
        ("content hash", trace["sha256"]),
        ("ended", value["ended"] or "it is still going, or was killed"),
        *((f"endpoint: {name}", _written(each)) for name, each in endpoint.items()),
        *((f"plan: {name}", _written(each)) for name, each in plan.items()),
    ]
    head = (Column("", "text"), Column("", "text"))
    kept = [row for row in rows if row[1] not in (None, "")]
    table = details("Plan, endpoint and traces", table_html(Table(head, kept)))
    return f'<div class="wide">{notes_html(remarks(value))}{table}</div>'


def _written(value: Any) -> str | None:
    if value is None or value == [] or value == {}:
        return None
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def tables(page: Page, value: dict[str, Any], found: Columns) -> Iterator[tuple[str, Table]]:
    """Every table of a run by its name, as CSV files hold them."""
    yield (
        "metrics",
        Table((Column("metric", "text"), Column("value")), list(_leaves(value["metrics"]))),
    )
    yield "requests", requests_table(found)
    yield "plays", plays_rows(value)
    for section in page.sections:
        for part in section.parts:
            if isinstance(part, Figure):
                yield part.id, part.table


def _leaves(metrics: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Cell]]:
    """Every number by its id."""
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{before}{name}.")
        elif isinstance(value, list):
            yield from _leaves(
                dict(zip(map(str, range(len(value))), value, strict=True)), f"{before}{name}."
            )
        else:
            yield before + name, value
