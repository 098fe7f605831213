"""PostgreSQL as a source, against the real server: streams, restarts, tags, partitions, gaps, snapshots.

Longer than 500 lines: all of it shares the server and the helpers that read its stream.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import psycopg
import pytest
from psycopg import sql

from headrace.base.errors import CapturedNoMore, DatabaseUnavailable, LogGone
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import Snapshot
from headrace.databases.postgres.copying.table_copy import use_snapshot
from headrace.databases.postgres.destination.records.schema import prepare_schema
from headrace.databases.postgres.source.database import PostgresSource
from headrace.lcr.batch import Command, OldImage
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.lcr.tags import Tag
from headrace.lcr.values import ABSENT, NULL, UNCHANGED
from headrace.load.pgbench import HISTORY_IDENTITY, Pgbench, run_pgbench
from headrace.rules.rule import Rule, RuleSet
from tests.support.clusters.system import wait_until
from tests.support.databases.log_reading import TIMEOUT_S, Reading
from tests.support.databases.postgres_site import ALL, Site, slot_of, wait_inactive
from tests.support.databases.server_settings import reload_settings
from tests.support.databases.statements import roll_back, row_of
from tests.support.databases.tls_proxy import TlsProxy
from tests.support.session.background import in_background
from tests.support.session.matrices import values

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

SITES = ["18 raw", "18 libpq", "16 raw", "16 libpq", "15 raw"]
# For what depends on the wire, not on the version.
on_each_wire = pytest.mark.parametrize("any_site", values(SITES, "18 raw", "16 libpq"), indirect=True)


# ---------------------------------------------------------------- streams


def test_all_commands_arrive_with_their_values(any_site: tuple[Site, bool]) -> None:
    site, force_libpq = any_site
    site.run("CREATE TABLE t (id int PRIMARY KEY, a text, big text)")
    site.run("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    site.run("CREATE TABLE f (a int, b text)")
    site.run("ALTER TABLE f REPLICA IDENTITY FULL")
    site.prepare()
    reading = site.open(force_libpq=force_libpq)
    site.run("INSERT INTO t VALUES (1, NULL, repeat('x', 5000))")
    site.run("UPDATE t SET a = 'one'")
    site.run("BEGIN; UPDATE t SET id = 2; INSERT INTO f VALUES (7, NULL), (7, NULL); COMMIT")
    site.run("UPDATE f SET b = 'z' WHERE ctid = '(0,1)'")
    site.run("DELETE FROM t")
    site.run("TRUNCATE f, t RESTART IDENTITY CASCADE")
    reading.through(site.mark())

    one, two, three, four, five, six, mark = reading.transactions
    one_int, two_int = b"\0\0\0\x01", b"\0\0\0\x02"
    assert one.rows[0].new == {"id": one_int, "a": NULL, "big": b"x" * 5000}
    assert two.rows[0].new == {"id": one_int, "a": b"one", "big": UNCHANGED}
    assert (two.rows[0].old_image, two.rows[0].old) == (OldImage.NONE, {})
    assert three.rows[0].old == {"id": one_int, "a": ABSENT, "big": ABSENT}
    assert [row.command for row in three.rows] == [Command.UPDATE, Command.INSERT, Command.INSERT]
    assert four.rows[0].old == {"a": b"\0\0\0\x07", "b": NULL}
    assert four.rows[0].old_image is OldImage.FULL
    assert (five.rows[0].command, five.rows[0].old) == (Command.DELETE, {"id": two_int, "a": ABSENT, "big": ABSENT})
    numbers = {v.name: v.object_number for v in reading.versions.values()}
    assert six.truncates == [((numbers["f"], numbers["t"]), True, True)]
    assert mark.rows == []
    assert reading.messages == [(mark.order_scn, "headrace.marker", b"mark")]
    scns = [scn for t in reading.transactions for scn in (t.order_scn, t.commit_scn)]
    assert scns == sorted(scns)
    assert len(set(scns[1::2])) == 7
    assert reading.stream.options.server_version in {15, 16, 18}
    columns = {c.name: c for c in reading.versions[numbers["t"]].columns}
    assert columns["id"].is_key
    assert not columns["a"].is_key
    assert columns["id"].type_name == "pg_catalog.int4"


def test_raw_socket_and_libpq_give_the_same_bytes(site: Site) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    site.prepare()
    site.run("INSERT INTO t SELECT g, repeat('x', g % 500) FROM generate_series(1, 3000) g")
    site.run("UPDATE t SET id = id + 10000")
    mark = site.mark()
    raw = site.open().through(mark)
    raw.stream.close()
    wait_inactive(site)
    libpq = site.open(force_libpq=True).through(mark)
    assert _of_the_log(raw.data) == _of_the_log(libpq.data)
    assert len(raw.rows()) == 6000


def _of_the_log(data: bytearray) -> list[bytes]:
    """Return the frames without parts that depend on the moment of reading instead of the log.

    These are the clock in each frame, and repeated table descriptions: the server repeats one when its cache was
    invalidated, as autovacuum does at any time.
    """
    found, described, at = [], set(), 0
    while at < len(data):
        end = at + 1 + int.from_bytes(data[at + 1 : at + 5], "big")
        head, body = bytes(data[at : at + 22]), bytes(data[at + 30 : end])
        if not (body.startswith(b"R") and body in described):
            found.append(head + body)
        described.add(body)
        at = end
    return found


def test_stream_over_tls_delivers_all_at_once_and_never_blocks(site: Site, pg_source: EmbeddedServer) -> None:
    """TLS delivers whole records: bytes may be inside libpq while the socket shows nothing."""
    site.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    site.prepare()
    proxy = TlsProxy(pg_source.port)
    try:
        dsn = site.dsn.replace(f"port={pg_source.port}", f"port={proxy.port}").replace(
            "sslmode=disable", "sslmode=require"
        )
        source = PostgresSource(dsn)
        reading = Reading(source.open_stream("topo", FIRST_SCN))
        assert reading.stream._connection.pgconn.ssl_in_use  # type: ignore[attr-defined]
        for number in range(30):
            site.run("INSERT INTO t SELECT %s * 1000 + g, repeat('x', 100 * g) FROM generate_series(1, 40) g", number)
            began = time.monotonic()
            reading.through(site.mark())
            assert time.monotonic() - began < 9, "stuck until the server's keepalive, 10 s"
        site.run("INSERT INTO t SELECT 100000 + g, repeat('x', 100) FROM generate_series(1, 50000) g")
        site.run("INSERT INTO t SELECT 0, repeat('y', 20000000)")
        reading.through(site.mark())
        assert len(reading.rows()) == 30 * 40 + 50_001
        reading.stream.confirm(Scn(reading.end_scn))
        reading.stream.close()
        wait_inactive(site)
        assert site.source.open_stream("topo", FIRST_SCN).start_scn == reading.end_scn
        source.close()
    finally:
        proxy.close()


def test_closing_a_stream_frees_its_slot(site: Site) -> None:
    site.prepare()
    for force_libpq in (False, True):
        reading = site.open(force_libpq=force_libpq)
        with pytest.raises(DatabaseUnavailable, match="active"):
            site.open(force_libpq=not force_libpq)
        reading.stream.close()
        reading.stream.close()
        with pytest.raises(DatabaseUnavailable):
            reading.stream.read(0.0)
        wait_inactive(site)


def test_idle_stream_wakes_at_once(site: Site) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.prepare()
    reading = site.open()
    reading.through(site.mark())
    rounds: list[list[float]] = []
    while not rounds or (len(rounds) < 15 and median(rounds[-1]) >= 0.05):  # on a machine that is busy for a while
        waits = []
        for number in range(20 * len(rounds), 20 * len(rounds) + 20):
            while reading.one(0.02):  # the server's own work also moves the position
                pass
            assert len(reading.rows()) == number
            site.run("INSERT INTO t VALUES (%s)", number)
            began = time.perf_counter()
            while len(reading.rows()) <= number or reading.transactions[-1].commit_scn == 0:
                reading.one(1.0)
            waits.append(time.perf_counter() - began)
        rounds.append(waits)
    # About 0.2 ms on an idle machine; a poll interval would show in each round.
    assert median(rounds[-1]) < 0.05, rounds


@on_each_wire
def test_backlog_is_read_in_gulps_and_not_message_by_message(any_site: tuple[Site, bool]) -> None:
    site, force_libpq = any_site
    site.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    site.prepare()
    site.run("INSERT INTO t SELECT g, 'some text' FROM generate_series(1, 50000) g")
    reading = site.open(force_libpq=force_libpq).through(site.mark())
    assert len(reading.rows()) == 50_000
    assert reading.chunks < 1500, "a chunk is many rows"


@on_each_wire
def test_break_within_a_transaction_replays_it_completely(any_site: tuple[Site, bool]) -> None:
    site, force_libpq = any_site
    site.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    site.prepare()
    site.run("INSERT INTO t VALUES (0, 'before')")
    site.run("INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series(1, 60000) g")
    reading = site.open(force_libpq=force_libpq)
    while not reading.transactions or reading.transactions[-1].commit_scn or len(reading.transactions[-1].rows) < 10:
        assert reading.one(TIMEOUT_S)
    assert reading.transactions[-1].commit_scn == 0
    start = reading.end_scn
    # A keepalive may have reported a position between the two.
    assert reading.transactions[0].commit_scn <= start < reading.transactions[-1].order_scn, (
        "an open transaction does not move the position"
    )
    reading.stream.confirm(Scn(start))
    reading.stream.close()
    wait_inactive(site)
    again = site.open(start, force_libpq=force_libpq).through(site.mark())
    assert [len(t.rows) for t in again.transactions] == [60_000, 0]
    assert (again.transactions[0].order_scn, again.transactions[0].transaction_id) == (
        reading.transactions[-1].order_scn,
        reading.transactions[-1].transaction_id,
    )


def test_unconfirmed_transactions_are_replayed_and_confirmed_ones_are_not(site: Site) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.prepare()
    for number in range(4):
        site.run("INSERT INTO t VALUES (%s)", number)
    reading = site.open().through(site.mark())
    second = reading.transactions[1].commit_scn
    reading.stream.confirm(Scn(second))
    reading.stream.close()
    wait_inactive(site)
    again = site.open().through(reading.end_scn)
    assert again.stream.start_scn == second
    assert [int.from_bytes(row.new["id"], "big") for row in again.rows()] == [2, 3]


@pytest.mark.parametrize("force_libpq", [False, True])
def test_server_crash_breaks_the_stream_and_nothing_is_lost(
    site: Site, pg_source: EmbeddedServer, force_libpq: bool
) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.prepare()
    site.run("INSERT INTO t VALUES (1)")
    reading = site.open(force_libpq=force_libpq).through(site.mark())
    reading.stream.confirm(Scn(reading.end_scn))
    pg_source.restart(immediate=True)
    with pytest.raises(DatabaseUnavailable):
        reading.through(1 << 60)
    with pytest.raises(DatabaseUnavailable):
        reading.stream.read(0.0)
    site.reconnect()
    site.run("INSERT INTO t VALUES (2)")
    again = _retry(lambda: site.open(reading.end_scn, force_libpq=force_libpq))
    again.through(_retry(site.mark))
    assert [row.new["id"] for row in again.rows()] == [b"\0\0\0\x02"]


def _retry(action):
    for _ in range(5):
        try:
            return action()
        except DatabaseUnavailable:
            time.sleep(0.05)
    return action()


def test_orderly_shutdown_waits_for_the_stream_and_does_not_hang(site: Site, pg_source: EmbeddedServer) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.prepare()
    reading = site.open().through(site.mark())
    site.run("INSERT INTO t VALUES (1)")
    stopping = threading.Thread(target=pg_source.stop)
    stopping.start()

    def read_and_confirm() -> None:
        while True:
            reading.one(0.05)
            reading.stream.confirm(Scn(reading.end_scn))

    with pytest.raises(DatabaseUnavailable):
        read_and_confirm()
    stopping.join(TIMEOUT_S)
    assert not stopping.is_alive()
    assert len(reading.rows()) == 1, "all commits before the shutdown arrived before the end"
    pg_source.start()


def test_position_moves_when_only_other_tables_change(any_site: tuple[Site, bool]) -> None:
    site, force_libpq = any_site
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.run("CREATE SCHEMA other CREATE TABLE u (id int)")
    site.prepare()
    reading = site.open(force_libpq=force_libpq)
    site.run("INSERT INTO other.u SELECT generate_series(1, 1000)")
    reading.through(site.source.current_scn())
    confirmed = "SELECT confirmed_flush_lsn - '0/0' >= %s FROM pg_replication_slots WHERE database = current_database()"
    first = reading.end_scn

    def moved() -> bool:
        reading.one(0.05)
        reading.stream.confirm(Scn(reading.end_scn))
        # The server moves its reading position only when it has logged the running transactions, every 15 s.
        retained = site.source.retained_bytes("topo")
        return site.run(confirmed, first).fetchone() == (True,) and retained is not None and retained < 1_000_000

    wait_until("the slot has moved", moved)
    assert reading.data == b""


@pytest.mark.parametrize("any_site", values(SITES, "18 raw", "18 libpq"), indirect=True)
def test_64_megabyte_value_passes_and_the_buffer_shrinks_again(any_site: tuple[Site, bool]) -> None:
    site, force_libpq = any_site
    site.run("CREATE TABLE t (id int PRIMARY KEY, a bytea)")
    site.prepare()
    reading = site.open(force_libpq=force_libpq)
    site.run("INSERT INTO t SELECT 1, decode(repeat('ab', 67108864), 'hex')")
    site.run("INSERT INTO t VALUES (2, '')")
    reading.through(site.mark())
    first, second = reading.rows()
    assert first.new["a"] == b"\xab" * (64 << 20)
    assert second.new["a"] == b""
    assert reading.stream._buffer.size < 16 << 20  # type: ignore[attr-defined]


def test_many_tables_and_small_transactions_arrive_in_order(site: Site) -> None:
    for number in range(50):
        site.run(f"CREATE TABLE t{number} (id int PRIMARY KEY, m text)")
    site.prepare()
    reading = site.open()
    for number in range(300):
        site.run(f"INSERT INTO t{number * 7 % 50} VALUES ({number}, 'x')")
    reading.through(site.mark())
    assert [row.table.name for row in reading.rows()] == [f"t{number * 7 % 50}" for number in range(300)]


def test_pgbench_with_several_clients_arrives_completely(site: Site, tmp_path: Path) -> None:
    run_pgbench(site.dsn, "-i", "-s", "1", "-q")
    site.run(HISTORY_IDENTITY)
    site.prepare()
    reading = site.open()
    with contextlib.closing(Pgbench(site.dsn, "-c", "4", "-t", "250", log=tmp_path / "pgbench.log").start()) as bench:
        while not bench.is_done():
            reading.one(0.1)
    reading.through(site.mark())
    transactions = [t for t in reading.transactions if t.rows]
    assert len(transactions) == 1000
    assert all(len(t.rows) == 4 for t in transactions)
    deltas = [r.new["delta"] for t in transactions for r in t.rows if r.table.name == "pgbench_history"]
    total = sum(int.from_bytes(d, "big", signed=True) for d in deltas if isinstance(d, bytes))
    assert site.run("SELECT sum(abalance) FROM pgbench_accounts").fetchone() == (total,)


# ---------------------------------------------------------------- tags


def test_tags_come_from_replication_origins(any_site: tuple[Site, bool]) -> None:
    site, force_libpq = any_site
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.prepare()
    reading = site.open(force_libpq=force_libpq)
    database = row_of(site.run("SELECT current_database()"))[0]
    ours, other = f"headrace:{database}/apply_x/0:00", f"somebody_{database}"
    try:
        for number, origin in enumerate((ours, other)):
            with psycopg.connect(site.dsn, autocommit=True) as session:
                session.execute("SELECT pg_replication_origin_create(%s)", (origin,))
                session.execute("SELECT pg_replication_origin_session_setup(%s)", (origin,))
                session.execute("INSERT INTO t VALUES (%s)", (number,))
                # it is dropped before the session's end, perhaps
                session.execute("SELECT pg_replication_origin_session_reset()")
        site.run("INSERT INTO t VALUES (9)")
        reading.through(site.mark())
    finally:
        for origin in (ours, other):
            site.run("SELECT pg_replication_origin_drop(%s)", origin)
    tags = [t.tag for t in reading.transactions if t.rows]
    assert tags == [Tag(value=b"\x00", topology=str(database), apply="apply_x"), None, None]


def test_first_set_tag_call_holds_until_the_transaction_or_savepoint_ends(site: Site) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        prepare_schema(connection)
    site.prepare()
    reading = site.open()
    with psycopg.connect(site.dsn, autocommit=True) as session:
        with session.transaction():
            session.execute("SELECT headrace.set_tag('0B')")
            session.execute("INSERT INTO t VALUES (1)")
        session.execute("INSERT INTO t VALUES (2)")
        with session.transaction():
            with session.transaction():
                session.execute("SELECT headrace.set_tag('0c')")
                roll_back()
            session.execute("INSERT INTO t VALUES (3)")
        with session.transaction():
            session.execute("SELECT pg_logical_emit_message(true, 'headrace.tag', '\\x0d00'::bytea)")
            session.execute("INSERT INTO t SELECT generate_series(4, 5)")
    reading.through(site.mark())
    tags = [t.tag for t in reading.transactions if t.rows]
    assert tags == [Tag(value=b"\x0b"), None, None, Tag(value=b"\x0d\x00")]


@on_each_wire
def test_messages_of_other_programs_are_skipped_their_transactions_kept(any_site: tuple[Site, bool]) -> None:
    """Any role that may connect can write a message of up to 1 GB."""
    site, force_libpq = any_site
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.prepare()
    reading = site.open(force_libpq=force_libpq)
    with psycopg.connect(site.dsn, autocommit=True) as session:
        for prefix in ("other", "headrace.track"):
            with session.transaction():
                session.execute("INSERT INTO t SELECT count(*) FROM t")
                session.execute("SELECT pg_logical_emit_message(true, %s, repeat('x', 20000000))", (prefix,))
                session.execute("INSERT INTO t SELECT count(*) FROM t")
            session.execute("SELECT pg_logical_emit_message(false, %s, repeat('x', 20000000))", (prefix,))
            session.execute("SELECT pg_logical_emit_message(true, %s, repeat('x', 20000000))", (prefix,))
    reading.through(site.mark())
    assert [len(t.rows) for t in reading.transactions if t.rows] == [2, 2]
    assert len(reading.data) < 100_000


@pytest.mark.parametrize(
    ("statements", "error"),
    [
        (["INSERT INTO t VALUES (1)", "SELECT headrace.set_tag('0b')"], "before its first change, once"),
        (["SELECT headrace.set_tag('0b')", "SELECT headrace.set_tag('0c')"], "before its first change, once"),
        (["SELECT headrace.set_tag('b')"], "1 to 2000 bytes in hexadecimal"),
        (["SELECT headrace.set_tag(repeat('0b', 2001))"], "1 to 2000 bytes in hexadecimal"),
        (["SELECT headrace.set_tag(NULL)"], "1 to 2000 bytes in hexadecimal"),
    ],
)
def test_invalid_tag_or_one_too_late_for_the_transaction_is_refused(
    site: Site, statements: list[str], error: str
) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    *before, refused = statements
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        prepare_schema(connection)
        connection.execute("BEGIN")
        for statement in before:
            connection.execute(statement)
        with pytest.raises(psycopg.Error, match=error):
            connection.execute(refused)


def test_tag_outside_of_a_transaction_block_is_warned_of(site: Site) -> None:
    notices: list[str] = []
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        prepare_schema(connection)
        connection.execute("CREATE TABLE t (id int)")
        connection.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
        with connection.transaction():
            connection.execute("SELECT headrace.set_tag('0b')")
        # One string, as `psql -c` sends it.
        connection.execute("BEGIN; SELECT headrace.set_tag('0b'); SELECT headrace.track('a'); DELETE FROM t; COMMIT")
        connection.execute("SELECT headrace.set_tag('0b'); DELETE FROM t")
        connection.execute("DO $$ BEGIN PERFORM headrace.set_tag('0b'); DELETE FROM t; END $$")
        assert notices == []
        connection.execute("SELECT headrace.set_tag('0b')")
        connection.execute(" select headrace.track('a');")
    assert ["between BEGIN and COMMIT" in notice for notice in notices] == [True, True]


# ---------------------------------------------------------------- partitions, generated columns, changes of tables


def test_partitions_arrive_under_their_own_names_with_their_root(any_site: tuple[Site, bool]) -> None:
    site, force_libpq = any_site
    site.run("CREATE TABLE p (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)")
    site.run("CREATE TABLE p_old PARTITION OF p FOR VALUES FROM ('2020-01-01') TO ('2025-01-01')")
    site.run(
        "CREATE TABLE p_new PARTITION OF p FOR VALUES FROM ('2025-01-01') TO ('2030-01-01') PARTITION BY LIST (id)"
    )
    site.run("CREATE TABLE p_new_1 PARTITION OF p_new FOR VALUES IN (1)")
    assert [(t.name, t.is_partitioned) for t in site.source.tables(ALL)] == [("p", True)]
    statements = site.prepare()
    assert 'TABLE "public"."p" WITH' in statements[0]
    reading = site.open(force_libpq=force_libpq)
    site.run("INSERT INTO p VALUES (1, '2021-05-05')")
    site.run("UPDATE p SET at = '2026-05-05'")  # moves between partitions: delete and insert
    site.run("CREATE TABLE p_new_2 PARTITION OF p_new FOR VALUES IN (2)")
    site.run("INSERT INTO p VALUES (2, '2027-01-01')")
    site.run("TRUNCATE p_old")
    reading.through(site.mark())
    assert [(r.command, r.table.name) for r in reading.rows()] == [
        (Command.INSERT, "p_old"),
        (Command.DELETE, "p_old"),
        (Command.INSERT, "p_new_1"),
        (Command.INSERT, "p_new_2"),
    ]
    roots = {t.stored_name: (t.owner, t.name) for t in site.source.dictionary_build("topo").tables}
    assert {roots[name] for name in ("p_old", "p_new_1", "p_new_2")} == {("public", "p")}
    (table,) = site.source.captured("topo")
    (root,) = {t.root_number for t in site.source.dictionary_build("topo").tables}
    assert root in table.object_numbers
    numbers = {t.stored_name: t.object_number for t in site.source.dictionary_build("topo").tables}
    assert [t.truncates for t in reading.transactions if t.truncates] == [[((numbers["p_old"],), False, False)]]


def test_stored_generated_columns_do_not_break_users_statements(any_site: tuple[Site, bool]) -> None:
    site, force_libpq = any_site
    site.run("CREATE TABLE g (a int, b int GENERATED ALWAYS AS (a * 2) STORED)")
    site.run("ALTER TABLE g REPLICA IDENTITY FULL")
    site.prepare()
    reading = site.open(force_libpq=force_libpq)
    site.run("INSERT INTO g VALUES (1)")
    site.run("UPDATE g SET a = 2")
    site.run("DELETE FROM g")
    reading.through(site.mark())
    assert [r.command for r in reading.rows()] == [Command.INSERT, Command.UPDATE, Command.DELETE]
    (table,) = site.source.tables(ALL)
    has_values = site.user.info.server_version >= 180000
    assert (table.columns, table.computed, table.unlogged) == (
        (("a", "b"), ("b",), ()) if has_values else (("a",), (), ("b",))
    )
    assert [tuple(row.new) for row in reading.rows()[:1]] == [table.columns]
    assert [column.is_computed for column in site.source.table_versions([table])[0].columns] == [False, True][
        : len(table.columns)
    ]
    assert [each.computed for each in site.source.dictionary_build("topo").tables] == [("b",) if has_values else ()]


def test_altered_table_gets_a_new_version_in_place(site: Site) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    site.prepare()
    reading = site.open()
    site.run("INSERT INTO t VALUES (1, 'x')")
    site.run(
        "BEGIN; INSERT INTO t VALUES (2, 'x'); ALTER TABLE t ADD c numeric(8, 2); INSERT INTO t VALUES (3, 'x', 1.5);"
        " COMMIT"
    )
    site.run("ALTER TABLE t DROP a; ALTER TABLE t RENAME c TO d")
    site.run("INSERT INTO t VALUES (4, 2.5)")
    reading.through(site.mark())
    rows = reading.rows()
    assert [tuple(row.new) for row in rows] == [("id", "a"), ("id", "a"), ("id", "a", "c"), ("id", "d")]
    assert rows[2].table.columns[2].type_modifier == (8 << 16 | 2) + 4
    assert len({row.table.version for row in rows}) == 3


def test_tables_added_to_the_rules_are_captured_from_then_on(site: Site) -> None:
    site.run("CREATE TABLE a (id int PRIMARY KEY)")
    site.run("CREATE TABLE b (id int PRIMARY KEY)")
    only_a, only_b = ((RuleSet(include=(Rule(owner="public", name=name),)),) for name in "ab")
    site.prepare(only_a)
    reading = site.open()
    site.run("INSERT INTO b VALUES (1)")
    assert any("ADD TABLE ONLY" in s for s in site.prepare((*only_a, *only_b)))
    site.run("INSERT INTO b VALUES (2)")
    assert any("DROP TABLE" in s for s in site.prepare(only_b))
    site.run("INSERT INTO a VALUES (3)")
    site.run("INSERT INTO b VALUES (4)")
    reading.through(site.mark())
    assert [(r.table.name, r.new["id"]) for r in reading.rows()] == [("b", b"\0\0\0\x02"), ("b", b"\0\0\0\x04")]


# ---------------------------------------------------------------- gaps


def test_missing_slot_is_a_gap(site: Site) -> None:
    site.prepare()
    site.source.remove("topo")
    with pytest.raises(LogGone, match="does not exist"):
        site.open(1000)
    assert site.source.remove("topo") == ()


def test_recreated_slot_is_a_gap_with_both_ends(site: Site) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.prepare()
    reading = site.open().through(site.mark())
    reading.stream.close()
    wait_inactive(site)
    site.source.remove("topo")
    site.run("INSERT INTO t VALUES (1)")
    site.prepare()
    with pytest.raises(LogGone, match="ahead of the redo log") as caught:
        site.open(reading.end_scn)
    assert caught.value.context["after_scn"] == reading.end_scn
    assert int(caught.value.context["through_scn"]) > reading.end_scn
    assert site.open().stream.start_scn == caught.value.context["through_scn"]


def test_redo_ahead_of_the_log_shows_a_restored_database(site: Site) -> None:
    site.prepare()
    with pytest.raises(LogGone, match="set back"):
        site.open(site.source.current_scn() + (1 << 40))


def test_invalidated_slot_is_a_gap(make_site: Callable[[EmbeddedServer], Site], postgres_folder: Path) -> None:
    server = EmbeddedServer(
        postgres_folder / "small",
        settings={"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"},
    )
    server.start()
    try:
        site = Site(server.dsn())
        site.prepare()
        assert any(
            "max_slot_wal_keep_size" in f.problem and not f.is_error for f in site.source.preflight(ALL, streams=1)
        )
        start = site.source.current_scn()
        site.run("CREATE TABLE u (a text)")
        for _ in range(3):
            site.run("INSERT INTO u SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
            site.run("SELECT pg_switch_wal()")
            site.run("CHECKPOINT")
        with pytest.raises(LogGone, match=r"invalidated.*max_slot_wal_keep_size") as opened:
            site.open(start)
        assert "down --purge" in opened.value.hint
        with pytest.raises(LogGone, match="invalidated"):
            site.source.check_prepared("topo", start)
        site.close()
    finally:
        server.destroy()


def test_publication_that_skips_changes_or_was_recreated_is_reported(site: Site) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    site.prepare()
    name = sql.Identifier(slot_of(site)).as_string(None)
    made = site.source.check_prepared("topo", FIRST_SCN)
    assert made == site.source.check_prepared("topo", FIRST_SCN)
    for statement, back in (
        ("SET (publish = 'insert')", "SET (publish = 'insert, update, delete, truncate')"),
        ("SET (publish_via_partition_root = true)", "SET (publish_via_partition_root = false)"),
        ("SET TABLE ONLY t WHERE (id > 5)", "SET TABLE ONLY t"),
        ("SET TABLE ONLY t (id)", "SET TABLE ONLY t"),
    ):
        site.run(f"ALTER PUBLICATION {name} {statement}")
        with pytest.raises(CapturedNoMore, match="altered"):
            site.source.check_prepared("topo", FIRST_SCN)
        with pytest.raises(CapturedNoMore, match="altered"):
            site.open()
        site.run(f"ALTER PUBLICATION {name} {back}")
        assert site.source.check_prepared("topo", FIRST_SCN) == made
    site.run(f"DROP PUBLICATION {name}")
    site.run(f"CREATE PUBLICATION {name} FOR TABLE ONLY t")
    assert site.source.check_prepared("topo", FIRST_SCN) != made


def test_dropped_publication_stops_the_stream_and_is_not_recreated(site: Site) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.prepare()
    site.run(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(slot_of(site))).as_string(None))
    with pytest.raises(LogGone, match="publication"):
        site.open()
    with pytest.raises(LogGone, match="publication"):
        site.source.check_prepared("topo", FIRST_SCN)
    with pytest.raises(LogGone, match="publication"):
        site.prepare()


# ---------------------------------------------------------------- snapshots and markers


def test_snapshot_and_stream_together_have_every_row_once(any_site: tuple[Site, bool]) -> None:
    """Under load: the snapshot has the commits up to its SCN, the stream has the later ones."""
    site, force_libpq = any_site
    site.run("CREATE TABLE t (id bigserial PRIMARY KEY)")
    site.prepare()
    reading = site.open(force_libpq=force_libpq)

    def write(ended: threading.Event) -> None:
        with psycopg.connect(site.dsn, autocommit=True) as session:
            while not ended.is_set():
                session.execute("INSERT INTO t DEFAULT VALUES")

    with in_background(*[write] * 3):
        time.sleep(0.1)
        for _ in range(3):
            snapshot = site.source.open_snapshot("topo")
            with psycopg.connect(site.dsn, autocommit=True) as session, use_snapshot(session, snapshot.name):
                seen = {row[0] for row in session.execute("SELECT id FROM t").fetchall()}
            snapshot.close()
            wait_until(
                "somebody wrote since", lambda seen=seen: row_of(site.run("SELECT count(*) FROM t")) > (len(seen),)
            )
            reading.through(site.mark())
            streamed = {  # the last one may still be open
                int.from_bytes(row.new["id"], "big"): t.commit_scn
                for t in reading.transactions
                if t.commit_scn
                for row in t.rows
            }
            assert seen == {number for number, scn in streamed.items() if scn <= snapshot.scn}
            assert any(scn > snapshot.scn for scn in streamed.values())


def test_snapshot_is_exported_when_all_its_commits_are_visible(site: Site) -> None:
    """A commit is in the log before its rows are visible. A synchronous standby that is away prolongs that moment."""
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.prepare()
    taken: list[Snapshot] = []
    taking = threading.Thread(target=lambda: taken.append(site.source.open_snapshot("topo")))
    try:
        # A commit of autovacuum would wait for the standby, and the snapshot would wait for that commit.
        site.run("ALTER SYSTEM SET autovacuum = off")
        site.run("SELECT pg_reload_conf()")
        workers = "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'autovacuum%'"
        wait_until("autovacuum has ended", lambda: site.run(workers).fetchone() == (0,))
        site.run("ALTER SYSTEM SET synchronous_standby_names = 'away'")
        site.run("SET synchronous_commit = local")
        reload_settings(site.dsn, "synchronous_standby_names", "away")
        local = "-c synchronous_commit=local"
        with (
            psycopg.connect(site.dsn, options=local) as first,
            psycopg.connect(site.dsn, options=local) as second,
            psycopg.connect(site.dsn, autocommit=True) as third,
        ):
            first.execute("INSERT INTO t VALUES (1)")
            taking.start()  # the server waits for every running transaction, then for those that began meanwhile
            _wait_waited_for(site, first)
            second.execute("INSERT INTO t VALUES (2)")
            first.commit()
            _wait_waited_for(site, second)
            committing = threading.Thread(target=third.execute, args=("INSERT INTO t VALUES (3)",))
            committing.start()  # in the log but not visible: it waits for the standby
            awaited = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
            wait_until("the commit is logged", lambda: site.run(awaited, third.info.backend_pid).fetchone() == (1,))
            second.commit()
            asked = (
                "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%' || %s || '%%' AND pid <> pg_backend_pid()"
            )
            wait_until("the snapshot exists", lambda: site.run(asked, "AS running WHERE").fetchone() == (1,))
            assert taking.is_alive()
            assert taken == []
            site.run("SELECT pg_cancel_backend(%s)", third.info.backend_pid)  # committed without the standby
            committing.join()
            taking.join()
    finally:
        site.run("ALTER SYSTEM RESET synchronous_standby_names")
        site.run("ALTER SYSTEM RESET autovacuum")
        reload_settings(site.dsn, "synchronous_standby_names", "")
    with (
        contextlib.closing(taken[0]) as snapshot,
        psycopg.connect(site.dsn, autocommit=True) as session,
        use_snapshot(session, snapshot.name),
    ):
        assert session.execute("SELECT id FROM t ORDER BY id").fetchall() == [(1,), (2,), (3,)]


def _wait_waited_for(site: Site, session: psycopg.Connection[tuple[object, ...]]) -> None:
    query = """
        SELECT count(*) FROM pg_locks AS held JOIN pg_locks AS wanted USING (locktype, transactionid)
        WHERE held.locktype = 'transactionid' AND held.granted AND held.pid = %s AND NOT wanted.granted
    """
    wait_until("a session waits", lambda: site.run(query, session.info.backend_pid).fetchone() == (1,))


def test_marker_comes_after_everything_committed_before_it(site: Site) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.prepare()
    reading = site.open()
    site.run("SET synchronous_commit = off")
    site.run("INSERT INTO t VALUES (1)")
    scn = site.source.write_marker(b"now")
    reading.through(scn)
    assert reading.transactions[0].commit_scn <= scn
    assert reading.messages[-1][2] == b"now"
