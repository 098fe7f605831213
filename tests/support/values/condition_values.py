"""Random values of every type that conditions compare, as the log carries them, and random conditions over them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from headrace.lcr.batch import Column
from headrace.rules.conditions.attributes import ATTRIBUTES, UNIX_TO_2000_US, WITH_ORDER
from headrace.rules.conditions.nodes import (
    And,
    Attribute,
    Compare,
    Constant,
    Distinct,
    Image,
    In,
    IsNull,
    IsTruth,
    Like,
    Logical,
    Node,
    Not,
    Or,
    Truth,
    ValueOf,
)
from headrace.rules.conditions.values import OPERATORS

EPOCH = date(2000, 1, 1)
EPOCH_TIME = datetime(2000, 1, 1)  # noqa: DTZ001 - as timestamps have no time zone
INFINITE_DATES = [2**31 - 1, -(2**31)]
INFINITE_TIMES = [2**63 - 1, -(2**63)]


def numeric_bytes(value: Decimal) -> bytes:
    """Return a numeric as PostgreSQL sends it."""
    if value.is_nan():
        return struct.pack(">hhHh", 0, 0, 0xC000, 0)
    if value.is_infinite():
        return struct.pack(">hhHh", 0, 0, 0xD000 if value > 0 else 0xF000, 0)
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    if exponent > 0:
        text, exponent = text + "0" * exponent, 0
    whole, fraction = (text[: len(text) + exponent], text[len(text) + exponent :]) if exponent else (text, "")
    if -exponent > len(text):
        whole, fraction = "", "0" * (-exponent - len(text)) + text
    scale = len(fraction)
    whole, fraction = whole.zfill(-(-len(whole) // 4) * 4), fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    groups = [int((whole + fraction)[place : place + 4]) for place in range(0, len(whole + fraction), 4)]
    weight = len(whole) // 4 - 1
    while groups and groups[0] == 0:
        groups.pop(0)
        weight -= 1
    while groups and groups[-1] == 0:
        groups.pop()
    return struct.pack(
        f">hhHh{len(groups)}H", len(groups), weight if groups else 0, 0x4000 if sign else 0, scale, *groups
    )


def _date_text(days: int) -> str:
    return {INFINITE_DATES[0]: "infinity", INFINITE_DATES[1]: "-infinity"}.get(days) or str(
        EPOCH + timedelta(days=days)
    )


def _time_text(us: int) -> str:
    return {INFINITE_TIMES[0]: "infinity", INFINITE_TIMES[1]: "-infinity"}.get(us) or str(
        EPOCH_TIME + timedelta(microseconds=us)
    )


def _instant_text(us: int) -> str:
    text = _time_text(us)
    return text if "infinity" in text else text + "+00"


def _clock_text(us: int) -> str:
    return str((EPOCH_TIME + timedelta(microseconds=us)).time())


_INTEGERS = st.sampled_from([0, 1, -1, 2, 50, 127]) | st.integers(-(2**15), 2**15 - 1)
_FLOATS = st.sampled_from([0.0, -0.0, 1.5, -1.5, float("nan"), float("inf"), float("-inf"), 0.1]) | st.floats(width=32)
_NUMBERS = st.sampled_from(
    [Decimal(0), Decimal("1.50"), Decimal("-1.5"), Decimal(50), Decimal("NaN"), Decimal("Infinity"), Decimal("0.00001")]
) | (st.decimals(allow_nan=False, allow_infinity=False, places=5, min_value=-(10**9), max_value=10**9))
_TEXTS = st.sampled_from(["", "a", "ab", "a ", "ä%", "x_y", "A"]) | st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), max_size=4
)
_DAYS = st.sampled_from([0, 1, -1, 7000, *INFINITE_DATES]) | st.integers(-700_000, 2_900_000)
_TIMES = st.sampled_from([0, 1, -1, *INFINITE_TIMES]) | st.integers(-(6 * 10**16), 2 * 10**17)
_CLOCKS = st.sampled_from([0, 1]) | st.integers(0, 86_399_999_999)
_UUIDS = st.sampled_from([bytes(16), bytes(15) + b"\1"]) | st.binary(min_size=16, max_size=16)


def _uuid_text(value: bytes) -> str:
    digits = value.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


# type -> (values, their binary form, their text form)
TYPES: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], bytes], Callable[[Any], str]]] = {
    "int2": (_INTEGERS, lambda v: struct.pack(">h", v), str),
    "int4": (_INTEGERS, lambda v: struct.pack(">i", v), str),
    "int8": (_INTEGERS | st.integers(-(2**63), 2**63 - 1), lambda v: struct.pack(">q", v), str),
    "float4": (_FLOATS, lambda v: struct.pack(">f", v), repr),
    "float8": (_FLOATS | st.floats(), lambda v: struct.pack(">d", v), repr),
    "numeric": (_NUMBERS, numeric_bytes, str),
    "bool": (st.booleans(), lambda v: bytes([v]), lambda v: "t" if v else "f"),
    "text": (_TEXTS, str.encode, str),
    "varchar": (_TEXTS, str.encode, str),
    "name": (_TEXTS, str.encode, str),
    "bpchar": (_TEXTS, str.encode, str),
    "bytea": (_UUIDS | st.binary(max_size=3), bytes, lambda v: "\\x" + v.hex()),
    "uuid": (_UUIDS, bytes, _uuid_text),
    "date": (_DAYS, lambda v: struct.pack(">i", v), _date_text),
    "time": (_CLOCKS, lambda v: struct.pack(">q", v), _clock_text),
    "timestamp": (_TIMES, lambda v: struct.pack(">q", v), _time_text),
    "timestamptz": (_TIMES, lambda v: struct.pack(">q", v), _instant_text),
}
ORDERED = [name for name in TYPES if name not in ("text", "varchar", "name", "bpchar")]
NUMBERS = ("int2", "int4", "int8", "float4", "float8", "numeric")


def columns() -> tuple[Column, ...]:
    """Return two columns of each type, one in each form, and one that is not compared; the first is the key."""
    found = [Column(name="id", type_name="pg_catalog.int4", is_binary=True, is_key=True)]
    for name in TYPES:
        column = Column(name=f"{name}_b", type_name=f"pg_catalog.{name}", is_binary=True)
        found += [column, replace(column, name=f"{name}_t", is_binary=False)]
    return (*found, Column(name="mood", type_name="public.mood"))


def type_of(column: str) -> str:
    """Return the type of one of `columns`."""
    return "int4" if column == "id" else column.rpartition("_")[0]


@st.composite
def raw_values(draw: st.DrawFn, column: Column) -> bytes:
    """Draw a value of a column, in its form."""
    if column.name == "mood":
        return draw(st.sampled_from([b"sad", b"ok"]))
    values, binary, text = TYPES[type_of(column.name)]
    value = draw(values)
    return binary(value) if column.is_binary else text(value).encode()


@st.composite
def literals(draw: st.DrawFn, type_name: str) -> Constant:
    """Draw a constant that may be compared with a column of a type."""
    values, _, text = TYPES[type_name]
    value = draw(values)
    if type_name in ("float4", "float8"):
        return Constant(value=Decimal(str(value + 0.0)) if value == value and abs(value) != float("inf") else 1)
    if type_name == "numeric":
        return Constant(value=value if value.is_finite() else Decimal(2))
    if type_name in NUMBERS:
        return Constant(value=draw(st.sampled_from([value, 2**70, Decimal("1.5"), Decimal("-0.5"), Decimal("50.0")])))
    return Constant(value=value if type_name == "bool" else text(value))


_IMAGES = st.sampled_from(Image)
_ATTRIBUTES: dict[str, Sequence[Any]] = {
    "source_database_name": ["dbs1", "dbs2"],
    "command_type": ["INSERT", "UPDATE", "DELETE", "TRUNCATE"],
    "object_owner": ["public", "hr"],
    "object_name": ["t", "u"],
    "tag": [b"\x1d", b"\x11"],
    "transaction_id": [1010, 1020],
    "scn": [9, 19],
    "source_time": [10_000 - UNIX_TO_2000_US, 20_000 - UNIX_TO_2000_US],
}


@st.composite
def comparisons(draw: st.DrawFn, *, with_attributes: bool = True):
    """Draw one comparison."""
    if with_attributes and draw(st.integers(0, 3)) == 0:
        return draw(attribute_comparisons())
    column = draw(st.sampled_from([each.name for each in columns()]))
    operand = ValueOf(draw(_IMAGES), column)
    if column == "mood":
        return IsNull(operand)
    kind = type_of(column)
    other = ValueOf(draw(_IMAGES), draw(st.sampled_from([f"{kind}_b", f"{kind}_t"])))
    right = draw(st.one_of(literals(kind), st.just(other)))
    form = draw(st.sampled_from(["compare", "distinct", "in", "null", "like"]))
    if form == "null":
        return IsNull(operand)
    if form == "like" and kind in ("text", "varchar", "name"):
        return Like(operand, draw(st.sampled_from(["a%", "%b", "_", "x\\_y", "%", ""])))
    if form == "in" and kind != "float4":
        among = draw(st.lists(literals(kind) | st.just(Constant(value=None)), min_size=1, max_size=4))
        return In(operand, tuple(among))
    if form == "distinct":
        return Distinct(operand, right)
    is_text = kind in ("text", "varchar", "name")
    operators = ["=", "<>", "<", "<=", ">", ">="] if kind in ORDERED or is_text else ["=", "<>"]
    return Compare(draw(st.sampled_from(operators)), operand, right, is_text)


@st.composite
def attribute_comparisons(draw: st.DrawFn):
    """Draw one comparison of an attribute."""
    name = draw(st.sampled_from(list(_ATTRIBUTES)))
    operand, constants = Attribute(name), [Constant(value=each) for each in _ATTRIBUTES[name]]
    form = draw(st.sampled_from(["compare", "in", "null", "distinct"]))
    if form == "null":
        return IsNull(operand)
    if form == "in":
        return In(
            operand, tuple(draw(st.lists(st.sampled_from([*constants, Constant(value=None)]), min_size=1, max_size=3)))
        )
    right = draw(st.sampled_from(constants))
    return (
        Distinct(operand, right)
        if form == "distinct"
        else Compare(
            draw(st.sampled_from(sorted(OPERATORS) if ATTRIBUTES[name] in WITH_ORDER else ["=", "<>"])), operand, right
        )
    )


def conditions(*, with_attributes: bool = True) -> st.SearchStrategy[Node]:
    """Return a strategy for any condition over `columns` and the attributes."""
    leaves = comparisons(with_attributes=with_attributes) | st.builds(Logical, st.sampled_from(Truth))
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(Not, inner),
            st.builds(IsTruth, inner, st.sampled_from(Truth)),
            st.builds(And, st.lists(inner, min_size=2, max_size=3).map(tuple)),
            st.builds(Or, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        ),
        max_leaves=6,
    )
