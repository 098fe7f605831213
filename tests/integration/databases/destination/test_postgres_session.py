"""Behaviour that only PostgreSQL has: TRUNCATE over foreign keys, origins, plans, tables altered meanwhile,
descriptions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from headrace.base.errors import DataError, UnfitTableError
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import TruncatedTable, Write
from headrace.databases.postgres import pipeline as destination_pipeline
from headrace.databases.postgres.destination.server_session import write_plans
from headrace.databases.postgres.destination.writing import writes
from headrace.databases.postgres.destination.writing.writes import WritePlan, plan_write
from headrace.databases.postgres.origins import tag_of_origin
from tests.support.databases.destination_site import Site
from tests.support.session.server_versions import on_every_version
from tests.support.values.writes import delete, insert, int4, int8, update, version_of

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1"])
def test_labels_never_make_the_data_fail(
    pg_destination: EmbeddedServer, fresh_database: Callable[[EmbeddedServer], str], encoding: str
) -> None:
    dsn = fresh_database(pg_destination)
    if encoding != "UTF8":
        name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
        with psycopg.connect(pg_destination.dsn(), autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {name}")
            admin.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    site = Site(dsn)
    table = site.table("CREATE TABLE t (id int PRIMARY KEY)")
    for number, label in enumerate(["order 7", "заказ 4711", "a\x00b", "it's \\x41"]):
        site.session.begin()
        site.session.write([insert(table, [(int4(number),)])])
        site.session.commit([], 0, [label])
        site.session.rollback()
    assert site.rows() == [(0,), (1,), (2,), (3,)]
    site.close()


# --------------------------------------------------------------------------- TRUNCATE


def test_truncate_leaves_and_names_a_table_that_refers_to_it_only_here(site):
    parent = site.table("CREATE TABLE t (id int PRIMARY KEY)")
    site.user.execute("CREATE TABLE only_here (id int REFERENCES t)")
    site.user.execute("INSERT INTO t VALUES (1); INSERT INTO only_here VALUES (1)")
    site.session.begin()
    with pytest.raises(
        DataError, match=r'Table "only_here" references "t", and did not travel in the same TRUNCATE'
    ) as caught:
        site.session.truncate([TruncatedTable(table=parent)], restart_identity=False)
    site.session.rollback()
    assert "foreign key" in caught.value.hint
    assert site.rows("SELECT id FROM only_here") == site.rows("SELECT id FROM t") == [(1,)]


@on_every_version("site")
def test_tables_that_reference_each_other_are_truncated_in_one_statement(site):
    parent = site.table("CREATE TABLE t (id int PRIMARY KEY)")
    child = site.table("CREATE TABLE child (id int REFERENCES t, number int GENERATED ALWAYS AS IDENTITY)", "child")
    site.user.execute("INSERT INTO t VALUES (1); INSERT INTO child VALUES (1)")
    site.session.begin()
    site.session.truncate([TruncatedTable(table=parent), TruncatedTable(table=child)], restart_identity=True)
    site.session.commit([], 0)
    assert site.rows("SELECT id FROM child UNION ALL SELECT id FROM t") == []
    assert site.rows("INSERT INTO child VALUES (NULL) RETURNING number") == [(1,)]


# --------------------------------------------------------------------------- partitions, plans, chunks


@on_every_version("site")
def test_partitioned_table_is_written_as_one_table(site):
    table = site.table(
        "CREATE TABLE t (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (1000);"
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (1000) TO (10000)"
    )
    rows = [(int4(k), b"x") for k in range(3000)]
    assert site.commit(insert(table, rows)) == (3000,)
    assert site.commit(update(table, rows[:10], [(int4(5000 + k), b"y") for k in range(10)])) == (10,)
    assert site.rows("SELECT count(*) FROM t1") == [(990,)]
    assert site.commit(delete(table, rows[10:])) == (2990,)


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
def test_large_sets_are_written_in_chunks_with_one_count(site, monkeypatch, key):
    monkeypatch.setattr(writes, "CHUNK_BYTES", 1000)
    table = site.table(f"CREATE TABLE t (id int {key}, v text)")
    rows = [(int4(k), b"x" * (k % 300)) for k in range(150)]
    changed = [(k, b"y") for k, _ in rows]
    assert site.commit(insert(table, rows), update(table, rows, changed), delete(table, changed[:100])) == (
        150,
        150,
        100,
    )
    assert site.rows("SELECT count(*), min(v), max(v) FROM t") == [(50, "y", "y")]


@on_every_version("site")
def test_error_in_a_copy_of_many_blocks_is_the_servers_own(site):
    """The first row is refused while most of the data is still unsent."""
    table = site.table("CREATE TABLE t (id int PRIMARY KEY, v bytea)")
    site.commit(insert(table, [(int4(0), b"")]))
    with pytest.raises(DataError) as caught:
        site.commit(insert(table, [(int4(k), b"x" * 8000) for k in range(5000)]))
    assert caught.value.context["sqlstate"] == "23505"
    assert site.commit(insert(table, [(int4(1), b"")])) == (1,)


@on_every_version("site")
def test_prepared_statements_are_bounded(site, monkeypatch):
    monkeypatch.setattr(destination_pipeline, "PREPARED_MAX", 3)
    for number in range(6):
        table = site.table(f"CREATE TABLE t{number} (id int PRIMARY KEY)", f"t{number}")
        site.commit(insert(table, [(int4(1),)]), delete(table, [(int4(1),)]))
    own = [
        row[0]
        for row in site.session._transaction.connection.execute(
            "SELECT name FROM pg_prepared_statements WHERE name LIKE 'headrace%'"
        )
    ]
    assert len(own) == 3


def test_plans_are_bounded_and_those_in_use_are_kept(site_18, monkeypatch):
    """Each set of columns that changed together has its own plan."""
    table = site_18.table("CREATE TABLE t (id int PRIMARY KEY, a int, b int, c int)")
    row = [int4(1)] * 4
    site_18.commit(insert(table, [row]))
    planned: list[tuple[int, ...]] = []

    def plan(write: Write, *arguments: Any, **options: Any) -> WritePlan:
        planned.append(write.set_columns)
        return plan_write(write, *arguments, **options)

    monkeypatch.setattr("headrace.databases.postgres.destination.server_session.write_plans.PLANS_MAX", 3)
    monkeypatch.setattr("headrace.databases.postgres.destination.server_session.write_plans.plan_write", plan)
    kept, others = (1,), [(2,), (3,), (1, 2), (1, 3), (2, 3)]
    for sets in others:
        assert site_18.commit(update(table, [row], [row], sets=kept), update(table, [row], [row], sets=sets)) == (1, 1)
    assert planned == [kept, *others]
    site_18.commit(update(table, [row], [row], sets=others[0]))
    assert planned == [kept, *others, others[0]]


def test_statement_that_failed_to_prepare_is_prepared_again(site):
    """Covers the failing statement and those after it in the same round trip."""
    table = site.table("CREATE TABLE t (id int PRIMARY KEY, v int CHECK (v > 0))")
    for _ in range(2):
        with pytest.raises(DataError):
            site.commit(insert(table, [(int4(1), int4(0))]), delete(table, [(int4(1), int4(1))]))
    assert site.commit(insert(table, [(int4(1), int4(1))]), delete(table, [(int4(1), int4(1))])) == (1, 1)


# --------------------------------------------------------------------------- effects that the session must avoid


@on_every_version("site")
def test_foreign_keys_and_ordinary_triggers_do_not_run(site):
    site.user.execute("CREATE TABLE parent (id int PRIMARY KEY)")
    table = site.table(
        "CREATE TABLE t (id int PRIMARY KEY, p int REFERENCES parent);"
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    assert not table.ordered
    assert site.commit(insert(table, [(int4(1), int4(77))])) == (1,)
    site.user.execute("ALTER TABLE t ENABLE REPLICA TRIGGER refuse")
    assert site.session.describe("public", "t", fresh=True).ordered


@on_every_version("site")
def test_changes_are_marked_with_the_origin_that_carries_the_tag(site):
    table = site.table("CREATE TABLE t (id int PRIMARY KEY)")
    site.user.execute("CREATE PUBLICATION p FOR TABLE t")
    site.user.execute("SELECT pg_create_logical_replication_slot('origins', 'pgoutput')")
    site.commit(insert(table, [(int4(1),)]))
    site.user.execute("INSERT INTO t VALUES (2)")
    messages = [
        bytes(row[0])
        for row in site.user.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes('origins', NULL, NULL, 'proto_version', '1',"
            " 'publication_names', 'p')"
        )
    ]
    assert sum(b"headrace:top/a/0:1f\0" in message for message in messages if message[:1] == b"O") == 1
    assert sum(message[:1] == b"O" for message in messages) == 1


def test_changes_of_an_apply_process_without_a_tag_have_a_null_tag(site):
    table = site.table("CREATE TABLE t (id int PRIMARY KEY)")
    site.user.execute("CREATE PUBLICATION p FOR TABLE t")
    site.user.execute("SELECT pg_create_logical_replication_slot('origins', 'pgoutput')")
    untagged = site.open(server=1, tag=b"")
    untagged.begin()
    untagged.write([insert(table, [(int4(1),)])])
    untagged.commit([], 0)
    untagged.close()
    (origin,) = [
        bytes(row[0])
        for row in site.user.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes('origins', NULL, NULL, 'proto_version', '1',"
            " 'publication_names', 'p')"
        )
        if bytes(row[0])[:1] == b"O"
    ]
    assert tag_of_origin(origin[9:-1].decode()) is None


@on_every_version("site")
def test_every_server_and_tag_has_its_own_origin(site):
    others = [site.open(server=1), site.open(server=2, tag=b"\xab\xcd")]
    names = {
        row[0]
        for row in site.user.execute("SELECT roname FROM pg_replication_origin WHERE roname LIKE 'headrace:top/%'")
    }
    assert {"headrace:top/a/0:1f", "headrace:top/a/1:1f", "headrace:top/a/2:abcd"} <= names
    for session in others:
        session.close()


# --------------------------------------------------------------------------- tables altered meanwhile


@on_every_version("site")
def test_table_altered_during_a_session_pauses_it_and_the_session_resumes(site):
    table = site.table("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    row = (int4(1), int4(2), int4(3))
    site.commit(insert(table, [row]))
    site.user.execute("ALTER TABLE t DROP COLUMN b")
    with pytest.raises(UnfitTableError):
        site.commit(update(table, [row], [row]))
    assert site.session.missing_alter(version_of(table)).startswith('ALTER TABLE "public"."t" ADD COLUMN "b" int4;')
    with pytest.raises(UnfitTableError) as caught:
        site.commit(update(table, [row], [row]))
    assert "ADD COLUMN" in caught.value.hint
    site.user.execute("ALTER TABLE t ADD COLUMN b int DEFAULT 3")
    fresh = site.session.describe("public", "t", fresh=True)
    assert site.commit(update(fresh, [row], [row], version=version_of(table))) == (1,)


def test_altered_type_names_the_alter_and_the_function_that_replaces_it(site):
    table = site.table("CREATE TABLE t (id int PRIMARY KEY, a int)")
    row = (int4(1), int4(2))
    site.commit(insert(table, [row]), update(table, [row], [row]))
    site.user.execute("ALTER TABLE t ALTER COLUMN a TYPE text USING 'no. ' || a")
    with pytest.raises(UnfitTableError):
        site.commit(update(table, [row], [row]))
    alter, _, function = site.session.missing_alter(version_of(table)).partition("; or, if these rows are older")
    assert alter.startswith(
        'ALTER TABLE "public"."t" ALTER COLUMN "a" TYPE int4; -- then headrace verify FILE public.t and the fix that it'
        " prints:"
    )
    start = function[function.index("CREATE FUNCTION") :].replace(" ...;", "")
    assert start == 'CREATE FUNCTION headrace."public.t.a"(int4) RETURNS "pg_catalog"."text"'
    site.user.execute(f"{start} LANGUAGE sql IMMUTABLE AS $$ SELECT 'no. ' || $1 $$")
    now = site.session.describe("public", "t", fresh=True)
    changed = (int4(1), int4(3))
    assert site.commit(update(now, [row], [changed], version=version_of(table))) == (1,)
    assert site.rows() == [(1, "no. 3")]
    assert site.commit(delete(now, [row], version=version_of(table))) == (0,)
    assert site.commit(delete(now, [changed], version=version_of(table))) == (1,)


@pytest.mark.parametrize("count", [1, writes.COPY_ROWS_MIN], ids=["set", "copy"])
@pytest.mark.parametrize(
    ("kind", "value", "alter"),
    [
        ("int", "5", "ALTER a TYPE text USING 'no. ' || a"),
        ("float8", "2.6", "ALTER a TYPE bigint"),
        ("bigint", "5", "ALTER a TYPE float8"),
        ("timestamp", "'2026-01-02 03:04'", "ALTER a TYPE date"),
        ("numeric(8,2)", "1.25", "ALTER a TYPE numeric(8,1)"),
        ("text", "'old'", "RENAME a TO a_old; ALTER TABLE t ADD a text"),
    ],
)
def test_statements_prepared_for_another_definition_write_nothing(site, kind, value, alter, count):
    """Many would succeed: through an assignment cast, because values have equal length, or because the name exists."""
    table = site.table(f"CREATE TABLE t (id int PRIMARY KEY, a {kind})")
    found = site.binary(f"{value}::{kind}")
    site.commit(insert(table, [(int4(k), found) for k in range(count)]))
    site.user.execute(f"TRUNCATE t; ALTER TABLE t {alter}")
    # Where the server refuses the bytes, the rows are taken for wrong until the table is described again for a single
    # one.
    with pytest.raises((UnfitTableError, DataError)):
        site.commit(insert(table, [(int4(-k), found) for k in range(1, count + 1)]))
    assert site.rows() == []


@pytest.mark.parametrize("count", [1, writes.COPY_ROWS_MIN], ids=["set", "copy"])
@pytest.mark.parametrize(
    "away",
    [
        "ALTER TABLE t RENAME TO t_old",
        "CREATE SCHEMA old; ALTER TABLE t SET SCHEMA old",
        "ALTER SCHEMA public RENAME TO old; CREATE SCHEMA public",
    ],
)
def test_statements_prepared_for_a_table_do_not_write_its_replacement(site, away, count):
    """An operator who rebuilds a table (with pg_repack, or as a partitioned one) swaps the two in one transaction."""
    table = site.table("CREATE TABLE t (id int PRIMARY KEY, a numeric(8,2))")
    found = site.binary("1.25::numeric(8,2)")
    site.commit(insert(table, [(int4(k), found) for k in range(count)]))
    site.user.execute(f"BEGIN; {away}; CREATE TABLE public.t (id int PRIMARY KEY, a numeric(8,1)); COMMIT")
    with pytest.raises((UnfitTableError, DataError)):
        site.commit(insert(table, [(int4(-k), found) for k in range(1, count + 1)]))
    assert site.rows("SELECT * FROM public.t") == []


def test_definition_is_checked_once_a_transaction_and_after_a_savepoint(site):
    table = site.table("CREATE TABLE t (id int PRIMARY KEY, a int)")
    site.session.begin()
    site.session.write([insert(table, [(int4(1), int4(1))])])
    site.user.execute("SET lock_timeout = '100ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        site.user.execute("ALTER TABLE t ALTER a TYPE text")
    site.session.commit([], 0)
    site.session.begin()
    site.session.savepoint()
    site.session.write([insert(table, [(int4(2), int4(2))])])
    site.session.rollback_to_savepoint()
    site.session._transaction.send_pending()
    site.user.execute("ALTER TABLE t ALTER a TYPE text")  # the savepoint's rollback released the lock
    with pytest.raises(UnfitTableError):
        site.session.write([insert(table, [(int4(2), int4(2))])])
    site.session.rollback()
    assert site.rows() == [(1, "1")]


def test_name_that_a_trigger_misses_refuses_rows_and_names_the_function(site):
    """Apply's sessions have an empty search_path."""
    site.user.execute("CREATE TABLE seen (id int); CREATE TABLE t (id int PRIMARY KEY, a int)")
    site.user.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO seen VALUES (NEW.id); RETURN"
        " NEW; END'"
    )
    site.user.execute("CREATE TRIGGER note BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION note()")
    table = site.table("ALTER TABLE t ENABLE ALWAYS TRIGGER note")
    row = [(int4(1), int4(2))]
    for _ in range(2):
        with pytest.raises(
            DataError, match=r"INSERT of public\.t: .* in PL/pgSQL function public\.note\(\).*search_path"
        ) as caught:
            site.commit(insert(table, row))
        assert caught.value.context["sqlstate"] == "42P01"
    site.user.execute(
        "CREATE OR REPLACE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.seen VALUES"
        " (NEW.id); RETURN NEW; END'"
    )
    assert site.commit(insert(table, row)) == (1,)
    assert site.rows("SELECT * FROM seen") == [(1,)]


def test_deferred_trigger_that_misses_a_name_refuses_the_transaction(site):
    site.user.execute("CREATE TABLE seen (id int); CREATE TABLE t (id int PRIMARY KEY)")
    site.user.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO seen VALUES (NEW.id); RETURN"
        " NEW; END'"
    )
    site.user.execute(
        "CREATE CONSTRAINT TRIGGER note AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION"
        " note()"
    )
    table = site.table("ALTER TABLE t ENABLE ALWAYS TRIGGER note")
    with pytest.raises(DataError, match=r"in PL/pgSQL function public\.note\(\).*search_path"):
        site.commit(insert(table, [(int4(1),)]))


def test_wrong_statement_of_apply_names_its_table_and_is_a_defect(site, monkeypatch):
    table = site.table("CREATE TABLE t (id int PRIMARY KEY, a int)")
    site.commit(insert(table, [(int4(1), int4(2))]))

    def planned(*arguments, **named):
        made = plan_write(*arguments, **named)
        return replace(
            made,
            statements=tuple(replace(each, sql=each.sql.replace("WHERE", "WHERE ) AND")) for each in made.statements),
        )

    monkeypatch.setattr(write_plans, "plan_write", planned)
    with pytest.raises(
        DataError, match=r"UPDATE of public\.t: writing: syntax error .*a defect of Headrace: report it"
    ) as caught:
        site.commit(update(table, [(int4(1), int4(2))], [(int4(1), int4(3))]))
    assert caught.value.context["table"] == "public.t"


def test_dropped_and_recreated_table_is_found_again(site):
    table = site.table("CREATE TABLE t (id int PRIMARY KEY)")
    site.commit(insert(table, [(int4(1),)]))
    site.user.execute("DROP TABLE t")
    with pytest.raises(UnfitTableError):
        site.commit(insert(table, [(int4(2),)]))
    again = site.table("CREATE TABLE t (id int PRIMARY KEY)")
    assert site.commit(insert(again, [(int4(3),)])) == (1,)


# --------------------------------------------------------------------------- descriptions


@pytest.mark.parametrize(
    ("ddl", "serialise", "ordered", "key", "unique"),
    [
        ("CREATE TABLE t (a int PRIMARY KEY, b int)", False, False, (0,), {(0,)}),
        ("CREATE TABLE t (a int, b int NOT NULL UNIQUE)", False, False, (1,), {(1,)}),
        ("CREATE TABLE t (a int PRIMARY KEY, b int UNIQUE)", False, True, (0,), {(0,), (1,)}),
        (
            "CREATE TABLE t (a int, b int, PRIMARY KEY (b, a)); CREATE UNIQUE INDEX ON t (b, a)",
            False,
            False,
            (1, 0),
            {(1, 0)},
        ),
        (
            "CREATE TABLE t (a int PRIMARY KEY, b int); CREATE UNIQUE INDEX ON t (b) WHERE b > 0",
            True,
            True,
            (0,),
            {(0,)},
        ),
        ("CREATE TABLE t (a int PRIMARY KEY, b int); CREATE UNIQUE INDEX ON t ((b + 1))", True, True, (0,), {(0,)}),
        ("CREATE TABLE t (a int NOT NULL, b int, UNIQUE (a, b))", False, False, (0, 1), {(0, 1)}),
        ("CREATE TABLE t (a int, b int UNIQUE)", True, False, (), {(1,)}),
        (
            "CREATE TABLE t (a int NOT NULL, b int, c int NOT NULL, d int NOT NULL, UNIQUE (a, b), UNIQUE (a, c, d))",
            False,
            True,
            (0, 2, 3),
            {(0, 1), (0, 2, 3)},
        ),
        ("CREATE TABLE t (a int PRIMARY KEY, b int UNIQUE NULLS NOT DISTINCT)", True, True, (0,), {(0,)}),
        ("CREATE TABLE t (a int PRIMARY KEY, b int UNIQUE DEFERRABLE)", True, True, (0,), {(0,)}),
        ("CREATE TABLE t (a int PRIMARY KEY, b int4range, EXCLUDE USING gist (b WITH &&))", True, True, (0,), {(0,)}),
        ("CREATE TABLE t (a interval PRIMARY KEY, b int)", True, False, (0,), {(0,)}),
        (
            "CREATE TABLE t (a int PRIMARY KEY, b int); CREATE UNIQUE INDEX ON t (a) INCLUDE (b)",
            False,
            False,
            (0,),
            {(0,)},
        ),
        (
            "CREATE TABLE t (a int, b int) PARTITION BY LIST (a); CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1);"
            "ALTER TABLE t ADD PRIMARY KEY (a)",
            False,
            False,
            (0,),
            {(0,)},
        ),
        (
            "CREATE TABLE t (a int PRIMARY KEY, b int) PARTITION BY LIST (a); CREATE TABLE t1 PARTITION OF t FOR VALUES"
            " IN (1);CREATE UNIQUE INDEX ON t1 (b)",
            True,
            True,
            (0,),
            {(0,)},
        ),
    ],
)
def test_uniqueness_is_described(site_18, ddl, serialise, ordered, key, unique):
    table = site_18.table(ddl)
    assert (table.serialise, table.ordered, table.key, set(table.unique_keys)) == (serialise, ordered, key, unique)


def test_foreign_keys_are_described_from_both_ends_including_partitions(site_18):
    site = site_18
    site.user.execute("""
        CREATE TABLE orders (id bigint, part int, number int UNIQUE, PRIMARY KEY (id, part));
        CREATE TABLE split (id int PRIMARY KEY) PARTITION BY LIST (id);
        CREATE TABLE split_1 PARTITION OF split FOR VALUES IN (1);
        CREATE TABLE lines (id int PRIMARY KEY, order_part int, order_id int, above int REFERENCES lines, split int REFERENCES split, leaf int REFERENCES split_1,
            FOREIGN KEY (order_part, order_id) REFERENCES orders (part, id));
        CREATE TABLE payments (id int, number int REFERENCES orders (number)) PARTITION BY LIST (id);
        CREATE TABLE payments_1 PARTITION OF payments FOR VALUES IN (1);
        ALTER TABLE payments_1 ADD FOREIGN KEY (id) REFERENCES lines;
    """)
    found = {
        name: site.session.describe("public", name, fresh=True) for name in ("orders", "split", "lines", "payments")
    }
    references = {
        name: {(key.columns, key.name, key.referred_columns) for key in table.references}
        for name, table in found.items()
    }
    assert references == {
        "orders": set(),
        "split": set(),
        "lines": {
            (("order_part", "order_id"), "orders", ("part", "id")),
            (("above",), "lines", ("id",)),
            (("split",), "split", ("id",)),
            (("leaf",), "split", ("id",)),
        },
        "payments": {(("number",), "orders", ("number",)), (("id",), "lines", ("id",))},
    }
    assert {name: set(table.referred) for name, table in found.items()} == {
        "orders": {("id", "part"), ("number",)},
        "split": {("id",)},
        "lines": {("id",)},
        "payments": set(),
    }


def test_views_are_not_described_as_tables(site):
    site.user.execute("CREATE VIEW t AS SELECT 1 AS a")
    assert site.session.describe("public", "t", fresh=True) is None


def test_strange_names_are_quoted(site):
    site.user.execute('CREATE SCHEMA "My ""S"""')
    site.user.execute('CREATE TABLE "My ""S"""."a.b %s" ("Id" int PRIMARY KEY, "%x; --" text, "sel""ect" date[])')
    table = site.session.describe('My "S"', "a.b %s")
    rows = [(int4(1), b"x", site.binary("'{}'::date[]"))]
    assert site.commit(insert(table, rows), update(table, rows, rows), delete(table, rows)) == (1, 1, 1)


def test_wide_tables_are_written(site):
    columns = ", ".join(f"c{k} int8" for k in range(800))
    table = site.table(f"CREATE TABLE t (id int8 PRIMARY KEY, {columns})")
    rows = [[int8(k)] * 801 for k in range(50)]
    assert site.commit(insert(table, rows), update(table, rows, rows)) == (50, 50)
