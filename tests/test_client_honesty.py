"""What is this machine's own: a loop that is held up, ports that run out. It is never the server's.

Numbers in names are rows of a list of public reports on such tools.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import anyio
import pytest
from virtually import chain

from agentreplay.client.arrivals import Arrivals
from agentreplay.client.health import LoopWatch
from agentreplay.metrics.record import Record
from agentreplay.metrics.server import Load
from agentreplay.metrics.summary import ClientHealth
from agentreplay.outcome import Result, exit_code
from agentreplay.plan import Plan
from agentreplay.replay import Progress
from agentreplay.run import run_plan
from agentreplay.sim import virtual
from agentreplay.trace.formats import native
from agentreplay.trace.load import load

HELD_NS = 300_000_000


def watched(seconds: int, held_ns: int) -> ClientHealth:
    """A loop that is watched for so long, and held up for *held_ns* once a second."""
    held = 0

    def clock() -> int:
        return virtual.clock() + held

    async def main() -> ClientHealth:
        nonlocal held
        watch = LoopWatch(clock)
        async with anyio.create_task_group() as beside:
            beside.start_soon(watch.run)
            for _ in range(seconds):
                await anyio.sleep(1 - held_ns / 1e9)
                held += held_ns
            beside.cancel_scope.cancel()
        return watch.health(Arrivals(clock, kernel=False))

    return virtual.run(main)


def test_an_idle_loop_is_never_late() -> None:
    """In virtual time, where nothing takes time, no tick is late."""
    health = watched(60, 0)
    assert (health.loop_late_share, health.loop_late_max_s) == (0.0, 0.0)


def test_a_loop_that_is_held_up_is_late_for_as_long() -> None:
    """300 ms a second, less the 10 ms that count as in time and the wait for the next tick."""
    health = watched(60, HELD_NS)
    assert health.loop_late_share == pytest.approx(0.29, abs=0.01)
    assert health.loop_late_max_s == pytest.approx(0.3, abs=0.005)


def test_row_11_a_blocked_client_is_no_slow_server(tmp_path: Path) -> None:
    """A client that stands still for 300 ms once a second says that it was too slow to measure."""
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(b"".join(native.line(chain(n, 4, gap_s=0.05)) for n in range(30)))

    class Held:
        looks = 0

        def take(self, record: Record) -> None:
            pass

        def show(self, now_ns: int, progress: Progress, server: Load | None) -> None:
            self.looks += 1
            if self.looks % 4 == 0:
                time.sleep(HELD_NS / 1e9)

    async def main() -> Result:
        plan = Plan(users=2, duration_s=4.0)
        return await run_plan(
            load(trace), plan, tmp_path / "out", show=lambda _: nullcontext(Held())
        )

    result = anyio.run(main)
    assert "client_limited" in {reason.id for reason in result.summary.verdict.reasons}
    assert result.value["metrics"]["client"]["loop_late_max"] >= 0.29
    assert exit_code(result)[0] == 3


FEW_PORTS = """
import asyncio, fcntl, socket, struct, subprocess, sys
from pathlib import Path
from scripted import Answer, ScriptedServer, hold

with socket.socket() as any_socket:  # a network of one's own begins with lo down
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))
Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("40000 40199")

async def main():
    held = Answer(script=[(0, hold(asyncio.Event()))])
    async with ScriptedServer(lambda request: held) as server:
        return await asyncio.to_thread(subprocess.run, [*sys.argv[1:], "--url", server.url])

sys.exit(asyncio.run(main()).returncode)
"""


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode != 0,
    reason="needs a network of its own",
)
def test_row_33_ports_that_run_out_are_said_before_and_counted_apart(tmp_path: Path) -> None:
    """With 200 ports for 300 users there is a caution first; what fails is the client's."""
    trace, out = tmp_path / "trace.jsonl", tmp_path / "out"
    trace.write_bytes(b"".join(native.line(chain(n, 1)) for n in range(300)))
    run = [sys.executable, "-m", "agentreplay", "run", trace, "--users", "300"]
    options = ["--duration", "4s", "--drain", "0s", "--no-calibrate", "--out", out]
    ended = subprocess.run(
        ["unshare", "-rn", sys.executable, "-c", FEW_PORTS, *map(str, [*run, *options])],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        timeout=60,
    )
    assert "has 200 ports for connections to this endpoint, fewer than 300 users" in ended.stderr
    assert ended.returncode == 4, ended.stderr
    assert "client: 127.0.0.1" in ended.stdout
    assert "Cannot assign requested address" in ended.stdout
