"""Units as people write them, to and from the seconds, tokens and shares used inside. Pure."""

from __future__ import annotations

import re

from agentreplay.errors import AgentReplayError

ABSENT = "–"
"""Stands for what was not measured."""

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(?:([kmgt])(i?))?b")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|min|s|m|h|d)")


def seconds(text: str) -> float:
    """Read a duration such as `30s`, `1.5m`, `1h30m` or `250ms`.

    Raises:
        AgentReplayError: it is no duration, or has no unit.
    """
    compact = text.strip().lower().replace(" ", "")
    parts = _DURATION.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise AgentReplayError(
            f"{text!r} is no duration: write it with a unit, as 30s, 5m or 1h30m"
        )
    return float(sum(float(number) * _SECONDS[unit] for number, unit in parts))


def share(text: str) -> float:
    """Read a share such as `2%` or `0.02`.

    Raises:
        AgentReplayError: it is none, or not between 0 and 1.
    """
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise AgentReplayError(f"{text!r} is no share: write 2% or 0.02") from None
    if not 0 <= value <= 1:
        raise AgentReplayError(f"{text!r} is no share: it must lie between 0 % and 100 %")
    return value


def size(text: str) -> float:
    """Read a size in bytes such as `13.8kB`, `245 MB` or `16KiB`.

    Raises:
        AgentReplayError: it is none, or has no unit.
    """
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None:
        raise AgentReplayError(f"{text!r} is no size: write it with a unit, as 13.8kB or 16KiB")
    number, letter, binary = found.groups()
    return float(number) * float(1024 if binary else 1000) ** " kmgt".index(letter or " ")


def as_size(value: float | None) -> str:
    """Bytes in the unit that suits their size."""
    if value is None:
        return ABSENT
    for exponent, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        scaled = value / 1000**exponent
        if scaled >= 0.9995:
            return f"{scaled:,.0f} {unit}" if scaled >= 999.5 else f"{scaled:.3g} {unit}"
    return f"{value:.0f} B"


def as_dollars(value: float | None) -> str:
    """Dollars and cents; below one dollar to three digits."""
    if value is None:
        return ABSENT
    return f"$ {value:,.2f}" if value >= 0.9995 or not value else f"$ {value:.3g}"


def as_duration(value_s: float | None) -> str:
    """Seconds in the unit that suits their size."""
    if value_s is None:
        return ABSENT
    if value_s < 0:
        return "-" + as_duration(-value_s)
    if value_s < 0.001:
        return f"{value_s * 1e6:.0f} µs" if value_s else "0 ms"
    if value_s < 1:
        return f"{value_s * 1e3:.3g} ms" if value_s < 0.9995 else "1.00 s"
    if value_s < 59.95:
        return f"{value_s:.3g} s"
    minutes, rest_s = divmod(round(value_s), 60)
    if minutes < 60:
        return f"{minutes}m{rest_s:02d}s"
    return f"{minutes // 60:,}h{minutes % 60:02d}m"


def as_number(value: float | None) -> str:
    """A count or a rate to the digits that matter."""
    if value is None:
        return ABSENT
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"


def as_tokens(value: float | None) -> str:
    """Tokens in thousands or millions."""
    if value is None:
        return ABSENT
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):,.1f} {letter}"
    return f"{value:,.0f}"


def as_percent(value: float | None) -> str:
    """A share in percent."""
    return ABSENT if value is None else f"{value * 100:.1f} %"
