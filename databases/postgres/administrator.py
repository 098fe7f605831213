"""The sessions of a site's administrator (`admin_dsn`), and whether its role is apart from the one that runs (`dsn`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from databases.ports import Finding
from databases.postgres.connection import connect, database_identity, quote, translated
from streams.errors import DatabaseUnavailable

__all__ = ["Administrator", "Roles"]

_NAME = "headrace admin"
_UNREACHED = (
    "admin_dsn is read anew each time: correct it, or the role that it names, and run the command again;"
    " what runs goes on with dsn"
)

_ROLES = """
SELECT current_user, current_database(), r.rolsuper, pg_catalog.pg_has_role(r.oid, current_user, 'MEMBER'), has_database_privilege(current_database(), 'CREATE')
FROM pg_catalog.pg_roles r WHERE r.rolname = %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The two roles of a site.

    Args:
        admin: that of `admin_dsn`.
        running: that of `dsn`.
        database: the name of their database.
        is_apart: the one that runs cannot do what the administrator may.
        may_create: the administrator may create in the database.
    """

    admin: str
    running: str
    database: str
    is_apart: bool
    may_create: bool


class Administrator:
    """Opens the sessions.

    Args:
        admin_dsn: of the role that creates and drops.
        dsn: of the role that runs, to the same database.
        site: name of the site, for messages.
    """

    def __init__(self, admin_dsn: str, dsn: str, *, site: str) -> None:
        self._admin_dsn, self._dsn, self._site = admin_dsn, dsn, site

    def running_role(self) -> tuple[str, str]:
        """The role that runs, and the identity of its database."""
        with (
            contextlib.closing(connect(self._dsn, application_name=_NAME)) as connection,
            translated("asking for the role that runs", site=self._site),
        ):
            row = connection.execute("SELECT current_user").fetchone()
            assert row is not None
            return str(row[0]), database_identity(connection)

    @contextlib.contextmanager
    def session(self, what: str) -> Iterator[psycopg.Connection[Any]]:
        """A session of the administrator.

        Args:
            what: is done in it, for messages.
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
        """The two roles, and why they are not apart; None: nothing else can be asked before that is corrected.

        Args:
            connection: of the administrator.
            running: from `running_role`.
        """
        path, (role, identity) = f"sites.{self._site}", running
        if database_identity(connection) != identity:
            return None, (
                Finding(
                    path=path,
                    problem="admin_dsn leads to another database than dsn",
                    fix="name the database of dsn in admin_dsn",
                ),
            )
        row = connection.execute(_ROLES, (role,)).fetchone()
        assert row is not None
        admin, database, is_superuser, is_member, may_create = row
        if admin == role:
            return None, (
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
            is_apart=not (is_superuser or is_member),
            may_create=may_create,
        )
        if roles.is_apart:
            return roles, ()
        kind, fix = (
            ("is a superuser", f"ALTER ROLE {quote(role)} NOSUPERUSER;")
            if is_superuser
            else (f"can act as {quote(admin)}", f"REVOKE {quote(admin)} FROM {quote(role)};")
        )
        return roles, (
            Finding(
                path=path,
                is_error=False,
                problem=f"the role of dsn, {quote(role)}, {kind}: admin_dsn keeps nothing from it",
                fix=fix,
            ),
        )
