"""New, renamed and dropped tables from one real server to another, in one process: the real hosts, and a driver on threads.

Users create, fill, alter and drop tables at the source while capture, apply and `up` run, are killed, or begin anew. At the
end both sides have the same tables with the same rows, each written once, and no table that DDL made was copied.

Longer than 500 lines: all tests share one topology and its comparison.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from headrace.base.errors import DatabaseUnavailable
from headrace.databases.ports import Instantiation
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.deployment.inspection import check_topology, plan_topology
from headrace.lcr.scn import Scn
from headrace.lcr.structure import Part, PartName, elements
from protos import apply_pb2 as pb
from spark_apply.server import apply_server
from tests.support.apply.apply_driver import end_of_log, wait_for
from tests.support.databases.statements import digest, execute
from tests.support.session.background import in_background
from tests.support.session.seeds import scaled, seeds
from tests.support.ways.ddl_way import OF_SCHEMA_WITH_DDL, DdlWay, await_copies, opened, structure, way_fixture
from tests.support.ways.one_way import WAIT_S, create_tables, load
from topology.edits.stored import PREPARED_FILE, spec_to_json

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

NOT_APPLIED = "SELECT object_name, reason, ddl_text FROM headrace.dba_ddl_not_applied ORDER BY ddl_number"
COPIED = {"first", "log"}  # all others are made by DDL
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
APPLY_SESSIONS = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
AND application_name ~ 'apply' AND pid <> pg_backend_pid()"""


def tables(dsn: str) -> list[str]:
    return [name for (name,) in execute(dsn, TABLES)]


def parts(dsn: str, name: str) -> dict[PartName, Part]:
    """Return a table's parts, without the foreign keys, which are left out where a table is not level."""
    return {key: part for key, part in elements(structure(dsn, name)).items() if getattr(part, "type", "") != "f"}


class Way(DdlWay):
    """The topology, and what tests ask of it."""

    settled_states = frozenset({"DONE", "GONE"})

    def assert_same(self) -> None:
        """Compare everything."""
        self.settle()
        names = tables(self.source_dsn)
        assert tables(self.destination_dsn) == names
        for name in names:
            assert digest(self.destination_dsn, name) == digest(self.source_dsn, name), name
            assert parts(self.destination_dsn, name) == parts(self.source_dsn, name), name
        assert execute(self.destination_dsn, "SELECT * FROM headrace.apply_error") == []
        assert self._source.uncaptured(self.spec.name, self.spec.capture_rules("dbs1")) == ()

    def records(self) -> dict[str, Instantiation]:
        with closing(PostgresDestination(self.destination_dsn, site="dbs2")) as destination:
            (apply,) = self.spec.applies
            return {each.name: each for each in destination.instantiations(self.spec.name, apply.name)}

    def assert_nothing_was_copied(self) -> None:
        """Check that each table that DDL made has the record of its CREATE TABLE."""
        for name, record in self.records().items():
            assert record.state == "DONE", record
            if name not in COPIED:
                assert (record.row_count, record.digest) == (0, "0" * 32), record

    def kill_sessions(self) -> None:
        execute(self.destination_dsn, APPLY_SESSIONS)

    def up(self) -> None:
        self._source.prepare(self.spec.name, self.spec.capture_rules("dbs1"))


way = way_fixture(Way, OF_SCHEMA_WITH_DDL)


@pytest.fixture
def of_shop(
    source_database: str, destination_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Way]:
    """The topology, with a second schema."""
    for dsn in (source_database, destination_database):
        execute(dsn, "CREATE SCHEMA shop")
    text = OF_SCHEMA_WITH_DDL.replace("[public]", "[public, shop]")
    with opened(Way, "combined", tmp_path, source_database, destination_database, monkeypatch, text) as made:
        yield made


# --------------------------------------------------------------------------- one transaction


def test_first_row_arrives_without_a_second_up(way: Way) -> None:
    with psycopg.connect(way.source_dsn) as user:
        user.execute("INSERT INTO log VALUES (1)")
        user.execute("CREATE TABLE made (id integer PRIMARY KEY, v text NOT NULL DEFAULT 'd', CHECK (id > 0))")
        user.execute("INSERT INTO made VALUES (1, 'first')")
    execute(way.source_dsn, "INSERT INTO made (id) VALUES (2); UPDATE made SET v = 'changed' WHERE id = 1")
    execute(way.source_dsn, "CREATE INDEX made_v ON made (v); DELETE FROM made WHERE id = 2")
    way.assert_same()
    way.assert_nothing_was_copied()
    assert set(way.outcomes()) == {"APPLIED"}
    shown = {each.name: each.state for each in way.driver.control.status().instantiation}
    assert shown == dict.fromkeys(["first", "log", "made"], "DONE")


def test_table_without_a_key_has_its_updates_and_deletes(way: Way) -> None:
    execute(way.source_dsn, "CREATE TABLE bag (a integer, b text)")
    execute(way.source_dsn, "INSERT INTO bag VALUES (1, 'x'), (1, 'x'), (2, NULL)")
    execute(way.source_dsn, "UPDATE bag SET b = 'y' WHERE ctid = (SELECT min(ctid) FROM bag WHERE a = 1)")
    execute(way.source_dsn, "DELETE FROM bag WHERE a = 2")
    way.assert_same()
    way.assert_nothing_was_copied()


def test_create_alter_drop_create_in_one_transaction(way: Way) -> None:
    with psycopg.connect(way.source_dsn) as user:
        user.execute("CREATE TABLE made (id integer PRIMARY KEY)")
        user.execute("INSERT INTO made VALUES (1)")
        user.execute("ALTER TABLE made ADD COLUMN v text")
        user.execute("INSERT INTO made VALUES (2, 'new')")
        user.execute("DROP TABLE made")
        user.execute("CREATE TABLE made (id integer PRIMARY KEY, other integer)")
        user.execute("INSERT INTO made VALUES (1, 7)")
        user.execute("CREATE TABLE gone (id integer PRIMARY KEY); INSERT INTO gone VALUES (1); DROP TABLE gone")
    execute(way.source_dsn, "INSERT INTO made VALUES (2, 8)")
    way.assert_same()
    way.assert_nothing_was_copied()
    assert execute(way.destination_dsn, "SELECT id, other FROM made ORDER BY 1") == [(1, 7), (2, 8)]
    assert set(way.outcomes()) == {"APPLIED"}


def test_drop_and_create_of_one_name_in_two_transactions(way: Way) -> None:
    execute(way.source_dsn, "CREATE TABLE made (id integer PRIMARY KEY); INSERT INTO made VALUES (1)")
    execute(way.source_dsn, "DROP TABLE made")
    execute(way.source_dsn, "CREATE TABLE made (id integer, v text); INSERT INTO made VALUES (2, 'x')")
    way.assert_same()
    way.assert_nothing_was_copied()
    assert set(way.outcomes()) == {"APPLIED"}


def test_serial_and_identity(way: Way) -> None:
    execute(
        way.source_dsn,
        "CREATE TABLE made (id serial PRIMARY KEY, n bigint GENERATED BY DEFAULT AS IDENTITY (INCREMENT 5), v text)",
    )
    execute(way.source_dsn, "INSERT INTO made (v) VALUES ('a'), ('b')")
    way.assert_same()
    way.assert_nothing_was_copied()
    owned = "SELECT pg_get_serial_sequence('made', 'id'), pg_get_serial_sequence('made', 'n')"
    assert execute(way.destination_dsn, owned) == execute(way.source_dsn, owned)


def test_savepoints_that_are_rolled_back_leave_nothing(way: Way) -> None:
    with psycopg.connect(way.source_dsn) as user:
        user.execute("SAVEPOINT half")
        user.execute("CREATE TABLE gone (id integer PRIMARY KEY); INSERT INTO gone VALUES (1)")
        user.execute("ROLLBACK TO half")
        user.execute("CREATE TABLE made (id integer PRIMARY KEY)")
        user.execute("SAVEPOINT half")
        user.execute("INSERT INTO made VALUES (1); ALTER TABLE made ADD COLUMN gone text")
        user.execute("ROLLBACK TO half")
        user.execute("INSERT INTO made VALUES (2)")
    way.assert_same()
    way.assert_nothing_was_copied()
    assert way.outcomes() == ["APPLIED"]


def test_truncate_alone_and_with_others(way: Way) -> None:
    with psycopg.connect(way.source_dsn) as user:
        user.execute("CREATE TABLE made (id integer PRIMARY KEY); INSERT INTO made VALUES (1)")
        user.execute("TRUNCATE made")
        user.execute("INSERT INTO made VALUES (2)")
    execute(way.source_dsn, "TRUNCATE made, log")
    execute(way.source_dsn, "INSERT INTO made VALUES (3); INSERT INTO log VALUES (3)")
    way.assert_same()
    way.assert_nothing_was_copied()


def test_table_made_with_rows_is_named_and_copied_after_up(way: Way) -> None:
    execute(way.source_dsn, "CREATE TABLE made AS SELECT 1 AS id, 'x' AS v")
    execute(way.source_dsn, "INSERT INTO made VALUES (2, 'y')")
    end = Scn(end_of_log(way.source_dsn))
    wait_for("the record", lambda: way.driver.control.status().low_watermark_scn >= end, WAIT_S)
    ((outcome, reason),) = execute(way.destination_dsn, "SELECT outcome, reason FROM headrace.dba_ddl_not_applied")
    assert outcome == "NOT APPLIED"
    assert "headrace up" in reason
    assert way._source.uncaptured(way.spec.name, way.spec.capture_rules("dbs1")) == ("public.made",)
    execute(way.destination_dsn, "CREATE TABLE made (id integer, v text)")
    execute(way.source_dsn, "ALTER TABLE made REPLICA IDENTITY FULL")
    way.up()
    way.kill_driver()
    way.assert_same()
    assert way.records()["made"].row_count == 2


def test_tagged_table_is_left_out_and_the_next_start_copies_it(way: Way) -> None:
    origin = f"headrace:{way.spec.name}/x/0:0e"  # what `headrace.set_tag` sets
    with psycopg.connect(way.source_dsn, autocommit=True) as user:
        user.execute("SELECT pg_replication_origin_create(%s)", (origin,))
        user.execute("SELECT pg_replication_origin_session_setup(%s)", (origin,))
        user.execute("CREATE TABLE made (id integer PRIMARY KEY); INSERT INTO made VALUES (1)")
        user.execute("SELECT pg_replication_origin_session_reset()")
        user.execute("SELECT pg_replication_origin_drop(%s)", (origin,))
    execute(way.source_dsn, "INSERT INTO made VALUES (2); INSERT INTO log VALUES (1)")
    end = Scn(end_of_log(way.source_dsn))
    wait_for("the rest", lambda: way.driver.control.status().low_watermark_scn >= end, WAIT_S)
    assert (way.outcomes(), "made" in tables(way.destination_dsn)) == ([], False)
    execute(way.destination_dsn, "CREATE TABLE made (id integer PRIMARY KEY)")
    way.kill_driver()
    way.assert_same()
    assert way.records()["made"].row_count == 2


# --------------------------------------------------------------------------- RENAME


REBUILD = (
    "CREATE TABLE first_new (LIKE first INCLUDING ALL)",
    "INSERT INTO first_new SELECT * FROM first",
    "INSERT INTO first (id) VALUES (90010)",
    "ALTER TABLE first RENAME TO first_old",
    "ALTER TABLE first_new RENAME TO first",
    "INSERT INTO first (id) VALUES (90011)",
    "INSERT INTO first_old (id) VALUES (90012)",
)
SWAP = (
    "ALTER TABLE first RENAME TO away",
    "INSERT INTO away (id) VALUES (90021)",
    "ALTER TABLE second RENAME TO first",
    "INSERT INTO first (id) VALUES (90022), (90011)",
    "ALTER TABLE away RENAME TO second",
    "INSERT INTO second (id) VALUES (90023)",
)


def run(way: Way, statements: Sequence[str], *, is_at_once: bool) -> None:
    with psycopg.connect(way.source_dsn, autocommit=not is_at_once) as user:
        for statement in statements:
            user.execute(statement.encode())


def test_new_table_that_is_renamed_at_once_has_all_rows(way: Way) -> None:
    with psycopg.connect(way.source_dsn) as user:
        user.execute("CREATE TABLE early (id integer PRIMARY KEY); INSERT INTO early VALUES (1)")
        user.execute("ALTER TABLE early RENAME TO made; INSERT INTO made VALUES (2)")
    execute(way.source_dsn, "INSERT INTO made VALUES (3)")
    way.assert_same()
    way.assert_nothing_was_copied()
    assert set(way.outcomes()) == {"APPLIED"}


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("is_at_once", [False, True])
@pytest.mark.parametrize(
    "statements", [REBUILD, (*REBUILD, "DROP TABLE first_old"), SWAP], ids=["kept", "gone", "swap"]
)
def test_rows_follow_renamed_tables(way: Way, statements: Sequence[str], is_at_once: bool, restarts: bool) -> None:
    execute(way.source_dsn, "CREATE TABLE second (id integer PRIMARY KEY, v text)")
    way.settle()
    if restarts:  # the next driver's source has the later names, while the RENAMEs are on their way
        way._end("capture:capture_dbs1")
    for number in range(20):
        execute(way.source_dsn, f"UPDATE first SET v = v || 'x' WHERE id = {number}")
        execute(way.source_dsn, f"INSERT INTO second VALUES ({number}, 's')")
    run(way, statements, is_at_once=is_at_once)
    if restarts:
        way.kill_driver()
        way._begin("capture:capture_dbs1")
    way.assert_same()
    assert set(way.outcomes()) == {"APPLIED"}
    way.kill_driver()
    execute(
        way.source_dsn, "UPDATE first SET id = id + 1000000 WHERE id = 90011; INSERT INTO first (id) VALUES (99999)"
    )
    way.assert_same()
    counts = {name: each.row_count for name, each in way.records().items()}
    assert {each.state for each in way.records().values()} == {"DONE"}, counts


def test_table_renamed_early_at_the_destination_is_passed_over(way: Way) -> None:
    execute(way.source_dsn, "INSERT INTO first (id) VALUES (90001)")
    way.settle()
    execute(way.destination_dsn, "ALTER TABLE first RENAME TO old")
    run(way, ["ALTER TABLE first RENAME TO old", "INSERT INTO old (id) VALUES (90002)"], is_at_once=False)
    way.assert_same()
    assert way.outcomes() == ["PASSED OVER"]
    assert "old" in way.records()


def test_table_renamed_too_early_pauses_until_it_is_renamed_back_as_printed(way: Way) -> None:
    """Rows under the former name are on their way."""
    way.settle()
    execute(way.destination_dsn, "ALTER TABLE first RENAME TO old")
    run(way, ["INSERT INTO first (id) VALUES (90001)", "ALTER TABLE first RENAME TO old"], is_at_once=False)
    said = way.paused_on("RENAME TO")
    execute(way.destination_dsn, said[said.rindex("ALTER TABLE") :].partition(";")[0])
    way.assert_same()
    assert way.outcomes() == ["APPLIED"]


def test_taken_name_pauses_until_it_is_free(way: Way) -> None:
    execute(way.destination_dsn, "CREATE TABLE old (id integer)")
    run(way, ["ALTER TABLE first RENAME TO old", "INSERT INTO old (id) VALUES (90002)"], is_at_once=True)
    way.paused_on("drop or rename what has this name")
    execute(way.destination_dsn, "DROP TABLE old")
    way.assert_same()


def test_rename_that_was_left_out_is_made_by_hand(way: Way) -> None:
    execute(way.destination_dsn, "CREATE TABLE old (id integer)")
    run(way, ["ALTER TABLE first RENAME TO old", "INSERT INTO old (id) VALUES (90002)"], is_at_once=False)
    said = way.paused_on("INSERT INTO headrace.ddl_skip")
    execute(way.destination_dsn, said[said.index("INSERT INTO headrace.ddl_skip") :].partition(";")[0])
    way.paused_on("old")
    execute(way.destination_dsn, "DROP TABLE old; ALTER TABLE first RENAME TO old")
    way.kill_driver()
    way.assert_same()
    assert "old" in way.records()


def test_schema_of_a_serial_table(of_shop: Way) -> None:
    execute(of_shop.source_dsn, "CREATE TABLE made (id serial PRIMARY KEY, v text); INSERT INTO made (v) VALUES ('a')")
    execute(of_shop.source_dsn, "ALTER TABLE made SET SCHEMA shop; INSERT INTO shop.made (v) VALUES ('b')")
    of_shop.assert_same()
    assert digest(of_shop.destination_dsn, "shop.made") == digest(of_shop.source_dsn, "shop.made")
    assert set(of_shop.outcomes()) == {"APPLIED"}


def test_table_that_becomes_a_partition_keeps_its_rows_coming(way: Way) -> None:
    execute(way.source_dsn, "CREATE TABLE parent (id integer PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    execute(way.source_dsn, "CREATE TABLE child (LIKE parent INCLUDING ALL); INSERT INTO child VALUES (1, 'a')")
    execute(way.source_dsn, "ALTER TABLE parent ATTACH PARTITION child FOR VALUES FROM (0) TO (10)")
    execute(way.source_dsn, "INSERT INTO parent VALUES (2, 'b'); UPDATE child SET v = 'c' WHERE id = 1")
    execute(way.source_dsn, "ALTER TABLE parent DETACH PARTITION child; INSERT INTO child VALUES (3, 'd')")
    end = Scn(end_of_log(way.source_dsn))
    wait_for("the rows", lambda: way.driver.control.status().low_watermark_scn >= end, WAIT_S)
    assert digest(way.destination_dsn, "child") == digest(way.source_dsn, "child")
    assert tables(way.destination_dsn) == ["child", "first", "log"]
    way.assert_nothing_was_copied()


# --------------------------------------------------------------------------- processes that die


def test_killed_before_the_record_is_decoded(way: Way) -> None:
    way._end("capture:capture_dbs1")
    execute(way.source_dsn, "CREATE TABLE made (id integer PRIMARY KEY); INSERT INTO made VALUES (1)")
    way.kill_driver()  # its source names a table of which the redo log says nothing yet
    execute(way.source_dsn, "INSERT INTO made VALUES (2)")
    time.sleep(1.0)  # a copy would begin now
    assert "made" not in tables(way.destination_dsn)
    way._begin("capture:capture_dbs1")
    way.assert_same()
    way.assert_nothing_was_copied()


def test_killed_before_the_commit(way: Way) -> None:
    with psycopg.connect(way.destination_dsn) as blocker:
        blocker.execute("LOCK TABLE log IN ACCESS EXCLUSIVE MODE")
        with psycopg.connect(way.source_dsn) as user:
            user.execute("CREATE TABLE made (id integer PRIMARY KEY); INSERT INTO made VALUES (1)")
            user.execute("INSERT INTO log VALUES (1)")
        execute(way.source_dsn, "INSERT INTO made VALUES (2)")
        waiting = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND relation = 'log'::regclass"
        wait_for("the server at the lock", lambda: execute(way.destination_dsn, waiting)[0][0], WAIT_S)
        way.kill_driver()
        way.kill_sessions()
        assert "made" not in tables(way.destination_dsn)
        assert "made" not in way.records()
    way.assert_same()
    way.assert_nothing_was_copied()
    assert way.outcomes() == ["APPLIED"]


def test_killed_between_the_commit_and_its_settling(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:

        def away(*_: object) -> object:
            raise DatabaseUnavailable("not now")

        patch.setattr(PostgresDestination, "ddl_outcomes", away)
        execute(way.source_dsn, "CREATE TABLE made (id integer PRIMARY KEY); INSERT INTO made VALUES (1)")
        execute(way.source_dsn, "INSERT INTO made VALUES (2)")
        wait_for("the commit", lambda: "made" in tables(way.destination_dsn), WAIT_S)
        way.driver.stop(0.0)
        assert way.driver.join(WAIT_S)
    way.driver = way._driver()
    way.driver.start()
    way.assert_same()
    way.assert_nothing_was_copied()
    assert way.outcomes() == ["APPLIED"]


@pytest.mark.parametrize("broken", ["sessions", "capture", "driver"])
def test_killed_while_users_create_tables(way: Way, broken: str) -> None:
    for number in range(4):
        execute(way.source_dsn, f"CREATE TABLE t{number} (id integer PRIMARY KEY); INSERT INTO t{number} VALUES (1)")
        if broken == "sessions":
            way.kill_sessions()
        elif broken == "capture":
            way.replace_capture()
        else:
            way.kill_driver()
        execute(way.source_dsn, f"INSERT INTO t{number} VALUES (2); UPDATE t{number} SET id = 3 WHERE id = 1")
    way.assert_same()
    way.assert_nothing_was_copied()
    assert set(way.outcomes()) == {"APPLIED"}


def test_source_drops_it_before_the_destination_makes_it(way: Way) -> None:
    way._end("capture:capture_dbs1")
    execute(way.source_dsn, "CREATE TABLE made (id integer PRIMARY KEY); INSERT INTO made VALUES (1)")
    execute(way.source_dsn, "INSERT INTO made VALUES (2)")
    execute(way.source_dsn, "DROP TABLE made; DROP TABLE log")
    way.kill_driver()  # its source names neither
    way._begin("capture:capture_dbs1")
    way.assert_same()
    assert way.outcomes() == ["APPLIED"] * 3


def test_new_destination_copies_what_was_made_before(way: Way) -> None:
    execute(way.source_dsn, "CREATE TABLE made (id integer PRIMARY KEY); INSERT INTO made VALUES (1)")
    way.settle()
    way.driver.stop(5.0)
    assert way.driver.join(WAIT_S)
    (apply,) = way.spec.applies
    with closing(PostgresDestination(way.destination_dsn, site="dbs2")) as destination:
        destination.forget(way.spec.name, apply.name)
    execute(way.destination_dsn, "TRUNCATE first, log, made")
    execute(way.source_dsn, "INSERT INTO made VALUES (2)")
    way.driver = way._driver()
    way.driver.start()
    way.assert_same()
    assert way.records()["made"].row_count == 2


# --------------------------------------------------------------------------- many sessions, and `up`


def test_up_while_tables_are_created(way: Way) -> None:
    """A session that meets another one's CREATE TABLE, or `up`, has its table copied after the next `up`."""
    clients, each = scaled(6, 10), scaled(3, 10)

    def create(client: int) -> None:
        with psycopg.connect(way.source_dsn, autocommit=True) as user:
            for number in range(each):
                name = f"t{client}_{number}"
                with user.transaction():
                    user.execute(f"CREATE TABLE {name} (id integer PRIMARY KEY)".encode())
                    user.execute(f"INSERT INTO {name} VALUES (1)".encode())
                user.execute(f"INSERT INTO {name} VALUES (2)".encode())

    threads = [threading.Thread(target=create, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        way.up()
        way.kill_driver()
    for thread in threads:
        thread.join()
    way.up()
    missing = set(tables(way.source_dsn)) - set(tables(way.destination_dsn))
    published = {
        name for (name,) in execute(way.source_dsn, "SELECT relation::regclass::text FROM headrace_ddl.made WHERE true")
    }
    for name in missing - published:  # `check` prints these statements
        execute(way.destination_dsn, f"CREATE TABLE {name} (id integer PRIMARY KEY)")
    way.kill_driver()
    way.assert_same()
    records = way.records()
    assert {name for name in published if name in records and records[name].row_count} == set()


# --------------------------------------------------------------------------- what the destination refuses


TAKEN = "CREATE TABLE made (id text)"


def test_refused_table_is_made_when_the_name_is_free(way: Way) -> None:
    execute(way.destination_dsn, TAKEN)
    execute(way.source_dsn, "CREATE TABLE made (id integer PRIMARY KEY); INSERT INTO made VALUES (1)")
    way.paused_on("another table of that name")
    execute(way.destination_dsn, "DROP TABLE made")
    way.assert_same()
    way.assert_nothing_was_copied()
    assert way.outcomes() == ["APPLIED"]


def test_refused_table_may_be_made_by_hand(way: Way) -> None:
    execute(way.destination_dsn, f"{TAKEN}; INSERT INTO made VALUES ('mine')")
    execute(way.source_dsn, "CREATE TABLE made (id integer PRIMARY KEY); INSERT INTO made VALUES (1)")
    way.paused_on("another table of that name")
    execute(way.destination_dsn, "DROP TABLE made; CREATE TABLE made (id integer PRIMARY KEY)")
    way.assert_same()
    way.assert_nothing_was_copied()
    assert way.outcomes() in (["PASSED OVER"], ["APPLIED"])


def test_refused_table_may_be_left_out_and_is_copied_by_the_next_start(way: Way) -> None:
    execute(way.destination_dsn, TAKEN)
    execute(way.source_dsn, "CREATE TABLE made (id integer PRIMARY KEY); INSERT INTO made VALUES (1)")
    execute(way.source_dsn, "INSERT INTO made VALUES (2)")
    said = way.paused_on("headrace.ddl_skip")
    execute(way.destination_dsn, said[said.index("INSERT INTO headrace.ddl_skip") :].partition(";")[0])
    execute(way.source_dsn, "INSERT INTO log VALUES (1)")
    end = Scn(end_of_log(way.source_dsn))
    wait_for("the rest", lambda: way.driver.control.status().low_watermark_scn >= end, WAIT_S)
    assert way.outcomes() == ["SKIPPED"]
    execute(way.destination_dsn, "DROP TABLE made; CREATE TABLE made (id integer PRIMARY KEY)")
    way.kill_driver()
    way.assert_same()
    assert way.records()["made"].row_count == 2


def test_missing_schema_pauses_until_it_is_there(
    source_database: str, destination_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_tables(source_database, destination_database)
    execute(source_database, "CREATE SCHEMA shop")
    text = OF_SCHEMA_WITH_DDL.replace("[public]", "[public, shop]")
    way = Way(tmp_path, source_database, destination_database, monkeypatch, text=text)
    try:
        await_copies(way)
        execute(source_database, "CREATE TABLE shop.made (id integer PRIMARY KEY); INSERT INTO shop.made VALUES (1)")
        way.paused_on('CREATE SCHEMA "shop"')
        execute(destination_database, "CREATE SCHEMA shop")
        way.assert_same()
        assert execute(destination_database, "SELECT id FROM shop.made") == [(1,)]
    finally:
        way.close()


# --------------------------------------------------------------------------- the error queue


def put_into_the_error_queue(way: Way) -> None:
    """Let a row fail in the transaction that creates a table, and write the table behind it."""
    execute(way.destination_dsn, "INSERT INTO first VALUES (5000, 'mine')")
    with psycopg.connect(way.source_dsn) as user:
        user.execute("CREATE TABLE made (id integer PRIMARY KEY); INSERT INTO made VALUES (1)")
        user.execute("INSERT INTO first VALUES (5000, 'theirs')")
    execute(way.source_dsn, "INSERT INTO made VALUES (2)")
    wait_for("the error", lambda: execute(way.destination_dsn, "SELECT number FROM headrace.apply_error"), WAIT_S)
    assert "made" not in tables(way.destination_dsn)


def execute_errors(way: Way) -> None:
    execute(way.destination_dsn, "DELETE FROM first WHERE id = 5000")
    way.driver.control.begin_execution("again", pb.ErrorsRequest(all=True))
    wait_for("the execution", lambda: way.driver.control.execution_outcomes("again", 1.0).is_over, WAIT_S)
    assert execute(way.destination_dsn, "SELECT number FROM headrace.apply_error") == []


def test_table_made_from_the_error_queue_is_copied(way: Way) -> None:
    put_into_the_error_queue(way)
    way.paused_on("error queue")
    execute_errors(way)
    way.assert_same()
    assert way.records()["made"].row_count == 2
    assert way.outcomes() == ["APPLIED"]


def test_deleted_creation_leaves_its_table_out_until_it_is_copied(way: Way) -> None:
    put_into_the_error_queue(way)
    way.paused_on("error queue")
    assert [each.done for each in way.driver.control.delete_errors(pb.ErrorsRequest(all=True))] == [True]
    execute(way.source_dsn, "INSERT INTO log VALUES (1)")
    end = Scn(end_of_log(way.source_dsn))
    wait_for("the rest", lambda: way.driver.control.status().low_watermark_scn >= end, WAIT_S)
    assert way.outcomes() == ["SKIPPED"]
    execute(way.destination_dsn, "UPDATE first SET v = 'theirs' WHERE id = 5000")
    execute(way.destination_dsn, "CREATE TABLE made (id integer PRIMARY KEY)")
    way.kill_driver()
    way.assert_same()
    assert way.records()["made"].row_count == 2


def test_table_copied_while_its_creation_is_in_the_error_queue(way: Way) -> None:
    put_into_the_error_queue(way)
    execute(way.destination_dsn, "CREATE TABLE made (id integer PRIMARY KEY)")
    way.kill_driver()
    end = Scn(end_of_log(way.source_dsn))
    wait_for("the copy", lambda: way.records().get("made", NOTHING).state == "DONE", WAIT_S)
    wait_for("the rest", lambda: way.driver.control.status().low_watermark_scn >= end, WAIT_S)
    execute_errors(way)
    way.assert_same()


def make_again(way: Way) -> None:
    execute(way.source_dsn, "DROP TABLE made")
    execute(way.source_dsn, "CREATE TABLE made (id integer PRIMARY KEY, z integer); INSERT INTO made VALUES (7, 7)")


def test_table_made_again_behind_a_creation_in_the_error_queue(way: Way) -> None:
    put_into_the_error_queue(way)
    make_again(way)
    way.paused_on("error queue")
    assert [each.done for each in way.driver.control.delete_errors(pb.ErrorsRequest(all=True))] == [True]
    execute(way.destination_dsn, "UPDATE first SET v = 'theirs' WHERE id = 5000")
    way.assert_same()
    way.assert_nothing_was_copied()
    assert way.outcomes() == ["SKIPPED", "PASSED OVER", "APPLIED"]


def test_table_made_again_is_held_behind_its_creation_after_a_restart(way: Way) -> None:
    """The source no longer names the first table: its rows are left out, its DROP and what follows wait in the queue."""
    put_into_the_error_queue(way)
    make_again(way)
    way.kill_driver()
    end = Scn(end_of_log(way.source_dsn))
    wait_for("the rest", lambda: way.driver.control.status().low_watermark_scn >= end, WAIT_S)
    deleted = way.driver.control.delete_errors(pb.ErrorsRequest(all=True))
    assert [each.done for each in deleted] == [True] * 3
    execute(way.destination_dsn, "UPDATE first SET v = 'theirs' WHERE id = 5000")
    execute(way.destination_dsn, "CREATE TABLE made (id integer PRIMARY KEY, z integer)")
    way.kill_driver()
    way.assert_same()
    assert way.records()["made"].row_count == 1


NOTHING = Instantiation(source="", identity="", owner="", name="", scn=Scn(0), state="")


# --------------------------------------------------------------------------- DROP


def test_dropped_table_goes_and_a_view_refuses_it(way: Way) -> None:
    execute(way.destination_dsn, "CREATE VIEW seen AS SELECT id FROM first")
    with psycopg.connect(way.source_dsn) as user:
        user.execute("INSERT INTO log VALUES (1)")
        user.execute("DROP TABLE first")
        user.execute("INSERT INTO log VALUES (2)")
    way.paused_on("seen")
    assert execute(way.destination_dsn, "SELECT count(*) FROM log") == [(0,)], "nothing of the transaction is there"
    execute(way.destination_dsn, "DROP VIEW seen")
    way.assert_same()
    assert list(way.records()) == ["log"]
    assert way.outcomes() == ["APPLIED"]


def test_second_refusal_of_a_transaction_is_shown_all_the_time(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two attempts the transaction is read again, which can take long: no status may show an idle apply process."""
    monkeypatch.setattr(apply_server, "_UNFIT_RETRY_S", 0.01)  # each attempt ends before the transaction comes again
    execute(way.destination_dsn, "CREATE VIEW seen AS SELECT id FROM first")
    with psycopg.connect(way.source_dsn) as user:
        user.execute("DROP TABLE first")
        user.execute("CREATE TABLE first (id integer PRIMARY KEY)")
    said = way.paused_on("headrace.ddl_skip")
    execute(way.destination_dsn, said[said.index("INSERT INTO headrace.ddl_skip") :].partition(";")[0])
    way.paused_on("CREATE TABLE")
    until = time.monotonic() + 3.0
    while time.monotonic() < until:
        status = way.driver.control.status()
        assert status.state == "PAUSED: WAITING FOR ALTER", status
        assert "CREATE TABLE" in status.detail
        time.sleep(0.05)
    execute(way.destination_dsn, "DROP VIEW seen; DROP TABLE first")
    way.settle()
    wait_for("the pause is forgotten", lambda: not way.driver.control.status().detail, WAIT_S)


def test_tables_that_depend_on_each_other_are_dropped_together(way: Way) -> None:
    execute(way.source_dsn, "CREATE TABLE a (id serial PRIMARY KEY); CREATE TABLE b (LIKE a INCLUDING ALL, r a)")
    execute(way.source_dsn, "INSERT INTO a DEFAULT VALUES; INSERT INTO b DEFAULT VALUES")
    execute(way.source_dsn, "CREATE TABLE c (id integer PRIMARY KEY); CREATE TABLE d (id integer PRIMARY KEY)")
    execute(way.source_dsn, "ALTER TABLE c ADD COLUMN r d; INSERT INTO c VALUES (1, row(1))")
    execute(way.source_dsn, "DROP TABLE a, b; DROP TABLE c, d")
    way.assert_same()
    assert set(way.records()) == COPIED
    assert set(way.outcomes()) == {"APPLIED"}


def test_table_dropped_in_a_serializable_transaction_may_come_again(way: Way) -> None:
    execute(way.source_dsn, "CREATE TABLE made (id integer PRIMARY KEY); INSERT INTO made VALUES (1)")
    with psycopg.connect(way.source_dsn) as user:
        user.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        user.execute("DROP TABLE made")
    execute(way.source_dsn, "CREATE TABLE made (id integer PRIMARY KEY, v text); INSERT INTO made VALUES (2, 'x')")
    way.assert_same()
    way.assert_nothing_was_copied()


def test_schema_that_is_dropped_takes_its_tables(of_shop: Way) -> None:
    execute(of_shop.source_dsn, "CREATE TABLE shop.a (id integer PRIMARY KEY)")
    execute(of_shop.source_dsn, "CREATE TABLE shop.b (id integer PRIMARY KEY, a integer)")
    execute(of_shop.source_dsn, "INSERT INTO shop.a VALUES (1); INSERT INTO shop.b VALUES (1, 1)")
    execute(of_shop.source_dsn, "DROP SCHEMA shop CASCADE")
    of_shop.assert_same()
    assert execute(of_shop.destination_dsn, "SELECT tablename FROM pg_tables WHERE schemaname = 'shop'") == []
    assert set(of_shop.records()) == COPIED


# --------------------------------------------------------------------------- commands


def test_plan_and_check_know_a_new_table(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE", way.source_dsn)
    monkeypatch.setenv("DESTINATION", way.destination_dsn)
    execute(way.source_dsn, "CREATE TABLE made (id integer PRIMARY KEY); INSERT INTO made VALUES (1)")
    way.settle()
    file = tmp_file(way)
    found = check_topology(file, ask_databases=True)
    assert [finding for finding in found.findings if "made" in f"{finding.path} {finding.problem}"] == []
    plan = plan_topology(file, ask_databases=True).as_text()
    assert "public.made" not in [line for line in plan.splitlines() if "ALTER PUBLICATION" in line]


def test_check_asks_for_no_alter_while_drop_and_create_of_a_name_travel(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed way out is for a table that never comes: here both statements are left out."""
    monkeypatch.setenv("SOURCE", way.source_dsn)
    monkeypatch.setenv("DESTINATION", way.destination_dsn)
    (way.spec.state_dir / PREPARED_FILE).write_text(json.dumps({"spec": spec_to_json(way.spec)}))
    execute(way.destination_dsn, "CREATE VIEW seen AS SELECT id FROM first")
    create = "CREATE TABLE first (id integer PRIMARY KEY, v text, more integer)"
    execute(way.source_dsn, f"DROP TABLE first; {create}; INSERT INTO first VALUES (1, 'x', 1)")
    for words in ("DROP TABLE", "CREATE TABLE"):
        said = way.paused_on(words)
        found = check_topology(tmp_file(way), ask_databases=True).findings
        (finding,) = (each for each in found if each.path == "sites.dbs2 table public.first")
        assert not finding.is_error
        assert "former one of this name" in finding.problem
        execute(way.destination_dsn, said[said.index("INSERT INTO headrace.ddl_skip") :].partition(";")[0])
    assert "drop the table here, and create the new one" in finding.fix
    execute(way.destination_dsn, f"DROP TABLE first CASCADE; {create}")
    way.kill_driver()
    way.settle()
    assert digest(way.destination_dsn, "first") == digest(way.source_dsn, "first")


def tmp_file(way: Way) -> Path:
    return way._folder / "topology.yaml"


# --------------------------------------------------------------------------- random histories


class Users:
    """A user who creates, fills, alters and drops tables at random, one transaction after another."""

    def __init__(self, dsn: str, rng: random.Random, *, renames: bool = False) -> None:
        self._renames = renames
        self._dsn, self._rng, self._names, self._rows = dsn, rng, 0, 0

    def run(self, transactions: int) -> None:
        with psycopg.connect(self._dsn) as user:
            for _ in range(transactions):
                for _ in range(self._rng.randint(1, 5)):
                    self._step(user)
                if self._rng.random() < 0.2:
                    user.rollback()
                else:
                    user.commit()

    def _step(self, user: psycopg.Connection) -> None:
        rng = self._rng
        if rng.random() < 0.15:
            user.execute("SAVEPOINT half")
            self._change(user)
            if rng.random() < 0.6:
                user.execute("ROLLBACK TO half")
            return
        self._change(user)

    def _change(self, user: psycopg.Connection) -> None:
        rng = self._rng
        if self._renames and rng.random() < 0.15:
            self._rename(user)
            return
        there = [name for (name,) in user.execute(TABLES).fetchall() if name not in COPIED]
        self._names += 1
        self._rows += 1
        if not there or rng.random() < 0.2:
            # A name may come again once its table is dropped.
            name = rng.choice([f"t{number}" for number in range(6)])
            if name not in there:
                key = rng.choice([" PRIMARY KEY", ""])
                user.execute(f"CREATE TABLE {name} (id integer{key}, v text)".encode())
            return
        name, kind = rng.choice(there), rng.random()
        if kind < 0.12:
            user.execute(f"DROP TABLE {name}".encode())
        elif kind < 0.3 and name in {"t0", "t1", "t2"}:
            user.execute(f"TRUNCATE {name}".encode())
        elif kind < 0.3:
            # Behind a TRUNCATE and new rows, a column that is added is not replicated (docs/how/ddl.md).
            user.execute(f"ALTER TABLE {name} ADD COLUMN c{self._names} integer DEFAULT {self._names}".encode())
        elif kind < 0.75:
            user.execute(f"INSERT INTO {name} (id, v) VALUES ({self._rows}, 'h')".encode())
        elif kind < 0.9:
            user.execute(f"UPDATE {name} SET v = v || 'u' WHERE id % 2 = {self._rows % 2}".encode())
        else:
            user.execute(f"DELETE FROM {name} WHERE id % 5 = {self._rows % 5}".encode())

    def _rename(self, user: psycopg.Connection) -> None:
        """Rename a table, exchange two names, or rebuild a table under its name."""
        rng, names = self._rng, [name for (name,) in user.execute(TABLES).fetchall() if name not in COPIED]
        rng.shuffle(names)
        self._names += 1
        later, kind = f"r{self._names}", rng.random()
        moves = [(name, later) for name in names[:1]]
        if len(names) > 1 and kind < 0.4:
            moves += [(names[1], names[0]), (later, names[1])]
        for was, name in moves:
            user.execute(f"ALTER TABLE {was} RENAME TO {name}".encode())
            self._rows += 1
            user.execute(f"INSERT INTO {name} (id, v) VALUES ({self._rows}, 'r')".encode())
        if len(moves) == 1 and kind < 0.8:
            user.execute(f"CREATE TABLE {names[0]} (LIKE {later})".encode())
            user.execute(f"INSERT INTO {names[0]} SELECT * FROM {later}".encode())


@pytest.mark.seeded
@pytest.mark.parametrize("renames", [False, True])
@pytest.mark.parametrize("seed", seeds("new_tables", test=2, soak=4))
def test_random_tables_arrive_once_whatever_restarts(way: Way, seed: int, renames: bool) -> None:
    rng = random.Random(seed)
    users = Users(way.source_dsn, rng, renames=renames)
    with load(way.source_dsn):
        for _ in range(scaled(3, 8)):
            with in_background(lambda _: users.run(10)):
                broken = rng.choice(["driver", "capture", "sessions", "up"])
                time.sleep(rng.random() * 0.3)
                if broken == "driver":
                    way.kill_driver()
                elif broken == "capture":
                    way.replace_capture()
                elif broken == "sessions":
                    way.kill_sessions()
    way.assert_same()
    way.assert_nothing_was_copied()
    assert set(way.outcomes()) <= {"APPLIED", "PASSED OVER"}, execute(way.destination_dsn, NOT_APPLIED)
