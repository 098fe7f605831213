"""Row LCRs for tests, as a capture process makes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np

from headrace.base.errors import ConfigError
from headrace.databases.connectors import column_of_type, python_values
from headrace.lcr.batch import (
    Column,
    Command,
    LcrBatch,
    OldImage,
    RowGroup,
    TableVersion,
    Transactions,
    content_version,
)
from headrace.lcr.building import batch_of_values
from headrace.lcr.row_lcr import RowLcr, ValueType
from headrace.lcr.scn import NO_OBJECT, ObjectNumber, Scn
from headrace.lcr.tags import Tag
from headrace.lcr.values import ABSENT, NULL, UNCHANGED
from topology.patterns import parse_table

__all__ = ["Table", "batch_of", "row_lcr", "values_of", "view"]

_COMMIT_SCN = 1000  # default of a transaction: any value works
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Values = Mapping[str, object]
"""Python objects by column; None is NULL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of the source, or of the destination.

    Args:
        name: name with its schema, as the topology file writes it: 'shop.orders', '"Odd.Schema"."a table"'.
        columns: type of each column by name, in PostgreSQL's words: "int4", "text", "numeric", ...
        key: columns of the primary key.
        logs_old_rows: whether the log has whole old rows (REPLICA IDENTITY FULL). False, as with the default replica
            identity: it has only old values of a changed key or of a deleted row.
    """

    name: str
    columns: Mapping[str, str]
    key: tuple[str, ...] = ("id",)
    logs_old_rows: bool = False

    @property
    def owner_and_name(self) -> tuple[str, str]:
        """Schema and name.

        Raises:
            ConfigError: the name has no schema.
        """
        try:
            return parse_table(self.name)
        except ValueError:  # a name with a blank needs no quotes here
            owner, dot, name = self.name.partition(".")
        if not dot:
            raise ConfigError(f"{self.name!r} has no schema", hint="write schema.table, such as shop.orders")
        return owner, name

    @property
    def version(self) -> TableVersion:
        """The table's description in LCRs.

        Raises:
            ConfigError: a type is unknown, or the key has a column that the table lacks.
        """
        if unknown := set(self.key) - set(self.columns):
            raise ConfigError(
                f"{self.name} has no column {', '.join(sorted(unknown))}", hint="name columns of the table as its key"
            )
        owner, name = self.owner_and_name
        columns = tuple(
            replace(column_of_type(each, kind), is_key=each in self.key) for each, kind in self.columns.items()
        )
        image = OldImage.FULL if self.logs_old_rows else OldImage.KEY
        found = TableVersion(
            object_number=NO_OBJECT, version=0, owner=owner, name=name, columns=columns, old_image=image
        )
        # Tables are distinguished by number, not by name.
        number = ObjectNumber(content_version(found) % (1 << 31) or 1)
        found = replace(found, object_number=number, root_number=number)
        return replace(found, version=content_version(found))


def row_lcr(  # noqa: PLR0913 - what an LCR says
    table: Table,
    command: str,
    *,
    new: Values | None = None,
    old: Values | None = None,
    unchanged: Collection[str] = (),
    tag: bytes | None = None,
    source: str = "dbs1",
    transaction_id: int = 1,
    commit_scn: int = _COMMIT_SCN,
    source_time: datetime | None = None,
) -> RowLcr:
    """Make a row LCR, the only one of its transaction.

    An INSERT and a DELETE have every column of the table; omitted columns are NULL. For an UPDATE give the changed
    columns in `old` and `new`, and the rest of the row in `new`: omitted old values equal the new ones. Where the log
    has no whole old rows, only old values of the key are kept.

    Args:
        table: table at the source.
        command: "INSERT", "UPDATE" or "DELETE".
        new: new values.
        old: old values.
        unchanged: columns whose large value the UPDATE left alone, so that the log does not have it as a new one. If
            the log has whole old rows, `old` has it.
        tag: tag of the transaction; None: NULL.
        source: name of the source's site.
        transaction_id: number of the transaction.
        commit_scn: commit SCN of the transaction; at least 2.
        source_time: commit time, with a time zone; None: unknown, which is NULL to a condition.

    Raises:
        ConfigError: the command, a type or a column is unknown, a column cannot be unchanged, or the time has no zone.
        LcrError: a value does not fit its column.
    """
    if command not in ("INSERT", "UPDATE", "DELETE"):
        raise ConfigError(f"{command!r} is no command of a row LCR", hint="write INSERT, UPDATE or DELETE")
    version, kind = table.version, Command[command]
    given = {**(new or {}), **(old or {})}
    if unknown := {*given, *unchanged} - set(table.columns):
        raise ConfigError(
            f"{table.name} has no column {', '.join(sorted(unknown))}", hint="add it to the table's columns"
        )
    _check_unchanged(table, kind, unchanged, new=new or {}, old=old or {})
    time_us = 0 if source_time is None else _time_us(source_time)
    batch = batch_of_values(
        version,
        kind,
        new=None if kind is Command.DELETE else [_new_row(version, {**(old or {}), **(new or {})}, unchanged)],
        old=None if kind is Command.INSERT else [_old_row(version, given, new if kind is Command.UPDATE else None)],
        source=source,
        transaction_id=transaction_id,
        commit_scn=commit_scn,
        time_us=time_us,
        tag=tag,
    )
    return view(batch, 0)


def _check_unchanged(table: Table, command: Command, unchanged: Collection[str], *, new: Values, old: Values) -> None:
    """Refuse unchanged columns that no log has.

    Raises:
        ConfigError: one of them cannot be unchanged.
    """
    if unchanged and command is not Command.UPDATE:
        raise ConfigError(f"the {command.name} has unchanged columns", hint="only an UPDATE leaves values alone")
    if both := set(unchanged) & set(new):
        raise ConfigError(
            f"{', '.join(sorted(both))} is unchanged and has a new value", hint="take it out of one of them"
        )
    if table.logs_old_rows and (lacking := [name for name in unchanged if old.get(name) is None]):
        raise ConfigError(
            f"{', '.join(sorted(lacking))} is unchanged, and `old` has no value of it",
            hint="give it: the log of this table has whole old rows, and NULL is no large value",
        )


def _time_us(time: datetime) -> int:
    if time.tzinfo is None:
        raise ConfigError("source_time has no time zone", hint="write datetime(..., tzinfo=UTC)")
    return (time - _EPOCH) // timedelta(microseconds=1)


def values_of(lcr: RowLcr, value_type: str) -> dict[str, object]:
    """Return an LCR's old or new values as Python objects by column.

    Args:
        lcr: any.
        value_type: "old" or "new".
    """
    return {name: value.decoded for name, value in lcr.get_values(value_type, use_old=False).items()}


def view(batch: LcrBatch, row: int) -> RowLcr:
    """Return a row of a batch as user functions get it.

    Args:
        batch: the batch with the row.
        row: number of the row in the batch.
    """
    decode, encode = python_values()
    return RowLcr(batch, row, decode=decode, encode=encode)


def batch_of(lcrs: Sequence[RowLcr]) -> LcrBatch:
    """Put LCRs into one transaction, in their order, with every change made to them.

    Transaction id, SCN and time are those of the first LCR.

    Args:
        lcrs: at least one LCR; of one source, with one tag.

    Raises:
        ConfigError: the LCRs have several sources or tags.
    """
    first = lcrs[0]
    if len({(lcr.source_database_name, lcr.tag) for lcr in lcrs}) > 1:
        raise ConfigError(
            "the LCRs of a transaction have one source and one tag", hint="apply them as several transactions"
        )
    tables: dict[TableVersion, int] = {}
    members: dict[tuple[TableVersion, Command], list[int]] = {}
    for number, lcr in enumerate(lcrs):
        version = lcr.table_version()
        tables.setdefault(version, len(tables))
        members.setdefault((version, Command[lcr.command_type]), []).append(number)
    groups = []
    for (version, command), numbers in members.items():
        images = {
            kind: None if without is command else [lcrs[number].stored(kind) for number in numbers]
            for kind, without in ((ValueType.OLD, Command.INSERT), (ValueType.NEW, Command.DELETE))
        }
        (group,) = batch_of_values(
            version, command, new=images[ValueType.NEW], old=images[ValueType.OLD], source=first.source_database_name
        ).groups
        groups.append(replace(group, table=tables[version], row_numbers=np.array(numbers, np.int32)))
    return _transaction(first, len(lcrs), tuple(tables), tuple(groups))


def _transaction(first: RowLcr, count: int, tables: tuple[TableVersion, ...], groups: tuple[RowGroup, ...]) -> LcrBatch:
    scn = int(first.commit_scn or _COMMIT_SCN)
    return LcrBatch(
        source=first.source_database_name,
        previous_scn=Scn(scn - 2),
        through_scn=Scn(scn),
        tables=tables,
        groups=groups,
        tags=() if first.tag is None else (Tag(value=first.tag),),
        transactions=Transactions(
            transaction_id=np.array([first.transaction_id], np.int64),
            order_scn=np.array([scn - 1], np.int64),
            commit_scn=np.array([scn], np.int64),
            commit_time_us=np.array([first.source_time_us], np.int64),
            tag=np.array([-1 if first.tag is None else 0], np.int16),
            first_row=np.array([0, count], np.int32),
        ),
    )


def _row(version: TableVersion, values: Values) -> list[bytes | int]:
    return [stored(column, values.get(column.name)) for column in version.columns]


def _new_row(version: TableVersion, values: Values, unchanged: Collection[str]) -> list[bytes | int]:
    row = _row(version, values)
    return [
        UNCHANGED if column.name in unchanged else value for column, value in zip(version.columns, row, strict=True)
    ]


def _old_row(version: TableVersion, values: Values, new: Values | None) -> list[bytes | int]:
    """Return old values as the log has them; `new`: new values of an UPDATE."""
    row = _row(version, values)
    if version.old_image is OldImage.FULL:
        return row
    keys = [column.name for column in version.columns if column.is_key]
    if new is not None and all(values.get(name) == new.get(name, values.get(name)) for name in keys):
        return [ABSENT] * len(row)
    return [value if column.is_key else ABSENT for column, value in zip(version.columns, row, strict=True)]


def stored(column: Column, value: object) -> bytes | int:
    """Return a Python object in the encoding of LCRs.

    Args:
        column: column of the value.
        value: None is NULL.

    Raises:
        LcrError: the value does not fit the column.
    """
    return NULL if value is None else python_values()[1](column, value)
