"""Types that are not built in: which type of a source is which of a destination, whatever schema each is in.

The log names a type by its schema and name. At the destination the same type may be in another schema: an extension is
where its operator installed it, and the enums of a table whose schema is renamed move with it. So a type of the same
name in any schema is taken for the source's (`is_same_name`). `check` and `up`, which can query both databases, refuse
a type that shares only the name: another kind of type, or one of another extension. Labels of enums and fields of
composite types are compared by `headrace.databases.postgres.compared.shapes`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg
from psycopg.rows import dict_row

from headrace.databases.ports import Finding, NamedType
from headrace.databases.postgres.connection import qualified, quote
from headrace.lcr.table_name import TableName, literal, remark
from headrace.lcr.type_name import possible_names, type_parts, type_text

__all__ = ["is_same_name", "local_names", "named_types", "type_findings"]

# Types of the tables' columns; for an array, of its elements; for a domain, of the type below.
_NAMED = """
WITH RECURSIVE walk (owner, name, "column", place, number) AS (
    SELECT n.nspname::text, c.relname::text, a.attname::text, a.attnum, a.atttypid
    FROM unnest(%s::text[], %s::text[]) AS wanted (owner, name)
    JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.owner
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name AND c.relkind IN ('r', 'p')
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= 10000
  UNION ALL
    SELECT w.owner, w.name, w."column", w.place, CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.typelem END
    FROM walk w JOIN pg_catalog.pg_type t ON t.oid = w.number
    WHERE t.typtype = 'd' OR (t.typcategory = 'A' AND t.typelem <> 0)
)
SELECT w.owner, w.name, w."column", n.nspname::text AS type_owner, t.typname::text AS type_name, t.typtype::text AS kind,
       coalesce((SELECT e.extname::text FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid
                 WHERE d.classid = 'pg_catalog.pg_type'::regclass AND d.objid = t.oid AND d.refclassid =
                     'pg_catalog.pg_extension'::regclass AND d.deptype = 'e'), '') AS extension,
       ARRAY(SELECT l.enumlabel::text FROM pg_catalog.pg_enum l WHERE l.enumtypid = t.oid ORDER BY l.enumsortorder) AS labels
FROM walk w JOIN pg_catalog.pg_type t ON t.oid = w.number JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
WHERE t.oid >= 10000 AND t.typtype <> 'd' AND NOT (t.typcategory = 'A' AND t.typelem <> 0)
ORDER BY 1, 2, w.place
"""

# Every type here with one of these bare names that is not built in.
_HERE = """
SELECT t.typname::text AS name, n.nspname::text AS owner
FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
WHERE t.oid >= 10000 AND t.typname = ANY (%s) AND t.typtype <> 'p' ORDER BY 1, 2
"""

_KINDS = {"b": "a base type", "c": "a composite type", "e": "an enum", "r": "a range", "m": "a multirange"}


def is_same_name(one: str, other: str) -> bool:
    """Whether two types, each `owner.name` in its own database, may be the same.

    Built-in types are compared by both parts, others by their names.

    Args:
        one: a type of the source.
        other: a type of the destination.
    """
    if one == other or "pg_catalog" in {type_parts(one)[0], type_parts(other)[0]}:
        return one == other
    return not set(possible_names(one)).isdisjoint(possible_names(other))


def named_types(
    connection: psycopg.Connection[Any], tables: Sequence[TableName]
) -> dict[TableName, tuple[NamedType, ...]]:
    """Read the types of those tables' columns that are not built in.

    Args:
        connection: with an empty search_path.
        tables: plain tables and roots of partitioned ones.
    """
    found: dict[TableName, list[NamedType]] = {}
    with connection.cursor(row_factory=dict_row) as cursor:
        for row in cursor.execute(_NAMED, ([each.owner for each in tables], [each.name for each in tables])):
            found.setdefault(TableName(row["owner"], row["name"]), []).append(
                NamedType(
                    column=row["column"],
                    owner=row["type_owner"],
                    name=row["type_name"],
                    kind=row["kind"],
                    extension=row["extension"],
                    labels=tuple(row["labels"]),
                )
            )
    return {table: tuple(types) for table, types in found.items()}


def local_names(connection: psycopg.Connection[Any], types: Sequence[str]) -> dict[str, str]:
    """Return the local names of a source's types where they differ from the log's.

    They differ if exactly one type here has the name, in another schema, or if the schema's name has a dot.

    Args:
        connection: to the destination.
        types: `owner.name`; array types as the catalog names them.

    Returns:
        The local names, in the form of `type_text`.
    """
    wanted = {text: possible_names(text) for text in types if not text.startswith("pg_catalog.")}
    names = sorted({name for each in wanted.values() for name in each})
    here = connection.execute(_HERE, (names,)).fetchall() if names else []
    found: dict[str, str] = {}
    for text, possible in wanted.items():
        places = [(owner, name) for name, owner in here if name in possible]
        exact = [each for each in places if ".".join(each) == text]
        if len(chosen := exact or places) == 1 and type_text(*chosen[0]) != text:
            found[text] = type_text(*chosen[0])
    return found


def type_findings(
    connection: psycopg.Connection[Any],
    path: str,
    table: TableName,
    wanted: Sequence[NamedType],
    here: Mapping[str, NamedType],
) -> Iterator[Finding]:
    """Report types that the destination lacks, and columns whose type shares only the name with the source's.

    Args:
        connection: to the destination.
        path: of the findings.
        table: its name here.
        wanted: from `named_types` of the source.
        here: the destination's, by column.
    """
    names = (
        {name for name, _ in connection.execute(_HERE, ([each.name for each in wanted],)).fetchall()}
        if wanted
        else set()
    )
    for each in wanted:
        mine = here.get(each.column)
        if each.name not in names:
            yield Finding(
                path=path,
                problem=f"{each.column} is of type {each.owner}.{each.name} at the source, and no schema here has a"
                f" type {each.name}",
                fix=_made(each),
            )
        elif mine is not None and mine.name == each.name and (mine.kind, mine.extension) != (each.kind, each.extension):
            alter = f"ALTER TABLE {qualified(*table)} ALTER COLUMN {quote(each.column)} TYPE"
            yield Finding(
                path=path,
                problem=f"{each.column} is of type {mine.owner}.{mine.name}, {_kind(mine)}, and at the source of"
                f" {each.owner}.{each.name}, {_kind(each)}: they have only the name in common",
                fix=f"make the source's type here, and give it to the column: {_made(each)} {alter}"
                f" {qualified(each.owner, each.name)} USING {quote(each.column)}::text::...;",
            )


def _kind(named: NamedType) -> str:
    return f"{_KINDS.get(named.kind, 'a type')}{f' of the extension {named.extension}' if named.extension else ''}"


def _made(named: NamedType) -> str:
    """Return the statement that creates a type, in the schema it has at the source."""
    if named.extension:
        schema = f"CREATE SCHEMA IF NOT EXISTS {quote(named.owner)}; " if named.owner != "public" else ""
        return f"{schema}CREATE EXTENSION {quote(named.extension)} SCHEMA {quote(named.owner)};"
    if named.kind == "e":
        labels = ", ".join(literal(label) for label in named.labels)
        return f"CREATE TYPE {qualified(named.owner, named.name)} AS ENUM ({labels});"
    return f"CREATE TYPE {qualified(named.owner, named.name)} AS ...; " + remark(
        f"as pg_dump --schema-only --schema={shlex.quote(quote(named.owner))} SOURCE_DSN has it"
    )
