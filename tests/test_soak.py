"""Twenty users for ten hours of virtual time: what a run keeps, and what it doesn't."""

from __future__ import annotations

import gc
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

import anyio
import pytest
from soak import RECORD_BYTES, SLACK_BYTES, resident_bytes
from virtually import DIALECT, chain

from agentreplay.client.stream import Reply, Sink
from agentreplay.metrics.record import Record, Request
from agentreplay.metrics.verdict import Limits
from agentreplay.plan import Plan
from agentreplay.replay import Replay
from agentreplay.report.live import PLAIN_LINE_NS, Tally, line
from agentreplay.run import FLUSH_S
from agentreplay.sim import virtual
from agentreplay.store import RunWriter, read_run
from agentreplay.trace.model import Session

HOURS = 10
PLAN = Plan(users=20, duration_s=HOURS * 3600.0)
SESSIONS = 7

SLACK_BLOCKS = 1000
"""What is in flight differs from hour to hour. A leak of one object a request would be 26,000."""

READS, CHUNKS, STEP_S = 4, 3, 4.0
TOKENS = b'data: {"choices":[{"delta":{"content":" word word"}}]}\n\n'
END = (
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":640,"completion_tokens":24}}\n\n'
    b"data: [DONE]\n\n"
)


@dataclass(frozen=True, slots=True)
class Held:
    """What the process holds at one instant.

    Attributes:
        asked: Requests sent so far.
        blocks: Small objects, which Python counts one by one.
        resident: All memory.
    """

    asked: int
    blocks: int
    resident: int


@dataclass(slots=True)
class Soaked:
    """A run of ten hours: its directory, the requests that were asked, and each hour's end."""

    path: Path
    asked: int = 0
    held: list[Held] = field(default_factory=list)


@pytest.fixture(scope="module")
def soaked(tmp_path_factory: pytest.TempPathFactory) -> Soaked:
    """The run, recorded and looked at as `agentreplay run` does."""
    result = Soaked(tmp_path_factory.mktemp("soak") / "run")
    tally = Tally()

    async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
        result.asked += 1
        for _ in range(READS):
            await anyio.sleep(STEP_S)
            for _ in range(CHUNKS):
                sink(virtual.clock(), TOKENS)
        sink(virtual.clock(), END)
        return Reply(200, "text/event-stream", b"")

    async def draw(index: int) -> Session:
        return chain(index, 4 + index, gap_s=1.0 + index)

    async def main() -> None:
        def on_record(record: Record) -> None:
            writer.append(record)
            tally.take(record)

        async def keep() -> None:
            while True:
                await anyio.sleep(FLUSH_S)
                writer.flush()

        async def look() -> None:
            while True:
                await anyio.sleep(PLAIN_LINE_NS / 1e9)
                line(tally, virtual.clock(), run.progress, PLAN.duration_s)

        async def measure() -> None:
            for hour in range(1, HOURS + 1):
                await anyio.sleep(hour * 3600 - 1 - virtual.clock() / 1e9)
                gc.collect()
                now = Held(result.asked, sys.getallocatedblocks(), resident_bytes())
                result.held.append(now)

        with RunWriter(result.path, {"plan": asdict(PLAN), "limits": asdict(Limits())}) as writer:
            run = Replay(PLAN, SESSIONS, draw, DIALECT, stream, virtual.clock, on_record)
            async with anyio.create_task_group() as beside:
                for each in (keep, look, measure):
                    beside.start_soon(each)
                await run.run()
                beside.cancel_scope.cancel()

    virtual.run(main)
    return result


def test_every_request_is_on_disk(soaked: Soaked) -> None:
    """After ten hours there is one record for each request that was sent, and none twice."""
    requests = [record.request for record in read_run(soaked.path).records()]
    assert len(requests) == soaked.asked > PLAN.users * HOURS * 100
    assert len({(each.lane, each.visit, each.call) for each in requests}) == soaked.asked


def test_no_object_is_kept_of_a_request(soaked: Soaked) -> None:
    """Python holds as many small objects at hour ten as at hour two."""
    early, late = soaked.held[1], soaked.held[-1]
    assert late.blocks - early.blocks < SLACK_BLOCKS < (late.asked - early.asked) / 10


def test_memory_grows_by_what_is_stated(soaked: Soaked) -> None:
    """From hour two to hour ten it grows by 13 bytes a record and no more than 5 MB besides."""
    early, late = soaked.held[1], soaked.held[-1]
    stated = (late.asked - early.asked) * RECORD_BYTES
    assert late.resident - early.resident < stated + SLACK_BYTES
