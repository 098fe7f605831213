"""From batches to sets: the net change of every key, as few writes as possible.

Between two TRUNCATEs the rows of a table become one delete, a few updates and one insert, in this order:

    I·U -> I   I·D -> nothing   U·U -> U with the first old and the merged new values   U·D -> D   D·I -> D and I

The result must equal that of row-by-row execution, so every expectation is checked by a count:

- each write must affect as many rows as it has; if it does not, the transactions are split and finally
  applied row by row: only that decides what is a conflict;
- a row that is inserted and deleted leaves nothing to write, but it must not have existed before: a *guard*, a DELETE
  of its key that must find no row, keeps that conflict visible;
- an UPDATE compares and sets the columns that changed. A set uses the union of its rows' changed columns: if a row
  did not change one of them, its old and new values are equal. If the comparison succeeds, setting that value changes
  nothing; if it fails, the set fails, and row-by-row execution uses the exact columns. Of a table with columns that are
  not compared, only rows that changed the same columns share a set;
- without old values in the log (identity KEY), rows are found by key and nothing is compared;
- of the changes of a row, only the first one's old values meet the destination. The old values of each later one, also
  of columns that it did not change, must be what the one before it left; if they are not (a handler or a condition left
  a change out, or made another one of it), nothing is collapsed.

One difference remains: an intermediate value that the destination would refuse is not detected when the same group
overwrites it.

Rows of different tables are written table by table, but for tables with triggers that run for what apply writes: they
find all rows that come before their own, and none that come after it.

Changes of the table's key, tables with several unique keys, without a key or with triggers, and impossible or broken
histories (an insert after an insert) are not collapsed: they are written in source order, in *runs* of consecutive rows
of one command in which no key repeats.

Where the last change wins with its whole row (latest_timestamp), the first of several changes of a row decides: if no
later change is there, none is there for those that follow either, and the last one's time is noted; otherwise the set
fails.

Longer than 500 lines: the definition of a set and its construction must be read together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.databases.ports import TruncatedTable, Write, WriteTimes
from headrace.lcr.batch import Command, LcrBatch, OldImage, RowGroup, TableVersion
from headrace.lcr.cells import Cells, fixed
from headrace.lcr.cutting import select_rows, select_values
from headrace.lcr.values import ABSENT, NULL, ColumnValues
from spark_apply.dependencies.hashes import written_keys
from spark_apply.sets import collapse_kernels as kernels
from spark_apply.tables.fits import TableFit

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "ExpectedWrite",
    "FitOf",
    "ResolvablePlan",
    "Step",
    "TruncateTables",
    "plan_resolvable",
    "plan_rows",
    "plan_sets",
    "with_keys",
]

FitOf = Callable[[TableVersion], TableFit]

# A combination of changed columns gets a set of its own when this many rows share it. For fewer rows, another statement
# costs more than comparing and setting a few columns needlessly (a statement over 200 rows costs 1.5 to 1.8 times as
# much per row as one over 2,000).
_SIGNATURE_ROWS_MIN = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedWrite:
    """A write, the number of rows that it must affect, and which rows of its table's rows they are (int32)."""

    write: Write
    expected: int
    rows: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateTables:
    """Tables to truncate together: a barrier between writes.

    A CASCADE at the source is not repeated here: the tables that it emptied there are part of the same TRUNCATE, and
    tables that refer to them only at the destination must not be emptied.

    Args:
        tables: as the destination describes them.
        restart_identity: RESTART IDENTITY at the source.
        unfit: why one of them does not fit, where that is an error (`TableFit.unfit`): nothing is truncated.
    """

    tables: tuple[TruncatedTable, ...]
    restart_identity: bool
    unfit: str = ""


Step = ExpectedWrite | TruncateTables


def plan_sets(batches: Sequence[LcrBatch], fit_of: FitOf) -> list[Step]:
    """Plan the writes of consecutive transactions as sets.

    Args:
        batches: their rows, in order.
        fit_of: returns the fit of a table version.

    Returns:
        The steps to execute, in order.
    """
    steps: list[Step] = []
    for piece in _segments(batches):
        if isinstance(piece, tuple):
            steps.append(_truncate(piece[0], piece[1], fit_of))
            continue
        for part in _around_triggers(piece, fit_of):
            tables = _by_table(part, fit_of)
            for name in sorted(tables):
                for rows, must_order in _same_shape(tables[name]):
                    steps.extend(_plan_table(rows, must_order=must_order))
    return steps


def plan_rows(batch: LcrBatch, fit_of: FitOf, numbers: Sequence[int] | None = None) -> Iterator[tuple[int, Step]]:
    """Plan one write per row, in source order, with exactly the row's own columns.

    Args:
        batch: the rows.
        fit_of: returns the fit of a table version.
        numbers: of the rows that are wanted, ascending; None: all.

    Yields:
        The row's number in the batch, and the step for it.
    """
    tables = [_TableRows.of([_block_of(batch, group, fit_of(batch.tables[group.table]))]) for group in batch.groups]
    for table in tables:
        table.find_keys()
    groups, within = batch.row_places
    for number in range(batch.row_count) if numbers is None else numbers:
        group, row = int(groups[number]), within[number : number + 1]
        if group < 0:
            yield number, _truncate(batch, int(row[0]), fit_of)
        else:
            yield number, _exact_write(tables[group], row)


@dataclass(frozen=True, slots=True)
class _NetTable:
    """The net changes of a table with conflict handlers.

    Its steps, and each row's hash of its key and its number among all rows.
    """

    steps: list[ExpectedWrite]
    hashes: NDArray[np.uint64]
    numbers: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvablePlan:
    """Sets out of which rows can be taken that meet conflicts.

    Args:
        row_count: of all rows.
        plain: the steps for tables without conflict handlers.
        tables: those with some.
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

        A net change that meets one brings all rows of its key: what each of them does depends on how the one before it
        ended.

        Args:
            conflicting: see `DestinationSession.conflicting`.

        Returns:
            The writes of all other rows; and int32, one for each row: -1, or how many rows of its key come before it
            among those that are taken
            out. None: that cannot be told.
        """
        steps, turns = list(self.plain), np.full(self.row_count, -1, np.int32)
        for table in self.tables:
            met = [np.empty(0, np.int32)]
            for step in table.steps:
                found = conflicting(step.write)
                if found is None:
                    return None
                if step.expected == 0:  # a guard: its rows must not be there
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
    """Plan consecutive transactions as sets out of which rows can be taken that meet conflicts.

    Args:
        batches: their rows, in order.
        fit_of: returns the fit of a table version.

    Returns:
        None: there is a TRUNCATE among them, rows of a table whose triggers see the order of tables, or rows of a table
            with conflict handlers
        that cannot be collapsed.
    """
    if any(batch.truncates or _firing(batch, fit_of) for batch in batches):
        return None
    plain: list[Step] = []
    tables: list[_NetTable] = []
    found = _by_table(batches, fit_of)
    for name in sorted(found):
        blocks = found[name]
        pieces = list(_same_shape(blocks))
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
    """For each row how many rows of its key come before it."""
    order = np.argsort(hashes, kind="stable")
    places = np.arange(hashes.shape[0])
    is_first = np.concatenate([[True], np.diff(hashes[order]) != 0])
    turns = np.empty(hashes.shape[0], np.int32)
    turns[order] = places - np.maximum.accumulate(np.where(is_first, places, 0))
    return turns


def _without(step: ExpectedWrite, taken: NDArray[np.bool_]) -> ExpectedWrite | None:
    """A step without some of its rows; None: without all."""
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


@dataclass(frozen=True, slots=True)
class _Block:
    """A row group of one batch; `base`: number of rows before that batch; `times`: int64[n], see `WriteTimes`.

    None: nobody asks.
    """

    base: int
    group: RowGroup
    fit: TableFit
    times: NDArray[np.int64] | None = None
    source: str = ""


def _block_of(batch: LcrBatch, group: RowGroup, fit: TableFit, base: int = 0) -> _Block:
    if fit.conflicts.times is None:
        return _Block(base=base, group=group, fit=fit)
    found = batch.transactions
    # The last transaction that begins at or before a row; empty ones before it begin at the same row.
    transaction = np.searchsorted(found.first_row, group.row_numbers, side="right") - 1
    return _Block(
        base=base, group=group, fit=fit, times=found.commit_time_us[transaction].astype(np.int64), source=batch.source
    )


def _by_table(batches: Sequence[LcrBatch], fit_of: FitOf) -> dict[tuple[str, str], list[_Block]]:
    """The row groups of each table, batch by batch."""
    tables: dict[tuple[str, str], list[_Block]] = {}
    base = 0
    for batch in batches:
        for group in batch.groups:
            version = batch.tables[group.table]
            tables.setdefault((version.owner, version.name), []).append(_block_of(batch, group, fit_of(version), base))
        base += batch.row_count
    return tables


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
    """The groups of a batch whose table has triggers that run for what apply writes."""
    return {number for number, group in enumerate(batch.groups) if fit_of(batch.tables[group.table]).table.fires}


def _around_triggers(batches: Sequence[LcrBatch], fit_of: FitOf) -> Iterator[Sequence[LcrBatch]]:
    """Cut batches where rows of a table with triggers begin and end.

    A trigger finds all rows that come before its own, and none that come after it.
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


def _same_shape(blocks: list[_Block]) -> Iterator[tuple[_TableRows, bool]]:
    """Concatenate the blocks of a table; where its versions differ, span by span in source order."""
    shapes = {(block.fit.version.columns, block.fit.version.old_image) for block in blocks}
    if len(shapes) == 1:
        yield _TableRows.of(blocks), False
        return
    # Rare: the table was altered inside the group, or its partitions have different column orders.
    numbers = np.concatenate([block.base + block.group.row_numbers for block in blocks])
    owner = np.concatenate([np.full(block.group.row_count, i) for i, block in enumerate(blocks)])
    order = np.argsort(numbers, kind="stable")
    kinds = {shape: kind for kind, shape in enumerate(shapes)}
    kind_of = np.array([kinds[block.fit.version.columns, block.fit.version.old_image] for block in blocks])
    owners = owner[order]
    sequence = kind_of[owners]
    ends = np.concatenate([np.flatnonzero(np.diff(sequence)) + 1, [sequence.shape[0]]])
    start = 0
    for end in ends.tolist():
        low, high = int(numbers[order[start]]), int(numbers[order[end - 1]])
        yield (
            _TableRows.of([_rows_between(blocks[place], low, high) for place in np.unique(owners[start:end]).tolist()]),
            True,
        )
        start = end


def _rows_between(block: _Block, low: int, high: int) -> _Block:
    """The rows of a block whose number in the segment is `low .. high`."""
    first, last = np.searchsorted(block.group.row_numbers, [low - block.base, high - block.base + 1]).tolist()
    if first == 0 and last == block.group.row_count:
        return block
    rows = np.arange(first, last, dtype=np.int32)
    group = replace(
        block.group,
        row_numbers=block.group.row_numbers[first:last],
        old=select_values(block.group.old, rows),
        new=select_values(block.group.new, rows),
    )
    return replace(block, group=group, times=None if block.times is None else block.times[first:last])


# --------------------------------------------------------------------------- rows of one table


@dataclass(slots=True)
class _TableRows:
    """Rows of one table in source order; `old`, `new`, `changed` and `unset` are changed in place.

    Args:
        fit: of the table.
        command: uint8, shape (n,).
        old: old image; ABSENT rows for INSERTs.
        new: new image; ABSENT rows for DELETEs.
        changed: uint64, shape (n, words): bit per column an UPDATE changed.
        unset: uint64, shape (n, words): bit per column for which an UPDATE has no new value.
        direct: the original values, when the rows are one block of inserts.
        times: int64, shape (n,): when each was committed at `source`; None: of a table that nobody asks it of.
        noted: int64, shape (n,): when the last change of each one's key was committed, where `times` has the first;
            None: rows are not collapsed.
    """

    fit: TableFit
    command: NDArray[np.uint8]
    old: Cells
    new: Cells
    changed: NDArray[np.uint64]
    unset: NDArray[np.uint64]
    direct: ColumnValues | None
    key_offsets: NDArray[np.int64]
    key_lengths: NDArray[np.int32]
    times: NDArray[np.int64] | None = None
    source: str = ""
    noted: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, blocks: list[_Block]) -> _TableRows:
        """Concatenate blocks of one shape."""
        fit = blocks[0].fit
        count = sum(block.group.row_count for block in blocks)
        columns = len(fit.version.columns)
        if len(blocks) == 1:
            places = [np.arange(count, dtype=np.int32)]
        else:
            numbers = np.concatenate([block.base + block.group.row_numbers for block in blocks])
            rank = np.empty(count, np.int32)
            rank[np.argsort(numbers, kind="stable")] = np.arange(count, dtype=np.int32)
            places = np.split(rank, np.cumsum([block.group.row_count for block in blocks])[:-1])
        command = np.empty(count, np.uint8)
        olds, news = [], []
        for block, place in zip(blocks, places, strict=True):
            command[place] = int(block.group.command)
            if block.group.old is not None:
                olds.append((block.group.old, place))
            if block.group.new is not None:
                news.append((block.group.new, place))
        old, new = _shared(columns, count, olds, news)
        words = (columns + 63) // 64
        direct = blocks[0].group.new if len(blocks) == 1 and blocks[0].group.command is Command.INSERT else None
        matched = len(fit.match)
        return cls(
            fit=fit,
            command=command,
            old=old,
            new=new,
            changed=np.zeros((count, words), np.uint64),
            unset=np.zeros((count, words), np.uint64),
            direct=direct,
            key_offsets=np.zeros((matched, count), np.int64),
            key_lengths=np.zeros((matched, count), np.int32),
            times=_times(blocks, places, count),
            source=blocks[0].source,
        )

    def written_at(self, chosen: NDArray[np.int32]) -> WriteTimes | None:
        """When rows were changed, for a write of them."""
        known = self.fit.conflicts.times
        if known is None or self.times is None:
            return None
        return WriteTimes(
            times_us=self.times[chosen],
            source=self.source,
            rank=known.rank(self.source),
            own_rank=known.rank(known.site),
            has_tombstones=known.has_tombstones,
            has_one_source=known.has_one_source,
            noted_us=None if self.noted is None else self.noted[chosen],
        )

    def find_keys(self) -> int:
        """Find keys and changed columns; returns COLLAPSED, or why keys do not identify the rows."""
        data, command = self.new.data, fixed(self.command)
        answer = kernels.find_keys(
            data,
            command,
            self.old.offsets,
            self.old.lengths,
            self.new.offsets,
            self.new.lengths,
            fixed(np.array(self.fit.match, np.int64)),
            self.key_offsets,
            self.key_lengths,
        )
        kernels.mark_columns(
            data,
            command,
            self.old.offsets,
            self.old.lengths,
            self.new.offsets,
            self.new.lengths,
            self.changed,
            self.unset,
        )
        return int(answer)

    def is_collapsible(self, answer: int) -> bool:
        """Whether the net changes of the keys may be written, by what `find_keys` answered."""
        return answer == kernels.COLLAPSED and self.fit.is_collapsible and not (self.key_lengths == NULL).any()

    def hash_keys(self) -> NDArray[np.uint64]:
        """A hash of each row's key: uint64, shape (n,); once keys are found."""
        hashes = np.empty(self.command.shape[0], np.uint64)
        matched = fixed(np.arange(len(self.fit.match), dtype=np.int64))
        kernels.hash_rows(
            self.new.data, fixed(self.key_offsets), fixed(self.key_lengths), matched, np.uint64(0), hashes
        )
        return hashes


def _times(blocks: Sequence[_Block], places: Sequence[NDArray[np.int32]], count: int) -> NDArray[np.int64] | None:
    if blocks[0].times is None:
        return None
    times = np.zeros(count, np.int64)
    for block, place in zip(blocks, places, strict=True):
        assert block.times is not None
        times[place] = block.times
    return times


def _shared(
    columns: int,
    count: int,
    olds: list[tuple[ColumnValues, NDArray[np.int32]]],
    news: list[tuple[ColumnValues, NDArray[np.int32]]],
) -> tuple[Cells, Cells]:
    """Both images over one shared byte array."""
    old = Cells.joined(columns, count, olds)
    new = Cells.joined(columns, count, news)
    if not olds:
        return replace(old, data=new.data), new
    if not news:
        return old, replace(new, data=old.data)
    base = old.data.shape[0]
    data = fixed(np.concatenate([old.data, new.data]))
    new.offsets[...] += base
    return replace(old, data=data), replace(new, data=data)


def _plan_table(rows: _TableRows, *, must_order: bool) -> Iterator[Step]:
    if (rows.command == int(Command.INSERT)).all():
        # Nothing to collapse; the destination refuses a duplicate key.
        yield from _inserts(rows, np.arange(rows.command.shape[0], dtype=np.int32))
        return
    answer = rows.find_keys()
    if not must_order and rows.is_collapsible(answer):
        collapsed = _collapsed(rows, rows.hash_keys())
        if collapsed is not None:
            yield from collapsed
            return
    yield from _in_order(rows)


def _collapsed(rows: _TableRows, hashes: NDArray[np.uint64]) -> list[ExpectedWrite] | None:
    """The net changes; None when the history cannot be collapsed (`rows` is then unchanged)."""
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
            return None  # the delete is to be noted, and a guard writes nothing
        if not net.all():  # some keys have several rows
            work.times, work.noted = _first_and_last(rows.times, hashes)
    if guards.shape[0]:
        steps.append(ExpectedWrite(write=_delete(work, guards, compare=()), expected=0, rows=guards))
    steps += _deletes(work, _where(net, int(Command.DELETE), kernels.NET_DELETE_INSERT))
    steps += _updates(work, _where(net, int(Command.UPDATE)), split=True)
    steps += _inserts(work, _where(net, int(Command.INSERT), kernels.NET_DELETE_INSERT))
    return steps


def _first_and_last(
    times: NDArray[np.int64], hashes: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each row when its key was changed by the first and by the last of the rows."""
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


def _in_order(rows: _TableRows) -> Iterator[Step]:
    """In source order, in runs of independent rows."""
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
        yield from _same_command(rows, np.arange(start, end, dtype=np.int32))
        start = end


def _same_command(rows: _TableRows, chosen: NDArray[np.int32]) -> list[ExpectedWrite]:
    command = Command(int(rows.command[chosen[0]]))
    if command is Command.INSERT:
        return _inserts(rows, chosen)
    if command is Command.DELETE:
        return _deletes(rows, chosen)
    return _updates(rows, chosen, split=False)


def _exact_write(rows: _TableRows, chosen: NDArray[np.int32]) -> ExpectedWrite:
    (step,) = _same_command(rows, chosen)
    return step


# --------------------------------------------------------------------------- writes


def _inserts(rows: _TableRows, chosen: NDArray[np.int32]) -> list[ExpectedWrite]:
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
    """Group rows that carry the same columns; with each group the columns that it lacks."""
    if not chosen.shape[0]:
        return
    absent = np.asarray(lengths[:, chosen] == ABSENT)
    if not absent.any():
        yield chosen, absent[:, 0]
        return
    kinds, place = np.unique(absent, axis=1, return_inverse=True)
    for kind in range(kinds.shape[1]):
        yield chosen[place.reshape(-1) == kind], kinds[:, kind]


def _by_nulls(rows: _TableRows, chosen: NDArray[np.int32]) -> Iterator[tuple[NDArray[np.int32], bool]]:
    """Separate rows that their key identifies from rows with a NULL in it, which only all old values can identify."""
    fit = rows.fit
    has_null = np.zeros(chosen.shape[0], np.bool_)
    if fit.version.old_image is OldImage.FULL and not fit.is_keyless:
        has_null = np.asarray((rows.old.lengths[np.array(fit.match, np.intp)[:, None], chosen] == NULL).any(axis=0))
    for part, is_null in ((chosen[~has_null], False), (chosen[has_null], True)):
        if part.shape[0]:
            yield part, is_null


def _by_carried(rows: _TableRows, chosen: NDArray[np.int32]) -> Iterator[tuple[NDArray[np.int32], bool]]:
    """As `_by_nulls`, and separate rows that carry other old values.

    What one lacks is not compared, and must be of its neighbours.
    """
    for part, is_null in _by_nulls(rows, chosen):
        if rows.fit.version.old_image is not OldImage.FULL:
            yield part, is_null
            continue
        for same, _ in _by_absence(rows.old.lengths, part):
            yield same, is_null


def _deletes(rows: _TableRows, chosen: NDArray[np.int32]) -> list[ExpectedWrite]:
    steps: list[ExpectedWrite] = []
    compared, of_updates = rows.fit.compared(Command.DELETE), rows.fit.compared(Command.UPDATE)
    for same, has_null in _by_carried(rows, chosen):
        # An UPDATE that a DELETE followed compares what it changed, also where a DELETE does not.
        for part in _by_bits(rows.changed, same) if of_updates - compared else [same]:
            carried, match = _carried(rows, part), _match(rows, has_null=has_null)
            updated = of_updates.intersection(_columns_of(rows, part))
            compare = tuple(
                column
                for column in rows.fit.all_columns
                if carried[column] and column not in match and (column in compared or column in updated)
            )
            steps.append(_expected(_delete(rows, part, compare=compare, has_null=has_null), part))
    return steps


def _columns_of(rows: _TableRows, chosen: NDArray[np.int32]) -> list[int]:
    """The columns that one of the rows changed."""
    bits = np.bitwise_or.reduce(rows.changed[chosen], axis=0)
    return [column for column in range(len(rows.fit.version.columns)) if int(bits[column >> 6]) >> (column & 63) & 1]


def _match(rows: _TableRows, *, has_null: bool) -> tuple[int, ...]:
    return rows.fit.all_columns if has_null else rows.fit.match


def _delete(rows: _TableRows, chosen: NDArray[np.int32], *, compare: tuple[int, ...], has_null: bool = False) -> Write:
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


def _updates(rows: _TableRows, chosen: NDArray[np.int32], *, split: bool) -> list[ExpectedWrite]:
    steps: list[ExpectedWrite] = []
    for identified, has_null in _by_carried(rows, chosen):
        for same in _by_bits(rows.unset, identified):
            # A column that is not compared may only be set where it changed.
            exact = not rows.fit.conflicts.compares_all
            parts = _by_bits(rows.changed, same) if exact else _by_signature(rows, same) if split else [same]
            steps += [_expected(_update(rows, part, has_null=has_null), part) for part in parts]
    return steps


def _update(rows: _TableRows, chosen: NDArray[np.int32], *, has_null: bool) -> Write:
    fit, found_by = rows.fit, _match(rows, has_null=has_null)
    changed = _columns_of(rows, chosen)
    carried, match = _carried(rows, chosen), set(found_by)
    # An identity column that is GENERATED ALWAYS is set too if it changed: the session knows how.
    columns = tuple(column for column in changed if column in fit.all_columns)
    compared = fit.compared(Command.UPDATE)
    # Where the last change wins with its whole row, the row must be the one that it was made of.
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


def _untouched(rows: _TableRows, chosen: NDArray[np.int32]) -> tuple[int, ...]:
    """What to set when nothing changed: the row must still be found. A column only where triggers could notice."""
    if not rows.fit.table.ordered:
        return ()
    there = np.asarray((rows.new.lengths[:, chosen] >= NULL).all(axis=1))
    return tuple(column for column in rows.fit.all_columns if there[column])[:1]


def _carried(rows: _TableRows, chosen: NDArray[np.int32]) -> NDArray[np.bool_]:
    """The columns that have an old value in every row."""
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


def _by_signature(rows: _TableRows, chosen: NDArray[np.int32]) -> list[NDArray[np.int32]]:
    """Group rows that changed the same columns, if there are many of them; the rest form one set."""
    if chosen.shape[0] < 2 * _SIGNATURE_ROWS_MIN:
        return [chosen]
    parts = _by_bits(rows.changed, chosen)
    large = [part for part in parts if part.shape[0] >= _SIGNATURE_ROWS_MIN]
    small = [part for part in parts if part.shape[0] < _SIGNATURE_ROWS_MIN]
    return [*large, np.sort(np.concatenate(small))] if small else large


def _mask(rows: _TableRows, columns: Sequence[int]) -> NDArray[np.bool_]:
    mask = np.zeros(len(rows.fit.version.columns), np.bool_)
    mask[list(columns)] = True
    return mask


def with_keys(write: Write, fit: TableFit, *, asks: bool = False) -> Write:
    """A write whose times can be noted for the whole set, where rows that are there need that.

    Args:
        write: with `times` or without.
        fit: of its table.
        asks: it asks for the last changes, of which there may be notes where none are made any more.
    """
    if write.times is None or (write.times.has_one_source and not asks) or fit.noted_key is None:
        return write
    return replace(
        write, times=replace(write.times, keys=written_keys(fit.noted_key, write), key_form=fit.noted_key.form)
    )


def _expected(write: Write, rows: NDArray[np.int32]) -> ExpectedWrite:
    return ExpectedWrite(write=write, expected=write.row_count, rows=rows)
