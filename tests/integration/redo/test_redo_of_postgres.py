"""Log writer and mining on a real server's stream, with its own decoder: no loss and no duplicates."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from headrace.base.errors import RedoError
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import ScnRange
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.destination.records import removal
from headrace.databases.postgres.destination.records.schema import prepare_schema
from headrace.databases.postgres.source.database import PostgresSource
from headrace.lcr.batch import Command, LcrBatch
from headrace.lcr.scn import FIRST_SCN
from headrace.load.pgbench import run_pgbench
from headrace.redo.mining.given_batches import MARK_INTERVAL_S
from headrace.redo.segments import list_segments
from headrace.rules.rule import ANY_TAG, Rule, RuleSet
from headrace.tracing.track import labelling
from tests.support.databases.statements import roll_back
from tests.support.redo.postgres_redo import RULES, RedoSite, wait_until
from tests.support.values.writes import insert, int4

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def site(
    pg_source: EmbeddedServer, fresh_database: Callable[[EmbeddedServer], str], tmp_path: Path
) -> Iterator[RedoSite]:
    made = RedoSite(fresh_database(pg_source), tmp_path / "redo")
    yield made
    made.close()
    made.source = PostgresSource(made.dsn)
    made.source.remove("topo")
    made.source.close()


def test_pgbench_history_arrives_once_across_breaks_and_restarts(site: RedoSite) -> None:
    run_pgbench(site.dsn, "-i", "-q", "-s", "1")
    site.source.prepare("topo", (RULES,))
    site.attach()
    for turn in range(4):
        run_pgbench(site.dsn, "-n", "-c", "4", "-t", "100")
        if turn == 1:
            ended = site.user.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                " WHERE active AND database = current_database()"
            ).fetchall()
            assert ended == [(True,)]
        if turn == 2:
            site.stream.close()
            site.writer.close()
            site.writer = site.new_writer()
            site.attach()
        site.catch_up()
        if turn == 1:
            assert site.writer.statistics().resumes == 2
    assert site.writer.position.segment > 1
    inserted: Counter[str] = Counter()
    transactions = 0
    for batch in site.mine(site.miner()):
        transactions += len(batch.transactions)
        for group in batch.groups:
            inserted[f"{group.command.name} {batch.tables[group.table].name}"] += group.row_count
    assert transactions == 1600
    assert inserted == {
        "INSERT pgbench_history": 1600,
        "UPDATE pgbench_accounts": 1600,
        "UPDATE pgbench_tellers": 1600,
        "UPDATE pgbench_branches": 1600,
    }


def test_values_mined_from_any_restart_point_equal_the_table(site: RedoSite) -> None:
    site.user.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b numeric(10,2), at timestamptz)")
    site.source.prepare("topo", (RULES,))
    site.attach()
    for number in range(30):
        with site.user.transaction():
            site.user.execute(
                "INSERT INTO t SELECT i, repeat('x', i %% 300), i / 4.0, now() FROM generate_series(%s::int, %s) i",
                (number * 100, number * 100 + 99),
            )
            site.user.execute("UPDATE t SET a = NULL WHERE id %% 7 = 0 AND id >= %s", (number * 100,))
            site.user.execute("DELETE FROM t WHERE id %% 11 = 0 AND id >= %s", (number * 100,))
        if number % 10 == 9:
            site.user.execute("ALTER TABLE t ADD COLUMN " + f"c{number} int DEFAULT 1")
            site.catch_up()
    batches = list(site.mine(site.miner()))
    commits = [int(scn) for batch in batches for scn in batch.transactions.commit_scn]
    assert len(commits) == len(set(commits)) == 30
    for start in (FIRST_SCN, *commits[::7]):
        found = [int(scn) for batch in site.mine(site.miner(start)) for scn in batch.transactions.commit_scn]
        assert found == [scn for scn in commits if scn > start]
    rows = site.user.execute("SELECT id::text, a FROM t ORDER BY id").fetchall()
    assert _replayed(batches) == {number: (number, a) for number, a in rows}


def _replayed(batches: list[LcrBatch]) -> dict[str, tuple[str, str | None]]:
    """Return table t as (id, a) from its LCRs; integers and text are read in binary form."""
    table: dict[str, tuple[str, str | None]] = {}
    for batch in batches:
        groups, within = batch.row_places
        for row in range(batch.row_count):
            group = batch.groups[groups[row]]
            columns = batch.tables[group.table].columns
            values = group.new if group.command is not Command.DELETE else group.old
            assert values is not None
            read = [values.value(column, int(within[row])) for column in range(2)]
            assert isinstance(read[0], bytes)
            key = str(int.from_bytes(read[0], "big")) if columns[0].is_binary else read[0].decode()
            if group.command is Command.DELETE:
                del table[key]
            else:
                table[key] = (key, read[1].decode() if isinstance(read[1], bytes) else None)
    return table


def test_partitions_go_by_their_tables_name_with_any_column_order(site: RedoSite) -> None:
    site.user.execute("CREATE TABLE events (id int PRIMARY KEY, a text) PARTITION BY RANGE (id)")
    site.user.execute("CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (100)")
    site.user.execute("CREATE TABLE events_2 (a text, id int NOT NULL PRIMARY KEY)")
    site.user.execute("ALTER TABLE events ATTACH PARTITION events_2 FOR VALUES FROM (100) TO (200)")
    site.source.prepare("topo", (RULES,))
    site.attach()
    site.user.execute("INSERT INTO events VALUES (1, 'one'), (101, 'two')")
    site.user.execute("TRUNCATE events_1")
    site.user.execute("TRUNCATE events")
    site.catch_up()
    batches = [batch for batch in site.mine(site.miner()) if batch.row_count]
    names = [batch.tables[group.table].name for batch in batches for group in batch.groups]
    assert names == ["events", "events"]
    truncated = [
        [batch.tables[table].name for table in truncate.tables] for batch in batches for truncate in batch.truncates
    ]
    assert truncated == [["events"], ["events"]]


def test_position_moves_when_only_other_tables_change(site: RedoSite) -> None:
    site.user.execute("CREATE TABLE t (id int PRIMARY KEY)")
    site.source.prepare("topo", (RULES,))
    site.user.execute("CREATE SCHEMA other CREATE TABLE u (id int)")
    site.attach()
    site.user.execute("INSERT INTO other.u SELECT generate_series(1, 1000)")
    target = site.catch_up()
    marks = list(site.mine(site.miner()))
    assert all(mark.is_progress_mark for mark in marks)
    assert marks[-1].through_scn >= target

    def is_confirmed() -> bool:
        row = site.user.execute(
            "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE database = current_database()"
        ).fetchone()
        return row is not None and int(row[0]) >= target

    wait_until(is_confirmed)


def test_users_label_holds_in_redo_until_its_transaction_or_savepoint_ends(site: RedoSite) -> None:
    site.user.execute("CREATE TABLE t (id int PRIMARY KEY)")
    prepare_schema(site.user)
    site.source.prepare("topo", (RULES,))
    site.attach()
    with site.user.transaction():
        site.user.execute("SELECT headrace.set_tag('0b')")
        site.user.execute(labelling("Bestellung '7' ü"))  # as `headrace track --sql` prints it
        site.user.execute("INSERT INTO t SELECT generate_series(1, 3)")
    site.user.execute("INSERT INTO t VALUES (4)")
    with site.user.transaction():
        with site.user.transaction():
            site.user.execute("SELECT headrace.track('taken back')")
            roll_back()
        site.user.execute("INSERT INTO t VALUES (5)")
    with site.user.transaction():
        site.user.execute("INSERT INTO t VALUES (6)")
        site.user.execute("SELECT pg_logical_emit_message(true, 'headrace.track', 'late'::bytea)")
    with site.user.transaction():
        site.user.execute("SELECT headrace.track('no row of it is captured')")
    site.catch_up()
    everything = RuleSet(include=(Rule(owner="public", tags=ANY_TAG),))
    miner = site.miner(rules=everything)
    batches = list(site.mine(miner))
    commits = [int(scn) for batch in batches for scn in batch.transactions.commit_scn]
    assert [(label.text, label.commit_scn, label.rows) for batch in batches for label in batch.labels] == [
        ("Bestellung '7' ü", commits[0], 3),
        ("late", commits[3], 1),
    ]
    time.sleep(MARK_INTERVAL_S)
    list(site.mine(miner))
    assert [(each.label.text, each.rows_found) for each in miner.take_labelled()][-1] == ("no row of it is captured", 0)


@pytest.mark.parametrize("argument", ["NULL", "''", "repeat('x', 201)", "repeat('ü', 101)"])
def test_missing_or_too_long_label_is_refused(site: RedoSite, argument: str) -> None:
    prepare_schema(site.user)
    site.source.prepare("topo", (RULES,))
    site.attach()
    with site.user.transaction(), pytest.raises(psycopg.Error, match="1 to 200 bytes"):
        site.user.execute(f"SELECT headrace.track({argument})")


def test_apply_servers_commits_carry_the_labels_into_their_databases_log(
    site: RedoSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "_WAIT_S", 0.2)  # at the end, for a stream that this test no longer reads
    site.user.execute("CREATE TABLE t (id int PRIMARY KEY)")
    destination = PostgresDestination(site.dsn, site="dbs1")
    try:
        destination.prepare("topo")
        site.source.prepare("topo", (RULES,))
        site.attach()
        epoch = destination.raise_epoch("topo", "apply_x").epoch
        session = destination.open_session("topo", "apply_x", server=0, epoch=epoch, tag=b"\x11")
        for number, labels in enumerate([("order 7", "order 8"), ()]):
            table = session.describe("public", "t")
            assert table is not None
            session.begin()
            session.write([insert(table, [[int4(number)]])])
            session.commit([ScnRange(after=number * 10, through=number * 10 + 10)], 0, labels)
        session.close()
        site.catch_up()
        everything = RuleSet(include=(Rule(owner="public", tags=ANY_TAG),))
        batches = [batch for batch in site.mine(site.miner(rules=everything)) if batch.row_count]
        assert [label.text for batch in batches for label in batch.labels] == ["order 7", "order 8"]
        assert {tag.value for batch in batches for tag in batch.tags} == {b"\x11"}
    finally:
        destination.remove("topo")
        destination.close()


def test_damaged_segment_is_restored_from_a_copy_as_printed(site: RedoSite) -> None:
    """A copy that is not the segment is noticed: no row is skipped for it."""
    site.user.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    site.source.prepare("topo", (RULES,))
    site.attach()
    for number in range(1, 31):
        site.user.execute("INSERT INTO t VALUES (%s, repeat('x', 50000))", (number,))
        site.catch_up()
    segments = list_segments(site.folder)
    assert len(segments) > 3

    def mined() -> int:
        with closing(site.miner()) as miner:
            return sum(batch.row_count for batch in site.mine(miner))

    assert mined() == 30
    for segment in segments[1:3]:
        whole = segment.path.read_bytes()
        for left in (None, b"", whole[: len(whole) // 2], segments[0].path.read_bytes()):
            if left is None:
                segment.path.unlink()
            else:
                segment.path.write_bytes(left)
            with pytest.raises(RedoError) as failed:
                mined()
            assert failed.value.hint.startswith(
                "restore the segment from a copy, then start what stopped for it (`headrace start FILE NAME`)"
            ), (left and len(left), failed.value.message, failed.value.hint)
            segment.path.write_bytes(whole)
            assert mined() == 30
