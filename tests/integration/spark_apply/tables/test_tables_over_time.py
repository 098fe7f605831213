"""A name stands for many tables over time: tables that leave the topology and return, are recreated, are renamed."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.base.errors import ApplyError
from headrace.commands.verification import verify_topology
from headrace.console.status_view import is_healthy
from headrace.deployment.waiting import NotCaughtUp, wait_caught_up
from tests.support.clusters.sites import Sites
from tests.support.clusters.system import wait_until

pytestmark = [pytest.mark.unit("sites", order=2), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

TABLES = "over_time.a, over_time.b, hr.*"
_FILE = "replicate: [{{tables: [{tables}], from: a, to: [b]}}]"
# It takes more than is replicated: then the rules of the propagation decide.
WIDE_CAPTURE = """
captures:
  capture_a: {site: a, source: a, queue: q_a, rules: {include: [{schema: over_time}, {schema: hr}]}}
"""
APPLY = "apply:apply_from_a_at_b"


@pytest.fixture
def system(sites: Sites) -> Sites:
    """Create tables a, b and hr.ra, replacing replicated ones, with a hundred rows each, copied from one site to the
    other.
    """
    sites.remake(
        "over_time", "".join(f"CREATE TABLE {table} (id integer PRIMARY KEY, body text);" for table in ("a", "b"))
    )
    sites.remake("hr", "CREATE TABLE ra (id integer PRIMARY KEY, body text)")
    for table in ("over_time.a", "over_time.b", "hr.ra"):
        sites.execute("a", f"INSERT INTO {table} SELECT n, 'before' FROM generate_series(1, 100) n")
    return up(sites)


def up(system: Sites, tables: str = TABLES, more: str = "") -> Sites:
    edited = system.by(_FILE.format(tables=tables) + more)
    edited.up()
    system.deployment = edited.deployment
    return system


@pytest.mark.soak
def test_table_that_left_the_topology_and_returned_is_copied_again(system: Sites):
    system.execute("a", "INSERT INTO over_time.b VALUES (101, 'while it is there')")
    system.assert_converged(["over_time.a", "over_time.b", "hr.ra"])
    up(system, "over_time.a, hr.*")
    system.execute("a", "INSERT INTO over_time.b VALUES (102, 'while it is away')")
    system.execute("a", "UPDATE over_time.b SET body = 'while it is away' WHERE id <= 10")
    system.execute("a", "DELETE FROM over_time.b WHERE id > 90 AND id < 100")
    system.execute("a", "INSERT INTO over_time.a VALUES (101, 'the other one')")
    system.assert_converged(["over_time.a", "hr.ra"])
    assert system.execute("b", "SELECT count(*) FROM over_time.b") == [(101,)]
    up(system)
    system.execute("a", "INSERT INTO over_time.b VALUES (103, 'when it is back')")
    system.assert_converged(["over_time.a", "over_time.b", "hr.ra"])


@pytest.mark.soak
def test_recreated_or_swapped_table_is_copied_again(system: Sites):
    system.execute("a", "DROP TABLE over_time.a; CREATE TABLE over_time.a (id integer PRIMARY KEY, body text)")
    system.execute("a", "INSERT INTO over_time.a SELECT n, 'made again' FROM generate_series(50, 120) n")
    system.execute(
        "a",
        """
        CREATE TABLE over_time.b_new (id integer PRIMARY KEY, body text);
        INSERT INTO over_time.b_new SELECT id, body || ', moved' FROM over_time.b;
        ALTER TABLE over_time.b RENAME TO b_old; ALTER TABLE over_time.b_new RENAME TO b;
        DROP TABLE over_time.b_old
    """,
    )
    wait_until("status says so", lambda: system.status("site:a")["uncaptured_tables"] == ["over_time.a", "over_time.b"])
    up(system)
    system.execute("a", "INSERT INTO over_time.a VALUES (200, 'after')")
    system.assert_converged(["over_time.a", "over_time.b", "hr.ra"])
    assert system.execute(
        "b", "SELECT count(*) FROM headrace.instantiation WHERE owner IN ('over_time', 'hr') AND state <> 'LEFT'"
    ) == [(3,)]


@pytest.mark.soak
def test_table_renamed_at_both_sites_continues_with_the_next_driver(system: Sites):
    for site in ("a", "b"):
        system.execute(site, "ALTER TABLE hr.ra RENAME TO ra2")
    system.execute("a", "INSERT INTO hr.ra2 VALUES (101, 'renamed')")
    system.assert_converged(["over_time.a", "over_time.b", "hr.ra2"])
    before = system.execute("b", "SELECT scn, identity FROM headrace.instantiation WHERE owner = 'hr'")
    system.call(APPLY, "stop_component")
    system.wait_state(APPLY, "DISABLED")
    system.execute("a", "INSERT INTO hr.ra2 VALUES (102, 'while it is stopped')")
    system.call(APPLY, "start_component")
    system.assert_converged(["over_time.a", "over_time.b", "hr.ra2"])
    assert system.execute("b", "SELECT name FROM headrace.instantiation WHERE owner = 'hr'") == [("ra2",)]
    assert system.execute("b", "SELECT scn, identity FROM headrace.instantiation WHERE owner = 'hr'") == before


def paused(system: Sites) -> dict[str, Any]:
    name = f"capture:{system.spec.captures[0].name}"
    return system.wait_state(name, "PAUSED: A TABLE LEFT THE RULES")


@pytest.mark.soak  # without Ray: tests/integration/actors/test_source_site.py
def test_table_renamed_out_of_its_rule_blocks_until_the_rules_know_it(system: Sites):
    scn = system.execute("b", "SELECT scn FROM headrace.instantiation WHERE name = 'b'")
    system.execute("a", "ALTER TABLE over_time.b RENAME TO b2")
    system.execute("a", "INSERT INTO over_time.b2 VALUES (300, 'renamed')")
    assert "over_time.b2" in paused(system)["detail"]
    wait_until("status says so", lambda: not is_healthy(system.deployment.overview()))
    with pytest.raises(NotCaughtUp, match="no rule takes"):
        wait_caught_up(system.spec, system.deployment.connect(), timeout_s=3.0, overview=system.deployment.overview)
    with pytest.raises(ApplyError, match="no rule takes"):
        verify_topology(
            system.spec,
            system.deployment.connect(),
            timeout_s=3.0,
            progress=lambda _: None,
            overview=system.deployment.overview,
        )
    system.execute("b", "ALTER TABLE over_time.b RENAME TO b2")
    up(system, "over_time.a, over_time.b2, hr.*")
    system.assert_converged(["over_time.a", "over_time.b2", "hr.ra"])
    assert system.execute("b", "SELECT scn FROM headrace.instantiation WHERE name = 'b2'") == scn  # not copied again


@pytest.mark.soak
def test_another_up_removes_a_table_that_was_renamed_away(system: Sites):
    system.execute("a", "ALTER TABLE over_time.b RENAME TO b_away")
    system.execute("a", "INSERT INTO over_time.b_away VALUES (301, 'nobody wants it')")
    paused(system)
    system.execute("a", "INSERT INTO over_time.a VALUES (301, 'waits behind it')")
    up(system)
    system.assert_converged(["over_time.a", "hr.ra"])
    assert system.execute("b", "SELECT count(*) FROM over_time.b WHERE id = 301") == [(0,)]


@pytest.mark.soak
def test_rename_out_of_the_rules_after_the_capture_process_also_blocks(system: Sites):
    """A propagation that drops the new name would lose rows, and positions would advance."""
    up(system, "over_time.a, hr.*", WIDE_CAPTURE)
    system.assert_converged(["over_time.a", "hr.ra"])
    state = "SELECT name, state, scn FROM headrace.instantiation WHERE owner = 'over_time' AND name LIKE 'a%'"
    ((_, _, scn),) = system.execute("b", state)
    system.execute("a", "ALTER TABLE over_time.a RENAME TO a9")
    system.execute("a", "INSERT INTO over_time.a9 VALUES (900, 'renamed')")
    system.execute("a", "INSERT INTO hr.ra VALUES (900, 'waits behind it')")
    detail = paused(system)["detail"]
    assert "over_time.a9" in detail
    assert "the way to apply_from_a_at_b" in detail
    wait_until("status says so", lambda: not is_healthy(system.deployment.overview()))
    system.execute("b", "ALTER TABLE over_time.a RENAME TO a9")
    up(system, "over_time.a9, hr.*", WIDE_CAPTURE)
    system.assert_converged(["over_time.a9", "hr.ra"])
    assert system.execute("b", state) == [("a9", "DONE", scn)]  # not copied again

    system.execute("a", "ALTER TABLE over_time.a9 RENAME TO gone")
    system.execute("a", "INSERT INTO over_time.gone VALUES (901, 'nobody wants it')")
    paused(system)
    up(system, "over_time.a9, hr.*", WIDE_CAPTURE)
    system.execute("a", "INSERT INTO hr.ra VALUES (901, 'after it')")
    system.assert_converged(["hr.ra"])
    assert system.execute("b", state) == [("a9", "LEFT", scn)]  # if it returns, it is copied again
