"""Two databases on a real server and a file that names them: the findings of `check` there, and their fixes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from actors.source_database import DatabaseSite
from headrace.databases.ports import Finding, Instantiation
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.source.database import PostgresSource
from headrace.deployment.inspection import check_topology, plan_topology
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from headrace.rules.conflict_handlers import NO_CONFLICT_RULES
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.table_settings import NO_TABLE_SETTINGS
from topology.file.reading import read_topology

__all__ = ["FILE", "PARTITIONED", "Checked", "replicated", "rows"]

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
        self._compared: set[bool] = set()  # whether there were findings

    def execute(self, site: str, *statements: str) -> None:
        with psycopg.connect(self.dsns[site], autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def findings(self) -> tuple[Finding, ...]:
        """Return the findings of `check`; those of `plan` must be the same.

        Both ask the databases the same, 140 statements each time: a test compares them once without findings, and once
        with some.
        """
        found = check_topology(self.file, ask_databases=True).findings
        if bool(found) not in self._compared:
            assert set(plan_topology(self.file, ask_databases=True).findings) == set(found)
            self._compared.add(bool(found))
        return found

    def at_up(self, table: str) -> list[Finding]:
        """Return the sites' findings when the controller asks about a table that arrives under its name."""
        spec, rules = read_topology(self.file), RuleSet(include=(Rule(owner="public", name=table),))
        source, destination = DatabaseSite(spec, "a", "").source, DatabaseSite(spec, "b", "").destination
        domains = source.domain_shapes([TableName("public", table)])
        versions = source.table_versions([rules])
        return list(
            destination.preflight_tables(
                versions, spec.applies[0].name, NO_CONFLICT_RULES, NO_TABLE_SETTINGS, {}, domains
            )
        )

    def about(self, table: str) -> list[Finding]:
        return [finding for finding in self.findings() if finding.path.endswith(f"table public.{table}")]


PARTITIONED = (
    "CREATE TABLE ev (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
    "CREATE TABLE ev_1 PARTITION OF ev FOR VALUES FROM (0) TO (100)",
)


def rows(checked: Checked, site: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(checked.dsns[site]) as connection:
        return connection.execute(query).fetchall()


@contextmanager
def replicated(checked: Checked) -> Iterator[None]:
    """Make table t with equal rows at both sides, as after a copy."""
    source, destination = PostgresSource(checked.dsns["a"], site="a"), PostgresDestination(checked.dsns["b"], site="b")
    with closing(source), closing(destination):
        source.prepare("checked", [RuleSet(include=(Rule(owner="public", name="t"),))])
        destination.prepare("checked")
        (apply,) = read_topology(checked.file).applies
        epoch = destination.raise_epoch("checked", apply.name).epoch
        (table,) = source.captured("checked")
        destination.record_instantiation(
            "checked",
            apply.name,
            epoch,
            Instantiation(source="a", identity=table.identity, owner="public", name="t", scn=Scn(1), state="DONE"),
        )
        destination.record_row_marks("checked", apply.name, epoch, "a", source.row_marks("checked"))
        yield
        source.remove("checked")
