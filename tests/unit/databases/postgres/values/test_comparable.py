"""PostgreSQL's values as conditions compare them: cases that the property tests do not reach."""

from __future__ import annotations

import struct
from decimal import Decimal

import numpy as np
import pytest

from headrace.databases.postgres.values.comparable import PostgresValueTypes
from headrace.lcr.batch import Column
from headrace.rules.conditions.values import Kind
from tests.support.values.condition_values import numeric_bytes

TYPES = PostgresValueTypes()


def column(name: str, *, is_binary: bool = False, owner: str = "pg_catalog") -> Column:
    return Column(name="c", type_name=f"{owner}.{name}", is_binary=is_binary)


@pytest.mark.parametrize("name", ["_int4", "jsonb", "interval", "timetz", "int4range", "money", "inet", "xml", "oid"])
def test_type_with_its_own_comparison_rules_is_opaque(name: str) -> None:
    assert TYPES.kind(column(name)) is Kind.OPAQUE
    assert TYPES.kind(column("int4", owner="public")) is Kind.OPAQUE


def test_floats_are_ordered_as_the_server_orders_them() -> None:
    values = [float("-inf"), -1.5, -0.0, 0.0, 5e-324, 1.5, float("inf"), float("nan"), -float("nan")]
    keys = [TYPES.value(column("float8", is_binary=True), struct.pack(">d", value)) for value in values]
    assert keys == sorted(keys)
    assert keys[2] == keys[3]
    assert keys[7] == keys[8] > keys[6]
    assert keys[5] == TYPES.number(column("float8"), Decimal("1.5")) == TYPES.value(column("float8"), b"1.5")


def test_numeric_nan_equals_itself_and_is_greater_than_every_number() -> None:
    nan, infinite, one = (
        TYPES.value(column("numeric", is_binary=True), numeric_bytes(Decimal(text)))
        for text in ("NaN", "Infinity", "1")
    )
    assert nan == nan
    assert one < infinite < nan
    assert not nan < infinite
    assert nan > one
    assert nan >= infinite
    assert nan != one


@pytest.mark.parametrize(
    "text", ["0", "1.50", "-0.00012", "123456789012345678901234567890.123456789", "10000", "99990000"]
)
def test_numeric_is_read_to_its_last_digit_in_both_forms(text: str) -> None:
    assert (
        TYPES.value(column("numeric", is_binary=True), numeric_bytes(Decimal(text)))
        == Decimal(text)
        == TYPES.value(column("numeric"), text.encode())
    )


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("2000-01-01", 0),
        ("1999-12-31", -1),
        ("2000-02-29", 59),
        ("1900-03-01", -36465),
        ("0001-01-01", -730119),
        ("0001-12-31 BC", -730120),
        ("10000-01-01", 2921940),
    ],
)
def test_date_is_read_from_text_in_every_century(text: str, days: int) -> None:
    assert (
        TYPES.value(column("date"), text.encode())
        == days
        == TYPES.value(column("date", is_binary=True), struct.pack(">i", days))
    )


@pytest.mark.parametrize("name", ["date", "timestamp", "timestamptz"])
def test_infinite_times_are_beyond_all_others_in_both_forms(name: str) -> None:
    form, most, least = (">i", 2**31 - 1, -(2**31)) if name == "date" else (">q", 2**63 - 1, -(2**63))
    for text, stored in (("infinity", most), ("-infinity", least)):
        assert TYPES.value(column(name), text.encode()) == TYPES.value(
            column(name, is_binary=True), struct.pack(form, stored)
        )
        values = TYPES.values(
            column(name, is_binary=True),
            np.frombuffer(struct.pack(form, stored), np.uint8),
            np.array([struct.calcsize(form)], np.int32),
        )
        assert values.tolist() == [TYPES.constant(column(name), text)]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("2026-01-31 08:30:00+00", "2026-01-31 10:00:00+01:30"),
        ("2026-01-31 08:30+00", "2026-01-31T08:30Z"),
        ("2026-01-01 00:00:00.5-02", "2026-01-01 02:00:00.500+00"),
    ],
)
def test_offset_of_a_timestamp_counts(text: str, same: str) -> None:
    assert TYPES.constant(column("timestamptz"), text) == TYPES.constant(column("timestamptz"), same)


@pytest.mark.parametrize(
    ("name", "text", "advice"),
    [
        ("int4", "5", "without quotes"),
        ("bool", "t", "without quotes"),
        ("date", "31.01.2026", "2026-01-31"),
        ("date", "2026-02-30", "not a day"),
        ("date", "0000-01-01", "year 0"),
        ("date", "today", "2026-01-31"),
        ("timestamp", "2026-01-31 25:00", "not a time"),
        ("timestamp", "now", "2026-01-31 08:30:00"),
        ("timestamptz", "2026-01-31 08:30:00", "offset from UTC"),
        ("timestamptz", "2026-01-31", "offset from UTC"),
        ("timestamptz", "2026-01-31 08:30:00 Europe/Paris", "offset"),
        ("time", "8 o'clock", "08:30"),
        ("uuid", "x", "a0eebc99"),
        ("bytea", "ab", "\\x00ff"),
        ("bytea", "\\xfg", ""),
        ("name", "ä" * 40, "63 bytes"),
        ("text", "a\0b", "character 0"),
    ],
)
def test_literal_that_the_source_could_read_differently_is_refused(name: str, text: str, advice: str) -> None:
    with pytest.raises(ValueError) as refused:
        TYPES.constant(column(name), text)
    assert advice in str(refused.value)


@pytest.mark.parametrize(("name", "raw"), [("int4", b"abc"), ("numeric", b"\0"), ("int8", b"")])
def test_bytes_that_are_no_value_of_the_type_are_an_error(name: str, raw: bytes) -> None:
    with pytest.raises(ValueError):
        TYPES.value(column(name, is_binary=True), raw)
    with pytest.raises(ValueError):
        TYPES.values(column(name, is_binary=True), np.frombuffer(raw, np.uint8), np.array([len(raw)], np.int32))


def test_trailing_blanks_of_a_fixed_length_text_do_not_count() -> None:
    assert TYPES.value(column("bpchar"), b"ab  ") == TYPES.constant(column("bpchar"), "ab") == b"ab"
    assert TYPES.value(column("varchar"), b"ab  ") != TYPES.constant(column("varchar"), "ab")
