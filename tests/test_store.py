"""The run directory: nothing that was recorded is lost, and every number can be made again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from records import record

from agentreplay.errors import AgentReplayError
from agentreplay.metrics.record import Failure, Record
from agentreplay.metrics.summary import ClientHealth, summarize
from agentreplay.metrics.verdict import Limits
from agentreplay.metrics.window import Ending
from agentreplay.plan import Plan
from agentreplay.store import RunWriter, read_run

PLAN = Plan(users=3, duration_s=10, seed=7, salt=2**62 + 1)
LIMITS = Limits(error_rate=0.5)
MANIFEST = {"plan": asdict(PLAN), "limits": asdict(LIMITS)}
ENDING = Ending("duration", 10_000_000_000, 11_000_000_000)
HEALTH = ClientHealth(0.001, 0.004, (0.25,))
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
