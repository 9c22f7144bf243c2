"""Keys and passwords: they reach the server, and stand in nothing that is written or printed."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from command import agentreplay
from scripted import Answer, Request, ScriptedServer, err
from virtually import chain

from agentreplay.trace.formats import native

SECRET = "sk-very-secret-7"


def _refusing(status: int) -> Callable[[str], Answer]:
    def refuse(said: str) -> Answer:
        return Answer(status=status, body=orjson.dumps({"error": {"message": said}}))

    return refuse


WAYS: dict[str, Callable[[str], Answer]] = {
    "refused key": _refusing(401),
    "bad request": _refusing(400),
    "error event": lambda said: Answer(script=[(0, err(said))]),
    "other content": lambda said: Answer(
        headers={"content-type": "text/plain"}, body=said.encode()
    ),
}
GIVEN = {
    "key": ["--api-key", SECRET],
    "header": ["--header", f"X-Api-Key: {SECRET}"],
    "query": [],
    "password": [],
}


@pytest.mark.parametrize("command", ["run", "probe"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("given", GIVEN)
def test_what_a_server_repeats_is_masked(
    given: str, way: str, command: str, tmp_path: Path
) -> None:
    """A server that repeats all it was sent gets no secret into a file or on the screen."""
    trace, out = tmp_path / "trace.jsonl", tmp_path / "out"
    trace.write_bytes(native.line(chain(0, 2)))
    heard = []

    def answer(request: Request) -> Answer:
        said = f"{request.path} {request.headers}"
        heard.append(said)
        return WAYS[way](said)

    async def main() -> str:
        async with ScriptedServer(answer) as server:
            url = server.url
            if given == "query":
                url += f"/v1?api_key={SECRET}"
            elif given == "password":
                url = url.replace("://", f"://someone:{SECRET}@")
            if command == "probe":
                arguments = ["probe", url, *GIVEN[given]]
            else:
                options = ["--requests", "2", "--out", str(out)]
                arguments = ["run", str(trace), "--url", url, *options, *GIVEN[given]]
            ended = await asyncio.to_thread(agentreplay, *arguments)
        assert "***" in ended.stdout
        return ended.stdout + ended.stderr

    printed = asyncio.run(main())
    sent = base64.b64encode(f"someone:{SECRET}".encode()).decode()
    secret = sent if given == "password" else SECRET
    assert any(secret in said for said in heard)
    files = out.iterdir() if out.exists() else []
    written = b"".join(path.read_bytes() for path in files).decode() + printed
    assert secret not in written
    assert SECRET not in written
    assert SECRET.removeprefix("sk-") not in written
