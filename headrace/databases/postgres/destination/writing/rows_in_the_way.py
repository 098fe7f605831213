"""Rows of a table that conflict with a change: found by its key or by its unique keys, compared and ordered by the server.

Two statements, both over the set of a write (`writes`):

    find          the conflicting rows of each row of the set, locked, with all data that a conflict handler needs
    conflicting   the numbers of the set's rows that would not find the expected row
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from headrace.databases.ports import FoundRows, RowInTheWay, RowQuestion, Write
from headrace.databases.postgres.destination.writing.row_changes import looks_at_notes, noted_later
from headrace.databases.postgres.destination.writing.writes import (
    SetBuilder,
    WritePlan,
    keyed,
    located,
    numbered,
    row_by_row,
    same_values,
    written_forms,
)
from headrace.lcr.batch import Command
from headrace.lcr.values import NULL

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

    from headrace.databases.postgres.catalog.destination_tables import CatalogTable

__all__ = ["plan_conflicting", "plan_find", "read_rows", "remove_statement"]

_SEND = {
    "pg_catalog.int2": "int2send",
    "pg_catalog.int4": "int4send",
    "pg_catalog.int8": "int8send",
    "pg_catalog.numeric": "numeric_send",
}
# leading columns of an answer: the set's row, two that identify the found row, and whether the keys are the same
_FIXED = 4


def plan_find(write: Write, catalog: CatalogTable, question: RowQuestion, generation: int) -> WritePlan | None:
    """Plan the statement that finds the rows that conflict with the rows of a write.

    Args:
        write: the write, with any number of rows.
        catalog: the destination table; every column of the version fits.
        question: the data to read.
        generation: generation of the session's types (`writes.wrapper_name`).

    Returns:
        The plan; None when there is no unique key to search by.
    """
    is_insert = write.command is Command.INSERT
    rows = None if is_insert else located(write, catalog)
    find = [] if rows is None else rows.find
    keys = [] if question.by_key else list(_whole_keys(write, catalog))
    if not question.by_key and not keys:
        return None
    of_keys = [p for key in keys for p in key]
    old = dict.fromkeys((*find, *(() if is_insert else question.compare), *question.sums))
    new = dict.fromkeys((*of_keys, *(question.compare if is_insert else ()), *question.order, *question.sums))
    builder = SetBuilder(write, catalog, generation, old=list(old), new=list(new))
    own = keyed(builder, find, [], one_by_one=row_by_row(builder, rows)) if rows is not None and find else ""
    same = "true"
    condition = own
    if not question.by_key:
        condition = "(" + " OR ".join(f"({_unique(builder, key)})" for key in keys) + ")"
        condition += f" AND ({own}) IS NOT TRUE" if own else ""
        table_key = _key_in(write, catalog, catalog.table.key)
        same = f"({_unique(builder, table_key)})" if table_key in keys and is_insert else "false"
    image = "n" if is_insert else "o"
    shown = [
        "u.r",
        "t.tableoid::pg_catalog.int8",
        "t.ctid",
        same,
        # Arrays, because a SELECT has at most 1,664 columns, and a table 1,600.
        _array(
            "bool",
            (f"NOT ({same_values(builder, [p], [builder.stored(p, f'u.{image}{p}')])})" for p in question.compare),
        ),
        _array("int4", (_order(builder, p) for p in question.order)),
        _array("text", (_sum(builder, p) for p in question.sums)),
        *(f"t.{column.name}" for column in catalog.columns),
    ]
    sql = f"SELECT {', '.join(shown)} FROM {catalog.relation} t, {numbered(builder)} WHERE {condition} FOR UPDATE OF t"
    return WritePlan(statements=(builder.statement(sql),), wrapped=tuple(builder.wrapped.values()))


def plan_conflicting(write: Write, catalog: CatalogTable, generation: int) -> WritePlan | None:
    """Plan the statement that names the rows of a write that would have a conflict.

    For a write with times, it also names some rows that may have none.

    Args:
        write: the write, with any number of rows.
        catalog: the destination table; every column of the version fits.
        generation: generation of the session's types (`writes.wrapper_name`).

    Returns:
        The plan; None when no key identifies the rows.
    """
    is_noted = looks_at_notes(write)
    if write.command is Command.INSERT:
        keys = list(_whole_keys(write, catalog))
        if not keys:
            return None
        builder = SetBuilder(
            write, catalog, generation, old=[], new=list(dict.fromkeys(p for key in keys for p in key))
        )
        terms = [f"EXISTS (SELECT FROM {catalog.relation} t WHERE {_unique(builder, key)})" for key in keys]
        condition = " OR ".join(terms)
    else:
        rows = located(write, catalog)
        if rows.found is not FoundRows.ONE:
            return None
        builder = SetBuilder(write, catalog, generation, old=[*rows.find, *rows.compare], new=[])
        compare = [*rows.compare, *written_forms(write, catalog, rows)]
        own = keyed(builder, rows.find, compare, one_by_one=row_by_row(builder, rows)) + builder.not_later_here(
            timed=is_noted
        )
        condition = f"NOT EXISTS (SELECT FROM {catalog.relation} t WHERE {own})"
    if is_noted:
        condition += f" OR {noted_later(write, catalog)}"
    sql = f"SELECT u.r FROM {numbered(builder, timed=is_noted)} WHERE {condition}"
    return WritePlan(statements=(builder.statement(sql),), wrapped=tuple(builder.wrapped.values()))


def read_rows(
    result: PGresult, catalog: CatalogTable, question: RowQuestion, *, first: int = 0
) -> Iterator[RowInTheWay]:
    """Read the result of `plan_find`'s statement.

    Args:
        result: result of the statement.
        catalog: the same as for `plan_find`.
        question: the same as for `plan_find`.
        first: number of the write's row that is the first of the statement.
    """
    for row in range(result.ntuples):
        found = [result.get_value(row, place) for place in range(result.nfields)]
        compared, ordered, summed = (_elements(value) for value in found[_FIXED : _FIXED + 3])
        answers = iter(found[_FIXED + 3 :])
        yield RowInTheWay(
            of=first + int(found[0] or 0),
            number=f"{_text(found[1])} {_text(found[2])}",
            is_same=found[3] == b"t",
            differs=frozenset(p for p, each in zip(question.compare, compared, strict=True) if each == "t"),
            order={p: None if each is None else int(each) for p, each in zip(question.order, ordered, strict=True)},
            sums={
                p: None if each is None else bytes.fromhex(each) for p, each in zip(question.sums, summed, strict=True)
            },
            values={column.name: _text(next(answers)) for column in catalog.table.columns},
        )


def remove_statement(catalog: CatalogTable) -> str:
    """Return the statement that deletes a row by its place: $1 is the table's OID, $2 the ctid, both as text."""
    return (
        f"DELETE FROM {catalog.relation} t WHERE t.tableoid OPERATOR(pg_catalog.=)"
        " $1::pg_catalog.text::pg_catalog.int8::pg_catalog.oid AND t.ctid OPERATOR(pg_catalog.=)"
        " $2::pg_catalog.text::pg_catalog.tid"
    )


def _whole_keys(write: Write, catalog: CatalogTable) -> Iterator[tuple[int, ...]]:
    """Yield the unique keys whose new values the write carries, as positions in its version."""
    assert write.new is not None
    for key in catalog.table.unique_keys:
        found = _key_in(write, catalog, key)
        has_operators = all(catalog.columns[place].unique_equals for place in key)
        if found and has_operators and (write.new.lengths[list(found)] >= NULL).all():
            yield found


def _unique(builder: SetBuilder, key: Sequence[int]) -> str:
    """Return the condition that a row of the table has the new values of a unique key."""
    return " AND ".join(
        f"t.{builder.details(p).name} {builder.details(p).unique_equals} {builder.details(p).collated(f'u.n{p}')}"
        for p in key
    )


def _key_in(write: Write, catalog: CatalogTable, key: Sequence[int]) -> tuple[int, ...]:
    """Return a key of the table as positions in the write's version; empty when the version lacks a column of it."""
    places = {column.name: position for position, column in enumerate(write.version.columns)}
    names = [catalog.table.columns[place].name for place in key]
    return tuple(places[name] for name in names) if all(name in places for name in names) else ()


def _name(builder: SetBuilder, position: int) -> str:
    return builder.details(position).name


def _order(builder: SetBuilder, position: int) -> str:
    column, value = f"t.{_name(builder, position)}", builder.details(position).collated(f"u.n{position}")
    return f"CASE WHEN {value} > {column} THEN 1 WHEN {value} < {column} THEN -1 WHEN {value} = {column} THEN 0 END"


def _sum(builder: SetBuilder, position: int) -> str:
    column, details, conversion = (
        builder.write.version.columns[position],
        builder.details(position),
        builder.conversion(position),
    )
    if conversion is not None and conversion.function:
        return "NULL"  # the LCR needs the sum in its own form, and no conversion back from the column's is known
    own = builder.catalog.table.columns[builder.catalog.positions[column.name]].type_name
    kind = (
        details.base_type if column.type_name == own else column.type_name
    )  # values of a domain are sent as its base type
    # Computed as numeric, because an integer may overflow between the addition and the subtraction. Infinity minus
    # infinity is NaN.
    exact = (
        f"NULLIF(t.{details.name}::pg_catalog.numeric + u.n{position}::pg_catalog.numeric -"
        f" u.o{position}::pg_catalog.numeric, 'NaN'::pg_catalog.numeric)"
    )
    total = f"({exact})::{kind}"
    sent = (
        f"pg_catalog.{_SEND[kind]}({total})"
        if column.is_binary
        else f"pg_catalog.convert_to({total}::pg_catalog.text, 'UTF8')"
    )
    return f"pg_catalog.encode({sent}, 'hex')"


def _array(kind: str, values: Iterable[str]) -> str:
    return f"ARRAY[{', '.join(values)}]::pg_catalog.{kind}[]"


def _elements(value: bytes | None) -> list[str | None]:
    """Split the text of an array whose elements need no quotes: truth values, numbers, hexadecimal digits."""
    text = (value or b"{}").decode()[1:-1]
    return [None if each == "NULL" else each.strip('"') for each in text.split(",")] if text else []


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
