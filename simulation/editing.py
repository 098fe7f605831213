"""A simulated topology whose capture process is combined with its apply process, and is edited all the time.

    dbs1 -> log writer -> redo -> capture_dbs1 -> apply_dbs2 (3 servers)
    and after an edit         redo -> capture_dbs1 -> q_dbs1 -> to_dbs2 -> q_dbs2 -> apply_dbs2
                                                        `-----> to_dbs4 -> q_dbs4 -> apply_dbs4, perhaps

An edit says `combined: never` or takes that back, or adds a second destination or removes it. As under the controller, what is bypassed
ends first, a queue that begins has forgotten its positions, and who goes on adopts the edit at a time of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from databases.memory_store import MemoryStore
from rules.rule import ANY_TAG, Rule, RuleSet
from simulation.components import ApplyProcess, BufferedQueue, Component, PropagationProcess
from simulation.history import TABLES
from simulation.observer import COUNTER, JOURNAL, PRIVATE, RETURNED, WIDE, Observer
from simulation.world import BOUNDS, SMALL, Simulation
from topology.changes import components_of
from topology.combined import capture_of
from topology.spec import ApplySpec, CaptureSpec, DatabaseSpec, PropagationSpec, QueueSpec, SiteSpec, TopologySpec

__all__ = ["CombinedSimulation"]

EDIT_SHARE = 0.004  # of the steps in which none is going on
EDITS_MAX = 8  # else a run that is hit all the time might never come far enough
_DATABASE = DatabaseSpec(kind="none")


class CombinedSimulation(Simulation):
    """See the module and `Simulation`."""

    def __init__(self, seed: int, folder: Path, **settings: Any) -> None:
        self._views: dict[str, TopologySpec] = {}  # by apply process: the topology it runs by
        self._adopting = 0
        self._edits = 0
        self._has_grown = False
        super().__init__(seed, folder, **settings)
        self._joins = False

    def _first_topology(self) -> TopologySpec:
        return TopologySpec(
            name="topology", file=self.folder / "topology.yaml", state_dir=self.folder,
            sites=tuple(SiteSpec(name=site, database=_DATABASE) for site in ("dbs1", "dbs2")),
            queues=(QueueSpec(name="q_dbs1", site="dbs1", **SMALL), QueueSpec(name="q_dbs2", site="dbs2", **SMALL)),
            captures=(CaptureSpec(
                name="capture_dbs1", site="dbs1", source="dbs1", queue="q_dbs1",
                rules=RuleSet(include=(Rule(owner="public"),), exclude=(Rule(name=PRIVATE.name, tags=ANY_TAG),)),
            ),),
            propagations=(PropagationSpec(name="to_dbs2", from_queue="q_dbs1", to_queue="q_dbs2", sources=("dbs1",)),),
            applies=(ApplySpec(
                name="apply_dbs2", site="dbs2", source="dbs1", queue="q_dbs2", parallelism=3, combined=self.rng.random() < 0.8, **BOUNDS,
            ),),
            redo_bytes_max=24_000, segment_bytes=4_000,
        )

    def dequeues_from(self, apply: str) -> str:
        view = self._views.get(apply, self.topology)
        capture = capture_of(view, view.apply(apply))
        return view.apply(apply).queue if capture is None else capture.name

    def step(self) -> None:
        super().step()
        if self._left and not self._adopting and self._edits < EDITS_MAX and self.rng.random() < EDIT_SHARE:
            self._edits += 1
            self._edit()

    # ------------------------------------------------------------------ edits

    def _edit(self) -> None:
        (first, *others) = self.topology.applies
        if others:
            self._shrink()
        elif not self._has_grown and self.rng.random() < 0.3:
            self._grow()
        else:
            self._take(replace(self.topology, applies=(replace(first, combined=not first.combined), *others)))

    def _take(self, topology: TopologySpec) -> None:
        """Run by another topology."""
        was_combined = capture_of(self.topology, self.topology.applies[0]) is not None
        before = {component.name for component in components_of(self.topology)}
        after = {component.name for component in components_of(topology)}
        self._views = {apply.name: self._views.get(apply.name, self.topology) for apply in self.topology.applies}
        self.topology = topology
        is_combined = capture_of(topology, topology.applies[0]) is not None
        if was_combined != is_combined:
            self.fired["combined" if is_combined else "combined no more"] += 1
        for component in [each for each in self.components if each.name in before - after]:
            self._end(component)
        for queue in self.queues.values():
            self._soon(queue.adopt)
        self._soon(self.capture.adopt)
        for apply in topology.applies:
            self._soon(partial(self._views.__setitem__, apply.name, topology))
        for name in sorted(after - before):
            kind, _, short = name.partition(":")
            if kind in {"queue", "propagation"}:
                self._soon(partial(self._begin, kind, short))
        self._turns = self._list_turns()

    def _soon(self, adopt: Callable[[], object]) -> None:
        self._adopting += 1

        def do() -> None:
            self._adopting -= 1
            adopt()

        self._later(do)

    def _begin(self, kind: str, name: str) -> None:
        component: Component
        if kind == "queue":
            shutil.rmtree(self.folder / "sites" / self.topology.queue(name).site / "queues" / name, ignore_errors=True)
            component = self.queues[name] = BufferedQueue(self, name)
        else:
            component = PropagationProcess(self, self.topology.propagation(name))
            self.propagations.append(component)
        self.components.append(component)
        self._turns = self._list_turns()

    def _end(self, component: Component) -> None:
        component.forget()
        component.is_open = False
        self.components.remove(component)
        if isinstance(component, BufferedQueue):
            del self.queues[component.name.partition(":")[2]]
        elif isinstance(component, PropagationProcess):
            self.propagations.remove(component)

    def _grow(self) -> None:
        self._has_grown = True
        self.fired["destination added"] += 1
        self._left += 30
        topology = self.topology
        apply = ApplySpec(name="apply_dbs4", site="dbs4", source="dbs1", queue="q_dbs4", parallelism=2, **BOUNDS)
        self._take(replace(
            topology, sites=(*topology.sites, SiteSpec(name="dbs4", database=_DATABASE)),
            queues=(*topology.queues, QueueSpec(name="q_dbs4", site="dbs4", **SMALL)),
            propagations=(
                *topology.propagations, PropagationSpec(name="to_dbs4", from_queue="q_dbs1", to_queue="q_dbs4", sources=("dbs1",)),
            ),
            applies=(*topology.applies, apply),
        ))
        store = self.stores["dbs4"] = MemoryStore(clock=self.clock)
        for table in (*TABLES, JOURNAL, COUNTER, RETURNED, WIDE):
            table.create(store)
        self._soon(lambda: self._begin_apply(apply, store))

    def _begin_apply(self, apply: ApplySpec, store: MemoryStore) -> None:
        self.observers.append(Observer(self, apply, store, is_new=True))
        self.applies.append(ApplyProcess(self, apply, store))
        self.components.append(self.applies[-1])
        self._turns = self._list_turns()

    def _shrink(self) -> None:
        self.fired["destination removed"] += 1
        apply = self.applies.pop()
        self.observers.pop()
        del self.stores["dbs4"]
        self._altered.discard("dbs4")
        self._end(apply)
        apply.end_older()
        topology = self.topology
        self._take(replace(
            topology, sites=topology.sites[:-1], queues=topology.queues[:-1], propagations=topology.propagations[:-1],
            applies=topology.applies[:-1],
        ))
