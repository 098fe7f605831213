"""Store-and-forward over real connections: lines that are closed or broken retain no log at their sources, and every
path resumes.

Many to many in one process: two sources with redo logs and miners, buffered queues on gRPC, four propagations through
proxies, and two sites that take the changes of both. The databases are in memory; no Ray, no Spark.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from actors.staging.propagation_host import PropagationHost
from actors.staging.queue_host import QueueHost
from headrace.base.errors import HeadraceError
from headrace.databases.memory.source import MemorySource
from headrace.faults.proxy import Proxy
from headrace.lcr.scn import Scn
from headrace.links.ports import header_of
from headrace.redo.mining.miner import Miner
from headrace.redo.writing.log_writer import LogWriter
from headrace.rules.rule import RuleSet
from headrace.status.queues import QueueStatus
from protos import codec
from protos.links.queue_link import DequeueClient, EnqueueClient
from protos.wire import transport
from tests.support.actors.statuses import status_of
from tests.support.clusters.system import wait_until
from tests.support.redo.redo_logs import decoder, drain
from tests.support.session.matrices import values
from tests.support.wire.links import begun, loopback
from tests.support.wire.staging import Subscriber
from topology.schedule import Schedule, Window
from topology.spec import ApplySpec, CaptureSpec, DatabaseSpec, PropagationSpec, QueueSpec, SiteSpec, TopologySpec

pytestmark = [pytest.mark.slow, pytest.mark.long]

SOURCES, DESTINATIONS = ("dbs1", "dbs2"), ("dbs3", "dbs4")
HOURLY = Schedule(windows=(Window(hour=None, minute=50, duration_s=600),))
FULL_HOUR_US = 1_700_000_000_000_000 // 3_600_000_000 * 3_600_000_000
ROWS = 2_000
WAIT_S = 90.0  # each wait takes a second or two; a busy machine takes longer


class WallClock:
    """A wall clock that the test sets; seconds pass at their usual speed."""

    def __init__(self) -> None:
        self.minute = 0

    def time_us(self) -> int:
        return FULL_HOUR_US + self.minute * 60_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class Source:
    """A database in memory with its redo log. The log writer runs on the test's thread; miners read what is durable."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name, self.source = folder, name, MemorySource()
        self.source.create_table("public.news", ["id", "line"], key=["id"])
        self.writer = LogWriter(
            folder,
            name,
            decoder_factory=decoder,
            dictionary_build=self.source.dictionary_build,
            segment_bytes=1 << 18,
            redo_bytes_max=1 << 30,
        )
        drain(self.writer, self.source)

    def write(self, first: int) -> None:
        """Write a round of changes; they are in the redo log on return."""
        with self.source.transaction(None) as transaction:
            for number in range(first, first + ROWS):
                transaction.insert("public.news", id=str(number), line=f"{number:032d}" * 10)
        self.source.write_marker(b"written")
        drain(self.writer, self.source)

    def miner(self, start: Scn) -> Miner:
        return Miner(self.folder, self.name, start, RuleSet(), decoder)

    def kept_bytes(self) -> int:
        """Return the bytes of log that the database keeps because they are not known to be durable elsewhere."""
        return int(self.source.current_scn() - self.source.confirmed_scn)


def topology(folder: Path) -> TopologySpec:
    database = DatabaseSpec(kind="none")
    ways = [(source, destination) for source in SOURCES for destination in DESTINATIONS]
    return TopologySpec(
        name="t",
        file=folder / "t.yaml",
        state_dir=folder,
        sites=tuple(SiteSpec(name=site, database=database) for site in SOURCES + DESTINATIONS),
        queues=tuple(
            QueueSpec(name=f"q_{site}", site=site, memory_bytes_max=1 << 18) for site in SOURCES + DESTINATIONS
        ),
        captures=tuple(
            CaptureSpec(name=f"capture_{s}", site=s, source=s, queue=f"q_{s}", rules=RuleSet()) for s in SOURCES
        ),
        propagations=tuple(
            PropagationSpec(
                name=f"{s}_to_{d}",
                from_queue=f"q_{s}",
                to_queue=f"q_{d}",
                sources=(s,),
                compression="zstd",
                schedule=HOURLY if d == "dbs3" else None,
            )
            for s, d in ways
        ),
        applies=tuple(ApplySpec(name=f"apply_{s}_at_{d}", site=d, source=s, queue=f"q_{d}") for s, d in ways),
    )


class World:
    """All components but the databases. Each component without a host is a thread that restarts after an error, as
    hosts do.
    """

    def __init__(self, spec: TopologySpec, folder: Path, sites: dict[str, Source]) -> None:
        self.clock, self.stop, self.sites = WallClock(), threading.Event(), sites
        self.problems: list[BaseException] = []
        self.queues = {queue.name: begun(QueueHost(spec, queue.name, "", loopback())) for queue in spec.queues}
        self.proxies = {d: Proxy(self.queues[f"q_{d}"].endpoint()) for d in DESTINATIONS}
        self.propagations = {each.name: self.propagation(spec, each) for each in spec.propagations}
        self.models = {(each.source, each.site): Subscriber() for each in spec.applies}
        self.threads = [self.endless(lambda e=each: self.apply(e)) for each in spec.applies]
        self.threads += [self.endless(lambda s=source: self.capture(s)) for source in SOURCES]
        for propagation in self.propagations.values():
            propagation.start()
        for thread in self.threads:
            thread.start()

    def propagation(self, topology: TopologySpec, spec: PropagationSpec) -> PropagationHost:
        """Start a propagation that reads its queue directly and reaches the other queue over the line."""
        proxy = self.proxies[spec.to_queue.removeprefix("q_")]

        def resolve(name: str) -> str:
            return (
                proxy.endpoint
                if name == f"queue:{spec.to_queue}"
                else self.queues[name.removeprefix("queue:")].endpoint()
            )

        return PropagationHost(topology, spec.name, "", loopback(resolve), clock=self.clock)

    def endless(self, work: Callable[..., None]) -> threading.Thread:
        def run() -> None:
            while not self.stop.is_set():
                try:
                    with suppress(HeadraceError):
                        work()
                except BaseException as error:
                    self.problems.append(error)
                    raise
                self.stop.wait(0.1)

        return threading.Thread(target=run, daemon=True)

    def capture(self, source: str) -> None:
        """Mine and send what is written; purge redo behind what is durable, as the site does."""
        site = self.sites[source]
        client = EnqueueClient(
            self.queues[f"q_{source}"].endpoint(),
            topology="t",
            component=f"capture_{source}",
            queue=f"q_{source}",
            incarnation=transport.new_incarnation(),
            source=source,
        )
        try:
            miner: Miner = site.miner(client.connect().needed_scn)
            while not self.stop.is_set():
                assert client.poll().rewind_scn is None, "the redo is needed again"
                batch = miner.next_batch(site.writer.position)
                if batch is None:
                    self.stop.wait(0.05)
                else:
                    client.send(header_of(batch), codec.encode(batch), timeout_s=WAIT_S)
        finally:
            client.close()

    def apply(self, spec: ApplySpec) -> None:
        model = self.models[spec.source, spec.site]
        client = DequeueClient(
            self.queues[spec.queue].endpoint(),
            topology="t",
            component=spec.name,
            queue=spec.queue,
            incarnation=transport.new_incarnation(),
        )
        try:
            client.subscribe({spec.source: Scn(model.crash())}, 1 << 22)
            while not self.stop.is_set():
                delivery = client.poll(0.1)
                if delivery is not None:
                    client.grant(len(delivery.data))
                    model.take(delivery.header, delivery.data)
                    model.commit()
                    client.acknowledge(spec.source, model.durable)
        finally:
            client.close()

    def close(self) -> None:
        self.stop.set()
        for propagation in self.propagations.values():
            assert propagation.status().state != "ABORTED", propagation.status()
            assert propagation.end()
        for thread in self.threads:
            thread.join(20)
        for proxy in self.proxies.values():
            proxy.close()
        for queue in self.queues.values():
            assert queue.end()
        assert not self.problems


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    sites = {name: Source(tmp_path / name, name) for name in SOURCES}
    made = World(topology(tmp_path), tmp_path, sites)
    yield made
    made.close()
    for site in sites.values():
        site.writer.close()


@pytest.mark.parametrize("rounds", values((2, 3), 2))
def test_closed_or_broken_lines_retain_no_log_and_lose_no_change(world: World, rounds: int) -> None:
    """dbs3 has windows, and is unreachable between them; dbs4 is always open, and its line breaks."""
    ends: dict[str, int] = {}

    def rows(source: str, destination: str) -> int:
        return sum(world.models[source, destination].rows_of.values())

    wait_until(
        "the ways to dbs3 are closed",
        lambda: all(world.propagations[f"{s}_to_dbs3"].status().state == "CLOSED" for s in SOURCES),
        WAIT_S,
    )
    world.proxies["dbs3"].cut()
    for turn in range(rounds):
        world.clock.minute = 60 * turn
        if turn:
            world.proxies["dbs3"].cut()
            world.proxies["dbs4"].reset()
        for source, site in world.sites.items():
            site.write(turn * ROWS)
            ends[source] = (turn + 1) * ROWS
        for source, site in world.sites.items():
            assert site.kept_bytes() < 1000, "the source keeps its log for a destination"
            wait_until(f"dbs4 has all of {source}", lambda source=source: rows(source, "dbs4") == ends[source], WAIT_S)
            assert rows(source, "dbs3") == turn * ROWS, "a closed line carried changes"
            status = status_of(world.queues[f"q_{source}"], QueueStatus)
            assert status.state == "ENABLED"
            assert status.rows >= ROWS, "the queue does not keep what dbs3 lacks"
            assert status.spill_bytes > 0
        world.proxies["dbs3"].heal()
        world.clock.minute = 60 * turn + 55
        for source in SOURCES:
            wait_until(f"dbs3 has all of {source}", lambda source=source: rows(source, "dbs3") == ends[source], WAIT_S)
            wait_until(
                "the queue is empty",
                lambda source=source: status_of(world.queues[f"q_{source}"], QueueStatus).rows == 0,
                WAIT_S,
            )
        world.clock.minute = 60 * turn + 60
        wait_until(
            "it is closed again",
            lambda: all(world.propagations[f"{s}_to_dbs3"].status().state == "CLOSED" for s in SOURCES),
            WAIT_S,
        )
    for model in world.models.values():
        assert sum(model.rows_of.values()) == rounds * ROWS
    assert world.proxies["dbs4"].accepted > 2, "its line never broke"
