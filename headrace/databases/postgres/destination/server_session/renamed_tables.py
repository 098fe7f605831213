"""Renamed tables in an apply server's transaction.

Main path
    renaming    the apply process's record of the source's table -> the destination's table of now, by its OID
    rename      as its owner: ALTER TABLE ... SET SCHEMA, RENAME TO -> proof -> the record's new name

The record says what a table is called at the destination (decision 107). It changes in the transaction that renames the
table, so it is right whoever reads it, and whatever ends in between.

    the table has the old name      it is renamed
    it has the new name already     passed over: an operator renamed it early
    it has a third name             refused: rows under the new name would find another table, or none
    it is not ours, or gone         not applied
    the rules do not take the name  not applied, and the record says that changes are missing from now on
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.base.errors import DatabaseError, DataError
from headrace.databases.ports import DdlOutcome, DdlOutcomeKind
from headrace.databases.postgres.connection import quote
from headrace.databases.postgres.ddl.renaming import check_renamed, rename_statements, unlike_rename
from headrace.databases.postgres.destination.records.created_tables import (
    RecordOf,
    is_being_copied,
    numbered_records,
    record_left,
    record_renamed,
)
from headrace.databases.postgres.destination.server_session.new_tables import run_ddl
from headrace.lcr.table_name import TableName

if TYPE_CHECKING:
    from headrace.databases.ports import DdlPlace
    from headrace.databases.postgres.destination.fencing import SessionIdentity
    from headrace.databases.postgres.destination.server_session.described_tables import DescribedTables
    from headrace.databases.postgres.destination.server_session.new_tables import AsOwner, NewTables
    from headrace.databases.postgres.destination.server_session.transaction import SessionTransaction
    from headrace.lcr.ddl_record import DdlRecord
    from headrace.lcr.scn import ObjectNumber
    from headrace.lcr.structure import Structure

__all__ = ["RenamedTables", "Renaming"]

_TAKEN = frozenset({"42P07", "42710"})  # a relation, a type


@dataclass(frozen=True, slots=True, kw_only=True)
class Renaming:
    """A table that is to be renamed.

    Args:
        record: what the source recorded.
        of: the apply process's record of it.
        here: the table.
        name: the name that it is to have.
    """

    record: DdlRecord
    of: RecordOf
    here: Structure
    name: TableName

    @property
    def was(self) -> TableName:
        """The name that it has."""
        return TableName.of(self.here)

    @property
    def has_work(self) -> bool:
        """Whether it does not have its name yet."""
        return self.was != self.name


class RenamedTables:
    """Renames one session's tables, over the session's objects.

    Args:
        identity: identity of the session.
        transaction: transaction of the session.
        tables: tables of the session; their descriptions end with a change.
        new_tables: reads structures and records.
        as_owner: runs something with the rights of a table's owner.
    """

    def __init__(
        self,
        identity: SessionIdentity,
        transaction: SessionTransaction,
        tables: DescribedTables,
        new_tables: NewTables,
        as_owner: AsOwner,
    ) -> None:
        self._identity, self._transaction, self._tables = identity, transaction, tables
        self._new_tables, self._as_owner = new_tables, as_owner

    def renaming(self, record: DdlRecord, place: DdlPlace) -> Renaming | DdlOutcome:
        """Return what a renamed table means here: the table to rename, or why there is none.

        Args:
            record: what the source recorded; it renames a table.
            place: of the change in the source's log.

        Raises:
            DataError: the destination's table has a third name.
        """
        assert record.before is not None
        assert record.after is not None
        before, after = TableName.of(record.before), TableName.of(record.after)
        connection = self._transaction.connection
        with self._transaction.own_statements("looking for a table's record"):
            found = numbered_records(connection, self._identity, place.source, record.relation)
        there = [(each, name) for each, name in found if name is not None]
        if not there:
            gone = "the table that was copied is gone" if found else "no table was copied or made for it"
            return DdlOutcome.not_applied(f"{gone}: the destination's table {before} is not renamed")
        if len(there) > 1:
            return DdlOutcome.not_applied("several records are of the table")
        ((of, name),) = there
        here = self._new_tables.structure(name)
        if reason := unlike_rename(record, here, connection.info.server_version // 10_000):
            return DdlOutcome.not_applied(reason)
        if here is None:
            return DdlOutcome.not_applied("the destination does not show it")
        with self._transaction.own_statements("asking whether a table is being copied"):
            if is_being_copied(connection, of):
                return DdlOutcome.not_applied(
                    "the table is being copied: rename it at the destination when its copy is finished"
                )
        if others := self._new_tables.others_of(name, of):
            return DdlOutcome.not_applied(f"it is renamed at one of its sources only: it has rows of {others}, too")
        if name not in {before, after}:
            fix = "; ".join(rename_statements(name, after))
            raise DataError(f"the destination's table is called {name}, not {before}", hint=fix, table=str(name))
        return Renaming(record=record, of=of, here=here, name=after)

    def other_table(self, table: TableName, record: DdlRecord, place: DdlPlace) -> str:
        """Return why the destination's table of a name is not the one that a change is of; empty: it may be.

        Behind a RENAME that was not made, another table may have the name.

        Args:
            table: the table's name at the source, before the change.
            record: what the source recorded.
            place: of the change in the source's log.

        Raises:
            DataError: the table has another name here.
        """
        with self._transaction.own_statements("looking for a table's record"):
            found = numbered_records(self._transaction.connection, self._identity, place.source, record.relation)
        if not found or any(name == table for _, name in found):
            return ""
        there = next((name for _, name in found if name is not None), None)
        if there is None:
            return f"the table that was copied is gone: the destination's table {table} is another one"
        message = f"the destination's table is called {there}, not {table}"
        if self._new_tables.structure(table) is not None:
            message += ", which is another table here: give that one another name first"
        raise DataError(message, hint="; ".join(rename_statements(there, table)), table=str(there))

    def rename(self, found: Renaming) -> DdlOutcome:
        """Rename a table, unless it has its name already, and its record.

        Args:
            found: what `renaming` returned; no check of its rows is pending.

        Raises:
            DataError: the name is taken, its schema is missing, or the table's owner has no right to it.
        """
        # Also when it fails, and when the table has its name: descriptions of either name are no use now.
        self._tables.changed()
        statements: tuple[str, ...] = ()
        if found.has_work:
            if found.was.owner != found.name.owner:
                self._new_tables.require_schema(found.name, found.here.role)
            statements = self._renamed(found)
        with self._transaction.own_statements("recording a renamed table"):
            record_renamed(self._transaction.connection, found.of, found.name)
        kind = DdlOutcomeKind.APPLIED if statements else DdlOutcomeKind.PASSED_OVER
        return DdlOutcome(kind=kind, statements=statements)

    def leave(self, number: ObjectNumber, place: DdlPlace) -> None:
        """Record that a table has got a name under which its rows do not arrive.

        Args:
            number: the source's number of it.
            place: of the change in the source's log.
        """
        connection = self._transaction.connection
        with self._transaction.own_statements("recording that a table leaves the rules"):
            for each, _ in numbered_records(connection, self._identity, place.source, number):
                record_left(connection, each)

    def _renamed(self, found: Renaming) -> tuple[str, ...]:
        statements = rename_statements(found.was, found.name)

        def run() -> None:
            run_ddl(self._transaction, statements)
            check_renamed(found.record, found.here, self._new_tables.structure(found.name))

        try:
            self._as_owner(found.here, run)
        except DatabaseError as error:
            if error.context.get("sqlstate") in _TAKEN:
                hint = f"drop or rename what has this name in schema {quote(found.name.owner)} here"
                raise DataError(error.message, hint=hint, **error.context) from error
            raise
        return statements
