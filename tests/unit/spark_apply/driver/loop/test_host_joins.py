"""Tables that join while the host works, and calls from other threads."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any

import pytest

from headrace.base.errors import (
    ApplyError,
    DatabaseUnavailable,
    FencedError,
    HeadraceError,
)
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.ports import Instantiation
from headrace.lcr.scn import Scn
from spark_apply.copy.records.standing import standings, table_starts
from spark_apply.driver.loop import inbox as loop_inbox
from spark_apply.driver.loop.flushes import POLL_INTERVAL_S
from spark_apply.tables.arriving import TableStart
from tests.support.apply.apply_engine import APPLY, SOURCE, TOPOLOGY, table_of
from tests.support.apply.hosted_driver import Driver
from tests.support.histories.apply_history import TABLES, Reference
from tests.support.session.noted import noted
from tests.support.session.seeds import seeds

# --------------------------------------------------------------------------- joining tables


def test_call_during_the_drivers_end_is_answered_at_once(driver: Driver) -> None:
    """The thread that copies tables can call at any moment, and an orderly end waits for it."""
    answers: list[HeadraceError] = []

    def call() -> None:
        try:
            driver.host.inbox.call(lambda: None)
        except HeadraceError as error:
            answers.append(error)

    waiting = threading.Thread(target=call)

    def begin_to_wait() -> bool:
        waiting.start()
        while driver.host.inbox._events.empty():
            time.sleep(0.001)
        return True

    driver.host.run(begin_to_wait)
    waiting.join(60.0)
    call()
    assert [error.message for error in answers] == [f"apply {APPLY} has ended"] * 2
    assert driver.host.inbox.call_within(lambda: None, 10.0) is None


def test_call_is_answered_at_once_when_the_driver_ends_before_dequeuing(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer driver started while this one checked its tables."""
    monkeypatch.setattr(loop_inbox, "_CALL_TIMEOUT_S", 0.1)
    MemoryDestination(store=driver.store).raise_epoch(TOPOLOGY, APPLY)
    with pytest.raises(FencedError):
        driver.host.run(lambda: False)
    with pytest.raises(ApplyError, match="has ended"):
        driver.host.inbox.call(lambda: None)


class JoiningDriver(Driver):
    """One table is missing at the destination at first: it is excluded, copied, and joins."""

    def __init__(self, *, seed: int) -> None:
        self.late = TABLES[seed % len(TABLES)].name
        super().__init__(seed=seed, count=30)

    def start_driver(self) -> None:
        recorded = MemoryDestination(store=self.store).instantiations(TOPOLOGY, APPLY)
        starts = table_starts(standings([table_of(each) for each in recorded], recorded))
        self.instantiation = {("public", self.late): TableStart(scn=None)} | starts
        super().start_driver()
        self.destination = MemoryDestination(store=self.store)

    def copy(self, scn: int) -> None:
        """Copy the late table's rows as of `scn`."""
        then = Reference({name: list(rows) for name, rows in self.start.items()})
        for transaction in self.history:
            if transaction.commit_scn <= scn:
                then.apply(transaction)
        record = Instantiation(
            source=SOURCE,
            identity=self.late,
            owner="public",
            name=self.late,
            scn=Scn(scn),
            state="COPIED",
            digest="00",
        )
        self.destination.record_instantiation(TOPOLOGY, APPLY, self.epoch, record)
        session = self.destination.open_session(TOPOLOGY, APPLY, server=2, epoch=self.epoch, tag=b"")
        late = session.describe("public", self.late)
        assert late is not None
        session.empty_tables([late])
        session.close()
        self.store.insert("public", self.late, list(then.rows[self.late]))
        self.record = record

    def state(self) -> str:
        return next(each.state for each in self.destination.instantiations(TOPOLOGY, APPLY) if each.name == self.late)

    def step(self, turns: int = 1) -> None:
        for _ in range(turns):
            self.host.turn(0.0)
            for number in self.tasks:
                self.step_task(number)


@pytest.mark.long
@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("histories of a driver", test=2, soak=40))
@pytest.mark.parametrize("restart_after", [None, 0, 1, 4, 12])
def test_joining_table_gets_its_excluded_changes_despite_a_new_driver(seed: int, restart_after: int | None):
    driver = JoiningDriver(seed=seed)
    for number in range(2):
        driver.start_task(number)
    early, later = driver.history[4].commit_scn, driver.history[17].commit_scn
    driver.host.joins.hold(driver.host.dequeuing.told_scn)
    while driver.coordinator.watermarks.low < later:
        driver.step()
    assert not any(driver.queue.acknowledged)
    driver.copy(early)
    driver.host.joins.hold(Scn(early))
    ahead = driver.coordinator.watermarks.low
    joined = driver.host.joins.join([driver.record])
    while not joined.is_set():
        driver.step()
    assert driver.state() == "JOINING"
    # The servers' sessions are older than the join: they are reopened before a group is written.
    assert driver.coordinator.watermarks.low <= early
    assert driver.coordinator.watermarks.progress.ahead_scn >= ahead
    driver.host.joins.hold(None)
    if restart_after is not None:
        driver.step(restart_after)
        driver.start_driver()
        for number in range(2):
            driver.start_task(number)
    driver.run()
    assert driver.host.joins.is_joined
    driver.assert_applied()


def joining_driver(seed: int) -> JoiningDriver:
    """A driver whose late table is copied and may join."""
    driver = JoiningDriver(seed=seed)
    for number in range(2):
        driver.start_task(number)
    early, later = driver.history[4].commit_scn, driver.history[17].commit_scn
    driver.host.joins.hold(Scn(0))
    while driver.coordinator.watermarks.low < later:
        driver.step()
    driver.copy(early)
    return driver


def test_copy_requested_to_join_twice_joins_once():
    driver = joining_driver(4)
    first = driver.host.joins.join([driver.record])
    assert driver.host.joins.join([driver.record]) is first, "the answer to the first call was lost"
    while not first.is_set():
        driver.step()
    assert driver.host.joins.join([driver.record]) is first
    driver.host.joins.hold(None)
    driver.run()
    driver.assert_applied()


def test_pending_join_is_void_when_the_table_is_to_be_copied_again():
    driver = joining_driver(4)
    driver.host.joins.join([driver.record])
    driver.destination.record_instantiation(
        TOPOLOGY, APPLY, driver.epoch, dataclasses.replace(driver.record, state="COPYING")
    )
    left = driver.host.joins.leave_out([("public", driver.late)])
    while not left.is_set():
        driver.step()
    assert driver.state() == "COPYING"


def test_servers_get_nothing_while_the_outcome_of_a_join_is_unknown(monkeypatch: pytest.MonkeyPatch):
    """A group has the low watermark from before the join; committed later, it would make the table look caught up."""
    driver = joining_driver(4)
    join, send, sent, lost = driver.destination.join_tables, driver.host._send, list[bool](), []

    def lose(*arguments: Any, **options: Any) -> Any:
        join(*arguments, **options)
        lost.append(1)
        raise DatabaseUnavailable("the answer is lost")

    monkeypatch.setattr(driver.host.joins._destination, "join_tables", lose)
    monkeypatch.setattr(driver.host, "_send", lambda: (noted(sent, driver.host.joins.is_uncertain), send()))
    driver.host.joins.hold(driver.record.scn)
    joined = driver.host.joins.join([driver.record])
    while not lost:
        driver.step()
    assert driver.host.joins.is_uncertain
    assert driver.host.dequeuing.told_scn < driver.record.scn, "an SCN is acknowledged only when it is on disk"
    driver.host.errors.execute([7])
    driver.step(5)
    driver.store.flush()
    driver.clock.advance(POLL_INTERVAL_S)
    driver.step(5)
    assert True not in sent
    # The record has been due for long and waits for the join: the loop must still pause between turns.
    monkeypatch.setattr(type(driver.host.progress), "due_at", 0.0)
    driver.step(5)
    assert driver.host.joins.is_uncertain
    assert driver.host._pause() > 0
    monkeypatch.undo()
    driver.clock.advance(60)
    while not joined.is_set():
        driver.step()
    driver.host.joins.hold(None)
    driver.run()
    driver.assert_applied()


def test_server_session_from_before_a_join_is_reopened_after_it():
    driver = JoiningDriver(seed=3)
    driver.start_task(0)
    early, later = driver.history[4].commit_scn, driver.history[17].commit_scn
    driver.host.joins.hold(Scn(0))
    while driver.coordinator.watermarks.low < later:
        driver.step()
    stream = driver.start_task(1)  # its messages are not handled before the join
    driver.copy(early)
    said, driver.host.inbox._events = driver.host.inbox._events, type(driver.host.inbox._events)()
    joined = driver.host.joins.join([driver.record])
    while not joined.is_set():
        driver.host.turn(0.0)
        driver.step_task(0)
    while not said.empty():
        driver.host.inbox._events.put(said.get())
    driver.run()
    assert stream is driver.tasks[1][0]
    assert driver.host.servers.facts()[1].has_joined
    driver.assert_applied()
