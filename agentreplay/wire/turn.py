"""The assistant's turn that a server has streamed, as the message that goes back. Pure.

Text goes back as content, reasoning in the field it came in, tool calls as they were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from agentreplay.wire.api import count, text_of, word

REASONING = ("reasoning", "reasoning_content")


def served_turn(payloads: Sequence[bytes]) -> bytes | None:
    """The message of a streamed chat answer, from the data of its events.

    Returns:
        The message as JSON; None where a tool call's arguments are no JSON, since no server
        takes such a message back.
    """
    content: list[str] = []
    reasoning: dict[str, list[str]] = {}
    calls: dict[int, dict[str, Any]] = {}
    for payload in payloads:
        for choice in orjson.loads(payload).get("choices") or ():
            delta = choice.get("delta") or {}
            content.append(text_of(delta.get("content")))
            for name in REASONING:
                if said := text_of(delta.get(name)):
                    reasoning.setdefault(name, []).append(said)
            for call in delta.get("tool_calls") or ():
                _add_call(calls, call)
    message: dict[str, Any] = {"role": "assistant", "content": "".join(content)}
    for name, parts in reasoning.items():
        message[name] = "".join(parts)
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    if not all(_is_json(call["function"]["arguments"]) for call in calls.values()):
        return None
    return orjson.dumps(message)


def _add_call(calls: dict[int, dict[str, Any]], delta: dict[str, Any]) -> None:
    """Add a piece of a tool call: its id and name come once, its arguments in parts."""
    index = count(delta.get("index")) or 0
    call = calls.setdefault(
        index,
        {"id": f"call{index}", "type": "function", "function": {"name": "", "arguments": ""}},
    )
    function = delta.get("function") or {}
    call["id"] = word(delta.get("id")) or call["id"]
    call["function"]["name"] += text_of(function.get("name"))
    call["function"]["arguments"] += text_of(function.get("arguments"))


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
