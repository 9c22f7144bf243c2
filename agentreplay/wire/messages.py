"""Anthropic's Messages protocol: messages in, a request body out; an event in, its meaning out.

Pure. Usage comes in two events, whose counts are merged where the answer is put together. Servers
divide it differently: the whole prompt first and its parts by cache at the end, the prompt only at
the start, or zeros at the start and the truth at the end.
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

_SYSTEM = b'{"role":"system","content":'

_DELTAS = {
    "text_delta": ("text", True),
    "input_json_delta": ("partial_json", True),
    "thinking_delta": ("thinking", False),
}
"""Where a delta has its text, and whether it is content or a tool call; signatures are neither."""


def body(model: str, messages: Sequence[bytes], fields: Mapping[str, Any]) -> bytes:
    """A streaming request; *fields* override what stands beside the messages.

    A system message at the start goes where this API has it, as the bytes it is.
    """
    rest = orjson.dumps({"model": model, "stream": True, **fields})[1:]
    head = b"{"
    if messages and messages[0].startswith(_SYSTEM):
        head = b'{"system":%b,' % messages[0][len(_SYSTEM) : -1]
        messages = messages[1:]
    return b"".join((head, b'"messages":[', b",".join(messages), b"],", rest))


def piece(event: Mapping[str, Any]) -> Piece:
    """What a decoded event says."""
    kind = event.get("type")
    size, visible, finish, usage = 0, False, None, None
    error = error_message(event) if kind == "error" or event.get("error") else None
    if kind == "content_block_delta":
        delta = event.get("delta") or {}
        if known := _DELTAS.get(word(delta.get("type")) or ""):
            key, seen = known
            size = text_bytes(delta.get(key))
            visible = seen and size > 0
    elif kind == "content_block_start":
        block = event.get("content_block") or {}
        if block.get("type") == "tool_use":
            size = text_bytes(block.get("name"))
            visible = size > 0
    elif kind == "message_delta":
        finish = word((event.get("delta") or {}).get("stop_reason"))
        usage = _usage(event.get("usage"))
    elif kind == "message_start":
        usage = _usage((event.get("message") or {}).get("usage"))
        # Before there is any output its count is a placeholder, and would stand if the end is lost.
        usage = usage and usage._replace(osl=None)
    if not (finish or usage or error):
        return text_piece(size, visible)
    return Piece(size, visible, finish, usage, error)


def _usage(usage: Mapping[str, Any] | None) -> Usage | None:
    if not usage:
        return None
    fresh = count(usage.get("input_tokens"))
    read = count(usage.get("cache_read_input_tokens"))
    created = count(usage.get("cache_creation_input_tokens"))
    isl = None if fresh is None else fresh + (read or 0) + (created or 0)
    # No prompt is empty: a sum of 0 stands for a count that isn't known yet.
    return Usage(isl or None, count(usage.get("output_tokens")), read)


API = Api(
    name="messages",
    path="/messages",
    limits=("max_tokens",),
    body=body,
    piece=piece,
)
