"""The operator of a simulated topology: ALTERs, edits of the file, stops and starts, and restored backups.

Edits
    Switching to `combined: never` and back, where the topology allows it, and adding and removing a second destination
    of a source, which copies its tables. As under the controller, bypassed or removed components end first, a queue
    that begins has forgotten its positions, and each remaining component adopts the edit at a different time.
A destination that loses commits
    A site that only receives, from one apply process, is restored from a backup. Either the lost changes are replayed,
    or the destination is refused by name because the redo is purged; then the operator has it copied again. The others
    continue meanwhile.

Where conditions or functions let single changes of a row pass, a copy differs from the result of the changes. Nothing
is copied there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.databases.memory.destination import MemoryDestination
from headrace.lcr.scn import FIRST_SCN
from headrace.redo.segments import list_segments
from headrace.simulation.components import ApplyProcess, BufferedQueue, CaptureProcess, Component, PropagationProcess
from headrace.simulation.splits import SplitStreams
from headrace.simulation.workload import Stream
from topology.edits.changes import changes, components_of
from topology.routing.ways import route
from topology.spec import ApplySpec, DatabaseSpec, PropagationSpec, QueueSpec, SiteSpec, TopologySpec

if TYPE_CHECKING:
    from headrace.simulation.running import Running

__all__ = ["ADDED", "Operator"]

ADDED = "simulated_destination"
"""Name of the site that an edit adds."""

_DEED_SHARE = 0.01  # of the steps without a pending action of the same kind, for twenty turns
_EDITS_MAX = 6  # under constant edits a run might never advance far enough
_STOPS_MAX = 3
_RESTORES_MAX = 2


@dataclass(frozen=True, slots=True)
class _Backup:
    """A backup of a destination.

    Args:
        site: its site.
        restore: restores it.
        source: source of the changes that it receives.
        first_segment: first redo segment when the backup was made.
        wants_gap: whether it is restored only after redo since then is purged.
    """

    site: str
    restore: Callable[[], None]
    source: str
    first_segment: int
    wants_gap: bool


class Operator:
    """The operator of one simulation.

    Args:
        sim: the simulation.
        is_busy: if False, the operator only alters tables that apply processes wait for.
    """

    def __init__(self, sim: Running, *, is_busy: bool) -> None:
        self._sim, self._rng, self._is_busy, self._edits_at_all = sim, sim.rng, is_busy, is_busy
        self._edits = self._stops = self._restores = 0
        self._has_grown = False
        self._runs = 0  # number of topologies run after the first one
        self._adopted: dict[str, int] = {}  # by apply process: number of the last topology that it adopted
        self._splits = SplitStreams(sim, sim.topology)
        self._backup: _Backup | None = None
        self.helps = True  # whether it has refused destinations copied again

    # ------------------------------------------------------------------ ALTER

    def alter_source(self, stream: Stream) -> None:
        """Add a column to a stream's wide table; every other site needs an ALTER when the new rows arrive."""
        sim = self._sim
        for ledger in sim.workload.ledgers:
            wide = ledger.wide
            database = sim.databases[stream.site]
            if wide is None or wide.number % len(sim.workload.streams) + 1 != stream.number or database.store.locks:
                continue
            if sim.workload.wide_columns[wide.place] >= 3 or self._lacking():
                continue
            database.add_column(wide, sim.workload.alter(wide))
            sim.trace.note(f"database {stream.site}", f"{wide.qualified_name} altered")
            sim.fired["table altered"] += 1
            return

    def _lacking(self) -> list[str]:
        """Return the sites where a table lacks a column of its newest rows."""
        sim = self._sim
        return [
            site
            for site, database in sim.databases.items()
            for ledger in sim.workload.ledgers
            if ledger.wide is not None
            if len(database.source.table(ledger.wide.qualified_name).version.columns) - 1
            < sim.workload.wide_columns[ledger.wide.place]
        ]

    def _alter_where_needed(self) -> None:
        """Alter a destination's tables when apply reports that it waits for that, or earlier."""
        for apply in self._sim.running.applies.values():
            if apply.driver is None or apply.store.locks:
                continue
            if apply.driver.reader.unfit is not None or self._rng.random() < 0.002:
                self._sim.alter_destination(apply.site)

    # ------------------------------------------------------------------ when

    def act(self) -> None:
        """Perhaps act."""
        sim, rng = self._sim, self._rng
        sim.faults.tend()
        if rng.random() < 0.1:
            self._alter_where_needed()
        self._help_the_refused()
        if self._edits_at_all and (split := self._splits.look(may_split=self._is_busy)) is not None:
            concerned = {each.component for each in changes(sim.topology, split) if each.action == "takes over"}
            self._run_by(split, adopting=[each for each in sim.running.components if each.name in concerned])
        if not self._is_busy or rng.random() > 4 * _DEED_SHARE * min(1.0, 40 / len(sim.running.components)):
            return
        # Backups are handled more often than edits, because a restore must wait until redo is purged.
        restoring = [self._back_up, self._restore] * 3 if sim.workload.copies_rows else []
        deed = rng.choice([self._edit, self._stop_one, *restoring])
        deed()

    def check(self) -> None:
        """Check the invariants of edits in progress."""
        self._splits.check()

    def settle(self) -> None:
        """Start what is stopped and stop acting; leave refused processes alone."""
        self._is_busy = self.helps = False
        for component in self._sim.running.components:
            if component.may_start:
                component.start()

    # ------------------------------------------------------------------ stop and start

    def _stop_one(self) -> None:
        stoppable = [c for c in self._sim.running.components if c.is_open and not c.name.startswith("site:")]
        if self._stops >= _STOPS_MAX or not stoppable:
            return
        component = self._rng.choice(stoppable)
        self._stops += 1
        self._sim.fired["stopped"] += 1
        component.stop()
        self._sim.later(10.0, partial(self._start, component))

    def _start(self, component: Component) -> None:
        if component.may_start and component in self._sim.running.components:
            component.start()

    # ------------------------------------------------------------------ a destination that loses commits

    def _restorable(self) -> list[str]:
        """Return the sites that only receive, from one apply process, and whose copies are complete."""
        sim = self._sim
        found = []
        for site in sim.databases:
            applies = [apply for apply in sim.running.applies.values() if apply.site == site]
            if site not in sim.running.sites and len(applies) == 1 and self._has_all(applies[0]):
                found.append(site)
        return found

    @staticmethod
    def _has_all(apply: ApplyProcess) -> bool:
        """Return whether an apply process has begun and completed its copies."""
        observer = apply.observer
        return (
            apply.refused is None
            and observer.check_now()
            and not observer.is_new
            and observer.low_watermark > FIRST_SCN
        )

    def _back_up(self) -> None:
        sites = self._restorable()
        if self._backup is not None or self._restores >= _RESTORES_MAX or not sites:
            return
        site = self._rng.choice(sites)
        store = self._sim.databases[site].store
        if store.is_reachable and not store.locks:
            (source,) = {apply.spec.source for apply in self._sim.running.applies.values() if apply.site == site}
            self._backup = _Backup(site, store.backup(), source, self._first_segment(source), self._rng.random() < 0.7)

    def _first_segment(self, source: str) -> int:
        return next((segment.number for segment in list_segments(self._redo_folder(source))), 0)

    def _redo_folder(self, source: str) -> Path:
        return next(
            self._sim.redo_of(capture).folder for capture in self._sim.topology.captures if capture.source == source
        )

    def _restore(self) -> None:
        if self._backup is None or self._splits.pending:
            return
        backup, site = self._backup, self._backup.site
        if site not in self._restorable() or not self._sim.databases[site].store.is_reachable:
            return
        if backup.wants_gap and self._first_segment(backup.source) <= backup.first_segment:
            return
        self._backup = None
        self._restores += 1
        sim = self._sim
        sim.trace.note(f"database {site}", "restored from a backup")
        sim.fired["restored"] += 1
        self._sim.restored_sources.add(backup.source)
        backup.restore()
        self._sim.alter_destination(site)
        observer = sim.site_observers[site]
        observer.rescan()
        for apply in sim.running.applies.values():
            if apply.site == site:
                apply.observer.restored()

    def _help_the_refused(self) -> None:
        for apply in self._sim.running.applies.values():
            # Not at once: the redo kept for a refused process, and its keeper, are part of the test.
            if self.helps and apply.refused is not None and apply.store.is_reachable and self._rng.random() < 0.002:
                self._copy_again(apply)

    def _copy_again(self, apply: ApplyProcess) -> None:
        """Copy the tables of an apply process again, as if it were removed from the file and added again."""
        sim = self._sim
        sim.trace.note(apply.name, "forgotten at its destination, to be copied again")
        sim.fired["copied again"] += 1
        MemoryDestination(store=apply.store).forget(sim.topology.name, apply.spec.name)
        for key in [key for key in apply.store.instantiations if key[1] == apply.spec.name]:
            del apply.store.instantiations[key]
        apply.observer.begun_anew()
        self._ignore_what_does_not_come(apply.spec)
        apply.refused, apply.is_stopped, apply.is_open = None, False, False

    def _ignore_what_does_not_come(self, spec: ApplySpec) -> None:
        """Ignore rows of streams whose changes do not arrive at the destination.

        A copy has the rows of every stream, including those.
        """
        sim = self._sim
        sim.site_observers[spec.site].ignored |= {
            stream.number
            for stream in sim.workload.streams
            for ledger in sim.workload.ledgers
            if spec.site not in sim.reach[stream.number, ledger.number].applies
        }

    # ------------------------------------------------------------------ edits

    def _edit(self) -> None:
        sim, rng = self._sim, self._rng
        if self._splits.pending or self._edits >= _EDITS_MAX:
            return
        self._edits += 1
        if any(site.name == ADDED for site in sim.topology.sites):
            self._shrink()
        elif not self._has_grown and sim.workload.copies_rows and rng.random() < 0.3:
            self._grow()
        else:
            file = self._splits.file
            chosen = rng.choice(file.applies)
            edited = replace(chosen, combined=not chosen.combined)
            self._take(replace(file, applies=tuple(edited if each is chosen else each for each in file.applies)))

    def _take(self, file: TopologySpec) -> None:
        """Run by another file."""
        sim, topology = self._sim, self._splits.edit(file)
        keepers = {each.component for each in changes(sim.topology, topology) if each.action == "takes over"}
        self._run_by(
            topology,
            adopting=[
                *sim.running.queues.values(),
                *sim.running.propagations.values(),
                *sim.running.captures.values(),
                *(
                    each
                    for each in (*sim.running.sites.values(), *sim.running.receivers.values())
                    if each.name in keepers
                ),
            ],
        )

    def _run_by(self, topology: TopologySpec, *, adopting: list[Component]) -> None:
        """Run by another topology.

        Args:
            topology: the file's topology, with the split streams.
            adopting: the remaining components that the edit affects; apply processes learn of it in any case.
        """
        sim = self._sim
        self._runs += 1
        before = {component.name for component in components_of(sim.topology)}
        after = {component.name for component in components_of(topology)}
        changed = {change.component for change in changes(sim.topology, topology) if change.action != "same"}
        if before != after:
            sim.fired["edited"] += 1
            sim.trace.note("operator", f"edit: {', '.join(sorted(before ^ after))}")
        sim.edit(topology, self._splits.file)
        for component in [each for each in sim.running.components if each.name in before - after]:
            self._end(component)
        for each in adopting:
            if each.name in after:
                self._soon(each.name, partial(self._adopt, each))
        for apply in topology.applies:
            self._soon(
                f"apply:{apply.name}",
                partial(
                    self._adopt_apply, apply.name, topology, self._runs, is_changed=f"apply:{apply.name}" in changed
                ),
            )
        for name in sorted(after - before):
            kind, _, short = name.partition(":")
            if kind in {"queue", "propagation", "capture"}:
                self._soon(name, partial(self._begin, kind, short))
        sim.running.deal()

    def _adopt(self, component: Component) -> None:
        if component in self._sim.running.components:
            component.adopt()

    def _adopt_apply(self, name: str, topology: TopologySpec, run: int, *, is_changed: bool) -> None:
        """Close and reopen an apply process whose part has changed, as `actors.hosting.host.Host`.

        An aborted process reopens too; its new queue refuses it if necessary. A process that was away may learn of two
        edits at once. The controller sees from its label which topology it runs by, and sends it the last one.
        """
        if run >= self._adopted.get(name, 0):
            self._adopted[name] = run
            self._sim.adopts(name, topology)
        apply = self._sim.running.applies.get(name)
        if not is_changed or apply is None:
            return
        if apply.refused is not None:
            self._sim.fired["refused one switched"] += 1
            apply.refused, apply.is_stopped = None, False
        # Messages from its previous queue no longer matter.
        apply.close()
        apply.is_open = False

    def _soon(self, name: str, adopt: Callable[[], object]) -> None:
        """Let a component adopt an edit, or begin, after a while."""
        self._splits.pending[name] += 1
        self._sim.is_edited = True

        def do() -> None:
            self._splits.pending.subtract([name])
            self._splits.pending = +self._splits.pending
            self._sim.is_edited = bool(self._splits.pending)
            adopt()

        self._sim.later(3.0, do)

    def _begin(self, kind: str, name: str) -> None:
        sim = self._sim
        if kind == "queue":
            shutil.rmtree(sim.queue_folder(name), ignore_errors=True)
            sim.running.queues[name] = BufferedQueue(sim, name)
        elif kind == "propagation":
            sim.running.propagations[name] = PropagationProcess(sim, sim.topology.propagation(name))
        else:
            self._begin_capture(name)
        sim.running.deal()

    def _begin_capture(self, name: str) -> None:
        """Begin a capture process, but not before redo is kept for it, as under the controller."""
        capture = self._sim.topology.capture(name)
        if self._sim.redo_of(capture).name in self._splits.pending:
            self._soon(f"capture:{name}", partial(self._begin, "capture", name))
        else:
            self._sim.running.captures[name] = CaptureProcess(self._sim, capture)

    def _end(self, component: Component) -> None:
        component.forget()
        component.is_open = False
        name = component.name.partition(":")[2]
        for kind in (
            self._sim.running.queues,
            self._sim.running.propagations,
            self._sim.running.applies,
            self._sim.running.captures,
        ):
            if kind.get(name) is component:
                del kind[name]

    def _grow(self) -> None:
        """Add a second destination of a capture process's queue."""
        sim = self._sim
        self._has_grown = True
        sim.fired["destination added"] += 1
        file = self._splits.file
        capture = self._rng.choice(file.captures)
        queue, name = f"q_{ADDED}", f"apply_at_{ADDED}"
        example = file.applies[0]
        apply = replace(
            example, name=name, site=ADDED, source=capture.source, queue=queue, parallelism=2, combined=False
        )
        topology = route(
            replace(
                file,
                sites=(*file.sites, SiteSpec(name=ADDED, database=DatabaseSpec(kind="none"))),
                queues=(
                    *file.queues,
                    QueueSpec(name=queue, site=ADDED, memory_bytes_max=12_000, spill_bytes_max=24_000),
                ),
                propagations=(
                    *file.propagations,
                    PropagationSpec(name=f"to_{ADDED}", from_queue=capture.queue, to_queue=queue),
                ),
                applies=(*file.applies, apply),
            )
        )
        self._take(topology)
        sim.add_database(ADDED)
        sim.site_observers[ADDED].is_of_one_moment = False
        self._ignore_what_does_not_come(apply)
        self._soon(f"apply:{name} begins", partial(self._begin_apply, topology.apply(name)))

    def _begin_apply(self, apply: ApplySpec) -> None:
        self._sim.running.applies[apply.name] = self._sim.new_apply(apply, is_new=True)
        self._sim.running.deal()

    def _shrink(self) -> None:
        sim = self._sim
        sim.fired["destination removed"] += 1
        name = f"apply_at_{ADDED}"
        if self._backup is not None and self._backup.site == ADDED:
            self._backup = None
        topology = self._splits.file
        applies = tuple(each for each in topology.applies if each.name != name)
        queue = f"q_{ADDED}"
        apply = sim.running.applies[name]
        self._take(
            route(
                replace(
                    topology,
                    sites=tuple(each for each in topology.sites if each.name != ADDED),
                    queues=tuple(each for each in topology.queues if each.name != queue),
                    propagations=tuple(each for each in topology.propagations if each.to_queue != queue),
                    applies=applies,
                )
            )
        )
        apply.end_older()
        del sim.databases[ADDED], sim.site_observers[ADDED]
