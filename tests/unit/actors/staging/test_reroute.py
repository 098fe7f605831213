"""Three queues by hand: an edit moves a destination behind a hub that is ahead of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from actors.staging.propagation import PropagationCore, PropagationStatistics
from actors.staging.queue import QueueCore
from headrace.base.clock import VirtualClock
from headrace.base.errors import LogGone
from headrace.lcr.scn import Scn
from headrace.links.ports import header_of
from headrace.rules.rule import RuleSet
from protos import codec
from tests.support.values.lcr_batches import insert_batch
from tests.support.wire.staging import DirectDequeue, DirectEnqueue, one_way
from topology.spec import ApplySpec, PropagationSpec, TopologySpec


class Chain:
    """The queues of dbs1, the hub and dbs2, and the transfers between them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.lives = folder, VirtualClock(), 0
        spec = one_way(folder, subscribers=("to_b",))
        self.topology = dataclasses.replace(
            spec,
            sites=(*spec.sites, dataclasses.replace(spec.sites[0], name="hub")),
            queues=(*spec.queues, dataclasses.replace(spec.queues[0], name="q_hub", site="hub")),
            propagations=(
                PropagationSpec(name="to_hub", from_queue="q_dbs1", to_queue="q_hub", sources=("dbs1",)),
                *spec.propagations,
            ),
            applies=(
                *(dataclasses.replace(each, combined=False) for each in spec.applies),
                ApplySpec(name="apply_hub", site="hub", source="dbs1", queue="q_hub", combined=False),
            ),
        )
        self.queues: dict[str, QueueCore] = {}
        for name in ("q_dbs1", "q_hub", "q_dbs2"):
            self.begin(name)
        self.moving: dict[str, PropagationCore] = {}
        self.connect()

    def begin(self, name: str) -> None:
        self.queues[name] = QueueCore(self.topology, name, self.folder / name, self.clock)

    def connect(self) -> None:
        """Reconnect everything."""
        self.lives += 1
        life = f"{self.lives:03d}"
        self.capture = DirectEnqueue(lambda: self.queues["q_dbs1"], "capture_dbs1", life, "dbs1")
        self.needed = self.capture.connect().needed_scn
        for core in self.moving.values():
            core.close()
        self.moving = {each.name: self.mover(each, life) for each in self.topology.propagations}
        for core in self.moving.values():
            core.open()

    def mover(self, spec: PropagationSpec, life: str) -> PropagationCore:
        return PropagationCore(
            "dbs1",
            RuleSet(),
            DirectEnqueue(lambda: self.queues[spec.to_queue], spec.name, life, "dbs1"),
            lambda: DirectDequeue(lambda: self.queues[spec.from_queue], spec.name, life),
            statistics=PropagationStatistics(),
            clock=self.clock,
        )

    def apply(self, name: str, queue: str, *, needed: int, through: int) -> None:
        """Let an apply process take everything, and make it durable up to an SCN."""
        self.lives += 1
        stream = DirectDequeue(lambda: self.queues[queue], name, f"{self.lives:03d}")
        stream.subscribe({"dbs1": Scn(needed)}, 1 << 20)
        while stream.poll() is not None:
            pass
        stream.acknowledge("dbs1", through)

    def move(self) -> None:
        for _ in range(6):
            for core in self.moving.values():
                core.step()

    def save(self) -> None:
        self.clock.advance(5.0)
        for core in self.queues.values():
            if (positions := core.positions_to_save()) is not None:
                core.save_positions(positions)
                core.positions_saved(positions, None)

    def adopt(self, topology: TopologySpec) -> None:
        self.topology = topology
        for core in self.queues.values():
            core.adopt(topology)


def test_destination_rerouted_behind_a_hub_ahead_without_redo_is_refused(
    tmp_path: Path,
) -> None:
    """Only its own queue had the missing changes in memory, and lost them when it died.

    It must not continue behind a gap.
    """
    chain = Chain(tmp_path)
    for scn in (10, 20, 30, 40):
        batch = insert_batch([scn], previous=scn - 10)
        chain.capture.send_nowait(header_of(batch), codec.encode(batch))
    chain.move()
    chain.apply("apply_hub", "q_hub", needed=0, through=40)
    chain.apply("apply_far", "q_dbs2", needed=0, through=20)
    chain.move()
    chain.save()
    chain.move()
    to_hub, to_b = chain.topology.propagations
    chain.adopt(
        dataclasses.replace(
            chain.topology, propagations=(to_hub, dataclasses.replace(to_b, name="from_hub", from_queue="q_hub"))
        )
    )
    chain.connect()
    chain.move()
    chain.save()
    chain.move()
    purged = chain.queues["q_dbs1"].status().sources["dbs1"].durable_scn
    assert purged == 40
    chain.begin("q_dbs2")
    chain.connect()
    chain.move()
    assert chain.capture.poll().rewind_scn == 20 or chain.needed == 20
    chain.capture.gone(purged)
    chain.move()
    assert {each.subscriber: each.gone_scn for each in chain.queues["q_dbs2"].status().subscribers} == {"apply_far": 40}
    with pytest.raises(LogGone, match="apply_far needs the changes of dbs1 after SCN"):
        chain.apply("apply_far", "q_dbs2", needed=20, through=20)
    assert {each.subscriber: each.gone_scn for each in chain.queues["q_hub"].status().subscribers}["apply_hub"] is None
