"""A cluster of two nodes on this machine: what is sent, what is measured, what is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import orjson
import pytest
from command import BUSY_MACHINE, agentreplay
from scripted import Request, ScriptedServer
from test_cli import good, is_calibration
from virtually import chain

from agentreplay.client.endpoint import Endpoint, api_url
from agentreplay.errors import AgentReplayError
from agentreplay.outcome import Result
from agentreplay.plan import Plan
from agentreplay.run import run_plan
from agentreplay.store import Run, read_run
from agentreplay.trace.formats import native
from agentreplay.trace.load import load
from agentreplay.workers.crew import Crew, host_and_port
from agentreplay.workers.ray import actors

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

pytestmark = pytest.mark.alone

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}
HEAD = {
    "include_dashboard": False,
    "_system_config": {"health_check_period_ms": 500, "health_check_failure_threshold": 2},
}
"""A node that is gone is soon seen to be."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a CPU each."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        started = cluster_utils.Cluster(initialize_head=True, head_node_args=NODE | HEAD)
        try:
            started.add_node(**NODE)
            yield started
        finally:
            started.shutdown()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Thirty short sessions."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(native.line(chain(n, 4, gap_s=0.05)) for n in range(30)))
    return path


def against(serve: Callable[[ScriptedServer], Any]) -> tuple[Any, list[Request]]:
    """What *serve* makes of a server, and the requests of the run that came there."""

    async def main() -> tuple[Any, list[Request]]:
        async with ScriptedServer(good) as server:
            made = await serve(server)
            return made, [each for each in server.requests if each.method == "POST"]

    made, requests = anyio.run(main)
    return made, [each for each in requests if not is_calibration(each)]


def run(trace: Path, out: Path, crew: Crew) -> tuple[Result, list[Request]]:
    """Eight sessions by four users, as the same plan each time."""
    plan = Plan(users=4, sessions=8, duration_s=None, timing="none", salt=7)

    async def play(server: ScriptedServer) -> Result:
        endpoint = Endpoint((api_url(server.url),))
        return await run_plan(load(trace), plan, out, endpoint=endpoint, crew=crew)

    return against(play)


def by_lane(read: Run, requests: list[Request]) -> list[tuple[set[str], set[str]]]:
    """Of each worker of two, the names of the requests that the server saw, and of its records."""
    name = read.plan.run_id
    seen = {each.headers["x-request-id"] for each in requests}
    records = {record.request.request_id(name): record.request.lane for record in read.records()}
    assert len(seen) == len(requests)
    return [
        (
            {each for each in seen if int(each.split("-")[1]) % 2 == number},
            {each for each, lane in records.items() if lane % 2 == number},
        )
        for number in range(2)
    ]


def test_two_nodes_send_what_one_process_sends(cluster: Any, trace: Path, tmp_path: Path) -> None:
    """The same requests to the byte, each recorded once, whoever plays the plan."""
    here, sent_here = run(trace, tmp_path / "here", Crew())
    there, sent_there = run(trace, tmp_path / "there", Crew(2, cluster.address))
    assert {(each.headers["x-request-id"], each.body) for each in sent_here} == {
        (each.headers["x-request-id"], each.body) for each in sent_there
    }
    assert len(sent_there) == len(sent_here) == 32
    assert len(list(there.run.records())) == 32
    assert [record.error for record in there.run.records()] == [None] * 32
    assert here.value["workers"] == []
    assert not ray.is_initialized()


def test_every_node_plays(cluster: Any, trace: Path, tmp_path: Path) -> None:
    """Without a number there is one worker a node, of its own clock, and all of it is reported."""
    ended, sent = against(
        lambda server: anyio.to_thread.run_sync(
            lambda: agentreplay(
                "run", trace, "--url", server.url, "--ray", cluster.address, "--users", "4",
                "--duration", "2s", "--out", tmp_path / "out", *BUSY_MACHINE,
            )
        )
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    read = read_run(tmp_path / "out")
    assert (read.manifest["workers"], read.manifest["ray"]) == (2, cluster.address)
    nodes = {each["where"].partition(" on node ")[2] for each in read.facts["workers"]}
    assert len(nodes) == 2
    assert all(0 < each["clock_residual_s"] < 1 for each in read.facts["workers"])
    assert "· 2 workers, clocks within " in ended.stdout
    for seen, recorded in by_lane(read, sent):
        assert seen
        assert recorded == seen


def test_a_node_that_is_lost_is_told(cluster: Any, trace: Path, tmp_path: Path) -> None:
    """The run is invalid, and has every record of the worker on the other node."""
    out = tmp_path / "out"

    async def play(server: ScriptedServer) -> subprocess.CompletedProcess[str]:
        command = [
            "run", trace, "--url", server.url, "--ray", cluster.address, "--workers", "2",
            "--users", "4", "--duration", "6s", "--json", "--out", out, *BUSY_MACHINE,
        ]  # fmt: skip
        ended: list[subprocess.CompletedProcess[str]] = []

        async def call() -> None:
            ended.append(await anyio.to_thread.run_sync(lambda: agentreplay(*command)))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            while len(server.requests) < 30 and not ended:
                await anyio.sleep(0.05)
            (node,) = cluster.worker_nodes
            await anyio.to_thread.run_sync(cluster.remove_node, node, False)
        return ended[0]

    try:
        ended, sent = against(play)
    finally:
        cluster.wait_for_nodes()
        cluster.add_node(**NODE)
    assert ended.returncode == 3, ended.stderr
    (reason,) = orjson.loads(ended.stdout)["verdict"]["reasons"]
    assert reason["id"] == "worker_lost"
    read = read_run(out)
    lost = [each["lost"] is not None for each in read.facts["workers"]]
    assert sorted(lost) == [False, True]
    seen, recorded = by_lane(read, sent)[lost.index(False)]
    assert recorded == seen
    assert by_lane(read, sent)[lost.index(True)][1]


def test_too_few_cpus_are_told(cluster: Any) -> None:
    """One line says how many CPUs are free."""

    async def ask() -> None:
        async with actors(cluster.address, 3, 8, place_s=0.5):
            pass

    with pytest.raises(AgentReplayError, match="3 are asked for, and 2 of 2 on 2 nodes are free"):
        anyio.run(ask)
    assert not ray.is_initialized()


def test_a_cluster_that_is_not_there_is_told(trace: Path, tmp_path: Path) -> None:
    """One line at once, exit code 2, and no run directory."""
    out, url = tmp_path / "out", "http://127.0.0.1:1"
    ended = agentreplay("run", trace, "--url", url, "--ray", "127.0.0.1:1", "--out", out)
    assert ended.returncode == 2
    assert ended.stderr == "agentreplay: --ray 127.0.0.1:1: no Ray cluster answers\n"
    assert not out.exists()


@pytest.mark.parametrize("address", ["local", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:x", "a:1/b", ""])
def test_other_addresses_are_refused(address: str) -> None:
    """A cluster is the one that this machine belongs to, or one by host and port of its head."""
    with pytest.raises(AgentReplayError, match="write auto, or host:port of the cluster's head"):
        host_and_port(address)


def test_rays_client_is_refused() -> None:
    """Through it, clocks would be compared with those of a proxy in between."""
    with pytest.raises(AgentReplayError, match="run the command on a node of the cluster"):
        host_and_port("ray://10.0.0.1:10001")


@pytest.mark.parametrize(
    ("address", "found"),
    [("10.0.0.1:6379", ("10.0.0.1", 6379)), ("[fd00::1]:6379", ("fd00::1", 6379))],
)
def test_an_address_is_host_and_port(address: str, found: tuple[str, int]) -> None:
    """Of the head, by name or number."""
    assert host_and_port(address) == found


def test_ray_needs_an_address_to_send_to(trace: Path) -> None:
    """The simulated server of a run is at this machine's own address, which no node can reach."""
    ended = agentreplay("run", trace, "--ray", "auto")
    assert ended.returncode == 2
    assert ended.stderr.startswith("agentreplay: --ray needs --url")


def test_without_ray_the_way_to_install_it_is_told(trace: Path, tmp_path: Path) -> None:
    """One line, exit code 2."""
    program = "import sys; sys.modules['ray'] = None; from agentreplay.cli import main; main()"
    ended = subprocess.run(
        [
            *(sys.executable, "-c", program, "run", str(trace), "--url", "http://127.0.0.1:1"),
            *("--ray", "auto", "--out", str(tmp_path / "out")),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [
        "agentreplay: --ray auto: Ray is not installed: pip install 'agentreplay-loadgen[ray]'"
    ]
