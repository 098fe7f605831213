"""`check` and `plan` of a file with `ddl: true`, about real databases: what is refused, and which statements end it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import UNFIT_TABLE, Finding
from headrace.deployment.inspection import check_topology, plan_topology
from tests.support.databases.checked import FILE, Checked
from topology.edits.stored import PREPARED_FILE, spec_to_json
from topology.file.reading import read_topology

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

OWNER, ROLE = "headrace_checked_owner", "headrace_checked_ddl"


def with_ddl(checked: Checked) -> Checked:
    checked.file.write_text(FILE.replace("to: [b]", "to: [b], ddl: true"))
    return checked


@pytest.fixture
def alike(checked: Checked) -> Checked:
    """Two databases of servers of one version."""
    return with_ddl(checked)


@pytest.fixture
def role(alike: Checked, monkeypatch: pytest.MonkeyPatch) -> Iterator[Checked]:
    """The same with a table of another role at b, where apply has every right on its rows."""
    for site in ("a", "b"):
        alike.execute(site, "CREATE TABLE t (id int PRIMARY KEY)")
    alike.execute(
        "b",
        f"CREATE ROLE {OWNER}",
        f"CREATE ROLE {ROLE} LOGIN PASSWORD 'secret'",
        f"ALTER TABLE t OWNER TO {OWNER}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON t TO {ROLE}",
    )
    superusers = alike.dsns["b"]
    monkeypatch.setenv("TEST_B_DSN", psycopg.conninfo.make_conninfo(superusers, user=ROLE, password="secret"))
    yield alike
    alike.execute(
        "b", *(f"DROP OWNED BY {name} CASCADE" for name in (ROLE, OWNER)), f"DROP ROLE {ROLE}", f"DROP ROLE {OWNER}"
    )


def of_ddl(findings: tuple[Finding, ...]) -> list[Finding]:
    return [finding for finding in findings if "DDL" in finding.problem]


def unfit(checked: Checked) -> list[str]:
    """Return what `check` and `plan` print for tables that do not fit; a folder without certificates has other findings."""
    found, planned = (
        [each.fix for each in ask(checked.file, ask_databases=True).findings if each.problem == UNFIT_TABLE]
        for ask in (check_topology, plan_topology)
    )
    assert found == planned
    return found


def test_rights_that_ddl_needs_at_the_destination_are_printed(role: Checked) -> None:
    found = of_ddl(role.findings())
    assert {finding.path for finding in found} == {"sites.b table public.t"}
    assert [finding.fix for finding in found] == [
        f'GRANT "{OWNER}" TO "{ROLE}";',
        f'GRANT CREATE ON SCHEMA "public" TO "{OWNER}";',
    ]
    role.execute("b", *(finding.fix for finding in found))
    assert of_ddl(role.findings()) == []


def test_plan_shows_what_is_made_at_the_source_and_which_way_has_ddl(alike: Checked) -> None:
    for site in ("a", "b"):
        alike.execute(site, "CREATE TABLE t (id int PRIMARY KEY)")
    plan = plan_topology(alike.file, ask_databases=True)
    (way,) = plan.ways
    assert "apply_from_a_at_b: DDL of public.* too" in way.rules
    assert "headrace_ddl" in plan.as_text()
    alike.file.write_text(FILE)
    assert "headrace_ddl" not in plan_topology(alike.file, ask_databases=True).as_text()


def test_alter_whose_ddl_may_be_on_its_way_may_be_waited_for(alike: Checked) -> None:
    alike.execute("a", "CREATE TABLE t (id int PRIMARY KEY, added int)")
    alike.execute("b", "CREATE TABLE t (id int PRIMARY KEY)")
    (first,) = unfit(alike)
    assert "or wait" not in first  # nothing was prepared
    spec = read_topology(alike.file)
    spec.state_dir.mkdir(parents=True, exist_ok=True)
    (spec.state_dir / PREPARED_FILE).write_text(json.dumps({"spec": spec_to_json(spec)}))
    assert unfit(alike) == [f"{first} -- or wait: DDL of this table travels (headrace wait FILE --caught-up)"]


def test_servers_of_two_versions_are_refused(
    alike: Checked,
    pg_16: EmbeddedServer,
    fresh_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = with_ddl(Checked(fresh_database(pg_16), alike.dsns["b"], tmp_path, monkeypatch))
    for site in ("a", "b"):
        older.execute(site, "CREATE TABLE t (id int PRIMARY KEY)")
    assert [(finding.path, finding.problem.partition(":")[0]) for finding in of_ddl(older.findings())] == [
        ("sites.b", "is PostgreSQL 18, and the source whose DDL is applied here is PostgreSQL 16")
    ]


def test_table_that_is_partitioned_at_the_destination_is_refused(alike: Checked) -> None:
    alike.execute("a", "CREATE TABLE t (id int PRIMARY KEY)")
    alike.execute(
        "b", "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)", "CREATE TABLE t_1 PARTITION OF t DEFAULT"
    )
    assert [(finding.path, finding.is_error) for finding in of_ddl(alike.findings())] == [
        ("sites.b table public.t", True)
    ]
