"""Row commits that do not wait for the disk, on a real server that stops at once and loses them."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headrace.base.errors import DatabaseUnavailable, DestinationRestarted
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import ScnRange
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.lcr.scn import Scn
from tests.support.apply.apply_engine import APPLY, TOPOLOGY
from tests.support.databases.lazy_server import lazy_server
from tests.support.databases.postgres_place import PostgresPlace
from tests.support.histories.apply_world import World
from tests.support.session.matrices import values

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

# The awaited events (a killed backend's postmaster, a reload, a commit's wait) take a second on a quiet machine; this
# bound is for a machine that stalls.
WAITED_S = 60.0


class OwnServer:
    """A server for this test alone."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.server = server
        self.place = PostgresPlace(server.dsn())

    def crash(self) -> None:
        self.server.restart(immediate=True)
        self.place.destination.close()
        self.place.admin.close()
        self.place.admin = psycopg.connect(self.server.dsn(), autocommit=True)


@pytest.fixture
def own(postgres_folder: Path) -> Iterator[OwnServer]:
    with lazy_server(postgres_folder) as server:
        made = OwnServer(server)
        yield made
        made.place.close()


def _session(own: OwnServer, epoch: int, *, server: int = 0, is_lazy: bool = True):
    return own.place.destination.open_session(TOPOLOGY, APPLY, server=server, epoch=epoch, tag=b"\x00", is_lazy=is_lazy)


def _commit(session, scn: int) -> None:
    session.begin()
    session.commit((ScnRange(after=Scn(scn - 1), through=Scn(scn)),), Scn(0))


def test_crash_loses_a_lazy_commit_and_its_progress_as_positions_showed(own: OwnServer) -> None:
    destination = own.place.destination
    destination.prepare(TOPOLOGY)
    epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    with psycopg.connect(own.server.dsn(), autocommit=True) as user:
        user.execute("CREATE TABLE lost (id int)")
    session = _session(own, epoch)
    _commit(session, 100)
    positions = destination.log_positions(TOPOLOGY, APPLY, epoch)
    assert positions.flushed < positions.written, "the commit is visible and in memory only"
    before = destination.progress(TOPOLOGY, APPLY)
    assert before is not None
    assert [found.through for found in before.above] == [100]
    own.crash()
    with pytest.raises(DestinationRestarted):
        destination.log_positions(TOPOLOGY, APPLY, epoch)
    after = destination.progress(TOPOLOGY, APPLY)
    assert after is not None
    assert not after.above, "the crash lost the commit: this test sees losses"


def test_killed_backend_loses_lazy_commits_of_others_and_ends_the_epoch(own: OwnServer) -> None:
    """The postmaster keeps running with its start time, but the server's memory is lost all the same."""
    destination = own.place.destination
    destination.prepare(TOPOLOGY)
    epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    started, number = own.place.admin.execute("SELECT pg_postmaster_start_time(), pg_backend_pid()").fetchone() or (
        None,
        0,
    )
    _commit(_session(own, epoch), 100)
    os.kill(number, signal.SIGKILL)
    deadline = time.monotonic() + WAITED_S
    while True:
        try:
            destination.log_positions(TOPOLOGY, APPLY, epoch)  # until the postmaster has ended this session
        except DestinationRestarted:
            break
        except DatabaseUnavailable:
            pass
        assert time.monotonic() < deadline, "the epoch continues"
        time.sleep(0.05)
    after = destination.progress(TOPOLOGY, APPLY)
    assert after is not None
    assert not after.above
    own.place.admin = psycopg.connect(own.server.dsn(), autocommit=True)
    assert own.place.admin.execute("SELECT pg_postmaster_start_time()").fetchone() == (started,)


def test_commit_reported_to_an_operator_or_a_standby_waits_for_the_disk(own: OwnServer) -> None:
    destination = own.place.destination
    destination.prepare(TOPOLOGY)
    epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    session = _session(own, epoch)

    def is_on_disk() -> bool:
        positions = destination.log_positions(TOPOLOGY, APPLY, epoch)
        return positions.flushed >= positions.written

    _commit(session, 100)
    assert not is_on_disk()
    session.begin()
    session.delete_error(1)
    session.commit((), Scn(0))
    assert is_on_disk()
    _commit(session, 101)
    assert not is_on_disk()
    _commit(_session(own, epoch, server=1, is_lazy=False), 102)
    assert is_on_disk()
    session.close()
    with psycopg.connect(own.server.dsn(), autocommit=True) as user:
        user.execute("ALTER ROLE CURRENT_USER SET synchronous_commit = remote_apply")
        session = _session(own, epoch)
        _commit(session, 103)
        assert is_on_disk(), "the role's own setting is kept"
        user.execute("ALTER ROLE CURRENT_USER RESET synchronous_commit")


def test_required_standby_is_waited_for(own: OwnServer) -> None:
    """Also if it is named while the session is open; the one named here is away.

    Commits begin to wait when the checkpointer has read the settings again, which no view shows. So the session commits
    until one waits.
    """
    destination = own.place.destination
    destination.prepare(TOPOLOGY)
    epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    session = _session(own, epoch)
    _commit(session, 100)
    with psycopg.connect(own.server.dsn(), autocommit=True) as user:
        user.execute("SET synchronous_commit = local")
        user.execute("ALTER SYSTEM SET synchronous_standby_names = 'away'")
        user.execute("SELECT pg_reload_conf()")
        seen = threading.Event()

        def commits() -> None:
            for scn in itertools.count(101):
                if seen.is_set():
                    return
                _commit(session, scn)

        waiting = threading.Thread(target=commits)
        waiting.start()
        try:
            deadline = time.monotonic() + WAITED_S
            while user.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").fetchone() != (1,):
                assert time.monotonic() < deadline, "the commit did not wait for the standby"
                time.sleep(0.02)
        finally:
            seen.set()
            user.execute("ALTER SYSTEM RESET synchronous_standby_names")
            user.execute("SELECT pg_reload_conf()")
            waiting.join(WAITED_S)
        assert not waiting.is_alive()


def test_preflight_reports_a_role_that_may_not_read_log_positions(own: OwnServer) -> None:
    dsn = make_conninfo(own.server.dsn(), user="apply", password="secret")
    with psycopg.connect(own.server.dsn(), autocommit=True) as user:
        user.execute("CREATE ROLE apply LOGIN PASSWORD 'secret'")
        user.execute("REVOKE EXECUTE ON FUNCTION pg_current_wal_flush_lsn(), pg_current_wal_insert_lsn() FROM PUBLIC")

        def asked() -> list[str]:
            with contextlib.closing(PostgresDestination(dsn)) as destination:
                found = destination.preflight(TOPOLOGY, sessions=1)
            return [finding.fix for finding in found if "_lsn" in finding.problem]

        missing = asked()
        assert len(missing) == 2
        for fix in missing:
            user.execute(fix.encode())
        assert asked() == []


@pytest.mark.parametrize("seed", values(range(3), 0))
def test_crashes_under_load_lose_nothing_that_was_acknowledged(own: OwnServer, seed: int) -> None:
    world = World(seed, own.place, count=60, conflicts=0, large=2)
    own.place.admin.execute("CHECKPOINT")
    engine = world.engine(seed, parallelism=2, commits_lazily=True)
    lost = 0
    for share in (0.3, 0.6, 0.9):
        while engine.coordinator.watermarks.low < engine.batches[-1].through_scn * share:
            engine.step()
        destination = own.place.destination
        while True:  # until a commit is in memory that the queue does not know of
            commits = engine.coordinator.statistics.commits
            engine.step()
            positions = destination.log_positions(TOPOLOGY, APPLY, engine.epoch)
            if engine.coordinator.statistics.commits > commits and positions.flushed < positions.written:
                break
        told, before = engine.told, destination.progress(TOPOLOGY, APPLY)
        own.crash()
        after = own.place.destination.progress(TOPOLOGY, APPLY)
        assert before is not None
        assert after is not None
        assert after.low_watermark >= told, "commits reported to the queue are gone"
        lost += (after.low_watermark, after.above) != (before.low_watermark, before.above)
    engine.run()
    assert engine.crashes["destination"] >= 1
    world.check()
    assert lost, "no crash lost a commit: this proves nothing"
