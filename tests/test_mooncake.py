"""The Mooncake reader: lines of requests in, sessions out."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
import readers
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import SHARED, needs_shared

from agentreplay.errors import TraceError
from agentreplay.trace import recorded
from agentreplay.trace.formats import mooncake, weka
from agentreplay.trace.model import Notes, Session
from agentreplay.trace.prefix import Reuse, session_reuse
from agentreplay.trace.recorded import Draft, Reading

Row = dict[str, Any]

SAMPLES = SHARED / "data" / "formats" / "mooncake"
PATH = "own.jsonl"


def row(stamp: object, isl: object, ids: object, osl: object = 10, **fields: object) -> Row:
    """A row with the four original fields and others; None leaves a field out."""
    value = {"timestamp": stamp, "input_length": isl, "output_length": osl, "hash_ids": ids}
    return {name: each for name, each in (value | fields).items() if each is not None}


def of(session: str, isl: object, ids: object = None, osl: object = 10, **fields: object) -> Row:
    """A row of a named session, 1 s after the end of the one before unless told otherwise."""
    return row(None, isl, ids, osl, session_id=session, **({"delay": 1000} | fields))


def drafts(*rows: object, **supplied: Any) -> tuple[list[Draft], Notes]:
    """The drafts of a file with these lines, and its notes."""
    return readers.drafts(mooncake, {PATH: rows}, Reading(b"key", **supplied))


def sessions(*rows: object, **supplied: Any) -> list[Session]:
    """The sessions of a file with these lines."""
    return readers.sessions(mooncake, {PATH: rows}, Reading(b"key", **supplied))


def related(*rows: object, **supplied: Any) -> list[Session]:
    """The sessions of a file with these lines, with what they share with each other."""
    found, _ = drafts(*rows, **supplied)
    recorded.relate(found, supplied.get("gap_s"))
    return readers.put_together(found, Reading(b"key", **supplied))[0]


def noted(*rows: object, **supplied: Any) -> Notes:
    """The notes of a file with these lines."""
    return drafts(*rows, **supplied)[1]


def lengths(session: Session) -> list[tuple[int, int]]:
    """(input, output) of each call."""
    return [(call.isl, call.osl) for call in session.calls]


def relations(session: Session) -> list[tuple[int | None, int]]:
    """(parent, shared tokens) of each call."""
    return [(call.parent, call.shared) for call in session.calls]


# --- Original rows --------------------------------------------------------------------------------


def test_a_row_is_a_call_with_its_arrival() -> None:
    """Stamps are milliseconds from the start of the log; a row without kin is a session."""
    (session,) = sessions(row(3000, 1300, [0, 1, 2], 52))
    assert (session.start_s, session.block_size, lengths(session)) == (3.0, 512, [(1300, 52)])
    assert session.id == session.source == "own.jsonl:1"


def test_the_end_of_a_row_is_an_estimate() -> None:
    """The format has no ends: they are estimated, and marked."""
    (session,) = sessions(row(0, 1300, [0, 1, 2], 35))
    assert (session.calls[0].timed, session.calls[0].end_s) == (False, 1.0)


def test_a_row_continues_the_row_whose_whole_blocks_begin_it() -> None:
    """The example of the format: the partial last block is another one when text follows it."""
    (session,) = sessions(row(0, 1300, [0, 1, 2], 52), row(3000, 1800, [0, 1, 9, 10], 80))
    assert lengths(session) == [(1300, 52), (1800, 80)]
    assert relations(session) == [(None, 0), (0, 1024)]
    assert [call.after for call in session.calls] == [(), (0,)]
    assert session.calls[1].gap_s == pytest.approx(3.0 - 52 / 35)


def test_the_partial_last_block_counts_for_nothing() -> None:
    """Two rows with the same partial last block share their whole blocks only."""
    (session,) = sessions(row(0, 1300, [0, 1, 2]), row(3000, 1300, [0, 1, 2]))
    assert relations(session) == [(None, 0), (0, 1024)]


def test_a_row_continues_the_latest_of_several() -> None:
    """Where several earlier rows begin a row, it belongs to the latest one's session."""
    found = sessions(
        row(0, 1024, [1, 2]),
        row(1000, 1536, [1, 2, 3]),
        row(2000, 1536, [1, 2, 4]),
        row(3000, 2048, [1, 2, 4, 5]),
        row(4000, 1024, [8, 9]),
    )
    assert [len(session.calls) for session in found] == [4, 1]
    assert relations(found[0])[3] == (2, 1536)


def test_a_common_system_prompt_makes_no_session() -> None:
    """A row that has nothing but what three others begin with is continued by none of them."""
    found = sessions(
        row(0, 1100, [0, 1, 2]),
        row(1000, 600, [0, 5]),
        row(2000, 1100, [0, 6, 7]),
        row(3000, 1100, [0, 8, 9]),
        row(4000, 1600, [0, 8, 10, 11]),
    )
    assert [len(session.calls) for session in found] == [1, 1, 1, 2]


def test_rows_may_be_out_of_order() -> None:
    """Who continues whom follows from the stamps, not from the lines."""
    (session,) = sessions(row(3000, 1800, [0, 1, 9, 10]), row(0, 1300, [0, 1, 2]))
    assert [call.isl for call in session.calls] == [1300, 1800]
    assert relations(session)[1] == (0, 1024)


def test_rows_with_one_stamp_stay_in_their_order() -> None:
    """Stamps of bursts are equal: the order of the lines holds."""
    found, _ = drafts(*(row(3000, 100 + i, [i]) for i in range(10)))
    assert [draft.calls[0].isl for draft in found] == list(range(100, 110))


def test_sessions_of_a_file_share_blocks() -> None:
    """A session begins with what another one of its file brought."""
    rows = [row(0, 1024, [1, 2]), row(0, 1536, [1, 3, 4]), row(0, 512, [9])]
    first, second, third = related(*rows)
    assert [relations(each) for each in (first, second, third)] == [
        [(None, 0)],
        [(-1, 512)],
        [(None, 0)],
    ]
    assert [[call.isl for call in each.lent] for each in (first, second, third)] == [[], [1024], []]


def test_rows_without_ids_are_arrivals() -> None:
    """Lengths and a stamp make a session of one call."""
    found = sessions(row(0, 100, None), row(500, 100, None), row(900, 200, []))
    assert [(each.start_s, len(each.calls)) for each in found] == [(0.0, 1), (0.5, 1), (0.9, 1)]


def test_stamps_are_milliseconds() -> None:
    """0, 1000, 2000 are two seconds, and nothing to wonder about."""
    rows = [row(stamp, 100, [n]) for n, stamp in enumerate([0, 1000, 2000])]
    assert [session.start_s for session in sessions(*rows)] == [0.0, 1.0, 2.0]
    assert not noted(*rows)


@pytest.mark.parametrize("stamps", [[0, 0.5, 1.0], [0, 1, 2, 3], [0.25 * n for n in range(100)]])
def test_stamps_that_look_like_seconds_are_noted(stamps: list[float]) -> None:
    """More than a hundred requests a second rather are seconds: read as usual, and said."""
    rows = [row(stamp, 100, [n]) for n, stamp in enumerate(stamps)]
    assert noted(*rows) == {"stamps look like seconds: read as milliseconds": 1}
    assert sessions(*rows)[-1].start_s == stamps[-1] / 1000


def test_a_burst_does_not_look_like_seconds() -> None:
    """Rows that all have one stamp say nothing about its unit."""
    assert not noted(*(row(0, 100, [n]) for n in range(30)))


@pytest.mark.parametrize(("stamp", "dated"), [(0, False), (3_600_000, False), (1.7e12, True)])
def test_stamps_may_be_dates(stamp: float, dated: bool) -> None:
    """Milliseconds since 1970 are dates; everything smaller counts from the log's start."""
    (draft,), _ = drafts(row(stamp, 100, [1]))
    assert draft.dated is dated


# --- Blocks ---------------------------------------------------------------------------------------


def test_513_tokens_have_two_blocks() -> None:
    """A begun block counts, and its id goes."""
    (session,) = sessions(row(0, 513, [0, 1]))
    assert lengths(session) == [(513, 10)]


def test_a_row_whose_ids_contradict_its_length_is_left_out() -> None:
    """20 tokens have no two blocks of 512: the row is left out, with its line."""
    found, notes = drafts(row(0, 513, [0, 1]), row(1, 20, [0, 1]))
    what = "rows whose block ids don't match their input length, left out"
    assert [draft.calls[0].isl for draft in found] == [513]
    assert (notes, notes.lines) == ({what: 1}, {what: [2]})


def test_a_file_without_a_consistent_row_is_refused() -> None:
    """Where no row fits, the error names the line and the values."""
    with pytest.raises(
        TraceError,
        match=r"^own\.jsonl:1: input_length 20 has 1 blocks of 512 tokens, .* 2 hash_ids$",
    ):
        drafts(row(0, 20, [0, 1]), row(1, 30, [0, 1]))


@pytest.mark.parametrize("size", [16, 64, 128, 1024])
def test_the_block_size_is_seen_from_the_numbers_of_ids(size: int) -> None:
    """The size is the one that most rows' numbers of ids fit; another than 512 is noted."""
    rows = [row(n, isl, list(range(-(-isl // size)))) for n, isl in enumerate([9000, 9100, 20001])]
    assert {draft.block_size for draft in drafts(*rows)[0]} == {size}
    assert noted(*rows)[f"blocks of {size} tokens, as the numbers of block ids say"] == 1


def test_an_uncommon_block_size_is_the_least_that_fits() -> None:
    """Where no power of two fits, the longest prompts tell."""
    rows = [row(n, isl, list(range(n, n + isl // 100))) for n, isl in enumerate([500, 1000])]
    assert {draft.block_size for draft in drafts(*rows)[0]} == {100}


@pytest.mark.parametrize("ids", [[[1], [2]], [{"a": 1}, 2], [None, None], "12", 12, {"1": 2}])
def test_ids_that_name_nothing_are_left_out(ids: object) -> None:
    """The row stays as a call that shares nothing."""
    found, notes = drafts(row(0, 1024, ids), row(1, 1024, [1, 2]))
    assert len(found) == 2
    assert notes == {"rows with block ids that name nothing, ids left out": 1}


@pytest.mark.parametrize(
    "ids", [["a", "b"], [1.5, 2.5], [2**63 + 5, 2**64 - 1], [2**53, 2**53 + 1]], ids=str
)
def test_ids_are_whatever_can_be_told_apart(ids: list[Any]) -> None:
    """Text and numbers of 64 bits name blocks, and are kept apart exactly."""
    (session,) = sessions(row(0, 1024, ids), row(9000, 1100, [*ids, 7]))
    assert relations(session) == [(None, 0), (0, 1024)]
    other = [ids[1], ids[0]]
    assert len(sessions(row(0, 1024, ids), row(9000, 1024, other))) == 2


def test_no_recorded_id_is_kept() -> None:
    """Once it is known what prompts share, drafts hold no ids."""
    found, _ = drafts(row(0, 1024, [10**15, 77]), row(1, 1536, [10**15, 77, 10**16]))
    recorded.relate(found)
    (first, second) = found[0].calls
    assert [list(call.prompt) for call in found[0].calls] == [[], []]
    assert (second.parent, second.shared) == (first, 1024)


# --- Sessions with a name -------------------------------------------------------------------------


def test_rows_that_hold_what_is_new_are_summed_up() -> None:
    """The example of the format: 100 new tokens come after 600 and 20 of the answer."""
    rows = [
        {"session_id": "s1", "timestamp": 0, "input_length": 600, "output_length": 20,
         "hash_ids": [1, 2]},
        {"session_id": "s1", "delay": 1500, "input_length": 100, "output_length": 30,
         "hash_ids": [3]},
    ]  # fmt: skip
    (session,) = sessions(*rows)
    assert (session.id, session.source) == ("s1", "own.jsonl:1")
    assert lengths(session) == [(600, 20), (720, 30)]
    assert session.calls[1].start_s - session.calls[0].end_s == pytest.approx(1.5)
    assert session.calls[1].gap_s == pytest.approx(1.5)
    assert relations(session) == [(None, 0), (0, 512)]
    assert noted(*rows) == {"rows of sessions hold what is new only (decided by block ids)": 1}


def test_rows_that_hold_whole_prompts_are_taken_as_they_are() -> None:
    """Nested ids say that prompts are 1000, 1500, 2000, and not 1000, 2500, 4500."""
    rows = [of("a", 1000, [1, 2]), of("a", 1500, [1, 3, 4]), of("a", 2000, [1, 3, 5, 6])]
    (session,) = sessions(*rows)
    assert [call.isl for call in session.calls] == [1000, 1500, 2000]
    assert relations(session) == [(None, 0), (0, 512), (1, 1024)]
    assert noted(*rows) == {"rows of sessions hold whole prompts (decided by block ids)": 1}


def test_whole_prompts_without_ids_continue_where_they_grow() -> None:
    """A prompt that is no shorter than the one before holds it; a shorter one is another."""
    rows = [of("s", 640), of("s", 960), of("s", 320)]
    (session,) = sessions(*rows, turn_lengths="full")
    assert relations(session) == [(None, 0), (0, 640), (None, 0)]


def test_most_sessions_decide_for_the_file() -> None:
    """One compaction among whole prompts does not make deltas of them."""
    whole = [each for name in "abc" for each in (of(name, 600, [1, 2]), of(name, 700, [1, 3]))]
    (*_, last) = sessions(*whole, of("d", 600, [1, 2]), of("d", 512, [9]))
    assert [call.isl for call in last.calls] == [600, 512]


@pytest.mark.parametrize(("held", "isl"), [("full", 100), ("delta", 720)])
def test_the_user_may_say_what_rows_hold(held: str, isl: int) -> None:
    """--turn-lengths is stronger than block ids, and leaves nothing to note."""
    rows = [of("s", 600, [1, 2], 20), of("s", 100, [3], 30)]
    (session,) = sessions(*rows, turn_lengths=held)
    assert session.calls[1].isl == isl
    assert not noted(*rows, turn_lengths=held)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([of("s", 600), of("s", 100)], id="no ids"),
        pytest.param([of("s", 100, [1]), of("s", 100, [2])], id="no whole block"),
        pytest.param(
            [of("a", 512, [1]), of("a", 600, [1, 2]), of("b", 512, [5]), of("b", 100, [6])],
            id="as many for as against",
        ),
    ],
)
def test_nothing_is_guessed_about_what_rows_hold(rows: list[Row]) -> None:
    """Where nothing tells, the user is asked."""
    with pytest.raises(TraceError, match=r"^own\.jsonl: .*--turn-lengths full or delta"):
        drafts(*rows)
    assert len(drafts(*rows, turn_lengths="delta")[0]) >= 1


def test_sessions_of_one_row_need_no_decision() -> None:
    """What is new and the whole prompt are the same for a first row."""
    assert [lengths(each) for each in sessions(of("a", 600), of("b", 100))] == [
        [(600, 10)],
        [(100, 10)],
    ]


def test_sessions_may_be_interleaved() -> None:
    """Rows of a session keep their order, whatever stands between them."""
    rows = [of("a", 600, [1, 2]), of("b", 513, [5, 6]), of("a", 100, [3]), of("b", 101, [7])]
    found = sessions(*rows)
    assert {session.id: lengths(session) for session in found} == {
        "a": [(600, 10), (710, 10)],
        "b": [(513, 10), (624, 10)],
    }


def test_later_rows_may_have_stamps_instead_of_delays() -> None:
    """Without a delay the difference of the stamps is that of the starts."""
    rows = [
        of("s", 600, [1, 2], delay=None, timestamp=2000),
        of("s", 700, [1, 3], delay=None, timestamp=9000),
    ]
    (session,) = sessions(*rows)
    assert (session.start_s, [call.start_s for call in session.calls]) == (2.0, [0.0, 7.0])


def test_a_delay_is_stronger_than_a_stamp() -> None:
    """A later row with both begins so long after the one before has ended."""
    rows = [of("s", 600, [1, 2], 35, timestamp=0), of("s", 700, [1, 3], timestamp=99)]
    (session,) = sessions(*rows)
    assert [call.start_s for call in session.calls] == [0.0, 2.0]


def test_a_session_without_a_first_stamp_begins_with_the_log() -> None:
    """Later stamps then count from the same zero."""
    rows = [of("s", 600, [1, 2], delay=None), of("s", 700, [1, 3], delay=None, timestamp=5000)]
    (session,) = sessions(*rows)
    assert [call.start_s for call in session.calls] == [0.0, 5.0]


def test_rows_without_times_need_a_gap() -> None:
    """Neither stamp nor delay: --gap is asked for, and used."""
    rows = [of("s", 600, [1, 2], 35, delay=None), of("s", 700, [1, 3], delay=None)]
    with pytest.raises(TraceError, match="--gap"):
        sessions(*rows)
    (session,) = sessions(*rows, gap_s=4.0)
    assert session.calls[1].start_s == 5.0


def test_negative_delays_are_none() -> None:
    """A row can't be sent before the one before has ended; it is noted."""
    rows = [of("s", 600, [1, 2], 35), of("s", 700, [1, 3], delay=-500)]
    assert sessions(*rows)[0].calls[1].start_s == 1.0
    assert noted(*rows)["negative delays, taken as none"] == 1


def test_the_other_names_of_the_fields() -> None:
    """Dynamo's aliases read as the fields that they stand for."""
    rows = [
        {"session_id": "s", "created_time": 1000, "input_tokens": 600, "output_tokens": 35,
         "hash_ids": [1, 2]},
        {"session_id": "s", "delay_ms": 50, "input_tokens": 700, "output_tokens": 5,
         "hash_ids": [1, 3]},
    ]  # fmt: skip
    (session,) = sessions(*rows)
    assert (session.start_s, lengths(session)) == (1.0, [(600, 35), (700, 5)])
    assert session.calls[1].gap_s == pytest.approx(0.05)


def test_session_ids_may_be_numbers() -> None:
    """A number names a session by its digits."""
    rows = [of("s", 600, [1, 2]) | {"session_id": 7}, of("s", 700, [1, 3]) | {"session_id": 7}]
    assert [session.id for session in sessions(*rows)] == ["7"]


# --- What is left out -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "note"),
    [
        (row(0, 100, [1], None), "rows without an output length, left out"),
        (row(0, 100, [1], -1), "rows without an output length, left out"),
        (row(0, 100, [1], True), "rows without an output length, left out"),
        (row(0, None, [1]), "rows without an input length, left out"),
        (row(0, 0, []), "rows without an input length, left out"),
        (row(0, 1.5, [1]), "rows without an input length, left out"),
        ([1], "lines that are no objects, left out"),
        (None, "lines that are no objects, left out"),
        ({"schema": "other"}, "lines of another schema, left out"),
    ],
    ids=str,
)
def test_rows_without_lengths_are_left_out(value: object, note: str) -> None:
    """What can't be sent is counted with its line."""
    found, notes = drafts(row(0, 100, [1]), value)
    assert len(found) == 1
    assert (notes[note], notes.lines[note]) == (1, [2])


def test_numbers_may_be_text_or_floats() -> None:
    """Tables make text and floats of numbers."""
    (session,) = sessions(row("3000", 1300.0, [0, 1, 2], "52"))
    assert (session.start_s, lengths(session)) == (3.0, [(1300, 52)])


def test_a_call_without_output_is_noted() -> None:
    """It is sent with a limit of one token."""
    assert noted(row(0, 100, [1], 0)) == {"calls without output, sent with one token": 1}


def test_unknown_fields_are_noted() -> None:
    """A field of another tool is named and ignored; null is absent."""
    assert noted(row(0, 100, [1]) | {"colour": 1, "mood": None}) == {
        "unknown field 'colour', ignored": 1
    }


def test_an_empty_file_has_no_sessions() -> None:
    """Nothing in, nothing out."""
    assert drafts() == ([], {})


# --- Texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [{"text_input": "x"}, {"messages": [{"role": "user", "content": "x"}]},
              {"payload": {"prompt": "x"}}], ids=str
)  # fmt: skip
def test_texts_need_a_length_of_tokens(value: Row) -> None:
    """Rows of text have no lengths: the user supplies them."""
    with pytest.raises(TraceError, match=r"^own\.jsonl: .*--chars-per-token"):
        drafts({"session_id": "s", "timestamp": 0, "output_length": 5} | value)


def test_texts_of_a_session_are_what_is_new() -> None:
    """A `text_input` comes after all that was said before."""
    rows = [of("s", None, osl=20, text_input="x" * 401), of("s", None, text_input="y" * 400)]
    (session,) = sessions(*rows, chars_per_token=4.0)
    assert lengths(session) == [(101, 20), (221, 10)]
    assert relations(session)[1] == (0, 64)


def test_messages_are_whole_prompts() -> None:
    """Messages hold the full history, and share their equal beginning."""
    first = {"role": "user", "content": "x" * 396}
    more = [{"role": "assistant", "content": "y" * 91}, {"role": "user", "content": "z" * 96}]
    rows = [of("s", None, messages=[first]), of("s", None, messages=[first, *more])]
    (session,) = sessions(*rows, chars_per_token=1.0)
    assert lengths(session) == [(400, 10), (600, 10)]
    assert relations(session) == [(None, 0), (0, 384)]


def test_tools_come_before_messages() -> None:
    """Other tools change the prompt from its beginning."""
    message = {"role": "user", "content": "x" * 400}
    rows = [of("s", None, messages=[message], tools=[{"name": name * 99}]) for name in "ab"]
    (session,) = sessions(*rows, chars_per_token=1.0)
    assert relations(session) == [(None, 0), (None, 0)]
    assert session.calls[0].isl == 503


@pytest.mark.parametrize(
    ("payload", "isl"),
    [
        ({"prompt": "x" * 10}, 10),
        ({"prompt": ["x" * 10, "y" * 5]}, 15),
        ({"input": "x" * 10, "instructions": "y" * 3}, 13),
        ({"system": "s" * 5, "messages": [{"role": "user", "content": "x" * 10}]}, 19),
    ],
)
def test_payloads_are_bodies_of_requests(payload: Row, isl: int) -> None:
    """The text of a body, of whatever API, is its length."""
    (session,) = sessions(of("s", None, payload=payload), chars_per_token=1.0)
    assert session.calls[0].isl == isl


# --- Agentic rows ---------------------------------------------------------------------------------


def test_rows_that_wait_for_others_make_one_session() -> None:
    """A request waits for the ends of others, and then for delay and tools; agents are labelled."""
    rows = [
        row(1000, 128, [1, 2], 35, request_id="r1", session_id="root"),
        row(None, 64, [5], 70, request_id="c1", session_id="kid", wait_for=["r1"], delay=500),
        row(None, 192, [1, 2, 3], 35, request_id="r2", session_id="root", wait_for=["r1", "c1"],
            delay=100, tool_wait_ms=400),
        row(9000, 128, [1, 2], 35, request_id="x1", session_id="other"),
    ]  # fmt: skip
    one, other = sessions(*rows)
    assert (one.id, one.start_s, other.id, other.start_s) == ("root", 1.0, "other", 9.0)
    assert [(call.agent, call.start_s) for call in one.calls] == [
        ("", 0.0),
        ("agent 1", 1.5),
        ("", 4.0),
    ]
    assert one.block_size == 64
    assert relations(one) == [(None, 0), (None, 0), (0, 128)]


def test_a_header_gives_the_block_size_and_plays_their_ids() -> None:
    """The second version: a header, ids local to a play, waits with triggers of their own."""
    header = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 16,
              "hash_id_scope": "local", "source": {"format": "weka", "digest": "0"}}  # fmt: skip

    def agentic(play: str, name: str, session: str, isl: int, ids: list[int], **more: Any) -> Row:
        ready = {"not_before_ms": 0, "dependencies": []} | more
        return row(None, isl, ids, 35, play_id=play, request_id=name, session_id=session,
                   model="m", **ready)  # fmt: skip

    waits = [{"request_id": "a", "trigger": "completion", "delay_ms": 250, "relation": "sequence"}]
    spawn = [{"request_id": "a", "trigger": "dispatch", "delay_ms": 300, "relation": "spawn"}]
    found = sessions(
        header,
        agentic("p", "a", "main", 32, [1, 2], not_before_ms=2000),
        agentic("p", "b", "main", 48, [1, 2, 3], dependencies=waits),
        agentic("p", "c", "sub", 16, [9], dependencies=spawn),
        agentic("q", "a", "main", 32, [1, 2], not_before_ms=7000),
        agentic("q", "b", "main", 32, [1, 2], not_before_ms=9000, dependencies=waits),
    )
    assert [(each.id, each.start_s, each.block_size) for each in found] == [
        ("p", 2.0, 16),
        ("q", 7.0, 16),
    ]
    assert [(call.agent, call.shared, call.model) for call in found[0].calls] == [
        ("", 0, "m"),
        ("agent 1", 0, "m"),
        ("", 32, "m"),
    ]
    assert [call.start_s for call in found[0].calls] == pytest.approx([0.0, 0.3, 1.25])
    assert [call.start_s for call in found[1].calls] == [0.0, 2.0]


def test_rows_that_wait_for_each_other_are_noted() -> None:
    """A circle of waits is no reason to give up, nor are waits for what isn't there."""
    rows = [
        row(0, 512, [1], request_id="a", session_id="s", wait_for=["b"], delay=0),
        row(0, 600, [1, 2], request_id="b", session_id="s", wait_for=["a", "gone"]),
    ]
    assert len(sessions(*rows)[0].calls) == 2
    notes = noted(*rows)
    assert notes["rows that wait for each other, waits left out"] == 2
    assert notes["waits for requests that aren't there, left out"] == 1


# --- Recognising ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        row(0, 1300, [0, 1, 2]),
        row(None, 100, None),
        of("s", 100),
        {"input_tokens": 5, "output_tokens": 6, "created_time": 0},
        {"input_tokens": 5, "output_tokens": 6, "delay_ms": 0, "session_id": "s"},
        {"session_id": "s", "text_input": "x", "output_length": 5},
        {"session_id": "s", "messages": [], "output_length": 5},
        {"session_id": "s", "payload": {}, "delay": 5},
        {"schema": "dynamo.agentic_mooncake", "version": 2},
    ],
    ids=str,
)
def test_rows_are_recognised(record: Row) -> None:
    """A length, or a text, with what else belongs to a row."""
    assert mooncake.recognises(record)
    assert not weka.recognises(record)


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        "x",
        5,
        {},
        {"chat_id": 1, "parent_chat_id": -1, "timestamp": 6.1, "input_length": 5,
         "output_length": 1, "hash_ids": [1], "type": "text", "turn": 1},
        {"schema": "dynamo.request.trace.v1", "event_type": "request_end"},
        {"timestamp": 0, "event": {"schema": "dynamo.request.trace.v1"}},
        {"id": "t", "block_size": 64, "requests": []},
        {"timestamp": "2026-01-01T00:00:00Z", "type": "response_item", "payload": {}},
        {"provider": "claude", "round_index": 0, "timing_events": [], "input_tokens_total": 5},
        {"custom_id": "1", "body": {"messages": []}},
        {"messages": [{"role": "user"}]},
        {"messages": [], "projectHash": "x", "sessionId": "s"},
        {"call_type": "acompletion", "startTime": 0, "messages": [], "session_id": "s"},
        {"num_turns": 2, "input_prompt_length": 4},
        {"timestamp_start_unix_ms": 1, "prompt": "x", "input_tokens": 1, "output_tokens": 2},
        {"Timestamp": "5", "Request tokens": "1", "Response tokens": "2"},
        {"body": {}, "timestamp": 1},
    ],
    ids=str,
)  # fmt: skip
def test_records_of_other_formats_are_not_recognised(record: object) -> None:
    """Nothing of another format, and no value that is no row."""
    assert not mooncake.recognises(record)


# --- The samples ----------------------------------------------------------------------------------


def sample(name: str) -> list[Row]:
    """The rows of a sample."""
    return [orjson.loads(line) for line in (SAMPLES / name).read_bytes().splitlines()]


def expected(name: str) -> Row:
    """What another reader counted in a sample."""
    counts = orjson.loads((SAMPLES.parent / "EXPECTED.json").read_bytes())
    found: Row = counts[f"mooncake/{name}"]
    return found


@needs_shared
def test_the_original_sample() -> None:
    """Rows, tokens, arrivals and blocks of the first 200 conversations."""
    name = "conversation_trace_first200.jsonl"
    wanted, rows = expected(name), sample(name)
    found, _ = drafts(*rows)
    calls = [call for draft in found for call in draft.calls]
    assert (
        len(calls),
        sum(call.isl for call in calls),
        sum(call.osl for call in calls),
        len({call.start_s for call in calls}),
        {draft.block_size for draft in found},
    ) == (wanted["rows"], wanted["input"], wanted["output"], wanted["distinct_timestamps"], {512})
    # A begun last block has an id in the file and no name here.
    begun = sum(row["input_length"] % 512 > 0 for row in rows)
    assert not noted(*rows)
    sent: dict[int, int] = {}
    reuse = sum((session_reuse(each, sent) for each in related(*rows)), Reuse())
    assert (reuse.seen_blocks, reuse.blocks) == (
        wanted["prefix_hit_blocks"],
        wanted["blocks"] - begun,
    )


@needs_shared
def test_the_sample_of_what_is_new() -> None:
    """Rows of three sessions, summed up to their whole prompts."""
    name = "aiperf_inference_day_2026_3sessions.jsonl"
    wanted, rows = expected(name), sample(name)
    found = sessions(*rows)
    calls = [call for session in found for call in session.calls]
    assert (len(found), len(calls)) == (wanted["sessions"], wanted["rows"])
    assert sum(call.isl for call in calls) == wanted["sum_full_prompt_with_own_outputs_kept"]
    assert sum(call.osl for call in calls) == wanted["output"]
    assert {session.block_size for session in found} == {wanted["block_size"]}
    delays = [row["delay"] / 1000 for row in rows if "delay" in row]
    gaps = [call.gap_s for session in found for call in session.calls[1:]]
    assert gaps == pytest.approx(delays)


@needs_shared
def test_the_samples_keep_the_rules_of_the_model() -> None:
    """Every session of the samples is one."""
    for name in ("conversation_trace_first200.jsonl", "aiperf_inference_day_2026_3sessions.jsonl"):
        for session in sessions(*sample(name)):
            readers.assert_well_formed(session)


@needs_shared
def test_the_rows_of_the_documents() -> None:
    """Two documented rows contradict their own lengths; the session of the others is whole."""
    path = SHARED / "data" / "formats" / "dynamo" / "mooncake_doc_examples.jsonl"
    rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    (session,) = sessions(*rows)
    assert (session.id, session.start_s, lengths(session)) == (
        "session-a",
        1.0,
        [(2048, 128), (2560, 128)],
    )
    assert session.calls[1].gap_s == pytest.approx(0.05)
    assert noted(*rows)["rows whose block ids don't match their input length, left out"] == 2


# --- Damage ---------------------------------------------------------------------------------------

VALID: list[Row] = [
    row(0, 1300, [0, 1, 2]),
    row(3000, 1800, [0, 1, 9, 10]),
    of("s", 600, [1, 2]),
    of("s", 700, [1, 3]),
    of("t", 100, [8], timestamp=5),
    of("t", None, text_input="some text"),
    of("t", None, messages=[{"role": "user", "content": "some text"}]),
    row(None, 128, [1], request_id="a", session_id="u", wait_for=["b"]),
    row(0, 128, [1], request_id="b", session_id="v", play_id="p", dependencies=[
        {"request_id": "a", "trigger": "dispatch", "delay_ms": 5}]),
]  # fmt: skip


VALUES = readers.any_json(
    *("a", "b", "s", "completion", "dispatch"),
    keys=st.sampled_from(["request_id", "content", "trigger"]),
)


@settings(max_examples=400, deadline=None)
@given(readers.damaged(VALID, VALUES, mooncake.FIELDS), st.sampled_from([None, "delta", "full"]))
def test_whatever_is_in_a_file_is_read_or_refused(lines: list[Any], held: str | None) -> None:
    """Any value anywhere gives sessions that keep the rules, or an error that the user can mend."""
    reading = Reading(b"key", gap_s=1.0, chars_per_token=4.0, turn_lengths=held)
    readers.assert_survives(mooncake, {PATH: lines}, reading, may_refuse=True)
