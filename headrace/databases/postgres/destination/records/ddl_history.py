"""The history of DDL changes, and operators' wishes to skip one, in an apply server's transaction."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from headrace.databases.ports import DdlOutcomeKind, DdlPlace
from headrace.databases.postgres.connection import storable
from headrace.lcr.table_name import literal

if TYPE_CHECKING:
    import psycopg

    from headrace.databases.ports import DdlOutcome
    from headrace.lcr.ddl import DdlChange

__all__ = ["HISTORY_MAX", "read_outcomes", "record_ddl", "skip_statement", "take_skip"]

HISTORY_MAX = 10_000
"""Changes to keep for each apply process: years of them, a few MB."""

_TAKE_SKIP = (
    "DELETE FROM headrace.ddl_skip WHERE topology = %s AND apply = %s AND order_scn = %s AND position = %s RETURNING 1"
)
_RECORD = """INSERT INTO headrace.ddl_history (topology, apply, source, transaction_id, order_scn, "position", command, owner, name,
    ddl_text, statements, outcome, reason) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"""
# A transaction's changes differ in their positions. The latest record counts: an error transaction may be executed later.
_OUTCOMES = """SELECT DISTINCT ON (h.source, h.order_scn, h."position") h.source, h.order_scn, h."position", h.outcome
FROM headrace.ddl_history h
JOIN unnest(%s::text[], %s::int8[], %s::int8[]) AS asked (source, order_scn, "position") USING (source, order_scn, "position")
WHERE h.topology = %s AND h.apply = %s ORDER BY h.source, h.order_scn, h."position", h.number DESC"""
# It was recorded while its table was being copied, and is made since the table has joined.
_REPLACE = """DELETE FROM headrace.ddl_history WHERE topology = %s AND apply = %s AND order_scn = %s AND "position" = %s
    AND outcome = 'NOT APPLIED'"""
# At most twice as many as were added, so that no transaction deletes thousands of rows at once.
_FORGET = """DELETE FROM headrace.ddl_history WHERE number = ANY (ARRAY(
    SELECT number FROM headrace.ddl_history WHERE topology = %(topology)s AND apply = %(apply)s AND number <= (
        SELECT number FROM headrace.ddl_history WHERE topology = %(topology)s AND apply = %(apply)s
        ORDER BY number DESC OFFSET %(kept)s LIMIT 1) ORDER BY number LIMIT 2))"""


def take_skip(connection: psycopg.Connection[Any], topology: str, apply: str, place: DdlPlace) -> bool:
    """Delete the operator's wish to skip a DDL change; return whether there was one.

    Args:
        connection: connection of the session, in its transaction.
        topology: name of the topology.
        apply: name of the apply process.
        place: place of the change.
    """
    parameters = (topology, apply, place.order_scn, place.position)
    return connection.execute(_TAKE_SKIP, parameters).fetchone() is not None


def skip_statement(topology: str, apply: str, place: DdlPlace) -> str:
    """Return the statement with which an operator skips a DDL change."""
    values = f"{literal(topology)}, {literal(apply)}, {place.order_scn}, {place.position}"
    return f"INSERT INTO headrace.ddl_skip VALUES ({values});"


def record_ddl(
    connection: psycopg.Connection[Any],
    topology: str,
    apply: str,
    change: DdlChange,
    place: DdlPlace,
    outcome: DdlOutcome,
) -> None:
    """Record what became of a DDL change, and delete surplus records, and the one that it was not applied before.

    Args:
        connection: connection of the session, in its transaction, with its own rights.
        topology: name of the topology.
        apply: name of the apply process.
        change: the change.
        place: its place in the source's log.
        outcome: what became of it.
    """
    texts = [
        storable(connection, each)
        for each in (change.command_type, change.base_table_owner, change.base_table_name, change.ddl_text)
    ]
    statements = [storable(connection, each) for each in outcome.statements]
    numbers = (place.transaction_id, place.order_scn, place.position)
    what = (outcome.kind.value, storable(connection, outcome.reason))
    connection.execute(_REPLACE, (topology, apply, place.order_scn, place.position))
    connection.execute(_RECORD, (topology, apply, place.source, *numbers, *texts, statements, *what))
    connection.execute(_FORGET, {"topology": topology, "apply": apply, "kept": HISTORY_MAX})


def read_outcomes(
    connection: psycopg.Connection[Any], topology: str, apply: str, places: Collection[DdlPlace]
) -> dict[DdlPlace, DdlOutcomeKind]:
    """Return what became of DDL changes, as last recorded; those without a record are missing.

    Args:
        connection: to the destination.
        topology: name of the topology.
        apply: name of the apply process.
        places: places of the changes in the source's log.
    """
    asked = {(place.source, place.order_scn, place.position): place for place in places}
    columns = [list(each) for each in zip(*asked, strict=True)] or [[], [], []]
    rows = connection.execute(_OUTCOMES.encode(), (*columns, topology, apply)).fetchall()
    return {asked[source, scn, position]: DdlOutcomeKind(outcome) for source, scn, position, outcome in rows}
