"""Sets of row changes as SQL: one statement per set, its values as one array parameter per column.

The forms, with `u` for the set (`SELECT unnest($1::int8[]) AS o0, unnest($2::text[]) AS n1, ...`, which PostgreSQL
runs in lockstep without storing it):

    INSERT  INSERT INTO t (...) SELECT unnest(...), ...; large binary sets as COPY
    UPDATE  UPDATE t SET b = u.n1 FROM u WHERE t.id = u.o0 AND record_image_eq(ROW(t.b), ROW(u.o1))
    DELETE  DELETE FROM t USING u WHERE ...

Statements compare old values by record image: json, xml and point have no equality, box's equality compares areas, and
a reader of the table sees a difference between 1.0 and 1.00. When images differ, the texts decide (`same_values`): a
value can have several stored forms (an array that once had a NULL keeps its bitmap), and a received value has one of
them. A statement finds a row by its key with the operator of the key's index.

When the values that find rows have no unique key, or a NULL in it, the statement first finds rows and then changes them
by ctid. Each row of the set changes at most one row. Otherwise two rows for one of them, and none for another, could add
up to the expected count. The cases:

    equal rows      Every value of the LCR is used to find rows. Rows are numbered on both sides and matched one to one
                    ("paired"). When that is an error (`FoundRows.SINGLE`), duplicate rows of the table are skipped.
    a key alone     A substitute key that is not unique here, or the source's key that is no key here: of several rows,
                    the first one with the old values (`FoundRows.ANY`), or none of them (`SINGLE`)

A SINGLE write of one row is executed as if its key were unique: its count is the number of rows found.

A GENERATED ALWAYS identity column cannot be SET. Rows whose identity changed are deleted and inserted again with
OVERRIDING SYSTEM VALUE, in one statement ("move").

Values of array types cannot be elements of an array parameter: each is sent in a composite type with one field, which
the session creates in pg_temp. Values in text form are sent as text[] and cast. Values of a type that must be converted
to the column's type are sent unconverted and converted in the set.

Longer than 500 lines: it holds the forms of one statement, whose parameters are numbered together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.base.errors import COPY_THE_TABLE, WHERE_OTHERS_WRITE, BugError, DataError
from headrace.databases.ports import FoundRows, Write, WriteTimes
from headrace.databases.postgres.catalog.destination_tables import CatalogColumn, CatalogTable, Conversion, ValueForm
from headrace.databases.postgres.compared.types import conversion_of, type_with_modifier
from headrace.databases.postgres.destination.row_times.lost_times import PG_EPOCH_US
from headrace.databases.postgres.destination.row_times.recent_changes import not_later_here
from headrace.lcr.batch import Column, Command
from headrace.lcr.values import ColumnValues

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.databases.postgres.destination.row_times.recent_changes import Horizon

__all__ = [
    "COPY_ROWS_MIN",
    "Located",
    "SetBuilder",
    "SetStatement",
    "WritePlan",
    "copy_blocks",
    "identity_may_change",
    "keyed",
    "located",
    "numbered",
    "parameters",
    "plan_write",
    "row_by_row",
    "row_chunks",
    "same_values",
    "wrapper_name",
    "written_forms",
]

# From this size on, COPY is worth its separate round trips. Server CPU seconds per 100,000 rows of eight columns, COPY
# and unnest, single runs on a busy machine: 0.27-0.34 and 0.25-0.28 in sets of 2,000, 0.20-0.21 and 0.24-0.26 in sets
# of 4,000, 0.24-0.25 and 0.30-0.35 in sets of 10,000 (COPY writes whole pages at once).
COPY_ROWS_MIN = 2000
_TIMESTAMPTZ = 1184  # OID of the type
# Bytes of values in one statement. PostgreSQL refuses messages of 1 GB and more. A far lower limit keeps memory small on
# both sides and lets the session build the next chunk while the server works. A larger row is sent alone.
CHUNK_BYTES = 32 << 20
_COPY_HEADER = np.frombuffer(b"PGCOPY\n\xff\r\n\0" + bytes(8), np.uint8)
_COPY_TRAILER = np.frombuffer(b"\xff\xff", np.uint8)
# Limit for a set: a SELECT has at most 1,664 columns, and a statement adds some (row numbers, times, places of rows).
_SET_COLUMNS_MAX = 1600
# rows of a set without columns (`SetStatement.is_counted`)
_EVERY_ROW = "pg_catalog.generate_series(1, $1::pg_catalog.int8)"
_TEXT = 25
_PLAIN = frozenset(
    f"pg_catalog.{name}"
    for name in (
        "int2",
        "int4",
        "int8",
        "numeric",
        "float4",
        "float8",
        "text",
        "varchar",
        "bpchar",
        "bytea",
        "bool",
        "uuid",
        "date",
        "time",
        "timestamp",
        "timestamptz",
        "oid",
    )
)
_NOTHING_FINDS_IT = (
    "the log identifies rows only by columns that the destination computes. At the source: ALTER TABLE ..."
    " REPLICA IDENTITY FULL;"
    f" then {COPY_THE_TABLE}. {WHERE_OTHERS_WRITE}"
)
# Types whose values have exactly one stored form. Not numeric (two headers) or floating point (many kinds of NaN).
_OF_ONE_IMAGE = _PLAIN - {"pg_catalog.numeric", "pg_catalog.float4", "pg_catalog.float8"}
# Canonical equalities whose equal values have equal bytes.
_OF_ONE_FORM = frozenset({"integer", "text", "uuid", "bytes"})
# Element type in the header of an array of wrapped values. The server checks it only when both types are built in.
_RECORD = 2249


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Values:
    """Columns of the old or new values that are parameters. Every array is int64[k], as in `fill_arrays`."""

    columns: NDArray[np.int64]
    elements: NDArray[np.int64]
    wrapped: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SetStatement:
    """One statement of a plan.

    Args:
        sql: text of the statement; parameters of old values come first, then those of new values.
        old: columns of old values; None when the statement needs none.
        new: columns of new values; None when the statement needs none.
        is_counted: the statement needs no values, because the destination computes every column. Its first parameter
            is the number of rows.
        is_timed: one more parameter has the rows' times.
        is_bounded: the last two parameters are the earliest of the rows' times and the number of a transaction
            (`recent_changes`).
    """

    sql: str
    old: _Values | None
    new: _Values | None
    is_counted: bool = False
    is_timed: bool = False
    is_bounded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WritePlan:
    """Plan of a write with certain columns; made once and used for every set with the same columns.

    Args:
        statements: statements, run in order; the numbers of affected rows add up.
        paired: the plan needs a table scan, so the session must disable nested loops.
        wrapped: types whose values are sent in a composite type, which the session must have created.
        copy: the COPY statement for large inserts; empty when COPY cannot be used.
        copy_columns: positions in `version.columns`, in the order of COPY's list.
        notes: for a write with times: statements run after the others; each must affect every row.
        checks: for a write with times: statements run after the others; each must find no row.
    """

    statements: tuple[SetStatement, ...]
    paired: bool = False
    wrapped: tuple[ValueForm, ...] = ()
    copy: str = ""
    copy_columns: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    notes: tuple[SetStatement, ...] = ()
    checks: tuple[SetStatement, ...] = ()


def wrapper_name(form: ValueForm, generation: int) -> str:
    """Return the name of the composite type that a session creates for a type without an array type.

    Args:
        form: form of that type.
        generation: counter that the session raises when a rollback removed its types.
    """
    return f"pg_temp.headrace_{form.type_number}_{generation}"


@dataclass(slots=True)
class SetBuilder:
    """Builder of a set's columns; it numbers the parameters, all old ones first.

    `packed` has the positions, in order, whose old values form one column `c` of the set, a record; they are only
    compared by images. The old and new values of a wide table can be more columns than a set can have.
    """

    write: Write
    catalog: CatalogTable
    generation: int
    old: list[int]
    new: list[int]
    wrapped: dict[int, ValueForm] = field(default_factory=dict)
    is_timed: bool = False
    is_bounded: bool = False
    packed: list[int] = field(default_factory=list)

    def pack(self, images: list[int]) -> None:
        """Pack the values that are compared by images into one column, if the set has too many columns.

        Args:
            images: positions that `keyed` compares together.
        """
        if len(self.old) + len(self.new) > _SET_COLUMNS_MAX:
            self.packed = images

    def images(self, positions: list[int]) -> str:
        """Return the record of old values of the set's row `u`.

        Args:
            positions: positions of the columns: exactly the packed ones, or none of them.
        """
        return "u.c" if self.packed and positions == self.packed else f"ROW({', '.join(f'u.o{p}' for p in positions)})"

    def is_of_one_image(self, position: int) -> bool:
        """Return whether each value of the destination's column has one stored form, so that images suffice."""
        return self.details(position).base_type in _OF_ONE_IMAGE

    def details(self, position: int) -> CatalogColumn:
        """Return the destination's column for a position in `version.columns`."""
        return self.catalog.columns[self.catalog.positions[self.write.version.columns[position].name]]

    def conversion(self, position: int) -> Conversion | None:
        """Return the conversion of a position's values to the destination column's type; None when none is needed."""
        column = self.write.version.columns[position]
        place = self.catalog.positions[column.name]
        return conversion_of(column, self.catalog.table.columns[place], self.catalog.columns[place])

    def is_plain(self, position: int) -> bool:
        """Return whether a one-element array of the destination column's type compares like the value itself.

        Array types, domains and user-defined types do not qualify.
        """
        target = self.catalog.table.columns[self.catalog.positions[self.write.version.columns[position].name]]
        return target.type_name in _PLAIN

    def form(self, position: int) -> ValueForm:
        """Return the form in which the values of a position in `version.columns` are sent."""
        conversion = self.conversion(position)
        return conversion.form if conversion else self.details(position).form

    def expression(self, number: int, position: int) -> str:
        """Return the set's expression for a parameter.

        Args:
            number: number of the parameter, from 1.
            position: position of its column in the write's version.
        """
        value = self._value(number, position)
        conversion = self.conversion(position)
        if conversion is None:
            return value
        if conversion.function:
            return f"{conversion.function}({value})"
        return f"({value})::{self.details(position).form.type_name}"

    def found_by(self, number: int, position: int) -> str:
        """Return `expression` with the value as a row stores it: a function gives 1.5, a numeric(8,2) column has 1.50.

        Args:
            number: number of the parameter, from 1.
            position: position of its column in the write's version.
        """
        return self.stored(position, self.expression(number, position))

    def stored(self, position: int, value: str) -> str:
        """Return the stored form of a value from `expression`.

        Args:
            position: position of its column in the write's version.
            value: expression of the destination column's type.
        """
        conversion = self.conversion(position)
        if conversion is None or not conversion.function:
            return value
        target = self.catalog.table.columns[self.catalog.positions[self.write.version.columns[position].name]]
        return f"{value}::{type_with_modifier(target.type_name, target.type_modifier)}"

    def _value(self, number: int, position: int) -> str:
        form = self.form(position)
        if not self.write.version.columns[position].is_binary:
            text = f"pg_catalog.unnest(${number}::pg_catalog.text[])"
            value = form.input % f"pg_catalog.textout({text})" if form.input else f"({text})"
            return f"{value}::{form.type_name}"
        if form.array_type:
            return f"pg_catalog.unnest(${number}::{form.array_type})"
        self.wrapped[form.type_number] = form
        return f"(pg_catalog.unnest(${number}::{wrapper_name(form, self.generation)}[])).f"

    def select_list(self) -> str:
        """Return the select list `unnest($1::...) AS o0, ...`."""
        values = {p: self.found_by(k, p) for k, p in enumerate(self.old, 1)}
        # A packed column that also finds rows by an operator occurs twice.
        old = [f"{value} AS o{p}" for p, value in values.items() if p not in self.packed or self.details(p).equals]
        old += [f"ROW({', '.join(values[p] for p in self.packed)}) AS c"] if self.packed else []
        new = [f"{self.expression(k, p)} AS n{p}" for k, p in enumerate(self.new, len(self.old) + 1)]
        return ", ".join(old + new)

    def select(self, *, timed: bool = False) -> str:
        """Return the SELECT of the set.

        Args:
            timed: include the time of each row.
        """
        self.is_timed = timed
        at = (
            f", pg_catalog.unnest(${len(self.old) + len(self.new) + 1}::pg_catalog.timestamptz[]) AS at"
            if timed
            else ""
        )
        return f"SELECT {self.select_list()}{at}"

    def not_later_here(self, *, timed: bool = False) -> str:
        """Return " AND " with the condition that row `t` was not changed later here; may be empty.

        It is empty for a write without times, or one that was already decided. It is also empty when no row may exist
        (`WriteTimes.awaited`). The condition counts uncertain changes as later, so an earlier row could remain although
        a note says that it is deleted.

        Args:
            timed: the statement has the time of each row.
        """
        times, first = self.write.times, len(self.old) + len(self.new) + 1 + timed
        if times is None or times.is_decided or times.awaited is not None:
            return ""
        self.is_bounded = True
        return f" AND {not_later_here(times, self.catalog, earliest=f'${first}::pg_catalog.timestamptz', ended=f'${first + 1}::pg_catalog.xid')}"

    def values(self, positions: list[int]) -> _Values | None:
        """Return the columns in the form that the kernels need; None for no columns."""
        if not positions:
            return None
        forms = [_element(self.write.version.columns[p], self.form(p)) for p in positions]
        return _Values(
            columns=np.array(positions, np.int64),
            elements=np.array([element for element, _ in forms], np.int64),
            wrapped=np.array([wrapped for _, wrapped in forms], np.int64),
        )

    def statement(self, sql: str) -> SetStatement:
        """Return the statement with this builder's parameters."""
        return SetStatement(
            sql=sql,
            old=self.values(self.old),
            new=self.values(self.new),
            is_counted=not self.old and not self.new,
            is_timed=self.is_timed,
            is_bounded=self.is_bounded,
        )


def _element(column: Column, form: ValueForm) -> tuple[int, int]:
    """Return (element type, wrapped type) of a column's array parameter."""
    if not column.is_binary:
        return _TEXT, 0
    return (form.type_number, 0) if form.array_type else (_RECORD, form.type_number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """Columns by which an UPDATE or a DELETE finds its rows, as positions in the write's version.

    Args:
        find: columns whose old values find a row.
        compare: columns whose old values must also match the row.
        found: number of rows that are found, and treatment of several.
        is_whole: True when all values of the LCRs are used to find a row.
    """

    find: list[int]
    compare: list[int]
    found: FoundRows
    is_whole: bool


def located(write: Write, catalog: CatalogTable) -> Located:
    """Return how the rows of an UPDATE or a DELETE are found.

    A generated column is used only if it is part of a key, and so computed at the source, too.

    Args:
        write: the write; only its version and columns matter.
        catalog: the destination table; every column of the version fits.
    """
    at = [catalog.positions[column.name] for column in write.version.columns]
    stored = [not catalog.table.columns[place].is_generated for place in at]
    find = list(write.match_columns)
    found_by = {at[p] for p in find}
    is_whole = {p for p, is_stored in enumerate(stored) if is_stored} <= set(find)
    return Located(
        find=find,
        compare=[p for p in write.compare_columns if stored[p] and p not in find],
        is_whole=is_whole,
        found=catalog.table.rows_found_by(found_by, is_whole=is_whole, has_null=write.paired),
    )


def written_forms(write: Write, catalog: CatalogTable, rows: Located) -> list[int]:
    """Return the positions among `rows.find` that are also compared by their bytes.

    The last change decides the form of a key whose equal values can differ, such as 1.0 and 1.00.

    Args:
        write: the write. Without times, or when it was already decided, there are no such positions.
        catalog: the destination table.
        rows: how the write's rows are found.
    """
    times = write.times
    if times is None or times.is_decided or times.awaited is not None:
        return []
    target = [catalog.table.columns[catalog.positions[column.name]] for column in write.version.columns]
    return [p for p in rows.find if target[p].equality not in _OF_ONE_FORM]


def plan_write(write: Write, catalog: CatalogTable, *, generation: int, moves: bool) -> WritePlan:
    """Plan the statements of a write.

    Args:
        write: the write; only its command, version and columns matter, and whether it has one row.
        catalog: the destination table; every column of the version fits.
        generation: generation of the session's types (`wrapper_name`).
        moves: an identity column that cannot be SET may have changed in this write.
    """
    if write.command is Command.INSERT:
        return _plan_insert(write, catalog, generation)
    target = catalog.table.columns
    at = [catalog.positions[column.name] for column in write.version.columns]
    rows = located(write, catalog)
    if write.match_columns and not rows.find:
        raise DataError(
            f"{write.command.name} of {write.version.qualified_name}: {_NOTHING_FINDS_IT}",
            table=write.version.qualified_name,
        )
    sets: list[int] = []
    identity: list[int] = []
    if write.command is Command.UPDATE:
        written = [p for p in write.set_columns if not target[at[p]].is_generated]
        sets = [p for p in written if not target[at[p]].is_identity_always]
        identity = [p for p in written if target[at[p]].is_identity_always and moves]
    builder = SetBuilder(write, catalog, generation, old=[*rows.find, *rows.compare], new=[*sets, *identity])
    is_paired = False
    if rows.found is not FoundRows.ONE and (rows.found is FoundRows.ANY or write.row_count != 1 or not rows.find):
        is_paired = rows.is_whole
        with_, source, condition = _paired(builder, rows.found) if is_paired else _first_found(builder, rows)
    else:
        compare = [*rows.compare, *written_forms(write, catalog, rows)]
        builder.pack([*_compared_by_images(builder, rows.find), *compare])
        with_, source = "", f"({builder.select()}) u"
        condition = keyed(builder, rows.find, compare, one_by_one=row_by_row(builder, rows)) + builder.not_later_here()
    statements = []
    if write.command is Command.DELETE:
        statements.append(f"{with_}DELETE FROM {catalog.relation} t USING {source} WHERE {condition}")
    else:
        same = "".join(f" AND t.{builder.details(p).name} OPERATOR(pg_catalog.=) u.n{p}" for p in identity)
        if not sets and write.times is not None and not _touched(catalog):
            statements.append(_move(builder, identity, with_, source, condition))
            identity = []
        else:
            statements.append(with_ + _update(builder, sets, source, condition + same))
        if identity:
            differs = " OR ".join(f"t.{builder.details(p).name} OPERATOR(pg_catalog.<>) u.n{p}" for p in identity)
            statements.append(_move(builder, [*sets, *identity], with_, source, f"{condition} AND ({differs})"))
    return WritePlan(
        statements=tuple(builder.statement(sql) for sql in statements),
        paired=is_paired,
        wrapped=tuple(builder.wrapped.values()),
    )


def _plan_insert(write: Write, catalog: CatalogTable, generation: int) -> WritePlan:
    at = [catalog.positions[column.name] for column in write.version.columns]
    columns = [p for p in write.set_columns if not catalog.table.columns[at[p]].is_generated]
    builder = SetBuilder(write, catalog, generation, old=[], new=columns)
    relation = catalog.relation.removeprefix("ONLY ")
    if not columns:
        # inserts a row of defaults for every row of the set
        return WritePlan(statements=(builder.statement(f"INSERT INTO {relation} SELECT FROM {_EVERY_ROW}"),))
    names = ", ".join(builder.details(p).name for p in columns)
    is_identity = any(catalog.table.columns[at[p]].is_identity_always for p in columns)
    overriding = " OVERRIDING SYSTEM VALUE" if is_identity else ""
    select = ", ".join(builder.expression(k, p) for k, p in enumerate(columns, 1))
    # COPY does not run rules.
    can_copy = not catalog.table.fires and all(
        write.version.columns[p].is_binary and builder.conversion(p) is None for p in columns
    )
    return WritePlan(
        statements=(builder.statement(f"INSERT INTO {relation} ({names}){overriding} SELECT {select}"),),
        wrapped=tuple(builder.wrapped.values()),
        copy=f"COPY {relation} ({names}) FROM STDIN (FORMAT binary)" if can_copy else "",
        copy_columns=np.array(columns, np.int64),
    )


def numbered(builder: SetBuilder, *, timed: bool = False) -> str:
    """Return the set as `u` for a FROM clause, with row numbers `r` from 0.

    Args:
        builder: builder of the set.
        timed: include the time of each row.
    """
    return f"(SELECT pg_catalog.row_number() OVER () - 1 AS r, s.* FROM ({builder.select(timed=timed)}) s) u"


def keyed(builder: SetBuilder, find: list[int], compare: list[int], *, one_by_one: Collection[int] = ()) -> str:
    """Return the condition that finds the row of the set's row `u` in the table `t`.

    Args:
        builder: builder of the set.
        find: positions of a key in the write's version.
        compare: positions whose values must match the row's (`same_values`).
        one_by_one: those among `find` by which the server must not join (`row_by_row`).
    """
    by_operator, terms = [p for p in find if builder.details(p).equals], list[str]()
    for p in by_operator:
        value = builder.details(p).collated(f"u.o{p}")
        terms.append(
            f"t.{builder.details(p).name} {builder.details(p).equals} "
            + (f"ANY (ARRAY[{value}])" if p in one_by_one else value)
        )
    images = [*_compared_by_images(builder, find), *compare]
    if images and builder.packed:
        terms.append(_same(_row(f"t.{builder.details(p).name}" for p in images), builder.images(images)))
    elif images:
        terms.append(same_values(builder, images, [f"u.o{p}" for p in images]))
    return " AND ".join(terms)


def same_values(builder: SetBuilder, positions: Sequence[int], values: Sequence[str]) -> str:
    """Return the condition that a row of the table `t` has these values, as a reader of the table sees them.

    The condition compares images first, which is cheapest and nearly always decides. When they differ, it compares
    texts, but only of columns whose type can store a value in several forms, because texts may be large. 1.0 and 1.00,
    and 0 and -0, have different texts.

    Args:
        builder: builder of the set.
        positions: positions of the columns in the write's version.
        values: expressions of the columns' types.
    """
    columns = [f"t.{builder.details(p).name}" for p in positions]
    several = [place for place, p in enumerate(positions) if not builder.is_of_one_image(p)]
    if not several:
        return _same_images(_row(columns), _row(values))
    if len(several) == len(positions):
        return _same(_row(columns), _row(values))
    of_one = [place for place in range(len(positions)) if place not in several]
    one, other = ((_row(columns[k] for k in each), _row(values[k] for k in each)) for each in (of_one, several))
    return f"{_same_images(*one)} AND {_same(*other)}"


def _same(row: str, other: str) -> str:
    # Texts are compared by bytes, whatever the database's collation.
    return (
        f"({_same_images(row, other)} OR"
        f' {row}::pg_catalog.text COLLATE "C" OPERATOR(pg_catalog.=) {other}::pg_catalog.text)'
    )


def _same_images(row: str, other: str) -> str:
    return f"pg_catalog.record_image_eq({row}, {other})"


def _compared_by_images(builder: SetBuilder, find: list[int]) -> list[int]:
    """Return those of the columns that find a row without an index operator."""
    return [p for p in find if not builder.details(p).equals]


def row_by_row(builder: SetBuilder, rows: Located) -> frozenset[int]:
    """Return the positions that are compared with a one-element array, so that the server looks up each row by index.

    These are the first columns of the unique indexes that find the rows.

    Hash and merge joins cannot use such a comparison, so the server cannot read the whole index instead. It did that for
    each set when it assumed an empty table: one that was vacuumed while a transaction filled it. (If all columns of an
    index were compared this way, PostgreSQL 15 and 16 might search by the first ones only.)

    The result is empty when another index has one of the columns. For a table that the server assumes to be empty, each
    index has the same cost. Searching an index of a column with few values, or reading all of it, for each row of the
    set is worse than reading the table once. An index that begins with a unique column is as good as the unique one.
    """
    catalog = builder.catalog
    at = {p: catalog.positions[builder.write.version.columns[p].name] for p in rows.find}
    found_by = set(at.values())
    keys = [key for key in catalog.looked_up if set(key) <= found_by]
    if rows.found is not FoundRows.ONE or not keys:
        return frozenset()
    alone = {key[0] for key in keys if len(key) == 1}
    used = [index for index in catalog.indexes if found_by & set(index)]
    if any(index[0] not in alone if alone else index != keys[0] for index in used):
        return frozenset()
    first = alone or {keys[0][0]}
    return frozenset(p for p, place in at.items() if place in first and builder.is_plain(p))


def _first_found(builder: SetBuilder, rows: Located) -> tuple[str, str, str]:
    """Return WITH clause, source and condition so that each row of the set changes at most one row with its key."""
    is_any = rows.found is FoundRows.ANY
    builder.pack([*(_compared_by_images(builder, rows.find) if is_any else []), *rows.compare])
    found = keyed(builder, rows.find, rows.compare if is_any else [])
    number = (
        "pg_catalog.row_number() OVER (PARTITION BY u.i ORDER BY t.tableoid, t.ctid)"
        if is_any
        else "pg_catalog.count(*) OVER (PARTITION BY u.i)"
    )
    with_ = (
        f"WITH v AS MATERIALIZED (SELECT {builder.select_list()}), "
        "w AS MATERIALIZED (SELECT *, pg_catalog.row_number() OVER () AS i FROM v), "
        f"m AS (SELECT t.ctid AS c, t.tableoid AS o, {number} AS r, u.* FROM {builder.catalog.relation} t, w u WHERE"
        f" {found}), p AS MATERIALIZED (SELECT * FROM m WHERE r OPERATOR(pg_catalog.=) 1) "
    )
    condition = "t.ctid OPERATOR(pg_catalog.=) u.c AND t.tableoid OPERATOR(pg_catalog.=) u.o"
    compared = "" if is_any or not rows.compare else f" AND {keyed(builder, [], rows.compare)}"
    return with_, "p u", condition + compared


def _paired(builder: SetBuilder, found: FoundRows) -> tuple[str, str, str]:
    """Return WITH clause, source and condition so that equal rows are matched one to one."""
    names = {p: f"t.{builder.details(p).name}" for p in builder.old}
    values = {p: builder.found_by(k, p) for k, p in enumerate(builder.old, 1)}
    new = [f"{builder.expression(k, p)} AS n{p}" for k, p in enumerate(builder.new, len(builder.old) + 1)]
    hashed = [p for p in builder.old if builder.details(p).is_hashable]
    # A cheap hash comes first, so that most rows of the table need no text.
    hashes = [f"{_hash(values[p] for p in hashed)} AS h"] if hashed else []
    candidates = (
        f" WHERE {_hash(names[p] for p in hashed)} OPERATOR(pg_catalog.=) ANY (SELECT h FROM v)" if hashed else ""
    )
    number = 'pg_catalog.row_number() OVER (PARTITION BY i COLLATE "C") AS r'
    times = ', pg_catalog.count(*) OVER (PARTITION BY i COLLATE "C") AS times' if found is FoundRows.SINGLE else ""
    once = " AND c.times OPERATOR(pg_catalog.=) 1" if found is FoundRows.SINGLE else ""
    with_ = (
        "WITH v AS MATERIALIZED (SELECT"
        f" {', '.join([f'{_image(values.values())} AS i', *hashes, *new])}{'' if values else f' FROM {_EVERY_ROW}'}), w"
        f" AS (SELECT *, {number} FROM v), c AS (SELECT *, {number}{times} FROM (SELECT t.ctid AS c, t.tableoid AS o,"
        f" {_image(names.values())} AS i FROM {builder.catalog.relation} t{candidates}) t), "
        f"p AS MATERIALIZED (SELECT c.c, c.o{''.join(f', w.n{p}' for p in builder.new)} FROM w"
        f' JOIN c ON w.i COLLATE "C" = c.i AND w.r = c.r{once}) '
    )
    return with_, "p u", "t.ctid OPERATOR(pg_catalog.=) u.c AND t.tableoid OPERATOR(pg_catalog.=) u.o"


def _row(values: Iterable[str]) -> str:
    return f"ROW({', '.join(values)})"


def _image(values: Iterable[str]) -> str:
    return f"{_row(values)}::pg_catalog.text"


def _hash(values: Iterable[str]) -> str:
    return f"pg_catalog.hash_record_extended({_row(values)}, 0)"


def _touched(catalog: CatalogTable) -> str:
    """Return an assignment that leaves a row unchanged; empty for a table of identity columns only, whose rows move."""
    columns = [
        (details.name, column)
        for details, column in zip(catalog.columns, catalog.table.columns, strict=True)
        if not column.is_identity_always
    ]
    stored = next((f"{name} = t.{name}" for name, column in columns if not column.is_generated), "")
    return stored or next((f"{name} = DEFAULT" for name, _ in columns), "")


def _update(builder: SetBuilder, sets: list[int], source: str, condition: str) -> str:
    if not sets and builder.write.times is not None:
        # The row's xmin must name the last writer, even if the change leaves all values the same.
        return f"UPDATE {builder.catalog.relation} t SET {_touched(builder.catalog)} FROM {source} WHERE {condition}"
    if not sets:
        # Nothing to set, but the row must exist: a generated column, or an identity that did not change.
        return f"SELECT FROM {builder.catalog.relation} t, {source} WHERE {condition} FOR NO KEY UPDATE OF t"
    assignments = ", ".join(f"{builder.details(p).name} = u.n{p}" for p in sets)
    return f"UPDATE {builder.catalog.relation} t SET {assignments} FROM {source} WHERE {condition}"


def _move(builder: SetBuilder, written: list[int], with_: str, source: str, condition: str) -> str:
    catalog = builder.catalog
    new = {builder.details(p).name: f"u.n{p}" for p in written}
    kept = [
        details.name
        for details, column in zip(catalog.columns, catalog.table.columns, strict=True)
        if not column.is_generated
    ]
    returning = ", ".join(f"{new.get(name, f't.{name}')} AS c{k}" for k, name in enumerate(kept))
    columns = ", ".join(kept)
    values = ", ".join(f"c{k}" for k in range(len(kept)))
    start = f"{with_.rstrip()}, " if with_ else "WITH "
    return (
        f"{start}moved AS (DELETE FROM {catalog.relation} t USING {source} WHERE {condition} RETURNING {returning}) "
        f"INSERT INTO {catalog.relation.removeprefix('ONLY ')} ({columns}) OVERRIDING SYSTEM VALUE"
        f" SELECT {values} FROM moved"
    )


def identity_may_change(write: Write, catalog: CatalogTable) -> bool:
    """Return whether an UPDATE may change an identity column that cannot be SET: its old value differs or is unknown.

    Args:
        write: the write; for an INSERT or a DELETE the result is False.
        catalog: the destination table; every column of the write's version fits.
    """
    if write.command is not Command.UPDATE or write.old is None or write.new is None:
        return False
    for position in write.set_columns:
        column = write.version.columns[position]
        if not catalog.table.columns[catalog.positions[column.name]].is_identity_always:
            continue
        old, new = write.old.lengths[position], write.new.lengths[position]
        absent = old < -1
        if column.is_key and absent.all():
            continue  # the log has old keys only when they change
        if absent.any() or (old != new).any() or _bytes(write.old, position) != _bytes(write.new, position):
            return True
    return False


def _bytes(values: ColumnValues, column: int) -> bytes:
    return values.data[int(values.starts[column]) : int(values.starts[column + 1])].tobytes()


def row_chunks(statement: SetStatement, write: Write) -> Iterator[tuple[int, int]]:
    """Cut a write's rows into runs whose values fit into one statement.

    Args:
        statement: a statement of the write's plan; only the values that it sends count.
        write: the write to cut.

    Yields:
        First row of the run, and the row after its last. The values have at most about `CHUNK_BYTES`; a larger row
        forms its own run.
    """
    count = write.row_count
    large = [
        (values, columns.columns)
        for values, columns in ((write.old, statement.old), (write.new, statement.new))
        if values is not None and columns is not None and int(values.starts[-1]) > CHUNK_BYTES // 2
    ]
    if not large:  # the usual case needs no look at single rows
        if count:
            yield 0, count
        return
    from headrace.databases.postgres.destination.writing.write_kernels import row_bytes

    total = np.zeros(count, np.int64)
    for values, columns in large:
        total += row_bytes(_read_only(values.lengths), columns)
    ends = np.cumsum(total)
    first = 0
    while first < count:
        done = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, done + CHUNK_BYTES, side="right")))
        yield first, last
        first = last


def parameters(
    statement: SetStatement, write: Write, first: int, last: int, horizon: Horizon
) -> list[NDArray[np.uint8]]:
    """Make the parameters of a statement for some rows of a write.

    One array per parameter, in PostgreSQL's binary form.

    Args:
        statement: a statement of the write's plan.
        write: the write with the values.
        first: the first row.
        last: the row after the last.
        horizon: horizon of the session.

    Returns:
        uint8 each, in the order of the statement's parameters.

    Raises:
        BugError: the write lacks values that the statement needs.
    """
    # Imported here, so that a site's actor, which only queries its database, does not load numba's 25 MB.
    from headrace.databases.postgres.destination.writing.write_kernels import array_sizes, fill_arrays

    found: list[NDArray[np.uint8]] = []
    if statement.is_counted:
        found.append(np.frombuffer((last - first).to_bytes(8, "big"), np.uint8))
    for values, columns in ((write.old, statement.old), (write.new, statement.new)):
        if columns is None:
            continue
        if values is None:
            raise BugError(f"a write to {write.version.qualified_name} lacks the values it needs")
        lengths, data = _read_only(values.lengths), _read_only(values.data)
        sizes, complete = array_sizes(lengths, columns.columns, columns.wrapped, first, last)
        if not complete:
            raise BugError(
                f"a write to {write.version.qualified_name} uses a value that is not in the LCR",
                command=write.command.name,
            )
        starts = np.zeros(sizes.shape[0] + 1, np.int64)
        np.cumsum(sizes, out=starts[1:])
        out = np.empty(int(starts[-1]), np.uint8)
        fill_arrays(
            lengths,
            data,
            _read_only(values.starts),
            columns.columns,
            columns.elements,
            columns.wrapped,
            first,
            last,
            starts,
            out,
        )
        found += [out[starts[k] : starts[k + 1]] for k in range(sizes.shape[0])]
    if statement.is_timed and write.times is not None:
        found.append(_times_parameter(write.times, first, last))
    if statement.is_bounded and write.times is not None:
        earliest = int(write.times.times_us[first:last].min())
        found.append(np.frombuffer((earliest - PG_EPOCH_US).to_bytes(8, "big", signed=True), np.uint8))
        found.append(np.frombuffer((horizon.ended_before(earliest) & 0xFFFFFFFF).to_bytes(4, "big"), np.uint8))
    return found


def _times_parameter(times: WriteTimes, first: int, last: int) -> NDArray[np.uint8]:
    """Return the commit times of some rows as a binary array of timestamptz."""
    count = last - first
    out = np.empty(20 + 12 * count, np.uint8)
    out[:20] = np.array([1, 0, _TIMESTAMPTZ, count, 1], ">i4").view(np.uint8)
    rows = out[20:].reshape(count, 12)
    rows[:, :4] = np.array([8], ">i4").view(np.uint8)
    rows[:, 4:] = (times.times_us[first:last] - PG_EPOCH_US).astype(">i8").view(np.uint8).reshape(count, 8)
    return out


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    # numba compiles read-only arrays separately, and batches have both kinds: one form needs one compilation.
    view = array.view()
    view.flags.writeable = False
    return view


def copy_blocks(plan: WritePlan, write: Write, chunks: list[tuple[int, int]]) -> Iterator[NDArray[np.uint8]]:
    """Make the bytes that COPY ... (FORMAT binary) reads for an INSERT: header, rows chunk by chunk, trailer.

    Args:
        plan: plan of the write, with `copy`.
        write: an INSERT.
        chunks: from `row_chunks`; each becomes one block.

    Yields:
        uint8.

    Raises:
        BugError: a value is not in the LCR.
    """
    from headrace.databases.postgres.destination.writing.write_kernels import fill_copy_rows

    assert write.new is not None
    yield _COPY_HEADER
    lengths, data, starts = _read_only(write.new.lengths), _read_only(write.new.data), _read_only(write.new.starts)
    fixed = 2 + 4 * plan.copy_columns.shape[0]
    for first, last in chunks:
        size = int(np.maximum(lengths[plan.copy_columns, first:last], 0).sum(dtype=np.int64)) + fixed * (last - first)
        out = np.empty(size, np.uint8)
        written = int(fill_copy_rows(lengths, data, starts, plan.copy_columns, first, last, out))
        if written < 0:
            raise BugError(f"an insert into {write.version.qualified_name} uses a value that is not in the LCR")
        yield out[:written]
    yield _COPY_TRAILER
