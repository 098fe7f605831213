"""Public functions with several parameters say in their docstrings what each of them is, or where that is said."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from headrace.cli.app import app
from tests.support.session.packages import PACKAGES, ROOT
from tests.support.session.verbs import verbs

# `word: ...` or `word, word: ...`, four spaces further in than "Args:".
PARAMETERS = re.compile(r"^ {4}(\w+(?:, \w+)*): \S", re.MULTILINE)
ELSEWHERE = re.compile(r"\bSee `[^`]+`")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def public_functions(node: ast.AST) -> Iterator[Function]:
    """Public functions and methods of public classes; none that is inside of a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            if not child.name.startswith("_"):
                yield child
        elif not (isinstance(child, ast.ClassDef) and child.name.startswith("_")):
            yield from public_functions(child)


def is_decorated(function: Function, name: str) -> bool:
    """Whether a decorator is `name`, `anything.name`, or a call of one of them."""
    decorators = (each.func if isinstance(each, ast.Call) else each for each in function.decorator_list)
    return any(
        name == (each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "")) for each in decorators
    )


def undocumented(function: Function) -> list[str]:
    """The parameters that neither "Args:" nor what "See `...`" refers to describes; empty for one parameter only."""
    given = function.args
    names = [
        each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs) if each.arg not in {"self", "cls"}
    ]
    if len(names) < 2 or is_decorated(function, "overload"):
        return []
    text = ast.get_docstring(function) or ""
    if ELSEWHERE.search(text):
        return []
    _, _, section = text.partition("\nArgs:\n")
    described = {name for found in PARAMETERS.findall(section.split("\n\n")[0]) for name in found.split(", ")}
    return [name for name in names if name not in described and not name.startswith("_")]


def functions_of_verbs() -> set[tuple[Path, str]]:
    """Files and names. The options of a verb have help texts, see below; typer would show an "Args:" to the user."""
    registered = [*app.registered_commands]
    for group in app.registered_groups:
        registered += group.typer_instance.registered_commands
    return {(Path(each.callback.__code__.co_filename).resolve(), each.callback.__name__) for each in registered}


@pytest.mark.parametrize("package", PACKAGES)
def test_public_function_with_several_parameters_says_what_each_of_them_is(package):
    of_verbs = functions_of_verbs()
    assert len(of_verbs) > 20
    missing = [
        f"{file.relative_to(ROOT)}:{function.lineno}: {function.name} does not say what is: {', '.join(names)}"
        for file in sorted((ROOT / package).rglob("*.py"))
        if "_pb2" not in file.name
        for function in public_functions(ast.parse(file.read_text()))
        if (file, function.name) not in of_verbs and (names := undocumented(function))
    ]
    assert missing == []


def test_every_parameter_of_the_command_line_has_a_help_text():
    found = list(verbs(typer.main.get_command(app)))
    assert "errors show" in dict(found)
    assert [
        f"{verb}: {each.name}" for verb, command in found for each in command.params if not getattr(each, "help", "")
    ] == []


@pytest.mark.parametrize(
    ("docstring", "names"),
    [
        ("Do it.", ["first", "second"]),
        ("Do it.\n\nArgs:\n    first: the one.\n\nReturns:\n    second: not a parameter.", ["second"]),
        ("Do it.\n\nArgs:\n    first: the one,\n        second: in its description.", ["second"]),
        ("Do it. See the module.", ["first", "second"]),
        ("Do it.\n\nArgs:\n    first: the one.\n    second: the other.", []),
        ("Do it.\n\nArgs:\n    first, second: both.", []),
        ("See `Port.do`.", []),
    ],
)
def test_undocumented_parameters_are_really_found(docstring, names):
    """The check itself, on a method with two parameters."""
    tree = ast.parse(
        f"class Public:\n    def do(self, first, *, second): {docstring!r}\n    def _private(self, a, b): ...\n"
    )
    (function,) = public_functions(tree)
    assert undocumented(function) == names
