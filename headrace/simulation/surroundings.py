"""The part of a simulation that its components and observers know.

`headrace.simulation.world.Simulation` is the whole simulation. Components and observers depend on this protocol only,
so they are layers below it.
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
        """Return the virtual time of day, including the offset."""
        return super().time_us() + self._offset_us

    def set_time_of_day(self, seconds: float) -> None:
        """Move the time of day by so many seconds, forwards or backwards."""
        self._offset_us += int(seconds * 1e6)


class Killed(BaseException):
    """A process dies inside a step. Not an `Exception`, so that the product cannot handle it."""


class MinedRedo(Protocol):
    """Redo that a capture process mines: a source's own, or a redo receiver's copy.

    Attributes:
        name: full name of the component that writes it.
        folder: folder of the redo log.
    """

    name: str
    folder: Path

    @property
    def keeper(self) -> RedoWriter | None:
        """The writer that keeps it; None: it does not run."""
        ...


class Surroundings(Protocol):
    """The simulation as its components and observers see it.

    Attributes:
        seed: decides every random choice.
        rng: generator that is seeded with it.
        clock: clock of every component.
        trace: the events.
        fired: counts of faults and of the operator's actions.
        seen: counts of steps in which a rare state was seen.
        restored_sources: sources whose destinations lost commits.
        is_edited: an edit has not reached every component: some still run by the old topology.
        topology: the topology that runs.
        workload: what users write.
        reach: destinations by stream and class.
        logs: the content of each site's log.
        databases: by site.
        network: connects the components.
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
        """Return the redo that a capture process mines."""
        ...

    def links(self, apply: str) -> SimulatedLinks:
        """Return the links over which an apply process dequeues, by the topology that it knows."""
        ...

    def arriving(self, apply: ApplySpec) -> list[tuple[Table, TableName]]:
        """Return the tables that arrive at an apply process, with their names at its site."""
        ...

    def alter_destination(self, site: str) -> None:
        """Add the columns that tables of a site lack."""
        ...
