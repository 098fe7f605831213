"""Every text in the sources that holds a statement, a comment after one, or a command: its names are quoted, or an
exception states the reason.

The owner of a table chooses its name. These tests find any new place that prints one unquoted, whatever test reaches
it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.support.session.packages import PACKAGES, ROOT

_STATEMENT = re.compile(
    r"\b(?:ALTER (?:TABLE|TYPE|ROLE|FUNCTION|SEQUENCE|PUBLICATION|EVENT|SYSTEM|DATABASE|SCHEMA|DOMAIN)|CREATE |DROP"
    r" |GRANT |REVOKE |TRUNCATE (?!of)|SELECT |INSERT INTO|UPDATE |DELETE FROM|COPY |"
    r"SET LOCAL |COMMENT ON|DECLARE |PREPARE |EXECUTE |LOCK TABLE|FROM |ADD COLUMN|RENAME )"
)
_COMMENT = re.compile(r"(?:;\s*|\A)-- ")
# The source of a statement without a match prints nothing of all this, also where a text continues in a second literal.
_MAY_PRINT = re.compile(
    r"ALTER|CREATE|DROP|GRANT|REVOKE|TRUNCATE|SELECT|INSERT|UPDATE|DELETE|COPY|SET|COMMENT|DECLARE|PREPARE|EXECUTE|LOCK"
    r"|FROM|ADD|RENAME|-- |# |headrace"
)
# In a document or a line of a shell, and in a text for `format`.
_DOCUMENT_COMMENT = re.compile(r"(?:\A|\s)# [^\n]*\Z")
_FORMATTED_COMMENT = re.compile(r"^# .*(\{\w+\})", re.MULTILINE)
_COMMAND = "headrace "
_TABLE_OF_COMMAND = re.compile(r"headrace (?:copy|verify|explain|track) (?:FILE|\{\}) \Z")
_QUOTING = frozenset(
    {
        "argument",
        "flow_table",
        "flow_text",
        "Identifier",
        "int",
        "len",
        "literal",
        "qualified",
        "quote",
        "quoted",
        "quoted_name",
        "remark",
        "scn_text",
        "shown_scn",
    }
)
_ALL_OF = frozenset(
    {
        "dict",
        "enumerate",
        "filter",
        "list",
        "reversed",
        "set",
        "sorted",
        "tuple",
        "zip",
        "format",
        "removeprefix",
        "removesuffix",
        "replace",
        "strip",
    }
)
# Variables of these names hold unquoted names; a function with a quoted argument uses another name or is listed below.
_RAW = frozenset(
    {
        "column",
        "constraint",
        "database",
        "each",
        "extension",
        "label",
        "labels",
        "name",
        "names",
        "now",
        "old",
        "new",
        "owner",
        "publication",
        "qualified_name",
        "role",
        "schema",
        "sequence",
        "slot",
        "sequences",
        "source",
        "table",
        "tables",
        "trigger",
        "type_name",
    }
)

_CONSTANT = "a constant of the sources"
_QUOTED_BEFORE = "whoever calls it has quoted it"
_PROSE = "a sentence: no statement is in it"
_OF_SERVER = "the server prints it quoted"
_SITE = "a site's name: small letters, digits and _ (`topology.file.shape.values.valid_name`)"
EXCEPTIONS = {
    "actors/site/source_redo:forget_earlier": "a folder below the site's, behind nothing that is run",
    "headrace/databases/dependency_columns:dependency_column_findings": _PROSE,
    "headrace/databases/memory/destination:how_to_empty": "the database in memory runs no SQL",
    "headrace/databases/memory/source:rename_table": "the database in memory runs no SQL",
    "headrace/databases/memory/store:missing_alter": "the database in memory runs no SQL",
    "headrace/databases/memory/table_form:_rename": "the database in memory runs no SQL",
    "headrace/databases/memory/table_form:add": "the database in memory runs no SQL",
    "headrace/databases/memory/table_form:drop": "the database in memory runs no SQL",
    "headrace/databases/postgres/source/ddl/objects:": _CONSTANT,
    "headrace/databases/postgres/source/ddl/publishing:": _CONSTANT,
    "spark_apply/tables/arriving:check_name": _PROSE,
    "headrace/databases/postgres/destination/records/created_tables:": _CONSTANT,
    "headrace/databases/memory/table_changes:_dropped": "the database in memory runs no SQL",
    "headrace/databases/postgres/compared/remade_columns:recomputed": _OF_SERVER,
    "headrace/databases/postgres/compared/remade_columns:remade": _OF_SERVER,
    "headrace/databases/postgres/connection:remedy_of": _OF_SERVER,
    "headrace/databases/postgres/destination/preflight:_function_findings": "in the sentence; the function is quoted",
    "headrace/databases/postgres/destination/records/removal:_drop_schema": _CONSTANT,
    "headrace/databases/postgres/destination/records/removal:remove_rows": _CONSTANT,
    "headrace/databases/postgres/destination/rights:_schema_findings": _QUOTED_BEFORE,
    "headrace/databases/postgres/destination/rights:_type_right_findings": _QUOTED_BEFORE,
    "headrace/databases/postgres/destination/row_reader:_meeting_expressions": "expressions of an index, as the server prints"
    " them",
    "headrace/databases/postgres/destination/server_session/write_plans:make_types": "made of a number; the type as the server prints it",
    "headrace/databases/postgres/destination/writing/writes:_move": "`numbered`: columns are numbers there",
    "headrace/databases/postgres/destination/writing/writes:_plan_insert": "`WriteBuilder` has quoted them",
    "headrace/databases/postgres/destination/writing/writes:_update": "`numbered`: columns are numbers there",
    "headrace/databases/postgres/destination/writing/writes:plan_write": "`numbered`: columns are numbers there",
    "headrace/databases/postgres/destination/rights:sequence_right_findings": _PROSE,
    "headrace/databases/postgres/event_triggers:_failed_in": "quoted where `names` is made",
    "headrace/databases/postgres/destination/planning:_schema_steps": _CONSTANT,
    "headrace/databases/postgres/compared/shapes:domain_findings": "the comment has no name; the statement behind it stands in a line of"
    " its own",
    "headrace/databases/postgres/copying/table_copy:_rewritten": _PROSE,
    "headrace/databases/postgres/copying/table_copy:lacking": "in the sentence; the table of the statement is quoted",
    "headrace/databases/postgres/compared/types:_made_plain": _QUOTED_BEFORE,
    "headrace/databases/postgres/compared/types:missing_alter": _OF_SERVER,
    "headrace/databases/postgres/destination/records/views:_of": _CONSTANT,
    "headrace/deployment/removal:_from_left": "the site, in the sentence; the slot is quoted",
    "headrace/commands/certificates:make": _SITE,
    "headrace/commands/certificates:show": _SITE,
    "headrace/commands/sequences:_line": "`SequencePosition.name` is quoted",
    "headrace/databases/sequence_collisions:collisions": "`SequencePosition.name` is quoted",
    "headrace/demo/load:_watch": _CONSTANT,
    "headrace/demo/load:_write": _CONSTANT,
    "headrace/demo/load:differences": _CONSTANT,
    "headrace/load/contents:contents": "a table of the demo, of a test or of the benchmark",
    "headrace/rules/transformations/calling:_check_values": _PROSE,
    "spark_apply/copy/marks/marked_columns:replaced_columns": _PROSE,
    "spark_apply/copy/marks/marked_parts:rewritten_parts": _PROSE,
    "spark_apply/server/group_work:_check_renamed": _PROSE,
    "topology/proof/meetings:unseen_conflicts": "a site, in the sentence; the table is quoted",
}


class Names:
    """The expressions of a function that are quoted names, judged from its own lines."""

    def __init__(self, function: ast.FunctionDef | None) -> None:
        self.values: dict[str, list[ast.expr | None]] = {}
        self._looked_at: set[str] = set()
        for node in ast.walk(function) if function else ():
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._bind(target, node.value)
            elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
                self._bind(node.target, node.value)
            elif isinstance(node, ast.For | ast.comprehension):
                self._bind(node.target, node.iter)

    def _bind(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            self.values.setdefault(target.id, []).append(value)
        elif isinstance(target, ast.Tuple):
            parts = (
                value.elts
                if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
                else [None] * len(target.elts)
            )
            for each, part in zip(target.elts, parts, strict=True):
                self._bind(each, part)

    def is_quoted(self, found: ast.expr | None) -> bool:
        match found:
            case ast.Constant():
                return True
            case ast.JoinedStr(values=values):
                return all(self.is_quoted(each.value) for each in values if isinstance(each, ast.FormattedValue))
            case ast.IfExp(body=one, orelse=other) | ast.BinOp(left=one, right=other):
                return self.is_quoted(one) and self.is_quoted(other)
            case ast.BoolOp(values=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts):
                return all(map(self.is_quoted, parts))
            case ast.ListComp(elt=one) | ast.GeneratorExp(elt=one) | ast.Starred(value=one) | ast.Subscript(value=one):
                return self.is_quoted(one)
            case ast.Name(id=name):
                return name.lstrip("_").isupper() or name in self._looked_at or self._is_bound(name)
            case ast.Call():
                return self._is_call(found)
        return False

    def _is_bound(self, name: str) -> bool:
        self._looked_at.add(name)
        values = self.values.get(name)
        found = values is not None and all(map(self.is_quoted, values))
        self._looked_at.discard(name)
        return found

    def _is_call(self, found: ast.Call) -> bool:
        of = found.func
        called = of.id if isinstance(of, ast.Name) else of.attr if isinstance(of, ast.Attribute) else ""
        if called == "map":
            return isinstance(found.args[0], ast.Name) and found.args[0].id in _QUOTING
        if called == "as_string" and isinstance(of, ast.Attribute):
            return True  # of `psycopg.sql`
        if ast.unparse(of) == "shlex.join":
            return True
        if called == "join" or (called in _ALL_OF and isinstance(of, ast.Attribute)):
            assert isinstance(of, ast.Attribute)
            return self.is_quoted(of.value) and all(map(self.is_quoted, found.args))
        return called in _QUOTING or (called in _ALL_OF and all(map(self.is_quoted, found.args)))


def _last_word(found: ast.expr) -> str:
    match found:
        case ast.Name(id=word) | ast.Attribute(attr=word) | ast.Subscript(slice=ast.Constant(value=str(word))):
            return word
        case ast.Call(func=ast.Attribute(attr="join"), args=[one]):
            return _last_word(one.elt if isinstance(one, ast.GeneratorExp | ast.ListComp) else one)
        case ast.BoolOp(values=[*_, last]):
            return _last_word(last)
    return ""


def _lines_of(node: ast.stmt, lines: list[str]) -> list[str]:
    """The lines of a statement with its decorators."""
    begins = [node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))]
    return lines[min(begins) - 1 : node.end_lineno]


def unquoted(text: str) -> Iterator[tuple[str, int, str]]:
    """The function, line and expression of each name that a module prints unquoted."""
    if not (_STATEMENT.search(text) or _COMMAND in text or "# " in text):
        return
    lines = text.split("\n")
    pending: list[tuple[ast.AST, ast.FunctionDef | None]] = [(ast.parse(text), None)]
    for node, function in pending:
        if isinstance(node, ast.stmt) and not _MAY_PRINT.search("\n".join(_lines_of(node, lines))):
            continue
        below = node if isinstance(node, ast.FunctionDef) else function
        pending += [(child, below) for child in ast.iter_child_nodes(node)]
        if isinstance(node, ast.JoinedStr):
            yield from ((function.name if function else "", node.lineno, each) for each in _unquoted_in(node, function))
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = function.name if function else ""
            yield from ((name, node.lineno, each) for each in _FORMATTED_COMMENT.findall(node.value))


def _unquoted_in(node: ast.JoinedStr, function: ast.FunctionDef | None) -> Iterator[str]:
    whole = "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values)
    is_statement = _STATEMENT.search(whole) is not None
    if not (is_statement or _COMMENT.search(whole) or _COMMAND in whole or "# " in whole):
        return
    names, before = Names(function), ""
    for each in node.values:
        if isinstance(each, ast.FormattedValue):
            is_table = _TABLE_OF_COMMAND.search(before) is not None
            is_behind = _COMMENT.search(before) is not None or _DOCUMENT_COMMENT.search(before) is not None
            is_name = is_table or (is_statement and _last_word(each.value) in _RAW)
            if is_behind or (is_name and not names.is_quoted(each.value)):
                yield ast.unparse(each.value)
        before += str(each.value) if isinstance(each, ast.Constant) else "{}"


@cache
def found_in_the_sources() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for folder in PACKAGES:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if "_pb2" not in file.name:
                for function, line, name in unquoted(file.read_text()):
                    found.setdefault(f"{file.relative_to(ROOT).with_suffix('')}:{function}", []).append(
                        f"line {line}: {name}"
                    )
    return found


def test_names_in_statements_and_commands_are_quoted_or_have_a_reason() -> None:
    assert {where: names for where, names in found_in_the_sources().items() if where not in EXCEPTIONS} == {}


def test_every_exception_still_exists() -> None:
    assert sorted(EXCEPTIONS.keys() - found_in_the_sources().keys()) == []


@pytest.mark.parametrize(
    "line",
    [
        'f"ALTER TABLE {owner}.{name} SET LOGGED;"',
        'f"DROP ROLE {found.role};"',
        "f\"SELECT pg_drop_replication_slot('{slot}')\"",
        'f"SELECT 1; -- unless {quote(name)} is one"',
        'f"then headrace copy FILE {table}"',
        'f"# Error of {table}\\n"',
        'f"{found.line}  # {name}"',
        '"# Error of {table}".format(table=name)',
        "f\"GRANT {', '.join(each.name for each in found)} TO bob\"",
    ],
)
def test_unquoted_name_is_detected(line: str) -> None:
    assert list(unquoted(f"def printed(name, slot, found):\n    return {line}"))


def test_name_that_is_quoted_on_the_way_is_accepted() -> None:
    text = (
        'def printed(owner, name):\n    table, column = qualified(owner, name), quote(name)\n    return f"ALTER'
        ' TABLE {table} DROP COLUMN {column}; " + remark(name)'
    )
    assert list(unquoted(text)) == []
