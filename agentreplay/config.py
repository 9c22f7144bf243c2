"""Values of options from a file and from the environment, for every command that there is.

A file holds options by their names on the command line, without dashes. Which there are is asked of
the commands, so that an option has its key as soon as it exists. Values become click's defaults
(`default_map`): they are parsed as if given, and click knows where each came from.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from agentreplay.errors import AgentReplayError

FILE = "agentreplay.toml"
PROJECT = "pyproject.toml"
PROFILES = "profile"
"""Table of profiles; each has the structure of the whole file."""

COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value of a configuration file, and where it stands: file and profile."""

    value: Any
    where: str


Settings = dict[str, dict[str, Setting]]
"""By command, and by click's name of the parameter."""

_META = __name__
"""Where a context keeps the settings."""


class Configured(click.Group):
    """A group with the options `config` and `profile`, whose commands a file can configure."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; the file is read now, unless only help is wanted."""
        name, command, rest = super().resolve_command(ctx, args)
        helps = not {"-h", "--help"}.isdisjoint(rest)
        if not (ctx.resilient_parsing or helps or command is None) and options_of(command):
            settings = read(self.commands, ctx.params["config"], ctx.params["profile"])
            ctx.meta[_META] = settings
            ctx.default_map = {
                each: {param: setting.value for param, setting in values.items()}
                for each, values in settings.items()
            }
        return name, command, rest


def given(ctx: click.Context, param: click.Parameter) -> str | None:
    """Where the user gave a parameter: command line, variable or file; None where he didn't."""
    source, name = ctx.get_parameter_source(str(param.name)), str(param.name)
    if source is ParameterSource.COMMANDLINE:
        return COMMAND_LINE
    if source is ParameterSource.ENVIRONMENT:
        names = [param.envvar] if isinstance(param.envvar, str) else param.envvar or ()
        return next(each for each in names if os.environ.get(each))
    settings: Settings = ctx.meta.get(_META, {})
    setting = settings.get(str(ctx.info_name), {}).get(name)
    if source is ParameterSource.DEFAULT_MAP and setting:
        return setting.where
    return None


def options_of(command: click.Command) -> dict[str, click.Parameter]:
    """What a file can say for a command, by key: its options, and `traces` for its PATHS."""
    found: dict[str, click.Parameter] = {}
    for param in command.params:
        if isinstance(param, click.Option):
            found[max(param.opts, key=len).lstrip("-")] = param
        elif param.name == "paths":
            found["traces"] = param
    return found


def name_variables(group: click.Group, leader: str) -> None:
    """Let all that a file can say for the command *leader* be read from AGENTREPLAY_<KEY>, too.

    Other commands read the variable where they have the very same option, and not where one of
    that name means something else. What can be given several times has a line for each value:
    values may have spaces in them.
    """
    same = {key: _meaning(param) for key, param in options_of(group.commands[leader]).items()}
    for command in group.commands.values():
        for key, param in options_of(command).items():
            if same.get(key) != _meaning(param):
                continue
            param.envvar = param.envvar or f"AGENTREPLAY_{key.replace('-', '_').upper()}"
            if param.multiple or param.nargs != 1:
                param.type = copy(param.type)
                vars(param.type)["split_envvar_value"] = str.splitlines


def _meaning(param: click.Parameter) -> tuple[object, ...]:
    return type(param.type), param.multiple, getattr(param, "help", None)


def read(
    commands: Mapping[str, click.Command], file: Path | None = None, profile: str | None = None
) -> Settings:
    """The settings of a configuration file.

    Later ones of these win: top of the file, table of the command, top of the profile, table of
    the command in the profile. All of the file must be right, whatever of it is used.

    Args:
        commands: All there are.
        file: The file; None for the one in the current folder, if there is one.
        profile: The profile that goes over the rest; None for none.

    Raises:
        AgentReplayError: the file can't be read, or holds what no option takes; all of that
            together.
    """
    found = _opened(file)
    if found is None:
        if profile is not None:
            raise AgentReplayError(
                f"--profile {profile}: there is no {FILE} here, and no [tool.agentreplay] in "
                f"{PROJECT}"
            )
        return {}
    name, table = found
    reader = _Reader(commands, name)
    profiles = table.pop(PROFILES, {})
    levels = [reader.level(table, "", name)]
    if not isinstance(profiles, dict):
        reader.wrong(PROFILES, f"this is the table of profiles, as [{PROFILES}.staging]")
        profiles = {}
    for each, values in profiles.items():
        key = f"{PROFILES}.{each}"
        if not isinstance(values, dict):
            reader.wrong(key, f"a profile is a table: [{key}]")
            continue
        level = reader.level(values, f"{key}.", f"{name}, profile {each}")
        if each == profile:
            levels.append(level)
    reader.finish()
    if profile is not None and profile not in profiles:
        raise AgentReplayError(f"{name}: no profile {profile!r}{_like(profile, profiles)}")
    return {
        command: {param: setting for level in levels for param, setting in level[command].items()}
        for command in commands
    }


def _opened(file: Path | None) -> tuple[str, dict[str, Any]] | None:
    """The name of the file that counts, and what it says; None where there is none."""
    if file is None:
        if Path(FILE).is_file():
            return FILE, _parsed(Path(FILE))
        if Path(PROJECT).is_file() and (table := _of_project(Path(PROJECT))) is not None:
            return PROJECT, table
        return None
    if file.name != PROJECT:
        return str(file), _parsed(file)
    table = _of_project(file)
    if table is None:
        raise AgentReplayError(f"{file}: it has no table [tool.agentreplay]")
    return str(file), table


def _of_project(file: Path) -> dict[str, Any] | None:
    tools = _parsed(file).get("tool", {})
    table: dict[str, Any] | None = tools.get("agentreplay")
    return table


def _parsed(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise AgentReplayError(f"{file}: can't be read: {error.strerror}") from None
    except ValueError as error:  # no TOML, or no UTF-8
        raise AgentReplayError(f"{file}: no valid TOML: {error}") from None


class _Reader:
    """Takes the levels of a file apart, and collects all that is wrong with them."""

    def __init__(self, commands: Mapping[str, click.Command], name: str) -> None:
        self._commands = commands
        self._options = {each: options_of(command) for each, command in commands.items()}
        self._name = name
        self._errors: list[str] = []

    def wrong(self, key: str, what: str) -> None:
        error = f"{key}: {what}"
        if error not in self._errors:
            self._errors.append(error)

    def finish(self) -> None:
        if not self._errors:
            return
        lines = "\n  ".join(self._errors)
        between = ": " if len(self._errors) == 1 else f": {len(self._errors)} errors\n  "
        raise AgentReplayError(f"{self._name}{between}{lines}")

    def level(self, table: Mapping[str, Any], prefix: str, where: str) -> Settings:
        """The settings of a file, or of a profile, by command.

        Args:
            table: What it holds.
            prefix: Of its keys, for errors.
            where: What to say of where they come from.
        """
        found: Settings = {each: {} for each in self._commands}
        tables = {key: each for key, each in table.items() if isinstance(each, dict)}
        for key, value in table.items():
            if key not in tables:
                for command in self._takers(key, value, prefix):
                    self._take(found[command], command, key, value, prefix, where)
        for command, values in tables.items():
            if command not in self._commands:
                what = f"no such command{_like(command, self._commands)}"
                self.wrong(prefix + command, what)
                continue
            inside = f"{prefix}{command}."
            for key, value in values.items():
                if key in self._options[command]:
                    self._take(found[command], command, key, value, inside, where)
                else:
                    like = _like(key, self._options[command])
                    self.wrong(inside + key, f"{command} has no such option{like}")
        return found

    def _takers(self, key: str, value: Any, prefix: str) -> Iterator[str]:
        """The commands that a key at the top is for.

        Where options of one name take different kinds of values, it is those of its kind.
        """
        having = [each for each, options in self._options.items() if key in options]
        if not having:
            if key in self._commands:
                self.wrong(prefix + key, f"a command is a table: [{prefix}{key}]")
            else:
                known = {name for options in self._options.values() for name in options}
                self.wrong(prefix + key, f"no such option{_like(key, known)}")
            return
        fitting = [each for each in having if not _misfit(self._options[each][key], value)]
        yield from fitting or having

    def _take(
        self,
        found: dict[str, Setting],
        command: str,
        key: str,
        value: Any,
        prefix: str,
        where: str,
    ) -> None:
        param = self._options[command][key]
        if wanted := _misfit(param, value):
            self.wrong(prefix + key, f"this must be {wanted}")
            return
        try:
            with click.Context(self._commands[command], info_name=command) as ctx:
                param.process_value(ctx, value)
        except click.UsageError as error:
            self.wrong(prefix + key, error.message)
        except AgentReplayError as error:
            self.wrong(prefix + key, str(error))
        found[str(param.name)] = Setting(value, where)


def _misfit(param: click.Parameter, value: Any) -> str | None:
    """What kind of value a parameter takes, where this is none."""
    several = param.nargs != 1 or param.multiple
    values = value if several and isinstance(value, list) else [value]
    kind: tuple[type, ...]
    if isinstance(param.type, click.types.BoolParamType):
        kind, wanted, example = (bool,), "true or false", "true"
    elif isinstance(param.type, click.types.IntParamType):
        kind, wanted, example = (int,), "a whole number", "8"
    elif isinstance(param.type, click.types.FloatParamType):
        kind, wanted, example = (int, float), "a number", "0.5"
    else:
        kind, wanted, example = (str,), 'a text in quotes, as "30s"', '"…"'
    # True and False are numbers to Python.
    fits = all(
        isinstance(each, kind) and (bool in kind) == isinstance(each, bool) for each in values
    )
    if several:
        return None if fits and isinstance(value, list) else f"a list, as [{example}]"
    return None if fits else wanted


def _like(word: str, known: Iterable[str]) -> str:
    """Words about which known one may have been meant."""
    close = get_close_matches(word, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
