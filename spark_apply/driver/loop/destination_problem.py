"""Why the destination does not answer the loop of an apply driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.base.errors import DatabaseUnavailable

__all__ = ["DestinationProblem"]


class DestinationProblem:
    """What `status` shows while the destination does not answer; every part of the loop that asks it notes that here.

    Attributes:
        message: why; empty: nothing is known to be the matter.
    """

    def __init__(self) -> None:
        self.message = ""

    def note(self, error: DatabaseUnavailable) -> None:
        """A question was not answered."""
        self.message = error.message

    def clear(self) -> None:
        """A question was answered that is asked again and again."""
        self.message = ""
