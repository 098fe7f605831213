"""One hop through a queue over gRPC on loopback, with and without TLS: MB/s and CPU seconds per GB.

Both ends are in this process.

python -m benchmarks.hop [megabytes]
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from actors.security.authority import make_certificates
from actors.staging.queue import QueueCore
from headrace.lcr.scn import Scn
from headrace.links.ports import header_of
from protos import codec
from protos.links.queue_link import DequeueClient, EnqueueClient, QueueServer
from protos.wire import transport
from protos.wire.admission import PUBLISH, SUBSCRIBE, Admission
from protos.wire.identity import Identity, Peer
from tests.support.values.lcr_batches import insert_batch
from tests.support.wire.staging import one_way

BATCH_BYTES = 1 << 20  # size of capture's batches
CREDIT_BYTES = 16 << 20  # credit of an apply process
ROUNDS = 3  # alternating, so that both have the same neighbours


def hop(folder: Path, megabytes: int, identity: Identity | None) -> tuple[float, float]:
    """Return wall-clock and CPU seconds for the megabytes, in batches of 1 MiB, from a publisher through a queue."""
    callers = {PUBLISH: {"capture_dbs1": "dbs1"}, SUBSCRIBE: {"apply_a": "dbs1"}}
    core = QueueCore(one_way(folder, memory=64 << 20), "q_dbs1", folder / "q")
    server = QueueServer(core, admission=Admission("q_dbs1", identity, callers))
    peer = Peer(address=server.endpoint, site="dbs1", identity=identity)
    names: dict[str, Any] = {"topology": "t", "queue": "q_dbs1", "incarnation": transport.new_incarnation()}
    publisher = EnqueueClient(peer, component="capture_dbs1", source="dbs1", **names)
    subscriber = DequeueClient(peer, component="apply_a", **names)
    publisher.connect()
    subscriber.subscribe({"dbs1": Scn(0)}, CREDIT_BYTES)
    batches = [
        insert_batch([scn + 1], previous=scn, rows_each=64, value=bytes(BATCH_BYTES // 64)) for scn in range(megabytes)
    ]
    encoded = [(header_of(batch), codec.encode(batch)) for batch in batches]

    def publish() -> None:
        for header, data in encoded:
            publisher.send(header, data)

    began, cpu = time.monotonic(), time.process_time()
    sender = threading.Thread(target=publish)
    sender.start()
    for _ in range(megabytes):
        delivery = subscriber.poll(60)
        assert delivery is not None
        subscriber.grant(len(delivery.data))
        subscriber.acknowledge("dbs1", delivery.header.through_scn)
    sender.join()
    taken = time.monotonic() - began, time.process_time() - cpu
    for each in (publisher, subscriber):
        each.close()
    server.stop()
    return taken


def main() -> None:
    """Print one line per way."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_certificates(folder / "certs", "t", ["dbs1"])
        identity = Identity(
            topology="t",
            site="dbs1",
            authority=str(folder / "certs/ca.pem"),
            certificate=str(folder / "certs/dbs1.pem"),
            key=str(folder / "certs/dbs1.key"),
        )
        found: dict[str, list[tuple[float, float]]] = {"plain": [], "TLS": []}
        for number in range(ROUNDS):
            for words, each in (("plain", None), ("TLS", identity)):
                found[words].append(hop(folder / f"{words}{number}", megabytes, each))
        for words, times in found.items():
            wall, cpu = (min(column) for column in zip(*times, strict=True))
            print(
                f"{words}: {megabytes / wall:.0f} MB/s, {cpu * 1024 / megabytes:.2f} CPU seconds per GB (best of"
                f" {ROUNDS})"
            )


if __name__ == "__main__":
    main()
