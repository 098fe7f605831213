"""The contract of destination databases for writers: one suite over the memory database and PostgreSQL 18.

The harness provides what differs: creating tables, reading rows, losing the answer of a COMMIT.
`test_destination_records` tests a destination's records besides the rows.
"""

from __future__ import annotations

import pytest

from headrace.base.errors import BugError, DatabaseError, DatabaseUnavailable, DataError, UnfitTableError
from headrace.databases.ports import RowQuestion, TruncatedTable
from headrace.databases.postgres.destination.server_session import described_tables
from headrace.lcr.batch import Partition
from headrace.lcr.scn import Scn
from headrace.lcr.values import ABSENT
from tests.support.databases.destination_contract import (
    PostgresHarness,
    commit,
    keyed,
    keyless,
)
from tests.support.values.writes import delete, insert, int4, key_only, update, version_of

# --------------------------------------------------------------------------- tables


def test_describe_says_none_when_there_is_no_table(session):
    assert session.describe("public", "nowhere") is None


def test_describe_names_key_and_unique_keys_by_position(harness, session):
    harness.create_table("u", [("a", "text"), ("id", "int4"), ("b", "text")], key=["id"], unique=[["b", "a"]])
    table = session.describe("public", "u")
    assert table.key == (1,)
    assert set(table.unique_keys) == {(1,), (2, 0)}
    assert table.columns[1].not_null
    assert table.ordered
    assert not table.serialise


def test_table_without_key_is_serialised(harness, session):
    table = keyless(harness, session)
    assert table.key == ()
    assert table.serialise


def test_destination_and_session_describe_alike(harness, session, destination):
    assert destination.describe("public", "t") is None
    table = keyed(harness, session)
    assert destination.describe("public", "t") == table


# --------------------------------------------------------------------------- writing


def test_committed_rows_are_there_and_counted(harness, session):
    table = keyed(harness, session)
    counts = commit(session, insert(table, [(int4(1), b"x", None), (int4(2), b"", b"y")]))
    assert counts == (2,)
    assert harness.rows("t") == [(int4(1), b"x", None), (int4(2), b"", b"y")]


def test_rolled_back_rows_are_not_there(harness, session):
    table = keyed(harness, session)
    session.begin()
    session.write([insert(table, [(int4(1), b"x", None)])])
    session.rollback()
    assert harness.rows("t") == []
    assert commit(session, insert(table, [(int4(1), b"x", None)])) == (1,)


def test_writes_run_in_order_in_one_transaction(harness, session):
    table = keyed(harness, session)
    counts = commit(
        session,
        insert(table, [(int4(k), b"x", None) for k in range(3)]),
        update(table, [(int4(1), b"x", None)], [(int4(1), b"y", b"z")]),
        delete(table, [(int4(1), b"y", b"z"), (int4(2), b"x", None)]),
    )
    assert counts == (3, 1, 2)
    assert harness.rows("t") == [(int4(0), b"x", None)]


def test_update_sets_only_the_columns_it_is_told(harness, session):
    table = keyed(harness, session)
    commit(session, insert(table, [(int4(1), b"x", b"keep")]))
    changed = update(table, key_only(table, [[int4(1)]]), [(int4(1), b"new", ABSENT)], sets=[1], compare=[])
    assert commit(session, changed) == (1,)
    assert harness.rows("t") == [(int4(1), b"new", b"keep")]


@pytest.mark.parametrize("stored", [b"other", None])
def test_rows_whose_old_values_differ_are_not_counted_and_not_changed(harness, session, stored):
    table = keyed(harness, session)
    commit(session, insert(table, [(int4(1), stored, None)]))
    assert commit(session, update(table, [(int4(1), b"x", None)], [(int4(1), b"y", None)])) == (0,)
    assert commit(session, delete(table, [(int4(1), b"x", None)])) == (0,)
    assert harness.rows("t") == [(int4(1), stored, None)]


def test_old_null_matches_null(harness, session):
    table = keyed(harness, session)
    commit(session, insert(table, [(int4(1), None, None)]))
    assert commit(session, update(table, [(int4(1), None, None)], [(int4(1), b"y", None)])) == (1,)


def test_missing_row_is_not_counted(harness, session):
    table = keyed(harness, session)
    assert commit(session, delete(table, [(int4(1), b"x", None)])) == (0,)


def test_key_can_be_changed(harness, session):
    table = keyed(harness, session)
    commit(session, insert(table, [(int4(1), b"x", None)]))
    assert commit(session, update(table, [(int4(1), b"x", None)], [(int4(9), b"x", None)])) == (1,)
    assert harness.rows("t") == [(int4(9), b"x", None)]


def test_duplicates_without_key_are_paired_one_to_one(harness, session):
    table = keyless(harness, session)
    twin, other = (int4(1), None), (int4(2), b"b")
    commit(session, insert(table, [twin, twin, twin, other]))
    assert commit(session, delete(table, [twin])) == (1,)
    assert harness.rows("n") == [twin, twin, other]
    assert commit(session, update(table, [twin, twin], [(int4(5), b"p"), (int4(6), b"q")])) == (2,)
    assert harness.rows("n") == [other, (int4(5), b"p"), (int4(6), b"q")]
    assert commit(session, delete(table, [other, other])) == (1,)


def test_many_rows_in_one_write(harness, session):
    """Beyond the size at which a connector inserts in another way."""
    table = keyed(harness, session)
    rows = [(int4(k), b"v%d" % k, None if k % 3 else b"") for k in range(3000)]
    changed = [(k, b"w", b"") for k, _, _ in rows]
    assert commit(session, insert(table, rows)) == (3000,)
    assert commit(session, update(table, rows, changed)) == (3000,)
    assert harness.rows("t") == changed
    assert commit(session, delete(table, changed[:2000])) == (2000,)
    assert len(harness.rows("t")) == 1000


def test_write_of_no_rows_changes_nothing(harness, session):
    table = keyed(harness, session)
    assert commit(session, insert(table, [])) == (0,)


def test_truncate_empties_tables_and_can_be_rolled_back(harness, session):
    first, second = keyed(harness, session, "t"), keyed(harness, session, "t2")
    commit(session, insert(first, [(int4(1), b"x", None)]), insert(second, [(int4(1), b"x", None)]))
    session.begin()
    session.truncate([TruncatedTable(table=first), TruncatedTable(table=second)], restart_identity=False)
    session.rollback()
    assert len(harness.rows("t")) == 1
    session.begin()
    session.truncate([TruncatedTable(table=first), TruncatedTable(table=second)], restart_identity=False)
    session.commit([], 0)
    assert harness.rows("t") == harness.rows("t2") == []


def test_truncate_of_a_partition_deletes_its_rows_where_it_does_not_exist(harness, session):
    table = keyed(harness, session, "t")
    commit(session, insert(table, [(int4(1), b"x", None), (int4(2), b"y", None)]))
    session.begin()
    partition = Partition(owner="public", name="t_x", rows="a = 'x'")
    session.truncate([TruncatedTable(table=table, partition=partition)], restart_identity=False)
    session.commit([], 0)
    assert [row[0] for row in harness.rows("t")] == [int4(2)]


@pytest.mark.parametrize("rows", ["", "what is this ="])
def test_truncate_of_a_partition_whose_rows_cannot_be_told_is_a_data_error(harness, session, rows):
    table = keyed(harness, session, "t")
    commit(session, insert(table, [(int4(1), b"x", None)]))
    session.begin()
    with pytest.raises(DataError, match="t_x"):
        session.truncate(
            [TruncatedTable(table=table, partition=Partition(owner="public", name="t_x", rows=rows))],
            restart_identity=False,
        )
    session.rollback()
    assert len(harness.rows("t")) == 1


# --------------------------------------------------------------------------- errors


def test_unique_violation_is_a_data_error_and_fails_the_transaction(harness, session):
    table = keyed(harness, session)
    commit(session, insert(table, [(int4(1), b"x", None)]))
    session.begin()
    session.write([insert(table, [(int4(2), b"x", None)])])
    with pytest.raises(DataError) as caught:
        session.write([insert(table, [(int4(1), b"again", None)])])
    assert caught.value.context["sqlstate"] == "23505"
    assert caught.value.context["violates"] == "unique"
    assert caught.value.context["table"] == "public.t"
    with pytest.raises(BugError):
        session.write([insert(table, [(int4(3), b"x", None)])])
    session.rollback()
    assert harness.rows("t") == [(int4(1), b"x", None)]


def test_what_was_written_ahead_is_there_for_what_follows(harness, session):
    table = keyed(harness, session)
    session.begin()
    ahead = session.write_ahead([insert(table, [(int4(k), b"x", None) for k in range(3)])])
    behind = session.write_ahead(
        [update(table, [(int4(1), b"x", None), (int4(9), b"x", None)], [(int4(1), b"y", None), (int4(9), b"y", None)])]
    )
    assert (behind(), ahead(), behind()) == ((1,), (3,), (1,))
    session.write_ahead([delete(table, [(int4(0), b"x", None)])])
    session.commit([], Scn(0))
    assert harness.rows("t") == [(int4(1), b"y", None), (int4(2), b"x", None)]


def test_what_was_written_ahead_goes_with_a_rollback(harness, session):
    table = keyed(harness, session)
    commit(session, insert(table, [(int4(1), b"x", None)]))
    for key in (1, 2):  # one insert is refused, one is not
        session.begin()
        session.write_ahead([insert(table, [(int4(key), b"again", None)])])
        session.rollback()
    session.begin()
    for key, undo in ((1, "savepoint"), (2, "savepoint"), (1, "mark"), (2, "mark")):
        mark = session.mark() if undo == "mark" else session.savepoint()
        session.write_ahead([insert(table, [(int4(key), b"again", None)])])
        _ = session.rollback_to_savepoint() if undo == "savepoint" else session.undo_to_mark(mark)
    session.commit([], Scn(0))
    assert commit(session, insert(table, [(int4(2), b"x", None)])) == (1,)
    assert harness.rows("t") == [(int4(1), b"x", None), (int4(2), b"x", None)]


@pytest.mark.parametrize("undo", ["rollback", "savepoint", "mark"])
def test_rows_written_ahead_into_a_table_that_is_gone_can_be_undone(harness, session, undo):
    table = keyed(harness, session)
    commit(session, insert(table, [(int4(1), b"x", None)]))
    session.begin()
    mark = session.mark() if undo == "mark" else session.savepoint()
    harness.drop_table("t")
    ahead = session.write_ahead([insert(table, [(int4(2), b"x", None)])])
    undone = {
        "rollback": session.rollback,
        "savepoint": session.rollback_to_savepoint,
        "mark": lambda: session.undo_to_mark(mark),
    }
    undone[undo]()
    with pytest.raises(UnfitTableError):
        ahead()
    session.rollback()
    assert commit(session, insert(keyed(harness, session), [(int4(3), b"x", None)])) == (1,)


def test_a_row_is_removed_behind_what_was_written_ahead(harness, session):
    table = keyed(harness, session)
    row = (int4(1), b"x", None)
    commit(session, insert(table, [row]))
    session.begin()
    (found,) = session.find_rows(update(table, [row], [row]), RowQuestion(by_key=True))
    ahead = session.write_ahead([insert(table, [(int4(2), b"x", None)])])
    session.remove_row(table, found.number)
    assert ahead() == (1,)
    session.commit([], Scn(0))
    assert harness.rows("t") == [(int4(2), b"x", None)]


def test_query_prepared_before_a_type_change_is_retried_in_a_new_session(harness, session, open_session):
    """The rows are not at fault: the server refuses to answer a prepared query with other types.

    Here the column is one that does not arrive.
    """
    if not isinstance(harness, PostgresHarness):
        pytest.skip("nothing is prepared")
    table = keyed(harness, session)
    row, version = (int4(1), b"x"), version_of(table, without=["b"])
    commit(session, insert(table, [row], version))

    def found(session):
        session.begin()
        answer = session.find_rows(update(table, [row], [row], version=version), RowQuestion(by_key=True))
        session.rollback()
        return len(answer)

    assert [found(session), found(session)] == [1, 1]
    harness._admin.execute("ALTER TABLE t ALTER COLUMN b TYPE varchar(9)")
    with pytest.raises(DatabaseUnavailable, match="was altered"):
        found(session)
    assert found(open_session()) == 1


@pytest.mark.parametrize("follows", ["write", "write_ahead", "commit", "savepoint"])
def test_refused_rows_that_were_written_ahead_fail_what_follows(harness, session, follows):
    table = keyed(harness, session)
    commit(session, insert(table, [(int4(1), b"x", None)]))
    session.begin()
    session.savepoint()
    ahead = session.write_ahead([insert(table, [(int4(1), b"again", None)])])
    more = [insert(table, [(int4(2), b"x", None)])]
    calls = {"commit": lambda: session.commit([], Scn(0)), "savepoint": session.savepoint}
    with pytest.raises(DataError) as caught:
        calls.get(follows, lambda: getattr(session, follows)(more))()
    assert caught.value.context["violates"] == "unique"
    session.rollback_to_savepoint()
    for _ in range(2):
        with pytest.raises(DataError):
            ahead()
    assert session.write(more) == (1,)
    session.commit([], Scn(0))
    assert harness.rows("t") == [(int4(1), b"x", None), (int4(2), b"x", None)]


def test_large_insert_reports_unique_violation_too(harness, session):
    table = keyed(harness, session)
    session.begin()
    with pytest.raises(DataError) as caught:
        session.write([insert(table, [(int4(k % 1999), b"x", None) for k in range(2000)])])
    assert caught.value.context["sqlstate"] == "23505"
    assert caught.value.context["violates"] == "unique"
    session.rollback()
    assert commit(session, insert(table, [(int4(1), b"x", None)])) == (1,)


def test_null_in_not_null_column_is_a_data_error(harness, session):
    harness.create_table("m", [("id", "int4"), ("a", "text")], key=["id"], not_null=["a"])
    table = session.describe("public", "m")
    session.begin()
    with pytest.raises(DataError) as caught:
        session.write([insert(table, [(int4(1), None)])])
    assert caught.value.context["sqlstate"] == "23502"
    session.rollback()


def test_errors_never_show_row_values(harness, session):
    table = keyed(harness, session)
    session.begin()
    with pytest.raises(DataError) as caught:
        session.write([insert(table, [(int4(7), b"secret", None)] * 2)])
    assert "secret" not in str(caught.value) + str(caught.value.context) + caught.value.hint


def test_savepoint_keeps_what_came_before_it(harness, session):
    table = keyed(harness, session)
    session.begin()
    for key in (1, 2, 2, 3):
        session.savepoint()
        try:
            session.write([insert(table, [(int4(key), b"x", None)])])
        except DataError:
            session.rollback_to_savepoint()
    session.commit([], 0)
    assert [row[0] for row in harness.rows("t")] == [int4(1), int4(2), int4(3)]


def test_rollback_to_savepoint_without_error_undoes_the_last_write(harness, session):
    table = keyed(harness, session)
    session.begin()
    session.write([insert(table, [(int4(1), b"x", None)])])
    session.savepoint()
    session.write([insert(table, [(int4(2), b"x", None)])])
    session.rollback_to_savepoint()
    session.rollback_to_savepoint()
    session.commit([], 0)
    assert [row[0] for row in harness.rows("t")] == [int4(1)]


def test_rollback_is_idempotent(session):
    session.rollback()
    session.begin()
    session.rollback()
    session.rollback()


def test_begin_in_a_transaction_is_a_bug(session):
    session.begin()
    with pytest.raises(BugError):
        session.begin()


def test_write_outside_a_transaction_is_a_bug(harness, session):
    table = keyed(harness, session)
    with pytest.raises(BugError):
        session.write([insert(table, [(int4(1), b"x", None)])])


def test_value_that_is_not_in_the_lcr_is_a_bug(harness, session):
    table = keyed(harness, session)
    session.begin()
    with pytest.raises(BugError):
        session.write([insert(table, [(int4(1), ABSENT, None)])])
    session.rollback()


def test_row_held_by_another_transaction_makes_the_database_unavailable(harness, open_session):
    one, two = open_session(0), open_session(1)
    table = keyed(harness, one)
    commit(one, insert(table, [(int4(1), b"x", None)]))
    harness.impatient(two)
    one.begin()
    one.write([update(table, [(int4(1), b"x", None)], [(int4(1), b"y", None)])])
    two.begin()
    with pytest.raises(DatabaseUnavailable) as caught:
        two.write([update(table, [(int4(1), b"x", None)], [(int4(1), b"z", None)])])
    assert caught.value.context["sqlstate"] == "55P03"
    two.rollback()
    one.commit([], 0)
    assert harness.rows("t") == [(int4(1), b"y", None)]


def test_key_inserted_by_an_open_transaction_makes_database_unavailable(harness, open_session):
    one, two = open_session(0), open_session(1)
    table = keyed(harness, one)
    harness.impatient(two)
    one.begin()
    one.write([insert(table, [(int4(1), b"x", None)])])
    two.begin()
    with pytest.raises(DatabaseUnavailable):
        two.write([insert(table, [(int4(1), b"y", None)])])
    two.rollback()
    one.rollback()
    assert commit(two, insert(table, [(int4(1), b"y", None)])) == (1,)


def test_closed_session_is_unavailable(session):
    assert not session.is_closed
    session.close()
    session.close()
    assert session.is_closed
    with pytest.raises(DatabaseUnavailable):
        session.begin()


# --------------------------------------------------------------------------- tables that do not fit


def test_missing_column_pauses_with_the_missing_alter(harness, session):
    table = keyed(harness, session)
    version = version_of(table)
    wider = type(version)(
        object_number=version.object_number,
        version=99,
        owner="public",
        name="t",
        old_image=version.old_image,
        columns=(
            *version.columns,
            type(version.columns[0])(
                name="extra",
                type_name="pg_catalog.text",
                type_number=25,
                is_binary=True,
            ),
        ),
    )
    assert session.missing_alter(version) == ""
    assert "ADD COLUMN" in session.missing_alter(wider)
    assert "extra" in session.missing_alter(wider)
    session.begin()
    with pytest.raises(UnfitTableError) as caught:
        session.write([insert(table, [(int4(1), b"x", None, b"e")], wider)])
    assert "extra" in caught.value.hint
    session.rollback()
    harness.create_table("t", [("id", "int4"), ("a", "text"), ("b", "text"), ("extra", "text")], key=["id"])
    fresh = session.describe("public", "t", fresh=True)
    assert session.missing_alter(wider) == ""
    assert commit(session, insert(fresh, [(int4(1), b"x", None, b"e")], wider)) == (1,)
    assert harness.rows("t") == [(int4(1), b"x", None, b"e")]


def test_missing_table_does_not_fit(harness, session, destination):
    table = keyed(harness, session)
    version = version_of(table)
    harness.drop_table("t")
    session.begin()
    with pytest.raises(UnfitTableError):
        session.write([insert(table, [(int4(1), b"x", None)])])
    session.rollback()
    assert session.describe("public", "t", fresh=True) is None
    assert session.missing_alter(version) != ""
    assert [finding.is_error for finding in destination.preflight_tables([version])] == [True]


def test_table_that_fits_has_no_finding(harness, session, destination):
    assert destination.preflight_tables([version_of(keyed(harness, session))]) == ()


def test_error_of_the_check_after_the_rows_has_the_servers_message(harness, session, monkeypatch):
    """The check of the table's definition is a batch's last statement, after all rows. It can be cancelled, for
    example.
    """
    if not isinstance(harness, PostgresHarness):
        pytest.skip("nothing is checked")
    table = keyed(harness, session)
    session.begin()
    fails = "SELECT ('stands for a check that is cancelled' || $1::int8 || $2::int8)::int8"
    monkeypatch.setattr(described_tables, "SAME_FORM", fails)
    with pytest.raises(DatabaseError, match="invalid input syntax"):
        session.write([insert(table, [(int4(1), b"x", None)])])
    session.rollback()
