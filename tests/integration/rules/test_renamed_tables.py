"""Tables that are renamed on the way, on real servers: at the capture process, then at a propagation, then at the apply
process.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.databases.connectors import decoder_for, value_types
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.source.database import PostgresSource
from headrace.lcr.batch import LcrBatch
from headrace.lcr.table_name import TableName
from headrace.redo.mining.miner import Miner
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import RuleSet
from protos import apply_pb2 as pb
from spark_apply.apply_config import ApplyConfig, TableToInstantiate
from tests.support.apply.apply_driver import MinedQueue, end_of_log, wait_for
from tests.support.apply.driver_on_threads import WAIT_S, run_on_threads
from tests.support.databases.statements import execute
from tests.support.ways.postgres_network import two_sites
from topology.file.reading import read_topology
from topology.routing.ways import arriving, rules_at_the_end, ways_to
from topology.spec import TopologySpec

EXCHANGED = Path(__file__).parents[2] / "simulation" / "exchanged_names.yaml"

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

FILE = """
topology: renamed
state_dir: state
sites:
  dbs1: {database: {kind: postgres, dsn: "${SOURCE}"}}
  dbs2: {database: {kind: postgres, dsn: "${DESTINATION}"}}
queues: {q1: {site: dbs1}, q2: {site: dbs2}}
captures:
  c:
    site: dbs1
    source: dbs1
    queue: q1
    rules:
      include:
        - {table: public.employees, transform: [{delete_columns: [ssn]}, {rename_table: staff.people}]}
        - {table: public.jobs, transform: [{rename_schema: staff}]}
        - {table: "public.lo*", transform: [{rename_schema: staff}]}
propagations:
  p:
    from: q1
    to: q2
    rules:
      include: [{table: staff.people, transform: [{rename_table: crm.persons}]}, {table: staff.jobs}, {table: "staff.lo*"}]
      exclude: [{table: staff.lost}]
applies:
  a:
    site: dbs2
    source: dbs1
    queue: q2
    rules:
      include:
        - {table: crm.persons, subset: "region = 'eu'"}
        - {table: staff.jobs, transform: [{rename_column: {from: v, to: task}}, {rename_table: crm.tasks}]}
        - {table: staff.logs}
"""
NAMES = {"employees": "crm.persons", "jobs": "crm.tasks", "logs": "staff.logs"}
SHOWN = {
    "employees": (
        "SELECT to_jsonb(e) - 'ssn' FROM employees e WHERE region = 'eu'",
        "SELECT to_jsonb(p) FROM crm.persons p",
    ),
    "jobs": ("SELECT id, v FROM jobs", "SELECT id, task FROM crm.tasks"),
    "logs": ("SELECT id, v FROM logs", "SELECT id, v FROM staff.logs"),
}


class Propagated(Miner):
    """Mines, and sends the changes through the propagation's rules."""

    rules = RuleSet()

    def next_batch(self, *arguments: Any, **bounds: Any) -> LcrBatch | None:
        batch = super().next_batch(*arguments, **bounds)
        return None if batch is None else RuleEvaluation(self.rules, types=value_types()).filter(batch)


def prepare(source: str, destination: str) -> None:
    execute(
        source,
        "CREATE TABLE employees (id int PRIMARY KEY, ssn text, name text, region text); ALTER TABLE employees REPLICA"
        " IDENTITY FULL",
    )
    execute(source, "CREATE TABLE jobs (id int PRIMARY KEY, v text); CREATE TABLE lost (id int PRIMARY KEY)")
    execute(source, "CREATE TABLE logs (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    execute(
        source,
        "CREATE TABLE logs_low PARTITION OF logs FOR VALUES FROM (0) TO (100); CREATE TABLE logs_high PARTITION OF logs"
        " FOR VALUES FROM (100) TO (1000)",
    )
    execute(
        source,
        "INSERT INTO employees SELECT i, 'secret', 'n' || i, CASE WHEN i % 3 = 0 THEN 'us' ELSE 'eu' END FROM"
        " generate_series(1, 300) i",
    )
    execute(
        source,
        "INSERT INTO jobs SELECT i, 'v' FROM generate_series(1, 50) i; INSERT INTO logs SELECT i, 'x' FROM"
        " generate_series(50, 149) i; INSERT INTO lost VALUES (1)",
    )
    execute(destination, "CREATE SCHEMA crm; CREATE SCHEMA staff")
    execute(
        destination,
        "CREATE TABLE crm.persons (id int PRIMARY KEY, name text, region text); CREATE TABLE crm.tasks (id int PRIMARY"
        " KEY, task text)",
    )
    execute(destination, "CREATE TABLE staff.logs (id int PRIMARY KEY, v text)")


def configuration(spec: TopologySpec, queue: MinedQueue) -> ApplyConfig:
    """Return the configuration as the apply process's actor makes it."""
    source = PostgresSource(queue.source_dsn, site="dbs1")
    ways = ways_to(spec, spec.apply("a"))
    tables = tuple(
        TableToInstantiate(
            identity=each.source.identity,
            source=TableName.of(each.source),
            destination=TableName.of(each.destination),
            rows=each.rows,
            may_empty=True,
            object_numbers=tuple(map(int, each.source.object_numbers)),
            transformations=each.transformations,
        )
        for each in arriving(ways, source.captured(spec.name))
    )
    source.close()
    assert {each.source.name: str(each.destination) for each in tables} == NAMES
    return queue.config(tables, rules=rules_at_the_end(ways))


def write(dsn: str, first: int) -> None:
    execute(
        dsn,
        "INSERT INTO employees (id, name, region) SELECT i, 'new', CASE WHEN i % 2 = 0 THEN 'us' ELSE 'eu' END FROM"
        f" generate_series({first}, {first + 40}) i",
    )
    # rows move in and out
    execute(
        dsn,
        "UPDATE employees SET region = CASE region WHEN 'us' THEN 'eu' ELSE 'us' END, ssn = '!' WHERE id % 7 ="
        f" {first % 7}",
    )
    execute(dsn, f"UPDATE employees SET name = name || 'u', id = id + 100000 WHERE id % 11 = {first % 11}")
    execute(dsn, f"DELETE FROM employees WHERE id % 13 = {first % 13}")
    execute(
        dsn,
        f"INSERT INTO jobs SELECT i, 'w' FROM generate_series({first}, {first + 20}) i; UPDATE jobs SET v = v || 'u'"
        " WHERE id % 2 = 0; DELETE FROM jobs WHERE id % 5 = 0",
    )
    execute(
        dsn,
        "UPDATE logs SET v = v || 'u' WHERE id % 3 = 0; DELETE FROM logs WHERE id % 10 = 0; UPDATE lost SET id = id + 1",
    )


def both(source: str, destination: str, table: str) -> tuple[list[Any], list[Any]]:
    here, there = (
        sorted(map(repr, execute(dsn, query))) for dsn, query in zip((source, destination), SHOWN[table], strict=True)
    )
    return here, there


def compared(driver: Any) -> dict[str, bool]:
    found = {each.name: each for each in driver.control.compare(pb.CompareRequest(rechecks=0))}
    assert {name: f"{each.destination_owner}.{each.destination_name}" for name, each in found.items()} == NAMES
    assert [each.problem for each in found.values()] == [""] * len(found)
    return {name: each.equal for name, each in found.items()}


def test_renamed_table_is_copied_replicated_altered_compared_and_repaired(
    source_database: str, destination_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_on_threads(monkeypatch)
    file = tmp_path / "renamed.yaml"
    file.write_text(FILE)
    spec = read_topology(file, {"SOURCE": source_database, "DESTINATION": destination_database})
    prepare(source_database, destination_database)
    Propagated.rules = spec.propagation("p").rules
    queue = MinedQueue(
        tmp_path,
        source_database,
        destination_database,
        topology=spec.name,
        miner_for=lambda scn: Propagated(tmp_path / "redo", "dbs1", scn, spec.capture("c").rules, decoder_for),
    )
    config = configuration(spec, queue)

    def applied(driver: Any) -> None:
        end = end_of_log(source_database)
        wait_for("everything", lambda: driver.outcome() or driver.control.status().caught_up_scn >= end, WAIT_S)
        assert execute(destination_database, "SELECT * FROM headrace.apply_error") == []
        for table in NAMES:
            here, there = both(source_database, destination_database, table)
            assert here == there, table

    driver = queue.start_driver(config)
    try:

        def are_copied() -> bool:
            driver.outcome()
            return {t.state for t in driver.control.status().instantiation} == {"DONE"}

        wait_for("the copies", are_copied, WAIT_S)
        assert execute(destination_database, "SELECT count(*) FROM crm.persons") == [(200,)]
        write(source_database, 1000)
        applied(driver)
        driver.stop(5.0)
        driver.join(60.0)
        write(source_database, 2001)
        execute(
            source_database, "ALTER TABLE employees ADD grade int; UPDATE employees SET grade = id % 9 WHERE id % 4 = 0"
        )
        driver = queue.start_driver(config)

        def is_missing() -> bool:
            driver.outcome()
            return 'ALTER TABLE "crm"."persons"' in driver.control.status().hint

        wait_for("the missing column", is_missing, WAIT_S)
        execute(destination_database, "ALTER TABLE crm.persons ADD grade int")
        execute(source_database, "TRUNCATE jobs; INSERT INTO jobs VALUES (7, 'after'); TRUNCATE logs_low")
        write(source_database, 3002)
        applied(driver)
        assert execute(
            destination_database, "SELECT count(*) > 10, count(*) FILTER (WHERE grade IS NOT NULL) > 5 FROM crm.persons"
        ) == [(True, True)]
        assert execute(
            destination_database, "SELECT count(*) FILTER (WHERE id < 100), count(*) > 10 FROM staff.logs"
        ) == [(0, True)]
        assert compared(driver) == dict.fromkeys(NAMES, True)
        repair(source_database, destination_database, driver)
        execute(
            source_database,
            "TRUNCATE employees; INSERT INTO employees VALUES (1, 's', 'again', 'eu'), (2, 's', 'again', 'us')",
        )
        applied(driver)
    finally:
        driver.stop(5.0)
        driver.join(60.0)
        queue.close()
    driver.outcome()


def repair(source: str, destination: str, driver: Any) -> None:
    """A differing row is found, and gone after another copy."""
    execute(
        destination,
        "UPDATE crm.persons SET name = 'other' WHERE id = (SELECT min(id) FROM crm.persons); DELETE FROM crm.tasks"
        " WHERE id = 7",
    )
    assert compared(driver) == {"employees": False, "jobs": False, "logs": True}
    tables = [pb.TableName(owner="public", name=name) for name in ("employees", "jobs")]
    driver.control.copy_again(pb.CopyAgainRequest(tables=tables))
    wait_for(
        "the copies",
        lambda: (
            driver.outcome()
            or ({t.state for t in driver.control.status().instantiation} == {"DONE"} and all(compared(driver).values()))
        ),
        WAIT_S,
    )
    for table in NAMES:
        here, there = both(source, destination, table)
        assert here == there, table


def test_sites_with_different_names_for_a_table_exchange_users_changes(
    pg_source: EmbeddedServer,
    pg_destination: EmbeddedServer,
    fresh_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
) -> None:
    names = {"dbs1": "hr.t", "dbs2": "sales.u"}

    def tables(site: str, user: psycopg.Connection) -> None:
        user.execute(
            f"CREATE SCHEMA {names[site].partition('.')[0]}; CREATE TABLE {names[site]} (id int PRIMARY KEY, v"
            " text)".encode()
        )

    rng = random.Random(5)
    with two_sites(EXCHANGED, (pg_source, pg_destination), fresh_database, tmp_path, tables) as network:
        for step in range(30):
            site = rng.choice(list(names))
            user, table = network.sites[site].user, names[site]
            first = (step + 1) * 100
            user.execute(
                f"INSERT INTO {table} SELECT i, '{site}' FROM generate_series({first}, {first + rng.randrange(9)}) i".encode()
            )
            user.execute(
                f"UPDATE {table} SET v = v || '{step}', id = id + CASE WHEN id % 10 = 3 THEN 50000 ELSE 0 END WHERE id"
                f" % 7 = {step % 7}".encode()
            )
            user.execute(f"DELETE FROM {table} WHERE id % 11 = {step % 11}".encode())
            if rng.random() < 0.1:
                user.execute(f"TRUNCATE {table}".encode())
            network.settle()  # one at a time, so nothing conflicts
            here, there = (
                sorted(network.sites[each].user.execute(f"SELECT * FROM {name}".encode()).fetchall())
                for each, name in names.items()
            )
            assert here == there, step
        assert len(here) > 10
        assert [
            network.sites[site].user.execute("SELECT count(*) FROM headrace.apply_error").fetchone() for site in names
        ] == [(0,), (0,)]
