"""Fields of logs, in which anything may stand: texts, objects, numbers, times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from math import isfinite
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentreplay.trace.fields import count, identity, inside, number, objects, string, unix_s

NOON_S = datetime(2026, 1, 2, 12, 0, tzinfo=UTC).timestamp()

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


# --- Points in time -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-02T12:00:00Z",
        "2026-01-02T12:00:00+00:00",
        "2026-01-02T12:00:00",
        "2026-01-02 12:00:00",
        "2026-01-02T14:00:00+02:00",
        "2026-01-02T17:30:00+0530",
        "2026-01-02T04:00:00-08:00",
        "2026-01-02 12:00:00.000000",
        "2026-01-02 12:00:00,000",
        " 2026-01-02T12:00:00Z\n",
    ],
)
def test_text_is_iso_in_any_zone(text: str) -> None:
    """An ISO time counts in its own zone, and as UTC where it names none."""
    assert unix_s(text) == NOON_S


@pytest.mark.parametrize("zone", ["", "Z", "+01:00", "-11:30"])
@pytest.mark.parametrize("digits", range(1, 10))
def test_a_second_has_one_to_nine_fraction_digits(digits: int, zone: str) -> None:
    """Any number of fraction digits is read, to the microsecond."""
    whole, fraction = unix_s(f"2026-01-02T12:00:00{zone}"), "123456789"[:digits]
    assert whole is not None
    part_s = float(f"0.{fraction[:6]}")
    assert unix_s(f"2026-01-02T12:00:00.{fraction}{zone}") == pytest.approx(
        whole + part_s, abs=1e-9, rel=1e-15
    )


@given(
    moment=st.datetimes(datetime(1970, 1, 3), datetime(9999, 12, 29)),
    zone=st.none() | st.integers(-1439, 1439),
)
def test_any_iso_time_is_read(moment: datetime, zone: int | None) -> None:
    """What any program writes as ISO is read as the time that it was."""
    offset = UTC if zone is None else timezone(timedelta(minutes=zone))
    aware = moment.replace(tzinfo=offset)
    assert unix_s((moment if zone is None else aware).isoformat()) == aware.timestamp()
    assert unix_s(str(aware)) == aware.timestamp()


@pytest.mark.parametrize(
    ("unit", "digits"),
    [(1, "s"), (10**3, "ms"), (10**6, "µs"), (10**9, "ns")],
    ids="s ms µs ns".split(),
)
@pytest.mark.parametrize("kind", [int, float, str, lambda n: str(float(n))])
def test_a_number_is_seconds_to_nanoseconds_by_its_size(unit: int, digits: str, kind: Any) -> None:
    """Epoch seconds, ms, µs and ns are told apart by their size: as int, float or text."""
    assert unix_s(kind(int(NOON_S) * unit)) == pytest.approx(NOON_S, abs=1e-3, rel=0)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (99_999_999_999, 99_999_999_999.0),
        (100_000_000_000, 100_000_000.0),
        (99_999_999_999_999, 99_999_999_999.999),
        (100_000_000_000_000, 100_000_000.0),
        (99_999_999_999_999_000, 99_999_999_999.999),
        (100_000_000_000_000_000, 100_000_000.0),
    ],
)
def test_units_change_at_their_bounds(value: int, seconds: float) -> None:
    """Below 1e11 it is seconds, below 1e14 ms, below 1e17 µs, and else ns."""
    assert unix_s(value) == pytest.approx(seconds, rel=1e-12)


@given(st.floats(1e8, 1e11, exclude_max=True), st.floats(1e8, 1e11, exclude_max=True))
def test_units_keep_the_order(one_s: float, other_s: float) -> None:
    """In each unit the later of two times stays the later one, or they come out equal."""
    for unit in (1.0, 1e3, 1e6):
        one, other = unix_s(one_s * unit), unix_s(other_s * unit)
        assert one is not None
        assert other is not None
        assert (one <= other) or (one_s > other_s)


@pytest.mark.parametrize(
    "value",
    [None, True, False, "", " ", "soon", "12:00", "2026-13-01T00:00:00Z", "2026-01-02T25:00:00Z",
     "2026-01-02T12:00:00.", "-", "--", -1, -0.5, "-1", float("nan"), float("inf"), "NaN",
     "Infinity", 10**400, [], [1767355200], {}, {"seconds": 1}],
    ids=lambda value: f"{value!r:.20}",
)  # fmt: skip
def test_what_is_no_time_is_none(value: object) -> None:
    """Booleans, negative numbers, other types and other text are no time."""
    assert unix_s(value) is None


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z"])
def test_text_before_1970_is_none(text: str) -> None:
    """A time before 1970 is none, as a negative number is: the year 1 stands for no time."""
    assert unix_s(text) is None


def test_zero_is_a_time() -> None:
    """Zero is a time of its own, not an absent one."""
    assert (unix_s(0), unix_s("0"), unix_s("1970-01-01T00:00:00Z")) == (0.0, 0.0, 0.0)


@given(json_values)
def test_any_json_value_gives_a_time_or_none(value: object) -> None:
    """No value of JSON raises, and what comes is a finite time after 1970 or None."""
    found = unix_s(value)
    assert found is None or (isfinite(found) and found >= 0)


@given(st.text("0123456789-:.TZ+ ,\ud800\u0660e", max_size=40))
def test_text_that_looks_like_a_time_raises_nothing(text: str) -> None:
    """Text made of the signs of times gives a finite time or None."""
    found = unix_s(text)
    assert found is None or isfinite(found)


# --- Numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, 3.0), (3.5, 3.5), (-2, -2.0), ("3.5", 3.5), (" 7 ", 7.0), ("1e3", 1000.0), ("-0.5", -0.5)],
)
def test_numbers_may_be_text(value: object, expected: float) -> None:
    """A number is read, also one written as text, with its sign."""
    assert number(value) == expected


@pytest.mark.parametrize(
    "value",
    [None, True, False, "", "x", "0x10", "nan", "-inf", float("nan"), float("inf"), 10**400,
     "9" * 400, [], {}, b"1"],
    ids=lambda value: f"{value!r:.20}",
)  # fmt: skip
def test_what_is_no_finite_number_is_none(value: object) -> None:
    """Booleans, NaN, infinities, numbers beyond any float and other types are no number."""
    assert number(value) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0), (12, 12), (12.0, 12), ("12", 12), ("12.0", 12), (-0.0, 0), (1 << 53, 1 << 53)],
)
def test_counts_may_be_floats_and_text(value: object, expected: int) -> None:
    """A whole number from zero on is a count, also as a float or as text."""
    found = count(value)
    assert (found, type(found)) == (expected, int)


@pytest.mark.parametrize(
    "value",
    [None, True, False, -1, -1.0, "-1", 12.5, "12.5", "", "many", float("nan"), float("inf"),
     (1 << 53) + 1, 10**400, 1e300, "1e300", [], [3], {}],
    ids=lambda value: f"{value!r:.20}",
)  # fmt: skip
def test_what_is_no_count_is_none(value: object) -> None:
    """Booleans, negative and broken numbers, and more than any prompt has, are no count."""
    assert count(value) is None


@given(json_values)
def test_any_json_value_gives_a_count_or_none(value: object) -> None:
    """No value of JSON raises, and a count is the number that was written."""
    found = count(value)
    if found is not None:
        assert type(found) is int
        assert found >= 0
        assert found == number(value)


# --- Texts, names, objects ------------------------------------------------------------------------


def test_texts_and_names() -> None:
    """A text is not empty; a name may be a whole number too, but no boolean."""
    values = ["x", "", 7, True, None, 7.5, ["x"], {}]
    assert [string(value) for value in values] == ["x", *[None] * 7]
    assert [identity(value) for value in values] == ["x", None, "7", *[None] * 5]


def test_objects_are_found_inside_each_other() -> None:
    """What is no object, wherever on the way, is an empty one."""
    value = {"a": {"b": {"c": 1}, "d": [1]}}
    assert inside(value, "a", "b") == {"c": 1}
    assert inside(value) == value
    for other, *way in ((value, "a", "d"), (value, "x", "y"), (value, "a", "b", "c"), ([1],)):
        assert inside(other, *map(str, way)) == {}


def test_objects_of_a_list() -> None:
    """Others in it are passed over, and so is what is no list."""
    assert objects([{"a": 1}, None, 3, [{}], {}]) == [{"a": 1}, {}]
    assert objects({"a": {}}) == objects(None) == []


@given(json_values)
def test_any_json_value_has_texts_and_objects_or_none(value: object) -> None:
    """No value of JSON raises."""
    assert string(value) in (value, None)
    assert identity(value) in (value, str(value), None)
    assert isinstance(inside(value, "a"), dict)
    assert all(isinstance(each, dict) for each in objects(value))
