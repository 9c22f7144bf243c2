"""The reader of published logs of arrivals: Bailian, BurstGPT, Azure."""

from __future__ import annotations

import csv
from typing import Any

import orjson
import pytest
import readers
from hypothesis import given, settings

from agentreplay.errors import TraceError
from agentreplay.trace import recorded
from agentreplay.trace.formats import arrivals, dynamo, mooncake, weka
from agentreplay.trace.model import Notes, Session
from agentreplay.trace.recorded import Draft

Row = dict[str, Any]

PATH = "own.csv"


def chat(number: object, parent: object, seconds: object, ids: list[Any], **fields: Any) -> Row:
    """A Bailian row whose prompt fills its blocks but for two tokens of the last."""
    value = {"chat_id": number, "parent_chat_id": parent, "timestamp": seconds,
             "input_length": 16 * len(ids) - 2, "output_length": 35, "type": "text", "turn": 1,
             "hash_ids": ids}  # fmt: skip
    return value | fields


def table(text: str) -> list[Row]:
    """The rows of a CSV file by its header, all values as text."""
    return list(csv.DictReader(text.splitlines()))


BURSTGPT = table(
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\r\n"
    "5,ChatGPT,472,18,490,Conversation log\r\n"
    "45.5,GPT-4,1087,0,1087,API log\r\n"
)
AZURE = table(
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109\r\n"
)


def drafts(*rows: object) -> tuple[list[Draft], Notes]:
    """The drafts of a file with these rows, and its notes."""
    return readers.drafts(arrivals, {PATH: rows})


def sessions(*rows: object) -> list[Session]:
    """The sessions of a file with these rows."""
    return readers.sessions(arrivals, {PATH: rows})


def noted(*rows: object) -> Notes:
    """The notes of a file with these rows."""
    return drafts(*rows)[1]


# --- Bailian --------------------------------------------------------------------------------------


def test_stamps_of_bailian_are_seconds() -> None:
    """They count from the start of the log, and blocks have 16 tokens."""
    (session,) = sessions(chat(159, -1, 61.1, [1, 2, 3]))
    assert (session.id, session.source, session.start_s, session.block_size) == (
        "159",
        "own.csv:1",
        61.1,
        16,
    )
    assert [(call.isl, call.osl, call.timed) for call in session.calls] == [(46, 35, False)]


def test_a_chat_continues_its_parent() -> None:
    """A chain of chats is a session; whole blocks are shared, the begun one is not."""
    rows = [
        chat(1, -1, 0.0, [10, 11, 12]),
        chat(2, 1, 20.0, [10, 11, 13, 14], turn=2),
        chat(3, 2, 40.0, [10, 11, 13, 15, 16], turn=3),
        chat(4, -1, 50.0, [10, 30]),
    ]
    one, other = sessions(*rows)
    assert [(call.parent, call.shared) for call in one.calls] == [(None, 0), (0, 32), (1, 48)]
    assert [call.gap_s for call in one.calls] == pytest.approx([0.0, 19.0, 19.0])
    assert (other.id, other.start_s) == ("4", 50.0)


def test_a_chat_whose_parent_is_missing_begins_a_session() -> None:
    """The log is a window: what came before is not there."""
    rows = [chat(8, 7, 0.0, [1]), chat(9, 8, 5.0, [1, 2]), chat(10, 7, 6.0, [1])]
    assert [(session.id, len(session.calls)) for session in sessions(*rows)] == [
        ("8", 2),
        ("10", 1),
    ]


def test_chats_may_come_before_their_parents() -> None:
    """The order of the lines says nothing about who continues whom."""
    rows = [chat(2, 1, 20.0, [1, 2, 3]), chat(1, -1, 0.0, [1, 2])]
    (session,) = sessions(*rows)
    assert (session.id, [call.start_s for call in session.calls]) == ("1", [0.0, 20.0])


def test_chats_may_go_in_a_circle() -> None:
    """They are one session, and noted."""
    rows = [chat(1, 2, 0.0, [1]), chat(2, 1, 5.0, [1]), chat(3, 3, 6.0, [1]), chat(4, 2, 7, [1])]
    assert sorted(len(session.calls) for session in sessions(*rows)) == [1, 3]
    assert noted(*rows)["chats that continue each other, taken as one"] == 2


def test_the_block_size_of_bailian_is_verified() -> None:
    """Another size that the numbers of ids fit better is used, and noted."""
    rows = [
        chat(n, -1, float(n), list(range(5)), input_length=isl) for n, isl in enumerate((300, 318))
    ]
    assert {draft.block_size for draft in drafts(*rows)[0]} == {64}
    assert noted(*rows)["blocks of 64 tokens, as the numbers of block ids say"] == 1


def test_a_row_whose_ids_contradict_its_length_is_left_out() -> None:
    """As long as others fit; without one the file is refused, with line and values."""
    wrong = chat(1, -1, 0.0, [1, 2], input_length=400)
    assert noted(wrong, chat(2, -1, 1.0, [1, 2])) == {
        "rows whose block ids don't match their input length, left out": 1
    }
    with pytest.raises(TraceError, match=r"^own\.csv:1: input_length 400 .* 2 hash_ids$"):
        drafts(wrong)


def test_chains_of_a_file_share_blocks() -> None:
    """A chain begins with what another one of its file brought."""
    found, _ = drafts(chat(1, -1, 0.0, [1, 2, 3]), chat(2, -1, 1.0, [1, 2, 4]))
    recorded.relate(found)
    first, second = (recorded.session(draft)[0] for draft in found)
    assert [(call.parent, call.shared) for call in (*first.calls, *second.calls)] == [
        (None, 0),
        (-1, 32),
    ]


# --- Tables ---------------------------------------------------------------------------------------


def test_rows_of_burstgpt_are_sessions_of_one_call() -> None:
    """Seconds from the start of the log; a failure has no output, and is kept."""
    found = sessions(*BURSTGPT)
    assert [
        (session.id, session.start_s, call.isl, call.osl, call.model)
        for session in found
        for call in session.calls
    ] == [
        ("own.csv:1", 5.0, 472, 18, "ChatGPT"),
        ("own.csv:2", 45.5, 1087, 0, "GPT-4"),
    ]
    assert not any(draft.dated for draft in drafts(*BURSTGPT)[0])
    assert noted(*BURSTGPT) == {"calls without output, sent with one token": 1}


def test_newer_rows_of_burstgpt_have_a_duration() -> None:
    """`Elapsed time` is the seconds that the request took."""
    (session,) = sessions(BURSTGPT[0] | {"Session ID": "3", "Elapsed time": "2.5"})
    assert (session.calls[0].timed, session.calls[0].end_s) == (True, 2.5)


def test_rows_of_azure_have_dates() -> None:
    """Seven digits of a second, no zone: UTC."""
    found, _ = drafts(*AZURE)
    assert all(draft.dated for draft in found)
    assert [draft.start_s for draft in found] == pytest.approx(
        [1700158546.68059, 1700158550.995169]
    )
    assert [(call.isl, call.osl) for draft in found for call in draft.calls] == [
        (374, 44),
        (396, 109),
    ]


def test_newer_rows_of_azure_have_a_zone() -> None:
    """An offset is read; a byte order mark before the header is no part of the name."""
    rows = table("\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 02:00:00+02:00,5,6\n")
    assert [draft.start_s for draft in drafts(*rows)[0]] == [1715299200.0]


@pytest.mark.parametrize(
    "record",
    [
        AZURE[0] | {"TIMESTAMP": "soon"},
        AZURE[0] | {"ContextTokens": "0"},
        AZURE[0] | {"GeneratedTokens": ""},
        BURSTGPT[0] | {"Timestamp": "2023-01-01"},
        BURSTGPT[0] | {"Request tokens": "-5"},
        BURSTGPT[0] | {"Response tokens": None},
        chat(1, -1, None, [1]),
        chat(1, -1, 0.0, [1], output_length=None),
    ],
    ids=str,
)
def test_rows_without_time_or_lengths_are_left_out(record: Row) -> None:
    """They are counted with their line."""
    found, notes = drafts(AZURE[1], record)
    assert len(found) == 1
    what = "rows without a time, an input and an output length, left out"
    assert (notes, notes.lines) == ({what: 1}, {what: [2]})


def test_rows_of_no_known_kind_are_left_out() -> None:
    """A file may hold anything besides."""
    assert noted(AZURE[0], None, [1], {"a": 1}) == {"rows without a known kind, left out": 3}


@pytest.mark.parametrize(
    ("record", "known"),
    [
        (chat(1, -1, 0.0, [1]), True),
        (BURSTGPT[0], True),
        (AZURE[0], True),
        ({"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1]}, False),
        ({"schema": "dynamo.request.trace.v1", "event_type": "request_end"}, False),
        ({"id": "t", "block_size": 64, "requests": []}, False),
        ({"chat_id": 5}, False),
        ([AZURE[0]], False),
        (None, False),
    ],
    ids=str,
)
def test_rows_are_recognised(record: object, known: bool) -> None:
    """By their fields; no other reader claims them."""
    assert arrivals.recognises(record) is known
    if known:
        assert not any(each.recognises(record) for each in (mooncake, dynamo, weka))


# --- Damage ---------------------------------------------------------------------------------------

VALID: list[Row] = [
    chat(1, -1, 0.0, [10, 11, 12]),
    chat(2, 1, 20.0, [10, 11, 13, 14]),
    chat(3, 2, 40.0, [10, 11, 13, 15, 16]),
    *BURSTGPT,
    *AZURE,
]


VALUES = readers.any_json(*range(6), "2024-01-01 00:00:00.1234567", "9999-12-31T23:59:59-23:59")


@settings(max_examples=400, deadline=None)
@given(readers.damaged(VALID, VALUES))
def test_whatever_is_in_a_file_is_read_or_refused(rows: list[Any]) -> None:
    """Any value anywhere gives sessions that keep the rules, or an error that the user can mend."""
    readers.assert_survives(arrivals, {PATH: rows}, may_refuse=True)


def test_a_line_of_bailian_as_published() -> None:
    """The example of the format, from its bytes."""
    line = (
        b'{"chat_id":159,"parent_chat_id":-1,"timestamp":61.1,"input_length":521,'
        b'"output_length":132,"type":"text","turn":1,"hash_ids":%b}'
    ) % orjson.dumps(list(range(33)))
    (session,) = sessions(orjson.loads(line))
    assert [(call.isl, call.osl) for call in session.calls] == [(521, 132)]
