"""The command line: each command parses its options, calls one function, and prints.

Results go to standard output, everything else to standard error. Modules that take their time to
load are imported where they are needed, so that help comes at once.
"""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentreplay import options
from agentreplay.errors import EXIT_SIGNALLED, EXIT_UNUSABLE, AgentReplayError
from agentreplay.scenario import SCENARIOS, Scenario

if TYPE_CHECKING:
    from rich.console import RenderableType

    from agentreplay.plan import Plan
    from agentreplay.run import Result
    from agentreplay.trace.load import TraceSet
    from agentreplay.trace.model import Notes

LOOP = {"use_uvloop": sys.platform != "win32"}


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="agentreplay-loadgen", prog_name="agentreplay")
def cli() -> None:
    """Replay recorded coding-agent sessions against an OpenAI-compatible endpoint.

    \b
    agentreplay run traces                          against the embedded simulated server
    agentreplay run traces --url http://host:8000   against yours
    agentreplay inspect traces                      what the traces hold
    """


@cli.command()
@options.traces
@click.option(
    "--url",
    "urls",
    multiple=True,
    help="Endpoint: host, host/v1 or full path; several share the sessions. Without: a simulated "
    "server.",
)
@options.addressed
@click.option("--token-ids", is_flag=True, help="Send completions as token ids instead of text.")
@click.option(
    "--tool-messages",
    is_flag=True,
    help="Send what follows an assistant's turn as the result of a tool call.",
)
@click.option(
    "--session-header",
    default="X-Session-ID",
    show_default=True,
    help="Header that names the play of a session to routers; 'none' for none.",
)
@click.option(
    "--connection-per-session", is_flag=True, help="Connections of its own for each session."
)
@click.option("--no-calibrate", is_flag=True, help="Don't measure the chat template first.")
@click.option(
    "--sim",
    "profile",
    type=click.Choice(["demo", "slow"]),
    default="demo",
    show_default=True,
    help="Profile of the simulated server.",
)
@click.option(
    "--scenario",
    type=click.Choice(list(SCENARIOS)),
    callback=options.scenario,
    is_eager=True,
    help="Rules of a published benchmark; `agentreplay scenarios` shows them.",
)
@click.option(
    "--override",
    is_flag=True,
    help="Contradict the scenario: the run goes on, and its verdict is invalid.",
)
@click.option(
    "--users",
    type=click.IntRange(1),
    help="Sessions that are live at once.  [default: 8; with --timing recorded, one a session]",
)
@click.option(
    "--duration",
    callback=options.duration,
    metavar="DURATION",
    help="Measure for so long, from the opening of the window.  [default: 60s, without --sessions "
    "and --requests]",
)
@click.option("--requests", type=click.IntRange(1), help="Send at most so many requests.")
@click.option("--sessions", type=click.IntRange(1), help="Play at most so many sessions.")
@click.option(
    "--ramp",
    callback=options.duration,
    metavar="DURATION",
    default="0s",
    show_default=True,
    help="Start users spread over this.",
)
@click.option(
    "--start",
    callback=options.start,
    metavar="START",
    default="beginning",
    show_default=True,
    help="Where users' first sessions begin; 'spread' or 'spread:25%-75%': anywhere in that part "
    "of their recorded time.",
)
@click.option(
    "--warmup-calls",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Send so many first calls of each user with one token of output, unmeasured.",
)
@click.option(
    "--warmup-duration",
    callback=options.duration,
    metavar="DURATION",
    default="0s",
    show_default=True,
    help="Send ordinary calls for so long before the window opens.",
)
@click.option(
    "--warmup-limit",
    callback=options.duration,
    metavar="DURATION",
    help="Longest time for calls of one token.  [default: no limit]",
)
@click.option(
    "--timing",
    type=click.Choice(["think", "recorded", "none"]),
    default="think",
    show_default=True,
    help="Recorded gaps after the live end; recorded offsets; or no gaps.",
)
@click.option(
    "--order",
    type=click.Choice(["causal", "recorded", "serial"]),
    default="causal",
    show_default=True,
    help="What a call waits for: its causes, all that had ended in the recording, or every call "
    "of its session that began before.",
)
@click.option(
    "--speed",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Divide gaps and recorded offsets by this.",
)
@click.option(
    "--max-gap",
    callback=options.gap,
    metavar="DURATION",
    default="10s",
    show_default=True,
    help="Longest gap waited with --timing think; 'none' for no limit.",
)
@click.option(
    "--max-tree-idle",
    callback=options.gap,
    metavar="DURATION",
    default="none",
    show_default=True,
    help="Longest time in which nothing of a session is in flight: then all of it moves forward.",
)
@click.option(
    "--max-idle",
    callback=options.gap,
    metavar="DURATION",
    default="none",
    show_default=True,
    help="Longest time in which nothing at all is in flight: then everything moves forward.",
)
@click.option(
    "--drain",
    callback=options.duration,
    metavar="DURATION",
    default="30s",
    show_default=True,
    help="How long answers may still take after the end.",
)
@click.option(
    "--connect-timeout",
    callback=options.duration,
    metavar="DURATION",
    default="5s",
    show_default=True,
    help="Longest setting up of a connection.",
)
@click.option(
    "--first-token-timeout",
    callback=options.duration,
    metavar="DURATION",
    help="A call without a token for so long has failed.  [default: no limit]",
)
@click.option(
    "--next-token-timeout",
    callback=options.duration,
    metavar="DURATION",
    help="One without another token for so long has failed.  [default: no limit]",
)
@click.option(
    "--retry-busy",
    is_flag=True,
    help="Wait as Retry-After says (1 s without) and ask again after a 429 or 503.",
)
@click.option(
    "--on-error",
    type=click.Choice(["end-session", "continue", "stop"]),
    default="end-session",
    show_default=True,
    help="What a failed call ends: its session, nothing, or the run.",
)
@click.option(
    "--failure-limit",
    callback=options.share,
    metavar="SHARE",
    help="Stop when more than this share of 20 or more measured requests failed, as 10%.  "
    "[default: no limit]",
)
@click.option(
    "--share-system",
    type=click.Choice(["session", "pass", "play"]),
    default="session",
    show_default=True,
    help="Plays that have a session's tools and system prompt in common: all of it, those of one "
    "pass over the set, or none.",
)
@click.option(
    "--history",
    type=click.Choice(["recorded", "live"]),
    default="recorded",
    show_default=True,
    help="Assistant turns as recorded, or the server's own answers.",
)
@click.option(
    "--fit",
    type=click.Choice(["drop-session", "drop-calls", "fail"]),
    default="drop-session",
    show_default=True,
    help="Sessions that are too long for the model's context: leave them out, or their longest "
    "calls, or fail before anything is sent.",
)
@click.option(
    "--context",
    type=click.IntRange(1),
    help="Context in tokens.  [default: what the server says]",
)
@click.option("--seed", type=int, default=42, show_default=True, help="Order of the sessions.")
@click.option(
    "--allow",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change a limit of the verdict, as error_rate=5% or loop_late_max_s=500ms.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Run directory.  [default: runs/TIME]")
@options.EXPORT
@click.option("--dry-run", is_flag=True, help="Send nothing: say what would be sent.")
@click.option(
    "--prices",
    callback=options.prices,
    metavar="PRICES",
    help="Dollars a million tokens for --dry-run, as input=3,cached=0.3,output=15.",
)
@options.JSON
def run(
    no_calibrate: bool,
    profile: str,
    scenario: Scenario | None,
    override: bool,
    users: int | None,
    duration: float | None,
    requests: int | None,
    sessions: int | None,
    ramp: float,
    start: tuple[float, float] | None,
    warmup_calls: int,
    warmup_duration: float,
    warmup_limit: float | None,
    timing: str,
    order: str,
    speed: float,
    max_gap: float | None,
    max_tree_idle: float | None,
    max_idle: float | None,
    drain: float,
    connect_timeout: float,
    first_token_timeout: float | None,
    next_token_timeout: float | None,
    retry_busy: bool,
    on_error: str,
    failure_limit: float | None,
    share_system: str,
    history: str,
    fit: str,
    context: int | None,
    seed: int,
    allow: tuple[str, ...],
    out: Path | None,
    exports: tuple[str, ...],
    dry_run: bool,
    prices: dict[str, float] | None,
    as_json: bool,
    which: dict[str, Any],
    **address: Any,
) -> None:
    """Replay the sessions in PATHS and report token rates and P90 interactivity.

    \b
    agentreplay run traces --users 16 --duration 5m --url http://localhost:8000
    agentreplay run traces/laptop.jsonl --sessions 6 --url http://localhost:8080 --max-gap 1s
    """
    import anyio

    from agentreplay.report.live import LiveView
    from agentreplay.run import run_plan

    endpoint = options.endpoint_of(**address, calibrate=not no_calibrate, connect_s=connect_timeout)
    limits = options.limits_of(allow, scenario, duration)
    if history == "live" and address["api"] != "chat":
        raise AgentReplayError("--history live needs --api chat: it is spoken by that API only")
    if history == "live" and address["tool_messages"]:
        raise AgentReplayError("--history live and --tool-messages exclude each other")
    trace = options.loaded(seed=seed, **which)
    overrides = options.overrides_of(click.get_current_context(), scenario, override, len(trace))
    if scenario is not None and scenario.whole_passes and sessions is None:
        sessions = len(trace)
    unlimited = sessions is None and requests is None
    plan = options.plan_of(
        trace,
        users=users,
        duration_s=60.0 if duration is None and unlimited else duration,
        requests=requests,
        sessions=sessions,
        ramp_s=ramp,
        start=start,
        warmup_calls=warmup_calls,
        warmup_s=warmup_duration,
        warmup_limit_s=warmup_limit,
        timing=timing,
        order=order,
        speed=speed,
        max_gap_s=max_gap,
        max_tree_idle_s=max_tree_idle,
        max_idle_s=max_idle,
        drain_s=drain,
        first_token_s=first_token_timeout,
        next_token_s=next_token_timeout,
        on_error=on_error,
        retry_busy=retry_busy,
        failure_limit=failure_limit,
        share_system=share_system,
        history=history,
        fit=fit,
        context_tokens=context,
        seed=seed,
        salt=secrets.randbits(63),
        scenario=scenario.title if scenario else None,
        overrides=overrides,
    )
    if dry_run:
        _forecast(trace, plan, prices, as_json)
        return
    if prices:
        raise AgentReplayError("--prices needs --dry-run: it says what a run would cost")
    replayed = partial(
        run_plan,
        trace,
        plan,
        out or _new_directory(),
        endpoint=endpoint,
        profile=profile,
        limits=limits,
        show=partial(LiveView, plan),
        exports=exports,
    )
    result = anyio.run(replayed, backend_options=LOOP)
    _show(result, as_json)


@cli.command()
@click.argument("url")
@options.addressed
@options.JSON
def probe(url: str, as_json: bool, **address: Any) -> None:
    """Try the endpoint at URL with some thirty small requests, and say what a run can expect.

    \b
    agentreplay probe http://localhost:8000
    """
    import anyio

    from agentreplay.client.probe import probe as probed
    from agentreplay.report.probe import probe_report, probe_value

    endpoint = options.endpoint_of(urls=(url,), **address)
    assert endpoint is not None
    found = anyio.run(probed, endpoint, backend_options=LOOP)
    if as_json:
        _print_json(probe_value(found))
    else:
        _print(probe_report(found))
    if not found.usable:
        sys.exit(EXIT_UNUSABLE)


@cli.command()
@click.argument("directory", type=click.Path(path_type=Path))
@options.EXPORT
@options.JSON
def report(directory: Path, exports: tuple[str, ...], as_json: bool) -> None:
    """Compute the report of a run in DIRECTORY again from its records."""
    from agentreplay.run import conclude

    _show(conclude(directory, exports=exports), as_json)


@cli.command()
@options.traces
@options.SEED
@options.JSON
def inspect(as_json: bool, seed: int, which: dict[str, Any]) -> None:
    """Show what the traces in PATHS hold: calls, lengths, gaps, prefix reuse."""
    from agentreplay.report.text import trace_report
    from agentreplay.trace.statistics import statistics

    trace = options.loaded(seed=seed, **which)
    found = statistics(trace.readable())
    if not found.sessions:
        raise AgentReplayError(trace.nothing())
    notes = {path: dict(notes) for path, notes in trace.notes.items()}
    if as_json:
        _print_json(
            {
                **asdict(found),
                "files": len(trace.formats),
                "formats": dict(trace.formats),
                "left_out": dict(trace.left_out),
                "skipped": trace.skipped,
                "notes": notes,
            }
        )
    else:
        _print(trace_report(found, len(trace.formats), trace.left_out, trace.skipped, notes))


@cli.command()
@options.traces
@options.SEED
@options.JSON
def check(as_json: bool, seed: int, which: dict[str, Any]) -> None:
    """Say what can be read of PATHS and what not: formats, sessions, repairs, with line numbers.

    \b
    agentreplay check ~/.claude/projects
    agentreplay check traces --json
    """
    from agentreplay.report.check import check_report
    from agentreplay.trace.check import checked

    trace = options.opened(seed=seed, **which)
    found = checked(trace)
    if as_json:
        _print_json(asdict(found))
    else:
        _print(check_report(found))
    if not found.calls:
        raise AgentReplayError(trace.nothing())


@cli.command()
@options.traces
@options.SEED
@click.option(
    "--to",
    type=click.Choice(["native", "weka"]),
    default="native",
    show_default=True,
    help="Format to write.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, allow_dash=True),
    default="-",
    help="File to write.  [default: standard output]",
)
@click.option("--dry-run", is_flag=True, help="Write nothing: say what would be written.")
def convert(to: str, out: Path, dry_run: bool, seed: int, which: dict[str, Any]) -> None:
    """Write the sessions in PATHS as lengths, times and relations: no text, no recorded hash.

    \b
    agentreplay convert ~/.claude/projects --since 30d --out mine.jsonl
    agentreplay convert ~/.codex/sessions --to weka --dry-run
    """
    from agentreplay.report.check import export_report
    from agentreplay.trace.export import exported, seen_of
    from agentreplay.trace.model import Notes

    trace = options.loaded(seed=seed, **which)
    notes = Notes()
    lines = exported(trace, to, secrets.randbits(51), notes)
    if dry_run:
        _print(export_report(to, seen_of(lines)))
    else:
        try:
            # Written beside and moved when whole: the file may be among those that are read.
            with click.open_file(str(out), "wb", atomic=True) as file:
                for line in lines:
                    file.write(line)
        except OSError as error:
            raise AgentReplayError(f"{out}: can't be written: {error.strerror}") from None
    for source, cause in trace.skipped.items():
        click.echo(f"left out: {source}: {cause}", err=True)
    _say(notes)


def _say(notes: Notes) -> None:
    for what, times in notes.items():
        if times:
            click.echo(f"{times} {what}", err=True)


@cli.command()
@click.argument("name", type=click.Choice(list(SCENARIOS)), required=False)
@options.JSON
def scenarios(name: str | None, as_json: bool) -> None:
    """Show the rules of published benchmarks that `run --scenario NAME` keeps; or of one of them.

    \b
    agentreplay scenarios agentx
    """
    from agentreplay.report.scenarios import scenarios_report

    found = [SCENARIOS[name]] if name else list(SCENARIOS.values())
    if as_json:
        _print_json({each.name: asdict(each) for each in found})
    else:
        _print(scenarios_report(found))


@cli.command()
@click.argument("sessions", type=click.IntRange(1))
@click.option("--seed", type=int, default=42, show_default=True, help="Decides everything.")
@click.option(
    "--calls",
    callback=options.from_to,
    metavar="FROM-TO",
    default="5-60",
    show_default=True,
    help="Calls a session.",
)
@click.option(
    "--largest",
    type=click.IntRange(2048),
    help="Most tokens of a prompt and its answer; everything is scaled to fit.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, allow_dash=True),
    default="-",
    help="File to write.  [default: standard output]",
)
def synth(sessions: int, seed: int, calls: tuple[int, int], largest: int | None, out: Path) -> None:
    """Make SESSIONS artificial sessions with the statistics of real ones."""
    from agentreplay.trace.formats import native
    from agentreplay.trace.synth import synthesise

    with click.open_file(str(out), "wb") as file:
        for session in synthesise(sessions, seed, calls=calls, largest_tokens=largest):
            file.write(native.line(session))


@cli.command()
@click.option(
    "--profile",
    type=click.Choice(["demo", "slow"]),
    default="demo",
    show_default=True,
    help="How big and fast the server is.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=int, default=8000, show_default=True, help="Port to listen on.")
def sim(profile: str, host: str, port: int) -> None:
    """Serve the simulated server over HTTP until stopped."""
    import anyio

    from agentreplay.sim.engine import PROFILES
    from agentreplay.sim.server import serve

    def announce(url: str) -> None:
        click.echo(f"SIMULATED SERVER ({profile}) at {url}", err=True)

    try:
        anyio.run(
            serve,
            PROFILES[profile],
            host,
            port,
            announce,
            backend_options=LOOP,
        )
    except OSError as error:
        raise AgentReplayError(f"can't listen on {host}:{port}: {error.strerror}") from None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; what the user can mend is one line on standard error."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        cli.main(arguments, prog_name="agentreplay", standalone_mode=False)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "agentreplay"
        click.echo(f"{command}: {error.format_message()} (see {command} --help)", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        click.echo(f"agentreplay: {error.format_message()}", err=True)
        sys.exit(error.exit_code)
    except AgentReplayError as error:
        click.echo(f"agentreplay: {error}", err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _interrupted(signal.SIGINT)


def _terminated(number: int, _: object) -> None:
    """A run that has begun takes its signals itself (`agentreplay.run`)."""
    _interrupted(number)


def _interrupted(number: int) -> None:
    click.echo("agentreplay: interrupted", err=True)
    sys.exit(EXIT_SIGNALLED + number)


def _new_directory() -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    path, number = Path("runs") / stamp, 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{stamp}-{number}"
    return path


def _print(renderable: RenderableType) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 120)
    console.print(renderable)


def _print_json(value: dict[str, Any]) -> None:
    import orjson

    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def _forecast(trace: TraceSet, plan: Plan, prices: dict[str, float] | None, as_json: bool) -> None:
    """Print what a plan would send."""
    from agentreplay.forecast import Prices, forecast
    from agentreplay.report.forecast import forecast_report
    from agentreplay.trace.draw import Draws

    draws = Draws(trace, plan.fit)
    draws.context_tokens = plan.context_tokens
    if plan.fit == "fail":
        for index in range(len(trace)):
            draws.read(index)
    found = forecast(plan, len(trace), draws.read)
    dollars = found.dollars(Prices(**prices)) if prices else None
    left_out = dict(trace.left_out)
    if too_long := draws.facts()["dropped_sessions"]:
        left_out["too long for the context"] = too_long
    if as_json:
        _print_json({**asdict(found), "dollars": dollars, "left_out": left_out})
    else:
        _print(forecast_report(found, dollars, left_out))


def _show(result: Result, as_json: bool) -> None:
    """Print a run's outcome and end with its exit code."""
    from agentreplay.report.text import report as as_text
    from agentreplay.run import exit_code

    if as_json:
        _print_json(result.value)
    else:
        _print(as_text(result.value))
    code, why = exit_code(result)
    click.echo(f"{result.run.path} · exit {code}: {why}", err=as_json)
    sys.exit(code)


if __name__ == "__main__":
    main()
