"""A source's site in one process on a real server whose administrator is ahead: the log has tables that no topology has
taken up, or that the topology no longer takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo

from actors.site.asked_names import AskedNames
from actors.source_database import DatabaseSite
from headrace.base.errors import TableLeftRules
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.source.admin import PostgresSourceAdmin
from headrace.databases.postgres.source.database import PostgresSource
from headrace.databases.postgres.source.log_stream.pgoutput import PostgresLogDecoder
from headrace.lcr.scn import FIRST_SCN
from headrace.links.ports import RedoPosition
from headrace.redo.mining.miner import Miner
from headrace.rules.rule import Rule, RuleSet
from headrace.status.sites import SiteStatus
from tests.support.clusters.system import wait_until
from tests.support.wire.links import loopback
from topology.edits.receivers import Receivers
from topology.routing.ways import route
from topology.spec import ApplySpec, CaptureSpec, DatabaseSpec, QueueSpec, SiteSpec, TopologySpec

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

ADMIN = "headrace_ahead_admin"


def rules(*tables: str) -> RuleSet:
    return RuleSet(include=tuple(Rule(owner="public", name=name) for name in tables))


class Site:
    """A running site, prepared for table t, whose changes go to one apply process."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn, self.folder = dsn, folder
        self.user = psycopg.connect(dsn, autocommit=True)
        self.user.execute(f"DROP ROLE IF EXISTS {ADMIN}; CREATE ROLE {ADMIN} LOGIN SUPERUSER PASSWORD 'secret'")
        for name in "tuv":
            self.user.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)".encode())
        self.admin = PostgresSourceAdmin(conninfo.make_conninfo(dsn, user=ADMIN, password="secret"), dsn, site="dbs1")
        self.host: DatabaseSite | None = None
        self.publish("t")
        self.begin("t")
        self.prepare("t")

    def spec(self, *tables: str) -> TopologySpec:
        return route(
            TopologySpec(
                name="topo",
                file=self.folder / "topo.yaml",
                state_dir=self.folder,
                sites=(
                    SiteSpec(name="dbs1", database=DatabaseSpec(kind="postgres", dsn=self.dsn, has_admin=True)),
                    SiteSpec(name="dbs2", database=DatabaseSpec(kind="embedded")),
                ),
                queues=(QueueSpec(name="q", site="dbs1"),),
                captures=(CaptureSpec(name="c", site="dbs1", source="dbs1", queue="q", rules=rules(*tables)),),
                propagations=(),
                applies=(ApplySpec(name="a", site="dbs2", source="dbs1", queue="q"),),
                redo_bytes_max=1 << 20,
                segment_bytes=1 << 18,
            )
        )

    def begin(self, *tables: str) -> None:
        """Start the site's process."""
        if self.host is not None:
            self.host.end()
        self.host = DatabaseSite(self.spec(*tables), "dbs1", "fingerprint", loopback())
        self.host.start()
        self.wait("ready", lambda status: status.ready)

    def publish(self, *tables: str) -> None:
        self.admin.prepare("topo", (rules(*tables),), was_source=True)

    def prepare(self, *tables: str) -> None:
        """Prepare as the controller does for an edit: everything is recorded when `prepare` runs."""
        assert self.host is not None
        self.host.prepare(self.spec(*tables))
        self.wait("it writes", lambda status: status.state in {"IDLE", "WRITING"})

    def note(self, *tables: str) -> None:
        assert self.host is not None
        taken = [each for each in self.host.source.tables.captured() if each.name in tables]
        self.host.source.tables.note_receivers(Receivers.of(self.spec(*tables), "dbs1", taken))

    def run(self, statements: str) -> None:
        """Run each statement in its own transaction."""
        for statement in statements.split("; "):
            self.user.execute(statement.encode())

    def wait(self, what: str, holds: Callable[[SiteStatus], object]) -> None:
        host = self.host
        assert host is not None
        wait_until(what, lambda: holds(host.status()), timeout_s=90.0)

    def mined(self, *tables: str) -> list[str]:
        """Return the tables of the rows that a capture process with rules for `tables` takes, sorted; "" where a table
        left its rules.
        """
        host = self.host
        assert host is not None
        row = self.user.execute("SELECT pg_logical_emit_message(true, 'test', '') - '0/0'::pg_lsn").fetchone()
        assert row is not None
        self.wait(
            "it is written",
            lambda status: (
                (status.redo_scn or 0) >= int(row[0])
                and host.redo.writer is not None
                and not host.redo.writer.awaits_build
            ),
        )
        assert host.redo.writer is not None
        at = host.redo.writer.position
        names = AskedNames(lambda method: getattr(host.answering(method), method)())
        miner = Miner(
            self.folder / "sites" / "dbs1" / "redo", "dbs1", FIRST_SCN, rules(*tables), PostgresLogDecoder, names=names
        )
        found: list[str] = []
        try:
            while (batch := miner.next_batch(RedoPosition(at.segment, at.offset, at.scn))) is not None:
                found += [batch.tables[group.table].name for group in batch.groups for _ in range(group.row_count)]
        except TableLeftRules:
            found.append("")
        finally:
            miner.close()
        return sorted(found)  # a batch groups the rows of a table

    def close(self) -> None:
        assert self.host is not None
        self.host.end()
        source = PostgresSource(self.dsn, site="dbs1")
        source.remove("topo")
        source.close()
        self.run(f"DROP OWNED BY {ADMIN}; DROP ROLE {ADMIN}")
        self.user.close()


@pytest.fixture
def site(
    pg_source: EmbeddedServer,
    fresh_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
) -> Iterator[Site]:
    made = Site(fresh_database(pg_source), tmp_path)
    made.note("t")
    yield made
    made.close()


def test_table_published_for_an_edit_blocks_no_capture_process(site: Site) -> None:
    """The running rules do not take the table, as if it had been renamed out of them."""
    site.publish("t", "u")
    site.run("INSERT INTO t VALUES (1); INSERT INTO u VALUES (1); INSERT INTO t VALUES (2)")
    assert site.mined("t") == ["t", "t"]
    # The edit's rules do take it. No apply process in the record gets it, which loses nothing.
    assert site.mined("t", "u") == ["t", "t", "u"]
    site.begin("t")
    assert site.mined("t") == ["t", "t"]


def test_status_reports_a_published_table_that_is_not_taken_up(site: Site) -> None:
    host = site.host
    assert host is not None
    assert host.source.uncaptured(site.spec("t")) == ()
    site.publish("t", "u")
    edited = site.spec("t", "u")
    assert host.source.uncaptured(site.spec("t")) == (), (
        "an edit that was not accepted: nothing is to be done for the running topology"
    )
    assert host.source.uncaptured(edited) == ("public.u",)
    # The controller asks by its own record, which may contain the table.
    noted = Receivers.of(edited, "dbs1", host.source.tables.captured())
    assert host.source.uncaptured(edited, noted) == ()
    assert host.source.uncaptured(edited, host.source.tables.receivers()) == ("public.u",)
    site.prepare("t", "u")
    assert host.source.uncaptured(edited) == ()
    assert host.source.uncaptured(edited, host.source.tables.receivers()) == ("public.u",), (
        "its record was not written yet"
    )


def test_accepted_table_renamed_before_its_record_blocks(site: Site) -> None:
    """An apply process has had the table since it was taken up: its rows must not be skipped."""
    site.publish("t", "u")
    site.begin("t", "u")
    site.prepare("t", "u")
    site.run("INSERT INTO u VALUES (1); ALTER TABLE u RENAME TO w; INSERT INTO w VALUES (2); INSERT INTO t VALUES (1)")
    assert site.mined("t", "u") == ["", "u"]
    site.begin("t", "u")
    assert site.mined("t", "u") == ["", "u"]
    # `up` with unchanged rules takes the table out. It stays in the log until then and afterwards.
    site.prepare("t", "u")
    site.note("t")
    assert site.mined("t", "u") == ["t", "u"]


def test_table_that_an_edit_removes_blocks_no_capture_process(site: Site) -> None:
    site.publish("t", "u")
    site.begin("t", "u")
    site.prepare("t", "u")
    site.note("t", "u")
    site.prepare("t")
    site.run("INSERT INTO u VALUES (1); INSERT INTO t VALUES (1)")
    # The site may follow the edit already or not; the record of receivers is still the old one.
    assert site.mined("t") == ["t"]
    site.begin("t")
    assert site.mined("t") == ["t"]
    site.note("t")
    assert site.mined("t") == ["t"]
    assert site.host is not None
    assert site.host.source.uncaptured(site.spec("t")) == ()
    assert site.admin.take_out(
        "topo", {each.identity for each in site.host.source.tables.captured() if each.name == "t"}
    )
    assert site.mined("t") == ["t"]
