"""Readers of in-memory tables, for copies and comparisons (`headrace.databases.ports.copying.TableReader`)."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.base.errors import DatabaseError, DatabaseUnavailable
from headrace.databases.memory.conditions import condition_in_memory
from headrace.databases.memory.source import MemorySource
from headrace.databases.memory.store import MemoryStore, Row, compared_columns
from headrace.databases.ports.copying import PIECE_BYTES, KeyedRow, SeenTable, TablePiece, TablePlan, TextRow
from headrace.databases.table_digest import TableDigest
from headrace.lcr.batch import Column

__all__ = ["MemoryTableReader", "SourceTables", "StoreTables", "packed", "unpacked"]

_ROW_BYTES = 16  # assumed size of a row when a table is cut into pieces
_BLOCK_ROWS = 7  # small, so that tables of tests span several blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class TableContent:
    """A table's content at one moment.

    Args:
        columns: names.
        types: the same columns, with their types for conditions.
        rows: in any order that is stable while `file` is unchanged.
        file: changes when the rows are rewritten.
    """

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    types: tuple[Column, ...]
    file: int = 0


class Tables(Protocol):
    """Where a reader looks up tables."""

    def content(self, owner: str, name: str) -> TableContent | None:
        """Return a table as it is now; None: it does not exist.

        Args:
            owner: schema.
            name: the table.
        """
        ...


class SourceTables:
    """The tables of a `MemorySource`."""

    def __init__(self, source: MemorySource) -> None:
        self._source = source

    def content(self, owner: str, name: str) -> TableContent | None:
        """See `Tables.content`."""
        if not self._source.has_table(f"{owner}.{name}"):
            return None
        table = self._source.table(f"{owner}.{name}")
        columns = tuple(column.name for column in table.version.columns)
        return TableContent(
            columns=columns, rows=self._source.rows(f"{owner}.{name}"), types=table.version.columns, file=table.file
        )


class StoreTables:
    """The tables of a `MemoryStore`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def content(self, owner: str, name: str) -> TableContent | None:
        """See `Tables.content`."""
        found = self._store.tables.get((owner, name))
        if found is None:
            return None
        columns = tuple(column.name for column in found.table.columns)
        return TableContent(
            columns=columns, rows=tuple(self._store.rows(owner, name)), types=compared_columns(found), file=found.file
        )


class MemoryTableReader:
    """A reader of in-memory tables. A snapshot keeps every named table as it was at the export.

    Args:
        tables: where to look them up.
        snapshots: contents under exported snapshots, by name; shared by the readers of one database.
        names: of the tables a snapshot keeps.
    """

    _numbers = itertools.count(1)

    def __init__(
        self,
        tables: Tables,
        snapshots: dict[str, dict[tuple[str, str], TableContent | None]],
        names: Sequence[tuple[str, str]],
    ) -> None:
        self._tables, self._snapshots, self._names = tables, snapshots, names

    @contextlib.contextmanager
    def export_snapshot(self) -> Iterator[str]:
        """See `TableReader.export_snapshot`."""
        snapshot = f"memory-{next(self._numbers)}"
        self._snapshots[snapshot] = {name: self._tables.content(*name) for name in self._names}
        try:
            yield snapshot
        finally:
            del self._snapshots[snapshot]

    def seen(self, owner: str, name: str) -> SeenTable | None:
        """See `TableReader.seen`."""
        content = self._tables.content(owner, name)
        return None if content is None else SeenTable(columns=content.columns, stored=frozenset({(owner, name)}))

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
        content = self._content(owner, name, snapshot)
        step = max(1, piece_bytes // _ROW_BYTES)
        starts = range(0, max(len(content.rows), 1), step)
        return TablePlan(
            pieces=tuple(
                TablePiece(
                    owner=owner,
                    name=name,
                    place=f"{content.file}:{start}:{start + step}:{rows}",
                    bytes=step * _ROW_BYTES,
                )
                for start in starts
            )
        )

    @contextlib.contextmanager
    def open_piece(self, piece: TablePiece, *, snapshot: str = "") -> Iterator[_OpenPiece]:
        """See `TableReader.open_piece`."""
        *numbers, rows = piece.place.split(":", 3)
        file, start, end = map(int, numbers)
        now = self._tables.content(piece.owner, piece.name)
        if now is None or now.file != file:
            raise DatabaseUnavailable(f"table {piece.owner}.{piece.name} was rewritten while it was read")
        content = self._content(piece.owner, piece.name, snapshot)
        yield _OpenPiece(content.columns, tuple(_those(content, content.rows[start:end], rows)))

    def prove_large(
        self, owner: str, name: str, columns: Mapping[str, str], *, snapshot: str = "", rows: str = ""
    ) -> None:
        """See `TableReader.prove_large`: every row can be read here."""

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
        digests = [TableDigest()] * buckets
        for bucket, row in self._keyed(owner, name, key, columns, buckets, snapshot, rows):
            digests[bucket] += TableDigest(row_count=1, sums=row.digest)
        return tuple(digests)

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
        found = [
            row for bucket, row in self._keyed(owner, name, key, columns, buckets, snapshot, rows) if bucket in wanted
        ]
        return tuple(sorted(found, key=lambda row: (str(row.key), row.digest))[:rows_max])

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
        wanted = set(keys)
        return tuple(row for _, row in self._keyed(owner, name, key, columns, 1, snapshot, rows) if row.key in wanted)

    def interrupt(self) -> None:
        """See `TableReader.interrupt`: no call takes long here."""

    def close(self) -> None:
        """See `TableReader.close`."""

    def _content(self, owner: str, name: str, snapshot: str) -> TableContent:
        if snapshot and snapshot not in self._snapshots:
            raise DatabaseUnavailable(f"the snapshot is gone: {snapshot}")
        content = self._snapshots[snapshot].get((owner, name)) if snapshot else self._tables.content(owner, name)
        if content is None:
            raise DatabaseError(f"there is no table {owner}.{name}")
        return content

    def _keyed(
        self,
        owner: str,
        name: str,
        key: Sequence[str],
        columns: Sequence[str],
        buckets: int,
        snapshot: str,
        rows: str,
    ) -> Iterator[tuple[int, KeyedRow]]:
        content = self._content(owner, name, snapshot)
        for row in _those(content, content.rows, rows):
            values = dict(zip(content.columns, row, strict=True))
            texts = tuple(None if values[column] is None else (values[column] or b"").decode() for column in key)
            digest = _hashes(tuple(values[column] for column in columns))
            yield _hashes(tuple(values[column] for column in key))[0] % buckets, KeyedRow(key=texts, digest=digest)


def _those(content: TableContent, rows: Sequence[Row], condition: str) -> Sequence[Row]:
    """Return the rows for which a condition is TRUE."""
    if not condition:
        return rows
    is_one = condition_in_memory(condition, content.types)
    return [row for row in rows if is_one(row)]


class _OpenPiece:
    def __init__(self, columns: tuple[str, ...], rows: tuple[Row, ...]) -> None:
        self._columns, self._rows = columns, rows

    def digest(self, columns: Sequence[str]) -> TableDigest:
        """See `OpenPiece.digest`."""
        digests = (TableDigest(row_count=1, sums=_hashes(row)) for row in self._chosen(columns))
        return sum(digests, TableDigest())

    def rows(self, columns: Sequence[str], *, form: str, added: Sequence[str | None] = ()) -> Iterator[bytes]:
        """See `OpenPiece.rows`."""
        constants = tuple(None if value is None else value.encode() for value in added)
        rows = [row + constants for row in self._chosen(columns)]
        for first in range(0, len(rows), _BLOCK_ROWS):
            yield packed(rows[first : first + _BLOCK_ROWS])

    def values(self, columns: Sequence[str]) -> Iterator[list[TextRow]]:
        """See `OpenPiece.values`."""
        rows = list(self._chosen(columns))
        for first in range(0, len(rows), _BLOCK_ROWS):
            yield rows[first : first + _BLOCK_ROWS]

    def texts_of_log(self, types: Collection[str]) -> frozenset[str]:
        """See `OpenPiece.texts_of_log`."""
        return frozenset(types)

    def digest_values(self, columns: Sequence[str], blocks: Iterable[Sequence[TextRow]]) -> TableDigest:
        """See `OpenPiece.digest_values`."""
        return sum((TableDigest(row_count=1, sums=_hashes(row)) for rows in blocks for row in rows), TableDigest())

    def lacking(self, columns: Sequence[str], encoding: str) -> str:
        """See `OpenPiece.lacking`."""
        return ""

    def packed(self, rows: Sequence[TextRow]) -> bytes:
        """See `OpenPiece.packed`."""
        return packed(rows)

    def _chosen(self, columns: Sequence[str]) -> Iterator[Row]:
        places = [self._columns.index(column) for column in columns]
        return (tuple(row[place] for place in places) for row in self._rows)


def packed(rows: Sequence[Row]) -> bytes:
    """Serialize rows as a block of `OpenPiece.rows`."""
    return pickle.dumps(list(rows))


def unpacked(block: bytes) -> list[Row]:
    """Deserialize what `packed` returned."""
    found: list[Row] = pickle.loads(block)  # noqa: S301 - `packed` wrote it in the same process
    return found


def _hashes(row: Row) -> tuple[int, int]:
    found = hashlib.blake2b(repr(row).encode(), digest_size=16).digest()
    return int.from_bytes(found[:8], "little"), int.from_bytes(found[8:], "little")
