"""Many to many on real databases, with the topology's queues and propagations: two sources, and two destinations that
take the changes of both.

Tested with every queue, with apply processes that dequeue directly, and with edits from one to the other while a
destination is away. Without Ray and Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from tests.support.session.matrices import cases
from tests.support.topologies.files import read
from tests.support.ways.queued_network import QueuedNetwork
from topology.spec import TopologySpec

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

SOURCES, DESTINATIONS = ("dbs1", "dbs2"), ("dbs3", "dbs4")
TOPOLOGY = """
topology: many
sites:
  dbs1: {database: {kind: embedded}}
  dbs2: {database: {kind: embedded}}
  dbs3: {database: {kind: embedded}}
  dbs4: {database: {kind: embedded}}
queues: {q1: {site: dbs1}, q2: {site: dbs2}, q3: {site: dbs3}, q4: {site: dbs4}}
captures:
  c1: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{schema: app}]}}
  c2: {site: dbs2, source: dbs2, queue: q2, rules: {include: [{schema: app}]}}
propagations: {p13: {from: q1, to: q3}, p14: {from: q1, to: q4}, p23: {from: q2, to: q3}, p24: {from: q2, to: q4}}
applies:
  a13: {site: dbs3, source: dbs1, queue: q3}
  a23: {site: dbs3, source: dbs2, queue: q3}
  a14: {site: dbs4, source: dbs1, queue: q4}
  a24: {site: dbs4, source: dbs2, queue: q4}
"""
AWAY = ("a14", "a24")
ROWS = 30


def queued(spec: TopologySpec) -> TopologySpec:
    """Return the same topology with `combined: never`."""
    return replace(spec, applies=tuple(replace(each, combined=False) for each in spec.applies))


@pytest.fixture
def direct(tmp_path: Path) -> TopologySpec:
    return read(tmp_path, TOPOLOGY)


Make = Callable[[TopologySpec], QueuedNetwork]


@pytest.fixture
def make(
    pg_source: EmbeddedServer,
    pg_destination: EmbeddedServer,
    prepared_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
) -> Iterator[Make]:
    made: list[QueuedNetwork] = []

    def tables(_: str, connection: psycopg.Connection) -> None:
        connection.execute(
            "CREATE SCHEMA app; CREATE TABLE app.t (id bigint PRIMARY KEY, site text, version int NOT NULL)"
        )

    def build(spec: TopologySpec) -> QueuedNetwork:
        dsns = {
            site: prepared_database((pg_source, pg_destination)[number % 2])
            for number, site in enumerate((*SOURCES, *DESTINATIONS))
        }
        made.append(QueuedNetwork(spec, dsns, tmp_path, tables))
        return made[-1]

    yield build
    for each in made:
        each.close()


def write(network: QueuedNetwork, turn: int) -> None:
    """Write rows at both sources; change every second one, and delete every third of the earlier ones."""
    for number, site in enumerate(SOURCES):
        user = network.sites[site].user
        user.execute(
            f"INSERT INTO app.t SELECT n * 10 + {number}, '{site}', 0 FROM generate_series({turn * ROWS},"
            f" {turn * ROWS + ROWS - 1}) n"
        )
        user.execute(
            f"UPDATE app.t SET version = version + 1 WHERE id / 10 % 2 = 0 AND id / 10 >= {turn * ROWS - ROWS // 2}"
        )
        user.execute(f"DELETE FROM app.t WHERE id / 10 % 3 = 0 AND id / 10 < {turn * ROWS}")


def rows(network: QueuedNetwork, site: str) -> list[tuple[Any, ...]]:
    return network.sites[site].user.execute("SELECT * FROM app.t ORDER BY id").fetchall()


def assert_once(network: QueuedNetwork) -> None:
    """Check that both destinations have the rows of both sources, without duplicates, and that no change is held
    anywhere.
    """
    expected = sorted(row for site in SOURCES for row in rows(network, site))
    for site in DESTINATIONS:
        assert rows(network, site) == expected
    found = {apply: int(str(engine.coordinator.status()["total_rows"])) for apply, engine in network.engines.items()}
    assert (found["a13"], found["a23"]) == (found["a14"], found["a24"])
    for apply in network.spec.applies:
        assert network.engines[apply.name].reader.statistics.rows_applied_before == 0
        assert network.sites[apply.site].destination.errors(network.spec.name, apply.name) == ()
    network.wait_forgotten()


@pytest.mark.parametrize("form", cases({"queues": queued, "direct": lambda spec: spec}, {"direct"}))
def test_every_change_of_both_sources_reaches_both_destinations_once(
    make: Make, direct: TopologySpec, form: Callable[[TopologySpec], TopologySpec]
) -> None:
    network = make(form(direct))
    assert (network.readers("q1"), network.readers("q4")) in [({"p13", "p14"}, {"a14", "a24"}), ({"a13", "a14"}, set())]
    for turn in range(3):
        write(network, turn)
        network.settle()
    assert_once(network)


@pytest.mark.parametrize("is_direct", cases({"from direct": True, "from queues": False}, {"from queues"}))
def test_edits_between_queued_and_direct_dequeuing_lose_nothing(
    make: Make, direct: TopologySpec, *, is_direct: bool
) -> None:
    forms = [direct, queued(direct)] if is_direct else [queued(direct), direct]
    network = make(forms[0])
    write(network, 0)
    network.settle()
    for turn in range(1, 5):
        write(network, turn)
        network.settle(held=AWAY)
        network.wait_acknowledged("a13", "a23")  # a new subscriber must not begin at their position
        network.run_by(forms[turn % 2])
        write(network, 10 + turn)
        network.settle(held=AWAY if turn % 2 else ())
        assert turn % 2 == (rows(network, "dbs4") != rows(network, "dbs3")), "it was not away"
    network.settle()
    assert_once(network)
