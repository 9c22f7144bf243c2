"""What this machine allows of open files and ports, looked at before it is asked for. I/O."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from agentreplay.errors import AgentReplayError

LOOP = {"use_uvloop": sys.platform != "win32"}
"""Options of the event loop that commands and workers run in."""

SPARE_FILES = 64
"""Open files besides one connection a user; a user with subagents may need more of them."""

_M_ARENA_MAX = -8  # malloc.h

PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def cores() -> int:
    """On how many cores this process may run."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def one_heap() -> None:
    """Have glibc give all threads one heap: what one has freed, all can use again.

    With the heap of its own that a thread gets otherwise, reading sessions there costs 25 MB.
    """
    import ctypes

    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    except (AttributeError, OSError, TypeError):
        pass  # another system's


def allow_files(users: int) -> None:
    """Raise the limit of open files as far as it goes.

    Raises:
        AgentReplayError: it is below one connection a user all the same.
    """
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    needed = users + SPARE_FILES
    if hard not in (-1, resource.RLIM_INFINITY) and hard < needed:
        raise AgentReplayError(
            f"{users} users need {needed} open files, the limit is {hard}: raise it (ulimit -n) "
            "or use fewer users"
        )


def cautions(users: int, addresses: int) -> list[str]:
    """What may become short while so many users talk to so many addresses, in words."""
    try:
        low, high = map(int, PORTS.read_text().split())
    except (OSError, ValueError):
        return []  # another system: what fails will say so
    ports = (high - low + 1) * addresses
    if users <= ports:
        return []
    return [
        f"This machine has {ports} ports for connections to this endpoint, fewer than {users} "
        "users: widen net.ipv4.ip_local_port_range or use fewer users."
    ]
