"""Combined capture and apply.

A capture process mounts a small queue of its own, in the place of the queues between it and its apply process.

Job
    Publish into that queue without a wire, and serve the apply process from it.

Main path
    QueueCore.open_subscriber (the apply process says where to begin) -> MountedQueue.poll -> CaptureHost mines ->
    MountedQueue.send_nowait -> QueueCore.dequeue -> gRPC -> apply; QueueCore.acknowledge -> MountedQueue.poll.

States (V$STREAMS_CAPTURE.STATE)
    WAITING FOR 1 SUBSCRIBER(S) INITIALIZING   the apply process is not connected. Memory only; besides those of `actors.capture`.

Durable when
    What the apply process acknowledges is committed at its destination; the capture process tells the site, which may
    purge redo up to there. The site's record of that (`headrace.redo.checkpoints`) is what is known of an apply process that is
    away: everything after it can be mined again, and an apply process that needs less has lost commits. Only a refusal
    is kept here, as by every queue: a refused apply process aborts and does not subscribe again by itself.

Bounds
    `AHEAD_BYTES` of batches wait here, and no more than the apply process gave credit for. Without credit, or without
    an apply process, nothing is mined: redo is the buffer, as it is kept until it is DURABLE in any case.

Worked flow
    site's record 30; apply subscribes{40} -> Miner(40) -> 40..50, 50..60 -> acknowledge{50} -> the site may purge up to
      50
    the stream breaks -> subscribes{50} -> what waits is dropped, Miner(50) -> 50..60: the reader discards what it had
      by SCN
    this process is killed -> subscribes{60} -> Miner(60)
    apply comes back from a backup, subscribes{20} -> a loss is noted -> Miner(20) -> redo begins at 35: apply is
      refused.
    Two minutes later (`REFUSED_HOLD_S`) nothing is held for it any more: what is mined is dropped and counts as DURABLE
    this process is killed -> it reads the refusal from disk -> Miner(record): dropped as before, until apply begins
      anew
    a new apply process subscribes{FIRST_SCN} -> the mark 0..record, then all after it
    a second destination is added: the capture process closes this and enqueues from its queue's position; the apply
    process dequeues from its queue, from where it is
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

# One batch is on its way while the next one is mined; a batch is about 1 MiB, and larger ones wait alone.
AHEAD_BYTES = 2 << 20
_OFFERED_MAX = 3_600  # moments, one a second: beyond an hour they are only known as later than the first ones


def mounted_core(
    spec: TopologySpec,
    capture: CaptureSpec,
    apply: ApplySpec,
    *,
    acknowledged: Scn,
    clock: Clock,
    tracks: TrackLog | None = None,
) -> QueueCore:
    """The queue that a capture process mounts for the apply process with which it is combined.

    Args:
        spec: the topology.
        capture: the capture process.
        apply: the apply process.
        acknowledged: what the apply process has committed by the site's record; FIRST_SCN: nothing is known.
        clock: of periods and statistics.
        tracks: takes notes of labelled transactions; the capture process takes its own.

    Raises:
        QueueError: the refusal of an earlier apply process could not be removed.
    """
    if acknowledged == FIRST_SCN:
        # The site has no position of a new capture process: the file belongs to an earlier one of the same name.
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
    """Forget that an apply process is refused: it may be copied again through queues before it is combined again.

    Args:
        spec: the topology.
        capture: the capture process that was combined with it.

    Raises:
        QueueError: that could not be recorded.
    """
    Refusals(_folder(spec, capture)).forget_others({})


def _folder(spec: TopologySpec, capture: CaptureSpec) -> Path:
    return component_file(spec.state_dir, f"capture:{capture.name}", "~queue")


class MountedQueue:
    """A capture process's end of the queue that it mounts, as `headrace.links.ports.Outlet`.

    Its own methods belong to one thread, `status` to any.

    Args:
        core: the queue; from now on it is only touched behind the lock of what serves it.
        capture: name of the capture process.
        source: the site whose redo it mines.
        serve: begins to serve the apply process (`Links.serve`).
        wake: called when `poll` has something new, or `send_nowait` would not block any more.
        clock: of statistics.
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
        # A refused apply process does not say where to begin, so mining begins by itself, as in the life in which it
        # was refused.
        account.rewind_scn = None if subscriber.gone_scn is None else account.accepted_scn
        # what is not DURABLE: since when, and up to which SCN; ascending in both
        self._offered: deque[tuple[float, Scn]] = deque()
        self._is_blocked = False  # there is a batch that could not be sent
        self._is_told = False  # the apply process has made news since the last `_hear`
        self._serving = serve(core)  # at last: the apply process may come at once, and wants something else
        self.endpoint = self._serving.endpoint

    @property
    def is_connected(self) -> bool:
        """Whether the apply process is connected."""
        return self.status().connected

    def poll(self) -> PublisherProgress:
        """How the queue stands; `rewind_scn`: where the apply process wants to begin, answered once."""
        with self._serving.holding():
            self._hear()
            return self._account.progress()

    def send_nowait(self, header: BatchHeader, data: bytes) -> None:
        """See `Outlet.send_nowait`.

        It also blocks while there is nobody to send it to, and when a stream has begun since it was mined.
        """
        with self._serving.changing():
            # what is held for a refused one is let go by time, and nobody tells
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
        """See `Outlet.gone`: the apply process is refused if it was to begin below.

        Raises:
            QueueError: the refusal could not be recorded; nothing is changed.
        """
        with self._serving.changing():
            self._hear()
            if self._account.rewind_scn is None:  # else another stream has begun: what it needs is found out next
                self.core.gone(self._session, first_scn)

    def status(self) -> QueueSubscriber:
        """Statistics of the apply process as a subscriber, as a queue's (V$BUFFERED_SUBSCRIBERS)."""
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
        """See `Serving.wire_status`."""
        return self._serving.wire_status()

    def close(self) -> None:
        """End the apply process's stream; idempotent."""
        self._serving.stop()

    def _told(self) -> None:
        """The apply process has made news; on its stream's thread, with the lock."""
        self._is_told = True
        if self._is_blocked or self._session.rewind_scn is not None:
            self._is_blocked = False
            self._wake()

    def _hear(self) -> None:
        """Take what is new; with the lock."""
        self._is_told = False
        news = self.core.publisher_news(self._session)
        if news is not None:
            self._account.hear(news)

    def _note_offered(self, scn: Scn) -> None:
        """Remember since when there is something that is not DURABLE, to the second.

        Whether there is credit for it or not.
        """
        offered, now, durable = self._offered, self._clock.monotonic(), self._account.durable_scn
        while offered and offered[0][1] <= durable:
            offered.popleft()
        if offered and (now - offered[-1][0] < 1.0 or len(offered) >= _OFFERED_MAX):
            offered[-1] = (offered[-1][0], max(offered[-1][1], scn))
        elif scn > max(durable, offered[-1][1] if offered else scn - 1):
            offered.append((now, scn))
