"""Checks of a destination's foreign keys, by set, at the end of each apply transaction; the topology file enables them.

Apply's sessions run with `session_replication_role = replica`, in which the server checks no foreign keys. So a session
remembers the values that its writes gave to foreign keys, and those that they removed from referenced keys. Before
COMMIT, one statement per write and foreign key looks for referenced values that are missing. Until then, rows may come
in any order. The check reads the final contents of the tables, so rows that were rolled back or discarded do no harm.

The check locks referenced rows FOR KEY SHARE, as the server's own check does: no other session can delete one before
this transaction commits.

When values are unknown, the check reads all rows of the referencing table. The reasons are:

- a log with keys only
- an UPDATE that set one column of a multi-column foreign key
- more than `ROWS_MAX` rows or `BYTES_MAX` bytes
- a row that a conflict handler removed
- a column that the destination computes

Source: PostgreSQL ri_triggers.c; MATCH SIMPLE. Foreign keys that are not enforced, or over periods of time, are
skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.base.errors import DataError
from headrace.databases.ports import Write
from headrace.databases.postgres.connection import quote
from headrace.databases.postgres.destination.writing.writes import SetBuilder, SetStatement
from headrace.lcr.batch import Command
from headrace.rules.table_settings import TableSettings

if TYPE_CHECKING:
    from headrace.databases.postgres.catalog.destination_tables import CatalogTable, CheckedKey

__all__ = ["BYTES_MAX", "ROWS_MAX", "ForeignKeyChecks", "ValueCheck", "value_statement", "violation", "whole_check"]

ROWS_MAX = 50_000  # rows whose values are held until the commit: five full groups
BYTES_MAX = 64 << 20  # bytes of these rows, held completely: two of the largest round trips (`writes.CHUNK_BYTES`)
_VIOLATION = "23503"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueCheck:
    """Values of one write for one foreign key."""

    key: CheckedKey
    write: Write
    is_referred: bool


def whole_check(key: CheckedKey, *, is_referred: bool) -> str:
    """Return the statement that finds a referencing row whose referenced row is missing.

    Args:
        key: the foreign key.
        is_referred: True when referenced rows were removed, so that any row may reference them. Otherwise the statement
            checks only rows written since this transaction began, because it did not cause older violations.
    """
    given = " AND ".join(f"c.{quote(name)} IS NOT NULL" for name in key.columns)
    if not is_referred:
        # Numbers of savepoints are above their transaction's. Rows of other transactions may be included; each of those
        # transactions checks its own.
        given += (
            " AND pg_catalog.age(c.xmin) OPERATOR(pg_catalog.<=)"
            " pg_catalog.age(pg_catalog.pg_current_xact_id()::pg_catalog.xid)"
        )
    return (
        f"SELECT 1 FROM {key.relation} c WHERE {given} AND NOT EXISTS (SELECT FROM"
        f" {key.referred_relation} p WHERE {_joined(key, 'p', 'c')} FOR KEY SHARE OF p) LIMIT 1"
    )


def _joined(key: CheckedKey, parent: str, child: str) -> str:
    pairs = zip(key.referred_columns, key.operators, key.columns, strict=True)
    return " AND ".join(
        f"{parent}.{quote(referred)} {operator} {child}.{quote(name)}" for referred, operator, name in pairs
    )


@dataclass(slots=True)
class ForeignKeyChecks:
    """Foreign keys and values that one transaction must check before its commit."""

    settings: TableSettings
    _values: list[ValueCheck] = field(default_factory=list)
    # key: foreign key, and whether referenced rows were removed
    _whole: dict[tuple[CheckedKey, bool], None] = field(default_factory=dict)
    _rows: int = 0
    _bytes: int = 0

    def clear(self) -> None:
        """Reset at the end of the transaction."""
        self._values.clear()
        self._whole.clear()
        self._rows = self._bytes = 0

    def forget(self, is_checked: Callable[[CheckedKey], bool]) -> None:
        """Forget what was noted for some foreign keys.

        Args:
            is_checked: whether a foreign key is one of them.
        """
        self._values = [each for each in self._values if not is_checked(each.key)]
        self._whole = {each: None for each in self._whole if not is_checked(each[0])}

    @property
    def whole(self) -> tuple[tuple[CheckedKey, bool], ...]:
        """Foreign keys whose rows are all checked, each with whether referenced rows were removed."""
        return tuple(self._whole)

    @property
    def values(self) -> tuple[ValueCheck, ...]:
        """Values to check, except for the keys in `whole`."""
        return tuple(self._values)

    def note_removed(self, catalog: CatalogTable) -> None:
        """Note that rows with unknown values were deleted."""
        for key in catalog.foreign_keys:
            if key.is_referred and self._is_asked(key):
                self._look_at_all(key, is_referred=True)

    def _look_at_all(self, key: CheckedKey, *, is_referred: bool) -> None:
        self._whole[key, is_referred] = None
        self._values = [each for each in self._values if (each.key, each.is_referred) != (key, is_referred)]

    def note(self, write: Write, catalog: CatalogTable) -> None:
        """Remember the values of foreign keys that an executed write changes."""
        for key in catalog.foreign_keys:
            if not self._is_asked(key) or not write.row_count:
                continue
            if key.refers and write.command is not Command.DELETE:
                self._note(key, write, catalog, is_referred=False)
            if key.is_referred and write.command is not Command.INSERT:
                self._note(key, write, catalog, is_referred=True)

    def _is_asked(self, key: CheckedKey) -> bool:
        return self.settings.checks_foreign_keys(key.owner, key.name)

    def _note(self, key: CheckedKey, write: Write, catalog: CatalogTable, *, is_referred: bool) -> None:
        names = key.referred_columns if is_referred else key.columns
        places = {column.name: place for place, column in enumerate(write.version.columns)}
        positions = [places.get(name, -1) for name in names]
        # A computed column may change with any column of its expression.
        is_computed = any(column.is_generated for column in catalog.table.columns if column.name in names)
        is_set = is_computed or any(position in write.set_columns for position in positions)
        if (key, is_referred) in self._whole or (write.command is Command.UPDATE and not is_set):
            return
        known = {*write.match_columns, *write.compare_columns} if is_referred else set(write.set_columns)
        self._rows += write.row_count
        self._bytes += sum(values.data.nbytes for values in (write.old, write.new) if values is not None)
        if (
            self._rows > ROWS_MAX
            or self._bytes > BYTES_MAX
            or is_computed
            or any(position not in known for position in positions)
        ):
            # A column that an INSERT omits gets its default, which may reference a row.
            self._look_at_all(key, is_referred=is_referred)
            return
        self._values.append(ValueCheck(key=key, write=write, is_referred=is_referred))


def value_statement(check: ValueCheck, catalog: CatalogTable, generation: int) -> tuple[SetStatement, SetBuilder]:
    """Return the statement that finds a value of a write that is referenced but missing.

    Args:
        check: the values to check.
        catalog: the write's table at the destination.
        generation: generation of the session's types (`writes.wrapper_name`).
    """
    key, write = check.key, check.write
    places = {column.name: place for place, column in enumerate(write.version.columns)}
    positions = [places[name] for name in (key.referred_columns if check.is_referred else key.columns)]
    builder = SetBuilder(
        write,
        catalog,
        generation,
        old=positions if check.is_referred else [],
        new=[] if check.is_referred else positions,
    )
    values = [f"u.{'o' if check.is_referred else 'n'}{position}" for position in positions]
    to_referred = key.referred_operators if check.is_referred else key.operators
    parent = _terms("p", key.referred_columns, to_referred, values)
    if check.is_referred:
        pairs = zip(values, key.operators, key.columns, strict=True)
        child = " AND ".join(f"{value} {operator} c.{quote(name)}" for value, operator, name in pairs)
    else:
        child = _terms("c", key.columns, key.own_operators, values)
    given = " AND ".join(f"{value} IS NOT NULL" for value in values)
    sql = (
        f"SELECT 1 FROM (SELECT {builder.select_list()}) u WHERE {given} AND NOT EXISTS (SELECT FROM"
        f" {key.referred_relation} p WHERE {parent} FOR KEY SHARE OF p)"
        f" AND EXISTS (SELECT FROM {key.relation} c WHERE {child}) LIMIT 1"
    )
    return builder.statement(sql), builder


def _terms(table: str, columns: Sequence[str], operators: Sequence[str], values: Sequence[str]) -> str:
    found: Iterator[Any] = zip(columns, operators, values, strict=True)
    return " AND ".join(f"{table}.{quote(column)} {operator} {value}" for column, operator, value in found)


def violation(key: CheckedKey) -> DataError:
    """Return the error for a foreign key that is violated at the end of a transaction."""
    return DataError(
        f"foreign key {quote(key.constraint)} of {key.owner}.{key.name}: a row refers to a missing row of"
        f" {key.referred_owner}.{key.referred_name}",
        sqlstate=_VIOLATION,
        violates="foreign_key",
        table=f"{key.owner}.{key.name}",
    )
