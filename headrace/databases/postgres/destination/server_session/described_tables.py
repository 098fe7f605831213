"""The tables that an apply server's session writes, as it has described them, and whether they still are so.

A table is described once. Behind the first write of each transaction, which locks it, the server is asked whether it
still has that form (`form_checks`): a statement that was made for another form often works all the same, through an
assignment cast or because two types have values of one length, and would write something else. What an error means
depends on the tables too (`explain`): whether one was altered, has types of the operator's own, or lacks a right.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

from headrace.base.errors import DatabaseError, UnfitTableError
from headrace.databases.applied_tables import missing_key, unfit_error
from headrace.databases.ports import DestinationTable, Write
from headrace.databases.postgres.catalog.destination_tables import (
    FIRST_USER_TYPE,
    SAME_FORM,
    CatalogTable,
    describe_table,
)
from headrace.databases.postgres.compared.types import missing_alter
from headrace.databases.postgres.connection import connect, qualified, translated
from headrace.databases.postgres.destination.fencing import SessionIdentity
from headrace.databases.postgres.destination.rights import missing_grants
from headrace.databases.postgres.destination.server_session.server_progress import int8
from headrace.databases.postgres.destination.server_session.transaction import LOCK_TIMEOUT_MS, SessionTransaction
from headrace.databases.postgres.destination.writing.write_errors import explain, is_right, is_stale
from headrace.databases.postgres.pipeline import Statement
from headrace.lcr.batch import TableVersion
from headrace.rules.table_settings import TableSettings

__all__ = ["DescribedTables"]

_DIVISION_BY_ZERO = "22012"


class DescribedTables:
    """See the module.

    Args:
        dsn: of the destination, for a second session that looks at a table while this one's transaction has failed.
        identity: of the session.
        settings: of its apply process: how it sees the tables.
        transaction: of the session.
    """

    def __init__(
        self, dsn: str, identity: SessionIdentity, settings: TableSettings, transaction: SessionTransaction
    ) -> None:
        self._dsn, self._application_name = dsn, identity.application_name
        self._settings, self._transaction = settings, transaction
        self._tables: dict[tuple[str, str], CatalogTable] = {}
        self._checked: set[tuple[str, str]] = set()  # have the form they were described with, and are locked

    # ------------------------------------------------------------------ descriptions

    def catalog(self, owner: str, name: str, *, fresh: bool = False) -> CatalogTable | None:
        """The table's description, which is the same object as long as nothing else is known of it; None: there is none.

        Args:
            owner: schema of the table.
            name: of the table in that schema.
            fresh: read the catalog again.
        """
        found = self._tables.get((owner, name))
        if found is not None and not fresh:
            return found
        self._transaction.require_live()
        self._transaction.send_pending()
        catalog = describe_table(self._transaction.connection, owner, name, self._settings)
        if catalog == found and found is not None:
            return found  # plans stay good
        self._forget(owner, name)
        if catalog is not None:
            self._tables[owner, name] = catalog
        return catalog

    def _forget(self, owner: str, name: str) -> None:
        self._tables.pop((owner, name), None)
        self._transaction.pipeline.forget()

    def missing_alter(self, version: TableVersion) -> str:
        """See `DestinationSession.missing_alter`.

        Args:
            version: of the rows.
        """
        return self._missing(version, self.catalog(version.owner, version.name))

    def fitting(self, write: Write) -> CatalogTable:
        """The table of a write, which must fit.

        Args:
            write: inside a transaction.

        Raises:
            UnfitTableError: it does not.
        """
        self._transaction.require_open()
        version = write.version
        catalog = self.catalog(version.owner, version.name)
        missing = self._missing(version, catalog)
        if missing or catalog is None:
            raise unfit_error(version, missing, self._settings)
        return catalog

    def _missing(self, version: TableVersion, catalog: CatalogTable | None) -> str:
        return missing_alter(version, catalog) or missing_key(version, self._settings)

    def relation(self, table: DestinationTable) -> str:
        """How statements name a table: without the tables that inherit from it, which are tables of their own.

        Args:
            table: of the destination.
        """
        catalog = self.catalog(table.owner, table.name)
        return catalog.relation if catalog else qualified(table.owner, table.name)

    # ------------------------------------------------------------------ whether they are still so

    def unlocked(self) -> None:
        """A transaction began, or went back to a savepoint: a table's lock goes with what locked it."""
        self._checked.clear()

    def unchecked(self, writes: Sequence[Write]) -> set[tuple[str, str]]:
        """Tables of these writes that this transaction has not locked and checked yet.

        Args:
            writes: that are about to run.
        """
        return {(write.version.owner, write.version.name) for write in writes} - self._checked

    def form_checks(self, tables: Collection[tuple[str, str]]) -> list[Statement]:
        """Whether tables that were just written, and so are locked, still are what they were described as.

        Args:
            tables: schemas and names; `raise_altered` says what an error of these statements means.
        """
        described = [catalog for catalog in (self._tables.get(key) for key in sorted(tables)) if catalog is not None]
        return [
            Statement(sql=SAME_FORM, parameters=(int8(catalog.oid), int8(catalog.form)), prepared=True)
            for catalog in described
        ]

    def checked(self, tables: Collection[tuple[str, str]]) -> None:
        """The answers to `form_checks` are there.

        Args:
            tables: of which they are.
        """
        self._checked.update(tables)

    def raise_altered(self, tables: Collection[tuple[str, str]], error: DatabaseError) -> None:
        """Raise what an error of `form_checks` means.

        Args:
            tables: that were asked for; they are described again.
            error: of one of the statements.

        Raises:
            UnfitTableError: a table was altered.
        """
        if error.context.get("sqlstate") != _DIVISION_BY_ZERO:
            return
        for key in tables:
            self._forget(*key)
        names = ", ".join(".".join(key) for key in sorted(tables))
        raise UnfitTableError(
            f"the destination table {names} was altered meanwhile",
            hint="it is described again at the next attempt",
            table=names,
            altered="meanwhile",
        ) from error

    # ------------------------------------------------------------------ errors

    def explain(self, error: DatabaseError, tables: Sequence[TableVersion | DestinationTable], command: str) -> None:
        """Raise what an error means for these tables.

        Args:
            error: of a statement that writes them.
            tables: the statement's.
            command: what it does.

        Raises:
            UnfitTableError: one was altered since it was described: it is described again at the next attempt.
            DataError: the destination refused the rows, or the statement.
        """
        names, types = [f"{table.owner}.{table.name}" for table in tables], list[str]()
        if is_stale(error) and (altered := self._altered(tables)):
            raise UnfitTableError(
                f"the destination table {', '.join(altered)} is not as it was described: {error.message}",
                hint="it is described again at the next attempt",
                table=", ".join(altered),
                altered="meanwhile",
            ) from error
        for table in tables:
            found = self._tables.get((table.owner, table.name))
            types += (
                [details.form.type_name for details in found.columns if details.form.type_number >= FIRST_USER_TYPE]
                if found
                else []
            )
        grants: Sequence[str] = ()
        if is_right(error):  # in another session, as `_altered` asks
            catalogs = [
                (catalog, table)
                for table in tables
                if (catalog := self._tables.get((table.owner, table.name))) is not None
            ]
            role = self._transaction.guard.role
            grants = missing_grants(self._dsn, self._application_name, role, catalogs, command)
        explain(error, names, command, list(dict.fromkeys(types)), grants)

    def _altered(self, tables: Sequence[TableVersion | DestinationTable]) -> list[str]:
        """Those tables that are not as they were described, which is forgotten.

        Asked in another session: nothing can be asked in a transaction that has failed.
        """
        with contextlib.closing(connect(self._dsn, application_name=self._application_name)) as connection:
            with translated("preparing a look at altered tables"):
                # What is altered right now may wait for this session's transaction.
                connection.execute(f"SET lock_timeout = {LOCK_TIMEOUT_MS}")
            altered = {
                (table.owner, table.name): None
                for table in tables
                if describe_table(connection, table.owner, table.name, self._settings)
                != self._tables.get((table.owner, table.name))
            }
        for key in altered:
            self._forget(*key)
        return [".".join(key) for key in altered]
