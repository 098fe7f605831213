"""One value that an LCR carries, and the hooks by which a database's own library reads and writes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.base.errors import HeadraceError, Retry
from headrace.lcr.batch import Column

__all__ = ["NULL_VALUE", "DecodeHook", "EncodeHook", "LcrError", "LcrValue"]

DecodeHook = Callable[[Column, bytes], object]
"""Turns a value's bytes into a Python object; the column says type, modifier and encoding."""


EncodeHook = Callable[[Column, object], bytes]
"""Turns a Python object, not None, into a value's bytes."""


class LcrError(HeadraceError):
    """A method of an LCR was used on a column or a value that does not allow it."""

    code = "HDR-1200"
    retry = Retry.MANUAL


@dataclass(frozen=True, slots=True, kw_only=True)
class LcrValue:
    """One value that an LCR carries.

    Args:
        column: what it is a value of: its type and encoding.
        raw: the bytes in the source's encoding; None: the value is NULL.
        decode: how `decoded` reads it; None: nobody said.
    """

    column: Column
    raw: bytes | None
    decode: DecodeHook | None = field(default=None, compare=False, repr=False)

    @property
    def is_null(self) -> bool:
        """The value is NULL."""
        return self.raw is None

    @property
    def decoded(self) -> object:
        """The value as a Python object; None for NULL.

        Raises:
            LcrError: the view was made without a decode hook.
        """
        if self.raw is None:
            return None
        if self.decode is None:
            raise LcrError(
                f"the value of column {self.column.name} cannot be decoded here",
                hint="use raw, or make the view with a decode hook",
                column=self.column.name,
            )
        return self.decode(self.column, self.raw)


NULL_VALUE = LcrValue(column=Column(name="", type_name=""), raw=None)
"""NULL for any column: an absent value and a NULL are different things, so users' code writes it out (`lcr.NULL`)."""
