"""The pages of a trace set and of a run's server in a real browser, and that numbers are equal."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import orjson
import pytest
from browsing import SHOTS, embedded, on_a_phone, opened, scrolled
from command import agentreplay
from made_runs import sessions, write_run
from playwright.sync_api import Browser
from virtually import chain

from agentreplay.metrics.server import Reading
from agentreplay.outcome import Reports, conclude
from agentreplay.report.html.page import visible
from agentreplay.trace.formats import native
from agentreplay.trace.model import Session

pytestmark = pytest.mark.alone

AGENTS = Path(__file__).parents[1] / "traces" / "agents.jsonl"
MEMORY = ("--kv-bytes-per-token", "13.8kB", "--partitions", "8", "--users", "16")
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\u202e"


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The page of a set, and what `inspect --json` says of it."""
    page = tmp_path_factory.mktemp("traces") / "traces.html"
    ended = agentreplay("inspect", AGENTS, *MEMORY, "--json", "--html", page)
    return page, orjson.loads(ended.stdout)


def test_the_page_of_a_trace_set_has_the_numbers_of_inspect(
    browser: Browser, traces: tuple[Path, dict[str, Any]]
) -> None:
    """Each number that names its figure is that of --json; tables count all calls; it opens from
    disk without a request, in light, dark and at the 360 pixels of a phone."""
    path, value = traces
    page, said = opened(browser, path)
    scrolled(page)
    page.screenshot(path=SHOTS / "inspect.png", full_page=True)
    shown = page.locator("[data-metric]").evaluate_all(
        "all => all.map(each => [each.dataset.metric, each.dataset.value, each.textContent])"
    )
    for metric, exact, text in shown:
        number: Any = value
        for part in metric.split("."):
            number = number[part]
        assert orjson.loads(exact) == number, metric
        assert text, metric
    names = {metric for metric, _, _ in shown}
    assert names >= {"calls", "prefix_reuse", "input.p50", "gap_s.max", "session_s.mean"}
    assert names >= {"memory.working_set_p95.bytes", "memory.mean_conversation.partition_bytes"}
    tables = embedded(page)["tables"]
    for name in ("input", "output"):
        assert sum(row[-1] for row in tables[name]["rows"]) == value["calls"]
    for name in ("calls", "session-seconds", "conversations"):
        assert sum(row[-1] for row in tables[name]["rows"]) == value["sessions"]
    assert sum(row[-1] for row in tables["reuse-position"]["rows"]) == value["calls"]
    assert dict(tables["models"]["rows"]) == value["models"]
    assert sum(row[-1] for row in tables["working-set"]["rows"]) == pytest.approx(1)
    page.emulate_media(color_scheme="dark")
    page.screenshot(path=SHOTS / "inspect-dark.png", full_page=True)
    assert on_a_phone(page) == 360
    page.screenshot(path=SHOTS / "inspect-phone.png", full_page=True)
    assert said == []
    page.context.close()


def test_long_sessions_can_be_sorted_and_followed(
    browser: Browser, traces: tuple[Path, dict[str, Any]]
) -> None:
    """They begin with the one of the most calls; a click follows it on the timeline; the CSV file
    of its calls has them all."""
    path, value = traces
    page, said = opened(browser, path)
    rows = page.locator(".plays tbody tr")
    calls = [int(each) for each in rows.locator("td:nth-child(2)").all_inner_texts()]
    assert calls == sorted(calls, reverse=True)
    assert calls[0] == value["calls_per_session"]["max"]
    rows.first.locator("td").first.click()
    assert page.locator(".visit tbody tr").count() == calls[0]
    assert page.locator(".visit h4").inner_text() == rows.first.locator("td").first.inner_text()
    page.screenshot(path=SHOTS / "inspect-timeline.png")
    page.locator(".plays").get_by_role("button", name="prefix reuse").click()
    shares = [float(each[:-2]) for each in rows.locator("td:last-child").all_inner_texts()]
    assert shares == sorted(shares, reverse=True)
    with page.expect_download() as saved:
        page.locator("button.csv[data-table='calls-drawn']").click()
    written = list(csv.DictReader(saved.value.path().read_text().splitlines()))
    assert len(written) == sum(calls[:8])
    with page.expect_download() as saved:
        page.locator("button.csv[data-table='sessions']").click()
    written = list(csv.DictReader(saved.value.path().read_text().splitlines()))
    assert sum(int(row["calls"]) for row in written) == value["calls"]
    assert said == []
    page.context.close()


def test_words_of_traces_are_shown_as_they_are(browser: Browser, tmp_path: Path) -> None:
    """Markup in names of sessions and models is text; a file that can't be read is named."""
    made = chain(0, 3, gap_s=1.0)
    calls = tuple(
        each._replace(model=HOSTILE, agent=HOSTILE * (n == 1)) for n, each in enumerate(made.calls)
    )
    session = Session(HOSTILE, None, calls, made.block_size, "")
    (tmp_path / "one.jsonl").write_bytes(native.line(session))
    (tmp_path / "two.jsonl").write_bytes(native.line(made) + b'{"agentreplay": 1}\n')
    path = tmp_path / "page.html"
    agentreplay("inspect", tmp_path, "--html", path)
    page, said = opened(browser, path)
    scrolled(page)
    words = visible(HOSTILE)
    assert words in page.locator(".plays td").all_inner_texts()
    assert words in page.locator("#models td").all_text_contents()
    assert "two.jsonl:2" in page.locator("#files").inner_html()
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img").count() == 0
    assert said == []
    page.context.close()


def test_the_page_of_a_run_has_its_server(browser: Browser, tmp_path: Path) -> None:
    """Also of one that was cut off: lines with gaps, on the x axis of the token rates."""
    readings = [
        Reading(
            *(n * 1_000_000_000 - 500_000_000, url),
            **(
                {"error": "no answer within 1 s"}
                if n in (12, 13)
                else {
                    "running": 3 + n % 5,
                    "waiting": n % 3,
                    "kv_use": min(1.0, n / 60),
                    "prompt_tokens": 5_000 * n,
                    "generated_tokens": 100 * n,
                    "looked_up_tokens": 5_000 * n,
                    "found_tokens": 4_000 * n,
                    "preemptions": n // 20,
                }
            ),
        )
        for n in range(60)
        for url in ("http://one/metrics", "http://two/metrics")
    ]
    run = write_run(tmp_path / "run", sessions(4, 120), ended=False, readings=readings)
    path = tmp_path / "run.html"
    conclude(run, reports=Reports(html=path))
    page, said = opened(browser, path)
    scrolled(page)
    page.locator("#server").screenshot(path=SHOTS / "server.png")
    ranges = page.evaluate(
        "['rates', 'server', 'server-addresses'].map((name) => "
        "document.querySelector(`[data-figure=${name}]`)._fullLayout.xaxis.range)"
    )
    assert ranges[0] == ranges[1] == ranges[2]
    rows = embedded(page)["tables"]["server"]["rows"]
    assert len(rows) == 60
    assert [row[1] for row in rows[11:15]] == [2 * (3 + 11 % 5), None, None, 2 * (3 + 14 % 5)]
    assert "no answer within 1 s" in rows[12][-1]
    assert "no answer within 1 s" in page.locator("#server").inner_html()
    assert on_a_phone(page) == 360
    assert said == []
    page.context.close()
