"""The transactions of an apply server's session, one after another: state, pending statements and savepoints.

States (memory only; the database has the durable truth)
    IDLE      no transaction.
    PENDING   `begin` was called, nothing was sent: BEGIN is sent with the first statement.
    OPEN      in a transaction.
    FAILED    a statement failed: only `rollback`, `rollback_to_savepoint` and `undo_to_mark` are allowed.
    CLOSED    `close` was called, or the connection broke: every call raises DatabaseUnavailable.

Savepoints, marks and the end of a timeout need no answer: they are pending until the next statement and sent with it.
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

# A transaction that waits this long for a row lock fails and is retried. It may wait for a transaction that in turn
# waits for it in the coordinator, which PostgreSQL's deadlock detector cannot see.
LOCK_TIMEOUT_MS = 5000

_BEGIN = Statement(sql="BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
_COMMIT = Statement(sql="COMMIT")


class TransactionState(Enum):
    """State of the session, as the module describes."""

    IDLE = "idle"
    PENDING = "pending"
    OPEN = "open"
    FAILED = "failed"
    CLOSED = "closed"


class SessionTransaction:
    """One connection and its transactions.

    Args:
        connection: connection in autocommit mode; used by one thread.
        guard: guard that detects changes of the session by users' SQL.
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
        """Raise DatabaseUnavailable unless the connection is open; then wait for the answers of writes ahead."""
        if self.state is TransactionState.CLOSED or self.connection.closed:
            self.close()
            raise DatabaseUnavailable("the session at the destination is closed: open a new one")
        self.ahead.settle()

    def require_open(self) -> None:
        """Raise an error unless a transaction is open that has not failed."""
        self.require_live()
        if self.state not in {TransactionState.PENDING, TransactionState.OPEN}:
            raise BugError(f"a transaction is needed, the session is {self.state.value}")
        if self._has_timeout:
            # The timeout is for handlers' statements, not for Headrace's own.
            self._pending.append(NO_TIMEOUT)
            self._has_timeout = False

    def require_idle(self, what: str) -> None:
        """Raise an error if a transaction has begun.

        Args:
            what: rule that would be broken, for the message.
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
            before: statements that run inside the transaction.
            after: statements that run after the COMMIT.

        Returns:
            One result for each of `before`, for COMMIT and for each of `after`.

        Raises:
            DatabaseError: a statement failed (`Pipeline.run`), and nothing is committed. `context["statement"]` also
                counts the pending statements; read `pending_count` before the call.
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
                self.close()  # the transaction is committed, and the next session finds that
                raise DatabaseUnavailable("the session was interrupted after a COMMIT") from error
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
                # The server rolls the transaction back when the connection closes.
                self.close()
        if self.state is not TransactionState.CLOSED:
            self.state = TransactionState.IDLE
        self._end()

    def fail(self) -> None:
        """Mark the transaction as failed after any error; its pending statements were sent."""
        self._pending = []
        if self.connection.closed or self.connection.pgconn.status != pq.ConnStatus.OK:
            self.close()
        elif self.state is not TransactionState.CLOSED:
            self.state = TransactionState.FAILED

    @property
    def is_closed(self) -> bool:
        """True when the connection is closed or broken."""
        return self.state is TransactionState.CLOSED or bool(self.connection.closed)

    def close(self) -> None:
        """Close the connection; idempotent."""
        self.state = TransactionState.CLOSED
        self.connection.close()

    def _end(self) -> None:
        """Reset the state of the transaction: no pending statements, savepoints, marks or timeout."""
        self._pending = []
        self._has_timeout = self._had_timeout = False
        self.savepoints.clear()
        self.guard.begin()

    # ------------------------------------------------------------------ savepoints

    def savepoint(self) -> None:
        """Set or move the savepoint."""
        self.require_open()
        self._pending += self.savepoints.set()

    def rollback_to_savepoint(self) -> None:
        """Undo the work after the savepoint."""
        self.ahead.forget()
        self.require_live()
        self._pending += self.savepoints.go_back()
        self._undone()

    def mark(self) -> int:
        """Set a mark; return its number. A savepoint that is set after it is removed with it."""
        self.require_open()
        self._pending += self.savepoints.mark()
        return self.savepoints.mark_count

    def undo_to_mark(self, mark: int) -> None:
        """Undo the work after a mark, and remove the mark."""
        self.ahead.forget()
        self.require_live()
        self._pending += self.savepoints.undo_to_mark(mark)
        self._undone()

    def drop_mark(self, mark: int) -> None:
        """Keep the work after a mark, and remove the mark."""
        self.require_open()
        self._pending += self.savepoints.drop_mark(mark)

    def _undone(self) -> None:
        self._has_timeout = self._had_timeout  # assume that the timeout was already set at the savepoint or mark
        if self.state is TransactionState.FAILED:
            self.state = TransactionState.OPEN

    # ------------------------------------------------------------------ statements

    @property
    def pending_count(self) -> int:
        """Number of statements that will be sent before the next one."""
        return len(self._pending)

    def run(self, statements: Sequence[Statement], what: str) -> list[pq.abc.PGresult]:
        """Send the pending statements and these; return the results of these.

        Args:
            statements: statements, run in order.
            what: name of the operation, for messages.
        """
        return self.send(statements, what)()

    def send(self, statements: Sequence[Statement], what: str) -> Callable[[], list[pq.abc.PGresult]]:
        """Send the pending statements and these; return a function that reads the results of these.

        The function must be called before anything else is sent.

        Args:
            statements: statements, run in order.
            what: name of the operation, for messages.
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
        """Send the pending statements, before an operation that uses the connection directly."""
        if self._pending:
            self.run([], "beginning a transaction")

    def run_bounded(self, statements: Sequence[Statement], timeout_s: float, what: str) -> None:
        """Run statements, and set a timeout for the handler's statements after them.

        Args:
            statements: statements, run in order.
            timeout_s: timeout of each following statement, until Headrace's next own statement, seconds.
            what: name of the operation, for messages.
        """
        self.run([*statements, timeout_of(timeout_s)], what)
        self._has_timeout = self._had_timeout = True

    def run_own(self, statement: Statement, what: str) -> pq.abc.PGresult:
        """Run one statement on Headrace's tables with the session's own rights; return its result.

        Args:
            statement: statement on Headrace's tables.
            what: name of the operation, for messages.
        """
        statements = self.guard.with_own_rights([statement])
        return self.run(statements, what)[statements.index(statement) - len(statements)]

    @contextlib.contextmanager
    def own_statements(self, what: str) -> Iterator[None]:
        """Allow statements through psycopg inside the transaction; an error fails the transaction.

        Args:
            what: name of the operation, for messages.
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
        """Mark the transaction as failed when anything is raised inside."""
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
        """Close the session when a prepared statement is outdated: the rows, or the handler, are not at fault."""
        if is_outdated(error):
            self.close()
            raise DatabaseUnavailable(
                f"{error.message}: a table was altered", hint="retrying: a new session prepares the statement again"
            ) from error
