"""Records are matched to tables by identity, whatever name the table had when it was recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.databases.ports import Instantiation
from headrace.lcr.batch import OldImage, TableVersion
from headrace.lcr.scn import ObjectNumber
from headrace.lcr.table_name import TableName
from spark_apply.apply_config import TableToInstantiate
from spark_apply.copy.records.standing import (
    Standing,
    missing_rename,
    rename_findings,
    rename_statement,
    renamed,
    standings,
)


def wanted(identity: str, name: str) -> TableToInstantiate:
    return TableToInstantiate(
        identity=identity, source=TableName("hr", name), destination=TableName("hr", name), object_numbers=()
    )


def record(identity: str, name: str, state: str = "DONE", scn: int = 100) -> Instantiation:
    return Instantiation(source="a", identity=identity, owner="hr", name=name, scn=scn, state=state)


def stand(tables: list[TableToInstantiate], *records: Instantiation) -> list[Standing]:
    found = list(standings(tables, records))
    assert [each.table for each in found] == tables
    return found


def test_table_recorded_under_its_name_is_finished():
    (table,) = stand([wanted("1", "ra")], record("1", "ra"), record("2", "rb"))
    assert (table.is_finished, table.is_renamed, table.is_outdated) == (True, False, False)


def test_renamed_table_is_finished_and_its_record_takes_its_new_name():
    (table,) = stand([wanted("1", "ra2")], record("1", "ra"))
    assert (table.is_finished, table.is_renamed, table.is_outdated) == (True, True, False)
    assert table.renamed_record() == record("1", "ra2")


def test_tables_that_exchanged_names_keep_their_records():
    one, other = stand([wanted("1", "b"), wanted("2", "a")], record("1", "a"), record("2", "b"))
    assert [one.renamed_record(), other.renamed_record()] == [record("1", "b"), record("2", "a")]
    assert one.replaced == other.replaced == ()


def test_recreated_table_is_copied_again_in_place_of_the_old_table():
    (table,) = stand([wanted("2", "ra")], record("1", "ra"))
    assert (table.is_finished, table.is_begun, table.is_outdated) == (False, False, True)
    assert table.replaced_identities == ("1",)


def test_table_removed_and_replicated_again_is_copied_again():
    (table,) = stand([wanted("1", "ra")], record("1", "ra", "LEFT"))
    assert (table.is_finished, table.is_begun, table.is_outdated) == (False, False, True)


@pytest.mark.parametrize(("state", "scn"), [("KEPT", 100), ("FAILED", 0)])
def test_rows_that_were_never_copied_are_not_outdated(state: str, scn: int):
    (table,) = stand([wanted("2", "ra")], record("1", "ra", state, scn))
    assert not table.is_outdated


def test_new_table_with_a_former_name_does_not_own_the_renamed_tables_rows():
    """An online schema change under a schema rule: hr.ra became hr.ra_old, and another table became hr.ra."""
    old, new = stand([wanted("1", "ra_old"), wanted("2", "ra")], record("1", "ra"))
    assert (old.is_finished, old.is_renamed) == (True, True)
    assert new.occupant == wanted("1", "ra_old")
    assert (new.is_finished, new.is_begun, new.is_outdated, new.replaced) == (False, False, False, ())


@pytest.mark.parametrize(
    ("state", "scn", "is_begun"), [("COPYING", 100, True), ("FAILED", 100, True), ("FAILED", 0, False)]
)
def test_rows_of_an_unfinished_copy_are_its_own(state: str, scn: int, is_begun: bool):
    (table,) = stand([wanted("1", "ra")], record("1", "ra", state, scn))
    assert (table.is_finished, table.is_begun) == (False, is_begun)


def version(number: int, owner: str, name: str) -> TableVersion:
    return TableVersion(
        object_number=ObjectNumber(number),
        version=1,
        owner=owner,
        name=name,
        old_image=OldImage.KEY,
        columns=(),
    )


def test_table_arriving_under_a_new_name_needs_a_rename_not_a_creation():
    before = replace(wanted("1", "ra"), object_numbers=(7, 8))
    assert missing_rename(version(7, "hr", "ra2"), [before], [record("1", "ra")]) == TableName("hr", "ra")
    assert missing_rename(version(8, "hr", "ra2"), [before], []) == TableName("hr", "ra")  # rows of a partition
    after = replace(wanted("1", "ra2"), object_numbers=(7,))  # a driver that started after the rename
    assert missing_rename(version(7, "hr", "ra2"), [after], [record("1", "ra")]) == TableName("hr", "ra")


def test_missing_table_with_an_unchanged_name_needs_no_rename():
    table = replace(wanted("1", "ra"), object_numbers=(7,))
    assert missing_rename(version(7, "hr", "ra"), [table], [record("1", "ra")]) is None
    assert missing_rename(version(9, "hr", "ra2"), [table], [record("1", "ra")]) is None


def test_rename_statement_sets_the_new_schema_and_name():
    assert (
        rename_statement(TableName("hr", 'o"dd'), TableName("hr", "new")) == 'ALTER TABLE "hr"."o""dd" RENAME TO "new"'
    )
    assert rename_statement(TableName("hr", "ra"), TableName("s", "ra2")) == (
        'ALTER TABLE "hr"."ra" SET SCHEMA "s"; ALTER TABLE "s"."ra" RENAME TO "ra2"'
    )


def test_chained_renames_are_printed_in_a_valid_order():
    """At the source ra became ra_old, and rb became ra."""
    store = MemoryStore()
    for name in ("ra", "rb"):
        store.create_table("hr", name, [destination_column("id")], key=["id"])
    identities = {TableName("hr", "ra_old"): "1", TableName("hr", "ra"): "2", TableName("hr", "new"): "3"}
    old_names = renamed(identities, [record("1", "ra"), record("2", "rb")])
    assert old_names == {TableName("hr", "ra_old"): TableName("hr", "ra"), TableName("hr", "ra"): TableName("hr", "rb")}
    versions = [version(number, "hr", name) for number, name in enumerate(("ra_old", "ra", "new"), 1)]

    def fixes() -> list[str]:
        return [
            found.fix for found in rename_findings(MemoryDestination(store=store), versions, old_names, "b").values()
        ]

    assert fixes() == ['ALTER TABLE "hr"."ra" RENAME TO "ra_old";']
    store.tables["hr", "ra_old"] = store.tables.pop(("hr", "ra"))
    assert fixes() == ['ALTER TABLE "hr"."rb" RENAME TO "ra";']
    store.tables["hr", "ra"] = store.tables.pop(("hr", "rb"))
    assert fixes() == []
