"""Properties that may differ between two databases though a table's columns fit: partitions, enum labels, keys.

They are read the same way at a source and at a destination, and compared at the destination before the first row fails.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import psycopg
from psycopg.rows import dict_row

from headrace.databases.ports import DomainColumn, Exclusion, ExclusionTerm, Finding, ShapedPartition, TableShape
from headrace.databases.postgres.catalog.partitions import partition_rows
from headrace.databases.postgres.catalog.type_facts import wider_types
from headrace.databases.postgres.compared.enum_labels import enum_labels, label_findings
from headrace.databases.postgres.compared.types import modifier_fits, type_with_modifier
from headrace.databases.postgres.connection import qualified, quote
from headrace.lcr.table_name import TableName, remark
from headrace.lcr.type_name import type_parts, type_text

__all__ = [
    "domain_findings",
    "domain_shapes",
    "encoding_findings",
    "shape_findings",
    "standalone_tables",
    "table_shapes",
]

_PLAIN_NAME = re.compile(r"[\w$ -]+")
_DEFAULT = "DEFAULT"  # the bound of a default partition

_TABLE = """
SELECT c.oid::int8, coalesce(pg_catalog.pg_get_partkeydef(c.oid), '') AS partitioned_by
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
"""

_PARTITIONS = """
SELECT c.oid::int8, n.nspname::text AS owner, c.relname::text AS name, pn.nspname::text AS parent_owner, p.relname::text AS parent_name,
       pg_catalog.pg_get_expr(c.relpartbound, c.oid) AS bound, coalesce(pg_catalog.pg_get_partkeydef(c.oid), '') AS partitioned_by
FROM pg_catalog.pg_partition_tree(%s::oid) t
JOIN pg_catalog.pg_class c ON c.oid = t.relid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_class p ON p.oid = t.parentrelid JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
WHERE t.level > 0 ORDER BY t.level, n.nspname COLLATE "C", c.relname COLLATE "C"
"""

# Types below columns of types that are not built in: an array's element, a domain's base, a range's bound, a
# composite's fields; for all tables at once.
_DOMAINS = """
WITH RECURSIVE walk (owner, name, "column", part, place, type, oid, modifier, holder) AS (
    SELECT n.nspname::text, c.relname::text, a.attname::text, ''::text, ARRAY[a.attnum], a.atttypid, a.atttypid, a.atttypmod, 0::oid
    FROM unnest(%s::text[], %s::text[]) AS wanted (owner, name)
    JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.owner
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name AND c.relkind IN ('r', 'p')
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' AND a.atttypid >= 10000
  UNION ALL
    SELECT w.owner, w.name, w."column", w.part || below.part COLLATE "default", w.place || below.place, w.type, below.oid, below.modifier,
           CASE WHEN t.typtype = 'c' THEN t.oid ELSE w.holder END
    FROM walk w JOIN pg_catalog.pg_type t ON t.oid = w.oid AND t.oid >= 10000
    CROSS JOIN LATERAL (
        SELECT '', '{}'::int2[], t.typbasetype, t.typtypmod WHERE t.typtype = 'd'
        UNION ALL SELECT '[]', '{}', t.typelem, w.modifier WHERE t.typtype = 'b' AND t.typcategory = 'A' AND t.typelem <> 0
        UNION ALL SELECT '<>', '{}', r.rngsubtype, -1 FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid
        UNION ALL SELECT '<>', '{}', r.rngtypid, -1 FROM pg_catalog.pg_range r WHERE r.rngmultitypid = t.oid
        UNION ALL SELECT '.' || a.attname::text, ARRAY[a.attnum], a.atttypid, a.atttypmod FROM pg_catalog.pg_attribute a
                  WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    ) AS below (part, place, oid, modifier)
)
SELECT w.owner, w.name, w."column", w.part, dn.nspname::text AS domain_owner, d.typname::text AS domain, bn.nspname::text AS base_owner, b.typname::text AS base_type,
       w.modifier, (SELECT ARRAY[hn.nspname::text, h.typname::text] FROM pg_catalog.pg_type h JOIN
           pg_catalog.pg_namespace hn ON hn.oid = h.typnamespace WHERE h.oid = w.holder) AS holder
FROM walk w JOIN pg_catalog.pg_type d ON d.oid = w.type JOIN pg_catalog.pg_namespace dn ON dn.oid = d.typnamespace
JOIN pg_catalog.pg_type b ON b.oid = w.oid JOIN pg_catalog.pg_namespace bn ON bn.oid = b.typnamespace
WHERE w.oid <> w.type AND b.typtype NOT IN ('c', 'd') AND (b.oid < 10000 OR b.typcategory <> 'A') ORDER BY w.owner, w.name, w.place
"""

_KEYS = """
SELECT ARRAY(SELECT a.attname::text FROM unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) WITH ORDINALITY k (number, place)
             JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number ORDER BY k.place) AS columns,
       CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END AS is_identity
FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indrelid JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
WHERE i.indrelid = %s::oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
ORDER BY i.indisprimary DESC, x.relname COLLATE "C"
"""

# EXCLUDE, and temporal keys: all constraints whose index uses operators other than `=`.
_EXCLUSIONS = """
SELECT k.conname::text AS name, k.contype::text AS kind, pg_catalog.pg_get_constraintdef(k.oid) AS definition,
       coalesce(pg_catalog.pg_get_expr(i.indpred, i.indrelid), '') AS condition,
       (SELECT jsonb_agg(jsonb_build_object('column', coalesce(a.attname::text, ''), 'operator', format('%%I.%%s', n.nspname, o.oprname),
                                            'expression', CASE WHEN a.attnum IS NULL THEN pg_catalog.pg_get_indexdef(i.indexrelid, e.place::int4, true) ELSE '' END,
                                            'is_equality', o.oprname = '=') ORDER BY e.place)
        FROM unnest(k.conexclop) WITH ORDINALITY e (operator, place) JOIN pg_catalog.pg_operator o ON o.oid = e.operator
        JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace
        LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = i.indkey[e.place - 1] AND a.attnum > 0) AS terms
FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_index i ON i.indexrelid = k.conindid
WHERE k.conrelid = %s::oid AND k.conexclop IS NOT NULL ORDER BY 1
"""

_TAKES_ALL = frozenset({"UTF8", "SQL_ASCII"})  # accept every character of any encoding, or every byte


def table_shapes(connection: psycopg.Connection[Any], tables: Sequence[TableName]) -> tuple[TableShape, ...]:
    """Read the shapes of those tables that exist.

    Args:
        connection: with an empty search_path.
        tables: plain tables and roots of partitioned ones.
    """
    return tuple(shape for table in tables if (shape := _table_shape(connection, table)) is not None)


def _table_shape(connection: psycopg.Connection[Any], table: TableName) -> TableShape | None:
    with connection.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(_TABLE, (table.owner, table.name)).fetchone()
        if found is None:
            return None
        partitions = cursor.execute(_PARTITIONS, (found["oid"],)).fetchall()
        keys = cursor.execute(_KEYS, (found["oid"],)).fetchall()
        exclusions = cursor.execute(_EXCLUSIONS, (found["oid"],)).fetchall()
    rows = partition_rows(connection, [partition["oid"] for partition in partitions])
    return TableShape(
        owner=table.owner,
        name=table.name,
        partitioned_by=found["partitioned_by"],
        encoding=connection.info.parameter_status("server_encoding") or "",
        partitions=tuple(
            ShapedPartition(
                owner=each["owner"],
                name=each["name"],
                parent=TableName(each["parent_owner"], each["parent_name"]),
                bound=each["bound"],
                rows=rows.get(each["oid"], ""),
                partitioned_by=each["partitioned_by"],
            )
            for each in partitions
        ),
        enums=enum_labels(connection, table),
        keys=tuple(tuple(key["columns"]) for key in keys),
        identity=next((tuple(key["columns"]) for key in keys if key["is_identity"]), ()),
        exclusions=tuple(
            Exclusion(**{**each, "terms": tuple(ExclusionTerm(**term) for term in each["terms"])})
            for each in exclusions
        ),
    )


def standalone_tables(connection: psycopg.Connection[Any], tables: Collection[TableName]) -> frozenset[TableName]:
    """Return those names that are tables here, and not partitions.

    Args:
        connection: to the database.
        tables: the names.
    """
    rows = connection.execute(
        "SELECT n.nspname::text, c.relname::text FROM unnest(%s::text[], %s::text[]) AS wanted (owner, name) JOIN"
        " pg_catalog.pg_namespace n ON n.nspname = wanted.owner"
        " JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name AND c.relkind IN ('r', 'p')"
        " AND NOT c.relispartition",
        ([each.owner for each in tables], [each.name for each in tables]),
    )
    return frozenset(TableName(owner, name) for owner, name in rows)


def domain_shapes(connection: psycopg.Connection[Any], tables: Sequence[TableName]) -> tuple[TableShape, ...]:
    """Read the types below columns of types that are not built in, for tables that have such columns.

    No other part of their shapes is read.

    Args:
        connection: with an empty search_path.
        tables: plain tables and roots of partitioned ones.
    """
    found: dict[TableName, list[DomainColumn]] = {}
    with connection.cursor(row_factory=dict_row) as cursor:
        for row in cursor.execute(_DOMAINS, ([each.owner for each in tables], [each.name for each in tables])):
            column = DomainColumn(
                name=row["column"],
                part=row["part"],
                domain=type_text(row["domain_owner"], row["domain"]),
                base_type=type_text(row["base_owner"], row["base_type"]),
                modifier=row["modifier"],
                holder=type_text(*row["holder"]) if row["holder"] else "",
            )
            found.setdefault(TableName(row["owner"], row["name"]), []).append(column)
    return tuple(
        TableShape(owner=table.owner, name=table.name, domains=tuple(columns)) for table, columns in found.items()
    )


def shape_findings(
    path: str,
    wanted: TableShape,
    here: TableShape,
    columns: frozenset[str],
    taken: Collection[TableName] = (),
    *,
    earlier_labels: Mapping[str, str] | None = None,
) -> Iterator[Finding]:
    """Report what fails or scans later, though every column fits.

    Args:
        path: of the findings.
        wanted: the table at the source.
        here: the table at the destination.
        columns: names of the arriving columns.
        taken: names of tables here that are not partitions.
        earlier_labels: as for `DestinationDatabase.preflight_shapes`.
    """
    yield from _missing_partitions(path, wanted, here, taken)
    yield from label_findings(path, wanted.enums, here.enums, earlier_labels or {})
    yield from _other_keys(path, wanted, here, columns)
    yield from _other_exclusions(path, wanted, here, columns)


def encoding_findings(path: str, wanted: Sequence[TableShape], here: Sequence[TableShape]) -> Iterator[Finding]:
    """Report encodings that lack characters of the source's text.

    Args:
        path: of the finding.
        wanted: tables at one source.
        here: the tables at the destination.
    """
    theirs, mine = ({shape.encoding for shape in each} - {""} for each in (wanted, here))
    for encoding in sorted(mine - theirs - _TAKES_ALL if theirs else ()):
        yield Finding(
            path=path,
            is_error=False,
            problem=f"its encoding is {encoding}, the source's is {', '.join(sorted(theirs))}: a change with a"
            f" character that {encoding} does not have goes to the error queue, and a table with one cannot be copied",
            fix="nothing, if there is no such character; else move the destination to a UTF8 database",
        )
    for encoding, other in (
        (each, other)
        for each in sorted(mine)
        for other in sorted(theirs)
        if each != other and "SQL_ASCII" in {each, other}
    ):
        bytes_at, letters_at = ("here", "at the source") if encoding == "SQL_ASCII" else ("at the source", "here")
        yield Finding(
            path=path,
            is_error=False,
            problem=f"its encoding is {encoding}, the source's is {other}: text is taken for UTF-8, of which a letter"
            f" that is not ASCII has several bytes, and {bytes_at} each byte counts,"
            f" {letters_at} each letter. So a char(n) column with such letters has other blanks, and its table cannot"
            " be copied; a varchar(n) column here may take less, and the change goes to the"
            " error queue; and length() and the like say something else. A text of the SQL_ASCII database that is not"
            " UTF-8 cannot be read",
            fix="nothing, if such columns have ASCII alone; else give these columns the type text at both sides, or"
            " move the SQL_ASCII database to UTF8",
        )


def _missing_partitions(
    path: str, wanted: TableShape, here: TableShape, taken: Collection[TableName]
) -> Iterator[Finding]:
    if not here.partitioned_by or here.partitioned_by != wanted.partitioned_by:
        return  # one table takes all rows, or the bounds do not show which partition takes which rows
    held = {partition.rows for partition in here.partitions}
    with_default = {partition.parent for partition in here.partitions if partition.bound == _DEFAULT}
    for partition in wanted.partitions:
        if partition.parent in with_default or partition.rows in held:
            continue
        made = (
            f"CREATE TABLE {qualified(partition.owner, partition.name)} PARTITION OF"
            f" {qualified(*partition.parent)} {partition.bound}"
        )
        below = f" PARTITION BY {partition.partitioned_by}" if partition.partitioned_by else ""
        if TableName.of(partition) in taken:
            made, below = (
                f"ALTER TABLE {qualified(*partition.parent)} ATTACH PARTITION"
                f" {qualified(partition.owner, partition.name)} {partition.bound}",
                "",
            )
        yield Finding(
            path=path,
            is_error=False,
            problem=f"no partition here has the bounds of the source's {partition.owner}.{partition.name}"
            f" ({partition.bound}): rows of it that no other partition takes are refused",
            fix=f"{made}{below}; -- unless other partitions take these rows",
        )


def domain_findings(path: str, wanted: TableShape, here: TableShape) -> Iterator[Finding]:
    """Report types that would silently change the source's values.

    For built-in types the log says enough (`types.column_fits`).

    Args:
        path: of the findings.
        wanted: from `domain_shapes` of the source.
        here: from `domain_shapes` of the destination.
    """
    there = {(column.name, column.part): column for column in wanted.domains}
    for column in here.domains:
        source = there.get((column.name, column.part))
        if source is None or _takes(column, source):
            continue
        mine, theirs = (type_with_modifier(each.base_type, each.modifier) for each in (column, source))
        alter, domain = (
            f"ALTER TABLE {qualified(here.owner, here.name)} ALTER COLUMN {quote(column.name)} TYPE",
            type_with_modifier(column.domain, -1),
        )
        if column.part:
            yield Finding(
                path=path,
                fix=_made_anew(here, column),
                problem=f"{column.name} is of type {column.domain}, where {column.name}{column.part} is {mine}, and at"
                f" the source {theirs}, whose values it would round, cut or change",
            )
            continue
        yield Finding(
            path=path,
            problem=f"{column.name} is of the domain {column.domain} over {mine}, and at the source of {source.domain}"
            f" over {theirs}, whose values it would round or cut",
            fix=f"{alter} {theirs};\nDROP DOMAIN {domain};\nCREATE DOMAIN {domain} AS {theirs}; -- with the checks that"
            f" it has\n{alter} {domain};",
        )
    yield from _other_fields(path, wanted, here)


def _takes(here: DomainColumn, source: DomainColumn) -> bool:
    """Whether every value is accepted unchanged.

    The log describes a column's own type, but not the types inside it, whose values travel as text.
    """
    if here.base_type == source.base_type:
        return modifier_fits(here.base_type, source.modifier, here.modifier)
    (owner, _, _), (source_owner, _, name) = here.base_type.partition("."), source.base_type.partition(".")
    if not here.part or not owner == source_owner == "pg_catalog":
        return True
    return name in wider_types(here.base_type, here.modifier)


def _other_fields(path: str, wanted: TableShape, here: TableShape) -> Iterator[Finding]:
    """Report differing composite fields. Values carry no field names: fields with fitting types would get others' values."""
    renames: set[str] = set()  # a type shared by several columns is altered once
    for column in {each.name: each for each in here.domains if _is_field(each)}.values():
        mine, theirs = (
            list(dict.fromkeys(each.part for each in shape.domains if each.name == column.name))
            for shape in (here, wanted)
        )
        if mine == theirs or not any(map(_is_field_part, theirs)):
            continue
        missing, further = [part for part in theirs if part not in mine], [part for part in mine if part not in theirs]
        if not missing and not further:
            yield Finding(
                path=path,
                fix=_made_anew(here, column),
                problem=f"{column.name} is of type {column.domain}, whose fields are in another order than at the"
                f" source ({', '.join(theirs)}): they would get each other's values",
            )
            continue
        if (renamed := _renamed_fields(here, column, wanted)) in renames:
            continue
        renames |= {renamed} - {""}
        said = [
            f"{words} {', '.join(parts)}" for words, parts in (("lacks", missing), ("has besides", further)) if parts
        ]
        yield Finding(
            path=path,
            problem=f"{column.name} is of type {column.domain}, which {' and '.join(said)}: at the source it has"
            f" {', '.join(theirs)}, and values of other fields are refused, or taken for those of another field",
            fix=renamed or _altered_fields(here, column, wanted, missing, further),
        )


def _is_field(column: DomainColumn) -> bool:
    return _is_field_part(column.part)


def _is_field_part(part: str) -> bool:
    return "." in part


def _renamed_fields(here: TableShape, column: DomainColumn, wanted: TableShape) -> str:
    """Return statements for fields that look renamed: same type, in the position of one that has no counterpart.

    Empty: fields were added or removed, too.
    """
    mine, theirs = ({each.part: each for each in shape.domains if each.name == column.name} for shape in (here, wanted))
    if len(mine) != len(theirs):
        return ""
    statements = []
    for old, new in zip(mine.values(), theirs.values(), strict=True):
        if old.part == new.part:
            continue
        (below, _, name), (other_below, _, other_name) = old.part.rpartition("."), new.part.rpartition(".")
        is_alike = below == other_below and (old.base_type, old.modifier) == (new.base_type, new.modifier)
        # The inside of a field is not examined, nor are names that could contain a path's own characters.
        if (
            not is_alike
            or old.part in theirs
            or new.part in mine
            or not (_PLAIN_NAME.fullmatch(name) and _PLAIN_NAME.fullmatch(other_name))
        ):
            return ""
        owner, type_name = type_parts(old.holder)
        statements.append(
            f"ALTER TYPE {qualified(owner, type_name)} RENAME ATTRIBUTE {quote(name)} TO {quote(other_name)}; "
            + remark(
                f"unless {quote(other_name)} is a new field at the source: then DROP ATTRIBUTE and ADD ATTRIBUTE, and a"
                " copy of the table"
            )
        )
    return "\n".join(statements)


def _altered_fields(
    here: TableShape, column: DomainColumn, wanted: TableShape, missing: Sequence[str], further: Sequence[str]
) -> str:
    """Return statements that give a type the source's fields, if new ones are last there too; else how to recreate it."""
    theirs = [each for each in wanted.domains if each.name == column.name]
    is_simple = all(
        part.startswith(".") and part.count(".") == 1 and not part.endswith(("[]", "<>"))
        for part in (*missing, *further)
    )
    kept = [each.part for each in here.domains if each.name == column.name and each.part not in further]
    if not is_simple or [each.part for each in theirs] != [*kept, *missing]:
        return _made_anew(here, column)
    owner, name = type_parts(column.domain)
    actions = [f"DROP ATTRIBUTE {quote(part[1:])}" for part in further]
    actions += [
        f"ADD ATTRIBUTE {quote(each.part[1:])} {type_with_modifier(each.base_type, each.modifier)}"
        for each in theirs
        if each.part in missing
    ]
    return f"ALTER TYPE {qualified(owner, name)} {', '.join(actions)};"


def _made_anew(here: TableShape, column: DomainColumn) -> str:
    # Under its name, which the log uses. A type that columns use cannot be altered.
    name = quote(column.name)
    return (
        "ALTER TYPE ... RENAME TO ...; then make the type anew as it is at the source, under the name it had, and give"
        f" it to the column: ALTER TABLE {qualified(here.owner, here.name)} ALTER COLUMN {name} TYPE ... USING"
        f" {name}::text::...;"
    )


def _other_keys(path: str, wanted: TableShape, here: TableShape, columns: frozenset[str]) -> Iterator[Finding]:
    """Report keys that the source does not have, and the source's identity where no key here finds a row by it."""
    table = qualified(here.owner, here.name)
    temporal = {each.columns for each in here.exclusions if each.kind != "x"}  # `_other_exclusions` reports them
    for key in here.keys:
        if key in temporal:
            continue
        if columns.issuperset(key) and not any(set(other) <= set(key) for other in wanted.keys):
            names = ", ".join(map(quote, key))
            yield Finding(
                path=path,
                is_error=False,
                problem=f"the unique key ({', '.join(key)}) is none at the source: rows that are equal in it there are"
                " refused here",
                fix=f"drop it here; or at the source, if no two rows are equal in it: CREATE UNIQUE INDEX ON {table}"
                f" ({names});",
            )
    if wanted.identity and here.keys and not any(set(key) <= set(wanted.identity) for key in here.keys):
        names = ", ".join(map(quote, wanted.identity))
        yield Finding(
            path=path,
            is_error=False,
            problem=f"rows are found by the source's identity ({', '.join(wanted.identity)}), which is no unique key"
            " here: an UPDATE or DELETE may scan the table, and may find several rows",
            fix=f"CREATE UNIQUE INDEX ON {table} ({names}); -- or, where that key cannot be, an index that is not"
            " unique",
        )


def _other_exclusions(path: str, wanted: TableShape, here: TableShape, columns: frozenset[str]) -> Iterator[Finding]:
    """Report constraints in which rows collide here but not at the source."""
    table = qualified(here.owner, here.name)
    for each in here.exclusions:
        if not columns.issuperset(each.columns) or any(_is_as_strict(other, each) for other in wanted.exclusions):
            continue
        equal = {term.column for term in each.terms if term.is_equality}
        if any(set(key) <= equal for key in wanted.keys):
            continue  # no two rows of the source are equal in that key
        names = [quote(name) for name in each.columns]
        key = {"p": f", ADD PRIMARY KEY ({', '.join(names)})", "u": f", ADD UNIQUE ({', '.join(names)})"}
        # The source may be of a version without temporal keys, or have another primary key or a constraint of that
        # name.
        terms = ", ".join(f"{name} WITH {'&&' if name is names[-1] else '='}" for name in names)
        at_source = each.definition if each.kind == "x" else f"EXCLUDE USING gist ({terms})"
        yield Finding(
            path=path,
            is_error=False,
            problem=f"the constraint {each.name} ({each.definition}) is none at the source: rows that collide in it are"
            " refused here",
            fix=f"ALTER TABLE {table} DROP CONSTRAINT {quote(each.name)}{key.get(each.kind, '')}; "
            + remark(f"or at the source, if no two rows collide in it: ALTER TABLE {table} ADD {at_source};"),
        )


def _is_as_strict(source: Exclusion, here: Exclusion) -> bool:
    """Whether rows that collide in the source's constraint always collide in this one."""
    return set(source.terms) <= set(here.terms) and source.condition in {"", here.condition}
