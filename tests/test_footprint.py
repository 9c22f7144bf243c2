"""What a process holds in memory: of a set, of a file, of what was played. As laws, since a large
run is only several small ones."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from command import BUSY_MACHINE
from scripted import Answer, Request, ScriptedServer, c, done, fin, usage
from virtually import ANSWER, DIALECT, call, chain

from agentreplay.client.stream import Reply, Sink
from agentreplay.metrics.record import Record
from agentreplay.metrics.record import Request as Asked
from agentreplay.plan import Plan, visits
from agentreplay.replay import Replay
from agentreplay.sim import virtual
from agentreplay.store import read_run
from agentreplay.trace.draw import Draws
from agentreplay.trace.formats import native
from agentreplay.trace.load import load, open_set
from agentreplay.trace.model import Session
from agentreplay.trace.structure import link

FILE_BYTES = 600
"""A file of a set: its name, its place, and what is known of it."""

PLAYED_BYTES = 1000
"""A session that was played: its lengths, its format, how far its system prompt was sent."""

PEAK_BYTES = 250_000_000
"""The most of a run of 64 lanes over 10,000 files."""

LANES, FILES = 64, 10_000

PEAK = """
import sys
def peak_kb():  # resource.getrusage would begin with what the parent process has
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
"""
READING = f"""{PEAK}
from agentreplay.trace.load import load
trace = load(sys.argv[1])
calls = sum(len(trace[index].calls) for index in range(10))
with open("/proc/self/io") as file:
    print(calls, file.readline().split()[1], peak_kb())
"""
RUNNING = f"""{PEAK}
import atexit
from agentreplay.cli import main
atexit.register(lambda: sys.stderr.write(f" {{peak_kb()}}"))
main(sys.argv[1:])
"""

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of its processes so")


def held(work: Callable[[], object]) -> int:
    """How many bytes more are held while what *work* made is there."""
    gc.collect()
    tracemalloc.start()
    try:
        kept = work()
        gc.collect()
        assert kept is not None
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_a_file_of_a_set_costs_its_name_and_little_more(tmp_path: Path) -> None:
    """A set of 1,500 files takes 1,000 times the stated bytes more than one of 500."""
    session = native.line(chain(0, 3)).rstrip()
    for n in range(1500):
        file = tmp_path / ("few" if n < 500 else "many") / f"{n:05d}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(session)
    few, all_of_them = (held(partial(open_set, folder)) for folder in (tmp_path / "few", tmp_path))
    assert 0 < all_of_them - few < 1000 * FILE_BYTES


def test_lanes_share_the_order_of_the_set() -> None:
    """Where each lane is in a set of a million sessions costs no list of them a lane."""
    plan = Plan(users=50)

    def begun(lanes: int) -> object:
        walks = [visits(plan, lane, 1_000_000) for lane in range(lanes)]
        return walks, [next(walk) for walk in walks]

    begun(1)
    assert held(lambda: begun(50)) < 1_000_000


def test_a_session_that_was_played_leaves_little(tmp_path: Path) -> None:
    """300 more sessions, each played once, leave 300 times the stated bytes at most."""

    def played(sessions: int) -> object:
        path = tmp_path / f"{sessions}.jsonl"
        path.write_bytes(b"".join(native.line(chain(n, 2)) for n in range(sessions)))
        draws = Draws(load(path), "drop-session")
        plan = Plan(users=5, sessions=sessions, duration_s=None)
        kept: list[object] = [draws]

        async def draw(index: int) -> Session:
            return draws.read(index)

        async def stream(request: Asked, body: bytes, sink: Sink) -> Reply:
            await anyio.sleep(1)
            sink(virtual.clock(), ANSWER)
            return Reply(200, "text/event-stream", b"")

        async def main() -> None:
            count = 0

            def on_record(record: Record) -> None:
                nonlocal count
                count += 1

            run = Replay(plan, sessions, draw, dialect, stream, virtual.clock, on_record)
            await run.run()
            assert count == 2 * sessions
            kept.append(run)

        virtual.run(main)
        return kept

    dialect = replace(DIALECT, text=False)
    played(50)
    few, many = (held(partial(played, sessions)) for sessions in (100, 400))
    assert many - few < 300 * PLAYED_BYTES


@linux
def test_row_38_a_large_file_is_read_past_and_not_kept(tmp_path: Path) -> None:
    """Of ten times as large a file, 10 of its sessions being used, no more is held but where each
    session lies; it is read once, to see where that is."""
    session = native.line(chain(0, 1500))
    seen = []
    for sessions in (100, 1000):
        path = tmp_path / f"{sessions}.jsonl"
        with path.open("wb") as file:
            for _ in range(sessions // 20):
                file.write(session * 20)
        command = [sys.executable, "-c", READING, str(path)]
        ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        calls, read, peak_kb = map(int, ended.stdout.split())
        assert calls == 15_000
        seen.append((path.stat().st_size, read, peak_kb * 1024))
    (small, read_of_small, least), (large, read_of_large, most) = seen
    assert large == 10 * small > 100_000_000
    assert read_of_large - read_of_small < 1.01 * (large - small)
    assert most - least < 3_000_000


@linux
def test_64_lanes_over_thousands_of_files_keep_within_the_bound(tmp_path: Path) -> None:
    """The peak of a run over 4,000 files, prompts having 20,000 to 60,000 tokens, and what 6,000
    more would take as stated."""
    source, folder, files = tmp_path / "session", tmp_path / "set", 4000
    lengths = [20_032 + 4032 * i for i in range(11)]
    made = [
        call(i, i, isl=isl, parent=i - 1 if i else None, shared=lengths[i - 1] if i else 0)
        for i, isl in enumerate(lengths)
    ]
    source.write_bytes(native.line(Session("s", None, link(made, 64), 64, "")).rstrip())
    folder.mkdir()
    for n in range(files):
        os.link(source, folder / f"{n:05d}.json")

    def answer(request: Request) -> Answer | None:
        script = [(0, c(10)), (0, fin()), (0, usage(640, 10)), (0, done())]
        return None if request.method == "GET" else Answer(script=script)

    async def main() -> int:
        async with ScriptedServer(answer) as server:
            command = [sys.executable, "-c", RUNNING, "run", str(folder), "--quiet"]
            command += ["--url", server.url, "--users", str(LANES), "--timing", "none"]
            command += ["--requests", "400", "--out", str(tmp_path / "run"), *BUSY_MACHINE]
            ended = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, timeout=120
            )
            assert len(read_run(tmp_path / "run").summary().failures) == 0
            return int(ended.stderr.split()[-1]) * 1024

    assert anyio.run(main) + (FILES - files) * FILE_BYTES < PEAK_BYTES
