"""A name stands for many tables over time: tables that leave the topology and come back, are made again, are renamed; on the Ray of the shared topology."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from databases.embedded import EmbeddedServer
from headrace.commands.verification import verify_topology
from headrace.status_view import is_healthy
from headrace.waiting import NotCaughtUp, wait_caught_up
from streams.errors import ApplyError
from tests.support.system import System, running, system_folder, wait_until
from topology.file.reading import read_topology

pytestmark = [pytest.mark.unit("sites"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

TOPOLOGY = """
topology: over_time
state_dir: state
sites:
  src: {{database: {{kind: embedded}}}}
  dst: {{database: {{kind: embedded}}}}
replicate:
  - {{tables: [{tables}], from: src, to: [dst]}}
"""
TABLES = "public.a, public.b, hr.*"
# Takes more than what is replicated: then the rules of the propagation decide.
WIDE_CAPTURE = """
captures:
  capture_src: {{site: src, source: src, queue: q_src, rules: {{include: [{{schema: public}}, {{schema: hr}}]}}}}
"""


def _make_tables(servers: dict[str, EmbeddedServer]) -> None:
    for server in servers.values():
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE SCHEMA hr")
            for table in ("a", "b", "hr.ra"):
                connection.execute(f"CREATE TABLE {table} (id integer PRIMARY KEY, body text)")
    with psycopg.connect(servers["src"].dsn(), autocommit=True) as connection:
        for table in ("a", "b", "hr.ra"):
            connection.execute(f"INSERT INTO {table} SELECT n, 'before' FROM generate_series(1, 100) n")


@pytest.fixture(scope="module")
def system(ray_address: str) -> Iterator[System]:
    with system_folder("over-time") as folder, running(_read(folder, TABLES), folder, _make_tables, address=ray_address) as system:
        yield system


def _read(folder: Path, tables: str, more: str = "") -> Any:
    file = folder / "topology.yaml"
    file.write_text(textwrap.dedent((TOPOLOGY + more).format(tables=tables)))
    return read_topology(file)


def up(system: System, tables: str = TABLES, more: str = "") -> None:
    system.deployment.spec = _read(system.folder, tables, more)
    assert system.deployment.up()["state"] == "RUNNING"


def test_table_that_left_the_topology_and_came_back_is_copied_again(system: System):
    system.execute("src", "INSERT INTO b VALUES (101, 'while it is there')")
    system.assert_converged(["a", "b", "hr.ra"])
    up(system, "public.a, hr.*")
    system.execute("src", "INSERT INTO b VALUES (102, 'while it is away')")
    system.execute("src", "UPDATE b SET body = 'while it is away' WHERE id <= 10")
    system.execute("src", "DELETE FROM b WHERE id > 90 AND id < 100")
    system.execute("src", "INSERT INTO a VALUES (101, 'the other one')")
    system.assert_converged(["a", "hr.ra"])
    assert system.execute("dst", "SELECT count(*) FROM b") == [(101,)]
    up(system)
    system.execute("src", "INSERT INTO b VALUES (103, 'when it is back')")
    system.assert_converged(["a", "b", "hr.ra"])


def test_table_that_was_made_again_or_swapped_in_is_copied_again(system: System):
    system.execute("src", "DROP TABLE a; CREATE TABLE a (id integer PRIMARY KEY, body text)")
    system.execute("src", "INSERT INTO a SELECT n, 'made again' FROM generate_series(50, 120) n")
    system.execute("src", """
        CREATE TABLE b_new (id integer PRIMARY KEY, body text);
        INSERT INTO b_new SELECT id, body || ', moved' FROM b;
        ALTER TABLE b RENAME TO b_old; ALTER TABLE b_new RENAME TO b;
        DROP TABLE b_old
    """)
    wait_until("status says so", lambda: system.status("site:src")["uncaptured_tables"] == ["public.a", "public.b"])
    up(system)
    system.execute("src", "INSERT INTO a VALUES (200, 'after')")
    system.assert_converged(["a", "b", "hr.ra"])
    assert system.execute("dst", "SELECT count(*) FROM headrace.instantiation") == [(3,)]


def test_table_that_was_renamed_at_both_sites_goes_on_with_the_next_driver_too(system: System):
    for site in ("src", "dst"):
        system.execute(site, "ALTER TABLE hr.ra RENAME TO ra2")
    system.execute("src", "INSERT INTO hr.ra2 VALUES (101, 'renamed')")
    system.assert_converged(["a", "b", "hr.ra2"])
    apply = f"apply:{system.spec.applies[0].name}"
    before = system.execute("dst", "SELECT scn, identity FROM headrace.instantiation WHERE owner = 'hr'")
    system.call(apply, "stop_component")
    system.wait_state(apply, "DISABLED")
    system.execute("src", "INSERT INTO hr.ra2 VALUES (102, 'while it is stopped')")
    system.call(apply, "start_component")
    system.assert_converged(["a", "b", "hr.ra2"])
    assert system.execute("dst", "SELECT name FROM headrace.instantiation WHERE owner = 'hr'") == [("ra2",)]
    assert system.execute("dst", "SELECT scn, identity FROM headrace.instantiation WHERE owner = 'hr'") == before


def paused(system: System) -> dict[str, Any]:
    name = f"capture:{system.spec.captures[0].name}"
    return system.wait_state(name, "PAUSED: A TABLE LEFT THE RULES")


def test_table_that_is_renamed_out_of_its_rule_holds_up_its_changes_until_the_rules_know_its_name(system: System):
    scn = system.execute("dst", "SELECT scn FROM headrace.instantiation WHERE name = 'b'")
    system.execute("src", "ALTER TABLE b RENAME TO b2")
    system.execute("src", "INSERT INTO b2 VALUES (300, 'renamed')")
    assert "public.b2" in paused(system)["detail"]
    wait_until("status says so", lambda: not is_healthy(system.deployment.overview()))
    with pytest.raises(NotCaughtUp, match="no rule takes"):
        wait_caught_up(system.spec, system.deployment.connect(), timeout_s=10.0, overview=system.deployment.overview)
    with pytest.raises(ApplyError, match="no rule takes"):
        verify_topology(
            system.spec, system.deployment.connect(), timeout_s=10.0, progress=lambda _: None,
            overview=system.deployment.overview,
        )
    system.execute("dst", "ALTER TABLE b RENAME TO b2")
    up(system, "public.a, public.b2, hr.*")
    system.assert_converged(["a", "b2", "hr.ra2"])
    assert system.execute("dst", "SELECT scn FROM headrace.instantiation WHERE name = 'b2'") == scn  # not copied again


def test_table_that_is_renamed_away_is_left_out_by_another_up(system: System):
    system.execute("src", "ALTER TABLE b2 RENAME TO b_away")
    system.execute("src", "INSERT INTO b_away VALUES (301, 'nobody wants it')")
    paused(system)
    system.execute("src", "INSERT INTO a VALUES (301, 'waits behind it')")
    up(system, "public.a, public.b2, hr.*")
    system.assert_converged(["a", "hr.ra2"])
    assert system.execute("dst", "SELECT count(*) FROM b2 WHERE id = 301") == [(0,)]


def test_rename_out_of_the_rules_behind_the_capture_process_holds_up_its_changes_too(system: System):
    """A propagation that drops the new name would lose rows, and positions would advance."""
    up(system, "public.a, hr.*", WIDE_CAPTURE)
    system.assert_converged(["a", "hr.ra2"])
    state = "SELECT name, state, scn FROM headrace.instantiation WHERE owner = 'public' AND name LIKE 'a%'"
    ((_, _, scn),) = system.execute("dst", state)
    system.execute("src", "ALTER TABLE a RENAME TO a9")
    system.execute("src", "INSERT INTO a9 VALUES (900, 'renamed')")
    system.execute("src", "INSERT INTO hr.ra2 VALUES (900, 'waits behind it')")
    detail = paused(system)["detail"]
    assert "public.a9" in detail
    assert "the way to apply_from_src_at_dst" in detail
    wait_until("status says so", lambda: not is_healthy(system.deployment.overview()))
    system.execute("dst", "ALTER TABLE a RENAME TO a9")
    up(system, "public.a9, hr.*", WIDE_CAPTURE)
    system.assert_converged(["a9", "hr.ra2"])
    assert system.execute("dst", state) == [("a9", "DONE", scn)]  # not copied again

    system.execute("src", "ALTER TABLE a9 RENAME TO gone")
    system.execute("src", "INSERT INTO gone VALUES (901, 'nobody wants it')")
    paused(system)
    up(system, "public.a9, hr.*", WIDE_CAPTURE)
    system.execute("src", "INSERT INTO hr.ra2 VALUES (901, 'after it')")
    system.assert_converged(["hr.ra2"])
    assert system.execute("dst", state) == [("a9", "LEFT", scn)]  # if it comes back, it is copied again
