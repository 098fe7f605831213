"""Changes belong to the table in which they were made, whatever its name is when they arrive."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.base.errors import UnfitTableError
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.databases.ports import ApplyProgress, Instantiation, PartOf
from headrace.lcr.batch import Column, Command, Partition, TableVersion, Truncate, content_version
from headrace.lcr.scn import ObjectNumber, Scn
from headrace.lcr.table_name import TableName
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.transformations.reshaping import transformed_version
from headrace.rules.transformations.transformation import AddColumn, DeleteColumns, RenameColumn, Transformation
from spark_apply.apply_config import TableToInstantiate
from spark_apply.copy.records.parts import parts_of
from spark_apply.copy.records.standing import standings, table_starts
from spark_apply.driver.groups.unfinished_groups import UnfinishedGroups
from spark_apply.driver.groups.watermarks import Watermarks
from spark_apply.driver.loop.joining import TableJoins
from spark_apply.driver.reading.destination_names import DestinationNames
from spark_apply.tables.arriving import ArrivingTables, TableStart
from spark_apply.tables.copied import copied_scns, keys_of, moved_before, truncated_before, without_copied
from spark_apply.tables.fits import TableVersions
from tests.support.apply.apply_reading import Reading, commits
from tests.support.session.noted import noted
from tests.support.values.lcr_batches import insert_batch, table_version

A, B = 16384, 16385


def table(name: str, *numbers: int) -> TableToInstantiate:
    known = TableName("public", name)
    return TableToInstantiate(identity=f"id of {name}", source=known, destination=known, object_numbers=numbers)


def version(name: str, number: int, root: int = 0) -> TableVersion:
    return replace(table_version(name), object_number=ObjectNumber(number), root_number=ObjectNumber(root))


def arriving(answers: dict[int, str | None] | None = None, **scns: int | None) -> ArrivingTables:
    tables = (table("t", A), table("b", B))
    starts = dict.fromkeys(("t", "b"), 0) | scns
    return ArrivingTables(
        {("public", name): TableStart(scn=None if scn is None else Scn(scn)) for name, scn in starts.items()},
        tables,
        lambda number: (answers or {}).get(number, ""),
        apply="to_b",
    )


def batch(name: str, number: int, commit: int, previous: int = 0, *, root: int = 0):
    found = insert_batch([commit], previous=previous)
    return replace(found, tables=(version(name, number, root),))


def not_asked(number: int) -> Any:
    raise AssertionError(f"the source may be down, and is asked for {number}")


def test_rows_arriving_under_a_swapped_name_begin_at_their_tables_scn():
    """After a restart, changes from before the swap arrive under the old names and are in their own table's copy."""
    reading = Reading(tables=arriving(t=100, b=10))
    assert commits(reading.read(batch("b", A, 50))) == []
    assert reading.reader.unfit is None
    assert reading.reader.statistics.rows_instantiated == 1


def test_tables_swapping_names_at_run_time_keep_their_own_changes():
    reading = Reading(tables=arriving())
    assert commits(reading.read(batch("t", B, 50))) == []
    assert reading.reader.unfit is not None
    assert "headrace start FILE apply:to_b" in reading.reader.unfit.hint
    assert "public.b" in reading.reader.unfit.message


def test_renamed_table_with_a_free_new_name_is_no_swap():
    tables = arriving()
    tables.check_name(version("t2", A))
    with pytest.raises(UnfitTableError):
        tables.check_name(version("b", A))


@pytest.mark.parametrize(
    ("name", "destination"), [("t", "t"), ("t", "renamed")], ids=["new", "dropped, and its table renamed"]
)
def test_unknown_partition_maps_to_its_table_under_any_current_name(name: str, destination: str):
    """Apply began after the partition was dropped, or continues while the source that created a new one is down."""
    now = replace(table(destination, A), identity="id of t")
    tables = ArrivingTables({("public", destination): TableStart(scn=Scn(30))}, [now], not_asked)
    reading = Reading(tables=tables)
    found = reading.read(batch(name, 777, 20, root=A), batch(name, 777, 40, 20, root=A))
    assert commits(found) == [40]
    assert not reading.reader.strangers


def test_partition_moved_to_another_table_belongs_to_it_from_then_on():
    tables = ArrivingTables(
        {("public", name): TableStart(scn=Scn(0)) for name in ("t", "b")},
        [table("t", A), table("b", B, 777)],
        not_asked,
    )
    tables.check_name(version("t", 777, A))
    tables.check_name(version("b", 777, B))
    with pytest.raises(UnfitTableError):
        tables.check_name(version("t", 777, B))


def test_uncopied_table_known_from_the_log_is_excluded_unasked():
    reading = Reading(tables=ArrivingTables({}, [table("t", A)], not_asked))
    assert commits(reading.read(batch("other", 778, 20, root=777))) == []
    assert reading.reader.strangers == {TableName("public", "other")}


def test_every_table_is_unknown_to_an_apply_without_tables():
    """The operator is ahead of the running process: the log has a table that was never copied here."""
    tables = ArrivingTables({}, [], not_asked)
    tables.note_emptied(version("t", A, root=A), Scn(10))
    reading = Reading(tables=tables)
    assert commits(reading.read(batch("t", A, 20, root=A))) == []
    assert reading.reader.strangers == {TableName("public", "t")}
    assert tables.emptied_scn(("public", "t")) is None


@pytest.mark.parametrize(("identity", "applied"), [("id of t", [50, 60]), ("id of another", [60])])
def test_question_to_the_source_blocks_its_batch_and_later_ones(identity: str, applied: list[int]):
    """A batch of an earlier version does not identify its table."""
    answers: dict[int, str | None] = {777: None}
    reading = Reading(tables=ArrivingTables({("public", "t"): TableStart(scn=Scn(30))}, [table("t", A)], answers.get))
    assert commits(reading.read(batch("t", A, 40), batch("t", 777, 50, 40))) == [40]
    assert "its source does not answer" in reading.reader.unfit.message
    assert commits(reading.read(batch("t", A, 60, 50))) == []
    assert not reading.reader.retry_unfit()
    answers[777] = identity
    assert reading.reader.retry_unfit()
    assert commits(reading.take()) == applied
    assert len(reading.reader.strangers) == (identity != "id of t")


def test_new_partition_in_an_earlier_versions_batch_is_asked_for_once():
    asked: list[int] = []
    tables = ArrivingTables(
        {("public", "t"): TableStart(scn=Scn(30))},
        [table("t", A)],
        lambda number: (noted(asked, number), "id of t")[1],
    )
    reading = Reading(tables=tables)
    assert commits(reading.read(batch("t", 777, 20), batch("t", 777, 40, 20), batch("t", 777, 50, 40))) == [40, 50]
    assert asked == [777]


def test_partition_dropped_since_maps_to_its_table():
    reading = Reading(tables=arriving())
    assert commits(reading.read(batch("t", 777, 20))) == [20]
    assert not reading.reader.strangers


@pytest.mark.parametrize(
    ("name", "number", "identity"), [("t", 777, "id of another"), ("other", 777, "id of another"), ("other", 777, "")]
)
def test_uncopied_table_is_excluded_and_reported(name: str, number: int, identity: str):
    reading = Reading(tables=arriving({777: identity}))
    assert commits(reading.read(batch(name, number, 20))) == []
    assert reading.reader.strangers == {TableName("public", name)}
    assert reading.reader.unfit is None
    assert commits(reading.read(batch("t", A, 30, 20))) == [30], "it blocks no other table"


def test_truncate_of_an_uncopied_table_is_excluded():
    reading = Reading(tables=arriving({777: "id of another"}))
    found = batch("t", 777, 20)
    truncate = Truncate(row_number=0, tables=(0,), cascade=False, restart_identity=False)
    assert commits(reading.read(replace(found, groups=(), truncates=(truncate,)))) == []


def test_table_outside_the_rules_is_not_queried():
    asked: list[int] = []
    tables = ArrivingTables({}, [table("t", A)], lambda number: (noted(asked, number), "")[1])
    reading = Reading(tables=tables, rules=RuleSet(include=(Rule(name="t"),)))
    assert commits(reading.read(batch("elsewhere", 777, 20))) == []
    assert not asked
    assert not reading.reader.strangers


def test_tables_are_matched_by_name_without_a_list_of_tables():
    reading = Reading(tables=ArrivingTables({("public", "t"): TableStart(scn=Scn(30))}))
    assert commits(reading.read(batch("t", 777, 20), batch("t", 778, 40, 20))) == [40]


class Settled:
    """A coordinator without assigned groups."""

    is_settled = is_idle = True

    def __init__(self) -> None:
        progress = ApplyProgress(epoch=1, low_watermark=Scn(170), above=())
        self.watermarks = Watermarks(progress, UnfinishedGroups(in_order=False))

    def settle(self, *, leaves_above: bool = False) -> None:
        pass

    def rewound(self, progress: ApplyProgress) -> None:
        self.watermarks.set_back(progress)


@pytest.mark.parametrize("recorded", ["t", "t2"])
def test_copied_table_recorded_under_its_old_name_joins_from_its_scn(recorded: str):
    """Otherwise its rows are skipped forever, and the queue is told that they are durable."""
    renamed = replace(table("t2", 7), identity="id of t")
    record = Instantiation(
        source="dbs1", identity="id of t", owner="public", name=recorded, scn=Scn(100), state="COPIED", digest="00"
    )
    tables = ArrivingTables(table_starts(standings([renamed], [record])), [renamed])
    assert tables.first_scn(version("t2", 7), 170) > 10**12
    destination = MemoryDestination(store=MemoryStore())
    epoch = destination.raise_epoch("t", "a").epoch
    destination.record_instantiation("t", "a", epoch, record)
    joins = TableJoins(
        "t",
        "a",
        epoch=epoch,
        destination=destination,
        reader=Reading(tables=tables).reader,
        coordinator=Settled(),
    )
    joins.join([record])
    assert joins.advance()
    assert tables.first_scn(version("t2", 7), 170) == 100
    joins.leave_out([("public", "t2")])
    joins.advance()
    assert tables.first_scn(version("t2", 7), 170) > 10**12


def shaped(name: str, number: int, *columns: str, root: int = 0) -> TableVersion:
    described = replace(
        version(name, number, root or number),
        columns=tuple(
            Column(name=column, type_name="pg_catalog.int4", is_key=column == "id", is_binary=True)
            for column in columns
        ),
    )
    return replace(described, version=content_version(described))


def test_transformed_columns_are_not_taken_for_renamed_ones():
    """The name of a renamed column that the transformation deletes arrives in another column's place: nothing shows
    which column it is.
    """
    plain = table("t", A)
    masked = replace(plain, transformations=(Transformation(operations=(DeleteColumns(deleted=("a",)),)),))
    assert [ArrivingTables({}, [each]).lacks_columns(version("t", A)) for each in (plain, masked)] == [False, True]
    before, after = shaped("t", A, "id", "b"), shaped("t", A, "id", "z", "b")
    for tables, expected in ((ArrivingTables({}, [plain]), "z"), (ArrivingTables({}, [masked]), "b")):
        reading = Reading(tables=tables)
        reading.store.create_table(
            "public",
            "t",
            [destination_column(name, "pg_catalog.int4", equality="integer") for name in ("id", "b", "z")],
            key=["id"],
        )
        names = DestinationNames(RuleEvaluation(RuleSet()), tables, reading.fits)
        names.note((before, after))
        assert [column.name for column in names.fitting(before).columns] == ["id", expected]


def test_rows_before_a_rename_keep_values_without_deleted_columns():
    """RENAME b TO old, ADD b: the column order shows as much as without new names and added columns.

    The value of the earlier rows is not the new b's.
    """
    shown = Transformation(
        operations=(
            RenameColumn(before="b", after="x"),
            AddColumn(name="region", type_name="pg_catalog.int4", value="7"),
        )
    )
    tables = ArrivingTables({}, [replace(table("t", A), transformations=(shown,))])
    before, after = (
        transformed_version(shaped("t", A, *columns), shown)[0] for columns in (("id", "b"), ("id", "old", "b"))
    )
    reading = Reading(tables=tables)
    reading.store.create_table(
        "public",
        "t",
        [destination_column(name, "pg_catalog.int4", equality="integer") for name in ("id", "old", "x", "region")],
        key=["id"],
    )
    names = DestinationNames(RuleEvaluation(RuleSet()), tables, reading.fits)
    names.note((before, after))
    assert [column.name for column in names.fitting(before).columns] == ["region", "id", "old"]
    assert [column.name for column in names.fitting(after).columns] == ["region", "id", "old", "x"]


def test_two_tables_transformed_to_one_name_share_no_column_renames():
    versions = TableVersions()
    renamed, own = shaped("b", A, "id", "x"), shaped("b", B, "id", "y", "x")
    versions.note((renamed, own))
    assert list(versions.renamed(renamed)) == []
    versions.note((shaped("b", 777, "id", "y", root=A),))
    (found,) = versions.renamed(renamed)  # a partition of the same table does
    assert [column.name for column in found.version.columns] == ["id", "y"]


P, Q = 16390, 16391
PART, NAME = PartOf(table="id of t", number=P), ("public", "t_1")
NEVER = 1 << 60


def test_partition_copied_alone_has_its_own_start():
    tables = arriving(t=10)
    of_part, of_other = version("t", P, A), version("t", Q, A)
    tables.leave_out([], [PART])
    assert tables.first_scn(of_part, 0) > NEVER
    assert tables.first_scn(of_other, 0) == tables.first_scn(version("t", A), 0) == 10
    tables.join(
        [Instantiation(source="a", identity=PART.identity, owner="public", name="t_1", scn=Scn(100), state="COPIED")]
    )
    assert (tables.first_scn(of_part, 170), tables.first_scn(of_other, 170)) == (100, 170)
    tables.all_joined()
    assert (tables.first_scn(of_part, 170), tables.first_scn(of_other, 170)) == (170, 170)
    tables.leave_out([("public", "t")])  # the whole table is copied again
    assert tables.first_scn(of_part, 170) > NEVER


def test_starting_driver_knows_partitions_by_their_records():
    """COPIED at 100 and not joined, or DONE at 100 while the other partitions are behind."""
    for state, first in (("COPIED", NEVER), ("DONE", 100)):
        records = [
            Instantiation(source="a", identity="id of t", owner="public", name="t", scn=Scn(10), state="DONE"),
            Instantiation(source="a", identity=PART.identity, owner="public", name="t_1", scn=Scn(100), state=state),
        ]
        whole = table("t", A, P, Q)
        found = standings([whole, *parts_of([whole], records)], records)
        assert [each.replaced for each in found] == [(), ()]
        assert found[0].replaced_identities == (PART.identity,), (
            "a copy of the whole table replaces the partition's record"
        )
        tables = ArrivingTables(table_starts(found), [whole])
        assert tables.first_scn(version("t", Q, A), 0) == 10
        assert tables.first_scn(version("t", P, A), 0) >= first


def test_detached_partition_is_excluded_until_it_is_copied_as_a_table():
    """It keeps its number and name. Its record as a partition would have its changes applied from 100 on while it is
    emptied and copied.
    """
    records = [
        Instantiation(source="a", identity="id of t", owner="public", name="t", scn=Scn(10), state="DONE"),
        Instantiation(source="a", identity=PART.identity, owner="public", name="t_1", scn=Scn(100), state="DONE"),
    ]
    now = [table("t", A), table("t_1", P)]
    found = standings([*now, *parts_of(now, records)], records)
    tables = ArrivingTables(table_starts(found), now)
    assert tables.first_scn(version("t_1", P), 0) > NEVER
    (own,) = [each for each in found if each.table.destination == NAME]
    assert (own.is_outdated, own.replaced_identities) == (True, (PART.identity,)), (
        "its rows belong to this copy: they are removed"
    )


@pytest.mark.parametrize("state", ["COPYING", "FAILED", "LEFT"])
def test_copy_of_a_table_includes_its_partitions(state: str):
    records = [
        Instantiation(source="a", identity="id of t", owner="public", name="t", scn=Scn(10), state=state),
        Instantiation(source="a", identity=PART.identity, owner="public", name="t_1", scn=Scn(100), state="COPIED"),
    ]
    assert parts_of([table("t", A)], records) == ()


def truncating(commit: int, *versions: TableVersion):
    found = replace(insert_batch([commit], previous=0), tables=versions)
    return replace(
        found,
        groups=(),
        truncates=(Truncate(row_number=0, tables=tuple(range(len(versions))), cascade=False, restart_identity=False),),
    )


def test_truncate_of_a_whole_table_waits_until_its_partition_starts_there():
    """The TRUNCATE arrives for one of the partitions; which one carries no meaning."""
    for number in (P, Q):
        tables = arriving(t=10)
        tables.leave_out([], [PART])
        reading = Reading(tables=tables)
        assert commits(reading.read(truncating(50, version("t", number, A)))) == []
        assert reading.reader.unfit is not None
        assert "waits for the copy of a partition" in reading.reader.unfit.message
        assert reading.reader.truncated_parts == {PART: 49}
        reading.reader.change_tables(leave_out=(), join=(), admit=reading.reader.truncated_parts)
        assert reading.reader.truncated_parts == {}
        reading.reader.restart(ApplyProgress(epoch=1, low_watermark=Scn(0), above=()))
        assert commits(reading.read(truncating(50, version("t", number, A)))) == [50]
        assert tables.first_scn(version("t", P, A), 0) == 49


def test_truncate_of_partitions_reaches_only_applied_ones():
    part = Partition(owner="public", name="t_1", rows="true")
    tables = arriving(t=10)
    tables.leave_out([], [PART])
    reading = Reading(tables=tables)
    both = [replace(version("t", number, A), partition=part) for number in (P, Q)]
    (piece,) = [each for each in reading.read(truncating(50, *both)) if hasattr(each, "batch")]
    assert [int(piece.batch.tables[table].object_number) for table in piece.batch.truncates[0].tables] == [Q]
    assert reading.reader.truncated_tables == {"id of t": (49, frozenset({Q}))}


def test_rows_older_than_their_partitions_copy_are_dropped():
    records = [
        Instantiation(source="a", identity="id of t", owner="public", name="t", scn=Scn(10), state="DONE"),
        Instantiation(source="a", identity=PART.identity, owner="public", name="t_1", scn=Scn(100), state="COPIED"),
    ]
    copied = copied_scns(records)
    left = {
        number: without_copied(
            batch("t", number, 50, root=A), lambda found: max(copied.get(key, 0) for key in keys_of(found))
        ).row_count
        for number in (P, Q)
    }
    assert left == {P: 0, Q: 1}
    assert truncated_before(truncating(50, version("t", Q, A)), copied) == "public.t"
    assert truncated_before(truncating(150, version("t", Q, A)), copied) == ""
    assert (
        truncated_before(
            truncating(50, replace(version("t", Q, A), partition=Partition(owner="public", name="t_2", rows="true"))),
            copied,
        )
        == ""
    )


def test_error_changes_before_an_attach_may_affect_the_copied_partition():
    """A transaction of any size moves rows into a partition and attaches it: changes before the ATTACH may be in its
    first part, changes after it in its last.
    """
    records = [
        Instantiation(source="a", identity="id of t", owner="public", name="t", scn=Scn(10), state="DONE"),
        Instantiation(source="a", identity=PART.identity, owner="public", name="t_1", scn=Scn(100), state="DONE"),
    ]
    copied = copied_scns(records)
    here, inserted, stranger = batch("t", P, 50, root=A), batch("t", Q, 50, root=A), batch("b", B, 50)
    other = replace(
        inserted,
        groups=tuple(replace(group, command=Command.DELETE, old=group.new, new=None) for group in inserted.groups),
    )
    emptied = truncating(50, replace(version("t", Q, A), partition=Partition(owner="public", name="t_2", rows="true")))
    for first in (other, emptied):
        assert moved_before([first, here], copied) == "public.t"
        assert moved_before([here, first, here], copied) == "", "after the ATTACH no other partition has such rows"
        assert moved_before([first], copied) == ""
    assert moved_before([stranger, here], copied) == ""
    assert moved_before([inserted, here], copied) == "", "it removes no row of the copy"
    assert moved_before([other, batch("t", P, 150, root=A)], copied) == "", "after the copy"
    assert moved_before((not_asked(part) for part in (1, 2)), {("public", "t"): 10}) == "", (
        "no partition was copied alone: nothing is read"
    )
