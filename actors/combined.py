"""Combined capture and apply.

A capture process mounts a small queue that replaces the queues between it and its apply process.

Job
    Publish into that queue inside the process, and serve the apply process from it.

Main path
    QueueCore.open_subscriber (the apply process says where to begin) -> MountedQueue.poll -> CaptureHost mines ->
    MountedQueue.send_nowait -> QueueCore.dequeue -> gRPC -> apply; QueueCore.acknowledge -> MountedQueue.poll.

States (V$STREAMS_CAPTURE.STATE)
    WAITING FOR 1 SUBSCRIBER(S) INITIALIZING   the apply process is not connected. Memory only; added to those of `actors.capture`.

Durable when
    What the apply process acknowledges is committed at its destination; the capture process reports it to the site,
    which may purge redo up to there. The site's record (`headrace.redo.checkpoints`) is the known position of a
    disconnected apply process: everything after it can be mined again. An apply process that asks for an earlier
    position has lost commits. Only a refusal is stored here, as by every queue: a refused apply process aborts and does
    not subscribe again by itself.

Bounds
    At most `AHEAD_BYTES` of batches are pending here, and no more than the apply process gave credit for. Without
    credit, or without an apply process, nothing is mined: redo is the buffer, as it is kept until DURABLE anyway.

Worked flow
    site's record 30; apply subscribes{40} -> Miner(40) -> 40..50, 50..60 -> acknowledge{50} -> the site may purge up to
      50
    the stream breaks -> subscribes{50} -> pending batches are dropped, Miner(50) -> 50..60: the reader discards
      duplicates by SCN
    this process is killed -> subscribes{60} -> Miner(60)
    apply is restored from a backup, subscribes{20} -> a loss is noted -> Miner(20) -> redo begins at 35: apply is
      refused.
    Two minutes later (`REFUSED_HOLD_S`) nothing is held for it any longer: what is mined is dropped and counts as DURABLE
    this process is killed -> it reads the refusal from disk -> Miner(record): dropped as before, until apply is
      instantiated anew
    a new apply process subscribes{FIRST_SCN} -> the mark 0..record, then everything after it
    a second destination is added: the capture process closes this queue and enqueues from the real queue's position;
    the apply process dequeues from its queue, from its own position
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from actors.records.files import component_file
from actors.staging.queue import QueueCore
from actors.staging.refusals import Refusals
from headrace.base.errors import WouldBlock
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.links.staging import PublisherAccount
from headrace.status.component import WireStatus
from headrace.status.queues import QueueSubscriber
from topology.routing.combined import mounted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.base.clock import Clock
    from headrace.lcr.tracking import TrackLog
    from headrace.links.ports import BatchHeader, PublisherProgress
    from headrace.links.serving import ServingQueue
    from topology.spec import ApplySpec, CaptureSpec, TopologySpec

__all__ = ["AHEAD_BYTES", "MountedQueue", "forget_refusal", "mounted_core"]

# One batch is in flight while the next one is mined. A batch is about 1 MiB; a larger one is sent alone.
AHEAD_BYTES = 2 << 20
_OFFERED_MAX = 3_600  # entries, one a second: beyond an hour, later batches share the last entry's time


def mounted_core(
    spec: TopologySpec,
    capture: CaptureSpec,
    apply: ApplySpec,
    *,
    acknowledged: Scn,
    clock: Clock,
    tracks: TrackLog | None = None,
) -> QueueCore:
    """Make the queue that a capture process mounts for the apply process with which it is combined.

    Args:
        spec: the topology.
        capture: the capture process.
        apply: the apply process.
        acknowledged: what the apply process has committed by the site's record; FIRST_SCN: unknown.
        clock: clock of periods and statistics.
        tracks: records labelled transactions; the capture process records its own.

    Raises:
        QueueError: the refusal of an earlier apply process could not be removed.
    """
    if acknowledged == FIRST_SCN:
        # The site has no position for a new capture process: the file belongs to an earlier one of the same name.
        forget_refusal(spec, capture)
    return QueueCore(
        mounted(spec, capture, apply, AHEAD_BYTES),
        apply.queue,
        _folder(spec, capture),
        clock,
        tracks=tracks,
        acknowledged=acknowledged,
    )


def forget_refusal(spec: TopologySpec, capture: CaptureSpec) -> None:
    """Remove the refusal of an apply process, which may be copied again through queues before it is combined again.

    Args:
        spec: the topology.
        capture: the capture process that was combined with it.

    Raises:
        QueueError: the removal could not be recorded.
    """
    Refusals(_folder(spec, capture)).forget_others({})


def _folder(spec: TopologySpec, capture: CaptureSpec) -> Path:
    return component_file(spec.state_dir, f"capture:{capture.name}", "~queue")


class MountedQueue:
    """A capture process's end of the queue that it mounts, as `headrace.links.ports.Outlet`.

    One thread calls its methods; any thread may call `status`.

    Args:
        core: the queue; from now on it is only accessed behind the lock of its server.
        source: site whose redo it mines.
        serve: begins to serve the apply process (`Links.serve`).
        wake: called when `poll` has news, or when `send_nowait` would no longer block.
        clock: clock of statistics.
    """

    def __init__(
        self,
        core: QueueCore,
        capture: str,
        source: str,
        serve: Callable[[QueueCore], ServingQueue],
        *,
        wake: Callable[[], None],
        clock: Clock,
    ) -> None:
        self.core, self._wake, self._clock = core, wake, clock
        self._session = core.open_publisher(capture, "", source, self._told)
        self._account = account = PublisherAccount()
        account.opened(*core.resume(self._session))
        (subscriber,) = core.status().subscribers
        account.durable_scn = Scn(subscriber.acknowledged_scn)
        # A refused apply process does not say where to begin. Mining begins by itself, as in the process that refused
        # it.
        account.rewind_scn = None if subscriber.gone_scn is None else account.accepted_scn
        # What is not DURABLE: (time, SCN up to which it reaches), both ascending.
        self._offered: deque[tuple[float, Scn]] = deque()
        self._is_blocked = False  # a batch could not be sent
        self._is_told = False  # the apply process has made news since the last `_hear`
        self._serving = serve(core)  # last: the apply process may connect at once and ask for another position
        self.endpoint = self._serving.endpoint

    @property
    def is_connected(self) -> bool:
        """Whether the apply process is connected."""
        return self.status().connected

    def poll(self) -> PublisherProgress:
        """Return the queue's progress; `rewind_scn`, where the apply process wants to begin, is returned once."""
        with self._serving.holding():
            self._hear()
            return self._account.progress()

    def send_nowait(self, header: BatchHeader, data: bytes) -> None:
        """Send a batch.

        Blocks without credit, while no apply process is connected, and when a stream has begun since the batch was
        mined.

        See `Outlet.send_nowait` for the arguments.
        """
        with self._serving.changing():
            # What is held for a refused apply process expires silently.
            if self._is_told or self._account.credit_bytes <= 0:
                self._hear()
            self._note_offered(header.through_scn)
            if self._account.rewind_scn is not None or not self._account.has_credit(len(data)):
                self._is_blocked = True
                raise WouldBlock
            self._account.sent(len(data))
            self.core.enqueue(self._session, header, data)
            self._is_told = True

    def gone(self, first_scn: Scn) -> None:
        """Refuse the apply process if it was to begin below `first_scn`.

        Raises:
            QueueError: the refusal could not be recorded; nothing has changed.
        """
        with self._serving.changing():
            self._hear()
            if self._account.rewind_scn is None:  # else another stream has begun: its position is checked next
                self.core.gone(self._session, first_scn)

    def status(self) -> QueueSubscriber:
        """Return statistics of the apply process as a subscriber, like a queue's (V$BUFFERED_SUBSCRIBERS)."""
        with self._serving.holding():
            self._hear()
            since = next((since for since, scn in self._offered if scn > self._account.durable_scn), None)
            (subscriber,), waiting_bytes = self.core.status().subscribers, self.core.waiting_bytes
        return replace(
            subscriber,
            waiting_bytes=waiting_bytes,
            unacknowledged_s=0.0 if since is None else self._clock.monotonic() - since,
        )

    def wire_status(self) -> WireStatus | None:
        """Return whom the server refused; None: it refuses nobody."""
        return self._serving.wire_status()

    def close(self) -> None:
        """End the apply process's stream; idempotent."""
        self._serving.stop()

    def _told(self) -> None:
        """Note news from the apply process; called on its stream's thread, under the lock."""
        self._is_told = True
        if self._is_blocked or self._session.rewind_scn is not None:
            self._is_blocked = False
            self._wake()

    def _hear(self) -> None:
        """Process pending news; called under the lock."""
        self._is_told = False
        news = self.core.publisher_news(self._session)
        if news is not None:
            self._account.hear(news)

    def _note_offered(self, scn: Scn) -> None:
        """Remember, to the second, since when something is not DURABLE, whether or not there is credit for it."""
        offered, now, durable = self._offered, self._clock.monotonic(), self._account.durable_scn
        while offered and offered[0][1] <= durable:
            offered.popleft()
        if offered and (now - offered[-1][0] < 1.0 or len(offered) >= _OFFERED_MAX):
            offered[-1] = (offered[-1][0], max(offered[-1][1], scn))
        elif scn > max(durable, offered[-1][1] if offered else scn - 1):
            offered.append((now, scn))
