"""Rows of a table that a change meets: found by its key or by its unique keys, compared and put in order by the server.

Two statements, both over the set that a write sends (see `writes`):

    find          the rows that each of them meets, locked, with everything that a conflict handler must know of them
    conflicting   the numbers of those that would not find what they expect
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
# columns of an answer before those that were asked for: which row meets it, two that number it, and whether it is the
# same
_FIXED = 4


def plan_find(write: Write, catalog: CatalogTable, question: RowQuestion, generation: int) -> WritePlan | None:
    """Make the statement that finds the rows in the way of the rows of a write.

    Args:
        write: any number of rows.
        catalog: the destination table; every column of the version fits.
        question: what to find out.
        generation: see `writes.wrapper_name`.

    Returns:
        None: there is no unique key by which to look.
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
        # As arrays: a SELECT has 1,664 columns at most, and a table 1,600.
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
    """Make the statement that names the rows of a write that would meet a conflict, and of one with times, some that would perhaps not.

    Args:
        write: any number of rows.
        catalog: the destination table; every column of the version fits.
        generation: see `writes.wrapper_name`.

    Returns:
        None: no key identifies the rows.
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
    """Read the answer of `plan_find`'s statement.

    Args:
        result: of it.
        catalog: as it was given.
        question: as it was given.
        first: number of the write's row that is the statement's first.
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
    """The statement that deletes a row by its number: $1 its table's OID, $2 its place, both as text."""
    return (
        f"DELETE FROM {catalog.relation} t WHERE t.tableoid OPERATOR(pg_catalog.=)"
        " $1::pg_catalog.text::pg_catalog.int8::pg_catalog.oid AND t.ctid OPERATOR(pg_catalog.=)"
        " $2::pg_catalog.text::pg_catalog.tid"
    )


def _whole_keys(write: Write, catalog: CatalogTable) -> Iterator[tuple[int, ...]]:
    """The unique keys whose new values the write carries, as positions in its version."""
    assert write.new is not None
    for key in catalog.table.unique_keys:
        found = _key_in(write, catalog, key)
        has_operators = all(catalog.columns[place].unique_equals for place in key)
        if found and has_operators and (write.new.lengths[list(found)] >= NULL).all():
            yield found


def _unique(builder: SetBuilder, key: Sequence[int]) -> str:
    """The condition that a row of the table has a unique key of the new values."""
    return " AND ".join(
        f"t.{builder.details(p).name} {builder.details(p).unique_equals} {builder.details(p).collated(f'u.n{p}')}"
        for p in key
    )


def _key_in(write: Write, catalog: CatalogTable, key: Sequence[int]) -> tuple[int, ...]:
    """A key of the table as positions in the write's version; empty when the version lacks a column of it."""
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
        return "NULL"  # the LCR takes the sum in its own form, and nothing is known that makes it of the column's
    own = builder.catalog.table.columns[builder.catalog.positions[column.name]].type_name
    kind = details.base_type if column.type_name == own else column.type_name  # a domain travels as what is below it
    # As numerics: a whole number may be too large between the addition and the subtraction. And infinity less infinity
    # is no number.
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
    """The elements of an array's text whose elements need no quotes: truth values, numbers, hexadecimal digits."""
    text = (value or b"{}").decode()[1:-1]
    return [None if each == "NULL" else each.strip('"') for each in text.split(",")] if text else []


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
