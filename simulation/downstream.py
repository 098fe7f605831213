"""A simulated topology with downstream capture: the redo is copied to the destination's site, and mined there.

    dbs1 -> log writer -> redo ~~ frames ~~> redo:dbs1@dbs2 -> standby redo log -> capture_dbs1 -> (q_dbs1 ->) apply_dbs2 (3 servers)
                               <~~ acknowledgements ~~

Frames are cut anywhere and wait on their way; a cut stream loses what is in flight. The receiver is killed anywhere, and what it had not synced may be
missing, partial or zeros. `transport` is the seed's choice: with sync, what the source was told is never more than what the receiver has.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from actors.site.connection import redo_folder
from protos.standby import RedoFrame, StandbyPlace
from redo.standby_log import StandbyLog
from rules.rule import ANY_TAG, Rule, RuleSet
from simulation.components import Component, SourceSite
from simulation.observer import PRIVATE
from simulation.world import BOUNDS, SMALL, Simulation
from streams.errors import PropagationError
from streams.scn import FIRST_SCN
from topology.combined import capture_of
from topology.downstream import redo_receivers
from topology.spec import ApplySpec, CaptureSpec, DatabaseSpec, QueueSpec, SiteSpec, TopologySpec

if TYPE_CHECKING:
    from pathlib import Path

    from redo.log_writer import LogWriter

__all__ = ["DownstreamSimulation"]

_DATABASE = DatabaseSpec(kind="none")
_PIECES = (1, 60, 200, 900, 4000)  # bytes of a frame: within a header, a record, several records


class _ShippingSite(SourceSite):
    """A source whose captures are elsewhere: only its receiver keeps redo."""

    sim: DownstreamSimulation

    def open(self) -> None:
        super().open()
        writer = self.writer
        assert writer is not None
        (receiver,) = redo_receivers(self.sim.topology)
        writer.shipping.register({receiver.name: receiver.is_sync})
        writer.required_checkpoints.forget_others(())


class _Receiver(Component):
    """The redo receiver, as `actors.downstream_database` hosts it, with both ends of its stream."""

    sim: DownstreamSimulation

    def __init__(self, sim: DownstreamSimulation, folder: Path) -> None:
        (self._receiver,) = redo_receivers(sim.topology)
        super().__init__(sim, self._receiver.component)
        self.folder = folder
        self.log: StandbyLog | None = None
        self.durable_scn = FIRST_SCN
        self._writer: LogWriter | None = None
        self._shipment: Any = None
        self._down: deque[RedoFrame] = deque()
        self._up: deque[StandbyPlace] = deque()
        self._is_cut = False

    def open(self) -> None:
        sim = self.sim
        if self.log is None:
            self.log = StandbyLog(self.folder, "dbs1", redo_bytes_max=sim.topology.redo_bytes_max, clock=sim.clock)
            self.log.required_checkpoints.register("capture_dbs1")
            assert self.log.position.scn >= self.durable_scn, "what was acknowledged is gone"
            self.durable_scn = self.log.position.scn  # it may have died behind its fsync
        self.log.rollback()
        writer = sim.site.writer
        if writer is None or not sim.site.is_open or sim.rng.random() < 0.05:
            raise PropagationError("the source does not answer")
        self._shipment = writer.shipping.begin(self._receiver.name, sim.network.incarnation(), self.log.place)
        self._writer, self._is_cut = writer, False

    def work(self) -> None:
        log, rng = self.log, self.sim.rng
        assert log is not None
        if self._is_cut or self.sim.site.writer is not self._writer:
            raise PropagationError("the stream to the source broke")
        self._serve()
        log.purge()
        self.sim.seen["standby redo purged"] += log.statistics().purged_bytes > 0
        if log.is_full:
            self.sim.seen["standby redo full"] += 1
            return
        before = log.place
        try:
            for _ in range(rng.randrange(6)):
                if self._down:
                    log.take(self._down.popleft())
            log.sync()
        finally:
            self.durable_scn = max(self.durable_scn, log.position.scn)
        if log.place != before:
            self._up.append(log.place)
            assert self._writer is not None
            assert log.position <= self._writer.position, "the copy is ahead of what is durable at the source"

    def _serve(self) -> None:
        """The source's end: acknowledgements come in, frames go out."""
        rng = self.sim.rng
        for _ in range(rng.randrange(3)):
            if self._up:
                self._shipment.acknowledge(self._up.popleft())
        if len(self._down) > 20 or (frame := self._shipment.next_frame()) is None:
            return
        start = 0
        while start < len(frame.data):
            size = rng.choice(_PIECES)
            self._down.append(replace(frame, offset=frame.offset + start, data=frame.data[start : start + size]))
            start += size

    def cut(self) -> bool:
        """Lose what is in flight, both ways."""
        if self._shipment is None or self._is_cut:
            return False
        self._is_cut = True
        return True

    def close(self) -> None:
        if self._shipment is not None:
            self._shipment.close()
        self._shipment = self._writer = None
        self._down.clear()
        self._up.clear()

    def forget(self) -> None:
        self.close()
        log, self.log = self.log, None
        segment = None if log is None else log._segment
        if segment is None:
            return
        segment.close()
        if segment.path.exists() and self.sim.rng.random() < 0.5:
            self.sim.fired["standby power loss"] += 1
            size = segment.path.stat().st_size
            os.truncate(segment.path, self.sim.rng.randint(segment.durable, max(size, segment.durable)))
            if self.sim.rng.random() < 0.5:
                os.truncate(segment.path, size)


class DownstreamSimulation(Simulation):
    """See the module and `Simulation`."""

    receiver: _Receiver

    def __init__(self, seed: int, folder: Path, **settings: Any) -> None:
        super().__init__(seed, folder, **settings)
        self._joins = False
        self.site = _ShippingSite(self)
        self.receiver = _Receiver(self, redo_folder(self.topology, source="dbs1", site="dbs2"))
        self._first_confirmed = self.source.confirmed_scn
        self.components = [self.site, self.receiver, *self.components[1:]]
        self._turns = self._list_turns()

    def _first_topology(self) -> TopologySpec:
        rng = self.rng
        return TopologySpec(
            name="topology", file=self.folder / "topology.yaml", state_dir=self.folder,
            sites=tuple(SiteSpec(name=site, database=_DATABASE) for site in ("dbs1", "dbs2")),
            queues=(QueueSpec(name="q_dbs1", site="dbs2", **SMALL),),
            captures=(CaptureSpec(
                name="capture_dbs1", site="dbs2", source="dbs1", queue="q_dbs1", transport=rng.choice(["sync", "async"]),
                rules=RuleSet(include=(Rule(owner="public"),), exclude=(Rule(name=PRIVATE.name, tags=ANY_TAG),)),
            ),),
            propagations=(),
            applies=(ApplySpec(
                name="apply_dbs2", site="dbs2", source="dbs1", queue="q_dbs1", parallelism=3, combined=rng.random() < 0.5, **BOUNDS,
            ),),
            redo_bytes_max=24_000, segment_bytes=4_000,
        )

    @property
    def mined(self) -> Any:
        """The copy of the redo."""
        return self.receiver.log

    @property
    def mined_folder(self) -> Path:
        """Where the copy is."""
        return self.receiver.folder

    def dequeues_from(self, apply: str) -> str:
        capture = capture_of(self.topology, self.topology.apply(apply))
        return self.topology.apply(apply).queue if capture is None else capture.name

    def step(self) -> None:
        super().step()
        (capture,) = self.topology.captures
        if capture.transport == "sync":
            told = max(self._first_confirmed, self.receiver.durable_scn)
            assert self.source.confirmed_scn <= told, "the source may forget what is at one site only"

    def _harms(self) -> list[Any]:
        return [*super()._harms(), ("redo stream cut", self.receiver.cut), ("redo stream cut", self.receiver.cut)]
