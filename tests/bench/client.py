"""One measurement of one client, in a process of its own: what answers cost it in CPU time.

    python tests/bench/client.py STACK PORT STREAMS TARGET:REQUESTS...

For each TARGET of the source, every stream asks for it REQUESTS times, one after the other, on
connections that stay open; a line of JSON says what that took. All stacks run in the loop that
commands run in, with its settings, and read the same bytes. With `--stamps` the last line also
tells when the client says that each token arrived.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias

import aiohttp
import anyio
import httpx
import orjson

from agentreplay.client.arrivals import Arrivals
from agentreplay.client.calibrate import lone_request
from agentreplay.client.endpoint import REQUEST_HEADER, Endpoint, http_stream, open_client
from agentreplay.client.exchange import exchange
from agentreplay.client.machine import LOOP
from agentreplay.client.transport import raise_malloc_threshold
from agentreplay.commands.running import starting
from agentreplay.metrics.record import Record, Request
from agentreplay.wire import chat
from agentreplay.wire.answer import Answer

RUN = "bench"
HEADERS = {
    "content-type": "application/json",
    "accept": "text/event-stream",
    "accept-encoding": "identity",
}
MESSAGE = orjson.dumps({"role": "user", "content": "word " * 100})
BODY = chat.body("model", [MESSAGE], {"max_tokens": 20})

Result: TypeAlias = Record | Sequence[int]
"""What a client makes of an answer: our record, or when each token arrived."""

Ask: TypeAlias = Callable[[str, Request], Awaitable[Result]]
"""Asks for a target."""

_ORIGIN_NS = 0


def clock() -> int:
    """The clock of a run, but that it begins with the machine's, as the source's does."""
    return time.monotonic_ns() - _ORIGIN_NS


@asynccontextmanager
async def ours(address: str) -> AsyncIterator[Ask]:
    """Our client as a run uses it, all the way from a request to a record."""
    arrivals = Arrivals(clock)
    async with open_client(Endpoint((address,)), clock, arrivals) as client:
        streams = {}

        async def ask(target: str, request: Request) -> Record:
            if target not in streams:
                endpoint = Endpoint((address + target,))
                streams[target] = http_stream(client, endpoint, arrivals.now, RUN)
            return await exchange(
                streams[target], chat.API, request, BODY, clock, lambda record: None
            )

        yield ask


@asynccontextmanager
async def aiohttp_any(address: str) -> AsyncIterator[Ask]:
    """aiohttp, with our own parsing of what comes."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def ask(target: str, request: Request) -> Sequence[int]:
            answer = Answer(chat.API.piece)
            headers = {**HEADERS, REQUEST_HEADER: request.request_id(RUN)}
            async with session.post(address + target, data=BODY, headers=headers) as response:
                async for data in response.content.iter_any():
                    answer.feed(clock(), data)
            answer.close(clock())
            assert answer.finish, answer.broken
            return answer.stamps_ns

        yield ask


@asynccontextmanager
async def httpx_lines(address: str) -> AsyncIterator[Ask]:
    """httpx as it comes, each line decoded as people write it."""
    async with httpx.AsyncClient() as client:

        async def ask(target: str, request: Request) -> Sequence[int]:
            stamps = []
            headers = {**HEADERS, REQUEST_HEADER: request.request_id(RUN)}
            async with client.stream(
                "POST", address + target, content=BODY, headers=headers
            ) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        choices = orjson.loads(line[6:])["choices"]
                        if choices and choices[0]["delta"]["content"]:
                            stamps.append(clock())
            return stamps

        yield ask


STACKS = {"ours": ours, "aiohttp": aiohttp_any, "httpx": httpx_lines}


def stamps(result: Result) -> list[int]:
    """When each token arrived."""
    if not isinstance(result, Record):
        return list(result)
    assert result.error is None, result.error
    assert result.first_token_ns is not None
    return list(accumulate((gap * 1000 for gap in result.chunk_us), initial=result.first_token_ns))


def cpu_s() -> float:
    """CPU time of this process, of user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def measure(
    stack: str, port: int, streams: int, phases: Sequence[str], with_stamps: bool
) -> None:
    """Print a line for each phase."""
    planned = lone_request(0, 100, 20)
    async with STACKS[stack](f"http://127.0.0.1:{port}") as ask:
        for number, phase in enumerate(phases):
            target, _, times = phase.rpartition(":")
            lanes = [
                [replace(planned, lane=lane, visit=number, call=n) for n in range(int(times))]
                for lane in range(streams)
            ]
            answers: list[tuple[Request, Result]] = []
            gc.collect()
            began_s = cpu_s()
            async with anyio.create_task_group() as group:
                for requests in lanes:
                    group.start_soon(_lane, ask, target, requests, answers)
            took_s = cpu_s() - began_s
            arrived = {request.request_id(RUN): stamps(result) for request, result in answers}
            line: dict[str, Any] = {
                "requests": len(answers),
                "tokens": sum(map(len, arrived.values())),
                "cpu_s": took_s,
            }
            if with_stamps and number == len(phases) - 1:
                line["stamps"] = arrived
            sys.stdout.write(orjson.dumps(line).decode() + "\n")


async def _lane(
    ask: Ask, target: str, requests: Sequence[Request], answers: list[tuple[Request, Result]]
) -> None:
    answers += [(request, await ask(target, request)) for request in requests]


def main() -> None:
    """Measure as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("stack", choices=STACKS)
    parser.add_argument("port", type=int)
    parser.add_argument("streams", type=int)
    parser.add_argument("phases", nargs="+")
    parser.add_argument("--stamps", action="store_true")
    with starting():  # with this and the next as a run; it is fair to the others too
        given = parser.parse_args()
    raise_malloc_threshold()
    work = partial(measure, given.stack, given.port, given.streams, given.phases, given.stamps)
    anyio.run(work, backend_options=LOOP)


if __name__ == "__main__":
    main()
