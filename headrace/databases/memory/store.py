"""State of an in-memory destination: tables, progress, error queue, locks (`headrace.databases.memory.destination`)."""

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
    DdlOutcome,
    DdlOutcomeKind,
    DdlPlace,
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
from headrace.lcr.table_name import TableName
from headrace.lcr.values import NULL, ColumnValues
from headrace.rules.conditions.values import ValueTypes

__all__ = [
    "MemoryStore",
    "Row",
    "StoreSession",
    "StoredChange",
    "StoredCommit",
    "StoredDdl",
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
    "ddl_history",
    "ddl_skips",
)


def row_condition(stored: StoredTable, partition: Partition | None) -> Callable[[Row], bool]:
    """Compile the predicate that says which rows of a table a partition of the source's table holds.

    Args:
        stored: the table here that the predicate is for.
        partition: of the source's table, as a TRUNCATE names it; None: the whole table, every row.

    Returns:
        A function of a row's values, in the order of the table's columns: whether the partition holds the row.

    Raises:
        DataError: the source does not know the partition's rows, or describes them by columns that the table does not
            have here.
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
    """Return a table's columns as conditions compare them: values are as the log brought them."""
    return tuple(
        Column(name=column.name, type_name=column.type_name, is_binary=True) for column in stored.table.columns
    )


class StoreSession(Protocol):
    """A session as the store knows it: it can be closed."""

    def close(self) -> None:
        """End the session, rolling back."""
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
    """Describe a column for `MemoryStore.create_table`, which assigns its number.

    Args:
        name: of the column.
        type_name: qualified; a source's column of another type does not fit.
        not_null: a write of NULL fails.
        has_default: a source's table without this column fits even if it is `not_null`; a write still puts NULL there.
        is_generated: every write omits it; it stays NULL.
        equality: as `DestinationColumn.equality`.
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
    """Rows by number; for each unique key, the number of the row that has it."""

    table: DestinationTable
    rows: dict[int, Row] = field(default_factory=dict)
    unique: tuple[dict[Row, int], ...] = ()
    file: int = 0  # changes when the rows are rewritten
    number: int = 0  # changes when it is dropped and created again

    def __post_init__(self) -> None:
        self.unique = tuple({} for _ in self.table.unique_keys)

    def keys_of(self, row: Row) -> Iterator[tuple[int, Row]]:
        """Yield (unique key, its values) of a row; a key with a NULL never equals another."""
        for number, columns in enumerate(self.table.unique_keys):
            key = tuple(row[column] for column in columns)
            if None not in key:
                yield number, key

    def put(self, number: int, row: Row | None) -> Row | None:
        """Set or remove a row, keeping `unique` in step; returns the previous row, or None.

        Args:
            number: of the row in `rows`.
            row: values in the order of the columns; None: remove it. The caller has checked that its keys are free.
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
    """An apply process: its epoch and the store's life in which that began, its progress, and its sessions.

    Newest incarnations and open sessions are by server.
    """

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
    """An error transaction: its batch and key hashes per part."""

    topology: str
    transaction: ErrorTransaction
    parts: dict[int, tuple[bytes, NDArray[np.uint64]]] = field(default_factory=dict)
    originals: dict[int, bytes] = field(default_factory=dict)  # of parts that were edited


@dataclass(frozen=True, slots=True)
class StoredChange:
    """One row that a session changed, or a table that it emptied.

    Args:
        owner: schema.
        name: the table.
        command: the operation.
        old: the row before; None: no row existed, or the table was emptied.
        new: the row after; None: no row remains.
    """

    owner: str
    name: str
    command: Command
    old: Row | None
    new: Row | None


@dataclass(frozen=True, slots=True)
class StoredDdl:
    """What became of a DDL change: its apply process, table, place in the source's log and outcome."""

    topology: str
    apply: str
    table: TableName
    place: DdlPlace
    outcome: DdlOutcome


@dataclass(frozen=True, slots=True)
class StoredCommit:
    """A commit of a session: its apply process, tag, and changes in order."""

    topology: str
    apply: str
    tag: bytes
    changes: tuple[StoredChange, ...]
    labels: tuple[str, ...] = ()


class MemoryStore:
    """The database itself: the state that outlives all sessions.

    Attributes: is_reachable: False: every call raises DatabaseUnavailable, open transactions are lost. commit_count:
    transactions committed by sessions. tags: tag of each committed transaction, the last thousand. on_commit: called
    with each commit of a session, before its answer; None: no listener. on_durable: called with each commit of a
    session when no crash can lose it any longer, in commit order; None: no listener. unflushed: the last commits,
    oldest first: what a crash does to each, and the commit. sql: effect of each statement of users' handlers, by its
    text: called with the session and the values, returns the resulting rows. types: how values are ordered, added and
    shown; None: as bytes.
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
        self.leaving: dict[tuple[str, str], StoredTable] = {}  # dropped in transactions that are not committed
        self.sql: dict[str, Callable[[Any, tuple[Any, ...]], Iterable[tuple[Any, ...]]]] = {}
        self.processes: dict[tuple[str, str], StoredProcess] = {}
        self.errors: dict[int, StoredError] = {}
        self.handler_calls: dict[tuple[str, str, int, str], int] = {}
        self.edits: list[tuple[str, ErrorEdit]] = []  # of error transactions: the topology and the edit
        # epoch, configuration, state
        self.described: dict[tuple[str, str], tuple[int, dict[str, Any], dict[str, Any]]] = {}
        self.roles: set[str] = set()  # that a session may take
        self.conflicts: dict[int, tuple[str, ConflictRecord]] = {}  # by number: the topology and the conflict
        # By table and key; only for tables with latest_timestamp.
        self.changes: dict[tuple[str, str], dict[Row, LastChange]] = {}
        # Users' deletes, by table and key, whose times can no longer get lost.
        self.kept_times: set[tuple[tuple[str, str], Row]] = set()
        self.forgotten_us = 0  # notes of changes up to this time may be forgotten
        self.instantiations: dict[tuple[str, str, str, str], Instantiation] = {}
        # number of the table for which each instantiation was recorded
        self.recorded: dict[tuple[str, str, str, str], int] = {}
        self.row_marks: dict[tuple[str, str, str, str], RowMark] = {}
        self.ddl_history: list[StoredDdl] = []
        self.ddl_skips: set[tuple[str, str, int, int]] = set()  # topology, apply process, order SCN, position
        self._tables_made = 0
        self.locks: dict[tuple[Any, ...], object] = {}  # with the transaction that holds each
        self.next_row = 0
        self.next_error = self.next_conflict = 1
        self.lost_answers: deque[bool] = deque()
        self.life = 0
        self._last_epoch = 0

    def end_error(self, number: int, outcome: str) -> None:
        """Remove an executed or deleted error transaction, and set the outcome of its edits.

        Args:
            number: of the error transaction; a missing one is ignored.
            outcome: EXECUTED or DELETED.
        """
        found = self.errors.pop(number, None)
        if found is not None:
            self.edits = [
                (of, replace(edit, outcome=outcome) if of == found.topology and edit.number == number else edit)
                for of, edit in self.edits
            ]

    def record_ddl(self, made: StoredDdl) -> None:
        """Record what became of a DDL change; it replaces the record that the change was not applied."""
        of = (made.topology, made.apply, made.place)
        self.ddl_history = [
            each
            for each in self.ddl_history
            if (each.topology, each.apply, each.place) != of or each.outcome.kind is not DdlOutcomeKind.NOT_APPLIED
        ]
        self.ddl_history.append(made)

    def put_record(self, key: tuple[str, str, str, str], made: tuple[Instantiation, int] | None) -> None:
        """Write an instantiation record with the number of its table, or remove it with the mark of its rows."""
        if made is None:
            self.instantiations.pop(key, None)
            self.recorded.pop(key, None)
            self.row_marks.pop(key, None)
        else:
            self.instantiations[key], self.recorded[key] = made

    def add_table(self, owner: str, name: str) -> StoredTable:
        """Add a table without columns, as a session does in its transaction."""
        self._tables_made += 1
        table = DestinationTable(
            number=self._tables_made,
            owner=owner,
            name=name,
            columns=(),
            key=(),
            unique_keys=(),
            serialise=True,
            ordered=False,
            referred=self._referred(owner, name),
        )
        made = self.tables[owner, name] = StoredTable(table, number=self._tables_made)
        return made

    def next_epoch(self, epoch: int) -> int:
        """Return an epoch above this one, and above every one that a restore reverted."""
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

        Rows of a replaced table are kept, with the values of columns whose names remain.

        Args:
            owner: schema.
            name: the table.
            columns: in the table's order, made by `destination_column`; a column of the key becomes NOT NULL.
            key: names of the primary key's columns; empty: none, and transactions on the table run one after another.
            unique: column names of each additional unique key.
            references: foreign keys, to existing tables or to itself; they are described, not enforced.
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
            name: the table.
        """
        self.flush()
        del self.tables[owner, name]

    def insert(self, owner: str, name: str, rows: Iterable[Row]) -> None:
        """Insert rows into a table as a user would, without checks.

        Args:
            owner: schema.
            name: the table.
            rows: the bytes of each value, in the order of the columns; None: NULL.
        """
        self.flush()
        table = self.tables[owner, name]
        for row in rows:
            self.next_row += 1
            table.put(self.next_row, row)

    def changed_here(self, owner: str, name: str, key: Row, time_us: int, *, is_gone: bool = False) -> None:
        """Record a user's change of a row: the real database has its commit time, and a trigger that notes deletes.

        Args:
            owner: schema.
            name: the table.
            key: the row's, before a delete, or after any other change.
            time_us: commit time, microseconds since the epoch.
            is_gone: the row was deleted, or has another key now.
        """
        found = LastChange(noted_us=time_us, is_gone=True) if is_gone else LastChange(own_us=time_us)
        self.changes.setdefault((owner, name), {})[key] = found
        self.kept_times.discard(((owner, name), key))

    def lose_times(self, time_us: int) -> None:
        """Lose the times of users' changes, as a server does that freezes rows.

        They are then only known to be no later than a given time.

        Args:
            time_us: that time, microseconds since the epoch.
        """
        for table, known in self.changes.items():
            for key, found in known.items():
                is_own_delete = (
                    found.noted_us is not None and not found.noted_source and (table, key) not in self.kept_times
                )
                if found.own_us is not None or is_own_delete:
                    known[key] = LastChange(is_gone=found.is_gone, lost_us=time_us)

    def rows(self, owner: str, name: str) -> list[Row]:
        """Return the rows, sorted, including uncommitted writes.

        Args:
            owner: schema.
            name: the table.
        """
        return sorted(self.tables[owner, name].rows.values(), key=lambda row: [(v is not None, v or b"") for v in row])

    def backup(self) -> Callable[[], None]:
        """Copy the committed state; the returned function restores it, like a restore or a crash that loses commits."""
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
        """Make commits durable, oldest first; a commit that waits for the disk also flushes all earlier ones.

        Args:
            count: largest number to flush; None: all.
        """
        for _ in range(len(self.unflushed) if count is None else min(count, len(self.unflushed))):
            self.is_durable(self.unflushed.popleft()[1])

    def is_durable(self, commit: StoredCommit) -> None:
        """Report to `on_durable` that no crash can lose this commit, nor an earlier one."""
        if self.on_durable is not None:
            self.on_durable(commit)

    def crash(self) -> int:
        """Crash and restart the server: open transactions and unflushed commits are lost.

        Returns the number of lost commits.
        """
        self.end_life()
        lost = len(self.unflushed)
        while self.unflushed:
            self.unflushed.pop()[0]()
        return lost

    def end_life(self) -> None:
        """End the server's life and start the next: no session and no epoch survives."""
        for process in self.processes.values():
            for session in list(process.sessions.values()):
                session.close()
        self.life += 1

    def lose_next_commit_answer(self, *, committed: bool) -> None:
        """Lose the next COMMIT's answer together with its session; `committed`: the commit itself is made before that."""
        self.lost_answers.append(committed)


def rows_of(values: ColumnValues, columns: Sequence[int], write: Write) -> Iterator[Row]:
    """Yield the values of these columns, row by row.

    Args:
        values: of `write`, old or new ones.
        columns: positions in the write's version.
        write: owner of the values, for messages.
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
    """See `DestinationSession.missing_alter`; `table` None: the table does not exist."""
    if table is None:
        columns = ", ".join(f"{column.name} {column.type_name}" for column in version.columns)
        return f"CREATE TABLE {version.qualified_name} ({columns});"
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
