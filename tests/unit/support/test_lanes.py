"""Every test is in a lane, and in one part of it; a test of servers says so by its marker."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from tests.lanes import LANES, ROOT
from tests.support.reporting import REPORT, note_started, read_report
from tests.support.seeds import SEED, seed_of

_COLLECT = """
import json, sys
import pytest

class Told:
    def pytest_collection_finish(self, session):
        found = [
            [item.nodeid, [mark.name for mark in item.iter_markers()], list(item.fixturenames), hasattr(item.obj, "hypothesis") or hasattr(item.obj, "_hypothesis_state_machine_class")]
            for item in session.items
        ]
        open(sys.argv[1], "w").write(json.dumps(found))

sys.exit(pytest.main(["-q", "--collect-only", "tests"], plugins=[Told()]))
"""
# Fixtures from which everything that starts a server follows, and the markers of the tests that use them.
_NEEDS = {
    "postgres_folder": "postgres", "copied_database": "postgres", "make_site": "postgres", "ray_cluster": "cluster", "one_way": "cluster",
    "lent": "cluster",
}

Tests = list[tuple[str, set[str], set[str], bool]]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Tests:
    """Every test there is: its name, its markers, its fixtures, and whether hypothesis makes it up."""
    file = tmp_path_factory.mktemp("collected") / "tests.json"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run([sys.executable, "-c", _COLLECT, str(file)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [(name, set(markers), set(fixtures), is_random) for name, markers, fixtures, is_random in json.loads(file.read_text())]


def parts_with(lane: str, markers: set[str]) -> list[str]:
    """The parts of a lane that a test with these markers is in."""
    return [part.name for part in LANES[lane] if Expression.compile(part.markers).evaluate(lambda name, **_: name in markers)]


@pytest.mark.long
def test_every_test_is_in_one_part_of_one_lane_and_a_seeded_one_in_two(collected: Tests):
    assert len(collected) > 7000
    for name, markers, *_ in collected:
        test, soak, check = (parts_with(lane, markers) for lane in ("test", "soak", "check"))
        assert (len(test), len(soak)) == ((0, 1) if "soak" in markers else (1, int("seeded" in markers))), name
        assert set(check) <= set(test), name
    assert set(Counter(part for _, markers, *_ in collected for part in parts_with("soak", markers))) == {part.name for part in LANES["soak"]}


@pytest.mark.long
def test_every_file_of_tests_has_tests(collected: Tests):
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    assert files == {name.partition("::")[0] for name, *_ in collected}


@pytest.mark.long
def test_who_starts_a_server_says_so_by_a_marker(collected: Tests):
    assert [(name, fixture) for name, markers, fixtures, _ in collected for fixture, marker in _NEEDS.items() if fixture in fixtures and marker not in markers] == []


@pytest.mark.long
def test_what_hypothesis_makes_up_is_made_up_anew_in_the_soak(collected: Tests):
    assert sum(is_random for *_, is_random in collected) > 50
    assert [name for name, markers, _, is_random in collected if is_random and not markers & {"seeded", "soak"}] == []


@pytest.mark.long
def test_no_test_imports_another_one():
    """What two of them need is in `tests.support`."""
    found = [
        f"{path.relative_to(ROOT)}: {module}" for path in (ROOT / "tests").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom) for module in modules_of(node) if module.startswith("tests.") and ".test_" in f"{module}."
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
