"""What the command takes as people start it: until its first request, of memory, and how late it
sends."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from agentreplay.trace.formats import native

from .programs import (
    CLIENT_CORE,
    LONGEST_S,
    SERVER_CORE,
    Phase,
    Source,
    built,
    environment,
    on_core,
    running,
)
from .sets import agent_folder, chain, copies, sessions
from .table import Line, Row, ratio_row

HELP = Line("--help", "s", 0.25)

FEW, MANY = Line("start, 75 sessions", "s", 1.0), Line("start, 10,000 sessions", "s", 1.0)
EQUAL = Line("start, 10,000 / 75 sessions", goal=1.2)
AGENTS = {name: Line(f"start, 500 MB of {name}", "s", 3.0) for name in ("claude-code", "codex")}
START = (FEW, MANY, EQUAL, *AGENTS.values())

REPLAYED = Line("memory, 64 users of 10,000 sessions", "MB", 250.0)
MIDDLE = Line("memory, beginning in their middle", "MB")
READ = Line("memory, reading 500 MB of claude-code", "MB", 300.0)
MEMORY = (REPLAYED, MIDDLE, READ)

LAG = (
    Line("lag P99, 64 users of 150,000 tokens", "ms", 5.0),
    Line("lag P99, while metrics are read", "ms", 5.0),
)

COMMAND = (sys.executable, "-m", "agentreplay")
FILES = 10_000
FILES_OF_AGENT = 500
USERS = 64
ROUNDS = 4
LOOK_S = 0.02

TOKENS = 150_000
CALLS = 40
OSL = 50
GAP_S = 1.0
LAG_ROUNDS = 3
PAGE_BYTES = 217_000
FOR_A_WHILE = ("--duration", "12s", "--drain", "1s")


def help_(_: Path) -> list[Row]:
    """From a command line to its help."""
    taken, cpu = list[float](), list[float]()
    for number in range(ROUNDS + 2):
        began_s, before_s = time.monotonic(), _children_s()
        subprocess.run(
            [*COMMAND, "--help"], stdout=subprocess.DEVNULL, check=True, env=environment()
        )
        if number:  # the first one may have compiled it
            taken.append(time.monotonic() - began_s)
            cpu.append(_children_s() - before_s)
    return [Row(HELP, tuple(taken), {"cpu_s": median(cpu)})]


def start(folder: Path) -> list[Row]:
    """From a command line to the first request of the plan at an endpoint that answers."""
    made = {line: folder / str(number) for number, line in enumerate((FEW, MANY, *AGENTS.values()))}
    for path in made.values():
        path.mkdir()
    copies(sessions(made[FEW]), made[MANY], FILES)
    for name, line in AGENTS.items():
        agent_folder(made[line], name, FILES_OF_AGENT)
    walls: dict[Line, list[float]] = defaultdict(list)
    cpus: dict[Line, list[float]] = defaultdict(list)
    with running(built("source", folder)) as source:
        _first_request_s(source, made[FEW], folder)  # it may have to be compiled
        for _ in range(ROUNDS):
            for line, path in made.items():
                wall_s, cpu_s = _first_request_s(source, path, folder)
                walls[line].append(wall_s)
                cpus[line].append(cpu_s)
    rows = {line: Row(line, tuple(walls[line]), {"cpu_s": median(cpus[line])}) for line in made}
    rows[EQUAL] = ratio_row(EQUAL, walls[MANY], walls[FEW], "s")
    return [rows[line] for line in START]


def _first_request_s(source: Source, traces: Path, scratch: Path) -> tuple[float, float]:
    """Seconds until the source had the first request that is none of the calibration's, and the
    CPU time until a moment later."""
    source.log()
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        out, url = Path(folder) / "run", source.url(Phase(tokens=1, pace_us=1000))
        before_s, began_ns = _children_s(), time.monotonic_ns()
        with subprocess.Popen(
            _run(traces, url, out), stdout=subprocess.DEVNULL, env=environment()
        ) as process:
            try:
                first_ns = _first_ns(source, process)
            finally:
                process.kill()
    return (first_ns - began_ns) / 1e9, _children_s() - before_s


def _first_ns(source: Source, process: subprocess.Popen[bytes]) -> int:
    while process.poll() is None:
        came = [
            each.received_ns for each in source.log() if not each.name.startswith("calibration-")
        ]
        if came:
            return min(came)
        time.sleep(LOOK_S)
    raise RuntimeError(f"a run ended with {process.returncode} and had sent nothing")


def memory(folder: Path) -> list[Row]:
    """The most that a command's process has had in memory."""
    few, many, agent, out = (folder / name for name in ("few", "many", "agent", "out"))
    for path in (few, many, agent):
        path.mkdir()
    copies(sessions(few), many, FILES)
    agent_folder(agent, "claude-code", FILES_OF_AGENT)
    with running(built("source", folder)) as source:
        url = source.url(Phase(OSL, pace_us=20_000, spread=True))
        rows: list[Row] = []
        # From the middle on prompts are long from the first on, and come one soon after the other.
        soon = ("--start", "spread", "--warmup-limit", "10s", "--max-gap", "1s")
        for line, options in ((REPLAYED, ()), (MIDDLE, soon)):
            run = out / str(len(rows))
            peak_mb = _peak_mb(*_run(many, url, run, "--users", USERS, *options, *FOR_A_WHILE))
            rows.append(Row(line, (peak_mb,), {"requests": _requests(run)}))
    return [*rows, Row(READ, (_peak_mb(*COMMAND, "inspect", agent),))]


def _requests(run: Path) -> int:
    succeeded: int = _metrics(run)["requests"]["succeeded"]
    return succeeded


def _run(traces: Path, url: str, out: Path, *options: object) -> list[str]:
    words = [*COMMAND, "run", traces, "--url", url, "--quiet", "--out", out, *options]
    return list(map(str, words))


def _metrics(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads((out / "summary.json").read_bytes())["metrics"]
    return found


_PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
"""


def _peak_mb(*command: object) -> float:
    """The peak of a command, started by a process that is small itself: Linux counts what the
    parent of a process holds when it starts."""
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _PEAK, *map(str, command)],
        stdout=subprocess.PIPE,
        check=True,
        env=environment(),
    )
    return float(ended.stdout)


def lag(folder: Path) -> list[Row]:
    """How late requests of long prompts are sent, the command having one core; and so while it
    reads a page of the server's metrics once a second."""
    traces = folder / "long.jsonl"
    long = (chain(f"s{n}", TOKENS, TOKENS + 20_000, CALLS, OSL, GAP_S) for n in range(USERS))
    traces.write_bytes(b"".join(map(native.line, long)))
    late_ms: dict[Line, list[float]] = {line: [] for line in LAG}
    details: dict[Line, dict[str, list[float]]] = {line: defaultdict(list) for line in LAG}
    with running(built("source", folder)) as source, _metrics_page(folder) as page:
        url = source.url(Phase(OSL, pace_us=20_000, spread=True))
        for number in range(LAG_ROUNDS):
            for line, options in zip(LAG, ((), ("--metrics-url", page)), strict=True):
                out = folder / f"run-{number}-{len(options)}"
                asked = ("--users", USERS, "--ramp", "3s", *FOR_A_WHILE, *options)
                command = _run(traces, url, out, *asked)
                with on_core(CLIENT_CORE):
                    subprocess.run(
                        command, stdout=subprocess.DEVNULL, timeout=LONGEST_S, env=environment()
                    )
                metrics = _metrics(out)
                late_ms[line].append(metrics["lag"]["p99"] * 1e3)
                found = details[line]
                found["p50_ms"].append(metrics["lag"]["p50"] * 1e3)
                found["loop_late_max_ms"].append(metrics["client"]["loop_late_max"] * 1e3)
                found["requests"].append(metrics["requests"]["succeeded"])
    return [
        Row(
            line,
            tuple(late_ms[line]),
            {name: median(values) for name, values in details[line].items()},
        )
        for line in LAG
    ]


@contextmanager
def _metrics_page(folder: Path) -> Iterator[str]:
    """The address of a page as long as that of a vLLM with several engines, beside the source."""
    one = (Path(__file__).parents[1] / "data" / "metrics" / "vllm.txt").read_bytes()
    served = folder / "served"
    served.mkdir()
    (served / "metrics").write_bytes(one * (PAGE_BYTES // len(one)))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ("-m", "http.server", port, "--bind", "127.0.0.1", "--directory", served)
    with on_core(SERVER_CORE):
        server = subprocess.Popen(
            [sys.executable, *map(str, words)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    try:
        yield f"http://127.0.0.1:{port}/metrics"
    finally:
        server.kill()
        server.wait()


def _children_s() -> float:
    """CPU time of all processes that this one has started and waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
