"""From batches to sets: the net change of every key, in as few writes as possible.

Between two TRUNCATEs the rows of a table become one delete, a few updates and one insert, in this order:

    I·U -> I   I·D -> nothing   U·U -> U with the first old and the merged new values   U·D -> D   D·I -> D and I

The result must equal that of row-by-row execution, so a count checks every expectation:

- Each write must affect as many rows as it has. If it does not, the transactions are split and finally applied row by
  row: only row-by-row execution decides what is a conflict.
- A row that is inserted and deleted leaves nothing to write, but it must not have existed before. A *guard*, a DELETE
  of its key that must find no row, keeps that conflict visible.
- An UPDATE compares and sets the columns that changed. A set uses the union of its rows' changed columns: if a row
  did not change one of them, its old and new values are equal. If the comparison succeeds, setting that value changes
  nothing. If it fails, the set fails, and row-by-row execution uses the exact columns. In a table with columns that are
  not compared, only rows that changed the same columns share a set.
- Without old values in the log (identity KEY), rows are found by key and nothing is compared.
- Of the changes of a row, only the first one's old values meet the destination. The old values of each later change,
  also of columns that it did not change, must be what the previous one left. If they are not (a handler or a condition
  removed or replaced a change), nothing is collapsed.

One difference remains: if the destination would refuse an intermediate value, and the same group overwrites it, the
refusal goes unnoticed.

Rows of different tables are written table by table. The exception is a table with triggers that fire for applied
changes: its triggers see all rows that precede their own, and no later ones.

Not collapsed are changes of the table's key, tables with several unique keys, without a key or with triggers, and
impossible or broken histories (an insert after an insert). They are written in source order, in *runs* of consecutive
rows of one command in which no key repeats.

Where the last change wins with its whole row (latest_timestamp), the first of several changes of a row decides. If no
later change is there, no change is later than the following ones either, and the last one's time is noted. Otherwise
the set fails.

`table_rows` has the rows of a table, `set_writes` the writes for rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.base.errors import BugError
from headrace.databases.ports import TruncatedTable, Write
from headrace.lcr.batch import Command, LcrBatch
from headrace.lcr.cells import Cells, fixed
from headrace.lcr.cutting import select_rows, select_values
from spark_apply.sets import collapse_kernels as kernels
from spark_apply.sets.set_writes import delete_of, deletes, inserts, updates, write_row, write_run
from spark_apply.sets.steps import ExpectedWrite, FitOf, Step, TruncateTables
from spark_apply.sets.table_rows import TableRows, block_of, rows_by_table, same_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ResolvablePlan", "plan_resolvable", "plan_rows", "plan_sets"]


def plan_sets(batches: Sequence[LcrBatch], fit_of: FitOf) -> list[Step]:
    """Plan the writes of consecutive transactions as sets.

    Args:
        batches: the transactions' rows, in order.
        fit_of: returns the fit of a table version.

    Returns:
        The steps to execute, in order.

    Raises:
        BugError: a batch has a DDL LCR, which is no row.
    """
    _check_rows(batches)
    steps: list[Step] = []
    for piece in _segments(batches):
        if isinstance(piece, tuple):
            steps.append(_truncate(piece[0], piece[1], fit_of))
            continue
        for part in _around_triggers(piece, fit_of):
            tables = rows_by_table(part, fit_of)
            for name in sorted(tables):
                for rows, must_order in same_shape(tables[name]):
                    steps.extend(_plan_table(rows, must_order=must_order))
    return steps


def plan_rows(batch: LcrBatch, fit_of: FitOf, numbers: Sequence[int] | None = None) -> Iterator[tuple[int, Step]]:
    """Plan one write per row, in source order, with exactly the row's own columns.

    Args:
        batch: the rows.
        fit_of: returns the fit of a table version.
        numbers: numbers of the wanted rows, ascending; None: all.

    Yields:
        The row's number in the batch, and the step for it.

    Raises:
        BugError: the batch has a DDL LCR, which is no row.
    """
    _check_rows([batch])
    tables = [TableRows.of([block_of(batch, group, fit_of(batch.tables[group.table]))]) for group in batch.groups]
    for table in tables:
        table.find_keys()
    groups, within = batch.row_places
    for number in range(batch.row_count) if numbers is None else numbers:
        group, row = int(groups[number]), within[number : number + 1]
        if group < 0:
            yield number, _truncate(batch, int(row[0]), fit_of)
        else:
            yield number, write_row(tables[group], row)


@dataclass(frozen=True, slots=True)
class _NetTable:
    """The net changes of a table with conflict handlers.

    It has the table's steps, and for each row the hash of its key and its number among all rows.
    """

    steps: list[ExpectedWrite]
    hashes: NDArray[np.uint64]
    numbers: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvablePlan:
    """Sets from which rows that meet conflicts can be taken out.

    Args:
        row_count: of all rows.
        plain: the steps for tables without conflict handlers.
        tables: the tables with conflict handlers.
    """

    row_count: int
    plain: list[Step]
    tables: list[_NetTable]

    @property
    def steps(self) -> list[Step]:
        """The writes of all rows, in order."""
        return [*self.plain, *(step for table in self.tables for step in table.steps)]

    def around(
        self, conflicting: Callable[[Write], NDArray[np.int64] | None]
    ) -> tuple[list[Step], NDArray[np.int32]] | None:
        """Take out the rows that meet conflicts.

        A net change that conflicts takes out all rows of its key, because each row's effect depends on the outcome of
        the previous one.

        Args:
            conflicting: returns the rows of a write that conflict, as `DestinationSession.conflicting` does.

        Returns:
            The writes of all other rows; and int32, one for each row: -1, or how many rows of its key precede it among
            those taken out. None: the destination cannot tell which rows conflict.
        """
        steps, turns = list(self.plain), np.full(self.row_count, -1, np.int32)
        for table in self.tables:
            met = [np.empty(0, np.int32)]
            for step in table.steps:
                found = conflicting(step.write)
                if found is None:
                    return None
                if step.expected == 0:  # a guard: its rows must not exist
                    found = np.setdiff1d(np.arange(step.write.row_count), found)
                met.append(step.rows[found])
            taken = np.concatenate(met)
            if not taken.shape[0]:
                steps += table.steps
                continue
            is_taken = np.isin(table.hashes, table.hashes[taken])
            turns[table.numbers[is_taken]] = _turns(table.hashes[is_taken])
            steps += [rest for step in table.steps if (rest := _without(step, is_taken[step.rows])) is not None]
        return steps, turns


def plan_resolvable(batches: Sequence[LcrBatch], fit_of: FitOf) -> ResolvablePlan | None:
    """Plan consecutive transactions as sets from which rows that meet conflicts can be taken out.

    Args:
        batches: the transactions' rows, in order.
        fit_of: returns the fit of a table version.

    Returns:
        None: the batches contain a TRUNCATE, rows of a table whose triggers see the order of tables, or rows of a table
            with conflict handlers that cannot be collapsed.

    Raises:
        BugError: a batch has a DDL LCR, which is no row.
    """
    _check_rows(batches)
    if any(batch.truncates or _firing(batch, fit_of) for batch in batches):
        return None
    plain: list[Step] = []
    tables: list[_NetTable] = []
    found = rows_by_table(batches, fit_of)
    for name in sorted(found):
        blocks = found[name]
        pieces = list(same_shape(blocks))
        if not blocks[0].fit.conflicts.handlers:
            for rows, must_order in pieces:
                plain += _plan_table(rows, must_order=must_order)
            continue
        (rows, _), *others = pieces
        if others or not rows.is_collapsible(rows.find_keys()):
            return None
        hashes = rows.hash_keys()
        steps = _collapsed(rows, hashes)
        if steps is None:
            return None
        numbers = np.sort(np.concatenate([block.base + block.group.row_numbers for block in blocks]))
        tables.append(_NetTable(steps, hashes, numbers))
    return ResolvablePlan(row_count=sum(batch.row_count for batch in batches), plain=plain, tables=tables)


def _turns(hashes: NDArray[np.uint64]) -> NDArray[np.int32]:
    """Return for each row how many rows of its key precede it."""
    order = np.argsort(hashes, kind="stable")
    places = np.arange(hashes.shape[0])
    is_first = np.concatenate([[True], np.diff(hashes[order]) != 0])
    turns = np.empty(hashes.shape[0], np.int32)
    turns[order] = places - np.maximum.accumulate(np.where(is_first, places, 0))
    return turns


def _without(step: ExpectedWrite, taken: NDArray[np.bool_]) -> ExpectedWrite | None:
    """Return a step without some of its rows; None: no row is left."""
    if not taken.any():
        return step
    kept = np.flatnonzero(~taken).astype(np.int32)
    if not kept.shape[0]:
        return None
    write, times = step.write, step.write.times
    rest = replace(
        write,
        old=select_values(write.old, kept),
        new=select_values(write.new, kept),
        times=None if times is None else times.of_rows(kept),
    )
    return ExpectedWrite(write=rest, expected=kept.shape[0] if step.expected else 0, rows=step.rows[kept])


# --------------------------------------------------------------------------- pieces of the input


def _check_rows(batches: Sequence[LcrBatch]) -> None:
    """Refuse DDL LCRs: without rows, they would be passed over."""
    for batch in batches:
        if batch.ddl is not None:
            raise BugError("a DDL LCR cannot be planned as rows", table=str(batch.ddl.base_table))


def _segments(batches: Sequence[LcrBatch]) -> Iterator[list[LcrBatch] | tuple[LcrBatch, int]]:
    """Cut batches at their TRUNCATEs: runs of batches, and (batch, index of the TRUNCATE) between them."""
    run: list[LcrBatch] = []
    for batch in batches:
        if not batch.truncates:
            run.append(batch)
            continue
        numbers = np.arange(batch.row_count)
        start = 0
        for index, truncate in enumerate(batch.truncates):
            run.append(select_rows(batch, (numbers >= start) & (numbers < truncate.row_number)))
            yield run
            yield batch, index
            run, start = [], truncate.row_number + 1
        run.append(select_rows(batch, numbers >= start))
    yield run


def _firing(batch: LcrBatch, fit_of: FitOf) -> set[int]:
    """Return the groups of a batch whose table has triggers that fire for applied changes."""
    return {number for number, group in enumerate(batch.groups) if fit_of(batch.tables[group.table]).table.fires}


def _around_triggers(batches: Sequence[LcrBatch], fit_of: FitOf) -> Iterator[Sequence[LcrBatch]]:
    """Cut batches where rows of a table with triggers begin and end.

    A trigger sees all rows that precede its own, and no later ones.
    """
    firing = [_firing(batch, fit_of) for batch in batches]
    if not any(firing):
        yield batches
        return
    part: list[LcrBatch] = []
    before: object = None  # the table of the last row, if it has triggers
    for batch, groups in zip(batches, firing, strict=True):
        names: list[object] = [None] * (len(batch.groups) + 1)
        for group in groups:
            version = batch.tables[batch.groups[group].table]
            names[group] = (version.owner, version.name)
        of_row = [names[group] for group in batch.row_places[0].tolist()]
        for name, rows in itertools.groupby(range(batch.row_count), of_row.__getitem__):
            if part and name != before:
                yield part
                part = []
            before = name
            chosen = np.zeros(batch.row_count, np.bool_)
            chosen[list(rows)] = True
            part.append(select_rows(batch, chosen))
    if part:
        yield part


def _truncate(batch: LcrBatch, index: int, fit_of: FitOf) -> TruncateTables:
    truncate = batch.truncates[index]
    fits = [fit_of(batch.tables[table]) for table in truncate.tables]
    tables = tuple(TruncatedTable(table=fit.table, partition=fit.version.partition) for fit in fits)
    return TruncateTables(
        tables=tables,
        restart_identity=truncate.restart_identity,
        unfit=next((fit.unfit for fit in fits if fit.unfit), ""),
    )


def _plan_table(rows: TableRows, *, must_order: bool) -> Iterator[Step]:
    if (rows.command == int(Command.INSERT)).all():
        # Nothing to collapse; the destination refuses a duplicate key.
        yield from inserts(rows, np.arange(rows.command.shape[0], dtype=np.int32))
        return
    answer = rows.find_keys()
    if not must_order and rows.is_collapsible(answer):
        collapsed = _collapsed(rows, rows.hash_keys())
        if collapsed is not None:
            yield from collapsed
            return
    yield from _in_order(rows)


def _collapsed(rows: TableRows, hashes: NDArray[np.uint64]) -> list[ExpectedWrite] | None:
    """Return the steps of the net changes; None: the history cannot be collapsed (`rows` is then unchanged)."""
    data = rows.new.data
    net = np.zeros(rows.command.shape[0], np.uint8)
    # Images are merged in place: work on copies, because a failure needs the originals.
    work = replace(
        rows,
        old=_copied(rows.old),
        new=_copied(rows.new),
        changed=rows.changed.copy(),
        unset=rows.unset.copy(),
    )
    answer = kernels.net_changes(
        data,
        fixed(rows.command),
        fixed(hashes),
        fixed(rows.key_offsets),
        fixed(rows.key_lengths),
        work.old.offsets,
        work.old.lengths,
        work.new.offsets,
        work.new.lengths,
        work.changed,
        work.unset,
        net,
    )
    if int(answer) != kernels.COLLAPSED:
        return None
    steps: list[ExpectedWrite] = []
    guards = _where(net, kernels.NET_GUARD)
    if rows.times is not None:
        if guards.shape[0]:
            return None  # the delete must be noted, and a guard writes nothing
        if not net.all():  # some keys have several rows
            work.times, work.noted = _first_and_last(rows.times, hashes)
    if guards.shape[0]:
        steps.append(ExpectedWrite(write=delete_of(work, guards, compare=()), expected=0, rows=guards))
    steps += deletes(work, _where(net, int(Command.DELETE), kernels.NET_DELETE_INSERT))
    steps += updates(work, _where(net, int(Command.UPDATE)), split=True)
    steps += inserts(work, _where(net, int(Command.INSERT), kernels.NET_DELETE_INSERT))
    return steps


def _first_and_last(
    times: NDArray[np.int64], hashes: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each row when the first and when the last of the rows changed its key."""
    _, first, place = np.unique(hashes, return_index=True, return_inverse=True)
    place = place.reshape(-1)
    last = np.empty(first.shape[0], np.intp)
    last[place] = np.arange(place.shape[0])  # of several rows of a key the last one stays
    return times[first[place]], times[last[place]]


def _copied(cells: Cells) -> Cells:
    return replace(cells, offsets=cells.offsets.copy(), lengths=cells.lengths.copy())


def _where(net: NDArray[np.uint8], *wanted: int) -> NDArray[np.int32]:
    found = net == wanted[0]
    for other in wanted[1:]:
        found |= net == other
    return np.flatnonzero(found).astype(np.int32)


def _in_order(rows: TableRows) -> Iterator[Step]:
    """Write rows in source order, in runs of independent rows."""
    fit, count = rows.fit, rows.command.shape[0]
    keys = [fit.all_columns] if fit.is_keyless else [key.columns for key in fit.hashed_keys]
    old_hashes, new_hashes = np.empty((len(keys), count), np.uint64), np.empty((len(keys), count), np.uint64)
    for place, columns in enumerate(keys):
        positions, seed = fixed(np.array(columns, np.int64)), np.uint64(place + 1)
        for cells, hashes in ((rows.old, old_hashes), (rows.new, new_hashes)):
            kernels.hash_rows(
                cells.data,
                fixed(cells.offsets),
                fixed(cells.lengths),
                positions,
                seed,
                hashes[place],
            )
    runs = np.empty(count, np.int32)
    kernels.cut_runs(fixed(rows.command), fixed(old_hashes), fixed(new_hashes), fixed(rows.unset), fit.is_keyless, runs)
    ends = np.concatenate([np.flatnonzero(np.diff(runs)) + 1, [count]]).tolist()
    start = 0
    for end in ends:
        yield from write_run(rows, np.arange(start, end, dtype=np.int32))
        start = end
