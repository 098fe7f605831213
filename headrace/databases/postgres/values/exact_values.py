"""Lossless Python objects for values that the standard Python type would change.

A function that writes back what it read thereby writes the same value. A value without a Python object is refused.

    interval    Python's timedelta counts days and microseconds: it turns 25:00:00 into 1 day 01:00:00, and 1 mon into
                30 days. `ExactInterval` also stores days and hours separately. Months and infinity have no Python object
    json        A float has 17 digits; for a number with more, `ExactFloat` also stores the text. An object with a
                duplicate key has no Python object
    real        The Python number nearest to the text differs from the one in the four bytes. Both forms give the number
                of the bytes
    arrays      Lists begin at 1, so an array with another lower bound has no Python object. In an array of JSON, a list
                would pass for a dimension and the JSON null for an SQL NULL; such arrays have none either

Computing with such an object gives a plain timedelta or float.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final, cast

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import AdaptersMap, Loader
from psycopg.pq import Format
from psycopg.types import datetime as times
from psycopg.types.json import set_json_loads

__all__ = [
    "ExactFloat",
    "ExactInterval",
    "IntervalBinaryDumper",
    "IntervalTextDumper",
    "exact_context",
    "has_other_bounds",
    "json_text",
]

_INTERVAL: Final = struct.Struct("!qii")  # microseconds, days, months
_REAL: Final = struct.Struct("!f")
_INTERVAL_TEXT: Final = re.compile(r"(?:([+-]?\d+) days?)?(?: ?([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?")
_DIMENSION: Final = struct.Struct("!ii")  # length, first index
_ARRAY_HEAD: Final = struct.Struct("!iiI")  # number of dimensions, flag for NULLs, element type
_DAY_US = 86_400_000_000
_AN_EXAMPLE = 7  # characters of `: null}` after a key


class ExactInterval(timedelta):
    """An interval with negative hours or more than a day of them, such as 25:00:00."""

    __slots__ = ("parts",)
    parts: tuple[int, int]  # days, microseconds


class ExactFloat(float):
    """A JSON number whose text differs from the one that Python would write."""

    __slots__ = ("text",)
    text: str


def _interval(days: int, us: int) -> timedelta:
    if 0 <= us < _DAY_US:
        return timedelta(days=days, microseconds=us)
    made = ExactInterval(days=days, microseconds=us)
    made.parts = days, us
    return made


class _IntervalBinaryLoader(Loader):
    format = Format.BINARY

    def load(self, data: Buffer) -> timedelta:
        us, days, months = _INTERVAL.unpack(data)
        if months:  # infinity has months, too
            raise ValueError("Python's timedelta has no months")
        return _interval(days, us)


class _IntervalTextLoader(Loader):
    """Read the interval style `postgres`, which Headrace's sessions use."""

    def load(self, data: Buffer) -> timedelta:
        found = _INTERVAL_TEXT.fullmatch(bytes(data).decode())
        if found is None or not found[0]:
            raise ValueError("Python's timedelta has neither months nor infinity")
        days, sign, hours, minutes, seconds, fraction = found.groups("0")
        us = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1_000_000 + int(fraction.ljust(6, "0"))
        return _interval(int(days), -us if sign == "-" else us)


class _RealTextLoader(Loader):
    def load(self, data: Buffer) -> float:
        (found,) = _REAL.unpack(_REAL.pack(float(bytes(data))))
        return float(found)


class IntervalTextDumper(times.TimedeltaDumper):
    """Text dumper that writes an `ExactInterval` as it was read."""

    def dump(self, obj: timedelta) -> Buffer | None:
        """Return the interval as text."""
        parts = getattr(obj, "parts", None)
        return super().dump(obj) if parts is None else f"{parts[0]} days {parts[1]} microseconds".encode()


class IntervalBinaryDumper(times.TimedeltaBinaryDumper):
    """Binary dumper that writes an `ExactInterval` as it was read."""

    def dump(self, obj: timedelta) -> Buffer | None:
        """Return the interval in binary form."""
        parts = getattr(obj, "parts", None)
        return super().dump(obj) if parts is None else _INTERVAL.pack(parts[1], parts[0], 0)


def _float(text: str) -> float:
    number = float(text)
    if repr(number) == text:
        return number
    made = ExactFloat(number)
    made.text = text
    return made


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a JSON object has a duplicate key")
    return found


def _json(data: str | bytes) -> Any:  # noqa: ANN401 - depends on the text
    return json.loads(data, parse_float=_float, object_pairs_hook=_object)


def json_text(value: Any) -> str:  # noqa: ANN401 - any object of the user
    """Return a Python object as JSON text: as `json.dumps`, but an `ExactFloat` keeps its original text.

    Args:
        value: a value of JSON's types.
    """
    if not _has_exact(value):
        return json.dumps(value)  # the whole value at once: an order of magnitude faster
    if isinstance(value, ExactFloat):
        return value.text
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps({key: None})[1:-_AN_EXAMPLE]}: {json_text(each)}" for key, each in value.items())
            + "}"
        )
    return "[" + ", ".join(map(json_text, value)) + "]"


def _has_exact(value: Any) -> bool:  # noqa: ANN401 - as above
    if isinstance(value, dict):
        return any(map(_has_exact, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_exact, value))
    return isinstance(value, ExactFloat) and hasattr(value, "text")


def _json_element(data: str | bytes) -> Any:  # noqa: ANN401 - depends on the text
    found = _json(data)
    if found is None or isinstance(found, list):
        raise ValueError("an array element is a JSON list or null")
    return found


def exact_context(*, of_elements: bool = False) -> AdaptContext:
    """Return the context of a `psycopg.adapt.Transformer` that loads and dumps values losslessly.

    Args:
        of_elements: True for arrays of JSON.
    """
    adapters = AdaptersMap(psycopg.adapters)
    adapters.register_loader("interval", _IntervalBinaryLoader)
    adapters.register_loader("interval", _IntervalTextLoader)
    adapters.register_loader("float4", _RealTextLoader)
    adapters.register_dumper(timedelta, IntervalTextDumper)
    loads: Callable[[str | bytes], Any] = _json_element if of_elements else _json
    set_json_loads(loads, adapters)
    context: Any = SimpleNamespace(adapters=adapters, connection=None)
    return cast("AdaptContext", context)


def has_other_bounds(value: bytes, *, is_binary: bool) -> bool:
    """Return whether an array has a lower bound other than 1.

    Args:
        value: the array.
        is_binary: whether `value` is in binary form.
    """
    if not is_binary:
        return value.startswith(b"[")
    dimensions, *_ = _ARRAY_HEAD.unpack_from(value)
    return any(
        first != 1
        for _, first in _DIMENSION.iter_unpack(
            value[_ARRAY_HEAD.size : _ARRAY_HEAD.size + dimensions * _DIMENSION.size]
        )
    )
