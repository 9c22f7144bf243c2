"""Requests and answers of the three LLM APIs, as proxies and loggers keep them: shared by readers.

Pure: decoded bodies in, numbers out. A prompt is told by the keyed names of its pieces (tools,
parts of the system prompt, messages), each standing for all before it too; no text, header or
recorded id is kept.
"""

from __future__ import annotations

import json
import zlib
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import ceil
from pathlib import PurePath
from typing import Any

import orjson

from agentreplay.errors import TraceError
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import Draft, Reading, Recorded
from agentreplay.trace.stamps import count
from agentreplay.trace.structure import ROUNDING_S

RETRY_S = 60.0
"""A request that is made again comes this soon."""

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
_COUNTS = (
    "output_tokens",
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
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


@dataclass(frozen=True, slots=True)
class Logged:
    """A call that is to find its session.

    Attributes:
        call: The call; its `prompt` are the names of its pieces. `sessions` sets its `agent`.
        session: What the log says it belongs to, as anything that tells sessions apart.
        agent: Likewise the agent; None for the main one, or where unknown.
        helper: As `Exchange.helper`.
        retry: As `Exchange.retry`.
    """

    call: Recorded
    session: str | None = None
    agent: str | None = None
    helper: bool = False
    retry: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """An exchange with its stamps (Unix time) and the place where it was read."""

    exchange: Exchange
    start_s: float | None
    end_s: float | None
    source: str


@dataclass(frozen=True, slots=True)
class Part:
    """What is kept of one file of a log of bodies."""

    entries: Sequence[Entry]
    notes: Notes


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
        model=_text(request.get("model")),
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
    needed = "output" in response or osl is None
    return replace(
        told,
        isl=isl,
        osl=osl,
        cached=cached,
        model=told.model or _text(response.get("model")),
        response_id=_named(response.get("id"), reading),
        answer_chars=_answer_chars(response) if needed else 0,
        failed=bool(response.get("error")) or response.get("status") == "failed",
        outside=outside,
    )


def usage(body: object) -> tuple[int | None, int | None, int | None]:
    """Input tokens with the cached ones, output tokens and cached tokens.

    *body* is a usage object of any of the APIs, or an answer that holds one. What is absent is
    None. The Messages API counts cached tokens beside the input; there, and where there are more
    of them than input, they are added.
    """
    return _usage(body)[:3]


def _usage(body: object) -> tuple[int | None, int | None, int | None, bool]:
    """As `usage`, and whether cached tokens were added against the API's convention."""
    if not isinstance(body, dict):
        return None, None, None, False
    held = body.get("usage")
    if isinstance(held, dict):
        body = held
    osl = _first(body, "completion_tokens", "output_tokens")
    read, written = (count(body.get(f"cache_{how}_input_tokens")) for how in ("read", "creation"))
    details = body.get("prompt_tokens_details") or body.get("input_tokens_details")
    inside = count(details.get("cached_tokens")) if isinstance(details, dict) else None
    if inside is None:
        inside = _first(body, "cached_tokens", "prompt_cache_hit_tokens")
    total = count(body.get("prompt_tokens"))
    if total is None:
        total = count(body.get("input_tokens"))
        if total is not None and inside is None and (read is not None or written is not None):
            return total + (read or 0) + (written or 0), osl, read, False
    cached = read if inside is None else inside
    if total is None or cached is None:
        return total, osl, None, False
    if cached > total:
        return total + cached + (written or 0), osl, cached, True
    return total, osl, cached, False


def decoded(text: str | bytes) -> Any:
    """A body's JSON, or the answer that its event stream makes; None where it is neither."""
    if isinstance(text, str):
        text = text.encode(errors="replace")
    text = text.removeprefix(b"\xef\xbb\xbf").strip()
    if text[:1] not in (b"{", b"["):
        return sse_body(text)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:  # lone surrogates and NaN, which Python writes
        return json.loads(text.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None


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
            counts.pop(_COUNTS[0], None)
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


def histories(exchanges: Sequence[Exchange], reading: Reading) -> list[Exchange]:
    """The exchanges with the history that `previous` hides before their own pieces.

    An exchange of such a chain without a session gets its chain's.
    """
    places = {each.response_id: i for i, each in enumerate(exchanges) if each.response_id}
    whole: list[Exchange | None] = [None] * len(exchanges)
    begins = {each.previous for each in exchanges if each.previous}
    for i in range(len(exchanges)):
        chain: dict[int, None] = {}  # as a set that keeps its order
        at: int | None = i
        while at is not None and whole[at] is None and at not in chain:
            chain[at] = None
            at = places.get(exchanges[at].previous or "")
        before = whole[at] if at is not None else None
        for j in reversed(chain):
            own = exchanges[j]
            if before is not None:
                own = _after(own, before, reading)
            elif own.session is None and own.response_id in begins:
                own = replace(own, session=own.response_id)
            whole[j] = before = own
    return [each for each in whole if each is not None]


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


def sessions(calls: Sequence[Logged], notes: Notes | None = None) -> list[list[Recorded]]:
    """Put the calls of a set into sessions, in order of their starts, and label their agents.

    A call belongs to the session that it names, where another names it too, else to that of the
    call whose prompt it continues. Of a request made again only the last is kept.
    """
    order = sorted(calls, key=lambda each: (each.call.start_s is None, each.call.start_s or 0.0))
    order = _once(order, notes)
    named = Counter(each.session for each in order)
    prompts = _Prompts()
    groups: list[list[tuple[Logged, Recorded | None]]] = []
    by_name: dict[str, int] = {}
    places: dict[Recorded, int] = {}
    for each in order:
        before = prompts.continued_by(each.call)
        if each.session is not None and named[each.session] > 1:
            place = by_name.setdefault(each.session, len(groups))
        elif before is not None:
            place = places[before]
        else:
            place = len(groups)
        if place == len(groups):
            groups.append([])
        inside = before is not None and places[before] == place
        groups[place].append((each, before if inside else None))
        places[each.call] = place
        prompts.add(each.call)
    for group in groups:
        _label(group)
    return [[each.call for each, _ in group] for group in groups]


def entry(
    told: Exchange | None,
    status: int | None,
    start_s: float | None,
    end_s: float | None,
    place: tuple[PurePath, int],
    notes: Notes,
) -> Entry | None:
    """The entry of a request to an LLM path, which began at *place* (file and number in it).

    None, with a note, where it has no readable body or failed.
    """
    path, number = place
    if told is None:
        notes.add("LLM requests without a readable body, left out", number)
        return None
    if told.failed or status is None or not 200 <= status < 300:
        notes.add("failed calls, left out", number)
        return None
    if start_s is None:
        notes.add("calls without a time, left out", number)
        return None
    return Entry(told, start_s, end_s, f"{path}:{number}")


def part(
    entries: Sequence[Entry], path: PurePath, kind: str, reading: Reading, notes: Notes
) -> Part:
    """The part of a file of format *kind*.

    Raises:
        TraceError: no call has lengths, and the user gives none for characters.
    """
    with_lengths = any(each.exchange.isl and each.exchange.osl is not None for each in entries)
    if entries and not with_lengths and reading.chars_per_token is None:
        raise TraceError(
            f"{path}: {kind} without usage records no lengths; --chars-per-token supplies them"
        )
    return Part(entries, notes)


def drafts(parts: Sequence[Part], reading: Reading) -> list[Draft]:
    """The sessions of all files of one log format; a call that two files hold counts once."""
    entries: list[tuple[Entry, Notes]] = []
    seen: set[object] = set()
    for part in parts:
        for entry in part.entries:
            told = entry.exchange
            key = (told.response_id, entry.start_s, told.model, *told.names[-1:])
            if key in seen:
                part.notes.add("calls that were read before, left out")
                continue
            seen.add(key)
            entries.append((entry, part.notes))
    calls: list[Logged] = []
    origins: dict[Recorded, tuple[str, Notes]] = {}
    whole = histories([entry.exchange for entry, _ in entries], reading)
    for told, (entry, notes) in zip(whole, entries, strict=True):
        call = recorded(told, entry.start_s, entry.end_s, reading, notes)
        if call is None:
            notes.add("calls without usage, left out")
            continue
        origins[call] = entry.source, notes
        calls.append(Logged(call, told.session, told.agent, told.helper, told.retry))
    made = []
    for group in sessions(calls, parts[0].notes if parts else None):
        source, notes = origins[group[0]]
        made.append(Draft(source, source, group, dated=True, notes=notes))
    return made


# --- Bodies ---------------------------------------------------------------------------------------


def _events(text: str | bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects of an event stream; an event that was cut off is none."""
    data = text.encode(errors="replace") if isinstance(text, str) else text
    data = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    held: list[bytes] = []
    for line in (*data.split(b"\n"), b""):
        if line.startswith(b"data:"):
            held.append(line[5:])
        elif not line and held:
            event = _event(b"\n".join(held))
            # Where the log lost the blank lines, each line is an event of its own.
            found = [event] if event or len(held) == 1 else map(_event, held)
            held = []
            yield from (each for each in found if each is not None)


def _event(data: bytes) -> dict[str, Any] | None:
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return event if isinstance(event, dict) else None


def _strings(value: object, said: list[str], depth: int = 0) -> None:
    """Add the texts that a part of a stream holds, wherever they are, but for what names it."""
    if isinstance(value, str):
        said.append(value)
    elif isinstance(value, dict) and depth < _DEEPEST:
        for key, held in value.items():
            if key not in ("role", "type", "id", "signature"):
                _strings(held, said, depth + 1)
    elif isinstance(value, list) and depth < _DEEPEST:
        for held in value:
            _strings(held, said, depth + 1)


def _later(counts: dict[str, int], told: object) -> None:
    """Take in later counts of one message.

    Those of the input go together: cached tokens may only now be told apart from the others. All
    zero, they are placeholders.
    """
    if isinstance(told, dict):
        found = {key: number for key in _COUNTS if (number := count(told.get(key))) is not None}
        if not any(found.get(key) for key in _COUNTS[1:]):
            found = {key: number for key, number in found.items() if key == _COUNTS[0]}
        counts.update(found)


def _answer_chars(answer: Mapping[str, Any]) -> int:
    said: list[str] = []
    for key in ("choices", "content", "output"):
        _strings(answer.get(key), said)
    return sum(map(len, said))


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


def _hints(request: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[object, object]:
    """The session and the agent that a request names."""
    session: object = next((headers[name] for name in _SESSION_HEADERS if headers.get(name)), None)
    thread = headers.get(_THREAD_HEADER)
    agent = headers.get(_AGENT_HEADER) or (thread if thread != session else None)
    if session is not None:
        return session, agent
    metadata = request.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    conversation = request.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    for session in (
        _of_user(metadata.get("user_id")),
        _of_user(request.get("user")),
        conversation,
        request.get("session_id"),
        metadata.get("session_id"),
        request.get("litellm_session_id"),
        request.get("prompt_cache_key"),
    ):
        if _text(session):
            return session, agent
    return None, agent


def _of_user(user: object) -> object:
    """The session in the name that Claude Code gives its user; other names tell none."""
    if not isinstance(user, str):
        return None
    if user.startswith("{"):
        try:
            return orjson.loads(user).get("session_id")
        except orjson.JSONDecodeError:
            return None
    return user.rpartition("_session_")[2] if "_session_" in user else None


def _named(recorded: object, reading: Reading) -> str | None:
    text = _text(recorded)
    return f"{reading.name(text.encode(errors='replace')):x}" if text else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _first(body: Mapping[str, Any], *keys: str) -> int | None:
    return next((each for key in keys if (each := count(body.get(key))) is not None), None)


# --- Pieces ---------------------------------------------------------------------------------------


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
    if isinstance(value, str):
        return value, len(value)
    if depth < _DEEPEST:
        if isinstance(value, dict):
            return _clean_fields(value, depth)
        if isinstance(value, list):
            cleaned = [_clean(each, depth + 1) for each in value]
            weight = sum(each for _, each in cleaned)
            kept = [each for each, _ in cleaned]
            if len(kept) == 1 and isinstance(only := kept[0], dict) and len(only) == 2:
                return _only_text(only) or kept, weight
            return kept, weight
    return value, 0 if value is None else len(_bytes(value))


def _clean_fields(fields: Mapping[str, Any], depth: int) -> tuple[dict[str, Any], int]:
    kept: dict[str, Any] = {}
    weight = 0
    for key, value in fields.items():
        if value is None:
            continue
        if key in _DROPPED and fields.get("type") != "item_reference":
            continue
        if key in _NESTED:
            kept[key], more = _clean(value, depth + 1)
            weight += more
            continue
        kept[key] = value
        if key in _MEDIA:
            weight += IMAGE_CHARS
        else:
            weight += len(value) if isinstance(value, str) else len(_bytes(value))
    return kept, weight


def _bytes(value: object) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # lone surrogates, integers beyond 64 bits, or nested very deeply
        try:
            return json.dumps(value, sort_keys=True).encode()
        except RecursionError:
            return b""


def _after(own: Exchange, before: Exchange, reading: Reading) -> Exchange:
    """The exchange with the prompt and the answer of *before* after its own system pieces."""
    k = own.system_pieces
    session = own.session or before.session
    if own.names[:k] != before.names[: before.system_pieces]:
        return replace(own, session=session)
    names, chars = array("q", before.names), array("q", before.chars)
    name = names[-1] if names else 0
    length = (chars[-1] if chars else 0) + before.answer_chars
    system_chars = own.chars[k - 1] if k else 0
    for piece, end in zip(own.names[k:], own.chars[k:], strict=True):
        name = reading.name(piece.to_bytes(8, "little"), name)
        names.append(name)
        chars.append(length + end - system_chars)
    return replace(own, session=session, names=names, chars=chars)


# --- Sessions -------------------------------------------------------------------------------------


class _Prompts:
    """The prompts so far, to be found by what continues them."""

    LOOKED_AT = 64  # of calls with the same prompt, so that thousands of them cost little

    def __init__(self) -> None:
        self._whole: dict[int, list[Recorded]] = {}
        self._but_last: dict[int, list[Recorded]] = {}
        self._continued: set[Recorded] = set()

    def add(self, call: Recorded) -> None:
        if call.prompt:
            self._whole.setdefault(call.prompt[-1], []).append(call)
        # A client may rewrite a prompt's last message in the next call. What two messages and
        # the one after them have in common is no chance.
        if len(call.prompt) > 2 and _system_pieces(call) + 2 < len(call.prompt):
            self._but_last.setdefault(call.prompt[-2], []).append(call)

    def continued_by(self, call: Recorded) -> Recorded | None:
        """The call with the longest prompt that is the beginning of this one's."""
        for k in range(len(call.prompt) - 2, -1, -1):
            name = call.prompt[k]
            for table, longest in ((self._whole, k + 1), (self._but_last, k + 2)):
                found = table.get(name)
                if not found or longest >= len(call.prompt):
                    continue
                ended = [each for each in found[-self.LOOKED_AT :] if _before(each, call)]
                if ended:
                    best = max(ended, key=lambda each: self._rank(each, call))
                    self._continued.add(best)
                    return best
        return None

    def _rank(self, before: Recorded, call: Recorded) -> tuple[bool, bool, float]:
        return before.model == call.model, before not in self._continued, before.start_s or 0.0


def _before(before: Recorded, call: Recorded) -> bool:
    ended = before.start_s if before.end_s is None else before.end_s
    return ended is None or call.start_s is None or ended <= call.start_s + ROUNDING_S


def _system_pieces(call: Recorded) -> int:
    return bisect_right(call.ends, call.system) if call.system else 0


def _once(calls: Iterable[Logged], notes: Notes | None) -> list[Logged]:
    """The calls without those that were made again; they are in order of their starts."""
    kept: dict[Recorded, Logged] = {}
    latest: dict[tuple[int, str | None], Recorded] = {}
    for each in calls:
        call = each.call
        if call.prompt:
            body = call.prompt[-1], call.model
            before = latest.get(body)
            if each.retry and before is not None and _soon(before, call):
                kept.pop(before, None)
                if notes is not None:
                    notes.add("calls that were made again, left out")
            latest[body] = call
        kept[call] = each
    return list(kept.values())


def _soon(before: Recorded, call: Recorded) -> bool:
    ended = before.start_s if before.end_s is None else before.end_s
    return ended is not None and call.start_s is not None and call.start_s - ended <= RETRY_S


def _label(group: Sequence[tuple[Logged, Recorded | None]]) -> None:
    """Label the agents of a session: by what the log names, what a prompt continues, or its
    system prompt, which is the main agent's or another's."""
    helpers = not all(each.helper for each, _ in group)
    agents: dict[object, str] = {}
    helped = 0
    main: int | None = None
    for each, before in group:
        call = each.call
        if each.agent is not None:
            call.agent = agents.setdefault(each.agent, f"agent {len(agents) + 1}")
        elif before is not None:
            call.agent = before.agent
        elif helpers and each.helper:
            helped += 1
            call.agent = f"helper {helped}"
        else:
            pieces = _system_pieces(call)
            system = call.prompt[pieces - 1] if pieces else 0
            if main is None:
                main = system
            other = system != main
            call.agent = agents.setdefault(system, f"agent {len(agents) + 1}") if other else ""
