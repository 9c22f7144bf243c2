"""Values of options from a file and from variables: what counts, what is refused, what is told."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import orjson
import pytest
from command import agentreplay
from hypothesis import event, given, settings
from hypothesis import strategies as st
from virtually import chain

from agentreplay import options
from agentreplay.cli import cli
from agentreplay.config import options_of, read
from agentreplay.errors import AgentReplayError
from agentreplay.job import overrides_of
from agentreplay.scenario import SCENARIOS
from agentreplay.trace.formats import native

ROOT = Path(__file__).parents[1]
SECRET = "sk-very-secret-7"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Six short sessions."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(native.line(chain(n, 4, gap_s=0.05)) for n in range(6)))
    return path


def parsed(words: list[str], before: list[str] | None = None) -> click.Context:
    """A command with all its options parsed, and nothing run.

    Args:
        words: The command and what follows it.
        before: Options before it.
    """
    root = cli.make_context("agentreplay", [*(before or []), words[0]])
    name, command, rest = cli.resolve_command(root, words)
    assert command is not None
    return command.make_context(name, rest, parent=root)


def value(text: str, *words: str, profile: str | None = None) -> click.Context:
    """`run traces` with *words*, where the file of the current folder says *text*."""
    Path("agentreplay.toml").write_text(text)
    return parsed(["run", "traces", *words], ["--profile", profile] if profile else [])


# What counts

LAYERS: list[tuple[str, float | None]] = [
    ("default", None),
    ("scenario", 10.0),
    ("top", 1.0),
    ("table", 2.0),
    ("profile", 3.0),
    ("profile's table", 4.0),
    ("variable", 5.0),
    ("flag", 6.0),
]


@pytest.mark.parametrize("highest", range(len(LAYERS)))
def test_each_layer_goes_before_those_below_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, highest: int
) -> None:
    """Default, scenario, file (top, table, profile, its table), variable, flag: the last wins."""
    names = [name for name, _ in LAYERS[: highest + 1]]
    text = "".join(
        part
        for name, part in (
            ("top", 'max-idle = "1s"\n'),
            ("table", '[run]\nmax-idle = "2s"\n'),
            ("profile", '[profile.one]\nmax-idle = "3s"\n'),
            ("profile's table", '[profile.one.run]\nmax-idle = "4s"\n'),
        )
        if name in names
    )
    if "variable" in names:
        monkeypatch.setenv("AGENTREPLAY_MAX_IDLE", "5s")
    words = ["--scenario", "agentx"] if "scenario" in names else []
    words += ["--max-idle", "6s"] if "flag" in names else []
    context = value(text, *words, profile="one" if "profile" in names else None)
    assert context.params["max_idle"] == LAYERS[highest][1]


def test_other_commands_and_profiles_change_nothing(here: Path) -> None:
    """A table is for its command, a profile for whoever asks for it."""
    text = "seed = 1\n[inspect]\nseed = 2\n[profile.one]\nseed = 3\n[profile.two]\nseed = 4\n"
    assert value(text).params["seed"] == 1
    assert value(text, profile="two").params["seed"] == 4
    assert parsed(["inspect", "traces"]).params["seed"] == 2
    assert parsed(["check", "traces"]).params["seed"] == 1


def test_agentreplay_toml_counts_alone_where_there_is_one(here: Path) -> None:
    """Without it the table of pyproject.toml counts; one that says nothing of us is passed over."""
    project = here / "pyproject.toml"
    project.write_text("[tool.agentreplay]\nseed = 5\nusers = 5\n")
    assert parsed(["run", "traces"]).params["seed"] == 5
    (here / "agentreplay.toml").write_text("seed = 6\n")
    assert parsed(["run", "traces"]).params["seed"] == 6
    assert parsed(["run", "traces"]).params["users"] is None
    assert parsed(["run", "traces"], ["--config", str(project)]).params["users"] == 5
    (here / "agentreplay.toml").unlink()
    project.write_text("[tool.other]\nseed = 5\n")
    assert parsed(["run", "traces"]).params["seed"] == 42


def test_paths_of_the_file_stand_in_for_those_of_the_command_line(here: Path, trace: Path) -> None:
    """`traces` counts where no path is given; without both the error is the same as ever."""
    text = 'traces = ["one", "two"]\n'
    assert value(text, "three").params["paths"] == (Path("traces"), Path("three"))
    assert parsed(["inspect"]).params["paths"] == (Path("one"), Path("two"))
    Path("agentreplay.toml").write_text("")
    with pytest.raises(click.MissingParameter, match="paths"):
        parsed(["inspect"])


def test_a_profile_of_the_file_is_none_of_the_simulated_server(here: Path) -> None:
    """`sim --profile` is an option like others: after the command, and in the table [sim]."""
    text = '[sim]\nprofile = "slow"\n[profile.one]\n[profile.one.sim]\nport = 1\n'
    Path("agentreplay.toml").write_text(text)
    assert parsed(["sim"], ["--profile", "one"]).params == {
        "profile": "slow",
        "host": "127.0.0.1",
        "port": 1,
    }
    Path("agentreplay.toml").write_text('profile = "slow"\n')
    with pytest.raises(AgentReplayError, match=r"table of profiles, as \[profile.staging\]"):
        parsed(["sim"])


def test_a_key_at_the_top_is_for_options_of_its_kind(tmp_path: Path) -> None:
    """Where one command takes a number and another a text, each has what it can take."""

    @click.command()
    @click.option("--size", type=int)
    def one(size: int) -> None: ...

    @click.command()
    @click.option("--size")
    def two(size: str) -> None: ...

    file = tmp_path / "file.toml"
    file.write_text("size = 3\n")
    found = read({"one": one, "two": two}, file)
    assert {name: list(values) for name, values in found.items()} == {"one": ["size"], "two": []}
    file.write_text("size = true\n")
    with pytest.raises(AgentReplayError, match="size: this must be a whole number"):
        read({"one": one, "two": two}, file)


@pytest.mark.parametrize(
    ("name", "text", "param", "wanted"),
    [
        ("AGENTREPLAY_STRICT", "0", "strict", False),
        ("AGENTREPLAY_URL", "http://a\nhttp://b\n", "urls", ("http://a", "http://b")),
        ("AGENTREPLAY_HEADER", "X-A: b c", "headers", ("X-A: b c",)),
        ("AGENTREPLAY_GAP", "3s", "gap_s", 3.0),
        ("AGENTREPLAY_SIM", "slow", "profile", "slow"),
        ("AGENTREPLAY_USERS", "", "users", None),
        ("OPENAI_API_KEY", "k", "api_key", "k"),
    ],
)
def test_options_of_run_are_read_from_variables(
    here: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, param: str, wanted: Any
) -> None:
    """By the option's own name; a line is a value, a flag can be turned off, empty is nothing."""
    monkeypatch.setenv(name, text)
    assert value("strict = true\n").params[param] == wanted


def test_variables_are_for_the_same_option_only(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other commands read them for what they have in common with run, not for what is named so."""
    monkeypatch.setenv("AGENTREPLAY_MODEL", "m")
    monkeypatch.setenv("AGENTREPLAY_OUT", "runs/one")
    assert parsed(["probe", "http://a"]).params["model"] == "m"
    assert parsed(["convert", "traces"]).params["out"] == Path("-")


# What is refused

WRONG = """
usres = 3
format = 3
header = ["X: 1", 3]
seed = true
[rum]
users = 3
[run]
duraton = "3s"
duration = "3x"
strict = "yes"
speed = "2"
[profile.staging]
url = "http://a"
sample = 1.5
[profile.staging.run]
users = 0
on-error = "contine"
"""

ERRORS = [
    "usres: no such option; did you mean users?",
    'format: this must be a text in quotes, as "30s"',
    'header: this must be a list, as ["…"]',
    "seed: this must be a whole number",
    "rum: no such command; did you mean run?",
    "run.duraton: run has no such option; did you mean duration?",
    "run.duration: '3x' is no duration: write it with a unit, as 30s, 5m or 1h30m",
    "run.strict: this must be true or false",
    "run.speed: this must be a number",
    'profile.staging.url: this must be a list, as ["…"]',
    "profile.staging.sample: this must be a whole number",
    "profile.staging.run.users: 0 is not in the range x>=1.",
    "profile.staging.run.on-error: 'contine' is not one of 'end-session', 'continue', 'stop'.",
]


def test_all_errors_are_told_together(tmp_path: Path) -> None:
    """Each with its key and what was meant, whatever is used: exit code 2, and nothing is run."""
    file = tmp_path / "wrong.toml"
    file.write_text(WRONG)
    ended = agentreplay("--config", file, "scenarios")
    head, *lines = ended.stderr.splitlines()
    assert ended.returncode == 2
    assert head == f"agentreplay: {file}: {len(ERRORS)} errors"
    assert [line.strip() for line in lines] == ERRORS
    assert not ended.stdout


ALONE = [
    ("run = 3", "run: a command is a table: [run]"),
    ("users = ", "no valid TOML"),
    ("[profile]\nstaging = 3", "profile.staging: a profile is a table: [profile.staging]"),
    ('max_gap = "3s"', "max_gap: no such option; did you mean max-gap?"),
    ("seed = 1\nseed = 2", "no valid TOML"),
    ("[synth]\nusers = 3", "synth.users: synth has no such option"),
]


@pytest.mark.parametrize(("text", "words"), ALONE)
def test_one_error_is_one_line(here: Path, text: str, words: str) -> None:
    """With the file's name in it."""
    with pytest.raises(AgentReplayError) as caught:
        value(text)
    assert str(caught.value).startswith("agentreplay.toml: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (["--profile", "stagin"], "no profile 'stagin'; did you mean staging?"),
        (["--config", "missing.toml"], "missing.toml: can't be read: No such file"),
        (["--config", "latin.toml"], "latin.toml: no valid TOML"),
        (["--config", "pyproject.toml"], "it has no table [tool.agentreplay]"),
    ],
)
def test_what_is_asked_for_must_be_there(here: Path, before: list[str], words: str) -> None:
    """A profile or file that is named and isn't there is no reason to run without."""
    (here / "agentreplay.toml").write_text("[profile.staging]\nseed = 3\n")
    (here / "pyproject.toml").write_text("[tool.other]\n")
    (here / "latin.toml").write_bytes(b'project = "\xe9"\n')
    with pytest.raises(AgentReplayError, match=re.escape(words)):
        parsed(["run", "traces"], before)


def test_a_profile_without_a_file_is_refused(here: Path) -> None:
    """It says where profiles are looked for."""
    with pytest.raises(AgentReplayError, match=r"there is no agentreplay.toml here"):
        parsed(["run", "traces"], ["--profile", "staging"])


def test_help_needs_no_right_file(tmp_path: Path) -> None:
    """Whatever the file says, help shows what the options are, with their own defaults."""
    file = tmp_path / "wrong.toml"
    file.write_text("usres = 3\n")
    assert agentreplay("--config", file, "run", "--help").stdout == agentreplay("run", "-h").stdout
    assert agentreplay("--config", file, "--help").returncode == 0
    assert agentreplay("--config", file, "completion", "zsh").returncode == 0


# Scenarios


def test_a_scenario_can_stand_in_the_file(here: Path) -> None:
    """It fills in what nothing else says."""
    context = value('scenario = "agentx"\nduration = "1200s"\n')
    assert context.params["scenario"] is SCENARIOS["agentx"]
    assert context.params["order"] == "recorded"
    assert context.params["duration"] == 1200.0
    assert overrides_of(context, SCENARIOS["agentx"], False, 1) == ()


def test_what_contradicts_a_scenario_is_refused_as_if_given(tmp_path: Path, trace: Path) -> None:
    """All of it, each with the file or the variable that says it; values of the same are none."""
    file = tmp_path / "mine.toml"
    file.write_text(
        f'traces = ["{trace}"]\nspeed = 2.0\nduration = "1m"\nallow = ["coverage=50%"]\n'
        'order = "recorded"\nretry-busy = false\n'
        '[profile.x]\nscenario = "agentx"\nsample = 3\n'
    )
    ended = agentreplay(
        "--config", file, "--profile", "x", "run", "--ramp", "5s", AGENTREPLAY_SEED="7"
    )
    assert ended.returncode == 2
    assert [line.strip() for line in ended.stderr.splitlines()[1:]] == [
        f"--speed 2.0 ({file}): agentx has --speed 1",
        "--ramp 5s: agentx has --ramp 0s",
        "--seed 7 (AGENTREPLAY_SEED): agentx has --seed 42",
        f"--duration 60s ({file}): agentx has --duration 900s or more",
        f"--sample ({file}, profile x): agentx has none",
        f"--allow coverage=50% ({file}): agentx has coverage=98%",
    ]


def test_the_file_can_let_contradictions_through(here: Path) -> None:
    """`override` is an option like others."""
    context = value('scenario = "agentx"\noverride = true\nspeed = 2\n')
    found = overrides_of(context, SCENARIOS["agentx"], context.params["override"], 1)
    assert found == ("--speed 2.0 (agentreplay.toml): agentx has --speed 1",)


# The same by file as by flag

TEXTS: dict[Any, st.SearchStrategy[str]] = {
    options.duration: st.sampled_from(["0s", "250ms", "1h30m", "1.5 m"]),
    options.gap: st.sampled_from(["none", "0s", "3m"]),
    options.share: st.sampled_from(["2%", "0.02", "100%"]),
    options.start: st.sampled_from(["beginning", "spread", "spread:5%-75%"]),
    options.from_to: st.sampled_from(["1-1", "5-60"]),
    options.instant: st.sampled_from(["2026-01-31", "2026-01-31T14:00"]),
    options.prices: st.just("input=3,cached=0.3,output=15"),
}
PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1)


def values_of(param: click.Parameter) -> st.SearchStrategy[Any] | None:
    """Values that a parameter takes, as TOML has them; None where only it knows them."""
    kind: Any = param.type
    if isinstance(kind, click.Choice):
        found: st.SearchStrategy[Any] = st.sampled_from(list(kind.choices))
    elif isinstance(kind, click.types.BoolParamType):
        found = st.booleans()
    elif isinstance(kind, click.types.IntParamType):
        found = st.integers(getattr(kind, "min", None) or 1, 10**6)
    elif isinstance(kind, click.types.FloatParamType):
        found = st.floats(0.001, 1e6) | st.integers(1, 100)
    elif param.callback in TEXTS:
        found = TEXTS[param.callback]
    elif isinstance(kind, click.Path):
        found = PRINTABLE.filter(lambda text: not Path(text).is_dir())
    elif param.callback is None:
        found = PRINTABLE
    else:
        return None
    return st.lists(found, min_size=1, max_size=3) if param.multiple else found


def options_with_values() -> Iterator[tuple[str, str, st.SearchStrategy[Any]]]:
    """Each option of each command, with values for it."""
    for name, command in cli.commands.items():
        for key, param in options_of(command).items():
            found = values_of(param)
            if found is not None and isinstance(param, click.Option):
                yield name, key, found


EVERY = [st.tuples(st.just(name), st.just(key), each) for name, key, each in options_with_values()]


def given_by_flag(key: str, said: Any) -> list[str]:
    """The words that say on the command line what *said* says in a file."""
    if isinstance(said, bool):
        return [f"--{key}"] if said else []
    return [f"--{key}={each}" for each in (said if isinstance(said, list) else [said])]


@settings(max_examples=300)
@given(st.one_of(EVERY), st.sampled_from(["", "table", "profile", "profile's table"]))
def test_an_option_of_the_file_is_what_it_is_as_a_flag(
    tmp_path_factory: pytest.TempPathFactory, option: tuple[str, str, Any], where: str
) -> None:
    """For every option of every command, at each place of the file."""
    name, key, said = option
    table = {
        "": "" if key != "profile" else f"[{name}]",
        "table": f"[{name}]",
        "profile": "[profile.one]" if key != "profile" else f"[profile.one.{name}]",
        "profile's table": f"[profile.one.{name}]",
    }[where]
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_text(f"{table}\n{key} = {json.dumps(said)}\n")
    words = [name, *map(some, arguments_of(cli.commands[name]))]
    profile = ["--profile", "one"] if table.startswith("[profile") else []
    by_file = parsed(words, ["--config", str(file), *profile])
    file.write_text("")
    by_flag = parsed([*words, *given_by_flag(key, said)], ["--config", str(file)])
    assert by_file.params == by_flag.params


def arguments_of(command: click.Command) -> list[click.Parameter]:
    """What a command can't do without."""
    named = options_of(command).get("traces")
    found = [param for param in command.params if isinstance(param, click.Argument)]
    return [param for param in found if param.required or param is named]


def some(argument: click.Parameter) -> str:
    """A word for an argument."""
    if isinstance(argument.type, click.Choice):
        return str(argument.type.choices[0])
    return "3" if isinstance(argument.type, click.IntRange) else "x"


PLAIN = [
    *("max-gap", "max-tree-idle", "max-idle", "drain", "speed", "order", "history", "fit"),
    *("context", "seed", "share-system", "on-error", "retry-busy", "failure-limit", "users"),
    *("duration", "requests", "sessions", "first-token-timeout", "next-token-timeout", "timing"),
    *("ramp", "warmup-duration", "warmup-calls", "start"),
]


@st.composite
def several(draw: st.DrawFn) -> dict[str, Any]:
    """Some options of `run` that a plan comes of, with values."""
    known = {key: each for name, key, each in options_with_values() if name == "run"}
    keys = draw(st.lists(st.sampled_from(PLAIN), unique=True, min_size=1))
    return {key: draw(known[key]) for key in keys}


@settings(max_examples=20)
@given(several())
def test_a_plan_is_the_same_by_file_and_by_flag(
    tmp_path_factory: pytest.TempPathFactory, said: dict[str, Any]
) -> None:
    """run.json holds one plan, or the same is refused, however the options are given."""
    folder = tmp_path_factory.mktemp("runs")
    trace, file = folder / "trace.jsonl", folder / "mine.toml"
    trace.write_bytes(b"".join(native.line(chain(n, 2)) for n in range(3)))
    lines = [f"{key} = {json.dumps(each)}\n" for key, each in said.items()]
    flags = [word for key, each in said.items() for word in given_by_flag(key, each)]
    plans: list[Any] = []
    for name, text, words in (("file", "".join(lines), []), ("flag", "", flags)):
        file.write_text(text)
        out = folder / name
        # Nobody listens there: the run ends at once, and its directory says what it would be.
        whole = ["--config", str(file), "run", str(trace), "--url", "http://127.0.0.1:9", *words]
        with pytest.raises((SystemExit, AgentReplayError)) as ended:
            cli.main([*whole, "--quiet", "--out", str(out)], standalone_mode=False)
        if ended.type is SystemExit:
            plan = orjson.loads((out / "run.json").read_bytes())["plan"]
            plans.append({**plan, "salt": None})
        else:
            plans.append(str(ended.value))
    event("refused" if isinstance(plans[0], str) else "planned")
    assert plans[0] == plans[1]


# What `config` tells


def told(*words: str, **variables: str) -> dict[str, Any]:
    """What `config --json` says of each option."""
    ended = agentreplay(*words, "--json", **variables)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = orjson.loads(ended.stdout)["options"]
    return found


def test_config_tells_values_and_where_they_come_from(tmp_path: Path) -> None:
    """Variable, file with its profile, scenario, default; as they would be given."""
    file = tmp_path / "mine.toml"
    file.write_text(
        'traces = ["a", "b"]\nmax-gap = "none"\nstrict = true\n[profile.x]\nscenario = "agentx"\n'
    )
    found = told("--config", str(file), "--profile", "x", "config", AGENTREPLAY_USERS="7")
    assert list(found) == list(options_of(cli.commands["run"]))
    assert found["traces"] == {"value": ["a", "b"], "from": str(file)}
    assert found["max-gap"] == {"value": "none", "from": str(file)}
    assert found["strict"] == {"value": True, "from": str(file)}
    assert found["scenario"] == {"value": "agentx", "from": f"{file}, profile x"}
    assert found["users"] == {"value": "7", "from": "AGENTREPLAY_USERS"}
    assert found["order"] == {"value": "recorded", "from": "scenario"}
    assert found["drain"] == {"value": "30s", "from": "default"}
    assert found["project"] == {"value": None, "from": "default"}


@pytest.mark.parametrize("name", cli.commands)
def test_config_knows_every_command(name: str) -> None:
    """All options of each, with its own defaults."""
    assert list(told("config", name)) == list(options_of(cli.commands[name]))


def test_config_prints_a_table(tmp_path: Path) -> None:
    """Option, value and where it is from, a line each."""
    file = tmp_path / "mine.toml"
    file.write_text('url = ["http://a", "http://b"]\n')
    lines = agentreplay("--config", file, "config", "run").stdout.splitlines()
    assert lines[0].split() == ["option", "value", "from"]
    assert next(line.split() for line in lines if line.startswith("drain ")) == [
        *("drain", "30s", "default")
    ]
    at = next(number for number, line in enumerate(lines) if line.startswith("url "))
    assert "http://a" in lines[at]
    assert lines[at + 1].strip() == "http://b"


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_config_tells_no_secret(tmp_path: Path, form: tuple[str, ...]) -> None:
    """Keys, headers, passwords and keys in addresses and bodies are masked."""
    file = tmp_path / "mine.toml"
    file.write_text(
        f'api-key = "{SECRET}"\nheader = ["X-Mine: {SECRET}"]\n'
        f'url = ["me:{SECRET}@host:8000", "https://me:{SECRET}@host/v1?api_key={SECRET}"]\n'
        f'body = \'{{"key": "{SECRET}", "top_k": 3}}\'\n'
    )
    ended = agentreplay("--config", file, "config", *form)
    assert ended.returncode == 0, ended.stderr
    assert "X-Mine: ***" in ended.stdout
    assert "host:8000" in ended.stdout
    assert "top_k" in ended.stdout
    assert SECRET not in ended.stdout + ended.stderr
    assert SECRET not in agentreplay("config", OPENAI_API_KEY=SECRET).stdout


def test_config_refuses_what_the_command_would(tmp_path: Path) -> None:
    """A variable that the option can't read, and a command that isn't there: exit code 2."""
    ended = agentreplay("config", AGENTREPLAY_DURATION="3x")
    assert ended.returncode == 2
    assert "is no duration" in ended.stderr
    assert agentreplay("config", "walk").returncode == 2


def test_the_page_shows_a_file_that_is_right(tmp_path: Path) -> None:
    """docs/config.md: its example can be read, with both profiles."""
    page = (ROOT / "docs" / "config.md").read_text()
    found = re.search(r"```toml\n(.+?)```", page, re.DOTALL)
    assert found
    file = tmp_path / "page.toml"
    file.write_text(found[1])
    staging = read(cli.commands, file, "staging")["run"]
    assert staging["duration"].value == "10m"
    assert staging["urls"].where == f"{file}, profile staging"
    assert read(cli.commands, file, "agentx")["run"]["max_gap"].value == "none"
