"""Queues by hand: an edit swaps two propagations, or moves one to another capture process of the same source."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
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
from topology.spec import ApplySpec, PropagationSpec, QueueSpec, TopologySpec


def two_destinations(folder: Path, *, is_sibling: bool = False) -> TopologySpec:
    """dbs1 to dbs2 by to_b and to dbs3 by to_c. With `is_sibling`, to_c reads the queue of a second capture process of
    dbs1.
    """
    spec = one_way(folder, subscribers=("to_b",))
    queue = "q_also" if is_sibling else "q_dbs1"
    return dataclasses.replace(
        spec,
        sites=(*spec.sites, dataclasses.replace(spec.sites[0], name="dbs3")),
        queues=(
            *spec.queues,
            QueueSpec(name="q_dbs3", site="dbs3"),
            *([QueueSpec(name="q_also", site="dbs1")] if is_sibling else []),
        ),
        captures=(
            *spec.captures,
            *([dataclasses.replace(spec.captures[0], name="capture_also", queue="q_also")] if is_sibling else []),
        ),
        propagations=(
            *spec.propagations,
            PropagationSpec(name="to_c", from_queue=queue, to_queue="q_dbs3", sources=("dbs1",)),
        ),
        applies=tuple(
            dataclasses.replace(each, combined=False)
            for each in (*spec.applies, ApplySpec(name="apply_c", site="dbs3", source="dbs1", queue="q_dbs3"))
        ),
    )


class Network:
    """The queues of a topology, and the transfers between them. A capture process sends what its queue asks for, as far
    as its redo has it.
    """

    def __init__(self, folder: Path, topology: TopologySpec) -> None:
        self.folder, self.topology, self.clock, self.lives = folder, topology, VirtualClock(), 0
        self.queues: dict[str, QueueCore] = {}
        for queue in topology.queues:
            self.begin(queue.name)
        self.purged = 0
        self.connect()

    def begin(self, name: str) -> None:
        """Start a queue without what it held in memory."""
        self.queues[name] = QueueCore(self.topology, name, self.folder / name, self.clock)

    def connect(self) -> None:
        self.lives += 1
        life = f"{self.lives:03d}"
        self.captures = [
            (DirectEnqueue(partial(self.queues.__getitem__, each.queue), each.name, life, "dbs1"), each)
            for each in self.topology.captures
        ]
        self.sent = {spec.name: max(int(link.connect().needed_scn), 0) for link, spec in self.captures}
        self.moving = [
            PropagationCore(
                "dbs1",
                RuleSet(),
                DirectEnqueue(partial(self.queues.__getitem__, each.to_queue), each.name, life, "dbs1"),
                partial(DirectDequeue, partial(self.queues.__getitem__, each.from_queue), each.name, life),
                statistics=PropagationStatistics(),
                clock=self.clock,
            )
            for each in self.topology.propagations
        ]
        for core in self.moving:
            core.open()

    def run(self) -> None:
        for _ in range(8):
            for link, spec in self.captures:
                news = link.poll()
                if news.rewind_scn is not None:
                    self.sent[spec.name] = int(news.rewind_scn)
                if 0 < self.sent[spec.name] < self.purged:
                    link.gone(self.purged)
                    self.sent[spec.name] = self.purged
                for scn in range(self.sent[spec.name] + 10, 50, 10):
                    batch = insert_batch([scn], previous=scn - 10)
                    link.send_nowait(header_of(batch), codec.encode(batch))
                    self.sent[spec.name] = scn
            for core in self.moving:
                core.step()
            self.clock.advance(5.0)
            for queue in self.queues.values():
                if (positions := queue.positions_to_save()) is not None:
                    queue.save_positions(positions)
                    queue.positions_saved(positions, None)

    def apply(self, name: str, queue: str, *, needed: int, through: int) -> list[int]:
        """Let an apply process take everything and make it durable up to an SCN; return the SCNs that it was sent."""
        self.lives += 1
        stream = DirectDequeue(lambda: self.queues[queue], name, f"{self.lives:03d}")
        stream.subscribe({"dbs1": Scn(needed)}, 1 << 20)
        found = []
        for _ in range(4):
            while (delivery := stream.poll()) is not None:
                if delivery.header.row_count:
                    found.append(int(delivery.header.through_scn))
            self.run()
        stream.acknowledge("dbs1", through)
        return found

    def edit(self, topology: TopologySpec) -> None:
        """Queues adopt the topology while they run, or restart with it."""
        self.topology = topology
        for core in self.moving:
            core.close()
        for queue in self.queues.values():
            queue.adopt(topology)
        self.connect()


def exchanged(topology: TopologySpec) -> TopologySpec:
    """The two propagations swap names; that of dbs2, which is behind, connects first."""
    one, two = topology.propagations
    return dataclasses.replace(
        topology, propagations=(dataclasses.replace(one, name=two.name), dataclasses.replace(two, name=one.name))
    )


def exchanged_other_first(topology: TopologySpec) -> TopologySpec:
    """The two propagations swap names; that of dbs3, which is up to date, connects first."""
    return dataclasses.replace(topology, propagations=exchanged(topology).propagations[::-1])


def from_the_other(topology: TopologySpec) -> TopologySpec:
    """dbs2 gets its changes from the second capture process."""
    one, two = topology.propagations
    return dataclasses.replace(topology, propagations=(dataclasses.replace(one, from_queue="q_also"), two))


@pytest.mark.parametrize(
    ("edit", "is_purged", "is_refused"),
    [
        (exchanged, False, False),
        (exchanged_other_first, False, False),
        (from_the_other, False, False),
        (exchanged, True, False),
        (exchanged_other_first, True, False),
        (from_the_other, True, True),
    ],
)
def test_lagging_destination_gets_its_changes_exactly_once_or_is_refused(
    tmp_path: Path,
    edit: Callable[[TopologySpec], TopologySpec],
    *,
    is_purged: bool,
    is_refused: bool,
) -> None:
    """A queue stores positions by name, and a name can now mean another site, so each destination reports its own
    position.

    `up` refuses such an edit (`topology.edits.overtaken`).
    """
    network = Network(tmp_path, two_destinations(tmp_path, is_sibling=edit is from_the_other))
    network.run()
    assert network.apply("apply_c", "q_dbs3", needed=0, through=40) == [10, 20, 30, 40]
    assert network.apply("apply_far", "q_dbs2", needed=0, through=20) == [10, 20, 30, 40]
    network.run()
    if is_purged:
        network.purged = 40
    network.begin("q_dbs2")  # 30 and 40 are lost with that queue
    network.edit(edit(network.topology))
    network.run()
    if is_refused:
        with pytest.raises(LogGone, match="apply_far needs the changes of dbs1 after SCN"):
            network.apply("apply_far", "q_dbs2", needed=20, through=20)
    else:
        assert network.apply("apply_far", "q_dbs2", needed=20, through=40) == [30, 40]
    assert network.apply("apply_c", "q_dbs3", needed=40, through=40) == []
