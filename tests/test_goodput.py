"""Goodput: the share of requests that keep limits on single ones."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import record

from agentreplay.errors import AgentReplayError
from agentreplay.metrics.goodput import request_limit
from agentreplay.metrics.record import Failure, Record
from agentreplay.metrics.summary import summarize
from agentreplay.metrics.window import Ending
from agentreplay.plan import Plan

CUT = Failure("cancelled", None, "cut at the end")
FAILED = Failure("http_5xx", 503, "overloaded")
ENDING = Ending("duration", 60_000_000_000, 90_000_000_000)


def goodput(rows: list[Record], *limits: str) -> float | None:
    read = tuple(map(request_limit, limits))
    found: float | None = summarize(rows, Plan(), ENDING, goodput=read).metrics["goodput"]
    return found


def streamed(ttft_ms: int, *, tokens: int = 11, step_ms: int = 10, sent_ms: int = 0) -> Record:
    """An answer whose first token comes after *ttft_ms*, and the others in even steps."""
    return record([sent_ms + ttft_ms + step_ms * n for n in range(tokens)], sent_ms=sent_ms)


def cut(chunks_ms: list[int], done_ms: int, planned: int = 100) -> Record:
    """A request that was cut after *done_ms*."""
    return record(chunks_ms, error=CUT, done_ms=done_ms, osl_recorded=planned)


@pytest.mark.parametrize(
    ("limits", "share"),
    [
        (["ttft < 2s"], 0.5),
        (["ttft <= 2s"], 0.75),
        (["ttft < 1h"], 1.0),
        (["latency < 1s"], 0.25),
        (["tpot <= 50ms"], 0.75),
        (["interactivity >= 20"], 0.75),
        (["interactivity > 50"], 0.5),
        (["ttft < 2s", "interactivity > 50"], 0.25),
    ],
)
def test_a_good_request_keeps_every_limit(limits: list[str], share: float) -> None:
    """Four answers: TTFT 0.5, 1, 2 and 3 s; 10, 100, 10 and 50 ms a token."""
    rows = [
        streamed(500),
        streamed(1000, step_ms=100),
        streamed(2000),
        streamed(3000, step_ms=50),
    ]
    assert goodput(rows, *limits) == share


def test_a_failed_request_keeps_no_limit() -> None:
    """Whatever came of it before: two of four failed, one of them after fast tokens."""
    partial = record([10, 20], error=FAILED)
    assert (
        goodput([streamed(10), streamed(10), record([], error=FAILED), partial], "ttft < 1s") == 0.5
    )


@pytest.mark.parametrize(
    ("row", "counted"),
    [
        (cut([], 1999), False),  # its first token could still have come in time
        (cut([], 2001), True),
        (cut([1000], 9999), False),
        (cut([2001], 2002), True),
        (cut([1000], 10_001), True),  # the latency limit has passed
    ],
)
def test_a_cut_request_counts_only_where_it_had_passed_a_limit(row: Record, counted: bool) -> None:
    """It never is a good one: beside one good request the share is 1 or a half."""
    limits = ("ttft < 2s", "latency < 10s")
    assert goodput([streamed(10), row], *limits) == (0.5 if counted else 1.0)


def test_a_cut_request_is_too_slow_once_the_rest_could_not_make_it_fast() -> None:
    """Of 101 tokens planned: cut 4.9 s after the first, 49 ms each were possible; 5.1 s, 51."""
    fast, slow = cut([100, 200], 5000, planned=101), cut([100, 200], 5200, planned=101)
    assert goodput([streamed(10), fast], "tpot <= 50ms") == 1.0
    assert goodput([streamed(10), slow], "tpot <= 50ms") == 0.5
    assert goodput([streamed(10), slow], "interactivity >= 20") == 0.5


def test_an_answer_without_a_time_per_token_passes_no_limit_on_it() -> None:
    """One of a single token, and a burst, are good beside one that is measured."""
    burst = record([100, 100], burst=True)
    assert goodput([streamed(10), record([100]), burst], "tpot < 20ms") == 1.0
    assert goodput([streamed(10, step_ms=30), record([100]), burst], "tpot < 20ms") == 2 / 3


def test_goodput_is_null_where_nothing_could_be_held_against_a_limit() -> None:
    """Without limits, without requests, and where no answer at all has a time per token."""
    assert goodput([streamed(10)]) is None
    assert goodput([], "ttft < 1s") is None
    assert goodput([record([100])], "tpot < 20ms") is None
    assert goodput([record([], error=FAILED)], "tpot < 20ms") == 0.0


def test_what_is_sent_before_the_window_is_not_measured() -> None:
    """Ordinary calls of the warm-up count in no share."""
    ending = Ending("duration", 60_000_000_000, 90_000_000_000, 1_000_000_000)
    rows = [streamed(900), streamed(10, sent_ms=2000)]
    found = summarize(rows, Plan(), ending, goodput=(request_limit("ttft < 100ms"),))
    assert found.metrics["goodput"] == 1.0


rows = st.lists(
    st.one_of(
        st.builds(streamed, st.integers(1, 4000), tokens=st.integers(1, 20)),
        st.builds(cut, st.just([]), st.integers(1, 4000)),
        st.just(record([], error=FAILED)),
    ),
    max_size=20,
)


@given(rows, st.integers(1, 4000), st.integers(0, 4000))
def test_a_wider_limit_is_kept_by_more(rows: list[Record], limit_ms: int, more_ms: int) -> None:
    """It grows with the limit, up to the share of successes of what was not cut; where nothing
    was but cut, it is 0, or null once none had passed the limit."""
    narrow = goodput(rows, f"ttft <= {limit_ms}ms")
    wide = goodput(rows, f"ttft <= {limit_ms + more_ms}ms")
    ended = [row for row in rows if row.error is not CUT]
    if ended:
        assert narrow is not None
        assert wide is not None
        assert 0 <= narrow <= wide <= sum(row.error is None for row in ended) / len(ended)
    else:
        assert narrow in (0, None)
        assert wide in (narrow, None)


@given(st.permutations([streamed(10), streamed(3000), cut([], 2500), record([], error=FAILED)]))
def test_the_order_of_records_is_all_one(rows: list[Record]) -> None:
    """Goodput is of the records as a set: one of four is good."""
    assert goodput(rows, "ttft < 2s", "latency < 2s") == 0.25


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ttft.p95 < 2s", "without a percentile"),
        ("error_rate < 1%", "a single request has ttft, tpot, latency, interactivity"),
        ("ttft > 2s", "can be limited with < and <="),
        ("interactivity < 20", "can be limited with > and >="),
        ("ttft < 2", "write it with a unit"),
        ("ttft", "write it as 'ttft < 2s'"),
    ],
)
def test_what_is_no_limit_says_how_to_write_one(text: str, words: str) -> None:
    """Figures of runs, the wrong side, and a time without its unit are refused."""
    with pytest.raises(AgentReplayError, match=re.escape(words)):
        request_limit(text)
