"""How many processes play a run, and which runs need one. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from agentreplay.errors import AgentReplayError
from agentreplay.plan import Plan

USER_TOKENS_S = 100
"""Output tokens a second that one user is expected to receive at most, each in an event."""

PROCESS_TOKENS_S = 20_000
"""So many of them leave a process three quarters of its core idle (docs/performance.md)."""


@dataclass(frozen=True, slots=True)
class Crew:
    """Who plays a run.

    Attributes:
        workers: How many processes; 1 is the command's own, where `ray` is None. None: one on
            each node of the cluster.
        ray: The Ray cluster on whose nodes they are; None for this machine.
    """

    workers: int | None = 1
    ray: str | None = None


def workers_for(users: int, cores: int) -> int:
    """How many processes are enough for the events of so many users, one core being left free."""
    enough = -(-users * USER_TOKENS_S // PROCESS_TOKENS_S)
    return max(1, min(enough, cores - 1, users))


def caution(users: int, workers: int) -> str | None:
    """What is to be said when processes may be too few, before anything is sent."""
    expected = users * USER_TOKENS_S
    if expected <= PROCESS_TOKENS_S * workers:
        return None
    return (
        f"{users} users may receive {expected:,} tokens a second, more than the "
        f"{PROCESS_TOKENS_S * workers:,} that {_processes(workers)} should be given to measure: "
        "see --workers."
    )


def host_and_port(address: str) -> tuple[str, int]:
    """Where the head of a Ray cluster listens.

    Raises:
        AgentReplayError: the address is of another kind.
    """
    if address.startswith("ray://"):
        raise AgentReplayError(
            f"--ray {address}: run the command on a node of the cluster, with --ray auto: clocks "
            "are not compared through Ray's client"
        )
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or parts.path:
        raise AgentReplayError(f"--ray {address}: write auto, or host:port of the cluster's head")
    return host, port


def needs_one(plan: Plan) -> str | None:
    """The option that needs one process, since it looks at all lanes together; None for none."""
    asked = {
        "--start spread": plan.start is not None,
        "--warmup-calls": plan.warmup_calls > 0,
        "--max-idle": plan.max_idle_s is not None,
        "--max-cost": plan.max_cost is not None,
        "--failure-limit": plan.failure_limit is not None,
    }
    return next((name for name, is_asked in asked.items() if is_asked), None)


def _processes(count: int) -> str:
    return "one process" if count == 1 else f"{count} processes"
