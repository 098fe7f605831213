"""Canonical forms: values that are equal at the destination have equal ones, so hashes of them show what depends on what."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from spark_apply.dependencies_kernels import hash_text

if TYPE_CHECKING:
    from databases.ports import DestinationColumn
    from streams.lcr_batch import Column

__all__ = ["Equality", "equality_of", "touch_of"]


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
    # A stream can change from binary to text. So a type with a canonical form in binary has one in text only if it can be
    # derived. The other types are rare as keys, and a float's text is not even unique (-0, exponents).
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
    """Hash that stands for something as a whole, such as any row of a table; see `spark_apply.dependencies` for its low bits.

    Args:
        name: of what it stands for; for a table its owner and name with a zero byte between.

    Returns:
        64 bits: shared use, marked in the two lowest.
    """
    return (hash_text(name) & ~3) | 1
