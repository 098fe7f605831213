"""A custom transformation of a positive rule: a function that users write, as frozen data.

    def mask(lcr: RowLcr) -> RowLcr

gets each row LCR that the rule takes, after row migration and the rule's declarative transformations, and returns it
with other values. In a capture process it may return a list instead: an empty one (the change is discarded), or several
LCRs (`lcr.copy()` makes another one).

It cannot change the command, the table's name, the LCR's columns, the tag, transaction id, SCN and source. Columns and
names belong to the declarative steps before it, so a table's shape is known without calling anything.

Source: Oracle Streams Concepts and Administration 11.2, "Custom Rule-Based Transformations"; `semantics.md` 4.5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.rules.user_code.handlers import TIMEOUT_DEFAULT_S
from headrace.rules.user_code.source import NO_CODE, UserCode, UserFunction

__all__ = ["CUSTOM_PARAMETERS", "LCRS_MAX", "CustomTransformation"]

CUSTOM_PARAMETERS = ("lcr",)
"""Parameters of a function."""

LCRS_MAX = 64
"""Bound of a function's LCRs for one LCR: a batch may grow by this factor in the capture process's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomTransformation:
    """A rule's function, with its code.

    Args:
        function: the function.
        columns: columns that it may change, by their names after the declarative transformations; None: any.
        code: the modules that it needs.
        timeout_s: limit of one call, seconds.
        is_at_capture: it may return a list of LCRs.
    """

    function: UserFunction
    columns: tuple[str, ...] | None = None
    code: UserCode = NO_CODE
    timeout_s: float = TIMEOUT_DEFAULT_S
    is_at_capture: bool = False

    def may_change(self, column: str) -> bool:
        """Return whether the function may change a column's values."""
        return self.columns is None or column in self.columns

    def without_code(self) -> CustomTransformation:
        """Return the function's identity without its version, on which a table's copy depends."""
        return replace(
            self, function=replace(self.function, version=""), code=NO_CODE, timeout_s=TIMEOUT_DEFAULT_S, columns=None
        )

    def __str__(self) -> str:
        return f"through {self.function}" + (f" for {', '.join(self.columns)}" if self.columns is not None else "")
