"""What a topology leaves in a database that `down --purge` cannot reach, as statements for an operator."""

from __future__ import annotations

from headrace.databases.postgres.catalog.source_tables import slot_name
from headrace.databases.postgres.connection import quote
from headrace.databases.postgres.source.ddl.objects import EVENT_TRIGGERS
from headrace.lcr.ddl import DDL_LOG
from headrace.lcr.table_name import literal

__all__ = ["removal_statements"]


def removal_statements(
    topology: str, site: str, *, is_source: bool, is_destination: bool, has_ddl: bool
) -> tuple[str, ...]:
    """Return the statements that remove everything, one session after another; each can be repeated.

    Args:
        topology: name of the topology, the only one that uses the database.
        site: name of the site.
        is_source: whether changes are captured there.
        is_destination: whether changes are applied there.
        has_ddl: whether its DDL is recorded.
    """
    name = slot_name(topology, site)
    statements: list[str] = []
    if is_source:
        statements += [
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name ="
            f" {literal(name)} AND NOT active",
            f"DROP PUBLICATION IF EXISTS {quote(name)}",
        ]
    if has_ddl:
        statements += [f"DROP EVENT TRIGGER IF EXISTS {each}" for each in EVENT_TRIGGERS]
        statements.append(f"DROP SCHEMA IF EXISTS {quote(DDL_LOG.owner)} CASCADE")
    if is_destination:
        statements += [
            "DROP SCHEMA IF EXISTS headrace CASCADE",
            "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE"
            f" starts_with(roname, {literal(f'headrace:{topology}/')})",
        ]
    return tuple(statements)
