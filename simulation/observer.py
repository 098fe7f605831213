"""What must hold at a destination of a simulated topology, whatever breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from databases.memory_destination import MemoryDestination
from simulation.history import TABLES, Table
from streams.lcr_batch import OldImage
from streams.scn import FIRST_SCN

if TYPE_CHECKING:
    from databases.memory_store import MemoryStore
    from simulation.world import Simulation
    from topology.spec import ApplySpec

__all__ = ["COUNTER", "COUNTERS", "HIDDEN_FROM_DBS3", "JOURNAL", "PRIVATE", "RETURNED", "WIDE", "Observer"]

COUNTERS = 12

JOURNAL = Table(31, "journal", ("id", "note"), OldImage.KEY)
COUNTER = Table(32, "counter", ("id", "version"), OldImage.KEY)
RETURNED = Table(33, "returned", ("id", "note"), OldImage.KEY)
PRIVATE = Table(34, "private", ("id", "note"), OldImage.KEY)
WIDE = Table(35, "wide", ("id", "c0"), OldImage.KEY)
HIDDEN_FROM_DBS3 = "full"



class Observer:
    """Checks one destination against what the source committed.

    Nothing lost:      every transaction up to the low watermark is there, and its counter with it.
    Nothing twice:     a second INSERT into the journal would be a conflict: nothing may enter the error queue.
    Order, atomicity:  a counter's version is that of the last of its transactions which the journal has.
    Watermarks:        never decrease, even across crashes; no component is told more than what is durable.
    """

    def __init__(self, sim: Simulation, apply: ApplySpec, store: MemoryStore, *, is_new: bool = False) -> None:
        self._sim, self._apply, self._store = sim, apply, store
        self.is_new = is_new  # added while the others ran
        self._commits = 0
        self.low_watermark = FIRST_SCN
        self.has_gap = False  # something above the low watermark is applied, something below it is not

    def check(self) -> None:
        if self._store.commit_count != self._commits and self.check_now():
            self._commits = self._store.commit_count

    def check_now(self) -> bool:
        """False: the destination does not answer, so nothing was checked."""
        sim, store = self._sim, self._store
        if not store.is_reachable:
            return False
        assert not store.errors, [error.transaction for error in store.errors.values()]
        progress = MemoryDestination(store=store).progress(sim.topology.name, self._apply.name)
        if progress is None:
            return True
        self.has_gap = bool(progress.above)
        sim.seen["applied above the low watermark"] += self.has_gap
        assert progress.low_watermark >= self.low_watermark, "the low watermark went back"
        self.low_watermark = progress.low_watermark
        if self.is_new and not self._is_of_one_moment():
            return True
        journal = {int.from_bytes(row[0], "big") for row in self._committed("journal").values() if row[0] is not None}
        lost = [n for n, scn in sim.published.items() if scn <= self.low_watermark and n not in journal]
        assert not lost, f"transactions {lost} are below the low watermark and not there"
        expected = dict.fromkeys(range(COUNTERS), 0)
        for number in sorted(journal):
            expected[sim.counter_of[number]] = number
        for row in self._committed("counter").values():
            assert row[0] is not None
            assert row[1] is not None
            assert int(row[1]) == expected[int.from_bytes(row[0], "big")], "a counter and the journal disagree"
        return True

    def _is_of_one_moment(self) -> bool:
        """Every table is there, and what was copied later than another one is made up for."""
        found = list(self._store.instantiations.values())
        done = len(found) == len(self._store.tables) and all(each.state != "COPYING" for each in found)
        return done and self.low_watermark >= max(each.scn for each in found)

    def _committed(self, name: str) -> dict[int, tuple[bytes | None, ...]]:
        """Rows that no open transaction has touched."""
        table = self._store.tables["public", name]
        touched = {lock[2] for lock in self._store.locks if lock[:2] == (id(table), "row")}
        return {number: row for number, row in table.rows.items() if number not in touched}

    def assert_identical(self) -> None:
        tables = [*TABLES, JOURNAL, COUNTER, WIDE]
        for table in tables:
            rows = self._store.rows("public", table.name)
            expected = list(self._sim.source.rows(f"public.{table.name}"))
            if self._apply.site == "dbs3" and table.name == HIDDEN_FROM_DBS3:
                expected = []
            assert rows == expected, f"{self._apply.site}.{table.name}"
        assert self._store.rows("public", RETURNED.name) == [], "tagged changes were sent on"
