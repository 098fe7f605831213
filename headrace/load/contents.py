"""Contents of tables, compared by plain SQL as multisets of rows."""

from __future__ import annotations

from typing import Any

__all__ = ["contents"]


def contents(connection: Any, table: str) -> tuple[int, int]:  # noqa: ANN401 - psycopg's
    """Return a table's number of rows and the sum of a 64-bit hash of every row's text: equal for equal multisets.

    The text of a row depends on settings of the session, which must be equal in a comparison.

    Args:
        connection: psycopg's, to the database.
        table: its name, as in a statement.
    """
    row = connection.execute(
        f"SELECT count(*), coalesce(sum(hashtextextended(t::text, 0)), 0) FROM {table} t"
    ).fetchone()
    rows, digest = map(int, row)
    return rows, digest
