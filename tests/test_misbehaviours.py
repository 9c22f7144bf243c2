"""What a misbehaving server gives: each case in a run of its own, and the table in the documents.

`python tests/test_misbehaviours.py` writes the table anew.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple

import anyio
import orjson
import pytest
from scripted import (
    MODEL,
    Again,
    Answer,
    Event,
    Raw,
    Request,
    ScriptedServer,
    c,
    cut,
    done,
    err,
    fin,
    k,
    r,
    reset,
    role,
    self_signed,
    stall,
    usage,
)
from virtually import chain

from agentreplay.client.endpoint import Endpoint, api_url
from agentreplay.client.machine import LOOP
from agentreplay.metrics.verdict import Limits
from agentreplay.outcome import exit_code
from agentreplay.plan import Plan
from agentreplay.run import run_plan
from agentreplay.trace.formats import native
from agentreplay.trace.load import load

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
BEGIN = "<!-- generated: python tests/test_misbehaviours.py -->\n"
END = "<!-- generated: end -->\n"

WORDS = 100
"""Most characters of an example."""

GUARD_S = 8.0
"""Bounds a case that hangs; nothing is measured with it."""

ANY_MACHINE = Limits(loop_late_share=1.0, loop_late_max_s=3600.0, lag_p99_s=3600.0)

TRACE = b"".join(native.line(chain(n, 4)) for n in range(25))

ONE = Plan(users=1, sessions=1, duration_s=None, timing="none", on_error="stop")
"""One session of four calls; the first that fails ends the run."""


class Asked(NamedTuple):
    """A request of the run, its number in the run, and what a good answer to it is made of."""

    request: Request
    number: int

    @property
    def tokens(self) -> int:
        return int(orjson.loads(self.request.body)["max_tokens"])

    @property
    def words(self) -> int:
        messages = orjson.loads(self.request.body)["messages"]
        return sum(len(message["content"].split()) for message in messages)

    @property
    def text(self) -> list[bytes]:
        return [c(1)] * self.tokens

    @property
    def usage(self) -> bytes:
        return usage(self.words, self.tokens)

    @property
    def whole(self) -> list[bytes]:
        return [role(), *self.text, fin(), self.usage, done()]


Behaviour = Answer | Callable[[Asked], Answer]


class Case(NamedTuple):
    """What a server does, and what is reported.

    Attributes:
        does: In words.
        answer: How it answers the requests of a run.
        found: The kinds of failures, the reasons, or what the figures of a success say.
        code: The exit code.
        plan: How the plan differs from `ONE`.
        listening: How it takes connections; bytes are all that it ever sends.
        https: It is addressed as if it spoke TLS.
        calibration: How it answers the requests before the run.
        models: How it answers GET; None for a list of one model.
    """

    does: str
    answer: Behaviour
    found: str
    code: int
    plan: dict[str, Any]
    listening: Literal["plain", "tls", "nobody"] | bytes = "plain"
    https: bool = False
    calibration: Behaviour = lambda a: stream(*a.whole)
    models: Answer | None = None


def case(does: str, answer: Behaviour, found: str, code: int, **more: Any) -> Case:
    """A case; *more* are further fields of it, or of the plan."""
    own = {name: more.pop(name) for name in Case._fields if name in more}
    return Case(does, answer, found, code, more, **own)


def fails(does: str, answer: Behaviour, kind: str, **more: Any) -> Case:
    """Nothing succeeds."""
    return case(does, answer, kind, 4, **more)


def spoils(does: str, answer: Behaviour, reason: str, **more: Any) -> Case:
    """The run is invalid."""
    return case(does, answer, reason, 3, **more)


def works(does: str, answer: Behaviour, notes: str = "", **more: Any) -> Case:
    """The run is valid."""
    return case(does, answer, f"success; {notes}" if notes else "success", 0, **more)


def stream(*events: Event, **answer: Any) -> Answer:
    """Events a millisecond apart, so that each is a read of its own."""
    return Answer(script=list(enumerate(events)), **answer)


def bare(head: str, *events: Event) -> Answer:
    """A head of one's own, and what follows it."""
    lines = head.encode().replace(b"\n", b"\r\n") + b"\r\n\r\n"
    return stream(Raw(lines), *events, status=None)


def said(status: int, message: str, **headers: str) -> Answer:
    """An error as OpenAI words it."""
    body = {"error": {"message": message, "type": "x", "param": None, "code": status}}
    return Answer(status=status, headers=headers, body=json.dumps(body).encode())


def page(status: int, body: str, **headers: str) -> Answer:
    return Answer(
        status=status, headers={"content-type": "text/html"} | headers, body=body.encode()
    )


def data(text: bytes) -> bytes:
    return b"data: %b\n\n" % text


def once(event: bytes) -> Behaviour:
    """A good answer, but for one event."""
    return lambda a: stream(event, *a.whole)


def one_in(share: int) -> Behaviour:
    """The last of so many requests fails."""
    failure = said(500, "engine is dead")
    return lambda a: failure if a.number % share == share - 1 else stream(*a.whole)


def redirecting(asked: Asked) -> Answer:
    host = asked.request.headers["host"].replace("127.0.0.1", "localhost")
    return page(302, "", location=f"http://{host}/elsewhere")


def closing_used(asked: Asked) -> Answer:
    return stream(*asked.whole) if asked.request.nth == 0 else SILENT_END


def busy_once(asked: Asked) -> Answer:
    return stream(*asked.whole) if asked.number else said(429, "busy", **{"retry-after": "0"})


def strict(asked: Asked) -> Answer:
    known = b"ignore_eos" not in asked.request.body and b"min_tokens" not in asked.request.body
    return stream(*asked.whole) if known else said(400, "Unrecognized request argument")


def doubled(asked: Asked) -> Answer:
    """Two choices, in every chunk."""
    choices = [{"index": i, "delta": {"content": " word"}} for i in (0, 1)]
    return stream(*[c(1, choices=choices)] * asked.tokens, fin(), asked.usage)


def counting(asked: Asked) -> Answer:
    """The counts so far, in every chunk."""
    counts = ({"prompt_tokens": asked.words, "completion_tokens": n} for n in count(1))
    return stream(*(c(1, usage=next(counts)) for _ in asked.text), fin())


def zipped(asked: Asked) -> Answer:
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    return Answer(headers=headers, body=gzip.compress(b"".join(asked.whole)))


SSE = "HTTP/1.1 200 OK\ncontent-type: text/event-stream"
CHUNKED = f"{SSE}\ntransfer-encoding: chunked"
MB = b"engine is dead; " * (1 << 16)
PING = b": ping\n\n"
DEEP = b'{"a":' * 100_000 + b"0" + b"}" * 100_000
OPEN_EVENT = b'data: {"choices":[{"delta":{"content":"'
BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\n\r\n"
NEVER = stream(stall(), status=None)
SILENT_END = stream(cut(), status=None)
OVERFLOW = (
    "This model's maximum context length is 131072 tokens. However, your prompt contains at least "
    "131073 input tokens."
)

CASES: list[Case] = [
    # Connections and heads.
    fails("refuses connections", NEVER, "connect", listening="nobody"),
    fails("ends each connection as it comes", NEVER, "truncated", listening=b""),
    fails("speaks another protocol", NEVER, "bad_stream", listening=b"SSH-2.0-x\r\n"),
    fails("speaks no TLS, addressed as https", NEVER, "tls", listening=BAD_REQUEST, https=True),
    fails("has a self-signed certificate", NEVER, "tls", listening="tls"),
    fails("never answers", NEVER, "timeout", first_token_s=0.1),
    fails("closes without a word", SILENT_END, "truncated"),
    fails("answers with garbage", bare("\0\1hello"), "bad_stream"),
    fails("101 Switching Protocols", bare("HTTP/1.1 101 x\nupgrade: h2c"), "bad_stream"),
    fails(
        "100 Continue for ever",
        stream(Again(Raw(b"HTTP/1.1 100 x\r\n\r\n"), None), status=None),
        "timeout",
        first_token_s=0.1,
    ),
    fails(
        "headers without end",
        stream(Raw(b"HTTP/1.1 200 x\r\n"), Again(Raw(b"x-a: b\r\n"), None), status=None),
        "bad_stream",
    ),
    # Refusals.
    fails("400 with OpenAI's error", said(400, "unknown field 'x'"), "http_4xx"),
    fails("400 for a prompt that is too long", said(400, OVERFLOW), "context_overflow"),
    fails("401", said(401, "Incorrect API key provided"), "auth"),
    fails("403", said(403, "not your model"), "auth"),
    fails("404", page(404, '{"detail":"Not Found"}'), "http_4xx"),
    fails("413 of a proxy", page(413, "<h1>413 Request Entity Too Large</h1>"), "http_4xx"),
    fails("422", page(422, '{"detail":[{"loc":["body"],"msg":"bad"}]}'), "http_4xx"),
    fails("429 with Retry-After", said(429, "slow down", **{"retry-after": "1"}), "http_429"),
    fails("500 with JSON", said(500, "CUDA out of memory"), "http_5xx"),
    fails("500 with a page", page(500, "<h1>Server Error</h1>"), "http_5xx"),
    fails("503 with nothing", page(503, ""), "http_5xx"),
    fails("302 to another host", redirecting, "http_4xx"),
    fails("204", bare("HTTP/1.1 204 No Content"), "http_4xx"),
    fails(
        "500 with a gigabyte",
        bare("HTTP/1.1 500 x\ncontent-length: 1073741824", Again(Raw(MB), 1024)),
        "http_5xx",
    ),
    fails(
        "500 with a body that never comes",
        bare("HTTP/1.1 500 x\ncontent-length: 9", stall()),
        "timeout",
        first_token_s=0.1,
    ),
    fails(
        "an error with a terminal's escapes",
        said(500, "\x1b[31mred\x1b[0m\r\n\tand more"),
        "http_5xx",
    ),
    # No stream, or a broken one.
    fails("200 with JSON", Answer(body=b'{"choices":[]}'), "bad_stream"),
    fails("200 with a page", page(200, "<h1>Welcome</h1>"), "bad_stream"),
    fails(
        "plain text that is said to be gzip",
        stream(c(1), headers={"content-encoding": "gzip"}),
        "bad_stream",
    ),
    fails("an error event first", stream(err("engine is dead")), "error_event"),
    fails("an error event in the middle", stream(c(1), c(1), err("boom")), "error_event"),
    fails(
        "an error event at the end", lambda a: stream(*a.text, fin(), err("boom")), "error_event"
    ),
    fails("`event: error`", once(b'event: error\ndata: {"message":"boom"}\n\n'), "error_event"),
    fails("closes after the head", stream(cut()), "truncated"),
    fails("closes in the middle", stream(c(1), c(1), cut()), "truncated"),
    fails(
        "closes before its content-length",
        bare(f"{SSE}\ncontent-length: 9999", Raw(c(1)), cut()),
        "truncated",
    ),
    fails(
        "resets the connection in the middle", Answer(script=[(0, c(1)), (20, reset())]), "reset"
    ),
    fails("no finish_reason", lambda a: stream(*a.text, done()), "truncated"),
    fails("a finish_reason and no token", stream(role(), fin(), done()), "truncated"),
    fails("a role and no more", stream(role(), done()), "truncated"),
    fails("usage and no more", lambda a: stream(a.usage, done()), "truncated"),
    fails("an empty stream", stream(), "truncated"),
    fails("stalls in the middle", stream(c(1), stall()), "timeout", next_token_s=0.1),
    fails("pings, and stalls", stream(*[PING] * 5, stall()), "timeout", first_token_s=0.1),
    fails("pings for ever", stream(Again(PING, None)), "timeout", first_token_s=0.1),
    fails(
        "stalls until the run is over, no limit being given",
        stream(c(1), stall()),
        "nothing_measured cut_short",
        duration_s=1.0,
        drain_s=0.0,
    ),
    fails("broken JSON", once(data(b'{"choices":[')), "bad_stream"),
    fails("JSON that is no object", once(data(b"[1]")), "bad_stream"),
    fails("broken UTF-8", once(data(b'{"a":"\xff"}')), "bad_stream"),
    fails("JSON nested 100,000 deep", once(data(DEEP)), "bad_stream"),
    fails("an event of 70 MB", lambda a: stream(Again(MB, 70), *a.whole), "bad_stream"),
    fails(
        "an event without end",
        stream(OPEN_EVENT, Again(MB, None)),
        "bad_stream",
        duration_s=3.0,
        drain_s=0.0,
    ),
    fails("a chunk longer than its size", bare(CHUNKED, Raw(b"5\r\n" + c(1))), "bad_stream"),
    fails("a chunk whose size is no number", bare(CHUNKED, Raw(b"hello\r\n")), "bad_stream"),
    # Runs that can't be trusted.
    spoils(
        "1 of 10 requests fails",
        one_in(10),
        "error_rate",
        requests=10,
        sessions=None,
        on_error="continue",
    ),
    spoils(
        "half of the tokens that were asked for",
        lambda a: stream(*a.text[::2], fin("length"), usage(a.words, len(a.text[::2]))),
        "length_not_controlled",
    ),
    spoils(
        "counts no token of its answers",
        lambda a: stream(*a.text, fin(), usage(a.words, 0)),
        "length_not_controlled",
    ),
    spoils(
        "counts prompts a tenth longer than they are",
        lambda a: stream(*a.text, fin(), usage(a.words * 11 // 10, a.tokens)),
        "prompt_length_drift",
    ),
    # Odd, and fine.
    works(
        "1 of 100 requests fails",
        one_in(100),
        "1 failed",
        users=5,
        sessions=25,
        on_error="continue",
    ),
    works("slow headers", lambda a: stream(*a.whole, head_at_ms=50)),
    works("100 Continue first", lambda a: bare(f"HTTP/1.1 100 x\n\n{CHUNKED}", *a.whole)),
    works(
        "HTTP/1.0, without a length",
        lambda a: bare(SSE.replace("1.1", "1.0"), *map(Raw, a.whole), cut()),
    ),
    works("`Connection: close` every time", lambda a: stream(*a.whole, close_after=True)),
    works("closes a connection when it is used again", closing_used, "3 reconnects"),
    works(
        "closes idle connections",
        lambda a: stream(*a.whole, idle_close_s=0.0),
        timing="think",
        max_gap_s=0.1,
    ),
    works("bytes after the answer", lambda a: stream(*a.whole, Raw(b"0\r\n\r\n" + BAD_REQUEST))),
    works("429 once, with --retry-busy", busy_once, "1 refusal waited out", retry_busy=True),
    works("refuses fields that OpenAI's lacks", strict, calibration=strict),
    works("no list of models", lambda a: stream(*a.whole), models=page(404, "")),
    works(
        "a list of models nested 100,000 deep", lambda a: stream(*a.whole), models=Answer(body=DEEP)
    ),
    works("no usage", lambda a: stream(*a.text, fin(), done()), "output estimated"),
    works("no `[DONE]`", lambda a: stream(*a.text, fin(), a.usage)),
    works("usage on every chunk", counting),
    works(
        "`usage: null` on every chunk",
        lambda a: stream(*[c(1, usage=None)] * a.tokens, fin(), a.usage),
    ),
    works("`choices: null`", once(c(0, choices=None))),
    works("two choices", doubled),
    works("tokens after the finish_reason", lambda a: stream(fin(), *a.text, a.usage)),
    works("comments, ids and retry times", once(b": hello\nid: 1\nretry: 9\n\n")),
    works("CRLF", lambda a: stream(*(event.replace(b"\n", b"\r\n") for event in a.whole))),
    works("byte by byte", lambda a: stream(*a.whole, pieces="bytes")),
    works(
        "4 tokens a chunk",
        lambda a: stream(
            *(c(len(a.text[n : n + 4])) for n in range(0, a.tokens, 4)), fin(), a.usage
        ),
        "corrected interactivity 33 % lower",
    ),
    works("the whole answer in one write", lambda a: stream(b"".join(a.whole)), "bursts: no rate"),
    works(
        "the whole answer in one chunk",
        lambda a: stream(c(a.tokens), fin(), a.usage),
        "bursts: no rate",
    ),
    works("gzip, in one write", zipped, "bursts: no rate"),
    works(
        "a tool call",
        lambda a: stream(k(0, "read"), *[k(1)] * a.tokens, fin("tool_calls"), a.usage),
    ),
    works(
        "reasoning only, up to the limit",
        lambda a: stream(*[r(1)] * a.tokens, fin("length"), a.usage),
        "nothing visible",
    ),
]


class Outcome(NamedTuple):
    """What was reported of a case: ids, and the same in words; and what the server saw."""

    found: str
    words: str
    code: int
    server: ScriptedServer | None


@cache
def outcome(number: int) -> Outcome:
    """Run a case."""
    case = CASES[number]

    async def main(folder: Path) -> Outcome:
        trace = folder / "trace.jsonl"
        trace.write_bytes(TRACE)
        with anyio.fail_after(GUARD_S):
            async with serving(case, folder) as (url, server):
                result = await run_plan(
                    load(trace),
                    replace(ONE, **case.plan),
                    folder / "out",
                    endpoint=Endpoint((api_url(url),), model=MODEL),
                    limits=ANY_MACHINE,
                )
        code, _ = exit_code(result)
        return Outcome(*reported(result.value, code), code, server)

    with tempfile.TemporaryDirectory() as folder:
        return anyio.run(main, Path(folder), backend_options=LOOP)


@asynccontextmanager
async def serving(case: Case, folder: Path) -> AsyncIterator[tuple[str, ScriptedServer | None]]:
    """The server of a case, and its address."""
    numbers = count()

    def answer(request: Request) -> Answer | None:
        if request.method != "POST":
            return case.models
        asked, behaviour = Asked(request, 0), case.calibration
        if asked.tokens > 1:
            asked, behaviour = Asked(request, next(numbers)), case.answer
        return behaviour if isinstance(behaviour, Answer) else behaviour(asked)

    if case.listening == "nobody":
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            yield f"http://127.0.0.1:{taken.getsockname()[1]}", None
        return
    context: ssl.SSLContext | None = None
    if case.listening == "tls":
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*self_signed(folder))
    greeting = case.listening if isinstance(case.listening, bytes) else None
    async with ScriptedServer(answer, ssl_context=context, greeting=greeting) as server:
        yield server.url.replace("http:", "https:") if case.https else server.url, server


def reported(value: Mapping[str, Any], code: int) -> tuple[str, str]:
    """What a summary says: ids, and the same in words."""
    failed = {group["kind"]: group["example"] for group in value["failures"]}
    reasons = {reason["id"]: reason["text"] for reason in value["verdict"]["reasons"]}
    notes: list[str] = []
    if code == 0:
        notes = ["success", *figures(value["metrics"])]
        notes += ["output estimated" for _ in value["verdict"]["warnings"]]
        ids, found = "; ".join(notes), failed
    else:
        found = failed if failed and code == 4 else reasons
        ids = " ".join(found)
    words = (f"`{name}`: {shortened(text)}" for name, text in found.items())
    return ids, "; ".join((*notes, *words))


def figures(metrics: Mapping[str, Any]) -> list[str]:
    """What stands out in the figures of a success."""
    client, requests, rates = metrics["client"], metrics["requests"], metrics["interactivity"]
    counts = {
        "failed": requests["failed"],
        "reconnects": client["reconnects"],
        "refusal waited out": metrics["busy"]["refusals"],
    }
    notes = [f"{number} {name}" for name, number in counts.items() if number]
    if client["bursts"] == requests["succeeded"] and not rates["n"]:
        return [*notes, "bursts: no rate"]
    if not metrics["ttft_visible"]["n"]:
        notes.append("nothing visible")
    lower = 1 - metrics["interactivity_corrected"]["p50"] / rates["p50"]
    if lower:
        notes.append(f"corrected interactivity {lower * 100:.0f} % lower")
    return notes


def shortened(text: str) -> str:
    """Without what differs between runs or between versions of libraries, and not too long."""
    text = re.sub(r"^127\.0\.0\.1:\d+: ", "", text)
    text = re.sub(r"localhost:\d+", "localhost", text)
    text = re.sub(r"(TLS|can't be read|decompressing data): .*", r"\1: …", text)
    return text if len(text) <= WORDS else f"{text[: WORDS - 1]}…"


def table() -> str:
    """All cases, as they stand in the documents."""
    lines = ["| what the server does | reported as | exit code |", "| --- | --- | --- |"]
    for number, case in enumerate(CASES):
        words = re.sub(r"([|<])", r"\\\1", outcome(number).words)
        lines.append(f"| {case.does} | {words} | {outcome(number).code} |")
    return "\n".join(lines) + "\n"


def server_of(does: str) -> ScriptedServer:
    """The server of a case, after its run."""
    (number,) = (number for number, case in enumerate(CASES) if case.does == does)
    server = outcome(number).server
    assert server is not None
    return server


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.does for case in CASES])
def test_what_is_reported(number: int, request: pytest.FixtureRequest) -> None:
    """A misbehaviour is reported by its kinds, reasons or figures, and by the exit code."""
    if CASES[number].listening == "tls":
        request.getfixturevalue("certificate")  # which skips where none can be made
    assert outcome(number)[::2] == (CASES[number].found, CASES[number].code)


@pytest.mark.usefixtures("certificate")
def test_the_table_in_the_documents() -> None:
    """docs/metrics.md shows what is reported of each case."""
    written = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert written == table(), "run `python tests/test_misbehaviours.py`, which writes it anew"


def test_redirects_are_not_followed() -> None:
    """Where a redirect leads to, no request is sent: the key would go along."""
    paths = {request.path for request in server_of("302 to another host").requests}
    assert "/v1/chat/completions" in paths
    assert "/elsewhere" not in paths


def test_the_rest_of_an_endless_error_is_not_read() -> None:
    """Of a body of a gigabyte so little is taken that the server could not send most of it."""
    sent = sum(len(data) for _, data in server_of("500 with a gigabyte").sent)
    assert sent < 1 << 26


FAILING = [case.does for case in CASES if case.code == 4 and case.listening == "plain"]


@pytest.mark.parametrize("does", FAILING)
def test_what_failed_is_not_sent_again(does: str) -> None:
    """A request that failed was sent once, whatever came of it."""
    sent = [request for request in server_of(does).requests if request.method == "POST"]
    assert [Asked(request, 0).tokens > 1 for request in sent].count(True) == 1


def rewrite() -> None:
    """Put the table into the documents."""
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    PAGE.write_text(before + begin + table() + end + after)


if __name__ == "__main__":
    rewrite()
