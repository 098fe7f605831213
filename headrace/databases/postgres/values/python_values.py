"""Conversion between values of LCRs and the Python objects that user code reads and writes."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from typing import Any, Final

import psycopg
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import Format
from psycopg.types import bool as bools
from psycopg.types import datetime as times
from psycopg.types import net as nets
from psycopg.types import numeric as numbers
from psycopg.types import range as ranges
from psycopg.types import uuid as uuids
from psycopg.types.range import Range

from headrace.databases.postgres.values.builtin_types import BUILTIN_TYPES
from headrace.databases.postgres.values.exact_values import (
    IntervalBinaryDumper,
    exact_context,
    has_other_bounds,
    json_text,
)
from headrace.lcr.batch import Column
from headrace.lcr.lcr_value import LcrError

__all__ = ["NoText", "builtin_number", "checked", "decoded", "decoded_of_copy", "encoded", "is_written_binary"]

_TRANSFORMER = Transformer(exact_context())
_OF_JSON_ELEMENTS = Transformer(exact_context(of_elements=True))
_JSON_ARRAYS: Final = frozenset({"pg_catalog._json", "pg_catalog._jsonb"})
_NUMBERS: Final = {f"pg_catalog.{name}": number for number, (name, _) in BUILTIN_TYPES.items()}
_OBJECTS: Final[dict[str, type]] = {
    "bool": bool,
    "date": date,
    "time": time,
    "timetz": time,
    "timestamp": datetime,
    "timestamptz": datetime,
    "interval": timedelta,
    "int4range": Range,
    "int8range": Range,
    "numrange": Range,
    "daterange": Range,
    "tsrange": Range,
    "tstzrange": Range,
}
"""Type to the Python class of its values, where the dumper accepts other classes, too."""

_WITHOUT_ZONE: Final = frozenset({"time", "timestamp"})
"""Types whose text form accepts an object with a zone and drops the zone."""

_WITH_ZONE: Final = frozenset({"timetz", "timestamptz"})
"""Types whose text form accepts an object without a zone and adds the session's zone."""

_BOUNDS: Final = {"int4range": "int4", "daterange": "date", "tsrange": "timestamp", "tstzrange": "timestamptz"}
"""Range type to the type of its bounds, where psycopg or the server would convert other objects to a different value."""

_BYTEA_TEXT: Final = re.compile(rb"\\x([0-9a-f]{2})*")
_ARRAY = "pg_catalog._"
_NO_OBJECT: Final = type(_TRANSFORMER.get_loader(0, Format.BINARY))
"""Loader for types that psycopg does not know; it returns bytes."""

_TEXTS: Final = frozenset({"text", "varchar", "bpchar", "name", "xml", "citext"})
# Type to the dumper of its binary form. psycopg chooses a dumper by the Python object, which may give another type.
_DUMPERS: Final[dict[str, Any]] = {
    "int2": numbers.Int2BinaryDumper,
    "int4": numbers.Int4BinaryDumper,
    "int8": numbers.Int8BinaryDumper,
    "oid": numbers.OidBinaryDumper,
    "float4": numbers.Float4BinaryDumper,
    "float8": numbers.FloatBinaryDumper,
    "numeric": numbers.DecimalBinaryDumper,
    "bool": bools.BoolBinaryDumper,
    "date": times.DateBinaryDumper,
    "time": times.TimeBinaryDumper,
    "timetz": times.TimeTzBinaryDumper,
    "timestamp": times.DatetimeNoTzBinaryDumper,
    "timestamptz": times.DatetimeBinaryDumper,
    "interval": IntervalBinaryDumper,
    "uuid": uuids.UUIDBinaryDumper,
    "inet": nets.InetBinaryDumper,
    "cidr": nets.InetBinaryDumper,
    "int4range": ranges.Int4RangeBinaryDumper,
    "int8range": ranges.Int8RangeBinaryDumper,
    "numrange": ranges.NumericRangeBinaryDumper,
    "daterange": ranges.DateRangeBinaryDumper,
    "tsrange": ranges.TimestampRangeBinaryDumper,
    "tstzrange": ranges.TimestamptzRangeBinaryDumper,
}


def decoded(column: Column, value: bytes) -> object:
    """Return one value as psycopg reads it: int, str, Decimal, datetime, ...

    Args:
        column: the source's column.
        value: in the form that `column.is_binary` says.

    Raises:
        LcrError: the value has no Python object, such as a date before year 1.
    """
    try:
        number, is_array = _read_as(column.type_name, column.type_number)
        if number is None:
            return bytes(value)  # for an enumerated type this is the label, in either form
        if is_array and has_other_bounds(value, is_binary=column.is_binary):
            raise ValueError("the array's lower bound is not 1")
        transformer = _OF_JSON_ELEMENTS if column.type_name in _JSON_ARRAYS else _TRANSFORMER
        return transformer.get_loader(number, Format.BINARY if column.is_binary else Format.TEXT).load(value)
    except (psycopg.Error, ValueError, OverflowError, NotImplementedError) as error:
        raise LcrError(
            f"the value of column {column.name} is no Python object ({type(error).__name__})", hint="use raw"
        ) from error


def decoded_of_copy(column: Column, value: bytes, texts: Collection[str]) -> object:
    """Return a value of a copied row as the object that `decoded` makes of the log's binary form.

    Args:
        column: the source's column.
        value: the value as text, the form in which a copy reads rows.
        texts: user-defined types whose values have the same bytes in both forms.

    Raises:
        LcrError: as for `decoded`; or the type has no Python object, so that the log gives bytes which differ from
            the text.
    """
    number = builtin_number(column)
    name = column.type_name.removeprefix("pg_catalog.").removeprefix("_")
    element = _NUMBERS.get(f"pg_catalog.{name}", 0)
    # Values of composite types, user-defined ranges and extension types are bytes in either form, but different bytes.
    # The text of "char" omits byte 0 and writes some other bytes in octal digits.
    is_other = number == 0 and column.type_name not in texts
    if (
        is_other
        or name == "char"
        or (number and name != "bytea" and type(_TRANSFORMER.get_loader(element, Format.BINARY)) is _NO_OBJECT)
    ):
        raise LcrError(
            f"values of type {name} have no Python object: for column {column.name}, a copied row has other bytes"
            " than a change",
            hint="do not use such columns in functions",
            column=column.name,
        )
    return decoded(column, value)


@lru_cache(maxsize=4096)
def _read_as(type_name: str, type_number: int) -> tuple[int | None, bool]:
    """Return the number of the type's psycopg loader and whether the type is an array of a built-in type.

    The number is None when psycopg has no loader.
    """
    number = _NUMBERS.get(type_name) or type_number
    if number not in BUILTIN_TYPES and not type_name.rpartition(".")[2].startswith("_"):
        return None, False
    return number, type_name.startswith(_ARRAY)


def builtin_number(column: Column) -> int:
    """Return the number of a column's built-in type, found by name; 0 for other types.

    For a domain, the log has the name of the underlying type and the number of the domain. A column that a
    transformation adds has no number.

    Args:
        column: the source's column.
    """
    return _NUMBERS.get(column.type_name, 0)


def encoded(column: Column, value: object) -> bytes:
    """Return a Python object in the form of the column's values.

    Args:
        column: the source's column.
        value: the object, not None. Bytes already have that form, except for a `bytea`, where they are the object.

    Raises:
        LcrError: the object does not fit the type.
    """
    if isinstance(value, bytes):
        return _encoded_bytes(column, value)
    owner, _, name = column.type_name.rpartition(".")
    try:
        if owner != "pg_catalog" and isinstance(value, str):
            return _text(value)  # enumerated types and types based on text: both forms are the text
        return _form_of(name, is_binary=column.is_binary)(value)
    except NoText as error:
        raise LcrError(
            f"the text for column {column.name} holds {error}", column=column.name, hint=error.hint
        ) from error
    except (
        psycopg.Error,
        struct.error,
        ValueError,
        TypeError,
        AttributeError,
        OverflowError,
        ArithmeticError,
    ) as error:
        raise LcrError(
            f"a Python {type(value).__name__} does not fit column {column.name} of type {name}",
            column=column.name,
            hint="give a Python object of that type, or bytes in the column's encoding",
        ) from error


def _encoded_bytes(column: Column, value: bytes) -> bytes:
    # Raw bytes of a text form match this pattern; bytes meant as an object hardly ever do.
    if column.type_name != "pg_catalog.bytea" or column.is_binary or _BYTEA_TEXT.fullmatch(value):
        return value
    return b"\\x" + value.hex().encode()


def is_written_binary(type_name: str) -> bool:
    """Return whether a Python object can be written in the binary form of a built-in type.

    Args:
        type_name: the type's name without schema.
    """
    name = type_name.removeprefix("_")
    return name in _TEXTS or name in _DUMPERS or name in ("json", "jsonb", "bytea")


def _form_of(name: str, *, is_binary: bool) -> Callable[[Any], bytes]:
    if name in _TEXTS:
        return _text
    if name == "bytea" and is_binary:
        return _bytes
    if name in ("json", "jsonb"):
        return lambda value: (b"\x01" if name == "jsonb" and is_binary else b"") + json_text(value).encode()
    if not is_binary:
        element = _TEXTS_OF_ELEMENTS.get(name)
        return lambda value: _as_text(
            _parts_of_type(value if element is None or isinstance(value, str) else _elements(value, element), name)
        )
    if name.startswith("_"):
        return lambda value: _array(name[1:], value)
    return _dumped(_DUMPERS.get(name, _refuse), name)


def _elements(value: Any, text: Callable[[Any], str]) -> Any:  # noqa: ANN401 - any object of the user
    """Convert each element to the text of its type; psycopg would choose other types for the objects."""
    if not isinstance(value, list):
        raise TypeError("a list is needed")
    return [None if each is None else _elements(each, text) if isinstance(each, list) else text(each) for each in value]


def _bytea_text(value: Any) -> str:  # noqa: ANN401 - any object of the user
    return f"\\x{_bytes(value).hex()}"


def _array(name: str, value: Any) -> bytes:  # noqa: ANN401 - any object of the user
    """Return an array in binary form: its dimensions, then every element.

    psycopg would choose the element type by the values.
    """
    lengths: list[int] = []
    elements: list[Any] = [value]
    while all(isinstance(each, list) for each in elements) and elements:
        if len({len(each) for each in elements}) > 1:
            raise ValueError("lists of different lengths")
        lengths.append(len(elements[0]))
        elements = [one for each in elements for one in each]
    if not lengths:
        raise TypeError("a list is needed")
    form, head = _form_of(name, is_binary=True), struct.Struct("!i")
    written = [b"\xff\xff\xff\xff" if each is None else head.pack(len(made := form(each))) + made for each in elements]
    dimensions = [] if 0 in lengths else lengths
    number = _NUMBERS[f"pg_catalog.{name}"]
    return b"".join(
        (
            struct.pack("!iiI", len(dimensions), int(None in elements), number),
            *(struct.pack("!ii", length, 1) for length in dimensions),
            *written,
        )
    )


def _dumped(dumper: Any, name: str) -> Callable[[Any], bytes]:  # noqa: ANN401 - a class of psycopg's
    from decimal import Decimal

    def dump(value: Any) -> bytes:  # noqa: ANN401 - any object of the user
        # A float becomes the numeric of its shortest text, which is also what PostgreSQL prints.
        value = _of_type(value, name, is_binary=True)
        made = (
            Decimal(str(value))
            if name == "numeric" and isinstance(value, int | float) and not isinstance(value, bool)
            else value
        )
        return bytes(dumper(type(made), None).dump(made))

    return dump


def _parts_of_type(value: Any, name: str) -> Any:  # noqa: ANN401 - any object of the user
    """Check the object, or each element of an array, by `_of_type`, and return it.

    A text passes as a value in the column's text form.
    """
    if isinstance(value, list) and name.startswith("_"):
        for each in value:
            if each is not None:
                _parts_of_type(each, name if isinstance(each, list) else name[1:])
        return value
    return checked(value) if isinstance(value, str) else _of_type(value, name, is_binary=False)


def _of_type(value: Any, name: str, *, is_binary: bool) -> Any:  # noqa: ANN401 - any object of the user
    """Return the object; refuse one that psycopg would change, such as any text to TRUE or a datetime to its date."""
    wanted = _OBJECTS.get(name)
    is_other = wanted is not None and (
        not isinstance(value, wanted) or (wanted is date and isinstance(value, datetime))
    )
    if (
        is_other
        or (name in _WITHOUT_ZONE and value.tzinfo is not None)
        or (name in _WITH_ZONE and value.tzinfo is None)
    ):
        raise TypeError("an object of another type")
    if name in _BOUNDS:
        for bound in (value.lower, value.upper):
            if bound is not None:
                _form_of(_BOUNDS[name], is_binary=is_binary)(bound)
    return value


def _refuse(*_: object) -> Any:  # noqa: ANN401 - never returns
    raise TypeError("no binary form is known for this type")


def _text(value: Any) -> bytes:  # noqa: ANN401 - any object of the user
    if not isinstance(value, str):
        raise TypeError("a text is needed")
    return checked(value).encode()


class NoText(ValueError):  # noqa: N818 - named for the content that PostgreSQL refuses
    """A `str` that PostgreSQL cannot store as text."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.hint = hint


def checked(text: str) -> str:
    """Return the text if PostgreSQL can store it.

    Raises:
        NoText: the text has a NUL character or a lone surrogate.
    """
    if "\0" in text:
        raise NoText("a NUL character", "PostgreSQL's texts cannot hold one: remove it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise NoText("a lone surrogate", "it has no form in UTF-8: replace it") from error
    return text


def _bytes(value: Any) -> bytes:  # noqa: ANN401 - any object of the user
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("bytes are needed")
    return bytes(value)


_TEXTS_OF_ELEMENTS: Final[dict[str, Callable[[Any], str]]] = {
    "_bytea": _bytea_text,
    "_json": json_text,
    "_jsonb": json_text,
}
"""Array type to the function that writes one element as text, where psycopg would write it wrong."""


def _as_text(value: Any) -> bytes:  # noqa: ANN401 - any object of the user
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, str):
        return value.encode()
    dumped = _TRANSFORMER.get_dumper(value, PyFormat.TEXT).dump(value)
    if dumped is None:
        raise TypeError("the object stands for NULL")
    return bytes(dumped)
