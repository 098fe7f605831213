"""Every test is in a lane, and in one part of it; a test of servers says so by its marker."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from tests.lanes import LANES, ROOT, Done, show
from tests.support.collected import Collected, collected
from tests.support.reporting import REPORT, Reporting, note_started, read_report
from tests.support.seeds import SEED, seed_of

# Fixtures from which everything that starts a server follows, and the markers of the tests that use them.
_NEEDS = {
    "postgres_folder": "postgres",
    "copied_database": "postgres",
    "make_site": "postgres",
    "ray_cluster": "cluster",
    "one_way": "cluster",
    "lent": "cluster",
}
# A statement that may import a test: of the others no syntax tree is needed.
_MAY_IMPORT = re.compile(r"^\s*(?:from|import)\s[^#\n]*(?:\(|\btest_)", re.MULTILINE)


@pytest.fixture
def every_test(pytestconfig: pytest.Config) -> list[Collected]:
    return collected(pytestconfig)


@functools.cache  # thousands of tests have few sets of markers
def parts_with(lane: str, markers: frozenset[str], folder: str) -> list[str]:
    """The parts of a lane that a test with these markers is in."""
    return [
        part.name
        for part in LANES[lane]
        if {"tests", folder} & set(part.folders)
        and Expression.compile(part.markers).evaluate(lambda name, **_: name in markers)
    ]


def folder_of(each: Collected) -> str:
    """The first two of the folders of its file."""
    return "/".join(each.name.split("/")[:2])


def test_every_test_is_in_one_part_of_one_lane_and_a_seeded_one_in_two(every_test: list[Collected]):
    assert len(every_test) > 7000
    for each in every_test:
        test, soak, check = (parts_with(lane, each.markers, folder_of(each)) for lane in ("test", "soak", "check"))
        assert (len(test), len(soak)) == ((0, 1) if "soak" in each.markers else (1, int("seeded" in each.markers))), (
            each.name
        )
        assert set(check) <= set(test), each.name
    assert set(Counter(part for each in every_test for part in parts_with("soak", each.markers, folder_of(each)))) == {
        part.name for part in LANES["soak"]
    }


def test_every_file_of_tests_has_tests(every_test: list[Collected]):
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    assert files == {each.name.partition("::")[0] for each in every_test}


def test_who_starts_a_server_says_so_by_a_marker(every_test: list[Collected]):
    assert [
        (each.name, fixture)
        for each in every_test
        for fixture, marker in _NEEDS.items()
        if fixture in each.fixtures and marker not in each.markers
    ] == []


def test_what_hypothesis_makes_up_is_made_up_anew_in_the_soak(every_test: list[Collected]):
    assert sum(each.is_random for each in every_test) > 50
    assert [each.name for each in every_test if each.is_random and not each.markers & {"seeded", "soak"}] == []


def test_no_test_imports_another_one():
    """What two of them need is in `tests.support`."""
    texts = {path: text for path in (ROOT / "tests").rglob("*.py") if _MAY_IMPORT.search(text := path.read_text())}
    assert texts
    found = [
        f"{path.relative_to(ROOT)}: {module}"
        for path, text in texts.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for module in modules_of(node)
        if module.startswith("tests.") and ".test_" in f"{module}."
    ]
    assert found == []


def modules_of(node: ast.Import | ast.ImportFrom) -> list[str]:
    """What a statement imports, as modules."""
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    return [str(node.module), *(f"{node.module}.{each.name}" for each in node.names)]


def test_seeds_are_fixed_unless_the_session_has_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(SEED, raising=False)
    fixed = seed_of("a history")
    assert fixed == seed_of("a history") != seed_of("another one")
    monkeypatch.setenv(SEED, "17")
    assert seed_of("a history") not in {fixed, seed_of("another one")}


def test_what_was_started_is_counted_by_whoever_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(REPORT, str(tmp_path))
    note_started("topology")
    note_started("Ray")
    assert read_report(tmp_path).started == ["topology", "Ray"]
    assert read_report(tmp_path / "nothing").started == []


def test_what_failed_is_named_with_what_it_said_and_printed_last(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def broken():
            raise RuntimeError("the server is [gone]")

        def test_one():
            assert 1 + 1 == 3, "no arithmetic"

        def test_two(broken):
            pass

        def test_three():
            pass
        """
    )
    plugin = Reporting(pytester.path)
    pytester.inline_run(plugins=[plugin])
    report = read_report(pytester.path)
    assert {name.rpartition("::")[2]: said.splitlines()[0] for name, said in report.failed.items()} == {
        "test_one": "call: AssertionError: no arithmetic",
        "test_two": "setup: RuntimeError: the server is [gone]",
    }
    capsys.readouterr()
    show("test", [Done(part=LANES["test"][0], code=1, seconds=3.0, report=report)])
    assert capsys.readouterr().out.rstrip().splitlines()[-1] == "setup: RuntimeError: the server is [gone]"
