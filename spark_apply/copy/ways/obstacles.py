"""Reasons why a table cannot be copied: it does not fit the destination's, or the rows there are not ours to remove."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.databases.ports.copying import copied_columns
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from headrace.rules.transformations.transformation import AddColumn, TransformationError
from spark_apply.copy.pieces.rounds import TableCopy
from spark_apply.copy.records.standing import rename_statement
from spark_apply.tables.arriving import restart_hint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.databases.ports import (
        DestinationSetUp,
        DestinationTable,
        SourceDatabase,
        SourceTable,
        TableShape,
        WriteSession,
    )
    from spark_apply.apply_config import TableToInstantiate
    from spark_apply.copy.records.standing import Standing

__all__ = ["REPAIRED_ALONE", "not_as_called", "refused", "table_copy", "unlike_types"]


def table_copy(
    session: WriteSession,
    each: Standing,
    facts: Mapping[TableName, SourceTable],
) -> tuple[TableCopy, str]:
    """Return what is to be copied, and to where.

    Args:
        session: of the destination.
        each: the table's standing.
        facts: the source's tables, by their names there.

    Returns:
        The copy, and why it cannot be made; empty: it can.

    Raises:
        DatabaseError: the destination cannot describe the table.
    """
    table = each.table
    there, target = facts.get(table.source), session.describe(*table.destination, fresh=True)
    copy = TableCopy(table, {}, Scn(0), 0 if there is None else there.row_estimate, target, each.replaced_identities)
    if there is None:
        return copy, "the source has no such table any more"
    if target is None:
        return copy, "the destination has no such table: create it there, with the same columns"
    try:
        arriving = table.columns(there.columns)
        unlogged = dict(table.columns((*there.columns, *there.unlogged)))
    except TransformationError as error:
        return copy, f"{error.message}: {error.hint}"
    writable = set(copied_columns(target))
    missing = [name for name, _ in arriving if name not in {column.name for column in target.columns}]
    if missing:
        return copy, f"the destination table lacks columns of the source's: {', '.join(missing)}"
    if problem := _computed_obstacle(there, target, arriving, unlogged):
        return copy, problem
    types = {column.name: column.type_name for column in target.columns}
    copy.columns = {name: types[name] for name, origin in arriving if name in writable and isinstance(origin, str)}
    copy.sources = tuple(origin for name, origin in arriving if name in copy.columns and isinstance(origin, str))
    copy.added = tuple(origin for name, origin in arriving if name in writable and isinstance(origin, AddColumn))
    if not copy.columns:
        return copy, "it has no column that can be copied: add one at both sides, or drop the table at the source"
    return copy, _obstacle_of_added(copy, target)


def _computed_obstacle(
    there: SourceTable,
    target: DestinationTable,
    arriving: Sequence[tuple[str, str | AddColumn]],
    known: Mapping[str, str | AddColumn],
) -> str:
    """Return why columns that only one side computes cannot be copied; empty: no such column.

    Args:
        there: the source's table.
        target: the destination's.
        arriving: the columns in the log, under their names at the destination.
        known: the same with all of the source's columns.
    """
    computed = {column.name for column in target.columns if column.is_generated}
    if lost := [name for name, origin in arriving if name in computed and origin not in there.computed]:
        return (
            f"the destination computes {', '.join(lost)}, and the source does not: its values would be thrown"
            " away; `headrace check` names the ALTER"
        )
    plain = {column.name for column in target.columns} - computed
    if empty := [name for name, origin in known.items() if name in plain and origin in there.unlogged]:
        return (
            f"the source computes {', '.join(empty)}, whose values are not in its log, and the destination does"
            " not: `headrace check` names the ALTER"
        )
    return ""


def _obstacle_of_added(copy: TableCopy, target: DestinationTable) -> str:
    """Return why the destination cannot have the columns that a transformation adds; empty: it can."""
    added = {each.name for each in copy.added}
    keys = (tuple(target.columns[place].name for place in key) for key in target.unique_keys)
    if shared := next((key for key in keys if added & set(key)), ()):
        return (
            f"the unique key ({', '.join(shared)}) has a column that a transformation adds. Rows of several sources in"
            " one table are not built yet: give each source a table of its own, and a key of columns that come from the"
            " source"
        )
    if not target.identifying_keys and any(each.is_now for each in copy.added):
        return (
            "rows of a table without a key are found by all their values, and a transformation adds the time: give"
            " the destination table a key"
        )
    return ""


def unlike_types(
    source: SourceDatabase, destination: DestinationSetUp, copies: Sequence[TableCopy]
) -> dict[TableName, str]:
    """Return why rows would mean something else at the destination although every column has its counterpart.

    In types that are not built in, fields have other names, or values are changed. `check` and `up` refuse such tables.
    This finds tables whose types were altered since.

    Returns:
        The reason by name at the destination; tables without a problem are omitted.
    """
    by_name = {copy.table.source: copy for copy in copies}
    shapes = [
        _arrived(shape, by_name[TableName.of(shape)])
        for shape in (source.domain_shapes(list(by_name)) if by_name else ())
    ]
    if not any(finding.is_error for finding in destination.preflight_domains(shapes)):
        return {}
    errors = {
        TableName.of(shape): [finding for finding in destination.preflight_domains([shape]) if finding.is_error]
        for shape in shapes
    }
    return {
        name: "; ".join(f"{each.problem}. At the destination: {each.fix}" for each in found)
        for name, found in errors.items()
        if found
    }


def _arrived(shape: TableShape, copy: TableCopy) -> TableShape:
    """Return the types of a source's copied columns, under the names of the destination."""
    names = dict(zip(copy.sources, copy.columns, strict=True))
    return replace(
        shape,
        owner=copy.table.destination.owner,
        name=copy.table.destination.name,
        computed=(),
        domains=tuple(replace(each, name=names[each.name]) for each in shape.domains if each.name in names),
        types=tuple(replace(each, column=names[each.column]) for each in shape.types if each.column in names),
    )


def not_as_called(table: TableToInstantiate, captured: Mapping[TableName, str], apply: str) -> str:
    """Return why a table cannot be copied that the source does not have under its name.

    Args:
        table: under its name at the start of the driver.
        captured: the identities of the source's tables, by their current names.
        apply: name of the apply process.
    """
    now = next((name for name, identity in captured.items() if identity == table.identity), None)
    if now is not None and table.part_of is not None:
        return f"the source calls the partition {now} since it was attached: rename it here, too; then its rows come"
    if now is not None:
        return f"the source calls it {now} since the apply process was started: {restart_hint(apply)}"
    return "the source has no such table any more, or another one of its name: run `headrace up` again"


# Rows from which other sites have copies are never offered for deletion.
REPAIRED_ALONE = (
    'docs/tasks/add-a-site.md, "Adding a site to an n-way topology", says how one of several sites is repaired'
)


def refused(each: Standing, how_to_empty: str = "") -> str:
    """Return why a table cannot be copied beside rows that are not ours to remove; empty: keep these rows.

    No advice may skip changes: only rows that Headrace never copied may be kept as the operator's.

    Args:
        each: the table's standing.
        how_to_empty: from `DestinationDatabase.how_to_empty`; empty: not needed.
    """
    table = each.table
    if each.occupant is not None:
        renamed = each.occupant
        return (
            f"the destination table belongs to the source's {renamed.source}, which had this name before. Rename it"
            f" here too: {rename_statement(table.destination, renamed.destination)}; then this table is copied"
        )
    if each.is_outdated and table.is_sent_on:
        return (
            "the rows at the destination are out of date: since they were copied, the source has replaced the table, or"
            " its changes did not arrive for a while. Other sites get their rows from here, so nothing is removed:"
            f" {REPAIRED_ALONE}"
        )
    if each.is_outdated:
        return (
            "the rows at the destination are out of date: since they were copied, the source has replaced the table, or"
            " its changes did not arrive for a while. Other apply processes or users may have written there too, so the"
            " rows are not removed automatically: if the source has the rows that are wanted, empty the destination"
            f" table ({how_to_empty}), and it is copied again"
        )
    if table.keep_existing:
        return ""
    keep = "with `headrace up --keep-existing`: changes made at the source before that are not applied"
    if table.is_sent_on:
        return (
            "the destination table is not empty, and other sites get their rows from here: delete none of them. If it"
            f" holds the rows of the source as they are now, keep them {keep}. If it lacks some, {REPAIRED_ALONE}"
        )
    return (
        f"the destination table is not empty: if it holds the rows of the source as they are now, keep them {keep};"
        " else `headrace check` says which site has the only rows, and what can be emptied"
    )
