"""--export: what the tools that read AIPerf's files make of ours, held against our own summary.

Rule: what they compute is written here in plain Python, from the files alone (docs/exports.md).
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from command import BUSY_MACHINE, agentreplay
from records import record
from scripted import Answer, Request, ScriptedServer, c, done, fin, role, usage
from shapes import ORIGIN_UNIX_NS, SHAPES, made
from virtually import chain

from agentreplay.errors import AgentReplayError
from agentreplay.metrics.record import Record
from agentreplay.metrics.window import Window
from agentreplay.plan import Plan
from agentreplay.report.aiperf import Export
from agentreplay.trace.formats import native

Row = dict[str, Any]
FOLDERS = {"inferencex": "aiperf_artifacts", "aiperf": "aiperf"}
TIMES = ("time_to_first_token", "inter_token_latency", "request_latency")


@dataclass(frozen=True)
class Exported:
    """A run directory with its export, read back."""

    rows: list[Row]
    aggregate: dict[str, Any]
    summary: dict[str, Any]
    records: list[dict[str, Any]]


def read(path: Path, folder: str = "aiperf_artifacts") -> Exported:
    lines = (path / folder / "profile_export.jsonl").read_text().splitlines()
    records = (path / "records.jsonl").read_text().splitlines(keepends=True)
    return Exported(
        [json.loads(line) for line in lines],
        json.loads((path / folder / "profile_export_aiperf.json").read_text()),
        json.loads((path / "summary.json").read_text()),
        [json.loads(line) for line in records if line.endswith("\n")],
    )


def percentile(values: list[float], p: float) -> float:
    """Linear interpolation between closest ranks."""
    ranked = sorted(values)
    at = (len(ranked) - 1) * p / 100
    low = int(at)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] * (1 - (at - low)) + ranked[high] * (at - low)


class Aggregation:
    """What InferenceX's aggregation computes of a result folder."""

    def __init__(self, found: Exported) -> None:
        self.rows = [
            row
            for row in found.rows
            if row["metadata"]["benchmark_phase"] == "profiling" and not row["error"]
        ]
        self._aggregate = found.aggregate

    def seconds(self, name: str) -> list[float]:
        values = [row["metrics"].get(name, {}).get("value", 0) for row in self.rows]
        return [value / 1000 for value in values if value > 0]

    def tokens(self, name: str) -> int:
        values: list[int] = [row["metrics"][name]["value"] for row in self.rows]
        return sum(values)

    @property
    def duration_s(self) -> float:
        ends = [row["metadata"]["request_end_ns"] for row in self.rows]
        starts = [row["metadata"]["request_start_ns"] for row in self.rows]
        return float(max(ends) - min(starts)) / 1e9

    @property
    def hit_rate(self) -> float:
        hit = self._aggregate["theoretical_prefix_cache_hit"]
        return float(hit["sum"] / hit["count"])


MEASURED = [name for name in SHAPES if name != "killed in its warm-up"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exported]:
    """Every shape of run, with its export."""
    folder = tmp_path_factory.mktemp("exports")
    return {
        name: read(made(shape, folder / name.replace(" ", "-"), ["inferencex"]))
        for name, shape in SHAPES.items()
    }


@pytest.mark.parametrize("name", MEASURED)
def test_inferencex_computes_our_figures(runs: dict[str, Exported], name: str) -> None:
    """P90 interactivity, token rates and hit rate by its formulas equal ours to six digits."""
    run, computed = runs[name], Aggregation(runs[name])
    ours = run.summary["metrics"]
    tokens_in = computed.tokens("input_sequence_length")
    tokens_out = computed.tokens("output_sequence_length")
    interactivity = 1 / percentile(computed.seconds("inter_token_latency"), 90)
    pairs = [
        (interactivity, ours["interactivity"]["p90"]),
        (tokens_in / computed.duration_s, ours["input_token_rate_run"]),
        (tokens_out / computed.duration_s, ours["output_token_rate_run"]),
        ((tokens_in + tokens_out) / computed.duration_s, ours["total_token_rate_run"]),
        (computed.hit_rate, ours["prefix_reuse"]["trace_blocks"]),
    ]
    for theirs, our in pairs:
        assert theirs == pytest.approx(our, rel=1e-6)
    for p in (50, 75, 90, 95):
        for metric, our_metric in zip(TIMES, ("ttft", "tpot", "latency"), strict=True):
            theirs = percentile(computed.seconds(metric), p)
            assert theirs == pytest.approx(ours[our_metric][f"p{p}"], rel=1e-6), metric


@pytest.mark.parametrize("name", MEASURED)
def test_the_aggregate_is_what_the_rows_come_to(runs: dict[str, Exported], name: str) -> None:
    """Each of its distributions, sums, counts and rates can be made of the measured rows."""
    run, computed = runs[name], Aggregation(runs[name])
    values: dict[str, list[float]] = {}
    for row in computed.rows:
        for metric, each in row["metrics"].items():
            values.setdefault(metric, []).append(each["value"])
    for metric, known in values.items():
        stated = run.aggregate[metric]
        mean = sum(known) / len(known)
        assert stated["count"] == len(known)
        assert stated["avg"] == pytest.approx(mean)
        assert stated["std"] == pytest.approx(
            (sum((value - mean) ** 2 for value in known) / len(known)) ** 0.5, abs=1e-9
        )
        assert (stated["min"], stated["max"]) == (min(known), max(known))
        for p in (1, 5, 10, 25, 50, 75, 90, 95, 99):
            assert stated[f"p{p}"] == pytest.approx(percentile(known, p))
    tokens_in, tokens_out = (
        computed.tokens(f"{which}_sequence_length") for which in ("input", "output")
    )
    errors = [
        row
        for row in run.rows
        if row["error"] and row["metadata"]["benchmark_phase"] == "profiling"
    ]
    numbers = {
        "request_count": len(computed.rows),
        "error_request_count": len(errors),
        "total_isl": tokens_in,
        "total_osl": tokens_out,
        "benchmark_duration": computed.duration_s,
        "request_throughput": len(computed.rows) / computed.duration_s,
        "output_token_throughput": tokens_out / computed.duration_s,
        "total_token_throughput": (tokens_in + tokens_out) / computed.duration_s,
    }
    for metric, number in numbers.items():
        assert run.aggregate[metric]["avg"] == pytest.approx(number), metric
    kinds = Counter((row["error"]["type"], row["error"]["code"]) for row in errors)
    assert kinds == {
        (group["error_details"]["type"], group["error_details"]["code"]): group["count"]
        for group in run.aggregate["error_summary"]
    }
    times = [datetime.fromisoformat(run.aggregate[f"{edge}_time"]) for edge in ("start", "end")]
    assert (times[1] - times[0]).total_seconds() == pytest.approx(computed.duration_s, abs=1e-5)


@pytest.mark.parametrize("name", SHAPES)
def test_every_request_is_a_row(runs: dict[str, Exported], name: str) -> None:
    """A row says of its record when, which and how; refusals that were waited out are none."""
    run, users = runs[name], SHAPES[name].plan.users
    records = [each for each in run.records if each["retry_s"] is None]
    assert len(run.rows) == len(records)
    for row, each in zip(run.rows, records, strict=True):
        request, error = each["request"], each["error"]
        play = f"0-{request['lane']}-{request['visit']}"
        opened_ns = round(run.summary["window"]["open_s"] * 1e9)
        early = request["warmup"] or each["sent_ns"] < opened_ns
        assert row["metadata"] == {
            "session_num": request["visit"] * users + request["lane"],
            "x_request_id": f"{play}-{request['call']}",
            "x_correlation_id": play,
            "conversation_id": request["session"],
            "turn_index": request["call"],
            "worker_id": "worker-0",
            "benchmark_phase": "warmup" if early else "profiling",
            "credit_issued_ns": ORIGIN_UNIX_NS + request["due_ns"],
            "request_start_ns": ORIGIN_UNIX_NS + each["sent_ns"],
            "request_end_ns": ORIGIN_UNIX_NS + each["done_ns"],
            "was_cancelled": error is not None and error["kind"] == "cancelled",
        }
        assert (row["error"] is None) == (error is None)
        assert (row["metrics"] == {}) == (error is not None)
    assert len({row["metadata"]["x_request_id"] for row in run.rows}) == len(run.rows)


@pytest.mark.parametrize("name", SHAPES)
def test_the_verdict_goes_along(runs: dict[str, Exported], name: str) -> None:
    """Whether a run counts, and why not, is ours; a run that was stopped is marked."""
    run = runs[name]
    verdict, judged = run.summary["verdict"], run.aggregate["metadata"]
    reasons = [reason["id"] for reason in verdict["reasons"]]
    assert judged["submission_valid"] is run.aggregate["submission_valid"] is verdict["valid"]
    assert judged["submission_invalid_reasons"] == reasons
    assert run.aggregate["submission_invalid_reasons"] == reasons
    assert run.aggregate["was_cancelled"] is ("interrupted" in reasons)
    assert judged["dataset"] == {"hash": verdict["trace_sha256"]}
    assert judged["simulated"] == "known"


def test_what_was_cut_is_an_error_and_cancelled(runs: dict[str, Exported]) -> None:
    """Requests in flight at an interruption are rows with an error of the kind `cancelled`."""
    cut = [row for row in runs["interrupted"].rows if row["metadata"]["was_cancelled"]]
    assert len(cut) == runs["interrupted"].summary["metrics"]["requests"]["cancelled"] > 0
    assert {row["error"]["type"] for row in cut} == {"cancelled"}
    assert all(row["metrics"] == {} for row in cut)


def test_after_the_window_lengths_count_and_times_do_not(runs: dict[str, Exported]) -> None:
    """Requests sent after the window closed carry their lengths, for the rates, and no times."""
    run = runs["uneven"]
    close_ns = ORIGIN_UNIX_NS + round(run.summary["window"]["seconds"] * 1e9)
    late = [row for row in run.rows if row["metadata"]["request_start_ns"] >= close_ns]
    assert len(late) == run.summary["after_window"] > 0
    for row in late:
        assert row["metadata"]["benchmark_phase"] == "profiling"
        assert row["metrics"].keys() & set(TIMES) == set()
        assert row["metrics"]["output_sequence_length"]["value"] > 0


def test_what_has_no_rate_has_no_inter_token_latency(runs: dict[str, Exported]) -> None:
    """Bursts and answers of one token carry TTFT and latency, and no time per token."""
    run = runs["short"]
    unpaced = 0
    for row, each in zip(run.rows, run.records, strict=True):
        paced = each["osl"] > 1 and not each["burst"]
        assert ("inter_token_latency" in row["metrics"]) == paced
        assert ("output_token_throughput_per_user" in row["metrics"]) == paced
        assert {"time_to_first_token", "request_latency"} <= row["metrics"].keys()
        unpaced += not paced
    assert unpaced > 0


def exported(*records: Record) -> list[Row]:
    return list(Export(Plan(users=2, salt=255), Window(0, 10**10), 10**18).rows(records))


def test_times_are_not_rounded() -> None:
    """Nanoseconds come through: of 1,234,567 ns a TTFT of 1.234567 ms is left."""
    row = record([2, 30, 61])
    [found] = exported(
        Record(
            **{
                **{name: getattr(row, name) for name in Record.__dataclass_fields__},
                "first_token_ns": 1_234_567,
                "last_token_ns": 61_000_001,
            }
        )
    )
    metrics = {name: each["value"] for name, each in found["metrics"].items()}
    assert metrics["time_to_first_token"] == pytest.approx(1.234567, rel=1e-12)
    assert metrics["request_latency"] == pytest.approx(61.000001, rel=1e-12)
    assert metrics["inter_token_latency"] == pytest.approx(29.882717, rel=1e-12)
    assert found["metadata"]["request_end_ns"] == 10**18 + 61_000_000


def test_without_usage_the_prompt_is_as_long_as_it_was_sent() -> None:
    """Where the server counts no input, the planned length and what exceeds it stand for it."""
    [found] = exported(record([1, 2, 3], isl=100, isl_served=None))
    assert found["metrics"]["input_sequence_length"] == {"value": 100, "unit": "tokens"}
    assert "usage_prompt_cache_read_tokens" not in found["metrics"]


def test_cached_tokens_go_along_where_the_server_counts_them() -> None:
    """Zero cached tokens are a count."""
    [found] = exported(record([1, 2, 3], cached=0))
    assert found["metrics"]["usage_prompt_cache_read_tokens"] == {"value": 0, "unit": "tokens"}


def test_a_run_without_its_time_of_day_is_not_exported() -> None:
    """Rows need the wall clock; where run.json lacks it, that is one clear error."""
    with pytest.raises(AgentReplayError, match="origin_unix_ns"):
        list(Export(Plan(), Window(0, 10**10), None).rows([record([1, 2])]))


def test_a_run_that_sent_nothing_has_an_export() -> None:
    """A run that was stopped before its clock began gives no row and no time."""
    assert list(Export(Plan(), Window(1, 1), None).rows([])) == []


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(native.line(chain(n, 4, gap_s=0.02)) for n in range(20)))
    return path


def is_complete(out: Path) -> Exported:
    """Both exports, which are the same, and have a row for each request."""
    found = read(out)
    for folder in FOLDERS.values():
        assert {path.name for path in (out / folder).iterdir()} == {
            "profile_export.jsonl",
            "profile_export_aiperf.json",
        }
        assert read(out, folder) == found
    assert len(found.rows) == len(found.records)
    return found


BOTH = ("--export", "inferencex", "--export", "aiperf")


def test_the_command_leaves_both(trace: Path, tmp_path: Path) -> None:
    """A run with --export leaves both folders, at the time of day at which it ran."""
    out, before_ns = tmp_path / "out", time.time_ns()
    ended = agentreplay(
        *("run", trace, "--sessions", "6", "--users", "3", "--out", out, *BOTH, *BUSY_MACHINE)
    )
    after_ns = time.time_ns()
    assert ended.returncode == 0, ended.stderr
    found = is_complete(out)
    assert len(found.rows) == 24
    assert found.aggregate["metadata"]["simulated"] == "demo"
    for row in found.rows:
        times = row["metadata"]
        assert before_ns < times["request_start_ns"] < times["request_end_ns"] < after_ns
    computed, ours = Aggregation(found), found.summary["metrics"]
    interactivity = 1 / percentile(computed.seconds("inter_token_latency"), 90)
    assert interactivity == pytest.approx(ours["interactivity"]["p90"], rel=1e-6)


def test_report_writes_it_later_and_the_same(trace: Path, tmp_path: Path) -> None:
    """`report --export` writes of a run directory what the run itself would have written."""
    out = tmp_path / "out"
    agentreplay("run", trace, "--sessions", "4", "--users", "2", "--out", out, *BOTH)
    found = is_complete(out)
    for folder in FOLDERS.values():
        shutil.rmtree(out / folder)
    assert agentreplay("report", out, "--export", "aiperf").stdout
    assert read(out, "aiperf") == found
    assert not (out / "aiperf_artifacts").exists()


def test_names_are_those_that_the_server_was_told(trace: Path, tmp_path: Path) -> None:
    """x_request_id and x_correlation_id are what X-Request-ID and X-Session-ID said."""
    told: set[tuple[str, str]] = set()

    def answer(request: Request) -> Answer | None:
        if request.method == "GET":
            return None
        if "x-session-id" in request.headers:
            told.add((request.headers["x-request-id"], request.headers["x-session-id"]))
        n = orjson.loads(request.body)["max_tokens"]
        events = [role(), *([c(1)] * n), fin(), usage(100, n), done()]
        return Answer(script=[(0, event) for event in events])

    async def main() -> None:
        async with ScriptedServer(answer) as server:
            await asyncio.to_thread(
                agentreplay,
                *("run", trace, "--url", server.url, "--sessions", "3", "--users", "1"),
                *("--out", tmp_path / "out", *BOTH),
            )

    asyncio.run(main())
    found = is_complete(tmp_path / "out")
    named = {
        (row["metadata"]["x_request_id"], row["metadata"]["x_correlation_id"]) for row in found.rows
    }
    assert len(named) == 12
    assert named <= told


def test_a_run_in_which_all_fails_is_exported(trace: Path, tmp_path: Path) -> None:
    """Rows of failures carry code, kind and words, and the exit code is that of the failure."""
    refused = Answer(status=500, body=b'{"error":{"message":"engine is dead"}}')

    async def main() -> subprocess.CompletedProcess[str]:
        async with ScriptedServer(lambda r: refused if r.method == "POST" else None) as server:
            return await asyncio.to_thread(
                agentreplay,
                *("run", trace, "--url", server.url, "--users", "2", "--out", tmp_path / "out"),
                *BOTH,
            )

    assert asyncio.run(main()).returncode == 4
    found = is_complete(tmp_path / "out")
    errors = [row["error"] for row in found.rows]
    assert errors
    assert all(each["code"] == 500 and each["type"] == "http_5xx" for each in errors)
    assert all("engine is dead" in each["message"] for each in errors)
    assert found.aggregate["request_count"]["avg"] == 0
    assert found.aggregate["error_request_count"]["avg"] == len(errors)
    assert "output_token_throughput" not in found.aggregate
    assert found.aggregate["start_time"] is None


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_run_that_is_ended_is_exported(
    trace: Path, tmp_path: Path, number: int, code: int
) -> None:
    """After a signal the run still exports; after a kill `report` does."""
    out = tmp_path / "out"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "agentreplay",
            "run",
            trace,
            "--duration",
            "5m",
            "--out",
            out,
            *BOTH,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ,
    )
    records = out / "records.jsonl"
    while not records.exists() or not records.stat().st_size:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(60) == code
    if number == signal.SIGKILL:
        assert agentreplay("report", out, *BOTH).returncode == 3
    found = is_complete(out)
    assert found.rows
    assert found.aggregate["was_cancelled"] is True
    assert found.aggregate["submission_valid"] is False
