"""What users' handlers cost: updates applied by one apply server to a private PostgreSQL, in groups of 10,000 rows.

    python -m benchmarks.handlers [--rows 50000] [--runs 3]

Five ways, by turns, each with a database of its own. A transaction has ten rows; the handler only executes the LCR.

    plain             every row is of table t; there are no handlers
    beside            the same, in an apply process where table h has a procedure DML handler
    with its rows     one transaction of a hundred is of table h and goes to the handler; the rate is of t's rows
    in transactions   one row of a hundred is of table h: a tenth of the transactions have one, and are applied in their order
    its own           every row is of table h and goes to the handler
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

import numpy as np
import psycopg

from benchmarks.conflicts import EACH, GROUP, updates_of
from benchmarks.servers import running_servers
from databases.connectors import python_values
from databases.embedded import EmbeddedServer
from databases.postgres.destination.database import PostgresDestination
from protos import codec
from rules.user_code.handlers import NO_HANDLERS, DmlHandler, HandlerRules
from rules.user_code.source import CodeFile, UserCode, UserFunction
from spark_apply.groups import GroupAssignment, GroupGo, GroupMode, GroupResult
from spark_apply.handlers.loaded import Handlers
from spark_apply.server.apply_server import ApplyServer
from streams.cutting import select_values
from streams.lcr_batch import LcrBatch
from streams.scn import ObjectNumber

APPLY = "apply"
SHARE = 100  # one row of so many is of table h
CODE = UserCode(folder="handlers", files=(CodeFile(path="own.py", text="def execute(lcr, session):\n    lcr.execute(conflict_resolution=False)\n"),))
HANDLED = HandlerRules(code=CODE, dml=(
    DmlHandler(owner="public", name="h", function=UserFunction(name="own:execute", version=CODE.version_of("own:execute"))),
))


def _divided(batch: LcrBatch, *, share: int, each: int) -> LcrBatch:
    """The batch with `each` rows together of `share` times as many in table h; share 0: none, 1: all."""
    (group,) = batch.groups
    table = batch.tables[0]
    other = replace(table, object_number=ObjectNumber(16385), name="h")
    if not share:
        return batch
    is_other = group.row_numbers // each % share == 0
    groups = tuple(
        replace(
            group, table=place, row_numbers=group.row_numbers[rows], old=select_values(group.old, rows), new=select_values(group.new, rows),
        )
        for place, rows in ((0, np.flatnonzero(~is_other).astype(np.int32)), (1, np.flatnonzero(is_other).astype(np.int32))) if rows.shape[0]
    )
    return replace(batch, tables=(table, other), groups=groups)


class _Way:
    """One way, at a database of its own."""

    def __init__(self, server: EmbeddedServer, name: str, rules: HandlerRules, rows: int, *, share: int, each: int = 1) -> None:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}".encode())
        dsn = server.dsn(name)
        self.user = psycopg.connect(dsn, autocommit=True)
        for table in "th":
            self.user.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, a text, b text, c text, n int, at bigint)".encode())
            self.user.execute((
                f"INSERT INTO {table} SELECT i, 'a0 of row ' || i, 'b0 of row ' || i, 'c0 of row ' || i, i % 1000, 0"
                f" FROM generate_series(0, {rows - 1}) i"
            ).encode())
        self.rows, self.share, self.each, self.scn = rows, share, each, 100
        self.destination = PostgresDestination(dsn)
        self.destination.prepare(name)
        epoch = self.destination.raise_epoch(name, APPLY).epoch
        decode, encode = python_values()
        self.server = ApplyServer(
            apply=APPLY, source="a", decode=codec.decode, encode=codec.encode, error_batches=self.destination.error_batches,
            open_session=lambda: self.destination.open_session(name, APPLY, server=0, epoch=epoch, tag=b"\0"),
            handlers=Handlers(rules, decode=decode, encode=encode),
        )
        self.server.connect()
        self.version = 0

    def measure(self) -> float:
        """Apply one update of every row; rows of table t (of h, where there are no others) per second."""
        for table in ("t", "h"):
            self.user.execute(f"VACUUM {table}".encode())
        self.user.execute("CHECKPOINT")
        self.version += 1
        groups = []
        for start in range(0, self.rows, GROUP):
            # In one order every time, so that each row stays in its table.
            groups.append(_divided(updates_of(np.arange(start, start + GROUP, dtype=np.int64), self.version, self.scn), share=self.share, each=self.each))
            self.scn = int(groups[-1].through_scn)
        encoded = [codec.encode(group) for group in groups]
        begun = time.monotonic()
        for number, (group, data) in enumerate(zip(groups, encoded, strict=True), 1):
            self.server.receive(GroupAssignment(
                group=number, attempt=0, mode=GroupMode.SETS, streamed=False, batches=(data,), after_scn=int(group.previous_scn),
                through_scn=int(group.through_scn),
            ))
            self.server.receive(GroupGo(group=number, attempt=0, low_watermark=int(group.previous_scn), below_applied=True))
            while not (reports := self.server.step(time.monotonic()).reports):
                pass
            (result,) = reports
            assert isinstance(result, GroupResult)
            assert not result.errors
        took = time.monotonic() - begun
        done = self.user.execute("SELECT (SELECT count(*) FROM t WHERE at = %(at)s) + (SELECT count(*) FROM h WHERE at = %(at)s)", {"at": self.version * 10}).fetchone()
        assert done == (self.rows,), done
        counted = self.rows if self.share in {0, 1} else self.rows - self.rows // self.share
        return counted / took

    def close(self) -> None:
        self.server.close()
        self.destination.close()
        self.user.close()


def main() -> None:
    """Run and print rows per second, the median of all runs, and what it is of the plain rate in the same run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000, help="a multiple of 10,000")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with running_servers(("server",), {"shared_buffers": "256MB", "max_wal_size": "4GB", "autovacuum": "off"}) as (_, servers):
        server = servers["server"]
        ways = {
            "plain": _Way(server, "plain", NO_HANDLERS, options.rows, share=0),
            "beside a table with a handler": _Way(server, "beside", HANDLED, options.rows, share=0),
            f"with its rows, 1 of {SHARE}": _Way(server, "rows", HANDLED, options.rows, share=SHARE, each=EACH),
            f"in transactions, 1 row of {SHARE}": _Way(server, "together", HANDLED, options.rows, share=SHARE),
            "the handler's own rows": _Way(server, "own", HANDLED, options.rows, share=1),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.runs + 1):  # the first one warms up
            for name, way in ways.items():
                rates[name].append(way.measure())
        plain = rates["plain"][1:]
        for name, found in rates.items():
            ratio = statistics.median(rate / of for rate, of in zip(found[1:], plain, strict=True))
            print(f"{name:36} {statistics.median(found[1:]):10,.0f} rows/s  {ratio:6.1%}  all runs: {', '.join(f'{rate:,.0f}' for rate in found[1:])}")
        for way in ways.values():
            way.close()


if __name__ == "__main__":
    main()
