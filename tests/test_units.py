"""Units as people write them."""

from __future__ import annotations

import pytest

from agentreplay import units
from agentreplay.errors import AgentReplayError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("1.5m", 90), ("1h30m", 5400), ("250ms", 0.25), ("2 min", 120), ("0s", 0)],
)
def test_durations_are_read_with_their_units(text: str, seconds: float) -> None:
    """Seconds, minutes, hours, and sums of them."""
    assert units.seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["20", "", "s", "1x", "-3s", "1h 30", "s30", "1.2.3s"])
def test_a_duration_without_a_unit_is_refused(text: str) -> None:
    """The message says what was read and how to write it."""
    with pytest.raises(AgentReplayError, match="write it with a unit"):
        units.seconds(text)


@pytest.mark.parametrize(("text", "share"), [("2%", 0.02), ("0.02", 0.02), ("100%", 1.0)])
def test_shares_are_read_in_percent_or_as_fractions(text: str, share: float) -> None:
    """2% and 0.02 are the same."""
    assert units.share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["2 percent", "200%", "-1%", "x"])
def test_what_is_no_share_is_refused(text: str) -> None:
    """A share lies between 0 and 100 %."""
    with pytest.raises(AgentReplayError, match="share"):
        units.share(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.0, "0 ms"),
        (0.00025, "250 µs"),
        (0.0123, "12.3 ms"),
        (0.9999, "1.00 s"),
        (29.94, "29.9 s"),
        (83, "1m23s"),
        (119.99, "2m00s"),
        (7265, "2h01m"),
    ],
)
def test_durations_are_shown_in_the_unit_that_suits(seconds: float | None, text: str) -> None:
    """What was not measured is a dash, never 0."""
    assert units.as_duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (7.126, "7.13"), (99.95, "100.0"), (7567, "7,567"), (1234.5, "1,234")],
)
def test_numbers_are_shown_to_the_digits_that_matter(value: float | None, text: str) -> None:
    """Three digits or so, thousands apart."""
    assert units.as_number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (512, "512"), (142_000, "142.0 k"), (6.04e9, "6.0 G")]
)
def test_tokens_are_shown_in_thousands_and_millions(value: float | None, text: str) -> None:
    """Small counts are shown whole."""
    assert units.as_tokens(value) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("13.8kB", 13_800),
        ("245 MB", 245e6),
        ("2GB", 2e9),
        ("16KiB", 16_384),
        ("1.5MiB", 1.5 * 2**20),
        ("1 GiB", 2**30),
        ("1TiB", 2**40),
        ("512B", 512),
    ],
)
def test_sizes_are_read_with_their_units(text: str, size: float) -> None:
    """kB, MB and GB are powers of 1000, KiB, MiB and GiB of 1024."""
    assert units.size(text) == pytest.approx(size)


@pytest.mark.parametrize("text", ["", "13", "kB", "-1kB", "1 kb/s", "1iB", "1e3B", "nanB"])
def test_a_size_without_a_unit_is_refused(text: str) -> None:
    """The message says what was read and how to write it."""
    with pytest.raises(AgentReplayError, match="write it with a unit"):
        units.size(text)


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (142_000 * 13_800, "1.96 GB"),
        (142_000 * 13_800 / 8, "245 MB"),
        (999_600, "1 MB"),
        (512, "512 B"),
        (1.5e15, "1,500 TB"),
        (None, "–"),
    ],
)
def test_sizes_are_shown_in_the_unit_that_suits(size: float | None, shown: str) -> None:
    """To three digits."""
    assert units.as_size(size) == shown


@pytest.mark.parametrize(
    ("dollars", "shown"),
    [(0, "$ 0.00"), (0.111402, "$ 0.111"), (0.9999, "$ 1.00"), (1234.5, "$ 1,234.50"), (None, "–")],
)
def test_dollars_are_shown_in_cents_and_less(dollars: float | None, shown: str) -> None:
    """Below one dollar to three digits."""
    assert units.as_dollars(dollars) == shown
