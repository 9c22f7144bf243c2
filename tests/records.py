"""Records made by hand, in milliseconds."""

from __future__ import annotations

import itertools

from agentreplay.metrics.record import Failure, Record, Request


def record(
    chunks_ms: list[int],
    tokens: list[int] | None = None,
    *,
    sent_ms: int = 0,
    due_ms: int | None = None,
    visible_ms: int | None = None,
    isl: int = 100,
    isl_served: int | None = 100,
    osl: int | None = None,
    osl_recorded: int | None = None,
    lane: int = 0,
    visit: int = 0,
    call: int = 0,
    calls: int = 1,
    index: int = 0,
    cached: int | None = None,
    reuse: int = 0,
    shared: int = 0,
    history: str = "recorded",
    recorded_s: float | None = None,
    gap_cut_s: float = 0.0,
    error: Failure | None = None,
    burst: bool = False,
    done_ms: int | None = None,
    agent: str = "",
    warmup: bool = False,
    first: int = 0,
    tree_skip_s: float = 0.0,
    idle_skip_s: float = 0.0,
    retry_s: float | None = None,
) -> Record:
    """A record whose chunks with tokens came at the given milliseconds."""
    count = osl if osl is not None else sum(tokens) if tokens else len(chunks_ms) or None
    ns = [ms * 1_000_000 for ms in chunks_ms]
    last_ms = chunks_ms[-1] if chunks_ms else sent_ms
    return Record(
        request=Request(
            lane=lane,
            visit=visit,
            session=f"s{index}",
            index=index,
            call=call,
            calls=calls,
            agent=agent,
            due_ns=(sent_ms if due_ms is None else due_ms) * 1_000_000,
            isl=isl,
            osl=(count or 0) if osl_recorded is None else osl_recorded,
            overlong=0,
            block=10,
            shared=shared,
            reuse=reuse,
            history=history,
            recorded_s=recorded_s,
            gap_cut_s=gap_cut_s,
            warmup=warmup,
            first=first,
            tree_skip_s=tree_skip_s,
            idle_skip_s=idle_skip_s,
        ),
        sent_ns=sent_ms * 1_000_000,
        first_token_ns=ns[0] if ns else None,
        first_visible_ns=visible_ms * 1_000_000 if visible_ms else (ns[0] if ns else None),
        last_token_ns=ns[-1] if ns else None,
        done_ns=(last_ms if done_ms is None else done_ms) * 1_000_000,
        chunk_us=tuple(b * 1000 - a * 1000 for a, b in itertools.pairwise(chunks_ms)),
        chunk_tokens=tuple(tokens) if tokens else None,
        burst=burst,
        bundled_reads=0,
        reconnected=False,
        isl=isl_served,
        osl=count,
        cached=cached,
        estimated=isl_served is None,
        finish="stop",
        error=error,
        retry_s=retry_s,
    )
