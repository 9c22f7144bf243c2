"""The completions protocol: one prompt without roles, as text or as token ids. Pure.

Without a chat template a prompt of n words is n tokens, and one of n ids is so by construction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from agentreplay.wire import chat
from agentreplay.wire.api import Api


def body(model: str, messages: Sequence[bytes], fields: Mapping[str, Any]) -> bytes:
    """A streaming request whose prompt is the JSON value *messages* holds."""
    rest = {"model": model, "stream": True, **fields}
    return b"".join((b'{"prompt":', *messages, b",", orjson.dumps(rest)[1:]))


API = Api(
    name="completions",
    path="/completions",
    limits=("max_tokens",),
    body=body,
    piece=chat.piece,
    optional=chat.OPTIONAL,
)
