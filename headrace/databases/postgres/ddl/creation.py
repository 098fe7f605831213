"""A new table at a destination: the statements that create it as the source has it, and the proof of the result.

    plan = plan_creation(record, role, version)
    run(plan.statements)                                     sequences of defaults, the table with its constraints
    run(plan.last_statements(read_structure(connection, table)))         indexes, foreign keys
    check_creation(plan, read_structure(connection, table))

A table that is there already may take the new one's place: `other_form` says what it lacks.

Foreign keys follow the indexes, or are left out where they refer to a table that is not level with this one. Values of
sequences are not in the source's log, so they begin here as the source's began. Nothing here talks to a database.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from headrace.base.errors import DataError
from headrace.databases.postgres.connection import qualified, quote
from headrace.databases.postgres.ddl import statements
from headrace.databases.postgres.ddl.comparison import Work
from headrace.databases.postgres.ddl.proof import differences
from headrace.databases.postgres.ddl.refusals import creation_refusal, part_refusal
from headrace.lcr.ddl_record import DdlRecord
from headrace.lcr.structure import (
    ColumnPart,
    ConstraintPart,
    OwnedSequence,
    Part,
    PartName,
    Structure,
    elements,
)
from headrace.lcr.table_name import TableName

__all__ = ["PlannedCreation", "check_creation", "other_form", "plan_creation"]

_NOTHING = Structure(owner="", name="")
_IDENTITY = {"a": "ALWAYS", "d": "BY DEFAULT"}
_UNKNOWN = "it is not known which table it refers to"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCreation:
    """How a destination gets a new table.

    Args:
        refusal: why it is not created, for the operator; empty: it is.
        left_out: why parts of it are not created while the others are.
        statements: the first statements to run, in this order; `last_statements` has those after them.
    """

    refusal: str = ""
    left_out: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()
    _source: Structure = _NOTHING
    _role: str = ""
    _work: Work = field(default_factory=Work)

    @property
    def structure(self) -> Structure:
        """The table as the source has it, owned by the destination's role."""
        return replace(self._source, role=self._role)

    @property
    def new_keys(self) -> tuple[ConstraintPart, ...]:
        """Foreign keys that it gets."""
        return tuple(part for part in self._work.built if isinstance(part, ConstraintPart) and part.is_foreign_key)

    def last_statements(self, here: Structure | None) -> tuple[str, ...]:
        """Return the statements that follow the first ones.

        Args:
            here: the destination's table, read after the first statements ran.
        """
        work = Work(built=self._work.built)
        return statements.last_statements(TableName.of(self._source), work, here or _NOTHING, {})


def plan_creation(record: DdlRecord, role: str, version: int, keys: Mapping[str, str] | None = None) -> PlannedCreation:
    """Decide how a destination gets the table that a record creates.

    Args:
        record: of a table that was not there before.
        role: the role that is to own it here.
        version: major version of the destination.
        keys: for each foreign key, why it is left out; empty: it is made. One that is not in it is left out.
    """
    source = record.after
    reason = creation_refusal(record, version)
    if reason or source is None:
        return PlannedCreation(refusal=reason)
    left_out = {
        part.key: reason
        for part in source.constraints
        if part.is_foreign_key and (reason := part_refusal(part) or (keys or {}).get(part.name, _UNKNOWN))
    }
    constraints = [part for part in source.constraints if part.key not in left_out]
    return PlannedCreation(
        left_out=tuple(
            reason if reason.startswith(str(key)) else f"{key}: {reason}" for key, reason in left_out.items()
        ),
        statements=tuple(_first(source, record)),
        _source=source,
        _role=role,
        _work=Work(added=source.columns, built=(*constraints, *source.indexes), loose=frozenset(left_out)),
    )


def check_creation(planned: PlannedCreation, after: Structure | None) -> None:
    """Prove that the statements made the table that the source has.

    Args:
        planned: the plan; all its statements ran, in one transaction.
        after: the destination's table as it is now.

    Raises:
        DataError: the table differs; the message says where. The transaction must not commit.
    """
    wanted = planned.structure
    empty = replace(wanted, columns=(), constraints=(), indexes=())
    found = list(differences(planned._work, wanted, empty, after or _NOTHING))  # noqa: SLF001 - a function of the plan
    if found:
        table = TableName.of(wanted)
        message = f"the result is another one: {'; '.join(found)}"
        raise DataError(message, hint="create the table here, empty and as the source has it", table=str(table))


def other_form(planned: PlannedCreation, here: Structure) -> str:
    """Return what a table that is there already lacks to be the new one; empty: nothing. It may have more parts.

    Args:
        planned: the plan; none of its statements ran.
        here: the destination's table of that name.
    """
    return "; ".join(_other_parts(planned.structure, here, planned._work.loose))  # noqa: SLF001 - as above


def _other_parts(source: Structure, here: Structure, left_out: Collection[PartName]) -> Iterator[str]:
    if here.kind != "r" or here.is_partition:
        yield "it is a partitioned table or a partition here"
    if here.parents or here.children:
        yield "it inherits here, or others inherit from it"
    if here.persistence != source.persistence:
        yield "it is unlogged here"
    there = elements(here)
    for key, part in elements(source).items():
        found = there.get(key)
        if (found is None or found.shape != part.shape) and key not in left_out:
            yield f"{key} is {_shown(found)} here, and {part.definition} at the source"


def _shown(part: Part | None) -> str:
    return "missing" if part is None else part.definition


# ---------------------------------------------------------------------- statements


def _first(source: Structure, record: DdlRecord) -> Iterator[str]:
    """Yield the statements up to the table without its other indexes, and to whom its sequences belong."""
    table, columns = TableName.of(source), sorted(source.columns, key=lambda each: each.number)
    owned = {name: found for name, found in record.sequences.items() if found.kind == "a"}
    for sequence in owned.values():
        options = f"AS {sequence.type} {_options(sequence)}"
        yield f"CREATE SEQUENCE {qualified(sequence.owner, sequence.name)} {options}"
    listed = [_column(column, record.sequences.get(column.name)) for column in columns]
    # In the same statement: whoever records DDL of this database sees the table with its key from the beginning.
    listed += [
        f"CONSTRAINT {quote(part.name)} {part.definition}" for part in source.constraints if not part.is_foreign_key
    ]
    yield f"CREATE TABLE {qualified(*table)} ({', '.join(listed)})"
    for column, sequence in owned.items():
        of = f"{qualified(*table)}.{quote(column)}"
        yield f"ALTER SEQUENCE {qualified(sequence.owner, sequence.name)} OWNED BY {of}"


def _column(column: ColumnPart, sequence: OwnedSequence | None) -> str:
    words = [quote(column.name), column.type_name]
    if column.collation is not None:
        words.append(f"COLLATE {column.collation}")
    if column.generated:
        words.append(f"GENERATED ALWAYS AS ({column.default}) {statements.GENERATED[column.generated]}")
    elif column.default is not None:
        words.append(f"DEFAULT {column.default}")
    if column.identity and sequence is not None:
        named = f"SEQUENCE NAME {qualified(sequence.owner, sequence.name)}"
        words.append(f"GENERATED {_IDENTITY[column.identity]} AS IDENTITY ({named} {_options(sequence)})")
    if column.not_null:
        words.append("NOT NULL")
    return " ".join(words)


def _options(sequence: OwnedSequence) -> str:
    return (
        f"INCREMENT BY {sequence.increment} MINVALUE {sequence.min} MAXVALUE {sequence.max} START WITH {sequence.start}"
        f" CACHE {sequence.cache} {'CYCLE' if sequence.cycle else 'NO CYCLE'}"
    )
