"""What routers are told: headers, addresses and connections of the requests of a session."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace

import anyio
import orjson
from scripted import Answer, Request, ScriptedServer, c, done, fin, usage
from virtually import chain

from agentreplay.client.endpoint import Endpoint, api_url, http_stream, open_client
from agentreplay.metrics.record import Record
from agentreplay.plan import Plan
from agentreplay.play import Dialect
from agentreplay.prompt.messages import Template
from agentreplay.replay import Replay
from agentreplay.trace.model import Session

TRACE = [chain(n, 3, gap_s=0.0, takes_s=0.0) for n in range(4)]


def answer(request: Request) -> Answer:
    return Answer(script=[(0, c(1)), (0, fin()), (0, usage(1, 1)), (0, done())])


def replayed(servers: list[ScriptedServer], **options: object) -> list[Record]:
    """Replay four sessions of three calls with two users against the servers."""
    records: list[Record] = []

    async def draw(index: int) -> Session:
        return TRACE[index]

    async def main() -> None:
        async with anyio.create_task_group():
            for server in servers:
                await server.__aenter__()
            try:
                urls = tuple(api_url(server.url) for server in servers)
                endpoint = replace(Endpoint(urls), **options)  # type: ignore[arg-type]
                async with open_client(endpoint, time.monotonic_ns) as client:
                    stream = http_stream(client, endpoint, time.monotonic_ns, "run")
                    plan = Plan(users=2, duration_s=None, sessions=4, timing="none")
                    dialect = Dialect("m", Template(), {})
                    run = Replay(plan, 4, draw, dialect, stream, time.monotonic_ns, records.append)
                    await run.run()
            finally:
                for server in servers:
                    await server.__aexit__(None, None, None)

    anyio.run(main)
    assert [record.error for record in records] == [None] * 12
    return records


def by_session(server: ScriptedServer) -> dict[str, list[Request]]:
    """A server's requests by their session header."""
    found: dict[str, list[Request]] = defaultdict(list)
    for request in server.requests:
        found[request.headers["x-session-id"]].append(request)
    return found


def test_requests_of_a_play_name_it() -> None:
    """Each play has a name of its own in X-Session-ID, and each request one in X-Request-ID."""
    server = ScriptedServer(answer)
    replayed([server])
    plays = by_session(server)
    assert sorted(plays) == ["run-0-0", "run-0-1", "run-1-0", "run-1-1"]
    assert {len(requests) for requests in plays.values()} == {3}
    assert len({request.headers["x-request-id"] for request in server.requests}) == 12


def test_the_session_header_can_be_renamed_and_left_out() -> None:
    """A router's own header carries the name; without one nothing does."""
    server = ScriptedServer(answer)
    replayed([server], session_header="X-Affinity")
    assert all("x-session-id" not in request.headers for request in server.requests)
    assert len({request.headers["x-affinity"] for request in server.requests}) == 4
    other = ScriptedServer(answer)
    replayed([other], session_header=None)
    assert all("x-session-id" not in request.headers for request in other.requests)


def test_a_play_keeps_to_one_of_several_addresses() -> None:
    """Of two servers both get plays, and each play stays with one."""
    servers = [ScriptedServer(answer), ScriptedServer(answer)]
    replayed(servers)
    plays = [set(by_session(server)) for server in servers]
    assert plays[0]
    assert plays[1]
    assert not plays[0] & plays[1]
    assert len(plays[0] | plays[1]) == 4


def test_plays_can_have_connections_of_their_own() -> None:
    """With a connection for each session no connection carries requests of two plays."""
    server = ScriptedServer(answer)
    replayed([server], connection_per_session=True)
    carried: dict[int, set[str]] = defaultdict(set)
    for request in server.requests:
        carried[request.connection].add(request.headers["x-session-id"])
    assert {len(plays) for plays in carried.values()} == {1}
    assert len(carried) == 4


def test_without_it_connections_are_shared() -> None:
    """Two users need two connections for four plays."""
    server = ScriptedServer(answer)
    replayed([server])
    assert server.connections == 2
    assert orjson.loads(server.requests[0].body)["model"] == "m"
