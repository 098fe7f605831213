"""Changes belong to the table they were made in, whatever it is called when they arrive."""

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


def test_rows_that_arrive_under_another_tables_name_begin_at_their_own_tables_scn():
    """After a restart: what was written before the exchange still comes under the old names, and is in the copy of its
    own table.
    """
    reading = Reading(tables=arriving(t=100, b=10))
    assert commits(reading.read(batch("b", A, 50))) == []
    assert reading.reader.unfit is None
    assert reading.reader.statistics.rows_instantiated == 1


def test_tables_that_exchange_names_while_a_driver_runs_do_not_get_each_others_changes():
    reading = Reading(tables=arriving())
    assert commits(reading.read(batch("t", B, 50))) == []
    assert reading.reader.unfit is not None
    assert "headrace start FILE apply:to_b" in reading.reader.unfit.hint
    assert "public.b" in reading.reader.unfit.message


def test_renamed_table_whose_new_name_is_free_is_no_exchange():
    tables = arriving()
    tables.check_name(version("t2", A))
    with pytest.raises(UnfitTableError):
        tables.check_name(version("b", A))


@pytest.mark.parametrize(
    ("name", "destination"), [("t", "t"), ("t", "renamed")], ids=["new", "dropped, and its table renamed"]
)
def test_unknown_partition_is_its_tables_whatever_that_is_called_by_now(name: str, destination: str):
    """Apply began after the partition was dropped, or goes on while the source that made a new one is down."""
    now = replace(table(destination, A), identity="id of t")
    tables = ArrivingTables({("public", destination): TableStart(scn=Scn(30))}, [now], not_asked)
    reading = Reading(tables=tables)
    found = reading.read(batch(name, 777, 20, root=A), batch(name, 777, 40, 20, root=A))
    assert commits(found) == [40]
    assert not reading.reader.strangers


def test_partition_that_moved_to_another_table_brings_that_tables_changes_from_then_on():
    tables = ArrivingTables(
        {("public", name): TableStart(scn=Scn(0)) for name in ("t", "b")},
        [table("t", A), table("b", B, 777)],
        not_asked,
    )
    tables.check_name(version("t", 777, A))
    tables.check_name(version("b", 777, B))
    with pytest.raises(UnfitTableError):
        tables.check_name(version("t", 777, B))


def test_table_that_was_never_copied_here_is_left_out_without_a_question_when_the_log_says_which_it_is():
    reading = Reading(tables=ArrivingTables({}, [table("t", A)], not_asked))
    assert commits(reading.read(batch("other", 778, 20, root=777))) == []
    assert reading.reader.strangers == {TableName("public", "other")}


def test_everything_is_a_stranger_to_an_apply_process_that_has_no_table():
    """An administrator is ahead of what runs: the log has a table that was never copied here."""
    tables = ArrivingTables({}, [], not_asked)
    tables.note_emptied(version("t", A, root=A), Scn(10))
    reading = Reading(tables=tables)
    assert commits(reading.read(batch("t", A, 20, root=A))) == []
    assert reading.reader.strangers == {TableName("public", "t")}
    assert tables.emptied_scn(("public", "t")) is None


@pytest.mark.parametrize(("identity", "applied"), [("id of t", [50, 60]), ("id of another", [60])])
def test_what_only_the_source_can_tell_waits_for_its_answer_and_so_does_what_comes_behind(
    identity: str, applied: list[int]
):
    """A batch of an earlier version."""
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


def test_new_partition_in_a_batch_of_an_earlier_version_is_applied_and_the_source_is_asked_once():
    asked: list[int] = []
    tables = ArrivingTables(
        {("public", "t"): TableStart(scn=Scn(30))},
        [table("t", A)],
        lambda number: (noted(asked, number), "id of t")[1],
    )
    reading = Reading(tables=tables)
    assert commits(reading.read(batch("t", 777, 20), batch("t", 777, 40, 20), batch("t", 777, 50, 40))) == [40, 50]
    assert asked == [777]


def test_partition_that_was_dropped_since_is_its_tables():
    reading = Reading(tables=arriving())
    assert commits(reading.read(batch("t", 777, 20))) == [20]
    assert not reading.reader.strangers


@pytest.mark.parametrize(
    ("name", "number", "identity"), [("t", 777, "id of another"), ("other", 777, "id of another"), ("other", 777, "")]
)
def test_table_that_was_never_copied_here_is_left_out_and_reported(name: str, number: int, identity: str):
    reading = Reading(tables=arriving({777: identity}))
    assert commits(reading.read(batch(name, number, 20))) == []
    assert reading.reader.strangers == {TableName("public", name)}
    assert reading.reader.unfit is None
    assert commits(reading.read(batch("t", A, 30, 20))) == [30], "it holds up no other table"


def test_truncate_of_a_table_that_was_never_copied_here_is_left_out():
    reading = Reading(tables=arriving({777: "id of another"}))
    found = batch("t", 777, 20)
    truncate = Truncate(row_number=0, tables=(0,), cascade=False, restart_identity=False)
    assert commits(reading.read(replace(found, groups=(), truncates=(truncate,)))) == []


def test_table_that_the_rules_do_not_want_is_not_asked_for():
    asked: list[int] = []
    tables = ArrivingTables({}, [table("t", A)], lambda number: (noted(asked, number), "")[1])
    reading = Reading(tables=tables, rules=RuleSet(include=(Rule(name="t"),)))
    assert commits(reading.read(batch("elsewhere", 777, 20))) == []
    assert not asked
    assert not reading.reader.strangers


def test_names_are_all_that_is_known_without_a_list_of_tables():
    reading = Reading(tables=ArrivingTables({("public", "t"): TableStart(scn=Scn(30))}))
    assert commits(reading.read(batch("t", 777, 20), batch("t", 778, 40, 20))) == [40]


class Settled:
    """A coordinator with nothing in hand."""

    is_settled = is_idle = True

    def __init__(self) -> None:
        progress = ApplyProgress(epoch=1, low_watermark=Scn(170), above=())
        self.watermarks = Watermarks(progress, UnfinishedGroups(in_order=False))

    def settle(self, *, leaves_above: bool = False) -> None:
        pass

    def rewound(self, progress: ApplyProgress) -> None:
        self.watermarks.set_back(progress)


@pytest.mark.parametrize("recorded", ["t", "t2"])
def test_copied_table_joins_from_its_scn_also_when_it_is_recorded_under_its_name_of_before(recorded: str):
    """Otherwise its rows are left out for ever, and the queue is told that they are durable."""
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


def test_columns_behind_a_transformation_are_not_taken_for_renamed_ones():
    """With a deleted column renamed at the source, its new name comes where another column's was: nothing tells which
    it is.
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


def test_rows_before_a_rename_keep_their_values_behind_a_transformation_that_leaves_no_column_out():
    """RENAME b TO old, ADD b: the order of the columns tells as much as it does without new names and added columns.

    The rows' value is not the new b's.
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


def test_two_tables_that_have_one_name_behind_transformations_rename_no_columns_of_each_other():
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


def test_a_partition_that_is_copied_alone_has_a_start_of_its_own():
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


def test_a_driver_that_starts_knows_partitions_by_their_records():
    """COPIED at 100 and not joined; DONE at 100 where the others are not that far."""
    for state, first in (("COPIED", NEVER), ("DONE", 100)):
        records = [
            Instantiation(source="a", identity="id of t", owner="public", name="t", scn=Scn(10), state="DONE"),
            Instantiation(source="a", identity=PART.identity, owner="public", name="t_1", scn=Scn(100), state=state),
        ]
        whole = table("t", A, P, Q)
        found = standings([whole, *parts_of([whole], records)], records)
        assert [each.replaced for each in found] == [(), ()]
        assert found[0].replaced_identities == (PART.identity,), "a copy of the whole table removes it"
        tables = ArrivingTables(table_starts(found), [whole])
        assert tables.first_scn(version("t", Q, A), 0) == 10
        assert tables.first_scn(version("t", P, A), 0) >= first


def test_a_partition_that_left_and_is_a_table_by_now_is_left_out_until_it_is_copied():
    """It keeps its number and its name: its record as a partition said that its changes are applied from 100 on, while
    it was emptied and copied.
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
    assert (own.is_outdated, own.replaced_identities) == (True, (PART.identity,)), "its rows are ours: they are emptied"


@pytest.mark.parametrize("state", ["COPYING", "FAILED", "LEFT"])
def test_the_copy_of_a_table_has_its_partitions(state: str):
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


def test_a_truncate_of_the_whole_table_waits_until_the_partition_begins_there():
    """It comes as one of the partitions; which one says nothing."""
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


def test_a_truncate_of_partitions_reaches_those_that_are_applied():
    part = Partition(owner="public", name="t_1", rows="true")
    tables = arriving(t=10)
    tables.leave_out([], [PART])
    reading = Reading(tables=tables)
    both = [replace(version("t", number, A), partition=part) for number in (P, Q)]
    (piece,) = [each for each in reading.read(truncating(50, *both)) if hasattr(each, "batch")]
    assert [int(piece.batch.tables[table].object_number) for table in piece.batch.truncates[0].tables] == [Q]
    assert reading.reader.truncated_tables == {"id of t": (49, frozenset({Q}))}


def test_rows_older_than_the_copy_of_their_partition_are_in_it():
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


def test_what_an_error_transaction_changes_in_front_of_a_copied_partition_may_be_of_its_rows_whichever_part_it_is_in():
    """A transaction that moves rows into a partition and attaches it, of any size: its first part has what was before
    the ATTACH, its last what was behind it.
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
        assert moved_before([here, first, here], copied) == "", "behind the ATTACH nobody else has such rows"
        assert moved_before([first], copied) == ""
    assert moved_before([stranger, here], copied) == ""
    assert moved_before([inserted, here], copied) == "", "nothing of the copy is removed by it"
    assert moved_before([other, batch("t", P, 150, root=A)], copied) == "", "behind the copy"
    assert moved_before((not_asked(part) for part in (1, 2)), {("public", "t"): 10}) == "", (
        "nothing was copied alone: nothing is read"
    )
