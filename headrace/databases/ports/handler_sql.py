"""SQL that users' handlers run inside an apply server's transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["HandlerSql", "SqlResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSql:
    """One statement of a handler.

    Args:
        sql: one SELECT, INSERT, UPDATE, DELETE or MERGE, with placeholders $1, $2, ...
        values: Python objects, None for NULL; or values of an LCR (`LcrValue`), which are written unchanged.
    """

    sql: str
    values: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlResult:
    """Result of a statement.

    Args:
        rows: returned rows, as Python objects.
        row_count: number of rows returned or changed.
    """

    rows: tuple[tuple[Any, ...], ...] = ()
    row_count: int = 0
