"""The live line: what it counts and says."""

from __future__ import annotations

import anyio
import pytest
from records import record
from virtually import DIALECT

from agentreplay.client.stream import Reply, Sink
from agentreplay.metrics.record import Failure, Request
from agentreplay.plan import Plan
from agentreplay.replay import Replay
from agentreplay.report.live import LiveView, Tally, line
from agentreplay.trace.model import Session


def test_rates_are_over_the_last_ten_seconds() -> None:
    """Answers that ended longer ago than ten seconds count no more."""
    tally = Tally()
    tally.take(record([1000, 2000], osl=50))
    tally.take(record([15_000, 19_000], osl=70))
    assert tally.rates(20_000_000_000) == pytest.approx((17.0, 7.0))


def test_an_early_rate_is_over_the_time_so_far() -> None:
    """Two seconds after the start, tokens are divided by two seconds."""
    tally = Tally()
    tally.take(record([1000, 2000], osl=50))
    assert tally.rates(2_000_000_000) == pytest.approx((75.0, 25.0))


def test_failures_are_named_and_cuts_are_not() -> None:
    """Failures stand in the line by kind; what is cut at the end is none."""
    tally = Tally()
    tally.take(record([], error=Failure("http_5xx", 500, "no")))
    tally.take(record([], error=Failure("cancelled", None, "cut")))
    shown = line(tally, 5_000_000_000, 60.0, 8, 3)
    assert "FAILED 1 http_5xx" in shown
    assert "cancelled" not in shown


def test_the_line_says_how_far_the_run_is() -> None:
    """Time, users and requests in flight; after the end it says that it drains."""
    tally = Tally()
    tally.take(record([100, 1100], [1, 10]))
    assert line(tally, 5_000_000_000, 60.0, 8, 3).startswith("5/60 s · 8 users · 3 in flight")
    assert "P90 10.0 tok/s/user" in line(tally, 5_000_000_000, None, 8, 3)
    assert line(tally, 65_000_000_000, 60.0, 8, 3).startswith("draining 5 s")


def test_nothing_measured_is_not_shown() -> None:
    """Without an answer there is no interactivity and no TTFT, not even 0."""
    shown = line(Tally(), 1_000_000_000, 60.0, 8, 8)
    assert "P90" not in shown
    assert "TTFT" not in shown


def test_words_of_a_server_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """What looks like markup in a model's name or a failure is neither obeyed nor swallowed."""
    endpoint = {"simulated": None, "urls": ["http://here"], "model": "m [/b]"}
    failure = Failure("http_4xx", 400, "stop [/INST] [type=x]")

    async def main() -> None:
        replay = Replay(Plan(), 0, no_session, DIALECT, no_answer, lambda: 0, lambda record: None)
        with LiveView(Plan(), {"endpoint": endpoint, "cautions": []}) as view:
            view(0, replay, record([], error=failure))
            view(20_000_000_000, replay, None)

    anyio.run(main)
    shown = capsys.readouterr().err
    assert "m [/b]" in shown
    assert "stop [/INST] [type=x]" in shown


async def no_session(index: int) -> Session:
    raise AssertionError("nothing is played")


async def no_answer(request: Request, body: bytes, sink: Sink) -> Reply:
    raise AssertionError("nothing is sent")
