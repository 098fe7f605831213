"""Invariants at the sites of a simulated topology, which hold under every fault.

Nothing lost      every transaction up to an apply process's low watermark is at its site.
Nothing twice     a transaction's entry is written to the ledger once; nothing enters the error queue.
Order             after every commit, a counter is at the last of its transactions that the ledger has.
Right place       no change arrives where rules and tags exclude it.
Watermarks        never decrease, even across crashes; redo is discarded only when it is applied everywhere.
Convergence       in the end each site has what the streams that reach it committed, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import Row, StoredChange
from headrace.lcr.batch import Command
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.simulation.checking.shaped_observer import ShapedObserver
from headrace.simulation.observing.site_logs import Entry
from headrace.simulation.observing.violations import Invariant, Violation, require
from headrace.simulation.workload import Ledger, ledger_entry, stream_of

if TYPE_CHECKING:
    from headrace.simulation.database import SiteDatabase
    from headrace.simulation.surroundings import Surroundings
    from topology.spec import ApplySpec

__all__ = ["ApplyObserver", "SiteObserver"]

Entries = tuple[int, int]
"""Numbers of a stream and of a table class."""


class SiteObserver:
    """Checks the content of one site, commit by commit.

    Args:
        sim: the simulation.
        database: of the site.
    """

    def __init__(self, sim: Surroundings, database: SiteDatabase) -> None:
        self._sim, self._database, self.site = sim, database, database.site
        self.there: dict[Entries, set[int]] = {}
        self.shaped = ShapedObserver(sim, database)
        self._last: dict[tuple[int, int, int], int] = {}  # stream, class, counter -> its last transaction at the site
        self.ignored: set[int] = set()  # streams of which only a copy arrived
        self.is_of_one_moment = True  # False while tables are copied

    def committed(self, scn: Scn, apply: str, changes: Sequence[StoredChange]) -> None:
        """Check what a commit changed.

        Args:
            scn: SCN of the commit in the site's log; 0: it is in no log.
            apply: the apply process that committed; empty: a user.
            changes: the commit's changes.
        """
        touched: set[tuple[int, int, int]] = set()
        # Contested tables are checked at the end only: their interim states depend on what has arrived.
        contested = self._sim.workload.contested.names
        changes = [each for each in changes if (each.owner, each.name) not in contested] if contested else changes
        others = self.shaped.committed(apply, changes, is_checked=self.is_of_one_moment)
        for change in others:
            ledger = self._sim.workload.ledger_of(change.owner, change.name)
            if apply and self.is_of_one_moment:
                self._check_place(apply, change)
            if ledger is None:
                continue
            if change.command in {Command.TRUNCATE, Command.DELETE}:
                raise Violation(
                    Invariant.CONVERGENCE, self.site, f"{apply} emptied {change.owner}.{change.name}; no user does so"
                )
            self._enter(scn, apply, ledger, change, touched)
        if self.is_of_one_moment:
            self._check_counters(touched, apply)

    def _enter(
        self,
        scn: Scn,
        apply: str,
        ledger: Ledger,
        change: StoredChange,
        touched: set[tuple[int, int, int]],
    ) -> None:
        assert change.new is not None
        assert change.new[0] is not None
        kind, number = ledger_entry(change.new[0])
        stream = stream_of(change.new[0])
        if kind == "counter":
            touched.add((stream, ledger.number, number))
            return
        there = self.there.setdefault((stream, ledger.number), set())
        if number in there and self.is_of_one_moment:
            raise Violation(
                Invariant.NOTHING_TWICE,
                self.site,
                f"{apply} applied transaction {number} of {self._sim.workload.stream(stream)} again",
                self._sim.logs.scns(stream, number),
            )
        there.add(number)
        if scn:
            self._sim.logs.add(self.site, Entry(scn, stream, ledger.number, number))
        counter = self._sim.workload.stream(stream).committed[ledger.number].get(number)
        if counter is not None:
            key = stream, ledger.number, counter
            self._last[key] = max(self._last.get(key, 0), number)
            touched.add(key)

    def logged(self, scn: Scn, changes: Sequence[StoredChange]) -> None:
        """Record what an apply process committed when it is in the site's log.

        Args:
            scn: SCN of the commit there.
            changes: the commit's changes.
        """
        for change in changes:
            ledger = self._sim.workload.ledger_of(change.owner, change.name)
            if ledger is not None and change.new is not None and change.new[0] is not None:
                kind, number = ledger_entry(change.new[0])
                if kind == "journal":
                    self._sim.logs.add(self.site, Entry(scn, stream_of(change.new[0]), ledger.number, number))

    def _check_place(self, apply: str, change: StoredChange) -> None:
        """Check by the row's stream that the row may arrive here, and through this apply process."""
        row = change.new or change.old
        if row is None or row[0] is None:
            return
        stream = stream_of(row[0])
        expected = self._sim.reach[stream, self._sim.workload.class_number(change.owner, change.name)].applies.get(
            self.site
        )
        if stream not in self.ignored and (expected is None or expected[-1] != apply) and not self._sim.is_edited:
            raise Violation(
                Invariant.RIGHT_PLACE,
                self.site,
                f"{apply} applied a change of {self._sim.workload.stream(stream)} to {change.owner}.{change.name},"
                " which rules and tags exclude there",
            )

    def _check_counters(self, touched: set[tuple[int, int, int]], apply: str = "") -> None:
        for stream, number, counter in sorted(touched):
            if stream in self.ignored:
                continue
            value = self._counter(stream, self._sim.workload.ledgers[number], counter)
            expected = self._last.get((stream, number, counter), 0)
            if value is not None and value != expected:
                raise Violation(
                    Invariant.ORDER,
                    self.site,
                    f"{apply or 'a user'} left a counter of {self._sim.workload.stream(stream)} at transaction {value},"
                    f" but the ledger has {expected}",
                    self._sim.logs.scns(stream, max(expected, value)),
                )

    def _counter(self, stream: int, ledger: Ledger, counter: int) -> int | None:
        stored = self._database.store.tables[ledger.table.owner, ledger.table.name]
        number = stored.unique[0].get((self._sim.workload.counter_key(stream, counter),))
        if number is None:
            return None
        value = stored.rows[number][1]
        return None if value is None else int(value)

    def rescan(self) -> None:
        """Accept the current content, after a restored backup or a complete copy."""
        self.there.clear()
        self._last.clear()
        self.shaped.rescan()
        touched = set()
        for ledger in self._sim.workload.ledgers:
            for row in self._database.store.tables[ledger.table.owner, ledger.table.name].rows.values():
                assert row[0] is not None
                kind, number = ledger_entry(row[0])
                stream = stream_of(row[0])
                if kind != "journal":
                    continue
                self.there.setdefault((stream, ledger.number), set()).add(number)
                counter = self._sim.workload.stream(stream).committed[ledger.number].get(number)
                if counter is not None:
                    key = stream, ledger.number, counter
                    self._last[key] = max(self._last.get(key, 0), number)
                    touched.add(key)
        if self.is_of_one_moment:
            self._check_counters(touched)

    def check_content(self) -> None:
        """Check at the end that the site has everything that was committed for it, and nothing else."""
        sim = self._sim
        for ledger in sim.workload.ledgers:
            wide = () if ledger.wide is None else (ledger.wide,)
            for table in (ledger.table, *(table for table, _ in ledger.others), *wide):
                expected: list[Row] = []
                for stream in sim.workload.streams:
                    reach = sim.reach[stream.number, ledger.number]
                    if stream.number not in self.ignored and (stream.site == self.site or self.site in reach.applies):
                        expected += sim.workload.rows_of(stream, table, ledger)
                found = [
                    row
                    for row in self._database.store.rows(table.owner, table.name)
                    if row[0] is None or stream_of(row[0]) not in self.ignored
                ]
                expected.sort(key=lambda row: [(value is not None, value or b"") for value in row])
                if found != expected:
                    self._tell_difference(table.qualified_name, expected, found)
        self.shaped.check_content()

    def _tell_difference(self, table: str, expected: list[Row], found: list[Row]) -> None:
        missing = [row for row in expected if row not in found]
        extra = [row for row in found if row not in expected]
        about = (missing or extra or found)[0]
        stream = self._sim.workload.stream(stream_of(about[0] or b""))
        kind, number = ledger_entry(about[0] or b"")
        raise Violation(
            Invariant.CONVERGENCE,
            self.site,
            f"{table}: {len(missing)} rows are missing, {len(extra)} are unexpected; the first belongs to {stream}",
            self._sim.logs.scns(stream.number, number) if kind == "journal" else {},
        )


class ApplyObserver:
    """Checks one apply process: its watermark against the content of its site.

    Args:
        sim: the simulation.
        apply: the apply process.
        site: its site.
        is_new: whether it was added while the others ran, and copies its tables.
    """

    def __init__(self, sim: Surroundings, apply: ApplySpec, site: SiteObserver, *, is_new: bool = False) -> None:
        self._sim, self.apply, self.site, self.is_new = sim, apply, site, is_new
        self.store = sim.databases[apply.site].store
        self.low_watermark = FIRST_SCN
        self.is_restored_below = FIRST_SCN  # a restored backup undid what was applied up to here
        self._checked_arrivals = 0
        self.has_gap = False  # something above the low watermark is applied, something below it is not
        self._commits = -1
        self._checked = 0  # entries of its source's log that are checked

    def check(self) -> None:
        """Check if the destination committed since the last check."""
        if self.store.commit_count != self._commits and self.check_now():
            self._commits = self.store.commit_count

    def check_now(self) -> bool:
        """Check now; return False if the destination does not answer, so that nothing was checked."""
        sim = self._sim
        if not self.store.is_reachable:
            return False
        if self.store.errors:
            error = next(iter(self.store.errors.values())).transaction
            raise Violation(
                Invariant.NOTHING_TWICE,
                self.apply.site,
                f"a transaction of {error.apply} entered the error queue: {error.message}",
                sim.logs.scns_at(self.apply.source, int(error.commit_scn)),
            )
        progress = MemoryDestination(store=self.store).progress(sim.topology.name, self.apply.name)
        if progress is None:
            return True
        self.has_gap = bool(progress.above)
        sim.seen["applied above the low watermark"] += self.has_gap
        require(
            progress.low_watermark >= self.low_watermark,
            Invariant.WATERMARKS,
            self.apply.name,
            f"the low watermark went back from {self.low_watermark} to {progress.low_watermark}",
        )
        self.low_watermark = progress.low_watermark
        # A crash may undo it again while commits are not flushed.
        if self.low_watermark >= self.is_restored_below and not self.store.unflushed:
            self.is_restored_below = FIRST_SCN
        if self.is_new and not self._is_complete():
            return True
        self._check_lost()
        self._checked_arrivals = self.site.shaped.check_lost(self.apply, self.low_watermark, self._checked_arrivals)
        return True

    @property
    def is_incomplete(self) -> bool:
        """Whether its tables are still being copied, or its copies are not caught up."""
        return self.is_new and not (self.check_now() and self._is_complete())

    def _is_complete(self) -> bool:
        """Return whether every table is copied and the low watermark has passed every copy's snapshot."""
        found = [each for key, each in self.store.instantiations.items() if key[1] == self.apply.name]
        wanted = len(self._sim.arriving(self.apply))
        if len(found) < wanted or any(each.state == "COPYING" for each in found):
            return False
        if self.low_watermark < max((each.scn for each in found), default=FIRST_SCN):
            return False
        if not self.site.is_of_one_moment:
            if self.store.locks:
                # The rows include what an open transaction wrote, which would be seen again at its commit.
                return False
            self.site.is_of_one_moment = True
            self.site.rescan()
        return True

    def _check_lost(self) -> None:
        entries = self._sim.logs.of(self.apply.source)
        while self._checked < len(entries):
            entry = entries[self._checked]
            if entry.scn > self.low_watermark:
                return
            self._checked += 1
            stream, number, transaction = entry.stream, entry.number, entry.transaction
            path = self._sim.reach[stream, number].applies.get(self.apply.site, ())
            if self.apply.name in path[-1:] and transaction not in self.site.there.get((stream, number), set()):
                raise Violation(
                    Invariant.NOTHING_LOST,
                    self.apply.site,
                    f"transaction {transaction} of {self._sim.workload.stream(stream)} is below the low watermark"
                    f" {self.low_watermark} of {self.apply.name}, but missing",
                    self._sim.logs.scns(stream, transaction),
                )

    def restored(self) -> None:
        """Reset the checks: a backup of the destination was restored, and replay may begin behind it."""
        self.is_restored_below = max(self.is_restored_below, self.low_watermark)
        self.low_watermark, self._checked, self._checked_arrivals, self._commits = FIRST_SCN, 0, 0, -1

    def crashed(self) -> None:
        """Reset the checks: the destination crashed and may have lost commits that it had not confirmed.

        It may be behind by these commits; redo and queues must still have all of them.
        """
        self.low_watermark, self._checked, self._checked_arrivals, self._commits = FIRST_SCN, 0, 0, -1

    def begun_anew(self) -> None:
        """Reset the checks: the destination forgot the apply process, which copies its tables again."""
        self.is_new, self.low_watermark, self._checked, self._checked_arrivals = True, FIRST_SCN, 0, 0
        self.is_restored_below = FIRST_SCN
        self.site.is_of_one_moment = False

    @property
    def may_be_refused(self) -> bool:
        """Whether the destination may refuse the apply process.

        It may when it lost commits, or when it was added while the changes were replayed to another destination that
        did: the new apply process begins where that one is.
        """
        return bool(self.is_restored_below) or (self.is_new and self.apply.source in self._sim.restored_sources)

    def allows(self, required: Scn) -> bool:
        """Return whether this destination allows discarding redo below `required`."""
        if self.is_new and self.low_watermark == FIRST_SCN:
            return True  # its starting position is not known yet, and no redo below it is kept for it
        if self.may_be_refused or required <= self.low_watermark:
            return True
        return not self.check_now() or required <= self.low_watermark or self.may_be_refused
