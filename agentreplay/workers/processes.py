"""Workers as processes on this machine. I/O.

Each one is a new interpreter with a socket to the driver. Signals of the terminal go to the driver
alone, which tells the workers; one whose driver is gone ends by itself.
"""

from __future__ import annotations

import asyncio
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import anyio.abc

from agentreplay.client.machine import LOOP
from agentreplay.workers.link import LinkLost
from agentreplay.workers.messages import Message

LONGEST_END_S = 5.0
"""A process that has not ended so long after its driver has hung up is killed."""

_LENGTH_BYTES = 8


class _SocketLink:
    """A socket that messages go over, each behind its length."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        process: anyio.abc.Process | None = None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._process = process

    async def send(self, message: Message) -> None:
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        try:
            self._writer.write(len(data).to_bytes(_LENGTH_BYTES) + data)
            await self._writer.drain()
        except OSError:
            raise LinkLost(await self._why()) from None

    async def receive(self) -> Message:
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES))
            return pickle.loads(await self._reader.readexactly(length))
        except (OSError, asyncio.IncompleteReadError):
            raise LinkLost(await self._why()) from None

    def hang_up(self) -> None:
        """Send and receive no more."""
        self._writer.close()

    async def _why(self) -> str:
        if self._process is None:
            return "the driver is gone"
        with anyio.move_on_after(LONGEST_END_S):
            code = await self._process.wait()
            if code < 0:
                return f"process {self._process.pid} was ended by {signal.Signals(-code).name}"
            return f"process {self._process.pid} ended with exit code {code}"
        return f"process {self._process.pid} hung up"


async def _linked(end: socket.socket, process: anyio.abc.Process | None = None) -> _SocketLink:
    return _SocketLink(*await asyncio.open_unix_connection(sock=end), process)


@asynccontextmanager
async def processes(count: int) -> AsyncIterator[list[_SocketLink]]:
    """Start *count* workers on this machine; links to them, which hang up at the end."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(_process()) for _ in range(count)]


@asynccontextmanager
async def _process() -> AsyncIterator[_SocketLink]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = await anyio.open_process(
            [sys.executable, "-m", "agentreplay.workers.processes", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=None,
            stderr=None,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    link = await _linked(ours, process)
    try:
        yield link
    finally:
        with anyio.CancelScope(shield=True):
            link.hang_up()
            with anyio.move_on_after(LONGEST_END_S):
                await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _work(end: socket.socket) -> None:
    from agentreplay.workers.worker import work

    await work(await _linked(end))


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    anyio.run(_work, socket.socket(fileno=int(sys.argv[1])), backend_options=LOOP)
