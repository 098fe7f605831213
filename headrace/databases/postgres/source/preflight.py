"""Findings that prevent a PostgreSQL database from being a source, each with the statement that fixes it.

Nothing is changed. An error means that `prepare`, a snapshot or the stream would fail, or that users' own statements
would start to fail; a warning is something the operator should know.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import psycopg

from headrace.databases.ports import Finding
from headrace.databases.postgres.catalog.partitions import rows_of_others, stored_tables
from headrace.databases.postgres.catalog.source_tables import (
    CatalogTable,
    select_tables,
    table_names,
    unlogged_tables,
)
from headrace.databases.postgres.compared.types import immediate
from headrace.databases.postgres.connection import qualified, quote
from headrace.databases.postgres.event_triggers import (
    SOURCE_TAGS,
    SOURCE_TRIALS,
    event_trigger_findings,
    trial_findings,
)
from headrace.databases.postgres.role_makers import role_maker_findings
from headrace.databases.postgres.source.binary_types import BinaryObstacle, binary_obstacles
from headrace.databases.postgres.source.ddl.capture import ddl_findings, takes_ddl
from headrace.databases.postgres.source.ddl.rights import superuser_findings
from headrace.databases.postgres.source.identities import identity_findings
from headrace.databases.postgres.source.left_out import Relation, large_object_findings, left_out_findings, not_captured
from headrace.databases.postgres.versions import version_findings
from headrace.lcr.table_name import TableName, argument, remark
from headrace.rules.rule import Rule, RuleSet

__all__ = ["preflight_source"]

_PLAIN_NAME = re.compile(r'[^\s."*?]+')  # what a topology file writes without quotes


# For a partitioned table, without repetition for each partition.
_DEFERRABLE = """
SELECT c.conrelid::int8, format('%%I.%%I', n.nspname, r.relname), c.conname, pg_get_constraintdef(c.oid) FROM pg_constraint c
JOIN pg_class r ON r.oid = c.conrelid JOIN pg_namespace n ON n.oid = r.relnamespace
WHERE c.contype IN ('p', 'u', 'x') AND c.condeferrable AND c.conparentid = 0 AND c.conrelid::int8 = ANY (%s) ORDER BY 2, 3
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """Facts about the server and the session's role, from one query."""

    wal_level: str
    is_standby: bool
    role: str
    database: str
    can_replicate: bool
    can_create: bool
    slots_free: int
    slots_max: int
    senders_free: int
    senders_max: int
    has_slot: bool
    has_sender: bool
    keeps_mb: int
    idle_slot_timeout: str
    encoding: str
    standbys: tuple[str, ...]  # slots that standbys read and synchronized_standby_slots does not name
    # slots that it names and no standby reads, and whether the slot exists
    awaited: tuple[tuple[str, bool], ...]
    pending: tuple[str, ...]  # settings that a restart will change


def preflight_source(
    connection: psycopg.Connection[Any],
    rules: Sequence[object],
    *,
    site: str,
    streams: int,
    allow_any_version: bool,
    may_be_copied: Callable[[TableName], bool],
    has_admin: bool = False,
    whole: Collection[TableName] = (),
) -> tuple[Finding, ...]:
    """Run all checks.

    Args:
        connection: a session of the role that will capture.
        rules: rule sets of the captures.
        site: for the findings' paths.
        streams: log streams and snapshots needed at once.
        allow_any_version: do not refuse untested versions.
        may_be_copied: as for `SourceDatabase.preflight`.
        has_admin: another role creates the publication, and must own the tables for it (`source.admin`).
        whole: as for `identity_findings`.
    """
    server = _server(connection)
    path = f"sites.{site}" if site else f"database {server.database}"
    tables, relations = select_tables(connection, rules), not_captured(connection)
    findings = [
        *version_findings(connection, path, allow_any_version=allow_any_version),
        *_server_findings(server, path, streams),
        *_role_findings(server, path, has_admin=has_admin),
        *role_maker_findings(connection, path),
        *event_trigger_findings(connection, path, SOURCE_TAGS),
        *(() if has_admin else trial_findings(connection, path, SOURCE_TRIALS)),
        *(superuser_findings(connection, path, is_admin=False) if takes_ddl(rules) and not has_admin else ()),
        *ddl_findings(connection, path, rules, tables),
        *_rule_findings(rules, tables, table_names(connection), relations, path),
        *left_out_findings(relations, rules, path),
        *large_object_findings(connection, tables, path),
    ]
    for table in tables:
        findings += _table_findings(table, server, path, has_admin=has_admin, whole=whole)
        if table.is_partitioned:
            findings += rows_of_others(
                f"{path} table {table.owner}.{table.name}", stored_tables(connection, table.number)
            )
    for unlogged in unlogged_tables(connection, rules):
        name = qualified(unlogged.owner, unlogged.name)
        findings.append(
            Finding(
                path=f"{path} table {unlogged.owner}.{unlogged.name}",
                problem="is unlogged: its changes are in no log",
                fix=f"ALTER TABLE {name} SET LOGGED; -- or exclude it",
                is_error=False,
            )
        )
    findings += _deferrable_findings(connection, tables, path, may_be_copied)
    findings += _form_findings(
        binary_obstacles(connection, [leaf.number for table in tables for leaf in table.leaves]), path
    )
    return tuple(findings)


def _server(connection: psycopg.Connection[Any]) -> _Server:
    idle = "current_setting('idle_replication_slot_timeout', true)"
    row = connection.execute(
        f"""
        SELECT current_setting('wal_level'), pg_is_in_recovery(), current_user::text, current_database()::text,
               EXISTS (SELECT FROM pg_roles r WHERE r.rolname = current_user AND (r.rolsuper OR r.rolreplication))
                   -- managed services give the right through a role
                   OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname IN ('rds_replication', 'cloudsqlsuperuser')
                              AND pg_has_role(r.oid, 'MEMBER')),
               has_database_privilege(current_database(), 'CREATE'),
               current_setting('max_replication_slots')::int8 - (SELECT count(*) FROM pg_replication_slots),
               current_setting('max_replication_slots')::int8,
               current_setting('max_wal_senders')::int8 - (SELECT count(*) FROM pg_stat_replication),
               current_setting('max_wal_senders')::int8,
               ours.has_slot, ours.has_sender,
               (SELECT setting::int8 FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
               coalesce({idle}, '0'), current_setting('server_encoding'),
               -- NULL before version 17: nothing can be set there
               (SELECT array_agg(slot_name::text ORDER BY slot_name) FROM pg_replication_slots WHERE slot_type = 'physical' AND active
                AND NOT slot_name = ANY (string_to_array(replace(current_setting('synchronized_standby_slots', true), ' ', ''), ','))),
               (SELECT array_agg(ARRAY[named, coalesce(s.slot_type, '')] ORDER BY named)
                FROM unnest(string_to_array(nullif(replace(current_setting('synchronized_standby_slots', true), ' ', ''), ''), ',')) AS named
                LEFT JOIN pg_replication_slots s ON s.slot_name = named AND s.slot_type = 'physical' WHERE s.active IS NOT TRUE),
               ARRAY(SELECT name FROM pg_settings WHERE pending_restart AND name IN ('wal_level', 'max_replication_slots', 'max_wal_senders') ORDER BY 1)
        FROM (SELECT count(*) > 0, count(s.active_pid) > 0 FROM pg_replication_slots s
              JOIN pg_publication p ON p.pubname = s.slot_name AND p.pubname ~ '^headrace_'
              WHERE s.database = current_database()) AS ours (has_slot, has_sender)
        """
    ).fetchone()
    assert row is not None
    return _Server(
        wal_level=row[0],
        is_standby=row[1],
        role=row[2],
        database=row[3],
        can_replicate=row[4],
        can_create=row[5],
        slots_free=int(row[6]),
        slots_max=int(row[7]),
        senders_free=int(row[8]),
        senders_max=int(row[9]),
        has_slot=row[10],
        has_sender=row[11],
        keeps_mb=int(row[12]),
        idle_slot_timeout=row[13],
        encoding=row[14],
        standbys=tuple(row[15] or ()),
        awaited=tuple((name, bool(kind)) for name, kind in row[16] or ()),
        pending=tuple(row[17]),
    )


def _server_findings(server: _Server, path: str, streams: int) -> Iterator[Finding]:
    if server.is_standby:
        yield Finding(
            path=path, problem="is a standby: nothing can be prepared there", fix="name the primary in the dsn"
        )
    if server.wal_level != "logical":
        yield Finding(
            path=path,
            problem=f"wal_level is {server.wal_level}: the log cannot be decoded",
            fix="ALTER SYSTEM SET wal_level = logical; -- and restart the server",
        )
    # When everything already runs, one of the used ones is ours.
    for setting in server.pending if server.wal_level == "logical" else ():
        yield Finding(
            path=path,
            is_error=False,
            problem=f"{setting} was changed and takes effect with the next restart: below what is needed, the log"
            " cannot be read then" + (", and slots are lost" if setting == "wal_level" else ""),
            fix="ALTER SYSTEM SET wal_level = logical; SELECT pg_reload_conf();"
            if setting == "wal_level"
            else f"look at {setting} in the server's configuration before it is restarted",
        )
    for setting, free, most, ours in (
        ("max_replication_slots", server.slots_free, server.slots_max, server.has_slot),
        ("max_wal_senders", server.senders_free, server.senders_max, server.has_sender),
    ):
        needed = streams - ours
        if free < needed:
            yield Finding(
                path=path,
                problem=f"{max(free, 0)} of {most} {setting} are free, {needed} are needed",
                fix=f"ALTER SYSTEM SET {setting} = {most + needed - free}; -- and restart the server",
            )
    if server.keeps_mb >= 0:
        yield Finding(
            path=path,
            is_error=False,
            problem=f"max_slot_wal_keep_size is {server.keeps_mb} MB: an outage of the log writer that takes longer"
            " loses the slot",
            fix="ALTER SYSTEM SET max_slot_wal_keep_size = -1; SELECT pg_reload_conf();",
        )
    if server.idle_slot_timeout not in {"", "0"}:
        yield Finding(
            path=path,
            is_error=False,
            problem=f"idle_replication_slot_timeout is {server.idle_slot_timeout}: a stopped log writer loses its slot"
            " after that",
            fix="ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf();",
        )
    for slot in server.standbys:
        yield Finding(
            path=path,
            is_error=False,
            problem=f"the standby of slot {slot} is not in synchronized_standby_slots: changes that it does not have"
            " are captured, and after its promotion the redo log would be refused",
            fix="ALTER SYSTEM SET synchronized_standby_slots = '<the slots of all standbys that may be promoted>';"
            " SELECT pg_reload_conf();",
        )
    for slot, is_there in server.awaited:
        why = "no standby reads" if is_there else "does not exist"
        yield Finding(
            path=path,
            is_error=not is_there,
            problem=f"synchronized_standby_slots names slot {slot}, which {why}: the server sends changes to no"
            " subscriber before the standby has them",
            fix="start the standby; or ALTER SYSTEM SET synchronized_standby_slots = '<without it>'; SELECT"
            " pg_reload_conf();",
        )
    if server.encoding == "SQL_ASCII":
        yield Finding(
            path=path,
            problem="its encoding is SQL_ASCII: a text value or a name that is not UTF-8 stops its capture at that"
            " change for good, and its copy",
            fix="move to a UTF8 database, or see to it that all text in this one is UTF-8",
            is_error=False,
        )


def _role_findings(server: _Server, path: str, *, has_admin: bool) -> Iterator[Finding]:
    role = quote(server.role)
    if not server.can_replicate:
        yield Finding(
            path=path, problem=f"role {server.role} may not read the log", fix=f"ALTER ROLE {role} REPLICATION;"
        )
    if not (server.can_create or has_admin):
        yield Finding(
            path=path,
            problem=f"role {server.role} may not create a publication",
            fix=f"GRANT CREATE ON DATABASE {quote(server.database)} TO {role};",
        )


def _rule_findings(
    rules: Sequence[object],
    tables: Sequence[CatalogTable],
    known: Sequence[tuple[str, str]],
    relations: Sequence[Relation],
    path: str,
) -> Iterator[Finding]:
    others = {(each.owner, each.name): each for each in relations}
    hints = {
        f"{rule.owner}.{rule.name}": found.described()
        if (found := others.get((rule.owner, rule.name)))
        else _did_you_mean(rule, known)
        for rule in _rules(rules)
        if rule.dml
    }
    if not tables:
        yield Finding(
            path=path,
            problem="no table of this database is selected by the rules",
            fix="create the tables, and run the command again; or correct the names in `replicate` or `include`"
            + "".join(f": {hint}" for hint in sorted(set(hints.values()) - {""})),
        )
        return
    reported = set()
    for rule in _rules(rules):
        name = f"{rule.owner}.{rule.name}"
        if rule.dml and name not in reported and not any(rule.matches_object(t.owner, t.name) for t in tables):
            reported.add(name)
            fix = (
                f"{hints[name]}. Correct the name, or remove the rule"
                if hints[name]
                else "correct the name (upper and lower case count), or remove the rule"
            )
            yield Finding(
                path=f"{path} rule {name}",
                problem="matches no table here",
                fix=fix.replace("?. ", "? "),
                is_error=False,
            )


def _rules(rules: Sequence[object]) -> Iterator[Rule]:
    for rule_set in rules:
        yield from (rule_set.include or ()) if isinstance(rule_set, RuleSet) else ()


def _did_you_mean(rule: Rule, known: Sequence[tuple[str, str]]) -> str:
    """Return a suggestion with the existing name nearest to a rule's; empty: no name is near."""
    owners = sorted({owner for owner, _ in known})
    if not any(rule.matches_owner(owner) for owner in owners):
        near = _near(rule.owner, owners)
        return f"did you mean the schema {near}?" if near else ""
    near = _near(rule.name, sorted({name for owner, name in known if rule.matches_owner(owner)}))
    return f"did you mean the table {near}?" if near else ""


def _near(name: str, known: Sequence[str]) -> str:
    """Return the nearest of `known`, ignoring case, as a topology file spells it."""
    by_lower = {each.lower(): each for each in known}
    close = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    if not close:
        return ""
    found = by_lower[close[0]]
    return found if _PLAIN_NAME.fullmatch(found) else f"""'"{found}"' (in YAML, with both quotes)"""


def _table_findings(
    table: CatalogTable, server: _Server, path: str, *, has_admin: bool, whole: Collection[TableName]
) -> Iterator[Finding]:
    where = f"{path} table {table.owner}.{table.name}"
    name, role = qualified(table.owner, table.name), quote(server.role)
    if not (table.is_owned or has_admin):
        yield Finding(
            path=where,
            problem=f"role {server.role} does not own it and cannot publish it",
            # No role should become a superuser for this.
            fix=f"ALTER TABLE {name} OWNER TO {role};"
            if table.is_superusers
            else f"GRANT {quote(table.owner_role)} TO {role};",
        )
    elif not table.can_select:
        yield Finding(
            path=where,
            problem=f"role {server.role} may not read it",
            fix=f"GRANT USAGE ON SCHEMA {quote(table.owner)} TO {role}; GRANT SELECT ON {name} TO {role};",
        )
    if table.hides_rows:
        yield Finding(
            path=where,
            problem=f"row-level security hides rows from role {server.role}",
            fix=f"ALTER ROLE {role} BYPASSRLS;",
        )
    if table.is_partitioned and not table.has_primary_key and any(leaf.identity in {"f", "i"} for leaf in table.leaves):
        yield Finding(
            path=where,
            is_error=False,
            problem="a partition that is made later has no replica identity, which it does not get from the table: your"
            " own UPDATE and DELETE on it would fail",
            fix="give the table a primary key; or let what makes a partition also run ALTER TABLE PARTITION REPLICA IDENTITY"
            " FULL;",
        )
    for leaf in table.leaves:
        leaf_where = where if leaf.number == table.number else f"{where} partition {leaf.owner}.{leaf.name}"
        leaf_name = qualified(leaf.owner, leaf.name)
        if leaf.is_unlogged:
            yield Finding(
                path=leaf_where,
                problem="is unlogged: its changes are in no log",
                fix=f"ALTER TABLE {leaf_name} SET LOGGED; -- what changes until then comes with a copy alone",
            )
    yield from identity_findings(table, path, whole)


def _deferrable_findings(
    connection: psycopg.Connection[Any],
    tables: Sequence[CatalogTable],
    path: str,
    may_be_copied: Callable[[TableName], bool],
) -> Iterator[Finding]:
    """Report unique keys that are checked after the statement here, but at each row at the destination.

    A deferrable key at the destination is refused: sessions of apply would not check it at all
    (`destination.preflight`).
    """
    names = {table.number: (table.owner, table.name) for table in tables}
    names |= {leaf.number: (table.owner, table.name) for table in tables for leaf in table.leaves}
    for number, relation, name, definition in connection.execute(_DEFERRABLE, (list(names),)).fetchall():
        owner, table = names[number]
        shown = argument(TableName(owner, table))
        # A copy deletes such a transaction, unless it has rows of other tables; executing it then writes only those.
        repair = (
            f"headrace copy FILE {shown}, then, if that leaves error transactions with rows of other tables: headrace"
            " errors execute FILE --all"
            if may_be_copied(TableName(owner, table))
            else f"headrace errors delete FILE NUMBER, then headrace verify FILE {shown} and the fix that it prints"
        )
        yield Finding(
            path=f"{path} table {owner}.{table}",
            is_error=False,
            problem=f"the constraint {quote(name)} is DEFERRABLE, and that of the destination is not: a transaction"
            " that gives rows each other's values (pos = 11 - pos, pos = pos + 1) cannot be written there; it goes into"
            " the error queue, and each execution fails",
            fix=f"ALTER TABLE {relation} DROP CONSTRAINT {quote(name)}, ADD CONSTRAINT {quote(name)}"
            f" {immediate(definition)}; "
            + remark(f"then such statements fail here; or, behind such a transaction: {repair}"),
        )


def _form_findings(obstacles: Sequence[BinaryObstacle], path: str) -> Iterator[Finding]:
    """Report one finding per column: operators need the list when a row is too long for text form."""
    for found in obstacles:
        yield Finding(
            path=f"{path} column {found.owner}.{found.table}.{found.column}",
            is_error=False,
            problem=f"changes travel in text form, which is slower, because of {found.type_name}: {found.reason}",
            fix="no action needed; exclude these tables if speed matters more",
        )
