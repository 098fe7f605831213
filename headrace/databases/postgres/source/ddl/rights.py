"""Rights of the role that creates what records DDL at a source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg

from headrace.databases.ports import Finding
from headrace.databases.postgres.connection import quote
from headrace.lcr.table_name import remark

__all__ = ["superuser_findings"]

_IS_SUPERUSER = "SELECT current_user::text, r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname = current_user"


def superuser_findings(connection: psycopg.Connection[Any], path: str, *, is_admin: bool) -> Iterator[Finding]:
    """Report that the role that should create event triggers may not.

    Args:
        connection: of that role.
        path: of the finding.
        is_admin: it is the role of `admin_dsn`.
    """
    row = connection.execute(_IS_SUPERUSER).fetchone()
    if row is not None and not row[1]:
        role = quote(row[0])
        yield Finding(
            path=path,
            problem=f"the role of {'admin_dsn' if is_admin else 'dsn'}, {role}, is no superuser, and only superusers can"
            " create event triggers, which ddl: true needs",
            fix=f"ALTER ROLE {role} SUPERUSER;"
            + ("" if is_admin else " " + remark("or name a superuser in admin_dsn; or remove ddl: true")),
        )
