"""Against a real server: llama.cpp's, with a tiny model that has the real Qwen 3 tokenizer."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from command import agentreplay
from shared_data import SHARED

from agentreplay.store import Run, read_run

ROOT = Path(__file__).parents[1]
SERVER = SHARED / "servers" / "llamacpp_server.py"
CALLS = 78

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(
        not SERVER.exists(), reason="the tiny model for llama.cpp does not lie beside the project"
    ),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A running server with two slots of 64k tokens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, str(SERVER), str(port), "131072", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if httpx.get(f"{address}/health").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="module")
def run(url: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The bundled laptop sessions, played once by one user."""
    out = tmp_path_factory.mktemp("llamacpp") / "run"
    laptop = ROOT / "traces" / "laptop.jsonl"
    ended = agentreplay(
        "run", laptop, "--url", url, "--users", "1", "--sessions", "6",
        "--timing", "none", "--out", out, "--allow", "loop_late_max_s=10s",
        "--allow", "loop_late_share=100%", "--allow", "lag_p99_s=10s",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return read_run(out)


def test_every_request_succeeds(run: Run) -> None:
    """All calls of the sessions are sent and answered."""
    assert [record.error for record in run.records()] == [None] * CALLS


def test_prompts_are_as_long_as_recorded_by_the_servers_count(run: Run) -> None:
    """Not one token of difference in any prompt, template included."""
    assert [(r.request.isl, r.isl) for r in run.records() if r.isl != r.request.isl] == []


def test_answers_are_as_long_as_recorded(run: Run) -> None:
    """The server generates what was asked for."""
    assert [(r.request.osl, r.osl) for r in run.records() if r.osl != r.request.osl] == []


def test_the_servers_metrics_say_what_its_usage_says(run: Run) -> None:
    """Input, output and cached tokens by its counters are the sums over the answers."""
    records, server = list(run.records()), run.summary().server
    assert server is not None
    assert server.unchecked is None
    assert server.prompt.server == sum(record.isl or 0 for record in records)
    assert server.generated.server == sum(record.osl or 0 for record in records)
    assert server.cached.server == sum(record.cached or 0 for record in records)
    assert server.running is not None
    assert 1 <= server.running.max <= 2
    assert not server.drafts


def test_the_servers_metrics_account_for_calls_that_were_cut(
    url: str, run: Run, tmp_path: Path
) -> None:
    """Of calls that are cut, llama.cpp counts what was answered, and no more than was asked."""
    laptop = ROOT / "traces" / "laptop.jsonl"
    agentreplay(
        "run", laptop, "--url", url, "--users", "3", "--duration", "1s", "--drain", "0s",
        "--timing", "none", "--out", tmp_path / "run", "--quiet",
    )  # fmt: skip
    summary = read_run(tmp_path / "run").summary()
    server = summary.server
    assert summary.metrics["requests"]["cancelled"] > 0
    assert server is not None
    assert server.unchecked is None
    for count in (server.prompt, server.generated):
        assert count.ours is not None
        assert count.server is not None
        assert count.ours <= count.server <= count.ours + count.open
    assert "server_counts_differ" not in dict(summary.verdict.warnings)


def test_the_server_finds_the_predicted_prefixes(run: Run) -> None:
    """Cached tokens are reported, and for 97 % of the calls within a block of the prediction."""
    records = list(run.records())
    off = [r for r in records if abs((r.cached or 0) - r.request.reuse) > r.request.block]
    assert all(record.cached is not None for record in records)
    assert len(off) <= 0.03 * CALLS
