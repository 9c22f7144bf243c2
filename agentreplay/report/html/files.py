"""What pages are made of on disk, and the page of a run directory. I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from agentreplay.metrics.window import Window
from agentreplay.report.html.columns import Columns, columns
from agentreplay.report.html.page import Assets, Page, csv_text, page_html
from agentreplay.report.html.run import run_page, tables
from agentreplay.store import Run, write_text


def write_page(path: Path, page: Page) -> None:
    """Write a page as one file that needs no other.

    Raises:
        OSError: it can't be written.
    """
    write_text(path, page_html(page, _assets()))


def run_files(
    run: Run, span: Window, value: dict[str, Any], html: Path | None, csv: Path | None
) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Each file that is asked for of a run, and what writes it.

    Args:
        run: The run.
        span: Its window.
        value: What it came to, as summary.json holds it.
        html: Where its page is to lie.
        csv: A folder for its tables.
    """

    @cache
    def made() -> tuple[Columns, Page]:
        found = columns(run.records(), span, run.known_ending().done_ns)
        return found, run_page(run.path.resolve().name, value, found, run.server())

    def write_tables(folder: Path) -> None:
        found, page = made()
        for name, table in tables(page, value, found):
            write_text(folder / f"{name}.csv", csv_text(table))

    if html is not None:
        yield html, lambda: write_page(html, made()[1])
    if csv is not None:
        yield csv, partial(write_tables, csv)


def _assets() -> Assets:
    from plotly.offline import get_plotlyjs

    here = files("agentreplay.report.html")
    script, style = (
        (here / name).read_text(encoding="utf-8") for name in ("script.js", "style.css")
    )
    return Assets(get_plotlyjs(), script, style)
