"""The native format: JSON lines, one session a line. docs/traces.md describes it.

Pure: a decoded JSON value in, a session out, and back. It holds lengths, times and relations; no
text and no hash of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
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
        size = value["block_size"]
        if type(size) is not int or size < 1:
            raise ValueError(f"block_size {size!r} is no positive whole number")
        if not isinstance(value["calls"], list):
            raise ValueError("calls is no list")
        arrival_s = None if value.get("start_s") is None else _time(value, "start_s")
        calls = tuple(_call(i, call, notes) for i, call in enumerate(value["calls"]))
        read = Session(str(value["id"]), arrival_s, calls, size, source)
        _check(read)
    except KeyError as error:
        raise TraceError(f"{source}: field {error.args[0]!r} is missing") from None
    except ValueError as error:
        raise TraceError(f"{source}: {error}") from None
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


def _call(i: int, value: object, notes: Notes) -> Call:
    try:
        return _fields_of_call(value, notes)
    except KeyError as error:
        raise ValueError(f"call {i}: field {error.args[0]!r} is missing") from None
    except ValueError as error:
        raise ValueError(f"call {i}: {error}") from None


def _fields_of_call(value: object, notes: Notes) -> Call:
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    for name in value.keys() - _CALL_FIELDS:
        notes[f"unknown field {name!r}, ignored"] += 1
    value = {name: given for name, given in value.items() if given is not None}
    after, timed = value.get("after", []), value.get("timed", True)
    agent, model = value.get("agent", ""), value.get("model")
    if not isinstance(after, list) or not isinstance(timed, bool):
        raise ValueError("after is no list, or timed is neither true nor false")
    if not isinstance(agent, str) or not isinstance(model, str | None):
        raise ValueError("agent or model is no text")
    return Call(
        start_s=_time(value, "start_s"),
        end_s=_time(value, "end_s"),
        timed=timed,
        isl=_count(value, "isl"),
        osl=_count(value, "osl"),
        after=tuple(after),
        gap_s=_time(value, "gap_s"),
        parent=_count(value, "parent") if "parent" in value else None,
        shared=_count(value, "shared", 0),
        system=_count(value, "system", 0),
        agent=agent,
        model=model,
        cached=_count(value, "cached") if "cached" in value else None,
    )


def _time(value: Mapping[str, Any], name: str) -> float:
    number = value[name]
    if type(number) not in (int, float) or not isfinite(number):
        raise ValueError(f"{name} {number!r} is no number")
    return float(number)


def _count(value: Mapping[str, Any], name: str, default: int | None = None) -> int:
    number = value[name] if default is None else value.get(name, default)
    if type(number) is not int or number < 0:
        raise ValueError(f"{name} {number!r} is no whole number")
    return number


def _check(session: Session) -> None:
    """Raise ValueError naming the first rule of `trace.model` that is broken."""
    size, calls = session.block_size, session.calls
    if not calls:
        raise ValueError("calls is empty")
    for i, call in enumerate(calls):
        where = f"call {i}"
        if call.isl < 1:
            raise ValueError(f"{where}: isl must be at least 1")
        if call.gap_s < 0 or call.end_s < call.start_s:
            raise ValueError(f"{where}: gap_s is negative or the call ends before it starts")
        if i and call.start_s < calls[i - 1].start_s:
            raise ValueError(f"{where}: starts before the call listed before it")
        if any(type(j) is not int or not 0 <= j < i for j in call.after):
            raise ValueError(f"{where}: after {list(call.after)} names no earlier call")
        if call.parent is None:
            if call.shared:
                raise ValueError(f"{where}: shares {call.shared} tokens but has no parent")
            continue
        if call.parent >= i:
            raise ValueError(f"{where}: parent {call.parent} is no earlier call")
        if call.shared % size or call.shared > min(call.isl, calls[call.parent].isl):
            raise ValueError(
                f"{where}: shared {call.shared} is no multiple of {size} that both prompts hold"
            )
