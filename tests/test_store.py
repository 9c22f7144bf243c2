"""The run directory: nothing that was recorded is lost, and every number can be made again."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from records import record
from rich.console import Console

from agentreplay.errors import EXIT_INVALID, EXIT_UNUSABLE, AgentReplayError
from agentreplay.metrics.record import Failure, Record
from agentreplay.metrics.summary import ClientHealth, ClockStep, summarize
from agentreplay.metrics.verdict import Limits
from agentreplay.metrics.window import Ending, Window
from agentreplay.outcome import Result, conclude, exit_code
from agentreplay.plan import Plan
from agentreplay.report.text import report
from agentreplay.store import RunWriter, read_run

PLAN = Plan(users=3, duration_s=10, seed=7, salt=2**62 + 1)
LIMITS = Limits(error_rate=0.5)
MANIFEST = {"plan": asdict(PLAN), "limits": asdict(LIMITS)}
ENDING = Ending("duration", 10_000_000_000, 11_000_000_000)
STEP = ClockStep(5, 7, -2_000_000)
HEALTH = ClientHealth(0.001, 0.004, (0.25,), "mixed", 0.002, (STEP,))
RECORDS = [
    record([100, 250, 400], recorded_s=1.5, cached=3),
    record([100, 200], [1, 9], call=1, isl_served=None),
    record([], call=2, error=Failure("http_5xx", 500, "broken «…»")),
]


def write(path: Path, records: list[Record]) -> None:
    with RunWriter(path, MANIFEST) as writer:
        for row in records:
            writer.append(row)
        writer.end(ENDING, HEALTH, {"notes": {"a": {"b": 1}}})


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    """Plan, limits, records, ending and health come back equal."""
    write(tmp_path / "run", RECORDS)
    run = read_run(tmp_path / "run")
    assert (run.plan, run.limits, run.ending, run.health) == (PLAN, LIMITS, ENDING, HEALTH)
    assert list(run.records()) == RECORDS
    assert run.facts == {"notes": {"a": {"b": 1}}}


def test_a_summary_is_the_same_from_disk(tmp_path: Path) -> None:
    """What `report` computes is what the run computed."""
    write(tmp_path / "run", RECORDS)
    assert read_run(tmp_path / "run").summary() == summarize(RECORDS, PLAN, ENDING, HEALTH, LIMITS)


def test_a_run_of_a_version_that_knew_no_stamps_is_read(tmp_path: Path) -> None:
    """Where nothing is said of who stamped what arrived, it isn't known."""
    write(tmp_path / "run", RECORDS)
    end = tmp_path / "run" / "end.json"
    value = orjson.loads(end.read_bytes())
    for name in ("stamps", "read_delay_max_s", "clock_steps"):
        del value["client"][name]
    end.write_bytes(orjson.dumps(value))
    assert read_run(tmp_path / "run").health == ClientHealth(0.001, 0.004, (0.25,))


def test_a_run_that_was_killed_still_reports(tmp_path: Path) -> None:
    """Without an end and with half a last line, the whole lines count, marked interrupted."""
    writer = RunWriter(tmp_path / "run", MANIFEST)
    for row in RECORDS:
        writer.append(row)
    writer.close()
    with (tmp_path / "run" / "records.jsonl").open("ab") as file:
        file.write(b'{"request":{"lane":0,"vis')
    run = read_run(tmp_path / "run")
    assert run.ending is None
    assert list(run.records()) == RECORDS
    assert "interrupted" in [reason.id for reason in run.summary().verdict.reasons]


def test_records_are_on_disk_after_a_flush(tmp_path: Path) -> None:
    """What was flushed survives the process."""
    writer = RunWriter(tmp_path / "run", MANIFEST)
    writer.append(RECORDS[0])
    writer.flush()
    assert list(read_run(tmp_path / "run").records()) == RECORDS[:1]
    writer.close()


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    """A directory that holds a run is refused, and the run stays."""
    write(tmp_path / "run", RECORDS)
    with pytest.raises(AgentReplayError, match="holds a run already"):
        RunWriter(tmp_path / "run", MANIFEST)
    assert list(read_run(tmp_path / "run").records()) == RECORDS


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (None, None, "no run directory"),
        ("run.json", "{", "broken JSON"),
        ("run.json", '{"version": 99}', "version 99"),
    ],
)
def test_what_is_no_run_is_said_in_words(
    tmp_path: Path, name: str | None, text: str | None, words: str
) -> None:
    """A folder that is no run directory, or of another version, is one clear error."""
    if name and text:
        (tmp_path / name).write_text(text)
    with pytest.raises(AgentReplayError, match=words):
        read_run(tmp_path)


# --- Runs that begin in the middle of sessions, and their end -------------------------------------

S = 1_000_000_000
WARM = replace(PLAN, start=(0.25, 0.75), warmup_calls=2, overrides=("users 9",), scenario="known")
MISSING = Failure("http_5xx", 500, "broken")
CUT = Failure("cancelled", None, "cut")


def manifest(plan: Plan) -> dict[str, Any]:
    """What run.json holds of a run that has begun."""
    return {
        "agentreplay": "1.0",
        "plan": asdict(plan),
        "limits": asdict(Limits()),
        "endpoint": {},
        "trace": {"paths": ["a.jsonl"], "sessions": 3},
    }


def killed(path: Path, rows: Sequence[Record], plan: Plan = WARM) -> Path:
    """A run directory that was left without an end."""
    with RunWriter(path, manifest(plan)) as writer:
        for row in rows:
            writer.append(row)
    return path


def ended(path: Path, ending: Ending, rows: Sequence[Record], plan: Plan = WARM) -> Path:
    """A run directory that was finished."""
    with RunWriter(path, manifest(plan)) as writer:
        for row in rows:
            writer.append(row)
        writer.end(ending, HEALTH, {})
    return path


@pytest.mark.parametrize("plan", [WARM, PLAN, replace(WARM, start=None, overrides=())])
def test_any_plan_is_read_back_equal(tmp_path: Path, plan: Plan) -> None:
    """Pairs and lists of it too, which JSON knows one kind of."""
    assert read_run(killed(tmp_path / "run", [], plan)).plan == plan


def test_how_a_warm_up_ended_is_read_back(tmp_path: Path) -> None:
    """When the window opened, and what was cut or moved."""
    ending = Ending("failures", 9 * S, 11 * S, 3 * S, moved_back=2, warmup_cut=5)
    assert read_run(ended(tmp_path / "run", ending, [])).ending == ending


WARMED = [
    record([1000], warmup=True, isl_served=640),
    record([2000], sent_ms=1000, warmup=True, call=1),
]


@pytest.mark.parametrize(("lead_s", "opened_s"), [(0.0, 2.0), (1.5, 3.5)])
def test_a_killed_run_is_measured_from_its_first_ordinary_call(
    tmp_path: Path, lead_s: float, opened_s: float
) -> None:
    """That was due when the window opened, or as much before it as the plan sends ordinary calls
    unmeasured; records are in order of their ends."""
    rows = [
        *WARMED,
        record([4500], sent_ms=4001, due_ms=4000, call=3, calls=4, first=2),
        record([5000], sent_ms=2003, due_ms=2000, call=2, calls=4, first=2),
    ]
    plan = replace(WARM, warmup_s=lead_s)
    found = read_run(killed(tmp_path / "run", rows, plan)).summary()
    assert (found.window.open_ns, found.window.close_ns) == (round(opened_s * S), 5 * S)
    assert found.metrics["requests"]["attempted"] == 2 - (lead_s > 0)
    assert found.metrics["requests"]["warmup"] == 2 + (lead_s > 0)


def test_a_run_that_was_killed_in_its_warm_up_measured_nothing(tmp_path: Path) -> None:
    """It still reports what the warm-up came to, and is not called unusable: calls succeeded."""
    found = conclude(killed(tmp_path / "run", WARMED))
    assert found.summary.warmup is not None
    assert (found.summary.warmup.calls, found.summary.warmup.succeeded) == (2, 2)
    assert found.summary.warmup.seconds == 2.0
    assert found.summary.metrics["requests"]["attempted"] == 0
    assert found.summary.metrics["output_token_rate"] is None
    code, words = exit_code(found)
    assert code == EXIT_INVALID
    assert "interrupted: " in words
    assert "nothing_measured: " in words
    assert "interrupted" in shown(found)


def shown(result: Result) -> str:
    """The report of a run for the terminal."""
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(report(result.value))
    return console.export_text()


FAILED = Ending("warmup_failed", S, S, None)


@pytest.mark.parametrize(
    ("rows", "ending", "code", "words"),
    [
        pytest.param(
            [*WARMED, record([], warmup=True, call=2, error=MISSING)],
            FAILED,
            EXIT_INVALID,
            "invalid: warmup_failed: a call of the main agent failed in the warm-up: "
            "http_5xx: broken",
            id="some of the warm-up succeeded",
        ),
        pytest.param(
            [
                record([], warmup=True, error=MISSING),
                record([], warmup=True, call=1, error=CUT),
            ],
            FAILED,
            EXIT_UNUSABLE,
            "nothing succeeded: http_5xx: broken",
            id="nothing succeeded",
        ),
        pytest.param(
            [record([], warmup=True, call=1, error=CUT)],
            Ending("gave_up", S, S, None),
            EXIT_UNUSABLE,
            "nothing succeeded",
            id="all was cut",
        ),
        pytest.param([], FAILED, EXIT_UNUSABLE, "nothing succeeded", id="nothing was sent"),
        pytest.param(
            [record([], warmup=True, agent="a", error=CUT), record([], call=3, error=MISSING)],
            Ending("gave_up", S, S, 0),
            EXIT_UNUSABLE,
            "nothing succeeded: http_5xx: broken",
            id="only calls after the warm-up failed",
        ),
    ],
)
def test_a_failed_warm_up_has_its_exit_code(
    tmp_path: Path, rows: list[Record], ending: Ending, code: int, words: str
) -> None:
    """Invalid where any call had succeeded, so that the endpoint works; unusable where none had."""
    plan = replace(WARM, overrides=())
    assert exit_code(conclude(ended(tmp_path / "run", ending, rows, plan))) == (code, words)


def test_a_warm_up_alone_makes_no_run_valid(tmp_path: Path) -> None:
    """The warm-up succeeded and then every call failed: invalid, with the share that failed."""
    rows = [*WARMED, record([], sent_ms=2000, call=3, error=MISSING)]
    ending = Ending("failures", 3 * S, 3 * S, 2 * S)
    code, words = exit_code(conclude(ended(tmp_path / "run", ending, rows)))
    assert code == EXIT_INVALID
    assert "nothing_measured: none of 1 requests succeeded" in words
    assert "error_rate: 100.0%" in words


# --- Runs of older versions -----------------------------------------------------------------------

NEW_IN_PLANS = (
    *("max_tree_idle_s", "max_idle_s", "start", "warmup_calls", "warmup_s", "warmup_limit_s"),
    *("failure_limit", "share_system", "scenario", "overrides"),
)
NEW_IN_LIMITS = ("usage_missing", "dropped_tokens", "coverage", "window_s")
NEW_IN_ENDINGS = ("opened_ns", "moved_back", "warmup_cut")
NEW_IN_REQUESTS = ("warmup", "first", "tree_skip_s", "idle_skip_s")


def test_a_run_of_an_older_version_is_read(tmp_path: Path) -> None:
    """Without the fields of rules that came later it is read as one that didn't use them; its
    window opened when the ramp ended. It reports."""
    plan = replace(PLAN, ramp_s=2.0)
    rows = [record([1500], sent_ms=1000), record([4000], sent_ms=3000, call=1)]
    whole = conclude(ended(tmp_path / "new", replace(ENDING, opened_ns=2 * S), rows, plan))
    old = tmp_path / "old"
    old.mkdir()
    held = orjson.loads((tmp_path / "new" / "run.json").read_bytes())
    for name in NEW_IN_PLANS:
        del held["plan"][name]
    for name in NEW_IN_LIMITS:
        del held["limits"][name]
    (old / "run.json").write_bytes(orjson.dumps(held))
    held = orjson.loads((tmp_path / "new" / "end.json").read_bytes())
    for name in NEW_IN_ENDINGS:
        del held["ending"][name]
    (old / "end.json").write_bytes(orjson.dumps(held))
    lines = (tmp_path / "new" / "records.jsonl").read_bytes().splitlines()
    with (old / "records.jsonl").open("wb") as file:
        for line in lines:
            held = orjson.loads(line)
            for name in NEW_IN_REQUESTS:
                del held["request"][name]
            file.write(orjson.dumps(held) + b"\n")
    found = conclude(old)
    assert found.run.plan == plan
    assert found.summary == whole.summary
    assert found.value == whole.value
    assert found.summary.metrics["requests"]["warmup"] == 1
    assert shown(found) == shown(whole)


def test_a_killed_run_of_an_older_version_is_read(tmp_path: Path) -> None:
    """Its window opened when the ramp ended."""
    path = killed(tmp_path / "run", [record([4000], sent_ms=3000)], replace(PLAN, ramp_s=1.0))
    held = orjson.loads((path / "run.json").read_bytes())
    for name in NEW_IN_PLANS:
        del held["plan"][name]
    (path / "run.json").write_bytes(orjson.dumps(held))
    assert read_run(path).summary().window == Window(1 * S, 4 * S)
