"""Random histories of a queue, its publisher and its subscribers, with crashes of each; one subscriber is added later.

In every history each subscriber sees every transaction once and in order, a progress mark never overtakes data, and
memory stays within its bound.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.staging.positions import SAVE_PERIOD_S
from actors.staging.queue import QueueCore
from actors.staging.queue_sessions import PublisherSession, SubscriberSession
from headrace.base.clock import VirtualClock
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import Scn
from headrace.links.ports import header_of
from protos import codec
from tests.support.session.seeds import scaled
from tests.support.wire.staging import History, Subscriber, one_way
from topology.spec import TopologySpec

NAMES = ("apply_a", "to_b")
NEW = "to_c"
MEMORY = 30_000
SPILL = 60_000
VALUE = bytes(1500)


class QueueHistories(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="h-queue-"))
        self.random = random.Random(seed)
        self.clock = VirtualClock()
        self.history = History(value=VALUE)
        self.models = {name: Subscriber() for name in NAMES}
        self.sessions: dict[str, SubscriberSession] = {}
        self.publisher: PublisherSession | None = None
        self.to_send: list[LcrBatch] = []
        self.outstanding = self.credit = self.durable_told = 0
        self.incarnation = 0
        self.start_queue()

    @property
    def topology(self) -> TopologySpec:
        return one_way(self.folder, subscribers=tuple(self.models), memory=MEMORY, spill=SPILL)

    def start_queue(self) -> None:
        self.core = QueueCore(self.topology, "q_dbs1", self.folder / "q", self.clock)

    def next_incarnation(self) -> str:
        self.incarnation += 1
        return f"{self.incarnation:06d}"

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        try:
            self.drain()
        finally:
            self.core.close()
            shutil.rmtree(self.folder)

    # ------------------------------------------------------------------- source and publisher

    @rule(count=st.integers(1, 4))
    def commit_small_transactions(self, count: int) -> None:
        for _ in range(count):
            self.history.commit()

    @rule(rows=st.integers(2, 60))
    def commit_large_transaction(self, rows: int) -> None:
        self.history.commit(rows)

    @rule()
    def connect_publisher(self) -> None:
        """Connect, also after a restart of the publisher: the batches are cut anew."""
        self.publisher = self.core.open_publisher("capture_dbs1", self.next_incarnation(), "dbs1")
        needed, self.credit = self.core.resume(self.publisher)
        assert needed >= self.durable_told, "the queue asks for redo that the publisher can have purged"
        self.sent = 0
        self.plan(needed)

    def plan(self, scn: int) -> None:
        self.to_send = self.history.batches_after(scn, self.random)
        self.planned_end = self.history.end
        self.planned_through = self.to_send[-1].through_scn if self.to_send else scn

    @precondition(lambda self: self.publisher is not None)
    @rule(count=st.integers(1, 30))
    def publish(self, count: int) -> None:
        for _ in range(count):
            self.hear()
            if not self.to_send:
                if self.planned_end == self.history.end:
                    return
                self.plan(self.planned_through)
            data = codec.encode(self.to_send[0])
            if self.credit == 0 or (self.outstanding and self.outstanding + len(data) > self.credit):
                return
            batch = self.to_send.pop(0)
            self.sent += len(data)
            self.core.enqueue(self.publisher, header_of(batch), data)

    def hear(self) -> None:
        news = self.core.publisher_news(self.publisher)
        self.outstanding = self.sent - self.publisher.accepted_bytes
        if news is None:
            return
        self.credit = news.credit_bytes
        if news.durable_scn is not None:
            # The queue holds everything for a silent subscriber from where it was placed; that is seen when it begins.
            lowest = min((m.durable for name, m in self.models.items() if name != NEW or m.durable), default=0)
            assert news.durable_scn <= lowest, "reported as durable too early"
            self.durable_told = news.durable_scn
        if news.rewind_scn is not None:
            assert news.rewind_scn >= self.durable_told
            self.plan(news.rewind_scn)

    @precondition(lambda self: self.publisher is not None)
    @rule()
    def publisher_dies(self) -> None:
        self.core.close_publisher(self.publisher)
        self.publisher = None

    # ------------------------------------------------------------------- subscribers

    @precondition(lambda self: NEW not in self.models)
    @rule(is_live=st.booleans())
    def subscriber_is_added(self, *, is_live: bool) -> None:
        self.models[NEW] = Subscriber()
        if is_live:
            self.core.adopt(self.topology)
        else:
            self.queue_dies()

    @precondition(lambda self: NEW in self.models)
    @rule(is_live=st.booleans())
    def subscriber_leaves(self, *, is_live: bool) -> None:
        del self.models[NEW]
        session = self.sessions.pop(NEW, None)
        if is_live:
            self.core.adopt(self.topology)
            assert session is None or session.ended is not None
        else:
            self.queue_dies()

    @rule(name=st.sampled_from((*NAMES, NEW)))
    def connect_subscriber(self, name: str) -> None:
        if name not in self.models:
            return
        needed = self.models[name].crash()
        self.sessions[name] = self.core.open_subscriber(name, self.next_incarnation(), {"dbs1": Scn(needed)}, 1)

    @rule(name=st.sampled_from((*NAMES, NEW)))
    def subscriber_dies(self, name: str) -> None:
        session = self.sessions.pop(name, None)
        if session is not None:
            self.core.close_subscriber(session)
            self.models[name].crash()

    @precondition(lambda self: any(model.durable for model in self.models.values()))
    @rule(name=st.sampled_from(NAMES), back=st.integers(1, 100))
    def destination_is_restored_from_a_backup(self, name: str, back: int) -> None:
        """It needs again what it had acknowledged: only a restore lowers a position."""
        model = self.models[name]
        model.restore(max(1, model.begin, model.durable - back))  # a subscriber without a position begins anew
        self.durable_told = min(self.durable_told, model.durable)
        self.connect_subscriber(name)

    @precondition(lambda self: self.publisher is not None)
    @rule()
    def everybody_works_for_a_while(self) -> None:
        for name in self.models:
            if name not in self.sessions:
                self.connect_subscriber(name)
        for _ in range(30):
            self.publish(2)
            for name in self.models:
                self.dequeue(name, 3)

    @rule(name=st.sampled_from((*NAMES, NEW)), count=st.integers(1, 30))
    def dequeue(self, name: str, count: int) -> None:
        if name not in self.sessions:
            return
        for _ in range(count):
            delivery = self.core.dequeue(self.sessions[name])
            if delivery is None:
                return
            self.core.grant(self.sessions[name], len(delivery.data))
            self.models[name].take(delivery.header, delivery.data)

    @rule(name=st.sampled_from((*NAMES, NEW)))
    def commit_at_destination(self, name: str) -> None:
        if name in self.models:
            is_first = self.models[name].durable == 0
            self.models[name].commit()
            if is_first and self.models[name].durable:
                assert self.models[name].begin >= self.durable_told, "it begins at redo that can be purged"

    @rule(name=st.sampled_from((*NAMES, NEW)))
    def acknowledge(self, name: str) -> None:
        if name in self.sessions:
            self.core.acknowledge(self.sessions[name], "dbs1", self.models[name].durable)

    # ------------------------------------------------------------------- the queue

    @rule(seconds=st.sampled_from([0.1, SAVE_PERIOD_S]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.core.housekeeping()
        positions = self.core.positions_to_save()
        if positions is not None:
            self.core.save_positions(positions)
            self.core.positions_saved(positions, None)

    @rule()
    def queue_dies(self) -> None:
        self.start_queue()
        self.publisher = None
        self.sessions.clear()
        for model in self.models.values():
            model.crash()

    # ------------------------------------------------------------------- what must hold

    @invariant()
    def every_subscriber_has_a_prefix_of_the_history(self) -> None:
        for model in getattr(self, "models", {}).values():
            first = model.begin // 10 * 10 + 10
            assert model.applied == list(range(first, first + 10 * len(model.applied), 10))
            for commit, rows in model.rows_of.items():
                assert rows == self.history.rows[commit // 10 - 1]

    @invariant()
    def memory_stays_within_its_bound(self) -> None:
        if hasattr(self, "core"):
            # One batch may exceed the rest of the memory.
            assert self.core.status().memory_bytes <= MEMORY + SPILL + 4 * len(VALUE) + 2000
            assert self.core.status().spill_bytes <= SPILL

    def drain(self) -> None:
        """Reconnect everybody and keep running: everything must arrive everywhere."""
        self.connect_publisher()
        for name in self.models:
            self.connect_subscriber(name)
            self.acknowledge(name)  # what it had committed before it reconnected
        for _ in range(2000):
            if all(
                model.position >= self.history.end and model.position == model.durable for model in self.models.values()
            ):
                break
            self.publish(5)
            for name in self.models:
                self.dequeue(name, 5)
                self.commit_at_destination(name)
                self.acknowledge(name)
        for model in self.models.values():
            assert model.begin // 10 + len(model.applied) == len(self.history.rows), "something never arrived"
        self.every_subscriber_has_a_prefix_of_the_history()
        self.time_passes(SAVE_PERIOD_S)
        self.hear()
        status = self.core.status()
        assert (status.batches, status.memory_bytes, status.spill_bytes) == (0, 0, 0)


TestQueueHistories = pytest.mark.seeded(pytest.mark.long(QueueHistories.TestCase))
TestQueueHistories.settings = settings(max_examples=scaled(18, 400), stateful_step_count=40, deadline=None)
