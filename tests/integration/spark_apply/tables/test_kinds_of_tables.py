"""Tables of every kind through the whole system: log, redo, capture, queues, wire, Spark, destination."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.clusters.system import System

pytestmark = [pytest.mark.unit("one_way"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]


def both(system: System, query: str) -> list[tuple[Any, ...]]:
    """Return the answer of both sides, which must be the same."""
    found = system.execute("src", query)
    assert system.execute("dst", query) == found
    return found


def test_partitioned_table_arrives_in_differently_cut_partitions(one_way: System):
    one_way.execute(
        "src", "INSERT INTO parts SELECT i, date '2025-06-01' + i % 400, 'row ' || i FROM generate_series(1, 2000) i"
    )
    one_way.execute("src", "UPDATE parts SET body = body || '!' WHERE id % 3 = 0")
    one_way.execute("src", "UPDATE parts SET day = day + 300 WHERE id % 7 = 0")  # rows move between partitions
    one_way.execute("src", "DELETE FROM parts WHERE id % 5 = 0")
    one_way.assert_converged(["parts"])
    assert both(one_way, "SELECT count(*) FROM parts") == [(1600,)]
    one_way.execute("src", "TRUNCATE parts")
    one_way.assert_converged(["parts"])


def test_generated_and_identity_columns_have_the_sources_values(one_way: System):
    one_way.execute("src", "INSERT INTO computed (a) SELECT i FROM generate_series(1, 100) i")
    one_way.execute("src", "UPDATE computed SET a = a + 1 WHERE id % 2 = 0")
    one_way.execute("src", "DELETE FROM computed WHERE id % 3 = 0")
    one_way.execute("src", "UPDATE computed SET id = DEFAULT WHERE id = 1")  # the key itself advances
    one_way.assert_converged(["computed"])
    assert both(one_way, "SELECT count(*), sum(b - 2 * a), sum(c - 3 * a), max(id) FROM computed") == [(67, 0, 0, 101)]
    one_way.execute("src", "TRUNCATE computed")
    one_way.assert_converged(["computed"])


def test_keyless_table_keeps_its_number_of_duplicates(one_way: System):
    one_way.execute(
        "src", "INSERT INTO twins SELECT i % 3, CASE i % 2 WHEN 0 THEN 'x' END FROM generate_series(1, 120) i"
    )
    for statement in (
        "UPDATE twins SET b = 'one' WHERE ctid = (SELECT min(ctid) FROM twins WHERE a = 1 AND b IS NULL)",
        "DELETE FROM twins WHERE ctid IN (SELECT ctid FROM twins WHERE a = 2 AND b = 'x' LIMIT 7)",
        "DELETE FROM twins WHERE ctid = (SELECT min(ctid) FROM twins WHERE a = 0 AND b IS NULL)",
    ):
        one_way.execute("src", statement)
    one_way.assert_converged(["twins"])
    assert both(one_way, "SELECT a, b, count(*) FROM twins GROUP BY a, b ORDER BY a, b") == [
        (0, "x", 20),
        (0, None, 19),
        (1, "one", 1),
        (1, "x", 20),
        (1, None, 19),
        (2, "x", 13),
        (2, None, 20),
    ]
    one_way.execute("src", "TRUNCATE twins")
    one_way.assert_converged(["twins"])


@pytest.mark.parametrize("table", ["toasted", "toasted_full"])
def test_large_values_that_an_update_leaves_unchanged_stay(one_way: System, table: str):
    one_way.execute(
        "src",
        f"INSERT INTO {table} (id, small, big) SELECT i, 's', repeat(md5(i::text), 200) FROM generate_series(1, 50) i",
    )
    one_way.wait_caught_up()
    one_way.execute("src", f"UPDATE {table} SET small = 'changed' WHERE id <= 20")
    one_way.execute("src", f"UPDATE {table} SET id = id + 1000 WHERE id BETWEEN 11 AND 30")
    # In one transaction, so in one group: inserted, then changed beside its large value, then the large value changed
    # too.
    one_way.execute(
        "src",
        f"""BEGIN; INSERT INTO {table} (id, small, big) VALUES (5000, 's', repeat('new', 4000));
        UPDATE {table} SET small = 't' WHERE id = 5000; UPDATE {table} SET big = repeat('newer', 3000) WHERE id = 5000; COMMIT""",
    )
    one_way.assert_converged([table])
    assert both(one_way, f"SELECT count(*), min(length(big)) FROM {table}") == [(51, 6400)]
    one_way.execute("src", f"TRUNCATE {table}")
    one_way.assert_converged([table])


def test_truncate_of_several_tables_with_cascade_and_identity_is_in_order(one_way: System):
    fill = "INSERT INTO parent SELECT generate_series(1, 10); INSERT INTO child (id) SELECT generate_series(1, 10)"
    one_way.execute("src", fill)
    one_way.execute("src", "TRUNCATE parent RESTART IDENTITY CASCADE")
    one_way.execute("src", "INSERT INTO parent VALUES (77); INSERT INTO child (id) VALUES (77)")
    one_way.assert_converged(["parent", "child"])
    assert both(one_way, "SELECT id, number FROM child") == [(77, 1)]
    one_way.execute("src", "BEGIN; TRUNCATE parent, child; INSERT INTO parent VALUES (78); COMMIT")
    one_way.assert_converged(["parent", "child"])
    assert both(one_way, "SELECT id FROM parent") == [(78,)]
