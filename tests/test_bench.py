"""The rules of the bench: what it counts is what was sent, and its page names its rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.__main__ import GROUPS
from bench.programs import NotBuiltError, Phase, Sent, Source, built, client, floor, running
from bench.streams import errors
from bench.table import Line, Row, number, slope_us
from hypothesis import given
from hypothesis import strategies as st

PAGE = (Path(__file__).parents[1] / "docs" / "performance.md").read_text()
LINES = [line for _, lines in GROUPS.values() for line in lines]

STREAMS = 3
WARM, COUNTED = Phase(tokens=1, pace_us=1000), Phase(tokens=7, times=2, pace_us=1000, spread=True)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both C programs in it."""
    folder = tmp_path_factory.mktemp("bench")
    try:
        built("source", folder)
        built("floor", folder)
    except NotBuiltError as error:
        pytest.skip(str(error))
    return folder


@pytest.fixture
def source(programs: Path) -> Iterator[Source]:
    """A source that has logged nothing."""
    with running(programs / "source") as found:
        yield found


@pytest.mark.parametrize("stack", ["ours", "aiohttp", "httpx"])
def test_each_client_counts_what_the_source_sent(source: Source, stack: str) -> None:
    """Every stream of the log is one of the client's, and has as many stamps as tokens were
    sent."""
    first, last = client(source, stack, STREAMS, (WARM, COUNTED), "--stamps")
    log = source.log()
    assert (first["requests"], first["tokens"]) == (3, 3)
    assert (last["requests"], last["tokens"]) == (6, 42)
    assert sorted(len(each.sent_ns) for each in log) == [1] * 3 + [7] * 6
    assert {each.name for each in log if len(each.sent_ns) == 7} == set(last["stamps"])
    assert {len(stamps_ns) for stamps_ns in last["stamps"].values()} == {7}


def test_a_token_is_stamped_after_it_was_sent(source: Source) -> None:
    """The log and a client's stamps are of one clock, and tokens are sent in order, after their
    request."""
    *_, last = client(source, "aiohttp", STREAMS, (WARM, COUNTED), "--stamps")
    log = {each.name: each for each in source.log()}
    for name, stamps_ns in last["stamps"].items():
        sent_ns = log[name].sent_ns
        assert sorted([log[name].received_ns, *sent_ns]) == [log[name].received_ns, *sent_ns]
        assert all(sent <= stamp for sent, stamp in zip(sent_ns, stamps_ns, strict=True))


def test_the_reader_that_parses_nothing_reads_to_every_end(source: Source, programs: Path) -> None:
    """It is over when all its streams have ended, and not before."""
    first, last = floor(source, programs / "floor", STREAMS, (WARM, COUNTED))
    assert (first["requests"], last["requests"], last["tokens"]) == (3, 6, 42)
    assert sorted(len(each.sent_ns) for each in source.log()) == [1] * 3 + [7] * 6


@given(
    request_us=st.floats(0, 1e4),
    token_us=st.floats(0.1, 100),
    low=st.integers(1, 10_000),
    more=st.integers(1, 10_000),
)
def test_the_slope_is_what_a_token_costs(
    request_us: float, token_us: float, low: int, more: int
) -> None:
    """Whatever requests cost besides."""
    points = [
        {"cpu_s": (request_us + tokens * token_us) / 1e6, "tokens": tokens}
        for tokens in (low, low + more)
    ]
    assert slope_us(*points) == pytest.approx(token_us, rel=1e-3)


@given(
    sent_ns=st.lists(st.integers(0, 10**9), min_size=2, max_size=20).map(sorted),
    delay_ns=st.integers(0, 10**9),
)
def test_a_steady_delay_is_no_error_of_a_gap(sent_ns: list[int], delay_ns: int) -> None:
    """What is late by as much each time has the source's gaps."""
    late = [at_ns + delay_ns for at_ns in sent_ns]
    found = errors({"a": late}, [Sent("a", 0, sent_ns)])
    assert (found["gap_p50_ms"], found["gap_p99_ms"]) == (0, 0)
    assert found["delay_p99_ms"] == pytest.approx(delay_ns / 1e6)


def test_a_late_token_is_an_error_of_two_gaps() -> None:
    """Of the one before it and of the one after it, as much in each."""
    sent_ns = [0, 10_000_000, 20_000_000, 30_000_000]
    late = [0, 10_000_000, 23_000_000, 30_000_000]
    assert errors({"a": late}, [Sent("a", 0, sent_ns)])["gap_p50_ms"] == 3.0


def test_stamps_and_tokens_that_are_not_equally_many_are_refused() -> None:
    """Nothing is measured of a stream of which a token is missing."""
    with pytest.raises(ValueError, match="1 stamps of 2 tokens"):
        errors({"a": [5]}, [Sent("a", 0, [1, 2])])


def test_a_goal_is_met_by_the_median() -> None:
    """Not by the best round; where nothing was measured it is neither met nor missed."""
    line = Line("a", goal=2.0)
    assert Row(line, (1.0, 2.1, 2.2)).met is False
    assert Row(line, (1.9, 2.0, 9.0)).met is True
    assert Row(line, (), left_out="no C compiler").met is None


def test_the_page_shows_the_rows_of_the_bench() -> None:
    """Its table has each of them, with its goal, in their order."""
    shown = re.findall(r"^\| `([^`]+)` \| [^|]+ \| [^|]+ \| ([^|]*) \|", PAGE, re.MULTILINE)
    assert [(name, goal.strip()) for name, goal in shown] == [
        (line.id, "" if line.goal is None else f"≤ {number(line.goal, line.unit)}")
        for line in LINES
    ]


def test_no_two_rows_have_one_name() -> None:
    """A row is found by its id in the JSON file."""
    assert len({line.id for line in LINES}) == len(LINES)
