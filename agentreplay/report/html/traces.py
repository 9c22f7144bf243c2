"""The page of a trace set: lengths, times, growth, prefix reuse, memory, long sessions. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from agentreplay.report.html.columns import NONE, Floats, Ints, rows_of
from agentreplay.report.html.figures import Measure, by_place, log_bars, marked
from agentreplay.report.html.page import (
    Cell,
    Column,
    Figure,
    Kind,
    Page,
    Section,
    Table,
    details,
    escaped,
    finite,
    in_figure,
    notes_html,
    numbered,
    packed,
    table_html,
)
from agentreplay.report.html.run import sorted_html, sorted_table, timeline_html
from agentreplay.report.text import COLUMNS, TRACE_SPREADS, memory_rows, trace_figures
from agentreplay.trace.memory import Memory, Sizes
from agentreplay.trace.statistics import Statistics
from agentreplay.trace.survey import Survey
from agentreplay.units import ABSENT, as_duration, as_number, as_percent, as_size, as_tokens

_INPUT = Measure("input", "input tokens", "tokens", as_tokens, "var:--input")
_OUTPUT = Measure("output", "output tokens", "tokens", as_tokens, "var:--decode")
_CALLS = Measure("calls", "calls of a session", "count", as_number, "var:--other")
_SESSION = Measure("session", "length of a session", "duration", as_duration, "var:--other")
_GAP = Measure("gap", "gap", "duration", as_duration, "var:--wait")
_DURATION = Measure("duration", "time of a call", "duration", as_duration, "var:--wait")
_KV = Measure("kv", "KV cache", "figure", as_size, "var:--other")

_SHARE = {"title": "of input tokens", "range": [0, 1.05], "tickformat": ".0%"}
_BANDS = ((10, "P10"), (50, "median"), (90, "P90"))
_MOST_MODELS, _MOST_LINES = 20, 200
_NAME_CHARS = 40


def traces_page(
    paths: Sequence[str],
    value: Mapping[str, Any],
    found: Statistics,
    survey: Survey,
    memory: Memory | None,
    sizes: Sizes,
) -> Page:
    """The page of what `inspect` found.

    Args:
        paths: What was looked at.
        value: What `inspect --json` prints.
        found: The statistics in it.
        survey: What the pictures are of.
        memory: What sessions hold, where it was asked for.
        sizes: How much they hold and for how long.
    """
    sections = [
        Section("lengths", "Lengths", tuple(_lengths(found, survey))),
        Section("times", "Times", tuple(_times(found, survey))),
        Section("growth", "Growth", (_growth(survey),)),
        Section("reuse", "Prefix reuse", (_reuse_by_place(survey), _reuse_by_session(survey))),
    ]
    if memory is not None:
        sections.append(Section("memory", "KV cache", tuple(_memory(value, memory, sizes))))
    timeline = recorded_timeline(survey)
    sections += [
        Section("sessions", "The longest sessions", (_timeline(survey), _sessions(found, survey))),
        Section("models", "Models", (_models(found),)),
        Section("figures", "Every figure", (_spreads(value, found),)),
        Section("files", "What was read", (_read(value),)),
    ]
    return Page(
        "Traces · agentreplay",
        _head(paths, value, found),
        tuple(sections),
        {"timeline": timeline, "plays": _sessions_table(survey)},
    )


def _head(paths: Sequence[str], value: Mapping[str, Any], found: Statistics) -> str:
    tiles = "".join(
        f'<div class="tile"><dt>{escaped(each.name or "Reuse of blocks")}</dt><dd>'
        f'<span class="big"{numbered(each.metric or "", value)}>{escaped(each.shown)}</span>'
        f'<span class="of">{escaped(each.of)}</span></dd></div>'
        for each in trace_figures(found, value["files"])
    )
    said = [f"{times:,} sessions {why}" for why, times in value["left_out"].items()]
    if value["skipped"]:
        said.append(f"{len(value['skipped']):,} files or lines could not be read; see below.")
    return (
        f'<p class="made">agentreplay inspect</p><h1>What the traces hold</h1>'
        f'<p class="what">{escaped(", ".join(paths))}</p>{notes_html(said)}'
        f'<dl class="tiles">{tiles}</dl>'
    )


def _lengths(found: Statistics, survey: Survey) -> Iterator[Figure]:
    calls, sessions = f"{found.calls:,} calls", f"{found.sessions:,} sessions"
    for name, title, about, values, measure, of, spread in (
        (
            "input",
            "Input of calls",
            f"Prompts of {calls}, cached tokens included.",
            survey.isl,
            _INPUT,
            "calls",
            found.input,
        ),
        (
            "output",
            "Output of calls",
            f"Answers of {calls}, reasoning included; {found.zero_outputs:,} had none.",
            survey.osl,
            _OUTPUT,
            "calls",
            found.output,
        ),
        (
            "calls",
            "Calls of a session",
            f"Of {sessions}, those of subagents included.",
            survey.calls,
            _CALLS,
            "sessions",
            found.calls_per_session,
        ),
        (
            "session-seconds",
            "Length of a session",
            f"From its first start to its last end, of {sessions}.",
            survey.session_s,
            _SESSION,
            "sessions",
            found.session_s,
        ),
    ):
        marks = [("P50", spread.p50), ("P95", spread.p95)]
        yield log_bars(name, title, about, np.asarray(values), measure, of, marks)


def _times(found: Statistics, survey: Survey) -> Iterator[Figure]:
    gaps, durations = np.asarray(survey.gap_s), np.asarray(survey.duration_s)
    yield log_bars(
        "gaps",
        "Gap before a call",
        "From the end of the calls that it waits for to its start: tools, and the user. "
        f"{int((gaps <= 0).sum()):,} of {len(gaps):,} are 0, and stand in the table only.",
        np.maximum(gaps, 0.0),
        _GAP,
        "calls",
        [("P50", found.gap_s.p50), ("P95", found.gap_s.p95)],
    )
    yield log_bars(
        "durations",
        "Time of a call",
        f"From sending to the last token, of {len(durations):,} calls with both stamps; of "
        f"{found.estimated_durations:,} the end is estimated.",
        np.maximum(durations, 0.0),
        _DURATION,
        "calls",
        [("P50", found.duration_s.p50), ("P95", found.duration_s.p95)],
    )
    yield _in_flight(survey)
    yield _fan_out(survey)


def _in_flight(survey: Survey) -> Figure:
    """How long so many calls of a session ran at once."""
    levels = dict(sorted(survey.in_flight_s.items()))
    idle_s = levels.pop(0, 0.0)
    busy_s = sum(levels.values())
    whole_s = idle_s + busy_s
    idle = f" For {as_percent(idle_s / whole_s)} of the recorded time none did." if whole_s else ""
    rows: list[list[Cell]] = [
        [level, seconds, seconds / busy_s if busy_s else None]
        for level, seconds in ([(0, idle_s), *levels.items()] if whole_s else [])
    ]
    if rows:
        rows[0][2] = None
    shares = [seconds / busy_s for seconds in levels.values()] if busy_s else []
    return Figure(
        "in-flight",
        "Calls in flight",
        "Of the time in which any call of a session ran, for how much of it so many ran at once."
        + idle,
        [
            {
                "type": "bar",
                "x": [str(level) for level in levels],
                "y": finite(shares),
                "marker": {"color": "var:--other"},
                "hovertemplate": "%{x} at once: %{y:.3~%}<extra></extra>",
            }
        ],
        {
            "xaxis": {"title": "calls of a session at once", "type": "category"},
            "yaxis": {
                "title": "share of that time",
                "type": "log",
                "tickvals": [10.0**n for n in range(-6, 1)],
                "ticktext": ["0.0001%", "0.001%", "0.01%", "0.1%", "1%", "10%", "100%"],
                "range": [
                    float(np.log10(max(min([s for s in shares if s > 0], default=0.1), 1e-6)))
                    - 0.5,
                    0.1,
                ],
            },
        },
        Table(
            (Column("at once", "count"), Column("seconds"), Column("of busy time", "percent")), rows
        ),
        None if busy_s else "No call has a recorded length.",
    )


def _fan_out(survey: Survey) -> Figure:
    """How many subagents sessions have, and how many of their calls ran at once at most."""
    subagents, most = (np.asarray(each) for each in (survey.subagents, survey.most_in_flight))
    both = np.concatenate((subagents, most))
    groups = [*([("0", both == 0)] if (both == 0).any() else []), *by_place(both)]
    counts = [
        (label, int(those[: len(subagents)].sum()), int(those[len(subagents) :].sum()))
        for label, those in groups
    ]
    names = ("subagents", "calls at once, at most")
    return Figure(
        "fan-out",
        "Subagents",
        "Sessions by the number of their subagents, and by the most of their calls that ran at "
        "once.",
        [
            {
                "type": "bar",
                "name": name,
                "x": [label for label, *_ in counts],
                "y": [row[n + 1] for row in counts],
                "marker": {"color": colour, "pattern": {"shape": pattern}},
                "hovertemplate": "%{x} %{fullData.name}: %{y:,} sessions<extra></extra>",
            }
            for n, (name, colour, pattern) in enumerate(
                zip(names, ("var:--decode", "var:--wait"), ("", "/"), strict=True)
            )
        ],
        {
            "xaxis": {"title": "number", "type": "category"},
            "yaxis": {"title": "sessions", "rangemode": "tozero"},
            "barmode": "group",
        },
        Table(
            (
                Column("number", "text"),
                *(Column(f"sessions with so many {n}", "count") for n in names),
            ),
            counts,
        ),
        None if counts else "There is no session.",
    )


def growth_rows(survey: Survey) -> list[list[Cell]]:
    """The main agent's prompts by the number of the call: how many, P10, median and P90."""
    turns, isl = np.asarray(survey.turn), np.asarray(survey.isl)
    main = turns > 0
    turns, isl = turns[main], isl[main]
    rows: list[list[Cell]] = []
    for label, those in by_place(turns):
        spread = np.percentile(isl[those], [share for share, _ in _BANDS]).tolist()
        rows.append([label, int(those.sum()), *spread])
    return rows


def _growth(survey: Survey) -> Figure:
    rows = growth_rows(survey)
    x = [row[0] for row in rows]
    traces = []
    for n, (_, name) in enumerate(_BANDS):
        middle = name == "median"
        traces.append(
            {
                **marked(
                    x,
                    [row[n + 2] for row in rows],
                    name,
                    "var:--strong" if middle else "var:--input",
                    "circle" if middle else "triangle-up" if name == "P90" else "triangle-down",
                ),
                "line": {
                    "color": "var:--strong" if middle else "var:--input",
                    "width": 2 if middle else 1.4,
                    "dash": "solid" if middle else "dash",
                },
                **({"fill": "tonexty", "fillcolor": "var:--band"} if n else {}),
                "hovertemplate": "%{y:,.4~g}",
            }
        )
    return Figure(
        "growth",
        "Growth of the prompt",
        "Input tokens of the main agent's calls by their number in the session: between the lines "
        "lie 80 % of them. Later numbers are put together, and only longer sessions have them.",
        traces,
        {
            "xaxis": {"title": "call of the main agent", "type": "category"},
            "yaxis": {"title": "input tokens", "rangemode": "tozero"},
            "hovermode": "x unified",
        },
        Table(
            (
                Column("call", "text"),
                Column("calls", "count"),
                *(Column(name, "tokens") for _, name in _BANDS),
            ),
            rows,
        ),
        None if rows else "The main agent has no calls.",
        wide=True,
    )


def reuse_rows(survey: Survey) -> list[list[Cell]]:
    """By a call's number in its session: the share of its prompt that had been sent before, what
    the recorded server read from its cache, and how many calls that is over."""
    place, isl, seen, cached = (
        np.asarray(each) for each in (survey.place, survey.isl, survey.seen, survey.cached)
    )
    rows: list[list[Cell]] = []
    for label, those in by_place(place):
        told = those & (cached >= 0)
        rows.append(
            [
                label,
                _ratio(seen[those], isl[those]),
                _ratio(cached[told], isl[told]),
                int(those.sum()),
            ]
        )
    return rows


def _ratio(part: Ints, whole: Ints) -> float | None:
    total = int(whole.sum())
    return int(part.sum()) / total if total else None


def _reuse_by_place(survey: Survey) -> Figure:
    rows = reuse_rows(survey)
    x = [row[0] for row in rows]
    traces = [
        marked(x, [row[1] for row in rows], "sent before", "var:--other", "square"),
    ]
    if any(row[2] is not None for row in rows):
        recorded = [row[2] for row in rows]
        traces.append(marked(x, recorded, "recorded from cache", "var:--decode", "circle"))
    return Figure(
        "reuse-position",
        "By place in the session",
        "Share of the input tokens, in whole blocks, that had been sent before, in order of the "
        "recorded starts and nothing ever evicted; and what the recorded server read from its "
        "cache, where that is recorded.",
        [{**each, "showlegend": True} for each in traces],
        {"xaxis": {"title": "call of the session", "type": "category"}, "yaxis": _SHARE},
        Table(
            (
                Column("call", "text"),
                Column("sent before", "percent"),
                Column("recorded from cache", "percent"),
                Column("calls", "count"),
            ),
            rows,
        ),
        None if rows else "There is no call.",
    )


def _reuse_by_session(survey: Survey) -> Figure:
    edges = np.linspace(0, 1, 21)
    counts, _ = np.histogram(np.asarray(survey.reuse), edges)
    rows = list(zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True))
    return Figure(
        "reuse-session",
        "By session",
        "Sessions by the share of their input tokens that had been sent before.",
        [
            {
                "type": "bar",
                "x": finite((edges[:-1] + edges[1:]) / 2),
                "y": counts.tolist(),
                "width": 0.05,
                "marker": {"color": "var:--other"},
                "customdata": [f"{low:.0%} … {high:.0%}" for low, high, _ in rows],
                "hovertemplate": "%{customdata}: %{y:,} sessions<extra></extra>",
            }
        ],
        {
            "xaxis": {"title": "of input tokens", "range": [0, 1], "tickformat": ".0%"},
            "yaxis": {"title": "sessions", "rangemode": "tozero"},
            "bargap": 0.05,
        },
        Table(
            (Column("from", "percent"), Column("to", "percent"), Column("sessions", "count")), rows
        ),
        None if len(survey.reuse) else "No session has any input.",
    )


def _memory(value: Mapping[str, Any], memory: Memory, sizes: Sizes) -> Iterator[Figure | str]:
    per_token = memory.kv_bytes_per_token
    largest, mean = memory.largest_conversation, memory.mean_conversation
    yield _in_bytes(
        log_bars(
            "conversations",
            "Conversations",
            f"The largest prompt of each session with its answer, at {as_size(per_token)} a token.",
            np.asarray(sizes.conversations) * per_token,
            _KV,
            "sessions",
            [
                ("mean", mean.bytes if mean else None),
                ("largest", largest.bytes if largest else None),
            ],
        )
    )
    held, seconds = np.asarray(sizes.held), np.asarray(sizes.seconds)
    if not seconds.sum():
        held, seconds = np.zeros(0), np.zeros(0)
    yield _in_bytes(
        log_bars(
            "working-set",
            "Working set of a session",
            "What a cache has to hold so that nothing of a session is computed twice, and for how "
            "much of the recorded time: also while it waits for a tool or the user.",
            held * per_token,
            _KV,
            "recorded time",
            weights=seconds,
        )
    )
    rows = []
    for title, name, each in memory_rows(memory):
        cells = [f'<th scope="row" class="words">{escaped(title)}</th>']
        for part, show in (("tokens", as_tokens), ("bytes", as_size), ("partition_bytes", as_size)):
            if part == "partition_bytes" and memory.partitions == 1:
                continue
            number = "" if each is None else numbered(f"memory.{name}.{part}", value)
            said = show(getattr(each, part)) if each else ABSENT
            cells.append(f'<td class="figure"{number}>{escaped(said)}</td>')
        rows.append(f"<tr>{''.join(cells)}</tr>")
    head = ("tokens", "memory", f"each of {memory.partitions}")[: 3 if memory.partitions > 1 else 2]
    yield _frame("", head, rows)


def _in_bytes(figure: Figure) -> Figure:
    """The same with its table in bytes."""
    columns = tuple(
        Column(f"{column.name} (bytes)", "count") if column.kind == "figure" else column
        for column in figure.table.columns
    )
    return Figure(
        *(figure.id, figure.title, figure.about, figure.traces, figure.layout),
        *(Table(columns, figure.table.rows), figure.empty, figure.height, figure.wide),
    )


def _timeline(survey: Survey) -> str:
    drawn = survey.drawn
    if not drawn:
        return '<p class="empty">No session has a call.</p>'
    calls = sum(len(each) for _, each in drawn)
    whole = sum(sketch.calls for sketch, _ in drawn)
    cut = f" Of their {whole:,} calls the first {calls:,} are drawn." if calls < whole else ""
    about = (
        f"The {len(drawn)} sessions with the most calls, each from its own start; the first row of "
        f"a band is the main agent, the others are subagents.{cut}"
    )
    return timeline_html(
        "As they were recorded",
        about,
        f"Timeline of {calls:,} calls of {len(drawn)} sessions.",
        [("gap", "gap before a call"), ("decode", "call")],
        "calls-drawn",
        "Every call that is drawn, a row each.",
    )


_SESSION_COLUMNS = (
    Column("session", "text"),
    Column("calls", "count"),
    Column("input tokens", "count"),
    Column("output tokens", "count"),
    Column("largest prompt", "count"),
    Column("duration (s)", "duration"),
    Column("subagents", "count"),
    Column("calls at once", "count"),
    Column("prefix reuse", "percent"),
)


def _sessions(found: Statistics, survey: Survey) -> str:
    count = len(survey.listed)
    which = f"The {count:,} of {found.sessions:,} sessions with the most calls."
    if count == found.sessions:
        which = f"All {count:,} sessions."
    return sorted_html(
        "Session by session",
        f"{which} A click on a head sorts; one on a session that is drawn follows it above.",
        "sessions",
    )


def sessions_rows(survey: Survey) -> Table:
    """The sessions with the most calls."""
    return Table(
        _SESSION_COLUMNS,
        [
            (
                *(each.id, each.calls, each.input_tokens, each.output_tokens),
                *(each.largest_prompt, each.seconds, each.subagents, each.most_in_flight),
                each.seen_tokens / each.input_tokens if each.input_tokens else None,
            )
            for each in survey.listed
        ],
    )


def _sessions_table(survey: Survey) -> dict[str, Any]:
    table, drawn = sessions_rows(survey), len(survey.drawn)
    plays = [n if n < drawn else None for n in range(len(table.rows))]
    return sorted_table(table, plays, range(len(table.columns)), "calls")


def recorded_timeline(survey: Survey) -> dict[str, Any] | None:
    """Calls of the longest sessions as the script draws them, see `report.html.run.timeline`.

    Each is on a lane of its own that begins with it; `recorded` says so, and that there are no
    waits for first tokens.
    """
    drawn = survey.drawn
    calls = [(lane, n, call) for lane, (_, each) in enumerate(drawn) for n, call in enumerate(each)]
    if not calls:
        return None
    by: dict[str, Ints] = {
        "play": np.array([lane for lane, _, _ in calls], dtype=np.int64),
        "call": np.array([n for _, n, _ in calls], dtype=np.int64),
        "agent": np.array([call.agent for _, _, call in calls], dtype=np.int64),
        "sent": _ns([call.start_s for _, _, call in calls]),
        "done": _ns([max(call.start_s, call.end_s) for _, _, call in calls]),
        "isl": np.array([call.isl for _, _, call in calls], dtype=np.int64),
        "osl": np.array([call.osl for _, _, call in calls], dtype=np.int64),
        "reuse": np.array([call.seen for _, _, call in calls], dtype=np.int64),
    }
    by["lane"] = by["play"]
    rows = rows_of(by)
    counts = [int(rows[by["lane"] == lane].max()) + 1 for lane in range(len(drawn))]
    first = np.concatenate(([0], np.cumsum(counts)))[by["lane"]]
    order = np.lexsort((by["sent"], rows, by["lane"]))
    until_ns = max(1, int(by["done"].max()))
    unit_ns = max(100_000, -(-until_ns // (2**31 - 1)))
    n = len(calls)
    nothing = np.full(n, NONE)

    def column(values: Ints) -> str:
        return packed(values[order], "<i4")

    return {
        "recorded": True,
        "n": n,
        "unit_s": unit_ns / 1e9,
        "until_s": until_ns / 1e9,
        "window": None,
        "lanes": list(enumerate(counts)),
        "plays": [[lane, 0, sketch.id, sketch.calls] for lane, (sketch, _) in enumerate(drawn)],
        "agents": ["", *(f"agent {n}" for n in range(1, int(by["agent"].max()) + 1))],
        "kinds": [],
        "messages": [],
        "states": ["succeeded"],
        "columns": {
            "row": column(first + rows),
            **{
                name: column(by[of] // unit_ns)
                for name, of in (
                    ("due", "sent"),
                    ("sent", "sent"),
                    ("last", "done"),
                    ("done", "done"),
                )
            },
            **{name: column(by[name]) for name in ("play", "call", "agent", "isl", "osl", "reuse")},
            **{name: column(nothing) for name in ("cached", "kind", "message")},
            **{name: packed(np.zeros(n), "u1") for name in ("state", "warmup")},
            "ttft": packed(np.zeros(n), "<f4"),
            "interactivity": packed(np.full(n, np.nan), "<f4"),
        },
    }


def _ns(seconds: Sequence[float]) -> Ints:
    values: Floats = np.asarray(seconds, dtype=np.float64)
    return np.asarray(np.rint(values * 1e9), dtype=np.int64)


def _models(found: Statistics) -> Figure:
    """Calls of each recorded model."""
    counts = Counter(found.models)
    unknown = found.calls - counts.total()
    rows: list[tuple[Cell, ...]] = [*counts.most_common()]
    if unknown:
        rows.append(("not recorded", unknown))
    drawn = rows[:_MOST_MODELS]
    left = f" Of {len(rows):,} the first {len(drawn)} are drawn." if len(drawn) < len(rows) else ""
    names = [_short(str(name)) for name, _ in drawn]
    return Figure(
        "models",
        "Recorded models",
        f"Calls of each.{left}",
        [
            {
                "type": "bar",
                "orientation": "h",
                "x": [count for _, count in drawn],
                "y": list(range(len(drawn))),
                "marker": {"color": "var:--decode"},
                "customdata": names,
                "hovertemplate": "%{customdata}: %{x:,} calls<extra></extra>",
            }
        ],
        {
            "xaxis": {"title": "calls", "rangemode": "tozero"},
            "yaxis": {
                "title": "",
                "tickvals": list(range(len(drawn))),
                "ticktext": names,
                "range": [len(drawn) - 0.4, -0.6],
            },
        },
        Table((Column("model", "text"), Column("calls", "count")), rows[:_MOST_LINES]),
        None if rows else "There is no call.",
        height=90 + 26 * len(drawn),
        wide=True,
    )


def _short(name: str) -> str:
    return in_figure(name if len(name) <= _NAME_CHARS else name[: _NAME_CHARS - 1] + "…")


def _spreads(value: Mapping[str, Any], found: Statistics) -> str:
    rows = []
    for name, title, show in TRACE_SPREADS:
        spread = getattr(found, name)
        if not spread.n:
            continue
        cells = "".join(
            f'<td class="figure"{numbered(f"{name}.{column}", value)}>'
            f"{escaped(f'{spread.n:,}' if column == 'n' else show(getattr(spread, column)))}</td>"
            for column in COLUMNS
        )
        rows.append(f'<tr><th scope="row" class="words">{title}</th>{cells}</tr>')
    return _frame("distribution", COLUMNS, rows)


def _frame(first: str, head: Sequence[str], rows: Sequence[str]) -> str:
    heads = "".join(f'<th scope="col" class="figure">{escaped(each)}</th>' for each in head)
    return (
        '<div class="wide"><div class="scroll"><table><thead><tr>'
        f'<th scope="col" class="words">{first}</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></div>"
    )


def _read(value: Mapping[str, Any]) -> str:
    """Files by format, what was left out, and what readers noted."""
    formats = Counter(value["formats"].values())
    parts = [
        table_html(
            Table((Column("format", "text"), Column("files", "count")), formats.most_common())
        )
    ]
    noted: Counter[str] = sum(map(Counter, value["notes"].values()), Counter())
    for title, head, rows in (
        ("Left out or repaired", ("what", "times"), noted.most_common()),
        ("Sessions that were not chosen", ("why", "sessions"), list(value["left_out"].items())),
        ("Could not be read", ("where", "why"), list(value["skipped"].items())),
    ):
        if rows:
            kind: Kind = "text" if head[1] == "why" else "count"
            table = Table((Column(head[0], "text"), Column(head[1], kind)), rows[:_MOST_LINES])
            more = f" (the first {_MOST_LINES} of {len(rows):,})" if len(rows) > _MOST_LINES else ""
            parts.append(details(f"{title}{more}", table_html(table)))
    return f'<div class="wide">{"".join(parts)}</div>'
