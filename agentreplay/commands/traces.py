"""`inspect`, `check`, `convert` and `synth`: what traces hold, and making others."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentreplay import options
from agentreplay.commands.output import print_json, print_report, save_page
from agentreplay.errors import AgentReplayError

if TYPE_CHECKING:
    from agentreplay.trace.model import Notes


@click.command()
@options.traces
@options.SEED
@click.option(
    "--kv-bytes-per-token",
    callback=options.size,
    metavar="SIZE",
    help="What a token takes in the server's KV cache, as 13.8kB: says what memory sessions hold.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Devices that the KV cache is spread over.",
)
@click.option("--users", type=click.IntRange(1), help="Sessions at once, for their working set.")
@options.HTML
@options.JSON
def inspect(
    kv_bytes_per_token: float | None,
    partitions: int,
    users: int | None,
    html: Path | None,
    as_json: bool,
    seed: int,
    which: dict[str, Any],
) -> None:
    """Show what the traces in PATHS hold: calls, lengths, gaps, prefix reuse, memory.

    \b
    agentreplay inspect traces
    agentreplay inspect traces --kv-bytes-per-token 13.8kB --partitions 8 --users 16
    agentreplay inspect traces --html traces.html
    """
    from agentreplay.report.text import memory_report, trace_report
    from agentreplay.trace.memory import Sizes
    from agentreplay.trace.statistics import statistics

    if kv_bytes_per_token is None and (users is not None or partitions > 1):
        raise AgentReplayError("--users and --partitions need --kv-bytes-per-token")
    trace, sizes, memory = options.loaded(seed=seed, **which), Sizes(), None
    sessions = trace.readable()
    survey = None
    if html is not None:
        from agentreplay.trace.survey import Survey

        survey = Survey()
    found = statistics(
        sessions if kv_bytes_per_token is None else sizes.through(sessions),
        survey.add if survey else None,
    )
    if not found.sessions:
        raise AgentReplayError(trace.nothing())
    if kv_bytes_per_token is not None:
        memory = sizes.memory(kv_bytes_per_token, partitions, users)
    notes = {path: dict(notes) for path, notes in trace.notes.items()}
    value = {
        **asdict(found),
        "files": len(trace.formats),
        "formats": dict(trace.formats),
        "left_out": dict(trace.left_out),
        "skipped": trace.skipped,
        "notes": notes,
        "memory": asdict(memory) if memory else None,
    }
    if as_json:
        print_json(value)
    else:
        print_report(trace_report(found, len(trace.formats), trace.left_out, trace.skipped, notes))
        if memory:
            print_report(memory_report(memory))
    if survey is not None:
        from agentreplay.report.html.traces import traces_page

        paths = [str(path) for path in which["paths"]]
        page = traces_page(paths, value, found, survey, memory, sizes)
        save_page(html, lambda: page)


@click.command()
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
        print_json(asdict(found))
    else:
        print_report(check_report(found))
    if not found.calls:
        raise AgentReplayError(trace.nothing())


@click.command()
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
        print_report(export_report(to, seen_of(lines)))
    else:
        try:
            # Written beside and moved when whole: the file may be among those that are read.
            with click.open_file(str(out), "wb", atomic=True) as file:
                for line in lines:
                    file.write(line)
        except BrokenPipeError:
            raise  # nobody reads on
        except OSError as error:
            raise AgentReplayError(f"{out}: can't be written: {error.strerror}") from None
    for source, cause in trace.skipped.items():
        click.echo(f"left out: {source}: {cause}", err=True)
    _say(notes)


def _say(notes: Notes) -> None:
    for what, times in notes.items():
        if times:
            click.echo(f"{times} {what}", err=True)


@click.command()
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
