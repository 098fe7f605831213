"""The structure of one table, as the source of a DDL change describes it and a destination has it.

A structure consists of parts: columns, constraints and indexes. A part is known by its kind and name. Its number is that
of one database: it recognises a renamed part there, and is never compared. NOT NULL is an attribute of its column.

Texts are the database's own definitions. Both sides print them with the same settings, and the same major version
prints the same text for the same definition.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from headrace.base.errors import ProtocolError
from headrace.lcr.table_name import quoted

__all__ = [
    "Altered",
    "ColumnPart",
    "ConstraintPart",
    "Delta",
    "IndexPart",
    "OwnedSequence",
    "Part",
    "PartKind",
    "PartName",
    "Structure",
    "elements",
    "sequence_from_json",
    "structure_from_json",
]


class PartKind(StrEnum):
    """What a part is."""

    COLUMN = "column"
    CONSTRAINT = "constraint"
    INDEX = "index"


class PartName(NamedTuple):
    """A part of a table."""

    kind: PartKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.value} {quoted(self.name)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPart:
    """A column.

    Args:
        number: its number in the table, never used again there.
        name: its name.
        type_name: its type with modifiers, printed.
        collation: printed, if it is not the type's own.
        not_null: it takes no NULL.
        not_valid: rows that are older than its NOT NULL were not checked.
        default: the default, or the expression of a generated column, printed.
        identity: `a` always, `d` by default; empty: no identity column.
        generated: `s` stored, `v` virtual; empty: no generated column.
        calls: the default calls a function that may do anything.
    """

    number: int = field(compare=False)
    name: str
    type_name: str
    collation: str | None = None
    not_null: bool = False
    not_valid: bool = False
    default: str | None = None
    identity: str = ""
    generated: str = ""
    calls: bool = field(default=False, compare=False)

    @property
    def key(self) -> PartName:
        """Kind and name."""
        return PartName(PartKind.COLUMN, self.name)

    @property
    def shape(self) -> tuple[object, ...]:
        """Everything but the name."""
        return (
            self.type_name,
            self.collation,
            self.not_null,
            self.not_valid,
            self.default,
            self.identity,
            self.generated,
        )

    @property
    def definition(self) -> str:
        """The column for a message."""
        words = [self.type_name]
        if self.collation is not None:
            words += ["COLLATE", self.collation]
        if self.generated:
            words += [f"GENERATED ALWAYS AS ({self.default})"]
        elif self.default is not None:
            words += ["DEFAULT", self.default]
        if self.identity:
            words += ["GENERATED", "ALWAYS" if self.identity == "a" else "BY DEFAULT", "AS IDENTITY"]
        if self.not_null:
            words += ["NOT NULL"]
        if self.not_valid:
            words += ["NOT VALID"]
        return " ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintPart:
    """A constraint with its index, if it has one.

    Args:
        number: its number in the database.
        name: its name.
        type: `p` primary key, `u` unique, `c` check, `x` exclusion, `f` foreign key.
        definition: printed, without the name.
        calls: it calls a function that may do anything.
    """

    number: int = field(compare=False)
    name: str
    type: str
    definition: str
    calls: bool = field(default=False, compare=False)

    @property
    def key(self) -> PartName:
        """Kind and name."""
        return PartName(PartKind.CONSTRAINT, self.name)

    @property
    def shape(self) -> tuple[object, ...]:
        """Everything but the name."""
        return (self.type, self.definition)

    @property
    def is_foreign_key(self) -> bool:
        """Whether it refers to rows of a table."""
        return self.type == "f"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPart:
    """An index that does not belong to a constraint.

    Args:
        number: its number in the database.
        name: its name, in the schema of its table.
        definition: the statement that creates it, printed.
        calls: it calls a function that may do anything.
    """

    number: int = field(compare=False)
    name: str
    definition: str
    calls: bool = field(default=False, compare=False)

    @property
    def key(self) -> PartName:
        """Kind and name."""
        return PartName(PartKind.INDEX, self.name)

    @property
    def shape(self) -> tuple[object, ...]:
        """Everything but the name."""
        verb, found, rest = self.definition.partition(" INDEX ")
        # The server quotes a name only where it must.
        for name in (quoted(self.name), self.name):
            if found and rest.startswith(f"{name} ON "):
                return (verb, rest[len(name) :])
        return (self.definition,)


Part = ColumnPart | ConstraintPart | IndexPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """A table.

    Args:
        owner: its schema.
        name: its name.
        kind: `r` table, `p` partitioned table.
        persistence: `p` permanent, `u` unlogged.
        role: the role that owns it.
        is_partition: it is a partition of another table.
        parents: how many tables it inherits from, as partition or otherwise.
        children: how many tables inherit from it.
        columns: in the order of the table.
        constraints: by name.
        indexes: by name.
    """

    owner: str
    name: str
    kind: str = "r"
    persistence: str = "p"
    role: str = ""
    is_partition: bool = False
    parents: int = 0
    children: int = 0
    columns: tuple[ColumnPart, ...] = ()
    constraints: tuple[ConstraintPart, ...] = ()
    indexes: tuple[IndexPart, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts."""
        return (*self.columns, *self.constraints, *self.indexes)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedSequence:
    """A sequence that a column of a table owns, without its value.

    Args:
        owner: its schema.
        name: its name.
        type: its type, printed.
        start, increment, min, max, cache, cycle: its options.
        kind: `a` of a default, `i` of an identity column.
    """

    owner: str
    name: str
    type: str
    start: int
    increment: int
    min: int
    max: int
    cache: int
    cycle: bool
    kind: str


def elements(structure: Structure | None) -> dict[PartName, Part]:
    """Return a table's parts by kind and name; no table has no parts."""
    return {} if structure is None else {part.key: part for part in structure.parts}


def structure_from_json(value: str | bytes | Mapping[str, Any]) -> Structure:
    """Read a structure.

    Args:
        value: what the query in `headrace.databases.postgres.ddl.structure_query` returns, as text or read.

    Raises:
        ProtocolError: it is damaged.
    """
    try:
        found = json.loads(value) if isinstance(value, str | bytes) else value
        return Structure(
            **{name: _text(found[name]) for name in ("owner", "name", "kind", "persistence", "role")},
            is_partition=bool(found["is_partition"]),
            parents=int(found["parents"]),
            children=int(found["children"]),
            columns=tuple(_column(each) for each in found["columns"]),
            constraints=tuple(
                ConstraintPart(**_numbered(each), type=_text(each["type"]), definition=_text(each["definition"]))
                for each in found["constraints"]
            ),
            indexes=tuple(
                IndexPart(**_numbered(each), definition=_text(each["definition"])) for each in found["indexes"]
            ),
        )
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        message = "the description of a table's structure is damaged"
        raise ProtocolError(message, hint=ProtocolError.fix) from error


def sequence_from_json(value: Mapping[str, Any]) -> OwnedSequence:
    """Read a sequence of a column.

    Raises:
        ProtocolError: it is damaged.
    """
    try:
        return OwnedSequence(
            owner=_text(value["owner"]),
            name=_text(value["name"]),
            type=_text(value["type"]),
            start=int(value["start"]),
            increment=int(value["increment"]),
            min=int(value["min"]),
            max=int(value["max"]),
            cache=int(value["cache"]),
            cycle=bool(value["cycle"]),
            kind=_text(value["kind"]),
        )
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        message = "the description of a column's sequence is damaged"
        raise ProtocolError(message, hint=ProtocolError.fix) from error


def _column(value: Mapping[str, Any]) -> ColumnPart:
    return ColumnPart(
        **_numbered(value),
        type_name=_text(value["type"]),
        collation=_text_or_none(value["collation"]),
        not_null=bool(value["not_null"]),
        not_valid=bool(value.get("not_valid")),
        default=_text_or_none(value["default"]),
        identity=_text(value["identity"]),
        generated=_text(value["generated"]),
    )


def _numbered(value: Mapping[str, Any]) -> dict[str, Any]:
    return {"number": int(value["number"]), "name": _text(value["name"]), "calls": bool(value["calls"])}


def _text(value: object) -> str:
    if not isinstance(value, str):
        message = "not a text"
        raise ValueError(message)  # noqa: TRY004 - damage, whatever its kind
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Altered:
    """A part that has another name, another shape, or both."""

    before: Part
    after: Part

    @property
    def is_renamed(self) -> bool:
        """Whether the name differs."""
        return self.before.name != self.after.name

    @property
    def is_changed(self) -> bool:
        """Whether anything but the name differs."""
        return self.before.shape != self.after.shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What distinguishes the parts of a table after a change from those before it.

    Args:
        dropped: parts that only the table before has.
        added: parts that only the table after has. A column that was dropped and added again under its name is in
            both: its values are others.
        altered: parts that both have, in different forms.
        recreated: constraints and indexes that were dropped and made again as they were.
        gone: parts that the change dropped and neither has: the description before did not know them yet.
    """

    dropped: tuple[Part, ...] = ()
    added: tuple[Part, ...] = ()
    altered: tuple[Altered, ...] = ()
    recreated: tuple[ConstraintPart | IndexPart, ...] = ()
    gone: tuple[PartName, ...] = ()

    @classmethod
    def between(cls, before: Structure | None, after: Structure | None, gone: Iterable[PartName] = ()) -> Delta:
        """Compare a table before and after a change; both descriptions are from the same database.

        Args:
            before: None: there was no table.
            after: None: there is no table any more.
            gone: what the change says it dropped.
        """
        old, new = elements(before), elements(after)
        pairs = _pairs(old, new)
        paired_before = {pair.before.key for pair in pairs}
        paired_after = {pair.after.key for pair in pairs}
        return cls(
            dropped=tuple(part for key, part in old.items() if key not in paired_before),
            added=tuple(part for key, part in new.items() if key not in paired_after),
            altered=tuple(pair for pair in pairs if pair.is_renamed or pair.is_changed),
            recreated=tuple(
                pair.after
                for pair in pairs
                if pair.before.number != pair.after.number
                and not isinstance(pair.after, ColumnPart)
                and not (pair.is_renamed or pair.is_changed)
            ),
            gone=tuple(key for key in dict.fromkeys(gone) if key not in old and key not in new),
        )

    @property
    def renamed(self) -> tuple[Altered, ...]:
        """Parts with another name."""
        return tuple(pair for pair in self.altered if pair.is_renamed)

    @property
    def changed(self) -> tuple[Altered, ...]:
        """Parts with another shape."""
        return tuple(pair for pair in self.altered if pair.is_changed)

    @property
    def has_other_columns(self) -> bool:
        """Whether columns have other names or types, which definitions of other parts then follow."""
        return any(
            pair.is_renamed or pair.before.type_name != pair.after.type_name
            for pair in self.altered
            if isinstance(pair.before, ColumnPart) and isinstance(pair.after, ColumnPart)
        )


def _pairs(old: Mapping[PartName, Part], new: Mapping[PartName, Part]) -> list[Altered]:
    """Return the parts that both have, by number, then by name.

    A constraint or an index that was created anew under its name is the same part for whoever compares it, whereas a
    column that was has lost its values.
    """
    numbered = {(key.kind, part.number): part for key, part in old.items()}
    found: list[Altered] = []
    for key, part in new.items():
        before = numbered.pop((key.kind, part.number), None)
        if before is not None:
            found.append(Altered(before=before, after=part))
    left = {part.key: part for part in numbered.values()}
    taken = {pair.after.key for pair in found}
    found += [
        Altered(before=left[key], after=part)
        for key, part in new.items()
        if key in left and key not in taken and key.kind is not PartKind.COLUMN
    ]
    return found
