"""Ports for copying and comparing tables. Contract: `tests/contract/test_copying.py`.

Several tasks read a table in pieces at once, each with its own `TableReader`, all under one snapshot. The rows travel
as bytes that only the two connectors understand. A `TableWriter` writes them, tagged, fenced and with triggers off;
every `headrace.databases.ports.DestinationSession` is one.

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
"""Forms of rows in transit: the database's own storage form, or text that every version and column type accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePiece:
    """Some rows of a table, cut out by the connector that planned the copy.

    Args:
        owner, name: of the stored table (for a partition, its own), for messages.
        place: which rows; only the connector reads it.
        bytes: approximate size.
    """

    owner: str
    name: str
    place: str = ""
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """How to read a table: pieces that together hold exactly its rows, and the form its rows can travel in."""

    pieces: tuple[TablePiece, ...]
    form: str = NATIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRow:
    """One row of a row-by-row comparison of two tables.

    Args:
        key: values of its key columns, as text; None is NULL.
        digest: of the whole row; equal rows have equal digests on both sides.
        version: changes whenever the row is written, even with equal values; empty: unknown.
    """

    key: tuple[str | None, ...]
    digest: tuple[int, int]
    version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTable:
    """A table as a SELECT shows it, for comparisons.

    Independent of everything that decides what is captured and copied.

    Args:
        columns: names of all its columns.
        computed: those that the database computes.
        stored: schema and name of each table that stores its rows: itself, or its partitions.
        elsewhere: other origins of rows that a SELECT shows, as texts for people.
        padded: columns whose values the database pads with blanks.
        counts_bytes: padding counts bytes, not characters.
    """

    columns: tuple[str, ...]
    computed: frozenset[str] = frozenset()
    stored: frozenset[tuple[str, str]] = frozenset()
    elsewhere: tuple[str, ...] = ()
    padded: frozenset[str] = frozenset()
    counts_bytes: bool = False


class OpenPiece(Protocol):
    """An open piece. The table cannot be rewritten, altered or dropped while the piece is open."""

    def digest(self, columns: Sequence[str]) -> TableDigest:
        """Count and hash the rows by these columns; equal rows have equal digests in every database of this kind."""
        ...

    def rows(self, columns: Sequence[str], *, form: str, added: Sequence[str | None] = ()) -> Iterator[bytes]:
        """Yield the rows' values for `TableWriter.copy_rows`, in blocks of about 256 KiB.

        Args:
            columns: names, in the order that `copy_rows` gets.
            form: `NATIVE` or `PORTABLE`: the plan's form, or `PORTABLE`, which is always possible.
            added: text values appended to every row, None for NULL; only in `PORTABLE` form.

        Raises:
            DatabaseUnavailable: the connection broke.
        """
        ...

    def values(self, columns: Sequence[str]) -> Iterator[list[TextRow]]:
        """Yield the rows in text form, in blocks of some hundred rows.

        Other calls on the piece are allowed meanwhile.
        """
        ...

    def texts_of_log(self, types: Collection[str]) -> frozenset[str]:
        """Return those `types` (`owner.name`) whose values have the same bytes as text and in the log's binary form."""
        ...

    def digest_values(self, columns: Sequence[str], blocks: Iterable[Sequence[TextRow]]) -> TableDigest:
        """Digest other rows as if the piece had them.

        Args:
            columns: columns of the piece's table, one for each value: they give the types.
            blocks: the rows.

        Raises:
            DatabaseError: a value does not fit the column's type.
        """
        ...

    def lacking(self, columns: Sequence[str], encoding: str) -> str:
        """Return where a value stands that another database's encoding cannot represent, as text for people.

        Empty: no such value, or unknown.

        Args:
            columns: names.
            encoding: the other database's name for it.
        """
        ...

    def packed(self, rows: Sequence[TextRow]) -> bytes:
        """Encode rows as `rows` does in `PORTABLE` form."""
        ...


class TableReader(Protocol):
    """Reads tables of one database, source or destination. One per thread; connects on first use.

    Every method raises `DatabaseUnavailable` when a retry may succeed (under a new snapshot, if one was given), and
    another `DatabaseError` when a retry would fail again.
    """

    def export_snapshot(self) -> AbstractContextManager[str]:
        """Hold a snapshot of the database as it is now; other readers of the same database use it by its name."""
        ...

    def seen(self, owner: str, name: str) -> SeenTable | None:
        """Return a table as a SELECT shows it now; None: no such table.

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
            columns: columns to read, with the types (`owner.name`) they have at the destination.
            snapshot: the snapshot to read under; empty: each piece as it is when it is read.
            piece_bytes: approximate size of a piece.
            rows: an SQL condition over the table's columns (`headrace.rules.conditions.spelling`): only rows for which
                it is TRUE are read; empty: all.

        Raises:
            DatabaseUnavailable: the snapshot is gone.
            DatabaseError: the table does not exist or cannot be read.
        """
        ...

    def open_piece(self, piece: TablePiece, *, snapshot: str = "") -> AbstractContextManager[OpenPiece]:
        """Open a piece. It holds what the snapshot saw, whatever happened to the table since.

        Refuses a table whose rows were moved or rewritten after planning (VACUUM FULL, CLUSTER, TRUNCATE, a rewriting
        ALTER TABLE, DROP): the plan would miss some of its rows.

        Args:
            piece: of this database.
            snapshot: the one given to `plan`.

        Raises:
            DatabaseUnavailable: the snapshot is gone, the table was rewritten, or another session holds a lock on it.
        """
        ...

    def prove_large(
        self, owner: str, name: str, columns: Mapping[str, str], *, snapshot: str = "", rows: str = ""
    ) -> None:
        """Check that rows which may be too large for the database can be read and digested.

        A copy checks this before it removes rows. The arguments are those of `plan`.

        Raises:
            DatabaseUnavailable: as for `plan` and `open_piece`.
            DatabaseError: a row cannot be read.
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

        Equal keys fall into the same bucket everywhere. `snapshot` and `rows` are as for `plan`.

        Args:
            owner: schema.
            name: table.
            key: names of the columns that identify a row.
            columns: names of the columns to compare, in the same order on both sides.
            buckets: number of buckets.
            snapshot: name of the snapshot to read under.
            rows: condition that selects rows.
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
        """Return the rows of some buckets, by key, with their versions.

        `key`, `columns` and `buckets` are as for `bucket_digests`, `snapshot` and `rows` as for `plan`. `wanted` has
        bucket numbers, from 0. At most `rows_max` rows are returned.
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
        """Return the rows that have one of `keys`, in any order, with their versions.

        Uses an index on the key's columns if one exists, else one scan of the table. `keys` are as `bucket_rows` gives
        them, in the order of `key`; the other arguments are as for `bucket_rows`.
        """
        ...

    def interrupt(self) -> None:
        """Interrupt a read on another thread, which raises `DatabaseUnavailable` there. No-op when nothing is read."""
        ...

    def close(self) -> None:
        """Close the connection; idempotent."""
        ...


class TableWriter(Protocol):
    """Writes a copy at a destination, outside `begin`. Part of every `headrace.databases.ports.DestinationSession`."""

    def copy_rows(self, owner: str, name: str, columns: Sequence[str], rows: Iterable[bytes], *, form: str) -> int:
        """Write what `OpenPiece.rows` yields in one separate transaction, all or nothing; triggers do not fire.

        Args:
            owner: schema.
            name: the table.
            columns: names, in the order of the values.
            rows: blocks of one piece.
            form: the blocks' form.

        Returns:
            Rows written.

        Raises:
            DataError: the database refused a row (a duplicate, a constraint). `context["lacking_encoding"]` names the
                database's encoding when it cannot represent a value.
            DatabaseError: the table does not match its description, or this form does not fit it.
            DatabaseUnavailable: whether the rows were written is unknown.
        """
        ...

    def has_rows(self, table: DestinationTable) -> bool:
        """Return whether a table has rows."""
        ...

    def empty_tables(self, tables: Sequence[DestinationTable]) -> None:
        """Remove every row, even from tables that others refer to; tagged, and without firing triggers."""
        ...

    def empty_marked(self, table: DestinationTable) -> str:
        """Remove every row of a table, as `empty_tables` does.

        Returns `files_mark` as it is before any other session writes a row; empty: unknown.
        """
        ...

    def files_mark(self, table: DestinationTable) -> str:
        """Return a mark that changes when a row is written into an empty table, even one removed again.

        Empty: unknown.
        """
        ...


def copied_columns(table: DestinationTable) -> tuple[str, ...]:
    """Return the names of the columns that a copy writes: all but those that the database computes."""
    return tuple(column.name for column in table.columns if not column.is_generated)
