"""Rules: rows per second of processor time that are transformed, on one core, in batches as a capture process makes them.

    python -m benchmarks.transformations

The batches of `benchmarks.conditions`: a million rows in batches of 4,096. A client decodes a batch, evaluates its rules and encodes what is left: the
rate with a transformation, and without one.
"""

from __future__ import annotations

import time

from benchmarks.conditions import BATCH, ROWS, made_batch
from protos import codec
from rules.evaluation import RuleEvaluation
from rules.rule import Rule, RuleSet
from rules.transformation import (
    CURRENT_TIMESTAMP,
    AddColumn,
    DeleteColumns,
    KeepColumns,
    Operation,
    RenameColumn,
    RenameTable,
    Transformation,
)

REGION = AddColumn(name="region", type_name="pg_catalog.text", value="EMEA")
NOW = AddColumn(name="arrived", type_name=CURRENT_TIMESTAMP, is_now=True)
RUNS = 20  # the best one counts: what is added is little beside what other load makes of a run

TRANSFORMATIONS: dict[str, tuple[Operation, ...]] = {
    "none": (),
    "rename_table": (RenameTable(owner="sales", name="staff"),),
    "rename_column": (RenameColumn(before="status", after="state"),),
    "delete_columns": (DeleteColumns(deleted=("status",)),),
    "keep_columns": (KeepColumns(kept=("id", "status")),),
    "add_column": (REGION,),
    "add_column current_timestamp": (NOW,),
    "all of them": (DeleteColumns(deleted=("hired",)), RenameColumn(before="status", after="state"), REGION, RenameTable(owner="sales", name="staff")),
}


def measure_all() -> dict[str, float]:
    """Seconds of processor time for a million rows, by transformation."""
    data = bytes(codec.encode(made_batch()))
    evaluations = {}
    for name, operations in TRANSFORMATIONS.items():
        rule = Rule(owner="hr", transformation=Transformation(operations=operations) if operations else None)
        evaluations[name] = RuleEvaluation(RuleSet(include=(rule,)))
    found = dict.fromkeys(evaluations, float("inf"))
    for _ in range(RUNS + 1):  # by turns; the first run makes what later ones use
        for name, evaluation in evaluations.items():
            started = time.process_time()
            for _ in range(ROWS // BATCH + 1):
                codec.encode(evaluation.filter(codec.decode(data)))
            found[name] = min(found[name], time.process_time() - started)
    return found


if __name__ == "__main__":
    seconds_of = measure_all()
    for name, seconds in seconds_of.items():
        print(f"{name:30s} {seconds:8.3f} s for 1 M rows {ROWS / seconds / 1e6:8.2f} M rows/s {100 * seconds_of['none'] / seconds:6.0f} %")
