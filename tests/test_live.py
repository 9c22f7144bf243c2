"""The live line: what it counts and says."""

from __future__ import annotations

from dataclasses import replace as changed
from io import StringIO

import anyio
import pytest
from records import record
from rich.console import Console
from virtually import chain, oracle, replay

from agentreplay.metrics.record import Failure
from agentreplay.metrics.server import Load
from agentreplay.metrics.summary import ClientHealth
from agentreplay.plan import Plan
from agentreplay.replay import Progress, Replay
from agentreplay.report.live import LiveView, Tally, line, phase, screen
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
    assert shown.startswith(
        "measuring 5/60 s, 55 s left · 8 users, 3 in flight · 22 tok/s total, 2 output · 1 done"
    )
    assert "P90 10.0 tok/s/user" in shown


@pytest.mark.parametrize(
    ("now_s", "opened_s", "duration_s", "words"),
    [
        (5, 0, 60.0, "measuring 5/60 s, 55 s left"),
        (5, 0, None, "measuring 5 s"),
        (65, 0, 60.0, "draining 5 s"),
        (12, None, 60.0, "warming up 12 s · 83 of 655 calls left"),
        (12, 30, 60.0, "the window opens in 18 s"),
        (35, 30, 60.0, "measuring 5/60 s, 55 s left"),
        (92, 30, 60.0, "draining 2 s"),
    ],
)
def test_time_counts_from_the_opening_of_the_window(
    now_s: int, opened_s: int | None, duration_s: float | None, words: str
) -> None:
    """Before it the line says what is waited for, after it how much of the duration is over."""
    opened_ns = None if opened_s is None else opened_s * 10**9
    said, _ = phase(now_s * 10**9, Progress(opened_ns, 8, 3, 655, 83), duration_s)
    assert said == words


def test_the_warmup_counts_for_nothing_but_its_failures() -> None:
    """Calls of one token give no rate and no TTFT; one that fails is named."""
    tally = Tally()
    warm = record([1000, 2000], osl=50)
    failed = record([], error=Failure("http_5xx", 500, "no"))
    for each in (warm, failed):
        tally.take(changed(each, request=changed(each.request, warmup=True)))
    assert (tally.succeeded, tally.ttft_s, tally.rates(2_000_000_000)) == (0, None, (0, 0))
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
    assert warming.startswith("warming up 11 s · 2 of 6 calls left · 2 users, 2 in flight")
    assert measuring.startswith("measuring 10/30 s, 20 s left · 2 users")


def drawn(progress: Progress, tally: Tally, server: Load | None = None) -> list[str]:
    """The screen in a terminal of 80 columns."""
    console = Console(width=80, file=StringIO(), color_system=None)
    console.print(screen(tally, 5_000_000_000, progress, 60.0, server))
    assert isinstance(console.file, StringIO)
    return [" ".join(each.split()) for each in console.file.getvalue().splitlines()]


def test_the_screen_is_as_calm_with_a_thousand_users() -> None:
    """It has the same lines for one user without an answer and for a thousand with failures."""
    tally = Tally()
    for n in range(1000):
        tally.take(record([100, 1100 + n], [1, 10]))
        tally.take(record([], error=Failure("http_5xx", 500, f"no {n} " + "and so on " * 50)))
    health = ClientHealth(0.004, 0.03, (0.31, 0.52))
    few = drawn(Progress(0, 1, 1), Tally())
    many = drawn(Progress(0, 1000, 870, health=health), tally)
    assert [each.partition(" ")[0] for each in few] == [each.partition(" ")[0] for each in many]
    assert "users 1,000 users, 870 in flight" in many
    assert any(each.startswith("failed 1,000 http_5xx: no 999 and so on") for each in many)
    assert "client lag P99 0 ms · late 0.4 % of the time · CPU 52.0 %" in many
    assert "failed none" in few


def test_the_screen_shows_what_the_server_says() -> None:
    """Its queue and the use of its KV cache, as far as it tells; and no line where it doesn't."""
    known = drawn(Progress(0, 8, 3), Tally(), Load(running=3, waiting=14, kv_use=0.425))
    assert "server 3 running · 14 waiting · KV 42.5 %" in known
    part = drawn(Progress(0, 8, 3), Tally(), Load(running=3, waiting=None, kv_use=None))
    assert "server 3 running" in part
    assert not any(each.startswith("server") for each in drawn(Progress(0, 8, 3), Tally()))


@pytest.mark.parametrize(
    ("late", "is_said"), [(0.0, False), (0.009, False), (0.011, True), (0.5, True)]
)
def test_a_client_that_is_too_slow_is_told_in_the_line(late: float, is_said: bool) -> None:
    """From where it would make the run invalid."""
    shown = line(Tally(), 5_000_000_000, Progress(0, 8, 3, health=ClientHealth(late, 0, ())), 60.0)
    assert ("CLIENT TOO SLOW" in shown) == is_said


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
