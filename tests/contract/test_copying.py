"""The contract of connectors for reading tables in pieces and writing them (`headrace.databases.ports.copying`)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from headrace.base.errors import DatabaseError, DatabaseUnavailable, DataError
from headrace.databases.ports.copying import PORTABLE, TableReader
from headrace.databases.table_digest import TableDigest
from tests.support.databases.destination_contract import Harness

TYPES = {"id": "pg_catalog.text", "a": "pg_catalog.text"}
ROWS = [(f"{number:04}".encode(), None if number % 7 == 0 else b"x" * (number % 50)) for number in range(400)]
SMALL = 1  # one byte: as many pieces as possible


@pytest.fixture
def reader(harness: Harness) -> Iterator[TableReader]:
    for name in ("t", "copy"):
        harness.create_table(name, [("id", "text"), ("a", "text")], key=["id"])
    harness.insert("t", ROWS)
    with contextlib.closing(harness.reader()) as made:
        yield made


def digest_of(reader: TableReader, name: str, *, snapshot: str = "", piece_bytes: int = SMALL) -> TableDigest:
    total = TableDigest()
    for piece in reader.plan("public", name, TYPES, snapshot=snapshot, piece_bytes=piece_bytes).pieces:
        with reader.open_piece(piece, snapshot=snapshot) as opened:
            total += opened.digest(tuple(TYPES))
    return total


def test_pieces_make_up_the_table_and_digests_do_not_depend_on_the_cut(harness, reader, session):
    plan = reader.plan("public", "t", TYPES, piece_bytes=SMALL)
    assert len(plan.pieces) > 1
    written = 0
    for piece in reversed(plan.pieces):
        with reader.open_piece(piece) as opened:
            written += session.copy_rows(
                "public", "copy", tuple(TYPES), opened.rows(tuple(TYPES), form=plan.form), form=plan.form
            )
    assert written == len(ROWS)
    assert harness.rows("copy") == harness.rows("t")
    assert digest_of(reader, "copy", piece_bytes=1 << 30) == digest_of(reader, "t")


def test_portable_form_brings_the_same_rows(harness, reader, session):
    (piece,) = reader.plan("public", "t", TYPES).pieces
    with reader.open_piece(piece) as opened:
        session.copy_rows("public", "copy", ("a", "id"), opened.rows(("a", "id"), form=PORTABLE), form=PORTABLE)
    assert harness.rows("copy") == harness.rows("t")


def test_snapshot_is_seen_by_other_readers_whatever_is_written_later(harness, reader):
    before = digest_of(reader, "t")
    with reader.export_snapshot() as snapshot, contextlib.closing(harness.reader()) as other:
        harness.insert("t", [(b"late", b"row")])
        assert digest_of(other, "t", snapshot=snapshot) == before
        assert digest_of(other, "t").row_count == before.row_count + 1

    def until_it_is_gone() -> None:
        """The session that exported it ends on its own time after it was told to."""
        ends_by = time.monotonic() + 60
        while time.monotonic() < ends_by:
            digest_of(reader, "t", snapshot=snapshot)

    with pytest.raises(DatabaseUnavailable, match="snapshot is gone"):
        until_it_is_gone()


@pytest.mark.parametrize("is_planned", [True, False])
def test_table_rewritten_under_a_snapshot_is_refused(harness, reader, is_planned):
    """Its rows have moved: some would be read twice and others never."""
    with reader.export_snapshot() as snapshot:
        if is_planned:
            pieces = reader.plan("public", "t", TYPES, snapshot=snapshot, piece_bytes=SMALL).pieces
            with reader.open_piece(pieces[0], snapshot=snapshot) as opened:
                assert opened.digest(tuple(TYPES)).row_count > 0
            harness.rewrite("t")
        else:
            harness.rewrite("t")
            pieces = reader.plan("public", "t", TYPES, snapshot=snapshot, piece_bytes=SMALL).pieces
        with (
            pytest.raises(DatabaseUnavailable, match="was rewritten"),
            reader.open_piece(pieces[-1], snapshot=snapshot),
        ):
            pass
    assert digest_of(reader, "t").row_count == len(ROWS)


def test_table_that_is_not_there_is_an_error_that_time_does_not_heal(reader):
    with pytest.raises(DatabaseError) as caught:
        reader.plan("public", "missing", TYPES)
    assert not isinstance(caught.value, DatabaseUnavailable)


def test_refused_row_leaves_nothing_of_its_piece(harness, reader, session):
    harness.insert("copy", [(b"0399", b"there")])
    (piece,) = reader.plan("public", "t", TYPES).pieces
    with reader.open_piece(piece) as opened, pytest.raises(DataError) as caught:
        session.copy_rows("public", "copy", tuple(TYPES), opened.rows(tuple(TYPES), form=PORTABLE), form=PORTABLE)
    assert caught.value.context["sqlstate"] == "23505"
    assert harness.rows("copy") == [(b"0399", b"there")]


def test_tables_are_emptied_and_asked_for_rows(harness, reader, session):
    tables = [session.describe("public", name) for name in ("t", "copy")]
    assert [session.has_rows(table) for table in tables] == [True, False]
    session.empty_tables(tables)
    assert [session.has_rows(table) for table in tables] == [False, False]


@pytest.mark.usefixtures("reader")
def test_emptied_table_differs_from_one_that_got_a_row_since(harness, session):
    table = session.describe("public", "copy")
    mark = session.empty_marked(table)
    assert session.files_mark(table) == mark
    harness.insert("copy", [(b"0399", b"there")])
    assert not mark or session.files_mark(table) != mark
    again = session.empty_marked(table)
    assert not mark or again != mark


def test_buckets_find_the_rows_in_which_two_tables_differ(harness, reader):
    harness.insert("copy", [*ROWS[:100], (b"0100", b"changed"), *ROWS[101:399], (b"more", None)])
    digests = [reader.bucket_digests("public", name, ("id",), ("id", "a"), buckets=64) for name in ("t", "copy")]
    wanted = [number for number, (left, right) in enumerate(zip(*digests, strict=True)) if left != right]
    assert 1 <= len(wanted) <= 3
    left, right = (
        {
            row.key: row.digest
            for row in reader.bucket_rows(
                "public",
                name,
                ("id",),
                ("id", "a"),
                buckets=64,
                wanted=wanted,
                rows_max=1000,
            )
        }
        for name in ("t", "copy")
    )
    assert {key for key in left.keys() | right.keys() if left.get(key) != right.get(key)} == {
        ("0100",),
        ("0399",),
        ("more",),
    }
    assert len(reader.bucket_rows("public", "t", ("id",), ("id",), buckets=1, wanted=[0], rows_max=5)) == 5


@pytest.mark.parametrize("key", [("id",), ("a",), ("id", "a")])
def test_rows_are_read_by_their_keys_whatever_the_key_is(harness, reader, key):
    """Keys of two columns, non-unique keys, NULLs and quotes; a key without a row is no error."""
    harness.insert("t", [(b"it's", b'\\ % and "')])
    every = reader.bucket_rows("public", "t", key, ("id", "a"), buckets=1, wanted=[0], rows_max=1000)
    keys = [row.key for row in every if row.key[0] in {"0007", "0014", "0100", "it's", None, "x" * 49, '\\ % and "'}]
    assert keys
    found = reader.keyed_rows("public", "t", key, ("id", "a"), keys=[*dict.fromkeys(keys), ("none",) * len(key)])
    assert sorted(found, key=repr) == sorted((row for row in every if row.key in keys), key=repr)
    assert reader.keyed_rows("public", "t", key, ("id", "a"), keys=[]) == ()


def test_known_version_of_a_row_changes_when_the_row_is_written(harness, reader, session):
    def version() -> str:
        (found,) = reader.keyed_rows("public", "t", ("id",), ("id", "a"), keys=[("0007",)])
        return str(found.version)

    before = version()
    assert version() == before
    session.empty_tables([session.describe("public", "t")])
    harness.insert("t", ROWS)
    assert not before or version() != before


def test_rows_can_be_read_as_text_changed_digested_and_written(harness, reader, session):
    """Rows changed by a user's function have the same digest as the rows written."""
    total = TableDigest()

    def changed(opened):
        for rows in opened.values(tuple(TYPES)):
            yield [(key, None if value is None else value + b"\\ \t\n\r'\xc3\xa4") for key, value in rows]

    for piece in reader.plan("public", "t", TYPES, piece_bytes=SMALL).pieces:
        with reader.open_piece(piece) as opened:
            total += opened.digest_values(tuple(TYPES), changed(opened))
            blocks = (opened.packed(rows) for rows in changed(opened))
            session.copy_rows("public", "copy", tuple(TYPES), blocks, form=PORTABLE)
    assert harness.rows("copy") == [
        (key, None if value is None else value + b"\\ \t\n\r'\xc3\xa4") for key, value in harness.rows("t")
    ]
    assert total == digest_of(reader, "copy")
