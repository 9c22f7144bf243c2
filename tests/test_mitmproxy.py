"""The mitmproxy reader: tnetstrings to flows, and flows to sessions and notes."""

from __future__ import annotations

import gzip
from pathlib import PurePath
from typing import Any

import orjson
import pytest
import readers
from format_samples import tnetstrings
from hypothesis import given, settings
from hypothesis import strategies as st
from readers import READING
from shared_data import SHARED, needs_shared

from agentreplay.errors import TraceError
from agentreplay.trace.formats import mitmproxy
from agentreplay.trace.model import Notes, Session
from agentreplay.trace.recorded import Draft, session

Row = dict[str, Any]

T = 1767225600.0


def tnetstring(value: object) -> bytes:
    """A value as mitmproxy writes it."""
    return tnetstrings([value])


def flow(seconds: float, *texts: str, **fields: Any) -> Row:
    """A flow of two seconds with these messages, unless told otherwise."""
    messages = [{"role": "user", "content": each} for each in texts or ("hi",)]
    answer = {"id": f"c{seconds}", "usage": {"prompt_tokens": 900, "completion_tokens": 20}}
    request = {
        "method": b"POST",
        "path": b"/v1/chat/completions",
        "headers": [[b"Authorization", b"Bearer SECRET"]],
        "content": orjson.dumps({"model": "m", "messages": messages}),
        "timestamp_start": T + seconds,
        "timestamp_end": T + seconds + 0.1,
    }
    response: Row | None = {
        "status_code": 200,
        "headers": [[b"content-type", b"application/json"]],
        "content": orjson.dumps(answer),
        "timestamp_start": T + seconds + 1,
        "timestamp_end": T + seconds + 2,
    }
    changed = fields.pop("response", {})
    response = None if changed is None else (response or {}) | changed
    row = {"type": "http", "version": 21, "id": "f", "error": None, "client_conn": {"sni": None}}
    request |= fields.pop("request", {})
    return row | {"request": request, "response": response} | fields


def drafts(*files: bytes) -> tuple[list[Draft], Notes]:
    """The drafts of files given as bytes, and the notes of all of them."""
    flows = {path: mitmproxy.flows(data) for path, data in readers.numbered(files, ".mitm").items()}
    return readers.drafts_of(mitmproxy, flows)


def sessions(*flows: object) -> list[Session]:
    """The sessions of one file."""
    data = b"".join(map(tnetstring, flows))
    return readers.put_together(drafts(data)[0])[0]


def notes(*flows: object) -> dict[str, int]:
    """The notes on one file, which begins with a good call."""
    return dict(drafts(b"".join(map(tnetstring, (flow(0), *flows))))[1])


# --- Tnetstrings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        b"a:b",
        "ä",
        7,
        -7,
        1767225600.25,
        True,
        False,
        None,
        [],
        [1, [b"x", None]],
        {"a": {"b": b""}},
    ],
    ids=repr,
)
def test_values_are_read(value: object) -> None:
    """Each type comes back as what it was."""
    assert list(mitmproxy.flows(tnetstring(value))) == [(1, value)]


def test_keys_are_text() -> None:
    """Some versions write them as bytes."""
    assert list(mitmproxy.flows(tnetstring({b"a": 1}))) == [(1, {"a": 1})]


def test_flows_are_numbered() -> None:
    """They stand one after another."""
    data = b"".join(map(tnetstring, [1, 2, 3]))
    assert list(mitmproxy.flows(data)) == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize(
    "rest",
    [b"5", b"5:", b"5:ab", b"5:abcde", b"x:", b"3:abc?", b"3:a:b}", b"1:1}", b"3:5:a]", b"1:x#"],
)
def test_a_broken_flow_ends_the_file(rest: bytes) -> None:
    """None stands for all that can't be read."""
    assert list(mitmproxy.flows(tnetstring(1) + rest)) == [(1, 1), (2, None)]


def test_deep_values_are_broken() -> None:
    """No flow is nested like that."""
    data = b""
    for _ in range(2000):
        data = b"%d:%s]" % (len(data), data)
    assert list(mitmproxy.flows(data)) == [(1, None)]


@given(st.binary(max_size=80))
def test_any_bytes_are_taken(data: bytes) -> None:
    """Whatever bytes come, they are flows or the end."""
    list(mitmproxy.flows(data))


@settings(deadline=None)
@given(st.data())
def test_a_file_may_be_damaged_anywhere(data: st.DataObject) -> None:
    """Flows before the damage are read."""
    whole = bytearray(tnetstring(flow(0)) + tnetstring(flow(5, "hi", "you")))
    first = len(tnetstring(flow(0)))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(at, len(whole)))
    try:
        found, _ = drafts(bytes(whole[:end]))
    except TraceError:
        found = []
    if at >= first:
        assert found
    for made in readers.put_together(found)[0]:
        readers.assert_well_formed(made)


# --- Calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (flow(0), True),
        (flow(0, type=b"http"), True),
        (flow(0, type="tcp"), False),
        ({"request": {}, "response": {}}, False),
        ({"type": "http", "version": 1, "request": None}, False),
        ([], False),
        (None, False),
    ],
    ids=lambda value: value if isinstance(value, bool) else "",
)
def test_a_flow_is_recognised(value: object, expected: bool) -> None:
    """A flow of HTTP has a type, a version and a request."""
    assert mitmproxy.recognises(value) is expected


def test_times_are_those_of_the_sockets() -> None:
    """A call is from the first byte of the request to the last of the answer."""
    (draft,), noted = drafts(tnetstring(flow(5)))
    call = draft.calls[0]
    assert (call.start_s, call.end_s, call.isl, call.osl, call.model) == (
        T + 5,
        T + 7,
        900,
        20,
        "m",
    )
    assert (draft.dated, draft.source, noted) == (True, "0.mitm:1", {})


def test_calls_find_their_sessions() -> None:
    """Prompts that continue another belong to it; starts are those recorded."""
    (first, second) = sessions(flow(0, "a"), flow(1, "x"), flow(5, "a", "b"), flow(9, "x", "y"))
    assert [call.start_s for call in first.calls] == [0.0, 5.0]
    assert [call.gap_s for call in second.calls] == [0.0, 6.0]
    assert first.calls[1].shared == 896


def test_sessions_are_named_in_headers() -> None:
    """Names and values are bytes or text, by version."""
    one = flow(0, "a", request={"headers": [[b"X-Session-Id", b"s"]]})
    other = flow(5, "b", request={"headers": [["x-session-id", "s"]]})
    assert len(sessions(one, other)) == 1


def test_text_may_stand_for_bytes() -> None:
    """Versions differ in what is which."""
    body = orjson.dumps({"messages": [{"role": "user", "content": "hi"}]}).decode()
    text = flow(0, request={"method": "POST", "path": "/v1/chat/completions", "content": body})
    assert len(sessions(text)) == 1


def test_contents_are_compressed_as_they_came() -> None:
    """Their encoding is undone."""
    answer = gzip.compress(b'{"usage": {"prompt_tokens": 70, "completion_tokens": 7}}')
    response = {"content": answer, "headers": [[b"Content-Encoding", b"gzip"]]}
    assert sessions(flow(0, response=response))[0].calls[0].isl == 70


@pytest.mark.parametrize(
    ("row", "note"),
    [
        (flow(5, request={"method": b"GET"}), "requests that are no LLM calls, left out"),
        (flow(5, request={"path": b"/v1/models"}), "requests that are no LLM calls, left out"),
        (flow(5, request={"path": None}), "requests that are no LLM calls, left out"),
        (flow(5, request={"content": None}), "LLM requests without a readable body, left out"),
        (flow(5, response=None), "failed calls, left out"),
        (flow(5, response={"status_code": 429}), "failed calls, left out"),
        (flow(5, response={"content": None}), "calls without usage, left out"),
        (flow(5, request={"timestamp_start": None}), "calls without a time, left out"),
        (flow(5, type="tcp"), "flows that are no HTTP, left out"),
        ([], "flows that are no HTTP, left out"),
    ],
    ids=range(10),
)
def test_what_is_no_call_is_left_out(row: object, note: str) -> None:
    """It is noted."""
    assert notes(row) == {note: 1}


def test_a_file_that_was_cut_off_is_noted() -> None:
    """With the number of the flow."""
    data = tnetstring(flow(0)) + tnetstring(flow(5))[:-40]
    assert drafts(data)[1].lines == {"flows that are broken or cut off, left out": [2]}


def test_a_stream_that_was_passed_through_has_no_end() -> None:
    """Where usage is known without the last stamp, the end is estimated."""
    (only,) = sessions(flow(0, response={"timestamp_end": None}))
    assert not only.calls[0].timed


def test_a_file_without_any_usage_is_refused() -> None:
    """The message says what supplies the lengths."""
    with pytest.raises(TraceError, match=r"^0\.mitm: .*--chars-per-token"):
        drafts(tnetstring(flow(0, response={"content": None})))


def test_no_secret_is_kept() -> None:
    """No header and no text of a body is kept."""
    rows = [(1, flow(0, "SECRET", request={"headers": [["x-session-id", "SECRET"]]}))]
    part = mitmproxy.read(rows, PurePath("x.mitm"), READING, Notes())
    assert "SECRET" not in repr((part, mitmproxy.drafts([part], READING)))


# --- The shared recording -------------------------------------------------------------------------


@needs_shared
def test_shared_flows() -> None:
    """Four flows, one refused: three calls of one named session."""
    data = (SHARED / "data/formats/mitmproxy/generated_llm_flows.mitm").read_bytes()
    assert len(list(mitmproxy.flows(data))) == 4
    (draft,), noted = drafts(data)
    found = session(draft)[0].calls
    assert noted == {"failed calls, left out": 1}
    assert [(c.start_s, c.end_s) for c in found] == [(0.0, 2.5), (10.0, 12.5), (20.0, 22.5)]
    assert [(c.isl, c.osl, c.cached) for c in found] == [
        (812, 12, 768),
        (900, 2, None),
        (1703, 44, 1500),
    ]
    assert (found[1].parent, found[1].shared) == (0, 768)
