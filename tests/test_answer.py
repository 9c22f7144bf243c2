"""Rules of reading an answer: which bytes count as tokens, when, and what else they say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import c, done, err, fin, k, r, role, usage

from agentreplay.wire import chat
from agentreplay.wire.answer import Answer, chunk_tokens
from agentreplay.wire.api import Usage
from agentreplay.wire.sse import EventTooLong

MS = 1_000_000

Reads = list[tuple[float, bytes]]


def event(value: object, name: str = "") -> bytes:
    """One event with *value* as JSON."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value)}\n\n".encode()


def delta(**fields: object) -> bytes:
    """A chunk with a delta of *fields*."""
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})


def counted(n: int, completion: int) -> bytes:
    """A chunk of *n* tokens with the running count of the completion."""
    counts = {"prompt_tokens": 30, "completion_tokens": completion}
    choice = {"index": 0, "delta": {"content": " word" * n}, "finish_reason": None}
    return event({"choices": [choice], "usage": counts})


def answered(*reads: tuple[float, bytes]) -> Answer:
    """The answer that came in *reads*: (milliseconds, bytes)."""
    answer = Answer(chat.piece)
    for at_ms, data in reads:
        answer.feed(round(at_ms * MS), data)
    answer.close(round((reads[-1][0] if reads else 0) * MS))
    return answer


def tokens(answer: Answer) -> tuple[int, ...] | None:
    """Tokens of each chunk by the server's own count."""
    assert answer.usage.osl is not None
    return chunk_tokens(answer.sizes, answer.counts, answer.usage.osl)


@pytest.mark.parametrize(
    ("reads", "stamps_ms", "first_visible_ms", "shares"),
    [
        (
            [(100, c(1)), (300, c(10)), (500, c(10)), (501, usage(50, 21))],
            [100, 300, 500],
            100,
            (1, 10, 10),
        ),
        ([(500, r(5)), (600, c(5)), (601, usage(10, 10))], [500, 600], 600, (5, 5)),
        (
            [(200, r(1)), (1200, c(1)), (1201, usage(10, 2))],
            [200, 1200],
            1200,
            None,
        ),
        (
            [(200, r(1, "reasoning_content")), (1200, c(1)), (1201, usage(10, 2))],
            [200, 1200],
            1200,
            None,
        ),
        (
            [*((200 + 100 * n, r(1)) for n in range(10)), (1101, usage(5, 10))],
            [200 + 100 * n for n in range(10)],
            None,
            None,
        ),
        ([(2000, k(200)), (2001, usage(50, 200))], [2000], 2000, (200,)),
        ([(10, role()), (90, c(4)), (91, usage(1, 4))], [90], 90, (4,)),
    ],
    ids=["chunks", "reasoning-first", "one-each", "other-key", "capped", "tool-burst", "role"],
)
def test_worked_examples(
    reads: Reads,
    stamps_ms: list[int],
    first_visible_ms: int | None,
    shares: tuple[int, ...] | None,
) -> None:
    """Chunks are stamped when they arrive, and hold as many tokens as the server says in all."""
    answer = answered(*reads)
    assert answer.stamps_ns == [ms * MS for ms in stamps_ms]
    visible = None if first_visible_ms is None else first_visible_ms * MS
    assert answer.first_visible_ns == visible
    assert tokens(answer) == shares


@pytest.mark.parametrize(
    "data",
    [
        role(),
        fin(),
        usage(10, 5),
        done(),
        b": ping\n\n",
        event({}),
        event({"choices": []}),
        event({"choices": None}),
        event({"choices": [{"index": 0}]}),
        event({"choices": [{"index": 0, "delta": None, "finish_reason": None}]}),
        delta(role="assistant", content=None),
        delta(content=None, reasoning=None, refusal=None, tool_calls=None),
        delta(content="", reasoning_content="", tool_calls=[]),
        delta(tool_calls=[{"index": 0, "id": "call-0", "type": "function"}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": None}]),
        event({"choices": [{"delta": {}}], "prompt_progress": {"total": 9, "processed": 3}}),
    ],
)
def test_no_token(data: bytes) -> None:
    """Roles, empty deltas, usage, progress, comments and the end mark are no tokens."""
    answer = answered((1, data))
    assert answer.stamps_ns == []
    assert answer.first_visible_ns is None
    assert answer.token_reads == 0
    assert answer.broken is None
    assert answer.error is None


@pytest.mark.parametrize(
    ("data", "size", "visible"),
    [
        (delta(content="abc"), 3, True),
        (delta(content="a\u2028ü"), 6, True),
        (delta(content=[{"type": "text", "text": "abc"}]), 3, True),
        (delta(reasoning="abc"), 3, False),
        (delta(reasoning_content="abc"), 3, False),
        (delta(refusal="No."), 3, False),
        (delta(content="ab", reasoning="c"), 3, True),
        (delta(tool_calls=[{"index": 0, "function": {"name": "read"}}]), 4, True),
        (delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a"'}}]), 4, True),
        (
            delta(
                content=None,
                tool_calls=[
                    {"index": 0, "function": {"name": "a", "arguments": "{}"}},
                    {"index": 1, "function": {"name": "bc", "arguments": "{}"}},
                ],
            ),
            7,
            True,
        ),
        (event({"choices": [{"index": 0, "text": "abc", "finish_reason": None}]}), 3, True),
        (event({"choices": [{"delta": {"content": "a"}}, {"delta": {"content": "b"}}]}), 2, True),
    ],
)
def test_token(data: bytes, size: int, visible: bool) -> None:
    """Text of any kind is a token, of its bytes; reasoning and refusals are not visible."""
    answer = answered((1, data))
    assert answer.stamps_ns == [1 * MS]
    assert answer.sizes == [size]
    assert answer.first_visible_ns == (1 * MS if visible else None)


@pytest.mark.parametrize("null", [{"usage": None}, {}])
def test_null_usage_on_every_chunk(null: dict[str, Any]) -> None:
    """A null usage says nothing, and the usage chunk has no choices."""
    choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": None}
    answer = answered((1, event({"choices": [choice], **null})), (2, usage(3, 1, cached=2)))
    assert answer.stamps_ns == [1 * MS]
    assert answer.counts == []
    assert answer.usage == Usage(3, 1, 2)


@pytest.mark.parametrize(
    ("values", "merged"),
    [
        ([], Usage(None, None, None)),
        ([{"prompt_tokens": 5, "completion_tokens": 1}], Usage(5, 1, None)),
        ([{"prompt_tokens": 5}, {"completion_tokens": 7}], Usage(5, 7, None)),
        (
            [{"prompt_tokens": 0}, {"prompt_tokens": 9}, {"prompt_tokens": None}],
            Usage(9, None, None),
        ),
        ([{"completion_tokens": 1}, {"completion_tokens": 2}], Usage(None, 2, None)),
        ([{"prompt_tokens_details": {"cached_tokens": 0}}], Usage(None, None, 0)),
        ([{"prompt_tokens_details": {"cached_tokens": 4}}, {}], Usage(None, None, 4)),
        ([{"prompt_tokens": 5, "prompt_tokens_details": None}], Usage(5, None, None)),
        ([{"prompt_tokens": "5"}, {"completion_tokens": -1}], Usage(None, None, None)),
        ([{"prompt_tokens": True}, {"completion_tokens": 1.5}], Usage(None, None, None)),
    ],
)
def test_usage_merges(values: list[dict[str, Any]], merged: Usage) -> None:
    """Of each count the last that was stated stands, and what is no count was not stated."""
    reads = [(n, event({"choices": [], "usage": value})) for n, value in enumerate(values)]
    assert answered(*reads).usage == merged


def test_finish_is_kept() -> None:
    """The last finish_reason stands, whatever comes after it, and may be on a chunk with text."""
    choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": "length"}
    answer = answered((1, event({"choices": [choice]})), (2, usage(1, 1)), (3, done()))
    assert answer.finish == "length"
    assert answer.stamps_ns == [1 * MS]
    assert answer.done_ns == 3 * MS


def test_running_counts() -> None:
    """Running counts of the server give the tokens of each chunk exactly, whatever their bytes."""
    answer = answered((1, counted(1, 3)), (2, counted(9, 4)), (3, counted(1, 10)))
    assert answer.counts == [3, 4, 10]
    assert tokens(answer) == (3, 1, 6)


@pytest.mark.parametrize(
    "counts",
    [[], [3, 10], [4, 3, 10], [3, 4, 9], [3, 4, 11]],
    ids=["none", "missing", "falling", "too-few", "too-many"],
)
def test_counts_that_do_not_add_up(counts: list[int]) -> None:
    """Running counts that are not complete, or not the total's, give way to the bytes."""
    assert chunk_tokens([20, 20, 60], counts, 10) == (2, 2, 6)


@pytest.mark.parametrize(
    ("sizes", "osl", "shares"),
    [
        ([5, 5], 2, None),
        ([], 3, None),
        ([1, 1000], 5, (1, 4)),
        ([1, 1, 1], 2, (1, 0, 1)),
        ([7], 1, None),
        ([7], 200, (200,)),
    ],
)
def test_shares(sizes: list[int], osl: int, shares: tuple[int, ...] | None) -> None:
    """Where chunks and tokens are not equally many, bytes share them out, the first getting one."""
    assert chunk_tokens(sizes, [], osl) == shares


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=50), st.integers(1, 10**6))
def test_shares_make_the_whole(sizes: list[int], osl: int) -> None:
    """The shares of all chunks are the server's total, none is negative, the first is not empty."""
    shares = chunk_tokens(sizes, [], osl)
    if shares is None:
        assert len(sizes) == osl
    else:
        assert len(shares) == len(sizes)
        assert sum(shares) == osl
        assert min(shares) >= 0
        assert shares[0] >= 1


@settings(deadline=None)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=50))
def test_running_counts_are_exact(parts: list[int]) -> None:
    """Whatever the server put into its chunks, complete running counts give it back."""
    counts = [sum(parts[: n + 1]) for n in range(len(parts))]
    shares = chunk_tokens([1] * len(parts), counts, counts[-1])
    assert (shares or (1,) * len(parts)) == tuple(parts)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (err("boom"), "boom"),
        (event({"error": "boom"}), "boom"),
        (event({"error": {"message": {"detail": "boom"}}}), "boom"),
        (event({"error": {"message": None, "detail": "boom"}}), "boom"),
        (event({"error": {"msg": "boom"}}), "boom"),
        (event({"error": {"error": {"message": "boom"}}}), "boom"),
        (event({"error": ["boom"]}), '["boom"]'),
        (event({"error": {"code": 503}}), '{"code":503}'),
        (event({"error": True}), "true"),
        (event({"type": "error", "error": {"message": "boom"}}, "error"), "boom"),
        (event({"error": {"message": "boom"}, "choices": [{"delta": {}}]}), "boom"),
        (event({"message": "boom"}, "error"), "boom"),
        (event({"detail": "boom"}, "error"), "boom"),
        (b"event: error\ndata: boom\n\n", "boom"),
    ],
)
def test_errors(data: bytes, message: str) -> None:
    """An event with an error in it, or of that name, is an error, and its words are kept."""
    answer = answered((100, c(1)), (200, c(1)), (250, data), (251, done()))
    assert answer.error == message
    assert answer.broken is None
    assert answer.stamps_ns == [100 * MS, 200 * MS]


@pytest.mark.parametrize("value", [None, "", {}, [], False])
def test_no_error(value: object) -> None:
    """An error field without anything in it is none."""
    assert answered((1, event({"choices": [], "error": value}))).error is None


def test_first_error_stands() -> None:
    """Of several errors the first is the cause."""
    assert answered((1, err("first")), (2, err("second"))).error == "first"


@pytest.mark.parametrize(
    "data",
    [
        b"data: {\n\n",
        b"data: hello\n\n",
        b'data: {"choices": [\xff]}\n\n',
        b"data: null\n\n",
        b"data: 5\n\n",
        b"data: []\n\n",
        b'data: "text"\n\n',
        event({"choices": 5}),
        event({"choices": [None]}),
        event({"choices": [{"delta": "text"}]}),
        delta(tool_calls=[None]),
        event({"usage": 5}),
    ],
)
def test_broken_events(data: bytes) -> None:
    """An event that can't be read is noted, and what comes after it is still read."""
    answer = answered((1, data), (2, c(1)), (3, fin()))
    assert answer.broken
    assert answer.stamps_ns == [2 * MS]
    assert answer.finish == "stop"
    assert answer.error is None


@pytest.mark.parametrize("depth", [10, 300, 1000, 5000])
def test_deep_errors(depth: int) -> None:
    """However deep a server nests its errors, reading them ends in words, not in an exception."""
    value = b'{"error":' * depth + b'"boom"' + b"}" * depth
    answer = answered((1, b"data: " + value + b"\n\n"))
    assert answer.error or answer.broken


scalars = st.none() | st.booleans() | st.integers(-1, 9) | st.floats(0, 1) | st.text(max_size=3)
names = st.sampled_from(
    [
        *("choices", "delta", "content", "text", "reasoning", "refusal", "tool_calls"),
        *("function", "name", "arguments", "usage", "error", "message", "finish_reason"),
        *("prompt_tokens", "prompt_tokens_details", "cached_tokens"),
    ]
)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4)
)


@settings(deadline=None)
@given(st.dictionaries(names, json_values, max_size=4) | json_values)
def test_no_json_breaks_the_reader(value: object) -> None:
    """Whatever JSON a server sends, the answer takes it."""
    answer = answered((1, event(value)), (2, c(1)))
    assert len(answer.stamps_ns) in (1, 2)
    assert answer.stamps_ns[-1] == 2 * MS


def test_reads() -> None:
    """A read with several events is a bundle, and a read with any token a read with tokens."""
    answer = answered(
        (1, role()),
        (2, c(1) + c(1)),
        (3, c(1)),
        (4, c(1)[:20]),
        (5, c(1)[20:]),
        (6, fin() + usage(1, 4) + done()),
    )
    assert answer.bundled_reads == 2
    assert answer.token_reads == 3
    assert answer.stamps_ns == [2 * MS, 2 * MS, 3 * MS, 5 * MS]


def test_cut_event() -> None:
    """An event that the end of the stream cut off counts as not sent."""
    answer = answered((1, c(1)), (2, c(1)[:30]))
    assert answer.stamps_ns == [1 * MS]
    assert answer.broken is None


def test_last_event_without_its_blank_line() -> None:
    """A whole event that only the end of the stream completes counts, and so does its read."""
    answer = answered((1, c(7).rstrip(b"\n")))
    assert answer.stamps_ns == [1 * MS]
    assert answer.token_reads == 1


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_separators_in_text(key: str) -> None:
    """U+2028 and U+0085 in a raw payload stay inside their chunk, one byte a read."""
    value = {"choices": [{"delta": {key: "a\u2028b", "content": "\u0085"}}]}
    data = b"data: %b\n\n" % json.dumps(value, ensure_ascii=False).encode()
    answer = answered(*((n, data[n : n + 1]) for n in range(len(data))))
    assert answer.sizes == [7]
    assert answer.broken is None


def test_an_event_without_end_is_given_up() -> None:
    """What goes on for over 64 MB is no event: it is broken, and nothing more is wanted."""
    answer = Answer(chat.piece)
    answer.feed(0, c(1))
    piece = b"x" * (1 << 20)
    answer.feed(1, b"data: ")
    for n in range(63):
        answer.feed(n, piece)
    with pytest.raises(EventTooLong):
        answer.feed(63, piece)
    answer.close(100)
    assert answer.broken == "an event of more than 64 MB"
    assert answer.stamps_ns == [0]
    assert answer.finish is None


def test_many_events_are_not_one_long_one() -> None:
    """The limit is on an event, not on a stream, nor on a read with many events."""
    answer = Answer(chat.piece)
    event = b": " + b"x" * 65_536 + b"\n\n" + c(1)
    for n in range(20):
        answer.feed(n, event * 60)
    assert answer.broken is None
    assert len(answer.stamps_ns) == 1200


def test_an_event_cut_off_at_the_limit_is_not_sent() -> None:
    """An event that the end of the stream cuts off counts as not sent, be it as long as any."""
    answer = Answer(chat.piece)
    answer.feed(1, b"data: " + b"x" * ((64 << 20) - 6))
    answer.close(2)
    assert answer.broken is None


def test_an_error_without_words_is_an_error() -> None:
    """An error event that says nothing makes no success of what follows it."""
    answer = Answer(chat.piece)
    answer.feed(1, b'event: error\ndata: ""\n\n' + c(1) + fin())
    assert answer.error == "(no words)"
