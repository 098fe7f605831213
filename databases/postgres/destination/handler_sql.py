"""SQL of users' handlers in an apply server's transaction.

What is no SELECT, INSERT, UPDATE, DELETE, MERGE or VALUES cannot run: each text is first given to PostgreSQL's own parser behind
`PREPARE name AS`, which takes nothing else, and both that and the text itself travel in protocol messages that hold one statement only,
whatever the lexer's settings are. So no text can end the transaction, begin one or move a savepoint. A function or procedure
cannot either: PostgreSQL refuses a COMMIT below a statement of an open transaction.

A SELECT can call what changes the session (set_config, pg_advisory_unlock_all, ...). That is found, not prevented: `session_check` runs
behind each round trip of handlers' statements, `owner_check` besides it before the COMMIT, and both stop the transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from databases.ports import HandlerSql, SqlResult
from databases.postgres.connection import translate
from databases.postgres.destination.pipeline import Statement
from streams.errors import DatabaseError, DatabaseUnavailable, DataError, DestinationRestarted, FencedError

if TYPE_CHECKING:
    from psycopg import RawCursor

__all__ = [
    "NO_TIMEOUT", "changed_session", "checks_of", "owner_check", "prepare_check", "refused_sql", "run_statements", "session_check", "timeout_of",
]

_ROWS_MAX = 100_000  # of one answer: more is a copy of a table in the memory of an apply server
_CANCELED = "57014"  # by statement_timeout
_SYNTAX = "42601"
# Connections, serialization and deadlocks, shutdowns, a server that became a standby, disks: the same statement may succeed later.
# The rest of 53, 55 and 57 is what a statement or a function says each time again: 55P03 too, which a NOWAIT or a row that is
# locked longer than the lock timeout means.
_ENVIRONMENT = ("08", "40001", "40003", "40P01", "53100", "53200", "53300", "57P0", "58", "25006", "25P03", "25P04")
_GONE = "26000"  # a prepared statement
_DIVISION_BY_ZERO = "22012"
_CHECK = "headrace_handled"
# What PREPARE, set_config and functions must leave as it was, besides the session's own settings.
_KEPT = (
    "synchronous_commit", "standard_conforming_strings", "search_path", "row_security", "DateStyle", "IntervalStyle", "TimeZone",
    "bytea_output", "extra_float_digits", "client_encoding", "xmloption", "lc_monetary",
)
_CHANGED = "a handler's SQL changed the apply server's session: its settings, role, replication origin, locks or prepared statements"
_CHANGED_HINT = "do not call set_config, pg_advisory_unlock_all, pg_replication_origin_session_reset or the like, nor SET or DEALLOCATE in a function"
_MAY_ASK = "SELECT pg_catalog.has_function_privilege('pg_catalog.pg_replication_origin_session_is_setup()', 'EXECUTE')"

NO_TIMEOUT = Statement(sql="SET LOCAL statement_timeout TO DEFAULT")


def timeout_of(timeout_s: float) -> Statement:
    """What bounds the statements that follow in the transaction."""
    return Statement(sql=f"SET LOCAL statement_timeout TO {max(1, int(timeout_s * 1000))}")


def checks_of(texts: Sequence[str]) -> list[Statement]:
    """Statements that fail if a text is none that reads or writes rows."""
    return [
        Statement(sql=made) for text in texts for made in (f"PREPARE headrace_handler AS {text}", "DEALLOCATE headrace_handler")
    ]


def prepare_check(connection: psycopg.Connection[Any], names: Iterable[str]) -> str:
    """Prepare `session_check` for a session that is as it should be; returns the role that it has without one taken.

    Args:
        connection: settled, before the first SQL of a handler.
        names: of its settings that must stay, besides those of every session.
    """
    kept = [*names, *_KEPT]
    found = connection.execute(
        "SELECT name, pg_catalog.current_setting(name) FROM unnest(%s::text[]) AS s(name)"
        " UNION ALL SELECT 'session_authorization', session_user", (kept,),
    ).fetchall()
    same = sql.SQL(" AND ").join(
        sql.SQL("pg_catalog.current_setting({}) OPERATOR(pg_catalog.=) {}").format(sql.Literal(name), sql.Literal(value)) for name, value in found
    )
    connection.execute(
        sql.SQL("PREPARE {} (text) AS SELECT 1 / (pg_catalog.current_setting('role') OPERATOR(pg_catalog.=) $1 AND {})::int4").format(
            sql.SQL(_CHECK), same
        )
    )
    row = connection.execute("SELECT pg_catalog.current_setting('role')").fetchone()
    assert row is not None
    return str(row[0])


def session_check(role: str) -> Statement:
    """Fails (`changed_session`) unless the session is as `prepare_check` found it.

    Args:
        role: that it must have.
    """
    return Statement(sql=f"EXECUTE {_CHECK} ({sql.Literal(role).as_string(None)})")


def owner_check(connection: psycopg.Connection[Any], locks: Sequence[int]) -> Statement:
    """Fails (`changed_session`) unless the session has its advisory locks and a replication origin.

    Args:
        connection: settled, before the first SQL of a handler.
        locks: their numbers.
    """
    found = connection.execute(_MAY_ASK).fetchone()
    origin = " AND pg_catalog.pg_replication_origin_session_is_setup()" if found is not None and found[0] else ""
    pairs = ", ".join(f"({key >> 32 & 0xFFFFFFFF}::oid, {key & 0xFFFFFFFF}::oid)" for key in locks)
    return Statement(
        sql=f"SELECT 1 / ((SELECT count(*) FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
        f" AND pid = pg_catalog.pg_backend_pid() AND (classid, objid) IN ({pairs})) = {len(set(locks))}{origin})::int4"
    )


def changed_session(error: DatabaseError, *, is_check: bool) -> DataError | None:
    """The handler's error that an error means; None: it is none of a session that a handler changed.

    Args:
        error: of a statement behind handlers' SQL.
        is_check: whether the statement was one of the checks.
    """
    state = error.context.get("sqlstate")
    if state == _GONE or (is_check and state == _DIVISION_BY_ZERO):
        return DataError(_CHANGED, hint=_CHANGED_HINT, sqlstate="")
    return None


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
        return tuple(_result(cursor) for cursor in cursors)
    except psycopg.Error as error:
        raise translate(error, "SQL of a handler") from error


def refused_sql(error: DatabaseError) -> DatabaseError:
    """What an error of a handler's statement means: everything that is not the environment's fault is the statement's."""
    state = str(error.context.get("sqlstate", ""))
    is_environment = isinstance(error, DestinationRestarted | FencedError) or (
        isinstance(error, DatabaseUnavailable) and (not state or state.startswith(_ENVIRONMENT))
    )
    if isinstance(error, DataError) or is_environment:
        return error
    message, hint = error.message, error.hint
    if state == _SYNTAX:
        hint = hint or "a handler runs one SELECT, INSERT, UPDATE, DELETE or MERGE at a time; its transaction is the apply process's"
    if state == _CANCELED:
        message, hint = f"{message}: it took too long", "make it faster, or raise handler_timeout_s"
    made = DataError(message, hint=hint, **error.context)
    made.detail = error.detail
    return made


def _executed(connection: psycopg.Connection[Any], statement: HandlerSql) -> RawCursor[Any]:
    cursor = psycopg.RawCursor(connection)
    cursor.execute(statement.sql.encode(), statement.values)
    return cursor


def _result(cursor: RawCursor[Any]) -> SqlResult:
    if cursor.description is None:
        return SqlResult(row_count=max(0, cursor.rowcount))
    if cursor.rowcount > _ROWS_MAX:
        message = f"SQL of a handler answered {cursor.rowcount:,} rows, and {_ROWS_MAX:,} at most are read"
        raise DataError(message, hint="add a condition, or let the database do it", sqlstate="")
    return SqlResult(rows=tuple(tuple(row) for row in cursor.fetchall()), row_count=cursor.rowcount)
