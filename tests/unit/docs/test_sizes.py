"""Long modules give the reason in their headers, and functions are short. Statements count, because lines depend on the
formatter.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.session.packages import PACKAGES, ROOT

# The most that 500 lines held before the formatter broke them.
STATEMENTS_MAX = 376
P90_MAX = 14
# `spark_apply.copy.marks.row_marks.compare_marks`, whose cases are read as one; numba kernels, which call nothing, have
# more.
FUNCTION_MAX = 45
REASON = "Longer than 500 lines: "


def modules(*folders: str) -> Iterator[tuple[Path, str]]:
    """Every hand-written module, with its text."""
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if "_pb2" not in file.name:
                yield file, file.read_text()


def within(tree: ast.AST) -> list[ast.stmt]:
    """A statement, and every one in it; expressions, which are most nodes of a tree, have none."""
    found = [tree]
    for node in found:
        for part in ("body", "handlers", "orelse", "finalbody", "cases"):
            found += getattr(node, part, ())
    return [node for node in found if isinstance(node, ast.stmt)]


def statements(tree: ast.AST) -> int:
    return len(within(tree))


def without_reason(text: str) -> bool:
    """Return whether a module is long without a reason in its header."""
    # The formatter gives each statement a line, except the body `...`.
    if text.count("\n") + text.count(": ...") <= STATEMENTS_MAX:
        return False
    tree = ast.parse(text)
    return statements(tree) > STATEMENTS_MAX and REASON not in (ast.get_docstring(tree) or "")


@pytest.mark.parametrize("folder", [*PACKAGES, "benchmarks", "tests"])
def test_long_module_gives_the_reason_in_its_header(folder):
    assert [str(file.relative_to(ROOT)) for file, text in modules(folder) if without_reason(text)] == []


def test_long_module_without_a_reason_is_detected():
    long = "x = 1\n" * (STATEMENTS_MAX + 1)
    assert without_reason(long)
    assert without_reason(f'"""Header."""\n# {REASON}of a comment\n{long}')
    assert not without_reason(f'"""Header.\n\n{REASON}it is a test.\n"""\n{long}')
    assert not without_reason("x = 1\n" * STATEMENTS_MAX)


def test_nine_in_ten_functions_of_the_product_have_at_most_14_statements():
    functions = [
        (statements(node) - 1, f"{file.relative_to(ROOT)}:{node.name}")
        for file, text in modules(*PACKAGES)
        for node in within(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert len(functions) > 5000
    assert sorted(functions)[int(len(functions) * 0.9)][0] <= P90_MAX
    assert [name for count, name in functions if count > FUNCTION_MAX and "_kernels.py:" not in name] == []
