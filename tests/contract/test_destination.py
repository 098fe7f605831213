"""What every destination database must do: one suite over the database in memory and PostgreSQL 18.

The harness gives what differs: making tables, looking at rows, losing the answer of a COMMIT.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import psycopg
import pytest

from databases.memory_destination import MemoryDestination
from databases.memory_store import MemoryStore, destination_column
from databases.ports import (
    ApplyProgress,
    DestinationDatabase,
    DestinationSession,
    DestinationTable,
    ErrorTransaction,
    Instantiation,
    ScnRange,
)
from databases.postgres.destination import PostgresDestination
from databases.postgres.session import PostgresSession
from streams.errors import BugError, DatabaseUnavailable, DataError, FencedError, UnfitTableError
from streams.lcr_batch import ABSENT
from tests.support.writes import delete, insert, int4, key_only, update, version_of

TOPOLOGY, APPLY, TAG = "contract", "apply_from_a", b"\x00"
Row = tuple[bytes | None, ...]


class MemoryHarness:
    def __init__(self) -> None:
        self._store = MemoryStore()

    def destination(self) -> DestinationDatabase:
        return MemoryDestination(store=self._store, site="b")

    def create_table(
        self, name: str, columns: Sequence[tuple[str, str]], *, key: Sequence[str] = (),
        unique: Sequence[Sequence[str]] = (), not_null: Sequence[str] = (),
    ) -> None:
        self._store.create_table(
            "public", name, key=key, unique=unique,
            columns=[destination_column(n, f"pg_catalog.{t}", not_null=n in not_null) for n, t in columns],
        )

    def drop_table(self, name: str) -> None:
        self._store.drop_table("public", name)

    def rows(self, name: str) -> list[Row]:
        return self._store.rows("public", name)

    def lose_next_commit_answer(self, session: DestinationSession, *, committed: bool) -> None:
        self._store.lose_next_commit_answer(committed=committed)

    def impatient(self, session: DestinationSession) -> None:
        """Nothing to do: it never waits for locks."""


class PostgresHarness:
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._admin = psycopg.connect(dsn, autocommit=True)
        self._destinations: list[PostgresDestination] = []

    def destination(self) -> DestinationDatabase:
        self._destinations.append(PostgresDestination(self._dsn, site="b"))
        return self._destinations[-1]

    def create_table(
        self, name: str, columns: Sequence[tuple[str, str]], *, key: Sequence[str] = (),
        unique: Sequence[Sequence[str]] = (), not_null: Sequence[str] = (),
    ) -> None:
        there = self._admin.execute("SELECT to_regclass(%s)", (f"public.{name}",)).fetchone()
        if there and there[0]:
            present = {row[0] for row in self._admin.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped", (name,)
            )}
            for column, kind in columns:
                if column not in present:
                    self._admin.execute(f"ALTER TABLE {name} ADD COLUMN {column} {kind}")
            return
        parts = [f"{n} {t}{' NOT NULL' if n in not_null else ''}" for n, t in columns]
        parts += [f"PRIMARY KEY ({', '.join(key)})"] if key else []
        parts += [f"UNIQUE ({', '.join(u)})" for u in unique]
        self._admin.execute(f"CREATE TABLE {name} ({', '.join(parts)})")

    def drop_table(self, name: str) -> None:
        self._admin.execute(f"DROP TABLE {name}")

    def rows(self, name: str) -> list[Row]:
        result = self._admin.pgconn.exec_params(f"SELECT * FROM {name}".encode(), None, result_format=1)
        found = [tuple(result.get_value(i, k) for k in range(result.nfields)) for i in range(result.ntuples)]
        return sorted(found, key=lambda row: [(v is not None, v or b"") for v in row])

    def lose_next_commit_answer(self, session: DestinationSession, *, committed: bool) -> None:
        assert isinstance(session, PostgresSession)
        run = session._pipeline.run

        def lost(statements, what):
            if committed:
                run(statements, what)
            session._connection.close()
            raise DatabaseUnavailable("the connection broke")

        session._pipeline.run = lost

    def impatient(self, session: DestinationSession) -> None:
        assert isinstance(session, PostgresSession)
        session.connection.execute("SET lock_timeout = '100ms'")

    def close(self) -> None:
        for destination in self._destinations:
            destination.close()
        self._admin.close()


Harness = MemoryHarness | PostgresHarness


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.postgres)])
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    if request.param == "memory":
        yield MemoryHarness()
        return
    made = PostgresHarness(request.getfixturevalue("destination_database"))
    yield made
    made.close()


@pytest.fixture
def destination(harness: Harness) -> DestinationDatabase:
    database = harness.destination()
    database.prepare(TOPOLOGY)
    return database


Opener = Callable[..., DestinationSession]


@pytest.fixture
def open_session(destination: DestinationDatabase) -> Iterator[Opener]:
    """Opens sessions of the current epoch (the first one raises it) and closes them at the end."""
    opened: list[DestinationSession] = []

    def make(server: int = 0, *, epoch: int | None = None, tag: bytes = TAG) -> DestinationSession:
        if epoch is None:
            progress = destination.progress(TOPOLOGY, APPLY) or destination.raise_epoch(TOPOLOGY, APPLY)
            epoch = progress.epoch
        opened.append(destination.open_session(TOPOLOGY, APPLY, server=server, epoch=epoch, tag=tag))
        return opened[-1]

    yield make
    for session in opened:
        session.close()


@pytest.fixture
def session(open_session: Opener) -> DestinationSession:
    return open_session()


def keyed(harness: Harness, session: DestinationSession, name: str = "t") -> DestinationTable:
    harness.create_table(name, [("id", "int4"), ("a", "text"), ("b", "text")], key=["id"])
    table = session.describe("public", name)
    assert table is not None
    return table


def keyless(harness: Harness, session: DestinationSession) -> DestinationTable:
    harness.create_table("n", [("a", "int4"), ("b", "text")])
    table = session.describe("public", "n")
    assert table is not None
    return table


def ranges(*bounds: tuple[int, int]) -> list[ScnRange]:
    return [ScnRange(after=after, through=through) for after, through in bounds]


def commit(session: DestinationSession, *writes, applied=(), low_watermark: int = 0) -> tuple[int, ...]:
    session.begin()
    counts = session.write(writes)
    session.commit(applied, low_watermark)
    return counts


def error_transaction(**changed) -> ErrorTransaction:
    fields = {
        "number": 0, "apply": APPLY, "source": "a", "transaction_id": 77, "commit_scn": 150,
        "commit_time_us": 1_700_000_000_123_456, "row_count": 2, "failed_position": 1, "depends_on": 0,
        "conflict_type": "update_missing", "sqlstate": "", "message": "the row is not there", "created_us": 0,
    }
    return ErrorTransaction(**{**fields, **changed})


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
    changed = update(
        table, key_only(table, [[int4(1)]]), [(int4(1), b"new", ABSENT)], sets=[1], compare=[]
    )
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
    """Past the size where a connector takes another way for inserts."""
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
    session.truncate([first, second], cascade=False, restart_identity=False)
    session.rollback()
    assert len(harness.rows("t")) == 1
    session.begin()
    session.truncate([first, second], cascade=False, restart_identity=False)
    session.commit([], 0)
    assert harness.rows("t") == harness.rows("t2") == []


# --------------------------------------------------------------------------- errors


def test_unique_violation_is_a_data_error_and_fails_the_transaction(harness, session):
    table = keyed(harness, session)
    commit(session, insert(table, [(int4(1), b"x", None)]))
    session.begin()
    session.write([insert(table, [(int4(2), b"x", None)])])
    with pytest.raises(DataError) as caught:
        session.write([insert(table, [(int4(1), b"again", None)])])
    assert caught.value.context["sqlstate"] == "23505"
    assert caught.value.context["table"] == "public.t"
    with pytest.raises(BugError):
        session.write([insert(table, [(int4(3), b"x", None)])])
    session.rollback()
    assert harness.rows("t") == [(int4(1), b"x", None)]


def test_large_insert_reports_unique_violation_too(harness, session):
    table = keyed(harness, session)
    session.begin()
    with pytest.raises(DataError) as caught:
        session.write([insert(table, [(int4(k % 1999), b"x", None) for k in range(2000)])])
    assert caught.value.context["sqlstate"] == "23505"
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


def test_key_inserted_by_another_transaction_makes_the_database_unavailable(harness, open_session):
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
    session.close()
    session.close()
    with pytest.raises(DatabaseUnavailable):
        session.begin()


# --------------------------------------------------------------------------- tables that do not fit


def test_missing_column_pauses_with_the_missing_alter(harness, session):
    table = keyed(harness, session)
    version = version_of(table)
    wider = type(version)(
        object_number=version.object_number, version=99, owner="public", name="t", old_image=version.old_image,
        columns=(*version.columns, type(version.columns[0])(
            name="extra", type_name="pg_catalog.text", type_number=25, is_binary=True,
        )),
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


# --------------------------------------------------------------------------- progress and fencing


def test_progress_is_none_before_the_first_run(destination):
    assert destination.progress(TOPOLOGY, APPLY) is None


def test_raising_the_epoch_counts_up_and_starts_at_nothing(destination):
    assert destination.raise_epoch(TOPOLOGY, APPLY) == ApplyProgress(epoch=1, low_watermark=0, above=())
    assert destination.raise_epoch(TOPOLOGY, APPLY).epoch == 2
    assert destination.raise_epoch(TOPOLOGY, "another").epoch == 1


def test_commit_records_ranges_with_the_data(destination, session):
    commit(session, applied=ranges((100, 140), (160, 180)), low_watermark=90)
    assert destination.progress(TOPOLOGY, APPLY) == ApplyProgress(
        epoch=1, low_watermark=90, above=tuple(ranges((100, 140), (160, 180)))
    )


def test_rolled_back_transaction_records_nothing(destination, session):
    session.begin()
    session.rollback()
    assert destination.progress(TOPOLOGY, APPLY).low_watermark == 0


def test_progress_folds_ranges_of_all_servers_into_the_low_watermark(destination, open_session):
    one, two = open_session(0), open_session(1)
    commit(one, applied=ranges((0, 10)))
    commit(two, applied=ranges((10, 20)))
    commit(one, applied=ranges((30, 40)))
    assert destination.progress(TOPOLOGY, APPLY) == ApplyProgress(epoch=1, low_watermark=20, above=tuple(ranges((30, 40))))
    commit(two, applied=ranges((20, 30)), low_watermark=10)
    assert destination.progress(TOPOLOGY, APPLY) == ApplyProgress(epoch=1, low_watermark=40, above=())


def test_progress_survives_the_next_epoch(destination, open_session):
    commit(open_session(0), applied=ranges((0, 10), (20, 30)))
    commit(open_session(1), applied=ranges((40, 50)), low_watermark=10)
    progress = destination.raise_epoch(TOPOLOGY, APPLY)
    assert progress == ApplyProgress(epoch=2, low_watermark=10, above=tuple(ranges((20, 30), (40, 50))))
    commit(open_session(0, epoch=2), applied=ranges((10, 20)), low_watermark=10)
    assert destination.progress(TOPOLOGY, APPLY) == ApplyProgress(epoch=2, low_watermark=30, above=tuple(ranges((40, 50))))


def test_low_watermark_can_move_without_data(destination):
    destination.raise_epoch(TOPOLOGY, APPLY)
    destination.record_low_watermark(TOPOLOGY, APPLY, 1, 500)
    destination.record_low_watermark(TOPOLOGY, APPLY, 1, 400)
    assert destination.progress(TOPOLOGY, APPLY).low_watermark == 500


def test_low_watermark_of_an_older_epoch_is_refused(destination):
    destination.raise_epoch(TOPOLOGY, APPLY)
    destination.raise_epoch(TOPOLOGY, APPLY)
    with pytest.raises(FencedError):
        destination.record_low_watermark(TOPOLOGY, APPLY, 1, 500)
    assert destination.progress(TOPOLOGY, APPLY).low_watermark == 0


def test_session_of_an_older_epoch_cannot_be_opened(destination, open_session):
    destination.raise_epoch(TOPOLOGY, APPLY)
    destination.raise_epoch(TOPOLOGY, APPLY)
    with pytest.raises(FencedError):
        open_session(0, epoch=1)


def test_new_epoch_ends_open_transactions_of_the_old_one(harness, destination, open_session):
    """Two live appliers: the older one's transaction is gone, and it can neither commit nor open again."""
    old = open_session(0)
    table = keyed(harness, old)
    old.begin()
    old.write([insert(table, [(int4(1), b"old", None)])])
    newer = harness.destination()
    progress = newer.raise_epoch(TOPOLOGY, APPLY)
    assert progress.epoch == 2
    with pytest.raises((DatabaseUnavailable, FencedError)):
        old.commit(ranges((0, 10)), 0)
    with pytest.raises(FencedError):
        destination.open_session(TOPOLOGY, APPLY, server=0, epoch=1, tag=TAG)
    new = newer.open_session(TOPOLOGY, APPLY, server=0, epoch=2, tag=TAG)
    assert commit(new, insert(table, [(int4(1), b"new", None)]), applied=ranges((0, 10))) == (1,)
    new.close()
    assert harness.rows("t") == [(int4(1), b"new", None)]


def test_new_epoch_leaves_other_apply_processes_alone(harness, destination, session):
    table = keyed(harness, session)
    session.begin()
    session.write([insert(table, [(int4(1), b"x", None)])])
    destination.raise_epoch(TOPOLOGY, "another")
    session.commit(ranges((0, 10)), 0)
    assert destination.progress(TOPOLOGY, APPLY).low_watermark == 10


def test_second_session_of_a_server_ends_the_first(harness, open_session):
    first = open_session(0)
    table = keyed(harness, first)
    first.begin()
    first.write([insert(table, [(int4(1), b"first", None)])])
    second = open_session(0)
    with pytest.raises(DatabaseUnavailable):
        first.commit(ranges((0, 10)), 0)
    assert commit(second, insert(table, [(int4(1), b"second", None)])) == (1,)
    assert harness.rows("t") == [(int4(1), b"second", None)]


@pytest.mark.parametrize("committed", [True, False])
def test_outcome_of_a_commit_whose_answer_was_lost_is_known_afterwards(harness, open_session, committed):
    first = open_session(0)
    table = keyed(harness, first)
    commit(first, applied=ranges((0, 10), (90, 95)))
    first.begin()
    first.write([insert(table, [(int4(1), b"x", None)])])
    harness.lose_next_commit_answer(first, committed=committed)
    with pytest.raises(DatabaseUnavailable):
        first.commit(ranges((10, 20)), 10)
    second = open_session(0)
    assert second.ask_outcome(ranges((10, 20))) is committed
    assert second.ask_outcome(ranges((0, 10)))
    assert len(harness.rows("t")) == int(committed)
    commit(second, applied=ranges((20, 30)), low_watermark=10)


# --------------------------------------------------------------------------- error queue


def test_error_transaction_is_listed_with_its_batches_and_hashes(destination, session):
    session.begin()
    hashes = np.array([1, 2**64 - 1], np.uint64)
    number = session.put_error(error_transaction(), b"part 0", hashes, part=0, readable=["id=1", "a=x"])
    last = error_transaction(number=number)
    last = dataclasses.replace(last, row_count=7, commit_scn=last.commit_scn + 5, commit_time_us=last.commit_time_us + 9)
    assert session.put_error(last, b"part 1", hashes[:1], part=1) == number
    session.commit(ranges((0, 150)), 0)
    (listed,) = destination.errors(TOPOLOGY, APPLY)
    assert listed.created_us > 1_700_000_000_000_000
    # Rows of all parts; where and when it committed, from the last one.
    assert listed == error_transaction(
        number=number, readable=("id=1", "a=x"), created_us=listed.created_us,
        row_count=error_transaction().row_count + 7, commit_scn=last.commit_scn, commit_time_us=last.commit_time_us,
    )
    assert list(destination.error_batches(number)) == [b"part 0", b"part 1"]
    ((found, keys),) = list(destination.error_key_hashes(TOPOLOGY, APPLY))
    assert found == number
    assert keys.dtype == np.uint64
    assert keys.tolist() == [1, 2**64 - 1, 1]


def test_error_queue_is_written_only_by_commit(destination, session):
    session.begin()
    session.put_error(error_transaction(), b"x", np.empty(0, np.uint64), part=0)
    session.rollback()
    assert destination.errors(TOPOLOGY) == ()


def test_errors_are_listed_in_order_and_by_apply_process(destination, session):
    session.begin()
    nothing = np.empty(0, np.uint64)
    first = session.put_error(error_transaction(), b"1", nothing, part=0)
    second = session.put_error(error_transaction(failed_position=-1, depends_on=first, commit_scn=160), b"2", nothing, part=0)
    session.commit([], 0)
    assert first < second
    assert [error.number for error in destination.errors(TOPOLOGY)] == [first, second]
    assert destination.errors(TOPOLOGY, "another") == ()
    assert destination.errors("another") == ()


def test_error_transaction_written_again_replaces_its_parts(destination, session):
    nothing = np.empty(0, np.uint64)
    session.begin()
    number = session.put_error(error_transaction(), b"a", nothing, part=0)
    session.put_error(error_transaction(number=number), b"b", nothing, part=1)
    session.commit([], 0)
    session.begin()
    session.put_error(error_transaction(number=number, message="again"), b"c", nothing, part=0)
    session.commit([], 0)
    assert list(destination.error_batches(number)) == [b"c"]
    assert destination.errors(TOPOLOGY)[0].message == "again"


def test_error_is_deleted_together_with_the_data_that_mends_it(harness, destination, session):
    table = keyed(harness, session)
    session.begin()
    number = session.put_error(error_transaction(), b"x", np.empty(0, np.uint64), part=0)
    session.commit([], 0)
    session.begin()
    assert session.delete_error(number)
    session.rollback()
    assert len(destination.errors(TOPOLOGY)) == 1
    session.begin()
    session.write([insert(table, [(int4(1), b"x", None)])])
    assert session.delete_error(number)
    assert not session.delete_error(number)
    session.commit([], 0)
    assert destination.errors(TOPOLOGY) == ()
    assert list(destination.error_batches(number)) == []
    assert list(destination.error_key_hashes(TOPOLOGY, APPLY)) == []


def test_error_can_be_deleted_from_outside(destination, session):
    session.begin()
    number = session.put_error(error_transaction(), b"x", np.empty(0, np.uint64), part=0)
    session.commit([], 0)
    assert not destination.delete_error("another", number)
    assert destination.delete_error(TOPOLOGY, number)
    assert not destination.delete_error(TOPOLOGY, number)


# --------------------------------------------------------------------------- instantiation


def test_instantiation_is_recorded_and_replaced(destination):
    destination.raise_epoch(TOPOLOGY, APPLY)
    first = Instantiation(source="a", owner="public", name="t", scn=0, state="PENDING")
    done = Instantiation(source="a", owner="public", name="t", scn=120, state="DONE", row_count=5, digest="ab")
    other = Instantiation(source="a", owner="public", name="b", scn=0, state="FAILED", problem="no room")
    for record in (first, other, done):
        destination.record_instantiation(TOPOLOGY, APPLY, 1, record)
    assert destination.instantiations(TOPOLOGY, APPLY) == (other, done)
    assert destination.instantiations(TOPOLOGY, "another") == ()


def test_instantiation_of_an_older_epoch_is_refused(destination):
    destination.raise_epoch(TOPOLOGY, APPLY)
    destination.raise_epoch(TOPOLOGY, APPLY)
    with pytest.raises(FencedError):
        destination.record_instantiation(
            TOPOLOGY, APPLY, 1, Instantiation(source="a", owner="public", name="t", scn=1, state="DONE")
        )


# --------------------------------------------------------------------------- set-up


def test_prepare_is_idempotent(destination):
    destination.raise_epoch(TOPOLOGY, APPLY)
    assert destination.prepare(TOPOLOGY) == ()
    assert destination.progress(TOPOLOGY, APPLY) is not None


def test_database_that_is_ready_has_no_findings(destination):
    assert destination.preflight("top", sessions=4) == ()


def test_removing_a_topology_leaves_nothing_of_it_and_everything_of_the_others(destination, session):
    session.begin()
    session.put_error(error_transaction(), b"x", np.array([7], np.uint64), part=0)
    session.commit(ranges((0, 150)), 0)
    for topology in (TOPOLOGY, "another"):
        epoch = destination.raise_epoch(topology, APPLY).epoch
        table = Instantiation(source="a", owner="public", name="t", scn=120, state="DONE")
        destination.record_instantiation(topology, APPLY, epoch, table)
    destination.remove(TOPOLOGY)
    assert destination.progress(TOPOLOGY, APPLY) is None
    assert destination.errors(TOPOLOGY) == ()
    assert destination.instantiations(TOPOLOGY, APPLY) == ()
    assert destination.progress("another", APPLY) is not None
    assert len(destination.instantiations("another", APPLY)) == 1
    destination.remove("another")
    destination.remove("another")
    assert destination.progress("another", APPLY) is None


def test_session_that_outlived_its_driver_cannot_write_after_the_removal(harness, destination, session):
    table = keyed(harness, session)
    session.begin()
    session.write([insert(table, [(int4(1), b"a", b"b")])])
    destination.remove(TOPOLOGY)
    with pytest.raises((DatabaseUnavailable, FencedError)):
        session.commit(ranges((0, 10)), 0)
    assert harness.rows("t") == []


def test_topology_begins_anew_after_it_was_removed(destination):
    destination.record_low_watermark(TOPOLOGY, APPLY, destination.raise_epoch(TOPOLOGY, APPLY).epoch, 500)
    destination.remove(TOPOLOGY)
    destination.prepare(TOPOLOGY)
    assert destination.raise_epoch(TOPOLOGY, APPLY).low_watermark == 0


def test_apply_process_that_is_forgotten_begins_anew_and_the_others_go_on(destination, session):
    session.begin()
    session.put_error(error_transaction(), b"x", np.array([7], np.uint64), part=0)
    session.commit(ranges((0, 150)), 0)
    for apply in (APPLY, "other"):
        epoch = destination.raise_epoch(TOPOLOGY, apply).epoch
        destination.record_low_watermark(TOPOLOGY, apply, epoch, 500)
        table = Instantiation(source="a", owner="public", name="t", scn=120, state="DONE")
        destination.record_instantiation(TOPOLOGY, apply, epoch, table)
    destination.forget(TOPOLOGY, APPLY)
    destination.forget(TOPOLOGY, APPLY)
    assert destination.progress(TOPOLOGY, APPLY) is None
    assert destination.errors(TOPOLOGY) == ()
    assert destination.instantiations(TOPOLOGY, APPLY) == ()
    assert destination.raise_epoch(TOPOLOGY, APPLY).low_watermark == 0
    assert destination.raise_epoch(TOPOLOGY, "other").low_watermark == 500
    assert len(destination.instantiations(TOPOLOGY, "other")) == 1


def test_session_of_a_forgotten_apply_process_cannot_write(harness, destination, session):
    table = keyed(harness, session)
    session.begin()
    session.write([insert(table, [(int4(1), b"a", b"b")])])
    destination.forget(TOPOLOGY, APPLY)
    with pytest.raises((DatabaseUnavailable, FencedError)):
        session.commit(ranges((0, 10)), 0)
    assert harness.rows("t") == []


def test_nothing_is_forgotten_where_nothing_was_prepared(destination):
    destination.remove(TOPOLOGY)
    assert destination.forget(TOPOLOGY, APPLY) == ()
