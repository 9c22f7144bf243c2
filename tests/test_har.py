"""The HAR reader: a decoded document in, sessions and notes out."""

from __future__ import annotations

import gzip
import zlib
from base64 import b64encode
from pathlib import PurePath
from random import Random
from typing import Any

import orjson
import pytest
import readers
from hypothesis import given, settings
from readers import READING
from shared_data import SHARED, needs_shared

from agentreplay.errors import TraceError
from agentreplay.trace.formats import har
from agentreplay.trace.model import Notes, Session
from agentreplay.trace.recorded import Draft, Reading, session

Row = dict[str, Any]

EXAMPLE = orjson.loads(
    r"""{"log":{"version":"1.2","creator":{"name":"x","version":"1"},"entries":[
    {"startedDateTime":"2026-01-02T10:00:00.000Z","time":3000,
     "timings":{"blocked":0,"dns":-1,"connect":-1,"send":1,"wait":799,"receive":2200},
     "request":{"method":"POST","url":"https://h/v1/chat/completions","headers":[],
      "postData":{"mimeType":"application/json",
       "text":"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"}},
     "response":{"status":200,"headers":[],"content":{"mimeType":"application/json",
      "text":"{\"id\":\"x\",\"choices\":[{\"message\":{\"role\":\"assistant\",\"content\":\"yo\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2}}"}}}
    ]}}"""
)

USAGE = {"prompt_tokens": 900, "completion_tokens": 20}


def text(value: object) -> str:
    """A value as JSON."""
    return orjson.dumps(value).decode()


def entry(seconds: float, *texts: str, **fields: Any) -> Row:
    """A call of two seconds with these messages, unless told otherwise."""
    messages = [{"role": "user", "content": each} for each in texts or ("hi",)]
    answer = {"id": f"c{seconds}", "usage": USAGE}
    request = {
        "method": "POST",
        "url": "https://h/v1/chat/completions?x=1",
        "headers": [{"name": "Authorization", "value": "Bearer SECRET"}],
        "postData": {"text": text({"model": "m", "messages": messages})},
    }
    row = {
        "startedDateTime": f"2026-01-02T10:00:{seconds:06.3f}Z",
        "time": 2000,
        "request": request | fields.pop("request", {}),
        "response": {"status": 200, "content": {"text": text(answer)}} | fields.pop("response", {}),
    }
    return row | fields


def document(*entries: object) -> Row:
    """A HAR of these entries."""
    return {"log": {"version": "1.2", "entries": list(entries)}}


def drafts(*documents: object, reading: Reading = READING) -> tuple[list[Draft], Notes]:
    """The drafts of files given as documents, and the notes of all of them."""
    return readers.drafts(har, readers.numbered(([each] for each in documents), ".har"), reading)


def sessions(*entries: object, reading: Reading = READING) -> list[Session]:
    """The sessions of one file."""
    return readers.sessions(har, {"0.har": [document(*entries)]}, reading)


def notes(*entries: object) -> dict[str, int]:
    """The notes on one file, which begins with a good call."""
    return dict(drafts(document(entry(0), *entries))[1])


def spans(*entries: object) -> list[list[tuple[float, float]]]:
    """Start and end of the calls of each session."""
    return [[(c.start_s, round(c.end_s, 6)) for c in s.calls] for s in sessions(*entries)]


# --- The example ----------------------------------------------------------------------------------


def test_the_example() -> None:
    """Nine tokens in, two out, three seconds from the start of the entry."""
    (draft,), noted = drafts(EXAMPLE)
    (call,) = session(draft)[0].calls
    assert (call.isl, call.osl, call.cached, call.model, call.timed) == (9, 2, None, "m", True)
    assert (draft.start_s, call.end_s, draft.dated) == (1767348000.0, 3.0, True)
    assert (draft.id, noted) == ("0.har:1", {})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (EXAMPLE, True),
        (document(), True),
        ({"log": {"entries": None}}, False),
        ({"log": []}, False),
        ({"entries": []}, False),
        ([EXAMPLE], False),
        (None, False),
    ],
    ids=str,
)
def test_a_har_is_recognised(value: object, expected: bool) -> None:
    """A log with a list of entries is a HAR."""
    assert har.recognises(value) is expected


# --- Times and sessions ---------------------------------------------------------------------------


def test_a_call_starts_when_it_is_no_longer_blocked() -> None:
    """Waiting for a connection of the browser is no part of it; its end stays."""
    blocked = entry(0, timings={"blocked": 500, "wait": 1500})
    (draft,), _ = drafts(document(blocked))
    call = draft.calls[0]
    assert (call.start_s, call.end_s) == (1767348000.5, 1767348002.0)


@pytest.mark.parametrize("timings", [None, {}, {"blocked": -1}, {"blocked": None}, 3])
def test_times_that_are_not_there_are_nothing(timings: object) -> None:
    """-1 says that a time does not apply."""
    assert spans(entry(0, timings=timings)) == [[(0.0, 2.0)]]


@pytest.mark.parametrize("took", [None, -1, "x"])
def test_a_call_without_a_duration_is_estimated(took: object) -> None:
    """Its end is not measured."""
    (only,) = sessions(entry(0, time=took))
    assert not only.calls[0].timed


def test_entries_may_be_in_any_order() -> None:
    """Sessions follow the times, and starts are those recorded."""
    rows = [entry(0, "a"), entry(5, "a", "b"), entry(9, "a", "b", "c")]
    for seed in range(6):
        shuffled = rows.copy()
        Random(seed).shuffle(shuffled)
        (only,) = sessions(*shuffled)
        assert [call.start_s for call in only.calls] == [0.0, 5.0, 9.0]
        assert [call.after for call in only.calls] == [(), (0,), (1,)]
        assert [call.gap_s for call in only.calls] == pytest.approx([0.0, 3.0, 2.0])


def test_a_continued_prompt_is_shared() -> None:
    """A call shares the whole prompt of the one that it continues, in whole blocks."""
    (only,) = sessions(entry(0, "a"), entry(5, "a", "b"))
    assert (only.calls[1].parent, only.calls[1].shared) == (0, 896)


def test_named_sessions_are_told_by_header() -> None:
    """Names of headers have any case, and an agent's header labels its calls."""
    named = [{"name": "X-Claude-Code-Session-Id", "value": "s"}]
    agent = [*named, {"name": "x-claude-code-agent-id", "value": "a"}]
    (only,) = sessions(
        entry(0, "a", request={"headers": named}), entry(5, "b", request={"headers": agent})
    )
    assert [call.agent for call in only.calls] == ["", "agent 1"]


def test_a_file_that_is_there_twice_counts_once() -> None:
    """Copies of an entry in other files are left out and noted."""
    found, noted = drafts(document(entry(0), entry(5)), document(entry(5)))
    assert sum(len(draft.calls) for draft in found) == 2
    assert noted == {"calls that were read before, left out": 1}


# --- What is left out -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        {"method": "OPTIONS"},
        {"method": "GET", "url": "https://h/v1/responses/r"},
        {"url": "https://h/v1/messages/count_tokens"},
        {"url": "https://h/v1/embeddings"},
        {"url": None},
        {"method": None},
    ],
    ids=str,
)
def test_other_requests_are_left_out(request_: Row) -> None:
    """Preflights, other methods and other paths are no calls."""
    assert notes(entry(5, request=request_)) == {"requests that are no LLM calls, left out": 1}


@pytest.mark.parametrize("status", [0, 429, 500, None])
def test_failed_calls_are_left_out(status: object) -> None:
    """Status 0 says that a call was aborted."""
    assert notes(entry(5, response={"status": status})) == {"failed calls, left out": 1}


@pytest.mark.parametrize(
    "post", [None, {}, {"text": None}, {"text": "{broken"}, {"text": "[1]"}, {"text": '["!"]'}]
)
def test_calls_without_a_request_body_are_left_out(post: object) -> None:
    """They are noted with the entry's number."""
    found = drafts(document(entry(0), entry(5, request={"postData": post})))[1]
    assert found == {"LLM requests without a readable body, left out": 1}
    assert found.lines == {"LLM requests without a readable body, left out": [2]}


@pytest.mark.parametrize("content", [None, {}, {"text": ""}, {"text": '["gggg"'}])
def test_calls_without_a_response_body_are_left_out(content: object) -> None:
    """Browsers leave out the bodies of streams: without usage there are no lengths."""
    assert notes(entry(5, response={"content": content})) == {"calls without usage, left out": 1}


def test_calls_without_a_time_are_left_out() -> None:
    """They are noted."""
    assert notes(entry(5, startedDateTime="noon")) == {"calls without a time, left out": 1}


@pytest.mark.parametrize("row", [None, [], "x", {}])
def test_entries_that_are_no_requests_are_left_out(row: object) -> None:
    """They are noted."""
    assert notes(row) == {"requests that are no LLM calls, left out": 1}


def test_records_that_are_no_har_are_left_out() -> None:
    """They are noted with their line."""
    found = Notes()
    har.read([(1, EXAMPLE), (2, {"a": 1})], PurePath("x.har"), READING, found)
    assert found.lines == {"records that are no HAR, left out": [2]}


def test_a_file_without_any_usage_is_refused() -> None:
    """The message says what supplies the lengths."""
    silent = entry(0, response={"content": {"text": text({"choices": []})}})
    with pytest.raises(TraceError, match=r"^0\.har: .*--chars-per-token"):
        drafts(document(silent))
    said = {"choices": [{"message": {"content": "x" * 40}}]}
    (only,) = sessions(
        entry(0, "y" * 396, response={"content": {"text": text(said)}}),
        reading=Reading(key=b"k", chars_per_token=4.0),
    )
    assert [(call.isl, call.osl) for call in only.calls] == [(100, 10)]


# --- Bodies ---------------------------------------------------------------------------------------

ANSWER = text({"id": "x", "usage": {"prompt_tokens": 70, "completion_tokens": 7}}).encode()
STREAM = b'data: {"choices": [], "usage": {"prompt_tokens": 70, "completion_tokens": 7}}\n\n'


def encoded(data: bytes) -> str:
    """Bytes as base64."""
    return b64encode(data).decode()


@pytest.mark.parametrize(
    "content",
    [
        {"text": ANSWER.decode()},
        {"text": "\ufeff" + ANSWER.decode()},
        {"text": encoded(ANSWER), "encoding": "base64"},
        {"text": encoded(ANSWER)},
        {"text": encoded(STREAM), "encoding": "base64"},
        {"text": STREAM.decode()},
        {"text": STREAM.decode().replace("\n", "\r\n")},
        {"text": encoded(gzip.compress(ANSWER)), "encoding": "base64"},
        {
            "text": text(
                [encoded(gzip.compress(ANSWER)[:20]), encoded(gzip.compress(ANSWER)[20:])]
            ),
            "encoding": "base64",
        },
        {"text": text([encoded(ANSWER[:9]), encoded(ANSWER[9:])])},
    ],
    ids=[
        *"plain bom base64 unmarked stream-base64 stream stream-crlf".split(),
        *"gzip gzip-chunks chunks".split(),
    ],
)
def test_bodies_are_decoded(content: Row) -> None:
    """Text, base64, compressed base64, and lists of such chunks are the same answer."""
    (only,) = sessions(entry(0, response={"content": content}))
    assert [(call.isl, call.osl) for call in only.calls] == [(70, 7)]


def test_deflate_is_told_by_the_header() -> None:
    """Bytes in base64 are as they came, so the header says how to read them."""
    response = {
        "content": {"text": encoded(zlib.compress(ANSWER)), "encoding": "base64"},
        "headers": [{"name": "Content-Encoding", "value": "deflate"}],
    }
    (only,) = sessions(entry(0, response=response))
    assert only.calls[0].isl == 70


def test_request_bodies_may_be_base64() -> None:
    """Some tools write them so, without a mark."""
    body = text({"model": "q", "messages": [{"role": "user", "content": "hi"}]}).encode()
    for post in ({"text": encoded(body)}, {"text": encoded(gzip.compress(body))}):
        assert sessions(entry(0, request={"postData": post}))[0].calls[0].model == "q"


def test_no_secret_is_kept() -> None:
    """No header and no text of a body is kept in a part or a draft."""
    key = [{"name": "x-session-id", "value": "SECRET"}, {"name": "cookie", "value": "SECRET"}]
    row = entry(0, "SECRET", request={"headers": key, "url": "https://h/v1/messages?key=SECRET"})
    found, _ = drafts(document(row))
    part = har.read([(1, document(row))], PurePath("x.har"), READING, Notes())
    assert "SECRET" not in repr((part, found))


# --- Whatever comes -------------------------------------------------------------------------------

GOOD = document(entry(0, "a"), entry(3, "a", "b"), EXAMPLE["log"]["entries"][0])


@settings(deadline=None, max_examples=200)
@given(readers.damaged([GOOD]))
def test_any_value_in_any_field_is_taken(documents: list[Any]) -> None:
    """Whatever stands in a field, there is an error in words or sessions that keep the rules."""
    readers.assert_survives(har, {"x.har": documents}, may_refuse=True)


# --- The shared recordings ------------------------------------------------------------------------

FOLDER = SHARED / "data" / "formats"


@needs_shared
def test_shared_counts() -> None:
    """Lengths and durations of the shared files are those that their list states."""
    expected = orjson.loads((FOLDER / "EXPECTED.json").read_bytes())
    seen = 0
    for path in sorted((FOLDER / "har").glob("*.har")):
        document = orjson.loads(path.read_bytes())
        (wanted,) = expected[f"har/{path.name}"]
        if wanted["usage"] is None:
            with pytest.raises(TraceError, match="chars-per-token"):
                drafts(document)
            continue
        (draft,), noted = drafts(document)
        (call,) = draft.calls
        usage = wanted["usage"]
        assert call.isl == usage.get("prompt_tokens", usage.get("input_tokens"))
        assert call.osl == usage.get("completion_tokens", usage.get("output_tokens"))
        assert call.start_s is not None
        assert call.end_s is not None
        assert round((call.end_s - call.start_s) * 1e3) == wanted["time_ms"]
        assert noted == {}
        seen += 1
    assert seen == 5


@needs_shared
def test_shared_cached_tokens() -> None:
    """The compressed answer of the Responses API has 13 of its 14 tokens from the cache."""
    path = FOLDER / "har" / "openai_responses_gzip_base64.har"
    (draft,), _ = drafts(orjson.loads(path.read_bytes()))
    assert (draft.calls[0].isl, draft.calls[0].cached) == (14, 13)
