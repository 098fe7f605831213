"""Canonical forms: values that are equal at the destination have equal forms, so their hashes show dependencies."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from spark_apply.keys.hash_kernels import hash_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.databases.ports import DestinationColumn, DestinationTable
    from headrace.lcr.batch import Column

__all__ = ["FORM_BITS", "Equality", "equality_of", "form_of_match", "forms_of", "touch_of"]

FORM_BITS = 0xFFFFFF
"""The bits of a table hash that hold the form; the bits above identify the table.

A hash whose form bits are zero, apart from the two use bits, stands for the table in any form.
"""


class Equality(IntEnum):
    """Canonical form of a column's values, for hashing."""

    NONE = 0  # no canonical form is known
    BYTES = 1
    INTEGER_BINARY = 2
    INTEGER_TEXT = 3
    PADDED = 4  # trailing blanks are insignificant
    NUMERIC_BINARY = 5
    NUMERIC_TEXT = 6
    FLOAT_BINARY = 7
    UUID_TEXT = 8


def equality_of(target: DestinationColumn, column: Column) -> Equality:
    """Return the canonical form of a column's values.

    Args:
        target: the destination's column.
        column: the source's column, in whose form the values arrive.
    """
    if column.type_name in target.converted:
        return Equality.NONE
    binary = column.is_binary
    # A stream can change from binary to text. So a type with a canonical form in binary also needs one derived from its
    # text. Types without one are rare as keys, and the text of a float is not even unique (-0, exponents).
    return {
        "text": Equality.BYTES,
        "bytes": Equality.BYTES if binary else Equality.NONE,
        "uuid": Equality.BYTES if binary else Equality.UUID_TEXT,
        "integer": Equality.INTEGER_BINARY if binary else Equality.INTEGER_TEXT,
        "bpchar": Equality.PADDED,
        "numeric": Equality.NUMERIC_BINARY if binary else Equality.NUMERIC_TEXT,
        "float": Equality.FLOAT_BINARY if binary else Equality.NONE,
    }.get(target.equality, Equality.NONE)


def touch_of(name: str) -> int:
    """Return a hash that stands for a whole, such as all rows of a table.

    The two lowest bits mark the kind of use, as `spark_apply.dependencies.hashes` describes.

    Args:
        name: what the hash stands for; for a table its owner and name, separated by a zero byte.

    Returns:
        64 bits, marked as shared use.
    """
    return (hash_text(name) & ~3) | 1


def forms_of(table: DestinationTable) -> tuple[int, ...]:
    """Return hashes of a table's form.

    The first identifies the table by its number; its form is the table's name and key. The second identifies the table
    by its name; its form is the key.

    Row hashes of two different forms cannot be compared. So an error transaction holds every later transaction that has
    the same table in another form. The form covers only the key that finds rows: rows that collide in another
    unique key conflict at the destination, so they do not go unnoticed.

    Args:
        table: the current description.

    Returns:
        64 bits each, marked as shared use in the two lowest; only the second if the table's number is unknown.
    """
    name = f"{table.owner}\0{table.name}"
    key = "\0".join(f"{table.columns[place].number}:{table.columns[place].equality}" for place in sorted(table.key))
    by_name = _form(f"table named\0{name}", key)
    return (_form(f"table\0{table.number}", f"{name}\0{key}"), by_name) if table.number else (by_name,)


def form_of_match(owner: str, name: str, numbers: Iterable[int]) -> int:
    """Return a hash of the columns that find a table's rows, in the format of `forms_of`.

    These columns change with the source's replica identity.

    Args:
        owner: the table's owner.
        name: the table's name.
        numbers: the columns' numbers at the destination.
    """
    return _form(f"rows of\0{owner}\0{name}", " ".join(map(str, sorted(numbers))))


def _form(of: str, described: str) -> int:
    form = hash_text(described) & (FORM_BITS & ~3) or 4
    return (hash_text(of) & ~FORM_BITS) | form | 1
