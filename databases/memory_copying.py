"""Reading tables of databases in memory, to copy or compare them; see `databases.copying.TableReader`."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from databases.copying import PIECE_BYTES, TablePiece, TablePlan
from databases.memory_store import MemoryStore, Row
from databases.table_digest import TableDigest
from streams.errors import DatabaseError, DatabaseUnavailable

__all__ = ["MemoryTableReader", "packed", "unpacked"]

_ROW_BYTES = 16  # what a row counts for when a table is cut into pieces
_BLOCK_ROWS = 7  # a row or two would never show what a block's end cuts


@dataclass(frozen=True, slots=True, kw_only=True)
class TableContent:
    """A table as it is at one moment.

    Args:
        columns: names.
        rows: in any order that lasts as long as `file`.
        file: changes when the rows are rewritten.
    """

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    file: int = 0


class MemoryTableReader:
    """See the module. A snapshot keeps the rows of every table, and which file each had.

    Args:
        store: the database.
        snapshots: contents under exported snapshots, by name; shared by the readers of one database.
    """

    _numbers = itertools.count(1)

    def __init__(self, store: MemoryStore, snapshots: dict[str, dict[tuple[str, str], TableContent]]) -> None:
        self._store, self._snapshots = store, snapshots

    @contextlib.contextmanager
    def export_snapshot(self) -> Iterator[str]:
        """See `TableReader.export_snapshot`."""
        snapshot = f"memory-{next(self._numbers)}"
        self._snapshots[snapshot] = {table: self._now(*table) for table in self._store.tables}
        try:
            yield snapshot
        finally:
            del self._snapshots[snapshot]

    def plan(
        self, owner: str, name: str, columns: Mapping[str, str], *, snapshot: str = "", piece_bytes: int = PIECE_BYTES  # noqa: ARG002
    ) -> TablePlan:
        """See `TableReader.plan`."""
        content = self._content(owner, name, snapshot)
        step = max(1, piece_bytes // _ROW_BYTES)
        starts = range(0, max(len(content.rows), 1), step)
        return TablePlan(pieces=tuple(
            TablePiece(owner=owner, name=name, place=f"{content.file}:{start}:{start + step}", bytes=step * _ROW_BYTES)
            for start in starts
        ))

    @contextlib.contextmanager
    def open_piece(self, piece: TablePiece, *, snapshot: str = "") -> Iterator[_OpenPiece]:
        """See `TableReader.open_piece`."""
        file, start, end = (int(part) for part in piece.place.split(":"))
        now = self._store.tables.get((piece.owner, piece.name))
        if now is None or now.file != file:
            raise DatabaseUnavailable(f"table {piece.owner}.{piece.name} was rewritten while it was read")
        content = self._content(piece.owner, piece.name, snapshot)
        yield _OpenPiece(content.columns, content.rows[start:end])

    def close(self) -> None:
        """See `TableReader.close`."""

    def _content(self, owner: str, name: str, snapshot: str) -> TableContent:
        if snapshot and snapshot not in self._snapshots:
            raise DatabaseUnavailable(f"the snapshot is gone: {snapshot}")
        if (owner, name) not in (self._snapshots[snapshot] if snapshot else self._store.tables):
            raise DatabaseError(f"there is no table {owner}.{name}")
        return self._snapshots[snapshot][owner, name] if snapshot else self._now(owner, name)

    def _now(self, owner: str, name: str) -> TableContent:
        found = self._store.tables[owner, name]
        columns = tuple(column.name for column in found.table.columns)
        return TableContent(columns=columns, rows=tuple(self._store.rows(owner, name)), file=found.file)


class _OpenPiece:
    def __init__(self, columns: tuple[str, ...], rows: tuple[Row, ...]) -> None:
        self._columns, self._rows = columns, rows

    def digest(self, columns: Sequence[str]) -> TableDigest:
        """See `OpenPiece.digest`."""
        digests = (TableDigest(row_count=1, sums=_hashes(row)) for row in self._chosen(columns))
        return sum(digests, TableDigest())

    def rows(self, columns: Sequence[str], *, form: str) -> Iterator[bytes]:  # noqa: ARG002 - one form for all
        """See `OpenPiece.rows`."""
        rows = list(self._chosen(columns))
        for first in range(0, len(rows), _BLOCK_ROWS):
            yield packed(rows[first : first + _BLOCK_ROWS])

    def _chosen(self, columns: Sequence[str]) -> Iterator[Row]:
        places = [self._columns.index(column) for column in columns]
        return (tuple(row[place] for place in places) for row in self._rows)


def packed(rows: Sequence[Row]) -> bytes:
    """Rows as a block of `OpenPiece.rows`."""
    return pickle.dumps(list(rows))


def unpacked(block: bytes) -> list[Row]:
    """The opposite of `packed`."""
    found: list[Row] = pickle.loads(block)  # noqa: S301 - what `packed` gave, in the same process
    return found


def _hashes(row: Row) -> tuple[int, int]:
    found = hashlib.blake2b(repr(row).encode(), digest_size=16).digest()
    return int.from_bytes(found[:8], "little"), int.from_bytes(found[8:], "little")
