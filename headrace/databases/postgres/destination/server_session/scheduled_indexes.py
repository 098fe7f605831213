"""Indexes that are made outside the transactions of the data, in an apply server's transaction: recorded and kept up.

Main path
    A DDL LCR of CREATE INDEX CONCURRENTLY -> schedule: a job. The driver's worker makes the index meanwhile.
    A later DDL LCR of the same table -> follow: nobody may run a job of the table until this transaction ends. Each job
    then makes its index as the source has it behind that change, or none if the source has dropped it. clear: an invalid
    index that a killed attempt has left goes in the same transaction. Its name is the source's to give again from then on,
    and no job would look for it any more.

A job that runs has a lock of its table, for which a statement would wait, with all readers behind it. So a later change
does not even ask for it: it is tried again until no job of the table runs. Between two attempts of a job that fails, it
is made at once.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from headrace.base.errors import DatabaseUnavailable, DataError
from headrace.databases.ports import DdlOutcome
from headrace.databases.postgres.connection import qualified, quote
from headrace.databases.postgres.ddl.refusals import concurrent_index, may_be_beside
from headrace.databases.postgres.destination.records.ddl_jobs import (
    IndexJob,
    add_job,
    cancel_job,
    change_job,
    job_lock_key,
    jobs_of_table,
)
from headrace.databases.postgres.destination.server_session.new_tables import run_ddl
from headrace.lcr.table_name import TableName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.databases.ports import DdlPlace
    from headrace.databases.postgres.destination.fencing import SessionIdentity
    from headrace.databases.postgres.destination.server_session.new_tables import AsOwner, NewTables
    from headrace.databases.postgres.destination.server_session.transaction import SessionTransaction
    from headrace.lcr.ddl_record import DdlRecord
    from headrace.lcr.structure import IndexPart

__all__ = ["ScheduledIndexes"]

_TRY = "SELECT pg_catalog.pg_try_advisory_xact_lock(%s)"
# What an attempt of ours may have left does not count: the job drops it.
_TAKEN = """SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND NOT EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indexrelid = c.oid
  AND i.indrelid = pg_catalog.to_regclass(%s) AND NOT i.indisvalid)"""
# What a killed attempt has left, as the driver's worker knows it. An attempt of ours began: attempts of the job.
_LEFT = """SELECT n.nspname, t.relname FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_class t ON t.oid = i.indrelid JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
WHERE i.indrelid = %s AND c.relname = %s AND NOT i.indisvalid AND pg_catalog.pg_get_indexdef(i.indexrelid) = %s"""
_GONE = "the source dropped the index again before it was made here"


class ScheduledIndexes:
    """Indexes that one session schedules.

    Args:
        identity: identity of the session.
        transaction: transaction of the session.
        new_tables: reads structures.
        as_owner: runs something with the rights of a table's owner.

    Attributes:
        adapted: indexes that are made in another form because of the last change.
    """

    def __init__(
        self, identity: SessionIdentity, transaction: SessionTransaction, new_tables: NewTables, as_owner: AsOwner
    ) -> None:
        self._identity, self._transaction = identity, transaction
        self._new_tables, self._as_owner = new_tables, as_owner
        self.adapted: list[str] = []

    def schedule(self, record: DdlRecord, place: DdlPlace, table: TableName, index: IndexPart) -> None:
        """Record that an index is to be made.

        Args:
            record: the change that makes it.
            place: of the change in the source's log.
            table: the table here.
            index: as the source has it.

        Raises:
            DataError: something else has its name.
        """
        connection = self._transaction.connection
        with self._transaction.own_statements(f"scheduling an index of {table}"):
            if connection.execute(_TAKEN, (table.owner, index.name, qualified(*table))).fetchone() is not None:
                message = (
                    f"{qualified(table.owner, index.name)} exists already, and is no index of {table} like this one"
                )
                raise DataError(message, hint="free the name", sqlstate="42P07")
            add_job(connection, self._identity, record, place, table, index)

    def follow(self, record: DdlRecord, place: DdlPlace, *, is_in_order: bool) -> tuple[IndexJob, ...]:
        """Keep a table's jobs from running until the transaction ends, and adapt them to a change of the table.

        Args:
            record: the change.
            place: of the change in the source's log.
            is_in_order: False: of an error transaction, which may be older than what the jobs know.

        Returns:
            Jobs, as they were, of which a killed attempt has left an index: `clear` them before the change.

        Raises:
            DatabaseUnavailable: one of them runs.
        """
        self.adapted = []
        if concurrent_index(record) is not None:
            return ()  # one more to schedule: no statement runs
        left = list[IndexJob]()
        with self._transaction.own_statements("reading which indexes are being made"):
            connection = self._transaction.connection
            for job in jobs_of_table(connection, self._identity, place.source, int(record.relation)):
                row = connection.execute(_TRY, (job_lock_key(job.number),)).fetchone()
                if row is None or not row[0]:
                    raise _running(job, record)
                # Also if the job stays as it is: another type of a column would make an invalid index valid. A table that is
                # dropped takes it along; else the job clears it away.
                if record.after is not None and self._left(job) is not None:
                    left.append(job)
                if is_in_order:
                    self._adapt(job, record)
        return tuple(left)

    def clear(self, jobs: Sequence[IndexJob]) -> None:
        """Drop what killed attempts have left, as the tables' owners.

        Args:
            jobs: what `follow` returned; no check of rows of their table is pending.

        Raises:
            DatabaseUnavailable: the table is busy.
            DataError: the owner may not.
        """
        for job in jobs:
            with self._transaction.own_statements(f"looking for index {quote(job.index)}"):
                table = self._left(job)
            here = None if table is None else self._new_tables.structure(table)
            if table is not None and here is not None:
                self._as_owner(here, functools.partial(self._drop_left, job, table))

    def _drop_left(self, job: IndexJob, table: TableName) -> None:
        # Whoever makes or repairs an index has a lock that this one waits for: behind it, an invalid index stays one.
        run_ddl(self._transaction, (f"LOCK TABLE ONLY {qualified(*table)} IN ACCESS EXCLUSIVE MODE",))
        with self._transaction.own_statements(f"looking for index {quote(job.index)}"):
            is_left = self._left(job) == table
        if is_left:
            run_ddl(self._transaction, (f"DROP INDEX {qualified(table.owner, job.index)}",))

    def _left(self, job: IndexJob) -> TableName | None:
        """Return the table, as it is called now, of the invalid index that an attempt at a job has left."""
        if not job.attempts:
            return None
        row = self._transaction.connection.execute(_LEFT, (job.relation, job.index, job.definition)).fetchone()
        return None if row is None else TableName(*row)

    def _adapt(self, job: IndexJob, record: DdlRecord) -> None:
        connection, after = self._transaction.connection, record.after
        index = None if after is None else _index_of(job, after.indexes)
        if after is None or index is None:
            outcome = DdlOutcome.not_applied(_GONE)
            cancel_job(connection, self._identity.topology, self._identity.apply, job, outcome)
        elif (TableName.of(after), index.name, index.definition) != (job.table, job.index, job.definition):
            change_job(connection, job.number, TableName.of(after), index)
            self.adapted.append(index.name)


def _index_of(job: IndexJob, indexes: tuple[IndexPart, ...]) -> IndexPart | None:
    """Return the index of a job as the source has it now; REINDEX CONCURRENTLY gives it another number.

    A unique index that has its name by now is another one, and made at its place.
    """
    by_number = next((each for each in indexes if each.number == job.source_index), None)
    by_name = next((each for each in indexes if each.name == job.index and may_be_beside(each)), None)
    return by_number or by_name


def _running(job: IndexJob, record: DdlRecord) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"{record.tag} of table {job.table} waits until index {quote(job.index)}, which is made"
        " beside the rows, is there",
        hint="headrace.dba_ddl_jobs here has it, and pg_stat_progress_create_index its progress",
    )
