"""Kinds of values that conditions compare, and what a database's connector must provide for its types.

A kind is a way of comparing: two values of one kind compare alike at every site. Values whose comparison depends on a
locale, a time zone or an extension are `OPAQUE`: a condition may only test them for NULL.
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
"""A value of a kind, in the form given at `Kind`; values of one kind compare with Python's own operators."""


class Kind(Enum):
    """How values compare, and their form in Python and in an array."""

    INTEGER = "an integer"  # int; int64
    FLOAT = "a floating-point number"  # integers in its order; int64. NaN equals itself and is the greatest
    SINGLE = "a floating-point number of single precision"  # the same; the source compares lists differently
    NUMERIC = "a number"  # Decimal, with NaN as for FLOAT; objects
    BOOLEAN = "a truth value"  # bool; bool
    TEXT = "a text"  # UTF-8 bytes; equality only, unless COLLATE "C" is given
    PADDED_TEXT = "a text of fixed length"  # UTF-8 bytes without trailing blanks, which are ignored
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


@lru_cache(maxsize=1024)  # patterns of one topology; above that it is only slower
def like_pattern(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a LIKE pattern: `%` any characters, `_` one, a backslash escapes the next one.

    The whole text must match.

    A run between two `%` has a fixed length, so its first place in the text is as good as any later one. The groups are
    atomic: no other place is tried. Otherwise four `%` and a text of some thousand characters would hold a process for
    hours.
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
    """A connector's knowledge of its database's types."""

    def kind(self, column: Column) -> Kind:
        """Return how values of a column compare."""
        ...

    def value(self, column: Column, raw: bytes) -> Comparable:
        """Decode one value.

        Args:
            column: gives type and form; not `OPAQUE`.
            raw: its bytes, not NULL.

        Raises:
            ValueError: the bytes are no value of the type.
        """
        ...

    def values(self, column: Column, data: NDArray[np.uint8], lengths: NDArray[np.int32]) -> NDArray[Any]:
        """Decode many values at once, each as `value` would.

        Args:
            column: gives type and form; not `OPAQUE`.
            data: uint8, their bytes one after the other.
            lengths: int32, of each; none is negative.

        Raises:
            ValueError: the bytes are no values of the type.
        """
        ...

    def decoded(self, column: Column, raw: bytes) -> object:
        """Return one value as a Python object, for users' code.

        Args:
            column: gives type and form.
            raw: its bytes, not NULL.

        Raises:
            LcrError: it has no Python object, such as a date before year 1.
        """
        ...

    def decoded_of_copy(self, column: Column, raw: bytes, *, texts: Collection[str]) -> object:
        """Return a value of a copied row, read as text, in the form that `decoded` gives for the log's binary value.

        Args:
            column: gives the type.
            raw: its text, not NULL.
            texts: as `OpenPiece.texts_of_log`.

        Raises:
            LcrError: as for `decoded`; or the text does not show what `decoded` gives for the log.
        """
        ...

    def encoded(self, column: Column, value: object) -> bytes:
        """Encode a Python object: the inverse of `decoded`.

        Args:
            column: gives type and form.
            value: not None.

        Raises:
            LcrError: the object does not fit the type.
        """
        ...

    def constant(self, column: Column, text: str) -> Comparable:
        """Return a text literal that is compared with a column, as a value of the column's type.

        Args:
            column: column of a kind that is not a number.
            text: the text between the quotes.

        Raises:
            ValueError: the text is no value of the type, or one that depends on a setting of the session; the message
                says which spelling is meant.
        """
        ...

    def number(self, column: Column, value: int | Decimal) -> Comparable:
        """Return a number that is compared with a column of a kind in `NUMBERS`, in the form of `value`.

        For an INTEGER column it may be a fraction.

        Args:
            column: column of such a kind.
            value: the literal.

        Raises:
            ValueError: the kind cannot hold the number.
        """
        ...
