"""The buffered queue by hand: a subscriber that replaces another one with an edit begins at its position."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from actors.staging.positions import PositionsFile
from actors.staging.queue import QueueCore
from actors.staging.queue_host import QueueHost
from actors.staging.queue_sessions import SubscriberSession
from actors.staging.subscribers import forget_former_subscribers
from headrace.lcr.scn import Scn
from tests.support.values.lcr_batches import insert_batch
from tests.support.wire.queues import Queue
from tests.support.wire.staging import one_way
from topology.edits.changes import changes
from topology.spec import PropagationSpec, SiteSpec, TopologySpec


def saved(queue: Queue) -> dict[str, Scn]:
    return PositionsFile(queue.folder / "q").load()["dbs1"]


def with_one_behind(queue: Queue, name: str) -> SubscriberSession:
    """Of the changes up to 30, `apply_a` has acknowledged everything, and the other subscriber those up to 20."""
    publisher, first, second = queue.publisher(), queue.subscriber(), queue.subscriber(name)
    for scn in (10, 20, 30):
        queue.send(publisher, insert_batch([scn], previous=scn - 10))
    queue.taken(first), queue.taken(second)
    queue.core.acknowledge(first, "dbs1", 30)
    queue.core.acknowledge(second, "dbs1", 20)
    queue.save()
    return second


@pytest.mark.parametrize("is_running", [True, False])
def test_renamed_propagation_begins_at_its_former_position(tmp_path: Path, is_running: bool) -> None:
    """The queue behind it is the same and needs the rest; a new name is a new subscriber."""
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"))
    with_one_behind(queue, "to_b")
    if is_running:
        queue.adopt("apply_a", "to_b2")
    else:
        queue.restart("apply_a", "to_b2")
    assert saved(queue) == {"apply_a": 30, "to_b2": 20}
    assert queue.core.status().sources["dbs1"].durable_scn == 20
    if is_running:
        assert queue.spans(queue.subscriber("to_b2", needed=20)) == [(20, 30)]


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("is_direct", [True, False])
def test_begin_or_end_of_direct_dequeuing_keeps_the_position(tmp_path: Path, is_running: bool, is_direct: bool) -> None:
    """Direct dequeuing begins or ends: what one of the two had not acknowledged, the other one needs."""
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"))

    def switch(spec: TopologySpec, *, to_direct: bool) -> TopologySpec:
        return dataclasses.replace(
            spec,
            applies=tuple(
                dataclasses.replace(each, combined=to_direct) if each.name == "apply_far" else each
                for each in spec.applies
            ),
        )

    before, after = (switch(queue.topology, to_direct=each) for each in (not is_direct, is_direct))
    was, becomes = ("to_b", "apply_far") if is_direct else ("apply_far", "to_b")
    queue.core = QueueCore(before, "q_dbs1", queue.folder / "q", queue.clock)
    second = with_one_behind(queue, was)
    if is_running:
        queue.core.adopt(after)
        assert second.ended is not None
    else:
        queue.core = QueueCore(after, "q_dbs1", queue.folder / "q", queue.clock)
    assert saved(queue) == {"apply_a": 30, becomes: 20}
    assert queue.core.status().sources["dbs1"].durable_scn == 20
    if is_running:
        assert queue.spans(queue.subscriber(becomes, needed=20)) == [(20, 30)]


@pytest.mark.parametrize("edits", [1, 2])
@pytest.mark.parametrize("becomes", ["to_b", "to_b2"])
def test_renamed_queue_behind_a_renamed_propagation_is_the_same_place(tmp_path: Path, edits: int, becomes: str) -> None:
    """The apply process behind it continues from its position, whether the edit that ends direct dequeuing is the same
    or a later one.
    """
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"))
    before = _direct(queue.topology, is_direct=True)
    queue.core = QueueCore(before, "q_dbs1", queue.folder / "q", queue.clock)
    with_one_behind(queue, "apply_far")
    renamed = dataclasses.replace(
        before,
        queues=(before.queues[0], dataclasses.replace(before.queues[1], name="q_new")),
        propagations=tuple(dataclasses.replace(each, name=becomes, to_queue="q_new") for each in before.propagations),
        applies=tuple(
            dataclasses.replace(each, queue="q_new") if each.name == "apply_far" else each for each in before.applies
        ),
    )
    if edits == 2 and any(
        each.action != "same" for each in changes(before, renamed) if each.component == "queue:q_dbs1"
    ):
        queue.core.adopt(renamed)
    queue.core.adopt(_direct(renamed, is_direct=False))
    assert saved(queue) == {"apply_a": 30, becomes: 20}


@pytest.mark.parametrize("meanwhile", ["runs", "is stopped", "is killed"])
@pytest.mark.parametrize("ends", [True, False])
def test_destination_that_moves_behind_a_hub_or_back_misses_nothing(
    tmp_path: Path, *, ends: bool, meanwhile: str
) -> None:
    """It continues from its position: the leaving propagation has acknowledged nothing beyond it."""
    straight = _direct(one_way(tmp_path, subscribers=("apply_a", "to_b")), is_direct=False)
    over_hub = _over_hub(tmp_path)
    (before, was), (after, becomes) = (
        ((over_hub, "to_hub"), (straight, "to_b")) if ends else ((straight, "to_b"), (over_hub, "to_hub"))
    )
    assert [each.action for each in changes(before, after) if each.component == "queue:q_dbs1"] == ["takes over"]
    queue = Queue(tmp_path)
    queue.core = QueueCore(before, "q_dbs1", queue.folder / "q", queue.clock)
    with_one_behind(queue, was)
    _take(queue, after, meanwhile)
    assert saved(queue) == {"apply_a": 30, becomes: 20}


@pytest.mark.parametrize("meanwhile", ["runs", "is stopped", "is killed"])
def test_destination_that_leaves_a_hub_misses_nothing(tmp_path: Path, *, meanwhile: str) -> None:
    """The propagation to the hub now waits for the hub alone.

    A queue that is killed before it adopts the edit restarts with the new topology.
    """
    before, queue = _over_hub(tmp_path), Queue(tmp_path)
    queue.core = QueueCore(before, "q_dbs1", queue.folder / "q", queue.clock)
    with_one_behind(queue, "to_hub")
    _take(queue, _beside_hub(before), meanwhile)
    assert saved(queue) == {"apply_a": 30, "to_hub": 20, "to_b": 20}


@pytest.mark.parametrize("meanwhile", ["runs", "is stopped", "is killed"])
def test_destination_that_gets_one_of_two_sources_directly_misses_nothing(tmp_path: Path, *, meanwhile: str) -> None:
    """The propagation to the hub brings changes to the same sites as before, but no longer those of each source."""
    spec = one_way(tmp_path, subscribers=("apply_a",), also=("dbs3",))
    both = ("dbs1", "dbs3")
    before = _direct(
        dataclasses.replace(
            spec,
            sites=(*spec.sites, dataclasses.replace(spec.sites[0], name="hub")),
            queues=(*spec.queues, dataclasses.replace(spec.queues[0], name="q_hub", site="hub")),
            propagations=(
                PropagationSpec(name="to_hub", from_queue="q_dbs1", to_queue="q_hub", sources=both),
                PropagationSpec(name="from_hub", from_queue="q_hub", to_queue="q_dbs2", sources=both),
            ),
        ),
        is_direct=False,
    )
    to_hub, from_hub = before.propagations
    after = dataclasses.replace(
        before,
        propagations=(
            to_hub,
            dataclasses.replace(from_hub, sources=("dbs3",)),
            PropagationSpec(name="to_b", from_queue="q_dbs1", to_queue="q_dbs2", sources=("dbs1",)),
        ),
    )
    queue = Queue(tmp_path)
    queue.core = QueueCore(before, "q_dbs1", queue.folder / "q", queue.clock)
    with_one_behind(queue, "to_hub")
    _take(queue, after, meanwhile)
    assert saved(queue) == {"apply_a": 30, "to_hub": 20, "to_b": 20}


def test_queue_killed_before_it_adopts_an_edit_knows_the_former_places(
    tmp_path: Path,
) -> None:
    """The topology of its stop is in its file: its process knows only later edits."""
    before, queue = _over_hub(tmp_path), Queue(tmp_path)
    queue.core = QueueCore(before, "q_dbs1", queue.folder / "q", queue.clock)
    with_one_behind(queue, "to_hub")
    after = _beside_hub(before)
    later = dataclasses.replace(
        after,
        propagations=tuple(
            dataclasses.replace(each, name="to_b2") if each.name == "to_b" else each for each in after.propagations
        ),
    )
    forget_former_subscribers(later, "q_dbs1", queue.folder / "q")
    assert saved(queue) == {"apply_a": 30, "to_hub": 20, "to_b2": 20}


def test_killed_queue_holds_nothing_for_a_new_subscriber_elsewhere(tmp_path: Path) -> None:
    """It knows where both subscribers bring the changes, as a running queue does."""
    straight = _direct(one_way(tmp_path, subscribers=("apply_a", "to_b")), is_direct=False)
    queue = Queue(tmp_path)
    queue.core = QueueCore(straight, "q_dbs1", queue.folder / "q", queue.clock)
    with_one_behind(queue, "to_b")
    _take(
        queue,
        dataclasses.replace(
            straight,
            sites=(*straight.sites, dataclasses.replace(straight.sites[0], name="dbs3")),
            queues=(*straight.queues, dataclasses.replace(straight.queues[0], name="q_dbs3", site="dbs3")),
            propagations=(PropagationSpec(name="to_c", from_queue="q_dbs1", to_queue="q_dbs3", sources=("dbs1",)),),
        ),
        "is killed",
    )
    assert saved(queue) == {"apply_a": 30, "to_c": 30}


def _take(queue: Queue, topology: TopologySpec, meanwhile: str) -> None:
    """Let a queue that runs, or that is stopped or killed during an edit, adopt another topology."""
    if meanwhile == "runs":
        queue.core.adopt(topology)
    elif meanwhile == "is stopped":
        forget_former_subscribers(topology, "q_dbs1", queue.folder / "q")
    else:
        queue.core = QueueCore(topology, "q_dbs1", queue.folder / "q", queue.clock)


def _beside_hub(over_hub: TopologySpec) -> TopologySpec:
    """From dbs1 to the hub, and directly to dbs2."""
    to_hub, from_hub = over_hub.propagations
    return dataclasses.replace(
        over_hub, propagations=(to_hub, dataclasses.replace(from_hub, name="to_b", from_queue="q_dbs1"))
    )


def _over_hub(folder: Path) -> TopologySpec:
    """From dbs1 by way of a hub to dbs2."""
    straight = _direct(one_way(folder, subscribers=("apply_a", "to_b")), is_direct=False)
    return dataclasses.replace(
        straight,
        sites=(*straight.sites, dataclasses.replace(straight.sites[0], name="hub")),
        queues=(*straight.queues, dataclasses.replace(straight.queues[0], name="q_hub", site="hub")),
        propagations=(
            PropagationSpec(name="to_hub", from_queue="q_dbs1", to_queue="q_hub", sources=("dbs1",)),
            PropagationSpec(name="from_hub", from_queue="q_hub", to_queue="q_dbs2", sources=("dbs1",)),
        ),
    )


def test_queue_adopts_an_edit_that_changes_a_destination_far_behind_it(tmp_path: Path) -> None:
    """Otherwise it would not know, at a later edit, whose place a subscriber had."""
    before = _direct(one_way(tmp_path, subscribers=("apply_a", "to_b")), is_direct=False)
    beyond = dataclasses.replace(
        before,
        sites=(*before.sites, dataclasses.replace(before.sites[0], name="dbs3")),
        queues=(*before.queues, dataclasses.replace(before.queues[0], name="q_dbs3", site="dbs3")),
        propagations=(
            *before.propagations,
            PropagationSpec(name="on", from_queue="q_dbs2", to_queue="q_dbs3", sources=("dbs1",)),
        ),
    )
    assert [each.action for each in changes(before, beyond) if each.component == "queue:q_dbs1"] == ["takes over"]


def test_queue_adopts_an_edit_that_moves_a_subscribers_target(tmp_path: Path) -> None:
    """Otherwise it would later take this subscriber's successor for one of another place."""
    before = one_way(tmp_path, subscribers=("apply_a", "to_b"))
    before = _direct(
        dataclasses.replace(before, queues=(*before.queues, dataclasses.replace(before.queues[0], name="q_here"))),
        is_direct=False,
    )
    after = dataclasses.replace(
        before, propagations=tuple(dataclasses.replace(each, to_queue="q_here") for each in before.propagations)
    )
    assert [each.action for each in changes(before, after) if each.component == "queue:q_dbs1"] == ["takes over"]


def test_subscriber_elsewhere_holds_nothing_that_a_dead_one_lacked(tmp_path: Path) -> None:
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"))
    publisher, first = queue.publisher(), queue.subscriber()
    queue.send(publisher, insert_batch([10]))
    queue.taken(first)
    queue.core.acknowledge(first, "dbs1", 10)
    other = one_way(tmp_path, subscribers=("apply_a", "to_c"))
    elsewhere = SiteSpec(name="dbs3", database=other.sites[0].database)
    queue.core.adopt(
        dataclasses.replace(
            other,
            sites=(*other.sites, elsewhere),
            queues=(*other.queues, dataclasses.replace(other.queues[1], name="q_elsewhere", site="dbs3")),
            propagations=tuple(
                dataclasses.replace(each, to_queue="q_elsewhere") if each.name == "to_c" else each
                for each in other.propagations
            ),
        )
    )
    assert saved(queue) == {"apply_a": 10, "to_c": 10}
    assert queue.core.status().batches == 0


@pytest.mark.parametrize("becomes", ["to_b2", "apply_far"])
def test_stopped_queue_gives_a_successor_its_predecessors_position(tmp_path: Path, becomes: str) -> None:
    """A propagation is renamed, or direct dequeuing begins; another destination is far ahead."""
    before = _direct(one_way(tmp_path, subscribers=("apply_a", "to_b")), is_direct=False)
    after = (
        _direct(before, is_direct=True)
        if becomes == "apply_far"
        else _direct(one_way(tmp_path, subscribers=("apply_a", "to_b2")), is_direct=False)
    )
    host = QueueHost(before, "q_dbs1", "1")
    folder = tmp_path / "sites" / "dbs1" / "queues" / "q_dbs1"
    PositionsFile(folder).save({"dbs1": {"apply_a": Scn(90), "to_b": Scn(40)}})
    host.adopt(after, "2")
    core = QueueCore(after, "q_dbs1", folder)
    assert {each.subscriber: each.acknowledged_scn for each in core.status().subscribers} == {
        "apply_a": 90,
        becomes: 40,
    }
    assert core.status().sources["dbs1"].durable_scn == 40


def _direct(spec: TopologySpec, *, is_direct: bool) -> TopologySpec:
    return dataclasses.replace(
        spec,
        applies=tuple(
            dataclasses.replace(each, combined=is_direct) if each.name == "apply_far" else each for each in spec.applies
        ),
    )
