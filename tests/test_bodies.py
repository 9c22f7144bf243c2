"""Bodies of the three LLM APIs: requests, answers and event streams in, numbers out."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from readers import ANY_JSON
from shared_data import SHARED, needs_shared

from agentreplay.trace.formats import bodies, conversations
from agentreplay.trace.formats.bodies import Exchange
from agentreplay.trace.formats.conversations import Logged
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import Reading
from agentreplay.wire.http1 import ResponseReader

Row = dict[str, Any]

READING = Reading(key=b"key")


def asked(headers: dict[str, str] | None = None, **fields: object) -> Exchange:
    """A request for an answer to "hi", unless told otherwise."""
    request = {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields
    told = bodies.exchange(request, None, headers or {}, READING)
    assert told is not None
    return told


def chat(*messages: object, **fields: Any) -> Exchange:
    """A request with these messages."""
    return asked(messages=list(messages), **fields)


def user(text: str, **fields: object) -> Row:
    """A message of the user."""
    return {"role": "user", "content": text} | fields


def stream(*events: object, end: str = "\n\n") -> str:
    """An event stream of these data."""
    return "".join(
        f"data: {e if isinstance(e, str) else orjson.dumps(e).decode()}{end}" for e in events
    )


# --- Which requests are calls ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", True),
        ("/v1/messages?beta=true", True),
        ("https://h/openai/deployments/d/chat/completions?api-version=1", True),
        ("https://h/anthropic/v1/messages/", True),
        ("/backend-api/codex/responses", True),
        ("/v1/completions", True),
        ("/v1/messages/count_tokens", False),
        ("/v1/messages/batches", False),
        ("/v1/embeddings", False),
        ("/v1/models", False),
        ("/v1/responses/resp_1", False),
        ("", False),
    ],
)
def test_calls_are_told_by_the_end_of_their_path(path: str, expected: bool) -> None:
    """Prefixes and queries mean nothing; counting, embedding and listing are no calls."""
    assert bodies.is_llm_path(path) is expected


@pytest.mark.parametrize("request_", [None, [], "x", 3, {}, {"messages": None}, {"messages": []}])
def test_what_has_no_prompt_is_no_call(request_: object) -> None:
    """A body without messages, input or prompt is no call."""
    assert bodies.exchange(request_, {"usage": {"prompt_tokens": 1}}, {}, READING) is None


# --- Usage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 2}, (9, 2, None)),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
            (9, 2, 4),
        ),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": None}}, (9, None, None)),
        (
            {
                "input_tokens": 14,
                "output_tokens": 26,
                "input_tokens_details": {"cached_tokens": 13},
            },
            (14, 26, 13),
        ),
        (
            {
                "input_tokens": 3,
                "output_tokens": 44,
                "cache_read_input_tokens": 1500,
                "cache_creation_input_tokens": 200,
            },
            (1703, 44, 1500),
        ),
        (
            {"input_tokens": 3, "output_tokens": 4, "cache_creation_input_tokens": 200},
            (203, 4, None),
        ),
        ({"input_tokens": 3, "output_tokens": 4, "cache_read_input_tokens": None}, (3, 4, None)),
        ({"prompt_tokens": 900, "cache_read_input_tokens": 512}, (900, None, 512)),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 5}, (9, None, 5)),
        ({"prompt_tokens": "9", "completion_tokens": 2.0}, (9, 2, None)),
        ({"prompt_tokens": True, "completion_tokens": -2}, (None, None, None)),
        ({"id": "x", "usage": {"prompt_tokens": 9, "completion_tokens": 2}}, (9, 2, None)),
        ({"usage": None}, (None, None, None)),
        (None, (None, None, None)),
    ],
    ids=str,
)
def test_usage_of_each_api(usage: object, expected: tuple[int | None, ...]) -> None:
    """Input is the total with cached tokens, which the Messages API counts beside it."""
    assert bodies.usage(usage) == expected


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 50}}, (53, None, 50)),
        (
            {
                "prompt_tokens": 3,
                "cache_read_input_tokens": 50,
                "cache_creation_input_tokens": 7,
            },
            (60, None, 50),
        ),
        ({"input_tokens": 3, "input_tokens_details": {"cached_tokens": 50}}, (53, None, 50)),
    ],
    ids=str,
)
def test_more_cached_than_input_is_counted_beside_it(
    usage: object, expected: tuple[int | None, ...]
) -> None:
    """A cached share above one says that the source counts outside: it is added, and noted."""
    assert bodies.usage(usage) == expected
    notes = Notes()
    told = bodies.exchange({"prompt": "x"}, {"usage": usage | {"output_tokens": 1}}, {}, READING)  # type: ignore[operator]
    assert told is not None
    assert bodies.recorded(told, 0.0, 1.0, READING, notes) is not None
    assert notes == {"calls with more cached tokens than input, added to it": 1}


# --- Event streams --------------------------------------------------------------------------------


def usage_of(text: str | bytes) -> tuple[int | None, int | None, int | None]:
    """The usage that a stream ends with."""
    return bodies.usage(bodies.sse_body(text))


def chunk(text: str = "", **fields: object) -> Row:
    """A chunk of a chat stream."""
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": text}}]} | fields


LAST = {"id": "c", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}
MESSAGE = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "model": "m",
        "content": [],
        "usage": {
            "input_tokens": 3,
            "cache_creation_input_tokens": 200,
            "cache_read_input_tokens": 1500,
            "output_tokens": 1,
        },
    },
}


def delta(**usage: object) -> Row:
    """The end of a message."""
    return {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", "\n"], ids=["lf", "crlf", "no blank lines"])
def test_a_chat_stream_has_its_usage_in_its_last_chunk(end: str) -> None:
    """The chunk without choices holds it; `[DONE]` is no event."""
    assert usage_of(stream(chunk("a"), chunk("b"), LAST, "[DONE]", end=end)) == (9, 2, None)


def test_the_last_usage_counts() -> None:
    """Some servers put a usage on every chunk."""
    early = chunk("a", usage={"prompt_tokens": 9, "completion_tokens": 1})
    assert usage_of(stream(early, chunk("b", usage=None), LAST)) == (9, 2, None)


def test_a_stream_without_usage_has_none() -> None:
    """Without `include_usage` a stream tells its text and no lengths."""
    assert usage_of(stream(chunk("a"), chunk("b"), "[DONE]")) == (None, None, None)


def test_message_deltas_are_cumulative() -> None:
    """The last delta's output counts, beside the input of the first event."""
    events = MESSAGE, {"type": "ping"}, delta(output_tokens=20), delta(output_tokens=44)
    assert usage_of(stream(*events, {"type": "message_stop"})) == (1703, 44, 1500)


def test_message_deltas_may_repeat_the_input() -> None:
    """Where the first event has placeholders only, the last one's input counts."""
    empty = {"type": "message_start", "message": {"usage": {"input_tokens": 0}}}
    end = delta(input_tokens=43, output_tokens=4, cache_read_input_tokens=5888)
    assert usage_of(stream(empty, end)) == (5931, 4, 5888)


def test_message_deltas_may_tell_the_cached_input_apart() -> None:
    """What the first event counts as input is then cached in part, not once more."""
    whole = {"type": "message_start", "message": {"usage": {"input_tokens": 3462}}}
    end = delta(input_tokens=6, output_tokens=4, cache_read_input_tokens=3456)
    assert usage_of(stream(whole, end)) == (3462, 4, 3456)


def test_message_deltas_may_have_placeholders() -> None:
    """Where the last event's input is nothing, the first one's counts."""
    end = delta(input_tokens=0, output_tokens=4, cache_read_input_tokens=0)
    assert usage_of(stream(MESSAGE, end)) == (1703, 4, 1500)


def test_a_message_that_was_cut_off_has_no_output() -> None:
    """The output of the first event is a placeholder."""
    assert usage_of(stream(MESSAGE)) == (1703, None, 1500)


@pytest.mark.parametrize("kind", ["completed", "incomplete"])
def test_a_response_comes_whole_at_its_end(kind: str) -> None:
    """The last event's response replaces the first one's."""
    usage = {"input_tokens": 12, "output_tokens": 6, "input_tokens_details": {"cached_tokens": 4}}
    text = stream(
        {"type": "response.created", "response": {"id": "r", "usage": None}},
        {"type": "response.output_text.delta", "delta": "x"},
        {"type": f"response.{kind}", "response": {"id": "r", "usage": usage}},
    )
    assert usage_of(text) == (12, 6, 4)


@pytest.mark.parametrize(
    "events",
    [
        [MESSAGE, {"type": "error", "error": {"type": "overloaded_error"}}],
        [chunk("a"), {"error": {"message": "x"}}],
        [{"type": "response.failed", "response": {"status": "failed", "error": {"code": "x"}}}],
    ],
    ids=["messages", "chat", "responses"],
)
def test_an_error_inside_a_stream_fails_the_call(events: list[object]) -> None:
    """An error may come after the status was sent."""
    told = bodies.exchange({"prompt": "x"}, bodies.sse_body(stream(*events)), {}, READING)
    assert told is not None
    assert told.failed


@pytest.mark.parametrize("text", ["", "x", "data: [DONE]\n\n", b"\xff\xfe", "data:\n\n", ": hi\n"])
def test_what_is_no_event_stream_makes_no_answer(text: str | bytes) -> None:
    """Text without an event is nothing."""
    assert bodies.sse_body(text) is None


def test_an_event_may_have_several_lines_of_data() -> None:
    """They are one text with line feeds between; comments and names are passed over."""
    assert usage_of(': hi\nevent: x\ndata: {"usage":\ndata: {"prompt_tokens": 7}}\n\n')[0] == 7


def test_separators_inside_json_end_no_line() -> None:
    """U+2028 and U+0085 are text."""
    text = 'data: {"choices": [{"delta": {"content": "a\u2028b\x85c"}}]}\n\n'
    assert bodies.sse_body(text) == {"content": "a\u2028b\x85c"}


def test_a_stream_without_its_last_line_end_is_read() -> None:
    """The last event may be cut off, or only its blank line."""
    text = stream(chunk("a"), LAST).rstrip()
    assert usage_of(text) == (9, 2, None)
    assert usage_of(text[:-5]) == (None, None, None)


@pytest.mark.parametrize("data", ['{"a": 1}', '\ufeff{"a": 1}', b' {"a": 1}\n'])
def test_a_body_is_json(data: str | bytes) -> None:
    """Byte order marks and blanks around it don't matter."""
    assert bodies.decoded(data) == {"a": 1}


def test_a_body_may_hold_what_only_python_reads() -> None:
    """Lone surrogates and NaN lose no body, and have a name."""
    body = bodies.decoded(r'{"messages": [{"role": "user", "content": "\ud83d", "x": NaN}]}')
    assert bodies.exchange(body, None, {}, READING) is not None


@pytest.mark.parametrize("data", ['{"a": ', "[" * 3000, "{" + "x" * 50], ids=["cut", "deep", "no"])
def test_a_broken_body_is_none(data: str) -> None:
    """What can't be read is nothing."""
    assert bodies.decoded(data) is None


# --- Compression ----------------------------------------------------------------------------------

BODY = b'{"a": "' + b"x" * 200 + b'"}'


def raw_deflate(data: bytes) -> bytes:
    """Deflate without the header of zlib."""
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (BODY, ""),
        (gzip.compress(BODY), "gzip"),
        (gzip.compress(BODY), ""),
        (gzip.compress(BODY[:50]) + gzip.compress(BODY[50:]), "GZIP"),
        (zlib.compress(BODY), "deflate"),
        (raw_deflate(BODY), "deflate"),
        (gzip.compress(zlib.compress(BODY)), "deflate, gzip"),
        (BODY, "gzip"),
        (BODY, "deflate"),
        (BODY, "br"),
        (BODY, "identity"),
    ],
    ids=[
        *"plain gzip unnamed members deflate raw both".split(),
        *"undone-gzip undone-deflate undone-br identity".split(),
    ],
)
def test_encodings_are_undone(data: bytes, encoding: str) -> None:
    """Also where a logger undid one and left its header, or left it and lost the header."""
    notes = Notes()
    assert bodies.unpacked(data, encoding, notes) == BODY
    assert notes == {}


def test_a_compressed_body_may_be_cut_off() -> None:
    """What came of it is kept."""
    text = b"".join(f"event: {i * 7919}\n\n".encode() for i in range(500))
    found = bodies.unpacked(gzip.compress(text)[:-300], "gzip", Notes())
    assert found
    assert text.startswith(found)


@pytest.mark.skipif(find_spec("brotli") is not None, reason="brotli is installed")
def test_an_encoding_without_its_module_is_noted() -> None:
    """The body is nothing then, and the note names what would read it."""
    notes = Notes()
    assert bodies.unpacked(b"\x8b\x03", "br", notes) is None
    assert notes == {"bodies in br, for which no module is installed, left out": 1}


@pytest.mark.parametrize("data", [b"\x1f\x8b\x08nonsense", b"\x1f\x8b", b""])
def test_a_broken_body_is_no_error(data: bytes) -> None:
    """What can't be inflated is nothing, or nothing more."""
    assert bodies.unpacked(data, "gzip", Notes()) in (None, b"")


# --- Pieces ---------------------------------------------------------------------------------------


def test_a_prompt_that_grows_keeps_its_names() -> None:
    """The pieces of a prompt are the first of the one that continues it."""
    first = chat(user("a"), tools=[{"name": "t"}], system="s")
    then = chat(
        user("a"),
        {"role": "assistant", "content": "b"},
        user("c"),
        tools=[{"name": "t"}],
        system="s",
    )
    assert (len(first.names), first.system_pieces) == (3, 2)
    assert list(then.names[:3]) == list(first.names)
    assert list(then.chars) == sorted(then.chars)


def test_a_name_stands_for_all_before_it() -> None:
    """The same message after another beginning has another name."""
    one, other = chat(user("a"), user("b")), chat(user("x"), user("b"))
    assert one.names[1] != other.names[1]


def test_names_are_keyed() -> None:
    """With another key the same texts have other names."""
    told = bodies.exchange({"prompt": "x"}, None, {}, Reading(key=b"other"))
    assert told is not None
    assert list(told.names) != list(asked(messages=None, prompt="x").names)


SAME = [
    pytest.param(user("a"), user("a", cache_control={"type": "ephemeral"}), id="marker"),
    pytest.param(user("a"), user("a", id="m1", name=None), id="id and null"),
    pytest.param(
        user("a"),
        {"content": [{"text": "a", "type": "text", "cache_control": {}}], "role": "user"},
        id="text or list of one text",
    ),
    pytest.param(
        {"role": "tool", "tool_call_id": "1", "content": "x"},
        {"role": "tool", "tool_call_id": "2", "content": "x"},
        id="id of a tool call",
    ),
    pytest.param(
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "x"}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "content": [{"type": "text", "text": "x"}]}],
        },
        id="result of a tool",
    ),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_clients_move_about_has_no_name(one: Row, other: Row) -> None:
    """Markers, ids, nulls, order of keys and a list of one text make no other message."""
    assert list(chat(one).names) == list(chat(other).names)


DIFFERENT = [
    pytest.param(user("a"), user("b"), id="text"),
    pytest.param(user("a"), {"role": "assistant", "content": "a"}, id="role"),
    pytest.param(
        {"role": "assistant", "content": [{"type": "tool_use", "name": "t", "input": {"id": 1}}]},
        {"role": "assistant", "content": [{"type": "tool_use", "name": "t", "input": {"id": 2}}]},
        id="argument called id",
    ),
    pytest.param(
        {"type": "item_reference", "id": "1"}, {"type": "item_reference", "id": "2"}, id="reference"
    ),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_a_model_reads_has_a_name(one: Row, other: Row) -> None:
    """Another text, role, argument or referred item is another message."""
    assert list(chat(one).names) != list(chat(other).names)


def test_system_messages_at_the_beginning_are_system() -> None:
    """Those of the chat and Responses APIs stand among the messages."""
    told = chat(
        {"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, user("a")
    )
    assert told.system_pieces == 2
    assert chat(user("a"), {"role": "system", "content": "s"}).system_pieces == 0


def test_instructions_are_system() -> None:
    """So are those of the Responses API, whose input may be one text."""
    told = asked(messages=None, input="hi", instructions="s", tools=[{"name": "t"}])
    assert (len(told.names), told.system_pieces) == (3, 2)


def test_a_billing_header_in_the_system_prompt_is_no_piece() -> None:
    """The server takes it out, and it is new in every request."""
    header = {"type": "text", "text": "x-anthropic-billing-header: cch=1;"}
    system = {"type": "text", "text": "s", "cache_control": {}}
    assert list(asked(system=[header, system]).names) == list(asked(system="s").names)


def test_a_prompt_of_token_ids_is_one_piece() -> None:
    """The completions API takes numbers."""
    assert len(asked(messages=None, prompt=[1, 2, 3]).names) == 1


def test_an_image_weighs_as_one() -> None:
    """The bytes of an image are not its length."""
    source = {"type": "base64", "data": "A" * 1_000_000}
    told = chat({"role": "user", "content": [{"type": "image", "source": source}]})
    assert told.chars[-1] < 2 * bodies.IMAGE_CHARS


def test_pieces_are_scaled_to_the_input() -> None:
    """Each is as long as its share of the characters, and the last ends with the input."""
    response = {"usage": {"prompt_tokens": 100, "completion_tokens": 5}}
    request = {"messages": [{"role": "system", "content": "s" * 294}, user("u" * 96)]}
    told = bodies.exchange(request, response, {}, READING)
    assert told is not None
    call = bodies.recorded(told, 1.0, 2.0, READING)
    assert call is not None
    assert (call.isl, call.osl, call.system, list(call.ends)) == (100, 5, 75, [75, 100])


def test_without_usage_the_user_says_how_long_a_token_is() -> None:
    """Lengths are characters over characters a token, rounded up; without it there is no call."""
    answer = bodies.sse_body(stream(chunk("1234"), chunk("567")))
    told = bodies.exchange({"prompt": "x" * 10}, answer, {}, READING)
    assert told is not None
    assert bodies.recorded(told, 0.0, 1.0, READING) is None
    call = bodies.recorded(told, 0.0, 1.0, replace(READING, chars_per_token=4.0))
    assert call is not None
    assert (call.isl, call.osl, call.cached) == (3, 2, None)


@pytest.mark.parametrize("usage", [{"prompt_tokens": 0, "completion_tokens": 0}, {}])
def test_a_call_needs_an_input(usage: Row) -> None:
    """Without tokens that went in there is no call."""
    told = bodies.exchange({"prompt": "x"}, {"usage": usage}, {}, READING)
    assert told is not None
    assert bodies.recorded(told, 0.0, 1.0, READING) is None


def test_an_output_of_nothing_is_kept() -> None:
    """Zero is what the recording says; it is noted."""
    response = {"usage": {"prompt_tokens": 5, "completion_tokens": 0}}
    told = bodies.exchange({"prompt": "x"}, response, {}, READING)
    assert told is not None
    notes = Notes()
    call = bodies.recorded(told, 0.0, 1.0, READING, notes)
    assert call is not None
    assert call.osl == 0
    assert notes == {"calls without output, sent with one token": 1}


# --- Hints ----------------------------------------------------------------------------------------

CLAUDE = f"user_{'a' * 64}_account__session_"


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"x-claude-code-session-id": "S"}, {"metadata": {"session_id": "other"}}),
        ({"x-litellm-session-id": "S"}, {}),
        ({"helicone-session-id": "S"}, {}),
        ({"x-session-id": "S"}, {}),
        ({"session_id": "S"}, {}),
        ({"thread-id": "S"}, {}),
        ({}, {"metadata": {"user_id": CLAUDE + "S"}}),
        ({}, {"metadata": {"user_id": '{"device_id":"d","session_id":"S"}'}}),
        ({}, {"user": CLAUDE + "S"}),
        ({}, {"user": "someone", "conversation": {"id": "S"}}),
        ({}, {"conversation": "S"}),
        ({}, {"prompt_cache_key": "S"}),
    ],
    ids=str,
)
def test_sessions_are_named_in_headers_and_bodies(headers: dict[str, str], fields: Row) -> None:
    """Headers come first; the name is not kept, but a keyed one that is equal for equal names."""
    told = asked(headers, **fields)
    assert told.session == asked({"x-session-id": "S"}).session
    assert told.session not in (None, "S")


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "someone"},
        {"metadata": {"user_id": "someone"}},
        {"safety_identifier": "x"},
        {"user": "{broken", "metadata": 3, "conversation": 3},
        {"metadata": {"user_id": '{"session_id": null}'}},
    ],
    ids=str,
)
def test_a_user_is_no_session(fields: Row) -> None:
    """Who asks does not say for what."""
    assert asked(**fields).session is None


def test_agents_are_named_in_headers() -> None:
    """A thread beside a session is an agent's; one alone, or equal, is the main one's."""
    assert asked({"x-session-id": "S", "x-claude-code-agent-id": "A"}).agent is not None
    assert asked({"session-id": "S", "thread-id": "T"}).agent is not None
    assert asked({"session-id": "S", "thread-id": "S"}).agent is None
    assert asked({"thread-id": "T"}).agent is None


def test_no_recorded_text_is_kept() -> None:
    """An exchange holds numbers, keyed names and the model."""
    secret = "SECRET"
    told = bodies.exchange(
        {"model": "m", "messages": [user(secret)], "system": secret, "user": CLAUDE + secret},
        {"id": secret, "content": secret, "usage": {"input_tokens": 1, "output_tokens": 1}},
        {"x-claude-code-agent-id": secret},
        READING,
    )
    assert secret not in repr(told)


# --- Histories ------------------------------------------------------------------------------------


def response(id_: str, isl: int, previous: str | None = None, **fields: object) -> Exchange:
    """An exchange of the Responses API."""
    request = {"input": f"ask {id_}", "instructions": "s", "previous_response_id": previous}
    told = bodies.exchange(
        request | fields,
        {"id": id_, "output": [], "usage": {"input_tokens": isl, "output_tokens": 10}},
        {},
        READING,
    )
    assert told is not None
    return told


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)], ids=str)
def test_a_hidden_history_is_put_before(order: tuple[int, ...]) -> None:
    """Each call of a chain by `previous_response_id` continues the one before, in one session."""
    chain = [response("a", 100), response("b", 150, "a"), response("c", 220, "b")]
    found = conversations.histories([chain[i] for i in order], READING)
    a, b, c = (found[order.index(i)] for i in range(3))
    assert (len(a.names), len(b.names), len(c.names)) == (2, 3, 4)
    assert list(c.names[:3]) == list(b.names)
    assert list(b.names[:2]) == list(a.names)
    assert a.session == b.session == c.session is not None


def test_a_history_under_other_instructions_is_not_shared() -> None:
    """They are in front of it; the session is the same."""
    a, b = conversations.histories(
        [response("a", 9), response("b", 9, "a", instructions="t")], READING
    )
    assert a.session == b.session
    assert not set(a.names) & set(b.names)


def test_a_history_that_is_not_there_leaves_what_is() -> None:
    """Answers that point in a circle, or nowhere, have their own pieces."""
    told = [response("a", 9, "b"), response("b", 9, "a"), response("c", 9, "lost")]
    assert len(conversations.histories(told, READING)) == 3


def test_long_histories_are_followed() -> None:
    """A chain may be longer than Python's stack, in any order."""
    chain = [response(str(i), 9, str(i - 1)) for i in range(1500)]
    assert len(conversations.histories(chain[::-1], READING)[0].names) == 1 + 1500


# --- Sessions -------------------------------------------------------------------------------------


def logged(
    start_s: float, *texts: str, model: str = "m", system: str = "", **fields: Any
) -> Logged:
    """A call of a second with these messages of the user."""
    request = {"messages": [user(text) for text in texts], "system": system}
    told = bodies.exchange(
        request, {"usage": {"prompt_tokens": 99, "completion_tokens": 1}}, {}, READING
    )
    assert told is not None
    call = bodies.recorded(replace(told, model=model), start_s, start_s + 1, READING)
    assert call is not None
    return Logged(call, **fields)


def starts(*calls: Logged) -> list[list[float | None]]:
    """The starts of the calls of each session."""
    return [[call.start_s for call in group] for group in conversations.sessions(calls)]


def agents(*calls: Logged) -> list[str]:
    """The labels of the calls of one session."""
    (group,) = conversations.sessions(calls)
    return [call.agent for call in group]


def test_calls_that_name_a_session_are_one() -> None:
    """Whatever their prompts are, and in whatever order they come."""
    calls = [logged(5, "x", session="S"), logged(0, "a", session="S"), logged(2, "b", session="T")]
    assert starts(*calls, logged(9, "y", session="T")) == [[0, 5], [2, 9]]


def test_calls_without_a_name_continue_prompts() -> None:
    """A call belongs to the one with the longest prompt that its own begins with."""
    calls = [logged(0, "a"), logged(1, "x"), logged(5, "a", "b"), logged(9, "x", "y")]
    assert starts(*calls) == [[0, 5], [1, 9]]


def test_a_name_that_one_call_has_says_nothing() -> None:
    """Some proxies give each call a session of its own."""
    assert starts(logged(0, "a", session="1"), logged(5, "a", "b", session="2")) == [[0, 5]]


def test_a_system_prompt_alone_makes_no_session() -> None:
    """Two talks under the same tools and system prompt are two sessions."""
    assert starts(logged(0, "a", system="s"), logged(5, "b", "c", system="s")) == [[0], [5]]


def test_a_prompt_is_continued_when_it_was_answered() -> None:
    """What begins long before the end of a call does not continue it."""
    first = logged(0, "a")
    first.call.end_s = 10.0
    assert starts(first, logged(5, "a", "b")) == [[0], [5]]
    assert starts(first, logged(9.5, "a", "b")) == [[0, 9.5]]


def test_a_rewritten_last_message_is_continued() -> None:
    """Clients change reminders in it; two more messages in common tell that it is the same."""
    assert starts(logged(0, "a", "b", "c!"), logged(5, "a", "b", "c", "d")) == [[0, 5]]
    assert starts(logged(0, "a", "b!"), logged(5, "a", "b", "d")) == [[0], [5]]


def test_runs_of_the_same_task_are_told_apart() -> None:
    """Equal prompts are sessions each, and what follows takes one that nothing has continued."""
    runs = [logged(0, "a"), logged(2, "a"), logged(4, "a", "b"), logged(6, "a", "c")]
    assert sorted(starts(*runs)) == [[0, 6], [2, 4]]


def test_the_same_model_goes_on_first() -> None:
    """Of equal prompts the one of the same model is continued."""
    runs = [logged(0, "a", model="p"), logged(2, "a", model="q"), logged(9, "a", "b", model="p")]
    assert starts(*runs) == [[0, 9], [2]]


@pytest.mark.parametrize(("wait_s", "kept"), [(30, [40.0]), (200, [0.0, 210.0])])
def test_a_call_that_was_made_again_counts_once(wait_s: float, kept: list[float]) -> None:
    """The same request within a minute, that says so, replaces the one before."""
    notes = Notes()
    again = logged(wait_s + 10, "a", retry=True, session="S")
    groups = conversations.sessions(
        [logged(0 if wait_s > 60 else 9, "a", session="S"), again], notes
    )
    assert [call.start_s for group in groups for call in group] == kept
    assert sum(notes.values()) == 2 - len(kept)


def test_agents_are_numbered() -> None:
    """Those with names, in order of their first calls, and the main one has no label."""
    calls = [logged(i, str(i), session="S", agent=a) for i, a in enumerate([None, "z", "a", "z"])]
    assert agents(*calls) == ["", "agent 1", "agent 2", "agent 1"]


def test_agents_without_names_are_told_by_their_system_prompts() -> None:
    """Another system prompt in the same session is another agent, and what continues it its own."""
    calls = [
        logged(0, "a", system="s", session="S"),
        logged(2, "x", system="t", session="S"),
        logged(4, "x", "y", system="t", session="S"),
        logged(6, "c", system="s", session="S"),
    ]
    assert agents(*calls) == ["", "agent 1", "agent 1", ""]


def test_helpers_are_numbered() -> None:
    """Small calls beside others have labels of their own, but not where all are small."""
    calls = [logged(i, str(i), session="S", helper=i > 0) for i in range(3)]
    assert agents(*calls) == ["", "helper 1", "helper 2"]
    assert agents(*(replace(each, helper=True) for each in calls)) == ["", "", ""]


def test_helpers_are_told_by_what_they_ask_for() -> None:
    """A call without tools, or for one token, may be one."""
    tools = [{"name": "t"}]
    assert asked().helper
    assert not asked(tools=tools, max_tokens=100).helper
    assert asked(tools=tools, max_tokens=1).helper


# --- Whatever comes -------------------------------------------------------------------------------

REQUEST_FIELDS = (
    "messages input prompt tools functions system instructions model user metadata conversation "
    "max_tokens previous_response_id session_id prompt_cache_key"
).split()
RESPONSE_FIELDS = "id usage error status model choices content output".split()
USAGE_FIELDS = (
    "prompt_tokens completion_tokens input_tokens output_tokens prompt_tokens_details "
    "input_tokens_details cache_read_input_tokens cache_creation_input_tokens cached_tokens"
).split()
SIZES = st.integers(-2, 50) | ANY_JSON


@settings(deadline=None, max_examples=300)
@given(
    st.dictionaries(st.sampled_from(REQUEST_FIELDS), ANY_JSON),
    st.dictionaries(st.sampled_from(RESPONSE_FIELDS), ANY_JSON),
    st.dictionaries(st.sampled_from(USAGE_FIELDS), SIZES),
    st.sampled_from([None, 3.0]),
)
def test_any_body_is_taken(request: Row, answer: Row, usage: Row, chars: float | None) -> None:
    """Whatever stands in a body, a call has an input, and no more cached than that."""
    reading = replace(READING, chars_per_token=chars)
    request = {"messages": [user("hi")]} | request
    for response_ in (answer, answer | {"usage": usage}):
        told = bodies.exchange(request, response_, {"x-stainless-retry-count": "x"}, reading)
        if told is None:
            continue
        (told,) = conversations.histories([told], reading)
        call = bodies.recorded(told, 0.0, 1.0, reading)
        if call is not None:
            assert call.isl >= 1
            assert call.osl >= 0
            assert call.cached is None or 0 <= call.cached <= call.isl
            assert list(call.ends) == sorted(call.ends)
            assert not call.ends or call.ends[-1] == call.isl
            assert 0 <= call.system <= call.isl
            conversations.sessions([Logged(call, told.session, told.agent)])


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from("type usage error response message choices delta".split()),
            ANY_JSON | st.sampled_from(["message_start", "message_delta"]),
        )
    )
)
def test_any_stream_is_taken(events: list[Row]) -> None:
    """Whatever stands in events, they make an answer or none."""
    bodies.usage(bodies.decoded(b"".join(b"data: %s\n\n" % bodies._bytes(e) for e in events)))


@given(st.binary(max_size=60), st.sampled_from(["gzip", "deflate", "br", "zstd", "x,y", ""]))
def test_any_bytes_are_taken(data: bytes, encoding: str) -> None:
    """Whatever bytes a body has, it is read or is nothing."""
    for each in (data, b"\x1f\x8b\x08" + data, b"\x78\x9c" + data):
        bodies.decoded(bodies.unpacked(each, encoding, Notes()) or b"")


# --- What real servers sent -----------------------------------------------------------------------

STREAMS = [
    ("vllm_messages_stream", (29, 6, 0)),
    ("vllm_responses_stream", (12, 6, 0)),
    ("vllm_chat_continuous_usage", (30, 3, 0)),
    ("vllm_chat_no_usage", (None, None, None)),
    ("litellm_messages_cached", (5931, 4, 5888)),
    ("vllm_messages_cached_0", (3462, 4, 0)),
    ("vllm_messages_cached_1", (3462, 4, 3456)),
]


@needs_shared
@pytest.mark.parametrize(("name", "expected"), STREAMS)
def test_real_streams(name: str, expected: tuple[int | None, ...]) -> None:
    """The usage of streams as they came off the socket."""
    data = (SHARED / "data" / "sse" / f"{name}.raw").read_bytes()
    assert usage_of(ResponseReader().feed(data)) == expected


@needs_shared
def test_every_real_answer_is_read() -> None:
    """Every recorded answer to an LLM call is read; whoever states both lengths states them."""
    known = 0
    for path in sorted((SHARED / "data" / "sse").glob("*.req.json")):
        asked_ = orjson.loads(path.read_bytes())
        data = path.with_name(path.name.replace(".req.json", ".raw")).read_bytes()
        if not bodies.is_llm_path(asked_.get("path") or "") or not data:
            continue
        body = ResponseReader().feed(data)
        told = bodies.exchange(asked_.get("body"), bodies.decoded(body), {}, READING)
        if told is None or not data.startswith(b"HTTP/1.1 200"):
            continue
        known += told.isl is not None and told.osl is not None
        assert told.cached is None or told.isl is not None
    assert known > 50
