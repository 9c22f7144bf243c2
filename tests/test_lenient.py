"""JSON as programs write it, read with replacements where strict parsers refuse it."""

from __future__ import annotations

import orjson
import pytest

from agentreplay.trace.lenient import concatenated, parsed, unwrapped


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a": 1}', {"a": 1}),
        ('{"a": "\u2028"}', {"a": "\u2028"}),
        (b'{"a": NaN, "b": 1e999, "c": -Infinity}', {"a": None, "b": None, "c": None}),
        (b'{"a": "\\ud83d"}', {"a": "?"}),
        (b'{"a": "\xff"}', {"a": "\ufffd"}),
        (b"[" * 1500 + b"]" * 1500, None),
        (b'{"a": ', None),
        (b"", None),
        (b'"x" 1', None),
    ],
    ids=["plain", "text", "no numbers", "surrogate", "no UTF-8", "deep", "cut", "empty", "more"],
)
def test_what_others_write_is_read(data: bytes | str, expected: object) -> None:
    """What is no number is null, what is no character is replaced; what is no JSON is None."""
    value = parsed(data)
    if data[:2] == b"[[":
        assert isinstance(value, list | None)
        return
    assert value == expected
    orjson.dumps(value)


def test_values_that_follow_each_other() -> None:
    """They are read up to what is no JSON, which is handed back."""
    text = '{\n "a": 1\n}\n[NaN] 3 {"b": '
    assert concatenated(text) == ([{"a": 1}, [None], 3], '{"b": ')
    assert concatenated(" \n") == ([], "")
    assert concatenated(f"1 {'9' * 5000}e9")[0][0] == 1


def test_a_value_may_be_held_as_text() -> None:
    """Objects and lists are unwrapped, other texts stay, and what is cut is None."""
    held = ['{"a": 1}', "[1]", "[1", "a text", "", 3, None, {"a": 1}]
    assert [unwrapped(value) for value in held] == [
        {"a": 1}, [1], None, "a text", "", 3, None, {"a": 1}
    ]  # fmt: skip
