"""Rules of the Messages protocol: what is sent, what events say, and what real servers sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_recorded_streams import OWN, Said, recorded_reads
from test_responses import ASSISTANT, SYSTEM, USER, check, heard, plain_events, streams

from agentreplay.wire import messages
from agentreplay.wire.answer import Answer
from agentreplay.wire.api import Piece, Usage

NOTHING = Piece(0, False, None, None, None)


def answered(*events: dict[str, Any], named: bool = True) -> Answer:
    """The answer of *events*, one in each millisecond."""
    answer = Answer(messages.piece)
    for n, event in enumerate(events):
        name = f"event: {event['type']}\n" if named and "type" in event else ""
        answer.feed(n, f"{name}data: {json.dumps(event)}\n\n".encode())
    answer.close(len(events))
    return answer


def start(**usage: object) -> dict[str, Any]:
    """The event that begins a message."""
    return {"type": "message_start", "message": {"role": "assistant", "usage": usage}}


def end(**usage: object) -> dict[str, Any]:
    """The event that says why a message ended."""
    return {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}


# --- Recordings -----------------------------------------------------------------------------------


def naive(path: Path) -> Said:
    """The stream of *path* by a plain reading: each count by its own name, the last that stands."""
    events, done = plain_events(path)
    chunks, finish = 0, None
    counts: dict[str, int] = {}
    for event in events:
        delta = event.get("delta", {})
        chunks += any(delta.get(key) for key in ("text", "thinking", "partial_json"))
        chunks += "name" in event.get("content_block", {})
        finish = delta.get("stop_reason", finish)
        counts |= event.get("usage") or event.get("message", {}).get("usage", {})
    read = counts.get("cache_read_input_tokens")
    isl = counts["input_tokens"] + (read or 0) + counts.get("cache_creation_input_tokens", 0)
    return Said(chunks, finish, isl, counts["output_tokens"], read, error=False, done=done)


@pytest.mark.parametrize("path", streams("*messages*.raw", folder=OWN))
def test_streams(path: Path) -> None:
    """However the reads fall, an answer says what the recorded bytes say."""
    check(path, messages.piece, naive(path))


@pytest.mark.parametrize("path", streams("*messages*.raw"))
def test_shared_streams(path: Path) -> None:
    """The same holds for every recorded stream of this API there is."""
    check(path, messages.piece, naive(path))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vllm_messages_cached_1", Said(4, "max_tokens", 3462, 4, 3456, False, False)),
        ("llamacpp_messages_stream", Said(4, "max_tokens", 17, 4, 16, False, False)),
        ("litellm_messages_cached", Said(2, "max_tokens", 5931, 4, 5888, False, False)),
        ("vllm_np_messages_tools", Said(15, "max_tokens", 96, 80, 0, False, False)),
    ],
)
def test_known_streams(name: str, expected: Said) -> None:
    """A few recordings, counted by hand: each divides its usage over the events differently."""
    check(OWN / f"{name}.raw", messages.piece, expected)


def test_a_call_is_visible_from_its_name_on() -> None:
    """The first visible output of a recorded tool call is the chunk with its name."""
    path = OWN / "vllm_np_messages_tools.raw"
    answer = heard(path, messages.piece, recorded_reads(path))
    assert answer.first_visible_ns == answer.stamps_ns[0]
    assert answer.sizes[0] == len("read_file")


@pytest.mark.parametrize("path", streams("vllm_messages_tools.raw"))
def test_thinking_is_not_visible(path: Path) -> None:
    """A recorded answer of nothing but thinking has tokens and no visible output."""
    answer = heard(path, messages.piece, [(0.0, path.stat().st_size)])
    assert answer.stamps_ns
    assert answer.first_visible_ns is None


# --- Bodies ---------------------------------------------------------------------------------------


def test_body() -> None:
    """A system message at the start becomes the system prompt, the others the conversation."""
    made = messages.body("m", (SYSTEM, USER, ASSISTANT, USER), {"max_tokens": 9})
    assert json.loads(made) == {
        "system": json.loads(SYSTEM)["content"],
        "messages": [json.loads(each) for each in (USER, ASSISTANT, USER)],
        "model": "m",
        "stream": True,
        "max_tokens": 9,
    }


def test_body_without_a_system_message() -> None:
    """Where the conversation starts with the user there is no system prompt."""
    assert json.loads(messages.body("m", (USER,), {})) == {
        "messages": [json.loads(USER)],
        "model": "m",
        "stream": True,
    }


def test_only_a_system_message_at_the_start_is_moved() -> None:
    """A later system message stays where it is: moving it would change the order of the words."""
    made = json.loads(messages.body("m", (USER, SYSTEM), {}))
    assert "system" not in made
    assert made["messages"] == [json.loads(USER), json.loads(SYSTEM)]


def test_the_bytes_of_messages_are_sent_as_they_are() -> None:
    """The system prompt and the joined messages are the bytes that were given."""
    made = messages.body("m", (SYSTEM, USER, ASSISTANT), {})
    content = SYSTEM.removeprefix(b'{"role":"system","content":').removesuffix(b"}")
    assert made.startswith(b'{"system":' + content + b",")
    assert b",".join((USER, ASSISTANT)) in made


def test_fields_override() -> None:
    """A given field stands in place of the usual one, once."""
    made = json.loads(
        messages.body("m", (USER,), {"stream": False, "model": "n"}),
        object_pairs_hook=lambda pairs: pairs,
    )
    assert [name for name, _ in made] == ["messages", "model", "stream"]
    assert [value for _, value in made[1:]] == ["n", False]


@pytest.mark.parametrize("given", [(), (SYSTEM,)])
def test_body_without_messages(given: tuple[bytes, ...]) -> None:
    """An empty conversation is still a request in JSON."""
    assert json.loads(messages.body("m", given, {}))["messages"] == []


def test_api() -> None:
    """The path and the output's limit are those of this API."""
    assert (messages.API.path, messages.API.limits) == ("/messages", ("max_tokens",))


# --- Events ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delta", "visible"),
    [
        ({"type": "text_delta", "text": "aü"}, True),
        ({"type": "input_json_delta", "partial_json": "aü"}, True),
        ({"type": "thinking_delta", "thinking": "aü"}, False),
    ],
)
def test_deltas(delta: dict[str, Any], visible: bool) -> None:
    """Text, arguments and thinking are tokens of their UTF-8 bytes; thinking is not visible."""
    event = {"type": "content_block_delta", "index": 0, "delta": delta}
    assert messages.piece(event) == Piece(3, visible, None, None, None)


def test_the_name_of_a_call_is_a_token() -> None:
    """A call's name counts where its block starts, and is visible."""
    block = {"type": "tool_use", "id": "call-0", "name": "read", "input": {}}
    event = {"type": "content_block_start", "index": 0, "content_block": block}
    assert messages.piece(event) == Piece(4, True, None, None, None)


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"type": None},
        {"type": "ping"},
        {"type": "message_stop"},
        {"type": "message_start"},
        {"type": "message_start", "message": {"usage": None}},
        {"type": "message_delta", "delta": None, "usage": None},
        {"type": "message_delta", "delta": {"stop_reason": None}},
        {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_start", "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_start", "content_block": {"type": "tool_use", "name": ""}},
        {"type": "content_block_start", "content_block": None},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_delta", "delta": None},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": ""}},
        {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": None}},
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": ""}},
        {"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": "abc"}},
        {"type": "content_block_delta", "delta": {"type": "citations_delta", "citation": {}}},
    ],
    ids=str,
)
def test_nothing_new(event: dict[str, Any]) -> None:
    """Beginnings, ends, pings, signatures and empty deltas say nothing."""
    assert messages.piece(event) == NOTHING


def test_finish() -> None:
    """The reason to stop is the finish, and the end of the message adds nothing to it."""
    answer = answered(start(input_tokens=3), end(output_tokens=1), {"type": "message_stop"})
    assert answer.finish == "end_turn"
    assert answer.error is None


@pytest.mark.parametrize(
    ("events", "merged"),
    [
        ([start(input_tokens=9, output_tokens=1)], Usage(9, None, None)),
        ([start(input_tokens=9), end(output_tokens=7)], Usage(9, 7, None)),
        ([start(input_tokens=1, cache_read_input_tokens=8), end(output_tokens=7)], Usage(9, 7, 8)),
        (
            [
                start(input_tokens=9, output_tokens=0),
                end(
                    input_tokens=2,
                    output_tokens=7,
                    cache_creation_input_tokens=3,
                    cache_read_input_tokens=4,
                ),
            ],
            Usage(9, 7, 4),
        ),
        (
            [
                start(input_tokens=0, output_tokens=0, cache_read_input_tokens=0),
                end(input_tokens=9, output_tokens=7),
            ],
            Usage(9, 7, 0),
        ),
        ([start(input_tokens=0, output_tokens=0)], Usage(None, None, None)),
        ([start(input_tokens=9), end(input_tokens=0, output_tokens=7)], Usage(9, 7, None)),
        ([start(input_tokens=0, cache_creation_input_tokens=9)], Usage(9, None, None)),
        ([start(input_tokens=9, cache_read_input_tokens=None)], Usage(9, None, None)),
        ([start(cache_read_input_tokens=4)], Usage(None, None, 4)),
        ([end(output_tokens=1), end(output_tokens=2)], Usage(None, 2, None)),
        ([end(input_tokens="9", output_tokens=-1)], Usage(None, None, None)),
    ],
    ids=[
        "the output at the start is a placeholder",
        "input first, output last",
        "the cached part first",
        "the whole first, its parts last",
        "zeros first",
        "nothing but zeros",
        "zeros last",
        "all created",
        "null",
        "no input",
        "cumulative",
        "no counts",
    ],
)
def test_usage(events: list[dict[str, Any]], merged: Usage) -> None:
    """The prompt is what was read, created and neither, as the last event says that has it."""
    assert answered(*events).usage == merged


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Busy."}}, "Busy."),
        ({"type": "error", "message": "Busy."}, "Busy."),
        ({"error": {"message": "Busy.", "code": 503}}, "Busy."),
        ({"type": "error"}, "error"),
    ],
    ids=str,
)
@pytest.mark.parametrize("named", [True, False])
def test_errors(event: dict[str, Any], words: str, named: bool) -> None:
    """An error fails the request in the server's words, with and without the event's name."""
    answer = answered(start(input_tokens=3), event, named=named)
    assert answer.error is not None
    assert words in answer.error
    assert (answer.finish, answer.stamps_ns, answer.broken) == (None, [], None)
