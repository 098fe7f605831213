"""Values whose Python object says less than they do, so that a function which writes back what it read writes the same value.

    interval    Python's timedelta counts days and microseconds: it makes 1 day 01:00:00 of 25:00:00, and 30 days of 1 mon.
                What it can hold keeps its
                days and hours apart beside (`ExactInterval`); months and infinity it cannot hold
    json        a float has 17 digits: a number with more keeps its text beside (`ExactFloat`). An object that has a key
                twice is none of Python's
    real        the number nearest to its text is another one than the four bytes are: both forms give the one of the bytes
    arrays      lists begin at 1: an array that begins elsewhere is none of Python's. Of an array of JSON, an element that
                is a JSON list would be taken for
                a dimension, and one that is the JSON null for an SQL NULL: they are none of Python's either

What is computed of such an object is a plain timedelta or float.
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
_ARRAY_HEAD: Final = struct.Struct("!iiI")  # dimensions, whether there are NULLs, the elements' type
_DAY_US = 86_400_000_000
_AN_EXAMPLE = 7  # characters of `: null}` behind a key


class ExactInterval(timedelta):
    """An interval whose hours are no part of its days, such as 25:00:00."""

    __slots__ = ("parts",)
    parts: tuple[int, int]  # days, microseconds


class ExactFloat(float):
    """A number of a JSON text that is written otherwise than Python would write it."""

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
        if months:  # also of infinity
            raise ValueError("months are none of Python's")
        return _interval(days, us)


class _IntervalTextLoader(Loader):
    """Of the style `postgres`, which Headrace's sessions have."""

    def load(self, data: Buffer) -> timedelta:
        found = _INTERVAL_TEXT.fullmatch(bytes(data).decode())
        if found is None or not found[0]:
            raise ValueError("months and infinity are none of Python's")
        days, sign, hours, minutes, seconds, fraction = found.groups("0")
        us = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1_000_000 + int(fraction.ljust(6, "0"))
        return _interval(int(days), -us if sign == "-" else us)


class _RealTextLoader(Loader):
    def load(self, data: Buffer) -> float:
        (found,) = _REAL.unpack(_REAL.pack(float(bytes(data))))
        return float(found)


class IntervalTextDumper(times.TimedeltaDumper):
    """Writes an `ExactInterval` as it was read."""

    def dump(self, obj: timedelta) -> Buffer | None:
        """See `psycopg.adapt.Dumper`."""
        parts = getattr(obj, "parts", None)
        return super().dump(obj) if parts is None else f"{parts[0]} days {parts[1]} microseconds".encode()


class IntervalBinaryDumper(times.TimedeltaBinaryDumper):
    """Writes an `ExactInterval` as it was read."""

    def dump(self, obj: timedelta) -> Buffer | None:
        """See `psycopg.adapt.Dumper`."""
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
        raise ValueError("an object has a key twice")
    return found


def _json(data: str | bytes) -> Any:  # noqa: ANN401 - what the text says
    return json.loads(data, parse_float=_float, object_pairs_hook=_object)


def json_text(value: Any) -> str:  # noqa: ANN401 - what the user gives
    """A Python object as `json.dumps` writes it, but for numbers that were read: these are written as they were.

    Args:
        value: of the types that JSON has.
    """
    if not _has_exact(value):
        return json.dumps(value)  # in one piece: this is an order of magnitude faster
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


def _json_element(data: str | bytes) -> Any:  # noqa: ANN401 - what the text says
    found = _json(data)
    if found is None or isinstance(found, list):
        raise ValueError("an element is a JSON list or null")
    return found


def exact_context(*, of_elements: bool = False) -> AdaptContext:
    """What loads and dumps values as this module says: of a `psycopg.adapt.Transformer`.

    Args:
        of_elements: it loads arrays of JSON.
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
    """Whether an array begins elsewhere than at 1.

    Args:
        value: of an array.
        is_binary: its form.
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
