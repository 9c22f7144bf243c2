"""Log records of coding agents' telemetry (OTLP JSON), which stand at the ends of calls. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentreplay.trace.fields import count, number, unix_s
from agentreplay.trace.formats.bodies import Exchange
from agentreplay.trace.formats.otel_spans import (
    CALL,
    Call,
    Part,
    Span,
    attributes,
    first,
    nanoseconds,
    text,
)

_CLAUDE, _CODEX, _GEMINI, _SENT, _ERROR = "claude", "codex", "gemini", "sent", "error"
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


def add_event(event: Mapping[str, Any], line: int, part: Part) -> None:
    """Add the call that a log record tells of, or when Codex sent a request, to a part."""
    given, notes = attributes(event), part.notes
    names = (
        *(text(event, n) for n in ("body", "eventName", "event_name")),
        text(given, "event.name"),
    )
    kind = next((_EVENTS[name] for name in names if name in _EVENTS), None)
    if kind == _ERROR:
        notes.add("failed requests, left out", line)
    if kind is None or kind == _ERROR:
        return
    end_s = (
        nanoseconds(event, "timeUnixNano", "time_unix_nano")
        or unix_s(first(given, "event.timestamp"))
        or nanoseconds(event, "observedTimeUnixNano", "observed_time_unix_nano")
    )
    session = text(given, "session.id", "conversation.id", "prompt.id") or f"{part.path}:{line}"
    duration_ms = number(first(given, "duration_ms"))
    start_s = None
    if end_s is not None and duration_ms is not None and duration_ms >= 0:
        start_s = end_s - duration_ms / 1e3
    if kind == _SENT:
        if start_s is not None:
            part.sent_s.setdefault(session, []).append(start_s)
        return
    if kind == _CODEX and text(given, "event.kind") != "response.completed":
        return
    isl, osl, cached = _usage(kind, given)
    if end_s is None or not (isl or cached) or osl is None:
        notes.add("calls without a time or token counts, left out", line)
        return
    if not osl:
        notes.add("calls without output, sent with one token", line)
    model = text(given, "model")
    call = Call(
        told=Exchange(isl or 0, osl, cached, model),
        written=0,
        start_s=None if kind == _CODEX else start_s,
        end_s=end_s,
        dialect=part.reading.named(kind),
        agent=_agent(given, part),
        source=f"{part.path}:{line}",
        notes=notes,
        logged=True,
    )
    told = f"{text(given, 'event.sequence')} {end_s} {isl} {osl} {model}"
    key = (part.reading.named(f"log {session}"), part.reading.named(told))
    part.add(key, Span(0, CALL, (0, session, 0), call=call), line)


def _agent(given: Mapping[str, Any], part: Part) -> tuple[str, int]:
    """Who made a request; Claude Code says it."""
    source = (text(given, "query_source") or "main").lower()
    if "agent" in source:
        return "agent", part.reading.named(text(given, "agent.id", "agent_id") or source)
    is_main = source == "main" or source.startswith("repl_main_thread")
    return ("main", 0) if is_main else ("helper", part.reading.named(source))


def _usage(kind: str, given: Mapping[str, Any]) -> tuple[int | None, int | None, int | None]:
    """Input with cached tokens, output with reasoning, and cached tokens of an event."""

    def tokens(name: str) -> int | None:
        return count(first(given, name))

    if kind == _CLAUDE:
        read, written = tokens("cache_read_tokens"), tokens("cache_creation_tokens")
        total = (tokens("input_tokens") or 0) + (read or 0) + (written or 0)
        return total, tokens("output_tokens"), read
    isl, osl = tokens("input_token_count"), tokens("output_token_count")
    if kind == _CODEX:
        return isl, osl, tokens("cached_token_count")
    if osl is not None:
        osl += tokens("thoughts_token_count") or 0
    return isl, osl, tokens("cached_content_token_count")
