"""A reader of changes among which are tables that DDL makes, drops and renames; a test applies what it passes on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.base.errors import DatabaseUnavailable
from headrace.databases.memory.store import destination_column
from headrace.databases.ports import ApplyProgress, DdlOutcomeKind, DdlPlace, Instantiation
from headrace.lcr.batch import LcrBatch
from headrace.lcr.ddl import DdlChange
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from headrace.lcr.tags import Tag
from spark_apply.apply_config import TableToInstantiate
from spark_apply.driver.reading.pieces import LargePart, Piece, Run
from spark_apply.tables.arriving import ArrivingTables, TableStart
from spark_apply.tables.unsettled import DdlFates, TableChanges
from tests.support.apply.apply_reading import Reading, commits
from tests.support.values.ddl_changes import column, ddl_batch, ddl_change, structure
from tests.support.values.lcr_batches import insert_batch, table_version

__all__ = [
    "APPLIED",
    "NEW",
    "NEWER",
    "NOT_APPLIED",
    "T",
    "TOPOLOGY",
    "Applying",
    "Destination",
    "alteration",
    "creation",
    "ddl",
    "identity",
    "listed",
    "made",
    "place",
    "record",
    "removal",
    "renaming",
    "rows",
    "shape",
]

T, NEW, NEWER = 16384, 16390, 16391  # numbers: of public.t, and of tables made later
TOPOLOGY = "t"
APPLIED, NOT_APPLIED = DdlOutcomeKind.APPLIED, DdlOutcomeKind.NOT_APPLIED
COLUMNS = (column(1, "c0"), column(2, "c1"))


def identity(number: int) -> str:
    return f"7.1.{number}.{number + 50_000}"


def shape(name: str) -> dict[str, Any]:
    return structure(*COLUMNS, owner="public", name=name)


def creation(name: str, number: int, *, why_not: str = "") -> DdlChange:
    made = {"identities": {} if why_not else {TOPOLOGY: identity(number)}, "why_not": why_not, "sequences": {}}
    return ddl_change(None, shape(name), relation=number, tag="CREATE TABLE", made=made)


def removal(name: str, number: int) -> DdlChange:
    return ddl_change(shape(name), None, relation=number, tag="DROP TABLE")


def alteration(name: str, number: int) -> DdlChange:
    after = structure(*COLUMNS, column(3, "c2"), owner="public", name=name)
    return ddl_change(shape(name), after, relation=number)


def ddl(change: DdlChange, order: int, *, previous: int = 0, first: int = 0, last: bool = True) -> LcrBatch:
    return ddl_batch(
        change,
        commit=order + 1,
        previous=previous,
        is_open=not last,
        continues=first > 0,
        first_position=first,
    )


def renaming(name: str, later: str, number: int) -> DdlChange:
    return ddl_change(shape(name), shape(later), relation=number)


def rows(
    name: str, number: int, *orders: int, previous: int = 0, first: int = 0, last: bool = True, tag: Tag | None = None
) -> LcrBatch:
    """An INSERT in each transaction."""
    commit = [order + 1 for order in orders]
    batch = insert_batch(commit, previous=previous, continues=first > 0, first_position=first, is_open=not last)
    if tag is not None:
        batch.transactions.tag[:] = 0
        batch = replace(batch, tags=(tag,))
    return replace(batch, tables=(replace(table_version(name), object_number=number, root_number=number),))


def place(order: int, position: int = 0) -> DdlPlace:
    return DdlPlace(source="dbs1", transaction_id=order + 1001, order_scn=order, position=position)


def listed(name: str, number: int, *, as_of: int = 0) -> TableToInstantiate:
    known = TableName("public", name)
    return TableToInstantiate(
        identity=identity(number),
        source=known,
        destination=known,
        object_numbers=(number,),
        as_of=Scn(as_of),
        takes_ddl=True,
    )


def record(name: str, number: int, scn: int, state: str = "DONE") -> Instantiation:
    return Instantiation(source="dbs1", identity=identity(number), owner="public", name=name, scn=Scn(scn), state=state)


class Destination:
    """What the destination knows of DDL, and what the apply process makes of it."""

    def __init__(self) -> None:
        self.outcomes: dict[DdlPlace, DdlOutcomeKind] = {}
        self.records: dict[str, Instantiation] = {}
        self.added: list[str] = []
        self.removed: list[str] = []
        self.renamed: dict[str, str] = {}
        self.is_down = False

    def fates(self, places: Collection[DdlPlace]) -> DdlFates:
        if self.is_down:
            raise DatabaseUnavailable("no answer")
        known = {place: kind for place, kind in self.outcomes.items() if place in places}
        return DdlFates(outcomes=known, records=dict(self.records))

    def take_up(self, changes: TableChanges, records: Mapping[str, Instantiation]) -> None:
        self.removed += [table.identity for table in changes.removed]
        self.added += [table.identity for table, _ in changes.added]
        self.renamed |= {table.identity: table.destination.name for table, _ in changes.renamed}


class Applying(Reading):
    """A reader whose pieces a test applies; public.t is in its list, as `others` are, and `awaited` ones have no record."""

    def __init__(
        self,
        *,
        awaited: Sequence[TableToInstantiate] = (),
        others: Sequence[TableToInstantiate] = (),
        **fields: Any,
    ) -> None:
        tables = (listed("t", T), *others, *awaited)
        starts = {(*each.destination,): TableStart(scn=Scn(0)) for each in (listed("t", T), *others)}
        starts |= {(*each.destination,): TableStart(scn=None, is_awaited=True) for each in awaited}
        self.tables = ArrivingTables(starts, tables, lambda _: "", apply="to_b", topology=TOPOLOGY)
        super().__init__(tables=self.tables, **fields)
        self.there = Destination()
        self.reader._settling = self.there  # type: ignore[assignment]

    def make(self, name: str, number: int, order: int, position: int = 0, state: str = "DONE") -> None:
        """What an apply server does in order, or from the error queue."""
        self.store.create_table(
            "public",
            name,
            [destination_column(f"c{k}", "pg_catalog.int4", equality="integer") for k in range(2)],
            key=["c0"],
        )
        self.there.outcomes[place(order, position)] = APPLIED
        self.there.records[identity(number)] = record(name, number, order if state == "DONE" else 1, state)

    def rename(self, name: str, later: str, number: int, order: int, position: int = 0) -> None:
        """What an apply server does."""
        there = self.store.tables.pop(("public", name))
        there.table = replace(there.table, name=later)
        self.store.tables["public", later] = there
        self.there.outcomes[place(order, position)] = APPLIED
        known = self.there.records.get(identity(number), record(name, number, 0))
        self.there.records[identity(number)] = replace(known, name=later)

    def drop(self, name: str, number: int, order: int, position: int = 0) -> None:
        self.store.drop_table("public", name)
        self.there.outcomes[place(order, position)] = APPLIED
        self.there.records.pop(identity(number), None)

    def restart(self, low: int, ahead: int = 0, above: tuple[Any, ...] = ()) -> None:
        progress = ApplyProgress(epoch=1, low_watermark=Scn(low), above=above, ahead_scn=Scn(ahead))
        self.reader.restart(progress)


def made(pieces: list[Piece]) -> list[tuple[int, bool, int]]:
    """Return (order SCN, whether a DDL LCR, LCRs) of each part, and of each transaction of a run that has rows."""
    found = []
    for piece in pieces:
        if isinstance(piece, LargePart):
            found.append((int(piece.order_scn), piece.batch.ddl is not None, piece.batch.row_count))
        elif isinstance(piece, Run):
            found += [(commit - 1, False, 1) for commit in commits([piece])]
    return found
