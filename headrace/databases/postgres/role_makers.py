"""Roles whose CREATEROLE lets them act as every other role.

Up to PostgreSQL 15 such a role may grant itself any non-superuser role. Since 16 it may do so only with roles of which
it was made administrator, each by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg

from headrace.databases.ports import Finding
from headrace.databases.postgres.connection import quote
from headrace.lcr.table_name import remark

__all__ = ["may_grant_itself_roles", "role_maker_findings"]

_ONLY_NAMED_ROLES_FROM = 160000

# The database's owner has full access anyway. The connected role itself is reported where the site has an
# administrator.
_ROLE_MAKERS = """
SELECT r.rolname::text FROM pg_catalog.pg_roles r
WHERE r.rolcreaterole AND NOT r.rolsuper AND r.rolname <> current_user
  AND r.oid <> (SELECT datdba FROM pg_catalog.pg_database WHERE datname = current_database())
ORDER BY 1
"""


def may_grant_itself_roles(connection: psycopg.Connection[Any]) -> bool:
    """Whether a role with CREATEROLE may act as every non-superuser role of this server."""
    return connection.info.server_version < _ONLY_NAMED_ROLES_FROM


def role_maker_findings(connection: psycopg.Connection[Any], path: str) -> Iterator[Finding]:
    """Report roles that can make themselves the connected role or owners of the tables.

    Args:
        connection: of the role that runs.
        path: of the finding: the site in the topology.
    """
    if not may_grant_itself_roles(connection):
        return
    names = [name for (name,) in connection.execute(_ROLE_MAKERS).fetchall()]
    if names:
        yield Finding(
            path=path,
            is_error=False,
            problem=f"{', '.join(map(quote, names))} can act as every role that is no superuser, the owners of replicated tables"
            " among them: CREATEROLE lets a role grant itself others, up to PostgreSQL 15",
            fix=" ".join(f"ALTER ROLE {quote(name)} NOCREATEROLE;" for name in names)
            + " "
            + remark("or nothing, if you trust them with all that is replicated here"),
        )
