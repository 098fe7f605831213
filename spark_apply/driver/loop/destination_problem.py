"""Why the destination does not answer the loop of an apply driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.base.errors import DatabaseUnavailable

__all__ = ["DestinationProblem"]


class DestinationProblem:
    """The problem that `status` shows while the destination does not answer; every part of the loop notes it here.

    Attributes:
        message: why the destination does not answer; empty: no known problem.
    """

    def __init__(self) -> None:
        self.message = ""

    def note(self, error: DatabaseUnavailable) -> None:
        """Note that a question was not answered."""
        self.message = error.message

    def clear(self) -> None:
        """Note that a repeatedly asked question was answered."""
        self.message = ""
