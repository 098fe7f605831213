"""Sessions of a site's administrator (`admin_dsn`), and whether its role is separate from the running one (`dsn`)."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from headrace.base.errors import DatabaseUnavailable
from headrace.databases.ports import Finding
from headrace.databases.postgres.connection import connect, database_identity, quote, translated
from headrace.databases.postgres.poolers import pooler_findings
from headrace.databases.postgres.role_makers import may_grant_itself_roles

__all__ = ["Administrator", "Roles", "owned_schema_findings"]

_NAME = "headrace admin"
_DATABASE_OWNER = "pg_database_owner"
_UNREACHED = (
    "admin_dsn is read anew each time: correct it, or the role that it names, and run the command again;"
    " running processes continue with dsn"
)

# Schemas of a role, and of roles it can act as. `public` belongs to the database's owner through a role of its own.
_OWNED_SCHEMAS = """
SELECT n.nspname::text, pg_catalog.pg_get_userbyid(n.nspowner)::text FROM pg_catalog.pg_namespace n
WHERE n.nspname = ANY (%s) AND pg_catalog.pg_has_role(%s, n.nspowner, 'MEMBER') ORDER BY 1
"""

_ROLES = """
SELECT current_user, current_database(), r.rolsuper, r.rolcreaterole,
       pg_catalog.pg_has_role(r.oid, current_user, 'MEMBER'), has_database_privilege(current_database(), 'CREATE')
FROM pg_catalog.pg_roles r WHERE r.rolname = %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The two roles of a site.

    Args:
        admin: the role of `admin_dsn`.
        running: the role of `dsn`.
        database: name of their database.
        is_apart: the running role cannot do what only the administrator may.
        may_create: the administrator may create objects in the database.
    """

    admin: str
    running: str
    database: str
    is_apart: bool
    may_create: bool


class Administrator:
    """Opens a site's sessions.

    Args:
        admin_dsn: of the role that creates and drops.
        dsn: of the running role, to the same database.
        site: name of the site, for messages.
    """

    def __init__(self, admin_dsn: str, dsn: str, *, site: str) -> None:
        self._admin_dsn, self._dsn, self._site = admin_dsn, dsn, site

    def running_role(self) -> tuple[str, str]:
        """Return the running role, and the identity of its database."""
        with (
            contextlib.closing(connect(self._dsn, application_name=_NAME)) as connection,
            translated("asking for the role that runs", site=self._site),
        ):
            row = connection.execute("SELECT current_user").fetchone()
            assert row is not None
            return str(row[0]), database_identity(connection)

    @contextlib.contextmanager
    def session(self, what: str) -> Iterator[psycopg.Connection[Any]]:
        """Open a session of the administrator.

        Args:
            what: its purpose, for messages.
        """
        try:
            connection = connect(self._admin_dsn, application_name=_NAME)
        except DatabaseUnavailable as error:
            raise DatabaseUnavailable(
                f"as the administrator: {error.message}", hint=_UNREACHED, **error.context
            ) from error
        with contextlib.closing(connection), translated(what, site=self._site):
            yield connection

    def roles(
        self, connection: psycopg.Connection[Any], running: tuple[str, str]
    ) -> tuple[Roles | None, tuple[Finding, ...]]:
        """Return the two roles, and why they are not separate; None: this must be corrected before anything else is checked.

        Args:
            connection: of the administrator.
            running: from `running_role`.
        """
        path, (role, identity) = f"sites.{self._site}", running
        pooled = tuple(pooler_findings(connection, self._admin_dsn, f"{path} admin_dsn"))
        if database_identity(connection) != identity:
            return None, (
                *pooled,
                Finding(
                    path=path,
                    problem="admin_dsn leads to another database than dsn",
                    fix="name the database of dsn in admin_dsn",
                ),
            )
        row = connection.execute(_ROLES, (role,)).fetchone()
        assert row is not None
        admin, database, is_superuser, makes_roles, is_member, may_create = row
        makes_roles = makes_roles and may_grant_itself_roles(connection)
        if admin == role:
            return None, (
                *pooled,
                Finding(
                    path=path,
                    problem=f"admin_dsn and dsn have one role, {quote(role)}",
                    fix="give admin_dsn another role, or leave it out",
                ),
            )
        roles = Roles(
            admin=admin,
            running=role,
            database=database,
            is_apart=not (is_superuser or makes_roles or is_member),
            may_create=may_create,
        )
        if roles.is_apart:
            return roles, pooled
        kind, fix = (
            ("is a superuser", f"ALTER ROLE {quote(role)} NOSUPERUSER;")
            if is_superuser
            else ("can grant itself every role that is no superuser", f"ALTER ROLE {quote(role)} NOCREATEROLE;")
            if makes_roles
            else (f"can act as {quote(admin)}", f"REVOKE {quote(admin)} FROM {quote(role)};")
        )
        return roles, (
            *pooled,
            Finding(
                path=path,
                is_error=False,
                problem=f"the role of dsn, {quote(role)}, {kind}: admin_dsn keeps nothing from it",
                fix=fix,
            ),
        )


def owned_schema_findings(
    connection: psycopg.Connection[Any], path: str, roles: Roles, schemas: Collection[str]
) -> Iterator[Finding]:
    """Report that the running role can drop tables that it does not own, because it owns their schema.

    Args:
        connection: of the administrator.
        path: the site in the topology.
        roles: of the site; they are separate.
        schemas: of the replicated tables.
    """
    running, admin = quote(roles.running), quote(roles.admin)
    for schema, owner in connection.execute(_OWNED_SCHEMAS, (sorted(schemas), roles.running)).fetchall():
        if owner == _DATABASE_OWNER:
            whose, fix = "the database's, which is its own", f"ALTER DATABASE {quote(roles.database)} OWNER TO {admin};"
        elif owner == roles.running:
            whose = "its own"
            fix = f"ALTER SCHEMA {quote(schema)} OWNER TO {admin}; GRANT USAGE ON SCHEMA {quote(schema)} TO {running};"
        else:
            whose, fix = f"of {quote(owner)}, as whom it can act", f"REVOKE {quote(owner)} FROM {running};"
        yield Finding(
            path=f"{path} schema {schema}",
            is_error=False,
            problem=f"the role of dsn, {running}, can drop its tables, and put others in their place: the schema is"
            f" {whose}",
            fix=fix,
        )
