"""The history of conflicts: written and trimmed in an apply server's transaction, listed from any session."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.rows import dict_row

from headrace.databases.ports import ConflictRecord
from headrace.databases.postgres.connection import storable

__all__ = ["conflicts", "record_conflicts"]

_FIELDS = (
    "apply",
    "source",
    "transaction_id",
    "commit_scn",
    "position",
    "owner",
    "name",
    "command",
    "kind",
    "columns",
    "handler",
    "outcome",
    "applied_columns",
    "old",
    "new",
    "current",
    "error_number",
)
_LISTS = ("columns", "applied_columns", "old", "new", "current")
_INSERT = f"""
INSERT INTO headrace.conflict_history (topology, {", ".join(f'"{field}"' for field in _FIELDS)})
SELECT %s, {", ".join(f'"{field}"' for field in _FIELDS)}
FROM pg_catalog.jsonb_populate_recordset(NULL::headrace.conflict_history, %s::pg_catalog.jsonb)
"""
# Deletes a limited number of surplus rows, so that no transaction deletes a million rows after a bound was lowered. It
# skips rows that another apply server is deleting, because waiting for them could deadlock.
_FORGOTTEN_MAX = 1000
_RECORDS_MAX = 500  # records per statement: some MB with the longest stored values
_FORGET = """
DELETE FROM headrace.conflict_history WHERE number = ANY (ARRAY(
    SELECT number FROM headrace.conflict_history
    WHERE number <= (SELECT max(number) FROM headrace.conflict_history) - %s::bigint
       OR resolved_at < pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => %s::double precision)
    ORDER BY number LIMIT %s FOR UPDATE SKIP LOCKED))
"""
_LIST = f"""
SELECT * FROM (
    SELECT number, {", ".join(f'"{field}"' for field in _FIELDS)}, (extract(epoch FROM resolved_at) * 1000000)::bigint AS resolved_us
    FROM headrace.conflict_history WHERE topology = %s AND (%s::text IS NULL OR apply = %s) ORDER BY number DESC LIMIT %s) AS newest
ORDER BY number
"""


def record_conflicts(
    connection: psycopg.Connection[Any],
    topology: str,
    records: Sequence[ConflictRecord],
    *,
    count_max: int,
    age_max_s: float,
) -> None:
    """Record conflicts and delete surplus ones, in the session's transaction.

    Args:
        connection: connection of the session, in its transaction.
        topology: name of the topology.
        records: the conflicts, in order.
        count_max: number of conflicts to keep.
        age_max_s: age up to which to keep conflicts, seconds.
    """
    for first in range(0, len(records), _RECORDS_MAX):
        rows = [_plain(connection, record) for record in records[first : first + _RECORDS_MAX]]
        connection.execute(_INSERT.encode(), (topology, json.dumps(rows)))
    # Twice the number of new records, so that the history shrinks after a bound was lowered.
    connection.execute(_FORGET.encode(), (count_max, age_max_s, max(_FORGOTTEN_MAX, 2 * len(records))))


def _plain(connection: psycopg.Connection[Any], record: ConflictRecord) -> dict[str, Any]:
    """Return a record for JSON, with texts that this database can store."""

    def text(value: object) -> object:
        if isinstance(value, tuple):
            return [text(each) for each in value]
        return storable(connection, value) if isinstance(value, str) else value

    return {name: text(getattr(record, name)) for name in _FIELDS}


def conflicts(
    connection: psycopg.Connection[Any], topology: str, apply: str | None, last: int
) -> tuple[ConflictRecord, ...]:
    """List the newest conflicts, in order.

    Args:
        connection: connection to the destination.
        topology: name of the topology.
        apply: name of the apply process; None for all of them.
        last: maximum number of conflicts.
    """
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_LIST.encode(), (topology, apply, apply, last)).fetchall()
    return tuple(ConflictRecord(**{**row, **{field: tuple(row[field]) for field in _LISTS}}) for row in rows)
