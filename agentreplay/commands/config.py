"""`config` and `completion`: which values hold, and what the shell completes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from agentreplay import options
from agentreplay.commands.output import print_json, print_report
from agentreplay.config import given, options_of
from agentreplay.errors import AgentReplayError


@click.command()
@click.argument("command", default="run")
@options.JSON
@click.pass_context
def config(ctx: click.Context, command: str, as_json: bool) -> None:
    """Show the values that the options of COMMAND have, and where each comes from.

    A variable goes before the configuration file, a profile before the rest of that, and all of it
    before a scenario. What the command line says goes before everything.

    \b
    agentreplay config
    agentreplay --profile staging config sweep
    """
    from agentreplay.report.config import config_report

    assert ctx.parent is not None
    commands = ctx.parent.command
    assert isinstance(commands, click.Group)
    wanted = commands.commands.get(command)
    if wanted is None:
        known = ", ".join(commands.commands)
        raise AgentReplayError(f"no command {command!r}; there are {known}")
    found = _effective(click.Context(wanted, parent=ctx.parent, info_name=command))
    if as_json:
        print_json({"command": command, "options": found})
    else:
        print_report(config_report(found))


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that lets SHELL complete commands, options and values.

    \b
    eval "$(agentreplay completion bash)"                in ~/.bashrc
    eval "$(agentreplay completion zsh)"                 in ~/.zshrc, after compinit
    agentreplay completion fish > ~/.config/fish/completions/agentreplay.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    assert ctx.parent is not None
    click.echo(found(ctx.parent.command, {}, "agentreplay", "_AGENTREPLAY_COMPLETE").source())


def _effective(ctx: click.Context) -> dict[str, dict[str, Any]]:
    """The value of each option as it would be given, and its origin, by key of the file."""
    known = options_of(ctx.command)
    found: dict[str, dict[str, Any]] = {}
    # As click takes them: a scenario comes first, since it changes the defaults of the others.
    for key, param in sorted(known.items(), key=lambda each: not each[1].is_eager):
        value, source = param.consume_value(ctx, {})
        ctx.set_parameter_source(str(param.name), source)
        if isinstance(param, click.Option):
            param.process_value(ctx, value)  # refuses what the command would refuse
        origin = given(ctx, param)
        if origin is None:
            origin = "scenario" if source is ParameterSource.DEFAULT_MAP else "default"
        found[key] = {"value": _told(key, _plain(value)), "from": origin}
    return {key: found[key] for key in known}


def _plain(value: Any) -> Any:
    """A value that JSON has; None for click's own sign of none."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    return value if isinstance(value, bool | int | float | str) else None


def _told(key: str, value: Any) -> Any:
    """The value of an option without the secrets in it."""
    import orjson

    from agentreplay.client.endpoint import MASK, is_secret, shown

    if isinstance(value, list):
        return [_told(key, each) for each in value]
    if not isinstance(value, str):
        return value
    if key == "api-key":
        return MASK
    if key == "header":
        return f"{value.partition(':')[0]}: {MASK}"
    if key in ("url", "metrics-url") and "://" not in value:
        return shown(f"http://{value}").removeprefix("http://")
    if key == "body":
        try:
            fields = orjson.loads(value)
        except orjson.JSONDecodeError:
            return MASK
        if isinstance(fields, dict):
            told = {name: MASK if is_secret(name) else each for name, each in fields.items()}
            return orjson.dumps(told).decode()
    return shown(value) if "://" in value else value
