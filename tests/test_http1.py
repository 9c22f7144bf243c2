"""Rules of the HTTP/1.1 response reader."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentreplay.wire.http1 import BLOCK_LIMIT, BadResponse, ResponseReader

HERE = Path(__file__).parent
RECORDED = sorted((HERE / "data" / "sse").glob("*.raw"))
SHARED = HERE.parent.parent / "shared" / "data" / "sse"

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that a reader tells about a response, whatever the reads were."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    complete: bool
    keep_alive: bool


def outcome(reads: list[bytes], *, eof: bool = False) -> Outcome:
    """What a reader makes of *reads*."""
    reader = ResponseReader()
    body = b"".join([reader.feed(read) for read in reads])
    if eof:
        reader.eof()
    return Outcome(reader.status, tuple(reader.headers), body, reader.complete, reader.keep_alive)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """*data* in pieces, cut at the given places modulo its length."""
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in at)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


names = st.sampled_from([b"X-A", b"x-a", b"Server", b"Set-Cookie"])
values = st.from_regex(rb"([!-~]([ -~]{0,20}[!-~])?)?", fullmatch=True)
line_ends = st.sampled_from([b"\r\n", b"\n"])


@st.composite
def responses(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A complete response in bytes, and its body."""
    end = draw(line_ends)
    bodies = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=6))
    lines = [b"%b: %b" % field for field in draw(st.lists(st.tuples(names, values), max_size=4))]
    if draw(st.booleans()):
        extension = draw(st.sampled_from([b"", b";a=1", b' ; b="x"']))
        trailer = draw(st.sampled_from([b"", b"X-Sum: 1" + end]))
        lines.append(b"Transfer-Encoding: chunked")
        rest = b"".join(
            b"%x%b%b%b%b" % (len(body), extension, end, body, end) for body in bodies
        ) + (b"0" + end + trailer + end)
    else:
        rest = b"".join(bodies)
        lines.append(b"Content-Length: %d" % len(rest))
    early = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue" + end + end]))
    head = end.join([b"HTTP/1.1 200 OK", *lines, b"", b""])
    return early + head + rest, b"".join(bodies)


cuts = st.lists(st.integers(0, 10_000), max_size=30)


@given(responses(), cuts, st.binary(max_size=3))
def test_any_chunking_gives_the_same(
    response: tuple[bytes, bytes], at: list[int], more: bytes
) -> None:
    """How a response is cut into reads changes nothing."""
    data, body = response
    expected = outcome([data + more])
    assert expected.complete
    assert expected.body == body
    assert expected.keep_alive is (more == b"")
    assert outcome(cut(data + more, at)) == expected


@given(st.binary(max_size=60), cuts)
def test_any_chunking_of_garbage_is_refused_alike(garbage: bytes, at: list[int]) -> None:
    """Garbage after the head is either refused or not, however it is cut."""

    def refused(reads: list[bytes]) -> bool:
        try:
            outcome(reads, eof=True)
        except BadResponse:
            return True
        return False

    data = CHUNKED + garbage
    assert refused([data]) == refused(cut(data, at))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_responses(path: Path) -> None:
    """Responses of real servers are complete, in one read and byte by byte."""
    data = path.read_bytes()
    expected = outcome([data])
    assert expected.complete is ("cancelled" not in path.stem)
    assert outcome([data[i : i + 1] for i in range(len(data))]) == expected
    if b"event-stream" in data:
        assert expected.body.startswith((b"data: ", b"event: "))


def test_all_shared_recordings() -> None:
    """Every recording there is parses as a complete response, unless the client broke it off."""
    if not SHARED.is_dir():
        pytest.skip("the full set of recordings is not beside this checkout")
    for path in sorted(SHARED.glob("*.raw")):
        assert outcome([path.read_bytes()]).complete is ("cancelled" not in path.stem), path.stem


def test_each_read_gives_its_own_body() -> None:
    """The bytes of a body come out of the feed that brought them in."""
    reader = ResponseReader()
    assert reader.feed(CHUNKED + b"3\r\nabc\r\n") == b"abc"
    assert reader.feed(b"2\r\nde\r\n") == b"de"
    assert reader.feed(b"1\r\nf\r\n2\r\ngh\r\n4\r\ni") == b"fghi"
    assert reader.feed(b"jkl") == b"jkl"
    assert reader.feed(b"\r\n0\r\n") == b""
    assert not reader.complete
    assert reader.feed(b"\r\n") == b""
    assert reader.complete


def test_repeated_headers_stay_in_order() -> None:
    """Headers are kept as they came, repeated ones and folded lines included."""
    data = b"HTTP/1.1 200 OK\r\nA: 1\r\nb:2 \r\nA: 3\r\n  4\r\nContent-Length: 0\r\n\r\n"
    headers = [(b"A", b"1"), (b"b", b"2"), (b"A", b"3 4"), (b"Content-Length", b"0")]
    assert outcome([data]).headers == tuple(headers)


@pytest.mark.parametrize("status", [204, 304])
def test_statuses_without_a_body(status: int) -> None:
    """204 and 304 end with their headers, whatever those announce."""
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 %d X\r\nContent-Length: 5\r\n\r\n" % status)
    assert reader.complete
    assert reader.keep_alive


def test_answer_to_head_has_no_body() -> None:
    """The answer to a HEAD request ends with its headers."""
    reader = ResponseReader(to_head=True)
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
    assert reader.complete


def test_body_until_close() -> None:
    """A body without framing ends when the peer closes, and so does the connection."""
    reader = ResponseReader()
    assert reader.feed(b"HTTP/1.1 200 OK\r\n\r\nab") == b"ab"
    assert reader.feed(b"c") == b"c"
    assert not reader.complete
    reader.eof()
    assert reader.complete
    assert not reader.keep_alive


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n", False),
        (b"HTTP/1.1 200 OK\r\nConnection: X, Close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n", False),
    ],
)
def test_keep_alive(head: bytes, kept: bool) -> None:
    """The connection is kept as version and headers say, but not where two lengths disagree."""
    reader = ResponseReader()
    reader.feed(head + b"Content-Length: 5\r\n\r\n")
    reader.feed(b"0\r\n\r\n")
    assert reader.complete
    assert reader.keep_alive is kept


def test_bytes_after_the_end_spoil_the_connection() -> None:
    """After bytes that belong to no response the connection can't be used again."""
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na")
    assert reader.keep_alive
    assert reader.feed(b"b") == b""
    assert not reader.keep_alive


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "status line"),
        (b"HTTP/2 200\r\n", "status line"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", "Switching"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n", "not a header"),
        (b"HTTP/1.1 200 OK\r\nA : 1\r\n", "not a header"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "gzip"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "content-length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n", "content-length"),
        (CHUNKED + b"0x5\r\n", "size of a chunk"),
        (CHUNKED + b"-1\r\n", "size of a chunk"),
        (CHUNKED + b"1_0\r\n", "size of a chunk"),
        (CHUNKED + b"3\r\nabcd\r\n", "longer than its size"),
    ],
)
def test_violations(data: bytes, message: str) -> None:
    """What breaks the protocol is refused in words."""
    with pytest.raises(BadResponse, match=message):
        ResponseReader().feed(data)


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\n", CHUNKED + b"0\r\n"])
@pytest.mark.parametrize("size", [1, 1000, 10 * BLOCK_LIMIT])
def test_blocks_are_bounded(start: bytes, size: int) -> None:
    """Headers or trailers without end are refused, however they come."""
    data = b"A: 1\r\n" * (BLOCK_LIMIT // 6 + 1)
    reads = [data[i : i + size] for i in range(0, len(data), size)]
    with pytest.raises(BadResponse, match="more than 65536 bytes"):
        outcome([start, *reads])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "before any byte"),
        (b"HTTP/1.1 2", "end of the headers, last b'HTTP/1.1 2'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", "3 bytes before the end"),
        (CHUNKED + b"5\r\nab", "before the last chunk"),
        (CHUNKED + b"0\r\n", "before the last chunk"),
    ],
)
def test_close_within_a_response(data: bytes, message: str) -> None:
    """A peer that closes too early has sent no response."""
    reader = ResponseReader()
    reader.feed(data)
    with pytest.raises(BadResponse, match=message):
        reader.eof()


def test_large_chunks_are_not_copied() -> None:
    """A read inside a chunk comes out as the very object that went in."""
    reader = ResponseReader()
    reader.feed(CHUNKED + b"6400000\r\n")
    read = bytes(64 * 1024)
    for _ in range(1600):
        assert reader.feed(read) is read
    assert reader.feed(b"\r\n0\r\n\r\n") == b""
    assert reader.complete
