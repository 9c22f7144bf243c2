"""The one seam to the network: bytes out, stamped bytes in.

Everything that measures stands on this side of it, everything that moves bytes on the other: an
HTTP endpoint, or the simulated server in virtual time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from agentreplay.metrics.record import Request

Sink: TypeAlias = Callable[[int, bytes], None]
"""Takes the body of an event stream as it comes: arrival in nanoseconds of the run's clock, and
the bytes of one read (without the framing of HTTP)."""


@dataclass(frozen=True, slots=True)
class Reply:
    """How a response ended that ended at all.

    Attributes:
        status: The HTTP status.
        content_type: As the server sent it, without parameters, in lower case; "" for none.
        body: The first bytes of a response that was no event stream; empty for an event stream,
            whose bytes went to the sink.
        reconnected: A reused connection was found closed, and the request sent once more.
        held_ns: How long the request waited until it was its turn to connect: until then it was on
            this side, and not sent.
        retry_after_s: How long the server asks to wait before the next try; None where it doesn't.
    """

    status: int
    content_type: str
    body: bytes
    reconnected: bool = False
    held_ns: int = 0
    retry_after_s: float | None = None


Stream: TypeAlias = Callable[[Request, bytes, Sink], Awaitable[Reply]]
"""Sends the bytes of a request and returns when the response has ended.

A broken connection, a timeout and anything else that gives no complete response raises an
`httpx.RequestError`.
"""
