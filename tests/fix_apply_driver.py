"""A Ray for the session, and Spark drivers of apply processes on it.

Each module has one pair of databases and its mined queue.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from actors.cluster.local import LocalCluster
from actors.hosting.runtime import disconnect, prepare_process
from headrace.databases.embedded.servers import EmbeddedServer
from tests.support.apply.apply_driver import ApplyDrivers, MinedQueue, SparkProcess
from tests.support.clusters.system import system_folder
from tests.support.databases.statements import execute
from tests.support.session.reporting import note_started
from tests.support.session.shared import Shared

_TABLES = """
CREATE TABLE accounts (id integer PRIMARY KEY, balance bigint NOT NULL, note text);
CREATE TABLE branches (id integer PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE history (number bigint, client integer, delta integer, at timestamptz DEFAULT now());
CREATE TABLE notes (id integer PRIMARY KEY, body text);
ALTER TABLE history REPLICA IDENTITY FULL
"""
_ROWS = """
INSERT INTO accounts SELECT i, 0, repeat(md5(i::text), 4) FROM generate_series(1, 20000) i;
INSERT INTO branches SELECT i, 0 FROM generate_series(1, 3) i
"""
TABLES = ("accounts", "branches", "history", "notes")


def _open_ray(stack: ExitStack, _: pytest.Config) -> LocalCluster:
    folder = stack.enter_context(system_folder("ray"))
    cluster = LocalCluster(folder)
    stack.callback(cluster.stop)
    note_started("Ray")
    cluster.start()
    stack.callback(disconnect)  # Ray ends a process that lost its head node
    return cluster


def address_of(cluster: LocalCluster) -> str:
    """Return the address of a private Ray, to which this process can connect."""
    address = cluster.address()
    assert address is not None
    prepare_process(address, cluster.client_environment())
    return address


def _open_spark(stack: ExitStack, config: pytest.Config) -> SparkProcess:
    spark = SparkProcess(RAY.keep(config), stack.enter_context(system_folder("spark")))
    stack.callback(spark.child.end)
    spark.start()
    return spark


RAY, SPARK = Shared(_open_ray), Shared(_open_spark)


@pytest.fixture(scope="module")
def ray_cluster(pytestconfig: pytest.Config) -> LocalCluster:
    """A running private Ray for the modules of a unit."""
    return RAY.keep(pytestconfig)


@pytest.fixture(scope="module")
def ray_address(ray_cluster: LocalCluster) -> str:
    """The address of that Ray, for a module's own topology; this process can connect to it."""
    return address_of(ray_cluster)


@pytest.fixture(scope="module")
def spark_process(pytestconfig: pytest.Config) -> SparkProcess:
    """The only Spark application, for every apply process under test."""
    return SPARK.keep(pytestconfig)


@pytest.fixture(scope="module")
def make_drivers(
    spark_process: SparkProcess,
    pg_source: EmbeddedServer,
    pg_destination: EmbeddedServer,
) -> Iterator[Callable[[str], ApplyDrivers]]:
    """Make a source and a destination with the same tables, filled at the source; return what starts drivers on them."""
    # Not at the top: it is a separate plugin, which pytest must load first.
    from tests.fix_postgres import drop_database

    folder = Path(tempfile.mkdtemp(prefix="headrace-test-apply-"))
    made: list[tuple[ApplyDrivers, str, str]] = []

    def make(topology: str) -> ApplyDrivers:
        names = [f"{topology}_{role}" for role in ("source", "destination")]
        for server, name in zip((pg_source, pg_destination), names, strict=True):
            execute(server.dsn(), f"CREATE DATABASE {name}")
        source, destination = pg_source.dsn(names[0]), pg_destination.dsn(names[1])
        for dsn in (source, destination):
            execute(dsn, _TABLES)
        execute(source, _ROWS)
        queue = MinedQueue(folder / topology, source, destination, topology=topology)
        drivers = ApplyDrivers(spark_process, queue, folder / topology, TABLES)
        made.append((drivers, *names))
        return drivers

    try:
        yield make
    finally:
        for drivers, *names in made:
            drivers.end()
            drivers.queue.close()
            for server, name in zip((pg_source, pg_destination), names, strict=True):
                drop_database(server, name)
        shutil.rmtree(folder, ignore_errors=True)
