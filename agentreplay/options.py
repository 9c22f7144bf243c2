"""Options that several commands share, and what they mean. Parsing only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import wraps
from math import inf
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from agentreplay import units
from agentreplay.errors import AgentReplayError, TraceError
from agentreplay.scenario import PINNED, SCENARIOS, Scenario, written
from agentreplay.trace.hub import is_pinned

if TYPE_CHECKING:
    from agentreplay.client.endpoint import Endpoint
    from agentreplay.metrics.verdict import Limits
    from agentreplay.plan import Plan
    from agentreplay.trace.load import TraceSet

DEFAULT_USERS = 8


def duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Seconds, of a duration with its unit."""
    if value is None:
        return None
    try:
        return units.seconds(value)
    except AgentReplayError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def gap(ctx: click.Context, param: click.Parameter, value: str) -> float | None:
    """The same, or `none`."""
    return None if value == "none" else duration(ctx, param, value)


def share(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A share between 0 and 1, of one as 10%."""
    if value is None:
        return None
    try:
        return units.share(value)
    except AgentReplayError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def start(ctx: click.Context, param: click.Parameter, value: str) -> tuple[float, float] | None:
    """Two shares of a session's recorded span, or None for `beginning`."""
    if value == "beginning":
        return None
    kind, colon, span = value.partition(":")
    low, _, high = (span if colon else "0%-100%").partition("-")
    try:
        found = units.share(low), units.share(high)
    except AgentReplayError:
        found = 1.0, 0.0
    if kind != "spread" or found[0] > found[1]:
        raise click.BadParameter(
            f"{value!r} is no start: write beginning, spread or spread:25%-75%", ctx, param
        )
    return found


def from_to(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int]:
    """A range of positive numbers, as 5-60."""
    low, _, high = value.partition("-")
    if not (low.isdigit() and high.isdigit() and 1 <= int(low) <= int(high)):
        raise click.BadParameter(f"{value!r} is no range: write it as 5-60", ctx, param)
    return int(low), int(high)


def instant(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A date, a date with a time, or how long ago."""
    if value is None:
        return None
    try:
        return datetime.fromisoformat(value).astimezone().timestamp()
    except (ValueError, OverflowError):
        pass
    try:
        return time() - units.seconds(value)
    except AgentReplayError:
        raise click.BadParameter(
            f"{value!r} is no time: write 2026-01-31, 2026-01-31T14:00 or 7d for so long ago",
            ctx,
            param,
        ) from None


def prices(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> dict[str, float] | None:
    """Prices as name=dollars, separated by commas."""
    if value is None:
        return None
    read = {}
    for each in value.split(","):
        name, _, dollars = each.partition("=")
        try:
            read[name.strip()] = float(dollars)
        except ValueError:
            read = {}
            break
    if read.keys() != {"input", "cached", "output"} or not all(
        0 <= each < inf for each in read.values()
    ):
        raise click.BadParameter(
            f"{value!r}: write dollars a million tokens, as input=3,cached=0.3,output=15",
            ctx,
            param,
        )
    return read


PATHS = click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
EXPORT = click.option(
    "--export",
    "exports",
    multiple=True,
    type=click.Choice(["inferencex", "aiperf"]),
    help="Write the run as AIPerf does into the run directory, for InferenceX's or other tools.",
)
SEED = click.option("--seed", type=int, default=42, show_default=True, help="Of --sample.")

TRACES = (
    click.option("--strict", is_flag=True, help="A file that can't be read is an error."),
    click.option(
        "--format",
        "form",
        metavar="NAME",
        help="Read everything as this format.  [default: seen from the content]",
    ),
    click.option("--since", callback=instant, metavar="TIME", help="Sessions begun then or later."),
    click.option("--until", callback=instant, metavar="TIME", help="Sessions begun before."),
    click.option("--project", metavar="PART", help="Sessions whose project's path has this in it."),
    click.option("--recorded-model", metavar="PART", help="Sessions with calls of such a model."),
    click.option("--min-calls", type=click.IntRange(1), help="Sessions of so many calls or more."),
    click.option("--sample", type=click.IntRange(1), help="So many of them, drawn by the seed."),
    click.option(
        "--gap",
        "gap_s",
        callback=duration,
        metavar="DURATION",
        help="Time between calls, for logs without times.",
    ),
    click.option(
        "--chars-per-token",
        type=click.FloatRange(0, min_open=True),
        help="Length of a token, for logs of texts without lengths.",
    ),
    click.option(
        "--turn-lengths",
        type=click.Choice(["delta", "full"]),
        help="What rows of Mooncake sessions hold, where it can't be seen: new tokens, or all.",
    ),
)
"""Options that say which recorded sessions are meant, and what their logs don't say."""

_WHICH = (
    "strict form since until project recorded_model min_calls sample gap_s chars_per_token "
    "turn_lengths"
).split()


ADDRESSED = (
    click.option(
        "--api",
        type=click.Choice(["chat", "completions", "responses", "messages"]),
        default="chat",
        show_default=True,
        help="API to speak.",
    ),
    click.option("--model", help="Model to ask for.  [default: the first one served]"),
    click.option(
        "--api-key",
        envvar=["AGENTREPLAY_API_KEY", "OPENAI_API_KEY"],
        help="Bearer token; also from AGENTREPLAY_API_KEY or OPENAI_API_KEY. Never stored.",
    ),
    click.option("--header", "headers", multiple=True, help="Further header, as 'Name: value'."),
    click.option("--body", help="Further fields of each request body, as a JSON object."),
    click.option("--ca", help="File of certificates to trust."),
    click.option("--insecure", is_flag=True, help="Trust any certificate."),
)
"""Options that say how an endpoint is spoken to."""


def traces(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the paths of traces and all options about them, as one value `which`."""
    names = ("paths", *_WHICH)

    @wraps(command)
    def packed(**values: Any) -> None:
        which = {name: values.pop(name) for name in names}
        command(which=which, **values)

    for option in reversed(TRACES):
        packed = option(packed)
    return PATHS(packed)


def opened(
    *,
    paths: tuple[Path, ...],
    since: float | None,
    until: float | None,
    project: str | None,
    recorded_model: str | None,
    min_calls: int | None,
    sample: int | None,
    seed: int,
    **reading: Any,
) -> TraceSet:
    """The trace set that the options of `traces` and a seed describe; it may be empty."""
    from agentreplay.trace.choice import Choice
    from agentreplay.trace.load import open_set

    choice = Choice(since, until, project, recorded_model, min_calls, sample, seed)
    return open_set(*paths, choice=choice, **reading)


def loaded(**which: Any) -> TraceSet:
    """The same, with at least one session."""
    trace = opened(**which)
    if not trace:
        raise TraceError(trace.nothing())
    return trace


def scenario(ctx: click.Context, param: click.Parameter, value: str | None) -> Scenario | None:
    """The scenario; its values become the defaults of the command's other options."""
    if value is None:
        return None
    found, named = SCENARIOS[value], _named(ctx)
    rules = {**found.options, **found.defaults}
    ctx.default_map = {str(named[name].name): text for name, text in rules.items()}
    return found


def overrides_of(
    ctx: click.Context, scenario: Scenario | None, override: bool, sessions: int
) -> tuple[str, ...]:
    """In what a run differs from its scenario, a line for each.

    Args:
        ctx: The command's, with all options parsed.
        scenario: Whose rules count.
        override: Whether it may differ.
        sessions: How many sessions the set has.
    """
    if scenario is None:
        if override:
            raise AgentReplayError("--override needs --scenario: without one there are no rules")
        return ()
    found = _contradictions(ctx, scenario, sessions)
    if found and not override:
        lines = "\n  ".join(found)
        raise AgentReplayError(
            f"this is not {scenario.title} (--override runs it, and the verdict is invalid):\n"
            f"  {lines}"
        )
    return found


def _contradictions(ctx: click.Context, scenario: Scenario, sessions: int) -> tuple[str, ...]:
    found, named, title = [], _named(ctx), scenario.name
    values: dict[str, Any] = {name: ctx.params.get(str(each.name)) for name, each in named.items()}

    def given(name: str) -> bool:
        source = ctx.get_parameter_source(str(named[name].name))
        return source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)

    for name, text in scenario.options.items():
        if given(name) and values[name] != _parsed(ctx, named[name], text):
            shown = _shown(named[name], values[name])
            found.append(f"{shown}: {title} has {written(name, text)}")
    for name, text in scenario.least.items():
        if given(name) and values[name] < _parsed(ctx, named[name], text):
            shown = _shown(named[name], values[name])
            found.append(f"{shown}: {title} has {written(name, text)} or more")
    if scenario.whole_passes and given("sessions") and values["sessions"] < sessions:
        shown = _shown(named["sessions"], values["sessions"])
        found.append(f"{shown}: {title} plays the whole set, {sessions} sessions, or more")
    found += [f"{written(name)}: {title} has none" for name in scenario.without if given(name)]
    allowed = dict(change.partition("=")[::2] for change in values["allow"])
    for name, text in scenario.limits.items():
        if name in allowed and _limit(name, allowed[name]) != _limit(name, text):
            found.append(f"--allow {name}={allowed[name]}: {title} has {name}={text}")
    if scenario.pinned:
        found += [
            f"{path}: {title} replays published sets only, written as {PINNED}"
            for path in ctx.params["paths"]
            if not is_pinned(path)
        ]
    return tuple(found)


def _named(ctx: click.Context) -> dict[str, click.Parameter]:
    """The options of a command by their names on the command line, without dashes."""
    return {name.lstrip("-"): param for param in ctx.command.params for name in param.opts}


def _parsed(ctx: click.Context, param: click.Parameter, text: str) -> Any:
    """What an option makes of a text."""
    value = param.type_cast_value(ctx, text)
    return param.callback(ctx, param, value) if param.callback else value


def _shown(param: click.Parameter, value: Any) -> str:
    """An option with its parsed value, as it would be given."""
    if value is None:
        text = "beginning" if param.callback is start else "none"
    elif param.callback is start:
        low, high = (f"{100 * each:.10g}%" for each in value)
        text = f"spread:{low}-{high}"
    elif param.callback is share:
        text = f"{100 * value:.10g}%"
    elif param.callback in (duration, gap):
        text = f"{value:.10g}s"
    else:
        text = str(value)
    return written(param.opts[0].lstrip("-"), text)


def addressed(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say how an endpoint is spoken to."""
    for option in reversed(ADDRESSED):
        command = option(command)
    return command


def endpoint_of(
    *,
    urls: tuple[str, ...],
    api: str,
    model: str | None,
    api_key: str | None,
    headers: tuple[str, ...],
    body: str | None,
    ca: str | None,
    insecure: bool,
    token_ids: bool = False,
    tool_messages: bool = False,
    session_header: str = "none",
    connection_per_session: bool = False,
    calibrate: bool = True,
    connect_s: float = 5.0,
) -> Endpoint | None:
    """What to send to; None without an address."""
    import orjson

    from agentreplay.client.endpoint import APIS, Endpoint, api_url

    pairs = []
    for header in headers:
        name, colon, content = header.partition(":")
        if not colon or not name.strip():
            raise AgentReplayError(f"--header {name!r}: write it as 'Name: value'")
        pairs.append((name.strip(), content.strip()))
    fields: dict[str, Any] = {}
    if body is not None:
        try:
            fields = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise AgentReplayError(f"--body is no JSON: {error}") from None
        if not isinstance(fields, dict):
            raise AgentReplayError("--body must be a JSON object, as '{\"temperature\": 0}'")
    if token_ids and api != "completions":
        raise AgentReplayError("--token-ids needs --api completions: other APIs take text only")
    if tool_messages and api != "chat":
        raise AgentReplayError("--tool-messages needs --api chat: other APIs have other forms")
    if not urls:
        if model or pairs or fields or api != "chat":
            raise AgentReplayError("--api, --model, --header and --body need --url")
        return None
    return Endpoint(
        urls=tuple(api_url(url, APIS[api]) for url in urls),
        api=APIS[api],
        model=model,
        api_key=api_key,
        headers=tuple(pairs),
        fields=fields,
        calibrate=calibrate,
        token_ids=token_ids,
        tool_messages=tool_messages,
        session_header=None if session_header == "none" else session_header,
        connection_per_session=connection_per_session,
        connect_s=connect_s,
        ca=ca,
        insecure=insecure,
    )


def limits_of(
    allow: tuple[str, ...], scenario: Scenario | None = None, duration_s: float | None = None
) -> Limits:
    """The limits of the verdict: those of a scenario, with the changes of --allow.

    A run that is let through with a shorter duration than its scenario's is held to that one.
    """
    from agentreplay.metrics.verdict import Limits

    limits, rules = Limits(), scenario.limits if scenario else {}
    for change in (*(f"{name}={text}" for name, text in rules.items()), *allow):
        name, _, text = change.partition("=")
        if name not in Limits.names():
            known = ", ".join(Limits.names())
            raise AgentReplayError(f"--allow {change}: no such limit; there are {known}")
        limits = replace(limits, **{name: _limit(name, text)})
    if duration_s is not None and "window_s" in rules:
        limits = replace(limits, window_s=min(limits.window_s, duration_s))
    return limits


def _limit(name: str, text: str) -> float:
    return units.seconds(text) if name.endswith("_s") else units.share(text)


def plan_of(trace: TraceSet, *, users: int | None, **options: Any) -> Plan:
    """The plan; with recorded times and no users, one lane for each session and its arrival."""
    from agentreplay.plan import Plan

    _refuse_nonsense(**options)
    if users is not None or options["timing"] != "recorded":
        # A lane without any work would be no user: its window would close at the start.
        most = (users or DEFAULT_USERS, options["sessions"], options["requests"])
        return Plan(users=min(n for n in most if n is not None), **options)
    if any(session.start_s is None for session in trace.readable()):
        raise AgentReplayError(
            "--timing recorded without --users replays arrivals, and these traces record none: "
            "give --users"
        )
    options["sessions"] = min(options["sessions"] or len(trace), len(trace))
    return Plan(users=options["sessions"], arrivals=True, **options)


def _refuse_nonsense(
    *,
    timing: str,
    start: tuple[float, float] | None,
    warmup_calls: int,
    warmup_limit_s: float | None,
    ramp_s: float,
    max_tree_idle_s: float | None,
    max_idle_s: float | None,
    **_: Any,
) -> None:
    """Refuse options that make no sense together."""
    warms_up = start is not None or warmup_calls > 0
    if warms_up and timing == "recorded":
        raise AgentReplayError(
            "--start spread and --warmup-calls need --timing think or none: recorded times count "
            "from the first call of a session"
        )
    if warms_up and ramp_s:
        raise AgentReplayError(
            "--ramp excludes --start spread and --warmup-calls: with these all users start at once"
        )
    if warmup_limit_s is not None and not warms_up:
        raise AgentReplayError("--warmup-limit needs --start spread or --warmup-calls")
    if timing != "think" and (max_tree_idle_s is not None or max_idle_s is not None):
        raise AgentReplayError("--max-tree-idle and --max-idle need --timing think")
