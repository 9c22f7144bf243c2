"""OpenTelemetry spans of LLM calls (OTLP JSON, or flat), and what their tree tells.

A span has a call's times and token counts; the spans above it tell its session and agent, and
whether it is a part of another span's call. Pure.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import PurePath
from typing import Any

from agentreplay.trace.fields import count, identity, inside, number, objects, unix_s
from agentreplay.trace.formats.bodies import Exchange, message_pieces
from agentreplay.trace.lenient import unwrapped
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import Reading

CALL, AGENT, TOOL, OTHER = range(4)
_KINDS = dict.fromkeys(
    "chat completion generate_content generation llm llm_call text_completion".split(), CALL
) | {"agent": AGENT, "invoke_agent": AGENT, "tool": TOOL, "execute_tool": TOOL}

# The names of attributes, the current one first: they drifted, and libraries have their own.
_NAMES = {
    "kind": "gen_ai.operation.name llm.request.type openinference.span.kind traceloop.span.kind "
    "langfuse.observation.type",
    "model": "gen_ai.request.model gen_ai.response.model llm.model_name "
    "langfuse.observation.model.name",
    "provider": "gen_ai.provider.name gen_ai.system llm.vendor",
    "agent": "gen_ai.agent.id gen_ai.agent.name",
    "input": "gen_ai.usage.input_tokens gen_ai.usage.prompt_tokens llm.usage.prompt_tokens "
    "llm.token_count.prompt",
    "output": "gen_ai.usage.output_tokens gen_ai.usage.completion_tokens "
    "llm.usage.completion_tokens llm.token_count.completion",
    "read": "gen_ai.usage.cache_read.input_tokens gen_ai.usage.cache_read_input_tokens "
    "llm.usage.cache_read_input_tokens llm.token_count.prompt_details.cache_read",
    "written": "gen_ai.usage.cache_creation.input_tokens "
    "gen_ai.usage.cache_creation_input_tokens llm.usage.cache_creation_input_tokens "
    "llm.token_count.prompt_details.cache_write",
    "counts": "langfuse.observation.usage_details",
    "messages": "gen_ai.input.messages langfuse.observation.input",
    "system": "gen_ai.system_instructions",
    "tools": "gen_ai.tool.definitions",
    "answer": "gen_ai.output.text gen_ai.output.messages gen_ai.completion.0.content "
    "langfuse.observation.output",
}
_FACTS = {what: names.split() for what, names in _NAMES.items()}
_SESSION = (
    "gen_ai.conversation.id session.id langfuse.session.id "
    "traceloop.association.properties.session_id exgentic.session.id"
).split()
_NUMBERED = (("gen_ai.prompt.", ""), ("llm.input_messages.", "message."))
_SCALARS = frozenset("stringvalue intvalue doublevalue boolvalue bytesvalue".split())
_DEEPEST = 32

Key = tuple[int, int]
"""Trace and span."""

Name = tuple[int, str, int]
"""A session's: its rank among the attributes that have it, the name, the record it is valid in."""


@dataclass(slots=True)
class Call:
    """One LLM call as a span or a log event has it.

    `told` has counts as recorded, `written` the tokens written to the cache. In one `dialect`,
    cached tokens are always part of the input or never are. `agent` is a role ("main", "agent" or
    "helper", or "service" where only that is known) and what tells apart those of one role.
    """

    told: Exchange
    written: int
    start_s: float | None
    end_s: float | None
    dialect: int
    agent: tuple[str, int]
    source: str
    notes: Notes
    logged: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """A span in its tree; log events are spans without a parent, 0. `agent` names an agent's."""

    parent: int
    kind: int
    session: Name
    agent: int | None = None
    call: Call | None = None
    ended: bool = True


@dataclass(slots=True)
class Part:
    """What is kept of one file: spans, and when sessions of Codex sent requests.

    `textual` says that it has calls with texts and without lengths.
    """

    path: PurePath
    reading: Reading
    notes: Notes
    spans: dict[Key, Span] = field(default_factory=dict)
    sent_s: dict[str, list[float]] = field(default_factory=dict)
    textual: bool = False

    def add(self, key: Key, span: Span, line: int) -> None:
        """Keep a span, once."""
        if keep(self.spans, key, span):
            self.notes.add("records exported twice, counted once", line)


def keep(spans: dict[Key, Span], key: Key, span: Span) -> bool:
    """Keep the fuller of two copies of a span; whether there were two."""
    known = spans.get(key)
    full = span.call is not None, span.ended
    if known is None or full > (known.call is not None, known.ended):
        spans[key] = span
    return known is not None


# --- One span -------------------------------------------------------------------------------------


def add_span(
    span: Mapping[str, Any],
    line: int,
    part: Part,
    library: str = "",
    service: str | None = None,
    record: tuple[str, int] | None = None,
) -> None:
    """Add a span to a part.

    Args:
        span: As it is recorded.
        line: Of its record.
        part: What it is added to.
        library: What made it.
        service: The service that it was made in.
        record: Of a flat record, its name, and the number of what its names are valid in.
    """
    named = part.reading.named
    told = _facts(span)
    kind = _kind(told.get("kind", span.get("type")), told)
    ids = inside(span, "context") or span
    trace = _hex(text(ids, "traceId", "trace_id")) or f"{part.path}:{line}"
    span_id = _hex(text(ids, "spanId", "span_id")) or f"{line} {len(part.spans)}"
    parent = _hex(text(span, "parentSpanId", "parent_span_id", "parent_id"))
    session, valid_in = record or (trace, 0)
    rank, session = told.get("session", (len(_SESSION), session))
    agent = identity(told.get("agent")) or text(span, "name")
    call = None
    if kind == CALL:
        call = _call(span, told | {"library": library, "service": service or ""}, line, part)
    elif kind == OTHER and "input" in told:
        part.notes.add("spans of other operations with tokens, left out", line)
    kept = Span(
        parent=named(parent) if parent else 0,
        kind=kind,
        session=(rank, session, valid_in),
        agent=named(agent) if kind == AGENT and agent else None,
        call=call,
        ended=_stamp(span, "end") is not None,
    )
    part.add((named(f"{valid_in} {trace}"), named(span_id)), kept, line)


def _facts(span: Mapping[str, Any]) -> dict[str, Any]:
    """What a span's attributes say, by the names in `_NAMES`; the session with its rank."""
    given = attributes(span)
    told = {what: first(given, *names) for what, names in _FACTS.items()}
    if told["messages"] is None:
        told["messages"] = _numbered(given)
    for event in members(span, "events"):
        if told["messages"] is None:
            told["messages"] = first(attributes(event), "gen_ai.prompt", *_FACTS["messages"])
    named = ((rank, text(given, name)) for rank, name in enumerate(_SESSION))
    told["session"] = next((each for each in named if each[1]), None)
    return {what: found for what, found in told.items() if found is not None}


def _call(span: Mapping[str, Any], told: Mapping[str, Any], line: int, part: Part) -> Call | None:
    start_s, notes = _stamp(span, "start"), part.notes
    if start_s is None:
        notes.add("calls without a time, left out", line)
        return None
    isl, osl, read, written = (count(told.get(n)) for n in ("input", "output", "read", "written"))
    if isl is None and osl is None:
        counts = inside(unwrapped(told.get("counts")))
        isl, osl = count(counts.get("input")), count(counts.get("output"))
        read = count(first(counts, "cache_read_input_tokens", "input_cached_tokens"))
        written = count(counts.get("cache_creation_input_tokens"))
    names, chars, system_pieces = _pieces(told, line, part)
    status = span.get("status")
    code = status.get("code", status.get("status_code")) if isinstance(status, dict) else status
    failed = code in (2, "2", "ERROR", "STATUS_CODE_ERROR")
    if chars and isl is None and not failed:
        part.textual = True
        if ratio := part.reading.chars_per_token:
            isl, read, written = max(1, ceil(chars[-1] / ratio)), None, None
            answer = unwrapped(told.get("answer")) or told.get("answer")
            said = message_pieces(answer, None, None, part.reading)[1]
            osl = ceil((said[-1] if said else 0) / ratio) if osl is None else osl
    if not (isl or read or written) or osl is None:
        notes.add(f"{'failed calls' if failed else 'calls'} without token counts, left out", line)
        return None
    if not osl:
        notes.add("calls without output, sent with one token", line)
    model, named = identity(told.get("model")), part.reading.named
    return Call(
        told=Exchange(
            isl or 0, osl, read, model, names=names, chars=chars, system_pieces=system_pieces
        ),
        written=written or 0,
        start_s=start_s,
        end_s=_stamp(span, "end"),
        dialect=named(f"{told['library']}\n{told.get('provider')}\n{model}"),
        agent=("service", named(told["service"])),
        source=f"{part.path}:{line}",
        notes=notes,
    )


def _stamp(span: Mapping[str, Any], which: str) -> float | None:
    read = nanoseconds(span, f"{which}TimeUnixNano", f"{which}_time_unix_nano")
    return unix_s(span.get(f"{which}_time")) if read is None else read


def _hex(name: str | None) -> str | None:
    """A span's or trace's id in hex; it may be written in base64."""
    if name is not None and name.endswith("=") and len(name) in (12, 24):
        try:
            return b64decode(name, validate=True).hex()
        except ValueError:
            pass
    return None if name is None else name.removeprefix("0x")


def _kind(kind: object, told: Mapping[str, Any]) -> int:
    if kind is None:  # a server's own spans name no operation
        return CALL if "input" in told and "output" in told else OTHER
    return _KINDS.get(kind.lower(), OTHER) if isinstance(kind, str) else OTHER


def _pieces(
    told: Mapping[str, Any], line: int, part: Part
) -> tuple[Sequence[int], Sequence[int], int]:
    """The pieces of the prompt, where it was captured."""
    messages, tools = unwrapped(told.get("messages")), unwrapped(told.get("tools"))
    if isinstance(messages, dict):
        tools, messages = tools or messages.get("tools"), messages.get("messages")
    if isinstance(messages, list) and messages:
        return message_pieces(messages, tools, unwrapped(told.get("system")), part.reading)
    if "messages" in told:
        part.notes.add("prompts that are cut or no messages, prefix not known", line)
    return (), (), 0


def _numbered(given: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Messages that were recorded as one attribute a field."""
    for prefix, inner in _NUMBERED:
        if f"{prefix}0.{inner}role" in given:
            messages: dict[int, dict[str, Any]] = {}
            for name, value in given.items():
                index, _, rest = name.removeprefix(prefix).partition(".")
                if name.startswith(prefix) and index.isdecimal() and len(index) < 9:
                    messages.setdefault(int(index), {})[rest.removeprefix(inner)] = plain(value)
            return [messages[index] for index in sorted(messages)]
    return None


# --- The tree -------------------------------------------------------------------------------------


def calls(spans: Mapping[Key, Span]) -> Iterator[tuple[tuple[str, int], Call]]:
    """The calls with what names their sessions; of nested spans of one call the innermost.

    Sets their agents where agents' spans tell them.
    """
    placed = [(key, span.call, *_place(spans, key)) for key, span in spans.items() if span.call]
    around = {outer for *_, outer in placed}
    for key, call, (_, name, valid_in), agent, _ in placed:
        if key in around:
            call.notes.add("spans around another span of the same call, left out")
            continue
        if agent is not None:
            call.agent = ("agent" if agent else "main", agent)
        yield (name, valid_in), call


def _place(spans: Mapping[Key, Span], key: Key) -> tuple[Name, int | None, Key | None]:
    """The session of a call's span, its agent, and the call's span around it.

    The agent is None outside any agent's span, 0 in the main agent's, else the subagent's span.
    Parents that are missing, or in a circle, say nothing.
    """
    path: dict[Key, Span] = {}
    above = key
    while above in spans and above not in path:
        span = path[above] = spans[above]
        above = (key[0], span.parent)
    agent = name = inner = outer = None
    in_tool = False
    for at, span in reversed(path.items()):
        if span.kind == AGENT:
            # A framework may have a span around that of its own agent.
            if agent is None or in_tool or span.agent != name:
                agent = 0 if agent is None and not in_tool else at[1]
            name, in_tool, inner = span.agent, False, None
        elif span.kind == TOOL:
            # What a tool that an agent runs asks a model is no part of the agent's conversation.
            agent = None if agent is None else at[1]
            name, in_tool, inner = None, True, None
        elif span.call is not None:
            inner, outer = at, inner
    sessions = (span.session for span in reversed(path.values()))
    return min(sessions, key=lambda name: name[0]), agent, outer


# --- Values ---------------------------------------------------------------------------------------


def members(holder: Mapping[str, Any], *names: str) -> list[dict[str, Any]]:
    """The objects in the lists under any of these names."""
    return [item for name in names for item in objects(holder.get(name))]


def attributes(holder: Mapping[str, Any]) -> Mapping[str, Any]:
    """Attributes by name, their values as they stand."""
    given = holder.get("attributes")
    if isinstance(given, list):
        named = (item for item in given if isinstance(item, dict))
        return {
            item["key"]: item.get("value") for item in named if isinstance(item.get("key"), str)
        }
    return inside(given)


def plain(value: Any, depth: int = 0) -> Any:
    """An attribute's value without the wrapping that names its type."""
    if isinstance(value, dict) and depth < _DEEPEST:
        for name, inner in value.items():
            kind = name.replace("_", "").lower()
            if kind in _SCALARS:
                return inner
            if kind == "arrayvalue":
                items = inside(inner).get("values")
                return [plain(item, depth + 1) for item in items] if isinstance(items, list) else []
            if kind == "kvlistvalue":
                held = attributes({"attributes": inside(inner).get("values")})
                return {key: plain(item, depth + 1) for key, item in held.items()}
    return value


def first(given: Mapping[str, Any], *names: str) -> Any:
    """The first of these attributes that has a value."""
    for name in names:
        value = given.get(name)
        if value is not None and (found := plain(value)) not in (None, ""):
            return found
    return None


def text(given: Mapping[str, Any], *names: str) -> str | None:
    """Likewise, as text."""
    return identity(first(given, *names))


def nanoseconds(holder: Mapping[str, Any], *names: str) -> float | None:
    """The first of these stamps, as Unix seconds; zero is none."""
    for name in names:
        read = number(holder.get(name))
        if read is not None and read > 0:
            return read / 1e9
    return None
