"""What keeps the DDL of replicated tables from being applied: another release, another kind of table, missing rights.

The statements run with the rights of the table's owner, whatever the applying role may do: so no function of a check or
an index runs with more. The owner needs USAGE and CREATE on the schema, as for its own indexes and constraints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import psycopg

from headrace.databases.ports import Finding
from headrace.databases.postgres.connection import quote
from headrace.databases.postgres.destination.owner_rights import acting_fix
from headrace.lcr.table_name import TableName

__all__ = ["ddl_findings"]

_SET_FROM = 160000  # from this version on, a member of a role may be forbidden to take it

_TABLES = """
SELECT n.nspname::text, c.relname::text, c.relkind = 'p' OR c.relispartition AS is_partitioned,
       EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE c.oid IN (i.inhrelid, i.inhparent)) AS inherits,
       current_user::text AS role, r.rolname::text AS owner, r.rolsuper,
       pg_catalog.pg_has_role(c.relowner, %(right)s) AS may_act, pg_catalog.pg_has_role(c.relowner, 'MEMBER') AS is_member,
       ARRAY(SELECT p FROM unnest(ARRAY['USAGE', 'CREATE']) p WHERE NOT pg_catalog.has_schema_privilege(c.relowner, n.oid, p))
FROM unnest(%(owners)s::text[], %(names)s::text[]) AS wanted (owner, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.owner
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name AND c.relkind IN ('r', 'p')
JOIN pg_catalog.pg_roles r ON r.oid = c.relowner
ORDER BY 1, 2
"""


def ddl_findings(
    connection: psycopg.Connection[Any], site: str, tables: Collection[TableName], release: int
) -> Iterator[Finding]:
    """Yield what prevents the DDL of tables from being applied.

    Args:
        connection: session of the applying role.
        site: name of the site, for the findings' path.
        tables: their names here; missing tables are skipped.
        release: of the source; 0: unknown.
    """
    version = connection.info.server_version
    if tables and release not in {0, version // 10000}:
        yield Finding(
            path=f"sites.{site}",
            problem=f"is PostgreSQL {version // 10000}, and the source whose DDL is applied here is PostgreSQL {release}:"
            " they write one definition differently, so that no change of one can be proved at the other",
            fix="use one major version at both, or leave out ddl: true, and run DDL at every site",
        )
    wanted = sorted(tables)
    rows = connection.execute(
        _TABLES,
        {
            "right": "SET" if version >= _SET_FROM else "MEMBER",
            "owners": [each.owner for each in wanted],
            "names": [each.name for each in wanted],
        },
    ).fetchall()
    # Of many tables that one role owns, one finding says what all of them need.
    told: set[str] = set()
    for owner, name, is_partitioned, inherits, role, table_owner, is_superusers, may_act, is_member, lacking in rows:
        table = TableName(owner, name)
        path = f"sites.{site} table {table}"
        if is_partitioned or inherits:
            kind = "is partitioned, or a partition," if is_partitioned else "inherits, or others inherit from it,"
            yield Finding(
                path=path,
                problem=f"it {kind} here: DDL of such tables is not replicated so far",
                fix="name in the entry with ddl: true only other tables, and run the DDL of this one at every site",
            )
        grants = []
        if not may_act:
            grant = acting_fix(table, table_owner, role, is_superusers=is_superusers, is_member=is_member)
            grants.append(
                (
                    f"the role may not act as {quote(table_owner)}, the owner of the table: DDL is applied with the rights"
                    " of the owner",
                    f"{grant};",
                )
            )
        if lacking:
            grants.append(
                (
                    f"the owner of the table, {quote(table_owner)}, lacks {' and '.join(lacking)} on its schema: DDL is"
                    " applied with the rights of the owner, and an index needs these",
                    f"GRANT {', '.join(lacking)} ON SCHEMA {quote(owner)} TO {quote(table_owner)};",
                )
            )
        for problem, fix in grants:
            if fix not in told:
                told.add(fix)
                yield Finding(path=path, problem=problem, fix=fix)
