"""The import rule of docs/architecture.md: a module imports only what stands above it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "agentreplay"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()

IMPURE = {"anyio", "asyncio", "click", "httpx", "os", "socket", "threading", "time", "uvicorn"}


def floors() -> list[tuple[int, str]]:
    """(floor, module) in the order in which the table of the architecture lists them."""
    listed = []
    for floor, cell in re.findall(r"^\| (\d) [^|]*\| ([^|]+) \|", ARCHITECTURE, re.MULTILINE):
        listed += [(int(floor), module) for module in re.findall(r"`([\w.]+)`", cell)]
    return listed


ORDER = [module for _, module in floors()]


def modules() -> Iterator[str]:
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        if not name.endswith("__init__"):
            yield name


def imported(module: str) -> set[str]:
    """What a module imports, anywhere in it: own modules by their short names, others whole."""
    tree = ast.parse((PACKAGE / (module.replace(".", "/") + ".py")).read_text())
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name.removeprefix("agentreplay.") for name in found}


def test_every_module_has_its_floor() -> None:
    """The architecture lists exactly the modules that there are."""
    assert sorted(ORDER) == sorted(modules())


@pytest.mark.parametrize("module", ORDER)
def test_modules_import_only_what_stands_above_them(module: str) -> None:
    """No circle, no import from a higher floor."""
    above = set(ORDER[: ORDER.index(module)])
    assert imported(module) & set(ORDER) <= above


@pytest.mark.parametrize("module", [module for floor, module in floors() if floor < 2])
def test_values_and_computing_do_no_io(module: str) -> None:
    """Floors 0 and 1 know no clock, no socket and no file."""
    roots = {name.partition(".")[0] for name in imported(module) if name not in ORDER}
    assert not roots & IMPURE
