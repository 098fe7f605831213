"""The transactions of an apply server's session, one after another: what was sent, what waits, and where to go back to.

States (memory only; the database has the durable truth)
    IDLE      no transaction.
    PENDING   `begin` was called, nothing was sent: BEGIN travels with the first statement.
    OPEN      in a transaction.
    FAILED    a statement failed: only `rollback`, `rollback_to_savepoint` or `undo_to_mark` go on.
    CLOSED    `close` was called, or the connection broke: every call raises DatabaseUnavailable.

Savepoints, marks and the end of a bound of time need no answer: they wait for the next statement and travel with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any

import psycopg
from psycopg import pq

from headrace.base.errors import BugError, DatabaseError, DatabaseUnavailable
from headrace.databases.postgres.connection import translated
from headrace.databases.postgres.destination.server_session.kept_session import NO_TIMEOUT, SessionGuard, timeout_of
from headrace.databases.postgres.destination.server_session.savepoints import Savepoints
from headrace.databases.postgres.destination.writing.write_errors import is_outdated
from headrace.databases.postgres.pipeline import Pipeline, Statement
from headrace.databases.written_ahead import WrittenAhead

__all__ = ["LOCK_TIMEOUT_MS", "SessionTransaction", "TransactionState"]

# A transaction that waits this long for a row lock gives up and is tried again: it may wait for a transaction that
# waits in the coordinator for it, which PostgreSQL's deadlock detector cannot see.
LOCK_TIMEOUT_MS = 5000

_BEGIN = Statement(sql="BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
_COMMIT = Statement(sql="COMMIT")


class TransactionState(Enum):
    """See the module."""

    IDLE = "idle"
    PENDING = "pending"
    OPEN = "open"
    FAILED = "failed"
    CLOSED = "closed"


class SessionTransaction:
    """One connection and its transactions.

    Args:
        connection: in autocommit mode; used by one thread.
        guard: which watches over what users' SQL leaves of the session.
    """

    def __init__(self, connection: psycopg.Connection[Any], guard: SessionGuard) -> None:
        self.connection, self.guard = connection, guard
        self.pipeline = Pipeline(connection)
        self.state = TransactionState.IDLE
        self.ahead = WrittenAhead()
        self._pending: list[Statement] = []
        self.savepoints = Savepoints()
        self._has_timeout = self._had_timeout = False

    # ------------------------------------------------------------------ states

    def require_live(self) -> None:
        """Raise DatabaseUnavailable unless the connection is there; what was written ahead is answered then."""
        if self.state is TransactionState.CLOSED or self.connection.closed:
            self.close()
            raise DatabaseUnavailable("the session at the destination is closed: open a new one")
        self.ahead.settle()

    def require_open(self) -> None:
        """Raise an error unless a transaction is there that can go on."""
        self.require_live()
        if self.state not in {TransactionState.PENDING, TransactionState.OPEN}:
            raise BugError(f"a transaction is needed, the session is {self.state.value}")
        if self._has_timeout:
            # The bound is of handlers' statements, and not of the product's own.
            self._pending.append(NO_TIMEOUT)
            self._has_timeout = False

    def require_idle(self, what: str) -> None:
        """Raise an error where a transaction is there.

        Args:
            what: is not done in one, for the message.
        """
        self.require_live()
        if self.state is not TransactionState.IDLE:
            raise BugError(f"{what}, and the session is {self.state.value}")

    def begin(self) -> None:
        """Begin a transaction."""
        self.require_live()
        if self.state is not TransactionState.IDLE:
            raise BugError(f"begin in a session that is {self.state.value}")
        self.state = TransactionState.PENDING
        self._end()
        self._pending = [_BEGIN]

    def commit(self, before: Sequence[Statement], after: Sequence[Statement]) -> list[pq.abc.PGresult]:
        """Send what is pending, `before`, COMMIT, and `after`, in one round trip.

        Args:
            before: run inside the transaction.
            after: run behind it.

        Returns:
            One result for each of `before`, for COMMIT and for each of `after`.

        Raises:
            DatabaseError: see `Pipeline.run`; it is not committed. `pending_count` tells what
                `context["statement"]` counts before `before`: ask before the call.
            DatabaseUnavailable: the outcome is unknown.
        """
        statements = [*self._pending, *before, _COMMIT, *after]
        commit = len(statements) - len(after) - 1
        try:
            results = self.pipeline.run(statements, "committing")
        except DatabaseError as error:
            self.fail()
            place = error.context.get("statement")
            if isinstance(place, int) and place > commit:
                self.close()  # it is committed, and the next session finds that
                raise DatabaseUnavailable("the session was interrupted behind a COMMIT") from error
            raise
        if results[commit].command_status != b"COMMIT":
            self.fail()
            raise BugError("a transaction that had failed was committed")
        results = results[len(self._pending) :]
        self.state = TransactionState.IDLE
        self._end()
        return results

    def rollback(self) -> None:
        """Undo the transaction; idempotent."""
        self.ahead.forget()
        if self.state in {TransactionState.OPEN, TransactionState.FAILED}:
            try:
                self.pipeline.run([Statement(sql="ROLLBACK")], "rolling back")
            except DatabaseError:
                # Then the server rolls back by itself: it ends the transaction with the connection.
                self.close()
        if self.state is not TransactionState.CLOSED:
            self.state = TransactionState.IDLE
        self._end()

    def fail(self) -> None:
        """After any error: what was pending was sent, and the transaction cannot go on."""
        self._pending = []
        if self.connection.closed or self.connection.pgconn.status != pq.ConnStatus.OK:
            self.close()
        elif self.state is not TransactionState.CLOSED:
            self.state = TransactionState.FAILED

    @property
    def is_closed(self) -> bool:
        """Whether the connection is gone."""
        return self.state is TransactionState.CLOSED or bool(self.connection.closed)

    def close(self) -> None:
        """Close the connection; idempotent."""
        self.state = TransactionState.CLOSED
        self.connection.close()

    def _end(self) -> None:
        """No transaction, or a new one: nothing pending, no savepoint, no mark, no bound of time."""
        self._pending = []
        self._has_timeout = self._had_timeout = False
        self.savepoints.clear()
        self.guard.begin()

    # ------------------------------------------------------------------ savepoints

    def savepoint(self) -> None:
        """Set or move the one savepoint."""
        self.require_open()
        self._pending += self.savepoints.set()

    def rollback_to_savepoint(self) -> None:
        """Undo what came after the savepoint."""
        self.ahead.forget()
        self.require_live()
        self._pending += self.savepoints.go_back()
        self._undone()

    def mark(self) -> int:
        """Set a mark; the savepoint that is set behind it is gone with it."""
        self.require_open()
        self._pending += self.savepoints.mark()
        return self.savepoints.mark_count

    def undo_to_mark(self, mark: int) -> None:
        """Undo what came after a mark, which is gone."""
        self.ahead.forget()
        self.require_live()
        self._pending += self.savepoints.undo_to_mark(mark)
        self._undone()

    def drop_mark(self, mark: int) -> None:
        """Keep what came after a mark, which is gone."""
        self.require_open()
        self._pending += self.savepoints.drop_mark(mark)

    def _undone(self) -> None:
        self._has_timeout = self._had_timeout  # as it was at the savepoint or mark, for all that is known
        if self.state is TransactionState.FAILED:
            self.state = TransactionState.OPEN

    # ------------------------------------------------------------------ statements

    @property
    def pending_count(self) -> int:
        """How many statements travel before the next one."""
        return len(self._pending)

    def run(self, statements: Sequence[Statement], what: str) -> list[pq.abc.PGresult]:
        """Send what is pending and these; the results of these.

        Args:
            statements: run in order.
            what: what is being done, for messages.
        """
        return self.send(statements, what)()

    def send(self, statements: Sequence[Statement], what: str) -> Callable[[], list[pq.abc.PGresult]]:
        """As `run`, but only send: a function reads the answers, and must be called before anything else is sent.

        Args:
            statements: see `run`.
            what: see `run`.
        """
        self.ahead.settle()
        pending, self._pending = self._pending, []
        with self.failing():
            send = self.pipeline.send([*pending, *statements], what)
        self.state = TransactionState.OPEN

        def read() -> list[pq.abc.PGresult]:
            with self.failing():
                return send()[len(pending) :]

        return read

    def send_pending(self) -> None:
        """Send what is pending, before something that does not go through here."""
        if self._pending:
            self.run([], "beginning a transaction")

    def run_bounded(self, statements: Sequence[Statement], timeout_s: float, what: str) -> None:
        """Run statements, and bound what a handler runs behind them.

        Args:
            statements: see `run`.
            timeout_s: of each statement behind them, until the product's own come.
            what: see `run`.
        """
        self.run([*statements, timeout_of(timeout_s)], what)
        self._has_timeout = self._had_timeout = True

    def run_own(self, statement: Statement, what: str) -> pq.abc.PGresult:
        """Run one statement of what Headrace notes; its result.

        Args:
            statement: of Headrace's tables.
            what: see `run`.
        """
        statements = self.guard.with_own_rights([statement])
        return self.run(statements, what)[statements.index(statement) - len(statements)]

    @contextlib.contextmanager
    def own_statements(self, what: str) -> Iterator[None]:
        """Statements through psycopg inside the transaction; an error fails it.

        Args:
            what: see `run`.
        """
        self.require_open()
        self.send_pending()
        try:
            with translated(what):
                yield
        except BaseException:
            self.fail()
            raise

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Whatever is raised inside fails the transaction."""
        try:
            yield
        except DatabaseError as error:
            self.fail()
            self.guard.raise_changed(error, is_check=False)
            self._raise_outdated(error)
            raise
        except BaseException:
            self.fail()
            raise

    def _raise_outdated(self, error: DatabaseError) -> None:
        """What is prepared goes with the session; the rows, or the handler, are not at fault."""
        if is_outdated(error):
            self.close()
            raise DatabaseUnavailable(
                f"{error.message}: a table was altered", hint="the statement is prepared again, in another session"
            ) from error
