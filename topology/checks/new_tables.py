"""Checks of tables that DDL made at the source: their CREATE TABLE may be on its way to a destination that lacks them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.databases.ports import DestinationDatabase, Finding
from headrace.lcr.table_name import TableName
from topology.routing.ways import ArrivingTable, ddl_tables, ways_to

if TYPE_CHECKING:
    from headrace.databases.ports import CapturedTable, Instantiation
    from headrace.lcr.batch import TableVersion
    from topology.spec import ApplySpec, TopologySpec

__all__ = ["made_by_ddl", "without_awaited"]


def made_by_ddl(
    before: TopologySpec | None, apply: ApplySpec, captured: Iterable[ArrivingTable[CapturedTable]]
) -> dict[TableName, str]:
    """Return the tables whose CREATE TABLE goes to an apply process: their identities, by name at the destination.

    Args:
        before: the topology prepared last; None: none was, so that nothing is on its way.
        apply: the apply process.
        captured: the captured tables that arrive at it.
    """
    applies = [] if before is None else [e for e in before.applies if (e.source, e.site) == (apply.source, apply.site)]
    ways = [way for each in applies if before is not None for way in ways_to(before, each)]
    made = [each for each in captured if each.source.is_made]
    with_ddl = set(ddl_tables(ways, made))
    found = {TableName.of(each.destination): each.source.identity for each in made}
    return {table: identity for table, identity in found.items() if table in with_ddl}


def without_awaited(
    destination: DestinationDatabase,
    versions: Sequence[TableVersion],
    made: Mapping[TableName, str],
    recorded: Collection[Instantiation],
    site: str,
) -> tuple[tuple[TableVersion, ...], tuple[Finding, ...]]:
    """Separate tables whose CREATE TABLE may be on its way to a destination that lacks them.

    Args:
        destination: asked whether it has them.
        versions: the tables that arrive, under their names there.
        made: from `made_by_ddl`.
        recorded: the apply process's instantiation records: a table that has one did arrive.
        site: the destination's name.

    Returns:
        The other tables, and a remark about each of these.
    """
    known = {record.identity for record in recorded}
    awaited = [
        version
        for version in versions
        if (identity := made.get(TableName.of(version))) is not None
        and identity not in known
        and destination.describe(version.owner, version.name) is None
    ]
    return tuple(version for version in versions if version not in awaited), tuple(
        Finding(
            path=f"sites.{site} table {version.qualified_name}",
            problem="the table does not exist here yet: its CREATE TABLE is on its way",
            fix="wait (headrace wait FILE --caught-up); if it does not come, create the table here: it is then copied",
            is_error=False,
        )
        for version in awaited
    )
