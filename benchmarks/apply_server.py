"""One apply server on a private PostgreSQL: the same updates applied in several ways, in groups of 10,000 rows.

A way has a database with tables of six columns, an apply server with its settings, and a change to the updates.
`compare` runs several ways alternately and prints their rates. A transaction has ten rows with old and new values.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import psycopg

from benchmarks.servers import running_servers
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.lcr.batch import Column, Command, LcrBatch, OldImage, RowGroup, TableVersion, Transactions
from headrace.lcr.scn import ObjectNumber, Scn
from headrace.lcr.values import ColumnValues
from protos import codec
from spark_apply.conversation.groups import GroupAssignment, GroupGo, GroupMode, GroupResult
from spark_apply.server.apply_server import ApplyServer

__all__ = ["APPLY", "EACH", "GROUP", "Way", "compare", "options", "running_server", "updates_of"]

APPLY = "apply"
EACH = 10  # rows of a transaction
GROUP = 10_000  # rows of a group: the default of apply processes
COLUMNS = (
    ("id", "int4", 23),
    ("a", "text", 25),
    ("b", "text", 25),
    ("c", "text", 25),
    ("n", "int4", 23),
    ("at", "int8", 20),
)


def _fixed(values: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    return np.full(values.shape[0], width, np.int32), values.astype(f">i{width}").view(np.uint8)


def _text(values: np.ndarray, prefix: str) -> tuple[np.ndarray, np.ndarray]:
    texts = [f"{prefix}{value}".encode() for value in values.tolist()]
    return np.array([len(text) for text in texts], np.int32), np.frombuffer(b"".join(texts), np.uint8)


def _image(ids: np.ndarray, version: int) -> ColumnValues:
    columns = [
        _fixed(ids, 4),
        *(_text(ids, f"{name}{version} of row ") for name in "abc"),
        _fixed(ids % 1000, 4),
        _fixed(ids * 0 + version * 10, 8),
    ]
    starts = np.zeros(len(columns) + 1, np.int64)
    np.cumsum([data.shape[0] for _, data in columns], out=starts[1:])
    return ColumnValues(
        lengths=np.stack([lengths for lengths, _ in columns]),
        data=np.concatenate([data for _, data in columns]),
        starts=starts,
    )


def updates_of(ids: np.ndarray, version: int, first_scn: int) -> LcrBatch:
    """Return updates of rows of table t from the previous version, ten per transaction.

    Args:
        ids: int64[n], of the rows.
        version: their new version.
        first_scn: below the first commit.
    """
    count = ids.shape[0] // EACH
    scn = first_scn + np.arange(1, count + 1, dtype=np.int64) * 10
    table = TableVersion(
        object_number=ObjectNumber(16384),
        version=1,
        owner="public",
        name="t",
        old_image=OldImage.FULL,
        columns=tuple(
            Column(name=n, type_name=f"pg_catalog.{t}", type_number=o, is_key=n == "id", is_binary=True)
            for n, t, o in COLUMNS
        ),
    )
    group = RowGroup(
        table=0,
        command=Command.UPDATE,
        row_numbers=np.arange(ids.shape[0], dtype=np.int32),
        old=_image(ids, version - 1),
        new=_image(ids, version),
    )
    return LcrBatch(
        source="a",
        previous_scn=Scn(first_scn),
        through_scn=Scn(int(scn[-1])),
        tables=(table,),
        groups=(group,),
        transactions=Transactions(
            transaction_id=scn,
            order_scn=scn - 5,
            commit_scn=scn,
            commit_time_us=np.full(count, time.time_ns() // 1000, np.int64),
            tag=np.full(count, -1, np.int16),
            first_row=np.arange(0, ids.shape[0] + 1, EACH, dtype=np.int32),
        ),
    )


class Way:
    """One way, with its own database.

    Args:
        server: PostgreSQL.
        name: of the database, and of a topology: replication origins belong to the server.
        rows: of each table.
        tables: names.
        settings: of the apply server, besides those of every way.
    """

    def __init__(
        self, server: EmbeddedServer, name: str, rows: int, *, tables: Sequence[str] = ("t",), **settings: Any
    ) -> None:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}".encode())
        dsn = server.dsn(name)
        self.user = psycopg.connect(dsn, autocommit=True)
        for table in tables:
            self.user.execute(
                f"CREATE TABLE {table} (id int PRIMARY KEY, a text, b text, c text, n int, at bigint)".encode()
            )
            self.user.execute(
                (
                    f"INSERT INTO {table} SELECT i, 'a0 of row ' || i, 'b0 of row ' || i, 'c0 of row ' || i, i % 1000, 0"
                    f" FROM generate_series(0, {rows - 1}) i"
                ).encode()
            )
        self.rows, self.tables, self.version, self.scn = rows, tables, 0, 100
        self.destination = PostgresDestination(dsn)
        self.destination.prepare(name)
        epoch = self.destination.raise_epoch(name, APPLY).epoch
        self.server = ApplyServer(
            apply=APPLY,
            source="a",
            decode=codec.decode,
            encode=codec.encode,
            error_batches=self.destination.error_batches,
            open_session=lambda: self.destination.open_session(name, APPLY, server=0, epoch=epoch, tag=b"\0"),
            **settings,
        )
        self.server.connect()

    def order(self) -> np.ndarray:
        """Return the ids of all rows, int64[n], in the order in which this version changes them."""
        raise NotImplementedError

    def made(self, batch: LcrBatch) -> LcrBatch:
        """Return a group's updates of table t as the way changes them."""
        return batch

    def before(self) -> None:
        """Do what users do before this version arrives."""

    def counted(self) -> int:
        """Return the number of rows that the rate counts."""
        return self.rows

    def measure(self) -> float:
        """Apply one update of every row; rows per second."""
        self.before()
        for table in self.tables:
            self.user.execute(f"VACUUM {table}".encode())
        self.user.execute("CHECKPOINT")
        self.version += 1
        groups, ids = [], self.order()
        for start in range(0, self.rows, GROUP):
            groups.append(self.made(updates_of(ids[start : start + GROUP], self.version, self.scn)))
            self.scn = int(groups[-1].through_scn)
        encoded = [codec.encode(group) for group in groups]
        begun = time.monotonic()
        for number, (group, data) in enumerate(zip(groups, encoded, strict=True), 1):
            self._apply(number, group, data)
        took = time.monotonic() - begun
        counts = " + ".join(f"(SELECT count(*) FROM {table} WHERE at = %(at)s)" for table in self.tables)
        done = self.user.execute(f"SELECT {counts}".encode(), {"at": self.version * 10}).fetchone()
        assert done == (self.rows,), done
        return self.counted() / took

    def _apply(self, number: int, group: LcrBatch, data: bytes) -> None:
        self.server.receive(
            GroupAssignment(
                group=number,
                attempt=0,
                mode=GroupMode.SETS,
                streamed=False,
                batches=(data,),
                after_scn=int(group.previous_scn),
                through_scn=int(group.through_scn),
            )
        )
        self.server.receive(GroupGo(group=number, attempt=0, low_watermark=int(group.previous_scn), below_applied=True))
        while not (reports := self.server.step(time.monotonic()).reports):
            pass
        (result,) = reports
        assert isinstance(result, GroupResult)
        assert not result.errors

    def close(self) -> None:
        self.server.close()
        self.destination.close()
        self.user.close()


def options(description: str | None, *, rows: int) -> argparse.Namespace:
    """Read the command line: `rows` and `runs`.

    Args:
        description: of the benchmark.
        rows: by default; a multiple of `GROUP`.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rows", type=int, default=rows, help=f"a multiple of {GROUP:,}")
    parser.add_argument("--runs", type=int, default=3)
    return parser.parse_args()


@contextmanager
def running_server(**settings: str) -> Iterator[EmbeddedServer]:
    """Run a private PostgreSQL for all ways.

    Args:
        settings: besides those that keep its own work out of the figures.
    """
    with running_servers(
        ("server",), {"shared_buffers": "256MB", "max_wal_size": "4GB", "autovacuum": "off", **settings}
    ) as (_, servers):
        yield servers["server"]


def compare(ways: Mapping[str, Way], *, plain: str, runs: int) -> None:
    """Run all ways alternately and print their rates.

    A rate is rows per second, the median of all runs, with its ratio to the plain rate in the same run.

    Args:
        ways: by the name to print; closed at the end.
        plain: the way to compare with.
        runs: counted runs; a warm-up precedes them.
    """
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(runs + 1):
        order = list(ways.items())
        for name, way in order if number % 2 else order[::-1]:  # so that no way always follows the same other one
            rates[name].append(way.measure())
    for name, found in rates.items():
        ratio = statistics.median(rate / of for rate, of in zip(found[1:], rates[plain][1:], strict=True))
        print(
            f"{name:36} {statistics.median(found[1:]):10,.0f} rows/s  {ratio:6.1%}  all runs:"
            f" {', '.join(f'{rate:,.0f}' for rate in found[1:])}"
        )
    for way in ways.values():
        way.close()
