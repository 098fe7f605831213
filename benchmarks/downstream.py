"""Cost of capture at the source's site: local against downstream, in seconds of processor time, without a server.

    python -m benchmarks.downstream

Synthetic PostgreSQL messages, as in `benchmarks.mining`, are written as redo. Then the redo is either mined, filtered
by rules and encoded here (local capture, as far as the queue), or sent over gRPC on loopback to a redo receiver in
another process (downstream). The log writer's time is the same for both. Runs alternate; the best of each counts.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.mining import RUNS, MadeStream, write_redo
from headrace.databases.postgres.source.log_stream.pgoutput import PostgresLogDecoder
from headrace.lcr.scn import FIRST_SCN
from headrace.links.ports import RedoPosition
from headrace.redo.mining.miner import Miner
from headrace.redo.standby.standby_log import StandbyLog
from headrace.redo.writing.log_writer import LogWriter
from headrace.rules.rule import Rule, RuleSet
from protos.codec import encode
from protos.links.redo_link import RedoServer
from protos.links.redo_transport import RedoShippingClient
from protos.wire.transport import new_incarnation

SHAPES = {
    "bulk": {"transactions": 3000, "tables": 1, "rows_each": 100, "columns": 8},
    "small transactions": {"transactions": 50_000, "tables": 4, "rows_each": 1, "columns": 4},
}
RECEIVER = "dbs1@dbs3"


def _receive(pipe: Connection, address: str, folder: Path, until: RedoPosition) -> None:
    """Run a redo receiver; send back the processor time it used."""
    log = StandbyLog(folder, "dbs1", redo_bytes_max=16 << 30)
    client = RedoShippingClient(
        address, topology="bench", receiver=RECEIVER, source="dbs1", incarnation=new_incarnation()
    )
    began = time.process_time()
    client.connect(log.place)
    while log.position < until:
        taken = 0
        while taken < 8 << 20 and (frame := client.take_nowait()) is not None:
            log.take(frame)
            taken += len(frame.data)
        if taken:
            log.sync()
            client.acknowledge(log.place)
            client.grant(taken)
        else:
            time.sleep(0.001)
    pipe.send(time.process_time() - began)
    client.close()
    log.close()


def _mine(writer: LogWriter, folder: Path) -> float:
    began = time.process_time()
    miner = Miner(folder, "dbs1", FIRST_SCN, RuleSet(include=(Rule(owner="*"),)), PostgresLogDecoder)
    while (batch := miner.next_batch(writer.position)) is not None:
        encode(batch)
    miner.close()
    return time.process_time() - began


def _ship(writer: LogWriter, folder: Path) -> tuple[float, float]:
    """Return processor time here and at the receiver."""
    writer.shipping.register({RECEIVER: False})
    server = RedoServer("bench", "dbs1", writer, shipper=writer.shipping)
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_receive, args=(there, server.endpoint, folder, writer.position))
    began = time.process_time()
    process.start()
    received_s: float = here.recv()
    used_s = time.process_time() - began
    process.join()
    server.stop()
    return used_s, received_s


def main() -> int:
    for name, shape in SHAPES.items():
        stream = MadeStream(**shape)
        chunks = list(stream.chunks)
        found: dict[str, float] = {}
        redo_bytes = 0
        for _ in range(RUNS):
            with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
                redo, began = Path(folder) / "redo", time.process_time()
                writer, _seconds = write_redo(redo, chunks, stream)
                times = {"log writer": time.process_time() - began, "mining and encoding": _mine(writer, redo)}
                times["shipping"], times["receiver"] = _ship(writer, Path(folder) / "standby")
                redo_bytes = writer.statistics().redo_bytes
                writer.close()
            found = {key: min(value, found.get(key, value)) for key, value in times.items()}
        local = found["log writer"] + found["mining and encoding"]
        downstream = found["log writer"] + found["shipping"]
        parts = ", ".join(f"{key} {value:.2f}" for key, value in found.items())
        sys.stdout.write(
            f"{name}: {stream.rows} rows, {redo_bytes >> 20} MB of redo; processor seconds at the source's site: local"
            f" {local:.2f}, downstream {downstream:.2f} ({parts})\n"
        )
    return 0


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    sys.exit(main())
