"""An apply process's state across its drivers: the error queue's holds, and the reason why it is aborted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.clusters.faults import apply_name, delete_errors, errors
from tests.support.clusters.system import System, wait_until

pytestmark = [pytest.mark.unit("one_way"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

_REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'the configuration is wrong' USING ERRCODE = 'F0000', HINT = 'correct what public.notes needs'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON notes FOR EACH ROW EXECUTE FUNCTION refuse();
ALTER TABLE notes ENABLE ALWAYS TRIGGER refuse
"""


@pytest.fixture
def empty(one_way: System) -> Iterator[System]:
    """The shared topology with `notes` empty, before and after."""
    one_way.execute("src", "TRUNCATE notes")
    one_way.wait_caught_up()
    yield one_way
    delete_errors(one_way)
    one_way.execute("dst", "TRUNCATE notes")
    one_way.execute("src", "TRUNCATE notes")
    one_way.assert_converged(["notes"])


@pytest.mark.fault("SIGKILL of the apply process while the error queue holds a transaction")
def test_dependents_join_an_error_transaction_in_order_across_drivers(empty: System):
    empty.execute("dst", "INSERT INTO notes VALUES (1, 'in the way')")
    empty.execute("src", "INSERT INTO notes VALUES (1, 'first'), (2, 'first')")
    empty.execute("src", "UPDATE notes SET body = 'second' WHERE id = 2")
    empty.wait_caught_up()
    assert [error["row_count"] for error in errors(empty)] == [2, 1]
    name = apply_name(empty)
    empty.wait_restarted(name, empty.kill(name))
    wait_until("the next driver applies", lambda: empty.status(name).get("ready"))

    empty.execute("src", "UPDATE notes SET body = body || ', third' WHERE id = 2")
    empty.execute("src", "BEGIN; DELETE FROM notes WHERE id = 2; INSERT INTO notes VALUES (3, 'with it'); COMMIT")
    empty.execute("src", "UPDATE notes SET body = 'fourth' WHERE id = 3")
    empty.execute("src", "INSERT INTO notes VALUES (4, 'independent')")
    empty.wait_caught_up()
    found = errors(empty)
    numbers = [error["number"] for error in found]
    assert [error["depends_on"] for error in found] == [0, *numbers[:-1]]
    assert [error["commit_scn"] for error in found] == sorted(error["commit_scn"] for error in found)
    assert empty.execute("dst", "SELECT * FROM notes ORDER BY id") == [(1, "in the way"), (4, "independent")]

    refused = empty.execute_errors(apply_name(empty), numbers[1:2])
    assert [(outcome["done"], str(numbers[0]) in outcome["problem"]) for outcome in refused] == [(False, True)]
    empty.execute("dst", "DELETE FROM notes WHERE id = 1")
    outcomes = empty.execute_errors(apply_name(empty))
    assert [(outcome["number"], outcome["done"]) for outcome in outcomes] == [(number, True) for number in numbers]
    empty.assert_converged(["notes"])
    assert empty.execute("dst", "SELECT * FROM notes ORDER BY id") == [(1, "first"), (3, "fourth"), (4, "independent")]


@pytest.mark.fault("an error that an operator must mend")
def test_error_for_an_operator_keeps_apply_aborted_until_it_is_started(
    empty: System,
):
    name = apply_name(empty)
    epoch = empty.status(name)["epoch"]
    empty.execute("dst", _REFUSE)
    try:
        empty.execute("src", "INSERT INTO notes VALUES (1, 'refused for a while')")
        status = empty.wait_state(name, "ABORTED")
        error = status["last_error"]
        assert error["error"] == "ApplyError"
        assert "the configuration is wrong" in error["message"]
        assert "correct what public.notes needs" in error["hint"]
        assert status["servers"] == []
        assert errors(empty) == []
    finally:
        empty.execute("dst", "DROP FUNCTION refuse CASCADE")
        empty.call(name, "start_component")
    wait_until("the next driver applies", lambda: (s := empty.status(name)).get("ready") and s["epoch"] > epoch)
    empty.assert_converged(["notes"])
    assert empty.execute("dst", "SELECT * FROM notes") == [(1, "refused for a while")]
