"""What reading recorded sessions costs, beside decoding their JSON alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from agentreplay.trace.load import load

from .sets import written
from .table import Line, Row, ratio_row

RATIOS = {
    name: Line(f"reading {name} / orjson", goal=2.0)
    for name in ("native", "weka", "claude-code", "codex", "mooncake")
}
SPEEDS = {name: Line(f"reading {name}", "ms/MB", 50.0) for name in ("tracelab", "litellm")}
"""A row of theirs is small and has much in it to check: they only have to be fast enough."""

LINES = (*RATIOS.values(), *SPEEDS.values())

ROUNDS = 4
SIZE_BYTES = 8_000_000


def reading(folder: Path) -> list[Row]:
    """Every session of a set of each format."""
    rows = []
    for name, line in RATIOS.items():
        path = written(folder, name, SIZE_BYTES)
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        read(path)
        rounds = [(_cpu_ms(read, path), _cpu_ms(decode, files)) for _ in range(ROUNDS)]
        taken, least = zip(*rounds, strict=True)
        rows.append(ratio_row(line, taken, least, "ms"))
    for name, line in SPEEDS.items():
        path = written(folder, name, SIZE_BYTES)
        size = path.stat().st_size / 1e6
        rows.append(Row(line, tuple(_cpu_ms(read, path) / size for _ in range(ROUNDS))))
    return rows


def decode(files: list[Path]) -> None:
    """Decode every value, in lines or whole files, as they are."""
    for path in files:
        if path.suffix == ".jsonl":
            with path.open("rb") as file:
                for line in file:
                    orjson.loads(line)
        else:
            orjson.loads(path.read_bytes())


def read(path: Path) -> None:
    """Read every session."""
    for _ in load(path):
        pass


def _cpu_ms(work: Callable[[Any], None], over: Any) -> float:
    began_s = time.process_time()
    work(over)
    return (time.process_time() - began_s) * 1e3
