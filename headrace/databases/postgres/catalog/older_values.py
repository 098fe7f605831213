"""Values of rows in columns added after the rows, as the catalog of either side has them.

The server stores such a value with the table that holds the rows, until it rewrites them: for a partitioned table with
each partition, never with the table itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

__all__ = ["KEPT_VALUES", "older_values"]


# The values that older rows have in columns of `tables` (oids): one row for each column of a table (`root`) with a
# stored value. `found` is the value as SQL: several where partitions disagree, and NULL where it is not the table's.
# `defaults` are the column's, as node trees.
#
# A partition without a value is younger than the column, or was rewritten: the others speak for the table. A partition
# attached with the column does not, nor do those below it: it brought its own rows, which are copied separately. ATTACH
# writes the attribute in the same transaction as the entry in `pg_inherits`. Rows of a foreign partition are neither
# copied nor compared. No lock is taken.
KEPT_VALUES = """(
    WITH RECURSIVE below (root, number, path) AS (
        SELECT number, number, ARRAY[]::oid[] FROM unnest(%(tables)s::oid[]) AS root (number)
        UNION ALL SELECT b.root, i.inhrelid, b.path || i.inhrelid
        FROM below b JOIN pg_catalog.pg_inherits i ON i.inhparent = b.number AND NOT i.inhdetachpending
        JOIN pg_catalog.pg_class part ON part.oid = i.inhrelid AND part.relispartition
    )
    SELECT b.root, a.attname AS name,
           array_agg(DISTINCT quote_literal((a.attmissingval::text::text[])[1])) FILTER (WHERE NOT brought.is_so) AS found,
           array_agg(DISTINCT d.adbin::text) FILTER (WHERE NOT brought.is_so AND d.oid IS NOT NULL) AS defaults
    FROM below b JOIN pg_catalog.pg_class c ON c.oid = b.number AND c.relkind = 'r'
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.atthasmissing
    LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    CROSS JOIN LATERAL (
        SELECT EXISTS (
            SELECT FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_attribute same ON same.attrelid = i.inhrelid
            WHERE i.inhrelid = ANY (b.path) AND same.attname = a.attname AND same.xmin::text = i.xmin::text
        )
    ) AS brought (is_so)
    GROUP BY b.root, a.attname
)"""

_OLDER = f"""
SELECT a.attrelid::int8, a.attname::text,
       CASE WHEN kept.root IS NOT NULL THEN CASE WHEN cardinality(kept.found) = 1 THEN kept.found[1] END
            WHEN NOT a.atthasdef AND a.attidentity = '' THEN '' END
FROM pg_catalog.pg_attribute a LEFT JOIN {KEPT_VALUES} AS kept ON kept.root = a.attrelid AND kept.name = a.attname
WHERE a.attrelid = ANY (%(tables)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
"""


def older_values(connection: psycopg.Connection[Any], numbers: Sequence[int]) -> dict[tuple[int, str], str | None]:
    """Return `Column.older_value` of every column, by its table's oid and its name.

    Args:
        connection: to the source.
        numbers: oids of the tables.
    """
    rows = connection.execute(_OLDER.encode(), {"tables": list(numbers)}).fetchall()
    return {(int(number), name): value for number, name, value in rows}
