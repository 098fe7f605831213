"""PostgreSQL as a source, against the real server: streams, restarts, types, partitions, rights, gaps."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql

from databases.embedded import EmbeddedServer
from databases.postgres.builtin_types import BUILTIN_TYPES
from databases.postgres.source import PostgresSource
from databases.postgres.source_catalog import slot_name
from rules.rule import Rule, RuleSet
from scripts.generate_builtin_types import QUERY
from streams.errors import DatabaseError, DatabaseUnavailable, LogGone, UnsupportedType
from streams.lcr_batch import ABSENT, NULL, UNCHANGED, Command, OldImage
from streams.scn import FIRST_SCN, Scn
from streams.tags import Tag
from tests.support.log_reading import Reading
from tests.support.tls_proxy import TlsProxy

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

ALL = (RuleSet(include=(Rule(owner="public"),)),)
Run = Callable[..., object]
Fresh = Callable[[EmbeddedServer], str]


class Site:
    """One database as a source, with a session of its user."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.user = psycopg.connect(dsn, autocommit=True)
        self.source = PostgresSource(dsn)
        self.streams: list[Reading] = []

    def run(self, query: str, *parameters: object) -> psycopg.Cursor[tuple[object, ...]]:
        return self.user.execute(query, parameters or None)  # type: ignore[call-overload]

    def prepare(self, rules: tuple[RuleSet, ...] = ALL) -> tuple[str, ...]:
        return self.source.prepare("topo", rules)

    def open(self, start: int = FIRST_SCN, *, force_libpq: bool = False) -> Reading:
        reading = Reading(self.source.open_stream("topo", Scn(start), force_libpq=force_libpq))
        self.streams.append(reading)
        return reading

    def mark(self) -> Scn:
        """A marker; its transaction's commit is the next one in the log."""
        return Scn(self.source.write_marker(b"mark") + 1)

    def reconnect(self) -> None:
        self.user.close()
        self.user = psycopg.connect(self.dsn, autocommit=True)

    def close(self) -> None:
        for reading in self.streams:
            reading.stream.close()
        self.source.close()
        self.user.close()


@pytest.fixture
def make_site(fresh_database: Fresh) -> Iterator[Callable[[EmbeddedServer], Site]]:
    made: list[Site] = []

    def make(server: EmbeddedServer) -> Site:
        made.append(Site(fresh_database(server)))
        return made[-1]

    yield make
    for site in made:
        site.close()


@pytest.fixture
def site(make_site: Callable[[EmbeddedServer], Site], pg_source: EmbeddedServer) -> Site:
    return make_site(pg_source)


@pytest.fixture(params=["18 raw", "18 libpq", "16 raw", "16 libpq"])
def any_site(
    request: pytest.FixtureRequest, make_site: Callable[[EmbeddedServer], Site]
) -> tuple[Site, bool]:
    """A database on each version, to be read through each kind of wire."""
    version, _, wire = request.param.partition(" ")
    server = request.getfixturevalue("pg_source" if version == "18" else "pg_16")
    return make_site(server), wire == "libpq"


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
    assert reading.stream.options.server_version in {16, 18}
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
    _wait_inactive(site)
    libpq = site.open(force_libpq=True).through(mark)
    # The clock at which the server sent a message is in each frame.
    assert _without_clocks(raw.data) == _without_clocks(libpq.data)
    assert len(raw.rows()) == 6000


def _without_clocks(data: bytearray) -> list[bytes]:
    out, at = [], 0
    while at < len(data):
        end = at + 1 + int.from_bytes(data[at + 1 : at + 5], "big")
        out.append(bytes(data[at : at + 22]) + bytes(data[at + 30 : end]))
        at = end
    return out


def _wait_inactive(site: Site) -> None:
    deadline = time.monotonic() + 10
    while site.run("SELECT count(*) FROM pg_replication_slots WHERE active AND database = current_database()").fetchone() != (0,):
        assert time.monotonic() < deadline, "the slot stays in use"
        time.sleep(0.02)


def test_stream_over_tls_brings_everything_at_once_and_is_never_stuck(site: Site, pg_source: EmbeddedServer) -> None:
    """TLS hands out whole records: bytes may be inside libpq while the socket tells of nothing."""
    site.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    site.prepare()
    proxy = TlsProxy(pg_source.port)
    try:
        dsn = site.dsn.replace(f"port={pg_source.port}", f"port={proxy.port}").replace("sslmode=disable", "sslmode=require")
        source = PostgresSource(dsn)
        reading = Reading(source.open_stream("topo", FIRST_SCN))
        assert reading.stream._connection.pgconn.ssl_in_use  # type: ignore[attr-defined]
        for number in range(30):
            site.run("INSERT INTO t SELECT %s * 1000 + g, repeat('x', 100 * g) FROM generate_series(1, 40) g", number)
            began = time.monotonic()
            reading.through(site.mark())
            assert time.monotonic() - began < 5, "stuck until the server's keepalive"
        site.run("INSERT INTO t SELECT 100000 + g, repeat('x', 100) FROM generate_series(1, 50000) g")
        site.run("INSERT INTO t SELECT 0, repeat('y', 20000000)")
        reading.through(site.mark())
        assert len(reading.rows()) == 30 * 40 + 50_001
        reading.stream.confirm(Scn(reading.end_scn))
        reading.stream.close()
        _wait_inactive(site)
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
        _wait_inactive(site)


def test_idle_stream_wakes_at_once(site: Site) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.prepare()
    reading = site.open()
    reading.through(site.mark())
    waits = []
    for number in range(20):
        assert not reading.one(0.02)
        site.run("INSERT INTO t VALUES (%s)", number)
        began = time.perf_counter()
        while not reading.transactions or not reading.transactions[-1].rows or reading.transactions[-1].commit_scn == 0 or len(reading.rows()) <= number:
            reading.one(1.0)
        waits.append(time.perf_counter() - began)
    assert sorted(waits)[10] < 0.05, waits  # some 0.2 ms on an idle machine; a poll interval would show


def test_backlog_is_read_in_gulps_not_message_by_message(any_site: tuple[Site, bool]) -> None:
    site, force_libpq = any_site
    site.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    site.prepare()
    site.run("INSERT INTO t SELECT g, 'some text' FROM generate_series(1, 50000) g")
    reading = site.open(force_libpq=force_libpq).through(site.mark())
    assert len(reading.rows()) == 50_000
    assert reading.chunks < 1500, "a chunk is many rows"


def test_break_in_mid_transaction_brings_it_again_whole(any_site: tuple[Site, bool]) -> None:
    site, force_libpq = any_site
    site.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    site.prepare()
    site.run("INSERT INTO t VALUES (0, 'before')")
    site.run("INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series(1, 60000) g")
    reading = site.open(force_libpq=force_libpq)
    while not reading.transactions or reading.transactions[-1].commit_scn or len(reading.transactions[-1].rows) < 10:
        assert reading.one()
    assert reading.transactions[-1].commit_scn == 0
    start = reading.end_scn
    assert start == reading.transactions[0].commit_scn, "an open transaction does not move the position"
    reading.stream.confirm(Scn(start))
    reading.stream.close()
    _wait_inactive(site)
    again = site.open(start, force_libpq=force_libpq).through(site.mark())
    assert [len(t.rows) for t in again.transactions] == [60_000, 0]
    assert (again.transactions[0].order_scn, again.transactions[0].transaction_id) == (
        reading.transactions[-1].order_scn, reading.transactions[-1].transaction_id,
    )


def test_unconfirmed_transactions_come_again_and_confirmed_ones_do_not(site: Site) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.prepare()
    for number in range(4):
        site.run("INSERT INTO t VALUES (%s)", number)
    reading = site.open().through(site.mark())
    second = reading.transactions[1].commit_scn
    reading.stream.confirm(Scn(second))
    reading.stream.close()
    _wait_inactive(site)
    again = site.open().through(reading.end_scn)
    assert again.stream.start_scn == second
    assert [int.from_bytes(row.new["id"], "big") for row in again.rows()] == [2, 3]  # type: ignore[arg-type]


@pytest.mark.parametrize("force_libpq", [False, True])
def test_server_crash_breaks_the_stream_and_nothing_is_lost(site: Site, pg_source: EmbeddedServer, force_libpq: bool) -> None:
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
    stopping.join(20)
    assert not stopping.is_alive()
    assert len(reading.rows()) == 1, "what was committed before the shutdown came before the end"
    pg_source.start()


def test_position_moves_when_only_other_tables_change(any_site: tuple[Site, bool]) -> None:
    site, force_libpq = any_site
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.run("CREATE SCHEMA other CREATE TABLE u (id int)")
    site.prepare()
    reading = site.open(force_libpq=force_libpq)
    site.run("INSERT INTO other.u SELECT generate_series(1, 1000)")
    reading.through(site.source.current_scn())
    assert reading.data == b""
    reading.stream.confirm(Scn(reading.end_scn))
    deadline = time.monotonic() + 10
    while site.source.retained_bytes("topo") > 1_000_000 or site.run(
        "SELECT confirmed_flush_lsn - '0/0' < %s FROM pg_replication_slots WHERE database = current_database()", reading.end_scn
    ).fetchone() != (False,):
        assert time.monotonic() < deadline
        time.sleep(0.05)


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


def test_pgbench_with_several_clients_arrives_completely(site: Site, pg_source: EmbeddedServer) -> None:
    database = site.run("SELECT current_database()").fetchone()[0]  # type: ignore[index]
    pgbench, environment = str(pg_source.binary("pgbench")), pg_source.environment(str(database))
    subprocess.run([pgbench, "-i", "-s", "1", "-q"], env=environment, check=True, capture_output=True)
    site.run("ALTER TABLE pgbench_history REPLICA IDENTITY FULL")
    site.prepare()
    reading = site.open()
    bench = subprocess.Popen([pgbench, "-n", "-c", "4", "-t", "250"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while bench.poll() is None:
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
    database = site.run("SELECT current_database()").fetchone()[0]  # type: ignore[index]
    ours, other = f"headrace:{database}/apply_x/0:00", f"somebody_{database}"
    try:
        for number, origin in enumerate((ours, other)):
            with psycopg.connect(site.dsn, autocommit=True) as session:
                session.execute("SELECT pg_replication_origin_create(%s)", (origin,))
                session.execute("SELECT pg_replication_origin_session_setup(%s)", (origin,))
                session.execute("INSERT INTO t VALUES (%s)", (number,))
        site.run("INSERT INTO t VALUES (9)")
        reading.through(site.mark())
    finally:
        for origin in (ours, other):
            site.run("SELECT pg_replication_origin_drop(%s)", origin)
    tags = [t.tag for t in reading.transactions if t.rows]
    assert tags == [Tag(value=b"\x00", topology=str(database), apply="apply_x"), None, None]


# ---------------------------------------------------------------- partitions, generated columns, changes of tables


def test_partitions_come_under_their_own_names_and_the_dictionary_tells_the_root(any_site: tuple[Site, bool]) -> None:
    site, force_libpq = any_site
    site.run("CREATE TABLE p (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)")
    site.run("CREATE TABLE p_old PARTITION OF p FOR VALUES FROM ('2020-01-01') TO ('2025-01-01')")
    site.run("CREATE TABLE p_new PARTITION OF p FOR VALUES FROM ('2025-01-01') TO ('2030-01-01') PARTITION BY LIST (id)")
    site.run("CREATE TABLE p_new_1 PARTITION OF p_new FOR VALUES IN (1)")
    assert [(t.name, t.is_partitioned) for t in site.source.tables(ALL)] == [("p", True)]
    statements = site.prepare()
    assert "TABLE \"public\".\"p\" WITH" in statements[0]
    reading = site.open(force_libpq=force_libpq)
    site.run("INSERT INTO p VALUES (1, '2021-05-05')")
    site.run("UPDATE p SET at = '2026-05-05'")  # moves between partitions: delete and insert
    site.run("CREATE TABLE p_new_2 PARTITION OF p_new FOR VALUES IN (2)")
    site.run("INSERT INTO p VALUES (2, '2027-01-01')")
    site.run("TRUNCATE p_old")
    reading.through(site.mark())
    assert [(r.command, r.table.name) for r in reading.rows()] == [
        (Command.INSERT, "p_old"), (Command.DELETE, "p_old"), (Command.INSERT, "p_new_1"), (Command.INSERT, "p_new_2"),
    ]
    roots = {t.stored_name: (t.owner, t.name) for t in site.source.dictionary_build("topo").tables}
    assert {roots[name] for name in ("p_old", "p_new_1", "p_new_2")} == {("public", "p")}
    numbers = {t.stored_name: t.object_number for t in site.source.dictionary_build("topo").tables}
    assert [t.truncates for t in reading.transactions if t.truncates] == [[((numbers["p_old"],), False, False)]]


def test_stored_generated_columns_do_not_break_the_users_statements(any_site: tuple[Site, bool]) -> None:
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
    assert site.source.tables(ALL)[0].columns == ("a",)


def test_altered_table_gets_a_new_version_in_place(site: Site) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    site.prepare()
    reading = site.open()
    site.run("INSERT INTO t VALUES (1, 'x')")
    site.run("BEGIN; INSERT INTO t VALUES (2, 'x'); ALTER TABLE t ADD c numeric(8, 2); INSERT INTO t VALUES (3, 'x', 1.5); COMMIT")
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


# ---------------------------------------------------------------- types

# One row of hard values per type; types that are not here get the value below or NULL.
VALUES = {
    "bool": "true", "bytea": r"\x00ff", "char": "'", "name": "a name", "int8": "-9223372036854775808", "int2": "-32768",
    "int2vector": "1 2", "int4": "2147483647", "text": "ß \\ ' \" \t\n", "oid": "4294967295", "tid": "(1,2)", "xid": "7", "cid": "7",
    "oidvector": "1 2", "json": '{"a" :  1}', "xml": None, "xid8": "18446744073709551615", "point": "(1.5,-0)", "lseg": "[(0,0),(1,1)]",
    "path": "((0,0),(1,1))", "box": "(1,1),(0,0)", "polygon": "((0,0),(1,1),(0,1))", "line": "{1,2,3}", "cidr": "10.0.0.0/8",
    "float4": "-0", "float8": "NaN", "circle": "<(0,0),1>", "macaddr8": "08:00:2b:01:02:03:04:05", "money": "-12.34",
    "macaddr": "08:00:2b:01:02:03", "inet": "::1/64", "aclitem": None, "bpchar": "x  ", "varchar": "", "date": "infinity",
    "time": "24:00:00", "timestamp": "4713-01-01 BC", "timestamptz": "-infinity", "interval": "1 mon -2 days 03:04:05.000006",
    "timetz": "12:00:00+15:59:59", "bit": "101", "varbit": "", "numeric": "-Infinity", "refcursor": "c", "regprocedure": "abs(int4)",
    "regproc": "now", "regoper": "|/", "regoperator": "+(int4,int4)", "regclass": "pg_class", "regtype": "int4", "regrole": "postgres",
    "regnamespace": "pg_catalog", "regconfig": "english", "regdictionary": "simple", "regcollation": '"C"',
    "uuid": "00000000-0000-0000-0000-00000000000f", "pg_lsn": "16/B374D848", "tsvector": "'a':1A 'b':2", "tsquery": "'a' & !'b'",
    "jsonb": '{"a": [1, null]}', "jsonpath": "$.a[*]", "txid_snapshot": "10:20:10,14", "pg_snapshot": "10:20:10,14",
    "int4range": "[1,)", "numrange": "empty", "tsrange": "(,)", "tstzrange": '[2020-01-01,infinity)', "daterange": "[2020-01-01,)",
    "int8range": "[1,5)", "int4multirange": "{[1,2),[5,7)}", "nummultirange": "{}", "tsmultirange": "{}",
    "tstzmultirange": "{}", "datemultirange": "{[2020-01-01,)}", "int8multirange": "{[1,2)}",
}
NOT_INSERTABLE = {"pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list", "pg_brin_bloom_summary",
                  "pg_brin_minmax_multi_summary", "gtsvector"}


@pytest.mark.parametrize("form", ["binary", "text"])
def test_values_of_every_built_in_type_are_what_the_server_itself_would_send(any_site: tuple[Site, bool], form: str) -> None:
    site, force_libpq = any_site
    types = site.run(
        "SELECT typname::text FROM pg_type WHERE typtype IN ('b', 'r', 'm') AND typelem = 0 AND typrelid = 0 AND oid < 10000 "
        "OR typname IN ('int2vector', 'oidvector', 'point', 'lseg', 'box', 'line') OR typname = 'name' ORDER BY 1"
    ).fetchall()
    names = [str(name) for (name,) in types if name not in NOT_INSERTABLE]
    numbers = {f"reg{kind}" for kind in ("proc", "procedure", "oper", "operator", "class", "type", "role", "namespace", "config", "dictionary", "collation")}
    if form == "binary":
        names = [name for name in names if name not in numbers | {"int2vector", "oidvector"}]
    columns = ", ".join(f'"{name}" pg_catalog."{name}"' for name in names)
    site.run(f"CREATE TABLE v (id_ int PRIMARY KEY, {columns})")
    if form == "binary":
        arrays = [name for name in names if name != "aclitem"]
    else:
        arrays = ["text", "regclass", "numeric", "aclitem"]
    site.run(f"CREATE TABLE w (id_ int PRIMARY KEY, {', '.join(f'{chr(34)}{n}{chr(34)} pg_catalog.{chr(34)}{n}{chr(34)}[]' for n in arrays)})")
    site.prepare()
    reading = site.open(force_libpq=force_libpq)
    assert reading.stream.options.binary == (form == "binary")
    for name in names:
        assert name in VALUES, f"a new type: {name}"
    values = {name: VALUES[name] for name in names if VALUES[name] is not None}
    placed = sql.SQL("INSERT INTO v (id_, {}) VALUES (1, {})").format(
        sql.SQL(", ").join(sql.Identifier(n) for n in values), sql.SQL(", ").join(sql.Literal(v) for v in values.values())
    )
    site.user.execute(placed)
    site.run("INSERT INTO v (id_) VALUES (2)")
    odd = sql.SQL("INSERT INTO w (id_, {}) SELECT 1, {} FROM v WHERE id_ = 1").format(
        sql.SQL(", ").join(sql.Identifier(n) for n in arrays),
        sql.SQL(", ").join(sql.SQL("ARRAY[[{0}], [NULL::pg_catalog.{0}]]").format(sql.Identifier(n)) for n in arrays),
    )
    site.user.execute(odd)
    reading.through(site.mark())

    for table, rows in (("v", 2), ("w", 1)):
        expected = _as_sent(site, table, binary=form == "binary")
        actual = [row for row in reading.rows() if row.table.name == table]
        assert len(actual) == rows
        for row, wanted in zip(actual, expected, strict=True):
            for column in row.table.columns:
                assert row.new[column.name] == wanted[column.name], (table, column)


def _as_sent(site: Site, table: str, *, binary: bool) -> list[dict[str, bytes | int]]:
    """The rows as libpq gets them in the wanted form, with text where a type has no binary form."""
    columns = [str(name) for (name,) in site.run(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum", table).fetchall()]
    text_only = {str(name) for (name,) in site.run("SELECT typname FROM pg_type WHERE typsend = 0").fetchall()}
    out: list[dict[str, bytes | int]] = []
    pinned = "SET DateStyle = ISO; SET IntervalStyle = postgres; SET extra_float_digits = 3; SET TimeZone = UTC; SET search_path = ''; SET bytea_output = hex"
    with psycopg.connect(site.dsn, autocommit=True) as session:
        session.execute(pinned)
        for column in columns:
            query = f'SELECT "{column}" FROM public.{table} ORDER BY id_'.encode()
            form = int(binary and column not in text_only)
            result = session.pgconn.exec_params(query, [], result_format=form)
            for row in range(result.ntuples):
                value = result.get_value(row, 0)
                if len(out) <= row:
                    out.append({})
                out[row][column] = NULL if value is None else value
    return out


def test_user_defined_types_are_named(site: Site) -> None:
    site.run("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    site.run("CREATE SCHEMA \"Other\"")
    site.run("CREATE DOMAIN \"Other\".posint AS int CHECK (VALUE > 0)")
    site.run("CREATE TABLE t (id int PRIMARY KEY, m mood, p \"Other\".posint)")
    site.prepare()
    reading = site.open()
    site.run("INSERT INTO t VALUES (1, 'ok', 3)")
    reading.through(site.mark())
    columns = {c.name: c for c in reading.rows()[0].table.columns}
    assert columns["m"].type_name == "public.mood"
    assert columns["p"].type_name == "pg_catalog.int4", "pgoutput names a domain's base type"
    assert columns["m"].type_number > 16383
    assert reading.rows()[0].new == {"id": b"\0\0\0\x01", "m": b"ok", "p": b"\0\0\0\x03"}


@pytest.mark.parametrize(
    ("column", "is_binary"),
    [
        ("int[]", True), ("mood", True), ("mood[]", False), ("plain", True), ("plain[]", False), ("with_mood", False),
        ("posint", True), ("posint[]", False), ("mood_range", True), ("regclass", False), ("regtype[]", False), ("aclitem", True),
        ("aclitem[]", False), ("with_acl", False), ("own_regclass", False), ("int4multirange", True),
        ("oidvector", False), ("int2vector[]", False),
    ],
)
def test_binary_form_is_chosen_only_where_it_means_the_same_elsewhere(site: Site, column: str, is_binary: bool) -> None:
    for statement in (
        "CREATE TYPE mood AS ENUM ('sad', 'ok')", "CREATE TYPE plain AS (a int, b text)", "CREATE TYPE with_mood AS (a int, m mood)",
        "CREATE DOMAIN posint AS int", "CREATE TYPE mood_range AS RANGE (subtype = mood)", "CREATE TYPE with_acl AS (a aclitem)",
        "CREATE DOMAIN own_regclass AS regclass", f"CREATE TABLE t (id int PRIMARY KEY, c {column})",
    ):
        site.run(statement)
    assert site.source.choose_binary(site.source.tables(ALL)) is is_binary
    site.prepare()
    reading = site.open()
    assert reading.stream.options.binary is is_binary
    site.run("INSERT INTO t VALUES (1, NULL)")
    reading.through(site.mark())
    warnings = [f for f in site.source.preflight(ALL, streams=1) if "text form" in f.problem]
    assert bool(warnings) is not is_binary
    assert all(not f.is_error for f in warnings)


def test_type_that_would_jam_a_binary_stream_is_read_in_text_after_reconnecting(site: Site) -> None:
    """Nothing tells an open stream that a column of such a type was added: the server raises, and the next open heals it."""
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.prepare()
    reading = site.open()
    site.run("ALTER TABLE t ADD a aclitem[]")
    site.run("INSERT INTO t VALUES (1, ARRAY[makeaclitem('postgres'::regrole, 'postgres'::regrole, 'SELECT', false)])")
    with pytest.raises(UnsupportedType, match="binary"):
        reading.through(site.mark())
    reading.stream.close()
    _wait_inactive(site)
    again = site.open(reading.end_scn)
    assert not again.stream.options.binary
    again.through(site.mark())
    assert again.rows()[0].new == {"id": b"1", "a": b"{postgres=r/postgres}"}


def test_table_of_built_in_types_is_the_servers(site: Site) -> None:
    rows = site.run(QUERY).fetchall()
    assert {number: (name, has_binary) for number, name, has_binary in rows} == BUILTIN_TYPES, "run scripts/generate_builtin_types.py"


def test_types_of_the_older_version_are_in_the_table_too(make_site: Callable[[EmbeddedServer], Site], pg_16: EmbeddedServer) -> None:
    for number, name, has_binary in make_site(pg_16).run(QUERY).fetchall():
        assert BUILTIN_TYPES[int(number)] == (name, has_binary)  # type: ignore[call-overload]


# ---------------------------------------------------------------- gaps


def test_missing_slot_is_a_gap(site: Site) -> None:
    site.prepare()
    site.source.remove("topo")
    with pytest.raises(LogGone, match="does not exist"):
        site.open(1000)
    assert site.source.remove("topo") == ()


def test_slot_made_again_is_a_gap_with_both_ends(site: Site) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.prepare()
    reading = site.open().through(site.mark())
    reading.stream.close()
    _wait_inactive(site)
    site.source.remove("topo")
    site.run("INSERT INTO t VALUES (1)")
    site.prepare()
    with pytest.raises(LogGone, match="ahead of the redo log") as caught:
        site.open(reading.end_scn)
    assert caught.value.context["after_scn"] == reading.end_scn
    assert int(caught.value.context["through_scn"]) > reading.end_scn
    assert site.open().stream.start_scn == caught.value.context["through_scn"]


def test_redo_ahead_of_the_log_is_a_database_that_was_set_back(site: Site) -> None:
    site.prepare()
    with pytest.raises(LogGone, match="set back"):
        site.open(site.source.current_scn() + (1 << 40))


def test_invalidated_slot_is_a_gap(make_site: Callable[[EmbeddedServer], Site], postgres_folder: object) -> None:
    server = EmbeddedServer(
        postgres_folder / "small", settings={"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}  # type: ignore[operator]
    )
    server.start()
    try:
        site = Site(server.dsn())
        site.prepare()
        assert any("max_slot_wal_keep_size" in f.problem and not f.is_error for f in site.source.preflight(ALL, streams=1))
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


def test_dropped_publication_stops_the_stream_with_its_name_and_is_not_made_again_under_an_older_slot(site: Site) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.prepare()
    site.run(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(_name(site))).as_string(None))
    with pytest.raises(LogGone, match="publication"):
        site.open()
    with pytest.raises(LogGone, match="publication"):
        site.source.check_prepared("topo", FIRST_SCN)
    with pytest.raises(LogGone, match="publication"):
        site.prepare()


def _name(site: Site) -> str:
    return slot_name("topo", str(site.run("SELECT current_database()").fetchone()[0]))  # type: ignore[index]


# ---------------------------------------------------------------- snapshots and markers


def test_snapshot_and_stream_share_out_every_row_exactly_once(any_site: tuple[Site, bool]) -> None:
    """Under load: what committed up to the snapshot's SCN is in it, what committed later is in the stream."""
    site, force_libpq = any_site
    site.run("CREATE TABLE t (id bigserial PRIMARY KEY)")
    site.prepare()
    reading = site.open(force_libpq=force_libpq)
    done = threading.Event()

    def write() -> None:
        with psycopg.connect(site.dsn, autocommit=True) as session:
            while not done.is_set():
                session.execute("INSERT INTO t DEFAULT VALUES")

    writers = [threading.Thread(target=write) for _ in range(3)]
    for writer in writers:
        writer.start()
    try:
        time.sleep(0.1)
        for _ in range(3):
            snapshot = site.source.open_snapshot("topo")
            with psycopg.connect(site.dsn, autocommit=True) as session:
                session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                session.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot.name)))
                seen = {row[0] for row in session.execute("SELECT id FROM t").fetchall()}
            snapshot.close()
            reading.through(site.mark())
            streamed = {
                int.from_bytes(row.new["id"], "big"): t.commit_scn for t in reading.transactions for row in t.rows  # type: ignore[arg-type]
            }
            assert seen == {number for number, scn in streamed.items() if scn <= snapshot.scn}
            assert any(scn > snapshot.scn for scn in streamed.values())
    finally:
        done.set()
        for writer in writers:
            writer.join()


def test_marker_is_behind_everything_committed_before_it(site: Site) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.prepare()
    reading = site.open()
    site.run("SET synchronous_commit = off")
    site.run("INSERT INTO t VALUES (1)")
    scn = site.source.write_marker(b"now")
    reading.through(scn)
    assert reading.transactions[0].commit_scn <= scn
    assert reading.messages[-1][2] == b"now"


# ---------------------------------------------------------------- preparation and preflight


def test_prepare_is_idempotent_and_remove_takes_everything_back(site: Site) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.run("CREATE TABLE child () INHERITS (t)")
    plan = site.source.plan("topo", ALL)
    assert [s.is_done for s in plan] == [False, False]
    assert "SHARE UPDATE EXCLUSIVE" in plan[0].lock
    assert site.prepare() == tuple(s.statement for s in plan)
    assert site.prepare() == ()
    assert all(s.is_done for s in site.source.plan("topo", ALL))
    reading = site.open()
    removed = site.source.remove("topo")
    assert len(removed) == 2
    with pytest.raises(DatabaseUnavailable):
        reading.through(1 << 60)
    assert site.run("SELECT count(*) FROM pg_publication").fetchone() == (0,)


def test_publication_of_somebody_elses_making_is_brought_to_our_options(site: Site) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.run(f'CREATE PUBLICATION "{_name(site)}" FOR TABLE t WITH (publish = \'insert\', publish_via_partition_root = true)')
    assert any("SET (publish" in s for s in site.prepare())
    assert site.prepare() == ()
    site.source.remove("topo")
    site.run(f'CREATE PUBLICATION "{_name(site)}" FOR ALL TABLES')
    with pytest.raises(DatabaseError, match="not ours"):
        site.prepare()


def test_users_update_and_delete_work_after_prepare_wherever_the_preflight_found_nothing(site: Site) -> None:
    for statement in (
        "CREATE TABLE ok (id int PRIMARY KEY)", "CREATE TABLE full_ (a int)", "ALTER TABLE full_ REPLICA IDENTITY FULL",
        "CREATE TABLE indexed (a int NOT NULL UNIQUE)", "ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_a_key",
        "CREATE TABLE deferred (a int PRIMARY KEY DEFERRABLE)", "CREATE TABLE bare (a int)",
        "CREATE TABLE nothing (a int PRIMARY KEY)", "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
        "CREATE TABLE gone (a int NOT NULL UNIQUE)", "ALTER TABLE gone REPLICA IDENTITY USING INDEX gone_a_key",
        "ALTER TABLE gone DROP CONSTRAINT gone_a_key",
        "CREATE TABLE virtual_ (a int, b int GENERATED ALWAYS AS (a + 1) VIRTUAL)", "ALTER TABLE virtual_ REPLICA IDENTITY FULL",
        "CREATE TABLE stored (a int, b int GENERATED ALWAYS AS (a + 1) STORED)", "ALTER TABLE stored REPLICA IDENTITY FULL",
        "CREATE TABLE part (a int) PARTITION BY LIST (a)", "CREATE TABLE part_1 PARTITION OF part FOR VALUES IN (1)",
        "ALTER TABLE part REPLICA IDENTITY FULL",  # which the partition does not inherit
    ):
        site.run(statement)
    errors = [f for f in site.source.preflight(ALL, streams=1) if f.is_error]
    found = {f.path.rpartition(".")[2]: f for f in errors}
    assert set(found) == {"deferred", "bare", "nothing", "gone", "virtual_", "part_1"}
    breaks = " ".join(line for s in site.source.plan("topo", ALL) for line in s.breaks)
    assert all(f'"{name}"' in breaks for name in found)
    site.prepare()
    for table in ("ok", "full_", "indexed", "deferred", "bare", "nothing", "gone", "virtual_", "stored", "part_1"):
        column = "id" if table == "ok" else "a"
        site.run(f"INSERT INTO {table} ({column}) VALUES (1)")
        if table in found:
            with pytest.raises(psycopg.Error):
                site.run(f"DELETE FROM {table}")
        else:
            site.run(f"UPDATE {table} SET {column} = 1")
            site.run(f"DELETE FROM {table}")
    for finding in errors:
        fix = finding.fix.split(", or give")[0].split(" with a primary key")[0]
        if "virtual_" not in finding.path:
            site.run(fix)
    left = [f.path for f in site.source.preflight(ALL, streams=1) if f.is_error]
    assert len(left) == 1
    assert "virtual_" in left[0]


@pytest.mark.parametrize("version", [18, 16])
def test_role_without_superuser_works_with_exactly_the_printed_grants(
    version: int, make_site: Callable[[EmbeddedServer], Site], request: pytest.FixtureRequest
) -> None:
    server: EmbeddedServer = request.getfixturevalue("pg_source" if version == 18 else "pg_16")
    site = make_site(server)
    database = str(site.run("SELECT current_database()").fetchone()[0])  # type: ignore[index]
    role, owner = f"Cap-{database}", f"owner_{database}"
    site.run(f'CREATE ROLE "{role}" LOGIN PASSWORD \'geheim\'')
    site.run(f"CREATE ROLE {owner}")
    try:
        for statement in (
            f"CREATE SCHEMA hr AUTHORIZATION {owner}", "CREATE TABLE hr.t (id int PRIMARY KEY)", f"ALTER TABLE hr.t OWNER TO {owner}",
            "CREATE TABLE hr.p (id int PRIMARY KEY) PARTITION BY LIST (id)", "CREATE TABLE hr.p1 PARTITION OF hr.p FOR VALUES IN (1)",
            f"ALTER TABLE hr.p OWNER TO {owner}", f"ALTER TABLE hr.p1 OWNER TO {owner}", "CREATE TABLE hr.s (id int PRIMARY KEY)",
            "ALTER TABLE hr.t ENABLE ROW LEVEL SECURITY", "ALTER TABLE hr.t FORCE ROW LEVEL SECURITY",
        ):
            site.run(statement)
        rules = (RuleSet(include=(Rule(owner="hr"),)),)
        plain = PostgresSource(f"host=127.0.0.1 port={server.port} dbname={database} user={role} password=geheim")
        statements: list[str] = []
        for _ in range(5):
            findings = [f for f in plain.preflight(rules, streams=2) if f.is_error]
            if not findings:
                break
            for finding in findings:
                if finding.fix not in statements:
                    statements.append(finding.fix)
                    site.run(finding.fix)
        assert findings == []
        assert any(s.endswith("REPLICATION") for s in statements)
        assert any(s.startswith("GRANT CREATE ON DATABASE") for s in statements)
        assert any(s.endswith("BYPASSRLS") for s in statements)
        is_superuser = site.run("SELECT pg_has_role(%s, oid, 'USAGE') FROM pg_roles WHERE rolname = current_user", role).fetchone()
        assert is_superuser == (False,), "a table of a superuser's is no reason to become one"
        plain.prepare("topo", rules)
        assert plain.prepare("topo", rules) == ()
        reading = Reading(plain.open_stream("topo", FIRST_SCN))
        snapshot = plain.open_snapshot("topo")
        snapshot.close()
        site.run("INSERT INTO hr.t VALUES (1)")
        reading.through(plain.write_marker(b"x"))
        assert len(reading.rows()) == 1
        assert [f for f in plain.preflight(rules, streams=2) if f.is_error] == []
        reading.stream.close()
        plain.remove("topo")
        plain.close()
    finally:
        site.run(f'DROP OWNED BY {owner}, "{role}" CASCADE')
        site.run(f'DROP ROLE "{role}"')
        site.run(f"DROP ROLE {owner}")


def test_preflight_says_what_the_server_lacks_and_the_printed_settings_mend_it(postgres_folder: object) -> None:
    server = EmbeddedServer(
        postgres_folder / "poor",  # type: ignore[operator]
        settings={"wal_level": "replica", "max_replication_slots": "1", "max_wal_senders": "0"},
    )
    server.start()
    try:
        source = PostgresSource(server.dsn(), site="dbs1")
        rules = (RuleSet(include=(Rule(owner="hr", name="missing"), Rule(owner="hr", name="t*"))),)
        problems = {f.problem.split(" ")[0]: f for f in source.preflight(rules, streams=2)}
        assert "wal_level" in problems
        findings = source.preflight(rules, streams=2)
        assert all(f.path.startswith("sites.dbs1") for f in findings)
        text = "\n".join(f"{f.problem}: {f.fix}" for f in findings)
        assert "1 of 1 max_replication_slots are free, 2 are needed: ALTER SYSTEM SET max_replication_slots = 2" in text
        assert "0 of 0 max_wal_senders are free, 2 are needed: ALTER SYSTEM SET max_wal_senders = 2" in text
        assert "no table of this database is selected" in text
        with psycopg.connect(server.dsn(), autocommit=True) as session:
            session.execute("CREATE SCHEMA hr CREATE TABLE t1 (id int PRIMARY KEY) CREATE UNLOGGED TABLE t2 (id int PRIMARY KEY)")
        findings = source.preflight(rules, streams=2)
        text = "\n".join(f"{f.path}: {f.problem}" for f in findings if not f.is_error)
        assert "rule hr.missing: matches no table" in text
        assert "hr.t2: is unlogged" in text
        assert [t.name for t in source.tables(rules)] == ["t1"]
        source.close()
        better = {"wal_level": "logical", "max_replication_slots": "2", "max_wal_senders": "2"}
        server.stop()
        server = EmbeddedServer(server.folder, settings=better)
        server.start()
        assert [f for f in source.preflight(rules, streams=2) if f.is_error] == []
        source.prepare("t", rules)
        assert [f for f in source.preflight(rules, streams=2) if f.is_error] == [], "our own slot is counted as free"
        source.close()
    finally:
        server.destroy()


def test_names_of_topologies_and_sites_always_make_a_valid_slot_name() -> None:
    assert slot_name("topo", "dbs1") == "headrace_topo_dbs1"
    assert slot_name("a_b", "c") != slot_name("a", "b_c")
    assert slot_name("Größe", "x" * 80) != slot_name("Größe", "x" * 81)
    for name in (slot_name("Größe-1", "x" * 80), slot_name("a_b", "c")):
        assert name.replace("_", "a").isalnum()
        assert name.isascii()
        assert name == name.lower()
        assert len(name) <= 63
