"""The publication of a source: what names the captured tables to the log decoder.

Whether it is still the one that was made, and the steps that make it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from headrace.base.errors import INSTANTIATE_AGAIN, CapturedNoMore, DatabaseError
from headrace.databases.ports import PlannedStatement
from headrace.databases.postgres.catalog.source_tables import CatalogTable, logged_generated, publication_tables
from headrace.databases.postgres.connection import qualified, quote
from headrace.databases.postgres.source.preflight import identity_breaks
from headrace.lcr.table_name import remark

__all__ = ["publication_found", "publication_gone", "publication_steps"]


def publication_found(connection: psycopg.Connection[Any], name: str) -> str:
    """The publication with its number.

    Args:
        connection: to the source.
        name: of the publication.

    Raises:
        CapturedNoMore: there is none, or it leaves out changes of its tables.
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
    """Made again, it would not hold for what was changed while it was gone: those changes are not sent."""
    return CapturedNoMore(
        f"publication {name} was dropped: what was changed since then cannot be read from the log",
        hint=INSTANTIATE_AGAIN,
    )


def publication_steps(
    connection: psycopg.Connection[Any], name: str, tables: Sequence[CatalogTable], *, has_admin: bool = False
) -> list[PlannedStatement]:
    """The statements that make the publication, or bring it to these tables and our options.

    One that is done already if it needs none.

    Args:
        connection: to the source.
        name: of the publication.
        tables: that it is to name.
        has_admin: another role than the connection's runs them.

    Raises:
        DatabaseError: a publication of this name is not ours.
    """
    has_generated = bool(logged_generated(connection.info.server_version))
    options = "publish = 'insert, update, delete, truncate', publish_via_partition_root = false"
    options += ", publish_generated_columns = stored" if has_generated else ""
    wanted = {table.number: table for table in tables}
    row = connection.execute(
        "SELECT puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate AND NOT pubviaroot"
        + (" AND pubgencols = 's'" if has_generated else "")
        + ", pg_has_role(pubowner, 'USAGE'), pg_get_userbyid(pubowner) FROM pg_publication WHERE pubname = %s",
        (name,),
    ).fetchone()
    breaks = tuple(line for table in tables for line in identity_breaks(table))
    lock = (
        "SHARE UPDATE EXCLUSIVE on each table, for a moment: waits for and holds up VACUUM, ALTER TABLE, CREATE INDEX"
    )
    if row is None:
        listed = f" FOR TABLE {_listed(wanted.values())}" if wanted else ""
        statement = f"CREATE PUBLICATION {quote(name)}{listed} WITH ({options})"
        effect = f"names the {len(wanted)} captured tables to the log decoder"
        return [PlannedStatement(statement=statement, effect=effect, lock=lock if wanted else "", breaks=breaks)]
    if row[0]:
        raise DatabaseError(
            f"publication {name} is not ours: it is for all tables",
            hint=f"drop it (DROP PUBLICATION {quote(name)}), or give the topology another name",
            publication=name,
        )
    if not row[2] and not has_admin:
        role = quote(connection.info.user)
        raise DatabaseError(
            f"publication {name} belongs to the role {row[3]}",
            publication=name,
            hint=f"ALTER PUBLICATION {quote(name)} OWNER TO {role}; "
            + remark("where an admin_dsn made it; if it is not of this topology, give the topology another name"),
        )
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
        steps.append(PlannedStatement(statement=statement, effect="captures further tables", lock=lock, breaks=broken))
    if dropped:
        statement = f"ALTER PUBLICATION {quote(name)} DROP TABLE {', '.join(dropped)}"
        steps.append(PlannedStatement(statement=statement, effect="stops capturing tables", lock=lock))
    if not steps:
        statement = f"CREATE PUBLICATION {quote(name)}"
        effect = f"names the {len(wanted)} captured tables to the log decoder"
        steps.append(PlannedStatement(statement=statement, effect=effect, breaks=breaks, is_done=True))
    return steps


def _listed(tables: Sequence[CatalogTable] | Any) -> str:  # noqa: ANN401 - or a view of a dict's values
    """For a publication: without ONLY a plain table would bring the tables that inherit from it."""
    return ", ".join(("" if t.is_partitioned else "ONLY ") + qualified(t.owner, t.name) for t in tables)
