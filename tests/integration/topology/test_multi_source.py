"""Every multi-source form of the examples on real databases, with writes at every site that writes.

The sums of the rows that apply processes received reveal each duplicate, returning or lost change. Without Ray and
Spark: one process steps the real log writers, miners, rules and apply engines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.rules.rule import RuleSet
from tests.support.session.matrices import values
from tests.support.topologies.files import example
from tests.support.ways.postgres_network import PostgresNetwork
from topology.spec import TopologySpec

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

ROWS = 40  # at each writer; every second one is updated, every fourth one deleted
CHANGES = ROWS + ROWS // 2 + ROWS // 4
ONE, TWO, THREE, FOUR = SITES = ("dbs1", "dbs2", "dbs3", "dbs4")
Ways = Mapping[tuple[str, str], tuple[str, ...]]


@dataclass(frozen=True)
class Form:
    """One schema of an example: the sites that have it and write it, and from site to site, whose changes go that way."""

    example: str
    schema: str
    holders: tuple[str, ...]
    writers: tuple[str, ...]
    ways: Ways


_HUB: Ways = {(spoke, ONE): (spoke,) for spoke in (TWO, THREE, FOUR)} | {
    (ONE, spoke): tuple(site for site in SITES if site != spoke) for spoke in (TWO, THREE, FOUR)
}
N_WAY = Form("n_way", "crm", SITES[:3], SITES[:3], {(a, b): (a,) for a in SITES[:3] for b in SITES[:3] if a != b})
HUB = Form("hub_and_spoke", "stock", SITES, SITES, _HUB)
FORMS = (
    N_WAY,
    HUB,
    replace(HUB, example="hub_and_spoke_explicit"),
    Form(
        "extended_secondaries",
        "prices",
        SITES,
        SITES,
        {
            (ONE, TWO): (ONE,),
            (TWO, ONE): (TWO, THREE, FOUR),
            (THREE, TWO): (THREE,),
            (FOUR, TWO): (FOUR,),
            (TWO, THREE): (ONE, TWO, FOUR),
            (TWO, FOUR): (ONE, TWO, THREE),
        },
    ),
    Form("several_sources", "sales_north", (ONE, THREE), (ONE,), {(ONE, THREE): (ONE,)}),
    Form("several_sources", "sales_south", (TWO, THREE), (TWO,), {(TWO, THREE): (TWO,)}),
    Form("fan_out", "catalog", SITES, (ONE,), {(ONE, site): (ONE,) for site in (TWO, THREE, FOUR)}),
    Form("relay", "news", (ONE, THREE, FOUR), (ONE,), {(ONE, site): (ONE,) for site in (THREE, FOUR)}),
)
EXAMPLE_NAMES = tuple(dict.fromkeys(form.example for form in FORMS))

Network = Callable[[TopologySpec], PostgresNetwork]


@pytest.fixture
def network(
    pg_source: EmbeddedServer,
    pg_destination: EmbeddedServer,
    prepared_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
) -> Iterator[Network]:
    """Return a function that makes the network of a topology; its databases alternate between two servers."""
    made: list[PostgresNetwork] = []

    def tables(site: str, connection: psycopg.Connection) -> None:
        for form in FORMS:
            if site in form.holders:
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {form.schema}")
                connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {form.schema}.items (id bigint PRIMARY KEY, site text, version int NOT"
                    " NULL)"
                )

    def build(spec: TopologySpec) -> PostgresNetwork:
        dsns = {
            site.name: prepared_database((pg_source, pg_destination)[number % 2])
            for number, site in enumerate(spec.sites)
            if site.database.kind != "none"
        }
        made.append(PostgresNetwork(spec, dsns, tmp_path, tables))
        return made[-1]

    yield build
    for each in made:
        each.close()


def write(network: PostgresNetwork, form: Form) -> None:
    table = f"{form.schema}.items"
    for number, site in enumerate(form.writers):
        user = network.sites[site].user
        user.execute(f"INSERT INTO {table} SELECT n * 10 + {number}, '{site}', 0 FROM generate_series(1, {ROWS}) n")
        user.execute(f"UPDATE {table} SET version = version + 1 WHERE site = '{site}' AND id / 10 % 2 = 0")
        user.execute(f"DELETE FROM {table} WHERE site = '{site}' AND id / 10 % 4 = 0")


def rows(network: PostgresNetwork, site: str, table: str, where: str = "true") -> list[tuple[Any, ...]]:
    return network.sites[site].user.execute(f"SELECT * FROM {table} WHERE {where} ORDER BY id").fetchall()


@pytest.mark.parametrize("name", values(EXAMPLE_NAMES, "n_way", "hub_and_spoke"))
def test_every_change_reaches_every_site_once_and_none_returns(network: Network, name: str) -> None:
    spec, forms = example(name), [form for form in FORMS if form.example == name]
    running = network(spec)
    for _ in range(2):  # the second round adds to the others' changes
        for form in forms:
            write(running, form)
        running.settle()
        for form in forms:
            first, *others = (rows(running, site, f"{form.schema}.items") for site in form.holders)
            assert len(first) == (ROWS - ROWS // 4) * len(form.writers)
            assert all(other == first for other in others)
            for site in form.writers:
                running.sites[site].user.execute(
                    f"UPDATE {form.schema}.items SET id = id + 100000 WHERE site = '{site}' AND id < 100000"
                )
        running.settle()
        for form in forms:
            for site in form.writers:
                running.sites[site].user.execute(f"DELETE FROM {form.schema}.items WHERE site = '{site}'")
        running.settle()

    per_round = CHANGES + 2 * (ROWS - ROWS // 4)
    expected: Counter[tuple[str, str]] = Counter()
    for form in forms:
        for way, origins in form.ways.items():
            expected[way] += 2 * per_round * len(origins)
    found: Counter[tuple[str, str]] = Counter()
    applied: Counter[tuple[str, str]] = Counter()
    for apply in spec.applies:
        engine = running.engines[apply.name]
        found[apply.source, apply.site] += engine.reader.statistics.rows
        applied[apply.source, apply.site] += int(str(engine.coordinator.status()["total_rows"]))
        assert engine.reader.statistics.returned_changes == 0
        assert engine.reader.statistics.rows_applied_before == 0
        assert running.sites[apply.site].destination.errors(spec.name, apply.name) == ()
    assert found == expected
    assert applied == expected


def test_hub_rules_without_tags_send_changes_back_and_count_it(network: Network) -> None:
    """A planted defect, which the sums above would show.

    Sites that conflict would hide it, so only insertions are made.
    """
    spec = example("hub_and_spoke")
    forgetful = replace(spec, propagations=tuple(replace(each, rules=RuleSet()) for each in spec.propagations))
    running = network(forgetful)
    running.sites[TWO].user.execute("INSERT INTO stock.items SELECT n, 'dbs2', 0 FROM generate_series(1, 10) n")
    running.settle()
    returned = {name: engine.reader.statistics.returned_changes for name, engine in running.engines.items()}
    assert returned.pop("apply_from_dbs1_at_dbs2") == 10
    assert set(returned.values()) == {0}


def test_concurrent_inserts_of_one_key_are_errors_where_they_meet(network: Network) -> None:
    """n-way without a conflict handler: each of the two sites rejects the other's transaction, the third site rejects
    the later one.
    """
    spec = example("n_way")
    running = network(spec)
    names = [apply.name for apply in spec.applies]
    for number, site in enumerate((ONE, TWO)):
        with running.sites[site].user.transaction():
            running.sites[site].user.execute("INSERT INTO crm.items VALUES (1, %s, 0)", (site,))
            running.sites[site].user.execute("INSERT INTO crm.items VALUES (%s, %s, 0)", (2 + number, site))
    running.settle(held=names)
    running.settle()
    errors = {
        (apply.source, apply.site): running.sites[apply.site].destination.errors(spec.name, apply.name)
        for apply in spec.applies
    }
    assert {way for way, found in errors.items() if found and way[1] != THREE} == {(ONE, TWO), (TWO, ONE)}
    (later,) = (way[0] for way, found in errors.items() if found and way[1] == THREE)
    earlier = TWO if later == ONE else ONE
    assert all(error.row_count == 2 for found in errors.values() for error in found)
    own = {ONE: [(1, ONE, 0), (2, ONE, 0)], TWO: [(1, TWO, 0), (3, TWO, 0)]}
    assert rows(running, ONE, "crm.items") == own[ONE]
    assert rows(running, TWO, "crm.items") == own[TWO]
    assert rows(running, THREE, "crm.items") == own[earlier]


def test_users_tag_keeps_one_change_local_and_the_next_transaction_leaves(network: Network) -> None:
    running = network(example("n_way"))
    user = running.sites[ONE].user
    with user.transaction():
        user.execute("SELECT headrace.set_tag('0b')")
        user.execute("INSERT INTO crm.items VALUES (1, 'here', 0)")
    user.execute("INSERT INTO crm.items VALUES (2, 'everywhere', 0)")
    running.settle()
    assert [row[0] for row in rows(running, ONE, "crm.items")] == [1, 2]
    assert [row[0] for row in rows(running, TWO, "crm.items")] == [2]
    assert [row[0] for row in rows(running, THREE, "crm.items")] == [2]
