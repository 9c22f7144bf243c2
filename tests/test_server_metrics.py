"""What servers say of themselves at /metrics: pages, readings in a run, and what comes of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import orjson
import pytest
from command import BUSY_MACHINE, agentreplay
from hypothesis import given
from hypothesis import strategies as st
from records import record
from rich.console import Console
from scripted import Answer, Request, ScriptedServer, c, done, fin, hold, reset, stall, usage

from agentreplay.client.endpoint import Endpoint, api_url, metrics_url
from agentreplay.client.server_metrics import Scrape, figures
from agentreplay.errors import AgentReplayError
from agentreplay.metrics.record import Failure, Record
from agentreplay.metrics.server import Answered, Count, Load, Reading, Server, Spread, server_of
from agentreplay.metrics.summary import Summary, summarize
from agentreplay.metrics.verdict import Limits
from agentreplay.metrics.window import Ending, Window
from agentreplay.outcome import Result, conclude
from agentreplay.plan import Plan
from agentreplay.replay import Progress
from agentreplay.report.text import report
from agentreplay.run import run_plan
from agentreplay.sim.server import embedded
from agentreplay.store import RunWriter, read_run
from agentreplay.trace.load import load

PAGES = Path(__file__).parent / "data" / "metrics"
LAPTOP = Path(__file__).parents[1] / "traces" / "laptop.jsonl"
PATIENT = Limits(loop_late_share=1.0, loop_late_max_s=3600.0, lag_p99_s=3600.0)

S = 1_000_000_000
WINDOW = Window(10 * S, 20 * S)


def read(page: bytes) -> dict[str, Any]:
    """The figures on a page."""
    return anyio.run(figures, page)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (
            "vllm.txt",
            {
                "running": 1,
                "waiting": 0,
                "kv_use": 0.0007782101167315147,
                "prompt_tokens": 2_552_812,
                "generated_tokens": 35_996,
                "looked_up_tokens": 2_572_820,
                "found_tokens": 2_161_408,
                "preemptions": 0,
            },
        ),
        (
            "llamacpp.txt",
            {
                "running": 2,
                "waiting": 2,
                "prompt_tokens": 89_923 + 273_295,
                "generated_tokens": 4_706,
                "looked_up_tokens": 89_923 + 273_295,
                "found_tokens": 273_295,
                "drafted_tokens": 0,
                "accepted_tokens": 0,
            },
        ),
        (
            "sglang.txt",
            {
                "running": 7,
                "waiting": 3,
                "kv_use": 0.28,
                "acceptance": 0.35,
                "prompt_tokens": 128_202,
                "generated_tokens": 7_557,
                "looked_up_tokens": 128_202,
                "found_tokens": 94_000,
                "preemptions": 4,
            },
        ),
        (
            "trtllm.json",
            {
                "running": 1,
                "waiting": 0,
                "kv_use": 0.2,
                "looked_up_tokens": 3_125 * 32,
                "found_tokens": 4 * 32,
            },
        ),
        ("trtllm.txt", {"kv_use": 0.25}),
    ],
)
def test_the_pages_of_four_servers_give_common_figures(name: str, found: dict[str, Any]) -> None:
    """Each server's names are known; what a page doesn't say is left out."""
    assert read((PAGES / name).read_bytes()) == found


def test_engines_are_added_up_and_the_fullest_cache_counts() -> None:
    """Over the labels of a page, requests and tokens are sums, the KV cache is the largest."""
    page = b"""
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.5e+06
vllm:prompt_tokens_total{engine="1",model_name="m"} 2.0
"""
    assert read(page) == {"running": 7, "kv_use": 0.75, "prompt_tokens": 1_500_002}


def test_older_names_are_read_and_never_added_to_newer_ones() -> None:
    """Names of vLLM's first engine count where the newer ones are not on the page."""
    old = b"""
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
vllm:gpu_prefix_cache_queries_total{model_name="m"} 100
vllm:gpu_prefix_cache_hits_total{model_name="m"} 60
"""
    new = b"""
vllm:kv_cache_usage_perc{model_name="m"} 0.25
vllm:prefix_cache_queries_total{model_name="m"} 10
vllm:prefix_cache_hits_total{model_name="m"} 6
"""
    assert read(old) == {"kv_use": 0.5, "looked_up_tokens": 100, "found_tokens": 60}
    assert read(old + new) == {"kv_use": 0.25, "looked_up_tokens": 10, "found_tokens": 6}


def test_what_is_no_number_is_absent() -> None:
    """NaN, infinity and what is below zero are no figures."""
    page = (
        b"vllm:num_requests_running 1\nvllm:num_requests_waiting NaN\n"
        b"vllm:prompt_tokens_total +Inf\nvllm:generation_tokens_total -1\n"
    )
    assert read(page) == {"running": 1}


def test_iterations_that_are_not_kept_say_nothing() -> None:
    """An empty list of TensorRT-LLM's says neither that something runs nor that nothing does."""
    assert read(b"[]") == {}


@pytest.mark.parametrize(
    "page",
    [
        *(b"", b"# TYPE up gauge\nup 1\n", b"<html><h1>Hello</h1></html>", b"\x00\xff\xfe"),
        *(b"vllm:num_requests_running", b'vllm:num_requests_running{engine="0" 1\n', b"[1]", b"[["),
        *(b'vllm:num_requests_running{engine="\xff"} 1\n', b"{}", b"[" * 100_000),
        b'llamacpp:prompt_tokens{,\r={"a":1}#,x',
        b"vllm:prompt_tokens_total 1e308\n" * 2,
        *(b"vllm:prompt_tokens_total 1e30", b'[{"numActiveRequests": -1}]'),
        b'[{"numActiveRequests": 18446744073709551615}]',
    ],
)
def test_what_is_no_page_of_metrics_is_said_to_be_none(page: bytes) -> None:
    """Anything else is one kind of error, with words."""
    with pytest.raises(ValueError, match=r"\w"):
        read(page)


@given(
    st.lists(
        st.sampled_from(
            [
                *(b"vllm:prompt_tokens_total", b"llamacpp:prompt_tokens", b"sglang:token_usage"),
                *(b"{", b"}", b'engine="0"', b'"', b"=", b",", b" ", b"\n", b"1", b"1e400", b"NaN"),
                *(b'vllm:kv_cache_usage_perc{engine="0"} 0.5\n', b"sglang:prompt_tokens_total 9\n"),
                *(b"# TYPE ", b"# {", b"\\", b"\xff", b"[", b"]", b'{"numActiveRequests":1}'),
            ]
        )
        | st.binary(max_size=4),
        max_size=30,
    )
)
def test_whatever_bytes_come_figures_or_one_error_comes_of_them(parts: list[bytes]) -> None:
    """A damaged page gives figures of numbers, or says that it is none; nothing else escapes."""
    try:
        found = read(b"".join(parts))
    except ValueError:
        return
    assert all(0 <= value < 1 << 60 for value in found.values())
    assert Reading(**orjson.loads(orjson.dumps(Reading(0, "url", **found)))).error is None


def test_a_long_page_is_read_like_a_short_one() -> None:
    """Where a page is looked through in pieces, no line is lost at a seam."""
    filler = b'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001"} 0.0\n' * 500
    lines = [b'vllm:prompt_tokens_total{engine="%d"} 1\n' % n for n in range(40)]
    assert read(filler.join(lines)) == {"prompt_tokens": 40}


def with_server(
    answer: Callable[[Request], Answer | None],
    main: Callable[[ScriptedServer], Awaitable[Any]],
) -> Any:
    """Run *main* beside a server that answers as *answer* says."""

    async def together() -> Any:
        async with ScriptedServer(answer) as server:
            return await main(server)

    return anyio.run(together)


VLLM = (PAGES / "vllm.txt").read_bytes()
NONE = b'{"detail": "Not Found"}'


def page_of(body: bytes, status: int = 200) -> Answer:
    return Answer(status=status, headers={"content-type": "text/plain"}, body=body)


async def scraped(server: ScriptedServer, times: int = 1, **endpoint: Any) -> list[Reading]:
    """What readings of a server's metrics give."""
    there = Endpoint((api_url(server.url),), **endpoint)
    kept: list[Reading] = []
    async with Scrape(there, kept.append) as scrape, anyio.create_task_group() as group:
        for _ in range(times):
            await scrape.read()
        group.start_soon(scrape.run, 0)
        while len(kept) < min(times, 1):
            await anyio.sleep(0)
        group.cancel_scope.cancel()
    return kept


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (page_of(NONE, 404), "HTTP 404: Not Found"),
        (page_of(b"", 503), "HTTP 503: (no body)"),
        (page_of(b"bad key sk-secret", 401), "HTTP 401: bad key ***"),
        (Answer(302, {"location": "/elsewhere"}, body=b""), "HTTP 302: (no body)"),
        (page_of(b"<html>Hello</html>"), "no figure of a known server on the page"),
        (page_of(b'vllm:prompt_tokens_total{engine="0" 1'), "a line that can't be read"),
        (page_of(b"x" * (5 << 20)), "a page of over 4 MB"),
        (Answer(script=[(0.0, stall())]), "no whole answer within 1 s"),
        (Answer(script=[(0.0, reset())]), "connection lost"),
        (Answer(status=None, body=b"SSH-2.0-x\r\n\r\n"), "not the status line"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_page_that_can_not_be_read_is_a_reading_with_its_reason(
    answer: Answer, reason: str
) -> None:
    """Nothing that a server does at /metrics raises; what it was is said in one line."""
    found = with_server(lambda _: answer, partial(scraped, api_key="sk-secret"))
    assert len(found) == 1
    assert found[0].error is not None
    assert reason in found[0].error
    assert found[0] == Reading(found[0].at_ns, found[0].url, error=found[0].error)


def test_a_server_that_is_not_there_is_a_reading_with_its_reason() -> None:
    """A refused connection is no exception either."""

    async def main() -> list[Reading]:
        async with ScriptedServer(lambda _: None) as server:
            pass
        return await scraped(server)

    (found,) = anyio.run(main)
    assert found.error is not None
    assert "Connection refused" in found.error


@pytest.mark.parametrize(
    ("status", "asked"), [(404, 1), (401, 1), (501, 1), (429, 3), (500, 3), (503, 3)]
)
def test_a_server_without_metrics_is_not_asked_again(status: int, asked: int) -> None:
    """Whoever answers at first that there is nothing is left alone; other trouble may pass."""

    async def main(server: ScriptedServer) -> int:
        await scraped(server, 3)
        return len(server.requests)

    assert with_server(lambda _: page_of(NONE, status), main) == asked


def test_a_server_is_asked_again_when_it_once_had_metrics() -> None:
    """A page that goes missing for a while is read again later."""
    answers = [page_of(VLLM), page_of(NONE, 404), page_of(VLLM)]
    found = with_server(lambda _: answers.pop(0), partial(scraped, times=3))
    assert [each.error for each in found] == [None, "HTTP 404: Not Found", None]


def test_nothing_is_asked_while_an_answer_is_awaited() -> None:
    """A reading whose time has come is left out where the one before still waits."""
    held = asyncio.Event()
    late = Answer(script=[(0.0, hold(held))])

    async def main(server: ScriptedServer) -> int:
        async with (
            Scrape(Endpoint((api_url(server.url),)), lambda _: None) as scrape,
            anyio.create_task_group() as group,
        ):
            group.start_soon(scrape.read)
            while not server.requests:
                await anyio.sleep(0)
            await scrape.read()
            asked = len(server.requests)
            held.set()
        return asked

    assert with_server(lambda _: late, main) == 1


@pytest.mark.parametrize(("host", "told"), [("127.0.0.1", True), ("localhost", False)])
def test_keys_go_to_the_hosts_of_the_endpoint_only(host: str, told: bool) -> None:
    """Metrics at another host are asked for without the key and the headers of the endpoint."""

    async def main(server: ScriptedServer) -> dict[str, str]:
        there = server.url.replace("127.0.0.1", host)
        await scraped(
            server,
            metrics_urls=(metrics_url(there),),
            api_key="sk-secret",
            headers=(("x-tenant", "mine"),),
        )
        return server.requests[0].headers

    headers = with_server(lambda _: page_of(VLLM), main)
    assert ("authorization" in headers, "x-tenant" in headers) == (told, told)


def test_secrets_in_an_address_of_metrics_are_not_kept() -> None:
    """Neither the address nor a reason shows the key in it."""
    answer = page_of(b"no such key: sk-secret", 401)

    async def main(server: ScriptedServer) -> list[Reading]:
        return await scraped(server, metrics_urls=(f"{server.url}/metrics?key=sk-secret",))

    (found,) = with_server(lambda _: answer, main)
    assert found.url.endswith("/metrics?key=***")
    assert found.error == "HTTP 401: no such key: ***"


@pytest.mark.parametrize(
    ("url", "full"),
    [
        ("host:9090", "http://host:9090/metrics"),
        ("https://host/", "https://host/metrics"),
        ("http://host/prometheus/metrics", "http://host/prometheus/metrics"),
        ("http://host/metrics?rank=1", "http://host/metrics?rank=1"),
    ],
)
def test_an_address_of_metrics_is_a_host_or_a_page(url: str, full: str) -> None:
    """What names a page is taken as it is; a host has its metrics at /metrics."""
    assert metrics_url(url) == full


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:port"])
def test_what_is_no_address_of_metrics_is_refused(url: str) -> None:
    """With how it is written."""
    with pytest.raises(AgentReplayError, match="is no address: write it as http"):
        metrics_url(url)


@pytest.mark.alone  # a page has a second to come
def test_the_latest_readings_of_all_addresses_are_one_load() -> None:
    """Requests of several addresses are added up; where one can't be read, nobody can tell."""
    pages = {
        "/one": page_of(b"vllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.5\n"),
        "/two": page_of(b"vllm:num_requests_waiting 3\nvllm:kv_cache_usage_perc 0.25\n"),
        "/gone": page_of(NONE, 404),
        "/broken": page_of(NONE, 500),
    }

    async def main(server: ScriptedServer) -> list[Any]:
        found: list[Any] = []
        for names in (("one", "two"), ("one", "gone"), ("one", "broken")):
            there = Endpoint(
                (api_url(server.url),),
                metrics_urls=tuple(f"{server.url}/{name}" for name in names),
            )
            async with Scrape(there, lambda _: None) as scrape:
                assert scrape.latest is None
                await scrape.read()
                load = scrape.latest
                found.append((load.running, load.waiting, load.kv_use) if load else None)
        return found

    loads = with_server(lambda request: pages[request.path], main)
    assert loads == [(None, 5, 0.5), (None, 2, 0.5), None]


def test_settling_waits_until_the_counts_stand_still() -> None:
    """After the run it is read on while something runs or counts still change."""
    pages = [(0, 5), (1, 5), (1, 7), (0, 8), (0, 9), (0, 9), (0, 10)]

    def answer(_: Request) -> Answer:
        running, tokens = pages.pop(0)
        body = f"vllm:num_requests_running {running}\nvllm:generation_tokens_total {tokens}\n"
        return page_of(body.encode())

    async def main(server: ScriptedServer) -> None:
        async with Scrape(Endpoint((api_url(server.url),)), lambda _: None) as scrape:
            await scrape.read()
            await scrape.settle()

    with_server(answer, main)
    assert pages == [(0, 10)]


def reading(at_s: float, url: str = "one", **figures: Any) -> Reading:
    return Reading(round(at_s * S), url, **figures)


def served(*readings: Reading, answered: Answered | None = None, done_s: float = 22) -> Server:
    """What comes of readings of a run whose window is from 10 s to 20 s."""
    found = server_of(readings, WINDOW, round(done_s * S), answered or Answered())
    assert found is not None
    return found


def test_without_a_reading_there_is_no_section() -> None:
    """A run of an older version, or one that was never begun."""
    assert server_of([], WINDOW, 0, Answered()) is None


def test_loads_are_of_the_readings_in_the_window() -> None:
    """Mean and maximum over its readings, whose requests are added up over the addresses."""
    rows = [
        reading(at, url, running=at * factor, waiting=0, kv_use=at * factor / 100)
        for at in (-1, 9, 12, 14, 20)
        for url, factor in (("one", 1), ("two", 2))
    ]
    found = served(*rows)
    assert found.running == Spread(mean=39.0, max=42)
    assert found.waiting == Spread(mean=0.0, max=0)
    assert found.kv_use is not None
    assert found.kv_use.max == pytest.approx(0.28)
    assert found.kv_use.mean == pytest.approx(0.26)


def test_a_moment_at_which_an_address_was_silent_is_no_load() -> None:
    """Half of the servers would look like half the load."""
    rows = [
        *(reading(11, "one", running=5), reading(11, "two", running=5)),
        *(reading(12, "one", running=5), reading(12, "two", error="no whole answer within 1 s")),
        *(reading(13, "three", error="HTTP 404: Not Found"),),
    ]
    assert served(*rows).running == Spread(mean=10.0, max=10)


def test_counts_of_the_window_are_between_the_readings_around_it() -> None:
    """From the last one before it opens to the first one after it has closed."""
    rows = [
        reading(at, looked_up_tokens=looked, found_tokens=found, preemptions=preempted)
        for at, looked, found, preempted in (
            (-1, 0, 0, 0),
            (9, 100, 10, 1),
            (15, 200, 20, 2),
            (21, 300, 90, 4),
            (23, 900, 90, 9),
        )
    ]
    found = served(*rows)
    assert (found.hit_share, found.preemptions) == (80 / 200, 3)


def test_tokens_are_compared_over_the_whole_run() -> None:
    """From the last reading before the first request to the last one of all, over all addresses."""
    rows = [
        reading(at, url, prompt_tokens=tokens, generated_tokens=tokens // 10, found_tokens=None)
        for at, url, tokens in (
            *((-2, "one", 500), (-2, "two", 0), (-1, "one", 1000), (-1, "two", 70)),
            *((22, "one", 1500), (22, "two", 90), (23, "one", 1600), (23, "two", 90)),
        )
    ]
    answered = Answered(prompt_tokens=610, open_prompt_tokens=20, generated_tokens=62)
    found = served(*rows, answered=answered)
    assert found.prompt == Count(server=620, ours=610, open=20, rounding=0)
    assert found.generated == Count(server=62, ours=62, open=0, rounding=0)
    assert found.cached.server is None
    assert found.unchecked is None


def test_a_counter_that_comes_later_began_at_nothing() -> None:
    """Servers show a counter from its first step on."""
    rows = [reading(-1, prompt_tokens=9), reading(12), reading(23, prompt_tokens=9, found_tokens=5)]
    assert served(*rows).cached.server == 5


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([reading(-1, error="HTTP 404: Not Found")], "no reading succeeded"),
        ([reading(1, prompt_tokens=1), reading(23, prompt_tokens=2)], "before the first request"),
        ([reading(-1, prompt_tokens=1), reading(21, prompt_tokens=2)], "after the last answer"),
        (
            [reading(-1, prompt_tokens=5), reading(9, prompt_tokens=1), reading(23)],
            "its counts went back",
        ),
        (
            [reading(-1, prompt_tokens=1), reading(23, prompt_tokens=2), reading(9, "two")],
            "before the first request",
        ),
    ],
)
def test_counts_that_are_not_whole_are_not_compared(rows: list[Reading], reason: str) -> None:
    """Where a part of the run is missing, nothing is said, and why not."""
    found = served(*rows)
    assert reason in (found.unchecked or "")
    assert found.prompt.server is found.generated.server is None


def test_answers_are_counted_as_far_as_they_came() -> None:
    """Of requests that were cut or failed only the server knows the rest; refusals don't count."""
    cut, lost = Failure("cancelled", None, "cut"), Failure("truncated", 200, "cut short")
    rows = [
        record([10, 20], isl=100, isl_served=101, cached=64),
        record([10, 20], isl=100, isl_served=None, osl_recorded=30, error=cut),
        record([], isl=1000, isl_served=None, osl_recorded=7, error=cut),
        record([10], isl=50, isl_served=None, osl_recorded=4, error=lost, warmup=True),
        record([], isl=10**6, isl_served=None, osl_recorded=9, error=Failure("http_5xx", 500, "-")),
        record([], isl=10**6, isl_served=None, osl_recorded=9, error=Failure("connect", None, "-")),
    ]
    found = Answered()
    for each in rows:
        found.add(each)
    assert found == Answered(
        prompt_tokens=101 + 100 + 50,
        open_prompt_tokens=1000,
        generated_tokens=2 + 2 + 1,
        open_generated_tokens=28 + 7 + 3,
        cached_tokens=64,
        open_cached_tokens=100 + 1000 + 50,
        estimated=0,
    )


def test_cached_tokens_that_no_answer_states_are_unknown() -> None:
    """Not zero."""
    found = Answered()
    found.add(record([10]))
    assert found.cached_tokens is None


ENDING = Ending("work", 20 * S, 22 * S, 10 * S)


def summary_of(*readings: Reading, rows: list[Record] | None = None) -> Summary:
    """A run of one answer of 1,000 prompt tokens and 100 others."""
    answer = record([11_000], [100], sent_ms=10_500, isl=1000, isl_served=1000)
    return summarize(rows or [answer], Plan(users=1), ENDING, readings=readings)


def warnings_of(*readings: Reading, rows: list[Record] | None = None) -> dict[str, str]:
    return dict(summary_of(*readings, rows=rows).verdict.warnings)


def before_and_after(**after: Any) -> tuple[Reading, Reading]:
    """A reading of zeros before the run, and one after it."""
    before: dict[str, Any] = {**after, **dict.fromkeys(after, 0)}
    return reading(-1, **before), reading(23, **after)


@pytest.mark.parametrize(
    ("prompt", "generated", "said"),
    [
        (1000, 100, None),
        (1010, 101, None),
        (1011, 100, "counted 1,011 input tokens, its answers to this run 1,000: someone else"),
        (1000, 102, "counted 102 output tokens, its answers to this run 100: someone else used it"),
        (500, 50, "counted 500 input tokens, its answers to this run 1,000: its metrics are not"),
    ],
)
def test_counts_that_answers_do_not_account_for_are_a_warning(
    prompt: int, generated: int, said: str | None
) -> None:
    """Over 1 % more is someone else's load, over 1 % less are metrics of something else."""
    found = warnings_of(*before_and_after(prompt_tokens=prompt, generated_tokens=generated))
    assert (said is None) == ("server_counts_differ" not in found)
    assert (said or "") in found.get("server_counts_differ", "")


def test_what_cut_requests_may_have_cost_is_no_ones_load() -> None:
    """A server that worked on at what was cut has counted more, and nobody else used it: ours is a
    span."""
    cut = record([], sent_ms=11_000, isl=500, isl_served=None, osl_recorded=50)
    cut = replace(cut, error=Failure("cancelled", None, "cut"))
    rows = [record([11_000], [100], sent_ms=10_500, isl=1000, isl_served=1000), cut]
    fits = before_and_after(prompt_tokens=1500, generated_tokens=150)
    too_much = before_and_after(prompt_tokens=1512, generated_tokens=150)
    assert "server_counts_differ" not in warnings_of(*fits, rows=rows)
    assert "server_counts_differ" in warnings_of(*too_much, rows=rows)


def test_counters_of_six_digits_are_not_taken_at_their_word() -> None:
    """llama.cpp writes 123,456,789 as 1.23457e+08: half of the last digit, twice, is no load."""
    ends = (reading(-1, prompt_tokens=123_456_000), reading(23, prompt_tokens=123_458_000))
    assert "server_counts_differ" not in warnings_of(*ends)


def test_without_usage_counts_are_not_judged() -> None:
    """Ours are estimates then."""
    rows = [record([11_000], [9], sent_ms=10_500, isl=1000, isl_served=None)]
    found = warnings_of(*before_and_after(prompt_tokens=2000, generated_tokens=100), rows=rows)
    assert "server_counts_differ" not in found


SPECULATIVE = b"""\
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 40.0
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 200.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 31.0
"""


def test_row_61_drafts_on_words_drawn_at_random_are_a_warning() -> None:
    """A server that decodes speculatively is as fast as its drafts are good, and here they aren't
    those of real text."""
    drafted = read(SPECULATIVE)
    found = summary_of(reading(-1), reading(12, **drafted), reading(23, **drafted))
    assert found.server is not None
    assert found.server.draft_acceptance == 31 / 200
    warning = dict(found.verdict.warnings)["speculative_on_synthetic_text"]
    assert "drafted 200 tokens by speculative decoding and accepted 15.5% of them" in warning
    assert found.verdict.valid


def test_a_share_of_accepted_drafts_is_a_warning_without_counts() -> None:
    """SGLang says how many drafts were accepted lately, not how many there were."""
    lately = read((PAGES / "sglang.txt").read_bytes())
    found = summary_of(reading(-1), reading(12, **lately), reading(23, **lately))
    assert found.server is not None
    assert (found.server.drafted_tokens, found.server.draft_acceptance) == (None, 0.35)
    assert "speculative_on_synthetic_text" in dict(found.verdict.warnings)


def test_a_server_that_could_draft_and_does_not_is_no_warning() -> None:
    """llama.cpp has these counters always."""
    page = read((PAGES / "llamacpp.txt").read_bytes())
    assert warnings_of(reading(-1, **page), reading(23, **page)).keys() <= {"server_counts_differ"}


READINGS = [reading(-1, running=1, kv_use=0.5), reading(1, "two", error="HTTP 500: -")]


def test_readings_come_back_from_the_run_directory(tmp_path: Path) -> None:
    """What was kept is read back as it was, each line as it came; one cut off is left out."""
    with RunWriter(
        tmp_path / "run", {"plan": asdict(Plan()), "limits": asdict(Limits())}
    ) as writer:
        for each in READINGS:
            writer.append_reading(each)
        assert list(read_run(tmp_path / "run").server()) == READINGS  # also if it is killed now
    with (tmp_path / "run" / "server.jsonl").open("ab") as file:
        file.write(b'{"at_ns":5,"url":"on')
    assert list(read_run(tmp_path / "run").server()) == READINGS


def test_a_run_directory_without_readings_has_none(tmp_path: Path) -> None:
    """As those of older versions."""
    with RunWriter(tmp_path / "run", {"plan": asdict(Plan()), "limits": asdict(Limits())}):
        pass
    (tmp_path / "run" / "server.jsonl").unlink()
    assert read_run(tmp_path / "run").summary().server is None


def chat(request: Request) -> Answer | None:
    """An answer of as many tokens as were asked for, to any request but one for metrics."""
    if request.method == "GET":
        return None
    osl = int(request.body.partition(b'"max_tokens":')[2].split(b",")[0].rstrip(b"}"))
    tokens = [(0.0, c(1)) for _ in range(osl)]
    return Answer(script=[*tokens, (0.0, fin("length")), (0.0, usage(1, osl)), (0.0, done())])


def ran(
    tmp_path: Path,
    endpoint: Endpoint,
    plan: Plan,
    begun: anyio.Event | None = None,
) -> Awaitable[Result]:
    """A run over the laptop sessions, with answers of at most nine tokens; *begun* is set then."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text(re.sub(r'"osl":(\d)\d*', r'"osl":\1', LAPTOP.read_text()))

    class Begun:
        def take(self, record: Record) -> None:
            pass

        def show(self, now_ns: int, progress: Progress, server: Load | None) -> None:
            if begun is not None:
                begun.set()

    return run_plan(
        load(trace),
        plan,
        tmp_path / "run",
        endpoint=endpoint,
        limits=PATIENT,
        show=lambda _: nullcontext(Begun()),
    )


def printed(value: dict[str, Any]) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(report(value))
    return captured.get()


def test_metrics_that_never_come_cost_their_section_only(tmp_path: Path) -> None:
    """A server whose page hangs is measured like any other, and the report says what is missing."""

    def answer(request: Request) -> Answer | None:
        if request.path == "/metrics":
            return Answer(script=[(0.0, stall())])
        return chat(request)

    async def main(server: ScriptedServer) -> Result:
        there = Endpoint((api_url(server.url),), model="m", calibrate=False)
        return await ran(tmp_path, there, Plan(users=2, requests=6, timing="none"))

    result = with_server(answer, main)
    requests = result.value["metrics"]["requests"]
    assert (requests["succeeded"], requests["failed"]) == (6, 0)
    assert result.value["server"]["unchecked"] == "no reading succeeded"
    assert result.value["server"]["running"] is None
    text = printed(result.value)
    assert "/metrics gave no metrics of the server 1 of 1 times: no whole answer within 1 s" in text
    assert "Server counts" not in text


def test_several_pages_of_metrics_are_added_up(tmp_path: Path) -> None:
    """Each address is kept apart in server.jsonl, and the run's counts are of both."""
    asked = {"/one": 0, "/two": 0}

    def answer(request: Request) -> Answer | None:
        if request.path not in asked:
            return chat(request)
        asked[request.path] += 1
        tokens = 100 if asked[request.path] == 1 else {"/one": 107, "/two": 103}[request.path]
        return page_of(f"vllm:generation_tokens_total {tokens}\n".encode())

    async def main(server: ScriptedServer) -> Result:
        pages = tuple(server.url + path for path in asked)
        there = Endpoint((api_url(server.url),), model="m", calibrate=False, metrics_urls=pages)
        return await ran(tmp_path, there, Plan(users=1, requests=1, timing="none"))

    result = with_server(answer, main)
    generated = result.value["server"]["generated"]
    assert generated["server"] == 10
    assert f"10  output (ours {generated['ours']})" in printed(result.value)
    urls = {each.url.rpartition("/")[2] for each in read_run(tmp_path / "run").server()}
    assert urls == {"one", "two"}
    assert [url.rpartition("/")[2] for url in result.value["endpoint"]["metrics_urls"]] == [
        "one",
        "two",
    ]


def test_the_report_shows_what_cut_calls_leave_open(tmp_path: Path) -> None:
    """Where the server may have counted more for calls that were cut, ours is a span."""

    async def main(server: ScriptedServer) -> Result:
        there = Endpoint((api_url(server.url),), model="m", calibrate=False)
        return await ran(tmp_path, there, Plan(users=1, requests=1, timing="none"))

    value = with_server(lambda r: page_of(VLLM) if r.path == "/metrics" else chat(r), main).value
    value["server"]["prompt"] = asdict(Count(server=1200, ours=1000, open=500, rounding=0))
    value["server"]["generated"] = asdict(Count(server=7, ours=7, open=500, rounding=0))
    assert "1,200  input (ours 1,000 to 1,500); 7 output, as ours; 0 cached" in printed(value)


def test_the_load_of_others_is_noticed(tmp_path: Path) -> None:
    """A prompt that someone else sends meanwhile is more than the server answered for here."""
    begun = anyio.Event()

    async def main() -> Result:
        async with embedded() as url, httpx.AsyncClient(base_url=url) as other:

            async def someone_else() -> None:
                await begun.wait()
                message = {"role": "user", "content": "word " * 100_000}
                body = {"model": "m", "messages": [message], "max_tokens": 1}
                answer = await other.post("/v1/chat/completions", json=body)
                assert answer.status_code == 200

            async with anyio.create_task_group() as group:
                group.start_soon(someone_else)
                result = await ran(
                    tmp_path,
                    Endpoint((api_url(url),)),
                    Plan(users=1, duration_s=0.6, timing="none", drain_s=10),
                    begun,
                )
        return result

    value = anyio.run(main).value
    prompt = value["server"]["prompt"]
    assert prompt["server"] == prompt["ours"] + 100_008
    (warning,) = (each for each in value["verdict"]["warnings"])
    assert warning["id"] == "server_counts_differ"
    assert "someone else used it" in warning["text"]


def test_the_simulated_servers_counts_are_ours_to_the_token(tmp_path: Path) -> None:
    """On an idle server input, output and cached tokens of a run are the sums of its answers, and
    the report shows both; without a reading after the run, as when it was killed, neither."""
    plan = Plan(users=3, requests=24, duration_s=None, timing="none", warmup_calls=1)

    async def main() -> Result:
        async with embedded() as url:
            return await ran(tmp_path, Endpoint((api_url(url),)), plan)

    value = anyio.run(main).value
    server = value["server"]
    assert server["unchecked"] is None
    for name in ("prompt", "generated", "cached"):
        assert server[name]["server"] == server[name]["ours"] > 0
        assert server[name]["open"] == 0
    assert f"{server['prompt']['server']:,}  input, as ours; " in printed(value)
    kept = tmp_path / "run" / "server.jsonl"
    kept.write_bytes(kept.read_bytes().splitlines(keepends=True)[0])
    text = printed(conclude(tmp_path / "run").value)
    assert "What the server counted is not compared: no reading after the last answer." in text
    assert "Server counts" not in text


def test_pages_of_metrics_need_an_endpoint(tmp_path: Path) -> None:
    """The simulated server has its own."""
    ended = agentreplay("run", LAPTOP, "--metrics-url", "host:9090", "--out", tmp_path / "run")
    assert ended.returncode == 2
    assert "--metrics-url needs --url: the simulated server has its own" in ended.stderr


def test_the_option_names_pages(tmp_path: Path) -> None:
    """Each --metrics-url is read in place of /metrics of the endpoint, and nothing else is."""

    def answer(request: Request) -> Answer | None:
        return page_of(VLLM) if request.path in ("/one", "/two") else chat(request)

    async def main(server: ScriptedServer) -> set[str]:
        ended = await anyio.to_thread.run_sync(
            partial(
                agentreplay,
                *("run", LAPTOP, "--url", server.url, "--requests", "1", "--users", "1"),
                *("--metrics-url", f"{server.url}/one", "--metrics-url", f"{server.url}/two"),
                *("--no-calibrate", "--out", tmp_path / "run", *BUSY_MACHINE),
            )
        )
        assert "1 ok" in ended.stdout, ended.stderr
        return {request.path for request in server.requests if request.method == "GET"}

    assert with_server(answer, main) == {"/v1/models", "/one", "/two"}
