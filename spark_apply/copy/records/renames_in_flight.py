"""Renamed tables whose RENAME is still on its way to the destination.

A driver that starts asks the source for its tables, and gets their names of now. The RENAME arrives later, behind rows
that have the former name. So a table whose DDL arrives has the name that the destination records for it (decision 107),
as long as the destination's table really has it. Its record takes the new one in the transaction that renames the table.

    record   destination   source        name here
    t        t             t             t
    t        t             t_old         t: the RENAME is on its way, or was not made
    t        t_old         t_old         t_old: an operator renamed it by hand (`copy.records.renames` records it)
    t        other         t_old         t_old: an operator renames it, as without DDL

A new table that has the name of such a table at the source is on its way, too: its CREATE TABLE comes behind the RENAME,
and brings it back into the list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.lcr.scn import FIRST_SCN
from headrace.lcr.table_name import TableName

if TYPE_CHECKING:
    from headrace.databases.ports import Instantiation
    from spark_apply.apply_config import TableToInstantiate

__all__ = ["as_recorded", "parked_problem", "with_recorded_names"]

# Of the others the rows here are not complete: they are copied again, under the name that the source has for them.
_APPLIED = frozenset({"DONE", "KEPT", "JOINING", "COPIED"})


def as_recorded(table: TableToInstantiate, record: Instantiation | None) -> TableToInstantiate:
    """Return a table with the name that it has at the destination.

    Args:
        table: as the apply process has it.
        record: its record; None: it has none.
    """
    if record is None or not table.takes_ddl or record.state not in _APPLIED:
        return table
    name = TableName.of(record)
    return table if table.destination == name or record.name_now != name else replace(table, destination=name)


def with_recorded_names(
    tables: Sequence[TableToInstantiate], recorded: Iterable[Instantiation]
) -> tuple[tuple[TableToInstantiate, ...], tuple[TableToInstantiate, ...]]:
    """Return the tables as the destination calls them, and those that must be left out until their CREATE TABLE arrives.

    Where two tables would have one name and none of them is on its way, all of these keep the source's names.

    Args:
        tables: as the source named them.
        recorded: all records of the source's tables.
    """
    records = {each.identity: each for each in recorded}
    named = {table.identity: as_recorded(table, records.get(table.identity)) for table in tables}
    renamed = {named[table.identity].destination for table in tables if named[table.identity] is not table}
    parked = tuple(
        table
        for table in tables
        if table.destination in renamed and named[table.identity] is table and _is_on_its_way(table, records)
    )
    left = [table for table in tables if table not in parked]
    while twice := _twice(named[table.identity] for table in left):
        undone = {
            table.identity: table
            for table in left
            if named[table.identity] is not table and named[table.identity].destination in twice
        }
        if not undone:
            break
        named |= undone
    return tuple(named[table.identity] for table in left), parked


def _is_on_its_way(table: TableToInstantiate, records: Mapping[str, Instantiation]) -> bool:
    return table.as_of > FIRST_SCN and table.identity not in records


def _twice(tables: Iterable[TableToInstantiate]) -> Collection[TableName]:
    return {name for name, count in Counter(table.destination for table in tables).items() if count > 1}


def parked_problem(table: TableToInstantiate, holder: TableToInstantiate | None) -> str:
    """Return what to do about a table whose CREATE TABLE was to arrive, and did not.

    Args:
        table: the table.
        holder: the table that has its name at the destination; None: no such one.
    """
    if holder is None:
        return "its CREATE TABLE was not made here: stop and start the apply process, which then copies it"
    return (
        f"the destination's table of that name is that of the table which the source calls {holder.source} now: rename"
        f" it there, too; then stop and start the apply process, which copies {table.destination}"
    )
