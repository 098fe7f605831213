"""Foreign keys that are checked at the destination: each line of the table in docs/reference/keys.md, from one real server's log
to another.
"""

from __future__ import annotations

import threading

import pytest

from headrace.databases.ports import Instantiation, Write
from headrace.databases.postgres.catalog.destination_tables import CatalogTable
from headrace.databases.postgres.destination.writing import foreign_keys
from headrace.lcr.scn import Scn
from headrace.rules.table_settings import TableSettings
from tests.support.apply.apply_engine import APPLY, TOPOLOGY
from tests.support.session.matrices import cases, values
from tests.support.ways.postgres_pair import Pair

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

CHECKED = TableSettings(check_foreign_keys=True)
PARENT = "CREATE TABLE o (id int PRIMARY KEY, v int)"
CHILD = (
    "CREATE TABLE p (id int PRIMARY KEY, o int REFERENCES o ON DELETE CASCADE ON UPDATE CASCADE DEFERRABLE"
    " INITIALLY DEFERRED)"
)
TABLES = f"{PARENT}; {CHILD}"


@pytest.fixture
def pair(pair: Pair) -> Pair:
    pair.set(CHECKED)
    return pair


HOLD = {
    "parents first in one transaction": [
        "BEGIN; INSERT INTO o VALUES (1), (2); INSERT INTO p VALUES (1, 1), (2, 2); COMMIT"
    ],
    "parents first in several": ["INSERT INTO o VALUES (1), (2)", "INSERT INTO p VALUES (1, 1), (2, 2), (3, NULL)"],
    "children first in one transaction": ["BEGIN; INSERT INTO p VALUES (1, 1); INSERT INTO o VALUES (1); COMMIT"],
    "a child gets another parent, and its first one goes": [
        "INSERT INTO o VALUES (1), (2)",
        "INSERT INTO p VALUES (1, 1)",
        "UPDATE p SET o = 2",
        "DELETE FROM o WHERE id = 1",
    ],
    "ON DELETE CASCADE at the source": [
        "INSERT INTO o VALUES (1), (2)",
        "INSERT INTO p VALUES (1, 1), (2, 2)",
        "DELETE FROM o WHERE id = 1",
    ],
    "ON UPDATE CASCADE at the source": [
        "INSERT INTO o VALUES (1)",
        "INSERT INTO p VALUES (1, 1), (2, 1)",
        "UPDATE o SET id = 5",
    ],
    "a parent that goes and comes in one transaction": [
        "INSERT INTO o VALUES (1)",
        "INSERT INTO p VALUES (1, 1)",
        "BEGIN; UPDATE p SET o = NULL; DELETE FROM o; INSERT INTO o VALUES (1); UPDATE p SET o = 1; COMMIT",
    ],
    "TRUNCATE of both": [
        "INSERT INTO o VALUES (1)",
        "INSERT INTO p VALUES (1, 1)",
        "TRUNCATE o, p",
        "INSERT INTO o VALUES (2)",
        "INSERT INTO p VALUES (1, 2)",
    ],
}


@pytest.mark.parametrize("identity", values(["DEFAULT", "FULL"], "DEFAULT"))
@pytest.mark.parametrize(
    "statements", cases(HOLD, core=HOLD.keys() - {"parents first in several", "ON DELETE CASCADE at the source"})
)
def test_foreign_keys_that_the_source_has_checked_hold_here(pair: Pair, statements: list[str], identity: str) -> None:
    pair.create(
        f"{TABLES}; ALTER TABLE o REPLICA IDENTITY {identity}; ALTER TABLE p REPLICA IDENTITY {identity}", TABLES
    )
    pair.run(*statements)
    pair.apply()
    assert pair.errors() == ()
    for table in ("o", "p"):
        pair.assert_same(f"SELECT * FROM {table} ORDER BY 1")


def test_tables_that_reference_each_other_and_themselves_are_applied(pair: Pair) -> None:
    circle = (
        "CREATE TABLE o (id int PRIMARY KEY, p int, o int REFERENCES o DEFERRABLE INITIALLY DEFERRED); CREATE TABLE p"
        " (id int PRIMARY KEY, o int REFERENCES"
        " o DEFERRABLE INITIALLY DEFERRED); ALTER TABLE o ADD FOREIGN KEY (p) REFERENCES p DEFERRABLE INITIALLY"
        " DEFERRED"
    )
    pair.create(circle, circle)
    pair.run(
        *(
            f"BEGIN; INSERT INTO o VALUES ({n}, {n}, {max(n - 1, 1)}); INSERT INTO p VALUES ({n}, {n}); COMMIT"
            for n in range(1, 301)
        )
    )
    pair.run("BEGIN; UPDATE o SET o = NULL, p = NULL; DELETE FROM p WHERE id > 20; DELETE FROM o WHERE id > 20; COMMIT")
    pair.apply(parallelism=4)
    assert pair.errors() == ()
    pair.assert_same("SELECT id, o FROM p ORDER BY 1")


def test_composite_key_with_one_column_changed_or_null_is_applied(pair: Pair) -> None:
    tables = (
        "CREATE TABLE o (a int, b int, PRIMARY KEY (a, b)); CREATE TABLE p (id int PRIMARY KEY, a int, b int,"
        " FOREIGN KEY (a, b) REFERENCES o)"
    )
    pair.create(tables, tables)
    pair.run(
        "INSERT INTO o VALUES (1, 1), (1, 2)",
        "INSERT INTO p VALUES (1, 1, 1), (2, 9, NULL)",
        "UPDATE p SET b = 2 WHERE id = 1",
    )
    engine = pair.apply()
    assert pair.errors() == ()
    pair.there.execute(
        "SET session_replication_role = replica; DELETE FROM o WHERE b = 1; SET session_replication_role = origin"
    )
    pair.run("UPDATE p SET b = 1 WHERE id = 1")
    pair.more(engine)
    assert [error.conflict_type for error in pair.errors()] == ["foreign_key"]


@pytest.mark.parametrize("at_the_source", values(["MATCH SIMPLE", "MATCH FULL"], "MATCH SIMPLE"))
def test_match_full_is_checked_as_match_simple(pair: Pair, at_the_source: str) -> None:
    tables = (
        "CREATE TABLE o (a int, b int, PRIMARY KEY (a, b)); CREATE TABLE p (id int PRIMARY KEY, a int, b int,"
        " FOREIGN KEY (a, b) REFERENCES o {})"
    )
    pair.create(tables.format(at_the_source), tables.format("MATCH FULL"))
    pair.run(
        "INSERT INTO o VALUES (1, 1), (1, 2)",
        "INSERT INTO p VALUES (1, 1, 1), (2, NULL, NULL)",
        "UPDATE p SET b = 2 WHERE id = 1",
    )
    if at_the_source == "MATCH SIMPLE":  # with MATCH FULL the source itself refuses such a row
        pair.run(
            "INSERT INTO p VALUES (3, 9, NULL)",
            "BEGIN; INSERT INTO p VALUES (4, 1, 2); UPDATE p SET b = NULL WHERE id = 4; COMMIT",
        )
    engine = pair.apply()
    assert pair.errors() == ()
    pair.assert_same("SELECT * FROM p ORDER BY 1")
    pair.there.execute(
        "SET session_replication_role = replica; DELETE FROM o WHERE b = 1; SET session_replication_role = origin"
    )
    pair.run("INSERT INTO p VALUES (5, 1, 1)", "INSERT INTO p VALUES (6, 1, 2)", "UPDATE p SET b = 1 WHERE id = 1")
    pair.more(engine)
    assert [error.conflict_type for error in pair.errors()] == ["foreign_key", "foreign_key"]
    assert pair.there.execute("SELECT id FROM p WHERE b IS NOT NULL ORDER BY 1").fetchall() == [(1,), (6,)]


BROKEN = {
    "a row that refers to nothing": ("DELETE FROM o WHERE id = 2", ["INSERT INTO p VALUES (7, 2)"]),
    "a row that refers to nothing from now on": ("DELETE FROM o WHERE id = 2", ["UPDATE p SET o = 2"]),
    "a parent that has a child here": ("INSERT INTO p VALUES (99, 2)", ["DELETE FROM o WHERE id = 2"]),
    "a parent whose key changes that has a child here": (
        "INSERT INTO p VALUES (99, 2)",
        ["UPDATE o SET id = 5 WHERE id = 2"],
    ),
}


@pytest.mark.parametrize("identity", values(["DEFAULT", "FULL"], "FULL"))
@pytest.mark.parametrize(("here", "statements"), BROKEN.values(), ids=BROKEN.keys())
def test_violation_goes_into_the_error_queue_and_nothing_else_waits(
    pair: Pair, here: str, statements: list[str], identity: str
) -> None:
    pair.create(
        f"{TABLES}; ALTER TABLE o REPLICA IDENTITY {identity}; ALTER TABLE p REPLICA IDENTITY {identity}", TABLES
    )
    pair.run("INSERT INTO o VALUES (1, 0), (2, 0), (3, 0)", "INSERT INTO p VALUES (1, 1)")
    engine = pair.apply()
    pair.there.execute(here)
    pair.run(*statements, "UPDATE o SET v = 7 WHERE id = 3", "INSERT INTO p VALUES (50, 3)")
    pair.more(engine)
    (error,) = pair.errors()
    assert (error.conflict_type, error.sqlstate) == ("foreign_key", "23503")
    assert "public.o" in error.message
    assert [(met.kind, met.outcome, met.error_number) for met in pair.destination.conflicts(TOPOLOGY, last=10)] == [
        ("foreign_key", "ERROR QUEUE", error.number)
    ]
    assert pair.there.execute("SELECT count(*) FROM p WHERE id = 50").fetchone() == (1,)
    assert pair.there.execute(
        "SELECT count(*) FROM p WHERE o IS NOT NULL AND NOT EXISTS (SELECT FROM o WHERE o.id = p.o)"
    ).fetchone() == (0,)


def test_only_listed_tables_are_checked(pair: Pair) -> None:
    pair.set(TableSettings(check_foreign_keys=True, foreign_keys_of=(("public", "q"),)))
    tables = f"{TABLES}; CREATE TABLE q (id int PRIMARY KEY, o int REFERENCES o)"
    pair.create(tables, tables)
    pair.run("INSERT INTO o VALUES (1)")
    engine = pair.apply()
    pair.there.execute("DELETE FROM o")
    pair.run("INSERT INTO p VALUES (1, 1)", "INSERT INTO q VALUES (1, 1)")
    pair.more(engine)
    assert [error.conflict_type for error in pair.errors()] == ["foreign_key"]
    assert pair.there.execute("SELECT count(*) FROM p").fetchone() == (1,)


@pytest.mark.parametrize("away", ["o", "p"])
@pytest.mark.parametrize("state", values(["COPYING", "COPIED", "FAILED", "JOINING"], "JOINING"))
def test_table_copied_beside_others_is_not_checked_until_it_has_caught_up(pair: Pair, away: str, state: str) -> None:
    """Its rows are older or newer than theirs: a referenced row may not have arrived yet, or may be deleted already."""
    pair.create(TABLES, TABLES)
    pair.run("INSERT INTO o VALUES (1), (2)", "INSERT INTO p VALUES (2, 2)")
    engine = pair.apply()
    progress = pair.destination.progress(TOPOLOGY, APPLY)
    assert progress is not None
    pair.destination.record_instantiation(
        TOPOLOGY,
        APPLY,
        progress.epoch,
        Instantiation(source="dbs1", identity=away, owner="public", name=away, scn=Scn(1), state=state),
    )
    pair.there.execute("UPDATE headrace.apply_process SET ahead = 1::bigint << 62")
    pair.there.execute("DELETE FROM o WHERE id = 1; INSERT INTO p VALUES (77, 2)")
    pair.run("INSERT INTO p VALUES (1, 1)", "UPDATE p SET o = 1", "DELETE FROM o WHERE id = 2")
    pair.more(engine)
    assert pair.errors() == ()
    assert pair.there.execute("SELECT * FROM p ORDER BY 1").fetchall() == [(1, 1), (2, 1), (77, 2)]
    pair.there.execute(
        "UPDATE headrace.apply_process SET ahead = 0; UPDATE headrace.instantiation SET state = 'JOINING'"
    )
    pair.run("INSERT INTO p VALUES (4, 1)")
    pair.more(engine)
    assert [error.conflict_type for error in pair.errors()] == ["foreign_key"]


def test_values_beyond_the_held_ones_are_looked_up_in_the_table(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that was orphaned before is no error of the present writer."""
    monkeypatch.setattr(foreign_keys, "ROWS_MAX", 3)
    pair.create(TABLES, TABLES)
    pair.run("INSERT INTO o SELECT i, 0 FROM generate_series(1, 9) i")
    engine = pair.apply()
    pair.there.execute(
        "DELETE FROM o WHERE id = 9; SET session_replication_role = replica; INSERT INTO p VALUES (99, 77); RESET"
        " session_replication_role"
    )
    pair.run(
        "INSERT INTO p SELECT i, i FROM generate_series(1, 8) i",
        "INSERT INTO p SELECT i, 9 FROM generate_series(11, 20) i",
    )
    pair.more(engine)
    assert [error.conflict_type for error in pair.errors()] == ["foreign_key"]
    assert pair.there.execute("SELECT count(*) FROM p WHERE id <= 50").fetchone() == (8,)


INHERITED = (
    "CREATE TABLE o (id int PRIMARY KEY, v int); CREATE TABLE o2 () INHERITS (o); ALTER TABLE o2 REPLICA"
    " IDENTITY FULL; CREATE TABLE p (id int PRIMARY KEY, o int REFERENCES o); CREATE TABLE p2 () INHERITS (p)"
)
COMPUTED = (
    f"{PARENT}; CREATE TABLE p (id int PRIMARY KEY, v int, o int GENERATED ALWAYS AS (v * 2) STORED REFERENCES o)"
)
PARTITIONED = (
    "CREATE TABLE o (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE o1 PARTITION OF o FOR VALUES"
    " FROM (0) TO (10); CREATE TABLE o9 PARTITION OF o DEFAULT; CREATE TABLE p (id int PRIMARY KEY, o int)"
)
LESS_USUAL = {
    "a row of a table that inherits is none of the one that is referred to": (
        INHERITED,
        INHERITED,
        "DELETE FROM o WHERE id = 2; INSERT INTO o2 VALUES (2, 0)",
        ["INSERT INTO p VALUES (1, 2)"],
        ["foreign_key"],
    ),
    "a row of a table that inherits refers to nothing": (
        INHERITED,
        INHERITED,
        "INSERT INTO p2 VALUES (1, 2)",
        ["DELETE FROM o WHERE id = 2"],
        [],
    ),
    "the destination computes what refers": (
        COMPUTED,
        COMPUTED,
        "DELETE FROM o WHERE id = 4",
        ["INSERT INTO p VALUES (1, 1)", "UPDATE p SET v = 2"],
        ["foreign_key"],
    ),
    "a partition of the source is truncated": (
        PARTITIONED,
        "CREATE TABLE o (id int PRIMARY KEY); CREATE TABLE p (id int PRIMARY KEY, o int REFERENCES o)",
        "",
        ["INSERT INTO p VALUES (1, 2)", "TRUNCATE o1"],
        ["foreign_key"],
    ),
}


@pytest.mark.parametrize(
    ("here", "there", "broken", "statements", "expected"), LESS_USUAL.values(), ids=LESS_USUAL.keys()
)
def test_servers_checks_define_the_values_of_a_foreign_key(
    pair: Pair, here: str, there: str, broken: str, statements: list[str], expected: list[str]
) -> None:
    pair.create(here, there)
    pair.run("INSERT INTO o (id) VALUES (2), (4)")
    engine = pair.apply()
    pair.there.execute(broken)
    pair.run(*statements)
    pair.more(engine)
    assert [error.conflict_type for error in pair.errors()] == expected, [error.message for error in pair.errors()]


def test_large_values_are_not_held_until_the_commit(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_keys, "BYTES_MAX", 30_000)
    held: list[int] = []
    note = foreign_keys.ForeignKeyChecks.note

    def noted(checks: foreign_keys.ForeignKeyChecks, write: Write, catalog: CatalogTable) -> None:
        note(checks, write, catalog)
        held.append(sum(each.write.new.data.nbytes for each in checks.values if each.write.new is not None))

    monkeypatch.setattr(foreign_keys.ForeignKeyChecks, "note", noted)
    tables = f"{PARENT}; CREATE TABLE p (id int PRIMARY KEY, o int REFERENCES o, more text)"
    pair.create(tables, tables)
    pair.run(
        "INSERT INTO o VALUES (1)",
        "BEGIN; INSERT INTO p SELECT i, 1, repeat('x', 1000) FROM generate_series(1, 20) i; UPDATE p SET o = NULL;"
        " UPDATE p SET o = 1; COMMIT",
    )
    pair.apply()
    assert pair.errors() == ()
    pair.assert_same("SELECT id, o FROM p ORDER BY 1")
    assert held
    assert max(held) <= 30_000


@pytest.mark.parametrize(
    ("by_user", "statement"),
    cases(
        {
            "a user deletes the parent": ("DELETE FROM o WHERE id = 2", "INSERT INTO p VALUES (7, 2)"),
            "a user adds a child": ("INSERT INTO p VALUES (99, 2)", "DELETE FROM o WHERE id = 2"),
        },
        core=["a user deletes the parent"],
    ),
)
def test_users_uncommitted_change_is_waited_for(pair: Pair, by_user: str, statement: str) -> None:
    """Neither would see a violation in the other's uncommitted change: the locks on the parent make one of them wait."""
    pair.create(TABLES, TABLES)
    pair.run("INSERT INTO o VALUES (1, 0), (2, 0)")
    engine = pair.apply()
    pair.there.execute("BEGIN")
    pair.there.execute(by_user)
    pair.there.execute("SET CONSTRAINTS ALL IMMEDIATE")  # the server has checked it
    pair.run(statement)
    # while apply waits: it gives up after 5 s, and retries
    waiting = threading.Timer(2.0, lambda: pair.there.execute("COMMIT"))
    waiting.start()
    pair.more(engine)
    waiting.join()
    assert [error.conflict_type for error in pair.errors()] == ["foreign_key"]
    assert pair.there.execute(
        "SELECT count(*) FROM p WHERE o IS NOT NULL AND NOT EXISTS (SELECT FROM o WHERE o.id = p.o)"
    ).fetchone() == (0,)


def test_foreign_key_of_the_partitioned_table_is_checked_for_its_partition(pair: Pair) -> None:
    """Tables of several sources can be partitions of one table here."""
    here = "CREATE TABLE o (id int PRIMARY KEY); CREATE TABLE p (id int PRIMARY KEY, o int)"
    there = (
        "CREATE TABLE o (id int PRIMARY KEY); CREATE TABLE q (id int PRIMARY KEY, o int REFERENCES o) PARTITION BY"
        " RANGE (id); CREATE TABLE p PARTITION OF q FOR VALUES FROM (0) TO (100)"
    )
    pair.create(here, there)
    assert [key.columns for key in pair.destination.describe("public", "p").references] == [("o",)]
    pair.run("INSERT INTO o VALUES (1), (2)", "INSERT INTO p VALUES (1, 1)", "INSERT INTO p VALUES (2, 3)")
    engine = pair.apply()
    assert [error.conflict_type for error in pair.errors()] == ["foreign_key"]
    pair.run("DELETE FROM o WHERE id = 2", "DELETE FROM o WHERE id = 1")
    pair.more(engine)
    assert [error.conflict_type for error in pair.errors()] == ["foreign_key", "foreign_key"]
    assert pair.there.execute("SELECT id FROM o").fetchall() == [(1,)]


def test_partitions_row_deleted_while_referenced_is_a_violation(pair: Pair) -> None:
    here = "CREATE TABLE o (id int PRIMARY KEY); CREATE TABLE p (id int PRIMARY KEY, o int)"
    there = (
        "CREATE TABLE q (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE o PARTITION OF q FOR VALUES FROM (0)"
        " TO (100); CREATE TABLE p (id int PRIMARY KEY, o int REFERENCES q)"
    )
    pair.create(here, there)
    pair.run("INSERT INTO o VALUES (1), (2)", "INSERT INTO p VALUES (1, 1)")
    engine = pair.apply()
    pair.run("DELETE FROM o")
    pair.more(engine)
    assert [error.conflict_type for error in pair.errors()] == ["foreign_key"]
    assert pair.there.execute("SELECT id FROM o ORDER BY 1").fetchall() == [(1,), (2,)]


def test_foreign_key_created_while_rows_arrive_is_checked_from_then_on(pair: Pair) -> None:
    tables = "CREATE TABLE o (id int PRIMARY KEY); CREATE TABLE p (id int PRIMARY KEY, o int)"
    pair.create(tables, tables)
    pair.run("INSERT INTO o VALUES (1), (2)", "INSERT INTO p VALUES (1, 1)")
    engine = pair.apply()
    pair.there.execute("ALTER TABLE p ADD FOREIGN KEY (o) REFERENCES o")
    pair.run("DELETE FROM o WHERE id = 1", "INSERT INTO p VALUES (2, 3)")
    pair.more(engine)
    assert [error.conflict_type for error in pair.errors()] == ["foreign_key", "foreign_key"]
    assert pair.there.execute("SELECT * FROM p").fetchall() == [(1, 1)]
