"""The statements of a change, in an order in which each finds what it needs.

    first statements     drop foreign keys, indexes, constraints, columns; rename; types
    last statements      drop what is built anew; defaults; NOT NULL; add columns, constraints, indexes, foreign keys

In between the table is read again: definitions of constraints, indexes and defaults follow the columns' names and types
by themselves, and only what did not is built anew. A key that rows of other tables refer to, or that identifies rows,
would otherwise be dropped for nothing.

Statements have no text of the client, only names, quoted here, and definitions that the source's server printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from headrace.base.errors import DataError
from headrace.databases.postgres.connection import qualified, quote
from headrace.databases.postgres.ddl.comparison import Rename, Work
from headrace.databases.postgres.ddl.conversions import Cast
from headrace.databases.postgres.ddl.key_text import differs_in_deferral, is_foreign_key, key_text
from headrace.databases.postgres.ddl.refusals import part_refusal
from headrace.lcr.structure import ColumnPart, ConstraintPart, IndexPart, Part, PartKind, PartName, Structure, elements
from headrace.lcr.table_name import TableName, literal

__all__ = ["GENERATED", "first_statements", "last_statements"]

_DROP_ORDER = (PartKind.INDEX, PartKind.CONSTRAINT, PartKind.COLUMN)
_NOT_VALID = " NOT VALID"
GENERATED = {"s": "STORED", "v": "VIRTUAL"}
"""How a generated column is kept, by `ColumnPart.generated`."""


def first_statements(table: TableName, work: Work, here: Structure) -> tuple[str, ...]:
    """Return the statements up to the types of columns.

    Args:
        table: name of the table.
        work: what is to be done.
        here: the table at the destination.
    """
    found = list(_drops(table, work.dropped, elements(here)))
    taken = {key.name for key in (*elements(here), *(PartName(each.kind, each.new) for each in work.renames))}
    found += [_rename(table, each) for each in _ordered(work.renames, taken)]
    for column, attributes in work.altered:
        if "type" in attributes:
            # The default may be one that the server cannot convert.
            if "default" in attributes:
                found.append(_alter(table, f"ALTER COLUMN {quote(column.name)} DROP DEFAULT"))
            found.append(
                _alter(table, f"ALTER COLUMN {quote(column.name)} SET DATA TYPE {_type(column)}{_using(column, work)}")
            )
    return tuple(found)


def last_statements(table: TableName, work: Work, here: Structure, older: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the statements after the types of columns.

    Args:
        table: name of the table.
        work: what is to be done.
        here: the table at the destination after the first statements.
        older: for each column to add, the value in rows that are older than it, printed.

    Raises:
        DataError: a constraint or index did not follow the columns as expected.
    """
    parts = elements(here)
    left = [part for part in work.built if not _is_built(parts.get(part.key), part)]
    for part in left:
        if not is_foreign_key(part) and (reason := part_refusal(part)):
            message = f"table {table}: {part.key} did not come into its form with the columns: {reason}"
            raise DataError(message, hint="make the same change at the destination")
    valid = [part for part in left if _is_valid_only(parts.get(part.key), part)]
    deferred = [part for part in left if differs_in_deferral(parts.get(part.key), part)]
    built = [part for part in left if part not in valid and part not in deferred]
    found = list(_drops(table, (part.key for part in built if part.key in parts), parts))
    for column, attributes in work.altered:
        found += _attributes(table, column, attributes, parts.get(column.key))
    for column in sorted(work.added, key=lambda each: each.number):
        found += _added(table, column, older.get(column.name))
    constraints = [part for part in built if isinstance(part, ConstraintPart)]
    found += [_constraint(table, part) for part in constraints if not part.is_foreign_key]
    found += [_alter(table, f"VALIDATE CONSTRAINT {quote(part.name)}") for part in valid]
    found += [_alter(table, f"ALTER CONSTRAINT {quote(part.name)} {_deferral(part)}") for part in deferred]
    found += [part.definition for part in built if isinstance(part, IndexPart)]
    # Behind the keys and indexes of this table, to which it may refer itself.
    found += [_constraint(table, part) for part in constraints if part.is_foreign_key]
    return tuple(found)


def _constraint(table: TableName, part: ConstraintPart) -> str:
    return _alter(table, f"ADD CONSTRAINT {quote(part.name)} {part.definition}")


def _deferral(part: Part) -> str:
    text = key_text(part)
    return text.deferral.strip() if text is not None and text.deferral else "NOT DEFERRABLE"


def _is_built(found: Part | None, part: Part) -> bool:
    return found is not None and found.shape == part.shape


def _is_valid_only(found: Part | None, part: Part) -> bool:
    """Return whether a constraint lacks nothing but that older rows are checked."""
    return (
        isinstance(found, ConstraintPart)
        and isinstance(part, ConstraintPart)
        and found.type == part.type
        and found.definition == part.definition + _NOT_VALID
    )


def _alter(table: TableName, action: str) -> str:
    return f"ALTER TABLE ONLY {qualified(*table)} {action}"


def _drops(table: TableName, keys: Iterable[PartName], here: Mapping[PartName, Part]) -> Iterator[str]:
    # A foreign key may need an index of the table to which it refers itself.
    for kind, name in sorted(keys, key=lambda key: (not is_foreign_key(here.get(key)), _DROP_ORDER.index(key.kind))):
        if kind is PartKind.INDEX:
            yield f"DROP INDEX {qualified(table.owner, name)}"
        else:
            yield _alter(table, f"DROP {kind.upper()} {quote(name)}")


def _rename(table: TableName, rename: Rename) -> str:
    if rename.kind is PartKind.INDEX:
        return f"ALTER INDEX {qualified(table.owner, rename.old)} RENAME TO {quote(rename.new)}"
    return _alter(table, f"RENAME {rename.kind.upper()} {quote(rename.old)} TO {quote(rename.new)}")


def _ordered(renames: Sequence[Rename], taken: set[str]) -> Iterator[Rename]:
    """Return renames in an order in which no new name is still taken by another part.

    Constraints with indexes and other indexes share one set of names; columns have their own. Where parts exchange
    their names, one gets a name in between.

    Args:
        renames: in any order.
        taken: names that the one in between must not be.
    """
    left = list(renames)
    while left:
        ready = next((each for each in left if not any(_blocks(other, each) for other in left)), None)
        if ready is None:
            between = next(name for number in range(len(taken) + 1) if (name := f"headrace_{number}") not in taken)
            taken.add(between)
            first = left.pop(0)
            yield Rename(first.kind, first.old, between)
            left.append(Rename(first.kind, between, first.new))
        else:
            left.remove(ready)
            yield ready


def _blocks(other: Rename, rename: Rename) -> bool:
    is_column = PartKind.COLUMN in (other.kind, rename.kind)
    return other is not rename and other.old == rename.new and (other.kind is rename.kind or not is_column)


def _type(column: ColumnPart) -> str:
    return column.type_name if column.collation is None else f"{column.type_name} COLLATE {column.collation}"


def _using(column: ColumnPart, work: Work) -> str:
    name, cast = quote(column.name), work.casts.get(column.name, Cast.ASSIGNMENT)
    return {
        Cast.ASSIGNMENT: "",
        Cast.EXPLICIT: f" USING {name}::{column.type_name}",
        Cast.UTC: f" USING {name} AT TIME ZONE 'UTC'",
    }[cast]


def _attributes(table: TableName, column: ColumnPart, attributes: frozenset[str], found: Part | None) -> Iterator[str]:
    """Yield the statements that give a column its default and NOT NULL; its type it has."""
    name = quote(column.name)
    if "default" in attributes and not (isinstance(found, ColumnPart) and found.default == column.default):
        yield _alter(table, f"ALTER COLUMN {name} {_default(column)}")
    if "NOT NULL" in attributes:
        yield _alter(table, f"ALTER COLUMN {name} {'SET' if column.not_null else 'DROP'} NOT NULL")


def _default(column: ColumnPart) -> str:
    return "DROP DEFAULT" if column.default is None else f"SET DEFAULT {column.default}"


def _added(table: TableName, column: ColumnPart, older: str | None) -> Iterator[str]:
    """Yield the statements that add a column.

    Rows that are there get the value that the source's rows got, whatever its default gave then. The server keeps it in
    the catalog and does not write the rows anew.
    """
    name = quote(column.name)
    words = [f"ADD COLUMN {name} {_type(column)}"]
    if column.generated:
        words.append(f"GENERATED ALWAYS AS ({column.default}) {GENERATED[column.generated]}")
    if older is not None:
        words.append(f"DEFAULT {literal(older)}")
    if column.not_null:
        words.append("NOT NULL")
    yield _alter(table, " ".join(words))
    if not column.generated and (older is not None or column.default is not None):
        yield _alter(table, f"ALTER COLUMN {name} {_default(column)}")
