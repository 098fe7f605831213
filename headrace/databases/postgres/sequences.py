"""Sequences that provide replicated columns' values: read at the source, set ahead at the destination.

The log has no sequence values, so after a switch-over the destination would give out numbers that are taken. A sequence
belongs to a column that takes its values from it: as an identity, by its default, or by its domain's default. A
sequence that the column only owns counts where the default names none. Sequences of the two sides are matched by table
and column, whatever their names are.

Source: PostgreSQL, "Logical Replication - Restrictions" (sequence data is not replicated; set them before a
switch-over).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from psycopg import sql

from headrace.databases.ports.operator import ColumnSequence
from headrace.databases.postgres.connection import connect, qualified, translated
from headrace.lcr.table_name import TableName

__all__ = ["PostgresSequences"]

_SEQUENCES = """
SELECT DISTINCT tn.nspname, t.relname, a.attname, sn.nspname, s.relname, q.seqincrement, q.seqmin, q.seqmax
FROM unnest(%s::text[], %s::text[]) AS wanted (owner, name)
JOIN pg_catalog.pg_namespace tn ON tn.nspname = wanted.owner
JOIN pg_catalog.pg_class t ON t.relnamespace = tn.oid AND t.relname = wanted.name
JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
CROSS JOIN LATERAL (
    -- A default that names a sequence names it before what the column owns: its table may have had a serial column once.
    SELECT sequence, rank() OVER (ORDER BY is_owned) AS place FROM (
        SELECT d.objid AS sequence, d.deptype = 'a' AS is_owned FROM pg_catalog.pg_depend d
        WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.refclassid = 'pg_catalog.pg_class'::regclass
          AND d.refobjid = t.oid AND d.refobjsubid = a.attnum AND d.deptype IN ('a', 'i')
        UNION ALL
        SELECT d.refobjid, false FROM pg_catalog.pg_attrdef f JOIN pg_catalog.pg_depend d
          ON d.classid = 'pg_catalog.pg_attrdef'::regclass AND d.objid = f.oid AND d.refclassid = 'pg_catalog.pg_class'::regclass
        WHERE f.adrelid = t.oid AND f.adnum = a.attnum
        UNION ALL
        SELECT d.refobjid, false FROM pg_catalog.pg_depend d
        WHERE d.classid = 'pg_catalog.pg_type'::regclass AND d.objid = a.atttypid AND d.refclassid = 'pg_catalog.pg_class'::regclass
          AND NOT a.atthasdef AND EXISTS (SELECT FROM pg_catalog.pg_type y WHERE y.oid = a.atttypid AND y.typtype = 'd')
    ) AS found JOIN pg_catalog.pg_class c ON c.oid = found.sequence AND c.relkind = 'S'
) AS used
JOIN pg_catalog.pg_class s ON s.oid = used.sequence AND used.place = 1
JOIN pg_catalog.pg_namespace sn ON sn.oid = s.relnamespace
JOIN pg_catalog.pg_sequence q ON q.seqrelid = s.oid
ORDER BY 1, 2, 3, 4, 5
"""
# Defaults of columns and domains depend on the sequences they name; an identity's sequence depends on its column.
_UNNAMED = """
SELECT n.nspname::text, s.relname::text FROM pg_catalog.pg_class s JOIN pg_catalog.pg_namespace n ON n.oid = s.relnamespace
WHERE s.relkind = 'S' AND n.nspname = ANY (%s)
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d
                  WHERE d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = s.oid
                    AND d.classid IN ('pg_catalog.pg_attrdef'::regclass, 'pg_catalog.pg_type'::regclass))
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d
                  WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = s.oid AND d.deptype = 'i')
ORDER BY 1, 2
"""


class PostgresSequences:
    """A `headrace.databases.ports.operator.ColumnSequences`. Connects on first use.

    Args:
        dsn: of the database.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: psycopg.Connection[Any] | None = None

    def of(self, tables: Sequence[tuple[str, str]]) -> tuple[ColumnSequence, ...]:
        """See `ColumnSequences.of`."""
        with translated("reading the sequences"):
            return tuple(self._read(tables))

    def _read(self, tables: Sequence[tuple[str, str]]) -> Iterator[ColumnSequence]:
        connection = self._session()
        for row in connection.execute(_SEQUENCES, ([t[0] for t in tables], [t[1] for t in tables])).fetchall():
            value = connection.execute(
                sql.SQL("SELECT last_value, is_called FROM {}").format(sql.Identifier(row[3], row[4]))
            ).fetchone()
            assert value is not None
            yield ColumnSequence(
                owner=row[0],
                table=row[1],
                column=row[2],
                name=qualified(row[3], row[4]),
                next_value=value[0] + row[5] if value[1] else value[0],
                increment=row[5],
                least=row[6],
                most=row[7],
            )

    def unnamed(self, schemas: Sequence[str]) -> tuple[TableName, ...]:
        """See `ColumnSequences.unnamed`."""
        with translated("reading the sequences"):
            rows = self._session().execute(_UNNAMED, (list(schemas),)).fetchall()
            return tuple(TableName(*row) for row in rows)

    def set_next(self, sequence: ColumnSequence, value: int) -> None:
        """See `ColumnSequences.set_next`."""
        with translated("setting a sequence", sequence=sequence.name):
            self._session().execute("SELECT pg_catalog.setval(%s::regclass, %s, false)", (sequence.name, value))

    def close(self) -> None:
        """See `ColumnSequences.close`."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _session(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._dsn, application_name="headrace sequences")
        return self._connection
