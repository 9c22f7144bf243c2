"""HAR 1.2: what a browser, a proxy or a test recorder saw, as one JSON document.

Pure: decoded JSON in, numbers out. docs/traces.md describes the format.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import orjson

from agentreplay.trace.formats import bodies
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import Draft, Reading
from agentreplay.trace.stamps import count, number, unix_s


def recognises(record: object) -> bool:
    """Whether a decoded JSON value is a HAR document."""
    return (
        isinstance(record, dict)
        and isinstance(log := record.get("log"), dict)
        and isinstance(log.get("entries"), list)
    )


def read(
    records: Iterable[tuple[int, Any]], path: PurePath, reading: Reading, notes: Notes
) -> bodies.Part:
    """The LLM calls of a file; entries are counted through the file, from 1.

    Raises:
        TraceError: no call has lengths, and the user gives none for characters.
    """
    entries: list[bodies.Entry] = []
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
    return bodies.part(entries, path, "a HAR", reading, notes)


def drafts(parts: Sequence[bodies.Part], reading: Reading) -> list[Draft]:
    """The sessions of all files of this format in the input set."""
    return bodies.drafts(parts, reading)


def _entry(
    row: Mapping[str, Any], place: tuple[PurePath, int], reading: Reading, notes: Notes
) -> bodies.Entry | None:
    request = _object(row, "request")
    url = request.get("url")
    if request.get("method") != "POST" or not isinstance(url, str) or not bodies.is_llm_path(url):
        notes.add("requests that are no LLM calls, left out")
        return None
    response, headers = _object(row, "response"), _headers(request)
    told = bodies.exchange(
        _body(_object(request, "postData"), headers, notes),
        _body(_object(response, "content"), _headers(response), notes),
        headers,
        reading,
    )
    started_s, took_ms = unix_s(row.get("startedDateTime")), number(row.get("time"))
    start_s = end_s = None
    if started_s is not None:
        blocked_ms = number(_object(row, "timings").get("blocked")) or 0.0
        start_s = started_s + max(0.0, blocked_ms) / 1e3
        if took_ms is not None and took_ms >= 0:
            end_s = started_s + took_ms / 1e3
    return bodies.entry(told, count(response.get("status")), start_s, end_s, place, notes)


def _object(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = holder.get(name)
    return value if isinstance(value, dict) else {}


def _headers(message: Mapping[str, Any]) -> dict[str, str]:
    """The headers that are looked at; all others may be secrets."""
    listed = message.get("headers")
    found: dict[str, str] = {}
    for header in listed if isinstance(listed, list) else ():
        if not isinstance(header, dict):
            continue
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
        try:
            chunks = orjson.loads(text)
        except orjson.JSONDecodeError:
            return None
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
