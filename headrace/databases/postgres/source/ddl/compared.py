"""What the last `up` compared for a publication that names the log of DDL, and what is missing from it since.

`headrace.databases.postgres.source.ddl.objects` describes the table `compared`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psycopg

from headrace.databases.ports import MissedDdl
from headrace.lcr.ddl import failed_ddl_of

__all__ = ["Compared", "compared_by"]

# Of one publication: what its last comparison saw, and the statements since then that could not be recorded.
_COMPARED = """
SELECT pg_catalog.pg_current_snapshot()::text, coalesce(c.entry = x.oid, false), c.snapshot::text, f.count, f.last
FROM (VALUES (%s)) AS wanted (name)
LEFT JOIN pg_catalog.pg_publication p ON p.pubname = wanted.name
LEFT JOIN pg_catalog.pg_publication_rel x ON x.prpubid = p.oid AND x.prrelid = 'headrace_ddl.log'::regclass
LEFT JOIN headrace_ddl.compared c ON c.publication = p.oid
CROSS JOIN LATERAL (
    SELECT count(*), (array_agg(l.content ORDER BY l.number DESC))[1] AS last FROM headrace_ddl.log l
    WHERE l.relation = 0 AND (c.snapshot IS NULL OR NOT pg_catalog.pg_visible_in_snapshot(l.xid, c.snapshot))
) AS f
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What a publication has of the tables' records, and of statements without one.

    Args:
        seen: the snapshot in which this was read; empty: it could not be read.
        since: the snapshot of the last comparison; empty: there was none, or it is not known.
        is_same_entry: the publication has named the log ever since.
        missed: statements since then that could not be recorded.
    """

    seen: str = ""
    since: str = ""
    is_same_entry: bool = False
    missed: MissedDdl = field(default_factory=MissedDdl)

    @property
    def was_unpublished(self) -> bool:
        """Whether the log is out of the publication, or was since the last comparison."""
        return bool(self.since) and not self.is_same_entry

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to compare, as far as this session can know."""
        return not self.seen or (self.is_same_entry and not self.missed.count)


def compared_by(connection: psycopg.Connection[Any], publication: str) -> Compared:
    """Read what was compared for a publication, as a role that can read the schema headrace_ddl.

    Args:
        connection: to the source.
        publication: its name.
    """
    row = connection.execute(_COMPARED.encode(), (publication,)).fetchone()
    assert row is not None
    seen, is_same_entry, since, count, content = row
    last = failed_ddl_of(content.encode()) if content is not None else None
    missed = MissedDdl(count=count, last="" if last is None else str(last))
    return Compared(seen=seen, since=since or "", is_same_entry=is_same_entry, missed=missed)
