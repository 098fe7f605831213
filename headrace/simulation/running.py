"""The components of a simulation, and the protocol that the operator, faults and users have of it."""

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
    """The components of a simulated topology by name, and their turns.

    Attributes:
        sites: sources, which write redo.
        receivers: redo receivers at other sites.
        captures: capture processes.
        queues: queues that run.
        propagations: propagations that run.
        applies: apply processes.
        components: all components that get turns.
        turns: the list to draw from; one entry is one turn.
        pace: speed of virtual time: slower with more components, because they take turns.
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
        """Create every component of the topology.

        Args:
            sim: the simulation, with its network and databases.
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
        """Distribute turns among the current components.

        Apply processes get more, because each consists of several processes.
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
        """Let one component do a little work, or let the network deliver.

        Args:
            rng: decides which.
        """
        rng.choice(self.turns)()

    def redo_of(self, capture: CaptureSpec) -> SourceSite | ReceiverProcess:
        """Return the component that keeps the redo of a capture process."""
        return (
            self.receivers[f"{capture.source}@{capture.site}"] if capture.is_downstream else self.sites[capture.source]
        )

    def mined(self, topology: TopologySpec) -> list[tuple[str, SourceSite | ReceiverProcess]]:
        """Return each redo log that is mined, with its source.

        Args:
            topology: the topology that runs.
        """
        return list(
            {(each.source, each.site): (each.source, self.redo_of(each)) for each in topology.captures}.values()
        )

    def site_of(self, name: str) -> str:
        """Return the site of a capture process, queue, propagation or apply process; empty: it does not run.

        Args:
            name: its name in the topology.
        """
        for kind in (self.captures, self.queues, self.propagations, self.applies):
            if name in kind:
                return kind[name].site
        return ""


class _Healing(Protocol):
    def tend(self) -> None:
        """Do what is due, without new faults."""
        ...


class Running(Surroundings, Protocol):
    """The simulation with its components, as `headrace.simulation.world.Simulation` implements it.

    Attributes:
        running: the components.
        site_observers: by site.
    """

    running: RunningComponents
    site_observers: dict[str, SiteObserver]

    @property
    def faults(self) -> _Healing:
        """The faults."""
        ...

    def add_database(self, site: str) -> SiteDatabase:
        """Add a database with every table, empty."""
        ...

    def new_apply(self, spec: ApplySpec, *, is_new: bool = False) -> ApplyProcess:
        """Return an apply process with its observer.

        Args:
            spec: its specification.
            is_new: whether it copies its tables first.
        """
        ...

    def adopts(self, apply: str, topology: TopologySpec) -> None:
        """Let an apply process adopt an edit.

        Args:
            apply: its name.
            topology: the topology that it runs by from now on.
        """
        ...

    def edit(self, topology: TopologySpec, file: TopologySpec) -> None:
        """Switch to another version of the topology.

        Args:
            topology: the topology that runs.
            file: the topology without split streams, which do not change who receives what.
        """
        ...

    def queue_folder(self, name: str) -> Path:
        """Return the folder of a queue's files."""
        ...

    def crash(self, site: str) -> None:
        """Crash and restart a site's server: commits that are not on its disk are lost."""
        ...

    def later(self, seconds_max: float, do: Callable[[], object]) -> None:
        """Schedule an action.

        Args:
            seconds_max: latest virtual time from now at which it happens.
            do: the action.
        """
        ...
