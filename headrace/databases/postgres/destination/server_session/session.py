"""One apply server's session at a PostgreSQL destination.

Job
    Write sets of row changes and their progress in one transaction, tagged and fenced.

Main path
    PostgresSession.begin -> write (SetWriter.write) -> commit.

Objects, each with its own part of the state
    SessionTransaction    the connection, its open transaction with pending statements and savepoints; the states
    DescribedTables       the tables, and checks that their descriptions are up to date
    WritePlans            statements by form of write, and the types they need
    SetWriter             sends the writes
    TableChanges          changes, creates and drops tables as DDL LCRs say
    SessionTimes          latest_timestamp: times that the session knows and notes
    RowFinder             reads the rows that conflict with a write
    UsersSql              handlers, roles and triggers, guarded by SessionGuard
    ForeignKeysAtCommit   the check of foreign keys that the server does not do
    ServerProgress        the server's row in headrace.apply_progress
    CommitLabels          labels of tracked transactions

Durable when
    COMMIT was answered, with the log on disk whatever `synchronous_commit` the server, the role or the database has
    (`fencing.commit_durably`). A session that was opened with `is_lazy` does not wait for the disk when it commits only
    rows: these are durable when the server's flushed position has passed them (`DestinationDatabase.log_positions`). A
    crash before that loses rows and progress together. The session always waits for commits that an operator or other
    processes see: transactions that write or take error transactions or change tables, and everything other than
    `commit`.

    `commit` moves the server's row in headrace.apply_progress by compare-and-set (epoch, sequence) in the transaction
    of the data. Of two sessions that both believe to be the same server, at most one commits; after a newer epoch, no
    older one does. An epoch ends with the server's run in which it began (`fencing`). So later commits do not hide what
    a crash, a failover or a restore has lost.

Locks and origin
    The session holds two session-level advisory locks. It holds the apply process's in share mode: `raise_epoch` finds
    and ends all sessions by it, and an exclusive lock proves that they are gone. It holds the server's exclusively: a
    successor finds and ends the dead session of the same server. The replication origin
    `headrace:<topology>/<apply>/<server>:<tag>` marks every change of this session in the log.

Worked flow
    server 0 commits {100..140} with low watermark 90; the answer is lost -> DatabaseUnavailable
    new session of server 0: waits until the old backend is gone, reads its row
    ask_outcome({100..140}) -> True: the commit was made; False: it was not and never will be
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import psycopg

from headrace.base.errors import DatabaseError, DatabaseUnavailable, DestinationRestarted, FencedError
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
from headrace.databases.postgres.advisory_locks import held_by_another
from headrace.databases.postgres.catalog.partitions import files_of
from headrace.databases.postgres.connection import connect, translated
from headrace.databases.postgres.copying.table_copy import copy_in, has_rows
from headrace.databases.postgres.destination.fencing import (
    SessionIdentity,
    apply_lock_key,
    claim,
    commit_durably,
    take_origin,
    take_server_lock,
)
from headrace.databases.postgres.destination.records.conflict_history import record_conflicts
from headrace.databases.postgres.destination.records.error_queue import delete_errors, put_error, take_errors
from headrace.databases.postgres.destination.row_times.lost_times import sample_times
from headrace.databases.postgres.destination.server_session.commit_labels import CommitLabels
from headrace.databases.postgres.destination.server_session.described_tables import DescribedTables
from headrace.databases.postgres.destination.server_session.foreign_keys_at_commit import ForeignKeysAtCommit
from headrace.databases.postgres.destination.server_session.kept_session import KEPT, SETTLE, SessionGuard
from headrace.databases.postgres.destination.server_session.row_finder import RowFinder
from headrace.databases.postgres.destination.server_session.server_progress import ServerProgress
from headrace.databases.postgres.destination.server_session.session_times import SessionTimes
from headrace.databases.postgres.destination.server_session.set_writer import SetWriter
from headrace.databases.postgres.destination.server_session.table_changes import TableChanges
from headrace.databases.postgres.destination.server_session.transaction import LOCK_TIMEOUT_MS, SessionTransaction
from headrace.databases.postgres.destination.server_session.users_sql import ALL_NOW, UsersSql
from headrace.databases.postgres.destination.server_session.write_plans import WritePlans
from headrace.databases.postgres.destination.writing.row_changes import CLOCK_AHEAD_MAX_S, forget_changes
from headrace.databases.postgres.destination.writing.write_errors import raise_refused, raise_refused_at_end
from headrace.databases.postgres.pipeline import Statement
from headrace.lcr.batch import TableVersion
from headrace.lcr.scn import Scn
from headrace.rules.table_settings import NO_TABLE_SETTINGS, TableSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.lcr.ddl import DdlChange

__all__ = ["PostgresSession"]

_SETTINGS = {
    "session_replication_role": "replica",
    "lock_timeout": str(LOCK_TIMEOUT_MS),
    # One generic plan per statement, whatever the statistics say: it finds rows by index, one lookup per row of the
    # set. By default the planner would scan a table that it assumes to be small.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_mergejoin": "off",
}

_DIVISION_BY_ZERO = "22012"
_UNTRANSLATABLE = "22P05"


class PostgresSession:
    """Session of one apply server, as `headrace.databases.ports.DestinationSession`. Used by one thread.

    More than 25 methods: one for each method of the port; most only call one of the module's objects.
    """

    def __init__(
        self, dsn: str, identity: SessionIdentity, settings: TableSettings = NO_TABLE_SETTINGS, *, is_lazy: bool = False
    ) -> None:
        """Open the session, and end a predecessor's session that still exists.

        Args:
            dsn: connection string of the destination.
            identity: apply server and incarnation.
            settings: table settings of the apply process.
            is_lazy: transactions with only rows do not wait for the disk ("Durable when" of the module).

        Raises:
            FencedError: a newer epoch or a newer incarnation of the server exists.
            DestinationRestarted: the server's run in which the epoch began has ended.
            DatabaseUnavailable: no connection, or the predecessor cannot be ended.
            DatabaseError: a right is missing (`headrace check` names it).
        """
        self._dsn, self._identity, self._settings, self._is_lazy = dsn, identity, settings, is_lazy
        self._open()

    # ------------------------------------------------------------------ opening

    def _open(self) -> None:
        connection = connect(self._dsn, application_name=self._identity.application_name)
        try:
            guard = SessionGuard(connection, self._identity, _SETTINGS)
            self._transaction = transaction = SessionTransaction(connection, guard)
            self._tables = tables = DescribedTables(self._dsn, self._identity, self._settings, transaction)
            self._plans = plans = WritePlans(self._dsn, tables, transaction)
            with translated("opening an apply server's session"):
                may_stamp = _settle(connection, self._identity)
            self._progress = ServerProgress(connection, self._identity, may_stamp=may_stamp)
            self._times = times = SessionTimes(self._identity, transaction, tables, self._progress)
            self._finder = RowFinder(transaction, tables, plans, times)
            self._labels = CommitLabels(transaction)
            self._users_sql = UsersSql(transaction, tables, plans)
            self._foreign_keys = ForeignKeysAtCommit(
                self._settings,
                identity=self._identity,
                transaction=transaction,
                tables=tables,
                plans=plans,
                finder=self._finder,
            )
            self._writer = SetWriter(
                transaction,
                tables,
                plans,
                times=times,
                users_sql=self._users_sql,
                foreign_keys=self._foreign_keys.noted,
            )
            parts = (tables, self._users_sql, self._foreign_keys)
            self._table_changes = TableChanges(self._identity, transaction, *parts)
            self._waits_for_disk = False  # the open transaction has data that an operator sees
        except BaseException:
            connection.close()
            raise

    def _renew(self) -> None:
        """Replace a connection that users' SQL changed; a rollback does not undo all of that."""
        self._transaction.close()
        with contextlib.suppress(DatabaseUnavailable):  # the next call will report it
            self._open()

    @property
    def is_closed(self) -> bool:
        """Whether the session is closed."""
        return self._transaction.is_closed

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._transaction.close()

    # ------------------------------------------------------------------ tables

    def describe(self, owner: str, name: str, *, fresh: bool = False) -> DestinationTable | None:
        """Describe a table; None when it does not exist."""
        catalog = self._tables.catalog(owner, name, fresh=fresh)
        return catalog.table if catalog else None

    def missing_alter(self, version: TableVersion) -> str:
        """Return the statements that make a table fit; empty when it fits."""
        return self._tables.missing_alter(version)

    # ------------------------------------------------------------------ transactions

    def begin(self) -> None:
        """Begin a transaction."""
        self._transaction.begin()
        self._waits_for_disk = False
        self._forget_transaction()
        self._tables.begun()

    def savepoint(self) -> None:
        """Set or move the savepoint. It is sent with the next statement."""
        self._transaction.savepoint()

    def rollback_to_savepoint(self) -> None:
        """Undo the work after the savepoint. The rollback is sent with the next statement."""
        self._transaction.rollback_to_savepoint()
        self._forget_undone()

    def mark(self) -> int:
        """Set a mark; return its number. It is sent with the next statement."""
        return self._transaction.mark()

    def undo_to_mark(self, mark: int) -> None:
        """Undo the work after a mark, and remove the mark. The rollback is sent with the next statement."""
        self._transaction.undo_to_mark(mark)
        self._forget_undone()

    def drop_mark(self, mark: int) -> None:
        """Keep the work after a mark, and remove the mark. The release is sent with the next statement."""
        self._transaction.drop_mark(mark)

    def rollback(self) -> None:
        """Undo the transaction; idempotent."""
        self._transaction.rollback()
        self._forget_transaction()
        self._forget_undone()
        if self._transaction.guard.is_changed:
            self._renew()

    def commit(self, applied: Sequence[ScnRange], low_watermark: Scn, labels: Sequence[str] = ()) -> None:
        """Record progress and commit, in one round trip."""
        self._transaction.require_open()
        self._foreign_keys.check(applied)
        is_lazy = self._is_lazy and not self._waits_for_disk
        written = self._labels.written(labels)
        checks = self._users_sql.checks_before_commit()
        notes = self._times.notes_before_commit(ran_users_sql=bool(checks))
        waits = self._times.waits()
        advance = self._progress.advance(applied, low_watermark, is_lazy=is_lazy)
        statements = [*written, *([ALL_NOW] if checks else []), *checks, *notes, *waits, advance]
        pending = self._transaction.pending_count
        try:
            results = self._transaction.commit(statements, self._times.after_commit())
        except DatabaseError as error:
            place = error.context.get("statement")
            self._explain_commit(error, place - pending if isinstance(place, int) else -1, statements, checks, waits)
            raise
        if checks:
            self._users_sql.committed(results[statements.index(checks[-1])])
        self._times.committed(results[len(statements) + 1 :])
        self._plans.committed()
        self._progress.advanced()
        self._forget_transaction()

    def _explain_commit(
        self,
        error: DatabaseError,
        place: int,
        statements: Sequence[Statement],
        checks: Sequence[Statement],
        waits: Sequence[Statement],
    ) -> None:
        """Raise the meaning of an error in the statement at this place; COMMIT follows the statements."""
        identity, is_division = self._identity, error.context.get("sqlstate") == _DIVISION_BY_ZERO
        failed = statements[place] if 0 <= place < len(statements) else None
        self._transaction.guard.raise_changed(error, is_check=failed in checks)
        if is_division and failed in waits:
            raise DatabaseError(
                f"the clock of a source is more than {CLOCK_AHEAD_MAX_S:g} s ahead of this server's: with"
                " latest_timestamp nothing is applied until this server's clock has caught up",
                hint="synchronize the clocks of all sites with one time service, then start the apply process (`headrace"
                " start FILE apply:NAME`)",
            ) from error
        if is_division and failed is statements[-1]:
            raise FencedError(
                f"apply server {identity.server} of {identity.apply} is no longer the owner of its progress",
                apply=identity.apply,
                epoch=identity.epoch,
            ) from error
        if failed is ALL_NOW or place == len(statements):
            raise_refused_at_end(error)  # a trigger that runs at the end of the transaction refused it

    def ask_outcome(self, applied: Sequence[ScnRange]) -> bool:
        """Return whether a commit with an unknown outcome was made."""
        return self._progress.has_recorded(applied)

    def _forget_transaction(self) -> None:
        """Reset the state of the transaction."""
        self._times.begin()
        self._foreign_keys.noted.clear()

    def _forget_undone(self) -> None:
        """Reset the state that a rollback undoes."""
        self._tables.undone()
        self._plans.undone()

    # ------------------------------------------------------------------ writing

    def write(self, writes: Sequence[Write]) -> tuple[int, ...]:
        """Execute writes in as few round trips as possible; return the affected rows of each."""
        return self._writer.write(writes)()

    def write_ahead(self, writes: Sequence[Write]) -> Callable[[], tuple[int, ...]]:
        """Execute writes, and return a function that waits for the results of the last round trip."""
        return self._transaction.ahead.expect(self._writer.write(writes))

    def truncate(self, tables: Sequence[TruncatedTable], *, restart_identity: bool) -> None:
        """Truncate tables together."""
        self._writer.truncate(tables, restart_identity=restart_identity)

    def remove_row(self, table: DestinationTable, number: str) -> None:
        """Delete a row that `find_rows` found."""
        self._writer.remove_row(table, number)

    def change_table(self, change: DdlChange, place: DdlPlace, *, is_in_order: bool = True) -> DdlOutcome:
        """Change, create or drop a table as the source did, and record the outcome."""
        self._waits_for_disk = True
        return self._table_changes.change(change, place, is_in_order=is_in_order)

    # ------------------------------------------------------------------ conflicts and times

    def find_rows(self, write: Write, question: RowQuestion) -> tuple[RowInTheWay, ...]:
        """Find and lock the rows that conflict with the rows of a write."""
        return self._finder.find_rows(write, question)

    def conflicting(self, write: Write) -> NDArray[np.int64] | None:
        """Return the rows of a write that would have a conflict now."""
        return self._finder.conflicting(write)

    def last_changes(self, write: Write) -> tuple[LastChange, ...]:
        """Return the last changes of the rows that a write finds."""
        return self._finder.last_changes(write)

    def forget_changes(self, *, age_s: float, count: int) -> int:
        """Delete old and surplus notes of changes."""
        self._transaction.require_idle("changes are forgotten in a transaction of their own")
        with translated("forgetting the times of old changes"):
            return forget_changes(self._transaction.connection, age_s=age_s, count=count)

    def sample_times(self, *, age_s: float, every_s: float) -> None:
        """Note how far the server's commit times go back."""
        self._transaction.require_idle("times are sampled in a transaction of their own")
        with translated("noting how far commit times go back"):
            sample_times(self._transaction.connection, age_s=age_s, every_s=every_s)

    def record_conflicts(self, records: Sequence[ConflictRecord], *, count_max: int, age_max_s: float) -> None:
        """Write conflicts into the history."""
        transaction, topology = self._transaction, self._identity.topology
        with transaction.own_statements("writing the history of conflicts"):
            record_conflicts(transaction.connection, topology, records, count_max=count_max, age_max_s=age_max_s)

    # ------------------------------------------------------------------ SQL of users

    def run_sql(self, statements: Sequence[HandlerSql], *, timeout_s: float) -> tuple[SqlResult, ...]:
        """Run users' SQL inside the transaction."""
        return self._users_sql.run(statements, timeout_s=timeout_s)

    def as_role(self, role: str) -> None:
        """Use a role's rights until the end of the transaction."""
        self._users_sql.as_role(role)

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
        """Write one part of a transaction into the error queue."""
        self._waits_for_disk = True
        with self._transaction.own_statements("writing to the error queue"):
            return put_error(
                self._transaction.connection,
                self._identity.topology,
                transaction,
                batch,
                key_hashes,
                part=part,
                readable=readable or transaction.readable,
            )

    def delete_error(self, number: int) -> bool:
        """Delete an error transaction; return False when it does not exist."""
        self._waits_for_disk = True
        with self._transaction.own_statements("deleting an error transaction"):
            return bool(
                delete_errors(self._transaction.connection, self._identity.topology, (number,), outcome="EXECUTED")
            )

    def take_errors(self, numbers: Sequence[int], *, bytes_max: int) -> TakenErrors:
        """Delete error transactions and return their batches."""
        self._waits_for_disk = True
        with self._transaction.own_statements("deleting error transactions"):
            return take_errors(self._transaction.connection, self._identity.topology, numbers, bytes_max=bytes_max)

    # ------------------------------------------------------------------ copies

    def copy_rows(self, owner: str, name: str, columns: Sequence[str], rows: Iterable[bytes], *, form: str) -> int:
        """Copy rows into a table; return their number."""
        self._transaction.require_live()
        if self._progress.stamp:
            with translated("copying rows", table=f"{owner}.{name}"):
                self._transaction.connection.execute(f"SELECT {self._progress.stamp}".encode())
        try:
            return copy_in(self._transaction.connection, owner, name, columns, rows, form=form)
        except DatabaseError as error:
            if error.context.get("sqlstate") == _UNTRANSLATABLE:
                error.context["lacking_encoding"] = (
                    self._transaction.connection.info.parameter_status("server_encoding") or ""
                )
            raise_refused(error)
            raise

    def has_rows(self, table: DestinationTable) -> bool:
        """Return whether a table has rows."""
        self._transaction.require_live()
        return has_rows(self._transaction.connection, table)

    def empty_tables(self, tables: Sequence[DestinationTable]) -> None:
        """Remove all rows of tables."""
        self._empty(tables)

    def empty_marked(self, table: DestinationTable) -> str:
        """Remove all rows of a table; return the mark of its files."""
        return self._empty([table])

    def files_mark(self, table: DestinationTable) -> str:
        """Return the mark of a table's files."""
        self._transaction.require_live()
        with translated("measuring a table", table=f"{table.owner}.{table.name}"):
            return files_of(self._transaction.connection, table.owner, table.name)

    def _empty(self, tables: Sequence[DestinationTable]) -> str:
        """Remove all rows of tables; return the mark of the first one, empty if rows of others may be in it."""
        try:
            self.begin()
            self.truncate([TruncatedTable(table=table) for table in tables], restart_identity=False)
            # Measured under the lock of the TRUNCATE, because waiting writers continue when this commits.
            with self._transaction.own_statements("measuring a table"):
                found = files_of(self._transaction.connection, tables[0].owner, tables[0].name)
            self.commit([], Scn(0))
        except (DatabaseUnavailable, DestinationRestarted):
            raise
        except DatabaseError:
            # A referenced table cannot be truncated alone.
            self.rollback()
            for table in tables:
                with translated("emptying a table", table=f"{table.owner}.{table.name}"):
                    self._transaction.connection.execute(f"DELETE FROM {self._tables.relation(table)}".encode())
            return ""
        return found


def _settle(connection: psycopg.Connection[Any], identity: SessionIdentity) -> bool:
    """Take the session's settings, locks and origin; return whether its role may set its transactions' commit times."""
    connection.execute(SETTLE, ([*_SETTINGS, *KEPT], [*_SETTINGS.values(), *(None for _ in KEPT)]))
    commit_durably(connection)
    claim(connection, identity)
    key = apply_lock_key(identity.topology, identity.apply)
    try:
        connection.execute("SELECT pg_catalog.pg_advisory_lock_shared(%s)", (key,))
    except psycopg.errors.LockNotAvailable as error:
        raise held_by_another(connection, key, what=f"apply process {identity.apply}", shared=True) from error
    take_server_lock(connection, identity)
    return take_origin(connection, identity)
