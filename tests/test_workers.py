"""Several processes play one run: what one would send, into one file, and none dies unnoticed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from command import BUSY_MACHINE, agentreplay
from scripted import Answer, Request, ScriptedServer, c, done, fin, hold, role
from virtually import chain

from agentreplay.client.calibrate import Calibration
from agentreplay.client.endpoint import Endpoint, api_url
from agentreplay.errors import AgentReplayError
from agentreplay.outcome import Result
from agentreplay.plan import Plan
from agentreplay.play import Dialect
from agentreplay.prompt.messages import Template
from agentreplay.run import run_plan
from agentreplay.share import Share
from agentreplay.sim.server import embedded
from agentreplay.store import records_of
from agentreplay.trace.formats import native
from agentreplay.trace.load import load
from agentreplay.workers.crew import Crew, caution, workers_for
from agentreplay.workers.fleet import Fleet
from agentreplay.workers.link import LinkLost
from agentreplay.workers.messages import Message
from agentreplay.workers.worker import work

SESSIONS = 12
CALLS = 4


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Twelve sessions of four calls."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(native.line(chain(n, CALLS, gap_s=0.05)) for n in range(SESSIONS)))
    return path


def answered(request: Request) -> Answer | None:
    """An answer of the length that was asked for."""
    if request.method == "GET":
        return None
    n = orjson.loads(request.body)["max_tokens"]
    script = [role(), *([c(1)] * n), fin(), done()]
    return Answer(script=[(0, event) for event in script])


def replayed(trace: Path, out: Path, workers: int, **plan: Any) -> tuple[Result, list[Request]]:
    """A run of every session once, and what the server got."""
    fixed = Plan(users=5, sessions=SESSIONS, duration_s=None, timing="none", salt=7, **plan)

    async def main() -> tuple[Result, list[Request]]:
        async with ScriptedServer(answered) as server:
            endpoint = Endpoint((api_url(server.url),), calibrate=False)
            result = await run_plan(load(trace), fixed, out, endpoint=endpoint, crew=Crew(workers))
            return result, [each for each in server.requests if each.method == "POST"]

    return asyncio.run(main())


def test_row_29_any_number_of_workers_sends_the_same(trace: Path, tmp_path: Path) -> None:
    """One and three workers send the same requests under the same names, and no text twice."""
    sent = []
    for workers in (1, 3):
        _, requests = replayed(trace, tmp_path / str(workers), workers)
        sent.append({each.headers["x-request-id"]: each.body for each in requests})
        assert len(sent[-1]) == len(requests) == SESSIONS * CALLS
    one, three = sent
    assert one == three
    last = [orjson.loads(body)["messages"][-1]["content"] for body in three.values()]
    assert len({hashlib.sha256(text.encode()).digest() for text in last}) == len(last)


def test_no_record_is_lost_between_workers(trace: Path, tmp_path: Path) -> None:
    """Every request that the server got has its record in the one file, and its own worker's lane;
    the figures are those of all."""
    result, requests = replayed(trace, tmp_path / "out", 2)
    records = list(result.run.records())
    named = [each.request.request_id(result.run.plan.run_id) for each in records]
    assert sorted(named) == sorted(each.headers["x-request-id"] for each in requests)
    assert result.value["metrics"]["requests"]["succeeded"] == SESSIONS * CALLS
    assert {each.request.lane for each in records} == set(range(5))
    workers = result.run.facts["workers"]
    assert [(each["lanes"], each["lost"]) for each in workers] == [(3, None), (2, None)]
    assert len({each["where"] for each in workers}) == 2
    assert result.run.manifest["workers"] == 2
    assert result.run.health is not None
    assert len(result.run.health.cpu_share) == 2
    assert result.run.facts["fit"]["sessions"] == SESSIONS


def test_workers_begin_at_one_instant(trace: Path, tmp_path: Path) -> None:
    """No call is due before the common start, and each lane's first is due at it."""
    result, _ = replayed(trace, tmp_path / "out", 2)
    first = [each for each in result.run.records() if each.request.visit == each.request.call == 0]
    assert len(first) == 5
    assert all(0 <= each.request.due_ns <= each.sent_ns for each in first)


class Held:
    """A server that answers well up to its *whole* first requests, and holds from there on."""

    def __init__(self, whole: int) -> None:
        self.whole = whole
        self.posts = 0
        self.free = asyncio.Event()

    def __call__(self, request: Request) -> Answer | None:
        answer = answered(request)
        if answer is not None:
            self.posts += 1
            if self.posts > self.whole:
                held: list[tuple[float, Any]] = [(0, hold(self.free)), *answer.script]
                return Answer(script=held)
        return answer


def children(pid: int) -> list[int]:
    """The processes that a process has started and that have not ended."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def held_run(
    trace: Path, out: Path, act: Callable[[subprocess.Popen[str], list[int]], None], free: bool
) -> tuple[subprocess.Popen[str], str, list[int]]:
    """A run of two workers and four users of which all have a call that the server holds; then
    *act*, with the workers, and if *free* what is held is answered."""
    server = Held(4)

    async def main() -> tuple[subprocess.Popen[str], str, list[int]]:
        async with ScriptedServer(server) as listening:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "agentreplay", "run", trace, "--url", listening.url),
                    *("--no-calibrate", "--users", "4", "--workers", "2", "--sessions", "4"),
                    *("--timing", "none", "--drain", "200ms", "--out", out),
                    *BUSY_MACHINE,
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            while server.posts < server.whole + 4:
                assert process.poll() is None
                await asyncio.sleep(0.01)
            workers = children(process.pid)
            await asyncio.to_thread(act, process, workers)
            if free:
                server.free.set()
            said, _ = await asyncio.to_thread(process.communicate, timeout=60)
            return process, said, workers

    return asyncio.run(main())


def test_a_worker_that_dies_makes_the_run_invalid(trace: Path, tmp_path: Path) -> None:
    """It is named with its users, and the others play to their end; what it recorded is kept."""

    def kill_one(process: subprocess.Popen[str], workers: list[int]) -> None:
        assert len(workers) == 2
        os.kill(workers[1], signal.SIGKILL)

    process, said, workers = held_run(trace, tmp_path / "out", kill_one, free=True)
    assert process.returncode == 3, said
    value = orjson.loads((tmp_path / "out" / "summary.json").read_bytes())
    [reason] = value["verdict"]["reasons"]
    assert reason["id"] == "worker_lost"
    assert reason["text"] == (
        f"1 of 2 workers, with 2 of 4 users: worker 1: process {workers[1]} was ended by SIGKILL"
    )
    lanes = [play for play in value["plays"] if play["lane"] in (0, 2)]
    assert [play["succeeded"] for play in lanes] == [CALLS, CALLS]
    assert reason["text"] in " ".join(said.split())


def test_an_interrupt_ends_all_workers(trace: Path, tmp_path: Path) -> None:
    """Ctrl-C at the command stops every worker, and the report tells of all records."""

    def interrupt(process: subprocess.Popen[str], workers: list[int]) -> None:
        process.send_signal(signal.SIGINT)

    process, said, workers = held_run(trace, tmp_path / "out", interrupt, free=False)
    assert process.returncode == 130, said
    value = orjson.loads((tmp_path / "out" / "summary.json").read_bytes())
    assert [reason["id"] for reason in value["verdict"]["reasons"]] == ["interrupted"]
    assert value["metrics"]["requests"]["succeeded"] == 4
    assert value["metrics"]["requests"]["cancelled"] == 4
    assert not any(map(alive, workers))


def test_workers_end_when_their_driver_is_killed(trace: Path, tmp_path: Path) -> None:
    """Nobody goes on sending for a command that is gone; what it has written can be reported."""

    def kill(process: subprocess.Popen[str], workers: list[int]) -> None:
        time_out = time.monotonic() + 30
        out = tmp_path / "out" / "records.jsonl"
        while not out.exists() or out.stat().st_size == 0:
            assert time.monotonic() < time_out
            time.sleep(0.01)
        process.kill()

    _, _, workers = held_run(trace, tmp_path / "out", kill, free=False)
    time_out = time.monotonic() + 30
    while any(map(alive, workers)):
        assert time.monotonic() < time_out
        time.sleep(0.01)
    assert "interrupted" in agentreplay("report", tmp_path / "out").stdout


# --- Without processes ----------------------------------------------------------------------------


class Near:
    """A link within this process, between a driver and a worker."""

    def __init__(
        self,
        to: MemoryObjectSendStream[Message],
        back: MemoryObjectReceiveStream[Message],
    ) -> None:
        self.to = to
        self.back = back

    async def send(self, message: Message) -> None:
        try:
            self.to.send_nowait(message)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise LinkLost("it has hung up") from None

    async def receive(self) -> Message:
        try:
            return await self.back.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            raise LinkLost("it has hung up") from None

    def hang_up(self) -> None:
        self.to.close()
        self.back.close()


@contextmanager
def near() -> Iterator[tuple[Near, Near]]:
    """The two ends of a link, which hang up at the end."""
    there, here = (anyio.create_memory_object_stream[Message](float("inf")) for _ in range(2))
    ends = Near(there[0], here[1]), Near(here[0], there[1])
    yield ends
    for end in ends:
        end.hang_up()


def test_a_worker_that_is_gone_before_the_start_ends_the_run(trace: Path) -> None:
    """Nothing is sent by half of the workers."""

    async def main() -> None:
        with near() as (driver, worker):
            worker.hang_up()
            fleet = Fleet([driver], one_clock=True)
            with pytest.raises(ExceptionGroup) as raised:
                await fleet.prepare(share(trace, "http://127.0.0.1:1"))
        [error] = raised.value.exceptions
        assert isinstance(error, AgentReplayError)
        assert str(error) == "worker 0 ended before it began: it has hung up"

    asyncio.run(main())


def share(trace: Path, url: str) -> Share:
    """All lanes of two users."""
    plan = Plan(users=2, sessions=SESSIONS, duration_s=None, timing="none", salt=7)
    endpoint = Endpoint((api_url(url),))
    known = Calibration(Dialect("m", Template(form="messages"), {"ignore_eos": True}))
    return Share(load(trace), plan, endpoint, known, range(2))


def test_all_records_come_back_over_links(trace: Path) -> None:
    """A driver that has lost all workers but one gets all that this one has to tell."""
    lines: list[bytes] = []

    async def main() -> Fleet:
        async with embedded() as url, anyio.create_task_group() as group, AsyncExitStack() as stack:
            (first, worker), (second, gone) = (stack.enter_context(near()) for _ in range(2))
            fleet = Fleet([first, second], one_clock=True)
            group.start_soon(work, worker)
            group.start_soon(work, gone)
            await fleet.prepare(share(trace, url))
            gone.hang_up()
            ending, _ = await fleet.play(time.monotonic_ns(), lines.append)
            assert ending.reason == "work"
        return fleet

    fleet = asyncio.run(main())
    records = list(records_of(b"".join(lines).splitlines(keepends=True)))
    own = [each for each in records if each.request.lane == 0]
    assert len(own) == SESSIONS // 2 * CALLS
    assert [each["lost"] for each in fleet.facts()] == [None, "it has hung up"]


# --- How many -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("users", "cores", "workers"),
    [(8, 4, 1), (200, 4, 1), (201, 4, 2), (600, 4, 3), (5000, 4, 3), (5000, 64, 25), (600, 1, 1)],
)
def test_auto_takes_what_users_and_cores_ask_for(users: int, cores: int, workers: int) -> None:
    """A process for 20,000 tokens a second at 100 a user, and one core is left free."""
    assert workers_for(users, cores) == workers


def test_too_few_workers_are_cautioned_of() -> None:
    """Before anything is sent, where the tokens may be too many for the processes."""
    assert caution(200, 1) is None
    assert caution(400, 2) is None
    said = caution(400, 1)
    assert said is not None
    assert "400 users may receive 40,000 tokens a second, more than the 20,000" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--workers", "2", "--warmup-calls", "1"),
            "--workers 2: --warmup-calls needs one process",
        ),
        (("--workers", "2", "--start", "spread"), "--workers 2: --start spread needs one process"),
        (("--workers", "2", "--max-idle", "1s"), "--workers 2: --max-idle needs one process"),
        (("--workers", "2", "--scenario", "agentx"), "needs one process"),
        (("--workers", "9"), "--workers 9: there are 8 users"),
        (("--workers", "0"), "'0' is neither a number from 1 on nor 'auto'"),
        (("--workers", "many"), "'many' is neither a number from 1 on nor 'auto'"),
    ],
)
def test_what_needs_one_process_is_refused_with_more(
    trace: Path, options: tuple[str, ...], said: str
) -> None:
    """In a line that names it, and exit code 2."""
    ended = agentreplay("run", trace, *options)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_auto_is_one_process_where_one_is_needed(trace: Path, tmp_path: Path) -> None:
    """A warm-up needs one view of all lanes, so `auto` takes one process."""
    ended = agentreplay(
        *("run", trace, "--workers", "auto", "--users", "4", "--warmup-calls", "1", "--json"),
        *("--requests", "8", "--timing", "none", "--out", tmp_path / "out", *BUSY_MACHINE),
    )
    assert ended.returncode == 0, ended.stderr
    assert orjson.loads((tmp_path / "out" / "run.json").read_bytes())["workers"] == 1
