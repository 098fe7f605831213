"""Components of a simulated topology: the real cores, hosted as in `actors`, but stepped one at a time.

Longer than 500 lines: one class per kind of component, each like its actor and no more.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.capture import CaptureHost
from actors.combined import AHEAD_BYTES
from actors.hosting.host import is_timed
from actors.site.redo_keeper import register_captures
from actors.staging import propagation  # noqa: F401 - its host imports it only after failpoints are redirected
from actors.staging.propagation_host import PropagationHost
from actors.staging.queue_host import QueueHost
from actors.state_folder import site_folder
from headrace.base.errors import DatabaseUnavailable, FencedError, HeadraceError, LogGone, PropagationError, RedoError
from headrace.databases.memory.log import MemoryLogDecoder
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import FIRST_SCN
from headrace.lcr.tracking import TrackLog
from headrace.links.ports import RedoPosition
from headrace.redo.mining.miner import Miner
from headrace.redo.writing.log_writer import LogWriter
from headrace.simulation.apply_process import Beginning, Driver, Task
from headrace.simulation.network import SimulatedLinks
from headrace.simulation.observing.violations import Invariant, Violation, require
from headrace.simulation.surroundings import Killed
from topology.routing.downstream import receivers_from

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.staging.queue import QueueCore
    from headrace.lcr.scn import Scn
    from headrace.rules.user_code.last_call import LastCall
    from headrace.simulation.checking.observer import ApplyObserver
    from headrace.simulation.surroundings import Surroundings
    from topology.spec import ApplySpec, CaptureSpec, PropagationSpec, TopologySpec

__all__ = ["ApplyProcess", "BufferedQueue", "CaptureProcess", "Component", "PropagationProcess", "SourceSite"]

ROWS_MAX = 6  # per batch: several transactions of the workload are larger


class Component:
    """A component that runs, fails and is restarted. It handles errors like `actors.hosting.host.Host`.

    Args:
        sim: the simulation.
        name: "<kind>:<name in the topology>".
        site: the site where it runs.
    """

    def __init__(self, sim: Surroundings, name: str, site: str) -> None:
        self.sim, self.name, self.site = sim, name, site
        self.is_open = self.is_stopped = False
        self.tracks = TrackLog(sim.clock)
        self._start_at = 0.0

    def tick(self) -> None:
        """Do a little work, or restart."""
        now = self.sim.clock.monotonic()
        if self.is_stopped or now < self._start_at:
            return
        try:
            if not self.is_open:
                self.open()
                self.is_open = True
                self.sim.trace.note(self.name, "began")
            self.work()
        except Killed as killed:
            self.kill(str(killed))
        except (HeadraceError, OSError) as error:
            self.close()
            self.is_open = False
            if isinstance(error, HeadraceError) and not is_timed(error):
                self.end(error)
                return
            self._start_at = now + self.sim.rng.uniform(0.01, 0.3)
        except Violation:
            raise
        except Exception as error:
            raise Violation(
                Invariant.NO_ABORT, self.name, f"an unexpected error: {type(error).__name__}: {error}"
            ) from error

    def kill(self, where: str = "") -> None:
        """Kill the process, which restarts after a while; `where` is the failpoint at which it died."""
        self.sim.trace.note(self.name, f"killed{f' at {where}' if where else ''}")
        self.forget()
        self.is_open, self.tracks = False, TrackLog(self.sim.clock)
        self._start_at = self.sim.clock.monotonic() + self.sim.rng.uniform(0.05, 1.0)

    def stop(self) -> None:
        """Stop it, as the operator does."""
        self.sim.trace.note(self.name, "stopped by the operator")
        self.close()
        self.is_open, self.is_stopped = False, True

    @property
    def may_start(self) -> bool:
        """Whether it is stopped and needs no more than a start."""
        return self.is_stopped

    def start(self) -> None:
        """Start it, as the operator does."""
        self.sim.trace.note(self.name, "started by the operator")
        self.is_stopped = False

    def end(self, error: HeadraceError) -> None:
        """End with an error after which it cannot restart by itself."""
        raise Violation(
            Invariant.NO_ABORT, self.name, f"it is ABORTED: {type(error).__name__}: {error.message} {error.hint}"
        ) from error

    def adopt(self) -> None:
        """Adopt an edit of the topology."""

    def open(self) -> None:
        """Open what it needs to work."""
        raise NotImplementedError

    def work(self) -> None:
        """Do a little work."""
        raise NotImplementedError

    def close(self) -> None:
        """End in an orderly way after an error."""

    def forget(self) -> None:
        """Die: the process and its memory are lost."""
        self.close()


class SourceSite(Component):
    """The log writer, as hosted by `actors.source_database`."""

    def __init__(self, sim: Surroundings, site: str) -> None:
        super().__init__(sim, f"site:{site}", site)
        self.database = sim.databases[site]
        self._topology = sim.topology  # the adopted topology: a process that dies restarts with it
        self.folder = site_folder(sim.topology, site) / "redo"
        self.writer: LogWriter | None = None
        self._stream: Any = None
        self.durable_scn = FIRST_SCN

    @property
    def keeper(self) -> LogWriter | None:
        """The writer that keeps the mined redo; None: it does not run."""
        return self.writer

    def open(self) -> None:
        """Read the log from the stored progress on."""
        sim = self.sim
        if self.writer is None:
            self.writer = LogWriter(
                self.folder,
                self.site,
                decoder_factory=MemoryLogDecoder,
                dictionary_build=self.database.source.dictionary_build,
                segment_bytes=sim.topology.segment_bytes,
                redo_bytes_max=sim.topology.redo_bytes_max,
                record_bytes=1500,
                clock=sim.clock,
            )
            self._keep_redo()
            if receivers := receivers_from(sim.topology, self.site):
                self.writer.shipping.register({each.name: each.is_sync for each in receivers})
            has_redo = self.writer.options is not None
            require(
                not has_redo or self.writer.start_scn >= self.database.source.confirmed_scn,
                Invariant.PROMISES,
                self.name,
                f"the source was told that everything up to {self.database.source.confirmed_scn} is durable, but redo"
                f" ends at {self.writer.start_scn}",
            )
        if self.database.is_down:
            raise DatabaseUnavailable("the source does not answer")
        stream = self.database.source.open_stream(sim.topology.name, self.writer.start_scn)
        try:
            self.writer.attach(stream)
        except BaseException:
            stream.close()
            raise
        self._stream = stream

    def adopt(self) -> None:
        """Keep redo only for the capture processes of the changed topology, as `DatabaseSite`."""
        self._topology = self.sim.topology
        self._keep_redo()

    def _keep_redo(self) -> None:
        if self.writer is not None:
            captures = [each.name for each in self._topology.captures if each.source == self.site == each.site]
            register_captures(self.writer.required_checkpoints, self._topology, captures)

    def work(self) -> None:
        """Read from the database, write redo, and purge redo that is no longer needed."""
        writer = self.writer
        assert writer is not None
        if self.database.is_down:
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
        scn = writer.position.scn
        require(
            scn >= self.durable_scn,
            Invariant.WATERMARKS,
            self.name,
            f"the end of redo went back from {self.durable_scn} to {scn}",
        )
        if scn > self.durable_scn:
            self.sim.trace.note(self.name, "durable in redo", self.site, self.durable_scn, scn)
        self.durable_scn = scn

    def close(self) -> None:
        """End in an orderly way."""
        if self.writer is not None:
            self.writer.detach()
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def forget(self) -> None:
        """Die: what was only in memory is lost."""
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
            self.sim.trace.note(self.name, "power lost")
            self._lose_power(segment._path, segment.durable_offset)

    def _lose_power(self, path: Path, durable: int) -> None:
        """Lose power: data that was not synced may be missing, partial, or zeros."""
        rng, size = self.sim.rng, path.stat().st_size
        cut = rng.randint(durable, size)
        os.truncate(path, cut)
        if rng.random() < 0.5:
            os.truncate(path, size)


class _RedoWatch:
    """Like `RedoWatchClient`: the position is slightly late, and the connection ends with the site's process."""

    def __init__(self, sim: Surroundings, capture: CaptureSpec) -> None:
        self._sim, self._site, self._capture = sim, sim.redo_of(capture), capture.name
        self._writer = self._site.keeper
        self._position = RedoPosition(segment=0, offset=0, scn=FIRST_SCN)

    def connect(self) -> RedoPosition:
        """Return the position known so far."""
        return self._position

    def poll(self) -> RedoPosition:
        """Return the newest known position of the redo log."""
        writer = self._site.keeper
        if writer is None or writer is not self._writer:
            if self._sim.rng.random() < 0.2:
                raise PropagationError(f"{self._site.name} does not answer")
        elif self._sim.rng.random() < 0.7:
            self._position = writer.position
        return self._position

    def checkpoint(self, scn: Scn) -> Scn:
        """Record the required checkpoint SCN of the capture process."""
        writer = self._site.keeper
        if writer is None or writer is not self._writer:
            raise PropagationError(f"{self._site.name} does not answer")
        told: Scn = writer.required_checkpoints.record(self._capture, scn)
        return told

    def mine_again(self, scn: Scn) -> Scn:
        """Ask the writer to mine again from an SCN; return the SCN that it answers."""
        writer = self._site.keeper
        if writer is None or writer is not self._writer:
            raise PropagationError(f"{self._site.name} does not answer")
        told: Scn = writer.required_checkpoints.mine_again(self._capture, scn)
        return told

    def close(self) -> None:
        """Do nothing: there is no connection to close."""


class _SmallBatches(Miner):
    def next_batch(self, durable: Any, **bounds: Any) -> LcrBatch | None:
        return super().next_batch(durable, rows_max=ROWS_MAX, bytes_max=600)


class CaptureProcess(Component):
    """A `CaptureHost` on the simulated network, combined with an apply process or not."""

    def __init__(self, sim: Surroundings, spec: CaptureSpec) -> None:
        super().__init__(sim, f"capture:{spec.name}", spec.site)
        self.capture = spec.name
        self.topology = sim.topology
        self.host = self._new_host()

    def _new_host(self) -> CaptureHost:
        host = CaptureHost(self.topology, self.capture, "", self._links, make_miner=self._miner, clock=self.sim.clock)
        host.tracks = self.tracks
        return host

    def _links(self, spec: TopologySpec, _site: str, _component: str, _wake: Callable[[], None]) -> SimulatedLinks:
        return SimulatedLinks(self.sim.network, self.capture, lambda: _RedoWatch(self.sim, spec.capture(self.capture)))

    def _miner(self, _spec: TopologySpec, capture: CaptureSpec, start_scn: Scn, _last_call: LastCall) -> Miner:
        return _SmallBatches(
            self.sim.redo_of(capture).folder,
            capture.source,
            start_scn,
            capture.rules,
            MemoryLogDecoder,
            clock=self.sim.clock,
        )

    def open(self) -> None:
        """Open a new host."""
        self.host = self._new_host()
        try:
            self.host.open()
        except BaseException:
            self.host.close()
            raise

    def adopt(self) -> None:
        """Close; reopen with the changed topology, as `Host`."""
        self.close()
        self.is_open = False
        self.topology = self.sim.topology

    def work(self) -> None:
        """Serve a combined apply process, and do a step."""
        self.sim.network.serve(self.capture)
        self.host.step()
        for status in self.host.details().subscribers:
            self.sim.seen["combined"] += status.connected
            self.sim.seen["combined without credit"] += status.connected and status.credit_bytes <= 0
            self.sim.seen["refused while combined"] += status.gone_scn is not None
            # One batch may exceed the remaining space.
            require(
                status.waiting_bytes is not None and status.waiting_bytes <= AHEAD_BYTES + 4000,
                Invariant.BOUNDS,
                self.name,
                "more bytes wait than its bound allows",
            )

    def close(self) -> None:
        """Close the host."""
        self.host.close()
        self.sim.network.queue_died(self.capture)


class BufferedQueue(Component):
    """A `QueueHost` on the simulated network.

    When it dies, it loses what it has in memory and what it has spilled.
    """

    def __init__(self, sim: Surroundings, name: str) -> None:
        super().__init__(sim, f"queue:{name}", sim.topology.queue(name).site)
        self._queue = name
        self._host: QueueHost | None = None  # the queue's process

    @property
    def core(self) -> QueueCore | None:
        """The queue; None: it is not open."""
        return self.sim.network.core(self._queue)

    def _new_host(self) -> QueueHost:
        host = QueueHost(self.sim.topology, self._queue, "", self._links, clock=self.sim.clock)
        host.tracks = self.tracks
        return host

    def _links(self, _spec: TopologySpec, _site: str, _component: str, _wake: Callable[[], None]) -> SimulatedLinks:
        return SimulatedLinks(self.sim.network, self._queue)

    def open(self) -> None:
        """Open a new host, from what is on disk."""
        self._host = self._new_host()
        self._host.open()

    def adopt(self) -> None:
        """Adopt an edit: a running queue continues with the subscribers of the changed topology.

        A stopped queue forgets the other subscribers; a dead queue restarts with the new ones.
        """
        if self._host is not None:
            self._host.adopt(self.sim.topology, "")
        elif self.is_stopped:
            self._new_host().adopt(self.sim.topology, "")

    def work(self) -> None:
        """Serve streams, and store positions from time to time."""
        host, core = self._host, self.core
        assert host is not None
        assert core is not None
        self.sim.network.serve(self._queue)
        host.step()
        bounds = self.sim.topology.queue(self._queue)
        status = core.status()
        self.sim.seen["spilled"] += status.spill_bytes > 0
        self.sim.seen["queue paused"] += status.state != "ENABLED"
        self.sim.seen["rewound"] += status.rewinds_total > 0
        self.sim.seen["spill problem"] += bool(status.problem)
        require(
            status.spill_bytes <= bounds.spill_bytes_max,
            Invariant.BOUNDS,
            self.name,
            "it spilled more than its bound",
        )
        # One batch may exceed the remaining space, and what cannot be spilled stays in memory.
        memory_max = bounds.memory_bytes_max + bounds.spill_bytes_max + 4000
        require(
            status.memory_bytes <= memory_max, Invariant.BOUNDS, self.name, "it holds more in memory than its bounds"
        )

    def close(self) -> None:
        """End in an orderly way: nothing needs to be sent first."""
        self.forget()

    def forget(self) -> None:
        """Die: what was only in memory is lost."""
        core, self._host = self.core, None
        self.sim.network.queue_died(self._queue)
        if core is not None:
            for file in core._spill._files.values():
                os.close(file.descriptor)

    def damage(self) -> bool:
        """Overwrite everything spilled with zeros; return False if nothing is spilled."""
        files = [] if self.core is None else list(self.core._spill._files.values())
        for file in files:
            os.pwrite(file.descriptor, bytes(file.size), 0)
        return bool(files)


class PropagationProcess(Component):
    """A `PropagationHost` on the simulated network."""

    def __init__(self, sim: Surroundings, spec: PropagationSpec) -> None:
        super().__init__(sim, f"propagation:{spec.name}", sim.topology.queue(spec.from_queue).site)
        self._spec, self._topology = spec, sim.topology
        self._host: PropagationHost | None = None

    def _links(self, _spec: TopologySpec, _site: str, _component: str, _wake: Callable[[], None]) -> SimulatedLinks:
        return SimulatedLinks(self.sim.network, self._spec.name)

    def open(self) -> None:
        """Open a new host."""
        # A new process each time: the memory of an earlier one died with it.
        self._host = PropagationHost(self._topology, self._spec.name, "", self._links, clock=self.sim.clock)
        self._host.tracks = self.tracks
        self._host.open()

    def adopt(self) -> None:
        """Close if the propagation has changed, and reopen with the changed topology, as `Host`."""
        self._topology, before = self.sim.topology, self._spec
        self._spec = self._topology.propagation(before.name)
        if self._spec != before:
            self.close()
            self.is_open = False

    def work(self) -> None:
        """Do a step."""
        assert self._host is not None
        self._host.step()

    def close(self) -> None:
        """Close the host."""
        if self._host is not None:
            self._host.close()


class ApplyProcess(Component):
    """Keeps a driver running, as `actors.apply`; older drivers may linger until they find that they are fenced."""

    def __init__(self, sim: Surroundings, spec: ApplySpec, observer: ApplyObserver) -> None:
        super().__init__(sim, f"apply:{spec.name}", spec.site)
        self.spec, self.store, self.observer = spec, sim.databases[spec.site].store, observer
        self._beginning: Beginning | None = None
        self.driver: Driver | None = None
        self._older: list[Driver] = []
        self._thaw_at = 0.0  # until then the older drivers are frozen, as by SIGSTOP
        self._orphans: list[Task] = []
        self.refused: LogGone | None = None

    @property
    def may_start(self) -> bool:
        """Whether it is stopped and needs no more than a start; a refused process needs other help."""
        return self.is_stopped and self.refused is None

    def open(self) -> None:
        """Begin as the newest driver."""
        self.driver, self._beginning = None, Beginning(self.sim, self.spec, self.store, copies=self.observer.is_new)

    def end(self, error: HeadraceError) -> None:
        """Wait for the operator if the process is refused."""
        if isinstance(error, LogGone):
            require(
                self.observer.may_be_refused,
                Invariant.REFUSAL,
                self.name,
                f"it lost nothing, but is refused: {error.message}",
            )
            self.sim.fired["refused"] += 1
            self.sim.trace.note(self.name, f"refused: {error.message}")
            self.refused, self.is_stopped = error, True
            return
        super().end(error)

    def work(self) -> None:
        """Step the driver, the older drivers and the orphaned tasks."""
        rng = self.sim.rng
        if self.driver is None:
            assert self._beginning is not None
            scns = self._beginning.step()
            if scns is None:
                return
            self.driver = Driver(self.sim, self.spec, self.store, self._beginning.progress, scns, self.tracks)
        try:
            self.driver.step(rng)
        except FencedError as error:
            raise Violation(
                Invariant.FENCING, self.name, f"the newest driver was fenced out: {error.message}"
            ) from error
        self._look(self.driver)
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

    def _look(self, driver: Driver) -> None:
        seen, coordinator = self.sim.seen, driver.coordinator
        seen["waiting for ALTER"] += driver.reader.unfit is not None
        seen["waiting for dependencies"] += coordinator.statistics.wait_deps > 0
        seen["replayed"] += coordinator.statistics.replays > 0
        seen["began with gaps"] += coordinator.watermarks.had_gaps
        seen["groups at once"] += len(coordinator._groups) > 1
        seen["streamed transaction"] += any(group.large is not None for group in coordinator._groups)

    def _step_older(self, older: Driver) -> None:
        try:
            older.step(self.sim.rng)
        except FencedError:
            self.sim.fired["older driver fenced out"] += 1
            self._drop(older)
        except HeadraceError:
            self._drop(older)

    def _drop(self, older: Driver) -> None:
        self._older.remove(older)
        older.end()
        self._orphans += older.tasks.values()

    def start_second(self) -> bool:
        """Start another driver while this one still runs; return False if none runs."""
        if self.driver is None or not self.is_open or not self.store.is_reachable:
            return False
        self.sim.trace.note(self.name, "a second driver began")
        self._older.append(self.driver)
        self._thaw_at = self.sim.clock.monotonic() + self.sim.rng.choice([0.0, 1.0, 6.0])
        self.open()
        return True

    def end_older(self) -> None:
        """End all older drivers."""
        for older in list(self._older):
            self._drop(older)

    def close(self) -> None:
        """End the driver; its tasks become orphans."""
        self.forget()

    def forget(self) -> None:
        """Die: the driver ends, and its tasks become orphans."""
        if self._beginning is not None:
            self._beginning.close()
        driver, self.driver = self.driver, None
        if driver is not None:
            driver.end()
            self._orphans += driver.tasks.values()
