"""`agentreplay sweep` as a user runs it, and what is made of its runs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import click
import orjson
import pytest
from command import BUSY_MACHINE, agentreplay
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scripted import Answer, Request, ScriptedServer, c, done, fin, role, usage
from virtually import chain

from agentreplay.commands.sweep import numbers
from agentreplay.errors import AgentReplayError
from agentreplay.report.sweep import RATE, SPEED, WAIT, Target, sweep_report, sweep_value, target
from agentreplay.sweep import Outcome, exit_code
from agentreplay.trace.formats import native

FAST = ("--duration", "1s", "--timing", "none", *BUSY_MACHINE)
"""Runs of a second without gaps."""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Sixty short sessions."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(native.line(chain(n, 8, gap_s=0.05)) for n in range(60)))
    return path


def good(request: Request) -> Answer | None:
    """A whole answer after 20 ms, counted as a bare template would."""
    if request.method != "POST":
        return None
    asked = orjson.loads(request.body)
    words = sum(len(message["content"].split()) for message in asked["messages"])
    n = asked["max_tokens"]
    script = [(20, role()), *((20 + 2 * i, c(1)) for i in range(n)), (20 + 2 * n, fin())]
    return Answer(script=[*script, (20 + 2 * n, usage(words, n)), (20 + 2 * n, done())])


Answering = Callable[[Request], Answer | None]


def against(
    answer: Answering, *arguments: str | Path, reset: str = ""
) -> tuple[subprocess.CompletedProcess[str], list[Request]]:
    """Sweep against a scripted server, *reset* being a path of it; also what it was asked."""

    async def main() -> tuple[subprocess.CompletedProcess[str], list[Request]]:
        async with ScriptedServer(answer) as server:
            command = ["sweep", *map(str, arguments), "--url", server.url, "--pause", "0s"]
            if reset:
                command += ["--reset-cache", server.url + reset]
            return await asyncio.to_thread(agentreplay, *command), server.requests

    return asyncio.run(main())


def sweep_of(out: Path) -> dict[str, Any]:
    value: dict[str, Any] = orjson.loads((out / "sweep.json").read_bytes())
    return value


def plan_of(run: Path) -> dict[str, Any]:
    plan: dict[str, Any] = orjson.loads((run / "run.json").read_bytes())["plan"]
    return plan


def test_a_curve_has_a_run_for_each_number_of_users(trace: Path, tmp_path: Path) -> None:
    """Each run has a directory; all have the same plan but for users and salt."""
    out = tmp_path / "out"
    ended, _ = against(good, trace, "--users", "1-4", "--gpus", "2", "--out", out, *FAST)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    plans = [plan_of(out / f"users-{users}") for users in (1, 2, 4)]
    assert [plan.pop("users") for plan in plans] == [1, 2, 4]
    assert len({plan.pop("salt") for plan in plans}) == 3
    assert plans[0] == plans[1] == plans[2]
    value = sweep_of(out)
    assert value["ended"] == "complete"
    assert [(run["directory"], run["valid"]) for run in value["runs"]] == [
        ("users-1", True),
        ("users-2", True),
        ("users-4", True),
    ]
    for run in value["runs"]:
        metrics = orjson.loads((out / run["directory"] / "summary.json").read_bytes())["metrics"]
        assert run["figures"][SPEED] == metrics["interactivity"]["p90"] > 0
        assert run["figures"][RATE] == metrics["total_token_rate"] > 0
        assert run["directory"] in ended.stderr
    assert "total tok/s/GPU" in ended.stdout
    assert ended.stdout.splitlines()[-1].startswith(f"{out} · exit 0: 3 of 3 points")


def test_every_run_is_held_against_the_gates(trace: Path, tmp_path: Path) -> None:
    """Those that miss one end the sweep with 1, and are named with it."""
    out, gates = tmp_path / "out", ("--gate", "requests.succeeded > 0", "--gate", "ttft.p50 > 1h")
    ended, _ = against(good, trace, "--users", "1,2", *gates, "--out", out, *FAST)
    assert ended.returncode == 1
    last = ended.stdout.splitlines()[-1]
    assert f"{out} · exit 1: gate missed: users-1: ttft.p50 > 1h (it is " in last
    assert "users-2: ttft.p50 > 1h" in last
    assert "requests.succeeded" not in last
    kept = orjson.loads((out / "users-2" / "summary.json").read_bytes())["gates"]
    assert [gate["passed"] for gate in kept] == [True, False]


def test_json_is_what_the_folder_holds(trace: Path, tmp_path: Path) -> None:
    """With --json standard output is the content of sweep.json, but for its version."""
    out = tmp_path / "out"
    ended, _ = against(good, trace, "--users", "2", "--out", out, "--json", *FAST)
    assert orjson.loads(ended.stdout) == {k: v for k, v in sweep_of(out).items() if k != "version"}
    assert ended.returncode == 0


def test_repeats_are_runs_of_their_own(trace: Path, tmp_path: Path) -> None:
    """Every number once, then all again; the point is the median of both."""
    out = tmp_path / "out"
    against(good, trace, "--users", "1,2", "--repeat", "2", "--out", out, *FAST)
    value = sweep_of(out)
    names = [run["directory"] for run in value["runs"]]
    assert names == ["users-1", "users-2", "users-1-2", "users-2-2"]
    two = [run["figures"][RATE] for run in value["runs"] if run["users"] == 2]
    assert value["points"][1]["figures"][RATE] == pytest.approx(sum(two) / 2)
    assert value["points"][1]["runs"] == ["users-2", "users-2-2"]


def test_finished_runs_stay_as_they_are(trace: Path, tmp_path: Path) -> None:
    """Called again with more users it makes only what is missing."""
    out = tmp_path / "out"
    agentreplay("sweep", trace, "--users", "1", "--out", out, *FAST)
    before = {path: path.stat().st_mtime_ns for path in out.glob("users-*/*")}
    ended = agentreplay("sweep", trace, "--users", "1,2", "--out", out, *FAST)
    assert ended.returncode == 0, ended.stdout
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [run["users"] for run in sweep_of(out)["runs"]] == [1, 2]
    assert (out / "users-2" / "end.json").exists()


def test_another_address_is_another_job(trace: Path, tmp_path: Path) -> None:
    """What was measured at one server is no part of another's curve."""
    out = tmp_path / "out"
    against(good, trace, "--users", "1", "--out", out, *FAST)
    ended, requests = against(good, trace, "--users", "1,2", "--out", out, *FAST)
    assert ended.returncode == 2
    assert "differs in urls" in ended.stderr
    assert not requests


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A trace, and the folder of a sweep over it that has one run."""
    folder = tmp_path_factory.mktemp("job")
    trace, out = folder / "trace.jsonl", folder / "out"
    trace.write_bytes(b"".join(native.line(chain(n, 8 + (n == 0), gap_s=0.05)) for n in range(60)))
    assert agentreplay("sweep", trace, "--users", "1", "--out", out, *FAST).returncode == 0
    return trace, out


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (("--seed", "7"), "seed (42 there)"),
        (("--allow", "error_rate=9%"), "error_rate (0.01 there)"),
        (("--sim", "slow"), "simulated (demo there)"),
        (("--min-calls", "9"), "its traces"),
    ],
    ids=["plan", "limits", "server", "traces"],
)
def test_a_folder_of_another_job_is_refused(
    job: tuple[Path, Path], other: Sequence[str], words: str
) -> None:
    """One line says in what it differs, and nothing is run."""
    trace, out = job
    ended = agentreplay("sweep", trace, "--users", "1,2", "--out", out, *FAST, *other)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "another job" in ended.stderr
    assert words in ended.stderr
    assert not (out / "users-2").exists()


def test_points_that_are_not_valid_are_listed_and_left_out(trace: Path, tmp_path: Path) -> None:
    """A server that fails for the fourth user and more: such runs are in no front; exit code 0
    while two points are left, and 3 when there are fewer."""

    def answer(request: Request) -> Answer | None:
        if request.method != "POST" or orjson.loads(request.body)["max_tokens"] == 1:
            return good(request)
        lane = int(request.headers["x-session-id"].split("-")[1])
        return Answer(status=503, body=b"overloaded") if lane >= 3 else good(request)

    out = tmp_path / "out"
    ended, _ = against(answer, trace, "--users", "1,2,5", "--out", out, *FAST)
    assert ended.returncode == 0, ended.stdout
    value = sweep_of(out)
    assert [each["name"] for each in value["left_out"]] == ["users-5"]
    assert "error_rate" in value["left_out"][0]["why"]
    assert 5 not in value["fronts"][0]["users"]
    assert "Left out: users-5: invalid: error_rate" in " ".join(ended.stdout.split())
    ended, _ = against(answer, trace, "--users", "1,5", "--out", tmp_path / "other", *FAST)
    assert ended.returncode == 3


def test_a_dead_endpoint_ends_the_sweep(trace: Path, tmp_path: Path) -> None:
    """Where nothing succeeds no other run is begun: exit code 4, with the cause."""
    out = tmp_path / "out"
    dead = ("--url", "http://127.0.0.1:9")
    ended = agentreplay("sweep", trace, "--users", "1,2,4", "--out", out, *dead)
    assert ended.returncode == 4
    assert "Connection refused" in ended.stdout.splitlines()[-1]
    assert [path.name for path in out.glob("users-*")] == ["users-1"]
    again = agentreplay("sweep", trace, "--users", "1,2,4", "--out", out, *dead)
    assert again.returncode == 4
    assert {path.name for path in out.glob("users-*")} == {"users-1", "users-1.unfinished"}


def test_the_cache_is_reset_between_runs(trace: Path, tmp_path: Path) -> None:
    """A POST before each run but the first; where it fails the sweep warns and goes on."""

    def answer(request: Request) -> Answer | None:
        if request.path == "/reset":
            return Answer(status=500, body=b"no such thing")
        return good(request)

    out = tmp_path / "out"
    ended, requests = against(
        answer, trace, "--users", "1,2,3", "--out", out, *FAST, reset="/reset"
    )
    assert ended.returncode == 0, ended.stdout
    assert [each.method for each in requests if each.path == "/reset"] == ["POST", "POST"]
    [warning] = sweep_of(out)["warnings"]
    assert warning.endswith("/reset: HTTP 500")
    assert "Warning: the cache was not reset" in ended.stdout


def test_the_key_goes_to_the_endpoint_only(trace: Path, tmp_path: Path) -> None:
    """A reset at the endpoint's own server has its key; one at another has not."""

    async def main() -> tuple[list[Request], list[Request]]:
        async with ScriptedServer(good) as server, ScriptedServer(lambda _: Answer()) as other:
            for number, where in enumerate((server, other)):
                reset = ["--reset-cache", f"{where.url}/reset", "--api-key", "sesame-open"]
                command = ["sweep", str(trace), "--users", "1,2", "--url", server.url, *FAST]
                command += ["--out", str(tmp_path / str(number)), "--pause", "0s", *reset]
                await asyncio.to_thread(agentreplay, *command)
            return server.requests, other.requests

    ours, theirs = asyncio.run(main())
    [at_ours] = [each for each in ours if each.path == "/reset"]
    assert at_ours.headers["authorization"] == "Bearer sesame-open"
    [at_theirs] = theirs
    assert "authorization" not in at_theirs.headers


def begun(trace: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "agentreplay", "sweep", str(trace), "--out", str(out)]
    return subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "120"},
    )


def wait_for(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    while not reached():
        assert process.poll() is None
        time.sleep(0.01)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_and_the_sweep(
    trace: Path, tmp_path: Path, number: int, code: int
) -> None:
    """What is done stays, the run that was going is reported as interrupted, and the same command
    makes it again."""
    out = tmp_path / "out"
    options = ("--users", "1,2,4", "--duration", "3s", "--timing", "none", *BUSY_MACHINE)
    process = begun(trace, out, *options)

    def second_runs() -> bool:
        records = out / "users-2" / "records.jsonl"
        return records.exists() and records.stat().st_size > 0

    wait_for(process, second_runs)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == code, stderr
    assert stdout.splitlines()[-1] == f"{out} · exit {code}: interrupted"
    value = sweep_of(out)
    assert value["ended"] == "interrupted"
    assert [(run["users"], run["valid"]) for run in value["runs"]] == [(1, True), (2, False)]
    assert not (out / "users-4").exists()
    first = (out / "users-1" / "records.jsonl").read_bytes()
    again = agentreplay("sweep", trace, "--out", out, *options)
    assert again.returncode == 0, again.stdout + again.stderr
    assert (out / "users-1" / "records.jsonl").read_bytes() == first
    assert [(r["directory"], r["valid"]) for r in sweep_of(out)["runs"]] == [
        ("users-1", True),
        ("users-2", True),
        ("users-4", True),
    ]
    assert (out / "users-2.unfinished" / "records.jsonl").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_between_runs(trace: Path, tmp_path: Path, number: int, code: int) -> None:
    """While it waits for the next run a signal ends the sweep at once, and it reports."""
    out = tmp_path / "out"
    process = begun(trace, out, "--users", "1,2", "--pause", "1h", *FAST)
    wait_for(process, lambda: (out / "sweep.json").exists() and bool(sweep_of(out)["runs"]))
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == code, stderr
    assert stdout.splitlines()[-1] == f"{out} · exit {code}: interrupted"
    assert sweep_of(out)["ended"] == "interrupted"
    assert not (out / "users-2").exists()


def test_the_most_users_are_found(trace: Path, tmp_path: Path) -> None:
    """Without gaps each user has one call in flight: at most three of them is three users; every
    run of the search is kept, and called again nothing is run."""
    out = tmp_path / "out"
    limit = "concurrency.in_flight_max <= 3"
    search = ("--find-max-users", "--limit", limit, "--step-requests", "10", "--gpus", "2")
    command = ("sweep", trace, *search, "--to", "8", "--out", out, *FAST)
    ended = agentreplay(*command)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    value = sweep_of(out)
    found = value["search"]
    assert (found["most_users"], found["missed_at"], found["settled"]) == (3, 4, True)
    assert found["most_users_per_gpu"] == 1.5
    assert "3 users at most with concurrency.in_flight_max <= 3: 1.50 a GPU" in ended.stdout
    assert {run["directory"] for run in value["runs"]} == {p.name for p in out.glob("users-*")}
    assert all(run["holds"] == (run["users"] <= 3) for run in value["runs"])
    before = {path: path.stat().st_mtime_ns for path in out.glob("users-*/*")}
    assert agentreplay(*command).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in out.glob("users-*/*")} == before
    assert sweep_of(out)["search"] == found


@pytest.mark.parametrize(
    ("gate", "code"), [("concurrency.in_flight_max <= 1", 0), ("concurrency.in_flight_max < 1", 1)]
)
def test_a_search_is_judged_by_its_answer(
    trace: Path, tmp_path: Path, gate: str, code: int
) -> None:
    """It also runs where its limits are missed; gates hold for the users that it found."""
    limit = "concurrency.in_flight_max <= 1"
    search = ("--find-max-users", "--limit", limit, "--to", "2", "--step-requests", "10")
    ended = agentreplay("sweep", trace, *search, "--gate", gate, "--out", tmp_path / "out", *FAST)
    assert ended.returncode == code, ended.stdout + ended.stderr
    value = sweep_of(tmp_path / "out")
    assert value["search"]["most_users"] == 1
    assert all(run["missed"] for run in value["runs"] if run["users"] == 2)
    assert ("gate missed: users-1: " in ended.stdout) == (code == 1)


def test_a_search_without_an_answer(trace: Path, tmp_path: Path) -> None:
    """Where one user misses a limit already: exit code 3."""
    search = ("--find-max-users", "--limit", "ttft.p95 < 1ms", "--step-requests", "10")
    ended = agentreplay("sweep", trace, *search, "--out", tmp_path / "out", *FAST)
    assert ended.returncode == 3
    assert "No number of users holds ttft.p95 < 1ms" in ended.stdout
    assert sweep_of(tmp_path / "out")["search"]["most_users"] == 0


BAD = [
    ([], "give numbers of users"),
    (["--users", "0"], "write numbers and ranges"),
    (["--users", "4:2"], "write numbers and ranges"),
    (["--users", "8-2"], "is no range"),
    (["--users", "1-8:1"], "is no range"),
    (["--users", "2", "--limit", "ttft.p95 < 1s"], "--limit needs --find-max-users"),
    (["--users", "2", "--at", "ttft.p95"], "write a figure that users see"),
    (["--users", "2", "--at", "error_rate=1%"], "write a figure that users see"),
    (["--users", "2", "--at", "ttft.p94=1s"], "there is ttft.p9"),
    (["--users", "2", "--reset-cache", "http://x"], "--reset-cache needs --url"),
    (["--users", "2", "--gate", "goodput > 90%"], "'goodput > 90%' needs --goodput"),
    (["--find-max-users", "--limit", "goodput > 90%"], "'goodput > 90%' needs --goodput"),
    (["--users", "2,9", "--sessions", "4"], "leave work for 4 users: 9 need more"),
    (["--find-max-users"], "needs --limit"),
    (["--find-max-users", "--limit", "ttft < 1s"], "no figure ttft"),
    (["--find-max-users", "--limit", "ttft.p95 < 1s", "--users", "2"], "chooses its runs itself"),
    (["--find-max-users", "--limit", "ttft.p95 < 1s", "--repeat", "2"], "chooses its runs itself"),
    (["--find-max-users", "--limit", "ttft.p95 < 1s", "--sessions", "9999"], "takes no --sessions"),
    (["--find-max-users", "--limit", "ttft.p95 < 1s", "--from", "9", "--to", "8"], "upwards"),
]


@pytest.mark.parametrize(("options", "words"), BAD)
def test_what_the_user_can_mend_is_one_line(trace: Path, options: list[str], words: str) -> None:
    """Bad input: exit code 2, one line, and nothing is run."""
    ended = agentreplay("sweep", trace, "--out", trace.parent / "out", *options)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert not (trace.parent / "out").exists()


@pytest.mark.parametrize(
    ("text", "users"),
    [
        ("8", [8]),
        ("4,1,2,2", [1, 2, 4]),
        ("1-16", [1, 2, 4, 8, 16]),
        ("3-20", [3, 6, 12, 20]),
        ("1-16:3", [1, 4, 16]),
        ("1-4:9", [1, 2, 3, 4]),
        ("5-5", [5]),
        ("1-4, 6", [1, 2, 4, 6]),
    ],
)
def test_numbers_of_users(text: str, users: list[int]) -> None:
    """Numbers and ranges: doubling, or with so many points."""
    context = click.Context(click.Command("sweep"))
    assert numbers(context, click.Option(["--users"]), text) == users


def run(users: int, speed: float | None, rate: float | None, wait: float, **more: Any) -> Any:
    """A run as sweep.json holds it."""
    figures = {SPEED: speed, RATE: rate, WAIT: wait, "output_token_rate": 1.0, "error_rate": 0.0}
    return {
        "directory": f"users-{users}",
        "users": users,
        "duration_s": 60.0,
        "simulated": None,
        "valid": True,
        "reasons": [],
        "requests": {"succeeded": 100},
        "measured": 100,
        "figures": figures,
        "failures": [],
        "missed": [],
        "passed_over": None,
        "holds": None,
        **more,
    }


RUNS = [
    run(1, 100.0, 1000.0, 0.1),
    run(2, 80.0, 1800.0, 0.2),
    run(4, 40.0, 3000.0, 1.0),
    run(8, 30.0, 2500.0, 4.0),  # worse in both than 4 users
]


def shown(value: dict[str, Any]) -> str:
    printed = StringIO()
    Console(width=160, file=printed).print(sweep_report(value))
    return printed.getvalue()


def test_the_value_at_a_target_names_its_neighbours() -> None:
    """On the line between the two points of the front next to it; for one GPU a half."""
    targets = [Target(SPEED, 50.0), Target(WAIT, 0.6)]
    value = sweep_value({}, RUNS, targets=targets, gpus=2)
    speed, wait = value["at"]
    assert speed["value"] == pytest.approx(3000 - 1200 * 10 / 40)
    assert speed["value_per_gpu"] == pytest.approx(1350)
    assert (speed["below"]["users"], speed["above"]["users"]) == (4, 2)
    assert wait["value"] == pytest.approx(2400)
    assert (wait["below"]["users"], wait["above"]["users"]) == (2, 4)
    assert (wait["below"]["x"], wait["above"]["x"]) == (0.2, 1.0)
    assert "2,700 tok/s in all, 1,350 a GPU (on the line between 4 users and 2 users)" in shown(
        value
    )


def test_nothing_is_read_outside_of_what_was_measured() -> None:
    """Null, and the report says what was measured; 30 tok/s/user lies on no front."""
    value = sweep_value({}, RUNS, targets=[Target(SPEED, 35.0), Target(SPEED, 101.0)])
    assert [each["value"] for each in value["at"]] == [None, None]
    assert value["at"][0]["measured"] == [40.0, 100.0]
    assert "outside of what was measured on the front (40 tok/s/user to 100 tok/s/user)" in shown(
        value
    )


def test_each_pair_of_axes_has_its_front() -> None:
    """A server that is slow for one user may answer it soonest: fronts differ."""
    runs = [*RUNS[:3], run(8, 30.0, 2500.0, 0.5)]
    value = sweep_value({}, runs, targets=[Target("ttft.p50", 1.0)])
    fronts = {each["x"]: each["users"] for each in value["fronts"]}
    assert fronts == {SPEED: [4, 2, 1], WAIT: [4, 8, 2, 1], "ttft.p50": []}


def test_a_point_is_the_median_of_its_valid_runs() -> None:
    """Of three runs the middle one; an invalid one counts nowhere, and is listed."""
    reasons = [{"id": "cut_short", "text": "9 % were cut"}]
    runs = [
        *(run(2, speed, 100.0, 0.1, directory=f"users-2-{speed}") for speed in (10.0, 30.0, 20.0)),
        run(2, 99.0, 999.0, 0.1, directory="bad", valid=False, reasons=reasons),
    ]
    value = sweep_value({}, runs)
    [point] = value["points"]
    assert point["figures"][SPEED] == 20.0
    assert "bad" not in point["runs"]
    assert value["left_out"] == [
        {"name": "bad", "users": 2, "why": "invalid: cut_short: 9 % were cut"}
    ]


def test_a_point_without_a_figure_is_listed() -> None:
    """A run too short for rates is valid, and in no front."""
    value = sweep_value({}, [*RUNS, run(16, 20.0, None, 9.0)])
    assert value["left_out"] == [
        {"name": "16 users", "users": 16, "why": "no total_token_rate was measured"}
    ]
    assert 16 not in value["fronts"][0]["users"]
    assert exit_code(Outcome(value, None))[0] == 0
    alone = sweep_value({}, [RUNS[0], run(16, 20.0, None, 9.0)])
    assert exit_code(Outcome(alone, None))[0] == 3


@given(
    st.lists(st.tuples(st.floats(0.1, 500), st.floats(1, 1e6), st.floats(0.001, 99)), max_size=9)
)
def test_any_sweep_can_be_shown(figures: list[tuple[float, float, float]]) -> None:
    """Whatever was measured: every point is in the table, and the plot holds each label."""
    runs = [run(n + 1, *each) for n, each in enumerate(figures)]
    value = sweep_value({}, runs, targets=[Target(SPEED, 50.0)], ended="complete")
    text = shown(value)
    for each in runs:
        assert f" {each['users']} " in text
    if runs:
        assert value["fronts"][0]["users"]


def test_steps_of_a_search_say_whether_limits_hold() -> None:
    """In the column of the verdict; a run that doesn't count says why."""
    runs = [
        run(1, 9.0, 9.0, 1.0, holds=True, passed_over="too few requests"),
        run(2, 9.0, 9.0, 1.0, holds=True),
        run(4, 9.0, 9.0, 1.0, holds=False),
    ]
    rows = shown(sweep_value({}, runs)).splitlines()[1:4]
    assert [row.partition("0.0 %")[2].strip() for row in rows] == [
        "too few requests",
        "limits hold",
        "a limit is missed",
    ]


def test_a_target_has_units() -> None:
    """As they are written in conditions; what says nothing of a user's is refused."""
    assert target("ttft.p95=500ms") == Target("ttft.p95", 0.5)
    assert target("interactivity.p90 = 50") == Target("interactivity.p90", 50.0)
    with pytest.raises(AgentReplayError, match="figure that users see"):
        target("total_token_rate=5")
