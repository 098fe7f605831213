"""The one query that describes a table's structure, at a source and at a destination.

A source records its results before and after each change, and a destination compares them with its own: both must print
the same definition alike. So it is one text, and it prints under the same settings (`PRINTED_WITH`). A session that
Headrace opened has them; a function at a source brings them along.

Not part of the structure: replica identity, storage, compression, statistics, storage parameters of tables, tablespace,
access method, rights, row security, triggers, comments, names of NOT NULL constraints.
"""

from __future__ import annotations

from typing import Any

import psycopg

from headrace.lcr.ddl_record import CastRules
from headrace.lcr.structure import Structure, structure_from_json
from headrace.lcr.table_name import TableName

__all__ = [
    "KEPT_VALUE",
    "OWN_CASTS",
    "PRINTED_WITH",
    "STRUCTURE",
    "read_cast_rules",
    "read_kept_values",
    "read_structure",
    "structure_query",
]

PRINTED_WITH = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "xmloption": "content",
    "standard_conforming_strings": "on",
    "quote_all_identifiers": "off",
    "search_path": "pg_catalog, pg_temp",
}
"""Settings that definitions are printed with; sessions have the same ones, and an empty search_path, which prints names
alike (`headrace.databases.postgres.connection`)."""

KEPT_VALUE = "pg_catalog.array_to_string(a.attmissingval, '')"
"""The value of a column `a` of `pg_attribute` in rows that are older than the column, printed. NULL: NULL, or the table
was written anew since.

The server keeps it as the only element of an array. An array's own text would depend on the type: boxes have another
delimiter.
"""

OWN_CASTS = """EXISTS (SELECT FROM pg_catalog.pg_cast k WHERE k.oid >= 16384 AND k.castsource < 10000 AND k.casttarget < 10000)"""
"""Whether a CREATE CAST of users is between types of PostgreSQL, so that these convert in another way than elsewhere."""

# Volatile functions that a default may call: they give a value, and do nothing else to the database.
_GIVING = "'nextval', 'random', 'random_normal', 'gen_random_uuid', 'uuidv4', 'uuidv7', 'clock_timestamp', 'timeofday'"

# A function that may do anything, even run a text as SQL, would do so with the rights of whoever writes a row. Built-in
# functions are in no pg_depend, so those are found in the expression itself: the volatile ones can do that, and
# table_to_xml and its like, which read any view. An index takes none of these. A cast to a domain calls what its checks
# call, and these may be others at the destination; so may the parts of composite and range types.
_DEPENDS_ON_FUNCTION = """EXISTS (SELECT FROM pg_catalog.pg_depend p
       WHERE (p.classid, p.objid) IN ({objects})
         AND (p.refclassid IN ('pg_catalog.pg_proc'::pg_catalog.regclass, 'pg_catalog.pg_operator'::pg_catalog.regclass)
           OR ({casts} AND p.refclassid = 'pg_catalog.pg_type'::pg_catalog.regclass AND EXISTS (SELECT FROM pg_catalog.pg_type w
             LEFT JOIN pg_catalog.pg_type v ON v.oid = w.typelem AND w.typcategory = 'A'
             WHERE w.oid = p.refobjid AND coalesce(v.typtype, w.typtype) IN ('d', 'c', 'r', 'm')))))"""
_CALLS_VOLATILE = r"""EXISTS (SELECT FROM pg_catalog.regexp_matches({expression}::pg_catalog.text, ':funcid (\d+)', 'g') AS called (number)
       JOIN pg_catalog.pg_proc f ON f.oid = called.number[1]::pg_catalog.oid
       WHERE (f.provolatile = 'v' OR f.proname ~ '_to_xml') AND f.proname NOT IN ({giving}))"""


def _depends(*objects: tuple[str, str], casts: str = "true") -> str:
    """Return the condition that one of these objects uses functions or operators of users or extensions.

    Args:
        objects: catalog and number of each.
        casts: condition under which casts count, too.
    """
    listed = ", ".join(f"('pg_catalog.{catalog}'::pg_catalog.regclass, {number})" for catalog, number in objects)
    return _DEPENDS_ON_FUNCTION.format(objects=listed, casts=casts)


def _volatile(expression: str, giving: str = "''") -> str:
    """Return the condition that an expression calls a volatile function.

    Args:
        expression: column of type pg_node_tree.
        giving: names of those that are allowed.
    """
    return _CALLS_VOLATILE.format(expression=expression, giving=giving)


_COLUMNS = f"""SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('number', a.attnum, 'name', a.attname::pg_catalog.text,
      'type', pg_catalog.format_type(a.atttypid, a.atttypmod),
      'collation', CASE WHEN a.attcollation <> t.typcollation THEN a.attcollation::pg_catalog.regcollation::pg_catalog.text END,
      'not_null', a.attnotnull,
      'not_valid', EXISTS (SELECT FROM pg_catalog.pg_constraint k
         WHERE k.conrelid = c.oid AND k.contype = 'n' AND NOT k.convalidated AND k.conkey = ARRAY[a.attnum]),
      'default', pg_catalog.pg_get_expr(d.adbin, d.adrelid),
      'identity', a.attidentity::pg_catalog.text, 'generated', a.attgenerated::pg_catalog.text,
      'calls', {_depends(("pg_attrdef", "d.oid"), casts="a.attgenerated <> ''")}
        OR {_volatile("d.adbin", _GIVING)}) ORDER BY a.attnum)
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"""

# The functions of an exclusion constraint's expressions are listed with its index.
_CONSTRAINTS = f"""SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('number', k.oid::pg_catalog.int8, 'name', k.conname::pg_catalog.text,
      'type', k.contype::pg_catalog.text, 'definition', pg_catalog.pg_get_constraintdef(k.oid),
      'calls', {_depends(("pg_constraint", "k.oid"), ("pg_class", "k.conindid"))}
        OR {_volatile("k.conbin")}) ORDER BY k.conname)
    FROM pg_catalog.pg_constraint k WHERE k.conrelid = c.oid AND k.contype IN ('c', 'p', 'u', 'x', 'f')"""

# A foreign key, too, names an index: that of the rows it refers to.
_INDEXES = f"""SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('number', i.indexrelid::pg_catalog.int8, 'name', x.relname::pg_catalog.text,
      'definition', pg_catalog.pg_get_indexdef(i.indexrelid),
      'calls', {_depends(("pg_class", "i.indexrelid"))}) ORDER BY x.relname)
    FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
    WHERE i.indrelid = c.oid AND i.indisvalid AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint k
      WHERE k.conindid = i.indexrelid AND k.conrelid = c.oid AND k.contype IN ('p', 'u', 'x'))"""

_STRUCTURE = f"""SELECT pg_catalog.jsonb_build_object(
  'owner', n.nspname::pg_catalog.text, 'name', c.relname::pg_catalog.text, 'kind', c.relkind::pg_catalog.text,
  'persistence', c.relpersistence::pg_catalog.text, 'role', pg_catalog.pg_get_userbyid(c.relowner)::pg_catalog.text,
  'is_partition', c.relispartition,
  'parents', (SELECT pg_catalog.count(*) FROM pg_catalog.pg_inherits h WHERE h.inhrelid = c.oid),
  'children', (SELECT pg_catalog.count(*) FROM pg_catalog.pg_inherits h WHERE h.inhparent = c.oid),
  'columns', coalesce(({_COLUMNS}), '[]'),
  'constraints', coalesce(({_CONSTRAINTS}), '[]'),
  'indexes', coalesce(({_INDEXES}), '[]'))
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = @relation@ AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND n.nspname !~ '^pg_'
  AND n.nspname NOT IN ('information_schema', 'headrace', 'headrace_ddl')"""


def structure_query(relation: str) -> str:
    """Return the query that describes a table: one row of type jsonb, or none.

    It has no `%`, and no `$` but those of `relation`.

    Args:
        relation: SQL of type oid for the table's number: a parameter, or an expression.
    """
    return _STRUCTURE.replace("@relation@", relation)


STRUCTURE = structure_query("$1")
"""The query with one parameter: body of a function of SQL, or a prepared statement."""

_NUMBER = """(SELECT named.oid FROM pg_catalog.pg_class named JOIN pg_catalog.pg_namespace s ON s.oid = named.relnamespace
  WHERE s.nspname = %s AND named.relname = %s)"""
_NAMED = structure_query(_NUMBER).encode()
_KEPT = f"""SELECT a.attname::pg_catalog.text, {KEPT_VALUE} FROM pg_catalog.pg_attribute a
WHERE a.attrelid = {_NUMBER} AND a.attnum > 0 AND NOT a.attisdropped AND a.atthasmissing""".encode()

_CAST_RULES = f"SELECT pg_catalog.getdatabaseencoding()::pg_catalog.text, {OWN_CASTS}".encode()


def read_structure(connection: psycopg.Connection[Any], table: TableName) -> Structure | None:
    """Describe a table of this database as the transaction sees it.

    Args:
        connection: opened by `headrace.databases.postgres.connection`, for its settings.
        table: its name here.

    Returns:
        The structure; None: there is no such table.
    """
    row = connection.execute(_NAMED, table).fetchone()
    return None if row is None else structure_from_json(row[0])


def read_cast_rules(connection: psycopg.Connection[Any]) -> CastRules:
    """Return what decides how this database converts values of built-in types.

    Args:
        connection: as for `read_structure`.
    """
    row = connection.execute(_CAST_RULES).fetchone()
    assert row is not None
    return CastRules(encoding=row[0], has_own=row[1])


def read_kept_values(connection: psycopg.Connection[Any], table: TableName) -> dict[str, str | None]:
    """Return for each column that older rows lack its value in these, printed.

    Args:
        connection: as for `read_structure`.
        table: its name here.
    """
    return dict(connection.execute(_KEPT, table).fetchall())
