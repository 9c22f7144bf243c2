"""The native format: JSON lines, one session a line. docs/traces.md describes it.

Pure: a decoded JSON value in, a session out, and back. It holds lengths, times and relations; no
text and no hash of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from agentreplay.errors import TraceError
from agentreplay.trace.model import Call, Notes, Session

VERSION = 1

_SESSION_FIELDS = frozenset("agentreplay id start_s block_size calls".split())
_CALL_FIELDS = frozenset(Call.__dataclass_fields__)


def recognises(value: object) -> bool:
    """Whether a decoded JSON value is a native session, of whatever version."""
    return isinstance(value, dict) and "agentreplay" in value and "calls" in value


def session(value: Mapping[str, Any], source: str) -> tuple[Session, Notes]:
    """Read one session.

    Raises:
        TraceError: the version is unknown, or a call breaks the rules of `trace.model`.
    """
    if value["agentreplay"] != VERSION:
        raise TraceError(
            f"{source}: native format version {value['agentreplay']!r}; this program reads "
            f"version {VERSION}. A newer agentreplay may read it"
        )
    notes: Notes = Notes()
    for name in value.keys() - _SESSION_FIELDS:
        notes[f"unknown field {name!r}, ignored"] += 1
    try:
        calls = tuple(_call(call, notes) for call in value["calls"])
        start_s, block_size = value.get("start_s"), value["block_size"]
        read = Session(str(value["id"]), start_s, calls, block_size, source)
        _check(read)
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{source}: {_words(error)}") from None
    return read, notes


def line(session: Session) -> bytes:
    """The session as one line, with its line end; what is absent or empty is left out."""
    value: dict[str, Any] = {"agentreplay": VERSION, "id": session.id}
    if session.start_s is not None:
        value["start_s"] = session.start_s
    value["block_size"] = session.block_size
    value["calls"] = [_fields(call) for call in session.calls]
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def _fields(call: Call) -> dict[str, Any]:
    value: dict[str, Any] = {
        "start_s": round(call.start_s, 6),
        "end_s": round(call.end_s, 6),
        "isl": call.isl,
        "osl": call.osl,
        "gap_s": round(call.gap_s, 6),
    }
    if not call.timed:
        value["timed"] = False
    if call.after:
        value["after"] = call.after
    if call.parent is not None:
        value["parent"] = call.parent
        value["shared"] = call.shared
    if call.system:
        value["system"] = call.system
    for name in ("agent", "model", "cached"):
        if getattr(call, name) not in (None, ""):
            value[name] = getattr(call, name)
    return value


def _call(value: Mapping[str, Any], notes: Notes) -> Call:
    for name in value.keys() - _CALL_FIELDS:
        notes[f"unknown field {name!r}, ignored"] += 1
    return Call(
        start_s=float(value["start_s"]),
        end_s=float(value["end_s"]),
        timed=value.get("timed", True),
        isl=value["isl"],
        osl=value["osl"],
        after=tuple(value.get("after", ())),
        gap_s=float(value["gap_s"]),
        parent=value.get("parent"),
        shared=value.get("shared", 0),
        system=value.get("system", 0),
        agent=value.get("agent", ""),
        model=value.get("model"),
        cached=value.get("cached"),
    )


def _check(session: Session) -> None:
    """Raise ValueError naming the first rule of `trace.model` that is broken."""
    size = session.block_size
    if type(size) is not int or size < 1:
        raise ValueError(f"block_size {size!r} is no positive whole number")
    if not session.calls:
        raise ValueError("the session has no calls")
    for i, call in enumerate(session.calls):
        where = f"call {i}"
        for name in ("isl", "osl", "shared", "system"):
            if type(getattr(call, name)) is not int or getattr(call, name) < 0:
                raise ValueError(f"{where}: {name} {getattr(call, name)!r} is no whole number")
        if call.isl < 1:
            raise ValueError(f"{where}: isl must be at least 1")
        if call.gap_s < 0 or call.end_s < call.start_s:
            raise ValueError(f"{where}: gap_s is negative or the call ends before it starts")
        if any(type(j) is not int or not 0 <= j < i for j in call.after):
            raise ValueError(f"{where}: after {list(call.after)} names no earlier call")
        if call.parent is None:
            if call.shared:
                raise ValueError(f"{where}: shares {call.shared} tokens but has no parent")
            continue
        if type(call.parent) is not int or not 0 <= call.parent < i:
            raise ValueError(f"{where}: parent {call.parent!r} is no earlier call")
        if call.shared % size or call.shared > min(call.isl, session.calls[call.parent].isl):
            raise ValueError(
                f"{where}: shared {call.shared} is no multiple of {size} that both prompts hold"
            )


def _words(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"field {error.args[0]!r} is missing"
    return str(error)
