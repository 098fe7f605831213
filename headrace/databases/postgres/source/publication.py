"""The publication of a source, which names the captured tables to the log decoder.

This module checks that it is still the one that was created, and returns the steps that create it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from headrace.base.errors import INSTANTIATE_AGAIN, CapturedNoMore, DatabaseError
from headrace.databases.ports import Finding, PlannedStatement
from headrace.databases.postgres.catalog.source_tables import CatalogTable, logged_generated, publication_tables
from headrace.databases.postgres.connection import qualified, quote
from headrace.databases.postgres.source.identities import identity_breaks
from headrace.lcr.table_name import remark

__all__ = [
    "IS_TRUSTED",
    "TABLE_LOCK",
    "owner_findings",
    "publication_found",
    "publication_gone",
    "publication_options",
    "publication_steps",
]

TABLE_LOCK = (
    "SHARE UPDATE EXCLUSIVE on each table, for a moment: waits for and holds up VACUUM, ALTER TABLE, CREATE INDEX"
)
"""Lock that adding tables to a publication takes."""

# The owner of a publication can make it omit changes for a while, which are then lost without a trace. So neither a
# member of the owner is enough, nor a superuser that connects.
IS_TRUSTED = """(p.pubowner IN (SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = current_user OR r.rolsuper)
    AND pg_catalog.pg_has_role(p.pubowner, 'USAGE'))"""
"""Whether the connected role may alter a publication `p`, and only it and superusers can."""
_OWNER = f"SELECT {IS_TRUSTED}, pg_catalog.pg_get_userbyid(p.pubowner)::text FROM pg_catalog.pg_publication p WHERE p.pubname = %s"


def publication_found(connection: psycopg.Connection[Any], name: str) -> str:
    """Return the publication's name with its number.

    Args:
        connection: to the source.
        name: of the publication.

    Raises:
        CapturedNoMore: it is missing, or omits changes of its tables.
    """
    row = connection.execute(
        """
        SELECT p.oid::int8, pubinsert AND pubupdate AND pubdelete AND pubtruncate AND NOT pubviaroot,
               (SELECT min(r.prrelid::regclass::text) FROM pg_publication_rel r
                WHERE r.prpubid = p.oid AND (r.prqual IS NOT NULL OR r.prattrs IS NOT NULL))
        FROM pg_publication p WHERE pubname = %s
        """,
        (name,),
    ).fetchone()
    if row is None:
        raise publication_gone(name)
    number, has_all, filtered = row
    if not has_all or filtered is not None:
        what = (
            f"has a row filter or a column list for {filtered}"
            if filtered is not None
            else "does not publish all kinds of changes, or publishes by root"
        )
        raise CapturedNoMore(
            f"publication {name} was altered and {what}: what was changed since then cannot be read from the log",
            hint=INSTANTIATE_AGAIN,
        )
    return f"publication {name} ({number})"


def publication_gone(name: str) -> CapturedNoMore:
    """Return the error for a missing publication. Recreating it would not help: changes made meanwhile are not sent."""
    return CapturedNoMore(
        f"publication {name} was dropped: what was changed since then cannot be read from the log",
        hint=INSTANTIATE_AGAIN,
    )


def owner_findings(connection: psycopg.Connection[Any], name: str, path: str) -> Iterator[Finding]:
    """Refuse a publication that another role owns, which may have created it before us.

    Args:
        connection: to the source, as the role that should own the publication.
        name: of the publication; it may be missing.
        path: of the finding.
    """
    row = connection.execute(_OWNER.encode(), (name,)).fetchone()
    if row is not None and not row[0]:
        role = quote(connection.info.user)
        yield Finding(
            path=path,
            problem=f"the publication {quote(name)} belongs to {quote(row[1])}, who can have it leave out changes at any"
            " time",
            fix=f"ALTER PUBLICATION {quote(name)} OWNER TO {role}; "
            + remark("where an admin_dsn made it; if it is not of this topology, give the topology another name"),
        )


def publication_options(version: int) -> str:
    """Return the options of our publications, in SQL syntax.

    Args:
        version: of the server, as `server_version_num`.
    """
    options = "publish = 'insert, update, delete, truncate', publish_via_partition_root = false"
    return options + (", publish_generated_columns = stored" if logged_generated(version) else "")


def publication_steps(
    connection: psycopg.Connection[Any],
    name: str,
    tables: Sequence[CatalogTable],
    *,
    further: Sequence[CatalogTable] = (),
    has_admin: bool = False,
) -> list[PlannedStatement]:
    """Return the statements that create the publication, or adapt it to these tables and our options.

    If nothing is to do, the result is one step that is done already.

    Args:
        connection: to the source.
        name: of the publication.
        tables: captured tables, which it should name.
        further: others that it should name, too.
        has_admin: another role than the connection's runs the statements.

    Raises:
        DatabaseError: a publication of this name is not ours.
    """
    has_generated = bool(logged_generated(connection.info.server_version))
    options = publication_options(connection.info.server_version)
    wanted = {table.number: table for table in (*tables, *further)}
    row = connection.execute(
        "SELECT puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate AND NOT pubviaroot"
        + (" AND pubgencols = 's'" if has_generated else "")
        + " FROM pg_catalog.pg_publication WHERE pubname = %s",
        (name,),
    ).fetchone()
    breaks = tuple(line for table in tables for line in identity_breaks(table))
    if row is None:
        listed = f" FOR TABLE {_listed(wanted.values())}" if wanted else ""
        statement = f"CREATE PUBLICATION {quote(name)}{listed} WITH ({options})"
        effect = f"names the {len(tables)} captured tables to the log decoder"
        return [PlannedStatement(statement=statement, effect=effect, lock=TABLE_LOCK if wanted else "", breaks=breaks)]
    if row[0]:
        raise DatabaseError(
            f"publication {name} is not ours: it is for all tables",
            hint=f"drop it (DROP PUBLICATION {quote(name)}), or give the topology another name",
            publication=name,
        )
    for found in () if has_admin else owner_findings(connection, name, ""):
        raise DatabaseError(found.problem, hint=found.fix, publication=name)
    steps = []
    if not row[1]:
        statement = f"ALTER PUBLICATION {quote(name)} SET ({options})"
        steps.append(PlannedStatement(statement=statement, effect="sets what is published"))
    there = publication_tables(connection, name)
    added = [table for number, table in wanted.items() if number not in there]
    dropped = [qualified(*there[number]) for number in there if number not in wanted]
    if added:
        statement = f"ALTER PUBLICATION {quote(name)} ADD TABLE {_listed(added)}"
        broken = tuple(line for table in added for line in identity_breaks(table))
        steps.append(
            PlannedStatement(statement=statement, effect="captures further tables", lock=TABLE_LOCK, breaks=broken)
        )
    if dropped:
        statement = f"ALTER PUBLICATION {quote(name)} DROP TABLE {', '.join(dropped)}"
        steps.append(PlannedStatement(statement=statement, effect="stops capturing tables", lock=TABLE_LOCK))
    if not steps:
        statement = f"CREATE PUBLICATION {quote(name)}"
        effect = f"names the {len(tables)} captured tables to the log decoder"
        steps.append(PlannedStatement(statement=statement, effect=effect, breaks=breaks, is_done=True))
    return steps


def _listed(tables: Sequence[CatalogTable] | Any) -> str:  # noqa: ANN401 - or a view of a dict's values
    """List tables for a publication: without ONLY a plain table would include the tables that inherit from it."""
    return ", ".join(("" if t.is_partitioned else "ONLY ") + qualified(t.owner, t.name) for t in tables)
