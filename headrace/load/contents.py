"""The contents of tables, compared by plain SQL: as multisets of rows, whatever their order."""

from __future__ import annotations

from typing import Any

__all__ = ["contents"]


def contents(connection: Any, table: str) -> tuple[int, int]:  # noqa: ANN401 - psycopg's
    """The number of rows of a table, and the sum of a 64-bit hash of every row's text: equal for equal multisets.

    The text of a row depends on settings of the session, which are to be the same for what is compared.

    Args:
        connection: psycopg's, to the database.
        table: as a statement names it.
    """
    row = connection.execute(
        f"SELECT count(*), coalesce(sum(hashtextextended(t::text, 0)), 0) FROM {table} t"
    ).fetchone()
    rows, digest = map(int, row)
    return rows, digest
