"""A destination that loses what it had answered to be committed: a crash, and a copy of its files that is put back."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from databases.embedded import EmbeddedServer
from tests.fix_postgres import SETTINGS
from tests.support.apply_engine import APPLY, TOPOLOGY, Engine
from tests.support.apply_world import World
from tests.support.postgres_place import PostgresPlace

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


class OwnServer:
    """A server of this test alone, whose files can be put back."""

    def __init__(self, folder: Path) -> None:
        self.server = EmbeddedServer(folder / "destination", name="destination", settings=SETTINGS)
        self.server.start()
        self.place = PostgresPlace(self.server.dsn())
        self._copy = folder / "copy"

    def run(self, engine: Engine, share: float) -> None:
        """Apply until about so much of the history is."""
        through = engine.batches[-1].through_scn * share
        while engine.coordinator.low_watermark < through:
            engine.step()

    def back_up(self) -> None:
        """A cold copy of the files."""
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
    """With owners: the server's user may be another one."""
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


def test_restore_under_a_running_driver_is_noticed_and_what_was_lost_is_applied_again(own: OwnServer) -> None:
    world = World(1, own.place, count=60, conflicts=0)
    engine = world.engine(1, parallelism=2)
    own.run(engine, 0.3)
    own.back_up()
    own.run(engine, 0.8)
    told = engine.coordinator.low_watermark
    own.restore()
    engine.is_mined_again = True
    progress = own.place.destination.progress
    engine.run()
    assert engine.crashes["destination"] == 2, "once for the restart of the backup, once for the restore"
    own.check(world)
    found = progress(TOPOLOGY, APPLY)
    assert found is not None
    assert found.low_watermark >= told


def test_immediate_stop_with_synchronous_commit_off_everywhere_loses_nothing(own: OwnServer) -> None:
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
    told = engine.coordinator.durable_scn
    own.server.restart(immediate=True)
    engine.run()
    assert engine.crashes["destination"] >= 1
    own.check(world)
    found = own.place.destination.progress(TOPOLOGY, APPLY)
    assert found is not None
    assert found.low_watermark >= told
