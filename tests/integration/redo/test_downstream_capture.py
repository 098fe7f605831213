"""Real-time downstream capture of a real server: zero loss with `transport: sync`; with async, the source works on
without its receiver.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from actors.site.connection import redo_folder
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.redo.segments import list_segments
from tests.fix_postgres import SETTINGS
from tests.support.apply.apply_engine import Engine
from tests.support.clusters.system import wait_until
from tests.support.redo.standby_redo import log_bytes
from tests.support.ways.downstream_sites import ROWS, DownstreamSites, Writer

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def make(
    postgres_folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., DownstreamSites]]:
    """Each test has its own server: some kill it."""
    server = EmbeddedServer(postgres_folder / request.node.name[5:35], version=18, name="downstream", settings=SETTINGS)
    server.start()
    made: list[DownstreamSites] = []

    def make_sites(**settings: object) -> DownstreamSites:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(ROWS)
        made.append(DownstreamSites(server, tmp_path, **settings))
        return made[-1]

    yield make_sites
    for sites in made:
        sites.close()
    server.destroy()


def test_every_acknowledged_transaction_survives_the_loss_of_the_source(
    make: Callable[..., DownstreamSites],
    pg_destination: EmbeddedServer,
    prepared_database: Callable[[EmbeddedServer], str],
) -> None:
    sites = make(transport="sync")
    receiver = sites.start_receiver()
    sites.wait_for_commits()
    writers = [Writer(sites.server.dsn(), number) for number in range(1, 4)]
    wait_until("they commit", lambda: all(len(writer.acknowledged) > 40 for writer in writers))
    sites.destroy_source()
    for writer in writers:
        writer.stop()
    acknowledged = {row for writer in writers for row in writer.acknowledged}
    wait_until("the stream to the source has ended", lambda: receiver.status().state == "RETRYING")

    dsn = prepared_database(pg_destination)
    with (
        psycopg.connect(dsn, autocommit=True) as user,
        contextlib.closing(PostgresDestination(dsn, site="dbs2")) as destination,
    ):
        user.execute(ROWS)
        destination.prepare("topo")
        batches = sites.mined(receiver)
        engine = Engine(seed=1, batches=batches, destination=destination, topology="topo", apply="a", source="dbs1")
        engine.run()
        applied = {row for (row,) in user.execute("SELECT id FROM rows")}
        for server in engine.servers.values():
            server.close()
        destination.remove("topo")
    assert acknowledged <= applied, f"{len(acknowledged - applied)} acknowledged transactions are lost"
    assert len(acknowledged) > 120
    assert len(applied - acknowledged) <= len(writers)  # commits whose answers were in flight


def test_commits_wait_for_an_absent_sync_receiver_and_status_shows_it(make: Callable[..., DownstreamSites]) -> None:
    sites = make(transport="sync")
    sites.wait_for_commits()
    writer = Writer(sites.server.dsn(), 1)

    def waits() -> bool:
        with psycopg.connect(sites.server.dsn(), autocommit=True) as user:
            row = user.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").fetchone()
        return row == (1,)

    wait_until("the commit waits", waits)
    time.sleep(0.5)
    assert writer.acknowledged == []
    problem = wait_until(
        "the status names the receiver", lambda: "redo:dbs1@dbs3" in (said := sites.site.status().problem) and said
    )
    assert "headrace_topo_dbs1" in problem or "headrace_topo" in problem
    assert sites.site.status().state != "DATABASE DOES NOT ANSWER"  # commits of Headrace itself do not wait
    receiver = sites.start_receiver()
    wait_until("it commits", lambda: len(writer.acknowledged) > 20)
    wait_until("the status shows no problem", lambda: sites.site.status().problem == "")
    receiver.stop_component()
    wait_until("the status shows it as away", lambda: "is away" in sites.site.status().problem)
    waiting = len(writer.acknowledged)
    receiver.start_component()
    writer.stop(
        wait=lambda: wait_until("commits continue", lambda: len(writer.acknowledged) > waiting or waits() is False)
    )
    sites.wait_received(receiver)
    assert log_bytes(redo_folder(sites.spec, source="dbs1", site="dbs3")).keys() >= {
        file.path.name for file in list_segments(redo_folder(sites.spec, source="dbs1", site="dbs1"))
    }


def test_source_works_without_its_async_receiver_and_keeps_redo_for_it(make: Callable[..., DownstreamSites]) -> None:
    sites = make(transport="async", sites=("dbs3", "dbs4"))
    first, second = sites.start_receiver(), sites.start_receiver("dbs1@dbs4")
    with psycopg.connect(sites.server.dsn(), autocommit=True) as user:
        user.execute("INSERT INTO rows SELECT n, 0 FROM generate_series(1, 30_000) n")
        sites.wait_received(first)
        sites.wait_received(second)
        second.stop_component()
        wait_until("it is away", lambda: second.status().state == "DISABLED")
        for batch in range(1, 4):
            user.execute("INSERT INTO rows SELECT n + 100_000 * %s, 0 FROM generate_series(1, 30_000) n", (batch,))
        sites.wait_received(first)
    redo = redo_folder(sites.spec, source="dbs1", site="dbs1")
    held = list_segments(redo)
    assert len(held) >= 3, "redo is held for the one that is away"
    second.start_component()
    sites.wait_received(second)
    wait_until("the source purges redo that both have", lambda: list_segments(redo)[0].number > held[0].number)
    for receiver, site in ((first, "dbs3"), (second, "dbs4")):
        assert sum(batch.row_count for batch in sites.mined(receiver, site=site)) == 120_000


def test_receiver_killed_repeatedly_under_load_has_every_change_once(make: Callable[..., DownstreamSites]) -> None:
    sites = make(transport="async")
    receiver = sites.start_receiver()
    writers = [Writer(sites.server.dsn(), number) for number in range(1, 3)]
    for turn in range(1, 6):
        wait_until("they commit", lambda turn=turn: all(len(writer.acknowledged) > 30 * turn for writer in writers))
        receiver.end()
        receiver = sites.start_receiver()
        if turn == 3:
            sites.site.stop_component()
            wait_until("the log writer stops", lambda: sites.site.status().state == "DISABLED")
            sites.site.start_component()
    for writer in writers:
        writer.stop()
    sites.wait_received(receiver)
    assert sum(batch.row_count for batch in sites.mined(receiver)) == sum(
        len(writer.acknowledged) for writer in writers
    )
