"""Reading and writing tables in pieces, PostgreSQL to PostgreSQL (`headrace.databases.ports.copying`).

A piece is a range of blocks of one stored table (for a partitioned table: of one partition), so pieces need no key, no
sorting and no count. Under a shared snapshot the pieces of a table together are exactly its rows. If pieces are planned
after the snapshot was taken, a row that the snapshot sees lies in a block that existed at planning; the last piece has
no end.

That holds for one file. VACUUM FULL, CLUSTER and pg_repack move rows to other blocks of another file; after TRUNCATE or
a rewriting ALTER TABLE the new file has nothing that an older snapshot could see. So a plan made under a snapshot notes
the file that the snapshot's catalog names. A piece is read only while the table is locked (ACCESS SHARE) and still has
that file. The lock lasts as long as the piece: no user's statement waits longer than that.

Binary COPY passes values through unchanged. It is impossible for a type without send function, for reg* types (which
are object numbers of one database), and into a column of another type (a wider one, see
`headrace.databases.postgres.compared.types`). Such tables travel as text, between sessions with the same settings.

A table's digest (`headrace.databases.table_digest`) hashes each row's text
(`headrace.databases.postgres.copying.row_text`) in UTF-8, whatever encoding a database stores it in.
"""

from __future__ import annotations

import codecs
import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import psycopg
import psycopg.sql
from psycopg import pq

from headrace.base.errors import DatabaseError, DatabaseUnavailable
from headrace.databases.ports import DestinationTable
from headrace.databases.ports.copying import (
    NATIVE,
    PIECE_BYTES,
    PORTABLE,
    KeyedRow,
    SeenTable,
    TablePiece,
    TablePlan,
    TextRow,
)
from headrace.databases.postgres.catalog.nested_types import parts_of
from headrace.databases.postgres.catalog.partitions import without_children
from headrace.databases.postgres.connection import connect, qualified, quote, translated
from headrace.databases.postgres.copying.keyed_rows import rows_of_keys
from headrace.databases.postgres.copying.row_text import (
    ValueKind,
    column_kinds,
    digest_sums,
    digesting,
    hashed,
    is_large,
    refuse_casts,
    row_text,
    shown,
    valued,
)
from headrace.databases.postgres.copying.seen_tables import seen_table
from headrace.databases.postgres.pipeline import Pipeline
from headrace.databases.table_digest import TableDigest
from headrace.lcr.table_name import TableName

__all__ = ["PostgresTableReader", "copy_in", "has_rows", "use_snapshot"]

# Size of a block that is passed on: COPY gives one message per row.
_BLOCK_BYTES = 256 << 10
_ONE_PIECE = 1 << 50  # bytes: more than a table has
_FORMATS = {NATIVE: "binary", PORTABLE: "text"}
# For a lock that only an ALTER, a VACUUM FULL and the like block: the table is retried while other tables proceed.
_LOCK_TIMEOUT = "10s"
_NO_SUCH_TABLE = "42P01"
_CURSOR = "headrace_rows"
_FETCHED_ROWS = 1000  # users' code is called for them: a round trip costs little by comparison
_SPECIAL = re.compile(rb"[\\\n\r\t]")  # characters that COPY's text form escapes
_ESCAPES = {b"\\": b"\\\\", b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t"}
_INTERRUPT_TIMEOUT_S = 5.0  # needs another brief connection to the server
_BUCKET_MASK = (1 << 60) - 1  # makes a hash non-negative

# Leaves of a partitioned table, or the table itself. Foreign partitions store no rows here. `relfilenode` is the file
# that the snapshot sees; `open_piece` compares it with the current one.
_LEAVES = """
SELECT n.nspname, c.relname, c.relfilenode::bigint,
       coalesce(pg_catalog.pg_relation_size(c.oid), 0) / current_setting('block_size')::bigint,
       c.relfilenode = pg_catalog.pg_relation_filenode(c.oid)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.oid IN (
    SELECT %(root)s::regclass::oid
    UNION SELECT t.relid FROM pg_catalog.pg_partition_tree(%(root)s::regclass) t WHERE t.isleaf)
ORDER BY 1, 2
"""

# Every type in a column's values, directly or nested.
_NOT_BINARY = f"""
WITH RECURSIVE parts(oid) AS (
    SELECT a.atttypid FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = %(table)s::regclass AND a.attname = ANY(%(columns)s::text[]) AND NOT a.attisdropped
    UNION
    SELECT part.number FROM parts JOIN pg_catalog.pg_type t ON t.oid = parts.oid CROSS JOIN LATERAL {parts_of("t")} AS part
    WHERE part.number <> 0
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


class PostgresTableReader:
    """A PostgreSQL `headrace.databases.ports.copying.TableReader`.

    Args:
        dsn: of the database.
        application_name: of its session.
        other_dsn: of the database with which rows are compared, to read its encoding; empty: the encoding is the same.
    """

    def __init__(self, dsn: str, *, application_name: str = "headrace copy", other_dsn: str = "") -> None:
        self._dsn, self._application_name, self._other_dsn = dsn, application_name, other_dsn
        self._connection: psycopg.Connection[Any] | None = None
        self._other_encoding = ""

    @contextlib.contextmanager
    def export_snapshot(self) -> Iterator[str]:
        """See `TableReader.export_snapshot`; on a separate connection."""
        with contextlib.closing(connect(self._dsn, application_name=self._application_name)) as connection:
            with translated("exporting a snapshot"):
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                row = connection.execute("SELECT pg_catalog.pg_export_snapshot()").fetchone()
            assert row is not None
            yield str(row[0])

    def seen(self, owner: str, name: str) -> SeenTable | None:
        """See `TableReader.seen`."""
        return seen_table(self._session(), owner, name)

    def plan(
        self,
        owner: str,
        name: str,
        columns: Mapping[str, str],
        *,
        snapshot: str = "",
        piece_bytes: int = PIECE_BYTES,
        rows: str = "",
    ) -> TablePlan:
        """See `TableReader.plan`."""
        with use_snapshot(self._session(), snapshot) as connection:
            pieces: list[TablePiece] = []
            step = _piece_blocks(connection, piece_bytes)
            for leaf_owner, leaf_name, file, blocks, _ in _leaves(connection, owner, name):
                starts = list(range(0, max(blocks, 1), step))
                for start in starts:
                    end = start + step if start != starts[-1] else ""
                    size = (min(blocks, start + step) - start) * piece_bytes // step
                    pieces.append(
                        TablePiece(
                            owner=leaf_owner, name=leaf_name, place=f"{file}:{start}:{end}:{rows}", bytes=max(size, 0)
                        )
                    )
            is_binary = _goes_binary(connection, owner, name, columns)
        return TablePlan(pieces=tuple(pieces), form=NATIVE if is_binary else PORTABLE)

    @contextlib.contextmanager
    def open_piece(self, piece: TablePiece, *, snapshot: str = "") -> Iterator[_OpenPiece]:
        """See `TableReader.open_piece`."""
        file, first, end, rows = piece.place.split(":", 3)
        with use_snapshot(self._session(), snapshot) as connection:
            _lock(connection, piece.owner, piece.name)
            with translated("looking at a table's file", table=f"{piece.owner}.{piece.name}"):
                found = connection.execute(
                    "SELECT pg_catalog.pg_relation_filenode(%s::regclass)", (qualified(piece.owner, piece.name),)
                ).fetchone()
            if found is None or found[0] != int(file):
                raise _rewritten(piece.owner, piece.name)
            yield _OpenPiece(connection, piece, int(first), int(end) if end else None, rows, self._kinds)

    def prove_large(
        self, owner: str, name: str, columns: Mapping[str, str], *, snapshot: str = "", rows: str = ""
    ) -> None:
        """See `TableReader.prove_large`."""
        with use_snapshot(self._session(), snapshot) as connection:
            large = is_large(connection, valued(self._kinds(owner, name, tuple(columns)), tuple(columns)))
        if not large:
            return
        plan = self.plan(
            owner,
            name,
            columns,
            snapshot=snapshot,
            piece_bytes=_ONE_PIECE,
            rows=f"({rows}) AND {large}" if rows else large,
        )
        for piece in plan.pieces:
            with self.open_piece(piece, snapshot=snapshot) as opened:
                opened.digest(tuple(columns))
                for _ in opened.rows(tuple(columns), form=plan.form):
                    pass

    def bucket_digests(
        self,
        owner: str,
        name: str,
        key: Sequence[str],
        columns: Sequence[str],
        *,
        buckets: int,
        snapshot: str = "",
        rows: str = "",
    ) -> tuple[TableDigest, ...]:
        """See `TableReader.bucket_digests`."""
        with self._unmoved(owner, name, snapshot) as (connection, relation), digesting(owner, name):
            kinds = self._kinds(owner, name, [*key, *columns])
            bucketed = _bucketed(connection, relation, valued(kinds, key), valued(kinds, columns), buckets)
            query = f"SELECT b, {digest_sums(connection)} FROM ({bucketed}{_only(rows)} OFFSET 0) t GROUP BY b"
            digests = connection.execute(query.encode()).fetchall()
        found = {row[0]: TableDigest(row_count=row[1], sums=(int(row[2]), int(row[3]))) for row in digests}
        return tuple(found.get(number, TableDigest()) for number in range(buckets))

    def bucket_rows(  # noqa: PLR0913 - which rows of which table, and how many
        self,
        owner: str,
        name: str,
        key: Sequence[str],
        columns: Sequence[str],
        *,
        buckets: int,
        wanted: Sequence[int],
        rows_max: int,
        snapshot: str = "",
        rows: str = "",
    ) -> tuple[KeyedRow, ...]:
        """See `TableReader.bucket_rows`."""
        with (
            self._unmoved(owner, name, snapshot) as (connection, relation),
            translated("reading a table's keys", table=f"{owner}.{name}"),
        ):
            kinds = self._kinds(owner, name, [*key, *columns])
            query = (
                f"SELECT k, {hashed(connection, 'r', 0)}, {hashed(connection, 'r', 1)}, x"
                f" FROM ({_bucketed(connection, relation, valued(kinds, key), valued(kinds, columns), buckets)}{_only(rows)} OFFSET 0) t"
                f' WHERE b IN ({", ".join(str(int(number)) for number in wanted)}) ORDER BY k COLLATE "C", 2, 3 LIMIT'
                f" {int(rows_max)}"
            )
            found = connection.execute(query.encode()).fetchall()
        return tuple(KeyedRow(key=tuple(row[0]), digest=(row[1], row[2]), version=row[3]) for row in found)

    def keyed_rows(
        self,
        owner: str,
        name: str,
        key: Sequence[str],
        columns: Sequence[str],
        *,
        keys: Sequence[tuple[str | None, ...]],
        snapshot: str = "",
        rows: str = "",
    ) -> tuple[KeyedRow, ...]:
        """See `TableReader.keyed_rows`."""
        with self._unmoved(owner, name, snapshot) as (connection, relation):
            kinds = self._kinds(owner, name, [*key, *columns])
            return rows_of_keys(
                connection,
                relation,
                TableName(owner, name),
                kinds=kinds,
                key=key,
                columns=columns,
                keys=keys,
                rows=rows,
            )

    def interrupt(self) -> None:
        """See `TableReader.interrupt`."""
        connection = self._connection
        if connection is not None and not connection.closed:
            with contextlib.suppress(psycopg.Error):  # a later call may succeed
                connection.cancel_safe(timeout=_INTERRUPT_TIMEOUT_S)

    def close(self) -> None:
        """See `TableReader.close`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _session(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._dsn, application_name=self._application_name)
        return self._connection

    def _kinds(self, owner: str, name: str, columns: Sequence[str]) -> dict[str, ValueKind]:
        with translated("reading the catalog", table=f"{owner}.{name}"):
            return column_kinds(self._session(), owner, name, columns, other_encoding=self._encoding_there)

    def _encoding_there(self) -> str:
        """Return the encoding of the database with which rows are compared; empty: no such database."""
        if self._other_dsn and not self._other_encoding:
            with contextlib.closing(connect(self._other_dsn, application_name=self._application_name)) as other:
                self._other_encoding = other.info.parameter_status("server_encoding") or ""
        return self._other_encoding

    @contextlib.contextmanager
    def _unmoved(self, owner: str, name: str, snapshot: str) -> Iterator[tuple[psycopg.Connection[Any], str]]:
        """Open a transaction under the snapshot and return it with the table's name in statements.

        The table is unmoved: it still has every row that the snapshot saw.
        """
        with use_snapshot(self._session(), snapshot) as connection:
            with translated("looking at a table", table=f"{owner}.{name}"):
                relation = without_children(connection, owner, name)
            _lock(connection, owner, name, relation=relation)
            if not all(is_same for *_, is_same in _leaves(connection, owner, name)):
                raise _rewritten(owner, name)
            yield connection, relation


class _OpenPiece:
    """A piece that is being read (`headrace.databases.ports.copying.OpenPiece`)."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        piece: TablePiece,
        first: int,
        end: int | None,
        rows: str,
        kinds: Callable[[str, str, Sequence[str]], dict[str, ValueKind]],
    ) -> None:
        self._connection, self._piece, self._kinds = connection, piece, kinds
        conditions = [f"ctid >= '({first},0)'::tid"] if first or end is not None else []
        conditions += [] if end is None else [f"ctid < '({end},0)'::tid"]
        conditions += [f"({rows}) IS TRUE"] if rows else []
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        self._source = f"ONLY {qualified(piece.owner, piece.name)}{where}"

    def digest(self, columns: Sequence[str]) -> TableDigest:
        """See `OpenPiece.digest`: the hashes are of the database's own text."""
        # OFFSET 0 keeps the server from computing the row's text twice.
        with digesting(self._piece.owner, self._piece.name):
            text = row_text(
                self._connection, valued(self._kinds(self._piece.owner, self._piece.name, columns), columns)
            )
            query = f"SELECT {digest_sums(self._connection)} FROM (SELECT {text} AS r FROM {self._source} OFFSET 0) t"
            row = self._connection.execute(query.encode()).fetchone()
        assert row is not None
        return TableDigest(row_count=row[0], sums=(int(row[1]), int(row[2])))

    def rows(self, columns: Sequence[str], *, form: str, added: Sequence[str | None] = ()) -> Iterator[bytes]:
        """See `OpenPiece.rows`. Finish it before another call on the piece."""
        constants = "".join(f", {psycopg.sql.Literal(value).as_string(None)}::text" for value in added)
        query = f"COPY (SELECT {_names(columns)}{constants} FROM {self._source}) TO STDOUT (FORMAT {_FORMATS[form]})"
        pgconn = self._connection.pgconn
        with translated("copying a table", table=f"{self._piece.owner}.{self._piece.name}"):
            started = pgconn.exec_(query.encode())
            if started.status != pq.ExecStatus.COPY_OUT:
                raise psycopg.errors.error_from_result(started)
            is_complete = False
            try:
                yield from _blocks(pgconn)
                is_complete = True
            finally:
                if not is_complete:
                    # The caller stopped reading: closing the connection is quicker than reading the rest of the table.
                    self._connection.close()
            result = pgconn.get_result()
            while pgconn.get_result() is not None:
                pass
            if result is not None and result.status != pq.ExecStatus.COMMAND_OK:
                raise psycopg.errors.error_from_result(result)

    def values(self, columns: Sequence[str]) -> Iterator[list[TextRow]]:
        """See `OpenPiece.values`."""
        return self._fetched(_names(columns))

    def _fetched(self, expressions: str) -> Iterator[list[TextRow]]:
        """Yield the rows from a cursor: the session accepts other calls meanwhile."""
        with translated("reading a table", table=f"{self._piece.owner}.{self._piece.name}"):
            self._connection.execute(
                f"DECLARE {_CURSOR} NO SCROLL CURSOR FOR SELECT {expressions} FROM {self._source}".encode()
            )
            try:
                while True:
                    fetched = self._connection.execute(
                        f"FETCH FORWARD {_FETCHED_ROWS} FROM {_CURSOR}".encode()
                    ).pgresult
                    assert fetched is not None
                    if not fetched.ntuples:
                        break
                    # In the server's text form, without psycopg's conversion into objects.
                    places = range(fetched.nfields)
                    yield [tuple(fetched.get_value(row, place) for place in places) for row in range(fetched.ntuples)]
            finally:
                with contextlib.suppress(psycopg.Error):  # an error of the transaction has closed it
                    self._connection.execute(f"CLOSE {_CURSOR}".encode())

    def texts_of_log(self, types: Collection[str]) -> frozenset[str]:
        """See `OpenPiece.texts_of_log`.

        The types' send functions decide; enumerated types and extensions' text types such as citext qualify.
        """
        with translated("reading the catalog"):
            found = self._connection.execute(
                "SELECT pg_catalog.format('%%s.%%s', n.nspname, t.typname) FROM pg_catalog.pg_type t JOIN"
                " pg_catalog.pg_namespace n ON n.oid = t.typnamespace"
                " JOIN pg_catalog.pg_proc p ON p.oid = t.typsend JOIN pg_catalog.pg_language l ON l.oid = p.prolang AND"
                " l.lanname = 'internal' WHERE p.prosrc IN ('enum_send', 'textsend', 'varcharsend', 'bpcharsend')"
                " AND pg_catalog.format('%%s.%%s', n.nspname, t.typname) = ANY (%s::text[])",
                (list(types),),
            ).fetchall()
        return frozenset(name for (name,) in found)

    def digest_values(self, columns: Sequence[str], blocks: Iterable[Sequence[TextRow]]) -> TableDigest:
        """See `OpenPiece.digest_values`.

        The server casts the values to the columns' types and computes the rows' texts itself.
        """
        table = f"{self._piece.owner}.{self._piece.name}"
        with translated("reading the catalog", table=table):
            types = dict(
                self._connection.execute(
                    # A cast truncates what is longer than the column here, and the destination's column may be wider.
                    # For these types a length changes no shorter value.
                    "SELECT attname, pg_catalog.format_type(atttypid, CASE WHEN atttypid = ANY"
                    " ('{varchar,varchar[],varbit,varbit[]}'::regtype[])"
                    " THEN -1 ELSE atttypmod END) FROM pg_catalog.pg_attribute WHERE attrelid = %s::regclass AND"
                    " attname = ANY (%s::text[])",
                    (qualified(self._piece.owner, self._piece.name), list(columns)),
                ).fetchall()
            )
            kinds = self._kinds(self._piece.owner, self._piece.name, columns)
            refuse_casts(self._connection, self._piece.owner, self._piece.name, columns)
        places = range(len(columns))
        row = row_text(
            self._connection,
            {
                f"v{place}::{types[column]}": kinds.get(column, ValueKind())
                for place, column in zip(places, columns, strict=True)
            },
        ).replace("%", "%%")  # the query also has parameters
        query = (
            f"SELECT {digest_sums(self._connection)} FROM (SELECT {row} AS r FROM"
            f" unnest({', '.join(['%s::text[]'] * len(columns))}) AS t ({', '.join(f'v{place}' for place in places)})"
            " OFFSET 0) t"
        )
        found = TableDigest()
        for rows in blocks:
            texts = [[None if (value := each[place]) is None else value.decode() for each in rows] for place in places]
            with translated("digesting a table", table=table):
                sums = self._connection.execute(query.encode(), texts).fetchone()
            assert sums is not None
            found += TableDigest(row_count=sums[0], sums=(int(sums[1]), int(sums[2])))
        return found

    def lacking(self, columns: Sequence[str], encoding: str) -> str:
        """See `OpenPiece.lacking`."""
        known = encoding.lower()
        try:
            codec = codecs.lookup(f"cp{known.removeprefix('win')}" if known.startswith("win") else known).name
        except LookupError:
            return ""
        table = f"{self._piece.owner}.{self._piece.name}"
        for block in self._fetched(f"ctid::text, {_names(columns)}"):
            for row in block:
                for column, value in zip(columns, row[1:], strict=True):
                    try:
                        (value or b"").decode().encode(codec)
                    except UnicodeEncodeError as error:
                        return (
                            f"column {column} of a row of {table} has the character"
                            f" U+{ord(error.object[error.start]):04X}, which the destination's encoding {encoding}"
                            f" lacks; at the source: SELECT * FROM {qualified(self._piece.owner, self._piece.name)}"
                            f" WHERE ctid = '{(row[0] or b'').decode()}';"
                        )
        return ""

    def packed(self, rows: Sequence[TextRow]) -> bytes:
        """See `OpenPiece.packed`: COPY's text form."""
        return b"".join(
            b"\t".join(b"\\N" if value is None else _SPECIAL.sub(_escaped, value) for value in row) + b"\n"
            for row in rows
        )


@contextlib.contextmanager
def use_snapshot(connection: psycopg.Connection[Any], name: str) -> Iterator[psycopg.Connection[Any]]:
    """Open a read-only transaction that sees what the exported snapshot `name` saw; yields the connection.

    Args:
        connection: to the same database, in autocommit mode.
        name: as in `Snapshot.name`; empty: the committed state now.

    Raises:
        DatabaseUnavailable: the snapshot is gone (its session ended).
    """
    try:
        with translated("using a snapshot"):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if name:
            try:
                with translated("using a snapshot"):
                    # SET takes no parameters; the name is quoted as a literal.
                    text = psycopg.sql.SQL("SET TRANSACTION SNAPSHOT {}").format(psycopg.sql.Literal(name))
                    connection.execute(text)
            except DatabaseError as error:
                raise DatabaseUnavailable(f"the snapshot is gone: {error.message}") from error
        yield connection
    finally:
        if not connection.closed and connection.pgconn.status == pq.ConnStatus.OK:
            with contextlib.suppress(psycopg.Error):
                connection.execute("ROLLBACK")


def copy_in(
    connection: psycopg.Connection[Any],
    owner: str,
    name: str,
    columns: Sequence[str],
    rows: Iterable[bytes],
    *,
    form: str,
) -> int:
    """Write rows by one COPY, all or nothing (`TableWriter.copy_rows`).

    Args:
        connection: a tagged session with triggers off; otherwise a two-way set-up would send the copied rows back.
        owner: the table's schema.
        name: the table.
        columns: names, in the order of the values.
        rows: blocks of `OpenPiece.rows`.
        form: the blocks' form.
    """
    query = f"COPY {qualified(owner, name)} ({_names(columns)}) FROM STDIN (FORMAT {_FORMATS[form]})"
    return Pipeline(connection).copy_in(query, rows, f"copying into {owner}.{name}")


def has_rows(connection: psycopg.Connection[Any], table: DestinationTable) -> bool:
    """See `TableWriter.has_rows`."""
    with translated("looking whether a table is empty", table=f"{table.owner}.{table.name}"):
        relation = without_children(connection, table.owner, table.name)
        row = connection.execute(f"SELECT EXISTS (SELECT FROM {relation})".encode()).fetchone()
    return row is not None and bool(row[0])


# --------------------------------------------------------------------------- internals


def _leaves(connection: psycopg.Connection[Any], owner: str, name: str) -> list[tuple[str, str, int, int, bool]]:
    """Return (schema, name, file as the snapshot sees it, blocks, whether it is still the current file) per stored table."""
    root = qualified(owner, name)
    with translated("measuring a table", table=f"{owner}.{name}"):
        # A table of this name that was created after the snapshot has other rows, none of them visible to the snapshot.
        seen = connection.execute("SELECT FROM pg_catalog.pg_class WHERE oid = %s::regclass", (root,)).fetchone()
        if seen is None:
            raise _rewritten(owner, name)
        return [tuple(row) for row in connection.execute(_LEAVES, {"root": root}).fetchall()]


def _piece_blocks(connection: psycopg.Connection[Any], piece_bytes: int) -> int:
    with translated("asking for the size of a block"):
        setting = connection.execute("SELECT pg_catalog.current_setting('block_size')::int").fetchone()
    assert setting is not None
    return max(1, piece_bytes // int(setting[0]))


def _lock(connection: psycopg.Connection[Any], owner: str, name: str, *, relation: str = "") -> None:
    """Keep a table, or its stored relation, from being rewritten until the transaction ends."""
    try:
        with translated(f"waiting to read {owner}.{name}", table=f"{owner}.{name}"):
            connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'".encode())
            connection.execute(
                f"LOCK TABLE {relation or 'ONLY ' + qualified(owner, name)} IN ACCESS SHARE MODE".encode()
            )
    except DatabaseError as error:
        if error.context.get("sqlstate") == _NO_SUCH_TABLE:
            raise _rewritten(owner, name) from error
        raise


def _rewritten(owner: str, name: str) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"table {owner}.{name} was rewritten while it was read (VACUUM FULL, CLUSTER, TRUNCATE, ALTER TABLE, or dropped"
        " and created again): it is read again from its beginning",
        table=f"{owner}.{name}",
    )


def _goes_binary(connection: psycopg.Connection[Any], owner: str, name: str, columns: Mapping[str, str]) -> bool:
    """Whether these columns can travel in binary form to columns of the given types (`owner.name`)."""
    with translated("reading the catalog", table=f"{owner}.{name}"):
        asked = {"table": qualified(owner, name), "columns": list(columns), "types": list(columns.values())}
        found = connection.execute(_NOT_BINARY.encode(), asked).fetchone()
    return found is None or not found[0]


def _blocks(pgconn: pq.abc.PGconn) -> Iterator[bytes]:
    """Yield the output of COPY TO STDOUT in larger blocks."""
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


def _bucketed(
    connection: psycopg.Connection[Any],
    relation: str,
    key: Mapping[str, ValueKind],
    columns: Mapping[str, ValueKind],
    buckets: int,
) -> str:
    """Return SQL for rows as (bucket, key as texts, text, version)."""
    keys = ", ".join(shown(column, kind) for column, kind in key.items())
    return (
        f"SELECT ({hashed(connection, row_text(connection, key), 2)} & {_BUCKET_MASK}) % {buckets} AS b,"
        f" ARRAY[{keys}]::text[] AS k, {row_text(connection, columns)} AS r, xmin::text AS x FROM {relation}"
    )


def _only(rows: str) -> str:
    return f" WHERE ({rows}) IS TRUE" if rows else ""


def _escaped(found: re.Match[bytes]) -> bytes:
    return _ESCAPES[found[0]]


def _names(columns: Sequence[str]) -> str:
    return ", ".join(quote(column) for column in columns)
