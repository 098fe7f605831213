"""Values in readable form."""

from __future__ import annotations

import struct

import pytest

from headrace.databases.postgres.values.value_text import value_text
from headrace.lcr.batch import Column


@pytest.mark.parametrize(
    ("type_number", "value", "expected"),
    [
        (23, struct.pack(">i", -7), "-7"),
        (25, "größer".encode(), "größer"),
        (1700, struct.pack(">hhHhhh", 2, 0, 0, 2, 12, 5000), "12.50"),
        (17, b"\x00\xff", "\\x00ff"),
        (16, b"\x01", "True"),
        (600, bytes(16), "\\x" + "00" * 16),
        (0, b"\x01", "\\x01"),
    ],
)
def test_binary_values_are_shown_as_their_type_reads(type_number: int, value: bytes, expected: str) -> None:
    assert value_text(Column(name="c", type_name="t", type_number=type_number, is_binary=True), value) == expected


def test_value_that_python_cannot_hold_is_shown_in_hexadecimal() -> None:
    before_year_one = struct.pack(">i", -800_000)
    column = Column(name="c", type_name="pg_catalog.date", type_number=1082, is_binary=True)
    assert value_text(column, before_year_one) == f"\\x{before_year_one.hex()}"


def test_text_values_are_shown_as_they_are() -> None:
    assert value_text(Column(name="c", type_name="t"), b"2026-01-01") == "2026-01-01"


def test_enum_label_is_shown_as_text() -> None:
    column = Column(name="s", type_name="public.state", type_number=16_500, is_binary=True)
    assert value_text(column, "größer".encode()) == "größer"
    assert value_text(column, b"\0\0\0\x01") == "\\x00000001", "a composite"
