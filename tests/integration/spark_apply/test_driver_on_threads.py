"""A complete driver with its tasks as threads in place of Spark: a table that is added later, and a transformation
function that fails.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.rules.rule import Rule, RuleSet
from headrace.rules.transformations.transformation import Transformation, TransformationError
from protos import apply_pb2 as pb
from spark_apply.driver import apply_driver
from tests.support.apply.apply_driver import MinedQueue, end_of_log, wait_for
from tests.support.apply.custom_functions import custom
from tests.support.apply.driver_on_threads import WAIT_S, Runner
from tests.support.databases.statements import digest, execute
from tests.support.histories.steady_load import steadily

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

LATE = "CREATE TABLE late (id integer PRIMARY KEY, note integer NOT NULL)"


def test_table_added_later_joins_and_one_without_columns_delays_no_other(
    source_database: str, destination_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(apply_driver, "TaskRunner", Runner)
    for dsn in (source_database, destination_database):
        execute(dsn, "CREATE TABLE first (id integer PRIMARY KEY, v text)")
        execute(dsn, "CREATE TABLE nothing ()")
    execute(source_database, "INSERT INTO first SELECT i, 'v' FROM generate_series(1, 500) i")
    execute(source_database, LATE)
    execute(source_database, "INSERT INTO late SELECT i, 0 FROM generate_series(1, 3000) i")
    queue = MinedQueue(tmp_path, source_database, destination_database, topology="threads_test")
    driver = queue.start_driver(queue.config(queue.tables(("first", "late", "nothing"))))
    client = driver.control

    def states() -> dict[str, str]:
        return {table.name: table.state for table in client.status().instantiation}

    def there(table: str, number: int) -> bool:
        driver.outcome()
        return execute(destination_database, f"SELECT 1 FROM {table} WHERE id = %s", number) != []

    try:
        execute(source_database, "INSERT INTO first VALUES (1001, 'w'); INSERT INTO late VALUES (5001, 1)")
        wait_for("the others to be applied", lambda: there("first", 1001), WAIT_S)
        wait_for("the first copy", lambda: states() == {"first": "DONE", "late": "FAILED", "nothing": "FAILED"}, WAIT_S)
        execute(source_database, "INSERT INTO first VALUES (1002, 'by a change')")
        wait_for("a change of the others to be applied", lambda: there("first", 1002), WAIT_S)
        assert client.status().caught_up_scn == 0
        assert not client.status().ready
        execute(destination_database, LATE)

        def write(number: int) -> None:
            execute(
                source_database,
                f"INSERT INTO late VALUES ({number}, 2); UPDATE late SET note = note + 1 WHERE id ="
                f" {number % 3000 + 1}; INSERT INTO first VALUES ({number}, 'x')",
            )

        with steadily(write, pause_s=0.01, first=6001):
            wait_for("the late table to join", lambda: states()["late"] in {"JOINING", "DONE"}, WAIT_S)
            scn = execute(destination_database, "SELECT scn FROM headrace.instantiation WHERE name = 'late'")[0][0]
            client.copy_again(pb.CopyAgainRequest(tables=[pb.TableName(owner="public", name="late")]))
            later = (
                "SELECT 1 FROM headrace.instantiation WHERE name = 'late' AND scn > %s AND state IN ('JOINING', 'DONE')"
            )
            wait_for("the copy made again to join", lambda: execute(destination_database, later, scn), WAIT_S)
        end = end_of_log(source_database)
        wait_for("everything", lambda: client.status().low_watermark_scn >= end, WAIT_S)
        for table in ("first", "late"):
            assert digest(source_database, table) == digest(destination_database, table), table
        assert execute(destination_database, "SELECT * FROM headrace.apply_error") == []
        wait_for(
            "the late table to be done",
            lambda: states() == {"first": "DONE", "late": "DONE", "nothing": "FAILED"},
            WAIT_S,
        )
        # The source is idle, and one table cannot be copied: the queue may still forget its changes.
        wait_for("the queue to get the position", lambda: client.status().counters["told_scn"] >= end, WAIT_S)
    finally:
        driver.stop(5.0)
        has_ended = driver.join(60.0)
        queue.close()
    assert has_ended
    driver.outcome()


def test_failing_function_ends_the_apply_process_with_the_lcrs_name(
    source_database: str, destination_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that cannot be transformed is no error transaction: nothing after it is applied, and nothing is lost."""
    monkeypatch.setattr(apply_driver, "TaskRunner", Runner)
    for dsn in (source_database, destination_database):
        execute(dsn, "CREATE TABLE first (id integer PRIMARY KEY, v text)")
    execute(source_database, "INSERT INTO first SELECT i, 'v' FROM generate_series(1, 20) i")
    queue = MinedQueue(tmp_path, source_database, destination_database, topology="failing_test")

    def start(fails: str) -> Any:
        text = (
            f"def mask(lcr):\n    if {fails}:\n        raise ValueError('no')\n    lcr.set_value('new', 'v',"
            " 'masked')\n    return lcr\n"
        )
        masked = Transformation(custom=custom(text, columns=("v",)))
        config = queue.config(
            (replace(each, transformations=(masked,)) for each in queue.tables(("first",))),
            rules=(RuleSet(include=(Rule(owner="public", name="first", transformation=masked),)),),
        )
        return queue.start_driver(config)

    def there() -> list[tuple[Any, ...]]:
        return execute(destination_database, "SELECT id, v FROM first ORDER BY id")

    copied = [(number, "masked") for number in range(1, 21)]
    driver = start("lcr.get_value('new', 'id').decoded == 102")
    try:
        wait_for("the copy", lambda: [each.state for each in driver.control.status().instantiation] == ["DONE"], WAIT_S)
        execute(source_database, "INSERT INTO first VALUES (101, 'own')")
        wait_for("a change", lambda: len(there()) == 21, WAIT_S)
        for number in (102, 103):
            execute(source_database, f"INSERT INTO first VALUES ({number}, 'own')")
        wait_for("the driver to end", lambda: driver.join(0.1), WAIT_S)
        with pytest.raises(TransformationError) as ended:
            driver.outcome()
        assert "own:mask" in ended.value.message
        assert re.search(
            r"\(LCR: INSERT of public\.first, number 1 of transaction \d+ of dbs1, SCN ", ended.value.message
        )
        assert there() == [*copied, (101, "masked")]
        driver = start("False")
        wait_for("everything", lambda: driver.outcome() or len(there()) == 23, WAIT_S)
        assert there() == [*copied, *((number, "masked") for number in (101, 102, 103))]
        assert execute(destination_database, "SELECT * FROM headrace.apply_error") == []
    finally:
        driver.stop(5.0)
        has_ended = driver.join(60.0)
        queue.close()
    assert has_ended
