"""Files of traces as streams of bytes: found, unpacked, decoded. I/O.

What a file is packed with is seen from its first bytes, never from its name.
"""

from __future__ import annotations

import glob
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from io import DEFAULT_BUFFER_SIZE, BufferedReader, BytesIO, FileIO, RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from agentreplay.errors import TraceError

if TYPE_CHECKING:
    from typing_extensions import Buffer

SUFFIXES = frozenset(
    ".json .jsonl .ndjson .har .mitm .flow .flows .csv .parquet .traj .db .zip".split()
)
"""What is looked at in a folder, with or without .gz or .zst after it; a file that is named is
looked at whatever its name."""

PACKED = frozenset((".gz", ".zst"))

# Agents keep these beside their sessions; they hold no calls.
_BESIDE = frozenset(
    "history.jsonl session_index.jsonl sessions-index.json journal.jsonl settings.json".split()
)

STDIN = Path("-")

_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_MAGIC_BYTES = 4

DAMAGED = (EOFError, zlib.error, zipfile.BadZipFile)
"""What reading a damaged or cut packed file raises, after all that could be unpacked."""


@dataclass(frozen=True, slots=True)
class File:
    """A file with traces: on disk, a member of an archive, or standard input.

    Attributes:
        path: Its name for people; of a member, the archive's path and the member's name.
        on_disk: The file to open; None for standard input.
        member: The name of a member of a zip archive.
        data: What came through standard input.
        named: It was named itself and not found in a folder.
    """

    path: Path
    on_disk: Path | None
    member: str | None = None
    data: bytes = b""
    named: bool = False

    @contextmanager
    def open(self, ahead_bytes: int = DEFAULT_BUFFER_SIZE) -> Iterator[BinaryIO]:
        """The content, unpacked, as UTF-8 without a byte-order mark.

        Args:
            ahead_bytes: How much is read from the disk at a time.

        Raises:
            TraceError: it can't be opened, or needs a package that isn't there.
        """
        with ExitStack() as stack:
            stream = self._packed(stack, ahead_bytes)
            layers = []
            while (magic := _magic(stream)).startswith(_GZIP) or magic == _ZSTD:
                layers.append(_Unpacked(stream, self.path, zstd=magic == _ZSTD))
                stream = stack.enter_context(BufferedReader(layers[-1]))
            if magic.startswith(_UTF16):
                stream = _buffered(stream.read().decode("utf-16", "replace").encode())
            if stream.peek(len(_BOM)).startswith(_BOM):
                stream.read(len(_BOM))
            yield stream
            if any(layer.damaged for layer in layers):
                raise EOFError("packed data that is damaged or ends early")

    def span(self, offset: int, length: int) -> bytes:
        """A part of a plain file.

        Raises:
            OSError: it can't be read any more.
        """
        assert self.on_disk is not None
        with open(self.on_disk, "rb", buffering=0) as stream:
            stream.seek(offset)
            return stream.read(length)

    def is_plain(self) -> bool:
        """Whether the bytes on the disk are the content, so that offsets mean something."""
        if self.on_disk is None or self.member is not None:
            return False
        with ExitStack() as stack:
            return not _magic(self._packed(stack)).startswith((_GZIP, _ZSTD, *_UTF16))

    def members(self) -> list[File]:
        """The members of a zip archive, or the file itself."""
        try:
            with ExitStack() as stack:
                if _magic(self._packed(stack)) not in _ZIP:
                    return [self]
            with zipfile.ZipFile(self._source()) as archive:
                names = [name for name in archive.namelist() if is_trace_name(Path(name))]
        except zipfile.BadZipFile as error:
            raise TraceError(f"{self.path}: broken archive: {error}") from None
        if not names:
            raise TraceError(f"{self.path}: no trace files in the archive")
        return [
            replace(self, path=self.path / name.lstrip("/"), member=name) for name in sorted(names)
        ]

    def _source(self) -> Path | BytesIO:
        return BytesIO(self.data) if self.on_disk is None else self.on_disk

    def _packed(self, stack: ExitStack, ahead_bytes: int = DEFAULT_BUFFER_SIZE) -> BufferedReader:
        try:
            if self.member is None:
                if self.on_disk is None:
                    return _buffered(self.data)
                return stack.enter_context(BufferedReader(FileIO(self.on_disk), ahead_bytes))
            archive = stack.enter_context(zipfile.ZipFile(self._source()))
            member = stack.enter_context(archive.open(self.member))
            return stack.enter_context(BufferedReader(cast(RawIOBase, member)))
        except OSError as error:
            raise TraceError(f"{self.path}: {error.strerror}") from None
        except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
            raise TraceError(f"{self.path}: broken archive: {error}") from None


def _magic(stream: BufferedReader) -> bytes:
    return stream.peek(_MAGIC_BYTES)[:_MAGIC_BYTES]


def _buffered(data: bytes) -> BufferedReader:
    return BufferedReader(cast(RawIOBase, BytesIO(data)))


class _Unpacked(RawIOBase):
    """What a gzip or zstd stream holds, to its last byte, also where it is cut or damaged.

    Several packed streams one after the other are one; what else follows is nothing.
    """

    _AHEAD_BYTES = 1 << 12  # of a piece with damage nothing is given, so pieces are small

    def __init__(self, stream: BinaryIO, path: Path, *, zstd: bool) -> None:
        self.damaged = False
        self._stream = stream
        self._begin: Callable[[], Any] = partial(zlib.decompressobj, 31)
        self._magic = _ZSTD if zstd else _GZIP
        if zstd:
            try:
                import zstandard
            except ImportError:
                raise TraceError(
                    f"{path}: it is packed with zstd: pip install 'agentreplay-loadgen[zstd]'"
                ) from None
            self._begin = zstandard.ZstdDecompressor().decompressobj
        self._decoder = self._begin()
        self._left = b""
        self._ready = b""
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        while not self._ready and not self._ended:
            self._unpack()
        given = self._ready[: len(view)]
        self._ready = self._ready[len(view) :]
        view[: len(given)] = given
        return len(given)

    def _unpack(self) -> None:
        packed = self._left or self._stream.read(self._AHEAD_BYTES)
        self._left = b""
        if self._decoder.eof:
            self._ended = not packed.startswith(self._magic)
            self._decoder = self._begin()
        elif not packed:
            self._ended = self.damaged = True
        if not self._ended:
            try:
                self._ready = self._decoder.decompress(packed)
            except Exception:  # each library has its own error, and each means damage
                self._ended = self.damaged = True
                self._ready = b""
            if self._decoder.eof:
                self._left = self._decoder.unused_data


def found(path: Path) -> list[File]:
    """The files that a path names: a file, a folder, a pattern, or `-` for standard input.

    Raises:
        TraceError: there is no such file, or nothing matches the pattern.
    """
    if path == STDIN:
        try:
            return [File(STDIN, None, data=sys.stdin.buffer.read(), named=True)]
        except (AttributeError, OSError, ValueError):
            raise TraceError("-: standard input is closed") from None
    try:
        path = path.expanduser()
        if path.is_dir():
            return _in_folder(path)
        if path.exists():
            return [File(path, path, named=True)]
        matches = sorted(glob.glob(str(path), recursive=True))
    except (OSError, RuntimeError):  # too long a name, nobody's home
        matches = []
    if not matches:
        raise TraceError(f"{path}: no such file or folder")
    files = []
    for match in map(Path, matches):
        files += _in_folder(match) if match.is_dir() else [File(match, match, named=True)]
    return files


def is_trace_name(path: Path) -> bool:
    """Whether a file in a folder may hold traces, by its name."""
    if path.name in _BESIDE or path.name.endswith(".meta.json"):
        return False
    name = path.with_suffix("") if path.suffix in PACKED else path
    return name.suffix in SUFFIXES


def _in_folder(folder: Path) -> list[File]:
    paths = sorted(path for path in folder.rglob("*") if is_trace_name(path) and path.is_file())
    return [File(path, path) for path in paths]
