"""An API of an inference server: a path, an encoder and a decoder. Values, and what all share.

Pure. Each API is a module of its own with an `API`: messages in, a request body out; a decoded
event in, its meaning out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import orjson

_ERROR_WORDS = ("error", "message", "detail", "msg")
_NESTED_ERRORS = 5

MOST_TOKENS = 1 << 40
"""A count from there on is no count of tokens."""


class Usage(NamedTuple):
    """Token counts as the server states them; None where it doesn't."""

    isl: int | None
    osl: int | None
    cached: int | None

    def after(self, before: Usage) -> Usage:
        """These counts, and of those that are missing here what was said *before*."""
        return Usage(
            before.isl if self.isl is None else self.isl,
            before.osl if self.osl is None else self.osl,
            before.cached if self.cached is None else self.cached,
        )


class Piece(NamedTuple):
    """What one event says.

    Attributes:
        size: UTF-8 bytes of generated content, reasoning, refusal and tool calls; 0 for none.
        visible: Some of it is content or a tool call.
        finish: Why generation ended, where given.
        usage: Where given.
        error: The message of an error event.
    """

    size: int
    visible: bool
    finish: str | None
    usage: Usage | None
    error: str | None


@lru_cache(1024)
def text_piece(size: int, visible: bool) -> Piece:
    """A piece that says no more than how long it is, as nearly all do; they are of few lengths."""
    return Piece(size, visible, None, None, None)


ASK_USAGE: Mapping[str, Any] = {"stream_options": {"include_usage": True}}

Encoder: TypeAlias = Callable[[str, Sequence[bytes], Mapping[str, Any]], bytes]
"""Model, messages (each as the JSON of a chat message) and further fields to a request body."""


@dataclass(frozen=True, slots=True)
class Api:
    """How one API is spoken.

    Attributes:
        name: What --api calls it.
        path: Where it is, below the base address.
        limits: Names of the field that limits the output; the first that is accepted is used.
        optional: Fields that force the output's length and ask for usage, tried in this order:
            strict servers refuse what they don't know.
        body: Encodes a streaming request; messages are joined, never encoded again.
        piece: Says what an event means.
    """

    name: str
    path: str
    limits: tuple[str, ...]
    body: Encoder
    piece: Callable[[Mapping[str, Any]], Piece]
    optional: tuple[Mapping[str, Any], ...] = ({"ignore_eos": True}, {})


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


def count(value: object) -> int | None:
    """A token count; None for anything that is none."""
    return value if type(value) is int and 0 <= value < MOST_TOKENS else None


def word(value: object) -> str | None:
    """A name that a server gives, as of why it finished; None for anything that is none."""
    return value if isinstance(value, str) and value else None


def text_of(value: object) -> str:
    """A string, or the texts in a list of parts; "" for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = (part.get("text") for part in value if isinstance(part, Mapping))
        return "".join(text for text in texts if isinstance(text, str))
    return ""


def text_bytes(value: object) -> int:
    """UTF-8 length of `text_of`."""
    text = value if type(value) is str else text_of(value)
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
