"""Event triggers of users, which fire for Headrace's own DDL: in its sessions, whose search_path is empty."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from databases.ports import Finding
from databases.postgres.connection import quote, remedy_of

if TYPE_CHECKING:
    import psycopg

__all__ = ["DESTINATION_TAGS", "SOURCE_TAGS", "event_trigger_findings"]

SOURCE_TAGS = ("CREATE PUBLICATION", "ALTER PUBLICATION", "DROP PUBLICATION")
DESTINATION_TAGS = tuple(
    f"{verb} {kind}" for verb in ("CREATE", "ALTER", "DROP") for kind in ("SCHEMA", "TABLE", "INDEX", "VIEW", "FUNCTION", "TRIGGER", "TYPE")
)
"""Also of the types that sessions of apply servers make for arrays."""

# Functions in C or of an extension do not depend on a search_path that their author does not set.
_TRIGGERS = """
SELECT e.evtname, p.oid::regprocedure::text, pg_catalog.quote_ident(n.nspname) FROM pg_catalog.pg_event_trigger e
JOIN pg_catalog.pg_proc p ON p.oid = e.evtfoid JOIN pg_catalog.pg_language l ON l.oid = p.prolang JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
WHERE e.evtenabled <> 'D' AND e.evtevent IN ('ddl_command_start', 'ddl_command_end', 'sql_drop') AND (e.evttags IS NULL OR e.evttags && %s::text[])
  AND l.lanname NOT IN ('c', 'internal') AND NOT EXISTS (SELECT FROM unnest(p.proconfig) s WHERE s LIKE 'search_path=%%')
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
ORDER BY 1
"""


def event_trigger_findings(connection: psycopg.Connection[Any], path: str, tags: tuple[str, ...]) -> Iterator[Finding]:
    """Warn of event triggers whose functions would not find what they name without its schema.

    Args:
        connection: of Headrace; the server prints names with their schemas.
        path: of the findings.
        tags: of the statements that Headrace runs there.
    """
    for name, function, schema in connection.execute(_TRIGGERS, (list(tags),)).fetchall():
        yield Finding(
            path=path, is_error=False,
            problem=f"the event trigger {quote(name)} calls {function} for Headrace's own DDL, in sessions that have an empty search_path: what it names without a"
            " schema is not found, and the DDL fails",
            fix=f"{remedy_of(function, schema)} -- with all schemas that it needs; unless it names them itself",
        )
