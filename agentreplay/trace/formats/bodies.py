"""One request and answer of an LLM API in numbers, from bodies as proxies and loggers keep them.

Shared by readers. A prompt is told by the keyed names of its pieces (tools, parts of the system
prompt, messages), each standing for all before it too; no text, header or recorded id is kept.
Pure: bytes and decoded bodies in, numbers out.
"""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import ceil
from typing import Any

import orjson

from agentreplay.trace.fields import count, inside, objects, string
from agentreplay.trace.lenient import parsed
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import Reading, Recorded

IMAGE_CHARS = 4_000
"""What an image or a file inside a message weighs among texts, whatever its bytes."""

_PATHS = ("/chat/completions", "/completions", "/responses", "/messages")
_SESSION_HEADERS = (
    "x-claude-code-session-id",
    "x-litellm-session-id",
    "helicone-session-id",
    "x-session-id",
    "session-id",
    "session_id",
    "thread-id",
)
_AGENT_HEADER, _THREAD_HEADER = "x-claude-code-agent-id", "thread-id"
_RETRY_HEADER = "x-stainless-retry-count"

HEADERS = frozenset((*_SESSION_HEADERS, _AGENT_HEADER, _RETRY_HEADER, "content-encoding"))
"""The headers that are looked at, in lower case; a reader takes out no others."""

_DROPPED = frozenset("id call_id tool_call_id tool_use_id cache_control".split())
_NESTED = frozenset("content output tool_calls parts".split())
_MEDIA = frozenset("source image_url input_audio image file file_data blob".split())
_INPUT_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_TEXT_TYPES = ("text", "input_text", "output_text")
_DEEPEST = 16
_GZIP, _ZLIB = b"\x1f\x8b", b"\x78"
_PLAIN = (b"{", b"[", b"data:", b"event:", b":")  # begins of JSON and of event streams
_BILLING = "x-anthropic-billing-header:"  # a block that the server takes out, new in every request


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and answer of an LLM API, in numbers only.

    Attributes:
        isl: Input tokens by the answer's usage, cached ones included.
        osl: Output tokens, reasoning included.
        cached: Input tokens read from the server's cache; at most `isl`.
        model: The model that was asked for, else the one that answered.
        session: Keyed name of the session that headers or body name.
        agent: Keyed name of the agent that headers name; None for the main one.
        names: Chained keyed names of the prompt's pieces.
        chars: Characters up to the end of each piece.
        system_pieces: How many leading pieces are tools and system prompt.
        response_id: Keyed name of the answer.
        previous: Keyed name of the answer whose history this request continues unseen.
        answer_chars: Characters of the answer, counted where something needs them.
        helper: It looks like a call beside the conversation: one token at most, or no tools.
        retry: The client says that it makes this request again.
        failed: The answer is an error.
        outside: The usage had more cached tokens than input, and they were added to it.
    """

    isl: int | None = None
    osl: int | None = None
    cached: int | None = None
    model: str | None = None
    session: str | None = None
    agent: str | None = None
    names: Sequence[int] = ()
    chars: Sequence[int] = ()
    system_pieces: int = 0
    response_id: str | None = None
    previous: str | None = None
    answer_chars: int = 0
    helper: bool = False
    retry: bool = False
    failed: bool = False
    outside: bool = False


def is_llm_path(path: str) -> bool:
    """Whether requests to a path, or URL, are LLM calls, by its end."""
    return path.partition("?")[0].partition("#")[0].rstrip("/").endswith(_PATHS)


def exchange(
    request: object, response: object, headers: Mapping[str, str], reading: Reading
) -> Exchange | None:
    """What a request and its answer say; None where the request is no LLM call.

    Args:
        request: The decoded body, with `messages`, `input` or `prompt`.
        response: The decoded body, or what `sse_body` made of a stream; None where there is none.
        headers: Those of the request that are in `HEADERS`, named in lower case.
        reading: The key of names.
    """
    told = asked(request, headers, reading)
    return None if told is None else answered(told, response, reading)


def asked(request: object, headers: Mapping[str, str], reading: Reading) -> Exchange | None:
    """What a request alone says; as `exchange`."""
    if not isinstance(request, dict):
        return None
    messages, system = request.get("messages"), request.get("system")
    if messages is None:
        messages, system = request.get("input"), request.get("instructions")
    if messages is None:
        messages = request.get("prompt")
    if not messages or not isinstance(messages, str | list):
        return None
    tools = request.get("tools") or request.get("functions")
    names, chars, system_pieces = message_pieces(messages, tools, system, reading)
    session, agent = _hints(request, headers)
    most = [request.get(f"max_{what}tokens") for what in ("", "completion_", "output_")]
    return Exchange(
        model=string(request.get("model")),
        session=_named(session, reading),
        agent=_named(agent, reading),
        names=names,
        chars=chars,
        system_pieces=system_pieces,
        previous=_named(request.get("previous_response_id"), reading),
        helper=not tools or any(count(each) == 1 for each in most),
        retry=bool(count(headers.get(_RETRY_HEADER))),
    )


def answered(told: Exchange, response: object, reading: Reading) -> Exchange:
    """*told*, with what the answer says."""
    if not isinstance(response, dict):
        return told
    isl, osl, cached, outside = _usage(response)
    said: list[str] = []
    for key in ("choices", "content", "output"):
        _strings(response.get(key), said)
    return replace(
        told,
        isl=isl,
        osl=osl,
        cached=cached,
        model=told.model or string(response.get("model")),
        response_id=_named(response.get("id"), reading),
        answer_chars=sum(map(len, said)),
        failed=bool(response.get("error")) or response.get("status") == "failed",
        outside=outside,
    )


def recorded(
    exchange: Exchange,
    start_s: float | None,
    end_s: float | None,
    reading: Reading,
    notes: Notes | None = None,
) -> Recorded | None:
    """The call of an exchange; None where neither usage nor `chars_per_token` gives its lengths.

    Where it has pieces, each is as long as its share of the characters, and they end with `isl`.
    """
    isl, osl, cached = exchange.isl or None, exchange.osl, exchange.cached
    chars = exchange.chars
    if reading.chars_per_token is not None:
        if isl is None and chars:
            isl, cached = ceil(chars[-1] / reading.chars_per_token), None
        if osl is None and exchange.answer_chars:
            osl = ceil(exchange.answer_chars / reading.chars_per_token)
    if not isl or osl is None:
        return None
    if notes is not None and exchange.outside:
        notes.add("calls with more cached tokens than input, added to it")
    if notes is not None and not osl:
        notes.add("calls without output, sent with one token")
    whole = chars[-1] if chars else 0
    ends = array("q", [isl * each // whole for each in chars] if whole else [isl] * len(chars))
    return Recorded(
        start_s=start_s,
        end_s=end_s,
        isl=isl,
        osl=osl,
        model=exchange.model,
        cached=cached,
        system=ends[exchange.system_pieces - 1] if exchange.system_pieces else 0,
        prompt=exchange.names,
        ends=ends,
    )


# --- What requests and answers say ----------------------------------------------------------------


def usage(body: object) -> tuple[int | None, int | None, int | None]:
    """Input tokens with the cached ones, output tokens and cached tokens.

    *body* is a usage object of any of the APIs, or an answer that holds one. What is absent is
    None. The Messages API counts cached tokens beside the input; there, and where there are more
    of them than input, they are added.
    """
    return _usage(body)[:3]


def _usage(body: object) -> tuple[int | None, int | None, int | None, bool]:
    """As `usage`, and whether cached tokens were added against the API's convention."""
    told = inside(body, "usage") or inside(body)
    osl = _first(told, "completion_tokens", "output_tokens")
    read, written = _first(told, _INPUT_COUNTS[1]), _first(told, _INPUT_COUNTS[2])
    details = inside(told, "prompt_tokens_details") or inside(told, "input_tokens_details")
    within = _first(details, "cached_tokens")
    if within is None:
        within = _first(told, "cached_tokens", "prompt_cache_hit_tokens")
    total = _first(told, "prompt_tokens")
    if total is None:
        total = _first(told, "input_tokens")
        if total is not None and within is None and (read is not None or written is not None):
            return total + (read or 0) + (written or 0), osl, read, False
    cached = read if within is None else within
    if total is None or cached is None:
        return total, osl, None, False
    if cached > total:
        return total + cached + (written or 0), osl, cached, True
    return total, osl, cached, False


def _first(told: Mapping[str, Any], *names: str) -> int | None:
    return next((each for name in names if (each := count(told.get(name))) is not None), None)


def _hints(request: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The session and the agent that a request names."""
    session = next((headers[name] for name in _SESSION_HEADERS if headers.get(name)), None)
    thread = headers.get(_THREAD_HEADER)
    agent = headers.get(_AGENT_HEADER) or (thread if thread != session else None)
    if session is None:
        metadata = inside(request, "metadata")
        told = (
            _of_user(metadata.get("user_id")),
            _of_user(request.get("user")),
            request.get("conversation"),
            inside(request, "conversation").get("id"),
            request.get("session_id"),
            metadata.get("session_id"),
            request.get("litellm_session_id"),
            request.get("prompt_cache_key"),
        )
        session = next(filter(None, map(string, told)), None)
    return session, agent


def _of_user(user: object) -> object:
    """The session in the name that Claude Code gives its user; other names tell none."""
    if not isinstance(user, str):
        return None
    if user.startswith("{"):
        return inside(parsed(user)).get("session_id")
    return user.rpartition("_session_")[2] if "_session_" in user else None


def _named(recorded: object, reading: Reading) -> str | None:
    known = string(recorded)
    return f"{reading.named(known):x}" if known else None


# --- Pieces of prompts ----------------------------------------------------------------------------


def message_pieces(
    messages: object, tools: object, system: object, reading: Reading
) -> tuple[array[int], array[int], int]:
    """The pieces of a prompt: their chained names, characters up to the end of each, and how
    many leading ones are tools and system prompt.

    Markers and ids are dropped, and so is the difference between a text and a list of one text:
    clients move them about from call to call.
    """
    names, chars = array("q"), array("q")
    name = total = system_pieces = 0
    leading = [tools] if tools else []
    for block in _listed(system):
        text = _only_text(block) if isinstance(block, dict) else block
        if not isinstance(text, str) or not text.startswith(_BILLING):
            leading.append(block if text is None else text)
    listed = _listed(messages)
    if listed and all(type(each) is int for each in listed):
        listed = [listed]  # a prompt of token ids
    for number, piece in enumerate((*leading, *listed)):
        kept, weight = _clean(piece)
        name = reading.name(_bytes(kept), name)
        total += weight
        names.append(name)
        chars.append(total)
        if number == system_pieces and (number < len(leading) or _is_system(piece)):
            system_pieces += 1
    return names, chars, system_pieces


def _listed(value: object) -> list[Any]:
    if isinstance(value, list):
        return value
    return [value] if value else []


def _is_system(message: object) -> bool:
    return isinstance(message, dict) and message.get("role") in ("system", "developer")


def _only_text(block: Mapping[str, Any]) -> str | None:
    """The text of a block that holds nothing else."""
    text = block.get("text")
    return text if isinstance(text, str) and block.get("type") in _TEXT_TYPES else None


def _clean(value: object, depth: int = 0) -> tuple[object, int]:
    """A piece without what changes from call to call though it means nothing, and its weight."""
    if isinstance(value, dict) and depth < _DEEPEST:
        return _clean_fields(value, depth)
    if not isinstance(value, list) or depth == _DEEPEST:
        return value, 0 if value is None else _weight(value)
    cleaned = [_clean(each, depth + 1) for each in value]
    weight = sum(each for _, each in cleaned)
    kept = [each for each, _ in cleaned]
    if len(kept) == 1 and isinstance(only := kept[0], dict) and len(only) == 2:
        return _only_text(only) or kept, weight
    return kept, weight


def _clean_fields(fields: Mapping[str, Any], depth: int) -> tuple[dict[str, Any], int]:
    kept: dict[str, Any] = {}
    weight = 0
    for key, value in fields.items():
        if value is None or (key in _DROPPED and fields.get("type") != "item_reference"):
            continue
        kept[key], more = value, IMAGE_CHARS
        if key in _NESTED:
            kept[key], more = _clean(value, depth + 1)
        elif key not in _MEDIA:
            more = _weight(value)
        weight += more
    return kept, weight


def _weight(value: object) -> int:
    return len(value) if isinstance(value, str) else len(_bytes(value))


def _bytes(value: object) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # lone surrogates, integers beyond 64 bits, or nested very deeply
        try:
            return json.dumps(value, sort_keys=True).encode()
        except RecursionError:
            return b""


# --- From bytes to bodies -------------------------------------------------------------------------


def unpacked(data: bytes, encoding: str, notes: Notes) -> bytes | None:
    """A body without its content encodings; None where one can't be undone.

    Loggers undo an encoding and leave its header: a body that isn't encoded stays as it is.
    """
    names = [name.strip().lower() for name in encoding.split(",")]
    if "gzip" not in names:
        names.append("gzip")  # where the header is lost; its bytes tell
    for name in reversed(names):
        if data.startswith(_PLAIN):
            break
        try:
            if name in ("gzip", "x-gzip") and data.startswith(_GZIP):
                data = _inflated(data, 31)
            elif name == "deflate":
                data = _inflated(data, 15 if data[:1] == _ZLIB else -15)
            elif name == "zstd":
                data = (
                    import_module("zstandard").ZstdDecompressor().decompressobj().decompress(data)
                )
            elif name == "br":
                data = import_module("brotli").decompress(data)
        except ImportError:
            notes.add(f"bodies in {name}, for which no module is installed, left out")
            return None
        except Exception:  # each module has errors of its own, and all say that it is broken
            return None
    return data


def _inflated(data: bytes, bits: int) -> bytes:
    """What can be read of a compressed body; it may be cut off, and in several members."""
    found = []
    while data:
        reader = zlib.decompressobj(bits)
        found.append(reader.decompress(data))
        data = reader.unused_data
        if not data.startswith(_GZIP):
            break
    return b"".join(found)


def decoded(body: str | bytes) -> Any:
    """A body's JSON, or the answer that its event stream makes; None where it is neither."""
    data = body.encode(errors="replace") if isinstance(body, str) else body
    data = data.removeprefix(b"\xef\xbb\xbf").strip()
    return parsed(data) if data.startswith((b"{", b"[")) else sse_body(data)


def sse_body(text: str | bytes) -> object | None:
    """The answer that an event stream of any of the APIs makes, with its usage; None without one.

    All text of a chat answer comes as one message, with reasoning and tool arguments. A stream
    of the Messages API that was cut off has no output tokens, since its first event has only a
    placeholder.
    """
    answer: dict[str, Any] = {}
    counts: dict[str, int] = {}  # of the Messages API
    said: list[str] = []
    for event in _events(text):
        kind, told = event.get("type"), event.get("usage")
        if event.get("error"):
            answer["error"] = event["error"]
        if isinstance(whole := event.get("response") or event.get("message"), dict):
            answer.update(whole)
        if kind == "message_start" and isinstance(whole, dict):
            _later(counts, whole.get("usage"))
            counts.pop("output_tokens", None)
            answer["usage"] = counts
        elif kind == "message_delta":
            _later(counts, told)
            answer["usage"] = counts
        elif isinstance(told, dict):
            answer["usage"] = told
        if isinstance(choices := event.get("choices"), list):
            answer.update((key, event[key]) for key in ("id", "model") if event.get(key))
            for choice in choices:
                if isinstance(choice, dict):
                    _strings(choice.get("delta") or choice.get("text"), said)
        elif kind != "message_delta":
            _strings(event.get("delta"), said)
    if said and not answer.get("output"):
        answer["content"] = "".join(said)
    return answer or None


def _events(text: str | bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects of an event stream; an event that was cut off is none."""
    data = text.encode(errors="replace") if isinstance(text, str) else text
    data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    held: list[bytes] = []
    for line in (*data.split(b"\n"), b""):
        if line.startswith(b"data:"):
            held.append(line[5:])
        elif not line and held:
            event = parsed(b"\n".join(held))
            # Where the log lost the blank lines, each line is an event of its own.
            yield from objects([event] if event else list(map(parsed, held)))
            held = []


def _strings(value: object, said: list[str], depth: int = 0) -> None:
    """Add the texts that a part of an answer holds, wherever they are, but for what names it."""
    if isinstance(value, str):
        said.append(value)
    elif depth < _DEEPEST and isinstance(value, dict):
        for key, held in value.items():
            if key not in ("role", "type", "id", "signature"):
                _strings(held, said, depth + 1)
    elif depth < _DEEPEST and isinstance(value, list):
        for held in value:
            _strings(held, said, depth + 1)


def _later(counts: dict[str, int], told: object) -> None:
    """Take in later counts of one message.

    Those of the input go together: cached tokens may only now be told apart from the others. All
    zero, they are placeholders.
    """
    told = inside(told)
    found = {name: n for name in _INPUT_COUNTS if (n := count(told.get(name))) is not None}
    if any(found.values()):
        counts.update(found)
    if (osl := count(told.get("output_tokens"))) is not None:
        counts["output_tokens"] = osl
