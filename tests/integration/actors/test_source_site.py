"""A source's site in one process on a real server: what the operator sees when the database fails, and the remedy.

Longer than 500 lines: all of it uses one source in this process.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from actors.site import sampling, source_role
from actors.site.asked_names import AskedNames
from actors.site.sampling import Heartbeats
from actors.source_database import DatabaseSite
from headrace.base.clock import VirtualClock
from headrace.base.errors import TableLeftRules
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import Instantiation
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.source.database import PostgresSource
from headrace.databases.postgres.source.ddl import trimming
from headrace.databases.postgres.source.log_stream.pgoutput import PostgresLogDecoder
from headrace.faults.proxy import Proxy
from headrace.lcr.batch import Command
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.redo.mining.miner import Miner
from headrace.redo.mining.unmatched_rules import ASK_SOURCE_INTERVAL_S
from headrace.redo.writing import gulp_pace
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.transformations.transformation import DeleteColumns, Transformation
from headrace.status.sites import SiteStatus
from tests.support.actors.statuses import status_of
from tests.support.databases.statements import row_of
from tests.support.session.background import in_background
from tests.support.ways.source_site import SLOT, WAIT_S, Source
from tests.support.wire.links import loopback
from topology.spec import ApplySpec

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def make(
    pg_source: EmbeddedServer,
    fresh_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
) -> Iterator[Callable[..., Source]]:
    made: list[Source] = []

    def make_source(through: Callable[[str], str] = lambda dsn: dsn, **settings: Any) -> Source:
        dsn = fresh_database(pg_source)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        made.append(Source(through(dsn), tmp_path, user_dsn=dsn, **settings))
        return made[-1]

    yield make_source
    for source in made:
        source.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("oidvector", "'1 2'"),
        ("mood[]", "'{happy}'"),
        ("aclitem[]", "ARRAY[makeaclitem('postgres'::regrole, 'postgres'::regrole, 'SELECT', false)]"),
    ],
)
def test_column_without_a_safe_binary_form_turns_a_running_stream_to_text(
    make: Callable[..., Source], column: str, value: str
) -> None:
    """An open binary stream gets no notice of such a column. Its values would arrive as numbers with another meaning,
    or block the stream.
    """
    source = make()
    source.run("CREATE TYPE mood AS ENUM ('sad', 'happy')")
    source.run("INSERT INTO t VALUES (1)")
    assert source.wait_written().stream_form == "binary"
    source.run(f"ALTER TABLE t ADD a {column}")
    source.run(f"INSERT INTO t VALUES (2, {value})")
    source.run("INSERT INTO t VALUES (3, NULL)")
    status = source.wait_written()
    assert status.stream_form == "text"
    assert status.state in {"IDLE", "WRITING"}
    values = []
    for batch in source.mined():
        for group in batch.groups:
            columns = {column.name: (place, column) for place, column in enumerate(batch.tables[group.table].columns)}
            assert group.command is Command.INSERT
            assert group.new is not None
            assert "a" not in columns or not columns["a"][1].is_binary
            for row in range(group.row_count):
                key = group.new.value(columns["id"][0], row)
                assert isinstance(key, bytes)
                values.append(int.from_bytes(key, "big") if columns["id"][1].is_binary else int(key))
    assert values == [1, 2, 3], "no change is lost or duplicated"


def test_slot_dropped_while_read_ends_the_log_writer_with_a_remedy(make: Callable[..., Source]) -> None:
    source = make()
    source.run("INSERT INTO t VALUES (1)")
    source.wait_written()
    source.drop_slot()
    status = source.wait("it gave up", lambda status: status.state == "ABORTED")
    assert status.last_error.error == "LogGone"
    assert re.search(r'slot "?\w+"? does not exist', status.last_error.message)
    assert "headrace down --purge" in status.last_error.hint
    assert "headrace up" in status.last_error.hint


def test_dropped_publication_is_never_recreated_silently(make: Callable[..., Source]) -> None:
    source = make()
    source.run(f"DROP PUBLICATION {SLOT}")
    source.run("INSERT INTO t VALUES (1)")
    status = source.wait("it gave up", lambda status: status.state == "ABORTED")
    assert "was dropped" in status.last_error.message
    assert "headrace down --purge" in status.last_error.hint
    with pytest.raises(Exception, match="was dropped"):
        source.host.prepare(source.spec)


def test_database_that_does_not_answer_is_neither_idle_nor_caught_up(
    make: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "ANSWER_MAX_S", 1.0)
    with Proxy(lambda: target) as proxy:
        target = ""

        def through(dsn: str) -> str:
            nonlocal target
            info = psycopg.conninfo.conninfo_to_dict(dsn)
            target = f"127.0.0.1:{info['port']}"
            return psycopg.conninfo.make_conninfo(dsn, port=proxy.endpoint.rpartition(":")[2])

        source = make(through)
        source.wait_written()
        source.wait("its position is known", lambda status: (status.source_scn or 0) > 0)
        proxy.stall()
        status = source.wait("it is seen", lambda status: status.state == "DATABASE DOES NOT ANSWER")
        assert status.source_scn == 0
        assert not status.ready
        proxy.heal()
        source.run("INSERT INTO t VALUES (1)")
        source.wait_written()
        source.wait("it answers", lambda status: status.ready and status.state in {"IDLE", "WRITING"})


def test_table_captured_meanwhile_is_not_reported_as_uncaptured(
    make: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question is asked before `prepare`, and the answer arrives after it."""
    # Soon, and no second look hides the result of this one.
    monkeypatch.setattr(source_role, "UNCAPTURED_INTERVAL_S", 5.0)
    source, asked, looked = make(), threading.Event(), threading.Event()
    uncaptured, prepare, heartbeat = PostgresSource.uncaptured, source.host.prepare, Heartbeats.write_if_silent
    source.run("CREATE TABLE u (id int PRIMARY KEY)")

    def slow(*arguments: Any) -> tuple[str, ...]:
        found = uncaptured(*arguments)
        if not asked.is_set():
            prepare(source.spec)
            asked.set()
        return found

    def next_thing(*arguments: Any) -> None:
        if asked.is_set():
            looked.set()
        heartbeat(*arguments)

    monkeypatch.setattr(PostgresSource, "uncaptured", slow)
    monkeypatch.setattr(Heartbeats, "write_if_silent", next_thing)
    assert looked.wait(WAIT_S)
    assert status_of(source.host, SiteStatus).uncaptured_tables == ()


def test_transaction_larger_than_the_redo_names_the_setting_to_raise(make: Callable[..., Source]) -> None:
    source = make()
    source.run("CREATE TABLE u (id int PRIMARY KEY, a text)")
    assert source.host.source.uncaptured(source.spec) == ("public.u",)
    assert source.wait("it is shown", lambda status: status.uncaptured_tables).uncaptured_tables == ("public.u",)
    source.host.prepare(source.spec)
    assert source.host.source.uncaptured(source.spec) == ()
    source.run("INSERT INTO u SELECT i, repeat('x', 100) FROM generate_series(1, 20000) i")
    status = source.wait("it is full", lambda status: status.state == "PAUSED: REDO IS FULL")
    assert "raise redo_bytes_max" in status.problem
    source.wait("the log grows", lambda status: (status.source_retained_bytes or 0) > 1 << 20)
    # Nothing is read now. The loss of the growing log must be noticed all the same.
    source.drop_slot()
    status = source.wait("it gave up", lambda status: status.state == "ABORTED")
    assert "does not exist" in status.last_error.message


def test_busy_log_writer_stops_at_once_and_resumes_at_its_position(
    make: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log writer pauses between small gulps, and any request ends the pause. The pause is longer here than any
    machine takes to stop.
    """
    source = make(redo_bytes_max=1 << 30)

    def work(stop: threading.Event) -> None:
        with psycopg.connect(source.dsn, autocommit=True) as connection:
            number = 0
            while not stop.wait(0.001):
                connection.execute("INSERT INTO t VALUES (%s)", (number,))
                number += 1

    with in_background(work):
        for _ in range(3):
            with monkeypatch.context() as patch:
                patch.setattr(gulp_pace, "GULP_COST", 1e9)
                patch.setattr(gulp_pace, "PAUSE_MAX_S", 100 * WAIT_S)
                source.wait(
                    "it rests",
                    lambda status: status.state == "WRITING" and source.host.redo.writer.pause_s > 10 * WAIT_S,
                )
                source.host.stop_component()
                source.wait("it stopped", lambda status: status.state == "DISABLED")
            source.host.start_component()
            source.wait("it writes", lambda status: status.state == "WRITING")
    source.wait_written()
    rows = source.run("SELECT count(*) FROM t").fetchone()
    assert rows is not None
    assert sum(batch.row_count for batch in source.mined()) == rows[0]
    confirmed = f"SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = '{SLOT}'"

    def has_moved(status: SiteStatus) -> bool:
        assert status.redo_scn is not None
        return int(row_of(source.run(confirmed))[0]) >= status.redo_scn

    source.wait("the slot moved", has_moved)


def test_table_outside_the_rules_blocks_in_redo_until_another_prepare(make: Callable[..., Source]) -> None:
    """Another schema also makes another name; a partition follows its root's name."""
    source = make()
    source.run("CREATE TABLE p (a int PRIMARY KEY) PARTITION BY LIST (a)")
    source.run("CREATE TABLE p_1 PARTITION OF p FOR VALUES IN (1)")
    source.host.prepare(source.spec)
    source.run("CREATE SCHEMA elsewhere")
    source.run("INSERT INTO t VALUES (1)")
    for table in ("t", "p"):
        source.run(f"ALTER TABLE {table} SET SCHEMA elsewhere")
    source.run("INSERT INTO elsewhere.t VALUES (2)")
    source.wait_written()
    now = source.host.source.tables.names_of_now()
    assert {(name.owner, name.name, name.is_wanted) for name in now.values()} == {
        ("elsewhere", "t", False),
        ("elsewhere", "p", False),
    }
    assert len(now) == 3  # includes the partition
    reader = source.miner(AskedNames(lambda method: getattr(source.host.answering(method), method)()))
    assert [batch.row_count for batch in source.batches(reader) if batch.row_count] == [1]
    with pytest.raises(TableLeftRules, match=r"called elsewhere\.t now"):
        reader.next_batch(source.host.redo.writer.position)
    assert source.host.source.uncaptured(source.spec) == ("elsewhere.p", "elsewhere.t")
    source.wait("both are shown", lambda status: status.strayed_tables == ("elsewhere.p", "elsewhere.t"))
    assert status_of(source.host, SiteStatus).strayed_renames == (), "no receiver gets them"

    source.host.prepare(source.spec)
    assert source.host.source.uncaptured(source.spec) == ()
    assert source.host.source.tables.names_of_now() == {}
    reader = source.miner(AskedNames(lambda method: getattr(source.host.answering(method), method)()))
    assert [batch.row_count for batch in source.batches(reader) if batch.row_count] == [1]
    while (batch := reader.next_batch(source.host.redo.writer.position)) is not None:
        assert batch.row_count == 0  # the server's own work also moves the position


def test_table_renamed_back_is_no_longer_reported_outside_the_rules(
    make: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other `up` is needed."""
    # Instead of half a minute between two looks at all names.
    monkeypatch.setattr(source_role, "UNCAPTURED_INTERVAL_S", 1.0)
    source = make()
    source.run("CREATE SCHEMA elsewhere; ALTER TABLE t SET SCHEMA elsewhere")
    source.wait("it is shown", lambda status: status.strayed_tables == ("elsewhere.t",))
    source.run("ALTER TABLE elsewhere.t SET SCHEMA public")
    source.wait("it is shown no more", lambda status: status.strayed_tables == ())
    source.run("INSERT INTO t VALUES (1)")
    source.wait_written()
    reader = source.miner(AskedNames(lambda method: getattr(source.host.answering(method), method)()))
    assert sum(batch.row_count for batch in source.batches(reader)) == 1


def test_rule_with_a_new_unchanged_table_is_not_reported_as_unmatched(make: Callable[..., Source]) -> None:
    source = make()
    source.run("INSERT INTO t VALUES (1)")
    source.wait_written()
    clock, wrong = VirtualClock(), Rule(owner="public", name="typo")
    rules = RuleSet(include=(Rule(owner="public", name="t"), Rule(owner="public", name="u"), wrong))
    reader = Miner(
        source.folder / "sites" / "dbs1" / "redo",
        "dbs1",
        FIRST_SCN,
        rules,
        PostgresLogDecoder,
        names=AskedNames(lambda method: getattr(source.host.answering(method), method)()),
        clock=clock,
    )
    source.batches(reader)
    assert [rule.name for rule in reader.unmatched_rules] == ["u", "typo"]
    source.run("CREATE TABLE u (id int PRIMARY KEY)")
    source.host.prepare(source.spec)
    clock.advance(ASK_SOURCE_INTERVAL_S)
    assert reader.unmatched_rules == (wrong,)
    source.run("INSERT INTO u VALUES (1)")
    source.wait_written()
    source.batches(reader)
    assert reader.unmatched_rules == (wrong,)


def test_former_source_leaves_no_slot_and_starts_over_when_it_returns(make):
    """Its redo is useless by then: the log has moved on without it, and a new slot is ahead of it."""
    source = make()
    source.wait_written()
    redo = source.folder / "sites" / "dbs1" / "redo"
    assert source.run(f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{SLOT}'").fetchone() == (1,)
    source.host.end_source()
    assert source.host.end_source() == ()
    assert source.run(f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{SLOT}'").fetchone() == (0,)
    assert source.run(f"SELECT count(*) FROM pg_publication WHERE pubname = '{SLOT}'").fetchone() == (0,)
    assert list(redo.iterdir())
    assert source.host.status().state not in {"ABORTED", "RETRYING"}

    source.run("SELECT pg_logical_emit_message(true, 'meanwhile', '')")
    source.host.prepare(source.spec)
    source.wait("it writes", lambda status: status.state in {"IDLE", "WRITING"})
    source.wait_written()
    assert source.host.status().opens_total <= 3


def restarted(source: Source) -> None:
    """Start another process of the site and prepare it as `up` does without a record of the topology."""
    source.host.end()
    (source.folder / "sites" / "dbs1" / "prepared.json").unlink()
    source.host = DatabaseSite(source.spec, "dbs1", "fingerprint", loopback())
    source.host.start()
    source.wait("ready", lambda status: status.ready)


def test_redo_continues_when_the_record_of_the_prepared_site_is_lost(make):
    source = make()
    source.run("INSERT INTO t VALUES (1)")
    source.wait_written()
    restarted(source)
    source.run("INSERT INTO t VALUES (2)")
    source.wait("it writes by itself", lambda status: status.state in {"IDLE", "WRITING"})
    assert source.host.prepare(source.spec) == ()
    source.wait_written()
    assert sum(batch.row_count for batch in source.mined()) == 2


def test_redo_without_a_record_is_moved_aside_and_never_deleted(make):
    source = make()
    source.run("INSERT INTO t VALUES (1)")
    source.wait_written()
    redo = source.folder / "sites" / "dbs1" / "redo"
    (redo / "prepared_as.json").unlink()
    # The log writer may write until it is ended.
    segments = {path.name: path.read_bytes() for path in redo.glob("*.redo")}
    assert segments
    restarted(source)
    (said,) = source.host.prepare(source.spec)
    assert f"{redo}.aside-1" in said
    assert {
        name: (Path(f"{redo}.aside-1") / name).read_bytes()[: len(written)] for name, written in segments.items()
    } == segments
    source.wait("it writes", lambda status: status.state in {"IDLE", "WRITING"})


def test_source_whose_slot_was_dropped_by_hand_can_leave_the_topology(make):
    source = make()
    source.drop_slot()
    source.wait("its slot is missed", lambda status: status.state == "ABORTED")
    source.host.end_source()
    source.host.prepare(source.spec)
    source.wait("it writes", lambda status: status.state in {"IDLE", "WRITING"})
    source.wait_written()


def test_destination_keeps_tables_of_apply_processes_outside_the_topology(make: Callable[..., Source]) -> None:
    source = make()
    assert source.host.destination.leave_out_others(["x"]) == (), "nothing is recorded here"
    with contextlib.closing(PostgresDestination(source.dsn, site="dbs1")) as destination:
        destination.prepare("topo")
        destination.prepare("another")
        for topology, apply in (("topo", "x"), ("topo", "long_gone"), ("another", "y")):
            destination.record_instantiation(
                topology,
                apply,
                destination.raise_epoch(topology, apply).epoch,
                Instantiation(
                    source="a",
                    identity="1",
                    owner="public",
                    name="t",
                    scn=Scn(100),
                    state="COPYING",
                ),
            )
        assert len(destination.other_copies("topo", "new", "public", "t")) == 3
        assert source.host.destination.leave_out_others(["x"]) == ("long_gone",)
        assert source.host.destination.leave_out_others(["x"]) == ()
        assert [each.apply for each in destination.other_copies("topo", "new", "public", "t")] == ["y", "x"]
        destination.remove("topo"), destination.remove("another")


def test_up_repairs_the_recording_of_ddl_though_its_file_is_unchanged(make: Callable[..., Source]) -> None:
    """The controller prepares a site again if this has an answer."""
    source = make()
    rules = RuleSet(include=(Rule(owner="public", ddl=True),))
    spec = replace(source.spec, captures=(replace(source.spec.captures[0], rules=rules),))
    assert source.host.source.uncaptured(spec) == ("headrace_ddl.log",)
    source.host.prepare(spec)
    assert source.host.source.uncaptured(spec) == ()
    source.run("ALTER EVENT TRIGGER headrace_ddl_end DISABLE; ALTER TABLE t ADD COLUMN c int")
    assert source.host.source.uncaptured(spec) == ("headrace_ddl.log",)
    source.run("ALTER EVENT TRIGGER headrace_ddl_end ENABLE ALWAYS")
    assert source.host.source.uncaptured(spec) == ('CALL headrace_ddl.watch("public"."t")',), "a change was missed"
    assert source.host.source.uncaptured(source.spec) == ()
    source.host.prepare(spec)
    assert source.host.source.uncaptured(spec) == ()


def test_statement_that_was_not_recorded_is_shown_until_up_repairs_it(
    make: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_role, "UNCAPTURED_INTERVAL_S", 1.0)  # instead of half a minute
    source = make()
    rules = RuleSet(include=(Rule(owner="public", ddl=True),))
    spec = replace(source.spec, captures=(replace(source.spec.captures[0], rules=rules),))
    assert status_of(source.host, SiteStatus).ddl_failed_total is None
    source.host.prepare(spec)
    source.host.reconfigure(spec, "edited")
    assert source.wait("it is known", lambda status: status.ddl_failed_total is not None).ddl_failed_total == 0
    source.run("ALTER FUNCTION headrace_ddl.structure_of(oid) RENAME TO other; ALTER TABLE t ADD COLUMN c int")
    source.run("ALTER FUNCTION headrace_ddl.other(oid) RENAME TO structure_of")
    status = source.wait("it is shown", lambda status: status.ddl_failed_total)
    assert (status.ddl_failed_total, status.last_failed_ddl.startswith("ALTER FUNCTION headrace_ddl")) == (1, True)
    source.host.prepare(spec)
    status = status_of(source.host, SiteStatus)
    assert (status.ddl_failed_total, status.last_failed_ddl) == (0, "")


def test_old_records_of_ddl_are_removed(make: Callable[..., Source], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_role, "UNCAPTURED_INTERVAL_S", 0.1)  # instead of half a minute
    monkeypatch.setattr(trimming, "KEPT", "0 s")
    monkeypatch.setattr(trimming, "_BATCH_ROWS", 1)
    source = make()
    rules = RuleSet(include=(Rule(owner="public", ddl=True),))
    spec = replace(source.spec, captures=(replace(source.spec.captures[0], rules=rules),))
    source.host.prepare(spec)
    for column in "abcd":
        source.run(f"ALTER TABLE t ADD COLUMN {column} int")
    source.host.reconfigure(spec, "edited")
    deadline = time.monotonic() + WAIT_S
    with psycopg.connect(source.dsn, autocommit=True) as user:
        while user.execute("SELECT count(*) FROM headrace_ddl.log").fetchone() != (1,):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_lost_slot_is_no_missed_ddl(make: Callable[..., Source]) -> None:
    """Else `up` would make another slot, from which the changes in between are missing."""
    source = make()
    rules = RuleSet(include=(Rule(owner="public", ddl=True),))
    spec = replace(source.spec, captures=(replace(source.spec.captures[0], rules=rules),))
    source.host.prepare(spec)
    source.drop_slot()
    assert source.host.source.uncaptured(spec) == ()


def test_renamed_column_that_a_transformation_names_is_reported(make: Callable[..., Source]) -> None:
    """`check` refuses such a file. Otherwise the column's values would be lost, or arrive under the new name, without
    any notice.
    """
    source = make()
    source.run("ALTER TABLE t ADD secret text")
    kept = Rule(
        owner="public", name="t", transformation=Transformation(operations=(DeleteColumns(deleted=("secret",)),))
    )
    spec = replace(
        source.spec,
        captures=(replace(source.spec.captures[0], rules=RuleSet(include=(kept,))),),
        applies=(ApplySpec(name="app", site="dbs1", source="dbs1", queue="q"),),
    )
    source.host.reconfigure(spec, "edited")
    source.wait("it is adopted", lambda status: status.fingerprint == "edited")
    assert source.host.source.uncaptured(spec) == ()
    assert status_of(source.host, SiteStatus).lost_columns == ()
    source.run("ALTER TABLE t RENAME secret TO hidden")
    assert source.host.source.uncaptured(spec) == ()
    assert status_of(source.host, SiteStatus).lost_columns == ("secret of public.t (c)",)


def test_partition_without_identity_is_shown_until_the_printed_fix_ran(
    make: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Instead of half a minute between two looks at all partitions.
    monkeypatch.setattr(source_role, "UNCAPTURED_INTERVAL_S", 1.0)
    source = make()
    source.run("CREATE TABLE p (id int PRIMARY KEY, v int) PARTITION BY LIST (id)")
    source.run("CREATE TABLE p_1 PARTITION OF p FOR VALUES IN (1)")
    source.host.prepare(source.spec)
    source.run("INSERT INTO p VALUES (1, 1)")
    source.run("ALTER TABLE p_1 REPLICA IDENTITY NOTHING")
    with pytest.raises(psycopg.Error, match="does not have a replica identity"):
        source.run("UPDATE p SET v = 2")
    status = source.wait("it is shown", lambda status: status.refused_changes)
    (shown,) = status.refused_changes
    assert (shown.table, shown.problem) == (
        "table public.p partition public.p_1",
        "its replica identity is NOTHING: your own UPDATE and DELETE on it fail while it is captured",
    )
    assert source.host.source.uncaptured(source.spec) == ()
    assert status_of(source.host, SiteStatus).refused_changes == status.refused_changes, "the finding stays"
    source.run(shown.fix)
    source.run("UPDATE p SET v = 2")
    source.wait("it is shown no more", lambda status: not status.refused_changes)
    source.wait_written()
    rows = [batch for batch in source.mined() if batch.row_count]
    assert sum(batch.row_count for batch in rows) == 2
