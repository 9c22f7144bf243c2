"""HTTP/1.1 responses out of bytes, without any I/O.

Rule: how the bytes are cut into reads changes nothing but when the parts of a body come out.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

BLOCK_LIMIT: Final = 64 * 1024
"""Most bytes of a header block, of a chunk's size line, or of the trailers."""

_STATUS_LINE = re.compile(rb"HTTP/1\.([0-9]) ([1-9][0-9]{2})(?: (.*))?", re.DOTALL)
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\x00\r]*)")
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\n]*)?\r?\n")
_LENGTH = re.compile(rb"[0-9]{1,18}")

_SHORTEST = b"1\r\nx\r\n"
"""No chunk is shorter."""

# What the next byte belongs to.
_STATUS, _HEADERS, _PAYLOAD, _UNTIL_CLOSE, _SIZE, _CHUNK_END, _TRAILERS, _DONE = range(8)


@lru_cache(4096)
def _size_line(read: int) -> bytes:
    """How a read of so many bytes begins that is one whole chunk."""
    if read < len(_SHORTEST):
        return _SHORTEST  # which it is not
    digits = 1
    while read >= 16**digits + digits + 4:
        digits += 1
    return b"%0*x\r\n" % (digits, read - digits - 4)


class BadResponse(Exception):  # noqa: N818  it names what came
    """The bytes are no HTTP/1.1 response, or end before the response does."""


class CutShort(BadResponse):
    """They end before the response does."""


class ResponseReader:
    """Reads one response; `BadResponse` ends it.

    Attributes:
        status: The status; 0 until its line has come.
        reason: The words after the status.
        http_version: `HTTP/1.1`, or what the server said instead.
        headers: Names and values in the order they came, repeated ones too.
        head_complete: Status and headers are final.
        complete: The whole response has come.
        keep_alive: The connection can take another request once the response is complete.
    """

    __slots__ = (
        "_block",
        "_bodiless",
        "_chunked",
        "_left",
        "_partial",
        "_state",
        "complete",
        "head_complete",
        "headers",
        "http_version",
        "keep_alive",
        "reason",
        "status",
    )

    def __init__(self, *, to_head: bool = False) -> None:
        """Set *to_head* for the answer to a HEAD request, which announces a body and has none."""
        self.status = 0
        self.reason = b""
        self.http_version = b"HTTP/1.1"
        self.headers: list[tuple[bytes, bytes]] = []
        self.head_complete = False
        self.complete = False
        self.keep_alive = False
        self._bodiless = to_head
        self._chunked = False
        self._state = _STATUS
        self._left = 0
        self._block = 0
        self._partial = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Take the bytes of one read; return the bytes of the body that are among them."""
        # An event stream is nearly always read in whole chunks, and most reads are of one.
        if self._state == _SIZE and not self._partial:
            begins = _size_line(len(data))
            if data.startswith(begins) and data.endswith(b"\r\n"):
                return data[len(begins) : -2]
        parts: list[bytes] = []
        position = 0
        while position < len(data):
            if self._state == _SIZE and not self._partial:
                line = _SIZE_LINE.match(data, position)
                if line is not None:
                    begin = line.end()
                    end = begin + int(line[1], 16)
                    if begin < end and data.startswith(b"\r\n", end):
                        parts.append(data[begin:end])
                        position = end + 2
                        continue
            if self._state == _PAYLOAD:
                part = data[position : position + self._left]
                parts.append(part)
                position += len(part)
                self._left -= len(part)
                if not self._left:
                    self._end_payload()
            elif self._state == _UNTIL_CLOSE:
                parts.append(data[position:])
                break
            elif self._state == _DONE:
                # Whatever it is, it answers nothing that was asked.
                self.keep_alive = False
                break
            else:
                position = self._take(data, position)
        return b"".join(parts)

    def eof(self) -> None:
        """The peer has closed: the end of a body without a length, otherwise a `CutShort`."""
        self.keep_alive = False
        if self._state == _UNTIL_CLOSE:
            self._finish()
        elif self._state == _STATUS and not self.status and not self._partial:
            raise CutShort("closed before any byte of a response")
        elif not self.head_complete:
            tail = f", last {bytes(self._partial[:80])!r}" if self._partial else ""
            raise CutShort(f"closed before the end of the headers{tail}")
        elif self._state == _PAYLOAD and not self._chunked:
            raise CutShort(f"closed {self._left} bytes before the end of the body")
        elif not self.complete:
            raise CutShort("closed before the last chunk of the body")

    def header(self, name: bytes) -> bytes:
        """The values of header *name*, which is in lower case, joined by commas; empty for none."""
        return b", ".join([value for other, value in self.headers if other.lower() == name])

    def _take(self, data: bytes, position: int) -> int:
        """Use the line at *position*, or keep what there is of it; return where it ends."""
        end = data.find(b"\n", position) + 1 or len(data)
        self._block += end - position
        if self._block > BLOCK_LIMIT:
            what = "trailers or size line" if self.head_complete else "header block"
            raise BadResponse(f"{what} of more than {BLOCK_LIMIT} bytes")
        line = data[position:end]
        if self._partial or line[-1] != 10:
            self._partial += line
            if line[-1] != 10:
                return end
            line = bytes(self._partial)
            self._partial.clear()
        self._use(line)
        return end

    def _use(self, line: bytes) -> None:
        text = line[:-1].removesuffix(b"\r")
        if self._state == _HEADERS:
            if text:
                self._header(text)
            else:
                self._end_head()
        elif self._state == _STATUS:
            self._status_line(text)
        elif self._state == _SIZE:
            self._block = 0
            size = _SIZE_LINE.fullmatch(line)
            if size is None:
                raise BadResponse(f"not the size of a chunk: {text[:80]!r}")
            self._left = int(size[1], 16)
            self._state = _PAYLOAD if self._left else _TRAILERS
        elif self._state == _CHUNK_END:
            self._block = 0
            if text:
                raise BadResponse(f"a chunk is longer than its size, by {text[:80]!r}")
            self._state = _SIZE
        elif not text:
            self._finish()

    def _status_line(self, text: bytes) -> None:
        match = _STATUS_LINE.fullmatch(text)
        if match is None:
            raise BadResponse(f"not the status line of HTTP/1: {text[:80]!r}")
        self.http_version = text[:8]
        self.keep_alive = match[1] != b"0"
        self.status = int(match[2])
        self.reason = match[3] or b""
        self._state = _HEADERS

    def _header(self, text: bytes) -> None:
        if text[0] in b" \t" and self.headers:
            name, value = self.headers[-1]
            self.headers[-1] = (name, value + b" " + text.strip(b" \t"))
            return
        match = _HEADER.fullmatch(text)
        if match is None:
            raise BadResponse(f"not a header: {text[:80]!r}")
        self.headers.append((match[1], match[2].rstrip(b" \t")))

    def _end_head(self) -> None:
        self._block = 0
        if self.status == 101:
            raise BadResponse("101 Switching Protocols, which was not asked for")
        if self.status < 200:
            self.status = 0
            self.headers = []
            self._state = _STATUS
            return
        connection = self._tokens(b"connection")
        if b"close" in connection:
            self.keep_alive = False
        elif b"keep-alive" in connection:
            self.keep_alive = True
        coding = self._tokens(b"transfer-encoding")
        lengths = set(self._tokens(b"content-length"))
        if self._bodiless or self.status in (204, 304):
            self._finish()
        elif coding:
            if coding != [b"chunked"]:
                raise BadResponse(f"transfer-encoding {b', '.join(coding)!r}, not chunked")
            # A length beside it means that someone on the way may see another end.
            self.keep_alive = self.keep_alive and not lengths
            self._chunked = True
            self._state = _SIZE
        elif lengths:
            length = lengths.pop()
            if lengths or not _LENGTH.fullmatch(length):
                raise BadResponse(f"content-length {b', '.join(sorted({length, *lengths}))!r}")
            self._left = int(length)
            self._state = _PAYLOAD
            if not self._left:
                self._finish()
        else:
            self.keep_alive = False
            self._state = _UNTIL_CLOSE
        self.head_complete = True

    def _tokens(self, name: bytes) -> list[bytes]:
        return [token.strip() for token in self.header(name).lower().split(b",") if token.strip()]

    def _end_payload(self) -> None:
        if self._chunked:
            self._state = _CHUNK_END
        else:
            self._finish()

    def _finish(self) -> None:
        self.complete = True
        self._state = _DONE
