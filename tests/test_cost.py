"""What tokens cost: worked examples, bills of records, and runs that stop at their limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import record
from virtually import ANSWER, Outcome, chain, replay

from agentreplay.client.stream import Reply, Sink, Stream
from agentreplay.forecast import forecast
from agentreplay.metrics.cost import (
    Money,
    Prices,
    Spending,
    Tokens,
    billed,
    dollars_per_million,
    expected,
    money_of,
    tokens_per_dollar,
)
from agentreplay.metrics.gate import gate, outcome
from agentreplay.metrics.record import Failure, Record, Request
from agentreplay.metrics.summary import Summary, summarize
from agentreplay.metrics.window import Ending
from agentreplay.plan import Plan
from agentreplay.sim import virtual

PUBLISHED = Prices(input=2.70, cached=0.27, output=13.50)
DOLLAR_EACH = Prices(input=1e6, cached=1e5, output=1e7)  # for one token
ENDING = Ending("duration", 10_000_000_000, 12_000_000_000)
PLAN = Plan(users=2, duration_s=10)


def summary(*records: Record, money: Money, ending: Ending = ENDING) -> Summary:
    return summarize(records, PLAN, ending, money=money)


def bill(*records: Record, ending: Ending = ENDING) -> dict[str, Any]:
    """At a dollar an input token, ten cents where it is cached, and ten dollars for output."""
    found = summary(*records, money=Money(prices=DOLLAR_EACH), ending=ending).metrics["bill"]
    assert isinstance(found, dict)
    return found


# --- Formulas -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cached", "cents"), [(0.80, "11.1"), (0.75, "12.9")])
def test_the_published_request_costs_what_is_published(cached: float, cents: str) -> None:
    """142,000 input tokens, 80 % or 75 % of them cached, and 300 of output."""
    tokens = Tokens(142_000, round(142_000 * cached), 300)
    assert f"{PUBLISHED.dollars(tokens) * 100:.1f}" == cents


@pytest.mark.parametrize(("rate", "hour", "millions"), [(7567, 1.5, "18.16"), (6083, 2.26, "9.69")])
def test_published_tokens_per_dollar(rate: float, hour: float, millions: str) -> None:
    """Tokens a second of a GPU × 3600 / dollars for its hour."""
    per_dollar = tokens_per_dollar(rate, hour)
    assert per_dollar is not None
    assert f"{per_dollar / 1e6:.2f}" == millions
    per_million = dollars_per_million(per_dollar)
    assert per_million is not None
    assert per_million * per_dollar == pytest.approx(1e6)


def test_nothing_measured_gives_no_tokens_per_dollar() -> None:
    """Without a rate or a price there is no figure, and it is not 0 or infinite."""
    assert tokens_per_dollar(None, 2.0) is tokens_per_dollar(100, None) is None
    assert dollars_per_million(tokens_per_dollar(0.0, 2.0)) is None


def test_what_is_known_newly_counts() -> None:
    """And what isn't stays as it was."""
    told = Money(8, 1.5, PUBLISHED)
    assert told.updated(Money(gpus=4)) == Money(4, 1.5, PUBLISHED)
    assert Money().updated(told) == told
    assert money_of(None) == Money()


# --- The bill of a run ----------------------------------------------------------------------------


def test_a_bill_counts_as_the_server_does() -> None:
    """100 input tokens of which it found 40, and two of output: 60 + 4 + 20 dollars."""
    found = bill(record([100, 200], cached=40, reuse=90))
    assert (found["total"], found["predicted"]) == (84, 0)
    assert (found["input"], found["cached"], found["output"]) == (60, 4, 20)


def test_where_the_server_says_nothing_the_prediction_counts_and_is_told() -> None:
    """90 tokens could be reused: 10 + 9 + 20 dollars; of two requests one is predicted."""
    assert bill(record([100, 200], reuse=90))["total"] == 39
    assert bill(record([100], reuse=90))["predicted"] == 1
    assert bill(record([100], reuse=90), record([100], cached=0))["predicted"] == 0.5


def test_a_bill_is_of_everything_that_was_sent() -> None:
    """The warm-up and what came before the window apart; what is after it belongs to the total."""
    found = bill(
        record([500], warmup=True),
        record([900], sent_ms=600),
        record([2000], sent_ms=1500),
        record([11_500], sent_ms=11_000),
        ending=changed(ENDING, opened_ns=1_000_000_000),
    )
    assert (found["total"], found["before_window"]) == (440, 220)
    assert (found["per_request"]["n"], found["per_request"]["mean"]) == (1, 110)


def test_what_broke_costs_what_came_and_what_brought_nothing_costs_nothing() -> None:
    """A stream that broke after 3 tokens; a refusal; one that was cut before its first token."""
    found = bill(
        record([1, 2, 3], error=Failure("error_event", 200, "boom")),
        record([], error=Failure("http_5xx", 500, "no")),
        record([], error=Failure("cancelled", None, "cut")),
        record([5]),
        record([], retry_s=1.0),
    )
    assert (found["failed"], found["total"], found["unanswered"]) == (130, 240, 2)


def test_a_session_costs_what_its_calls_and_their_warm_up_cost() -> None:
    """Of two plays one was completed: its two calls, the first of them in the warm-up."""
    rows = [
        record([500], warmup=True, calls=2, first=1),
        record([2000], sent_ms=1500, call=1, calls=2),
        record([2000], sent_ms=1500, calls=2, lane=1),
    ]
    found = summary(*rows, money=Money(prices=DOLLAR_EACH))
    assert [play.dollars for play in found.plays] == [220, 110]
    whole = [changed(row, request=changed(row.request, first=0)) for row in rows[2:]]
    again = changed(whole[0], request=changed(whole[0].request, call=1))
    per_session = bill(*whole, again)["per_session"]
    assert (per_session["n"], per_session["mean"]) == (1, 220)


def test_without_prices_there_is_no_bill() -> None:
    """Nor a price of a play, nor figures of a GPU."""
    found = summary(record([100, 1200]), money=Money())
    assert found.plays[0].dollars is None
    for name in ("bill", "total_token_rate_per_gpu", "tokens_per_dollar"):
        assert found.metrics[name] is None


def test_a_bill_of_nothing_is_absent() -> None:
    """Not 0: nothing was billed."""
    found = bill(record([], error=Failure("connect", None, "refused")))
    assert (found["total"], found["per_request"]["n"], found["unanswered"]) == (None, 0, 1)


def test_rates_of_a_gpu_are_those_of_the_run_by_their_number() -> None:
    """102 tokens over 10 s of window, and over 2 s from the first sending to the last end; tokens
    per dollar are of the latter."""
    rows = (record([1000, 2000]),)
    found = summary(*rows, money=Money(gpus=4, gpu_hour=1.8)).metrics
    assert found["total_token_rate_per_gpu"] == pytest.approx(102 / 10 / 4)
    assert found["total_token_rate_run_per_gpu"] == pytest.approx(102 / 2 / 4)
    assert found["tokens_per_dollar"] == pytest.approx(102 / 2 / 4 * 3600 / 1.8)
    assert found["dollars_per_million_tokens"] == pytest.approx(1e6 / (102 / 2 / 4 * 2000))


@given(
    st.lists(
        st.tuples(st.integers(1, 10**6), st.none() | st.integers(0, 10**6), st.integers(1, 9)),
        min_size=1,
        max_size=8,
    )
)
def test_the_parts_of_a_bill_make_its_whole(shapes: list[tuple[int, int | None, int]]) -> None:
    """Its kinds of tokens, and its plays; cached tokens are never more than the input."""
    rows = [
        record([100] * osl, isl=isl, isl_served=isl, cached=cached, visit=n)
        for n, (isl, cached, osl) in enumerate(shapes)
    ]
    found = summary(*rows, money=Money(prices=PUBLISHED))
    bill = found.metrics["bill"]
    assert min(bill[name] for name in ("input", "cached", "output")) >= 0
    assert bill["input"] + bill["cached"] + bill["output"] == pytest.approx(bill["total"])
    assert sum(play.dollars or 0 for play in found.plays) == pytest.approx(bill["total"])
    assert bill["per_request"]["mean"] * len(rows) == pytest.approx(bill["total"])


# --- A limit --------------------------------------------------------------------------------------

CHAINS = [chain(n, 12) for n in range(8)]


def counting(cached: Callable[[Request], int]) -> Stream:
    """Answers each call after a second, counts it as it was asked, and finds what *cached* says."""

    async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
        await anyio.sleep(1)
        tokens = expected(request)
        usage = {
            "prompt_tokens": tokens.input,
            "completion_tokens": tokens.output,
            "prompt_tokens_details": {"cached_tokens": cached(request)},
        }
        counted = orjson.dumps({"choices": [], "usage": usage})
        sink(virtual.clock(), ANSWER.replace(ANSWER.split(b"data: ")[2], counted + b"\n\n"))
        return Reply(200, "text/event-stream", b"")

    return stream


EXACT = counting(lambda request: request.reuse)
"""A server that finds what was foreseen."""


def limited(dollars: float | None, stream: Stream = EXACT, **plan: Any) -> tuple[Outcome, Summary]:
    """A run with a limit, at `PUBLISHED` prices."""
    fields = {"users": 4, "duration_s": None, "sessions": 8, "max_cost": dollars, **plan}
    asked = Plan(**fields, prices=PUBLISHED)
    outcome = replay(asked, CHAINS, stream)
    return outcome, summarize(outcome.records, asked, outcome.ending)


def cost_of(outcome: Outcome) -> float:
    total = sum((billed(record) or Tokens() for record in outcome.records), Tokens())
    return PUBLISHED.dollars(total)


@given(st.floats(0.002, 0.1), st.sampled_from([0, 2]))
def test_a_run_costs_no_more_than_its_limit(dollars: float, warmup_calls: int) -> None:
    """The warm-up included, where the server finds what it can and writes what it is asked for;
    and it uses it up, but for less than the dearest call."""
    outcome, _ = limited(dollars, warmup_calls=warmup_calls)
    dearest = PUBLISHED.dollars(Tokens(640 + 64 * 11, 0, 10))
    assert cost_of(outcome) <= dollars
    if outcome.ending.reason == "cost":
        assert cost_of(outcome) > dollars - dearest
    else:
        assert len(outcome.records) == 96


def test_a_limit_stops_the_sending_and_drains() -> None:
    """Nothing is sent after the window has closed, what is in flight ends well, and the verdict is
    valid with a warning that names the limit."""
    outcome, summary = limited(0.02)
    assert outcome.ending.reason == "cost"
    assert all(record.error is None for record in outcome.records)
    assert max(record.sent_ns for record in outcome.records) <= outcome.ending.closed_ns
    assert outcome.ending.done_ns > outcome.ending.closed_ns
    assert summary.verdict.valid
    assert [(reason.id, reason.text[-6:]) for reason in summary.verdict.warnings] == [
        ("cost_limit", "$ 0.02")
    ]


def test_a_limit_that_is_not_reached_changes_nothing() -> None:
    """The same records as without."""
    outcome, summary = limited(1e6)
    free, _ = limited(None)
    assert outcome.records == free.records
    assert (outcome.ending.reason, summary.verdict.warnings) == ("work", ())


def test_a_limit_below_the_first_call_sends_nothing() -> None:
    """Then nothing was measured."""
    outcome, summary = limited(1e-6)
    assert outcome.records == []
    assert outcome.ending.reason == "cost"
    assert [reason.id for reason in summary.verdict.reasons] == ["nothing_measured"]


def test_what_costs_more_than_expected_stops_the_run_when_it_ends() -> None:
    """The server finds nothing of what it could: each call costs more than was foreseen."""

    first = PUBLISHED.dollars(Tokens(640, 0, 10))
    second = PUBLISHED.dollars(Tokens(704, 640, 10))
    forgetful = counting(lambda request: 0)
    outcome, _ = limited(first + second + 1e-9, forgetful, users=1)
    assert [record.cached for record in outcome.records] == [0, 0]
    assert outcome.ending.reason == "cost"
    assert outcome.ending.closed_ns == outcome.records[1].done_ns


def test_a_refusal_that_is_waited_out_keeps_its_place() -> None:
    """While a call waits for a busy server its cost stays reserved; when it is given up, it costs
    nothing."""
    spending = Spending(DOLLAR_EACH, 250)
    one = expected(record([1], isl=100).request)
    assert one == Tokens(100, 0, 1)
    assert spending.affords(one)
    assert spending.affords(one)
    assert not spending.affords(one)
    spending.settle(one, None)
    assert spending.affords(one)
    assert not spending.over


@given(st.floats(0.002, 0.1))
def test_a_forecast_stops_where_the_run_does(dollars: float) -> None:
    """A dry run keeps to the limit, too."""
    plan = Plan(users=1, duration_s=None, sessions=8, max_cost=dollars, prices=PUBLISHED)
    found = forecast(plan, len(CHAINS), CHAINS.__getitem__)
    assert found.dollars(PUBLISHED) <= dollars
    assert found.calls == len(limited(dollars, users=1)[0].records)


# --- Ids ------------------------------------------------------------------------------------------


def test_a_condition_can_be_on_a_bill() -> None:
    """Its parts are figures like all others, and missed where there is no bill."""
    condition = gate("bill.per_request.p95 < 111")
    found = summary(record([100]), money=Money(prices=DOLLAR_EACH))
    assert outcome(condition, {"metrics": found.metrics}).passed
    without = summary(record([100]), money=Money())
    assert not outcome(condition, {"metrics": without.metrics}).passed


def test_every_part_of_a_bill_is_defined() -> None:
    """Each stands in docs/metrics.md."""
    text = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text()
    assert [part for part in bill() if f"`{part}`" not in text] == []
