"""Rules with transformations: rows per second of processor time on one core, with and without a transformation.

    python -m benchmarks.transformations

- A propagation decodes a batch, evaluates its rules and encodes the rest: the batches of `benchmarks.conditions`, a
  million rows in batches of 4,096.
- A capture process mines its redo, evaluates its rules and encodes the rest: the redo of `benchmarks.mining`, a hundred
  rows of eight columns in a transaction.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.conditions import BATCH, ROWS, made_batch
from benchmarks.mining import MadeStream, write_redo
from headrace.databases.postgres.source.log_stream.pgoutput import PostgresLogDecoder
from headrace.lcr.scn import FIRST_SCN
from headrace.redo.mining.miner import Miner
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.transformations.transformation import (
    CURRENT_TIMESTAMP,
    AddColumn,
    DeleteColumns,
    KeepColumns,
    Operation,
    RenameColumn,
    RenameTable,
    Transformation,
)
from protos import codec

REGION = AddColumn(name="region", type_name="pg_catalog.text", value="EMEA")
NOW = AddColumn(name="arrived", type_name=CURRENT_TIMESTAMP, is_now=True)
RUNS = 20  # the best one counts: a transformation adds little compared with the effect of other load


def _operations(renamed: str, deleted: str, kept: tuple[str, ...]) -> dict[str, tuple[Operation, ...]]:
    """Return the measured operations, by name.

    Args:
        renamed: a column, which one operation also deletes alone.
        deleted: another column.
        kept: columns.
    """
    table, column = RenameTable(owner="sales", name="staff"), RenameColumn(before=renamed, after="state")
    return {
        "none": (),
        "rename_table": (table,),
        "rename_column": (column,),
        "delete_columns": (DeleteColumns(deleted=(renamed,)),),
        "keep_columns": (KeepColumns(kept=kept),),
        "add_column": (REGION,),
        "add_column current_timestamp": (NOW,),
        "all of them": (DeleteColumns(deleted=(deleted,)), column, REGION, table),
    }


TRANSFORMATIONS = _operations("status", "hired", ("id", "status"))


def measure_all() -> dict[str, float]:
    """Return seconds of processor time for a million rows, by transformation."""
    data = bytes(codec.encode(made_batch()))
    evaluations = {}
    for name, operations in TRANSFORMATIONS.items():
        rule = Rule(owner="hr", transformation=Transformation(operations=operations) if operations else None)
        evaluations[name] = RuleEvaluation(RuleSet(include=(rule,)))
    found = dict.fromkeys(evaluations, float("inf"))
    for _ in range(RUNS + 1):  # alternating; the first run fills the caches of later ones
        for name, evaluation in evaluations.items():
            started = time.process_time()
            for _ in range(ROWS // BATCH + 1):
                codec.encode(evaluation.filter(codec.decode(data)))
            found[name] = min(found[name], time.process_time() - started)
    return found


MINED = MadeStream(transactions=3000, tables=1, rows_each=100, columns=8)
OF_MINED = _operations("c2", "c3", ("c0", "c1", "c2", "c3", "c4"))
MINED_RUNS = 5  # as RUNS; one takes a second


def measure_capture() -> dict[str, float]:
    """Return seconds of processor time for a million mined rows, by transformation."""
    found = dict.fromkeys(OF_MINED, float("inf"))
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        writer, _ = write_redo(Path(folder), list(MINED.chunks), MINED)
        for _ in range(MINED_RUNS + 1):
            for name, operations in OF_MINED.items():
                rule = Rule(
                    owner="public", transformation=Transformation(operations=operations) if operations else None
                )
                miner = Miner(Path(folder), "dbs1", FIRST_SCN, RuleSet(include=(rule,)), PostgresLogDecoder)
                started = time.process_time()
                while (batch := miner.next_batch(writer.position)) is not None:
                    codec.encode(batch)
                found[name] = min(found[name], (time.process_time() - started) * ROWS / MINED.rows)
                miner.close()
        writer.close()
    return found


if __name__ == "__main__":
    for client, seconds_of in (("a propagation", measure_all()), ("a capture process", measure_capture())):
        print(client)
        for name, seconds in seconds_of.items():
            print(
                f"  {name:30s} {seconds:8.3f} s for 1 M rows {ROWS / seconds / 1e6:8.2f} M rows/s"
                f" {100 * seconds_of['none'] / seconds:6.0f} %"
            )
