"""Public bug reports of tools like this one: what is measured of an answer, and what comes of it.

The numbers are rows of a list of such reports. Each test plays a row's small case and states the
right behaviour; scripts end cleanly where the row is not about their end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import record
from scripted import MODEL, Answer, ScriptedServer, c, done, err, fin, k, r, role, usage
from scripted import Request as Received
from virtually import call, replay

from agentreplay.client.calibrate import lone_request
from agentreplay.client.endpoint import Endpoint, api_url, http_stream, open_client
from agentreplay.client.exchange import exchange
from agentreplay.client.stream import Reply, Sink
from agentreplay.metrics.collector import GAPS_KEPT
from agentreplay.metrics.record import Failure, Record, Request
from agentreplay.metrics.summary import Summary, summarize
from agentreplay.metrics.verdict import Limits
from agentreplay.metrics.window import Ending
from agentreplay.outcome import Result, exit_code
from agentreplay.plan import History, Plan
from agentreplay.run import run_plan
from agentreplay.sim import virtual
from agentreplay.trace.formats import native
from agentreplay.trace.load import load
from agentreplay.trace.model import Call, Session
from agentreplay.trace.structure import link
from agentreplay.wire import chat

GUARD_S = 20.0
"""Bounds a test that hangs; nothing is measured with it."""

BUSY_MACHINE = Limits(loop_late_share=1.0, loop_late_max_s=3600.0, lag_p99_s=3600.0)
"""For tests of what a server does: that this machine may be busy is no failure of theirs."""

BODY = chat.body(MODEL, [b'{"role":"user","content":"word"}'], {"max_tokens": 8})

Reads = Sequence[tuple[float, bytes]]
"""Milliseconds after the request, and the bytes of a read."""


def whole(
    *reads: tuple[float, bytes], counts: tuple[int, int] | None = None, reason: str = "stop"
) -> Reads:
    """The reads, and with the last one a clean end; *counts* are of the prompt and the answer."""
    end = fin(reason) + (usage(*counts) if counts else b"") + done()
    return [*reads, (reads[-1][0], end)]


def session(*calls: Call) -> Session:
    """A recorded session."""
    return Session("s", None, link(list(calls), 64), 64, "")


@dataclass(frozen=True)
class Measured:
    records: list[Record]
    bodies: list[dict[str, Any]]
    summary: Summary

    @property
    def metrics(self) -> dict[str, Any]:
        return self.summary.metrics


def played(trace: list[Session], *scripts: Reads, history: History = "recorded") -> Measured:
    """One user in virtual time, whose n-th request is answered by the n-th script."""
    bodies: list[dict[str, Any]] = []

    async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
        bodies.append(json.loads(body))
        sent_ns = virtual.clock()
        for at_ms, data in scripts[len(bodies) - 1]:
            await anyio.sleep((sent_ns + at_ms * 1e6 - virtual.clock()) / 1e9)
            sink(virtual.clock(), data)
        return Reply(200, "text/event-stream", b"")

    plan = Plan(users=1, duration_s=None, sessions=len(trace), history=history)
    outcome = replay(plan, trace, stream)
    return Measured(outcome.records, bodies, summarize(outcome.records, plan, outcome.ending))


def measured(*scripts: Reads) -> Measured:
    """What is measured of requests that are answered so, one after another."""
    return played([session(call(0, 1))] * len(scripts), *scripts)


def guarded(main: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine function, not for ever."""

    async def bounded() -> None:
        with anyio.fail_after(GUARD_S):
            await main()

    anyio.run(bounded)


def exchanged(*answers: Answer) -> tuple[list[Record], Summary, ScriptedServer]:
    """What comes of one client's requests over a socket, and the server with its log."""
    clock, left = time.monotonic_ns, iter(answers)
    server = ScriptedServer(lambda _: next(left))
    records: list[Record] = []

    async def main() -> None:
        async with server:
            endpoint = Endpoint((api_url(server.url),), model=MODEL)
            async with open_client(endpoint, clock) as client:
                stream = http_stream(client, endpoint, clock, "run")
                for _ in answers:
                    planned = lone_request(clock(), 3, 1)
                    await exchange(stream, chat.API, planned, BODY, clock, records.append)

    guarded(main)
    ending = Ending("work", clock(), clock())
    return records, summarize(records, Plan(users=1, duration_s=None), ending), server


def ran(
    folder: Path,
    answer: Callable[[Received], Answer | None],
    *calls: Call,
    history: History = "recorded",
    calibrate: bool = False,
) -> tuple[Result, list[dict[str, Any]]]:
    """A run of one session against a server that answers so, and what was asked of it."""
    path = folder / "trace.jsonl"
    path.write_bytes(native.line(session(*calls)))
    plan = Plan(users=1, duration_s=None, sessions=1, timing="none", history=history)
    server = ScriptedServer(answer)
    results: list[Result] = []

    async def main() -> None:
        async with server:
            endpoint = Endpoint((api_url(server.url),), model=MODEL, calibrate=calibrate)
            run = partial(run_plan, endpoint=endpoint, limits=BUSY_MACHINE)
            results.append(await run(load(path), plan, folder / "run"))

    guarded(main)
    return results[0], [json.loads(seen.body) for seen in server.requests if seen.method == "POST"]


def words(asked: dict[str, Any]) -> list[int]:
    """How many words each message of a request has."""
    return [len(message["content"].split()) for message in asked["messages"]]


def counting(per_word: float = 1.0, longest: int = 10_000) -> Callable[[Received], Answer | None]:
    """Answers as long as asked for, up to *longest*; a word of the prompt counts *per_word*."""

    def answer(request: Received) -> Answer | None:
        if request.method != "POST":
            return None
        asked = json.loads(request.body)
        prompt, n = round(sum(words(asked)) * per_word), min(asked["max_tokens"], longest)
        return Answer(script=whole(*[(0, c(1))] * n, counts=(prompt, n)))

    return answer


def reasons(summary: Summary) -> list[str]:
    """Why a run is invalid."""
    return [reason.id for reason in summary.verdict.reasons]


def test_row_01_time_is_spread_over_tokens_and_not_chunks() -> None:
    """20 tokens in 400 ms: 20 ms each and 50 tok/s; gaps of 200 ms between chunks stand apart."""
    script = whole((100, c(1)), (300, c(10)), (500, c(10)), counts=(50, 21))
    found = measured(script).metrics
    assert found["tpot"]["p50"] == pytest.approx(0.020)
    assert found["interactivity"]["p50"] == pytest.approx(50)
    assert found["chunk_gap"]["n"] == 2
    assert found["chunk_gap"]["min"] == found["chunk_gap"]["max"] == pytest.approx(0.200)


def test_row_02_a_first_chunk_of_several_tokens_is_corrected_for() -> None:
    """Reasoning counts on both sides: 90 tok/s classic, 50 without the first chunk's tokens."""
    found = measured(whole((500, r(5)), (600, c(5)), counts=(10, 10))).metrics
    assert found["interactivity"]["p50"] == pytest.approx(90)
    assert found["interactivity_corrected"]["p50"] == pytest.approx(50)


@pytest.mark.parametrize(
    "error", [err("boom"), b'event: error\ndata: {"message": "boom"}\n\n'], ids=["object", "named"]
)
def test_row_07_an_error_in_a_stream_is_a_failure(error: bytes) -> None:
    """Its words and its two tokens are kept, and the rates are of the other answer's three."""
    found = measured(
        [(100, c(1)), (200, c(1)), (250, error), (250, done())],
        whole((100, c(1)), (200, c(1)), (300, c(1))),
    )
    failed, succeeded = found.records
    assert failed.error == Failure("error_event", 200, "boom")
    assert succeeded.error is None
    assert (failed.osl, succeeded.osl) == (2, 3)
    assert found.metrics["requests"]["failed"] == 1
    assert found.metrics["errors"] == {"error_event": 1}
    assert found.summary.failures[0].example == "boom"
    assert found.metrics["output_token_rate_run"] == pytest.approx(3 / 0.3)
    assert found.metrics["output_token_rate"] == pytest.approx(3 / found.summary.window.seconds)
    assert found.metrics["latency"]["n"] == found.metrics["osl"]["n"] == 1
    assert reasons(found.summary) == ["error_rate"]


def test_row_08_a_run_without_a_success_fails_and_measures_nothing(tmp_path: Path) -> None:
    """A server that always says 500: exit code 4 with the cause, and null for what was not."""
    boom = Answer(status=500, body=b"boom")
    result, _ = ran(tmp_path, lambda _: boom, call(0, 1), calibrate=True)
    assert exit_code(result) == (4, "nothing succeeded: http_5xx: HTTP 500: boom")
    assert reasons(result.summary) == ["nothing_measured", "error_rate"]
    found = orjson.loads((tmp_path / "run" / "summary.json").read_bytes())["metrics"]
    assert (found["requests"]["attempted"], found["requests"]["failed"]) == (1, 1)
    distributions = [
        *("ttft", "ttft_visible", "tpot", "chunk_gap", "latency", "latency_from_due"),
        *("interactivity", "interactivity_corrected", "interactivity_normalised"),
        *("user_output_rate", "user_output_rate_streaming", "session_seconds"),
        *("isl", "osl", "isl_error", "osl_error"),
    ]
    for name in distributions:
        assert found[name].pop("n") == 0, name
        assert set(found[name].values()) == {None}, name
    for name in ("total_token_rate", "input_token_rate", "output_token_rate", "request_rate"):
        assert found[name] is None, name
        assert found[f"{name}_run"] is None, name


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_row_09_reasoning_is_a_first_token_and_not_a_visible_one(key: str) -> None:
    """Reasoning at 200 ms under either name, content at 1200: a TTFT for each."""
    found = measured(whole((200, r(1, key)), (1200, c(1)))).metrics
    assert found["ttft"]["p50"] == pytest.approx(0.2)
    assert found["ttft_visible"]["p50"] == pytest.approx(1.2)


@pytest.mark.parametrize(
    "end", [usage(10, 1) + done(), fin() + usage(10, 1) + done()], ids=["usage", "finish-and-usage"]
)
def test_row_24_no_token_is_no_time(end: bytes) -> None:
    """Usage after 2 s and no chunk: neither TTFT nor TPOT is measured, of a sample of none."""
    found = measured([(2000, end)])
    (one,) = found.records
    assert (one.first_token_ns, one.first_visible_ns, one.last_token_ns) == (None, None, None)
    for name in ("ttft", "ttft_visible", "tpot", "interactivity", "latency"):
        assert (found.metrics[name]["n"], found.metrics[name]["p50"]) == (0, None)
    assert found.metrics["errors"] == {"truncated": 1}


def test_row_25_an_answer_that_was_cut_while_reasoning_is_a_success() -> None:
    """Ten tokens of reasoning from 200 ms on, then the limit: a TTFT, a rate, nothing visible."""
    reads = [(200 + 100 * n, r(1)) for n in range(10)]
    found = measured(whole(*reads, counts=(5, 10), reason="length"))
    (one,) = found.records
    assert (one.error, one.finish) == (None, "length")
    assert found.metrics["ttft"]["p50"] == pytest.approx(0.2)
    assert (found.metrics["ttft_visible"]["n"], found.metrics["ttft_visible"]["p50"]) == (0, None)
    assert found.metrics["interactivity"]["p50"] == pytest.approx(10)


def test_row_26_without_usage_a_chunk_is_a_token() -> None:
    """Nothing is tokenised here: eight chunks are eight tokens, marked as an estimate."""
    found = measured(whole(*((100 * n, c(1)) for n in range(1, 9))))
    (one,) = found.records
    assert (one.osl, one.estimated) == (8, True)
    assert found.metrics["osl"]["max"] == 8
    assert found.metrics["output_token_rate_run"] == pytest.approx(8 / 0.8)
    verdict = found.summary.verdict
    assert verdict.valid
    assert [warning.id for warning in verdict.warnings] == ["prompt_usage_missing"]


@pytest.mark.parametrize(("per_word", "code"), [(1.3, 3), (1.021, 3), (1.02, 0)])
def test_row_27_prompts_longer_than_planned_are_reported(
    tmp_path: Path, per_word: float, code: int
) -> None:
    """Planned 1000, counted 1300: both are kept, the error stated, and over 2 % it is invalid."""
    result, _ = ran(tmp_path, counting(per_word), call(0, 1, isl=1000))
    (one,) = result.run.records()
    assert (one.request.isl, one.isl) == (1000, round(1000 * per_word))
    metrics = result.summary.metrics
    assert metrics["isl_error"]["p50"] == metrics["isl_bias"] == pytest.approx(per_word - 1)
    found, why = exit_code(result)
    assert found == code
    assert (f"prompt_length_drift: {per_word - 1:.1%}" in why) is bool(code)


def test_row_27_a_tokenizer_of_its_own_is_corrected_for(tmp_path: Path) -> None:
    """What a word costs is measured before the run: planned 1000, counted 1000."""
    result, asked = ran(tmp_path, counting(1.3), call(0, 1, isl=1000), calibrate=True)
    (one,) = result.run.records()
    assert (one.request.isl, one.isl) == (1000, 1000)
    assert sum(words(asked[-1])) == 769
    assert exit_code(result)[0] == 0


def regenerated(history: History) -> Measured:
    """1024 tokens are generated at 640, and the next prompt is 949 longer, as recorded."""
    calls = (
        call(0, 1, isl=640, osl=1024),
        call(2, 3, isl=640 + 949, osl=10, parent=0, shared=640),
    )
    return played(
        [session(*calls)],
        whole((100, c(1024)), counts=(640, 1024)),
        whole((100, c(10)), counts=(640 + 949, 10)),
        history=history,
    )


@pytest.mark.parametrize("history", ["recorded", "live"])
def test_row_28_what_was_generated_may_count_less_when_it_comes_back(history: History) -> None:
    """1024 tokens out, the next prompt 949 longer: both numbers stand as the server stated them."""
    found = regenerated(history)
    assert [(each.isl, each.osl) for each in found.records] == [(640, 1024), (1589, 10)]
    assert found.records[1].request.isl == 1589
    assert found.metrics["isl"]["max"] == 1589
    assert found.metrics["osl"]["max"] == 1024
    assert found.metrics["isl_error"]["max"] == found.metrics["osl_error"]["max"] == 0


@pytest.mark.parametrize("history", ["recorded", "live"])
def test_row_28_no_prompt_repeats_more_than_it_holds(history: History) -> None:
    """Of prompts of 640 and 1589 tokens at most 1589 were sent before, in whatever history."""
    share = regenerated(history).metrics["prefix_reuse"]["theoretical"]
    assert 0 < share <= 1589 / (640 + 1589)


@pytest.mark.parametrize("generated", [60, 1024, 2000])
def test_row_28_a_recorded_prompt_does_not_depend_on_what_was_generated(generated: int) -> None:
    """However long the answer before it was, the next prompt is as long as recorded."""
    calls = call(0, 1, isl=640, osl=1024), call(2, 3, isl=1589, parent=0, shared=640)
    first = whole((100, c(generated)), counts=(640, generated))
    asked = played([session(*calls)], first, whole((100, c(1)))).bodies
    assert [sum(words(each)) for each in asked] == [640, 1589]


@pytest.mark.parametrize(("longest", "code"), [(60, 3), (94, 3), (95, 0)])
def test_row_41_answers_shorter_than_asked_for_are_reported(
    tmp_path: Path, longest: int, code: int
) -> None:
    """Asked for 100, stopped at 60: off by 40 % in every request, and over 5 % it is invalid."""
    calls = [call(n, n + 0.5, osl=100) for n in range(3)]
    result, asked = ran(tmp_path, counting(longest=longest), *calls)
    assert [(each["max_tokens"], each["ignore_eos"]) for each in asked] == [(100, True)] * 3
    error = result.summary.metrics["osl_error"]
    assert error["n"] == 3
    assert error["min"] == error["max"] == pytest.approx(1 - longest / 100)
    assert result.summary.metrics["osl_bias"] == pytest.approx(longest / 100 - 1)
    found, why = exit_code(result)
    assert found == code
    assert (f"length_not_controlled: {1 - longest / 100:.1%}" in why) is bool(code)


@pytest.mark.parametrize("counts", [(640, 20), None], ids=["usage", "no-usage"])
def test_row_42_reasoning_alone_is_output_and_the_history_is_the_recorded_one(
    counts: tuple[int, int] | None,
) -> None:
    """20 tokens of reasoning up to the limit are 20; the recorded turn of 128 comes next."""
    calls = (
        call(0, 1, isl=640, osl=128),
        call(2, 3, isl=896, osl=1, parent=0, shared=640),
    )
    thinking = whole(*((100 * n, r(1)) for n in range(1, 21)), counts=counts, reason="length")
    found = played([session(*calls)], thinking, whole((100, c(1))))
    assert (found.records[0].error, found.records[0].osl) == (None, 20)
    assert found.records[0].first_visible_ns is None
    first, second = found.bodies
    assert second["messages"][:1] == first["messages"]
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
    assert words(second) == [640, 128, 128]
    assert found.records[1].request.history == "recorded"


def test_row_47_chunks_without_choices_or_with_null_usage_are_read() -> None:
    """Usage is null on a chunk, and comes on one with empty choices, none, or null ones."""
    chunk = {"choices": [{"index": 0, "delta": {"content": " word"}}], "usage": None}
    counts = {"prompt_tokens": 3, "completion_tokens": 1}
    ends = [{"choices": [], "usage": counts}, {"usage": counts}, {"choices": None, "usage": counts}]
    events = [
        [b"data: %b\n\n" % json.dumps(each).encode() for each in (chunk, end)] for end in ends
    ]
    records, summary, _ = exchanged(
        *(Answer(script=[(0, token), (0, fin()), (0, end), (0, done())]) for token, end in events)
    )
    assert [(each.error, each.isl, each.osl, each.estimated) for each in records] == [
        (None, 3, 1, False)
    ] * 3
    assert summary.metrics["osl"]["n"] == 3


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085"])
def test_row_48_other_line_separators_are_text(tmp_path: Path, separator: str) -> None:
    """One chunk of three characters, raw and one byte a write: it comes back as it was sent."""
    text = f"a{separator}b"
    value = {"choices": [{"index": 0, "delta": {"content": text}}]}
    chunk = b"data: %b\n\n" % json.dumps(value, ensure_ascii=False).encode()
    answer = Answer(script=whole((0, chunk)), pieces="bytes")
    calls = call(0, 1, isl=640), call(2, 3, isl=896, parent=0, shared=640)
    result, asked = ran(
        tmp_path, lambda seen: answer if seen.method == "POST" else None, *calls, history="live"
    )
    assert [(each.error, each.osl) for each in result.run.records()] == [(None, 1)] * 2
    assert [message["content"] for message in asked[1]["messages"]][1] == text


def test_row_49_a_chunk_of_a_megabyte_is_read() -> None:
    """Tool-call arguments of 1 MB in one line: a success with the server's count."""
    chunk = k(220_000, "write")
    assert len(chunk) > 1 << 20
    ((one,), summary, _) = exchanged(
        Answer(script=whole((0, chunk), counts=(3, 220_000), reason="tool_calls"))
    )
    assert (one.error, one.finish, one.osl, one.chunk_us) == (None, "tool_calls", 220_000, ())
    assert summary.metrics["osl"]["max"] == 220_000


def test_row_50_a_tool_call_in_one_piece_has_tokens_and_no_rate() -> None:
    """200 tokens in a chunk at 2 s: in the totals, counted as a burst, in no rate and no gap."""
    found = measured(
        whole((2000, k(200, "write")), counts=(50, 200)),
        whole((1000, c(1)), (1100, c(1)), counts=(50, 2)),
    )
    burst, _ = found.records
    assert (burst.osl, burst.burst, burst.error) == (200, True, None)
    assert found.metrics["client"]["bursts"] == 1
    assert found.metrics["osl"]["max"] == 200
    assert found.metrics["ttft"]["max"] == pytest.approx(2.0)
    assert found.metrics["output_token_rate_run"] == pytest.approx(202 / 3.1)
    for name in ("tpot", "interactivity", "interactivity_corrected", "chunk_gap"):
        assert found.metrics[name]["n"] == 1
    assert found.metrics["chunk_gap"]["max"] == pytest.approx(0.1)


def test_row_54_percentiles_interpolate_between_the_values() -> None:
    """Of 1 to 5 s: P50 is 3, and P99 lies at 96 % of the way from 4 to 5."""
    found = measured(*(whole((1000 * n, c(1))) for n in (3, 1, 5, 2, 4))).metrics["ttft"]
    assert (found["n"], found["min"], found["max"]) == (5, 1, 5)
    assert found["p50"] == pytest.approx(3)
    assert found["p99"] == pytest.approx(4.96)


LEVELS = ("p50", "p75", "p90", "p95", "p99")

ENDING = Ending("duration", 10**15, 10**15)


@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=40))
def test_row_54_percentiles_are_in_order_and_within_the_values(times_ms: list[int]) -> None:
    """Of times P50 to P99 rise and of rates they fall, never beyond the least and the largest."""
    rows = [record([ms, 3 * ms]) for ms in times_ms]
    found = summarize(rows, Plan(users=1, duration_s=None), ENDING).metrics
    for name in ("ttft", "latency", "tpot", "chunk_gap"):
        steps = [found[name][level] for level in ("min", *LEVELS, "max")]
        assert steps == sorted(steps), name
    for name in ("interactivity", "interactivity_corrected", "interactivity_normalised"):
        steps = [found[name][level] for level in ("max", *LEVELS, "min")]
        assert steps == sorted(steps, reverse=True), name


def test_row_54_more_gaps_than_are_kept_apart_are_right_within_their_bins() -> None:
    """Over a million gaps: each percentile is off by at most half a bin of 1 %, and in order."""
    gaps_us = np.linspace(1000, 50_000, GAPS_KEPT + 1).astype(int)
    row = replace(record([0, 1]), chunk_us=tuple(gaps_us.tolist()), osl=len(gaps_us) + 1)
    summary = summarize([row], Plan(users=1, duration_s=None), ENDING)
    found = summary.metrics["chunk_gap"]
    assert summary.gaps_binned
    assert found["n"] == len(gaps_us)
    exact = np.percentile(gaps_us / 1e6, [0, 50, 75, 90, 95, 99, 100])
    steps = [found[level] for level in ("min", *LEVELS, "max")]
    assert steps == pytest.approx(exact.tolist(), rel=0.0051)
    assert steps == sorted(steps)


def test_row_55_what_was_not_measured_is_no_sample() -> None:
    """Half the answers have usage and no token: the others' two TTFTs are all there are."""
    nothing = whole((2000, role()), counts=(10, 1))
    found = measured(whole((200, c(1))), nothing, whole((400, c(1))), nothing).metrics
    assert found["requests"]["attempted"] == 4
    assert found["ttft"]["n"] == 2
    assert found["ttft"]["min"] == pytest.approx(0.2)
    assert found["ttft"]["p50"] == pytest.approx(0.3)


def test_row_56_the_mean_of_a_request_and_the_gaps_of_all_are_two_metrics() -> None:
    """Tokens at 1000, 1100 and 2100 ms: 550 ms a token for the request, gaps of 100 and 1000."""
    found = measured(whole((1000, c(1)), (1100, c(1)), (2100, c(1)))).metrics
    assert (found["tpot"]["n"], found["chunk_gap"]["n"]) == (1, 2)
    assert found["tpot"]["p50"] == pytest.approx(0.550)
    assert found["chunk_gap"]["min"] == pytest.approx(0.100)
    assert found["chunk_gap"]["max"] == pytest.approx(1.000)


@pytest.mark.parametrize(
    "broken",
    [b'data: {"choices": [{"del\n\n', b"data: oops\n\n", b'data: {"choices": [7]}\n\n'],
    ids=["half", "no-json", "no-chunk"],
)
def test_row_60_a_broken_event_fails_its_stream_and_no_other(broken: bytes) -> None:
    """The failure names the cause; what comes after it on the same connection is fine."""
    good = Answer(script=whole((0, c(1)), (0, c(1)), counts=(3, 2)))
    middle = whole((0, c(1)), (0, broken), (0, c(1)), counts=(3, 2))
    records, summary, server = exchanged(good, Answer(script=middle), good)
    assert [(seen.connection, seen.nth) for seen in server.requests] == [(0, 0), (0, 1), (0, 2)]
    assert [each.error is None for each in records] == [True, False, True]
    failure = records[1].error
    assert failure is not None
    assert (failure.kind, failure.status) == ("bad_stream", 200)
    assert failure.message.startswith("an event that can't be read: ")
    assert summary.metrics["errors"] == {"bad_stream": 1}
    assert summary.failures[0].example == failure.message
    assert summary.metrics["osl"]["n"] == 2
