"""Real servers, one source and two destinations: the restored destination gets its lost changes again, the other one
gets no duplicates.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from actors import capture_checkpoint
from actors.capture import CaptureHost
from actors.staging.queue import QueueCore
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.source.database import PostgresSource
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import Scn
from headrace.redo.segments import list_segments
from protos import codec
from tests.support.apply.apply_engine import Engine
from tests.support.redo.capture_process import KeptRedo
from tests.support.redo.postgres_redo import RULES, RedoSite
from tests.support.wire.staging import DirectLinks, one_way

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TABLE = "CREATE TABLE rows (id int PRIMARY KEY, body text)"
FILLER = "x" * 600  # several redo segments in a few hundred rows
CREDIT = 1 << 40


class Links(DirectLinks):
    """Links to the queue and the redo log."""

    def __init__(self, site: RedoSite, queue: QueueCore) -> None:
        super().__init__("capture_dbs1", {"q_dbs1": queue}.get)
        self._site = site

    def redo(self, keeper: str, source: str) -> KeptRedo:
        return KeptRedo(self._site.writer)


class Capture(CaptureHost):
    """The capture process on a real redo log, with a queue in the same process."""

    def __init__(self, site: RedoSite, queue: QueueCore, folder: Path) -> None:
        super().__init__(
            one_way(folder),
            "capture_dbs1",
            "",
            lambda *_: Links(site, queue),
            make_miner=lambda _spec, _capture, start_scn, _last_call: site.miner(start_scn, RULES),
        )
        self._site = site
        self.open()

    def catch_up(self) -> None:
        """Send everything that is committed."""
        end = self._site.catch_up()
        while (self.details().sent_scn or 0) < end:
            self.step()


class Destination:
    """A database with its apply process; a backup of it is another database."""

    def __init__(self, dsn: str, apply: str, capture: Callable[[], None]) -> None:
        self.dsn, self.apply, self.capture = dsn, apply, capture
        with (
            psycopg.connect(dsn, autocommit=True) as user,
            contextlib.closing(PostgresDestination(dsn, site="dbs2")) as database,
        ):
            user.execute(TABLE)
            database.prepare("t")

    def take(self, queue: QueueCore, incarnation: str) -> list[LcrBatch]:
        """Dequeue all there is, apply it, and acknowledge it."""
        with contextlib.closing(PostgresDestination(self.dsn, site="dbs2")) as database:
            progress = database.progress("t", self.apply)
            needed = Scn(0) if progress is None else progress.low_watermark
            session = queue.open_subscriber(self.apply, incarnation, {"dbs1": needed}, CREDIT)
            found: list[LcrBatch] = []
            self.capture()
            while (delivery := queue.dequeue(session)) is not None:
                found.append(codec.decode(delivery.data))
            engine = Engine(seed=1, batches=found, destination=database, topology="t", apply=self.apply, source="dbs1")
            engine.run()
            queue.acknowledge(session, "dbs1", engine.coordinator.watermarks.low)
            for server in engine.servers.values():
                server.close()
        return found

    def content(self) -> list[tuple[int, str]]:
        with psycopg.connect(self.dsn) as user:
            return user.execute("SELECT id, body FROM rows ORDER BY id").fetchall()

    def back_up(self, server: EmbeddedServer) -> str:
        """Copy the database; return the copy's connection string."""
        name = conninfo_to_dict(self.dsn)["dbname"]
        made = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(f"{name}_copy"), sql.Identifier(str(name))
        )
        deadline = time.monotonic() + 120.0
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            while True:
                try:
                    admin.execute(made)
                    break
                except (
                    psycopg.errors.ObjectInUse
                ):  # a closed session may not have ended yet, and the server waits up to 5 s for it
                    assert time.monotonic() < deadline
        return make_conninfo(self.dsn, dbname=f"{name}_copy")


@pytest.fixture
def site(
    pg_source: EmbeddedServer, fresh_database: Callable[[EmbeddedServer], str], tmp_path: Path
) -> Iterator[RedoSite]:
    made = RedoSite(fresh_database(pg_source), tmp_path / "redo")
    made.user.execute(TABLE)
    made.source.prepare("topo", (RULES,))
    made.attach()
    yield made
    made.close()
    made.source = PostgresSource(made.dsn)
    made.source.remove("topo")
    made.source.close()


def test_restored_destination_gets_its_lost_changes_others_no_duplicates(
    site: RedoSite,
    pg_destination: EmbeddedServer,
    prepared_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capture_checkpoint, "CHECKPOINT_INTERVAL_S", 0.0)  # each settling is reported
    checkpoints = site.writer.required_checkpoints
    checkpoints.register("capture_dbs1", retention_s=3600.0)
    queue = QueueCore(one_way(tmp_path, subscribers=("apply_a", "apply_b")), "q_dbs1", tmp_path / "q")
    capture = Capture(site, queue, tmp_path)
    a, b = (Destination(prepared_database(pg_destination), name, capture.catch_up) for name in ("apply_a", "apply_b"))

    def write(first: int, last: int) -> None:
        site.user.execute(
            "INSERT INTO rows SELECT n, %s FROM generate_series(%s::int, %s::int) n", (FILLER, first, last)
        )
        site.user.execute(
            "UPDATE rows SET body = 'changed' WHERE id %% 7 = 0 AND id BETWEEN %s AND %s", (first // 2, last)
        )

    def settle() -> None:
        """Let the queue save and report what is acknowledged; the log writer purges what it may."""
        positions = queue.positions_to_save()
        if positions is not None:
            queue.save_positions(positions)
            queue.positions_saved(positions, None)
        capture.step()
        site.catch_up()

    def rows(batches: list[LcrBatch]) -> int:
        return sum(batch.row_count for batch in batches)

    write(1, 500)
    a.take(queue, "001")
    b.take(queue, "001")
    backup = a.back_up(pg_destination)
    for turn in range(1, 5):
        write(500 * turn + 1, 500 * turn + 500)
        site.catch_up()  # a record for each, as a log switch happens only after a record
    a.take(queue, "002")
    b.take(queue, "002")
    before = b.content()
    assert a.content() == before
    settle()
    required = checkpoints.lowest
    assert required is not None
    assert checkpoints.scns(site.writer.oldest_scn)["capture_dbs1"].first_scn < required
    assert len(list_segments(site.folder)) > 2

    # After the restore, nothing from before the backup is mined or sent.
    a.dsn = backup
    lost = a.content()
    assert len(lost) == 500
    again = a.take(queue, "003")
    assert 2000 < rows(again) < 2000 + 2000
    assert a.content() == before
    assert (capture.details().rewinds_total or 0) >= 1
    assert rows(b.take(queue, "003")) == 0
    assert checkpoints.lowest == required

    # The operator has everything captured again: nobody gets the old changes twice, and then the new ones arrive.
    settle()
    first = checkpoints.scns(site.writer.oldest_scn)["capture_dbs1"].first_scn
    checkpoints.set_start_scn("capture_dbs1", first, oldest_scn=site.writer.oldest_scn)
    mined = capture.details().bytes_total
    assert mined is not None
    queue.capture_again("capture_dbs1", first)
    capture.step()
    write(9001, 9010)
    assert rows(a.take(queue, "004")) == rows(b.take(queue, "004")) < 1000
    assert (capture.details().bytes_total or 0) > mined, "all redo was mined again"
    assert a.content() == b.content() == site.user.execute("SELECT id, body FROM rows ORDER BY id").fetchall()
