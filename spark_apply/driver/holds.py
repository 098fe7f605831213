"""Error queue: which transactions must join it behind a failed one, and in which order they can be executed.

An error transaction holds every later transaction that shares a key hash with it (`spark_apply.dependencies`).
A held transaction joins the error queue behind it and then holds others itself. The hashes are stored with the error
transaction, so this continues across restarts.

An error transaction can be executed when no earlier one in the queue shares a hash with it.

Hashes of rows are made of the table's name, its keys and their values' forms. A table that was renamed or got another key has other hashes, which
cannot be compared with those that are stored: an error transaction holds everything of a table that has another form now than it had then
(`spark_apply.equality.forms_of`), or whose rows are found by other columns. What versions before this one stored has no forms, and is compared by hashes alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from spark_apply.dependencies import EVERYTHING, KeyHashes, is_table_use
from spark_apply.equality import FORM_BITS
from spark_apply.groups import HeldTransaction

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["HASHES_PER_ERROR_MAX", "ErrorHolds", "bounded_hashes", "checked_hashes", "tables_only"]

HASHES_PER_ERROR_MAX = 1 << 16  # half a megabyte; a larger transaction holds its entire tables
_HASHES_MAX = 1 << 22  # of all error transactions together: 64 MB in the coordinator
_EXCLUSIVE = np.uint64(2)


def checked_hashes(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The hashes that must not occur among the stored hashes of an earlier transaction.

    A row's key conflicts with the same key; use of a table with its exclusive use; exclusive use with any use.
    """
    return np.where(is_table_use(hashes), hashes ^ _EXCLUSIVE, hashes)


def bounded_hashes(stored: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The stored hashes; if there are too many, exclusive use of all their tables instead."""
    return stored if stored.shape[0] <= HASHES_PER_ERROR_MAX else tables_only(stored)


def tables_only(stored: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Exclusive use of all tables that occur in stored hashes, and of the rows that others refer to; of everything, if those are too many."""
    tables = stored[is_table_use(stored)]
    found = np.unique(np.concatenate([tables, tables | _EXCLUSIVE]))
    return found if found.shape[0] <= HASHES_PER_ERROR_MAX else np.array([EVERYTHING], np.uint64)


def _forms_in(hashes: NDArray[np.uint64], form: int) -> slice:
    """Where the forms of the table of a form are in sorted hashes; nowhere, if no form of it is stored."""
    start = int(np.searchsorted(hashes, np.uint64(form & ~FORM_BITS | 1)))
    if start == hashes.shape[0] or int(hashes[start]) != form & ~FORM_BITS | 1:
        return slice(0, 0)
    return slice(start + 1, int(np.searchsorted(hashes, np.uint64(form | FORM_BITS), side="right")))


def _are_forms(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which hashes are forms, among those of one table: its exclusive use is none (`tables_only`)."""
    return np.asarray(((hashes & np.uint64(3)) == np.uint64(1)) & ((hashes & np.uint64(FORM_BITS)) != np.uint64(1)))


def _note_last(behind: NDArray[np.int64], hashes: KeyHashes, found: NDArray[np.int64]) -> None:
    """Raise what each transaction is behind to the highest error transaction of its hashes."""
    if found.any():
        np.maximum.at(behind, np.repeat(np.arange(behind.shape[0]), np.diff(hashes.first)), found)


class ErrorHolds:
    """The transactions that the error queue of one apply process holds.

    Args:
        errors: (number, stored key hashes) of every error transaction.
    """

    def __init__(self, errors: Iterable[tuple[int, NDArray[np.uint64]]] = ()) -> None:
        self._hashes: dict[int, NDArray[np.uint64]] = {}
        # Every hash with the number of each transaction that has it, sorted by both. A queue may be long, and an operator may have all of it
        # executed: what changes is taken out and put in, the rest stays as it is.
        self._sorted = np.empty(0, np.uint64)
        self._numbers = np.empty(0, np.int64)
        self._changed: set[int] = set()  # numbers whose hashes are not there, or not any more
        self._total = 0
        for number, hashes in errors:
            self.add(number, hashes)

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, number: int) -> bool:
        return number in self._hashes

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the error transactions, ascending."""
        return tuple(sorted(self._hashes))

    def add(self, number: int, hashes: NDArray[np.uint64]) -> None:
        """Add an error transaction, or more hashes of one.

        Args:
            number: of the error transaction.
            hashes: uint64, what is stored with it (`spark_apply.dependencies.stored_hashes`). When all transactions
                together have too many, exclusive use of its tables is kept instead.
        """
        earlier = self._hashes.get(number)
        kept = np.asarray(hashes, np.uint64) if earlier is None else np.concatenate([earlier, hashes])
        self._total -= 0 if earlier is None else earlier.shape[0]
        if self._total + kept.shape[0] > _HASHES_MAX:
            kept = tables_only(kept)
        self._total += kept.shape[0]
        self._hashes[number] = kept
        self._changed.add(number)

    def remove(self, number: int) -> None:
        """Remove an error transaction that was executed or deleted."""
        removed = self._hashes.pop(number, None)
        if removed is not None:
            self._total -= removed.shape[0]
            self._changed.add(number)

    def held(self, hashes: KeyHashes) -> tuple[HeldTransaction, ...]:
        """The transactions that must join the queue, and the error transaction that each depends on."""
        if not self._hashes:
            return ()
        self._refresh()
        behind = np.zeros(hashes.first.shape[0] - 1, np.int64)
        _note_last(behind, hashes, self._behind(hashes.hashes))
        if hashes.forms is not None:
            _note_last(behind, hashes.forms, self._behind_forms(hashes.forms.hashes))
        return tuple(
            HeldTransaction(transaction=int(transaction), depends_on=int(behind[transaction]))
            for transaction in np.flatnonzero(behind)
        )

    def blocker(self, number: int) -> int:
        """The last earlier error transaction that `number` must wait for; 0: it can be executed."""
        mine = self._hashes[number]
        if EVERYTHING in mine:
            return max((other for other in self._hashes if other < number), default=0)
        self._refresh()
        wanted = np.append(checked_hashes(mine), np.uint64(EVERYTHING))
        first = np.searchsorted(self._sorted, wanted)
        before = self._first_from(number, first, np.searchsorted(self._sorted, wanted, side="right"))
        last = int(self._numbers[before[before > first] - 1].max(initial=0))
        for table in mine[(mine & np.uint64(FORM_BITS)) == np.uint64(1)].tolist():
            of_table = _forms_in(self._sorted, table)
            forms, numbers = self._sorted[of_table], self._numbers[of_table]
            # It may have a table in a form that a later one, which has it too, does not know.
            others = (numbers < number) & _are_forms(forms) & ~np.isin(forms, mine)
            last = max(last, int(numbers[others].max(initial=0)))
        return last

    def _first_from(self, number: int, first: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
        """In each range of pairs of one hash, the place of the first one that has `number` or a higher one; the range's end, if none has."""
        low, high = first, last
        while (low < high).any():
            middle = (low + high) // 2
            is_before = (low < high) & (self._numbers[np.minimum(middle, self._numbers.shape[0] - 1)] < number)
            low, high = np.where(is_before, middle + 1, low), np.where(is_before | (low >= high), high, middle)
        return low

    def _behind(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """For each hash the highest error transaction that has it; 0: none."""
        wanted = np.append(checked_hashes(hashes), np.uint64(EVERYTHING))
        if not self._sorted.shape[0]:
            return np.zeros(hashes.shape[0], np.int64)
        places = np.maximum(np.searchsorted(self._sorted, wanted, side="right") - 1, 0)
        found = np.where(self._sorted[places] == wanted, self._numbers[places], 0)
        return np.asarray(np.maximum(found[:-1], found[-1]))

    def _behind_forms(self, forms: NDArray[np.uint64]) -> NDArray[np.int64]:
        """For each form of a table the highest error transaction that has the table in another form; 0: none."""
        kinds, place = np.unique(forms, return_inverse=True)
        last = np.zeros(kinds.shape[0], np.int64)
        for number, form in enumerate(kinds.tolist()):
            of_table = _forms_in(self._sorted, form)
            others = (self._sorted[of_table] != np.uint64(form)) & _are_forms(self._sorted[of_table])
            last[number] = self._numbers[of_table][others].max(initial=0)
        return last[place.reshape(-1)]

    def _refresh(self) -> None:
        if not self._changed:
            return
        changed = np.array(sorted(self._changed), np.int64)
        stay = ~np.isin(self._numbers, changed)
        hashes, numbers = self._sorted[stay], self._numbers[stay]
        there = [number for number in changed.tolist() if number in self._hashes]
        new = np.concatenate([np.empty(0, np.uint64), *[self._hashes[number] for number in there]])
        owners = np.repeat(np.array(there, np.int64), [self._hashes[number].shape[0] for number in there])
        order = np.lexsort((owners, new))
        new, owners = new[order], owners[order]
        if there and there[0] < numbers.max(initial=0):
            hashes, numbers = np.concatenate([hashes, new]), np.concatenate([numbers, owners])
            order = np.lexsort((numbers, hashes))
            self._sorted, self._numbers = hashes[order], numbers[order]
        else:  # the usual case: they came behind all others
            places = np.searchsorted(hashes, new, side="right")
            self._sorted, self._numbers = np.insert(hashes, places, new), np.insert(numbers, places, owners)
        self._changed.clear()
