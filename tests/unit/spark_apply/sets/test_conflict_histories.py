"""Groups, sets and parallel servers equal the application of each transaction alone and row by row.

Rows, error queue and history of conflicts are compared.

The histories have all handlers with column lists, rows that differ or are missing, NULLs, key changes, a second unique
key, values missing from the log, and uncompared old values. `tests/integration` has the same on PostgreSQL.
"""

from __future__ import annotations

import pytest

from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.rules.conflict_handlers import METHODS_OF_KIND
from tests.support.histories.conflict_histories import (
    CHANGED_US,
    SITE,
    History,
    by_engine,
    described,
    one_by_one,
    random_history,
    random_timed_history,
)
from tests.support.histories.conflicts import COLUMNS, raw, shown
from tests.support.session.seeds import seeds

HISTORIES, MORE = 15, 600  # of each kind: a few seconds in `make test`
SEARCHED = 300  # seeds; a third of them is enough today


def place_of(history: History) -> tuple[MemoryStore, MemoryDestination]:
    store = MemoryStore()
    columns = [destination_column(name, f"pg_catalog.{kind}", equality="bytes") for name, kind in COLUMNS]
    store.create_table("public", "c", columns, key=["id"], unique=[["u"]] if history.is_unique else [])
    store.insert("public", "c", [raw(row) for row in history.here])
    for row in history.here if history.ages else ():
        store.changed_here("public", "c", raw(row[:1]), CHANGED_US)
    for key in history.gone:
        store.changed_here("public", "c", raw((key,)), CHANGED_US, is_gone=True)
    return store, MemoryDestination(store=store, site=SITE)


@pytest.mark.long
@pytest.mark.seeded
@pytest.mark.parametrize("made", [random_history, random_timed_history], ids=["by value", "by time"])
def test_groups_equal_application_of_each_transaction_alone(made) -> None:
    met = errors = 0
    for seed in (histories := seeds(f"conflicts of {made.__name__}", test=HISTORIES, soak=MORE)):
        history = made(seed)
        (alone, at_first), (grouped, at_last) = place_of(history), place_of(history)
        version = described(at_first, history)
        expected, found = one_by_one(at_first, "t", version, history), by_engine(at_last, "t", version, history, seed)
        assert [shown(row) for row in grouped.rows("public", "c")] == [
            shown(row) for row in alone.rows("public", "c")
        ], seed
        assert found.errors == expected.errors, seed
        # By time the last change of a row takes it whole: an earlier losing change of the same group meets no conflict.
        assert found.met == expected.met if not history.ages else set(found.met) <= set(expected.met), seed
        met, errors = met + len(found.met), errors + len(found.errors)
    assert met > len(histories), "too few conflicts: the histories prove nothing"
    assert errors > len(histories)


def test_change_with_missing_columns_gets_none_from_a_losing_change() -> None:
    """By time, an INSERT older than the row's DELETE loses: the UPDATE after it lacks columns of the row, whether both
    are in one group or not.
    """
    history = random_timed_history(125)
    (alone, at_first), (grouped, at_last) = place_of(history), place_of(history)
    version = described(at_first, history)
    expected, found = one_by_one(at_first, "t", version, history), by_engine(at_last, "t", version, history, 125)
    assert expected.errors[0] == (1130, "update_missing", False)
    assert found.errors == expected.errors
    assert [shown(row) for row in grouped.rows("public", "c")] == [shown(row) for row in alone.rows("public", "c")]


def test_histories_have_conflicts_that_each_method_resolves() -> None:
    """Else they prove nothing about it: a method that suits none of their columns and values gives up everywhere."""
    unseen = {(kind, method) for kind, methods in METHODS_OF_KIND.items() for method in methods}
    for seed in range(SEARCHED):
        for made in (random_history, random_timed_history):
            history = made(seed)
            _, destination = place_of(history)
            for met in one_by_one(destination, "t", described(destination, history), history).met:
                kind, handlers = met[3:5]
                if "the row is the same" not in handlers:  # no method is asked
                    unseen -= {(kind, each.partition("(")[0]) for each in handlers.split(", ")}
        if not unseen:
            return
    raise AssertionError(f"no history of {SEARCHED} has a conflict that these resolve: {sorted(unseen)}")
