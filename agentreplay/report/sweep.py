"""Runs over numbers of users as one plain value, sweep.json, and for the terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from agentreplay.errors import AgentReplayError
from agentreplay.metrics.condition import Condition
from agentreplay.metrics.curve import Point, Reading, at, front
from agentreplay.metrics.gate import figure, gate, outcome
from agentreplay.metrics.search import Found
from agentreplay.report.text import banner
from agentreplay.units import ABSENT, as_duration, as_number, as_percent

RATE = "total_token_rate"
SPEED, WAIT = "interactivity.p90", "ttft.p95"
_SHOWN = (SPEED, RATE, "output_token_rate", WAIT, "error_rate")

_FAST = ("interactivity", "user_output_rate")
_SHORT = ("ttft", "tpot", "latency", "chunk_gap", "session_seconds", "session_slowdown")

_PLOT = (60, 12)


@dataclass(frozen=True, slots=True)
class Target:
    """A figure of what users see, at which the token rate is read off the curve."""

    metric: str
    value: float


def target(text: str) -> Target:
    """Read a target such as `interactivity.p90=50` or `ttft.p95=2s`.

    Raises:
        AgentReplayError: it is none, or of a figure that says nothing about users.
    """
    metric, equals, value = text.partition("=")
    if not equals or not metric.strip().startswith((*_FAST, *_SHORT)):
        raise AgentReplayError(
            f"--at {text}: write a figure that users see, as interactivity.p90=50 or ttft.p95=2s"
        )
    read = gate(f"{metric} == {value}")
    return Target(read.metric, float(read.limit))


def run_value(
    directory: str,
    users: int,
    duration_s: float | None,
    value: Mapping[str, Any],
    also: set[str],
    gates: Iterable[Condition] = (),
) -> dict[str, Any]:
    """What is kept of a run, given as summary.json holds it.

    Args:
        directory: Its folder.
        users: Its number of users.
        duration_s: How long it was to measure.
        value: What it came to.
        also: Further figures to keep.
        gates: What its figures are held against.
    """
    held = [outcome(each, value) for each in gates]
    return {
        "directory": directory,
        "users": users,
        "duration_s": duration_s,
        "simulated": value["simulated"],
        "valid": value["verdict"]["valid"],
        "reasons": value["verdict"]["reasons"],
        "requests": value["metrics"]["requests"],
        "measured": value["metrics"]["ttft"]["n"],
        "figures": {name: figure(value, name) for name in (*_SHOWN, *sorted(also - {*_SHOWN}))},
        "failures": value["failures"],
        "missed": [f"{each.gate.text} ({each.reason})" for each in held if not each.passed],
        "passed_over": None,
        "holds": None,
    }


def sweep_value(
    job: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    *,
    targets: Iterable[Target] = (),
    gpus: int | None = None,
    search: Mapping[str, Any] | None = None,
    ended: str | None = None,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything that the report of a sweep shows.

    Args:
        job: What all runs have in common.
        runs: Of each what `run_value` makes of it.
        targets: Where to read the curve.
        gpus: How many share the token rates.
        search: What was searched for, and found.
        ended: Why there are no more runs; None while there are.
        warnings: What went wrong between runs.
    """
    targets = list(targets)
    used = [run for run in runs if run["valid"] and not run["passed_over"]]
    left_out = [
        {"name": run["directory"], "users": run["users"], "why": _why(run)}
        for run in runs
        if run not in used
    ]
    points = [_point(users, used) for users in sorted({run["users"] for run in used})]
    axes = dict.fromkeys([SPEED, WAIT, *(each.metric for each in targets)])
    for point in points:
        missing = [name for name in (RATE, *axes) if point["figures"].get(name) is None]
        if missing:
            why = f"no {', '.join(missing)} was measured"
            left_out.append({"name": _named(point["users"]), "users": point["users"], "why": why})
    return {
        "job": job,
        "simulated": next((run["simulated"] for run in runs if run["simulated"]), None),
        "gpus": gpus,
        "ended": ended,
        "runs": list(runs),
        "points": points,
        "left_out": left_out,
        "fronts": [
            {"x": name, "y": RATE, "users": [int(p.name) for p in front(_placed(points, name))]}
            for name in axes
        ],
        "at": [_reading(points, each, gpus) for each in targets],
        "search": search,
        "warnings": list(warnings),
    }


def found_value(found: Found | None, limits: Sequence[str], gpus: int | None) -> dict[str, Any]:
    """A search as sweep.json holds it; *found* is None while it goes on."""
    most = found.most if found else None
    return {
        "limits": list(limits),
        "most_users": most,
        "most_users_per_gpu": most / gpus if most is not None and gpus else None,
        "missed_at": found.fails if found else None,
        "settled": found.settled if found else None,
    }


def run_line(run: Mapping[str, Any]) -> str:
    """A run in one line."""
    figures = run["figures"]
    return (
        f"{run['directory']}: {'valid' if run['valid'] else _why(run)} · "
        f"P90 {as_number(figures[SPEED])} tok/s/user · {as_number(figures[RATE])} tok/s · "
        f"TTFT P95 {as_duration(figures[WAIT])}"
        + "".join(f" · gate missed: {each}" for each in run["missed"])
    )


def sweep_report(value: Mapping[str, Any]) -> RenderableType:
    """The whole report of a sweep."""
    parts: list[RenderableType] = []
    if value["simulated"]:
        parts.append(Text(banner(value["simulated"]), style="bold yellow"))
    if value["runs"]:
        parts += [_table(value), Text("")]
    placed = [(p["users"], p["figures"][SPEED], p["figures"][RATE]) for p in value["points"]]
    drawn = [(users, x, y) for users, x, y in placed if x is not None and y is not None]
    if len(drawn) > 1:
        parts += [Text(_plot(drawn)), Text("")]
    parts += [Text(each, style="red") for each in missing(value)]
    parts += [Text(each, style="bold") for each in answers(value)]
    parts += [Text(f"Warning: {text}", style="yellow") for text in value["warnings"]]
    return Group(*parts)


def missing(value: Mapping[str, Any]) -> list[str]:
    """What is in no front, and why, a sentence each."""
    return [f"Left out: {each['name']}: {each['why']}" for each in value["left_out"]]


def answers(value: Mapping[str, Any]) -> list[str]:
    """What was read off the front, and what a search found, a sentence each."""
    found = [_read(each, value["gpus"]) for each in value["at"]]
    if value["search"]:
        found.append(_answer(value["search"], value["gpus"]))
    return found


def _why(run: Mapping[str, Any]) -> str:
    if not run["valid"]:
        return "invalid: " + "; ".join(f"{r['id']}: {r['text']}" for r in run["reasons"])
    return str(run["passed_over"])


def _named(users: int) -> str:
    return f"{users} {'user' if users == 1 else 'users'}"


def _point(users: int, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The medians over the runs of one number of users."""
    those = [run for run in runs if run["users"] == users]
    figures = {}
    for name in those[0]["figures"]:
        known = [run["figures"][name] for run in those if run["figures"].get(name) is not None]
        figures[name] = median(known) if known else None
    return {"users": users, "runs": [run["directory"] for run in those], "figures": figures}


def _sign(metric: str) -> int:
    """1 where more is better for a user, else -1."""
    return 1 if metric.startswith(_FAST) else -1


def _placed(points: Sequence[Mapping[str, Any]], metric: str) -> list[Point]:
    """Points by a figure, turned so that more is better."""
    pairs = [(p["users"], p["figures"].get(metric), p["figures"][RATE]) for p in points]
    return [
        Point(str(users), _sign(metric) * x, y)
        for users, x, y in pairs
        if x is not None and y is not None
    ]


def _reading(
    points: Sequence[Mapping[str, Any]], target: Target, gpus: int | None
) -> dict[str, Any]:
    sign, placed = _sign(target.metric), _placed(points, target.metric)
    found: Reading = at(placed, sign * target.value)
    ends = [found.below, found.above] if sign > 0 else [found.above, found.below]
    below, above = (
        {"users": int(p.name), "x": sign * p.x, "y": p.y} if p is not None else None for p in ends
    )
    measured = sorted(sign * p.x for p in front(placed))
    return {
        "x": target.metric,
        "target": target.value,
        "y": RATE,
        "value": found.y,
        "value_per_gpu": found.y / gpus if found.y is not None and gpus else None,
        "below": below,
        "above": above,
        "measured": [measured[0], measured[-1]] if measured else None,
    }


def _table(value: Mapping[str, Any]) -> RenderableType:
    gpus, best = value["gpus"], value["fronts"][0]["users"]
    table = Table(box=None, header_style="dim", padding=(0, 1))
    for column in ("", "users", "P90 tok/s/user", "total tok/s", "output tok/s", "TTFT P95"):
        table.add_column(column, justify="right")
    if gpus:
        table.add_column("total tok/s/GPU", justify="right")
    table.add_column("failed", justify="right")
    table.add_column("verdict", overflow="fold")
    medians = {p["users"]: p for p in value["points"]}
    for users in sorted({run["users"] for run in value["runs"]}):
        those = [run for run in value["runs"] if run["users"] == users]
        mark = "●" if users in best else ""
        for run in those:
            words = "valid" if run["valid"] else ", ".join(r["id"] for r in run["reasons"])
            if run["valid"] and run["holds"] is not None:
                words = "limits hold" if run["holds"] else "a limit is missed"
            words = run["passed_over"] or words
            name = f"{users}" if run is those[0] else ""
            _add(table, mark if len(those) == 1 else "", name, run["figures"], gpus, words)
        if len(those) > 1 and users in medians:
            figures, n = medians[users]["figures"], len(medians[users]["runs"])
            _add(table, mark, "median", figures, gpus, f"of {n}", "bold")
    note = "● on the Pareto front of P90 interactivity and total tokens a second"
    return Group(table, Text(note, style="dim"))


def _add(
    table: Table,
    mark: str,
    name: str,
    figures: Mapping[str, float | None],
    gpus: int | None,
    words: str,
    style: str | None = None,
) -> None:
    rate = figures[RATE]
    cells = [
        *(mark, name, as_number(figures[SPEED]), as_number(rate)),
        *(as_number(figures["output_token_rate"]), as_duration(figures[WAIT])),
    ]
    if gpus:
        cells.append(as_number(rate / gpus) if rate is not None else ABSENT)
    table.add_row(*cells, as_percent(figures["error_rate"]), escape(words), style=style)


def _shown(metric: str, value: float) -> str:
    if _sign(metric) > 0:
        return f"{as_number(value)} tok/s/user"
    return as_number(value) if metric.startswith("session_slowdown") else as_duration(value)


def _read(reading: Mapping[str, Any], gpus: int | None) -> str:
    metric = reading["x"]
    said = f"At {metric} = {_shown(metric, reading['target'])}: "
    if reading["value"] is None:
        if reading["measured"] is None:
            return said + "nothing was measured"
        low, high = (_shown(metric, each) for each in reading["measured"])
        return said + f"outside of what was measured on the front ({low} to {high})"
    said += f"{as_number(reading['value'])} tok/s in all"
    if gpus:
        said += f", {as_number(reading['value_per_gpu'])} a GPU"
    ends = [_named(end["users"]) for end in (reading["below"], reading["above"])]
    if ends[0] == ends[1]:
        return said + f" (measured with {ends[0]})"
    return said + f" (on the line between {ends[0]} and {ends[1]})"


def _answer(search: Mapping[str, Any], gpus: int | None) -> str:
    most, missed = search["most_users"], search["missed_at"]
    limits = " and ".join(search["limits"])
    if most is None:
        return f"The search for {limits} did not come to an end"
    if not most:
        if missed is None or search["settled"]:
            return f"No number of users holds {limits}"
        return f"Not seen to hold with any number of users below {missed}: {limits}"
    said = f"{_named(most)} at most with {limits}"
    if gpus:
        said += f": {as_number(search['most_users_per_gpu'])} a GPU"
    if search["settled"]:
        if missed is None:
            return said + "; more were not tried (--to)"
        return said + f"; missed with {missed}"
    if missed is None:
        return (
            f"{_named(most)} or more with {limits}: the runs were used up (nearer: --from {most})"
        )
    return (
        f"Between {most} and {missed - 1} users at most with {limits}: the runs were used up "
        f"(nearer: --from {most})"
    )


def _plot(points: Sequence[tuple[int, float, float]]) -> str:
    """Points by interactivity and token rate, each marked with its users."""
    width, height = _PLOT
    left, right = min(x for _, x, _ in points), max(x for _, x, _ in points)
    top = max(y for _, _, y in points)
    rows = [[" "] * (width + 8) for _ in range(height)]
    for users, x, y in points:
        row = rows[height - 1 - round(y / top * (height - 1))] if top else rows[-1]
        column = round((x - left) / (right - left) * (width - 1)) if right > left else 0
        for n, letter in enumerate(f"•{users}"):
            row[column + n] = letter
    edge = max(len(as_number(top)), 1)
    lines = [f"{'tok/s':>{edge}}"]
    lines += [
        f"{as_number(top) if n == 0 else 0 if n == height - 1 else '':>{edge}} │{''.join(row)}"
        for n, row in enumerate(rows)
    ]
    lines.append(" " * edge + " └" + "─" * width)
    far = f"{as_number(right)} tok/s/user (P90)"
    lines.append(f"{' ' * edge}  {as_number(left)}{far:>{width - len(as_number(left))}}")
    return "\n".join(line.rstrip() for line in lines)
