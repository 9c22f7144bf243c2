"""How many processes play a run, and which runs need one. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from agentreplay.plan import Plan

USER_TOKENS_S = 100
"""Output tokens a second that one user is expected to receive at most, each in an event."""

PROCESS_TOKENS_S = 20_000
"""So many of them leave a process three quarters of its core idle (docs/performance.md)."""


@dataclass(frozen=True, slots=True)
class Crew:
    """Who plays a run.

    Attributes:
        workers: How many processes; 1 is the command's own.
    """

    workers: int = 1


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
