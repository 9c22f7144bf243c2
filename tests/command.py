"""The command as a user runs it: a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BUSY_MACHINE = (
    *("--allow", "loop_late_share=100%"),
    *("--allow", "loop_late_max_s=1h"),
    *("--allow", "lag_p99_s=1h"),
)
"""For tests of what a server does: that this machine may be busy is no failure of theirs."""


def agentreplay(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "agentreplay", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "COLUMNS": "120", **variables},
    )
