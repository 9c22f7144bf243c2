"""Rules of the Responses protocol: what is sent, what each event says, and what real servers sent.

The plain reading that recordings are compared with is shared by the tests of the other APIs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from test_recorded_streams import ABSENT, OWN, SHARED, Said, recorded_reads, said

from agentreplay.client.exchange import reply_failure
from agentreplay.client.stream import Reply
from agentreplay.wire import responses
from agentreplay.wire.answer import Answer
from agentreplay.wire.api import Piece, Usage
from agentreplay.wire.http1 import ResponseReader

Decode: TypeAlias = Callable[[Mapping[str, Any]], Piece]

SYSTEM = rb'{"role":"system","content":"caf\u00e9 \"quoted\" \\ \n"}'
USER = '{"role":"user","content":"h\u00e9 \u2028 there"}'.encode()
ASSISTANT = b'{"role":"assistant","content":"},{"}'


# --- Recordings, for the APIs that name their events ----------------------------------------------


def streams(*globs: str, folder: Path = SHARED) -> list[Any]:
    """The recorded event streams of a folder by their names, as parameters."""
    paths = sorted({path for each in globs for path in folder.glob(each)})
    found = [path for path in paths if b"text/event-stream" in path.read_bytes()[:4096]]
    return [pytest.param(path, id=path.stem) for path in found] or [
        pytest.param(folder, marks=pytest.mark.skip(reason=ABSENT), id="absent")
    ]


def plain_events(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The events of *path*, read at leisure, and whether the end mark was among them."""
    body = ResponseReader().feed(path.read_bytes())
    lines = [line for line in body.split(b"\n") if line.startswith(b"data:")]
    data = [line.removeprefix(b"data:").strip() for line in lines]
    return [json.loads(each) for each in data if each != b"[DONE]"], b"[DONE]" in data


def heard(path: Path, decode: Decode, reads: list[tuple[float, int]]) -> Answer:
    """What *decode* makes of the response of *path* as it comes in *reads*: (seconds, bytes)."""
    data = path.read_bytes()
    assert sum(size for _, size in reads) == len(data)
    reader, answer, at = ResponseReader(), Answer(decode), 0
    for at_s, size in reads:
        if part := reader.feed(data[at : at + size]):
            answer.feed(round(at_s * 1e9), part)
        at += size
    assert (reader.status, reader.complete) == (200, True)
    answer.close(round(reads[-1][0] * 1e9))
    return answer


def heard_variously(path: Path, decode: Decode) -> Iterator[Answer]:
    """The answer of *path*, read at once, byte by byte, and as it was recorded."""
    size = path.stat().st_size
    for reads in ([(0.0, size)], [(n / 1e6, 1) for n in range(size)], recorded_reads(path)):
        yield heard(path, decode, reads)


def check(path: Path, decode: Decode, expected: Said) -> None:
    """However a recording is read, it is a success that says what is expected."""
    for answer in heard_variously(path, decode):
        assert said(answer) == expected
        assert answer.broken is None
        assert answer.stamps_ns == sorted(answer.stamps_ns)
        assert reply_failure(Reply(200, "text/event-stream", b""), answer) is None


def naive(path: Path) -> Said:
    """The stream of *path* by a plain reading."""
    events, done = plain_events(path)
    deltas = [event for event in events if event["type"].endswith(".delta") and event["delta"]]
    names = [event for event in events if event["type"].endswith("item.added")]
    chunks = len(deltas) + sum("name" in event["item"] for event in names)
    last = events[-1]["response"]
    usage = last["usage"]
    return Said(
        chunks,
        (last.get("incomplete_details") or {"reason": last["status"]})["reason"],
        usage["input_tokens"],
        usage["output_tokens"],
        usage.get("input_tokens_details", {}).get("cached_tokens"),
        error=False,
        done=done,
    )


@pytest.mark.parametrize("path", streams("*responses*.raw", folder=OWN))
def test_streams(path: Path) -> None:
    """However the reads fall, an answer says what the recorded bytes say."""
    check(path, responses.piece, naive(path))


@pytest.mark.parametrize("path", streams("*responses*.raw"))
def test_shared_streams(path: Path) -> None:
    """The same holds for every recorded stream of this API there is."""
    check(path, responses.piece, naive(path))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vllm_np_responses_tools", Said(15, "max_output_tokens", 90, 80, 0, False, False)),
        ("litellm_vllm_responses_stream", Said(4, "max_output_tokens", 12, 16, 0, False, True)),
        ("llamacpp_responses_stream", Said(4, "completed", 12, 4, 11, False, False)),
    ],
)
def test_known_streams(name: str, expected: Said) -> None:
    """A few recordings, counted by hand."""
    check(OWN / f"{name}.raw", responses.piece, expected)


def test_a_call_is_visible_from_its_name_on() -> None:
    """The first visible output of a recorded tool call is the chunk with its name."""
    path = OWN / "vllm_np_responses_tools.raw"
    answer = heard(path, responses.piece, recorded_reads(path))
    assert answer.first_visible_ns == answer.stamps_ns[0]
    assert answer.sizes[0] == len("read_file")


@pytest.mark.parametrize("path", streams("*responses_tools.raw"))
def test_reasoning_is_not_visible(path: Path) -> None:
    """A recorded answer of nothing but reasoning has tokens and no visible output."""
    events, _ = plain_events(path)
    seen = any("output_text.delta" in each["type"] or "name" in each for each in events)
    answer = heard(path, responses.piece, [(0.0, path.stat().st_size)])
    assert answer.stamps_ns
    assert (answer.first_visible_ns is not None) is seen


# --- Bodies ---------------------------------------------------------------------------------------


def test_body() -> None:
    """The input is the list of the messages, roles and all, in a streaming request."""
    made = responses.body("m", (SYSTEM, USER, ASSISTANT), {"max_output_tokens": 9})
    assert json.loads(made) == {
        "input": [{"type": "message"} | json.loads(each) for each in (SYSTEM, USER, ASSISTANT)],
        "model": "m",
        "stream": True,
        "max_output_tokens": 9,
    }


def test_the_bytes_of_messages_are_sent_as_they_are() -> None:
    """Messages get their type in front, and are never encoded again."""
    typed = [b'{"type":"message",' + each[1:] for each in (SYSTEM, USER, ASSISTANT)]
    assert b",".join(typed) in responses.body("m", (SYSTEM, USER, ASSISTANT), {})


def test_fields_override() -> None:
    """A given field stands in place of the usual one, once."""
    made = json.loads(
        responses.body("m", (USER,), {"stream": False, "model": "n"}),
        object_pairs_hook=lambda pairs: pairs,
    )
    assert [name for name, _ in made] == ["input", "model", "stream"]
    assert [value for _, value in made[1:]] == ["n", False]


def test_body_without_messages() -> None:
    """An empty conversation is still a request in JSON."""
    assert json.loads(responses.body("m", (), {}))["input"] == []


def test_api() -> None:
    """The path and the output's limit are those of this API."""
    assert (responses.API.path, responses.API.limits) == ("/responses", ("max_output_tokens",))


# --- Events ---------------------------------------------------------------------------------------


def test_deltas() -> None:
    """A delta of output, arguments, reasoning or refusal is a token, of its UTF-8 bytes."""
    visible = {
        "output_text": True,
        "function_call_arguments": True,
        "custom_tool_call_input": True,
        "reasoning_text": False,
        "reasoning_summary_text": False,
        "refusal": False,
    }
    for name, seen in visible.items():
        event = {"type": f"response.{name}.delta", "delta": "aü"}
        assert responses.piece(event) == Piece(3, seen, None, None, None)


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
def test_the_name_of_a_call_is_a_token(kind: str) -> None:
    """A call's name counts where the call begins, and is visible."""
    item = {"type": kind, "name": "read", "arguments": ""}
    event = {"type": "response.output_item.added", "item": item}
    assert responses.piece(event) == Piece(4, True, None, None, None)


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"type": None},
        {"type": "response.created", "response": {"status": "in_progress", "usage": None}},
        {"type": "response.in_progress", "response": {"error": None}},
        {"type": "response.queued"},
        {"type": "response.output_item.added", "item": {"type": "message", "content": []}},
        {"type": "response.output_item.added", "item": {"type": "reasoning", "summary": []}},
        {"type": "response.output_item.added", "item": {"type": "function_call", "name": ""}},
        {"type": "response.output_item.added", "item": None},
        {"type": "response.content_part.added", "part": {"type": "output_text", "text": ""}},
        {"type": "response.output_text.delta", "delta": ""},
        {"type": "response.output_text.delta", "delta": None},
        {"type": "response.output_text.done", "text": "abc"},
        {"type": "response.output_text.annotation.added", "annotation": {"text": "abc"}},
        {"type": "response.reasoning_text.done", "text": "abc"},
        {"type": "response.reasoning_summary_text.done", "text": "abc"},
        {"type": "response.refusal.done", "refusal": "abc"},
        {"type": "response.function_call_arguments.done", "name": "read", "arguments": "{}"},
        {"type": "response.content_part.done", "part": {"type": "output_text", "text": "abc"}},
        {
            "type": "response.output_item.done",
            "item": {"type": "function_call", "name": "read", "arguments": "{}"},
        },
    ],
    ids=str,
)
def test_nothing_new(event: dict[str, Any]) -> None:
    """Beginnings, empty deltas and the events that repeat the whole text say nothing."""
    assert responses.piece(event) == Piece(0, False, None, None, None)


@pytest.mark.parametrize(
    ("kind", "response", "finish"),
    [
        ("completed", {"status": "completed", "incomplete_details": None}, "completed"),
        ("completed", {}, "completed"),
        ("completed", None, "completed"),
        ("completed", {"status": "incomplete"}, "incomplete"),
        ("completed", {"incomplete_details": {"reason": "max_output_tokens"}}, "max_output_tokens"),
        ("incomplete", {"incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        ("incomplete", {"incomplete_details": {}}, "incomplete"),
        ("incomplete", {}, "incomplete"),
    ],
)
def test_finish(kind: str, response: dict[str, Any] | None, finish: str) -> None:
    """The reason of a cut stands before the status, and that before the name of the event."""
    event = {"type": f"response.{kind}", "response": response}
    assert responses.piece(event) == Piece(0, False, finish, None, None)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, None),
        ({}, None),
        ({"input_tokens": 9, "output_tokens": 2}, Usage(9, 2, None)),
        ({"input_tokens": 9, "input_tokens_details": None}, Usage(9, None, None)),
        (
            {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}},
            Usage(9, 2, 4),
        ),
        ({"input_tokens": "9", "output_tokens": -2}, Usage(None, None, None)),
    ],
)
@pytest.mark.parametrize("kind", ["completed", "incomplete", "failed"])
def test_usage(kind: str, usage: dict[str, Any] | None, expected: Usage | None) -> None:
    """The end of a response states its counts; input tokens include the cached ones."""
    event = {"type": f"response.{kind}", "response": {"usage": usage}}
    assert responses.piece(event).usage == expected


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"type": "error", "code": "server_error", "message": "Too busy.", "param": None}, "Too b"),
        ({"type": "error", "error": {"message": "Too busy.", "code": 503}}, "Too busy."),
        ({"error": {"message": "Too busy.", "code": 503}}, "Too busy."),
        ({"type": "error"}, "error"),
        ({"type": "response.failed", "response": {"error": {"message": "Too busy."}}}, "Too busy."),
        ({"type": "response.failed", "response": {"error": None}}, "response.failed"),
        ({"type": "response.failed"}, "response.failed"),
    ],
    ids=str,
)
@pytest.mark.parametrize("named", [True, False])
def test_errors(event: dict[str, Any], words: str, named: bool) -> None:
    """An error fails the request in the server's words, with and without the event's name."""
    name = f"event: {event['type']}\n" if named and "type" in event else ""
    answer = Answer(responses.piece)
    answer.feed(1, f"{name}data: {json.dumps(event)}\n\n".encode())
    answer.close(2)
    assert answer.error is not None
    assert words in answer.error
    assert (answer.finish, answer.stamps_ns, answer.broken) == (None, [], None)
