"""Server-sent events: bytes in any pieces in, events out. Pure."""

from __future__ import annotations

from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"

LONGEST_BYTES = 64 << 20
"""No event of a model is longer; what is, is no event, and must not fill the memory."""


class EventTooLong(Exception):  # noqa: N818 - it says what is wrong, not that something is
    """An event goes on and on."""


class Event(NamedTuple):
    """One event: its name, b"" for the default, and its data lines joined by line feeds."""

    name: bytes
    data: bytes


class Decoder:
    """Feed it the body of an event stream as it comes; each call returns the events now complete.

    Most reads are one event of one line: whoever asks `whole` first saves the most of the work.

    Lines end with LF, CRLF or CR only: other separators are legal inside JSON. Comments, ids and
    retry times are dropped.
    """

    __slots__ = ("_after_cr", "_begun", "_between", "_data", "_held", "_name", "_rest")

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # an unfinished line, in pieces, so that no byte moves twice
        self._data: list[bytes] = []
        self._held = 0  # bytes of the event that has begun
        self._name = b""
        self._after_cr = False
        self._begun = False
        self._between = False  # the stream has begun, and no event of it

    def whole(self, data: bytes) -> bytes | None:
        """The data of the one nameless event of one line that a read is, and nothing else.

        None for any other read, which is to be fed then.
        """
        if (
            self._between
            and data.startswith(b"data: ")
            and data.endswith(b"\n\n")
            and data.find(b"\n") == len(data) - 2
            and b"\r" not in data
        ):
            return data[6:-2]
        return None

    def feed(self, data: bytes) -> list[Event]:
        """Take the bytes of one read.

        Raises:
            EventTooLong: the event that has begun is longer than any can be.
        """
        whole = self.whole(data)
        return self._lines(data) if whole is None else [Event(b"", whole)]

    def close(self) -> list[Event]:
        """The event that the end of the stream left without its blank line, if any."""
        return self._lines(b"\n\n") if self._rest or self._data else []

    def _lines(self, data: bytes) -> list[Event]:
        self._between = False
        self._held += len(data)
        if self._held > LONGEST_BYTES:
            self._rest.clear()
            self._data.clear()
            raise EventTooLong(f"an event of more than {LONGEST_BYTES >> 20} MB")
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if b"\n" not in data and b"\r" not in data:
            if data:
                self._rest.append(data)
            return []
        if self._rest:
            data = b"".join((*self._rest, data))
            self._rest.clear()
        if not self._begun:
            data = data.removeprefix(_BOM)
            self._begun = True
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = data.split(b"\n")
        if rest:
            self._rest.append(rest)
        events: list[Event] = []
        for line in lines:
            if not line:
                if self._data:
                    events.append(Event(self._name, b"\n".join(self._data)))
                    self._data.clear()
                self._name = b""
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif line.startswith(b"event:"):
                self._name = line[6:].strip()
        self._held = len(rest) + sum(map(len, self._data))
        self._between = not (rest or self._data or self._name or self._after_cr)
        return events
