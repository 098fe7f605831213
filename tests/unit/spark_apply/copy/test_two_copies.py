"""Two apply processes of one site, from two sources, and one destination table.

Rows belong to one copy at a time, and no copy removes another one's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from headrace.base.errors import DatabaseError
from headrace.databases.connectors import DatabaseAccess
from headrace.databases.memory.copying import MemoryTableReader, SourceTables, StoreTables
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.source import MemorySource
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.databases.ports import Instantiation
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from spark_apply.apply_config import ApplyConfig, TableToInstantiate
from spark_apply.copy import instantiation as module
from spark_apply.copy.instantiation import TableInstantiation
from spark_apply.copy.pieces.tasks import CopyPlaces
from spark_apply.copy.records import standing
from spark_apply.copy.records.standing import Standing
from spark_apply.copy.records.tables import TableProgress
from tests.support.copies.copying_threads import ThreadWorkers
from tests.support.copies.table_copies import one_way

TOPOLOGY = "shop"
ROOMS = TableName("shop", "rooms")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_RETRY_S", "_IDLE_S", "_LOOK_AGAIN_S", "_WAITING_S"):
        monkeypatch.setattr(module, name, 0.01)


class Source(MemorySource):
    """A source that keeps the content of its snapshots for the readers."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshots: dict[str, Any] = {}
        self.opened: Callable[[], None] = lambda: None

    def open_snapshot(self, topology: str):
        self.opened()
        snapshot = super().open_snapshot(topology)
        self.snapshots[snapshot.name] = {ROOMS: SourceTables(self).content(*ROOMS)}
        self.confirmed_scn = max(self.confirmed_scn, snapshot.scn)
        return snapshot


class Pair:
    """An apply process of site dbs3, and its source."""

    def __init__(self, site: Site, source: str, *rooms: str) -> None:
        self.site, self.name, self.source = site, f"apply_from_{source}_at_dbs3", Source()
        self.source_name, self.shown = source, dict[str, TableProgress]()
        self.should_end: Callable[[], bool] = lambda: False
        self.before_piece: Callable[[Any], None] = lambda piece: None
        self.source.create_table("shop.rooms", ("id", "v"), key=("id",))
        self.write(*rooms)

    def write(self, *rooms: str) -> None:
        if rooms:
            with self.source.transaction() as transaction:
                for room in rooms:
                    transaction.insert("shop.rooms", id=room, v=self.source_name)

    def reader(self) -> MemoryTableReader:
        return MemoryTableReader(SourceTables(self.source), self.source.snapshots, ())

    def copying(self, *, keep: bool = False, may_empty: bool = False) -> TableInstantiation:
        """Start a new driver of it."""
        destination = MemoryDestination(store=self.site.store)
        epoch = destination.raise_epoch(TOPOLOGY, self.name).epoch
        tables = tuple(
            TableToInstantiate(
                identity=table.identity,
                source=TableName.of(table),
                destination=TableName.of(table),
                object_numbers=tuple(map(int, table.object_numbers)),
                keep_existing=keep,
                may_empty=may_empty,
            )
            for table in self.source.captured(TOPOLOGY)
        )
        config = ApplyConfig(
            topology=TOPOLOGY,
            apply=self.name,
            source=DatabaseAccess(site=self.source_name, kind="memory", dsn=""),
            destination=DatabaseAccess(site="dbs3", kind="memory", dsn=""),
            queue="",
            parallelism=2,
            tables=tables,
        )
        workers = ThreadWorkers(
            lambda server, incarnation: CopyPlaces(
                source=self.reader,
                destination=lambda: MemoryTableReader(StoreTables(self.site.store), {}, ()),
                session=lambda epoch, tag: destination.open_session(
                    TOPOLOGY, self.name, server=server, epoch=epoch, tag=tag, incarnation=incarnation
                ),
            )
        )
        workers.before_piece = self.before_piece
        return TableInstantiation(
            config=config,
            source=self.source,
            destination=destination,
            source_reader=self.reader(),
            destination_reader=MemoryTableReader(StoreTables(self.site.store), {}, ()),
            workers=workers,
            epoch=epoch,
            moved=self._moved,
            both_ways=one_way(config),
            should_end=lambda: self.should_end(),  # noqa: PLW0108 - tests replace it
        )

    def _moved(self, table: TableProgress) -> None:
        self.shown[table.name] = table

    @property
    def progress(self) -> TableProgress:
        return self.shown["rooms"]

    @property
    def record(self) -> Any:
        return next(iter(MemoryDestination(store=self.site.store).instantiations(TOPOLOGY, self.name)), None)

    def put(self, state: str, *, scn: int = 5, rows: int = 0, digest: str = "ab") -> None:
        """Record a state of its table as an earlier driver did."""
        destination = MemoryDestination(store=self.site.store)
        epoch = destination.raise_epoch(TOPOLOGY, self.name).epoch
        (table,) = self.source.captured(TOPOLOGY)
        destination.record_instantiation(
            TOPOLOGY,
            self.name,
            epoch,
            Instantiation(
                source=self.source_name,
                identity=table.identity,
                owner="shop",
                name="rooms",
                scn=Scn(scn),
                state=state,
                row_count=rows,
                digest=digest,
            ),
        )

    def beside(self, until: Callable[[], bool], *, copying: TableInstantiation | None = None) -> None:
        """Copy beside apply until `until` holds."""
        looks = 0

        def should_end() -> bool:
            nonlocal looks
            looks += 1
            assert looks < 3000, (self.shown, self.record)
            return until()

        self.should_end = should_end
        (copying or self.copying()).run_beside(Joins(self))
        self.should_end = lambda: False


class Joins:
    """Replaces `JoinCalls`."""

    is_joined = True
    truncated_parts: ClassVar[dict[tuple[str, str], Any]] = {}

    def __init__(self, pair: Pair) -> None:
        self.pair = pair

    def hold_now(self) -> None:
        pass

    def hold(self, scn: Any) -> None:
        pass

    def emptied_scn(self, table: Any) -> None:
        pass

    def leave_out(self, tables: Any, parts: Any = None) -> bool:
        return True

    def join(self, tables: Any) -> bool:
        destination = MemoryDestination(store=self.pair.site.store)
        progress = destination.progress(TOPOLOGY, self.pair.name)
        assert progress is not None
        destination.join_tables(TOPOLOGY, self.pair.name, progress.epoch, tables, through=progress.low_watermark)
        return True


class Site:
    """Site dbs3: its table of rooms and its apply processes."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.store.create_table("shop", "rooms", [destination_column("id"), destination_column("v")], key=["id"])

    def apply(self, *rooms: str) -> None:
        """Write as an apply process does to a table that it has copied."""
        self.store.insert("shop", "rooms", [(room.encode(), b"applied") for room in rooms])

    def empty(self) -> None:
        """Empty the table as an operator does."""
        rooms = self.store.tables[ROOMS]
        for number in list(rooms.rows):
            rooms.put(number, None)

    @property
    def rooms(self) -> list[str]:
        return sorted(row[0].decode() for row in self.store.rows("shop", "rooms"))


def test_rows_applied_by_one_apply_survive_anothers_simultaneous_copy():
    """Both find the table empty. The second copy used to meet a duplicate key and to empty the table."""
    site = Site()
    one, two = Pair(site, "dbs1", "1", "2"), Pair(site, "dbs2", "1", "2")

    def first_is_quicker() -> None:
        two.source.opened = lambda: None
        one.copying().run_first()
        assert one.record.state == "DONE"
        site.apply("3")  # came from dbs1; dbs2 does not have it yet

    two.source.opened = first_is_quicker  # after its check that the table is empty
    for _ in range(2):  # the second driver used to find rows of "its own"
        two.copying().run_first()
    assert site.rooms == ["1", "2", "3"]
    assert one.record.state == "DONE"
    assert (two.progress.state, two.record.scn) == ("FAILED", 0)
    for word in (
        "apply_from_dbs1_at_dbs3",
        "a copy from site dbs1",
        "this table at dbs2 rest",
        "`headrace up --keep-existing`",
    ):
        assert word in two.progress.problem


def test_restarted_copy_does_not_empty_a_table_joined_by_another_apply():
    site = Site()
    one, two = Pair(site, "dbs1", "1", "2"), Pair(site, "dbs2", "1", "2")
    one.put("DONE", rows=2)
    two.put("COPYING")  # earlier versions allowed both
    site.apply("1", "2", "3")
    two.copying().run_first()
    assert site.rooms == ["1", "2", "3"]
    assert two.record.state == "FAILED"
    assert "apply_from_dbs1_at_dbs3" in two.progress.problem


def test_second_copy_visibly_waits_until_the_first_has_ended():
    site = Site()
    one, two = Pair(site, "dbs1", "1", "2"), Pair(site, "dbs2", "1", "2", "3")
    one.put("COPYING")
    site.apply("1")
    copying = two.copying(keep=True)
    copying.run_first()
    assert [two.record] == [None]
    assert two.progress.state == "PENDING"
    waits = (
        "table shop.rooms waits: apply process apply_from_dbs1_at_dbs3 copies into it, or has begun to and"
        " continues when it runs again"
    )
    assert two.progress.problem == waits
    shown = []

    def look() -> bool:
        shown.append(two.progress.problem)
        return len(shown) >= 40

    two.beside(look, copying=copying)  # `status` shows the tables, not the reports of the copies
    assert set(shown) == {waits}
    one.copying().run_first()  # nobody else has its rows: it may empty them
    assert (one.record.state, site.rooms) == ("DONE", ["1", "2"])
    two.beside(lambda: two.progress.state == "FAILED")
    assert two.record.scn == 0
    assert site.rooms == ["1", "2"]


def test_waiting_table_takes_no_slot_from_a_copyable_table(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(standing, "_ROUND_BYTES", 1)
    tables = {name: TableName("shop", name) for name in ("waits", "large", "small")}
    pending = [
        Standing(table=TableToInstantiate(identity=name, source=table, destination=table, object_numbers=()))
        for name, table in tables.items()
    ]
    facts: Any = {table: SimpleNamespace(bytes=len(name)) for name, table in tables.items()}
    assert [each.table.identity for each in standing.smallest(pending, facts)] == ["waits"]
    chosen = standing.smallest(pending, facts, waiting={tables["waits"]})
    assert [each.table.identity for each in chosen] == ["large", "waits"]
    assert standing.smallest(pending[:1], facts, waiting={tables["waits"]}) == pending[:1]


def test_rows_kept_by_an_operator_are_not_emptied_by_the_first_copy():
    site = Site()
    one, two = Pair(site, "dbs1", "1"), Pair(site, "dbs2", "1")
    one.copying().run_first()
    two.copying().run_first()
    assert two.progress.state == "FAILED"
    two.beside(lambda: two.record.state == "KEPT", copying=two.copying(keep=True))
    assert two.record.scn > 0
    one.put("COPYING")  # it dies during a repeated copy
    site.apply("2")
    one.copying().run_first()
    assert site.rooms == ["1", "2"]
    assert "an interrupted copy from dbs1" in one.progress.problem
    assert "apply_from_dbs2_at_dbs3 has rows" in one.progress.problem


def test_rows_of_a_failed_copy_are_not_kept():
    site = Site()
    one, two = Pair(site, "dbs1", "1", "2"), Pair(site, "dbs2", "1", "2")
    one.put("FAILED")
    site.apply("1")
    two.copying(keep=True).run_first()
    assert (two.record.state, two.record.scn) == ("FAILED", 0)
    one.beside(lambda: one.record.state == "DONE")
    two.beside(lambda: two.record.state == "KEPT", copying=two.copying(keep=True))
    assert site.rooms == ["1", "2"]


def test_failed_apply_copies_a_table_that_an_operator_empties():
    site = Site()
    one, two = Pair(site, "dbs1", "1"), Pair(site, "dbs2", "1", "2")
    one.copying().run_first()
    two.copying().run_first()
    assert two.progress.state == "FAILED"
    site.empty()
    two.beside(lambda: two.record.state == "DONE")
    assert (one.record.state, site.rooms) == ("DONE", ["1", "2"])


@pytest.mark.parametrize("state", ["COPYING", "COMPARING"])
def test_rows_of_a_copy_interrupted_by_an_error_are_not_kept(state: str, monkeypatch: pytest.MonkeyPatch):
    """A FAILED record without an SCN means that no row belongs to the copy. Such a record kept a part of the copy, and
    earlier changes were lost.
    """
    site = Site()
    one = Pair(site, "dbs1", "1", "2")
    record, broken = MemoryDestination.record_instantiation, True

    def refused(self: Any, topology: str, apply: str, epoch: int, instantiation: Instantiation, **how: Any) -> bool:
        nonlocal broken
        is_broken = broken and instantiation.state == state
        broken = broken and not is_broken
        if is_broken and state == "COPYING":
            site.apply("mine")  # after its check that the table is empty; no row is claimed
        if is_broken:
            raise DatabaseError("permission denied for table instantiation")
        return record(self, topology, apply, epoch, instantiation, **how)

    monkeypatch.setattr(MemoryDestination, "record_instantiation", refused)
    keep = state == "COMPARING"
    copying = one.copying(keep=keep)
    copying.run_first()
    assert not broken
    assert one.record.state == "FAILED"
    assert (one.record.scn > 0) == keep
    one.write("3")
    one.beside(
        lambda: (
            one.record.state in {"DONE", "KEPT"}
            or one.progress.problem.startswith("the destination table is not empty")
        ),
        copying=copying,
    )
    assert site.rooms == (["1", "2", "3"] if keep else ["mine"])
    assert one.record.state == ("DONE" if keep else "FAILED")


def test_two_applies_that_keep_the_same_rows_at_once_both_keep_them():
    site = Site()
    site.apply("1")
    one, two = Pair(site, "dbs1", "1"), Pair(site, "dbs2", "1")

    def first_is_quicker() -> None:
        two.source.opened = lambda: None
        one.copying(keep=True).run_first()

    two.source.opened = first_is_quicker
    two.copying(keep=True).run_first()
    assert (one.record.state, two.record.state) == ("KEPT", "KEPT")
    assert site.rooms == ["1"]


def test_tables_empty_everywhere_are_copied_without_an_operator():
    site = Site()
    one, two, three = (Pair(site, source) for source in ("dbs1", "dbs2", "dbs4"))

    def first_is_quicker() -> None:
        two.source.opened = lambda: None
        one.copying().run_first()
        site.apply("1")  # a change from dbs1 that dbs2 does not have yet

    two.source.opened = first_is_quicker
    two.copying().run_first()
    three.beside(lambda: three.record is not None and three.record.state == "DONE")
    for each in (one, two, three):
        assert (each.record.state, each.record.row_count, each.record.is_kept) == ("DONE", 0, False)
    assert site.rooms == ["1"]


def test_source_with_a_row_in_its_snapshot_is_not_copied_as_empty():
    site = Site()
    one, two = Pair(site, "dbs1"), Pair(site, "dbs2")
    one.copying().run_first()
    site.apply("1")
    two.source.opened = lambda: two.write() if two.source.rows("shop.rooms") else two.write("2")  # after its check
    two.copying().run_first()
    assert two.progress.state == "FAILED"
    assert two.record.scn == 0
    assert site.rooms == ["1"]


@pytest.mark.parametrize("applied", ["7", "1"])  # another row, and a row that the copy also has
def test_copy_next_to_an_empty_copy_is_never_emptied(applied: str):
    site = Site()
    one, two = Pair(site, "dbs1"), Pair(site, "dbs2", "1", "2")
    one.copying().run_first()

    def first_applies(_: Any) -> None:
        two.before_piece = lambda piece: None
        if applied not in site.rooms:
            site.apply(applied)

    two.before_piece = first_applies
    two.copying().run_first()
    assert applied in site.rooms
    assert two.record.state == "FAILED"
    two.beside(lambda: "apply_from_dbs1_at_dbs3" in two.progress.problem)
    assert applied in site.rooms
    # When the table has none of its rows, an operator can keep the existing rows.
    assert (two.record.scn == 0) == (applied == "1")
    assert ("`headrace up --keep-existing`" in two.progress.problem) == (applied == "1")


def test_rows_are_copied_next_to_an_empty_copy():
    site = Site()
    one, two = Pair(site, "dbs1"), Pair(site, "dbs2", "1", "2")
    one.copying().run_first()
    two.copying().run_first()
    assert (two.record.state, site.rooms) == ("DONE", ["1", "2"])


@pytest.mark.parametrize(("state", "scn"), [("LEFT", 5), ("FAILED", 0)])
def test_apply_without_rows_in_the_table_blocks_no_other_copy(state: str, scn: int):
    site = Site()
    one, two = Pair(site, "dbs1", "1"), Pair(site, "dbs2", "1", "2")
    one.put(state, scn=scn)
    two.put("COPYING")
    site.apply("1")
    two.copying().run_first()
    assert (two.record.state, site.rooms) == ("DONE", ["1", "2"])


def test_outdated_rows_are_not_removed_next_to_another_topologys_copy():
    site = Site()
    one, two = Pair(site, "dbs1", "1"), Pair(site, "dbs2", "1", "2")
    one.put("DONE", rows=1)
    two.put("LEFT", rows=1)
    site.apply("1")
    two.copying(may_empty=True).run_first()
    assert two.record.state == "LEFT"
    assert "an old copy from dbs2" in two.progress.problem
    assert site.rooms == ["1"]
    site.empty()
    two.copying(may_empty=True).run_first()
    assert (two.record.state, site.rooms) == ("DONE", ["1", "2"])


def test_two_unfinished_copies_of_an_earlier_version_need_an_operator():
    site = Site()
    one, two = Pair(site, "dbs1", "1"), Pair(site, "dbs2", "1")
    one.put("COPYING")
    two.put("COPYING")
    site.apply("1")
    one.copying().run_first()
    two.copying().run_first()
    assert (one.progress.state, two.progress.state) == ("FAILED", "FAILED")
    assert site.rooms == ["1"]
    site.empty()
    one.copying().run_first()
    one.beside(lambda: one.record.state == "DONE")
    assert site.rooms == ["1"]
