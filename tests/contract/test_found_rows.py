"""How many rows an UPDATE or DELETE finds at a destination, and the treatment of several rows.

Substitute keys and keyless rows are included. A set must never hide that one of its rows found two and another found
none, although the counts add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from headrace.base.errors import WHERE_OTHERS_WRITE, DataError, UnfitTableError
from headrace.databases.ports import DestinationSession
from headrace.lcr.batch import OldImage
from headrace.lcr.table_name import TableName, whole_rows
from headrace.rules.table_settings import KeyColumns, TableSettings
from tests.support.databases.destination_contract import APPLY, TAG, TOPOLOGY, Harness, commit
from tests.support.values.writes import delete, insert, int4, update, version_of

BY_A = (KeyColumns(owner="public", name="s", columns=("a",)),)
Seen = Callable[..., DestinationSession]


@pytest.fixture
def seen(harness: Harness) -> Iterator[Seen]:
    """Return a function that opens an apply server's session with settings."""
    opened: list[DestinationSession] = []

    def make(*, server: int = 0, key_columns: tuple[KeyColumns, ...] = BY_A, **settings) -> DestinationSession:
        database = harness.destination(TableSettings(key_columns=key_columns, **settings))
        database.prepare(TOPOLOGY)
        epoch = database.raise_epoch(TOPOLOGY, APPLY).epoch
        opened.append(database.open_session(TOPOLOGY, APPLY, server=server, epoch=epoch, tag=TAG))
        return opened[-1]

    yield make
    for session in opened:
        session.close()


def table(
    harness: Harness,
    session: DestinationSession,
    *,
    key: tuple[str, ...] = ("id",),
    unique: tuple[tuple[str, ...], ...] = (),
    not_null=(),
):
    harness.create_table("s", [("id", "int4"), ("a", "int4"), ("b", "text")], key=key, unique=unique, not_null=not_null)
    found = session.describe("public", "s", fresh=True)
    assert found is not None
    return found


def row(number: int, a: int, b: bytes = b"x") -> tuple[bytes, bytes, bytes]:
    return int4(number), int4(a), b


def test_substitute_key_takes_precedence_and_keys_of_the_catalog_stay(harness, seen):
    found = table(harness, seen())
    assert (found.key, found.unique_keys, found.is_substitute, found.serialise) == ((1,), ((0,),), True, False)


def test_table_without_a_key_is_not_serialised_under_a_substitute_key(harness, seen):
    found = table(harness, seen(), key=())
    assert (found.key, found.unique_keys, found.serialise) == ((1,), (), False)


@pytest.mark.parametrize("unique", [(), (("a",),)], ids=["not unique", "unique"])
def test_rows_are_found_by_the_substitute_key_whatever_their_own_key_is(harness, seen, unique):
    session = seen()
    s = table(harness, session, unique=unique, not_null=("a",))
    commit(session, insert(s, [row(1, 10), row(2, 20), row(3, 30)]))
    changed = update(s, [row(8, 10), row(9, 20)], [row(8, 10, b"y"), row(9, 20, b"z")], sets=[2], compare=[2])
    assert commit(session, changed, delete(s, [row(7, 30)], compare=[])) == (2, 1)
    assert harness.rows("s") == [row(1, 10, b"y"), row(2, 20, b"z")]


def test_substitute_key_can_be_changed(harness, seen):
    session = seen()
    s = table(harness, session)
    commit(session, insert(s, [row(1, 10), row(2, 20)]))
    assert commit(session, update(s, [row(1, 10), row(2, 20)], [row(1, 11), row(2, 21)], sets=[1])) == (2,)
    assert harness.rows("s") == [row(1, 11), row(2, 21)]


def test_set_in_which_one_row_finds_two_and_another_none_does_not_add_up(harness, seen):
    session = seen()
    s = table(harness, session)
    there = [row(1, 5), row(2, 5), row(3, 7)]
    commit(session, insert(s, there))
    for write in (
        update(s, [row(1, 5), row(4, 6)], [row(1, 5, b"y"), row(4, 6, b"y")], sets=[2], compare=[]),
        delete(s, [row(1, 5), row(4, 6)], compare=[]),
    ):
        assert commit(session, write) == (0,)
    assert harness.rows("s") == there


def test_one_row_that_finds_several_counts_all_of_them(harness, seen):
    """So an apply server can distinguish several rows from none; it rolls back."""
    session = seen()
    s = table(harness, session)
    commit(session, insert(s, [row(1, 5), row(2, 5)]))
    session.begin()
    assert session.write([update(s, [row(1, 5)], [row(1, 5, b"y")], sets=[2], compare=[])]) == (2,)
    session.rollback()
    session.begin()
    assert session.write([delete(s, [row(1, 5)], compare=[])]) == (2,)
    session.rollback()


def test_of_several_rows_only_the_one_with_the_old_values_is_changed(harness, seen):
    session = seen()
    s = table(harness, session)
    commit(session, insert(s, [row(1, 5, b"other"), row(2, 5, b"x")]))
    assert commit(session, update(s, [row(9, 5, b"x")], [row(9, 5, b"y")], sets=[2], compare=[2])) == (1,)
    assert harness.rows("s") == [row(1, 5, b"other"), row(2, 5, b"y")]


@pytest.mark.parametrize("is_one", [True, False])
def test_with_allow_duplicate_rows_one_of_several_rows_is_changed(harness, seen, is_one):
    session = seen(allow_duplicate_rows=True)
    s = table(harness, session)
    commit(session, insert(s, [row(1, 5), row(2, 5), row(3, 6, b"other"), row(4, 7), row(5, 7)]))
    old = [row(1, 5)] if is_one else [row(1, 5), row(9, 6), row(9, 7)]
    new = [(a, b, b"y") for a, b, _ in old]
    # the old value of a = 6 differs
    assert commit(session, update(s, old, new, sets=[2], compare=[2])) == (1 if is_one else 2,)
    assert [found[2] for found in harness.rows("s")].count(b"y") == (1 if is_one else 2)
    assert commit(session, delete(s, [(a, b, b"x") for a, b, _ in old[:1]], compare=[2])) == (1,)
    assert len(harness.rows("s")) == 4


def test_source_key_unknown_here_does_not_change_one_of_several_rows(harness, seen):
    """A log with keys only, and a destination whose key has more columns: which row is meant is not known."""
    session = seen(key_columns=())
    s = table(harness, session, key=("id", "a"))
    commit(session, insert(s, [row(1, 5), row(1, 6), row(2, 7)]))
    for write in (
        replace(
            update(s, [row(1, 0), row(3, 0)], [row(1, 0, b"y"), row(3, 0, b"y")], sets=[2], compare=[]),
            match_columns=(0,),
        ),
        replace(delete(s, [row(1, 0), row(3, 0)], compare=[]), match_columns=(0,)),
    ):
        assert commit(session, write) == (0,)
        session.begin()
        alone = replace(
            write,
            old=update(s, [row(1, 0)], [row(1, 0)]).old,
            new=write.new and update(s, [row(1, 0)], [row(1, 0, b"y")]).new,
        )
        assert session.write([alone]) == (2,)
        session.rollback()
    assert harness.rows("s") == [row(1, 5), row(1, 6), row(2, 7)]


def test_equal_rows_are_an_error_where_duplicate_rows_are_not_allowed(harness, seen):
    session = seen(key_columns=(), allow_duplicate_rows=False)
    s = table(harness, session, key=())
    commit(session, insert(s, [row(1, 5), row(1, 5), row(2, 6), row(3, 7)]))
    assert commit(session, delete(s, [row(1, 5), row(2, 6)])) == (1,)
    session.begin()
    assert session.write([delete(s, [row(1, 5)])]) == (2,)
    session.rollback()
    assert harness.rows("s") == [row(1, 5), row(1, 5), row(3, 7)]


def test_equal_rows_are_changed_one_to_one_where_nothing_is_said(harness, seen):
    session = seen(key_columns=())
    s = table(harness, session, key=())
    commit(session, insert(s, [row(1, 5), row(1, 5)]))
    assert commit(session, delete(s, [row(1, 5)])) == (1,)


def test_rows_with_null_in_the_substitute_key_are_found_by_all_values(harness, seen):
    session = seen()
    s = table(harness, session, key=())
    rows = [(int4(1), None, b"x"), (int4(2), None, b"x")]
    commit(session, insert(s, rows))
    found = replace(delete(s, rows[:1]), match_columns=(0, 1, 2), compare_columns=(), paired=True)
    assert commit(session, found) == (1,)
    assert harness.rows("s") == rows[1:]


def test_rows_whose_log_lacks_the_substitute_key_do_not_fit(harness, seen):
    session = seen()
    s = table(harness, session)
    lacking = version_of(s, without=["a"])
    by_id = replace(
        version_of(s),
        old_image=OldImage.KEY,
        columns=tuple(replace(c, is_key=c.name == "id") for c in version_of(s).columns),
    )
    assert "leave out a" in session.missing_alter(lacking)
    assert (
        f"{whole_rows(TableName.of(s))}; under the name that it has there, if a rule renames it: "
        in session.missing_alter(by_id)
    )
    database = harness.destination(TableSettings(key_columns=BY_A))
    fixes = [
        each.fix for each in database.preflight_tables([by_id], at_source={TableName.of(s): TableName("x", "emp")})
    ]
    assert any(
        fix.startswith(f"at the source: {whole_rows(TableName('x', 'emp'))}; the log lacks old values")
        and fix.endswith(WHERE_OTHERS_WRITE)
        for fix in fixes
    )
    assert session.missing_alter(replace(by_id, columns=tuple(replace(c, is_key=True) for c in by_id.columns))) == ""


def test_rows_that_do_not_fit_are_an_error_of_theirs_where_that_is_set(harness, seen):
    harness.create_table("s", [("id", "int4"), ("a", "int4"), ("b", "text"), ("more", "text")], key=["id"])
    wide = seen(key_columns=()).describe("public", "s")
    assert wide is not None
    harness.drop_table("s")
    for server, mismatch, error in ((1, "wait", UnfitTableError), (2, "error", DataError)):
        session = seen(server=server, key_columns=(), column_mismatch=mismatch)
        table(harness, session)
        session.begin()
        with pytest.raises(error, match="does not fit the source's rows") as raised:
            session.write([insert(wide, [(*row(1, 5), b"more")])])
        assert "ADD COLUMN" in f"{raised.value.message}{raised.value.hint}" or "memory" in type(session).__module__
        session.rollback()
