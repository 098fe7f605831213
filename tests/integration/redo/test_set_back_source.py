"""A source that returns from an older copy of its disk is refused, even when its new log has passed the end of redo and
reuses the transaction numbers.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from headrace.base.errors import DatabaseSetBack, DatabaseUnavailable
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.source.log_stream.slot import check_standbys
from headrace.lcr.scn import Scn
from tests.support.databases.statements import row_of
from tests.support.redo.postgres_redo import RULES, RedoSite
from tests.support.ways.source_site import Source

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


def test_source_that_was_set_back_is_refused_whatever_it_has_written_since(
    postgres_folder: Path, tmp_path: Path
) -> None:
    folder = postgres_folder / "set_back"
    server = EmbeddedServer(
        folder, version=18, name="set_back", settings={"shared_buffers": "16MB", "autovacuum": "off"}
    )
    server.start()
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as user:
            user.execute("CREATE TABLE t (id int PRIMARY KEY)")
        site = RedoSite(server.dsn(), tmp_path / "redo")
        site.source.prepare("topo", (RULES,))
        site.attach()
        site.user.execute("INSERT INTO t VALUES (0)")
        site.catch_up()
        site.close()
        server.stop()
        subprocess.run(["cp", "-a", str(folder), str(folder) + ".old"], check=True)

        server.start()
        site = RedoSite(server.dsn(), tmp_path / "redo")
        site.attach()
        for number in range(1, 100):
            site.user.execute("INSERT INTO t VALUES (%s)", (number,))
        site.catch_up()
        assert site.writer.last_transaction
        site.close()
        server.stop()
        subprocess.run(["rm", "-rf", str(folder)], check=True)
        Path(str(folder) + ".old").rename(folder)

        server.start()
        site.writer, site.user = site.new_writer(), psycopg.connect(server.dsn(), autocommit=True)

        def opened() -> None:
            site.source.open_stream(
                "topo",
                site.writer.start_scn,
                timeline=site.writer.timeline,
                last_transaction=site.writer.last_transaction,
                last_commit_scn=site.writer.last_commit_scn,
            )

        with pytest.raises(DatabaseSetBack, match="set back to an older state"):
            opened()
        while site.source.current_scn() <= site.writer.start_scn:
            site.user.execute("SELECT pg_logical_emit_message(false, '', repeat('x', 100000), true)")
        with pytest.raises(DatabaseSetBack, match="which the database does not have"):
            opened()
        number = 0
        while int(row_of(site.user.execute("SELECT pg_current_xact_id()::text"))[0]) <= site.writer.last_transaction:
            number += 1
            site.user.execute("INSERT INTO t VALUES (%s)", (number,))
        assert site.source.current_scn() > site.writer.start_scn, "a log that is behind is recognised by its end"
        with pytest.raises(DatabaseSetBack, match="has written other transactions since"):
            opened()
        site.close()
    finally:
        server.stop()
        server.destroy()


def test_crashed_source_continues_though_its_slot_forgot_the_confirmation(
    postgres_folder: Path, tmp_path: Path
) -> None:
    """Checkpoints write slots to disk. After a crash a slot is confirmed below the end of redo, like the slot of an
    older copy.
    """
    server = EmbeddedServer(
        postgres_folder / "crashed",
        version=18,
        name="crashed",
        settings={"shared_buffers": "16MB", "autovacuum": "off"},
    )
    server.start()
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as user:
            user.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        site = RedoSite(server.dsn(), tmp_path / "redo")
        site.source.prepare("topo", (RULES,))
        site.attach()
        for number in range(1, 20):
            site.user.execute("INSERT INTO t VALUES (%s, repeat('x', 10000))", (number,))
        site.catch_up()
        site.close()
        server.stop(immediate=True)
        server.start()
        site = RedoSite(server.dsn(), tmp_path / "redo")
        (confirmed,) = row_of(site.user.execute("SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots"))
        assert int(confirmed) < site.writer.start_scn, "the slot forgot nothing"
        site.user.execute("INSERT INTO t VALUES (100, 'after the crash')")
        before = site.writer.last_commit_scn
        site.attach()
        assert site.stream.start_scn == site.writer.start_scn, "redo gets no duplicates"
        site.catch_up()
        assert site.writer.last_commit_scn > before
        site.close()
    finally:
        server.stop()
        server.destroy()


def test_standby_that_lacks_the_log_is_named_until_it_has_received_it(source_database: str) -> None:
    """`synchronized_standby_slots`: the server shows nothing that its named standbys lack."""
    with psycopg.connect(source_database, autocommit=True) as user:
        user.execute("SELECT pg_create_physical_replication_slot('standby_has', true)")
        user.execute("SELECT pg_create_physical_replication_slot('standby_lacks')")
        try:
            (position,) = row_of(user.execute("SELECT pg_current_wal_lsn() - '0/0'"))
            check_standbys(user, "standby_has", Scn(1))
            with pytest.raises(DatabaseUnavailable, match=r"standbys of standby_lacks, absent \(synchronized"):
                check_standbys(user, "standby_has, standby_lacks, absent", Scn(1))
            with pytest.raises(DatabaseUnavailable, match="standbys of standby_has "):
                check_standbys(user, "standby_has", Scn(int(position) + 1000))
        finally:
            for name in ("standby_has", "standby_lacks"):
                user.execute("SELECT pg_drop_replication_slot(%s)", (name,))


def test_source_that_gets_its_own_disk_back_continues_as_printed(postgres_folder: Path, tmp_path: Path) -> None:
    folder, kept = postgres_folder / "own_disk", tmp_path / "kept"
    server = EmbeddedServer(
        folder, version=18, name="own_disk", settings={"shared_buffers": "16MB", "autovacuum": "off"}
    )
    server.start()
    old, own = Path(f"{server.data_folder}.old"), Path(f"{server.data_folder}.own")
    with psycopg.connect(server.dsn(), autocommit=True) as user:
        user.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = Source(server.dsn(), kept)
    try:
        source.run("INSERT INTO t VALUES (1)")
        source.wait_written()

        def exchange(*moves: Callable[[], object]) -> None:
            source.user.close()
            server.stop()
            for move in moves:
                move()
            server.start()
            source.user = psycopg.connect(server.dsn(), autocommit=True)

        exchange(lambda: subprocess.run(["cp", "-a", str(server.data_folder), str(old)], check=True))
        source.wait("it goes on", lambda status: status.state in {"IDLE", "WRITING"})
        source.run("INSERT INTO t SELECT generate_series(2, 100)")
        source.wait_written()
        data = server.data_folder
        exchange(lambda: data.rename(own), lambda: old.rename(data))
        refused = source.wait("it is refused", lambda status: status.state == "ABORTED").last_error
        assert refused.error == "DatabaseSetBack"
        exchange(lambda: data.rename(old), lambda: own.rename(data))

        source.host.start_component()
        hint = source.wait(
            "it stays refused",
            lambda status: status.last_error is not None and "refused before" in status.last_error.message,
        ).last_error.hint
        found = re.search(r"remove (\S+) and start the site: `headrace start FILE (\S+)`$", hint)
        assert found, hint
        Path(found[1]).unlink()
        assert found[2] == source.host.name
        source.host.start_component()
        source.run("INSERT INTO t VALUES (101)")
        source.wait("it goes on", lambda status: status.state in {"IDLE", "WRITING"})
        source.wait_written()
        assert sum(batch.row_count for batch in source.mined()) == 101, "each row must be there once"

        # Following the hint while the database is the older one gets another refusal.
        exchange(lambda: data.rename(own), lambda: old.rename(data))
        source.wait("it is refused", lambda status: status.state == "ABORTED")
        source.host.start_component()
        source.wait("the refusal is kept", lambda status: Path(found[1]).exists())
        Path(found[1]).unlink()
        source.host.start_component()
        again = source.wait("it is refused", lambda status: Path(found[1]).exists() and status.state == "ABORTED")
        assert "set back to an older state" in again.last_error.message
    finally:
        source.close()
        server.stop()
        server.destroy()
