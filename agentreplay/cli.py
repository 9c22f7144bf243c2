"""The command line: each command parses its options, calls one function, and prints.

Results go to standard output, everything else to standard error. Modules that take their time to
load are imported where they are needed, so that help comes at once.
"""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentreplay import units
from agentreplay.errors import EXIT_SIGNALLED, EXIT_UNUSABLE, AgentReplayError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from agentreplay.client.endpoint import Endpoint
    from agentreplay.metrics.verdict import Limits
    from agentreplay.plan import Plan
    from agentreplay.run import Result
    from agentreplay.trace.load import TraceSet

LOOP = {"use_uvloop": sys.platform != "win32"}

DEFAULT_USERS = 8


def _duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        return units.seconds(value)
    except AgentReplayError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _gap(ctx: click.Context, param: click.Parameter, value: str) -> float | None:
    return None if value == "none" else _duration(ctx, param, value)


def _from_to(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int]:
    low, _, high = value.partition("-")
    if not (low.isdigit() and high.isdigit() and 1 <= int(low) <= int(high)):
        raise click.BadParameter(f"{value!r} is no range: write it as 5-60", ctx, param)
    return int(low), int(high)


PATHS = click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
STRICT = click.option("--strict", is_flag=True, help="A file that can't be read is an error.")


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


def _addressed(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(ADDRESSED):
        command = option(command)
    return command


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
@PATHS
@click.option(
    "--url",
    "urls",
    multiple=True,
    help="Endpoint: host, host/v1 or full path; several share the sessions. Without: a simulated "
    "server.",
)
@_addressed
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
    "--users",
    type=click.IntRange(1),
    help="Sessions that are live at once.  [default: 8; with --timing recorded, one a session]",
)
@click.option(
    "--duration",
    callback=_duration,
    metavar="DURATION",
    help="Send for so long.  [default: 60s, without --sessions and --requests]",
)
@click.option("--requests", type=click.IntRange(1), help="Send at most so many requests.")
@click.option("--sessions", type=click.IntRange(1), help="Play at most so many sessions.")
@click.option(
    "--ramp",
    callback=_duration,
    metavar="DURATION",
    default="0s",
    show_default=True,
    help="Start users spread over this.",
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
    type=click.Choice(["causal", "recorded"]),
    default="causal",
    show_default=True,
    help="What a call waits for: its causes, or all that had ended in the recording.",
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
    callback=_gap,
    metavar="DURATION",
    default="10s",
    show_default=True,
    help="Longest gap waited with --timing think; 'none' for no limit.",
)
@click.option(
    "--drain",
    callback=_duration,
    metavar="DURATION",
    default="30s",
    show_default=True,
    help="How long answers may still take after the end.",
)
@click.option(
    "--connect-timeout",
    callback=_duration,
    metavar="DURATION",
    default="5s",
    show_default=True,
    help="Longest setting up of a connection.",
)
@click.option(
    "--first-token-timeout",
    callback=_duration,
    metavar="DURATION",
    help="A call without a token for so long has failed.  [default: no limit]",
)
@click.option(
    "--next-token-timeout",
    callback=_duration,
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
@JSON
@STRICT
def run(
    paths: tuple[Path, ...],
    no_calibrate: bool,
    profile: str,
    users: int | None,
    duration: float | None,
    requests: int | None,
    sessions: int | None,
    ramp: float,
    timing: str,
    order: str,
    speed: float,
    max_gap: float | None,
    drain: float,
    connect_timeout: float,
    first_token_timeout: float | None,
    next_token_timeout: float | None,
    retry_busy: bool,
    on_error: str,
    history: str,
    fit: str,
    context: int | None,
    seed: int,
    allow: tuple[str, ...],
    out: Path | None,
    as_json: bool,
    strict: bool,
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
    from agentreplay.trace.load import load

    endpoint = _endpoint(**address, calibrate=not no_calibrate, connect_s=connect_timeout)
    limits = _limits(allow)
    if history == "live" and address["api"] != "chat":
        raise AgentReplayError("--history live needs --api chat: it is spoken by that API only")
    if history == "live" and address["tool_messages"]:
        raise AgentReplayError("--history live and --tool-messages exclude each other")
    trace = load(*paths, strict=strict)
    unlimited = sessions is None and requests is None
    plan = _plan(
        trace,
        users=users,
        duration_s=60.0 if duration is None and unlimited else duration,
        requests=requests,
        sessions=sessions,
        ramp_s=ramp,
        timing=timing,
        order=order,
        speed=speed,
        max_gap_s=max_gap,
        drain_s=drain,
        first_token_s=first_token_timeout,
        next_token_s=next_token_timeout,
        on_error=on_error,
        retry_busy=retry_busy,
        history=history,
        fit=fit,
        context_tokens=context,
        seed=seed,
        salt=secrets.randbits(63),
    )
    replayed = partial(
        run_plan,
        trace,
        plan,
        out or _new_directory(),
        endpoint=endpoint,
        profile=profile,
        limits=limits,
        show=partial(LiveView, plan),
    )
    result = anyio.run(replayed, backend_options=LOOP)
    _show(result, as_json)


@cli.command()
@click.argument("url")
@_addressed
@JSON
def probe(url: str, as_json: bool, **address: Any) -> None:
    """Try the endpoint at URL with some thirty small requests, and say what a run can expect.

    \b
    agentreplay probe http://localhost:8000
    """
    import anyio
    import orjson

    from agentreplay.client.probe import probe as probed
    from agentreplay.report.probe import probe_report, probe_value

    endpoint = _endpoint(urls=(url,), **address)
    assert endpoint is not None
    found = anyio.run(probed, endpoint, backend_options=LOOP)
    if as_json:
        click.echo(orjson.dumps(probe_value(found), option=orjson.OPT_INDENT_2).decode())
    else:
        _print(probe_report(found))
    if not found.usable:
        sys.exit(EXIT_UNUSABLE)


@cli.command()
@click.argument("directory", type=click.Path(path_type=Path))
@JSON
def report(directory: Path, as_json: bool) -> None:
    """Compute the report of a run in DIRECTORY again from its records."""
    from agentreplay.run import conclude

    _show(conclude(directory), as_json)


@cli.command()
@PATHS
@JSON
@STRICT
def inspect(paths: tuple[Path, ...], as_json: bool, strict: bool) -> None:
    """Show what the traces in PATHS hold: calls, lengths, gaps, prefix reuse."""
    import orjson

    from agentreplay.report.text import trace_report
    from agentreplay.trace.load import load
    from agentreplay.trace.statistics import statistics

    trace = load(*paths, strict=strict)
    found = statistics(trace.readable())
    if not found.sessions:
        raise AgentReplayError(trace.nothing())
    notes = {path: dict(notes) for path, notes in trace.notes.items()}
    if as_json:
        value = {
            **asdict(found),
            "files": len(trace.files),
            "skipped": trace.skipped,
            "notes": notes,
        }
        click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
    else:
        _print(trace_report(found, len(trace.files), trace.skipped, notes))


@cli.command()
@click.argument("sessions", type=click.IntRange(1))
@click.option("--seed", type=int, default=42, show_default=True, help="Decides everything.")
@click.option(
    "--calls",
    callback=_from_to,
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


def _endpoint(
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


def _limits(allow: tuple[str, ...]) -> Limits:
    from agentreplay.metrics.verdict import Limits

    limits = Limits()
    for change in allow:
        name, _, text = change.partition("=")
        if name not in Limits.names():
            known = ", ".join(Limits.names())
            raise AgentReplayError(f"--allow {change}: no such limit; there are {known}")
        value = units.seconds(text) if name.endswith("_s") else units.share(text)
        limits = replace(limits, **{name: value})
    return limits


def _plan(trace: TraceSet, *, users: int | None, **options: Any) -> Plan:
    """The plan; with recorded times and no users, one lane for each session and its arrival."""
    from agentreplay.plan import Plan

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


def _show(result: Result, as_json: bool) -> None:
    """Print a run's outcome and end with its exit code."""
    import orjson

    from agentreplay.report.text import report as as_text
    from agentreplay.run import exit_code

    if as_json:
        click.echo(orjson.dumps(result.value, option=orjson.OPT_INDENT_2).decode())
    else:
        _print(as_text(result.value))
    code, why = exit_code(result)
    click.echo(f"{result.run.path} · exit {code}: {why}", err=as_json)
    sys.exit(code)


if __name__ == "__main__":
    main()
