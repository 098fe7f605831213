"""Indexes that a driver's worker makes outside the transactions of the data, with CREATE INDEX CONCURRENTLY.

Job
    Make one index as its job says, or say why not.

Main path
    run_index_job -> a session of its own -> fence and the job's lock -> the operator's skip -> the table and its owner ->
    what an earlier attempt left: DROP INDEX CONCURRENTLY -> CREATE INDEX CONCURRENTLY -> the result is compared ->
    end_job.

What may happen at any time
    It is killed: the server makes the index to the end, or leaves it invalid. The next driver ends the session, as it
    ends those of apply servers, and then begins anew: a valid index counts as made, an invalid one like ours is dropped.
    An older driver thaws: its session is gone, and it gets no new one.

Rights
    The session takes the role of the table's owner, whose index it is. It runs nothing afterwards but the end of the
    same job, and is closed. The records are written by another session.

Waiting
    The server waits for transactions that write the table, and for older snapshots, without a bound. Meanwhile it holds
    up nobody but those who want to change the table's structure, VACUUM, and TRUNCATE. What an apply server's transaction
    waits for is never a lock of this session for long: a change of the table does not ask for one
    (`server_session.scheduled_indexes`), and the server ends one of two that wait for each other.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import pq

from headrace.base.errors import DatabaseError, DatabaseUnavailable, DataError
from headrace.databases.ports import DdlOutcome, DdlOutcomeKind
from headrace.databases.postgres.connection import connect, qualified, quote, translate, translated
from headrace.databases.postgres.ddl.structure_query import read_structure
from headrace.databases.postgres.destination.fencing import apply_lock_key, refuse_epoch
from headrace.databases.postgres.destination.owner_rights import acting_fix
from headrace.databases.postgres.destination.records.ddl_history import skip_statement, take_skip
from headrace.databases.postgres.destination.records.ddl_jobs import (
    IndexJob,
    cancel_job,
    end_job,
    fail_job,
    job_lock_key,
    read_job,
    start_job,
)
from headrace.lcr.structure import IndexPart, Structure, elements

if TYPE_CHECKING:
    from headrace.lcr.table_name import TableName

__all__ = ["run_index_job"]

_LOCK_TIMEOUT = "2s"  # for everything before the index is made
_ASK_EVERY_S = 0.2  # whether to end
_CANCEL_TIMEOUT_S = 5.0  # a server that does not answer ends the session anyway, when the next driver asks it to
_SHOWN_MAX = 500  # characters of a statement in a message
_PLAIN, _CONCURRENT = "CREATE INDEX ", "CREATE INDEX CONCURRENTLY "

# As apply servers' sessions have it, so that the same event triggers fire.
_SETTLE = f"SET session_replication_role = replica; SET lock_timeout = '{_LOCK_TIMEOUT}'"
_SHARED = "SELECT pg_catalog.pg_advisory_lock_shared(%s)"
_OWN_LOCK = "SELECT pg_catalog.pg_try_advisory_lock(%s)"
_TABLE = """SELECT pg_catalog.to_regclass(%s)::pg_catalog.oid::int8, r.rolsuper, pg_catalog.pg_has_role(r.oid, 'MEMBER')
FROM (SELECT) one LEFT JOIN pg_catalog.pg_class c ON c.oid = pg_catalog.to_regclass(%s)::pg_catalog.oid
LEFT JOIN pg_catalog.pg_roles r ON r.oid = c.relowner"""
_THERE = """SELECT i.indrelid::int8, i.indisvalid, pg_catalog.pg_get_indexdef(i.indexrelid)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid WHERE n.nspname = %s AND c.relname = %s"""
# Another session makes or drops an index of the table, or vacuums it. Its invalid index is not ours to drop.
_WORKED_ON = """SELECT l.pid FROM pg_catalog.pg_locks l WHERE l.locktype = 'relation' AND l.relation = %s
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
  AND l.mode = 'ShareUpdateExclusiveLock' AND l.granted AND l.pid <> pg_catalog.pg_backend_pid() LIMIT 1"""
_IN_THE_WAY = "drop it, or give it another name"
_WAYS_OUT = "repair the cause, or make the index here by hand: it is tried again"


def run_index_job(
    dsn: str,
    records: psycopg.Connection[Any],
    process: tuple[str, str, int],
    number: int,
    should_end: Callable[[], bool],
) -> None:
    """Make one attempt at a job; its record has the outcome.

    Args:
        dsn: of the destination.
        records: session that writes the records, in autocommit mode.
        process: topology, apply process, and epoch of the driver.
        number: of the job.
        should_end: whether the driver ends: the attempt is broken off.

    Raises:
        FencedError: a newer epoch exists.
        DestinationRestarted: the epoch has ended with the server's run.
        DatabaseUnavailable: the destination does not answer.
    """
    topology, apply, epoch = process
    with contextlib.closing(connect(dsn, application_name=f"headrace {topology}/{apply}/ddl")) as session:
        with translated("opening a session that makes an index"):
            session.execute(_SETTLE)
            # As sessions of apply servers: the next epoch finds and ends this session by it.
            session.execute(_SHARED, (apply_lock_key(topology, apply),))
        refuse_epoch(session, topology, apply, epoch)
        with translated("making an index"):
            row = session.execute(_OWN_LOCK, (job_lock_key(number),)).fetchone()
            job = read_job(records, topology, apply, number)
        if row is None or not row[0] or job is None:
            return  # a transaction changes it now, or it is done
        attempt = _Attempt(session, records, process, job, should_end)
        try:
            attempt.run()
        except DatabaseError as error:
            if should_end():
                return
            skip = skip_statement(topology, apply, job.place)
            fix = f"{error.hint or _WAYS_OUT}; or leave it out: {skip}"
            fail_job(records, topology, apply, epoch, number, error.message, fix)


class _Attempt:
    """One attempt; arguments as for `run_index_job`."""

    def __init__(
        self,
        session: psycopg.Connection[Any],
        records: psycopg.Connection[Any],
        process: tuple[str, str, int],
        job: IndexJob,
        should_end: Callable[[], bool],
    ) -> None:
        self._session, self._records, self._process, self._job = session, records, process, job
        self._should_end = should_end
        self._index = qualified(job.table.owner, job.index)

    def run(self) -> None:
        """Make the index, and record what became of it.

        Raises:
            DatabaseError: it cannot be made now.
        """
        job = self._job
        here = self._table()
        if self._is_cancelled():
            if here is not None:
                self._clear(here)
            self._end(None)
            return
        if here is None:
            message = f"the destination has no table {job.table}, or another one than at the time of the change"
            hint = f"give the original table its name {job.table} again"
            raise DataError(message, hint=hint, table=str(job.table))
        start_job(self._records, *self._process, job.number)
        ran = self._clear(here)
        made = self._made(here.table)
        if made is None:
            ran.append(self._make(here))
            made = self._made(here.table)
        if made is None:
            message = f"index {self._index} was made, and is not there: another session dropped it"
            raise DataError(message, table=str(job.table))
        is_ours = bool(ran) or job.attempts > 0
        kind = DdlOutcomeKind.APPLIED if is_ours else DdlOutcomeKind.PASSED_OVER
        self._end(DdlOutcome(kind=kind, statements=tuple(ran) or ((self._statement,) if is_ours else ())))

    @property
    def _statement(self) -> str:
        return self._job.definition.replace(_PLAIN, _CONCURRENT, 1)

    # ------------------------------------------------------------------ records

    def _is_cancelled(self) -> bool:
        """Return whether the index is not to be made: an operator left it out, or the source has dropped it."""
        topology, apply, _ = self._process
        with translated("reading which DDL to skip"), self._records.transaction():
            if self._job.state != "CANCELLED" and take_skip(self._records, topology, apply, self._job.place):
                outcome = DdlOutcome(kind=DdlOutcomeKind.SKIPPED, reason="headrace.ddl_skip named it")
                cancel_job(self._records, topology, apply, self._job, outcome)
                self._job = replace(self._job, state="CANCELLED")
        return self._job.state == "CANCELLED"

    def _end(self, outcome: DdlOutcome | None) -> None:
        with translated("recording that an index is made"):
            end_job(self._records, *self._process, self._job, outcome)

    # ------------------------------------------------------------------ what is there

    def _table(self) -> _Table | None:
        """Return the job's table; None: it is gone, or another one has its name."""
        job, name = self._job, qualified(*self._job.table)
        with translated(f"reading the structure of {job.table}"):
            row = self._records.execute(_TABLE, (name, name)).fetchone()
            found = read_structure(self._records, job.table)
        if row is None or found is None or row[0] != job.relation:
            return None
        return _Table(job.table, found, is_superusers=bool(row[1]), is_member=bool(row[2]))

    def _made(self, table: TableName) -> IndexPart | None:
        """Return the index if it is there and as the source's; None: it is not there.

        Raises:
            DataError: it is another one.
        """
        with translated(f"reading the structure of {table}"):
            found = elements(read_structure(self._records, table))
        wanted = IndexPart(number=0, name=self._job.index, definition=self._job.definition)
        there = found.get(wanted.key)
        if there is None:
            return None
        assert isinstance(there, IndexPart)
        if there.shape != wanted.shape:
            message = f"index {self._index} is another one here: {there.definition}; at the source: {wanted.definition}"
            raise DataError(message, hint=f"drop it: {_dropping(self._index)};", table=str(table))
        return there

    def _clear(self, here: _Table) -> list[str]:
        """Drop what an attempt has left; return the statement.

        Raises:
            DataError: something else has the name.
        """
        job = self._job
        with translated(f"looking for index {self._index}"):
            row = self._records.execute(_THERE, (job.table.owner, job.index)).fetchone()
            busy = self._records.execute(_WORKED_ON, (job.relation,)).fetchone()
        if row is None or (row[0] == job.relation and row[1]):
            return []
        relation, _, definition = row
        if job.state == "CANCELLED" and (relation != job.relation or definition != job.definition):
            return []  # not ours
        if relation != job.relation:
            raise DataError(f"{self._index} exists already, and is no index of {job.table}", hint=_IN_THE_WAY)
        if definition != job.definition:
            message = f"an invalid index {self._index} is in the way: {definition}"
            raise DataError(message, hint=f"drop it: {_dropping(self._index)};")
        if busy is not None:
            message = f"session {busy[0]} works on table {job.table}, and an index {self._index} is not valid yet"
            raise DatabaseUnavailable(message, hint="no action needed: it is tried again")
        with self._as_owner(here):
            self._watched(_dropping(self._index))
        return [_dropping(self._index)]

    # ------------------------------------------------------------------ the owner's statements

    def _make(self, here: _Table) -> str:
        with self._as_owner(here):
            try:
                self._watched(self._statement)
            except DatabaseError:
                # An invalid index costs every write. If this fails, too, the next attempt drops it.
                if not self._should_end():
                    with contextlib.suppress(DatabaseError):
                        self._clear(here)
                raise
        return self._statement

    @contextlib.contextmanager
    def _as_owner(self, here: _Table) -> Iterator[None]:
        """Run statements with the rights of the table's owner, who waits as long as it takes."""
        owner = here.structure.role
        try:
            self._session.execute(f"SET ROLE {quote(owner)}; SET lock_timeout = 0".encode())
        except (psycopg.errors.InvalidParameterValue, psycopg.errors.InsufficientPrivilege) as error:
            fix = acting_fix(
                here.table,
                owner,
                self._session.info.user,
                is_superusers=here.is_superusers,
                is_member=here.is_member,
            )
            message = f"the session cannot take the role {owner!r}: {error.diag.message_primary}"
            raise DataError(message, hint=fix, sqlstate=error.sqlstate or "") from error
        except psycopg.Error as error:
            raise translate(error, "taking a role") from error
        yield

    def _watched(self, statement: str) -> None:
        """Run one statement outside a transaction, and cancel it when the driver ends.

        Raises:
            DatabaseError: it failed, or was cancelled.
        """
        connection = self._session.pgconn
        with translated(statement[:_SHOWN_MAX]):
            try:
                connection.send_query(statement.encode())
                answer = select.poll()
                answer.register(connection.socket, select.POLLIN)
                is_cancelled = False
                while connection.is_busy():
                    if answer.poll(_ASK_EVERY_S * 1000):
                        connection.consume_input()
                    elif self._should_end() and not is_cancelled:
                        is_cancelled = True
                        self._session.cancel_safe(timeout=_CANCEL_TIMEOUT_S)
                results = list(iter(connection.get_result, None))
            except OSError as error:
                raise psycopg.OperationalError(str(error)) from error
            for result in results:
                if result.status == pq.ExecStatus.FATAL_ERROR:
                    raise psycopg.errors.error_from_result(result, "utf-8")


class _Table:
    """A table whose index is made.

    Args:
        table: its name here.
        structure: as it is here.
        is_superusers: a superuser owns it.
        is_member: the applying role is a member of its owner.
    """

    def __init__(self, table: TableName, structure: Structure, *, is_superusers: bool, is_member: bool) -> None:
        self.table, self.structure = table, structure
        self.is_superusers, self.is_member = is_superusers, is_member


def _dropping(index: str) -> str:
    return f"DROP INDEX CONCURRENTLY {index}"
