"""Administration of a destination: work that needs more rights than applying.

It covers the schema headrace, the triggers that note deletes, and their removal.

Job
    When a site has an `admin_dsn`, act as its role: create, alter and drop what `up` and `down --purge` need, and grant
    the role of `dsn` the rights to use it. That role then needs no CREATE on the database, owns nothing in the schema,
    and cannot drop a trigger.

Main path
    `headrace check` -> PostgresAdmin.preflight -> findings. `headrace up` -> prepare, before it calls the controller:
    schema, triggers, grants. Running components find this done (`PostgresDestination.prepare` only checks).
    `headrace down --purge` -> the site deletes its rows -> remove.

Bounds
    It runs inside a command: no long-running process has the connection string.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import psycopg

from headrace.base.errors import DatabaseError
from headrace.databases.ports import Finding
from headrace.databases.postgres.administrator import Administrator, owned_schema_findings
from headrace.databases.postgres.connection import qualified, quote
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.destination.records.schema import VERSION, prepare_schema, schema_version
from headrace.databases.postgres.destination.row_times.row_triggers import lacking_triggers, make_triggers
from headrace.databases.postgres.destination.trust import changes_of_owner, owners_of_schema
from headrace.databases.postgres.event_triggers import own_ddl

__all__ = ["PostgresAdmin"]

_USE = "SELECT, INSERT, UPDATE, DELETE"  # rights of the dsn role on the schema's tables
_HAS_SCHEMA = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'headrace')"

_RIGHTS = """
SELECT has_schema_privilege(%(role)s, n.oid, 'USAGE'),
       ARRAY(SELECT pg_catalog.pg_get_userbyid(nullif(a.grantee, 0)) FROM pg_catalog.aclexplode(n.nspacl) a
             WHERE a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner AND (a.grantee = 0 OR pg_catalog.pg_has_role(%(role)s, a.grantee, 'MEMBER'))),
       EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'v')
               AND NOT (has_table_privilege(%(role)s, c.oid, 'SELECT') AND has_table_privilege(%(role)s, c.oid, 'INSERT')
                        AND has_table_privilege(%(role)s, c.oid, 'UPDATE') AND has_table_privilege(%(role)s, c.oid, 'DELETE')))
FROM pg_catalog.pg_namespace n WHERE n.nspname = 'headrace'
"""

_OWNED = """
SELECT n.nspname, c.relname, pg_catalog.pg_get_userbyid(c.relowner) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[])) AND c.relkind IN ('r', 'p')
  AND pg_catalog.pg_has_role(%s, c.relowner, 'MEMBER') ORDER BY 1, 2
"""

_OWNER = "SELECT pg_catalog.pg_get_userbyid(relowner) FROM pg_catalog.pg_class WHERE oid = %s"


class PostgresAdmin:
    """Administrator of a destination, as `headrace.databases.ports.operator.DestinationAdmin`.

    Args:
        admin_dsn: connection string of the role that creates and drops.
        dsn: connection string of the applying role, to the same database.
        site: name of the site, for messages.
    """

    def __init__(self, admin_dsn: str, dsn: str, *, site: str) -> None:
        self._admin_dsn, self._site = admin_dsn, site
        self._administrator = Administrator(admin_dsn, dsn, site=site)

    def preflight(self, tombstones: Collection[tuple[str, str]]) -> tuple[Finding, ...]:
        """Check the rights of both roles."""
        running = self._administrator.running_role()
        with self._administrator.session("checking the destination as its administrator") as connection:
            found = tuple(self._findings(connection, running, tombstones))
            return (
                found
                if any(each.is_error for each in found)
                else (*found, *_right_findings(connection, f"sites.{self._site}", running[0]))
            )

    def prepare(self, tombstones: Collection[tuple[str, str]]) -> tuple[str, ...]:
        """Create or upgrade the schema, triggers and grants; return the statements that were run."""
        running = self._administrator.running_role()
        with (
            own_ddl(self._admin_dsn, self._site),
            self._administrator.session("preparing the destination as its administrator") as connection,
        ):
            for finding in self._findings(connection, running, tombstones):
                if finding.is_error:
                    raise DatabaseError(f"site {self._site}: {finding.problem}", hint=finding.fix)
            made = prepare_schema(connection)
            # The site's preflight reports a table without a key.
            able = [(owner, name) for owner, name, *_, has_key in lacking_triggers(connection, tombstones) if has_key]
            return (*made, *make_triggers(connection, able), *_grant(connection, running[0]))

    def remove(self, topology: str) -> tuple[str, ...]:
        """Remove the topology's objects as the administrator."""
        with (
            self._administrator.session("removing as its administrator"),
            contextlib.closing(PostgresDestination(self._admin_dsn, site=self._site)) as destination,
        ):
            return destination.remove(topology)

    def _findings(
        self, connection: psycopg.Connection[Any], running: tuple[str, str], tombstones: Collection[tuple[str, str]]
    ) -> Iterator[Finding]:
        path = f"sites.{self._site}"
        roles, found = self._administrator.roles(connection, running)
        yield from found
        if roles is None:
            return
        (has_schema,) = connection.execute(_HAS_SCHEMA).fetchone() or (False,)
        if not has_schema and not roles.may_create:
            yield Finding(
                path=path,
                problem="the role of admin_dsn may not create the schema headrace",
                fix=f"GRANT CREATE ON DATABASE {quote(roles.database)} TO {quote(roles.admin)};",
            )
        of_others = tuple(_owner_findings(connection, path, roles.running, roles.admin))
        yield from of_others
        # The role may lack the right to read the version of a schema with another owner.
        if not of_others and (made := schema_version(connection)) > VERSION:
            yield Finding(
                path=path,
                problem=f"the schema headrace was made by a newer Headrace (version {made}, known: {VERSION})",
                fix="use the newer Headrace",
            )
        yield from _trigger_findings(connection, self._site, roles.admin, tombstones)
        if roles.is_apart:
            yield from _table_findings(connection, self._site, roles.running, roles.admin, tombstones)
            yield from owned_schema_findings(connection, path, roles, {owner for owner, _ in tombstones})


def _owner_findings(connection: psycopg.Connection[Any], path: str, role: str, admin: str) -> Iterator[Finding]:
    others = owners_of_schema(connection, role)
    if others:
        owners = ", ".join(quote(owner) for owner in dict.fromkeys(owner for *_, owner in others))
        # The grants keep components running that use the role.
        grants = (
            f"GRANT USAGE ON SCHEMA headrace TO {quote(role)}; GRANT {_USE} ON ALL TABLES IN SCHEMA headrace TO"
            f" {quote(role)};"
        )
        yield Finding(
            path=path,
            problem=f"part of the schema headrace belongs to {owners}, and not to the role of admin_dsn",
            fix=f"BEGIN; {changes_of_owner(others, admin)} {grants} COMMIT;",
        )


def _trigger_findings(
    connection: psycopg.Connection[Any], site: str, admin: str, tables: Collection[tuple[str, str]]
) -> Iterator[Finding]:
    for owner, name, number, may, _ in lacking_triggers(connection, tables):
        if not may:
            row = connection.execute(_OWNER, (number,)).fetchone()
            assert row is not None
            yield Finding(
                path=f"sites.{site} table {owner}.{name}",
                problem=f"tombstones need a trigger on {qualified(owner, name)}, and the role of admin_dsn does not own it",
                fix=f"GRANT {quote(row[0])} TO {quote(admin)};",
            )


def _table_findings(
    connection: psycopg.Connection[Any],
    site: str,
    role: str,
    admin: str,
    tables: Collection[tuple[str, str]],
) -> Iterator[Finding]:
    wanted = sorted(tables)
    for owner, name, of in connection.execute(
        _OWNED, ([owner for owner, _ in wanted], [name for _, name in wanted], role)
    ).fetchall():
        table = qualified(owner, name)
        fix = f"REVOKE {quote(of)} FROM {quote(role)};"
        if of == role:
            fix = f"ALTER TABLE {table} OWNER TO {quote(admin)}; GRANT {_USE}, TRUNCATE ON {table} TO {quote(role)};"
        yield Finding(
            path=f"sites.{site} table {owner}.{name}",
            is_error=False,
            problem=f"the role of dsn, {quote(role)}, can drop the trigger that notes deletes: the table is"
            f" {'its own' if of == role else f'of {quote(of)}, as whom it can act'}",
            fix=fix,
        )


def _right_findings(connection: psycopg.Connection[Any], path: str, role: str) -> Iterator[Finding]:
    """Report missing rights on a schema that another topology's `up` made.

    Before this topology's `up`, the role itself cannot check what it finds there.
    """
    for statement in _due_grants(connection, role):
        yield Finding(
            path=path,
            problem=f"the role of dsn, {quote(role)}, lacks the rights on the schema headrace that `up` grants",
            fix=f"{statement}; -- or headrace up FILE",
        )


def _grant(connection: psycopg.Connection[Any], role: str) -> Iterator[str]:
    """Grant the applying role the use of the schema's objects, and revoke rights that it no longer needs.

    Yield the statements that were run.
    """
    for statement in _due_grants(connection, role):
        connection.execute(statement.encode())
        yield statement


def _due_grants(connection: psycopg.Connection[Any], role: str) -> list[str]:
    row = connection.execute(_RIGHTS, {"role": role}).fetchone()
    if row is None:
        return []
    may_use, may_create, is_lacking = row
    name = quote(role)
    statements = (
        (not may_use, f"GRANT USAGE ON SCHEMA headrace TO {name}"),
        # CREATE may be granted to the role, to a role that it is a member of, or to PUBLIC.
        *(
            (True, f"REVOKE CREATE ON SCHEMA headrace FROM {'PUBLIC' if grantee is None else quote(grantee)}")
            for grantee in may_create
        ),
        (is_lacking, f"GRANT {_USE} ON ALL TABLES IN SCHEMA headrace TO {name}"),
    )
    return [statement for is_due, statement in statements if is_due]
