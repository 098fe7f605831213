"""What a component of a simulated topology sees of the simulation around it, and what its observers see.

`headrace.simulation.world.Simulation` is all of it. Components, and what checks them, know no more than this: so they stand below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.base.clock import VirtualClock

if TYPE_CHECKING:
    import random
    from collections import Counter
    from pathlib import Path

    from headrace.lcr.table_name import TableName
    from headrace.links.standby import RedoWriter
    from headrace.simulation.database import SiteDatabase
    from headrace.simulation.network import Network, SimulatedLinks
    from headrace.simulation.observing.history import Table
    from headrace.simulation.observing.site_logs import SiteLogs
    from headrace.simulation.observing.trace import Trace
    from headrace.simulation.workload import Reach, Workload
    from topology.spec import ApplySpec, CaptureSpec, TopologySpec

__all__ = ["Killed", "MinedRedo", "SimulatedClock", "Surroundings"]


class SimulatedClock(VirtualClock):
    """A virtual clock whose time of day can be set."""

    def __init__(self) -> None:
        super().__init__()
        self._offset_us = 0

    def time_us(self) -> int:
        """See `Clock.time_us`."""
        return super().time_us() + self._offset_us

    def set_time_of_day(self, seconds: float) -> None:
        """Set the time of day by so many seconds, back or forth."""
        self._offset_us += int(seconds * 1e6)


class Killed(BaseException):
    """A process ends here, inside a step. Not an `Exception`: nothing in the product may handle it."""


class MinedRedo(Protocol):
    """Redo that a capture process mines: a source's own, or a redo receiver's.

    Attributes:
        name: full name of the component that writes it.
        folder: of the redo log.
    """

    name: str
    folder: Path

    @property
    def keeper(self) -> RedoWriter | None:
        """What keeps it; None: it does not run."""
        ...


class Surroundings(Protocol):
    """The simulation, as its components and observers see it.

    Attributes:
        seed: decides everything.
        rng: draws what the seed decides.
        clock: of every component.
        trace: what happened.
        fired: faults and deeds of the operator, counted.
        seen: steps in which something rare was so, counted.
        restored_sources: sources of destinations that lost commits.
        is_edited: an edit is on its way to the components: some go by the topology before it.
        topology: that runs.
        workload: what users write.
        reach: who gets what, by stream and class.
        logs: what is in the log of each site.
        databases: by site.
        network: between the components.
    """

    seed: int
    rng: random.Random
    clock: SimulatedClock
    trace: Trace
    fired: Counter[str]
    seen: Counter[str]
    restored_sources: set[str]
    is_edited: bool
    topology: TopologySpec
    workload: Workload
    reach: dict[tuple[int, int], Reach]
    logs: SiteLogs
    databases: dict[str, SiteDatabase]
    network: Network

    def redo_of(self, capture: CaptureSpec) -> MinedRedo:
        """Where the redo is that a capture process mines."""
        ...

    def links(self, apply: str) -> SimulatedLinks:
        """The links of an apply process to what it dequeues from, by the topology it knows."""
        ...

    def arriving(self, apply: ApplySpec) -> list[tuple[Table, TableName]]:
        """The tables that an apply process gets, with their names at its site."""
        ...

    def alter_destination(self, site: str) -> None:
        """Add the columns that tables of a site lack."""
        ...
