"""Partitions that join a source's table with rows, or leave it with theirs: they are copied, reported, kept or
followed, without side effects.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule, RuleSet
from tests.support.copies.marked_tables import MarkedTables
from tests.support.session.matrices import cases, values

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def tables(source_database: str, destination_database: str) -> Iterator[MarkedTables]:
    with closing(MarkedTables(source_database, destination_database)) as made:
        made.run("both", "CREATE SCHEMA app", "CREATE TABLE app.t (id int PRIMARY KEY)")
        made.run("src", "INSERT INTO app.t SELECT generate_series(1, 20)")
        made.up()
        assert made.look() == {}
        yield made


class Partitioned:
    """The table `app.ev` with partitions of 2024 and 2025 at both sides, the latter optionally detached, and a hundred
    rows in each.
    """

    def __init__(self, tables: MarkedTables) -> None:
        self.tables = tables
        tables.run(
            "both",
            "CREATE TABLE app.ev (id int, day date, v text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
            "CREATE TABLE app.ev_1 PARTITION OF app.ev FOR VALUES FROM ('2024-01-01') TO ('2025-01-01')",
        )
        tables.run("dst", "CREATE TABLE app.ev_2 PARTITION OF app.ev FOR VALUES FROM ('2025-01-01') TO ('2026-01-01')")
        tables.run("src", "INSERT INTO app.ev SELECT g, '2024-03-01', 'first' FROM generate_series(1, 100) g")
        tables.up()

    def assert_same(self) -> None:
        here, there = self.tables.both("SELECT * FROM app.ev ORDER BY id, day")
        assert here == there


BOUND_1 = "FOR VALUES FROM ('2024-01-01') TO ('2025-01-01')"
BOUND = "FOR VALUES FROM ('2025-01-01') TO ('2026-01-01')"
FILL = "INSERT INTO app.ev_2 SELECT g, '2025-03-01', 'bulk' FROM generate_series(1, 100) g"


ATTACHED = {
    "attached": [
        "CREATE TABLE app.ev_2 (LIKE app.ev INCLUDING ALL)",
        FILL,
        f"ALTER TABLE app.ev ATTACH PARTITION app.ev_2 {BOUND}",
    ],
    "in one transaction": [
        f"BEGIN; CREATE TABLE app.ev_2 (LIKE app.ev INCLUDING ALL); {FILL}; ALTER TABLE app.ev ATTACH PARTITION"
        f" app.ev_2 {BOUND}; COMMIT"
    ],
    "made of a query": [
        "BEGIN; CREATE TABLE app.ev_2 AS SELECT g AS id, date '2025-03-01' AS day, text 'bulk' AS v FROM"
        " generate_series(1, 100) g; ALTER TABLE app.ev_2 ADD PRIMARY KEY (id, day); ALTER TABLE app.ev ATTACH"
        f" PARTITION app.ev_2 {BOUND}; COMMIT",
    ],
    "columns in another order": [
        "CREATE TABLE app.ev_2 (v text, gone int, day date, id int, PRIMARY KEY (id, day))",
        "ALTER TABLE app.ev_2 DROP COLUMN gone",
        "INSERT INTO app.ev_2 SELECT 'bulk', '2025-03-01', g FROM generate_series(1, 100) g",
        f"ALTER TABLE app.ev ATTACH PARTITION app.ev_2 {BOUND}",
    ],
    "detached and back": [
        "ALTER TABLE app.ev DETACH PARTITION app.ev_1",
        "UPDATE app.ev_1 SET v = 'other'",
        f"ALTER TABLE app.ev ATTACH PARTITION app.ev_1 {BOUND_1}",
    ],
    "two": [
        "CREATE TABLE app.ev_2 (LIKE app.ev INCLUDING ALL)",
        FILL,
        f"ALTER TABLE app.ev ATTACH PARTITION app.ev_2 {BOUND}",
        "ALTER TABLE app.ev DETACH PARTITION app.ev_1",
        "UPDATE app.ev_1 SET v = 'other'",
        f"ALTER TABLE app.ev ATTACH PARTITION app.ev_1 {BOUND_1}",
    ],
    "a tree": [
        "CREATE TABLE app.ev_2 (LIKE app.ev INCLUDING ALL) PARTITION BY RANGE (day)",
        f"CREATE TABLE app.ev_3 PARTITION OF app.ev_2 {BOUND}",
        FILL,
        f"ALTER TABLE app.ev ATTACH PARTITION app.ev_2 {BOUND}",
    ],
}


@pytest.mark.parametrize(
    "statements",
    cases(
        {name: (each,) for name, each in ATTACHED.items() if name != "a tree"},
        core=["attached", "detached and back", "in one transaction"],
    ),
)
def test_rows_of_an_attached_partition_arrive_automatically(tables: MarkedTables, statements: list[str]) -> None:
    made = Partitioned(tables)
    tables.run("dst", "INSERT INTO app.ev_2 VALUES (7, '2025-07-07', 'came by an event')")
    tables.run("src", *statements)
    copied = tables.run("dst", "SELECT scn FROM headrace.instantiation WHERE name = 'ev'")
    for _ in range(2):
        assert tables.look() == {}
        # where the partition was not attached
        tables.run("dst", "DELETE FROM app.ev WHERE id = 7 AND day = '2025-07-07'")
        made.assert_same()
        assert set(tables.shown) == {"ev", "ev_1", "ev_2", "t"} & set(tables.shown)
        tables.up()
    # no other rows of the table were copied again
    assert tables.run("dst", "SELECT scn FROM headrace.instantiation WHERE name = 'ev'") == copied
    tables.copy_again("ev")
    assert tables.look() == {}
    assert tables.run("dst", "SELECT name FROM headrace.instantiation WHERE identity LIKE '%/%'") == []
    made.assert_same()


@pytest.mark.parametrize(
    "here",
    cases(
        {
            "none": "DROP TABLE app.ev_2",
            "another name": "ALTER TABLE app.ev_2 RENAME TO ev_9",
            "not attached": "ALTER TABLE app.ev DETACH PARTITION app.ev_2",
            "other bounds": "ALTER TABLE app.ev DETACH PARTITION app.ev_2; ALTER TABLE app.ev ATTACH PARTITION app.ev_2"
            " FOR VALUES FROM ('2025-01-01') TO ('2027-01-01')",
        },
        core=["none", "other bounds"],
    ),
)
def test_attached_partition_missing_here_is_copied_when_it_exists(tables: MarkedTables, here: str) -> None:
    made = Partitioned(tables)
    tables.run("dst", here)
    tables.run("src", *ATTACHED["attached"])
    problem = tables.look()["ev"]
    assert "partition app.ev_2 has rows that are not in the log" in problem
    assert "headrace copy FILE app.ev" in problem
    assert "app.ev_2 with the same bounds" in problem
    if "RENAME" in here:
        tables.copy_again("ev")
    else:
        shapes = tables.source.table_shapes([TableName("app", "ev")])
        (version,) = tables.source.table_versions(
            tables.source.tables([RuleSet(include=(Rule(owner="app", name="ev"),))])
        )
        found = tables.destination.preflight_shapes(shapes, [version], {})
        if "2027" in here:
            tables.run(
                "dst",
                f"ALTER TABLE app.ev DETACH PARTITION app.ev_2; ALTER TABLE app.ev ATTACH PARTITION app.ev_2 {BOUND}",
            )
        else:
            (fix,) = [each.fix for each in found if "ev_2" in each.problem]
            tables.run("dst", fix)
    assert tables.look() == {}
    made.assert_same()


def test_attached_partition_without_copy_rights_is_reported_with_the_grant(
    tables: MarkedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`test_rights_of_apply.py` checks the role's rights on a real server."""
    made = Partitioned(tables)
    tables.run("src", *ATTACHED["attached"])
    with monkeypatch.context() as patched:
        patched.setattr(type(tables.destination), "missing_grant", lambda self, part: f"GRANT SELECT ON {part} TO a;")
        problem = tables.look()["ev"]
    assert "fix: GRANT SELECT ON app.ev_2 TO a; then its rows come" in problem
    assert "headrace copy FILE app.ev" in problem
    assert tables.look() == {}
    made.assert_same()


def test_attached_tree_of_partitions_is_reported_until_a_copy_of_the_table(tables: MarkedTables) -> None:
    made = Partitioned(tables)
    tables.run("src", *ATTACHED["a tree"])
    problem = tables.look()["ev"]
    assert "has rows that are not in the log" in problem
    assert "headrace copy FILE app.ev" in problem
    tables.copy_again("ev")
    assert tables.look() == {}
    made.assert_same()


def test_rows_of_a_partition_of_a_table_that_others_write_are_not_copied(tables: MarkedTables) -> None:
    made = Partitioned(tables)
    tables.up(shared=["ev"])
    tables.run("src", *ATTACHED["attached"])
    problem = tables.look()["ev"]
    assert "`headrace verify FILE app.ev` names the rows that differ" in problem
    assert "headrace copy" not in problem
    tables.run("dst", FILL)
    assert tables.verify() == {"ev": True, "t": True}
    assert tables.look() == {}
    made.assert_same()


def test_partition_that_left_before_its_copy_is_not_copied(tables: MarkedTables) -> None:
    made = Partitioned(tables)
    tables.run("src", *ATTACHED["attached"])
    assert tables.made._marks.look(tables.made._standings(), is_asked=True)
    assert tables.shown["ev_2"].state == "COPYING"
    tables.run("src", "ALTER TABLE app.ev DETACH PARTITION app.ev_2")
    assert tables.look() == {}
    assert tables.shown["ev_2"].state == "GONE"
    assert tables.run("dst", "SELECT name FROM headrace.instantiation WHERE identity LIKE '%/%'") == []
    made.assert_same()
    tables.run("src", f"ALTER TABLE app.ev ATTACH PARTITION app.ev_2 {BOUND}")
    assert tables.look() == {}
    made.assert_same()


@pytest.mark.parametrize(
    "statements",
    cases(
        {
            "created": [
                f"CREATE TABLE app.ev_2 PARTITION OF app.ev {BOUND}",
                "INSERT INTO app.ev SELECT g, '2025-03-01', 'later' FROM generate_series(1, 100) g",
            ],
            "a tree": [
                f"CREATE TABLE app.ev_2 PARTITION OF app.ev {BOUND} PARTITION BY RANGE (day)",
                f"CREATE TABLE app.ev_3 PARTITION OF app.ev_2 {BOUND}",
                FILL,
            ],
            "renamed since": [
                f"CREATE TABLE app.ev_2 PARTITION OF app.ev {BOUND}",
                "ALTER TABLE app.ev_2 RENAME TO ev_9",
                "ALTER TABLE app.ev_9 SET (fillfactor = 50)",
                "TRUNCATE app.ev_9",
            ],
        },
        core=["created", "renamed since"],
    ),
)
def test_partition_created_as_a_partition_is_not_reported(tables: MarkedTables, statements: list[str]) -> None:
    Partitioned(tables)
    tables.run("src", *statements)
    assert tables.look() == {}


def test_partition_that_was_copied_as_a_table_is_not_reported(tables: MarkedTables) -> None:
    made = Partitioned(tables)
    tables.run("dst", "DROP TABLE app.ev_2")
    tables.run("both", "CREATE TABLE app.ev_2 (LIKE app.ev INCLUDING ALL)")
    tables.run("src", FILL)
    tables.up()
    tables.run("both", f"ALTER TABLE app.ev ATTACH PARTITION app.ev_2 {BOUND}")
    assert tables.look() == {}
    made.assert_same()


def test_table_that_is_a_partition_here_is_refused_until_it_is_detached(tables: MarkedTables) -> None:
    """Otherwise a copy of the partitioned table would remove its rows."""
    made = Partitioned(tables)
    tables.run("src", "ALTER TABLE app.ev DETACH PARTITION app.ev_1")
    versions = tables.source.table_versions(tables.source.tables([RuleSet(include=(Rule(owner="app"),))]))
    (found,) = [each for each in tables.destination.preflight_tables(versions) if each.is_error]
    assert (found.path, "is a partition of app.ev here" in found.problem) == ("sites.dst table app.ev_1", True)
    tables.run("dst", found.fix.partition(" -- ")[0], tables.destination.how_to_empty(TableName("app", "ev_1")))
    assert [each for each in tables.destination.preflight_tables(versions) if each.is_error] == []
    tables.up()
    tables.copy_again("ev")
    made.assert_same()
    here, there = tables.both("SELECT * FROM app.ev_1 ORDER BY id")
    assert here == there
    assert len(here) == 100


@pytest.mark.parametrize(
    "remedy",
    values(
        ["DROP TABLE app.ev_1", "ALTER TABLE app.ev DETACH PARTITION app.ev_1", "DELETE FROM app.ev_1", "copy"],
        "ALTER TABLE app.ev DETACH PARTITION app.ev_1",
        "copy",
    ),
)
@pytest.mark.parametrize(
    "statement",
    values(["DROP TABLE app.ev_1", "ALTER TABLE app.ev DETACH PARTITION app.ev_1"], "DROP TABLE app.ev_1"),
)
def test_partition_that_left_with_its_rows_is_reported_until_they_are_gone(
    tables: MarkedTables, statement: str, remedy: str
) -> None:
    made = Partitioned(tables)
    tables.run("src", f"CREATE TABLE app.ev_2 PARTITION OF app.ev {BOUND}", statement)
    problem = tables.look()["ev"]
    assert "has no partition app.ev_1 of it any more" in problem
    assert "headrace copy FILE app.ev" in problem
    if remedy == "copy":
        tables.copy_again("ev")
    else:
        tables.run("dst", remedy)
    assert tables.look() == {}
    made.assert_same()


PARTS_HERE = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'app.ev'::regclass ORDER BY 1"
LEAVE = {"detach": "ALTER TABLE app.ev DETACH PARTITION app.ev_1", "drop": "DROP TABLE app.ev_1"}


@pytest.mark.parametrize(
    ("how", "is_empty"),
    cases(
        {
            "detach-filled": ("detach", False),
            "detach-empty": ("detach", True),
            "drop-filled": ("drop", False),
            "drop-empty": ("drop", True),
        },
        core=["drop-empty"],
    ),
)
def test_partition_that_left_leaves_here_after_earlier_changes_are_applied(
    tables: MarkedTables, how: str, is_empty: bool
) -> None:
    made = Partitioned(tables)
    tables.run("src", f"CREATE TABLE app.ev_2 PARTITION OF app.ev {BOUND}")
    tables.up(detached="follow")
    assert tables.look() == {}
    if is_empty:
        tables.run("both", "DELETE FROM app.ev_1")
    tables.applied_scn = Scn(1)
    tables.run("src", LEAVE[how])
    for _ in range(2):
        assert tables.look() == {}
        assert tables.run("dst", PARTS_HERE) == [("app.ev_1",), ("app.ev_2",)]
    tables.applied_scn = Scn(1 << 60)
    for _ in range(2):
        assert tables.look() == {}
        made.assert_same()
        assert tables.run("src", PARTS_HERE) == tables.run("dst", PARTS_HERE) == [("app.ev_2",)]
        if how == "drop":  # a detached one would be a separate table now
            tables.up(detached="follow")
    assert tables.run("dst", "SELECT to_regclass('app.ev_1') IS NULL") == [(how == "drop",)]
    if how == "detach":
        assert tables.run("dst", "SELECT count(*) FROM app.ev_1") == [(0 if is_empty else 100,)]


@pytest.mark.parametrize(
    ("taken", "again"),
    cases(
        {
            "another partition": (
                [
                    f"CREATE TABLE app.ev_9 PARTITION OF app.ev {BOUND_1}",
                    "INSERT INTO app.ev VALUES (7, '2024-05-05', 'live')",
                ],
                "DELETE FROM app.ev WHERE id = 7",
            ),
            "the default partition": (
                [
                    "CREATE TABLE app.ev_d PARTITION OF app.ev DEFAULT",
                    "INSERT INTO app.ev VALUES (7, '2024-05-05', 'live')",
                ],
                "DELETE FROM app.ev WHERE id = 7",
            ),
        },
        core=["the default partition"],
    ),
)
def test_former_partition_stays_while_it_has_rows_of_the_sources_table(
    tables: MarkedTables, taken: list[str], again: str
) -> None:
    Partitioned(tables)
    tables.run("src", f"CREATE TABLE app.ev_2 PARTITION OF app.ev {BOUND}")
    tables.up(detached="follow")
    tables.run("src", LEAVE["drop"], *taken)
    tables.run("dst", "INSERT INTO app.ev VALUES (7, '2024-05-05', 'live')")  # as apply writes it
    problem = tables.look()["ev"]
    assert "app.ev_1: the source's table has rows that belong to it here" in problem
    assert tables.run("dst", PARTS_HERE) == [("app.ev_1",), ("app.ev_2",)]
    tables.run("both", again)
    assert tables.look() == {}
    assert tables.run("dst", PARTS_HERE) == [("app.ev_2",)]


def test_partition_that_may_not_be_detached_here_is_reported_until_it_may(tables: MarkedTables) -> None:
    Partitioned(tables)
    tables.run("src", f"CREATE TABLE app.ev_2 PARTITION OF app.ev {BOUND}")
    tables.up(detached="follow")
    tables.run(
        "dst",
        "CREATE TABLE app.kept (id int, day date, FOREIGN KEY (id, day) REFERENCES app.ev)",
        "INSERT INTO app.kept VALUES (1, '2024-03-01')",
    )
    tables.run("src", LEAVE["detach"])
    assert "partition app.ev_1: " in tables.look()["ev"]
    tables.run("dst", "DELETE FROM app.kept")
    assert tables.look() == {}
    assert tables.run("dst", PARTS_HERE) == [("app.ev_2",)]


def test_no_partition_of_a_table_that_others_write_is_detached(tables: MarkedTables) -> None:
    Partitioned(tables)
    tables.run("src", f"CREATE TABLE app.ev_2 PARTITION OF app.ev {BOUND}")
    tables.up(detached="follow", shared=["ev"])
    tables.run("src", LEAVE["drop"])
    assert "has no partition app.ev_1 of it any more" in tables.look()["ev"]
    assert tables.run("dst", PARTS_HERE) == [("app.ev_1",), ("app.ev_2",)]


def test_kept_partition_is_reported_by_a_comparison_alone(tables: MarkedTables) -> None:
    Partitioned(tables)
    tables.run("src", f"CREATE TABLE app.ev_2 PARTITION OF app.ev {BOUND}")
    tables.up(detached="keep")
    tables.run("src", LEAVE["drop"], "INSERT INTO app.ev VALUES (7, '2025-05-05', 'x')")
    tables.run("dst", "INSERT INTO app.ev VALUES (7, '2025-05-05', 'x')")
    for _ in range(2):
        assert tables.look() == {}
        assert tables.verify() == {"ev": True, "t": True}
        assert tables.left_out == {
            "ev": ("partition app.ev_1: the source no longer has it, and it is kept (detached_partitions)",)
        }
        tables.up(detached="keep")
    assert tables.run("dst", "SELECT count(*) FROM app.ev_1") == [(100,)]
    tables.run("dst", "INSERT INTO app.ev VALUES (8, '2025-05-05', 'of nobody')")
    assert tables.verify() == {"ev": False, "t": True}
    tables.run("dst", "DELETE FROM app.ev WHERE id = 8 AND day > '2025-01-01'")
    tables.up(detached="ask")
    assert "has no partition app.ev_1 of it any more" in tables.look()["ev"]
    tables.up(detached="follow")
    assert tables.look() == {}
    assert tables.run("dst", PARTS_HERE) == [("app.ev_2",)]


def test_rows_of_a_former_partition_are_reported_if_one_table_holds_all(tables: MarkedTables) -> None:
    tables.run(
        "src",
        "CREATE TABLE app.one (id int PRIMARY KEY) PARTITION BY HASH (id)",
        "CREATE TABLE app.one_0 PARTITION OF app.one FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
    )
    tables.run(
        "src",
        "CREATE TABLE app.one_1 PARTITION OF app.one FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        "INSERT INTO app.one SELECT generate_series(1, 10)",
    )
    tables.run("dst", "CREATE TABLE app.one (id int PRIMARY KEY)")
    tables.up()
    tables.run(
        "src", "ALTER TABLE app.one ALTER id SET STATISTICS 10", "ALTER TABLE app.one DETACH PARTITION app.one_1"
    )
    problem = tables.look()["one"]
    assert "has no partition app.one_1" in problem
    assert "drop or detach" not in problem
    assert "delete its rows" not in problem
    assert "; fix: `headrace copy FILE app.one` copies the table again" in problem
    tables.copy_again("one")
    assert tables.look() == {}
    here, there = tables.both("SELECT * FROM app.one ORDER BY 1")
    assert here == there


@pytest.mark.parametrize("detached", values(["ask", "follow"], "follow"))
def test_exchanged_partition_of_the_same_name_is_no_finding(tables: MarkedTables, detached: str) -> None:
    made = Partitioned(tables)
    tables.up(detached=detached)
    for number in range(2):
        tables.run(
            "src",
            f"ALTER TABLE app.ev DETACH PARTITION app.ev_1; ALTER TABLE app.ev_1 RENAME TO old_{number}; CREATE TABLE"
            " app.ev_1 (LIKE app.ev INCLUDING ALL)",
            f"INSERT INTO app.ev_1 SELECT g, '2024-03-01', 'new' FROM generate_series(1, {number + 5}) g",
            f"ALTER TABLE app.ev ATTACH PARTITION app.ev_1 {BOUND_1}",
        )
        assert tables.look() == {}
        made.assert_same()
        assert tables.run("dst", "SELECT count(*) FROM headrace.instantiation WHERE identity LIKE '%/%'") == [(1,)]
    tables.run("both", "TRUNCATE app.ev_1")
    assert tables.look() == {}
    assert tables.run("dst", PARTS_HERE) == [("app.ev_1",), ("app.ev_2",)]


def test_recreated_partition_stays_here_without_its_old_rows(tables: MarkedTables) -> None:
    made = Partitioned(tables)
    tables.up(detached="follow")
    tables.run("src", "DROP TABLE app.ev_1", f"CREATE TABLE app.ev_1 PARTITION OF app.ev {BOUND_1}")
    assert tables.look() == {}
    assert tables.run("dst", PARTS_HERE) == [("app.ev_1",), ("app.ev_2",)]
    made.assert_same()


def test_former_partition_is_not_removed_by_rows_of_a_namesakes_table(tables: MarkedTables) -> None:
    Partitioned(tables)
    tables.up(detached="follow")
    tables.run(
        "src",
        "BEGIN; ALTER TABLE app.ev DETACH PARTITION app.ev_1; CREATE TABLE app.ev_d PARTITION OF app.ev DEFAULT; INSERT"
        " INTO app.ev SELECT * FROM app.ev_1; ALTER TABLE app.ev RENAME TO ev_old; CREATE TABLE app.ev (LIKE"
        " app.ev_old) PARTITION BY RANGE (day); COMMIT",
    )
    tables.look()
    assert ("app.ev_1",) in tables.run("dst", PARTS_HERE)


def test_renamed_partition_causes_no_copy_of_another_table(tables: MarkedTables) -> None:
    Partitioned(tables)
    tables.run("src", *ATTACHED["attached"])
    assert tables.made._marks.look(tables.made._standings(), is_asked=True)
    tables.run(
        "src",
        "ALTER TABLE app.ev_2 RENAME TO ev_2_now",
        "CREATE TABLE app.ev_2 (LIKE app.ev INCLUDING ALL)",
        "INSERT INTO app.ev_2 VALUES (1, '2025-03-01', 'another')",
    )
    tables.made._look(tables.made._marks.detached.joins)
    assert "the source calls the partition app.ev_2_now since it was attached" in tables.shown["ev_2"].problem
    assert tables.run("dst", "SELECT count(*) FROM app.ev_2") == [(0,)]


def round_of(tables: MarkedTables, monkeypatch: pytest.MonkeyPatch, *statements: str, at: str = "src") -> None:
    """Run the round that copies an attached partition, with statements between its checks and its snapshot."""
    run = [*statements]

    def before(topology: str, open_snapshot: Any = tables.source.open_snapshot) -> Any:
        while run:
            tables.run(at, run.pop(0))
        return open_snapshot(topology)

    assert tables.made._marks.look(tables.made._standings(), is_asked=True)
    with monkeypatch.context() as patched:
        patched.setattr(tables.source, "open_snapshot", before)
        tables.made._look(tables.made._marks.detached.joins)
    assert run == []


@pytest.mark.soak
def test_table_that_takes_a_partitions_name_before_snapshot_is_not_copied(
    tables: MarkedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Partitioned(tables)
    tables.run("src", *ATTACHED["attached"])
    round_of(
        tables,
        monkeypatch,
        "ALTER TABLE app.ev_2 RENAME TO ev_2_now",
        "CREATE TABLE app.ev_2 (LIKE app.ev INCLUDING ALL)",
        "INSERT INTO app.ev_2 VALUES (1, '2025-03-01', 'another')",
    )
    assert tables.run("dst", "SELECT count(*) FROM app.ev_2") == [(0,)]
    tables.run("dst", "ALTER TABLE app.ev_2 RENAME TO ev_2_now")
    assert tables.look() == {}
    made.assert_same()


def test_others_rows_in_a_partition_with_wider_bounds_here_stay(
    tables: MarkedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Partitioned(tables)
    tables.run("src", *ATTACHED["attached"])
    round_of(
        tables,
        monkeypatch,
        "ALTER TABLE app.ev DETACH PARTITION app.ev_2; ALTER TABLE app.ev ATTACH PARTITION app.ev_2"
        f" {BOUND.replace('2026', '2027')}",
        "INSERT INTO app.ev VALUES (7, '2026-07-07', 'of another partition')",
        at="dst",
    )
    tables.made._look(tables.made._marks.detached.joins)
    assert tables.run("dst", "SELECT count(*) FROM app.ev WHERE day > '2026-01-01'") == [(1,)]
    assert "with the bounds that it has at the source" in tables.shown["ev_2"].problem
    tables.run(
        "dst",
        "ALTER TABLE app.ev DETACH PARTITION app.ev_2; DELETE FROM app.ev_2; ALTER TABLE app.ev ATTACH PARTITION"
        f" app.ev_2 {BOUND}",
    )
    assert tables.look() == {}
    made.assert_same()


def test_partition_that_left_and_returned_waits_for_earlier_changes(
    tables: MarkedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile its rows may have been those of the default partition, and the log removes them from there."""
    made = Partitioned(tables)
    tables.run("src", *ATTACHED["attached"])
    round_of(
        tables,
        monkeypatch,
        "ALTER TABLE app.ev DETACH PARTITION app.ev_2",
        f"ALTER TABLE app.ev ATTACH PARTITION app.ev_2 {BOUND}",
    )
    assert tables.run("dst", "SELECT count(*) FROM app.ev_2") == [(0,)]
    tables.applied_scn = Scn(1)
    assert tables.look() == {}
    assert tables.run("dst", "SELECT count(*) FROM app.ev_2") == [(0,)]
    tables.applied_scn = Scn(1 << 60)
    assert tables.look() == {}
    made.assert_same()


@pytest.mark.soak
def test_partition_that_moves_from_one_table_to_another_is_found_at_both(tables: MarkedTables) -> None:
    made = Partitioned(tables)
    tables.run("both", "CREATE TABLE app.old (LIKE app.ev INCLUDING ALL) PARTITION BY RANGE (day)")
    tables.up()
    tables.run(
        "src",
        "ALTER TABLE app.ev DETACH PARTITION app.ev_1",
        f"ALTER TABLE app.old ATTACH PARTITION app.ev_1 {BOUND_1}",
    )
    problems = tables.look()
    assert "partition app.ev_1 has rows that are not in the log" in problems["old"]
    assert "has no partition app.ev_1 of it any more" in problems["ev"]
    tables.run(
        "dst",
        "ALTER TABLE app.ev DETACH PARTITION app.ev_1",
        f"ALTER TABLE app.old ATTACH PARTITION app.ev_1 {BOUND_1}",
    )
    assert tables.look() == {}
    made.assert_same()
    here, there = tables.both("SELECT * FROM app.old ORDER BY id, day")
    assert here == there
    assert len(here) == 100


def test_attached_default_partition_requires_a_copy_of_the_table(tables: MarkedTables) -> None:
    """Copied alone, it would first be emptied, with the rows of a later partition of the source that this one holds
    here.
    """
    made = Partitioned(tables)
    tables.run("dst", "CREATE TABLE app.ev_d PARTITION OF app.ev DEFAULT")
    tables.run("both", "CREATE TABLE IF NOT EXISTS app.ev_2 PARTITION OF app.ev " + BOUND)
    tables.run(
        "src",
        "CREATE TABLE app.ev_d (LIKE app.ev INCLUDING ALL)",
        "INSERT INTO app.ev_d VALUES (1, '2031-01-01', 'bulk')",
        "ALTER TABLE app.ev ATTACH PARTITION app.ev_d DEFAULT",
    )
    problem = tables.look()["ev"]
    assert "partition app.ev_d has rows that are not in the log" in problem
    assert "headrace copy FILE app.ev" in problem
    assert "same bounds" not in problem
    tables.copy_again("ev")
    assert tables.look() == {}
    made.assert_same()
