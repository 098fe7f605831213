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


def test_every_table_that_is_not_empty_is_said_at_once_and_none_that_was_begun(checked: Checked) -> None:
    for site in ("a", "b"):
        checked.execute(site, *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("t", "u", "v")))
    checked.execute("b", "INSERT INTO t VALUES (1)", "INSERT INTO v VALUES (1)")
    assert [f.path for f in checked.findings() if "not empty" in f.problem] == ["sites.b table public.t", "sites.b table public.v"]
    checked.execute("b", "TRUNCATE t, v")
    assert not [f for f in checked.findings() if "not empty" in f.problem]


def test_a_table_that_may_not_be_read_is_said_with_the_others(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    for site in ("a", "b"):
        checked.execute(site, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    role = "headrace_checked_role"
    checked.execute(
        "b", f"DROP ROLE IF EXISTS {role}", f"CREATE ROLE {role} LOGIN PASSWORD 'secret'", "INSERT INTO t VALUES (1)",
        "INSERT INTO u VALUES (1)", f"GRANT ALL ON u TO {role}",
    )
    monkeypatch.setenv("TEST_B_DSN", psycopg.conninfo.make_conninfo(checked.dsns["b"], user=role, password="secret"))
    assert any("lacks" in finding.problem for finding in checked.about("t"))
    assert any("not empty" in finding.problem for finding in checked.about("u"))
    checked.execute("b", f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_keys_with_columns_that_only_the_destination_has_are_said(checked: Checked) -> None:
    checked.execute("a", "CREATE TABLE t (id int PRIMARY KEY, v int)", "CREATE TABLE u (id int PRIMARY KEY)")
    checked.execute(
        "b", "CREATE TABLE w (site int, id int, PRIMARY KEY (site, id))",
        "CREATE TABLE t (id int PRIMARY KEY, v int, site int DEFAULT 1, UNIQUE (site, v), FOREIGN KEY (site, id) REFERENCES w)",
        "CREATE TABLE u (id int UNIQUE NOT NULL, own int GENERATED ALWAYS AS IDENTITY PRIMARY KEY)",
    )
    said = [finding.problem for finding in checked.about("t") if "columns that the source does not have" in finding.problem]
    assert [problem.partition(" has ")[0] for problem in said] == ["the unique key (site, v)", 'the foreign key "t_site_id_fkey"']
    assert not [finding for finding in checked.about("u") if "columns that the source" in finding.problem]
