"""A copy of a table makes error transactions obsolete: a complete driver with its tasks as threads in place of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protos import apply_pb2 as pb
from tests.support.apply.apply_driver import MinedQueue, end_of_log, wait_for
from tests.support.apply.driver_on_threads import WAIT_S, run_on_threads
from tests.support.databases.statements import digest, execute

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TOPOLOGY = "obsolete_test"


class Applying:
    """Tables t and u that are copied, and the driver of their apply process."""

    def __init__(self, here: str, there: str, folder: Path) -> None:
        self.here, self.there = here, there
        for dsn in (here, there):
            execute(
                dsn, "CREATE TABLE t (id integer PRIMARY KEY, v text); CREATE TABLE u (id integer PRIMARY KEY, v text)"
            )
        execute(here, "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 20) i")
        self.queue = MinedQueue(folder, here, there, topology=TOPOLOGY)
        self.driver = self.started()

    def started(self) -> Any:
        return self.queue.start_driver(self.queue.config(self.queue.tables(("t", "u"))))

    def stop(self) -> None:
        self.driver.stop(5.0)
        assert self.driver.join(60.0)

    def states(self) -> dict[str, str]:
        self.driver.outcome()
        return {table.name: table.state for table in self.driver.control.status().instantiation}

    def run(self, *transactions: str) -> None:
        for each in transactions:
            execute(self.here, f"BEGIN; {each}; COMMIT")

    def wait_applied(self) -> None:
        end = end_of_log(self.here)
        wait_for(
            "everything", lambda: self.driver.outcome() or self.driver.control.status().low_watermark_scn >= end, WAIT_S
        )

    def errors(self) -> list[int]:
        return [number for (number,) in execute(self.there, "SELECT number FROM headrace.apply_error ORDER BY number")]

    def copy(self, table: str) -> None:
        ((scn,),) = execute(self.there, "SELECT scn FROM headrace.instantiation WHERE name = %s", table)
        self.driver.control.copy_again(pb.CopyAgainRequest(tables=[pb.TableName(owner="public", name=table)]))
        done = "SELECT 1 FROM headrace.instantiation WHERE name = %s AND scn > %s AND state = 'DONE'"
        wait_for("the copy to join", lambda: self.driver.outcome() or execute(self.there, done, table, scn), WAIT_S)

    def assert_same(self) -> None:
        for table in ("t", "u"):
            assert digest(self.here, table) == digest(self.there, table), table


@pytest.fixture
def applying(
    source_database: str, destination_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Applying]:
    run_on_threads(monkeypatch)
    found = Applying(source_database, destination_database, tmp_path)
    try:
        wait_for("the first copy", lambda: found.states() == {"t": "DONE", "u": "DONE"}, WAIT_S)
        yield found
    finally:
        found.stop()
        found.queue.close()


def test_copy_removes_obsolete_errors_and_releases_their_dependents(applying: Applying) -> None:
    execute(applying.there, "INSERT INTO t VALUES (100, 'in the way'); INSERT INTO u VALUES (900, 'in the way')")
    applying.run(
        "INSERT INTO t VALUES (100, 'a')",  # 1 fails
        # 2 waits behind 1, and half of it is not in the copy
        "UPDATE t SET v = 'b' WHERE id = 100; INSERT INTO u VALUES (1, 'b')",
        "UPDATE u SET v = 'c' WHERE id = 1",  # 3 waits behind 2
        "UPDATE t SET v = 'd' WHERE id = 100",  # 4 waits behind 2
        "INSERT INTO u VALUES (900, 'e'); UPDATE t SET v = 'e' WHERE id = 5",  # 5 fails, for a row of u
        "UPDATE t SET v = 'f' WHERE id = 5",  # 6 waits behind 5
        "UPDATE u SET v = 'g' WHERE id = 900",  # 7 waits behind 5
    )
    applying.wait_applied()
    # Two servers number independent transactions in any order.
    numbers = [
        number for (number,) in execute(applying.there, "SELECT number FROM headrace.apply_error ORDER BY commit_scn")
    ]
    assert len(numbers) == 7
    remaining = sorted([numbers[4], numbers[6]])
    applying.copy("t")
    wait_for("held transactions to continue", lambda: applying.errors() == remaining, WAIT_S)
    assert {each.name: each.obsolete_errors for each in applying.driver.control.status().instantiation} == {
        "t": 3,
        "u": 0,
    }
    assert execute(applying.there, "SELECT * FROM u ORDER BY 1") == [(1, "c"), (900, "in the way")]
    assert digest(applying.here, "t") == digest(applying.there, "t")
    applying.run("UPDATE t SET v = 'h' WHERE id = 100", "UPDATE u SET v = 'h' WHERE id = 1")
    applying.wait_applied()
    assert applying.errors() == remaining  # no transaction is held behind a removed one
    execute(applying.there, "DELETE FROM u WHERE id = 900")
    assert applying.driver.control.begin_execution("all", pb.ErrorsRequest(all=True)) == 2
    wait_for("the others to be executed", lambda: applying.errors() == [], WAIT_S)
    applying.assert_same()


def test_driver_that_ended_after_a_join_leaves_obsolete_errors_to_the_next(applying: Applying) -> None:
    """The copy is recorded, but the driver ended before it checked the error queue. A copy by an earlier version leaves
    the same state.
    """
    execute(applying.there, "INSERT INTO t VALUES (100, 'in the way')")
    applying.run(
        "INSERT INTO t VALUES (100, 'a')", "UPDATE t SET v = 'b' WHERE id = 100; INSERT INTO u VALUES (1, 'b')"
    )
    applying.wait_applied()
    assert len(applying.errors()) == 2
    applying.stop()
    execute(applying.there, "UPDATE t SET v = 'b' WHERE id = 100")
    execute(
        applying.there, "UPDATE headrace.instantiation SET scn = %s WHERE name = 't'", int(end_of_log(applying.here))
    )
    applying.driver = applying.started()
    wait_for("the error queue to be empty", lambda: applying.driver.outcome() or applying.errors() == [], WAIT_S)
    applying.assert_same()
