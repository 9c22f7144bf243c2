"""One request: what was planned, and what came of it. Values only.

Times are integer nanoseconds since the start of the run, taken where the bytes leave or arrive.
What did not happen is None. A failed request is a Record with an `error`, never an exception.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """All that is planned of one request but its bytes.

    Attributes:
        lane: The lane that sends it.
        visit: Number of the lane's visit.
        session: Id of the recorded session; other files may hold the same id.
        index: Place of the session in the trace; no other has it.
        call: Index of the call in the session.
        calls: How many calls the session has.
        agent: Label of the agent; "" is the main agent.
        due_ns: When it is to be sent.
        isl: Recorded input tokens.
        osl: Recorded output tokens; 0 where the recording says so.
        overlong: Tokens by which the prompt exceeds `isl`, being too short to pay for the chat
            template.
        block: Tokens a block of the recorded session.
        shared: Leading tokens shared with an earlier call of the recorded session, or of the set
            where sessions share prefixes.
        reuse: Leading tokens that were sent before in this run.
        history: What stands for the assistant's last turn: `recorded`, `live` (the server's own
            answer), or `substituted` (recorded, since the server's answer could not go back).
        recorded_s: How long the recorded call took, where that was measured.
        gap_cut_s: Seconds by which the wait before it was cut (`Plan.max_gap_s`).
        behind_s: Seconds from when it was due until what it waits for had ended; more than 0 with
            recorded times only.
        busy_s: Seconds from when it was due to this try, the server having been too busy for
            those before (`Plan.retry_busy`); 0 for a first try.
        warmup: It is sent to fill the server's cache, with an output of one token, and enters no
            measured figure.
        first: Index of the first call of the play that is no warm-up; more than 0 where the play
            begins within the session.
        tree_skip_s: Seconds by which what waited in its session was moved forward up to it, nothing
            of the session being in flight (`Plan.max_tree_idle_s`).
        idle_skip_s: The same for all that waited anywhere (`Plan.max_idle_s`).
    """

    lane: int
    visit: int
    session: str
    index: int
    call: int
    calls: int
    agent: str
    due_ns: int
    isl: int
    osl: int
    overlong: int
    block: int
    shared: int
    reuse: int
    history: str
    recorded_s: float | None
    gap_cut_s: float
    behind_s: float = 0.0
    busy_s: float = 0.0
    warmup: bool = False
    first: int = 0
    tree_skip_s: float = 0.0
    idle_skip_s: float = 0.0

    def play_id(self, run: str) -> str:
        """The name of its play, which a server is told; no other play of the run *run* has it."""
        return f"{run}-{self.lane}-{self.visit}"

    def request_id(self, run: str) -> str:
        """Its own name; a request that is sent again keeps it."""
        return f"{self.play_id(run)}-{self.call}"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request brought no usable answer.

    Attributes:
        kind: `connect` `tls` `timeout` `reset` `auth` `http_429` `http_4xx` `http_5xx`
            `context_overflow` `error_event` `truncated` `bad_stream` `client`, or `cancelled`
            (cut at the end of the run, counted apart from failures).
        status: The HTTP status, where one came.
        message: The cause in words, never empty.
    """

    kind: str
    status: int | None
    message: str


@dataclass(frozen=True, slots=True)
class Record:
    """The outcome of one request.

    Attributes:
        request: What was planned.
        sent_ns: Handed to the transport.
        first_token_ns: Arrival of the first chunk with a generated token of any kind.
        first_visible_ns: The same, content or tool call only.
        last_token_ns: Arrival of the last chunk with a token.
        done_ns: End of the answer, or of the attempt.
        chunk_us: Microseconds between successive chunks with tokens.
        chunk_tokens: Tokens of each chunk; None where one each.
        burst: All chunks with tokens came in one read.
        bundled_reads: Reads that held more than one event.
        reconnected: The first connection was found closed, and the request sent once more.
        isl: Input tokens as the server counted them.
        osl: Output tokens as the server counted them; where it sent no usage, the number of
            chunks with tokens.
        cached: Input tokens that the server read from its prefix cache.
        estimated: The server sent no usage, so `osl` is an estimate.
        finish: The server's finish_reason.
        error: None for a success.
        retry_s: Seconds after which it is sent again, the server being too busy; None where it
            is not. Such a refusal is neither a success nor a failure.
    """

    request: Request
    sent_ns: int
    first_token_ns: int | None
    first_visible_ns: int | None
    last_token_ns: int | None
    done_ns: int
    chunk_us: tuple[int, ...]
    chunk_tokens: tuple[int, ...] | None
    burst: bool
    bundled_reads: int
    reconnected: bool
    isl: int | None
    osl: int | None
    cached: int | None
    estimated: bool
    finish: str | None
    error: Failure | None
    retry_s: float | None = None


def input_tokens(record: Record) -> int:
    """Input tokens as the server counted them, else as sent."""
    return record.request.isl + record.request.overlong if record.isl is None else record.isl


def reused_tokens(record: Record) -> int:
    """Leading tokens that the server had seen: what it generated may be fewer as a prompt."""
    request = record.request
    return min(request.reuse, input_tokens(record)) if request.history == "live" else request.reuse
