"""Sessions as lanes draw them: read in a thread, fitted to the context, and counted. I/O."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import anyio
import anyio.to_thread

from agentreplay.errors import TraceError
from agentreplay.plan import Fit
from agentreplay.trace.fit import fitted, needs
from agentreplay.trace.model import Session, Trace


class Draws:
    """Draw sessions of a trace set for a model with a given context.

    Attributes:
        trace: The sessions.
        policy: What becomes of what is too long.
        context_tokens: What prompt and answer may take together; None where it isn't known. To be
            set before the first is drawn.
        drawn: Of each session drawn so far, by index: its tokens, the calls and the tokens that
            were left out, and whether any were kept.
    """

    def __init__(self, trace: Trace, policy: Fit) -> None:
        self.trace = trace
        self.policy = policy
        self.context_tokens: int | None = None
        self._fetched: dict[int, tuple[Session, int]] = {}
        self.drawn: dict[int, tuple[int, int, int, bool]] = {}
        self._looked_through_s: float | None = None
        self._one = anyio.CapacityLimiter(1)

    async def fetch(self, indices: Iterable[int]) -> None:
        """Read sessions that will be drawn first, each once, while there is nothing else to do."""
        for index, times in Counter(indices).items():
            try:
                session = await anyio.to_thread.run_sync(
                    self.trace.__getitem__, index, limiter=self._one
                )
            except TraceError:
                continue  # whoever draws it is told
            self._fetched[index] = session, times

    async def draw(self, index: int) -> Session:
        """Read a session.

        Raises:
            TraceError: it can't be read, or nothing of it fits.
        """
        if index in self._fetched:
            return self.read(index)
        # In a thread, since a large file takes longer to parse than an answer should wait.
        return await anyio.to_thread.run_sync(self.read, index, limiter=self._one)

    async def look_through(self) -> None:
        """Read every session, so that one that doesn't fit is known before anything is sent.

        Raises:
            TraceError: one can't be read, or does not fit.
        """
        began_s = time.monotonic()
        for index in range(len(self.trace)):
            await self.draw(index)
        self._looked_through_s = time.monotonic() - began_s
        self.drawn.clear()

    def facts(self) -> dict[str, Any]:
        """What was drawn and what was left out, each session counted once."""
        drawn = self.drawn.values()
        return {
            "context_tokens": self.context_tokens,
            "policy": self.policy,
            "sessions": len(drawn),
            "tokens": sum(tokens for tokens, _, _, _ in drawn),
            "dropped_sessions": sum(not kept for _, _, _, kept in drawn),
            "dropped_calls": sum(calls for _, calls, _, _ in drawn),
            "dropped_tokens": sum(dropped for _, _, dropped, _ in drawn),
            "looked_through_s": self._looked_through_s,
        }

    def read(self, index: int) -> Session:
        """Read a session at once; as `draw`."""
        session, times = self._fetched.pop(index, (None, 0))
        if session is None:
            session = self.trace[index]
        elif times > 1:
            self._fetched[index] = session, times - 1
        tokens = sum(map(needs, session.calls))
        if self.context_tokens is None:
            self.drawn[index] = tokens, 0, 0, True
            return session
        result = fitted(session, self.context_tokens, self.policy)
        self.drawn[index] = tokens, result.calls, result.tokens, result.session is not None
        if result.session is None:
            longest = max(map(needs, session.calls))
            raise TraceError(
                f"{session.source}: its longest call needs {longest:,} tokens, the context of "
                f"the model is {self.context_tokens:,} (--fit)"
            )
        return result.session
