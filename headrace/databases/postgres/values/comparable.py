"""PostgreSQL's values as conditions compare them: implements `headrace.rules.conditions.values.ValueTypes`.

The module names only types whose comparison depends on nothing but the two values. Everything else - arrays, JSON,
ranges, enumerated and other user-defined types, interval, time with time zone - is OPAQUE, because a batch does not
say how such a type compares.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import numpy as np

from headrace.rules.conditions.values import Comparable, Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.lcr.batch import Column

__all__ = ["PostgresValueTypes"]

_KINDS: Final = {
    "int2": Kind.INTEGER,
    "int4": Kind.INTEGER,
    "int8": Kind.INTEGER,
    "float4": Kind.SINGLE,
    "float8": Kind.FLOAT,
    "numeric": Kind.NUMERIC,
    "bool": Kind.BOOLEAN,
    "text": Kind.TEXT,
    "varchar": Kind.TEXT,
    "name": Kind.TEXT,
    "bpchar": Kind.PADDED_TEXT,
    "bytea": Kind.BYTES,
    "uuid": Kind.UUID,
    "date": Kind.DATE,
    "time": Kind.TIME,
    "timestamp": Kind.TIMESTAMP,
    "timestamptz": Kind.INSTANT,
}
# Binary forms of fixed-width types, big-endian, in numpy's notation.
_FIXED: Final = {
    "int2": ">i2",
    "int4": ">i4",
    "int8": ">i8",
    "float4": ">f4",
    "float8": ">f8",
    "bool": "?",
    "date": ">i4",
    "time": ">i8",
    "timestamp": ">i8",
    "timestamptz": ">i8",
}
_AS_THEY_ARE: Final = ("text", "varchar", "name", "bytea", "uuid")  # compared by the bytes of the binary form
_FLOATS: Final = (Kind.FLOAT, Kind.SINGLE)
_MOST, _LEAST = 2**63 - 1, -(2**63)  # of timestamps: infinity and -infinity
_DATE_MOST, _DATE_LEAST = 2**31 - 1, -(2**31)  # of dates: infinity and -infinity
_NAME_BYTES_MAX = 63
_WHOLE_DIGITS_MAX, _SCALE_MAX = 131_072, 16_383  # limits of a numeric, and of every literal that is not an integer
_DAY_US = 86_400_000_000
_EPOCH_DAYS = 10_957  # from 1970-01-01, the zero of the calendar computed below, to 2000-01-01
_DATES: Final = range(-2_451_545, 2_145_031_949)  # 4713-11-24 BC to 5874897-12-31
_TIMESTAMPS: Final = range(-211_813_488_000_000_000, 9_223_371_331_200_000_000)  # 4713-11-24 BC to 294276-12-31
# ASCII only: the server refuses digits of other scripts.
_DATE: Final = re.compile(r"(\d{4,7})-(\d\d)-(\d\d)", re.ASCII)
_TIME: Final = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?", re.ASCII)
_OFFSET: Final = re.compile(r"([+-])(\d\d)(?:(\d\d)|:(\d\d)(?::(\d\d))?)?|Z", re.ASCII)
_OFFSET_S_MAX = 16 * 3600  # exclusive: PostgreSQL refuses offsets of 16 hours and more
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NUMERIC_HEAD = struct.Struct(
    ">HhHH"
)  # number of digits, weight of the first digit, sign, digits displayed after the point
_NEGATIVE, _NAN, _INFINITE, _NEGATIVE_INFINITE = 0x4000, 0xC000, 0xD000, 0xF000


class _NotANumber:
    """PostgreSQL's numeric NaN: equal to itself and greater than every number."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _NotANumber)

    def __hash__(self) -> int:
        return 0

    def __lt__(self, other: object) -> bool:
        return False

    def __le__(self, other: object) -> bool:
        return self == other

    def __gt__(self, other: object) -> bool:
        return self != other

    def __ge__(self, other: object) -> bool:
        return True


_NAN_VALUE: Final = _NotANumber()


class PostgresValueTypes:
    """PostgreSQL's types for conditions and for user code."""

    def kind(self, column: Column) -> Kind:
        """Return how values of a column compare."""
        owner, _, name = column.type_name.partition(".")
        return _KINDS.get(name, Kind.OPAQUE) if owner == "pg_catalog" else Kind.OPAQUE

    def value(self, column: Column, raw: bytes) -> Comparable:
        """Return one value in comparable form."""
        name = _name(column)
        if not column.is_binary:
            return _OF_TEXT[_KINDS[name]](raw.decode("utf-8"))
        if name in _FIXED:
            try:
                (found,) = struct.unpack(
                    _FIXED[name]
                    .replace("i2", "h")
                    .replace("i4", "i")
                    .replace("i8", "q")
                    .replace("f4", "f")
                    .replace("f8", "d"),
                    raw,
                )
            except struct.error as error:
                raise ValueError(str(error)) from None
            return _float_key(found) if _KINDS[name] in _FLOATS else _infinite(found) if name == "date" else found
        if name == "numeric":
            return _numeric(raw)
        return raw.rstrip(b" ") if name == "bpchar" else raw

    def values(self, column: Column, data: NDArray[np.uint8], lengths: NDArray[np.int32]) -> NDArray[Any]:
        """Return many values in comparable form."""
        name = _name(column)
        if column.is_binary and name in _FIXED:
            kind = np.dtype(_FIXED[name])
            if not bool((lengths == kind.itemsize).all()):
                raise ValueError(f"a value of {name} has not {kind.itemsize} bytes")
            found = np.frombuffer(data, kind) if data.shape[0] else np.empty(0, kind)
            if kind.kind == "f":
                return _float_keys(found.astype(np.float64))
            if kind.kind == "b":
                return found
            found = found.astype(np.int64)
            if name == "date":
                found[found == _DATE_MOST] = _MOST
                found[found == _DATE_LEAST] = _LEAST
            return found
        kind_of, whole, ends = _KINDS[name], data.tobytes(), np.cumsum(lengths, dtype=np.int64).tolist()
        values = np.empty(len(ends), object)
        raw = [whole[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        # Types whose bytes are the value need no call per value. This lets a rule on a text column decide a million
        # rows in less than a second.
        values[:] = raw if column.is_binary and name in _AS_THEY_ARE else [self.value(column, each) for each in raw]
        if kind_of is Kind.BOOLEAN:
            return values.astype(np.bool_)
        is_number = kind_of in (Kind.INTEGER, *_FLOATS, Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.INSTANT)
        return values.astype(np.int64) if is_number else values

    def decoded(self, column: Column, raw: bytes) -> object:
        """Return one value as a Python object."""
        from headrace.databases.postgres.values.python_values import (
            decoded,  # imported late: only user code needs psycopg's adapters
        )

        return decoded(column, raw)

    def decoded_of_copy(self, column: Column, raw: bytes, *, texts: Collection[str]) -> object:
        """Return one value of a copied row as a Python object."""
        from headrace.databases.postgres.values.python_values import decoded_of_copy  # as above

        return decoded_of_copy(column, raw, texts)

    def encoded(self, column: Column, value: object) -> bytes:
        """Return a Python object in the form of the column's values."""
        from headrace.databases.postgres.values.python_values import encoded  # as above

        return encoded(column, value)

    def constant(self, column: Column, text: str) -> Comparable:
        """Return a text literal in the comparable form of the column's type."""
        if "\0" in text:
            raise ValueError("a text cannot hold the character 0")
        if _name(column) == "name" and len(text.encode()) > _NAME_BYTES_MAX:
            raise ValueError(f"the source truncates names to {_NAME_BYTES_MAX} bytes: write the truncated name")
        return _CONSTANTS[_KINDS[_name(column)]](text)

    def number(self, column: Column, value: int | Decimal) -> Comparable:
        """Return a number literal in the comparable form of the column's type."""
        if isinstance(value, Decimal) and (
            _scale(value) > _SCALE_MAX or (value and value.adjusted() >= _WHOLE_DIGITS_MAX)
        ):
            raise ValueError(
                f"the source takes numbers of up to {_WHOLE_DIGITS_MAX} digits before the point and {_SCALE_MAX} behind it"
            )
        if _KINDS[_name(column)] not in _FLOATS:
            return value
        try:
            found = float(value)
        except OverflowError:  # integers raise it; a Decimal becomes infinite
            found = float("inf")
        if found in (float("inf"), float("-inf")):
            raise ValueError("the literal is too large for a floating-point number")
        if found == 0 and value != 0:
            raise ValueError("the literal is not 0, but too small for a floating-point number")
        return _float_key(found)


def _name(column: Column) -> str:
    return column.type_name.partition(".")[2]


# --------------------------------------------------------------------------- numbers


def _scale(value: Decimal) -> int:
    """Return the number of digits after the decimal point."""
    exponent = value.as_tuple().exponent
    return -exponent if isinstance(exponent, int) else 0


def _float_keys(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Map numbers to integers of the same order: -0 equals 0, and NaN is the greatest."""
    bits = (values + 0.0).view(np.int64)
    keys = np.where(bits < 0, bits ^ np.int64(_MOST), bits)
    keys[np.isnan(values)] = _MOST
    return keys


def _float_key(value: float) -> int:
    return int(_float_keys(np.array([value], np.float64))[0])


def _numeric(raw: bytes) -> Comparable:
    try:
        count, weight, sign, _ = _NUMERIC_HEAD.unpack_from(raw)
        digits = struct.unpack_from(f">{count}H", raw, _NUMERIC_HEAD.size)
    except struct.error as error:
        raise ValueError(str(error)) from None
    if sign == _NAN:
        return _NAN_VALUE
    if sign in (_INFINITE, _NEGATIVE_INFINITE):
        return Decimal("Infinity" if sign == _INFINITE else "-Infinity")
    # Built from text: `scaleb` rounds to the context's precision, and Python formats no integer of over 4300 digits.
    whole = "".join([f"{digit:04d}" for digit in digits]) or "0"
    return Decimal(f"{'-' if sign == _NEGATIVE else ''}{whole}E{(weight - count + 1) * 4}")


def _numeric_of_text(text: str) -> Comparable:
    try:
        found = Decimal(text)
    except InvalidOperation:
        raise ValueError("the text is not a number") from None
    return _NAN_VALUE if found.is_nan() else found


def _bool_of_text(text: str) -> bool:
    if text not in ("t", "f"):
        raise ValueError("the text is not a truth value")
    return text == "t"


# --------------------------------------------------------------------------- times


def _infinite(days: int) -> int:
    return {_DATE_MOST: _MOST, _DATE_LEAST: _LEAST}.get(days, days)


def _days(year: int, month: int, day: int) -> int:
    """Return the days since 2000-01-01 in the Gregorian calendar; year 0 is 1 BC."""
    lengths = (
        31,
        28 + (year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    )
    if not (1 <= month <= 12 and 1 <= day <= lengths[month - 1]):
        raise ValueError("the text is not a day of the calendar")
    shifted = year - (month <= 2)
    era, of_era = divmod(shifted, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468 - _EPOCH_DAYS


def _clock(found: re.Match[str]) -> int:
    hour, minute, second = (int(found[number] or 0) for number in (1, 2, 3))
    us = (hour * 3600 + minute * 60 + second) * 1_000_000 + int((found[4] or "0").ljust(6, "0"))
    if minute > 59 or second > 59 or us > _DAY_US:
        raise ValueError("the text is not a time of day")
    return us


def _date(text: str) -> int:
    if text in ("infinity", "-infinity"):
        return _MOST if text == "infinity" else _LEAST
    body = text.removesuffix(" BC")
    found = _DATE.fullmatch(body)
    if found is None:
        raise ValueError("write a date as '2026-01-31'")
    year = int(found[1])
    if year == 0:
        raise ValueError("there is no year 0")
    return _in_range(_days(1 - year if body != text else year, int(found[2]), int(found[3])), _DATES)


def _time(text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError("write a time as '08:30' or '08:30:00.5'")
    return _clock(found)


def _timestamp(text: str) -> int:
    if text in ("infinity", "-infinity"):
        return _MOST if text == "infinity" else _LEAST
    body = text.removesuffix(" BC")
    return _in_range(_moment(body, is_before=body != text), _TIMESTAMPS)


def _moment(text: str, *, is_before: bool) -> int:
    """Return the microseconds since 2000-01-01.

    Args:
        text: date and optional time of day.
        is_before: True when the year is BC.
    """
    day, separator, clock = text.replace("T", " ", 1).partition(" ")
    if _DATE.fullmatch(day) is None:
        raise ValueError("write a timestamp as '2026-01-31 08:30:00'")
    return _date(day + (" BC" if is_before else "")) * _DAY_US + (_time(clock) if separator else 0)


def _in_range(value: int, among: range) -> int:
    if value not in among:
        raise ValueError("the value is outside the range of the type")
    return value


def _instant(text: str) -> int:
    if text in ("infinity", "-infinity"):
        return _timestamp(text)
    is_before = text.endswith(" BC")
    body = text.removesuffix(" BC")
    found = next(
        (match for match in _OFFSET.finditer(body) if match.end() == len(body) and match.start() > len("2026-01-31")),
        None,
    )
    if found is None:
        raise ValueError(
            "write it with its offset from UTC, as '2026-01-31 08:30:00+00': without an offset it depends on the"
            " session's time zone"
        )
    offset = 0
    if found[1]:
        minutes, seconds = int(found[3] or found[4] or 0), int(found[5] or 0)
        offset = int(found[2]) * 3600 + minutes * 60 + seconds
        if minutes > 59 or seconds > 59 or offset >= _OFFSET_S_MAX:
            raise ValueError("the text has no valid offset from UTC")
        offset = -offset if found[1] == "-" else offset
    return _in_range(_moment(body[: found.start()].rstrip(), is_before=is_before) - offset * 1_000_000, _TIMESTAMPS)


# --------------------------------------------------------------------------- the rest


def _bytea(text: str) -> bytes:
    if not text.startswith("\\x"):
        raise ValueError("write bytes as '\\x00ff'")
    return bytes.fromhex(text[2:])


def _uuid(text: str) -> bytes:
    if _UUID.fullmatch(text) is None:
        raise ValueError("write a UUID as 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'")
    return UUID(text).bytes


def _padded(text: str) -> bytes:
    return text.encode().rstrip(b" ")


def _no_text(text: str) -> Comparable:
    raise ValueError(f"write {text} without quotes")


_OF_TEXT: Final[dict[Kind, Callable[[str], Comparable]]] = {
    Kind.INTEGER: int,
    Kind.FLOAT: lambda text: _float_key(float(text)),
    Kind.SINGLE: lambda text: _float_key(float(np.float32(text))),
    Kind.NUMERIC: _numeric_of_text,
    Kind.BOOLEAN: _bool_of_text,
    Kind.TEXT: str.encode,
    Kind.PADDED_TEXT: _padded,
    Kind.BYTES: _bytea,
    Kind.UUID: _uuid,
    Kind.DATE: _date,
    Kind.TIME: _time,
    Kind.TIMESTAMP: _timestamp,
    Kind.INSTANT: _instant,
}
_CONSTANTS: Final = _OF_TEXT | {
    Kind.INTEGER: _no_text,
    Kind.FLOAT: _no_text,
    Kind.SINGLE: _no_text,
    Kind.NUMERIC: _no_text,
    Kind.BOOLEAN: _no_text,
}
