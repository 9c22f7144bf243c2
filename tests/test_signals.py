"""SIGINT, SIGTERM and SIGKILL in every phase of a run: it ends soon, and leaves what it has."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from command import agentreplay
from scripted import Answer, Event, Request, ScriptedServer, c, done, fin, hold, role, usage
from virtually import chain

from agentreplay.trace.formats import native

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Thirty short sessions."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(native.line(chain(n, 4, gap_s=0.05)) for n in range(30)))
    return path


def start(trace: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    """A run of five minutes."""
    run = [sys.executable, "-m", "agentreplay", "run", str(trace), "--duration", "5m"]
    return subprocess.Popen(
        [*run, "--out", str(out), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    """Wait until the run has *reached* something."""
    while not reached():
        assert process.poll() is None
        time.sleep(0.01)


def has_records(out: Path) -> bool:
    records = out / "records.jsonl"
    return records.exists() and records.stat().st_size > 0


def ended(process: subprocess.Popen[str], out: Path, code: int) -> dict[str, Any]:
    """The summary that the run left, having ended with *code* and said that."""
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == code, stderr
    assert stdout.splitlines()[-1].endswith(f"exit {code}: interrupted")
    value: dict[str, Any] = orjson.loads((out / "summary.json").read_bytes())
    assert value["ended"] == "interrupted"
    assert "interrupted" in [reason["id"] for reason in value["verdict"]["reasons"]]
    return value


def open_files(pid: int) -> set[str]:
    """The files that a process has open; one that it closes meanwhile may be missing."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(FileNotFoundError):
            found.add(os.readlink(link))
    return found


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_while_loading(tmp_path: Path, number: int, code: int) -> None:
    """While the traces are read, a signal ends the run before anything is sent."""
    trace, out = tmp_path / "long.jsonl", tmp_path / "out"
    trace.write_bytes(native.line(chain(0, 50)) * 30_000)
    process = start(trace, out, "--strict")

    def reads() -> bool:
        return str(trace) in open_files(process.pid)

    until(process, reads)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == code
    assert stderr.strip() == "agentreplay: interrupted"


class Held:
    """A server that answers well up to its *whole* first requests, and holds from there on."""

    def __init__(self, whole: int, before: Sequence[Event] = ()) -> None:
        self.whole = whole
        self.before = before
        self.posts = 0

    def __call__(self, request: Request) -> Answer | None:
        if request.method == "GET":
            return None
        self.posts += 1
        n = orjson.loads(request.body)["max_tokens"]
        if self.posts > self.whole:
            held = [(0.0, event) for event in (*self.before, hold(asyncio.Event()))]
            return Answer(script=held)
        answer = [role(), *([c(1)] * n), fin(), usage(100, n), done()]
        return Answer(script=[(0, event) for event in answer])


def signalled(
    server: Held, trace: Path, out: Path, *numbers: int, options: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """A run against *server* that is sent each signal once its requests are held."""

    async def main() -> subprocess.Popen[str]:
        async with ScriptedServer(server) as listening:
            process = start(trace, out, "--url", listening.url, "--users", "1", *options)
            reached = server.whole + 1
            await asyncio.to_thread(until, process, lambda: server.posts >= reached)
            for number in numbers:
                process.send_signal(number)
                # A second one of the same kind would be merged with the first.
                await asyncio.to_thread(until_taken, process)
            await asyncio.to_thread(process.wait, 30)
        return process

    return asyncio.run(main())


def until_taken(process: subprocess.Popen[str]) -> None:
    """Wait until no signal is pending for the process, or it has ended."""
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        pending = [line.split()[1] for line in status.read_text().splitlines() if "Pnd" in line]
        if not any(int(mask, 16) for mask in pending):
            return
        time.sleep(0.01)


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_while_probing(trace: Path, tmp_path: Path, number: int, code: int) -> None:
    """While the chat template is measured, a signal ends the run before anything is sent."""
    out = tmp_path / "out"
    process = signalled(Held(1), trace, out, number)
    assert ended(process, out, code)["metrics"]["requests"]["attempted"] == 0


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_while_running(trace: Path, tmp_path: Path, number: int, code: int) -> None:
    """A signal while running: what was answered is reported."""
    out = tmp_path / "out"
    process = start(trace, out)
    until(process, lambda: has_records(out))
    process.send_signal(number)
    assert ended(process, out, code)["metrics"]["requests"]["succeeded"] > 0


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_what_is_in_flight_is_cut_at_the_drain_limit(
    trace: Path, tmp_path: Path, number: int, code: int
) -> None:
    """After a signal an answer that doesn't end is cut after the drain limit, and counted."""
    out = tmp_path / "out"
    process = signalled(Held(6, [role(), c(1)]), trace, out, number, options=["--drain", "100ms"])
    requests = ended(process, out, code)["metrics"]["requests"]
    assert (requests["succeeded"], requests["cancelled"]) == (2, 1)


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_second_signal_cuts_at_once(trace: Path, tmp_path: Path, number: int, code: int) -> None:
    """A second signal doesn't wait for what is in flight, and the report is there all the same."""
    out = tmp_path / "out"
    process = signalled(Held(6), trace, out, number, number, options=["--drain", "1h"])
    requests = ended(process, out, code)["metrics"]["requests"]
    assert (requests["succeeded"], requests["cancelled"]) == (2, 1)


def test_a_signal_while_draining(trace: Path, tmp_path: Path) -> None:
    """After the plan's time the first signal cuts the drain short."""
    out = tmp_path / "out"
    options = ["--duration", "200ms", "--drain", "1h", "--first-token-timeout", "1h"]
    process = signalled(Held(6), trace, out, signal.SIGINT, signal.SIGINT, options=options)
    requests = ended(process, out, 130)["metrics"]["requests"]
    assert (requests["succeeded"], requests["cancelled"]) == (2, 1)


def test_a_killed_run_can_be_reported(trace: Path, tmp_path: Path) -> None:
    """After kill -9 what was flushed is reported, marked interrupted."""
    out = tmp_path / "out"
    process = start(trace, out)
    until(process, lambda: has_records(out))
    process.kill()
    process.communicate()
    value = orjson.loads(agentreplay("report", out, "--json").stdout)
    assert value["metrics"]["requests"]["succeeded"] > 0
    assert "interrupted" in [reason["id"] for reason in value["verdict"]["reasons"]]
