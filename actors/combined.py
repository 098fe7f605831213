"""Combined capture and apply: a capture process serves its apply process itself, in the place of the queues in between.

Job
    Deliver what the capture process mines straight to the apply process, from where the apply process asks for it, and bring
    back what its destination has committed.

Main path
    CombinedCore.open_subscriber (the apply process says where to begin) -> CombinedOutlet.poll -> CaptureHost mines ->
    CombinedOutlet.send_nowait -> CombinedCore.dequeue -> gRPC -> apply; CombinedCore.acknowledge -> CombinedOutlet.poll.

States (V$STREAMS_CAPTURE.STATE)
    WAITING FOR 1 SUBSCRIBER(S) INITIALIZING   the apply process is not connected. Memory only; besides those of `actors.capture`.

Durable when
    What the apply process acknowledges is committed at its destination; the capture process tells the site, which may purge redo up
    to there. The site's record of that (`redo.checkpoints`) is what is known of an apply process that is away: everything after it
    can be mined again, and an apply process that needs less has lost commits. Only a refusal is kept here (`actors.records.refusal`): a
    refused apply process aborts and does not subscribe again by itself.

Bounds
    `AHEAD_BYTES` of batches wait here, and no more than the apply process gave credit for. Without credit, or without an
    apply process, nothing is mined: redo is the buffer, as it is kept until it is DURABLE in any case.

Worked flow
    site's record 30; apply subscribes{40} -> Miner(40) -> 40..50, 50..60 -> acknowledge{50} -> the site may purge up to 50
    the stream breaks -> subscribes{50} -> what waits is dropped, Miner(50) -> 50..60: the reader discards what it had by SCN
    this process is killed -> subscribes{60} -> Miner(60)
    apply comes back from a backup, subscribes{20} -> a loss is noted -> Miner(20) -> redo begins at 35: apply is refused.
    Two minutes later (`REFUSED_HOLD_S`) nothing is held for it any more: what is mined is dropped and counts as DURABLE
    this process is killed -> it reads the refusal from disk -> Miner(record): dropped as before, until apply begins anew
    a new apply process subscribes{FIRST_SCN} -> the mark 0..record, then all after it
    a second destination is added: the capture process closes this and enqueues from its queue's position; the apply process
    dequeues from its queue, from where it is
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from actors.staging.queue_sessions import SubscriberSession, Subscription, end_older, unsent
from protos.admission import Admission
from protos.queue_link import DequeueService
from protos.transport import Server
from streams.clock import Clock, SystemClock
from streams.errors import ProtocolError, QueueError, WouldBlock
from streams.links import Delivery, PublisherProgress
from streams.scn import FIRST_SCN, Scn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from streams.links import BatchHeader
    from topology.spec import ApplySpec

__all__ = ["CombinedCore", "CombinedOutlet", "RefusalRecord"]

# One batch is on its way while the next one is mined; a batch is about 1 MiB, and larger ones wait alone.
AHEAD_BYTES = 2 << 20
_OFFERED_MAX = 3_600  # moments, one a second: beyond an hour they are only known as later than the first ones
_OLDER_TOPOLOGY = "one of the two still runs an older topology file: it is about to be replaced"


class RefusalRecord(Protocol):
    """Durable knowledge of whether the apply process is refused: `actors.records.refusal.Refusal`."""

    @property
    def gone_scn(self) -> Scn | None:
        """Changes up to here that the apply process lacks are gone, and it is refused; None: it is not."""
        ...

    def record(self, gone_scn: Scn | None) -> None:
        """Take note of a refusal, or of its end; durable when this returns.

        Args:
            gone_scn: changes up to here are gone; None: the apply process is not refused, or not any more.

        Raises:
            CaptureError: it could not be written; what was recorded before holds.
        """
        ...


class CombinedCore:
    """One source's batches on their way to one apply process; see the module. Not thread-safe, no threads, no files.

    Args:
        topology: its name.
        apply: the apply process; it serves in the place of its queue.
        acknowledged: what the apply process is known to have committed; FIRST_SCN: nothing is known.
        refusal: keeps a refusal of the apply process for the next life.
        wake: called when `progress` has something new, or `offer` would not block any more.
        clock: of statistics.
    """

    def __init__(
        self, topology: str, apply: ApplySpec, *, acknowledged: Scn, refusal: RefusalRecord, wake: Callable[[], None],
        clock: Clock | None = None,
    ) -> None:
        self.topology_name, self.name = topology, apply.queue
        self._subscription = Subscription(apply.name, apply.source, acknowledged)
        self._refusal = refusal
        self._wake = wake
        self._clock = clock or SystemClock()
        if (gone := refusal.gone_scn) is not None:
            self._subscription.refuse(gone, self._clock.monotonic())
        self._batches: deque[Delivery] = deque()
        self._bytes = 0
        self._offered: deque[tuple[float, Scn]] = deque()  # what is not acknowledged: since when, and up to which SCN; ascending in both
        # Where to mine from, until the capture process takes note: what the apply process asked for. A refused one does not ask, so
        # mining begins by itself and its batches are dropped, as in the life in which the apply process was refused.
        self._begin_scn: Scn | None = None if gone is None else self._subscription.held_scn
        self._is_blocked = False  # the capture process has a batch that it could not offer

    # ------------------------------------------------------------------ the capture process

    @property
    def is_connected(self) -> bool:
        """Whether the apply process is connected."""
        return self._subscription.session is not None

    def progress(self) -> PublisherProgress:
        """How the stream stands; `rewind_scn`: where the apply process wants to begin, reported once."""
        begin, self._begin_scn = self._begin_scn, None
        subscription = self._subscription
        # For a refused one mining goes on from `held_scn`, and perhaps nothing is there to be offered for a long time.
        durable = max(subscription.acknowledged_scn, subscription.held_scn) if self._is_held_no_more else subscription.acknowledged_scn
        return PublisherProgress(
            accepted_scn=subscription.sent_scn, accepted_bytes=0, durable_scn=durable,
            in_flight_bytes=self._bytes, credit_bytes=subscription.session.credit_bytes if subscription.session else 0,
            rewind_scn=begin,
        )

    def offer(self, header: BatchHeader, data: bytes) -> None:
        """Take the next batch.

        Args:
            header: of the batch.
            data: the encoded batch, header included.

        Raises:
            WouldBlock: there is no credit, or nobody to send it to; `wake` is called when there may be.
        """
        subscription = self._subscription
        session = subscription.session
        if session is None and self._is_held_no_more and self._begin_scn is None:
            subscription.acknowledged_scn = max(subscription.acknowledged_scn, header.through_scn)
            return
        self._note_offered(header.through_scn)
        is_full = self._bytes > 0 and self._bytes + len(data) > AHEAD_BYTES
        # A stream that has begun since this was mined needs something else.
        if session is None or self._begin_scn is not None or is_full or session.credit_bytes <= self._bytes:
            self._is_blocked = True
            raise WouldBlock
        self._batches.append(Delivery(header=header, data=data))
        self._bytes += len(data)

    def gone(self, first_scn: Scn) -> None:
        """Redo up to `first_scn` is gone, and the apply process was to begin below: it is refused.

        Raises:
            CaptureError: the refusal could not be recorded; nothing is changed.
        """
        if self._begin_scn is not None:
            return  # another stream has begun: what it needs is found out next
        subscription = self._subscription
        begin = subscription.acknowledged_scn
        if FIRST_SCN < subscription.needed_scn < first_scn:
            # Durable before the apply process learns of it: then it aborts, and does not subscribe again.
            self._refusal.record(first_scn)
            subscription.refuse(first_scn, self._clock.monotonic())
            begin = subscription.held_scn
        self._clear()
        self._begin_scn = max(first_scn, begin)

    # ------------------------------------------------------------------ the apply process

    def open_subscriber(
        self, component: str, incarnation: str, needed: Mapping[str, Scn], credit_bytes: int
    ) -> SubscriberSession:
        """Begin the apply process's session; the session of an older incarnation ends. What waits is dropped and mined again.

        Args:
            component: name of the apply process.
            incarnation: orders its sessions; greater is newer.
            needed: the source, with the SCN after which everything is needed.
            credit_bytes: how much it can take at first.

        Raises:
            QueueError: it is another component or another source, or a newer incarnation is connected.
            LogGone: it needs changes that are gone.
            CaptureError: the end of its refusal could not be recorded; the apply process tries again.
        """
        subscription = self._subscription
        if component != subscription.subscriber or set(needed) != {subscription.source}:
            raise QueueError(
                f"{component} is not combined with the capture process of {subscription.source}", hint=_OLDER_TOPOLOGY, queue=self.name,
            )
        scn = needed[subscription.source]
        if subscription.session is not None:
            end_older(subscription.session, incarnation, self.name)
            self.close_subscriber(subscription.session)
        self._admit(scn)
        session = SubscriberSession(component, incarnation, tuple(needed), credit_bytes)
        subscription.began(session, scn if scn > FIRST_SCN else subscription.acknowledged_scn)
        subscription.sent_scn = scn
        self._clear()
        self._begin_scn = scn
        self._wake()
        return session

    def _admit(self, needed: Scn) -> None:
        """Note that the apply process needs less than it had acknowledged; refuse it if that is known to be gone."""
        subscription = self._subscription
        gone = subscription.gone_scn
        if gone is not None and FIRST_SCN < needed < gone:
            raise subscription.refusal(needed, gone)
        if gone is not None:
            # Durable before it learns where it begins: redo from there on is then held for it, also by the next life.
            self._refusal.record(None)
            subscription.gone_scn = None
        elif FIRST_SCN < needed < subscription.acknowledged_scn:
            subscription.lost = (subscription.acknowledged_scn, needed, self._clock.time_us())

    def grant(self, session: SubscriberSession, credit_bytes: int) -> None:
        """Add to the number of bytes that the apply process can take.

        Args:
            session: of the apply process.
            credit_bytes: what is added.
        """
        session.credit_bytes += credit_bytes
        self._unblock()

    def acknowledge(self, session: SubscriberSession, source: str, scn: Scn) -> None:
        """The destination has committed everything up to `scn`. Of a session that a newer one replaced it does not count.

        Args:
            session: of the apply process.
            source: the source.
            scn: of the source.

        Raises:
            ProtocolError: the session did not subscribe to the source, or acknowledges more than it was sent; nothing is changed.
        """
        if source not in session.sources:
            raise ProtocolError(f"{session.component} acknowledges LCRs of {source}, which it does not take")
        subscription = self._subscription
        if session.ended is None and subscription.session in {None, session}:
            if scn > max(subscription.sent_scn, subscription.acknowledged_scn):
                raise unsent(session.component, source, scn, subscription.sent_scn)
            subscription.acknowledged_scn = max(subscription.acknowledged_scn, scn)

    def dequeue(self, session: SubscriberSession) -> Delivery | None:
        """The next batch; None when there is none or no credit."""
        subscription = self._subscription
        if session.ended is not None or subscription.session is not session or session.credit_bytes <= 0 or not self._batches:
            return None
        delivery = self._batches.popleft()
        self._bytes -= len(delivery.data)
        session.credit_bytes -= len(delivery.data)
        subscription.sent_scn = delivery.header.through_scn
        subscription.dequeued_rows += delivery.header.row_count
        subscription.dequeued_us = self._clock.time_us()
        self._unblock()
        return delivery

    def close_subscriber(self, session: SubscriberSession) -> None:
        """The stream has ended; idempotent."""
        if self._subscription.session is session:
            self._subscription.session = None
            self._clear()

    # ------------------------------------------------------------------ statistics

    def status(self) -> dict[str, Any]:
        """Statistics of the apply process as a subscriber, JSON-able, as a queue's (V$BUFFERED_SUBSCRIBERS)."""
        acknowledged = self._subscription.acknowledged_scn
        since = next((since for since, scn in self._offered if scn > acknowledged), None)
        return {
            **self._subscription.described(), "waiting_bytes": self._bytes,
            "unacknowledged_s": 0.0 if since is None else self._clock.monotonic() - since,
        }

    def _note_offered(self, scn: Scn) -> None:
        """Remember since when there is something that is not acknowledged, to the second; whether there is credit for it or not."""
        offered, now = self._offered, self._clock.monotonic()
        while offered and offered[0][1] <= self._subscription.acknowledged_scn:
            offered.popleft()
        if offered and (now - offered[-1][0] < 1.0 or len(offered) >= _OFFERED_MAX):
            offered[-1] = (offered[-1][0], max(offered[-1][1], scn))
        elif scn > max(self._subscription.acknowledged_scn, offered[-1][1] if offered else scn - 1):
            offered.append((now, scn))

    @property
    def _is_held_no_more(self) -> bool:
        """The apply process is refused, and nothing is held for it; see `REFUSED_HOLD_S`."""
        return self._subscription.gone_scn is not None and self._clock.monotonic() >= self._subscription.held_until

    def _clear(self) -> None:
        self._batches.clear()
        self._bytes = 0

    def _unblock(self) -> None:
        if self._is_blocked:
            self._is_blocked = False
            self._wake()


class CombinedOutlet:
    """A combined capture process's end: the core, served on a port of its own. As `protos.queue_link.EnqueueClient`.

    Args:
        core: from now on it is only touched behind the service's lock.
        host: address to listen on.
        admission: of its callers; None: everybody who says the right hello, without TLS.
    """

    def __init__(self, core: CombinedCore, *, host: str = "127.0.0.1", admission: Admission | None = None) -> None:
        self._core = core
        self.admission = admission or Admission()
        self._service = DequeueService(core, self.admission)
        self._server = Server([self._service.register], host=host, admission=self.admission)
        self.endpoint = self._server.endpoint

    @property
    def is_connected(self) -> bool:
        """Whether the apply process is connected."""
        return self._core.is_connected

    def poll(self) -> PublisherProgress:
        """See `CombinedCore.progress`."""
        with self._service.holding():
            return self._core.progress()

    def send_nowait(self, header: BatchHeader, data: bytes) -> None:
        """See `CombinedCore.offer`."""
        with self._service.changing():
            self._core.offer(header, data)

    def gone(self, first_scn: Scn) -> None:
        """See `CombinedCore.gone`."""
        with self._service.changing():
            self._core.gone(first_scn)

    def status(self) -> dict[str, Any]:
        """See `CombinedCore.status`."""
        with self._service.holding():
            return self._core.status()

    def close(self) -> None:
        """End the stream; idempotent."""
        self._server.stop()
