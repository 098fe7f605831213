"""What `check` and `plan` see of real databases beside each other, before `up` would refuse it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from databases.embedded import EmbeddedServer
from databases.ports import Finding
from headrace.inspection import check_topology, plan_topology

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

FILE = """
topology: checked
state_dir: state
sites:
  a: {database: {kind: postgres, dsn: "${TEST_A_DSN}"}}
  b: {database: {kind: postgres, dsn: "${TEST_B_DSN}"}}
replicate:
  - {schemas: [public], from: a, to: [b]}
"""


class Checked:
    """Two databases and a file that names them."""

    def __init__(self, a: str, b: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dsns = {"a": a, "b": b}
        self.file = folder / "checked.yaml"
        self.file.write_text(FILE)
        for name, dsn in self.dsns.items():
            monkeypatch.setenv(f"TEST_{name.upper()}_DSN", dsn)

    def execute(self, site: str, *statements: str) -> None:
        with psycopg.connect(self.dsns[site], autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def findings(self) -> tuple[Finding, ...]:
        found = check_topology(self.file, ask_databases=True)
        assert set(plan_topology(self.file, ask_databases=True).findings) == set(found)
        return found

    def about(self, table: str) -> list[Finding]:
        return [finding for finding in self.findings() if finding.path.endswith(f"table public.{table}")]


@pytest.fixture
def checked(
    pg_source: EmbeddedServer, pg_destination: EmbeddedServer, fresh_database: Callable[[EmbeddedServer], str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Checked:
    return Checked(fresh_database(pg_source), fresh_database(pg_destination), tmp_path, monkeypatch)


def test_one_database_under_two_names_is_said(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    checked.execute("a", "CREATE TABLE t (id int PRIMARY KEY)")
    name = psycopg.conninfo.make_conninfo(checked.dsns["a"], host="localhost")
    assert name != checked.dsns["a"]
    monkeypatch.setenv("TEST_B_DSN", name)
    assert [(f.path, f.problem) for f in checked.findings() if "same database" in f.problem] == [
        ("sites.b", "is the same database as sites.a, by another name"),
    ]
    monkeypatch.setenv("TEST_B_DSN", checked.dsns["b"])
    assert not [f for f in checked.findings() if "same database" in f.problem]
