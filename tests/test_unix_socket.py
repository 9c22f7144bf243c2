"""An endpoint behind a unix socket: a probe and a run reach it, and name it as it was given."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from scripted import MODEL, Answer, Request, ScriptedServer, c, done, fin, role, usage
from virtually import chain

from agentreplay.client.endpoint import Endpoint, api_url
from agentreplay.client.findings import Findings
from agentreplay.client.probe import probe
from agentreplay.errors import AgentReplayError
from agentreplay.outcome import Result
from agentreplay.plan import Plan
from agentreplay.run import run_plan
from agentreplay.trace.formats import native
from agentreplay.trace.load import load


def answer(request: Request) -> Answer | None:
    """As many tokens as are asked for, of a prompt of which each word is one."""
    if request.method == "GET":
        return None
    asked = json.loads(request.body)
    words = sum(len(message["content"].split()) for message in asked["messages"])
    tokens = asked["max_tokens"]
    counted = (0.0, usage(words, tokens, 0))
    return Answer(script=[(0, role()), *[(0.0, c(1))] * tokens, (0, fin()), counted, (0, done())])


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the socket is to lie; its letters are not all small ones."""
    return tmp_path_factory.mktemp("unix") / "Server.sock"


def test_a_run_over_a_unix_socket(path: Path, tmp_path: Path) -> None:
    """It is as any other run; the process stamps what arrives, and the result says so."""
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(b"".join(native.line(chain(n, 3, gap_s=0.01)) for n in range(2)))

    async def main() -> Result:
        async with ScriptedServer(answer, path=path) as server:
            endpoint = Endpoint((api_url(server.url),))
            plan = Plan(users=2, duration_s=None, sessions=2)
            ran = await run_plan(load(trace), plan, tmp_path / "out", endpoint=endpoint)
            assert {request.headers["host"] for request in server.requests} == {"localhost"}
            return ran

    value = anyio.run(main).value
    assert value["metrics"]["requests"]["succeeded"] == 6
    assert value["metrics"]["client"]["stamps"] == "process"
    assert value["metrics"]["client"]["read_delay_max"] is None
    assert value["endpoint"]["urls"] == [f"unix:{path}:/v1/chat/completions"]
    assert value["endpoint"]["model"] == MODEL


def test_a_probe_over_a_unix_socket(path: Path) -> None:
    """It finds what it finds elsewhere."""

    async def main() -> Findings:
        async with ScriptedServer(answer, path=path) as server:
            return await probe(Endpoint((api_url(server.url),)))

    found = anyio.run(main)
    assert found.usable
    assert found["address"].value == f"unix:{path}:/v1/chat/completions"
    assert found["output_length"].ok is True
    assert found["metrics"].ok is True


def test_nothing_listens_there(path: Path) -> None:
    """A path where nothing is gives the path, and the cause in words."""

    async def main() -> Findings:
        return await probe(Endpoint((api_url(f"unix:{path}"),)))

    found = anyio.run(main)
    assert not found.usable
    assert found["address"].why == (
        f"no answer: unix:{path}: can't connect: No such file or directory"
    )


def test_no_path_is_no_address() -> None:
    """Without a path it is refused."""
    with pytest.raises(AgentReplayError, match="'unix:' is no address"):
        api_url("unix:")
