"""New and dropped tables at a destination: made with their record, taken over, refused; dropped if they are the copied ones.

The suite runs over the memory database and PostgreSQL.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.base.errors import DataError
from headrace.databases.ports import DDL_REFUSED, DdlOutcomeKind, Instantiation
from headrace.databases.table_digest import TableDigest
from tests.support.databases.destination_contract import APPLY, TAG, TOPOLOGY, commit, ranges
from tests.support.databases.table_changes import (
    add_column,
    change,
    created,
    dropped,
    history,
    identity_of,
    place,
    recorded,
    skip,
)
from tests.support.values.ddl_changes import column
from tests.support.values.writes import insert, int4

COLUMNS = [("id", "int4"), ("a", "text")]
OTHER = "apply_of_another"


def records(destination, apply=APPLY):
    return {(each.identity, each.name): each for each in destination.instantiations(TOPOLOGY, apply)}


def record(destination):
    (found,) = destination.instantiations(TOPOLOGY, APPLY)
    return found


def is_there(session, name="v"):
    return session.describe("public", name, fresh=True) is not None


def copied(destination, name="v", number=None, *, apply=APPLY, state="DONE", source="a"):
    """Record a table as one that was copied."""
    progress = destination.progress(TOPOLOGY, apply) or destination.raise_epoch(TOPOLOGY, apply)
    identity = identity_of() if number is None else identity_of(number)
    made = Instantiation(
        source=source, identity=identity, owner="public", name=name, scn=5, state=state, digest=str(TableDigest())
    )
    assert destination.record_instantiation(TOPOLOGY, apply, progress.epoch, made)


def refused(session, found, number=0):
    session.begin()
    with pytest.raises(DataError) as caught:
        session.change_table(found, place(number))
    session.rollback()
    assert DDL_REFUSED in caught.value.context
    return caught.value


# --------------------------------------------------------------------------- creating


def test_table_is_made_with_its_record_and_takes_rows_in_the_transaction(harness, session, destination):
    session.begin()
    outcome = session.change_table(created(harness), place(1))
    assert outcome.kind is DdlOutcomeKind.APPLIED
    table = session.describe("public", "v")
    assert [(each.name, each.not_null) for each in table.columns] == [("id", True), ("a", False)]
    assert (table.key, table.serialise) == ((0,), False)
    assert session.write([insert(table, [(int4(1), b"x"), (int4(2), None)])]) == (2,)
    session.commit(ranges((0, 200)), 0)
    assert harness.rows("v") == [(int4(1), b"x"), (int4(2), None)]
    found = record(destination)
    assert (found.source, found.identity, found.owner, found.name) == ("a", identity_of(), "public", "v")
    assert (found.scn, found.state, found.row_count, found.problem) == (place().order_scn, "DONE", 0, "")
    assert (found.digest, found.is_kept) == (str(TableDigest()), False)
    assert found.may_be("public", "v")
    assert history(harness) == [("APPLIED", "public.v", 1, "")]
    assert destination.progress(TOPOLOGY, APPLY).low_watermark == 200


def test_rollback_leaves_neither_table_nor_record(harness, session, destination):
    session.begin()
    session.change_table(created(harness), place())
    session.write([insert(session.describe("public", "v"), [(int4(1), b"x")])])
    session.rollback()
    assert not is_there(session)
    assert (records(destination), history(harness)) == ({}, [])
    assert change(session, created(harness))[0].kind is DdlOutcomeKind.APPLIED


@pytest.mark.parametrize("to_mark", [True, False])
def test_table_is_undone_with_what_follows_a_savepoint(harness, session, destination, to_mark):
    session.begin()
    mark = session.mark() if to_mark else session.savepoint()
    session.change_table(created(harness), place())
    if to_mark:
        session.undo_to_mark(mark)
    else:
        session.rollback_to_savepoint()
    session.change_table(created(harness, "w", number=16500), place(1))
    session.commit([], 0)
    assert (is_there(session), is_there(session, "w")) == (False, True)
    assert [each.name for each in records(destination).values()] == ["w"]
    assert [each[2] for each in history(harness)] == [1]


def test_table_is_altered_in_the_transaction_that_makes_it(harness, session):
    session.begin()
    session.change_table(created(harness), place())
    session.write([insert(session.describe("public", "v"), [(int4(1), b"x")])])
    session.commit([], 0)
    (outcome,) = change(session, recorded(harness, add_column("b"), "v"), first=1)
    assert outcome.kind is DdlOutcomeKind.APPLIED
    assert [each.name for each in session.describe("public", "v").columns] == ["id", "a", "b"]


def test_outcomes_are_found_by_their_places(harness, session, destination):
    change(session, created(harness), created(harness, "w", number=16500, made=_not_published("because")))
    places = [place(0), place(1), place(2)]
    assert destination.ddl_outcomes(TOPOLOGY, APPLY, places) == {
        place(0): DdlOutcomeKind.APPLIED,
        place(1): DdlOutcomeKind.NOT_APPLIED,
    }
    assert destination.ddl_outcomes(TOPOLOGY, "another", places) == {}
    assert destination.ddl_outcomes(TOPOLOGY, APPLY, [replace(place(0), order_scn=7)]) == {}
    assert destination.ddl_outcomes(TOPOLOGY, APPLY, []) == {}


def _not_published(why_not):
    return {"identities": {}, "why_not": why_not, "sequences": {}}


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (_not_published("it is unlogged"), "it is unlogged; the next headrace up copies it"),
        (
            {"identities": {"another": "1.1.16400.9"}, "why_not": "", "sequences": {}},
            "its rows are not in the log; the next headrace up copies it",
        ),
    ],
)
def test_table_whose_rows_are_not_in_the_log_is_recorded_only(harness, session, destination, made, reason):
    (outcome,) = change(session, created(harness, made=made))
    assert (outcome.kind, outcome.reason) == (DdlOutcomeKind.NOT_APPLIED, reason)
    assert not is_there(session)
    assert records(destination) == {}


def test_skipped_creation_makes_nothing(harness, session, destination):
    found = created(harness)
    harness.create_table("v", [("id", "text")])
    error = refused(session, found)
    skip(harness, error.hint)
    assert change(session, found)[0].kind is DdlOutcomeKind.SKIPPED
    assert records(destination) == {}
    assert [each.name for each in session.describe("public", "v", fresh=True).columns] == ["id"]


# --------------------------------------------------------------------------- a table that is there


def test_equal_empty_table_is_taken_over(harness, session, destination):
    harness.create_table("v", COLUMNS, key=["id"])
    (outcome,) = change(session, created(harness))
    assert (outcome.kind, outcome.statements) == (DdlOutcomeKind.PASSED_OVER, ())
    assert record(destination).state == "DONE"
    assert commit(session, insert(session.describe("public", "v"), [(int4(1), b"x")])) == (1,)


def test_equal_table_with_rows_is_refused_until_it_is_empty(harness, session, destination):
    harness.create_table("v", COLUMNS, key=["id"])
    harness.insert("v", [(b"7", b"mine")])
    assert "of that name with rows" in refused(session, created(harness)).message
    assert (len(harness.rows("v")), records(destination), history(harness)) == (1, {}, [])
    harness.drop_table("v")
    assert change(session, created(harness))[0].kind is DdlOutcomeKind.APPLIED


def test_table_with_more_columns_is_taken_over(harness, session):
    harness.create_table("v", [*COLUMNS, ("mine", "text")], key=["id"])
    assert change(session, created(harness))[0].kind is DdlOutcomeKind.PASSED_OVER


@pytest.mark.parametrize(
    ("columns", "key"),
    [([("id", "int4")], ["id"]), ([("id", "int4"), ("a", "int4")], ["id"]), (COLUMNS, [])],
)
def test_table_of_another_form_is_refused(harness, session, destination, columns, key):
    harness.create_table("v", columns, key=key, not_null=["id"])
    assert "another table of that name" in refused(session, created(harness)).message
    assert (records(destination), history(harness)) == ({}, [])


def test_table_of_another_apply_process_is_refused(harness, session, destination):
    harness.create_table("v", COLUMNS, key=["id"])
    copied(destination, number=999, apply=OTHER)
    assert OTHER in refused(session, created(harness)).message
    assert records(destination) == {}


def test_table_of_another_table_at_the_source_is_refused(harness, session, destination):
    harness.create_table("v", COLUMNS, key=["id"])
    copied(destination, number=999)
    assert "recorded for" in refused(session, created(harness)).message


def test_table_that_is_recorded_already_keeps_its_record(harness, session, destination):
    harness.create_table("v", COLUMNS, key=["id"])
    copied(destination, state="COPYING")
    before = records(destination)
    assert change(session, created(harness))[0].kind is DdlOutcomeKind.PASSED_OVER
    assert records(destination) == before


def test_record_of_an_earlier_table_of_the_name_goes(harness, session, destination):
    harness.create_table("v", COLUMNS, key=["id"])
    copied(destination, number=999)
    harness.drop_table("v")
    change(session, created(harness))
    assert [identity for identity, _ in records(destination)] == [identity_of()]


def test_from_the_error_queue_it_is_to_be_copied(harness, session, destination):
    session.begin()
    outcome = session.change_table(created(harness), place(), is_in_order=False)
    session.commit([], 0)
    assert (outcome.kind, outcome.reason) == (
        DdlOutcomeKind.APPLIED,
        "made from the error queue: the table is copied",
    )
    found = record(destination)
    assert (found.state, found.scn, found.digest) == ("COPYING", 1, "")


# --------------------------------------------------------------------------- dropping


def test_dropped_table_goes_with_its_record(harness, session, destination):
    change(session, created(harness))
    (outcome,) = change(session, dropped(harness), first=1)
    assert outcome.kind is DdlOutcomeKind.APPLIED
    assert (is_there(session), records(destination)) == (False, {})
    assert [each[0] for each in history(harness)] == ["APPLIED", "APPLIED"]


def test_copied_table_with_rows_is_dropped(harness, session, destination):
    harness.create_table("v", COLUMNS, key=["id"])
    harness.insert("v", [(b"7", b"x")])
    copied(destination)
    assert change(session, dropped(harness))[0].kind is DdlOutcomeKind.APPLIED
    assert (is_there(session), records(destination)) == (False, {})


def test_missing_table_is_passed_over(harness, session):
    assert change(session, dropped(harness))[0].kind is DdlOutcomeKind.PASSED_OVER


def test_record_of_a_table_that_is_gone_goes_with_it(harness, session, destination):
    harness.create_table("v", COLUMNS, key=["id"])
    copied(destination)
    harness.drop_table("v")
    assert change(session, dropped(harness))[0].kind is DdlOutcomeKind.PASSED_OVER
    assert records(destination) == {}


def test_table_that_has_another_name_here_stays_and_is_named(harness, session, destination):
    harness.create_table("v", COLUMNS, key=["id"])
    copied(destination)
    harness.rename_table("v", "w")
    (outcome,) = change(session, dropped(harness))
    assert (outcome.kind, "is called public.w here" in outcome.reason) == (DdlOutcomeKind.NOT_APPLIED, True)
    assert (is_there(session, "w"), len(records(destination))) == (True, 1)


@pytest.mark.parametrize("number", [None, 999])
def test_table_that_was_not_copied_stays(harness, session, destination, number):
    harness.create_table("v", COLUMNS, key=["id"])
    if number is not None:
        copied(destination, number=number)
    (outcome,) = change(session, dropped(harness))
    assert (outcome.kind, outcome.reason) == (
        DdlOutcomeKind.NOT_APPLIED,
        "the destination's table of that name is not the one that was copied",
    )
    assert is_there(session)


def test_later_table_of_the_name_stays(harness, session, destination):
    harness.create_table("v", COLUMNS, key=["id"])
    copied(destination)
    harness.drop_table("v")
    harness.create_table("v", COLUMNS, key=["id"])
    assert change(session, dropped(harness))[0].kind is DdlOutcomeKind.NOT_APPLIED
    assert is_there(session)


def test_table_with_rows_of_another_source_stays(harness, session, destination):
    harness.create_table("v", COLUMNS, key=["id"])
    copied(destination)
    copied(destination, number=999, apply=OTHER, source="c")
    (outcome,) = change(session, dropped(harness))
    assert (outcome.kind, OTHER in outcome.reason) == (DdlOutcomeKind.NOT_APPLIED, True)
    assert is_there(session)


def test_create_rows_drop_and_create_again_in_one_transaction(harness, session, destination):
    session.begin()
    session.change_table(created(harness), place(0))
    session.write([insert(session.describe("public", "v"), [(int4(1), b"x")])])
    session.change_table(dropped(harness), place(1))
    other = column(1, "id", not_null=True), column(2, "z", "text")
    session.change_table(created(harness, "v", *other, number=16500), place(2))
    session.write([insert(session.describe("public", "v"), [(int4(2), b"y")])])
    session.commit([], 0)
    assert harness.rows("v") == [(int4(2), b"y")]
    assert [identity for identity, _ in records(destination)] == [identity_of(16500)]
    assert [each[0] for each in history(harness)] == ["APPLIED"] * 3


def test_rollback_brings_a_dropped_table_and_its_record_back(harness, session, destination):
    change(session, created(harness))
    commit(session, insert(session.describe("public", "v"), [(int4(1), b"x")]))
    before = records(destination)
    session.begin()
    session.change_table(dropped(harness), place(1))
    session.rollback()
    assert (harness.rows("v"), records(destination)) == ([(int4(1), b"x")], before)
    assert commit(session, insert(session.describe("public", "v", fresh=True), [(int4(2), b"y")])) == (1,)


def test_others_see_the_record_with_the_commit(harness, session, destination):
    session.begin()
    session.change_table(created(harness), place())
    assert records(destination) == {}
    session.commit([], 0)
    before = records(destination)
    session.begin()
    session.change_table(dropped(harness), place(1))
    assert records(destination) == before
    session.commit([], 0)
    assert records(destination) == {}


def test_crash_loses_table_and_record_together_or_neither(harness, session, destination, open_session):
    change(session, created(harness))
    harness.crash()
    later = harness.destination()
    epoch = later.raise_epoch(TOPOLOGY, APPLY).epoch
    assert [each.state for each in later.instantiations(TOPOLOGY, APPLY)] == ["DONE"]
    opened = later.open_session(TOPOLOGY, APPLY, server=0, epoch=epoch, tag=TAG)
    assert is_there(opened)
    opened.close()
