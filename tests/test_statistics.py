"""Statistics of a set: hand-made sessions give hand-computed figures."""

from __future__ import annotations

from dataclasses import asdict

import orjson

from agentreplay.metrics.distribution import Distribution
from agentreplay.trace.model import Call, Session
from agentreplay.trace.statistics import statistics

BLOCK = 64


def call(
    start_s: float,
    end_s: float,
    isl: int = BLOCK,
    osl: int = 1,
    *,
    timed: bool = True,
    after: tuple[int, ...] = (),
    gap_s: float = 0.0,
    parent: int | None = None,
    shared: int = 0,
    agent: str = "",
    model: str | None = None,
    cached: int | None = None,
) -> Call:
    """A call of the main agent, a root unless told otherwise."""
    return Call(
        start_s=start_s,
        end_s=end_s,
        timed=timed,
        isl=isl,
        osl=osl,
        after=after,
        gap_s=gap_s,
        parent=parent,
        shared=shared,
        system=0,
        agent=agent,
        model=model,
        cached=cached,
    )


def session(*calls: Call) -> Session:
    """A session of blocks of 64 tokens."""
    return Session("hand-made", None, calls, BLOCK, "")


def test_counts_and_sums_go_over_all_sessions() -> None:
    """Calls, tokens and seconds of two sessions add up."""
    one = session(call(0, 2, isl=100, osl=5), call(3, 10, isl=200, osl=7))
    two = session(call(0, 4, isl=300, osl=9))
    s = statistics([one, two])
    assert (s.sessions, s.calls) == (2, 3)
    assert (s.input_tokens, s.output_tokens) == (600, 21)
    assert s.recorded_seconds == 14


def test_sessions_may_be_a_stream() -> None:
    """An iterator that can be read but once is enough."""
    assert statistics(iter([session(call(0, 1)), session(call(0, 1))])).sessions == 2


def test_a_session_ends_with_its_last_end() -> None:
    """A call that runs on after the last one started makes the session longer."""
    assert statistics([session(call(0, 9), call(1, 2))]).session_s.max == 9


def test_an_empty_set_has_no_figures() -> None:
    """Counts of nothing are 0, shares and percentiles of nothing are absent."""
    s = statistics([])
    assert (s.sessions, s.calls, s.largest_in_flight, s.models) == (0, 0, 0, {})
    assert s.prefix_reuse is s.prefix_reuse_blocks is s.cached_tokens is None
    assert s.input == s.gap_s == Distribution(0)


def test_reuse_counts_whole_blocks_seen_before() -> None:
    """Of 130 + 260 tokens the second call repeats 128; of 2 + 4 blocks it repeats 2."""
    s = statistics([session(call(0, 1, isl=130), call(2, 3, isl=260, parent=0, shared=128))])
    assert s.prefix_reuse == 128 / 390
    assert s.prefix_reuse_blocks == 2 / 6


def test_sessions_share_nothing_with_each_other() -> None:
    """Two plays of one session reuse no more than one does."""
    once = session(call(0, 1, isl=128), call(2, 3, isl=128, parent=0, shared=128))
    assert statistics([once, once]).prefix_reuse == statistics([once]).prefix_reuse == 0.5


def test_cached_tokens_are_those_recorded() -> None:
    """Calls that record none don't make the sum absent, and a recorded 0 is a figure."""
    assert statistics([session(call(0, 1, cached=64), call(1, 2))]).cached_tokens == 64
    assert statistics([session(call(0, 1, cached=0))]).cached_tokens == 0
    assert statistics([session(call(0, 1))]).cached_tokens is None


def test_calls_that_wait_for_none_have_no_gap() -> None:
    """The root's way from the session's start is no gap between calls."""
    s = statistics([session(call(5, 6, gap_s=5.0), call(9, 10, after=(0,), gap_s=3.0))])
    assert (s.gap_s.n, s.gap_s.max) == (1, 3.0)


def test_estimated_durations_are_counted_and_left_out() -> None:
    """A call without a recorded end has no duration to measure."""
    s = statistics([session(call(0, 4), call(5, 99, timed=False))])
    assert s.estimated_durations == 1
    assert (s.duration_s.n, s.duration_s.max) == (1, 4.0)


def test_zero_outputs_are_counted_and_measured() -> None:
    """A recorded output of 0 is a length like another."""
    s = statistics([session(call(0, 1, osl=0), call(1, 2, osl=10))])
    assert s.zero_outputs == 1
    assert (s.output.n, s.output.mean) == (2, 5.0)


def test_subagents_are_counted_in_each_session() -> None:
    """One label in two sessions is two agents, two calls of it in one session are one."""
    child = call(1, 2, agent="a")
    s = statistics([session(call(0, 1), child, child), session(call(0, 1), child)])
    assert s.subagents == 2


def test_models_are_counted_by_calls() -> None:
    """The most used model comes first; calls of unknown models are not among them."""
    calls = [call(0, 1, model=model) for model in ("b", "a", None, "a")]
    assert list(statistics([session(*calls)]).models.items()) == [("a", 2), ("b", 1)]


def test_sizes_are_taken_per_session() -> None:
    """Each session gives one number of calls and one largest prompt."""
    one = session(call(0, 1, isl=10), call(1, 2, isl=30), call(2, 3, isl=20))
    two = session(call(0, 1, isl=50))
    s = statistics([one, two])
    assert (s.calls_per_session.min, s.calls_per_session.max) == (1, 3)
    assert (s.largest_prompt.min, s.largest_prompt.max) == (30, 50)


def test_in_flight_is_the_most_at_once_in_one_session() -> None:
    """Three overlap in the second session; one that starts at an end does not overlap with it."""
    one = session(call(0, 5), call(5, 6))
    two = session(call(0, 9), call(1, 3), call(2, 4), call(4, 5))
    assert statistics([one]).largest_in_flight == 1
    assert statistics([one, two]).largest_in_flight == 3


def test_rounded_stamps_make_no_parallel_calls() -> None:
    """A call does not run beside one that it waits for, though the stamps overlap."""
    overlapping = session(call(0, 5.4), call(5, 6, after=(0,)))
    assert statistics([overlapping]).largest_in_flight == 1


def test_statistics_are_a_json_value() -> None:
    """`asdict` gives numbers, strings, lists and dicts only."""
    value = asdict(statistics([session(call(0, 1, model="m"))]))
    assert orjson.loads(orjson.dumps(value)) == value
    assert value["models"] == {"m": 1}
