"""A source whose standby is promoted: the redo log continues, or the standby is refused with the reason."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from headrace.base.errors import LogGone
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.catalog.source_tables import slot_name
from headrace.databases.postgres.connection import connect
from headrace.databases.postgres.source.database import PostgresSource
from headrace.databases.postgres.source.log_stream.slot import timelines_left
from headrace.databases.timelines import check_history
from headrace.lcr.scn import Scn
from tests.support.databases.standby import make_standby, promote
from tests.support.databases.statements import execute
from tests.support.redo.postgres_redo import RULES, RedoSite, wait_until

pytestmark = pytest.mark.postgres
DATABASE = "app"


# The worker that copies slots to a standby sleeps for up to 30 s. Its sleep doubles whenever there was nothing to do.
# `kept_in_step` wakes it.
SYNCHRONIZED_S = 180.0


@pytest.fixture
def made(postgres_folder: Path) -> Iterator[Callable[..., EmbeddedServer]]:
    """Return a function that starts servers for this test alone."""
    with contextlib.ExitStack() as opened:

        def make(name: str, primary: EmbeddedServer | None = None, version: int = 18) -> EmbeddedServer:
            if primary is not None:
                server = make_standby(primary, postgres_folder / name, slot=name)
            else:
                settings = {"shared_buffers": "32MB", "wal_sender_timeout": "20s", "autovacuum": "off"}
                server = EmbeddedServer(postgres_folder / name, version=version, name=name, settings=settings)
                server.start()
            opened.callback(server.destroy)
            return server

        yield make


def prepared(dsn: str, folder: Path) -> RedoSite:
    """Return a redo log of a database with table t, whose log is being read."""
    redo = RedoSite(dsn, folder)
    redo.user.execute("CREATE TABLE t (id int PRIMARY KEY)")
    redo.source.prepare("topo", (RULES,))
    redo.attach()
    return redo


def mined(redo: RedoSite) -> list[int]:
    """Return the keys of the rows of t in the redo log, in order."""
    return [
        int.from_bytes(group.new.value(0, row), "big", signed=True)
        for batch in redo.mine(redo.miner())
        for group in batch.groups
        for row in range(group.row_count)
    ]


def of_both(first: EmbeddedServer, second: EmbeddedServer) -> str:
    """Return a DSN that leads to whichever of the two is the primary."""
    given = conninfo.conninfo_to_dict(first.dsn(DATABASE))
    return conninfo.make_conninfo(
        "",
        **{
            **given,
            "host": "127.0.0.1,127.0.0.1",
            "port": f"{first.port},{second.port}",
            "target_session_attrs": "read-write",
        },
    )


def in_step(standby: EmbeddedServer, slot: str) -> bool:
    return execute(
        standby.dsn(), f"SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = '{slot}'"
    ) == [(True,)]


def test_capture_continues_only_at_a_promoted_standby_with_all_changes(
    made: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    primary = made("promoted_from")
    execute(primary.dsn(), f"CREATE DATABASE {DATABASE}")
    late, standby = made("promoted_late", primary), made("promoted", primary)
    dsn = of_both(primary, standby)
    redo = prepared(dsn, tmp_path / "redo")
    slot = slot_name("topo", DATABASE)
    assert execute(primary.dsn(), f"SELECT failover FROM pg_replication_slots WHERE slot_name = '{slot}'") == [(True,)]
    warned = [f for f in redo.source.preflight((RULES,), streams=1) if "synchronized_standby_slots" in f.problem]
    assert [(f.is_error, f.problem.split(" is not in ")[0]) for f in warned] == [
        (False, "the standby of slot promoted"),
        (False, "the standby of slot promoted_late"),
    ]
    execute(primary.dsn(), "ALTER SYSTEM SET synchronized_standby_slots = 'promoted'")
    execute(primary.dsn(), "SELECT pg_reload_conf()")
    wait_until(lambda: sum("synchronized" in f.problem for f in redo.source.preflight((RULES,), streams=1)) == 1)
    redo.user.execute("INSERT INTO t SELECT n FROM generate_series(1, 100) n")

    def kept_in_step() -> bool:
        # The server moves restart_lsn where it logs its running transactions, by itself every fifteen seconds.
        execute(primary.dsn(), "SELECT pg_log_standby_snapshot()")
        redo.catch_up()
        execute(standby.dsn(), "SELECT pg_reload_conf()")
        return in_step(standby, slot)

    wait_until(kept_in_step, SYNCHRONIZED_S)
    # Cut this standby off. It is promoted at a switch below the end of redo.
    execute(late.dsn(), "ALTER SYSTEM SET primary_conninfo = ''")
    execute(late.dsn(), "SELECT pg_reload_conf()")
    wait_until(lambda: execute(late.dsn(), "SELECT count(*) FROM pg_stat_wal_receiver") == [(0,)])
    redo.user.execute("INSERT INTO t SELECT n FROM generate_series(101, 200) n")
    redo.catch_up()
    behind = execute(
        standby.dsn(), f"SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = '{slot}'"
    )
    end = redo.writer.start_scn

    primary.stop(immediate=True)
    promote(standby)
    promote(late)
    redo.stream.close()
    redo.user.close()
    with (
        contextlib.closing(PostgresSource(late.dsn(DATABASE), site=DATABASE)) as lost,
        pytest.raises(LogGone) as refused,
    ):
        lost.open_stream("topo", end, timeline=redo.writer.timeline)
    assert "was promoted, or recovered" in refused.value.message
    context: dict[str, Any] = dict(refused.value.context)
    assert context["after_scn"] < context["through_scn"] == end

    redo.user = psycopg.connect(dsn, autocommit=True)
    redo.user.execute("INSERT INTO t SELECT n FROM generate_series(201, 300) n")
    redo.attach()
    redo.catch_up()
    assert mined(redo) == list(range(1, 301)), (
        f"the slot of the standby was confirmed up to {behind}, redo ended at {end}"
    )
    assert redo.writer.timeline == 2
    options = redo.writer.options
    assert options is not None

    # Both standbys call their timeline 2; they differ in the point where they left timeline 1.
    def left_by(server: EmbeddedServer) -> tuple[tuple[int, Scn], ...]:
        with contextlib.closing(
            connect(server.dsn(DATABASE), application_name="test", replication="database")
        ) as session:
            return tuple(timelines_left(session, 2).items())

    assert left_by(standby) == options.switches
    with pytest.raises(LogGone, match="Two standbys were promoted beside each other") as refused:
        check_history(DATABASE, redo=options, start=redo.writer.start_scn, now=replace(options, switches=left_by(late)))
    assert refused.value.context["after_scn"] == left_by(late)[0][1]

    primary.start()
    with (
        contextlib.closing(PostgresSource(primary.dsn(DATABASE), site=DATABASE)) as old,
        pytest.raises(LogGone) as refused,
    ):
        old.open_stream("topo", redo.writer.start_scn, timeline=redo.writer.timeline)
    assert "does not come from timeline 2" in refused.value.message
    redo.close()


def test_promoted_standby_before_17_is_refused_for_its_missing_slot(
    pg_16: EmbeddedServer,
    fresh_database: Callable[[EmbeddedServer], str],
    made: Callable[..., EmbeddedServer],
    tmp_path: Path,
) -> None:
    dsn = fresh_database(pg_16)
    redo = prepared(dsn, tmp_path / "redo")
    redo.user.execute("INSERT INTO t VALUES (1)")
    redo.catch_up()
    standby = made("promoted_16", pg_16)
    try:
        redo.user.execute("INSERT INTO t VALUES (2)")
        redo.catch_up()
        target = execute(pg_16.dsn(), "SELECT pg_current_wal_flush_lsn()")[0][0]
        wait_until(lambda: execute(standby.dsn(), f"SELECT pg_last_wal_replay_lsn() >= '{target}'") == [(True,)])
        redo.stream.close()
        promote(standby)
        database = str(conninfo.conninfo_to_dict(dsn)["dbname"])
        with (
            contextlib.closing(PostgresSource(standby.dsn(database), site=database)) as promoted,
            pytest.raises(LogGone) as refused,
        ):
            promoted.open_stream("topo", redo.writer.start_scn, timeline=redo.writer.timeline)
        assert "does not exist: everything after SCN" in refused.value.message
        assert "before PostgreSQL 17 no slot comes with it" in refused.value.hint
    finally:
        redo.close()
        standby.stop(immediate=True)
        execute(pg_16.dsn(), "SELECT pg_drop_replication_slot('promoted_16')")
