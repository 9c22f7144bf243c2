"""Rules of one exchange, over real sockets: whatever a server does, a record comes of it."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import time
from collections.abc import Awaitable, Callable
from itertools import accumulate
from typing import Literal

import anyio
import pytest
from scripted import (
    MODEL,
    Answer,
    Control,
    Script,
    ScriptedServer,
    c,
    cut,
    done,
    err,
    fin,
    hold,
    k,
    r,
    reset,
    role,
    stall,
    usage,
)

from agentreplay.client.calibrate import lone_request
from agentreplay.client.endpoint import Endpoint, api_url, http_stream, open_client
from agentreplay.client.exchange import exchange
from agentreplay.client.stream import Reply, Sink, Stream
from agentreplay.metrics.record import Record, Request
from agentreplay.wire import chat

GUARD_S = 20.0
"""Bounds a test that hangs; nothing is measured with it."""

BODY = chat.body(MODEL, [b'{"role":"user","content":"word"}'], {"max_tokens": 8})

GOOD: Script = [(0, role()), (0, c(1)), (0, c(1)), (0, fin()), (0, usage(3, 2)), (0, done())]


def request() -> Request:
    """A planned request."""
    return lone_request(time.monotonic_ns(), 3, 2)


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine function, not for ever."""

    async def guarded() -> None:
        with anyio.fail_after(GUARD_S):
            await main()

    anyio.run(guarded)


def watched(stream: Stream, on_read: Callable[[], None]) -> Stream:
    """The stream, which calls *on_read* after each read of an answer."""

    async def send(request: Request, body: bytes, sink: Sink) -> Reply:
        def forward(at_ns: int, data: bytes) -> None:
            sink(at_ns, data)
            on_read()

        return await stream(request, body, forward)

    return send


async def exchanged(url: str, records: list[Record], on_read: Callable[[], None]) -> Record:
    """One exchange with the server at *url*."""
    endpoint = Endpoint((api_url(url),), model=MODEL)
    async with open_client(endpoint, time.monotonic_ns) as client:
        stream = watched(http_stream(client, endpoint, time.monotonic_ns, "run"), on_read)
        return await exchange(stream, chat.API, request(), BODY, time.monotonic_ns, records.append)


def nothing() -> None:
    """For reads that nobody waits for."""


def outcome(answer: Answer, on_read: Callable[[], None] = nothing) -> tuple[Record, ScriptedServer]:
    """What came of a request that was answered so, and the server with its log."""
    records: list[Record] = []
    server = ScriptedServer(lambda _: answer)

    async def main() -> None:
        async with server:
            made = await exchanged(server.url, records, on_read)
            assert records == [made]

    run(main)
    return records[0], server


def record_of(answer: Answer) -> Record:
    """What came of a request that was answered so."""
    return outcome(answer)[0]


def failed(answer: Answer) -> tuple[str, int | None, str]:
    """Kind, status and message of the failure."""
    error = record_of(answer).error
    assert error is not None
    assert error.message.isprintable()
    assert 0 < len(error.message) <= 500
    return error.kind, error.status, error.message


def test_success() -> None:
    """A clean stream gives a record with the server's counts and times in their order."""
    record, server = outcome(Answer(script=GOOD))
    assert record.error is None
    assert (record.isl, record.osl, record.cached, record.finish) == (3, 2, None, "stop")
    assert record.estimated is False
    assert record.chunk_tokens is None
    assert record.first_token_ns is not None
    assert record.last_token_ns is not None
    assert record.first_visible_ns == record.first_token_ns
    assert record.request.due_ns <= record.sent_ns < record.first_token_ns
    assert record.first_token_ns <= record.last_token_ns <= record.done_ns
    assert [(seen.method, seen.path, seen.body) for seen in server.requests] == [
        ("POST", "/v1/chat/completions", BODY)
    ]


@pytest.mark.parametrize("pieces", ["events", "bytes"])
def test_no_stamp_precedes_the_sending(pieces: Literal["events", "bytes"]) -> None:
    """No token is stamped before the server sent its last byte."""
    script = [(0.0, r(1)), (3.0, c(2)), (6.0, k(3, "f")), (9.0, fin()), (9.0, usage(1, 6))]
    record, server = outcome(Answer(script=script, pieces=pieces))
    assert record.error is None
    assert record.first_token_ns is not None
    assert record.last_token_ns is not None
    assert record.first_visible_ns is not None
    sent = b"".join(data for _, data in server.sent)
    ends = list(accumulate(len(data) for _, data in server.sent))

    def sent_ns(event: bytes) -> int:
        end = sent.index(event) + len(event)
        return next(
            at_ns for (at_ns, _), upto in zip(server.sent, ends, strict=True) if upto >= end
        )

    logged = [sent_ns(event) for event in (r(1), c(2), k(3, "f"))]
    steps_us = list(accumulate(record.chunk_us, initial=0))
    assert record.first_token_ns >= logged[0]
    assert record.first_visible_ns >= logged[1]
    assert record.last_token_ns >= logged[2]
    assert record.done_ns >= sent_ns(fin())
    for step_us, at_ns in zip(steps_us, logged, strict=True):
        assert record.first_token_ns + (step_us + 1) * 1000 > at_ns


def test_waiting_for_a_connection_is_before_the_sending() -> None:
    """A request that others went before was not sent until it was its turn."""
    now_ns = 0

    async def held(request: Request, body: bytes, sink: Sink) -> Reply:
        nonlocal now_ns
        for _, event in GOOD:
            assert isinstance(event, bytes)
            now_ns += 10
            sink(now_ns, event)
        return Reply(200, "text/event-stream", b"", held_ns=7)

    async def main() -> Record:
        records: list[Record] = []
        asked = lone_request(0, 3, 2)
        return await exchange(held, chat.API, asked, BODY, lambda: now_ns, records.append)

    record = anyio.run(main)
    assert record.error is None
    assert (record.sent_ns, record.first_token_ns) == (7, 20)


def test_gaps_make_the_span() -> None:
    """There is a gap less than chunks with tokens, and the gaps add up to the whole span."""
    script = [(0.0, role()), *((n * 2.0, c(1)) for n in range(7)), (14.0, fin()), (14.0, done())]
    record = record_of(Answer(script=script))
    assert record.first_token_ns is not None
    assert record.last_token_ns is not None
    assert len(record.chunk_us) == 6
    assert min(record.chunk_us) >= 0
    assert sum(record.chunk_us) == (record.last_token_ns - record.first_token_ns) // 1000


@pytest.mark.parametrize(
    ("script", "osl", "shares"),
    [
        ([(0, c(1)), (0, c(10)), (0, c(10)), (0, fin()), (0, usage(50, 21))], 21, (1, 10, 10)),
        ([(0, k(200)), (0, fin("tool_calls")), (0, usage(50, 200))], 200, (200,)),
        ([(0, r(5)), (0, c(5)), (0, fin()), (0, usage(10, 10))], 10, (5, 5)),
        ([(0, c(1)), (0, c(1)), (0, fin()), (0, usage(10, 2))], 2, None),
    ],
)
def test_tokens_of_chunks(script: Script, osl: int, shares: tuple[int, ...] | None) -> None:
    """The server's usage says how many tokens came, the bytes in which chunks."""
    record = record_of(Answer(script=script))
    assert record.error is None
    assert record.osl == osl
    assert record.chunk_tokens == shares


def test_without_usage_chunks_are_counted() -> None:
    """A server without usage has as many tokens as chunks, which is marked as an estimate."""
    record = record_of(Answer(script=[(0, c(1)), (0, c(5)), (0, r(1)), (0, fin()), (0, done())]))
    assert record.error is None
    assert (record.isl, record.osl, record.estimated) == (None, 3, True)
    assert record.chunk_tokens is None


@pytest.mark.parametrize(
    ("events", "burst"),
    [
        (c(1) + c(1) + fin() + usage(1, 2), True),
        (role() + k(200) + fin() + usage(50, 200), True),
        (c(1) + fin() + usage(1, 1), False),
    ],
    ids=["two-chunks", "one-chunk", "one-token"],
)
def test_burst(events: bytes, burst: bool) -> None:
    """Several tokens that all came in one read are a burst."""
    record = record_of(Answer(script=[(0, events)]))
    assert record.error is None
    assert record.burst is burst
    assert record.bundled_reads == 1


def test_tokens_in_two_reads_are_no_burst() -> None:
    """Tokens that came in two reads are no burst."""
    seen = asyncio.Event()
    script: Script = [(0, c(5)), (0.0, hold(seen)), (0.0, c(5) + fin() + usage(1, 10))]
    record, _ = outcome(Answer(script=script), seen.set)
    assert record.error is None
    assert record.burst is False
    assert record.bundled_reads == 1
    assert len(record.chunk_us) == 1


@pytest.mark.parametrize(
    "script",
    [
        [(0, c(1)), (0, fin())],
        [(0, c(1)), (0, fin()), (0, usage(1, 1))],
        [(0, role()), (0, r(1)), (0, r(1)), (0, fin("length")), (0, usage(1, 2)), (0, done())],
        [(0, k(1, "f")), (0, fin("tool_calls")), (0, done())],
        [(0, b": ping\n\n"), (0, c(1)), (0, fin()), (0, done())],
    ],
    ids=["bare", "no-done", "reasoning-only", "tool", "ping"],
)
def test_successes(script: Script) -> None:
    """A clean end after a finish_reason and a token is a success, with or without an end mark."""
    assert record_of(Answer(script=script)).error is None


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        ([(0, c(1)), (0, c(1)), (0, err("boom")), (0, done())], "error_event", "boom"),
        ([(0, c(1)), (0, fin()), (0, err("boom"))], "error_event", "boom"),
        ([(0, err("boom")), (0, cut())], "error_event", "boom"),
        ([(0, b'event: error\ndata: {"message": "boom"}\n\n')], "error_event", "boom"),
        ([(0, c(1)), (0, done())], "truncated", "without a finish_reason, after 1 chunk"),
        ([(0, c(1)), (0, c(1))], "truncated", "without a finish_reason, after 2 chunks"),
        ([], "truncated", "without a finish_reason, after 0 chunks"),
        ([(0, role()), (0, fin()), (0, usage(3, 1)), (0, done())], "truncated", "without a token"),
        ([(0, c(1)), (0, b"data: {\n\n"), (0, fin())], "bad_stream", "can't be read"),
    ],
    ids=[
        "error",
        "error-after-finish",
        "error-and-cut",
        "named-error",
        "done-only",
        "no-finish",
        "empty",
        "no-token",
        "bad-json",
    ],
)
def test_streams_that_fail(script: Script, kind: str, words: str) -> None:
    """A status of 200 is no success: an error event, no finish_reason or no token is a failure."""
    found, status, message = failed(Answer(script=script))
    assert (found, status) == (kind, 200)
    assert words in message


@pytest.mark.parametrize(
    ("control", "kinds"),
    [(cut(), {"truncated"}), (reset(), {"reset", "truncated"})],
    ids=["cut", "reset"],
)
def test_broken_connections(control: Control, kinds: set[str]) -> None:
    """A connection that breaks off before the end is a failure, which keeps what had come."""
    seen = asyncio.Event()
    script: Script = [(0, c(1) + c(1)), (0.0, hold(seen)), (0.0, control)]
    record, _ = outcome(Answer(script=script), seen.set)
    assert record.error is not None
    assert record.error.kind in kinds
    assert record.finish is None
    assert record.estimated is True
    assert record.osl == len(record.chunk_us) + 1 == 2


def test_failed_stream_keeps_its_tokens() -> None:
    """The tokens before an error are in the record, apart from a success's."""
    record = record_of(Answer(script=[(0, c(1)), (0, c(1)), (0, err("boom"))]))
    assert record.error is not None
    assert record.osl == 2
    assert len(record.chunk_us) == 1


def test_no_token_is_no_time() -> None:
    """Where no token came, no time of a token is stated, though the server's counts are."""
    record = record_of(Answer(script=[(0, role()), (0, fin()), (0, usage(10, 1)), (0, done())]))
    assert record.first_token_ns is None
    assert record.first_visible_ns is None
    assert record.last_token_ns is None
    assert record.chunk_us == ()
    assert record.chunk_tokens is None
    assert record.burst is False
    assert (record.isl, record.osl) == (10, 1)


def test_hidden_tokens_only() -> None:
    """An answer of reasoning alone has a first token and no first visible one."""
    record = record_of(Answer(script=[(0, r(1)), (0, r(1)), (0, fin("length")), (0, usage(5, 2))]))
    assert record.error is None
    assert record.first_token_ns is not None
    assert record.first_visible_ns is None
    assert record.finish == "length"


OVERFLOW_VLLM = (
    "This model's maximum context length is 131072 tokens. However, your prompt contains at least "
    "131073 input tokens."
)
OVERFLOW_LLAMA = "request (82341 tokens) exceeds the available context size (32768 tokens)"


def said(message: str) -> bytes:
    """An error body as most servers write it."""
    return json.dumps({"error": {"message": message, "type": "x", "code": 400}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (401, b'{"error":"Unauthorized"}', "auth", "HTTP 401: Unauthorized"),
        (403, said("no"), "auth", "HTTP 403: no"),
        (404, b'{"detail":"Not Found"}', "http_4xx", "HTTP 404: Not Found"),
        (404, b"", "http_4xx", "HTTP 404: (no body)"),
        (422, b'{"detail":["a"]}', "http_4xx", 'HTTP 422: ["a"]'),
        (429, said("slow down"), "http_429", "HTTP 429: slow down"),
        (429, said(OVERFLOW_VLLM), "http_429", f"HTTP 429: {OVERFLOW_VLLM}"),
        (500, b"Internal Server Error", "http_5xx", "HTTP 500: Internal Server Error"),
        (503, said("busy"), "http_5xx", "HTTP 503: busy"),
        (302, b"", "http_4xx", "HTTP 302: (no body)"),
        (400, said("bad"), "http_4xx", "HTTP 400: bad"),
        (400, b'{"message":"bad"}', "http_4xx", "HTTP 400: bad"),
        (400, b"null", "http_4xx", "HTTP 400: null"),
        (400, b"\xff", "http_4xx", "HTTP 400: \ufffd"),
        (400, said(OVERFLOW_VLLM), "context_overflow", f"HTTP 400: {OVERFLOW_VLLM}"),
        (400, said(OVERFLOW_LLAMA), "context_overflow", f"HTTP 400: {OVERFLOW_LLAMA}"),
        (413, b"Context window exceeded", "context_overflow", "HTTP 413: Context window exceeded"),
    ],
)
def test_refusals(status: int, body: bytes, kind: str, message: str) -> None:
    """A status that is no 200 is a failure by its kind, in the server's words."""
    assert failed(Answer(status=status, body=body)) == (kind, status, message)


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("application/json", b'{"choices":[]}', 'no event stream but application/json: {"choices'),
        ("text/plain; charset=utf-8", b"hello", "no event stream but text/plain: hello"),
        ("text/html", b"", "no event stream but text/html: (no body)"),
    ],
)
def test_no_event_stream(kind: str, body: bytes, message: str) -> None:
    """Any answer but an event stream to a streaming request is a bad stream."""
    found = failed(Answer(headers={"content-type": kind}, body=body))
    assert found[:2] == ("bad_stream", 200)
    assert message in found[2]


@pytest.mark.parametrize("location", ["http://[", "http://a]b/", "//", "\xff", "http://h:99999/"])
def test_a_redirect_to_nowhere_is_a_failure(location: str) -> None:
    """A redirect whose target is no address fails its request like any other."""
    kind, _, message = failed(Answer(status=302, headers={"location": location}, body=b""))
    assert kind in ("http_4xx", "truncated")
    assert message


def test_error_that_calls_itself_an_event_stream() -> None:
    """The status goes before the content type: a refusal is read as one."""
    headers = {"content-type": "text/event-stream"}
    found = failed(Answer(status=404, headers=headers, body=said("no such model")))
    assert found == ("http_4xx", 404, "HTTP 404: no such model")


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_large_error_bodies(size: int) -> None:
    """However long an error body is, its start is told."""
    found = failed(Answer(status=500, body=b"x" * size))
    assert found == ("http_5xx", 500, ("HTTP 500: " + "x" * size)[:500])


def test_compressed_stream() -> None:
    """A server that compresses although it was not asked to is understood."""
    events = b"".join(event for _, event in GOOD if isinstance(event, bytes))
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    record = record_of(Answer(headers=headers, body=gzip.compress(events)))
    assert record.error is None
    assert (record.isl, record.osl) == (3, 2)


@pytest.mark.parametrize("status", [200, 500])
def test_falsely_compressed(status: int) -> None:
    """A body that is not compressed as its header says is a failure like any other."""
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    failed(Answer(status=status, headers=headers, body=b"data: plain\n\n"))


@pytest.mark.parametrize(
    "answer",
    [
        Answer(status=500, body=said("\x1b[31mred\x1b[0m\nand\r\n\tmore\x00\u202e")),
        Answer(status=500, body=b"\x1b[31mred\x1b[0m\nand\r\n\tmore"),
        Answer(script=[(0, err("\x1b[31mred\x1b[0m\nand\r\n\tmore"))]),
        Answer(headers={"content-type": "text/plain"}, body=b"\x1b[31mred\x1b[0m\nand\r\n\tmore"),
    ],
    ids=["json", "text", "event", "no-stream"],
)
def test_messages_are_one_plain_line(answer: Answer) -> None:
    """Escapes, line breaks and other controls of a server never reach the terminal."""
    assert "[31mred [0m and more" in failed(answer)[2]


@pytest.mark.parametrize("message", ["\n", "\x1b\x00", "\u200b", " "])
def test_messages_are_never_empty(message: str) -> None:
    """A failure says something even where the server's words are only controls and blanks."""
    assert failed(Answer(script=[(0, err(message))]))[0] == "error_event"
    assert failed(Answer(status=400, body=said(message)))[0] == "http_4xx"


def test_deep_error_body() -> None:
    """An error body nested beyond all measure is a failure like any other."""
    body = b'{"error":' * 1000 + b'"boom"' + b"}" * 1000
    assert failed(Answer(status=500, body=body))[:2] == ("http_5xx", 500)


def test_connection_refused() -> None:
    """Where nobody listens, the request fails to connect, at the address that is named."""
    records: list[Record] = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"

        async def main() -> None:
            await exchanged(url, records, nothing)

        run(main)
    (record,) = records
    assert record.error is not None
    assert (record.error.kind, record.error.status) == ("connect", None)
    assert url.removeprefix("http://") in record.error.message
    assert record.first_token_ns is None
    assert record.done_ns >= record.sent_ns


def test_cancellation() -> None:
    """A cancelled request is recorded as such, with what had come, and stays cancelled."""
    records: list[Record] = []

    async def main() -> None:
        scope = anyio.CancelScope()
        script: Script = [(0, c(1)), (0, stall())]
        async with ScriptedServer(lambda _: Answer(script=script)) as server:
            with scope:
                await exchanged(server.url, records, scope.cancel)
            assert scope.cancelled_caught
            await server.all_closed()

    run(main)
    (record,) = records
    assert record.error is not None
    assert (record.error.kind, record.error.status) == ("cancelled", None)
    assert record.error.message
    assert record.first_token_ns is not None
    assert record.osl == 1
    assert record.done_ns >= record.first_token_ns
