"""SQL that users' handlers run inside an apply server's transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["HandlerSql", "SqlResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSql:
    """One statement of a handler.

    Args:
        sql: one SELECT, INSERT, UPDATE, DELETE or MERGE; values stand as $1, $2, ...
        values: Python objects, None for NULL; or values of an LCR (`LcrValue`), which are written as they are.
    """

    sql: str
    values: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlResult:
    """What a statement did.

    Args:
        rows: that it answered, as Python objects.
        row_count: rows that it answered or changed.
    """

    rows: tuple[tuple[Any, ...], ...] = ()
    row_count: int = 0
