"""Reads the marks of captured tables (`headrace.databases.ports.row_marks`) from PostgreSQL's catalog.

Evidence that rows were rewritten, and by what

    a new file        ALTER TABLE with a rewrite; but also VACUUM FULL, CLUSTER, TRUNCATE, another tablespace.
    a new stamp of    The stamp of a column without a default is the transaction that wrote its row of `pg_attribute`;
    a column          with a default, the number of its default. ALTER COLUMN TYPE changes either; so do SET NOT NULL,
                      SET STATISTICS, SET DEFAULT.

Only both together show that values were recomputed (USING, an expression of a generated column, a default of a new
column that is not the same for all rows). ALTER TABLE does that to a partitioned table and to all its partitions at
once, so stamps of the table alone are enough. Only the expression of a generated column can be altered in one
partition, or in the table without its partitions: for these columns each partition has its own stamps.

ALTER TABLE gives rewritten rows another table for large values (TOAST), which VACUUM FULL, CLUSTER and TRUNCATE keep:
if a table has one, it distinguishes the two cases. A rewrite also makes the server drop the stored value that older
rows have in a column added with a default. It also updates the `pg_attribute` row of each such column in a table that
stores rows itself. The stamp then proves nothing, and without a TOAST table the rows themselves must decide.

A partition of a published table can be made UNLOGGED, and LOGGED again, while rows are written into it: that leaves a
new file and no new stamp. A table without a TOAST table then has rows written by the transaction that created the file.
So has a table that was truncated and filled in one transaction. Its indexes have file numbers right after the table's,
which happens in no other case.

A partition that was created as one has the same transaction in `pg_inherits` and in the rows of its system columns,
which nothing changes later. An attached partition has another one there, unless both were done in one transaction,
which then wrote its rows. A partition rewritten by ALTER TABLE since its creation has a TOAST table of another
transaction, or has none and another file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.rows import dict_row

from headrace.databases.ports import ComputedColumn
from headrace.databases.ports.row_marks import OF_TRANSACTION, MarkedField, MarkedLabel, MarkedPart, RowMark
from headrace.databases.postgres.catalog.nested_types import parts_of
from headrace.databases.postgres.compared.computed_columns import computed_as
from headrace.databases.postgres.compared.marked_columns import marked_columns
from headrace.databases.postgres.connection import qualified
from headrace.lcr.table_name import TableName
from headrace.lcr.type_name import type_text

__all__ = ["began_empty", "computed_in", "row_marks", "was_written_anew"]

# The first rows of a table are in its first blocks of 8 KiB each: one megabyte is read in milliseconds.
_FIRST_BLOCKS = 128
_LOCK_TIMEOUT = "1s"  # for a partition that a user has locked: the next check asks again

_TABLES = """
SELECT c.oid::int8, format('%%s.%%s.%%s.%%s', s.system_identifier, d.oid, c.oid, r.oid)
FROM pg_catalog.pg_control_system() s
JOIN pg_catalog.pg_database d ON d.datname = current_database()
JOIN pg_catalog.pg_publication p ON p.pubname = %s
JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace AND n.nspname <> 'headrace_ddl'
"""

_PARTS = """
WITH RECURSIVE below (root, number, joined) AS (
    SELECT number, number, '' FROM unnest(%s::oid[]) AS root (number)
    UNION ALL
    SELECT b.root, i.inhrelid, b.joined || '/' || i.xmin::text
    FROM below b JOIN pg_catalog.pg_inherits i ON i.inhparent = b.number AND NOT i.inhdetachpending
    JOIN pg_catalog.pg_class part ON part.oid = i.inhrelid AND part.relispartition
)
SELECT b.root::int8 AS root, c.oid::int8 AS oid, n.nspname::text AS owner, c.relname::text AS name, c.relfilenode::int8 AS file, b.joined,
       c.relpersistence = 'u' AS is_unlogged, CASE WHEN c.reltoastrelid = 0 THEN '' ELSE c.reltoastrelid::text END AS rewrite,
       coalesce((SELECT jsonb_object_agg(a.attname, 'd' || d.oid) FROM pg_catalog.pg_attrdef d
                 JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum AND a.attgenerated <> ''
                 WHERE d.adrelid = c.oid), '{}') AS computed
FROM below b JOIN pg_catalog.pg_class c ON c.oid = b.number AND c.relkind = 'r' JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
"""

# Types that are not built in: those of the columns, and those nested in them.
_TYPES = f"""
WITH RECURSIVE walk (root, number) AS (
    SELECT a.attrelid, a.atttypid FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= 10000
  UNION
    SELECT w.root, part.number FROM walk w JOIN pg_catalog.pg_type t ON t.oid = w.number
    CROSS JOIN LATERAL {parts_of("t")} AS part
    WHERE part.number >= 10000
), named AS (
    SELECT w.root, t.oid, t.typtype, t.typrelid, n.nspname::text AS owner, t.typname::text AS name
    FROM walk w JOIN pg_catalog.pg_type t ON t.oid = w.number JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
)
SELECT n.root::int8, true, n.owner, n.name, e.oid::int8, e.enumlabel::text, '', e.enumsortorder FROM named n JOIN pg_catalog.pg_enum e ON e.enumtypid = n.oid
UNION ALL
SELECT n.root::int8, false, n.owner, n.name, n.oid::int8, a.attname::text, format('%%s %%s', a.attnum, pg_catalog.format_type(a.atttypid, a.atttypmod)), a.attnum
FROM named n JOIN pg_catalog.pg_attribute a ON n.typtype = 'c' AND a.attrelid = n.typrelid AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY 1, 3, 4, 8
"""

_CREATED = """
WITH RECURSIVE above (number, own, upper_age) AS (
    SELECT i.inhparent, i.xmin, NULL::int FROM pg_catalog.pg_inherits i WHERE i.inhrelid = %(part)s::oid
    UNION ALL
    SELECT i.inhparent, a.own, least(a.upper_age, pg_catalog.age(i.xmin))
    FROM above a JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.number
)
SELECT n.nspname::text, c.relname::text, ARRAY[s.xmin::text]
FROM pg_catalog.pg_attribute s JOIN pg_catalog.pg_class c ON c.oid = s.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_attribute large ON large.attrelid = c.reltoastrelid AND large.attnum = 1
WHERE s.attrelid = %(part)s::oid AND s.attnum = -1 AND EXISTS (SELECT FROM above)
  AND CASE WHEN large.attrelid IS NULL THEN c.relfilenode = c.oid ELSE large.xmin::text = s.xmin::text END
  AND NOT EXISTS (SELECT FROM above WHERE own::text <> s.xmin::text OR upper_age < pg_catalog.age(s.xmin))
"""

_WRITTEN = """
SELECT n.nspname::text, c.relname::text, c.xmin::text || coalesce(array_agg(i.xmin::text) FILTER (WHERE i.oid IS NOT NULL), '{}')
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_index x ON x.indrelid = c.oid LEFT JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
WHERE c.oid = %(part)s::oid GROUP BY c.oid, c.xmin, c.relname, c.relfilenode, n.nspname
HAVING NOT coalesce(bool_or(i.relfilenode::int8 - c.relfilenode::int8 BETWEEN 1 AND 2), false)
"""


def row_marks(connection: psycopg.Connection[Any], publication: str) -> dict[str, RowMark]:
    """Read the marks of all tables that a publication names, by their identities (`CapturedTable.identity`).

    Args:
        connection: to the source; in a transaction under a snapshot, it reads what the snapshot sees.
        publication: its name.
    """
    identities = {int(number): str(identity) for number, identity in connection.execute(_TABLES, (publication,))}
    if not identities:
        return {}
    roots = list(identities)
    marks = {number: RowMark() for number in roots}
    with connection.cursor(row_factory=dict_row) as cursor:
        for row in cursor.execute(_PARTS, (roots,)):
            root, number = row.pop("root"), row.pop("oid")
            marks[root].parts[str(number)] = MarkedPart(**row)
    for root, columns in marked_columns(connection, roots).items():
        marks[root].columns.update(columns)
    for root, is_label, type_owner, bare_name, number, name, place, _ in connection.execute(_TYPES.encode(), (roots,)):
        type_name = type_text(type_owner, bare_name)
        if is_label:
            marks[root].labels[str(number)] = MarkedLabel(type_name=type_name, label=name)
        else:
            marks[root].fields[f"{number}.{name}"] = MarkedField(type_name=type_name, name=name, place=place)
    return {identity: marks[number] for number, identity in identities.items()}


def computed_in(connection: psycopg.Connection[Any], identity: str) -> dict[str, ComputedColumn]:
    """Return the computed columns of a captured table, by name.

    Args:
        connection: to the source, with an empty search_path.
        identity: from `captured_tables`: its third part is the table's number.

    Raises:
        psycopg.Error: a user has locked the table.
    """
    query = (
        "SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON"
        " n.oid = c.relnamespace WHERE c.oid = %s"
    )
    row = connection.execute(query, (int(identity.split(".")[2]),)).fetchone()
    return {} if row is None else computed_as(connection, TableName(*row))


def began_empty(connection: psycopg.Connection[Any], number: int) -> bool:
    """Whether a partition was created as one and not rewritten since, so that the log has every row it ever had.

    Args:
        connection: to the source, in autocommit mode.
        number: of the partition.

    Raises:
        psycopg.Error: it is locked or not readable.
    """
    created = connection.execute(_CREATED, {"part": number}).fetchone()
    return created is not None and not _has_rows_of(connection, *created)


def was_written_anew(connection: psycopg.Connection[Any], number: int, stamp: str) -> bool:
    """Whether the transaction that created a partition's file also wrote rows of it.

    Args:
        connection: to the source, in autocommit mode.
        number: of the partition.
        stamp: of a column (`SourceDatabase.was_written_anew`); later statements stamp the table itself. Empty: none.

    Raises:
        psycopg.Error: it is locked or not readable.
    """
    made = connection.execute(_WRITTEN, {"part": number}).fetchone()
    if made is None:
        return False
    owner, name, transactions = made
    of_column = [stamp.removeprefix(OF_TRANSACTION)] if stamp.startswith(OF_TRANSACTION) else []
    return _has_rows_of(connection, owner, name, [*transactions, *of_column])


def _has_rows_of(connection: psycopg.Connection[Any], owner: str, name: str, transactions: Sequence[str]) -> bool:
    """Whether one of these transactions wrote rows in a table's first blocks."""
    numbers = ", ".join(f"'{int(transaction)}'" for transaction in transactions)
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'".encode())
        query = (
            f"SELECT EXISTS (SELECT FROM ONLY {qualified(owner, name)} WHERE ctid < '({_FIRST_BLOCKS},0)'::tid"
            f" AND xmin::text IN ({numbers}))"
        )
        row = connection.execute(query.encode()).fetchone()
    return row is not None and bool(row[0])
