"""The components of a simulated topology: the real cores, hosted as `actors` hosts them, but stepped one at a time."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.capture import CaptureHost
from actors.combined import AHEAD_BYTES, CombinedCore
from actors.host import is_timed
from actors.staging.propagation import Ends, PropagationRunner
from actors.staging.queue import QueueCore
from databases.memory_log import MemoryLogDecoder
from protos.redo_link import RedoWatchPosition
from redo.log_writer import LogWriter
from redo.mining import Miner
from simulation.apply_process import Beginning, Driver
from simulation.faults import Killed
from simulation.network import DequeueStream, EnqueueStream
from streams.errors import DatabaseUnavailable, FencedError, PropagationError, RedoError, StreamsError
from streams.lcr_batch import LcrBatch
from streams.scn import FIRST_SCN, Scn
from topology.combined import apply_of

if TYPE_CHECKING:
    from databases.memory_store import MemoryStore
    from simulation.world import Simulation
    from topology.spec import ApplySpec, PropagationSpec, TopologySpec

__all__ = ["ApplyProcess", "BufferedQueue", "CaptureProcess", "Component", "PropagationProcess", "SourceSite"]

ROWS_MAX = 6  # of a batch: several transactions of the workload are larger


class Component:
    """A component that runs, fails and is restarted. It handles errors like `actors.host.Host`."""

    def __init__(self, sim: Simulation, name: str) -> None:
        self.sim, self.name = sim, name
        self.is_open = False
        self._start_at = 0.0

    def tick(self) -> None:
        now = self.sim.clock.monotonic()
        if now < self._start_at:
            return
        try:
            if not self.is_open:
                self.open()
                self.is_open = True
            self.work()
        except Killed:
            self.kill()
        except (StreamsError, OSError) as error:
            self.close()
            self.is_open = False
            if isinstance(error, StreamsError) and not is_timed(error):
                raise AssertionError(f"{self.name} would be ABORTED: {error!r} {error.hint}") from error
            self._start_at = now + self.sim.rng.uniform(0.01, 0.3)

    def kill(self) -> None:
        self.forget()
        self.is_open = False
        self._start_at = self.sim.clock.monotonic() + self.sim.rng.uniform(0.05, 1.0)

    def open(self) -> None:
        raise NotImplementedError

    def work(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """An orderly end after an error."""

    def forget(self) -> None:
        """The process is gone."""
        self.close()


class SourceSite(Component):
    """The log writer, as `actors.source_database` hosts it."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim, "site:dbs1")
        self.folder = sim.folder / "sites" / "dbs1" / "redo"
        self.writer: LogWriter | None = None
        self._stream: Any = None
        self.durable_scn = FIRST_SCN

    def open(self) -> None:
        sim = self.sim
        if self.writer is None:
            self.writer = LogWriter(
                self.folder, "dbs1", decoder_factory=MemoryLogDecoder, dictionary_build=sim.source.dictionary_build,
                segment_bytes=sim.topology.segment_bytes, redo_bytes_max=sim.topology.redo_bytes_max,
                record_bytes=1500, clock=sim.clock,
            )
            self.writer.required_checkpoints.register("capture_dbs1")
            is_empty = self.writer.options is None
            assert is_empty or self.writer.start_scn >= sim.source.confirmed_scn, "the source forgot what is not in redo"
        if sim.source_is_down:
            raise DatabaseUnavailable("the source does not answer")
        stream = sim.source.open_stream("topology", self.writer.start_scn)
        try:
            self.writer.attach(stream)
        except BaseException:
            stream.close()
            raise
        self._stream = stream

    def work(self) -> None:
        writer = self.writer
        assert writer is not None
        if self.sim.source_is_down:
            self._stream.close()
        try:
            writer.step(0.0)
        except RedoError:
            if not writer.state.startswith("PAUSED"):
                self.writer = None
                writer.close()
                raise
        statistics = writer.statistics()
        self.sim.seen["redo full"] += writer.state == "PAUSED: REDO IS FULL"
        self.sim.seen["disk full"] += writer.state == "PAUSED: DISK IS FULL"
        self.sim.seen["redo purged"] += statistics.purged_bytes > 0
        assert writer.position.scn >= self.durable_scn, "redo went back"
        self.durable_scn = writer.position.scn

    def close(self) -> None:
        if self.writer is not None:
            self.writer.detach()
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def forget(self) -> None:
        writer, self.writer = self.writer, None
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if writer is None or writer._segment is None:
            return
        segment = writer._segment
        segment.close()
        if segment._path.exists() and self.sim.rng.random() < 0.5:
            self.sim.fired["power loss"] += 1
            self._lose_power(segment._path, segment.durable_offset)

    def _lose_power(self, path: Path, durable: int) -> None:
        """Data that was not synced may be missing, partial, or zeros."""
        rng, size = self.sim.rng, path.stat().st_size
        cut = rng.randint(durable, size)
        os.truncate(path, cut)
        if rng.random() < 0.5:
            os.truncate(path, size)


class _RedoWatch:
    """Like `RedoWatchClient`: the position is slightly late."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._position = RedoWatchPosition(segment=0, offset=0, scn=FIRST_SCN)

    def poll(self) -> RedoWatchPosition:
        writer = self._sim.mined
        if writer is None:
            if self._sim.rng.random() < 0.2:
                raise PropagationError("the site does not answer")
        elif self._sim.rng.random() < 0.7:
            found = writer.position
            self._position = RedoWatchPosition(segment=found.segment, offset=found.offset, scn=found.scn)
        return self._position

    def checkpoint(self, scn: Scn) -> Scn:
        writer = self._sim.mined
        if writer is None:
            raise PropagationError("the site does not answer")
        told: Scn = writer.required_checkpoints.record("capture_dbs1", scn)
        return told

    def close(self) -> None:
        pass


class _SmallBatches(Miner):
    def next_batch(self, durable: Any, **bounds: Any) -> LcrBatch | None:
        return super().next_batch(durable, rows_max=ROWS_MAX, bytes_max=600)


class Outlet:
    """As `CombinedOutlet`, without a server: its core is called as it is."""

    def __init__(self, core: CombinedCore) -> None:
        self.core = core
        self.poll, self.send_nowait, self.gone, self.status = core.progress, core.offer, core.gone, core.status

    @property
    def is_connected(self) -> bool:
        return self.core.is_connected

    def close(self) -> None:
        pass


class _Capture(CaptureHost):
    """The real capture process, on the simulated network."""

    def __init__(self, sim: Simulation, topology: TopologySpec) -> None:
        super().__init__(topology, "capture_dbs1", "")
        self._sim, self._clock = sim, sim.clock

    def open(self) -> None:
        network = self._sim.network
        self._redo = _RedoWatch(self._sim)  # type: ignore[assignment]
        self._told_scn = self._redo.checkpoint(FIRST_SCN)  # type: ignore[union-attr]
        if (apply := apply_of(self._spec, self._capture)) is not None:
            self._queue = self._combined = Outlet(self._new_core(apply))  # type: ignore[assignment]
            return
        self._forget_refusal()
        self._queue = EnqueueStream(network, "q_dbs1", self._capture.name, network.incarnation(), "dbs1")
        self._begin(self._queue.connect().needed_scn)

    def _new_miner(self, start_scn: Scn) -> Miner:
        return _SmallBatches(
            self._sim.mined_folder, "dbs1", start_scn, self._capture.rules, MemoryLogDecoder, clock=self._sim.clock,
        )


class CaptureProcess(Component):
    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim, "capture:capture_dbs1")
        self.topology = sim.topology
        self.host = _Capture(sim, self.topology)

    @property
    def core(self) -> CombinedCore | None:
        """What it serves its apply process; None: it is not combined, or down."""
        outlet: Any = self.host._combined
        return outlet.core if self.is_open and outlet is not None else None

    def open(self) -> None:
        self.host = _Capture(self.sim, self.topology)
        try:
            self.host.open()
        except BaseException:
            self.host.close()
            raise

    def adopt(self) -> None:
        """As `Host`: it closes, and opens again by the changed topology."""
        self.close()
        self.is_open = False
        self.topology = self.sim.topology

    def work(self) -> None:
        self.sim.network.serve("capture_dbs1")
        self.host.step()
        if (core := self.core) is not None:
            status = core.status()
            self.sim.seen["combined"] += status["connected"]
            self.sim.seen["combined without credit"] += status["connected"] and status["credit_bytes"] <= 0
            # One batch may be larger than what was left.
            assert status["waiting_bytes"] <= AHEAD_BYTES + 4000

    def close(self) -> None:
        self.host.close()
        self.sim.network.queue_died("capture_dbs1")


class BufferedQueue(Component):
    def __init__(self, sim: Simulation, name: str) -> None:
        super().__init__(sim, f"queue:{name}")
        self._queue = name
        self.core: QueueCore | None = None

    def open(self) -> None:
        folder = self.sim.folder / "sites" / self.sim.topology.queue(self._queue).site / "queues" / self._queue
        self.core = QueueCore(self.sim.topology, self._queue, folder, self.sim.clock)

    def adopt(self) -> None:
        """As `QueueHost`: the queue continues with the subscribers of the changed topology; a dead queue starts with them."""
        if self.core is not None:
            self.core.adopt(self.sim.topology)

    def work(self) -> None:
        core = self.core
        assert core is not None
        self.sim.network.serve(self._queue)
        core.housekeeping()
        positions = core.positions_to_save()
        if positions is not None:
            core.save_positions(positions)
            core.positions_saved(positions, None)
        bounds = self.sim.topology.queue(self._queue)
        status = core.status()
        self.sim.seen["spilled"] += status["spill_bytes"] > 0
        self.sim.seen["queue paused"] += status["state"] != "ENABLED"
        self.sim.seen["rewound"] += status["rewinds"] > 0
        self.sim.seen["spill problem"] += bool(status["problem"])
        assert status["spill_bytes"] <= bounds.spill_bytes_max
        # One batch may be larger than what was left, and what cannot be spilled stays in memory.
        assert status["memory_bytes"] <= bounds.memory_bytes_max + bounds.spill_bytes_max + 4000

    def close(self) -> None:
        self.forget()

    def forget(self) -> None:
        core, self.core = self.core, None
        self.sim.network.queue_died(self._queue)
        if core is not None:
            for file in core._spill._files.values():
                os.close(file.descriptor)

    def damage(self) -> bool:
        """Zero everything that is spilled; False when nothing is."""
        files = [] if self.core is None else list(self.core._spill._files.values())
        for file in files:
            os.pwrite(file.descriptor, bytes(file.size), 0)
        return bool(files)


class PropagationProcess(Component):
    """A `PropagationRunner` on the simulated network."""

    def __init__(self, sim: Simulation, spec: PropagationSpec) -> None:
        super().__init__(sim, f"propagation:{spec.name}")
        self._spec = spec
        self._runner: PropagationRunner | None = None

    def open(self) -> None:
        # A new process each time: what an earlier one held died with it.
        self._runner = PropagationRunner(
            self.sim.topology.name, self._spec, str, clock=self.sim.clock, connect=self._ends,
        )
        self._runner.open()

    def _ends(self) -> Ends:
        network, spec = self.sim.network, self._spec
        incarnation = network.incarnation()
        return {"dbs1": (
            EnqueueStream(network, spec.to_queue, spec.name, incarnation, "dbs1"),
            lambda: DequeueStream(network, spec.from_queue, spec.name, incarnation),
        )}

    def work(self) -> None:
        assert self._runner is not None
        self._runner.step()

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()


class ApplyProcess(Component):
    """Keeps a driver running, as `actors.apply`; older ones may linger until they learn that they are fenced out."""

    def __init__(self, sim: Simulation, spec: ApplySpec, store: MemoryStore) -> None:
        super().__init__(sim, f"apply:{spec.name}")
        self._spec, self.store = spec, store
        self._beginning: Beginning | None = None
        self.driver: Driver | None = None
        self._older: list[Driver] = []
        self._thaw_at = 0.0  # until then the older ones are stopped, as by SIGSTOP
        self._orphans: list[Any] = []

    def open(self) -> None:
        self.driver, self._beginning = None, Beginning(self.sim, self._spec, self.store)

    def work(self) -> None:
        rng = self.sim.rng
        if self.driver is None:
            assert self._beginning is not None
            scns = self._beginning.step()
            if scns is None:
                return
            self.driver = Driver(self.sim, self._spec, self.store, self._beginning.progress, scns)
        try:
            self.driver.step(rng)
        except FencedError as error:
            raise AssertionError("the newest driver was fenced out") from error
        seen, coordinator = self.sim.seen, self.driver.coordinator
        seen["waiting for ALTER"] += self.driver.reader.unfit is not None
        seen["waiting for dependencies"] += coordinator.statistics.wait_deps > 0
        seen["replayed"] += coordinator.statistics.replays > 0
        seen["began with gaps"] += bool(coordinator._above)
        seen["groups at once"] += len(coordinator._groups) > 1
        seen["streamed transaction"] += any(group.large is not None for group in coordinator._groups.values())
        if self.sim.clock.monotonic() >= self._thaw_at:
            for older in list(self._older):
                if rng.random() < 0.5:
                    self._step_older(older)
        for orphan in list(self._orphans):
            orphan.linger -= 1
            with contextlib.suppress(Killed):
                orphan.step(rng)
            if orphan.linger <= 0 or orphan.is_dead:
                self._orphans.remove(orphan)

    def _step_older(self, older: Driver) -> None:
        try:
            older.step(self.sim.rng)
        except FencedError:
            self.sim.fired["older driver fenced out"] += 1
            self._drop(older)
        except StreamsError:
            self._drop(older)

    def _drop(self, older: Driver) -> None:
        self._older.remove(older)
        older.feed.close()
        self._orphans += older.tasks.values()

    def start_second(self) -> None:
        """Another driver starts while this one still runs."""
        if self.driver is not None and self.is_open and self.store.is_reachable:
            self._older.append(self.driver)
            self._thaw_at = self.sim.clock.monotonic() + self.sim.rng.choice([0.0, 1.0, 6.0])
            self.open()

    def end_older(self) -> None:
        for older in list(self._older):
            self._drop(older)

    def forget(self) -> None:
        if self._beginning is not None:
            self._beginning.close()
        driver, self.driver = self.driver, None
        if driver is not None:
            driver.feed.close()
            self._orphans += driver.tasks.values()
