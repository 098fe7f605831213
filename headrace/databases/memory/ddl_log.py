"""The in-memory source's log of DDL: a table with the records of changed structures (`headrace.lcr.ddl`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.databases.memory.log import Change
from headrace.databases.memory.source_table import MemoryTable
from headrace.lcr.batch import Column, Command, OldImage, TableVersion
from headrace.lcr.ddl import DDL_FORMAT, DDL_LOG
from headrace.lcr.scn import ObjectNumber

__all__ = ["MemoryDdlLog", "altered", "created", "dropped"]

_OBJECT_NUMBER = ObjectNumber(1 << 19)  # no other table gets that far
_COLUMNS = (
    ("number", "pg_catalog.int8", 20),
    ("relation", "pg_catalog.oid", 26),
    ("parts", "pg_catalog._oid", 1028),
    ("at", "pg_catalog.timestamptz", 1184),
    ("content", "pg_catalog.text", 25),
)


class MemoryDdlLog:
    """The table. Nobody reads its rows here, so it keeps none: they are in the log.

    Attributes:
        version: its version.
        is_used: it has, or had, a row.
    """

    def __init__(self) -> None:
        self.version = TableVersion(
            object_number=_OBJECT_NUMBER,
            version=0,
            owner=DDL_LOG.owner,
            name=DDL_LOG.name,
            columns=tuple(
                Column(name=name, type_name=type_name, type_number=number, is_key=name == "number")
                for name, type_name, number in _COLUMNS
            ),
            old_image=OldImage.KEY,
        )
        self._rows = 0

    @property
    def is_used(self) -> bool:
        """Whether it has, or had, a row."""
        return self._rows > 0

    def insert(self, content: str, relation: int) -> Change:
        """Return the change that inserts a record.

        Args:
            content: the record.
            relation: number of the table that it is about; 0: none.
        """
        self._rows += 1
        values = (str(self._rows), str(relation), "{}", "2023-11-14 22:13:20+00", content)
        return Change(command=Command.INSERT, version=self.version, new=tuple(value.encode() for value in values))

    def delete(self, number: int) -> Change:
        """Return the change that deletes a record, as trimming does; `number`: 1 for the first one."""
        old = (str(number).encode(), *([None] * (len(_COLUMNS) - 1)))
        return Change(command=Command.DELETE, version=self.version, old=old)


def altered(
    before: MemoryTable, after: MemoryTable, query: str, *, gone: Sequence[str] = (), older: Mapping[str, str | None]
) -> str:
    """Return the record of an ALTER TABLE.

    Args:
        before: the table before it.
        after: after it.
        query: the statement.
        gone: names of dropped columns.
        older: values of added columns in older rows.
    """
    return _record("ALTER TABLE", before, after, query, gone=[("table column", name) for name in gone], older=older)


def created(table: MemoryTable, query: str, made: Mapping[str, Any] | None) -> str:
    """Return the record of a CREATE TABLE.

    Args:
        table: the table.
        query: the statement.
        made: how its rows get into the log (`headrace.lcr.ddl`); None: they do not belong there.
    """
    return _record("CREATE TABLE", None, table, query, made=made)


def dropped(table: MemoryTable, query: str) -> str:
    """Return the record of a DROP TABLE.

    Args:
        table: the table.
        query: the statement.
    """
    return _record("DROP TABLE", table, None, query, gone=[("table", table.version.name)])


def _record(
    tag: str,
    before: MemoryTable | None,
    after: MemoryTable | None,
    query: str,
    *,
    gone: Sequence[tuple[str, str]] = (),
    older: Mapping[str, str | None] | None = None,
    made: Mapping[str, Any] | None = None,
) -> str:
    table = after or before
    assert table is not None
    number = table.version.object_number
    record: dict[str, Any] = {
        "format": DDL_FORMAT,
        "tag": tag,
        "relation": number,
        "before": None if before is None else before.structure(),
        "is_known": True,
        "after": None if after is None else after.structure(),
        "gone": [{"relation": number, "kind": kind, "name": name} for kind, name in gone],
        "rewritten": [],
        "older": dict(older or {}),
        "query": query,
        "is_nested": False,
        "user": "memory",
        "role": "none",
        "version": 1,
    }
    return json.dumps(record if made is None else {**record, "made": dict(made)}, ensure_ascii=False)
