"""A server that is too busy: refused without an option, waited for with `--retry-busy`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import anyio
import pytest
from scripted import Answer, ScriptedServer
from virtually import ANSWER, Outcome, chain, replay

from agentreplay.client.calibrate import lone_request
from agentreplay.client.endpoint import Endpoint, api_url, http_stream, open_client
from agentreplay.client.stream import Reply, Sink
from agentreplay.metrics.record import Request
from agentreplay.metrics.summary import Summary, summarize
from agentreplay.plan import Plan
from agentreplay.sim import virtual

PATIENT = Plan(users=1, sessions=1, duration_s=None, timing="none", retry_busy=True)
GOOD = Reply(200, "text/event-stream", b"")


def refusal(after_s: float | None, status: int = 429) -> Reply:
    return Reply(status, "application/json", b'{"error": "busy"}', retry_after_s=after_s)


def against(replies: Sequence[Reply], plan: Plan = PATIENT, calls: int = 1) -> Outcome:
    """A chain against a server that gives *replies* one after another, then good answers; each
    after a second."""
    left = list(replies)

    async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
        await anyio.sleep(1)
        reply = left.pop(0) if left else GOOD
        if reply.status == 200:
            sink(virtual.clock(), ANSWER)
        return reply

    return replay(plan, [chain(0, calls)], stream)


def sent_s(outcome: Outcome) -> list[float]:
    return [record.sent_ns / 1e9 for record in outcome.records]


def summary(outcome: Outcome, plan: Plan = PATIENT) -> Summary:
    return summarize(outcome.records, plan, outcome.ending)


def test_a_refusal_fails_the_request_unless_asked_otherwise() -> None:
    """Without the option there is one request, and it failed."""
    plan = Plan(users=1, sessions=1, requests=1, duration_s=None)
    outcome = against([refusal(2.0)], plan)
    (record,) = outcome.records
    assert record.error is not None
    assert (record.error.kind, record.retry_s) == ("http_429", None)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again_when_it_says(status: int) -> None:
    """The next try is sent Retry-After seconds after the refusal."""
    assert sent_s(against([refusal(7.0, status), refusal(2.5, status)])) == [0, 8.0, 11.5]


def test_without_a_word_it_is_asked_after_a_second() -> None:
    """A refusal without Retry-After is waited out for a second."""
    assert sent_s(against([refusal(None)])) == [0, 2.0]


def test_a_server_that_says_at_once_is_not_flooded() -> None:
    """Between a refusal and the next try lies a tenth of a second at least."""
    assert sent_s(against([refusal(0.0)])) == pytest.approx([0, 1.1])


@pytest.mark.parametrize("status", [400, 401, 500, 502])
def test_other_refusals_are_final(status: int) -> None:
    """Nothing but 429 and 503 is sent again, whatever the header says."""
    outcome = against([refusal(1.0, status)])
    assert len(outcome.records) == 1
    assert outcome.records[0].error is not None


def test_a_server_is_not_waited_for_without_end() -> None:
    """Waits of one request add up to ten minutes at most; then it has failed."""
    outcome = against([refusal(250.0)] * 9)
    assert sent_s(outcome) == [0, 251.0, 502.0]
    assert [record.retry_s for record in outcome.records] == [250.0, 250.0, None]
    assert summary(outcome).metrics["requests"]["failed"] == 1


def test_waiting_is_shown_as_such() -> None:
    """Refusals and waiting have their own figures; they are no failures, no lag and no TTFT."""
    metrics = summary(against([refusal(7.0), refusal(2.0)], calls=2)).metrics
    assert metrics["busy"] == {"refusals": 2, "waited": 9.0}
    assert metrics["requests"]["attempted"] == metrics["requests"]["succeeded"] == 2
    assert metrics["lag"]["max"] == 0.0
    assert metrics["ttft"]["max"] == 1.0
    assert metrics["latency_from_due"]["max"] == 12.0
    assert metrics["isl"]["n"] == 2


def test_nothing_is_sent_again_after_the_end() -> None:
    """A request that waits for a busy server at the end of the run stays unsent."""
    plan = Plan(users=1, duration_s=5.0, timing="none", retry_busy=True)
    outcome = against([refusal(60.0)], plan)
    assert sent_s(outcome) == [0]
    assert outcome.ending.done_ns == 5_000_000_000
    assert summary(outcome, plan).metrics["requests"]["failed"] == 0


def later(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("header", "low_s", "high_s"),
    [("12", 12, 12), (later(3600), 2400, 3600), (later(-60), 0, 0)],
    ids=["seconds", "a date to come", "a date gone by"],
)
def test_what_the_header_says(header: str, low_s: float, high_s: float) -> None:
    """Retry-After is seconds or a date."""
    after_s = asked({"retry-after": header}).retry_after_s
    assert after_s is not None
    assert low_s <= after_s <= high_s


@pytest.mark.parametrize("header", ["soon", "-3", "1.5"])
def test_what_says_nothing(header: str) -> None:
    """Anything else in the header is no time."""
    assert asked({"retry-after": header}).retry_after_s is None


def asked(headers: dict[str, str]) -> Reply:
    """The reply to a request that is refused with *headers*."""

    async def main() -> Reply:
        answer = Answer(status=429, headers=headers, body=b"{}")
        async with ScriptedServer(lambda _: answer) as server:
            endpoint = Endpoint((api_url(server.url),))
            async with open_client(endpoint, lambda: 0) as client:
                stream = http_stream(client, endpoint, lambda: 0, "run")
                return await stream(lone_request(0, 1, 1), b"{}", lambda at_ns, data: None)

    return anyio.run(main)
