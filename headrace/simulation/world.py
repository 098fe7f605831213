"""Simulation of a whole topology in one thread, with a network and a clock that a seed decides.

    users -> database -> log writer -> redo -> capture -> queue -> propagation -> queue -> apply process -> database ->
      ...
    the operator (`headrace.simulation.operator`): ALTERs, edits of the topology, stops and starts, a restored backup
    faults (`headrace.simulation.faults`): kills, cut streams, outages, full disks, power loss, two drivers at once,
    jumping clocks

Each step lets one component do a little work, advances the clock, or injects a fault. The invariants
(`headrace.simulation.checking.observer`) are checked after every commit and at the end. The simulation replaces
threads, gRPC, Ray, Spark and PostgreSQL. Capture processes, queues, propagations, rules, readers, coordinators, apply
servers, redo and progress are the real ones.
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
# Share of the steps in which a database's WAL writer flushes. With the first, no commit waits for long; with the
# second, some do. With the third, wal_writer_delay is so long that only synchronous commits flush, and they flush
# others too.
_FLUSHING_SHARES = (0.3, 0.03, 0.0)
_SETTLE_ROUNDS = 4000  # turns of each component after the last fault: twenty times the most that was ever needed
_CALM_ROUNDS = 300  # of faults after the last transaction: under constant faults a topology may never catch up


def small(spec: TopologySpec, folder: Path, rng: random.Random) -> TopologySpec:
    """Return the topology with very small bounds, and without schedules and bandwidths.

    The bounds are so small that a few transactions reach them.

    Args:
        spec: a checked topology.
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
    """One simulation of a topology.

    It has more than 15 fields because it implements `Surroundings` and `Running`; each of its readers knows only one of
    these.

    Args:
        spec: checked and routed (`topology.file.reading`).
        seed: decides every random choice.
        folder: empty folder for redo, spill files and positions.
        faults: kinds of faults, from `headrace.simulation.faults.EVERY_FAULT`.
        seconds: virtual seconds in which users write and faults happen.
        edits: whether the operator edits the topology, stops and starts components, and restores a backup.

    Attributes:
        folder: folder of redo, spill files and positions.
        steps: number of turns taken.
        running: the components.
        site_observers: the checks of each site's database.
        operator: alters tables and edits the topology.
        faults: the faults.
        users: the users who write.

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
        self._flushes = random.Random(seed)  # a separate generator: disk flushes must not change other decisions
        self.clock = SimulatedClock()
        self.trace = Trace(self.clock)
        self.fired: Counter[str] = Counter()  # faults and actions of the operator
        self.seen: Counter[str] = Counter()  # steps in which a rare state was seen
        self.steps = 0
        self.restored_sources: set[str] = set()  # sources whose destinations lost commits
        self.is_edited = False  # an edit has not reached every component: some still run by the old topology
        self.topology = small(spec, folder, self.rng)
        self._views: dict[str, TopologySpec] = {}  # by apply process: the topology that it runs by
        self.workload = Workload(self.topology, self.rng, seed)
        self.reach = self.workload.reach(self.topology)
        self.logs = SiteLogs()
        self.databases: dict[str, SiteDatabase] = {}
        self.site_observers: dict[str, SiteObserver] = {}
        for site in self.topology.sites:
            if site.database.kind != "none":
                self.add_database(site.name)
        for database in self.databases.values():
            database.source.confirmed_scn = database.source.current_scn()  # like a newly created slot
        self.running = RunningComponents()
        self.network = Network(self.rng, self.running.site_of, self.clock, self.trace)
        self.running.begin(self)
        self.operator = Operator(self, is_busy=edits)
        self.faults = Faults(self, faults)
        self.users = Users(self, self.operator, seconds)
        self._convergence = Convergence(self)

    def add_database(self, site: str) -> SiteDatabase:
        """Add a database with every table, empty."""
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
        """Return an apply process with its observer.

        Args:
            spec: its specification.
            is_new: whether it copies its tables first.
        """
        self._views[spec.name] = self.topology
        return ApplyProcess(self, spec, ApplyObserver(self, spec, self.site_observers[spec.site], is_new=is_new))

    # ------------------------------------------------------------------ what components ask

    def redo_of(self, capture: CaptureSpec) -> SourceSite | ReceiverProcess:
        """Return the component that keeps the redo of a capture process."""
        return self.running.redo_of(capture)

    def queue_folder(self, name: str) -> Path:
        """Return the folder of a queue's files."""
        return self.folder / "sites" / self.topology.queue(name).site / "queues" / name

    def links(self, apply: str) -> SimulatedLinks:
        """Return the links over which an apply process dequeues, by the topology that it knows.

        They lead to its queue, or to the capture process with which it is combined.
        """
        return SimulatedLinks(self.network, apply, reached_as=lambda _: self._dequeues_from(apply))

    def _dequeues_from(self, apply: str) -> str:
        view = self._views.get(apply, self.topology)
        capture = capture_of(view, view.apply(apply))
        return dequeued(view, view.apply(apply)) if capture is None else capture.name

    def adopts(self, apply: str, topology: TopologySpec) -> None:
        """Let an apply process adopt an edit.

        Args:
            apply: its name.
            topology: the topology that it runs by from now on.
        """
        self._views[apply] = topology

    def arriving(self, apply: ApplySpec) -> list[tuple[Table, TableName]]:
        """Return the tables that arrive at an apply process, with their names at its site."""
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

    # ------------------------------------------------------------------ what databases report

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
        """Crash and restart a site's server: commits that are not on its disk are lost."""
        lost = self.databases[site].store.crash()
        self.fired["commits lost"] += lost
        self.trace.note(f"database {site}", f"crashed, and lost {lost} commits")
        self.site_observers[site].rescan()
        for apply in self.running.applies.values():
            if apply.spec.site == site:
                apply.observer.crashed()

    # ------------------------------------------------------------------ running

    def run(self, progress: Callable[[float], None] = lambda _: None) -> None:
        """Let users write while faults happen, let the topology recover, and check the result.

        Args:
            progress: called from time to time with the share of the load that is done.

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
        self._settle()  # refused destinations are ignored here: nothing is kept for them, and the others continue
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
        """Let one component do a little work, then check."""
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
        """Switch to another version of the topology.

        Expected destinations change at once; the components adopt the edit one by one.

        Args:
            topology: the topology that runs.
            file: the topology without split streams, which do not change who receives what.
        """
        self.topology = topology
        self.reach = self.workload.reach(file)
        self.workload.expected.follow(file)

    def later(self, seconds_max: float, do: Callable[[], object]) -> None:
        """Schedule an action.

        Args:
            seconds_max: latest virtual time from now at which it happens.
            do: the action.
        """
        self.faults.later(do, seconds_max)
