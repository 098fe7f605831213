"""SQL of users' handlers in an apply server's transaction.

What is no SELECT, INSERT, UPDATE, DELETE, MERGE or VALUES cannot run: each text is first given to PostgreSQL's own
parser behind `PREPARE name AS`, which takes nothing else, and both that and the text itself travel in protocol messages
that hold one statement only, whatever the lexer's settings are. So no text can end the transaction, begin one or move a
savepoint. A function or procedure cannot either: PostgreSQL refuses a COMMIT below a statement of an open transaction.

A SELECT can call what changes the session (set_config, pg_advisory_unlock_all, ...): see `kept_session`.
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

_ROWS_MAX = 100_000  # of one answer: more is a copy of a table in the memory of an apply server
_CANCELED = "57014"  # by statement_timeout
_TEXTS = ("pg_catalog.text", "pg_catalog.varchar", "pg_catalog.bpchar")
_SYNTAX = "42601"
_PROTOCOL = "08P01"
# Connections, serialization and deadlocks, shutdowns, a server that became a standby, disks: the same statement may
# succeed later. The rest of 08, 53, 55 and 57 is what a statement or a function says each time again: 55P03 too, which
# a NOWAIT or a row that is locked longer than the lock timeout means; 08P01, which too few values for the text mean;
# 08003, which dblink says of a name that it does not know. A connection that is lost has no SQLSTATE, or one of 57; a
# pooler in between says 08P01, as its last message.
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
    """Statements that fail if a text is none that reads or writes rows.

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
    """Run checked statements in one round trip.

    Args:
        connection: in a transaction.
        statements: in order.

    Raises:
        DatabaseError: the first that failed; the transaction has failed with it.
    """
    cursors: list[RawCursor[Any]] = []
    try:
        # In a pipeline even one statement travels by the extended protocol: a message of one statement.
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
            "SQL of a handler: its answer takes more memory than a call may",
            hint="read less at a time, or let the database do it",
            sqlstate="",
        ) from error


def refused_sql(error: DatabaseError) -> DatabaseError:
    """What an error of a handler's statement means: everything that is not the environment's fault is the statement's."""
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
    """Whether the error was the last message of its session, or of one to another server, whatever its class."""
    if not isinstance(error.__cause__, psycopg.Error):
        return False
    said = error.__cause__.diag
    # PgBouncer sends no severity but the one that a server would translate. What it says of a lost session of dblink,
    # or of a foreign table, comes as an error of the function that used it; of too few values the server says it of the
    # statement itself, without a place in it.
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
    """A value of an LCR as a parameter: its bytes, and the type that they are of.

    0: the one that the statement needs there.
    """

    __slots__ = ("data", "type_number")

    def __init__(self, data: bytes, type_number: int) -> None:
        self.data, self.type_number = data, type_number


class _SentBinary(_Sent):
    """In binary form."""

    __slots__ = ()


class _SentDumper(Dumper):
    """Gives psycopg the bytes as they are."""

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
# an interval that was read of an LCR has its hours apart from its days
psycopg.adapters.register_dumper(timedelta, IntervalTextDumper)


def _sent(value: Any, number: int) -> Any:  # noqa: ANN401 - what a handler gives
    """A value as psycopg takes it.

    Args:
        value: what a handler gives, or one of an LCR.
        number: of its parameter, from 1.
    """
    if isinstance(value, str):
        _check_text(value, f"the value of ${number}")
        return value
    if isinstance(value, dict):  # a JSON object is read as a dict; of a list nobody can tell whether it is an array
        return Jsonb(value, dumps=json_text)
    if isinstance(value, Jsonb | Json) and value.dumps is None:
        return type(value)(value.obj, dumps=json_text)
    if not isinstance(value, LcrValue):
        return value
    if value.raw is None:
        return None
    # Types that are not built in have other numbers here. A text is taken for what the statement needs, as a quoted one
    # in SQL. So would be a domain by its number: eight bytes of a time, for a column of whole numbers.
    known = 0 if value.column.type_name in _TEXTS else builtin_number(value.column)
    return (_SentBinary if value.column.is_binary else _Sent)(value.raw, known)


def _result(cursor: RawCursor[Any]) -> SqlResult:
    if cursor.description is None:
        return SqlResult(row_count=max(0, cursor.rowcount))
    if cursor.rowcount > _ROWS_MAX:
        message = f"SQL of a handler answered {cursor.rowcount:,} rows, and {_ROWS_MAX:,} at most are read"
        raise DataError(message, hint="add a condition, or let the database do it", sqlstate="")
    return SqlResult(rows=tuple(tuple(row) for row in cursor.fetchall()), row_count=cursor.rowcount)
