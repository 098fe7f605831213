"""Columns that two databases pad with blanks to different lengths.

These are `char(n)` columns where one side counts bytes (its encoding is one that the database does not know), and the
other counts letters. A value with a non-ASCII letter is padded differently at the other side, or does not fit there. No
copy changes that, and the row is never the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.lcr.table_name import TableName, quoted, quoted_name

if TYPE_CHECKING:
    from headrace.databases.ports.copying import SeenTable

__all__ = ["why_padded"]


def why_padded(
    there: SeenTable | None,
    here: SeenTable | None,
    columns: Iterable[tuple[str, str]],
    *,
    source: TableName,
    destination: TableName,
) -> str:
    """Return why rows differ or are refused, and what to do; empty: no column is padded to different lengths.

    Args:
        there: the table as the source shows it.
        here: the table as the destination shows it.
        columns: columns of both: name at the source, and at the destination.
        source: the table's name there.
        destination: the table's name here.
    """
    if there is None or here is None or there.counts_bytes == here.counts_bytes:
        return ""
    found = [(origin, name) for origin, name in columns if origin in there.padded or name in here.padded]
    if not found:
        return ""
    bytes_at, letters_at = ("source", "destination") if there.counts_bytes else ("destination", "source")
    return (
        f"char(n) in column{'s' if len(found) > 1 else ''} {', '.join(name for _, name in found)}: the {bytes_at} (its"
        f" encoding is SQL_ASCII) counts bytes and the {letters_at} letters, so a value with a letter that is not ASCII"
        " is padded differently there, or is too long. At the source:"
        f" {_alter(source, (origin for origin, _ in found))}; at the destination:"
        f" {_alter(destination, (name for _, name in found))}; or move the SQL_ASCII database to UTF8"
    )


def _alter(table: TableName, columns: Iterable[str]) -> str:
    types = ", ".join(f"ALTER COLUMN {quoted(column)} TYPE text" for column in columns)
    return f"ALTER TABLE {quoted_name(table)} {types}"
