"""Descriptions of the tables that an apply server's session writes, and checks that they are up to date.

The session describes a table once. After the first write of each transaction, which locks the table, it asks the server
whether the table still has that form (`form_checks`). A statement made for another form often works: through an
assignment cast, or because values of two types have the same length. It would then write a wrong value. The meaning of
an error also depends on the tables (`explain`): a table may be altered, have user-defined types, or lack a right.
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
    """Descriptions of one session's tables.

    Args:
        dsn: connection string of the destination, for a second session while this session's transaction has failed.
        identity: identity of the session.
        settings: table settings of the apply process.
        transaction: transaction of the session.
    """

    def __init__(
        self, dsn: str, identity: SessionIdentity, settings: TableSettings, transaction: SessionTransaction
    ) -> None:
        self._dsn, self._application_name = dsn, identity.application_name
        self._settings, self._transaction = settings, transaction
        self._tables: dict[tuple[str, str], CatalogTable] = {}
        self._checked: set[tuple[str, str]] = set()  # tables that still have the described form, and are locked
        self._is_changed = False  # the transaction changes tables

    # ------------------------------------------------------------------ descriptions

    def catalog(self, owner: str, name: str, *, fresh: bool = False) -> CatalogTable | None:
        """Return the table's description; None when the table does not exist.

        It is the same object until the description changes.

        Args:
            owner: schema of the table.
            name: name of the table in that schema.
            fresh: read the catalog again.
        """
        found = self._tables.get((owner, name))
        if found is not None and not fresh:
            return found
        self._transaction.require_live()
        self._transaction.send_pending()
        catalog = describe_table(self._transaction.connection, owner, name, self._settings)
        if catalog == found and found is not None:
            return found  # the same object keeps plans valid
        self._forget(owner, name)
        if catalog is not None:
            self._tables[owner, name] = catalog
        return catalog

    def _forget(self, owner: str, name: str) -> None:
        self._tables.pop((owner, name), None)
        self._transaction.pipeline.forget()

    def begun(self) -> None:
        """Note that a transaction begins."""
        self._is_changed = False
        self.unlocked()

    def changed(self) -> None:
        """Forget all descriptions, because the transaction changes a table; those of others may have names of it."""
        self._is_changed = True
        self._forget_all()

    def undone(self) -> None:
        """Forget descriptions from behind a change of a table, after a rollback: of the transaction, or of a part."""
        self.unlocked()
        if self._is_changed:
            self._forget_all()

    def _forget_all(self) -> None:
        self._tables.clear()
        self._checked.clear()
        self._transaction.pipeline.forget()

    def missing_alter(self, version: TableVersion) -> str:
        """Return the statements that make a table fit rows of this version; empty when it fits."""
        return self._missing(version, self.catalog(version.owner, version.name))

    def fitting(self, write: Write) -> CatalogTable:
        """Return the table of a write, inside a transaction; the table must fit.

        Raises:
            UnfitTableError: the table does not fit.
        """
        self._transaction.require_open()
        version = write.version
        catalog = self.catalog(version.owner, version.name)
        missing = self._missing(version, catalog)
        if missing or catalog is None:
            raise unfit_error(version, missing, self._settings, is_there=catalog is not None)
        return catalog

    def _missing(self, version: TableVersion, catalog: CatalogTable | None) -> str:
        return missing_alter(version, catalog) or missing_key(version, self._settings)

    def relation(self, table: DestinationTable) -> str:
        """Return the table's name for statements, which excludes tables that inherit from it."""
        catalog = self.catalog(table.owner, table.name)
        return catalog.relation if catalog else qualified(table.owner, table.name)

    # ------------------------------------------------------------------ whether they are still so

    def unlocked(self) -> None:
        """Forget which tables are locked, when a transaction begins or rolls back to a savepoint."""
        self._checked.clear()

    def unchecked(self, writes: Sequence[Write]) -> set[tuple[str, str]]:
        """Return the tables of these writes that this transaction has not locked and checked yet."""
        return {(write.version.owner, write.version.name) for write in writes} - self._checked

    def form_checks(self, tables: Collection[tuple[str, str]]) -> list[Statement]:
        """Return statements that fail unless tables still have the described form.

        Args:
            tables: schemas and names of tables that were just written, and so are locked. `raise_altered` explains an
                error of these statements.
        """
        described = [catalog for catalog in (self._tables.get(key) for key in sorted(tables)) if catalog is not None]
        return [
            Statement(sql=SAME_FORM, parameters=(int8(catalog.oid), int8(catalog.form)), prepared=True)
            for catalog in described
        ]

    def checked(self, tables: Collection[tuple[str, str]]) -> None:
        """Note that `form_checks` succeeded for these tables."""
        self._checked.update(tables)

    def raise_altered(self, tables: Collection[tuple[str, str]], error: DatabaseError) -> None:
        """Raise the meaning of an error of `form_checks`.

        Args:
            tables: the checked tables, which will be described again.
            error: error of one of the statements.

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
        """Raise the meaning of an error of a statement that writes these tables.

        Raises:
            UnfitTableError: a table was altered since it was described; the next attempt describes it again.
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
        if is_right(error):  # queried in another session, as in `_altered`
            catalogs = [
                (catalog, table)
                for table in tables
                if (catalog := self._tables.get((table.owner, table.name))) is not None
            ]
            role = self._transaction.guard.role
            grants = missing_grants(self._dsn, self._application_name, role, catalogs, command)
        explain(error, names, command, list(dict.fromkeys(types)), grants)

    def _altered(self, tables: Sequence[TableVersion | DestinationTable]) -> list[str]:
        """Return the tables whose descriptions are stale, and forget these descriptions.

        Another session reads the catalog, because a failed transaction accepts no query.
        """
        with contextlib.closing(connect(self._dsn, application_name=self._application_name)) as connection:
            with translated("preparing a look at altered tables"):
                # An ALTER in progress may wait for this session's transaction.
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
