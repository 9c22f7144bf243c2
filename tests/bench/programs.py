"""The C programs: built for the machine at hand, started, and read. I/O."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import orjson

import agentreplay

HERE = Path(__file__).parent

CORES = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else [0]
CLIENT_CORE, SERVER_CORE = CORES[0], CORES[-1]
"""The same on a machine with one core only."""

LONGEST_S = 120
"""No measurement takes longer, unless something hangs."""


Measured: TypeAlias = Mapping[str, Any]
"""What a client says of a phase: `requests`, `tokens`, `cpu_s`."""


class NotBuiltError(Exception):
    """There is no compiler, or the program is not for this system; says which."""


def built(name: str, folder: Path) -> Path:
    """The program *name*, compiled into *folder*.

    Raises:
        NotBuiltError: it could not be.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise NotBuiltError("no C compiler")
    program = folder / name
    ended = subprocess.run(
        [compiler, "-O2", "-o", program, HERE / f"{name}.c"], capture_output=True, text=True
    )
    if ended.returncode:
        raise NotBuiltError(f"{name}.c does not compile here: {ended.stderr.splitlines()[0]}")
    return program


def environment() -> dict[str, str]:
    """For processes that use the tree this one uses, and no proxy."""
    tree = str(Path(agentreplay.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": tree, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Processes started inside run on this core only."""
    if core is None or sys.platform != "linux":
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a measurement: what each stream asks for.

    Attributes:
        tokens: Of each answer.
        times: How often, one after the other.
        pace_us: From token to token.
        spread: Each stream has a phase of its own; otherwise all tick together.
    """

    tokens: int
    times: int = 1
    pace_us: int = 10_000
    spread: bool = False

    @property
    def query(self) -> str:
        """Asks the source for it."""
        phase = "spread" if self.spread else "aligned"
        return f"n={self.tokens}&pace_us={self.pace_us}&phase={phase}"

    def __str__(self) -> str:
        return f"/v1/chat/completions?{self.query}:{self.times}"


class Sent(NamedTuple):
    """What the source did for a stream, in nanoseconds of CLOCK_MONOTONIC.

    Attributes:
        name: The request's X-Request-ID; "-" for none.
        received_ns: When all of the request had come.
        sent_ns: When each token was sent.
    """

    name: str
    received_ns: int
    sent_ns: list[int]


@dataclass(frozen=True, slots=True)
class Source:
    """A running source.

    Attributes:
        port: Where it listens on 127.0.0.1.
    """

    port: int

    def url(self, phase: Phase) -> str:
        """An endpoint of which all answers are such ones."""
        return f"http://127.0.0.1:{self.port}/v1?{phase.query}"

    def log(self) -> list[Sent]:
        """The streams that have ended since the last look."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.port}/log", timeout=LONGEST_S) as response:
            lines = response.read().decode().splitlines()
        found = []
        for line in lines:
            name, received_ns, *sent_ns = line.split()
            found.append(Sent(name, int(received_ns), list(map(int, sent_ns))))
        return found


@contextmanager
def running(program: Path) -> Iterator[Source]:
    """The source, started on its core and ended afterwards."""
    with (
        on_core(SERVER_CORE),
        subprocess.Popen([program], stdout=subprocess.PIPE, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            yield Source(int(process.stdout.readline()))
        finally:
            process.kill()


def client(
    source: Source, stack: str, streams: int, phases: Sequence[Phase], *options: str
) -> list[Measured]:
    """Measure one of the clients in client.py in a fresh process on its core, phase by phase."""
    script = HERE / "client.py"
    return _lines(sys.executable, script, stack, source.port, streams, *phases, *options)


def floor(source: Source, program: Path, streams: int, phases: Sequence[Phase]) -> list[Measured]:
    """The same for the reader that parses nothing, and so counts no tokens either."""
    lines = _lines(program, source.port, streams, *phases)
    return [
        {**line, "tokens": line["requests"] * phase.tokens}
        for line, phase in zip(lines, phases, strict=True)
    ]


def _lines(*command: object) -> list[Measured]:
    with on_core(CLIENT_CORE):
        ended = subprocess.run(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            timeout=LONGEST_S,
            check=True,
            env=environment(),
        )
    return [orjson.loads(line) for line in ended.stdout.splitlines()]
