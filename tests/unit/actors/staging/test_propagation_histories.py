"""Random histories of two queues and the propagation between them, with crashes of all three and of both ends.

In every history the destination sees every transaction once and in order, and the source purges nothing that is still
needed.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from actors.staging.positions import SAVE_PERIOD_S
from actors.staging.propagation import PropagationCore, PropagationStatistics
from actors.staging.queue import QueueCore
from headrace.base.clock import VirtualClock
from headrace.base.errors import LogGone, PropagationError, QueueError, WouldBlock
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import Scn
from headrace.links.ports import header_of
from headrace.rules.rule import RuleSet
from protos import codec
from tests.support.session.seeds import scaled
from tests.support.wire.staging import DirectDequeue, DirectEnqueue, History, Subscriber, one_way

MEMORY, SPILL = 30_000, 60_000


class PropagationHistories(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="h-propagation-"))
        self.random = random.Random(seed)
        self.clock = VirtualClock()
        self.history = History(value=bytes(1500))
        self.model = Subscriber()
        self.incarnation = 0
        self.purged = 0
        self.restored = False
        self.queues: dict[str, QueueCore] = {}
        self.capture: DirectEnqueue | None = None
        self.core: PropagationCore | None = None
        self.apply: DirectDequeue | None = None
        for name in ("q_dbs1", "q_dbs2"):
            self.queue_restarts(name)

    def next_incarnation(self) -> str:
        self.incarnation += 1
        return f"{self.incarnation:06d}"

    # ------------------------------------------------------------------- life and death

    # A hundred rows exceed what a queue holds.
    @rule(rows=st.sampled_from([1, 1, 1, 1, 2, 30, 100]), count=st.integers(1, 4))
    def commit(self, rows: int, count: int) -> None:
        for _ in range(count):
            self.history.commit(rows)

    @rule(name=st.sampled_from(["q_dbs1", "q_dbs2"]))
    def queue_restarts(self, name: str) -> None:
        topology = one_way(self.folder, subscribers=("to_dbs2",), memory=MEMORY, spill=SPILL)
        self.queues[name] = QueueCore(topology, name, self.folder / name, self.clock)

    @rule()
    def capture_restarts(self) -> None:
        self.capture = DirectEnqueue(lambda: self.queues["q_dbs1"], "capture_dbs1", self.next_incarnation(), "dbs1")
        self.plan(self.capture.connect().needed_scn)

    def plan(self, scn: int) -> None:
        assert scn >= self.purged or self.restored, "purged redo is still needed"
        self.asks_for_more = scn < self.purged and scn > 0
        if self.asks_for_more:
            assert self.capture is not None
            self.to_send: list[LcrBatch] = []
            self.capture.gone(self.purged)
            return
        self.to_send = self.history.batches_after(scn, self.random)
        self.planned_end = self.history.end
        self.planned_through = self.to_send[-1].through_scn if self.to_send else scn

    @rule()
    def propagation_restarts(self) -> None:
        name = self.next_incarnation()
        self.core = PropagationCore(
            "dbs1",
            RuleSet(),
            DirectEnqueue(lambda: self.queues["q_dbs2"], "to_dbs2", name, "dbs1"),
            lambda: DirectDequeue(lambda: self.queues["q_dbs1"], "to_dbs2", name),
            statistics=PropagationStatistics(),
            clock=self.clock,
        )
        self.core.open()

    @rule()
    def apply_restarts(self) -> None:
        needed = self.model.crash()
        self.apply = DirectDequeue(lambda: self.queues["q_dbs2"], "apply_far", self.next_incarnation())
        try:
            self.apply.subscribe({"dbs1": Scn(needed)}, 1 << 14)
        except LogGone as error:
            self.copy_again(error)

    def copy_again(self, error: LogGone) -> None:
        """The operator's answer to a refusal: the apply process begins anew, and its tables are copied."""
        assert self.restored
        assert self.model.durable < int(error.context["first_scn"]) <= self.purged
        self.model = Subscriber()
        self.apply_restarts()

    @rule(back=st.integers(1, 60))
    def destination_is_restored_from_a_backup(self, back: int) -> None:
        self.model.restore(max(1, self.model.begin, self.model.durable - back))  # an empty destination would begin anew
        self.restored = True  # redo may be purged beyond its position
        self.apply_restarts()

    # ------------------------------------------------------------------- work

    @rule(count=st.integers(1, 20))
    def capture_works(self, count: int) -> None:
        if self.capture is None:
            return
        try:
            for _ in range(count):
                progress = self.capture.poll()
                self.purged = max(self.purged, progress.durable_scn)
                assert progress.durable_scn <= self.model.durable or self.restored, "reported as durable too early"
                if progress.rewind_scn is not None:
                    self.plan(progress.rewind_scn)
                if self.asks_for_more:
                    return
                if not self.to_send:
                    self.plan(self.planned_through)
                if not self.to_send:
                    return
                self.capture.send_nowait(header_of(self.to_send[0]), codec.encode(self.to_send[0]))
                self.to_send.pop(0)
        except WouldBlock:
            return
        except (PropagationError, QueueError):
            self.capture_restarts()

    @rule()
    def propagation_works(self) -> None:
        if self.core is None:
            return
        try:
            self.core.step()
        except (PropagationError, QueueError):
            self.core.close()
            self.propagation_restarts()

    @rule(count=st.integers(1, 30), commits=st.booleans())
    def apply_works(self, count: int, commits: bool) -> None:
        if self.apply is None:
            return
        try:
            self.apply.feed(self.model, count, commits=commits)
        except LogGone as error:
            self.model.crash()
            self.copy_again(error)
        except (PropagationError, QueueError):
            self.apply_restarts()

    @rule()
    def everybody_works(self) -> None:
        for _ in range(10):
            self.capture_works(3)
            self.propagation_works()
            self.apply_works(5, commits=self.random.random() < 0.3)

    @rule(seconds=st.sampled_from([0.1, SAVE_PERIOD_S]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for queue in self.queues.values():
            queue.housekeeping()
            if (positions := queue.positions_to_save()) is not None:
                queue.save_positions(positions)
                queue.positions_saved(positions, None)

    # ------------------------------------------------------------------- what must hold

    @invariant()
    def destination_has_a_part_of_the_history_without_gaps(self) -> None:
        if hasattr(self, "model"):
            first = self.model.begin // 10 * 10 + 10  # earlier changes were copied
            assert self.model.applied == list(range(first, first + 10 * len(self.model.applied), 10))
            for commit, rows in self.model.rows_of.items():
                assert rows == self.history.rows[commit // 10 - 1]

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        try:
            self.drain()
        finally:
            for queue in self.queues.values():
                queue.close()
            shutil.rmtree(self.folder)

    def is_done(self) -> bool:
        return max([self.model.begin, *self.model.applied[-1:]]) >= self.history.end

    def drain(self) -> None:
        self.capture_restarts()
        self.propagation_restarts()
        self.apply_restarts()
        # The queues are small, and every component may have died: one turn moves a few rows.
        for _ in range(1500 + sum(self.history.rows)):
            if self.is_done() and not any(queue.status().batches for queue in self.queues.values()):
                break
            self.capture_works(5)
            self.propagation_works()
            self.apply_works(5, commits=True)
            self.time_passes(SAVE_PERIOD_S)
        assert self.is_done(), "something never arrived"
        for queue in self.queues.values():
            assert queue.status().batches == 0, "something was never released"
        self.destination_has_a_part_of_the_history_without_gaps()


TestPropagationHistories = pytest.mark.seeded(pytest.mark.long(PropagationHistories.TestCase))
TestPropagationHistories.settings = settings(max_examples=scaled(9, 300), stateful_step_count=30, deadline=None)
