"""Work at a source that needs more rights than capturing.

This is its publication, which only an owner of its tables may create and alter.

Job
    Where a site has an `admin_dsn`, do as its role what `up` and `down --purge` do with the publication. The role of
    `dsn` then owns neither it nor a table: it may read the log and the tables. It owns the slot, because it needs
    REPLICATION for the log anyway.

Main path
    `headrace check` -> PostgresSourceAdmin.preflight -> findings. `headrace up` -> prepare, before the controller gets
    the new topology. The publication then names the new tables, too. Running processes treat them as unknown until the
    controller has recorded them (decision 95) -> everything is settled -> take_out: the publication no longer names
    tables that left. `headrace down --purge` -> the site drops its slot -> remove.

Bounds
    It runs inside a command: no long-lived process has the connection string.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import psycopg

from headrace.base.errors import CapturedNoMore, DatabaseError
from headrace.databases.ports import Finding, PlannedStatement
from headrace.databases.postgres.administrator import Administrator, Roles, owned_schema_findings
from headrace.databases.postgres.catalog.source_tables import CatalogTable, captured_tables, select_tables, slot_name
from headrace.databases.postgres.connection import qualified, quote
from headrace.databases.postgres.event_triggers import SOURCE_TRIALS, own_ddl, trial_findings
from headrace.databases.postgres.source.ddl.capture import (
    ddl_tables,
    install_step,
    is_published,
    log_tables,
    removal_step,
    takes_ddl,
    trim_ddl,
    watch_step,
)
from headrace.databases.postgres.source.ddl.objects import LOG, SCHEMA
from headrace.databases.postgres.source.ddl.rights import superuser_findings
from headrace.databases.postgres.source.ddl.rules import rules_step
from headrace.databases.postgres.source.publication import IS_TRUSTED, publication_found, publication_steps
from headrace.lcr.table_name import remark

__all__ = ["PostgresSourceAdmin"]

_TRIMS_MAX = 20  # batches of old records of DDL that one `up` removes: some seconds
_LOCK_TIMEOUT = "10s"  # as for running processes: a busy table must not block sessions queued behind us

_OWNER = f"""
SELECT pg_catalog.pg_get_userbyid(p.pubowner), {IS_TRUSTED}, pg_catalog.pg_has_role(%s, p.pubowner, 'MEMBER')
FROM pg_catalog.pg_publication p WHERE p.pubname = %s
"""
_HAS_SLOT = "SELECT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = %s)"
_HAS_PUBLICATION = "SELECT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = %s)"
_CLOSED_SCHEMAS = """
SELECT DISTINCT n.nspname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid::int8 = ANY (%s) AND NOT has_schema_privilege(n.oid, 'USAGE') ORDER BY 1
"""
_OWNED = """
SELECT n.nspname::text, c.relname::text, pg_catalog.pg_get_userbyid(c.relowner) FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid::int8 = ANY (%s) AND pg_catalog.pg_has_role(%s, c.relowner, 'MEMBER') ORDER BY 1, 2
"""


class PostgresSourceAdmin:
    """A PostgreSQL `headrace.databases.ports.operator.SourceAdmin`.

    Args:
        admin_dsn: of the role that creates and alters the publication.
        dsn: of the role that captures, to the same database.
        site: name of the site.
    """

    def __init__(self, admin_dsn: str, dsn: str, *, site: str) -> None:
        self._admin_dsn, self._site = admin_dsn, site
        self._administrator = Administrator(admin_dsn, dsn, site=site)

    def preflight(self, topology: str, rules: Sequence[object]) -> tuple[Finding, ...]:
        """See `SourceAdmin.preflight`."""
        running = self._administrator.running_role()
        with self._administrator.session("checking the source as its administrator") as connection:
            tables = select_tables(connection, rules)
            return tuple(self._findings(connection, running, self._name(topology), rules, tables))

    def prepare(self, topology: str, rules: Sequence[object], *, was_source: bool) -> tuple[str, ...]:
        """See `SourceAdmin.prepare`.

        It recreates neither a missing or altered publication of an existing slot, nor the publication of a source that
        lost its slot: the running processes report the loss.
        """
        running, name = self._administrator.running_role(), self._name(topology)
        with (
            own_ddl(self._admin_dsn, self._site),
            self._administrator.session("preparing the source as its administrator") as connection,
        ):
            tables = select_tables(connection, rules)
            for finding in self._findings(connection, running, name, rules, tables):
                if finding.is_error:
                    raise DatabaseError(f"site {self._site}: {finding.problem}", hint=finding.fix)
            statements: list[str] = []
            is_there, has_slot = _is_true(connection, _HAS_PUBLICATION, name), _is_true(connection, _HAS_SLOT, name)
            if has_slot and not _is_whole(connection, name):
                return ()
            install = install_step(connection) if takes_ddl(rules) else None
            if install is not None and not install.is_done:
                connection.execute(install.sent.encode())
                statements.append(install.statement)
            # Running processes ignore tables that the controller has not recorded (decision 95): none is published by DDL.
            taken = rules_step(connection, name, topology, ()) if install is not None else None
            if taken is not None and not taken.is_done:
                connection.execute(taken.sent.encode())
                statements.append(taken.statement)
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'".encode())
                if is_there and not has_slot and not was_source:
                    # From an earlier time: its entries would claim that the log has had the tables' changes since then.
                    statements += _run(connection, [f"DROP PUBLICATION {quote(name)}"])
                log = log_tables(connection, rules)
                steps = publication_steps(connection, name, tables, further=log)
                statements += _run(
                    connection, [step.statement for step in steps if not step.is_done and not _drops(name, step)]
                )
            watch = watch_step(connection, name, ddl_tables(rules, tables)) if log else None
            if watch is not None and not watch.is_done:
                connection.execute(watch.sent.encode())  # it has transactions of its own
                statements.append(watch.statement)
            for _ in range(_TRIMS_MAX if log else 0):
                if not trim_ddl(connection):
                    break
            return tuple(statements)

    def take_out(
        self,
        topology: str,
        kept: Collection[str],
        *,
        among: Collection[str] | None = None,
        recorded: Callable[[], Collection[str]] = tuple,
        keeps_ddl: bool = True,
    ) -> tuple[str, ...]:
        """See `SourceAdmin.take_out`. A publication without remaining tables or readers is dropped."""
        running, name = self._administrator.running_role(), self._name(topology)
        with (
            own_ddl(self._admin_dsn, self._site),
            self._administrator.session("taking tables out as the source's administrator") as connection,
        ):
            self._see_same_database(connection, running)
            there = captured_tables(connection, name)
            gone = [each for each in there if each.identity not in kept and (among is None or each.identity in among)]
            if len(gone) == len(there) and not _is_true(connection, _HAS_SLOT, name):
                return (*_run(connection, _drop(connection, name)), *_stop_recording(connection, name))
            stopped = [] if keeps_ddl else _take_out_log(connection, name)
            if not gone:
                return tuple(stopped)
            names = ", ".join(qualified(each.owner, each.name) for each in gone)
            done: list[str] = []
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'".encode())
                statements = tuple(_run(connection, [f"ALTER PUBLICATION {quote(name)} DROP TABLE {names}"]))
                # While this call waited for the locks, another one may have had one of the tables recorded.
                if not {each.identity for each in gone}.isdisjoint(recorded()):
                    raise psycopg.Rollback
                done += statements
            return (*stopped, *done)

    def remove(self, topology: str) -> tuple[str, ...]:
        """See `SourceAdmin.remove`. No-op while a slot exists, which could not be read without the publication."""
        running, name = self._administrator.running_role(), self._name(topology)
        with (
            own_ddl(self._admin_dsn, self._site),
            self._administrator.session("removing as the source's administrator") as connection,
        ):
            self._see_same_database(connection, running)
            if _is_true(connection, _HAS_SLOT, name):
                return ()
            return (*_run(connection, _drop(connection, name)), *_stop_recording(connection, name))

    def _see_same_database(self, connection: psycopg.Connection[Any], running: tuple[str, str]) -> None:
        """Refuse an administrator's connection string that names another database than `dsn`."""
        roles, findings = self._administrator.roles(connection, running)
        if roles is None:
            raise DatabaseError(f"site {self._site}: {findings[0].problem}", hint=findings[0].fix)

    def _findings(
        self,
        connection: psycopg.Connection[Any],
        running: tuple[str, str],
        name: str,
        rules: Sequence[object],
        tables: Sequence[CatalogTable],
    ) -> Iterator[Finding]:
        path = f"sites.{self._site}"
        roles, found = self._administrator.roles(connection, running)
        yield from found
        if roles is None:
            return
        row = connection.execute(_OWNER, (roles.running, name)).fetchone()
        if row is None and not roles.may_create:
            yield Finding(
                path=path,
                problem="the role of admin_dsn may not create a publication",
                fix=f"GRANT CREATE ON DATABASE {quote(roles.database)} TO {quote(roles.admin)};",
            )
        elif row is None:
            yield from trial_findings(connection, path, SOURCE_TRIALS)
        elif not row[1] or (roles.is_apart and row[2]):
            yield Finding(
                path=path,
                problem=f"the publication {quote(name)} belongs to {quote(row[0])}, and not to the role of admin_dsn",
                fix=f"ALTER PUBLICATION {quote(name)} OWNER TO {quote(roles.admin)};",
            )
        if takes_ddl(rules):
            yield from superuser_findings(connection, path, is_admin=True)
            yield Finding(
                path=path,
                is_error=False,
                problem="where an admin_dsn names the publication's tables, a CREATE TABLE is not replicated at once",
                fix="headrace up FILE after a CREATE TABLE that the rules take",
            )
        yield from _table_findings(connection, path, roles, tables)
        if roles.is_apart:
            yield from owned_schema_findings(connection, path, roles, {table.owner for table in tables})

    def _name(self, topology: str) -> str:
        return slot_name(topology, self._site)


def _table_findings(
    connection: psycopg.Connection[Any], path: str, roles: Roles, tables: Sequence[CatalogTable]
) -> Iterator[Finding]:
    admin, running = quote(roles.admin), quote(roles.running)
    for (schema,) in connection.execute(
        _CLOSED_SCHEMAS, ([table.number for table in tables if table.is_owned],)
    ).fetchall():
        yield Finding(
            path=path,
            problem=f"the role of admin_dsn may not use the schema {schema}",
            fix=f"GRANT USAGE ON SCHEMA {quote(schema)} TO {admin};",
        )
    for table in tables:
        if not table.is_owned:
            yield Finding(
                path=f"{path} table {table.owner}.{table.name}",
                problem="the role of admin_dsn does not own it and cannot publish it",
                # No role should become a superuser for this.
                fix=f"ALTER TABLE {qualified(table.owner, table.name)} OWNER TO {admin};"
                if table.is_superusers
                else f"GRANT {quote(table.owner_role)} TO {admin};",
            )
    for owner, name, of in (
        connection.execute(_OWNED, ([table.number for table in tables], roles.running)).fetchall()
        if roles.is_apart
        else ()
    ):
        own = (
            f"ALTER TABLE {qualified(owner, name)} OWNER TO {admin}; GRANT SELECT ON {qualified(owner, name)} TO"
            f" {running}; "
        )
        yield Finding(
            path=f"{path} table {owner}.{name}",
            is_error=False,
            problem=f"the role of dsn, {running}, can alter it and write it: it is"
            f" {'its own' if of == roles.running else f'of {quote(of)}, as whom it can act'}",
            fix=own + remark("or another owner") if of == roles.running else f"REVOKE {quote(of)} FROM {running};",
        )


def _is_whole(connection: psycopg.Connection[Any], name: str) -> bool:
    """Whether a publication exists and omits no change of its tables."""
    try:
        publication_found(connection, name)
    except CapturedNoMore:
        return False
    return True


def _drops(name: str, step: PlannedStatement) -> bool:
    return step.statement.startswith(f"ALTER PUBLICATION {quote(name)} DROP TABLE ")


def _is_true(connection: psycopg.Connection[Any], query: str, name: str) -> bool:
    row = connection.execute(query.encode(), (name,)).fetchone()
    return row is not None and bool(row[0])


def _drop(connection: psycopg.Connection[Any], name: str) -> list[str]:
    return [f"DROP PUBLICATION {quote(name)}"] if _is_true(connection, _HAS_PUBLICATION, name) else []


def _take_out_log(connection: psycopg.Connection[Any], name: str) -> list[str]:
    """Let a publication no longer name the log of DDL, and drop the log if no other one names it."""
    named = [f"ALTER PUBLICATION {quote(name)} DROP TABLE {SCHEMA}.{LOG}"] if is_published(connection, name) else []
    return [*_run(connection, named), *_stop_recording(connection, name)]


def _stop_recording(connection: psycopg.Connection[Any], name: str) -> Iterator[str]:
    step = removal_step(connection, name)
    if step is not None:
        connection.execute(step.sent.encode())
        yield step.statement


def _run(connection: psycopg.Connection[Any], statements: Sequence[str]) -> Iterator[str]:
    for statement in statements:
        connection.execute(statement.encode())
        yield statement
