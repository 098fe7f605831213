"""Which rows of its table a partition holds, in words that mean the same in another database.

PostgreSQL itself writes the condition (`pg_get_partition_constraintdef`): bounds of the partition and of those above it,
with names qualified as far as the session's empty search_path asks for. Of a hash partition it names the parent by OID,
which is another one elsewhere: here it is the parent's name.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import psycopg
from psycopg import sql

from databases.postgres.connection import qualified

__all__ = ["partition_rows"]

_HASH_PARENT = re.compile(r"satisfies_hash_partition\('(\d+)'::oid")


def partition_rows(connection: psycopg.Connection[Any], numbers: Collection[int]) -> dict[int, str]:
    """Read which rows some partitions hold.

    Args:
        connection: with an empty search_path.
        numbers: OIDs of tables.

    Returns:
        A condition over the table's columns for each of them that is a partition; "true" for a default partition that
        is the only one.
    """
    rows = connection.execute(
        "SELECT c.oid::int8, coalesce(pg_catalog.pg_get_partition_constraintdef(c.oid), 'true') FROM pg_catalog.pg_class c"
        " WHERE c.oid = ANY (%s) AND c.relispartition", (list(numbers),),
    ).fetchall()
    found = {int(number): str(condition) for number, condition in rows}
    parents = {int(parent) for condition in found.values() for parent in _HASH_PARENT.findall(condition)}
    if not parents:
        return found
    names = connection.execute(
        "SELECT c.oid::int8, n.nspname::text, c.relname::text FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY (%s)", (list(parents),),
    ).fetchall()
    words = {str(number): sql.Literal(qualified(owner, name)).as_string(None) for number, owner, name in names}

    def named(match: re.Match[str]) -> str:
        word = words.get(match[1], f"'{match[1]}'")
        return f"satisfies_hash_partition({word}::pg_catalog.regclass"

    return {number: _HASH_PARENT.sub(named, condition) for number, condition in found.items()}
