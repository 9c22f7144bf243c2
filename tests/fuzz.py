"""Fuzz the answer path: bytes that no server should send, and what must come of them all the same.

Each stream is made from its seed alone: bytes, text like an event stream's, or what a real server
sent, damaged. It goes the way of an answer, from the reads of a socket to a record, a run directory
and its summary. Every 50th is really sent, over a socket.

    python tests/fuzz.py --seconds 600    from some seed on, until the time is over
    python tests/fuzz.py --seed N         one stream again
"""

from __future__ import annotations

import argparse
import re
import secrets
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import accumulate, cycle, pairwise
from pathlib import Path
from random import Random
from typing import Any

import anyio
import httpx
import orjson
import scripted
from scripted import ScriptedServer
from shared_data import SHARED

from agentreplay.client.calibrate import lone_request
from agentreplay.client.endpoint import APIS, Endpoint, api_url, http_stream, open_client
from agentreplay.client.exchange import MESSAGE_CHARS, Patience, exchange
from agentreplay.client.stream import Reply, Sink, Stream
from agentreplay.metrics.record import Record, Request
from agentreplay.metrics.verdict import Limits
from agentreplay.metrics.window import Ending
from agentreplay.outcome import conclude
from agentreplay.plan import Plan
from agentreplay.replay import Progress
from agentreplay.report.live import Tally, line
from agentreplay.store import RunWriter, read_run
from agentreplay.wire.http1 import BadResponse, ResponseReader
from agentreplay.wire.turn import served_turn

HERE = Path(__file__).resolve().parent
FOLDERS = (HERE / "data" / "sse", SHARED / "data" / "sse")

_TABLE = (HERE.parent / "docs" / "metrics.md").read_text().partition("## Failures")[2]
KINDS = {
    kind
    for cell in re.findall(r"^\| (`.*?) \|", _TABLE.partition("\n## ")[0], re.MULTILINE)
    for kind in re.findall(r"`(\w+)`", cell)
}
"""Kinds of failures, as the documents list them."""

BATCH = 1000
"""Records that are written, read back and summarised together."""

BLOCK = 10 * BATCH
"""Streams between two looks at the time."""

SENT_EVERY = 50
"""Of so many streams one goes over a socket."""

STREAMS = 10_000_000
PROGRESS_S = 10.0

STEPS_NS = (0, 1, 999, 400_000_000)
"""How far the clock goes on from look to look."""

CLOSED_NS = 1_200_000_000
"""The window closes in the middle of many of the streams."""

FIRST_EVENTS, LAST_EVENTS = 3, 5
"""What is kept of a recorded stream."""

DULL = {"id", "created", "model", "object", "logprobs", "system_fingerprint", "sequence_number"}
"""Fields that say nothing to anybody here."""

DEEP = "as deep as can be"
DEPTHS = (
    b'[{"text":' * 500 + b'"x"' + b"}]" * 500,
    b'{"error":' * 900 + b"0" + b"}" * 900,
    b"[" * 1000 + b"]" * 1000,
)
"""What stands for `DEEP`: about as many levels as JSON may have."""

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 0.5, 1e300, 2**31, 2**53 + 1, 2**63, 2**64 - 1),
    *("", " ", "x", "stop", "\x00\x1b[2J\u2028", "[/b]", "é€😀" * 9, DEEP),
    *([], {}, [[]], [None], ["x"], [{"text": "x"}], {"text": "x"}, {"x": 0}),
    *({"message": ""}, {"message": "boom"}, {"error": {"message": {"detail": ["boom"]}}}),
    *({"prompt_tokens": 2**64 - 1, "completion_tokens": 2**53 + 1}, {"completion_tokens": 0}),
    {"input_tokens": 2**64 - 1, "output_tokens": 9, "cache_read_input_tokens": 2**64 - 1},
)

PIECES = (
    *(b"data: ", b"data:", b"data", b"event: error\n", b"event: message\n", b"event:", b"id: 1\n"),
    *(b": ping\n", b"\n", b"\n\n", b"\r\n", b"\r", b"\xef\xbb\xbf", b"\xff", b"\x00", b" "),
    *(b"[DONE]", b"data: [DONE]\n\n", b"{}", b"[]", b"null", b'"x"', b"0", b"{", b"}", b'"'),
    b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n',
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}\n\n',
    b'data: {"error":{"message":"boom"}}\n\n',
    b'data: {"type":"response.output_text.delta","delta":"x"}\n\n',
    b'data: {"type":"response.completed","response":{"usage":{"output_tokens":1}}}\n\n',
    b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"x"}}\n\n',
    b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\n',
    *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.0 200 \r\n"),
    *(b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n", b"0\r\n\r\n", b"5\r\n"),
    *(b"ffffffffffffffff\r\n", b"\r\n\r\n", b"content-type: text/event-stream\r\n"),
)

STATUSES = (200, 200, 200, 200, 200, 204, 302, 304, 400, 401, 403, 404, 413, 422, 429, 500, 503)

CONTENT_TYPES = (
    *(b"text/event-stream", b"text/event-stream; charset=utf-8", b"Text/Event-Stream ;x"),
    *(b"application/json", b"text/html", b"", b"\xff"),
)

HEADERS = (
    *(b"retry-after: 2", b"retry-after: -1", b"retry-after: " + b"9" * 400),
    b"retry-after: Mon, 1 Jan 2035 00:00:00 GMT",
    b"retry-after: Mon, 1 Jan 0000 00:00:00 GMT",
    b"retry-after: Mon, 1 Jan 99999999999 00:00:00 GMT",
    *(b"content-encoding: gzip", b"content-encoding: deflate", b"content-encoding: x"),
    *(b"connection: close", b"connection: keep-alive", b"set-cookie: =;x=\xff; expires=x"),
    *(b"location: http://[", b"location: /\xff", b"x: " + b"y" * 3000, b" folded", b"x:\xe9"),
)

MANIFEST = {
    "agentreplay": "0",
    "plan": asdict(Plan()),
    "limits": asdict(Limits()),
    "endpoint": {},
    "trace": {"paths": [], "sessions": 0},
    "cautions": [],
}


@dataclass(frozen=True, slots=True)
class Source:
    """A recorded response: its API, its head without the framing, and some of its events."""

    api: str
    head: bytes
    events: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """A stream: the API that it answers, and the reads it comes in."""

    api: str
    reads: list[bytes]


@dataclass(frozen=True, slots=True)
class Found:
    """What came of streams: how often which kind of record, and by seed what went wrong."""

    outcomes: Counter[str] = field(default_factory=Counter)
    broken: dict[int, Exception] = field(default_factory=dict)

    def report(self) -> str:
        """What went wrong, a line each."""
        return "\n".join(
            f"stream {seed}: {_where(error)}: {type(error).__name__}: {error}"
            f"\n  again: python tests/fuzz.py --seed {seed}"
            for seed, error in self.broken.items()
        )


@cache
def sources() -> dict[str, list[Source]]:
    """The recorded responses by API; refusals, which are of none, are with chat."""
    found: dict[str, list[Source]] = {name: [] for name in APIS}
    for folder in FOLDERS:
        for path in sorted(folder.glob("*.raw")):
            source = _source(path.read_bytes())
            found[source.api].append(source)
    return found


def _source(data: bytes) -> Source:
    body = ResponseReader().feed(data)
    signs = {"completions": b'"text_completion"', "messages": b'"message_start"'}
    signs["responses"] = b'"type":"response.'
    api = next((api for api, sign in signs.items() if sign in body), "chat")
    head = data.partition(b"\r\n\r\n")[0] + b"\r\n"
    head = re.sub(rb"(?i)\n(?:transfer-encoding|content-length|date):[^\n]*", b"", head)
    events = re.findall(rb".+?(?:\r?\n){2}|.+", body, re.DOTALL)
    kept = (*events[:FIRST_EVENTS], *events[FIRST_EVENTS:][-LAST_EVENTS:])
    return Source(api, head, kept)


def made(seed: int) -> Made:
    """The stream of a seed."""
    rng = Random(seed)
    api, kind = _one(rng, list(APIS)), rng.random()
    if kind < 0.03:
        return Made(api, _cut(rng, rng.randbytes(_below(rng, 200))))
    if kind < 0.06:
        return Made(api, _cut(rng, _text(rng)))
    source = _one(rng, sources()[api])
    if kind < 0.09:
        body = rng.randbytes(_below(rng, 300))
    elif kind < 0.25:
        body = _text(rng)
    else:
        body = b"".join(_events(rng, source))
    while rng.random() < 0.25:
        body = _damaged(rng, body)
    data = _framed(rng, _head(rng, source), body)
    while rng.random() < 0.15:
        data = _damaged(rng, data)
    return Made(api if rng.random() < 0.95 else _one(rng, list(APIS)), _cut(rng, data))


def _text(rng: Random) -> bytes:
    """What looks like an event stream or a head of HTTP."""
    return b"".join([_one(rng, PIECES) for _ in range(_below(rng, 20))])


def _events(rng: Random, source: Source) -> list[bytes]:
    """The events of a source, some of them lost, doubled, moved, another's, or with odd values."""
    events = list(source.events)
    while events and rng.random() < 0.3:
        at, act = _below(rng, len(events)), rng.random()
        if act < 0.3:
            del events[at]
        elif act < 0.6:
            events.insert(at, _one(rng, events))
        elif act < 0.8:
            events.insert(_below(rng, len(events)), events.pop(at))
        else:
            events[at:] = _one(rng, sources()[source.api]).events[at:]
    while events and rng.random() < 0.5:
        at = _below(rng, len(events))
        events[at] = _swapped(rng, events[at])
    return events


def _swapped(rng: Random, event: bytes) -> bytes:
    """An event with another value somewhere in its JSON, where it has any."""
    begin, end = event.find(b"{"), event.rfind(b"}") + 1
    try:
        value = orjson.loads(event[begin:end])
        _swap(rng, value)
        changed = orjson.dumps(value)
    except (orjson.JSONDecodeError, TypeError):
        return event  # damaged before, or as deep as can be
    return event[:begin] + changed.replace(b'"%b"' % DEEP.encode(), _one(rng, DEPTHS)) + event[end:]


def _swap(rng: Random, node: Any) -> None:
    """Give something in *node*, at whatever depth, an odd value, or take it away."""
    while keys := list(range(len(node))) if isinstance(node, list) else [*(node.keys() - DULL)]:
        key = _one(rng, sorted(keys))
        if node[key] and isinstance(node[key], dict | list) and rng.random() < 0.75:
            node = node[key]
            continue
        if rng.random() < 0.1:
            del node[key]
        else:
            node[key] = _one(rng, ODD)
        return


def _damaged(rng: Random, data: bytes) -> bytes:
    """Bytes with one thing done to them: flipped, lost, added, doubled, another's, cut off."""
    at, act = _below(rng, len(data) + 1), rng.random()
    upto = at + _below(rng, 60)
    if act < 0.2:
        return data[:at] + bytes((_below(rng, 256),)) + data[at + 1 :]
    if act < 0.4:
        return data[:at] + data[upto:]
    if act < 0.6:
        return b"%b%b%b" % (data[:at], _one(rng, PIECES), data[at:])
    if act < 0.8:
        return data[:upto] + data[at:]
    if act < 0.9:
        other = b"".join(_one(rng, sources()[_one(rng, list(APIS))]).events)
        return data[:at] + other[_below(rng, len(other) + 1) :]
    return data[:at]


def _head(rng: Random, source: Source) -> bytes:
    """The source's own head, or one put together."""
    head = source.head
    if rng.random() < 0.2:
        kind = _one(rng, CONTENT_TYPES)
        head = b"HTTP/1.1 %d Word\r\ncontent-type: %b\r\n" % (_one(rng, STATUSES), kind)
    while rng.random() < 0.15:
        head += _one(rng, HEADERS) + b"\r\n"
    return head


def _framed(rng: Random, head: bytes, body: bytes) -> bytes:
    """A response: its body in chunks, of a stated length, or up to the end."""
    way = rng.random()
    if way < 0.15:
        return b"%b\r\n%b" % (head, body)
    if way < 0.3:
        return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)
    chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in _cut(rng, body)]
    return b"%btransfer-encoding: chunked\r\n\r\n%b0\r\n\r\n" % (head, b"".join(chunks))


def _cut(rng: Random, data: bytes) -> list[bytes]:
    """The bytes in some pieces, none of them empty; rarely in pieces of one."""
    if rng.random() < 0.004:
        return [data[at : at + 1] for at in range(len(data))]
    cuts = {_below(rng, len(data)) for _ in range(_below(rng, 10))}
    return [data[low:high] for low, high in pairwise(sorted({0, *cuts, len(data)}))]


def _below(rng: Random, end: int) -> int:
    return int(rng.random() * end)


def _one(rng: Random, of: Sequence[Any]) -> Any:
    return of[_below(rng, len(of))]


def at_once(reads: list[bytes], clock: Callable[[], int]) -> Stream:
    """Answers with *reads*, without a socket, as the transport and the endpoint do."""

    async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
        reader, said, kind = ResponseReader(), b"", None
        try:
            for data in reads:
                at_ns = clock()
                part = reader.feed(data)
                if kind is None and reader.head_complete:
                    kind = reader.header(b"content-type").partition(b";")[0].decode("latin-1")
                    kind = kind.strip().lower()
                if part and reader.status == 200 and kind == "text/event-stream":
                    sink(at_ns, part)
                else:
                    said += part
                if reader.complete:
                    break
            else:
                reader.eof()
        except BadResponse as bad:
            raise httpx.RemoteProtocolError(f"127.0.0.1:1: {bad}") from bad
        return Reply(reader.status, kind or "", said)

    return stream


async def answered(seed: int, api: str, stream: Stream, clock: Callable[[], int]) -> Record:
    """What came of a request that *stream* answers; an exception where something is wrong."""
    records: list[Record] = []
    kept: list[bytes] = []
    patience = Patience(retry_busy=seed % 2 == 0)
    request = replace(lone_request(clock(), 100, 10), visit=seed)
    body = b"%d" % seed
    record = await exchange(stream, APIS[api], request, body, clock, records.append, kept, patience)
    assert records == [record], "not one record"
    check(record)
    if record.error is None and api == "chat":
        served_turn(kept)
    return record


def check(record: Record) -> None:
    """The rules that hold for every record."""
    first, last, visible = record.first_token_ns, record.last_token_ns, record.first_visible_ns
    times = (record.request.due_ns, record.sent_ns, first, visible, last, record.done_ns)
    known = [at_ns for at_ns in times if at_ns is not None]
    assert known == sorted(known), f"times go back: {known}"
    assert (first is None) == (last is None), "a first token and no last one"
    assert first is not None or visible is None, "a visible token and no first one"
    if first is not None and last is not None:
        assert sum(record.chunk_us) == (last - first) // 1000, "gaps don't add up"
    assert min(record.chunk_us, default=0) >= 0, "a gap below 0"
    if record.chunk_tokens is not None:
        assert sum(record.chunk_tokens) == record.osl, "tokens of chunks don't add up"
        assert min(record.chunk_tokens) >= 0, "a chunk of less than no token"
        assert len(record.chunk_tokens) == len(record.chunk_us) + 1, "chunks are missing"
    assert isinstance(record.finish, str | None), f"a finish of {type(record.finish)}"
    if record.error is None:
        assert first is not None, "a success without a first token"
        assert record.osl is not None, "a success without a count of tokens"
        assert record.finish, "a success without a finish"
        return
    message = record.error.message
    assert record.error.kind in KINDS, f"{record.error.kind} is no kind of failure"
    assert message.strip(), "a failure without words"
    assert message.isprintable(), f"words that can't be printed: {message!r}"
    assert len(message) <= MESSAGE_CHARS, f"{len(message)} characters"


def kept_and_read(records: list[Record]) -> None:
    """Keep the records as a run does, and read and summarise them; an exception where it fails."""
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        with RunWriter(path, MANIFEST) as writer:
            for record in records:
                writer.append(record)
                tally.take(record)
            writer.end(Ending("work", CLOSED_NS, CLOSED_NS), None, {})
        assert list(read_run(path).records()) == records, "others are read than were written"
        value = conclude(path).value
        stored = orjson.loads((path / "summary.json").read_bytes())
    assert stored["metrics"] == value["metrics"], "the summary is no JSON"
    assert line(tally, CLOSED_NS, Progress(0, 1), None).isprintable(), (
        "the live line can't be printed"
    )


async def fuzz(seeds: range) -> Found:
    """Play the streams of *seeds*."""
    found = Found()
    async with ScriptedServer(_sent) as server, AsyncExitStack() as stack:
        clock = ticking()
        sockets: dict[str, Stream] = {}
        for name, api in APIS.items():
            endpoint = Endpoint((api_url(server.url, api),), api, connection_per_session=True)
            client = await stack.enter_async_context(open_client(endpoint, clock))
            sockets[name] = http_stream(client, endpoint, clock, "fuzz")
        for start in range(0, len(seeds), BATCH):
            records: dict[int, Record] = {}
            for seed in seeds[start : start + BATCH]:
                stream = made(seed)
                try:
                    if seed % SENT_EVERY:
                        own = ticking()
                        played = at_once(stream.reads, own)
                        records[seed] = await answered(seed, stream.api, played, own)
                    else:
                        records[seed] = await answered(seed, stream.api, sockets[stream.api], clock)
                except Exception as error:
                    found.broken[seed] = error
            found.outcomes.update(r.error.kind if r.error else "success" for r in records.values())
            found.broken.update(_unkept(records))
    return found


def _sent(request: scripted.Request) -> scripted.Answer:
    data = b"".join(made(int(request.body)).reads)
    return scripted.Answer(status=None, body=data, close_after=True)


def _unkept(records: dict[int, Record]) -> dict[int, Exception]:
    """Keep the records together; where that fails, look whose fault it is."""
    try:
        kept_and_read(list(records.values()))
    except Exception as error:
        guilty: dict[int, Exception] = {}
        for seed, record in records.items():
            try:
                kept_and_read([record])
            except Exception as own:
                guilty[seed] = own
        return guilty or {next(iter(records)): error}
    return {}


def ticking() -> Callable[[], int]:
    """A clock that goes on at most looks, by little or much."""
    return accumulate(cycle(STEPS_NS)).__next__


def _where(error: Exception) -> str:
    """The place that raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def main() -> int:
    """Fuzz as the options say; 1 where something went wrong."""
    parser = argparse.ArgumentParser(description="Fuzz the answer path.")
    parser.add_argument("--seed", type=int, help="play this one stream, and show it")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    options = parser.parse_args()

    def out(text: object) -> None:
        print(text, flush=True)  # noqa: T201

    if options.seed is not None:
        stream = made(options.seed)
        out(stream.api)
        for data in stream.reads:
            out(data)
        found = anyio.run(fuzz, range(options.seed, options.seed + 1))
        out(found.report() or f"as it should be: {', '.join(found.outcomes)}")
    else:
        found = fuzz_on(secrets.randbits(48), options.seconds, out)
    return bool(found.broken)


def fuzz_on(first: int, seconds: float, out: Callable[[object], None]) -> Found:
    """Play stream after stream from seed *first* on, and say every ten seconds how it goes."""
    total, played = Found(), 0
    began_s = time.monotonic()
    next_s = PROGRESS_S
    while True:
        found = anyio.run(fuzz, range(first + played, first + played + BLOCK))
        total.outcomes.update(found.outcomes)
        total.broken.update(found.broken)
        played += BLOCK
        took_s = time.monotonic() - began_s
        if found.broken:
            out(found.report())
        over = played >= STREAMS or took_s >= seconds
        if over or took_s >= next_s:
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in total.outcomes.most_common())
            out(f"{took_s:.0f} s: {played:,} streams, {len(total.broken)} wrong; {kinds}")
            next_s = took_s + PROGRESS_S
        if over:
            return total


if __name__ == "__main__":
    sys.exit(main())
