"""SQL of users in an apply server's session: handlers' statements, triggers and rules that fire, roles.

What such SQL must leave as it was, and how that is found, is in `kept_session`; here is when it is asked.
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
"""What is deferred runs before the checks of the session, and not behind them in the COMMIT."""


class UsersSql:
    """See the module.

    Args:
        transaction: of the session, with its guard.
        tables: of the session.
        plans: of the session, which know what types it has made.
    """

    def __init__(self, transaction: SessionTransaction, tables: DescribedTables, plans: WritePlans) -> None:
        self._transaction, self._guard = transaction, transaction.guard
        self._tables, self._plans = tables, plans
        self._checked: set[str] = set()  # texts of handlers that the server's parser has taken

    def run(self, statements: Sequence[HandlerSql], *, timeout_s: float) -> tuple[SqlResult, ...]:
        """See `DestinationSession.run_sql`.

        Args:
            statements: of handlers.
            timeout_s: for each of them.
        """
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
        """See `DestinationSession.as_role`.

        Args:
            role: of the database; empty: the session's own again.
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
        """Before tables are written: their triggers and rules may change the session.

        Args:
            tables: that are written.
        """
        for table in tables:
            catalog = self._tables.catalog(table.owner, table.name)
            if catalog is not None and catalog.table.fires:
                self._note_session()
                self._guard.fired(f"{table.owner}.{table.name}")

    def _note_session(self) -> None:
        """Before the first SQL of users, and before another role is taken; most sessions never need it."""
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
        """Fail the COMMIT of a transaction in which users' SQL ran and changed the session; none: it ran none.

        The last one's result goes to `committed`.
        """
        if not self._guard.is_needed:
            return []
        return [*self._guard.check(self._plans.own_type), self._guard.owner_check()]

    def committed(self, checked: pq.abc.PGresult) -> None:
        """Let go of what users' SQL has left behind; the transaction is committed, whatever becomes of the session.

        Args:
            checked: result of the last one of `checks_before_commit`.
        """
        if not self._guard.has_rest(checked):
            return
        try:
            with translated("taking back what handlers left in the session"):
                is_done = self._guard.take_back()
        except DatabaseError:
            is_done = False
        if not is_done:
            self._transaction.close()
