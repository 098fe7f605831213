"""Names that "Args:" describes exist, and every option of the command line has a help text.

A reader judges which parameters need words: a name and a type often suffice.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
import typer

from headrace.cli.app import app
from tests.support.session.packages import PACKAGES, ROOT
from tests.support.session.verbs import verbs

# `word: ...` or `word, word: ...`, indented four spaces more than "Args:".
PARAMETERS = re.compile(r"^ {4}(\w+(?:, \w+)*): \S", re.MULTILINE)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def public_functions(node: ast.AST) -> Iterator[Function]:
    """Public functions, and methods of public classes; no nested functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            if not child.name.startswith("_"):
                yield child
        elif not (isinstance(child, ast.ClassDef) and child.name.startswith("_")):
            yield from public_functions(child)


def unknown(function: Function) -> list[str]:
    """Names under "Args:" that are no parameters."""
    given = function.args
    names = {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    names |= {each.arg for each in (given.vararg, given.kwarg) if each is not None}
    _, _, section = (ast.get_docstring(function) or "").partition("\nArgs:\n")
    described = [name for found in PARAMETERS.findall(section.split("\n\n")[0]) for name in found.split(", ")]
    return [name for name in described if name not in names]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_parameter_in_a_docstring_exists(package):
    found = [
        f"{file.relative_to(ROOT)}:{function.lineno}: {function.name} has no parameter {', '.join(names)}"
        for file in sorted((ROOT / package).rglob("*.py"))
        if "_pb2" not in file.name
        for function in public_functions(ast.parse(file.read_text()))
        if (names := unknown(function))
    ]
    assert found == []


def test_every_parameter_of_the_command_line_has_a_help_text():
    found = list(verbs(typer.main.get_command(app)))
    assert "errors show" in dict(found)
    assert [
        f"{verb}: {each.name}" for verb, command in found for each in command.params if not getattr(each, "help", "")
    ] == []


@pytest.mark.parametrize(
    ("docstring", "names"),
    [
        ("Do it.", []),
        ("Do it.\n\nArgs:\n    first: the one.\n\nReturns:\n    third: not a parameter.", []),
        ("Do it.\n\nArgs:\n    first: the one,\n        third: in its description.", []),
        ("Do it.\n\nArgs:\n    first, second: both.\n    more: others.", []),
        ("Do it.\n\nArgs:\n    third: one.\n    second, fourth: both.", ["third", "fourth"]),
    ],
)
def test_unknown_parameters_are_detected(docstring, names):
    """Test the check itself, on a method."""
    tree = ast.parse(f"class Public:\n    def do(self, first, *more, second): {docstring!r}\n")
    (function,) = public_functions(tree)
    assert unknown(function) == names
