"""The tree of a rule's condition: comparisons of values, and their logical operators.

A condition is a tree of comparisons over the attributes and values of one row LCR, with SQL's three-valued logic: a
rule takes an LCR only when its condition is TRUE; FALSE and NULL have the same effect.
`headrace.rules.conditions.parsing` parses conditions from SQL, `headrace.rules.conditions.compiled` evaluates them on
whole columns, `headrace.rules.conditions.rowwise` one row at a time.

Values
    new.c     the value after the change; NULL in a DELETE, which has none
    old.c     the value before it; NULL in an INSERT
    c         of INSERT and UPDATE the new one, of DELETE the old one

A large value that an UPDATE did not touch is not in the log: the condition uses the old one, which is the same. A value
that the log should have but lacks is neither NULL nor guessed: the client stops, unless the condition's outcome is the
same without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum

from headrace.base.errors import HeadraceError, Retry

__all__ = [
    "And",
    "Attribute",
    "Compare",
    "ConditionError",
    "Constant",
    "Distinct",
    "Image",
    "In",
    "IsNull",
    "IsTruth",
    "Like",
    "Logical",
    "Node",
    "Not",
    "Operand",
    "Or",
    "Truth",
    "ValueOf",
    "columns_of",
    "comparisons_of",
    "of_image",
    "operands_of",
]


class ConditionError(HeadraceError):
    """A condition cannot be evaluated as its source would; the hint says what to write instead."""

    code = "HDR-1210"
    fix = "Write the condition as the hint says."
    retry = Retry.MANUAL


class Image(Enum):
    """The row image to which a column name refers."""

    NEW = "new"
    OLD = "old"
    ROW = "row"  # the new one; for a DELETE the old one


class Truth(Enum):
    """A truth value of SQL."""

    TRUE = "true"
    FALSE = "false"
    NULL = "unknown"


@dataclass(frozen=True, slots=True)
class ValueOf:
    """A column's value."""

    image: Image
    column: str

    def __str__(self) -> str:
        return self.column if self.image is Image.ROW else f"{self.image.value}.{self.column}"


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of the LCR, by the manuals' name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal.

    Args:
        value: a number, a text in quotes, a truth value, None for NULL, or the bytes of a tag.
    """

    value: int | Decimal | str | bytes | bool | None

    def __str__(self) -> str:
        if isinstance(self.value, bytes):
            return f"'{self.value.hex()}'"
        if isinstance(self.value, str):
            quoted = self.value.replace("'", "''")
            return f"'{quoted}'"
        return (
            "NULL"
            if self.value is None
            else str(self.value).upper()
            if isinstance(self.value, bool)
            else str(self.value)
        )


Operand = ValueOf | Attribute | Constant


@dataclass(frozen=True, slots=True)
class Compare:
    """`left operator right`; the operator is one of = <> < <= > >=."""

    operator: str
    left: Operand
    right: Operand
    bytewise: bool = False  # COLLATE "C"


@dataclass(frozen=True, slots=True)
class Distinct:
    """`left IS DISTINCT FROM right`: never NULL."""

    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class In:
    """`operand IN (constants)`."""

    operand: Operand
    among: tuple[Constant, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """`operand LIKE pattern`, with a backslash as escape."""

    operand: Operand
    pattern: str


@dataclass(frozen=True, slots=True)
class IsNull:
    """`operand IS NULL`."""

    operand: Operand


@dataclass(frozen=True, slots=True)
class IsTruth:
    """`item IS TRUE`, `IS FALSE` or `IS UNKNOWN`."""

    item: Node
    truth: Truth


@dataclass(frozen=True, slots=True)
class Not:
    """`NOT item`."""

    item: Node


@dataclass(frozen=True, slots=True)
class And:
    """The AND of its items."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """The OR of its items."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Logical:
    """A literal truth value."""

    truth: Truth


Node = And | Or | Not | IsTruth | IsNull | Compare | Distinct | In | Like | Logical


def operands_of(tree: Node) -> tuple[Operand, ...]:
    """Return the operands of a condition, including constants, without duplicates."""
    return tuple(dict.fromkeys(_operands(tree)))


def columns_of(tree: Node) -> tuple[ValueOf, ...]:
    """Return the values that a condition reads, without duplicates."""
    return tuple(operand for operand in operands_of(tree) if isinstance(operand, ValueOf))


def comparisons_of(node: Node) -> Iterator[Node]:
    """Yield the comparisons of a condition in order."""
    match node:
        case And() | Or():
            for item in node.items:
                yield from comparisons_of(item)
        case Not() | IsTruth():
            yield from comparisons_of(node.item)
        case _:
            yield node


def _operands(tree: Node) -> Iterator[Operand]:
    for node in comparisons_of(tree):
        yield from _compared(node)


def _compared(node: Node) -> Iterator[Operand]:
    match node:
        case Compare() | Distinct():
            yield from (node.left, node.right)
        case In():
            yield from (node.operand, *node.among)
        case Like() | IsNull():
            yield node.operand
        case Logical():
            pass


def of_image(node: Node, image: Image) -> Node:
    """Return a condition in which every name without a prefix means the old, or the new, value.

    Args:
        node: its tree.
        image: the meant image.
    """

    def operand(each: Operand) -> Operand:
        return ValueOf(image, each.column) if isinstance(each, ValueOf) and each.image is Image.ROW else each

    match node:
        case And() | Or():
            return type(node)(tuple(of_image(item, image) for item in node.items))
        case Not() | IsTruth():
            return replace(node, item=of_image(node.item, image))
        case Compare() | Distinct():
            return replace(node, left=operand(node.left), right=operand(node.right))
        case In() | Like() | IsNull():
            return replace(node, operand=operand(node.operand))
        case Logical():
            return node
