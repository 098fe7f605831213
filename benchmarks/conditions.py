"""Rules: rows per second of processor time that conditions decide, on one core, in batches of a capture process's size.

    python -m benchmarks.conditions

A million rows in batches of 4,096: three quarters inserts and updates with both images, a quarter deletes; binary
values, one in fifty NULL. The rules without conditions are the baseline.
"""

from __future__ import annotations

import time

import numpy as np

from headrace.databases.connectors import value_types
from headrace.lcr.batch import Column, Command, LcrBatch, OldImage, RowGroup, TableVersion, Transactions
from headrace.lcr.row_lcr import RowLcr
from headrace.lcr.scn import ObjectNumber, Scn
from headrace.lcr.values import NULL, ColumnValues
from headrace.rules.conditions.condition import parse
from headrace.rules.conditions.rowwise import truth_values
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import Rule, RuleSet
from tests.support.values.lcr_batches import column_values

ROWS, BATCH, EACH = 1_000_000, 4096, 8  # rows of a transaction: 8
RUNS = 3  # the best one counts: other load only slows a run
SINGLE = 20_000  # rows decided one at a time: enough to show how much slower that is

TABLE = TableVersion(
    object_number=ObjectNumber(16384),
    version=1,
    owner="hr",
    name="employees",
    old_image=OldImage.FULL,
    columns=(
        Column(name="id", type_name="pg_catalog.int8", is_key=True, is_binary=True),
        Column(name="department_id", type_name="pg_catalog.int4", is_binary=True),
        Column(name="status", type_name="pg_catalog.text", is_binary=True),
        Column(name="hired", type_name="pg_catalog.date", is_binary=True),
    ),
)

RULES = {
    "no conditions": Rule(owner="hr"),
    "where department_id = 50": Rule(owner="hr", condition=parse("department_id = 50", "where")),
    "where department_id in (10 values)": Rule(
        owner="hr", condition=parse(f"department_id in ({', '.join(map(str, range(10)))})", "where")
    ),
    "where status = 'open'": Rule(owner="hr", condition=parse("status = 'open'", "where")),
    "where three columns": Rule(
        owner="hr", condition=parse("department_id < 50 and status <> 'open' and hired >= '2020-01-01'", "where")
    ),
    "condition command_type": Rule(
        condition=parse("object_owner = 'hr' and command_type = 'INSERT' and tag is null", "condition")
    ),
    "subset department_id = 50": Rule(owner="hr", name="employees", subset=parse("department_id = 50", "subset")),
}


def _values(numbers: np.ndarray, shift: int) -> ColumnValues:
    department, day = (numbers + shift) % 100, numbers % 9000
    columns: list[list[bytes | int]] = [[int(n).to_bytes(8, "big") for n in numbers]]
    columns.append(
        [
            NULL if n % 50 == 0 else int(d).to_bytes(4, "big")
            for n, d in zip(numbers.tolist(), department.tolist(), strict=True)
        ]
    )
    columns.append([(b"open", b"closed", b"waiting")[n % 3] for n in numbers.tolist()])
    columns.append([int(d).to_bytes(4, "big") for d in day.tolist()])
    return column_values(columns)


def made_batch() -> LcrBatch:
    """Make one batch as the module docstring describes it."""
    numbers = np.arange(BATCH, dtype=np.int32)
    kinds = {Command.INSERT: numbers[::2], Command.UPDATE: numbers[1::4], Command.DELETE: numbers[3::4]}
    scn = np.arange(1, BATCH // EACH + 1, dtype=np.int64) * 10
    return LcrBatch(
        source="dbs1",
        previous_scn=Scn(1),
        through_scn=Scn(int(scn[-1])),
        tables=(TABLE,),
        transactions=Transactions(
            transaction_id=scn,
            order_scn=scn - 5,
            commit_scn=scn,
            commit_time_us=scn,
            tag=np.full(scn.shape[0], -1, np.int16),
            first_row=np.arange(0, BATCH + 1, EACH, dtype=np.int32),
        ),
        groups=tuple(
            RowGroup(
                table=0,
                command=command,
                row_numbers=np.ascontiguousarray(rows),
                old=None if command is Command.INSERT else _values(rows, 0),
                new=None if command is Command.DELETE else _values(rows, 10),
            )
            for command, rows in kinds.items()
        ),
    )


def measure_all() -> dict[str, float]:
    """Return seconds of processor time for a million rows, by rule."""
    batch, types, found = made_batch(), value_types(), {}
    for name, rule in RULES.items():
        evaluation = RuleEvaluation(RuleSet(include=(rule,)), types=types)
        evaluation.filter(batch)
        best = float("inf")
        for _ in range(RUNS):
            started = time.process_time()
            for _ in range(ROWS // BATCH + 1):
                evaluation.filter(batch)
            best = min(best, time.process_time() - started)
        found[name] = best
    condition = RULES["where department_id = 50"].condition
    assert condition is not None
    tree = condition.tree
    started = time.process_time()
    for row in range(SINGLE):
        truth_values(tree, RowLcr(batch, row % BATCH), types)
    found["where department_id = 50, row by row"] = (time.process_time() - started) * ROWS / SINGLE
    return found


if __name__ == "__main__":
    for name, seconds in measure_all().items():
        print(f"{name:40s} {seconds:8.3f} s for 1 M rows {ROWS / seconds / 1e6:8.2f} M rows/s")
