"""The error queue as a coordinator knows it: what waits behind it, and what of it is executed again."""

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
    """See the module.

    Args:
        errors: (number, key hashes) of each error transaction.
        on_error: what becomes of others when a transaction enters the error queue.

    Attributes:
        on_error: as given.
        executions: error transactions that are to be executed again.
    """

    def __init__(self, errors: Iterable[tuple[int, NDArray[np.uint64]]], on_error: OnError) -> None:
        self.on_error = on_error
        self._holds = ErrorHolds(errors)
        self.executions = ErrorExecutions(self._holds)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._holds)

    def __contains__(self, number: int) -> bool:
        """Whether an error transaction is in the error queue."""
        return number in self._holds

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers in the error queue, ascending."""
        return self._holds.numbers

    @property
    def disables(self) -> bool:
        """Whether they disable the apply process: there are some, and `on_error` says so.

        This follows from what the destination has, so no restart takes it back; it ends with the last error
        transaction.
        """
        return self.on_error is OnError.DISABLE and len(self._holds) > 0

    def add(self, number: int, hashes: NDArray[np.uint64]) -> None:
        """A transaction is in the error queue.

        Args:
            number: of it.
            hashes: of its keys.
        """
        self._holds.add(number, hashes)

    def edited(self, number: int, hashes: NDArray[np.uint64]) -> None:
        """An error transaction was edited: it has these keys too.

        Args:
            number: of the error transaction.
            hashes: what was stored with the edit.
        """
        if number in self._holds:
            self._holds.add(number, hashes)

    def deleted(self, number: int) -> None:
        """An error transaction was deleted from the queue: no transaction waits behind it any more."""
        self._holds.remove(number)

    def held(self, hashes: KeyHashes) -> Sequence[HeldTransaction]:
        """The transactions that must join the error queue, because they depend on one of it.

        Args:
            hashes: of all the transactions.
        """
        return () if self.on_error is OnError.CONTINUE else self._holds.held(hashes)

    def awaits_execution(self, held: Iterable[HeldTransaction]) -> bool:
        """Whether one of the transactions depends on an error transaction that is to be executed."""
        return any(found.depends_on in self.executions for found in held)
