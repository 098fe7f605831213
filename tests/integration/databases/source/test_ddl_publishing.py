"""New tables at a source with `ddl: true`: they are published in the statement that creates them, and never at a user's
expense.

Longer than 500 lines: all of it is about what one function does in a user's statement.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing
from typing import Any

import psycopg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from psycopg import conninfo

from headrace.databases.ports import CapturedTable
from headrace.databases.postgres.catalog.source_tables import may_read, select_tables
from headrace.databases.postgres.source.admin import PostgresSourceAdmin
from headrace.databases.postgres.source.database import PostgresSource
from headrace.databases.postgres.source.ddl.rules import rules_step
from headrace.lcr.batch import Command
from headrace.lcr.ddl import Creation, ddl_of
from headrace.lcr.ddl_record import DdlRecord
from headrace.rules.rule import Rule, RuleSet
from tests.support.apply.apply_driver import wait_for
from tests.support.databases.ddl_recording import DDL, PATIENCE_S, TABLE, USER, Recording, columns
from tests.support.databases.log_reading import Row
from tests.support.databases.postgres_site import Site, slot_of
from tests.support.databases.statements import row_of

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

EVERYTHING = (RuleSet(include=(Rule(owner="*", ddl=True),)),)


def creation_of(record: dict[str, Any]) -> Creation | None:
    change = ddl_of(json.dumps(record).encode())
    assert change is not None
    return change.creation


def created(recording: Recording, *statements: str) -> Creation:
    """Run statements that make one record, of a new table, and return how its rows get into the log."""
    found = creation_of(recording.one(*statements))
    assert found is not None
    return found


def captured(site: Site) -> dict[str, CapturedTable]:
    return {each.name: each for each in site.source.captured("topo")}


def stored(row: Row, column: str) -> int:
    """Return an integer of a row's new values, in whichever form it travels."""
    value = row.new[column]
    assert isinstance(value, bytes)
    is_binary = next(each.is_binary for each in row.table.columns if each.name == column)
    return int.from_bytes(value, "big") if is_binary else int(value)


def seen(rows: list[Row]) -> list[object]:
    """Return rows as their numbers, and records as the statement's tag and its table."""
    found: list[object] = []
    for row in rows:
        if row.table.owner == "headrace_ddl":
            change = ddl_of(bytes(row.new["content"]))
            assert change is not None
            found.append(f"{change.command_type} {change.base_table_name}")
        elif row.command is not Command.DELETE:
            found.append(stored(row, "id"))
    return found


# ---------------------------------------------------------------------- published


def test_a_new_table_is_published_with_its_first_row(recording: Recording, user: psycopg.Connection[Any]) -> None:
    """By a user without any right on the publication: first the record, then every row, in one transaction."""
    site = recording.site
    site.prepare((RuleSet(include=(Rule(owner="public", ddl=True), Rule(owner="own", ddl=True))),))
    recording.records()
    user.execute(
        "BEGIN; CREATE TABLE own.n (id int PRIMARY KEY); INSERT INTO own.n VALUES (1), (2); UPDATE own.n SET id = 3 WHERE"
        " id = 2; CREATE INDEX later ON own.n (id); INSERT INTO own.n VALUES (4); COMMIT"
    )
    user.execute("INSERT INTO own.n VALUES (5)")
    (record, _) = recording.records()
    made = captured(site)
    assert creation_of(record) == Creation(identities={"topo": made["n"].identity}, why_not="")
    assert {name: each.is_made for name, each in made.items()} == {"n": True, "t": False}
    assert site.source.uncaptured("topo", DDL) == ()
    assert row_of(site.run("SELECT relreplident FROM pg_class WHERE oid = 'own.n'::regclass")) == ("d",)
    transactions = [each for each in site.open().through(site.mark()).transactions if each.rows]
    assert [seen(each.rows) for each in transactions[-2:]] == [["CREATE TABLE n", 1, 2, 3, "CREATE INDEX n", 4], [5]]


def test_a_rolled_back_savepoint_leaves_no_entry(recording: Recording) -> None:
    site = recording.site
    site.run(
        "BEGIN; SAVEPOINT s; CREATE TABLE n (id int PRIMARY KEY); INSERT INTO n VALUES (1); ROLLBACK TO s; CREATE TABLE n (id"
        " int PRIMARY KEY, b int); INSERT INTO n VALUES (2); COMMIT"
    )
    site.run("BEGIN; CREATE TABLE never (id int PRIMARY KEY); ROLLBACK")
    (record,) = recording.records()
    creation = creation_of(record)
    assert creation is not None
    assert creation.identities == {"topo": captured(site)["n"].identity}
    assert row_of(site.run("SELECT count(*), min(relation) FROM headrace_ddl.made")) == (1, record["relation"])
    rows = [row for row in site.open().through(site.mark()).rows() if row.table.name in ("n", "log")]
    assert seen(rows) == ["CREATE TABLE n", 2]


def test_drop_and_create_of_one_name_are_two_identities(recording: Recording) -> None:
    site = recording.site
    first, _, second = recording.run(
        "BEGIN; CREATE TABLE n (id int PRIMARY KEY); INSERT INTO n VALUES (1); DROP TABLE n; CREATE TABLE n (id bigint"
        " PRIMARY KEY); INSERT INTO n VALUES (2); COMMIT"
    )
    before, after = creation_of(first), creation_of(second)
    assert before is not None
    assert after is not None
    assert before.identities["topo"] != after.identities["topo"] == captured(site)["n"].identity
    site.run("DROP TABLE n; CREATE TABLE n (id int PRIMARY KEY)")
    site.prepare(DDL)
    rows = [row for row in site.open().through(site.mark()).rows() if row.table.name in ("n", "log")]
    assert seen(rows)[:5] == ["CREATE TABLE n", 1, "DROP TABLE n", "CREATE TABLE n", 2]


def test_sequences_of_a_new_table_are_in_its_record(recording: Recording) -> None:
    record = recording.one(
        "CREATE TABLE n (id serial PRIMARY KEY, small smallserial, k bigint GENERATED BY DEFAULT AS IDENTITY (START 5 INCREMENT 2"
        " CYCLE), a bigint GENERATED ALWAYS AS IDENTITY)"
    )
    sequences = DdlRecord.of(ddl_of(json.dumps(record).encode()).content).sequences
    assert {name: (each.name, each.type, each.kind) for name, each in sequences.items()} == {
        "id": ("n_id_seq", "integer", "a"),
        "small": ("n_small_seq", "smallint", "a"),
        "k": ("n_k_seq", "bigint", "i"),
        "a": ("n_a_seq", "bigint", "i"),
    }
    assert (sequences["k"].start, sequences["k"].increment, sequences["k"].cycle) == (5, 2, True)
    assert sequences["a"].max == 2**63 - 1


WAYS = {
    "schema": "CREATE SCHEMA hr CREATE TABLE n (id int PRIMARY KEY)",
    "function": "DO $$ BEGIN EXECUTE 'CREATE TABLE hr.n (id int PRIMARY KEY)'; END $$",
    "without rows": "CREATE TABLE hr.n AS SELECT 1 AS id WITH NO DATA",
    "like": "CREATE TABLE hr.n (LIKE public.t INCLUDING ALL)",
    "repeatable read": "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1; CREATE TABLE hr.n (id int PRIMARY KEY); COMMIT",
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_make_a_table(recording: Recording, way: str) -> None:
    site = recording.site
    site.prepare(EVERYTHING)
    if way != "schema":
        site.run("CREATE SCHEMA hr")
    recording.records()
    assert created(recording, WAYS[way]).identities == {"topo": captured(site)["n"].identity}
    site.run("INSERT INTO hr.n VALUES (1)")
    assert 1 in seen([row for row in site.open().through(site.mark()).rows() if row.table.name == "n"])


def test_prepared_transaction_publishes(recording: Recording) -> None:
    site = recording.site
    name = site.user.info.dbname
    assert recording.run(f"BEGIN; CREATE TABLE n (id int PRIMARY KEY); PREPARE TRANSACTION '{name}'") == []
    assert created(recording, f"COMMIT PREPARED '{name}'").identities == {"topo": captured(site)["n"].identity}
    assert created(recording, "CREATE TABLE m (id int PRIMARY KEY)").identities


def test_two_topologies_publish_what_their_rules_take(recording: Recording) -> None:
    site = recording.site
    site.source.prepare("other", (RuleSet(include=(Rule(owner="public", name="n*", ddl=True),)),))
    recording.records()
    both, one = created(recording, "CREATE TABLE n (id int PRIMARY KEY)"), created(recording, "CREATE TABLE m (id int)")
    assert both.identities.keys() == {"topo", "other"}
    assert one.identities.keys() == {"topo"}
    site.source.remove("other")
    assert created(recording, "CREATE TABLE n2 (id int PRIMARY KEY)").identities.keys() == {"topo"}


def test_rules_that_are_gone_publish_nothing(recording: Recording) -> None:
    site = recording.site
    site.source.prepare("other", DDL)
    assert created(recording, "CREATE TABLE a (id int)").identities.keys() == {"topo", "other"}
    site.source.prepare("other", (RuleSet(include=(Rule(owner="public"),)),))
    recording.records()
    assert created(recording, "CREATE TABLE b (id int)").identities.keys() == {"topo"}
    site.source.prepare("other", (RuleSet(include=(Rule(owner="public", name="c", ddl=True),)),))
    recording.records()
    assert created(recording, "CREATE TABLE d (id int)").identities.keys() == {"topo"}
    assert created(recording, "CREATE TABLE c (id int)").identities.keys() == {"topo", "other"}


def test_up_has_nothing_to_do_about_a_published_table(recording: Recording) -> None:
    site = recording.site
    assert created(recording, "CREATE TABLE n (id int PRIMARY KEY)").identities
    assert site.prepare(DDL) == ()
    assert captured(site)["n"].is_made
    site.run("DROP TABLE n")
    site.prepare((RuleSet(include=(Rule(owner="public", ddl=True), Rule(owner="hr", ddl=True))),))
    assert row_of(site.run("SELECT count(*) FROM headrace_ddl.made")) == (0,)


# ---------------------------------------------------------------------- rules

LETTERS = st.sampled_from(list("ab_%\\*?'\"[ü\n"))
PATTERNS = st.text(LETTERS, min_size=1, max_size=4)
RULES = st.builds(Rule, owner=st.just("public") | PATTERNS, name=PATTERNS, ddl=st.booleans())


def test_rules_decide_which_new_tables_are_published(recording: Recording) -> None:
    """As `up` writes them, against the rules' own meaning."""
    site = recording.site
    structure = (
        "jsonb_build_object('owner', %s::text, 'name', %s::text, 'kind', 'r', 'is_partition', false, 'parents', 0,"
        " 'children', 0, 'persistence', 'u', 'columns', '[]'::jsonb, 'constraints', '[]'::jsonb, 'indexes', '[]'::jsonb)"
    )

    @settings(max_examples=60)
    @example([RuleSet(include=(Rule(owner="a_", name="%*", ddl=True),))], "a_", "%x")
    @example([RuleSet(include=(Rule(owner="a_", name="\\?", ddl=True),))], "a_", "\\a")
    @given(
        st.lists(
            st.builds(
                RuleSet, include=st.lists(RULES, max_size=3).map(tuple), exclude=st.lists(RULES, max_size=2).map(tuple)
            ),
            max_size=2,
        ),
        st.just("public") | PATTERNS,
        PATTERNS,
    )
    def agrees(rule_sets: list[RuleSet], owner: str, name: str) -> None:
        step = rules_step(site.user, slot_of(site), "topo", rule_sets)
        if step is not None and not step.is_done:
            site.run(step.sent)
            again = rules_step(site.user, slot_of(site), "topo", rule_sets)
            assert again is None or again.is_done
        (answer,) = row_of(site.run(f"SELECT headrace_ddl.publish('t'::regclass, {structure})", owner, name))
        is_taken = any(
            any(rule.ddl and rule.matches_object(owner, name) for rule in each.include or ())
            and not any(rule.matches_object(owner, name) for rule in each.exclude)
            for each in rule_sets
        )
        assert (answer is not None) == is_taken

    agrees()


# ---------------------------------------------------------------------- not published

KEY = "id int PRIMARY KEY"
REFUSED = {
    "partitioned": (f"CREATE TABLE n ({KEY}) PARTITION BY RANGE (id)", "it is a partitioned table or a partition"),
    "partition": ("CREATE TABLE n PARTITION OF whole DEFAULT", "it is a partitioned table or a partition"),
    "inherits": ("CREATE TABLE n () INHERITS (t)", "it inherits"),
    "unlogged": (f"CREATE UNLOGGED TABLE n ({KEY})", "it is unlogged"),
    "as": ("CREATE TABLE n AS SELECT 1 AS id", "it was made with rows, which are not in the log"),
    "into": ("SELECT 1 AS id INTO n", "it was made with rows, which are not in the log"),
    "materialized function": (
        "CREATE TABLE n AS SELECT g AS id FROM generate_series(1, 9) g",
        "it was made with rows, which are not in the log",
    ),
    "default": (f"CREATE TABLE n ({KEY}, a int DEFAULT mine())", "the column a calls a function"),
    "check": (f"CREATE TABLE n ({KEY}, CONSTRAINT c CHECK (mine() > id))", "the constraint c calls a function"),
    "generated": (
        "CREATE TABLE n (id int, g int GENERATED ALWAYS AS (id + 1) STORED)",
        "it has generated columns and no primary key",
    ),
    "generated key": (
        "CREATE TABLE n (id int, g int GENERATED ALWAYS AS (id + 1) STORED PRIMARY KEY)",
        "its key has generated columns",
    ),
    "serializable": (
        f"BEGIN ISOLATION LEVEL SERIALIZABLE; CREATE TABLE n ({KEY}); COMMIT",
        "transactions that are SERIALIZABLE do not publish",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_published_says_why(recording: Recording, case: str) -> None:
    site = recording.site
    recording.run(
        "CREATE FUNCTION mine() RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1'; CREATE TABLE whole (id int PRIMARY KEY)"
        " PARTITION BY RANGE (id)"
    )
    statement, reason = REFUSED[case]
    (record,) = [each for each in recording.run(statement) if each["after"]["name"] == "n"]
    found = creation_of(record)
    assert found is not None
    assert found.identities == {}
    assert found.why_not.startswith(reason)
    assert "n" not in captured(site)
    assert row_of(site.run("SELECT count(*) FROM headrace_ddl.made")) == (0,)
    if case not in ("unlogged", "partition"):
        assert site.source.uncaptured("topo", DDL) == ("public.n", "public.whole")
    if case == "generated key":
        return  # PostgreSQL publishes none of its updates
    site.run("DELETE FROM n")


def test_tables_that_no_rule_takes_are_recorded_as_before(recording: Recording) -> None:
    recording.site.prepare(
        (RuleSet(include=(Rule(owner="public", ddl=True),), exclude=(Rule(owner="public", name="tmp*"),)),)
    )
    recording.records()
    for statement in ("CREATE TABLE tmp1 (id int)", "CREATE SCHEMA hr CREATE TABLE n (id int)"):
        record = recording.one(statement)
        assert "made" not in record
        assert record["is_known"]
    assert captured(recording.site).keys() == {"t"}


@pytest.mark.parametrize("damage", ["DROP TABLE headrace_ddl.rule", "DROP TABLE headrace_ddl.made"])
def test_damaged_objects_cost_no_statement_and_are_repaired(recording: Recording, damage: str) -> None:
    site = recording.site
    site.run(damage)
    found = created(recording, "CREATE TABLE n (id int PRIMARY KEY)")
    assert found.why_not.startswith("it could not be published: relation")
    assert "n" not in captured(site)
    assert site.prepare(DDL)
    assert site.prepare(DDL) == ()
    recording.records()  # tables that differ from what is recorded
    assert created(recording, "CREATE TABLE m (id int PRIMARY KEY)").identities
    assert captured(site)["m"].is_made


def test_users_may_not_write_what_decides_about_publication(
    recording: Recording, user: psycopg.Connection[Any]
) -> None:
    recording.site.run(f"GRANT pg_write_all_data, pg_read_all_data TO {USER}")
    for statement in ("DELETE FROM headrace_ddl.made", "UPDATE headrace_ddl.rule SET name_like = '%'"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="event triggers alone"):
            user.execute(statement.encode())
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        user.execute("SELECT headrace_ddl.publish(1, '{}')")


# ---------------------------------------------------------------------- at nobody's expense

WITHOUT_KEY = {
    "no key": "CREATE TABLE n (id int, a text)",
    "deferrable key": "CREATE TABLE n (id int PRIMARY KEY DEFERRABLE, a text)",
    "unique": "CREATE TABLE n (id int NOT NULL UNIQUE, a text)",
    "without rows": "CREATE TABLE n AS SELECT 1 AS id, 'x' AS a WITH NO DATA",
    "json": "CREATE TABLE n (id int, a json)",
}


@pytest.mark.parametrize("case", WITHOUT_KEY)
def test_a_table_without_a_key_has_its_whole_rows_in_the_log(recording: Recording, case: str) -> None:
    site = recording.site
    assert created(recording, WITHOUT_KEY[case]).identities
    site.run("INSERT INTO n VALUES (1, '{}'); UPDATE n SET id = 2; DELETE FROM n")
    assert recording.records() == []
    rows = [row for row in site.open().through(site.mark()).rows() if row.table.name == "n"]
    assert [row.command for row in rows] == [Command.INSERT, Command.UPDATE, Command.DELETE]
    assert all(row.old.keys() >= {"id", "a"} and row.old["a"] == rows[0].new["a"] for row in rows[1:])


@pytest.mark.parametrize(
    "columns",
    [
        "id int PRIMARY KEY, g int GENERATED ALWAYS AS (id + 1) {kind}",
        "id int, g int GENERATED ALWAYS AS (id + 1) {kind}",
        "id int PRIMARY KEY DEFERRABLE, g int GENERATED ALWAYS AS (id + 1) {kind}",
    ],
)
@pytest.mark.parametrize("kind", ["STORED", "VIRTUAL"])
def test_users_updates_never_fail(recording: Recording, columns: str, kind: str) -> None:
    site = recording.site
    if kind == "VIRTUAL" and site.user.info.server_version < 180000:
        pytest.skip("PostgreSQL 18 has them")
    site.run(f"CREATE TABLE n ({columns.format(kind=kind)})")
    site.run("INSERT INTO n (id) VALUES (1); UPDATE n SET id = 2; DELETE FROM n")


def test_two_sessions_that_create_tables_do_not_wait_for_each_other(recording: Recording) -> None:
    site = recording.site
    site.prepare(EVERYTHING)
    recording.records()
    with psycopg.connect(site.dsn) as first:
        first.execute("CREATE TABLE a (id int PRIMARY KEY)")
        # These return before the first session ends, or never.
        found = created(recording, "CREATE TABLE b (id int PRIMARY KEY)")
        assert found.identities == {}
        assert found.why_not == "it could not be published: another transaction that made a table has not ended (55P03)"
        site.run("CREATE SCHEMA hr CREATE TABLE c (id int) CREATE TABLE d (id int)")
    assert captured(site).keys() == {"a", "t"}
    assert site.source.uncaptured("topo", EVERYTHING) == ("hr.c", "hr.d", "public.b")
    recording.records()
    assert created(recording, "CREATE TABLE e (id int PRIMARY KEY)").identities


@pytest.mark.parametrize("setting", ["statement_timeout = '290ms'", "transaction_timeout = '290ms'"])
def test_a_session_with_little_time_waits_less(recording: Recording, setting: str) -> None:
    site = recording.site
    if "transaction" in setting and site.user.info.server_version < 170000:
        pytest.skip("PostgreSQL 17 has it")

    def is_made() -> bool:
        """Make it in a session of its own, which some settings end; on a busy machine a statement may take that long."""
        with psycopg.connect(site.dsn, autocommit=True) as second:
            # plans the functions, which takes time, too
            second.execute("CREATE TABLE IF NOT EXISTS own.c (); DROP TABLE own.c")
            second.execute(f"SET {setting}".encode())
            try:
                second.execute("CREATE TABLE b (id int PRIMARY KEY)")
            except (psycopg.errors.QueryCanceled, psycopg.OperationalError):
                return False
        return True

    site.run("CREATE SCHEMA own")
    with psycopg.connect(site.dsn) as first:
        first.execute("CREATE TABLE a (id int PRIMARY KEY)")
        wait_for("the table", is_made, PATIENCE_S)
    assert captured(site).keys() == {"a", "t"}


def test_no_lock_of_other_users_keeps_tables_from_being_published(
    recording: Recording, user: psycopg.Connection[Any]
) -> None:
    for statement in ("LOCK TABLE headrace_ddl.made", "LOCK TABLE headrace_ddl.rule IN ACCESS SHARE MODE"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege), user.transaction():
            user.execute(statement.encode())
    assert recording.records() == []


def test_a_table_that_loses_its_key_can_still_be_updated(recording: Recording) -> None:
    site = recording.site
    assert created(recording, "CREATE TABLE n (id int PRIMARY KEY, a text)").identities
    site.run("INSERT INTO n VALUES (1, 'x'); ALTER TABLE n DROP CONSTRAINT n_pkey; UPDATE n SET id = 2; DELETE FROM n")
    assert [each["tag"] for each in recording.records()] == ["ALTER TABLE"]
    rows = [row for row in site.open().through(site.mark()).rows() if row.table.name == "n"]
    assert [row.command for row in rows] == [Command.INSERT, Command.UPDATE, Command.DELETE]
    assert all(row.old.keys() == {"id", "a"} for row in rows[1:])
    site.run("ALTER TABLE t DROP CONSTRAINT t_pkey")  # its user decided how it is captured
    assert row_of(site.run("SELECT relreplident FROM pg_class WHERE relname = 't'")) == ("d",)


def test_serializable_drop_is_recorded(recording: Recording) -> None:
    recording.run("CREATE TABLE n (id int PRIMARY KEY)", "CREATE SCHEMA hr CREATE TABLE m (id int)")
    records = recording.run("BEGIN ISOLATION LEVEL SERIALIZABLE; DROP TABLE n; DROP SCHEMA hr CASCADE; COMMIT")
    changes = [ddl_of(json.dumps(each).encode()) for each in records]
    assert [(str(each.base_table), each.drops) for each in changes if each] == [("public.n", True), ("hr.m", True)]
    assert not any(each["is_known"] for each in records)
    assert recording.run("BEGIN ISOLATION LEVEL SERIALIZABLE; CREATE TEMP TABLE x (id int); DROP TABLE x; COMMIT") == []


@pytest.mark.parametrize(
    ("made", "statement", "expected"),
    [
        pytest.param(
            "CREATE TABLE a (id serial PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY, r a);"
            " CREATE TABLE c (id int PRIMARY KEY, r a[], other int REFERENCES b)",
            "DROP TABLE a, b, c",
            {"a": "bc"},
            id="newer-table-depends-on-older",
        ),
        *(
            pytest.param(
                "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); ALTER TABLE a ADD r b",
                statement,
                {"b": "a"},
                id=statement,
            )
            for statement in ("DROP TABLE a, b", "DROP TABLE b, a")
        ),
        pytest.param(
            "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); ALTER TABLE a ADD r b",
            "DROP TABLE b CASCADE",
            {"b": "a"},
            id="column-of-a-table-that-stays",
        ),
        pytest.param(
            "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int REFERENCES a, k int PRIMARY KEY);"
            " ALTER TABLE a ADD r b",
            "DROP TABLE a, b",
            {"b": "a"},
            id="type-before-foreign-key",
        ),
        *(
            pytest.param(
                "CREATE TABLE b (id int PRIMARY KEY); CREATE TABLE a (id int PRIMARY KEY);"
                " ALTER TABLE b ADD FOREIGN KEY (id) REFERENCES a, ADD FOREIGN KEY (id) REFERENCES b",
                statement,
                {"a": "b"},
                id=f"{statement}-to-which-an-older-one-refers",
            )
            for statement in ("ALTER TABLE a DROP CONSTRAINT a_pkey CASCADE", "ALTER TABLE a DROP id CASCADE")
        ),
        pytest.param(
            "CREATE SCHEMA hr CREATE TABLE a (id int PRIMARY KEY) CREATE TABLE b (id int PRIMARY KEY)"
            " CREATE TABLE c (id int PRIMARY KEY); ALTER TABLE hr.a ADD r hr.b; ALTER TABLE hr.b ADD r hr.c",
            "DROP SCHEMA hr CASCADE",
            {"b": "a", "c": "ab"},
            id="a-chain-in-a-schema",
        ),
        pytest.param(
            'CREATE SCHEMA "H r" CREATE TABLE c (id int PRIMARY KEY); CREATE TABLE "H r"."B" (id int PRIMARY KEY, r "H r".c);'
            ' CREATE TABLE a (id int PRIMARY KEY, r "H r"."B"[])',
            'DROP TABLE "H r".c, "H r"."B", a',
            {"B": "a", "c": "aB"},
            id="a-chain-in-the-order-of-its-creation",
        ),
    ],
)
def test_tables_that_depend_on_others_are_dropped_first(
    recording: Recording, made: str, statement: str, expected: dict[str, str]
) -> None:
    """Expected: for each table, those that must be gone, or lack their column, before it is dropped."""
    recording.run(made)
    found = [each["before"]["name"] for each in recording.run(statement)]
    assert all(found.index(before) < found.index(table) for table, earlier in expected.items() for before in earlier)


def test_short_transactions_of_many_sessions_are_all_published(recording: Recording) -> None:
    site = recording.site
    failed: list[psycopg.Error] = []

    def work(session: int) -> None:
        try:
            with psycopg.connect(site.dsn, autocommit=True) as connection:
                for number in range(5):
                    connection.execute(f"CREATE TABLE s{session}_{number} (id int PRIMARY KEY)".encode())
        except psycopg.Error as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    records = recording.records()
    assert len(records) == 20
    published = {each["after"]["name"] for each in records if (found := creation_of(each)) and found.identities}
    assert published == captured(site).keys() - {"t"}
    assert len(published) >= 10  # nearly all, but a busy machine may hold one of them up


def test_a_session_that_creates_is_no_part_of_a_deadlock(recording: Recording) -> None:
    """The holder waits for a session that creates a table at the moment when the server looks for deadlocks."""
    site = recording.site
    site.run("INSERT INTO t VALUES (1)")
    with psycopg.connect(site.dsn) as holder, psycopg.connect(site.dsn) as other:
        holder.execute("SET deadlock_timeout = '100ms'")
        holder.execute("CREATE TABLE a (id int PRIMARY KEY)")
        other.execute("UPDATE t SET b = 1")
        errors: list[Exception] = []

        def wait() -> None:
            try:
                holder.execute("UPDATE t SET b = 2")
                holder.commit()
            except psycopg.Error as error:
                errors.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        other.execute("CREATE TABLE b (id int PRIMARY KEY)")  # tries for 300 ms
        other.commit()
        waiting.join()
        assert errors == []
    assert captured(site).keys() == {"a", "t"}


OTHER_TRIGGER = (
    "CREATE TABLE others (tag text); CREATE FUNCTION other() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO"
    " public.others VALUES (tg_tag); IF tg_tag = {tag} THEN {then}; END IF; END $$;"
    " CREATE EVENT TRIGGER {name} ON ddl_command_end EXECUTE FUNCTION other()"
)


@pytest.mark.parametrize("name", ["a_first", "z_last"])
def test_another_event_trigger_and_a_recursion_write_one_record(recording: Recording, name: str) -> None:
    site = recording.site
    recording.run(
        OTHER_TRIGGER.format(
            tag="'CREATE TABLE'", then="CREATE INDEX IF NOT EXISTS i ON public.others (tag)", name=name
        )
    )
    made = [each for each in recording.run("CREATE TABLE n (id int)") if each["after"]["name"] == "n"]
    assert [each["tag"] for each in made] == ["CREATE TABLE"]
    found = creation_of(made[0])
    assert found is not None
    assert found.identities
    tags = {str(tag) for (tag,) in site.run("SELECT tag FROM others")}
    assert {"CREATE TABLE", "ALTER PUBLICATION", "ALTER TABLE"} <= tags


@pytest.mark.parametrize("name", ["a_first", "z_last"])
def test_event_trigger_that_changes_the_new_table_is_recorded(recording: Recording, name: str) -> None:
    then = "ALTER TABLE public.n ADD COLUMN b int; INSERT INTO public.n VALUES (1, 2)"
    recording.run(OTHER_TRIGGER.format(tag="'CREATE TABLE'", then=then, name=name))
    records = recording.run("CREATE TABLE n (id int PRIMARY KEY)")
    creation = creation_of(next(each for each in records if each["tag"] == "CREATE TABLE"))
    assert creation is not None
    # a row that is there before ours is called is not in the log
    assert bool(creation.identities) == (name == "z_last")
    assert columns(records[-1]["after"]).keys() == {"id", "b"}


@pytest.mark.parametrize("refused", ["ALTER PUBLICATION", "ALTER TABLE"])
def test_event_trigger_that_refuses_ours_refuses_no_statement(recording: Recording, refused: str) -> None:
    site = recording.site
    site.run(
        "CREATE FUNCTION no() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'never'; END $$;"
        f" CREATE EVENT TRIGGER no ON ddl_command_start WHEN TAG IN ('{refused}') EXECUTE FUNCTION no()"
    )
    try:
        found = created(recording, "CREATE TABLE n (id int)")
        assert found == Creation(identities={}, why_not="it could not be published: never (P0001)")
        assert "n" not in captured(site)
        site.run("INSERT INTO n VALUES (1); UPDATE n SET id = 2")
    finally:
        site.run("DROP EVENT TRIGGER no")


def test_thousand_tables_cost(recording: Recording) -> None:
    site = recording.site
    site.run("CREATE SCHEMA plain")

    def duration(schema: str) -> float:
        began = time.monotonic()
        site.run(
            f"DO $$ BEGIN FOR i IN 1..300 LOOP EXECUTE format('CREATE TABLE {schema}.m%s (id int PRIMARY KEY)', i); END LOOP;"
            " END $$"
        )
        taken = time.monotonic() - began
        site.run(f"DO $$ BEGIN FOR i IN 1..300 LOOP EXECUTE format('DROP TABLE {schema}.m%s', i); END LOOP; END $$")
        return taken

    durations = [(duration("plain"), duration("public")) for _ in range(3)]
    assert min(with_it for _, with_it in durations) < 2 * min(without for without, _ in durations)
    assert all(
        (found := creation_of(each)) and found.identities
        for each in recording.records()
        if each["before"] is None and each["after"]["owner"] == "public"
    )


# ---------------------------------------------------------------------- up


SELECT = "headrace.databases.postgres.source.database.select_tables"


def test_up_keeps_a_table_that_is_published_while_it_plans(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = recording.site

    def slowly(*arguments: Any) -> Any:
        found = select_tables(*arguments)
        monkeypatch.setattr(SELECT, select_tables)
        site.run("CREATE TABLE n (id int PRIMARY KEY)")
        return found

    monkeypatch.setattr(SELECT, slowly)
    assert site.prepare(DDL) == ()
    assert captured(site)["n"].is_made
    site.run("DROP TABLE n")
    monkeypatch.setattr(SELECT, slowly)
    assert site.source.uncaptured("topo", DDL) == ()


def test_table_that_is_dropped_while_it_is_listed_is_known_as_made(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its CREATE TABLE is on its way: an apply process must not copy it instead."""
    site = recording.site
    site.prepare(DDL)
    site.run("CREATE TABLE n (id int PRIMARY KEY)")

    def dropping(*arguments: Any) -> bool | None:
        site.run("DROP TABLE IF EXISTS n")
        return may_read(*arguments)

    monkeypatch.setattr("headrace.databases.postgres.catalog.source_tables.may_read", dropping)
    assert captured(site)["n"].is_made


def test_objects_that_publish_nothing_are_completed_and_no_table_counts_as_changed(recording: Recording) -> None:
    site = recording.site
    site.run("DROP TABLE headrace_ddl.rule, headrace_ddl.made; DROP FUNCTION headrace_ddl.publish")
    recording.run("CREATE TABLE old (id int)")
    done = site.prepare(DDL)
    assert [each.split()[0] for each in done] == ["CREATE", "INSERT", "ALTER"]
    assert recording.records() == []
    assert {name: each.is_made for name, each in captured(site).items()} == {"old": False, "t": False}
    assert created(recording, "CREATE TABLE n (id int)").identities


def test_an_administrators_source_publishes_no_new_table(site: Site) -> None:
    site.run(f"DROP ROLE IF EXISTS {USER}; CREATE ROLE {USER} LOGIN REPLICATION PASSWORD 'secret'; {TABLE}")
    site.run(f"GRANT SELECT ON t TO {USER}")
    dsn = conninfo.make_conninfo(site.dsn, user=USER, password="secret")
    admin = PostgresSourceAdmin(site.dsn, dsn, site="")
    try:
        with closing(PostgresSource(dsn, has_admin=True)) as source:
            (found,) = [each for each in admin.preflight("topo", DDL) if "CREATE TABLE" in each.problem]
            assert not found.is_error
            # it was published without an administrator first
            site.prepare(DDL)
            site.run("CREATE TABLE made (id int PRIMARY KEY)")
            assert captured(site)["made"].is_made
            slot = slot_of(site)
            admin = PostgresSourceAdmin(site.dsn, dsn, site=str(site.user.info.dbname))
            assert "DELETE FROM headrace_ddl.rule" in admin.prepare("topo", DDL, was_source=True)
            assert admin.prepare("topo", DDL, was_source=True) == ()
            recording = Recording(site)
            recording.records()
            assert "made" not in recording.one("CREATE TABLE n (id int PRIMARY KEY)")
            assert source.uncaptured("topo", DDL) == ("public.n",)
            assert slot == slot_of(site)
            assert not any(each.is_made for each in source.captured("topo"))  # it may not read that
            assert all(step.is_done or "ADD TABLE" in step.statement for step in source.plan("topo", DDL))
            site.source.remove("topo")
    finally:
        site.run(f"DROP OWNED BY {USER} CASCADE; DROP ROLE {USER}")
