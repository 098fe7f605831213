"""`transform:` of a rule: declarative transformations, each with a step if their order matters, and a function.

An entry is one of `keep_columns`, `delete_columns`, `rename_column`, `add_column`, `rename_table` and `rename_schema`,
such as `{rename_column: {from: last_name, to: surname}, step: 1}`. Or it is `{function: "masks:mask", columns:
[email]}`, which runs after all of these. A function without columns can be a plain text, `transform: "masks:mask"`. Its
code is added when the whole file is read (`topology.file.functions`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.databases.ports import NEVER_CAPTURED
from headrace.rules.transformations.custom import CustomTransformation
from headrace.rules.transformations.transformation import (
    CURRENT_TIMESTAMP,
    AddColumn,
    DeleteColumns,
    KeepColumns,
    Operation,
    RenameColumn,
    RenameSchema,
    RenameTable,
    Transformation,
    in_order,
)
from headrace.rules.user_code.source import UserFunction
from topology.patterns import parse_schema, parse_table

__all__ = ["TransformProblem", "transformation_of"]

STEP_MAX = 1000  # more than anyone writes; only their order counts
COLUMNS_MAX = 1600  # the most columns of a table in a database
_KINDS = ("keep_columns", "delete_columns", "rename_column", "add_column", "rename_table", "rename_schema")
_TYPES = (
    "text",
    "varchar",
    "int2",
    "int4",
    "int8",
    "numeric",
    "float4",
    "float8",
    "bool",
    "date",
    "timestamp",
    "timestamptz",
    "uuid",
)
_TEXTS = ("text", "varchar")
_BITS = {"int2": 15, "int4": 31, "int8": 63}  # bits of the type's values, without the sign
_INT4 = 1 << _BITS["int4"]


class TransformProblem(Exception):  # noqa: N818 - a problem, and its fix
    """A problem of a transformation.

    Args:
        problem: a phrase that continues from its place in the file.
        fix: what to write.
    """

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.problem, self.fix = problem, fix


def transformation_of(value: object) -> Transformation:
    """Read a list of transformations.

    Args:
        value: as YAML gives it.

    Raises:
        TransformProblem: the value is not one.
    """
    if isinstance(value, str):
        value = [{"function": value}]
    if not isinstance(value, list) or not value:
        raise TransformProblem(
            f"{value!r} is not a list of transformations",
            'write a list, such as [{delete_columns: [salary]}], or a function, such as "masks:mask"',
        )
    functions = [each for each in value if isinstance(each, dict) and "function" in each]
    if len(functions) > 1:
        raise TransformProblem(f"names {len(functions)} functions", "let one call the other")
    found = Transformation(
        operations=in_order(_entry(each) for each in value if each not in functions),
        custom=_custom(functions[0]) if functions else None,
    )
    _check_order(found)
    return found


def _entry(entry: object) -> tuple[int, Operation]:
    if not isinstance(entry, dict):
        raise TransformProblem(
            f"{entry!r} is not a transformation",
            f"write one of {', '.join(_KINDS)}, such as {{delete_columns: [salary]}}",
        )
    kinds = [key for key in entry if key != "step"]
    if len(kinds) != 1 or kinds[0] not in _KINDS:
        raise TransformProblem(
            f"{entry!r} is not one transformation",
            f"write one of {', '.join(_KINDS)}, and a step if their order matters",
        )
    step = entry.get("step", 0)
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step <= STEP_MAX:
        raise TransformProblem(
            f"step {step!r} is not a number from 0 to {STEP_MAX}", "write step: 1, or leave it out for 0"
        )
    return step, _operation(kinds[0], entry[kinds[0]])


def _custom(entry: dict[str, Any]) -> CustomTransformation:
    if not set(entry) <= {"function", "columns"}:
        extra = ", ".join(sorted(set(map(str, entry)) - {"function", "columns"}))
        raise TransformProblem(
            f"a function has no {extra}",
            "write {function: masks:mask, columns: [email]}: it runs after every declarative transformation",
        )
    name = entry["function"]
    module, colon, attribute = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not colon or not attribute.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise TransformProblem(f"{name!r} does not name a function", 'write "package.module:function"')
    columns = None if "columns" not in entry else _columns("columns", entry["columns"])
    return CustomTransformation(function=UserFunction(name=name, version=""), columns=columns)


def _operation(kind: str, value: object) -> Operation:
    if kind == "keep_columns":
        return KeepColumns(kept=_columns(kind, value))
    if kind == "delete_columns":
        return DeleteColumns(deleted=_columns(kind, value))
    if kind == "rename_column":
        given = _mapping(kind, value, {"from", "to"}, "{from: last_name, to: surname}")
        before, after = _name(kind, given["from"]), _name(kind, given["to"])
        if before == after:
            raise TransformProblem(f"{kind} gives {before} its own name", "give another one, or leave it out")
        return RenameColumn(before=before, after=after)
    if kind == "add_column":
        return _added(value)
    try:
        if kind == "rename_table":
            owner, name = parse_table(value if isinstance(value, str) else repr(value))
        else:
            owner, name = parse_schema(value if isinstance(value, str) else repr(value)), ""
    except ValueError as error:
        raise TransformProblem(
            f"{kind}: {error}", "write the new name, such as sales.staff for a table, or sales for a schema"
        ) from None
    if set("*?") & set(owner + name):
        raise TransformProblem(f"{kind}: {value!r} is a pattern", "write the new name")
    if owner in NEVER_CAPTURED:
        raise TransformProblem(
            f"{kind}: {owner} is reserved: nothing in it is captured, because Headrace or the server has"
            " its own tables there",
            "write another schema",
        )
    return RenameTable(owner=owner, name=name) if kind == "rename_table" else RenameSchema(owner=owner)


def _added(value: object) -> AddColumn:
    example = "{name: region, value: EMEA}, or {name: arrived, current_timestamp: true}"
    if not isinstance(value, dict) or not {"name"} <= set(value) <= {"name", "value", "type", "current_timestamp"}:
        raise TransformProblem(f"add_column: {value!r} is not a column", f"write {example}")
    name = _name("add_column", value["name"])
    if ("value" in value) == (value.get("current_timestamp") is True) or value.get(
        "current_timestamp", True
    ) is not True:
        raise TransformProblem(f"add_column: {name} does not have exactly one value", f"write {example}")
    type_name = value.get("type")
    if type_name is not None and type_name not in _TYPES:
        raise TransformProblem(
            f"add_column: {type_name!r} is not a type that can be added", f"write one of {', '.join(_TYPES)}"
        )
    if "value" not in value:
        if type_name not in {None, "timestamptz"}:
            raise TransformProblem(f"add_column: the time is a timestamptz, not a {type_name}", "leave out type")
        return AddColumn(name=name, type_name=CURRENT_TIMESTAMP, is_now=True)
    return _constant(name, value["value"], type_name)


def _constant(name: str, value: object, type_name: str | None) -> AddColumn:
    if value is None:
        return AddColumn(name=name, type_name=f"pg_catalog.{type_name or 'text'}")
    if isinstance(value, bool):
        text, usual = ("t" if value else "f"), "bool"
    elif isinstance(value, int):
        text, usual = str(value), "int4" if -_INT4 <= value < _INT4 else "int8"
    elif isinstance(value, str):
        text, usual = value, "text"
    else:
        raise TransformProblem(
            f"add_column: {value!r} cannot be a value",
            'write it in quotes, with its type, such as {value: "1.50", type: numeric}',
        )
    if type_name in _TEXTS and not isinstance(value, str):
        # YAML has converted it: 007 to 7, yes to true.
        raise TransformProblem(
            f"add_column: {name} is a {type_name}, and YAML reads its value as {str(value).lower()}",
            "write the text in quotes",
        )
    found = AddColumn(name=name, type_name=f"pg_catalog.{type_name or usual}", value=text)
    _check_value(found)
    return found


def _check_value(added: AddColumn) -> None:
    """Check that every database reads the text as the same value of the type."""
    from headrace.databases.connectors import value_types  # numpy: most files add no column
    from headrace.lcr.batch import Column

    assert added.value is not None
    types, column = value_types(), Column(name=added.name, type_name=added.type_name)
    try:
        if "\0" in added.value:
            raise ValueError("a text cannot hold the character 0")
        kind = added.type_name.removeprefix("pg_catalog.")
        if kind not in _TEXTS:
            if "_" in added.value or added.value != added.value.strip():
                raise ValueError("has blanks or underscores")
            types.value(column, added.value.encode())
        if kind in _BITS and not -(1 << _BITS[kind]) <= int(added.value) < 1 << _BITS[kind]:
            raise ValueError("is outside the range of the type")
    except (ValueError, ArithmeticError, KeyError) as error:
        raise TransformProblem(
            f"add_column: {added.value!r} is not a value of {added.type_name.removeprefix('pg_catalog.')} ({error})",
            "write it as the database shows it, in quotes",
        ) from None


def _columns(kind: str, value: object) -> tuple[str, ...]:
    names = value if isinstance(value, list) else [value]
    if not names or len(names) > COLUMNS_MAX:
        raise TransformProblem(f"{kind} names {len(names)} columns", "name at least one")
    return tuple(dict.fromkeys(_name(kind, each) for each in names))


def _name(kind: str, value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise TransformProblem(
            f"{kind}: {value!r} is not the name of a column", "write the name as the database stores it"
        )
    return value


def _mapping(kind: str, value: object, keys: set[str], example: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or set(value) != keys:
        raise TransformProblem(f"{kind}: {value!r} does not say {' and '.join(sorted(keys))}", f"write {example}")
    return value


def _check_order(found: Transformation) -> None:
    """Refuse certain mistakes, whatever the table: two columns of one name, or a table renamed twice."""
    added: set[str] = set()
    for each in found.operations:
        name = each.name if isinstance(each, AddColumn) else each.after if isinstance(each, RenameColumn) else None
        if name is None:
            continue
        if name in added:
            raise TransformProblem(f"two columns would be called {name}", "give one of them another name")
        added.add(name)
    if (
        sum(isinstance(each, RenameTable) for each in found.operations) > 1
        or sum(isinstance(each, RenameSchema) for each in found.operations) > 1
    ):
        raise TransformProblem("renames the table twice", "keep one of them")
