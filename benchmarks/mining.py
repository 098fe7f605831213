"""Mining alone: from redo with synthetic PostgreSQL messages to LCR batches, without a server.

    python -m benchmarks.mining

Two shapes: bulk (100 rows of 8 columns per transaction) and OLTP (4 tables, one row each per transaction).
"""

from __future__ import annotations

import struct
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.databases.ports import DictionaryBuild, LogChunk, StreamOptions
from headrace.databases.postgres.source.log_stream.pgoutput import PostgresLogDecoder
from headrace.lcr.scn import FIRST_SCN, ObjectNumber, Scn
from headrace.redo.mining.miner import Miner
from headrace.redo.writing.log_writer import LogWriter
from headrace.rules.rule import Rule, RuleSet

OPTIONS = StreamOptions(
    database_kind="postgres", system_identifier="1", timeline=1, binary=False, encoding="UTF8", server_version=18
)
GULP_BYTES = 65536
RUNS = 3  # the best one counts: other load only slows a run


@dataclass(frozen=True, slots=True, kw_only=True)
class MiningFigures:
    """The results of one shape.

    Args:
        name: of the shape.
        rows: row changes.
        redo_bytes: size of the redo.
        write_rows_per_s: stream to fsynced redo.
        mine_rows_per_s: redo to batches.
        mine_rows_per_cpu_s: the same rate per second of processor time, comparable on a machine with other load.
        batches: number of batches mined.
    """

    name: str
    rows: int
    redo_bytes: int
    write_rows_per_s: float
    mine_rows_per_s: float
    mine_rows_per_cpu_s: float
    batches: int


def _frame(message: bytes) -> bytes:
    return b"d" + struct.pack(">I", len(message) + 29) + b"w" + bytes(24) + message


def _relation(number: int, columns: int) -> bytes:
    body = b"R" + struct.pack(">I", number) + b"public\0" + f"t{number}".encode() + b"\0d" + struct.pack(">H", columns)
    return body + b"".join(
        struct.pack(">B", column == 0) + f"c{column}".encode() + b"\0" + struct.pack(">Ii", 25, -1)
        for column in range(columns)
    )


def _insert(number: int, values: list[bytes]) -> bytes:
    tuple_ = b"".join(b"t" + struct.pack(">I", len(value)) + value for value in values)
    return b"I" + struct.pack(">I", number) + b"N" + struct.pack(">H", len(values)) + tuple_


def _values(row: int) -> list[bytes]:
    return [
        str(row).encode(),
        b"7",
        f"some text value {row % 100}".encode(),
        b"12.50",
        b"2026-01-01 00:00:00+00",
        b"0.5",
        f"v{row % 100}".encode(),
        b"2026-01-01",
    ]


class MadeStream:
    """A log stream of prepared messages."""

    def __init__(self, *, transactions: int, tables: int, rows_each: int, columns: int) -> None:
        self.rows = transactions * tables * rows_each
        self.chunks = self._make(transactions, tables, rows_each, columns)

    options = OPTIONS
    start_scn = FIRST_SCN

    def _make(self, transactions: int, tables: int, rows_each: int, columns: int) -> Iterator[LogChunk]:
        parts: list[bytes] = []
        size = row = 0
        objects = tuple(ObjectNumber(16384 + table) for table in range(tables))
        for number in range(transactions):
            order_scn = 1000 + number * 100
            messages = [b"B" + struct.pack(">qqI", order_scn, 0, number)]
            for table in range(tables):
                if number == 0:
                    messages.append(_relation(16384 + table, columns))
                for _ in range(rows_each):
                    messages.append(_insert(16384 + table, _values(row)[:columns]))
                    row += 1
            messages.append(b"C" + struct.pack(">Bqqq", 0, order_scn, order_scn + 50, 0))
            data = b"".join(_frame(message) for message in messages)
            parts.append(data)
            size += len(data)
            if size >= GULP_BYTES or number == transactions - 1:
                yield LogChunk(
                    data=b"".join(parts),
                    end_scn=Scn(order_scn + 50),
                    commit_scn=Scn(order_scn + 50),
                    is_open=False,
                    objects=objects,
                    commit_end=size,
                )
                parts, size, objects = [], 0, ()

    def read(self, timeout_s: float) -> LogChunk | None:  # noqa: ARG002
        return next(self.chunks, None)

    def confirm(self, scn: Scn) -> None:
        pass

    def close(self) -> None:
        pass


def write_redo(folder: Path, chunks: list[LogChunk], stream: MadeStream) -> tuple[LogWriter, float]:
    """Write a stream into redo of the site dbs1; return its writer, still open, and the seconds.

    Args:
        folder: for the redo.
        chunks: of the stream.
        stream: reads them.
    """
    stream.chunks = iter(chunks)
    writer = LogWriter(
        folder,
        "dbs1",
        decoder_factory=PostgresLogDecoder,
        dictionary_build=lambda **_: DictionaryBuild(scn=FIRST_SCN, tables=()),
        segment_bytes=64 << 20,
        redo_bytes_max=16 << 30,
    )
    writer.attach(stream)
    started = time.perf_counter()
    while writer.step(0.0):
        pass
    return writer, time.perf_counter() - started


def measure(
    name: str, *, transactions: int, tables: int, rows_each: int, columns: int, rules: RuleSet | None = None
) -> MiningFigures:
    """Write redo of one shape and mine it, `RUNS` times; the best counts."""
    stream = MadeStream(transactions=transactions, tables=tables, rows_each=rows_each, columns=columns)
    chunks = list(stream.chunks)
    write_s = mine_s = mine_cpu_s = float("inf")
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            writer, seconds = write_redo(Path(folder), chunks, stream)
            write_s = min(write_s, seconds)
            miner = Miner(Path(folder), "dbs1", FIRST_SCN, rules or RuleSet(include=(Rule(),)), PostgresLogDecoder)
            rows, batches, started, started_cpu = 0, 0, time.perf_counter(), time.process_time()
            while (batch := miner.next_batch(writer.position)) is not None:
                rows += batch.row_count
                batches += 1
            mine_s = min(mine_s, time.perf_counter() - started)
            mine_cpu_s = min(mine_cpu_s, time.process_time() - started_cpu)
            redo_bytes = writer.statistics().redo_bytes
            writer.close()
            miner.close()
            if rules is None and rows != stream.rows:
                raise AssertionError((rows, stream.rows))
    return MiningFigures(
        name=name,
        rows=stream.rows,
        redo_bytes=redo_bytes,
        write_rows_per_s=stream.rows / write_s,
        mine_rows_per_s=stream.rows / mine_s,
        mine_rows_per_cpu_s=stream.rows / mine_cpu_s,
        batches=batches,
    )


def measure_all(scale: int = 1) -> list[MiningFigures]:
    """Measure every shape; `scale` 1 takes some seconds."""
    return [
        measure("bulk", transactions=3000 * scale, tables=1, rows_each=100, columns=8),
        measure("oltp", transactions=50_000 * scale, tables=4, rows_each=1, columns=4),
        measure(
            "discarded",
            transactions=3000 * scale,
            tables=1,
            rows_each=100,
            columns=8,
            rules=RuleSet(include=(Rule(owner="crm"),)),
        ),
    ]


if __name__ == "__main__":
    for figures in measure_all():
        print(asdict(figures))
