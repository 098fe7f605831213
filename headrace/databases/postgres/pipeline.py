"""Statements sent to PostgreSQL in one round trip, below psycopg's cursors.

psycopg dumps every parameter and parses every statement. Here parameters are finished binary buffers and statements are
prepared once, so a set of thousands of rows costs a handful of calls.
"""

from __future__ import annotations

import select
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors, pq

from headrace.base.errors import BugError, DatabaseUnavailable
from headrace.databases.postgres.connection import translate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Pipeline", "Statement"]

# Prepared statements kept per session: every table, times three commands, times some column sets.
PREPARED_MAX = 512
_BINARY = 1
# How long to wait in the kernel between checks for signals.
_POLL_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Statement:
    """One statement of a round trip.

    Args:
        sql: one statement.
        parameters: binary buffers; None is NULL.
        prepared: keep it prepared under its text.
    """

    sql: str
    parameters: Sequence[bytes | NDArray[np.uint8] | None] = ()
    prepared: bool = False


@dataclass(frozen=True, slots=True)
class _Answer:
    """A pending answer: its statement, and whether it answers the preparation for that statement."""

    statement: int
    extra: bool = False
    prepares: str = ""


class Pipeline:
    """One connection's round trips. The connection must be in autocommit mode, and used by one thread."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._names: OrderedDict[str, bytes] = OrderedDict()
        self._forgotten: list[bytes] = []
        self._next_name = 1

    def forget(self) -> None:
        """Prepare every statement again after a table has changed.

        The server replans a statement when an object it names is altered. But a statement that a rule rewrote to
        nothing names no object, and stays empty when the rule is gone.
        """
        self._forgotten += self._names.values()
        self._names.clear()

    def run(self, statements: Sequence[Statement], what: str) -> list[pq.abc.PGresult]:
        """Send all statements, then read all answers.

        Args:
            statements: run in order; after a failure the server skips the rest.
            what: action in progress, for messages.

        Returns:
            One result per statement.

        Raises:
            DatabaseError: the first error; `context["statement"]` is the index of the statement that failed.
        """
        return self.send(statements, what)()

    def send(self, statements: Sequence[Statement], what: str) -> Callable[[], list[pq.abc.PGresult]]:
        """Like `run`, but only send. The returned function reads the answers; call it once, before sending anything else.

        Args:
            statements: as for `run`.
            what: as for `run`.

        Raises:
            DatabaseError: they cannot be sent.
        """
        try:
            self._pgconn.enter_pipeline_mode()
            answers = self._send(statements)
            self._pgconn.pipeline_sync()
            self._flush()
        except psycopg.Error as error:
            raise translate(error, what) from error
        return lambda: self._read(answers, what)

    def _read(self, answers: list[_Answer], what: str) -> list[pq.abc.PGresult]:
        try:
            results, failure = self._receive(answers)
            if self._pgconn.status == pq.ConnStatus.OK:
                self._pgconn.exit_pipeline_mode()
        except psycopg.Error as error:
            raise translate(error, what) from error
        if failure is not None:
            index, result = failure
            cause = errors.error_from_result(result)
            raise translate(cause, what, statement=index) from cause
        return results

    def copy_in(self, sql: str, blocks: Iterable[bytes | memoryview | NDArray[np.uint8]], what: str) -> int:
        """Run a COPY ... FROM STDIN; returns the number of rows copied.

        Args:
            sql: the COPY statement.
            blocks: its input, including header and trailer.
            what: action in progress, for messages.
        """
        conn = self._pgconn
        try:
            conn.send_query(sql.encode())
            self._flush()
            started = self._result()
            if started is None or started.status != pq.ExecStatus.COPY_IN:
                self._drain()
                if started is None:
                    raise BugError("COPY answered nothing")
                raise errors.error_from_result(started)
            try:
                for block in blocks:
                    conn.put_copy_data(block)  # type: ignore[arg-type]
                    self._flush()
            except psycopg.Error:
                raise
            except BaseException:
                # The producer of the blocks failed: the server must not take the COPY for complete.
                conn.put_copy_end(b"the data ended early")
                self._drain()
                raise
            conn.put_copy_end()
            self._flush()
            result = self._result()
            self._drain()
            if result is None or result.status != pq.ExecStatus.COMMAND_OK:
                raise errors.error_from_result(result) if result is not None else psycopg.OperationalError("no answer")
            return result.command_tuples or 0
        except psycopg.Error as error:
            raise translate(error, what) from error

    def _send(self, statements: Sequence[Statement]) -> list[_Answer]:
        """Queue everything; returns which answers to expect."""
        answers: list[_Answer] = []
        conn = self._pgconn
        for index, statement in enumerate(statements):
            formats = [_BINARY] * len(statement.parameters)
            parameters: Any = statement.parameters  # psycopg accepts any buffer
            if not statement.prepared:
                conn.send_query_params(statement.sql.encode(), parameters, param_formats=formats or None)
                answers.append(_Answer(index))
                continue
            name = self._names.get(statement.sql)
            if name is None:
                if self._forgotten or len(self._names) >= PREPARED_MAX:
                    oldest = self._forgotten.pop() if self._forgotten else self._names.popitem(last=False)[1]
                    conn.send_query_params(b"DEALLOCATE " + oldest, None)
                    answers.append(_Answer(index, extra=True))
                name = b"headrace_%d" % self._next_name
                self._next_name += 1
                conn.send_prepare(name, statement.sql.encode())
                answers.append(_Answer(index, extra=True, prepares=statement.sql))
                self._names[statement.sql] = name
            else:
                self._names.move_to_end(statement.sql)
            conn.send_query_prepared(name, parameters, param_formats=formats or None)
            answers.append(_Answer(index))
        return answers

    def _receive(self, answers: list[_Answer]) -> tuple[list[pq.abc.PGresult], tuple[int, pq.abc.PGresult] | None]:
        results: list[pq.abc.PGresult] = []
        failure: tuple[int, pq.abc.PGresult] | None = None
        for answer in answers:
            result = self._result()
            if result is None:
                raise psycopg.OperationalError("the server did not answer every statement")
            self._drain()
            if failure is None and result.status == pq.ExecStatus.FATAL_ERROR:
                failure = (answer.statement, result)
            if not answer.extra:
                results.append(result)
            elif failure is not None and answer.prepares:
                self._names.pop(answer.prepares, None)  # failed or skipped: not prepared
        sync = self._result()
        if sync is None or sync.status != pq.ExecStatus.PIPELINE_SYNC:
            if failure is not None:
                return results, failure  # the server reported why it ended the session
            raise psycopg.OperationalError("the server's answers ended early")
        return results, failure

    def _flush(self) -> None:
        conn = self._pgconn
        while conn.flush() == 1:
            if self._poll(select.POLLIN | select.POLLOUT) & select.POLLIN:
                conn.consume_input()

    def _result(self) -> pq.abc.PGresult | None:
        conn = self._pgconn
        while conn.is_busy():
            self._poll(select.POLLIN)
            conn.consume_input()
        return conn.get_result()

    def _drain(self) -> None:
        """Read the end of one statement's answer."""
        while self._result() is not None:
            if self._pgconn.status == pq.ConnStatus.BAD:
                return

    def _poll(self, events: int) -> int:
        poller = select.poll()
        poller.register(self._pgconn.socket, events)
        while True:
            for _, event in poller.poll(_POLL_MS):
                return event
            if self._connection.closed:
                raise DatabaseUnavailable("the session was closed while it waited for an answer")
