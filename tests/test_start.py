"""The way from the command to the first request: what is imported, read and due by then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.abc
import orjson
import pytest
from command import BUSY_MACHINE, agentreplay
from scripted import Answer, Request, ScriptedServer, stall
from virtually import DIALECT, chain, oracle

from agentreplay.metrics.record import Record
from agentreplay.plan import Plan, first_sessions
from agentreplay.replay import Replay
from agentreplay.sim import virtual
from agentreplay.store import read_run
from agentreplay.trace.draw import Draws
from agentreplay.trace.formats import native
from agentreplay.trace.load import content_hash, load
from agentreplay.trace.model import Session

LATER = frozenset(
    "starlette uvicorn prometheus_client plotly pyarrow huggingface_hub aiohttp ray hypothesis "
    "agentreplay.sim.server agentreplay.report.junit agentreplay.report.markdown "
    "agentreplay.report.aiperf agentreplay.report.html.page agentreplay.report.value".split()
)
"""What a first request to an address needs nothing of."""

TELLING = """
import os, signal, sys
def tell(*_):
    os.write(1, " ".join(sys.modules).encode())
    os._exit(0)
signal.signal(signal.SIGUSR1, tell)
from agentreplay.cli import main
main(sys.argv[1:])
"""

COUNTING = """
import collections, sys
seen = collections.Counter()
def look(event, arguments):
    if event in ("open", "os.scandir", "os.listdir") and str(arguments[0]).startswith(folder):
        seen[event, str(arguments[0])] += 1
folder = sys.argv[1]
sys.addaudithook(look)
from agentreplay.trace.load import open_set
def read_bytes():
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])
before = read_bytes()
found, read = len(open_set(folder)), read_bytes() - before
print(found, len(seen), max(seen.values()), sum(event == "open" for event, _ in seen), read)
"""

NO_TEXT = b"\xff.json"
"""A name that is no UTF-8, as Linux allows."""

PLACES = ("home", "temporary", "here", "runs")

proc = pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="Linux counts what is read")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Six short sessions."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(native.line(chain(n, 4, gap_s=0.05)) for n in range(6)))
    return path


# What is imported


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGUSR1")
def test_the_first_request_needs_no_more_than_it_uses(trace: Path, tmp_path: Path) -> None:
    """No server, no report and no optional package has been imported when it arrives."""

    async def main() -> bytes:
        process: anyio.abc.Process | None = None

        def answer(request: Request) -> Answer | None:
            if request.method == "GET":
                return None if "models" in request.path else Answer(404, body=b"")
            assert process is not None
            process.send_signal(signal.SIGUSR1)
            return Answer(script=[(0, stall())])

        async with ScriptedServer(answer) as server:
            command = [sys.executable, "-c", TELLING, "run", str(trace), "--url", server.url]
            command += ["--no-calibrate", "--out", str(tmp_path / "run")]
            async with await anyio.open_process(command) as process:
                assert process.stdout is not None
                return b"".join([part async for part in process.stdout])

    imported = set(anyio.run(main).decode().split())
    assert {"agentreplay.replay", "httpx", "numpy"} <= imported
    assert not LATER & imported


# What is read


@proc
def test_of_a_folder_of_sessions_only_heads_are_read(tmp_path: Path) -> None:
    """Each folder is listed once, each file opened once, and 4 kB of it read."""
    value = orjson.loads(native.line(chain(0, 3)))
    session = orjson.dumps(value | {"later": "x" * 200_000})
    for n in range(60):
        file = tmp_path / f"part-{n % 3}" / f"{n}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(session)
    command = [sys.executable, "-c", COUNTING, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found, places, times, opened, read = map(int, ended.stdout.split())
    assert (found, opened, places, times) == (60, 60, 60 + 1 + 3, 1)
    assert 60 * 4096 <= read < 60 * 4096 + 10_000


def test_a_session_is_read_once_for_all_lanes_that_begin_with_it(trace: Path) -> None:
    """What is read ahead for two lanes serves two, though its file has gone."""

    async def main() -> list[int]:
        await draws.fetch([1, 1, 2])
        trace.unlink()
        return [len((await draws.draw(index)).calls) for index in (1, 2, 1)]

    draws = Draws(load(trace), "drop-session")
    assert anyio.run(main) == [4, 4, 4]


def test_what_is_read_ahead_is_what_is_due_at_once() -> None:
    """With a ramp it is the session of the first lane, without one those of all."""
    plan = Plan(users=4)
    every = list(first_sessions(plan, 9))
    assert len(every) == 4
    assert list(first_sessions(replace(plan, ramp_s=8.0), 9)) == every[:1]
    assert list(first_sessions(plan, 9, range(1, 4, 2))) == every[1::2]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a home, a place for temporary files, a trace, and the directory of a run."""
    root = tmp_path_factory.mktemp("ran")
    for name in PLACES:
        (root / name).mkdir()
    (root / "trace.jsonl").write_bytes(native.line(chain(0, 2, gap_s=0.01)))
    command = [sys.executable, "-m", "agentreplay", "run", "../trace.jsonl", "--quiet"]
    ended = subprocess.run(
        [*command, "--sessions", "1", "--out", "../runs/one", *BUSY_MACHINE],
        cwd=root / "here",
        env={
            "PYTHONPATH": os.pathsep.join(sys.path),
            "HOME": str(root / "home"),
            "TMPDIR": str(root / "temporary"),
            "XDG_CACHE_HOME": str(root / "home"),
        },
        capture_output=True,
        timeout=120,
    )
    assert (root / "runs" / "one" / "summary.json").exists(), ended.stderr
    return root


@pytest.mark.skipif(sys.platform == "win32", reason="other variables name the folders there")
def test_nothing_is_written_but_the_run_directory(ran: Path) -> None:
    """A run leaves no cache and no temporary file: not at home, not where it was started."""
    left = {str(path.relative_to(ran)) for path in ran.rglob("*")}
    outside = {path for path in left if not path.startswith("runs/one")}
    assert outside == {*PLACES, "trace.jsonl"}


def test_what_is_looked_at_on_the_side_is_known_at_the_end(ran: Path) -> None:
    """However short a run is, it names the files of its set and the hash of their content."""
    read = read_run(ran / "runs" / "one")
    (file,) = read.manifest["trace"]["files"]
    assert (file["path"], file["bytes"]) == (
        "../trace.jsonl",
        (ran / "trace.jsonl").stat().st_size,
    )
    assert read.facts["trace_sha256"] == content_hash(load(ran / "trace.jsonl"))


@pytest.mark.skipif(sys.platform != "linux", reason="names are text elsewhere")
def test_a_file_whose_name_is_no_text_is_played(tmp_path: Path) -> None:
    """What is looked at on the side finds it, too, and run.json names it as well as it can."""
    (tmp_path / os.fsdecode(NO_TEXT)).write_bytes(native.line(chain(0, 1)))
    ended = agentreplay("run", tmp_path, "--sessions", "1", "--out", tmp_path / "run", "--quiet")
    read = read_run(tmp_path / "run")
    assert len(list(read.records())) == 1, ended.stderr
    assert read.manifest["trace"]["files"][0]["path"] == str(tmp_path / "?.json")
    assert read.facts["trace_sha256"] is not None


# What is due


def played(
    plan: Plan, sessions: Sequence[Session], read_s: float, *, prepared: bool
) -> list[Record]:
    """The records of a run in virtual time for which reading a session takes so long."""
    records: list[Record] = []

    async def draw(index: int) -> Session:
        await anyio.sleep(read_s)
        return sessions[index]

    async def main() -> None:
        origin_ns = 0

        def clock() -> int:
            return virtual.clock() - origin_ns

        run = Replay(plan, len(sessions), draw, DIALECT, oracle(sessions), clock, records.append)
        if prepared:
            await run.prepare()
            origin_ns = virtual.clock()
        await run.run()

    virtual.run(main)
    return sorted(records, key=lambda record: (record.sent_ns, record.request.lane))


def test_what_was_prepared_is_sent_when_the_time_begins() -> None:
    """Four sessions take 12 s to read before it, and all four lanes send at its first instant."""
    sessions = [chain(n, 2) for n in range(4)]
    plan = Plan(users=4, sessions=4, duration_s=None)
    first = played(plan, sessions, 3.0, prepared=True)[:4]
    assert [record.request.lane for record in first] == [0, 1, 2, 3]
    assert {
        (record.request.due_ns, record.sent_ns - record.request.due_ns) for record in first
    } == {(0, 0)}


def test_reading_is_lag_and_moves_nothing() -> None:
    """A play is due when its lane is free, so that 3 s of reading are 3 s between due and sent."""
    sessions = [chain(n, 1, takes_s=5.0) for n in range(3)]
    plan = Plan(users=1, sessions=3, duration_s=None)
    records = played(plan, sessions, 3.0, prepared=False)
    assert [record.request.due_ns / 1e9 for record in records] == [0.0, 8.0, 16.0]
    assert [record.sent_ns / 1e9 for record in records] == [3.0, 11.0, 19.0]


def test_a_session_that_arrives_while_it_is_read_is_late() -> None:
    """One that is to arrive at 2 s and takes 3 s to read was due at 2 s; a later one is in time."""
    sessions = [replace(chain(n, 1), start_s=at_s) for n, at_s in enumerate((2.0, 7.0))]
    plan = Plan(users=2, arrivals=True, sessions=2, duration_s=None, timing="recorded")
    records = played(plan, sessions, 3.0, prepared=False)
    assert [record.request.due_ns / 1e9 for record in records] == [2.0, 7.0]
    assert [record.sent_ns / 1e9 for record in records] == [3.0, 7.0]


def test_a_lane_that_starts_later_is_not_drawn_before() -> None:
    """With a ramp only the first lane is prepared: the second is due at 4 s and late by reading."""
    sessions = [chain(n, 1) for n in range(2)]
    plan = Plan(users=2, sessions=2, duration_s=None, ramp_s=8.0)
    records = played(plan, sessions, 3.0, prepared=True)
    assert [record.request.due_ns / 1e9 for record in records] == [0.0, 4.0]
    assert [record.sent_ns / 1e9 for record in records] == [0.0, 7.0]
