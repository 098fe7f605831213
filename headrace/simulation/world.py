"""A whole topology in one thread: real cores, databases in memory, a network and a clock that a seed decides.

    users -> database -> log writer -> redo -> capture -> queue -> propagation -> queue -> apply process -> database ->
      ...
    the operator (`headrace.simulation.operator`): ALTERs, edits of the topology, stops and starts, a restored backup
    faults (`headrace.simulation.faults`): kills, cut streams, outages, full disks, power loss, two drivers at once, clocks that
    jump

Every step lets one component do a little, moves the clock, or does harm. After every commit, and at the end, what must
hold is checked: see `headrace.simulation.checking.observer`. Threads, gRPC, Ray and Spark are left out; capture processes,
queues, propagations, rules, readers, coordinators, apply servers, redo and progress are the real ones.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.databases.memory.store import StoredChange
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from headrace.simulation.checking.observer import ApplyObserver, SiteObserver
from headrace.simulation.components import ApplyProcess, SourceSite
from headrace.simulation.convergence import Convergence
from headrace.simulation.database import SiteDatabase
from headrace.simulation.downstream import ReceiverProcess
from headrace.simulation.faults import EVERY_FAULT, Faults
from headrace.simulation.network import Network, SimulatedLinks
from headrace.simulation.observing.history import Table
from headrace.simulation.observing.site_logs import SiteLogs
from headrace.simulation.observing.trace import Trace
from headrace.simulation.observing.violations import Invariant, Violation
from headrace.simulation.operator import Operator
from headrace.simulation.running import RunningComponents
from headrace.simulation.surroundings import SimulatedClock
from headrace.simulation.users import Users
from headrace.simulation.workload import Workload, refuse_unsupported
from topology.routing.combined import capture_of, dequeued
from topology.routing.ways import arriving, route, ways_to
from topology.spec import ApplySpec, CaptureSpec, TopologySpec

__all__ = ["Simulation", "small"]

SECONDS_DEFAULT = 30.0  # of load: long enough that redo is purged several times
# Of the steps those in which a database's WAL writer flushes: one in which no commit waits for long, one with some that
# wait, and one whose wal_writer_delay is so long that only commits that wait for the disk take others there.
_FLUSHING_SHARES = (0.3, 0.03, 0.0)
_SETTLE_ROUNDS = 4000  # turns of each component, once nothing breaks any more: twenty times what was needed at most
_CALM_ROUNDS = 300  # of harm after the last transaction: a topology that is hit all the time may never catch up


def small(spec: TopologySpec, folder: Path, rng: random.Random) -> TopologySpec:
    """A topology with bounds so small that a few transactions meet them, and without schedules and bandwidths.

    Args:
        spec: checked.
        folder: where its components keep their files.
        rng: decides the number of apply servers.
    """
    return route(
        replace(
            spec,
            state_dir=folder,
            redo_bytes_max=24_000,
            segment_bytes=4_000,
            queues=tuple(replace(queue, memory_bytes_max=12_000, spill_bytes_max=24_000) for queue in spec.queues),
            propagations=tuple(replace(each, schedule=None, bandwidth_max=None) for each in spec.propagations),
            applies=tuple(
                replace(apply, parallelism=rng.choice([1, 2, 3]), group_transactions=3, group_rows=20)
                for apply in spec.applies
            ),
        )
    )


class Simulation:
    """See the module.

    Args:
        spec: checked and routed (`topology.file.reading`).
        seed: decides everything.
        folder: of redo, spill files and positions; empty.
        faults: kinds of faults, of `headrace.simulation.faults.EVERY_FAULT`.
        seconds: of virtual time in which users write and things break.
        edits: the operator edits the topology, stops and starts components, and restores a backup.

    Attributes:
        folder: of redo, spill files and positions.
        steps: turns that were taken.
        running: the components.
        site_observers: what checks the database of each site.
        operator: who alters tables and edits the topology.
        faults: what breaks.
        users: who writes.

    More than 15 fields: it is what `Surroundings` and `Running` describe, and each of its readers knows one of these.

    Raises:
        ConfigError: the topology cannot be simulated.
    """

    def __init__(
        self,
        spec: TopologySpec,
        seed: int,
        folder: Path,
        *,
        faults: frozenset[str] = EVERY_FAULT,
        seconds: float = SECONDS_DEFAULT,
        edits: bool = True,
    ) -> None:
        refuse_unsupported(spec)
        self.seed, self.folder = seed, folder
        self.rng = random.Random(seed)
        self._flushes = random.Random(seed)  # apart: what a disk does decides nothing else
        self.clock = SimulatedClock()
        self.trace = Trace(self.clock)
        self.fired: Counter[str] = Counter()  # faults and deeds of the operator
        self.seen: Counter[str] = Counter()  # steps in which something rare was so
        self.steps = 0
        self.restored_sources: set[str] = set()  # of destinations that lost commits
        self.is_edited = False  # an edit is on its way to the components: some go by the topology before it
        self.topology = small(spec, folder, self.rng)
        self._views: dict[str, TopologySpec] = {}  # by apply process: the topology it runs by
        self.workload = Workload(self.topology, self.rng, seed)
        self.reach = self.workload.reach(self.topology)
        self.logs = SiteLogs()
        self.databases: dict[str, SiteDatabase] = {}
        self.site_observers: dict[str, SiteObserver] = {}
        for site in self.topology.sites:
            if site.database.kind != "none":
                self.add_database(site.name)
        for database in self.databases.values():
            database.source.confirmed_scn = database.source.current_scn()  # as a slot that is made now
        self.running = RunningComponents()
        self.network = Network(self.rng, self.running.site_of, self.clock, self.trace)
        self.running.begin(self)
        self.operator = Operator(self, is_busy=edits)
        self.faults = Faults(self, faults)
        self.users = Users(self, self.operator, seconds)
        self._convergence = Convergence(self)

    def add_database(self, site: str) -> SiteDatabase:
        """A database with every table, empty."""
        database = self.databases[site] = SiteDatabase(
            site,
            self.clock,
            lambda: self.rng.choice([1, 200, 1000, 65536]),
            has_log=any(capture.source == site for capture in self.topology.captures),
            flushing_share=self._flushes.choice(_FLUSHING_SHARES),
            committed=self._committed,
            logged=self._logged,
        )
        for table in self.workload.tables:
            database.create(table)
        for _, shaped in self.workload.expected.at(site):
            database.create(shaped.table)
        self.workload.contested.create(database)
        self.site_observers[site] = SiteObserver(self, database)
        return database

    def new_apply(self, spec: ApplySpec, *, is_new: bool = False) -> ApplyProcess:
        """An apply process with its observer.

        Args:
            spec: of it.
            is_new: it copies its tables first.
        """
        self._views[spec.name] = self.topology
        return ApplyProcess(self, spec, ApplyObserver(self, spec, self.site_observers[spec.site], is_new=is_new))

    # ------------------------------------------------------------------ what components ask

    def redo_of(self, capture: CaptureSpec) -> SourceSite | ReceiverProcess:
        """See `RunningComponents.redo_of`."""
        return self.running.redo_of(capture)

    def queue_folder(self, name: str) -> Path:
        """Where a queue keeps its files."""
        return self.folder / "sites" / self.topology.queue(name).site / "queues" / name

    def links(self, apply: str) -> SimulatedLinks:
        """The links of an apply process to what it dequeues from, by the topology it knows.

        Its queue, or the capture process that it is combined with.
        """
        return SimulatedLinks(self.network, apply, reached_as=lambda _: self._dequeues_from(apply))

    def _dequeues_from(self, apply: str) -> str:
        view = self._views.get(apply, self.topology)
        capture = capture_of(view, view.apply(apply))
        return dequeued(view, view.apply(apply)) if capture is None else capture.name

    def adopts(self, apply: str, topology: TopologySpec) -> None:
        """An apply process takes over an edit.

        Args:
            apply: its name.
            topology: that it runs by from now on.
        """
        self._views[apply] = topology

    def arriving(self, apply: ApplySpec) -> list[tuple[Table, TableName]]:
        """The tables that an apply process gets, with their names at its site."""
        tables = {(t.owner, t.name): t for t in self.workload.tables}
        tables |= {(owner, name): shaped.table for (_, owner, name), shaped in self.workload.expected.at(apply.source)}
        found = arriving(ways_to(self.topology, apply), (TableName(*name) for name in sorted(tables)))
        return [(tables[each.source.owner, each.source.name], each.destination) for each in found]

    def alter_destination(self, site: str) -> None:
        """Add the columns that tables of a site lack."""
        for ledger in self.workload.ledgers:
            if ledger.wide is not None:
                for number in range(self.workload.wide_columns[ledger.wide.place]):
                    self.databases[site].add_column(ledger.wide, f"c{number}")

    # ------------------------------------------------------------------ what databases tell

    def _committed(self, site: str, scn: Scn, apply: str, changes: Any) -> None:
        made: tuple[StoredChange, ...] = tuple(changes)
        if scn:
            self.trace.note(
                f"database {site}", f"{apply or 'a user'} committed {len(made)} changes", site, scn - 1, scn
            )
        else:
            self.trace.note(f"database {site}", f"{apply} committed {len(made)} changes")
        self.site_observers[site].committed(scn, apply, made)

    def _logged(self, site: str, scn: Scn, changes: Any) -> None:
        self.trace.note(f"database {site}", f"{len(changes)} changes of a commit are on disk", site, scn - 1, scn)
        self.site_observers[site].logged(scn, tuple(changes))

    def crash(self, site: str) -> None:
        """A site's server stops at once and comes back: commits that are not on its disk are gone."""
        lost = self.databases[site].store.crash()
        self.fired["commits lost"] += lost
        self.trace.note(f"database {site}", f"crashed, and lost {lost} commits")
        self.site_observers[site].rescan()
        for apply in self.running.applies.values():
            if apply.spec.site == site:
                apply.observer.crashed()

    # ------------------------------------------------------------------ running

    def run(self, progress: Callable[[float], None] = lambda _: None) -> None:
        """Let users write while faults happen; then let the topology recover, and check the result.

        Args:
            progress: called now and then with the share of the load that is done.

        Raises:
            Violation: an invariant does not hold.
        """
        rounds = len(self.running.turns)
        with self.faults.armed():
            while self.users.left:
                self.users.write()
                self.step()
                self.faults.happen()
                self.operator.act()
                if self.steps % 512 == 0:
                    progress(self.users.share_done)
            for _ in range(_CALM_ROUNDS * rounds):
                if not self._convergence.is_behind:
                    break
                self.step()
                self.faults.happen()
        self.faults.heal()
        self.operator.settle()
        self._settle()  # without those that are refused: nothing is kept for them, and the others go on
        self.operator.helps = True
        self._settle()
        for database in self.databases:
            self.alter_destination(database)
        for apply in self.running.applies.values():
            apply.observer.check_now()
        for observer in self.site_observers.values():
            observer.check_content()
        self.workload.contested.check(self.databases)
        self.seen["conflicts resolved"] += sum(len(database.store.conflicts) for database in self.databases.values())
        self.trace.note("simulation", "converged")

    def _settle(self) -> None:
        for _ in range(_SETTLE_ROUNDS):
            for _ in range(len(self.running.turns)):
                self.step()
                self.operator.act()
            is_refused = any(apply.refused for apply in self.running.applies.values())
            if self._convergence.is_settled and not (self.operator.helps and is_refused):
                return
        raise Violation(
            Invariant.LIVENESS,
            *(self._convergence.unsettled() or ("operator", "a refused destination was not copied again")),
        )

    def step(self) -> None:
        """Let one component do a little, and check."""
        self.steps += 1
        rng = self.rng
        self.clock.advance((rng.choice([0.001, 0.005, 0.02]) if rng.random() < 0.99 else 0.6) * self.running.pace)
        self.running.take_turn(rng)
        for database in self.databases.values():
            database.write_log(self._flushes)
        for apply in self.running.applies.values():
            apply.observer.check()
        self.operator.check()
        self._convergence.check_told()

    # ------------------------------------------------------------------ edits

    def edit(self, topology: TopologySpec, file: TopologySpec) -> None:
        """Run by another version of the topology.

        Who gets what is known at once, its components learn of it one by one.

        Args:
            topology: that runs.
            file: without what is split off, which changes nothing of who gets what.
        """
        self.topology = topology
        self.reach = self.workload.reach(file)
        self.workload.expected.follow(file)

    def later(self, seconds_max: float, do: Callable[[], object]) -> None:
        """Do something in a while.

        Args:
            seconds_max: at the latest, virtual.
            do: it.
        """
        self.faults.later(do, seconds_max)
