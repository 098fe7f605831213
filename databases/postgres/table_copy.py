"""Copying and comparing tables in parallel chunks, PostgreSQL to PostgreSQL.

A chunk is a range of blocks of one stored table (of a partitioned table: of one partition), so chunks need no key, no
sorting and no count. Under a shared snapshot the chunks of a table together are exactly its rows: a row that the
snapshot sees lies in a block that existed when the chunks were planned, if they were planned after it was taken; the
last chunk has no end.

Binary COPY passes values through unchanged. It cannot be used for a type without send function, nor for reg* types,
which are numbers of objects of one database, nor into a column of another type (a wider one: see
`databases.postgres.types`): such tables go as text, from and to sessions with the same settings.

The hashes of a table's digest (`databases.table_digest`) are of each row's text.

    with use_snapshot(source, name):                                   # a connection of its own per task
        chunks = plan_chunks(source, "public", "t")
        blocks = copy_out(source, chunks[0], columns, copy_format=form)
        copy_in(session.connection, "public", "t", columns, blocks, copy_format=form)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
import psycopg.sql
from psycopg import pq

from databases.ports import DestinationTable
from databases.postgres.connection import connect, qualified, quote, translated
from databases.postgres.destination.pipeline import Pipeline
from databases.table_digest import TableDigest

__all__ = [
    "CHUNK_BYTES", "CopyFormat", "TableChunk", "copied_columns", "copy_format", "copy_in", "copy_out", "digest",
    "exported_snapshot", "plan_chunks", "use_snapshot",
]

CopyFormat = Literal["binary", "text"]

# A few seconds of work: enough chunks to keep every task busy to the end, few enough that starting one costs nothing.
CHUNK_BYTES = 64 << 20
# What is handed on at once: COPY gives a row per message.
_BLOCK_BYTES = 256 << 10

# Leaves of a partitioned table, or the table itself. Foreign partitions keep no rows here.
_LEAVES = """
SELECT n.nspname, c.relname, pg_catalog.pg_relation_size(c.oid) / current_setting('block_size')::bigint
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.oid IN (
    SELECT %(root)s::regclass::oid
    UNION SELECT t.relid FROM pg_catalog.pg_partition_tree(%(root)s::regclass) t WHERE t.isleaf)
ORDER BY 1, 2
"""

# Every type a column's values are made of: elements, fields, bounds, base types.
_NOT_BINARY = """
WITH RECURSIVE parts(oid) AS (
    SELECT a.atttypid FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = %(table)s::regclass AND a.attname = ANY(%(columns)s::text[]) AND NOT a.attisdropped
    UNION
    SELECT p.part FROM parts JOIN pg_catalog.pg_type t ON t.oid = parts.oid
    LEFT JOIN pg_catalog.pg_range r ON t.oid IN (r.rngtypid, r.rngmultitypid)
    LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = t.typrelid AND t.typrelid <> 0 AND a.attnum > 0 AND NOT a.attisdropped
    CROSS JOIN LATERAL (VALUES (t.typelem), (t.typbasetype), (r.rngsubtype), (a.atttypid)) p(part)
    WHERE p.part <> 0
)
SELECT EXISTS (
    SELECT FROM parts JOIN pg_catalog.pg_type t ON t.oid = parts.oid
    WHERE t.typsend = 0 OR t.typreceive = 0 OR t.oid IN ('int2vector'::regtype, 'oidvector'::regtype)
       OR t.typinput IN (SELECT oid FROM pg_catalog.pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace
                         AND proname ~ '^reg[a-z]+in$'))
    OR EXISTS (
    SELECT FROM unnest(%(columns)s::text[], %(types)s::text[]) AS wanted(name, type)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = %(table)s::regclass AND a.attname = wanted.name
    JOIN pg_catalog.pg_type t ON t.oid = a.atttypid JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
    WHERE format('%%s.%%s', n.nspname, t.typname) <> wanted.type)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChunk:
    """A range of blocks of a stored table.

    Args:
        owner, name: of the stored table (of a partition: its own).
        first_block: where it begins.
        end_block: the block after the last; None: to the end of the table.
        bytes: about how much it is.
    """

    owner: str
    name: str
    first_block: int = 0
    end_block: int | None = None
    bytes: int = 0

    @property
    def source(self) -> str:
        """FROM and WHERE of the chunk's rows."""
        end = "" if self.end_block is None else f" AND ctid < '({self.end_block},0)'::tid"
        start = f" WHERE ctid >= '({self.first_block},0)'::tid{end}" if self.first_block or end else ""
        return f"ONLY {qualified(self.owner, self.name)}{start}"


def copied_columns(table: DestinationTable) -> tuple[str, ...]:
    """Names of the columns that a copy writes: not those the database computes."""
    return tuple(column.name for column in table.columns if not column.is_generated)


@contextlib.contextmanager
def exported_snapshot(dsn: str, *, application_name: str) -> Iterator[tuple[psycopg.Connection[Any], str]]:
    """A connection that holds a snapshot of a database, and the snapshot's name for other sessions (`use_snapshot`)."""
    with contextlib.closing(connect(dsn, application_name=application_name)) as connection:
        with translated("exporting a snapshot"):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            row = connection.execute("SELECT pg_catalog.pg_export_snapshot()").fetchone()
        assert row is not None
        yield connection, str(row[0])


@contextlib.contextmanager
def use_snapshot(connection: psycopg.Connection[Any], name: str) -> Iterator[None]:
    """A read-only transaction that sees what the exported snapshot `name` saw.

    Args:
        connection: to the same database, in autocommit mode.
        name: as `Snapshot.name` gives it; empty: what is committed now.

    Raises:
        DatabaseError: the snapshot is gone (its session ended).
    """
    try:
        with translated("using a snapshot"):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if name:
                # SET takes no parameters; the name is one of the server's own.
                text = psycopg.sql.SQL("SET TRANSACTION SNAPSHOT {}").format(psycopg.sql.Literal(name))
                connection.execute(text)
        yield
    finally:
        if not connection.closed and connection.pgconn.status == pq.ConnStatus.OK:
            with contextlib.suppress(psycopg.Error):
                connection.execute("ROLLBACK")


def plan_chunks(
    connection: psycopg.Connection[Any], owner: str, name: str, *, chunk_bytes: int = CHUNK_BYTES
) -> tuple[TableChunk, ...]:
    """Cut a table into chunks; call it after the snapshot was taken.

    Args:
        connection: to the database that has the table.
        owner: its schema.
        name: the table, partitioned or not.
        chunk_bytes: about how large a chunk is in the table's file; values stored apart come on top.
    """
    with translated("measuring a table", table=f"{owner}.{name}"):
        leaves = connection.execute(_LEAVES, {"root": qualified(owner, name)}).fetchall()
        setting = connection.execute("SELECT pg_catalog.current_setting('block_size')::int").fetchone()
    assert setting is not None
    block_bytes: int = setting[0]
    step = max(1, chunk_bytes // block_bytes)
    chunks: list[TableChunk] = []
    for leaf_owner, leaf_name, blocks in leaves:
        starts = list(range(0, max(blocks, 1), step))
        for start in starts:
            is_last = start == starts[-1]
            size = (max(blocks, 1) - start if is_last else step) * block_bytes
            chunks.append(TableChunk(
                owner=leaf_owner, name=leaf_name, first_block=start, end_block=None if is_last else start + step,
                bytes=size,
            ))
    return tuple(chunks)


def copy_format(connection: psycopg.Connection[Any], owner: str, name: str, columns: Mapping[str, str]) -> CopyFormat:
    """How these columns of a table can be copied; ask the source.

    Args:
        connection: to the source.
        owner: its schema.
        name: the table.
        columns: names, and the types (`owner.name`) they have at the destination.
    """
    with translated("reading the catalog", table=f"{owner}.{name}"):
        asked = {"table": qualified(owner, name), "columns": list(columns), "types": list(columns.values())}
        found = connection.execute(_NOT_BINARY, asked).fetchone()
    return "text" if found is not None and found[0] else "binary"


def copy_out(
    connection: psycopg.Connection[Any], chunk: TableChunk, columns: Sequence[str], *, copy_format: CopyFormat
) -> Iterator[bytes]:
    """Read a chunk's rows with COPY, in blocks of some 100 KiB; end it before using the connection otherwise.

    Args:
        connection: to the source, usually inside `use_snapshot`.
        chunk: which rows.
        columns: names, in the order `copy_in` is told.
        copy_format: see there.

    Raises:
        DatabaseUnavailable: the connection broke: copy the table again.
    """
    query = f"COPY (SELECT {_names(columns)} FROM {chunk.source}) TO STDOUT (FORMAT {copy_format})"
    pgconn = connection.pgconn
    with translated("copying a table", table=f"{chunk.owner}.{chunk.name}"):
        started = pgconn.exec_(query.encode())
        if started.status != pq.ExecStatus.COPY_OUT:
            raise psycopg.errors.error_from_result(started)
        is_complete = False
        try:
            block = bytearray()
            while True:
                length, data = pgconn.get_copy_data(0)
                if length < 0:
                    break
                block += data
                if len(block) >= _BLOCK_BYTES:
                    yield bytes(block)
                    block.clear()
            if block:
                yield bytes(block)
            is_complete = True
        finally:
            if not is_complete:
                # Nobody reads on: ending the connection is quicker than the rest of the table.
                connection.close()
        result = pgconn.get_result()
        while pgconn.get_result() is not None:
            pass
        if result is not None and result.status != pq.ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(result)


def copy_in(
    connection: psycopg.Connection[Any], owner: str, name: str, columns: Sequence[str], blocks: Iterable[bytes], *,
    copy_format: CopyFormat,
) -> int:
    """Write what `copy_out` gives; one COPY, which is all or nothing.

    Args:
        connection: `PostgresSession.connection`: tagged and with triggers off, else a two-way set-up would send the
            copied rows back.
        owner: its schema.
        name: the table.
        columns: names, in the order of the values.
        blocks: from `copy_out`.
        copy_format: as there.

    Returns:
        Rows copied.

    Raises:
        DataError: a row was refused (a duplicate, a constraint).
    """
    query = f"COPY {qualified(owner, name)} ({_names(columns)}) FROM STDIN (FORMAT {copy_format})"
    return Pipeline(connection).copy_in(query, blocks, f"copying into {owner}.{name}")


def digest(connection: psycopg.Connection[Any], chunk: TableChunk, columns: Sequence[str]) -> TableDigest:
    """Count and hash a chunk's rows as the database's own text shows them.

    Args:
        connection: opened by `connect` (its settings give every value one text form).
        chunk: which rows; `TableChunk(owner=..., name=...)` is a whole table that is not partitioned.
        columns: names; the same order on both sides.
    """
    # OFFSET 0 keeps the row's text from being made twice.
    query = (
        "SELECT count(*), coalesce(sum(pg_catalog.hashtextextended(r, 0)), 0),"
        " coalesce(sum(pg_catalog.hashtextextended(r, 1)), 0)"
        f' FROM (SELECT ROW({_names(columns)})::text COLLATE "C" AS r FROM {chunk.source} OFFSET 0) t'
    )
    with translated("digesting a table", table=f"{chunk.owner}.{chunk.name}"):
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return TableDigest(row_count=row[0], sums=(int(row[1]), int(row[2])))


def _names(columns: Sequence[str]) -> str:
    return ", ".join(quote(column) for column in columns)
