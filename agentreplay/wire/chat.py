"""The chat-completions protocol: messages in, a request body out; an event in, its meaning out.

Pure. The decoder takes what servers really send: text in `content`, `reasoning` or
`reasoning_content`, tool-call deltas, refusals, the `text` of plain completions, usage on any
chunk, chunks without choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from agentreplay.wire.api import (
    ASK_USAGE,
    Api,
    Piece,
    Usage,
    count,
    error_message,
    text_bytes,
    text_piece,
    word,
)


def body(model: str, messages: Sequence[bytes], fields: Mapping[str, Any]) -> bytes:
    """A streaming request; *fields* override what stands beside the messages."""
    rest = {"model": model, "stream": True, **fields}
    parts: list[bytes] = []
    for message in messages:
        parts += (b",", message)
    parts[:1] = (b'{"messages":[',)
    parts.append(b"]," + orjson.dumps(rest)[1:])
    return b"".join(parts)


def piece(event: Mapping[str, Any]) -> Piece:
    """What a decoded event says."""
    size, visible, finish = 0, False, None
    for choice in event.get("choices") or ():
        if reason := choice.get("finish_reason"):
            finish = word(reason) or finish
        delta = choice.get("delta") or choice
        if made := text_bytes(delta.get("content") or delta.get("text")):
            size += made
            visible = True
            if len(delta) == 1:  # as nearly always
                continue
        if reasoning := delta.get("reasoning") or delta.get("reasoning_content"):
            size += text_bytes(reasoning)
        if refusal := delta.get("refusal"):
            size += text_bytes(refusal)
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            if made := text_bytes(function.get("name")) + text_bytes(function.get("arguments")):
                size += made
                visible = True
    usage, error = event.get("usage"), event.get("error")
    if not (finish or usage or error):
        return text_piece(size, visible)
    return Piece(
        size,
        visible,
        finish,
        _usage(usage) if usage else None,
        error_message(error) if error else None,
    )


def _usage(usage: Mapping[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        count(usage.get("prompt_tokens")),
        count(usage.get("completion_tokens")),
        count(details.get("cached_tokens")),
    )


OPTIONAL: tuple[Mapping[str, Any], ...] = (
    {**ASK_USAGE, "ignore_eos": True},
    ASK_USAGE,
    {"ignore_eos": True},
    {},
)

API = Api(
    name="chat",
    path="/chat/completions",
    limits=("max_tokens", "max_completion_tokens"),
    body=body,
    piece=piece,
    optional=OPTIONAL,
)
