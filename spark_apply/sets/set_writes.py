"""Writes for rows of one table: as few as possible, because rows with the same columns share one.

This module decides which rows share a write, and which columns it finds rows by, compares and sets.
`spark_apply.sets.collapse` calls it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.databases.ports import Write
from headrace.lcr.batch import Command, OldImage
from headrace.lcr.values import ABSENT, NULL
from spark_apply.dependencies.hashes import written_keys
from spark_apply.sets.steps import ExpectedWrite

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spark_apply.sets.table_rows import TableRows
    from spark_apply.tables.fits import TableFit

__all__ = ["delete_of", "deletes", "inserts", "updates", "with_keys", "write_row", "write_run"]

# Rows with the same combination of changed columns get their own set from this many rows on. With fewer rows,
# another statement costs more than comparing and setting a few columns needlessly. A statement over 200 rows costs 1.5
# to 1.8 times as much per row as one over 2,000.
_SIGNATURE_ROWS_MIN = 256


def write_run(rows: TableRows, chosen: NDArray[np.int32]) -> list[ExpectedWrite]:
    """Write rows of one command as they are.

    Args:
        rows: of the table.
        chosen: int32, indexes of rows, all of one command.
    """
    command = Command(int(rows.command[chosen[0]]))
    if command is Command.INSERT:
        return inserts(rows, chosen)
    if command is Command.DELETE:
        return deletes(rows, chosen)
    return updates(rows, chosen, split=False)


def write_row(rows: TableRows, chosen: NDArray[np.int32]) -> ExpectedWrite:
    """Write one row, with exactly its own columns.

    Args:
        rows: of the table.
        chosen: int32, the index of one row.
    """
    (step,) = write_run(rows, chosen)
    return step


def inserts(rows: TableRows, chosen: NDArray[np.int32]) -> list[ExpectedWrite]:
    """Insert the new images of rows; those that carry the same columns share a write.

    Args:
        rows: of the table.
        chosen: int32, indexes of rows.
    """
    steps: list[ExpectedWrite] = []
    for part, absent in _by_absence(rows.new.lengths, chosen):
        columns = tuple(column for column in rows.fit.all_columns if not absent[column])
        whole = rows.direct is not None and part.shape[0] == rows.command.shape[0]
        values = rows.direct if whole else rows.new.gathered(part, _mask(rows, columns))
        steps.append(
            _expected(
                with_keys(
                    Write(
                        table=rows.fit.table,
                        version=rows.fit.version,
                        command=Command.INSERT,
                        old=None,
                        new=values,
                        match_columns=(),
                        compare_columns=(),
                        set_columns=columns,
                        times=rows.written_at(part),
                    ),
                    rows.fit,
                ),
                part,
            )
        )
    return steps


def _by_absence(
    lengths: NDArray[np.int32],
    chosen: NDArray[np.int32],
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.bool_]]]:
    """Group rows that carry the same columns; yield each group with the columns that it lacks."""
    if not chosen.shape[0]:
        return
    absent = np.asarray(lengths[:, chosen] == ABSENT)
    if not absent.any():
        yield chosen, absent[:, 0]
        return
    kinds, place = np.unique(absent, axis=1, return_inverse=True)
    for kind in range(kinds.shape[1]):
        yield chosen[place.reshape(-1) == kind], kinds[:, kind]


def _by_nulls(rows: TableRows, chosen: NDArray[np.int32]) -> Iterator[tuple[NDArray[np.int32], bool]]:
    """Separate rows that their key identifies from rows with a NULL in it, which only all old values can identify."""
    fit = rows.fit
    has_null = np.zeros(chosen.shape[0], np.bool_)
    if fit.version.old_image is OldImage.FULL and not fit.is_keyless:
        has_null = np.asarray((rows.old.lengths[np.array(fit.match, np.intp)[:, None], chosen] == NULL).any(axis=0))
    for part, is_null in ((chosen[~has_null], False), (chosen[has_null], True)):
        if part.shape[0]:
            yield part, is_null


def _by_carried(rows: TableRows, chosen: NDArray[np.int32]) -> Iterator[tuple[NDArray[np.int32], bool]]:
    """Separate rows as `_by_nulls` does, and also by the old values that they carry.

    A column that one row lacks is not compared for the whole write, so only rows that lack the same columns share one.
    """
    for part, is_null in _by_nulls(rows, chosen):
        if rows.fit.version.old_image is not OldImage.FULL:
            yield part, is_null
            continue
        for same, _ in _by_absence(rows.old.lengths, part):
            yield same, is_null


def deletes(rows: TableRows, chosen: NDArray[np.int32]) -> list[ExpectedWrite]:
    """Delete the old images of rows; those found and compared by the same columns share a write.

    Args:
        rows: of the table.
        chosen: int32, indexes of rows.
    """
    steps: list[ExpectedWrite] = []
    compared, of_updates = rows.fit.compared(Command.DELETE), rows.fit.compared(Command.UPDATE)
    for same, has_null in _by_carried(rows, chosen):
        # A DELETE that absorbed an UPDATE compares the columns that it changed, even if a DELETE does not compare them.
        for part in _by_bits(rows.changed, same) if of_updates - compared else [same]:
            carried, match = _carried(rows, part), _match(rows, has_null=has_null)
            updated = of_updates.intersection(_columns_of(rows, part))
            compare = tuple(
                column
                for column in rows.fit.all_columns
                if carried[column] and column not in match and (column in compared or column in updated)
            )
            steps.append(_expected(delete_of(rows, part, compare=compare, has_null=has_null), part))
    return steps


def _columns_of(rows: TableRows, chosen: NDArray[np.int32]) -> list[int]:
    """Return the columns that at least one of the rows changed."""
    bits = np.bitwise_or.reduce(rows.changed[chosen], axis=0)
    return [column for column in range(len(rows.fit.version.columns)) if int(bits[column >> 6]) >> (column & 63) & 1]


def _match(rows: TableRows, *, has_null: bool) -> tuple[int, ...]:
    return rows.fit.all_columns if has_null else rows.fit.match


def delete_of(rows: TableRows, chosen: NDArray[np.int32], *, compare: tuple[int, ...], has_null: bool = False) -> Write:
    """Return one DELETE of rows.

    Args:
        rows: of the table.
        chosen: int32, indexes of rows.
        compare: positions of the columns whose old values are compared, besides those that find the rows.
        has_null: the rows' key has a NULL, so all their values find them.
    """
    match = _match(rows, has_null=has_null)
    return with_keys(
        Write(
            table=rows.fit.table,
            version=rows.fit.version,
            command=Command.DELETE,
            old=rows.old.gathered(chosen, _mask(rows, match + compare)),
            new=None,
            match_columns=match,
            compare_columns=compare,
            set_columns=(),
            paired=has_null,
            times=rows.written_at(chosen),
        ),
        rows.fit,
    )


def updates(rows: TableRows, chosen: NDArray[np.int32], *, split: bool) -> list[ExpectedWrite]:
    """Update rows from their old to their new images.

    Args:
        rows: of the table.
        chosen: int32, indexes of rows.
        split: many rows that changed the same columns get their own write; False: rows share writes wherever possible.
    """
    steps: list[ExpectedWrite] = []
    for identified, has_null in _by_carried(rows, chosen):
        for same in _by_bits(rows.unset, identified):
            # A column that is not compared may only be set where it changed.
            exact = not rows.fit.conflicts.compares_all
            parts = _by_bits(rows.changed, same) if exact else _by_signature(rows, same) if split else [same]
            steps += [_expected(_update(rows, part, has_null=has_null), part) for part in parts]
    return steps


def _update(rows: TableRows, chosen: NDArray[np.int32], *, has_null: bool) -> Write:
    fit, found_by = rows.fit, _match(rows, has_null=has_null)
    changed = _columns_of(rows, chosen)
    carried, match = _carried(rows, chosen), set(found_by)
    # A changed identity column that is GENERATED ALWAYS is set too: the session handles it.
    columns = tuple(column for column in changed if column in fit.all_columns)
    compared = fit.compared(Command.UPDATE)
    # Where the last change wins with its whole row, the destination's row must be the one that the LCR changed.
    asked = columns if rows.times is None else fit.all_columns
    compare = tuple(column for column in asked if carried[column] and column not in match and column in compared)
    columns = columns or _untouched(rows, chosen)
    return with_keys(
        Write(
            table=fit.table,
            version=fit.version,
            command=Command.UPDATE,
            old=rows.old.gathered(chosen, _mask(rows, found_by + compare)),
            new=rows.new.gathered(chosen, _mask(rows, columns)),
            match_columns=found_by,
            compare_columns=compare,
            set_columns=columns,
            paired=has_null,
            times=rows.written_at(chosen),
        ),
        fit,
    )


def _untouched(rows: TableRows, chosen: NDArray[np.int32]) -> tuple[int, ...]:
    """Return what to set if nothing changed, because the row must still be found: a column only if triggers notice."""
    if not rows.fit.table.ordered:
        return ()
    there = np.asarray((rows.new.lengths[:, chosen] >= NULL).all(axis=1))
    return tuple(column for column in rows.fit.all_columns if there[column])[:1]


def _carried(rows: TableRows, chosen: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which columns have an old value in every row."""
    if rows.fit.version.old_image is OldImage.FULL:
        return np.asarray((rows.old.lengths[:, chosen] >= NULL).all(axis=1))
    return np.zeros(len(rows.fit.version.columns), np.bool_)


def _by_bits(bits: NDArray[np.uint64], chosen: NDArray[np.int32]) -> list[NDArray[np.int32]]:
    """Group rows with equal bits."""
    if not chosen.shape[0]:
        return []
    mine = bits[chosen]
    if (mine == mine[0]).all():
        return [chosen]
    _, place = np.unique(mine, axis=0, return_inverse=True)
    place = place.reshape(-1)
    return [chosen[place == kind] for kind in range(int(place.max()) + 1)]


def _by_signature(rows: TableRows, chosen: NDArray[np.int32]) -> list[NDArray[np.int32]]:
    """Group rows that changed the same columns, if there are many of them; the rest form one set."""
    if chosen.shape[0] < 2 * _SIGNATURE_ROWS_MIN:
        return [chosen]
    parts = _by_bits(rows.changed, chosen)
    large = [part for part in parts if part.shape[0] >= _SIGNATURE_ROWS_MIN]
    small = [part for part in parts if part.shape[0] < _SIGNATURE_ROWS_MIN]
    return [*large, np.sort(np.concatenate(small))] if small else large


def _mask(rows: TableRows, columns: Sequence[int]) -> NDArray[np.bool_]:
    mask = np.zeros(len(rows.fit.version.columns), np.bool_)
    mask[list(columns)] = True
    return mask


def with_keys(write: Write, fit: TableFit, *, asks: bool = False) -> Write:
    """Add key hashes to a write whose times must be noted for the whole set.

    Args:
        write: with `times` or without.
        fit: of its table.
        asks: the write looks up last changes; older notes may exist even where no new ones are made.
    """
    if write.times is None or (write.times.has_one_source and not asks) or fit.noted_key is None:
        return write
    return replace(
        write, times=replace(write.times, keys=written_keys(fit.noted_key, write), key_form=fit.noted_key.form)
    )


def _expected(write: Write, rows: NDArray[np.int32]) -> ExpectedWrite:
    return ExpectedWrite(write=write, expected=write.row_count, rows=rows)
