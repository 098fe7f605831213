"""What is recorded of tables at a destination: the rows of `headrace.instantiation`, and which of them concern other apply processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from psycopg.rows import class_row

from databases.ports import ROWS_THERE, Instantiation, OtherCopy
from streams.scn import Scn

if TYPE_CHECKING:
    import psycopg

__all__ = ["COLUMNS", "IS_REMADE", "NAME_NOW", "instantiation_of", "other_copies", "recorded_applies"]

COLUMNS = "source, identity, owner, name, scn, state, row_count, digest, problem"
# A dump that is restored gives every table another number, this one, too: its rows and this record are of one moment.
IS_REMADE = """coalesce(recorded_in = 'headrace.instantiation'::regclass
    AND to_regclass(format('%%I.%%I', owner, name)) <> relation, false)"""
NAME_NOW = """(SELECT ARRAY[n.nspname::text, c.relname::text] FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = relation AND recorded_in = 'headrace.instantiation'::regclass)"""

# The same table under another name counts, too (see `IS_REMADE` for `recorded_in`), and so do its partitions and what it is a partition of.
_OTHER_COPIES = """
WITH asked AS (SELECT to_regclass(format('%%I.%%I', %(owner)s::text, %(name)s::text)) AS relid),
family AS (SELECT relid FROM asked UNION SELECT r.relid FROM asked, pg_partition_tree(asked.relid) r UNION SELECT r.relid FROM asked, pg_partition_ancestors(asked.relid) r)
SELECT topology, apply, source, state, row_count, digest FROM headrace.instantiation
WHERE (topology, apply) <> (%(topology)s, %(apply)s) AND (state = ANY (%(rows_there)s) OR (state = 'FAILED' AND scn > 0)) AND ((owner = %(owner)s
  AND name = %(name)s) OR (recorded_in = 'headrace.instantiation'::regclass AND relation IN (SELECT relid FROM family)))
ORDER BY topology, apply, source, identity
"""


def other_copies(connection: psycopg.Connection[Any], topology: str, apply: str, owner: str, name: str) -> tuple[OtherCopy, ...]:
    """See `DestinationDatabase.other_copies`."""
    values = {"topology": topology, "apply": apply, "owner": owner, "name": name, "rows_there": sorted(ROWS_THERE)}
    return tuple(connection.cursor(row_factory=class_row(OtherCopy)).execute(_OTHER_COPIES, values))


def instantiation_of(row: Sequence[Any]) -> Instantiation:
    """The record of a row.

    Args:
        row: with `COLUMNS`, and maybe `IS_REMADE` and `NAME_NOW`.
    """
    return Instantiation(
        source=row[0], identity=row[1], owner=row[2], name=row[3], scn=Scn(row[4]), state=row[5], row_count=row[6],
        digest=row[7], problem=row[8], is_remade=len(row) > 9 and row[9],
        name_now=(row[10][0], row[10][1]) if len(row) > 10 and row[10] else None,
    )


def recorded_applies(connection: psycopg.Connection[Any], topology: str) -> tuple[str, ...]:
    """See `DestinationDatabase.recorded_applies`."""
    query = "SELECT DISTINCT apply FROM headrace.instantiation WHERE topology = %s AND state <> 'LEFT' ORDER BY 1"
    return tuple(str(apply) for (apply,) in connection.execute(query, (topology,)))
