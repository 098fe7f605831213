"""Whether a source table's rows can be written to a destination table unchanged, and which ALTER is missing.

Values pass through in the source's binary form. So a column fits with the identical type and a modifier that changes no
value: a longer varchar, a numeric with more digits before the point, a finer timestamp. A column of another type fits
if the server can convert each value on arrival:

    wider        int2 -> int4 -> int8, varchar <-> text: by a cast, exactly
    a function   headrace."owner.table.column"(source type) RETURNS the column's type, made by the operator

The function is for a type that changed within one transaction. Rows written before the ALTER arrive when the
destination is already altered, and only the operator knows what the source's ALTER had after USING.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from headrace.base.errors import COPY_THE_TABLE, WHERE_OTHERS_WRITE
from headrace.databases.ports import DestinationColumn
from headrace.databases.postgres.catalog.destination_tables import (
    CatalogColumn,
    CatalogTable,
    Conversion,
    PrimaryKey,
    conversion_function,
)
from headrace.databases.postgres.compared.named_types import is_same_name
from headrace.databases.postgres.connection import qualified, quote
from headrace.databases.postgres.values.builtin_types import BUILTIN_TYPES
from headrace.lcr.batch import Column, OldImage, TableVersion
from headrace.lcr.table_name import TableName, argument, remark
from headrace.lcr.type_name import type_parts

__all__ = [
    "column_fits",
    "conversion_of",
    "dump_of",
    "immediate",
    "missing_alter",
    "missing_tables",
    "modifier_fits",
    "type_with_modifier",
]

_HEADER_BYTES = 4  # PostgreSQL counts a length word in the modifiers of varchar, bpchar and numeric
_LENGTH = frozenset({"varchar", "bpchar"})
_BITS = frozenset({"bit", "varbit"})
_PRECISION = frozenset({"time", "timetz", "timestamp", "timestamptz"})
_PRECISION_MAX = 6  # for a time without modifier: microseconds
_INTERVAL_FULL_PRECISION = 0xFFFF
# Words for the type modifiers of interval, by PostgreSQL's field bits (year 4, month 2, day 8, hour 1024, minute 2048,
# second 4096).
_INTERVAL_FIELDS = {
    4: " year",
    2: " month",
    8: " day",
    1024: " hour",
    2048: " minute",
    4096: " second",
    6: " year to month",
    1032: " day to hour",
    3080: " day to minute",
    7176: " day to second",
    3072: " hour to minute",
    7168: " hour to second",
    6144: " minute to second",
}


def missing_tables(tables: Sequence[TableName], schemas: Sequence[str] = ()) -> str:
    """Return the one command that creates what the destination lacks.

    It creates the tables in order, with the references between them.

    Args:
        tables: as for `dump_of`.
        schemas: as for `dump_of`.
    """
    return f"{dump_of(tables, schemas)} | psql DESTINATION_DSN"


def dump_of(tables: Sequence[TableName], schemas: Sequence[str] = ()) -> str:
    """Return the command that prints the statements which create tables.

    Args:
        tables: under their names at the source.
        schemas: schemas missing at the destination: everything in them is created, including types and functions.
    """
    selected = [f"--schema={shlex.quote(quote(schema))}" for schema in schemas]
    selected += [f"--table={shlex.quote(qualified(*table))}" for table in tables if table.owner not in schemas]
    # The source's publications and subscriptions do not concern the destination.
    return f"pg_dump --schema-only --no-publications --no-subscriptions {' '.join(selected)} SOURCE_DSN"


def missing_alter(
    version: TableVersion,
    catalog: CatalogTable | None,
    now: TableVersion | None = None,
    *,
    source: TableName | None = None,
) -> str:
    """Return what must be done before rows of `version` can be written.

    Args:
        version: the source's description of the table.
        catalog: the destination's table; None: it does not exist.
        now: the table as the source has it now, which shows whether the rows or the destination are behind. None:
            unknown.
        source: the table's name at the source; None: as here.

    Returns:
        Statements for a person, one per line; empty when every column fits.
    """
    if catalog is None:
        return missing_tables([TableName.of(version)])
    alter = f"ALTER TABLE {qualified(version.owner, version.name)}"
    renamed, taken = _renamed(version, catalog)
    missing = []
    present = {column.name: column for column in now.columns} if now is not None else {}
    repair = f"headrace verify FILE {argument(source or TableName.of(version))} and the fix that it prints"
    for column in version.columns:
        position = catalog.positions.get(column.name)
        wanted = type_with_modifier(column.type_name, column.type_modifier)
        name = quote(column.name)
        if position is None:
            there = present.get(column.name)
            older = there.older_value if there is not None and _has_type_of(there, column) else None
            add = f"{alter} ADD COLUMN {name} {wanted}{f' DEFAULT {older}' if older else ''};"
            old = renamed.get(column.name)
            if old is not None:
                missing.append(
                    f"{alter} RENAME COLUMN {quote(old)} TO {name}; " + remark(f"or, if {name} is a new column: {add}")
                )
            else:
                before = taken.get(column.name)
                rename = (
                    f"; or, if it was {quote(before)} before: {alter} RENAME COLUMN {quote(before)} TO {name};"
                    if before
                    else ""
                )
                then = (
                    f"then {repair}, if the column has a DEFAULT at the source: rows that are here already lack its"
                    " values"
                    if older is None
                    else ""
                )
                missing.append(f"{add} {remark((then + rename).removeprefix('; '))}" if then or rename else add)
        elif catalog.table.columns[position].is_generated:
            if not column.is_computed:
                missing.append(_made_plain(alter, name, wanted, catalog.columns[position]))
        elif not column_fits(column, catalog.table.columns[position], catalog.columns[position]):
            function = quote(conversion_function(version.owner, version.name, column.name))
            create = (
                f"CREATE FUNCTION headrace.{function}({type_with_modifier(column.type_name, -1)})"
                f" RETURNS {catalog.columns[position].form.type_name} ...;"
            )
            change = _retyped(alter, name, column, repair)
            there = present.get(column.name)
            if there is None:
                missing.append(f"{change}; or, if these rows are older than the column is here: {create}")
            elif _has_type_of(there, column) or not column_fits(
                there, catalog.table.columns[position], catalog.columns[position]
            ):
                missing.append(change)
            else:
                missing.append(
                    f"{create} -- these rows are older than the column is here: as USING converted them at the source"
                )
    given = {column.name for column in version.columns} | set(renamed.values())
    missing += _nullable(
        version,
        catalog,
        [
            position
            for position, column in enumerate(catalog.table.columns)
            if column.name not in given and column.not_null and not column.has_default and not column.is_generated
        ],
    )
    return "\n".join(missing)


def _nullable(version: TableVersion, catalog: CatalogTable, positions: Sequence[int]) -> Iterator[str]:
    """Return statements that let rows omit columns that refuse NULL here.

    Args:
        version: of the rows.
        catalog: the destination table.
        positions: of the columns.
    """
    relation = qualified(version.owner, version.name)
    key = catalog.primary_key
    in_key: list[str] = []
    for position in positions:
        name, details = catalog.table.columns[position].name, catalog.columns[position]
        column = quote(name)
        is_of_key = key is not None and name in key.columns
        if name in catalog.partitioned_by and (is_of_key or details.is_not_null_domain):
            # A primary key contains every column of the partition key, and no NULL; the types of those columns are
            # fixed: no ALTER helps.
            yield (
                f"{relation} is partitioned by {column}, which the source does not have, and which is never NULL here:"
                f" make the table anew here without that column; then {COPY_THE_TABLE}. {WHERE_OTHERS_WRITE}"
            )
            continue
        if name in catalog.identity_columns:
            yield f"ALTER TABLE {relation} REPLICA IDENTITY FULL; " + remark(
                f"the index that is the replica identity here has {column}"
            )
        changes = [f"ALTER COLUMN {column} DROP NOT NULL"]
        if details.is_not_null_domain:
            base = type_with_modifier(details.base_type, details.base_modifier)
            changes.insert(0, f"ALTER COLUMN {column} TYPE {base}")
        if is_of_key:
            in_key += changes
        else:
            lost = "; " + remark(
                "its domain refuses NULL; or, if nothing here needs the column:"
                f" ALTER TABLE {relation} DROP COLUMN {column};"
            )
            yield f"ALTER TABLE {relation} {', '.join(changes)}{lost if details.is_not_null_domain else ';'}"
    if key is not None and in_key:
        yield from _other_key(version, catalog, key, in_key)


def _other_key(version: TableVersion, catalog: CatalogTable, key: PrimaryKey, changes: Sequence[str]) -> Iterator[str]:
    """Return statements that make a primary key of the arriving columns, where the existing key has others.

    Args:
        version: of the rows.
        catalog: the destination table.
        key: its primary key.
        changes: parts of ALTER TABLE that make its other columns nullable.
    """
    relation = qualified(version.owner, version.name)
    for owner, table, constraint in key.referring:
        yield f"ALTER TABLE {qualified(owner, table)} DROP CONSTRAINT {quote(constraint)}; " + remark(
            "it refers to the primary key that goes; make it anew as the source has it, with what the key has then"
        )
    arriving = {column.name for column in version.columns if column.name in catalog.positions}
    # The log's key is the source's key, which is unique there; with FULL it is all columns.
    own = [column.name for column in version.columns if column.is_key and version.old_image is OldImage.KEY]
    rest = [name for name in key.columns if name in arriving]
    is_enough = own and arriving.issuperset(own) and set(catalog.partitioned_by).issubset(own)
    columns = ", ".join(map(quote, own if is_enough else rest))
    parts = [f"DROP CONSTRAINT {quote(key.name)}", *changes, *([f"ADD PRIMARY KEY ({columns})"] if columns else [])]
    then = (
        f"where rows are here that are equal in ({columns}), whose deletion is still to come: without ADD PRIMARY KEY,"
        f" and ALTER TABLE {relation} ADD PRIMARY KEY ({columns}); once it was applied"
        if columns
        else "none of the key's columns arrives: give the table another key"
    )
    yield f"ALTER TABLE {relation} {', '.join(parts)}; {remark(then)}"


def _retyped(alter: str, name: str, column: Column, repair: str) -> str:
    """Return the statement that gives a column another type.

    Whether values change depends on who altered which side, from which type, under which settings: that is unknown
    here.
    """
    wanted = type_with_modifier(column.type_name, column.type_modifier)
    # No cast is implicit between a type that is not built in and another one: both share the text form of a value.
    using = "" if column.type_name.startswith("pg_catalog.") else f" USING {name}::text::{wanted}"
    return f"{alter} ALTER COLUMN {name} TYPE {wanted}{using}; " + remark(
        f"then {repair}: rows that are here already may have other values"
    )


def _made_plain(alter: str, name: str, wanted: str, column: CatalogColumn) -> str:
    """Return how to make a generated column plain; the server cannot do so with a virtual one, which stores no values."""
    if column.generated == "v":
        return (
            f"{alter} DROP COLUMN {name}, ADD COLUMN {name} {wanted}; -- it is generated here, and not at the source,"
            " whose values would be thrown away. Rows that are here already get their values by `headrace verify` and"
            " the fix that it prints"
        )
    return (
        f"{alter} ALTER COLUMN {name} DROP EXPRESSION; -- it is generated here, and not at the source, whose values"
        " would be thrown away. Rows that are here keep what was computed: `headrace verify` tells whether that is what"
        " the source has"
    )


def _has_type_of(one: Column, other: Column) -> bool:
    return (one.type_name, one.type_modifier) == (other.type_name, other.type_modifier)


def _renamed(version: TableVersion, catalog: CatalogTable) -> tuple[dict[str, str], dict[str, str]]:
    """Return new name -> old name of columns that look renamed at the source.

    Also returns columns whose old name is another column's at the source.

    The log names columns but does not number them. A column that the destination lacks, in the position of one that the
    source lacks and of the same type, was renamed, or dropped and added again. Adding a new one would leave the old
    values behind.
    """
    given = {column.name: number for number, column in enumerate(version.columns)}
    renamed: dict[str, str] = {}
    taken: dict[str, str] = {}
    place = 0  # position of the destination's next column, if both sides have the same columns
    for number, column in enumerate(version.columns):
        position = catalog.positions.get(column.name)
        if position is None and place < len(catalog.columns):
            there = catalog.table.columns[place]
            if not there.is_generated and column_fits(column, there, catalog.columns[place]):
                if there.name not in given:
                    renamed[column.name] = there.name
                    position = place
                elif given[there.name] > number:  # new columns are last, so this one is not new
                    taken[column.name] = there.name
        place = place if position is None else position + 1
    return renamed, taken


def column_fits(source: Column, column: DestinationColumn, details: CatalogColumn) -> bool:
    """Whether every value of the source's column is, or can be converted to, a value of the destination's.

    Args:
        source: the column as the log describes it.
        column: the destination's column that its values would be written to.
        details: the same column, from the destination's catalog.
    """
    if column.is_generated:
        return source.is_computed  # on both sides; any other arriving value would be discarded
    return _is_same(source, column, details) or conversion_of(source, column, details) is not None


def conversion_of(source: Column, column: DestinationColumn, details: CatalogColumn) -> Conversion | None:
    """Find the conversion of the source's values into the destination's.

    Args:
        source: the column as the log describes it.
        column: the destination's column that its values are written to.
        details: the same column, from the destination's catalog.

    Returns:
        None: the values pass unchanged, or the column does not fit (`column_fits` decides).
    """
    if column.is_generated or _is_same(source, column, details):
        return None  # a generated column is never written
    source_type = ".".join(type_parts(source.type_name))
    return next((found for found in details.conversions if found.source_type == source_type), None)


def _is_same(source: Column, column: DestinationColumn, details: CatalogColumn) -> bool:
    if is_same_name(source.type_name, column.type_name):
        return modifier_fits(details.base_type, source.type_modifier, column.type_modifier)
    # The log names a domain's base type instead of the domain, without the domain's modifier. A value that the
    # destination's domain refuses is an error of the data, not of the table; but a domain over numeric(5,2) rounds
    # instead of refusing.
    is_domain = details.base_type != column.type_name
    return (
        is_domain
        and is_same_name(source.type_name, details.base_type)
        and (_may_be_domain(source) or modifier_fits(details.base_type, source.type_modifier, details.base_modifier))
    )


def _may_be_domain(source: Column) -> bool:
    """Whether the log may name a base type where it means a domain.

    The log then does not say what the domain does to values (`headrace.databases.postgres.compared.shapes` does).
    """
    is_builtin = source.type_number in BUILTIN_TYPES or (
        source.type_number == 0 and source.type_name.startswith("pg_catalog.")
    )
    return not is_builtin


def modifier_fits(type_name: str, source: int, destination: int) -> bool:
    """Whether a type with one modifier accepts every value with another one unchanged.

    Args:
        type_name: of both, `owner.name`.
        source: modifier of the values; -1: none.
        destination: modifier of the accepting type; -1: none.
    """
    if destination in {source, -1}:
        return True
    owner, _, name = type_name.partition(".")
    if owner != "pg_catalog":
        return False
    name = name.removeprefix("_")
    if name in _PRECISION:
        return destination >= (source if source != -1 else _PRECISION_MAX)
    if source == -1:
        return False
    if name in {"varchar", "varbit"}:
        return destination > source
    if name == "numeric":
        # The scale decides how a value is displayed, so it must be equal: record images of 1.50 and 1.5000 differ.
        (source_digits, source_scale), (digits, scale) = _numeric(source), _numeric(destination)
        return scale == source_scale and digits >= source_digits
    return False


def _numeric(modifier: int) -> tuple[int, int]:
    bits = modifier - _HEADER_BYTES
    return (bits >> 16) & 0xFFFF, ((bits & 0x7FF) ^ 1024) - 1024  # the scale is an 11-bit signed number


def type_with_modifier(type_name: str, modifier: int) -> str:
    """Return a type in DDL syntax, e.g. `numeric(12,2)` or `"app"."mood"`.

    Args:
        type_name: `owner.name` as in the catalog, or from `type_text`; an array type in pg_catalog begins with "_"
            ("pg_catalog._int4").
        modifier: `pg_attribute.atttypmod`; -1: none. Types outside pg_catalog are written without it.
    """
    owner, name = type_parts(type_name)
    if owner != "pg_catalog":
        return qualified(owner, name)
    array = "[]" if name.startswith("_") else ""
    name = name.removeprefix("_")
    spelled = quote(name) if name in {"char", "bit"} else name
    if modifier == -1:
        return spelled + array
    if name in _LENGTH:
        spelled = {"bpchar": "character"}.get(name, name) + f"({modifier - _HEADER_BYTES})"
    elif name in _BITS:
        spelled = {"bit": "bit", "varbit": "bit varying"}[name] + f"({modifier})"
    elif name == "numeric":
        digits, scale = _numeric(modifier)
        spelled = f"numeric({digits},{scale})"
    elif name in _PRECISION:
        spelled = _time_with_precision(name, modifier)
    elif name == "interval":
        precision, fields = modifier & 0xFFFF, (modifier >> 16) & 0x7FFF
        spelled = "interval" + _INTERVAL_FIELDS.get(fields, "")
        spelled += f"({precision})" if precision != _INTERVAL_FULL_PRECISION else ""
    return spelled + array


def _time_with_precision(name: str, precision: int) -> str:
    if name.endswith("tz"):
        return f"{name.removesuffix('tz')}({precision}) with time zone"
    return f"{name}({precision})"


def immediate(definition: str) -> str:
    """Return a constraint's definition without the final DEFERRABLE; a column's name may contain the word, too.

    Args:
        definition: of a key, as `pg_get_constraintdef` spells it.
    """
    return definition.removesuffix(" INITIALLY DEFERRED").removesuffix(" DEFERRABLE")
