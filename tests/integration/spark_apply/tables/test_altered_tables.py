"""ALTER TABLE at the source: apply pauses and names the missing statement; after it has run, nothing is lost and
nothing failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.clusters.faults import apply_name
from tests.support.clusters.system import System, wait_until

pytestmark = [pytest.mark.unit("one_way"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

PAUSED = "PAUSED: WAITING FOR ALTER"


@pytest.fixture
def altered(one_way: System) -> Iterator[System]:
    """Yield the shared topology; each test alters another column of `altered`, which is left empty and equal at both
    sides.
    """
    yield one_way
    one_way.execute("src", "TRUNCATE altered, notes")
    one_way.assert_converged(["altered", "notes"])
    # An ALTER that may have changed older rows is reported until both sides were found equal.
    compared = one_way.call(apply_name(one_way), "compare", (("public", "altered"),), 5, 0.5)
    assert [each["equal"] for each in compared] == [True]
    wait_until("nothing is said of any table", lambda: problems(one_way) == [])


def problems(system: System) -> list[str]:
    """Return the problems of the applied tables."""
    return [table["problem"] for table in system.status(apply_name(system))["instantiation"] if table["problem"]]


def write(system: System, alter: str, before: str, after: str) -> None:
    """Write a row before the ALTER, with key 1, one before and one after it in its transaction, one more, then another
    table's row.
    """
    with system.connection("src") as connection:
        for statement in (
            before.format(1),
            "BEGIN",
            before.format(2),
            alter,
            after.format(3),
            "COMMIT",
            after.format(4),
            "INSERT INTO notes VALUES (1, 'behind the ALTER')",
        ):
            connection.execute(statement)


def paused(system: System) -> dict[str, Any]:
    """Check that changes from before the ALTER are applied, all later ones wait, and none counts as failed."""
    system.wait_state(apply_name(system), PAUSED)
    wait_until("earlier changes are applied", lambda: system.execute("dst", "SELECT id FROM altered") == [(1,)])
    assert system.execute("dst", "SELECT * FROM notes") == []
    assert system.call(apply_name(system), "errors") == []
    status = system.wait_state(apply_name(system), PAUSED)
    assert "public.altered" in status["detail"]
    return status


def goes_on(system: System, statement: str) -> list[tuple[Any, ...]]:
    """Run the missing statement: all changes arrive and the error queue is empty. Return the destination's rows."""
    system.execute("dst", statement)
    system.wait_caught_up()
    assert system.call(apply_name(system), "errors") == []
    assert system.execute("dst", "SELECT * FROM notes") == [(1, "behind the ALTER")]
    rows = system.execute("dst", "SELECT * FROM altered ORDER BY id")
    assert [row[0] for row in rows] == [1, 2, 3, 4]
    return rows


def test_rewrite_that_fits_is_reported_and_a_copy_clears_it(altered: System):
    """The log has no part of it: earlier rows kept their old values at the destination."""
    name = apply_name(altered)
    altered.execute("src", "INSERT INTO altered (id, kind) VALUES (1, 2)")
    altered.wait_caught_up()
    altered.execute("src", "ALTER TABLE altered ALTER COLUMN kind TYPE int USING kind * 100")
    altered.execute("src", "INSERT INTO altered (id, kind) VALUES (2, 3)")
    altered.wait_caught_up()
    assert altered.call(name, "look_at_tables")
    (problem,) = wait_until("it is said", lambda: problems(altered))
    assert "column kind was rewritten" in problem
    assert "headrace copy FILE public.altered" in problem
    altered.call(name, "copy_again", (("public", "altered"),))
    wait_until(
        "it is copied again", lambda: altered.execute("dst", "SELECT kind FROM altered ORDER BY id") == [(200,), (3,)]
    )
    wait_until("nothing is said any more", lambda: problems(altered) == [])
    altered.wait_caught_up()


@pytest.mark.soak
def test_next_driver_also_waits_for_an_added_column(altered: System):
    write(
        altered,
        "ALTER TABLE altered ADD COLUMN pay numeric(8,2)",
        "INSERT INTO altered (id) VALUES ({})",
        "INSERT INTO altered (id, pay) VALUES ({}, 12.50)",
    )
    assert paused(altered)["hint"].startswith('ALTER TABLE "public"."altered" ADD COLUMN "pay" numeric(8,2);')
    hint = 'ALTER TABLE "public"."altered" ADD COLUMN "pay" numeric(8,2);'
    name = apply_name(altered)
    wait_until("the source has answered that older rows have no value", lambda: altered.status(name)["hint"] == hint)
    altered.wait_restarted(name, altered.kill(name))
    wait_until("the next driver waits", lambda: altered.status(name)["state"] == PAUSED)
    wait_until("it tells the next driver, too", lambda: altered.status(name)["hint"] == hint)
    rows = goes_on(altered, hint)
    assert [str(row[-1]) for row in rows] == ["None", "None", "12.50", "12.50"]
    altered.assert_converged(["altered"])


@pytest.mark.soak
def test_changed_type_is_waited_for(altered: System):
    write(
        altered,
        "ALTER TABLE altered ALTER COLUMN kind TYPE bigint",
        "INSERT INTO altered (id, kind) VALUES ({}, 1)",
        "INSERT INTO altered (id, kind) VALUES ({}, 5000000000)",
    )
    paused(altered)
    hint = 'ALTER TABLE "public"."altered" ALTER COLUMN "kind" TYPE int8;'
    # At first there are two fixes; the source is asked separately which one applies.
    wait_until("the source has answered", lambda: is_one_way(altered, hint))
    goes_on(altered, hint)
    altered.assert_converged(["altered"])


def is_one_way(altered: System, alter: str) -> bool:
    hint = str(altered.status(apply_name(altered))["hint"])
    return hint.startswith(alter) and "CREATE FUNCTION" not in hint


@pytest.mark.soak
def test_type_that_only_the_operator_can_convert_is_waited_for_twice(altered: System):
    """Rows from before the ALTER find the destination altered: a function repeats the source's USING."""
    using = "CASE mood WHEN 'l' THEN 1 ELSE 2 END"
    write(
        altered,
        f"ALTER TABLE altered ALTER COLUMN mood TYPE int USING {using}",
        "INSERT INTO altered (id, mood) VALUES ({}, 'l')",
        "INSERT INTO altered (id, mood) VALUES ({}, 7)",
    )
    paused(altered)
    alter = 'ALTER TABLE "public"."altered" ALTER COLUMN "mood" TYPE int4'
    wait_until("the source has answered", lambda: is_one_way(altered, f"{alter};"))
    altered.execute("dst", f"{alter} USING {using}")

    def asks_for_the_function() -> str:
        hint = str(altered.status(apply_name(altered))["hint"])
        return hint if "CREATE FUNCTION" in hint else ""

    hint = wait_until("the older rows wait", asks_for_the_function)
    function = hint.partition(" ...; -- these rows are older")[0]
    assert function == 'CREATE FUNCTION headrace."public.altered.mood"(text) RETURNS "pg_catalog"."int4"'
    goes_on(altered, f"{function} IMMUTABLE RETURN CASE $1 WHEN 'l' THEN 1 ELSE 2 END")
    altered.assert_converged(["altered"])
    altered.execute("dst", 'DROP FUNCTION headrace."public.altered.mood"')


def test_renamed_column_is_waited_for_and_keeps_its_values(altered: System):
    write(
        altered,
        "ALTER TABLE altered RENAME COLUMN name TO title",
        "INSERT INTO altered (id, name) VALUES ({}, 'kept')",
        "INSERT INTO altered (id, title) VALUES ({}, 'new')",
    )
    hint = paused(altered)["hint"]
    assert hint.startswith('ALTER TABLE "public"."altered" RENAME COLUMN "name" TO "title";')
    goes_on(altered, hint)
    altered.assert_converged(["altered"])
    assert altered.execute("dst", "SELECT title FROM altered ORDER BY id") == [("kept",), ("kept",), ("new",), ("new",)]


@pytest.mark.soak
def test_dropped_column_is_waited_for_where_a_value_is_required(altered: System):
    write(
        altered,
        "ALTER TABLE altered DROP COLUMN gone",
        "INSERT INTO altered (id) VALUES ({})",
        "INSERT INTO altered (id) VALUES ({})",
    )
    hint = paused(altered)["hint"]
    assert hint == 'ALTER TABLE "public"."altered" ALTER COLUMN "gone" DROP NOT NULL;'
    goes_on(altered, hint)
    found = altered.execute("dst", "SELECT gone FROM altered ORDER BY id")
    assert found == [("a default",), ("a default",), (None,), (None,)]
    altered.execute("dst", "ALTER TABLE altered DROP COLUMN gone")
    altered.assert_converged(["altered"])
