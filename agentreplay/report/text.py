"""A run's report for the terminal: what matters first, the details below. Pure.

Takes the value of `report.value` and returns what rich prints; nothing is computed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from agentreplay.metrics.condition import shown
from agentreplay.report.cost import money_rows
from agentreplay.units import ABSENT, as_duration, as_number, as_percent, as_size, as_tokens

if TYPE_CHECKING:
    from agentreplay.trace.memory import Held, Memory
    from agentreplay.trace.statistics import Statistics

COLUMNS = ("n", "mean", "p50", "p75", "p90", "p95", "p99", "min", "max")
"""What is shown of a distribution."""

_TIMES = (
    ("ttft", "TTFT"),
    ("ttft_visible", "TTFT, visible"),
    ("tpot", "TPOT"),
    ("chunk_gap", "gap between chunks"),
    ("latency", "latency"),
    ("latency_from_due", "latency from due"),
    ("lag", "lag (sent − due)"),
    ("session_seconds", "session, whole"),
    ("session_model_seconds", "… a call under way"),
    ("session_wait_seconds", "… tools and thinking"),
)
_RATES = (
    ("interactivity", "interactivity"),
    ("interactivity_corrected", "… corrected for bundles"),
    ("interactivity_normalised", "… normalised (OSL / latency)"),
    ("user_output_rate", "output of a user"),
    ("user_output_rate_streaming", "… while streaming"),
)
_LENGTHS = (("isl", "input tokens"), ("osl", "output tokens"))
_SHARES = (
    ("isl_error", "input length error"),
    ("osl_error", "output length error"),
    ("session_slowdown", "session slowdown (×)"),
    ("session_slowdown_main", "… of the main agent"),
    ("session_slowdown_subagents", "… of subagents"),
)


PLAYS_SHOWN = 5


class Figure(NamedTuple):
    """A figure as people read it.

    Attributes:
        name: What it is called.
        shown: Its value.
        of: What it is of.
        metric: Its id in docs/metrics.md, where it has one.
    """

    name: str
    shown: str
    of: str
    metric: str | None = None


def banner(simulated: str) -> str:
    """The first line of whatever shows results of a simulated server."""
    return f"SIMULATED SERVER ({simulated})"


def report(value: dict[str, Any]) -> RenderableType:
    """The whole report of a run."""
    parts: list[RenderableType] = []
    if value["simulated"]:
        parts.append(Text(banner(value["simulated"]), style="bold yellow"))
    parts += [Text(headline(value)), Text("")]
    if value["failures"]:
        parts += [_failures(value), Text("")]
    parts += [_main_figures(value), Text(""), _verdict(value), Text("")]
    if value["gates"]:
        parts += [_gates(value["gates"]), Text("")]
    if value["metrics"]["requests"]["succeeded"]:
        parts += [_details(value), Text("")]
    if value["plays"]:
        parts += [_plays(value["plays"]), Text("")]
    if value["shortfalls"] and value["shortfalls"]["short"]:
        parts += [_shortfalls(value["shortfalls"]), Text("")]
    parts += [Text(note, style="dim") for note in remarks(value)]
    return Group(*parts)


def headline(value: dict[str, Any]) -> str:
    """What was run, in two lines."""
    endpoint, plan, trace = value["endpoint"], value["plan"], value["trace"]
    paths = ", ".join(trace["paths"][:3])
    if len(trace["paths"]) > 3:
        paths += f" and {len(trace['paths']) - 3} more"
    asked = [f"{plan['users']} users"]
    if plan["duration_s"] is not None:
        asked.append(as_duration(plan["duration_s"]))
    asked += [f"{plan[name]} {name}" for name in ("sessions", "requests") if plan[name] is not None]
    asked += [f"timing {plan['timing']}", f"seed {plan['seed']}"]
    if workers := value["workers"]:
        asked.append(_workers(workers))
    urls = ", ".join(endpoint.get("urls", ["no endpoint"]))
    where = f"{urls} · {endpoint.get('model', 'no model')}"
    return f"{paths} ({trace['sessions']} sessions) → {where}\n{' · '.join(asked)}"


def _workers(workers: list[dict[str, Any]]) -> str:
    """How many played it, and where they had clocks of their own, how well these are known."""
    residuals_s = [each["clock_residual_s"] for each in workers if each["clock_residual_s"]]
    said = f"{len(workers)} worker{'s' * (len(workers) != 1)}"
    return f"{said}, clocks within {as_duration(max(residuals_s))}" if residuals_s else said


def _failures(value: dict[str, Any]) -> RenderableType:
    requests = value["metrics"]["requests"]
    title = f"{requests['failed']} of {requests['attempted']} requests failed"
    if partial := value["metrics"]["partial_tokens"]:
        title += f", after {partial:,} tokens that count nowhere"
    if unsent := value["metrics"]["sessions"]["calls_unsent"]:
        title += f"; {unsent:,} further calls of their sessions were not sent"
    table = Table(box=None)
    table.add_column("kind", style="red")
    table.add_column("count", justify="right")
    table.add_column("for example", overflow="fold")
    for group in value["failures"]:
        table.add_row(group["kind"], str(group["count"]), escape(group["example"]))
    return Group(Text(title, style="bold red"), table)


def _main_figures(value: dict[str, Any]) -> RenderableType:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for row in figures(value):
        table.add_row(row.name, row.shown, row.of)
    return table


def figures(value: dict[str, Any]) -> list[Figure]:
    """The figures that matter."""
    metrics, window = value["metrics"], value["window"]
    seconds, suffix = f"over {as_duration(window['seconds'])}", ""
    if metrics["total_token_rate"] is None and metrics["total_token_rate_run"] is not None:
        seconds, suffix = "over the whole run: the window was too short", "_run"
    total, output = "total_token_rate" + suffix, "output_token_rate" + suffix
    interactivity, ttft = metrics["interactivity"], metrics["ttft"]
    user = metrics["user_output_rate"]
    requests, sessions, reuse = metrics["requests"], metrics["sessions"], metrics["prefix_reuse"]
    rows = [
        Figure("Total tokens", _rate(metrics[total]), f"input + output, {seconds}", total),
        Figure("Output tokens", _rate(metrics[output]), seconds, output),
        Figure(
            "Output of a user",
            _rate(user["p50"]),
            f"median of {user['n']} users; 90 % have {as_number(user['p90'])} or more",
            "user_output_rate.p50",
        ),
        Figure(
            "P90 interactivity",
            _rate(interactivity["p90"], "tok/s/user"),
            f"90 % of {interactivity['n']} requests reach it; "
            f"median {as_number(interactivity['p50'])}",
            "interactivity.p90",
        ),
        Figure(
            "TTFT",
            as_duration(ttft["p50"]),
            f"median; P95 {as_duration(ttft['p95'])}, P99 {as_duration(ttft['p99'])}",
            "ttft.p50",
        ),
        Figure(
            "Prompt lengths",
            _off(metrics["isl_error"]["p50"]),
            _lengths(metrics),
            "isl_error.p50",
        ),
        Figure(
            "Prefix reuse",
            as_percent(reuse["theoretical"]),
            _reuse(reuse, value["server"]),
            "prefix_reuse.theoretical",
        ),
    ]
    if limits := value["goodput_limits"]:
        kept = f"of all requests, failed ones too, kept {' and '.join(limits)}"
        rows.append(Figure("Goodput", as_percent(metrics["goodput"]), kept, "goodput"))
    rows = [row if row.shown != ABSENT else row._replace(of="not measured") for row in rows]
    rows += [
        Figure(
            "Requests",
            f"{requests['succeeded']:,} ok",
            f"{requests['failed']} failed, {requests['cancelled']} cut at the end, "
            f"{requests['warmup']} before the window",
            "requests.succeeded",
        ),
        Figure(
            "Sessions",
            f"{sessions['completed']:,} whole",
            _sessions(sessions),
            "sessions.completed",
        ),
        *(Figure(*row) for row in _server_rows(value["server"])),
        *(Figure(*row) for row in money_rows(value)),
    ]
    if warmup := value["warmup"]:
        rows.append(Figure("Warm-up", as_duration(warmup["seconds"]), _warmup(warmup)))
    if (busy := metrics["busy"])["refusals"]:
        said = f"{busy['refusals']:,} refusals"
        waited = f"sent again after {as_duration(busy['waited'])} in all, which no TTFT holds"
        rows.append(Figure("Server busy", said, waited, "busy.refusals"))
    gaps = value["gaps"]
    if gaps["cut"]:
        limit = as_duration(value["plan"]["max_gap_s"])
        cut = f"to {limit}, by {as_duration(gaps['cut_s'])} in all"
        rows.append(Figure("Gaps cut", f"{gaps['cut']:,}", cut))
    for name, title, of in (
        ("tree", "Idle skipped", "of a session without a call under way"),
        ("idle", "Idle skipped, all", "without any call under way"),
    ):
        if (skips := value["skips"][name])["count"]:
            what = f"times, {as_duration(skips['seconds'])} in all, {of}"
            rows.append(Figure(title, f"{skips['count']:,}", what))
    return rows


def _sessions(sessions: dict[str, int]) -> str:
    said = f"{sessions['started']} started, {sessions['distinct']} distinct"
    if sessions["reused"]:
        said += f"; played up to {sessions['most_plays']} times, with other text each time"
    return said


def _warmup(warmup: dict[str, Any]) -> str:
    tokens = f"{as_tokens(warmup['input_tokens'])} input tokens"
    said = f"{warmup['calls']:,} calls of one token, {tokens}"
    if warmup["cached_tokens"] is not None and warmup["input_tokens"]:
        said += f", {_of(warmup['cached_tokens'], warmup['input_tokens'])} cached"
    if warmup["failed"]:
        said += f"; {warmup['failed']} failed"
    if warmup["moved_back"]:
        said += f"; {warmup['moved_back']} sessions begin earlier than drawn"
    return said


def _server_rows(server: dict[str, Any] | None) -> list[tuple[str, str, str]]:
    """What the server's own metrics say, where they say something."""
    rows: list[tuple[str, str, str]] = []
    if server is None:
        return rows
    waiting, running, held = (server[name] for name in ("waiting", "running", "kv_use"))
    said = [f"mean, most {as_number(waiting['max'])}"] if waiting else []
    if running:
        said.append(f"running {as_number(running['mean'])}, most {as_number(running['max'])}")
    if held:
        said.append(f"KV cache {as_percent(held['mean'])}, most {as_percent(held['max'])}")
    if server["preemptions"] is not None:
        said.append(f"{server['preemptions']:,} preemptions")
    if said:
        queue = f"{as_number(waiting['mean'])} waiting" if waiting else ABSENT
        rows.append(("Server queue", queue, "; ".join(said)))
    counts = [
        f"{server[name]['server']:,} {title}{_ours(server[name])}"
        for name, title in (("prompt", "input"), ("generated", "output"), ("cached", "cached"))
        if server[name]["server"] is not None
    ]
    if counts:
        first, _, of = counts[0].partition(" ")
        rows.append(("Server counts", first, "; ".join([of, *counts[1:]])))
    return rows


def _ours(count: dict[str, Any]) -> str:
    """Our count beside the server's; a span where calls were cut or failed."""
    ours, most = count["ours"], (count["ours"] or 0) + count["open"]
    if ours is None:
        return ""
    if count["server"] == ours:
        return ", as ours"
    return f" (ours {ours:,} to {most:,})" if most > ours else f" (ours {ours:,})"


def _reuse(reuse: dict[str, float | None], server: dict[str, Any] | None) -> str:
    if reuse["server"] is None and server and server["hit_share"] is not None:
        return f"possible; by its metrics the server found {as_percent(server['hit_share'])}"
    if reuse["server"] is None:
        return "possible; the server does not report cached tokens"
    captured = reuse["captured"]
    share = "" if captured is None else f", {as_percent(captured)} of what it could"
    return f"possible; the server reports {as_percent(reuse['server'])}{share}"


def _off(error: float | None) -> str:
    return ABSENT if error is None else f"{error:.2%} off"


def _lengths(metrics: dict[str, Any]) -> str:
    prompts, answers = metrics["isl_error"], metrics["osl_error"]
    return (
        f"median, by the server's count; P99 {_off(prompts['p99'])}; answers {_off(answers['p50'])}"
    )


def _rate(value: float | None, unit: str = "tok/s") -> str:
    return f"{as_number(value)} {unit}" if value is not None else ABSENT


def _details(value: dict[str, Any]) -> RenderableType:
    metrics = value["metrics"]
    table = Table(box=None, header_style="dim", padding=(0, 1))
    table.add_column("", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for name, title, show in distributions(metrics):
        cells = [show(metrics[name][column]) for column in COLUMNS[1:]]
        table.add_row(title, f"{metrics[name]['n']:,}", *cells)
    return table


def distributions(
    metrics: Mapping[str, Any],
) -> Iterator[tuple[str, str, Callable[[float | None], str]]]:
    """Of each distribution that has a sample: its id, what it is called, and how it is written."""
    for names, show in (
        (_RATES, as_number),
        (_TIMES, as_duration),
        (_LENGTHS, as_tokens),
        (_SHARES, _fine),
    ):
        for name, title in names:
            if metrics[name]["n"]:
                yield name, title, show


def _plays(plays: list[dict[str, Any]]) -> RenderableType:
    """The plays that suffered most; summary.json has all."""
    known = [play for play in plays if play["slowdown"] is not None]
    slowest = sorted(known, key=lambda play: -play["slowdown"])[:PLAYS_SHOWN]
    failed = [play for play in plays if play["failed"] and play not in slowest]
    shown = [*slowest, *failed[: PLAYS_SHOWN - len(slowest)]]
    if not shown:
        return Text("")
    title = f"The slowest of {len(plays)} plays of sessions (all: plays in summary.json)"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 1))
    table.add_column("session", overflow="ellipsis", no_wrap=True, max_width=40)
    for column in ("user", "calls", "ok", "whole", "calls run", "waits", "×", "main", "subagents"):
        table.add_column(column, justify="right")
    for play in shown:
        table.add_row(
            escape(play["session"]),
            str(play["lane"]),
            f"{play['calls']:,}",
            f"{play['succeeded']:,}",
            as_duration(play["seconds"]),
            as_duration(play["model_seconds"]),
            as_duration(play["wait_seconds"]),
            _fine(play["slowdown"]),
            _fine(play["slowdown_main"]),
            _fine(play["slowdown_subagents"]),
        )
    return table


def _shortfalls(short: dict[str, Any]) -> RenderableType:
    title = (
        f"Of {short['short']} of {short['calls']} prompts the server found less than it could "
        "have; the first:"
    )
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 1))
    for column in ("session", "call", "could", "found"):
        table.add_column(column, justify="left" if column == "session" else "right")
    table.add_column("likely because")
    for each in short["first"]:
        table.add_row(
            escape(each["session"]),
            str(each["call"]),
            f"{each['reuse']:,}",
            f"{each['cached']:,}",
            each["reason"],
        )
    return table


def _of(part: int, whole: int) -> str:
    return as_percent(part / whole if whole else None)


def _fine(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.3g}"


def remarks(value: dict[str, Any]) -> list[str]:
    """What else has to be known of a run, a sentence each."""
    metrics, endpoint, trace = value["metrics"], value["endpoint"], value["trace"]
    found = list(value["cautions"])
    if metrics["interactivity"]["n"]:
        found.append(
            "Of rates, p90 is what 90 % reach or exceed, and min is the slowest; of times, p90 is "
            "what 90 % stay within."
        )
    if cause := endpoint.get("calibration_failure"):
        found.append(f"The chat template was not measured: {cause}")
    if endpoint.get("limit") == "max_completion_tokens":
        found.append("The server knows no max_tokens: max_completion_tokens was sent instead.")
    if not endpoint.get("forces_output", True):
        found.append(
            "The server takes neither ignore_eos nor min_tokens: the lengths of its answers are "
            "its own."
        )
    if value["overlong"]:
        found.append(
            f"{value['overlong']} prompts were too short to pay for the chat template and were "
            "sent longer than recorded."
        )
    if (history := value["history"])["live"]:
        found.append(
            f"{history['live']} prompts held the server's own last answer: input lengths are "
            "reported, and not judged."
        )
    if history["substituted"]:
        found.append(
            f"{history['substituted']} prompts held the recorded turn, since the server's own "
            "answer had a broken tool call."
        )
    if value["after_window"]:
        found.append(
            f"{value['after_window']} requests were sent after the window closed: they count as "
            "requests, not in distributions and rates."
        )
    if value["chunk_gap_binned"]:
        found.append("Gaps between chunks are from bins of 1 %.")
    if (fit := value["fit"]) and fit["looked_through_s"] is not None:
        took = as_duration(fit["looked_through_s"])
        found.append(f"Every session was read first, to see that it fits: {took}.")
    if fit and fit["dropped_calls"]:
        found.append(
            f"{fit['dropped_sessions']} of {fit['sessions']} drawn sessions, "
            f"{fit['dropped_calls']} calls and {_of(fit['dropped_tokens'], fit['tokens'])} of the "
            f"drawn tokens were left out: they don't fit a context of "
            f"{fit['context_tokens']:,} tokens (--fit {fit['policy']})."
        )
    if server := value["server"]:
        found += _server_remarks(server)
    for source, cause in list(trace["skipped"].items())[:5]:
        found.append(f"Skipped {source}: {cause}")
    if (client := metrics["client"])["stamps"]:
        found.append(_client(client))
    found += [warning["text"] for warning in value["verdict"]["warnings"]]
    return found


def _server_remarks(server: dict[str, Any]) -> list[str]:
    remarks = [
        f"{source['url']} gave no metrics of the server {source['failed']:,} of "
        f"{source['readings']:,} times: {source['error']}"
        for source in server["sources"]
        if source["failed"]
    ]
    if server["unchecked"] and any(each["readings"] > each["failed"] for each in server["sources"]):
        remarks.append(f"What the server counted is not compared: {server['unchecked']}.")
    return remarks


def _client(client: dict[str, Any]) -> str:
    """How this machine kept up."""
    who = {
        "kernel": "the kernel stamped what arrived",
        "process": "this process stamped what arrived, when it read it",
        "mixed": "the kernel stamped some of what arrived, this process the rest",
    }[client["stamps"]]
    if client["read_delay_max"] is not None:
        who += f"; it was read up to {as_duration(client['read_delay_max'])} later"
    late, used = as_duration(client["loop_late_max"]), as_percent(sum(client["cpu_share"]))
    return f"Client: {who}. The loop was up to {late} late; {used} of a core was used."


def _verdict(value: dict[str, Any]) -> Text:
    verdict = value["verdict"]
    text = Text("Verdict: valid", style="bold green")
    if verdict["valid"] and (tolerated := tolerated_failures(value)):
        text.append(f"; {tolerated}", style="not bold")
    if not verdict["valid"]:
        text = Text("Verdict: invalid", style="bold red")
        for reason in verdict["reasons"]:
            text.append(f"\n  {reason['id']}: {reason['text']}", style="not bold")
    if verdict["scenario"]:
        traces = f"traces sha256 {verdict['trace_sha256'] or ABSENT}"
        text.append(f"\n{verdict['scenario']} · {traces}", style="not bold default")
    return text


def tolerated_failures(value: dict[str, Any]) -> str:
    """How many requests failed of how many that may; empty where none did."""
    requests, limit = value["metrics"]["requests"], value["verdict"]["limits"]["error_rate"]
    if not requests["failed"]:
        return ""
    of = f"{requests['failed']:,} of {requests['attempted']:,} requests failed"
    return f"{of} (limit {100 * limit:.10g} %)"


def _gates(gates: list[dict[str, Any]]) -> RenderableType:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for gate in gates:
        style = "bold green" if gate["passed"] else "bold red"
        said = gate["reason"] or f"it is {shown(gate['metric'], gate['value'])}"
        word = "passed" if gate["passed"] else "missed"
        table.add_row(Text(f"Gate {word}", style=style), escape(gate["text"]), escape(said))
    return table


TRACE_SPREADS: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("calls_per_session", "calls a session", as_number),
    ("input", "input of a call", as_tokens),
    ("output", "output of a call", as_tokens),
    ("largest_prompt", "largest prompt", as_tokens),
    ("gap_s", "gap before a call", as_duration),
    ("duration_s", "call", as_duration),
    ("session_s", "session", as_duration),
)
"""Distributions of a trace set: the name in `Statistics`, in words, and how they are shown."""


def trace_figures(found: Statistics, files: int) -> tuple[Figure, ...]:
    """The figures of a trace set."""
    return (
        Figure("Sessions", as_number(found.sessions), f"in {files} files", "sessions"),
        Figure(
            "Calls",
            as_number(found.calls),
            f"{found.estimated_durations} of estimated duration",
            "calls",
        ),
        Figure("Subagents", as_number(found.subagents), "", "subagents"),
        Figure(
            "Input tokens", as_tokens(found.input_tokens), "cached ones included", "input_tokens"
        ),
        Figure(
            "Output tokens", as_tokens(found.output_tokens), "reasoning included", "output_tokens"
        ),
        Figure("Cached tokens", as_tokens(found.cached_tokens), "as recorded", "cached_tokens"),
        Figure(
            "Prefix reuse",
            as_percent(found.prefix_reuse),
            "by tokens, nothing ever evicted",
            "prefix_reuse",
        ),
        Figure("", as_percent(found.prefix_reuse_blocks), "by blocks", "prefix_reuse_blocks"),
        Figure(
            "Recorded time",
            as_duration(found.recorded_seconds),
            "all sessions one after another",
            "recorded_seconds",
        ),
        Figure(
            "In flight at once",
            as_number(found.largest_in_flight),
            "in one session, at most",
            "largest_in_flight",
        ),
    )


def trace_report(
    found: Statistics,
    files: int,
    left_out: dict[str, int],
    skipped: dict[str, str],
    notes: dict[str, dict[str, int]],
) -> RenderableType:
    """What is in a trace set, and what was left out of it."""
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    facts.add_column(style="bold")
    facts.add_column(justify="right")
    facts.add_column(style="dim")
    for title, figure, of, _ in trace_figures(found, files):
        facts.add_row(title, figure, of)
    spread = Table(box=None, header_style="dim", padding=(0, 1))
    spread.add_column("", no_wrap=True)
    for column in COLUMNS:
        spread.add_column(column, justify="right")
    for name, title, show in TRACE_SPREADS:
        values = getattr(found, name)
        if values.n:
            cells = [show(getattr(values, column)) for column in COLUMNS[1:]]
            spread.add_row(title, f"{values.n:,}", *cells)
    parts: list[RenderableType] = [facts, Text(""), spread]
    if left_out:
        parts.append(Text(""))
        parts += [Text(f"{times:,} sessions {why}") for why, times in left_out.items()]
    if skipped:
        parts += [Text(""), Text(f"{len(skipped)} skipped:", style="bold red")]
        parts += [Text(f"  {source}: {cause}") for source, cause in skipped.items()]
    if notes:
        total: Counter[str] = sum(map(Counter, notes.values()), Counter())
        parts += [Text(""), Text("Left out or repaired (by file with --json):", style="bold")]
        parts += [Text(f"  {count:,} × {what}") for what, count in total.most_common()]
    return Group(*parts)


def memory_rows(found: Memory) -> list[tuple[str, str, Held | None]]:
    """What sessions hold: in words, the name in `Memory`, and how much."""
    names = [
        ("largest conversation", "largest_conversation"),
        ("mean conversation", "mean_conversation"),
    ]
    if found.users is not None:
        names += [
            (f"working set of {found.users} users, mean", "working_set_mean"),
            ("… 95 % of the time within", "working_set_p95"),
            (f"… the {found.users} largest, at their peaks", "working_set_most"),
        ]
    return [(title, name, getattr(found, name)) for title, name in names]


def memory_report(found: Memory) -> RenderableType:
    """What the sessions of a trace set hold in a KV cache."""
    size = as_size(found.kv_bytes_per_token)
    title = f"KV cache, at {size} a token"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 1))
    table.add_column("", no_wrap=True)
    columns = ("tokens", "memory", f"each of {found.partitions}")
    for column in columns if found.partitions > 1 else columns[:2]:
        table.add_column(column, justify="right")
    for name, _, held in memory_rows(found):
        cells = [ABSENT] * 3
        if held is not None:
            cells = [as_tokens(held.tokens), as_size(held.bytes), as_size(held.partition_bytes)]
        table.add_row(name, *cells[: len(table.columns) - 1])
    return Group(Text(""), table)
