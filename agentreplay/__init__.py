"""Replay recorded coding-agent sessions against an OpenAI-compatible endpoint.

    trace = load("traces")
    result = anyio.run(run_plan, trace, Plan(users=8, duration_s=60), Path("runs/one"))
    result.summary.metrics["interactivity"]["p90"]

`load` opens recorded sessions, a `Plan` says what to send and when, `run_plan` sends it to an
`Endpoint` (or the embedded simulated server) and leaves a run directory, which `read_run` opens
again and `summarize` turns into numbers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentreplay.client.endpoint import Endpoint, api_url
    from agentreplay.errors import AgentReplayError, EndpointError, TraceError
    from agentreplay.metrics.record import Failure, Record, Request
    from agentreplay.metrics.summary import Summary, summarize
    from agentreplay.metrics.verdict import Limits
    from agentreplay.outcome import Result
    from agentreplay.plan import Plan
    from agentreplay.run import run_plan
    from agentreplay.store import Run, read_run
    from agentreplay.trace.load import TraceSet, load
    from agentreplay.trace.model import Call, Session, Trace

_HOMES = {
    "AgentReplayError": "agentreplay.errors",
    "Call": "agentreplay.trace.model",
    "Endpoint": "agentreplay.client.endpoint",
    "EndpointError": "agentreplay.errors",
    "Failure": "agentreplay.metrics.record",
    "Limits": "agentreplay.metrics.verdict",
    "Plan": "agentreplay.plan",
    "Record": "agentreplay.metrics.record",
    "Request": "agentreplay.metrics.record",
    "Result": "agentreplay.run",
    "Run": "agentreplay.store",
    "Session": "agentreplay.trace.model",
    "Summary": "agentreplay.metrics.summary",
    "Trace": "agentreplay.trace.model",
    "TraceError": "agentreplay.errors",
    "TraceSet": "agentreplay.trace.load",
    "api_url": "agentreplay.client.endpoint",
    "load": "agentreplay.trace.load",
    "read_run": "agentreplay.store",
    "run_plan": "agentreplay.run",
    "summarize": "agentreplay.metrics.summary",
}

__all__ = [
    "AgentReplayError",
    "Call",
    "Endpoint",
    "EndpointError",
    "Failure",
    "Limits",
    "Plan",
    "Record",
    "Request",
    "Result",
    "Run",
    "Session",
    "Summary",
    "Trace",
    "TraceError",
    "TraceSet",
    "api_url",
    "load",
    "read_run",
    "run_plan",
    "summarize",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that the command starts at once."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
