"""The server's own metrics over the time of a run, as its page shows them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import record

from agentreplay.metrics.record import Record
from agentreplay.metrics.server import Answered, Load, Reading, course, server_of
from agentreplay.metrics.window import Window
from agentreplay.report.html.columns import columns
from agentreplay.report.html.page import Figure, Section
from agentreplay.report.html.server import STEPS, server_section, steps

S = 1_000_000_000
WINDOW = Window(2 * S, 8 * S)


def reading(at_s: float, url: str = "one", **figures: Any) -> Reading:
    return Reading(round(at_s * S), url, **figures)


def section(*readings: Reading, rows: tuple[Record, ...] = ()) -> Section | None:
    """The section of a run of ten seconds."""
    server = server_of(readings, WINDOW, 10 * S, Answered())
    found = columns(rows, WINDOW, 10 * S)
    return server_section(readings, asdict(server) if server else None, found)


def figures(*readings: Reading) -> list[Figure]:
    made = section(*readings)
    assert made is not None
    return [part for part in made.parts if isinstance(part, Figure)]


def test_rates_are_differences_of_counters() -> None:
    """Over the time between two readings; of a hit share both its counters are."""
    first, second, third = steps(
        course(
            [
                reading(-1, running=0, prompt_tokens=100, looked_up_tokens=100, found_tokens=0),
                reading(1, running=2, prompt_tokens=500, looked_up_tokens=300, found_tokens=50),
                reading(2, running=3, prompt_tokens=500, looked_up_tokens=300, found_tokens=50),
            ]
        )
    )
    assert (first.running, first.prompt_rate, first.hit_share) == (0, None, None)
    assert (second.running, second.prompt_rate, second.hit_share) == (2, 200, 0.25)
    assert (second.at_s, second.middle_s) == (1, 0)
    assert (third.prompt_rate, third.hit_share) == (0, None)


def test_addresses_are_added_up() -> None:
    """As the report adds them: requests and counters summed, of KV caches the fullest."""
    (_, second) = course(
        [
            reading(0, "one", running=1, kv_use=0.1, generated_tokens=10, preemptions=0),
            reading(0, "two", running=2, kv_use=0.3, generated_tokens=5),
            reading(2, "one", running=3, kv_use=0.2, generated_tokens=30, preemptions=2),
            reading(2, "two", running=4, kv_use=0.1, generated_tokens=15),
        ]
    )
    assert second.load == Load(running=7, waiting=None, kv_use=0.2)
    assert second.grown == {"generated_tokens": 30, "preemptions": 2}
    assert second.seconds == 2


def test_a_reading_that_failed_is_a_gap_with_its_reason() -> None:
    """Nothing is told of the moment, nor of the time from it to the next."""
    found = steps(
        course(
            [
                reading(0, running=1, prompt_tokens=0),
                reading(1, error="HTTP 500"),
                reading(2, running=1, prompt_tokens=50),
                reading(3, running=1, prompt_tokens=60),
            ]
        )
    )
    assert [each.running for each in found] == [1, None, 1, 1]
    assert [each.prompt_rate for each in found] == [None, None, None, 10]
    assert [each.missing for each in found] == [None, "HTTP 500", None, None]


def test_counters_that_went_back_are_not_told() -> None:
    """The server was started again: its rates are missing there, with the reason."""
    _, moment, after = course(
        [reading(at, prompt_tokens=tokens) for at, tokens in ((0, 90), (1, 10), (2, 30))]
    )
    assert moment.grown == {}
    assert moment.error == "its counts went back"
    assert after.grown == {"prompt_tokens": 20}


def test_a_counter_that_comes_later_was_zero() -> None:
    """It stands on the page from its first step on."""
    found = course([reading(0), reading(1), reading(2, found_tokens=64)])
    assert [each.grown.get("found_tokens") for each in found] == [None, 0, 64]


def test_who_never_answered_holds_nobody_up() -> None:
    """An address without metrics costs its own line only; a late one, its moment."""
    found = course(
        [
            *(reading(0, "one", running=1), reading(0, "two", running=1)),
            reading(0, "dead", error="nothing there"),
            *(reading(1, "one", running=2), reading(1, "two", running=2)),
            reading(2, "one", running=9),
            *(reading(3, "one", running=3), reading(3, "two", running=3)),
        ]
    )
    assert [(each.at_ns // S, each.load and each.load.running) for each in found] == [
        (0, 2),
        (1, 4),
        (3, 6),
    ]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60), st.integers(1, 20))
def test_steps_lose_no_token(tokens: list[int], most: int) -> None:
    """Put together, moments have the same sums over the same time."""
    counts = [sum(tokens[: n + 1]) for n in range(len(tokens))]
    moments = course(reading(n, prompt_tokens=count) for n, count in enumerate(counts))
    found = steps(moments, most)
    assert len(found) <= most
    seconds = [2 * (step.at_s - step.middle_s) for step in steps(moments)]
    rates = [step.prompt_rate or 0.0 for step in steps(moments)]
    assert sum(a * b for a, b in zip(rates, seconds, strict=True)) == pytest.approx(
        counts[-1] - counts[0]
    )
    once = steps(moments, 1)[0]
    if len(tokens) > 1:
        assert once.prompt_rate == pytest.approx((counts[-1] - counts[0]) / (len(tokens) - 1))


def test_the_section_has_the_axis_of_the_token_rates() -> None:
    """Its range is the run, and the window is marked; a panel for each unit that is told."""
    (figure,) = figures(
        reading(-0.5, running=0, waiting=0, generated_tokens=0, drafted_tokens=0),
        reading(5, running=2, waiting=1, generated_tokens=9, drafted_tokens=8, accepted_tokens=2),
    )
    assert figure.layout["xaxis"]["range"] == [0, 10]
    assert figure.layout["shapes"][0]["x0"] == 2
    assert [trace["name"] for trace in figure.traces] == [
        "running",
        "waiting",
        "drafts accepted",
        "output tok/s",
    ]
    assert [column.name for column in figure.table.columns][1:] == [
        *("running", "waiting", "drafts accepted", "output tok/s"),
    ]
    assert figure.table.rows[1][3] == 0.25
    assert all(trace["connectgaps"] is False for trace in figure.traces)


def test_several_addresses_have_lines_of_their_own() -> None:
    """Beside the sum; their names are text."""
    _, each = figures(
        reading(1, "http://one/metrics", running=1, waiting=1, kv_use=0.5),
        reading(1, "http://<b>two", running=0, waiting=0, kv_use=0.25),
    )
    assert {trace["name"] for trace in each.traces} == {
        "http://one/metrics",
        "http://&lt;b&gt;two",
    }
    assert [trace["y"] for trace in each.traces] == [[2.0], [0.5], [0.0], [0.25]]


def test_a_server_that_could_not_be_read_says_why() -> None:
    """Its section has no drawing, and the reason."""
    made = section(reading(0, error="HTTP 404: no <page>"))
    assert made is not None
    figure, table = made.parts
    assert isinstance(figure, Figure)
    assert figure.empty is not None
    assert isinstance(table, str)
    assert "HTTP 404: no &lt;page&gt;" in table


def test_our_counts_stand_beside_the_servers() -> None:
    """With what can't be explained by requests that were cut."""
    answered = Answered(prompt_tokens=90, generated_tokens=7, open_prompt_tokens=5)
    rows = [reading(at, prompt_tokens=n, generated_tokens=0) for at, n in ((0, 0), (11, 100))]
    server = server_of(rows, WINDOW, 10 * S, answered)
    assert server is not None
    made = server_section(rows, asdict(server), columns([record([5])], WINDOW, 10 * S))
    assert made is not None
    (table,) = [part for part in made.parts if isinstance(part, str)]
    cells = [f'<td class="figure">{each}</td>' for each in (100, 90, 5, 0, 5)]
    assert '<td class="words">input</td>' + "".join(cells) in table


def test_without_a_reading_there_is_no_section() -> None:
    """As in runs of older versions."""
    assert section() is None


def test_long_runs_have_few_steps() -> None:
    """A day of readings is put together; all of it is in the means."""
    rows = [reading(n, running=n % 2, prompt_tokens=10 * n) for n in range(86_400)]
    found = steps(course(rows))
    assert len(found) <= STEPS
    assert {each.running for each in found} == {0.5}
    assert {each.prompt_rate for each in found} == {10.0}
