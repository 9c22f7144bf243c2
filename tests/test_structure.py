"""Who waits for whom, and who shares what: by hand, at random, and over the shared recordings."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile, zip_longest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import needs_shared, weka_sessions

from agentreplay.trace.model import Call, Session
from agentreplay.trace.structure import (
    FALLBACK_TOKENS_S,
    common_prefix,
    in_order,
    lines,
    link,
    recorded_order,
    serial_order,
    shared_prefixes,
    with_estimated_ends,
)

SIZE = 4
"""Tokens a block in the sessions made here."""

Relation = tuple[int | None, int]

random_cases = settings(deadline=None, database=None, derandomize=True, max_examples=300)


def chained(prompts: Iterable[Sequence[object]]) -> list[list[int]]:
    """Block ids of prompts whose letters are blocks: an id names a block and all before it."""
    names: dict[tuple[object, ...], int] = {}
    return [
        [names.setdefault(tuple(prompt[: end + 1]), len(names)) for end in range(len(prompt))]
        for prompt in prompts
    ]


def call(start_s: float, end_s: float, agent: str = "", model: str = "m", **fields: int) -> Call:
    """A call of one block, not yet linked."""
    return Call(
        start_s=start_s,
        end_s=end_s,
        timed=True,
        isl=fields.get("isl", SIZE),
        osl=fields.get("osl", 10),
        after=(),
        gap_s=0.0,
        parent=None,
        shared=0,
        system=0,
        agent=agent,
        model=model,
        cached=None,
    )


def prompted(calls: Iterable[Call], prompts: Sequence[Sequence[object]]) -> list[Call]:
    """The calls with these prompts, whose letters are blocks."""
    relations = shared_prefixes(chained(prompts))
    return [
        each._replace(isl=len(prompt) * SIZE, parent=parent, shared=blocks * SIZE)
        for each, prompt, (parent, blocks) in zip(calls, prompts, relations, strict=True)
    ]


def linked(*rows: tuple[str, Call]) -> tuple[Call, ...]:
    """The calls, each given with its prompt, with who waits for whom."""
    return link(prompted([each for _, each in rows], [prompt for prompt, _ in rows]), SIZE)


def waits(*rows: tuple[str, Call]) -> list[tuple[int, ...]]:
    """For each call, given with its prompt, whom it waits for."""
    return [each.after for each in linked(*rows)]


def session(calls: Iterable[Call]) -> Session:
    """A session of these calls."""
    return Session("own", None, tuple(calls), SIZE, "own")


# --- What prompts share ---------------------------------------------------------------------------


def same(a: Sequence[object], b: Sequence[object]) -> int:
    """How many leading blocks two prompts share."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))))


def naive_relations(prompts: Sequence[Sequence[object]]) -> list[Relation]:
    """Parent and shared blocks by comparing every prompt with every earlier one."""
    relations: list[Relation] = []
    for i, prompt in enumerate(prompts):
        best: Relation = (None, 0)
        for j in range(i):
            shared = same(prompt, prompts[j])
            if shared and shared >= best[1]:
                best = (j, shared)
        relations.append(best)
    return relations


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        pytest.param([], [], id="no prompts"),
        pytest.param([""], [(None, 0)], id="an empty prompt"),
        pytest.param(["ab", ""], [(None, 0), (None, 0)], id="an empty prompt after another"),
        pytest.param(["ab", "abc"], [(None, 0), (0, 2)], id="growing"),
        pytest.param(["abc", "ab"], [(None, 0), (0, 2)], id="shrinking"),
        pytest.param(["abc", "abc"], [(None, 0), (0, 3)], id="the same"),
        pytest.param(["ab", "xy"], [(None, 0), (None, 0)], id="nothing in common"),
        pytest.param(["ab", "abc", "abx"], [(None, 0), (0, 2), (1, 2)], id="latest of equals"),
        pytest.param(["abc", "ab", "abcd"], [(None, 0), (0, 2), (0, 3)], id="longest, not latest"),
        pytest.param(["ab", "xb"], [(None, 0), (None, 0)], id="the same block after another"),
    ],
)
def test_the_parent_shares_the_most(prompts: list[str], expected: list[Relation]) -> None:
    """A prompt's parent shares the longest beginning with it, and is the latest of such."""
    assert shared_prefixes(chained(prompts)) == expected


trees = st.lists(st.lists(st.integers(0, 2), max_size=7), max_size=12)
"""Prompts of few different blocks, so that many begin alike."""


@random_cases
@given(trees)
def test_relations_are_those_of_all_pairs(prompts: list[list[int]]) -> None:
    """On any prompts the relations are those that comparing all pairs finds."""
    assert shared_prefixes(chained(prompts)) == naive_relations(prompts)


@random_cases
@given(trees)
def test_ids_that_name_only_their_block_are_compared_by_prefix(prompts: list[list[int]]) -> None:
    """Also where an id names no more than its own block, only equal beginnings are shared."""
    assert shared_prefixes(prompts) == naive_relations(prompts)


@pytest.mark.parametrize("prompts", [[[1, 2], [2]], [[1, 2, 3], [4, 2, 3]], [[1, 1], [1]]], ids=str)
def test_an_equal_id_at_another_place_is_not_shared(prompts: list[list[int]]) -> None:
    """An id that occurred after other blocks, or at another position, is no common beginning."""
    assert shared_prefixes(prompts) == naive_relations(prompts)


@random_cases
@given(trees.filter(lambda prompts: len(prompts) > 1), st.integers(1, 4 * SIZE), st.data())
def test_common_prefixes_are_those_of_the_prompts(
    prompts: list[list[int]], at_least: int, data: st.DataObject
) -> None:
    """What two calls share follows from the parents alone; below `at_least` it is 0."""
    tails = data.draw(st.lists(st.integers(0, SIZE - 1), min_size=len(prompts)))
    calls = [
        each._replace(isl=each.isl + tail)
        for each, tail in zip(prompted([call(0, 0)] * len(prompts), prompts), tails, strict=False)
    ]
    pairs = [(i, j) for i in range(len(calls)) for j in range(len(calls)) if i != j]
    shared = {(i, j): same(prompts[i], prompts[j]) * SIZE for i, j in pairs}
    assert {pair: common_prefix(calls, *pair) for pair in pairs} == shared
    assert {pair: common_prefix(calls, *pair, at_least) for pair in pairs} == {
        pair: tokens if tokens >= at_least else 0 for pair, tokens in shared.items()
    }


def test_a_prompt_shares_all_of_itself() -> None:
    """A call has its whole prompt in common with itself."""
    assert common_prefix([call(0, 1, isl=11)], 0, 0) == 11


# --- Estimated ends -------------------------------------------------------------------------------


def unknown(start_s: float, osl: int, agent: str = "") -> Call:
    """A call whose end was not recorded."""
    return call(start_s, start_s, agent, osl=osl)._replace(timed=False)


def ends(*calls: Call) -> list[float]:
    """When the calls end, after the unknown ends were estimated."""
    return [each.end_s for each in with_estimated_ends(calls)]


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        pytest.param([(10, 1.0)], 10.0, id="one call"),
        pytest.param([(10, 1.0), (20, 1.0), (90, 1.0)], 5.0, id="the median of three"),
        pytest.param([(10, 1.0), (30, 1.0)], 5.0, id="the mean of the middle two"),
        pytest.param([(10, 1.0), (0, 9.0)], 10.0, id="a call without output has no speed"),
        pytest.param([(10, 1.0), (50, 0.0)], 10.0, id="a call without duration has no speed"),
        pytest.param([], 100 / FALLBACK_TOKENS_S, id="no call at all"),
        pytest.param([(0, 1.0)], 100 / FALLBACK_TOKENS_S, id="no call with a speed"),
    ],
)
def test_an_estimate_takes_the_median_speed(
    measured: list[tuple[int, float]], expected: float
) -> None:
    """100 tokens take their time at the median speed of the measured calls."""
    before = [call(20.0 * n, 20.0 * n + took, osl=osl) for n, (osl, took) in enumerate(measured)]
    assert ends(*before, unknown(100.0, 100))[-1] == pytest.approx(100.0 + expected)


def test_speed_counts_from_the_whole_session() -> None:
    """A call is estimated from later measured calls too."""
    assert ends(unknown(0.0, 100), call(50.0, 51.0, osl=20))[0] == 5.0


def test_an_estimate_without_output_takes_no_time() -> None:
    """A call that gave no output is estimated to end where it starts."""
    assert ends(unknown(3.0, 0)) == [3.0]


@pytest.mark.parametrize(
    ("following", "expected"),
    [
        (call(2.0, 3.0), 2.0),
        (unknown(2.0, 1), 2.0),
        (call(0.0, 3.0), 0.0),
        (call(1e6, 1e6 + 1), 1000 / FALLBACK_TOKENS_S),
        (call(2.0, 3.0, "other"), 1000 / FALLBACK_TOKENS_S),
    ],
    ids=["measured", "estimated", "at the same time", "much later", "of another agent"],
)
def test_an_estimate_ends_before_the_agents_next_call(following: Call, expected: float) -> None:
    """An estimate is cut where the next call of the same agent starts, and only there."""
    following = following._replace(osl=0)
    assert ends(unknown(0.0, 1000), following)[0] == pytest.approx(expected)


def test_only_unknown_ends_are_filled_in() -> None:
    """Measured calls are left as they are, and an estimate stays marked as one."""
    given_calls = [call(0.0, 30.0), unknown(5.0, 10), call(6.0, 7.0)]
    filled = with_estimated_ends(given_calls)
    assert (filled[0], filled[2]) == (given_calls[0], given_calls[2])
    assert filled[1].timed is False


# --- Chains ---------------------------------------------------------------------------------------


def test_a_chain_waits_call_by_call() -> None:
    """Each call that extends the last one waits for it, with the recorded gap."""
    calls = linked(("ab", call(0, 2)), ("abc", call(5, 6)), ("abcd", call(10, 12)))
    assert [(each.after, each.gap_s) for each in calls] == [((), 0), ((0,), 3), ((1,), 4)]


@pytest.mark.parametrize(
    ("prompt", "predecessor"),
    [
        pytest.param("abcdef", 0, id="the same"),
        pytest.param("abcdefgh", 0, id="extended"),
        pytest.param("abcdeXYZ", 0, id="last block rewritten"),
        pytest.param("abcdXY", 0, id="last two blocks rewritten"),
        pytest.param("abcd", 0, id="last two blocks dropped"),
        pytest.param("abcXYZ", 1, id="last three blocks rewritten"),
        pytest.param("abc", 1, id="last three blocks dropped"),
        pytest.param("XYZ", 1, id="nothing in common"),
    ],
)
def test_a_chain_may_change_its_last_two_blocks(prompt: str, predecessor: int) -> None:
    """A prompt continues one of which it keeps all but two blocks; else it follows the last end."""
    rows = [("abcdef", call(0, 1)), ("other!", call(2, 3)), (prompt, call(10, 11))]
    assert waits(*rows)[2][0] == predecessor


@pytest.mark.parametrize(("second", "predecessor"), [("aX", 0), ("XY", 1)])
def test_a_short_chain_needs_one_block_in_common(second: str, predecessor: int) -> None:
    """A prompt of two blocks is continued by what shares one of them, not by what shares none."""
    rows = [("ab", call(0, 1)), ("other!", call(2, 3)), (second, call(10, 11))]
    assert waits(*rows)[2][0] == predecessor


@pytest.mark.parametrize(("model", "predecessor"), [("m", 0), ("n", 1)])
def test_another_model_continues_nothing(model: str, predecessor: int) -> None:
    """A call to another model follows the call that ended last, whatever its prompt."""
    rows = [
        ("abc", call(0, 1)),
        ("other!", call(2, 3)),
        ("abcd", call(10, 11, model=model)),
    ]
    assert waits(*rows)[2][0] == predecessor


@pytest.mark.parametrize("prompts", [("ab", "abcde"), ("abcde", "ab")], ids=str)
def test_the_longest_shared_chain_is_continued(prompts: tuple[str, str]) -> None:
    """Of several chains that a call may continue it takes the one it shares most with."""
    rows = [(prompts[0], call(0, 10)), (prompts[1], call(1, 10)), ("abcdef", call(20, 21))]
    assert waits(*rows)[2][0] == prompts.index("abcde")


@pytest.mark.parametrize("overlap_s", [0.0, 0.3, 1.0])
def test_an_overlap_of_rounding_is_no_overlap(overlap_s: float) -> None:
    """Stamps of whole seconds may overlap by a second: the call waits, with a gap of 0."""
    calls = linked(("ab", call(0, 5 + overlap_s)), ("abc", call(5, 6)))
    assert (calls[1].after, calls[1].gap_s) == ((0,), 0.0)


def test_an_overlap_beyond_rounding_is_concurrency() -> None:
    """A call that starts over a second before the end of the chain's last does not wait for it."""
    calls = linked(("ab", call(0, 6.25)), ("abc", call(5, 7)))
    assert (calls[1].after, calls[1].gap_s) == ((), 5)


def test_a_fork_leaves_the_chain_to_whoever_continues_it() -> None:
    """Of two calls that branch off at once, each is continued by the one that extends it."""
    rows = [
        ("ab", call(0, 1)),
        ("abcd", call(5, 9)),
        ("abxy", call(5, 8)),
        ("abxyz", call(20, 21)),
        ("abcde", call(20, 22)),
    ]
    firsts = [after[:1] for after in waits(*rows)]
    assert firsts == [(), (0,), (0,), (2,), (1,)]


# --- What continues nothing -----------------------------------------------------------------------


def test_the_first_call_is_a_root() -> None:
    """The first call of a session waits for nobody."""
    assert waits(("ab", call(0, 1))) == [()]


def test_a_call_before_any_end_is_a_root() -> None:
    """A call that starts before any other has ended keeps its distance to the session's start."""
    calls = linked(("ab", call(0, 20)), ("xy", call(7, 9)))
    assert (calls[1].after, calls[1].gap_s) == ((), 7)


def test_a_root_joins_nothing() -> None:
    """A call without a predecessor waits for no other chain either."""
    assert waits(("ab", call(0, 20)), ("xy", call(2, 9)), ("pq", call(3, 4))) == [(), (), ()]


def test_a_subagent_starts_after_the_call_that_ended_last() -> None:
    """The first call of a subagent follows its parent's call, with the recorded gap."""
    calls = linked(("abc", call(0, 2)), ("pq", call(3, 4, "sub")))
    assert (calls[1].after, calls[1].gap_s) == ((0,), 1)


def test_a_compaction_follows_what_it_replaces() -> None:
    """A rewritten history follows the last call of its agent, and later calls continue it."""
    rows = [("abcdefgh", call(0, 1)), ("abXY", call(5, 6)), ("abXYZ", call(9, 10))]
    assert waits(*rows) == [(), (0,), (1,)]


def test_an_agent_follows_its_own_last_call() -> None:
    """A subagent's rewritten history follows that agent's last call, not the session's."""
    rows = [
        ("abc", call(0, 2)),
        ("pqrstu", call(3, 4, "sub")),
        ("abcd", call(5, 6)),
        ("pXYZ", call(9, 10, "sub")),
    ]
    assert waits(*rows)[3] == (1,)


# --- Joins ----------------------------------------------------------------------------------------


def test_a_parent_joins_two_subagents() -> None:
    """Two subagents start together, and the parent goes on after the later of them."""
    calls = linked(
        ("abc", call(0, 2)),
        ("pq", call(3, 6, "one")),
        ("pr", call(3, 8, "two")),
        ("abcd", call(10, 11)),
    )
    assert [each.after for each in calls] == [(), (0,), (0,), (0, 1, 2)]
    assert [each.gap_s for each in calls] == [0, 1, 1, 2]


def test_a_parent_joins_the_last_call_of_a_subagent() -> None:
    """A subagent of several calls is joined at its last one."""
    rows = [
        ("abc", call(0, 2)),
        ("pq", call(3, 4, "sub")),
        ("pqr", call(5, 6, "sub")),
        ("abcd", call(10, 11)),
    ]
    assert waits(*rows) == [(), (0,), (1,), (0, 2)]


def test_a_subagent_that_begins_with_a_copy_of_the_history_is_joined() -> None:
    """An agent that continues its maker's prompt takes the maker's place from nobody."""
    assert waits(
        ("abcd", call(0, 2)),
        ("abcdef", call(3, 11, "sub")),
        ("abcdg", call(14, 15)),
    ) == [(), (0,), (0, 1)]


def test_an_agent_that_called_before_continues_no_other() -> None:
    """A rewritten history follows the agent's own last call, not another's that looks like it."""
    rows = [
        ("abcd", call(0, 1)),
        ("ab", call(2, 3, "helper")),
        ("abcdefgh", call(5, 9)),
        ("abXY", call(12, 13)),
    ]
    assert waits(*rows)[3] == (2,)


def test_a_subagent_is_joined_once() -> None:
    """What the parent's call before has waited for is not joined again."""
    rows = [
        ("abc", call(0, 2)),
        ("pq", call(3, 6, "sub")),
        ("abcd", call(10, 11)),
        ("abcde", call(20, 21)),
    ]
    assert waits(*rows)[3] == (2,)


def test_a_subagent_that_is_not_done_is_not_joined() -> None:
    """A parent that goes on while a subagent works does not wait for it, then or later."""
    rows = [
        ("abc", call(0, 2)),
        ("pq", call(3, 9, "sub")),
        ("abcd", call(5, 6)),
        ("abcde", call(20, 21)),
    ]
    assert waits(*rows) == [(), (0,), (0,), (2,)]


def test_a_subagent_that_goes_on_later_is_not_joined() -> None:
    """A chain that is idle at the moment but makes later calls is in the background."""
    rows = [
        ("abc", call(0, 2)),
        ("pq", call(3, 4, "sub")),
        ("abcd", call(6, 7)),
        ("pqr", call(8, 9, "sub")),
    ]
    assert waits(*rows)[2] == (0,)


@pytest.mark.parametrize(("end_s", "after"), [(10.9, (0, 1)), (11.0, (0, 1)), (11.1, (0,))])
def test_a_join_allows_for_rounding(end_s: float, after: tuple[int, ...]) -> None:
    """A subagent that ends up to a second after its parent's next call has been waited for."""
    rows = [("abc", call(0, 2)), ("pq", call(3, end_s, "sub")), ("abcd", call(10, 11))]
    assert waits(*rows)[2] == after


def test_a_new_chain_joins_what_ended_since_its_predecessor() -> None:
    """A call that continues nothing joins as one that continues a chain does."""
    rows = [
        ("abcdef", call(0, 2)),
        ("pq", call(3, 6, "sub")),
        ("XYZ", call(10, 11)),
    ]
    assert waits(*rows)[2] == (0, 1)


def test_prompts_without_ids_wait_for_one_another() -> None:
    """Calls that share nothing follow each other in order."""
    calls = link([call(0, 1), call(5, 6), call(8, 9)], SIZE)
    assert [each.after for each in calls] == [(), (0,), (1,)]


# --- Recorded order -------------------------------------------------------------------------------

BACKGROUND = (
    ("abc", call(0, 2)),
    ("pq", call(3, 6, "sub")),
    ("abcd", call(4, 5)),
    ("pqr", call(7, 9, "sub")),
    ("abcde", call(10, 11)),
)
"""A main agent that goes on while a subagent works in the background."""


def in_recorded_order(*rows: tuple[str, Call]) -> list[tuple[tuple[int, ...], float]]:
    """For each call, whom it waits for in recorded order, and the gap."""
    return [(each.after, each.gap_s) for each in recorded_order(session(linked(*rows))).calls]


def test_causal_order_lets_the_background_be() -> None:
    """In causal order a chain in the background gates nothing."""
    assert waits(*BACKGROUND) == [(), (0,), (0,), (1,), (2,)]


def test_recorded_order_waits_for_the_background_too() -> None:
    """In recorded order a call also waits for the latest ended call of every other chain."""
    assert in_recorded_order(*BACKGROUND) == [
        ((), 0),
        ((0,), 1),
        ((0,), 2),
        ((1, 2), 1),
        ((2, 3), 1),
    ]


def test_recorded_order_waits_for_an_idle_chain() -> None:
    """A chain that goes on later still has a latest call that ended."""
    rows = [
        ("abc", call(0, 2)),
        ("pq", call(3, 4, "sub")),
        ("abcd", call(6, 7)),
        ("pqr", call(8, 9, "sub")),
    ]
    assert in_recorded_order(*rows)[2] == ((0, 1), 2)


def test_recorded_order_changes_nothing_in_a_chain() -> None:
    """A session of one chain is the same in both orders."""
    one = session(linked(("ab", call(0, 2)), ("abc", call(5, 6)), ("abcd", call(10, 12))))
    assert recorded_order(one) == one


def test_recorded_order_keeps_what_calls_waited_for() -> None:
    """Recorded order only adds to what a call waits for, and keeps its predecessor first."""
    causal = session(linked(*BACKGROUND))
    pairs = zip(causal.calls, recorded_order(causal).calls, strict=True)
    assert all(after.after[: len(before.after)] == before.after for before, after in pairs)


# --- Any session ----------------------------------------------------------------------------------


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    """Calls of up to three agents at whole minutes, so that no overlap is one of rounding."""
    prompts = draw(trees.filter(bool))
    minutes = st.integers(0, 20)
    begun = sorted(draw(st.lists(minutes, min_size=len(prompts), max_size=len(prompts))))
    calls = [
        call(
            60.0 * start,
            60.0 * (start + draw(minutes)),
            agent=draw(st.sampled_from(["", "one", "two"])),
            model=draw(st.sampled_from(["m", "m", "n"])),
        )
        for start in begun
    ]
    return session(link(prompted(calls, prompts), SIZE))


Order = Callable[[Session], Session]
ORDERS = pytest.mark.parametrize(
    "order", [lambda each: each, recorded_order], ids=["causal", "rec"]
)


def simulated(session: Session, stretch: float = 1.0) -> list[tuple[float, float]]:
    """(start, end) of each call where every call takes its recorded time times *stretch*."""
    spans: list[tuple[float, float]] = []
    for each in session.calls:
        start_s = max((spans[j][1] for j in each.after), default=0.0) + each.gap_s
        spans.append((start_s, start_s + stretch * (each.end_s - each.start_s)))
    return spans


def recorded(session: Session) -> list[tuple[float, float]]:
    """(start, end) of each call as recorded."""
    return [(each.start_s, each.end_s) for each in session.calls]


def in_flight(spans: Iterable[tuple[float, float]]) -> int:
    """The most calls in flight at once; one that ends as another starts is done."""
    events = sorted([(end, -1) for _, end in spans] + [(start, 1) for start, _ in spans])
    running = most = 0
    for _, step in events:
        running += step
        most = max(most, running)
    return most


@ORDERS
@random_cases
@given(session=sessions())
def test_any_session_is_well_formed(order: Order, session: Session) -> None:
    """Calls wait for earlier ones that had ended, each once, and never a negative time."""
    for i, each in enumerate(order(session).calls):
        assert each.gap_s >= 0
        assert len(set(each.after)) == len(each.after)
        assert all(j < i and session.calls[j].end_s <= each.start_s for j in each.after)


@ORDERS
@random_cases
@given(session=sessions())
def test_any_session_replays_as_recorded(order: Order, session: Session) -> None:
    """Where every call takes its recorded time, every call starts at its recorded time."""
    assert simulated(order(session)) == recorded(session)


def overtaking(session: Session, spans: list[tuple[float, float]]) -> list[int]:
    """The calls that start before one has ended that had ended before them in the recording."""
    ended = sorted((each.end_s, span[1]) for each, span in zip(session.calls, spans, strict=True))
    latest, until = [], float("-inf")
    for _, end in ended:
        until = max(until, end)
        latest.append(until)
    ends = [end for end, _ in ended]
    return [
        i
        for i, (each, (start, _)) in enumerate(zip(session.calls, spans, strict=True))
        if (before := bisect_right(ends, each.start_s)) and latest[before - 1] > start
    ]


@random_cases
@given(session=sessions(), stretch=st.sampled_from([0.5, 3.0, 10.0]))
def test_nothing_overtakes_in_any_session(session: Session, stretch: float) -> None:
    """In recorded order, at any speed, a call starts after all that had ended before it."""
    assert overtaking(session, simulated(recorded_order(session), stretch)) == []


# --- Lines and serial order -----------------------------------------------------------------------


def waiting_for(*afters: Sequence[int], agents: str = "") -> list[Call]:
    """Calls a minute apart that wait for these; letters name their agents."""
    names = agents or "m" * len(afters)
    return [
        call(60.0 * i, 60.0 * i + 1, agent=name)._replace(after=tuple(after))
        for i, (after, name) in enumerate(zip(afters, names, strict=True))
    ]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        pytest.param(waiting_for((), (0,), (1,)), [0, 0, 0], id="a chain"),
        pytest.param(waiting_for((), (0,), (0,)), [0, 0, 1], id="a fork begins a line"),
        pytest.param(waiting_for((), (), (0,), (1,)), [0, 1, 0, 1], id="side by side"),
        pytest.param(waiting_for((), (0,), (1,), (0, 2), agents="mssm"), [0, 1, 1, 0], id="a join"),
        pytest.param(waiting_for((), (0,), agents="ms"), [0, 1], id="another agent"),
        pytest.param(waiting_for((), (), (0, 1)), [0, 1, 0], id="two lines meet"),
        pytest.param(waiting_for(), [], id="no calls"),
    ],
)
def test_a_line_is_of_calls_that_follow_each_other(
    calls: Sequence[Call], expected: list[int]
) -> None:
    """A call goes on with the line of its agent whose last call it waits for, the first of them."""
    assert lines(calls) == expected


@random_cases
@given(session=sessions())
def test_any_line_is_a_chain_of_one_agent(session: Session) -> None:
    """Each call of a line waits for the one before it; lines are numbered as they begin."""
    numbers = lines(session.calls)
    assert list(dict.fromkeys(numbers)) == list(range(len(set(numbers))))
    for line in set(numbers):
        own = [i for i, number in enumerate(numbers) if number == line]
        assert len({session.calls[i].agent for i in own}) == 1
        assert all(before in session.calls[i].after for before, i in pairwise(own))


@random_cases
@given(session=sessions())
def test_no_two_lines_could_be_one(session: Session) -> None:
    """A call begins a line only where no last call of a line of its agent is waited for."""
    numbers = lines(session.calls)
    for i, each in enumerate(session.calls):
        if numbers[i] in numbers[:i]:
            continue
        lasts = {numbers[j]: j for j in range(i)}
        assert not any(
            lasts[numbers[j]] == j and session.calls[j].agent == each.agent for j in each.after
        )


@random_cases
@given(session=sessions(), stretch=st.sampled_from([0.0, 0.5, 1.0, 3.0]))
def test_in_serial_order_one_call_is_in_flight(session: Session, stretch: float) -> None:
    """However long calls take, each starts when the one recorded before it has ended."""
    spans = simulated(serial_order(session), stretch)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert in_flight(spans) <= 1


@random_cases
@given(session=sessions())
def test_serial_order_changes_only_who_waits(session: Session) -> None:
    """Gaps are those between the end of the call before and the start, and never negative."""
    ordered = serial_order(session)
    for i, (before, after) in enumerate(zip(session.calls, ordered.calls, strict=True)):
        since_s = session.calls[i - 1].end_s if i else 0.0
        gap_s = max(0.0, before.start_s - since_s)
        assert after == before._replace(after=(i - 1,) if i else (), gap_s=gap_s)


@random_cases
@given(session=sessions())
def test_a_session_without_overlaps_replays_serially_as_recorded(session: Session) -> None:
    """Where calls never overlapped, serial order keeps every recorded time."""
    calls = [
        each._replace(end_s=min(each.end_s, after.start_s) if after else each.end_s)
        for each, after in zip_longest(session.calls, session.calls[1:])
    ]
    apart = replace(session, calls=link(calls, SIZE))
    assert simulated(serial_order(apart)) == recorded(apart)


@random_cases
@given(session=sessions())
def test_each_order_is_what_its_name_says(session: Session) -> None:
    """In causal order nothing changes; and asking for an order twice changes nothing more."""
    assert in_order(session, "causal") is session
    assert in_order(session, "recorded") == recorded_order(session)
    assert in_order(session, "serial") == serial_order(session)
    assert serial_order(serial_order(session)) == serial_order(session)


# --- The shared recordings ------------------------------------------------------------------------


@needs_shared
@ORDERS
def test_shared_sessions_replay_as_recorded(order: Order) -> None:
    """Identity: with recorded durations every call starts within a second of its recorded time."""
    moved = {
        each.id
        for each in weka_sessions()
        if any(
            abs(start - call.start_s) > 1.0
            for call, (start, _) in zip(each.calls, simulated(order(each)), strict=True)
        )
    }
    assert moved == set()


def more_in_flight(sessions: Iterable[Session], stretch: float) -> set[str]:
    """The sessions that have more calls in flight, with longer calls, than were recorded."""
    return {
        each.id
        for each in sessions
        if in_flight(simulated(each, stretch)) > in_flight(recorded(each))
    }


@needs_shared
@pytest.mark.parametrize("stretch", [3.0, 10.0])
@pytest.mark.parametrize(
    ("order", "exceptions"),
    [(lambda each: each, {"trace_0274", "trace_0282"}), (recorded_order, set())],
    ids=["causal", "rec"],
)
def test_slow_calls_do_not_pile_up(order: Order, exceptions: set[str], stretch: float) -> None:
    """Stretch: with longer calls no session has more in flight than recorded, but those named."""
    assert more_in_flight(map(order, weka_sessions()), stretch) == exceptions


@needs_shared
@ORDERS
@pytest.mark.parametrize("stretch", [3.0, 10.0])
def test_no_call_starts_before_its_predecessor_has_ended(order: Order, stretch: float) -> None:
    """Stretch: however slow the calls, each starts after the end of the one it follows."""
    early = []
    for each in map(order, weka_sessions()):
        spans = simulated(each, stretch)
        early += [
            (each.id, i)
            for i, call in enumerate(each.calls)
            if call.after and spans[i][0] < spans[call.after[0]][1]
        ]
    assert early == []


@needs_shared
@pytest.mark.parametrize("stretch", [3.0, 10.0])
def test_nothing_overtakes_in_recorded_order(stretch: float) -> None:
    """In recorded order a call starts after all that had ended before it in the recording."""
    overtook = {
        each.id: overtaking(each, simulated(recorded_order(each), stretch))
        for each in weka_sessions()
    }
    assert {name: calls for name, calls in overtook.items() if calls} == {}


def unlinked(session: Session) -> Session:
    """The session in which every call waits for its time only."""
    calls = (each._replace(after=(), gap_s=each.start_s) for each in session.calls)
    return replace(session, calls=tuple(calls))


@needs_shared
def test_identity_does_not_see_missing_links() -> None:
    """Sessions in which nobody waits for anybody replay as recorded: identity proves nothing."""
    moved = {
        each.id
        for each in weka_sessions()
        if [start for start, _ in simulated(unlinked(each))] != [c.start_s for c in each.calls]
    }
    assert moved == set()


@needs_shared
@pytest.mark.parametrize("stretch", [3.0, 10.0])
def test_stretch_sees_missing_links(stretch: float) -> None:
    """Sessions in which nobody waits for anybody pile up as soon as calls are slow."""
    assert len(more_in_flight(map(unlinked, weka_sessions()), stretch)) >= 70


@needs_shared
def test_shared_sessions_begin_with_their_only_root() -> None:
    """In the shared sessions only the first call waits for nobody."""
    roots = {
        each.id: [i for i, call in enumerate(each.calls) if not call.after]
        for each in weka_sessions()
    }
    assert {name: calls for name, calls in roots.items() if calls != [0]} == {}


@needs_shared
def test_recorded_order_of_recorded_order_is_the_same() -> None:
    """Asking for recorded order twice changes nothing more."""
    once = [recorded_order(each) for each in weka_sessions()]
    assert [recorded_order(each) for each in once] == once
