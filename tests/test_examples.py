"""The examples run as they stand, as far as a shell allows: `make test-examples`.

They take minutes of real time, so they are left out of the other tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.skipif(
    os.environ.get("AGENTREPLAY_EXAMPLES") != "1", reason="AGENTREPLAY_EXAMPLES=1 is not set"
)


def shell(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """What a script says and how it ends, with our command on the path and the bundled traces."""
    (folder / "traces").symlink_to(ROOT / "traces")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-euc", script],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **variables},
    )


def steps(name: str) -> list[str]:
    """The commands of a CI job that are ours, each a folded block of its file."""
    blocks = re.findall(r"- (?:run: )?>\n((?: +.+\n)+?)(?= {6,8}env:| {2}\w| {6}- |\Z)", text(name))
    return [" ".join(block.split()) for block in blocks]


def text(name: str) -> str:
    return (EXAMPLES / name).read_text()


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_a_ci_job_leaves_what_it_publishes(name: str, tmp_path: Path) -> None:
    """Its one command replays against the embedded server, and passes its gates."""
    (step,) = steps(name)
    assert step.startswith("agentreplay run ")
    ended = shell(step, tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "<testsuite" in (tmp_path / "runs/ci/junit.xml").read_text()
    assert "valid" in (tmp_path / "runs/ci/summary.md").read_text()
    value = orjson.loads((tmp_path / "runs/ci/summary.json").read_bytes())
    assert [gate["passed"] for gate in value["gates"]] == [True] * 3


def test_a_sweep_on_a_laptop_reads_the_curve(tmp_path: Path) -> None:
    """Four numbers of users, and the value at the target or that it was not measured."""
    ended = shell(f"sh {EXAMPLES / 'sweep-laptop.sh'}", tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "interactivity.p90" in ended.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    value = orjson.loads((folder / "sweep.json").read_bytes())
    assert [run["users"] for run in value["runs"]] == [1, 2, 4, 8]


def test_two_local_nodes_of_a_ray_cluster_share_the_users(tmp_path: Path) -> None:
    """Against a simulated server, each with its half of them."""
    pytest.importorskip("ray")
    server = subprocess.Popen(
        [sys.executable, "-m", "agentreplay", "sim", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        (url,) = re.findall(r"http://\S+", server.stderr.readline())
        allowed = "loop_late_share=100%\nloop_late_max_s=1h\nlag_p99_s=1h"
        ended = shell(
            f"sh {EXAMPLES / 'ray-two-local-nodes.sh'} {url}", tmp_path, AGENTREPLAY_ALLOW=allowed
        )
    finally:
        server.terminate()
        server.communicate()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "· 2 workers, clocks within " in ended.stdout


def test_the_published_comparison_comes_out(tmp_path: Path) -> None:
    """Its three ratios, to the printed digit."""
    ended = shell(f"sh {EXAMPLES / 'published-comparison.sh'}", tmp_path)
    assert ended.returncode == 0
    for ratio in ("24.4", "87.4", "46.6"):
        assert ratio in ended.stdout


def test_the_library_is_used_as_shown(tmp_path: Path) -> None:
    """It prints the figure that the project is about."""
    ended = shell(f"cd {ROOT} && python {EXAMPLES / 'library.py'}", tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "P90 interactivity" in ended.stdout
