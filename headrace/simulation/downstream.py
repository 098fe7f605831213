"""Simulated downstream capture: the redo of a source is copied to another site and mined there.

    log writer -> redo ~~ frames ~~> redo:dbs1@dbs2 -> standby redo log -> capture processes of that site
                       <~~ acknowledgements ~~

Frames are split at random offsets and delayed; a cut stream loses what is in flight. The receiver is killed at random
points, and data that it had not synced may be missing, partial or zeros. With `transport: sync`, the source is never
told an SCN beyond what the receiver has.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from actors.site.connection import redo_folder
from actors.site.redo_keeper import register_captures
from headrace.base.errors import PropagationError
from headrace.lcr.scn import FIRST_SCN
from headrace.links.standby import RedoFrame, StandbyPlace
from headrace.redo.standby.standby_log import StandbyLog
from headrace.simulation.components import Component
from headrace.simulation.observing.violations import Invariant, require
from headrace.simulation.surroundings import Surroundings
from topology.routing.downstream import receiver_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.redo.writing.log_writer import LogWriter
    from headrace.simulation.components import SourceSite
    from topology.routing.downstream import RedoReceiver

__all__ = ["ReceiverProcess"]

_PIECES = (1, 60, 200, 900, 4000)  # bytes of a frame: part of a header, one record, several records
_IN_FLIGHT_MAX = 20  # frames: beyond this the line is full


class _Sources(Protocol):
    @property
    def sites(self) -> Mapping[str, SourceSite]:
        """Sources by site name."""
        ...


class _WithSources(Surroundings, Protocol):
    @property
    def running(self) -> _Sources:
        """The components."""
        ...


class ReceiverProcess(Component):
    """The redo receiver, as hosted by `actors.downstream_database`, with both ends of its stream.

    Args:
        sim: the simulation.
        receiver: its specification.
    """

    sim: _WithSources

    def __init__(self, sim: _WithSources, receiver: RedoReceiver) -> None:
        super().__init__(sim, receiver.component, receiver.site)
        self._receiver = receiver
        self._topology = sim.topology  # the adopted topology: a process that dies restarts with it
        self.source = receiver.source
        self.folder = redo_folder(sim.topology, source=receiver.source, site=receiver.site)
        self.log: StandbyLog | None = None
        self.durable_scn = sim.databases[receiver.source].source.confirmed_scn
        self._writer: LogWriter | None = None
        self._shipment: Any = None
        self._down: deque[RedoFrame] = deque()
        self._up: deque[StandbyPlace] = deque()
        self._is_cut = self._has_synced = False

    @property
    def keeper(self) -> StandbyLog | None:
        """The writer that keeps the mined redo; None: it does not run."""
        return self.log

    def open(self) -> None:
        """Open the standby redo log and connect to the source."""
        sim = self.sim
        if self.log is None:
            self.log = StandbyLog(self.folder, self.source, redo_bytes_max=sim.topology.redo_bytes_max, clock=sim.clock)
            self._keep_redo()
            found = self.log.position.scn
            require(
                found >= self.durable_scn or not self._has_synced,
                Invariant.PROMISES,
                self.name,
                f"{self.durable_scn} was acknowledged, but only {found} is in the standby redo log",
            )
            self.durable_scn = max(found, self.durable_scn)  # it may have died after its fsync
        self.log.rollback()
        site = sim.running.sites[self.source]
        if (
            site.writer is None
            or not site.is_open
            or not sim.network.is_reachable(self.site, self.source)
            or sim.rng.random() < 0.05
        ):
            raise PropagationError("the source does not answer")
        self._shipment = site.writer.shipping.begin(self._receiver.name, sim.network.incarnation(), self.log.place)
        self._writer, self._is_cut = site.writer, False

    def adopt(self) -> None:
        """Keep redo only for the capture processes of the changed topology, like the real redo receiver."""
        self._topology = self.sim.topology
        self._receiver = receiver_of(self._topology, self._receiver.name)
        self._keep_redo()

    def _keep_redo(self) -> None:
        if self.log is not None:
            register_captures(self.log.required_checkpoints, self._topology, self._receiver.captures)

    def work(self) -> None:
        """Take frames, sync, acknowledge."""
        log, sim = self.log, self.sim
        assert log is not None
        if (
            self._is_cut
            or sim.running.sites[self.source].writer is not self._writer
            or not sim.network.is_reachable(self.site, self.source)
        ):
            raise PropagationError("the stream to the source broke")
        self._serve()
        log.purge()
        sim.seen["standby redo purged"] += log.statistics().purged_bytes > 0
        if log.is_full:
            sim.seen["standby redo full"] += 1
            return
        before, before_scn = log.place, log.position.scn
        try:
            for _ in range(sim.rng.randrange(6)):
                if self._down:
                    log.take(self._down.popleft())
            log.sync()
        finally:
            self._has_synced |= log.position.scn > FIRST_SCN
            self.durable_scn = max(self.durable_scn, log.position.scn)
        if log.place != before:
            sim.trace.note(self.name, "durable in the standby redo log", self.source, before_scn, log.position.scn)
            self._up.append(log.place)
            assert self._writer is not None
            require(
                log.position <= self._writer.position,
                Invariant.PROMISES,
                self.name,
                "the copy is ahead of what is durable at the source",
            )

    def check(self) -> None:
        """Check that with `transport: sync` the source discards nothing that the receiver lacks."""
        if self._receiver.is_sync:
            confirmed = self.sim.databases[self.source].source.confirmed_scn
            require(
                confirmed <= self.durable_scn,
                Invariant.PROMISES,
                self.name,
                f"the source was told that everything up to {confirmed} is durable, but only {self.durable_scn} is in"
                " the standby redo log",
            )

    def _serve(self) -> None:
        """Act as the source's end: take acknowledgements and send frames."""
        rng = self.sim.rng
        for _ in range(rng.randrange(3)):
            if self._up:
                self._shipment.acknowledge(self._up.popleft())
        if len(self._down) > _IN_FLIGHT_MAX or (frame := self._shipment.next_frame()) is None:
            return
        start = 0
        while start < len(frame.data):
            size = rng.choice(_PIECES)
            self._down.append(replace(frame, offset=frame.offset + start, data=frame.data[start : start + size]))
            start += size

    def cut(self) -> bool:
        """Lose what is in flight, in both directions."""
        if self._shipment is None or self._is_cut:
            return False
        self._is_cut = True
        return True

    def close(self) -> None:
        """Close the stream to the source."""
        if self._shipment is not None:
            self._shipment.close()
        self._shipment = self._writer = None
        self._down.clear()
        self._up.clear()

    def forget(self) -> None:
        """Die: data that was not synced may be missing."""
        self.close()
        log, self.log = self.log, None
        segment = None if log is None else log._segment
        if segment is None:
            return
        segment.close()
        if segment.path.exists() and self.sim.rng.random() < 0.5:
            self.sim.fired["standby power loss"] += 1
            self.sim.trace.note(self.name, "power lost")
            size = segment.path.stat().st_size
            os.truncate(segment.path, self.sim.rng.randint(segment.durable, max(size, segment.durable)))
            if self.sim.rng.random() < 0.5:
                os.truncate(segment.path, size)
