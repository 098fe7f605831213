"""What needs more rights at a destination than applying: the schema headrace, the triggers that note deletes, and their removal.

Job
    Where a site has an `admin_dsn`, do as its role what `up` and `down --purge` create, alter and drop, and give the role of `dsn` the rights to use it.
    That role then needs no CREATE on the database, owns nothing in the schema, and cannot drop a trigger.

Main path
    `headrace check` -> PostgresAdmin.preflight -> findings. `headrace up` -> prepare, before the controller is asked: schema, triggers, grants; what runs
    finds it done (`PostgresDestination.prepare` only looks). `headrace down --purge` -> the site deletes its rows -> remove.

Bounds
    It runs inside a command: no process that goes on has the connection string.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import psycopg

from databases.ports import Finding
from databases.postgres.connection import connect, database_identity, qualified, quote, translated
from databases.postgres.destination.database import PostgresDestination
from databases.postgres.destination.row_triggers import lacking_triggers, make_triggers
from databases.postgres.destination.schema import VERSION, prepare_schema, schema_version
from databases.postgres.destination.trust import changes_of_owner, owners_of_schema
from databases.postgres.event_triggers import own_ddl
from streams.errors import DatabaseError, DatabaseUnavailable

__all__ = ["PostgresAdmin"]

_NAME = "headrace admin"
_USE = "SELECT, INSERT, UPDATE, DELETE"  # what the role of dsn may do with the tables of the schema
_UNREACHED = "admin_dsn is read anew each time: correct it, or the role that it names, and run the command again; what runs goes on with dsn"

_ROLES = """
SELECT current_user, current_database(), r.rolsuper, pg_catalog.pg_has_role(r.oid, current_user, 'MEMBER'),
       EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'headrace'), has_database_privilege(current_database(), 'CREATE')
FROM pg_catalog.pg_roles r WHERE r.rolname = %s
"""

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
    """See the module, and `databases.operator_ports.DestinationAdmin`.

    Args:
        admin_dsn: of the role that creates and drops.
        dsn: of the role that applies, to the same database.
        site: name of the site, for messages.
    """

    def __init__(self, admin_dsn: str, dsn: str, *, site: str) -> None:
        self._admin_dsn, self._dsn, self._site = admin_dsn, dsn, site

    def preflight(self, tombstones: Collection[tuple[str, str]]) -> tuple[Finding, ...]:
        """See `DestinationAdmin.preflight`."""
        role, identity = self._applying()
        with self._session("checking the destination as its administrator") as connection:
            found = tuple(self._findings(connection, role, identity, tombstones))
            return found if any(each.is_error for each in found) else (*found, *_right_findings(connection, f"sites.{self._site}", role))

    def prepare(self, tombstones: Collection[tuple[str, str]]) -> tuple[str, ...]:
        """See `DestinationAdmin.prepare`."""
        role, identity = self._applying()
        with own_ddl(self._admin_dsn, self._site), self._session("preparing the destination as its administrator") as connection:
            for finding in self._findings(connection, role, identity, tombstones):
                if finding.is_error:
                    raise DatabaseError(f"site {self._site}: {finding.problem}", hint=finding.fix)
            made = prepare_schema(connection)
            # One without a key is for the preflight of the site to name.
            able = [(owner, name) for owner, name, *_, has_key in lacking_triggers(connection, tombstones) if has_key]
            return (*made, *make_triggers(connection, able), *_grant(connection, role))

    def remove(self, topology: str) -> tuple[str, ...]:
        """See `DestinationAdmin.remove`."""
        with self._session("removing as its administrator"), contextlib.closing(PostgresDestination(self._admin_dsn, site=self._site)) as destination:
            return destination.remove(topology)

    def _findings(
        self, connection: psycopg.Connection[Any], role: str, identity: str, tombstones: Collection[tuple[str, str]],
    ) -> Iterator[Finding]:
        path = f"sites.{self._site}"
        if database_identity(connection) != identity:
            yield Finding(path=path, problem="admin_dsn leads to another database than dsn", fix="name the database of dsn in admin_dsn")
            return
        row = connection.execute(_ROLES, (role,)).fetchone()
        assert row is not None
        admin, database, is_superuser, is_member, has_schema, may_create = row
        if admin == role:
            yield Finding(path=path, problem=f"admin_dsn and dsn have one role, {quote(role)}", fix="give admin_dsn another role, or leave it out")
            return
        if is_superuser or is_member:
            kind, fix = (
                ("is a superuser", f"ALTER ROLE {quote(role)} NOSUPERUSER;") if is_superuser
                else (f"can act as {quote(admin)}", f"REVOKE {quote(admin)} FROM {quote(role)};")
            )
            yield Finding(path=path, is_error=False, problem=f"the role of dsn, {quote(role)}, {kind}: admin_dsn keeps nothing from it", fix=fix)
        if not has_schema and not may_create:
            yield Finding(
                path=path, problem="the role of admin_dsn may not create the schema headrace",
                fix=f"GRANT CREATE ON DATABASE {quote(database)} TO {quote(admin)};",
            )
        of_others = tuple(_owner_findings(connection, path, role, admin))
        yield from of_others
        # Of another's schema the version may not be read.
        if not of_others and (made := schema_version(connection)) > VERSION:
            yield Finding(path=path, problem=f"the schema headrace was made by a newer Headrace (version {made}, known: {VERSION})", fix="use the newer Headrace")
        yield from _trigger_findings(connection, self._site, admin, tombstones)
        yield from () if is_superuser or is_member else _table_findings(connection, self._site, role, admin, tombstones)

    def _applying(self) -> tuple[str, str]:
        """The role that applies, and the identity of its database."""
        with contextlib.closing(connect(self._dsn, application_name=_NAME)) as connection, translated("asking for the role that applies", site=self._site):
            row = connection.execute("SELECT current_user").fetchone()
            assert row is not None
            return str(row[0]), database_identity(connection)

    @contextlib.contextmanager
    def _session(self, what: str) -> Iterator[psycopg.Connection[Any]]:
        try:
            connection = connect(self._admin_dsn, application_name=_NAME)
        except DatabaseUnavailable as error:
            raise DatabaseUnavailable(f"as the administrator: {error.message}", hint=_UNREACHED, **error.context) from error
        with contextlib.closing(connection), translated(what, site=self._site):
            yield connection


def _owner_findings(connection: psycopg.Connection[Any], path: str, role: str, admin: str) -> Iterator[Finding]:
    others = owners_of_schema(connection, role)
    if others:
        owners = ", ".join(quote(owner) for owner in dict.fromkeys(owner for *_, owner in others))
        # Components that run as the role go on meanwhile.
        grants = f"GRANT USAGE ON SCHEMA headrace TO {quote(role)}; GRANT {_USE} ON ALL TABLES IN SCHEMA headrace TO {quote(role)};"
        yield Finding(
            path=path, problem=f"what is in the schema headrace belongs to {owners}, and not to the role of admin_dsn",
            fix=f"BEGIN; {changes_of_owner(others, admin)} {grants} COMMIT;",
        )


def _trigger_findings(connection: psycopg.Connection[Any], site: str, admin: str, tables: Collection[tuple[str, str]]) -> Iterator[Finding]:
    for owner, name, number, may, _ in lacking_triggers(connection, tables):
        if not may:
            row = connection.execute(_OWNER, (number,)).fetchone()
            assert row is not None
            yield Finding(
                path=f"sites.{site} table {owner}.{name}", problem=f"tombstones need a trigger on {qualified(owner, name)}, and the role of admin_dsn does not own it",
                fix=f"GRANT {quote(row[0])} TO {quote(admin)};",
            )


def _table_findings(
    connection: psycopg.Connection[Any], site: str, role: str, admin: str, tables: Collection[tuple[str, str]],
) -> Iterator[Finding]:
    wanted = sorted(tables)
    for owner, name, of in connection.execute(_OWNED, ([owner for owner, _ in wanted], [name for _, name in wanted], role)).fetchall():
        table = qualified(owner, name)
        fix = f"REVOKE {quote(of)} FROM {quote(role)};"
        if of == role:
            fix = f"ALTER TABLE {table} OWNER TO {quote(admin)}; GRANT {_USE}, TRUNCATE ON {table} TO {quote(role)};"
        yield Finding(
            path=f"sites.{site} table {owner}.{name}", is_error=False,
            problem=f"the role of dsn, {quote(role)}, can drop the trigger that notes deletes: the table is {'its own' if of == role else f'of {quote(of)}, as whom it can act'}", fix=fix,
        )


def _right_findings(connection: psycopg.Connection[Any], path: str, role: str) -> Iterator[Finding]:
    """Of a schema that another topology's `up` made: until this one's `up`, the role cannot be asked what it finds there."""
    for statement in _due_grants(connection, role):
        yield Finding(path=path, problem=f"the role of dsn, {quote(role)}, has not the rights on the schema headrace that `up` gives it", fix=f"{statement}; -- or headrace up FILE")


def _grant(connection: psycopg.Connection[Any], role: str) -> Iterator[str]:
    """Give the role that applies the use of what is in the schema, and take from it what it needs no more; yields the statements that were run."""
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
        # Of the role, of one that it is a member of, or of everybody.
        *((True, f"REVOKE CREATE ON SCHEMA headrace FROM {'PUBLIC' if grantee is None else quote(grantee)}") for grantee in may_create),
        (is_lacking, f"GRANT {_USE} ON ALL TABLES IN SCHEMA headrace TO {name}"),
    )
    return [statement for is_due, statement in statements if is_due]
