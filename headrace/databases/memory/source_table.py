"""A table of the in-memory source: its version, its rows, and changes of its structure."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.base.errors import ConfigError
from headrace.databases.memory.log import Row
from headrace.lcr.batch import Column, TableVersion
from headrace.lcr.table_name import quoted

__all__ = ["MemoryTable"]


@dataclass(slots=True)
class MemoryTable:
    """One table.

    Args:
        version: its current version.
        root: owner and name of its partitioned table; None: no partition.
        holds: which rows of that table it holds (`headrace.lcr.batch.Partition.rows`).
        rows: its rows by their keys.
        file: changes when the rows are rewritten.
        numbers: numbers of its columns, never used again.
        last_number: the highest one so far.
        is_logged: changes of its rows are in the log.
        is_made: its CREATE TABLE put it into the log.
    """

    version: TableVersion
    root: tuple[str, str] | None
    holds: str = ""
    rows: dict[Row, list[Row]] = field(default_factory=dict)
    file: int = 0
    numbers: tuple[int, ...] = ()
    last_number: int = 0
    is_logged: bool = True
    is_made: bool = False

    def __post_init__(self) -> None:
        if not self.numbers:
            self.last_number = len(self.version.columns)
            self.numbers = tuple(range(1, self.last_number + 1))

    @property
    def name_in_sql(self) -> str:
        """Its qualified name, quoted."""
        return f"{quoted(self.version.owner)}.{quoted(self.version.name)}"

    def key_of(self, row: Row) -> Row:
        """Return a row's values in the key columns; without a key, all of them."""
        key = tuple(value for value, column in zip(row, self.version.columns, strict=True) if column.is_key)
        return key or row

    def add(self, row: Row) -> None:
        """Add a row."""
        self.rows.setdefault(self.key_of(row), []).append(row)

    def remove(self, row: Row) -> None:
        """Remove one of the rows that equal this one."""
        key = self.key_of(row)
        self.rows[key].remove(row)
        if not self.rows[key]:
            del self.rows[key]

    # ------------------------------------------------------------------ the structure

    def add_column(self, name: str, value: bytes | None) -> None:
        """Add a last column, of type text, nullable, in no key.

        Args:
            name: its name.
            value: for the existing rows.
        """
        if self._has(name):
            raise ConfigError(f"{self.version.qualified_name} already has a column {name}")
        self.last_number += 1
        added = Column(name=name, type_name="pg_catalog.text", type_number=25)
        columns, numbers = (*self.version.columns, added), (*self.numbers, self.last_number)
        self._become(columns, numbers, lambda row: (*row, value))

    def rename_column(self, name: str, new_name: str) -> None:
        """Give a column another name."""
        place = self._place(name)
        if self._has(new_name):
            raise ConfigError(f"{self.version.qualified_name} already has a column {new_name}")
        columns = list(self.version.columns)
        columns[place] = replace(columns[place], name=new_name)
        self._become(tuple(columns), self.numbers, lambda row: row)

    def drop_column(self, name: str) -> None:
        """Drop a column that is in no key."""
        place = self._place(name)
        if self.version.columns[place].is_key:
            raise ConfigError(f"column {name} of {self.version.qualified_name} is in its key")

        def without(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return values[:place] + values[place + 1 :]

        self._become(without(self.version.columns), without(self.numbers), without)

    def saved(self) -> MemoryTable:
        """Return its current state, for `restore`."""
        return copy.copy(self)

    def restore(self, saved: MemoryTable) -> None:
        """Undo the changes of the structure since `saved`, and those only."""
        self.version, self.rows = saved.version, saved.rows
        self.numbers, self.last_number = saved.numbers, saved.last_number

    def structure(self) -> dict[str, Any]:
        """Return its structure as records of DDL have it (`headrace.lcr.structure`)."""
        version = self.version
        key = [quoted(column.name) for column in version.columns if column.is_key]
        constraint = {
            "number": version.object_number,
            "name": f"{version.name}_pkey",
            "type": "p",
            "definition": f"PRIMARY KEY ({', '.join(key)})",
            "calls": False,
        }
        return {
            "owner": version.owner,
            "name": version.name,
            "kind": "r",
            "persistence": "p",
            "role": "memory",
            "is_partition": self.root is not None,
            "parents": int(self.root is not None),
            "children": 0,
            "columns": [
                {
                    "number": number,
                    "name": column.name,
                    "type": column.type_name.removeprefix("pg_catalog."),
                    "collation": None,
                    "not_null": column.is_key,
                    "default": None,
                    "identity": "",
                    "generated": "",
                    "calls": False,
                }
                for number, column in zip(self.numbers, version.columns, strict=True)
            ],
            "constraints": [constraint] if key else [],
            "indexes": [],
        }

    def _become(self, columns: tuple[Column, ...], numbers: tuple[int, ...], changed: Callable[[Row], Row]) -> None:
        rows = [row for rows in self.rows.values() for row in rows]
        self.version, self.numbers = replace(self.version, columns=columns), numbers
        self.rows = {}  # another object: the earlier one may be restored
        for row in rows:
            self.add(changed(row))

    def _has(self, name: str) -> bool:
        return any(column.name == name for column in self.version.columns)

    def _place(self, name: str) -> int:
        if not self._has(name):
            raise ConfigError(f"{self.version.qualified_name} has no column {name}")
        return [column.name for column in self.version.columns].index(name)
