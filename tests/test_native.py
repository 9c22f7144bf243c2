"""The native format: one session a line, out and in again."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import needs_shared, weka_sessions

from agentreplay.errors import TraceError
from agentreplay.trace.formats import native
from agentreplay.trace.model import Call, Notes, Session

Value = dict[str, Any]

FIRST = Call(
    start_s=0.0,
    end_s=2.5,
    timed=True,
    isl=300,
    osl=40,
    after=(),
    gap_s=0.0,
    parent=None,
    shared=0,
    system=128,
    agent="",
    model="large",
    cached=0,
)
SUBAGENT = FIRST._replace(
    start_s=3.0, end_s=6.0, isl=200, after=(0,), gap_s=0.5, agent="sub", model=None,
    timed=False, system=0, cached=None,
)  # fmt: skip
LAST = FIRST._replace(
    start_s=9.0, end_s=9.0, isl=420, osl=0, after=(0, 1), gap_s=3.0, parent=0, shared=256,
    cached=250,
)  # fmt: skip
SESSION = Session("hand-made", 12.25, (FIRST, SUBAGENT, LAST), 64, "own.jsonl:1")


def again(session: Session) -> Session:
    """The session written and read."""
    return native.session(orjson.loads(native.line(session)), session.source)[0]


def value_of(session: Session) -> Value:
    """The session as decoded JSON."""
    value: Value = orjson.loads(native.line(session))
    return value


def notes_of(value: Value) -> Notes:
    """The notes alone."""
    return native.session(value, "own.jsonl:1")[1]


def in_microseconds(session: Session) -> Session:
    """The session with the times that the format can hold."""
    calls = tuple(
        call._replace(
            start_s=round(call.start_s, 6),
            end_s=round(call.end_s, 6),
            gap_s=round(call.gap_s, 6),
        )
        for call in session.calls
    )
    return replace(session, calls=calls)


# --- Round trips ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "session",
    [
        SESSION,
        replace(SESSION, start_s=None),
        replace(SESSION, start_s=0.0),
        replace(SESSION, id='"quoted"\n\u2028 and \U0001f600'),
        replace(SESSION, calls=(FIRST._replace(isl=1, osl=0, system=0, model=None, cached=None),)),
        replace(SESSION, block_size=1),
        replace(SESSION, calls=(FIRST._replace(isl=2**30, system=0),)),
    ],
    ids=["all fields", "no arrival", "arrival 0", "odd name", "least", "block of 1", "huge"],
)
def test_a_session_comes_back(session: Session) -> None:
    """What is written is read back equal."""
    assert again(session) == session


@needs_shared
def test_shared_sessions_come_back() -> None:
    """Every shared session is read back equal, to the microsecond."""
    changed = [each.id for each in weka_sessions() if again(each) != in_microseconds(each)]
    assert changed == []


def test_times_are_kept_to_the_microsecond() -> None:
    """Times are rounded to six digits, no less."""
    call = FIRST._replace(end_s=1.23456789, gap_s=0.1 + 0.2)
    read = again(replace(SESSION, calls=(call,))).calls[0]
    assert (read.end_s, read.gap_s) == (1.234568, 0.3)


def test_a_session_is_one_line() -> None:
    """A line ends in its only line feed, whatever a name holds."""
    line = native.line(replace(SESSION, id="two\nlines"))
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1


def test_what_is_absent_is_left_out() -> None:
    """Fields without a value are not written."""
    bare = FIRST._replace(system=0, model=None, cached=None)
    value = value_of(replace(SESSION, start_s=None, calls=(bare,)))
    assert value.keys() == {"agentreplay", "id", "block_size", "calls"}
    assert value["calls"][0].keys() == {"start_s", "end_s", "isl", "osl", "gap_s"}


@pytest.mark.parametrize("name", ["timed", "after", "parent", "shared", "system", "agent"])
def test_what_is_left_out_has_a_default(name: str) -> None:
    """A call without its optional fields is timed, waits for nobody and shares nothing."""
    value = value_of(replace(SESSION, calls=(FIRST._replace(system=0),)))
    assert name not in value["calls"][0]
    expected = {"timed": True, "after": (), "parent": None, "shared": 0, "system": 0, "agent": ""}
    assert getattr(native.session(value, "x")[0].calls[0], name) == expected[name]


def test_no_cached_tokens_is_not_unknown() -> None:
    """A recorded 0 of cached tokens stays apart from no record of them."""
    calls = again(SESSION).calls
    assert [call.cached for call in calls] == [0, None, 250]


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    """Any session that keeps the rules of the model."""
    size = draw(st.integers(1, 300))
    seconds = st.floats(0, 1e6)
    names = st.text(min_size=1, max_size=12)
    calls: list[Call] = []
    for i, start_s in enumerate(sorted(draw(st.lists(seconds, min_size=1, max_size=8)))):
        isl = draw(st.integers(1, 10**7))
        parent = draw(st.none() | st.integers(0, i - 1)) if i else None
        held = 0 if parent is None else min(isl, calls[parent].isl) // size
        shared = draw(st.integers(0, held)) * size
        after = draw(st.sets(st.integers(0, i - 1))) if i else set()
        calls.append(
            Call(
                start_s=start_s,
                end_s=start_s + draw(seconds),
                timed=draw(st.booleans()),
                isl=isl,
                osl=draw(st.integers(0, 10**6)),
                after=tuple(after),
                gap_s=draw(seconds),
                parent=parent if shared else None,
                shared=shared,
                system=draw(st.integers(0, isl)),
                agent=draw(st.just("") | names),
                model=draw(st.none() | names),
                cached=draw(st.none() | st.integers(0, isl)),
            )
        )
    return Session(draw(names), draw(st.none() | seconds), tuple(calls), size, "own.jsonl:7")


@settings(deadline=None, database=None, derandomize=True, max_examples=150)
@given(sessions())
def test_any_session_comes_back(session: Session) -> None:
    """Writing and reading is the identity on every valid session, to the microsecond."""
    assert again(session) == in_microseconds(session)


# --- Reading what others wrote --------------------------------------------------------------------


def changed(**fields: object) -> Value:
    """The hand-made session with other fields."""
    return value_of(SESSION) | fields


def with_call(i: int, **fields: object) -> Value:
    """The hand-made session with other fields in one call."""
    value = value_of(SESSION)
    value["calls"][i] |= fields
    return value


def lacking(name: str, i: int | None = None) -> Value:
    """The hand-made session without a field, or without one of a call."""
    value = value_of(SESSION)
    del (value if i is None else value["calls"][i])[name]
    return value


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (changed(block_size=0), "block_size"),
        (changed(block_size=-64), "block_size"),
        (changed(block_size=64.0), "block_size"),
        (changed(block_size=True), "block_size"),
        (changed(block_size="64"), "block_size"),
        (changed(block_size=None), "block_size"),
        (changed(calls=[]), "calls"),
        (with_call(0, isl=2.0), "call 0: isl 2.0 "),
        (with_call(0, isl=-1), "call 0: isl -1 "),
        (with_call(0, isl=None), "call 0: field 'isl' is missing"),
        (with_call(0, isl=0), "call 0: isl must be at least 1"),
        (with_call(1, osl=-1), "call 1: osl -1 "),
        (with_call(1, osl="7"), "call 1: osl '7' "),
        (with_call(1, osl=True), "call 1: osl True "),
        (with_call(2, shared=-64), "call 2: shared -64 "),
        (with_call(2, shared=64.0), "call 2: shared 64.0 "),
        (with_call(0, system=-1), "call 0: system -1 "),
        (with_call(0, system=1.5), "call 0: system 1.5 "),
        (with_call(2, gap_s=-0.1), "call 2: gap_s is negative"),
        (with_call(1, end_s=2.9), "call 1: gap_s is negative or the call ends before it starts"),
        (with_call(1, after=[1]), "call 1: after [1] names no earlier call"),
        (with_call(1, after=[2]), "call 1: after [2] names no earlier call"),
        (with_call(1, after=[-1]), "call 1: after [-1] names no earlier call"),
        (with_call(1, after=[0.0]), "call 1: after [0.0] names no earlier call"),
        (with_call(1, after=[False]), "call 1: after [False] names no earlier call"),
        (with_call(1, after=["0"]), "call 1: after ['0'] names no earlier call"),
        (with_call(1, shared=64), "call 1: shares 64 tokens but has no parent"),
        (with_call(1, parent=1), "call 1: parent 1 is no earlier call"),
        (with_call(1, parent=0), "call 1: names parent 0 and shares nothing with it"),
        (with_call(1, parent=2), "call 1: parent 2 is no earlier call"),
        (with_call(2, parent=-1), "call 2: parent -1 "),
        (with_call(2, parent=0.0), "call 2: parent 0.0 "),
        (with_call(2, parent=False), "call 2: parent False "),
        (with_call(2, shared=100), "call 2: shared 100 is no multiple of 64"),
        (with_call(2, shared=320), "call 2: shared 320 is no multiple of 64 that both"),
        (with_call(2, isl=192), "call 2: shared 256 is no multiple of 64 that both"),
    ],
)
def test_a_broken_rule_is_named(value: Value, cause: str) -> None:
    """A session that breaks a rule of the model is refused with its source, call and cause."""
    with pytest.raises(TraceError, match=rf"^own\.jsonl:1: {re.escape(cause)}"):
        native.session(value, "own.jsonl:1")


@pytest.mark.parametrize(
    ("value", "name"),
    [(lacking(name), f"field '{name}'") for name in ("id", "block_size")]
    + [
        (lacking(name, 1), f"call 1: field '{name}'")
        for name in ("start_s", "end_s", "isl", "osl", "gap_s")
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_missing_field_is_named(value: Value, name: str) -> None:
    """A session without a field that it needs is refused with source, call and field."""
    with pytest.raises(TraceError, match=rf"^own\.jsonl:1: {name} is missing"):
        native.session(value, "own.jsonl:1")


@pytest.mark.parametrize(
    "value",
    [
        changed(calls=None),
        changed(calls=7),
        changed(calls="no list"),
        changed(calls={"0": {}}),
        changed(calls=[5]),
        changed(calls=[None]),
        changed(calls=[[]]),
        with_call(0, start_s=None),
        with_call(0, end_s="soon"),
        with_call(0, start_s=[]),
        with_call(1, after=0),
    ],
    ids=lambda value: str(value["calls"])[:40],
)
def test_values_of_a_wrong_type_are_refused(value: Value) -> None:
    """A value of a wrong type ends in an error that names its source, whatever the type."""
    with pytest.raises(TraceError, match=r"^own\.jsonl:1: "):
        native.session(value, "own.jsonl:1")


@pytest.mark.parametrize(
    "value",
    [
        with_call(0, start_s="nan", end_s="nan"),
        with_call(0, end_s="inf"),
        with_call(0, end_s=True),
        with_call(0, timed="no"),
        with_call(0, model=7),
        with_call(0, cached=-1),
        changed(start_s="noon"),
        with_call(1, start_s=10.0, end_s=11.0),
    ],
    ids=[
        "nan", "infinite", "time as bool", "timed as text", "model a number",
        "cached negative", "arrival as text", "calls not in order of start",
    ],
)  # fmt: skip
def test_only_what_the_model_allows_is_read(value: Value) -> None:
    """A value that the model does not allow is refused, not carried into a session."""
    with pytest.raises(TraceError, match=r"^own\.jsonl:1: "):
        native.session(value, "own.jsonl:1")


@pytest.mark.parametrize("version", [0, 2, "1", None, 1.5])
def test_an_unknown_version_is_refused(version: object) -> None:
    """Another version is refused with source, version found and version known."""
    with pytest.raises(TraceError) as raised:
        native.session(changed(agentreplay=version), "own.jsonl:1")
    expected = f"own.jsonl:1: native format version {version!r}; this program reads version 1"
    assert str(raised.value).startswith(expected)


def test_an_unknown_version_is_refused_before_its_rules() -> None:
    """A newer version may have other rules, so only the version is complained about."""
    with pytest.raises(TraceError, match="version 2"):
        native.session({"agentreplay": 2, "calls": "elsewhere"}, "own.jsonl:1")


@pytest.mark.parametrize(
    ("value", "note"),
    [
        (changed(colour="red"), {"unknown field 'colour', ignored": 1}),
        (with_call(1, mood=1), {"unknown field 'mood', ignored": 1}),
        (value_of(SESSION), {}),
    ],
    ids=["session", "call", "none"],
)
def test_unknown_fields_are_noted(value: Value, note: dict[str, int]) -> None:
    """A field that the format does not have is named in the notes."""
    assert notes_of(value) == note


def test_unknown_fields_change_nothing() -> None:
    """A session with unknown fields reads as without them."""
    value = changed(colour="red")
    value["calls"][0]["mood"] = [1]
    assert native.session(value, SESSION.source)[0] == SESSION


def test_notes_count() -> None:
    """The same unknown field in several calls is one note with their number."""
    value = value_of(SESSION)
    for call in value["calls"]:
        call["mood"] = 1
    assert notes_of(value) == {"unknown field 'mood', ignored": 3}


def test_reading_leaves_the_value_alone() -> None:
    """The decoded value is the same after it was read."""
    value = value_of(SESSION)
    before = deepcopy(value)
    native.session(value, "x")
    assert value == before


def alone(name: str) -> Value:
    """The hand-made session reduced to one of the fields that mark the format."""
    return {name: value_of(SESSION)[name]}


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: value_of(SESSION), True),
        (lambda: changed(agentreplay=99), True),
        (lambda: alone("agentreplay"), False),
        (lambda: alone("calls"), False),
        (lambda: [value_of(SESSION)], False),
        (lambda: None, False),
    ],
    ids=["session", "other version", "no calls", "no version", "list", "null"],
)
def test_a_native_session_is_recognised(make: Callable[[], object], expected: bool) -> None:
    """An object with a version and calls is native, whatever its version."""
    assert native.recognises(make()) is expected
