"""Rules of the decoder of event streams."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentreplay.wire.sse import Decoder, Event

BOM = b"\xef\xbb\xbf"
LINE_SEPARATOR = "\u2028".encode()
NEXT_LINE = "\u0085".encode()


def decoded(reads: list[bytes]) -> list[Event]:
    """The events of a stream that came in *reads*, with what its end leaves unfinished."""
    decoder = Decoder()
    events = [event for read in reads for event in decoder.feed(read)]
    return events + decoder.close()


def reference(stream: bytes) -> list[Event]:
    """The same by the letter of the rules, from the whole stream at once."""
    events: list[Event] = []
    name, data = b"", list[bytes]()
    for line in [*re.split(rb"\r\n|\r|\n", stream.removeprefix(BOM)), b""]:
        if not line:
            if data:
                events.append(Event(name, b"\n".join(data)))
            name, data = b"", []
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.strip()  # more forgiving than the letter: no name has blanks around it
    return events


def pieces(data: bytes, places: list[int]) -> list[bytes]:
    """*data*, cut at *places* modulo its length."""
    cuts = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in itertools.pairwise(cuts)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("size", [1, 2, 1000])
def test_line_ends(end: bytes, size: int) -> None:
    """LF, CRLF and CR end a line, and a line without anything ends the event."""
    stream = b"data: one\ndata: two\n\nevent: x\ndata: 3\n\n".replace(b"\n", end)
    reads = [stream[i : i + size] for i in range(0, len(stream), size)]
    assert decoded(reads) == [Event(b"", b"one\ntwo"), Event(b"x", b"3")]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a \n\n", [b" a "]),
        (b"data:\n\n", [b""]),
        (b"data: a\ndata:\ndata:b\n\n", [b"a\n\nb"]),
        (b"data: a: b\n\n", [b"a: b"]),
        (b"data: a\n\n\n\ndata: b\n\n", [b"a", b"b"]),
        (b"\n\n\ndata: a\n\n", [b"a"]),
        (b": ping\n\ndata: a\n\n", [b"a"]),
        (b":\n\n", []),
        (b"data: a\n: within\ndata: b\n\n", [b"a\nb"]),
        (b"id: 7\nretry: 10\ndata: a\n\n", [b"a"]),
        (b"database: a\n\n", []),
        (b" data: a\n\n", []),
        (b"Data: a\n\n", []),
        (b"data: a\x00\n\n", [b"a\x00"]),
        (b"data: \xff\n\n", [b"\xff"]),
        (b"", []),
    ],
)
def test_fields(stream: bytes, events: list[bytes]) -> None:
    """Data lines make the event, one blank after the colon is no part of it, all else is none."""
    assert decoded([stream]) == [Event(b"", data) for data in events]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"event: error\ndata: a\n\n", [Event(b"error", b"a")]),
        (b"event:error\ndata: a\n\n", [Event(b"error", b"a")]),
        (b"data: a\nevent: error\n\n", [Event(b"error", b"a")]),
        (b"event: one\nevent: two\ndata: a\n\n", [Event(b"two", b"a")]),
        (b"event: x\ndata: a\n\ndata: b\n\n", [Event(b"x", b"a"), Event(b"", b"b")]),
        (b"event: x\n\ndata: b\n\n", [Event(b"", b"b")]),
    ],
)
def test_names(stream: bytes, events: list[Event]) -> None:
    """A name belongs to its own event, and an event without data is none."""
    assert decoded([stream]) == events


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_byte_order_mark(size: int) -> None:
    """A byte order mark is dropped at the start of the stream, and only there."""
    stream = BOM + b"data: a\n\n" + BOM + b"data: b\n\n" + b"data: " + BOM + b"\n\n"
    reads = [stream[i : i + size] for i in range(0, len(stream), size)]
    assert decoded(reads) == [Event(b"", b"a"), Event(b"", BOM)]


@pytest.mark.parametrize(
    "separator",
    [LINE_SEPARATOR, "\u2029".encode(), NEXT_LINE, b"\x85", b"\x0b", b"\x0c", b"\x1c"],
    ids=["2028", "2029", "0085", "raw 85", "VT", "FF", "FS"],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_other_separators_are_data(separator: bytes, size: int) -> None:
    """What other libraries take for the end of a line is legal inside a payload."""
    stream = b"data: a" + separator + b"b\n\n"
    reads = [stream[i : i + size] for i in range(0, len(stream), size)]
    assert decoded(reads) == [Event(b"", b"a" + separator + b"b")]


def test_large_event_in_small_pieces() -> None:
    """An event of 3 MB comes out whole, and its bytes are moved once, not at every read."""
    payload = b"0123456789" * 300_000
    decoder = Decoder()
    stream = b"data: " + payload + b"\n"
    events = [
        event for i in range(0, len(stream), 64) for event in decoder.feed(stream[i : i + 64])
    ]
    assert events == []
    assert decoder.feed(b"\n") == [Event(b"", payload)]


def test_events_come_with_the_read_that_ends_them() -> None:
    """An event comes out as soon as its blank line is in; a CR ends a line without waiting."""
    decoder = Decoder()
    assert decoder.feed(b"data: a\n") == []
    assert decoder.feed(b"\ndata: b\n\nda") == [Event(b"", b"a"), Event(b"", b"b")]
    assert decoder.feed(b"ta: c\r\n\r") == [Event(b"", b"c")]
    assert decoder.feed(b"\n") == []
    assert decoder.feed(b"data: d\r\r") == [Event(b"", b"d")]
    assert decoder.feed(b"data: e\n\n") == [Event(b"", b"e")]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n", [Event(b"", b"a")]),
        (b"data: a\r", [Event(b"", b"a")]),
        (b"data: a", [Event(b"", b"a")]),
        (b"event: x\ndata: a\ndata: b", [Event(b"x", b"a\nb")]),
        (b"data: a\n\n", []),
        (b"event: x\n", []),
        (b": ping", []),
        (b"", []),
    ],
)
def test_close_gives_the_unfinished_event(stream: bytes, events: list[Event]) -> None:
    """What the end of the stream left without its blank line comes out at close, and once."""
    decoder = Decoder()
    decoder.feed(stream)
    assert decoder.close() == events
    assert decoder.close() == []


fragments = st.sampled_from(
    [
        b"data: ",
        b"data:",
        b"event: x",
        b"event: error",
        b": c",
        b"id: 1",
        b"\n",
        b"\n",
        b"\n\n",
        b"\r",
        b"\r\n",
        b"\r\n\r\n",
        b"{}",
        b"data: {}\n\n",
        LINE_SEPARATOR,
        NEXT_LINE,
        BOM,
    ]
)
streams = st.builds(bytes.__add__, st.sampled_from([b"", BOM]), st.lists(fragments).map(b"".join))
places = st.lists(st.integers(0, 500), max_size=30)


@settings(deadline=None)
@given(streams, places)
def test_any_chunking_gives_the_same(stream: bytes, places: list[int]) -> None:
    """How a stream is cut into reads changes nothing."""
    whole = decoded([stream])
    assert decoded(pieces(stream, places)) == whole
    assert decoded([stream[i : i + 1] for i in range(len(stream))]) == whole


@settings(deadline=None)
@given(streams, places)
def test_agrees_with_the_reference(stream: bytes, places: list[int]) -> None:
    """The events are those that a plain decoder of the whole stream finds."""
    assert decoded(pieces(stream, places)) == reference(stream)
