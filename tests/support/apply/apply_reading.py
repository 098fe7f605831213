"""An apply process's reader that gets batches by hand."""

from __future__ import annotations

import numpy as np

from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.databases.ports import ApplyProgress, ScnRange
from headrace.lcr.batch import LcrBatch
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import RuleSet
from spark_apply.driver.reader import ApplyReader
from spark_apply.driver.reading.pieces import Piece, Run
from spark_apply.driver.settling import DdlSettling
from spark_apply.tables.arriving import ArrivingTables, TableStart
from spark_apply.tables.fits import TableFits

__all__ = ["Reading", "commits"]


class Reading:
    """A reader over a destination with table public.t."""

    def __init__(
        self,
        *,
        low_watermark: int = 0,
        above: tuple[tuple[int, int], ...] = (),
        rules: RuleSet | None = None,
        instantiated: int = 0,
        returned_from: tuple[str, ...] = (),
        columns: int = 2,
        tables: ArrivingTables | None = None,
        settling: DdlSettling | None = None,
    ) -> None:
        self.store = MemoryStore()
        self.create(columns)
        database = MemoryDestination(store=self.store)
        self.fits = TableFits(database.describe, lambda v: "".join(f.fix for f in database.preflight_tables([v])))
        ranges = tuple(ScnRange(after=after, through=through) for after, through in above)
        self.reader = ApplyReader(
            source="dbs1",
            progress=ApplyProgress(epoch=1, low_watermark=low_watermark, above=ranges),
            rules=RuleEvaluation(rules or RuleSet()),
            fits=self.fits,
            tables=tables if tables is not None else ArrivingTables({("public", "t"): TableStart(scn=instantiated)}),
            returned_from=returned_from,
            settling=settling,
        )

    def create(self, columns: int) -> None:
        self.store.create_table(
            "public",
            "t",
            [destination_column(f"c{k}", "pg_catalog.int4", equality="integer") for k in range(columns)],
            key=["c0"],
        )

    def read(self, *batches: LcrBatch) -> list[Piece]:
        for batch in batches:
            self.reader.offer(batch, b"as it came")
        return self.take()

    def take(self) -> list[Piece]:
        found = []
        while (piece := self.reader.take()) is not None:
            found.append(piece)
        return found


def commits(pieces: list[Piece]) -> list[int]:
    """Return commit SCNs of the transactions that have rows left."""
    found = []
    for piece in pieces:
        if isinstance(piece, Run):
            counts = np.diff(piece.batch.transactions.first_row)
            found += piece.batch.transactions.commit_scn[counts > 0].tolist()
    return found
