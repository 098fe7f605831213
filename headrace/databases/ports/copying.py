"""What copying and comparing tables needs of a database, as ports. Contract: `tests/contract/test_copying.py`.

A table is read in pieces, by several tasks at once, each with a `TableReader` of its own, all under one snapshot. The
rows travel as bytes that only the two connectors understand, and are written by a `TableWriter`, which every
`headrace.databases.ports.DestinationSession` is: tagged, fenced, and with triggers off.

    plan = reader.plan("public", "t", {"id": "pg_catalog.int8"}, snapshot=name)
    for piece in plan.pieces:                                              # in any order, on any connection
        with reader.open_piece(piece, snapshot=name) as opened:
            digest = opened.digest(("id",))
            session.copy_rows("public", "t", ("id",), opened.rows(("id",), form=plan.form), form=plan.form)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from headrace.databases.table_digest import TableDigest

if TYPE_CHECKING:
    from headrace.databases.ports import DestinationTable

__all__ = [
    "NATIVE",
    "PIECE_BYTES",
    "PORTABLE",
    "KeyedRow",
    "OpenPiece",
    "SeenTable",
    "TablePiece",
    "TablePlan",
    "TableReader",
    "TableWriter",
    "TextRow",
    "copied_columns",
]

# A few seconds of work: enough pieces to keep every task busy to the end, few enough that starting one costs nothing.
PIECE_BYTES = 64 << 20

TextRow = tuple[bytes | None, ...]
"""A row's values in text form; None is NULL."""

NATIVE, PORTABLE = "native", "portable"
"""Forms of rows on their way: as the database stores values, or as text that any version and type of column takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePiece:
    """Some rows of a table, as the connector that planned it cuts them.

    Args:
        owner, name: of the stored table (of a partition: its own), for messages.
        place: which rows; only the connector reads it.
        bytes: about how much it is.
    """

    owner: str
    name: str
    place: str = ""
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """How a table is read: pieces that together are exactly its rows, and the form its rows can travel in."""

    pieces: tuple[TablePiece, ...]
    form: str = NATIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRow:
    """One row when two tables are compared row by row.

    Args:
        key: its key columns, as text; NULL is None.
        digest: of the whole row; equal rows have equal digests on both sides.
        version: another one whenever the row has been written, also with the same values; empty: not known.
    """

    key: tuple[str | None, ...]
    digest: tuple[int, int]
    version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTable:
    """What a SELECT shows of a table, for whoever compares it.

    Asked apart from all that decides what is captured and copied.

    Args:
        columns: names of all its columns.
        computed: those that the database computes.
        stored: schema and name of each table that has rows of it: itself, or its partitions.
        elsewhere: what has other rows that a SELECT shows, as texts for people.
        padded: columns whose values the database fills up with blanks.
        counts_bytes: it does so by bytes, not by letters.
    """

    columns: tuple[str, ...]
    computed: frozenset[str] = frozenset()
    stored: frozenset[tuple[str, str]] = frozenset()
    elsewhere: tuple[str, ...] = ()
    padded: frozenset[str] = frozenset()
    counts_bytes: bool = False


class OpenPiece(Protocol):
    """A piece while it is read. The table cannot be rewritten, altered or dropped meanwhile."""

    def digest(self, columns: Sequence[str]) -> TableDigest:
        """Count and hash the rows by these columns; the same rows have the same digest in every database of the kind."""
        ...

    def rows(self, columns: Sequence[str], *, form: str, added: Sequence[str | None] = ()) -> Iterator[bytes]:
        """The rows' values for `TableWriter.copy_rows`, in blocks of some 100 KiB.

        Args:
            columns: names, in the order `copy_rows` is given.
            form: `NATIVE` or `PORTABLE`; what `plan` said, or `PORTABLE`, which is always possible.
            added: values as text that every row has behind those of its columns, None for NULL; only in `PORTABLE`
                form.

        Raises:
            DatabaseUnavailable: the connection broke.
        """
        ...

    def values(self, columns: Sequence[str]) -> Iterator[list[TextRow]]:
        """The rows in text form, in blocks of some hundred; anything else may be asked of the piece meanwhile."""
        ...

    def texts_of_log(self, types: Collection[str]) -> frozenset[str]:
        """Those of these types (`owner.name`) whose values are the same bytes as text and in the binary form of the log."""
        ...

    def digest_values(self, columns: Sequence[str], blocks: Iterable[Sequence[TextRow]]) -> TableDigest:
        """What `digest` would answer if the piece had other rows.

        Args:
            columns: of the piece's table: one for each value, for its type.
            blocks: the rows.

        Raises:
            DatabaseError: a value does not fit the column's type.
        """
        ...

    def lacking(self, columns: Sequence[str], encoding: str) -> str:
        """Where a value is that another database's encoding has no characters for, for people.

        Empty: nowhere, or it is not known.

        Args:
            columns: names.
            encoding: as that database calls it.
        """
        ...

    def packed(self, rows: Sequence[TextRow]) -> bytes:
        """Rows as `rows` gives them in `PORTABLE` form."""
        ...


class TableReader(Protocol):
    """Reads tables of one database, source or destination. One per thread; connects when it is first used.

    Every method raises `DatabaseUnavailable` when the same may succeed later, under a new snapshot if one was given,
    and another `DatabaseError` when it would fail again.
    """

    def export_snapshot(self) -> AbstractContextManager[str]:
        """Hold a snapshot of the database as it is now; its name lets other readers of the same database use it."""
        ...

    def seen(self, owner: str, name: str) -> SeenTable | None:
        """What a SELECT shows of a table now; None: there is no such table.

        Args:
            owner: schema.
            name: table, partitioned or not.
        """
        ...

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
        """Cut a table into pieces.

        Args:
            owner: schema.
            name: table, partitioned or not.
            columns: those to be read, with the types (`owner.name`) they have where they are written.
            snapshot: under which it will be read; empty: each piece as it is when it is read.
            piece_bytes: about how large a piece is.
            rows: a condition in SQL over the table's columns (`headrace.rules.conditions.spelling`): only rows for which it is
                TRUE are read; empty: all.

        Raises:
            DatabaseUnavailable: the snapshot is gone.
            DatabaseError: there is no such table, or it cannot be read.
        """
        ...

    def open_piece(self, piece: TablePiece, *, snapshot: str = "") -> AbstractContextManager[OpenPiece]:
        """Begin to read a piece; what is read is what the snapshot saw, whatever happened to the table since.

        A table whose rows were moved or rewritten since it was planned (VACUUM FULL, CLUSTER, TRUNCATE, an ALTER TABLE
        that rewrites, DROP) is refused: under the same plan some of its rows would be missing.

        Args:
            piece: of this database.
            snapshot: as `plan` was given.

        Raises:
            DatabaseUnavailable: the snapshot is gone, the table was rewritten, or another session keeps it locked.
        """
        ...

    def prove_large(
        self, owner: str, name: str, columns: Mapping[str, str], *, snapshot: str = "", rows: str = ""
    ) -> None:
        """See that the rows of a table that may be too large for the database can be read and digested.

        Asked before a copy removes rows.

        Args:
            owner: schema.
            name: table, partitioned or not.
            columns: see `plan`.
            snapshot: see `plan`.
            rows: see `plan`.

        Raises:
            DatabaseUnavailable: as of `plan` and `open_piece`.
            DatabaseError: one cannot.
        """
        ...

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
        """Digest a table's rows, divided into buckets by a hash of their key.

        The same key is in the same bucket everywhere.

        Args:
            owner: schema.
            name: table.
            key: names of the columns that tell rows apart.
            columns: names of the columns that are compared, on both sides in the same order.
            buckets: how many.
            snapshot: see `plan`.
            rows: see `plan`.
        """
        ...

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
        """The rows of some buckets, by key, with their versions, `rows_max` at most.

        Args:
            owner: schema.
            name: table.
            key: see `bucket_digests`.
            columns: see `bucket_digests`.
            buckets: see `bucket_digests`.
            wanted: numbers of buckets, from 0.
            rows_max: bounds the answer.
            snapshot: see `plan`.
            rows: see `plan`.
        """
        ...

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
        """The rows that have one of these keys, in any order, with their versions.

        By an index on the key's columns, if there is one, else in one scan of the table.

        Args:
            owner: schema.
            name: table.
            key: see `bucket_digests`.
            columns: see `bucket_digests`.
            keys: as `bucket_rows` gives them, in the order of `key`.
            snapshot: see `plan`.
            rows: see `plan`.
        """
        ...

    def interrupt(self) -> None:
        """End what is being read on another thread: it raises `DatabaseUnavailable` there. Nothing is read: nothing."""
        ...

    def close(self) -> None:
        """Close the connection; idempotent."""
        ...


class TableWriter(Protocol):
    """What a copy does to a destination; part of every `headrace.databases.ports.DestinationSession`. Outside `begin`."""

    def copy_rows(self, owner: str, name: str, columns: Sequence[str], rows: Iterable[bytes], *, form: str) -> int:
        """Write what `OpenPiece.rows` gives, in a transaction of its own, all or nothing; triggers do not fire.

        Args:
            owner: schema.
            name: the table.
            columns: names, in the order of the values.
            rows: blocks of one piece.
            form: in which they come.

        Returns:
            Rows written.

        Raises:
            DataError: a row was refused (a duplicate, a constraint). `context["lacking_encoding"]` is the database's
                encoding, where that has no character of a value.
            DatabaseError: the table is not as described, or this form does not fit it.
            DatabaseUnavailable: nobody knows whether they were written.
        """
        ...

    def has_rows(self, table: DestinationTable) -> bool:
        """Whether a table has rows."""
        ...

    def empty_tables(self, tables: Sequence[DestinationTable]) -> None:
        """Remove every row, also from a table that others refer to; tagged, and without firing triggers."""
        ...

    def empty_marked(self, table: DestinationTable) -> str:
        """Remove every row of a table, see `empty_tables`.

        Returns `files_mark` as it is before anybody else writes a row; empty: that is not known.
        """
        ...

    def files_mark(self, table: DestinationTable) -> str:
        """What a row that is written into an empty table changes, also if it is gone again; empty: that is not known."""
        ...


def copied_columns(table: DestinationTable) -> tuple[str, ...]:
    """Names of the columns that a copy writes: not those the database computes."""
    return tuple(column.name for column in table.columns if not column.is_generated)
