"""Against real vLLM on the CPU, with a tiny model that has the real Qwen 3 tokenizer."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from command import BUSY_MACHINE, agentreplay
from shared_data import SHARED, WEKA

from agentreplay.metrics.record import Record
from agentreplay.store import Run, read_run
from agentreplay.trace.load import load

LAPTOP = Path(__file__).parents[1] / "traces" / "laptop.jsonl"
SERVER = SHARED / "servers" / "vllm_server.sh"
BLOCK = 128
"""Tokens of a block of vLLM's cache on the CPU; it finds whole ones only."""

READY_S, STOP_S = 300, 30
CALLS = {"laptop": 78, "weka": 12}
APIS = ("chat", "completions", "responses", "messages", "completions --token-ids")

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(
        os.environ.get("AGENTREPLAY_VLLM") != "1", reason="AGENTREPLAY_VLLM=1 is not set"
    ),
    pytest.mark.skipif(
        not SERVER.exists(), reason="the script that starts vLLM does not lie beside the project"
    ),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running server, whose decode steps are as fast as they come."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(SERVER), str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "SLOWSTEP_MS": "0"},
        )
    try:
        address = f"http://127.0.0.1:{port}"
        if not _becomes_ready(address, process):
            pytest.fail(f"vLLM does not start: {log.read_text(errors='replace')[-2000:]}")
        yield address
    finally:
        _stop(process)


def _becomes_ready(address: str, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{address}/health").status_code == 200:
                return True
        except httpx.TransportError:
            pass  # it does not listen yet
        time.sleep(0.5)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server's process group, and nothing else."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(STOP_S)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass  # it has ended by itself, or does not want to
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # nothing is left of it
    process.wait(STOP_S)


def played(url: str, folder: Path, traces: Path, sessions: int, *options: str) -> Run:
    """The run directory of sessions that one user played without waiting."""
    ended = agentreplay(
        "run", traces, "--url", url, "--users", "1", "--sessions", str(sessions),
        "--timing", "none", "--out", folder / "run", "--allow", "loop_late_max_s=60s",
        "--allow", "loop_late_share=100%", "--allow", "lag_p99_s=60s", *options,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return read_run(folder / "run")


def lengths_that_differ(run: Run) -> list[tuple[int, int | None]]:
    """Recorded and served input tokens, of the calls where they are not the same."""
    return [(r.request.isl, r.isl) for r in run.records() if r.isl != r.request.isl]


def off_by_more_than_a_block(run: Run) -> list[Record]:
    """The calls whose cached tokens are not within a block of vLLM's of the prediction."""
    return [
        record
        for record in run.records()
        if record.cached is None or abs(record.cached - record.request.reuse) > BLOCK
    ]


@pytest.fixture(scope="module", params=CALLS)
def run(
    request: pytest.FixtureRequest, url: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Run]:
    """The bundled laptop sessions, and four short recorded ones, each played once."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "laptop":
        return request.param, played(url, folder, LAPTOP, 6)
    for number in ("0504", "0187", "0103", "0026"):
        (folder / f"trace_{number}.json").symlink_to(WEKA / f"trace_{number}.json")
    return request.param, played(url, folder, folder, 4)


def test_every_request_succeeds(run: tuple[str, Run]) -> None:
    """All calls of the sessions are sent and answered."""
    name, read = run
    assert [record.error for record in read.records()] == [None] * CALLS[name]


def test_prompts_are_as_long_as_recorded_by_the_servers_count(run: tuple[str, Run]) -> None:
    """The median input length is exact, and 99 % of them are to a thousandth."""
    error = run[1].summary().metrics["isl_error"]
    assert error["p50"] == 0
    assert error["p99"] <= 0.001


def test_answers_are_as_long_as_recorded(run: tuple[str, Run]) -> None:
    """The server generates what was asked for, in every call."""
    assert run[1].summary().metrics["osl_error"]["max"] == 0


def test_the_server_finds_the_predicted_prefixes(run: tuple[str, Run]) -> None:
    """For 99 % of the calls, cached tokens are within a block of the prediction."""
    name, read = run
    assert len(off_by_more_than_a_block(read)) <= 0.01 * CALLS[name]


def test_the_servers_metrics_say_what_its_usage_says(run: tuple[str, Run]) -> None:
    """Input, output and cached tokens by its counters are the sums over the answers."""
    read = run[1]
    records, server = list(read.records()), read.summary().server
    assert server is not None
    assert server.prompt.server == sum(record.isl or 0 for record in records)
    assert server.generated.server == sum(record.osl or 0 for record in records)
    assert server.cached.server == sum(record.cached or 0 for record in records)
    assert (server.preemptions, server.drafts) == (0, False)


def test_the_servers_metrics_account_for_calls_that_were_cut(
    url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of calls that are cut at once, vLLM counts what was answered, and no more than was asked."""
    out = tmp_path_factory.mktemp("cut") / "run"
    agentreplay(
        "run", LAPTOP, "--url", url, "--users", "6", "--duration", "3s", "--drain", "0s",
        "--timing", "none", "--out", out, "--quiet",
    )  # fmt: skip
    summary = read_run(out).summary()
    server = summary.server
    assert summary.metrics["requests"]["cancelled"] > 0
    assert server is not None
    assert server.unchecked is None
    for count in (server.prompt, server.generated, server.cached):
        assert count.ours is not None
        assert count.server is not None
        assert count.ours <= count.server <= count.ours + count.open
    assert "server_counts_differ" not in dict(summary.verdict.warnings)


@pytest.fixture(scope="module", params=APIS)
def by_api(
    request: pytest.FixtureRequest, url: str, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    """Two laptop sessions, played by one of the APIs."""
    folder = tmp_path_factory.mktemp("api")
    traces = folder / "two.jsonl"
    traces.write_bytes(b"".join(LAPTOP.read_bytes().splitlines(keepends=True)[:2]))
    return played(url, folder, traces, 2, "--api", *request.param.split())


def test_prompts_are_exact_in_every_api(by_api: Run) -> None:
    """Not one token of difference in any prompt, whatever it is sent as."""
    assert lengths_that_differ(by_api) == []


def test_prefixes_are_found_in_every_api(by_api: Run) -> None:
    """In every call, cached tokens are within a block of the prediction."""
    assert off_by_more_than_a_block(by_api) == []


@pytest.fixture(scope="module")
def plays(url: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Record], list[Record]]:
    """The records of two plays of one session, one after the other."""
    folder = tmp_path_factory.mktemp("plays")
    traces = folder / "one.jsonl"
    traces.write_bytes(LAPTOP.read_bytes().splitlines(keepends=True)[0])
    records = list(played(url, folder, traces, 2).records())
    first, second = ([r for r in records if r.request.visit == visit] for visit in (0, 1))
    assert len(first) == len(second) > 1
    return first, second


def test_plays_of_a_session_share_their_system_prompt_alone(
    plays: tuple[list[Record], list[Record]],
) -> None:
    """The second play's first call finds the whole blocks of its system part and no more."""
    (session,) = (session for session in load(LAPTOP) if session.id == plays[0][0].request.session)
    cold, warm = (next(r for r in play if r.request.call == 0) for play in plays)
    common = session.calls[0].system // session.block_size * session.block_size
    assert common >= BLOCK
    assert (cold.cached, warm.cached) == (0, common // BLOCK * BLOCK)


def test_calls_of_a_play_find_what_they_share(
    plays: tuple[list[Record], list[Record]],
) -> None:
    """In both plays, a call finds what it shares with an earlier one, but for a server's block."""
    found = [(r.request.shared, r.cached or 0) for play in plays for r in play if r.request.shared]
    assert len(found) > 1
    assert [(shared, cached) for shared, cached in found if abs(shared - cached) > BLOCK] == []


@pytest.fixture(scope="module")
def spread(url: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three users whose first sessions begin in their middle, after a warm-up."""
    out = tmp_path_factory.mktemp("spread") / "run"
    ended = agentreplay(
        "run", LAPTOP, "--url", url, "--users", "3", "--start", "spread:25%-75%",
        "--warmup-calls", "1", "--warmup-limit", "5s", "--max-gap", "1s", "--duration", "20s",
        "--order", "recorded", "--out", out, *BUSY_MACHINE,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return read_run(out)


def test_the_first_measured_calls_find_what_the_warm_up_sent(spread: Run) -> None:
    """Whatever a first session's first call shares with a call of the warm-up is in the cache."""
    records = sorted(spread.records(), key=lambda record: record.sent_ns)
    warm = [record for record in records if record.request.warmup]
    first = {r.request.lane: r for r in reversed(records) if not r.request.warmup}
    assert {record.request.lane for record in warm} == set(first) == {0, 1, 2}
    for record in first.values():
        assert record.request.reuse > BLOCK
        assert record.cached is not None
        assert record.cached >= record.request.reuse - BLOCK


def test_the_warm_up_asks_for_one_token_and_is_not_measured(spread: Run) -> None:
    """Every call of the warm-up has one token, and none of them counts as attempted."""
    warm = [record for record in spread.records() if record.request.warmup]
    assert {record.osl for record in warm} == {1}
    requests = spread.summary().metrics["requests"]
    assert requests["warmup"] == len(warm)
    assert requests["attempted"] == len(list(spread.records())) - len(warm)
