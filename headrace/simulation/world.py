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
from headrace.simulation.components import (
    ApplyProcess,
    BufferedQueue,
    CaptureProcess,
    Component,
    PropagationProcess,
    SourceSite,
)
from headrace.simulation.database import SiteDatabase
from headrace.simulation.downstream import ReceiverProcess
from headrace.simulation.faults import EVERY_FAULT, Faults
from headrace.simulation.network import Network, SimulatedLinks
from headrace.simulation.observing.history import Table
from headrace.simulation.observing.trace import Trace
from headrace.simulation.observing.violations import Invariant, Violation
from headrace.simulation.operator import Operator
from headrace.simulation.surroundings import SimulatedClock
from headrace.simulation.workload import Stream, Workload, refuse_unsupported
from topology.edits.changes import components_of
from topology.routing.combined import capture_of, dequeued
from topology.routing.downstream import redo_receivers
from topology.routing.ways import arriving, route, ways_to
from topology.spec import ApplySpec, CaptureSpec, TopologySpec

__all__ = ["Simulation", "small"]

SECONDS_DEFAULT = 30.0  # of load: long enough that redo is purged several times
_TRANSACTIONS_PER_S = 3.0  # of all users together: redo and queues are small, so that these fill them
_STEP_S = 0.0147  # virtual, on average, with twenty turns
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
        self._left = max(1, round(seconds * _TRANSACTIONS_PER_S))
        self._load_s = seconds
        self.topology = small(spec, folder, self.rng)
        self._views: dict[str, TopologySpec] = {}  # by apply process: the topology it runs by
        self.workload = Workload(self.topology, self.rng, seed)
        self._streams = {stream.number: stream for stream in self.workload.streams}
        self.reach = self.workload.reach(self.topology)
        self._logs: dict[str, list[tuple[Scn, int, int, int]]] = {}
        self._scns: dict[tuple[int, int], dict[str, int]] = {}
        self.databases: dict[str, SiteDatabase] = {}
        self._flushing_shares: dict[str, float] = {}
        self.site_observers: dict[str, SiteObserver] = {}
        for site in self.topology.sites:
            if site.database.kind != "none":
                self.add_database(site.name)
        for database in self.databases.values():
            database.source.confirmed_scn = database.source.current_scn()  # as a slot that is made now
        self._build()
        self.operator = Operator(self, is_busy=edits)
        self.faults = Faults(self, faults)

    def _build(self) -> None:
        running = {component.name for component in components_of(self.topology)}
        self.network = Network(self.rng, self._site_of, self.clock, self.trace)
        captured = {capture.source for capture in self.topology.captures}
        self.sites = {site: SourceSite(self, site) for site in self.databases if site in captured}
        self.receivers = {each.name: ReceiverProcess(self, each) for each in redo_receivers(self.topology)}
        self.captures = {spec.name: CaptureProcess(self, spec) for spec in self.topology.captures}
        self.queues = {
            each.name: BufferedQueue(self, each.name)
            for each in self.topology.queues
            if f"queue:{each.name}" in running
        }
        self.propagations = {
            spec.name: PropagationProcess(self, spec)
            for spec in self.topology.propagations
            if f"propagation:{spec.name}" in running
        }
        self.applies = {spec.name: self.new_apply(spec) for spec in self.topology.applies}
        self.list_components()

    def list_components(self) -> None:
        """Everything that gets turns; apply processes consist of several processes each: they get more."""
        self.components: list[Component] = [
            *self.sites.values(),
            *self.receivers.values(),
            *self.captures.values(),
            *self.queues.values(),
            *self.propagations.values(),
            *self.applies.values(),
        ]
        self._turns: list[Callable[[], object]] = [
            *(component.tick for component in self.components),
            *[apply.tick for apply in self.applies.values()] * 3,
            *[self.network.deliver] * (2 + len(self.components) // 10),
        ]
        self._pace = 20 / len(self._turns)  # virtual time runs slower with more components, which take turns

    def add_database(self, site: str) -> SiteDatabase:
        """A database with every table, empty."""
        database = self.databases[site] = SiteDatabase(
            site,
            self.clock,
            lambda: self.rng.choice([1, 200, 1000, 65536]),
            has_log=any(capture.source == site for capture in self.topology.captures),
            committed=self._committed,
            logged=self._logged,
        )
        self._flushing_shares[site] = self._flushes.choice(_FLUSHING_SHARES)
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
        """Where the redo is that a capture process mines."""
        return (
            self.receivers[f"{capture.source}@{capture.site}"] if capture.is_downstream else self.sites[capture.source]
        )

    def _mined(self) -> list[tuple[str, SourceSite | ReceiverProcess]]:
        """Each redo that is mined, with its source."""
        return list({(c.source, c.site): (c.source, self.redo_of(c)) for c in self.topology.captures}.values())

    def _site_of(self, name: str) -> str:
        for kind in (self.captures, self.queues, self.propagations, self.applies):
            if name in kind:
                return kind[name].site
        return ""

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

    # ------------------------------------------------------------------ what observers ask

    def stream(self, number: int) -> Stream:
        """A stream by its number."""
        return self._streams[number]

    def log_of(self, site: str) -> list[tuple[Scn, int, int, int]]:
        """What a site's log has: commit SCN, stream, class, number of the transaction."""
        return self._logs.setdefault(site, [])

    def published(self, site: str, scn: Scn, stream: int, number: int, transaction: int) -> None:
        """A transaction is in a site's log.

        Args:
            site: it is.
            scn: of the commit.
            stream: whose it is.
            number: of the class.
            transaction: its number in the stream.
        """
        self.log_of(site).append((scn, stream, number, transaction))
        self._scns.setdefault((stream, transaction), {})[site] = scn

    def scns(self, stream: int, transaction: int) -> dict[str, int]:
        """The commit SCN that a transaction has in each log.

        Args:
            stream: whose it is.
            transaction: its number in the stream.
        """
        return self._scns.get((stream, transaction), {})

    def scns_at(self, site: str, scn: int) -> dict[str, int]:
        """The commit SCNs of the transaction that committed at `scn` in a site's log.

        Args:
            site: whose log.
            scn: in it.
        """
        return next(
            (self.scns(stream, number) for found, stream, _, number in self.log_of(site) if found == scn), {site: scn}
        )

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
        for apply in self.applies.values():
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
        wanted = self._left
        rounds = len(self._turns)
        with self.faults.armed():
            while self._left:
                self._use()
                self.step()
                self.faults.happen()
                self.operator.act()
                if self.steps % 512 == 0:
                    progress(1 - self._left / wanted)
            for _ in range(_CALM_ROUNDS * rounds):
                if not self._is_behind():
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
        for apply in self.applies.values():
            apply.observer.check_now()
        for observer in self.site_observers.values():
            observer.check_content()
        self.workload.contested.check(self.databases)
        self.seen["conflicts resolved"] += sum(len(database.store.conflicts) for database in self.databases.values())
        self.trace.note("simulation", "converged")

    def _settle(self) -> None:
        for _ in range(_SETTLE_ROUNDS):
            for _ in range(len(self._turns)):
                self.step()
                self.operator.act()
            if self._is_settled() and not (
                self.operator.helps and any(apply.refused for apply in self.applies.values())
            ):
                return
        raise Violation(
            Invariant.LIVENESS, *(self._unsettled() or ("operator", "a refused destination was not copied again"))
        )

    def step(self) -> None:
        """Let one component do a little, and check."""
        self.steps += 1
        rng = self.rng
        self.clock.advance((rng.choice([0.001, 0.005, 0.02]) if rng.random() < 0.99 else 0.6) * self._pace)
        rng.choice(self._turns)()
        for site, database in self.databases.items():
            database.write_log(self._flushes, self._flushing_shares[site])
        for apply in self.applies.values():
            apply.observer.check()
        self.operator.check()
        self._check_told()

    def _use(self) -> None:
        """Perhaps a user commits."""
        rng = self.rng
        if rng.random() > _TRANSACTIONS_PER_S * _STEP_S * self._pace:
            return
        stream = rng.choices(self.workload.streams, [1 if each.tag is None else 0.3 for each in self.workload.streams])[
            0
        ]
        database = self.databases[stream.site]
        if database.is_down or not database.store.is_reachable:
            return
        self._left -= 1
        kind = rng.random()
        if kind < 0.04:
            database.source.other_activity()
        elif kind < 0.07:
            database.source.write_marker(b"marker")
        else:
            if kind < 0.11:
                self.operator.alter_source(stream)
            changes = self.workload.next_transaction(stream)
            if stream.tag is None:
                changes += self.workload.contested.changes(stream.site, database)
            scn = database.commit(stream.tag, changes)
            self.workload.contested.made(stream.site, database, changes)
            self.workload.expected.committed(stream.site, scn)

    def _check_told(self) -> None:
        """Everything that the log writers may forget is at every destination."""
        for receiver in self.receivers.values():
            receiver.check()
        for site, component in self._mined():
            if component.keeper is None:
                continue
            required = component.keeper.required_checkpoints.lowest
            if not required:
                continue
            for apply in self.applies.values():
                if apply.spec.source == site and apply.refused is None and not apply.observer.allows(Scn(required)):
                    raise Violation(
                        Invariant.PROMISES,
                        component.name,
                        f"redo below {required} is given up, and {apply.name} has applied everything up to"
                        f" {apply.observer.low_watermark} only",
                        self.scns_at(
                            site, next((e[0] for e in self.log_of(site) if e[0] > apply.observer.low_watermark), 0)
                        ),
                    )

    def _is_behind(self) -> bool:
        """Whether most commits are not applied everywhere yet, so that faults still hit every stage."""
        for apply in self.applies.values():
            log = [entry[0] for entry in self.log_of(apply.spec.source)] or self.workload.contested.log.get(
                apply.spec.source, []
            )
            if log and apply.observer.low_watermark < log[len(log) * 4 // 5] and apply.refused is None:
                return True
        return False

    def _is_settled(self) -> bool:
        """Everything is applied, every component knows it, and nothing is kept any more."""
        return not self._unsettled()

    def _unsettled(self) -> tuple[str, str] | tuple[()]:
        """What is left: the place, and what is the matter there; empty: nothing."""
        for name, site in self._mined():
            last = self.databases[name].source.current_scn()
            if not any(apply.source == name for apply in self.topology.applies):
                continue
            required = (site.keeper.required_checkpoints.lowest or 0) if site.keeper else 0
            if required < last:
                behind = [
                    f"{a.name} {a.observer.low_watermark}{' (refused)' if a.refused else ''}"
                    for a in self.applies.values()
                    if a.spec.source == name
                ]
                return (
                    site.name,
                    f"its log ends at {last}, and redo is kept from {required} on; low watermarks: {', '.join(behind)}",
                )
        for apply in self.applies.values():
            if apply.refused is None and apply.observer.is_incomplete:
                return (
                    apply.name,
                    f"its tables are not all copied, or made up for; low watermark {apply.observer.low_watermark}",
                )
        for name, queue in self.queues.items():
            batches = queue.core.status().batches if queue.core else -1
            if batches:
                return f"queue:{name}", "it is down" if batches < 0 else f"{batches} batches are left in it"
        return ()

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
