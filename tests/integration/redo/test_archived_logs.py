"""Archived-log downstream capture end to end: complete segments of a real source are sent or copied, mined at another
site, and applied.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
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
from tests.support.session.matrices import cases
from tests.support.ways.downstream_sites import ROWS, DownstreamSites

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

LAG_S = 1.0  # the minimum in a topology file: after it, a segment ends even if it is not full


def write(user: psycopg.Connection, turn: int) -> int:
    """Write some thousand changes; return the SCN of the source's log after them."""
    user.execute("INSERT INTO rows SELECT n, 0 FROM generate_series(%s::int, %s) n", (2000 * turn, 2000 * turn + 1999))
    user.execute("UPDATE rows SET writer = id %% 7 WHERE id %% 3 = %s", (turn,))
    user.execute("DELETE FROM rows WHERE id %% 11 = %s", (turn,))
    row = user.execute("SELECT pg_logical_emit_message(true, 'test', '') - '0/0'::pg_lsn").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("is_copied", cases({"sent": False, "copied": True}, core=["sent"]))
def test_archived_logs_bring_every_row_to_the_destination(
    postgres_folder: Path,
    tmp_path: Path,
    pg_destination: EmbeddedServer,
    prepared_database: Callable[[EmbeddedServer], str],
    *,
    is_copied: bool,
) -> None:
    """Nothing fills a segment: the source ends each by time. Where files are copied, nothing is sent to the receiver."""
    archive = tmp_path / "archive"
    archive.mkdir()
    server = EmbeddedServer(postgres_folder / f"archived-{is_copied}", version=18, name="archived", settings=SETTINGS)
    there = prepared_database(pg_destination)
    with contextlib.ExitStack() as stack:
        server.start()
        stack.callback(server.destroy)
        source = stack.enter_context(psycopg.connect(server.dsn(), autocommit=True))
        source.execute(ROWS)
        sites = DownstreamSites(
            server,
            tmp_path,
            mode="archived_log",
            archive=str(archive) if is_copied else "",
            archive_lag_s=LAG_S,
        )
        stack.callback(sites.close)
        receiver = sites.start_receiver()
        redo = redo_folder(sites.spec, source="dbs1", site="dbs1")

        def arrived(scn: int) -> bool:
            for file in list_segments(redo):
                if is_copied and file.is_archived and not (archive / file.path.name).exists():
                    shutil.copy(file.path, archive)
            return (receiver.details().redo_scn or 0) >= scn

        user = stack.enter_context(psycopg.connect(there, autocommit=True))
        user.execute(ROWS)
        destination = stack.enter_context(contextlib.closing(PostgresDestination(there, site="dbs2")))
        destination.prepare("topo")
        stack.callback(destination.remove, "topo")
        for turn in range(2):  # in the second round the capture and apply processes resume
            written = write(source, turn)
            wait_until("its archived logs are downstream", lambda: arrived(written))  # noqa: B023 - called in this turn
            # The position is visible before its segment gets its final name.
            downstream = redo_folder(sites.spec, source="dbs1", site="dbs3")
            wait_until(
                "all that arrived is archived logs",
                lambda: all(file.is_archived for file in list_segments(downstream)),  # noqa: B023 - called in this turn
            )
            engine = Engine(
                seed=turn,
                batches=sites.mined(receiver),
                destination=destination,
                topology="topo",
                apply="a",
                source="dbs1",
            )
            engine.run()
            for each in engine.servers.values():
                each.close()
            rows = source.execute("SELECT * FROM rows ORDER BY id").fetchall()
            assert user.execute("SELECT * FROM rows ORDER BY id").fetchall() == rows
            assert len(rows) > 1500 * (turn + 1)
        assert destination.errors("topo", "a") == ()
        assert receiver.details().mode == "archived_log"
        assert (receiver.details().redo_segments or 0) >= 2
