"""Files above 500 lines say in their headers why, and functions are short."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("headrace", "simulation", "actors", "spark_apply", "topology", "redo", "databases", "protos", "rules", "streams")
LINES_MAX = 500
P90_MAX = 22
FUNCTION_MAX = 64  # `LogWriter._write`, whose steps are only right together; numba's kernels, which call nothing, are longer
REASON = "Longer than 500 lines: "


def modules(*folders: str) -> Iterator[tuple[Path, str]]:
    """Every module that somebody writes, with its text."""
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if "_pb2" not in file.name:
                yield file, file.read_text()


def without_reason(text: str) -> bool:
    """Whether a module is long and its header does not say why."""
    return text.count("\n") > LINES_MAX and REASON not in (ast.get_docstring(ast.parse(text)) or "")


@pytest.mark.parametrize("folder", [*PACKAGES, "benchmarks", "tests"])
def test_file_above_500_lines_says_why_in_its_header(folder):
    assert [str(file.relative_to(ROOT)) for file, text in modules(folder) if without_reason(text)] == []


def test_a_long_file_without_a_reason_is_really_found():
    long = "x = 1\n" * (LINES_MAX + 1)
    assert without_reason(long)
    assert without_reason(f'"""Header."""\n# {REASON}of a comment\n{long}')
    assert not without_reason(f'"""Header.\n\n{REASON}it is a test.\n"""\n{long}')
    assert not without_reason("x = 1\n" * LINES_MAX)


def test_nine_in_ten_functions_of_the_product_have_at_most_22_lines():
    functions = [
        (node.end_lineno - node.lineno + 1, f"{file.relative_to(ROOT)}:{node.name}")
        for file, text in modules(*PACKAGES) for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    ]
    assert len(functions) > 5000
    assert sorted(functions)[int(len(functions) * 0.9)][0] <= P90_MAX
    assert [name for lines, name in functions if lines > FUNCTION_MAX and "_kernels.py:" not in name] == []
