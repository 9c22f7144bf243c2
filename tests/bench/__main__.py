"""One run of the bench: a table of ratios, and a JSON file that also says on what machine.

python -m tests.bench [--only events,request] [--json bench.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from . import streams
from .source import CLIENT_CORE, SERVER_CORE, NotBuiltError
from .table import Row, table

GROUPS: Mapping[str, Callable[[Path], list[Row]]] = {
    "events": streams.events,
    "request": streams.request,
    "stamps": streams.stamps,
}
"""What can be run by itself; each is given a folder for what it makes."""

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
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Measure what our own code costs.")
    parser.add_argument("--only", help=f"some of {', '.join(GROUPS)}, with commas between them")
    parser.add_argument("--json", type=Path, default=Path("bench.json"), metavar="FILE")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(GROUPS)
    if unknown := set(names) - set(GROUPS):
        parser.error(f"no group {', '.join(sorted(unknown))}: there are {', '.join(GROUPS)}")
    described = machine() | {"load_at_start": os.getloadavg()}
    console, rows = Console(highlight=False), list[Row]()
    for name in names:
        console.print(f"[dim]measuring {name} …[/]")
        with tempfile.TemporaryDirectory() as folder:
            try:
                rows += GROUPS[name](Path(folder))
            except NotBuiltError as error:
                rows.append(Row(name, (), left_out=str(error)))
    described |= {"load_at_end": os.getloadavg()}
    if CLIENT_CORE == SERVER_CORE:
        console.print("One core for all: clients and servers take turns on it.")
    loads = (described[f"load_at_{when}"][0] for when in ("start", "end"))
    caption = (
        f"{described['cpu']}, {described['cores']} cores, Python {described['python']}, "
        f"commit {described['commit']}, load average {' to '.join(f'{each:.1f}' for each in loads)}"
    )
    console.print(table(rows, caption))
    found = {"machine": described, "rows": [row.as_json() for row in rows]}
    given.json.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    console.print(f"written to {given.json}")


if __name__ == "__main__":
    main()
