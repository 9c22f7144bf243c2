"""OpenTelemetry: spans of LLM calls, and the telemetry logs of coding agents, made into sessions.

`otel_spans` and `otel_logs` read the two kinds; of a session that both have, the logs count. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import PurePath
from typing import Any

from agentreplay.errors import TraceError
from agentreplay.trace.fields import inside, objects
from agentreplay.trace.formats.bodies import recorded
from agentreplay.trace.formats.otel_logs import add_event
from agentreplay.trace.formats.otel_spans import (
    Call,
    Key,
    Part,
    Span,
    add_span,
    attributes,
    calls,
    keep,
    members,
    text,
)
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import BLOCK_TOKENS, Draft, Reading, continue_by_counts
from agentreplay.trace.structure import ROUNDING_S, median_tokens_s

_RESOURCES = ("resourceSpans", "resource_spans", "batches", "resourceLogs", "resource_logs")
_SCOPES = (
    "scopeSpans scope_spans instrumentationLibrarySpans instrumentation_library_spans "
    "scopeLogs scope_logs"
).split()


def recognises(record: object) -> bool:
    """Whether a decoded JSON value is an export of spans or of log records."""
    if not isinstance(record, dict):
        return False
    if any(isinstance(record.get(name), list) for name in _RESOURCES if name != "batches"):
        return True
    if any(not each.keys().isdisjoint(_SCOPES) for each in objects(record.get("batches"))):
        return True
    spans = record.get("spans")
    if isinstance(spans, list):
        return any(map(_is_flat, spans[:20]))
    return isinstance(record.get("context"), dict) and _is_flat(record)


def read(
    records: Iterable[tuple[int, Any]], path: PurePath, reading: Reading, notes: Notes
) -> Part:
    """What is kept of one file.

    Raises:
        TraceError: the file's calls hold texts and no token counts, and no length of a token is
            given.
    """
    part = Part(path, reading, notes)
    for line, record in records:
        if not recognises(record):
            notes.add("lines that are no exports of spans or logs, left out", line)
        elif isinstance(record.get("spans"), list):
            _add_flat(record, line, part)
        elif isinstance(record.get("context"), dict):
            add_span(record, line, part, service=_service(record, "resource"))
        else:
            _add_export(record, line, part)
    if part.textual and not any(span.call for span in part.spans.values()):
        raise TraceError(f"{path}: its spans record no lengths; --chars-per-token supplies them")
    return part


def drafts(parts: Sequence[Part], reading: Reading) -> list[Draft]:
    """The sessions of all files."""
    spans: dict[Key, Span] = {}
    sent_s: dict[str, list[float]] = {}
    for part in parts:
        for key, span in part.spans.items():
            if keep(spans, key, span) and span.call is not None:
                span.call.notes.add("calls exported twice, counted once")
        for session, stamps in part.sent_s.items():
            sent_s.setdefault(session, []).extend(stamps)
    sessions: dict[tuple[str, int], list[Call]] = {}
    for named, call in calls(spans):
        sessions.setdefault(named, []).append(call)
    _add_cached([call for found in sessions.values() for call in found])
    made = []
    for (name, _), found in sessions.items():
        logged = [call for call in found if call.logged]
        if 0 < len(logged) < len(found):
            what = "spans of calls that are in the logs too, left out"
            found[0].notes.add(what, times=len(found) - len(logged))
            found = logged
        _find_starts(found, sent_s.get(name, []))
        found.sort(key=lambda call: call.start_s or 0.0)
        made.append(_draft(name, found, reading))
    return made


def _is_flat(span: object) -> bool:
    return (
        isinstance(span, dict) and "start_time" in span and isinstance(span.get("attributes"), dict)
    )


def _service(holder: Mapping[str, Any], name: str) -> str | None:
    about = inside(holder, name)
    return text(attributes(about) or about, "service.name")


def _add_flat(record: Mapping[str, Any], line: int, part: Part) -> None:
    """Add a session that is a list of spans with plain attributes; its names are its own."""
    spans = objects(record["spans"])
    if others := len(record["spans"]) - len(spans):
        part.notes.add("spans that are no objects, left out", line, others)
    starts = [start for span in spans if isinstance(start := span.get("start_time"), str)]
    name = text(record, "session_id", "trace_id") or f"{part.path}:{line}"
    # The same recording in two files is one; different ones under one name are not.
    valid_in = part.reading.named(f"{name} {min(starts, default='')} {len(spans)}")
    for span in spans:
        service = _service(span, "resource_attributes")
        add_span(span, line, part, service=service, record=(name, valid_in))


def _add_export(record: Mapping[str, Any], line: int, part: Part) -> None:
    """Add what an export request of spans or log records holds."""
    for resource in members(record, *_RESOURCES):
        service = _service(resource, "resource")
        for scope in members(resource, *_SCOPES):
            about = inside(scope, "scope") or inside(scope, "instrumentationLibrary")
            library = f"{text(about, 'name')} {text(about, 'version')}"
            for span in members(scope, "spans"):
                add_span(span, line, part, library, service)
            for event in members(scope, "logRecords", "log_records"):
                add_event(event, line, part)


def _find_starts(found: Sequence[Call], sent_s: list[float]) -> None:
    """Give calls of which only the end is known the start of their request, or an estimated one."""
    tokens_s = median_tokens_s(
        (call.told.osl or 0, call.end_s - call.start_s)
        for call in found
        if call.end_s is not None and call.start_s is not None
    )
    sent_s.sort()
    before_s = -inf
    for call in sorted(found, key=lambda call: -inf if call.end_s is None else call.end_s):
        end_s = call.end_s
        if call.start_s is None and end_s is not None:
            i = bisect_right(sent_s, end_s)
            if i and sent_s[i - 1] >= before_s - ROUNDING_S:
                call.start_s = sent_s[i - 1]
            else:
                # The end is then made from the start again, and marked as an estimate.
                call.start_s = max(end_s - (call.told.osl or 0) / tokens_s, min(before_s, end_s))
                call.end_s = None
                call.notes.add("calls without a start, estimated")
        before_s = before_s if end_s is None else end_s


def _add_cached(found: Sequence[Call]) -> None:
    """Make the input the total where cached tokens were recorded beside it.

    More of them than input are beside it. Where that is so of most calls that something recorded,
    it is so of all of them.
    """
    cached = [((call.told.cached or 0) + call.written, call.told.isl or 0) for call in found]
    beside: Counter[int] = Counter()
    for call, (more, isl) in zip(found, cached, strict=True):
        beside[call.dialect] += (more > isl) - (0 < more <= isl)
    for call, (more, isl) in zip(found, cached, strict=True):
        if more > isl or (more and beside[call.dialect] > 0):
            call.notes.add("calls whose cached tokens are not part of the input, added to it")
            call.told = replace(call.told, isl=isl + more)


def _draft(name: str, found: Sequence[Call], reading: Reading) -> Draft:
    notes = found[0].notes
    captured = _captured(found)
    if not captured and any(call.told.names for call in found):
        notes.add("sessions whose messages are not the whole prompts, prefixes from counts")
    made = []
    for call, agent in zip(found, _labels(found), strict=True):
        told = call.told if captured else replace(call.told, names=(), chars=(), system_pieces=0)
        row = recorded(told, call.start_s, call.end_s, reading)
        if row is not None:
            row.agent = agent
            made.append(row)
    if not captured and any(row.cached for row in made):  # else nothing tells what they share
        continue_by_counts(made)
    return Draft(name, found[0].source, made, dated=True, notes=notes)


def _captured(found: Sequence[Call]) -> bool:
    """Whether the recorded messages are the prompts.

    They are not where most calls have none, where equal ones have different lengths, or where
    most of the calls that found something in the server's cache begin like no call before.
    """
    lengths: dict[int, int] = {}
    beginnings: set[int] = set()
    hits = unlike = missing = 0
    for told in (call.told for call in found):
        if not told.names:
            missing += 1
            continue
        isl = told.isl or 0
        if abs(lengths.setdefault(told.names[-1], isl) - isl) > BLOCK_TOKENS:
            return False
        if beginnings and (told.cached or 0) >= BLOCK_TOKENS:
            hits += 1
            unlike += told.names[0] not in beginnings
        beginnings.add(told.names[0])
    return 2 * missing <= len(found) and 2 * unlike <= hits


def _labels(found: Sequence[Call]) -> list[str]:
    """The agent of each call; of services the first one's is the main agent."""
    main = next((call.agent for call in found if call.agent[0] == "service"), None)
    labels: dict[tuple[str, int], str] = {}
    counts: Counter[str] = Counter()
    for call in found:
        role = "helper" if call.agent[0] == "helper" else "agent"
        if call.agent[0] == "main" or call.agent == main:
            labels[call.agent] = ""
        elif call.agent not in labels:
            counts[role] += 1
            labels[call.agent] = f"{role} {counts[role]}"
    return [labels[call.agent] for call in found]
