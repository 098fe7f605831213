"""An apply server is killed while it writes to the error queue, and while it executes an error transaction."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.clusters.faults import apply_name, armed, delete_errors, errors
from tests.support.clusters.system import System, wait_until
from tests.support.session.matrices import values

pytestmark = [pytest.mark.unit("one_way"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def conflict(one_way: System) -> Iterator[str]:
    """Give the destination a row that the source is going to insert; afterwards both sides are equal again."""
    one_way.execute("src", "TRUNCATE notes")
    one_way.wait_caught_up()
    one_way.execute("dst", "INSERT INTO notes VALUES (1, 'in the way')")
    yield "INSERT INTO notes VALUES (1, 'from the source'), (2, 'with it')"
    delete_errors(one_way)
    one_way.execute("dst", "TRUNCATE notes")
    one_way.execute("src", "TRUNCATE notes")
    one_way.assert_converged(["notes"])


@pytest.mark.fault("SIGKILL while writing to the error queue")
def test_transaction_enters_the_error_queue_once_despite_a_kill(one_way: System, conflict: str):
    with armed(one_way, "apply.error_queue_write", times=2) as fired:
        one_way.execute("src", conflict)
        # Depends on it: joins it in the error queue. Independent transactions continue.
        one_way.execute("src", "UPDATE notes SET body = 'changed' WHERE id = 1")
        one_way.execute("src", "INSERT INTO notes VALUES (3, 'independent')")
        wait_until("the kill came twice", lambda: fired() == 2)
        one_way.wait_caught_up()
    found = errors(one_way)
    assert [error["row_count"] for error in found] == [2, 1]
    assert found[1]["depends_on"] == found[0]["number"]
    assert one_way.execute("dst", "SELECT * FROM notes ORDER BY id") == [(1, "in the way"), (3, "independent")]


@pytest.mark.soak
@pytest.mark.fault("SIGKILL while executing an error transaction")
def test_error_transaction_is_executed_once_despite_a_kill(one_way: System, conflict: str):
    one_way.execute("src", conflict)
    one_way.wait_caught_up()
    (error,) = errors(one_way)
    one_way.execute("dst", "DELETE FROM notes WHERE id = 1")
    with armed(one_way, "apply.execute_error") as fired:
        outcomes = one_way.execute_errors(apply_name(one_way), [error["number"]])
        assert fired() == 1
    assert [(outcome["done"], outcome["problem"]) for outcome in outcomes] == [(True, "")]
    assert errors(one_way) == []
    one_way.assert_converged(["notes"])
    assert one_way.execute("dst", "SELECT count(*) FROM notes") == [(2,)]


@pytest.mark.fault("SIGKILL while executing many error transactions")
@pytest.mark.parametrize("place", values(["apply.execute_error", "apply.after_commit"], "apply.after_commit"))
def test_error_transactions_executed_together_apply_once_despite_a_kill(one_way: System, conflict: str, place: str):
    one_way.execute("src", conflict)
    for number in range(20):  # each depends on its predecessor
        one_way.execute("src", f"UPDATE notes SET body = 'changed {number}' WHERE id = 1")
    one_way.wait_caught_up()
    numbers = [error["number"] for error in errors(one_way)]
    assert len(numbers) == 21
    one_way.execute("dst", "DELETE FROM notes WHERE id = 1")
    with armed(one_way, place) as fired:
        outcomes = one_way.execute_errors(apply_name(one_way))
        assert fired() == 1
    assert [(outcome["number"], outcome["done"]) for outcome in outcomes] == [(number, True) for number in numbers]
    assert errors(one_way) == []
    one_way.assert_converged(["notes"])
    assert one_way.execute("dst", "SELECT body FROM notes WHERE id = 1") == [("changed 19",)]
