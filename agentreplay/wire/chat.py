"""The chat-completions protocol: messages in, a request body out; an event in, its meaning out.

Pure. The decoder takes what servers really send: text in `content`, `reasoning` or
`reasoning_content`, tool-call deltas, refusals, the `text` of plain completions, usage on any
chunk, chunks without choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

_ERROR_WORDS = ("error", "message", "detail", "msg")
_NESTED_ERRORS = 5


class Usage(NamedTuple):
    """Token counts as the server states them; None where it doesn't."""

    isl: int | None
    osl: int | None
    cached: int | None


class Piece(NamedTuple):
    """What one event says.

    Attributes:
        size: UTF-8 bytes of generated content, reasoning, refusal and tool calls; 0 for none.
        visible: Some of it is content or a tool call.
        finish: The finish_reason, where given.
        usage: Where given.
        error: The message of an error event.
    """

    size: int
    visible: bool
    finish: str | None
    usage: Usage | None
    error: str | None


def body(
    model: str, messages: Sequence[bytes], max_tokens: int, fields: Mapping[str, Any]
) -> bytes:
    """A streaming request.

    Args:
        model: The served model.
        messages: Each message as JSON; they are joined, never encoded again.
        max_tokens: How many tokens to generate.
        fields: Further fields of the body; they override the others.
    """
    rest = {"model": model, "stream": True, "max_tokens": max_tokens, **fields}
    parts = [b'{"messages":[']
    for message in messages:
        parts += (message, b",")
    parts[-1] = b"]," + orjson.dumps(rest)[1:]
    return b"".join(parts)


def piece(event: Mapping[str, Any]) -> Piece:
    """What a decoded event says."""
    size, visible, finish = 0, False, None
    for choice in event.get("choices") or ():
        finish = choice.get("finish_reason") or finish
        delta = choice.get("delta") or choice
        if content := delta.get("content") or delta.get("text"):
            size += _bytes(content)
            visible = True
        if reasoning := delta.get("reasoning") or delta.get("reasoning_content"):
            size += _bytes(reasoning)
        if refusal := delta.get("refusal"):
            size += _bytes(refusal)
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            if made := _bytes(function.get("name")) + _bytes(function.get("arguments")):
                size += made
                visible = True
    usage, error = event.get("usage"), event.get("error")
    return Piece(
        size,
        visible,
        finish,
        _usage(usage) if usage else None,
        error_message(error) if error else None,
    )


def error_message(error: object) -> str:
    """The words of an error value in any of the shapes that servers give it."""
    for _ in range(_NESTED_ERRORS):
        if not isinstance(error, Mapping):
            break
        name = next((name for name in _ERROR_WORDS if error.get(name)), None)
        if name is None:
            break
        error = error[name]
    if isinstance(error, str):
        return error
    try:
        return orjson.dumps(error).decode()
    except TypeError:  # nested too deeply
        return "an error without words"


def error_text(body: bytes) -> str:
    """The words of an error body, be it JSON or text; "" where it says nothing."""
    try:
        return error_message(orjson.loads(body))
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace")


def _usage(usage: Mapping[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        _count(usage.get("prompt_tokens")),
        _count(usage.get("completion_tokens")),
        _count(details.get("cached_tokens")),
    )


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _bytes(text: object) -> int:
    """UTF-8 length of a string, or of the texts in a list of parts."""
    if isinstance(text, str):
        return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if isinstance(text, list):
        return sum(_bytes(part.get("text")) for part in text if isinstance(part, Mapping))
    return 0
