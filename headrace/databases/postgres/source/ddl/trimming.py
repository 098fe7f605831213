"""Removal of old records from a source's log of DDL.

Nobody reads the table but the event triggers, `watch` and the search for what is due: destinations get records through
the server's log. These readers need the last record of each table. They also need to find a record that another one does
not see, because its transaction was open then.

A record may go if a later one of its table sees it: whoever does not see the first one does not see that one, either. So
it answers for both, and another one may answer for it. A record that `watch` wrote as the beginning of a table answers
for nothing: it is no change that a publication could have missed.
"""

from __future__ import annotations

from typing import Any

import psycopg

__all__ = ["KEPT", "trim_log"]

KEPT = "7 days"
"""Age from which a record may go: long enough to look up what ran before a weekend."""
_BATCH_ROWS = 1000  # of one transaction: a fraction of a second
_LOCK_TIMEOUT = "1s"  # somebody has locked the log: later

# Statements that could not be recorded stay until every publication has compared the tables since. A number that a new
# table has again does no harm: its own first record is read by nobody.
_TRIM = """
DELETE FROM headrace_ddl.log WHERE number IN (
    SELECT l.number FROM headrace_ddl.log l
    WHERE l.at < pg_catalog.now() - %s::interval AND CASE
        WHEN l.relation = 0 THEN NOT EXISTS (
            SELECT FROM pg_catalog.pg_publication_rel x
            LEFT JOIN headrace_ddl.compared c ON c.publication = x.prpubid AND pg_catalog.pg_visible_in_snapshot(l.xid, c.snapshot)
            WHERE x.prrelid = 'headrace_ddl.log'::regclass AND c.publication IS NULL)
        WHEN NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = l.relation) THEN true
        ELSE EXISTS (
            SELECT FROM headrace_ddl.log later
            WHERE later.relation = l.relation AND later.number > l.number
              AND (later.xid = l.xid OR pg_catalog.pg_visible_in_snapshot(l.xid, later.snapshot))
              AND NOT later.content::jsonb ? 'base')
    END
    ORDER BY l.number LIMIT %s)
"""


def trim_log(connection: psycopg.Connection[Any]) -> bool:
    """Remove old records from the log of DDL, as a role that may write it; at most a batch of them.

    Nobody's DDL waits for it: it takes no lock that an INSERT waits for.

    Args:
        connection: to the source.

    Returns:
        Whether more may be left.
    """
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'".encode())
            return connection.execute(_TRIM.encode(), (KEPT, _BATCH_ROWS)).rowcount >= _BATCH_ROWS
    except psycopg.errors.LockNotAvailable:
        return False
