"""Servers with habits of their own: a run ends with right numbers or a named warning."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from command import agentreplay
from scripted import Answer, Request, ScriptedServer, c, done, fin, role, usage
from virtually import call

from agentreplay.trace.formats import native
from agentreplay.trace.model import Session
from agentreplay.trace.structure import link

PLAIN = {"model", "messages", "stream", "max_tokens"}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three sessions of eight calls that go on where the last one ended."""
    sessions = []
    for n in range(3):
        calls = [
            call(
                i * 0.01,
                i * 0.01 + 0.001,
                isl=1280 + 256 * i,
                osl=80,
                parent=i - 1 if i else None,
                shared=1280 + 256 * (i - 1) if i else 0,
                system=640,
            )
            for i in range(8)
        ]
        sessions.append(Session(f"s{n}", None, link(calls, 64), 64, ""))
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(map(native.line, sessions)))
    return path


def counted(asked: dict[str, Any], per_word: float = 1.0) -> int:
    words = sum(len(message["content"].split()) for message in asked["messages"])
    return round(words * per_word) + 5 * len(asked["messages"]) + 3


def streamed(asked: dict[str, Any], isl: int | None, cached: int | None = None) -> Answer:
    n = asked.get("max_tokens") or asked["max_completion_tokens"]
    script = [(0, role()), *((0, c(1)) for _ in range(n)), (0, fin())]
    if isl is not None:
        script.append((0, usage(isl, n, cached)))
    return Answer(script=[*script, (0, done())])


def run(
    trace: Path, tmp_path: Path, serve: Callable[[dict[str, Any]], Answer], *options: str
) -> dict[str, Any]:
    """Run the command against a server; the value of summary.json."""

    def answer(request: Request) -> Answer | None:
        return serve(orjson.loads(request.body)) if request.method == "POST" else None

    async def main() -> dict[str, Any]:
        async with ScriptedServer(answer) as server:
            out = tmp_path / "out"
            arguments = ("run", trace, "--url", server.url, "--sessions", "3", "--out", out)
            ended = await asyncio.to_thread(agentreplay, *arguments, "--json", *options)
            assert "Traceback" not in ended.stderr
            value: dict[str, Any] = orjson.loads(ended.stdout)
            return value

    return asyncio.run(main())


def reasons(value: dict[str, Any]) -> list[str]:
    """Why a run is invalid, this machine's slowness apart."""
    found = [reason["id"] for reason in value["verdict"]["reasons"]]
    return [reason for reason in found if reason != "client_limited"]


def test_a_strict_server_gets_no_field_it_does_not_know(trace: Path, tmp_path: Path) -> None:
    """422 on unknown fields: the run succeeds without them, and says that output is not forced."""

    def serve(asked: dict[str, Any]) -> Answer:
        if asked.keys() - PLAIN:
            return Answer(status=422, body=b'{"detail":"Unexpected fields in the request"}')
        return streamed(asked, counted(asked))

    value = run(trace, tmp_path, serve)
    assert reasons(value) == []
    assert value["metrics"]["requests"]["succeeded"] == 24
    assert value["metrics"]["isl_error"]["max"] == 0
    assert value["endpoint"]["forces_output"] is False


def test_a_server_without_usage_is_warned_of(trace: Path, tmp_path: Path) -> None:
    """No counts by the server: the lengths are unknown and said to be, not zero and not right."""
    value = run(trace, tmp_path, lambda asked: streamed(asked, None))
    assert [warning["id"] for warning in value["verdict"]["warnings"]] == ["prompt_usage_missing"]
    assert value["metrics"]["isl_error"]["p50"] is None
    assert value["metrics"]["prefix_reuse"]["server"] is None
    assert "no usage" in value["endpoint"]["calibration_failure"]


def test_a_tokenizer_that_cuts_words_is_compensated(trace: Path, tmp_path: Path) -> None:
    """1.3 tokens a word: prompts have fewer words, and their lengths are right within 1 %."""
    value = run(trace, tmp_path, lambda asked: streamed(asked, counted(asked, 1.3)))
    assert reasons(value) == []
    assert value["endpoint"]["template"]["tokens_per_word"] == pytest.approx(1.3)
    assert value["metrics"]["isl_error"]["max"] < 0.01


def test_a_template_that_drops_old_turns_is_found_out(trace: Path, tmp_path: Path) -> None:
    """Assistant turns but the last are dropped: lengths drift, and the verdict names it."""

    def serve(asked: dict[str, Any]) -> Answer:
        kept = [message for message in asked["messages"] if message["role"] != "assistant"]
        kept += [message for message in asked["messages"] if message["role"] == "assistant"][-1:]
        return streamed(asked, counted({"messages": kept}), 640)

    value = run(trace, tmp_path, serve)
    assert "prompt_length_drift" in reasons(value)
    assert value["shortfalls"]["short"] > 0
    assert "the template rewrites what follows" in value["shortfalls"]["first"][0]["reason"]


def test_sessions_too_long_for_the_context_are_counted(trace: Path, tmp_path: Path) -> None:
    """With room for 2,000 tokens only the first calls of each session fit, too little to judge."""

    def serve(asked: dict[str, Any]) -> Answer:
        return streamed(asked, counted(asked))

    value = run(trace, tmp_path, serve, "--context", "2000", "--fit", "drop-calls")
    assert value["metrics"]["requests"]["succeeded"] == 9
    assert (value["fit"]["dropped_calls"], value["fit"]["dropped_sessions"]) == (15, 0)
    assert value["fit"]["dropped_tokens"] < value["fit"]["tokens"]
    assert reasons(value) == ["too_little_fits"]


@pytest.mark.parametrize(("policy", "words"), [("fail", "needs"), ("drop-session", "nothing")])
def test_a_context_too_small_for_all_is_said(
    trace: Path, tmp_path: Path, policy: str, words: str
) -> None:
    """With fail the run ends before it sends anything; without a session left it says so."""
    out = tmp_path / "out"
    ended = agentreplay("run", trace, "--context", "2000", "--fit", policy, "--out", out)
    assert ended.returncode == (2 if policy == "fail" else 4)
    assert words in (ended.stderr if policy == "fail" else ended.stdout).splitlines()[-1]
