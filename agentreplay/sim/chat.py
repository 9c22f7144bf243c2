"""The chat-completions protocol of the simulated server: bytes to what is asked, and back.

Rule: pure, and shaped as vLLM shapes it. Only text is read: tool definitions, tool calls and
sampling parameters are accepted, and cost and change nothing. Answers end at their length limit.

A prompt costs its words, plus 5 tokens a message and 3 a prompt: the rendered conversation has
that many words around the text. A word is what stands between bytes up to the space.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import orjson

from agentreplay.sim.engine import Profile

UNASKED_TOKENS = 128
"""Length of an answer where the request sets no limit."""

_OPEN = {
    role: f" <message> <{role}> <text> "
    for role in ("system", "developer", "user", "assistant", "tool", "function")
}
_CLOSE = " </text> </message>"
# An assistant turn opens with the same words, so the next prompt begins with the whole of this one.
_ANSWER = _OPEN["assistant"]

_WORDS = (" one", " token", " of", " a", " simulated", " answer", " after", " another")


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request asks for.

    Attributes:
        model: The model's name, as asked.
        blocks: Names of the prompt's whole blocks, each a hash over all words up to its end.
        isl: Prompt tokens.
        osl: Tokens to generate.
        stream: The answer is wanted as an event stream.
        include_usage: The stream ends with the token counts.
    """

    model: str
    blocks: list[int]
    isl: int
    osl: int
    stream: bool
    include_usage: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error response."""

    status: int
    body: bytes


def read(body: bytes, profile: Profile) -> Ask | Refusal:
    """What *body* asks of a server with *profile*, or how that server refuses it."""
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return _refusal(f"1 validation error: JSON decode error: {error}", "body", "Bad Request")
    if not isinstance(asked, dict):
        return _refusal("1 validation error: an object is required", "body", "Bad Request")
    if (messages := asked.get("messages")) is None:
        return _refusal(
            "1 validation error: body.messages: Field required", "body.messages", "Bad Request"
        )
    stream, options = asked.get("stream") or False, asked.get("stream_options")
    if options is not None and not stream:
        return _refusal(
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
            "stream_options",
        )
    try:
        text = _render(messages)
    except ValueError as error:
        return _refusal(str(error), "messages")
    isl, blocks = _tokenize(text, profile.block_size)
    limit = asked.get("max_completion_tokens")
    if limit is None:
        limit = asked.get("max_tokens")
    if refusal := _check_length(isl, limit, profile.context_tokens):
        return refusal
    return Ask(
        model=str(asked.get("model") or f"sim-{profile.name}"),
        blocks=blocks,
        isl=isl,
        osl=min(UNASKED_TOKENS, profile.context_tokens - isl) if limit is None else limit,
        stream=bool(stream),
        include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
    )


def models(profile: Profile) -> bytes:
    """The list of models: one, though any name is served."""
    return orjson.dumps(
        {
            "object": "list",
            "data": [
                {
                    "id": f"sim-{profile.name}",
                    "object": "model",
                    "created": 0,
                    "owned_by": "agentreplay",
                    "max_model_len": profile.context_tokens,
                }
            ],
        }
    )


class Chunks:
    """The event stream of one answer. All is built beforehand: a token costs a look-up."""

    def __init__(self, number: int, ask: Ask) -> None:
        self._ask = ask
        self._head = (
            b'data: {"id":"chatcmpl-sim-%d","object":"chat.completion.chunk","created":0,"model":%b'
            b',"choices":[' % (number, orjson.dumps(ask.model))
        )
        delta = self._head + b'{"index":0,"delta":'
        close = b',"logprobs":null,"finish_reason":null}]}\n\n'
        self._role = delta + b'{"role":"assistant","content":""}' + close
        words = _WORDS[: ask.osl]
        self._texts = [delta + b'{"content":"%b"}' % word.encode() + close for word in words]
        self._last = (
            delta
            + b'{"content":"%b"}' % _WORDS[(ask.osl - 1) % len(_WORDS)].encode()
            + b',"logprobs":null,"finish_reason":"length","stop_reason":null}]}\n\n'
        )

    def token(self, n: int) -> bytes:
        """What is sent when token *n* is there, counted from 0; the role comes with the first."""
        part = self._last if n == self._ask.osl - 1 else self._texts[n % len(_WORDS)]
        return part if n else self._role + part

    def end(self, cached: int) -> bytes:
        """What is sent after the last token."""
        if not self._ask.include_usage:
            return b"data: [DONE]\n\n"
        usage = orjson.dumps(_usage(self._ask, cached))
        return self._head + b'],"usage":' + usage + b"}\n\ndata: [DONE]\n\n"


def whole(number: int, ask: Ask, cached: int) -> bytes:
    """The answer in one piece, for a request that asks for no stream."""
    text = "".join(_WORDS[n % len(_WORDS)] for n in range(ask.osl))
    return orjson.dumps(
        {
            "id": f"chatcmpl-sim-{number}",
            "object": "chat.completion",
            "created": 0,
            "model": ask.model,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "logprobs": None,
                    "finish_reason": "length",
                    "stop_reason": None,
                }
            ],
            "usage": _usage(ask, cached),
        }
    )


def _usage(ask: Ask, cached: int) -> dict[str, object]:
    return {
        "prompt_tokens": ask.isl,
        "total_tokens": ask.isl + ask.osl,
        "completion_tokens": ask.osl,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _refusal(message: str, param: str | None, kind: str = "BadRequestError") -> Refusal:
    error = {"message": message, "type": kind, "param": param, "code": 400}
    return Refusal(400, orjson.dumps({"error": error}))


def _check_length(isl: int, limit: object, context: int) -> Refusal | None:
    if limit is not None:
        if not isinstance(limit, int) or limit < 1:
            return _refusal(
                f"max_tokens must be at least 1, got {limit}."
                f" (parameter=max_tokens, value={limit})",
                "max_tokens",
            )
        if limit > context:
            return _refusal(
                f"max_tokens={limit} cannot be greater than max_model_len={context}. Please"
                f" request fewer output tokens. (parameter=max_tokens, value={limit})",
                "max_tokens",
            )
    known = f"This model's maximum context length is {context} tokens. However,"
    if isl > context:
        # The real server stops counting there.
        return _refusal(
            f"{known} your prompt contains at least {context + 1} input tokens, which exceeds"
            " this limit even without any output tokens. Please reduce the length of the input"
            f" prompt. (parameter=input_tokens, value={context + 1})",
            "input_tokens",
        )
    wanted = limit if isinstance(limit, int) else 1
    if isl + wanted > context:
        return _refusal(
            f"{known} you requested {wanted} output tokens and your prompt contains at least {isl}"
            f" input tokens, for a total of at least {isl + wanted} tokens. Please reduce the"
            " length of the input prompt or the number of requested output tokens."
            f" (parameter=input_tokens, value={isl})",
            "input_tokens",
        )
    return None


def _render(messages: object) -> bytes:
    """The conversation as one text; a ValueError says what is wrong with it."""
    if not isinstance(messages, list):
        raise ValueError("messages must be a list")
    if not messages:
        raise ValueError("Cannot apply chat template to an empty conversation.")
    parts: list[str] = []
    for message in messages:
        if not isinstance(message, dict):
            raise ValueError("every message must be an object")
        role = message.get("role")
        if not isinstance(role, str) or role not in _OPEN:
            raise ValueError(f"Unexpected message role: {role!r}")
        parts += (_OPEN[role], _text(message.get("content")), _CLOSE)
    parts.append(_ANSWER)
    return "".join(parts).encode()


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        if len(texts) == len(content) and all(isinstance(text, str) for text in texts):
            return "\n".join(map(str, texts))
    raise ValueError("content must be text, a list of text parts, or null")


def _tokenize(text: bytes, block_size: int) -> tuple[int, list[int]]:
    """How many words *text* has, and the chained hashes of each whole block of them.

    The text begins and ends with a space.
    """
    space = np.frombuffer(text, np.uint8) <= ord(" ")
    starts = np.flatnonzero(space[:-1] > space[1:]) + 1
    ends = np.flatnonzero(space[:-1] < space[1:]) + 1
    whole_blocks = len(starts) // block_size
    blocks: list[int] = []
    previous = 0
    # What separates two blocks belongs to neither: it may be unlike where a prompt ends.
    for start, end in zip(
        starts[::block_size].tolist()[:whole_blocks],
        ends[block_size - 1 :: block_size].tolist(),
        strict=True,
    ):
        previous = hash((previous, text[start:end]))
        blocks.append(previous)
    return len(starts), blocks
