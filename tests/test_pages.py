"""Pages in a real browser: they open by themselves, are drawn, answer, and show what is there.

Screenshots stay in build/screenshots, to be looked at.
"""

from __future__ import annotations

import csv
import io
import re
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from browsing import SHOTS, opened, scrolled
from command import agentreplay
from made_runs import sessions, write_run
from playwright.sync_api import Browser, Locator, Page
from records import record
from virtually import chain

from agentreplay.metrics.record import Failure
from agentreplay.outcome import Reports, conclude
from agentreplay.report.html.page import visible
from agentreplay.trace.formats import native

HOSTILE = (
    "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"
    '<a href="javascript:alert(1)">a</a>"\'&lt;b&amp; \x1b[31mred\u202eright -->'
)

pytestmark = pytest.mark.alone

NAMES = ("run", "nothing", "hostile", "curve", "sweep", "compare")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind, made as users make them."""
    folder = tmp_path_factory.mktemp("pages")
    found = {name: folder / f"{name}.html" for name in (*NAMES, "failing", "going")}
    run = write_run(folder / "run", sessions(8, 400), simulated="demo")
    found["run"] = run / "report.html"
    agentreplay("report", run, "--csv", folder / "csv")
    down = Failure("connect", None, "no connection: refused")
    failing = [record([], sent_ms=10 * n, lane=n % 8, error=down) for n in range(30)]
    words = Failure("http_5xx", 500, HOSTILE)
    hostile = [
        replace(each, request=replace(each.request, session=HOSTILE, agent=HOSTILE))
        for each in [
            record([100, 200, 300], lane=0, call=0, calls=2),
            record([], sent_ms=400, lane=0, call=1, calls=2, error=words, done_ms=900),
            record([100, 150, 220], lane=1, call=0, calls=1),
        ]
    ]
    for name, rows, ended, said in (
        ("nothing", [], True, "m"),
        ("failing", failing, True, "m"),
        ("going", list(sessions(4, 60)), False, "m"),
        ("hostile", hostile, True, HOSTILE),
    ):
        made = write_run(folder / name, rows, ended=ended, words=said)
        conclude(made, reports=Reports(html=found[name]))
    other = write_run(folder / "other", sessions(8, 400, seed=2))
    agentreplay("compare", run, other, "--anyway", "--html", found["compare"])
    points = [f"new={run}", f"{HOSTILE.replace('=', '')}=30,90000", "old=20,80000", "old=60,30000"]
    axes = ("--y", "total_token_rate_run", "--at", "interactivity.p90=35")
    agentreplay("curve", *points, *axes, "--html", found["curve"])
    trace = folder / "trace.jsonl"
    trace.write_bytes(b"".join(native.line(chain(n, 2, gap_s=0.01)) for n in range(8)))
    users = ("--users", "1,2,4", "--sessions", "8", "--max-gap", "0s", "--out", folder / "sweep")
    agentreplay("sweep", trace, *users, "--at", "interactivity.p90=95", "--html", found["sweep"])
    return found


@pytest.fixture(scope="module")
def shared(browser: Browser, pages: dict[str, Path]) -> tuple[Page, list[str]]:
    """The page of a run, opened once."""
    return opened(browser, pages["run"])


@pytest.fixture
def page(shared: tuple[Page, list[str]]) -> Iterator[Page]:
    """The same with nothing followed and the whole run in sight; nothing is said on its console."""
    found, said = shared
    found.locator(".view").focus()
    found.keyboard.press("Escape")
    found.keyboard.press("Home")
    yield found
    assert said == []


def colours(browser: Browser, shot: bytes, boxes: list[Any]) -> list[int]:
    """How many colours a screenshot has in each of some boxes."""
    page = browser.new_page()
    found: list[int] = page.evaluate(
        """async ([png, boxes]) => {
            const image = new Image();
            image.src = 'data:image/png;base64,' + png;
            await image.decode();
            const canvas = new OffscreenCanvas(image.width, image.height);
            const context = canvas.getContext('2d');
            context.drawImage(image, 0, 0);
            return boxes.map(({ x, y, width, height }) => {
                const { data } = context.getImageData(x, y, width, height);
                return new Set(new Uint32Array(data.buffer)).size;
            });
        }""",
        [b64encode(shot).decode(), boxes],
    )
    page.close()
    return found


def pointed(page: Page, down: int = 36) -> str:
    """What the timeline says of the first call that the mouse finds on a row."""
    page.locator(".view").scroll_into_view_if_needed()
    box = page.locator(".view canvas").bounding_box()
    assert box is not None
    for right in range(70, int(box["width"]), 4):
        page.mouse.move(box["x"] + right, box["y"] + down)
        if page.locator(".tip").is_visible():
            return page.locator(".tip").inner_text()
    raise AssertionError("no call under the mouse")


def extent(page: Page) -> float:
    """How many seconds the timeline shows."""
    page.wait_for_function("new Promise(requestAnimationFrame)")
    drawn = page.locator(".view canvas")
    return float(drawn.get_attribute("data-to") or 0) - float(drawn.get_attribute("data-from") or 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_needs_nothing_and_is_drawn(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    """It opens from disk without a request or a word on the console, no figure is of one colour,
    and at the 360 pixels of a phone nothing is wider than the page."""
    page, said = opened(browser, pages[name])
    scrolled(page)
    shot = page.screenshot(path=SHOTS / f"{name}.png", full_page=True)
    boxes = [each.bounding_box() for each in page.locator(".plot, .view canvas").all()]
    assert all(number > 8 for number in colours(browser, shot, boxes))
    assert boxes or name == "nothing"
    page.set_viewport_size({"width": 360, "height": 740})
    page.wait_for_function("new Promise((done) => setTimeout(() => done(true), 300))")
    page.screenshot(path=SHOTS / f"{name}-phone.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert said == []
    page.context.close()


def test_figures_follow_light_and_dark(browser: Browser, pages: dict[str, Path]) -> None:
    """Page and figures change their colours with the system's; paper is always light."""
    page, said = opened(browser, pages["run"], color_scheme="dark")
    scrolled(page)
    page.screenshot(path=SHOTS / "run-dark.png", full_page=True)
    label = page.locator("#figure-rates .xtick text").first

    def ink() -> tuple[str, str]:
        return (
            page.evaluate("getComputedStyle(document.body).backgroundColor"),
            label.evaluate("text => getComputedStyle(text).fill"),
        )

    dark = ink()
    page.emulate_media(color_scheme="light")
    light = ink()
    assert light[0] == "rgb(255, 255, 255)"
    assert light[1] != dark[1]
    page.emulate_media(color_scheme="dark")
    assert ink() == dark
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert ink() == light
    assert page.locator("#figure-rates .main-svg").first.evaluate("svg => svg.clientWidth") == 640
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert ink() == dark
    assert said == []
    page.context.close()


def test_the_page_has_the_numbers_of_the_summary(page: Page, pages: dict[str, Path]) -> None:
    """Each number that names its metric is that of summary.json; all metrics are there."""
    metrics = orjson.loads((pages["run"].parent / "summary.json").read_bytes())["metrics"]
    shown = page.locator("[data-metric]").evaluate_all(
        "all => all.map(each => [each.dataset.metric, each.dataset.value, each.textContent])"
    )
    for metric, exact, text in shown:
        value = metrics
        for part in metric.split("."):
            value = value[part]
        assert orjson.loads(exact) == value, metric
        assert text, metric
    assert {metric.partition(".")[0] for metric, _, _ in shown} >= {
        name for name, value in metrics.items() if not isinstance(value, dict) or value.get("n", 1)
    }
    tile = page.locator(".tile", has_text="P90 interactivity")
    assert tile.locator(".big").inner_text() == f"{metrics['interactivity']['p90']:.1f} tok/s/user"
    tile.locator("summary").click()
    assert "1 / TPOT" in tile.locator("details").inner_text()


def test_the_timeline_names_calls_and_follows_sessions(page: Page) -> None:
    """The mouse over a call tells of it; a click lists its session, n and Esc move and let go."""
    lines = pointed(page).splitlines()
    assert re.fullmatch(r"session-\d{4}", lines[0])
    assert re.fullmatch(r"main agent · call \d+ of \d+", lines[1])
    assert lines[2].startswith("user 0, visit 0 · sent at ")
    assert re.search(r"^TTFT [\d.]+ ms · [\d.]+ tok/s/user", lines[5])
    page.mouse.down()
    page.mouse.up()
    visit = page.locator(".visit")
    assert visit.locator("h4").inner_text() == lines[0]
    calls = int(lines[1].rpartition(" ")[2])
    assert visit.locator("tbody tr").count() == calls
    chosen = visit.locator("tr.chosen")
    first = int(chosen.locator("button").inner_text())
    page.screenshot(path=SHOTS / "timeline.png")
    page.locator(".view").focus()
    page.keyboard.press("n")
    assert int(chosen.locator("button").inner_text()) > first
    page.keyboard.press("Escape")
    assert visit.locator("tr").count() == 0


def test_the_timeline_zooms(page: Page) -> None:
    """By buttons, keys, dragging, and the wheel once it has been clicked."""
    whole = extent(page)
    page.locator("[data-do=in]").click()
    assert extent(page) == pytest.approx(whole / 2)
    page.locator("[data-do=all]").click()
    view = page.locator(".view")
    view.focus()
    page.keyboard.press("+")
    assert extent(page) == pytest.approx(whole / 2)
    page.keyboard.press("Home")
    box = page.locator(".view canvas").bounding_box()
    assert box is not None
    across = box["width"] - 64 - 6
    page.mouse.move(box["x"] + 64 + across / 4, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 64 + across / 2, box["y"] + 110, steps=4)
    page.mouse.up()
    assert extent(page) == pytest.approx(whole / 4, rel=0.02)
    page.keyboard.press("Home")
    page.mouse.wheel(0, -400)
    page.wait_for_function(f"document.querySelector('.view canvas').dataset.to < {whole * 0.9}")
    assert extent(page) < whole


def test_plays_can_be_sorted_and_followed(page: Page) -> None:
    """They begin with the slowest; a click on a head sorts by it, one on a row follows the play."""
    table = page.locator(".plays table")

    def column(place: int) -> list[str]:
        return table.locator(f"tbody tr td:nth-child({place})").all_inner_texts()

    slowdowns = [float(each) for each in column(9) if each != "–"]
    assert slowdowns == sorted(slowdowns, reverse=True)
    table.get_by_role("button", name="calls", exact=True).click()
    calls = [int(each) for each in column(3)]
    assert calls == sorted(calls, reverse=True)
    assert len(calls) == len(slowdowns) + column(9).count("–")
    before = extent(page)
    row = table.locator("tbody tr").nth(1)
    row.locator("td").first.click()
    assert page.locator(".visit h4").inner_text() == row.locator("td").first.inner_text()
    assert extent(page) < before


def test_csv_files_hold_what_the_command_writes(page: Page, pages: dict[str, Path]) -> None:
    """What a button of the page saves is what `report --csv` writes; all requests are there."""
    folder = pages["curve"].parent / "csv"
    for name in ("rates", "ttft-length", "failures", "plays"):
        with page.expect_download() as saved:
            page.locator(f"button.csv[data-table='{name}']").click()
        rows = read_csv(saved.value.path().read_text())
        known = read_csv((folder / f"{name}.csv").read_text())
        assert saved.value.suggested_filename == f"{name}.csv"
        assert [list(map(exact, row)) for row in rows] == [list(map(exact, row)) for row in known]
    with page.expect_download() as saved:
        page.locator("button.csv[data-table='requests']").click()
    rows, known = (
        read_csv(path.read_text()) for path in (saved.value.path(), folder / "requests.csv")
    )
    assert len(rows) == len(known) == 401
    for name in ("session", "call", "input_tokens", "outcome", "message"):
        places = rows[0].index(name), known[0].index(name)
        assert [row[places[0]] for row in rows] == [row[places[1]] for row in known]


def read_csv(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def exact(cell: str) -> float | str:
    """A number as one, however it is written."""
    try:
        return float(cell)
    except ValueError:
        return cell


@pytest.mark.parametrize("name", ["hostile", "curve"])
def test_words_of_others_are_shown_as_they_are(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    """Markup, quotes, escapes and ends of scripts are text wherever they stand."""
    page, said = opened(browser, pages[name])
    scrolled(page)
    words = visible(HOSTILE)
    if name == "hostile":
        assert words in page.locator("#failures td").all_inner_texts()
        assert words in page.locator("header .what").inner_text()
        assert pointed(page, 54).startswith(words + "\n" + words)
        page.mouse.down()
        page.mouse.up()
        assert page.locator(".visit h4").inner_text() == words
        assert words in page.locator(".plays td").all_inner_texts()
    else:
        words = visible(HOSTILE.replace("=", ""))
        legend = page.locator(".legendtext").all_text_contents()
        assert [each for each in legend if each.startswith(words[:60])] == [words]
        assert words in page.locator("header td").all_inner_texts()
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, header img, main a[href^=javascript], svg a").count() == 0
    assert said == []
    page.context.close()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", ["nothing_measured", "No request was sent.", "No request failed"]),
        ("failing", ["error_rate", "no connection: refused", "No request gives a sample of this."]),
        ("going", ["interrupted", "it is still going, or was killed"]),
    ],
)
def test_runs_without_a_result_have_a_page(
    pages: dict[str, Path], name: str, words: list[str]
) -> None:
    """One without a request, without a success, or without an end, says so and why."""
    text = pages[name].read_text()
    assert [each for each in (*words, "Verdict: <b>invalid</b>") if each not in text] == []


def test_fifty_thousand_calls_stay_usable(browser: Browser, tmp_path: Path) -> None:
    """The page is below 25 MB, and the timeline answers."""
    run = write_run(tmp_path / "big", sessions(64, 50_000, longest=40), users=64)
    path = tmp_path / "big.html"
    conclude(run, reports=Reports(html=path))
    assert path.stat().st_size < 25_000_000
    page, said = opened(browser, path)
    assert pointed(page).startswith("session-")
    page.mouse.down()
    page.mouse.up()
    assert page.locator(".visit tbody tr").count() > 1
    page.screenshot(path=SHOTS / "big.png")
    scrolled(page)
    assert said == []
    page.context.close()


def test_every_figure_has_its_table(page: Page) -> None:
    """Behind each drawing stand a label for those who don't see it, and rows of numbers."""
    plots: list[Locator] = page.locator("figure:has(.plot)").all()
    assert len(plots) > 9
    for figure in plots:
        assert len(figure.locator(".plot").get_attribute("aria-label") or "") > 20
        assert figure.locator("table tbody tr").count() > 0
        assert figure.locator("thead th[scope=col]").count() > 1
