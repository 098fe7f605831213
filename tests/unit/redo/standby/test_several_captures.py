"""Several capture processes of one source mine the same redo by their own rules and at their own pace.

Redo is kept for the slowest one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import FIRST_SCN
from headrace.redo.mining.miner import Miner
from headrace.redo.segments import list_segments
from headrace.redo.standby.standby_log import StandbyLog
from headrace.redo.writing.log_writer import LogWriter
from headrace.rules.rule import ANY_TAG, Rule, RuleSet
from tests.support.redo.redo_logs import committed, miner, received
from tests.support.redo.standby_redo import standby_log
from tests.support.redo.standby_site import Site
from tests.support.session.seeds import seeds

RULES = {
    "c_hr": RuleSet(include=(Rule(owner="hr"),)),
    "c_events": RuleSet(include=(Rule(owner="sales", name="events", tags=ANY_TAG),)),
    "c_all": RuleSet(),
    "c_but_one": RuleSet(include=(Rule(tags=ANY_TAG),), exclude=(Rule(owner="hr", name="keyed", tags=ANY_TAG),)),
}


class Capture:
    """One capture process; the test decides when its batches are durable at their destinations.

    Args:
        name: a key of `RULES`.
        folder: of the redo.
        log: the redo log that retains segments for this capture process.
    """

    def __init__(self, name: str, folder: Path, log: LogWriter | StandbyLog) -> None:
        self.name, self.folder, self.log = name, folder, log
        self.batches: list[LcrBatch] = []
        self.durable_scn = FIRST_SCN
        log.required_checkpoints.register(name)
        self.miner = self._miner()

    def _miner(self) -> Miner:
        return miner(self.folder, self.durable_scn, RULES[self.name])

    def work(self, batches: int) -> None:
        for _ in range(batches):
            if (batch := self.miner.next_batch(self.log.position, rows_max=20)) is None:
                return
            self.batches.append(batch)

    def is_durable(self) -> None:
        if self.batches:
            self.durable_scn = self.batches[-1].through_scn
            self.log.required_checkpoints.record(self.name, self.durable_scn)

    def restart(self) -> None:
        """Restart after a kill: mining resumes at the durable SCN."""
        self.miner.close()
        while self.batches and (self.batches[-1].through_scn > self.durable_scn or self.batches[-1].is_open):
            self.batches.pop()
        self.miner = self._miner()


def at_the_source(site: Site) -> tuple[Path, LogWriter | StandbyLog, Callable[[], object]]:
    """Capture at the source: the log writer purges as it writes."""
    site.writer.shipping.register({})
    return site.redo, site.writer, lambda: site.writer.step(0.0)


def downstream(site: Site) -> tuple[Path, LogWriter | StandbyLog, Callable[[], object]]:
    """Downstream capture: one receiver keeps one copy for all capture processes."""
    log = standby_log(site.folder)

    def receive() -> None:
        site.receive(log)
        log.purge()

    return site.folder, log, receive


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("several captures", test=1, soak=40))
@pytest.mark.parametrize("where", [at_the_source, downstream])
def test_captures_of_one_source_follow_their_rules_and_keep_needed_redo(
    tmp_path: Path,
    where: Callable[[Site], tuple[Path, LogWriter | StandbyLog, Callable[[], object]]],
    seed: int,
) -> None:
    rng, site = random.Random(seed), Site(tmp_path, seed, keeps=False)
    folder, log, go_on = where(site)
    captures = [Capture(name, folder, log) for name in RULES]
    slowest = captures[seed % len(captures)]
    for _ in range(12):
        site.commit(20)
        go_on()
        for capture in rng.sample(captures, rng.randint(1, len(captures))):
            capture.work(rng.choice([0, 1]) if capture is slowest else 1000)
            if rng.random() < 0.7:
                capture.is_durable()
            elif rng.random() < 0.5:
                capture.restart()
        go_on()
        assert log.required_checkpoints.needed_scn == min(each.durable_scn for each in captures)
    for capture in captures:
        capture.work(100_000)
        assert received(capture.batches) == committed(site.source, RULES[capture.name]), capture.name
    for capture in captures:
        if capture is not slowest:
            capture.is_durable()
    go_on()
    held = list_segments(folder)
    assert log.required_checkpoints.needed_scn == slowest.durable_scn
    assert log.oldest_scn <= slowest.durable_scn < log.position.scn, (
        "redo that only the slowest lacks is kept for it alone"
    )
    slowest.is_durable()
    go_on()
    assert list_segments(folder)[0].number > held[0].number
    for capture in captures:
        capture.miner.close()
