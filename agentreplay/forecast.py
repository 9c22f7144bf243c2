"""What a plan would send, and how long that takes at the recorded speed.

The scheduler itself runs, in virtual time, against a server that takes as long for each call as
was recorded: there is no second account of its rules that could differ. Nothing is sent, and no
text is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

import anyio

from agentreplay.client.stream import Reply, Sink
from agentreplay.errors import TraceError
from agentreplay.metrics.cost import Prices, Tokens, expected
from agentreplay.metrics.record import Record, Request
from agentreplay.plan import Plan
from agentreplay.play import Dialect
from agentreplay.prompt.messages import Template
from agentreplay.replay import Replay
from agentreplay.sim import virtual
from agentreplay.trace.model import Session

_DIALECT = Dialect("", Template(), {}, text=False)

_ANSWER = (
    b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\n'
    b"data: [DONE]\n\n"
)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run will send if every call takes as long as it did in the recording.

    Calls of the warm-up, whose output is one token, are answered at once, and counted apart.

    Attributes:
        plays: Plays of sessions of which anything is sent.
        sessions: Different sessions among them.
        calls: Calls sent, but for those of the warm-up.
        input_tokens: Their prompts, cached tokens included.
        cached_tokens: Of these, what an endless cache would hold by then, in whole blocks.
        output_tokens: Output asked for.
        warmup_calls: Calls of the warm-up.
        warmup_tokens: Their prompts, cached tokens included.
        warmup_cached_tokens: Of these, what an endless cache would hold by then.
        warmup_sent_s: From the start until the last of them is sent; None without any.
        tree_skip_s: Idle time of sessions that is skipped, all sessions added up.
        idle_skip_s: Idle time of all together that is skipped.
        largest_prompt: Input tokens of the largest prompt, the warm-up's included.
        seconds: From the start to the last recorded end; None where no call is sent.
    """

    plays: int
    sessions: int
    calls: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    warmup_calls: int
    warmup_tokens: int
    warmup_cached_tokens: int
    warmup_sent_s: float | None
    tree_skip_s: float
    idle_skip_s: float
    largest_prompt: int
    seconds: float | None

    def dollars(self, prices: Prices) -> float:
        """What it costs, the warm-up included."""
        ordinary = Tokens(self.input_tokens, self.cached_tokens, self.output_tokens)
        warmup = Tokens(self.warmup_tokens, self.warmup_cached_tokens, self.warmup_calls)
        return prices.dollars(ordinary + warmup)


@dataclass(slots=True)
class _Tally:
    """Requests so far, of the warm-up or all others."""

    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    largest_prompt: int = 0
    tree_skip_s: float = 0.0
    idle_skip_s: float = 0.0
    sent_ns: int = 0
    done_ns: int = 0

    def add(self, record: Record) -> None:
        request = record.request
        tokens = expected(request)
        self.calls += 1
        self.input_tokens += tokens.input
        self.cached_tokens += tokens.cached
        self.output_tokens += max(1, request.osl)
        self.largest_prompt = max(self.largest_prompt, request.isl)
        self.tree_skip_s += request.tree_skip_s
        self.idle_skip_s += request.idle_skip_s
        self.sent_ns = max(self.sent_ns, record.sent_ns)
        self.done_ns = max(self.done_ns, record.done_ns)


@dataclass(slots=True)
class _Recording:
    """The sessions as a run draws them, and as a server that keeps to the recorded times."""

    plan: Plan
    sessions: int
    read: Callable[[int], Session]
    took_s: dict[int, list[float]] = field(default_factory=dict)
    drawn_ns: int = -1
    drawn: int = 0  # at that instant

    async def draw(self, index: int) -> Session:
        now_ns = virtual.clock()
        self.drawn = self.drawn + 1 if now_ns == self.drawn_ns else 1
        self.drawn_ns = now_ns
        limited = self.plan.sessions is not None or self.plan.requests is not None
        if self.drawn > self.plan.users * self.sessions and not limited:
            raise TraceError("a lane has played all sessions in no time, and would do so for ever")
        session = self.read(index)
        self.took_s[index] = [call.end_s - call.start_s for call in session.calls]
        return session

    async def answer(self, request: Request, body: bytes, sink: Sink) -> Reply:
        if not request.warmup:
            await anyio.sleep(self.took_s[request.index][request.call])
        tokens = expected(request)
        sink(virtual.clock(), _ANSWER % (tokens.input, tokens.output))
        return Reply(200, "text/event-stream", b"")


def forecast(plan: Plan, sessions: int, draw: Callable[[int], Session]) -> Forecast:
    """Go through a plan in recorded time.

    Args:
        plan: What to send, and when; at least one of its limits is set.
        sessions: How many sessions the trace has.
        draw: Reads a session by its index; raises `TraceError` where it can't be read.
    """
    # Answers come as a whole at their recorded end, so waiting for them has no limit.
    plan = replace(plan, drain_s=inf, first_token_s=None, next_token_s=None)
    recording = _Recording(plan, sessions, draw)
    ordinary, warmup = _Tally(), _Tally()
    plays, played = set[tuple[int, int]](), set[int]()

    def count(record: Record) -> None:
        request = record.request
        plays.add((request.lane, request.visit))
        played.add(request.index)
        (warmup if request.warmup else ordinary).add(record)

    async def run() -> None:
        stream, clock = recording.answer, virtual.clock
        await Replay(plan, sessions, recording.draw, _DIALECT, stream, clock, count).run()

    virtual.run(run)
    return Forecast(
        plays=len(plays),
        sessions=len(played),
        calls=ordinary.calls,
        input_tokens=ordinary.input_tokens,
        cached_tokens=ordinary.cached_tokens,
        output_tokens=ordinary.output_tokens,
        warmup_calls=warmup.calls,
        warmup_tokens=warmup.input_tokens,
        warmup_cached_tokens=warmup.cached_tokens,
        warmup_sent_s=warmup.sent_ns / 1e9 if warmup.calls else None,
        tree_skip_s=ordinary.tree_skip_s,
        idle_skip_s=ordinary.idle_skip_s,
        largest_prompt=max(ordinary.largest_prompt, warmup.largest_prompt),
        seconds=max(ordinary.done_ns, warmup.done_ns) / 1e9 if plays else None,
    )
