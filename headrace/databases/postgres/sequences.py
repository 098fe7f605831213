"""Sequences that give replicated columns their values: read at the source, set ahead at the destination.

The log has no values of sequences, so after a switch-over the destination would give out numbers that are taken. A
sequence belongs to a column here, by ownership (serial, identity) or by the column's default: sequences of the two
sides are matched by table and column, whatever they are called.

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

__all__ = ["PostgresSequences"]

_SEQUENCES = """
SELECT DISTINCT tn.nspname, t.relname, a.attname, sn.nspname, s.relname, q.seqincrement, q.seqmin, q.seqmax
FROM unnest(%s::text[], %s::text[]) AS wanted (owner, name)
JOIN pg_catalog.pg_namespace tn ON tn.nspname = wanted.owner
JOIN pg_catalog.pg_class t ON t.relnamespace = tn.oid AND t.relname = wanted.name
JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN (
    SELECT refobjid AS relation, refobjsubid AS number, objid AS sequence FROM pg_catalog.pg_depend
    WHERE classid = 'pg_catalog.pg_class'::regclass AND refclassid = 'pg_catalog.pg_class'::regclass AND deptype IN ('a', 'i')
    UNION
    SELECT f.adrelid, f.adnum, d.refobjid FROM pg_catalog.pg_attrdef f JOIN pg_catalog.pg_depend d
      ON d.classid = 'pg_catalog.pg_attrdef'::regclass AND d.objid = f.oid AND d.refclassid = 'pg_catalog.pg_class'::regclass
) AS used ON used.relation = t.oid AND used.number = a.attnum
JOIN pg_catalog.pg_class s ON s.oid = used.sequence AND s.relkind = 'S'
JOIN pg_catalog.pg_namespace sn ON sn.oid = s.relnamespace
JOIN pg_catalog.pg_sequence q ON q.seqrelid = s.oid
ORDER BY 1, 2, 3, 4, 5
"""


class PostgresSequences:
    """See `headrace.databases.ports.operator.ColumnSequences`. Connects when it is first asked.

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
