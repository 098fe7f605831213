"""Statements that Headrace will run at a PostgreSQL destination, for `headrace plan`. The database need not exist yet.

Locks have the names of PostgreSQL's manual ("Explicit Locking"). The plan includes the statements of running apply and
instantiation: `prepare` does not run them, but they take locks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from headrace.databases.ports import PlannedApply, PlannedStatement
from headrace.databases.postgres.connection import translated
from headrace.databases.postgres.destination.records.schema import VERSIONS, schema_version
from headrace.databases.postgres.destination.row_times.row_triggers import lacking_triggers, tombstones_statement
from headrace.databases.postgres.origins import origin_name
from headrace.lcr.table_name import literal

__all__ = ["plan_destination"]

_CREATED = re.compile(
    r"CREATE (?:UNLOGGED )?(?P<kind>SCHEMA|TABLE|INDEX|VIEW|FUNCTION)(?: IF NOT EXISTS)? (?P<name>[\w.]+)"
)
_NEW_OBJECTS = "ACCESS EXCLUSIVE on these new objects alone, until the transaction that makes them ends"


def plan_destination(
    connection: psycopg.Connection[Any] | None, topology: str, applies: Sequence[PlannedApply]
) -> tuple[PlannedStatement, ...]:
    """Return the steps of `prepare`, instantiation and apply at a destination, in order.

    Args:
        connection: connection to the database; None when it does not exist yet.
        topology: name of the topology.
        applies: the apply processes of this destination.
    """
    tables = {table for apply in applies for table in apply.tombstones}
    with translated("planning the destination"):
        version = schema_version(connection) if connection is not None else 0
        origins = _existing_origins(connection) if connection is not None else frozenset()
        lacking = (
            {(owner, name) for owner, name, *_ in lacking_triggers(connection, tables)}
            if connection is not None
            else tables
        )
    steps = [
        *_schema_steps(version),
        *(_trigger_step(owner, name, is_done=(owner, name) not in lacking) for owner, name in sorted(tables)),
    ]
    for apply in applies:
        steps += _origin_steps(topology, apply, origins)
    for apply in applies:
        steps += _apply_steps(apply)
    return tuple(steps)


def _trigger_step(owner: str, name: str, *, is_done: bool) -> PlannedStatement:
    return PlannedStatement(
        statement=tombstones_statement(owner, name),
        is_done=is_done,
        effect=f"makes a trigger on {owner}.{name} that notes deletes and key changes made by sessions of this site",
        lock="SHARE ROW EXCLUSIVE on the table, for a moment: waits for writes and blocks them",
    )


def _schema_steps(version: int) -> Iterator[PlannedStatement]:
    for number, statements in enumerate(VERSIONS):
        for statement in statements:
            created = _CREATED.match(statement)
            if created is not None:
                yield PlannedStatement(
                    statement=f"CREATE {created['kind']} {created['name']}",
                    effect=_EFFECTS.get(created["name"], _effect(created["kind"])),
                    lock="" if created["kind"] == "SCHEMA" else _NEW_OBJECTS,
                    is_done=number < version,
                )


def _effect(kind: str) -> str:
    return "for users: shows the tables in the manuals' words" if kind == "VIEW" else "finds rows of these tables"


_EFFECTS = {
    "headrace": "holds everything Headrace keeps in a destination",
    "headrace.row_change": "last change time and site of rows, and deleted rows, of tables with latest_timestamp",
    "headrace.keep_tombstones": "makes the trigger that notes deletes in tables with latest_timestamp and tombstones",
    "headrace.schema_version": "the version of these tables",
    "headrace.apply_process": "one row per apply process: its epoch, which fences out older incarnations",
    "headrace.apply_progress": "one row per apply server: what is applied, committed together with the data",
    "headrace.apply_epoch": "the server run in which an epoch began: an epoch ends with a crash, failover or restore",
    "headrace.apply_session": "the newest session of each apply server, which older ones cannot end",
    "headrace.apply_error": "the error queue: failed transactions",
    "headrace.apply_error_part": "the error queue: their LCRs",
    "headrace.apply_error_key": "the error queue: which keys later transactions are checked against",
    "headrace.apply_error_original": "the error queue: original parts, before an operator edited them",
    "headrace.apply_error_edit": "the error queue: what operators edited, and when",
    "headrace.apply_state": "configuration and state of each apply process, for the views",
    "headrace.instantiation": "the instantiation SCN of each table",
    "headrace.set_tag": "for users: tags the changes of a transaction",
    "headrace.track": "for users: labels a transaction, which `headrace track` follows",
}


def _existing_origins(connection: psycopg.Connection[Any]) -> frozenset[str]:
    rows = connection.execute("SELECT roname FROM pg_catalog.pg_replication_origin").fetchall()
    return frozenset(str(row[0]) for row in rows)


def _origin_steps(topology: str, apply: PlannedApply, existing: frozenset[str]) -> Iterator[PlannedStatement]:
    for server in range(apply.parallelism):
        name = origin_name(topology, apply.name, server, apply.tag)
        yield PlannedStatement(
            statement=f"SELECT pg_replication_origin_create({literal(name)})",
            effect=f"marks the changes of apply server {server} of {apply.name} in the log with its tag",
            lock="EXCLUSIVE on pg_replication_origin, for a moment",
            is_done=name in existing,
        )


def _apply_steps(apply: PlannedApply) -> Iterator[PlannedStatement]:
    yield PlannedStatement(
        statement="COPY ... FROM STDIN (FORMAT binary)",
        effect=f"copies the rows of {apply.source} into the tables, once; the tables must be empty, or be kept",
        lock="ROW EXCLUSIVE on each table, as every INSERT: waits for CREATE INDEX and ALTER TABLE and blocks them",
    )
    yield PlannedStatement(
        statement="INSERT, UPDATE, DELETE, COPY; TRUNCATE where the source truncated",
        effect=f"applies the changes of {apply.source} in {apply.parallelism} sessions with session_replication_role ="
        " replica",
        lock="ROW EXCLUSIVE on the table and locks on the changed rows, until the group commits, as every writer;"
        " TRUNCATE: ACCESS EXCLUSIVE",
    )
