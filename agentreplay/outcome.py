"""What a run comes to: its summary, the files that are written of it, its exit code. I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agentreplay.errors import (
    EXIT_INVALID,
    EXIT_MISSED,
    EXIT_SIGNALLED,
    EXIT_UNUSABLE,
    EXIT_USAGE,
)
from agentreplay.metrics.condition import Condition
from agentreplay.metrics.cost import Money
from agentreplay.metrics.summary import Summary
from agentreplay.store import EXPORTS, Run, read_run, write_export, write_summary, write_text

PAGE = "report.html"
"""The page to look at, in the run directory."""


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run.

    Attributes:
        run: The run directory, read back.
        summary: What it came to.
        value: The same as summary.json holds it.
        signal: The signal that interrupted it, if any.
        unwritten: Files that could not be written, each with the reason.
        page: The HTML page that was written of it, if any.
    """

    run: Run
    summary: Summary
    value: dict[str, Any]
    signal: int | None
    unwritten: tuple[str, ...] = ()
    page: Path | None = None


@dataclass(frozen=True, slots=True)
class Reports:
    """What is written of a run for other programs, beside its summary.

    Attributes:
        exports: Files in the run directory, by the names of `store.EXPORTS`.
        junit: Where a JUnit file is to lie.
        markdown: Where a page in Markdown is to lie.
        step_summary: A page that the same is appended to.
        html: Where a page to look at is to lie.
        csv: A folder for the tables behind it.
    """

    exports: tuple[str, ...] = ()
    junit: Path | None = None
    markdown: Path | None = None
    step_summary: Path | None = None
    html: Path | None = None
    csv: Path | None = None


def conclude(
    path: Path,
    gates: Iterable[Condition] = (),
    reports: Reports | None = None,
    money: Money | None = None,
) -> Result:
    """Compute the summary of a run directory, and write it there, and *reports* besides.

    What can't be written is said in the result, and the rest is written all the same.

    Args:
        path: The run directory.
        gates: Conditions on its figures, beside those that the run was given.
        reports: What is written for other programs.
        money: What counts in place of what run.json says.
    """
    from agentreplay.report.value import summary_value

    read, reports = read_run(path).priced(money or Money()), reports or Reports()
    summary = read.summary()
    held = {each.text: each for each in (*read.gates, *gates)}
    value = summary_value(read.manifest, read.ending, read.facts, summary, held.values())
    unwritten, page = [], None
    for file, write in _files(read, summary, value, reports):
        try:
            write()
            page = reports.html if file == reports.html else page
        except OSError as error:
            unwritten.append(f"can't write {file}: {error.strerror}")
    return Result(read, summary, value, None, tuple(unwritten), page)


def _files(
    read: Run, summary: Summary, value: dict[str, Any], reports: Reports
) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Each file that a run comes to, and what writes it."""
    from agentreplay.report.aiperf import Export
    from agentreplay.report.junit import junit
    from agentreplay.report.markdown import markdown

    yield read.path / "summary.json", partial(write_summary, read.path, value)
    for name in reports.exports:
        export = Export(read.plan, summary.window, read.manifest.get("origin_unix_ns"))
        rows, aggregate = export.rows(read.records()), partial(export.aggregate, value)
        yield read.path / EXPORTS[name], partial(write_export, read.path, name, rows, aggregate)
    if reports.junit is not None:
        yield reports.junit, partial(write_text, reports.junit, junit(value))
    if reports.markdown is not None:
        yield reports.markdown, partial(write_text, reports.markdown, markdown(value))
    if (page := reports.step_summary) is not None:
        yield page, partial(write_text, page, markdown(value), append=True)
    if reports.html is not None or reports.csv is not None:
        from agentreplay.report.html.files import run_files

        yield from run_files(read, summary.window, value, reports.html, reports.csv)


def exit_code(result: Result) -> tuple[int, str]:
    """The exit code of a run, and its reason in words."""
    if result.signal is not None:
        return EXIT_SIGNALLED + result.signal, "; ".join(["interrupted", *result.unwritten])
    if result.unwritten:
        return EXIT_USAGE, "; ".join(result.unwritten)
    value = result.value
    warmup = value["warmup"]
    if not value["metrics"]["requests"]["succeeded"] and not (warmup and warmup["succeeded"]):
        words = [f"{group['kind']}: {group['example']}" for group in value["failures"]]
        if warmup and warmup["failure"]:
            words.append(warmup["failure"])
        if value["ended"] == "cost":
            words.append("the first call would cost more than --max-cost")
        return EXIT_UNUSABLE, ": ".join(["nothing succeeded", *words[:1]])
    reasons = value["verdict"]["reasons"]
    if reasons:
        return EXIT_INVALID, "invalid: " + "; ".join(f"{r['id']}: {r['text']}" for r in reasons)
    missed = [f"{gate['text']} ({gate['reason']})" for gate in value["gates"] if not gate["passed"]]
    if missed:
        return EXIT_MISSED, "gate missed: " + "; ".join(missed)
    return 0, "valid, every gate passed" if value["gates"] else "valid"
