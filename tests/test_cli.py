"""The command as a user runs it: real processes, real sockets, exit codes and what is printed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from command import BUSY_MACHINE, agentreplay
from scripted import Answer, Request, ScriptedServer, c, cut, done, err, fin, reset, role, usage
from shared_data import WEKA, needs_shared
from virtually import chain

from agentreplay.trace.formats import native

ROOT = Path(__file__).parents[1]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Thirty short sessions."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(native.line(chain(n, 4, gap_s=0.05)) for n in range(30)))
    return path


def against(answer: Callable[[Request], Answer | None], *arguments: str | Path) -> Any:
    """Run the command against a scripted server; returns the finished process."""

    async def main() -> subprocess.CompletedProcess[str]:
        async with ScriptedServer(answer) as server:
            command = [*map(str, arguments), "--url", server.url]
            return await asyncio.to_thread(agentreplay, *command)

    return asyncio.run(main())


def good(request: Request) -> Answer:
    """A whole answer of as many tokens as were asked for, counted as a bare template would."""
    asked = orjson.loads(request.body)
    words = sum(len(message["content"].split()) for message in asked["messages"])
    n = asked["max_tokens"]
    script = [(0, role()), *((0, c(1)) for _ in range(n)), (0, fin())]
    return Answer(script=[*script, (0, usage(words, n)), (0, done())])


def is_calibration(request: Request) -> bool:
    return bool(orjson.loads(request.body)["max_tokens"] == 1)


def test_a_run_reports_and_ends_with_zero(trace: Path, tmp_path: Path) -> None:
    """A working endpoint: the report, the verdict, exit code 0, and the run directory."""
    out = tmp_path / "out"
    ended = against(
        lambda r: good(r) if r.method == "POST" else None,
        "run",
        trace,
        "--sessions",
        "4",
        "--out",
        out,
        *BUSY_MACHINE,
    )
    assert ended.returncode == 0, ended.stderr
    assert "P90 interactivity" in ended.stdout
    assert "Verdict: valid" in ended.stdout
    assert ended.stdout.splitlines()[-2:] == [
        f"To look at: {out / 'report.html'}",
        f"{out} · exit 0: valid",
    ]
    assert {path.name for path in out.iterdir()} == {
        "run.json",
        "records.jsonl",
        "server.jsonl",
        "end.json",
        "summary.json",
        "report.html",
    }


def test_json_is_the_summary_and_nothing_else(trace: Path, tmp_path: Path) -> None:
    """With --json standard output is the content of summary.json; `report` gives it again."""
    out = tmp_path / "out"
    ended = against(
        lambda r: good(r) if r.method == "POST" else None,
        "run",
        trace,
        "--requests",
        "8",
        "--out",
        out,
        "--json",
    )
    value = orjson.loads(ended.stdout)
    assert value == orjson.loads((out / "summary.json").read_bytes())
    assert value["metrics"]["requests"]["succeeded"] == 8
    assert orjson.loads(agentreplay("report", out, "--json").stdout) == value


FAILING: list[tuple[str, Callable[[], Answer], str]] = [
    ("auth", lambda: Answer(status=401, body=b'{"error":"Unauthorized"}'), "401: Unauthorized"),
    (
        "http_4xx",
        lambda: Answer(status=404, body=b'{"error":{"message":"no model x","code":404}}'),
        "404: no model x",
    ),
    ("http_5xx", lambda: Answer(status=500, body=b"Internal Server Error"), "500: Internal"),
    (
        "error_event",
        lambda: Answer(script=[(0, role()), (0, c(1)), (0, err("engine is busy")), (0, done())]),
        "engine is busy",
    ),
    ("truncated", lambda: Answer(script=[(0, role()), (0, c(1)), (0, done())]), "finish_reason"),
    ("truncated", lambda: Answer(script=[(0, role()), (0, c(1)), (0, cut())]), "closed"),
    ("reset", lambda: Answer(script=[(0, role()), (0, c(1)), (5, reset())]), "reset"),
    (
        "bad_stream",
        lambda: Answer(headers={"content-type": "application/json"}, body=b'{"choices":[]}'),
        "no event stream",
    ),
]


@pytest.mark.parametrize(("kind", "answer", "words"), FAILING)
def test_a_failing_endpoint_is_named_in_the_report_and_the_exit_code(
    trace: Path, tmp_path: Path, kind: str, answer: Callable[[], Answer], words: str
) -> None:
    """Every request fails: exit code 4, the kind counted, the cause in words, no traceback."""
    out = tmp_path / "out"
    ended = against(lambda r: answer() if r.method == "POST" else None, "run", trace, "--out", out)
    assert ended.returncode == 4
    assert "Traceback" not in ended.stderr + ended.stdout
    assert words in ended.stdout.splitlines()[-1]
    value = orjson.loads((out / "summary.json").read_bytes())
    assert set(value["metrics"]["errors"]) == {kind}
    assert value["metrics"]["requests"]["succeeded"] == 0
    assert value["metrics"]["ttft"]["p50"] is None


def test_an_endpoint_that_fails_after_calibration_is_given_up(trace: Path, tmp_path: Path) -> None:
    """A server that answers four probes and then only errors ends the run after twenty calls."""
    out = tmp_path / "out"

    def answer(request: Request) -> Answer | None:
        if request.method != "POST":
            return None
        return good(request) if is_calibration(request) else Answer(status=500, body=b"boom")

    ended = against(answer, "run", trace, "--users", "30", "--duration", "10m", "--out", out)
    assert ended.returncode == 4
    value = orjson.loads((out / "summary.json").read_bytes())
    assert value["ended"] == "gave_up"
    assert value["metrics"]["requests"]["failed"] >= 20


def test_a_refused_connection_ends_at_once(trace: Path, tmp_path: Path) -> None:
    """Nothing listens: exit code 4 and the cause in the last line; the record stays on disk."""
    out = tmp_path / "out"
    ended = agentreplay("run", trace, "--url", "http://127.0.0.1:9", "--out", out)
    assert ended.returncode == 4
    assert "Connection refused" in ended.stdout.splitlines()[-1]
    assert b"Connection refused" in (out / "records.jsonl").read_bytes()


def test_some_failures_make_a_run_invalid(trace: Path, tmp_path: Path) -> None:
    """One session of twenty fails: exit code 3 with the share, and 0 when that much is allowed."""

    served = 0

    def every_tenth(request: Request) -> Answer | None:
        nonlocal served
        if request.method != "POST" or is_calibration(request):
            return good(request) if request.method == "POST" else None
        served += 1
        return Answer(status=503, body=b"overloaded") if served % 10 == 0 else good(request)

    arguments = ("run", trace, "--sessions", "20", *BUSY_MACHINE, "--out")
    ended = against(every_tenth, *arguments, tmp_path / "strict")
    assert ended.returncode == 3
    assert "error_rate" in ended.stdout.splitlines()[-1]
    allowed = against(every_tenth, *arguments, tmp_path / "lenient", "--allow", "error_rate=50%")
    assert allowed.returncode == 0


RECORDED = ("--timing", "recorded", "--users", "2")

BAD: list[tuple[list[str], int, str]] = [
    (["run", "missing"], 2, "missing: no such file or folder"),
    (["run", "empty"], 2, "empty: no trace files"),
    (["run", "unknown.json"], 2, "no known trace format"),
    (["run", "broken.json"], 2, "broken JSON"),
    (["run", "text.txt"], 2, "it is no JSON"),
    (["run", "trace.jsonl", "--duration", "20"], 2, "write it with a unit"),
    (["run", "trace.jsonl", "--users", "0"], 2, "--users"),
    (["run", "trace.jsonl", "--url", "ftp://host"], 2, "is no address"),
    (["run", "trace.jsonl", "--header", "novalue"], 2, "'Name: value'"),
    (["run", "trace.jsonl", "--body", "[1]"], 2, "JSON object"),
    (["run", "trace.jsonl", "--allow", "luck=1"], 2, "no such limit"),
    (["run", "trace.jsonl", "--timing", "recorded"], 2, "give --users"),
    (["run", "trace.jsonl", "--start", "middle"], 2, "write beginning, spread or spread:25%-75%"),
    (["run", "trace.jsonl", "--start", "spread:75%-25%"], 2, "is no start"),
    (["run", "trace.jsonl", "--start", "spread", "--ramp", "5s"], 2, "--ramp excludes"),
    (["run", "trace.jsonl", "--warmup-calls", "2", "--ramp", "5s"], 2, "--ramp excludes"),
    (["run", "trace.jsonl", "--start", "spread", *RECORDED], 2, "need --timing think or none"),
    (["run", "trace.jsonl", "--warmup-limit", "5s"], 2, "needs --start spread or --warmup-calls"),
    (["run", "trace.jsonl", "--max-idle", "5s", "--timing", "none"], 2, "need --timing think"),
    (["run", "trace.jsonl", "--max-tree-idle", "5s", *RECORDED], 2, "need --timing think"),
    (["run", "trace.jsonl", "--failure-limit", "120%"], 2, "is no share"),
    (["run", "trace.jsonl", "--override"], 2, "--override needs --scenario"),
    (["run", "trace.jsonl", "--scenario", "agenty"], 2, "--scenario"),
    (["run"], 2, "PATHS"),
    (["inspect", "unknown.json"], 2, "no known trace format"),
    (["report", "empty"], 2, "no run directory"),
    (["synth", "3", "--calls", "9-3"], 2, "is no range"),
    (["walk"], 2, "No such command"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), BAD)
def test_what_the_user_can_mend_is_one_clear_line(
    trace: Path, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    """Bad input: one line on standard error that says what, where and what to do."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "unknown.json").write_text('{"hello": 1}')
    (tmp_path / "broken.json").write_text('{"requests": [')
    (tmp_path / "text.txt").write_text("hello")
    ended = subprocess.run(
        [sys.executable, "-m", "agentreplay", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == code
    assert words in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert not ended.stdout


def test_a_broken_file_is_named_and_skipped(trace: Path, tmp_path: Path) -> None:
    """One broken file of three: the others are read, and the broken one is named; --strict errs."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a.jsonl", "c.jsonl"):
        (folder / name).write_bytes(native.line(chain(1, 2)))
    (folder / "b.json").write_text('{"requests": [')
    value = orjson.loads(agentreplay("inspect", folder, "--json").stdout)
    assert value["sessions"] == 2
    assert list(value["skipped"]) == [str(folder / "b.json")]
    strict = agentreplay("inspect", folder, "--strict")
    assert strict.returncode == 2
    assert "b.json" in strict.stderr


def test_inspect_shows_what_a_trace_holds(trace: Path) -> None:
    """Counts and reuse as a table and as JSON; what was not recorded is null."""
    value = orjson.loads(agentreplay("inspect", trace, "--json").stdout)
    assert value["sessions"] == 30
    assert value["calls"] == 120
    assert value["subagents"] == 0
    assert value["cached_tokens"] is None
    assert value["input_tokens"] == 30 * (640 + 704 + 768 + 832)
    assert value["output_tokens"] == 1200
    assert value["prefix_reuse"] == pytest.approx((640 + 704 + 768) / (640 + 704 + 768 + 832))
    assert value["recorded_seconds"] == pytest.approx(30 * (3 * 1.05 + 1))
    table = agentreplay("inspect", trace).stdout
    assert "Prefix reuse" in table
    assert "71.7 %" in table


@needs_shared
def test_inspect_reads_the_recorded_sessions() -> None:
    """The shared sessions: 75, with 6,740 calls and 96.2 % reuse by tokens."""
    value = orjson.loads(agentreplay("inspect", WEKA, "--json").stdout)
    assert (value["sessions"], value["calls"]) == (75, 6740)
    assert value["prefix_reuse"] == pytest.approx(0.9621, abs=5e-5)


def test_synth_writes_what_run_and_inspect_read(tmp_path: Path) -> None:
    """Synthesised sessions are in the native format."""
    path = tmp_path / "made.jsonl"
    assert agentreplay("synth", "3", "--calls", "5-9", "--out", path).returncode == 0
    value = orjson.loads(agentreplay("inspect", path, "--json").stdout)
    assert value["sessions"] == 3
    assert value["calls"] >= 15


def test_the_embedded_server_is_named_first(trace: Path, tmp_path: Path) -> None:
    """Whatever a run against the simulated server prints begins by saying so."""
    ended = agentreplay("run", trace, "--requests", "4", *BUSY_MACHINE, "--out", tmp_path / "out")
    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert ended.stdout.startswith("SIMULATED SERVER (demo)")
    assert ended.stderr.startswith("SIMULATED SERVER (demo)")
    again = agentreplay("report", tmp_path / "out")
    assert again.stdout.startswith("SIMULATED SERVER (demo)")


def test_a_saturated_server_shows(trace: Path, tmp_path: Path) -> None:
    """Against the slow profile sixteen users are served more slowly than one."""

    def interactivity(users: int) -> float:
        ended = agentreplay(
            "run",
            trace,
            "--sim",
            "slow",
            "--users",
            str(users),
            "--sessions",
            str(users),
            "--timing",
            "none",
            "--json",
            "--out",
            tmp_path / str(users),
        )
        value: float = orjson.loads(ended.stdout)["metrics"]["ttft"]["p90"]
        return value

    assert interactivity(16) > interactivity(1)


@needs_shared
def test_recorded_sessions_run_in_little_memory(tmp_path: Path) -> None:
    """Eight users over 40 copies of the shared sessions stay under 300 MB."""
    for n in range(40):
        (tmp_path / "copies" / str(n)).mkdir(parents=True)
        for file in WEKA.glob("*.json"):
            (tmp_path / "copies" / str(n) / f"{file.stem}-{n}.json").symlink_to(file)
    # In a process between, since one is counted what its parent had when it started.
    between = (
        "import resource, subprocess, sys\n"
        "silent = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL}\n"
        "done = subprocess.run(sys.argv[1:], **silent)\n"
        "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
    )
    run = "-m agentreplay run --users 8 --duration 8s --drain 30s --max-gap 1s".split()
    folders = [str(tmp_path / "copies"), "--out", str(tmp_path / "out")]
    printed = subprocess.run(
        [sys.executable, "-c", between, sys.executable, *run, *folders],
        stdout=subprocess.PIPE,
        check=True,
    )
    code, most_kb = map(int, printed.stdout.split())
    assert code in (0, 3)  # 3 where this machine was too busy to measure
    assert most_kb < 300 * 1024
    value = orjson.loads((tmp_path / "out" / "summary.json").read_bytes())
    assert value["metrics"]["requests"]["failed"] == 0
    assert value["trace"]["sessions"] == 3000
