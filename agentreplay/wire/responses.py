"""The Responses protocol: messages in, a request body out; an event in, its meaning out. Pure.

Every event has its `type` in its data, so the `event:` lines, which some servers leave out, say
nothing more. Text comes in deltas; what ends a part repeats the whole of it and is no new token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from agentreplay.wire.api import (
    Api,
    Piece,
    Usage,
    count,
    error_message,
    text_bytes,
    text_piece,
    word,
)

_VISIBLE = {
    "response.output_text.delta": True,
    "response.function_call_arguments.delta": True,
    "response.custom_tool_call_input.delta": True,
    "response.reasoning_text.delta": False,
    "response.reasoning_summary_text.delta": False,
    "response.refusal.delta": False,
}
"""Events whose `delta` was generated, and whether it is content or a tool call."""

_CALLS = ("function_call", "custom_tool_call")
_FAILED = "response.failed"
_ENDS = ("response.completed", "response.incomplete", _FAILED)


def body(model: str, messages: Sequence[bytes], fields: Mapping[str, Any]) -> bytes:
    """A streaming request; *fields* override what stands beside the input.

    Items without a type may be messages, but not every server takes an assistant's for one.
    """
    rest = {"model": model, "stream": True, **fields}
    parts: list[bytes | memoryview] = []
    for message in messages:
        parts += (b',{"type":"message",', memoryview(message)[1:])
    if parts:
        parts[0] = b'{"type":"message",'
    return b"".join((b'{"input":[', *parts, b"],", orjson.dumps(rest)[1:]))


def piece(event: Mapping[str, Any]) -> Piece:
    """What a decoded event says."""
    kind = event.get("type")
    size, visible, finish, usage = 0, False, None, None
    error = error_message(event) if kind == "error" or event.get("error") else None
    if kind in _VISIBLE:
        size = text_bytes(event.get("delta"))
        visible = _VISIBLE[kind] and size > 0
    elif kind == "response.output_item.added":
        item = event.get("item") or {}
        if item.get("type") in _CALLS:
            size = text_bytes(item.get("name"))
            visible = size > 0
    elif kind in _ENDS:
        response = event.get("response") or {}
        usage = _usage(response.get("usage"))
        if kind == _FAILED:
            error = error or error_message(response.get("error") or kind)
        else:
            # Some servers end a cut answer with `completed` too; its status and details tell.
            details = response.get("incomplete_details") or {}
            status = response.get("status") or kind.removeprefix("response.")
            finish = word(details.get("reason")) or word(status)
    if not (finish or usage or error):
        return text_piece(size, visible)
    return Piece(size, visible, finish, usage, error)


def _usage(usage: Mapping[str, Any] | None) -> Usage | None:
    if not usage:
        return None
    details = usage.get("input_tokens_details") or {}
    return Usage(
        count(usage.get("input_tokens")),
        count(usage.get("output_tokens")),
        count(details.get("cached_tokens")),
    )


API = Api(
    name="responses",
    path="/responses",
    limits=("max_output_tokens",),
    body=body,
    piece=piece,
)
