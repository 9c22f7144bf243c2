"""Flows that mitmproxy saved: concatenated tnetstrings, one a flow.

Pure: bytes to flows, and decoded flows to numbers. docs/formats.md describes the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from agentreplay.trace.fields import count, unix_s
from agentreplay.trace.formats import bodies, conversations
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import Draft, Reading

_LONGEST_LENGTH = 12
_DEEPEST = 64


def flows(data: bytes) -> Iterator[tuple[int, Any]]:
    """The flows of a file with their numbers, from 1.

    Where a flow can't be read, as the last one of a file that was cut off, None stands for it and
    all after it.
    """
    number, at = 1, 0
    while at < len(data):
        try:
            flow, at = _value(data, at, len(data))
        except (ValueError, IndexError):
            yield number, None
            return
        yield number, flow
        number += 1


def recognises(record: object) -> bool:
    """Whether a decoded value is a flow of HTTP."""
    return (
        isinstance(record, dict)
        and _text(record.get("type")) == "http"
        and isinstance(record.get("request"), dict)
        and "version" in record
    )


def read(
    records: Iterable[tuple[int, Any]], path: PurePath, reading: Reading, notes: Notes
) -> conversations.Part:
    """The LLM calls of a file, given as its `flows`.

    Raises:
        TraceError: no call has lengths, and the user gives none for characters.
    """
    entries: list[conversations.Entry] = []
    for number, record in records:
        if record is None:
            notes.add("flows that are broken or cut off, left out", number)
        elif not recognises(record):
            notes.add("flows that are no HTTP, left out", number)
        else:
            entry = _entry(record, (path, number), reading, notes)
            if entry is not None:
                entries.append(entry)
    return conversations.part(entries, path, "a file of flows", reading, notes)


def drafts(parts: Sequence[conversations.Part], reading: Reading) -> list[Draft]:
    """The sessions of all files of this format in the input set."""
    return conversations.drafts(parts, reading)


def _entry(
    flow: Mapping[str, Any], place: tuple[PurePath, int], reading: Reading, notes: Notes
) -> conversations.Entry | None:
    request = flow["request"]
    url = _text(request.get("path"))
    if _text(request.get("method")) != "POST" or url is None or not bodies.is_llm_path(url):
        notes.add("requests that are no LLM calls, left out")
        return None
    response = flow.get("response")
    if not isinstance(response, dict):
        response = {}
    headers = _headers(request)
    told = bodies.exchange(
        _body(request, headers, notes), _body(response, _headers(response), notes), headers, reading
    )
    start_s = unix_s(request.get("timestamp_start"))
    end_s = unix_s(response.get("timestamp_end"))
    return conversations.entry(
        told, count(response.get("status_code")), start_s, end_s, place, notes
    )


def _headers(message: Mapping[str, Any]) -> dict[str, str]:
    """The headers that are looked at; all others may be secrets."""
    listed = message.get("headers")
    found: dict[str, str] = {}
    for header in listed if isinstance(listed, list) else ():
        if isinstance(header, list) and len(header) == 2:
            name, value = map(_text, header)
            if name is not None and value is not None and name.lower() in bodies.HEADERS:
                found[name.lower()] = value
    return found


def _body(message: Mapping[str, Any], headers: Mapping[str, str], notes: Notes) -> object:
    """The decoded body; None where it is absent or unreadable."""
    content = message.get("content")
    if isinstance(content, str):
        content = content.encode(errors="replace")
    if not isinstance(content, bytes) or not content:
        return None
    plain = bodies.unpacked(content, headers.get("content-encoding", ""), notes)
    return None if plain is None else bodies.decoded(plain)


def _text(value: object) -> str | None:
    """Text, which some versions write as bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else None


def _value(data: bytes, at: int, end: int, depth: int = 0) -> tuple[Any, int]:
    """The value that begins at *at*, and where the next one begins; it lies before *end*.

    Raises:
        ValueError: the bytes are no value, or are cut off.
    """
    colon = data.index(b":", at, at + _LONGEST_LENGTH)
    digits = data[at:colon]
    if not digits.isdigit():
        raise ValueError("no length")
    begin = colon + 1
    stop = begin + int(digits)
    if stop >= end or depth > _DEEPEST:
        raise ValueError("longer than what holds it, or deeper than any flow")
    kind, payload = data[stop], data[begin:stop]
    if kind in b"]}":
        values: list[Any] = []
        while begin < stop:
            value, begin = _value(data, begin, stop, depth + 1)
            values.append(value)
        if kind == ord("]"):
            return values, stop + 1
        keys = map(_text, values[::2])
        return dict(zip(keys, values[1::2], strict=True)), stop + 1
    match chr(kind):
        case ",":
            return payload, stop + 1
        case ";":
            return payload.decode(errors="replace"), stop + 1
        case "#":
            return int(payload), stop + 1
        case "^":
            return float(payload), stop + 1
        case "!":
            return payload == b"true", stop + 1
        case "~":
            return None, stop + 1
    raise ValueError("no type")
