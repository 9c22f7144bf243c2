"""Workers as actors on the nodes of a Ray cluster. I/O.

The command is the cluster's driver, and runs on one of its nodes. Each actor is a process of its
own that has one CPU of its node, as far from the other actors as there are nodes. Ray ends them
all when the driver ends, however it does.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, redirect_stdout
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from threading import Thread
from typing import Any

import anyio
import anyio.to_thread

import agentreplay
from agentreplay.errors import AgentReplayError
from agentreplay.share import Share
from agentreplay.trace.model import Trace
from agentreplay.workers.crew import host_and_port
from agentreplay.workers.link import LinkLost
from agentreplay.workers.messages import Message, Ready
from agentreplay.workers.worker import work

ANSWER_S = 5.0
"""A cluster that takes no connection for so long is not there; Ray itself would try for minutes."""

CONNECT_S = 30.0
"""What takes one and doesn't become ours within this is something else."""

PLACE_S = 30.0
"""So long actors may wait for CPUs: other jobs end, and clusters grow."""

INSTALL = "pip install 'agentreplay-loadgen[ray]'"


@asynccontextmanager
async def actors(
    address: str, count: int | None, most: int, place_s: float = PLACE_S
) -> AsyncIterator[list[_ActorLink]]:
    """Start workers on a cluster, spread over its nodes; links to them, who end with it.

    Args:
        address: `auto` for the cluster that this machine is a node of, or host:port of its head.
        count: How many; None for one on each node that has a CPU.
        most: More than these are never started where *count* is None.
        place_s: How long to wait for CPUs.

    Raises:
        AgentReplayError: Ray is not installed, there is no such cluster, it has too few CPUs, or
            agentreplay can't be run on its nodes.
    """
    try:
        import ray
    except ImportError:
        raise AgentReplayError(f"--ray {address}: Ray is not installed: {INSTALL}") from None
    # Ray prints what it thinks of nodes and processes that are lost, with pages of its logs.
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        await _connect(ray, address)
        try:
            yield await _start(ray, address, count, most, place_s)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(ray.shutdown)


async def _connect(ray: Any, address: str) -> None:
    where = (os.environ.get("RAY_ADDRESS") or address) if address == "auto" else address
    begin = partial(
        ray.init,
        address=where,
        logging_level=logging.ERROR,
        log_to_driver=False,
        # Nodes run the code that the command runs, whatever version they have.
        runtime_env={"py_modules": [str(Path(agentreplay.__file__).parent)]},
    )
    try:
        if where != "auto":
            with anyio.fail_after(ANSWER_S):
                await (await anyio.connect_tcp(*host_and_port(where))).aclose()
        with anyio.fail_after(CONNECT_S):
            await _aside(begin)
    except OSError:  # also what is late
        raise AgentReplayError(f"--ray {where}: no Ray cluster answers") from None
    except (ray.exceptions.RayError, RuntimeError, ValueError) as error:
        raise AgentReplayError(f"--ray {where}: {_last_line(error)}") from None


async def _start(
    ray: Any, address: str, count: int | None, most: int, place_s: float
) -> list[_ActorLink]:
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    nodes = {
        node["NodeID"]: node["NodeManagerAddress"]
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
    }
    count = count or max(1, min(len(nodes), most))
    group = placement_group([{"CPU": 1}] * count, strategy="SPREAD")
    if not await _aside(partial(group.wait, place_s)):
        free, all_of_them = ray.available_resources(), ray.cluster_resources()
        raise AgentReplayError(
            f"--ray {address}: each worker needs a CPU: {count} are asked for, and "
            f"{free.get('CPU', 0):g} of {all_of_them.get('CPU', 0):g} on {len(nodes)} nodes are "
            "free (--workers)"
        )
    remote, put = ray.remote(_Actor), cache(ray.put)
    handles = [
        remote.options(
            num_cpus=1,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=number
            ),
        ).remote()
        for number in range(count)
    ]
    links = []
    for number, handle in enumerate(handles):
        try:
            pid, node = await handle.whereabouts.remote()
        except ray.exceptions.RayError as error:
            raise AgentReplayError(
                f"--ray {address}: worker {number} can't start: {_last_line(error)}: does every "
                f"node have what it needs ({INSTALL})?"
            ) from None
        where = f"process {pid} on node {nodes.get(node, '?')} ({node[:8]})"
        links.append(_ActorLink(handle, where, put))
    return links


class _ActorLink:
    """The driver's way to an actor. *put* makes what goes to several of them one object."""

    def __init__(self, handle: Any, where: str, put: Any) -> None:
        self._handle = handle
        self._where = where
        self._put = put
        self._working = handle.work.remote()
        self._hearing = handle.hear.remote()
        self._heard: deque[Message] = deque()

    async def send(self, message: Message) -> None:
        if isinstance(message, Share):
            trace = self._put(message.trace)
            telling = self._handle.play.remote(replace(message, trace=()), trace)
        else:
            telling = self._handle.tell.remote(message)
        await self._answer(telling)

    async def receive(self) -> Message:
        while not self._heard:
            heard = await self._answer(self._hearing)  # asked again where this is cancelled
            self._hearing = self._handle.hear.remote()
            if not heard:
                await self._answer(self._working)
                raise LinkLost(f"{self._where} came to an end")
            self._heard += heard
        message = self._heard.popleft()
        return Ready(self._where) if isinstance(message, Ready) else message

    async def _answer(self, asked: Any) -> Any:
        from ray import exceptions

        try:
            return await asked
        except exceptions.RayError as error:
            # Older versions have one error for an actor that is gone and one that can't be reached.
            unreachable = getattr(exceptions, "ActorUnavailableError", ())
            why = "no way leads there" if isinstance(error, unreachable) else _last_line(error)
            raise LinkLost(f"{self._where}: {why}") from None


class _Actor:
    """A worker on a node, and its end of the way to the driver: two boxes for messages."""

    def __init__(self) -> None:
        self._tell, self._told = anyio.create_memory_object_stream[Message](float("inf"))
        self._say, self._said = anyio.create_memory_object_stream[Message](float("inf"))

    async def whereabouts(self) -> tuple[int, str]:
        """Its process, and the id of its node."""
        import ray

        return os.getpid(), ray.get_runtime_context().get_node_id()

    async def work(self) -> None:
        """Play the share that it is told, to its end."""
        with self._say:
            await work(self)

    async def play(self, share: Share, trace: Trace) -> None:
        """Take a share, and its trace, which comes by itself."""
        await self.tell(replace(share, trace=trace))

    async def tell(self, message: Message) -> None:
        """Take a message of the driver."""
        self._tell.send_nowait(message)

    async def hear(self) -> list[Message]:
        """What the worker has said since, once there is something; nothing at its end."""
        heard: list[Message] = []
        try:
            heard.append(await self._said.receive())
            while True:
                heard.append(self._said.receive_nowait())
        except (anyio.WouldBlock, anyio.EndOfStream):
            return heard

    async def send(self, message: Message) -> None:
        """The worker says something."""
        self._say.send_nowait(message)

    async def receive(self) -> Message:
        """The worker is told something."""
        return await self._told.receive()


async def _aside(call: Callable[[], Any]) -> Any:
    """Call it in a thread that nobody waits for once this is cancelled, not even at the exit."""
    done: Future[Any] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(done)


def _last_line(error: Exception) -> str:
    """What is said of a failure below where it was, as one sentence."""
    lines = [line for line in str(error).splitlines() if line.strip() and line[0] != "\t"]
    return (lines[-1] if lines else type(error).__name__).partition(". ")[0].strip().rstrip(".")
