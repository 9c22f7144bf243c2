"""One run of the bench: a table of ratios, and a JSON file that also says on what machine.

python -m tests.bench [--only events,request] [--json bench.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import orjson
from rich.console import Console

from . import bodies, commands, reading, streams
from .programs import CLIENT_CORE, SERVER_CORE, NotBuiltError
from .table import Line, Row, table

Measure: TypeAlias = Callable[[Path], list[Row]]
"""Measures some rows; the folder is for what it makes meanwhile."""

GROUPS: Mapping[str, tuple[Measure, Sequence[Line]]] = {
    "events": (streams.events, streams.EVENTS),
    "request": (streams.request, streams.REQUEST),
    "stamps": (streams.stamps, streams.STAMPS),
    "body": (bodies.bodies, bodies.LINES),
    "reading": (reading.reading, reading.LINES),
    "help": (commands.help_, (commands.HELP,)),
    "start": (commands.start, commands.START),
    "memory": (commands.memory, commands.MEMORY),
    "lag": (commands.lag, commands.LAG),
}
"""What can be run by itself: how it is measured, and the lines that this fills, in their order."""

PLAIN_WIDTH = 150
"""Columns of what goes to no terminal."""

LIBRARIES = ("aiohttp", "anyio", "httpx", "numpy", "orjson", "uvloop")


def machine() -> dict[str, Any]:
    """What the figures depend on, but for what else the machine was doing."""
    return {
        "cpu": _line("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": os.cpu_count(),
        "client_core": CLIENT_CORE,
        "server_core": SERVER_CORE,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.platform(),
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "commit": _commit(),
    }


def _line(file: str, name: str) -> str | None:
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)


def _commit() -> str | None:
    """The commit that is measured, with a mark where files differ from it."""
    import agentreplay

    command = ["git", "-C", str(Path(agentreplay.__file__).parent), "describe", "--always"]
    command += ["--dirty", "--abbrev=12"]
    ended = subprocess.run(command, capture_output=True, text=True)
    return ended.stdout.strip() or None


def main() -> None:
    """Measure, print, write; what has been measured also where a later group fails."""
    parser = argparse.ArgumentParser(description="Measure what our own code costs.")
    parser.add_argument("--only", help=f"some of {', '.join(GROUPS)}, with commas between them")
    parser.add_argument("--json", type=Path, default=Path("bench.json"), metavar="FILE")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(GROUPS)
    if unknown := set(names) - set(GROUPS):
        parser.error(f"no group {', '.join(sorted(unknown))}: there are {', '.join(GROUPS)}")
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    described, rows = machine() | {"load_at_start": os.getloadavg()}, list[Row]()
    try:
        for name in names:
            console.print(f"[dim]measuring {name} …[/]")
            rows += measured(*GROUPS[name])
    finally:
        described |= {"load_at_end": os.getloadavg()}
        console.print(table(rows, caption(described)))
        found = {"machine": described, "rows": [row.as_json() for row in rows]}
        given.json.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
        console.print(f"written to {given.json}")


def measured(measure: Measure, lines: Sequence[Line]) -> list[Row]:
    """The rows of a group."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return measure(Path(folder))
        except NotBuiltError as error:
            return [Row(line, (), left_out=str(error)) for line in lines]


def caption(described: Mapping[str, Any]) -> str:
    """A line on the machine, and on what else it was doing."""
    start, end = described["load_at_start"][0], described["load_at_end"][0]
    shared = ", one for clients and servers" if CLIENT_CORE == SERVER_CORE else ""
    return (
        f"{described['cpu']}, cores: {described['cores']}{shared}, Python {described['python']}, "
        f"commit {described['commit']}, load average {start:.1f} to {end:.1f}"
    )


if __name__ == "__main__":
    main()
