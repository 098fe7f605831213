"""Transformations of whole batches: table versions, and the columns of their rows. No row is looked at, but those that a function gets.

What leaves a column alone copies nothing; what takes columns away or adds some copies the others as one block each. Versions that
are alike behind the transformation (an ALTER added a column that does not travel) become one, with one group per command.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from rules.subsetting import together
from rules.transformation import CURRENT_TIMESTAMP_NUMBER, AddColumn, Shape, Transformation, TransformationError
from rules.user_code.calling import CustomCalls
from streams.lcr_batch import (
    ABSENT,
    NULL,
    Column,
    ColumnValues,
    Command,
    LcrBatch,
    OldImage,
    RowGroup,
    TableVersion,
    content_version,
)
from streams.table_name import TableName

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rules.conditions.values import ValueTypes
    from rules.user_code.custom import CustomTransformation
    from rules.user_code.last_call import LastCall

__all__ = ["Reshaping", "transformed_version"]

_VERSIONS_MAX = 4096  # a table has a new version with each ALTER, and a TRUNCATE of a partition one of its own
_PG_EPOCH_US = 946_684_800_000_000


class _Unknown:
    """Nobody has asked for the table version."""


_UNKNOWN = _Unknown()


@dataclass(frozen=True, slots=True)
class _Reshaped:
    version: TableVersion
    places: tuple[int, ...]  # of its columns before; -1: an added one
    is_renamed_only: bool
    added: _Added
    custom: CustomTransformation | None


class Reshaping:
    """Applies the transformations of one client.

    Args:
        transformation_of: the transformation of a table (schema, name); None: it stays as it is.
        time_us: microseconds since the Unix epoch, UTC.
        types: how functions see values; see `CustomCalls`.
        last_call: see `CustomCalls`.
    """

    def __init__(
        self, transformation_of: Callable[[str, str], Transformation | None], time_us: Callable[[], int], types: ValueTypes | None = None,
        last_call: LastCall | None = None,
    ) -> None:
        self._transformation_of, self._time_us = transformation_of, time_us
        self._calls = CustomCalls(types, last_call=last_call)
        self._known: dict[TableVersion, _Reshaped | None] = {}
        self._names: dict[TableName, TableName] = {}

    def version(self, table: TableVersion) -> TableVersion:
        """A table version behind the client.

        Args:
            table: before it.

        Raises:
            TransformationError: a transformation cannot be applied to the table.
        """
        found = self._reshaped(table)
        return table if found is None else found.version

    def named(self, table: TableVersion) -> TableVersion:
        """A table version under its name behind the client, whether or not its columns can be transformed.

        Args:
            table: before the client.
        """
        key = TableName.of(table)
        if key not in self._names:
            if len(self._names) >= _VERSIONS_MAX:
                self._names.clear()
            transformation = self._transformation_of(*key)
            self._names[key] = key if transformation is None else transformation.named(key)
        owner, name = self._names[key]
        return table if (owner, name) == key else replace(table, owner=owner, name=name)

    def changes(self, table: TableVersion) -> bool:
        """Whether a table version is another one behind the client."""
        return self._reshaped(table) is not None

    def batch(self, batch: LcrBatch) -> LcrBatch:
        """A batch behind the client; the same object where nothing changes.

        Args:
            batch: with what the client's rules keep. A table of which it holds nothing is left as it is: nobody needs it transformed.

        Raises:
            TransformationError: a transformation cannot be applied to a table, or its function failed.
        """
        used = {group.table for group in batch.groups}.union(*(truncate.tables for truncate in batch.truncates))
        found = [self._reshaped(table) if place in used else None for place, table in enumerate(batch.tables)]
        if not any(found):
            return batch
        times = [same for each in found if each is not None for same in each.added.times]
        if times:
            now = _timestamp(self._time_us())
            for same in times:
                same.set(now)
        tables: dict[TableVersion, int] = {}
        places = [
            tables.setdefault(table if each is None else each.version, len(tables)) for table, each in zip(batch.tables, found, strict=True)
        ]
        groups: dict[tuple[int, Command], list[RowGroup]] = {}
        customs: dict[int, CustomTransformation] = {}
        for group in batch.groups:
            reshaped, place = found[group.table], places[group.table]
            if reshaped is not None and reshaped.custom is not None:
                customs[place] = reshaped.custom
            if reshaped is not None and not reshaped.is_renamed_only:
                moved = _group(group, reshaped.places, reshaped.added, place)
            else:
                moved = group if place == group.table else replace(group, table=place)
            groups.setdefault((moved.table, moved.command), []).append(moved)
        declared = replace(
            batch, tables=tuple(tables), groups=tuple(together(each) for each in groups.values()),
            truncates=tuple(
                replace(truncate, tables=tuple(dict.fromkeys(places[table] for table in truncate.tables))) for truncate in batch.truncates
            ),
        )
        return self._calls.batch(declared, customs) if customs else declared

    def _reshaped(self, table: TableVersion) -> _Reshaped | None:
        found = self._known.get(table, _UNKNOWN)
        if isinstance(found, _Unknown):
            if len(self._known) >= _VERSIONS_MAX:
                self._known.clear()
            transformation = self._transformation_of(table.owner, table.name)
            found = self._known[table] = None if transformation is None else _found(table, transformation)
        return found


def _found(table: TableVersion, transformation: Transformation) -> _Reshaped | None:
    version, shape = transformed_version(table, transformation)
    if transformation.custom is None and replace(version, version=table.version) == table:
        return None
    before = {column.name: place for place, column in enumerate(table.columns)}
    places = tuple(-1 if isinstance(origin, AddColumn) else before[origin] for _, origin in shape.columns)
    added = tuple(origin for _, origin in shape.columns if isinstance(origin, AddColumn))
    is_renamed_only = places == tuple(range(len(table.columns)))
    return _Reshaped(version, places, is_renamed_only, _Added.of(added, is_whole=version.old_image is OldImage.FULL), transformation.custom)


class _Same:
    """One value in any number of rows."""

    __slots__ = ("_data", "_length", "_lengths", "_value", "size")

    def __init__(self, value: bytes | int | None) -> None:
        self._value = value if isinstance(value, bytes) else b""
        self.size = len(self._value)
        self._length = self.size if isinstance(value, bytes) else NULL if value is None else value
        self._lengths, self._data = np.empty((1, 0), np.int32), np.empty(0, np.uint8)

    def set(self, value: bytes) -> None:
        """Another value, of the same size."""
        self._value, self._data = value, np.empty(0, np.uint8)

    def rows(self, count: int) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Lengths, int32[1, count], and bytes of so many rows; no row of a batch is beyond its bounds, so neither is what is kept here."""
        if count > self._lengths.shape[1]:
            self._lengths = np.full((1, count), self._length, np.int32)
        if self.size * count > self._data.shape[0]:
            self._data = np.frombuffer(self._value * count, np.uint8)
        return self._lengths[:, :count], self._data[: self.size * count]


@dataclass(frozen=True, slots=True)
class _Added:
    """The values of the columns that are added, in the old image and in the new one; and those of them that are the time, to be set for each batch."""

    old: tuple[_Same, ...]
    new: tuple[_Same, ...]
    times: tuple[_Same, ...]

    @classmethod
    def of(cls, added: Sequence[AddColumn], *, is_whole: bool) -> _Added:
        """Of some columns.

        Args:
            added: the columns.
            is_whole: old values are logged whatever changes. Under a replica identity of key columns an UPDATE that left them alone has no old
                values at all, and must stay so.
        """
        values = [_timestamp(0) if each.is_now else None if each.value is None else each.value.encode() for each in added]
        new = [_Same(value) for value in values]
        old = [_Same(ABSENT if each.is_now or not is_whole else value) for each, value in zip(added, values, strict=True)]
        return cls(tuple(old), tuple(new), tuple(same for same, each in zip(new, added, strict=True) if each.is_now))


def _group(group: RowGroup, places: tuple[int, ...], added: _Added, table: int) -> RowGroup:
    """The rows of a group with other columns; `table`: their place."""
    return RowGroup(
        table=table, command=group.command, row_numbers=group.row_numbers, old=_values(group.old, places, added.old), new=_values(group.new, places, added.new),
    )


def _values(values: ColumnValues | None, places: tuple[int, ...], added: Sequence[_Same]) -> ColumnValues | None:
    """Some columns of values, and others that have one value in every row.

    Args:
        values: of n rows; None: there are none.
        places: of the columns that stay; -1: the next one of `added`.
        added: one for each -1.
    """
    if values is None:
        return None
    neighbours = _neighbours(places)
    if len(neighbours) == 1 and neighbours[0][2] >= 0:
        _, end, place = neighbours[0]
        return ColumnValues(lengths=values.lengths[place : place + end], data=values.data, starts=values.starts[place : place + end + 1])
    count, before = values.row_count, values.starts.tolist()
    lengths: list[NDArray[np.int32]] = []
    data = [np.empty(0, np.uint8)]
    starts, given = [0], iter(added)
    for column, end, place in neighbours:
        if place >= 0:
            last, moved = place + end - column, starts[-1] - before[place]
            lengths.append(values.lengths[place:last])
            data.append(values.data[before[place] : before[last]])
            starts += [start + moved for start in before[place + 1 : last + 1]]
        else:
            same = next(given)
            its_lengths, its_data = same.rows(count)
            lengths.append(its_lengths)
            data.append(its_data)
            starts.append(starts[-1] + same.size * count)
    return ColumnValues(lengths=np.concatenate(lengths), data=np.concatenate(data), starts=np.array(starts, np.int64))


@functools.lru_cache(_VERSIONS_MAX)
def _neighbours(places: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    """Columns that stay neighbours, whose bytes are one block: the first one, the one behind the last, and the place of the first before; -1: an added one."""
    found: list[tuple[int, int, int]] = []
    for column, place in enumerate(places):
        first, end, begin = found[-1] if found else (0, 0, -1)
        if place >= 0 and begin >= 0 and place == begin + end - first:
            found[-1] = (first, column + 1, begin)
        else:
            found.append((column, column + 1, place))
    return tuple(found)


def transformed_version(version: TableVersion, transformation: Transformation) -> tuple[TableVersion, Shape]:
    """A table version behind a client, and where its columns come from.

    Args:
        version: before the client.
        transformation: of the rule that takes its LCRs.

    Raises:
        TransformationError: it cannot be applied to this table.
    """
    shape = transformation.shape([column.name for column in version.columns], table=version.qualified_name)
    before = {column.name: column for column in version.columns}
    columns = tuple(_column(name, origin) if isinstance(origin, AddColumn) else replace(before[origin], name=name) for name, origin in shape.columns)
    taken = {origin for _, origin in shape.columns if isinstance(origin, str)}
    lost = [column.name for column in version.columns if column.is_key and column.name not in taken]
    if lost and version.old_image is OldImage.KEY:
        raise TransformationError(
            f"a transformation deletes {', '.join(lost)}, and rows of {version.qualified_name} are found by it",
            hint="keep the columns that identify a row; or let the source log whole old rows (REPLICA IDENTITY FULL), and give the destination a"
            " key of columns that arrive", table=version.qualified_name, column=lost[0],
        )
    owner, name = transformation.named(TableName.of(version))
    partition = version.partition
    gone = frozenset(before) - {name_ for name_, origin in shape.columns if name_ == origin and not transformation.may_change(name_)}
    if partition is not None and _may_name(partition.rows, gone):
        # The rows of a partition are said over the source's columns: where one of these is not here, or is called otherwise, nobody can
        # tell which they are, and the destination says so.
        partition = replace(partition, rows="")
    changed = replace(version, owner=owner, name=name, columns=columns, partition=partition)
    return replace(changed, version=content_version(changed)), shape


def _column(name: str, added: AddColumn) -> Column:
    """An added column: a time comes in binary form, in less than a third of the bytes, and what is in the file in text form."""
    return Column(name=name, type_name=added.type_name, type_number=CURRENT_TIMESTAMP_NUMBER if added.is_now else 0, is_binary=added.is_now)


def _may_name(condition: str, columns: frozenset[str]) -> bool:
    """Whether a condition in SQL may name one of some columns; texts in it do not count, unless there is a backslash."""
    if "\\" not in condition:
        condition = re.sub(r"'(?:[^']|'')*'", "''", condition)
    return any(re.search(rf"(?<![\w$]){re.escape(name.replace(chr(34), chr(34) * 2))}(?![\w$])", condition) for name in columns)


def _timestamp(time_us: int) -> bytes:
    """A moment as PostgreSQL's binary form of a timestamp with time zone: microseconds since 2000-01-01.

    Args:
        time_us: microseconds since the Unix epoch, UTC.
    """
    return (time_us - _PG_EPOCH_US).to_bytes(8, "big", signed=True)
