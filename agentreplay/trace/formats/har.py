"""HAR 1.2: what a browser, a proxy or a test recorder saw, as one JSON document.

Pure: decoded JSON in, numbers out. docs/formats.md describes the format.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from agentreplay.trace.fields import count, inside, number, objects, unix_s
from agentreplay.trace.formats import bodies, conversations
from agentreplay.trace.lenient import parsed
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import Draft, Reading


def recognises(record: object) -> bool:
    """Whether a decoded JSON value is a HAR document."""
    return (
        isinstance(record, dict)
        and isinstance(log := record.get("log"), dict)
        and isinstance(log.get("entries"), list)
    )


def read(
    records: Iterable[tuple[int, Any]], path: PurePath, reading: Reading, notes: Notes
) -> conversations.Part:
    """The LLM calls of a file; entries are counted through the file, from 1.

    Raises:
        TraceError: no call has lengths, and the user gives none for characters.
    """
    entries: list[conversations.Entry] = []
    place = 0
    for line, record in records:
        if not recognises(record):
            notes.add("records that are no HAR, left out", line)
            continue
        for row in record["log"]["entries"]:
            place += 1
            entry = _entry(row if isinstance(row, dict) else {}, (path, place), reading, notes)
            if entry is not None:
                entries.append(entry)
    return conversations.part(entries, path, "a HAR", reading, notes)


def drafts(parts: Sequence[conversations.Part], reading: Reading) -> list[Draft]:
    """The sessions of all files of this format in the input set."""
    return conversations.drafts(parts, reading)


def _entry(
    row: Mapping[str, Any], place: tuple[PurePath, int], reading: Reading, notes: Notes
) -> conversations.Entry | None:
    request = inside(row, "request")
    url = request.get("url")
    if request.get("method") != "POST" or not isinstance(url, str) or not bodies.is_llm_path(url):
        notes.add("requests that are no LLM calls, left out")
        return None
    response, headers = inside(row, "response"), _headers(request)
    told = bodies.exchange(
        _body(inside(request, "postData"), headers, notes),
        _body(inside(response, "content"), _headers(response), notes),
        headers,
        reading,
    )
    started_s, took_ms = unix_s(row.get("startedDateTime")), number(row.get("time"))
    start_s = end_s = None
    if started_s is not None:
        blocked_ms = number(inside(row, "timings").get("blocked")) or 0.0
        start_s = started_s + max(0.0, blocked_ms) / 1e3
        if took_ms is not None and took_ms >= 0:
            end_s = started_s + took_ms / 1e3
    return conversations.entry(told, count(response.get("status")), start_s, end_s, place, notes)


def _headers(message: Mapping[str, Any]) -> dict[str, str]:
    """The headers that are looked at; all others may be secrets."""
    found: dict[str, str] = {}
    for header in objects(message.get("headers")):
        name, value = header.get("name"), header.get("value")
        if isinstance(name, str) and isinstance(value, str) and name.lower() in bodies.HEADERS:
            found[name.lower()] = value
    return found


def _body(holder: Mapping[str, Any], headers: Mapping[str, str], notes: Notes) -> object:
    """The decoded body of a request or an answer; None where it is absent or unreadable.

    It may be base64, marked as such or not, in one text or in a JSON list of chunks, and
    compressed below that.
    """
    text = holder.get("text")
    if not isinstance(text, str) or not text:
        return None
    chunks: list[Any] = [text]
    if text.startswith('["'):
        chunks = parsed(text) or []
    elif holder.get("encoding") != "base64":
        found = bodies.decoded(text)
        if found is not None:
            return found
    try:
        data = b"".join(map(b64decode, chunks))
    except (ValueError, TypeError):
        return None
    plain = bodies.unpacked(data, headers.get("content-encoding", ""), notes)
    return None if plain is None else bodies.decoded(plain)
