"""The native format: JSON lines, one session a line. docs/traces.md describes it.

Pure: a decoded JSON value in, a session out, and back. It holds lengths, times and relations; no
text and no hash of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from types import NoneType
from typing import Any

import orjson

from agentreplay.errors import TraceError
from agentreplay.trace.model import MOST_TOKENS, Call, Notes, Session

VERSION = 1

_SESSION_FIELDS = frozenset("agentreplay id start_s block_size calls".split())


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
        if type(size) is not int or not 1 <= size <= MOST_TOKENS:
            raise ValueError(f"block_size {size!r} is no positive whole number")
        if not isinstance(value["calls"], list):
            raise ValueError("calls is no list")
        arrival_s = None if value.get("start_s") is None else _time(value, "start_s")
        calls = _calls(value["calls"], notes)
        if arrival_s is not None and arrival_s < 0:
            raise ValueError(f"start_s {arrival_s!r} is negative")
        if value["id"] is None:
            raise KeyError("id")
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


def _calls(values: Sequence[object], notes: Notes) -> tuple[Call, ...]:
    """The calls, of which every field has its type; column by column, since there are many.

    Raises:
        ValueError: naming a call and its field.
    """
    rows, usual = [], len(_DEFAULTS)
    for i, value in enumerate(values):
        if not isinstance(value, dict):
            raise ValueError(f"call {i}: it is no object")
        fields = _DEFAULTS | value  # in the order of the defaults
        if len(fields) > usual:
            for name in value.keys() - _DEFAULTS.keys():
                notes[f"unknown field {name!r}, ignored"] += 1
                del fields[name]
        rows.append(fields.values())
    columns = map(_column, Call._fields, zip(*rows, strict=True))
    return tuple(map(Call._make, zip(*columns, strict=True)))


def _column(name: str, column: tuple[Any, ...]) -> tuple[Any, ...]:
    """One field of all calls; null where it may be absent stands for its absence."""
    allowed, what = _TYPES[name]
    default = _DEFAULTS[name]
    types = set(map(type, column))
    if default is not None and NoneType in types:
        column = tuple(default if each is None else each for each in column)
        types = set(map(type, column))
    if not types <= allowed:
        i = next(i for i, each in enumerate(column) if type(each) not in allowed)
        if column[i] is None:
            raise ValueError(f"call {i}: field {name!r} is missing")
        raise ValueError(f"call {i}: {name} {column[i]!r} is no {what}")
    if name == "after":
        return tuple(map(tuple, column))
    if what == "number":
        if int in types:
            column = tuple(map(float, column))
        if not isfinite(sum(column)) and not all(map(isfinite, column)):
            raise ValueError(f"{name} holds a number that is not finite")
    elif what == "whole number" and int in types and min(filter(None, column), default=0) < 0:
        i = next(i for i, each in enumerate(column) if each is not None and each < 0)
        raise ValueError(f"call {i}: {name} {column[i]!r} is no {what}")
    return column


_DEFAULTS: dict[str, Any] = dict.fromkeys(Call._fields) | {
    "timed": True,
    "after": (),
    "shared": 0,
    "system": 0,
    "agent": "",
}
_TYPES: dict[str, tuple[frozenset[type], str]] = {
    **dict.fromkeys(("start_s", "end_s", "gap_s"), (frozenset((int, float)), "number")),
    **dict.fromkeys(("isl", "osl", "shared", "system"), (frozenset((int,)), "whole number")),
    **dict.fromkeys(("parent", "cached"), (frozenset((int, NoneType)), "whole number")),
    "timed": (frozenset((bool,)), "true or false"),
    "after": (frozenset((list, tuple)), "list"),
    "agent": (frozenset((str,)), "text"),
    "model": (frozenset((str, NoneType)), "text"),
}
"""Of each field of a call: its types, and what they are called."""


def _time(value: Mapping[str, Any], name: str) -> float:
    number = value[name]
    if type(number) not in (int, float) or not isfinite(number):
        raise ValueError(f"{name} {number!r} is no number")
    return float(number)


def _check(session: Session) -> None:
    """Raise ValueError naming the first rule of `trace.model` that is broken."""
    size, calls = session.block_size, session.calls
    if not calls:
        raise ValueError("calls is empty")
    before_s = calls[0].start_s
    for i, call in enumerate(calls):
        start_s, end_s, _, isl, osl, after, gap_s, parent, shared, system, _, _, cached = call
        fault = None
        if isl < 1:
            fault = "isl must be at least 1"
        elif isl > MOST_TOKENS or osl > MOST_TOKENS:
            fault = f"isl {isl} or osl {osl} is longer than any prompt or answer"
        elif gap_s < 0 or end_s < start_s:
            fault = "gap_s is negative or the call ends before it starts"
        elif start_s < before_s:
            fault = "starts before the call listed before it"
        elif after and not _are_earlier(after, i):
            fault = f"after {list(after)} names no earlier call"
        elif parent is None:
            if shared:
                fault = f"shares {shared} tokens but has no parent"
        elif parent >= i:
            fault = f"parent {parent} is no earlier call"
        elif not shared:
            fault = f"names parent {parent} and shares nothing with it"
        elif shared % size or shared > isl or shared > calls[parent].isl:
            fault = f"shared {shared} is no multiple of {size} that both prompts hold"
        if not fault and (system > isl or (cached is not None and cached > isl)):
            fault = f"system {system} or cached {cached} is more than the input of {isl}"
        if fault:
            raise ValueError(f"call {i}: {fault}")
        before_s = start_s


def _are_earlier(after: Sequence[object], i: int) -> bool:
    """Whether values are indices of calls before call *i*."""
    for j in after:  # noqa: SIM110 - a generator for each call takes twice the time
        if type(j) is not int or not 0 <= j < i:
            return False
    return True
