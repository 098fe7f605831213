"""From row LCRs back into a batch: results of handlers and transformations continue as columns.

Unchanged rows are copied as columns from their batch, so a batch with few changed rows costs little more than cutting
it. A row that got another name, other columns or another command goes into a group of that kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.base.errors import BugError
from headrace.lcr.batch import Command, LcrBatch, RowGroup, TableVersion, Transactions, Truncate
from headrace.lcr.cells import Cells
from headrace.lcr.cutting import select_values
from headrace.lcr.lcr_value import LcrError
from headrace.lcr.row_lcr import RowLcr, ValueType
from headrace.lcr.scn import Scn
from headrace.lcr.tags import Tag
from headrace.lcr.values import ABSENT, UNCHANGED, ColumnValues

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["batch_of_lcrs", "batch_of_values", "values_of_lcrs"]

_KEPT_FROM = {Command.INSERT: ValueType.OLD, Command.DELETE: ValueType.NEW}  # values that a command lacks


def batch_of_lcrs(batch: LcrBatch, lcrs: Iterable[RowLcr]) -> LcrBatch:
    """Make a batch of row LCRs.

    An omitted LCR is discarded; a second view of a row doubles it. The destination finds an UPDATE without old values
    by its new key: setting that key selects the row.

    Args:
        batch: source of the transactions and positions; every LCR is a view of it.
        lcrs: the rows, changed or not, transaction after transaction; inside a transaction in the wanted order.

    Returns:
        A batch with these rows and the same positions. Transactions stay, even without rows
        (`headrace.lcr.cutting.without_unused` removes those); changed table versions and tags are added behind the
        batch's own.

    Raises:
        LcrError: an LCR is of another batch or out of order, or carries values that its command lacks. Or LCRs of one
            transaction have different tags, or LCRs of one batch different sources.
        BugError: the batch has a DDL LCR, which no row LCRs can replace.
    """
    if batch.ddl is not None:
        raise BugError("a DDL LCR is no row LCR", table=str(batch.ddl.base_table))
    rows = list(lcrs)
    owners = np.array([lcr.transaction for lcr in rows], np.int64)
    if any(lcr.batch is not batch for lcr in rows):
        raise LcrError("an LCR of another batch cannot be put into this one")
    if (np.diff(owners) < 0).any():
        raise LcrError("LCRs must come in the order of their transactions")
    made = _Building(batch=batch, tables=list(batch.tables), tags=list(batch.tags))
    for number, lcr in enumerate(rows):
        made.add(number, lcr)
    first_row = np.zeros(len(batch.transactions) + 1, np.int32)
    np.cumsum(np.bincount(owners, minlength=len(batch.transactions)), out=first_row[1:])
    transactions = replace(batch.transactions, tag=_tags(batch, rows, made.tags), first_row=first_row)
    return replace(
        batch,
        source=_source(batch, rows),
        tables=tuple(made.tables),
        tags=tuple(made.tags),
        transactions=transactions,
        groups=made.groups(),
        truncates=tuple(made.truncates),
    )


def batch_of_values(  # noqa: PLR0913 - what a change is
    version: TableVersion,
    command: Command,
    *,
    new: Sequence[Sequence[bytes | int]] | None = None,
    old: Sequence[Sequence[bytes | int]] | None = None,
    source: str,
    transaction_id: int = 1,
    commit_scn: int = 2,
    time_us: int = 0,
    tag: bytes | None = None,
) -> LcrBatch:
    """Make a batch of one transaction that changes rows of one table, for rows that come from no log.

    Args:
        version: the table's version.
        command: command of all rows.
        new: values row by row, in the order of the columns; an int is NULL, UNCHANGED or ABSENT. None for DELETE.
        old: old values in the same form; None for INSERT.
        source: name of the source's site.
        transaction_id: number of the transaction.
        commit_scn: SCN of its commit; at least 2.
        time_us: time of its commit, microseconds since the Unix epoch, UTC.
        tag: tag of the transaction; None: NULL.
    """
    count, columns = len(new if new is not None else old or ()), len(version.columns)
    group = RowGroup(
        table=0,
        command=command,
        row_numbers=np.arange(count, dtype=np.int32),
        old=None if old is None else _packed(old, columns),
        new=None if new is None else _packed(new, columns),
    )
    transactions = Transactions(
        transaction_id=np.array([transaction_id], np.int64),
        order_scn=np.array([commit_scn - 1], np.int64),
        commit_scn=np.array([commit_scn], np.int64),
        commit_time_us=np.array([time_us], np.int64),
        tag=np.array([-1 if tag is None else 0], np.int16),
        first_row=np.array([0, count], np.int32),
    )
    return LcrBatch(
        source=source,
        previous_scn=Scn(commit_scn - 2),
        through_scn=Scn(commit_scn),
        tables=(version,),
        tags=() if tag is None else (Tag(value=tag),),
        transactions=transactions,
        groups=(group,) if count else (),
    )


@dataclass(slots=True, kw_only=True)
class _Building:
    """The parts of a batch, so far."""

    batch: LcrBatch
    tables: list[TableVersion]
    tags: list[Tag]
    truncates: list[Truncate] = field(default_factory=list)
    _rows: dict[tuple[int, Command], list[tuple[int, RowLcr]]] = field(default_factory=dict)

    def add(self, number: int, lcr: RowLcr) -> None:
        """Take an LCR as row `number`."""
        group, within = lcr.place
        if group < 0:
            self.truncates.append(self._truncate(number, lcr, self.batch.truncates[within]))
            return
        kind = self.batch.groups[group].table, self.batch.groups[group].command
        if lcr.is_changed:
            kind = self._place(kind[0], lcr.table_version()), Command[lcr.command_type]
        self._rows.setdefault(kind, []).append((number, lcr))

    def groups(self) -> tuple[RowGroup, ...]:
        """Return the row groups: the batch's own in their order, then the changed rows."""
        own = {(group.table, group.command): place for place, group in enumerate(self.batch.groups)}
        kinds = sorted(self._rows, key=lambda kind: (own.get(kind, len(own)), self._rows[kind][0][0]))
        return tuple(self._group(*kind, self._rows[kind]) for kind in kinds)

    def _group(self, table: int, command: Command, members: list[tuple[int, RowLcr]]) -> RowGroup:
        lcrs = [lcr for _, lcr in members]
        values = {
            kind: None
            if _KEPT_FROM.get(command) is kind
            else values_of_lcrs(self.batch, lcrs, kind, len(self.tables[table].columns))
            for kind in (ValueType.OLD, ValueType.NEW)
        }
        for lcr in lcrs:
            _check(lcr, command)
        return RowGroup(
            table=table,
            command=command,
            row_numbers=np.array([number for number, _ in members], np.int32),
            old=values[ValueType.OLD],
            new=values[ValueType.NEW],
        )

    def _truncate(self, number: int, lcr: RowLcr, truncate: Truncate) -> Truncate:
        if not lcr.is_changed:
            return replace(truncate, row_number=number)
        if len(truncate.tables) > 1:
            raise LcrError(
                "a TRUNCATE of several tables cannot be given another table's name", tables=len(truncate.tables)
            )
        return replace(truncate, row_number=number, tables=(self._place(truncate.tables[0], lcr.table_version()),))

    def _place(self, own: int, version: TableVersion) -> int:
        """Return the index of a version among the tables; `own` is the index that the LCR had."""
        if self.tables[own] == version:
            return own
        if version not in self.tables:
            self.tables.append(version)
        return self.tables.index(version)


def _check(lcr: RowLcr, command: Command) -> None:
    """Refuse values that the LCR's command lacks."""
    if not lcr.is_changed:
        return
    kind = _KEPT_FROM.get(command)
    if kind is not None and any(value != ABSENT for value in lcr.stored(kind)):
        raise LcrError(
            f"an LCR with command type {command.name} has no {kind.value} values", hint="remove them with delete_column"
        )
    if command is Command.INSERT and UNCHANGED in lcr.stored(ValueType.NEW):
        raise LcrError(
            "an UPDATE that left a large value alone cannot become an INSERT: the value is not in the log",
            hint="add_column gives the value, delete_column leaves it to the destination's default",
        )


def values_of_lcrs(batch: LcrBatch, lcrs: Sequence[RowLcr], kind: ValueType, columns: int) -> ColumnValues | None:
    """Return one image of row LCRs of one command and table version; unchanged LCRs are copied as columns.

    Args:
        batch: the batch of which they are views.
        lcrs: at least one LCR.
        kind: OLD or NEW.
        columns: number of columns of the table version.
    """
    places: dict[int, list[int]] = {}  # by the group they are copied from; -1: changed LCRs
    for place, lcr in enumerate(lcrs):
        places.setdefault(-1 if lcr.is_changed else lcr.place[0], []).append(place)
    blocks = []
    for number, mine in places.items():
        if number < 0:
            block: ColumnValues | None = _packed([lcrs[place].stored(kind) for place in mine], columns)
        else:
            group, rows = batch.groups[number], np.array([lcrs[place].place[1] for place in mine], np.int32)
            block = select_values(group.old if kind is ValueType.OLD else group.new, rows)
        if len(places) == 1 or block is None:
            return block
        blocks.append((block, np.array(mine, np.int32)))
    return Cells.joined(columns, len(lcrs), blocks).gathered(np.arange(len(lcrs), dtype=np.int32))


def _packed(stored: Sequence[Sequence[bytes | int]], columns: int) -> ColumnValues:
    """Pack the values of rows, given row by row."""
    lengths = (
        np.array([[value if isinstance(value, int) else len(value) for value in row] for row in stored], np.int32)
        .reshape(len(stored), columns)
        .T
    )
    parts = (row[column] for column in range(columns) for row in stored)
    data = b"".join(part for part in parts if isinstance(part, bytes))
    starts = np.zeros(columns + 1, np.int64)
    np.cumsum(np.maximum(lengths, 0).sum(axis=1, dtype=np.int64), out=starts[1:])
    return ColumnValues(lengths=np.ascontiguousarray(lengths), data=np.frombuffer(data, np.uint8), starts=starts)


def _tags(batch: LcrBatch, rows: Sequence[RowLcr], tags: list[Tag]) -> NDArray[np.int16]:
    """Return the tag of each transaction according to its LCRs; new tags are added to `tags`."""
    found = batch.transactions.tag.copy()
    said: dict[int, bytes | None] = {}
    for lcr in rows:
        if said.setdefault(lcr.transaction, lcr.tag) != lcr.tag:
            raise LcrError("the LCRs of a transaction have one tag", scn=int(lcr.scn))
    for transaction, value in said.items():
        own = int(found[transaction])
        if value == (None if own < 0 else batch.tags[own].value):
            continue
        tag = None if value is None else Tag(value=value)
        if tag is not None and tag not in tags:
            tags.append(tag)
        found[transaction] = -1 if tag is None else tags.index(tag)
    return found


def _source(batch: LcrBatch, rows: Sequence[RowLcr]) -> str:
    sources = {lcr.source_database_name for lcr in rows} or {batch.source}
    if len(sources) > 1:
        raise LcrError(f"the LCRs of a batch have one source, not {', '.join(sorted(sources))}")
    return sources.pop()
