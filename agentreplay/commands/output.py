"""How commands print: results to standard output, everything else to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentreplay.errors import AgentReplayError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from agentreplay.outcome import Result
    from agentreplay.report.html.page import Page

PLAIN_WIDTH = 120
"""Columns of what goes to no terminal, unless COLUMNS says otherwise."""


def print_report(renderable: RenderableType) -> None:
    """Print a report for people."""
    from rich.console import Console

    class Report(Console):
        def on_broken_pipe(self) -> None:
            raise  # the command line ends all commands alike

    console = Report(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PLAIN_WIDTH
    console.print(renderable)


def print_json(value: dict[str, Any]) -> None:
    """Print a result for programs."""
    import orjson

    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def save_page(file: Path | None, page: Callable[[], Page]) -> None:
    """Write a page where one is asked for.

    Raises:
        AgentReplayError: it can't be written.
    """
    if file is None:
        return
    from agentreplay.report.html.files import write_page

    try:
        write_page(file, page())
    except OSError as error:
        raise AgentReplayError(f"can't write {file}: {error.strerror}") from None


def show(result: Result, as_json: bool) -> None:
    """Print a run's outcome and end with its exit code."""
    from agentreplay.outcome import exit_code
    from agentreplay.report.text import report as as_text

    if as_json:
        print_json(result.value)
    else:
        print_report(as_text(result.value))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in _annotations(result.value):
            click.echo(line, err=True)
    code, why = exit_code(result)
    if result.page is not None and not as_json:
        click.echo(f"To look at: {result.page}")
    click.echo(f"{result.run.path} · exit {code}: {why}", err=as_json)
    sys.exit(code)


def _annotations(value: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a run, as commands that GitHub shows beside a job.

    Its runner takes lines apart at `::`, `:` and `,` and knows percent signs only as an escape:
    docs.github.com, "Workflow commands for GitHub Actions".
    """
    for reason in value["verdict"]["reasons"]:
        yield _annotation(f"agentreplay: {reason['id']}", reason["text"])
    for gate in value["gates"]:
        if not gate["passed"]:
            yield _annotation(f"Gate missed: {gate['text']}", gate["reason"])


def _annotation(title: str, text: str) -> str:
    title, text = (
        each.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A") for each in (title, text)
    )
    return f"::error title={title.replace(':', '%3A').replace(',', '%2C')}::{text}"
