"""A source whose tables are copied to a destination, both in memory; threads are the tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.databases.connectors import DatabaseAccess
from headrace.databases.memory.copying import MemoryTableReader, SourceTables, StoreTables
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.source import MemorySource
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.databases.ports import DestinationSession
from headrace.databases.ports.copying import TablePlan
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.lcr.table_name import TableName
from headrace.rules.transformations.transformation import Transformation
from spark_apply.apply_config import ApplyConfig, TableToInstantiate
from spark_apply.copy.instantiation import TableInstantiation
from spark_apply.copy.pieces.tasks import CopyPlaces
from spark_apply.copy.records.tables import TableProgress
from spark_apply.copy.ways.both_ways import BothWays
from tests.support.copies.copying_threads import ThreadWorkers

__all__ = ["APPLY", "Reader", "Source", "TOPOLOGY", "World", "one_way"]

TOPOLOGY, APPLY = "t", "a"


class Source(MemorySource):
    """Keeps the contents of its snapshots for the readers."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshots: dict[str, Any] = {}
        self.opened = 0

    def open_snapshot(self, topology: str):
        snapshot = super().open_snapshot(topology)
        self.snapshots[snapshot.name] = {
            TableName(*name.split(".")): SourceTables(self).content(*name.split(".")) for name in list(self._tables)
        }
        self.opened += 1
        self.confirmed_scn = max(self.confirmed_scn, snapshot.scn)  # as with a log writer that keeps up
        return snapshot


class Reader(MemoryTableReader):
    """Cuts tables into many pieces; some tables are unreadable."""

    broken: Mapping[str, Exception] = {}

    def plan(self, owner, name, columns, *, snapshot="", piece_bytes=1, rows="") -> TablePlan:
        if name in self.broken:
            raise self.broken[name]
        return super().plan(owner, name, columns, snapshot=snapshot, piece_bytes=64, rows=rows)


def one_way(config: ApplyConfig) -> BothWays:
    """Return `BothWays` for tables that do not return to their source."""
    return BothWays(
        topology=config.topology,
        here=config.destination.site,
        there=config.source.site,
        records=MemoryDestination(store=MemoryStore()),
        captured=dict,
        position=lambda: Scn(0),
    )


class World:
    def __init__(self, *names: str) -> None:
        self.source, self.store = Source(), MemoryStore()
        for name in names:
            self.create(name)
        self.states: list[tuple[str, str]] = []
        self.should_end = lambda: False
        self.may_empty = False  # the tables have other writers, too
        self.takes_ddl = False
        self.broken: dict[str, Exception] = {}
        self.transformations: tuple[Transformation, ...] = ()
        self.opened: Callable[[int, DestinationSession], DestinationSession] = lambda server, session: session

    def create(
        self, name: str, *, rows: int = 20, columns: tuple[str, ...] = ("id", "v"), is_keyed: bool = True
    ) -> None:
        key = columns[:1] if is_keyed else ()
        self.source.create_table(f"public.{name}", columns, key=key)
        with self.source.transaction() as transaction:
            for number in range(rows if columns else 0):
                transaction.insert(f"public.{name}", **dict.fromkeys(columns, str(number)))
        self.store.create_table("public", name, [destination_column(column) for column in columns], key=key)

    def reader(self, side: str) -> Reader:
        if side == "source":
            reader = Reader(SourceTables(self.source), self.source.snapshots, ())
            reader.broken = self.broken
            return reader
        return Reader(StoreTables(self.store), {}, ())

    def copying(self) -> TableInstantiation:
        destination = MemoryDestination(store=self.store)
        epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
        captured = self.source.captured(TOPOLOGY)
        as_of = self.source.write_marker(b"made") if any(table.is_made for table in captured) else FIRST_SCN
        tables = tuple(
            TableToInstantiate(
                identity=table.identity,
                source=TableName.of(table),
                destination=TableName.of(table),
                object_numbers=tuple(map(int, table.object_numbers)),
                transformations=self.transformations,
                may_empty=self.may_empty,
                as_of=as_of if table.is_made else FIRST_SCN,
                takes_ddl=self.takes_ddl,
            )
            for table in captured
        )
        access = DatabaseAccess(site="dbs1", kind="memory", dsn="")
        config = ApplyConfig(
            topology=TOPOLOGY,
            apply=APPLY,
            source=access,
            destination=access,
            queue="",
            parallelism=2,
            tables=tables,
        )
        self.workers = ThreadWorkers(
            lambda server, incarnation: CopyPlaces(
                source=lambda: self.reader("source"),
                destination=lambda: self.reader("destination"),
                session=lambda epoch, tag: self.opened(
                    server,
                    destination.open_session(
                        TOPOLOGY, APPLY, server=server, epoch=epoch, tag=tag, incarnation=incarnation
                    ),
                ),
            )
        )
        return TableInstantiation(
            config=config,
            source=self.source,
            destination=destination,
            source_reader=self.reader("source"),
            destination_reader=self.reader("destination"),
            workers=self.workers,
            epoch=epoch,
            moved=self._moved,
            should_end=lambda: self.should_end(),  # noqa: PLW0108 - tests replace it
            both_ways=one_way(config),
        )

    def _moved(self, table: TableProgress) -> None:
        if (table.name, table.state) not in self.states[-1:]:
            self.states.append((table.name, table.state))

    def recorded(self) -> dict[str, Any]:
        return {each.name: each for each in MemoryDestination(store=self.store).instantiations(TOPOLOGY, APPLY)}

    def assert_same(self, *names: str) -> None:
        for name in names:
            assert tuple(self.store.rows("public", name)) == self.source.rows(f"public.{name}"), name
