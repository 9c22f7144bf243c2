"""Pages in a real browser, as tests open them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

SHOTS = Path(__file__).parents[1] / "build" / "screenshots"
"""Screenshots stay there, to be looked at."""


def opened(browser: Browser, path: Path, **settings: Any) -> tuple[Page, list[str]]:
    """A page in a window of its own, and what it said or asked for besides."""
    settings = {"viewport": {"width": 1280, "height": 900}, **settings}
    page, said = browser.new_context(**settings).new_page(), list[str]()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on(
        "request",
        lambda asked: None if asked.url == path.as_uri() else said.append(f"asked for {asked.url}"),
    )
    page.goto(path.as_uri())
    return page, said


def scrolled(page: Page) -> None:
    """Every figure has been in sight, and is drawn."""
    for plot in page.locator(".plot").all():
        plot.scroll_into_view_if_needed()
        plot.locator(".main-svg").first.wait_for()
    page.evaluate("scrollTo(0, 0)")


def embedded(page: Page) -> Any:
    """What a page holds as data."""
    return page.evaluate("JSON.parse(document.getElementById('data').textContent)")


def on_a_phone(page: Page) -> int:
    """How wide a page is in a window of 360 pixels, once its figures have been drawn for it."""
    page.set_viewport_size({"width": 360, "height": 740})
    width: int = page.evaluate(
        """() => new Promise((done) => {
            const until = performance.now() + 5000;
            const look = () => {
                const wide = document.documentElement.scrollWidth;
                if (wide === 360 || performance.now() > until) done(wide);
                else requestAnimationFrame(look);
            };
            look();
        })"""
    )
    return width
