"""What conflict handlers cost: updates applied by one apply server to a private PostgreSQL, in groups of 10,000 rows.

    python -m benchmarks.conflicts [--rows 100000] [--runs 3]

Five ways to apply the same changes, by turns: without handlers; with `maximum` over all columns while nothing conflicts; with
`maximum` where one row of a hundred was changed at the destination; and both with `latest_timestamp` and tombstones. A transaction has ten rows of six columns, old and new values.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import psycopg

from benchmarks.servers import running_servers
from databases.embedded import EmbeddedServer
from databases.postgres.destination.database import PostgresDestination
from protos import codec
from rules.conflict_handlers import NO_CONFLICT_RULES, TIMED_KINDS, ConflictHandler, ConflictRules, RowTimes
from spark_apply.groups import GroupAssignment, GroupGo, GroupMode, GroupResult
from spark_apply.server.apply_server import ApplyServer
from spark_apply.server.resolution import ConflictSettings
from streams.lcr_batch import Column, ColumnValues, Command, LcrBatch, OldImage, RowGroup, TableVersion, Transactions
from streams.scn import ObjectNumber, Scn

APPLY = "apply"
EACH = 10  # rows of a transaction
GROUP = 10_000  # rows of a group, as apply processes have by default
SHARE = 100  # one row of so many conflicts
MAXIMUM = ConflictRules(handlers=(ConflictHandler(owner="public", name="t", method="maximum", resolution_column="at"),))
LATEST = ConflictRules(
    handlers=tuple(
        ConflictHandler(owner="public", name="t", method="latest_timestamp", kind=kind, priority=("b", "a")) for kind in TIMED_KINDS
    ),
    times=RowTimes(site="b", sites=("b", "a"), has_tombstones=True),
)
COLUMNS = (("id", "int4", 23), ("a", "text", 25), ("b", "text", 25), ("c", "text", 25), ("n", "int4", 23), ("at", "int8", 20))


def _fixed(values: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    return np.full(values.shape[0], width, np.int32), values.astype(f">i{width}").view(np.uint8)


def _text(values: np.ndarray, prefix: str) -> tuple[np.ndarray, np.ndarray]:
    texts = [f"{prefix}{value}".encode() for value in values.tolist()]
    return np.array([len(text) for text in texts], np.int32), np.frombuffer(b"".join(texts), np.uint8)


def _image(ids: np.ndarray, version: int) -> ColumnValues:
    columns = [_fixed(ids, 4), *(_text(ids, f"{name}{version} of row ") for name in "abc"), _fixed(ids % 1000, 4), _fixed(ids * 0 + version * 10, 8)]
    starts = np.zeros(len(columns) + 1, np.int64)
    np.cumsum([data.shape[0] for _, data in columns], out=starts[1:])
    return ColumnValues(lengths=np.stack([lengths for lengths, _ in columns]), data=np.concatenate([data for _, data in columns]), starts=starts)


def updates_of(ids: np.ndarray, version: int, first_scn: int) -> LcrBatch:
    """Updates of rows of table t from the version below, ten a transaction.

    Args:
        ids: int64[n], of the rows.
        version: that they get.
        first_scn: below the first commit.
    """
    count = ids.shape[0] // EACH
    scn = first_scn + np.arange(1, count + 1, dtype=np.int64) * 10
    table = TableVersion(
        object_number=ObjectNumber(16384), version=1, owner="public", name="t", old_image=OldImage.FULL,
        columns=tuple(Column(name=n, type_name=f"pg_catalog.{t}", type_number=o, is_key=n == "id", is_binary=True) for n, t, o in COLUMNS),
    )
    group = RowGroup(
        table=0, command=Command.UPDATE, row_numbers=np.arange(ids.shape[0], dtype=np.int32), old=_image(ids, version - 1), new=_image(ids, version),
    )
    return LcrBatch(
        source="a", previous_scn=Scn(first_scn), through_scn=Scn(int(scn[-1])), tables=(table,), groups=(group,), transactions=Transactions(
            transaction_id=scn, order_scn=scn - 5, commit_scn=scn, commit_time_us=np.full(count, time.time_ns() // 1000, np.int64), tag=np.full(count, -1, np.int16),
            first_row=np.arange(0, ids.shape[0] + 1, EACH, dtype=np.int32),
        ),
    )


class _Run:
    """One way, at a database of its own."""

    def __init__(self, server: EmbeddedServer, name: str, rules: ConflictRules, rows: int, *, conflicts: bool) -> None:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}".encode())
        dsn = server.dsn(name)
        self.user = psycopg.connect(dsn, autocommit=True)
        self.user.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b text, c text, n int, at bigint)")
        self.user.execute(
            "INSERT INTO t SELECT i, 'a0 of row ' || i, 'b0 of row ' || i, 'c0 of row ' || i, i %% 1000, 0 FROM generate_series(0, %s) i", (rows - 1,),
        )
        self.rows, self.conflicts, self.version, self.scn = rows, conflicts, 0, 100
        self.destination = PostgresDestination(dsn)
        self.destination.prepare(name)
        epoch = self.destination.raise_epoch(name, APPLY).epoch
        self.server = ApplyServer(
            apply=APPLY, source="a", decode=codec.decode, encode=codec.encode, error_batches=self.destination.error_batches,
            open_session=lambda: self.destination.open_session(name, APPLY, server=0, epoch=epoch, tag=b"\0"),
            conflicts=ConflictSettings(apply=APPLY, source="a", site="b", rules=rules),
        )
        self.server.connect()

    def measure(self) -> float:
        """Apply one update of every row; rows per second."""
        if self.conflicts:
            # Behind the version that comes, and before it: the LCR wins, and the row is as the next run expects it.
            self.user.execute("UPDATE t SET at = at + 5 WHERE id %% %s = 0", (SHARE,))
        self.user.execute("VACUUM t")
        self.user.execute("CHECKPOINT")
        self.version += 1
        shuffled = np.random.default_rng(self.version).permutation(self.rows).astype(np.int64)
        groups = []
        for start in range(0, self.rows, GROUP):
            groups.append(updates_of(shuffled[start : start + GROUP], self.version, self.scn))
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
        wrong = self.user.execute("SELECT count(*) FROM t WHERE at <> %s", (self.version * 10,)).fetchone()
        assert wrong == (0,), wrong
        return self.rows / took

    def close(self) -> None:
        self.server.close()
        self.destination.close()
        self.user.close()


def main() -> None:
    """Run and print rows per second, the median of all runs, and what it is of the plain rate in the same run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with running_servers(("server",), {"shared_buffers": "256MB", "max_wal_size": "4GB", "autovacuum": "off", "track_commit_timestamp": "on"}) as (_, servers):
        server = servers["server"]
        # Replication origins belong to the server: each way has the name of a topology of its own.
        ways = {
            "without handlers": _Run(server, "plain", NO_CONFLICT_RULES, options.rows, conflicts=False),
            "handlers, no conflict": _Run(server, "handlers", MAXIMUM, options.rows, conflicts=False),
            f"handlers, 1 row of {SHARE} conflicts": _Run(server, "conflicts", MAXIMUM, options.rows, conflicts=True),
            "latest_timestamp, no conflict": _Run(server, "latest", LATEST, options.rows, conflicts=False),
            f"latest_timestamp, 1 row of {SHARE}": _Run(server, "latest_conflicts", LATEST, options.rows, conflicts=True),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.runs + 1):  # the first one warms up
            for name, way in ways.items():
                rates[name].append(way.measure())
        plain = rates["without handlers"][1:]
        for name, found in rates.items():
            ratio = statistics.median(rate / of for rate, of in zip(found[1:], plain, strict=True))
            print(f"{name:36} {statistics.median(found[1:]):10,.0f} rows/s  {ratio:6.1%}  all runs: {', '.join(f'{rate:,.0f}' for rate in found[1:])}")
        for way in ways.values():
            way.close()


if __name__ == "__main__":
    main()
