"""A capture process in one process with its redo log; the test sets its queue's answers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from actors.capture import CaptureHost
from actors.capture_checkpoint import CHECKPOINT_INTERVAL_S
from actors.combined import MountedQueue
from actors.staging.queue import QueueCore
from headrace.base.clock import VirtualClock
from headrace.base.errors import WouldBlock
from headrace.databases.memory.source import MemorySource
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.links.ports import BatchHeader, PublisherProgress, RedoPosition, Resume
from headrace.redo.mining.miner import Miner
from headrace.redo.writing.log_writer import LogWriter
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.user_code.last_call import LastCall
from headrace.simulation.network import Unserved
from tests.support.redo.redo_logs import Names, drain, miner, write_redo
from tests.support.wire.staging import one_way
from topology.spec import CaptureSpec, TopologySpec

__all__ = ["CREDIT", "Capture", "KeptRedo", "Queue", "Redo"]

CREDIT = 1 << 20


class Queue:
    """Replaces `EnqueueClient`; the test sets the queue's answers."""

    def __init__(self) -> None:
        self.needed: int = FIRST_SCN  # start of the next stream
        self.sent: list[tuple[Scn, Scn]] = []
        self.has_credit = True
        self.durable: int = FIRST_SCN
        self.rewind: int | None = None
        self.told_gone: list[Scn] = []

    def connect(self) -> Resume:
        return Resume(needed_scn=self.needed, credit_bytes=int(self.has_credit))

    def poll(self) -> PublisherProgress:
        rewind, self.rewind = self.rewind, None
        return PublisherProgress(
            accepted_scn=self.sent[-1][1] if self.sent else FIRST_SCN,
            accepted_bytes=0,
            durable_scn=self.durable,
            in_flight_bytes=0,
            credit_bytes=int(self.has_credit),
            rewind_scn=rewind,
        )

    def gone(self, first_scn: Scn) -> None:
        self.told_gone.append(first_scn)

    def send_nowait(self, header: BatchHeader, data: bytes) -> None:
        if not self.has_credit:
            raise WouldBlock
        assert data
        self.sent.append((header.previous_scn, header.through_scn))

    def close(self) -> None:
        pass


class Redo:
    """Replaces `RedoWatchClient` of the log writer in the same process."""

    def __init__(self, writer: LogWriter) -> None:
        self.writer = writer
        self.checkpoints: list[Scn] = []
        self.again: list[Scn] = []

    def connect(self) -> RedoPosition:
        return self.poll()

    def poll(self) -> RedoPosition:
        position = self.writer.position
        return RedoPosition(segment=position.segment, offset=position.offset, scn=position.scn)

    def checkpoint(self, scn: Scn) -> Scn:
        self.checkpoints.append(scn)
        return max(self.checkpoints)

    def mine_again(self, scn: Scn) -> Scn:
        self.again.append(scn)
        return max(self.checkpoints)

    def close(self) -> None:
        pass


class KeptRedo(Redo):
    """Also reports to the log writer."""

    def checkpoint(self, scn: Scn) -> Scn:
        super().checkpoint(scn)
        return self.writer.required_checkpoints.record("capture_dbs1", scn)

    def mine_again(self, scn: Scn) -> Scn:
        super().mine_again(scn)
        return self.writer.required_checkpoints.mine_again("capture_dbs1", scn)


class Links:
    """Replaces `GrpcLinks`, with the links above; its mounted queue is served without a wire."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def publisher(self, queue: str, source: str, compressor: object = None) -> Queue:
        return self._capture.queue

    def redo(self, keeper: str, source: str) -> Redo:
        return self._capture.redo

    def serve(self, core: QueueCore) -> Unserved:
        return Unserved(core)


class Capture(CaptureHost):
    """The opened capture process, with frequent operations of tests.

    Args:
        folder: of the topology, and of the redo log.
        redo_bytes_max: of the redo log.
    """

    def __init__(self, folder: Path, *, redo_bytes_max: int = 1 << 30) -> None:
        self.source = MemorySource(gulp_bytes=lambda: 500)
        self.source.create_table("hr.t", ["id"], key=["id"])
        self.folder, self.inserted = folder, 0
        self.names = Names(self.source, RuleSet(include=(Rule(owner="hr", name="t"),)))
        self._clock: VirtualClock
        super().__init__(
            one_way(folder),
            "capture_dbs1",
            "",
            lambda *_: Links(self),
            make_miner=self._miner_from,
            clock=VirtualClock(),
        )
        self.insert()
        self.writer = write_redo(
            folder / "redo", self.source, segment_bytes=2000, record_bytes=500, redo_bytes_max=redo_bytes_max
        )
        self.queue, self.redo = Queue(), Redo(self.writer)
        self.open()
        self.redo.checkpoints.clear()

    def _miner_from(self, spec: TopologySpec, capture: CaptureSpec, start_scn: Scn, last_call: LastCall) -> Miner:
        self.names.forget()
        return miner(self.folder / "redo", start_scn, self.names.wanted, clock=self._clock, names=self.names)

    def open_combined(self) -> MountedQueue:
        """Start a new incarnation, combined with `apply_a`. Only the files and the site's record survive."""
        self.close()
        spec = one_way(self.folder)
        applies = tuple(dataclasses.replace(each, combined=each.name == "apply_a") for each in spec.applies)
        self.adopt(dataclasses.replace(spec, applies=applies), "")
        self.open()
        assert self._combined is not None
        return self._combined

    def steps(self, count: int = 60) -> None:
        """Mine what exists, and report to the site."""
        for _ in range(count):
            self._clock.advance(CHECKPOINT_INTERVAL_S)
            self.step()

    def commit(self, transactions: int) -> Scn:
        """Commit at the source; return the last SCN, durable in redo."""
        for _ in range(transactions):
            self.insert()
            drain(self.writer, self.source)
        return Scn(self.source.log[-1].commit_scn)

    def insert(self) -> None:
        self.inserted += 1
        with self.source.transaction() as transaction:
            transaction.insert("hr.t", id=str(self.inserted))
