"""The command line: all commands, and how errors and signals end them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from agentreplay.commands.compare import compare
from agentreplay.commands.config import completion, config
from agentreplay.commands.money import cost, curve
from agentreplay.commands.running import report, run
from agentreplay.commands.serving import probe, scenarios, sim
from agentreplay.commands.sweep import sweep
from agentreplay.commands.traces import check, convert, inspect, synth
from agentreplay.config import Configured, name_variables
from agentreplay.errors import EXIT_SIGNALLED, AgentReplayError


@contextmanager
def _until_unread() -> Iterator[None]:
    """End quietly when nobody reads on, as in `| head`: with the code of what SIGPIPE ends."""
    try:
        yield
    except BrokenPipeError:
        # What is still buffered goes nowhere, or it would fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_SIGNALLED + signal.SIGPIPE)


class _Commands(Configured):
    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        with _until_unread():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        with _until_unread():
            return super().invoke(ctx)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--config",
    envvar="AGENTREPLAY_CONFIG",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with values of options.  [default: agentreplay.toml, or pyproject.toml's "
    "[tool.agentreplay]]",
)
@click.option("--profile", envvar="AGENTREPLAY_PROFILE", metavar="NAME", help="Profile in it.")
@click.version_option(package_name="agentreplay-loadgen", prog_name="agentreplay")
def cli(**_: object) -> None:
    """Replay recorded coding-agent sessions against an OpenAI-compatible endpoint.

    \b
    agentreplay run traces                          against the embedded simulated server
    agentreplay run traces --url http://host:8000   against yours
    agentreplay inspect traces                      what the traces hold
    """


for _command in (
    *(run, sweep, report, cost, curve, compare, scenarios),
    *(probe, inspect, check, convert, synth, sim, config, completion),
):
    cli.add_command(_command)
name_variables(cli, "run")


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


if __name__ == "__main__":
    main()
