"""Synthetic sessions: what they keep to, and how near they come to recorded ones."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentreplay.errors import AgentReplayError
from agentreplay.trace.formats import native
from agentreplay.trace.model import Call, Session
from agentreplay.trace.statistics import Statistics, statistics
from agentreplay.trace.synth import SMALLEST_LIMIT_TOKENS, synthesise

ROOT = Path(__file__).parent.parent
BUNDLED: dict[str, dict[str, Any]] = {
    "agents.jsonl": {"sessions": 8, "seed": 42},
    "laptop.jsonl": {"sessions": 6, "seed": 42, "calls": (5, 20), "largest_tokens": 16_000},
}


@pytest.fixture(scope="module")
def many() -> list[Session]:
    """Enough sessions for their percentiles to settle."""
    return list(synthesise(200, 42))


@pytest.fixture(scope="module")
def figures(many: list[Session]) -> Statistics:
    """The statistics of the many."""
    return statistics(many)


def read_back(line: bytes) -> Session:
    """The session that a line of the native format holds."""
    session, notes = native.session(orjson.loads(line), "")
    assert not notes
    return session


def largest(session: Session) -> int:
    """The most tokens that a prompt of the session and its output have together."""
    return max(call.isl + call.osl for call in session.calls)


def continuations(sessions: list[Session]) -> Iterator[tuple[Call, Call]]:
    """Each call with the call that its agent made before."""
    for session in sessions:
        for agent in {call.agent for call in session.calls}:
            yield from pairwise(call for call in session.calls if call.agent == agent)


def joined(session: Session) -> set[str]:
    """The subagents whose last call a call of the main agent waits for."""
    last = {call.agent: i for i, call in enumerate(session.calls)}
    waited = {i for call in session.calls if not call.agent for i in call.after}
    return {agent for agent, i in last.items() if agent and i in waited}


def test_a_seed_gives_the_same_sessions() -> None:
    """Two sets from one seed are equal."""
    assert list(synthesise(8, 3)) == list(synthesise(8, 3))


def test_another_seed_gives_other_sessions() -> None:
    """Sets from two seeds have no session in common."""
    ours = {session.calls for session in synthesise(8, 3)}
    assert not ours & {session.calls for session in synthesise(8, 4)}


def test_more_sessions_leave_the_first_as_they_were() -> None:
    """A larger set begins with the smaller one of the same seed."""
    assert list(synthesise(12, 5))[:4] == list(synthesise(4, 5))


def test_sessions_are_named_by_seed_and_index() -> None:
    """The name of a session says how to make it again."""
    assert [session.id for session in synthesise(2, 42)] == ["synth-42-0000", "synth-42-0001"]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**63),
    fewest=st.integers(1, 40),
    more=st.integers(0, 40),
    limit=st.none() | st.integers(SMALLEST_LIMIT_TOKENS, 300_000),
)
def test_bounds_hold_whatever_is_asked(
    seed: int, fewest: int, more: int, limit: int | None
) -> None:
    """Calls lie in their range, no prompt and output exceed the largest, and lines read back."""
    calls = (fewest, fewest + more)
    for session in synthesise(7, seed, calls=calls, largest_tokens=limit):
        assert fewest <= len(session.calls) <= fewest + more
        assert largest(session) <= (limit or 200_000)
        assert read_back(native.line(session)) == session


@pytest.mark.parametrize("calls", [(600, 700), (5, 5), (1, 1)])
def test_any_range_of_calls_is_met(calls: tuple[int, int]) -> None:
    """A range beyond all recorded lengths, or of one length only, is met as well."""
    for session in synthesise(6, 1, calls=calls):
        assert calls[0] <= len(session.calls) <= calls[1]


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ({"sessions": -1}, "-1 sessions"),
        ({"calls": (0, 5)}, "calls 0-5"),
        ({"calls": (6, 5)}, "calls 6-5"),
        ({"largest_tokens": SMALLEST_LIMIT_TOKENS - 1}, "1999 tokens is too small"),
    ],
)
def test_what_cannot_be_made_is_refused_at_once(arguments: dict[str, Any], cause: str) -> None:
    """An argument out of range is an error of the call, not of the first session."""
    with pytest.raises(AgentReplayError, match=cause):
        synthesise(**{"sessions": 1, "seed": 1, **arguments})


def test_every_call_starts_when_it_was_recorded(many: list[Session]) -> None:
    """With each call taking its recorded time, waiting for `after` gives the recorded starts."""
    for session in many:
        ends_s: list[float] = []
        for call in session.calls:
            due_s = max((ends_s[i] for i in call.after), default=0.0) + call.gap_s
            assert due_s == pytest.approx(call.start_s, abs=0.001)
            ends_s.append(due_s + call.end_s - call.start_s)


def test_only_the_first_call_waits_for_none(many: list[Session]) -> None:
    """Every other call has a predecessor."""
    for session in many:
        assert [i for i, call in enumerate(session.calls) if not call.after] == [0]


def test_reuse_is_that_of_agents(figures: Statistics) -> None:
    """More than nine tenths of all input tokens were sent before."""
    assert figures.prefix_reuse is not None
    assert 0.9 < figures.prefix_reuse < 0.98


@pytest.mark.parametrize(
    ("name", "percentile", "low", "high"),
    [
        ("output", "p50", 150, 300),
        ("output", "p90", 700, 1_100),
        ("output", "p99", 3_000, 5_000),
        ("gap_s", "p50", 5, 15),
        ("gap_s", "p90", 80, 170),
        ("gap_s", "max", 1_800, 3_600),
        ("duration_s", "p50", 5, 7),
        ("duration_s", "p90", 15, 22),
    ],
)
def test_percentiles_are_those_of_agents(
    figures: Statistics, name: str, percentile: str, low: float, high: float
) -> None:
    """Outputs, gaps and durations lie where those of the published sessions do."""
    assert low <= getattr(getattr(figures, name), percentile) <= high


def test_prompts_begin_as_agents_do(many: list[Session]) -> None:
    """Half begin with some 25k tokens, and about a quarter in the middle of a long context."""
    first = sorted(session.calls[0].isl for session in many)
    assert 20_000 < first[100] < 30_000
    assert 0.15 < sum(isl > 100_000 for isl in first) / 200 < 0.35


def test_some_continuations_retokenise_their_tail(many: list[Session]) -> None:
    """Four to five in a hundred grown prompts lack the last one or two blocks of the one before."""
    lacking = [
        before.isl // 64 - call.shared // 64
        for before, call in continuations(many)
        if call.isl >= before.isl
    ]
    assert set(lacking) == {0, 1, 2}
    assert 0.035 < sum(map(bool, lacking)) / len(lacking) < 0.06


def test_some_prompts_become_a_summary(many: list[Session]) -> None:
    """Of 100 calls one or two shrink, and keep at most half of what was there."""
    shrunk = [(before, call) for before, call in continuations(many) if call.isl < before.isl]
    assert 0.01 < len(shrunk) / sum(len(session.calls) for session in many) < 0.02
    assert all(call.shared <= before.isl / 2 for before, call in shrunk)
    to_system = [call for _, call in shrunk if call.shared == call.system // 64 * 64]
    assert 0 < len(to_system) < len(shrunk)


def test_every_sixth_session_has_subagents(many: list[Session]) -> None:
    """Subagents don't depend on luck, so that a small set has some; there are one to four."""
    numbers = [len({call.agent for call in session.calls}) - 1 for session in many]
    assert {i % 6 for i, number in enumerate(numbers) if number} == {0}
    assert set(numbers[::6]) == {1, 2, 3, 4}


def test_parents_wait_for_most_subagents(many: list[Session]) -> None:
    """Each session with subagents has one that is joined, and a few run on in the background."""
    with_subagents = many[::6]
    assert all(joined(session) for session in with_subagents)
    agents = {(session.id, call.agent) for session in with_subagents for call in session.calls}
    subagents = len(agents) - len(with_subagents)
    background = subagents - sum(len(joined(session)) for session in with_subagents)
    assert 0 < background < subagents / 3


def test_subagents_share_their_system_prompt(many: list[Session]) -> None:
    """A later subagent of a session begins with the blocks of tools and system prompt of the first.

    Some share the main agent's tools as well.
    """
    with_tools = 0
    for session in many[::6]:
        known: set[str] = set()
        for call in session.calls:
            if call.agent and call.agent not in known:
                own = call.system // 64 * 64
                assert call.shared == own if known else call.shared < own
                with_tools += not known and call.shared > 0
                known.add(call.agent)
    assert 0 < with_tools < len(many[::6])


def test_a_small_largest_prompt_scales_the_rest() -> None:
    """With 16k tokens as the largest prompt, system prompts, outputs and gaps shrink as well."""
    sessions = list(synthesise(100, 7, calls=(5, 20), largest_tokens=16_000))
    small = statistics(sessions)
    assert all(500 < session.calls[0].system < 2_000 for session in sessions)
    assert small.output.p50 is not None
    assert 40 < small.output.p50 < 80
    assert small.gap_s.p75 is not None
    assert small.gap_s.p75 < 10
    assert small.prefix_reuse is not None
    assert small.prefix_reuse > 0.8


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_traces_are_made_by_the_generator(name: str) -> None:
    """The bundled file is byte for byte what its command makes."""
    made = b"".join(map(native.line, synthesise(**BUNDLED[name])))
    assert (ROOT / "traces" / name).read_bytes() == made


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_traces_have_a_joined_subagent(name: str) -> None:
    """Each bundled file shows a parent that waits for a subagent."""
    assert any(map(joined, synthesise(**BUNDLED[name])))


def test_bundled_sizes_are_as_described() -> None:
    """The small file fits a laptop, the large one has the calls that its README says."""
    agents, laptop = (list(synthesise(**arguments)) for arguments in BUNDLED.values())
    assert all(10 <= len(session.calls) <= 60 for session in agents)
    assert all(5 <= len(session.calls) <= 20 for session in laptop)
    assert all(3_000 <= largest(session) <= 16_000 for session in laptop)


def test_bundled_traces_bear_the_licence_of_the_project() -> None:
    """The README of the traces names the licence that pyproject.toml does."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] in (ROOT / "traces" / "README.md").read_text()
