"""Prompt text computed from integers: a token range in, words out. Pure.

`words.txt` holds 512 words of four letters that are one token each, with the space before them,
in the tokenizers of the common models. So text of n words is n tokens, and any token range is one
gather from a table: nothing is stored, and no tokenizer is needed.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

WORD_BYTES = 5
"""A word and the space before it."""

FIRST_ID = 2000
"""The first of the token ids: past the bytes and special tokens that vocabularies begin with."""

_MASK = (1 << 64) - 1
_STEP = 16_384  # words gathered at once
_PER_HASH = 4  # words drawn from one 64-bit hash, 16 bits each


def mix(*numbers: int) -> int:
    """A 64-bit hash of integers, the same on every machine (the finaliser of SplitMix64)."""
    state = 0
    for number in numbers:
        state = (state ^ number) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def text(key: int, start: int, stop: int) -> list[bytes]:
    """The words at positions *start* to *stop* of the text named *key*.

    Each word depends on the key and its position only, so ranges can be joined and cut at will.

    Returns:
        Pieces of ASCII, each word with a space before it: five bytes a word, that need no
        escaping in JSON. They are pieces so that a long text is held once until it is joined to
        what it is part of.
    """
    return _gather(_words(), key, start, stop)


def ids(key: int, start: int, stop: int) -> list[bytes]:
    """The same as `text` in token ids, each with a comma before it: five bytes an id.

    The ids are plain tokens in every common vocabulary, though other ones than the words'.
    """
    return _gather(_ids(), key, start, stop)


def _gather(table: NDArray[np.uint8], key: int, start: int, stop: int) -> list[bytes]:
    pieces = []
    for low in range(start, stop, _STEP):
        high = min(low + _STEP, stop)
        first = low // _PER_HASH
        groups = np.arange(first, -(-high // _PER_HASH), dtype=np.uint64)
        drawn = _hashes(groups ^ np.uint64(key)).view("<u2") & np.uint16(len(table) - 1)
        inside = drawn[low - first * _PER_HASH : high - first * _PER_HASH]
        pieces.append(table.take(inside, axis=0).tobytes())
    return pieces


def _hashes(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = values * np.uint64(0x9E3779B97F4A7C15)
    values ^= values >> np.uint64(32)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(29)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(32)
    return values


@cache
def _words() -> NDArray[np.uint8]:
    """(512, 5) bytes: a space and a word a row."""
    words = files(__package__).joinpath("words.txt").read_bytes().split()
    return np.frombuffer(b"".join(b" " + word for word in words), np.uint8).reshape(-1, WORD_BYTES)


@cache
def _ids() -> NDArray[np.uint8]:
    """(512, 5) bytes: a comma and an id of four digits a row."""
    ids = b"".join(b",%d" % (FIRST_ID + n) for n in range(len(_words())))
    return np.frombuffer(ids, np.uint8).reshape(-1, WORD_BYTES)
