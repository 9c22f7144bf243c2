"""What a log says about calls, and the session that is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentreplay.errors import TraceError
from agentreplay.trace.formats import native
from agentreplay.trace.model import Call, Notes, Session
from agentreplay.trace.recorded import (
    BLOCK_TOKENS,
    Draft,
    Reading,
    Recorded,
    continue_by_counts,
    session,
    total_input,
)
from agentreplay.trace.structure import FALLBACK_TOKENS_S

SIZE = 4
"""Tokens a block in most sessions made here."""

UNIX_S = 1_767_355_200.0

random_cases = settings(deadline=None, database=None, derandomize=True, max_examples=100)


def rec(start_s: float | None, end_s: float | None = None, **fields: Any) -> Recorded:
    """A call of four blocks."""
    return Recorded(start_s, end_s, **{"isl": 4 * SIZE, "osl": 35, **fields})


def draft(*calls: Recorded, size: int = SIZE, dated: bool = False) -> Draft:
    return Draft("a", "log.jsonl:7", list(calls), dated, block_size=size)


def made(*calls: Recorded, gap_s: float | None = None, size: int = SIZE) -> tuple[Call, ...]:
    """The calls of the session that these make."""
    return session(draft(*calls, size=size), gap_s)[0].calls


def noted(*calls: Recorded) -> Notes:
    return session(draft(*calls))[1]


def relations(*calls: Recorded, size: int = SIZE) -> list[tuple[int | None, int]]:
    """Parent and shared tokens of each call."""
    return [(call.parent, call.shared) for call in made(*calls, size=size)]


# --- Order and times ------------------------------------------------------------------------------


def test_a_session_keeps_what_its_log_says() -> None:
    """Identity, source, block size, arrival and every field of a call go on as they were."""
    call = rec(
        UNIX_S + 3, UNIX_S + 5, isl=20, osl=7, agent="agent 1", model="m", cached=9, system=8
    )
    made, notes = session(draft(call, dated=True))
    assert made == Session(
        "a",
        UNIX_S + 3,
        (Call(0.0, 2.0, True, 20, 7, (), 0.0, None, 0, 8, "agent 1", "m", 9),),
        SIZE,
        "log.jsonl:7",
    )
    assert notes == {}


def test_blocks_have_64_tokens_where_the_log_has_none() -> None:
    """Logs without blocks are cut into blocks of 64 tokens."""
    made, _ = session(Draft("a", "", [rec(0.0)], False))
    assert made.block_size == BLOCK_TOKENS == 64


def test_calls_are_in_order_of_their_starts() -> None:
    """The order of the log doesn't matter where it has times; the first start is zero."""
    calls = made(rec(30.0, 31.0, isl=3), rec(10.0, 11.0, isl=1), rec(20.0, 21.0, isl=2))
    assert [(call.isl, call.start_s, call.end_s) for call in calls] == [
        (1, 0.0, 1.0),
        (2, 10.0, 11.0),
        (3, 20.0, 21.0),
    ]


def test_calls_of_one_instant_keep_the_order_of_the_log() -> None:
    """Equal starts stay as they were listed."""
    calls = made(*(rec(5.0, 6.0, isl=n) for n in range(1, 9)), rec(1.0, 2.0, isl=9))
    assert [call.isl for call in calls] == [9, *range(1, 9)]


def test_a_session_arrives_with_its_first_call() -> None:
    """The arrival is the earliest start of all, wherever it is listed."""
    assert session(draft(rec(30.0), rec(None, delay_s=1.0), rec(10.0)))[0].start_s == 10.0


def test_a_session_without_times_has_no_arrival() -> None:
    """Where no call has a start there is no arrival."""
    assert session(draft(rec(None), rec(None, delay_s=1.0)))[0].start_s is None


def test_system_tokens_lie_within_the_prompt() -> None:
    """Tools and system prompt are no longer than the prompt that holds them."""
    assert made(rec(0.0, isl=5, system=9))[0].system == 5


# --- Ends -----------------------------------------------------------------------------------------


def test_a_missing_end_is_estimated_and_marked() -> None:
    """A call without an end takes its output at the median speed of the others."""
    calls = made(
        rec(0.0, 1.0, osl=10), rec(5.0, 6.0, osl=30), rec(10.0, 11.0, osl=20), rec(20.0, osl=40)
    )
    assert [call.timed for call in calls] == [True, True, True, False]
    assert calls[3].end_s == 22.0


def test_without_any_end_the_usual_speed_counts() -> None:
    """In a log without ends a call takes its output at the speed of published sessions."""
    assert made(rec(0.0, osl=70))[0].end_s == pytest.approx(70 / FALLBACK_TOKENS_S)


def test_an_estimated_end_comes_before_the_agents_next_call() -> None:
    """An estimate lasts at most to the next start of the same agent, not of another."""
    calls = made(rec(0.0, osl=3500), rec(1.0, agent="agent 1"), rec(2.0))
    assert calls[0].end_s == 2.0


@pytest.mark.parametrize("osl", [0, 35])
def test_a_call_that_ends_before_it_begins_is_estimated(osl: int) -> None:
    """A negative duration is none: it is noted, and the end estimated."""
    calls = (rec(10.0, 9.0, osl=osl), rec(20.0, 30.0))
    ended = made(*calls)[0]
    assert (ended.timed, ended.end_s) == (False, osl * 10 / 35)
    assert noted(*calls) == {"calls that end before they begin, duration estimated": 1}


def test_a_negative_duration_says_nothing_of_the_speed() -> None:
    """The median speed is that of durations that can be."""
    assert made(rec(0.0, -1.0), rec(10.0, 11.0, osl=10), rec(20.0, osl=20))[2].end_s == 22.0


def test_a_call_may_end_as_it_begins() -> None:
    """A duration of nothing was recorded, and stays."""
    calls = (rec(10.0, 10.0), rec(20.0, 21.0))
    assert (made(*calls)[0].timed, made(*calls)[0].end_s, noted(*calls)) == (True, 0.0, {})


def test_an_end_without_a_start_is_no_measurement() -> None:
    """A duration counts as recorded only where both of its stamps were."""
    assert [call.timed for call in made(rec(None, 1.0), rec(None, 9.0, delay_s=1.0))] == [
        False,
        False,
    ]


# --- Logs without times ---------------------------------------------------------------------------


def test_delays_count_from_the_end_of_the_call_before() -> None:
    """Without times a call begins its delay after the one listed before it has ended."""
    calls = made(
        rec(None, isl=1, osl=35),
        rec(None, isl=2, osl=70, delay_s=0.5),
        rec(None, isl=3, osl=35, delay_s=0.0),
    )
    assert [(call.isl, call.start_s, call.end_s) for call in calls] == [
        (1, 0.0, 1.0),
        (2, 1.5, 3.5),
        (3, 3.5, 4.5),
    ]
    assert [call.gap_s for call in calls] == [0.0, 0.5, 0.0]


def test_the_first_call_waits_for_nothing() -> None:
    """The first call starts the session, whatever its delay, and needs no gap."""
    calls = made(rec(None, delay_s=7.0), rec(None, delay_s=1.0))
    assert [call.start_s for call in calls] == [0.0, 2.0]


def test_a_delay_counts_from_a_recorded_end() -> None:
    """Where the first call has times, those after it follow from its end."""
    calls = made(rec(UNIX_S, UNIX_S + 10, osl=35), rec(None, delay_s=2.0), rec(None, delay_s=0.0))
    assert [call.start_s for call in calls] == [0.0, 12.0, 22.0]
    assert [call.timed for call in calls] == [True, False, False]


def test_a_gap_is_supplied_where_nothing_was_recorded() -> None:
    """Calls with neither time nor delay come the given gap after the one before."""
    calls = made(rec(None), rec(None), rec(None, delay_s=0.25), gap_s=2.0)
    assert [call.start_s for call in calls] == [0.0, 3.0, 4.25]


def test_a_gap_of_nothing_is_a_gap() -> None:
    """A given gap of 0 s is taken at its word."""
    assert [call.start_s for call in made(rec(None), rec(None), gap_s=0.0)] == [0.0, 1.0]


def test_without_a_gap_such_a_log_is_refused() -> None:
    """Calls with neither time nor delay are an error that names the place and the option."""
    with pytest.raises(TraceError, match=r"^log\.jsonl:7: .*no times.*--gap"):
        made(rec(None), rec(None))


def test_a_lone_call_needs_no_gap() -> None:
    """There is nothing between the calls of a session of one."""
    assert made(rec(None))[0].start_s == 0.0


def test_a_gap_changes_nothing_that_was_recorded() -> None:
    """Where times or delays are recorded, a given gap means nothing."""
    timed = (rec(0.0, 1.0), rec(9.0, 10.0))
    delayed = (rec(None), rec(None, delay_s=3.0))
    assert made(*timed, gap_s=5.0) == made(*timed)
    assert made(*delayed, gap_s=5.0) == made(*delayed)


@pytest.mark.parametrize("delay_s", [-0.5, -100.0])
def test_a_negative_delay_is_none(delay_s: float) -> None:
    """No call begins before the one listed before it has ended, whatever its delay."""
    calls = made(rec(None, isl=1), rec(None, isl=2, delay_s=delay_s), rec(None, isl=3, delay_s=0))
    assert [(call.isl, call.start_s) for call in calls] == [(1, 0.0), (2, 1.0), (3, 2.0)]


def test_a_delay_also_counts_from_another_agents_end() -> None:
    """The call listed before is the one that counts, whoever made it."""
    calls = made(rec(None), rec(None, agent="agent 1", delay_s=1.0), rec(None, delay_s=1.0))
    assert [call.start_s for call in calls] == [0.0, 2.0, 4.0]


# --- Prefixes: blocks -----------------------------------------------------------------------------


def test_blocks_in_common_are_shared() -> None:
    """A prompt shares the leading blocks that it has in common with an earlier one."""
    assert relations(
        rec(0.0, isl=13, prompt=[1, 2, 3]),
        rec(1.0, isl=19, prompt=[1, 2, 3, 4]),
        rec(2.0, isl=12, prompt=[1, 2, 9]),
    ) == [(None, 0), (0, 12), (1, 8)]


def test_the_parent_is_the_latest_that_shares_the_most() -> None:
    """Of the earlier prompts the one with the longest common part counts, and of these the last."""
    assert relations(
        rec(0.0, isl=12, prompt=[1, 2, 3]),
        rec(1.0, isl=8, prompt=[1, 2]),
        rec(2.0, isl=12, prompt=[1, 2, 3]),
        rec(3.0, isl=12, prompt=[1, 2, 4]),
    )[3] == (2, 8)


def test_the_earlier_prompt_is_the_one_that_began_before() -> None:
    """Prompts are compared in order of starts, not of the log."""
    assert relations(
        rec(9.0, isl=12, prompt=[1, 2, 3]),
        rec(1.0, isl=8, prompt=[1, 2]),
    ) == [(None, 0), (0, 8)]


@pytest.mark.parametrize("isl", [1, 4, 7, 8])
def test_blocks_share_no_more_than_the_shorter_prompt(isl: int) -> None:
    """More names than a prompt has whole blocks share no more than its length in whole blocks."""
    calls = (rec(0.0, isl=8, prompt=[1, 2]), rec(1.0, isl=isl, prompt=[1, 2]))
    whole = isl // SIZE * SIZE
    assert relations(*calls) == [(None, 0), (0 if whole else None, whole)]


def test_blocks_that_name_only_themselves_are_compared_by_prefix() -> None:
    """An equal block after another beginning is not shared."""
    assert relations(
        rec(0.0, isl=8, prompt=[1, 2]), rec(1.0, isl=8, prompt=[3, 2]), rec(2.0, prompt=[1, 2, 3])
    ) == [(None, 0), (None, 0), (0, 8)]


def test_a_prompt_without_blocks_shares_nothing() -> None:
    """Beside prompts with blocks one without any has no parent and is none."""
    calls = (rec(0.0, prompt=[1]), rec(1.0, isl=3), rec(2.0, prompt=[1]))
    assert relations(*calls) == [(None, 0), (None, 0), (0, 4)]


# --- Prefixes: texts ------------------------------------------------------------------------------


def test_a_prompt_that_goes_on_shares_the_whole_one_before() -> None:
    """Where every piece of the earlier prompt comes again, all its tokens are shared."""
    assert relations(
        rec(0.0, isl=20, prompt=[1, 2], ends=[5, 17]),
        rec(1.0, isl=40, prompt=[1, 2, 3], ends=[6, 18, 40]),
    ) == [(None, 0), (0, 20)]


def test_pieces_share_up_to_their_ends() -> None:
    """Where the earlier prompt goes on differently, the pieces in common end where they end."""
    assert relations(
        rec(0.0, isl=40, prompt=[1, 2, 3], ends=[8, 16, 40]),
        rec(1.0, isl=30, prompt=[1, 2, 9], ends=[8, 16, 30]),
    ) == [(None, 0), (0, 16)]


@pytest.mark.parametrize(("first", "second"), [([9, 20], [14, 30]), ([14, 20], [9, 30])])
def test_of_two_lengths_of_a_piece_the_shorter_counts(first: list[int], second: list[int]) -> None:
    """A piece that two calls measure differently shares what both have of it, in whole blocks."""
    assert relations(
        rec(0.0, isl=20, prompt=[1, 2], ends=first), rec(1.0, isl=30, prompt=[1, 3], ends=second)
    ) == [(None, 0), (0, 8)]


@pytest.mark.parametrize(("end", "shared"), [(3, 0), (4, 4), (7, 4), (8, 8)])
def test_texts_are_cut_to_whole_blocks(end: int, shared: int) -> None:
    """What texts share is rounded down to whole blocks; less than one is nothing."""
    assert relations(
        rec(0.0, isl=20, prompt=[1, 2], ends=[end, 20]),
        rec(1.0, isl=20, prompt=[1, 3], ends=[end, 20]),
    ) == [(None, 0), (0 if shared else None, shared)]


def test_pieces_share_no_more_than_the_shorter_prompt() -> None:
    """A prompt that is shorter than the pieces it repeats shares no more than itself."""
    assert relations(
        rec(0.0, isl=20, prompt=[1, 2], ends=[8, 20]), rec(1.0, isl=14, prompt=[1, 2], ends=[8, 14])
    ) == [(None, 0), (0, 12)]


def test_a_prompt_that_is_all_of_a_longer_one_shares_itself() -> None:
    """A prompt that ends where a longer one went on shares the pieces that it has."""
    assert relations(
        rec(0.0, isl=40, prompt=[1, 2, 3], ends=[8, 24, 40]),
        rec(1.0, isl=24, prompt=[1, 2], ends=[8, 24]),
    ) == [(None, 0), (0, 24)]


# --- Prefixes: counts -----------------------------------------------------------------------------


def test_a_count_says_what_is_shared() -> None:
    """A count of tokens in common is taken, in whole blocks."""
    first = rec(0.0, isl=40)
    assert relations(first, rec(1.0, isl=60, parent=first, shared=39)) == [(None, 0), (0, 36)]


@pytest.mark.parametrize(("isl", "shared"), [(40, 16), (10, 8), (3, 0)])
def test_a_count_is_never_above_either_prompt(isl: int, shared: int) -> None:
    """A count beyond the shorter of the two prompts is cut to it."""
    first = rec(0.0, isl=17)
    calls = (first, rec(1.0, isl=isl, parent=first, shared=1_000))
    assert relations(*calls) == [(None, 0), (0 if shared else None, shared)]


@pytest.mark.parametrize("shared", [0, 3])
def test_a_count_below_a_block_is_nothing(shared: int) -> None:
    """Sharing less than a block is sharing nothing with nobody."""
    first = rec(0.0)
    assert relations(first, rec(1.0, parent=first, shared=shared)) == [(None, 0), (None, 0)]


def test_a_parent_that_starts_later_is_none() -> None:
    """A call can't continue one that began after it."""
    later = rec(5.0)
    assert relations(later, rec(1.0, parent=later, shared=8)) == [(None, 0), (None, 0)]


def test_a_parent_of_the_same_instant_is_the_one_listed_before() -> None:
    """Of two calls of one instant the one that is listed later may continue the other."""
    first = rec(1.0)
    second = rec(1.0, parent=first, shared=8)
    assert relations(first, second) == [(None, 0), (0, 8)]
    assert relations(second, first) == [(None, 0), (None, 0)]


def test_a_parent_of_another_session_is_none() -> None:
    """A parent that is not among the calls is no parent."""
    assert relations(rec(1.0, parent=rec(0.0), shared=8)) == [(None, 0)]


def test_a_call_is_not_its_own_parent() -> None:
    """A call that names itself has no parent."""
    call = rec(1.0, shared=8)
    call.parent = call
    assert relations(rec(0.0), call) == [(None, 0), (None, 0)]


def test_counts_follow_the_order_of_starts() -> None:
    """A parent is found wherever the log lists it."""
    first = rec(1.0)
    assert relations(rec(9.0, parent=first, shared=8), rec(5.0), first) == [
        (None, 0),
        (None, 0),
        (0, 8),
    ]


# --- Waiting --------------------------------------------------------------------------------------


def test_what_a_log_tells_is_waited_for() -> None:
    """Where the log tells what a call waited for, times and prefixes say nothing else."""
    first, second = rec(0.0, 1.0), rec(2.0, 3.0, agent="agent 1")
    told = rec(9.0, 10.0, after=(first,))
    assert [call.after for call in made(first, second, told)] == [(), (0,), (0,)]
    assert made(first, second, told)[2].gap_s == 8.0


def test_a_call_that_waited_for_nothing_is_a_root() -> None:
    """That a call waited for nothing is told too."""
    assert made(rec(0.0, 1.0), rec(5.0, 6.0, after=()))[1].after == ()


def test_of_what_a_log_tells_only_earlier_calls_are_waited_for() -> None:
    """Later calls and those of other sessions are dropped; where none is left, it is derived."""
    first, second, last = rec(0.0, 1.0), rec(2.0, 3.0, agent="x"), rec(9.0, 10.0)
    second.after = (last, first)
    assert made(first, second, last)[1].after == (0,)
    second.after = (last, rec(0.5))
    assert made(first, second, last)[1].after == (0,)


@pytest.mark.parametrize(("rounding_s", "after"), [(0.0, ()), (1.0, (0,))])
def test_stamps_of_whole_seconds_may_overlap(rounding_s: float, after: tuple[int, ...]) -> None:
    """Half a second of overlap is concurrency, unless the log's stamps are whole seconds."""
    calls = draft(rec(0.0, 5.5), rec(5.0, 6.0))
    assert session(replace(calls, rounding_s=rounding_s))[0].calls[1].after == after


# --- Agents ---------------------------------------------------------------------------------------


def test_agents_keep_their_labels_and_wait_as_such() -> None:
    """A new agent waits for whoever ended last; the main agent joins it when it goes on."""
    calls = made(
        rec(0.0, 1.0, prompt=[1, 2, 3, 4]),
        rec(2.0, 3.0, prompt=[5, 6, 7, 8], agent="agent 1"),
        rec(4.0, 5.0, prompt=[5, 6, 7, 8], agent="agent 1"),
        rec(6.0, 7.0, prompt=[1, 2, 3, 4]),
    )
    assert [(call.agent, call.after) for call in calls] == [
        ("", ()),
        ("agent 1", (0,)),
        ("agent 1", (1,)),
        ("", (0, 2)),
    ]


# --- Names of texts -------------------------------------------------------------------------------

READING = Reading(b"a key")


def test_a_name_stands_for_its_text() -> None:
    """Equal texts after equal beginnings have equal names, and others have others."""
    assert READING.name(b"text") == READING.name(b"text") == Reading(b"a key").name(b"text")
    assert len({READING.name(text) for text in (b"", b"text", b"Text", b"text ", b"tex")}) == 5


def test_a_name_stands_for_all_before_it() -> None:
    """The same text after another beginning has another name, and the cut matters."""
    first, second = READING.name(b"first"), READING.name(b"second")
    names = [READING.name(b"text", before) for before in (0, first, second)]
    assert len({*names, READING.name(b"firsttext")}) == 4


def test_names_of_other_keys_are_others() -> None:
    """What one reading calls a text no other does, so that no name leads back to a text."""
    assert len({Reading(key).name(b"text") for key in (b"a", b"b", bytes(64), bytes(63))}) == 4


@given(st.binary(max_size=50), st.integers(0, (1 << 63) - 1))
def test_a_name_has_63_bits(text: bytes, before: int) -> None:
    """A name fits any signed number of 64 bits, and is good as what comes before another."""
    name = READING.name(text, before)
    assert 0 <= name < 1 << 63
    assert 0 <= READING.name(text, name) < 1 << 63


def test_a_name_uses_all_its_bits() -> None:
    """Names are spread over all 63 bits."""
    ones = zeros = 0
    for n in range(64):
        name = READING.name(str(n).encode())
        ones, zeros = ones | name, zeros | ~name
    assert ones == zeros & ((1 << 63) - 1) == (1 << 63) - 1


# --- Any session ----------------------------------------------------------------------------------

seconds = st.integers(0, 400).map(lambda tenths: tenths / 10)


@st.composite
def timed(draw: st.DrawFn, starts: st.SearchStrategy[float] = seconds) -> list[dict[str, Any]]:
    """Fields of calls with starts, with and without ends that can be."""
    return [
        {
            "start_s": UNIX_S + draw(starts),
            "end_s": draw(st.none() | st.integers(-50, 200).map(lambda n: UNIX_S + 20 + n / 10)),
            "isl": draw(st.integers(1, 30)),
            "osl": draw(st.integers(0, 100)),
            "agent": draw(st.sampled_from(["", "agent 1", "helper 1"])),
            "model": draw(st.sampled_from(["m", "n", None])),
            "system": draw(st.integers(0, 40)),
        }
        for _ in range(draw(st.integers(1, 8)))
    ]


@st.composite
def untimed(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Fields of calls with delays."""
    rows = draw(timed())
    return [row | {"start_s": None, "end_s": None, "delay_s": draw(seconds)} for row in rows]


@st.composite
def by_blocks(draw: st.DrawFn, rows: list[dict[str, Any]]) -> list[Recorded]:
    """The calls with names of blocks, which may name more than all before them."""
    prompts = st.lists(st.integers(0, 2), max_size=7)
    return [Recorded(**row, prompt=draw(prompts)) for row in rows]


@st.composite
def by_texts(draw: st.DrawFn, rows: list[dict[str, Any]]) -> list[Recorded]:
    """The calls with chained names of texts and any ends within their prompts."""
    calls = []
    for row in rows:
        names, before = [], 0
        for letter in draw(st.lists(st.sampled_from([b"a", b"b"]), max_size=5)):
            before = READING.name(letter, before)
            names.append(before)
        places = st.lists(st.integers(0, row["isl"]), min_size=len(names), max_size=len(names))
        calls.append(Recorded(**row, prompt=names, ends=sorted(draw(places))))
    return calls


@st.composite
def by_counts(draw: st.DrawFn, rows: list[dict[str, Any]]) -> list[Recorded]:
    """The calls with any of them as parents and any counts."""
    calls = [Recorded(**row) for row in rows]
    for call in calls:
        call.parent = draw(st.none() | st.sampled_from(calls))
        call.shared = draw(st.integers(0, 60))
    return calls


rows = timed() | untimed()
evidence = st.one_of(rows.flatmap(by_blocks), rows.flatmap(by_texts), rows.flatmap(by_counts))


@random_cases
@given(evidence)
def test_any_session_is_well_formed(calls: list[Recorded]) -> None:
    """Whatever the log says, the session keeps every rule of the model."""
    read, _ = session(draft(*calls))
    assert len(read.calls) == len(calls)
    assert read.calls[0].start_s == 0
    for i, call in enumerate(read.calls):
        assert i == 0 or call.start_s >= read.calls[i - 1].start_s
        assert call.end_s >= call.start_s
        assert call.gap_s >= 0
        assert all(0 <= j < i for j in call.after)
        assert len(set(call.after)) == len(call.after)
        assert 0 <= call.system <= call.isl
        assert call.shared % SIZE == 0
        if call.parent is None:
            assert call.shared == 0
        else:
            assert 0 <= call.parent < i
            assert SIZE <= call.shared <= min(call.isl, read.calls[call.parent].isl)


@random_cases
@given(evidence)
def test_any_session_replays_as_recorded(calls: list[Recorded]) -> None:
    """What a call waits for and its gap give its start; where they overlap the gap is 0."""
    read, _ = session(draft(*calls))
    for call in read.calls:
        ended_s = max((read.calls[j].end_s for j in call.after), default=0.0)
        if ended_s <= call.start_s:
            assert ended_s + call.gap_s == pytest.approx(call.start_s, abs=1e-6)
        else:
            assert call.gap_s == 0
            assert ended_s <= call.start_s + 1


@random_cases
@given(evidence)
def test_the_native_format_takes_any_session(calls: list[Recorded]) -> None:
    """What is made can be written, and is read again without a complaint."""
    made, _ = session(draft(*calls))
    read, notes = native.session(orjson.loads(native.line(made)), "x")
    assert notes == {}
    assert [(c.isl, c.osl, c.after, c.parent, c.shared) for c in read.calls] == [
        (c.isl, c.osl, c.after, c.parent, c.shared) for c in made.calls
    ]


distinct = st.lists(seconds, min_size=8, max_size=8, unique=True)


@random_cases
@given(timed().flatmap(by_blocks), distinct, st.randoms(use_true_random=False))
def test_the_order_of_a_log_with_times_means_nothing(
    calls: list[Recorded], starts: Sequence[float], chance: Any
) -> None:
    """Calls of different starts make the same session in whichever order they are listed."""
    for call, start_s in zip(calls, starts, strict=False):
        call.start_s = UNIX_S + start_s
    shuffled = list(calls)
    chance.shuffle(shuffled)
    listed = sorted(calls, key=lambda call: call.start_s or 0.0)
    assert session(draft(*shuffled)) == session(draft(*listed))


@random_cases
@given(untimed().flatmap(by_blocks))
def test_delays_come_out_as_gaps(calls: list[Recorded]) -> None:
    """In a log of one agent without times each call begins its delay after the one before."""
    listed = [replace_agent(call) for call in calls]
    read = session(draft(*listed))[0].calls
    for i, call in enumerate(read[1:], 1):
        delay_s = listed[i].delay_s
        assert call.start_s == pytest.approx(read[i - 1].end_s + (delay_s or 0.0), abs=1e-9)


def replace_agent(call: Recorded) -> Recorded:
    """The same call by the main agent."""
    return replace(call, agent="")


# --- Counts ---------------------------------------------------------------------------------------


def counted(*calls: Recorded) -> list[tuple[int | None, int]]:
    """Parent and shared tokens of each call, from its counts."""
    continue_by_counts(calls)
    return relations(*calls, size=1)


def test_a_prompt_that_grew_continues_its_agents_last_one() -> None:
    """Whatever was cached: a cache that forgot is no other prompt."""
    assert counted(rec(0, 1, isl=100), rec(2, 3, isl=100), rec(4, 5, isl=200, cached=64)) == [
        (None, 0),
        (0, 100),
        (1, 100),
    ]


def test_a_prompt_that_shrank_shares_what_was_cached() -> None:
    """Nothing else is known of it."""
    assert counted(rec(0, 1, isl=100), rec(2, 3, isl=50, cached=30), rec(4, 5, isl=40)) == [
        (None, 0),
        (0, 30),
        (None, 0),
    ]


def test_another_model_shares_what_was_cached() -> None:
    """With the longest prompt of its own, or else with the last one."""
    calls = [
        rec(0, 1, isl=100, model="m"),
        rec(2, 3, isl=200, model="n", cached=20),
        rec(4, 5, isl=300, model="m", cached=90),
        rec(6, 7, isl=400, model="o"),
    ]
    assert counted(*calls) == [(None, 0), (0, 20), (0, 90), (None, 0)]


def test_agents_continue_their_own_prompts() -> None:
    """An agent's first prompt, and a helper's, share what was cached."""
    calls = [
        rec(0, 1, isl=100),
        rec(2, 3, isl=150, agent="agent 1"),
        rec(4, 5, isl=200, agent="helper 1", cached=60),
        rec(6, 7, isl=210, agent="helper 1"),
        rec(8, 9, isl=150),
        rec(10, 11, isl=160, agent="agent 1"),
    ]
    assert counted(*calls) == [(None, 0), (None, 0), (1, 60), (None, 0), (0, 100), (1, 150)]


def test_a_prompt_continues_one_that_was_answered() -> None:
    """Not one that was in flight."""
    assert counted(rec(0, 1, isl=100), rec(2, 9, isl=110), rec(3, 9, isl=120)) == [
        (None, 0),
        (0, 100),
        (0, 100),
    ]


def test_more_cached_than_input_is_beside_it() -> None:
    """It is added, with what was written to the cache, and noted."""
    notes = Notes()
    assert total_input(100, None, notes, "x") == total_input(100, 100, notes, "x") == 100
    assert notes == {}
    assert total_input(10, 100, notes, "x", 3, written=5) == 115
    assert (notes, notes.lines) == ({"x": 1}, {"x": [3]})
