"""Cutting batches and collapsing them into sets: rows per second on a batch of 100,000 rows, without a server.

    python -m benchmarks.cutting

The batch has 10,000 transactions of ten rows, 8 columns of text: half inserts, a quarter updates with both images, a
quarter deletes; every second transaction is tagged.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import MemoryStore
from headrace.databases.ports import DestinationColumn
from headrace.lcr.batch import Column, Command, LcrBatch, OldImage, RowGroup, TableVersion, Transactions
from headrace.lcr.building import batch_of_lcrs
from headrace.lcr.cutting import resume_after, select_rows, slice_transactions
from headrace.lcr.row_lcr import RowLcr
from headrace.lcr.scn import ObjectNumber, Scn
from headrace.lcr.tags import Tag
from headrace.lcr.values import ColumnValues
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import Rule, RuleSet
from spark_apply.sets.collapse import plan_sets
from spark_apply.tables.fits import TableFits

ROWS, EACH, COLUMNS = 100_000, 10, 8
RUNS = 5  # the best one counts: other load only slows a run


def made_batch() -> LcrBatch:
    """Make the batch that the module docstring describes."""
    table = TableVersion(
        object_number=ObjectNumber(16384),
        version=1,
        owner="hr",
        name="t",
        old_image=OldImage.FULL,
        columns=tuple(
            Column(name=f"c{k}", type_name="pg_catalog.text", type_number=25, is_key=k == 0) for k in range(COLUMNS)
        ),
    )
    numbers = np.arange(ROWS, dtype=np.int32)
    kinds = {Command.INSERT: numbers[::2], Command.UPDATE: numbers[1::4], Command.DELETE: numbers[3::4]}
    groups = tuple(
        RowGroup(
            table=0,
            command=command,
            row_numbers=np.ascontiguousarray(rows),
            old=None if command is Command.INSERT else _values(rows, "old"),
            new=None if command is Command.DELETE else _values(rows, "new"),
        )
        for command, rows in kinds.items()
    )
    count = ROWS // EACH
    scn = np.arange(1, count + 1, dtype=np.int64) * 10
    return LcrBatch(
        source="dbs1",
        previous_scn=Scn(1),
        through_scn=Scn(int(scn[-1])),
        tables=(table,),
        tags=(Tag(value=b"\x01"),),
        transactions=Transactions(
            transaction_id=scn,
            order_scn=scn - 5,
            commit_scn=scn,
            commit_time_us=scn,
            tag=(np.arange(count) % 2 - 1).astype(np.int16),
            first_row=np.arange(0, ROWS + 1, EACH, dtype=np.int32),
        ),
        groups=groups,
    )


def _values(rows: np.ndarray, image: str) -> ColumnValues:
    texts = [[str(row).encode() for row in rows.tolist()]]
    texts += [
        [f"{image if k % 2 else 'same'} {k} {row % 1000}".encode() for row in rows.tolist()] for k in range(1, COLUMNS)
    ]
    lengths = np.array([[len(value) for value in column] for column in texts], np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths.sum(axis=1))]).astype(np.int64)
    return ColumnValues(
        lengths=lengths,
        data=np.frombuffer(b"".join(value for column in texts for value in column), np.uint8),
        starts=starts,
    )


def _fits() -> TableFits:
    store = MemoryStore()
    columns = [
        DestinationColumn(
            name=f"c{k}",
            number=k + 1,
            type_name="pg_catalog.text",
            type_number=25,
            type_modifier=-1,
            not_null=k == 0,
            has_default=False,
            is_generated=False,
            is_identity_always=False,
            equality="bytes",
        )
        for k in range(COLUMNS)
    ]
    store.create_table("hr", "t", columns, key=["c0"])
    destination = MemoryDestination(store=store)
    session = destination.open_session("t", "a", server=0, epoch=destination.raise_epoch("t", "a").epoch, tag=b"\0")
    return TableFits(session.describe, lambda _: "")


def _rate(work: Callable[[], object]) -> float:
    work()
    best = float("inf")
    for _ in range(RUNS):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return ROWS / max(best, 1e-6)


def measure_all() -> dict[str, float]:
    """Return rows per second of processor time, by operation."""
    batch, fits = made_batch(), _fits()
    half = np.random.default_rng(7).random(ROWS) < 0.5
    count = len(batch.transactions)
    middle = Scn(int(batch.transactions.order_scn[count // 2]))
    rules = RuleEvaluation(RuleSet(include=(Rule(owner="hr"),)))
    fit = fits.fit
    return {
        "every other row": _rate(lambda: select_rows(batch, half)),
        "half of the transactions": _rate(lambda: slice_transactions(batch, count // 4, 3 * count // 4)),
        "after a position": _rate(lambda: resume_after(batch, middle)),
        "rules": _rate(lambda: rules.filter(batch)),
        "sets": _rate(lambda: plan_sets([batch], fit)),
        "views and back": _rate(lambda: batch_of_lcrs(batch, [RowLcr(batch, row) for row in range(ROWS)])),
    }


if __name__ == "__main__":
    for name, rate in measure_all().items():
        print(f"{name:28s} {rate / 1000:12,.0f} k rows/s")
