"""Removing what a topology made at a destination.

Its rows in the schema headrace, the schema when it was the last, its origins.

Worked flow
    down --purge -> every apply process is fenced out -> its rows go -> no other topology left: the schema goes ->
    its replication origins go, once no other log stream can still meet them.
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
_LATER = ("conflict_history", "apply_error_edit", "apply_state", "handler_call", "row_mark")
_CREATED = re.compile(r"CREATE (?:UNLOGGED )?(TABLE|VIEW|FUNCTION) (headrace\.\w+)")
# for other log streams to pass what this topology wrote, and for dead backends to let go of their origins
_WAIT_S = 10.0
_POLL_S = 0.1


def remove_rows(
    connection: psycopg.Connection[Any], topology: str, apply: str | None = None, *, keeps_schema: bool = False
) -> list[str]:
    """Delete a topology's rows, and drop the schema headrace when nobody else's are left.

    Args:
        connection: in autocommit mode.
        topology: whose apply processes are fenced out already.
        apply: only this apply process's rows; the schema stays.
        keeps_schema: it stays, whoever has rows there: another role drops it.

    Returns:
        What was done, or why something stays.
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
    """Whether the role may look into the schema headrace, or there is none.

    Args:
        connection: to the database.
    """
    found = connection.execute(
        "SELECT has_schema_privilege(oid, 'USAGE') FROM pg_catalog.pg_namespace WHERE nspname = 'headrace'"
    ).fetchone()
    return found is None or bool(found[0])


def _there(connection: psycopg.Connection[Any], tables: Sequence[str]) -> list[str]:
    """Those of our tables that are there: an older schema which nothing has upgraded lacks some, and a damaged one."""
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
            # Nothing cascades: objects that users put there or built on it are not ours to drop.
            # Views first: one of an early version may read a table of a later one.
            created.reverse()
            drop_triggers(connection)
            for kind, name in sorted(created, key=lambda each: each[0] != "VIEW"):
                connection.execute(f"DROP {kind} IF EXISTS {name}")
            connection.execute("DROP SCHEMA headrace")
    except psycopg.errors.InsufficientPrivilege as error:
        return f"the schema headrace stays: {error.diag.message_primary}"
    except psycopg.errors.DependentObjectsStillExist as error:  # its detail names objects, and no rows
        named = "; ".join((error.diag.message_detail or "").splitlines())
        return f"the schema headrace stays: {error.diag.message_primary}{f': {named}' if named else ''}"
    return "DROP SCHEMA headrace"


def remove_origins(connection: psycopg.Connection[Any], topology: str) -> list[str]:
    """Drop a topology's replication origins; they are few, and every one takes a place for good.

    A change whose origin is gone reads as a user's own. So they stay while another topology's log stream of this
    database may still have to read what was written with them.

    Args:
        connection: in autocommit mode.
        topology: its name; its sessions have ended.

    Returns:
        For each origin what was done, or why it stays.
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
    """Other topologies' slots in this database that have not passed the end of the log as it is now."""
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
        return f"origin {name} stays until {', '.join(behind)} has read what was written with it; then: {statement}"
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            connection.execute("SELECT pg_catalog.pg_replication_origin_drop(%s)", (name,))
        except psycopg.errors.InsufficientPrivilege:
            return f"origin {name} stays, this role may not drop it; as a superuser: {statement}"
        except psycopg.errors.ObjectInUse:
            # A backend that ends lets go of its origin last.
            if time.monotonic() > deadline:
                return f"origin {name} stays, a session still uses it; later: {statement}"
            time.sleep(_POLL_S)
        else:
            return statement
