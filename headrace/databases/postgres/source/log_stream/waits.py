"""Transactions that block Headrace at a source: a slot and a snapshot wait for every running transaction."""

from __future__ import annotations

from typing import Any

import psycopg

__all__ = ["holding_up"]

# A slot and a snapshot wait for transactions in any database of the server; pid 0 stands for prepared ones.
# Only a role that may read all of pg_stat_activity sees what other roles' sessions run.
_HOLDING_UP = """
    SELECT DISTINCT CASE WHEN holder.pid IS NOT NULL THEN
        format('the open transaction of pid %%s: it began %%s ago, role %%s, application %%s, database %%s, %%s; its last query: %%s',
               holder.pid, date_trunc('second', clock_timestamp() - holder.xact_start), holder.usename,
               coalesce(nullif(holder.application_name, ''), '(no name)'), holder.datname,
               coalesce(holder.state, '(state hidden)'),
               left(regexp_replace(coalesce(nullif(holder.query, ''), '(none)'), '[[:space:]]+', ' ', 'g'), 200))
    ELSE coalesce(
        (SELECT format('the prepared transaction %%L of %%s in database %%s, since %%s', gid, owner, database, prepared)
         FROM pg_prepared_xacts ORDER BY prepared LIMIT 1),
        'a transaction that has just ended')
    END
    FROM pg_stat_activity AS ours
    CROSS JOIN LATERAL unnest(pg_blocking_pids(ours.pid)) AS blocking (pid)
    LEFT JOIN pg_stat_activity AS holder ON holder.pid = blocking.pid
    WHERE ours.datname = current_database() AND ours.application_name LIKE %(ours)s
      AND coalesce(holder.application_name, '') NOT LIKE %(ours)s
    ORDER BY 1
"""


def holding_up(connection: psycopg.Connection[Any]) -> tuple[str, ...]:
    """Implement `headrace.databases.ports.SourceDatabase.holding_up`; `connection` must not be one that waits."""
    return tuple(row[0] for row in connection.execute(_HOLDING_UP, {"ours": "headrace%"}).fetchall())
