"""A destination that loses acknowledged commits: by a crash, or by a restored copy of its files."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import Instantiation
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.lcr.scn import Scn
from tests.fix_postgres import SETTINGS
from tests.support.apply.apply_engine import APPLY, TOPOLOGY, Engine
from tests.support.databases.postgres_place import PostgresPlace
from tests.support.histories.apply_world import World

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


class OwnServer:
    """A server for this test alone, whose files can be restored."""

    def __init__(self, folder: Path) -> None:
        self.server = EmbeddedServer(folder / "destination", name="destination", settings=SETTINGS)
        self.server.start()
        self.place = PostgresPlace(self.server.dsn())
        self._copy = folder / "copy"

    def run(self, engine: Engine, share: float) -> None:
        """Apply until about this share of the history is committed."""
        through = engine.batches[-1].through_scn * share
        while engine.coordinator.watermarks.low < through:
            engine.step()

    def back_up(self) -> None:
        """Take a cold copy of the files."""
        self.server.stop()
        _copy(self.server.data_folder, self._copy)
        self.server.start()

    def restore(self) -> None:
        self.server.stop(immediate=True)
        data = self.server.data_folder
        shutil.rmtree(data)
        _copy(self._copy, data)
        self.server.start()

    def check(self, world: World) -> None:
        self.place.admin.close()
        self.place.admin = psycopg.connect(self.server.dsn(), autocommit=True)
        world.check()


def _copy(folder: Path, to: Path) -> None:
    """Keep the owners: the server's user may be another one."""
    subprocess.run(["cp", "-a", str(folder), str(to)], check=True)


@pytest.fixture
def own(postgres_folder: Path) -> Iterator[OwnServer]:
    folder = postgres_folder / "loses-commits"
    folder.mkdir(mode=0o711)
    made = OwnServer(folder)
    yield made
    made.place.close()
    made.server.destroy()
    shutil.rmtree(folder, ignore_errors=True)


def test_restore_under_a_running_driver_is_noticed_and_losses_reapplied(own: OwnServer) -> None:
    world = World(1, own.place, count=60, conflicts=0)
    engine = world.engine(1, parallelism=2)
    own.run(engine, 0.3)
    own.back_up()
    own.run(engine, 0.8)
    told = engine.coordinator.watermarks.low
    own.restore()
    engine.is_mined_again = True
    progress = own.place.destination.progress
    engine.run()
    assert engine.crashes["destination"] == 2, "once for the restart of the backup, once for the restore"
    own.check(world)
    found = progress(TOPOLOGY, APPLY)
    assert found is not None
    assert found.low_watermark >= told


def test_immediate_stop_with_synchronous_commit_off_loses_nothing(own: OwnServer) -> None:
    for scope in ("SYSTEM", "DATABASE postgres", "ROLE CURRENT_USER"):
        own.place.admin.execute(f"ALTER {scope} SET synchronous_commit = off")
    own.place.admin.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
    own.place.admin.execute("ALTER SYSTEM SET wal_writer_flush_after = '1GB'")
    own.server.restart()
    own.place.close()
    own.place = PostgresPlace(own.server.dsn())
    world = World(2, own.place, count=60, conflicts=0)
    own.place.admin.execute("SET synchronous_commit = on")
    own.place.admin.execute("CREATE TABLE everything_before_is_on_disk ()")
    engine = world.engine(2, parallelism=2)
    own.run(engine, 0.6)
    told = engine.coordinator.watermarks.durable
    own.server.restart(immediate=True)
    engine.run()
    assert engine.crashes["destination"] >= 1
    own.check(world)
    found = own.place.destination.progress(TOPOLOGY, APPLY)
    assert found is not None
    assert found.low_watermark >= told


def test_only_unlogged_tables_that_a_crash_emptied_are_to_be_copied_again(own: OwnServer) -> None:
    dsn = own.server.dsn()
    tables = ("logged", "unlogged", "part_logged", "part_unlogged", "by_another")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE logged (id int PRIMARY KEY)")
        connection.execute("CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)")
        connection.execute("CREATE UNLOGGED TABLE by_another (id int PRIMARY KEY)")
        for name, persistence in (("part_logged", ""), ("part_unlogged", "UNLOGGED")):
            connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY) PARTITION BY RANGE (id)")
            connection.execute(f"CREATE TABLE {name}_1 PARTITION OF {name} FOR VALUES FROM (0) TO (100)")
            connection.execute(
                f"CREATE {persistence} TABLE {name}_2 PARTITION OF {name} FOR VALUES FROM (100) TO (200)"
            )
        for name in tables:
            connection.execute(f"INSERT INTO {name} VALUES (1), (2)")

    def states() -> dict[str, str]:
        with closing(PostgresDestination(dsn)) as destination:
            return {each.name: each.state for apply in ("a", "b") for each in destination.instantiations("t", apply)}

    with closing(PostgresDestination(dsn)) as destination:
        destination.prepare("t")
        for apply in ("a", "b"):
            epoch = destination.raise_epoch("t", apply).epoch
            for name in tables:
                if (name == "by_another") == (apply == "b"):
                    destination.record_instantiation(
                        "t",
                        apply,
                        epoch,
                        Instantiation(
                            source="src",
                            identity=name,
                            owner="public",
                            name=name,
                            scn=Scn(70),
                            state="DONE",
                            row_count=2,
                            digest="00",
                            problem="",
                        ),
                    )
    own.server.stop()
    own.server.start()
    with closing(PostgresDestination(dsn)) as destination:
        destination.raise_epoch("t", "a")
    assert set(states().values()) == {"DONE"}, "an orderly stop empties nothing"
    own.server.restart(immediate=True)
    with closing(PostgresDestination(dsn)) as destination:
        destination.raise_epoch("t", "a")
        found = {each.name: each for each in destination.instantiations("t", "a")}
    again = {"logged": "DONE", "unlogged": "COPYING", "part_logged": "DONE", "part_unlogged": "COPYING"}
    assert {name: each.state for name, each in found.items()} == again
    assert "UNLOGGED" in found["unlogged"].problem
    assert found["unlogged"].scn == 70
    assert states()["by_another"] == "DONE", "its own apply process has to find that"
    with closing(PostgresDestination(dsn)) as destination:
        destination.raise_epoch("t", "b")
    assert states() == {**again, "by_another": "COPYING"}
