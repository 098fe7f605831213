"""LCR batches: row changes as columns, from capture to apply.

A batch holds the row LCRs of consecutive transactions of one source, in commit order. Rows are numbered
0..row_count-1 in source order. A row is in exactly one `RowGroup`: one group per (table version,
command), so that rules, hashing and writing work on whole columns. A value is a (length, bytes) pair in the
source's own encoding; it is decoded only where a single row is read.

Order inside a batch: transaction i owns the rows `first_row[i] .. first_row[i+1]-1`. A transaction larger
than the batch bound is cut into parts: every part but the last has `commit_scn[-1] == 0` ("open"), every part
but the first has `continues`; a part holds rows of that one transaction only.
A batch that does not continue replaces the receiver's open transaction: after a break the source sends the
whole transaction again.

A DDL LCR is alone in its batch (`LcrBatch.ddl`): such a batch has one transaction with one row, the DDL LCR, and no
groups, TRUNCATEs or tables. A transaction with other rows is cut into parts at its DDL.

Chain: `previous_scn` is the `through_scn` of the batch before. A receiver accepts a batch only when it equals
the receiver's own position, so a lost batch cannot go unnoticed. `through_scn` promises that every transaction
of this source with `commit_scn <= through_scn` that the rules let through has been sent; a batch without rows
that moves it is a progress mark.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from headrace.lcr.cells import Cells
from headrace.lcr.scn import NO_OBJECT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.lcr.ddl import DdlChange
    from headrace.lcr.scn import ObjectNumber, Scn
    from headrace.lcr.table_name import TableName
    from headrace.lcr.tags import Tag
    from headrace.lcr.tracking import Label
    from headrace.lcr.values import ColumnValues

__all__ = [
    "Column",
    "Command",
    "LcrBatch",
    "OldImage",
    "Partition",
    "RowGroup",
    "TableVersion",
    "Transactions",
    "Truncate",
    "content_version",
]


class Command(IntEnum):
    """A row LCR's command type."""

    INSERT = 1
    UPDATE = 2
    DELETE = 3
    TRUNCATE = 4


class OldImage(IntEnum):
    """The old values that the source logs for a table's UPDATE and DELETE (PostgreSQL: replica identity)."""

    NONE = 0
    KEY = 1  # the key columns; for an UPDATE only when the key changed
    FULL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table version.

    Args:
        name: name in the source's spelling.
        type_name: the source's own type, schema-qualified ("pg_catalog.int4", "public.mood").
        type_number: the source's number for the type; 0: none.
        type_modifier: the source's modifier (length, precision); -1: none.
        is_key: part of what identifies a row in the log.
        is_binary: values are in the database's binary form; False: its text form.
        is_computed: the source computes it from the row's other columns, and nobody writes it there; also True in
            batches of earlier versions that do not know it.
        older_value: SQL of the value of rows that are older than the column, empty: NULL; known only from a source's
            catalog. None: unknown, or rows may differ.
    """

    name: str
    type_name: str
    type_number: int = 0
    type_modifier: int = -1
    is_key: bool = False
    is_binary: bool = False
    is_computed: bool = False
    older_value: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition of a table, in a TRUNCATE of it.

    Args:
        owner, name: the partition's own.
        rows: which rows of the table it holds, as a condition in the source's SQL over the table's columns; empty: not
            known for the time of the TRUNCATE.
    """

    owner: str
    name: str
    rows: str

    @property
    def qualified_name(self) -> str:
        """`owner.name`, for output."""
        return f"{self.owner}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """A table as it was when a change was made.

    Args:
        object_number: the source's number of the table that stores the rows (a partition's own).
        version: hash of everything below; equal content has an equal version across restarts.
        owner: schema of the table that LCRs name (for a partition: of the partitioned table).
        name: that table's name.
        columns: columns in the order of the row's values.
        old_image: old values that UPDATE and DELETE carry.
        partition: only for a table in a `Truncate`: this partition of it is truncated, not the whole table. Owner and
            name remain the table's, so that rules, instantiation, order and errors are the table's.
        root_number: the source's number of the table that LCRs name: for a partition, the partitioned table's; else
            `object_number`. NO_OBJECT: not known, as in batches of earlier versions.
    """

    object_number: ObjectNumber
    version: int
    owner: str
    name: str
    columns: tuple[Column, ...]
    old_image: OldImage
    partition: Partition | None = None
    root_number: ObjectNumber = NO_OBJECT

    def __hash__(self) -> int:
        """Hash the distinguishing parts: each batch has its own version objects, looked up by content."""
        return hash((self.object_number, self.version, self.name))

    @property
    def qualified_name(self) -> str:
        """`owner.name`, for output."""
        return f"{self.owner}.{self.name}"

    @property
    def table_number(self) -> ObjectNumber:
        """Identity of the table, independent of its name: `root_number`, or `object_number` where that is not known."""
        return self.root_number or self.object_number


def changed_table(change: DdlChange, name: TableName | None = None) -> TableVersion:
    """Return the table of a DDL LCR by number and name, as a version without columns.

    Args:
        change: of the DDL LCR.
        name: of the table; None: the one before the change.
    """
    owner, table = change.base_table if name is None else name
    return TableVersion(
        object_number=change.object_number,
        version=0,
        owner=owner,
        name=table,
        columns=(),
        old_image=OldImage.NONE,
        root_number=change.object_number,
    )


def content_version(table: TableVersion) -> int:
    """Hash the content of a table version except its own `version`; 64 bits, equal across restarts."""
    content = json.dumps(
        [
            table.object_number,
            table.owner,
            table.name,
            int(table.old_image),
            [[c.name, c.type_name, c.type_number, c.type_modifier, c.is_key, c.is_binary] for c in table.columns],
            *([table.partition.owner, table.partition.name, table.partition.rows] if table.partition else []),
            *([table.root_number] if table.table_number != table.object_number else []),
            *([computed] if (computed := [c.name for c in table.columns if c.is_computed]) else []),
        ]
    )
    return int.from_bytes(hashlib.blake2b(content.encode("ascii"), digest_size=8).digest(), "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """The rows of one batch with the same table version and command, in source order.

    Args:
        table: index into the batch's `tables`.
        command: INSERT, UPDATE or DELETE.
        row_numbers: int32, shape (n,), ascending; numbers of the rows in the batch.
        old: old values, every column of the table version (ABSENT where not carried); None for INSERT. An UPDATE row
            whose old values are all ABSENT kept its key: find it by the new values.
        new: new values; None for DELETE.
    """

    table: int
    command: Command
    row_numbers: NDArray[np.int32]
    old: ColumnValues | None
    new: ColumnValues | None

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return int(self.row_numbers.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """One TRUNCATE: a separate LCR that takes one row number.

    Args:
        row_number: its place in the batch.
        tables: indexes into the batch's `tables`, in the order in which the source truncated them, including those
            reached by CASCADE.
        cascade: CASCADE was given.
        restart_identity: RESTART IDENTITY was given.
    """

    row_number: int
    tables: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Transactions:
    """The transactions of a batch in commit order; every array has shape (t,) unless said otherwise.

    Args:
        transaction_id: int64.
        order_scn: int64, start of the commit record; ascending.
        commit_scn: int64, end of the commit record; 0 while open (only the last one can be).
        commit_time_us: int64, microseconds since the Unix epoch (UTC) at the source.
        tag: int16, index into the batch's `tags`, -1 for a NULL tag.
        first_row: int32, shape (t + 1,); first row of each transaction, then the row count.
    """

    transaction_id: NDArray[np.int64]
    order_scn: NDArray[np.int64]
    commit_scn: NDArray[np.int64]
    commit_time_us: NDArray[np.int64]
    tag: NDArray[np.int16]
    first_row: NDArray[np.int32]

    def __len__(self) -> int:
        return int(self.transaction_id.shape[0])

    @classmethod
    def none(cls) -> Transactions:
        """Return zero transactions."""
        empty = np.empty(0, np.int64)
        return cls(
            transaction_id=empty,
            order_scn=empty,
            commit_scn=empty,
            commit_time_us=empty,
            tag=np.empty(0, np.int16),
            first_row=np.zeros(1, np.int32),
        )


@dataclass(frozen=True, kw_only=True)
class LcrBatch:
    """LCRs of consecutive transactions of one source; the module docstring explains the parts.

    Args:
        source: name of the source site.
        previous_scn: `through_scn` of the batch before.
        through_scn: everything up to here that passes the rules has been sent, this batch included.
        continues: the first transaction began in an earlier batch.
        first_position: position of the batch's first row within its transaction (0 unless `continues`).
        tables: the table versions to which the groups refer.
        tags: the tags to which `transactions.tag` refers.
        transactions: the transactions, in commit order.
        groups: the rows by table version and command.
        truncates: the TRUNCATEs, ascending by row number.
        labels: tracked transactions of the batch (`headrace.lcr.tracking`); rarely any.
        ddl: the batch's only LCR is this DDL LCR; None: the batch has row LCRs.
    """

    source: str
    previous_scn: Scn
    through_scn: Scn
    continues: bool = False
    first_position: int = 0
    tables: tuple[TableVersion, ...] = ()
    tags: tuple[Tag, ...] = ()
    transactions: Transactions = field(default_factory=Transactions.none)
    groups: tuple[RowGroup, ...] = ()
    truncates: tuple[Truncate, ...] = ()
    labels: tuple[Label, ...] = ()
    ddl: DdlChange | None = None

    @cached_property
    def row_count(self) -> int:
        """LCRs in the batch, TRUNCATEs and a DDL LCR included."""
        return int(self.transactions.first_row[-1])

    @property
    def is_open(self) -> bool:
        """Whether the last transaction continues in the next batch."""
        return len(self.transactions) > 0 and int(self.transactions.commit_scn[-1]) == 0

    @property
    def is_progress_mark(self) -> bool:
        """Whether the batch has a position without data."""
        return len(self.transactions) == 0

    @cached_property
    def cells(self) -> tuple[tuple[Cells | None, Cells | None], ...]:
        """Addresses of the old and the new values of each group's rows; computed when the first row is read."""
        return tuple(
            (None if group.old is None else Cells.of(group.old), None if group.new is None else Cells.of(group.new))
            for group in self.groups
        )

    @cached_property
    def row_places(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Group number and row within the group of every row: two int32 arrays, shape (row_count,).

        A TRUNCATE's place is group -1 and its index in `truncates`; a DDL LCR's is group -1 and 0.
        """
        group = np.full(self.row_count, -1, np.int32)
        within = np.zeros(self.row_count, np.int32)
        for number, rows in enumerate(self.groups):
            group[rows.row_numbers] = number
            within[rows.row_numbers] = np.arange(rows.row_count, dtype=np.int32)
        for number, truncate in enumerate(self.truncates):
            within[truncate.row_number] = number
        return group, within
