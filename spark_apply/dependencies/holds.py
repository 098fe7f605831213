"""Error queue: which transactions must join it behind a failed one, and in which order they can be executed.

An error transaction holds every later transaction that shares a key hash with it (`spark_apply.dependencies.hashes`).
A held transaction joins the error queue behind it and then holds others itself. The hashes are stored with the error
transaction, so this continues across restarts.

An error transaction can be executed when no earlier one in the queue shares a hash with it.

A row's hash is made of the table's name, its keys and the forms of their values. When a table is renamed or gets
another key, its hashes change and cannot be compared with the stored ones. Therefore an error transaction holds
everything of a table whose form has changed since (`spark_apply.keys.equality.forms_of`), or whose rows are found by
other columns. Earlier versions of Headrace stored no forms; their error transactions are compared by hashes alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spark_apply.conversation.groups import HeldTransaction
from spark_apply.dependencies.hashes import EVERYTHING, KeyHashes, is_table_use
from spark_apply.keys.equality import FORM_BITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["HASHES_PER_ERROR_MAX", "ErrorHolds", "bounded_hashes", "checked_hashes", "tables_only"]

HASHES_PER_ERROR_MAX = 1 << 16  # half a megabyte; a larger transaction holds its entire tables
_HASHES_MAX = 1 << 22  # for all error transactions together: 64 MB in the coordinator
_EXCLUSIVE = np.uint64(2)


def checked_hashes(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hashes that must not occur among the stored hashes of an earlier transaction.

    A row's key conflicts with the same key; use of a table with its exclusive use; exclusive use with any use.
    """
    return np.where(is_table_use(hashes), hashes ^ _EXCLUSIVE, hashes)


def bounded_hashes(stored: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the stored hashes, or exclusive use of all their tables if there are too many."""
    return stored if stored.shape[0] <= HASHES_PER_ERROR_MAX else tables_only(stored)


def tables_only(stored: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return exclusive use of all tables in stored hashes, and of the rows that others refer to.

    Return exclusive use of everything if those are too many.
    """
    tables = stored[is_table_use(stored)]
    found = np.unique(np.concatenate([tables, tables | _EXCLUSIVE]))
    return found if found.shape[0] <= HASHES_PER_ERROR_MAX else np.array([EVERYTHING], np.uint64)


def _are_forms(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which hashes are forms, among those of one table.

    The table's exclusive use (`tables_only`) and the table in any form are not forms.
    """
    return np.asarray(((hashes & np.uint64(3)) == np.uint64(1)) & ((hashes & np.uint64(FORM_BITS)) != np.uint64(1)))


def _note_last(behind: NDArray[np.int64], hashes: KeyHashes, found: NDArray[np.int64]) -> None:
    """Raise each transaction's blocker to the highest error transaction of its hashes."""
    if found.any():
        np.maximum.at(behind, np.repeat(np.arange(behind.shape[0]), np.diff(hashes.first)), found)


def _first_from(
    numbers: NDArray[np.int64], number: int, first: NDArray[np.int64], last: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return, for each range of one hash's numbers (ascending), the place of the first number that is `number` or more.

    The result is the range's end if there is no such number.
    """
    low, high = first, last
    while (low < high).any():
        middle = (low + high) // 2
        is_before = (low < high) & (numbers[np.minimum(middle, numbers.shape[0] - 1)] < number)
        low, high = np.where(is_before, middle + 1, low), np.where(is_before | (low >= high), high, middle)
    return low


class _Unblocked:
    """The error transactions among those asked for that can be executed; later ones need not wait for them.

    The caller looks at them in ascending order.

    Args:
        owners: int64, for each hash of the queue, sorted, the number of the error transaction that has it; ascending
            among equal hashes.
        asked: numbers of the error transactions, ascending.
    """

    def __init__(self, owners: NDArray[np.int64], asked: Sequence[int]) -> None:
        self._owners, self._asked = owners, np.array(asked, np.int64)
        self._is_free = np.zeros(len(asked), np.bool_)
        # For each place in `owners`, the steps back to the last owner that is not free; 0: unknown. So a hash that many
        # share is walked once, not once for each. A single transaction has no free ones before it.
        self._steps = np.zeros(owners.shape[0] if len(asked) > 1 else 0, np.int32)

    def add(self, number: int) -> None:
        """Record that an error transaction can be executed; all earlier ones have been looked at."""
        self._is_free[np.searchsorted(self._asked, number)] = True

    def last_other(self, first: NDArray[np.int64], before: NDArray[np.int64]) -> int:
        """Return the highest owner in some ranges of places that is not free; 0: none.

        Args:
            first: int64, the start of each range: the first owner of a hash.
            before: int64, the end of each range, at least one place behind `first`: the first owner that is not
                earlier than the transaction being looked at.
        """
        place = before - 1
        moving = walked = np.flatnonzero(self._are_free(place))
        while moving.shape[0]:
            place[moving] -= np.maximum(self._steps[place[moving]], 1)
            moving = moving[place[moving] >= first[moving]]
            moving = moving[self._are_free(place[moving])]
        start = before[walked] - 1
        self._steps[start] = start - place[walked]
        return int(self._owners[place[place >= first]].max(initial=0))

    def _are_free(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        owners = self._owners[places]
        found = np.searchsorted(self._asked, owners)
        return np.asarray((self._asked[found] == owners) & self._is_free[found])


class ErrorHolds:
    """The transactions in the error queue of one apply process.

    Args:
        errors: (number, stored key hashes) of every error transaction.
    """

    def __init__(self, errors: Iterable[tuple[int, NDArray[np.uint64]]] = ()) -> None:
        self._hashes: dict[int, NDArray[np.uint64]] = {}
        # Every hash with the number of each transaction that has it, sorted by both. A queue can be long, and an
        # operator can execute all of it, so only changed entries are removed and inserted.
        self._sorted = np.empty(0, np.uint64)
        self._numbers = np.empty(0, np.int64)
        self._changed: set[int] = set()  # numbers whose entries in `_sorted` are missing or stale
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
            number: its number.
            hashes: uint64, the hashes stored with it (`spark_apply.dependencies.hashes.stored_hashes`). If all
                transactions together have too many, exclusive use of its tables is kept instead.
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
        """Return the transactions that must join the queue, and the error transaction that each depends on."""
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
        """Return the last earlier error transaction that `number` must wait for; 0: it can be executed."""
        return self.blockers([number])[number]

    def blockers(self, numbers: Sequence[int]) -> dict[int, int]:
        """Find which of some error transactions can be executed one after the other, in this order.

        Args:
            numbers: error transactions in the queue, ascending.

        Returns:
            For each, the last earlier error transaction that it must wait for: one not in `numbers`, or one that is
            itself blocked. 0: it is not blocked.
        """
        self._refresh()
        unblocked, forms, found = _Unblocked(self._numbers, numbers), dict[int, list[int]](), dict[int, int]()
        for number in numbers:
            mine = self._hashes[number]
            if EVERYTHING in mine:
                found[number] = max(
                    (other for other in self._hashes if other < number and found.get(other, other)), default=0
                )
            else:
                wanted = np.concatenate(
                    [checked_hashes(mine), self._other_forms(mine, forms), np.array([EVERYTHING], np.uint64)]
                )
                found[number] = self._last_before(number, wanted, unblocked)
            if not found[number]:
                unblocked.add(number)
        return found

    def _last_before(self, number: int, wanted: NDArray[np.uint64], unblocked: _Unblocked) -> int:
        """Return the last error transaction before `number` that has one of some hashes and is not unblocked.

        0: none.
        """
        if not self._sorted.shape[0]:
            return 0
        first = np.minimum(np.searchsorted(self._sorted, wanted), self._sorted.shape[0] - 1)
        # Most rows are in one error transaction: if it is this one or a later one, the hash needs no further search.
        is_before = (self._sorted[first] == wanted) & (self._numbers[first] < number)
        first, wanted = first[is_before], wanted[is_before]
        return unblocked.last_other(
            first, _first_from(self._numbers, number, first, np.searchsorted(self._sorted, wanted, side="right"))
        )

    def _other_forms(self, hashes: NDArray[np.uint64], known: dict[int, list[int]]) -> NDArray[np.uint64]:
        """Return the forms that other error transactions have for this one's tables and it does not have.

        It waits for an earlier error transaction that has a table in such a form.

        Args:
            hashes: hashes of the error transaction.
            known: forms of each table in the queue; missing ones are added.
        """
        tables = hashes[(hashes & np.uint64(FORM_BITS)) == np.uint64(1)].tolist()
        for table in tables:
            if table not in known:
                known[table] = self._forms_of(table)
        mine = set(hashes[_are_forms(hashes)].tolist()) if tables else set()
        return np.array([form for table in tables for form in known[table] if form not in mine], np.uint64)

    def _forms_of(self, table: int) -> list[int]:
        """Return the forms in which error transactions have a table; few, however many transactions there are."""
        kinds: list[int] = []
        place = int(np.searchsorted(self._sorted, np.uint64(table), side="right"))
        while place < self._sorted.shape[0] and int(self._sorted[place]) <= table | FORM_BITS:
            kinds.append(int(self._sorted[place]))
            place = int(np.searchsorted(self._sorted, self._sorted[place], side="right"))
        found = np.array(kinds, np.uint64)
        return [int(form) for form in found[_are_forms(found)]]

    def _behind(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return for each hash the highest error transaction that has it; 0: none."""
        wanted = np.append(checked_hashes(hashes), np.uint64(EVERYTHING))
        if not self._sorted.shape[0]:
            return np.zeros(hashes.shape[0], np.int64)
        places = np.maximum(np.searchsorted(self._sorted, wanted, side="right") - 1, 0)
        found = np.where(self._sorted[places] == wanted, self._numbers[places], 0)
        return np.asarray(np.maximum(found[:-1], found[-1]))

    def _behind_forms(self, forms: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return for each form the highest error transaction that has the table in another form; 0: none."""
        kinds, place = np.unique(forms, return_inverse=True)
        last = np.zeros(kinds.shape[0], np.int64)
        for number, form in enumerate(kinds.tolist()):
            others = np.array([other for other in self._forms_of(form & ~FORM_BITS | 1) if other != form], np.uint64)
            last[number] = self._numbers[np.searchsorted(self._sorted, others, side="right") - 1].max(initial=0)
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
        else:  # the usual case: they are higher than all others
            places = np.searchsorted(hashes, new, side="right")
            self._sorted, self._numbers = np.insert(hashes, places, new), np.insert(numbers, places, owners)
        self._changed.clear()
