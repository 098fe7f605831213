"""Indexes that are made outside the transactions of the data, in an apply server's transaction: recorded and kept up.

Main path
    A DDL LCR of CREATE INDEX CONCURRENTLY -> schedule: a job. The driver's worker makes the index meanwhile.
    A later DDL LCR of the same table -> follow: nobody may run a job of the table until this transaction ends. Each job
    then makes its index as the source has it behind that change, or none if the source has dropped it.

A job that runs has a lock of its table, for which a statement would wait, with all readers behind it. So a later change
does not even ask for it: it is tried again until no job of the table runs. Between two attempts of a job that fails, it
is made at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.errors import DatabaseUnavailable, DataError
from headrace.databases.ports import DdlOutcome, DdlOutcomeKind
from headrace.databases.postgres.connection import qualified, quote
from headrace.databases.postgres.ddl.refusals import is_concurrent
from headrace.databases.postgres.destination.records.ddl_jobs import (
    add_job,
    cancel_job,
    change_job,
    job_lock_key,
    jobs_of_table,
)
from headrace.lcr.table_name import TableName

if TYPE_CHECKING:
    from headrace.databases.ports import DdlPlace
    from headrace.databases.postgres.destination.fencing import SessionIdentity
    from headrace.databases.postgres.destination.records.ddl_jobs import IndexJob
    from headrace.databases.postgres.destination.server_session.transaction import SessionTransaction
    from headrace.lcr.ddl_record import DdlRecord
    from headrace.lcr.structure import IndexPart

__all__ = ["ScheduledIndexes"]

_TRY = "SELECT pg_catalog.pg_try_advisory_xact_lock(%s)"
# What an attempt of ours may have left does not count: the job drops it.
_TAKEN = """SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND NOT EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indexrelid = c.oid
  AND i.indrelid = pg_catalog.to_regclass(%s) AND NOT i.indisvalid)"""
_GONE = "the source dropped the index again before it was made here"


class ScheduledIndexes:
    """Indexes that one session schedules.

    Args:
        identity: identity of the session.
        transaction: transaction of the session.

    Attributes:
        adapted: indexes that are made in another form because of the last change.
    """

    def __init__(self, identity: SessionIdentity, transaction: SessionTransaction) -> None:
        self._identity, self._transaction = identity, transaction
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

    def follow(self, record: DdlRecord, place: DdlPlace, *, is_in_order: bool) -> None:
        """Keep a table's jobs from running until the transaction ends, and adapt them to a change of the table.

        Args:
            record: the change.
            place: of the change in the source's log.
            is_in_order: False: of an error transaction, which may be older than what the jobs know.

        Raises:
            DatabaseUnavailable: one of them runs.
        """
        self.adapted = []
        if is_concurrent(record):
            return  # one more to schedule: no statement runs
        with self._transaction.own_statements("reading which indexes are being made"):
            connection = self._transaction.connection
            for job in jobs_of_table(connection, self._identity, place.source, int(record.relation)):
                row = connection.execute(_TRY, (job_lock_key(job.number),)).fetchone()
                if row is None or not row[0]:
                    raise _running(job, record)
                if is_in_order:
                    self._adapt(job, record)

    def _adapt(self, job: IndexJob, record: DdlRecord) -> None:
        connection, after = self._transaction.connection, record.after
        index = None if after is None else _index_of(job, after.indexes)
        if after is None or index is None:
            outcome = DdlOutcome(kind=DdlOutcomeKind.NOT_APPLIED, reason=_GONE)
            cancel_job(connection, self._identity.topology, self._identity.apply, job, outcome)
        elif (TableName.of(after), index.name, index.definition) != (job.table, job.index, job.definition):
            change_job(connection, job.number, TableName.of(after), index)
            self.adapted.append(index.name)


def _index_of(job: IndexJob, indexes: tuple[IndexPart, ...]) -> IndexPart | None:
    """Return the index of a job as the source has it now; REINDEX CONCURRENTLY gives it another number."""
    by_number = next((each for each in indexes if each.number == job.source_index), None)
    return by_number or next((each for each in indexes if each.name == job.index), None)


def _running(job: IndexJob, record: DdlRecord) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"{record.tag} of table {job.table} waits until index {quote(job.index)}, which is made"
        " beside the rows, is there",
        hint="headrace.dba_ddl_jobs here has it, and pg_stat_progress_create_index its progress",
    )
