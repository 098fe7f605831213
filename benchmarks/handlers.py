"""Cost of users' handlers: one apply server applies updates to a private PostgreSQL, in groups of 10,000 rows.

    python -m benchmarks.handlers [--rows 50000] [--runs 3]

Five ways alternate, each with its own database. A transaction has ten rows; the handler only executes the LCR.

    plain             every row is of table t; there are no handlers
    beside            the same, in an apply process where table h has a procedure DML handler
    with its rows     one transaction in a hundred is of table h and goes to the handler; the rate counts t's rows
    in transactions   one row in a hundred is of table h: a tenth of the transactions have one; these are applied in order
    its own           every row is of table h and goes to the handler
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.apply_server import EACH, Way, compare, options, running_server
from headrace.databases.connectors import python_values
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.lcr.batch import LcrBatch
from headrace.lcr.cutting import select_values
from headrace.lcr.scn import ObjectNumber
from headrace.rules.user_code.handlers import NO_HANDLERS, DmlHandler, HandlerRules
from headrace.rules.user_code.source import CodeFile, UserCode, UserFunction
from spark_apply.handlers.loaded import Handlers

SHARE = 100  # one row in this many is of table h
CODE = UserCode(
    folder="handlers",
    files=(CodeFile(path="own.py", text="def execute(lcr, session):\n    lcr.execute(conflict_resolution=False)\n"),),
)
HANDLED = HandlerRules(
    code=CODE,
    dml=(
        DmlHandler(
            owner="public", name="h", function=UserFunction(name="own:execute", version=CODE.version_of("own:execute"))
        ),
    ),
)


def _divided(batch: LcrBatch, *, share: int, each: int) -> LcrBatch:
    """Move `each` consecutive rows out of `share` times as many to table h; share 0: none, 1: all."""
    (group,) = batch.groups
    table = batch.tables[0]
    other = replace(table, object_number=ObjectNumber(16385), name="h")
    if not share:
        return batch
    is_other = group.row_numbers // each % share == 0
    groups = tuple(
        replace(
            group,
            table=place,
            row_numbers=group.row_numbers[rows],
            old=select_values(group.old, rows),
            new=select_values(group.new, rows),
        )
        for place, rows in (
            (0, np.flatnonzero(~is_other).astype(np.int32)),
            (1, np.flatnonzero(is_other).astype(np.int32)),
        )
        if rows.shape[0]
    )
    return replace(batch, tables=(table, other), groups=groups)


class _Way(Way):
    """Updates of which some are of table h; the rate counts the others, if any."""

    def __init__(
        self, server: EmbeddedServer, name: str, rules: HandlerRules, rows: int, *, share: int, each: int = 1
    ) -> None:
        decode, encode = python_values()
        super().__init__(server, name, rows, tables=("t", "h"), handlers=Handlers(rules, decode=decode, encode=encode))
        self.share, self.each = share, each

    def order(self) -> np.ndarray:
        return np.arange(self.rows, dtype=np.int64)  # the same order every time, so that each row stays in its table

    def made(self, batch: LcrBatch) -> LcrBatch:
        return _divided(batch, share=self.share, each=self.each)

    def counted(self) -> int:
        return self.rows if self.share in {0, 1} else self.rows - self.rows // self.share


def main() -> None:
    """Run and print."""
    given = options(__doc__, rows=50_000)
    with running_server() as server:
        compare(
            {
                "plain": _Way(server, "plain", NO_HANDLERS, given.rows, share=0),
                "beside a table with a handler": _Way(server, "beside", HANDLED, given.rows, share=0),
                f"with its rows, 1 of {SHARE}": _Way(server, "rows", HANDLED, given.rows, share=SHARE, each=EACH),
                f"in transactions, 1 row of {SHARE}": _Way(server, "together", HANDLED, given.rows, share=SHARE),
                "the handler's own rows": _Way(server, "own", HANDLED, given.rows, share=1),
            },
            plain="plain",
            runs=given.runs,
        )


if __name__ == "__main__":
    main()
