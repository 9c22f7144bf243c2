"""A run's outcome as one plain value: what summary.json holds and every report is made from."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from agentreplay.metrics.summary import Summary
from agentreplay.store import Run


def summary_value(run: Run, summary: Summary) -> dict[str, Any]:
    """Everything that a report shows; docs/metrics.md names the metrics."""
    verdict, window = summary.verdict, summary.window
    return {
        "agentreplay": run.manifest["agentreplay"],
        "simulated": run.manifest["endpoint"].get("simulated"),
        "verdict": {
            "valid": verdict.valid,
            "reasons": [reason._asdict() for reason in verdict.reasons],
            "warnings": [reason._asdict() for reason in verdict.warnings],
        },
        "metrics": summary.metrics,
        "window": {"open_s": window.open_ns / 1e9, "seconds": window.seconds},
        "ended": run.ending.reason if run.ending else None,
        "failures": [asdict(group) for group in summary.failures],
        "gaps": {"cut": summary.gaps_cut, "cut_s": summary.gaps_cut_s},
        "overlong": summary.overlong,
        "after_window": summary.after_window,
        "plan": run.manifest["plan"],
        "endpoint": run.manifest["endpoint"],
        "trace": {
            "paths": run.manifest["trace"]["paths"],
            "sessions": run.manifest["trace"]["sessions"],
            "sha256": run.facts.get("trace_sha256"),
            "skipped": run.facts.get("skipped", {}),
            "notes": run.facts.get("notes", {}),
        },
    }
