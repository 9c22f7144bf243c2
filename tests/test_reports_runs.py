"""Public bug reports of tools like this one: runs from their first request to the exit code.

Numbers in names are rows of a list of public bug reports of such tools. Each test plays its row's
small case and asserts the right behaviour.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import ssl
import subprocess
import sys
import tracemalloc
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace as changed
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar
from xml.etree import ElementTree

import anyio
import numpy as np
import orjson
import pytest
from command import BUSY_MACHINE as ALLOW_BUSY
from command import agentreplay
from records import record as hand_made
from rich.console import Console
from scripted import (
    MODEL,
    Answer,
    Request,
    ScriptedServer,
    c,
    cut,
    done,
    err,
    fin,
    hold,
    r,
    reset,
    role,
    usage,
)
from virtually import ANSWER, DIALECT, call, chain, oracle, replay

from agentreplay.client.endpoint import Endpoint, api_url, http_stream, open_client
from agentreplay.client.probe import probe
from agentreplay.client.stream import Reply, Sink
from agentreplay.metrics import record as values
from agentreplay.metrics.gate import gate, outcome
from agentreplay.metrics.goodput import request_limit
from agentreplay.metrics.record import Record
from agentreplay.metrics.summary import summarize
from agentreplay.metrics.verdict import Limits
from agentreplay.metrics.window import Ending
from agentreplay.outcome import Result, exit_code
from agentreplay.plan import Plan, Visit
from agentreplay.play import Play
from agentreplay.replay import Replay
from agentreplay.report.text import report
from agentreplay.run import run_plan
from agentreplay.sim import virtual
from agentreplay.trace.formats import native
from agentreplay.trace.load import load
from agentreplay.trace.model import Session
from agentreplay.trace.structure import link
from agentreplay.units import as_duration, as_number

T = TypeVar("T")

GUARD_S = 30.0
"""Bounds a test that hangs; nothing is measured with it."""

BUSY_MACHINE = Limits(loop_late_share=1.0, loop_late_max_s=3600.0, lag_p99_s=3600.0)

CHAT = "/v1/chat/completions"
PLAIN = {"model", "messages", "stream", "max_tokens"}
SPOKEN = ("content", "reasoning", "reasoning_content")


TOKEN = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'


def at_once(users: int, sessions: int) -> Plan:
    """So many sessions, without gaps."""
    return Plan(users=users, sessions=sessions, duration_s=None, timing="none")


def lone(number: int, isl: int = 640) -> Session:
    """A session of one call."""
    return Session(f"s{number}", None, link([call(0, 1, isl=isl, osl=1)], 64), 64, "")


def saved(folder: Path, trace: Sequence[Session]) -> Path:
    """The sessions in a file."""
    path = folder / "trace.jsonl"
    path.write_bytes(b"".join(map(native.line, trace)))
    return path


def guarded(main: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function, not for ever."""

    async def bounded() -> T:
        with anyio.fail_after(GUARD_S):
            return await main()

    return anyio.run(bounded)


def ran(
    folder: Path,
    trace: Sequence[Session],
    plan: Plan,
    *servers: ScriptedServer,
    path: str = "",
    **endpoint: Any,
) -> Result:
    """A run against servers that listen while it goes."""

    async def main() -> Result:
        async with AsyncExitStack() as stack:
            urls = [(await stack.enter_async_context(server)).url for server in servers]
            there = Endpoint(tuple(api_url(url + path) for url in urls), **endpoint)
            run = partial(run_plan, endpoint=there, limits=BUSY_MACHINE)
            return await run(load(saved(folder, trace)), plan, folder / "out")

    return guarded(main)


def commanded(
    server: ScriptedServer, *arguments: str | Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """The command's run against a server that listens while it goes."""

    async def main() -> subprocess.CompletedProcess[str]:
        async with server:
            command = partial(agentreplay, "run", *arguments, "--url", server.url, **variables)
            return await asyncio.to_thread(command)

    return guarded(main)


def printed(result: Result) -> str:
    """The report as it is printed."""
    console = Console(width=400, color_system=None)
    with console.capture() as capture:
        console.print(report(result.value))
    return capture.get()


def written(folder: Path) -> str:
    """All that a run has left."""
    files = [path for path in (folder / "out").rglob("*") if path.is_file()]
    assert len(files) >= 4
    return "".join(path.read_text() for path in files)


def of_run(server: ScriptedServer) -> list[Request]:
    """The requests of the replay itself, without those that measure the template."""
    posted = [request for request in server.requests if request.method == "POST"]
    return [each for each in posted if not is_calibration(each)]


def is_calibration(request: Request) -> bool:
    return request.headers["x-session-id"].startswith("calibration")


def counted(messages: Sequence[dict[str, Any]]) -> int:
    """Tokens of messages: five each, and their words."""
    return sum(
        5 + sum(len((message.get(name) or "").split()) for name in SPOKEN) for message in messages
    )


def streamed(*events: bytes) -> Answer:
    """An event stream in one write."""
    return Answer(script=[(0, b"".join(events))])


def answered(request: Request) -> Answer:
    """A whole answer of the length asked for, counted as Qwen's template would."""
    asked = orjson.loads(request.body)
    osl = asked.get("max_tokens") or asked["max_completion_tokens"]
    counts = usage(counted(asked["messages"]) + 3, osl)
    return streamed(role(), *[c(1)] * osl, fin("length"), counts, done())


def good(request: Request) -> Answer | None:
    """A server that answers everything."""
    return answered(request) if request.method == "POST" else None


def refused(status: int, message: str) -> Answer:
    return Answer(status=status, body=orjson.dumps({"error": {"message": message}}))


def replayed_words(request: Request) -> str:
    """All text of a prompt."""
    return " ".join(message["content"] for message in orjson.loads(request.body)["messages"])


def by_play(requests: Sequence[Request]) -> list[list[Request]]:
    """Requests of one play together: their prompts begin with the same block."""
    plays: dict[tuple[str, ...], list[Request]] = defaultdict(list)
    for request in requests:
        plays[tuple(replayed_words(request).split()[:64])].append(request)
    return list(plays.values())


class Held:
    """A server whose answers come when so many requests are there; refusals come at once."""

    def __init__(self, together: int, refusals: int = 0) -> None:
        """*refusals*: so many requests are refused, the first ones."""
        self._together = together
        self._refusals = refusals
        self._here = 0
        self._all_here = asyncio.Event()

    def __call__(self, request: Request) -> Answer | None:
        if request.method != "POST" or is_calibration(request):
            return good(request)
        self._here += 1
        if self._here == self._together:
            self._all_here.set()
        if self._here <= self._refusals:
            return refused(503, "overloaded")
        answer = answered(request)
        return changed(answer, script=[(0, hold(self._all_here)), *answer.script])


def held(folder: Path, trace: Sequence[Session], users: int) -> tuple[Result, ScriptedServer]:
    """A run of so many users whose first requests are all held until the last one is there."""
    server = ScriptedServer(Held(users))
    plan = at_once(users, users)
    options: dict[str, Any] = {"model": MODEL, "calibrate": False, "connect_s": GUARD_S}
    return ran(folder, trace, plan, server, **options), server


def all_at_once(result: Result, users: int) -> bool:
    """Whether the first requests of all users were under way at one instant."""
    first = [record for record in result.run.records() if record.request.call == 0]
    assert len(first) == users
    return max(record.sent_ns for record in first) < min(record.done_ns for record in first)


def test_row_06_latency_is_of_successes_and_stands_beside_the_failures() -> None:
    """4 of 10 refused at once and 6 that take 2 s: P90 2 s over six, 40 % failed, invalid."""
    trace = [lone(n) for n in range(10)]

    async def stream(request: values.Request, body: bytes, sink: Sink) -> Reply:
        if request.index < 4:
            return Reply(503, "application/json", b"overloaded")
        await anyio.sleep(2)
        return await instantly(request, body, sink)

    plan = at_once(10, 10)
    outcome = replay(plan, trace, stream)
    summary = summarize(outcome.records, plan, outcome.ending)
    found = summary.metrics
    assert (found["latency"]["n"], found["latency"]["p90"]) == (6, 2.0)
    assert (found["ttft"]["n"], found["ttft"]["min"]) == (6, 2.0)
    assert (found["requests"]["attempted"], found["requests"]["failed"]) == (10, 4)
    assert found["errors"] == {"http_5xx": 4}
    assert found["error_rate"] == 0.4
    assert not summary.verdict.valid


def test_row_06_a_run_with_refusals_fails_by_default(tmp_path: Path) -> None:
    """40 % refused: exit code 3, with the share in the reason and the cause in the report."""
    trace = [lone(n) for n in range(10)]
    result = ran(tmp_path, trace, at_once(10, 10), ScriptedServer(Held(10, refusals=4)))
    code, why = exit_code(result)
    assert code == 3
    assert "error_rate: 40.0% of requests failed" in why
    assert result.value["metrics"]["requests"]["succeeded"] == 6
    assert "HTTP 503: overloaded" in printed(result)


@pytest.mark.parametrize(("limit", "share"), [("latency <= 2s", 0.6), ("latency < 2s", 0.0)])
def test_row_06_goodput_is_of_all_that_were_attempted(limit: str, share: float) -> None:
    """4 of 10 refused at once and 6 that take 2 s: at most 60 % are good, and a gate on it sees
    that."""
    refusal = values.Failure("http_5xx", 503, "overloaded")
    rows = [hand_made([], visit=n, done_ms=1, error=refusal) for n in range(4)]
    rows += [hand_made([2000], visit=n) for n in range(4, 10)]
    ending = Ending("work", 2_000_000_000, 2_000_000_000)
    found = summarize(rows, at_once(10, 10), ending, goodput=(request_limit(limit),))
    assert found.metrics["goodput"] == share
    held = {"metrics": found.metrics}
    assert outcome(gate("goodput >= 60%"), held).passed == (share == 0.6)
    assert not outcome(gate("goodput > 60%"), held).passed


FILES = ("summary.json", "junit.xml", "summary.md")
"""What a CI system reads of a run."""


def for_ci(folder: Path) -> tuple[str | Path, ...]:
    """Options that leave all of it in the run directory."""
    out = folder / "out"
    return ("--out", out, "--junit", out / "junit.xml", "--summary-md", out / "summary.md")


def left(folder: Path) -> tuple[dict[str, Any], dict[str, str | None], str]:
    """The summary, what each test case failed with, and the page that a run has left."""
    summary, cases, page = ((folder / "out" / name).read_bytes() for name in FILES)
    found: dict[str, str | None] = {}
    for case in ElementTree.fromstring(cases).iter("testcase"):
        failure = case.find("failure")
        found[case.attrib["name"]] = None if failure is None else failure.attrib["message"]
    return orjson.loads(summary), found, page.decode()


def test_row_08_a_run_without_a_success_is_no_zero(tmp_path: Path) -> None:
    """Every answer is a 500: exit code 4, null instead of 0, and no file says that it went well."""
    server = ScriptedServer(lambda _: refused(500, "engine is dead"))
    trace = saved(tmp_path, [lone(n) for n in range(4)])
    options = ("--gate", "output_token_rate_run >= 0", *for_ci(tmp_path))
    ended = commanded(server, trace, *options)
    assert ended.returncode == 4
    value, cases, page = left(tmp_path)
    assert {value["metrics"]["latency"][name] for name in ("mean", "p50", "p99", "min")} == {None}
    assert value["metrics"]["output_token_rate_run"] is None
    assert value["gates"][0]["reason"] == cases["output_token_rate_run >= 0"] == "no sample"
    assert cases["verdict"] is not None
    assert page.startswith("## Verdict: invalid")
    assert "HTTP 500: engine is dead" in page


def test_row_10_fifty_long_sessions_are_in_flight_at_once(tmp_path: Path) -> None:
    """50 sessions with prompts of 60,000 tokens: the server has 50 requests at one instant."""
    calls = [
        call(0, 1, isl=60_032, osl=2),
        call(1, 2, isl=60_096, osl=2, parent=0, shared=60_032),
    ]
    trace = [Session(f"s{n}", None, link(calls, 64), 64, "") for n in range(50)]
    result, server = held(tmp_path, trace, 50)
    assert result.value["metrics"]["requests"]["succeeded"] == 100
    assert all_at_once(result, 50)
    assert len({request.connection for request in of_run(server)}) == 50


def test_row_10_a_later_turn_makes_no_more_than_its_own_part() -> None:
    """Besides the body itself, a turn makes a twentieth of it anew: the history is taken over."""
    calls = [
        call(
            n,
            n + 0.5,
            isl=60_032 + 1024 * n,
            osl=512,
            parent=n - 1 if n else None,
            shared=60_032 + 1024 * (n - 1) if n else 0,
            system=6400,
        )
        for n in range(20)
    ]
    session = Session("s", None, link(calls, 64), 64, "")
    play = Play(at_once(1, 1), Visit(0, 0, 0, 0), session, DIALECT)
    play.begin(0)
    shares = []
    tracemalloc.start()
    try:
        for n in range(len(calls)):
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            size = len(play.body(n))
            _, most = tracemalloc.get_traced_memory()
            shares.append((most - before - size) / size)
    finally:
        tracemalloc.stop()
    assert shares[0] > 1  # the first one is all new: what is counted does show
    assert max(shares[2:]) < 0.05


LONG = [lone(n, 6400) for n in range(8)]


def test_row_12_what_is_left_is_played_again_and_said(tmp_path: Path) -> None:
    """Eight of ten sessions are too long, six users: two are played three times each, with text
    that differs from the first block on, and the report says so."""
    server = ScriptedServer(good)
    trace = [lone(8), lone(9), *LONG]
    plan = Plan(users=6, requests=6, duration_s=None, timing="none", context_tokens=1000, seed=1)
    result = ran(tmp_path, trace, plan, server)
    sessions = result.value["metrics"]["sessions"]
    assert (sessions["started"], sessions["distinct"]) == (6, 2)
    assert (sessions["reused"], sessions["most_plays"]) == (4, 3)
    said = "6 started, 2 distinct; played up to 3 times, with other text each time"
    assert said in " ".join(printed(result).split())
    texts = [replayed_words(request).split() for request in of_run(server)]
    assert len(texts) == 6
    assert len({tuple(text[:64]) for text in texts}) == 6


def test_row_13_the_steady_window_stands_beside_the_whole_run() -> None:
    """Sessions of 1, 1, 1 and 10 s on four lanes: the window is the first second, with its own
    rates, and the rates of the run are over ten."""
    trace = [chain(n, 1, takes_s=10 if n == 3 else 1) for n in range(4)]
    plan = at_once(4, 4)
    outcome = replay(plan, trace, oracle(trace))
    summary = summarize(outcome.records, plan, outcome.ending)
    assert summary.window.seconds == pytest.approx(1)
    assert summary.metrics["output_token_rate"] == pytest.approx(3)
    assert summary.metrics["output_token_rate_run"] == pytest.approx(4 / 10)
    assert summary.metrics["concurrency"]["lanes_mean"] == pytest.approx(4)


def test_row_14_a_request_of_the_warm_up_gives_tokens_and_no_times() -> None:
    """Sent at 0, first token at 900 ms, one each 100 ms up to 2000 ms; the window opens at
    1000 ms. Its TTFT is none; its tokens from 1000 ms on count, the opening's instant lying inside,
    and its input, which came back at 900 ms, does not."""
    streamed_ms = [900, *range(1000, 2001, 100)]
    early = hand_made(streamed_ms, isl_served=100)
    inside = hand_made([1500, 1600], sent_ms=1200, isl_served=100)
    plan = Plan(users=1, duration_s=2.0, warmup_s=1.0)
    ending = Ending("duration", 3_000_000_000, 3_000_000_000, 1_000_000_000)
    found = summarize([early, inside], plan, ending).metrics
    assert (found["ttft"]["n"], found["ttft"]["max"]) == (1, 0.3)
    assert (found["requests"]["attempted"], found["requests"]["warmup"]) == (1, 1)
    assert found["output_token_rate"] == pytest.approx((11 + 2) / 2)
    assert found["input_token_rate"] == pytest.approx(100 / 2)


def test_row_15_the_hand_over_is_no_burst() -> None:
    """One prefill of 100 ms at a time and 16 lanes: measured from the hand-over on, the P99 of
    TTFT is that of the steady state, and not the 1600 ms of 16 lanes that start together."""
    trace = [chain(n, 300, gap_s=1.0 + 0.17 * n, takes_s=2.0) for n in range(16)]

    def found(duration_s: float, **changes: Any) -> list[tuple[float, float]]:
        """When measured requests were sent after the opening, and their TTFT."""
        prefill: list[anyio.Lock] = []

        async def stream(request: values.Request, body: bytes, sink: Sink) -> Reply:
            if not prefill:
                prefill.append(anyio.Lock())
            async with prefill[0]:
                await anyio.sleep(0.1)
            sink(virtual.clock(), TOKEN)
            if not request.warmup:
                await anyio.sleep(1.9)
            sink(virtual.clock(), ANSWER)
            return Reply(200, "text/event-stream", b"")

        plan = Plan(users=16, duration_s=duration_s, max_gap_s=None, order="recorded")
        outcome = replay(changed(plan, **changes), trace, stream)
        opened_ns = outcome.ending.opened_ns
        assert opened_ns is not None
        return [
            ((r.sent_ns - opened_ns) / 1e9, (r.first_token_ns - r.sent_ns) / 1e9)
            for r in outcome.records
            if r.first_token_ns is not None and not r.request.warmup
        ]

    def p99(samples: list[tuple[float, float]]) -> float:
        return float(np.percentile([ttft_s for _, ttft_s in samples], 99))

    together = found(5)
    assert max(ttft_s for at_s, ttft_s in together if at_s < 1) == pytest.approx(1.6)
    begun = found(200, start=(0.25, 0.75), warmup_calls=10)
    steady = p99([sample for sample in begun if sample[0] >= 100])
    assert p99(begun) < 1.5 * steady < 1.0


def test_row_20_a_broken_tool_call_is_not_sent_back(tmp_path: Path) -> None:
    """Arguments that are no JSON would be refused: the recorded turn goes, and is counted."""
    broken = [{"index": 0, "id": "c0", "function": {"name": "f", "arguments": '{"a":1</x>'}}]
    first = b"data: %b\n\n" % orjson.dumps({"choices": [{"delta": {"tool_calls": broken}}]})
    turns = iter(range(3))

    def serve(request: Request) -> Answer | None:
        if request.method != "POST" or is_calibration(request):
            return good(request)
        messages = orjson.loads(request.body)["messages"]
        for message in messages:
            for made in message.get("tool_calls") or ():
                try:
                    orjson.loads(made["function"]["arguments"])
                except orjson.JSONDecodeError:
                    return refused(400, "invalid tool call arguments")
        if next(turns) == 0:
            counts = usage(counted(messages) + 3, 10)
            return streamed(first, fin("tool_calls"), counts, done())
        return good(request)

    plan = changed(at_once(1, 1), history="live")
    result = ran(tmp_path, [chain(0, 3)], plan, ScriptedServer(serve))
    assert exit_code(result) == (0, "valid")
    assert result.value["metrics"]["sessions"]["completed"] == 1
    assert result.value["history"] == {"live": 1, "substituted": 1}
    assert "1 prompts held the recorded turn" in printed(result)


class Remembering:
    """A server that knows the lists of messages it has seen, each with the answer it gave.

    It thinks first, in the field *key*; of a prompt it finds the longest beginning that it knows.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._known: dict[bytes, int] = {}

    def __call__(self, request: Request) -> Answer | None:
        if request.method != "POST":
            return None
        asked = orjson.loads(request.body)
        messages, osl = asked["messages"], asked["max_tokens"]
        isl = counted(messages) + 3
        starts = [messages[:n] for n in range(1, len(messages) + 1)]
        cached = max(self._known.get(self._name(start), 0) for start in starts)
        self._known |= {self._name(start): counted(start) for start in starts}
        thought = " word" * (osl - 1)
        turn = {"role": "assistant", "content": " word", self._key: thought}
        self._known[self._name([*messages, turn])] = isl + osl
        counts = usage(isl, osl, cached)
        thinking = [r(osl - 1, self._key)] if osl > 1 else []
        return streamed(role(), *thinking, c(1), fin("length"), counts, done())

    def _name(self, messages: list[dict[str, Any]]) -> bytes:
        return orjson.dumps(messages, option=orjson.OPT_SORT_KEYS)


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_row_21_reasoning_goes_back_and_keeps_the_prefix(tmp_path: Path, key: str) -> None:
    """Each turn finds all of the turn before, its prompt and its answer with the reasoning."""
    plan = changed(at_once(1, 1), history="live")
    result = ran(tmp_path, [chain(0, 5)], plan, ScriptedServer(Remembering(key)))
    records = list(result.run.records())
    assert len(records) == 5
    for before, after in pairwise(records):
        assert before.isl is not None
        assert before.osl is not None
        assert after.cached == before.isl + before.osl
    assert result.value["history"] == {"live": 4, "substituted": 0}
    assert result.value["metrics"]["prefix_reuse"]["captured"] == 1.0
    assert result.value["shortfalls"]["short"] == 0


class Rendering:
    """A server with a chat template and a cache of all tokens that it has computed.

    Args:
        think: Words that it thinks before each answer, and sends as reasoning.
        marked: Tokens that its template adds to the last assistant's turn only.

    Its template leaves the reasoning of turns before the last user's message out.
    """

    def __init__(self, *, think: int = 0, marked: int = 0) -> None:
        self._think = think
        self._marked = marked
        self._seen: list[list[str]] = []

    def __call__(self, request: Request) -> Answer | None:
        if request.method != "POST":
            return None
        asked = orjson.loads(request.body)
        osl = asked.get("max_tokens") or asked["max_completion_tokens"]
        tokens = self._rendered(asked["messages"])
        cached = max((common(tokens, seen) for seen in self._seen), default=0) // 16 * 16
        thought = min(self._think, osl - 1)
        self._seen.append([*tokens, *["thought"] * thought, *["word"] * (osl - thought)])
        counts = usage(len(tokens), osl, cached)
        said = [r(1)] * thought + [c(1)] * (osl - thought)
        return streamed(role(), *said, fin("length"), counts, done())

    def _rendered(self, messages: list[dict[str, Any]]) -> list[str]:
        turns = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
        tokens: list[str] = []
        for n, message in enumerate(messages):
            last = bool(turns) and n == turns[-1]
            marks = ["<think>"] * (self._marked if last else 0)
            tokens += (
                [f"<{message['role']}>"] * 3 + marks + message["content"].split() + ["</>"] * 2
            )
        return [*tokens, *["<assistant>"] * 3]


def common(one: list[str], other: list[str]) -> int:
    """How many tokens two prompts begin with together."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


TURNS = Session(
    "turns",
    None,
    link(
        [
            call(
                n,
                n + 1,
                isl=1280 + 512 * n,
                osl=192,
                parent=n - 1 if n else None,
                shared=1280 + 512 * (n - 1) if n else 0,
            )
            for n in range(5)
        ],
        64,
    ),
    64,
    "",
)
"""A session in which each prompt goes on from the one before with an answer and a question."""


def test_row_22_the_probe_finds_a_template_that_rewrites_old_turns() -> None:
    """A template that writes the last assistant's turn otherwise is told, before any run."""
    server = ScriptedServer(Rendering(marked=4))

    async def main() -> None:
        async with server:
            told = (await probe(Endpoint((api_url(server.url),))))["history"]
            assert (told.value, told.ok) == ("rewritten", False)
            assert "prefix reuse is lost" in told.why

    guarded(main)


def test_row_22_dropped_reasoning_shows_in_the_run(tmp_path: Path) -> None:
    """Old turns lose their reasoning: first turn, cause and lower reuse are in the report."""
    plan = changed(at_once(1, 1), history="live")
    result = ran(tmp_path, [TURNS], plan, ScriptedServer(Rendering(think=100)))
    short = result.value["shortfalls"]
    assert (short["calls"], short["short"]) == (5, 4)
    first = short["first"][0]
    assert (first["session"], first["call"]) == ("turns", 1)
    assert (first["reuse"], first["cached"]) == (1280 + 192, 1280)
    assert "its own answer reads as other tokens when it comes back" in first["reason"]
    assert first["reason"] in printed(result)
    reuse = result.value["metrics"]["prefix_reuse"]
    assert reuse["server"] < reuse["theoretical"]
    assert reuse["captured"] < 0.95


def test_row_22_a_rewritten_turn_is_not_called_evicted(tmp_path: Path) -> None:
    """Each prompt is found up to the last turn of the one before: it is the template's doing."""
    result = ran(tmp_path, [TURNS], at_once(1, 1), ScriptedServer(Rendering(marked=4)))
    short = result.value["shortfalls"]
    assert (short["calls"], short["short"]) == (5, 3)
    assert [each["call"] for each in short["first"]] == [2, 3, 4]
    assert all("template" in each["reason"] for each in short["first"])


@pytest.mark.parametrize(
    "tokens_ms",
    [[10_000.0 * n for n in range(32)], [310_000.0]],
    ids=["streaming", "waiting"],
)
def test_row_23_an_answer_may_take_minutes(tokens_ms: list[float]) -> None:
    """A stream of 310 s, and a first token after 310 s, succeed with all limits at default."""
    script = [*((at_ms, c(1)) for at_ms in tokens_ms), (310_000.0, fin()), (310_000.0, done())]

    async def stream(request: values.Request, body: bytes, sink: Sink) -> Reply:
        async with ScriptedServer(lambda _: Answer(script=script)) as server:
            endpoint = Endpoint((api_url(server.url),))
            async with open_client(endpoint, virtual.clock) as client:
                send = http_stream(client, endpoint, virtual.clock, "run")
                return await send(request, body, sink)

    plan = Plan(users=1, sessions=1, duration_s=None)
    (record,) = replay(plan, [lone(0)], stream).records
    assert record.error is None
    assert record.last_token_ns is not None
    assert record.last_token_ns - record.sent_ns == 310e9


def test_row_23_a_failure_is_never_without_words(tmp_path: Path) -> None:
    """However silently a server fails, record, report and last line say how."""
    silent = [
        Answer(status=500, body=b""),
        Answer(status=400, body=b'{"error":{"message":""}}'),
        Answer(script=[(0, err("\n"))]),
        Answer(script=[(0, c(1)), (0, cut())]),
        Answer(script=[(0, c(1)), (0, reset())]),
        Answer(status=None, script=[(0, cut())]),
        Answer(headers={"content-type": "text/html"}, body=b""),
        Answer(script=[]),
    ]
    left = iter(silent)
    server = ScriptedServer(lambda request: next(left) if request.method == "POST" else None)
    plan = at_once(len(silent), len(silent))
    trace = [lone(n) for n in range(len(silent))]
    result = ran(tmp_path, trace, plan, server, calibrate=False)
    errors = [record.error for record in result.run.records()]
    assert len(errors) == len(silent)
    assert all(error is not None and error.message.strip() for error in errors)
    assert all(group["example"].strip() for group in result.value["failures"])
    code, why = exit_code(result)
    assert code == 4
    assert result.value["failures"][0]["example"] in why


def test_row_23_a_connection_closed_in_a_tool_gap_is_no_failure(tmp_path: Path) -> None:
    """A reused connection that dies before a byte came is replaced, and that is counted."""

    def serve(request: Request) -> Answer | None:
        if request.method == "POST" and request.nth:
            return Answer(status=None, script=[(0, cut())])
        return good(request)

    plan = at_once(1, 1)
    result = ran(tmp_path, [chain(0, 2)], plan, ScriptedServer(serve), calibrate=False)
    requests = result.value["metrics"]["requests"]
    assert (requests["succeeded"], requests["failed"]) == (2, 0)
    assert result.value["metrics"]["client"]["reconnects"] == 1


@pytest.mark.parametrize("copies", [1, 2], ids=["one-twice", "two-copies"])
def test_row_30_plays_share_nothing_and_turns_nest(tmp_path: Path, copies: int) -> None:
    """A session played twice differs within the first block; inside a play prompts only grow."""
    server = ScriptedServer(good)
    ran(tmp_path, [chain(0, 4)] * copies, at_once(2, 2), server)
    plays: dict[str, list[str]] = defaultdict(list)
    for request in of_run(server):
        plays[request.headers["x-session-id"]].append(replayed_words(request))
    one, other = plays.values()
    assert one[0].split()[:64] != other[0].split()[:64]
    for texts in (one, other):
        assert len(texts) == 4
        assert all(after.startswith(before) for before, after in pairwise(texts))


def test_row_30_a_server_that_is_down_ends_the_run(tmp_path: Path) -> None:
    """Nothing listens: no request of an hour's run is waited for, and the exit code is not 0."""

    async def main() -> Result:
        async with ScriptedServer(good) as server:
            endpoint = Endpoint((api_url(server.url),))
        plan = Plan(users=4, duration_s=3600)
        trace = load(saved(tmp_path, [chain(n, 4) for n in range(4)]))
        return await run_plan(trace, plan, tmp_path / "out", endpoint=endpoint)

    result = guarded(main)
    assert result.value["ended"] == "gave_up"
    assert result.value["metrics"]["requests"]["attempted"] <= 4
    code, why = exit_code(result)
    assert code == 4
    assert "Connection refused" in why


def test_row_30_a_refused_turn_ends_its_session_with_the_servers_words(tmp_path: Path) -> None:
    """After the second turn's 400 nothing more of the play is sent; the others are whole."""
    said = "schema produced an invalid grammar"

    def serve(request: Request) -> Answer | None:
        if request.method == "POST" and request.headers["x-request-id"].endswith("-0-0-1"):
            return refused(400, said)
        return good(request)

    server = ScriptedServer(serve)
    result = ran(tmp_path, [chain(n, 4) for n in range(3)], at_once(3, 3), server)
    plays = by_play(of_run(server))
    assert sorted(map(len, plays)) == [2, 4, 4]
    assert result.value["metrics"]["errors"] == {"http_4xx": 1}
    assert said in printed(result)


DUES = Session(
    "dues", None, link([call(n * 0.005, n * 0.005, isl=64) for n in range(1000)], 64), 64, ""
)


async def instantly(request: values.Request, body: bytes, sink: Sink) -> Reply:
    """Answer without taking any time."""
    sink(virtual.clock(), ANSWER)
    return Reply(200, "text/event-stream", b"")


def test_row_31_a_thousand_dues_are_kept_to_the_nanosecond() -> None:
    """1,000 dues 5 ms apart: the last is sent at 4,995 ms, and each at its own."""
    plan = Plan(users=1, sessions=1, duration_s=None, timing="recorded")
    records = replay(plan, [DUES], instantly).records
    assert [record.sent_ns for record in records] == [5_000_000 * n for n in range(1000)]


def test_row_31_late_timers_do_not_add_up() -> None:
    """Where each sleep takes a tenth too long, the thousandth send is no later than the second."""
    plan = Plan(users=1, sessions=1, duration_s=None, timing="recorded")
    records: list[Record] = []

    async def draw(index: int) -> Session:
        return DUES

    def clock() -> int:
        return virtual.clock() * 11 // 10

    async def main() -> Ending:
        return await Replay(plan, 1, draw, DIALECT, instantly, clock, records.append).run()

    virtual.run(main)
    late_ns = [record.sent_ns - 5_000_000 * n for n, record in enumerate(records)]
    assert len(late_ns) == 1000
    assert min(late_ns) >= 0
    assert 0 < max(late_ns) <= 500_000


def stalled_once() -> tuple[Plan, list[Record], Ending]:
    """Ten turns with a second between their starts, of 0.1 s each; the fourth stalls for 5 s."""

    async def stream(request: values.Request, body: bytes, sink: Sink) -> Reply:
        await anyio.sleep(5.0 if request.call == 3 else 0.1)
        return await instantly(request, body, sink)

    plan = Plan(users=1, sessions=1, duration_s=None, timing="recorded")
    outcome = replay(plan, [chain(0, 10, gap_s=0.9, takes_s=0.1)], stream)
    return plan, outcome.records, outcome.ending


def test_row_32_a_stall_shows_in_the_sessions_slowdown() -> None:
    """Nine turns of 0.1 s and one of 5 s take 5.9 times as long as recorded."""
    plan, records, ending = stalled_once()
    found = summarize(records, plan, ending).metrics
    assert found["session_slowdown"]["n"] == 1
    assert found["session_slowdown"]["max"] == pytest.approx(5.9)


def test_row_32_a_stall_shows_in_latency_from_due() -> None:
    """With recorded dues the turns behind a stall are late, though each is served at once."""
    plan, records, ending = stalled_once()
    found = summarize(records, plan, ending).metrics
    assert found["latency"]["p90"] < 1.0
    assert found["latency_from_due"]["p90"] > 4.0


@pytest.mark.parametrize("users", [1, 2])
def test_row_34_every_planned_request_reaches_the_server(tmp_path: Path, users: int) -> None:
    """2 sessions of 4 turns are 8 requests, whether one user plays them or two."""
    server = ScriptedServer(good)
    result = ran(tmp_path, [chain(n, 4) for n in range(2)], at_once(users, 2), server)
    assert exit_code(result) == (0, "valid")
    assert len(of_run(server)) == 8
    assert result.value["metrics"]["requests"]["succeeded"] == 8
    assert result.value["metrics"]["sessions"]["completed"] == 2


def test_row_34_what_was_not_played_to_its_end_is_no_success(tmp_path: Path) -> None:
    """A session that a failure ended is started and not completed, and the exit code is 3."""

    def serve(request: Request) -> Answer | None:
        if request.method == "POST" and request.headers["x-request-id"].endswith("-0-0-1"):
            return refused(500, "lost")
        return good(request)

    server = ScriptedServer(serve)
    result = ran(tmp_path, [chain(n, 4) for n in range(2)], at_once(2, 2), server)
    assert len(of_run(server)) == 6
    sessions = result.value["metrics"]["sessions"]
    assert (sessions["started"], sessions["completed"]) == (2, 1)
    assert exit_code(result)[0] == 3


@pytest.mark.parametrize("allowed", [False, True])
def test_row_35_what_does_not_fit_makes_a_run_invalid(tmp_path: Path, allowed: bool) -> None:
    """Seven of ten sessions are too long: 3 are kept, the share of their tokens is said, and the
    exit code is not 0 unless that much may be left out."""
    trace = saved(tmp_path, [*LONG[:7], lone(7), lone(8), lone(9)])
    options = ("--users", "1", "--sessions", "10", "--timing", "none", "--context", "1000")
    allow = ("--allow", "dropped_tokens=96%") if allowed else ()
    out = tmp_path / "out"
    ended = commanded(
        ScriptedServer(good), trace, *options, *allow, *ALLOW_BUSY, "--fit", "drop-session",
        "--out", out,
    )  # fmt: skip
    value = orjson.loads((out / "summary.json").read_bytes())
    fit = value["fit"]
    share = 7 * 6401 / (7 * 6401 + 3 * 641)
    assert (fit["sessions"], fit["dropped_sessions"]) == (10, 7)
    assert fit["dropped_tokens"] / fit["tokens"] == pytest.approx(share)
    said = " ".join((ended.stdout + ended.stderr).split())
    assert f"7 of 10 drawn sessions, 7 calls and {100 * share:.1f} % of the drawn tokens" in said
    assert ended.returncode == (0 if allowed else 3)
    assert ("too_little_fits" in said) != allowed


@pytest.mark.parametrize("unknown", ["max_tokens", "max_completion_tokens"])
def test_row_39_the_limit_goes_by_the_name_that_the_server_knows(
    tmp_path: Path, unknown: str
) -> None:
    """A name that is refused is found out before the run, in which nothing fails."""
    (known,) = {"max_tokens", "max_completion_tokens"} - {unknown}

    def serve(request: Request) -> Answer | None:
        if request.method == "POST" and unknown in orjson.loads(request.body):
            return refused(400, f"Unrecognized request argument supplied: {unknown}")
        return good(request)

    server = ScriptedServer(serve)
    result = ran(tmp_path, [chain(n, 4) for n in range(2)], at_once(2, 2), server)
    assert exit_code(result) == (0, "valid")
    assert {orjson.loads(request.body)[known] for request in of_run(server)} == {10}
    assert result.value["endpoint"]["limit"] == known
    assert result.value["metrics"]["osl_error"]["max"] == 0


def test_row_40_a_strict_server_gets_no_extra_fields(tmp_path: Path) -> None:
    """What it does not know is left out, and the report says that lengths are not forced."""

    def serve(request: Request) -> Answer | None:
        if request.method == "POST" and orjson.loads(request.body).keys() - PLAIN:
            return refused(400, "extra fields not permitted")
        return good(request)

    server = ScriptedServer(serve)
    result = ran(tmp_path, [chain(n, 4) for n in range(2)], at_once(2, 2), server)
    assert result.value["metrics"]["requests"]["failed"] == 0
    assert {frozenset(orjson.loads(each.body)) for each in of_run(server)} == {frozenset(PLAIN)}
    assert result.value["endpoint"]["forces_output"] is False
    assert "takes neither ignore_eos nor min_tokens" in printed(result)


def only(path: str) -> ScriptedServer:
    """A server that has nothing but chat completions, at *path*."""
    absent = Answer(status=404, body=b"")
    return ScriptedServer(lambda each: answered(each) if each.path == path else absent)


def test_row_43_chat_completions_alone_are_enough(tmp_path: Path) -> None:
    """A server without /health, /models or anything else is replayed against as any other."""
    server = only(CHAT)
    result = ran(tmp_path, [chain(0, 4)], at_once(1, 1), server)
    assert exit_code(result) == (0, "valid")
    assert len(of_run(server)) == 4


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("", CHAT),
        ("/", CHAT),
        ("/v1", CHAT),
        ("/v1/", CHAT),
        (CHAT, CHAT),
        ("/proxy/v1", f"/proxy{CHAT}"),
        ("/proxy/chat/completions", "/proxy/chat/completions"),
    ],
)
def test_row_44_every_form_of_an_address_reaches_the_server(
    tmp_path: Path, given: str, path: str
) -> None:
    """Host, host/v1 and the full path: the one path that is served, and it is printed."""
    server = only(path)
    result = ran(tmp_path, [chain(0, 2)], at_once(1, 1), server, path=given)
    assert exit_code(result) == (0, "valid")
    assert {request.path for request in of_run(server)} == {path}
    assert f"{server.url}{path} · " in printed(result)


def self_signed(certificate: tuple[Path, Path]) -> ScriptedServer:
    """A server whose certificate nobody trusts by itself."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    return ScriptedServer(good, ssl_context=context)


def test_row_45_a_certificate_that_is_not_trusted_is_named(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    """A self-signed server: exit code 4, and the last line says that it is the certificate."""
    server = self_signed(certificate)
    result = ran(tmp_path, [chain(0, 2)], at_once(1, 1), server)
    code, why = exit_code(result)
    assert code == 4
    assert "tls" in why
    assert "certificate" in why
    assert server.requests == []


@pytest.mark.parametrize("trust", ["ca", "insecure"])
def test_row_45_a_private_certificate_can_be_trusted(
    tmp_path: Path, certificate: tuple[Path, Path], trust: str
) -> None:
    """With its file, or with no check at all, a self-signed server is as good as any."""
    options: dict[str, Any] = {"ca": str(certificate[0])} if trust == "ca" else {"insecure": True}
    result = ran(tmp_path, [chain(0, 2)], at_once(1, 1), self_signed(certificate), **options)
    assert exit_code(result) == (0, "valid")


def test_row_45_the_usual_variable_names_the_certificate(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    """SSL_CERT_FILE is heeded as by other programs."""
    trace = saved(tmp_path, [chain(0, 2)])
    arguments = (trace, "--sessions", "1", "--max-gap", "0s", *ALLOW_BUSY, "--out")
    server, trusted = self_signed(certificate), str(certificate[0])
    ended = commanded(server, *arguments, tmp_path / "out", SSL_CERT_FILE=trusted)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_row_46_a_missing_key_stops_at_once(tmp_path: Path) -> None:
    """401 without a key: one request of the run is sent, and the last line has the cause."""
    server = ScriptedServer(lambda _: refused(401, "Unauthorized"))
    trace = saved(tmp_path, [chain(n, 4) for n in range(4)])
    arguments = (trace, "--users", "1", "--duration", "1h", "--out", tmp_path / "out")
    ended = commanded(server, *arguments, AGENTREPLAY_API_KEY="", OPENAI_API_KEY="")
    assert ended.returncode == 4
    assert "HTTP 401: Unauthorized" in ended.stdout.splitlines()[-1]
    assert len(of_run(server)) == 1
    value = orjson.loads((tmp_path / "out" / "summary.json").read_bytes())
    assert value["metrics"]["ttft"]["p50"] is None
    assert value["metrics"]["output_token_rate_run"] is None


@pytest.mark.parametrize("way", ["--api-key", "AGENTREPLAY_API_KEY", "OPENAI_API_KEY"])
def test_row_46_a_key_is_sent_and_never_told(tmp_path: Path, way: str) -> None:
    """By flag or variable the key arrives; not even a server that repeats it brings it out."""
    secret = "sk-planted-7f3a9c"

    def serve(request: Request) -> Answer:
        return refused(401, f"Incorrect API key: {request.headers.get('authorization')}")

    server = ScriptedServer(serve)
    trace, variables = saved(tmp_path, [chain(0, 4)]), {"AGENTREPLAY_API_KEY": ""}
    arguments: list[str | Path] = [trace, "--users", "1", *for_ci(tmp_path)]
    variables["GITHUB_ACTIONS"] = "true"
    if way == "--api-key":
        arguments += [way, secret]
    else:
        variables[way] = secret
    ended = commanded(server, *arguments, **variables)
    assert ended.returncode == 4
    assert "HTTP 401: Incorrect API key" in ended.stdout.splitlines()[-1]
    assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {secret}"}
    assert secret not in ended.stdout + ended.stderr + written(tmp_path)


def test_row_51_the_server_sees_every_lane(tmp_path: Path) -> None:
    """300 lanes that are held are 300 requests at one instant, on 300 connections.

    The limit of open files is too low for them when the run begins.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        result, server = held(tmp_path, [lone(0, 64)], 300)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert exit_code(result)[0] != 4
    assert result.value["metrics"]["requests"]["succeeded"] == 300
    assert all_at_once(result, 300)
    assert len({request.connection for request in of_run(server)}) == 300


def test_row_53_a_figure_is_one_number_wherever_it_stands(tmp_path: Path) -> None:
    """Table, JSON, JUnit, page and gate of one run have one P90 interactivity."""
    trace = saved(tmp_path, [chain(n, 3, gap_s=0.01) for n in range(4)])
    gates = ("--gate", "interactivity.p90 < 0", "--gate", "ttft.p95 < 0ms")
    options = (trace, "--sessions", "4", *gates, *ALLOW_BUSY, *for_ci(tmp_path))
    ended = agentreplay("run", *options)
    assert ended.returncode == 1, ended.stderr
    value, cases, page = left(tmp_path)
    root = ElementTree.parse(tmp_path / "out" / "junit.xml")
    properties = {each.attrib["name"]: each.attrib["value"] for each in root.iter("property")}
    p90, p95_s = value["metrics"]["interactivity"]["p90"], value["metrics"]["ttft"]["p95"]
    assert float(properties["interactivity.p90"]) == value["gates"][0]["value"] == p90
    assert float(properties["ttft.p95"]) == value["gates"][1]["value"] == p95_s
    rate, time = f"{as_number(p90)} tok/s/user", as_duration(p95_s)
    assert cases["interactivity.p90 < 0"] == f"it is {rate}"
    assert cases["ttft.p95 < 0ms"] == f"it is {time}"
    for text in (ended.stdout, page):
        assert f"P90 interactivity {rate}" in " ".join(text.replace("|", " ").split())
        assert f"P95 {time}" in text
        assert f"it is {rate}" in text


def test_row_57_all_time_out_and_the_report_is_there(tmp_path: Path) -> None:
    """No answer has a token in time: counts in every file, and exit code 4."""

    def serve(request: Request) -> Answer | None:
        return Answer(script=[(0, hold(asyncio.Event()))]) if request.method == "POST" else None

    server, trace = ScriptedServer(serve), saved(tmp_path, [lone(n) for n in range(4)])
    options = (trace, "--model", MODEL, "--no-calibrate", "--first-token-timeout", "100ms")
    ended = commanded(server, *options, "--sessions", "4", *for_ci(tmp_path))
    assert ended.returncode == 4
    value, cases, page = left(tmp_path)
    assert value["metrics"]["errors"] == {"timeout": 4}
    assert cases["error_rate"] == "100.0% of requests failed (limit 1.0%)"
    assert "| timeout | 4 |" in page


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_row_57_a_signal_leaves_every_file(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """It comes while an answer is held: the files are there, and say what was cut."""
    arrived = asyncio.Event()

    def serve(request: Request) -> Answer | None:
        if request.method != "POST":
            return None
        arrived.set()
        return Answer(script=[(0, hold(asyncio.Event()))])

    trace = saved(tmp_path, [lone(0)])
    options = [str(each) for each in (trace, "--model", MODEL, "--no-calibrate", *for_ci(tmp_path))]

    async def main() -> int:
        async with ScriptedServer(serve) as server:
            command = [sys.executable, "-m", "agentreplay", "run", *options, "--url", server.url]
            process = await anyio.open_process([*command, "--users", "1", "--drain", "100ms"])
            await arrived.wait()
            process.send_signal(number)
            return await process.wait()

    assert guarded(main) == code
    value, cases, page = left(tmp_path)
    assert value["metrics"]["requests"]["cancelled"] == 1
    assert "interrupted" in str(cases["verdict"])
    assert "1 cut at the end" in page


@pytest.mark.parametrize(("allowed", "code"), [([], 0), (["--max-error-rate", "0"], 3)])
def test_row_58_one_failure_of_a_thousand(tmp_path: Path, allowed: list[str], code: int) -> None:
    """It passes at 1 %, the default, and not at 0; both say how many may fail."""
    served = 0

    def one_fails(request: Request) -> Answer | None:
        nonlocal served
        if request.method != "POST" or is_calibration(request):
            return good(request)
        served += 1
        return refused(500, "for once") if served == 500 else answered(request)

    trace = saved(tmp_path, [lone(n, 64) for n in range(1000)])
    options = (trace, "--sessions", "1000", "--users", "20", *ALLOW_BUSY, *for_ci(tmp_path))
    ended = commanded(ScriptedServer(one_fails), *options, *allowed)
    assert ended.returncode == code, ended.stdout
    value, cases, page = left(tmp_path)
    assert value["metrics"]["error_rate"] == 0.001
    if code:
        assert cases["error_rate"] == "0.1% of requests failed (limit 0.0%)"
    else:
        assert set(cases.values()) == {None}
        for text in (ended.stdout, page):
            assert "1 of 1,000 requests failed (limit 1 %)" in text


def test_row_59_headers_without_a_token_pass_no_gate(tmp_path: Path) -> None:
    """200, headers and a closed connection: failed, and no gate on a rate or a time passes."""
    gates = ("request_rate >= 0", "output_token_rate_run >= 0", "ttft.p95 < 1h", "tpot.p90 < 1h")
    server = ScriptedServer(lambda _: Answer(script=[(0, role()), (0, cut())]))
    trace = saved(tmp_path, [lone(n) for n in range(4)])
    given = [part for each in gates for part in ("--gate", each)]
    ended = commanded(server, trace, *given, *for_ci(tmp_path))
    assert ended.returncode == 4
    value, cases, _ = left(tmp_path)
    assert set(value["metrics"]["errors"]) == {"truncated"}
    assert [cases[each] for each in gates] == ["no sample"] * 4


def test_row_62_two_replicas_both_get_sessions_and_each_keeps_its_own(tmp_path: Path) -> None:
    """Of 8 sessions both addresses get some; a session has one address, name and connection."""
    servers = [ScriptedServer(good), ScriptedServer(good)]
    trace = [chain(n, 3) for n in range(8)]
    result = ran(tmp_path, trace, at_once(4, 8), *servers, connection_per_session=True)
    assert exit_code(result) == (0, "valid")
    plays = [by_play(of_run(server)) for server in servers]
    assert all(plays)
    names = []
    for play in (*plays[0], *plays[1]):
        assert len(play) == 3
        assert len({request.connection for request in play}) == 1
        (name,) = {request.headers["x-session-id"] for request in play}
        names.append(name)
    assert len(set(names)) == len(names) == 8


def test_row_62_a_balancer_of_connections_spreads_sessions(tmp_path: Path) -> None:
    """Behind one address that deals connections to two replicas, both get whole sessions."""
    server = ScriptedServer(good)
    trace = [chain(n, 3) for n in range(8)]
    ran(tmp_path, trace, at_once(4, 8), server, connection_per_session=True)
    dealt = [{request.connection % 2 for request in play} for play in by_play(of_run(server))]
    assert len(dealt) == 8
    assert {len(replicas) for replicas in dealt} == {1}
    assert set.union(*dealt) == {0, 1}


WAITING = Session(
    "waiting", None, link([call(0, 10), call(40, 41, parent=0, shared=640)], 64), 64, ""
)


@pytest.mark.parametrize(
    ("max_gap_s", "sent_s", "cut_s"), [(None, 50, 0), (5.0, 25, 25)], ids=["whole", "capped"]
)
def test_row_63_a_gap_counts_from_the_live_end(
    max_gap_s: float | None, sent_s: float, cut_s: float
) -> None:
    """Ended at 20 s instead of 10 s, the next call waits its 30 s from there, or 5 s of them."""
    plan = Plan(users=1, sessions=1, duration_s=None, max_gap_s=max_gap_s)
    outcome = replay(plan, [WAITING], oracle([WAITING], 2.0))
    assert [record.sent_ns / 1e9 for record in outcome.records] == [0, sent_s]
    summary = summarize(outcome.records, plan, outcome.ending)
    assert (summary.gaps_cut, summary.gaps_cut_s) == (bool(cut_s), cut_s)


def test_row_63_what_was_cut_is_printed(tmp_path: Path) -> None:
    """A gap of 30 s cut to 10 ms: the report has the limit and the seconds in all."""
    plan = Plan(users=1, sessions=1, duration_s=None, max_gap_s=0.01)
    result = ran(tmp_path, [WAITING], plan, ScriptedServer(good))
    (row,) = [row for row in printed(result).splitlines() if row.startswith("Gaps cut")]
    assert row.split() == "Gaps cut 1 to 10 ms, by 30 s in all".split()


@pytest.mark.parametrize(
    ("cap_s", "sent_s", "skip_s"), [(None, 50, 0), (5.0, 25, 25)], ids=["whole", "capped"]
)
def test_row_63_idle_time_of_a_session_is_capped_from_the_live_end(
    cap_s: float | None, sent_s: float, skip_s: float
) -> None:
    """Ended at 20 s instead of 10 s, the session is idle for 30 s from there, or for 5 s with 25 s
    skipped."""
    plan = Plan(users=1, sessions=1, duration_s=None, max_gap_s=None, max_tree_idle_s=cap_s)
    outcome = replay(plan, [WAITING], oracle([WAITING], 2.0))
    assert [record.sent_ns / 1e9 for record in outcome.records] == [0, sent_s]
    summary = summarize(outcome.records, plan, outcome.ending)
    assert (summary.tree_skips.count, summary.tree_skips.seconds) == (bool(skip_s), skip_s)
    assert summary.gaps_cut == 0


def test_row_63_what_was_skipped_is_in_the_summary(tmp_path: Path) -> None:
    """30 s of idle time cut to 10 ms: the summary has how often and the seconds in all."""
    plan = Plan(users=1, sessions=1, duration_s=None, max_gap_s=None, max_tree_idle_s=0.01)
    result = ran(tmp_path, [WAITING], plan, ScriptedServer(good))
    skips = result.value["skips"]
    assert skips["tree"]["count"] == 1
    assert 29 < skips["tree"]["seconds"] <= 29.99
    assert skips["idle"]["count"] == 0


def test_row_64_twice_the_speed_is_half_the_time() -> None:
    """A trace of 10 s at speed 2 has its last due at 5 s: gaps shrink, and no answer does."""
    calls = [call(0, 1), call(4, 5), call(10, 11)]
    session = Session("s", None, link(calls, 64), 64, "")
    plan = Plan(users=1, sessions=1, duration_s=None, timing="recorded", speed=2.0)
    records = replay(plan, [session], oracle([session])).records
    assert [record.request.due_ns / 1e9 for record in records] == [0, 2, 5]
    assert {record.done_ns - record.sent_ns for record in records} == {1_000_000_000}


def test_row_65_a_slow_warm_up_ends_with_its_limit_and_a_warning() -> None:
    """One call of the warm-up takes 20 s, the limit is 5 s: measuring begins 5 s after the last
    other one has ended, and it is said."""
    trace = [chain(n, 40) for n in range(2)]
    answers = oracle(trace)

    async def stream(request: values.Request, body: bytes, sink: Sink) -> Reply:
        if request.warmup and request.lane == 0:
            await anyio.sleep(20)
            return await instantly(request, body, sink)
        return await answers(request, body, sink)

    plan = Plan(users=2, duration_s=60, warmup_calls=3, warmup_limit_s=5.0)
    outcome = replay(plan, trace, stream)
    assert outcome.ending.reason == "duration"
    assert outcome.ending.opened_ns == 3e9 + 5e9
    summary = summarize(outcome.records, plan, outcome.ending)
    assert [warning.id for warning in summary.verdict.warnings] == ["warmup_cut"]
    assert "3 calls of the warm-up" in summary.verdict.warnings[0].text
    assert "warmup_failed" not in [reason.id for reason in summary.verdict.reasons]
    assert {record.request.lane for record in outcome.records if not record.request.warmup} == {
        0,
        1,
    }


def test_row_66_no_text_of_trace_or_server_is_kept(tmp_path: Path) -> None:
    """Keys in a trace and in what a server says and calls are in no file and in no output."""
    secret = "AKIA-planted-5d1c"

    def serve(request: Request) -> Answer | None:
        if request.method != "POST" or is_calibration(request):
            return good(request)
        asked = orjson.loads(request.body)
        function = {"name": secret, "arguments": orjson.dumps({"key": secret}).decode()}
        deltas: list[dict[str, Any]] = [
            {"content": secret},
            {"reasoning": secret},
            {"tool_calls": [{"index": 0, "id": secret, "function": function}]},
        ]
        said = [b"data: %b\n\n" % orjson.dumps({"choices": [{"delta": d}]}) for d in deltas]
        counts = usage(counted(asked["messages"]) + 3, 10)
        return streamed(*said, fin("tool_calls"), counts, done())

    line = orjson.loads(native.line(chain(0, 3, gap_s=0.0)))
    line["prompt"] = secret
    line["calls"][0]["tool_result"] = {"content": secret}
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(orjson.dumps(line) + b"\n")
    server = ScriptedServer(serve)
    out = tmp_path / "out"
    ended = commanded(server, trace, "--sessions", "1", "--history", "live", "--out", out)
    sent = b"".join(request.body for request in of_run(server))
    assert secret in sent.decode()  # the history was live, so there was something to keep
    again = agentreplay("report", out, "--json")
    looked = agentreplay("inspect", trace, "--json")
    told = [each.stdout + each.stderr for each in (ended, again, looked)]
    assert "3 ok" in told[0]
    assert secret not in "".join(told) + written(tmp_path)


def test_row_68_as_many_connections_as_lanes(tmp_path: Path) -> None:
    """2,048 lanes of one token: all are in flight at one instant, and all succeed."""
    result, server = held(tmp_path, [lone(0, 64)], 2048)
    assert result.value["metrics"]["requests"]["succeeded"] == 2048
    assert result.value["failures"] == []
    assert all_at_once(result, 2048)
    assert len({request.connection for request in of_run(server)}) == 2048
