"""JSON as programs write it: what strict parsers refuse is read with replacements. Pure.

That is: lone surrogates, NaN and infinities, bytes that are no UTF-8, and great depth.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

import orjson


def parsed(data: bytes | str) -> Any:
    """The value of a JSON text; None where it is none."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return leniently(data)


def unwrapped(value: Any) -> Any:
    """A value that may be held as JSON text, as tables and attributes do; None where it is cut."""
    return parsed(value) if isinstance(value, str) and value.startswith(("{", "[")) else value


def leniently(data: bytes | str) -> Any:
    """The same for what orjson refuses."""
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    try:
        return _cleaned(json.loads(text, cls=_Decoder))
    except (ValueError, RecursionError):
        return None


def concatenated(text: str) -> tuple[list[Any], str]:
    """JSON values with nothing but space between them, as pretty-printed logs, and the rest."""
    decoder = _Decoder()
    values: list[Any] = []
    at = 0
    while True:
        at = next((i for i in range(at, len(text)) if not text[i].isspace()), len(text))
        try:
            value, end = decoder.raw_decode(text, at)
            values.append(_cleaned(value))
        except (ValueError, RecursionError):
            return values, text[at:]
        at = end


class _Decoder(json.JSONDecoder):
    """Numbers that are none, or beyond all bounds, are null."""

    def __init__(self) -> None:
        super().__init__(
            parse_constant=lambda _: None,
            parse_float=_finite,
            parse_int=lambda digits: int(digits) if _finite(digits) is not None else None,
        )


def _finite(text: str) -> float | None:
    number = float(text)
    return number if isfinite(number) else None


def _cleaned(value: Any) -> Any:
    """A value as orjson gives it, without lone surrogates."""
    return orjson.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
