"""A run's outcome as one plain value: summary.json, from which every report is made. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from agentreplay.metrics.condition import Condition
from agentreplay.metrics.gate import outcome
from agentreplay.metrics.summary import Summary
from agentreplay.metrics.window import Ending


def summary_value(
    manifest: Mapping[str, Any],
    ending: Ending | None,
    facts: Mapping[str, Any],
    summary: Summary,
    gates: Iterable[Condition] = (),
) -> dict[str, Any]:
    """Everything that a report shows; docs/metrics.md names the metrics.

    Args:
        manifest: What was to be done, as run.json holds it.
        ending: How the run ended; None for one that was killed.
        facts: What else was known at its end.
        summary: What it came to.
        gates: Conditions that its figures are held against.
    """
    verdict, window = summary.verdict, summary.window
    value = {
        "agentreplay": manifest["agentreplay"],
        "simulated": manifest["endpoint"].get("simulated"),
        "verdict": {
            "valid": verdict.valid,
            "reasons": [reason._asdict() for reason in verdict.reasons],
            "warnings": [reason._asdict() for reason in verdict.warnings],
            "limits": manifest["limits"],
            "scenario": manifest["plan"]["scenario"],
            "trace_sha256": facts.get("trace_sha256"),
        },
        "metrics": summary.metrics,
        "window": {"open_s": window.open_ns / 1e9, "seconds": window.seconds},
        "warmup": asdict(summary.warmup) if summary.warmup else None,
        "skips": {"tree": asdict(summary.tree_skips), "idle": asdict(summary.idle_skips)},
        "ended": ending.reason if ending else None,
        "failures": [asdict(group) for group in summary.failures],
        "shortfalls": asdict(summary.shortfalls) if summary.shortfalls else None,
        "gaps": {"cut": summary.gaps_cut, "cut_s": summary.gaps_cut_s},
        "overlong": summary.overlong,
        "history": {"live": summary.live, "substituted": summary.substituted},
        "after_window": summary.after_window,
        "plays": [asdict(play) for play in summary.plays],
        "chunk_gap_binned": summary.gaps_binned,
        "goodput_limits": manifest.get("goodput", []),
        "cautions": manifest.get("cautions", []),
        "fit": facts.get("fit"),
        "server": asdict(summary.server) if summary.server else None,
        "workers": facts.get("workers", []),
        "money": manifest["money"],
        "plan": manifest["plan"],
        "endpoint": manifest["endpoint"],
        "trace": {
            "paths": manifest["trace"]["paths"],
            "sessions": manifest["trace"]["sessions"],
            "sha256": facts.get("trace_sha256"),
            "skipped": facts.get("skipped", {}),
            "notes": facts.get("notes", {}),
        },
    }
    outcomes = [outcome(gate, value) for gate in gates]
    value["gates"] = [
        {
            "text": found.gate.text,
            "metric": found.gate.metric,
            "value": found.value,
            "passed": found.passed,
            "reason": found.reason,
        }
        for found in outcomes
    ]
    return value
