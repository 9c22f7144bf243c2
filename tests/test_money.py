"""`cost`, `curve` and the options about money, as a user has them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import pytest
from command import BUSY_MACHINE, agentreplay
from records import record
from virtually import chain

from agentreplay.metrics.cost import Money
from agentreplay.metrics.record import Record
from agentreplay.metrics.verdict import Limits
from agentreplay.metrics.window import Ending
from agentreplay.plan import Plan
from agentreplay.store import RunWriter
from agentreplay.trace.formats import native

ROOT = Path(__file__).parents[1]
PRICES = "input=1000000,cached=100000,output=10000000"  # a dollar, ten cents, ten dollars a token


def streamed(tpot_ms: int, lanes: int = 1, requests: int = 10) -> list[Record]:
    """Requests of 100 and 11 tokens, one after another in each of some lanes, of so many
    milliseconds a token: 1,110 tokens a second of a lane at 10 ms."""
    takes_ms = 10 * tpot_ms
    return [
        record(
            list(range(n * takes_ms, (n + 1) * takes_ms + 1, tpot_ms)),
            sent_ms=n * takes_ms,
            lane=lane,
            visit=n,
            cached=40,
        )
        for lane in range(lanes)
        for n in range(requests)
    ]


def run_directory(
    path: Path,
    rows: Sequence[Record],
    *,
    money: Money | None = None,
    ended: bool = True,
    simulated: str | None = None,
    sha256: str = "one",
) -> Path:
    """A run of given records, as `run` leaves it, or one that was killed."""
    manifest = {
        "agentreplay": "0",
        "plan": asdict(Plan(users=1, duration_s=10)),
        "limits": asdict(Limits()),
        "endpoint": {"urls": ["http://x"], "model": "m", "simulated": simulated},
        "trace": {"paths": ["t"], "sessions": 1},
        **({"money": asdict(money)} if money else {}),
    }
    with RunWriter(path, manifest) as writer:
        for row in rows:
            writer.append(row)
        if ended:
            facts = {"trace_sha256": sha256}
            writer.end(Ending("duration", 10_000_000_000, 10_000_000_000), None, facts)
    return path


def told(*arguments: str | Path) -> Any:
    """What a command prints as JSON."""
    ended = agentreplay(*arguments, "--json")
    assert ended.returncode == 0, ended.stderr
    return orjson.loads(ended.stdout)


def refused(*arguments: str | Path) -> str:
    """The one line of a command that can't do what it is asked."""
    ended = agentreplay(*arguments)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    return line


# --- Runs -----------------------------------------------------------------------------------------


def test_a_run_keeps_its_money_and_report_and_cost_count_with_it_again(tmp_path: Path) -> None:
    """`run` prints and stores the figures, `report` makes the same, newer prices count once only,
    and `cost` writes nothing; all say that the server is simulated."""
    trace, out = tmp_path / "trace.jsonl", tmp_path / "out"
    trace.write_bytes(b"".join(native.line(chain(n, 4, gap_s=0.05)) for n in range(4)))
    which = ("--sessions", "4", "--users", "2", *BUSY_MACHINE, "--out", out)
    money = ("--gpus", "2", "--gpu-hour", "1.5", "--prices", "input=3,cached=0.3,output=15")
    ended = agentreplay("run", trace, *which, *money)
    assert ended.returncode == 0, ended.stderr
    rows = ended.stdout.splitlines()
    assert rows[0] == "SIMULATED SERVER (demo)"
    for title in ("Tokens per GPU", "Tokens per dollar", "Bill"):
        assert any(row.startswith(title) for row in rows)
    first = orjson.loads((out / "summary.json").read_bytes())
    metrics = first["metrics"]
    assert metrics["total_token_rate_run_per_gpu"] == metrics["total_token_rate_run"] / 2
    assert metrics["bill"]["total"] > 0
    assert told("report", out) == first
    newer = told("report", out, "--gpus", "4")
    assert newer["money"] == {**first["money"], "gpus": 4}
    assert newer["metrics"]["tokens_per_dollar"] == metrics["tokens_per_dollar"] / 2
    cost = told("cost", out)
    assert cost["simulated"] == "demo"
    assert cost["metrics"]["bill"] == metrics["bill"]
    assert agentreplay("cost", out).stdout.splitlines()[0] == "SIMULATED SERVER (demo)"
    assert orjson.loads((out / "summary.json").read_bytes()) == newer


def test_a_run_stops_at_its_limit_and_says_so(tmp_path: Path) -> None:
    """It is valid, with a warning; what it cost is not over the limit."""
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(b"".join(native.line(chain(n, 40, gap_s=0.05)) for n in range(4)))
    prices = ("--prices", "input=3,cached=3,output=15", "--max-cost", "0.05")
    which = ("--users", "2", "--out", tmp_path / "out", *BUSY_MACHINE)
    found = told("run", trace, *which, *prices)
    assert found["ended"] == "cost"
    assert [warning["id"] for warning in found["verdict"]["warnings"]] == ["cost_limit"]
    assert 0.045 < found["metrics"]["bill"]["total"] <= 0.05


def test_cost_of_a_killed_run(tmp_path: Path) -> None:
    """What was recorded until then is counted, and that the run is invalid is said."""
    path = run_directory(tmp_path / "run", streamed(20), ended=False)
    ended = agentreplay("cost", path, "--prices", PRICES)
    assert ended.returncode == 0, ended.stderr
    rows = {line.split("  ")[0]: line for line in ended.stdout.splitlines()}
    assert "$ 1,740.00" in rows["Bill"]  # 10 × (60 + 40 × 0.1 + 11 × 10)
    assert "cached tokens as reported" in rows["Bill"]
    assert "$ 600.00" in rows["… input, uncached"]
    assert "The run is invalid" in ended.stdout
    assert sorted(each.name for each in path.iterdir()) == [
        *("records.jsonl", "run.json", "server.jsonl"),
    ]


def test_predicted_cached_tokens_are_named(tmp_path: Path) -> None:
    """A server that reports none: the bill says that they are predicted."""
    path = run_directory(tmp_path / "run", [record([100, 200], reuse=90)])
    assert "PREDICTED" in agentreplay("cost", path, "--prices", PRICES).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("--gpu-hour", "2"), "--gpu-hour needs --gpus", id="an hour of how many"),
        pytest.param((), "nothing says what", id="nothing is known"),
        pytest.param(("--gpus", "8"), "nothing says what", id="no price"),
        pytest.param(("--gpus", "0"), "--gpus", id="no GPU"),
        pytest.param(("--gpu-hour", "0", "--gpus", "1"), "--gpu-hour", id="free"),
    ],
)
def test_what_cost_can_not_say(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    """One line that says what is missing."""
    path = run_directory(tmp_path / "run", streamed(20))
    assert words in refused("cost", path, *arguments)


def test_a_limit_needs_prices(tmp_path: Path) -> None:
    """Without them nothing has a cost."""
    assert "--max-cost needs --prices" in refused("run", "traces", "--max-cost", "5")
    assert "no run directory" in refused("cost", tmp_path, "--prices", PRICES)


# --- Curves ---------------------------------------------------------------------------------------


def test_the_published_comparison_is_made_again() -> None:
    """The example prints 24.4 % more, 87.4 % more tokens per dollar and 46.6 % cheaper."""
    path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    ended = subprocess.run(
        ["sh", ROOT / "examples" / "published-comparison.sh"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": path, "COLUMNS": "120"},
    )
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout.splitlines()[-1]
    for words in ("24.4 % more", "87.4 % more tokens per dollar", "46.6 % cheaper per token"):
        assert words in said
    assert "18.16 M" in ended.stdout
    assert "9.69 M" in ended.stdout


def test_runs_without_the_figure_are_left_out_and_listed(tmp_path: Path) -> None:
    """Report 52: three runs of which one has no P90 make two points and a note."""
    for name, rows in (
        ("a", streamed(10)),
        ("b", [record([100], done_ms=1500)]),
        ("c", streamed(20)),
    ):
        run_directory(tmp_path / "mine" / name, rows)
    paths = [tmp_path / "mine" / name for name in "abc"]
    found = told("curve", *paths)
    (system,) = found["systems"]
    assert system["name"] == "mine"
    assert [point["x"] for point in system["points"]] == pytest.approx([50, 100])
    assert found["y"] == "total_token_rate_run"
    (left_out,) = found["left_out"]
    assert (left_out["name"], left_out["why"]) == (
        str(paths[1]),
        "interactivity.p90 was not measured",
    )
    assert f"Left out: {paths[1]}" in agentreplay("curve", *paths, COLUMNS="400").stdout
    assert told("curve", tmp_path / "mine") == found


def test_systems_are_compared_at_a_target(tmp_path: Path) -> None:
    """Two points each; the value between them, named neighbours, tokens per dollar by each
    system's own price and GPUs, and ratios of the first to the second."""
    for name, gpus in (("new", 2), ("old", 4)):
        for tpot_ms, lanes in ((10, 1), (20, 4)):
            path = tmp_path / name / f"t{tpot_ms}"
            run_directory(path, streamed(tpot_ms, lanes), money=Money(gpus, 3.0))
    named = [f"{name}={tmp_path / name}" for name in ("new", "old")]
    fast = ("--gpu-hour", "new=1.5", "--at", "interactivity.p90=75")
    found = told("curve", *named, *fast)
    assert found["y"] == "total_token_rate_run_per_gpu"
    new, old = found["systems"]
    assert (new["gpu_hour"], old["gpu_hour"]) == (1.5, 3.0)
    assert new["value"]["y"] == pytest.approx((2220 + 1110) / 2 / 2)
    assert old["value"]["y"] == pytest.approx((2220 + 1110) / 2 / 4)
    assert new["value"]["below"]["name"] == str(tmp_path / "new" / "t20")
    assert new["value"]["above"]["name"] == str(tmp_path / "new" / "t10")
    (ratio,) = found["ratios"]
    assert (ratio["of"], ratio["to"]) == ("new", "old")
    assert ratio["tokens_per_dollar"] == pytest.approx(4)
    assert ratio["dollars_per_million_tokens"] == pytest.approx(1 / 4)
    again = told("curve", *named, "--gpus", "1", "--gpus", "old=2", *fast)
    assert again["systems"][0]["value"]["y"] == pytest.approx(2 * new["value"]["y"])
    assert again["systems"][1]["value"]["y"] == pytest.approx(2 * old["value"]["y"])


def test_a_value_is_between_named_neighbours_or_not_at_all() -> None:
    """Half of the way between two points it is the mean; outside it is null, in words."""
    points = ("new=20,900", "new=50,600", "new=40,100", "old=60,300", "old=80,200")
    found = told("curve", *points, "--at", "interactivity.p90=35")
    new, old = (system["value"] for system in found["systems"])
    assert new["y"] == 750
    assert (new["below"]["name"], new["above"]["name"]) == ("20,900", "50,600")
    assert (old["y"], old["below"], old["above"]["name"]) == (None, None, "60,300")
    assert old["why"] == "below the front, which begins at interactivity.p90 60"
    assert found["ratios"][0]["y"] is None
    assert [point["front"] for point in found["systems"][0]["points"]] == [True, False, True]
    above = told("curve", *points, "--at", "interactivity.p90=55")["systems"][0]["value"]
    assert above["why"].startswith("above everything that was measured")
    assert "ratios" not in agentreplay("curve", *points).stdout


def test_a_curve_says_what_its_points_are_worth(tmp_path: Path) -> None:
    """Points of a simulated server, of invalid runs and of different traces are named as that."""
    run_directory(tmp_path / "a", streamed(10), simulated="demo")
    run_directory(tmp_path / "b", streamed(20, 4), ended=False)
    run_directory(tmp_path / "c", streamed(40, 16), sha256="two")
    ended = agentreplay("curve", f"x={tmp_path}", "--at", "interactivity.p90=50", COLUMNS="400")
    lines = ended.stdout.splitlines()
    assert lines[0] == "SIMULATED SERVER (demo)"
    rows = {line.split()[0]: line for line in lines if line.split()}
    assert "SIMULATED" in rows[str(tmp_path / "a")]
    assert "INVALID: interrupted" in rows[str(tmp_path / "b")]
    assert f"measured: {tmp_path / 'b'} (INVALID)" in rows["x"]
    assert "NOT THE SAME WORK" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere",), "no run directory"),
        (("a=1,2", "--at", "ttft.p95=2"), "more is better"),
        (("a=1,2", "--at", "interactivity.p91=2"), "more is better"),
        (("a=1,2", "--at", "interactivity.p90=fast"), "no number above 0"),
        (("a=1,nan",), "no number above 0"),
        (("a=1,2", "--y", "error_rate"), "more is better"),
        (("a=1,2", "--y", "total_token_rate_run", "--gpu-hour", "2"), "needs figures per GPU"),
        (("a=1,2", "--gpu-hour", "b=2"), "there is no such system, but a"),
        (("a=1,2", "--gpu-hour", "1", "--gpu-hour", "2"), "given twice"),
        (("a=1,2", "--gpus", "1.5"), "a number of GPUs"),
    ],
)
def test_what_a_curve_can_not_be_made_of(arguments: tuple[str, ...], words: str) -> None:
    """One line that says why."""
    assert words in refused("curve", *arguments)


# --- Memory ---------------------------------------------------------------------------------------


def test_inspect_says_what_sessions_hold(tmp_path: Path) -> None:
    """Conversations and working sets, in tokens and bytes, all together and of a partition."""
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(native.line(chain(0, 3)))
    asked = ("inspect", trace, "--kv-bytes-per-token", "10kB", "--partitions", "2", "--users", "2")
    memory = told(*asked)["memory"]
    assert memory["largest_conversation"] == {
        "tokens": 778,
        "bytes": 7_780_000,
        "partition_bytes": 3_890_000,
    }
    assert memory["working_set_most"]["tokens"] == 2 * 778
    rows = [line.split() for line in agentreplay(*asked).stdout.splitlines()]
    assert ["largest", "conversation", "778", "7.78", "MB", "3.89", "MB"] in rows
    assert told("inspect", trace)["memory"] is None
    assert "--kv-bytes-per-token" in refused("inspect", trace, "--users", "2")
    assert "write it with a unit" in refused("inspect", trace, "--kv-bytes-per-token", "13")
