"""Destinations that are reachable for some minutes an hour, in virtual time, catch up every time.

The source keeps nothing for them. A source keeps WAL for a destination only if its redo log is full. That happens only
if the queue accepts nothing more, or nothing becomes durable. So the tests watch the queue's credit, the redo that is
still needed, and the spill file.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from actors.staging.propagation import PropagationRunner
from actors.staging.queue import QueueCore
from headrace.base.clock import VirtualClock
from headrace.base.errors import HeadraceError
from headrace.lcr.scn import Scn
from headrace.links.ports import header_of
from headrace.rules.rule import RuleSet
from protos import codec
from tests.support.session.seeds import scaled, seed_of
from tests.support.values.lcr_batches import insert_batch
from tests.support.wire.staging import DirectLinks, Subscriber
from topology.schedule import Schedule, Window
from topology.spec import ApplySpec, CaptureSpec, DatabaseSpec, PropagationSpec, QueueSpec, SiteSpec, TopologySpec

pytestmark = pytest.mark.slow

DESTINATIONS = 12
HOURS = scaled(3, 12)
STEP_S = 10.0  # of simulated time
OPEN_S = 600  # simulated seconds: a window
BATCH_BYTES = 6_000  # one a minute, whatever the destinations: 360 kB an hour
MEMORY, SPILL = 100_000, 2_000_000
BANDWIDTH = 16_384
START_US = 1_700_000_000_000_000 // 3_600_000_000 * 3_600_000_000  # a full hour


def topology(folder: Path, minutes: list[int]) -> TopologySpec:
    database = DatabaseSpec(kind="none")
    numbers = range(len(minutes))
    return TopologySpec(
        name="t",
        file=folder / "t.yaml",
        state_dir=folder,
        sites=(SiteSpec(name="dbs1", database=database), *(SiteSpec(name=f"d{k}", database=database) for k in numbers)),
        queues=(
            QueueSpec(name="q_dbs1", site="dbs1", memory_bytes_max=MEMORY, spill_bytes_max=SPILL),
            *(QueueSpec(name=f"q_{k}", site=f"d{k}", memory_bytes_max=1 << 20) for k in numbers),
        ),
        captures=(CaptureSpec(name="capture", site="dbs1", source="dbs1", queue="q_dbs1", rules=RuleSet()),),
        propagations=tuple(
            PropagationSpec(
                name=f"to_{k}",
                from_queue="q_dbs1",
                to_queue=f"q_{k}",
                sources=("dbs1",),
                bandwidth_max=BANDWIDTH,
                schedule=Schedule(windows=(Window(hour=None, minute=minute, duration_s=OPEN_S),)),
            )
            for k, minute in enumerate(minutes)
        ),
        applies=tuple(ApplySpec(name=f"apply_{k}", site=f"d{k}", source="dbs1", queue=f"q_{k}") for k in numbers),
    )


class Destination:
    """A site behind a line that exists for ten minutes an hour, and breaks in between."""

    def __init__(self, world: World, spec: TopologySpec, number: int, minute: int) -> None:
        self.world, self.minute = world, minute
        clock = world.clock
        self.far = QueueCore(spec, f"q_{number}", world.folder / f"q_{number}", clock)
        self.session = self.far.open_subscriber(f"apply_{number}", "1", {"dbs1": Scn(0)}, 1 << 40)
        self.model, self.is_broken, self.errors = Subscriber(), False, 0
        self.is_open, self.due_s = False, 0.0
        self.name = f"to_{number}"
        self.links = DirectLinks(
            self.name, lambda name: world.near if name == "q_dbs1" else self.far if self.is_reachable() else None
        )
        self.runner = PropagationRunner(spec.propagation(self.name), self.links, clock=clock)
        self.caught_up: list[int] = []  # position at the end of each window

    def is_reachable(self) -> bool:
        minute = self.world.clock.time_us() / 60e6 % 60
        # The line goes down a little after the window: data in flight when the window closes must arrive.
        return not self.is_broken and (minute - self.minute) % 60 < OPEN_S / 60 + 1

    def step(self) -> None:
        """Take the host's turn, if it is due; the line breaks at random."""
        now = self.world.clock.monotonic()
        if now < self.due_s:
            return
        self.is_broken = self.world.rng.random() < 0.02
        pause = STEP_S
        try:
            if not self.is_open:
                self.runner.open()
                self.is_open = True
            pause = self.runner.step()
        except HeadraceError:
            self.errors += 1
            self.runner.close()
            self.is_open = False
        self.apply()
        # A host checks once a second even if nothing happens, which would only slow this test.
        self.due_s = now + (pause if 0 < pause < 1 else STEP_S if pause else 0.001)

    def check(self) -> bool:
        """Check near the end of a window that everything older than its last two minutes has arrived, whatever broke."""
        clock = self.world.clock
        left_s = OPEN_S - (clock.time_us() / 1e6 - 60 * self.minute) % 3600
        if not 0.5 < left_s <= STEP_S + 0.5 or clock.monotonic() < OPEN_S:
            return False
        old = max((scn for scn, at in self.world.committed_at.items() if at < clock.monotonic() - 120), default=0)
        assert self.model.durable >= old, f"{self.name} has not caught up"
        return True

    def apply(self) -> None:
        while (delivery := self.far.dequeue(self.session)) is not None:
            self.model.take(delivery.header, delivery.data)
        if self.model.position > self.model.durable:
            self.model.commit()
            self.far.acknowledge(self.session, "dbs1", self.model.durable)
        keep_house(self.far)


class World:
    """A source that commits steadily, its queue, and the destinations."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng, self.folder, self.clock = random.Random(seed), folder, VirtualClock(START_US)
        minutes = [self.rng.randrange(60) for _ in range(DESTINATIONS)]
        spec = topology(folder, minutes)
        self.near = QueueCore(spec, "q_dbs1", folder / "near", self.clock)
        self.publisher = self.near.open_publisher("capture", "1", "dbs1")
        self.near.resume(self.publisher)
        self.position = self.durable = self.redo_max = self.spill_max = 0
        self.committed_at: dict[int, float] = {}
        self.destinations = [Destination(self, spec, k, minute) for k, minute in enumerate(minutes)]

    def commit(self) -> None:
        self.position += 10
        batch = insert_batch([self.position], previous=self.position - 10, value=self.rng.randbytes(BATCH_BYTES))
        self.near.enqueue(self.publisher, header_of(batch), codec.encode(batch))
        self.committed_at[self.position] = self.clock.monotonic()

    def watch(self) -> None:
        keep_house(self.near)
        news = self.near.publisher_news(self.publisher)
        if news is not None:
            assert news.rewind_scn is None, "the source is asked for its redo again"
            assert news.credit_bytes > 0, "the capture process waits for a destination"
            self.durable = max(self.durable, news.durable_scn or 0)
        assert self.near.state == "ENABLED"
        status = self.near.status()
        assert status.memory_bytes <= MEMORY
        assert self.durable <= min(each.model.durable for each in self.destinations), "told durable what is not"
        self.redo_max = max(self.redo_max, (self.position - self.durable) // 10)
        self.spill_max = max(self.spill_max, status.spill_bytes)


def keep_house(queue: QueueCore) -> None:
    queue.housekeeping()
    if (positions := queue.positions_to_save()) is not None:
        queue.save_positions(positions)
        queue.positions_saved(positions, None)


@pytest.mark.long
@pytest.mark.seeded
def test_destinations_reachable_ten_minutes_an_hour_catch_up_each_time(
    tmp_path: Path,
) -> None:
    world = World(seed_of("destinations that are reachable ten minutes an hour"), tmp_path)
    windows_checked = 0
    tick_s = 0.0
    while world.clock.monotonic() < HOURS * 3600:
        for destination in world.destinations:
            destination.step()
        if world.clock.monotonic() >= tick_s:
            tick_s += STEP_S
            if world.clock.monotonic() >= world.position / 10 * 60:
                world.commit()
            world.watch()
            windows_checked += sum(destination.check() for destination in world.destinations)
        due_s = min(tick_s, *(destination.due_s for destination in world.destinations))
        world.clock.advance(max(0.001, due_s - world.clock.monotonic()))
    assert windows_checked >= DESTINATIONS * (HOURS - 1)
    for destination in world.destinations:
        assert destination.model.applied == list(range(10, destination.model.durable + 1, 10)), (
            "lost, twice or out of order"
        )
        assert destination.links.opens < HOURS * 60, "it knocked at a closed door"
    assert sum(destination.errors for destination in world.destinations) > 5, (
        "no line broke: this proves less than it says"
    )
    assert world.spill_max > 100_000
    # At most an hour's and a window's changes are needed again, however many destinations there are.
    assert world.redo_max <= 60 + OPEN_S / 60 + 5
    print(f"{windows_checked} windows, redo needed for {world.redo_max} min at most, spilled {world.spill_max} bytes")
