"""The components of a simulation, and what the operator, faults and users see of it: them, beside their surroundings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.simulation.components import BufferedQueue, CaptureProcess, PropagationProcess, SourceSite
from headrace.simulation.downstream import ReceiverProcess
from headrace.simulation.surroundings import Surroundings
from topology.edits.changes import components_of
from topology.routing.downstream import redo_receivers

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from headrace.simulation.checking.observer import SiteObserver
    from headrace.simulation.components import ApplyProcess, Component
    from headrace.simulation.database import SiteDatabase
    from topology.spec import ApplySpec, CaptureSpec, TopologySpec

__all__ = ["Running", "RunningComponents"]


class RunningComponents:
    """The components of a simulated topology, each by its name there, and their turns.

    Attributes:
        sites: sources, which write redo.
        receivers: of redo, at other sites.
        captures: capture processes.
        queues: those that run.
        propagations: those that run.
        applies: apply processes.
        components: all of them, those that get turns.
        turns: what is drawn from; an entry is one turn.
        pace: of virtual time: it runs slower with more components, which take turns.
    """

    def __init__(self) -> None:
        self.sites: dict[str, SourceSite] = {}
        self.receivers: dict[str, ReceiverProcess] = {}
        self.captures: dict[str, CaptureProcess] = {}
        self.queues: dict[str, BufferedQueue] = {}
        self.propagations: dict[str, PropagationProcess] = {}
        self.applies: dict[str, ApplyProcess] = {}
        self.components: list[Component] = []
        self.turns: list[Callable[[], object]] = []
        self.pace = 1.0
        self._deliver: Callable[[], object] = lambda: None

    def begin(self, sim: Running) -> None:
        """Make every component of the topology.

        Args:
            sim: the simulation; its network and its databases are there.
        """
        topology = sim.topology
        running = {component.name for component in components_of(topology)}
        captured = {capture.source for capture in topology.captures}
        self.sites |= {site: SourceSite(sim, site) for site in sim.databases if site in captured}
        self.receivers |= {each.name: ReceiverProcess(sim, each) for each in redo_receivers(topology)}
        self.captures |= {spec.name: CaptureProcess(sim, spec) for spec in topology.captures}
        self.queues |= {
            each.name: BufferedQueue(sim, each.name) for each in topology.queues if f"queue:{each.name}" in running
        }
        self.propagations |= {
            spec.name: PropagationProcess(sim, spec)
            for spec in topology.propagations
            if f"propagation:{spec.name}" in running
        }
        self.applies |= {spec.name: sim.new_apply(spec) for spec in topology.applies}
        self._deliver = sim.network.deliver
        self.deal()

    def deal(self) -> None:
        """Give turns to the components that there are now.

        Apply processes consist of several processes each: they get more.
        """
        self.components = [
            *self.sites.values(),
            *self.receivers.values(),
            *self.captures.values(),
            *self.queues.values(),
            *self.propagations.values(),
            *self.applies.values(),
        ]
        self.turns = [
            *(component.tick for component in self.components),
            *[apply.tick for apply in self.applies.values()] * 3,
            *[self._deliver] * (2 + len(self.components) // 10),
        ]
        self.pace = 20 / len(self.turns)

    def take_turn(self, rng: random.Random) -> None:
        """Let one component do a little, or the network deliver.

        Args:
            rng: decides which one.
        """
        rng.choice(self.turns)()

    def redo_of(self, capture: CaptureSpec) -> SourceSite | ReceiverProcess:
        """Where the redo is that a capture process mines.

        Args:
            capture: the capture process.
        """
        return (
            self.receivers[f"{capture.source}@{capture.site}"] if capture.is_downstream else self.sites[capture.source]
        )

    def mined(self, topology: TopologySpec) -> list[tuple[str, SourceSite | ReceiverProcess]]:
        """Each redo that is mined, with its source.

        Args:
            topology: that runs.
        """
        return list(
            {(each.source, each.site): (each.source, self.redo_of(each)) for each in topology.captures}.values()
        )

    def site_of(self, name: str) -> str:
        """The site of a component that is not a site; empty: it does not run.

        Args:
            name: of the component in the topology.
        """
        for kind in (self.captures, self.queues, self.propagations, self.applies):
            if name in kind:
                return kind[name].site
        return ""


class _Healing(Protocol):
    def tend(self) -> None:
        """What was to be done by now is done; nothing breaks."""
        ...


class Running(Surroundings, Protocol):
    """The simulation with its components; see `headrace.simulation.world.Simulation`.

    Attributes:
        running: the components.
        site_observers: by site.
    """

    running: RunningComponents
    site_observers: dict[str, SiteObserver]

    @property
    def faults(self) -> _Healing:
        """What breaks."""
        ...

    def add_database(self, site: str) -> SiteDatabase:
        """A database with every table, empty."""
        ...

    def new_apply(self, spec: ApplySpec, *, is_new: bool = False) -> ApplyProcess:
        """An apply process with its observer.

        Args:
            spec: of it.
            is_new: it copies its tables first.
        """
        ...

    def adopts(self, apply: str, topology: TopologySpec) -> None:
        """An apply process takes over an edit.

        Args:
            apply: its name.
            topology: that it runs by from now on.
        """
        ...

    def edit(self, topology: TopologySpec, file: TopologySpec) -> None:
        """Run by another version of the topology.

        Args:
            topology: that runs.
            file: without what is split off, which changes nothing of who gets what.
        """
        ...

    def queue_folder(self, name: str) -> Path:
        """Where a queue keeps its files."""
        ...

    def crash(self, site: str) -> None:
        """A site's server stops at once and comes back: commits that are not on its disk are gone."""
        ...

    def later(self, seconds_max: float, do: Callable[[], object]) -> None:
        """Do something in a while.

        Args:
            seconds_max: at the latest, virtual.
            do: it.
        """
        ...
