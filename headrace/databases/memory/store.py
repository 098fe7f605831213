"""What a database in memory keeps: tables, progress, error queue, locks. See `headrace.databases.memory.destination`."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import BugError, DataError
from headrace.databases.memory.conditions import condition_in_memory
from headrace.databases.ports import (
    ConflictRecord,
    DestinationColumn,
    DestinationTable,
    ErrorEdit,
    ErrorTransaction,
    ForeignKey,
    Instantiation,
    LastChange,
    RowMark,
    ScnRange,
    Write,
)
from headrace.lcr.batch import Column, Command, Partition, TableVersion
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.lcr.values import NULL, ColumnValues
from headrace.rules.conditions.values import ValueTypes

__all__ = [
    "MemoryStore",
    "Row",
    "StoreSession",
    "StoredChange",
    "StoredCommit",
    "StoredError",
    "StoredProcess",
    "StoredServer",
    "StoredTable",
    "compared_columns",
    "destination_column",
    "missing_alter",
    "row_condition",
    "rows_of",
]

Row = tuple[bytes | None, ...]
_COMMITTED = (
    "tables",
    "processes",
    "errors",
    "edits",
    "conflicts",
    "instantiations",
    "recorded",
    "row_marks",
    "changes",
    "kept_times",
    "forgotten_us",
)


def row_condition(stored: StoredTable, partition: Partition | None) -> Callable[[Row], bool]:
    """Make the condition that tells which rows of a table a partition of the source's table holds.

    Args:
        stored: the table here, whose rows the condition is asked about.
        partition: of the source's table, as a TRUNCATE names it; None: all of the table, every row.

    Returns:
        Says of a row, values in the order of the table's columns, whether the partition holds it.

    Raises:
        DataError: the source does not know the partition's rows, or says them by columns that the table does not have
            here.
    """
    if partition is None:
        return lambda row: True  # noqa: ARG005
    try:
        return condition_in_memory(partition.rows, compared_columns(stored))
    except DataError as error:
        raise DataError(
            f"the rows of partition {partition.qualified_name} cannot be told here", sqlstate="42601"
        ) from error


def compared_columns(stored: StoredTable) -> tuple[Column, ...]:
    """The columns of a table as conditions compare them: values are as the log brought them."""
    return tuple(
        Column(name=column.name, type_name=column.type_name, is_binary=True) for column in stored.table.columns
    )


class StoreSession(Protocol):
    """A session as the store knows it: something that can be ended."""

    def close(self) -> None:
        """End it, rolling back."""
        ...


def destination_column(
    name: str,
    type_name: str = "pg_catalog.text",
    *,
    not_null: bool = False,
    has_default: bool = False,
    is_generated: bool = False,
    equality: str = "text",
) -> DestinationColumn:
    """Describe a column for `MemoryStore.create_table`, which gives it its number.

    Args:
        name: of the column.
        type_name: qualified; a source's column of another type does not fit.
        not_null: a write that leaves NULL in it fails.
        has_default: a source's table without this column fits though it is `not_null`; a write puts NULL there all the
            same.
        is_generated: left out of every write; it stays NULL.
        equality: see `DestinationColumn.equality`.
    """
    return DestinationColumn(
        name=name,
        number=0,
        type_name=type_name,
        type_number=0,
        type_modifier=-1,
        not_null=not_null,
        has_default=has_default,
        is_generated=is_generated,
        is_identity_always=False,
        equality=equality,
        is_ordered=type_name != "pg_catalog.json",
        is_number=type_name in {"pg_catalog.int2", "pg_catalog.int4", "pg_catalog.int8"},
    )


@dataclass(slots=True)
class StoredTable:
    """Rows by number; per unique key the number of the row that has it."""

    table: DestinationTable
    rows: dict[int, Row] = field(default_factory=dict)
    unique: tuple[dict[Row, int], ...] = ()
    file: int = 0  # another one when the rows are rewritten
    number: int = 0  # another one when it is dropped and created again

    def __post_init__(self) -> None:
        self.unique = tuple({} for _ in self.table.unique_keys)

    def keys_of(self, row: Row) -> Iterator[tuple[int, Row]]:
        """(unique key, its values) of a row; a key with a NULL is never equal to another."""
        for number, columns in enumerate(self.table.unique_keys):
            key = tuple(row[column] for column in columns)
            if None not in key:
                yield number, key

    def put(self, number: int, row: Row | None) -> Row | None:
        """Set or remove a row, and keep `unique` in step; returns the row that was there, or None.

        Args:
            number: of the row in `rows`.
            row: values in the order of the columns; None: remove it. Its keys must be free: they are not checked here.
        """
        old = self.rows.pop(number, None)
        if old is not None:
            for index, key in self.keys_of(old):
                if self.unique[index].get(key) == number:
                    del self.unique[index][key]
        if row is not None:
            self.rows[number] = row
            for index, key in self.keys_of(row):
                self.unique[index][key] = number
        return old


@dataclass(slots=True)
class StoredProcess:
    """An apply process: epoch and the store's life it began in, progress, newest incarnations and open sessions by server."""

    epoch: int = 0
    life: int = 0
    incarnations: dict[int, int] = field(default_factory=dict)
    low_watermark: Scn = FIRST_SCN
    applied: tuple[ScnRange, ...] = ()
    ahead_scn: Scn = FIRST_SCN
    servers: dict[int, StoredServer] = field(default_factory=dict)
    sessions: dict[int, StoreSession] = field(default_factory=dict)


@dataclass(slots=True)
class StoredServer:
    """An apply server's progress row."""

    sequence: int = 0
    low_watermark: Scn = FIRST_SCN
    applied: tuple[ScnRange, ...] = ()


@dataclass(slots=True)
class StoredError:
    """An error transaction: per part its batch and the hashes of its keys."""

    topology: str
    transaction: ErrorTransaction
    parts: dict[int, tuple[bytes, NDArray[np.uint64]]] = field(default_factory=dict)
    originals: dict[int, bytes] = field(default_factory=dict)  # of parts that were edited


@dataclass(frozen=True, slots=True)
class StoredChange:
    """One row that a session changed, or a table that it emptied.

    Args:
        owner: schema.
        name: of the table in that schema.
        command: what was done.
        old: the row before; None: there was none, or the table was emptied.
        new: the row after; None: there is none.
    """

    owner: str
    name: str
    command: Command
    old: Row | None
    new: Row | None


@dataclass(frozen=True, slots=True)
class StoredCommit:
    """What a session committed: who, under which tag, and the changes in order."""

    topology: str
    apply: str
    tag: bytes
    changes: tuple[StoredChange, ...]
    labels: tuple[str, ...] = ()


class MemoryStore:
    """The database itself: what survives when every session is gone.

    Attributes:
        is_reachable: False: every call raises DatabaseUnavailable, open transactions are lost.
        commit_count: transactions committed by sessions.
        tags: tag of each committed transaction, the last thousand.
        on_commit: called with each commit of a session, before its answer; None: nobody listens.
        on_durable: called with each commit of a session once no crash takes it, in the order of the commits; None:
            nobody listens.
        unflushed: of the last commits, oldest first, what a crash does to each, and what it was.
        sql: what a statement of users' handlers does, by its text: called with the session and the values, returns the
            rows it answers.
        types: how values are put in order, added and shown; None: as bytes.
    """

    def __init__(self, *, clock: Clock | None = None, types: ValueTypes | None = None) -> None:
        self.clock, self.types = clock or SystemClock(), types
        self.is_reachable = True
        self.commit_count = 0
        self.unflushed: deque[tuple[Callable[[], None], StoredCommit]] = deque()
        self.tags: deque[bytes] = deque(maxlen=1000)
        self.on_commit: Callable[[StoredCommit], None] | None = None
        self.on_durable: Callable[[StoredCommit], None] | None = None
        self.tables: dict[tuple[str, str], StoredTable] = {}
        self.sql: dict[str, Callable[[Any, tuple[Any, ...]], Iterable[tuple[Any, ...]]]] = {}
        self.processes: dict[tuple[str, str], StoredProcess] = {}
        self.errors: dict[int, StoredError] = {}
        self.handler_calls: dict[tuple[str, str, int, str], int] = {}
        self.edits: list[tuple[str, ErrorEdit]] = []  # of error transactions: the topology, and what was changed
        # epoch, configuration, state
        self.described: dict[tuple[str, str], tuple[int, dict[str, Any], dict[str, Any]]] = {}
        self.roles: set[str] = set()  # that a session may take
        self.conflicts: dict[int, tuple[str, ConflictRecord]] = {}  # by number: the topology, and what happened
        # by table and key: only of tables with latest_timestamp
        self.changes: dict[tuple[str, str], dict[Row, LastChange]] = {}
        # of deletes by users: by table and key, those whose times are not lost any more
        self.kept_times: set[tuple[tuple[str, str], Row]] = set()
        self.forgotten_us = 0  # what was noted of changes up to then may be forgotten
        self.instantiations: dict[tuple[str, str, str, str], Instantiation] = {}
        # the number of the table that an instantiation was recorded of
        self.recorded: dict[tuple[str, str, str, str], int] = {}
        self.row_marks: dict[tuple[str, str, str, str], RowMark] = {}
        self._tables_made = 0
        self.locks: dict[tuple[Any, ...], object] = {}  # and the transaction that holds each
        self.next_row = 0
        self.next_error = self.next_conflict = 1
        self.lost_answers: deque[bool] = deque()
        self.life = 0
        self._last_epoch = 0

    def end_error(self, number: int, outcome: str) -> None:
        """An error transaction is executed or deleted: it goes, and its edits say what became of it.

        Args:
            number: of the error transaction; nothing happens when it is not there.
            outcome: EXECUTED or DELETED.
        """
        found = self.errors.pop(number, None)
        if found is not None:
            self.edits = [
                (of, replace(edit, outcome=outcome) if of == found.topology and edit.number == number else edit)
                for of, edit in self.edits
            ]

    def next_epoch(self, epoch: int) -> int:
        """An epoch above this one, and above every one that a restore took back."""
        self._last_epoch = max(epoch, self._last_epoch) + 1
        return self._last_epoch

    # ------------------------------------------------------------------ for tests

    def create_table(
        self,
        owner: str,
        name: str,
        columns: Sequence[DestinationColumn],
        *,
        key: Sequence[str] = (),
        unique: Sequence[Sequence[str]] = (),
        references: Sequence[ForeignKey] = (),
    ) -> DestinationTable:
        """Create or replace a table.

        Rows of a table that is replaced are kept, columns that stay by name with their values.

        Args:
            owner: schema.
            name: of the table in that schema.
            columns: in the table's order, made by `destination_column`; a column of the key becomes NOT NULL.
            key: names of the primary key's columns; empty: none, and transactions on the table run one after the other.
            unique: column names of each further unique key.
            references: foreign keys, to tables that are there or to itself; they are described, not enforced.
        """
        self.flush()
        names = [column.name for column in columns]
        key_positions = tuple(names.index(column) for column in key)
        unique_keys = ((key_positions,) if key else ()) + tuple(tuple(names.index(c) for c in u) for u in unique)
        settled = tuple(replace(c, number=p, not_null=c.not_null or p in key_positions) for p, c in enumerate(columns))
        before = self.tables.get((owner, name))
        if before is None:
            self._tables_made += 1
        number = self._tables_made if before is None else before.number
        table = DestinationTable(
            number=number,
            owner=owner,
            name=name,
            columns=settled,
            key=key_positions,
            unique_keys=unique_keys,
            serialise=not key,
            ordered=len(unique_keys) > 1,
            references=tuple(references),
            referred=self._referred(owner, name),
        )
        made = self.tables[owner, name] = StoredTable(table, number=number)
        if before is not None:
            place = {column.name: p for p, column in enumerate(before.table.columns)}
            for number, row in before.rows.items():
                made.put(number, tuple(row[place[n]] if n in place else None for n in names))
        for foreign in references:
            other = self.tables[foreign.owner, foreign.name]
            other.table = replace(other.table, referred=self._referred(foreign.owner, foreign.name))
        return self.tables[owner, name].table

    def _referred(self, owner: str, name: str) -> tuple[tuple[str, ...], ...]:
        found = (
            key
            for each in self.tables.values()
            for key in each.table.references
            if (key.owner, key.name) == (owner, name)
        )
        return tuple(dict.fromkeys(tuple(sorted(key.referred_columns)) for key in found))

    def drop_table(self, owner: str, name: str) -> None:
        """Drop a table that exists, with its rows.

        Args:
            owner: schema.
            name: of the table in that schema.
        """
        self.flush()
        del self.tables[owner, name]

    def insert(self, owner: str, name: str, rows: Iterable[Row]) -> None:
        """Put rows into a table, as a user would; nothing is checked.

        Args:
            owner: schema.
            name: of the table in that schema.
            rows: the bytes of each value, in the order of the columns; None: NULL.
        """
        self.flush()
        table = self.tables[owner, name]
        for row in rows:
            self.next_row += 1
            table.put(self.next_row, row)

    def changed_here(self, owner: str, name: str, key: Row, time_us: int, *, is_gone: bool = False) -> None:
        """Note what a user did to a row: the real one has its commit's time, and a trigger that notes deletes.

        Args:
            owner: schema.
            name: of the table in that schema.
            key: the row's, before a delete, or after any other change.
            time_us: when it was committed, microseconds since the epoch.
            is_gone: it was deleted, or has another key now.
        """
        found = LastChange(noted_us=time_us, is_gone=True) if is_gone else LastChange(own_us=time_us)
        self.changes.setdefault((owner, name), {})[key] = found
        self.kept_times.discard(((owner, name), key))

    def lose_times(self, time_us: int) -> None:
        """Lose the times of what users did, as a server does that freezes rows.

        It is only known to be no later than a moment.

        Args:
            time_us: that moment, microseconds since the epoch.
        """
        for table, known in self.changes.items():
            for key, found in known.items():
                is_own_delete = (
                    found.noted_us is not None and not found.noted_source and (table, key) not in self.kept_times
                )
                if found.own_us is not None or is_own_delete:
                    known[key] = LastChange(is_gone=found.is_gone, lost_us=time_us)

    def rows(self, owner: str, name: str) -> list[Row]:
        """The rows, sorted; with what open transactions have written.

        Args:
            owner: schema.
            name: of the table in that schema.
        """
        return sorted(self.tables[owner, name].rows.values(), key=lambda row: [(v is not None, v or b"") for v in row])

    def backup(self) -> Callable[[], None]:
        """Copy what is committed; the answer brings it back, as a crash that loses commits or a restore does."""
        if self.locks:
            raise BugError("a copy now would hold what open transactions have written")
        self.flush()
        processes = {key: replace(process, sessions={}) for key, process in self.processes.items()}
        kept = copy.deepcopy({name: getattr(self, name) for name in _COMMITTED} | {"processes": processes})

        def restore() -> None:
            self.end_life()
            self.unflushed.clear()
            for name, value in copy.deepcopy(kept).items():
                setattr(self, name, value)

        return restore

    def flush(self, count: int | None = None) -> None:
        """Make commits durable, oldest first; a commit that waits for the disk makes all before it so.

        Args:
            count: so many at most; None: all.
        """
        for _ in range(len(self.unflushed) if count is None else min(count, len(self.unflushed))):
            self.is_durable(self.unflushed.popleft()[1])

    def is_durable(self, commit: StoredCommit) -> None:
        """Tell `on_durable`: no crash takes this commit, nor one before it."""
        if self.on_durable is not None:
            self.on_durable(commit)

    def crash(self) -> int:
        """The server dies and starts again: open transactions, and commits that are not flushed, are gone.

        Returns how many of these.
        """
        self.end_life()
        lost = len(self.unflushed)
        while self.unflushed:
            self.unflushed.pop()[0]()
        return lost

    def end_life(self) -> None:
        """As the server's end and its next start: no session survives, and no epoch."""
        for process in self.processes.values():
            for session in list(process.sessions.values()):
                session.close()
        self.life += 1

    def lose_next_commit_answer(self, *, committed: bool) -> None:
        """The next COMMIT's answer is lost, and its session with it; whether it was made before that."""
        self.lost_answers.append(committed)


def rows_of(values: ColumnValues, columns: Sequence[int], write: Write) -> Iterator[Row]:
    """The values of these columns, row by row.

    Args:
        values: of `write`, old or new ones.
        columns: positions in the write's version.
        write: whose values they are, for messages.
    """
    found: list[list[bytes | None]] = []
    for column in columns:
        lengths, offsets = values.lengths[column], values.offsets(column)
        if (lengths < NULL).any():
            raise BugError(f"a write to {write.version.qualified_name} uses a value that is not in the LCR")
        found.append(
            [
                values.data[offset : offset + length].tobytes() if length >= 0 else None
                for length, offset in zip(lengths.tolist(), offsets.tolist(), strict=True)
            ]
        )
    if not found:
        return iter([()] * values.row_count)
    return iter(list(zip(*found, strict=True)))


def missing_alter(version: TableVersion, table: DestinationTable | None) -> str:
    """See `DestinationSession.missing_alter`; `table` None: it does not exist."""
    if table is None:
        return f"CREATE TABLE {version.qualified_name} (...);"
    alter = f"ALTER TABLE {version.qualified_name}"
    there = {column.name: column for column in table.columns}
    missing = []
    for column in version.columns:
        found = there.pop(column.name, None)
        if found is None:
            missing.append(f"{alter} ADD COLUMN {column.name} {column.type_name};")
        elif found.is_generated:
            if not column.is_computed:
                missing.append(f"{alter} ALTER COLUMN {column.name} DROP EXPRESSION;")
        elif found.type_name != column.type_name:
            missing.append(f"{alter} ALTER COLUMN {column.name} TYPE {column.type_name};")
    missing += [
        f"{alter} ALTER COLUMN {column.name} DROP NOT NULL;"
        for column in there.values()
        if column.not_null and not column.has_default and not column.is_generated
    ]
    return "\n".join(missing)
