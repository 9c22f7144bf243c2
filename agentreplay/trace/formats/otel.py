"""OpenTelemetry: spans of LLM calls (OTLP JSON, or flat), and the telemetry logs of coding agents.

A span has a call's times and token counts; the tree of spans tells subagents, and what was
recorded twice. A log event stands at the end of its call and says how long it took. Pure.
"""

from __future__ import annotations

from base64 import b64decode
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from pathlib import PurePath
from typing import Any

import orjson

from agentreplay.errors import TraceError
from agentreplay.trace.fields import count, number, unix_s
from agentreplay.trace.formats import bodies
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import BLOCK_TOKENS, Draft, Reading, continue_by_counts
from agentreplay.trace.structure import ROUNDING_S, median_tokens_s

_CALL, _AGENT, _TOOL, _OTHER = range(4)
_KINDS = {
    "chat": _CALL,
    "completion": _CALL,
    "generate_content": _CALL,
    "generation": _CALL,
    "llm": _CALL,
    "llm_call": _CALL,
    "text_completion": _CALL,
    "agent": _AGENT,
    "invoke_agent": _AGENT,
    "tool": _TOOL,
    "execute_tool": _TOOL,
}

# The names of attributes, the current one first: they drifted, and libraries have their own.
_KIND = (
    "gen_ai.operation.name llm.request.type openinference.span.kind traceloop.span.kind "
    "langfuse.observation.type"
).split()
_SESSION = (
    "gen_ai.conversation.id session.id langfuse.session.id "
    "traceloop.association.properties.session_id exgentic.session.id"
).split()
_LOG_SESSION = ("session.id", "conversation.id", "prompt.id")
_MODEL = (
    "gen_ai.request.model gen_ai.response.model llm.model_name langfuse.observation.model.name"
).split()
_PROVIDER = ("gen_ai.provider.name", "gen_ai.system", "llm.vendor")
_AGENT_NAME = ("gen_ai.agent.id", "gen_ai.agent.name")
_INPUT = (
    "gen_ai.usage.input_tokens gen_ai.usage.prompt_tokens llm.usage.prompt_tokens "
    "llm.token_count.prompt"
).split()
_OUTPUT = (
    "gen_ai.usage.output_tokens gen_ai.usage.completion_tokens llm.usage.completion_tokens "
    "llm.token_count.completion"
).split()
_READ = (
    "gen_ai.usage.cache_read.input_tokens gen_ai.usage.cache_read_input_tokens "
    "llm.usage.cache_read_input_tokens llm.token_count.prompt_details.cache_read"
).split()
_CREATED = (
    "gen_ai.usage.cache_creation.input_tokens gen_ai.usage.cache_creation_input_tokens "
    "llm.usage.cache_creation_input_tokens llm.token_count.prompt_details.cache_write"
).split()
_MESSAGES = ("gen_ai.input.messages", "langfuse.observation.input")
_NUMBERED = (("gen_ai.prompt.", ""), ("llm.input_messages.", "message."))
_ANSWER = (
    "gen_ai.output.text gen_ai.output.messages gen_ai.completion.0.content "
    "langfuse.observation.output"
).split()

_RESOURCES = ("resourceSpans", "resource_spans", "batches", "resourceLogs", "resource_logs")
_SCOPES = (
    "scopeSpans scope_spans instrumentationLibrarySpans instrumentation_library_spans "
    "scopeLogs scope_logs"
).split()
_VALUES = frozenset(
    "stringValue intValue doubleValue boolValue bytesValue "
    "string_value int_value double_value bool_value bytes_value".split()
)
_DEEPEST = 32
_BASE64_SPAN, _BASE64_TRACE = 12, 24  # characters

_CLAUDE, _CODEX, _GEMINI, _SENT, _ERROR = "claude", "codex", "gemini", "sent", "error"
_EVENT_NAME = ("body", "eventName", "event_name")
_EVENTS = {
    "api_request": _CLAUDE,
    "claude_code.api_request": _CLAUDE,
    "codex.sse_event": _CODEX,
    "gemini_cli.api_response": _GEMINI,
    "codex.api_request": _SENT,
    "api_error": _ERROR,
    "claude_code.api_error": _ERROR,
    "gemini_cli.api_error": _ERROR,
}

_Key = tuple[int, int]  # trace, span
_Name = tuple[int, str, int]  # where it was found, the session's name, the record it is valid in
_Prompt = tuple[Sequence[int], Sequence[int], int]  # as `bodies.message_pieces` makes it
_NO_PROMPT: _Prompt = ((), (), 0)


@dataclass(slots=True)
class _Call:
    """One LLM call as a span or a log event has it; counts as recorded.

    `dialect` is what recorded it: in one, cached tokens are always part of `input` or never are.
    `kind` ("", "agent" or "helper") and `who` tell agents apart where no agent's span does.
    """

    source: str
    notes: Notes
    start_s: float | None
    end_s: float | None
    input: int
    osl: int
    read: int | None
    created: int
    model: str | None
    dialect: tuple[str, ...]
    kind: str = ""
    who: int | None = None
    prompt: _Prompt = _NO_PROMPT


@dataclass(frozen=True, slots=True)
class _Span:
    """A span in its tree; log events are spans without a parent."""

    parent: int | None
    kind: int
    session: _Name
    agent: int | None = None
    call: _Call | None = None
    ended: bool = True


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a span and those above it say.

    `agent` is None outside any agent's span, 0 in the main agent's, else the subagent's span.
    `call` is the nearest span with usage, which the span is or is part of; `outer` the next one
    around it.
    """

    session: _Name | None = None
    agent: int | None = None
    name: int | None = None
    in_tool: bool = False
    call: _Key | None = None
    outer: _Key | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """What is kept of one file: spans by their ids, and when sessions of Codex sent requests."""

    spans: dict[_Key, _Span] = field(default_factory=dict)
    sent_s: dict[str, list[float]] = field(default_factory=dict)


def recognises(record: object) -> bool:
    """Whether a decoded JSON value is an export of spans or of log records."""
    if not isinstance(record, dict):
        return False
    for name in _RESOURCES:
        items = record.get(name)
        if isinstance(items, list) and (
            name != "batches"
            or any(isinstance(item, dict) and not item.keys().isdisjoint(_SCOPES) for item in items)
        ):
            return True
    spans = record.get("spans")
    if isinstance(spans, list):
        return any(_is_flat(span) for span in spans[:20])
    return isinstance(record.get("context"), dict) and _is_flat(record)


def read(
    records: Iterable[tuple[int, Any]], path: PurePath, reading: Reading, notes: Notes
) -> Part:
    """What is kept of one file.

    Raises:
        TraceError: the file's calls hold texts and no token counts, and no length of a token is
            given.
    """
    file = _File(path, reading, notes)
    for line, record in records:
        if not recognises(record):
            notes.add("lines that are no exports of spans or logs, left out", line)
        elif isinstance(record.get("spans"), list):
            file.flat(line, record)
        elif isinstance(record.get("context"), dict):
            file.console(line, record)
        else:
            file.export(line, record)
    if file.textual and not file.measured:
        raise TraceError(f"{path}: its spans record no lengths; --chars-per-token supplies them")
    return file.part


def drafts(parts: Sequence[Part], reading: Reading) -> list[Draft]:
    """The sessions of all files."""
    spans: dict[_Key, _Span] = {}
    sent_s: dict[str, list[float]] = {}
    for part in parts:
        for key, span in part.spans.items():
            if _keep(spans, key, span) and span.call is not None:
                span.call.notes.add("calls exported twice, counted once")
        for session, stamps in part.sent_s.items():
            sent_s.setdefault(session, []).extend(stamps)
    scopes = _scopes(spans)
    outer = {scopes[key].outer for key, span in spans.items() if span.call is not None}
    sessions: dict[tuple[str, int], list[tuple[_Call, _Scope]]] = {}
    for key, span in spans.items():
        if span.call is not None and key in outer:
            span.call.notes.add("spans around another span of the same call, left out")
        elif span.call is not None:
            _, name, valid_in = scopes[key].session or span.session
            sessions.setdefault((name, valid_in), []).append((span.call, scopes[key]))
    _add_cached([call for rows in sessions.values() for call, _ in rows])
    made = []
    for (name, _), rows in sessions.items():
        logged = [row for row in rows if len(row[0].dialect) == 1]
        if 0 < len(logged) < len(rows):
            more = len(rows) - len(logged)
            what = "spans of calls that are in the logs too, left out"
            rows[0][0].notes.add(what, times=more)
            rows = logged
        _find_starts([call for call, _ in rows], sent_s.get(name, []))
        rows.sort(key=lambda row: row[0].start_s or 0.0)
        made.append(_draft(name, rows, reading))
    return made


class _File:
    """Takes the calls out of one file's records."""

    def __init__(self, path: PurePath, reading: Reading, notes: Notes) -> None:
        self.path, self.reading, self.notes = path, reading, notes
        self.part = Part()
        self.measured = 0
        self.textual = 0
        self._dialects: dict[tuple[str, ...], tuple[str, ...]] = {}

    def flat(self, line: int, record: Mapping[str, Any]) -> None:
        """A session as a list of spans with plain attributes; its names are valid in it only."""
        spans = _objects(record, ("spans",))
        if others := len(record["spans"]) - len(spans):
            self.notes.add("spans that are no objects, left out", line, others)
        starts = [start for span in spans if isinstance(start := span.get("start_time"), str)]
        name = _text(record, ("session_id", "trace_id")) or f"{self.path}:{line}"
        # The same recording in two files is one; different ones under one name are not.
        valid_in = self._named(f"{name} {min(starts, default='')} {len(spans)}")
        for span in spans:
            service = _service(span, "resource_attributes")
            self._span(line, span, ("", ""), service, (name, valid_in))

    def export(self, line: int, record: Mapping[str, Any]) -> None:
        """An export request of spans or log records."""
        for resource in _objects(record, _RESOURCES):
            service = _service(resource, "resource")
            for scope in _objects(resource, _SCOPES):
                library = scope.get("scope", scope.get("instrumentationLibrary"))
                named = library if isinstance(library, dict) else {}
                dialect = tuple(_text(named, (key,)) or "" for key in ("name", "version"))
                for span in _objects(scope, ("spans",)):
                    self._span(line, span, dialect, service)
                for event in _objects(scope, ("logRecords", "log_records")):
                    self._event(line, event)

    def console(self, line: int, record: Mapping[str, Any]) -> None:
        """A span as the SDKs print it."""
        self._span(line, record, ("", ""), _service(record, "resource"))

    def _span(
        self,
        line: int,
        span: Mapping[str, Any],
        dialect: tuple[str, ...],
        service: str | None,
        record: tuple[str, int] | None = None,
    ) -> None:
        context = span.get("context")
        ids = context if isinstance(context, dict) else span
        source = f"{self.path}:{line}"
        trace_name = _text(ids, ("traceId", "trace_id")) or source
        if record is not None:
            session, valid_in = record
            trace = self._named(f"{valid_in} {trace_name}")
        else:
            session, valid_in = trace_name, 0
            trace = self._id(trace_name) or 0
            if trace_name.endswith("="):
                session = f"{trace:032x}"
        span_id = self._id(_text(ids, ("spanId", "span_id")))
        if span_id is None:
            span_id = self._named(f"{source} {len(self.part.spans)}")
        attributes = _attributes(span)
        name, rank = _session_name(attributes)
        kind = _kind(span, attributes)
        agent = _text(attributes, _AGENT_NAME) or _text(span, ("name",))
        end_s = _stamp(span, ("endTimeUnixNano", "end_time_unix_nano"), "end_time")
        call = None
        if kind == _CALL:
            start_s = _stamp(span, ("startTimeUnixNano", "start_time_unix_nano"), "start_time")
            if start_s is None:
                self.notes.add("calls without a time, left out", line)
            else:
                call = self._call(line, span, attributes, start_s, end_s, dialect)
                if call is not None and service:
                    call.who = self._named(service)
        elif kind == _OTHER and _first(attributes, _INPUT) is not None:
            self.notes.add("spans of other operations with tokens, left out", line)
        made = _Span(
            parent=self._id(_text(span, ("parentSpanId", "parent_span_id", "parent_id"))),
            kind=kind,
            session=(rank, name or session, valid_in),
            agent=self._named(agent) if kind == _AGENT and agent else None,
            call=call,
            ended=end_s is not None,
        )
        if _keep(self.part.spans, (trace, span_id), made):
            self.notes.add("records exported twice, counted once", line)

    def _call(
        self,
        line: int,
        span: Mapping[str, Any],
        attributes: Mapping[str, Any],
        start_s: float,
        end_s: float | None,
        dialect: tuple[str, ...],
    ) -> _Call | None:
        isl, osl, cached, created = _usage(attributes)
        prompt = self._pieces(line, span, attributes)
        _, chars, _ = prompt
        failed = _failed(span)
        if chars and isl is None and not failed:
            self.textual += 1
            if self.reading.chars_per_token:
                isl = max(1, ceil(chars[-1] / self.reading.chars_per_token))
                cached, created = None, 0
                if osl is None:
                    osl = ceil(self._answer_chars(attributes) / self.reading.chars_per_token)
        if not (isl or cached or created) or osl is None:
            which = "failed calls" if failed else "calls"
            self.notes.add(f"{which} without token counts, left out", line)
            return None
        self.measured += 1
        if not osl:
            self.notes.add("calls without output, sent with one token", line)
        model = _text(attributes, _MODEL)
        who = (*dialect, _text(attributes, _PROVIDER) or "", model or "")
        return _Call(
            source=f"{self.path}:{line}",
            notes=self.notes,
            start_s=start_s,
            end_s=end_s,
            input=isl or 0,
            osl=osl,
            read=cached,
            created=created,
            model=model,
            dialect=self._dialects.setdefault(who, who),
            prompt=prompt,
        )

    def _event(self, line: int, event: Mapping[str, Any]) -> None:
        """A log record; the calls' events stand where the call ended."""
        attributes = _attributes(event)
        names = (*(_text(event, (n,)) for n in _EVENT_NAME), _text(attributes, ("event.name",)))
        dialect = next((_EVENTS[name] for name in names if name in _EVENTS), None)
        if dialect is None:
            return
        if dialect == _ERROR:
            self.notes.add("failed requests, left out", line)
            return
        end_s = (
            _stamp(event, ("timeUnixNano", "time_unix_nano"), "")
            or unix_s(_first(attributes, ("event.timestamp",)))
            or _stamp(event, ("observedTimeUnixNano", "observed_time_unix_nano"), "")
        )
        session = _text(attributes, _LOG_SESSION) or f"{self.path}:{line}"
        duration_ms = number(_first(attributes, ("duration_ms",)))
        start_s = None
        if end_s is not None and duration_ms is not None and duration_ms >= 0:
            start_s = end_s - duration_ms / 1e3
        if dialect == _SENT:
            if start_s is not None:
                self.part.sent_s.setdefault(session, []).append(start_s)
            return
        if dialect == _CODEX and _first(attributes, ("event.kind",)) != "response.completed":
            return
        isl, osl, cached = _log_usage(dialect, attributes)
        if end_s is None or not (isl or cached) or osl is None:
            self.notes.add("calls without a time or token counts, left out", line)
            return
        if not osl:
            self.notes.add("calls without output, sent with one token", line)
        self.measured += 1
        kind, who = "", None
        source = (_text(attributes, ("query_source",)) or "main").lower()
        if "agent" in source:
            kind, who = "agent", _text(attributes, ("agent.id", "agent_id")) or source
        elif source != "main" and not source.startswith("repl_main_thread"):
            kind, who = "helper", source
        call = _Call(
            source=f"{self.path}:{line}",
            notes=self.notes,
            start_s=None if dialect == _CODEX else start_s,
            end_s=end_s,
            input=isl or 0,
            osl=osl,
            read=cached,
            created=0,
            model=_text(attributes, ("model",)),
            dialect=(dialect,),
            kind=kind,
            who=self._named(who) if who else None,
        )
        sequence = _text(attributes, ("event.sequence",))
        key = (
            self._named(f"log {session}"),
            self._named(f"{sequence} {end_s} {isl} {osl} {call.model}"),
        )
        if _keep(self.part.spans, key, _Span(None, _CALL, (0, session, 0), call=call)):
            self.notes.add("records exported twice, counted once", line)

    def _pieces(self, line: int, span: Mapping[str, Any], attributes: Mapping[str, Any]) -> _Prompt:
        """The names of the prompt's pieces, where the prompt was captured."""
        given = _first(attributes, _MESSAGES)
        if given is None:
            given = _numbered(attributes)
        if given is None:
            events = map(_attributes, _objects(span, ("events",)))
            found = (_first(event, ("gen_ai.prompt", *_MESSAGES)) for event in events)
            given = next((each for each in found if each is not None), None)
        messages = _decoded(given)
        system = _decoded(_first(attributes, ("gen_ai.system_instructions",)))
        tools = _decoded(_first(attributes, ("gen_ai.tool.definitions",)))
        if isinstance(messages, dict):
            tools = tools or messages.get("tools")
            messages = messages.get("messages")
        if not isinstance(messages, list) or not messages:
            if given is not None:
                self.notes.add("prompts that are cut or no messages, prefix not known", line)
            return _NO_PROMPT
        return bodies.message_pieces(messages, tools, system, self.reading)

    def _answer_chars(self, attributes: Mapping[str, Any]) -> int:
        answer = _decoded(_first(attributes, _ANSWER))
        if isinstance(answer, str):
            return len(answer)
        messages = answer if isinstance(answer, list) else [answer]
        chars = bodies.message_pieces(messages, None, None, self.reading)[1]
        return chars[-1] if chars else 0

    def _id(self, name: str | None) -> int | None:
        """A span's or trace's id as a number, whether it was written in hex or base64."""
        if name is None:
            return None
        text = name.removeprefix("0x")
        try:
            if len(text) in (16, 32):
                return int(text, 16) or None
            if len(text) in (_BASE64_SPAN, _BASE64_TRACE) and text.endswith("="):
                return int.from_bytes(b64decode(text, validate=True)) or None
        except ValueError:
            pass
        return self._named(name)

    def _named(self, text: str) -> int:
        return self.reading.name(text.encode("utf-8", "replace"))


def _objects(holder: Mapping[str, Any], names: Iterable[str]) -> list[dict[str, Any]]:
    """The objects in the lists under any of these names."""
    return [
        item
        for name in names
        if isinstance(items := holder.get(name), list)
        for item in items
        if isinstance(item, dict)
    ]


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes by name, their values as they stand."""
    given = holder.get("attributes")
    if isinstance(given, dict):
        return given
    if not isinstance(given, list):
        return {}
    return {
        item["key"]: item.get("value")
        for item in given
        if isinstance(item, dict) and isinstance(item.get("key"), str)
    }


def _plain(value: Any, depth: int = 0) -> Any:
    """An attribute's value without the wrapping that names its type."""
    if not isinstance(value, dict) or depth > _DEEPEST:
        return value
    for kind, inner in value.items():
        if kind in _VALUES:
            return inner
        if kind in ("arrayValue", "array_value", "kvlistValue", "kvlist_value"):
            items = inner.get("values") if isinstance(inner, dict) else None
            if kind.startswith("kv"):
                held = _attributes({"attributes": items})
                return {key: _plain(item, depth + 1) for key, item in held.items()}
            return [_plain(each, depth + 1) for each in items] if isinstance(items, list) else []
    return value


def _first(attributes: Mapping[str, Any], names: Iterable[str]) -> Any:
    """The first of these attributes that has a value."""
    for name in names:
        value = attributes.get(name)
        if value is not None and (plain := _plain(value)) not in (None, ""):
            return plain
    return None


def _text(attributes: Mapping[str, Any], names: Iterable[str]) -> str | None:
    value = _first(attributes, names)
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _decoded(value: Any) -> Any:
    """Structured values may be JSON text."""
    if isinstance(value, str):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def _session_name(attributes: Mapping[str, Any]) -> tuple[str | None, int]:
    for rank, name in enumerate(_SESSION):
        if name in attributes and (text := _text(attributes, (name,))):
            return text, rank
    return None, len(_SESSION)


def _service(holder: Mapping[str, Any], field_name: str) -> str | None:
    about = holder.get(field_name)
    if not isinstance(about, dict):
        return None
    return _text(_attributes(about) or about, ("service.name",))


def _kind(span: Mapping[str, Any], attributes: Mapping[str, Any]) -> int:
    for name in _KIND:
        if name in attributes and (kind := _first(attributes, (name,))) is not None:
            return _KINDS.get(kind.lower(), _OTHER) if isinstance(kind, str) else _OTHER
    kind = span.get("type")
    if isinstance(kind, str):
        return _KINDS.get(kind, _OTHER)
    # A server's own spans name no operation.
    measured = any(name in attributes for name in _INPUT)
    return _CALL if measured and any(name in attributes for name in _OUTPUT) else _OTHER


def _stamp(span: Mapping[str, Any], nanos: Iterable[str], iso: str) -> float | None:
    for name in nanos:
        read = number(span.get(name))
        if read is not None and read > 0:
            return read / 1e9
    return unix_s(span.get(iso))


def _failed(span: Mapping[str, Any]) -> bool:
    status = span.get("status")
    code = status.get("code", status.get("status_code")) if isinstance(status, dict) else status
    return code in (2, "2", "ERROR", "STATUS_CODE_ERROR")


def _usage(attributes: Mapping[str, Any]) -> tuple[int | None, int | None, int | None, int]:
    """Input, output, tokens read from the cache and written to it, as recorded."""
    isl, osl = count(_first(attributes, _INPUT)), count(_first(attributes, _OUTPUT))
    details = _decoded(_first(attributes, ("langfuse.observation.usage_details",)))
    if isl is None and osl is None and isinstance(details, dict):
        cached = count(_first(details, ("cache_read_input_tokens", "input_cached_tokens")))
        created = count(details.get("cache_creation_input_tokens"))
        return count(details.get("input")), count(details.get("output")), cached, created or 0
    return isl, osl, count(_first(attributes, _READ)), count(_first(attributes, _CREATED)) or 0


def _log_usage(
    dialect: str, attributes: Mapping[str, Any]
) -> tuple[int | None, int | None, int | None]:
    """Input with cached tokens, output with reasoning, and cached tokens of a log event."""

    def tokens(name: str) -> int | None:
        return count(_first(attributes, (name,)))

    if dialect == _CLAUDE:
        names = ("input_tokens", "cache_read_tokens", "cache_creation_tokens")
        counts = [tokens(name) for name in names]
        return sum(filter(None, counts)), tokens("output_tokens"), counts[1]
    isl, osl = tokens("input_token_count"), tokens("output_token_count")
    if dialect == _CODEX:
        return isl, osl, tokens("cached_token_count")
    if osl is not None:
        osl += tokens("thoughts_token_count") or 0
    return isl, osl, tokens("cached_content_token_count")


def _numbered(attributes: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Messages that were recorded as one attribute a field."""
    for prefix, inner in _NUMBERED:
        if f"{prefix}0.{inner}role" not in attributes:
            continue
        messages: dict[int, dict[str, Any]] = {}
        for name, value in attributes.items():
            if name.startswith(prefix):
                index, _, rest = name.removeprefix(prefix).partition(".")
                if index.isdecimal() and len(index) < 9:
                    messages.setdefault(int(index), {})[rest.removeprefix(inner)] = _plain(value)
        return [messages[index] for index in sorted(messages)]
    return None


def _is_flat(span: object) -> bool:
    return (
        isinstance(span, dict) and "start_time" in span and isinstance(span.get("attributes"), dict)
    )


def _keep(spans: dict[_Key, _Span], key: _Key, span: _Span) -> bool:
    """Keep the fuller of two copies of a span; whether there were two."""
    before = spans.get(key)
    if before is None or (span.call is not None, span.ended) > (
        before.call is not None,
        before.ended,
    ):
        spans[key] = span
    return before is not None


def _scopes(spans: Mapping[_Key, _Span]) -> dict[_Key, _Scope]:
    """What the tree says of each span; parents that are missing, or in a circle, say nothing."""
    found: dict[_Key, _Scope] = {}
    for key in spans:
        path: dict[_Key, _Span] = {}
        at: _Key | None = key
        while at is not None and at in spans and at not in found and at not in path:
            span = path[at] = spans[at]
            at = None if span.parent is None else (at[0], span.parent)
        scope = _Scope() if at is None else found.get(at, _Scope())
        for place, span in reversed(path.items()):
            scope = found[place] = _within(scope, place, span)
    return found


def _within(above: _Scope, key: _Key, span: _Span) -> _Scope:
    session = above.session
    if session is None or span.session[0] < session[0]:
        session = span.session
    agent: int | None
    if span.kind == _AGENT:
        if above.agent is None and not above.in_tool:
            agent = 0
        elif above.agent is not None and span.agent == above.name and not above.in_tool:
            agent = above.agent  # a framework's span around that of its own agent
        else:
            agent = key[1]
        return _Scope(session, agent, span.agent)
    if span.kind == _TOOL:
        # What a tool that an agent runs asks a model is no part of the agent's conversation.
        agent = None if above.agent is None else key[1]
        return _Scope(session, agent, in_tool=True)
    call = above.call if span.call is None else key
    return _Scope(session, above.agent, above.name, above.in_tool, call, above.call)


def _find_starts(calls: Sequence[_Call], sent_s: list[float]) -> None:
    """Give calls of which only the end is known the start of their request, or an estimated one."""
    if all(call.start_s is not None for call in calls):
        return
    sent_s.sort()
    tokens_s = median_tokens_s(
        (call.osl, call.end_s - call.start_s)
        for call in calls
        if call.end_s is not None and call.start_s is not None
    )
    before_s = -inf
    for call in sorted(calls, key=lambda call: -inf if call.end_s is None else call.end_s):
        if call.end_s is None:
            continue
        end_s = call.end_s
        if call.start_s is None:
            i = bisect_right(sent_s, end_s)
            if i and sent_s[i - 1] >= before_s - ROUNDING_S:
                call.start_s = sent_s[i - 1]
            else:
                # The end is then made from the start again, and marked as an estimate.
                call.start_s = max(end_s - call.osl / tokens_s, min(before_s, end_s))
                call.end_s = None
                call.notes.add("calls without a start, estimated")
        before_s = end_s


def _add_cached(calls: Sequence[_Call]) -> None:
    """Make `input` the total where cached tokens were recorded beside it.

    More of them than input are beside it. Where that is so of most calls that something recorded,
    it is so of all of them.
    """
    beside: Counter[tuple[str, ...]] = Counter()
    for call in calls:
        more = (call.read or 0) + call.created
        if more:
            beside[call.dialect] += 1 if more > call.input else -1
    for call in calls:
        more = (call.read or 0) + call.created
        if more > call.input or (more and beside[call.dialect] > 0):
            call.notes.add("calls whose cached tokens are not part of the input, added to it")
            call.input, call.created = call.input + more, 0


def _draft(name: str, rows: Sequence[tuple[_Call, _Scope]], reading: Reading) -> Draft:
    first = rows[0][0]
    captured = _captured(rows)
    if not captured and any(call.prompt[0] for call, _ in rows):
        first.notes.add("sessions whose messages are not the whole prompts, prefixes from counts")
    calls = []
    for (call, _), agent in zip(rows, _labels(rows), strict=True):
        names, chars, system_pieces = call.prompt if captured else _NO_PROMPT
        told = bodies.Exchange(
            call.input, call.osl, call.read, call.model, None, None, names, chars, system_pieces
        )
        made = bodies.recorded(told, call.start_s, call.end_s, reading)
        if made is not None:
            made.agent = agent
            calls.append(made)
    if not captured and any(call.cached for call in calls):
        continue_by_counts(calls)
    return Draft(name, first.source, calls, dated=True, notes=first.notes)


def _captured(rows: Sequence[tuple[_Call, _Scope]]) -> bool:
    """Whether the recorded messages are the prompts.

    They are not where most calls have none, where equal ones have different lengths, or where
    most of the calls that found something in the server's cache begin like no call before.
    """
    lengths: dict[int, int] = {}
    beginnings: set[int] = set()
    hits = unlike = missing = 0
    for call, _ in rows:
        names = call.prompt[0]
        if not names:
            missing += 1
            continue
        if abs(lengths.setdefault(names[-1], call.input) - call.input) > BLOCK_TOKENS:
            return False
        if beginnings and (call.read or 0) >= BLOCK_TOKENS:
            hits += 1
            unlike += names[0] not in beginnings
        beginnings.add(names[0])
    return 2 * missing <= len(rows) and 2 * unlike <= hits


def _labels(rows: Sequence[tuple[_Call, _Scope]]) -> list[str]:
    """The agent of each call: by the agents' spans, else by what made the call."""
    main = next((c.who for c, scope in rows if scope.agent is None and not c.kind), None)
    names: dict[tuple[object, ...], str] = {}
    labels = []
    for call, scope in rows:
        if scope.agent == 0 or (scope.agent is None and not call.kind and call.who == main):
            labels.append("")
            continue
        who = ("agent", scope.agent) if scope.agent is not None else (call.kind, call.who)
        if who not in names:
            kind = "helper" if who[0] == "helper" else "agent"
            names[who] = f"{kind} {sum(each.startswith(kind) for each in names.values()) + 1}"
        labels.append(names[who])
    return labels
