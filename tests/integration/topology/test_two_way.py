"""Two sites that both write: converged, each change once, none sent back, with TLS on every kind of link."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.base.errors import ApplyError, PropagationError
from headrace.deployment.inspection import check_topology, plan_topology
from headrace.rules.rule import ANY_TAG
from protos.links.redo_link import RedoWatchClient
from tests.support.clusters.faults import delete_errors
from tests.support.clusters.sites import IDLE_BETWEEN, Sites
from tests.support.clusters.system import System, wait_until
from tests.support.session.background import in_background
from tests.support.wire.secrets import places_with
from topology.spec import TopologySpec

pytestmark = [pytest.mark.unit("sites", order=1), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

BACK_S = 90.0  # longer than a comparison waits for a marker
TWO_WAY = "replicate: [{tables: [sales.*], between: [a, b]}]"


@pytest.fixture
def two_way(sites: Sites) -> Sites:
    """Both sites write into an empty table. One way is combined and the other one uses queues; no file can configure
    this for one way alone.
    """

    def queued(spec: TopologySpec) -> TopologySpec:
        combined, other = spec.applies
        return replace(spec, applies=(combined, replace(other, combined=False)))

    sites.free("sales", idle=IDLE_BETWEEN)  # both keep their Spark applications
    sites.remake("sales", "CREATE TABLE stock (id bigint PRIMARY KEY, amount int)")
    system = sites.by(TWO_WAY, change=queued)
    system.up()
    return system


def _returned(system: System) -> int:
    return sum(system.status(f"apply:{apply.name}")["counters"]["returned_changes"] for apply in system.spec.applies)


def _answered_us(system: System) -> int:
    return min(int(system.status(f"apply:{apply.name}")["answered_us"]) for apply in system.spec.applies)


def _assert_encrypted(system: System) -> None:
    """Check that each serving component uses TLS, has refused no one so far, and refuses a caller without a
    certificate.
    """
    wires = {each["name"]: each["wire"] for each in system.wait_overview()["components"] if "wire" in each}
    assert {name.partition(":")[0] for name in wires} == {"site", "queue", "capture", "apply", "spark"}
    assert {wire["tls"] for wire in wires.values()} == {True}
    assert {name: wire["last_refusal"] for name, wire in wires.items() if wire["refused_calls"]} == {}
    # their endpoints are private
    servers = [name for name in wires if not name.startswith(("apply", "spark"))]
    for name in servers:
        stranger = RedoWatchClient(
            system.call(name, "endpoint"), topology=system.spec.name, capture="anyone", source="a", incarnation="1"
        )
        with contextlib.closing(stranger), pytest.raises(PropagationError):
            stranger.connect()
    # Only after the time of a handshake: all of them at once.
    wait_until(
        "they are counted",
        lambda: all(
            system.status(name)["wire"]["refused_connections"] > wires[name]["refused_connections"] for name in servers
        ),
    )


def _assert_keys_nowhere(system: System) -> None:
    """Check that the content of the private keys is in no other file and in no process list."""
    cluster = system.deployment.cluster
    facts = cluster.facts()
    assert facts is not None
    for site in system.spec.sites:
        assert site.tls is not None
        line = site.tls.key.read_text().splitlines()[1]
        assert places_with(line, [system.spec.state_dir, cluster.state_dir / "logs", Path(facts.temporary)]) == []
        assert places_with(line, [system.folder]) == [str(site.tls.key)]


def test_changes_of_both_sites_arrive_once_and_none_returns(two_way: Sites):
    for number, site in enumerate(("a", "b")):
        two_way.execute(site, f"INSERT INTO sales.stock SELECT n * 2 + {number}, 0 FROM generate_series(1, 200) n")
    two_way.wait_caught_up()
    for number, site in enumerate(("a", "b")):
        for _ in range(3):
            two_way.execute(site, f"UPDATE sales.stock SET amount = amount + 1 WHERE id % 2 = {number}")
    two_way.assert_converged(["sales.stock"])
    assert two_way.execute("a", "SELECT count(*), min(amount), max(amount) FROM sales.stock") == [(400, 3, 3)]
    since = time.time_ns() // 1000
    wait_until("their drivers were asked after that", lambda: _answered_us(two_way) > since)
    assert _returned(two_way) == 0
    _assert_encrypted(two_way)
    _assert_keys_nowhere(two_way)


@pytest.mark.soak  # without Ray: tests/unit/spark_apply/copy/test_catching_up.py
def test_change_that_returns_after_all_looks_is_in_flight_not_a_difference(two_way: Sites):
    two_way.execute("a", "INSERT INTO sales.stock SELECT n, 0 FROM generate_series(1, 5) n")
    two_way.wait_caught_up()
    apply = next(each.name for each in two_way.spec.applies if each.source == "a")
    found: list[dict[str, Any]] = []

    def compare() -> None:
        found.extend(two_way.call(f"apply:{apply}", "compare", (("sales", "stock"),), 5, 0.1, timeout_s=BACK_S))

    with two_way.connection("a") as holding:
        # Not autocommit: changes from b wait until this ends.
        holding.autocommit = False
        holding.execute("SELECT FROM sales.stock WHERE id = 3 FOR UPDATE")
        two_way.execute("b", "UPDATE sales.stock SET amount = 7 WHERE id = 3")
        comparing = threading.Thread(target=compare)
        comparing.start()
        comparing.join(5.0)
        assert not found, "the comparison must not judge the row before it has returned"
        holding.rollback()
    comparing.join(BACK_S)
    (answer,) = found
    assert (answer["equal"], answer["problem"], answer["differences"]) == (True, "", [])
    two_way.assert_converged(["sales.stock"])


@contextlib.contextmanager
def users_of(system: Sites, table: str, site: str, *, first: int = 10_000) -> Iterator[list[int]]:
    """Run a user who inserts rows without a pause, from a number on; the list has the committed ones."""
    committed: list[int] = []

    def insert(stop: threading.Event) -> None:
        with system.connection(site) as connection:
            while not stop.is_set():
                number = first + len(committed)
                connection.execute(f"INSERT INTO {table} VALUES ({number}, 0)")
                committed.append(number)
                stop.wait(0.01)

    with in_background(insert):
        yield committed


def test_one_way_becomes_two_ways_under_load_by_up_alone(sites: Sites):
    """Covers tables that the first way has copied, tables with rows at one site alone, and tables that differ."""
    sites.free("depot", idle=IDLE_BETWEEN)
    sites.remake(
        "depot",
        "CREATE TABLE parts (id bigint PRIMARY KEY, amount int); CREATE TABLE crates (LIKE parts INCLUDING ALL); CREATE"
        " TABLE tins (LIKE parts INCLUDING ALL)",
    )
    for table in ("parts", "crates"):
        sites.execute("a", f"INSERT INTO depot.{table} SELECT n, 0 FROM generate_series(1, 1000) n")
    sites.by("replicate: [{tables: [depot.parts], from: a, to: [b]}]").up()
    two_ways = sites.by("replicate: [{tables: [depot.parts, depot.crates], between: [a, b]}]")
    with users_of(two_ways, "depot.parts", "a") as committed:
        two_ways.up()
    for number, site in enumerate(("a", "b")):
        for table in ("parts", "crates"):
            two_ways.execute(
                site,
                f"UPDATE depot.{table} SET amount = amount + 1 WHERE id % 2 = {number} AND id <= 1000; INSERT INTO"
                f" depot.{table} VALUES ({2000 + number}, 0)",
            )
    two_ways.assert_converged(["depot.parts", "depot.crates"])
    assert two_ways.execute("b", "SELECT count(*), sum(amount) FROM depot.parts") == [(1002 + len(committed), 1000)]
    assert two_ways.execute("a", "SELECT count(*), sum(amount) FROM depot.crates") == [(1002, 1000)]

    for site in ("a", "b"):  # the same rows, loaded by hand
        two_ways.execute(site, "INSERT INTO depot.tins SELECT n, 0 FROM generate_series(1, 100) n")
    system = sites.by("replicate: [{tables: [depot.*], between: [a, b]}]")
    system.last[:] = [system.deployment]
    with pytest.raises(ApplyError) as refused:
        system.deployment.up()
    assert "other sites get their rows from here: delete none of them" in refused.value.message
    assert "`headrace up --keep-existing`" in refused.value.message
    assert "empty it" not in refused.value.message
    system.up(keep_existing=True)
    for number, site in enumerate(("a", "b")):
        system.execute(site, f"UPDATE depot.tins SET amount = amount + 1 WHERE id % 2 = {number}")
    system.assert_converged(["depot.tins"])
    assert system.execute("b", "SELECT count(*), sum(amount) FROM depot.tins") == [(100, 100)]


@pytest.mark.soak
def test_one_way_becomes_a_hub_and_reverts_under_load_by_up_alone(sites: Sites):
    """The site with the rows becomes the hub of its former copy and of an empty site. No finding is shown, and no row
    is deleted.
    """
    one_way, three = "replicate: [{tables: [depot.parts], from: a, to: [b]}]", ("a", "b", "c")
    sites.free("depot", idle=IDLE_BETWEEN)
    sites.by("replicate: [{tables: [depot.parts], hub: a, spokes: [b, c]}]", sites=three)  # its server runs
    sites.remake("depot", "CREATE TABLE parts (id bigint PRIMARY KEY, amount int)", sites=three)
    sites.execute("a", "INSERT INTO depot.parts SELECT n, 0 FROM generate_series(1, 1000) n")
    sites.by(one_way).up()
    hub = sites.by("replicate: [{tables: [depot.parts], hub: a, spokes: [b, c]}]", sites=three)
    with users_of(hub, "depot.parts", "a") as committed:
        found = check_topology(hub.file, ask_databases=True).findings
        assert [finding for finding in found if finding.is_error] == []
        said = plan_topology(hub.file, ask_databases=True).as_text().partition("Rows that stay as they are\n")[2]
        assert said.startswith("  at a, b has a copy of them: depot.parts\n")
        assert "  at a, c has none: depot.parts\n" in said
        hub.up()
        for number, site in enumerate(three):
            hub.execute(site, f"UPDATE depot.parts SET amount = amount + 1 WHERE id % 3 = {number} AND id <= 1000")
            hub.execute(site, f"INSERT INTO depot.parts VALUES ({2000 + number}, 0)")
    hub.assert_converged(["depot.parts"])
    expected = [(1003 + len(committed), 1000)]
    for site in three:
        assert hub.execute(site, "SELECT count(*), sum(amount) FROM depot.parts") == expected

    back = sites.by(one_way)
    with users_of(back, "depot.parts", "a", first=500_000) as more:
        back.up()
        back.execute("a", "UPDATE depot.parts SET amount = amount + 1 WHERE id <= 1000")
    back.assert_converged(["depot.parts"])
    assert back.execute("b", "SELECT count(*), sum(amount) FROM depot.parts") == [
        (1003 + len(committed) + len(more), 2000)
    ]


@contextlib.contextmanager
def counting_users(system: Sites, table: str, site: str, keys: Sequence[int], *, first: int) -> Iterator[list[int]]:
    """Run a user who, when the site has the table, counts in its own rows and inserts others without a pause.

    The list has 1 for each count, and 0 for each inserted row.
    """
    committed: list[int] = []

    def is_recorded(connection: psycopg.Connection[Any]) -> bool:
        prepared = connection.execute("SELECT to_regclass('headrace.instantiation') IS NOT NULL").fetchone()
        query = "SELECT FROM headrace.instantiation WHERE name = 'parts' AND state IN ('JOINING', 'DONE', 'KEPT')"
        return prepared == (True,) and connection.execute(query).fetchone() is not None

    def write(stop: threading.Event) -> None:
        with system.connection(site) as connection:
            while not is_recorded(connection) and not stop.is_set():
                stop.wait(0.05)
            while not stop.is_set():
                key = keys[len(committed) % len(keys)]
                found = connection.execute(f"UPDATE {table} SET amount = amount + 1 WHERE id = {key}".encode())
                connection.execute(f"INSERT INTO {table} VALUES ({first + len(committed)}, 0)".encode())
                committed.append(found.rowcount)
                stop.wait(0.01)

    with in_background(write):
        yield committed


def _assert_counted(system: Sites, users: Sequence[Sequence[int]]) -> None:
    """Check that each inserted row and each count is at every site once."""
    expected = [(1000 + sum(map(len, users)), sum(map(sum, users)))]
    for site in ("a", "b", "c"):
        assert system.execute(site, "SELECT count(*), sum(amount) FROM depot.parts") == expected, site


@pytest.mark.soak  # without Ray: tests/integration/spark_apply/copy/test_both_ways.py
def test_site_joins_two_writing_sites_under_load_by_up_alone(sites: Sites):
    three = ("a", "b", "c")
    sites.free("depot", idle=IDLE_BETWEEN)
    sites.by("replicate: [{tables: [depot.parts], between: [a, b, c]}]", sites=three)
    sites.remake("depot", "CREATE TABLE parts (id bigint PRIMARY KEY, amount int)", sites=three)
    sites.execute("a", "INSERT INTO depot.parts SELECT n, 0 FROM generate_series(1, 1000) n")
    two = sites.by("replicate: [{tables: [depot.parts], between: [a, b]}]")
    two.up()
    two.wait_caught_up()
    all_of_them = sites.by("replicate: [{tables: [depot.parts], between: [a, b, c]}]", sites=three)
    found = check_topology(all_of_them.file, ask_databases=True).findings
    assert [finding for finding in found if finding.is_error] == []
    with (
        counting_users(two, "depot.parts", "a", range(3, 1000, 3), first=100_000) as at_a,
        counting_users(two, "depot.parts", "b", range(1, 1000, 3), first=200_000) as at_b,
        counting_users(all_of_them, "depot.parts", "c", range(2, 1000, 3), first=300_000) as at_c,
    ):
        all_of_them.up()
        wait_until("users of all sites have written for a while", lambda: min(map(len, (at_a, at_b, at_c))) > 50)
    all_of_them.assert_converged(["depot.parts"])
    _assert_counted(all_of_them, [at_a, at_b, at_c])


@pytest.mark.soak
def test_full_site_fills_two_others_under_load_when_all_three_write(sites: Sites):
    three = ("a", "b", "c")
    sites.free("depot", idle=IDLE_BETWEEN)
    system = sites.by("replicate: [{tables: [depot.parts], between: [a, b, c]}]", sites=three)
    sites.remake("depot", "CREATE TABLE parts (id bigint PRIMARY KEY, amount int)", sites=three)
    sites.execute("a", "INSERT INTO depot.parts SELECT n, 0 FROM generate_series(1, 1000) n")
    with (
        counting_users(system, "depot.parts", "a", range(3, 1000, 3), first=100_000) as at_a,
        counting_users(system, "depot.parts", "b", range(1, 1000, 3), first=200_000) as at_b,
        counting_users(system, "depot.parts", "c", range(2, 1000, 3), first=300_000) as at_c,
    ):
        system.up()
        wait_until("users of all sites have written for a while", lambda: min(map(len, (at_a, at_b, at_c))) > 50)
    system.assert_converged(["depot.parts"])
    _assert_counted(system, [at_a, at_b, at_c])


@pytest.mark.soak
def test_rules_that_take_tagged_changes_send_them_back_and_count_it(two_way: Sites):
    """No file can configure this, and `check` would refuse it."""
    spec = two_way.spec
    captures = tuple(
        replace(c, rules=replace(c.rules, include=tuple(replace(rule, tags=ANY_TAG) for rule in c.rules.include or ())))
        for c in spec.captures
    )
    two_way.deployment.spec = replace(spec, captures=captures)
    two_way.up()
    two_way.execute("a", "INSERT INTO sales.stock SELECT 1000 + n, 0 FROM generate_series(1, 50) n")
    two_way.wait_caught_up()
    two_way.wait_caught_up()  # b's applied changes have returned to a by now
    # a status may be half a second old
    wait_until("the changes that came home are counted", lambda: _returned(two_way) >= 50)
    for apply in spec.applies:
        delete_errors(two_way, f"apply:{apply.name}")  # the returned rows already existed
