"""Transformations of whole batches: table versions, and the columns of their rows.

Only functions read rows.

If the columns stay unchanged, nothing is copied, nor if a run of neighbouring columns stays and no bytes are added. All
else is copied column by column. Versions that are equal after the transformation (an ALTER added a column that is
dropped here) become one, with one group per command.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.lcr.batch import Column, Command, LcrBatch, OldImage, RowGroup, TableVersion, content_version
from headrace.lcr.cells import fixed
from headrace.lcr.table_name import TableName
from headrace.lcr.values import ABSENT, NULL, ColumnValues
from headrace.rules.conditions.attributes import UNIX_TO_2000_US
from headrace.rules.subsetting import together
from headrace.rules.transformations.calling import CustomCalls, which_lcr
from headrace.rules.transformations.transformation import (
    CURRENT_TIMESTAMP_NUMBER,
    AddColumn,
    Shape,
    Transformation,
    TransformationError,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.lcr.lcr_value import DecodeHook
    from headrace.rules.conditions.values import ValueTypes
    from headrace.rules.transformations.custom import CustomTransformation
    from headrace.rules.user_code.last_call import LastCall

__all__ = ["Reshaping", "transformed_version"]

_VERSIONS_MAX = 4096  # a table has a new version with each ALTER, and a TRUNCATE of a partition has its own


class _Unknown:
    """Marks a table version that was not looked up yet."""


_UNKNOWN = _Unknown()


@dataclass(frozen=True, slots=True)
class _Reshaped:
    version: TableVersion
    places: NDArray[np.int64]  # of its columns before; -1: an added one
    is_renamed_only: bool
    # of the columns before, if the kept columns are neighbours in their old order and added ones follow them
    block: slice | None
    added: _Added
    custom: CustomTransformation | None


class Reshaping:
    """Applies the transformations of one client.

    Args:
        transformation_of: returns the transformation of a table (schema, name); None: it stays unchanged.
        time_us: microseconds since the Unix epoch, UTC.
        types: as for `CustomCalls`.
        last_call: as for `CustomCalls`.
        decode: as for `CustomCalls`.
    """

    def __init__(
        self,
        transformation_of: Callable[[str, str], Transformation | None],
        time_us: Callable[[], int],
        types: ValueTypes | None = None,
        last_call: LastCall | None = None,
        *,
        decode: DecodeHook | None = None,
    ) -> None:
        self._transformation_of, self._time_us = transformation_of, time_us
        self._calls = CustomCalls(types, last_call=last_call, decode=decode)
        self._known: dict[TableVersion, _Reshaped | None] = {}
        self._names: dict[TableName, TableName] = {}

    def version(self, table: TableVersion) -> TableVersion:
        """Return a table version behind the client.

        Args:
            table: before it.

        Raises:
            TransformationError: a transformation cannot be applied to the table.
        """
        found = self._reshaped(table)
        return table if found is None else found.version

    def named(self, table: TableVersion) -> TableVersion:
        """Return a table version under its name behind the client, whether or not its columns can be transformed."""
        key = TableName.of(table)
        if key not in self._names:
            if len(self._names) >= _VERSIONS_MAX:
                self._names.clear()
            transformation = self._transformation_of(*key)
            self._names[key] = key if transformation is None else transformation.named(key)
        owner, name = self._names[key]
        return table if (owner, name) == key else replace(table, owner=owner, name=name)

    def must_know(self, table: TableVersion) -> None:
        """Refuse a table version as `Transformation.must_know` does.

        Args:
            table: before the client.

        Raises:
            TransformationError: a column that its transformation names may have another name in it.
        """
        transformation = self._transformation_of(table.owner, table.name)
        if transformation is not None:
            _must_know(transformation, table)

    def changes(self, table: TableVersion) -> bool:
        """Return whether a table version changes at the client.

        True also if it cannot be transformed, which `batch` reports for its first LCR.
        """
        try:
            return self._reshaped(table) is not None
        except TransformationError:
            return True

    def batch(self, batch: LcrBatch) -> LcrBatch:
        """Transform a batch; return the same object if nothing changes.

        Args:
            batch: batch of the rows that the client's rules keep. Tables without rows in it are not transformed.

        Raises:
            TransformationError: a transformation cannot be applied to a table, or its function failed; names the LCR.
        """
        used = {group.table for group in batch.groups}
        if batch.truncates:
            used = used.union(*(truncate.tables for truncate in batch.truncates))
        found = [self._reshaped_in(batch, place) if place in used else None for place in range(len(batch.tables))]
        if not any(found):
            return batch
        times = [(each.added.new, place) for each in found if each is not None for place in each.added.times]
        if times:
            now = _timestamp(self._time_us())
            for constants, place in times:
                constants.set(place, now)
        tables: dict[TableVersion, int] = {}
        places = [
            tables.setdefault(table if each is None else each.version, len(tables))
            for table, each in zip(batch.tables, found, strict=True)
        ]
        groups: dict[tuple[int, Command], list[RowGroup]] = {}
        customs: dict[int, CustomTransformation] = {}
        for group in batch.groups:
            reshaped, place = found[group.table], places[group.table]
            if reshaped is not None and reshaped.custom is not None:
                customs[place] = reshaped.custom
            if reshaped is not None and not reshaped.is_renamed_only:
                moved = _group(group, reshaped, place)
            else:
                moved = group if place == group.table else replace(group, table=place)
            groups.setdefault((moved.table, moved.command), []).append(moved)
        declared = replace(
            batch,
            tables=tuple(tables),
            groups=tuple(together(each) for each in groups.values()),
            truncates=tuple(
                replace(truncate, tables=tuple(dict.fromkeys(places[table] for table in truncate.tables)))
                for truncate in batch.truncates
            ),
        )
        return self._calls.batch(declared, customs) if customs else declared

    def _reshaped_in(self, batch: LcrBatch, place: int) -> _Reshaped | None:
        """Return the reshaped table of LCRs in a batch."""
        try:
            return self._reshaped(batch.tables[place])
        except TransformationError as error:
            rows = [int(group.row_numbers.min()) for group in batch.groups if group.table == place]
            row = min(rows + [truncate.row_number for truncate in batch.truncates if place in truncate.tables])
            raise TransformationError(
                f"{error.message} ({which_lcr(batch, row)})", hint=error.hint, **error.context
            ) from error

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
    places = [-1 if isinstance(origin, AddColumn) else before[origin] for _, origin in shape.columns]
    added = tuple(origin for _, origin in shape.columns if isinstance(origin, AddColumn))
    is_renamed_only = places == list(range(len(table.columns)))
    stay = [place for place in places if place >= 0]
    is_block = bool(stay) and places == [*range(stay[0], stay[0] + len(stay)), *[-1] * len(added)]
    block = slice(stay[0], stay[-1] + 1) if is_block else None
    added_values = _Added.of(added, is_whole=version.old_image is OldImage.FULL)
    return _Reshaped(version, np.array(places, np.int64), is_renamed_only, block, added_values, transformation.custom)


class _Constants:
    """The values of added columns, one for every row, in one image.

    Args:
        values: bytes, or NULL or ABSENT.
    """

    __slots__ = ("_starts", "column", "lengths", "values")

    def __init__(self, values: Sequence[bytes | int]) -> None:
        self.lengths = np.array([len(value) if isinstance(value, bytes) else value for value in values], np.int32)
        self.column = self.lengths[:, np.newaxis]
        held = [value if isinstance(value, bytes) else b"" for value in values]
        self._starts = list(itertools.accumulate(map(len, held), initial=0))
        self.values = np.frombuffer(bytearray(b"".join(held)), np.uint8)

    def set(self, place: int, value: bytes) -> None:
        """Replace the value of one column by another of the same length."""
        self.values[self._starts[place] : self._starts[place + 1]] = np.frombuffer(value, np.uint8)


@dataclass(frozen=True, slots=True)
class _Added:
    """The values of added columns, in the old and the new image, and which of them get the time of each batch."""

    old: _Constants
    new: _Constants
    times: tuple[int, ...]

    @classmethod
    def of(cls, added: Sequence[AddColumn], *, is_whole: bool) -> _Added:
        """Make the values of some columns.

        Args:
            added: the columns.
            is_whole: old values are always logged. Under a replica identity of key columns an UPDATE that did not touch
                them has no old values at all, and must stay so.
        """
        values = [
            _timestamp(0) if each.is_now else NULL if each.value is None else each.value.encode() for each in added
        ]
        old = [ABSENT if each.is_now or not is_whole else value for each, value in zip(added, values, strict=True)]
        return cls(_Constants(old), _Constants(values), tuple(place for place, each in enumerate(added) if each.is_now))


def _group(group: RowGroup, reshaped: _Reshaped, table: int) -> RowGroup:
    """Return the rows of a group with other columns; `table`: place of their table."""
    added = reshaped.added
    return RowGroup(
        table=table,
        command=group.command,
        row_numbers=group.row_numbers,
        old=_values(group.old, reshaped, added.old),
        new=_values(group.new, reshaped, added.new),
    )


@functools.cache
def _kernel() -> Any:  # noqa: ANN401 - compiled
    """Return `with_constants`.

    A local import: numba takes 25 MB, which a process that moves no column does not need. Cached, because each image
    needs it.
    """
    from headrace.lcr.cells_kernels import with_constants

    return with_constants


def _values(values: ColumnValues | None, reshaped: _Reshaped, added: _Constants) -> ColumnValues | None:
    """Return the kept columns of an image, and the added ones.

    Args:
        values: values of n rows; None: there are none.
        reshaped: origin of its columns.
        added: added columns of the image.
    """
    if values is None:
        return None
    if (block := reshaped.block) is not None and not added.values.size:  # no byte is copied
        kept, places = values.lengths[block], values.starts[block.start : block.stop + 1]
        if not added.lengths.shape[0]:
            return ColumnValues(lengths=kept, data=values.data, starts=places)
        count = kept.shape[0]
        lengths, starts = (
            np.empty((count + added.lengths.shape[0], kept.shape[1]), np.int32),
            np.empty(count + added.lengths.shape[0] + 1, np.int64),
        )
        lengths[:count], lengths[count:] = kept, added.column
        starts[:count], starts[count:] = places[:-1], places[-1]
        return ColumnValues(lengths=lengths, data=values.data, starts=starts)
    lengths, data, starts = _kernel()(
        fixed(values.lengths),
        fixed(values.data),
        fixed(values.starts),
        reshaped.places,
        added.lengths,
        added.values,
    )
    return ColumnValues(lengths=lengths, data=data, starts=starts)


def _must_know(transformation: Transformation, table: TableVersion) -> None:
    transformation.must_know(
        TableName.of(table),
        [column.name for column in table.columns],
        numbers=(int(table.table_number),) if table.table_number else (),
        is_partition=table.object_number != table.table_number,
    )


def transformed_version(version: TableVersion, transformation: Transformation) -> tuple[TableVersion, Shape]:
    """Return a table version behind a client, and the origins of its columns.

    Args:
        version: before the client.
        transformation: transformation of the rule that takes its LCRs.

    Raises:
        TransformationError: it cannot be applied to this table.
    """
    _must_know(transformation, version)
    names = [column.name for column in version.columns]
    shape = transformation.shape(names, table=version.qualified_name)
    before = {column.name: column for column in version.columns}
    columns = tuple(
        _column(name, origin) if isinstance(origin, AddColumn) else replace(before[origin], name=name)
        for name, origin in shape.columns
    )
    taken = {origin for _, origin in shape.columns if isinstance(origin, str)}
    lost = [column.name for column in version.columns if column.is_key and column.name not in taken]
    if lost and version.old_image is OldImage.KEY:
        raise TransformationError(
            f"a transformation deletes {', '.join(lost)}, and rows of {version.qualified_name} are found by it",
            hint="keep the columns that identify a row; or let the source log whole old rows (REPLICA IDENTITY FULL),"
            " and give the destination a key of columns that arrive",
            table=version.qualified_name,
            column=lost[0],
        )
    owner, name = transformation.named(TableName.of(version))
    partition = version.partition
    gone = frozenset(before) - {
        name_ for name_, origin in shape.columns if name_ == origin and not transformation.may_change(name_)
    }
    if partition is not None and _may_name(partition.rows, gone):
        # A partition's rows are a condition over the source's columns. If one of these is missing or renamed here, the
        # rows cannot be determined, and the destination reports that.
        partition = replace(partition, rows="")
    changed = replace(version, owner=owner, name=name, columns=columns, partition=partition)
    return replace(changed, version=content_version(changed)), shape


def _column(name: str, added: AddColumn) -> Column:
    """Return an added column: a time in binary form, under a third of the bytes; a value of the file as text."""
    return Column(
        name=name,
        type_name=added.type_name,
        type_number=CURRENT_TIMESTAMP_NUMBER if added.is_now else 0,
        is_binary=added.is_now,
    )


def _may_name(condition: str, columns: frozenset[str]) -> bool:
    """Return whether a condition in SQL may name one of some columns; texts are ignored unless there is a backslash."""
    if "\\" not in condition:
        condition = re.sub(r"'(?:[^']|'')*'", "''", condition)
    return any(
        re.search(rf"(?<![\w$]){re.escape(name.replace(chr(34), chr(34) * 2))}(?![\w$])", condition) for name in columns
    )


def _timestamp(time_us: int) -> bytes:
    """Return a time in PostgreSQL's binary form of a timestamp with time zone: microseconds since 2000-01-01.

    Args:
        time_us: microseconds since the Unix epoch, UTC.
    """
    return (time_us - UNIX_TO_2000_US).to_bytes(8, "big", signed=True)
