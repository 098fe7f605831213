"""Properties of columns that the log does not describe, read at a source and at a destination.

These are the types below their types, generated columns, and types that are not built in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import psycopg

from headrace.databases.ports import Finding, TableShape
from headrace.databases.postgres.catalog.destination_tables import describe_table
from headrace.databases.postgres.compared.computed_columns import computed_columns, computed_findings
from headrace.databases.postgres.compared.named_types import named_types, type_findings
from headrace.databases.postgres.compared.shapes import domain_findings, domain_shapes
from headrace.lcr.table_name import TableName

__all__ = ["column_findings", "column_shapes"]


def column_shapes(connection: psycopg.Connection[Any], tables: Sequence[TableName]) -> tuple[TableShape, ...]:
    """Read these properties of tables that have such columns; no other part of their shapes.

    Args:
        connection: with an empty search_path.
        tables: plain tables and roots of partitioned ones.
    """
    shapes = {TableName.of(shape): shape for shape in domain_shapes(connection, tables)}
    for table, columns in computed_columns(connection, tables).items():
        shapes[table] = replace(shapes.get(table, TableShape(owner=table.owner, name=table.name)), computed=columns)
    for table, types in named_types(connection, tables).items():
        shapes[table] = replace(shapes.get(table, TableShape(owner=table.owner, name=table.name)), types=types)
    return tuple(shapes.values())


def column_findings(
    connection: psycopg.Connection[Any], site: str, shapes: Sequence[TableShape]
) -> tuple[Finding, ...]:
    """Find what keeps the values of columns from being applied, or would change them.

    Args:
        connection: to the destination, with an empty search_path.
        site: for the findings' path.
        shapes: from `column_shapes` of the source, under the names the tables have here.
    """
    wanted = {TableName.of(shape): shape for shape in shapes}
    here = {TableName.of(shape): shape for shape in column_shapes(connection, list(wanted))} if wanted else {}
    found: list[Finding] = []
    for name, shape in wanted.items():
        path, mine = f"sites.{site} table {name}", here.get(name, TableShape(owner=name.owner, name=name.name))
        found += domain_findings(path, shape, mine)
        table = describe_table(connection, *name) if shape.computed or shape.types else None
        if table is not None:  # a missing table is created with its types
            found += type_findings(connection, path, name, shape.types, {each.column: each for each in mine.types})
            found += computed_findings(connection, path, shape, table, mine.computed)
    return tuple(found)
