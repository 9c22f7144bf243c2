"""Prefix reuse: how much of a prompt was seen before. Pure.

Both figures come from one ledger: over a recording in its own order it gives the theoretical
reuse of the trace, over a run in order of sending the reuse that a server with an endless cache
could have shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentreplay.trace.model import Call, Session


@dataclass(slots=True)
class Ledger:
    """Which prefixes of a session's prompts have been sent.

    The new tokens of a call, from its `shared` to its end, are named by the call. Whoever holds
    one of them holds all tokens before it, so for each call the furthest position that was sent
    says everything.
    """

    calls: Sequence[Call]
    block_size: int
    sent: dict[int, int] = field(default_factory=dict)

    def seen(self, i: int, limit: int | None = None) -> int:
        """How many leading tokens (whole blocks) of call *i*'s first *limit* were sent before."""
        end = self._whole(i, limit)
        at: int | None = i
        while at is not None:
            call = self.calls[at]
            if self.sent.get(at, 0) > call.shared:
                return min(self.sent[at], end)
            end = min(end, call.shared)
            at = call.parent
        return 0

    def add(self, i: int, limit: int | None = None) -> None:
        """Note that the first *limit* tokens of call *i*'s prompt are being sent."""
        end = self._whole(i, limit)
        at: int | None = i
        while at is not None and self.sent.get(at, 0) < end:
            call = self.calls[at]
            if end > call.shared:
                self.sent[at] = end
            end = min(end, call.shared)
            at = call.parent

    def _whole(self, i: int, limit: int | None) -> int:
        tokens = self.calls[i].isl if limit is None else min(limit, self.calls[i].isl)
        return tokens // self.block_size * self.block_size


def shared_by_plays(session: Session) -> list[int]:
    """For each call, how many leading tokens every play of the session has in common.

    A block belongs to all plays where it lies wholly inside the `system` tokens of the call that
    first held it, and what follows a block of one play only can't be found by another.
    """
    block, common = session.block_size, list[int]()
    for call in session.calls:
        whole = min(call.system, call.isl) // block * block
        if call.parent is not None:
            inherited = common[call.parent]
            whole = inherited if inherited < call.shared else max(call.shared, whole)
        common.append(whole)
    return common


@dataclass(frozen=True, slots=True)
class Reuse:
    """Prompt tokens and whole blocks, and how many of each had been seen before."""

    tokens: int = 0
    seen_tokens: int = 0
    blocks: int = 0
    seen_blocks: int = 0

    def __add__(self, other: Reuse) -> Reuse:
        return Reuse(
            self.tokens + other.tokens,
            self.seen_tokens + other.seen_tokens,
            self.blocks + other.blocks,
            self.seen_blocks + other.seen_blocks,
        )

    @property
    def by_tokens(self) -> float | None:
        """Seen tokens / all input tokens; None without input."""
        return self.seen_tokens / self.tokens if self.tokens else None

    @property
    def by_blocks(self) -> float | None:
        """Seen blocks / all whole blocks; None without a block."""
        return self.seen_blocks / self.blocks if self.blocks else None


def session_reuse(session: Session) -> Reuse:
    """Reuse within one recorded session, in order of the recorded starts, nothing ever evicted."""
    ledger = Ledger(session.calls, session.block_size)
    tokens = seen = blocks = 0
    for i, call in enumerate(session.calls):
        seen += ledger.seen(i)
        ledger.add(i)
        tokens += call.isl
        blocks += call.isl // session.block_size
    return Reuse(tokens, seen, blocks, seen // session.block_size)
