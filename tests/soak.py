"""Five real minutes of 200 users against the simulated server: what is left of them afterwards.

Run by `make soak`. Says what it counted, and ends with 1 where tasks or open files are left, a
record is missing, or memory grew by more than a run may keep.

    python tests/soak.py [--seconds 300]
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx

from agentreplay.client.endpoint import Endpoint, api_url
from agentreplay.client.machine import LOOP
from agentreplay.metrics.record import Record
from agentreplay.metrics.server import Load
from agentreplay.plan import Plan
from agentreplay.replay import Progress
from agentreplay.report.live import LiveView
from agentreplay.run import View, run_plan
from agentreplay.sim.server import embedded
from agentreplay.trace.formats import native
from agentreplay.trace.load import TraceSet, load
from agentreplay.trace.synth import synthesise

USERS = 200
SESSIONS = 300
CALLS = (3, 8)
LARGEST_TOKENS = 2048

RECORD_BYTES = 13
"""A success leaves three numbers of four bytes for the live screen; a sixteenth is to spare."""

SLACK_BYTES = 5_000_000

ASKED = {"messages": [{"role": "user", "content": "word"}], "max_tokens": 1}
NUMBER = "chatcmpl-sim-"
"""The simulated server numbers its answers."""


def resident_bytes() -> int:
    """The memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def open_files() -> set[str]:
    """What this process has open."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{link.name} {link.readlink()}")
        except FileNotFoundError:
            pass  # it was there for the looking
    return found


@dataclass(slots=True)
class Watched:
    """A run as the live line sees it: its records, and memory at tenths of its time."""

    plan: Plan
    records: int = 0
    held: list[tuple[int, int]] = field(default_factory=list)

    @contextmanager
    def show(self, manifest: dict[str, Any]) -> Iterator[View]:
        """The live line, with an eye on memory."""
        assert self.plan.duration_s is not None
        tenth_ns = self.plan.duration_s * 1e8
        with LiveView(self.plan, manifest) as live:
            yield _Watching(self, live, tenth_ns)


@dataclass(slots=True)
class _Watching:
    """The live line's own, and looks at memory."""

    watched: Watched
    live: LiveView
    tenth_ns: float

    def take(self, record: Record) -> None:
        self.live.take(record)
        self.watched.records += 1

    def show(self, now_ns: int, progress: Progress, server: Load | None) -> None:
        self.live.show(now_ns, progress, server)
        if now_ns >= self.tenth_ns * (len(self.watched.held) + 1):
            self.watched.held.append((self.watched.records, resident_bytes()))


async def soak(trace: TraceSet, plan: Plan, out_to: Path, out: Callable[[str], None]) -> bool:
    """Run *plan*, say what was found, and whether all is well."""
    watched = Watched(plan)
    async with embedded() as url:
        endpoint = Endpoint((api_url(url),), calibrate=False)
        before = open_files()
        result = await run_plan(trace, plan, out_to, endpoint=endpoint, show=watched.show)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        left = open_files() - before
        async with httpx.AsyncClient() as client:
            last = (await client.post(endpoint.urls[0], json=ASKED)).json()["id"]
    answered = int(last.removeprefix(NUMBER)) - 1
    on_disk = sum(1 for _ in result.run.records())
    (_, first), (early, middle), (late, end) = (watched.held[at] for at in (0, 4, -1))
    allowed = SLACK_BYTES + RECORD_BYTES * (late - early)
    requests = result.summary.metrics["requests"]
    out(", ".join(f"{count:,} {name}" for name, count in requests.items()))
    checks = (
        (f"{len(tasks)} tasks left {tasks or ''}", not tasks),
        (f"{len(before)} files open before, {len(left)} more after {left or ''}", not left),
        (
            f"{on_disk:,} records on disk, {watched.records:,} made, {answered:,} requests served",
            on_disk == watched.records == answered,
        ),
        (
            f"memory {first / 1e6:.1f} MB after a tenth of the time, {middle / 1e6:.1f} MB in the "
            f"middle, {end / 1e6:.1f} MB at the end; {(end - middle) / 1e6:.2f} MB more "
            f"of {allowed / 1e6:.2f} allowed",
            end - middle <= allowed,
        ),
    )
    for what, well in checks:
        out(f"{'ok   ' if well else 'WRONG'} {what}")
    return all(well for _, well in checks)


def main() -> int:
    """Soak as the options say; 1 where something is wrong."""
    parser = argparse.ArgumentParser(description="Soak a run.")
    parser.add_argument("--seconds", type=float, default=300.0, help="send for so long")
    options = parser.parse_args()

    def out(text: str) -> None:
        print(text, flush=True)  # noqa: T201

    plan = Plan(users=USERS, duration_s=options.seconds, timing="none", salt=secrets.randbits(63))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "short.jsonl"
        sessions = synthesise(SESSIONS, 1, calls=CALLS, largest_tokens=LARGEST_TOKENS)
        file.write_bytes(b"".join(map(native.line, sessions)))
        soaked = partial(soak, load(file), plan, Path(folder) / "run", out)
        return not anyio.run(soaked, backend_options=LOOP)


if __name__ == "__main__":
    sys.exit(main())
