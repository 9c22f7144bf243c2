"""Send one request, read its answer, and say what came of it: Request → Record.

An endpoint's failure is data: nothing that a server or the network does raises from here.
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from collections.abc import Callable
from dataclasses import replace
from operator import sub
from typing import NamedTuple

import anyio
import httpx

from agentreplay.client.stream import Reply, Stream
from agentreplay.metrics.record import Failure, Record, Request
from agentreplay.wire.answer import Answer, chunk_tokens
from agentreplay.wire.api import Api, error_text
from agentreplay.wire.http1 import BadResponse, CutShort
from agentreplay.wire.sse import EventTooLong

MESSAGE_CHARS = 500

EXHAUSTED = (errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENFILE, errno.ENOBUFS)
"""This machine has no port, open file or buffer left for another connection."""

POLL_S = 1.0
"""Without a limit on the first token, it is looked for so often, to start the next limit's time."""


BUSY_S = 1.0
"""A busy server that doesn't say when is asked again after this time."""

SHORTEST_BUSY_S, LONGEST_BUSY_S = 0.1, 600.0
"""No server is asked again sooner, and none for longer than this in all."""


class Patience(NamedTuple):
    """How long tokens may stay away before a request has failed; None for no limit.

    With `retry_busy` a refusal with 429 or 503 is no failure yet: the request is to be sent again.
    """

    first_token_s: float | None = None
    next_token_s: float | None = None
    retry_busy: bool = False


class _Watch:
    """Gives a request up when its tokens stay away for too long.

    One timer, armed again for the rest of the time, so that a token costs nothing.
    """

    def __init__(
        self, answer: Answer, clock: Callable[[], int], sent_ns: int, patience: Patience
    ) -> None:
        self.scope = anyio.CancelScope()
        self.failure: Failure | None = None
        self._answer = answer
        self._clock = clock
        self._sent_ns = sent_ns
        self._patience = patience
        self._timer: asyncio.TimerHandle | None = None
        if patience.first_token_s is not None or patience.next_token_s is not None:
            self._look()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        stamps = self._answer.stamps_ns
        which, since_ns = ("another", stamps[-1]) if stamps else ("a first", self._sent_ns)
        limit_s = self._patience.next_token_s if stamps else self._patience.first_token_s
        if limit_s is None:  # the next limit's, which is there if the first's is not
            left_s = min(POLL_S, self._patience.next_token_s or POLL_S)
        else:
            left_s = limit_s - (self._clock() - since_ns) / 1e9
        if limit_s is not None and left_s <= 0:
            self.failure = Failure("timeout", None, f"no sign of {which} token for {limit_s:g} s")
            self.scope.cancel()
            return
        self._timer = asyncio.get_running_loop().call_later(left_s, self._look)


async def exchange(
    stream: Stream,
    api: Api,
    request: Request,
    body: bytes,
    clock: Callable[[], int],
    on_record: Callable[[Record], None],
    kept: list[bytes] | None = None,
    patience: Patience | None = None,
) -> Record:
    """Send *body* as *request* by *api* and hand over the Record; when cancelled, as that.

    Args:
        stream: Sends it.
        api: The API that is spoken.
        request: What is planned.
        body: The bytes.
        clock: Nanoseconds of the run.
        on_record: Takes the Record.
        kept: Takes the data of every event, where the answer is needed again.
        patience: How long tokens may stay away; without end where None.
    """
    answer = Answer(api.piece, kept)
    reply: Reply | None = None
    failure: Failure | None = None
    sent_ns = clock()
    patience = patience or Patience()
    watch = _Watch(answer, clock, sent_ns, patience)

    try:
        with watch.scope:
            reply = await stream(request, body, answer.feed)
        if reply is None:
            failure = watch.failure or event_failure(answer)
        else:
            sent_ns += reply.held_ns
            answer.close(clock())
            failure = reply_failure(reply, answer)
    except EventTooLong:
        failure = event_failure(answer)
    except httpx.RequestError as error:
        failure = event_failure(answer) or transport_failure(error)
    except anyio.get_cancelled_exc_class():
        cancelled = Failure("cancelled", None, "cut at the end of the run")
        on_record(record(request, sent_ns, clock(), answer, reply, cancelled))
        raise
    finally:
        watch.stop()
    made = record(request, sent_ns, clock(), answer, reply, failure)
    if patience.retry_busy and reply is not None:
        made = replace(made, retry_s=_busy_s(request, reply))
    on_record(made)
    return made


def record(
    request: Request,
    sent_ns: int,
    done_ns: int,
    answer: Answer,
    reply: Reply | None,
    failure: Failure | None,
) -> Record:
    """What came of a request, from what arrived of its answer."""
    stamps, usage = answer.stamps_ns, answer.usage
    osl = usage.osl if usage.osl is not None else len(stamps) or None
    return Record(
        request=request,
        sent_ns=sent_ns,
        first_token_ns=stamps[0] if stamps else None,
        first_visible_ns=answer.first_visible_ns,
        last_token_ns=stamps[-1] if stamps else None,
        done_ns=answer.done_ns or done_ns,
        chunk_us=_micros(stamps),
        chunk_tokens=chunk_tokens(answer.sizes, answer.counts, osl) if osl else None,
        burst=answer.token_reads == 1 and osl is not None and osl > 1,
        bundled_reads=answer.bundled_reads,
        reconnected=reply is not None and reply.reconnected,
        isl=usage.isl,
        osl=osl,
        cached=usage.cached,
        estimated=usage.osl is None,
        finish=answer.finish,
        error=failure,
    )


def reply_failure(reply: Reply, answer: Answer) -> Failure | None:
    """Why a response that ended is no success; None where it is one.

    A stream succeeds when it ended cleanly after a finish_reason with at least one token.
    """
    status = reply.status
    if status != 200:
        return _refusal(reply)
    if failure := event_failure(answer):
        return failure
    if reply.content_type != "text/event-stream":
        said = error_text(reply.body).strip() or "(no body)"
        what = f"the answer is no event stream but {reply.content_type or 'untyped'}: {said}"
        return Failure("bad_stream", status, _short(what))
    if answer.finish is None:
        tokens = len(answer.stamps_ns)
        what = f"the stream ended without a finish_reason, after {tokens} chunks with tokens"
        return Failure("truncated", status, what)
    if not answer.stamps_ns:
        return Failure("truncated", status, "the stream ended without a token")
    return None


def event_failure(answer: Answer) -> Failure | None:
    """Why the events that came make no answer; None where nothing speaks against it."""
    if answer.error:
        return Failure("error_event", 200, _short(answer.error))
    if answer.broken:
        return Failure("bad_stream", 200, _short(answer.broken))
    return None


def transport_failure(error: httpx.RequestError) -> Failure:
    """Name the kind of a transport's exception."""
    kind = "client"
    if isinstance(error, httpx.TimeoutException):
        kind = "timeout"
    elif isinstance(error, httpx.ConnectError):
        kind = _connect_kind(error)
    elif isinstance(error, httpx.RemoteProtocolError):
        cause = error.__cause__
        unread = isinstance(cause, BadResponse) and not isinstance(cause, CutShort)
        kind = "bad_stream" if unread else "truncated"
    elif isinstance(error, httpx.DecodingError):
        kind = "bad_stream"
    elif isinstance(error, httpx.NetworkError):
        kind = "reset"
    return Failure(kind, None, _short(str(error) or type(error).__name__))


def _connect_kind(error: httpx.ConnectError) -> str:
    """Whose fault a connection is that did not come about: this machine's, of TLS, or the peer's.

    Through a proxy the cause lies some exceptions deeper.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return "tls"
        if isinstance(cause, OSError):
            # Where several addresses were tried, only the words of each error are left.
            said = str(cause)
            if any(cause.errno == why or os.strerror(why) in said for why in EXHAUSTED):
                return "client"
        cause = cause.__cause__ or cause.__context__
    return "connect"


def _busy_s(request: Request, reply: Reply) -> float | None:
    """How long to wait before *request* is sent again; None where it is not to be."""
    if reply.status not in (429, 503):
        return None
    wait_s = BUSY_S if reply.retry_after_s is None else reply.retry_after_s
    wait_s = max(wait_s, SHORTEST_BUSY_S)
    return wait_s if request.busy_s + wait_s <= LONGEST_BUSY_S else None


def _refusal(reply: Reply) -> Failure:
    status, said = reply.status, error_text(reply.body).strip() or "(no body)"
    words = f"HTTP {status}: {said}"
    if status in (401, 403):
        kind = "auth"
    elif status == 429:
        kind = "http_429"
    elif status >= 500:
        kind = "http_5xx"
    elif _is_overflow(said):
        kind = "context_overflow"
    else:
        kind = "http_4xx"  # also what is neither a success nor an error, as a redirect
    return Failure(kind, status, _short(words))


def _is_overflow(said: str) -> bool:
    lowered = said.lower()
    return "context" in lowered and any(
        word in lowered for word in ("length", "exceed", "window", "size")
    )


def _short(text: str) -> str:
    """One line of bounded length without control characters."""
    plain = "".join(char if char.isprintable() else " " for char in text[: 2 * MESSAGE_CHARS])
    return " ".join(plain.split())[:MESSAGE_CHARS] or "(no words)"


def _micros(stamps_ns: list[int]) -> tuple[int, ...]:
    """Gaps between stamps in whole microseconds, which add up to the whole span's."""
    if not stamps_ns:
        return ()
    first = stamps_ns[0]
    micros = [(stamp - first) // 1000 for stamp in stamps_ns]
    return tuple(map(sub, micros[1:], micros))
