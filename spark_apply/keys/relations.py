"""Columns by which rows of different tables depend on each other, so that their transactions do too.

    SHARED     columns of a value dependency: rows with equal values depend on each other
    REFERRING  columns of a foreign key at the destination: a row needs the row that it refers to
    REFERRED   columns that foreign keys refer to: a row that comes, goes or changes there needs exclusive use

Rows that refer to the same row do not depend on each other. Where canonical forms cannot compare the values, whole
tables stand for the rows: false dependencies only cost parallelism. The same holds for values of a value dependency
that the log lacks.

An old foreign-key value that the log lacks gives no dependency. Every UPDATE of a table with the default replica
identity lacks it, and nearly all such UPDATEs leave it unchanged. An old referred value that the log lacks gives no
dependency either, unless foreign keys are checked at the destination. With checks, an earlier row that refers to that
value must not be applied after the change. The same holds for an UPDATE that may refer to a different row than before,
if its foreign key is incomplete in the log because a large column did not change.

Source: Oracle Streams Replication Administrator's Guide, "Dependent Transactions" and "Virtual Dependency Definitions";
`semantics.md` 4.6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from headrace.databases.ports import are_comparable
from headrace.rules.virtual_dependencies import NO_VIRTUAL_DEPENDENCIES, ValueDependency, VirtualDependencies
from spark_apply.keys.equality import Equality, equality_of, forms_of, touch_of
from spark_apply.keys.hash_kernels import hash_text

if TYPE_CHECKING:
    from headrace.databases.ports import DestinationTable
    from headrace.lcr.batch import TableVersion

__all__ = ["NO_RELATIONS", "RelatedColumns", "Relation", "Relations", "relations_of"]


class Relation(IntEnum):
    """How rows of different tables depend on each other by some columns; the module describes each kind."""

    SHARED = 0
    REFERRING = 1
    REFERRED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RelatedColumns:
    """Columns of a table by which its rows depend on rows of other tables.

    Args:
        relation: the kind of dependency.
        columns: positions in the source version.
        equalities: canonical form per column.
        seed: hash seed, the same for every table that takes part.
        is_in_identity: the log identifies rows by these columns: without old values they did not change.
        touch: hash that stands for all rows of a value dependency. For checked foreign keys, a hash that stands for
            all rows that refer to a table and only orders them. Otherwise 0.
    """

    relation: Relation
    columns: tuple[int, ...]
    equalities: tuple[Equality, ...]
    seed: int
    is_in_identity: bool
    touch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Relations:
    """What makes a table's rows depend on rows of other tables.

    Args:
        columns: compared value by value.
        touches: hashes that every transaction with a row of the table uses, marked as shared or exclusive use.
        forms: forms of the tables that its foreign keys refer to.
    """

    columns: tuple[RelatedColumns, ...] = ()
    touches: tuple[int, ...] = ()
    forms: tuple[int, ...] = ()


NO_RELATIONS = Relations()
_EXCLUSIVE = 2


def relations_of(
    version: TableVersion,
    table: DestinationTable,
    describe: Callable[[str, str], DestinationTable | None],
    definitions: VirtualDependencies = NO_VIRTUAL_DEPENDENCIES,
    *,
    checks_foreign_keys: bool = False,
) -> Relations:
    """Find what makes the rows of a table depend on rows of other tables.

    Args:
        version: the source's description, named as at the destination.
        table: the destination's description.
        describe: the destination's description of another table (owner, name); None: it does not exist.
        definitions: virtual dependency definitions of the apply process.
        checks_foreign_keys: foreign keys are checked at the destination.
    """
    if not (table.references or table.referred or definitions.values or definitions.objects):
        return NO_RELATIONS
    finder = _Finder(version, table, describe, checks_foreign_keys=checks_foreign_keys)
    columns: list[RelatedColumns] = []
    touches: dict[int, None] = {}
    for found in (*finder.referred(), *finder.referring(), *finder.shared(definitions)):
        if isinstance(found, RelatedColumns):
            columns.append(found)
        else:
            touches[found] = None
    for each in definitions.objects:
        touch = touch_of(f"object dependency\0{each.label}")
        # Dependent tables use the hash shared, so they do not wait for each other. Their parent uses it exclusively.
        if (each.parent_owner, each.parent_name) == (table.owner, table.name):
            touches[touch | _EXCLUSIVE] = None
        elif (each.owner, each.name) == (table.owner, table.name):
            touches[touch] = None
    others = (describe(key.owner, key.name) for key in table.references)
    return Relations(
        columns=tuple(dict.fromkeys(columns)),
        touches=tuple(touches),
        forms=tuple(form for other in others if other is not None for form in forms_of(other)),
    )


class _Finder:
    def __init__(
        self,
        version: TableVersion,
        table: DestinationTable,
        describe: Callable[[str, str], DestinationTable | None],
        *,
        checks_foreign_keys: bool,
    ) -> None:
        self._checks_foreign_keys = checks_foreign_keys
        self._version, self._table, self._describe = version, table, describe
        self._places = {column.name: place for place, column in enumerate(version.columns)}
        self._targets = {column.name: column for column in table.columns}

    def referred(self) -> Iterator[RelatedColumns | int]:
        """Yield dependencies through the foreign keys that refer to the table."""
        for key in self._table.referred:
            # A table that refers to the parent of a partition knows only the parent, so it has only the parent's hash.
            names = _in_order(self._table, key)
            found = (
                None
                if self._table.above
                else self._columns(
                    Relation.REFERRED,
                    names,
                    _seed_of(self._table, names),
                    self._order_touch(self._table),
                )
            )
            owner, name = self._table.above or (self._table.owner, self._table.name)
            yield found or touch_of(f"{owner}\0{name}") | _EXCLUSIVE

    def referring(self) -> Iterator[RelatedColumns | int]:
        """Yield dependencies through the table's own foreign keys."""
        for key in self._table.references:
            touch = touch_of(f"{key.owner}\0{key.name}")
            other = self._describe(key.owner, key.name)
            mine = dict(zip(key.referred_columns, key.columns, strict=True))
            pairs = [(name, mine[name]) for name in _in_order(other, mine)]  # both sides in the same order
            theirs = (
                []
                if other is None
                else [column for name, _ in pairs for column in other.columns if column.name == name]
            )
            own = [self._targets[column] for _, column in pairs]
            found = None
            if other is not None and are_comparable([own, theirs]):
                seed = _seed_of(other, [name for name, _ in pairs])
                found = self._columns(
                    Relation.REFERRING, [column for _, column in pairs], seed, self._order_touch(other)
                )
            if found is not None:
                yield found
            yield touch if found is not None else touch | _EXCLUSIVE

    def _order_touch(self, referred: DestinationTable) -> int:
        """Return the hash that orders rows that refer to a table against its rows whose old values the log lacks.

        0: the destination does not check foreign keys, so their order does not matter.
        """
        return touch_of(f"referred\0{referred.owner}\0{referred.name}") if self._checks_foreign_keys else 0

    def shared(self, definitions: VirtualDependencies) -> Iterator[RelatedColumns | int]:
        """Yield value dependencies."""
        for value in definitions.values:
            for each in value.tables:
                if (each.owner, each.name) != (self._table.owner, self._table.name):
                    continue
                touch = touch_of(f"value dependency\0{value.name}")
                found = None
                if self._is_comparable(value):
                    seed = hash_text(f"value dependency\0{value.name}\0values")
                    found = self._columns(Relation.SHARED, each.columns, seed, touch)
                yield found or touch | _EXCLUSIVE

    def _is_comparable(self, value: ValueDependency) -> bool:
        """Return whether the columns have the same canonical forms in all tables that exist."""
        found = []
        for each in value.tables:
            is_own = (each.owner, each.name) == (self._table.owner, self._table.name)
            table = self._table if is_own else self._describe(each.owner, each.name)
            if table is not None:
                by_name = {column.name: column for column in table.columns}
                if any(column not in by_name for column in each.columns):
                    return False
                found.append([by_name[column] for column in each.columns])
        return are_comparable(found)

    def _columns(self, relation: Relation, names: Sequence[str], seed: int, touch: int = 0) -> RelatedColumns | None:
        """Return the columns by name.

        None: the LCRs lack one, the destination computes one, or a value's bytes do not show what it equals.
        """
        if any(
            name not in self._places or name not in self._targets or self._targets[name].is_generated for name in names
        ):
            return None
        places = tuple(self._places[name] for name in names)
        equalities = tuple(
            equality_of(self._targets[name], self._version.columns[self._places[name]]) for name in names
        )
        if Equality.NONE in equalities:
            return None
        return RelatedColumns(
            relation=relation,
            columns=places,
            equalities=equalities,
            seed=seed,
            touch=touch,
            is_in_identity=all(self._version.columns[place].is_key for place in places),
        )


def _numbers(table: DestinationTable) -> dict[str, int]:
    """Map column name → column number, which survives a rename."""
    return {column.name: column.number for column in table.columns}


def _in_order(table: DestinationTable | None, names: Iterable[str]) -> list[str]:
    """Sort the columns of a referred key into an order that survives a column rename."""
    numbers = {} if table is None else _numbers(table)
    return sorted(names, key=lambda name: (numbers.get(name, 0), name))


def _seed_of(table: DestinationTable, names: Sequence[str]) -> int:
    """Return a seed for a referred key that survives a column rename."""
    numbers = _numbers(table)
    return hash_text(
        f"{table.owner}\0{table.name}\0referred\0{' '.join(str(numbers.get(name, name)) for name in names)}"
    )
