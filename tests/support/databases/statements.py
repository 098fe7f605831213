"""Statements that a test runs in a session of their own."""

from __future__ import annotations

from typing import Any

import psycopg

from headrace.load.contents import contents

__all__ = ["digest", "execute"]


def execute(dsn: str, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Execute a statement; its rows.

    Args:
        dsn: of the database.
        statement: of which several may stand in one text, then in one transaction, if there are no parameters.
        parameters: of it.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement, parameters or None)  # type: ignore[call-overload]
        return cursor.fetchall() if cursor.description else []


def digest(dsn: str, table: str) -> tuple[int, int]:
    """See `contents`."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return contents(connection, table)
