"""Simulated tables that rules look into.

Their columns, types and values are those that conditions, transformations and functions name.

The simulated source has no catalog, so the tables are derived from the topology. A column that is compared with 50 is a
number with the values 49, 50 and 51. A column that a function reads is a text, with the texts that the function
compares as values. Every table has one column that arrives everywhere, possibly renamed: the key.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from headrace.base.errors import ConfigError
from headrace.databases.connectors import column_of_type
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.lcr.batch import Column, OldImage
from headrace.lcr.table_name import TableName
from headrace.rules.conditions.condition import Condition
from headrace.rules.conditions.nodes import (
    Attribute,
    Compare,
    Constant,
    Distinct,
    In,
    IsNull,
    Like,
    ValueOf,
    comparisons_of,
    operands_of,
)
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.transformations.custom import CustomTransformation
from headrace.rules.transformations.transformation import DeleteColumns, KeepColumns, RenameColumn, Transformation
from headrace.simulation.observing.history import Table
from topology.routing.ways import Way, ways_to
from topology.spec import TopologySpec

__all__ = ["Shape", "ShapedTable", "is_shaped", "shape_of"]

_NOT_KNOWN = ("transaction_id", "scn")
"""Attributes that a change has only after its commit: rules over them cannot be predicted before."""

_GENERIC: dict[str, tuple[str | None, ...]] = {
    "int4": ("1", "2", "3", None),
    "int8": ("1", "3000000000", None),
    "numeric": ("1", "2.5", None),
    "bool": ("t", "f", None),
    "text": ("x", "y", "a longer text", None),
}
# methods of an LCR, and of the values that it returns
_VALUE_METHODS = frozenset({"get_value", "set_value", "get", "is_unchanged"})


@dataclass(frozen=True)
class ShapedTable(Table):
    """A table with columns of any types; its first column is the key."""

    described: tuple[Column, ...] = ()

    @property
    def described_columns(self) -> tuple[Column, ...]:
        """Columns given by the shape."""
        return self.described

    def create(self, store: MemoryStore, name: str | None = None) -> None:
        """Create the table at a destination, with the first column as key."""
        columns = [destination_column(each.name, each.type_name, equality="bytes") for each in self.described]
        store.create_table(self.owner, name or self.name, columns, key=self.columns[:1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Columns and values of a source's table.

    Args:
        table: its name there.
        columns: the users' columns, the key first.
        values: by column except the key, the values that users write, in text form.
        image: what the log has of old rows.
        may_leave_alone: whether the log may lack large values that an UPDATE did not change; functions would have to
            handle that.
    """

    table: TableName
    columns: tuple[Column, ...]
    values: dict[str, tuple[bytes | None, ...]]
    image: OldImage
    may_leave_alone: bool

    @property
    def key(self) -> Column:
        """The key."""
        return self.columns[0]


@dataclass(slots=True)
class _Named:
    """What the topology says about a table's columns."""

    # by column, in order of first mention
    constants: dict[str, list[Constant]] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)  # compared by functions
    first: list[str] = field(default_factory=list)  # columns of substitute keys
    looks_at_rows: bool = False
    has_function: bool = False

    def name(self, column: str | None, *constants: Constant) -> None:
        if column is not None:
            self.constants.setdefault(column, []).extend(constants)


def is_shaped(spec: TopologySpec, table: TableName) -> bool:
    """Return whether rules look into a table's rows or transform them.

    Args:
        spec: a routed topology.
        table: a table of a source.
    """
    return any(
        rule.looks_at_rows or rule.transformation is not None
        for way in _ways(spec)
        for _, rules, name in _on(way, table)
        for rule in _about(rules, name)
    ) or any(way.apply.tables.key_of(*name) for way in _ways(spec) for name in [_arrives_as(way, table)])


def shape_of(spec: TopologySpec, table: TableName) -> Shape:
    """Return a table's shape, with every column that rules, transformations and functions name.

    Args:
        spec: a routed topology.
        table: a table of a source.

    Raises:
        ConfigError: no column arrives everywhere, or a condition uses an attribute that is not simulated.
    """
    named = _Named()
    for here, made in _journey(spec, table).items():
        for way in _ways(spec):
            for before, rules, name in _on(way, here):
                for rule in _about(rules, name):
                    _of_rule(named, rule, [*made, *before])
            for column in way.apply.tables.key_of(*_arrives_as(way, here)):
                origin = _origin([*made, *way.transformations(here)], column)
                named.name(origin)
                named.first += [] if origin is None else [origin]
    key = _key(spec, table, named)
    others = [name for name in (*named.constants, "v") if name != key]
    types = {name: _type(found) for name, found in named.constants.items()}
    kinds = {name: types.get(name) or "text" for name in dict.fromkeys(others)}
    return Shape(
        table=table,
        columns=tuple(column_of_type(name, kind) for name, kind in {key: types.get(key) or "int4", **kinds}.items()),
        values={
            name: _values(
                kind,
                named.constants.get(name, []),
                named.texts if kind == "text" else [],
                may_be_null=name not in named.first,
            )
            for name, kind in kinds.items()
        },
        image=OldImage.FULL if named.looks_at_rows or named.has_function or named.first else OldImage.KEY,
        may_leave_alone=not named.has_function,
    )


# --------------------------------------------------------------------------- ways


def _ways(spec: TopologySpec) -> Iterator[Way]:
    for apply in spec.applies:
        yield from ways_to(spec, apply)


def _on(way: Way, table: TableName) -> Iterator[tuple[list[Transformation], RuleSet, TableName]]:
    """Yield the clients on a way, each with the transformations before it and the table's name there."""
    before: list[Transformation] = []
    for client, (name, transformation, _) in zip(way.clients, way.passages(table), strict=True):
        yield list(before), client.rules, name
        before += [] if transformation is None else [transformation]


def _journey(spec: TopologySpec, table: TableName) -> dict[TableName, list[Transformation]]:
    """Return the names under which sites forward a table, its own first, and the transformations up to each."""
    found: dict[TableName, list[Transformation]] = {table: []}
    pending = [table]
    for here in pending:  # the loop appends to the list
        for way in _ways(spec):
            arrives = way.carry(here)
            if arrives is not None and arrives not in found:
                found[arrives] = [*found[here], *way.transformations(here)]
                pending.append(arrives)
    return found


def _about(rules: RuleSet, table: TableName) -> Iterator[Rule]:
    return (rule for rule in (*(rules.include or ()), *rules.exclude) if rule.dml and rule.matches_object(*table))


def _arrives_as(way: Way, table: TableName) -> TableName:
    return list(way.passages(table))[-1].behind


def _origin(before: Sequence[Transformation], column: str | None) -> str | None:
    """Return a column's name at the source; None: it is not a column of the source."""
    for each in reversed(before):
        column = None if column is None else each.origin(column)
    return column


# --------------------------------------------------------------------------- columns


def _of_rule(named: _Named, rule: Rule, before: list[Transformation]) -> None:
    for condition in rule.conditions:
        named.looks_at_rows = True
        for column, constants in _compared(condition):
            named.name(_origin(before, column), *constants)
    if (made := rule.transformation) is None:
        return
    done: list[Transformation] = list(before)
    for step in made.operations:
        match step:
            case KeepColumns():
                names: tuple[str, ...] = step.kept
            case DeleteColumns():
                names = step.deleted
            case RenameColumn():
                names = (step.before,)
            case _:
                names = ()
        for name in names:
            named.name(_origin(done, name))
        done.append(Transformation(operations=(step,)))
    if made.custom is not None:
        named.has_function = True
        columns, texts = _asked_by(made.custom)
        for name in (*columns, *(made.custom.columns or ())):
            named.name(_origin(done, name))
        named.texts += texts


def _compared(condition: Condition) -> Iterator[tuple[str, list[Constant]]]:
    """Yield the columns of a condition, with the constants that each is compared with."""
    for operand in operands_of(condition.tree):
        if isinstance(operand, Attribute) and operand.name in _NOT_KNOWN:
            raise ConfigError(
                f"the condition {condition.text!r} uses {operand.name}, which is not simulated",
                hint="simulate the topology without this rule: the ways are the same",
            )
    for node in comparisons_of(condition.tree):
        match node:
            case Compare() | Distinct():
                sides = node.left, node.right
                constants = [each for each in sides if isinstance(each, Constant)]
                yield from ((each.column, constants) for each in sides if isinstance(each, ValueOf))
            case In(operand=ValueOf(column=column)):
                yield column, list(node.among)
            case Like(operand=ValueOf(column=column)):
                yield column, [Constant(node.pattern.replace("%", "").replace("_", "a"))]
            case IsNull(operand=ValueOf(column=column)):
                yield column, [Constant(None)]
            case _:
                pass


def _asked_by(custom: CustomTransformation) -> tuple[list[str], list[str]]:
    """Return the columns that a function reads from an LCR by name, and the texts that it compares values with."""
    module = custom.code.modules().get(custom.function.name.partition(":")[0])
    columns, texts = [], []
    for node in ast.walk(ast.parse(module.text)) if module is not None else ():
        match node:
            case ast.FunctionDef(name=name) if name == custom.function.name.partition(":")[2]:
                for inner in ast.walk(node):
                    match inner:
                        case ast.Call(func=ast.Attribute(attr=method), args=[*_, ast.Constant(value=str(column))]) if (
                            method in _VALUE_METHODS - {"set_value"}
                        ):
                            columns.append(column)
                        case ast.Call(
                            func=ast.Attribute(attr="set_value"), args=[_, ast.Constant(value=str(column)), *_]
                        ):
                            columns.append(column)
                        case ast.Subscript(slice=ast.Constant(value=str(column))):
                            columns.append(column)
                        case ast.Compare(comparators=comparators):
                            texts += [
                                each.value
                                for each in comparators
                                if isinstance(each, ast.Constant) and isinstance(each.value, str)
                            ]
                        case _:
                            pass
            case _:
                pass
    return columns, texts


def _key(spec: TopologySpec, table: TableName, named: _Named) -> str:
    """Return a column that arrives everywhere: a substitute key's, one named like an id, or any named column."""
    ways = [way.transformations(table) for way in _ways(spec) if way.carry(table) is not None]
    known = list(named.constants)
    # The last column of a substitute key comes first: the earlier ones have equal values in several rows.
    for name in (*reversed(named.first), *(each for each in known if each.endswith("id")), "id", *known):
        if all(_arrives(name, each) for each in ways):
            return name
    raise ConfigError(
        f"no column of {table} arrives at every destination, so a simulated table has no key ({', '.join(known)})",
        hint="simulate the topology without `keep_columns` of this table: the ways are the same",
    )


def _arrives(name: str, transformations: Sequence[Transformation]) -> bool:
    for each in transformations:
        if each.custom is not None and each.custom.columns is not None and each.may_change(name):
            return False
        after = each.after(name)
        if after is None:
            return False
        name = after
    return True


def _type(constants: list[Constant]) -> str:
    found = {type(each.value) for each in constants} - {type(None)}
    if found == {bool}:
        return "bool"
    if found == {int}:
        return (
            "int4"
            if all(abs(int(str(each.value))) < (1 << 31) - 1 for each in constants if each.value is not None)
            else "int8"
        )
    return "numeric" if found and found <= {int, Decimal} else "text" if found else ""


def _values(kind: str, constants: list[Constant], texts: list[str], *, may_be_null: bool) -> tuple[bytes | None, ...]:
    found: list[str | None] = []
    for each in constants:
        match each.value:
            case bool():
                found.append("t" if each.value else "f")
            case int():
                found += [str(each.value), str(each.value + 1), str(each.value - 1)]
            case Decimal():
                found += [str(each.value), str(each.value + 1)]
            case str():
                found += [each.value, f"{each.value} x"]
            case _:
                pass
    found += [*texts, *_GENERIC[kind][: None if len(found) + len(texts) < 3 else 1], None]
    return tuple(
        None if each is None else each.encode() for each in dict.fromkeys(found) if each is not None or may_be_null
    )
