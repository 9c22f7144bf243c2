"""Files of traces as streams of bytes: found, unpacked, decoded. I/O.

What a file is packed with is seen from its first bytes, never from its name.
"""

from __future__ import annotations

import glob
import os
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from io import DEFAULT_BUFFER_SIZE, BufferedReader, BytesIO, FileIO, RawIOBase
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

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

BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_MAGIC_BYTES = 4

_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0)  # which Windows needs

DAMAGED = (EOFError, zlib.error, zipfile.BadZipFile)
"""What reading a damaged or cut packed file raises, after all that could be unpacked."""


class File(NamedTuple):
    """A file with traces: on disk, a member of an archive, or standard input.

    A tuple of plain values, since a folder may hold ten thousand of them.

    Attributes:
        source: Where it lies on the disk, the archive of a member too; `-` for standard input.
        member: The name of a member of a zip archive.
        data: What came through standard input; None for what lies on the disk.
        named: It was named itself and not found in a folder.
    """

    source: str
    member: str | None = None
    data: bytes | None = None
    named: bool = False

    @property
    def path(self) -> Path:
        """Its name for people; of a member, the archive's path and the member's name."""
        path = Path(self.source)
        return path if self.member is None else path / self.member.lstrip("/")

    def head(self, most: int) -> bytes:
        """The first bytes on the disk, at *most* so many; none where it can't be opened."""
        try:
            opened = os.open(self.source, _READ)
        except OSError:
            return b""  # told when it is read
        try:
            return os.read(opened, most)
        except OSError:
            return b""
        finally:
            os.close(opened)

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
            if stream.peek(len(BOM)).startswith(BOM):
                stream.read(len(BOM))
            yield stream
            if any(layer.damaged for layer in layers):
                raise EOFError("packed data that is damaged or ends early")

    def span(self, offset: int, length: int) -> bytes:
        """A part of a plain file.

        Raises:
            OSError: it can't be read any more.
        """
        with open(self.source, "rb", buffering=0) as stream:
            stream.seek(offset)
            return stream.read(length)

    def is_plain(self) -> bool:
        """Whether the bytes on the disk are the content, so that offsets mean something."""
        if self.data is not None or self.member is not None:
            return False
        with ExitStack() as stack:
            return not _magic(self._packed(stack)).startswith((_GZIP, _ZSTD, *_UTF16))

    def members(self) -> list[File]:
        """The members of a zip archive, or the file itself."""
        try:
            with ExitStack() as stack:
                if _magic(self._packed(stack)) not in _ZIP:
                    return [self]
            with zipfile.ZipFile(self._archive()) as archive:
                names = [name for name in archive.namelist() if is_trace_name(Path(name).name)]
        except zipfile.BadZipFile as error:
            raise TraceError(f"{self.path}: broken archive: {error}") from None
        if not names:
            raise TraceError(f"{self.path}: no trace files in the archive")
        return [self._replace(member=name) for name in sorted(names)]

    def _archive(self) -> str | BytesIO:
        return self.source if self.data is None else BytesIO(self.data)

    def _packed(self, stack: ExitStack, ahead_bytes: int = DEFAULT_BUFFER_SIZE) -> BufferedReader:
        try:
            if self.member is None:
                if self.data is not None:
                    return _buffered(self.data)
                return stack.enter_context(BufferedReader(FileIO(self.source), ahead_bytes))
            archive = stack.enter_context(zipfile.ZipFile(self._archive()))
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
            return [File(str(STDIN), data=sys.stdin.buffer.read(), named=True)]
        except (AttributeError, OSError, ValueError):
            raise TraceError("-: standard input is closed") from None
    try:
        path = path.expanduser()
        if path.is_dir():
            return list(_in_folder(path))
        if path.exists():
            return [File(str(path), named=True)]
        matches = sorted(glob.glob(str(path), recursive=True))
    except (OSError, RuntimeError):  # too long a name, nobody's home
        matches = []
    if not matches:
        raise TraceError(f"{path}: no such file or folder")
    files: list[File] = []
    for match in map(Path, matches):
        files += _in_folder(match) if match.is_dir() else [File(str(match), named=True)]
    return files


def is_trace_name(name: str) -> bool:
    """Whether a file in a folder may hold traces, by its name."""
    if name in _BESIDE or name.endswith(".meta.json"):
        return False
    stem, dot, suffix = name.rpartition(".")
    if dot + suffix in PACKED:
        stem, dot, suffix = stem.rpartition(".")
    return bool(stem) and dot + suffix in SUFFIXES


def _in_folder(folder: Path) -> Iterator[File]:
    """The files below a folder, in the order of their paths' parts; one listing for each folder.

    Links to folders are not followed, what can't be listed is left out.
    """
    try:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=attrgetter("name"))
    except PermissionError:
        return
    within = "" if folder == Path() else os.path.join(folder, "")
    for entry in entries:
        path = within + entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _in_folder(Path(path))
        elif is_trace_name(entry.name) and entry.is_file():
            yield File(path)
