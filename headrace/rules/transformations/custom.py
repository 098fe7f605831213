"""A custom transformation of a positive rule: a function that users write, as frozen data.

    def mask(lcr: RowLcr) -> RowLcr

gets each row LCR that the rule takes, behind row migration and the rule's declarative transformations, and returns it
with other values. In a capture process it may return a list instead: of no LCR (the change is discarded), or of several
(`lcr.copy()` makes another one).

What it cannot change: the command, the table's name, the columns that the LCR has, the tag, transaction id, SCN and
source. Columns and names are for the declarative steps before it, so everything knows a table's shape without calling
anything.

Source: Oracle Streams Concepts and Administration 11.2, "Custom Rule-Based Transformations"; `semantics.md` 4.5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.rules.user_code.handlers import TIMEOUT_DEFAULT_S
from headrace.rules.user_code.source import NO_CODE, UserCode, UserFunction

__all__ = ["CUSTOM_PARAMETERS", "LCRS_MAX", "CustomTransformation"]

CUSTOM_PARAMETERS = ("lcr",)
"""What a function is called with."""

LCRS_MAX = 64
"""That a function may return for one LCR: a batch grows as many times in the capture process's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomTransformation:
    """What a rule says of its function, and the function's code.

    Args:
        function: which one.
        columns: that it may change, under their names behind the declarative transformations; None: any.
        code: the modules that it needs.
        timeout_s: for one call, seconds.
        is_at_capture: it may return a list of LCRs.
    """

    function: UserFunction
    columns: tuple[str, ...] | None = None
    code: UserCode = NO_CODE
    timeout_s: float = TIMEOUT_DEFAULT_S
    is_at_capture: bool = False

    def may_change(self, column: str) -> bool:
        """Whether a column's values can be other ones behind it."""
        return self.columns is None or column in self.columns

    def without_code(self) -> CustomTransformation:
        """Which function it is, whatever its version: what a table's copy depends on."""
        return replace(
            self, function=replace(self.function, version=""), code=NO_CODE, timeout_s=TIMEOUT_DEFAULT_S, columns=None
        )

    def __str__(self) -> str:
        return f"through {self.function}" + (f" for {', '.join(self.columns)}" if self.columns is not None else "")
