"""OpenAI batch files: requests on the lines of one file, answers on those of another.

Pure: decoded JSON lines in, numbers out. docs/formats.md describes the format. A batch has no times
and no order, so each request is a session of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from agentreplay.trace.fields import count
from agentreplay.trace.formats import bodies
from agentreplay.trace.formats.bodies import Exchange
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import Draft, Reading

_PARTS = ("body", "response", "error", "params", "result")


@dataclass(frozen=True, slots=True)
class Row:
    """A line: a request, or an answer without one, under the keyed name of its `custom_id`."""

    name: int
    told: Exchange
    source: str


@dataclass(frozen=True, slots=True)
class Part:
    """What is kept of one file."""

    requests: Sequence[Row]
    answers: Sequence[Row]
    notes: Notes


def recognises(record: object) -> bool:
    """Whether a decoded JSON value is a line of a batch: a request or an answer."""
    return (
        isinstance(record, dict)
        and isinstance(record.get("custom_id"), str)
        and any(isinstance(record.get(name), dict) for name in _PARTS)
    )


def read(
    records: Iterable[tuple[int, Any]], path: PurePath, reading: Reading, notes: Notes
) -> Part:
    """The requests or answers of a file; the Messages API's batches are read as well."""
    requests: list[Row] = []
    answers: list[Row] = []
    for line, record in records:
        if not recognises(record):
            notes.add("records that are no batch requests, left out", line)
            continue
        name = reading.named(record["custom_id"])
        asked = record.get("body") or record.get("params")
        url = record.get("url")
        is_call = not isinstance(url, str) or bodies.is_llm_path(url)
        told = bodies.asked(asked, {}, reading) if is_call else None
        if told is not None:
            requests.append(Row(name, told, f"{path}:{line}"))
        elif asked:
            notes.add("requests that are no LLM calls, left out", line)
        else:
            answer = _answer(record)
            told = bodies.answered(Exchange(), answer, reading)
            if told.failed or not isinstance(answer, dict):
                notes.add("failed calls, left out", line)
            else:
                answers.append(Row(name, told, f"{path}:{line}"))
    return Part(requests, answers, notes)


def drafts(parts: Sequence[Part], reading: Reading) -> list[Draft]:
    """A session for each answered request, in the order of the requests, then of the answers."""
    asked: dict[int, tuple[Row, Notes]] = {}
    answers: dict[int, tuple[Row, Notes]] = {}
    for part in parts:
        for rows, found in ((part.requests, asked), (part.answers, answers)):
            for row in rows:
                if row.name in found:
                    part.notes.add("lines with the custom_id of another, left out")
                else:
                    found[row.name] = row, part.notes
    made = []
    alone = {name: held for name, held in answers.items() if name not in asked}
    for name, (row, notes) in (asked | alone).items():
        if name not in answers:
            notes.add("requests without an answer, left out")
            continue
        told = answers[name][0].told
        if name in asked:
            own = row.told
            told = replace(
                told,
                names=own.names,
                chars=own.chars,
                system_pieces=own.system_pieces,
                model=own.model or told.model,
            )
        call = bodies.recorded(told, None, None, reading, notes)
        if call is None:
            notes.add("calls without usage, left out")
            continue
        made.append(Draft(row.source, row.source, [call], dated=False, notes=notes))
    return made


def _answer(record: dict[str, Any]) -> object:
    """The body of an answer; None where it is an error."""
    response, result = record.get("response"), record.get("result")
    if isinstance(response, dict) and not record.get("error"):
        status = count(response.get("status_code"))
        return response.get("body") if status is None or 200 <= status < 300 else None
    return result.get("message") if isinstance(result, dict) else None
