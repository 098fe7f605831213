"""Conditions on whole columns: the outcome for every row of a group at once.

A `CompiledCondition` is made once per condition and table version. When a comparison is first needed, it finds its
columns, checks that the types can be compared, and converts literals to the columns' types. Conditions that the LCRs'
attributes decide alone need no column.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.lcr.batch import Column, Command, TableVersion
from headrace.lcr.values import ABSENT, UNCHANGED, ColumnValues
from headrace.lcr.values import NULL as NULL_LENGTH
from headrace.rules.conditions.attributes import ATTRIBUTES, UNIX_TO_2000_US
from headrace.rules.conditions.logic import ANY, FALSE, NULL, TRUE, Outcome, evaluate
from headrace.rules.conditions.nodes import (
    Attribute,
    Compare,
    ConditionError,
    Constant,
    Distinct,
    Image,
    In,
    IsNull,
    Like,
    Logical,
    Node,
    Operand,
    ValueOf,
    comparisons_of,
)
from headrace.rules.conditions.values import NUMBERS, OPERATORS, Comparable, Kind, ValueTypes, like_pattern

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CompiledCondition", "Rows", "check_types"]

_PRESENT, _NULL, _MISSING = 0, 1, 2  # states of a value
_WITHOUT_ORDER: Final = (Kind.TEXT, Kind.PADDED_TEXT)
_BEYOND_INTEGERS = 2**64  # no INTEGER has so many bits
_BY_BYTES = "texts are ordered by the source's collation, which is not known here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of one table version and command.

    Args:
        table: the version.
        command: command of all of them.
        count: n.
        old, new: their values, as in a `RowGroup`; both None for a TRUNCATE.
        source: site of the changes.
        tags: the tags to which `tag` refers.
        tag: int, shape (n,): place of each row's tag, -1 for NULL.
        transaction_id, scn: int64, shape (n,), of each row's transaction.
        source_time_us: int64, shape (n,): its commit time, microseconds since the Unix epoch; 0: not known.
    """

    table: TableVersion
    command: Command
    count: int
    old: ColumnValues | None
    new: ColumnValues | None
    source: str
    tags: tuple[bytes, ...]
    tag: NDArray[np.integer]
    transaction_id: NDArray[np.int64]
    scn: NDArray[np.int64]
    source_time_us: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vector:
    """One operand for every row: its state, and its value where it is present."""

    state: NDArray[np.uint8]
    values: NDArray[Any]


class CompiledCondition:
    """One condition for rows of one table version.

    Args:
        tree: the condition's tree.
        table: the version.
        types: types of the values' database.
    """

    def __init__(self, tree: Node, table: TableVersion, types: ValueTypes) -> None:
        self._tree, self._table, self._types = tree, table, types
        self._places = {column.name: place for place, column in enumerate(table.columns)}
        # by the identity of a node: a list of a thousand values is slow to hash
        self._prepared: dict[int, Any] = {}

    def outcomes(self, rows: Rows) -> NDArray[np.uint8]:
        """Return the possible truth values (`headrace.rules.conditions.logic`) for each row: uint8, shape (n,).

        Args:
            rows: rows of the table version.

        Raises:
            ConditionError: the table lacks a column, or its type does not support the comparison.
        """
        vectors: dict[Operand, _Vector] = {}
        found = evaluate(self._tree, lambda node: self._leaf(node, rows, vectors))
        return np.full(rows.count, found, np.uint8) if isinstance(found, int) else found

    # ----------------------------------------------------------------------- comparisons

    def _leaf(self, node: Node, rows: Rows, vectors: dict[Operand, _Vector]) -> Outcome:
        if id(node) not in self._prepared:
            self._prepared[id(node)] = _prepare(node, self._table, self._types)
        constants = self._prepared[id(node)]

        def vector(operand: Operand) -> _Vector:
            if operand not in vectors:
                vectors[operand] = self._vector(operand, rows)
            return vectors[operand]

        match node:
            case IsNull():
                return _IS_NULL[vector(node.operand).state]
            case Compare() | Distinct():
                left, comparison = vector(node.left), node.operator if isinstance(node, Compare) else "<>"
                right = None if isinstance(node.right, Constant) else vector(node.right)
                is_true = _compared(comparison, left, constants, right)
                return _joined(left, right, is_true) if isinstance(node, Compare) else _distinct(left, right, is_true)
            case In():
                left = vector(node.operand)
                otherwise = NULL if any(each.value is None for each in node.among) else FALSE
                return _joined(left, None, _among(left, constants), otherwise)
            case Like():
                left = vector(node.operand)
                return _joined(left, None, _matches(left, node.pattern))
            case _:  # pragma: no cover - `evaluate` passes nothing else
                raise AssertionError(node)

    # ----------------------------------------------------------------------- values

    def _vector(self, operand: Operand, rows: Rows) -> _Vector:
        if isinstance(operand, Attribute):
            return self._attribute(operand, rows)
        assert isinstance(operand, ValueOf)
        place = self._places[operand.column]
        image = operand.image
        if image is Image.ROW:
            image = Image.OLD if rows.command is Command.DELETE else Image.NEW
        return self._new(place, rows) if image is Image.NEW else self._old(place, rows)

    def _new(self, place: int, rows: Rows) -> _Vector:
        if rows.new is None:
            return _nulls(rows.count)
        found = self._read(place, rows.new)
        if rows.old is None:
            return found
        # A column that an UPDATE did not touch has its old value.
        return _filled(found, rows.new.lengths[place] == UNCHANGED, self._read(place, rows.old))

    def _old(self, place: int, rows: Rows) -> _Vector:
        if rows.old is None:
            return _nulls(rows.count)
        found = self._read(place, rows.old)
        if rows.new is None or not self._table.columns[place].is_key:
            return found
        # An UPDATE without old values kept its key.
        return _filled(found, (rows.old.lengths == ABSENT).all(axis=0), self._read(place, rows.new))

    def _read(self, place: int, values: ColumnValues) -> _Vector:
        column, lengths = self._table.columns[place], values.lengths[place]
        is_there = lengths >= 0
        state = np.where(is_there, _PRESENT, np.where(lengths == NULL_LENGTH, _NULL, _MISSING)).astype(np.uint8)
        if self._types.kind(column) is Kind.OPAQUE:
            return _Vector(state=state, values=np.empty(0, object))
        try:
            found = self._types.values(
                column, values.data[values.starts[place] : values.starts[place + 1]], lengths[is_there]
            )
        except (ValueError, IndexError) as error:
            raise ConditionError(
                f"a value of {self._table.qualified_name}.{column.name} cannot be read as {column.type_name}: {error}",
                hint="this is a defect of the product or of the log: report it",
            ) from error
        if found.shape[0] == lengths.shape[0]:
            return _Vector(state=state, values=found)
        spread = (
            np.empty(lengths.shape[0], object) if found.dtype == object else np.zeros(lengths.shape[0], found.dtype)
        )
        spread[is_there] = found
        return _Vector(state=state, values=spread)

    def _attribute(self, operand: Attribute, rows: Rows) -> _Vector:
        state = np.zeros(rows.count, np.uint8)
        if operand.name == "transaction_id":
            return _Vector(state=state, values=rows.transaction_id)
        if operand.name == "scn":
            return _Vector(state=state, values=rows.scn)
        if operand.name == "source_time":
            state[rows.source_time_us == 0] = _NULL
            return _Vector(state=state, values=rows.source_time_us - UNIX_TO_2000_US)
        values = np.empty(rows.count, object)
        if operand.name == "tag":
            state[rows.tag < 0] = _NULL
            for place, tag in enumerate(rows.tags):
                values[rows.tag == place] = tag
            return _Vector(state=state, values=values)
        text = {
            "source_database_name": rows.source,
            "command_type": rows.command.name,
            "object_owner": rows.table.owner,
            "object_name": rows.table.name,
        }[operand.name]
        values[:] = text.encode()
        return _Vector(state=state, values=values)


_IS_NULL: Final = np.array([FALSE, TRUE, TRUE | FALSE], np.uint8)  # by state


def _nulls(count: int) -> _Vector:
    return _Vector(state=np.full(count, _NULL, np.uint8), values=np.zeros(count, object))


def _filled(found: _Vector, where: NDArray[np.bool_], other: _Vector) -> _Vector:
    """Return `found`, with the values of `other` in the rows of `where`."""
    if not where.any():
        return found
    values = found.values if found.values.shape[0] == 0 else np.where(where, other.values, found.values)
    return _Vector(state=np.where(where, other.state, found.state), values=values)


def _compared(operator: str, left: _Vector, constant: Comparable, right: _Vector | None) -> NDArray[np.bool_]:
    """Return whether the comparison holds where both sides are present; elsewhere anything."""
    there = left.state == _PRESENT
    if right is None:
        # A separate array: numpy would turn bytes into its text type, which drops trailing zero bytes (a tag is `00` by
        # default).
        boxed = np.empty(1, object)
        boxed[0] = constant
        return _each(
            left, there, lambda values: OPERATORS[operator](values, boxed if values.dtype == object else constant)
        )
    there &= right.state == _PRESENT
    found = np.zeros(left.state.shape[0], np.bool_)
    found[there] = OPERATORS[operator](left.values[there], right.values[there]).astype(np.bool_)
    return found


def _each(vector: _Vector, there: NDArray[np.bool_], ask: Any) -> NDArray[np.bool_]:  # noqa: ANN401 - values to truth values
    if vector.values.dtype != object:
        return np.asarray(ask(vector.values), np.bool_)
    found = np.zeros(vector.state.shape[0], np.bool_)
    found[there] = ask(vector.values[there])
    return found


def _among(vector: _Vector, constants: tuple[Comparable, ...]) -> NDArray[np.bool_]:
    there = vector.state == _PRESENT
    if vector.values.dtype == np.int64:
        whole = [each for each in constants if each == int(each) and -(2**63) <= each < 2**63]
        return np.isin(vector.values, np.array([int(each) for each in whole], np.int64))
    if vector.values.dtype == np.bool_:
        return np.isin(vector.values, np.array(constants, np.bool_))
    wanted = set(constants)
    return _each(vector, there, lambda values: [value in wanted for value in values])


def _matches(vector: _Vector, pattern: str) -> NDArray[np.bool_]:
    matcher = like_pattern(pattern)
    return _each(
        vector,
        vector.state == _PRESENT,
        lambda values: [matcher.match(value.decode("utf-8", "surrogateescape")) is not None for value in values],
    )


def _joined(
    left: _Vector, right: _Vector | None, is_true: NDArray[np.bool_], otherwise: int = FALSE
) -> NDArray[np.uint8]:
    """Return the outcomes of a comparison: NULL where a side is NULL, anything where a side is missing."""
    found = np.where(is_true, TRUE, otherwise).astype(np.uint8)
    sides = (left,) if right is None else (left, right)
    for side in sides:
        found[side.state == _MISSING] = ANY
    for side in sides:
        found[side.state == _NULL] = NULL
    return found


def _distinct(left: _Vector, right: _Vector | None, is_true: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return the outcomes of IS DISTINCT FROM."""
    other = np.zeros_like(left.state) if right is None else right.state
    found = np.where(is_true, TRUE, FALSE).astype(np.uint8)
    one_null = (left.state == _NULL) != (other == _NULL)
    found[one_null] = TRUE
    found[(left.state == _NULL) & (other == _NULL)] = FALSE
    found[(left.state == _MISSING) | (other == _MISSING)] = TRUE | FALSE
    return found


# --------------------------------------------------------------------------- checking types


def check_types(tree: Node, table: TableVersion, types: ValueTypes) -> None:
    """Check every comparison of a condition for a table, even if an earlier part decides.

    Args:
        tree: the condition's tree.
        table: a table that the rule may take.
        types: types of the table's database.

    Raises:
        ConditionError: the table lacks a column, or its type does not support the comparison.
    """
    for node in comparisons_of(tree):
        if not isinstance(node, Logical):
            _prepare(node, table, types)


def _prepare(node: Node, table: TableVersion, types: ValueTypes) -> Any:  # noqa: ANN401 - one value, or several
    """Return the literals of a comparison as values of its operand's type; None: it has none."""
    try:
        match node:
            case IsNull():
                _kind(node.operand, table, types)
                return None
            case Compare() | Distinct():
                operator = node.operator if isinstance(node, Compare) else "<>"
                bytewise = isinstance(node, Compare) and node.bytewise
                return _pair(node.left, node.right, operator, table, types, bytewise=bytewise)
            case In():
                if _kind(node.operand, table, types) is Kind.SINGLE:
                    raise ConditionError(
                        f"{node.operand} is {Kind.SINGLE.value}, and the source rounds the literals of a list to it",
                        hint="compare with = and OR, which round nothing",
                    )
                values = (each for each in node.among if each.value is not None)
                return tuple(_constant(node.operand, each, "=", table, types) for each in values)
            case Like():
                kind = _kind(node.operand, table, types)
                if kind is not Kind.TEXT:
                    raise ConditionError(
                        f"{node.operand} is {kind.value}", hint="LIKE takes a column of type text or varchar"
                    )
                return None
            case _:  # pragma: no cover - `evaluate` passes nothing else
                raise AssertionError(node)
    except ConditionError as error:
        raise ConditionError(f"table {table.qualified_name}: {error}", hint=error.hint, **error.context) from None


def _column(operand: ValueOf, table: TableVersion) -> Column:
    found = next((column for column in table.columns if column.name == operand.column), None)
    if found is not None:
        return found
    names = [column.name for column in table.columns]
    near = get_close_matches(operand.column, names, n=1, cutoff=0.5)
    meant = f"did you mean {near[0]}? " if near else ""
    raise ConditionError(f"there is no column {operand.column}", hint=f"{meant}It has {', '.join(names)}")


def _kind(operand: Operand, table: TableVersion, types: ValueTypes) -> Kind:
    if isinstance(operand, Attribute):
        return ATTRIBUTES[operand.name]
    assert isinstance(operand, ValueOf)
    return types.kind(_column(operand, table))


def _pair(
    left: Operand, right: Operand, operator: str, table: TableVersion, types: ValueTypes, *, bytewise: bool
) -> Comparable:
    """Check a comparison; return its literal, if any, as a value."""
    kind = _kind(left, table, types)
    has_order = operator not in ("=", "<>")
    if bytewise and kind is not Kind.TEXT:
        raise ConditionError(f"{left} is {kind.value}, which has no collation", hint='leave COLLATE "C" out')
    if has_order and kind in _WITHOUT_ORDER and not bytewise:
        raise ConditionError(
            f"{left} {operator} ... depends on a collation: {_BY_BYTES}",
            hint='write COLLATE "C" behind the value, or compare with =',
        )
    if isinstance(right, Constant):
        return _constant(left, right, operator, table, types)
    other = _kind(right, table, types)
    if Kind.OPAQUE in (kind, other) or kind is not other:
        raise ConditionError(
            f"{left} is {kind.value} and {right} is {other.value}", hint="compare values of one kind, or ask IS NULL"
        )
    return None


def _constant(
    operand: Operand, constant: Constant, operator: str, table: TableVersion, types: ValueTypes
) -> Comparable:
    kind, value = _kind(operand, table, types), constant.value
    if isinstance(operand, Attribute):
        return value.encode() if isinstance(value, str) else value
    assert isinstance(operand, ValueOf)
    column = _column(operand, table)
    if kind is Kind.OPAQUE:
        raise ConditionError(
            f"{operand} is of type {column.type_name}, whose values cannot be compared here as the source would",
            hint="ask only whether it IS NULL, or keep what the rule needs in a column of another type",
        )
    try:
        if isinstance(value, bool):
            if kind is not Kind.BOOLEAN:
                raise ValueError(f"it is no truth value but {kind.value}")
            return value
        if isinstance(value, int | Decimal):
            if kind not in NUMBERS:
                raise ValueError(f"it is {kind.value}: put the literal in quotes")
            return _in_range(types.number(column, value), operator, kind)
        assert isinstance(value, str)
        return types.constant(column, value)
    except ValueError as error:
        raise ConditionError(
            f"{operand} cannot be compared with {constant}", hint=f"{operand} is {kind.value}; {error}"
        ) from None


def _in_range(value: Comparable, operator: str, kind: Kind) -> Comparable:
    """Convert a fraction in an order comparison with integers into an integer."""
    if kind is not Kind.INTEGER:
        return value
    if not -_BEYOND_INTEGERS < value < _BEYOND_INTEGERS:
        # Every integer compares alike with it, and converting 1e100000 to an integer would take seconds.
        return _BEYOND_INTEGERS if value > 0 else -_BEYOND_INTEGERS
    if value == int(value):
        return int(value)
    # x < 1.5 and x <= 1.5 are x <= 1; x > 1.5 and x >= 1.5 are x >= 2. With 1.5 itself numpy would convert the integers
    # to floats.
    below = int(value.to_integral_value(ROUND_FLOOR))
    return {"<": below + 1, ">=": below + 1, "<=": below, ">": below}.get(operator, value)
