"""Lengths into memory: what sessions hold in a KV cache, by worked examples and laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtually import call, chain

from agentreplay.trace.memory import Memory, Sizes, working_set
from agentreplay.trace.model import Call, Session
from agentreplay.trace.structure import link


def session(*calls: Call) -> Session:
    return Session("s", None, link(list(calls), 64), 64, "")


def memory(*sessions: Session, users: int | None = None) -> Memory:
    """At one byte a token."""
    sizes = Sizes()
    assert list(sizes.through(sessions)) == list(sessions)
    return sizes.memory(1.0, users=users)


def tokens(found: Memory, name: str) -> float:
    held = getattr(found, name)
    assert held is not None
    return float(held.tokens)


def test_the_published_conversation_takes_1_96_gb_and_245_mb_a_partition() -> None:
    """142,000 tokens of 13.8 kB, over 8 partitions."""
    sizes = Sizes()
    sizes.add(session(call(0, 1, isl=141_700, osl=300)))
    held = sizes.memory(13_800.0, 8).largest_conversation
    assert held is not None
    assert f"{held.bytes / 1e9:.2f} GB" == "1.96 GB"
    assert f"{held.partition_bytes / 1e6:.0f} MB" == "245 MB"


def test_a_conversation_is_the_largest_prompt_with_its_answer() -> None:
    """Of 1,000 + 500 and 1,200 + 10 tokens the first; the mean is over sessions."""
    two = session(call(0, 1, isl=1000, osl=500), call(2, 3, isl=1200, osl=10))
    found = memory(two, session(call(0, 1, isl=300, osl=200)))
    assert tokens(found, "largest_conversation") == 1500
    assert tokens(found, "mean_conversation") == 1000


def test_a_prompt_is_held_while_a_tool_is_waited_for() -> None:
    """640 tokens and their answer, then 640 alone, then all of the call that goes on from them."""
    found = working_set(
        session(
            call(0, 2, isl=640, osl=10),
            call(5, 6, isl=1280, osl=20, parent=0, shared=640),
        )
    )
    assert [step for step in found if step[1]] == [(650, 2.0), (640, 3.0), (1300, 1.0)]


def test_what_a_compaction_has_dropped_is_not_held() -> None:
    """After it only the 64 tokens of the system prompt and what is new."""
    found = working_set(
        session(
            call(0, 1, isl=6400, osl=10),
            call(2, 3, isl=640, osl=10, parent=0, shared=64),
        )
    )
    assert [step for step in found if step[1]] == [(6410, 1.0), (64, 1.0), (650, 1.0)]


def test_what_two_agents_share_is_held_once() -> None:
    """A subagent that begins with 640 tokens of the main agent's brings 100 and its answer."""
    found = working_set(
        session(
            call(0, 1, isl=640, osl=10),
            call(2, 4, isl=740, osl=10, parent=0, shared=640, agent="a"),
            call(2, 4, isl=840, osl=10, parent=0, shared=640),
        )
    )
    assert (640 + 100 + 10 + 200 + 10, 2.0) in found


def test_the_working_set_of_users_is_worked_out() -> None:
    """Held 100 tokens for 9 s, or 1,000 for 1 s: 190 on average; two users are both at 1,000 for
    1 % of the time, and one of them is for 19 %; at most both are."""
    found = memory(
        session(call(0, 9, isl=90, osl=10)), session(call(0, 1, isl=990, osl=10)), users=2
    )
    assert tokens(found, "working_set_mean") == pytest.approx(2 * 190)
    assert tokens(found, "working_set_p95") == pytest.approx(1100, rel=1e-3)
    assert tokens(found, "working_set_most") == 1100
    assert tokens(memory(session(call(0, 1, isl=90)), users=3), "working_set_most") == 300


def test_nothing_is_said_of_what_was_not_asked_or_has_no_time() -> None:
    """Without users there is no working set, and sessions without length have no mean one."""
    assert memory(chain(0, 3)).working_set_mean is None
    found = memory(session(call(0, 0)), users=2)
    assert (found.working_set_mean, found.working_set_p95) == (None, None)
    assert tokens(found, "working_set_most") == 2 * 650


sizes = st.lists(
    st.tuples(st.integers(1, 200_000), st.integers(1, 3000), st.integers(1, 500)),
    min_size=1,
    max_size=6,
)


@given(sizes, st.integers(1, 50))
def test_95_percent_of_the_time_lies_between_the_least_and_the_most(
    shapes: list[tuple[int, int, int]], users: int
) -> None:
    """The sum over users is never less than all at the least, nor more than all at the most; the
    mean is proportional to the users."""
    trace = [session(call(0, s, isl=isl, osl=osl)) for isl, osl, s in shapes]
    held = [isl + osl for isl, osl, _ in shapes]
    found = memory(*trace, users=users)
    step = users * max(held) / 4095
    assert users * min(held) - step <= tokens(found, "working_set_p95")
    assert tokens(found, "working_set_p95") <= users * max(held) + step
    one = tokens(memory(*trace, users=1), "working_set_mean")
    assert tokens(found, "working_set_mean") == pytest.approx(users * one)


@given(st.integers(1, 12), st.integers(0, 100), st.integers(1, 100))
def test_a_working_set_is_at_least_the_prompt_that_is_computed(
    calls: int, gap_s: int, takes_s: int
) -> None:
    """Its peak is the largest conversation where there is one agent, it is never negative, and its
    steps last as long as the session."""
    one = chain(0, calls, gap_s=gap_s, takes_s=takes_s)
    steps = working_set(one)
    assert max(held for held, _ in steps) == one.calls[-1].isl + one.calls[-1].osl
    assert min(held for held, _ in steps) >= 0
    assert sum(seconds for _, seconds in steps) == one.calls[-1].end_s


@st.composite
def trees(draw: st.DrawFn) -> Session:
    """Up to six calls that share prefixes with earlier ones, at whole seconds, side by side too."""
    calls: list[Call] = []
    for i in range(draw(st.integers(1, 6))):
        start_s = draw(st.integers(calls[-1].start_s if calls else 0, 12))  # type: ignore[arg-type]
        isl = draw(st.integers(1, 8))
        parent = draw(st.none() | st.integers(0, i - 1)) if i else None
        shared = 0 if parent is None else draw(st.integers(0, min(isl, calls[parent].isl)))
        calls.append(
            call(
                start_s,
                start_s + draw(st.integers(0, 5)),
                isl=isl,
                osl=draw(st.integers(0, 3)),
                parent=parent,
                shared=shared,
            )
        )
    return Session("s", None, tuple(calls), 1, "")


@given(trees())
def test_a_working_set_counts_every_token_that_comes_back(tree: Session) -> None:
    """Each token by itself, from the call that brought it to the end of the last that has it."""
    until_s: dict[tuple[int, int], float] = {}
    for i, each in enumerate(tree.calls):
        for place in range(each.isl + each.osl):
            brought = i
            while (parent := tree.calls[brought].parent) is not None and (
                place < tree.calls[brought].shared
            ):
                brought = parent
            key = brought, place
            until_s[key] = max(until_s.get(key, 0.0), each.end_s)
    held = [
        sum(tree.calls[i].start_s <= t < end_s for (i, _), end_s in until_s.items())
        for t in range(18)
    ]
    found: list[int] = []
    for tokens_held, seconds in working_set(tree):
        found += [tokens_held] * round(seconds)
    start = next((t for t, tokens_held in enumerate(held) if tokens_held), 0)
    assert found == held[start : start + len(found)]
    assert not any(held[start + len(found) :])
