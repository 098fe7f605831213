"""Values of LCRs as Python objects: an object that a user's code reads can be written back as the same value."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import ip_address

import pytest
from psycopg.types.range import Range

from headrace.databases.connectors import column_of_type
from headrace.databases.postgres.values.python_values import decoded, encoded
from headrace.lcr.batch import Column
from headrace.lcr.lcr_value import LcrError

VALUES = [
    ("bool", True),
    ("bool", False),
    ("int2", -5),
    ("int8", 1 << 40),
    ("float8", 1.5),
    ("numeric", Decimal("1.50")),
    ("text", 'it\'s \\ "x"'),
    ("date", date(2026, 1, 31)),
    ("time", time(1, 2, 3)),
    ("timestamp", datetime(2026, 1, 31, 8, 30, 0, 5)),  # noqa: DTZ001 - has no time zone
    ("timestamptz", datetime(2026, 1, 31, 8, 30, tzinfo=UTC)),
    ("interval", timedelta(days=1, seconds=2)),
    ("uuid", uuid.UUID(int=7)),
    ("inet", ip_address("::1")),
    ("jsonb", {"a": ["it's", "\\"]}),
    ("_int4", [1, None, -3]),
    ("_numeric", [Decimal("1.5")]),
    ("_text", ["it's", "a\\b", 'say "x"', "a,b", "", None]),
    ("_text", []),
]


@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_written_value_is_read_back_unchanged(kind: str, value: object) -> None:
    column = replace(column_of_type("c", kind), is_binary=False)
    assert decoded(column, encoded(column, value)) == value


@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_added_column_is_read_by_the_name_of_its_type(kind: str, value: object) -> None:
    column = replace(column_of_type("c", kind), is_binary=False)
    assert decoded(Column(name="c", type_name=column.type_name), encoded(column, value)) == value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *VALUES,
        ("_int8", [[1, 2], [None, 4]]),
        ("int4range", Range(1, 5)),
        ("tstzrange", Range(None, None)),
        ("bytea", b"\0'\xff"),
    ],
)
def test_binary_value_is_read_back_unchanged(kind: str, value: object) -> None:
    column = replace(column_of_type("c", kind), is_binary=True)
    assert decoded(column, encoded(column, value)) == value


@pytest.mark.parametrize("value", [5, [[1], [2, 3]], ["a"], [1, [2]]])
def test_object_that_is_no_array_of_the_type_is_refused(value: object) -> None:
    with pytest.raises(LcrError, match="does not fit column c of type _int4"):
        encoded(replace(column_of_type("c", "_int4"), is_binary=True), value)


def test_label_of_an_enumerated_type_is_written_as_it_is() -> None:
    assert encoded(Column(name="c", type_name="public.mood", type_number=70000, is_binary=True), "glad") == b"glad"


def test_python_numbers_are_written_as_numeric() -> None:
    column = column_of_type("c", "numeric")
    assert column.is_binary
    assert [decoded(column, encoded(column, value)) for value in (5, 2.5, Decimal("1.50"))] == [
        5,
        Decimal("2.5"),
        Decimal("1.50"),
    ]


@pytest.mark.parametrize("value", ["5", [5], None, 1.5])
def test_object_that_is_no_integer_is_refused(value: object) -> None:
    with pytest.raises(LcrError, match="does not fit column c of type int4"):
        encoded(replace(column_of_type("c", "int4"), is_binary=True), value)


MOMENT = datetime(2026, 1, 31, 8, 30, tzinfo=UTC)


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("value", [b"", b"abc", b"\xff\x00", b"\\101", b"\\x4", b"\\xZZ"])
def test_bytea_is_a_bytes_object_in_either_form(value: bytes, is_binary: bool) -> None:
    column = replace(column_of_type("c", "bytea"), is_binary=is_binary)
    assert decoded(column, encoded(column, value)) == value


@pytest.mark.parametrize("value", [b"\\x", b"\\xff00"])
def test_raw_text_of_a_bytea_can_be_written_back(value: bytes) -> None:
    assert encoded(replace(column_of_type("c", "bytea"), is_binary=False), value) == value


def test_bytes_are_the_raw_value_of_any_other_type() -> None:
    assert encoded(replace(column_of_type("c", "bool"), is_binary=False), b"f") == b"f"


def test_range_bound_outside_of_the_type_is_refused() -> None:
    """The server would use four of its eight bytes."""
    with pytest.raises(LcrError, match="does not fit column c of type int4range"):
        encoded(replace(column_of_type("c", "int4range"), is_binary=True), Range(None, 1 << 40))


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int4range", Range(1, 2)),
        ("int4range", Range(None, None)),
        ("int4range", Range(empty=True)),
        ("tsrange", Range(MOMENT.replace(tzinfo=None), None)),
        ("daterange", Range(date(2026, 1, 31), None)),
        ("tstzrange", Range(MOMENT, None)),
        ("_date", [[date(2026, 1, 31)], [None]]),
        ("_bool", [True, None]),
        ("_timestamptz", [MOMENT]),
    ],
)
def test_written_objects_of_the_type_are_read_back_unchanged(kind: str, value: object, is_binary: bool) -> None:
    column = replace(column_of_type("c", kind), is_binary=is_binary)
    assert decoded(column, encoded(column, value)) == value


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bool", 0),
        ("bool", []),
        ("date", datetime(2026, 1, 31, 8, 30)),  # noqa: DTZ001 - deliberately without a time zone
        ("time", time(8, 30, tzinfo=UTC)),
        ("time", datetime(2026, 1, 31, 8, 30)),  # noqa: DTZ001 - deliberately without a time zone
        ("timestamp", date(2026, 1, 31)),
        ("interval", 5),
        ("int4range", [1, 2]),
        ("timestamp", MOMENT),
        ("_timestamp", [[MOMENT]]),
        ("_date", [None, MOMENT]),
        ("tsrange", Range(MOMENT, None)),
        ("_tsrange", [Range(None, MOMENT)]),
        ("daterange", Range(MOMENT, None)),
    ],
)
def test_object_of_a_similar_type_is_not_converted(kind: str, value: object, is_binary: bool) -> None:
    with pytest.raises(LcrError, match=f"does not fit column c of type {kind}"):
        encoded(replace(column_of_type("c", kind), is_binary=is_binary), value)


@pytest.mark.parametrize("value", ["f", "false", ""])
def test_text_is_no_truth_value(value: str) -> None:
    """To psycopg every text but the empty one is TRUE."""
    with pytest.raises(LcrError, match="does not fit column c of type bool"):
        encoded(replace(column_of_type("c", "bool"), is_binary=True), value)
    with pytest.raises(LcrError, match="does not fit column c of type _bool"):
        encoded(replace(column_of_type("c", "_bool"), is_binary=True), [value])


def test_object_of_a_different_type_is_refused() -> None:
    with pytest.raises(LcrError, match="a Python int does not fit column c of type text"):
        encoded(column_of_type("c", "text"), 5)


@pytest.mark.parametrize("is_binary", [True, False])
def test_domain_is_read_as_its_base_type(is_binary: bool) -> None:
    """The log has the name of the base type, and the number of the domain."""
    column = replace(column_of_type("c", "int4"), is_binary=is_binary)
    domain = replace(column, type_number=70000)
    assert decoded(domain, encoded(column, 5)) == 5
    assert encoded(domain, 5) == encoded(column, 5)


def test_result_of_interval_arithmetic_is_a_plain_timedelta() -> None:
    column = replace(column_of_type("c", "interval"), is_binary=False)
    read = decoded(column, b"25:00:00")
    assert read == timedelta(hours=25)
    assert encoded(column, read) == b"0 days 90000000000 microseconds"
    assert isinstance(read, timedelta)
    assert type(read + timedelta()) is timedelta
    assert decoded(column, encoded(column, read + timedelta())) == read
    with pytest.raises(LcrError, match="is no Python object"):
        decoded(column, b"1 mon")


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize(
    ("type_name", "value"),
    [
        ("pg_catalog.text", "a{}b"),
        ("pg_catalog.varchar", "{}"),
        ("public.mood", "glad{}"),
        ("pg_catalog.uuid", "{}"),
    ],
)
@pytest.mark.parametrize(("character", "what"), [("\0", "a NUL character"), ("\ud800", "a lone surrogate")])
def test_text_that_postgresql_cannot_hold_is_refused_with_the_reason(
    type_name: str, value: str, character: str, what: str, *, is_binary: bool
) -> None:
    if type_name == "pg_catalog.uuid" and is_binary:
        return  # accepts no text at all
    with pytest.raises(LcrError, match=f"the text for column c holds {what}") as caught:
        encoded(Column(name="c", type_name=type_name, is_binary=is_binary), value.format(character))
    assert caught.value.hint


@pytest.mark.parametrize("character", ["\0", "\ud800"])
def test_array_element_that_postgresql_cannot_hold_is_refused_too(character: str) -> None:
    with pytest.raises(LcrError, match="the text for column c holds a"):
        encoded(Column(name="c", type_name="pg_catalog._text", is_binary=True), ["a", character])
