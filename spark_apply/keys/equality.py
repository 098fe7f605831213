"""Canonical forms: values that are equal at the destination have equal ones, so hashes of them show what depends on what."""

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
"""The bits of a table's form; above them are those of the table.

With no bit of a form but use, it stands for the table in any form.
"""


class Equality(IntEnum):
    """Canonical forms for hashing: values that are equal at the destination have equal canonical forms."""

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
    """The canonical form of a column's values.

    Args:
        target: the destination's column.
        column: the source's, whose values arrive.
    """
    if column.type_name in target.converted:
        return Equality.NONE
    binary = column.is_binary
    # A stream can change from binary to text. So a type with a canonical form in binary has one in text only if it can
    # be derived. The other types are rare as keys, and a float's text is not even unique (-0, exponents).
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
    """Hash that stands for something as a whole, such as any row of a table.

    See `spark_apply.dependencies.hashes` for its low bits.

    Args:
        name: of what it stands for; for a table its owner and name with a zero byte between.

    Returns:
        64 bits: shared use, marked in the two lowest.
    """
    return (hash_text(name) & ~3) | 1


def forms_of(table: DestinationTable) -> tuple[int, ...]:
    """Hashes of the form of a table.

    What it is called and keyed by, of the table with its number, and what it is keyed by, of the table with its name.

    Hashes of its rows in two forms cannot be compared, so what holds transactions holds those of another form whole.
    Unique keys beside the key that finds rows are no part of it: rows that meet in one of them alone conflict, and do
    not go unnoticed.

    Args:
        table: as it is described now.

    Returns:
        64 bits each, marked as shared use in the two lowest; the one of its name alone, where its number is not known.
    """
    name = f"{table.owner}\0{table.name}"
    key = "\0".join(f"{table.columns[place].number}:{table.columns[place].equality}" for place in sorted(table.key))
    by_name = _form(f"table named\0{name}", key)
    return (_form(f"table\0{table.number}", f"{name}\0{key}"), by_name) if table.number else (by_name,)


def form_of_match(owner: str, name: str, numbers: Iterable[int]) -> int:
    """Hash of the columns that find a table's rows, as `forms_of`.

    They are others where the source has another replica identity.

    Args:
        owner: of the table.
        name: of the table.
        numbers: of its columns at the destination.
    """
    return _form(f"rows of\0{owner}\0{name}", " ".join(map(str, sorted(numbers))))


def _form(of: str, described: str) -> int:
    form = hash_text(described) & (FORM_BITS & ~3) or 4
    return (hash_text(of) & ~FORM_BITS) | form | 1
