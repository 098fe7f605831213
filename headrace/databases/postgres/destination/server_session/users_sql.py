"""SQL of users in an apply server's session: handlers' statements, triggers and rules that fire, roles.

`kept_session` defines the checks that such SQL leaves the session unchanged; this module runs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import psycopg
from psycopg import pq

from headrace.base.errors import BugError, DatabaseError, DataError
from headrace.databases.ports import DestinationTable, HandlerSql, SqlResult
from headrace.databases.postgres.connection import quote, translated
from headrace.databases.postgres.destination.server_session.described_tables import DescribedTables
from headrace.databases.postgres.destination.server_session.handler_sql import checks_of, refused_sql, run_statements
from headrace.databases.postgres.destination.server_session.transaction import SessionTransaction
from headrace.databases.postgres.destination.server_session.write_plans import WritePlans
from headrace.databases.postgres.pipeline import PREPARED_MAX, Statement

if TYPE_CHECKING:
    from headrace.lcr.batch import TableVersion

__all__ = ["ALL_NOW", "UsersSql"]

ALL_NOW = Statement(sql="SET CONSTRAINTS ALL IMMEDIATE")
"""Runs deferred triggers before the checks of the session, instead of after them in the COMMIT."""


class UsersSql:
    """Users' SQL in one session.

    Args:
        transaction: transaction of the session, with its guard.
        tables: tables of the session.
        plans: plans of the session, which know its types.
    """

    def __init__(self, transaction: SessionTransaction, tables: DescribedTables, plans: WritePlans) -> None:
        self._transaction, self._guard = transaction, transaction.guard
        self._tables, self._plans = tables, plans
        self._checked: set[str] = set()  # texts of handlers that the server's parser has accepted

    def run(self, statements: Sequence[HandlerSql], *, timeout_s: float) -> tuple[SqlResult, ...]:
        """Run handlers' statements, each with this timeout, and check the session afterwards."""
        self._transaction.require_open()
        self._note_session()
        unknown = [text for text in dict.fromkeys(each.sql for each in statements) if text not in self._checked]
        try:
            with self._transaction.failing():
                self._transaction.run_bounded(checks_of(unknown), timeout_s, "SQL of a handler")
                if len(self._checked) + len(unknown) > PREPARED_MAX:
                    self._checked.clear()
                self._checked.update(unknown)
                self._guard.ran_handlers = True
                results = run_statements(self._transaction.connection, statements)
        except DatabaseError as error:
            refused = refused_sql(error)
            if refused is error:
                raise
            raise refused from error
        if self._transaction.connection.pgconn.transaction_status != pq.TransactionStatus.INTRANS:
            self._transaction.close()
            raise BugError("a handler's SQL ended the transaction", hint="report the statement")
        self._check_session()
        return results

    def as_role(self, role: str) -> None:
        """Use a role's rights until the end of the transaction.

        Args:
            role: name of the role; empty for the session's own.
        """
        self._note_session()
        statement = f"SET LOCAL ROLE {quote(role)}" if role else "RESET ROLE"
        with self._transaction.own_statements("taking a role"):
            try:
                if self._guard.ran_handlers:
                    self._check_session()
                self._transaction.connection.execute(statement.encode())
                self._guard.role = role
            except (psycopg.errors.InvalidParameterValue, psycopg.errors.InsufficientPrivilege) as error:
                raise DataError(
                    f"the session cannot take the role {role!r}: {error.diag.message_primary}",
                    sqlstate=error.sqlstate or "",
                ) from error

    def note_fired(self, tables: Iterable[TableVersion | DestinationTable]) -> None:
        """Note tables that are about to be written, because their triggers and rules may change the session."""
        for table in tables:
            catalog = self._tables.catalog(table.owner, table.name)
            if catalog is not None and catalog.table.fires:
                self._note_session()
                self._guard.fired(f"{table.owner}.{table.name}")

    def _note_session(self) -> None:
        """Note the session's state before the first SQL of users or another role; most sessions never need it."""
        if not self._guard.is_noted:
            with self._transaction.own_statements("preparing the checks behind a handler"):
                self._guard.note()

    def _check_session(self) -> None:
        try:
            self._transaction.run(self._guard.check(self._plans.own_type), "checking the session behind a handler")
        except DatabaseError as error:
            self._guard.raise_changed(error, is_check=True)
            raise

    # ------------------------------------------------------------------ commit

    def checks_before_commit(self) -> list[Statement]:
        """Return checks that fail the COMMIT if users' SQL changed the session; empty if none ran.

        The result of the last check goes to `committed`.
        """
        if not self._guard.is_needed:
            return []
        return [*self._guard.check(self._plans.own_type), self._guard.owner_check()]

    def committed(self, checked: pq.abc.PGresult) -> None:
        """Remove leftovers of users' SQL from the session; the transaction is already committed."""
        if not self._guard.has_rest(checked):
            return
        try:
            with translated("taking back what handlers left in the session"):
                is_done = self._guard.take_back()
        except DatabaseError:
            is_done = False
        if not is_done:
            self._transaction.close()
