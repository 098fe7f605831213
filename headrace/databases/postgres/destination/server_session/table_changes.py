"""DDL changes in an apply server's transaction.

Job
    Change, create or drop a table as its source did, prove the result, and record the outcome: in the transaction of
    the data.

Main path
    change -> the operator's skip -> plan_changes -> deferred checks of rows -> as the table's owner: statements, proof ->
    record_ddl. New and dropped tables: `new_tables`; renamed ones: `renamed_tables`. CREATE INDEX CONCURRENTLY:
    `scheduled_indexes`.

Errors
    What refuses the change itself is a `DataError` with `DDL_REFUSED` in its context: its hint has the ways out. A lock,
    a deadlock or a lost session is a `DatabaseUnavailable`, and is tried again. What refuses rows that were written
    before is a `DataError` without the mark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.base.errors import DatabaseError, DataError, ProtocolError, Retry
from headrace.databases.ports import DDL_REFUSED, DdlOutcome, DdlOutcomeKind
from headrace.databases.postgres.connection import qualified
from headrace.databases.postgres.ddl.planning import Planned, check_result, other_values, plan_changes
from headrace.databases.postgres.ddl.refusals import other_columns
from headrace.databases.postgres.ddl.renaming import renames
from headrace.databases.postgres.ddl.structure_query import read_cast_rules, read_kept_values
from headrace.databases.postgres.destination.owner_rights import acting_fix
from headrace.databases.postgres.destination.records.ddl_history import record_ddl, skip_statement, take_skip
from headrace.databases.postgres.destination.records.rewritten_files import take_over_file
from headrace.databases.postgres.destination.server_session.new_tables import NewTables, run_ddl
from headrace.databases.postgres.destination.server_session.referenced_tables import ReferencedTables
from headrace.databases.postgres.destination.server_session.renamed_tables import RenamedTables
from headrace.databases.postgres.destination.server_session.scheduled_indexes import ScheduledIndexes
from headrace.databases.postgres.destination.server_session.users_sql import ALL_NOW
from headrace.databases.postgres.destination.writing.write_errors import is_of_the_transaction, raise_refused_at_end
from headrace.lcr.ddl_record import CastRules, DdlRecord
from headrace.lcr.table_name import TableName

if TYPE_CHECKING:
    from headrace.databases.ports import DdlPlace
    from headrace.databases.postgres.destination.fencing import SessionIdentity
    from headrace.databases.postgres.destination.records.ddl_jobs import IndexJob
    from headrace.databases.postgres.destination.server_session.described_tables import DescribedTables
    from headrace.databases.postgres.destination.server_session.foreign_keys_at_commit import ForeignKeysAtCommit
    from headrace.databases.postgres.destination.server_session.transaction import SessionTransaction
    from headrace.databases.postgres.destination.server_session.users_sql import UsersSql
    from headrace.lcr.ddl import DdlChange
    from headrace.lcr.structure import Structure

__all__ = ["DDL_LOCK_TIMEOUT_MS", "TableChanges"]

# A statement that waits for a table's lock makes everybody wait who comes behind it, readers too. So it gives up early,
# and is tried again after a pause.
DDL_LOCK_TIMEOUT_MS = 2000
_LOCK_TIMEOUT = "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'lock_timeout'"  # ms; 0: none
_SET_LOCK_TIMEOUT = "SELECT pg_catalog.set_config('lock_timeout', %s, true)"
_OWNING_ROLE = "SELECT rolsuper, pg_catalog.pg_has_role(oid, 'MEMBER') FROM pg_catalog.pg_roles WHERE rolname = %s"
_WAYS_OUT = "repair the cause, or make the same change here by hand"
_CHANGED = "it is made and changed in one transaction, and rows behind the change do not fit the table here"
_REWRITES = "it would write this table's rows anew, which it did not do at the source"

_BESIDE = "a job makes it outside the transaction: headrace.dba_ddl_jobs has it until then"
_ADAPTED = "the job that makes it follows the change"

_T = TypeVar("_T")


class TableChanges:
    """Changes of the structure of one session's tables, over the session's objects.

    Args:
        identity: identity of the session.
        transaction: transaction of the session.
        tables: tables of the session; their descriptions end with a change.
        users_sql: takes the role of a table's owner.
        foreign_keys: values that the transaction has yet to check.
    """

    def __init__(
        self,
        identity: SessionIdentity,
        transaction: SessionTransaction,
        tables: DescribedTables,
        users_sql: UsersSql,
        foreign_keys: ForeignKeysAtCommit,
    ) -> None:
        self._identity, self._transaction = identity, transaction
        self._tables, self._users_sql, self._foreign_keys = tables, users_sql, foreign_keys
        self._referenced = ReferencedTables(identity, transaction)
        self._new_tables = NewTables(identity, transaction, tables, self._as_owner, self._referenced)
        self._indexes = ScheduledIndexes(identity, transaction, self._new_tables, self._as_owner)
        self._renamed_tables = RenamedTables(identity, transaction, tables, self._new_tables, self._as_owner)

    def change(self, change: DdlChange, place: DdlPlace, *, is_in_order: bool = True) -> DdlOutcome:
        """Change a table and record the outcome, as `DestinationSession.change_table` says."""
        identity, connection = self._identity, self._transaction.connection
        with self._transaction.own_statements("reading which DDL to skip"):
            is_skipped = take_skip(connection, identity.topology, identity.apply, place)
        if change.leaves_rules and is_in_order:  # recorded when the transaction became an error
            self._renamed_tables.leave(change.object_number, place)
        outcome = (
            DdlOutcome(kind=DdlOutcomeKind.SKIPPED, reason="headrace.ddl_skip named it")
            if is_skipped
            else self._change(change, place, is_in_order=is_in_order)
        )
        with self._transaction.own_statements("recording a DDL change"):
            record_ddl(connection, identity.topology, identity.apply, change, place, outcome)
        return outcome

    def _change(self, change: DdlChange, place: DdlPlace, *, is_in_order: bool) -> DdlOutcome:
        if reason := change.why_not_made:  # the table may be being copied: it is not even read
            return DdlOutcome.not_applied(reason)
        with self._refusing(change, place):
            record = DdlRecord.of(change.content)
            if creation := change.creation:
                return self._new_tables.create(creation, record, place, is_in_order=is_in_order)
        if renames(record):
            return self._rename(change, record, place, is_in_order=is_in_order)
        with self._refusing(change, place):
            if record.after is not None and (
                reason := self._renamed_tables.other_table(change.base_table, record, place)
            ):
                return DdlOutcome.not_applied(reason)
            left = self._indexes.follow(record, place, is_in_order=is_in_order)
        self._clear(left, change, place)
        if record.after is None:
            return self._drop(change, record, place)
        return self._alter(change, record, place, is_in_order=is_in_order)

    def _rename(self, change: DdlChange, record: DdlRecord, place: DdlPlace, *, is_in_order: bool) -> DdlOutcome:
        with self._refusing(change, place):
            found = self._renamed_tables.renaming(record, place)
            if isinstance(found, DdlOutcome):
                return found
            left = self._indexes.follow(record, place, is_in_order=is_in_order)
        self._clear(left, change, place)
        self._check_rows(change, place)
        with self._refusing(change, place):
            outcome = self._renamed_tables.rename(found)
        self._new_tables.renamed(record, place)
        return outcome

    def _clear(self, left: tuple[IndexJob, ...], change: DdlChange, place: DdlPlace) -> None:
        if left:
            self._check_rows(change, place)
            self._tables.changed()
            with self._refusing(change, place):
                self._indexes.clear(left)

    def _drop(self, change: DdlChange, record: DdlRecord, place: DdlPlace) -> DdlOutcome:
        with self._refusing(change, place):
            found = self._new_tables.dropping(change.base_table, record, place)
        if isinstance(found, DdlOutcome):
            return found
        self._check_rows(change, place)
        with self._refusing(change, place):
            return self._new_tables.drop(found)

    def _alter(self, change: DdlChange, record: DdlRecord, place: DdlPlace, *, is_in_order: bool) -> DdlOutcome:
        made_at = self._new_tables.made_at(record, place)
        if made_at is None:
            return self._carry(change, record, place, is_in_order=is_in_order)
        outcome = self._carry(change, record, place, is_in_order=is_in_order)
        if others := other_columns(record, self._new_tables.structure(change.base_table)):
            why = outcome.reason or "columns were there already"
            raise self._changed_at_once(change, made_at, f"{_CHANGED}, because of {', '.join(others)}: {why}")
        return outcome

    def _carry(self, change: DdlChange, record: DdlRecord, place: DdlPlace, *, is_in_order: bool) -> DdlOutcome:
        here = self._new_tables.structure(change.base_table)
        keys = self._referenced.reasons(record, place, is_in_order=is_in_order)
        with self._refusing(change, place):
            version = self._transaction.connection.info.server_version // 10_000
            rules = self._cast_rules() if record.rewritten else None
            plan = plan_changes(record, here, version, keys, rules=rules)
        if plan.is_left_out and self._indexes.adapted:
            return DdlOutcome(kind=DdlOutcomeKind.PASSED_OVER, reason=f"{plan.refusal} yet: {_ADAPTED}")
        if plan.refusal or here is None:
            return DdlOutcome.not_applied(plan.refusal)
        others = other_values(plan, self._kept_values(change.base_table)) if plan.passed_over else ()
        if plan.beside is not None:
            with self._refusing(change, place):
                self._indexes.schedule(record, place, TableName.of(here), plan.beside)
            return DdlOutcome(kind=DdlOutcomeKind.SCHEDULED, reason=_BESIDE)
        if not plan.has_work:
            return DdlOutcome(kind=DdlOutcomeKind.PASSED_OVER, reason="; ".join(others))
        self._check_rows(change, place)
        # Also when it fails: descriptions from before it are no use, nor are those from after it when it is undone.
        self._tables.changed()
        with self._refusing(change, place):
            self._referenced.require_rights(here.role, plan.new_keys)
            run = self._run_trusted(plan, here)
        if run is None:
            return DdlOutcome.not_applied(_REWRITES)
        if plan.rewrites_alike and is_in_order:
            self._take_over_file(change.base_table, record, plan.converted, place)
        there = [f"{each} was there already" for each in plan.passed_over]
        return DdlOutcome(
            kind=DdlOutcomeKind.APPLIED, statements=tuple(run), reason="; ".join([*plan.left_out, *there, *others])
        )

    # ------------------------------------------------------------------ steps

    def _run_trusted(self, plan: Planned, here: Structure) -> list[str] | None:
        """Run a plan as `_run_all` does; a column of a new type may run functions of other roles with each row."""
        table, new_tables = TableName.of(here), self._new_tables
        if not plan.brings_types:
            return self._as_owner(here, lambda: self._run_all(plan, table))
        known = new_tables.functions_of_others(table, here.role)
        run = self._as_owner(here, lambda: self._run_all(plan, table))
        new_tables.require_trusted(table, here.role, known)
        return run

    def _cast_rules(self) -> CastRules:
        with self._transaction.own_statements("asking how values are converted"):
            return read_cast_rules(self._transaction.connection)

    def _take_over_file(self, table: TableName, record: DdlRecord, converted: frozenset[str], place: DdlPlace) -> None:
        """Record that the rows of the source's new file are here, too: they did not change without an event."""
        if record.rewriting is not None:
            with self._transaction.own_statements(f"recording that the rows of {table} were written anew"):
                take_over_file(
                    self._transaction.connection,
                    self._identity,
                    place.source,
                    table,
                    record.relation,
                    converted,
                    record.rewriting,
                )

    def _kept_values(self, table: TableName) -> dict[str, str | None]:
        with self._transaction.own_statements(f"reading the structure of {table}"):
            return read_kept_values(self._transaction.connection, table)

    def _check_rows(self, change: DdlChange, place: DdlPlace) -> None:
        """Check rows that the transaction has written.

        The server alters no table with pending checks, and values of foreign keys are noted in the table's old form.

        Raises:
            DataError: rows are refused.
        """
        self._foreign_keys.check_table(change.base_table, place)
        try:
            self._transaction.run([ALL_NOW], "checking what was deferred")
        except DatabaseError as error:
            raise_refused_at_end(error)
            raise

    def _as_owner(self, here: Structure, run: Callable[[], _T]) -> _T:
        """Run something with the rights of the table's owner, and a short time to wait for locks.

        Triggers for DDL and functions in definitions may run with it: they must leave the session unchanged.
        """
        connection, guard = self._transaction.connection, self._transaction.guard
        self._take_role(here)
        guard.fired(f"{here.owner}.{here.name}")
        with self._transaction.own_statements("preparing a DDL change"):
            row = connection.execute(_LOCK_TIMEOUT).fetchone()
            assert row is not None
            connection.execute(_SET_LOCK_TIMEOUT, (str(min(int(row[0]) or DDL_LOCK_TIMEOUT_MS, DDL_LOCK_TIMEOUT_MS)),))
        try:
            found = run()
        except BaseException:
            guard.role = ""  # any rollback takes it back
            raise
        with self._transaction.own_statements("ending a DDL change"):
            connection.execute(_SET_LOCK_TIMEOUT, row)
            # Constraints that a user made deferrable were checked now; the rows to come may need that again.
            connection.execute("SET CONSTRAINTS ALL DEFERRED")
        self._users_sql.as_role("")
        return found

    def _take_role(self, here: Structure) -> None:
        with self._transaction.own_statements("asking who owns a table"):
            row = self._transaction.connection.execute(_OWNING_ROLE, (here.role,)).fetchone()
        try:
            self._users_sql.as_role(here.role)
        except DataError as error:
            is_superusers, is_member = row or (False, False)
            user = self._transaction.connection.info.user
            fix = acting_fix(TableName.of(here), here.role, user, is_superusers=is_superusers, is_member=is_member)
            raise DataError(error.message, hint=fix, **error.context) from error

    def _run_all(self, plan: Planned, table: TableName) -> list[str] | None:
        """Run a plan's statements and prove their result; return them.

        None: they would write rows anew, which the source did not, and are undone. Values that only that gives are not in
        its log, and nobody expects the time it takes.
        """
        is_guarded = plan.changes_types and not plan.may_rewrite
        mark, file = (self._transaction.mark(), self._file(table)) if is_guarded else (0, 0)
        first = self._run(plan.statements)
        if mark:
            if self._file(table) != file:
                self._transaction.undo_to_mark(mark)
                return None
            self._transaction.drop_mark(mark)
        last = self._run(plan.last_statements(self._new_tables.structure(table)))
        after = self._new_tables.structure(table)
        check_result(plan, after, self._kept_values(table))
        return [*first, *last]

    def _run(self, statements: tuple[str, ...]) -> tuple[str, ...]:
        return run_ddl(self._transaction, statements)

    def _file(self, table: TableName) -> int:
        """Return the number of the file that has the table's rows."""
        with self._transaction.own_statements(f"reading the file of {table}"):
            row = self._transaction.connection.execute(
                "SELECT pg_catalog.pg_relation_filenode(pg_catalog.to_regclass(%s))", (qualified(*table),)
            ).fetchone()
        return int(row[0]) if row is not None and row[0] is not None else 0

    # ------------------------------------------------------------------ errors

    @contextmanager
    def _refusing(self, change: DdlChange, place: DdlPlace) -> Iterator[None]:
        """Raise what refuses a change as a `DataError` with the ways out; the transaction has failed.

        Any other error of the database would end the server, or be tried again for ever.
        """
        try:
            yield
        except (DatabaseError, ProtocolError) as error:
            self._transaction.fail()
            if error.retry is Retry.TIMED and isinstance(error, DatabaseError) and not is_of_the_transaction(error):
                raise
            raise self._refused(error, change, place) from error

    def _changed_at_once(self, change: DdlChange, made_at: DdlPlace, what: str) -> DataError:
        """Return the refusal of a change without which rows do not fit the table, which the same transaction made.

        Nobody else sees that table, so nobody could make the change by hand.
        """
        self._transaction.fail()
        table = change.base_table
        message = f"{change.command_type} of table {table}: {what}"
        skip = skip_statement(self._identity.topology, self._identity.apply, made_at)
        hint = f"leave out that it is made, and create it as the source has it by now; the next start copies it: {skip}"
        return DataError(message, hint=hint, table=str(table), **{DDL_REFUSED: 1})

    def _refused(self, error: DatabaseError | ProtocolError, change: DdlChange, place: DdlPlace) -> DataError:
        named = f"{change.command_type} of table {change.base_table}"
        message = error.message if error.message.startswith(named) else f"{named}: {error.message}"
        skip = skip_statement(self._identity.topology, self._identity.apply, place)
        context: dict[str, Any] = {"table": str(change.base_table), DDL_REFUSED: 1}
        sqlstate = str(error.context.get("sqlstate", ""))
        hint = f"{error.hint or _WAYS_OUT}; or leave it out: {skip}"
        refused = DataError(message, hint=hint, sqlstate=sqlstate, **context)
        refused.detail = error.detail if isinstance(error, DatabaseError) else ""
        return refused
