"""An answer as it arrives: stamped bytes in, the events that are measured out. Pure.

Stamps are taken where the bytes arrive and handed in; nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import orjson

from agentreplay.wire.api import Piece, Usage, error_text
from agentreplay.wire.sse import Decoder, Event, EventTooLong

_DONE = b"[DONE]"


class Answer:
    """Feed it every read of an event stream; then look at what came.

    Attributes:
        stamps_ns: Arrival of each chunk with tokens.
        sizes: UTF-8 bytes of each of them.
        counts: The server's running count of output tokens at each of them that has one.
        first_visible_ns: Arrival of the first content or tool call.
        done_ns: Arrival of the protocol's own end mark.
        usage: The last value of each count that the server stated.
        finish: The finish_reason.
        error: The message of an error event.
        broken: What was wrong with an event that could not be read.
        bundled_reads: Reads with more than one event.
        token_reads: Reads with tokens.
    """

    def __init__(
        self, piece: Callable[[Mapping[str, Any]], Piece], kept: list[bytes] | None = None
    ) -> None:
        """*kept* takes the data of every event, where the answer is needed again."""
        self._piece = piece
        self._kept = kept
        self._events = Decoder()
        self.stamps_ns: list[int] = []
        self.sizes: list[int] = []
        self.counts: list[int] = []
        self.first_visible_ns: int | None = None
        self.done_ns: int | None = None
        self.usage = Usage(None, None, None)
        self.finish: str | None = None
        self.error: str | None = None
        self.broken: str | None = None
        self.bundled_reads = 0
        self.token_reads = 0

    def feed(self, at_ns: int, data: bytes) -> None:
        """Take the bytes of one read, which arrived at *at_ns*.

        Raises:
            EventTooLong: an event goes on and on; whatever may follow is not wanted.
        """
        whole = self._events.whole(data)
        if whole is not None:
            if self._take(at_ns, whole):
                self.token_reads += 1
            return
        try:
            events = self._events.feed(data)
        except EventTooLong as error:
            self.broken = self.broken or str(error)
            raise
        self._take_all(at_ns, events)

    def close(self, at_ns: int) -> None:
        """Note the end of the stream; an event cut off by it counts as not sent."""
        broken = self.broken
        try:
            self._take_all(at_ns, self._events.close())
        except EventTooLong:
            pass  # it was cut off before it could end
        self.broken = broken

    def _take_all(self, at_ns: int, events: Sequence[Event]) -> None:
        if len(events) > 1:
            self.bundled_reads += 1
        tokens = False
        for name, data in events:
            if name == b"error" and data and not data.startswith(_DONE):
                self.error = self.error or error_text(data) or "(no words)"
            elif self._take(at_ns, data):
                tokens = True
        self.token_reads += tokens

    def _take(self, at_ns: int, data: bytes) -> bool:
        """Take the data of one event that is not called an error; whether it has tokens."""
        try:
            piece = self._piece(orjson.loads(data))
        except (orjson.JSONDecodeError, AttributeError, TypeError) as error:
            if data.startswith(_DONE):
                self.done_ns = at_ns
            elif data:
                self.broken = self.broken or f"an event that can't be read: {error}"
            return False
        if self._kept is not None:
            self._kept.append(data)
        size = piece.size
        if size:
            self.stamps_ns.append(at_ns)
            self.sizes.append(size)
            self.done_ns = None  # an end mark that tokens follow is none
            if self.first_visible_ns is None and piece.visible:
                self.first_visible_ns = at_ns
        if piece.usage or piece.finish or piece.error:
            self._take_rest(piece)
        return size > 0

    def _take_rest(self, piece: Piece) -> None:
        """Take what stands in few events only."""
        if piece.usage:
            self.usage = piece.usage.after(self.usage)
            if piece.size and piece.usage.osl is not None:
                self.counts.append(piece.usage.osl)
        self.finish = piece.finish or self.finish
        self.error = self.error or piece.error


def chunk_tokens(sizes: Sequence[int], counts: Sequence[int], osl: int) -> tuple[int, ...] | None:
    """How many of *osl* tokens came in each chunk; None where one each (docs/metrics.md).

    From the server's running counts where it sent one with every chunk; else, where chunks and
    tokens are not equally many, in proportion to the bytes, the first chunk holding at least one.
    """
    if len(sizes) == osl or not sizes:
        return None
    running = list(counts)
    if len(running) != len(sizes) or running != sorted(running) or running[-1] != osl:
        total, seen, running = sum(sizes), 0, []
        for size in sizes:
            seen += size
            running.append(max(min(1, osl), round(osl * seen / total)))
    return tuple(now - before for before, now in pairwise([0, *running]))
