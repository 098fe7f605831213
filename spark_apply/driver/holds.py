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

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spark_apply.dependencies import EVERYTHING, KeyHashes, held_transactions, is_table_use
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


def _owners_of_forms(hashes: NDArray[np.uint64], owners: NDArray[np.int64], table: int) -> list[tuple[int, NDArray[np.int64]]]:
    """Each form of a table among sorted hashes, and the numbers of those that have it, ascending."""
    of_table = _forms_in(hashes, table)
    kinds, first = np.unique(hashes[of_table], return_index=True)
    parts = np.split(owners[of_table], first[1:]) if kinds.shape[0] else []
    are_forms = _are_forms(kinds).tolist()
    return [(form, theirs) for form, theirs, is_form in zip(kinds.tolist(), parts, are_forms, strict=True) if is_form]


def _is_behind(earlier: NDArray[np.uint64], later: NDArray[np.uint64]) -> bool:
    """Whether one error transaction must wait for an earlier one, by what is stored with both."""
    if EVERYTHING in earlier or EVERYTHING in later or bool(np.isin(checked_hashes(later), earlier).any()):
        return True
    tables = later[(later & np.uint64(FORM_BITS)) == np.uint64(1)]
    forms = [earlier[_forms_in(earlier, table)] for table in tables.tolist()]
    return any(bool((_are_forms(each) & ~np.isin(each, later)).any()) for each in forms)


def _note_last(behind: NDArray[np.int64], hashes: KeyHashes, found: NDArray[np.int64]) -> None:
    """Raise what each transaction is behind to the highest error transaction of its hashes."""
    if found.any():
        np.maximum.at(behind, np.repeat(np.arange(behind.shape[0]), np.diff(hashes.first)), found)


def _first_from(numbers: NDArray[np.int64], number: int, first: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
    """In each range of numbers of one hash, ascending, the place of the first one that is `number` or higher; the range's end, if none is."""
    low, high = first, last
    while (low < high).any():
        middle = (low + high) // 2
        is_before = (low < high) & (numbers[np.minimum(middle, numbers.shape[0] - 1)] < number)
        low, high = np.where(is_before, middle + 1, low), np.where(is_before | (low >= high), high, middle)
    return low


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
        return self.blockers([number])[number]

    def blockers(self, numbers: Sequence[int]) -> dict[int, int]:
        """Which of some error transactions can be executed one after the other, in this order.

        Args:
            numbers: in the queue, ascending.

        Returns:
            For each the last earlier one that it must wait for, of those that are none of them or are blocked themselves; 0: nothing is in its way.
        """
        found = self._blockers_beside(numbers)
        blocked = [place for place, number in enumerate(numbers) if found[number]]
        if not blocked or len(blocked) == len(numbers):
            return found
        mine = [self._hashes[number] for number in numbers]
        if self._have_one_form(mine):
            first = np.cumsum([0, *[hashes.shape[0] for hashes in mine]])
            behind = held_transactions(KeyHashes(hashes=np.concatenate(mine), first=first), blocked).tolist()
        else:  # rare: equal hashes do not show everything that they share
            behind, mine = [-1] * len(numbers), [np.unique(hashes) for hashes in mine]
            for place, number in enumerate(numbers):
                others = (other for other in range(place - 1, -1, -1) if found[numbers[other]] or behind[other] >= 0)
                behind[place] = next((other for other in others if _is_behind(mine[other], mine[place])), place if found[number] else -1)
        return {number: max(found[number], numbers[place] if 0 <= place != own else 0) for own, (number, place) in enumerate(zip(numbers, behind, strict=True))}

    def _have_one_form(self, hashes: Sequence[NDArray[np.uint64]]) -> bool:
        """Whether every table that error transactions have rows of has one form in all of them."""
        every = np.unique(np.concatenate(hashes))
        if EVERYTHING in every:
            return False
        tables = every[(every & np.uint64(FORM_BITS)) == np.uint64(1)]
        return all(int(_are_forms(every[_forms_in(every, table)]).sum()) <= 1 for table in tables.tolist())

    def _blockers_beside(self, numbers: Sequence[int]) -> dict[int, int]:
        """For each of some error transactions the last earlier one beside them that it must wait for; 0: there is none."""
        self._refresh()
        stay = ~np.isin(self._numbers, np.array(numbers, np.int64))
        hashes, owners, asked = self._sorted[stay], self._numbers[stay], set(numbers)
        forms: dict[int, list[tuple[int, NDArray[np.int64]]]] = {}
        found: dict[int, int] = {}
        for number in numbers:
            mine = self._hashes[number]
            if EVERYTHING in mine:
                found[number] = max((other for other in self._hashes if other < number and other not in asked), default=0)
                continue
            wanted = np.append(checked_hashes(mine), np.uint64(EVERYTHING))
            first = np.searchsorted(hashes, wanted)
            before = _first_from(owners, number, first, np.searchsorted(hashes, wanted, side="right"))
            last = int(owners[before[before > first] - 1].max(initial=0))
            known = set(mine.tolist())
            for table in mine[(mine & np.uint64(FORM_BITS)) == np.uint64(1)].tolist():
                if table not in forms:
                    forms[table] = _owners_of_forms(hashes, owners, table)
                # It may have a table in a form that a later one, which has it too, does not know.
                for others in (theirs for form, theirs in forms[table] if form not in known):
                    place = int(np.searchsorted(others, number))
                    last = max(last, int(others[place - 1]) if place else 0)
            found[number] = last
        return found

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
