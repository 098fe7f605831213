"""Every test is in one part of a lane; a test that starts servers has the marker for them."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from headrace.chaos.schedule import EVERY_FAULT
from tests.lanes import LANES, ROOT, Done, show
from tests.support.session.collected import Collected, collected
from tests.support.session.reporting import REPORT, Report, Reporting, note_started, read_report
from tests.support.session.seeds import SEED, seed_of

# Fixtures that start servers, and the markers required of the tests that use them.
_NEEDS = {
    "postgres_folder": "postgres",
    "copied_database": "postgres",
    "make_site": "postgres",
    "ray_cluster": "cluster",
    "one_way": "cluster",
    "lent": "cluster",
}
# A statement that may import a test. Files without a match need no syntax tree.
_MAY_IMPORT = re.compile(r"^\s*(?:from\s+tests\b[^#\n]*\(|(?:from|import)\s[^#\n]*\btest_)", re.MULTILINE)


@pytest.fixture
def every_test(pytestconfig: pytest.Config) -> list[Collected]:
    return collected(pytestconfig)


@functools.cache  # thousands of tests have few different marker sets
def parts_with(lane: str, markers: frozenset[str], folder: str) -> list[str]:
    """Return the parts of a lane that contain a test with these markers."""
    return [
        part.name
        for part in LANES[lane]
        if {"tests", folder} & set(part.folders)
        and Expression.compile(part.markers).evaluate(lambda name, **_: name in markers)
    ]


def folder_of(each: Collected) -> str:
    """Return the first two folders of the test's file."""
    return "/".join(each.name.split("/")[:2])


def test_every_test_has_one_lane_part_and_seeded_tests_have_two(every_test: list[Collected]):
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


def test_every_test_file_contains_tests(every_test: list[Collected]):
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    assert files == {each.name.partition("::")[0] for each in every_test}


def test_tests_that_start_a_server_have_its_marker(every_test: list[Collected]):
    assert [
        (each.name, fixture)
        for each in every_test
        for fixture, marker in _NEEDS.items()
        if fixture in each.fixtures and marker not in each.markers
    ] == []


def test_ci_lane_covers_every_fault_kind_on_ray_and_spark(every_test: list[Collected]):
    on_ray = [each for each in every_test if "Ray and Spark" in parts_with("test", each.markers, folder_of(each))]
    assert frozenset().union(*(each.faults for each in on_ray)) == EVERY_FAULT


def test_hypothesis_tests_are_seeded_or_in_the_soak(every_test: list[Collected]):
    assert sum(each.is_random for each in every_test) > 50
    assert [each.name for each in every_test if each.is_random and not each.markers & {"seeded", "soak"}] == []


def test_no_test_imports_another_test():
    """Code that two tests need is in `tests.support`."""
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
    """Return the modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    return [str(node.module), *(f"{node.module}.{each.name}" for each in node.names)]


def test_seeds_are_fixed_unless_the_session_sets_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(SEED, raising=False)
    fixed = seed_of("a history")
    assert fixed == seed_of("a history") != seed_of("another one")
    monkeypatch.setenv(SEED, "17")
    assert seed_of("a history") not in {fixed, seed_of("another one")}


def test_started_servers_are_read_from_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(REPORT, str(tmp_path))
    note_started("topology")
    note_started("Ray")
    assert read_report(tmp_path).started == ["topology", "Ray"]
    assert read_report(tmp_path / "nothing").started == []


def test_failed_tests_are_printed_last_with_their_errors(
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


def test_lane_summary_shows_part_times_slowest_tests_and_started_servers(capsys: pytest.CaptureFixture[str]):
    server, cluster = (
        next(part for part in LANES["test"] if part.name == name) for name in ("PostgreSQL", "Ray and Spark")
    )
    fast = {f"tests/a.py::test_{number}": float(number) for number in range(25)}
    both = "tests/b.py::test_in_two_sessions"
    show(
        "test",
        [
            Done(part=server, code=0, seconds=61.4, report=Report(seconds={**fast, both: 30.0}, started=["Ray"])),
            Done(
                part=cluster,
                code=0,
                seconds=100.2,
                report=Report(
                    seconds={"tests/c.py::test_[1]@one_way": 12.5, both: 3.25},
                    started=["topology", "Ray", "topology", "Ray"],
                ),
            ),
            Done(part=LANES["test"][0], code=5, seconds=1.0, report=Report()),
        ],
    )
    printed = capsys.readouterr().out
    rows = [re.split(r"\s*[│┃]\s*", line.strip("│┃ ")) for line in printed.splitlines() if line[:1] in "│┃"]
    assert "make test" in printed.splitlines()[0]
    assert rows[1:5] == [
        ["PostgreSQL", "4", "61", "26", "0"],
        ["Ray and Spark", "2", "100", "2", "0"],
        ["no server", "3", "1", "0", "no test"],
        ["all", "", "163", "28"],
    ]
    slowest = rows[6:]
    assert slowest[:3] == [["33.2", both], ["24.0", "tests/a.py::test_24"], ["23.0", "tests/a.py::test_23"]]
    assert ["12.5", "tests/c.py::test_[1]@one_way"] in slowest
    assert len(slowest) == 20
    assert "units: one_way 12 s" in printed
    assert "files: tests/a.py 300 s, tests/b.py 33 s, tests/c.py 12 s" in printed
    assert "started: 3 x Ray, 2 x topology" in printed


def test_lane_summary_counts_failed_tests_and_reports_no_started_servers(capsys: pytest.CaptureFixture[str]):
    part = LANES["check"][0]
    show(
        "check",
        [Done(part=part, code=1, seconds=2.0, report=Report(seconds={"a": 1, "b": 1}, failed={"b": "call: x"}))],
    )
    printed = capsys.readouterr().out
    assert re.search(r"no server\s*│ 3\s*│ 2\s*│ 2\s*│ 1\s*│", printed)
    assert "started: no topology" in printed
    assert printed.rstrip().endswith("FAILED b\ncall: x")
    show("check", [Done(part=part, code=-9, seconds=2.0, report=Report())])
    assert "exit code -9" in capsys.readouterr().out
