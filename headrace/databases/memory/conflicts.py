"""Rows of an in-memory table that a change meets (`headrace.databases.memory.destination`).

Values are ordered, added and shown as the database would where the store knows their types, else by their bytes. That
is right for text, and for the binary form of non-negative numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import InvalidOperation, localcontext
from typing import Any, Final

from headrace.base.errors import DataError
from headrace.databases.memory.store import Row, StoredTable, rows_of
from headrace.databases.ports import DestinationTable, FoundRows, RowInTheWay, RowQuestion, Write
from headrace.lcr.batch import Column, Command
from headrace.lcr.lcr_value import LcrError
from headrace.lcr.values import NULL, ColumnValues
from headrace.rules.conditions.values import Kind, ValueTypes

__all__ = ["conflicting", "find_rows", "targets"]

_NUMERIC_DIGITS_MAX: Final = 150_000  # PostgreSQL's numeric has 131,072 digits before the point and 16,383 after it


def find_rows(
    found: StoredTable,
    write: Write,
    question: RowQuestion,
    types: ValueTypes | None = None,
) -> list[tuple[int, RowInTheWay]]:
    """See `DestinationSession.find_rows`.

    Args:
        found: the table.
        write: any number of rows.
        question: what to find out.
        types: of the values; None: compare bytes.

    Returns:
        Each row with its number in `found`.
    """
    return [each for row in range(write.row_count) for each in _found_by(found, write, question, row, types)]


def _found_by(
    found: StoredTable,
    write: Write,
    question: RowQuestion,
    of: int,
    types: ValueTypes | None,
) -> list[tuple[int, RowInTheWay]]:
    target = targets(found, write)
    old, new = _row(write.old, of), _row(write.new, of)
    is_insert = write.command is Command.INSERT
    if question.by_key:
        numbers = {
            n: True for n, row in found.rows.items() if old is not None and _has(row, old, write.match_columns, target)
        }
    else:
        assert new is not None
        own = [
            n
            for n, row in found.rows.items()
            if not is_insert and old is not None and _has(row, old, write.match_columns, target)
        ]
        numbers = {}
        for key in _whole_keys(found, new, write):
            is_key = is_insert and tuple(target[p] for p in key) == found.table.key
            for n, row in found.rows.items():
                if n not in own and _has(row, new, key, target) and all(new[p] is not None for p in key):
                    numbers[n] = numbers.get(n, False) or is_key
    image = new if is_insert else old
    forms = {column.name: column for column in write.version.columns}
    return [
        (
            n,
            RowInTheWay(
                number=str(n),
                of=of,
                is_same=is_same,
                differs=frozenset(p for p in question.compare if image and found.rows[n][target[p]] != image[p]),
                order={
                    p: _order(new[p], found.rows[n][target[p]], write.version.columns[p], types)
                    for p in question.order
                    if new
                },
                sums={
                    p: _sum(found.rows[n][target[p]], new[p], old[p], write.version.columns[p], types)
                    for p in question.sums
                    if new and old
                },
                values={
                    c.name: None
                    if v is None
                    else _shown(v, forms.get(c.name, Column(name=c.name, type_name=c.type_name)), types)
                    for c, v in zip(found.table.columns, found.rows[n], strict=True)
                },
            ),
        )
        for n, is_same in numbers.items()
    ]


def found_rows(table: DestinationTable, write: Write) -> FoundRows:
    """Return how many rows an UPDATE or a DELETE can find.

    Args:
        table: as the apply process sees it.
        write: any number of rows.
    """
    place = {column.name: position for position, column in enumerate(table.columns)}
    stored = {p for p, column in enumerate(write.version.columns) if not table.columns[place[column.name]].is_generated}
    find = [p for p in write.match_columns if p in stored]
    columns = {place[write.version.columns[p].name] for p in find}
    return table.rows_found_by(columns, is_whole=len(find) == len(stored), has_null=write.paired)


def conflicting(found: StoredTable, write: Write, table: DestinationTable) -> list[int] | None:
    """See `DestinationSession.conflicting`.

    Args:
        found: the table.
        write: any number of rows.
        table: as the apply process sees it.
    """
    target = targets(found, write)
    if write.command is Command.INSERT:
        assert write.new is not None
        keys = [key for key in _keys(found, write) if (write.new.lengths[list(key)] >= NULL).all()]
        there = [(key, {tuple(row[target[p]] for p in key) for row in found.rows.values()}) for key in keys]
        images = [list(rows_of(write.new, key, write)) for key in keys]
        return (
            [
                n
                for n in range(write.row_count)
                if any(
                    None not in image[n] and image[n] in values
                    for (_, values), image in zip(there, images, strict=True)
                )
            ]
            if keys
            else None
        )
    assert write.old is not None
    if found_rows(table, write) is not FoundRows.ONE:
        return None
    columns = [
        p
        for p in dict.fromkeys((*write.match_columns, *write.compare_columns))
        if not found.table.columns[target[p]].is_generated
    ]
    rows = {tuple(row[target[p]] for p in columns) for row in found.rows.values()}
    return [n for n, values in enumerate(rows_of(write.old, columns, write)) if values not in rows]


def targets(found: StoredTable, write: Write) -> list[int]:
    """Return the position in the table of each column of the write's version.

    Args:
        found: the table; it has every column of the version.
        write: any.
    """
    place = {column.name: position for position, column in enumerate(found.table.columns)}
    return [place[column.name] for column in write.version.columns]


def _row(values: ColumnValues | None, row: int) -> dict[int, bytes | None] | None:
    """Return the values of a row, by position, except those the row does not carry."""
    if values is None:
        return None
    found = {p: values.value(p, row) for p in range(values.column_count)}
    return {
        p: value if isinstance(value, bytes) else None
        for p, value in found.items()
        if isinstance(value, bytes) or value == NULL
    }


def _has(row: Row, values: dict[int, bytes | None], columns: Sequence[int], target: Sequence[int]) -> bool:
    return all(row[target[p]] == values.get(p, b"\0absent") for p in columns)


def _keys(found: StoredTable, write: Write) -> Iterator[tuple[int, ...]]:
    places = {column.name: position for position, column in enumerate(write.version.columns)}
    for key in found.table.unique_keys:
        names = [found.table.columns[place].name for place in key]
        if all(name in places for name in names):
            yield tuple(places[name] for name in names)


def _whole_keys(found: StoredTable, new: dict[int, bytes | None], write: Write) -> Iterator[tuple[int, ...]]:
    return (key for key in _keys(found, write) if all(p in new for p in key))


def _order(value: bytes | None, there: bytes | None, column: Column, types: ValueTypes | None) -> int | None:
    if value is None or there is None:
        return None
    if types is None or types.kind(column) is Kind.OPAQUE:
        return (value > there) - (value < there)
    one: Any = types.value(column, value)
    other: Any = types.value(column, there)
    return int(one > other) - int(one < other)


def _sum(
    there: bytes | None, new: bytes | None, old: bytes | None, column: Column, types: ValueTypes | None
) -> bytes | None:
    if there is None or new is None or old is None:
        return None
    if types is not None:
        numbers: list[Any] = [types.decoded(column, value) for value in (there, new, old)]
        try:
            with localcontext(prec=_NUMERIC_DIGITS_MAX):
                total = numbers[0] + numbers[1] - numbers[2]
        except InvalidOperation:  # infinity less infinity
            return None
        if total != total:  # noqa: PLR0124 - NaN
            return None
        try:
            return types.encoded(column, total)
        except LcrError as error:
            raise DataError(f"the sum is no value of the type of column {column.name}") from error
    total = sum(sign * int.from_bytes(value, "big", signed=True) for sign, value in ((1, there), (1, new), (-1, old)))
    return total.to_bytes(len(there), "big", signed=True)


def _shown(value: bytes, column: Column, types: ValueTypes | None) -> str:
    if types is not None:
        return str(types.decoded(column, value))
    if column.type_name in {"pg_catalog.int2", "pg_catalog.int4", "pg_catalog.int8"} and len(value) in {2, 4, 8}:
        return str(int.from_bytes(value, "big", signed=True))
    return value.decode("utf-8", "replace")
