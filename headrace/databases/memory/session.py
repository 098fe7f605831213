"""One apply server's session at an in-memory database.

Objects, each with its own part of the state
    OpenTransaction       the open transaction's undo actions, its actions at COMMIT, its savepoints and locks
    MemoryRows            finds and changes rows
    _Progress             the server's progress, and whether this session still owns it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import BugError, DatabaseError, DatabaseUnavailable, DataError, FencedError, UnfitTableError
from headrace.databases.memory.copying import unpacked
from headrace.databases.memory.rows import MemoryRows, misfit, seen
from headrace.databases.memory.store import (
    MemoryStore,
    Row,
    StoredCommit,
    StoredError,
    StoredProcess,
    StoredServer,
)
from headrace.databases.memory.table_changes import change_table
from headrace.databases.memory.transaction import OpenTransaction
from headrace.databases.ports import (
    ConflictRecord,
    DdlOutcome,
    DdlPlace,
    DestinationTable,
    ErrorTransaction,
    HandlerSql,
    LastChange,
    RowInTheWay,
    RowQuestion,
    ScnRange,
    SqlResult,
    TakenErrors,
    TruncatedTable,
    Write,
)
from headrace.databases.progress import covers, merge_ranges
from headrace.databases.written_ahead import WrittenAhead
from headrace.lcr.batch import TableVersion
from headrace.lcr.ddl import DdlChange
from headrace.lcr.lcr_value import LcrValue
from headrace.lcr.scn import Scn
from headrace.rules.table_settings import NO_TABLE_SETTINGS, TableSettings

__all__ = ["MemorySession"]


class _Progress:
    """One session's access to its server's progress."""

    def __init__(self, process: StoredProcess, apply: str, number: int, epoch: int) -> None:
        self._process, self._apply, self._number, self._epoch = process, apply, number, epoch
        self._server = process.servers.setdefault(number, StoredServer())
        self._server.sequence += 1
        self._sequence = self._server.sequence

    def require_owned(self) -> None:
        """Raise FencedError if another session of the server, or a newer epoch, exists."""
        is_owner = self._process.servers.get(self._number) is self._server and self._server.sequence == self._sequence
        if self._process.epoch != self._epoch or not is_owner:
            raise FencedError(f"apply server {self._number} does not own its progress any more", apply=self._apply)

    def advance(self, applied: Sequence[ScnRange], low_watermark: Scn) -> Callable[[], None]:
        """Record what a commit applied; returns the function that reverts this, as a crash does."""
        server, before = self._server, (self._server.low_watermark, self._server.applied)
        server.low_watermark = Scn(max(server.low_watermark, low_watermark))
        server.applied = merge_ranges([*server.applied, *applied], server.low_watermark)
        server.sequence += 1
        self._sequence = server.sequence

        def take_back() -> None:
            server.low_watermark, server.applied = before

        return take_back

    def has_recorded(self, applied: Sequence[ScnRange]) -> bool:
        """See `DestinationSession.ask_outcome`."""
        if not applied:
            raise BugError("a commit that recorded nothing has no outcome to ask for")
        return all(covers(self._server.low_watermark, self._server.applied, wanted) for wanted in applied)


class MemorySession:
    """An in-memory `headrace.databases.ports.DestinationSession`.

    More than 25 methods: one per method of the port; most delegate to one of the objects above.
    """

    def __init__(
        self,
        store: MemoryStore,
        process: StoredProcess,
        identity: tuple[str, str, int, int],
        tag: bytes,
        settings: TableSettings = NO_TABLE_SETTINGS,
        *,
        is_lazy: bool = False,
    ) -> None:
        self._store, self._process, self._settings = store, process, settings
        self._topology, self._apply, self._number, epoch = identity
        self._tag, self._is_lazy = tag, is_lazy
        self._progress = _Progress(process, self._apply, self._number, epoch)
        self._transaction = OpenTransaction(store)
        self._rows = MemoryRows(store, self._transaction, settings)
        self._ahead = WrittenAhead()
        self._is_closed = False

    # ------------------------------------------------------------------ tables

    def describe(self, owner: str, name: str, *, fresh: bool = False) -> DestinationTable | None:
        """See `DestinationSession.describe`; nothing is cached here."""
        self._live()
        found = self._store.tables.get((owner, name))
        return seen(found, self._settings) if found else None

    def missing_alter(self, version: TableVersion) -> str:
        """See `DestinationSession.missing_alter`."""
        return misfit(version, self.describe(version.owner, version.name), self._settings)

    # ------------------------------------------------------------------ transactions

    def begin(self) -> None:
        """See `DestinationSession.begin`."""
        self._live()
        self._transaction.begin()

    def savepoint(self) -> None:
        """See `DestinationSession.savepoint`."""
        self._in_transaction()
        self._transaction.savepoint()

    def rollback_to_savepoint(self) -> None:
        """See `DestinationSession.rollback_to_savepoint`."""
        self._ahead.forget()
        self._live()
        self._transaction.rollback_to_savepoint()

    def mark(self) -> int:
        """See `DestinationSession.mark`."""
        self._in_transaction()
        return self._transaction.mark()

    def undo_to_mark(self, mark: int) -> None:
        """See `DestinationSession.undo_to_mark`."""
        self._ahead.forget()
        self._live()
        self._transaction.undo_to_mark(mark)

    def drop_mark(self, mark: int) -> None:
        """See `DestinationSession.drop_mark`."""
        self._in_transaction()
        self._transaction.drop_mark(mark)

    def rollback(self) -> None:
        """See `DestinationSession.rollback`."""
        self._ahead.forget()
        self._transaction.rollback()

    def commit(self, applied: Sequence[ScnRange], low_watermark: Scn, labels: Sequence[str] = ()) -> None:
        """See `DestinationSession.commit`."""
        self._in_transaction()
        store, transaction = self._store, self._transaction
        lost = store.lost_answers.popleft() if store.lost_answers else None
        if lost is False:
            self.close()
            raise DatabaseUnavailable("the connection broke before COMMIT")
        try:
            self._progress.require_owned()
        except FencedError:
            transaction.fail()
            raise
        transaction.run_at_commit()
        waits_for_disk = not self._is_lazy or not transaction.is_rows_alone
        undo_rows, undo_progress = transaction.taken_back(), self._progress.advance(applied, low_watermark)

        def take_back() -> None:
            undo_rows()
            undo_progress()

        store.commit_count += 1
        store.tags.append(self._tag)
        commit = StoredCommit(self._topology, self._apply, self._tag, transaction.changes, tuple(labels))
        transaction.end()
        if store.on_commit is not None:
            store.on_commit(commit)
        if waits_for_disk:
            store.flush()
            store.is_durable(commit)
        else:
            store.unflushed.append((take_back, commit))
        if lost:
            self.close()
            raise DatabaseUnavailable("the connection broke after COMMIT")

    def ask_outcome(self, applied: Sequence[ScnRange]) -> bool:
        """See `DestinationSession.ask_outcome`."""
        self._live()
        return self._progress.has_recorded(applied)

    # ------------------------------------------------------------------ writing

    def write(self, writes: Sequence[Write]) -> tuple[int, ...]:
        """See `DestinationSession.write`."""
        self._in_transaction()
        try:
            return tuple(self._rows.write(write) for write in writes)
        except (DatabaseError, UnfitTableError):
            self._transaction.fail()
            raise

    def write_ahead(self, writes: Sequence[Write]) -> Callable[[], tuple[int, ...]]:
        """See `DestinationSession.write_ahead`: the writes run when their answer is read."""
        self._in_transaction()
        return self._ahead.expect(lambda: self.write(writes))

    def truncate(self, tables: Sequence[TruncatedTable], *, restart_identity: bool) -> None:
        """See `DestinationSession.truncate`; foreign keys, sequences and partitions do not exist here."""
        self._in_transaction()
        self._rows.truncate(tables)

    def put_row(self, owner: str, name: str, row: Row, *, instead_of: int | None = None) -> None:
        """Insert a row, or replace one, inside the transaction: for `MemoryStore.sql`.

        Args:
            owner: schema of the table.
            name: of the table in that schema.
            row: its values in the table's order.
            instead_of: number of the row (`StoredTable.rows`) to replace.
        """
        self._rows.put(self._store.tables[owner, name], row, instead_of=instead_of)

    def remove_row(self, table: DestinationTable, number: str) -> None:
        """See `DestinationSession.remove_row`."""
        self._in_transaction()
        self._rows.remove(self._store.tables[table.owner, table.name], int(number))

    def change_table(self, change: DdlChange, place: DdlPlace, *, is_in_order: bool = True) -> DdlOutcome:
        """See `DestinationSession.change_table`."""
        self._in_transaction()
        try:
            process = (self._topology, self._apply)
            return change_table(self._store, self._transaction, process, change, place, is_in_order=is_in_order)
        except DatabaseError:
            self._transaction.fail()
            raise

    # ------------------------------------------------------------------ copies

    def copy_rows(self, owner: str, name: str, columns: Sequence[str], rows: Iterable[bytes], *, form: str) -> int:
        """See `headrace.databases.ports.copying.TableWriter.copy_rows`."""
        self._live()
        found = self._store.tables.get((owner, name))
        if found is None:
            raise DatabaseError(f"there is no table {owner}.{name}")
        names = [column.name for column in found.table.columns]
        places = [names.index(column) for column in columns]
        count = 0
        self.begin()
        try:
            for values in (values for block in rows for values in unpacked(block)):
                row: list[bytes | None] = [None] * len(names)
                for place, value in zip(places, values, strict=True):
                    row[place] = value
                self._rows.put(found, tuple(row))
                count += 1
            self.commit([], Scn(0))
        except BaseException:
            self.rollback()
            raise
        return count

    def has_rows(self, table: DestinationTable) -> bool:
        """See `headrace.databases.ports.copying.TableWriter.has_rows`."""
        self._live()
        return bool(self._store.tables[table.owner, table.name].rows)

    def empty_tables(self, tables: Sequence[DestinationTable]) -> None:
        """See `headrace.databases.ports.copying.TableWriter.empty_tables`."""
        self.begin()
        self.truncate([TruncatedTable(table=table) for table in tables], restart_identity=False)
        self.commit([], Scn(0))

    def empty_marked(self, table: DestinationTable) -> str:
        """See `headrace.databases.ports.copying.TableWriter.empty_marked`."""
        self.empty_tables([table])
        return self.files_mark(table)

    def files_mark(self, table: DestinationTable) -> str:
        """See `headrace.databases.ports.copying.TableWriter.files_mark`."""
        self._live()
        return ""

    # ------------------------------------------------------------------ conflicts and times

    def find_rows(self, write: Write, question: RowQuestion) -> tuple[RowInTheWay, ...]:
        """See `DestinationSession.find_rows`."""
        self._in_transaction()
        return self._rows.find(write, question)

    def conflicting(self, write: Write) -> NDArray[np.int64] | None:
        """See `DestinationSession.conflicting`."""
        self._in_transaction()
        return self._rows.conflicting(write)

    def last_changes(self, write: Write) -> tuple[LastChange, ...]:
        """See `DestinationSession.last_changes`."""
        self._in_transaction()
        return self._rows.last_changes(write)

    def sample_times(self, *, age_s: float, every_s: float) -> None:
        """See `DestinationSession.sample_times`: `MemoryStore.lose_times` states the latest lost time itself."""
        self._live()

    def forget_changes(self, *, age_s: float, count: int) -> int:
        """See `DestinationSession.forget_changes`."""
        self._live()
        store, oldest = self._store, self._store.clock.time_us() - int(age_s * 1e6)
        noted = sorted(
            (each.noted_us or each.own_us or each.lost_us, table, key)
            for table, keys in store.changes.items()
            for key, each in keys.items()
        )
        gone = [each for place, each in enumerate(noted) if each[0] < oldest or place < len(noted) - count]
        for time_us, table, key in gone:
            del store.changes[table][key]
            store.forgotten_us = max(store.forgotten_us, time_us)
        store.kept_times.update((table, key) for table, keys in store.changes.items() for key in keys)
        return len(gone)

    def record_conflicts(self, records: Sequence[ConflictRecord], *, count_max: int, age_max_s: float) -> None:
        """See `DestinationSession.record_conflicts`."""
        self._in_transaction()
        store, records = self._store, tuple(records)

        def record() -> None:
            for each in records:
                store.conflicts[store.next_conflict] = (
                    self._topology,
                    replace(each, number=store.next_conflict, resolved_us=store.clock.time_us()),
                )
                store.next_conflict += 1
            oldest = store.clock.time_us() - age_max_s * 1e6
            for number in [
                n
                for n, (_, kept) in store.conflicts.items()
                if n < store.next_conflict - count_max or kept.resolved_us < oldest
            ]:
                del store.conflicts[number]

        self._transaction.do_at_commit(record)

    # ------------------------------------------------------------------ SQL of users

    def run_sql(self, statements: Sequence[HandlerSql], *, timeout_s: float) -> tuple[SqlResult, ...]:
        """See `DestinationSession.run_sql`. `MemoryStore.sql` defines what each text does."""
        self._in_transaction()
        results = []
        for statement in statements:
            answer = self._store.sql.get(" ".join(statement.sql.split()))
            if answer is None:
                self._transaction.fail()
                raise DataError(
                    f"the database in memory does not know the statement {statement.sql!r}",
                    sqlstate="42601",
                    hint="define its result: destination.on(sql, answer)",
                )
            try:
                values = (value.decoded if isinstance(value, LcrValue) else value for value in statement.values)
                rows = tuple(answer(self, tuple(values)))
            except (DatabaseError, UnfitTableError):
                self._transaction.fail()
                raise
            # A statement without RETURNING changes rows and returns none.
            results.append(SqlResult(rows=tuple(row for row in rows if row), row_count=len(rows)))
        return tuple(results)

    def as_role(self, role: str) -> None:
        """See `DestinationSession.as_role`; every role has every right here."""
        self._in_transaction()
        if role and role not in self._store.roles:
            self._transaction.fail()
            raise DataError(f"role {role!r} does not exist", sqlstate="22023")

    # ------------------------------------------------------------------ error queue

    def put_error(
        self,
        transaction: ErrorTransaction,
        batch: bytes,
        key_hashes: NDArray[np.uint64],
        *,
        part: int,
        readable: Sequence[str] = (),
    ) -> int:
        """See `DestinationSession.put_error`."""
        self._in_transaction()
        store = self._store
        number = transaction.number
        if number == 0:
            number = store.next_error
            store.next_error += 1
        described = replace(
            transaction,
            number=number,
            readable=tuple(readable) or transaction.readable,
            created_us=store.clock.time_us(),
        )

        def put() -> None:
            if part == 0:
                store.errors[number] = StoredError(self._topology, described)
            else:
                first = store.errors[number].transaction
                store.errors[number].transaction = replace(
                    first,
                    row_count=first.row_count + described.row_count,
                    commit_scn=max(first.commit_scn, described.commit_scn),
                    commit_time_us=max(first.commit_time_us, described.commit_time_us),
                )
            store.errors[number].parts[part] = (batch, np.array(key_hashes, np.uint64))

        self._transaction.do_at_commit(put)
        return number

    def delete_error(self, number: int) -> bool:
        """See `DestinationSession.delete_error`."""
        self._in_transaction()
        error = self._store.errors.get(number)
        if error is None or error.topology != self._topology or number in self._transaction.deleted_errors:
            return False
        self._transaction.deleted_errors.add(number)
        self._transaction.do_at_commit(lambda: self._store.end_error(number, "EXECUTED"))
        return True

    def take_errors(self, numbers: Sequence[int], *, bytes_max: int) -> TakenErrors:
        """See `DestinationSession.take_errors`."""
        batches: dict[int, tuple[bytes, ...]] = {}
        size = 0
        for count, number in enumerate(numbers):
            error = self._store.errors.get(number)
            mine = () if error is None else tuple(batch for _, (batch, _) in sorted(error.parts.items()))
            size += sum(map(len, mine))
            if size > bytes_max:
                return TakenErrors(count=count, batches=batches)
            if self.delete_error(number):
                batches[number] = mine
        return TakenErrors(count=len(numbers), batches=batches)

    # ------------------------------------------------------------------ life

    @property
    def is_closed(self) -> bool:
        """See `DestinationSession.is_closed`."""
        return self._is_closed

    def close(self) -> None:
        """See `DestinationSession.close`."""
        if self._is_closed:
            return
        self.rollback()
        self._is_closed = True
        if self._process.sessions.get(self._number) is self:
            del self._process.sessions[self._number]

    def _live(self) -> None:
        if not self._store.is_reachable:
            self.close()
        if self._is_closed:
            raise DatabaseUnavailable("the session at the destination is closed: open a new one")
        self._ahead.settle()

    def _in_transaction(self) -> None:
        self._live()
        self._transaction.require_open()
