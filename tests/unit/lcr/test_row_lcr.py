"""Row LCR views: the manuals' methods; absent, NULL and unchanged are three different things."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from headrace.base.errors import HeadraceError
from headrace.lcr.batch import Column, Command, LcrBatch, RowGroup, Truncate
from headrace.lcr.lcr_value import LcrError, LcrValue
from headrace.lcr.row_lcr import RowLcr
from headrace.lcr.tags import Tag
from headrace.lcr.values import ABSENT, NULL, UNCHANGED
from tests.support.values.lcr_batches import column_values, insert_batch, lcr_batches, table_version, transactions


def batch() -> LcrBatch:
    """Row 0 INSERT, 1 UPDATE, 2 DELETE, 3 TRUNCATE; columns c0 c1 c2; the second transaction is tagged."""
    return LcrBatch(
        source="dbs1",
        previous_scn=5,
        through_scn=20,
        tables=(table_version(columns=3), table_version("u")),
        tags=(Tag(value=b"\x07"),),
        transactions=transactions([10, 20], [1, 3], tags=[-1, 0]),
        groups=(
            RowGroup(
                table=0,
                command=Command.INSERT,
                row_numbers=np.array([0], np.int32),
                old=None,
                new=column_values([[b"1"], [NULL], [b"long"]]),
            ),
            RowGroup(
                table=0,
                command=Command.UPDATE,
                row_numbers=np.array([1], np.int32),
                old=column_values([[b"1"], [ABSENT], [b"long"]]),
                new=column_values([[b"2"], [b"x"], [UNCHANGED]]),
            ),
            RowGroup(
                table=0,
                command=Command.DELETE,
                row_numbers=np.array([2], np.int32),
                old=column_values([[b"2"], [NULL], [ABSENT]]),
                new=None,
            ),
        ),
        truncates=(Truncate(row_number=3, tables=(1, 0), cascade=False, restart_identity=True),),
    )


def raw(value: LcrValue | None) -> bytes | None:
    assert value is not None
    return value.raw


def test_view_names_its_change() -> None:
    lcr = RowLcr(batch(), 2)
    assert (lcr.command_type, lcr.object_owner, lcr.object_name) == ("DELETE", "public", "t")
    assert (lcr.source_database_name, lcr.transaction_id, lcr.scn, lcr.commit_scn) == ("dbs1", 1020, 19, 20)
    assert (lcr.position, lcr.source_time_us) == (1, 20_000)
    assert (lcr.tag, lcr.is_null_tag()) == (b"\x07", False)
    assert RowLcr(batch(), 0).is_null_tag()


def test_incomplete_transaction_has_a_time_and_no_commit_scn() -> None:
    lcr = RowLcr(insert_batch([10], rows_each=3, is_open=True, continues=True, first_position=40), 2)
    assert (lcr.commit_scn, lcr.scn, lcr.source_time_us, lcr.position) == (None, 9, 10_000, 42)


def test_null_is_a_value_and_absent_is_none() -> None:
    insert, delete = RowLcr(batch(), 0), RowLcr(batch(), 2)
    value = insert.get_value("new", "c1")
    assert value is not None
    assert value.is_null
    assert delete.get_value("old", "c2") is None
    assert insert.get_value("old", "c0") is None
    assert insert.get_value("new", "nonsense") is None


def test_old_value_replaces_a_missing_new_one_of_an_update() -> None:
    update = RowLcr(batch(), 1)
    assert raw(update.get_value("new", "c0")) == b"2"
    assert raw(update.get_value("new", "c2")) == b"long"
    assert update.get_value("new", "c2", use_old=False) is None
    assert update.is_unchanged("c2")
    assert not update.is_unchanged("c1")
    assert {name: value.raw for name, value in update.get_values("new").items()} == {
        "c0": b"2",
        "c1": b"x",
        "c2": b"long",
    }
    assert list(update.get_values("new", use_old=False)) == ["c0", "c1"]


def test_use_old_is_ignored_for_old_values_and_other_commands() -> None:
    update, delete = RowLcr(batch(), 1), RowLcr(batch(), 2)
    assert update.get_value("old", "c1") is None
    assert delete.get_value("new", "c0") is None
    assert delete.get_values("new") == {}


def test_set_value_changes_the_view_and_not_the_batch() -> None:
    whole = batch()
    lcr = RowLcr(whole, 0)
    lcr.set_value("new", "c0", b"9")
    lcr.set_value("new", "c2", LcrValue(column=whole.tables[0].columns[2], raw=None))
    lcr.object_owner, lcr.object_name, lcr.tag = "hr", "copy", None
    assert raw(lcr.get_value("new", "c0")) == b"9"
    assert raw(lcr.get_value("new", "c2")) is None
    assert (lcr.object_owner, lcr.object_name) == ("hr", "copy")
    other = RowLcr(whole, 0)
    assert raw(other.get_value("new", "c0")) == b"1"
    assert (other.object_owner, other.object_name) == ("public", "t")


def test_set_value_of_an_absent_column_is_refused() -> None:
    with pytest.raises(LcrError, match="no old value of column c1"):
        RowLcr(batch(), 1).set_value("old", "c1", b"x")


def test_bare_null_is_refused() -> None:
    with pytest.raises(LcrError, match="is no value"):
        RowLcr(batch(), 0).set_value("new", "c0", None)


def test_null_is_set_and_added_with_the_columns_type() -> None:
    lcr = RowLcr(batch(), 1)
    lcr.set_value("new", "c1", lcr.NULL)
    lcr.add_column("old", "c1", RowLcr.NULL)
    for kind in ("new", "old"):
        value = lcr.get_value(kind, "c1")
        assert value is not None
        assert (value.is_null, value.decoded, value.column.type_name) == (True, None, "pg_catalog.int4")
    assert lcr.table_version().columns == lcr.table.columns


def test_add_column_adds_absent_columns_and_refuses_existing_ones() -> None:
    lcr = RowLcr(batch(), 1)
    lcr.add_column("old", "c1", b"w")
    lcr.add_column("new", "elsewhere", b"z")
    assert raw(lcr.get_value("old", "c1")) == b"w"
    assert lcr.get_value("old", "c1").column.type_name == "pg_catalog.int4"
    assert raw(lcr.get_value("new", "elsewhere")) == b"z"
    assert list(lcr.get_values("new"))[-1] == "elsewhere"
    with pytest.raises(LcrError, match="a new value of column c1 already"):
        lcr.add_column("new", "c1", b"x")


@pytest.mark.parametrize(("row", "kind"), [(0, "old"), (2, "new"), (3, "new"), (3, "old")])
def test_add_column_is_refused_where_the_command_has_no_such_values(row: int, kind: str) -> None:
    with pytest.raises(LcrError, match=f"has no {kind} values"):
        RowLcr(batch(), row).add_column(kind, "c9", b"x")


def test_delete_column_with_both_kinds_needs_both() -> None:
    lcr = RowLcr(batch(), 1)
    with pytest.raises(LcrError, match="no old value of column c1"):
        lcr.delete_column("c1")
    assert raw(lcr.get_value("new", "c1")) == b"x"
    lcr.delete_column("c1", "new")
    assert lcr.get_value("new", "c1") is None
    lcr.delete_column("c0")
    assert lcr.get_values("new") == lcr.get_values("old")


def test_rename_column_keeps_values_and_order_and_refuses_a_taken_name() -> None:
    lcr = RowLcr(batch(), 1)
    lcr.rename_column("c0", "id")
    assert list(lcr.get_values("old")) == ["c2", "id"] or list(lcr.get_values("old")) == ["id", "c2"]
    assert raw(lcr.get_value("new", "id")) == b"2"
    with pytest.raises(LcrError, match="has a column c1 already"):
        lcr.rename_column("id", "c1", "new")
    with pytest.raises(LcrError, match="the UPDATE has neither an old nor a new value of column c0"):
        lcr.rename_column("c0", "again")


def test_keep_columns_drops_the_other_columns_of_the_given_kind() -> None:
    lcr = RowLcr(batch(), 1)
    old = lcr.get_values("old")
    lcr.keep_columns(["c1", "nowhere"], "new")
    assert (list(lcr.get_values("new", use_old=False)), lcr.get_values("old")) == (["c1"], old)
    lcr.keep_columns(["c0"])
    assert (list(lcr.get_values("new", use_old=False)), list(lcr.get_values("old"))) == ([], ["c0"])
    assert [column.name for column in lcr.table_version().columns] == ["c0"]


def test_keep_columns_drops_columns_without_a_value() -> None:
    lcr = RowLcr(batch(), 2)
    assert list(lcr.get_values("old")) == ["c0", "c1"]
    lcr.keep_columns(["c0", "c1"])
    assert ([column.name for column in lcr.table_version().columns], lcr.is_changed) == (["c0", "c1"], True)


@pytest.mark.parametrize("call", [lambda lcr: lcr.rename_column("c1", "v"), lambda lcr: lcr.delete_column("c1")])
def test_call_for_both_values_names_the_kind_that_an_insert_has(call) -> None:
    with pytest.raises(
        LcrError, match=r'the INSERT has no old value of column c1, and value_type is "\*": the old and the new one'
    ) as caught:
        call(RowLcr(batch(), 0))
    assert caught.value.hint == 'give value_type "new", the only value that it has'


def test_set_values_replaces_all_of_a_kind_or_nothing() -> None:
    lcr = RowLcr(batch(), 0)
    before = lcr.get_values("new")
    with pytest.raises(LcrError, match="NULL is written lcr"):
        lcr.set_values("new", {"c0": b"9", "c1": None})
    with pytest.raises(LcrError, match="has no old values"):
        lcr.set_values("old", {"c0": b"9"})
    assert (lcr.get_values("new"), lcr.is_changed) == (before, False)
    lcr.set_values("new", {"c1": b"w", "c0": lcr.NULL})
    assert {name: value.raw for name, value in lcr.get_values("new").items()} == {"c0": None, "c1": b"w"}


def test_truncate_has_no_row_text() -> None:
    lcr = RowLcr(batch(), 3)
    for ask in (lcr.get_where_clause, lcr.get_row_text):
        with pytest.raises(LcrError, match="a TRUNCATE has no row"):
            ask()


def test_values_are_decoded_only_on_request() -> None:
    asked: list[str] = []

    def decode(column: Column, value: bytes) -> object:
        asked.append(column.name)
        return int(value)

    lcr = RowLcr(batch(), 0, decode=decode)
    value, null = lcr.get_value("new", "c0"), lcr.get_value("new", "c1")
    assert asked == []
    assert value is not None
    assert value.decoded == 1
    assert null is not None
    assert null.decoded is None
    assert asked == ["c0"]


def test_decoding_without_a_hook_is_an_explicit_error() -> None:
    value = RowLcr(batch(), 0).get_value("new", "c0")
    assert value is not None
    with pytest.raises(LcrError, match="cannot be decoded here"):
        _ = value.decoded


def test_truncate_is_an_lcr_without_values() -> None:
    lcr = RowLcr(batch(), 3)
    assert (lcr.command_type, lcr.object_name) == ("TRUNCATE", "u")
    assert [table.name for table in lcr.truncated_tables] == ["u", "t"]
    assert lcr.get_values("new") == {} == lcr.get_values("old")
    with pytest.raises(LcrError, match="cannot become INSERT"):
        lcr.command_type = "INSERT"


def test_command_type_can_change_while_values_stay() -> None:
    lcr = RowLcr(batch(), 1)
    lcr.command_type = "INSERT"
    assert lcr.command_type == "INSERT"
    assert raw(lcr.get_value("new", "c0")) == b"2"
    with pytest.raises(LcrError):
        lcr.command_type = "MERGE"


def test_both_kinds_cannot_be_read_at_once() -> None:
    with pytest.raises(LcrError, match=r'not "\*"'):
        RowLcr(batch(), 1).get_value("*", "c0")


def test_representation_shows_no_values() -> None:
    assert "long" not in repr(RowLcr(batch(), 0))
    assert isinstance(LcrError("x"), HeadraceError)


@pytest.mark.seeded
@given(lcr_batches())
def test_every_row_of_any_batch_has_a_view_that_agrees_with_it(whole: LcrBatch) -> None:
    group, within = whole.row_places
    for row in range(whole.row_count):
        lcr = RowLcr(whole, row)
        assert 0 <= lcr.position - whole.first_position < max(whole.row_count, 1) or lcr.position < whole.row_count
        if group[row] < 0:
            assert lcr.command_type == "TRUNCATE"
            continue
        rows = whole.groups[group[row]]
        assert lcr.command_type == rows.command.name
        names = [column.name for column in lcr.table.columns]
        for kind, values in (("old", rows.old), ("new", rows.new)):
            for number, name in enumerate(names):
                if values is None or names.count(name) > 1:
                    continue
                expected = values.value(number, int(within[row]))
                found = lcr.get_value(kind, name, use_old=False)
                if expected in (ABSENT, UNCHANGED):
                    assert found is None
                else:
                    assert raw(found) == (None if expected == NULL else expected)
