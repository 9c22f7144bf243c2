"""What a plan would send: by hand, against the real scheduler, and as the command says it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from io import StringIO
from math import inf
from pathlib import Path
from typing import Any

import orjson
import pytest
from command import agentreplay
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scripted import Answer, Request, ScriptedServer
from test_load import weka_bytes, written
from test_structure import random_cases
from virtually import ANSWER, call, chain, oracle, replay

from agentreplay.client.stream import Reply, Sink
from agentreplay.errors import TraceError
from agentreplay.forecast import Forecast, forecast
from agentreplay.metrics.cost import Prices
from agentreplay.metrics.record import Request as Sending
from agentreplay.plan import Plan, gap_s, lane_requests, lane_start_s, visits
from agentreplay.report.forecast import forecast_report
from agentreplay.sim import virtual
from agentreplay.trace.formats import native
from agentreplay.trace.model import Session
from agentreplay.trace.structure import in_order, link
from agentreplay.trace.synth import synthesise

ONE = Plan(users=1, duration_s=None, sessions=1, max_gap_s=None, drain_s=1e6)

BUNDLED = Path(__file__).parents[1] / "traces"


def foretold(plan: Plan, *sessions: Session) -> Forecast:
    return forecast(plan, len(sessions), sessions.__getitem__)


# --- By hand --------------------------------------------------------------------------------------


def example() -> Session:
    """A call of 2 s; after 3 s one of 1 s that shares 960 of its tokens; after 60 s one of 2 s."""
    calls = [
        call(0.0, 2.0, isl=1000, osl=100, system=256),
        call(5.0, 6.0, isl=1300, osl=50, parent=0, shared=960, system=256),
        call(66.0, 68.0, isl=1400, osl=0, parent=1, shared=1280, system=256),
    ]
    return Session("a", None, link(calls, 64), 64, "")


def test_a_play_sends_every_call_in_recorded_time() -> None:
    """One play: all calls and tokens, what is shared with calls before, and the recorded time."""
    assert foretold(ONE, example()) == Forecast(
        plays=1,
        sessions=1,
        calls=3,
        input_tokens=1000 + 1300 + 1400,
        cached_tokens=960 + 1280,
        output_tokens=100 + 50 + 1,  # a call without output is sent with a limit of one token
        warmup_calls=0,
        warmup_tokens=0,
        warmup_cached_tokens=0,
        warmup_sent_s=None,
        tree_skip_s=0.0,
        idle_skip_s=0.0,
        largest_prompt=1400,
        seconds=68.0,
    )


def test_a_second_play_finds_tools_and_system_prompt() -> None:
    """Plays of a session share its whole blocks of system tokens, and nothing else."""
    found = foretold(replace(ONE, sessions=2), example())
    assert (found.plays, found.sessions, found.calls, found.seconds) == (2, 1, 6, 136.0)
    assert found.cached_tokens == 960 + 1280 + 256 + 960 + 1280


@pytest.mark.parametrize(("share", "found_again"), [("session", 256), ("pass", 0), ("play", 0)])
def test_a_second_pass_finds_what_the_plan_shares(share: Any, found_again: int) -> None:
    """Tools and system prompt are found by plays that have them in common, and no others."""
    found = foretold(replace(ONE, sessions=2, share_system=share), example())
    assert found.cached_tokens == 2 * (960 + 1280) + found_again


def test_serial_order_has_one_call_in_flight() -> None:
    """What overlapped in the recording is sent one after another."""
    overlapping = [call(0.0, 4.0), call(1.0, 3.0, agent="sub")]
    session = Session("a", None, link(overlapping, 64), 64, "")
    assert foretold(ONE, session).seconds == 4.0
    assert foretold(replace(ONE, order="serial"), session).seconds == 4.0 + 2.0


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({"max_gap_s": 10.0}, 2 + 3 + 1 + 10 + 2),
        ({"speed": 2.0}, 2 + 1.5 + 1 + 30 + 2),
        ({"timing": "none"}, 2 + 1 + 2),
        ({"timing": "recorded", "speed": 2.0}, 33 + 2),
        ({"ramp_s": 30.0}, 68.0),
        ({"requests": 2}, 6.0),
        ({"duration_s": 66.0}, 6.0),
        ({"duration_s": 66.5}, 68.0),
        ({"duration_s": 60.0, "warmup_s": 6.0}, 6.0),
        ({"duration_s": 60.0, "warmup_s": 6.5}, 68.0),
        ({"duration_s": 60.0, "ramp_s": 6.5}, 68.0),
        ({"duration_s": 1.0}, 2.0),
    ],
    ids=str,
)
def test_a_plan_decides_how_long_it_takes(changes: dict[str, Any], seconds: float) -> None:
    """Gaps, speed, timing and limits act as in a run; what is in flight at the end still ends.

    The duration counts from the opening of the window.
    """
    assert foretold(replace(ONE, **changes), example()).seconds == pytest.approx(seconds)


def test_a_call_after_the_end_keeps_its_lane_waiting() -> None:
    """A lane whose next call is due after the end begins no other session meanwhile."""
    found = foretold(replace(ONE, sessions=None, duration_s=60.0), example())
    assert (found.plays, found.calls, found.seconds) == (1, 2, 6.0)


def test_lanes_share_the_requests() -> None:
    """Each lane has its share of the requests, and goes on to further sessions with it."""
    plan = replace(ONE, users=2, sessions=None, requests=5, timing="none")
    found = foretold(plan, chain(0, 2), chain(1, 2))
    assert (found.plays, found.calls, found.seconds) == (3, 5, 3.0)


def test_lanes_begin_over_the_ramp() -> None:
    """The last lane to begin is the last to end."""
    plan = replace(ONE, users=4, sessions=4, ramp_s=40.0)
    assert foretold(plan, chain(0, 2)).seconds == 30 + 4


def test_arrivals_are_those_of_the_recording() -> None:
    """With arrivals each session begins at its own, and none after the end."""
    sessions = [replace(chain(n, 2), start_s=100.0 * n) for n in range(3)]
    plan = replace(ONE, users=3, sessions=3, timing="recorded", arrivals=True)
    assert foretold(plan, *sessions).seconds == 204.0
    cut = foretold(replace(plan, duration_s=150.0), *sessions)
    assert (cut.plays, cut.seconds) == (2, 104.0)


def test_arrivals_wait_for_their_lane() -> None:
    """With a ramp a session begins no earlier than its lane."""
    sessions = [replace(chain(n, 2), start_s=0.0) for n in range(2)]
    plan = replace(ONE, users=2, sessions=2, timing="recorded", arrivals=True, ramp_s=60.0)
    assert foretold(plan, *sessions).seconds == 34.0


def test_a_session_that_begins_in_its_middle_is_primed() -> None:
    """What began before is done, its last call is sent with one token, and the rest follows it."""
    found = foretold(replace(ONE, start=(0.5, 0.5)), example())
    assert found == Forecast(
        plays=1,
        sessions=1,
        calls=1,
        input_tokens=1400,
        cached_tokens=1280,
        output_tokens=1,
        warmup_calls=1,
        warmup_tokens=1300,
        warmup_cached_tokens=0,
        warmup_sent_s=0.0,
        tree_skip_s=0.0,
        idle_skip_s=0.0,
        largest_prompt=1400,
        seconds=60 + 2.0,
    )


def test_first_calls_can_be_sent_with_one_token() -> None:
    """The calls of the warm-up take no time, fill the cache, and are counted apart."""
    found = foretold(replace(ONE, warmup_calls=2), example())
    assert (found.plays, found.calls, found.seconds) == (1, 1, 60 + 2.0)
    assert (found.warmup_calls, found.warmup_tokens) == (2, 1000 + 1300)
    assert (found.warmup_cached_tokens, found.cached_tokens) == (960, 1280)


@pytest.mark.parametrize(("limit_s", "sent_s"), [(None, 2.0), (11.0, 2.0), (5.5, 1.0)])
def test_primers_keep_their_distance_within_the_limit(limit_s: float | None, sent_s: float) -> None:
    """Two lines' primers are as far apart as recorded, or closer where the warm-up has a limit."""
    calls = [
        call(0.0, 1.0),
        call(2.0, 3.0, agent="sub"),
        call(20.0, 21.0, isl=1280, parent=0, shared=640),
        call(22.0, 23.0, isl=1280, parent=1, shared=640, agent="sub"),
    ]
    session = Session("a", None, link(calls, 64), 64, "")
    found = foretold(replace(ONE, start=(0.5, 0.5), warmup_limit_s=limit_s), session)
    assert (found.warmup_calls, found.calls) == (2, 2)
    assert found.warmup_sent_s == pytest.approx(sent_s)


def test_idle_time_of_a_session_is_skipped() -> None:
    """Each session moves on by itself, and what all have skipped is added up."""
    found = foretold(replace(ONE, users=2, sessions=2, max_tree_idle_s=10.0), example())
    assert (found.seconds, found.tree_skip_s, found.idle_skip_s) == (18.0, 2 * 50.0, 0.0)


def test_idle_time_of_all_together_is_skipped_once() -> None:
    """Where nothing is in flight at all, all sessions move on together."""
    plan = replace(ONE, users=2, sessions=2, max_idle_s=5.0)
    found = foretold(plan, example())
    assert (found.seconds, found.tree_skip_s, found.idle_skip_s) == (13.0, 0.0, 55.0)
    at_work = Session("b", None, link([call(0.0, 100.0)], 64), 64, "")
    found = foretold(plan, example(), at_work)
    assert (found.seconds, found.idle_skip_s) == (100.0, 0.0)


@pytest.mark.parametrize(
    "changes",
    [{"history": "live"}, {"first_token_s": 1.0, "next_token_s": 1.0}, {"drain_s": 0.0}],
    ids=str,
)
def test_what_only_answers_decide_is_not_foretold(changes: dict[str, Any]) -> None:
    """Answers have their recorded lengths and times, and nothing is given up."""
    plan = replace(ONE, duration_s=67.0)
    assert foretold(replace(plan, **changes), example()) == foretold(plan, example())


def test_nothing_sent_takes_no_time() -> None:
    """A plan that sends nothing has no duration and no largest prompt."""
    nothing = Forecast(0, 0, 0, 0, 0, 0, 0, 0, 0, None, 0.0, 0.0, 0, None)
    assert foretold(replace(ONE, duration_s=0.0), example()) == nothing


def unreadable(*broken: int) -> tuple[Plan, Any]:
    """A plan of ten plays over four sessions of which some can't be read."""

    def draw(index: int) -> Session:
        if index in broken:
            raise TraceError("broken")
        return chain(index, 2)

    return replace(ONE, sessions=8), draw


def test_what_can_not_be_read_is_passed_over() -> None:
    """A session that can't be read is no play; the others are played."""
    plan, draw = unreadable(1, 2)
    found = forecast(plan, 4, draw)
    assert (found.plays, found.sessions, found.calls) == (4, 2, 8)


def test_nothing_readable_is_nothing() -> None:
    """Where no session can be read, a plan without end ends all the same."""
    _, draw = unreadable(0, 1, 2, 3)
    assert forecast(Plan(users=3), 4, draw).calls == 0


def test_sessions_that_take_no_time_come_to_an_end() -> None:
    """A plan with a duration ends, also where every recorded call takes no time at all."""
    instant = Session("a", None, link([call(0.0, 0.0)], 64), 64, "")
    drawn = 0

    def draw(index: int) -> Session:
        nonlocal drawn
        drawn += 1
        assert drawn < 10_000, "it goes on forever"
        return instant

    assert forecast(replace(ONE, sessions=None, duration_s=1.0), 1, draw).calls >= 1


def test_prices_are_for_a_million_tokens() -> None:
    """New and cached input and output cost each their own."""
    found = replace(
        foretold(ONE, example()),
        input_tokens=3_000_000,
        cached_tokens=1_000_000,
        output_tokens=500_000,
    )
    assert found.dollars(Prices(input=3.0, cached=0.3, output=15.0)) == 2 * 3 + 0.3 + 0.5 * 15
    assert found.dollars(Prices(0.0, 0.0, 0.0)) == 0


def test_a_warmup_costs_money() -> None:
    """Its input costs what all input does, and its output is one token a call."""
    prices = Prices(input=3.0, cached=0.5, output=15.0)
    found = foretold(replace(ONE, warmup_calls=2), example())
    assert found.dollars(prices) == pytest.approx(
        ((1000 + 340 + 120) * 3 + (960 + 1280) * 0.5 + (2 + 1) * 15) / 1e6
    )


# --- Against the scheduler ------------------------------------------------------------------------


def sent(plan: Plan, sessions: Sequence[Session]) -> Forecast:
    """What is sent in virtual time, with all text, where every answer takes its recorded time.

    Those of the warm-up come at once.
    """
    recorded = oracle(sessions)

    async def stream(request: Sending, body: bytes, sink: Sink) -> Reply:
        if not request.warmup:
            return await recorded(request, body, sink)
        sink(virtual.clock(), ANSWER)
        return Reply(200, "text/event-stream", b"")

    records = replay(plan, sessions, stream).records
    assert all(record.error is None for record in records)
    requests = [record.request for record in records]
    ordinary = [request for request in requests if not request.warmup]
    warmup = [record for record in records if record.request.warmup]
    return Forecast(
        plays=len({(request.lane, request.visit) for request in requests}),
        sessions=len({request.index for request in requests}),
        calls=len(ordinary),
        input_tokens=sum(request.isl for request in ordinary),
        cached_tokens=sum(request.reuse for request in ordinary),
        output_tokens=sum(max(1, request.osl) for request in ordinary),
        warmup_calls=len(warmup),
        warmup_tokens=sum(record.request.isl for record in warmup),
        warmup_cached_tokens=sum(record.request.reuse for record in warmup),
        warmup_sent_s=max((record.sent_ns / 1e9 for record in warmup), default=None),
        tree_skip_s=sum(request.tree_skip_s for request in requests),
        idle_skip_s=sum(request.idle_skip_s for request in requests),
        largest_prompt=max((request.isl for request in requests), default=0),
        seconds=max((record.done_ns / 1e9 for record in records), default=None),
    )


@cache
def several() -> tuple[Session, ...]:
    """Six artificial sessions with subagents, which arrive every twenty seconds."""
    made = synthesise(6, 1, calls=(3, 12), largest_tokens=8000)
    return tuple(replace(session, start_s=20.0 * n) for n, session in enumerate(made))


plans = st.builds(
    Plan,
    users=st.integers(1, 5),
    duration_s=st.sampled_from([10.0, 30.0, 100.0, 300.5]),
    requests=st.sampled_from([None, None, 1, 7, 23]),
    sessions=st.sampled_from([None, 1, 4, 11]),
    ramp_s=st.sampled_from([0.0, 0.0, 10.0, 60.0]),
    timing=st.sampled_from(["think", "recorded", "none"]),
    order=st.sampled_from(["causal", "recorded", "serial"]),
    speed=st.sampled_from([0.5, 1.0, 2.0]),
    max_gap_s=st.sampled_from([None, 1.0, 10.0]),
    max_tree_idle_s=st.sampled_from([None, None, 0.0, 3.0]),
    max_idle_s=st.sampled_from([None, None, 0.0, 2.0]),
    start=st.sampled_from([None, (0.0, 1.0), (0.25, 0.75), (0.5, 0.5), (1.0, 1.0)]),
    warmup_calls=st.sampled_from([0, 0, 1, 3, 20]),
    warmup_s=st.sampled_from([0.0, 0.0, 15.0]),
    warmup_limit_s=st.sampled_from([None, None, 0.0, 1.0, 20.0]),
    drain_s=st.just(1e6),
    share_system=st.sampled_from(["session", "pass", "play"]),
    seed=st.integers(0, 9),
)


@random_cases
@given(plans)
def test_any_plan_sends_what_was_foretold(plan: Plan) -> None:
    """A run sends the same plays, calls and tokens, finds and skips as much, and ends as foretold.

    The forecast makes no text and keeps no records.
    """
    assert foretold(plan, *several()) == sent(plan, several())


@random_cases
@given(plans.map(lambda plan: replace(plan, duration_s=None, requests=None, sessions=7)))
def test_any_plan_without_an_end_sends_what_was_foretold(plan: Plan) -> None:
    """So it does where only the number of sessions limits it."""
    assert foretold(plan, *several()) == sent(plan, several())


@random_cases
@given(plans, st.integers(1, 6))
def test_any_arrivals_send_what_was_foretold(plan: Plan, users: int) -> None:
    """So it does where sessions arrive as recorded."""
    plan = replace(plan, users=users, sessions=users, timing="recorded", arrivals=True)
    assert foretold(plan, *several()) == sent(plan, several())


# --- Against a walk without a scheduler -----------------------------------------------------------


def walked(plan: Plan, sessions: Sequence[Session]) -> list[tuple[float, float, int, int]]:
    """When each call is sent and ends, its session and its number: one lane after another.

    That can be computed by hand where nothing is coupled: without warm-up and caps on idle time.
    """
    end_s = inf if plan.duration_s is None else plan.lead_s + plan.duration_s
    found = []
    for lane in range(plan.users):
        clock_s, left = lane_start_s(plan, lane), lane_requests(plan, lane)
        for visit in visits(plan, lane, len(sessions)):
            calls = in_order(sessions[visit.session], plan.order).calls
            if clock_s >= end_s or left == 0:
                break
            ends_s: dict[int, float] = {}
            spans = []
            for i, each in enumerate(calls):
                if all(j in ends_s for j in each.after):
                    due_s = max((ends_s[j] for j in each.after), default=clock_s)
                    if plan.timing == "recorded":
                        due_s = max(due_s, clock_s + each.start_s / plan.speed)
                    else:
                        due_s += gap_s(plan, each.gap_s)
                    if due_s < end_s:
                        ends_s[i] = due_s + each.end_s - each.start_s
                        spans.append((due_s, ends_s[i], visit.session, i))
            spans = sorted(spans)[:left]
            found += spans
            clock_s = max([clock_s, *(span[1] for span in spans)])
            if left is not None:
                left -= len(spans)
            if len(ends_s) < len(calls):
                break  # the lane waits for a call until the run is over
    return found


uncoupled = plans.map(
    lambda plan: replace(plan, start=None, warmup_calls=0, max_tree_idle_s=None, max_idle_s=None)
)


@random_cases
@given(uncoupled)
def test_any_uncoupled_plan_is_foretold_as_it_is_walked(plan: Plan) -> None:
    """Without warm-up and caps, the calls foretold are those of a walk through each lane."""
    found, spans = foretold(plan, *several()), walked(plan, several())
    calls = [several()[session].calls[i] for _, _, session, i in spans]
    assert found.calls == len(calls)
    assert found.input_tokens == sum(each.isl for each in calls)
    assert found.output_tokens == sum(max(1, each.osl) for each in calls)
    assert found.seconds == pytest.approx(max((end_s for _, end_s, _, _ in spans)), abs=1e-3)


# --- The command ----------------------------------------------------------------------------------


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return written(tmp_path / "a.jsonl", native.line(example()))


def dry(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return agentreplay("run", *arguments, "--dry-run")


def test_json_is_the_forecast_and_nothing_else(trace: Path) -> None:
    """With --json standard output is one object with every figure."""
    ended = dry(trace, "--sessions", "1", "--users", "1", "--max-gap", "none", "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert orjson.loads(ended.stdout) == {
        "plays": 1,
        "sessions": 1,
        "calls": 3,
        "input_tokens": 3700,
        "cached_tokens": 2240,
        "output_tokens": 151,
        "warmup_calls": 0,
        "warmup_tokens": 0,
        "warmup_cached_tokens": 0,
        "warmup_sent_s": None,
        "tree_skip_s": 0.0,
        "idle_skip_s": 0.0,
        "largest_prompt": 1400,
        "seconds": 68.0,
        "dollars": None,
        "left_out": {},
    }


def test_text_says_every_figure(trace: Path) -> None:
    """The report has a row for each figure."""
    said = dry(trace, "--sessions", "2", "--users", "1", "--max-gap", "none").stdout
    rows = [line.split() for line in said.splitlines()]
    for row in (
        ["Plays", "2", "of", "1"],
        ["Calls", "6"],
        ["Input", "tokens", "7,400"],
        ["Prefix", "reuse", "64.0", "%", "4,736", "tokens"],
        ["Output", "tokens", "302"],
        ["Largest", "prompt", "1,400"],
        ["Duration", "2m16s"],
    ):
        assert any([cell.strip(",") for cell in line[: len(row)]] == row for line in rows), row
    assert "Cost" not in said


def test_text_says_what_a_warmup_and_idle_time_come_to() -> None:
    """Where one-token calls are sent or idle time is skipped, there are rows for it."""
    found = replace(
        foretold(replace(ONE, warmup_calls=2), example()),
        warmup_sent_s=75.0,
        tree_skip_s=7200.0,
        idle_skip_s=45.0,
    )
    console = Console(file=StringIO(), width=120)
    console.print(forecast_report(found, None, {}))
    assert isinstance(console.file, StringIO)
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    for row in (
        ["Warm-up", "calls", "2", "of", "one", "token,", "with", "2,300", "input", "tokens"],
        ["Warm-up", "1m15s"],
        ["Idle", "sessions", "2h00m"],
        ["Idle", "time", "45", "s"],
    ):
        assert any(line[: len(row)] == row for line in rows), row
    console.print(forecast_report(foretold(ONE, example()), None, {}))
    assert console.file.getvalue().count("Warm-up") == 2


def test_a_run_without_limits_is_foretold_for_its_minute(trace: Path) -> None:
    """Without a limit the plan is that of the run: 8 users for 60 s, gaps of 10 s at most.

    A play takes 18 s; of the fourth the third call would be due at 70 s.
    """
    found = orjson.loads(dry(trace, "--json").stdout)
    assert found == {**found, "plays": 8 * 4, "calls": 8 * 11, "seconds": 60.0}


def test_prices_make_a_cost(trace: Path) -> None:
    """With --prices the cost is part of both reports."""
    which = (trace, "--sessions", "1", "--max-gap", "none")
    prices = ("--prices", "input=3, cached=0.5,output=15")
    dollars = (1460 * 3 + 2240 * 0.5 + 151 * 15) / 1e6
    assert orjson.loads(dry(*which, *prices, "--json").stdout)["dollars"] == pytest.approx(dollars)
    rows = [line.split()[:3] for line in dry(*which, *prices).stdout.splitlines()]
    assert ["Cost", "$", f"{dollars:.2f}"] in rows


@pytest.mark.parametrize(
    "prices",
    [
        "",
        "3",
        "input=3",
        "input=3,cached=1",
        "input=3,cached=1,output=x",
        "input=3,cached=1,output=-1",
        "input=3,cached=1,output=2,other=4",
        "input=nan,cached=1,output=2",
        "input=3,cached=1,output=inf",
    ],
)
def test_prices_that_are_none_are_refused(trace: Path, prices: str) -> None:
    """Anything but three prices is an error of one line that shows how to write them."""
    ended = dry(trace, "--prices", prices)
    assert ended.returncode == 2
    assert "input=3,cached=0.3,output=15" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_dry_run_sends_nothing_and_leaves_nothing(trace: Path, tmp_path: Path) -> None:
    """No request reaches the endpoint, and there is no run directory."""
    requests: list[Request] = []

    def answer(request: Request) -> Answer | None:
        requests.append(request)
        return None

    async def main() -> subprocess.CompletedProcess[str]:
        async with ScriptedServer(answer) as server:
            out = tmp_path / "out"
            return await asyncio.to_thread(dry, trace, "--url", server.url, "--out", out)

    assert asyncio.run(main()).returncode == 0
    assert requests == []
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_dry_run_leaves_no_directory_of_its_own(trace: Path, tmp_path: Path) -> None:
    """Without --out there is no folder of runs either."""
    ended = subprocess.run(
        [sys.executable, "-m", "agentreplay", "run", trace, "--dry-run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        timeout=60,
    )
    assert ended.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_dry_run_needs_no_endpoint(trace: Path) -> None:
    """Nothing needs to listen where nothing is sent."""
    assert dry(trace, "--url", "http://127.0.0.1:9").returncode == 0


def test_sessions_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    """With a context, what is too long is left out as in the run."""
    long = native.line(Session("b", None, link([call(0.0, 1.0, isl=9000)], 64), 64, ""))
    trace = written(tmp_path / "a.jsonl", native.line(example()) + long)
    which = (trace, "--sessions", "2", "--users", "2", "--context", "2000", "--json")
    found = orjson.loads(dry(*which).stdout)
    assert (found["plays"], found["calls"], found["largest_prompt"]) == (1, 3, 1400)
    found = orjson.loads(dry(*which, "--context", "1400", "--fit", "drop-calls").stdout)
    assert (found["plays"], found["largest_prompt"]) == (1, 1300)


def test_a_run_that_would_be_refused_is_refused(trace: Path) -> None:
    """With --fit fail a session that is too long is an error before anything is foretold."""
    ended = dry(trace, "--context", "1000", "--fit", "fail")
    assert ended.returncode == 2
    assert "1,401" in ended.stderr


def test_a_broken_session_is_passed_over(tmp_path: Path) -> None:
    """What can't be read is not played; the rest is foretold."""
    data = native.line(example()) + weka_bytes("x", requests=[]) + b"\n"
    trace = written(tmp_path / "a.jsonl", data)
    found = orjson.loads(dry(trace, "--sessions", "2", "--users", "1", "--json").stdout)
    assert (found["plays"], found["sessions"], found["calls"]) == (1, 1, 3)


def test_the_bundled_sessions_are_foretold() -> None:
    """A dry run over the bundled sessions is a matter of a moment, whatever the plan."""
    ended = dry(BUNDLED, "--users", "50", "--duration", "10m", "--json")
    found = orjson.loads(ended.stdout)
    assert found["sessions"] == 14
    assert found["seconds"] >= 600
