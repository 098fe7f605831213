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
    *,
    apply: str,
    captured: Collection[str],
) -> tuple[tuple[TableVersion, ...], tuple[Finding, ...]]:
    """Separate tables whose CREATE TABLE may be on its way to a destination that lacks them, or has the former one.

    Args:
        destination: asked whether it has them.
        versions: the tables that arrive, under their names there.
        made: from `made_by_ddl`.
        recorded: the apply process's instantiation records: a table that has one did arrive.
        site: the destination's name.
        apply: the apply process.
        captured: identities of all tables of the source that arrive.

    Returns:
        The other tables, and a remark about each of these.
    """
    known = {record.identity for record in recorded}
    former = {record.name_now for record in recorded if record.identity not in captured}
    findings: dict[TableVersion, Finding] = {}
    for version in versions:
        name = TableName.of(version)
        if (identity := made.get(name)) is None or identity in known:
            continue
        if destination.describe(*name) is None:
            problem = "the table does not exist here yet: its CREATE TABLE is on its way"
            fix = "create the table here"
        elif name in former:
            problem = (
                "the table here is the former one of this name, which the source has dropped: its DROP TABLE and the"
                " CREATE TABLE of the new one are on their way"
            )
            fix = "drop the table here, and create the new one"
        else:
            continue
        findings[version] = Finding(
            path=f"sites.{site} table {name}",
            problem=problem,
            fix=f"wait (headrace wait FILE --caught-up). If the new table has not come then: {fix}, then headrace stop FILE"
            f" apply:{apply} and headrace start FILE apply:{apply}: it is copied",
            is_error=False,
        )
    return tuple(version for version in versions if version not in findings), tuple(findings.values())
