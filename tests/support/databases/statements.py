"""Statements that a test runs in their own session."""

from __future__ import annotations

from typing import Any

import psycopg

from headrace.load.contents import contents

__all__ = ["digest", "execute", "roll_back", "row_of"]


def execute(dsn: str, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Execute a statement; return its rows.

    Args:
        dsn: of the database.
        statement: without parameters it may contain several, which run in one transaction.
        parameters: of the statement.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []


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
