"""Copied and compared rows after custom transformations: a table whose changes arrive masked is copied masked.

The plan of a copy handles names and columns of declarative transformations without looking at a row. A function looks
at rows: the task reads them as text, makes INSERTs of them, and sends these through the same `Reshaping` as a client
does with changes. So a row is copied as its INSERT would arrive. The function is called twice for each row, once for
the digest. If it returns different results for the same row, the copy differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from headrace.base.plain_data import AsBytes
from headrace.lcr.batch import Column, Command, LcrBatch, OldImage, TableVersion, content_version
from headrace.lcr.building import batch_of_values
from headrace.lcr.scn import NO_OBJECT
from headrace.lcr.table_name import TableName
from headrace.lcr.values import NULL
from headrace.rules.transformations.reshaping import Reshaping
from headrace.rules.transformations.transformation import AddColumn, Transformation, columns_at_the_end

if TYPE_CHECKING:
    from headrace.databases.ports.copying import OpenPiece, TextRow
    from headrace.databases.table_digest import TableDigest
    from headrace.rules.conditions.values import ValueTypes

__all__ = ["ReshapedPiece", "ReshapedTable", "has_function", "timestamp_text"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def has_function(transformations: Sequence[Transformation]) -> bool:
    """Return whether rows must be looked at to copy or compare them."""
    return any(each.custom is not None for each in transformations)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshapedTable(AsBytes):
    """A table of the source, and how its rows are transformed.

    Args:
        source: name of the source's site.
        owner, name: of the table there.
        columns: as the log describes them; functions may look at any.
        transformations: in the order of the clients.
        time_us: the time for added columns, microseconds since the Unix epoch, UTC.
    """

    source: str
    owner: str
    name: str
    columns: tuple[Column, ...]
    transformations: tuple[Transformation, ...]
    time_us: int = 0

    @property
    def version(self) -> TableVersion:
        """The table version of copied rows: every value is text."""
        found = TableVersion(
            object_number=NO_OBJECT,
            version=0,
            owner=self.owner,
            name=self.name,
            old_image=OldImage.FULL,
            columns=tuple(replace(column, is_binary=False) for column in self.columns),
        )
        return replace(found, version=content_version(found))

    def origins(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the source's names of columns that come from it.

        Args:
            columns: names at the destination.
        """
        found = dict(
            columns_at_the_end(
                [column.name for column in self.columns], self.transformations, table=TableName(self.owner, self.name)
            )
        )
        return tuple(origin for name in columns if isinstance(origin := found[name], str))


class ReshapedPiece:
    """A piece of the source whose rows are transformed as arriving changes are.

    It has the methods of `headrace.databases.ports.copying.OpenPiece` for digests and rows.

    Args:
        piece: as the source has it.
        table: describes the transformation of its rows.
        types: how functions see values.
    """

    def __init__(self, piece: OpenPiece, table: ReshapedTable, types: ValueTypes) -> None:
        self._piece, self._table = piece, table
        # Functions must see the same object for a copied row as for a change, or they would mask it differently.
        decode = types.decoded
        if any(column.is_binary for column in table.columns):
            texts = piece.texts_of_log({column.type_name for column in table.columns})
            decode = partial(types.decoded_of_copy, texts=texts)
        self._steps = tuple(
            Reshaping(lambda _owner, _name, each=each: each, lambda: table.time_us, types, decode=decode)  # type: ignore[misc]
            for each in (_with_time(each, table.time_us) for each in table.transformations)
        )

    def digest(self, columns: Sequence[str]) -> TableDigest:
        """Digest the transformed rows, as `OpenPiece.digest` does.

        Args:
            columns: names at the destination, of columns that come from the source.
        """
        return self._piece.digest_values(self._table.origins(columns), self._values(columns))

    def rows(self, columns: Sequence[str]) -> Iterator[bytes]:
        """Return the transformed rows as `OpenPiece.rows` does, in `PORTABLE` form.

        Args:
            columns: names at the destination, including added ones.
        """
        return (self._piece.packed(rows) for rows in self._values(columns))

    def _values(self, columns: Sequence[str]) -> Iterator[list[TextRow]]:
        """Yield the transformed rows, in blocks."""
        version = self._table.version
        for block in self._piece.values([column.name for column in version.columns]):
            batch = batch_of_values(
                version,
                Command.INSERT,
                new=[[NULL if value is None else value for value in row] for row in block],
                source=self._table.source,
            )
            for step in self._steps:
                batch = step.batch(batch)
            if batch.row_count:
                yield list(_rows(batch, columns))


def timestamp_text(time_us: int) -> str:
    """Return a moment as the text form of a timestamp with time zone.

    Args:
        time_us: microseconds since the Unix epoch, UTC.
    """
    moment = _EPOCH + timedelta(microseconds=time_us)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond:06d}+00"


def _with_time(transformation: Transformation, time_us: int) -> Transformation:
    """Return a transformation that adds a moment as text where it adds the time.

    A change has it in binary form, but every value of a copied row is text.
    """
    return replace(
        transformation,
        operations=tuple(
            replace(each, value=timestamp_text(time_us), is_now=False)
            if isinstance(each, AddColumn) and each.is_now
            else each
            for each in transformation.operations
        ),
    )


def _rows(batch: LcrBatch, columns: Sequence[str]) -> Iterator[TextRow]:
    """Yield the new rows of a batch, in its order."""
    groups = [
        (batch.tables[group.table], group, cells) for group, (_, cells) in zip(batch.groups, batch.cells, strict=True)
    ]
    places = {
        number: [[c.name for c in table.columns].index(name) for name in columns]
        for number, (table, _, _) in enumerate(groups)
    }
    for group, within in zip(*(found.tolist() for found in batch.row_places), strict=True):
        cells = groups[group][2]
        assert cells is not None  # INSERTs stay INSERTs
        values = (cells.value(place, within) for place in places[group])
        yield tuple(value if isinstance(value, bytes) else None for value in values)
