"""Conditions one row at a time.

The reference for `headrace.rules.conditions.compiled`, and the basis for explaining why a rule took a change or not.

It is plain Python over the values of one LCR. A value that the log lacks may be anything: the answer is then every
possible truth value.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import product

from headrace.lcr.batch import Column
from headrace.lcr.row_lcr import RowLcr, ValueType
from headrace.lcr.values import ABSENT, NULL, UNCHANGED
from headrace.rules.conditions.attributes import UNIX_TO_2000_US
from headrace.rules.conditions.nodes import (
    And,
    Attribute,
    Compare,
    ConditionError,
    Constant,
    Distinct,
    Image,
    In,
    IsNull,
    IsTruth,
    Like,
    Logical,
    Node,
    Not,
    Operand,
    Or,
    Truth,
    ValueOf,
)
from headrace.rules.conditions.values import OPERATORS, Comparable, Kind, ValueTypes, like_pattern

__all__ = ["is_true_of", "truth_values"]

_Truths = frozenset[bool | None]
_EVERY: _Truths = frozenset((True, False, None))
_YES_OR_NO: _Truths = frozenset((True, False))


class _Missing(Exception):  # noqa: N818 - no error: the value is not in the log
    pass


def truth_values(tree: Node, lcr: RowLcr, types: ValueTypes) -> frozenset[bool | None]:
    """Return the possible truth values of a condition for an LCR; one, unless the log lacks a value that matters.

    Args:
        tree: the condition's tree.
        lcr: the row, as it was captured.
        types: types of the values' database.

    Raises:
        ConditionError: the table lacks a column.
        ValueError: a value or a literal is not of the column's type.
    """
    return _Row(lcr, types).truths(tree)


def is_true_of(tree: Node, columns: Sequence[Column], row: Sequence[bytes | None], types: ValueTypes) -> bool:
    """Return whether a condition on columns only is TRUE for a row of a table.

    Args:
        tree: the condition's tree.
        columns: columns of the table.
        row: its values, in the same order; None is NULL.
        types: types of the values' database.

    Raises:
        ConditionError: the table lacks a column.
        ValueError: a value or a literal is not of the column's type.
    """
    return _PlainRow(columns, row, types).truths(tree) == {True}


class _Row:
    def __init__(self, lcr: RowLcr, types: ValueTypes) -> None:
        self._lcr, self._types = lcr, types
        self._columns = {column.name: column for column in lcr.table.columns}
        self._name = lcr.table.qualified_name

    def truths(self, node: Node) -> _Truths:
        match node:
            case And():
                return self._combined(node.items, ends=False)
            case Or():
                return self._combined(node.items, ends=True)
            case Not():
                return frozenset(None if value is None else not value for value in self.truths(node.item))
            case IsTruth():
                wanted = {Truth.TRUE: True, Truth.FALSE: False, Truth.NULL: None}[node.truth]
                return frozenset(value is wanted for value in self.truths(node.item))
            case Logical():
                return frozenset(({Truth.TRUE: True, Truth.FALSE: False, Truth.NULL: None}[node.truth],))
            case _:
                try:
                    return frozenset((self._truth(node),))
                except _Missing:
                    return _YES_OR_NO if isinstance(node, IsNull | Distinct) else _EVERY

    def _combined(self, items: tuple[Node, ...], *, ends: bool) -> _Truths:
        """Combine by AND (decided by FALSE) or OR (decided by TRUE); undecided with a NULL: NULL."""
        found: set[bool | None] = set()
        for values in product(*map(self.truths, items)):
            found.add(ends if ends in values else None if None in values else not ends)
        return frozenset(found)

    def _truth(self, node: Node) -> bool | None:
        match node:
            case IsNull():
                return self._value(node.operand) is None
            case Compare() | Distinct():
                sides = []
                is_missing = False
                for operand, other in ((node.left, node.right), (node.right, node.left)):
                    try:
                        sides.append(self._value(operand, other))
                    except _Missing:
                        is_missing = True
                left = sides[0] if sides else None
                if isinstance(node, Distinct):
                    if is_missing:
                        raise _Missing
                    right = sides[1]
                    return (left is None) != (right is None) or (left is not None and bool(left != right))
                if None in sides:
                    return None
                if is_missing:
                    raise _Missing
                return bool(OPERATORS[node.operator](*sides))
            case In():
                value = self._value(node.operand)
                if value is None:
                    return None
                if any(each.value is not None and value == self._constant(node.operand, each) for each in node.among):
                    return True
                return None if any(each.value is None for each in node.among) else False
            case Like():
                value = self._value(node.operand)
                return (
                    None
                    if value is None
                    else like_pattern(node.pattern).match(value.decode("utf-8", "surrogateescape")) is not None
                )
            case _:  # pragma: no cover - `truths` passes nothing else
                raise AssertionError(node)

    def _value(self, operand: Operand, other: Operand | None = None) -> Comparable:
        if isinstance(operand, Constant):
            assert other is not None
            return self._constant(other, operand)
        if isinstance(operand, Attribute):
            if operand.name == "source_time":
                return self._lcr.source_time_us - UNIX_TO_2000_US if self._lcr.source_time_us else None
            found = getattr(self._lcr, operand.name)
            return found.encode() if isinstance(found, str) else found
        raw = self._raw(operand)
        column = self._column(operand)
        if not isinstance(raw, bytes):
            return None
        return raw if self._types.kind(column) is Kind.OPAQUE else self._types.value(column, raw)

    def _raw(self, operand: ValueOf) -> bytes | int:
        name, lcr = self._column(operand).name, self._lcr
        command = lcr.command_type
        image = operand.image
        if image is Image.ROW:
            image = Image.OLD if command == "DELETE" else Image.NEW
        if command == "TRUNCATE" or (command, image) in (("INSERT", Image.OLD), ("DELETE", Image.NEW)):
            return NULL
        group, row = lcr.place
        rows, place = lcr.batch.groups[group], [column.name for column in lcr.table.columns].index(name)
        mine, theirs = (rows.new, rows.old) if image is Image.NEW else (rows.old, rows.new)
        assert mine is not None
        found = mine.value(place, row)
        if command == "UPDATE" and theirs is not None:
            kept_its_key = image is Image.OLD and self._columns[name].is_key and not lcr.get_values(ValueType.OLD)
            if (image is Image.NEW and found == UNCHANGED) or kept_its_key:
                found = theirs.value(place, row)
        if found in (UNCHANGED, ABSENT):
            raise _Missing
        return found

    def _column(self, operand: ValueOf) -> Column:
        if operand.column not in self._columns:
            raise ConditionError(f"table {self._name} has no column {operand.column}")
        return self._columns[operand.column]

    def _constant(self, operand: Operand, constant: Constant) -> Comparable:
        value = constant.value
        if isinstance(operand, Attribute):
            return value.encode() if isinstance(value, str) else value
        assert isinstance(operand, ValueOf)
        column = self._column(operand)
        if isinstance(value, bool):
            return value
        if isinstance(value, int | Decimal):
            return self._types.number(column, value)
        assert isinstance(value, str)
        return self._types.constant(column, value)


class _PlainRow(_Row):
    """A row of a table without an LCR."""

    def __init__(self, columns: Sequence[Column], row: Sequence[bytes | None], types: ValueTypes) -> None:
        self._types = types
        self._columns = {column.name: column for column in columns}
        self._values = {
            column.name: NULL if value is None else value for column, value in zip(columns, row, strict=True)
        }
        self._name = "here"

    def _raw(self, operand: ValueOf) -> bytes | int:
        return self._values[self._column(operand).name]
