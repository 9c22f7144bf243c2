"""The simulated server: its times in virtual time, its protocol, and its life as a process."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import anyio
import httpx
import orjson
import pytest
from virtually import SIM, chain, replay

from agentreplay.client.calibrate import lone_request
from agentreplay.client.server_metrics import figures
from agentreplay.client.stream import Reply, Sink, Stream
from agentreplay.errors import EndpointError
from agentreplay.metrics.record import Record, Request
from agentreplay.metrics.server import Answered
from agentreplay.plan import Plan
from agentreplay.sim import chat, virtual
from agentreplay.sim.engine import PROFILES, Profile
from agentreplay.sim.server import SimServer, embedded
from agentreplay.trace.model import Session

T = TypeVar("T")

TINY = Profile(
    name="tiny",
    context_tokens=1024,
    step_s=0.010,
    prefill_token_s=0.001,
    decode_seq_s=0.002,
    step_tokens=64,
    max_seqs=4,
    kv_tokens=4096,
    block_size=16,
)
REQUEST = lone_request(0, 0, 0)
MS = 1_000_000


def metered(plan: Plan, sessions: list[Session], pages: list[bytes]) -> list[Record]:
    """The records of a run in virtual time; *pages* takes the server's metrics after it."""
    made: list[SimServer] = []

    async def serve() -> None:
        made.append(SimServer(replace(PROFILES["slow"], kv_tokens=262_144), virtual.clock))
        try:
            await made[0].run()
        finally:
            pages.append(made[0].metrics())

    async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
        while not made:
            await anyio.sleep(0)
        return await made[0].stream(request, body, sink)

    return replay(plan, sessions, stream, dialect=SIM, server=serve).records


def ask(words: int | list[dict[str, Any]], max_tokens: int | None, **more: object) -> bytes:
    """The body of a request: a conversation, or one message of so many words."""
    if isinstance(words, int):
        words = [{"role": "user", "content": " ".join(f"w{n}" for n in range(words))}]
    body: dict[str, object] = {"model": "any", "messages": words, "stream": True}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    if more.get("stream", True):
        body["stream_options"] = {"include_usage": True}
    return orjson.dumps(body | more)


class Reads:
    """What came out of a stream: the stamp and the bytes of each read."""

    def __init__(self) -> None:
        self.at_ns: list[int] = []
        self.parts: list[bytes] = []

    def sink(self, at_ns: int, part: bytes) -> None:
        self.at_ns.append(at_ns)
        self.parts.append(part)

    def events(self) -> list[list[Any]]:
        """The JSON events of each read."""
        return [events(part) for part in self.parts]


def events(stream: bytes) -> list[Any]:
    """The JSON events of a piece of an event stream, and True for its end mark."""
    lines = [line.removeprefix(b"data: ") for line in stream.split(b"\n\n") if line]
    return [line == b"[DONE]" or orjson.loads(line) for line in lines]


def simulate(main: Callable[[SimServer], Awaitable[T]], profile: Profile = TINY) -> T:
    """Run *main* beside a server in virtual time."""

    async def together() -> T:
        server = SimServer(profile, virtual.clock)
        async with anyio.create_task_group() as group:
            group.start_soon(server.run)
            result = await main(server)
            group.cancel_scope.cancel()
        return result

    return virtual.run(together)


def once(body: bytes, profile: Profile = TINY) -> tuple[Reply, Reads]:
    """One request to an idle server."""

    async def main(server: SimServer) -> tuple[Reply, Reads]:
        reads = Reads()
        stream: Stream = server.stream
        return await stream(REQUEST, body, reads.sink), reads

    return simulate(main, profile)


def test_a_lone_stream_takes_its_closed_form() -> None:
    """The first token takes the prefill, and each later one a step, to the nanosecond."""
    _, reads = once(ask(92, max_tokens=4))
    # 92 words, 5 a message and 3 a prompt are 100 tokens: two steps of prefill.
    first_ns = 2 * 10 * MS + 100 * MS
    assert reads.at_ns == [first_ns + n * 12 * MS for n in (0, 1, 2, 3, 3)]


def test_time_that_the_server_idles_is_not_made_up() -> None:
    """A request after an idle hour takes as long as one at once."""

    async def main(server: SimServer) -> list[int]:
        took = []
        for _ in range(2):
            start_ns = virtual.clock()
            await server.stream(REQUEST, ask(4, max_tokens=5), Reads().sink)
            took.append(virtual.clock() - start_ns)
            await anyio.sleep(3600)
        return took

    assert simulate(main) == [22 * MS + 4 * 12 * MS] * 2


def test_a_stream_reads_as_vllm_sends_it() -> None:
    """Role and first token come in one read, then a token each, the last one with its reason."""
    reply, reads = once(ask(20, max_tokens=3))
    assert reply == Reply(200, "text/event-stream", b"")
    (role, first), (middle,), (last,), (usage, done) = reads.events()
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    texts = [event["choices"][0] for event in (first, middle, last)]
    assert all(choice["delta"]["content"].strip() for choice in texts)
    assert [choice["finish_reason"] for choice in texts] == [None, None, "length"]
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 28,
        "completion_tokens": 3,
        "total_tokens": 31,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert done is True


def test_an_answer_of_one_token_is_complete() -> None:
    """One token comes with the role before it and the reason in it."""
    _, reads = once(ask(1, max_tokens=1))
    (role, only), (usage, _) = reads.events()
    assert role["choices"][0]["finish_reason"] is None
    assert only["choices"][0]["finish_reason"] == "length"
    assert usage["usage"]["completion_tokens"] == 1


def test_usage_comes_only_where_it_is_asked() -> None:
    """Without include_usage the stream ends after the last token."""
    _, reads = once(ask(1, max_tokens=2, stream_options=None))
    assert reads.events()[-1] == [True]


def test_an_equal_prompt_is_read_from_the_cache() -> None:
    """The second of two equal prompts reports its whole blocks as cached, and starts sooner."""

    async def main(server: SimServer) -> list[tuple[int, int]]:
        seen = []
        for _ in range(2):
            reads, start_ns = Reads(), virtual.clock()
            await server.stream(REQUEST, ask(92, max_tokens=1), reads.sink)
            usage = reads.events()[-1][0]["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            seen.append((cached, reads.at_ns[0] - start_ns))
        return seen

    assert simulate(main) == [(0, 120 * MS), (96, 14 * MS)]


def test_the_next_turn_finds_the_whole_earlier_prompt() -> None:
    """A conversation that goes on shares every whole block of its earlier prompt."""
    turn = [{"role": "user", "content": " ".join("abc"[n % 3] for n in range(72))}]
    later = [*turn, {"role": "assistant", "content": "d e"}, {"role": "user", "content": "f"}]
    before, after = (chat.read(ask(messages, 1), TINY) for messages in (turn, later))
    assert isinstance(before, chat.Ask)
    assert isinstance(after, chat.Ask)
    assert before.isl == 5 * TINY.block_size
    assert len(before.blocks) == 5
    assert after.blocks[:5] == before.blocks


@pytest.mark.parametrize(
    "other",
    [
        [{"role": "system", "content": "a b c"}],
        [{"role": "user", "content": "a b d"}],
        [{"role": "user", "content": "ab c d"}],
    ],
)
def test_unlike_beginnings_share_no_block(other: list[dict[str, str]]) -> None:
    """Another role or word at the start makes every block another."""
    tail = [{"role": "user", "content": "x " * 50}]
    blocks = []
    for start in ([{"role": "user", "content": "a b c"}], other):
        asked = chat.read(ask(start + tail, 1), TINY)
        assert isinstance(asked, chat.Ask)
        blocks.append(set(asked.blocks))
    assert blocks[0].isdisjoint(blocks[1])


@pytest.mark.parametrize(
    ("messages", "isl"),
    [
        ([{"role": "user", "content": "a b"}], 2 + 5 + 3),
        ([{"role": "user", "content": " a\n\n b\t"}], 2 + 5 + 3),
        ([{"role": "user", "content": "größe 数"}], 2 + 5 + 3),
        ([{"role": "user", "content": ""}], 5 + 3),
        ([{"role": "assistant", "content": None}, {"role": "tool", "content": "a"}], 1 + 10 + 3),
        (
            [{"role": "user", "content": [{"type": "text", "text": t} for t in ("a b", "c")]}],
            3 + 5 + 3,
        ),
    ],
)
def test_a_prompt_costs_words_messages_and_itself(messages: list[dict[str, Any]], isl: int) -> None:
    """A prompt is its words, 5 tokens a message, and 3."""
    asked = chat.read(ask(messages, 1), TINY)
    assert isinstance(asked, chat.Ask)
    assert asked.isl == isl


@pytest.mark.parametrize(
    ("old", "new", "osl"), [(7, None, 7), (None, 8, 8), (7, 8, 8), (None, None, 128)]
)
def test_the_limit_is_the_length(old: int | None, new: int | None, osl: int) -> None:
    """An answer is as long as either limit asks, the newer name first, and else of one length."""
    asked = chat.read(ask(1, old, max_completion_tokens=new), TINY)
    assert isinstance(asked, chat.Ask)
    assert asked.osl == osl


def test_a_full_context_is_served_and_one_token_more_is_not() -> None:
    """The context holds prompt and answer together, to the token."""
    reply, _ = once(ask(1024 - 8 - 24, max_tokens=24))
    assert reply.status == 200
    reply, reads = once(ask(1024 - 8 - 23, max_tokens=24))
    error = orjson.loads(reply.body)["error"]
    assert (reply.status, reply.content_type, reads.parts) == (400, "application/json", [])
    assert (error["type"], error["param"], error["code"]) == (
        "BadRequestError",
        "input_tokens",
        400,
    )
    assert error["message"].startswith("This model's maximum context length is 1024 tokens. How")
    assert "your prompt contains at least 1001 input tokens" in error["message"]


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b'{"model": "any", "messages": [', "body", "JSON decode error"),
        (b"[]", "body", "object"),
        (b'{"model": "any"}', "body.messages", "Field required"),
        (ask([], 1), "messages", "empty conversation"),
        (ask([{"role": "poet", "content": "a"}], 1), "messages", "role"),
        (ask([{"role": "user", "content": 1}], 1), "messages", "content"),
        (ask([{"role": "user", "content": [{"image": 1}]}], 1), "messages", "content"),
        (ask(1, max_tokens=0), "max_tokens", "at least 1, got 0"),
        (ask(1, max_tokens=2000), "max_tokens", "cannot be greater than max_model_len=1024"),
        (ask(2000, max_tokens=1), "input_tokens", "even without any output tokens"),
        (
            ask(1, 1, stream=False, stream_options={"include_usage": True}),
            "stream_options",
            "Stream options can only be defined",
        ),
    ],
)
def test_nonsense_is_refused(body: bytes, param: str, message: str) -> None:
    """What can't be answered gets a 400 that says which field is wrong, and why."""
    reply, _ = once(body)
    error = orjson.loads(reply.body)["error"]
    assert (reply.status, error["param"]) == (400, param)
    assert message in error["message"]


def test_a_cancelled_caller_cancels_its_job() -> None:
    """A caller that gives up leaves an idle engine."""

    async def main(server: SimServer) -> tuple[int, bool]:
        reads = Reads()
        with anyio.move_on_after(1.0):
            await server.stream(REQUEST, ask(4, max_tokens=500), reads.sink)
        return len(reads.parts), server.engine.busy

    # The first token takes 22 ms, and 81 steps of 12 ms fit into the rest of the second.
    assert simulate(main) == (82, False)


@pytest.mark.parametrize("seed", range(4))
def test_its_metrics_count_what_its_answers_say(seed: int) -> None:
    """After a run in which calls are cut in every phase, prompts and tokens are those that were
    answered, to the token; what it looked up and found lies within what the cut calls leave open.
    """
    pages: list[bytes] = []
    plan = Plan(users=24, duration_s=20.0, drain_s=0.0, timing="none", seed=seed)
    sessions = [chain(n, 4, gap_s=0.0) for n in range(24)]
    records = metered(plan, sessions, pages)
    answered = Answered()
    for each in records:
        answered.add(each)
    cut = [each for each in records if each.error is not None]
    assert {each.first_token_ns is None for each in cut} == {True, False}
    found = anyio.run(figures, pages[-1])
    assert found["prompt_tokens"] == answered.prompt_tokens
    assert found["generated_tokens"] == answered.generated_tokens
    more = found["looked_up_tokens"] - answered.prompt_tokens
    assert 0 <= more <= answered.open_prompt_tokens
    assert answered.cached_tokens is not None
    assert 0 <= found["found_tokens"] - answered.cached_tokens <= answered.open_cached_tokens
    assert (found["running"], found["waiting"], found["kv_use"]) == (0, 0, 0.0)


def test_its_metrics_show_the_load() -> None:
    """While streams run and wait, the page says how many, and how full the memory is."""

    async def main(server: SimServer) -> bytes:
        with anyio.move_on_after(1.0):
            async with anyio.create_task_group() as group:
                for _ in range(6):
                    group.start_soon(
                        server.stream, REQUEST, ask(56, max_tokens=960), lambda *_: None
                    )
                await anyio.sleep(0.9)
                page = server.metrics()
        return page

    found = anyio.run(figures, simulate(main))
    # 64 prompt tokens and 960 more are 64 blocks of 256; equal prompts share their four.
    assert (found["running"], found["waiting"]) == (4, 2)
    assert found["kv_use"] == pytest.approx((64 + 3 * 60) * 16 / 4096)


def test_a_disconnect_cancels_the_job() -> None:
    """Behind HTTP, a client that goes away leaves an idle engine."""

    async def main(server: SimServer) -> tuple[int, int, bool]:
        messages = [{"type": "http.request", "body": ask(4, max_tokens=500)}]
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await anyio.sleep(1.0)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions"}
        await server.app()(scope, receive, send)
        return virtual.clock(), len(sent), server.engine.busy

    assert simulate(main) == (1_000_000_000, 1 + 82, False)


def test_streams_run_side_by_side() -> None:
    """Four streams decode together: each step gives every one of them a token."""

    async def main(server: SimServer) -> list[list[int]]:
        reads = [Reads() for _ in range(4)]
        async with anyio.create_task_group() as group:
            for each in reads:
                group.start_soon(server.stream, REQUEST, ask(1, max_tokens=10), each.sink)
        return [each.at_ns for each in reads]

    first, *others = simulate(main)
    assert first[1] - first[0] == (10 + 4 * 2) * MS
    assert others == [first] * 3


def test_an_hour_of_load_takes_the_same_course_twice() -> None:
    """Many users in virtual time see the same stamps in every run."""

    async def main(server: SimServer) -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = []

        async def user(n: int) -> None:
            for k in range(6):
                await anyio.sleep(600 * ((n + k) % 3) / 2)
                body = ask(n * 7 + k, max_tokens=5 + n)
                await server.stream(REQUEST, body, lambda at_ns, _: seen.append((at_ns, n)))

        async with anyio.create_task_group() as group:
            for n in range(12):
                group.start_soon(user, n)
        return seen

    assert simulate(main) == simulate(main)


def over_http(main: Callable[[httpx.AsyncClient], Awaitable[T]]) -> T:
    """Run *main* with a client of a server process."""

    async def together() -> T:
        async with embedded("demo") as url, httpx.AsyncClient(base_url=url) as client:
            return await main(client)

    return anyio.run(together)


def test_it_speaks_http() -> None:
    """Every path answers over a real connection, and says that it is simulated."""
    context = PROFILES["demo"].context_tokens

    async def main(client: httpx.AsyncClient) -> None:
        path = "/v1/chat/completions"
        models = await client.get("/v1/models")
        assert [(each["id"], each["max_model_len"]) for each in models.json()["data"]] == [
            ("sim-demo", context)
        ]
        about = await client.get("/")
        assert about.text.startswith("SIMULATED SERVER (demo)")
        health = await client.get("/health")
        metrics = await client.get("/metrics")
        assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert (await figures(metrics.content))["generated_tokens"] == 0
        stream = await client.post(path, content=ask(92, max_tokens=3))
        usage, done = events(stream.content)[-2:]
        assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (100, 3)
        assert done is True
        assert stream.headers["content-type"].startswith("text/event-stream")
        answer = await client.post(path, content=ask(92, max_tokens=3, stream=False))
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
        assert len(answer.json()["choices"][0]["message"]["content"].split()) == 3
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        bad = await client.post(path, content=b"{")
        assert bad.json()["error"]["code"] == 400
        nowhere, wrong = await client.get("/nowhere"), await client.get(path)
        replies = [models, about, health, metrics, stream, answer, bad, nowhere, wrong]
        assert [each.status_code for each in replies] == [200] * 6 + [400, 404, 405]
        assert {each.headers["x-simulated-server"] for each in replies} == {"demo"}

    over_http(main)


def test_a_client_that_goes_away_frees_its_place() -> None:
    """Four abandoned streams of a server for four leave room for the next request."""

    async def main() -> None:
        async with embedded("slow") as url, httpx.AsyncClient(base_url=url) as client:
            for _ in range(PROFILES["slow"].max_seqs):
                async with client.stream(
                    "POST", "/v1/chat/completions", content=ask(1, max_tokens=200_000)
                ) as response:
                    await anext(response.aiter_bytes())
            with anyio.fail_after(60):
                answer = await client.post("/v1/chat/completions", content=ask(1, max_tokens=1))
            assert answer.status_code == 200

    anyio.run(main)


def test_the_process_ends_with_its_context() -> None:
    """When the context ends, nothing listens any more, even with a stream still open."""

    async def main() -> None:
        async with httpx.AsyncClient() as client:
            async with embedded("demo") as url:
                request = client.build_request(
                    "POST", f"{url}/v1/chat/completions", content=ask(1, max_tokens=100_000)
                )
                response = await client.send(request, stream=True)
            with pytest.raises(httpx.TransportError):
                await response.aread()
            await response.aclose()
            with pytest.raises(httpx.ConnectError):
                await client.get(url)

    anyio.run(main)


def test_the_process_ends_with_its_standard_input() -> None:
    """A server whose parent is gone, and with it the other end of its input, ends by itself."""

    async def main() -> int:
        command = [sys.executable, "-m", "agentreplay.sim.server", "demo"]
        async with await anyio.open_process(command) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert (await process.stdout.receive()).startswith(b"http://127.0.0.1:")
            await process.stdin.aclose()
            with anyio.fail_after(60):
                return await process.wait()

    assert anyio.run(main) == 0


def test_a_server_that_cannot_start_is_an_error() -> None:
    """An unknown profile is reported by the parent, not waited for."""

    async def main() -> None:
        async with embedded("none"):
            pass

    with pytest.raises(EndpointError, match="none"):
        anyio.run(main)


def test_several_tokens_never_share_a_read() -> None:
    """However fast the steps are, each read has the text of one token."""
    _, reads = once(ask(1, max_tokens=50), replace(TINY, step_s=1e-9, decode_seq_s=0.0))
    texts = [[e["choices"][0]["delta"]["content"] for e in part] for part in reads.events()[:-1]]
    assert [len([text for text in part if text]) for part in texts] == [1] * 50
