"""How much memory sessions hold in a server's KV cache. Pure.

A *conversation* is a session's largest prompt with its answer. A session's *working set* at a
moment is every token that a cache has to hold then so that no prompt is computed twice: each from
the start of the call that brings it to the end of the last call whose prompt has it. So waiting
for a tool counts, what agents share counts once, and what a compaction has dropped no more.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from agentreplay.trace.model import Session

P95 = 0.95

CELLS, MOST_CELLS = 4096, 1 << 22
"""Sums over users are made in so many steps of size, fewer for very many users."""


@dataclass(frozen=True, slots=True)
class Held:
    """Tokens, and what they take.

    Attributes:
        tokens: How many.
        bytes: In the KV cache, all partitions together.
        partition_bytes: In each partition.
    """

    tokens: float
    bytes: float
    partition_bytes: float


@dataclass(frozen=True, slots=True)
class Memory:
    """What a set of sessions holds in a KV cache.

    Attributes:
        kv_bytes_per_token: Bytes of keys and values for a token.
        partitions: Over how many devices they are spread evenly.
        users: How many sessions are live at once; None where it wasn't asked.
        largest_conversation: The largest of all sessions.
        mean_conversation: The mean over sessions.
        working_set_mean: Of the users together, on average: users × mean over all recorded time.
        working_set_p95: What their working sets stay within for 95 % of the time, each user being
            at a random moment of the recorded time of all sessions, whatever the others do.
        working_set_most: Of as many sessions as there are users, those with the largest peaks, all
            at their peaks; all sessions more than once where there are fewer.
    """

    kv_bytes_per_token: float
    partitions: int
    users: int | None
    largest_conversation: Held | None
    mean_conversation: Held | None
    working_set_mean: Held | None
    working_set_p95: Held | None
    working_set_most: Held | None


class Sizes:
    """Takes sessions as they go by, and keeps how much they hold and for how long.

    Attributes:
        conversations: Tokens of each session's conversation.
        held: Tokens of all working sets, step by step.
        seconds: How long each step lasts.
    """

    def __init__(self) -> None:
        self.conversations, self._peaks = array("q"), array("q")
        self.held, self.seconds = array("q"), array("d")

    def through(self, sessions: Iterable[Session]) -> Iterator[Session]:
        """The same sessions, each taken as it goes by."""
        for session in sessions:
            self.add(session)
            yield session

    def add(self, session: Session) -> None:
        """Take one."""
        if not session.calls:
            return
        largest = max(call.isl + call.osl for call in session.calls)
        steps = working_set(session)
        self.conversations.append(largest)
        self._peaks.append(max([largest, *(tokens for tokens, _ in steps)]))
        self.held.extend(tokens for tokens, _ in steps)
        self.seconds.extend(seconds for _, seconds in steps)

    def memory(
        self, kv_bytes_per_token: float, partitions: int = 1, users: int | None = None
    ) -> Memory:
        """What they come to."""

        def held(tokens: float | None) -> Held | None:
            if tokens is None:
                return None
            size = tokens * kv_bytes_per_token
            return Held(tokens, size, size / partitions)

        sizes, count = self.conversations, len(self.conversations)
        mean = p95 = most = None
        if users is not None and sum(self.seconds) > 0:
            mean = users * float(np.average(self.held, weights=self.seconds))
            p95 = _sum_within(self.held, self.seconds, users)
        if users is not None and count:
            peaks = sorted(self._peaks, reverse=True)
            passes, rest = divmod(users, count)
            most = passes * sum(peaks) + sum(peaks[:rest])
        return Memory(
            kv_bytes_per_token=kv_bytes_per_token,
            partitions=partitions,
            users=users,
            largest_conversation=held(max(sizes, default=None)),
            mean_conversation=held(sum(sizes) / count if count else None),
            working_set_mean=held(mean),
            working_set_p95=held(p95),
            working_set_most=held(most),
        )


def working_set(session: Session) -> list[tuple[int, float]]:
    """A session's working set over its recorded time: tokens, and for how many seconds."""
    calls = session.calls
    # Of each call's prompt and answer, how long which leading part is needed: ever shorter parts
    # for ever longer, since who has a token has all before it.
    needed: list[list[tuple[int, float]]] = [[] for _ in calls]
    changes: list[tuple[float, int]] = []
    for i in reversed(range(len(calls))):
        call = calls[i]
        parent = call.parent if call.parent is not None and call.parent >= 0 else None
        shared, reached = 0 if parent is None else call.shared, 0
        parts = sorted([*needed[i], (call.isl + call.osl, call.end_s)], key=lambda part: -part[1])
        for length, until_s in parts:
            if parent is not None and reached < min(length, shared):
                needed[parent].append((min(length, shared), until_s))
            new = length - max(reached, shared)
            if new > 0 and until_s > call.start_s:
                changes += [(call.start_s, new), (until_s, -new)]
            reached = max(reached, length)
        needed[i] = []
    steps, tokens = [], 0
    changes.sort()
    for n, (at_s, change) in enumerate(changes[:-1]):
        tokens += change
        steps.append((tokens, changes[n + 1][0] - at_s))
    return steps


def _sum_within(tokens: Sequence[int], seconds: Sequence[float], users: int) -> float:
    """What the sum of so many independent values stays within for 95 % of the time.

    The values' distribution, in cells of equal size, is folded with itself.
    """
    cells = max(64, min(CELLS, MOST_CELLS // users))
    sizes = np.asarray(tokens, dtype=np.float64)
    cell = max(float(sizes.max()) / (cells - 1), 1e-9)
    share = np.bincount(np.rint(sizes / cell).astype(int), weights=seconds, minlength=cells)
    length = users * (len(share) - 1) + 1
    points = 1 << (length - 1).bit_length() if length > 1 else 1
    folded = np.fft.irfft(np.fft.rfft(share / share.sum(), points) ** users, points)[:length]
    reached = np.cumsum(np.maximum(folded, 0.0))
    return float(np.searchsorted(reached, P95 * reached[-1]) * cell)
