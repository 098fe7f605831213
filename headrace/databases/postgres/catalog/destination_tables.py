"""A table that changes are applied to, as PostgreSQL's catalog describes it.

Besides the port's `DestinationTable` a session needs to know how a value of each column travels as an array element,
and which operator finds a row by its key: `CatalogTable` has both. `type_facts` covers types, `foreign_keys` the
catalog's foreign keys.

Longer than 500 lines: half of it is queries, which are read together with the code for their results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg.rows import dict_row

from headrace.databases.applied_tables import with_settings
from headrace.databases.ports import DestinationColumn, DestinationTable, Diversion
from headrace.databases.postgres.catalog.foreign_keys import CheckedKey, checked_keys, foreign_keys
from headrace.databases.postgres.catalog.type_facts import equality_of, is_hashable, is_number, is_ordered, wider_types
from headrace.databases.postgres.connection import quote, translated
from headrace.databases.postgres.values.builtin_types import BUILTIN_TYPES
from headrace.lcr.batch import Column, OldImage, TableVersion
from headrace.lcr.scn import ObjectNumber
from headrace.rules.table_settings import NO_TABLE_SETTINGS, TableSettings

__all__ = [
    "FIRST_USER_TYPE",
    "SAME_FORM",
    "TOMBSTONES",
    "CatalogColumn",
    "CatalogTable",
    "CheckedKey",  # a part of `CatalogTable`, re-exported
    "Conversion",
    "PrimaryKey",
    "ValueForm",
    "conversion_function",
    "describe_table",
    "is_reserved",
    "table_version",
]

FIRST_USER_TYPE = 16384
"""Types with lower numbers have the same number in every database."""

TOMBSTONES = "headrace_tombstones"
"""The trigger that `headrace.keep_tombstones` creates."""

# A hash of a table's name, of the column properties that ALTER TABLE changes, and of its own unique indexes, triggers
# and rules; `{oid}`: the table's. If another table has taken over the name, statements write to that one: operators who
# rebuild a table swap the two. If an index change went unnoticed, rows would be found and ordered by an outdated key;
# the columns of an index never change. A foreign key has triggers at both of its tables, which represent it here: no
# index finds the keys that refer to a table. Headrace's own trigger, which is for users' changes, is excluded.
_FORM = f"""(
SELECT pg_catalog.bit_xor(f.hash) FROM (
    SELECT pg_catalog.hash_record_extended(ROW(f.attnum, f.attname, f.atttypid, f.atttypmod, f.attidentity, f.attgenerated), 0)
    FROM pg_catalog.pg_attribute f WHERE f.attrelid = {{oid}} AND f.attnum > 0
    UNION ALL
    SELECT pg_catalog.hash_record_extended(ROW(f.indexrelid, f.indisvalid, f.indimmediate), 1)
    FROM pg_catalog.pg_index f WHERE f.indrelid = {{oid}} AND (f.indisunique OR f.indisexclusion)
    UNION ALL
    SELECT pg_catalog.hash_record_extended(ROW(f.oid, f.tgenabled), 2) FROM pg_catalog.pg_trigger f
    WHERE f.tgrelid = {{oid}} AND f.tgname OPERATOR(pg_catalog.<>) '{TOMBSTONES}'
    UNION ALL
    SELECT pg_catalog.hash_record_extended(ROW(f.oid, f.ev_enabled), 3) FROM pg_catalog.pg_rewrite f WHERE f.ev_class = {{oid}}
    UNION ALL
    SELECT pg_catalog.hash_record_extended(ROW(f.relname, s.nspname), 4)
    FROM pg_catalog.pg_class f JOIN pg_catalog.pg_namespace s ON s.oid = f.relnamespace WHERE f.oid = {{oid}}
) f(hash))"""

SAME_FORM = f"""SELECT 1 / ($2::int8 IS NOT DISTINCT FROM {_FORM.format(oid="$1::int8::oid")})::int4"""
"""Divides by zero unless a table has the form it was described with: $1 its OID, $2 `CatalogTable.form`.

For one table: the server keeps its plan. A plan for several tables would be made anew each time, which takes longer
than executing it.
"""

_TABLE = f"""
SELECT c.oid, c.relkind, n.nspname AS owner, c.relname AS name, c.relreplident, {_FORM.format(oid="c.oid")} AS form,
       EXISTS (SELECT FROM pg_catalog.pg_trigger g
               WHERE g.tgrelid IN (SELECT r.relid FROM pg_catalog.pg_partition_tree(c.oid) r UNION SELECT c.oid)
                 AND g.tgenabled IN ('A', 'R') AND NOT g.tgisinternal)
       OR EXISTS (SELECT FROM pg_catalog.pg_rewrite w WHERE w.ev_class = c.oid AND w.ev_enabled IN ('A', 'R'))
         AS fires,
       (SELECT pg_catalog.jsonb_agg(d) FROM (
            SELECT v.command, 'the rule ' || pg_catalog.quote_ident(w.rulename) AS what, w.ev_qual::text = '<>' AS is_always
            FROM pg_catalog.pg_rewrite w JOIN (VALUES ('2', 'UPDATE'), ('3', 'INSERT'), ('4', 'DELETE')) v(event, command) ON v.event = w.ev_type::text
            WHERE w.ev_class = c.oid AND w.is_instead AND w.ev_enabled IN ('A', 'R')
            UNION ALL
            SELECT v.command, 'the trigger ' || pg_catalog.quote_ident(g.tgname), false
            FROM pg_catalog.pg_trigger g JOIN (VALUES (16, 'UPDATE'), (4, 'INSERT'), (8, 'DELETE')) v(event, command) ON g.tgtype & v.event <> 0
            WHERE g.tgrelid IN (SELECT r.relid FROM pg_catalog.pg_partition_tree(c.oid) r UNION SELECT c.oid)
              AND g.tgtype & 3 = 3 AND g.tgenabled IN ('A', 'R') AND NOT g.tgisinternal  -- BEFORE, for each row
            ORDER BY 3 DESC, 2) d) AS diversions,
       (SELECT pg_catalog.jsonb_build_object(
                   'name', k.conname,
                   'columns', ARRAY(SELECT a.attname::text FROM pg_catalog.unnest(k.conkey) WITH ORDINALITY u(number, place)
                                    JOIN pg_catalog.pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = u.number ORDER BY u.place),
                   'referring', ARRAY(SELECT ARRAY[rn.nspname::text, r.relname::text, f.conname::text] FROM pg_catalog.pg_constraint f
                                      JOIN pg_catalog.pg_class r ON r.oid = f.conrelid JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
                                      WHERE f.contype = 'f' AND f.conindid = k.conindid AND f.conparentid = 0 ORDER BY 1))
        FROM pg_catalog.pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'p') AS primary_key,
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
             WHERE i.indrelid = c.oid AND i.indisreplident AND NOT i.indisprimary) AS identity_columns,
       ARRAY(SELECT DISTINCT a.attname::text FROM pg_catalog.pg_partitioned_table p
             JOIN pg_catalog.pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = ANY (p.partattrs)
             WHERE p.partrelid IN (SELECT r.relid FROM pg_catalog.pg_partition_tree(c.oid) r)) AS partitioned_by,
       (SELECT pg_catalog.jsonb_agg(DISTINCT pg_catalog.to_jsonb(ARRAY(
                   SELECT coalesce(a.attname::text, '') FROM pg_catalog.unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) WITH ORDINALITY k(number, place)
                   LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number ORDER BY k.place)))
        FROM pg_catalog.pg_index i
        WHERE i.indisvalid AND i.indrelid IN (SELECT r.relid FROM pg_catalog.pg_partition_tree(c.oid) r UNION SELECT c.oid)) AS indexes,
       EXISTS (SELECT FROM pg_catalog.pg_partitioned_table p
               WHERE p.partrelid IN (SELECT r.relid FROM pg_catalog.pg_partition_tree(c.oid) r) AND p.partstrat = 'h' AND p.partnatts > 1) AS is_hashed_together,
       CASE WHEN c.relispartition THEN (
           SELECT ARRAY[an.nspname::text, a.relname::text] FROM pg_catalog.pg_class a JOIN pg_catalog.pg_namespace an ON an.oid = a.relnamespace
           WHERE a.oid = pg_catalog.pg_partition_root(c.oid)) END AS above
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(owner)s AND c.relname = %(name)s AND c.relkind IN ('r', 'p')
"""

# A domain's base type is found through nested domains.
_COLUMNS = """
WITH RECURSIVE base(oid, base, depth, not_null, has_default, modifier) AS (
    SELECT t.oid, t.oid, 0, false, false, -1 FROM pg_catalog.pg_type t
    WHERE t.oid IN (SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = %(oid)s AND NOT a.attisdropped)
    UNION ALL
    SELECT b.oid, d.typbasetype, b.depth + 1, b.not_null OR d.typnotnull, b.has_default OR d.typdefault IS NOT NULL, d.typtypmod
    FROM base b JOIN pg_catalog.pg_type d ON d.oid = b.base AND d.typtype = 'd'
), bases AS (SELECT DISTINCT ON (oid) * FROM base ORDER BY oid, depth DESC)
SELECT a.attnum AS number, a.attname AS name, tn.nspname AS type_owner, t.typname AS type_name, t.oid AS type_number,
       a.atttypmod AS modifier, a.attnotnull OR b.not_null AS not_null, b.not_null AS is_not_null_domain,
       a.atthasdef OR a.attidentity <> '' OR b.has_default AS has_default,
       a.attgenerated::text AS generated, a.attidentity = 'a' AS is_identity_always,
       t.typarray AS array_number, bn.nspname AS base_owner, bt.typname AS base_name, bt.typtype AS base_kind,
       b.modifier AS base_modifier,
       coalesce(l.collisdeterministic, true) AS is_deterministic,
       l.oid IS NULL OR l.collprovider = 'b' OR l.collname IN ('C', 'POSIX', 'ucs_basic') OR (l.collprovider = 'd' AND (
           SELECT d.datlocprovider = 'b' OR (d.datlocprovider = 'c' AND d.datcollate IN ('C', 'POSIX'))
           FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())) AS has_one_order,
       CASE WHEN NOT l.collisdeterministic OR (t.typtype = 'd' AND a.attcollation <> t.typcollation) THEN
           format('%%I.%%I', ln.nspname, l.collname) ELSE '' END AS collation,
       (SELECT format('%%I.%%I(%%%%s%%s)', fn.nspname, f.proname, CASE f.pronargs WHEN 3 THEN format(', %%s, -1', bt.oid) END)
        FROM pg_catalog.pg_proc f JOIN pg_catalog.pg_namespace fn ON fn.oid = f.pronamespace
        WHERE f.oid = bt.typinput AND EXISTS (
            SELECT FROM pg_catalog.pg_cast k
            WHERE k.castsource = 'pg_catalog.text'::regtype AND k.casttarget = bt.oid AND k.castmethod = 'f')) AS input,
       e.equals, e.equals_number
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid JOIN pg_catalog.pg_namespace tn ON tn.oid = t.typnamespace
JOIN bases b ON b.oid = t.oid
JOIN pg_catalog.pg_type bt ON bt.oid = b.base JOIN pg_catalog.pg_namespace bn ON bn.oid = bt.typnamespace
LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation LEFT JOIN pg_catalog.pg_namespace ln ON ln.oid = l.collnamespace
LEFT JOIN LATERAL (
        SELECT format('OPERATOR(%%I.%%s)', on_.nspname, o.oprname), o.oid
        FROM pg_catalog.pg_opclass oc JOIN pg_catalog.pg_am m ON m.oid = oc.opcmethod AND m.amname = 'btree'
        JOIN pg_catalog.pg_type ot ON ot.oid = oc.opcintype
        JOIN pg_catalog.pg_amop ao ON ao.amopfamily = oc.opcfamily AND ao.amopstrategy = 3
         AND ao.amoplefttype = oc.opcintype AND ao.amoprighttype = oc.opcintype
        JOIN pg_catalog.pg_operator o ON o.oid = ao.amopopr JOIN pg_catalog.pg_namespace on_ ON on_.oid = o.oprnamespace
        WHERE oc.opcdefault AND (
            oc.opcintype = bt.oid OR (bt.typtype = 'e' AND oc.opcintype = 'pg_catalog.anyenum'::regtype)
            OR EXISTS (SELECT FROM pg_catalog.pg_cast k WHERE k.castsource = bt.oid AND k.casttarget = oc.opcintype AND k.castmethod = 'b'
                       AND k.castcontext = 'i'))
        ORDER BY oc.opcintype = bt.oid DESC, ot.typispreferred DESC, oc.oid LIMIT 1
) e(equals, equals_number) ON true
WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""

_NAME_BYTES_MAX = 63  # PostgreSQL's usual limit for identifiers
_NAME_HASH_BYTES = 6  # enough to distinguish the columns of one database

# An operator's conversions of other types' values: functions named like the column.
_FUNCTIONS = """
SELECT c.name, format('%%I.%%I', tn.nspname, t.typname) AS type_name, format('%%s.%%s', tn.nspname, t.typname) AS source_type,
       t.oid AS type_number, t.typarray AS array_number, quote_ident(f.proname) AS function
FROM unnest(%(columns)s::text[], %(functions)s::text[]) AS c(name, function)
JOIN pg_catalog.pg_proc f ON f.proname = c.function::name AND f.pronargs = 1 AND f.prokind = 'f' AND NOT f.proretset
JOIN pg_catalog.pg_namespace n ON n.oid = f.pronamespace AND n.nspname = 'headrace'
JOIN pg_catalog.pg_type t ON t.oid = f.proargtypes[0] JOIN pg_catalog.pg_namespace tn ON tn.oid = t.typnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = %(oid)s AND a.attname = c.name AND a.atttypid = f.prorettype
"""

# Unique and exclusion indexes: of the table itself, and those that only a partition has. A temporal key (WITHOUT
# OVERLAPS) is both. Its index is GiST, where an operator class chooses the number of `=`; it always has one, because
# the server refuses the key otherwise.
_INDEXES = """
SELECT i.indrelid <> %(oid)s AS of_partition, i.indisexclusion OR m.amname <> 'btree' AS excludes,
       i.indisunique AND i.indisexclusion AS is_temporal,
       i.indpred IS NOT NULL AS is_partial, i.indimmediate, i.indnullsnotdistinct, i.indisvalid AS is_valid, x.relname AS name,
       (i.indkey::int2[])[0:i.indnkeyatts - 1] AS columns,
       equality.operators, equality.operator_numbers,
       EXISTS (SELECT FROM unnest((i.indkey::int2[])[0:i.indnkeyatts - 1], (i.indcollation::oid[])[0:i.indnkeyatts - 1]) c(number, oid)
               LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = c.number
               JOIN pg_catalog.pg_collation l ON l.oid IN (c.oid, a.attcollation) AND NOT l.collisdeterministic) AS is_nondeterministic,
       NOT EXISTS (SELECT FROM unnest((i.indkey::int2[])[0:i.indnkeyatts - 1], (i.indcollation::oid[])[0:i.indnkeyatts - 1]) c(number, oid)
                   JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = c.number
                   WHERE a.attcollation <> c.oid) AS has_columns_collations
FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid JOIN pg_catalog.pg_am m ON m.oid = x.relam
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(format('OPERATOR(%%I.%%s)', on_.nspname, o.oprname) ORDER BY k.place), '{}'), coalesce(array_agg(o.oid ORDER BY k.place), '{}')
    FROM unnest((i.indclass::oid[])[0:i.indnkeyatts - 1]) WITH ORDINALITY k(opclass, place)
    JOIN pg_catalog.pg_opclass oc ON oc.oid = k.opclass
    JOIN pg_catalog.pg_amop ao ON ao.amopfamily = oc.opcfamily
     AND ao.amoplefttype = oc.opcintype AND ao.amoprighttype = oc.opcintype
    JOIN pg_catalog.pg_operator o ON o.oid = ao.amopopr AND CASE WHEN i.indisexclusion THEN o.oprname = '=' ELSE ao.amopstrategy = 3 END
    JOIN pg_catalog.pg_namespace on_ ON on_.oid = o.oprnamespace
) equality(operators, operator_numbers)
WHERE (i.indisunique OR i.indisexclusion) AND i.indislive AND i.indisready
  AND (i.indrelid = %(oid)s
       OR (i.indrelid IN (SELECT r.relid FROM pg_catalog.pg_partition_tree(%(oid)s) r)
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE h.inhrelid = i.indexrelid)))
ORDER BY i.indisprimary DESC, i.indnkeyatts, x.relname
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueForm:
    """How values of a type travel in a parameter.

    Args:
        type_name: quoted and qualified.
        array_type: type of a parameter that holds many values, quoted; empty: the type has no array type (it is itself
            an array), so values must travel in a composite.
        type_number: the type's OID.
        input: call of the base type's input function with `%s` for a cstring, where a cast from text would differ (text
            to regclass refuses numbers); empty: a cast does the same.
    """

    type_name: str
    array_type: str
    type_number: int
    input: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """A conversion of another type's values into the column's type.

    Args:
        source_type: the other type, `owner.name`.
        form: how its values travel.
        function: an operator's function, quoted and qualified; empty: a cast that keeps the value and its text.
    """

    source_type: str
    form: ValueForm
    function: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogColumn:
    """How one column is written.

    Args:
        name: quoted.
        form: of its type.
        base_type: for a domain, the base type `owner.name`; else the type's own.
        base_modifier: for a domain, the modifier of its base type, as `type_modifier`; -1: none.
        equals: the key index's equality operator for the column; empty when no key that finds rows contains it.
        unique_equals: likewise for any unique key's index, including one that finds no rows.
        is_hashable: `hash_record_extended` can hash it, and gives the same result for its values in a statement.
        conversions: accepted other types.
        collation: quoted, with its schema, if values of the column's type do not have it by default: a nondeterministic
            collation, or one other than the domain's; else empty.
        generated: `pg_attribute.attgenerated`: s (stored) or v (virtual); empty: not generated.
        is_not_null_domain: its type is a domain that refuses NULL.
    """

    name: str
    form: ValueForm
    base_type: str
    equals: str
    unique_equals: str
    is_hashable: bool
    conversions: tuple[Conversion, ...] = ()
    collation: str = ""
    base_modifier: int = -1
    generated: str = ""
    is_not_null_domain: bool = False

    def collated(self, value: str) -> str:
        """Return SQL for a value in the column's collation: the server rejects two different implicit collations.

        Args:
            value: as SQL, of the column's type.
        """
        return f"{value} COLLATE {self.collation}" if self.collation else value


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimaryKey:
    """A table's primary key, as far as messages and statements need it.

    Args:
        name: of the constraint.
        columns: their names, in the key's order.
        referring: (schema, table, constraint) of each foreign key that refers to it.
    """

    name: str
    columns: tuple[str, ...]
    referring: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTable:
    """A table's description with what a session needs to write to it.

    Args:
        table: the port's description.
        columns: parallel to `table.columns`.
        oid: of the table.
        relation: its name in statements: quoted, with ONLY when it is not partitioned.
        is_partitioned: rows are stored in partitions.
        positions: column name -> position in `table.columns`.
        replica_identity: `pg_class.relreplident`.
        form: hash of its name and columns (`SAME_FORM`). It is read first: the description may be newer, never older.
        comparable: names of the columns whose type has an equality that an index can use.
        foreign_keys: from and to the table, if the apply process checks any.
        looked_up: keys that find rows through an index the server can use for `=`: complete, and in the column's
            collation. Empty for a table that is partitioned by the hash of several columns together: there the server
            finds the partition only if all of these are compared with `=`.
        indexes: all of its own and its partitions', of any kind, as positions of the columns; -1: an expression.
        primary_key: None: it has none.
        identity_columns: column names of the index that is its replica identity, if that is not the primary key.
        partitioned_by: names of the partition key's columns.
    """

    table: DestinationTable
    columns: tuple[CatalogColumn, ...]
    oid: int
    relation: str
    is_partitioned: bool
    positions: dict[str, int] = field(compare=False)
    replica_identity: str = "d"
    form: int = 0
    comparable: frozenset[str] = frozenset()
    foreign_keys: tuple[CheckedKey, ...] = ()
    looked_up: tuple[tuple[int, ...], ...] = ()
    indexes: frozenset[tuple[int, ...]] = frozenset()
    primary_key: PrimaryKey | None = None
    identity_columns: frozenset[str] = frozenset()
    partitioned_by: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    columns: tuple[int, ...]
    operators: tuple[str, ...]


def is_reserved(owner: str) -> bool:
    """Whether a schema is the server's or Headrace's own.

    An LCR that names one of its tables is not a change of a user's table, whoever sends it.
    """
    return owner in {"headrace", "information_schema"} or owner.startswith("pg_")


def describe_table(
    connection: psycopg.Connection[Any],
    owner: str,
    name: str,
    settings: TableSettings = NO_TABLE_SETTINGS,
) -> CatalogTable | None:
    """Read a table's description.

    None when no such table exists (views and foreign tables do not count), or when no changes may be applied to it
    (`is_reserved`).

    Args:
        connection: inside a transaction or not.
        owner: schema.
        name: table.
        settings: of the calling apply process: a substitute key takes precedence.

    Raises:
        DatabaseUnavailable: the catalog cannot be read at the moment.
    """
    if is_reserved(owner):
        return None
    with translated("reading the catalog", table=f"{owner}.{name}"), connection.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(_TABLE, {"owner": owner, "name": name}).fetchone()
        if found is None:
            return None
        columns = cursor.execute(_COLUMNS, {"oid": found["oid"]}).fetchall()
        indexes = cursor.execute(_INDEXES, {"oid": found["oid"]}).fetchall()
        names = [column["name"] for column in columns]
        functions = [conversion_function(owner, name, column) for column in names]
        given = cursor.execute(_FUNCTIONS, {"oid": found["oid"], "columns": names, "functions": functions}).fetchall()
        references, referred = foreign_keys(cursor, found["oid"])
        checked = checked_keys(cursor, found["oid"]) if settings.check_foreign_keys else ()
    catalog = _catalog_table(found, columns, indexes, given, settings)
    return replace(
        catalog,
        foreign_keys=checked,
        table=replace(catalog.table, references=references, referred=referred),
    )


def conversion_function(owner: str, table: str, column: str) -> str:
    """Return the name of the functions in the schema headrace that convert values for a column; not quoted.

    PostgreSQL would truncate a longer name, and columns of one table would share it. So such a name ends with a hash of
    the whole.

    Args:
        owner: schema of the destination's table.
        table: its name.
        column: the column whose values the functions return.
    """
    name = f"{owner}.{table}.{column}"
    encoded = name.encode()
    if len(encoded) <= _NAME_BYTES_MAX:
        return name
    digest = hashlib.blake2b(encoded, digest_size=_NAME_HASH_BYTES).hexdigest()
    return f"{encoded[: _NAME_BYTES_MAX - len(digest) - 1].decode(errors='ignore')}.{digest}"


def table_version(catalog: CatalogTable, *, is_binary: bool, logged: Collection[str] = ()) -> TableVersion:
    """Describe a table of the catalog as a source's log would, with `version` 0.

    A domain has the name of its base type.

    Args:
        catalog: from `describe_table`; also of a source's table.
        is_binary: the form of values in the log stream.
        logged: the kinds of generated columns (`CatalogColumn.generated`) that are in the log.
    """
    old_image = {"n": OldImage.NONE, "f": OldImage.FULL}.get(catalog.replica_identity, OldImage.KEY)
    return TableVersion(
        object_number=ObjectNumber(catalog.oid),
        version=0,
        owner=catalog.table.owner,
        name=catalog.table.name,
        old_image=old_image,
        columns=tuple(
            Column(
                name=column.name,
                type_name=catalog.columns[position].base_type,
                type_number=column.type_number,
                type_modifier=column.type_modifier,
                is_key=position in catalog.table.key,
                is_binary=is_binary,
                is_computed=column.is_generated,
            )
            for position, column in enumerate(catalog.table.columns)
            if not column.is_generated or catalog.columns[position].generated in logged
        ),
    )


def _catalog_table(
    found: dict[str, Any],
    columns: list[dict[str, Any]],
    indexes: list[dict[str, Any]],
    functions: list[dict[str, Any]],
    settings: TableSettings,
) -> CatalogTable:
    position_of = {column["number"]: position for position, column in enumerate(columns)}
    given = [[function for function in functions if function["name"] == column["name"]] for column in columns]
    port_columns = tuple(_port_column(column, own) for column, own in zip(columns, given, strict=True))
    unique, hidden = _unique_keys(indexes, position_of, columns)
    identifying = _identifying(unique, port_columns)
    key = identifying[0] if identifying else None
    in_keys = {position for index in unique for position in index.columns}
    unhashable = any(port_columns[position].equality == "none" for position in in_keys)
    operators, unique_operators = (
        {
            column: found
            for index in reversed(indexes)
            for column, found in zip(index.columns, index.operators, strict=True)
        }
        for indexes in (identifying, unique)
    )
    is_hidden = hidden or unhashable
    substitute = settings.key_of(found["owner"], found["name"])
    for position, column in enumerate(columns):
        if column["name"] in substitute and position not in operators and column["equals"]:
            operators[position] = column["equals"]
    places = {column["name"]: position for position, column in enumerate(columns)}
    is_partitioned = found["relkind"] == "p"
    relation = f"{quote(found['owner'])}.{quote(found['name'])}"
    return CatalogTable(
        oid=found["oid"],
        is_partitioned=is_partitioned,
        relation=relation if is_partitioned else f"ONLY {relation}",
        replica_identity=found["relreplident"],
        form=int(found["form"] or 0),
        positions={column.name: position for position, column in enumerate(port_columns)},
        columns=tuple(
            _catalog_column(column, operators.get(p, ""), unique_operators.get(p, ""), own)
            for p, (column, own) in enumerate(zip(columns, given, strict=True))
        ),
        table=with_settings(
            DestinationTable(
                owner=found["owner"],
                name=found["name"],
                columns=port_columns,
                key=key.columns if key else (),
                unique_keys=tuple(index.columns for index in unique),
                serialise=key is None or is_hidden,
                ordered=len(unique) > 1 or hidden or found["fires"],
                fires=found["fires"],
                number=int(found["oid"]),
                above=tuple(found["above"] or ()),
                diversions=tuple(Diversion(**each) for each in found["diversions"] or ()),
            ),
            settings,
            is_hidden=is_hidden,
        ),
        comparable=frozenset(column["name"] for column in columns if column["equals"]),
        looked_up=() if found["is_hashed_together"] else _looked_up(identifying, indexes, position_of),
        indexes=frozenset(tuple(places.get(name, -1) for name in index) for index in found["indexes"] or ()),
        primary_key=_primary_key(found["primary_key"]),
        identity_columns=frozenset(found["identity_columns"]),
        partitioned_by=frozenset(found["partitioned_by"]),
    )


def _primary_key(found: dict[str, Any] | None) -> PrimaryKey | None:
    if found is None:
        return None
    referring = tuple((owner, table, constraint) for owner, table, constraint in found["referring"])
    return PrimaryKey(name=found["name"], columns=tuple(found["columns"]), referring=referring)


def _port_column(column: dict[str, Any], functions: list[dict[str, Any]]) -> DestinationColumn:
    base = f"{column['base_owner']}.{column['base_name']}"
    return DestinationColumn(
        name=column["name"],
        number=column["number"],
        type_name=f"{column['type_owner']}.{column['type_name']}",
        type_number=column["type_number"],
        type_modifier=column["modifier"],
        not_null=column["not_null"],
        has_default=column["has_default"],
        is_generated=column["generated"] != "",
        is_identity_always=column["is_identity_always"],
        is_ordered=is_ordered(base, is_enum=column["base_kind"] == "e"),
        has_one_order=column["has_one_order"],
        is_number=is_number(base),
        base_type=base if base != f"{column['type_owner']}.{column['type_name']}" else "",
        equality=equality_of(
            base,
            is_enum=column["base_kind"] == "e",
            is_deterministic=column["is_deterministic"],
        ),
        converted=tuple(function["source_type"] for function in functions),
    )


def _catalog_column(
    column: dict[str, Any], equals: str, unique_equals: str, functions: list[dict[str, Any]]
) -> CatalogColumn:
    type_name = f"{quote(column['type_owner'])}.{quote(column['type_name'])}"
    base = f"{column['base_owner']}.{column['base_name']}"
    converted = [
        Conversion(
            source_type=function["source_type"],
            function=f"headrace.{function['function']}",
            form=ValueForm(
                type_name=function["type_name"],
                type_number=function["type_number"],
                array_type=f"{function['type_name']}[]" if function["array_number"] else "",
            ),
        )
        for function in functions
    ]
    is_domain = (column["base_owner"], column["base_name"]) != (column["type_owner"], column["type_name"])
    wider = wider_types(base, column["modifier"], is_domain=is_domain)
    return CatalogColumn(
        name=quote(column["name"]),
        base_type=base,
        base_modifier=column["base_modifier"],
        equals=equals,
        unique_equals=unique_equals,
        form=ValueForm(
            type_name=type_name,
            array_type=f"{type_name}[]" if column["array_number"] else "",
            type_number=column["type_number"],
            input=column["input"] or "",
        ),
        # A hash depends on the collation, and values in a statement have another one than a nondeterministic column.
        is_hashable=column["is_deterministic"] and is_hashable(base, is_enum=column["base_kind"] == "e"),
        conversions=(*converted, *(_widening(name) for name in wider)),
        collation=column["collation"] or "",
        generated=column["generated"],
        is_not_null_domain=column["is_not_null_domain"],
    )


def _widening(name: str) -> Conversion:
    number = next(number for number, found in BUILTIN_TYPES.items() if found[0] == name)
    return Conversion(
        source_type=f"pg_catalog.{name}",
        form=ValueForm(type_name=f"pg_catalog.{name}", array_type=f"pg_catalog.{name}[]", type_number=number),
    )


def _unique_keys(
    indexes: list[dict[str, Any]], position_of: dict[int, int], of_table: list[dict[str, Any]]
) -> tuple[list[_Index], bool]:
    """Return the plain unique keys, and whether the table has uniqueness that values alone do not show."""
    unique: dict[tuple[int, ...], _Index] = {}
    hidden = False
    complete = {tuple(index["columns"]) for index in indexes if index["is_valid"]}
    for index in indexes:
        numbers = index["columns"]
        if not index["is_valid"]:
            # An incomplete index: older rows may contain duplicates. One of a partitioned table, created ON ONLY it,
            # says nothing about rows until every partition has one. New rows can still violate it. (A rebuilt index
            # exists alongside the one it replaces.)
            hidden = hidden or tuple(numbers) not in complete
            continue
        if index["excludes"]:
            # Rows with different values collide in it. Rows are never equal in a temporal key, for which the server
            # refuses empty ranges: it finds a row like any other key.
            hidden = True
        if (
            (index["excludes"] and not _is_equality(index))
            or index["is_partial"]
            or index["of_partition"]
            or index["indnullsnotdistinct"]
            or not index["indimmediate"]
            or 0 in numbers
        ):
            hidden = True
            continue
        if index["is_nondeterministic"]:
            # Different values count as equal: only the database knows which. Its `=` finds rows, by the column's
            # collation: an index in another collation may find several.
            hidden = True
            if not index["has_columns_collations"]:
                continue
        columns = tuple(position_of[number] for number in numbers)
        usual = [of_table[position]["equals_number"] for position in columns]
        # A non-default operator class, such as bpchar_ops for text, may treat values as equal that usually differ.
        hidden = hidden or any(
            own != other for own, other in zip(index["operator_numbers"], usual, strict=True) if other is not None
        )
        unique.setdefault(columns, _Index(columns=columns, operators=tuple(index["operators"])))
    return list(unique.values()), hidden


def _is_equality(index: dict[str, Any]) -> bool:
    """Whether rows in an exclusion index are never equal in its columns, so that `=` on them finds one row."""
    return index["is_temporal"] and len(index["operators"]) == len(index["columns"])


def _looked_up(
    identifying: list[_Index], indexes: list[dict[str, Any]], position_of: dict[int, int]
) -> tuple[tuple[int, ...], ...]:
    """Return the keys for `CatalogTable.looked_up`."""
    usable = {
        tuple(position_of.get(number, -1) for number in index["columns"])
        for index in indexes
        if index["is_valid"]
        and index["has_columns_collations"]
        and not index["is_partial"]
        and not index["of_partition"]
    }
    return tuple(index.columns for index in identifying if index.columns in usable)


def _identifying(unique: list[_Index], columns: tuple[DestinationColumn, ...]) -> list[_Index]:
    """Return the keys that find rows, best first; the catalog query has the primary key first, then the smallest.

    Source: Oracle Streams Replication Administrator's Guide, "Substitute Key Columns": the smallest unique index with
    at least
        one NOT NULL column. One without any NULL comes first here, since it identifies every row.
    """
    whole = [index for index in unique if all(columns[position].not_null for position in index.columns)]
    partly = [
        index
        for index in unique
        if index not in whole and any(columns[position].not_null for position in index.columns)
    ]
    return [*whole, *partly]
