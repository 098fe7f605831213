"""Checks whether a PostgreSQL database can be a destination; each finding comes with the statement that fixes it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg.abc import Query
from psycopg.rows import dict_row

from headrace.databases.applied_tables import missing_key, unfit_key
from headrace.databases.ports import UNFIT_TABLE, Finding
from headrace.databases.postgres.catalog.destination_tables import CatalogTable, describe_table, is_reserved
from headrace.databases.postgres.catalog.partitions import (
    rows_of_others,
    stored_tables,
    unlogged_findings,
    without_children,
)
from headrace.databases.postgres.claim import claim_name
from headrace.databases.postgres.compared.named_types import local_names
from headrace.databases.postgres.compared.types import conversion_of, dump_of, immediate, missing_alter, missing_tables
from headrace.databases.postgres.connection import qualified, quote
from headrace.databases.postgres.destination.fencing import STAMP_FUNCTION
from headrace.databases.postgres.destination.partitions import nested_findings, ownership_findings
from headrace.databases.postgres.destination.rights import (
    reference_right_findings,
    schema_right_findings,
    sequence_right_findings,
    table_right_findings,
)
from headrace.databases.postgres.destination.trust import (
    SCHEMA_OWNER,
    owner_findings,
    reserved_findings,
    schemas_owner_findings,
)
from headrace.databases.postgres.event_triggers import (
    DESTINATION_TAGS,
    DESTINATION_TRIALS,
    event_trigger_findings,
    trial_findings,
)
from headrace.databases.postgres.role_makers import role_maker_findings
from headrace.databases.postgres.versions import version_findings
from headrace.lcr.batch import OldImage, TableVersion
from headrace.lcr.table_name import TableName, flow_table, flow_text, remark
from headrace.rules.table_settings import NO_TABLE_SETTINGS, TableSettings

__all__ = ["ADMINISTRATIVE_NAME", "has_rows", "preflight", "preflight_tables"]

ADMINISTRATIVE_NAME = "headrace destination"  # application name of administrative sessions
_ORIGINS_SETTING_FROM = 180000  # in older versions, max_replication_slots bounds the number of origins
_FUNCTIONS = {
    "pg_catalog.pg_replication_origin_create(text)": "without which changes cannot be tagged",
    "pg_catalog.pg_replication_origin_session_setup(text)": "without which changes cannot be tagged",
    STAMP_FUNCTION: "without which applied transactions have the commit time of their session's first one, also when"
    " they are captured again",
    "pg_catalog.pg_current_wal_insert_lsn()": "without which it is unknown which commits are on disk",
    "pg_catalog.pg_current_wal_flush_lsn()": "without which it is unknown which commits are on disk",
}
# In addition to the apply servers and one administrative session per apply process: the topology's claim, and one
# session for `status` or `errors`.
_OTHER_SESSIONS = 2
# A copying task writes in one session and compares in another. Its apply process plans in one session and reads in
# another.
_SESSIONS_OF_A_COPY = 2
_SESSIONS_OF_WHO_COPIES = 2

_SERVER = f"""
SELECT current_user AS role, current_database() AS database, pg_catalog.pg_is_in_recovery() AS standby,
       has_database_privilege(current_database(), 'CREATE') AS may_create,
       has_database_privilege(current_database(), 'TEMP') AS may_temp,
       has_parameter_privilege('session_replication_role', 'SET') AS may_replica,
       (SELECT has_schema_privilege(oid, 'USAGE') FROM pg_catalog.pg_namespace WHERE nspname = 'headrace') AS may_use,
       (SELECT has_schema_privilege(oid, 'CREATE') FROM pg_catalog.pg_namespace WHERE nspname = 'headrace') AS may_create_in,
       {SCHEMA_OWNER} AS other_owner,
       coalesce(current_setting('max_active_replication_origins', true), current_setting('max_replication_slots'))::int
         AS origins,
       (SELECT count(*) FROM pg_catalog.pg_replication_origin WHERE NOT starts_with(roname, %(own)s)) AS foreign_origins,
       current_setting('max_connections')::int AS connections_max,
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
         - coalesce(current_setting('reserved_connections', true)::int, 0) - open.clients AS connections,
       (SELECT rolconnlimit - open.roles FROM pg_catalog.pg_roles WHERE rolname = current_user AND rolconnlimit >= 0)
         AS role_connections,
       open.servers AS own_servers, open.administrators AS administrators, open.claims > 0 AS has_claim
FROM (SELECT count(*) FILTER (WHERE is_client) AS clients,
             count(*) FILTER (WHERE usename = current_user) AS roles,
             count(*) FILTER (WHERE is_ours AND starts_with(application_name, %(name)s)) AS servers,
             count(*) FILTER (WHERE is_ours AND application_name = %(claim)s) AS claims,
             count(*) FILTER (WHERE is_ours AND application_name = %(administrator)s AND pid <> pg_backend_pid())
               AS administrators
      FROM (SELECT *, usename = current_user AND datname = current_database() AS is_ours,
                   -- what another role's session is, only some may see
                   datid IS NOT NULL AND usesysid IS NOT NULL
                     AND coalesce(backend_type, 'client backend') = 'client backend' AS is_client
            FROM pg_catalog.pg_stat_activity) AS activity) AS open
"""

# Constraints of the table, and those that only a partition has.
_CONSTRAINTS = """
SELECT format('%%I.%%I', n.nspname, r.relname) AS relation, c.conname AS name, c.contype AS kind, c.condeferrable AS
    deferrable, pg_catalog.pg_get_constraintdef(c.oid) AS definition,
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)
             ORDER BY a.attnum) AS columns, c.confrelid AS referred,
       (SELECT ARRAY[m.nspname::text, t.relname::text] FROM pg_catalog.pg_class t JOIN pg_catalog.pg_namespace m ON m.oid = t.relnamespace
        WHERE t.oid = coalesce(pg_catalog.pg_partition_root(c.confrelid), c.confrelid)) AS referred_table
FROM pg_catalog.pg_constraint c JOIN pg_catalog.pg_class r ON r.oid = c.conrelid JOIN pg_catalog.pg_namespace n ON n.oid = r.relnamespace
WHERE c.contype IN ('p', 'u', 'x', 'f') AND (c.conrelid = %(oid)s
    OR (c.conparentid = 0 AND c.conrelid IN (SELECT t.relid FROM pg_catalog.pg_partition_tree(%(oid)s) t)))
ORDER BY c.conrelid <> %(oid)s, r.relname, c.conname
"""

_TRIGGERS = """
SELECT g.tgname AS name, g.tgenabled AS enabled FROM pg_catalog.pg_trigger g
WHERE g.tgrelid = %(oid)s AND NOT g.tgisinternal ORDER BY g.tgname
"""

_RULES = """
SELECT w.rulename AS name, w.ev_enabled AS enabled, w.is_instead FROM pg_catalog.pg_rewrite w
WHERE w.ev_class = %(oid)s AND w.ev_enabled IN ('A', 'R') ORDER BY w.rulename
"""

_KINDS = """
SELECT n.nspname::text, c.relname::text, CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' WHEN 'f' THEN 'foreign table'
       WHEN 'S' THEN 'sequence' WHEN 'c' THEN 'type' ELSE 'relation that is no table' END
FROM unnest(%s::text[], %s::text[]) AS wanted (owner, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.owner
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name AND c.relkind NOT IN ('r', 'p')
"""
_SCHEMAS_WITH_RELATIONS = """
SELECT n.nspname FROM pg_catalog.pg_namespace n
WHERE n.nspname = ANY(%s) AND EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S'))
"""


def preflight(
    connection: psycopg.Connection[Any],
    topology: str,
    *,
    site: str,
    sessions: int,
    applies: int,
    copies: int,
    allow_any_version: bool,
    has_admin: bool = False,
) -> tuple[Finding, ...]:
    """Check the server and the role.

    Args:
        connection: session of the applying role.
        topology: name of the topology.
        site: site name in the findings' path.
        sessions: number of apply servers' sessions, each with its own replication origin.
        applies: number of apply processes at this site.
        copies: number of tasks that copy tables at the same time.
        allow_any_version: accept untested server versions.
        has_admin: another role creates and owns the schema headrace (`headrace.databases.postgres.destination.admin`).
    """
    with connection.cursor(row_factory=dict_row) as cursor:
        parameters = {
            "own": f"headrace:{topology}/",
            "name": f"headrace {topology}/",
            "administrator": ADMINISTRATIVE_NAME,
            "claim": claim_name(topology),
        }
        found = cursor.execute(_SERVER, parameters).fetchone()
    assert found is not None
    path = f"sites.{site}"
    version = connection.info.server_version
    return (
        *version_findings(connection, path, allow_any_version=allow_any_version),
        *_server_findings(path, found),
        *(() if has_admin else schema_right_findings(connection, path, found)),
        *_right_findings(connection, path, found),
        *role_maker_findings(connection, path),
        *event_trigger_findings(connection, path, DESTINATION_TAGS),
        *trial_findings(connection, path, DESTINATION_TRIALS),
        *_bound_findings(path, found, version, _Needed(sessions=sessions, applies=applies, copies=copies)),
    )


def _server_findings(path: str, found: dict[str, Any]) -> Iterator[Finding]:
    if found["standby"]:
        yield Finding(path=path, problem="the server is a standby: nothing can be written", fix="use the primary's dsn")


def _right_findings(connection: psycopg.Connection[Any], path: str, found: dict[str, Any]) -> Iterator[Finding]:
    role, database = quote(found["role"]), quote(found["database"])
    if not found["may_temp"]:
        yield Finding(
            path=path,
            problem="the role may not create temporary types (needed for columns of array types)",
            fix=f"GRANT TEMPORARY ON DATABASE {database} TO {role};",
        )
    if not found["may_replica"]:
        yield Finding(
            path=path,
            problem="the role may not switch off triggers for its own changes (session_replication_role)",
            fix=f"GRANT SET ON PARAMETER session_replication_role TO {role};",
        )
    for signature, reason in _FUNCTIONS.items():
        function = signature.removeprefix("pg_catalog.").partition("(")[0]
        may = connection.execute("SELECT has_function_privilege(%s, 'EXECUTE')", (signature,)).fetchone()
        if may is not None and not may[0]:
            yield Finding(
                path=path,
                problem=f"the role may not call {function}, {reason}",
                fix=f"GRANT EXECUTE ON FUNCTION {signature} TO {role};",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needed:
    """Numbers of sessions, apply processes and copying tasks, as in `preflight`."""

    sessions: int
    applies: int
    copies: int

    def connections(self, found: dict[str, Any]) -> int:
        """Return how many more connections are needed without copies; the topology's open sessions are deducted."""
        running = min(int(found["own_servers"]), self.sessions)
        administrators = min(found["administrators"], self.applies) if running else 0
        return self.sessions + self.applies + _OTHER_SESSIONS - int(found["has_claim"]) - running - int(administrators)

    @property
    def connections_of_copies(self) -> int:
        return _SESSIONS_OF_A_COPY * self.copies + _SESSIONS_OF_WHO_COPIES * self.applies if self.copies else 0


def _bound_findings(path: str, found: dict[str, Any], version: int, wanted: _Needed) -> Iterator[Finding]:
    name = "max_active_replication_origins" if version >= _ORIGINS_SETTING_FROM else "max_replication_slots"
    free, sessions = found["origins"] - found["foreign_origins"], wanted.sessions
    if free < sessions + wanted.copies:
        is_error = free < sessions
        yield Finding(
            path=path,
            is_error=is_error,
            problem=f"{sessions} replication origins are needed, {max(free, 0)} are free ({name})"
            if is_error
            else f"{free} replication origins are free ({name}): tables that are copied while others are applied need"
            f" {sessions + wanted.copies}",
            fix=f"ALTER SYSTEM SET {name} = {found['origins'] + sessions + wanted.copies - free}; -- and restart the"
            " server",
        )
    needed = wanted.connections(found)
    with_copies = needed + wanted.connections_of_copies
    most = found["connections_max"] + with_copies - found["connections"]
    if found["connections"] < with_copies:
        yield _connections_finding(
            path,
            needed,
            with_copies,
            f"{max(found['connections'], 0)} are free",
            fix=f"ALTER SYSTEM SET max_connections = {most}; -- and restart the server",
            is_error=found["connections"] < needed,
        )
    free = found["role_connections"]
    if free is not None and free < with_copies:
        yield _connections_finding(
            path,
            needed,
            with_copies,
            f"the role may open {max(free, 0)} more",
            fix=f"ALTER ROLE {quote(found['role'])} CONNECTION LIMIT -1;",
            is_error=free < needed,
        )


def _connections_finding(path: str, needed: int, with_copies: int, there: str, *, fix: str, is_error: bool) -> Finding:
    what = (
        f"{needed} connections are needed"
        if is_error
        else (f"{with_copies} connections are needed to copy tables while others are applied")
    )
    return Finding(path=path, problem=f"{what}, {there}", fix=fix, is_error=is_error)


def has_rows(connection: psycopg.Connection[Any], table: TableName) -> bool:
    """Return whether a table exists, may be read, and has a row, not counting tables that inherit from it.

    A missing right has a separate finding.
    """
    readable = connection.execute(
        "SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'), c.oid FROM"
        " pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')",
        (table.owner, table.name),
    ).fetchone()
    # Other checks refuse a table with a foreign partition; its remote server is not queried.
    if readable is None or not readable[0] or any(each.is_foreign for each in stored_tables(connection, readable[1])):
        return False
    query: Query = f"SELECT FROM {without_children(connection, table.owner, table.name)} LIMIT 1".encode()
    return connection.execute(query).fetchone() is not None


def preflight_tables(
    connection: psycopg.Connection[Any],
    site: str,
    versions: Sequence[TableVersion],
    now: Sequence[TableVersion] = (),
    settings: TableSettings = NO_TABLE_SETTINGS,
    *,
    at_source: Mapping[TableName, TableName],
) -> tuple[Finding, ...]:
    """Check the tables to which changes will be applied.

    Args:
        connection: session of the applying role.
        site: site name in the findings' path.
        versions: tables as the source describes them, by their names here.
        now: the tables' present versions at the source, where known.
        settings: table settings of the apply process.
        at_source: destination table name to source table name.
    """
    present, arriving = (
        {TableName.of(version): version for version in now},
        {TableName.of(version) for version in versions},
    )
    findings: list[Finding] = []
    absent: list[TableVersion] = []
    catalogs: list[CatalogTable] = []
    for version in versions:
        catalog = describe_table(connection, version.owner, version.name, settings)
        if catalog is None:
            absent.append(version)
        else:
            path = f"sites.{site} table {version.qualified_name}"
            catalogs.append(catalog)
            findings += _table_findings(
                connection,
                path,
                version,
                catalog,
                present.get(TableName.of(version)),
                settings,
                arriving,
                at_source.get(TableName.of(version)),
            )
            findings += _substitute_findings(path, version, catalog, settings, at_source.get(TableName.of(version)))
    nested = nested_findings(connection, f"sites.{site}", arriving)
    return (
        *_absent_findings(connection, site, [TableName.of(version) for version in absent], at_source),
        *nested,
        *findings,
        *owner_findings(connection, site, catalogs),
        *schemas_owner_findings(connection, site, [TableName.of(each.table) for each in catalogs]),
    )


def _absent_findings(
    connection: psycopg.Connection[Any],
    site: str,
    absent: Sequence[TableName],
    at_source: Mapping[TableName, TableName],
) -> Iterator[Finding]:
    """Report the tables that do not exist here.

    One command creates all tables that have the same name at both sites: created alone, a table would lack its types
    and its references to other tables.
    """
    yield from reserved_findings(site, absent)
    absent = [table for table in absent if not is_reserved(table.owner)]
    others = _kinds_of(connection, absent)
    for table, kind in others.items():
        yield Finding(
            path=f"sites.{site} table {table}",
            problem=f"it is a {kind} here, but changes are applied only to tables",
            fix="rename it and create the table, or send the changes to another table (a rule's rename_table)",
        )
    absent = [table for table in absent if table not in others]
    alike = [table for table in absent if at_source.get(table, table) == table]
    if alike:
        owners = list(dict.fromkeys(table.owner for table in alike))
        filled = {name for (name,) in connection.execute(_SCHEMAS_WITH_RELATIONS, (owners,))}
        path = f"sites.{site}" if len(alike) > 1 else f"sites.{site} table {alike[0]}"
        problem = (
            "the table does not exist here"
            if len(alike) == 1
            else f"{len(alike)} tables do not exist here: {', '.join(map(str, alike))}"
        )
        yield Finding(
            path=path, problem=problem, fix=missing_tables(alike, [owner for owner in owners if owner not in filled])
        )
    for table in absent:
        if (source := at_source.get(table, table)) != table:
            yield Finding(
                path=f"sites.{site} table {table}",
                problem=f"the table, which is {source} at the source, does not exist here",
                fix=f"create it here under this name, as {dump_of([source])} describes it",
            )


def _kinds_of(connection: psycopg.Connection[Any], names: Sequence[TableName]) -> dict[TableName, str]:
    """Map each name that a relation other than a table has to that relation's kind."""
    rows = connection.execute(_KINDS, ([each.owner for each in names], [each.name for each in names]))
    return {TableName(owner, name): kind for owner, name, kind in rows}


def _table_findings(
    connection: psycopg.Connection[Any],
    path: str,
    version: TableVersion,
    catalog: CatalogTable,
    now: TableVersion | None,
    settings: TableSettings,
    arriving: Collection[TableName],
    source: TableName | None,
) -> Iterator[Finding]:
    names = local_names(connection, [column.type_name for column in version.columns])
    missing = missing_alter(
        _named_here(version, names), catalog, None if now is None else _named_here(now, names), source=source
    )
    if missing:
        yield Finding(path=path, problem=UNFIT_TABLE, fix=missing)
    elif version == now:
        yield from _function_findings(path, version, catalog)
    yield from table_right_findings(connection, path, catalog, [column.name for column in version.columns])
    yield from sequence_right_findings(connection, path, catalog)
    if settings.detached_partitions == "follow":
        yield from ownership_findings(connection, path, catalog.oid)
    stored = stored_tables(connection, catalog.oid)
    yield from rows_of_others(path, stored)
    yield from unlogged_findings(path, stored)
    with connection.cursor(row_factory=dict_row) as cursor:
        constraints = cursor.execute(_CONSTRAINTS, {"oid": catalog.oid}).fetchall()
        triggers = cursor.execute(_TRIGGERS, {"oid": catalog.oid}).fetchall()
        rules = cursor.execute(_RULES, {"oid": catalog.oid}).fetchall()
    for found in constraints:
        name = quote(found["name"])
        if found["kind"] == "f" and settings.checks_foreign_keys(version.owner, version.name):
            yield from reference_right_findings(connection, path, name, found["referred"])
        elif found["kind"] == "f":
            # When the referenced table is replicated, too, the source has checked the foreign key.
            if (referred := TableName(*found["referred_table"])) not in arriving:
                yield Finding(
                    path=path,
                    is_error=False,
                    problem=f"the foreign key {name} refers to {referred}, which is not replicated from the source:"
                    " applied changes may refer to missing rows",
                    fix=f"replicate {referred} too; or have applied changes checked: check_foreign_keys: true",
                )
        elif found["deferrable"]:
            yield Finding(
                path=path,
                problem=f"the constraint {name} is DEFERRABLE: duplicates would not be detected",
                fix=f"ALTER TABLE {found['relation']} DROP CONSTRAINT {name}, ADD CONSTRAINT {name}"
                f" {immediate(found['definition'])};",
            )
    yield from _trigger_findings(path, version, triggers, settings)
    for found in rules:
        yield Finding(
            path=path,
            is_error=False,
            problem=f"the rule {quote(found['name'])} is ENABLE {'ALWAYS' if found['enabled'] == 'A' else 'REPLICA'}:"
            " it also runs for changes that are applied" + (", and in place of them" if found["is_instead"] else ""),
            fix=f"ALTER TABLE {qualified(version.owner, version.name)} ENABLE RULE {quote(found['name'])};",
        )
    yield from _key_findings(path, version, catalog, constraints)
    # A deferrable constraint does not count as a key; it has a finding above.
    if not catalog.table.key and not any(found["deferrable"] for found in constraints):
        yield _without_key(path, version)


def _named_here(version: TableVersion, names: Mapping[str, str]) -> TableVersion:
    """Return the table with the local names of its types, which an ALTER must use."""
    return replace(
        version,
        columns=tuple(
            replace(column, type_name=names.get(column.type_name, column.type_name)) for column in version.columns
        ),
    )


def _without_key(path: str, version: TableVersion) -> Finding:
    """Report the cost of a missing key.

    It costs time. When rows are changed, the error queue also grows with every later transaction on the table.
    """
    problem = "no primary key and no unique key without NULLs: every UPDATE and DELETE scans the table"
    # Without a replica identity, the source refuses to update or delete rows of a published table.
    if version.old_image is OldImage.FULL or any(column.is_key for column in version.columns):
        problem += (
            ", and when such a transaction is in the error queue, every later transaction with a row of the table"
            " follows it there"
        )
    return Finding(
        path=path,
        problem=problem,
        fix="give it a primary key, or a unique key of columns that are NOT NULL",
        is_error=False,
    )


def _trigger_findings(
    path: str, version: TableVersion, triggers: Sequence[dict[str, Any]], settings: TableSettings
) -> Iterator[Finding]:
    """Report triggers that do not fire as the file says, and unmentioned triggers that fire for applied changes."""
    table = qualified(version.owner, version.name)
    wanted = {
        each.trigger: each.fire
        for each in settings.triggers
        if (each.owner, each.name) == (version.owner, version.name)
    }
    there = {str(found["name"]): str(found["enabled"]) for found in triggers}
    for name in sorted(wanted.keys() - there.keys()):
        yield Finding(
            path=path,
            problem=f"triggers: the table has no trigger {name}",
            fix=f"name one of {', '.join(there)}" if there else "leave it out",
        )
    for name, enabled in there.items():
        fires, state = (
            enabled in {"A", "R"},
            {"A": "ENABLE ALWAYS", "R": "ENABLE REPLICA", "O": "ENABLE", "D": "DISABLE"}[enabled],
        )
        enable = f"ALTER TABLE {table} ENABLE TRIGGER {quote(name)};"
        if wanted.get(name) == "always" and enabled != "A":
            yield Finding(
                path=path,
                problem=f"the trigger {quote(name)} is {state}, and the file says fire: always",
                fix=f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {quote(name)}; -- as the owner of the table",
            )
        elif wanted.get(name) == "once" and fires:
            yield Finding(
                path=path,
                problem=f"the trigger {quote(name)} is {state}, and the file says fire: once",
                fix=f"{enable} -- as the owner of the table",
            )
        elif name not in wanted and fires:
            yield Finding(
                path=path,
                problem=f"the trigger {quote(name)} is {state}: it also runs for changes that are applied",
                fix=f"{enable} "
                + remark(
                    f"or, if intended, triggers: [{{table: {flow_table(version)}, trigger: {flow_text(name)},"
                    " fire: always}]"
                ),
                is_error=False,
            )


def _substitute_findings(
    path: str, version: TableVersion, catalog: CatalogTable, settings: TableSettings, at_source: TableName | None
) -> Iterator[Finding]:
    """Report a substitute key that cannot find rows, or may find several."""
    unfit = unfit_key(catalog.table, settings, catalog.comparable)
    if unfit is not None:
        yield Finding(path=path, problem=unfit[0], fix=unfit[1])
        return
    missing = missing_key(version, settings, at_source)
    if missing:
        yield Finding(path=path, problem="the LCRs do not carry the old values of its substitute key", fix=missing)
    table = catalog.table
    if table.is_substitute and not any(set(key) <= set(table.key) for key in table.identifying_keys):
        names = ", ".join(quote(table.columns[place].name) for place in table.key)
        yield Finding(
            path=path,
            is_error=False,
            problem=f"the substitute key ({names}) is not unique here: changes of one row that match several rows are "
            + ("made to one of them" if settings.allow_duplicate_rows else "errors (multiple_rows)"),
            fix=f"CREATE UNIQUE INDEX ON {qualified(table.owner, table.name)} ({names}); -- it finds rows faster, too",
        )


def _key_findings(
    path: str, version: TableVersion, catalog: CatalogTable, constraints: Sequence[dict[str, Any]]
) -> Iterator[Finding]:
    """Report unique and foreign keys with columns that the source does not have.

    The log does not show which changes depend on each other through these keys.
    """
    columns = catalog.table.columns
    # Generated columns are allowed: transactions on a table with one in a key run serially (`TableFit.is_serialised`).
    arriving = {column.name for column in version.columns} | {column.name for column in columns if column.is_generated}
    for key in catalog.table.unique_keys:
        names = [columns[place].name for place in key]
        own = [name for name in names if name not in arriving]
        if own and len(own) < len(names):
            yield Finding(
                path=path,
                problem=f"the unique key ({', '.join(names)}) has columns that the source does not have"
                f" ({', '.join(own)}): conflicts between changes in this key cannot be foreseen",
                fix=f"make it a key of {', '.join(name for name in names if name in arriving)} alone, if it is unique"
                " at the source",
            )
    for found in constraints:
        own = [name for name in found["columns"] if name not in arriving]
        if found["kind"] == "f" and own:
            yield Finding(
                path=path,
                problem=f"the foreign key {quote(found['name'])} has columns that the source does not have"
                f" ({', '.join(own)}): it is not checked for applied changes",
                fix="drop it, or maintain these columns yourself",
            )


def _function_findings(path: str, version: TableVersion, catalog: CatalogTable) -> Iterator[Finding]:
    """Report conversion functions for older rows that also convert present values.

    A copy and a comparison read the values unconverted.
    """
    for column in version.columns:
        place = catalog.positions[column.name]
        conversion = conversion_of(column, catalog.table.columns[place], catalog.columns[place])
        if conversion is not None and conversion.function:
            kind = column.type_name.removeprefix("pg_catalog.")
            yield Finding(
                path=path,
                is_error=False,
                problem=f"{conversion.function}({kind}) converts the values of {column.name} of the source's present"
                " type, but only in changes: copied rows keep the source's values, and are compared with them",
                fix=f"give {column.name} the source's type here, and then DROP FUNCTION {conversion.function}({kind});"
                " -- unless its results have the same text as the values",
            )
