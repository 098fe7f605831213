"""Statements that a test runs as a client of its own.

A new session costs the server some ten milliseconds of processor time, twenty times what most of these statements take,
and `make test` runs tens of thousands of them. So a few sessions are kept, and look like new ones: each is reset behind
every statement. A statement whose effect depends on when its session began gets a new one.
"""

from __future__ import annotations

import atexit
import re
import select
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from headrace.load.contents import contents

__all__ = ["close_kept", "digest", "execute", "roll_back", "row_of"]

# A test has two or three databases; others are those of servers that live longer.
_KEPT_MAX = 4
# What a session has had since its beginning (settings and rights of a role or database), what has to wait for sessions
# to end, and what counts or ends them.
_NEEDS_NEW = re.compile(
    r"\b(?:alter\s+(?:database|role|user|system)|(?:create|drop)\s+database|pg_reload_conf|pg_stat_activity|numbackends"
    r"|pg_terminate_backend|pg_backend_pid|prepare\s+transaction|(?:commit|rollback)\s+prepared)\b",
    re.IGNORECASE,
)
_kept: dict[str, psycopg.Connection] = {}  # idle ones, by dsn; the newest last. Threads take one out to use it


def execute(dsn: str, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Execute a statement; return its rows.

    Args:
        dsn: of the database.
        statement: without parameters it may contain several, which run in one transaction.
        parameters: of the statement.
    """
    if _NEEDS_NEW.search(statement):
        close_kept()
        with psycopg.connect(dsn, autocommit=True) as connection:
            return _rows(connection, statement, parameters)
    session = _take(dsn)
    try:
        rows = _rows(session, statement, parameters)
        is_idle = session.info.transaction_status is TransactionStatus.IDLE
        if is_idle:
            session.execute("DISCARD ALL")
    except BaseException:
        session.close()
        raise
    if is_idle:
        _keep(dsn, session)
    else:
        session.close()
    return rows


def row_of(cursor: psycopg.Cursor[Any]) -> tuple[Any, ...]:
    """Return the next row of what was executed, which must have one."""
    row: tuple[Any, ...] | None = cursor.fetchone()
    assert row is not None, "no row"
    return row


def roll_back() -> None:
    """End the transaction of the `with` around this call, and go on behind it."""
    raise psycopg.Rollback


def digest(dsn: str, table: str) -> tuple[int, int]:
    """Return the digest of `contents`."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return contents(connection, table)


@atexit.register
def close_kept() -> None:
    """Close all sessions that are kept."""
    while _kept:
        _kept.popitem()[1].close()


def _rows(session: psycopg.Connection, statement: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    cursor = session.execute(statement, parameters or None)
    return cursor.fetchall() if cursor.description else []


def _take(dsn: str) -> psycopg.Connection:
    """Return a session that no other thread uses."""
    session = _kept.pop(dsn, None)
    if session is not None:
        if not session.closed and not select.select([session.fileno()], [], [], 0)[0]:
            return session
        session.close()  # ended by the server, or told something
    # `DISCARD ALL` forgets prepared statements, which psycopg would look for.
    return psycopg.connect(dsn, autocommit=True, prepare_threshold=None)


def _keep(dsn: str, session: psycopg.Connection) -> None:
    previous = _kept.pop(dsn, None)  # of another thread
    _kept[dsn] = session
    if previous is not None:
        previous.close()
    while len(_kept) > _KEPT_MAX:
        oldest = next(iter(_kept), None)
        if oldest is not None and (gone := _kept.pop(oldest, None)) is not None:
            gone.close()
