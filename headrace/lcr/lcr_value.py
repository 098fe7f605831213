"""One value that an LCR carries, and the hooks through which a database's own library reads and writes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.base.errors import HeadraceError, Retry
from headrace.lcr.batch import Column

__all__ = ["NULL_VALUE", "DecodeHook", "EncodeHook", "LcrError", "LcrValue"]

DecodeHook = Callable[[Column, bytes], object]
"""Converts a value's bytes into a Python object; the column has type, modifier and encoding."""


EncodeHook = Callable[[Column, object], bytes]
"""Converts a Python object, not None, into a value's bytes."""


class LcrError(HeadraceError):
    """A method of an LCR was used on a column or a value that does not allow it."""

    code = "HDR-1200"
    fix = "Correct the function or the handler: the hint says what the LCR allows."
    retry = Retry.MANUAL


@dataclass(frozen=True, slots=True, kw_only=True)
class LcrValue:
    """One value that an LCR carries.

    Args:
        column: column of the value, with type and encoding.
        raw: bytes in the source's encoding; None: the value is NULL.
        decode: hook for `decoded`; None: values cannot be decoded.
    """

    column: Column
    raw: bytes | None
    decode: DecodeHook | None = field(default=None, compare=False, repr=False)

    @property
    def is_null(self) -> bool:
        """Whether the value is NULL."""
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
"""NULL for any column: absent and NULL are different, so users' code writes NULL explicitly (`lcr.NULL`)."""
