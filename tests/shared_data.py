"""The recordings that lie in a folder `shared` beside the project, where there is one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from agentreplay.trace.load import load
from agentreplay.trace.model import Session

SHARED = Path(__file__).resolve().parents[2] / "shared"
WEKA = SHARED / "data" / "weka"

needs_shared = pytest.mark.skipif(
    not WEKA.is_dir(), reason="the shared Weka recordings do not lie beside the project"
)


@cache
def weka_sessions() -> tuple[Session, ...]:
    """The shared Weka sessions, read once."""
    return tuple(load(WEKA))


def weka_files() -> list[Path]:
    """The shared Weka files, in the order of `weka_sessions`."""
    return sorted(WEKA.glob("*.json"))
