"""Two lives of one queue at once: its site, which has no database, was restarted on a spare machine, and the abandoned
machine keeps running.

Locks of components are local to a machine, and no database decides between the two. The spare machine has none of the
other one's files. New connections reach the newer life, because Ray's name points to it; streams into and out of the
older one remain until they break. The older life's propagation keeps running, too, and can reconnect before Ray ends
it. The machines' clocks can disagree, so that its incarnation is the greater one. In every history the destination sees
every transaction once and in order, and the source purges nothing that is still needed.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.staging.positions import SAVE_PERIOD_S
from actors.staging.propagation import PropagationCore, PropagationStatistics
from actors.staging.queue import QueueCore
from headrace.base.clock import VirtualClock
from headrace.base.errors import PropagationError, QueueError, WouldBlock
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import Scn
from headrace.links.ports import header_of
from headrace.rules.rule import RuleSet
from protos import codec
from tests.support.session.matrices import cases
from tests.support.session.seeds import seeds
from tests.support.wire.staging import STEP, DirectDequeue, DirectEnqueue, History, Subscriber
from topology.spec import ApplySpec, CaptureSpec, DatabaseSpec, PropagationSpec, QueueSpec, SiteSpec, TopologySpec

MEMORY, SPILL = 30_000, 60_000
OLD, SPARE = "old", "spare"
STREAM_ENDS = (PropagationError, QueueError)


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync: machines are abandoned here, but lose no power."""
    for name in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, name, lambda descriptor: None)


def over_a_relay(folder: Path, *, is_direct: bool, added: bool = False) -> TopologySpec:
    """dbs1 by way of a relay to dbs2.

    Args:
        folder: of the files.
        is_direct: the apply process takes from the relay's queue, without a queue of its own.
        added: another apply process does, too.
    """

    def queue(name: str, site: str) -> QueueSpec:
        return QueueSpec(name=name, site=site, memory_bytes_max=MEMORY, spill_bytes_max=SPILL)

    return TopologySpec(
        name="t",
        file=folder / "t.yaml",
        state_dir=folder,
        sites=tuple(SiteSpec(name=name, database=DatabaseSpec(kind="none")) for name in ("dbs1", "relay", "dbs2")),
        queues=(queue("q_dbs1", "dbs1"), queue("q_relay", "relay"), *(() if is_direct else (queue("q_dbs2", "dbs2"),))),
        captures=(CaptureSpec(name="capture_dbs1", site="dbs1", source="dbs1", queue="q_dbs1", rules=RuleSet()),),
        propagations=(
            PropagationSpec(name="to_relay", from_queue="q_dbs1", to_queue="q_relay", sources=("dbs1",)),
            *(
                ()
                if is_direct
                else (PropagationSpec(name="to_dbs2", from_queue="q_relay", to_queue="q_dbs2", sources=("dbs1",)),)
            ),
        ),
        applies=(
            ApplySpec(name="apply_far", site="dbs2", source="dbs1", queue="q_relay" if is_direct else "q_dbs2"),
            *((ApplySpec(name="apply_added", site="dbs2", source="dbs1", queue="q_relay"),) if added else ()),
        ),
    )


class TwoLives:
    """One history.

    Args:
        folder: of the queues.
        seed: of everything that is random.
        is_direct: the apply process takes from the relay's queue.
        is_behind: the spare machine's clock is behind the other one's.
    """

    def __init__(self, folder: Path, seed: int, *, is_direct: bool, is_behind: bool) -> None:
        self.folder = folder
        self.random, self.clock = random.Random(seed), VirtualClock()
        self.topology = over_a_relay(self.folder, is_direct=is_direct)
        self.is_direct, self.is_behind = is_direct, is_behind
        self.history, self.model = History(value=bytes(1500)), Subscriber()
        self.incarnation = self.purged = 0
        self.queues: dict[str, QueueCore] = {}
        self.relays: dict[str, QueueCore] = {}
        self.cores: dict[str, PropagationCore] = {}
        self.apply: DirectDequeue | None = None
        for name in ("q_dbs1", "q_dbs2"):
            if not (is_direct and name == "q_dbs2"):
                self.queues[name] = QueueCore(self.topology, name, self.folder / name, self.clock)
        self.relay_begins(OLD)
        self.capture_restarts()
        self.apply_restarts()

    def incarnated(self, machine: str = "") -> str:
        self.incarnation += 1
        return f"{self.incarnation + (1000 if self.is_behind and machine == OLD else 0):06d}"

    @property
    def newest(self) -> str:
        return SPARE if SPARE in self.relays else OLD

    # ------------------------------------------------------------------- life and death

    def commit(self) -> None:
        rows = self.random.choice([1, 1, 1, 1, 2, 30, 100])
        for _ in range(self.random.randint(1, 4)):
            self.history.commit(rows)

    def relay_begins(self, machine: str) -> None:
        self.relays[machine] = QueueCore(self.topology, "q_relay", self.folder / machine, self.clock)

    def queue_of_the_destination_restarts(self) -> None:
        if not self.is_direct:
            self.queues["q_dbs2"] = QueueCore(self.topology, "q_dbs2", self.folder / "q_dbs2", self.clock)

    def capture_restarts(self) -> None:
        self.capture = DirectEnqueue(lambda: self.queues["q_dbs1"], "capture_dbs1", self.incarnated(), "dbs1")
        self.plan(self.capture.connect().needed_scn)

    def plan(self, scn: int) -> None:
        assert scn >= self.purged, "purged redo is still needed"
        self.to_send: list[LcrBatch] = self.history.batches_after(scn, self.random)
        self.planned_through = self.to_send[-1].through_scn if self.to_send else scn

    def connect(self, name: str, core: PropagationCore) -> None:
        if name in self.cores:
            self.cores.pop(name).close()
        try:
            core.open()
        except STREAM_ENDS:  # a newer incarnation is connected
            core.close()
        else:
            self.cores[name] = core

    def propagation_to_the_relay_restarts(self) -> None:
        relay, incarnation = self.newest, self.incarnated()
        self.connect(
            "to_relay",
            PropagationCore(
                "dbs1",
                RuleSet(),
                DirectEnqueue(lambda: self.relays.get(relay), "to_relay", incarnation, "dbs1"),
                lambda: DirectDequeue(lambda: self.queues["q_dbs1"], "to_relay", incarnation),
                statistics=PropagationStatistics(),
                clock=self.clock,
            ),
        )

    def propagation_from_the_relay_restarts(self, machine: str) -> None:
        """Each machine has one."""
        if self.is_direct or machine not in self.relays:
            return
        relay, incarnation = self.newest, self.incarnated(machine)
        self.connect(
            machine,
            PropagationCore(
                "dbs1",
                RuleSet(),
                DirectEnqueue(lambda: self.queues["q_dbs2"], "to_dbs2", incarnation, "dbs1"),
                lambda: DirectDequeue(lambda: self.relays.get(relay), "to_dbs2", incarnation),
                statistics=PropagationStatistics(),
                clock=self.clock,
            ),
        )

    def apply_restarts(self) -> None:
        needed, relay = self.model.crash(), self.newest
        self.apply = DirectDequeue(
            lambda: self.relays.get(relay) if self.is_direct else self.queues["q_dbs2"], "apply_far", self.incarnated()
        )
        self.apply.subscribe({"dbs1": Scn(needed)}, 1 << 14)

    # ------------------------------------------------------------------- work

    def capture_works(self, count: int) -> None:
        try:
            for _ in range(count):
                progress = self.capture.poll()
                self.purged = max(self.purged, progress.durable_scn)
                assert progress.durable_scn <= self.model.durable, "reported as durable too early"
                if progress.rewind_scn is not None:
                    self.plan(progress.rewind_scn)
                if not self.to_send:
                    self.plan(self.planned_through)
                if not self.to_send:
                    return
                self.capture.send_nowait(header_of(self.to_send[0]), codec.encode(self.to_send[0]))
                self.to_send.pop(0)
        except WouldBlock:
            return
        except STREAM_ENDS:
            self.capture_restarts()

    def propagation_works(self, name: str) -> None:
        core = self.cores.get(name)
        try:
            if core is not None:
                core.step()
        except STREAM_ENDS:
            core.close()
            del self.cores[name]
        if name not in self.cores:
            self.propagation_to_the_relay_restarts() if name == "to_relay" else self.propagation_from_the_relay_restarts(
                name
            )

    def apply_works(self, count: int, commits: bool) -> None:
        if self.apply is None:
            return
        try:
            self.apply.feed(self.model, count, commits=commits)
        except STREAM_ENDS:
            self.apply_restarts()

    def everybody_works(self) -> None:
        for _ in range(10):
            self.capture_works(3)
            for name in ("to_relay", OLD, SPARE):
                self.propagation_works(name)
            self.apply_works(5, commits=self.random.random() < 0.3)

    def something_happens(self) -> None:
        """Mostly work, so that components have work in progress when they break."""
        machine = self.random.choice(sorted(self.relays))
        self.random.choices(
            [
                self.commit,
                self.everybody_works,
                lambda: self.time_passes(self.random.choice([0.1, SAVE_PERIOD_S])),
                lambda: self.capture_works(self.random.randint(1, 20)),
                lambda: self.propagation_works(self.random.choice(["to_relay", machine])),
                lambda: self.apply_works(self.random.randint(1, 30), commits=self.random.random() < 0.5),
                self.propagation_to_the_relay_restarts,
                lambda: self.propagation_from_the_relay_restarts(machine),
                self.apply_restarts,
                self.capture_restarts,
                self.queue_of_the_destination_restarts,
                lambda: self.relay_begins(self.newest),
            ],
            [6, 4, 3, 4, 8, 6, 2, 2, 1, 1, 0.5, 0.5],
        )[0]()
        self.check()

    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for queue in (*self.queues.values(), *self.relays.values()):
            queue.housekeeping()
            if (positions := queue.positions_to_save()) is not None:
                queue.save_positions(positions)
                queue.positions_saved(positions, None)

    # ------------------------------------------------------------------- what must hold

    def check(self) -> None:
        """The destination has a part of the history without gaps."""
        first = self.model.begin // STEP * STEP + STEP  # earlier changes were copied
        assert self.model.applied == list(range(first, first + STEP * len(self.model.applied), STEP))
        rows_of = self.model.rows_of
        assert rows_of == {commit: self.history.rows[commit // STEP - 1] for commit in rows_of}

    def got(self, machine: str) -> int:
        """Rows that one life of the queue received since its start."""
        return int(self.relays[machine].status().rows_total)

    def close(self) -> None:
        for queue in (*self.queues.values(), *self.relays.values()):
            queue.close()

    def is_done(self) -> bool:
        return max([self.model.begin, *self.model.applied[-1:]]) >= self.history.end

    def drain(self) -> None:
        """End the abandoned machine: everything continues through the other one, and arrives."""
        self.relays.pop(OLD).close()
        if OLD in self.cores:
            self.cores.pop(OLD).close()
        self.propagation_to_the_relay_restarts()
        self.apply_restarts()
        # The queues are small, and every component may have died: one turn moves a few rows.
        for _ in range(1500 + sum(self.history.rows)):
            if self.is_done() and not self.held():
                break
            self.capture_works(5)
            for name in ("to_relay", SPARE):
                self.propagation_works(name)
            self.apply_works(5, commits=True)
            self.time_passes(SAVE_PERIOD_S)
        assert self.is_done(), "something never arrived"
        assert not self.held(), "something was never released"
        self.check()

    def held(self) -> int:
        return sum(queue.status().batches for queue in (*self.queues.values(), *self.relays.values()))


@pytest.mark.seeded
@pytest.mark.long
@pytest.mark.parametrize(
    ("is_direct", "is_behind"),
    cases(
        {
            "queued-clocks agree": (False, False),
            "queued-the spare machine's clock is behind": (False, True),
            "dequeued directly-clocks agree": (True, False),
            "dequeued directly-the spare machine's clock is behind": (True, True),
        },
        core=("queued-the spare machine's clock is behind", "dequeued directly-clocks agree"),
    ),
)
def test_two_lives_of_a_relays_queue_lose_and_duplicate_nothing(
    tmp_path: Path, is_direct: bool, is_behind: bool
) -> None:
    got: Counter[str] = Counter()
    for seed in seeds("two lives", test=4, soak=60):
        print(f"seed {seed}")
        lives = TwoLives(tmp_path / str(seed), seed, is_direct=is_direct, is_behind=is_behind)
        try:
            for _ in range(lives.random.randint(20, 60)):
                lives.something_happens()
            lives.relay_begins(SPARE)
            for _ in range(150):
                lives.something_happens()
            got.update(
                {machine: lives.got(machine) > 0 for machine in lives.relays}
                | {"purged": lives.purged > 0, "applied": bool(lives.model.applied)}
            )
            got["both"] += lives.got(OLD) > 0 < lives.got(SPARE)
            lives.drain()
        finally:
            lives.close()
    # In most histories both lives had rows, and the source purged some of them meanwhile.
    assert min(got["both"], got["purged"], got["applied"]) > len(seeds("two lives", test=4, soak=60)) // 2, got


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[TwoLives]:
    """Two lives, each with its propagation. The publisher's stream still ends in the older life; the newer life's
    propagation has replaced the older one's.
    """
    lives = TwoLives(tmp_path, 1, is_direct=False, is_behind=False)
    lives.propagation_to_the_relay_restarts()
    lives.propagation_from_the_relay_restarts(OLD)
    for _ in range(3):
        lives.history.commit()
        lives.everybody_works()
        lives.time_passes(SAVE_PERIOD_S)
    lives.apply_works(30, commits=True)
    assert lives.is_done()
    lives.relay_begins(SPARE)
    lives.propagation_from_the_relay_restarts(SPARE)
    assert lives.cores.keys() == {"to_relay", OLD, SPARE}
    yield lives
    lives.close()


def _work(lives: TwoLives) -> None:
    for _ in range(20):
        lives.capture_works(5)
        for name in ("to_relay", SPARE):
            lives.cores[name].step()
        lives.apply_works(5, commits=True)
        lives.time_passes(SAVE_PERIOD_S)


def test_changes_in_the_older_life_arrive_when_the_publisher_reconnects(
    begun: TwoLives,
) -> None:
    """Therefore docs/tasks/recover.md says to end the abandoned machine, or to stop and start the propagation."""
    with pytest.raises(QueueError, match="replaced this one"):
        begun.cores.pop(OLD).step()
    for _ in range(3):
        begun.history.commit()
    _work(begun)
    assert not begun.is_done()
    assert begun.purged <= begun.model.durable < begun.history.end
    begun.propagation_to_the_relay_restarts()
    _work(begun)
    assert begun.is_done()
    begun.check()
    begun.drain()


def test_destination_added_meanwhile_begins_only_where_changes_are_held(begun: TwoLives) -> None:
    """The older life does not know the new destination, and reports to its publisher only the other destination's
    position.
    """
    for name in ("q_dbs1", "q_dbs2"):
        begun.queues[name].adopt(over_a_relay(begun.folder, is_direct=False, added=True))
    newer = begun.relays[SPARE]
    newer.adopt(over_a_relay(begun.folder, is_direct=False, added=True))
    added, model = DirectDequeue(lambda: newer, "apply_added", begun.incarnated()), Subscriber()
    added.subscribe({"dbs1": Scn(0)}, 1 << 20)
    begun.history.commit()
    _work(begun)
    assert added.poll() is None  # it copies nothing before it knows where it begins
    begun.propagation_to_the_relay_restarts()
    begun.history.commit()
    _work(begun)
    assert begun.is_done()
    while (delivery := added.poll()) is not None:
        model.take(delivery.header, delivery.data)
    assert 0 < model.begin <= begun.history.end
    assert begun.purged <= model.begin  # changes after its beginning are held
    first = model.begin // STEP * STEP + STEP
    assert model.applied == list(range(first, begun.history.end + 1, STEP))
