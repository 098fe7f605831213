"""Renamed tables at a destination: the recorded table gets the name, and its record with it, or nothing happens.

The suite runs over the memory database and PostgreSQL.
"""

from __future__ import annotations

import pytest

from headrace.base.errors import DataError
from headrace.databases.ports import DDL_REFUSED, DdlOutcomeKind
from tests.support.databases.destination_contract import APPLY, TOPOLOGY, commit
from tests.support.databases.table_changes import change, created, dropped, history, identity_of, place, renamed
from tests.support.values.writes import insert, int4

OTHER = 16500  # number of the second table


def names(destination):
    """Return the recorded name and the name of now of each table, by identity."""
    found = destination.instantiations(TOPOLOGY, APPLY)
    assert not any(each.is_remade for each in found)
    assert all(each.name_now == (each.owner, each.name) for each in found)
    return {each.identity: each.name for each in found}


def is_there(session, name):
    return session.describe("public", name, fresh=True) is not None


def test_table_record_and_rows_keep_together(harness, session, destination):
    change(session, created(harness))
    commit(session, insert(session.describe("public", "v"), [(int4(1), b"x")]))
    session.begin()
    assert session.change_table(renamed(harness, "v", "w"), place(1)).kind is DdlOutcomeKind.APPLIED
    session.write([insert(session.describe("public", "w"), [(int4(2), b"y")])])
    session.commit([], 0)
    assert harness.rows("w") == [(int4(1), b"x"), (int4(2), b"y")]
    assert (names(destination), is_there(session, "v")) == ({identity_of(): "w"}, False)
    assert history(harness)[-1] == ("APPLIED", "public.v", 1, "")


@pytest.mark.parametrize("how", ["rollback", "savepoint", "mark"])
def test_rename_is_undone(harness, session, destination, how):
    change(session, created(harness))
    session.begin()
    mark = session.mark() if how == "mark" else session.savepoint()
    session.change_table(renamed(harness, "v", "w"), place(1))
    if how == "rollback":
        session.rollback()
    else:
        session.undo_to_mark(mark) if how == "mark" else session.rollback_to_savepoint()
        session.commit([], 0)
    assert (names(destination), is_there(session, "v"), is_there(session, "w")) == ({identity_of(): "v"}, True, False)
    assert change(session, renamed(harness, "v", "w"))[0].kind is DdlOutcomeKind.APPLIED


def test_nobody_else_sees_the_name_before_the_commit(harness, session, destination):
    change(session, created(harness))
    session.begin()
    session.change_table(renamed(harness, "v", "x"), place(1))
    session.change_table(renamed(harness, "x", "w"), place(2))
    assert names(destination) == {identity_of(): "v"}
    session.commit([], 0)
    assert names(destination) == {identity_of(): "w"}


def test_names_are_exchanged_and_a_name_is_taken_anew(harness, session, destination):
    change(session, created(harness), created(harness, "w", number=OTHER))
    change(
        session,
        renamed(harness, "v", "x"),
        renamed(harness, "w", "v", made_as="w", number=OTHER),
        renamed(harness, "x", "w"),
        first=2,
    )
    assert names(destination) == {identity_of(): "w", identity_of(OTHER): "v"}
    change(
        session,
        dropped(harness, "v", number=OTHER),
        renamed(harness, "w", "old"),
        created(harness, "w", number=16600),
        first=5,
    )
    assert names(destination) == {identity_of(): "old", identity_of(16600): "w"}
    change(session, dropped(harness, "old"), first=8)
    assert names(destination) == {identity_of(16600): "w"}


def test_taken_name_is_refused(harness, session, destination):
    change(session, created(harness))
    harness.create_table("w", [("id", "int4")])
    session.begin()
    with pytest.raises(DataError) as caught:
        session.change_table(renamed(harness, "v", "w"), place(1))
    session.rollback()
    assert DDL_REFUSED in caught.value.context
    assert names(destination) == {identity_of(): "v"}
    harness.drop_table("w")
    assert change(session, renamed(harness, "v", "w"))[0].kind is DdlOutcomeKind.APPLIED


def test_table_without_a_record_is_not_renamed(harness, session, destination):
    harness.create_table("v", [("id", "int4"), ("a", "text")], key=["id"])
    assert change(session, renamed(harness, "v", "w"))[0].kind is DdlOutcomeKind.NOT_APPLIED
    assert (is_there(session, "v"), is_there(session, "w")) == (True, False)


def test_table_that_leaves_the_rules_is_recorded_as_left(harness, session, destination):
    change(session, created(harness))
    found = renamed(harness, "v", "w").not_made("the rules do not take it", leaves=True)
    (outcome,) = change(session, found, first=1)
    assert (outcome.kind, outcome.reason) == (DdlOutcomeKind.NOT_APPLIED, "the rules do not take it")
    assert [each.state for each in destination.instantiations(TOPOLOGY, APPLY)] == ["LEFT"]
    assert names(destination) == {identity_of(): "v"}
