"""What is to be run: the options of `run` and the like, and what they say."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from agentreplay import options, units
from agentreplay.config import COMMAND_LINE, given
from agentreplay.errors import AgentReplayError
from agentreplay.options import Section, duration, gap, share, start
from agentreplay.scenario import PINNED, SCENARIOS, Scenario, written
from agentreplay.trace.hub import is_pinned

if TYPE_CHECKING:
    from agentreplay.client.endpoint import Endpoint
    from agentreplay.metrics.condition import Condition
    from agentreplay.metrics.cost import Money
    from agentreplay.metrics.verdict import Limits
    from agentreplay.plan import Plan
    from agentreplay.trace.load import TraceSet
    from agentreplay.workers.crew import Crew

DEFAULT_USERS = 8
DEFAULT_DURATION_S = 60.0
ERROR_RATE = "error_rate"


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that decides a run but where it leaves its directory.

    Attributes:
        trace: The recorded sessions.
        plan: What to send, and when.
        endpoint: What to send to; None for the embedded simulated server.
        profile: The simulated server's profile.
        limits: Where the run stops being valid.
        goodput: Limits on single requests.
        money: What makes money of its figures.
        crew: Who plays it.
    """

    trace: TraceSet
    plan: Plan
    endpoint: Endpoint | None
    profile: str
    limits: Limits
    goodput: tuple[Condition, ...]
    money: Money
    crew: Crew


def scenario(ctx: click.Context, param: click.Parameter, value: str | None) -> Scenario | None:
    """The scenario; its values become the defaults of the command's other options."""
    if value is None:
        return None
    found, named = SCENARIOS[value], _named(ctx)
    rules = {**found.options, **found.defaults}
    filled: dict[str, Any] = {str(named[name].name): text for name, text in rules.items()}
    ctx.default_map = {**filled, **(ctx.default_map or {})}  # a configuration file goes first
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

    def is_given(name: str) -> bool:  # a flag that a file turns off is not
        return given(ctx, named[name]) is not None and values[name] is not False

    def shown(name: str) -> str:
        return _shown(named[name], values[name]) + _where(ctx, named[name])

    for name, text in scenario.options.items():
        if is_given(name) and values[name] != _parsed(ctx, named[name], text):
            found.append(f"{shown(name)}: {title} has {written(name, text)}")
    for name, text in scenario.least.items():
        if is_given(name) and values[name] < _parsed(ctx, named[name], text):
            found.append(f"{shown(name)}: {title} has {written(name, text)} or more")
    if scenario.whole_passes and is_given("sessions") and values["sessions"] < sessions:
        found.append(
            f"{shown('sessions')}: {title} plays the whole set, {sessions} sessions, or more"
        )
    found += [
        f"{written(name)}{_where(ctx, named[name])}: {title} has none"
        for name in scenario.without
        if is_given(name)
    ]
    allowed = dict(change.partition("=")[::2] for change in values["allow"])
    for name, text in scenario.limits.items():
        if name in allowed and _limit(name, allowed[name]) != _limit(name, text):
            where = _where(ctx, named["allow"])
            found.append(f"--allow {name}={allowed[name]}{where}: {title} has {name}={text}")
    rate, most = scenario.limits.get(ERROR_RATE), values["max-error-rate"]
    if rate and most is not None and most != _limit(ERROR_RATE, rate):
        found.append(f"{shown('max-error-rate')}: {title} has {ERROR_RATE}={rate}")
    if scenario.pinned:
        found += [
            f"{path}{_where(ctx, named['paths'])}: {title} replays published sets only, "
            f"written as {PINNED}"
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


def _where(ctx: click.Context, param: click.Parameter) -> str:
    """Words about where a parameter was given, unless that was on the command line."""
    where = given(ctx, param)
    return "" if where in (None, COMMAND_LINE) else f" ({where})"


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


JOB = (
    click.option(
        "--url",
        "urls",
        cls=Section,
        section="Endpoint",
        multiple=True,
        help="Endpoint: host, host/v1, full path, or unix:/path/of/socket; several share the "
        "sessions. Without: a simulated server.",
    ),
    *options.ADDRESSED,
    click.option(
        "--token-ids", is_flag=True, help="Send completions as token ids instead of text."
    ),
    click.option(
        "--tool-messages",
        is_flag=True,
        help="Send what follows an assistant's turn as the result of a tool call.",
    ),
    click.option(
        "--session-header",
        default="X-Session-ID",
        show_default=True,
        help="Header that names the play of a session to routers; 'none' for none.",
    ),
    click.option(
        "--connection-per-session", is_flag=True, help="Connections of its own for each session."
    ),
    click.option(
        "--metrics-url",
        "metrics_urls",
        multiple=True,
        help="Page of the server's own metrics; several are added up.  [default: /metrics on each "
        "host of --url]",
    ),
    click.option("--no-calibrate", is_flag=True, help="Don't measure the chat template first."),
    click.option(
        "--sim",
        "profile",
        type=click.Choice(["demo", "slow"]),
        default="demo",
        show_default=True,
        help="Profile of the simulated server.",
    ),
    click.option(
        "--scenario",
        cls=Section,
        section="Scenario",
        type=click.Choice(list(SCENARIOS)),
        callback=scenario,
        is_eager=True,
        help="Rules of a published benchmark; `agentreplay scenarios` shows them.",
    ),
    click.option(
        "--override",
        is_flag=True,
        help="Contradict the scenario: the run goes on, and its verdict is invalid.",
    ),
    click.option(
        "--duration",
        cls=Section,
        section="Load",
        callback=options.duration,
        metavar="DURATION",
        help="Measure for so long, from the opening of the window.  [default: 60s, without "
        "--sessions and --requests]",
    ),
    click.option(
        "--workers",
        callback=options.workers,
        metavar="N",
        help="Processes that play the users; 'auto' for as many as users and cores ask for.  "
        "[default: 1; with --ray, one a node]",
    ),
    click.option(
        "--ray",
        metavar="ADDRESS",
        help="Play the users on the nodes of this Ray cluster: 'auto', where this is one of them, "
        "or host:port of its head.",
    ),
    click.option("--requests", type=click.IntRange(1), help="Send at most so many requests."),
    click.option("--sessions", type=click.IntRange(1), help="Play at most so many sessions."),
    click.option(
        "--ramp",
        callback=options.duration,
        metavar="DURATION",
        default="0s",
        show_default=True,
        help="Start users spread over this.",
    ),
    click.option(
        "--start",
        cls=Section,
        section="Warm-up",
        callback=options.start,
        metavar="START",
        default="beginning",
        show_default=True,
        help="Where users' first sessions begin; 'spread' or 'spread:25%-75%': anywhere in that "
        "part of their recorded time.",
    ),
    click.option(
        "--warmup-calls",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="Send so many first calls of each user with one token of output, unmeasured.",
    ),
    click.option(
        "--warmup-duration",
        callback=options.duration,
        metavar="DURATION",
        default="0s",
        show_default=True,
        help="Send ordinary calls for so long before the window opens.",
    ),
    click.option(
        "--warmup-limit",
        callback=options.duration,
        metavar="DURATION",
        help="Send the primers of the warm-up within this, and wait so long for the next of its "
        "calls to end.  [default: as recorded, and 10m]",
    ),
    click.option(
        "--timing",
        cls=Section,
        section="Timing",
        type=click.Choice(["think", "recorded", "none"]),
        default="think",
        show_default=True,
        help="Recorded gaps after the live end; recorded offsets; or no gaps.",
    ),
    click.option(
        "--order",
        type=click.Choice(["causal", "recorded", "serial"]),
        default="causal",
        show_default=True,
        help="What a call waits for: its causes, all that had ended in the recording, or every "
        "call of its session that began before.",
    ),
    click.option(
        "--speed",
        type=click.FloatRange(0, min_open=True),
        default=1.0,
        show_default=True,
        help="Divide gaps and recorded offsets by this.",
    ),
    click.option(
        "--max-gap",
        callback=options.gap,
        metavar="DURATION",
        default="10s",
        show_default=True,
        help="Longest gap waited with --timing think; 'none' for no limit.",
    ),
    click.option(
        "--max-tree-idle",
        callback=options.gap,
        metavar="DURATION",
        default="none",
        show_default=True,
        help="Longest time in which nothing of a session is in flight: then all of it moves "
        "forward.",
    ),
    click.option(
        "--max-idle",
        callback=options.gap,
        metavar="DURATION",
        default="none",
        show_default=True,
        help="Longest time in which nothing at all is in flight: then everything moves forward.",
    ),
    click.option(
        "--drain",
        cls=Section,
        section="Limits and errors",
        callback=options.duration,
        metavar="DURATION",
        default="30s",
        show_default=True,
        help="How long answers may still take after the end.",
    ),
    click.option(
        "--connect-timeout",
        callback=options.duration,
        metavar="DURATION",
        default="5s",
        show_default=True,
        help="Longest setting up of a connection.",
    ),
    click.option(
        "--first-token-timeout",
        callback=options.duration,
        metavar="DURATION",
        help="A call without a token for so long has failed.  [default: no limit]",
    ),
    click.option(
        "--next-token-timeout",
        callback=options.duration,
        metavar="DURATION",
        help="One without another token for so long has failed.  [default: no limit]",
    ),
    click.option(
        "--retry-busy",
        is_flag=True,
        help="Wait as Retry-After says (1 s without) and ask again after a 429 or 503.",
    ),
    click.option(
        "--on-error",
        type=click.Choice(["end-session", "continue", "stop"]),
        default="end-session",
        show_default=True,
        help="What a failed call ends: its session, nothing, or the run.",
    ),
    click.option(
        "--failure-limit",
        callback=options.share,
        metavar="SHARE",
        help="Stop when more than this share of 20 or more measured requests failed, as 10%.  "
        "[default: no limit]",
    ),
    *options.MONEY,
    click.option(
        "--max-cost",
        cls=Section,
        section="Limits and errors",
        type=click.FloatRange(0, min_open=True),
        metavar="DOLLARS",
        help="Stop before a call that would make the run cost more; needs --prices.  "
        "[default: no limit]",
    ),
    click.option(
        "--share-system",
        cls=Section,
        section="Load",
        type=click.Choice(["session", "pass", "play"]),
        default="session",
        show_default=True,
        help="Plays that have a session's tools and system prompt in common: all of it, those of "
        "one pass over the set, or none.",
    ),
    click.option(
        "--history",
        type=click.Choice(["recorded", "live"]),
        default="recorded",
        show_default=True,
        help="Assistant turns as recorded, or the server's own answers.",
    ),
    click.option(
        "--fit",
        type=click.Choice(["drop-session", "drop-calls", "fail"]),
        default="drop-session",
        show_default=True,
        help="Sessions that are too long for the model's context: leave them out, or their longest "
        "calls, or fail before anything is sent.",
    ),
    click.option(
        "--context",
        type=click.IntRange(1),
        help="Context in tokens.  [default: what the server says]",
    ),
    click.option("--seed", type=int, default=42, show_default=True, help="Order of the sessions."),
    click.option(
        "--allow",
        cls=Section,
        section="Limits and errors",
        multiple=True,
        metavar="NAME=VALUE",
        help="Change a limit of the verdict, as error_rate=5% or loop_late_max_s=500ms.",
    ),
    click.option(
        "--max-error-rate",
        callback=options.share,
        metavar="SHARE",
        help="Share of requests that may fail in a valid run; as --allow error_rate=SHARE.  "
        "[default: 1%]",
    ),
    click.option(
        "--goodput",
        multiple=True,
        callback=options.conditions(options.request_limit),
        metavar="COND",
        help="Limit on single requests, as 'ttft < 2s', 'tpot <= 50ms', 'interactivity >= 20' or "
        "'latency < 60s': the share that keeps within all is the figure goodput.",
    ),
)
"""Options that say what to send, to whom and when; besides traces and the number of users."""


def job(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options about traces and those of `JOB`, as one value `asked`."""

    @wraps(command)
    def packed(which: dict[str, Any], **values: Any) -> None:
        asked = {name: values.pop(name) for name in names}
        command(asked={"which": which, **asked}, **values)

    known = len(getattr(command, "__click_params__", ()))
    for option in reversed(JOB):
        packed = option(packed)
    params: list[click.Parameter] = packed.__click_params__  # type: ignore[attr-defined]
    names = [str(param.name) for param in params[known:]]
    return options.traces(packed)


def limits_of(
    allow: tuple[str, ...],
    scenario: Scenario | None = None,
    duration_s: float | None = None,
    max_error_rate: float | None = None,
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
    if max_error_rate is not None:
        changed = [change for change in allow if change.partition("=")[0] == ERROR_RATE]
        if changed and limits.error_rate != max_error_rate:
            raise AgentReplayError(
                f"--allow {changed[-1]} and --max-error-rate {100 * max_error_rate:.10g}% are two "
                "values for one limit: give one of them"
            )
        limits = replace(limits, error_rate=max_error_rate)
    if duration_s is not None and "window_s" in rules:
        limits = replace(limits, window_s=min(limits.window_s, duration_s))
    return limits


def _limit(name: str, text: str) -> float:
    return units.seconds(text) if name.endswith("_s") else units.share(text)


def job_of(asked: dict[str, Any], users: int | None) -> Job:
    """The job that the options of `job` describe, for a number of users.

    Raises:
        AgentReplayError: options contradict each other or the scenario, or no session is found.
    """
    from agentreplay.metrics.cost import Money
    from agentreplay.plan import Plan

    values = dict(asked)
    which, seed = values.pop("which"), values["seed"]
    scenario, override = values.pop("scenario"), values.pop("override")
    endpoint = options.endpoint_of(
        calibrate=not values.pop("no_calibrate"),
        connect_s=values.pop("connect_timeout"),
        **{name: values.pop(name) for name in _ENDPOINT},
    )
    profile, duration_s = values.pop("profile"), values.pop("duration")
    workers, ray = values.pop("workers"), values.pop("ray")
    limits = limits_of(values.pop("allow"), scenario, duration_s, values.pop("max_error_rate"))
    goodput = values.pop("goodput")
    if values["history"] == "live" and asked["api"] != "chat":
        raise AgentReplayError("--history live needs --api chat: it is spoken by that API only")
    if values["history"] == "live" and asked["tool_messages"]:
        raise AgentReplayError("--history live and --tool-messages exclude each other")
    money = options.sensible(
        Money(values.pop("gpus"), values.pop("gpu_hour"), values.pop("prices"))
    )
    if values["max_cost"] is not None and money.prices is None:
        raise AgentReplayError("--max-cost needs --prices: without them nothing has a cost")
    trace = options.loaded(seed=seed, **which)
    overrides = overrides_of(click.get_current_context(), scenario, override, len(trace))
    sessions, requests = values["sessions"], values["requests"]
    if scenario is not None and scenario.whole_passes and sessions is None:
        sessions = values["sessions"] = len(trace)
    if duration_s is None and sessions is None and requests is None:
        duration_s = DEFAULT_DURATION_S
    fields = {_FIELDS.get(name, name): value for name, value in values.items()}
    _refuse_nonsense(**fields)
    if users is not None or fields["timing"] != "recorded":
        # A lane without any work would be no user: its window would close at the start.
        most = (users or DEFAULT_USERS, sessions, requests)
        users, arrivals = min(n for n in most if n is not None), False
    else:
        users, arrivals = _arriving(trace, sessions), True
        fields["sessions"] = users
    plan = Plan(
        users=users,
        arrivals=arrivals,
        duration_s=duration_s,
        salt=secrets.randbits(63),
        prices=money.prices if values["max_cost"] is not None else None,
        scenario=scenario.title if scenario else None,
        overrides=overrides,
        **fields,
    )
    crew = _crew(plan, workers, ray, endpoint)
    return Job(trace, plan, endpoint, profile, limits, goodput, money, crew)


def _crew(
    plan: Plan, workers: int | str | None, ray: str | None, endpoint: Endpoint | None
) -> Crew:
    """Who plays *plan*: so many processes, as many as it asks for (`auto`), or as is usual."""
    from agentreplay.client.machine import cores
    from agentreplay.workers.crew import Crew, host_and_port, needs_one, workers_for

    why = needs_one(plan)
    if ray is not None:
        if endpoint is None:
            raise AgentReplayError("--ray needs --url: the simulated server is on this machine")
        if ray != "auto":
            host_and_port(ray)
    if not isinstance(workers, int):
        if why or (ray is None and workers is None):
            workers = 1
        elif ray is not None:
            return Crew(None, ray)
        else:
            workers = workers_for(plan.users, cores())
    if workers > 1 and why:
        raise AgentReplayError(f"--workers {workers}: {why} needs one process")
    if workers > plan.users:
        raise AgentReplayError(f"--workers {workers}: there are {plan.users} users")
    return Crew(workers, ray)


_ENDPOINT = (
    *("urls", "api", "model", "api_key", "headers", "body", "ca", "insecure"),
    *("token_ids", "tool_messages", "session_header", "connection_per_session"),
    "metrics_urls",
)

_FIELDS = {
    "ramp": "ramp_s",
    "warmup_duration": "warmup_s",
    "warmup_limit": "warmup_limit_s",
    "max_gap": "max_gap_s",
    "max_tree_idle": "max_tree_idle_s",
    "max_idle": "max_idle_s",
    "drain": "drain_s",
    "first_token_timeout": "first_token_s",
    "next_token_timeout": "next_token_s",
    "context": "context_tokens",
}
"""Fields of the plan that are named otherwise than their options, since those have units."""


def _arriving(trace: TraceSet, sessions: int | None) -> int:
    """With recorded times and no users: one lane for each session and its arrival."""
    if any(session.start_s is None for session in trace.readable()):
        raise AgentReplayError(
            "--timing recorded without --users replays arrivals, and these traces record none: "
            "give --users"
        )
    return min(sessions or len(trace), len(trace))


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
