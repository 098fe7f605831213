"""What the operator and faults see of a simulation: its components, beside their surroundings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.simulation.surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.simulation.checking.observer import SiteObserver
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
    from topology.spec import ApplySpec, TopologySpec

__all__ = ["Running"]


class _Healing(Protocol):
    def tend(self) -> None:
        """What was to be done by now is done; nothing breaks."""
        ...


class Running(Surroundings, Protocol):
    """The simulation with its components, each by its name in the topology; see `headrace.simulation.world.Simulation`.

    Attributes:
        components: everything that gets turns.
    """

    sites: dict[str, SourceSite]
    receivers: dict[str, ReceiverProcess]
    captures: dict[str, CaptureProcess]
    queues: dict[str, BufferedQueue]
    propagations: dict[str, PropagationProcess]
    applies: dict[str, ApplyProcess]
    components: list[Component]
    site_observers: dict[str, SiteObserver]

    @property
    def faults(self) -> _Healing:
        """What breaks."""
        ...

    def list_components(self) -> None:
        """Give turns to the components that there are now."""
        ...

    def add_database(self, site: str) -> SiteDatabase:
        """A database with every table, empty."""
        ...

    def new_apply(self, spec: ApplySpec, *, is_new: bool = False) -> ApplyProcess:
        """An apply process with its observer; see `Simulation.new_apply`."""
        ...

    def adopts(self, apply: str, topology: TopologySpec) -> None:
        """An apply process takes over an edit."""
        ...

    def edit(self, topology: TopologySpec, file: TopologySpec) -> None:
        """Run by another version of the topology; see `Simulation.edit`."""
        ...

    def queue_folder(self, name: str) -> Path:
        """Where a queue keeps its files."""
        ...

    def crash(self, site: str) -> None:
        """A site's server stops at once and comes back: commits that are not on its disk are gone."""
        ...

    def later(self, seconds_max: float, do: Callable[[], object]) -> None:
        """Do something in a while."""
        ...
