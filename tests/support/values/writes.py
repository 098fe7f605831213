"""Writes for tests: a destination table's rows as `Write`s, values as bytes, None for NULL."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.databases.ports import DestinationTable, Write
from headrace.lcr.batch import Column, Command, OldImage, TableVersion
from headrace.lcr.values import ABSENT, NULL, ColumnValues
from tests.support.values.lcr_batches import column_values

Value = bytes | int | None


def int4(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=True)


def int8(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


def version_of(table: DestinationTable, *, is_binary: bool = True, without: Sequence[str] = ()) -> TableVersion:
    """Return the table as its source would describe it, if the source's table is the same."""
    columns = tuple(
        Column(
            name=column.name,
            type_name=column.type_name,
            type_number=column.type_number,
            type_modifier=column.type_modifier,
            is_key=position in table.key,
            is_binary=is_binary,
            is_computed=column.is_generated,
        )
        for position, column in enumerate(table.columns)
        if column.name not in without
    )
    return TableVersion(
        object_number=16384,
        version=hash(columns) & 0x7FFFFFFFFFFFFFFF,
        owner=table.owner,
        name=table.name,
        columns=columns,
        old_image=OldImage.FULL,
    )


def values(rows: Sequence[Sequence[Value]], width: int) -> ColumnValues:
    """Convert rows to columns; None is NULL, an int is NULL, UNCHANGED or ABSENT."""
    columns = [[NULL if row[k] is None else row[k] for row in rows] for k in range(width)]
    return column_values(columns)


def insert(table: DestinationTable, rows: Sequence[Sequence[Value]], version: TableVersion | None = None) -> Write:
    version = version or version_of(table)
    width = len(version.columns)
    return Write(
        table=table,
        version=version,
        command=Command.INSERT,
        old=None,
        new=values(rows, width),
        match_columns=(),
        compare_columns=(),
        set_columns=tuple(range(width)),
    )


def update(
    table: DestinationTable,
    old: Sequence[Sequence[Value]],
    new: Sequence[Sequence[Value]],
    *,
    version: TableVersion | None = None,
    sets: Sequence[int] | None = None,
    compare: Sequence[int] | None = None,
) -> Write:
    """Return an update that finds rows by the table's key (or all columns) and by default compares every other column."""
    version = version or version_of(table)
    match, others = _find(table, version)
    width = len(version.columns)
    return Write(
        table=table,
        version=version,
        command=Command.UPDATE,
        old=values(old, width),
        new=values(new, width),
        match_columns=match,
        compare_columns=tuple(compare) if compare is not None else others,
        set_columns=tuple(sets) if sets is not None else tuple(range(width)),
    )


def delete(
    table: DestinationTable,
    old: Sequence[Sequence[Value]],
    *,
    version: TableVersion | None = None,
    compare: Sequence[int] | None = None,
) -> Write:
    version = version or version_of(table)
    match, others = _find(table, version)
    return Write(
        table=table,
        version=version,
        command=Command.DELETE,
        old=values(old, len(version.columns)),
        new=None,
        match_columns=match,
        compare_columns=tuple(compare) if compare is not None else others,
        set_columns=(),
    )


def key_only(table: DestinationTable, keys: Sequence[Sequence[Value]]) -> list[list[Value]]:
    """Return old values from a log that carries only keys."""
    return [[key[table.key.index(p)] if p in table.key else ABSENT for p in range(len(table.columns))] for key in keys]


def _find(table: DestinationTable, version: TableVersion) -> tuple[tuple[int, ...], tuple[int, ...]]:
    names = [column.name for column in version.columns]
    match = tuple(names.index(table.columns[p].name) for p in table.key) or tuple(range(len(names)))
    return match, tuple(p for p in range(len(names)) if p not in match)
