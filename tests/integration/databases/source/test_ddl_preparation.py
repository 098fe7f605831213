"""What `check`, `up` and `down --purge` do about the recording of DDL at a source."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest
from psycopg import conninfo

from headrace.base.errors import DatabaseError, DatabaseUnavailable
from headrace.databases.ports import MissedDdl
from headrace.databases.postgres.source.admin import PostgresSourceAdmin
from headrace.databases.postgres.source.database import PostgresSource
from headrace.databases.postgres.source.ddl.objects import VERSION
from headrace.lcr.ddl_record import DdlRecord
from headrace.rules.rule import ANY_TAG, Rule, RuleSet
from tests.support.databases.ddl_recording import DDL, PATIENCE_S, TABLE, USER, Recording, columns, wait_until_waiting
from tests.support.databases.postgres_site import ALL, Site, slot_of

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


def test_prepare_is_idempotent_and_shows_its_steps(site: Site) -> None:
    site.run(TABLE)
    plan = site.source.plan("topo", DDL)
    assert [step.is_done for step in plan] == [False] * 5
    assert [step.statement.split()[0] for step in plan] == ["CREATE", "INSERT", "CREATE", "CALL", "SELECT"]
    assert "names the 1 captured tables" in plan[2].effect
    assert "SHARE UPDATE EXCLUSIVE" in plan[3].lock
    assert '"public"."t"' in plan[3].statement
    assert site.prepare(DDL) == tuple(step.statement for step in plan)
    assert site.prepare(DDL) == ()
    assert all(step.is_done for step in site.source.plan("topo", DDL))
    assert site.source.captures_ddl("topo")
    removed = site.source.remove("topo")
    assert removed[-1] == "DROP SCHEMA headrace_ddl CASCADE"
    assert site.run("SELECT count(*) FROM pg_event_trigger").fetchone() == (0,)
    assert site.run("SELECT FROM pg_namespace WHERE nspname = 'headrace_ddl'").fetchone() is None
    assert site.source.remove("topo") == ()


def test_without_a_rule_for_ddl_nothing_is_created(site: Site) -> None:
    site.run(TABLE)
    assert len(site.source.plan("topo", ALL)) == 2
    site.prepare(ALL)
    assert site.run("SELECT count(*) FROM pg_event_trigger").fetchone() == (0,)
    assert not site.source.captures_ddl("topo")
    assert len(site.source.remove("topo")) == 2


def test_recording_begins_and_ends_with_the_rule(site: Site) -> None:
    site.run(TABLE)
    site.prepare(ALL)
    begun = site.prepare(DDL)
    assert [each.split()[0] for each in begun] == ["CREATE", "INSERT", "ALTER", "CALL"]
    recording = Recording(site)
    (base,) = recording.records()
    assert columns(base["after"]) == {"id": "integer", "a": "text", "b": "integer"}
    assert recording.one("ALTER TABLE t ADD COLUMN c int")["is_known"]
    ended = site.prepare(ALL)
    assert ended == (
        f'ALTER PUBLICATION "{slot_of(site)}" DROP TABLE "headrace_ddl"."log"',
        "DROP SCHEMA headrace_ddl CASCADE",
    )
    assert site.prepare(ALL) == ()
    site.run("ALTER TABLE t ADD COLUMN d int")


def test_log_stays_while_another_topology_needs_it(site: Site) -> None:
    site.run(TABLE)
    site.prepare(DDL)
    site.source.prepare("other", DDL)
    assert [each.split()[0] for each in site.source.prepare("other", ALL)] == ["ALTER"]
    site.source.prepare("other", DDL)
    assert "DROP SCHEMA headrace_ddl CASCADE" not in site.source.remove("other")
    assert Recording(site).records()
    assert site.source.remove("topo")[-1] == "DROP SCHEMA headrace_ddl CASCADE"


def test_log_is_no_table_of_users(site: Site) -> None:
    site.run(TABLE)
    everything = (RuleSet(include=(Rule(ddl=True, tags=ANY_TAG),)),)
    site.prepare(everything)
    source = site.source
    assert [each.name for each in source.captured("topo")] == ["t"]
    assert [each.name for each in source.tables(everything)] == ["t"]
    assert len(source.row_marks("topo")) == 1
    assert source.uncaptured("topo", everything) == ()
    build = source.dictionary_build("topo")
    assert build is not None
    assert sorted((each.owner, each.name) for each in build.tables) == [("headrace_ddl", "log"), ("public", "t")]
    assert [each for each in source.preflight(everything, streams=1, topology="topo") if each.is_error] == []


def test_objects_that_were_damaged_are_repaired(recording: Recording) -> None:
    site = recording.site
    for damage in (
        "ALTER EVENT TRIGGER headrace_ddl_end DISABLE",
        "ALTER EVENT TRIGGER headrace_ddl_drop ENABLE REPLICA",
        "DROP EVENT TRIGGER headrace_ddl_rewrite",
        "ALTER FUNCTION headrace_ddl.structure_of(oid) RENAME TO other",
    ):
        site.run(damage)
        assert [each.split()[0] for each in site.prepare(DDL)] == ["CREATE", "CALL"], damage
        assert site.prepare(DDL) == ()
        assert recording.records() == [], "nothing changed meanwhile"
    site.run("ALTER TABLE headrace_ddl.log DISABLE TRIGGER refuse")
    assert len(site.prepare(DDL)) == 1
    assert site.prepare(DDL) == ()
    assert recording.one("ALTER TABLE t ADD COLUMN c int")
    site.run("DROP TABLE headrace_ddl.log")
    assert [each.split()[0] for each in site.prepare(DDL)] == ["CREATE", "ALTER", "CALL"]
    assert recording.seen


def test_missed_change_is_recorded_as_one_that_is_not_known(recording: Recording) -> None:
    site = recording.site
    site.run(
        "ALTER EVENT TRIGGER headrace_ddl_end DISABLE; ALTER TABLE t ADD COLUMN c int; ALTER EVENT TRIGGER"
        " headrace_ddl_end ENABLE ALWAYS"
    )
    (called,) = site.prepare(DDL)
    assert called == 'CALL headrace_ddl.watch("public"."t")'
    missed = DdlRecord.of(json.dumps(recording.one()))
    assert not missed.is_known
    assert [part.name for part in missed.delta.added] == ["c"]
    assert "headrace up" in missed.query
    assert site.prepare(DDL) == ()
    assert recording.one("ALTER TABLE t ADD COLUMN d int")["is_known"]


def test_index_that_was_rebuilt_is_no_missed_change(recording: Recording) -> None:
    recording.run("CREATE INDEX i ON t (a)")
    recording.site.run("REINDEX INDEX CONCURRENTLY i")
    assert len(recording.site.prepare(DDL)) == 1
    (record,) = recording.records()
    assert record["base"]
    assert recording.site.prepare(DDL) == ()


def test_source_that_no_longer_records_is_named_until_it_is_repaired(recording: Recording) -> None:
    source = recording.site.source
    assert source.uncaptured("topo", DDL) == ()
    for damage in ("ALTER EVENT TRIGGER headrace_ddl_end DISABLE", "DROP EVENT TRIGGER headrace_ddl_drop"):
        recording.site.run(damage)
        (found,) = source.preflight(DDL, streams=1)
        assert (found.is_error, found.fix) == (False, "headrace up FILE")
        assert "DDL is not recorded" in found.problem
        assert source.uncaptured("topo", DDL) == ("headrace_ddl.log",)
        assert source.uncaptured("topo", ALL) == ()
        recording.site.prepare(DDL)
        assert source.preflight(DDL, streams=1) == ()
        assert source.uncaptured("topo", DDL) == ()
    recording.site.run(f"ALTER PUBLICATION {slot_of(recording.site)} DROP TABLE headrace_ddl.log")
    assert source.uncaptured("topo", DDL) == ("headrace_ddl.log",)


def test_older_objects_are_replaced_and_newer_ones_are_left(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = recording.site
    site.run(f"COMMENT ON SCHEMA headrace_ddl IS 'headrace {VERSION + 1}'")
    assert site.prepare(DDL) == ()
    monkeypatch.setattr("headrace.databases.postgres.source.ddl.capture.VERSION", VERSION + 2)
    assert [each.split(";")[0] for each in site.prepare(DDL)] == ["CREATE SCHEMA headrace_ddl"]
    assert recording.one("ALTER TABLE t ADD COLUMN c int")


def test_base_waits_for_ddl_that_began_before_the_triggers(site: Site) -> None:
    site.run(TABLE)
    site.prepare(ALL)
    began, ended = [], []
    with psycopg.connect(site.dsn) as earlier:
        earlier.execute("ALTER TABLE t ADD COLUMN c int")

        def prepare() -> None:
            with closing(PostgresSource(site.dsn)) as source:
                began.append(source._session().info.backend_pid)
                while True:
                    try:
                        ended.append(source.prepare("topo", DDL))
                    except DatabaseUnavailable:
                        continue
                    return

        other = threading.Thread(target=prepare)
        other.start()
        deadline = time.monotonic() + PATIENCE_S
        while not began:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        wait_until_waiting(site, began[0])
    other.join(PATIENCE_S)
    assert ended
    (base,) = Recording(site).records()
    assert "c" in columns(base["after"])


def test_role_without_rights_is_refused_with_the_fix(site: Site) -> None:
    site.run(f"DROP ROLE IF EXISTS {USER}; CREATE ROLE {USER} LOGIN REPLICATION PASSWORD 'secret'; {TABLE}")
    site.run(f"ALTER TABLE t OWNER TO {USER}; GRANT CREATE ON DATABASE {site.user.info.dbname} TO {USER}")
    try:
        with closing(
            PostgresSource(conninfo.make_conninfo(site.dsn, user=USER, password="secret"), site="s")
        ) as source:
            (found,) = [each for each in source.preflight(DDL, streams=1) if each.is_error]
            assert "only superusers can create event triggers" in found.problem
            with pytest.raises(DatabaseError):
                source.prepare("topo", DDL)
            assert site.run("SELECT FROM pg_namespace WHERE nspname = 'headrace_ddl'").fetchone() is None
            assert [each for each in source.preflight(ALL, streams=1) if each.is_error] == []
            site.run(found.fix)
            source.close()
            assert [each for each in source.preflight(DDL, streams=1) if each.is_error] == []
    finally:
        site.source.remove("topo")
        site.run(f"ALTER TABLE t OWNER TO CURRENT_USER; DROP OWNED BY {USER} CASCADE; DROP ROLE {USER}")


def test_schema_of_another_hand_is_refused(site: Site) -> None:
    site.run(
        f"DROP ROLE IF EXISTS {USER}; CREATE ROLE {USER}; {TABLE}; CREATE SCHEMA headrace_ddl AUTHORIZATION {USER}"
    )
    site.run("COMMENT ON SCHEMA headrace_ddl IS 'headrace 1'")
    try:
        (found,) = [each for each in site.source.preflight(DDL, streams=1) if each.is_error]
        assert f'its owner is "{USER}"' in found.problem
        with pytest.raises(DatabaseError, match="did not make"):
            site.prepare(DDL)
        assert site.source.preflight(ALL, streams=1) == ()
        site.run("ALTER SCHEMA headrace_ddl RENAME TO theirs")
        site.prepare(DDL)
    finally:
        site.run(f"DROP OWNED BY {USER} CASCADE; DROP ROLE {USER}")


def test_tables_of_other_kinds_are_refused_by_name(site: Site) -> None:
    site.run(
        "CREATE TABLE plain (id int PRIMARY KEY); CREATE TABLE part (id int PRIMARY KEY) PARTITION BY LIST (id); CREATE TABLE"
        " part_1 PARTITION OF part FOR VALUES IN (1); CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (PRIMARY"
        " KEY (id)) INHERITS (parent); CREATE UNLOGGED TABLE fast (id int PRIMARY KEY)"
    )
    found = {
        re.sub(r".* table public\.", "", each.path): each.problem
        for each in site.source.preflight(DDL, streams=1)
        if each.is_error
    }
    assert {name: problem.split(":")[0] for name, problem in found.items()} == {
        "part": "is partitioned",
        "parent": "inherits, or others inherit from it",
        "child": "inherits, or others inherit from it",
        "fast": "is unlogged",
    }
    apart = (RuleSet(include=(Rule(owner="public"), Rule(owner="public", name="plain", ddl=True))),)
    assert [each for each in site.source.preflight(apart, streams=1) if each.is_error] == []


@pytest.mark.parametrize(
    ("setting", "value", "is_error"),
    [("event_triggers", "off", True), ("default_transaction_isolation", "serializable", False)],
)
def test_settings_that_keep_ddl_from_being_replicated_are_reported(
    site: Site, setting: str, value: str, is_error: bool
) -> None:
    site.run(TABLE)
    database = str(site.user.info.dbname)
    role = f'"{site.user.info.user}"' if not str(site.user.info.user).islower() else site.user.info.user
    for where in (f"DATABASE {database}", f"ROLE {role} IN DATABASE {database}"):
        site.run(f"ALTER {where} SET {setting} = {value}")
        with closing(PostgresSource(site.dsn)) as source:
            (found,) = source.preflight(DDL, streams=1)
            assert source.preflight(ALL, streams=1) == ()
        assert found.is_error is is_error
        assert found.problem.startswith(f"{setting} is {value} for {where}: ")
        site.run(found.fix if is_error else f"ALTER {where} RESET {setting}")
        with closing(PostgresSource(site.dsn)) as source:
            assert source.preflight(DDL, streams=1) == ()


def test_publication_for_all_tables_is_reported(site: Site) -> None:
    site.run(TABLE)
    site.run("CREATE PUBLICATION everything FOR ALL TABLES")
    (found,) = site.source.preflight(DDL, streams=1)
    assert not found.is_error
    assert found.problem.startswith('the publication "everything" is for all tables')


def test_administrator_installs_and_removes_what_records_ddl(site: Site) -> None:
    site.run(f"DROP ROLE IF EXISTS {USER}; CREATE ROLE {USER} LOGIN REPLICATION PASSWORD 'secret'; {TABLE}")
    site.run(f"GRANT SELECT ON t TO {USER}")
    dsn = conninfo.make_conninfo(site.dsn, user=USER, password="secret")
    admin = PostgresSourceAdmin(site.dsn, dsn, site="s")
    try:
        with closing(PostgresSource(dsn, site="s", has_admin=True)) as source:
            assert [each for each in source.preflight(DDL, streams=1) if each.is_error] == []
            assert [each for each in admin.preflight("topo", DDL) if each.is_error] == []
            with pytest.raises(DatabaseError):
                source.prepare("topo", DDL)
            done = admin.prepare("topo", DDL, was_source=False)
            assert [each.split()[0] for each in done] == ["CREATE", "CREATE", "CALL"]
            assert admin.prepare("topo", DDL, was_source=True) == ()
            for column in ("c", "d"):
                site.run(f"ALTER TABLE t ADD COLUMN {column} int")
            site.run("UPDATE headrace_ddl.log SET at = at - interval '8 days'")
            assert not source.trim_ddl_log(), "it may not"
            assert admin.prepare("topo", DDL, was_source=True) == ()
            assert site.run("SELECT count(*) FROM headrace_ddl.log").fetchone() == (1,)
            assert len(source.prepare("topo", DDL)) == 1
            assert all(step.is_done for step in source.plan("topo", DDL))
            assert source.captures_ddl("topo")
            assert source.dictionary_build("topo") is not None
            kept = {each.identity for each in source.captured("topo")}
            assert len(kept) == 1
            assert admin.take_out("topo", kept) == ()
            assert [each.split()[0] for each in admin.take_out("topo", kept, keeps_ddl=False)] == ["ALTER", "DROP"]
            assert not source.captures_ddl("topo")
            with pytest.raises(DatabaseError, match="DDL is not recorded"):
                source.prepare("topo", DDL)
            admin.prepare("topo", DDL, was_source=True)
            source.remove("topo")
            assert admin.remove("topo")[-1] == "DROP SCHEMA headrace_ddl CASCADE"
    finally:
        site.run(f"DROP OWNED BY {USER} CASCADE; DROP ROLE {USER}")


# ---------------------------------------------------------------------- what was not recorded, or not published


@contextmanager
def not_recording(site: Site) -> Iterator[None]:
    """Let the event triggers fail: they leave a record without the effect of the statement."""
    site.run("ALTER FUNCTION headrace_ddl.structure_of(oid) RENAME TO other")
    yield
    site.run("ALTER FUNCTION headrace_ddl.other(oid) RENAME TO structure_of")


def failed(site: Site) -> int | None:
    missed = site.source.missed_ddl("topo")
    return None if missed is None else missed.count


def test_statement_that_could_not_be_recorded_is_counted_until_it_is_repaired(recording: Recording) -> None:
    site = recording.site
    assert failed(site) == 0
    with not_recording(site):
        site.run("ALTER TABLE t ADD COLUMN c int")
        site.run("BEGIN; ALTER TABLE t ADD COLUMN undone int; ROLLBACK")
    missed = site.source.missed_ddl("topo")
    assert missed is not None
    assert (missed.count, missed.last.splitlines()[0][:33]) == (1, "ALTER TABLE t ADD COLUMN c int: t")
    assert site.source.ddl_due("topo", DDL) == ('CALL headrace_ddl.watch("public"."t")',)
    assert len(site.prepare(DDL)) == 1
    assert failed(site) == 0
    assert site.source.missed_ddl("topo") == MissedDdl()
    assert site.prepare(DDL) == ()


def test_statement_that_a_later_record_contains_is_counted_until_up_has_looked(recording: Recording) -> None:
    site = recording.site
    with not_recording(site):
        site.run("ALTER TABLE t ADD COLUMN c int")
    recording.run("ALTER TABLE t ADD COLUMN d int")
    assert failed(site) == 1
    assert site.source.ddl_due("topo", DDL) == ("CALL headrace_ddl.watch(no table)",)
    site.prepare(DDL)
    assert recording.records() == []
    assert failed(site) == 0


def test_statement_of_an_open_transaction_is_counted_behind_a_repair(recording: Recording) -> None:
    site = recording.site
    site.run("CREATE TABLE u (id int PRIMARY KEY)")
    site.prepare(DDL)
    with psycopg.connect(site.dsn) as other:
        with not_recording(site):
            site.run("ALTER TABLE u ADD COLUMN c int")
            other.execute("ALTER TABLE t ADD COLUMN c int")
        assert failed(site) == 1
        assert site.source.ddl_due("topo", DDL) == ('CALL headrace_ddl.watch("public"."u")',)
        site.prepare(DDL)
        assert failed(site) == 0
        other.commit()
    assert failed(site) == 1
    assert site.prepare(DDL) == ('CALL headrace_ddl.watch("public"."t")',)
    assert failed(site) == 0


def test_each_topology_counts_for_itself(recording: Recording) -> None:
    site = recording.site
    site.source.prepare("other", DDL)
    with not_recording(site):
        site.run("ALTER TABLE t ADD COLUMN c int")
    site.prepare(DDL)
    assert failed(site) == 0
    other = site.source.missed_ddl("other")
    assert other is not None
    assert other.count == 1
    site.source.prepare("other", DDL)
    assert site.source.missed_ddl("other") == MissedDdl()
    site.source.remove("other")


def test_role_without_rights_on_the_log_does_not_know_what_was_missed(recording: Recording) -> None:
    site = recording.site
    site.run(f"DROP ROLE IF EXISTS {USER}; CREATE ROLE {USER} LOGIN REPLICATION PASSWORD 'secret'")
    try:
        with closing(PostgresSource(conninfo.make_conninfo(site.dsn, user=USER, password="secret"))) as source:
            assert source.missed_ddl("topo") is None
        assert site.source.missed_ddl("none") is None
    finally:
        site.run(f"DROP OWNED BY {USER} CASCADE; DROP ROLE {USER}")


def test_change_recorded_while_the_log_was_not_published_is_recorded_again(recording: Recording) -> None:
    site = recording.site
    out, back = (f"ALTER PUBLICATION {slot_of(site)} {what} TABLE headrace_ddl.log" for what in ("DROP", "ADD"))
    recording.run("CREATE TABLE u (id int PRIMARY KEY)")  # behind the last `up`, which nobody can tell from the others
    site.run(out)
    assert recording.one("ALTER TABLE t ADD COLUMN c int")["is_known"]
    assert [each.split()[0] for each in site.prepare(DDL)] == ["ALTER", "CALL"]
    again = {record["after"]["name"]: DdlRecord.of(json.dumps(record)) for record in recording.records()}
    assert {name: record.is_known for name, record in again.items()} == {"t": False, "u": False}
    assert [part.name for part in again["t"].delta.added] == ["c"]
    assert site.prepare(DDL) == ()
    assert recording.one("ALTER TABLE t ADD COLUMN e int")["is_known"]
    # Also when an administrator has published it again before.
    site.run(out)
    recording.run("ALTER TABLE t DROP COLUMN e", "ALTER TABLE u ADD COLUMN c int")
    site.run(back)
    (called,) = site.source.ddl_due("topo", DDL)
    assert called == 'CALL headrace_ddl.watch("public"."t", "public"."u")'
    assert site.prepare(DDL) == (called,)
    assert {record["after"]["name"]: record["is_known"] for record in recording.records()} == {"t": False, "u": False}
    assert site.prepare(DDL) == ()


def test_change_that_is_open_while_the_log_is_published_again_is_recorded_again(recording: Recording) -> None:
    site = recording.site
    site.run(f"ALTER PUBLICATION {slot_of(site)} DROP TABLE headrace_ddl.log")
    ended: list[tuple[str, ...]] = []
    with psycopg.connect(site.dsn) as other:
        other.execute("ALTER TABLE t ADD COLUMN c int")
        pid = site.source._session().info.backend_pid
        preparing = threading.Thread(target=lambda: ended.append(site.source.prepare("topo", DDL)))
        preparing.start()
        wait_until_waiting(site, pid)
        other.commit()
    preparing.join(PATIENCE_S)
    assert [each.split()[0] for each in ended[0]] == ["ALTER", "CALL"]
    assert [record["is_known"] for record in recording.records()] == [True, False]


def test_publication_without_the_log_from_the_start_has_missed_nothing(site: Site) -> None:
    """Another topology recorded before."""
    site.run(TABLE)
    site.source.prepare("other", DDL)
    recording = Recording(site)
    recording.run("ALTER TABLE t ADD COLUMN c int")
    site.prepare(ALL)
    site.prepare(DDL)
    assert recording.records() == []
    site.source.remove("other")
