"""The dictionary build on a real server: the log writer waits for no user, and no row is mined before the catalog shows
its table.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from headrace.base.errors import UnsupportedType
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.catalog.source_tables import slot_name
from headrace.databases.postgres.source.database import PostgresSource
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import FIRST_SCN
from headrace.rules.rule import Rule, RuleSet
from tests.support.databases.server_settings import reload_settings
from tests.support.redo.postgres_redo import READ_TIMEOUT_S, WAIT_S, RedoSite, wait_until

pytestmark = [pytest.mark.postgres]

RULES = RuleSet(
    include=(Rule(owner="public", name="a"), Rule(owner="public", name="b"), Rule(owner="public", name="t"))
)


@pytest.fixture
def site(
    pg_source: EmbeddedServer, fresh_database: Callable[[EmbeddedServer], str], tmp_path: Path
) -> Iterator[RedoSite]:
    made = RedoSite(fresh_database(pg_source), tmp_path / "redo")
    for statement in (
        "CREATE TABLE a (id int, c text) PARTITION BY LIST (id)",
        "CREATE TABLE a1 PARTITION OF a FOR VALUES IN (1, 2, 3)",
        "CREATE TABLE b (id int) PARTITION BY LIST (id)",
        "CREATE TABLE t (id int)",
    ):
        made.user.execute(statement)
    made.source.prepare("topo", (RULES,))
    made.attach()
    yield made
    made.close()
    made.source = PostgresSource(made.dsn)
    made.source.remove("topo")
    made.source.close()


@contextmanager
def synchronous(site: RedoSite, standby: str) -> Iterator[None]:
    """Make commits wait for a standby, except those of the test's own session."""
    try:
        # A commit of autovacuum would also wait for the standby.
        for statement in ("SET autovacuum = off", f"SET synchronous_standby_names = '{standby}'"):
            site.user.execute(f"ALTER SYSTEM {statement}")
        site.user.execute("SET synchronous_commit = local")
        reload_settings(site.dsn, "synchronous_standby_names", standby)
        yield
    finally:
        site.user.execute("ALTER SYSTEM RESET synchronous_standby_names")
        site.user.execute("ALTER SYSTEM RESET autovacuum")
        reload_settings(site.dsn, "synchronous_standby_names", "")


class Commit:
    """Statements of one transaction in its own session, which waits in its COMMIT."""

    def __init__(self, site: RedoSite, *statements: str) -> None:
        self.site = site
        self.session = psycopg.connect(site.dsn, autocommit=True)
        self._thread = threading.Thread(
            target=self.session.execute, args=("BEGIN; " + "; ".join(statements) + "; COMMIT",)
        )
        self._thread.start()

    def wait_logged(self) -> None:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
        wait_until(lambda: self.site.user.execute(asked, (self.session.info.backend_pid,)).fetchone() == (1,))

    def let_go(self) -> None:
        """Complete the commit without the standby."""
        self.site.user.execute("SELECT pg_cancel_backend(%s)", (self.session.info.backend_pid,))
        self.end()

    def end(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the COMMIT waits"
        self.session.close()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()


def tables(batches: list[LcrBatch]) -> list[str]:
    return [
        batch.tables[place].qualified_name
        for batch in batches
        for place in [
            *(group.table for group in batch.groups for _ in group.row_numbers),
            *(t for each in batch.truncates for t in each.tables),
        ]
    ]


def mined(site: RedoSite) -> list[str]:
    return sorted(tables(list(site.mine(site.miner(FIRST_SCN, RULES)))))


@pytest.mark.parametrize(
    "statements",
    [
        ("TRUNCATE a1",),
        ("ALTER TABLE a ADD d int", "INSERT INTO a VALUES (1)"),
        ("CREATE TABLE a4 PARTITION OF a FOR VALUES IN (4)", "INSERT INTO a VALUES (4)"),
    ],
    ids=["truncate", "alter", "new partition"],
)
def test_commit_that_waits_for_the_log_writer_and_holds_a_partition_ends(
    site: RedoSite, statements: tuple[str, ...]
) -> None:
    with synchronous(site, slot_name("topo", site.user.info.dbname)):
        commit = Commit(site, *statements)
        wait_until(lambda: bool(site.writer.step(READ_TIMEOUT_S) and False) or commit.is_over)
        commit.end()
    site.user.execute("INSERT INTO t VALUES (1)")
    site.catch_up()
    assert mined(site) == ["public.a", "public.t"]
    build = site.source.dictionary_build("topo")
    assert build is not None
    assert all(table.rows for table in build.tables if table.root_number != table.object_number)


def test_locked_partition_blocks_neither_other_tables_nor_the_monitoring(site: RedoSite) -> None:
    with psycopg.connect(site.dsn) as holder:
        holder.execute("LOCK TABLE a1 IN ACCESS EXCLUSIVE MODE")
        site.user.execute("INSERT INTO t VALUES (1)")
        site.catch_up()
        assert mined(site) == ["public.t"]
        site.stream.close()
        site.attach()
        site.user.execute("INSERT INTO t VALUES (2)")
        site.catch_up()
        assert mined(site) == ["public.t", "public.t"]
        assert [table.name for table in site.source.captured("topo")] == ["a", "b", "t"]
        assert site.source.uncaptured("topo", (RULES,)) == ()
        build = site.source.dictionary_build("topo")
        assert build is not None
        assert [table.rows for table in build.tables if table.stored_name == "a1"] == [""], "its bounds cannot be read"
    build = site.source.dictionary_build("topo")
    assert build is not None
    assert all(table.rows for table in build.tables if table.stored_name == "a1")


def test_rows_of_a_partition_wait_until_the_catalog_shows_it(site: RedoSite) -> None:
    """Another standby is away: the transaction is in the log and stays invisible until the standby returns."""
    with synchronous(site, "away"):
        commit = Commit(site, "CREATE TABLE a4 PARTITION OF a FOR VALUES IN (4)", "INSERT INTO a VALUES (4)")
        commit.wait_logged()
        site.user.execute("INSERT INTO t VALUES (1)")
        site.catch_up(has_build=False)
        assert mined(site) == []
        site.stream.close()
        site.writer.close()
        site.writer = site.new_writer()
        site.attach()
        site.catch_up(has_build=False)
        assert mined(site) == []
        commit.let_go()
    site.catch_up()
    assert mined(site) == ["public.a", "public.t"]


def test_archived_partition_continues_under_its_new_table(site: RedoSite) -> None:
    site.user.execute("ALTER TABLE a DROP c")
    site.user.execute("ALTER TABLE a DETACH PARTITION a1")
    site.user.execute("ALTER TABLE b ATTACH PARTITION a1 FOR VALUES IN (1, 2, 3)")
    site.user.execute("INSERT INTO b VALUES (1)")
    site.catch_up()
    assert mined(site) == ["public.b"]


@pytest.mark.parametrize("column", ["regclass", "own_regclass", "pair"])
def test_invisible_column_without_a_safe_binary_form_is_not_sent_binary(site: RedoSite, column: str) -> None:
    """A value that is a number of the source's catalog would be stored as another one, silently."""
    assert site.stream.options.binary
    with synchronous(site, "away"):
        commit = Commit(
            site,
            "CREATE DOMAIN own_regclass AS regclass",
            "CREATE TYPE pair AS (a int, b regclass)",
            f"ALTER TABLE t ADD c {column}",
            "INSERT INTO t VALUES (1)",
        )
        commit.wait_logged()
        with pytest.raises(UnsupportedType, match="binary"):
            site.catch_up()
        refused_at = site.writer.position.scn  # work of the server itself may precede the transaction in its log
        commit.let_go()
    site.stream.close()
    site.attach()
    assert not site.stream.options.binary
    site.catch_up()
    batches = list(site.mine(site.miner(FIRST_SCN, RULES)))
    assert tables(batches) == ["public.t"]
    assert [int(scn) for batch in batches for scn in batch.transactions.commit_scn if scn <= refused_at] == []


def test_commit_waiting_for_remote_write_waits_until_it_is_durable(site: RedoSite) -> None:
    """`remote_write` promises that another process has the commit. A commit that the log writer has only read is stored
    nowhere.
    """
    asked = "SELECT reply_time > %s, write_lsn <= flush_lsn FROM pg_stat_replication WHERE application_name = %s"
    name = slot_name("topo", site.user.info.dbname)
    site.catch_up()
    confirmed = site.writer.position.scn
    with synchronous(site, name):
        commit = Commit(site, "SET LOCAL synchronous_commit = remote_write", "INSERT INTO t VALUES (1)")
        commit.wait_logged()
        read = b""
        while b"\0\0\0\x01" not in read:
            chunk = site.stream.read(READ_TIMEOUT_S)
            read += chunk.data if chunk is not None else b""
        (now,) = site.user.execute("SELECT clock_timestamp()").fetchone() or (None,)
        site.stream.confirm(confirmed)
        wait_until(lambda: site.user.execute(asked, (now, name)).fetchone() == (True, True))
        assert not commit.is_over
        site.stream.close()
        site.attach()
        wait_until(lambda: bool(site.writer.step(READ_TIMEOUT_S) and False) or commit.is_over)
        commit.end()


def test_visibility_check_handles_wrapped_transaction_numbers(site: RedoSite) -> None:
    from headrace.databases.postgres.source.log_stream.transactions import are_visible

    with closing(psycopg.connect(site.dsn)) as running:
        number = running.execute("SELECT pg_current_xact_id()::text::int8").fetchone()
        assert number is not None
        assert not are_visible(site.user, [number[0]])
        # Autovacuum takes some of the next ones.
        assert not are_visible(site.user, [number[0] + 100_000]), "it has not begun"
        assert are_visible(site.user, [number[0] - 1])
        assert are_visible(site.user, [(1 << 32) - 7]), "a number of the previous round"
    wait_until(lambda: are_visible(site.user, [number[0]]))
