"""The error queue as a coordinator knows it: transactions held behind it, and executions of error transactions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from spark_apply.conversation.groups import HeldTransaction, OnError
from spark_apply.dependencies.holds import ErrorHolds
from spark_apply.driver.groups.executions import ErrorExecutions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from spark_apply.dependencies.hashes import KeyHashes

__all__ = ["KnownErrors"]


class KnownErrors:
    """The error transactions that a coordinator knows.

    Args:
        errors: (number, key hashes) of each error transaction.
        on_error: fate of the other transactions when one enters the error queue.

    Attributes:
        on_error: as given.
        executions: error transactions to be executed again.
    """

    def __init__(self, errors: Iterable[tuple[int, NDArray[np.uint64]]], on_error: OnError) -> None:
        self.on_error = on_error
        self._holds = ErrorHolds(errors)
        self.executions = ErrorExecutions(self._holds)

    def __len__(self) -> int:
        """Return the number of error transactions."""
        return len(self._holds)

    def __contains__(self, number: int) -> bool:
        """Return whether an error transaction is in the error queue."""
        return number in self._holds

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers in the error queue, ascending."""
        return self._holds.numbers

    @property
    def disables(self) -> bool:
        """Whether they disable the apply process: the queue is not empty, and `on_error` says DISABLE.

        This follows from the destination's state, so no restart undoes it. It ends with the last error transaction.
        """
        return self.on_error is OnError.DISABLE and len(self._holds) > 0

    def add(self, number: int, hashes: NDArray[np.uint64]) -> None:
        """Add a transaction that is in the error queue.

        Args:
            number: its number.
            hashes: hashes of its keys.
        """
        self._holds.add(number, hashes)

    def edited(self, number: int, hashes: NDArray[np.uint64]) -> None:
        """Add the keys of an edited error transaction.

        Args:
            number: its number.
            hashes: hashes stored with the edit.
        """
        if number in self._holds:
            self._holds.add(number, hashes)

    def deleted(self, number: int) -> None:
        """Note that an error transaction was deleted: no transaction waits behind it any more."""
        self._holds.remove(number)

    def held(self, hashes: KeyHashes) -> Sequence[HeldTransaction]:
        """Return the transactions that must join the error queue because they depend on an error transaction."""
        return () if self.on_error is OnError.CONTINUE else self._holds.held(hashes)

    def awaits_execution(self, held: Iterable[HeldTransaction]) -> bool:
        """Return whether one of the transactions depends on an error transaction that is to be executed."""
        return any(found.depends_on in self.executions for found in held)
