"""Sessions and the model's context: what is left out, and what is left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtually import call, chain, oracle, replay

from agentreplay.plan import Fit, Plan
from agentreplay.trace.fit import fitted, needs, without
from agentreplay.trace.model import Call, Session
from agentreplay.trace.structure import common_prefix, link

LONG = chain(0, 6)  # prompts of 640, 704, … 960 tokens, answers of 10


def test_what_fits_stays_as_it_is() -> None:
    """A session whose longest call just fits is unchanged."""
    assert fitted(LONG, 970, "drop-session").session is LONG


@pytest.mark.parametrize("policy", ["drop-session", "fail"])
def test_a_call_too_long_drops_the_session(policy: Fit) -> None:
    """One token too much for one call, and the session is left out whole and counted."""
    result = fitted(LONG, 969, policy)
    assert result.session is None
    assert (result.calls, result.tokens) == (6, sum(map(needs, LONG.calls)))


def test_only_the_calls_that_are_too_long_are_dropped() -> None:
    """With drop-calls the others stay, and what was left out is counted."""
    result = fitted(LONG, 800, "drop-calls")
    assert result.session is not None
    assert [call.isl for call in result.session.calls] == [640, 704, 768]
    assert (result.calls, result.tokens) == (3, 832 + 896 + 960 + 30)


def test_nothing_is_left_where_every_call_is_too_long() -> None:
    """A session without any call that fits is dropped whole."""
    assert fitted(LONG, 100, "drop-calls").session is None


def test_an_answer_of_no_tokens_needs_one() -> None:
    """A recorded zero is asked for with one token, which needs room."""
    assert needs(call(0, 1, isl=640, osl=0)) == 641


def test_who_waited_for_a_dropped_call_waits_for_what_it_waited_for() -> None:
    """The chain closes over the gap, and its recorded times stay."""
    left = without(LONG, {2, 3})
    assert [call.after for call in left.calls] == [(), (0,), (1,), (2,)]
    assert [call.start_s for call in left.calls] == [0, 3, 12, 15]
    records = replay(
        Plan(users=1, duration_s=None, sessions=1, max_gap_s=None), [left], oracle([left])
    ).records
    assert [record.sent_ns / 1e9 for record in records] == [0, 3, 12, 15]


def test_children_of_a_dropped_call_share_with_each_other() -> None:
    """Two calls that shared 640 tokens of a dropped prompt still share them."""
    calls = [
        call(0, 1, isl=2000),
        call(2, 3, isl=704, parent=0, shared=640),
        call(4, 5, isl=768, parent=0, shared=640),
    ]
    left = without(Session("s", None, link(calls, 64), 64, ""), {0})
    assert [(call.parent, call.shared) for call in left.calls] == [(None, 0), (0, 640)]


@given(st.data())
def test_what_calls_share_is_not_changed_by_dropping_others(data: st.DataObject) -> None:
    """Between any two calls that are left, the common prefix is what it was."""
    calls = [call(0, 1, isl=1280)]
    for i in range(1, data.draw(st.integers(2, 7))):
        parent = data.draw(st.integers(0, i - 1))
        most = min(calls[parent].isl, 1280) // 64
        shared = 64 * data.draw(st.integers(0, most))
        calls.append(call(i, i + 0.5, isl=1280, parent=parent if shared else None, shared=shared))
    calls = _with_true_parents(calls)
    session = Session("s", None, link(calls, 64), 64, "")
    dropped = data.draw(st.sets(st.integers(0, len(calls) - 1), max_size=len(calls) - 1))
    left = without(session, dropped)
    kept = [i for i in range(len(calls)) if i not in dropped]
    for here, i in enumerate(kept):
        for there, j in enumerate(kept[:here]):
            assert common_prefix(left.calls, here, there) == common_prefix(calls, i, j)


def _with_true_parents(calls: list[Call]) -> list[Call]:
    """Make each parent the latest of those that share the most, as the model demands."""
    made: list[Call] = []
    for i, each in enumerate(calls):
        best = max(((common_prefix(calls, i, j), j) for j in range(i)), default=(0, 0))
        shared, parent = best
        made.append(each._replace(parent=parent if shared else None, shared=shared))
    return made
