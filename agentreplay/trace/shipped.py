"""Sessions that go to machines that don't have their files. Values once they are packed."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from agentreplay.errors import TraceError
from agentreplay.trace.model import Session, Trace


class Shipped(Sequence[Session]):
    """A trace set as one array of bytes, of which a session is unpacked when it is asked for.

    One array, since those who play it on one machine then have it in common. Some 40 bytes a call.
    Indexing raises `TraceError` for a session that could not be read where it was packed.

    Args:
        length: How many sessions the set has.
        packed: Those that were packed.
        spans: Where each lies, by its index.
        unread: Why others could not be read, by their index.
    """

    def __init__(
        self,
        length: int,
        packed: npt.NDArray[np.uint8],
        spans: Mapping[int, tuple[int, int]],
        unread: Mapping[int, str],
    ) -> None:
        self._length = length
        self._packed = packed
        self._spans = spans
        self._unread = unread

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Session: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Session]: ...
    def __getitem__(self, index: int | slice) -> Session | Sequence[Session]:
        """Unpack a session; `TraceError` where it could not be read."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        if index in self._unread:
            raise TraceError(self._unread[index])
        begin, end = self._spans[index]
        session: Session = pickle.loads(zlib.decompress(self._packed[begin:end].tobytes()))
        return session


def ship(trace: Trace, indices: Iterable[int], look: Callable[[], None] = lambda: None) -> Shipped:
    """Read sessions of a set, and pack them.

    Args:
        trace: The set.
        indices: Those that may be asked for.
        look: Called before each is read; may end it by raising.
    """
    packed = bytearray()
    spans: dict[int, tuple[int, int]] = {}
    unread: dict[int, str] = {}
    for index in indices:
        look()
        try:
            session = trace[index]
        except TraceError as error:
            unread[index] = str(error)
            continue
        begin = len(packed)
        packed += zlib.compress(pickle.dumps(session, pickle.HIGHEST_PROTOCOL), level=1)
        spans[index] = begin, len(packed)
    return Shipped(len(trace), np.frombuffer(packed, np.uint8), spans, unread)
