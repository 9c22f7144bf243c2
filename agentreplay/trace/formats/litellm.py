"""LiteLLM: what its loggers write of a request, and the rows of its table of spend logs.

Both have a call's stamps and token counts; prompts only where they were stored. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from agentreplay.trace.fields import count, inside, string, unix_s
from agentreplay.trace.formats import bodies, conversations
from agentreplay.trace.lenient import unwrapped
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import Draft, Reading

_ASYNC_CALLS = frozenset(
    "completion text_completion responses generate_content generate_content_stream "
    "llm_passthrough_route".split()
)
_CALLS = _ASYNC_CALLS | {"anthropic_messages", "pass_through_endpoint"}
_HEALTH_CHECK = "litellm-internal-health-check"
_REDACTED = "redacted-by-litellm"


def recognises(record: object) -> bool:
    """Whether a decoded JSON value, or a row of a table, is a logged request."""
    return isinstance(record, dict) and "call_type" in record and "startTime" in record


def read(
    records: Iterable[tuple[int, Any]], path: PurePath, reading: Reading, notes: Notes
) -> conversations.Part:
    """What is kept of one file."""
    entries = []
    for line, row in records:
        if not recognises(row):
            notes.add("lines that are no logged requests, left out", line)
            continue
        entry = _entry(row, f"{path}:{line}", line, reading, notes)
        if entry is not None:
            entries.append(entry)
    return conversations.Part(entries, notes)


def drafts(parts: Sequence[conversations.Part], reading: Reading) -> list[Draft]:
    """The sessions of all files."""
    return conversations.drafts(parts, reading)


def _entry(
    row: Mapping[str, Any], source: str, line: int, reading: Reading, notes: Notes
) -> conversations.Entry | None:
    metadata = _object(row.get("metadata"))
    if reason := _no_call(row, metadata):
        notes.add(reason, line)
        return None
    start_s = unix_s(row.get("startTime"))
    if start_s is None:
        notes.add("calls without a time, left out", line)
        return None
    response = _object(row.get("response"))
    told = bodies.exchange(_request(row), response, {}, reading) or bodies.Exchange()
    isl, osl, cached = _usage(row, metadata, response)
    failed = row.get("status") == "failure"
    if not isl or osl is None or (failed and not osl):
        notes.add(f"{'failed calls' if failed else 'calls'} without tokens, left out", line)
        return None
    if not osl:
        notes.add("calls without output, sent with one token", line)
    if isl != (count(row.get("prompt_tokens")) or isl):
        notes.add("calls with more cached tokens than input, added to it", line)
    names = (row.get("session_id"), row.get("trace_id"), metadata.get("session_id"))
    name = string(row.get("request_id")) or string(row.get("id"))
    return conversations.Entry(
        exchange=replace(
            told,
            isl=isl,
            osl=osl,
            cached=cached,
            model=string(row.get("model")) or string(row.get("model_group")),
        ),
        start_s=start_s,
        end_s=unix_s(row.get("endTime")),
        source=source,
        key=reading.named(name) if name else None,
        names=tuple(filter(None, map(string, names))),
    )


def _usage(
    row: Mapping[str, Any], metadata: Mapping[str, Any], response: Mapping[str, Any]
) -> tuple[int | None, int | None, int | None]:
    """Input, output and cached tokens: the row's own counts, and what only the usage has."""
    usage: dict[str, Any] = {}
    for more in (
        inside(metadata, "additional_usage_values"),
        inside(response, "usage"),
        inside(metadata, "usage_object"),
    ):
        usage |= {name: value for name, value in more.items() if value is not None}
    own = {name: count(row.get(name)) for name in ("prompt_tokens", "completion_tokens")}
    usage |= {name: n for name, n in own.items() if n or (n == 0 and name not in usage)}
    return bodies.usage({"usage": usage})


def _no_call(row: Mapping[str, Any], metadata: Mapping[str, Any]) -> str | None:
    """Why a row is no LLM call, in words."""
    hit = row.get("cache_hit")
    if hit is True or (isinstance(hit, str) and hit.lower() == "true"):
        return "answers from LiteLLM's own cache, left out"
    kind = row.get("call_type")
    known = not isinstance(kind, str) or not kind or kind in _CALLS or kind[1:] in _ASYNC_CALLS
    if not known or string(row.get("mcp_namespaced_tool_name")):
        return "rows of other kinds than LLM calls, left out"
    tags = row.get("request_tags")
    marks = (row.get("api_key"), row.get("team_id"), metadata.get("user_api_key_alias"))
    if _HEALTH_CHECK in marks or (isinstance(tags, str | list) and _HEALTH_CHECK in tags):
        return "health checks, left out"
    return None


def _request(row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The body of the request, where it was stored whole."""
    body = _object(row.get("proxy_server_request"))
    body = inside(body, "body") or body
    messages = body.get("messages") or body.get("input") or body.get("prompt")
    if not messages:
        messages = unwrapped(row.get("messages"))
        more = _object(row.get("model_parameters"))
        body = {"messages": messages, "tools": more.get("tools"), "system": more.get("system")}
    if not isinstance(messages, list):
        return None if messages == _REDACTED or not isinstance(messages, str) else body
    first = messages[0] if messages else None
    if isinstance(first, dict) and first.get("content") == _REDACTED:
        return None
    return body


def _object(value: Any) -> Mapping[str, Any]:
    return inside(unwrapped(value))
