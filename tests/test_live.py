"""The live line: what it counts and says."""

from __future__ import annotations

from dataclasses import replace as changed

import anyio
import pytest
from records import record
from virtually import chain, oracle, replay

from agentreplay.metrics.record import Failure
from agentreplay.plan import Plan
from agentreplay.replay import Progress, Replay
from agentreplay.report.live import LiveView, Tally, how_far, line
from agentreplay.sim import virtual


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
    shown = line(tally, 5_000_000_000, Progress(0, 8, 3), 60.0)
    assert "FAILED 1 http_5xx" in shown
    assert "cancelled" not in shown


def test_the_line_says_how_far_the_run_is() -> None:
    """How far it is, users and requests in flight, and what was measured."""
    tally = Tally()
    tally.take(record([100, 1100], [1, 10]))
    shown = line(tally, 5_000_000_000, Progress(0, 8, 3), 60.0)
    assert shown.startswith("5/60 s · 8 users · 3 in flight · 1 done")
    assert "P90 10.0 tok/s/user" in shown


@pytest.mark.parametrize(
    ("now_s", "opened_s", "duration_s", "words"),
    [
        (5, 0, 60.0, "5/60 s"),
        (5, 0, None, "5 s"),
        (65, 0, 60.0, "draining 5 s"),
        (12, None, 60.0, "warming up 12 s · 83 of 655 calls left"),
        (12, 30, 60.0, "the window opens in 18 s"),
        (35, 30, 60.0, "5/60 s"),
        (92, 30, 60.0, "draining 2 s"),
    ],
)
def test_time_counts_from_the_opening_of_the_window(
    now_s: int, opened_s: int | None, duration_s: float | None, words: str
) -> None:
    """Before it the line says what is waited for, after it how much of the duration is over."""
    opened_ns = None if opened_s is None else opened_s * 10**9
    assert how_far(now_s * 10**9, Progress(opened_ns, 8, 3, 655, 83), duration_s) == words


def test_the_warmup_counts_for_nothing_but_its_failures() -> None:
    """Calls of one token give no rate and no TTFT; one that fails is named."""
    tally = Tally()
    warm = record([1000, 2000], osl=50)
    failed = record([], error=Failure("http_5xx", 500, "no"))
    for each in (warm, failed):
        tally.take(changed(each, request=changed(each.request, warmup=True)))
    assert (tally.succeeded, tally.ttft_p50_s, tally.rates(2_000_000_000)) == (0, None, (0, 0))
    assert tally.failures == {"http_5xx": 1}


def test_a_run_shows_its_warmup(capsys: pytest.CaptureFixture[str]) -> None:
    """Two users send three calls of one token each, which take six seconds: the window opens with
    the last ones, after twelve."""
    plan = Plan(users=2, duration_s=30.0, warmup_calls=3)
    sessions = [chain(n, 40, takes_s=6.0) for n in range(2)]
    manifest = {"endpoint": {"simulated": None, "urls": [], "model": "m"}, "cautions": []}

    async def look(run: Replay) -> None:
        with LiveView(plan, manifest) as view:
            await anyio.sleep(11)
            view.show(virtual.clock(), run.progress)
            await anyio.sleep(11)
            view.show(virtual.clock(), run.progress)

    replay(plan, sessions, oracle(sessions), beside=look)
    _, warming, measuring = capsys.readouterr().err.splitlines()
    assert warming.startswith("warming up 11 s · 2 of 6 calls left · 2 users · 2 in flight")
    assert measuring.startswith("10/30 s · 2 users")


def test_nothing_measured_is_not_shown() -> None:
    """Without an answer there is no interactivity and no TTFT, not even 0."""
    shown = line(Tally(), 1_000_000_000, Progress(0, 8, 8), 60.0)
    assert "P90" not in shown
    assert "TTFT" not in shown


def test_words_of_a_server_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """What looks like markup in a model's name or a failure is neither obeyed nor swallowed."""
    endpoint = {"simulated": None, "urls": ["http://here"], "model": "m [/b]"}
    failure = Failure("http_4xx", 400, "stop [/INST] [type=x]")

    with LiveView(Plan(), {"endpoint": endpoint, "cautions": []}) as view:
        view.take(record([], error=failure))
        view.show(20_000_000_000, Progress(0, 8, 0))
    shown = capsys.readouterr().err
    assert "m [/b]" in shown
    assert "stop [/INST] [type=x]" in shown
