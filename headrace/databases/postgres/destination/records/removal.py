"""Removal of a topology's objects at a destination.

It removes the topology's rows in the schema headrace, its replication origins, and the schema when no other topology
uses it.

Worked flow
    down --purge -> fence out every apply process -> delete its rows -> drop the schema if no other topology is left ->
    drop its replication origins when no other log stream can still read changes with them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from typing import Any

import psycopg

from headrace.databases.postgres.advisory_locks import wait_transaction_lock
from headrace.databases.postgres.destination.records.schema import (
    PREPARE_LOCK,
    PREPARE_LOCK_TIMEOUT_S,
    VERSIONS,
    missing_tables,
    schema_version,
)
from headrace.databases.postgres.destination.row_times.row_triggers import drop_triggers
from headrace.lcr.table_name import literal

__all__ = ["may_use_schema", "remove_origins", "remove_rows"]

_TABLES = ("apply_session", "apply_epoch", "apply_progress", "apply_process", "instantiation")
_PARTS = ("apply_error_part", "apply_error_key", "apply_error_original")
_LATER = (
    "conflict_history",
    "apply_error_edit",
    "apply_state",
    "handler_call",
    "row_mark",
    "ddl_history",
    "ddl_skip",
    "ddl_job",
)
_CREATED = re.compile(r"CREATE (?:UNLOGGED )?(TABLE|VIEW|FUNCTION) (headrace\.\w+)")
# for other log streams to pass this topology's changes, and for ending backends to release their origins
_WAIT_S = 10.0
_POLL_S = 0.1


def remove_rows(
    connection: psycopg.Connection[Any], topology: str, apply: str | None = None, *, keeps_schema: bool = False
) -> list[str]:
    """Delete a topology's rows, and drop the schema headrace when no other rows are left.

    Args:
        connection: connection in autocommit mode.
        topology: name of the topology, whose apply processes are already fenced out.
        apply: name of an apply process: delete only its rows and keep the schema. None for all of them.
        keeps_schema: keep the schema in any case, because another role drops it.

    Returns:
        Lines with the statements that were run, or the reason why something stays.
    """
    if schema_version(connection) == 0 and not missing_tables(connection):
        return []
    lines = []
    parameters = (topology,) if apply is None else (topology, apply)
    whose = "topology = %s" if apply is None else "topology = %s AND apply = %s"
    shown = whose.replace("%s", "'%s'") % parameters
    with connection.transaction():
        wait_transaction_lock(connection, PREPARE_LOCK, what="the schema headrace", timeout_s=PREPARE_LOCK_TIMEOUT_S)
        there = _there(connection, ("apply_error", *_PARTS, *_TABLES, *_LATER))
        for part in _PARTS if "apply_error" in there else ():
            if part not in there:
                continue
            connection.execute(
                f"DELETE FROM headrace.{part} WHERE number IN (SELECT number FROM headrace.apply_error WHERE {whose})",
                parameters,
            )
        for table in [each for each in there if each not in _PARTS]:
            done = connection.execute(f"DELETE FROM headrace.{table} WHERE {whose}", parameters)
            if done.rowcount:
                lines.append(f"DELETE FROM headrace.{table} WHERE {shown}")
        if apply is None and not keeps_schema and not _others(connection, there):
            lines.append(_drop_schema(connection))
    return lines


def may_use_schema(connection: psycopg.Connection[Any]) -> bool:
    """Return whether the schema headrace does not exist or the role may use it."""
    found = connection.execute(
        "SELECT has_schema_privilege(oid, 'USAGE') FROM pg_catalog.pg_namespace WHERE nspname = 'headrace'"
    ).fetchone()
    return found is None or bool(found[0])


def _there(connection: psycopg.Connection[Any], tables: Sequence[str]) -> list[str]:
    """Return those of the tables that exist; a schema that is damaged, or older and not upgraded, lacks some."""
    found = connection.execute(
        "SELECT t FROM pg_catalog.unnest(%s::text[]) t WHERE pg_catalog.to_regclass('headrace.' || t) IS NOT NULL",
        (list(tables),),
    )
    return [row[0] for row in found]


def _others(connection: psycopg.Connection[Any], there: Collection[str]) -> bool:
    union = " UNION ALL ".join(
        [
            "SELECT WHERE false",
            *(f"SELECT FROM headrace.{table}" for table in ("apply_error", *_TABLES) if table in there),
        ]
    )
    return connection.execute(f"SELECT FROM ({union}) r LIMIT 1").fetchone() is not None


def _drop_schema(connection: psycopg.Connection[Any]) -> str:
    created = [found.groups() for version in VERSIONS for text in version if (found := _CREATED.match(text))]
    try:
        with connection.transaction():
            # No CASCADE: objects that users created in the schema, or based on it, must stay.
            # Views go first: a view of an early version may read a table of a later one.
            created.reverse()
            drop_triggers(connection)
            for kind, name in sorted(created, key=lambda each: each[0] != "VIEW"):
                connection.execute(f"DROP {kind} IF EXISTS {name}")
            connection.execute("DROP SCHEMA headrace")
    except psycopg.errors.InsufficientPrivilege as error:
        return f"the schema headrace stays: {error.diag.message_primary}"
    except psycopg.errors.DependentObjectsStillExist as error:  # the detail names objects, never row values
        named = "; ".join((error.diag.message_detail or "").splitlines())
        return f"the schema headrace stays: {error.diag.message_primary}{f': {named}' if named else ''}"
    return "DROP SCHEMA headrace"


def remove_origins(connection: psycopg.Connection[Any], topology: str) -> list[str]:
    """Drop a topology's replication origins; the server's limited slots would otherwise stay occupied.

    A change whose origin is dropped reads as a user's change. So the origins stay while another topology's log stream
    of this database may still read changes with them.

    Args:
        connection: connection in autocommit mode.
        topology: name of the topology, whose sessions have ended.

    Returns:
        For each origin, the statement that was run, or the reason why the origin stays.
    """
    names = [
        row[0]
        for row in connection.execute(
            "SELECT roname FROM pg_catalog.pg_replication_origin WHERE starts_with(roname, %s) ORDER BY 1",
            (f"headrace:{topology}/",),
        )
    ]
    behind = _streams_behind(connection) if names else []
    return [_drop_origin(connection, name, behind) for name in names]


def _streams_behind(connection: psycopg.Connection[Any]) -> list[str]:
    """Return other topologies' slots in this database that have not passed the present end of the log."""
    row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
    assert row is not None
    deadline = time.monotonic() + _WAIT_S
    while True:
        behind = [
            found[0]
            for found in connection.execute(
                "SELECT slot_name FROM pg_catalog.pg_replication_slots WHERE slot_type = 'logical' AND slot_name LIKE"
                " 'headrace%%' AND database = pg_catalog.current_database() AND confirmed_flush_lsn < %s ORDER BY 1",
                (row[0],),
            )
        ]
        if not behind or time.monotonic() > deadline:
            return behind
        time.sleep(_POLL_S)


def _drop_origin(connection: psycopg.Connection[Any], name: str, behind: list[str]) -> str:
    statement = f"SELECT pg_replication_origin_drop({literal(name)})"
    if behind:
        return f"origin {name} stays until {', '.join(behind)} has read its changes; then: {statement}"
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            connection.execute("SELECT pg_catalog.pg_replication_origin_drop(%s)", (name,))
        except psycopg.errors.InsufficientPrivilege:
            return f"origin {name} stays, this role may not drop it; as a superuser: {statement}"
        except psycopg.errors.ObjectInUse:
            # An ending backend releases its origin last.
            if time.monotonic() > deadline:
                return f"origin {name} stays, a session still uses it; later: {statement}"
            time.sleep(_POLL_S)
        else:
            return statement
