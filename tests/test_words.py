"""Rules of the text that stands for tokens."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agentreplay.prompt import words as made_words
from agentreplay.prompt.words import WORD_BYTES, mix

keys = st.integers(0, 2**64 - 1)
positions = st.integers(0, 2**40)
lengths = st.integers(0, 300)


def text(key: int, start: int, stop: int) -> bytes:
    """The words of a range in one piece."""
    return b"".join(made_words.text(key, start, stop))


def test_vocabulary() -> None:
    """A long text uses 512 different words of four plain letters, and each about equally often."""
    words = text(mix(1), 0, 200_000).decode().split(" ")[1:]
    assert len(set(words)) == 512
    assert all(len(word) == 4 and word.isascii() and word.isalpha() for word in set(words))
    counts = {word: words.count(word) for word in words[:8]}
    assert all(200 < count < 700 for count in counts.values())


@settings(deadline=None)
@given(keys, positions, lengths)
def test_five_bytes_a_token(key: int, start: int, length: int) -> None:
    """Each token is a space and a word of four letters."""
    made = text(key, start, start + length)
    assert len(made) == length * WORD_BYTES == length * 5
    words = [made[i : i + 5] for i in range(0, len(made), 5)]
    assert all(word[:1] == b" " and word[1:].isalpha() for word in words)


@settings(deadline=None)
@given(keys, positions, lengths, lengths)
def test_ranges_join(key: int, start: int, first: int, second: int) -> None:
    """Two ranges that meet are the text of the whole range."""
    middle, end = start + first, start + first + second
    assert text(key, start, middle) + text(key, middle, end) == text(key, start, end)


@settings(deadline=None)
@given(keys, lengths, lengths)
def test_ranges_cut(key: int, a: int, b: int) -> None:
    """Any part of a text is the text of that range."""
    start, stop = min(a, b), max(a, b)
    assert text(key, start, stop) == text(key, 0, 300)[start * 5 : stop * 5]


@settings(deadline=None)
@given(keys, keys, positions)
def test_keys_differ(key: int, other: int, start: int) -> None:
    """The same key is the same text, and another key another, from its first words on."""
    one, two = (text(mix(k), start, start + 64) for k in (key, other))
    if key == other:
        assert one == two
    else:
        assert one[:40] != two[:40]
        pairs = [one[i : i + 5] == two[i : i + 5] for i in range(0, 320, 5)]
        assert sum(pairs) < 8


@settings(deadline=None)
@given(keys, positions)
def test_no_repetition(key: int, start: int) -> None:
    """A text does not repeat itself nearby: no eight words come twice in a thousand."""
    made = text(mix(key), start, start + 1000)
    runs = [made[i : i + 40] for i in range(0, len(made) - 39, 5)]
    assert len(set(runs)) == len(runs)


def test_the_same_everywhere() -> None:
    """The text of a key never changes, so runs on different machines send the same."""
    assert mix() == 0
    assert mix(1) == 0x910A2DEC89025CC1
    assert mix(1, 2) == 0xBCD9DBB49673066B
    assert text(mix(1), 0, 6) == b" zone does what quad hind hero"
    assert text(mix(1), 10**9, 10**9 + 3) == b" char chap mode"


@settings(deadline=None)
@given(st.lists(keys, max_size=4), st.integers(0, 5))
def test_mix(numbers: list[int], other: int) -> None:
    """A hash has 64 bits, and depends on each number and on their order."""
    hashed = mix(*numbers)
    assert 0 <= hashed < 2**64
    assert mix(*numbers) == hashed
    assert mix(*numbers, other) != hashed
    if numbers != numbers[::-1]:
        assert mix(*numbers[::-1]) != hashed
