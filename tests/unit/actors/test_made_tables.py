"""Which tables an apply process gets that DDL made, and as of when the source named them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.apply import ApplyHost
from headrace.databases.ports import CapturedTable
from headrace.lcr.scn import FIRST_SCN, ObjectNumber
from tests.support.topologies.files import SITES, read


class Actors:
    """Stands in for the actors: the source site has these captured tables."""

    def __init__(self, *captured: CapturedTable) -> None:
        self._captured = captured
        self.calls: list[str] = []

    def call(self, name: str, method: str, *arguments: Any, timeout_s: float = 0.0) -> Any:
        self.calls.append(method)
        return {"captured": self._captured, "write_marker": 500}.get(method, "dsn")


def table(name: str, number: int, *, is_made: bool) -> CapturedTable:
    return CapturedTable(
        identity=f"7.1.{number}.{number}",
        owner="hr",
        name=name,
        object_numbers=(ObjectNumber(number),),
        is_made=is_made,
    )


def configured(
    monkeypatch: pytest.MonkeyPatch, folder: Path, actors: Actors, *, ddl: str = ", ddl: true", known: Any = None
) -> dict[str, int]:
    """Return the names of the tables that the apply process gets, with their `as_of`."""
    spec = read(folder, f"{SITES}replicate:\n  - {{schemas: [hr], from: dbs1, to: [dbs2]{ddl}}}\n")
    monkeypatch.setattr("actors.hosting.runtime.actors_of", lambda _: actors)
    monkeypatch.setattr("actors.hosting.runtime.own_host", lambda: "127.0.0.1")
    (apply,) = spec.applies
    config = ApplyHost(spec, apply.name, "label", known=known)._configuration()
    return {each.destination.name: int(each.as_of) for each in config.tables}


def test_position_is_asked_behind_the_tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    actors = Actors(table("old", 5, is_made=False), table("new", 6, is_made=True))
    assert configured(monkeypatch, tmp_path, actors) == {"old": FIRST_SCN, "new": 500}
    assert actors.calls.index("captured") < actors.calls.index("write_marker")


def test_nothing_is_asked_without_a_table_that_ddl_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    actors = Actors(table("old", 5, is_made=False))
    assert configured(monkeypatch, tmp_path, actors) == {"old": FIRST_SCN}
    assert "write_marker" not in actors.calls


def test_table_waits_for_no_creation_over_a_way_without_ddl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another way takes the source's DDL."""
    actors = Actors(table("new", 6, is_made=True))
    assert configured(monkeypatch, tmp_path, actors, ddl="") == {"new": FIRST_SCN}


def test_record_decides_about_the_names_of_tables_with_ddl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for ddl in (", ddl: true", ""):
        actors = Actors(table("old", 5, is_made=False))
        spec = read(tmp_path, f"{SITES}replicate:\n  - {{schemas: [hr], from: dbs1, to: [dbs2]{ddl}}}\n")
        monkeypatch.setattr("actors.hosting.runtime.actors_of", lambda _, found=actors: found)
        monkeypatch.setattr("actors.hosting.runtime.own_host", lambda: "127.0.0.1")
        (found,) = ApplyHost(spec, spec.applies[0].name, "label")._configuration().tables
        assert found.takes_ddl is bool(ddl)


def test_table_that_ddl_made_needs_no_controllers_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its rows are applied from the first on: skipped, they would be missing behind the next start."""
    actors = Actors(table("ahead", 5, is_made=False), table("new", 6, is_made=True))
    assert configured(monkeypatch, tmp_path, actors, known=["7.1.4.4"]) == {"new": 500}
    assert configured(monkeypatch, tmp_path, actors, ddl="", known=["7.1.4.4"]) == {}
