"""The command in a shell: pipes, terminals, completion, and a help that comes at once."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from command import BUSY_MACHINE, agentreplay
from virtually import chain

from agentreplay.cli import cli
from agentreplay.config import options_of
from agentreplay.options import SECTIONS
from agentreplay.trace.formats import native

ROOT = Path(__file__).parents[1]
RUN = [sys.executable, "-m", "agentreplay"]
HEAVY = {"asyncio", "ctypes", "ssl", "sqlite3", "tomllib"}
"""What of the standard library takes its time, or brings much along."""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Six short sessions."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(native.line(chain(n, 4, gap_s=0.05)) for n in range(6)))
    return path


# Help


@pytest.mark.parametrize("words", [[], *([name] for name in cli.commands)])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    """Help comes at once, since what a command needs is imported when it runs: of other packages
    there is click alone."""
    program = (
        "import sys\n"
        "before = {*sys.modules}\n"
        "from agentreplay.cli import main\n"
        "main(sys.argv[1:])\n"
        "sys.stderr.write(' '.join({*sys.modules} - before))\n"
    )
    command = [sys.executable, "-c", program, *words, "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.startswith("Usage: ")
    imported = {name.partition(".")[0] for name in ended.stderr.split()}
    assert imported - sys.stdlib_module_names == {"agentreplay", "click"}
    assert not HEAVY & imported


def test_help_of_run_is_by_purpose() -> None:
    """Each option stands in one section, and the sections in their order."""
    printed = agentreplay("run", "--help").stdout
    titles = re.findall(r"^(\w[\w -]*):$", printed, re.MULTILINE)
    assert tuple(titles) == SECTIONS
    parts = dict(
        zip(titles, re.split(r"^\w[\w -]*:$", printed, flags=re.MULTILINE)[1:], strict=True)
    )
    listed = [key for part in parts.values() for key in re.findall(r"^  --([\w-]+)", part, re.M)]
    assert sorted(listed) == sorted({*options_of(cli.commands["run"])} - {"traces"})
    for section, key in (
        *(("Traces", "since"), ("Endpoint", "api-key"), ("Load", "users"), ("Load", "seed")),
        *(("Warm-up", "start"), ("Timing", "max-gap"), ("Limits and errors", "allow")),
        *(("Scenario", "override"), ("Output", "json")),
    ):
        assert f"--{key}" in parts[section], key


# Output


def test_quiet_leaves_the_report_only(trace: Path, tmp_path: Path) -> None:
    """Without it standard error has a banner; with it, nothing, and the report is all there."""
    words = ("run", trace, "--requests", "2", *BUSY_MACHINE)
    loud = agentreplay(*words, "--out", tmp_path / "loud")
    quiet = agentreplay(*words, "--out", tmp_path / "quiet", "--quiet")
    assert "SIMULATED SERVER" in loud.stderr
    assert quiet.stderr == ""
    assert quiet.stdout.startswith("SIMULATED SERVER")
    assert quiet.stdout.splitlines()[-1] == f"{tmp_path / 'quiet'} · exit 0: valid"
    again = agentreplay(*words, "--out", tmp_path / "quiet", "--quiet")
    assert again.stderr.startswith(f"agentreplay: {tmp_path / 'quiet'} holds a run already")


def test_quiet_with_json_leaves_the_last_line(trace: Path, tmp_path: Path) -> None:
    """Standard output is the value, and standard error says how it ended."""
    ended = agentreplay(
        *("run", trace, "--requests", "2", *BUSY_MACHINE, "--quiet", "--json"),
        *("--out", tmp_path / "out"),
    )
    assert orjson.loads(ended.stdout)["verdict"]["valid"]
    assert ended.stderr == f"{tmp_path / 'out'} · exit 0: valid\n"


JSON = {
    "run": ["{trace}", "--requests", "2", "--out", "{new}"],
    "sweep": ["{trace}", "--users", "1,2", "--requests", "2", "--out", "{new}"],
    "report": ["{run}"],
    "cost": ["{run}", "--prices", "input=3,cached=0.3,output=15"],
    "curve": ["{run}"],
    "compare": ["{run}", "{run}"],
    "scenarios": [],
    "probe": ["http://127.0.0.1:9"],
    "inspect": ["{trace}", "{broken}"],
    "check": ["{trace}", "{broken}"],
    "config": [],
}
"""Words for each command that has --json; where it has any, with something to complain of."""


def test_json_is_known_of_every_command() -> None:
    """No command with --json is left out below."""
    assert sorted(JSON) == sorted(
        n for n, each in cli.commands.items() if "json" in options_of(each)
    )


@pytest.mark.parametrize("name", JSON)
def test_json_is_all_of_standard_output(name: str, trace: Path, tmp_path: Path) -> None:
    """One value for programs; banners, progress and last lines go to standard error."""
    broken = tmp_path / "broken.json"
    broken.write_text('{"requests": [')
    run = tmp_path / "run"
    if "{run}" in JSON[name]:
        agentreplay("run", trace, "--requests", "2", "--out", run)
    places = {"trace": trace, "broken": broken, "run": run, "new": tmp_path / "new"}
    ended = agentreplay(name, *(word.format(**places) for word in JSON[name]), "--json")
    assert isinstance(orjson.loads(ended.stdout), dict)
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("columns", ["60", "120", None])
def test_a_report_is_as_wide_as_columns_says(columns: str | None) -> None:
    """Where it goes to no terminal: COLUMNS, or 120."""
    environment = {name: each for name, each in os.environ.items() if name != "COLUMNS"}
    if columns:
        environment["COLUMNS"] = columns
    ended = subprocess.run(
        [*RUN, "config"],
        capture_output=True,
        text=True,
        env={**environment, "AGENTREPLAY_PROJECT": "x" * 300},
        check=True,
        timeout=60,
    )
    assert max(map(len, ended.stdout.splitlines())) == int(columns or 120)


COLOUR = re.compile(r"\x1b\[(?:[\d;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[\d;]*)?m")


def on_a_terminal(*words: str | Path, **variables: str) -> str:
    """All that a command shows on a terminal of its own."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", **variables}
    with subprocess.Popen(
        [*RUN, *map(str, words)], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ):
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 1 << 16):
                shown += piece
        except OSError:
            pass  # how the end of a terminal is told
    os.close(ours)
    return shown.decode()


def test_no_color_is_respected(trace: Path, tmp_path: Path) -> None:
    """On a terminal, banner, live line and report have colours; with NO_COLOR none of them has."""
    words = ("run", trace, "--requests", "2")
    environment = {"NO_COLOR": ""}  # empty is unset
    assert COLOUR.search(on_a_terminal(*words, "--out", tmp_path / "1", **environment))
    shown = on_a_terminal(*words, "--out", tmp_path / "2", NO_COLOR="1")
    assert "P90 interactivity" in shown
    assert not COLOUR.search(shown)


# Pipes


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["run", "--help"],
        ["inspect", "{trace}"],
        ["inspect", "{trace}", "--json"],
        ["convert", "{trace}"],
        ["synth", "3"],
        ["completion", "zsh"],
        ["run", "{trace}", "--requests", "2", "--out", "{out}"],
    ],
    ids=" ".join,
)
def test_a_reader_that_goes_away_ends_a_command_quietly(
    words: list[str], trace: Path, tmp_path: Path
) -> None:
    """As in `| head`: the code of a program that SIGPIPE ended, and no word of it."""
    theirs, ours = os.pipe()
    os.close(theirs)
    ended = subprocess.run(
        [*RUN, *(word.format(trace=trace, out=tmp_path / "out") for word in words)],
        stdout=ours,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    os.close(ours)
    assert ended.returncode == 141
    assert not re.search("Traceback|Broken|agentreplay:", ended.stderr)


def test_a_run_that_nobody_looks_at_goes_on(trace: Path, tmp_path: Path) -> None:
    """Standard error that nobody reads is no reason to lose a run."""
    theirs, ours = os.pipe()
    os.close(theirs)
    out = tmp_path / "out"
    ended = subprocess.run(
        [*RUN, "run", str(trace), "--requests", "2", *BUSY_MACHINE, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=ours,
        text=True,
        timeout=60,
    )
    os.close(ours)
    assert ended.returncode == 0
    assert (out / "summary.json").exists()


# Completion


def test_bash_completes(tmp_path: Path) -> None:
    """The script, read by a real bash, completes commands, options and values."""
    script = agentreplay("completion", "bash")
    assert script.returncode == 0, script.stderr
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "agentreplay").write_text(f'#!/bin/sh\nexec {sys.executable} -m agentreplay "$@"\n')
    (folder / "agentreplay").chmod(0o755)
    lines = [script.stdout]
    for words in ("insp", "run --sce", "run --order ser", "--prof"):
        split = ["agentreplay", *words.split()]
        lines.append(
            f"COMP_WORDS=({' '.join(split)}); COMP_CWORD={len(split) - 1}; COMPREPLY=()\n"
            'eval "$(complete -p agentreplay | sed "s/.*-F \\([^ ]*\\).*/\\1/")" agentreplay\n'
            'echo "${COMPREPLY[@]}"\n'
        )
    ended = subprocess.run(
        ["bash", "--norc", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        timeout=60,
    )
    assert ended.stdout.splitlines() == ["inspect", "--scenario", "serial", "--profile"]


@pytest.mark.parametrize(("shell", "wanted"), [("zsh", "--scenario"), ("fish", "--scenario")])
def test_other_shells_are_answered(shell: str, wanted: str) -> None:
    """The script asks by a variable, and what it asks is answered."""
    script = agentreplay("completion", shell).stdout
    assert f"_AGENTREPLAY_COMPLETE={shell}_complete" in script
    words = {"zsh": "agentreplay run --sce", "fish": "agentreplay run"}[shell]
    cword = {"zsh": "2", "fish": "--sce"}[shell]
    asked = {"_AGENTREPLAY_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": cword}
    assert wanted in agentreplay(**asked).stdout


def test_completion_reads_no_file(tmp_path: Path) -> None:
    """A file with errors is no reason not to complete."""
    file = tmp_path / "wrong.toml"
    file.write_text("usres = 3\n")
    asked = {"COMP_WORDS": "agentreplay run --sce", "COMP_CWORD": "2"}
    ended = agentreplay(
        _AGENTREPLAY_COMPLETE="bash_complete", AGENTREPLAY_CONFIG=str(file), **asked
    )
    assert ended.stdout == "plain,--scenario\n"
