"""Supplemental logging in PostgreSQL: a table's replica identity, and what the log then has of a row.

    DEFAULT, INDEX   for UPDATE and DELETE only the old values of the key's columns
    FULL             the whole old row
    any              for an UPDATE every new value except unchanged large ones (stored out of line); under FULL the old
                     row has these

So a rule that reads other old values, or a column that may be stored out of line, needs FULL.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import psycopg

from headrace.databases.ports import Finding, LoggedTable, LogNeed
from headrace.databases.postgres.catalog.source_tables import CatalogTable, Leaf
from headrace.databases.postgres.connection import qualified
from headrace.lcr.batch import TableVersion
from headrace.rules.conditions.nodes import Compare, Node, comparisons_of
from headrace.rules.conditions.values import ValueTypes
from headrace.rules.needs import NeededColumns, needed_columns, refusals
from headrace.rules.transformations.reshaping import transformed_version
from headrace.rules.transformations.transformation import TransformationError

__all__ = ["logged_tables", "logging_findings", "refused_conditions"]

# Encodings whose bytes are in the order of code points, or travel unconverted.
_IN_ORDER_OF_UTF8 = ("UTF8", "LATIN1", "SQL_ASCII")


def logged_tables(
    connection: psycopg.Connection[Any], tables: Sequence[CatalogTable], needs: Sequence[LogNeed]
) -> tuple[LoggedTable, ...]:
    """Return what the log must have of each table, or of its partitions, for the rules.

    Tables without such rules are not included.

    Args:
        connection: to the source.
        tables: captured tables.
        needs: of every client.
    """
    columns_of = cache(lambda leaf: _columns(connection, leaf))
    found: list[LoggedTable] = []
    for table in tables:
        for need in needs:
            if need.concerns(table.owner, table.name):
                columns = (
                    needed_columns(need.rule, *need.called(table.owner, table.name))
                    if need.is_of_rule
                    else NeededColumns(old=need.old, new=need.new)
                )
                if need.function and not need.new:
                    found += [
                        _logged(leaf, need, NeededColumns(new=columns_of(leaf).names), columns_of(leaf))
                        for leaf in table.leaves
                    ]
                elif need.every_old:
                    found += [
                        _logged(leaf, need, _every_old(need, table, columns_of(leaf)), columns_of(leaf))
                        for leaf in table.leaves
                    ]
                elif columns != NeededColumns():
                    found += [
                        _logged(leaf, need, _at_source(columns, need, table, columns_of(leaf).names), columns_of(leaf))
                        for leaf in table.leaves
                    ]
    return tuple(found)


def _at_source(needed: NeededColumns, need: LogNeed, table: CatalogTable, names: tuple[str, ...]) -> NeededColumns:
    """Return columns under the source's names, without those that only transformations add."""
    if not need.before:
        return needed
    try:
        origins = need.at_source(table.owner, table.name, names)
    except TransformationError:
        return needed  # not transformable: reported separately
    old, new = (tuple(origins[name] for name in columns if name in origins) for columns in (needed.old, needed.new))
    return replace(needed, old=old, new=new)


def _every_old(need: LogNeed, table: CatalogTable, there: _Columns) -> NeededColumns:
    """Return the old values of every arriving column outside the key, and of the new values those that are named."""
    try:
        arriving = set(need.at_source(table.owner, table.name, there.names).values())
    except TransformationError:
        arriving = set(there.names)  # as above
    named = _at_source(NeededColumns(new=need.new), need, table, there.names)
    return replace(named, old=tuple(name for name in there.names if name in arriving and name not in there.identifying))


@dataclass(frozen=True, slots=True)
class _Columns:
    """A table's columns in order: those that identify a changed row in the log, and those that may be out of line."""

    names: tuple[str, ...]
    identifying: frozenset[str]
    outside: frozenset[str]


def _logged(leaf: Leaf, need: LogNeed, needed: NeededColumns, there: _Columns) -> LoggedTable:
    """Compare what the log of one table or partition has with what one rule needs."""
    lacking = tuple(f"old {name}" for name in needed.old if name not in there.identifying)
    maybe = tuple(f"new {name}" for name in needed.new if name in there.outside and name not in there.identifying)
    is_full = leaf.identity == "f"
    wanted = (*(f"old {name}" for name in needed.old), *(f"new {name}" for name in needed.new))
    return LoggedTable(
        owner=leaf.owner,
        name=leaf.name,
        place=need.place,
        columns=("every column, old and new",) if needed.whole_row else wanted,
        lacking=() if is_full else ("the whole old row",) if needed.whole_row else lacking,
        uncertain=() if is_full or needed.whole_row else maybe,
        statement="" if is_full else f"ALTER TABLE {qualified(leaf.owner, leaf.name)} REPLICA IDENTITY FULL;",
    )


def _columns(connection: psycopg.Connection[Any], leaf: Leaf) -> _Columns:
    # MAIN values go out of line if a row does not fit a page otherwise. Types that are MAIN by default, such as
    # numeric, have no such values in practice.
    rows = connection.execute(
        """
        SELECT a.attname::text, coalesce(a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]), false), a.attstorage
            IN ('e', 'x') OR (a.attstorage = 'm' AND t.typstorage <> 'm')
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_type t ON t.oid = a.atttypid
        LEFT JOIN pg_index i ON i.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate WHEN 'i' THEN i.indisreplident END
        WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
        """,
        (leaf.number,),
    ).fetchall()
    return _Columns(
        tuple(row[0] for row in rows),
        frozenset(row[0] for row in rows if row[1]),
        frozenset(row[0] for row in rows if row[2]),
    )


def logging_findings(tables: Sequence[LoggedTable], path: str) -> Iterator[Finding]:
    """Report what is missing in the log, with the statement that adds it.

    Args:
        tables: from `logged_tables`.
        path: of the site.
    """
    for table in tables:
        where = f"{path} table {table.owner}.{table.name}"
        if table.lacking:
            yield Finding(
                path=where,
                problem=f"{table.place} needs {', '.join(table.lacking)}, which the log does not have",
                fix=table.statement,
            )
        elif table.uncertain:
            yield Finding(
                path=where,
                is_error=False,
                problem=f"{table.place} needs {', '.join(table.uncertain)}, which the log does not have where it is"
                " stored out of line (about 2 kB or"
                " more) and an UPDATE left it alone: a rule stops its client then, a handler has no value, and a"
                " transformation function that does not expect that (`lcr.is_unchanged`) stops its client",
                fix=table.statement,
            )


def refused_conditions(
    connection: psycopg.Connection[Any], versions: Sequence[TableVersion], needs: Sequence[LogNeed], types: ValueTypes
) -> Iterator[Finding]:
    """Report conditions that cannot be evaluated for a table as the source would.

    Args:
        connection: to the source.
        versions: of the captured tables.
        needs: of every client.
        types: of the database.
    """
    found = connection.execute("SELECT current_setting('server_encoding')").fetchone()
    without_bytes = cache(lambda version: _without_bytes(connection, version))
    composite = cache(lambda version: _composite(connection, version))
    keeps_order = found is not None and found[0] in _IN_ORDER_OF_UTF8
    for need in needs:
        if not keeps_order and any(_orders_bytes(each.tree) for each in need.rule.conditions):
            yield Finding(
                path=need.place,
                problem='COLLATE "C" orders texts by their bytes in the encoding of the database,'
                f" {found and found[0]}, and changes travel in UTF8",
                fix="compare with =, IN or LIKE",
            )
        for version in versions if need.is_of_rule else ():
            if need.concerns(version.owner, version.name):
                for error in refusals(need.rule, _before_the_rule(need, version), types):
                    yield Finding(path=need.place, problem=error.message, fix=error.hint)
                compared = _compared(need, version)
                for name in sorted(compared & without_bytes(version)) if compared else ():
                    yield Finding(
                        path=need.place,
                        problem=f"table {version.qualified_name}: equal texts of {name} may have other bytes: its"
                        " collation is not deterministic",
                        fix="keep what the rule needs in a column with a deterministic collation",
                    )
                for name in sorted(compared & composite(version)) if compared else ():
                    yield Finding(
                        path=need.place,
                        problem=f"table {version.qualified_name}: {name} is of a composite type, which IS NULL where"
                        " all its fields are: the log does not say that",
                        fix="keep what the rule needs in a column of another type",
                    )


def _before_the_rule(need: LogNeed, version: TableVersion) -> TableVersion:
    """Return a table version as a rule sees it.

    If it cannot be transformed, as far as possible: that is reported separately.
    """
    with contextlib.suppress(TransformationError):
        for each in need.transformations(version.owner, version.name):
            version = transformed_version(version, each)[0]
    return version


def _orders_bytes(tree: Node) -> bool:
    return any(
        isinstance(each, Compare) and each.bytewise and each.operator not in ("=", "<>")
        for each in comparisons_of(tree)
    )


def _compared(need: LogNeed, version: TableVersion) -> frozenset[str]:
    """Return the source's columns that a rule uses."""
    names = frozenset(value.column for condition in need.rule.conditions for value in condition.columns)
    if not need.before:
        return names
    try:
        origins = need.at_source(version.owner, version.name, [column.name for column in version.columns])
    except TransformationError:
        return names
    return frozenset(origins[name] for name in names if name in origins)


def _composite(connection: psycopg.Connection[Any], version: TableVersion) -> frozenset[str]:
    """Return the columns of a table that are of composite types, or domains over such."""
    rows = connection.execute(
        """
        WITH RECURSIVE walk (name, oid) AS (
            SELECT a.attname, a.atttypid FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
            UNION ALL SELECT w.name, t.typbasetype FROM walk w JOIN pg_type t ON t.oid = w.oid AND t.typtype = 'd'
        )
        SELECT w.name::text FROM walk w JOIN pg_type t ON t.oid = w.oid WHERE t.typtype = 'c'
        """,
        (int(version.object_number),),
    ).fetchall()
    return frozenset(row[0] for row in rows)


def _without_bytes(connection: psycopg.Connection[Any], version: TableVersion) -> frozenset[str]:
    """Return the columns of a table whose texts may be equal with different bytes."""
    rows = connection.execute(
        """
        SELECT a.attname::text FROM pg_attribute a JOIN pg_collation l ON l.oid = a.attcollation
        WHERE a.attrelid = %s AND NOT a.attisdropped AND NOT l.collisdeterministic
        """,
        (int(version.object_number),),
    ).fetchall()
    return frozenset(row[0] for row in rows)
