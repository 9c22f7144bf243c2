"""Named scenarios: what they set, what contradicts them, and what a run under one says."""

from __future__ import annotations

import re
from pathlib import Path

import click
import orjson
import pytest
from command import BUSY_MACHINE, agentreplay
from virtually import chain

from agentreplay.cli import cli
from agentreplay.job import limits_of, overrides_of
from agentreplay.metrics.verdict import Limits
from agentreplay.scenario import SCENARIOS, Scenario
from agentreplay.trace.formats import native

ROOT = Path(__file__).parents[1]
TRACES = ROOT / "traces"
PAGE = (ROOT / "docs" / "scenarios.md").read_text()
PINNED = "hf://owner/name@1234"

EACH = pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))


def parsed(*words: str) -> click.Context:
    """`agentreplay run` with all its options parsed, and nothing run."""
    return cli.commands["run"].make_context("run", list(words))


def differs(scenario: Scenario, *words: str, sessions: int = 14) -> tuple[str, ...]:
    """What of *words* the scenario rules out."""
    context = parsed(PINNED, "--scenario", scenario.name, *words)
    return overrides_of(context, scenario, True, sessions)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Six short sessions."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(native.line(chain(n, 4, gap_s=0.05)) for n in range(6)))
    return path


@EACH
def test_a_scenario_alone_contradicts_nothing(scenario: Scenario) -> None:
    """Its own values are no contradiction, given or not."""
    rules = {**scenario.options, **scenario.defaults}
    given = [word for name, text in rules.items() for word in (f"--{name}", text)]
    allowed = [word for each in scenario.limits.items() for word in ("--allow", "=".join(each))]
    assert differs(scenario) == ()
    assert differs(scenario, *given, *allowed) == ()


@EACH
def test_values_of_a_scenario_are_parsed_as_if_given(scenario: Scenario) -> None:
    """Each option has the value that it has where the scenario's text is given."""
    rules = {**scenario.options, **scenario.defaults}
    given = [word for name, text in rules.items() for word in (f"--{name}", text)]
    filled = parsed("traces", "--scenario", scenario.name).params
    typed = parsed("traces", *given).params
    assert {**filled, "scenario": None} == typed


OTHER = {
    "order": "causal",
    "timing": "none",
    "speed": "2",
    "max-gap": "10s",
    "max-tree-idle": "7s",
    "max-idle": "9s",
    "start": "spread:20%-80%",
    "warmup-calls": "3",
    "warmup-duration": "1s",
    "ramp": "1s",
    "history": "live",
    "share-system": "play",
    "session-header": "X-Other",
    "on-error": "continue",
    "failure-limit": "20%",
    "seed": "7",
}


@pytest.mark.parametrize(
    ("name", "option"), [(s.name, option) for s in SCENARIOS.values() for option in s.options]
)
def test_another_value_of_a_locked_option_contradicts(name: str, option: str) -> None:
    """One line that says what was given and what the scenario has."""
    scenario = SCENARIOS[name]
    (found,) = differs(scenario, f"--{option}", OTHER[option])
    given, _, wanted = found.partition(": ")
    assert wanted == f"{name} has --{option} {scenario.options[option]}"
    assert differs(scenario, *given.split()) == (found,)  # as it would be given


EXCLUDED = {"retry-busy": [], "since": ["7d"], "until": ["2026-01-01"], "project": ["x"]}
EXCLUDED |= {"recorded-model": ["x"], "duration": ["20m"], "failure-limit": ["10%"]}


@pytest.mark.parametrize(
    ("name", "option"), [(s.name, option) for s in SCENARIOS.values() for option in s.without]
)
def test_an_excluded_option_contradicts(name: str, option: str) -> None:
    """Whatever its value."""
    given = [f"--{option}", *EXCLUDED.get(option, ["5"])]
    assert differs(SCENARIOS[name], *given) == (f"--{option}: {name} has none",)


@pytest.mark.parametrize(
    "given",
    [
        ["--max-idle", "10000ms"],
        ["--max-tree-idle", "5m"],
        ["--duration", "15min"],
        ["--duration", "2h"],
        ["--start", "spread:0.25-0.75"],
        ["--speed", "1.0"],
        ["--failure-limit", "0.1"],
        ["--allow", "error_rate=0.1", "--allow", "coverage=0.98"],
        ["--allow", "loop_late_share=50%"],
        ["--users", "64", "--warmup-limit", "1m", "--context", "9000", "--fit", "drop-calls"],
    ],
)
def test_equal_values_and_open_options_contradict_nothing(given: list[str]) -> None:
    """Values are compared as they are read; what the scenario doesn't set is free."""
    assert differs(SCENARIOS["agentx"], *given) == ()


def test_a_limit_of_the_scenario_is_kept() -> None:
    """--allow of one that it sets contradicts it, the last one counting; of others not."""
    assert differs(
        SCENARIOS["agentx"],
        *("--allow", "error_rate=10%", "--allow", "error_rate=20%", "--allow", "osl_error=9%"),
    ) == ("--allow error_rate=20%: agentx has error_rate=10%",)


@pytest.mark.parametrize(("name", "default_s"), [("agentx", 3600.0), ("agentx-mvp", 1800.0)])
def test_a_duration_has_a_default_and_a_least(name: str, default_s: float) -> None:
    """Left out it is the scenario's; 900 s is enough, less contradicts."""
    scenario = SCENARIOS[name]
    assert parsed("traces", "--scenario", name).params["duration"] == default_s
    assert differs(scenario, "--duration", "900s") == ()
    assert differs(scenario, "--duration", "899s") == (
        f"--duration 899s: {name} has --duration 900s or more",
    )


def test_only_pinned_sets_join_the_public_curve() -> None:
    """For agentx-mvp every path without a revision of a published set contradicts."""
    context = parsed(
        *("traces", PINNED, "hf://owner/name", "--scenario", "agentx-mvp"),
    )
    found = overrides_of(context, SCENARIOS["agentx-mvp"], True, 1)
    assert [line.partition(": ")[0] for line in found] == ["traces", "hf:/owner/name"]
    assert differs(SCENARIOS["agentx-mvp"]) == ()


def test_a_flag_goes_before_the_environment_before_the_scenario_before_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The order of precedence; a contradiction in the environment is one too."""
    assert parsed("traces").params["order"] == "causal"
    words = ("traces", "--scenario", "agentx")
    assert parsed(*words).params["order"] == "recorded"
    monkeypatch.setenv("AGENTREPLAY_ORDER", "serial")
    context = parsed(*words)
    assert context.params["order"] == "serial"
    assert overrides_of(context, SCENARIOS["agentx"], True, 1) == (
        "--order serial (AGENTREPLAY_ORDER): agentx has --order recorded",
    )
    context = parsed(*words, "--order", "recorded")
    assert overrides_of(context, SCENARIOS["agentx"], True, 1) == ()


def test_limits_are_the_scenarios_then_those_allowed() -> None:
    """Limits that it doesn't set stay; a shorter window than its least is held to itself."""
    agentx = SCENARIOS["agentx"]
    assert limits_of(("osl_error=9%",), agentx, 3600.0) == Limits(
        error_rate=0.1, coverage=0.98, window_s=900.0, usage_missing=0.0, osl_error=0.09
    )
    assert limits_of((), agentx, 20.0).window_s == 20.0
    assert limits_of(("coverage=0%",), agentx, 20.0).coverage == 0.0
    assert limits_of((), SCENARIOS["mlperf-agentic"]) == Limits()


def test_all_contradictions_are_told_together(trace: Path) -> None:
    """One error with a line for each, exit code 2, and the way out; nothing is run."""
    ended = agentreplay(
        *("run", trace, "--scenario", "agentx-mvp", "--order", "causal", "--duration", "60s"),
        *("--max-idle", "10000ms", "--sessions", "4", "--allow", "error_rate=5%"),
    )
    assert ended.returncode == 2
    assert not ended.stdout
    first, *lines = ended.stderr.splitlines()
    assert first.startswith("agentreplay: this is not agentx-mvp 1 (--override")
    assert lines == [
        "  --order causal: agentx-mvp has --order recorded",
        "  --duration 60s: agentx-mvp has --duration 900s or more",
        "  --sessions: agentx-mvp has none",
        "  --allow error_rate=5%: agentx-mvp has error_rate=100%",
        f"  {trace}: agentx-mvp replays published sets only, written as hf://OWNER/NAME@REVISION",
    ]


@pytest.mark.parametrize("name", ["agentx", "agentx-mvp"])
def test_a_smoke_run_is_invalid_by_its_override_only(tmp_path: Path, name: str) -> None:
    """A few seconds under the scenario: all its values reach the plan, and the differences are
    the one reason against it. (So short a window is covered by luck only.)"""
    out, traces = tmp_path / "out", TRACES / "laptop.jsonl"
    ended = agentreplay(
        *("run", traces, "--scenario", name, "--override", "--duration", "6s", "--users", "3"),
        *("--warmup-limit", "4s", "--allow", "coverage=0%", *BUSY_MACHINE, "--out", out),
    )
    assert ended.returncode == 3, ended.stderr + ended.stdout
    differences = [
        f"--duration 6s: {name} has --duration 900s or more",
        f"--allow coverage=0%: {name} has coverage=98%",
    ]
    if name == "agentx-mvp":
        differences.append(
            f"{traces}: {name} replays published sets only, written as hf://OWNER/NAME@REVISION"
        )
    value = orjson.loads((out / "summary.json").read_bytes())
    reasons = value["verdict"]["reasons"]
    assert [(reason["id"], reason["text"]) for reason in reasons] == [
        ("scenario_override", "; ".join(differences))
    ]
    line = f"{name} 1 · traces sha256 {value['verdict']['trace_sha256']}"
    assert line in ended.stdout.splitlines()
    assert line in agentreplay("report", out).stdout.splitlines()
    manifest = orjson.loads((out / "run.json").read_bytes())
    plan, limits = manifest["plan"], manifest["limits"]
    assert plan["scenario"] == f"{name} 1"
    assert plan["overrides"] == differences
    assert plan["start"] == ([0.25, 0.75] if name == "agentx" else [0.0, 1.0])
    assert plan["warmup_calls"] == (10 if name == "agentx" else 0)
    assert plan["max_tree_idle_s"] == (300.0 if name == "agentx" else None)
    assert plan["failure_limit"] == (0.1 if name == "agentx" else None)
    assert (plan["order"], plan["max_gap_s"], plan["max_idle_s"]) == ("recorded", None, 10.0)
    assert (plan["duration_s"], plan["warmup_limit_s"], limits["window_s"]) == (6.0, 4.0, 6.0)
    assert value["warmup"]["calls"] > 0


def test_one_pass_of_mlperf_is_valid(trace: Path, tmp_path: Path) -> None:
    """The whole set once, without an option more; the report names scenario and traces."""
    out = tmp_path / "out"
    ended = agentreplay(
        *("run", trace, "--scenario", "mlperf-agentic", "--users", "3", "--out", out),
        *BUSY_MACHINE,
    )
    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert re.search(r"^mlperf-agentic 1 · traces sha256 [0-9a-f]{64}$", ended.stdout, re.MULTILINE)
    value = orjson.loads((out / "summary.json").read_bytes())
    assert value["metrics"]["sessions"]["completed"] == 6
    plan = value["plan"]
    assert (plan["sessions"], plan["duration_s"], plan["order"]) == (6, None, "serial")
    assert plan["share_system"] == "pass"


def test_mlperf_plays_the_set_once_or_more() -> None:
    """Fewer sessions than the set has contradict, as many and more don't."""
    scenario = SCENARIOS["mlperf-agentic"]
    assert differs(scenario, "--sessions", "13") == (
        "--sessions 13: mlperf-agentic plays the whole set, 14 sessions, or more",
    )
    assert differs(scenario, "--sessions", "14") == differs(scenario, "--sessions", "28") == ()


def test_a_run_without_a_scenario_names_none(trace: Path, tmp_path: Path) -> None:
    """No hash stands under its verdict."""
    ended = agentreplay("run", trace, "--requests", "4", *BUSY_MACHINE, "--out", tmp_path / "out")
    assert ended.returncode == 0
    assert "sha256" not in ended.stdout


@EACH
def test_scenarios_are_shown_as_options_to_copy(scenario: Scenario) -> None:
    """Each value and limit is printed as it would be given, and gives the scenario again."""
    ended = agentreplay("scenarios", scenario.name)
    assert ended.returncode == 0
    title, *lines = ended.stdout.splitlines()
    assert title.rstrip() == f"{scenario.title}: {scenario.about}"
    rules = [re.split(r"\s{2,}", line.strip()) for line in lines]
    given = [
        word
        for option, binds in rules
        if not binds.startswith(("not", "form")) and option != "--sessions N"
        for word in option.split()
    ]
    assert len(given) >= 2 * len(scenario.options)
    assert differs(scenario, *given) == ()
    typed = parsed("traces", *given).params
    filled = parsed("traces", "--scenario", scenario.name).params
    assert {**typed, "allow": ()} == {**filled, "scenario": None}
    assert {option for option, binds in rules if binds == "not to be given"} == {
        f"--{name}" for name in scenario.without
    }


def test_scenarios_are_listed_and_come_as_json() -> None:
    """All of them without a name; as JSON with every value; an unknown name is one line."""
    shown = agentreplay("scenarios").stdout
    value = orjson.loads(agentreplay("scenarios", "--json").stdout)
    assert list(value) == list(SCENARIOS)
    for name, scenario in SCENARIOS.items():
        assert f"{scenario.title}: " in shown
        assert value[name]["options"] == scenario.options
        assert value[name]["limits"] == scenario.limits
    assert list(orjson.loads(agentreplay("scenarios", "agentx", "--json").stdout)) == ["agentx"]
    unknown = agentreplay("scenarios", "agenty")
    assert unknown.returncode == 2
    assert len(unknown.stderr.splitlines()) == 1


def documented() -> dict[tuple[str, str], str]:
    """What the page says of each option and limit, by scenario."""
    found = {}
    for row in re.findall(r"^\| (?!---)(.+) \|$", PAGE, re.MULTILINE):
        first, *cells = row.split(" | ")
        if first in ("option", "limit of the verdict"):
            continue
        for name in re.findall(r"`-*([\w-]+)`", first) or [first]:
            for scenario, cell in zip(SCENARIOS, cells, strict=True):
                found[scenario, name] = cell
    return found


@EACH
def test_the_page_has_every_value(scenario: Scenario) -> None:
    """The tables of docs/scenarios.md say what the scenario says, and nothing more."""
    expected = {name: f"`{text}`" for name, text in scenario.options.items()}
    expected |= {name: f"`{text}` unless given" for name, text in scenario.defaults.items()}
    for name, text in scenario.least.items():
        expected[name] += f"; `{text}` at least"
    expected |= {name: f"`{text}`" for name, text in scenario.limits.items()}
    expected |= dict.fromkeys(scenario.without, "not to be given")
    if scenario.whole_passes:
        expected["sessions"] = "as many as the set has unless given; as many at least"
    expected["paths"] = "`hf://OWNER/NAME@REVISION`" if scenario.pinned else "any"
    said = {name: cell for (whose, name), cell in documented().items() if whose == scenario.name}
    assert {name: cell for name, cell in said.items() if cell != "open"} == expected
