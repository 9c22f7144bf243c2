"""Use agentreplay as a library: run a plan against the simulated server and read its numbers.

python examples/library.py [TRACES]
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

import anyio

from agentreplay import Plan, load, run_plan


def main() -> None:
    """Replay for five seconds with four users, and print what it came to."""
    trace = load(sys.argv[1] if len(sys.argv) > 1 else "traces/laptop.jsonl")
    plan = Plan(users=4, duration_s=5, max_gap_s=0.5, drain_s=10)
    with tempfile.TemporaryDirectory() as folder:
        result = anyio.run(partial(run_plan, trace, plan, Path(folder) / "run", profile="demo"))
    metrics = result.summary.metrics
    print("SIMULATED SERVER (demo)")  # noqa: T201
    print(f"valid: {result.summary.verdict.valid}")  # noqa: T201
    print(f"P90 interactivity: {metrics['interactivity']['p90']:.1f} tok/s/user")  # noqa: T201
    print(f"output: {metrics['output_token_rate']:.0f} tok/s")  # noqa: T201


if __name__ == "__main__":
    main()
