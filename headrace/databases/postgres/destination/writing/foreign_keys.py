"""Foreign keys of a destination, checked where the topology file asks for it.

By set, at the end of each transaction of apply.

Apply's sessions run with `session_replication_role = replica`, in which the server checks none. So a session remembers
the values that its writes gave to foreign keys, and those that they took from keys that are referred to. Before COMMIT
one statement per write and foreign key looks for values that are referred to and not there. In between any order of
rows will do. What is checked is what the tables hold then, so rows that were taken back or discarded do no harm.

Rows that are referred to are locked FOR KEY SHARE, as the server's own check does: no other session can delete one
before this transaction is committed.

Where the values are not known (a log with keys alone, a foreign key of which an UPDATE set one column of several, more
than `ROWS_MAX` rows or `BYTES_MAX` bytes, a row that a conflict handler removed, a column that the destination
computes), all rows of the referring table are looked at.

Source: PostgreSQL ri_triggers.c; MATCH SIMPLE. Foreign keys that are not enforced, or over periods of time, are left
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

ROWS_MAX = 50_000  # whose values are held until the commit: five full groups
BYTES_MAX = 64 << 20  # of their rows, which are held whole: two of the largest round trips (`writes.CHUNK_BYTES`)
_VIOLATION = "23503"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueCheck:
    """Values of one write for one foreign key."""

    key: CheckedKey
    write: Write
    is_referred: bool


def whole_check(key: CheckedKey, *, is_referred: bool) -> str:
    """The statement that finds a row of the referring table without the row that it refers to.

    Args:
        key: the foreign key.
        is_referred: rows that are referred to went, so that any row may refer to them. Else only rows count that were
            written since this transaction began: one that referred to nothing before is no fault of it.
    """
    given = " AND ".join(f"c.{quote(name)} IS NOT NULL" for name in key.columns)
    if not is_referred:
        # Savepoints' numbers are above their transaction's. Of other transactions' rows, which may be among them, each
        # is checked by its own.
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
    """What one transaction must have checked before its commit."""

    settings: TableSettings
    _values: list[ValueCheck] = field(default_factory=list)
    # and whether rows that are referred to went
    _whole: dict[tuple[CheckedKey, bool], None] = field(default_factory=dict)
    _rows: int = 0
    _bytes: int = 0

    def clear(self) -> None:
        """The transaction is over."""
        self._values.clear()
        self._whole.clear()
        self._rows = self._bytes = 0

    @property
    def whole(self) -> tuple[tuple[CheckedKey, bool], ...]:
        """Foreign keys of which every row is looked at, and whether rows that are referred to went."""
        return tuple(self._whole)

    @property
    def values(self) -> tuple[ValueCheck, ...]:
        """Values that are looked at, without those of `whole`."""
        return tuple(self._values)

    def note_removed(self, catalog: CatalogTable) -> None:
        """Rows were deleted whose values are not known."""
        for key in catalog.foreign_keys:
            if key.is_referred and self._is_asked(key):
                self._look_at_all(key, is_referred=True)

    def _look_at_all(self, key: CheckedKey, *, is_referred: bool) -> None:
        self._whole[key, is_referred] = None
        self._values = [each for each in self._values if (each.key, each.is_referred) != (key, is_referred)]

    def note(self, write: Write, catalog: CatalogTable) -> None:
        """Remember what a write changes of foreign keys.

        Args:
            write: that was executed.
            catalog: the destination's table.
        """
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
        # What the destination computes may change with any column that it is computed from.
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
            # A column that an INSERT does not give has its default, which may refer to something.
            self._look_at_all(key, is_referred=is_referred)
            return
        self._values.append(ValueCheck(key=key, write=write, is_referred=is_referred))


def value_statement(check: ValueCheck, catalog: CatalogTable, generation: int) -> tuple[SetStatement, SetBuilder]:
    """The statement that finds a value of a write that is referred to and not there.

    Args:
        check: the values.
        catalog: of the write's table.
        generation: see `writes.wrapper_name`.
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
    """What is raised where a foreign key does not hold at the end of a transaction."""
    return DataError(
        f"foreign key {quote(key.constraint)} of {key.owner}.{key.name}: a row refers to one of"
        f" {key.referred_owner}.{key.referred_name} that is not there",
        sqlstate=_VIOLATION,
        violates="foreign_key",
        table=f"{key.owner}.{key.name}",
    )
