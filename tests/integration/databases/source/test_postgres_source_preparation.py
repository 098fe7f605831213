"""PostgreSQL as a source: creation and removal of its objects, rights, findings of the preflight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from headrace.base.errors import CapturedNoMore, DatabaseError, DatabaseUnavailable
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import LogNeed
from headrace.databases.postgres.catalog.source_tables import slot_name
from headrace.databases.postgres.source.database import PostgresSource
from headrace.lcr.scn import FIRST_SCN
from headrace.rules.rule import ANY_TAG, Rule, RuleSet
from tests.support.databases.log_reading import Reading
from tests.support.databases.postgres_site import ALL, Site, slot_of
from tests.support.databases.statements import row_of

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


def test_prepare_is_idempotent_and_remove_reverts_everything(site: Site) -> None:
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


def test_slot_that_is_taken_again_just_before_its_drop_is_dropped(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log writer takes it and is killed a moment later."""
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.prepare()
    session, taken = site.source._session(), list[Any]()

    class Session:
        info = session.info

        def execute(self, statement: Any, *parameters: Any) -> Any:
            if isinstance(statement, bytes) and b"pg_drop_replication_slot" in statement and not taken:
                taken.append(site.open())
            return session.execute(statement, *parameters)

    monkeypatch.setattr(site.source, "_session", Session)
    assert len(site.source.remove("topo")) == 2
    assert len(taken) == 1
    assert site.run("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", slot_of(site)).fetchone() == (0,)


def test_objects_that_cannot_be_removed_are_named_with_their_statement(site: Site) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.prepare()
    site.run(
        "CREATE FUNCTION no() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$"
    )
    site.run("CREATE EVENT TRIGGER no ON ddl_command_start WHEN TAG IN ('DROP PUBLICATION') EXECUTE FUNCTION no()")
    statement = f'DROP PUBLICATION "{slot_of(site)}"'
    try:
        with pytest.raises(DatabaseError) as caught:
            site.source.remove("topo")
        assert (
            caught.value.message
            == f'{statement}: not now: the event trigger "no" calls public.no() for Headrace\'s own DDL'
        )
        assert caught.value.hint == 'correct the function; or ALTER EVENT TRIGGER "no" DISABLE;'
    finally:
        site.run("DROP EVENT TRIGGER no")
    site.run(statement)  # as printed
    assert site.source.remove("topo") == ()


def test_publication_that_another_role_made_is_refused_until_it_is_ours(site: Site) -> None:
    """Its owner could have it skip all UPDATEs for a while, even if we are a superuser or a member of its role."""
    name = f'"{slot_of(site)}"'
    site.run("CREATE TABLE t (id int PRIMARY KEY); CREATE ROLE headrace_test_bob")
    try:
        site.run(
            f"GRANT CREATE ON DATABASE {site.user.info.dbname} TO headrace_test_bob; ALTER TABLE t OWNER TO"
            " headrace_test_bob; SET ROLE headrace_test_bob"
        )
        site.run(
            f"CREATE PUBLICATION {name} FOR TABLE t WITH (publish = 'insert', publish_via_partition_root = true);"
            " RESET ROLE; ALTER TABLE t OWNER TO CURRENT_USER"
        )
        (found,) = [each for each in site.source.preflight(ALL, streams=1, topology="topo") if each.is_error]
        assert 'belongs to "headrace_test_bob"' in found.problem
        with pytest.raises(DatabaseError, match="headrace_test_bob") as caught:
            site.prepare()
        assert caught.value.hint == found.fix
        assert not site.run("SELECT FROM pg_replication_slots WHERE slot_name = %s", slot_of(site)).fetchall()
        site.run(found.fix)
        assert site.source.preflight(ALL, streams=1, topology="topo") == ()
        assert any("SET (publish" in s for s in site.prepare())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            site.run(f"SET ROLE headrace_test_bob; ALTER PUBLICATION {name} SET (publish = 'insert')")
        site.run("RESET ROLE")
        assert site.prepare() == ()
    finally:
        site.run("RESET ROLE; DROP OWNED BY headrace_test_bob; DROP ROLE headrace_test_bob")
    site.source.remove("topo")
    site.run(f"CREATE PUBLICATION {name} FOR ALL TABLES")
    with pytest.raises(DatabaseError, match="not ours"):
        site.prepare()


def test_publication_that_skipped_changes_is_not_corrected_silently(site: Site) -> None:
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.prepare()
    site.run(f"ALTER PUBLICATION \"{slot_of(site)}\" SET (publish = 'insert')")
    with pytest.raises(CapturedNoMore, match="does not publish all kinds of changes"):
        site.prepare()


def test_users_changes_work_after_prepare_if_the_preflight_found_nothing(site: Site) -> None:
    for statement in (
        "CREATE TABLE ok (id int PRIMARY KEY)",
        "CREATE TABLE full_ (a int)",
        "ALTER TABLE full_ REPLICA IDENTITY FULL",
        "CREATE TABLE indexed (a int NOT NULL UNIQUE)",
        "ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_a_key",
        "CREATE TABLE deferred (a int PRIMARY KEY DEFERRABLE)",
        "CREATE TABLE bare (a int)",
        "CREATE TABLE nothing (a int PRIMARY KEY)",
        "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
        "CREATE TABLE gone (a int NOT NULL UNIQUE)",
        "ALTER TABLE gone REPLICA IDENTITY USING INDEX gone_a_key",
        "ALTER TABLE gone DROP CONSTRAINT gone_a_key",
        "CREATE TABLE virtual_ (a int, b int GENERATED ALWAYS AS (a + 1) VIRTUAL)",
        "ALTER TABLE virtual_ REPLICA IDENTITY FULL",
        "CREATE TABLE stored (a int, b int GENERATED ALWAYS AS (a + 1) STORED)",
        "ALTER TABLE stored REPLICA IDENTITY FULL",
        "CREATE TABLE part (a int) PARTITION BY LIST (a)",
        "CREATE TABLE part_1 PARTITION OF part FOR VALUES IN (1)",
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
    assert found["virtual_"].fix.startswith("give it a primary key, and ALTER TABLE ")
    for finding in errors:
        if finding is not found["virtual_"]:
            site.run(finding.fix)
    site.run("ALTER TABLE virtual_ ADD PRIMARY KEY (a)")
    site.run(f"ALTER TABLE {found['virtual_'].fix.partition('ALTER TABLE ')[2].partition(';')[0]}")
    assert [f.path for f in site.source.preflight(ALL, streams=1) if f.is_error] == []
    for table in found:
        site.run(f"UPDATE {table} SET a = 1")
        site.run(f"DELETE FROM {table}")


# A user's actions on a table or partition with columns id (the primary key), k (unique, the identity) and v.
LOSSES = {
    "NOTHING": ("ALTER TABLE {0} REPLICA IDENTITY NOTHING",),
    "index dropped": ("DROP INDEX {0}_k",),
    "index and key dropped": ("DROP INDEX {0}_k", "ALTER TABLE {0} DROP CONSTRAINT {0}_pkey"),
    "key dropped": ("ALTER TABLE {0} REPLICA IDENTITY DEFAULT", "ALTER TABLE {0} DROP CONSTRAINT {0}_pkey"),
    "NOTHING, without a key": (
        "ALTER TABLE {0} REPLICA IDENTITY NOTHING",
        "ALTER TABLE {0} DROP CONSTRAINT {0}_pkey",
    ),
    "virtual column beside FULL": (
        "ALTER TABLE {0} REPLICA IDENTITY FULL",
        "ALTER TABLE {1} ADD w int GENERATED ALWAYS AS (id + 1) VIRTUAL",
    ),
    "NOTHING, beside a virtual column": (
        "ALTER TABLE {1} ADD w int GENERATED ALWAYS AS (id + 1) VIRTUAL",
        "ALTER TABLE {0} REPLICA IDENTITY NOTHING",
    ),
}


@pytest.mark.parametrize("kind", ["table", "partition"])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
def test_lost_replica_identity_is_named_with_a_statement_that_helps(
    site: Site, loss: tuple[str, ...], kind: str
) -> None:
    site.run("CREATE TABLE fine (id int PRIMARY KEY)")
    if kind == "table":
        site.run("CREATE TABLE one (id int PRIMARY KEY, k int NOT NULL, v text)")
        root, where = "one", "table public.one"
    else:
        site.run("CREATE TABLE t (id int, k int NOT NULL, v text) PARTITION BY RANGE (id)")
        for name, bound in (("one", "FROM (0) TO (10)"), ("other", "FROM (10) TO (20)")):
            site.run(f"CREATE TABLE {name} PARTITION OF t (PRIMARY KEY (id)) FOR VALUES {bound}")
        root, where = "t", "table public.t partition public.one"
    site.run("CREATE UNIQUE INDEX one_k ON one (k)")
    site.run("ALTER TABLE one REPLICA IDENTITY USING INDEX one_k")
    site.prepare()
    site.run("INSERT INTO one VALUES (1, 1, 'a'), (2, 2, 'a')")
    assert site.source.refused_changes("topo", ALL, (), is_written=False) == ()
    for statement in loss:
        site.run(statement.format("one", root))
    for change in ("UPDATE one SET v = 'b' WHERE id = 1", "DELETE FROM one WHERE id = 2"):
        with pytest.raises((psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.InvalidColumnReference)):
            site.run(change)
    (finding,) = site.source.refused_changes("topo", ALL, (), is_written=False)
    assert (finding.problem, finding.fix) in [(f.problem, f.fix) for f in site.source.preflight(ALL, streams=1)]
    assert finding.path.endswith(where)
    assert "your own UPDATE and DELETE on it fail while it is captured" in finding.problem
    site.run(finding.fix)
    for change in ("UPDATE one SET v = 'b' WHERE id = 1", "DELETE FROM one WHERE id = 2"):
        site.run(change)
    assert site.source.refused_changes("topo", ALL, (), is_written=False) == ()
    assert [f for f in site.source.preflight(ALL, streams=1) if f.is_error] == []


def test_printed_statement_logs_the_values_that_a_rule_needs_again(site: Site) -> None:
    """An identity of the key alone would let users change rows but stop the rule's client."""
    site.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    site.run("ALTER TABLE t REPLICA IDENTITY FULL")
    needs = (LogNeed(place="captures.c", rule=Rule(owner="public", name="t"), old=("v",)),)
    site.prepare()
    site.run("ALTER TABLE t REPLICA IDENTITY NOTHING")
    fixes = {f.fix for f in site.source.preflight(ALL, streams=1, needs=needs) if f.is_error}
    assert fixes == {'ALTER TABLE "public"."t" REPLICA IDENTITY FULL;'}
    assert {f.fix for f in site.source.refused_changes("topo", ALL, needs, is_written=False)} == fixes
    site.run(fixes.pop())
    assert [f for f in site.source.preflight(ALL, streams=1, needs=needs) if f.is_error] == []


def test_changes_of_a_table_that_is_not_captured_are_not_refused(site: Site) -> None:
    site.prepare()
    site.run("CREATE TABLE bare (id int)")
    site.run("UPDATE bare SET id = 1")
    assert site.source.refused_changes("topo", ALL, (), is_written=False) == ()


@pytest.mark.parametrize("version", [18, 16, 15])
def test_role_without_superuser_works_with_exactly_the_printed_grants(
    version: int, make_site: Callable[[EmbeddedServer], Site], request: pytest.FixtureRequest
) -> None:
    server: EmbeddedServer = request.getfixturevalue("pg_source" if version == 18 else f"pg_{version}")
    site = make_site(server)
    database = str(row_of(site.run("SELECT current_database()"))[0])
    role, owner = f"Cap-{database}", f"owner_{database}"
    site.run(f"CREATE ROLE \"{role}\" LOGIN PASSWORD 'geheim'")
    site.run(f"CREATE ROLE {owner}")
    try:
        for statement in (
            f"CREATE SCHEMA hr AUTHORIZATION {owner}",
            "CREATE TABLE hr.t (id int PRIMARY KEY)",
            f"ALTER TABLE hr.t OWNER TO {owner}",
            "CREATE TABLE hr.p (id int PRIMARY KEY) PARTITION BY LIST (id)",
            "CREATE TABLE hr.p1 PARTITION OF hr.p FOR VALUES IN (1)",
            f"ALTER TABLE hr.p OWNER TO {owner}",
            f"ALTER TABLE hr.p1 OWNER TO {owner}",
            "CREATE TABLE hr.s (id int PRIMARY KEY)",
            "ALTER TABLE hr.t ENABLE ROW LEVEL SECURITY",
            "ALTER TABLE hr.t FORCE ROW LEVEL SECURITY",
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
        assert any(s.endswith("REPLICATION;") for s in statements)
        assert any(s.startswith("GRANT CREATE ON DATABASE") for s in statements)
        assert any(s.endswith("BYPASSRLS;") for s in statements)
        is_superuser = site.run(
            "SELECT pg_has_role(%s, oid, 'USAGE') FROM pg_roles WHERE rolname = current_user", role
        ).fetchone()
        assert is_superuser == (False,), "a superuser's table is no reason to become a superuser"
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


def test_preflight_names_the_servers_gaps_and_printed_settings_fix_them(postgres_folder: object) -> None:
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
            session.execute(
                "CREATE SCHEMA hr CREATE TABLE t1 (id int PRIMARY KEY) CREATE UNLOGGED TABLE t2 (id int PRIMARY KEY)"
            )
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
        server.stop()
        server = EmbeddedServer(
            server.folder,
            settings={
                "wal_level": "logical",
                "max_replication_slots": "3",
                "max_wal_senders": "3",
                "synchronized_standby_slots": "gone, away",
            },
        )
        server.start()
        with psycopg.connect(server.dsn(), autocommit=True) as session:
            session.execute("SELECT pg_create_physical_replication_slot('away')")
        awaited = [f for f in source.preflight(rules, streams=2) if "synchronized_standby_slots names" in f.problem]
        assert [(f.is_error, f.problem.partition(":")[0].partition("names ")[2]) for f in awaited] == [
            (False, "slot away, which no standby reads"),
            (True, "slot gone, which does not exist"),
        ]
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


def test_captured_table_keeps_its_identity_when_renamed_not_when_recreated(site: Site) -> None:
    """A name stands for many tables over time: the copied rows of one are not those of the next."""
    site.run("CREATE TABLE stays (a int PRIMARY KEY)")
    site.run("CREATE TABLE again (a int PRIMARY KEY)")
    site.run("CREATE TABLE leaves (a int PRIMARY KEY)")
    site.run("CREATE TABLE part (a int PRIMARY KEY) PARTITION BY LIST (a)")
    site.run("CREATE TABLE part_1 PARTITION OF part FOR VALUES IN (1)")
    assert site.source.captured("topo") == ()
    site.prepare()
    before = {table.name: table for table in site.source.captured("topo")}
    assert sorted(before) == ["again", "leaves", "part", "stays"]
    oids: dict[Any, Any] = dict(
        site.run("SELECT relname, oid::int8 FROM pg_class WHERE relname ~ '^(part|part_1|stays)$'").fetchall()
    )
    assert before["part"].object_numbers == tuple(sorted((oids["part"], oids["part_1"])))
    assert before["stays"].object_numbers == (oids["stays"],)

    site.run("ALTER TABLE stays RENAME TO renamed")
    site.run("DROP TABLE again")
    site.run("CREATE TABLE again (a int PRIMARY KEY)")
    site.source.prepare("topo", [RuleSet(include=(Rule(name="renamed"), Rule(name="part"), Rule(name="again")))])
    site.prepare()
    after = {table.name: table for table in site.source.captured("topo")}
    assert sorted(after) == ["again", "leaves", "part", "renamed"]
    assert after["renamed"].identity == before["stays"].identity
    assert after["part"].identity == before["part"].identity
    assert after["again"].identity != before["again"].identity
    assert after["leaves"].identity != before["leaves"].identity
    assert after["leaves"].object_numbers == before["leaves"].object_numbers


def test_unmatched_name_gets_the_nearest_one_as_written_in_the_file(site: Site) -> None:
    for statement in (
        'CREATE SCHEMA "Ünï cödé"',
        'CREATE TABLE "Ünï cödé".t (id int PRIMARY KEY)',
        'CREATE SCHEMA "HR"',
        'CREATE TABLE "HR".employees (id int PRIMARY KEY)',
    ):
        site.run(statement)
    wanted = (("ünï cöde", "*"), ("hr", "*"), ("HR", "employes"), ("nothing_like_it", "*"))
    for owner, name in wanted:
        (found,) = site.source.preflight((RuleSet(include=(Rule(owner=owner, name=name),)),), streams=1)
        expected = {
            "ünï cöde": """did you mean the schema '"Ünï cödé"' (in YAML, with both quotes)?""",
            "hr": "did you mean the schema HR?",
            "HR": "did you mean the table employees?",
            "nothing_like_it": "",
        }[owner]
        assert found.fix.endswith(expected)
        assert ("did you mean" in found.fix) == bool(expected)
    rules = (RuleSet(include=(Rule(owner="HR"), Rule(owner="ünï cöde"))),)
    (warning,) = [f for f in site.source.preflight(rules, streams=1) if "matches no table" in f.problem]
    assert "did you mean the schema" in warning.fix


def test_objects_with_rows_that_are_no_tables_are_named_with_their_kind(site: Site) -> None:
    """A schema's materialized views and foreign tables were skipped silently, and a rule that named one got advice to
    correct the name.
    """
    for statement in (
        "CREATE TABLE t (id int PRIMARY KEY, body oid)",
        "CREATE MATERIALIZED VIEW mv AS SELECT count(*) FROM t",
        "CREATE VIEW vw AS SELECT * FROM t",
        "CREATE SEQUENCE sq",
        "CREATE FOREIGN DATA WRAPPER none",
        "CREATE SERVER elsewhere FOREIGN DATA WRAPPER none",
        "CREATE FOREIGN TABLE ft (id int) SERVER elsewhere",
        "CREATE TABLE p (id int) PARTITION BY LIST (id)",
        "CREATE TABLE p_1 PARTITION OF p (PRIMARY KEY (id)) FOR VALUES IN (1)",
        "ALTER TABLE p_1 REPLICA IDENTITY DEFAULT",
    ):
        site.run(statement)

    def found(*rules: Rule) -> dict[str, tuple[str, str]]:
        return {
            f.path.rpartition(" ")[2]: (f.problem, f.fix)
            for f in site.source.preflight((RuleSet(include=rules),), streams=1)
            if f.path.partition(" ")[0].startswith(("sites", "database"))
        }

    of_schema = found(Rule(owner="public"))
    assert of_schema["public.mv"][0] == "is a materialized view: its rows are in no log"
    assert of_schema["public.ft"][0] == "is a foreign table: its rows are in no log"
    assert not {"public.vw", "public.sq", "public.p_1", "public.t"} & of_schema.keys(), (
        "they have no rows of their own, or are captured"
    )
    left = site.source.preflight(
        (
            RuleSet(
                include=(Rule(owner="public"),),
                exclude=tuple(Rule(owner="public", name=name, tags=ANY_TAG) for name in ("mv", "ft")),
            ),
        ),
        streams=1,
    )
    assert not [f for f in left if "its rows are in no log" in f.problem]
    by_name = found(
        Rule(owner="public", name="t"), *(Rule(owner="public", name=name) for name in ("mv", "vw", "sq", "p_1", "ft"))
    )
    said = {name: fix for name, (problem, fix) in by_name.items() if problem == "matches no table here"}
    assert said["public.mv"].startswith(
        "public.mv is a materialized view, and only tables are captured. Correct the name"
    )
    assert "is a view" in said["public.vw"]
    assert "is a sequence" in said["public.sq"]
    assert "is a foreign table" in said["public.ft"]
    assert "public.p_1 is a partition: name its table, public.p," in said["public.p_1"]
    ((_, (problem, fix)),) = found(Rule(owner="public", name="mv")).items()
    assert problem == "no table of this database is selected by the rules"
    assert "public.mv is a materialized view" in fix
    site.run("SELECT lo_create(0)")
    assert "column body is a number, and this database has large objects" in found(Rule(owner="public"))["public.t"][0]
