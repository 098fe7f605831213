"""Kinds of values that conditions compare, and what a database's connector must say of its types for that.

A kind is a way of comparing: two values of one kind compare alike at every site. What compares by the rules of a
locale, a time zone or an extension is `OPAQUE`: a condition may only ask whether it is NULL.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.lcr.batch import Column

__all__ = ["NUMBERS", "OPERATORS", "Comparable", "Kind", "ValueTypes", "like_pattern"]

Comparable = Any
"""A value of a kind, as `Kind` says; values of one kind compare with Python's own operators."""


class Kind(Enum):
    """How values compare, and what they are in Python and in an array."""

    INTEGER = "an integer"  # int; int64
    FLOAT = "a floating-point number"  # integers in its order; int64. NaN equals itself and is greater than every other
    SINGLE = "a floating-point number of single precision"  # the same; a list of literals is not compared as one by one
    NUMERIC = "a number"  # Decimal, and NaN as for FLOAT; objects
    BOOLEAN = "a truth value"  # bool; bool
    TEXT = "a text"  # UTF-8 bytes; equality only, unless COLLATE "C" is said
    PADDED_TEXT = "a text of fixed length"  # UTF-8 bytes without trailing blanks, which do not count
    BYTES = "bytes"  # bytes
    UUID = "a UUID"  # its 16 bytes
    DATE = "a date"  # days since 2000-01-01; int64
    TIME = "a time of the day"  # microseconds; int64
    TIMESTAMP = "a timestamp"  # microseconds since 2000-01-01 00:00; int64
    INSTANT = "a timestamp with time zone"  # microseconds since 2000-01-01 00:00 UTC; int64
    TAG = "a tag"  # bytes
    OPAQUE = "a value of a type that is not compared here"


NUMBERS: Final = (Kind.INTEGER, Kind.FLOAT, Kind.SINGLE, Kind.NUMERIC)
"""Kinds whose literals are written without quotes."""

OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@lru_cache(maxsize=1024)  # patterns of one topology; more only costs time
def like_pattern(pattern: str) -> re.Pattern[str]:
    """What LIKE matches: `%` any characters, `_` one, a backslash takes the next one as it is.

    The whole text must match.

    What stands between two `%` has a fixed length, so its first place in the text is as good as any later one. The
    groups are atomic: no other place is tried. Otherwise four `%` and a text of some thousand characters would hold a
    process for hours.
    """
    runs: list[list[str]] = [[]]
    is_escaped = False
    for letter in pattern:
        if letter == "\\" and not is_escaped:
            is_escaped = True
            continue
        if letter == "%" and not is_escaped:
            runs.append([])
        else:
            runs[-1].append("." if letter == "_" and not is_escaped else re.escape(letter))
        is_escaped = False
    first, *others = map("".join, runs)
    between = "".join(f"(?>.*?{run})" for run in others[:-1] if run)
    last = f".*{others[-1]}" if others else ""
    return re.compile(rf"{first}{between}{last}\Z", re.DOTALL)


class ValueTypes(Protocol):
    """What a connector says of its database's types."""

    def kind(self, column: Column) -> Kind:
        """How values of a column compare."""
        ...

    def value(self, column: Column, raw: bytes) -> Comparable:
        """One value.

        Args:
            column: says type and form; not `OPAQUE`.
            raw: its bytes, not NULL.

        Raises:
            ValueError: they are no value of the type.
        """
        ...

    def values(self, column: Column, data: NDArray[np.uint8], lengths: NDArray[np.int32]) -> NDArray[Any]:
        """Many values at once, each as `value` would give it.

        Args:
            column: says type and form; not `OPAQUE`.
            data: uint8, their bytes one after the other.
            lengths: int32, of each; none is negative.

        Raises:
            ValueError: they are no values of the type.
        """
        ...

    def decoded(self, column: Column, raw: bytes) -> object:
        """One value as a Python object, for users' code.

        Args:
            column: says type and form.
            raw: its bytes, not NULL.

        Raises:
            LcrError: it is no Python object, such as a date before year 1.
        """
        ...

    def decoded_of_copy(self, column: Column, raw: bytes, *, texts: Collection[str]) -> object:
        """A value of a copied row, which is read as text, as `decoded` gives the value that the log has in binary form.

        Args:
            column: says the type.
            raw: its text, not NULL.
            texts: see `OpenPiece.texts_of_log`.

        Raises:
            LcrError: as of `decoded`; or the text does not show what `decoded` gives of the log.
        """
        ...

    def encoded(self, column: Column, value: object) -> bytes:
        """The opposite of `decoded`.

        Args:
            column: says type and form.
            value: not None.

        Raises:
            LcrError: the object does not fit the type.
        """
        ...

    def constant(self, column: Column, text: str) -> Comparable:
        """A text literal that is compared with a column, as a value of the column's type.

        Args:
            column: of a kind that is not a number.
            text: what stands between the quotes.

        Raises:
            ValueError: it is no value of the type, or one that depends on a setting of the session; says which spelling
                is meant.
        """
        ...

    def number(self, column: Column, value: int | Decimal) -> Comparable:
        """A number that is compared with a column of a kind in `NUMBERS`, as `value` would give it.

        Of an INTEGER it may be a fraction.

        Args:
            column: of such a kind.
            value: the literal.

        Raises:
            ValueError: the kind cannot hold it.
        """
        ...
