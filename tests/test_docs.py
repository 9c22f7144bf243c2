"""The documents state what the code does."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest
import yaml
from records import record

import agentreplay
from agentreplay.cli import cli
from agentreplay.metrics.record import Failure, Record
from agentreplay.metrics.summary import PlayResult, Warmup, summarize
from agentreplay.metrics.verdict import LIMITED, Limits
from agentreplay.metrics.window import Ending
from agentreplay.plan import Plan
from agentreplay.report.definitions import DEFINITIONS
from agentreplay.trace.model import Call

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
METRICS = (ROOT / "docs" / "metrics.md").read_text()
TRACES = (ROOT / "docs" / "traces.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "traces" / "README.md"]

METRIC_VALUES = summarize([record([100, 200])], Plan(), Ending("work", 10**9, 10**9)).metrics

KINDS = re.findall(r"`(\w+)`", (Failure.__doc__ or "").partition("kind:")[2].partition(", or")[0])


def commands(text: str) -> list[list[str]]:
    """The command lines of a page that call agentreplay."""
    found = re.findall(r"^(?:\.venv/bin/)?agentreplay (.+)$", text, re.MULTILINE)
    found += re.findall(r"`agentreplay ([^`]+)`", text)
    return [line.partition(" > ")[0].replace('"', "").split() for line in found]


@pytest.mark.parametrize("name", cli.commands)
def test_every_command_is_documented(name: str) -> None:
    """README lists each command, and each has help of its own."""
    assert f"| `agentreplay {name}` |" in README
    assert cli.commands[name].help


@pytest.mark.parametrize("command", cli.commands.values(), ids=lambda command: str(command.name))
def test_every_option_has_help(command: click.Command) -> None:
    """No option without a word about it."""
    options = [param for param in command.params if isinstance(param, click.Option)]
    assert [option.name for option in options if not option.help] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_command_lines_in_the_documents_parse(page: Path) -> None:
    """Each command line that a page shows has known commands, options and values."""
    for words in commands(page.read_text()):
        while words[0] in ("--config", "--profile"):  # options before the command
            del words[:2]
        if len(words) == 1 or words[1] in ("DIR", "--help"):
            assert words[0] in cli.commands
            continue
        command = cli.commands[words[0]]
        command.make_context(words[0], [word for word in words[1:] if word != "…"])


@pytest.mark.parametrize("name", METRIC_VALUES)
def test_every_metric_is_defined(name: str) -> None:
    """Each id of summary.json stands in docs/metrics.md."""
    assert f"`{name}`" in METRICS


@pytest.mark.parametrize("name", METRIC_VALUES)
def test_definitions_are_those_of_the_document(name: str) -> None:
    """What pages say of a metric is what docs/metrics.md says of it, word for word."""
    rows = re.findall(r"^\| ((?:`\w+` ?)+)\| [^|]*\| (.+) \|$", METRICS, re.MULTILINE)
    meaning = next(text for ids, text in rows if f"`{name}`" in ids)
    plain = re.sub(r" \(\[\w+\]\(#\w+\)\)", "", meaning).replace("`", "")
    assert DEFINITIONS[name] == plain


def test_parts_of_metrics_are_defined() -> None:
    """So do the names inside ids that hold several numbers."""
    metrics = METRIC_VALUES
    for name in ("prefix_reuse", "requests", "sessions", "coverage", "concurrency", "client"):
        for part in metrics[name]:
            assert f"`{part}`" in METRICS, (name, part)


@pytest.mark.parametrize("name", [each.name for each in (*fields(PlayResult), *fields(Warmup))])
def test_every_result_beside_the_metrics_is_defined(name: str) -> None:
    """What summary.json says of plays and of the warm-up stands in docs/metrics.md."""
    assert f"`{name}`" in METRICS


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_failure_is_defined(kind: str) -> None:
    """Each kind stands in docs/metrics.md."""
    assert f"`{kind}`" in METRICS


@pytest.mark.parametrize("name", Limits.names())
def test_every_limit_is_defined(name: str) -> None:
    """What --allow can change stands in docs/metrics.md."""
    assert f"`{name}`" in METRICS


@pytest.mark.parametrize("name", Call._fields)
def test_every_field_of_the_native_format_is_defined(name: str) -> None:
    """Each field of a call stands in docs/traces.md."""
    assert f"`{name}`" in TRACES


@pytest.mark.parametrize(
    "name", ["first_token_ns", "first_visible_ns", "last_token_ns", "done_ns", "chunk_us"]
)
def test_recorded_events_are_defined(name: str) -> None:
    """The stamps of a record stand in docs/metrics.md."""
    assert name in Record.__dataclass_fields__
    assert f"`{name}`" in METRICS


@pytest.mark.parametrize("name", agentreplay.__all__)
def test_public_names_exist_and_say_what_they_are(name: str) -> None:
    """Each name of the library can be imported; what is a class or function has a docstring."""
    found = getattr(agentreplay, name)
    if callable(found):
        assert found.__doc__


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_the_command_of_each_ci_example_parses(name: str) -> None:
    """The whole job has a run with gates, JUnit and Markdown, by options that there are."""
    text = (ROOT / "examples" / name).read_text()
    (found,) = re.findall(r"^ +(?:- )?agentreplay (run (?:.+\n)(?: +--.+\n)+)", text, re.MULTILINE)
    _, *words = shlex.split(found)
    context = cli.commands["run"].make_context("run", words)
    assert [gate.metric for gate in context.params["gates"]] == [
        "interactivity.p90",
        "ttft.p95",
        "goodput",
    ]
    assert context.params["junit"] == Path("runs/ci/junit.xml")
    assert context.params["summary_md"] == Path("runs/ci/summary.md")


def test_the_kuberay_example_is_a_job_that_can_run() -> None:
    """Its command parses, finds its folders on the head, and has machines that play."""
    job = yaml.safe_load((ROOT / "examples" / "kuberay.yaml").read_text())["spec"]
    program, _, *words = shlex.split(job["entrypoint"])
    asked = cli.commands["run"].make_context("run", words).params
    assert (program, asked["ray"]) == ("agentreplay", "auto")
    assert yaml.safe_load(job["runtimeEnvYAML"]) == {"pip": ["agentreplay-loadgen"]}
    cluster = job["rayClusterSpec"]
    head = cluster["headGroupSpec"]["template"]["spec"]
    (players,) = cluster["workerGroupSpecs"]
    mounted = {each["name"]: each["mountPath"] for each in head["containers"][0]["volumeMounts"]}
    assert mounted.keys() == {each["name"] for each in head["volumes"]}
    assert [*map(str, asked["paths"]), str(asked["out"].parent)] == [*mounted.values()]
    machines = [*head["containers"], *players["template"]["spec"]["containers"]]
    assert {each["image"] for each in machines} == {f"rayproject/ray:{cluster['rayVersion']}-py311"}
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert players["minReplicas"] == players["replicas"] == players["maxReplicas"] > 1


@pytest.mark.parametrize("name", [*LIMITED])
def test_every_reason_with_a_limit_is_defined(name: str) -> None:
    """Each stands in docs/metrics.md, in one row with its limits."""
    verdict = METRICS.partition("## Verdict")[2].splitlines()
    row = next(line for line in verdict if line.startswith(f"| `{name}` | "))
    assert [limit for limit in LIMITED[name] if f"`{limit}`" not in row] == []


def test_links_between_pages_lead_somewhere() -> None:
    """Each relative link names a file that is there."""
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)


def test_the_library_example_runs() -> None:
    """examples/library.py works as it stands."""
    ended = subprocess.run(
        [sys.executable, "examples/library.py"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert "P90 interactivity" in ended.stdout
