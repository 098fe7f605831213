"""A complete driver with its tasks as threads: a partition that is attached with rows is copied alone while its table
is applied, and joins in order.

Longer than 500 lines: its cases share one driver and its reported states.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.databases.ports import Instantiation
from headrace.rules.table_settings import TableSettings
from protos import apply_pb2 as pb
from spark_apply.copy.pieces.board import CopyBoard
from spark_apply.driver.join_calls import LoopJoinCalls
from tests.support.apply.apply_driver import MinedQueue, end_of_log, wait_for
from tests.support.apply.driver_on_threads import run_on_threads
from tests.support.databases.statements import digest, execute
from tests.support.histories.steady_load import steadily
from tests.support.session.matrices import cases

WAIT_S = 50.0

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TABLE = """
CREATE TABLE ev (id int, day int, v text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE ev_1 PARTITION OF ev FOR VALUES FROM (1) TO (2);
CREATE TABLE other (id int PRIMARY KEY, v text);
"""
PART = "CREATE TABLE ev_{0} PARTITION OF ev FOR VALUES FROM ({0}) TO ({0} + 1)"
ATTACH = (
    "CREATE TABLE ev_{0} (LIKE ev INCLUDING ALL); INSERT INTO ev_{0} SELECT g, {0}, 'bulk' FROM generate_series(1,"
    " 1000) g; ALTER TABLE ev ATTACH PARTITION ev_{0} FOR VALUES FROM ({0}) TO ({0} + 1)"
)


class Sites:
    """Source, destination, and consecutive drivers."""

    def __init__(self, folder: Path, source: str, destination: str) -> None:
        self.source, self.destination = source, destination
        for dsn in (source, destination):
            execute(dsn, TABLE)
        for number in (2, 3, 4):
            execute(destination, PART.format(number))
        execute(source, "INSERT INTO ev SELECT g, 1, 'first' FROM generate_series(1, 500) g")
        self.queue = MinedQueue(folder, source, destination, topology="parts_test")
        self.driver: Any = None
        self.start()
        wait_for("the first copy", lambda: set(self.states().values()) == {"DONE"} and len(self.states()) == 2, WAIT_S)

    def start(self, detached: str = "ask", *, is_shared: bool = False) -> None:
        tables = (replace(table, may_empty=not is_shared) for table in self.queue.tables(("ev", "other")))
        config = self.queue.config(tables, settings=TableSettings(detached_partitions=detached))
        self.driver = self.queue.start_driver(config)
        wait_for("it to apply", lambda: self.driver.outcome() or self.driver.control.cores is not None, WAIT_S)

    def stop(self) -> None:
        self.driver.stop(5.0)
        assert self.driver.join(60.0)
        self.driver.outcome()

    def states(self) -> dict[str, str]:
        self.driver.outcome()
        return {table.name: table.state for table in self.driver.control.status().instantiation}

    def errors(self) -> list[Any]:
        return execute(self.destination, "SELECT * FROM headrace.apply_error")

    def settle(self) -> None:
        """Wait until all changes are applied and every partition has joined."""
        end = end_of_log(self.source)

        def is_settled() -> bool:
            self.driver.control.look_at_tables()
            return set(self.states()) == {"ev", "other"} and self.driver.control.status().caught_up_scn >= end

        wait_for("everything", is_settled, WAIT_S)

    def assert_same(self) -> None:
        for table in ("ev", "other"):
            assert digest(self.source, table) == digest(self.destination, table), table
        assert self.errors() == []

    def problem(self) -> str:
        """Return the finding about the table."""
        return str(next(table.problem for table in self.driver.control.status().instantiation if table.name == "ev"))

    def begin_part(self) -> None:
        """Attach a partition, and wait until its copy has begun."""
        execute(self.source, ATTACH.format(2))
        wait_for(
            "the copy to begin", lambda: self.driver.control.look_at_tables() is not None and self.is_left_out(), WAIT_S
        )

    def is_left_out(self) -> bool:
        """Return whether a partition's rows are skipped and its snapshot is taken."""
        return bool(
            execute(self.destination, "SELECT 1 FROM headrace.instantiation WHERE identity LIKE '%%/%%' AND scn > 1")
        )

    def copied_rounds(self) -> list[Any]:
        return execute(self.destination, "SELECT state, scn FROM headrace.instantiation WHERE name = 'ev'")


@pytest.fixture
def held(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Keep every piece of a copy from reaching a task until this is undone."""
    monkeypatch.setattr(CopyBoard, "add", lambda self, pieces: list(pieces))
    return monkeypatch


@pytest.fixture
def sites(
    source_database: str, destination_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Sites]:
    run_on_threads(monkeypatch)
    made = Sites(tmp_path, source_database, destination_database)
    try:
        yield made
    finally:
        made.driver.stop(5.0)
        has_ended = made.driver.join(60.0)
        made.queue.close()
    assert has_ended


def test_partition_joins_under_load_and_its_earlier_errors_are_cleared(sites: Sites) -> None:
    before = sites.copied_rounds()
    execute(sites.source, ATTACH.format(2))
    execute(sites.source, ATTACH.format(3))
    execute(sites.source, PART.format(4))
    # Changes of rows that are missing here: alone, together with others, and in later transactions.
    execute(sites.source, "UPDATE ev SET v = 'alone' WHERE (id, day) = (1, 2)")
    execute(
        sites.source,
        "BEGIN; UPDATE ev SET v = 'both' WHERE (id, day) = (2, 2); INSERT INTO other VALUES (1, 'both'); INSERT INTO ev"
        " VALUES (2001, 1, 'both'); COMMIT",
    )
    execute(sites.source, "DELETE FROM ev WHERE (id, day) = (3, 3)")
    execute(sites.source, "INSERT INTO ev VALUES (5000, 2, 'came by an event')")
    execute(sites.source, "UPDATE ev SET v = 'again' WHERE (id, day) = (1, 2)")
    wait_for("them to be applied", lambda: execute(sites.destination, "SELECT 1 FROM ev WHERE id = 5000"), WAIT_S)
    wait_for("the errors", lambda: len(sites.errors()) >= 3, WAIT_S)

    def write(number: int) -> None:
        execute(
            sites.source,
            f"INSERT INTO ev VALUES ({number}, {number % 3 + 1}, 'load'); UPDATE ev SET v = 'load' WHERE id ="
            f" {number % 500 + 1};"
            f" INSERT INTO other VALUES ({number}, 'x'); UPDATE ev SET day = 4 WHERE (id, day) ="
            f" ({number % 400 + 1}, {number % 2 + 2}) AND NOT EXISTS (SELECT FROM ev_4 e WHERE e.id ="
            f" {number % 400 + 1})",
        )

    joined = (
        "SELECT count(*) = 2 FROM headrace.instantiation WHERE identity LIKE '%/%' AND state IN ('JOINING', 'DONE')"
    )
    with steadily(write, pause_s=0.01, first=6001):
        wait_for(
            "both to join",
            lambda: sites.driver.control.look_at_tables() and execute(sites.destination, joined)[0][0],
            WAIT_S,
        )
    sites.settle()
    sites.assert_same()
    assert sites.copied_rounds() == before  # no other table was copied
    sites.stop()
    execute(sites.source, "UPDATE ev SET v = 'later' WHERE id < 10")
    sites.start()
    sites.settle()
    sites.assert_same()


def test_new_unlogged_partition_joins_with_the_rows_that_the_log_lacks(sites: Sites) -> None:
    before = sites.copied_rounds()
    for statement in (
        PART.format(2),
        "INSERT INTO ev SELECT g, 2, 'logged' FROM generate_series(1, 10) g",
        "ALTER TABLE ev_2 SET UNLOGGED",
        "INSERT INTO ev SELECT g, 2, 'unlogged' FROM generate_series(11, 1000) g",
        "UPDATE ev SET v = 'unlogged' WHERE (id, day) = (1, 2)",
        "ALTER TABLE ev_2 SET LOGGED",
        "UPDATE ev SET v = 'behind' WHERE id IN (2, 500) AND day = 2",  # this row is missing here
        "INSERT INTO ev VALUES (5000, 2, 'behind')",
    ):
        execute(sites.source, statement)
    sites.settle()
    sites.assert_same()
    assert sites.copied_rounds() == before  # no other table was copied


AFTER = (
    "TRUNCATE ev; INSERT INTO ev SELECT g, 2, 'after' FROM generate_series(1, 10) g; INSERT INTO ev VALUES (1, 1,"
    " 'after'); UPDATE ev SET v = 'after it' WHERE id = 3"
)


def test_truncate_of_the_table_ends_the_copy_of_its_partition(sites: Sites, held: pytest.MonkeyPatch) -> None:
    sites.begin_part()
    execute(
        sites.source,
        "UPDATE ev SET v = 'before' WHERE id = 1; INSERT INTO ev VALUES (7000, 2, 'before'); INSERT INTO other VALUES"
        " (7000, 'before')",
    )
    execute(sites.source, AFTER)
    sites.settle()
    sites.assert_same()


def test_truncate_of_the_partition_alone_reaches_a_repeated_copy(sites: Sites, held: pytest.MonkeyPatch) -> None:
    sites.begin_part()
    execute(sites.source, "TRUNCATE ev_2; INSERT INTO ev VALUES (1, 2, 'after')")
    held.undo()
    sites.driver.control.look_at_tables()
    sites.stop()
    run_on_threads(held)
    sites.start()
    sites.settle()
    sites.assert_same()


@pytest.mark.parametrize(
    ("when", "is_truncated"),
    cases(
        {
            "copying-changed": ("copying", False),
            "copying-truncated": ("copying", True),
            "copied-changed": ("copied", False),
            "copied-truncated": ("copied", True),
        },
        core=["copied-truncated"],
    ),
)
def test_copy_survives_the_end_of_its_driver(
    sites: Sites, monkeypatch: pytest.MonkeyPatch, when: str, is_truncated: bool
) -> None:
    def join(self: LoopJoinCalls, tables: Sequence[Instantiation]) -> bool:
        return False

    def add(self: CopyBoard, pieces: Iterable[Any]) -> None: ...

    with monkeypatch.context() as patched:
        if when == "copying":
            patched.setattr(CopyBoard, "add", add)
        else:
            patched.setattr(LoopJoinCalls, "join", join)
        execute(sites.source, ATTACH.format(2))
        wait_for(
            "the copy",
            lambda: sites.driver.control.look_at_tables() is not None and sites.states().get("ev_2") == when.upper(),
            WAIT_S,
        )
        execute(
            sites.source,
            "UPDATE ev SET v = 'between' WHERE id < 20; DELETE FROM ev WHERE id = 30; INSERT INTO ev VALUES (7000, 2,"
            " 'between')",
        )
        sites.stop()
    execute(sites.source, AFTER if is_truncated else "UPDATE ev SET v = 'away' WHERE id BETWEEN 10 AND 40")
    sites.start()
    execute(sites.source, "UPDATE ev SET v = 'later' WHERE id = 5")
    sites.settle()
    sites.assert_same()


def test_truncate_of_all_remaining_rows_empties_a_former_partition(sites: Sites) -> None:
    for number in (2, 3):
        execute(sites.source, PART.format(number))
        execute(sites.source, f"INSERT INTO ev VALUES (1, {number}, 'x')")
    sites.settle()
    execute(sites.source, "TRUNCATE ev_2, ev_3; ALTER TABLE ev DETACH PARTITION ev_1; DROP TABLE ev_1")
    execute(sites.source, "INSERT INTO ev VALUES (2, 2, 'x')")
    sites.settle()
    assert "has no partition public.ev_1 of it any more" in sites.problem()
    assert execute(sites.destination, "SELECT count(*) FROM ev") == [(501,)]
    execute(sites.source, "TRUNCATE ev_2; INSERT INTO ev VALUES (2, 3, 'x')")
    sites.settle()
    assert execute(sites.destination, "SELECT count(*) FROM ev") == [(501,)]
    execute(sites.source, "TRUNCATE ev; INSERT INTO ev VALUES (3, 2, 'x')")
    sites.settle()
    sites.assert_same()
    assert sites.problem() == ""


def test_partial_truncate_removes_no_rows_of_a_former_partition(sites: Sites) -> None:
    """The TRUNCATE covers all that a look has seen, but the table has received another partition since."""
    execute(sites.source, PART.format(2))
    execute(sites.source, "INSERT INTO ev VALUES (1, 2, 'x')")
    sites.settle()
    execute(sites.source, "ALTER TABLE ev DETACH PARTITION ev_1")
    sites.settle()
    assert "has no partition public.ev_1 of it any more" in sites.problem()
    execute(sites.source, PART.format(3))
    execute(sites.source, "INSERT INTO ev VALUES (2, 3, 'x'); TRUNCATE ev_2")
    sites.settle()
    assert "has no partition public.ev_1 of it any more" in sites.problem()
    assert execute(sites.destination, "SELECT count(*) FROM ev") == [(501,)]
    execute(sites.source, "TRUNCATE ev; INSERT INTO ev VALUES (3, 2, 'x')")
    sites.settle()
    sites.assert_same()
    assert sites.problem() == ""


def test_kept_partition_survives_a_truncate_and_a_followed_one_does_not(sites: Sites) -> None:
    for number in (2, 3):
        execute(sites.source, PART.format(number))
        execute(sites.source, f"INSERT INTO ev VALUES (1, {number}, 'x')")
    sites.settle()
    sites.stop()
    sites.start("keep")
    execute(sites.source, "DROP TABLE ev_1")
    sites.settle()
    execute(sites.source, "TRUNCATE ev; INSERT INTO ev VALUES (3, 2, 'x')")
    sites.settle()
    assert sites.problem() == ""
    assert execute(sites.destination, "SELECT count(*) FROM ev") == [(501,)]
    sites.stop()
    sites.start("follow")
    execute(sites.source, "INSERT INTO ev VALUES (3, 3, 'just before'); ALTER TABLE ev DETACH PARTITION ev_3")
    execute(sites.source, "TRUNCATE ev; INSERT INTO ev VALUES (4, 2, 'x')")
    sites.settle()
    sites.assert_same()
    assert sites.problem() == ""
    assert execute(
        sites.destination,
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'ev'::regclass ORDER BY 1",
    ) == [("ev_2",), ("ev_4",)]
    assert digest(sites.source, "ev_3") == digest(sites.destination, "ev_3")
    assert execute(sites.destination, "SELECT to_regclass('ev_1') IS NULL") == [(True,)]


@pytest.mark.soak
def test_truncate_in_the_error_queue_empties_no_partition_copied_since(sites: Sites) -> None:
    for statement in ATTACH.format(2).split("; "):
        execute(sites.source, statement)
    execute(sites.source, "UPDATE ev SET v = 'before' WHERE (id, day) = (1, 2)")
    execute(
        sites.source,
        "TRUNCATE ev; INSERT INTO ev VALUES (1, 1, 'after'), (1, 2, 'after'); INSERT INTO other VALUES (7, 'in the same"
        " transaction')",
    )
    wait_for("both to fail", lambda: len(sites.errors()) == 2, WAIT_S)
    sites.settle()
    wait_for("errors that the copy covers to be deleted", lambda: len(sites.errors()) == 1, WAIT_S)
    assert execute(sites.destination, "SELECT v FROM ev WHERE day = 2") == [("after",)]
    ((number,),) = execute(sites.destination, "SELECT number FROM headrace.apply_error")
    name = sites.driver.control.begin_execution("again", pb.ErrorsRequest(numbers=[number])) and "again"
    (outcome,) = wait_for(
        "it to be refused", lambda: sites.driver.control.execution_outcomes(name, 1.0).outcomes, WAIT_S
    )
    assert "a partition of that was attached and copied since" in outcome.failure.message
    assert execute(sites.destination, "SELECT v FROM ev WHERE day = 2") == [("after",)]
    assert "`headrace copy FILE TABLE` with that table" in outcome.failure.message
    sites.driver.control.copy_again(pb.CopyAgainRequest(tables=[pb.TableName(owner="public", name="ev")]))
    sites.settle()
    assert "then `headrace errors execute FILE --all`" in outcome.failure.message
    assert sites.driver.control.begin_execution("the rest", pb.ErrorsRequest(all=True)) == 1
    wait_for(
        "the rest to be executed", lambda: sites.driver.control.execution_outcomes("the rest", 1.0).is_over, WAIT_S
    )
    sites.assert_same()


@pytest.mark.soak
def test_logged_changes_from_before_the_attach_are_applied_before_the_copy(sites: Sites) -> None:
    for dsn in (sites.source, sites.destination):
        execute(dsn, "CREATE TABLE ev_d PARTITION OF ev DEFAULT")
    execute(sites.source, "INSERT INTO ev SELECT g, 2, 'of the default' FROM generate_series(1, 50) g")
    sites.settle()
    execute(sites.source, "ALTER TABLE other ADD COLUMN n int; INSERT INTO other VALUES (1, 'x', 1)")
    wait_for("apply to wait for the column", lambda: "ALTER" in str(sites.driver.control.status()), WAIT_S)
    execute(
        sites.source,
        "BEGIN; CREATE TABLE ev_2 (LIKE ev INCLUDING ALL); INSERT INTO ev_2 SELECT * FROM ev WHERE day = 2; DELETE FROM"
        " ev WHERE day = 2; ALTER TABLE ev ATTACH PARTITION ev_2 FOR VALUES FROM (2) TO (3); COMMIT",
    )
    for _ in range(3):
        sites.driver.control.look_at_tables()
        time.sleep(1.0)
    execute(sites.destination, "ALTER TABLE other ADD COLUMN n int")
    sites.settle()
    sites.assert_same()


def test_copy_of_the_table_includes_a_partition_whose_own_copy_failed(sites: Sites) -> None:
    execute(sites.destination, "ALTER TABLE ev_2 ADD CONSTRAINT no CHECK (v <> 'bulk')")
    execute(sites.source, ATTACH.format(2))
    wait_for(
        "it to fail", lambda: sites.driver.control.look_at_tables() and sites.states().get("ev_2") == "FAILED", WAIT_S
    )
    execute(sites.destination, "ALTER TABLE ev_2 DROP CONSTRAINT no")
    sites.driver.control.copy_again(pb.CopyAgainRequest(tables=[pb.TableName(owner="public", name="ev")]))
    sites.settle()
    execute(sites.source, "UPDATE ev SET v = 'later' WHERE id < 10; INSERT INTO ev VALUES (7000, 2, 'later')")
    sites.settle()
    sites.assert_same()


@pytest.mark.soak
def test_next_driver_also_skips_a_partition_with_a_former_ones_name(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(sites.source, ATTACH.format(2))
    sites.settle()
    with monkeypatch.context() as patched:
        patched.setattr(CopyBoard, "add", lambda self, pieces: list(pieces))
        execute(sites.source, "ALTER TABLE ev DETACH PARTITION ev_2; DROP TABLE ev_2")
        execute(sites.source, ATTACH.format(2))
        wait_for(
            "its copy to begin",
            lambda: (
                sites.driver.control.look_at_tables() is not None
                and execute(
                    sites.destination, "SELECT 1 FROM headrace.instantiation WHERE state = 'COPYING' AND scn > 1"
                )
            ),
            WAIT_S,
        )
        sites.stop()
        begun = "SELECT scn FROM headrace.instantiation WHERE state = 'COPYING'"
        before = execute(sites.destination, begun)
        sites.start()
        wait_for("it to begin again", lambda: execute(sites.destination, begun) not in ([], before), WAIT_S)
        time.sleep(1.0)
        execute(
            sites.source, "BEGIN; INSERT INTO ev VALUES (7000, 2, 'x'); INSERT INTO other VALUES (7000, 'x'); COMMIT"
        )
        wait_for("it to be applied", lambda: execute(sites.destination, "SELECT 1 FROM other"), WAIT_S)
        assert execute(sites.destination, "SELECT count(*) FROM ev WHERE day = 2") == [(0,)]
        sites.stop()
    sites.start()
    sites.settle()
    sites.assert_same()
    assert sites.problem() == ""


def test_rows_that_an_error_transaction_moves_into_the_partition_stay(sites: Sites) -> None:
    for dsn in (sites.source, sites.destination):
        execute(dsn, "CREATE TABLE ev_d PARTITION OF ev DEFAULT")
    execute(sites.source, "INSERT INTO ev SELECT g, 2, 'of the default' FROM generate_series(1, 50) g")
    sites.settle()
    execute(
        sites.source,
        "BEGIN; CREATE TABLE ev_2 (LIKE ev INCLUDING ALL); INSERT INTO ev_2 SELECT * FROM ev WHERE day = 2; DELETE FROM"
        " ev WHERE day = 2;"
        " ALTER TABLE ev ATTACH PARTITION ev_2 FOR VALUES FROM (2) TO (3); UPDATE ev SET v = 'moved' WHERE (id, day) ="
        " (1, 2); COMMIT",
    )
    wait_for("the error", sites.errors, WAIT_S)
    sites.settle()
    ((number,),) = execute(sites.destination, "SELECT number FROM headrace.apply_error")
    name = sites.driver.control.begin_execution("again", pb.ErrorsRequest(numbers=[number])) and "again"
    (outcome,) = wait_for(
        "it to be refused", lambda: sites.driver.control.execution_outcomes(name, 1.0).outcomes, WAIT_S
    )
    assert "which may have these rows now" in outcome.failure.message
    list(sites.driver.control.delete_errors(pb.ErrorsRequest(numbers=[number])))
    sites.assert_same()


@pytest.mark.soak
def test_partition_waits_for_error_transactions_that_may_concern_its_rows(sites: Sites) -> None:
    """It is unknown whether they are older than the ATTACH: executed after the copy, they could change its rows."""
    execute(sites.destination, "DELETE FROM ev WHERE (id, day) = (7, 1)")
    execute(sites.source, "UPDATE ev SET v = 'changed' WHERE (id, day) = (7, 1)")
    wait_for("the error", sites.errors, WAIT_S)
    execute(sites.source, ATTACH.format(2))

    def is_told() -> bool:
        sites.driver.control.look_at_tables()
        return "ev_2 has rows that are not in the log" in sites.problem()

    wait_for("the finding to appear", is_told, WAIT_S)
    assert is_told()
    assert execute(sites.destination, "SELECT count(*) FROM ev_2") == [(0,)]
    execute(sites.destination, "INSERT INTO ev VALUES (7, 1, 'first')")
    name = sites.driver.control.begin_execution("again", pb.ErrorsRequest(all=True)) and "again"
    wait_for("it to be executed", lambda: sites.driver.control.execution_outcomes(name, 1.0).outcomes, WAIT_S)
    sites.settle()
    sites.assert_same()
    assert sites.problem() == ""


@pytest.mark.soak
def test_changes_in_a_renamed_partition_survive_the_copy_of_its_successor(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(sites.source, ATTACH.format(2))
    sites.settle()
    for dsn in (sites.source, sites.destination):
        execute(dsn, "ALTER TABLE ev_2 RENAME TO ev_old")
    execute(
        sites.destination,
        "ALTER TABLE ev DETACH PARTITION ev_3; DROP TABLE ev_3; CREATE TABLE ev_2 PARTITION OF ev FOR VALUES FROM (3)"
        " TO (4)",
    )
    with monkeypatch.context() as patched:
        patched.setattr(CopyBoard, "add", lambda self, pieces: list(pieces))
        execute(sites.source, ATTACH.format(3).replace("ev_3", "ev_2"))
        wait_for(
            "its copy to begin",
            lambda: (
                sites.driver.control.look_at_tables() is not None
                and execute(
                    sites.destination, "SELECT 1 FROM headrace.instantiation WHERE state = 'COPYING' AND scn > 1"
                )
            ),
            WAIT_S,
        )
        execute(
            sites.source,
            "UPDATE ev SET v = 'meanwhile' WHERE day = 2 AND id <= 10; INSERT INTO other VALUES (7000, 'x')",
        )
        wait_for("it to be applied", lambda: execute(sites.destination, "SELECT 1 FROM other"), WAIT_S)
        assert execute(sites.destination, "SELECT count(*) FROM ev WHERE v = 'meanwhile'") == [(10,)]
        sites.stop()
    sites.start()
    execute(sites.source, "UPDATE ev SET v = 'later' WHERE id <= 5")
    sites.settle()
    sites.assert_same()
    assert execute(
        sites.destination,
        "SELECT name, count(*) FROM headrace.instantiation WHERE identity LIKE '%/%' GROUP BY 1 ORDER BY 1",
    ) == [("ev_2", 1), ("ev_old", 1)]


@pytest.mark.soak
def test_partition_does_not_wait_for_errors_that_came_after_it_was_seen(sites: Sites, held: pytest.MonkeyPatch) -> None:
    """Continuing errors of other partitions would keep it away for good."""
    execute(sites.destination, "DELETE FROM ev WHERE (id, day) = (7, 1)")
    execute(sites.source, "ALTER TABLE other ADD COLUMN n int; INSERT INTO other VALUES (1, 'x', 1)")
    wait_for("apply to wait for the column", lambda: "ALTER" in str(sites.driver.control.status()), WAIT_S)
    execute(sites.source, ATTACH.format(2))
    sites.driver.control.look_at_tables()
    execute(sites.source, "UPDATE ev SET v = 'changed' WHERE (id, day) = (7, 1)")
    execute(sites.destination, "ALTER TABLE other ADD COLUMN n int")
    wait_for("the error", sites.errors, WAIT_S)
    wait_for(
        "the copy to begin", lambda: sites.driver.control.look_at_tables() is not None and sites.is_left_out(), WAIT_S
    )


def test_truncate_of_a_replaced_partition_empties_no_copy(sites: Sites) -> None:
    """It waits in the error queue behind a row of another table, and changes no row itself."""
    execute(sites.source, PART.format(4))
    execute(sites.source, "INSERT INTO other VALUES (1, 'x')")
    sites.settle()
    execute(sites.destination, "DELETE FROM other")
    execute(sites.source, "UPDATE other SET v = 'y' WHERE id = 1")
    execute(sites.source, "UPDATE other SET v = 'z' WHERE id = 1; TRUNCATE ev_1")
    wait_for("both to fail", lambda: len(sites.errors()) == 2, WAIT_S)
    execute(sites.source, "ALTER TABLE ev DETACH PARTITION ev_1; DROP TABLE ev_1; " + ATTACH.format(1))

    def is_told() -> bool:
        sites.driver.control.look_at_tables()
        return "error transactions that may be older" in sites.problem()

    wait_for("the finding to appear", is_told, WAIT_S)
    execute(sites.destination, "INSERT INTO other VALUES (1, 'x')")
    name = sites.driver.control.begin_execution("again", pb.ErrorsRequest(all=True)) and "again"
    wait_for(
        "them to be executed", lambda: len(sites.driver.control.execution_outcomes(name, 1.0).outcomes) == 2, WAIT_S
    )
    sites.settle()
    sites.assert_same()
    assert sites.problem() == ""


def test_rows_of_a_partition_that_others_also_write_arrive_by_the_remedy(sites: Sites) -> None:
    sites.stop()
    sites.start(is_shared=True)
    execute(sites.source, ATTACH.format(2))
    end = end_of_log(sites.source)
    wait_for(
        "it to be told",
        lambda: sites.driver.control.look_at_tables() is not None and "others write the table, too" in sites.problem(),
        WAIT_S,
    )
    (statements,) = re.findall("`(BEGIN; .*?)`", sites.problem())
    execute(sites.source, statements)
    execute(sites.source, "INSERT INTO other VALUES (1, 'x')")
    wait_for("it to be applied", lambda: execute(sites.destination, "SELECT 1 FROM other"), WAIT_S)
    wait_for("the rows before that, too", lambda: sites.driver.control.status().caught_up_scn >= end, WAIT_S)
    sites.assert_same()
