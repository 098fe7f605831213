"""Dependencies between groups and between transactions, by the keys of the rows that they change.

Every row LCR gives one 64-bit hash per unique key of the destination table, for its old and for its new values. The
hash is of a canonical form that follows the type's equality (`spark_apply.keys.equality.Equality`). Two transactions
that share a hash are dependent. A false match only costs parallelism.

The low bits distinguish three kinds:

    ...0    a row's key
    ...01   use of a table: any row of it
    ...11   exclusive use of a table; depends on every use and every exclusive use of the same table. From TRUNCATE,
            from a DDL LCR and everything behind it in its transaction, from a row whose key is not in the log, and from
            a table whose values do not show all dependencies (except INSERTs into a table without any key).

Foreign keys and virtual dependencies (`spark_apply.keys.relations`) are hashed in the same kinds: a row uses the row
that it refers to, and a row that appears or disappears uses itself exclusively.

If the log has old values of the key only, the old value of a second unique column is unknown. A transaction that reuses
such a value can fail early; it is applied again when everything below it is applied (`RetryReason.BELOW`). The
opposite cannot happen, because the values that a transaction takes are among its new values. One of them can be missing
from the log: a large value, in a key of several columns, that an UPDATE left unchanged. Then the transaction has
exclusive use of the table, for ordering only: error transactions do not hold it, and it holds none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.lcr.batch import Command, LcrBatch, RowGroup, TableVersion
from headrace.lcr.cells import fixed
from headrace.lcr.cutting import row_transactions
from headrace.lcr.values import NULL, ColumnValues
from spark_apply.dependencies.tracking_kernels import follow_held, refill, sort_by_transaction, track
from spark_apply.keys.equality import FORM_BITS, touch_of
from spark_apply.keys.hash_kernels import combine_key, hash_values
from spark_apply.keys.relations import Relation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.databases.ports import Write
    from spark_apply.keys.relations import RelatedColumns
    from spark_apply.tables.fits import HashedKey, TableFit

    _Known = dict[tuple[bool, int], NDArray[np.uint64]]
    """Hashes of a column's values, by (is new, column)."""

__all__ = [
    "EVERYTHING",
    "DependencyTracker",
    "KeyHashes",
    "hash_batch",
    "held_transactions",
    "is_table_use",
    "stored_hashes",
    "table_hashes",
    "written_keys",
]

EVERYTHING = 3
"""Exclusive use of every table. Replaces the hashes of an error transaction with too many keys."""

_EXCLUSIVE = 2  # the bit that turns use of a table into exclusive use
_EXCLUSIVE_SHIFT = np.uint64(1)
_FIRST = np.zeros(1, np.int64)
_MAP_SIZE_MIN = 1 << 14  # keys; grows with the window, which the coordinator bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyHashes:
    """Hashes of some transactions.

    Args:
        hashes: uint64, in the order of the transactions.
        first: int64, shape (t + 1,); transaction i has hashes[first[i]:first[i + 1]].
        forms: forms of the tables that each transaction has rows of (`TableFit.forms`); None: unknown. They order
            nothing; `spark_apply.dependencies.holds` uses them.
    """

    hashes: NDArray[np.uint64]
    first: NDArray[np.int64]
    forms: KeyHashes | None = None

    def of(self, transaction: int) -> NDArray[np.uint64]:
        """Return one transaction's hashes."""
        return self.hashes[self.first[transaction] : self.first[transaction + 1]]

    def part(self, first: int, last: int) -> KeyHashes:
        """Return the hashes of consecutive transactions; the array of hashes stays shared.

        Args:
            first: index of the first transaction.
            last: index behind the last one.
        """
        starts = self.first[first : last + 1]
        forms = None if self.forms is None else self.forms.part(first, last)
        return KeyHashes(hashes=self.hashes[starts[0] : starts[-1]], first=starts - starts[0], forms=forms)

    def stored(self) -> NDArray[np.uint64]:
        """Return the hashes to store with an error transaction whose parts these are.

        They are the `stored_hashes`, the forms of its tables, and each of these tables in any form.
        """
        forms = np.empty(0, np.uint64) if self.forms is None else self.forms.hashes
        return stored_hashes(np.concatenate([self.hashes, forms, (forms & ~np.uint64(FORM_BITS)) | np.uint64(1)]))

    @classmethod
    def joined(cls, parts: Sequence[KeyHashes]) -> KeyHashes:
        """Concatenate the hashes of several runs of transactions."""
        if len(parts) == 1:
            return parts[0]
        firsts, base = [np.zeros(1, np.int64)], 0
        for part in parts:
            firsts.append(part.first[1:] + base)
            base += int(part.first[-1])
        empty = np.empty(0, np.uint64)
        forms = [part.forms for part in parts if part.forms is not None]
        return cls(
            hashes=np.concatenate([empty, *[part.hashes for part in parts]]),
            first=np.concatenate(firsts),
            forms=cls.joined(forms) if len(forms) == len(parts) and forms else None,
        )


def is_table_use(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which hashes stand for a table, not for a row."""
    return (hashes & np.uint64(1)).astype(np.bool_)


def stored_hashes(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hashes to check later transactions against: without duplicates, exclusive use counted as use too."""
    exclusive = hashes[(hashes & np.uint64(3)) == np.uint64(3)]
    return np.unique(np.concatenate([hashes, exclusive ^ np.uint64(_EXCLUSIVE)]))


def hash_batch(batch: LcrBatch, fit_of: Callable[[TableVersion], TableFit], *, in_order: bool = False) -> KeyHashes:
    """Hash every row of a batch. A DDL LCR has the `table_hashes`.

    Args:
        batch: the batch.
        fit_of: returns the fit of a table version.
        in_order: add hashes that only order transactions and hold none behind an error transaction: further tables
            that DML handlers may touch, and key values that are not in the log.

    Raises:
        UnfitTableError: a table does not fit; raised by `fit_of`.
    """
    if batch.ddl is not None:
        return table_hashes(batch)
    owner = row_transactions(batch.transactions)
    hashes: list[NDArray[np.uint64]] = [np.empty(0, np.uint64)]
    owners: list[NDArray[np.int32]] = [np.empty(0, np.int32)]
    forms: list[NDArray[np.uint64]] = [np.empty(0, np.uint64)]
    form_owners: list[NDArray[np.int32]] = [np.empty(0, np.int32)]
    for group in batch.groups:
        fit = fit_of(batch.tables[group.table])
        if not group.row_count:
            continue
        rows = _GroupRows(owner[group.row_numbers])
        for form in fit.forms:
            rows.use_table(form, None, forms, form_owners)
        known: _Known = {}
        exclusive, taking = _hash_group(group, fit, rows.transactions, known, hashes, owners)
        rows.use_table(fit.touch, exclusive, hashes, owners)
        if in_order and fit.taking_touch:
            rows.use_table(fit.taking_touch, taking, hashes, owners)
        for related in fit.relations.columns:
            _hash_related(related, group, rows, known, hashes, owners, in_order=in_order)
        for touch in fit.relations.touches:
            rows.use_table(touch, None, hashes, owners)
        for touch, is_exclusive in fit.order_touches(group.command) if in_order else ():
            rows.use_table(touch | _EXCLUSIVE if is_exclusive else touch, None, hashes, owners)
    for truncate in batch.truncates:
        for table in truncate.tables:
            fit = fit_of(batch.tables[table])
            relations = fit.relations
            ordered = [found for found, _ in fit.order_touches(Command.TRUNCATE)] if in_order else []
            touches = (
                fit.touch,
                *ordered,
                *relations.touches,
                *(each.touch for each in relations.columns if each.relation is Relation.SHARED),
            )
            hashes.append(np.array([touch | _EXCLUSIVE for touch in touches], np.uint64))
            owners.append(np.repeat(owner[truncate.row_number], len(touches)))
            forms.append(np.array(fit.forms, np.uint64))
            form_owners.append(np.repeat(owner[truncate.row_number], len(fit.forms)))
    return replace(
        _by_transaction(hashes, owners, len(batch.transactions)),
        forms=_by_transaction(forms, form_owners, len(batch.transactions)),
    )


def table_hashes(batch: LcrBatch) -> KeyHashes:
    """Return exclusive use of each table of a batch, by its name: for a DDL LCR, and for what follows in its transaction.

    Until the transaction is committed, only its own session sees the tables as these changes need them. So nobody else
    can tell which keys and which related rows they use, and the forms are unknown.

    Args:
        batch: the batch, with the destination's names.
    """
    owner = row_transactions(batch.transactions)
    used = [(batch.tables[group.table], np.unique(owner[group.row_numbers])) for group in batch.groups]
    used += [
        (batch.tables[table], owner[truncate.row_number : truncate.row_number + 1])
        for truncate in batch.truncates
        for table in truncate.tables
    ]
    names = [((version.owner, version.name), users) for version, users in used]
    if batch.ddl is not None:
        names.append((batch.ddl.base_table, owner[:1]))
    hashes, owners = [np.empty(0, np.uint64)], [np.empty(0, np.int32)]
    for name, users in names:
        hashes.append(np.full(users.shape[0], touch_of("\0".join(name)) | _EXCLUSIVE, np.uint64))
        owners.append(users)
    return _by_transaction(hashes, owners, len(batch.transactions))


def _by_transaction(hashes: list[NDArray[np.uint64]], owners: list[NDArray[np.int32]], count: int) -> KeyHashes:
    found, first = sort_by_transaction(np.concatenate(hashes), np.concatenate(owners), count)
    return KeyHashes(hashes=found, first=first)


class _GroupRows:
    """The rows of a group.

    Args:
        transactions: int32, the transaction of each row; ascending, as rows are in source order. At least one.
    """

    def __init__(self, transactions: NDArray[np.int32]) -> None:
        self.transactions = transactions
        self._starts = np.concatenate((_FIRST, np.flatnonzero(transactions[1:] != transactions[:-1]) + 1))
        self._users = transactions[self._starts]

    def use_table(
        self,
        touch: int,
        exclusive: NDArray[np.bool_] | None,
        hashes: list[NDArray[np.uint64]],
        owners: list[NDArray[np.int32]],
    ) -> None:
        """Add one hash for each transaction.

        Args:
            touch: the hash.
            exclusive: for each row, whether it needs exclusive use; None: no row does.
            hashes: array list to append to.
            owners: array list to append the transactions to.
        """
        found = np.full(self._starts.shape[0], touch, np.uint64)
        if exclusive is not None:
            found |= np.bitwise_or.reduceat(exclusive, self._starts).astype(np.uint64) << _EXCLUSIVE_SHIFT
        hashes.append(found)
        owners.append(self._users)


def _hash_group(
    group: RowGroup,
    fit: TableFit,
    transactions: NDArray[np.int32],
    known: _Known,
    hashes: list[NDArray[np.uint64]],
    owners: list[NDArray[np.int32]],
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Add the hashes of a group's rows.

    Returns which rows need exclusive use of the table, and which may take key values that are not in the log.
    """
    taking = np.zeros(group.row_count, np.bool_)
    if fit.is_serialised:
        is_free = fit.has_free_inserts and group.command is Command.INSERT
        return (taking if is_free else ~taking), taking
    exclusive = taking.copy()
    for key in fit.hashed_keys:
        for values, is_new in ((group.old, False), (group.new, True)):
            if values is None:
                continue
            found, nulls, missing = _hash_key(key, group, known, is_new=is_new)
            if key.is_identity and (is_new or group.new is None):
                exclusive |= missing
            elif is_new and missing.any():
                taking |= missing & ~nulls & _may_take(key, fit, group)
            _append(found, ~missing if key.is_identity else ~(missing | nulls), transactions, hashes, owners)
    return exclusive, taking


def _may_take(key: HashedKey, fit: TableFit, group: RowGroup) -> NDArray[np.bool_]:
    """Return which rows may take new values of a key although one of its values is not in the log.

    Such a value did not change and is stored out of line.
    """
    assert group.new is not None
    others = [column for column in key.columns if not fit.version.columns[column].is_key]
    may = np.asarray((group.new.lengths[others] >= NULL).any(axis=0))
    # An identity column has an old value only where it changed.
    return may if group.old is None else may | np.asarray((group.old.lengths[list(key.columns)] >= NULL).any(axis=0))


def _hash_related(
    related: RelatedColumns,
    group: RowGroup,
    rows: _GroupRows,
    known: _Known,
    hashes: list[NDArray[np.uint64]],
    owners: list[NDArray[np.int32]],
    *,
    in_order: bool,
) -> None:
    """Add the hashes that relate a group's rows to rows of other tables."""
    unknown, taking = np.zeros(group.row_count, np.bool_), np.zeros(group.row_count, np.bool_)
    images: list[tuple[NDArray[np.uint64], NDArray[np.bool_]]] = []
    for values, is_new in ((group.old, False), (group.new, True)):
        if values is not None:
            found, nulls, missing = _hash_key(related, group, known, is_new=is_new)
            images.append((found, ~(missing | nulls)))
            # An UPDATE without old values of the identity columns left these columns unchanged.
            if is_new or group.new is None or not related.is_in_identity:
                unknown |= missing
            if is_new:
                taking = missing & ~nulls
    if related.relation is Relation.SHARED:
        for found, usable in images:
            _append(found, usable, rows.transactions, hashes, owners)
        rows.use_table(related.touch, unknown, hashes, owners)
        return
    if in_order and related.touch:
        rows.use_table(related.touch, unknown if related.relation is Relation.REFERRED else taking, hashes, owners)
    use = np.uint64(1 if related.relation is Relation.REFERRING else 1 | _EXCLUSIVE)
    if related.relation is Relation.REFERRED and len(images) > 1:
        (old, has_old), (new, has_new) = images
        is_same = (has_old & has_new & (old == new)) | (~has_old & np.bool_(related.is_in_identity))
        images = [(old, has_old & ~is_same), (new, has_new & ~is_same)]
    for found, usable in images:
        _append((found & ~np.uint64(3)) | use, usable, rows.transactions, hashes, owners)


def _append(
    found: NDArray[np.uint64],
    usable: NDArray[np.bool_],
    transactions: NDArray[np.int32],
    hashes: list[NDArray[np.uint64]],
    owners: list[NDArray[np.int32]],
) -> None:
    if usable.all():
        hashes.append(found)
        owners.append(transactions)
    elif usable.any():
        hashes.append(found[usable])
        owners.append(transactions[usable])


def _hash_key(
    key: HashedKey | RelatedColumns,
    group: RowGroup,
    known: _Known,
    *,
    is_new: bool,
) -> tuple[NDArray[np.uint64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the hashes of some columns in one image, where a value is NULL, and where one is not in the log."""
    count = group.row_count
    hashes = np.empty((len(key.columns), count), np.uint64)
    lengths = np.empty((len(key.columns), count), np.int32)
    for place, (column, equality) in enumerate(zip(key.columns, key.equalities, strict=True)):
        hashes[place], lengths[place] = _column_hashes(group, column, int(equality), known, is_new=is_new)
    return _combined(key, hashes, lengths)


def _combined(
    key: HashedKey | RelatedColumns,
    hashes: NDArray[np.uint64],
    lengths: NDArray[np.int32],
) -> tuple[NDArray[np.uint64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Combine the hashes of a key's columns; return them, where a value is NULL, and where one is not in the log."""
    count = hashes.shape[1]
    out, nulls, missing = np.empty(count, np.uint64), np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    combine_key(hashes, lengths, np.uint64(key.seed), out, nulls, missing)
    return out, nulls, missing


def _column_hashes(
    group: RowGroup,
    column: int,
    equality: int,
    known: _Known,
    *,
    is_new: bool,
) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Return a column's hashes and lengths in one image; a new value that is UNCHANGED takes those of the old one."""
    values = group.new if is_new else group.old
    assert values is not None
    hashes, lengths = _value_hashes(values, column, equality, known, is_new=is_new), values.lengths[column]
    if is_new and group.old is not None:
        unchanged = (lengths < NULL) & (group.old.lengths[column] >= NULL)
        if unchanged.any():
            old = _value_hashes(group.old, column, equality, known, is_new=False)
            return np.where(unchanged, old, hashes), np.where(unchanged, group.old.lengths[column], lengths)
    return hashes, lengths


def _value_hashes(
    values: ColumnValues,
    column: int,
    equality: int,
    known: _Known,
    *,
    is_new: bool,
) -> NDArray[np.uint64]:
    found = known.get((is_new, column))
    if found is None:
        found = np.empty(values.row_count, np.uint64)
        hash_values(
            fixed(values.data),
            np.int64(values.starts[column]),
            fixed(values.lengths[column]),
            np.int64(equality),
            found,
        )
        known[is_new, column] = found
    return found


def written_keys(key: HashedKey, write: Write) -> NDArray[np.uint64] | None:
    """Hash the keys that the rows of a write have after it, or for a DELETE the keys that they had.

    Args:
        key: a key of the table.
        write: a write with all values of the key.

    Returns:
        uint64[n], equal where the keys are equal; None: a value is not in the LCR.
    """
    hashes = np.empty((len(key.columns), write.row_count), np.uint64)
    lengths = np.empty((len(key.columns), write.row_count), np.int32)
    for place, (column, equality) in enumerate(zip(key.columns, key.equalities, strict=True)):
        is_new = write.command is Command.INSERT or (write.command is Command.UPDATE and column in write.set_columns)
        values = write.new if is_new else write.old
        if values is None:
            return None
        hashes[place], lengths[place] = (
            _value_hashes(values, column, int(equality), {}, is_new=is_new),
            values.lengths[column],
        )
    out, _, missing = _combined(key, hashes, lengths)
    return None if missing.any() else out


def held_transactions(hashes: KeyHashes, held: Iterable[int]) -> NDArray[np.int64]:
    """Find every transaction that depends on a held one.

    Args:
        hashes: hashes of all the transactions.
        held: indexes of transactions that are held or fail directly.

    Returns:
        int64 per transaction: -1 if it is free, its own index if it is in `held`, else the index of the last
        transaction that it must wait behind.
    """
    behind = np.full(hashes.first.shape[0] - 1, -1, np.int64)
    for transaction in held:
        behind[transaction] = transaction
    follow_held(fixed(hashes.hashes), fixed(hashes.first), behind)
    return behind


class DependencyTracker:
    """Tracks what each group depends on.

    It keeps the last unfinished group with each key, and every unfinished group with use of each table or row.

    Only the last group per key is kept: groups with the same key form a chain, so when the last one is done, all are.
    The map is bounded by the rows of unfinished groups, which the coordinator bounds.
    """

    def __init__(self) -> None:
        self._keys, self._groups, self._users, self._last_users = _new_map(_MAP_SIZE_MIN)
        self._used = 0
        self._barrier = 0

    def add(self, group: int, hashes: NDArray[np.uint64], unfinished: Sequence[int]) -> set[int]:
        """Register a group; call in ascending order.

        Args:
            group: its number.
            hashes: hashes of all its transactions.
            unfinished: numbers of the unfinished groups, ascending.

        Returns:
            The unfinished groups that it directly depends on.
        """
        base = unfinished[0] if unfinished else group
        self._make_room(hashes.shape[0], unfinished)
        found = np.zeros(group - base + 1, np.bool_)
        self._used += track(
            fixed(hashes),
            np.int64(group),
            np.int64(base),
            self._keys,
            self._groups,
            self._users,
            self._last_users,
            found,
        )
        needed = set((np.flatnonzero(found) + base).tolist())
        needed.add(self._barrier)
        return needed.intersection(unfinished)

    def add_barrier(self, group: int) -> None:
        """Register a group that depends on everything below it and that everything above depends on."""
        self._barrier = group

    def _make_room(self, count: int, unfinished: Sequence[int]) -> None:
        size = self._keys.shape[0]
        if 2 * (self._used + count) <= size:
            return
        live = self._live(unfinished)
        size = _MAP_SIZE_MIN
        # Twice the present need, so that the next groups do not rebuild the map again.
        while size < 4 * (int(live.sum()) + count):
            size *= 2
        keys, groups, users, last_users = _new_map(size)
        self._used = refill(
            self._keys,
            self._groups,
            self._users,
            self._last_users,
            live,
            keys,
            groups,
            users,
            last_users,
        )
        self._keys, self._groups, self._users, self._last_users = keys, groups, users, last_users

    def _live(self, unfinished: Sequence[int]) -> NDArray[np.bool_]:
        """Return the keys that unfinished groups may have. Groups above the lowest can be done already."""
        if not unfinished:
            return np.zeros(self._keys.shape[0], np.bool_)
        bits = np.bitwise_or.reduce(np.uint64(1) << (np.array(unfinished, np.uint64) % np.uint64(64)))
        has_users = (self._last_users >= unfinished[0]) & ((self._users & bits) != 0)
        return np.asarray((self._keys != 0) & (np.isin(self._groups, unfinished) | has_users))


def _new_map(size: int) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]:
    """Return an empty map: keys, last groups, users as bits, last users, as in `tracking_kernels.track`."""
    return np.zeros(size, np.uint64), np.zeros(size, np.int64), np.zeros(size, np.uint64), np.zeros(size, np.int64)
