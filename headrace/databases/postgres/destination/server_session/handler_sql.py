"""SQL of users' handlers in an apply server's transaction.

Only SELECT, INSERT, UPDATE, DELETE, MERGE and VALUES can run. PostgreSQL's parser first checks each text after
`PREPARE name AS`, which accepts nothing else. Both that statement and the text are sent in protocol messages that hold
only one statement, whatever the lexer's settings are. So no text can begin or end the transaction or move a savepoint.
Functions and procedures cannot either: PostgreSQL refuses a COMMIT inside a statement of an open transaction.

A SELECT can call functions that change the session (set_config, pg_advisory_unlock_all, ...); `kept_session` detects
that.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.adapt import Dumper, PyFormat
from psycopg.pq import Format
from psycopg.types.json import Json, Jsonb

from headrace.base.errors import DatabaseError, DatabaseUnavailable, DataError, DestinationRestarted, FencedError
from headrace.databases.ports import HandlerSql, SqlResult
from headrace.databases.postgres.connection import translate
from headrace.databases.postgres.pipeline import Statement
from headrace.databases.postgres.values.exact_values import IntervalTextDumper, json_text
from headrace.databases.postgres.values.python_values import NoText, builtin_number, checked
from headrace.lcr.lcr_value import LcrValue

if TYPE_CHECKING:
    from psycopg import RawCursor

__all__ = ["checks_of", "refused_sql", "run_statements"]

_ROWS_MAX = 100_000  # rows of one answer; more would be a copy of a table in the memory of an apply server
_CANCELED = "57014"  # canceled by statement_timeout
_TEXTS = ("pg_catalog.text", "pg_catalog.varchar", "pg_catalog.bpchar")
_SYNTAX = "42601"
_PROTOCOL = "08P01"
# Connections, serialization and deadlocks, shutdowns, a server that became a standby, disks: the same statement may
# succeed later. Other errors of classes 08, 53, 55 and 57 come from the statement or a function, and a retry gives them
# again. Examples are 55P03 (NOWAIT, or a row locked beyond the lock timeout), 08P01 (too few values for the text) and
# 08003 (dblink does not know a name). A lost connection has no SQLSTATE, or one of class 57; a pooler in between sends
# 08P01 as its last message.
_ENVIRONMENT = (
    "08000",
    "08001",
    "08004",
    "08006",
    "08007",
    "40001",
    "40003",
    "40P01",
    "53100",
    "53200",
    "53300",
    "57P0",
    "58",
    "25006",
    "25P03",
    "25P04",
)


def checks_of(texts: Sequence[str]) -> list[Statement]:
    """Return statements that fail if a text is not a statement that reads or writes rows.

    Raises:
        DataError: a text cannot be sent.
    """
    for text in texts:
        _check_text(text, "the text of the statement")
    return [
        Statement(sql=made)
        for text in texts
        for made in (f"PREPARE headrace_handler AS {text}", "DEALLOCATE headrace_handler")
    ]


def run_statements(connection: psycopg.Connection[Any], statements: Sequence[HandlerSql]) -> tuple[SqlResult, ...]:
    """Run checked statements in one round trip, in order, inside the transaction.

    Raises:
        DatabaseError: the error of the first failed statement; the transaction has failed.
    """
    cursors: list[RawCursor[Any]] = []
    try:
        # A pipeline uses the extended protocol even for one statement, so that a message holds only one.
        with connection.pipeline():
            cursors += [_executed(connection, each) for each in statements]
    except psycopg.Error as error:
        raise translate(error, "SQL of a handler") from error
    try:
        return tuple(_result(cursor) for cursor in cursors)
    except psycopg.Error as error:
        raise translate(error, "SQL of a handler") from error
    except MemoryError as error:
        raise DataError(
            "SQL of a handler: its answer takes more memory than a call may use",
            hint="read less at a time, or let the database do it",
            sqlstate="",
        ) from error


def refused_sql(error: DatabaseError) -> DatabaseError:
    """Return the meaning of an error of a handler's statement: faults not of the environment are the statement's."""
    state = str(error.context.get("sqlstate", ""))
    is_environment = isinstance(error, DestinationRestarted | FencedError) or (
        isinstance(error, DatabaseUnavailable)
        and (not state or state.startswith(_ENVIRONMENT) or _ended_session(error))
    )
    if isinstance(error, DataError) or is_environment:
        return error
    message, hint = error.message, error.hint
    if state == _SYNTAX:
        hint = (
            hint
            or "a handler runs one SELECT, INSERT, UPDATE, DELETE or MERGE at a time; its transaction is the apply"
            " process's"
        )
    if state == _CANCELED:
        message, hint = f"{message}: it took too long", "make it faster, or raise handler_timeout_s"
    made = DataError(message, hint=hint, **error.context)
    made.detail = error.detail
    return made


def _ended_session(error: DatabaseError) -> bool:
    """Return whether the error ended its session, or a session to another server, whatever its class."""
    if not isinstance(error.__cause__, psycopg.Error):
        return False
    said = error.__cause__.diag
    # PgBouncer sends only the severity that a server would translate. Its 08P01 for a lost session of dblink or of a
    # foreign table arrives as an error of the function that used it, with a context. The server's 08P01 for too few
    # values concerns the statement itself, and has no context.
    return (said.severity_nonlocalized or said.severity) in ("FATAL", "PANIC") or (
        said.sqlstate == _PROTOCOL and bool(said.context)
    )


def _executed(connection: psycopg.Connection[Any], statement: HandlerSql) -> RawCursor[Any]:
    cursor = psycopg.RawCursor(connection)
    try:
        values = [_sent(value, number) for number, value in enumerate(statement.values, start=1)]
        cursor.execute(statement.sql.encode(), values)
    except (psycopg.Error, DatabaseError):
        raise
    except Exception as error:  # text that is no UTF-8, JSON that cannot be written, numbers out of range, and whatever users' own objects raise
        message = f"SQL of a handler: a value cannot be a parameter: {type(error).__name__}"
        raise DataError(
            message, hint="give texts without lone surrogates, and JSON of texts, numbers, lists and dicts", sqlstate=""
        ) from error
    return cursor


def _check_text(text: str, what: str) -> None:
    try:
        checked(text)
    except NoText as error:
        raise DataError(f"SQL of a handler: {what} holds {error}", hint=error.hint, sqlstate="") from error


class _Sent:
    """A value of an LCR as a parameter: its bytes and their type; type 0 is the one that the statement needs."""

    __slots__ = ("data", "type_number")

    def __init__(self, data: bytes, type_number: int) -> None:
        self.data, self.type_number = data, type_number


class _SentBinary(_Sent):
    """A value in binary form."""

    __slots__ = ()


class _SentDumper(Dumper):
    """Dumper that passes the bytes to psycopg unchanged."""

    format = Format.TEXT

    def get_key(self, obj: _Sent, format: PyFormat) -> Any:  # noqa: A002, ANN401, ARG002 - psycopg's
        return (self.cls, obj.type_number)

    def upgrade(self, obj: _Sent, format: PyFormat) -> _SentDumper:  # noqa: A002, ARG002 - psycopg's
        made = type(self)(self.cls)
        made.oid = obj.type_number
        return made

    def dump(self, obj: _Sent) -> bytes:
        return obj.data


class _SentBinaryDumper(_SentDumper):
    format = Format.BINARY


psycopg.adapters.register_dumper(_Sent, _SentDumper)
psycopg.adapters.register_dumper(_SentBinary, _SentBinaryDumper)
# An interval from an LCR stores its hours and days separately.
psycopg.adapters.register_dumper(timedelta, IntervalTextDumper)


def _sent(value: Any, number: int) -> Any:  # noqa: ANN401 - any object of a handler
    """Return a value in the form that psycopg accepts.

    Args:
        value: an object of a handler, or a value of an LCR.
        number: number of the parameter, from 1.
    """
    if isinstance(value, str):
        _check_text(value, f"the value of ${number}")
        return value
    if isinstance(value, dict):  # a JSON object is read as a dict; a list could be JSON or an array
        return Jsonb(value, dumps=json_text)
    if isinstance(value, Jsonb | Json) and value.dumps is None:
        return type(value)(value.obj, dumps=json_text)
    if not isinstance(value, LcrValue):
        return value
    if value.raw is None:
        return None
    # User-defined types have other numbers here. A text has no type, so that it becomes what the statement needs, as a
    # quoted literal in SQL. A domain's number would act the same way: eight bytes of a time, for an integer column.
    known = 0 if value.column.type_name in _TEXTS else builtin_number(value.column)
    return (_SentBinary if value.column.is_binary else _Sent)(value.raw, known)


def _result(cursor: RawCursor[Any]) -> SqlResult:
    if cursor.description is None:
        return SqlResult(row_count=max(0, cursor.rowcount))
    if cursor.rowcount > _ROWS_MAX:
        message = f"SQL of a handler returned {cursor.rowcount:,} rows, and {_ROWS_MAX:,} at most are read"
        raise DataError(message, hint="add a condition, or let the database do it", sqlstate="")
    return SqlResult(rows=tuple(tuple(row) for row in cursor.fetchall()), row_count=cursor.rowcount)
