"""DDL changes at a destination: as before, as after, neither; undone by a rollback; recorded with the data.

The suite runs over the memory database and PostgreSQL. What only a server has is further down. Longer than 500 lines: all
of it shares one table and the records of its changes.
"""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from headrace.base.errors import DatabaseUnavailable, DataError, UnfitTableError
from headrace.databases.ports import DDL_REFUSED, DdlOutcomeKind
from headrace.databases.postgres.destination.records import ddl_history
from headrace.databases.postgres.destination.server_session.table_changes import DDL_LOCK_TIMEOUT_MS
from headrace.rules.table_settings import TableSettings
from protos import codec
from spark_apply.driver.loop.error_requests import ddl_in
from tests.support.databases.destination_contract import (
    APPLY,
    TAG,
    TOPOLOGY,
    PostgresHarness,
    commit,
    error_transaction,
    keyed,
    on_a_server_in_soak,
    ranges,
)
from tests.support.databases.table_changes import (
    Action,
    add_column,
    change,
    drop_column,
    history,
    place,
    recorded,
    recorded_all,
    rename_column,
    skip,
    unique,
)
from tests.support.values.ddl_changes import ddl_batch
from tests.support.values.lcr_batches import insert_batch
from tests.support.values.writes import insert, int4, update, version_of


def names(session, *, fresh=True):
    return [column.name for column in session.describe("public", "t", fresh=fresh).columns]


def apply_by_hand(harness, session, action):
    """Change the table without Headrace's record of it."""
    if isinstance(harness, PostgresHarness):
        harness._admin.execute(f"ALTER TABLE t {action.sql}")
    else:
        session.begin()
        session.change_table(recorded(harness, action), place())
        session.commit([], 0)
        harness._store.ddl_history.clear()


def refused(session, found, number=0):
    with pytest.raises(DataError) as caught:
        session.change_table(found, place(number))
    session.rollback()
    return caught.value


# --------------------------------------------------------------------------- as before, as after, neither


@pytest.mark.parametrize(
    ("action", "after"),
    [
        (add_column("c"), ["id", "a", "b", "c"]),
        (drop_column("a"), ["id", "b"]),
        (rename_column("a", "z"), ["id", "z", "b"]),
    ],
)
def test_table_as_before_is_changed(harness, session, action, after):
    keyed(harness, session)
    (outcome,) = change(session, recorded(harness, action))
    assert outcome.kind is DdlOutcomeKind.APPLIED
    assert outcome.statements
    assert names(session, fresh=False) == after
    assert history(harness) == [("APPLIED", "public.t", 0, "")]
    assert history(harness, not_applied=True) == []


def test_table_as_after_is_passed_over(harness, session):
    keyed(harness, session)
    found = recorded(harness, add_column("c"))
    apply_by_hand(harness, session, add_column("c"))
    (outcome,) = change(session, found)
    assert (outcome.kind, outcome.statements) == (DdlOutcomeKind.PASSED_OVER, ())
    assert names(session) == ["id", "a", "b", "c"]
    assert history(harness) == [("PASSED OVER", "public.t", 0, "")]


@pytest.mark.parametrize(
    ("at_source", "here"),
    [
        (add_column("c"), add_column("c", "int8")),
        (rename_column("a", "z"), rename_column("a", "y")),
        (rename_column("a", "z"), add_column("z")),
    ],
)
def test_table_that_is_neither_is_refused_and_stays(harness, session, at_source, here):
    keyed(harness, session)
    found = recorded(harness, at_source)
    apply_by_hand(harness, session, here)
    before = names(session)
    session.begin()
    error = refused(session, found)
    assert DDL_REFUSED in error.context
    assert "neither as before the change nor as after it" in error.message
    assert "or leave it out: " in error.hint
    assert (names(session), history(harness)) == (before, [])
    table = session.describe("public", "t")
    assert commit(session, insert(table, [(int4(1), *[None] * (len(table.columns) - 1))])) == (1,)


def test_column_that_only_the_destination_has_stays(harness, session):
    keyed(harness, session)
    found = recorded(harness, add_column("c"))
    apply_by_hand(harness, session, add_column("mine"))
    (outcome,) = change(session, found)
    assert outcome.kind is DdlOutcomeKind.APPLIED
    assert names(session) == ["id", "a", "b", "mine", "c"]


def test_older_rows_get_the_value_that_they_got_at_the_source(harness, session):
    table = keyed(harness, session)
    commit(session, insert(table, [(int4(1), b"x", None)]))
    change(session, recorded(harness, add_column("c", older="old", not_null=True)))
    assert harness.rows("t") == [(int4(1), b"x", None, b"old")]


def test_change_of_a_missing_table_is_recorded_only(harness, session):
    keyed(harness, session)
    found = recorded(harness, add_column("c"))
    harness.drop_table("t")
    (outcome,) = change(session, found)
    assert (outcome.kind, outcome.reason) == (DdlOutcomeKind.NOT_APPLIED, "the destination has no such table")
    assert history(harness, not_applied=True) == history(harness) == [("NOT APPLIED", "public.t", 0, outcome.reason)]


def test_change_that_gives_old_rows_new_values_is_recorded_only(harness, session):
    keyed(harness, session)
    (outcome,) = change(session, recorded(harness, add_column("c"), rewritten=[4]))
    assert outcome.kind is DdlOutcomeKind.NOT_APPLIED
    assert "new values" in outcome.reason
    assert names(session) == ["id", "a", "b"]


# --------------------------------------------------------------------------- what rows refuse


def test_duplicates_refuse_a_unique_key(harness, session):
    table = keyed(harness, session)
    found = recorded(harness, unique("t_a", "a"))
    commit(session, insert(table, [(int4(1), b"x", None), (int4(2), b"x", None)]))
    session.begin()
    error = refused(session, found)
    assert (error.context["sqlstate"], DDL_REFUSED in error.context) == ("23505", True)
    assert session.describe("public", "t", fresh=True).unique_keys == ((0,),)
    commit(session, update(table, [(int4(2), b"x", None)], [(int4(2), b"y", None)]))
    assert change(session, found)[0].kind is DdlOutcomeKind.APPLIED
    assert session.describe("public", "t").unique_keys == ((0,), (1,))
    with pytest.raises(DataError):
        commit(session, insert(session.describe("public", "t"), [(int4(3), b"x", None)]))


def test_rows_refuse_a_new_column_without_null(harness, session):
    table = keyed(harness, session)
    found = recorded(harness, add_column("c", not_null=True))
    commit(session, insert(table, [(int4(1), b"x", None)]))
    session.begin()
    error = refused(session, found)
    assert (error.context["sqlstate"], names(session)) == ("23502", ["id", "a", "b"])


# --------------------------------------------------------------------------- one transaction


def test_rows_around_a_change_are_written_in_its_transaction(harness, session, destination):
    table = keyed(harness, session)
    found = recorded(harness, add_column("c"))
    session.begin()
    session.write([insert(table, [(int4(1), b"x", None)])])
    session.change_table(found, place(1))
    altered = session.describe("public", "t")
    session.write([insert(altered, [(int4(2), b"x", None, b"new")])])
    session.write([update(altered, [(int4(1), b"x", None, None)], [(int4(1), b"x", None, b"too")])])
    session.commit(ranges((0, 10)), 0)
    assert harness.rows("t") == [(int4(1), b"x", None, b"too"), (int4(2), b"x", None, b"new")]
    assert history(harness) == [("APPLIED", "public.t", 1, "")]
    assert destination.progress(TOPOLOGY, APPLY).low_watermark == 10


def test_rollback_undoes_rows_change_history_and_progress(harness, session, destination):
    table = keyed(harness, session)
    commit(session, insert(table, [(int4(9), b"x", None)]))
    found = recorded(harness, drop_column("a"))
    session.begin()
    session.write([insert(table, [(int4(1), b"x", None)])])
    session.change_table(found, place(1))
    session.write([insert(session.describe("public", "t"), [(int4(2), None)])])
    session.rollback()
    assert session.describe("public", "t") == table
    assert harness.rows("t") == [(int4(9), b"x", None)]
    assert (history(harness), destination.progress(TOPOLOGY, APPLY).low_watermark) == ([], 0)
    assert commit(session, insert(table, [(int4(1), b"x", None)])) == (1,)


@pytest.mark.parametrize("to_mark", [True, False])
def test_change_is_undone_with_what_follows_a_savepoint(harness, session, to_mark):
    table = keyed(harness, session)
    found = recorded(harness, drop_column("a"))
    session.begin()
    session.write([insert(table, [(int4(1), b"x", None)])])
    mark = session.mark() if to_mark else session.savepoint()
    session.change_table(found, place(1))
    session.write([insert(session.describe("public", "t"), [(int4(2), None)])])
    if to_mark:
        session.undo_to_mark(mark)
    else:
        session.rollback_to_savepoint()
    assert session.describe("public", "t") == table
    session.write([insert(table, [(int4(3), b"z", None)])])
    session.commit([], 0)
    assert harness.rows("t") == [(int4(1), b"x", None), (int4(3), b"z", None)]
    assert history(harness) == []


def test_row_that_fails_behind_a_change_takes_only_itself_back(harness, session):
    keyed(harness, session)
    found = recorded(harness, add_column("c"))
    session.begin()
    session.change_table(found, place())
    table = session.describe("public", "t")
    session.write([insert(table, [(int4(1), b"x", None, None)])])
    session.savepoint()
    with pytest.raises(DataError):
        session.write([insert(table, [(int4(1), b"y", None, None)])])
    session.rollback_to_savepoint()
    session.write([insert(table, [(int4(2), b"y", None, b"c")])])
    session.commit([], 0)
    assert harness.rows("t") == [(int4(1), b"x", None, None), (int4(2), b"y", None, b"c")]


def test_several_changes_of_one_transaction_follow_each_other(harness, session):
    table = keyed(harness, session)
    commit(session, insert(table, [(int4(1), b"x", None)]))
    changes = recorded_all(harness, add_column("c", older="o"), rename_column("c", "d"), drop_column("b"))
    assert {each.kind for each in change(session, *changes)} == {DdlOutcomeKind.APPLIED}
    assert (names(session), harness.rows("t")) == (["id", "a", "d"], [(int4(1), b"x", b"o")])
    assert [each[2] for each in history(harness)] == [0, 1, 2]


def test_lost_answer_of_a_commit_with_a_change_is_found(harness, open_session):
    session = open_session()
    keyed(harness, session)
    found = recorded(harness, add_column("c"))
    session.begin()
    session.change_table(found, place())
    harness.lose_next_commit_answer(session, committed=True)
    with pytest.raises(DatabaseUnavailable):
        session.commit(ranges((0, 10)), 0)
    later = open_session()
    assert later.ask_outcome(ranges((0, 10)))
    assert (names(later), len(history(harness))) == (["id", "a", "b", "c"], 1)


@on_a_server_in_soak
def test_lazy_commit_with_a_change_survives_a_crash(harness, destination, open_session):
    session = open_session(is_lazy=True)
    keyed(harness, session)
    found = recorded(harness, add_column("c"))
    session.begin()
    session.change_table(found, place())
    session.commit(ranges((0, 10)), 0)
    harness.crash()
    assert harness.destination().raise_epoch(TOPOLOGY, APPLY).low_watermark == 10
    assert history(harness) == [("APPLIED", "public.t", 0, "")]


# --------------------------------------------------------------------------- other sessions


def test_locked_table_is_tried_again_and_nothing_is_written(harness, session, open_session):
    table = keyed(harness, session)
    commit(session, insert(table, [(int4(1), b"x", None)]))
    found = recorded(harness, add_column("c"))
    harness.impatient(session)
    other = open_session(1)
    other.begin()
    other.write([update(table, [(int4(1), b"x", None)], [(int4(1), b"y", None)])])
    session.begin()
    with pytest.raises(DatabaseUnavailable):
        session.change_table(found, place())
    session.rollback()
    other.commit([], 0)
    assert (names(session), history(harness)) == (["id", "a", "b"], [])
    assert change(session, found)[0].kind is DdlOutcomeKind.APPLIED


def test_other_session_notices_the_change_before_it_writes(harness, session, open_session):
    table = keyed(harness, session)
    other = open_session(1)
    commit(other, insert(table, [(int4(1), b"x", None)]))
    change(session, recorded(harness, drop_column("b")))
    other.begin()
    with pytest.raises(UnfitTableError):
        other.write([insert(table, [(int4(2), b"x", None)])])
    other.rollback()
    table = other.describe("public", "t", fresh=True)
    assert commit(other, insert(table, [(int4(2), b"y")])) == (1,)
    assert harness.rows("t") == [(int4(1), b"x"), (int4(2), b"y")]


# --------------------------------------------------------------------------- skipping


def test_skipped_change_is_recorded_with_the_commit_that_takes_the_wish(harness, session):
    keyed(harness, session)
    found = recorded(harness, add_column("c"))
    apply_by_hand(harness, session, add_column("c", "int8"))
    session.begin()
    skip(harness, refused(session, found, 3).hint, 3)
    session.begin()
    assert session.change_table(found, place(3)).kind is DdlOutcomeKind.SKIPPED
    session.rollback()
    assert history(harness) == []
    (outcome,) = change(session, found, first=3)
    assert outcome.kind is DdlOutcomeKind.SKIPPED
    assert [each[:3] for each in history(harness, not_applied=True)] == [("SKIPPED", "public.t", 3)]
    session.begin()
    assert DDL_REFUSED in refused(session, found, 3).context


def test_wish_of_another_change_is_left_alone(harness, session):
    keyed(harness, session)
    found = recorded(harness, add_column("c"))
    apply_by_hand(harness, session, add_column("c", "int8"))
    session.begin()
    skip(harness, refused(session, found, 3).hint, 3)
    session.begin()
    assert DDL_REFUSED in refused(session, found, 4).context


# --------------------------------------------------------------------------- recorded only


def test_change_of_a_table_that_others_lock_is_recorded_if_it_is_not_made(harness, session, open_session):
    """The table is being copied: it is not altered, and nobody waits for it."""
    table = keyed(harness, session)
    found = recorded(harness, add_column("c")).not_made("it is being copied")
    harness.impatient(session)
    other = open_session(1)
    other.begin()
    other.write([insert(table, [(int4(1), b"x", None)])])
    if isinstance(harness, PostgresHarness):
        other._transaction.connection.execute("LOCK TABLE public.t IN ACCESS EXCLUSIVE MODE")
    (outcome,) = change(session, found)
    other.commit([], 0)
    assert (outcome.kind, outcome.reason) == (DdlOutcomeKind.NOT_APPLIED, "it is being copied")
    assert names(session) == ["id", "a", "b"]
    assert history(harness, not_applied=True) == [("NOT APPLIED", "public.t", 0, "it is being copied")]


def test_change_that_is_made_later_replaces_the_record_that_it_was_not(harness, session):
    keyed(harness, session)
    found = recorded(harness, add_column("c"))
    change(session, found.not_made("it is being copied"))
    change(session, found.not_made("another one"), first=1)
    assert change(session, found)[0].kind is DdlOutcomeKind.APPLIED
    assert [each[:3] for each in history(harness)] == [("NOT APPLIED", "public.t", 1), ("APPLIED", "public.t", 0)]


def put_error(session, *batches):
    """Put an error transaction with these batches into the queue; return its number."""
    session.begin()
    number = 0
    for part, batch in enumerate(batches):
        data = batch if isinstance(batch, bytes) else codec.encode(batch)
        number = session.put_error(error_transaction(number=number), data, np.empty(0, np.uint64), part=part)
    session.commit([], 0)
    return number


def test_ddl_of_a_deleted_error_transaction_is_recorded_as_skipped(harness, session, destination):
    keyed(harness, session)
    found = recorded(harness, add_column("c"))
    rows = insert_batch([10], is_open=True)
    numbers = [
        put_error(session, rows, ddl_batch(found, continues=True, first_position=1)),
        put_error(session, rows),
        put_error(session, b'no batch, with "is_known" in it', ddl_batch(found.not_made("it is being copied"))),
    ]
    other = put_error(session, ddl_batch(found))
    assert destination.delete_errors("another", numbers, ddl_in=ddl_in) == frozenset()
    assert history(harness) == []
    assert destination.delete_errors(TOPOLOGY, numbers, ddl_in=ddl_in) == frozenset(numbers)
    said = "error transaction {} was deleted from the error queue"
    assert history(harness, not_applied=True) == [
        ("SKIPPED", "public.t", 1, said.format(numbers[0])),
        ("SKIPPED", "public.t", 0, said.format(numbers[2])),
    ]
    assert destination.delete_errors(TOPOLOGY, [other])
    assert len(history(harness)) == 2, "nobody asked for it"


# --------------------------------------------------------------------------- a server


@pytest.fixture
def server(harness):
    if not isinstance(harness, PostgresHarness):
        pytest.skip("there is no SQL")
    return harness._admin


def settings_of(session):
    """Return what the session's next transaction would run under."""
    query = (
        "SELECT current_user, current_setting('role'), current_setting('lock_timeout'), current_setting('search_path'),"
        " current_setting('session_replication_role')"
    )
    return session._transaction.connection.execute(query).fetchone()


def test_session_is_as_before_behind_a_change(server, harness, session):
    table = keyed(harness, session)
    before = settings_of(session)
    found = recorded(harness, add_column("c"))
    session.begin()
    session.change_table(found, place())
    session._transaction.send_pending()
    assert settings_of(session) == before
    session.write([insert(session.describe("public", "t"), [(int4(1), b"x", None, None)])])
    session.commit([], 0)
    assert settings_of(session) == before
    assert table.columns


def test_change_runs_with_the_rights_of_the_tables_owner(server, harness, session):
    """The session's role may do anything; the owner may not make an index in this schema."""
    keyed(harness, session)
    found = recorded(harness, Action("ADD UNIQUE (a)", lambda _: None))
    server.execute("DROP ROLE IF EXISTS plain_owner")
    server.execute("CREATE ROLE plain_owner")
    server.execute("ALTER TABLE t OWNER TO plain_owner")
    server.execute("REVOKE CREATE ON SCHEMA public FROM plain_owner, PUBLIC")
    try:
        session.begin()
        error = refused(session, found)
        assert (error.context["sqlstate"], DDL_REFUSED in error.context) == ("42501", True)
        assert "ALTER TABLE ONLY" in error.message
        server.execute("GRANT CREATE ON SCHEMA public TO plain_owner")
        assert change(session, found)[0].kind is DdlOutcomeKind.APPLIED
    finally:
        session.rollback()
        server.execute("DROP OWNED BY plain_owner")
        server.execute("DROP ROLE plain_owner")


def test_statement_that_would_write_rows_anew_is_undone(server, harness, session):
    harness.create_table("t", [("id", "int4"), ("n", "int4")], key=["id"])
    server.execute("INSERT INTO t VALUES (1, 7)")
    found = recorded(harness, Action("ALTER COLUMN n TYPE int8", lambda _: None), rewritten=[])
    (outcome,) = change(session, found)
    assert outcome.kind is DdlOutcomeKind.NOT_APPLIED
    assert "rows anew" in outcome.reason
    assert session.describe("public", "t", fresh=True).columns[1].type_name == "pg_catalog.int4"
    assert harness.rows("t") == [(int4(1), int4(7))]


@pytest.mark.parametrize(("here", "is_named"), [("old", False), ("early", True)])
def test_other_value_in_a_column_that_is_there_already_is_named(server, harness, session, here, is_named):
    """What was made early, with now() for example, may have given rows another value than the source did."""
    table = keyed(harness, session)
    commit(session, insert(table, [(int4(1), b"x", None)]))
    found = recorded(harness, add_column("c", older="old"))
    server.execute(f"ALTER TABLE t ADD COLUMN c text DEFAULT '{here}'")
    server.execute("ALTER TABLE t ALTER COLUMN c SET DEFAULT 'old'")
    (outcome,) = change(session, found)
    assert outcome.kind is DdlOutcomeKind.PASSED_OVER
    said = "column \"c\": rows that were there got 'old' at the source, and 'early' here"
    assert outcome.reason == (said if is_named else "")
    assert history(harness) == [("PASSED OVER", "public.t", 0, outcome.reason)]


def test_deferred_check_refuses_the_rows_and_not_the_change(server, harness, session):
    table = keyed(harness, session)
    found = recorded(harness, add_column("c"))
    server.execute(
        "CREATE FUNCTION refuses() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.a = 'bad' THEN RAISE"
        " 'bad row'; END IF; RETURN NULL; END $$"
    )
    server.execute(
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION"
        " refuses()"
    )
    server.execute("ALTER TABLE t ENABLE ALWAYS TRIGGER late")
    session.describe("public", "t", fresh=True)
    session.begin()
    session.write([insert(table, [(int4(1), b"bad", None)])])
    error = refused(session, found)
    assert ("bad row" in error.message, DDL_REFUSED in error.context) == (True, False)
    session.begin()
    session.write([insert(table, [(int4(1), b"good", None)])])
    session.change_table(found, place())
    session.write([insert(session.describe("public", "t"), [(int4(2), b"bad", None, None)])])  # deferred again
    with pytest.raises(DataError, match="bad row"):
        session.commit([], 0)
    session.rollback()
    assert (harness.rows("t"), names(session)) == ([], ["id", "a", "b"])


def test_event_trigger_that_changes_the_session_is_refused(server, harness, session):
    keyed(harness, session)
    found = recorded(harness, add_column("c"))
    server.execute(
        "CREATE FUNCTION meddles() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN SET search_path = public; END $$"
    )
    server.execute("CREATE EVENT TRIGGER meddling ON ddl_command_end EXECUTE FUNCTION meddles()")
    server.execute("ALTER EVENT TRIGGER meddling ENABLE ALWAYS")
    try:
        session.begin()
        session.change_table(found, place())
        with pytest.raises(DataError, match="changed the apply server's session"):
            session.commit([], 0)
        session.rollback()
    finally:
        server.execute("DROP EVENT TRIGGER meddling")
    assert names(session) == ["id", "a", "b"]
    assert change(session, found)[0].kind is DdlOutcomeKind.APPLIED


def test_change_does_not_wait_long_for_a_lock(server, harness, session):
    keyed(harness, session)
    seen = []
    found = recorded(harness, add_column("c"))
    run = session._table_changes._run

    def spied(statements):
        seen.append(session._transaction.connection.execute("SHOW lock_timeout").fetchone()[0])
        return run(statements)

    session._table_changes._run = spied
    change(session, found)
    assert set(seen) == {f"{DDL_LOCK_TIMEOUT_MS // 1000}s"}


def test_history_has_statements_and_text_and_is_trimmed(server, harness, session, monkeypatch):
    keyed(harness, session)
    monkeypatch.setattr(ddl_history, "HISTORY_MAX", 3)
    for number in range(5):
        change(session, recorded(harness, add_column(f"c{number}")), first=number)
    rows = server.execute("SELECT ddl_text, statements, order_scn FROM headrace.dba_apply_ddl").fetchall()
    assert [row[0] for row in rows] == [f"ALTER TABLE public.t ADD COLUMN c{number} text" for number in (2, 3, 4)]
    assert rows[-1][1:] == (['ALTER TABLE ONLY "public"."t" ADD COLUMN "c4" text'], place().order_scn)


def test_damaged_record_is_refused_and_can_be_skipped(server, harness, session):
    keyed(harness, session)
    found = recorded(harness, add_column("c"), version="eleven")
    session.begin()
    error = refused(session, found)
    assert "damaged" in error.message
    skip(harness, error.hint)
    assert change(session, found)[0].kind is DdlOutcomeKind.SKIPPED


def test_foreign_key_of_a_changed_table_is_checked_in_front_of_the_change(server, harness):
    server.execute("CREATE TABLE p (id int PRIMARY KEY)")
    server.execute("CREATE TABLE t (id int PRIMARY KEY, p int REFERENCES p, x text)")
    destination = harness.destination(TableSettings(check_foreign_keys=True))
    destination.prepare(TOPOLOGY)
    epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    found = recorded(harness, drop_column("x"))
    with closing(destination.open_session(TOPOLOGY, APPLY, server=0, epoch=epoch, tag=TAG)) as session:
        child, parent = session.describe("public", "t"), session.describe("public", "p")
        session.begin()
        session.write([insert(child, [(int4(1), int4(7), None)])])
        error = refused(session, found)
        assert (error.context["violates"], DDL_REFUSED in error.context) == ("foreign_key", False)
        session.begin()
        session.write([insert(child, [(int4(1), int4(7), None)]), insert(parent, [(int4(7),)])])
        session.change_table(found, place())
        session.write([insert(session.describe("public", "t"), [(int4(2), int4(8))])])
        session.write([insert(parent, [(int4(8),)])])
        session.commit(ranges((0, 10)), 0)
    assert harness.rows("t") == [(int4(1), int4(7)), (int4(2), int4(8))]


def test_removal_takes_history_and_wishes_of_its_topology(server, harness, session, destination):
    keyed(harness, session)
    change(session, recorded(harness, add_column("c")))
    server.execute("INSERT INTO headrace.ddl_skip VALUES (%s, 'a', 1, 2), ('other', 'a', 1, 2)", (TOPOLOGY,))
    session.close()
    destination.raise_epoch("other", "a")
    destination.remove(TOPOLOGY)
    assert history(harness) == []
    assert server.execute("SELECT topology FROM headrace.ddl_skip").fetchall() == [("other",)]
    destination.remove("other")
    assert server.execute("SELECT to_regnamespace('headrace')").fetchone() == (None,)


def test_change_with_an_effect_that_the_source_did_not_have_is_refused(server, harness, session):
    keyed(harness, session)
    found = recorded(harness, drop_column("a"))
    server.execute("CREATE INDEX mine ON t (a)")
    session.begin()
    error = refused(session, found)
    assert ("went with it" in error.message, DDL_REFUSED in error.context) == (True, True)
    assert names(session) == ["id", "a", "b"]
    server.execute("DROP INDEX mine")
    assert change(session, found)[0].kind is DdlOutcomeKind.APPLIED


def test_old_version_of_the_table_does_not_fit_behind_the_change(harness, session):
    table = keyed(harness, session)
    old = version_of(table)
    change(session, recorded(harness, drop_column("a")))
    assert session.missing_alter(old)
