"""The batch reader: lines of requests and of answers in, sessions of one call out."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
import readers
from hypothesis import given, settings
from readers import READING
from shared_data import SHARED, needs_shared

from agentreplay.trace.formats import openai_batch
from agentreplay.trace.model import Notes, Session
from agentreplay.trace.recorded import Draft, Reading, session

Row = dict[str, Any]


def asked(name: object, **fields: Any) -> Row:
    """A request with a system prompt that is half of it."""
    messages = [{"role": "system", "content": "s" * 44}, {"role": "user", "content": "u" * 46}]
    body = {"model": "m", "messages": messages} | fields
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}


def answered(name: object, isl: object = 100, **fields: Any) -> Row:
    """An answer of five tokens."""
    body = {
        "id": f"c-{name}",
        "model": "m-1",
        "usage": {
            "prompt_tokens": isl,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 64},
        },
    }
    row = {"id": "b", "custom_id": name, "response": {"status_code": 200, "body": body}}
    return row | {"error": None} | fields


def drafts(*files: list[Any], reading: Reading = READING) -> tuple[list[Draft], Notes]:
    """The drafts of files given as rows, and the notes of all of them."""
    return readers.drafts(openai_batch, readers.numbered(files), reading)


def sessions(*files: list[Any], reading: Reading = READING) -> list[Session]:
    """The sessions of files given as rows."""
    return readers.sessions(openai_batch, readers.numbered(files), reading)


def test_a_request_is_a_session_of_one_call() -> None:
    """Without times it begins at once; its end is estimated."""
    (draft,), noted = drafts([asked("a")], [answered("a")])
    (call,) = session(draft)[0].calls
    assert (call.isl, call.osl, call.cached, call.model, call.system) == (100, 5, 64, "m", 50)
    assert (call.start_s, call.timed, draft.start_s, draft.dated) == (0.0, False, None, False)
    assert (draft.id, noted) == ("0.jsonl:1", {})


def test_sessions_are_in_the_order_of_the_requests() -> None:
    """Answers come in another order, in any number of files before or after."""
    requests = [asked("a"), asked("b"), asked("c")]
    answers = [[answered("c", 300)], [answered("b", 200), answered("a", 100)]]
    for files in ([requests, *answers], [*answers, requests]):
        assert [one.calls[0].isl for one in sessions(*files)] == [100, 200, 300]


def test_answers_stand_without_their_requests() -> None:
    """They have the lengths, and the model that answered."""
    (only,) = sessions([answered("a")])
    assert [(call.isl, call.model, call.system) for call in only.calls] == [(100, "m-1", 0)]


def test_requests_alone_have_no_lengths() -> None:
    """They are left out and noted."""
    assert drafts([asked("a")]) == ([], {"requests without an answer, left out": 1})


@pytest.mark.parametrize(
    "row",
    [
        answered("b", response={"status_code": 429, "body": {"error": {"message": "x"}}}),
        answered("b", response={"status_code": 200, "body": {"error": {"message": "x"}}}),
        answered("b", response=None, error={"code": "batch_expired"}),
        answered("b", error={"code": "x"}),
        answered("b", response={"status_code": 200, "body": None}),
    ],
    ids=range(5),
)
def test_failed_requests_are_left_out(row: Row) -> None:
    """They are noted in the file of the answers, and in that of the requests."""
    found, noted = drafts([asked("a"), asked("b")], [answered("a"), row])
    assert len(found) == 1
    assert noted == {"failed calls, left out": 1, "requests without an answer, left out": 1}


def test_an_error_file_does_not_hide_a_later_answer() -> None:
    """A request that failed in one batch and was answered in another is a call."""
    failed = answered("a", response=None, error={"code": "batch_expired"})
    assert len(sessions([failed], [asked("a")], [answered("a")])) == 1


def test_names_that_come_twice_count_once() -> None:
    """The first line of a name counts, of requests and of answers."""
    files = [asked("a"), asked("a", model="q")], [answered("a", 100), answered("a", 200)]
    found, noted = drafts(*map(list, files))
    assert [(draft.calls[0].isl, draft.calls[0].model) for draft in found] == [(100, "m")]
    assert noted == {"lines with the custom_id of another, left out": 2}


def test_answers_without_usage_need_a_length_of_tokens() -> None:
    """Lengths then are characters over characters a token."""
    body = {"choices": [{"message": {"content": "x" * 40}}]}
    files = [asked("a")], [answered("a", response={"status_code": 200, "body": body})]
    assert drafts(*map(list, files))[1] == {"calls without usage, left out": 1}
    (only,) = sessions(*map(list, files), reading=Reading(key=b"k", chars_per_token=4.0))
    assert [(call.isl, call.osl) for call in only.calls] == [(25, 10)]


def test_requests_that_are_no_calls_are_left_out() -> None:
    """Embeddings have an input and no messages, but a path of their own."""
    embedding = {"custom_id": "e", "url": "/v1/embeddings", "body": {"input": "x"}}
    other = {"custom_id": "o", "url": "/v1/chat/completions", "body": {"model": "m"}}
    assert drafts([embedding, other])[1] == {"requests that are no LLM calls, left out": 2}


def test_batches_of_the_messages_api_are_read() -> None:
    """They have other names for the same."""
    request = {"custom_id": "a", "params": {"model": "m", "messages": ["hi"]}}
    usage = {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 5}
    message = {"id": "msg", "usage": usage}
    answer = {"custom_id": "a", "result": {"type": "succeeded", "message": message}}
    failed = {"custom_id": "b", "result": {"type": "expired"}}
    found, noted = drafts([request], [answer, failed])
    assert [(d.calls[0].isl, d.calls[0].osl, d.calls[0].cached) for d in found] == [(100, 5, 90)]
    assert noted == {"failed calls, left out": 1}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (asked("a"), True),
        (answered("a"), True),
        (answered("a", response=None, error={"code": 1}), True),
        ({"custom_id": "a"}, False),
        ({"custom_id": 3, "body": {}}, False),
        ({"body": {}, "timestamp": 1}, False),
        ([], False),
        (None, False),
    ],
    ids=range(8),
)
def test_a_line_is_recognised(value: object, expected: bool) -> None:
    """A line has a `custom_id` and a body, a response or an error."""
    assert openai_batch.recognises(value) is expected


def test_no_recorded_text_is_kept() -> None:
    """Neither texts nor names of requests are kept."""
    rows = [asked("SECRET", messages=[{"role": "user", "content": "SECRET"}])]
    assert "SECRET" not in repr(drafts(rows, [answered("SECRET")])[0])


FIELDS = "custom_id url body params response result error id".split()
ROWS = [asked("a"), answered("a"), asked("b")]


@settings(deadline=None, max_examples=200)
@given(readers.damaged(ROWS, fields=FIELDS))
def test_any_value_in_any_field_is_taken(rows: list[Any]) -> None:
    """Whatever stands in a field, there are sessions that keep the rules."""
    for made in readers.assert_survives(openai_batch, {"x.jsonl": rows}):
        assert len(made.calls) == 1


@needs_shared
def test_shared_batch() -> None:
    """Two requests, one refused; answers in another order."""
    folder = SHARED / "data" / "formats" / "openai-batch"
    files = [
        [orjson.loads(line) for line in (folder / f"generated_{n}.jsonl").read_bytes().splitlines()]
        for n in ("input", "output")
    ]
    found, noted = drafts(*files)
    assert [(d.source, d.calls[0].isl, d.calls[0].osl) for d in found] == [("0.jsonl:2", 61, 3)]
    assert noted == {"failed calls, left out": 1, "requests without an answer, left out": 1}
