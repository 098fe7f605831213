"""Commits that do not wait for the disk: acknowledged SCNs survive a crash of the destination, in random histories."""

from __future__ import annotations

import random

import pytest

from headrace.databases.ports import LogPositions
from headrace.lcr.scn import FIRST_SCN, Scn
from spark_apply.driver.loop.flushes import FORCE_AFTER_S, POLL_INTERVAL_S, FlushGate
from spark_apply.server.apply_server import ApplyServer
from tests.support.apply.apply_engine import STEPS_MAX
from tests.support.histories.apply_world import MemoryPlace, World
from tests.support.session.seeds import seeds

SEEDS = seeds("flushes", test=4, soak=40)
CRASH_EVERY = 100  # steps: three to ten crashes in a history
FLUSH_SHARE = 0.02  # share of steps: a commit waits for some ten steps, so crashes find unflushed commits
# Steps to the end of a history in which nothing dies any more: 1,135 at most in 42 seen ones.
CALM_STEPS_MAX = 3_000
# Here crashes interrupted one streamed transaction, which goes into the error queue, for more than 60,000 steps.
STARVING_SEED = 1081326604


def _history(seed: int, *, is_wrong: bool = False, conflicts: int = 0, calm_from: int | None = None) -> tuple[int, int]:
    """Run a history under crashes of the destination; return the number of crashes and of lost commits.

    Args:
        seed: decides everything.
        is_wrong: commits count as durable at once.
        conflicts: changes that only the destination has; their transactions enter the error queue.
        calm_from: the step from which nothing dies any more, and the history must end soon; None: no such step.
    """
    place = MemoryPlace()
    world = World(seed, place, count=30, conflicts=conflicts, large=1)
    rng, engine = random.Random(seed), None
    crashes = lost = 0

    def beside(engine) -> None:
        nonlocal crashes, lost
        if rng.random() < FLUSH_SHARE:
            place.store.flush(rng.randrange(1, 4))  # the WAL writer
        if calm_from is not None and engine.steps >= calm_from:
            engine.crash = 0.0
        elif rng.random() < 1 / CRASH_EVERY and engine.may_die:
            crashes += 1
            recorded = engine.flushes.durable_scn(engine.coordinator.watermarks.durable)
            # `RecordedProgress.kept_scn`
            kept = engine.coordinator.watermarks.low if recorded == engine.coordinator.watermarks.durable else recorded
            lost += place.store.crash()
            left = place.destination.progress(engine.topology, engine.apply)
            for scn in {
                int(scn)
                for batch in engine.batches
                if batch.row_count
                for scn in batch.transactions.commit_scn
                if scn <= kept
            }:
                is_there = scn <= left.low_watermark or any(found.after < scn <= found.through for found in left.above)
                assert is_there or is_wrong, f"SCN {kept} was acknowledged, and the crash lost the commit at {scn}"
        engine.flushes.is_needed = not is_wrong

    engine = world.engine(seed, parallelism=2, crash=0.01, commits_lazily=True)
    engine.beside = beside
    engine.run(STEPS_MAX if calm_from is None else calm_from + CALM_STEPS_MAX)
    world.check()
    return crashes, lost


@pytest.mark.seeded
def test_crash_that_loses_commits_loses_nothing_acknowledged():
    found = [_history(seed) for seed in SEEDS]
    assert sum(lost for _, lost in found) > len(SEEDS), "crashes that lose no commit prove nothing"


@pytest.mark.seeded
def test_histories_with_error_transactions_end_as_without_crashes():
    """Error transactions commit durably, so few commits are lost; `World.check` also compares the error queue."""
    for seed in SEEDS[: len(SEEDS) // 2]:
        _history(seed, conflicts=3)


def test_transaction_that_crashes_interrupt_again_and_again_ends():
    _history(STARVING_SEED, conflicts=3)


@pytest.mark.seeded
def test_every_history_ends_soon_after_the_last_crash():
    """Whatever crashes left behind (closed sessions, groups in doubt, half a streamed transaction), nothing hangs."""
    for seed in [STARVING_SEED, *SEEDS]:
        _history(seed, conflicts=3, calm_from=random.Random(seed).randrange(50, 1_000))


def test_server_that_keeps_its_closed_session_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """With this planted defect a server retries for ever: no crash, and so no new driver, replaces it."""
    monkeypatch.setattr(ApplyServer, "close", lambda server: None)
    for seed in range(20):
        try:
            _history(seed, conflicts=3, calm_from=300)
        except AssertionError as error:
            if "no end" in str(error) and "ROLLBACK TRANSACTION" in str(error):
                return
    pytest.fail("no history detects the defect")


def test_acknowledging_at_the_commit_is_detected():
    """With this planted defect the queue has forgotten changes that the crash lost."""
    for seed in range(20):  # one history in two finds it
        try:
            _history(seed, is_wrong=True)
        except AssertionError as error:
            if "the queue has forgotten what is needed" in str(error):
                return
    pytest.fail("no history detects the defect")


class Server:
    """The positions of a destination, with counters of position queries and forced flushes."""

    def __init__(self) -> None:
        self.written, self.on_disk, self.asked, self.forced = 0, 0, 0, 0

    def log_positions(self, topology, apply, epoch):
        self.asked += 1
        return LogPositions(written=self.written, flushed=self.on_disk)

    def record_low_watermark(self, topology, apply, epoch, scn):
        assert scn == FIRST_SCN, "the recorded SCN must not move"
        self.forced += 1
        self.on_disk = self.written


def _gate(server: Server) -> FlushGate:
    return FlushGate(server, "t", "a", epoch=1, scn=Scn(10), is_needed=True)


def test_commits_become_durable_with_the_log_position_at_their_report():
    server = Server()
    gate = _gate(server)
    assert gate.due_at(Scn(10)) is None, "nothing is pending: the destination is not queried"
    server.written = 900
    gate.step(Scn(40), 1.0)
    assert gate.durable_scn(Scn(40)) == 10
    server.written, server.on_disk = 990, 899
    gate.step(Scn(55), 1.1)
    assert gate.durable_scn(Scn(55)) == 10
    server.on_disk = 900
    gate.step(Scn(55), 1.2)
    assert gate.durable_scn(Scn(55)) == 40, "commits after the query wait for the next query"


def test_idle_destination_is_polled_and_then_flushed_once():
    server, now = Server(), 1.0
    gate = _gate(server)
    server.written = 900
    while gate.durable_scn(Scn(40)) < 40:
        gate.step(Scn(40), now)
        now += POLL_INTERVAL_S / 5
        assert now < 1.0 + 2 * FORCE_AFTER_S
    assert server.forced == 1
    assert server.asked <= 2 + FORCE_AFTER_S / POLL_INTERVAL_S
    assert gate.due_at(Scn(40)) is None


def test_position_reset_for_joining_tables_must_be_flushed_again():
    server = Server()
    gate = _gate(server)
    gate.step(Scn(40), 1.0)
    assert gate.durable_scn(Scn(40)) == 40
    assert gate.durable_scn(Scn(20)) == 20
    server.written = 900
    gate.step(Scn(40), 2.0)
    assert gate.durable_scn(Scn(40)) == 20
