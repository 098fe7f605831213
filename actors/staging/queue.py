"""Buffered queue: keep LCR batches until every subscriber's destination has committed them.

Longer than 500 lines: what publishers, subscribers and acknowledgements do moves one log per source, and is only right
together.

Job
    Take batches from publishers (capture processes, propagations) and deliver them in order to subscribers
    (propagations, apply processes), each at its own pace, without decoding them.

Main path
    QueueCore.enqueue -> SourceLog.admit -> SourceLog.append -> QueueCore.dequeue -> QueueCore.acknowledge
    -> SourceLog.release.

States (V$BUFFERED_QUEUES.QUEUE_STATE)
    ENABLED                   batches are taken, memory only.
    PAUSED FOR FLOW CONTROL   memory and spill files are full, or spilling fails: publishers have no credit. Set and
                              left by the amount of free space, memory only.

Durable when
    Only the acknowledged positions and the refusals are durable here. A batch is ACCEPTED when it is in the queue,
    which loses it in a crash. It is DURABLE when every subscriber has acknowledged it; a subscriber does so after its
    destination's commit. The queue reports DURABLE to the publisher only after the position is on disk, so a restarted,
    empty queue never asks for less than it promised: it asks for everything after the lowest position that its
    subscribers acknowledged.

Beginnings
    A new subscriber (`headrace up` added a destination) begins at the highest position that any subscriber but a
    refused one has acknowledged (if all are refused, at the queue's own), or at that of one that with the same edit
    leaves, or brings the changes no more to a site to which the new one does, if it is lower: what is behind the new
    one goes on. That position is on disk before the queue serves anyone: from then on nothing after it is DURABLE
    without the new subscriber, and nothing before it is requested. If all subscribers are new, the position is
    FIRST_SCN: whatever the publisher has. The publisher's first mark, from FIRST_SCN, states where that begins. A
    subscriber that needs FIRST_SCN never had anything, and gets such a mark first. An apply process asks for it before
    it copies its tables, so that its copies are later than the mark.

Passing on
    A queue that its capture process mounts (`actors.combined`) keeps nothing that it has sent: the redo has that, and a
    new stream gets it mined again. It takes no more than its one subscriber has credit for, saves no positions, and
    DURABLE is what the subscriber has acknowledged: the source's site records that.

Refusals
    A destination that lost commits (a failover, a restored backup) needs less than it had acknowledged. What the redo
    log still has is sent again, and `status` reports that. If redo is gone, only this subscriber is refused (LogGone):
    the others continue, and nothing is held for it, except for two minutes: one that was asleep may have been refused
    while the newest one's stream is broken. A propagation passes the answer on to the next queue, which refuses the
    subscriber concerned; meanwhile the queue holds what follows the beginning of redo for the propagation. A refused
    subscriber that returns with a sufficient position, or with FIRST_SCN, is a subscriber again. Refusals are durable
    before anybody learns of them: a refused apply process does not come again to be refused by the queue's next life.

Bounds
    Memory up to `memory_bytes_max`, then spill files up to `spill_bytes_max`, then no credit. Credit is in bytes of
    batches; it is so much that what is on its way fits even if it is the smallest batches there are, of which each
    costs more memory than it has bytes. The batch that will be read last is spilled first, so a slow subscriber does
    not slow the others before both are full. A transaction that is larger than both cannot become durable before its
    end: the queue drops parts that every connected subscriber has received, and requests them again if a subscriber
    needs them. One that was away waits for that until the others have the whole transaction.

Worked flow
    restarts: acknowledged A=40 B=30 -> position 30, Resume{30} -> the publisher sends 30..50, 50..60
    A subscribes with needed=40: gets 40..50 (cut from 30..50), 50..60; B with needed=30: gets 30..50, 50..60
    A acknowledges 60, B 50 -> saved -> publisher is told DURABLE 50 -> 30..50 is dropped
    B comes back from a backup and needs 20 -> everything is dropped, rewind{20}: the publisher sends from 20 again
    the publisher has it only from 40 on: gone{40} -> B is refused, nothing is held for it any more -> rewind{60}: A
      continues
    C is added, A=60 B=50 -> C=60 is saved -> Resume{50}; C subscribes with needed=FIRST_SCN: gets the mark 0..60, then
    all after 60; nothing after 60 is DURABLE before C has acknowledged it

Hosting
    QueueCore(topology, "q_dbs1", folder) is not thread-safe and calls nothing but its clock and its files.
    `streams.staging.LockedQueue(core)` puts it behind a lock, and `Links.serve` serves it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from actors.staging.positions import Places, PositionsFile
from actors.staging.queue_log import Entry, SourceLog, fitted, mark
from actors.staging.queue_sessions import PublisherSession, SubscriberSession, Subscription, end_older, unsent
from actors.staging.refusals import Refusals
from actors.staging.spill import SPILL_FOLDER, SpillFiles
from actors.staging.subscribers import positions_of, sources_of
from streams.clock import Clock, SystemClock
from streams.errors import ProtocolError, QueueError, printable
from streams.failpoints import failpoint
from streams.links import BatchHeader, Delivery
from streams.scn import FIRST_SCN, Scn
from streams.staging import PublisherNews
from streams.tracking import TrackLog
from topology.edits.changes import interests_of, places_of, published_by
from topology.spec import TopologySpec

__all__ = ["QueueCore"]

# Most bytes in flight from one publisher: covers 100 ms of round trip at 160 MB/s.
WINDOW_BYTES_MAX = 16 << 20
# Python objects of one entry, even when its bytes are on disk: measured, rounded up.
ENTRY_BYTES = 800
# The smallest batch with a row has 189 bytes: names, and arrays of one element each.
BATCH_BYTES_MIN = 180
# Spilling frees this share of the memory at once, so that it happens rarely.
SPILL_SHARE = 8
SPILL_RETRY_S = 1.0  # after a failed write: a full disk is rarely freed faster
SAVE_PERIOD_S = 1.0  # of the acknowledged positions: an fsync a second costs nothing, and purging is not urgent
_OLDER_TOPOLOGY = "one of the two still runs an older topology file: it is about to be replaced"


class QueueCore:
    """A buffered queue's core; see the module.

    Args:
        topology: the whole topology, which determines the queue's subscribers and sources.
        name: the queue's name there.
        folder: of this queue: spill files, acknowledged positions and refusals.
        clock: for periods and statistics.
        tracks: takes notes of labelled transactions.
        acknowledged: of a queue that passes on, what its subscriber is known to have acknowledged; None: the queue
            keeps what it sent. See the module.

    Raises:
        QueueError: the acknowledged positions are damaged.
        OSError: the folder cannot be used.
    """

    def __init__(
        self,
        topology: TopologySpec,
        name: str,
        folder: Path,
        clock: Clock | None = None,
        *,
        tracks: TrackLog | None = None,
        acknowledged: Scn | None = None,
    ) -> None:
        self.topology_name, self.name = topology.name, name
        self._spec = topology.queue(name)
        self._clock = clock or SystemClock()
        self._tracks = tracks or TrackLog(self._clock)
        self._file = PositionsFile(folder)
        # the file has one writer at a time, and what `adopt` wrote is not overwritten by what was read before it
        self._saving = threading.Lock()
        self._to_save: Mapping[str, Mapping[str, Scn]] | None = None  # what `positions_to_save` answered last
        self._keeps = acknowledged is None
        interests = interests_of(topology, name)
        saved, places = self._file.load(), self._file.places()
        if acknowledged is not None:
            saved = {
                source: dict.fromkeys(interests, acknowledged) for sources in interests.values() for source in sources
            }
        self._spill = SpillFiles(folder / SPILL_FOLDER, self._spec.spill_bytes_max)
        self._propagations = {each.name for each in topology.propagations}
        self._places = places_of(topology, name)
        self._refusals = Refusals(folder)
        refused = self._refusals.everyone()
        self._subscriptions = {
            (subscriber, source): Subscription(subscriber, source, scn)
            for source, positions in positions_of(
                interests, saved, refused=refused, places=(places, self._places)
            ).items()
            for subscriber, scn in positions.items()
        }
        self._takers = self._by_source()
        for (subscriber, source), subscription in self._subscriptions.items():
            if (gone := self._refusals.gone_scn(source, subscriber)) is not None:
                subscription.refuse(gone, self._clock.monotonic())
        if self._keeps and (self._acknowledged(), self._places) != (saved, places):
            # A subscriber is new, or removed: it must never return to an old position.
            self._file.save(self._acknowledged(), self._places)
        # then: as long as its position is on disk, a refused one that left must not be taken for a predecessor
        self._refusals.forget_others(interests)
        self._logs = {source: SourceLog(source, FIRST_SCN) for source in sources_of(topology, name)}
        for source, log in self._logs.items():
            log.clear(self._durable(source))
        self._sources_of = published_by(topology, name)  # by the name of the publisher
        self._publishers: dict[str, PublisherSession] = {}
        self._memory: dict[str, dict[int, Entry]] = {source: {} for source in self._logs}  # entries not spilled
        self._entries = self._memory_bytes = 0  # all entries; what those cost, and the batches in memory
        self._spill_problem = self._read_problem = self._save_problem = ""
        self._retry_spill_at = self._save_at = 0.0
        self._spilled_now = self._rows_total = self._spilled_total = self._forgotten_total = self._rewinds = 0
        self._age_sum = 0.0
        self._enqueued_us = 0

    @property
    def takes_publishers(self) -> bool:
        """Whether publishers come on streams: that of a queue that passes on is in the same process."""
        return self._keeps

    def adopt(self, topology: TopologySpec) -> None:
        """Continue with the subscribers and sources of a changed topology, without disturbing unchanged ones.

        A new subscriber begins as in a restarted queue; see the module's Beginnings. Nothing is held any more for a
        former subscriber.

        Args:
            topology: must have this queue at the same site with the same bounds.

        Raises:
            OSError: the positions could not be saved; the queue continues unchanged.
            QueueError: the refusals could not be saved; the queue continues unchanged.
        """
        before: dict[str, dict[str, Scn]] = {source: {} for source in self._logs} | self._acknowledged()
        interests, places = interests_of(topology, self.name), places_of(topology, self.name)
        refused = self._refusals.everyone()
        positions = positions_of(
            interests,
            before,
            places=(self._places, places),
            refused=refused,
            fallback={
                # The queue has waited for former subscribers until now: it holds what follows the most advanced one, as
                # before.
                source: max(
                    (scn for name, scn in known.items() if name not in refused.get(source, ())),
                    default=self._logs[source].position,
                )
                for source, known in before.items()
            },
        )
        self._save_instead(positions, places)
        self._refusals.forget_others(interests)  # then, as where the queue opens
        self._places = places
        self._propagations = {each.name for each in topology.propagations}
        wanted = {(subscriber, source): scn for source, each in positions.items() for subscriber, scn in each.items()}
        for key in [key for key in self._subscriptions if key not in wanted]:
            session = self._subscriptions.pop(key).session
            if session is not None:
                session.ended = QueueError(
                    f"{key[0]} is no subscriber of queue {self.name} any more", hint=_OLDER_TOPOLOGY
                )
        for key, scn in wanted.items():
            self._subscriptions.setdefault(key, Subscription(*key, scn)).saved_scn = scn
        self._takers = self._by_source()
        self._sources_of = published_by(topology, self.name)
        for publisher in list(self._publishers.values()):
            if publisher.source not in self._sources_of.get(publisher.component, ()):
                self._end_publisher(publisher)
        self._change_sources(sources_of(topology, self.name))

    def _change_sources(self, sources: list[str]) -> None:
        for source in [source for source in self._logs if source not in sources]:
            log = self._logs.pop(source)
            self._dropped(log, log.clear(log.position))
            del self._memory[source]
        for source in sources:
            if source not in self._logs:
                log = self._logs[source] = SourceLog(source, FIRST_SCN)
                self._memory[source] = {}
                log.clear(self._durable(source))
        for log in self._logs.values():
            self._dropped(log, log.release(self._floor(log)))

    # ----------------------------------------------------------------------- publishers

    def open_publisher(
        self, component: str, incarnation: str, source: str, tell: Callable[[], None] | None = None
    ) -> PublisherSession:
        """Begin a publisher's session; the session of an older incarnation ends.

        Args:
            component: name of the capture process or propagation.
            incarnation: orders the sessions of one component; greater is newer.
            source: the site whose LCRs it sends.
            tell: called when subscribers made news for the publisher; None: it is asked for news after every change
                anyway.

        Raises:
            QueueError: the queue takes no LCRs of this source from it, or a newer incarnation or another publisher is
                connected.
        """
        if source not in self._sources_of.get(component, ()):
            raise QueueError(
                f"queue {self.name} takes no LCRs of {printable(source)} from {component}",
                hint=_OLDER_TOPOLOGY,
                queue=self.name,
            )
        other = self._publishers.get(source)
        if other is not None:
            if other.component != component:
                raise QueueError(
                    f"queue {self.name} has a publisher of {source} already: {other.component}",
                    hint="one queue takes the LCRs of one source from one publisher",
                )
            end_older(other, incarnation, self.name)
        session = PublisherSession(component, incarnation, source, tell)
        self._publishers[source] = session
        return session

    def resume(self, session: PublisherSession) -> tuple[Scn, int]:
        """Return the SCN after which the publisher must begin, and its first credit in bytes."""
        log = self._logs[session.source]
        floor = self._floor(log)
        if floor > log.position:
            # Every subscriber was ahead of the queue. Lower changes may be purged already: do not request them.
            self._dropped(log, log.clear(floor))
        credit = self._window(self._free_bytes())
        session.granted_bytes = credit
        session.told = PublisherNews(through_scn=log.position, accepted_bytes=0, credit_bytes=credit)
        return log.position, credit

    def enqueue(self, session: PublisherSession, header: BatchHeader, data: bytes) -> None:
        """Accept a batch.

        Args:
            session: of the publisher.
            header: of the batch.
            data: the encoded batch, header included.

        Raises:
            ProtocolError: it does not follow the previous batch, or exceeds the credit; the session must end.
        """
        if session.ended is not None:
            raise session.ended
        if header.source != session.source:
            raise ProtocolError(f"{session.component} sends LCRs of {header.source} on a stream of {session.source}")
        if session.accepted_bytes >= session.granted_bytes:
            # With nothing on its way a batch may be larger than its credit, but there must be some.
            raise ProtocolError(
                f"{session.component} sends more LCRs of {session.source} than it has credit for",
                hint="the publisher reconnects and sends them again",
                granted_bytes=session.granted_bytes,
            )
        log = self._logs[session.source]
        if session.is_rewinding:
            if header.continues or header.previous_scn > log.position:
                session.accepted_bytes += len(data)
                return
            session.is_rewinding = False
        if header.continues and not session.in_transaction:
            raise ProtocolError(f"{session.component} continues a transaction it has not begun on this stream")
        session.in_transaction = header.is_open
        delivery = log.admit(header, data)
        if delivery is not None:
            if not delivery.header.continues:
                self._dropped(log, log.drop_open())
                for subscription in self._of(session.source):
                    subscription.number = min(subscription.number, log.end)
            self._append(log, delivery)
            for label in delivery.header.labels:
                self._tracks.note(label, session.source, "ENQUEUED", peer=session.component)
            self._make_room()
            failpoint("queue.after_enqueue")
        session.accepted_bytes += len(data)

    def publisher_news(self, session: PublisherSession) -> PublisherNews | None:
        """Changes for the publisher since the last call; None: none."""
        log = self._logs[session.source]
        if (free := self._free_bytes()) <= 0:
            self._give_up_parts()
            free = self._free_bytes()
        credit, told = self._window(free), session.told
        durable: Scn | None = self._durable(session.source)
        if durable is not None and durable <= session.told_durable_scn:
            durable = None  # it decreases only with a rewind
        rewind = self._pending_rewind(session, log)
        # Report a window that opens or closes, not one that changes a little.
        credit_changed = (credit == 0) != (told.credit_bytes == 0) or credit > 2 * told.credit_bytes
        moved = (log.position, session.accepted_bytes) != (told.through_scn, told.accepted_bytes)
        if not (moved or credit_changed or durable is not None or rewind is not None):
            return None
        if durable is not None:
            session.told_durable_scn = durable
        session.granted_bytes = max(session.granted_bytes, session.accepted_bytes + credit)
        session.told = PublisherNews(
            through_scn=log.position,
            accepted_bytes=session.accepted_bytes,
            credit_bytes=credit,
            durable_scn=durable,
            rewind_scn=rewind,
        )
        return session.told

    def _pending_rewind(self, session: PublisherSession, log: SourceLog) -> Scn | None:
        """Where the publisher must begin again, once; None: it goes on."""
        rewind, is_ordered = session.rewind_scn, session.is_ordered
        if rewind is None:
            return None
        session.rewind_scn, session.is_ordered = None, False
        floor = self._floor(log)
        if not is_ordered and floor > log.position:
            # The subscriber that needed it has learned meanwhile that its destinations have more: as in `resume`, lower
            # changes may be purged.
            self._dropped(log, log.clear(floor))
            rewind = floor
        return rewind

    def capture_again(self, publisher: str, scn: Scn) -> None:
        """Have a publisher send everything after an SCN again; what each subscriber has, it is not given again.

        Args:
            publisher: its name.
            scn: every subscriber has it: nothing is asked for that is above the queue's position.

        Raises:
            QueueError: it is not connected.
        """
        found = [session for session in self._publishers.values() if session.component == publisher]
        if not found:
            raise QueueError(
                f"{publisher} does not publish into queue {self.name} now",
                hint="ask again when it is connected; see `headrace status`",
            )
        for session in found:
            self._rewind(self._logs[session.source], scn)
            session.is_ordered = True

    def _end_publisher(self, session: PublisherSession) -> None:
        """It publishes its source no more."""
        session.ended = QueueError(
            f"queue {self.name} takes no LCRs of {session.source} from {session.component} any more",
            hint=_OLDER_TOPOLOGY,
        )
        self.close_publisher(session)

    def close_publisher(self, session: PublisherSession) -> None:
        """The stream has ended; idempotent. Later batches of it are not accepted: the next stream sends them again."""
        session.ended = session.ended or QueueError(
            f"the stream of {session.component} was closed", hint="nothing to do"
        )
        if self._publishers.get(session.source) is session:
            del self._publishers[session.source]

    # ----------------------------------------------------------------------- subscribers

    def open_subscriber(
        self, component: str, incarnation: str, needed: Mapping[str, Scn], credit_bytes: int
    ) -> SubscriberSession:
        """Begin a subscriber's session; the session of an older incarnation ends.

        Rewinds a source that lacks what is needed.

        Args:
            component: name of the propagation or apply process.
            incarnation: orders the sessions of one component; greater is newer.
            needed: per source, the SCN after which the subscriber needs everything.
            credit_bytes: how much it can take at first.

        Raises:
            QueueError: it is no subscriber of this queue for these sources, or a newer incarnation is connected.
        """
        unknown = [source for source in needed if (component, source) not in self._subscriptions]
        if unknown or not needed:
            raise QueueError(
                f"{component} is no subscriber of queue {self.name} for {', '.join(unknown) or 'no source at all'}",
                hint=_OLDER_TOPOLOGY,
                queue=self.name,
            )
        for source in needed:
            other = self._subscriptions[component, source].session
            if other is not None:
                end_older(other, incarnation, self.name)
                self.close_subscriber(other)
        session = SubscriberSession(component, incarnation, tuple(needed), credit_bytes)
        for source, scn in needed.items():
            subscription, log = self._subscriptions[component, source], self._logs[source]
            self._admit(subscription, scn)
            begin = scn if scn > FIRST_SCN else _beginning(subscription, log)
            subscription.began(session, begin)
            subscription.sent_scn = scn
            if self._keeps:
                subscription.begins = scn == FIRST_SCN
                self._begin_at(subscription, begin)
            else:
                # What waits was mined for an earlier stream. Where FIRST_SCN is, the capture process says with its
                # mark.
                self._restart(log, scn)
                subscription.number = log.end
        return session

    def _begin_at(self, subscription: Subscription, scn: Scn) -> bool:
        """Deliver from an SCN on; what is gone is requested again. False: not yet.

        A transaction of which parts were given up is not requested again while another subscriber is in the middle of
        it, which would make that one begin again: one that comes and goes would keep the others from ever having the
        transaction.
        """
        log = self._logs[subscription.source]
        start = log.start_for(scn)
        if (
            start is None
            and scn >= log.first_scn
            and any(
                each is not subscription
                and each.session is not None
                and each.awaits_scn is None
                and log.is_inside(each.number)
                for each in self._of(log.source)
            )
        ):
            subscription.awaits_scn = scn
            return False
        if start is None:
            # Everything that is here goes, also what is held before the transaction for those that are behind.
            self._rewind(log, min(scn, self._floor(log)) if scn >= log.first_scn else scn)
            start = log.end
        subscription.number, subscription.awaits_scn = start, None
        return True

    def _admit(self, subscription: Subscription, needed: Scn) -> None:
        """Note that a subscriber needs less than it had acknowledged; refuse it if that is known to be gone.

        Raises:
            LogGone: it needs changes that are gone.
            QueueError: that it is not refused any more cannot be recorded.
        """
        gone = subscription.gone_scn
        if gone is not None and FIRST_SCN < needed < gone:
            raise subscription.refusal(needed, gone)
        if gone is not None:
            self._refusals.record(subscription.source, {subscription.subscriber: None})
            # It begins anew: what follows the others' positions is held already.
            held = self._floor(self._logs[subscription.source]) if needed == FIRST_SCN else FIRST_SCN
            subscription.acknowledged_scn, subscription.gone_scn = max(subscription.acknowledged_scn, gone, held), None
        elif FIRST_SCN < needed < subscription.acknowledged_scn and subscription.subscriber not in self._propagations:
            subscription.lost = (subscription.acknowledged_scn, needed, self._clock.time_us())

    def gone(self, session: PublisherSession, first_scn: Scn) -> None:
        """The publisher has nothing up to `first_scn`: refuse subscribers that need it, and continue with the others.

        Args:
            session: of the publisher, which was asked for less and sends nothing before the next request.
            first_scn: everything after it is available.

        Raises:
            QueueError: the session has ended, or who is refused cannot be recorded; nothing is changed.
        """
        if session.ended is not None:
            raise session.ended
        log = self._logs[session.source]
        lacking = [each for each in self._of(session.source) if FIRST_SCN < each.needed_scn < first_scn]
        # Before anybody learns of it: an apply process that knows does not come again, and the queue's next life must
        # know by itself.
        self._refusals.record(
            session.source,
            {each.subscriber: first_scn for each in lacking if each.subscriber not in self._propagations},
        )
        for subscription in lacking:
            subscription.refuse(first_scn, self._clock.monotonic())
            if subscription.subscriber in self._propagations:
                # The subscribers behind it need something in between, and request it in a moment.
                subscription.acknowledged_scn = first_scn
        self._restart(log, max(first_scn, self._floor(log)))

    def grant(self, session: SubscriberSession, credit_bytes: int) -> None:
        """See `QueuePort.grant`."""
        session.credit_bytes += credit_bytes
        self._tell_publishers(session)

    def acknowledge(self, session: SubscriberSession, source: str, scn: Scn) -> None:
        """See `QueuePort.acknowledge`.

        Acknowledgements of an ended session do not count: a newer one may have begun with less, because the destination
        lost what the older one had acknowledged.

        Raises:
            ProtocolError: the session did not subscribe to the source, or is an apply process's and acknowledges more
                than it was sent; nothing is changed.
        """
        subscription = self._subscriptions.get((session.component, source))
        if source not in session.sources:
            raise ProtocolError(f"{session.component} acknowledges LCRs of {source}, which it does not take")
        # An orderly closed stream may be read to its end, as long as there is no newer one.
        is_over = session.ended is not None or (
            subscription is not None and subscription.session not in {None, session}
        )
        if subscription is None or is_over or scn <= subscription.acknowledged_scn:
            return
        log = self._logs[source]
        # An apply process has what it was sent, or said to have when it subscribed. A propagation passes on what the
        # queue behind it heard: when both queues began again, empty, that may be ahead of what either of them was sent.
        if scn > max(subscription.sent_scn, log.position) and subscription.subscriber not in self._propagations:
            # Believed, it would let the publisher purge what the destination does not have.
            raise unsent(session.component, source, scn, subscription.sent_scn)
        subscription.acknowledged_scn = scn
        if self._keeps:
            self._dropped(log, log.release(self._floor(log)))

    def dequeue(self, session: SubscriberSession) -> Delivery | None:
        """The next batch for the subscriber; None when there is none or no credit."""
        if session.ended is not None or session.credit_bytes <= 0:
            return None
        for turn in range(len(session.sources)):
            source = session.sources[(session.turn + turn) % len(session.sources)]
            subscription = self._subscriptions[session.component, source]
            delivery = self._next(subscription)
            if delivery is not None:
                session.turn = (session.turn + turn + 1) % len(session.sources)
                session.credit_bytes -= len(delivery.data)
                subscription.begins = False
                subscription.dequeued_rows += delivery.header.row_count
                subscription.dequeued_us = self._clock.time_us()
                for label in delivery.header.labels:
                    self._tracks.note(label, source, "DEQUEUED", peer=session.component)
                if not self._keeps:
                    self._let_go(subscription)
                    self._tell_publishers(session)
                return delivery
        return None

    def close_subscriber(self, session: SubscriberSession) -> None:
        """The stream has ended; idempotent."""
        for source in session.sources:
            subscription = self._subscriptions.get((session.component, source))
            if subscription is not None and subscription.session is session:
                subscription.session = None
                if not self._keeps:
                    log = self._logs[source]
                    self._dropped(log, log.clear(self._floor(log)))
                    self._tell_publishers(session)

    # ----------------------------------------------------------------------- time, positions, statistics

    def housekeeping(self) -> float:
        """Retry failed spilling, and drop what was held for refused subscribers.

        Returns in how many seconds to call again.
        """
        now = self._clock.monotonic()
        for log in self._logs.values():
            if any(each.gone_scn is not None for each in self._of(log.source)):
                self._dropped(log, log.release(self._floor(log)))
        if not self._spill_problem:
            return SAVE_PERIOD_S
        if now >= self._retry_spill_at:
            self._make_room()
        return max(0.0, min(SAVE_PERIOD_S, self._retry_spill_at - now))

    def positions_to_save(self) -> Mapping[str, Mapping[str, Scn]] | None:
        """Acknowledged positions, if they changed since the last save and a period has passed; None: nothing to do."""
        now = self._clock.monotonic()
        if now < self._save_at or all(each.saved_scn == each.acknowledged_scn for each in self._subscriptions.values()):
            return None
        self._save_at = now + SAVE_PERIOD_S
        self._to_save = self._acknowledged()
        return self._to_save

    def save_positions(self, positions: Mapping[str, Mapping[str, Scn]]) -> None:
        """Make positions durable; may be called without the lock.

        Does nothing if the queue has adopted another topology, or closed, since it answered them.
        """
        with self._saving:
            if positions is self._to_save:
                self._file.save(positions, self._places)

    def _save_instead(self, positions: Mapping[str, Mapping[str, Scn]], places: Places) -> None:
        """Save positions now, behind a save that is under way.

        One that has been asked for and has not begun does not happen any more.
        """
        with self._saving:
            self._to_save = None
            self._file.save(positions, places)

    def positions_saved(self, positions: Mapping[str, Mapping[str, Scn]], problem: OSError | None) -> None:
        """Report the outcome of `save_positions`.

        Ignored if the queue has adopted another topology, or closed, meanwhile.

        Args:
            positions: those that were to be saved.
            problem: why they were not; None: they were.
        """
        if positions is not self._to_save:
            return
        self._save_problem = "" if problem is None else f"positions cannot be saved: {problem.strerror}"
        if problem is None:
            for (subscriber, source), subscription in self._subscriptions.items():
                subscription.saved_scn = positions[source][subscriber]

    def close(self) -> None:
        """Save the positions a last time, where they are kept here, and remove the spill files; idempotent.

        Raises:
            OSError: the positions could not be saved.
        """
        self._spill.close()
        if self._keeps and any(each.saved_scn != each.acknowledged_scn for each in self._subscriptions.values()):
            self._save_instead(self._acknowledged(), self._places)
            for each in self._subscriptions.values():
                each.saved_scn = each.acknowledged_scn

    @property
    def state(self) -> str:
        """ENABLED or PAUSED FOR FLOW CONTROL."""
        return "ENABLED" if self._free_bytes() > 0 else "PAUSED FOR FLOW CONTROL"

    @property
    def waiting_bytes(self) -> int:
        """Of batches in memory."""
        return self._memory_bytes - ENTRY_BYTES * self._entries

    def status(self) -> dict[str, Any]:
        """Statistics, JSON-able; messages are row LCRs (V$BUFFERED_QUEUES, V$BUFFERED_SUBSCRIBERS)."""
        now = self._clock.monotonic()
        heads = [head for log in self._logs.values() if (head := log.first_entry) is not None]
        entries = self._entries
        return {
            "queue": self.name,
            "site": self._spec.site,
            "state": self.state,
            "num_msgs": sum(log.rows_from(log.base) for log in self._logs.values()),
            "spill_msgs": self._spilled_now,
            "cnum_msgs": self._rows_total,
            "cspill_msgs": self._spilled_total,
            "batches": entries,
            "memory_bytes": self._memory_bytes,
            "memory_bytes_max": self._spec.memory_bytes_max,
            "spill_bytes": self._spill.used_bytes,
            "spill_bytes_max": self._spec.spill_bytes_max,
            "oldest_msg_enqtm_us": min((head.enqueued_us for head in heads), default=0),
            "avg_msg_age_s": now - self._age_sum / entries if entries else 0.0,
            "last_enqueue_time_us": self._enqueued_us,
            "last_dequeue_time_us": max((each.dequeued_us for each in self._subscriptions.values()), default=0),
            "given_up_msgs": self._forgotten_total,
            "rewinds": self._rewinds,
            "problem": self._spill_problem or self._save_problem or self._read_problem,
            "sources": {source: self._source_status(log) for source, log in self._logs.items()},
            "subscribers": [self._subscriber_status(each) for each in self._subscriptions.values()],
        }

    # ----------------------------------------------------------------------- inside

    def _source_status(self, log: SourceLog) -> dict[str, Any]:
        publisher = self._publishers.get(log.source)
        return {
            "position_scn": log.position,
            "oldest_scn": log.first_scn,
            "durable_scn": self._durable(log.source),
            "publisher": publisher.component if publisher else "",
            "open_transaction": log.open_from is not None,
        }

    def _subscriber_status(self, subscription: Subscription) -> dict[str, Any]:
        log = self._logs[subscription.source]
        # A disconnected subscriber resumes at what it has acknowledged, about the first entry that is left.
        number = log.base if subscription.session is None else subscription.number
        first = log.first_after(subscription.acknowledged_scn)
        return {
            **subscription.described(),
            "num_msgs": log.rows_from(number),
            "held_alone_s": self._held_alone_s(subscription, log),
            "unacknowledged_s": 0.0 if first is None else self._clock.monotonic() - first[1].enqueued_s,
        }

    def _held_alone_s(self, subscription: Subscription, log: SourceLog) -> float:
        """For how long there has been something that this subscriber has not acknowledged and another one has.

        0: there is nothing, or it is refused.

        Nobody acknowledges parts of a transaction that is larger than the queue: there it is what this subscriber has
        not read and another one has, or waits for, because it cannot have the transaction from its beginning before.
        """
        if subscription not in self._held_for(log.source):
            return 0.0
        first = log.first_after(subscription.acknowledged_scn)
        others = max(
            (each.acknowledged_scn for each in self._of(log.source) if each is not subscription), default=FIRST_SCN
        )
        if first is not None and first[0] <= others:
            return self._clock.monotonic() - first[1].enqueued_s
        readers, unread = self._readers(log), log.entry(subscription.number)
        if unread is None or subscription not in readers:
            return 0.0
        is_full = log.open_from is not None and self._free_bytes() <= 0
        waits = log.is_inside(subscription.number) and any(
            each.session is not None and each.awaits_scn is not None for each in self._of(log.source)
        )
        is_alone = waits or (is_full and any(each.number > subscription.number for each in readers))
        return self._clock.monotonic() - unread.enqueued_s if is_alone else 0.0

    def _of(self, source: str) -> Sequence[Subscription]:
        return self._takers.get(source, ())

    def _by_source(self) -> dict[str, list[Subscription]]:
        found: dict[str, list[Subscription]] = {}
        for each in self._subscriptions.values():
            found.setdefault(each.source, []).append(each)
        return found

    def _readers(self, log: SourceLog) -> list[Subscription]:
        """Subscribers that need the next parts of an open transaction.

        One that is away, or waits, gets it from its beginning whatever is here.
        """
        return [each for each in self._of(log.source) if each.session is not None and each.awaits_scn is None]

    def _held_for(self, source: str) -> list[Subscription]:
        """Subscribers of a source except refused ones."""
        return [each for each in self._of(source) if each.gone_scn is None or each.subscriber in self._propagations]

    def _held_still(self, source: str) -> list[Scn]:
        """What is held for a while for refused subscribers; see `REFUSED_HOLD_S`."""
        return [
            each.held_scn
            for each in self._of(source)
            if each.gone_scn is not None
            and each.subscriber not in self._propagations
            and self._clock.monotonic() < each.held_until
        ]

    def _is_held(self, source: str) -> bool:
        """Whether there is anybody for whom a source's batches are held."""
        return bool(self._held_for(source) or self._held_still(source))

    def _durable(self, source: str) -> Scn:
        """The SCN that every subscriber except refused ones has durably, as far as it is saved.

        Where nothing is kept, others save it.
        """
        durable = [
            min(each.saved_scn, each.acknowledged_scn) if self._keeps else each.acknowledged_scn
            for each in self._held_for(source)
        ]
        durable += self._held_still(source)
        return min(durable, default=self._logs[source].position)

    def _floor(self, log: SourceLog) -> Scn:
        """The SCN up to which nothing is needed here.

        Every subscriber except refused ones has that durably, saved or not, or, where nothing is kept, was sent it.
        """
        had = [
            each.acknowledged_scn if self._keeps or each.session is None else each.sent_scn
            for each in self._held_for(log.source)
        ]
        had += self._held_still(log.source)
        return min(had, default=log.position)

    def _acknowledged(self) -> dict[str, dict[str, Scn]]:
        positions: dict[str, dict[str, Scn]] = {}
        for (subscriber, source), subscription in self._subscriptions.items():
            positions.setdefault(source, {})[subscriber] = subscription.acknowledged_scn
        return positions

    def _append(self, log: SourceLog, delivery: Delivery) -> None:
        """Add an admitted batch to the log."""
        now_us = self._clock.time_us()
        entry = log.append(delivery, now_s=self._clock.monotonic(), now_us=now_us)
        if entry is None:
            # The publisher has only now stated where it begins: subscribers that seemed to be served need what is
            # below.
            needed = [each.sent_scn for each in self._of(log.source) if each.session is not None]
            behind = [scn for scn in needed if FIRST_SCN < scn < log.first_scn]
            if behind:
                self._rewind(log, min(behind))
            return
        self._memory[log.source][log.end - 1] = entry
        self._entries += 1
        self._memory_bytes += entry.size + ENTRY_BYTES
        self._age_sum += entry.enqueued_s
        self._rows_total += entry.header.row_count
        self._enqueued_us = now_us
        # Not needed if every subscriber is ahead of the queue, or if there is none.
        self._dropped(log, log.release(self._floor(log)))

    def _dropped(self, log: SourceLog, entries: Iterable[tuple[int, Entry]]) -> None:
        """Account for entries that left the log."""
        memory = self._memory[log.source]
        for number, entry in entries:
            self._entries -= 1
            self._memory_bytes -= ENTRY_BYTES
            self._age_sum -= entry.enqueued_s
            if entry.place is not None:
                self._spill.release(entry.place)
                self._spilled_now -= entry.header.row_count
            else:
                self._memory_bytes -= entry.size
                del memory[number]

    def _next(self, subscription: Subscription) -> Delivery | None:
        log = self._logs[subscription.source]
        if subscription.awaits_scn is not None and not self._begin_at(subscription, subscription.awaits_scn):
            return None
        subscription.number = max(subscription.number, log.base)
        if subscription.begins and (begin := _beginning(subscription, log)) > FIRST_SCN:
            if subscription.acknowledged_scn > subscription.saved_scn:
                return None  # it copies its tables by this mark: the queue's next life must hold what follows it, too
            return self._mark(subscription, begin)
        while subscription.number < log.end:
            entry = log.entry(subscription.number)
            if entry is None:  # of a large transaction that others have: parts were given up
                if not self._begin_at(subscription, subscription.sent_scn):
                    return None
                continue
            previous = entry.header.previous_scn
            if previous > subscription.sent_scn:
                return self._mark(subscription, previous)
            data = self._bytes_of(log, entry)
            if data is None:
                return None
            delivery: Delivery | None = Delivery(header=entry.header, data=data)
            if previous < subscription.sent_scn:
                delivery = fitted(Delivery(header=entry.header, data=data), subscription.sent_scn)
            subscription.number += 1
            if delivery is not None:
                subscription.sent_scn = delivery.header.through_scn
                return delivery
        if log.position > subscription.sent_scn:
            return self._mark(subscription, log.position)
        return None

    def _bytes_of(self, log: SourceLog, entry: Entry) -> bytes | None:
        """An entry's bytes; None when they are lost: the source is then requested again."""
        if entry.place is None:
            return entry.data
        try:
            return self._spill.read(entry.place)
        except QueueError as error:
            # The redo log still has it: restart where every subscriber can continue.
            self._read_problem = error.message
            self._rewind(log, self._floor(log))
            return None

    def _mark(self, subscription: Subscription, through: Scn) -> Delivery:
        delivery = mark(subscription.source, subscription.sent_scn, through)
        subscription.sent_scn = through
        return delivery

    def _rewind(self, log: SourceLog, scn: Scn) -> None:
        """Drop all batches of a source and request them again from `scn`, or from a lower SCN."""
        self._restart(log, min(scn, max(log.position, self._floor(log))))

    def _restart(self, log: SourceLog, scn: Scn) -> None:
        self._rewinds += 1
        self._dropped(log, log.clear(scn))
        publisher = self._publishers.get(log.source)
        if publisher is not None:
            publisher.rewind_scn, publisher.is_rewinding, publisher.in_transaction = scn, True, False
            publisher.is_ordered = False
            publisher.told_durable_scn = Scn(-1)  # it may be less than what was reported before
            publisher.tell()

    def _let_go(self, subscription: Subscription) -> None:
        """Drop what the one subscriber was sent."""
        log = self._logs[subscription.source]
        self._dropped(log, log.pass_on(subscription.sent_scn, subscription.number))

    def _tell_publishers(self, session: SubscriberSession) -> None:
        for source in session.sources:
            if (publisher := self._publishers.get(source)) is not None:
                publisher.tell()

    # ----------------------------------------------------------------------- bounds

    def _free_bytes(self) -> int:
        free = self._spec.memory_bytes_max - self._memory_bytes
        if not self._spill_problem:  # space that cannot be written does not count
            free += self._spill.free_bytes
        # Entries on disk need some memory, too.
        return min(free, self._spec.memory_bytes_max - self._entries * ENTRY_BYTES)

    def _window(self, free: int) -> int:
        """Credit for each publisher.

        What they may have on its way must fit into so many free bytes, also if it is tiny batches, of which each costs
        an entry.
        """
        if free <= 0 or not (self._keeps or self._is_taken()):
            return 0
        share = free * BATCH_BYTES_MIN // (BATCH_BYTES_MIN + ENTRY_BYTES) // max(1, len(self._publishers))
        # As long as anything is free there is some: room is made only when nothing is.
        return max(1, min(WINDOW_BYTES_MAX, share))

    def _is_taken(self) -> bool:
        """Whether a subscriber has credit for more than what waits, or nothing is held for anybody."""
        waiting = self.waiting_bytes
        return any(
            each.session is not None and each.session.credit_bytes > waiting for each in self._subscriptions.values()
        ) or not any(self._is_held(source) for source in self._logs)

    def _make_room(self) -> None:
        if self._memory_bytes > self._spec.memory_bytes_max and self._spec.spill_bytes_max:
            self._spill_out(self._spec.memory_bytes_max - self._spec.memory_bytes_max // SPILL_SHARE)
        else:
            self._spill_problem = ""

    def _spill_out(self, target_bytes: int) -> None:
        """Write batches to disk until no more than `target_bytes` are in memory."""
        now = self._clock.monotonic()
        if self._spill_problem and now < self._retry_spill_at:
            return
        try:
            for source, number, entry in self._by_distance():
                if self._memory_bytes <= target_bytes or entry.size > self._spill.free_bytes:
                    break
                assert entry.data is not None
                entry.place = self._spill.append(entry.data)
                entry.data = None
                del self._memory[source][number]
                self._memory_bytes -= entry.size
                self._spilled_now += entry.header.row_count
                self._spilled_total += entry.header.row_count
        except OSError as error:
            self._spill_problem = f"batches cannot be spilled: {error.strerror}"
            self._retry_spill_at = now + SPILL_RETRY_S
        else:
            self._spill_problem = ""

    def _by_distance(self) -> list[tuple[str, int, Entry]]:
        """Entries in memory; those that will be read last come first.

        The distance of an entry is how much the nearest subscriber behind it reads before it; without one it is
        infinite.
        """
        found: list[tuple[float, str, int, Entry]] = []
        for source, memory in self._memory.items():
            readers = sorted({each.number for each in self._of(source) if each.session is not None}, reverse=True)
            distance = math.inf
            for number, entry in memory.items():
                while readers and readers[-1] <= number:
                    readers.pop()
                    distance = 0.0
                found.append((-distance, source, number, entry))
                distance += entry.size
        found.sort(key=lambda each: each[:3])
        return [(source, number, entry) for _, source, number, entry in found]

    def _give_up_parts(self) -> None:
        """Make room for a transaction larger than the queue; see the module's bounds."""
        for log in self._logs.values():
            readers = self._readers(log)
            if log.open_from is None or (not readers and self._is_held(log.source)):
                continue
            dropped = log.behead(min((each.number for each in readers), default=log.end))
            self._forgotten_total += sum(entry.header.row_count for _, entry in dropped)
            self._dropped(log, dropped)


def _beginning(subscription: Subscription, log: SourceLog) -> Scn:
    """The beginning of a subscriber that never had anything: its assigned position, or the oldest entry."""
    return max(subscription.acknowledged_scn, log.first_scn)
