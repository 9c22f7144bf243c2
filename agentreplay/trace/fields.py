"""Fields of logs, in which anything may stand: texts, objects, numbers, times. Pure.

Each of these functions takes any value, and gives nothing where it is not what is looked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any

_FRACTION = re.compile(r"(?<=\.)\d+")

_LARGEST_COUNT = 1 << 53
"""More tokens than any prompt has: what is larger is no length."""


def string(value: object) -> str | None:
    """Text that is not empty."""
    return value if isinstance(value, str) and value else None


def identity(value: object) -> str | None:
    """What names something: text that is not empty, or a whole number as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return string(value)


def inside(value: object, *names: str) -> Mapping[str, Any]:
    """The object in a field (of the object in a field …); an empty one where there is none."""
    for each in names:
        value = value.get(each) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[dict[str, Any]]:
    """The objects of a list."""
    if not isinstance(value, list):
        return []
    return [each for each in value if isinstance(each, dict)]


def number(value: object) -> float | None:
    """A finite number, also one written as text; None for everything else."""
    if type(value) is float:
        return value if isfinite(value) else None
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None  # a tuple of types: making a union of them costs as much as the rest
    try:
        read = float(value)
    except (ValueError, OverflowError):
        return None
    return read if isfinite(read) else None


def count(value: object) -> int | None:
    """A non-negative whole number, also one written as text or as a float."""
    if type(value) is int:
        return value if 0 <= value <= _LARGEST_COUNT else None
    read = number(value)
    if read is None or not 0 <= read <= _LARGEST_COUNT or not read.is_integer():
        return None
    return int(read)


def unix_s(value: object) -> float | None:
    """A point in time as Unix seconds; None where it is none.

    Text is ISO 8601 with any number of fraction digits; without a zone it counts as UTC. Numbers,
    also as text, are seconds, milliseconds, microseconds or nanoseconds by their size.
    """
    if isinstance(value, str) and "-" in value:
        try:
            return _iso_s(value)
        except ValueError:
            pass
    read = number(value)
    if read is None or read < 0:
        return None
    for unit in (1.0, 1e3, 1e6):
        if read / unit < 1e11:
            return read / unit
    return read / 1e9


def _iso_s(text: str) -> float:
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        # More than six digits of a second are cut.
        read = datetime.fromisoformat(_FRACTION.sub(lambda digits: digits[0][:6], text.strip()))
    if read.tzinfo is None:
        read = read.replace(tzinfo=UTC)
    try:
        at_s = read.timestamp()
    except OverflowError:
        at_s = -1.0
    if at_s < 0:  # the year 1 stands for no time
        raise ValueError(f"{text!r} is out of range")
    return at_s
