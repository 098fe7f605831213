"""Buffered queue: keep LCR batches until every subscriber's destination has committed them.

Job
    Take batches from publishers (capture processes, propagations) and deliver them in order to subscribers
    (propagations, apply processes), each at its own pace, without decoding them.

Main path
    QueueCore.enqueue -> SourceLog.admit -> StagedSource.append -> QueueCore.dequeue -> StagedSource.next_for
    -> QueueCore.acknowledge -> StagedSource.release.

Parts
    QueueCore                 the sessions: admission of publishers and subscribers, credit, acknowledgements.
    StagedSource, per source  moves its log (`SourceLog`): what arrives, what each subscriber is sent, what is dropped.
    QueueSpace                memory and spill files: free space, and what is spilled.
    SavedPositions            when acknowledged positions are saved, and which save counts.

States (V$BUFFERED_QUEUES.QUEUE_STATE)
    ENABLED                   batches are taken. Memory only.
    PAUSED FOR FLOW CONTROL   memory and spill files are full, or spilling fails: publishers have no credit. The amount of
                              free space decides. Memory only.

Durable when
    Only the acknowledged positions and the refusals are durable here. A batch is ACCEPTED when it is in the queue,
    which loses it in a crash. It is DURABLE when every subscriber has acknowledged it; a subscriber does so after its
    destination's commit. The queue reports DURABLE to the publisher only after the position is on disk. So a restarted,
    empty queue never requests less than it promised: it requests everything after the lowest position that its
    subscribers acknowledged.

Beginnings
    A new subscriber (`headrace up` added a destination) begins at the highest position that any subscriber has
    acknowledged. Refused ones do not count; if all are refused, it begins at the queue's own position. It may replace
    another subscriber: one that leaves with the same edit, or that no longer brings the changes to a site of the new
    one. Then it continues at that subscriber's position, if that is lower, so that the components behind it continue.
    The position is on disk before the queue serves anyone: from then on nothing after it is DURABLE without the new
    subscriber, and nothing before it is requested. If all subscribers are new, the position is FIRST_SCN: whatever the
    publisher has. The publisher's first mark, from FIRST_SCN, states where that begins. A subscriber that needs
    FIRST_SCN never had anything, and gets such a mark first. An apply process requests it before it copies its tables,
    so that its copies are later than the mark.

Passing on
    A queue that its capture process mounts (`actors.combined`) keeps nothing that it has sent: the redo has it, and it
    is mined again for a new stream. It takes no more than its one subscriber has credit for, saves no positions, and
    DURABLE is what the subscriber has acknowledged: the source's site records that.

Refusals
    A destination that lost commits (a failover, a restored backup) asks for an earlier position than it had
    acknowledged. What the redo log still has is sent again, and `status` reports that. If redo is gone, only this
    subscriber is refused (LogGone); the others continue. Nothing is held for it, except for two minutes what a newer
    process of it may need: an old process that was suspended may have been refused while the newest one's stream is
    broken. A propagation forwards the answer to the next queue, which refuses the subscriber concerned; meanwhile the
    queue holds what follows the beginning of redo for the propagation. A refused subscriber that returns with a
    sufficient position, or with FIRST_SCN, is a subscriber again. Refusals are durable before any component learns of
    them: a refused apply process does not return to be refused again by a restarted queue.

Bounds
    Memory up to `memory_bytes_max`, then spill files up to `spill_bytes_max`, then no credit. Credit is counted in bytes
    of batches. It is limited so that everything in flight fits even as the smallest possible batches, each of which costs
    more memory than it has bytes. The batch that will be read last is spilled first, so a slow subscriber does not slow
    the others before both are full. A transaction that is larger than both cannot become durable before its end. The
    queue drops parts that every connected subscriber has received, and requests them again if a subscriber needs them.
    A subscriber that was disconnected waits for that until the others have the whole transaction.

Worked flow
    restarts: acknowledged A=40 B=30 -> position 30, Resume{30} -> the publisher sends 30..50, 50..60
    A subscribes with needed=40: gets 40..50 (cut from 30..50), 50..60; B with needed=30: gets 30..50, 50..60
    A acknowledges 60, B 50 -> saved -> publisher is told DURABLE 50 -> 30..50 is dropped
    B is restored from a backup and needs 20 -> everything is dropped, rewind{20}: the publisher sends from 20 again
    the publisher has it only from 40 on: gone{40} -> B is refused, nothing is held for it any longer -> rewind{60}: A
      continues
    C is added, A=60 B=50 -> C=60 is saved -> Resume{50}; C subscribes with needed=FIRST_SCN: gets the mark 0..60, then
    everything after 60; nothing after 60 is DURABLE before C has acknowledged it

Hosting
    QueueCore(topology, "q_dbs1", folder) is not thread-safe and uses only its clock and its files.
    `headrace.links.staging.LockedQueue(core)` puts it behind a lock, and `Links.serve` serves it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from actors.staging.positions import SAVE_PERIOD_S, Positions, PositionsFile, SavedPositions
from actors.staging.queue_sessions import PublisherSession, SubscriberSession, Subscription, end_older, unsent
from actors.staging.queue_space import ENTRY_BYTES, QueueSpace, QueueTotals
from actors.staging.refusals import Refusals
from actors.staging.spill import SPILL_FOLDER, SpillFiles
from actors.staging.staged_source import StagedSource
from actors.staging.subscribers import positions_of, sources_of
from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import ProtocolError, QueueError, printable
from headrace.base.failpoints import failpoint
from headrace.lcr.scn import Scn
from headrace.lcr.tracking import TrackLog
from headrace.links.ports import BatchHeader, Delivery
from headrace.links.staging import PublisherNews
from headrace.status.queues import QueueStatus
from topology.edits.changes import interests_of, places_of, published_by
from topology.spec import TopologySpec

__all__ = ["QueueCore"]

# Most bytes in flight from one publisher: covers 100 ms of round trip at 160 MB/s.
WINDOW_BYTES_MAX = 16 << 20
# The smallest batch with a row has 189 bytes: names, and arrays of one element each.
BATCH_BYTES_MIN = 180
_OLDER_TOPOLOGY = "one of the two still runs an older topology file: it is about to be replaced"


class QueueCore:
    """A buffered queue's core.

    More than 25 methods: twenty implement `headrace.links.staging.QueuePort` and the calls of the queue's host, on one
    object behind one lock.

    Args:
        topology: the whole topology, which determines the queue's subscribers and sources.
        name: the queue's name in it.
        folder: the queue's folder: spill files, acknowledged positions and refusals.
        clock: clock for periods and statistics.
        tracks: records labelled transactions.
        acknowledged: for a queue that passes on, the known acknowledged position of its subscriber; None: the queue
            keeps what it sent.

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
        self._keeps = acknowledged is None
        file, interests = PositionsFile(folder), interests_of(topology, name)
        saved, earlier, places = file.load(), file.places(), places_of(topology, name)
        if acknowledged is not None:
            saved = {
                source: dict.fromkeys(interests, acknowledged) for sources in interests.values() for source in sources
            }
        self._totals = QueueTotals()
        self._spill = SpillFiles(folder / SPILL_FOLDER, self._spec.spill_bytes_max)
        self._space = QueueSpace(
            self._spec, self._spill, self._totals, lambda source: self._sources[source].next_numbers, self._clock
        )
        self._refusals = Refusals(folder)
        refused = self._refusals.everyone()
        positions = positions_of(interests, saved, refused=refused, places=(earlier, places))
        propagations = {each.name for each in topology.propagations}
        self._subscriptions = {
            (subscriber, source): Subscription(subscriber, source, scn, is_propagation=subscriber in propagations)
            for source, each in positions.items()
            for subscriber, scn in each.items()
        }
        for (subscriber, source), subscription in self._subscriptions.items():
            if (gone := self._refusals.gone_scn(source, subscriber)) is not None:
                subscription.refuse(gone, self._clock.monotonic())
        self._saves = SavedPositions(file, places, self._clock)
        if self._keeps and (self._acknowledged(), places) != (saved, earlier):
            # A subscriber is new, or removed and must never return to an old position.
            self._saves.save_now(self._acknowledged(), places)
        # Last: while its position is on disk, a refused subscriber that left must not be taken for a predecessor.
        self._refusals.forget_others(interests)
        self._sources: dict[str, StagedSource] = {}
        self._published = published_by(topology, name)  # sources by name of the publisher
        self._use_sources(sources_of(topology, name))

    @property
    def takes_publishers(self) -> bool:
        """Whether publishers connect by streams: the publisher of a queue that passes on is in the same process."""
        return self._keeps

    def adopt(self, topology: TopologySpec) -> None:
        """Continue with the subscribers and sources of a changed topology, without disturbing unchanged ones.

        A new subscriber begins as in a restarted queue (the module's Beginnings). Nothing is held for former
        subscribers any longer.

        Args:
            topology: the changed topology, with this queue at the same site and with the same bounds.

        Raises:
            OSError: the positions could not be saved; the queue continues unchanged.
            QueueError: the refusals could not be saved; the queue continues unchanged.
        """
        before: dict[str, dict[str, Scn]] = {source: {} for source in self._sources} | self._acknowledged()
        interests, places = interests_of(topology, self.name), places_of(topology, self.name)
        refused = self._refusals.everyone()
        positions = positions_of(
            interests,
            before,
            places=(self._saves.places, places),
            refused=refused,
            fallback={
                # The queue has kept what former subscribers needed until now, so it holds what follows the most
                # advanced one.
                source: max(
                    (scn for name, scn in known.items() if name not in refused.get(source, ())),
                    default=self._sources[source].log.position,
                )
                for source, known in before.items()
            },
        )
        self._saves.save_now(positions, places)
        self._refusals.forget_others(interests)  # after the save, as when the queue opens
        self._saves.places = places
        wanted = {(subscriber, source): scn for source, each in positions.items() for subscriber, scn in each.items()}
        for key in [key for key in self._subscriptions if key not in wanted]:
            session = self._subscriptions.pop(key).session
            if session is not None:
                session.ended = QueueError(
                    f"{key[0]} is no subscriber of queue {self.name} any more", hint=_OLDER_TOPOLOGY
                )
        propagations = {each.name for each in topology.propagations}
        for key, scn in wanted.items():
            subscription = self._subscriptions.setdefault(key, Subscription(*key, scn))
            subscription.saved_scn, subscription.is_propagation = scn, key[0] in propagations
        self._published = published_by(topology, self.name)
        for source in self._sources.values():
            publisher = source.publisher
            if publisher is not None and publisher.source not in self._published.get(publisher.component, ()):
                publisher.ended = QueueError(
                    f"queue {self.name} takes no LCRs of {publisher.source} from {publisher.component} any more",
                    hint=_OLDER_TOPOLOGY,
                )
                self.close_publisher(publisher)
        self._use_sources(sources_of(topology, self.name))

    def _use_sources(self, names: list[str]) -> None:
        """Set the sources of the queue, each with its subscribers."""
        for name in [name for name in self._sources if name not in names]:
            former = self._sources.pop(name)
            former.clear(former.log.position)
        for name in names:
            is_new = name not in self._sources
            if is_new:
                self._sources[name] = StagedSource(
                    name, self._space, self._refusals, self._totals, self._clock, keeps=self._keeps
                )
            source = self._sources[name]
            source.takers = [each for each in self._subscriptions.values() if each.source == name]
            if is_new:
                source.clear(source.durable_scn)
        for source in self._sources.values():
            source.release()

    # ----------------------------------------------------------------------- publishers

    def open_publisher(
        self, component: str, incarnation: str, source: str, tell: Callable[[], None] | None = None
    ) -> PublisherSession:
        """Begin a publisher's session; a session of an older incarnation ends.

        Args:
            component: name of the capture process or propagation.
            incarnation: orders the sessions of one component; greater is newer.
            source: the site whose LCRs it sends.
            tell: called when subscribers make news for the publisher; None: the publisher polls for news after every
                change anyway.

        Raises:
            QueueError: the queue takes no LCRs of this source from it, or a newer incarnation or another publisher is
                connected.
        """
        if source not in self._published.get(component, ()):
            raise QueueError(
                f"queue {self.name} takes no LCRs of {printable(source)} from {component}",
                hint=_OLDER_TOPOLOGY,
                queue=self.name,
            )
        other = self._sources[source].publisher
        if other is not None:
            if other.component != component:
                raise QueueError(
                    f"queue {self.name} has a publisher of {source} already: {other.component}",
                    hint="one queue takes the LCRs of one source from one publisher",
                )
            end_older(other, incarnation, self.name)
        session = PublisherSession(component, incarnation, source, tell)
        self._sources[source].publisher = session
        return session

    def resume(self, session: PublisherSession) -> tuple[Scn, int]:
        """Return the SCN after which the publisher must begin, and its first credit in bytes."""
        source = self._sources[session.source]
        source.skip()
        position, credit = source.log.position, self._window(self._space.free_bytes)
        session.granted_bytes = credit
        session.told = PublisherNews(through_scn=position, accepted_bytes=0, credit_bytes=credit)
        return position, credit

    def check_credit(self, session: PublisherSession, size: int) -> None:
        """Raise a `ProtocolError` if a batch exceeds the publisher's credit.

        A publisher exceeds its credit with a single batch only if, to its knowledge, nothing of it is in flight.

        See `QueuePort.check_credit` for the arguments.
        """
        is_alone = session.told.accepted_bytes == session.accepted_bytes < session.granted_bytes
        if not is_alone and session.accepted_bytes + size > session.granted_bytes:
            raise self._beyond_credit(session)

    def _beyond_credit(self, session: PublisherSession) -> ProtocolError:
        # With nothing in flight a batch may be larger than the credit, but some credit must be left.
        return ProtocolError(
            f"{session.component} sends more LCRs of {session.source} than it has credit for",
            hint="the publisher reconnects and sends them again",
            granted_bytes=session.granted_bytes,
        )

    def enqueue(self, session: PublisherSession, header: BatchHeader, data: bytes) -> None:
        """Accept a batch.

        Args:
            session: the publisher's session.
            header: header of the batch.
            data: the encoded batch, header included.

        Raises:
            ProtocolError: the batch does not follow the previous one, or exceeds the credit; the session must end.
        """
        if session.ended is not None:
            raise session.ended
        if header.source != session.source:
            raise ProtocolError(f"{session.component} sends LCRs of {header.source} on a stream of {session.source}")
        if session.accepted_bytes >= session.granted_bytes:
            raise self._beyond_credit(session)
        source = self._sources[session.source]
        if session.is_rewinding:
            if header.continues or header.previous_scn > source.log.position:
                session.accepted_bytes += len(data)
                return
            session.is_rewinding = False
        if header.continues and not session.in_transaction:
            raise ProtocolError(f"{session.component} continues a transaction it has not begun on this stream")
        session.in_transaction = header.is_open
        delivery = source.log.admit(header, data)
        if delivery is not None:
            source.append(delivery)
            for label in delivery.header.labels:
                self._tracks.note(label, session.source, "ENQUEUED", peer=session.component)
            self._space.make_room()
            failpoint("queue.after_enqueue")
        session.accepted_bytes += len(data)

    def publisher_news(self, session: PublisherSession) -> PublisherNews | None:
        """Return the changes for the publisher since the last call; None: there are none."""
        source = self._sources[session.source]
        if (free := self._space.free_bytes) <= 0:
            for each in self._sources.values():
                each.give_up_parts()
            free = self._space.free_bytes
        credit, told = self._window(free), session.told
        durable: Scn | None = source.durable_scn
        if durable is not None and durable <= session.told_durable_scn:
            durable = None  # it decreases only with a rewind
        rewind, position = source.take_rewind(session), source.log.position
        # Report a window that opens or closes, not a small change.
        credit_changed = (credit == 0) != (told.credit_bytes == 0) or credit > 2 * told.credit_bytes
        moved = (position, session.accepted_bytes) != (told.through_scn, told.accepted_bytes)
        if not (moved or credit_changed or durable is not None or rewind is not None):
            return None
        if durable is not None:
            session.told_durable_scn = durable
        session.granted_bytes = max(session.granted_bytes, session.accepted_bytes + credit)
        session.told = PublisherNews(
            through_scn=position,
            accepted_bytes=session.accepted_bytes,
            credit_bytes=credit,
            durable_scn=durable,
            rewind_scn=rewind,
        )
        return session.told

    def capture_again(self, publisher: str, scn: Scn) -> None:
        """Have a publisher send everything after an SCN again; subscribers get nothing twice.

        Args:
            publisher: name of the publisher.
            scn: at most what every subscriber has, so nothing above the queue's position is requested.

        Raises:
            QueueError: the publisher is not connected.
        """
        found = [
            (source, source.publisher)
            for source in self._sources.values()
            if source.publisher is not None and source.publisher.component == publisher
        ]
        if not found:
            raise QueueError(
                f"{publisher} does not publish into queue {self.name} now",
                hint="ask again when it is connected; see `headrace status`",
            )
        for source, session in found:
            source.rewind(scn)
            session.is_ordered = True

    def close_publisher(self, session: PublisherSession) -> None:
        """Note that the stream has ended; idempotent. Later batches of it are refused: the next stream sends them again."""
        session.ended = session.ended or QueueError(
            f"the stream of {session.component} was closed", hint="nothing to do"
        )
        source = self._sources.get(session.source)
        if source is not None and source.publisher is session:
            source.publisher = None

    # ----------------------------------------------------------------------- subscribers

    def open_subscriber(
        self, component: str, incarnation: str, needed: Mapping[str, Scn], credit_bytes: int
    ) -> SubscriberSession:
        """Begin a subscriber's session; a session of an older incarnation ends.

        Rewinds a source that lacks what is needed.

        Args:
            component: name of the propagation or apply process.
            incarnation: orders the sessions of one component; greater is newer.
            needed: per source, the SCN after which the subscriber needs everything.
            credit_bytes: its initial credit.

        Raises:
            QueueError: it is no subscriber of this queue for these sources, a newer incarnation is connected, or the
                end of its refusal cannot be recorded.
            LogGone: it needs changes that are gone.
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
            self._sources[source].begin(self._subscriptions[component, source], session, scn)
        return session

    def gone(self, session: PublisherSession, first_scn: Scn) -> None:
        """Refuse subscribers that need what the publisher no longer has, and continue with the others.

        Args:
            session: session of the publisher, which was asked for less and sends nothing before the next request.
            first_scn: everything after it is available.

        Raises:
            QueueError: the session has ended, or a refusal cannot be recorded; nothing has changed.
        """
        if session.ended is not None:
            raise session.ended
        self._sources[session.source].refuse_below(first_scn)

    def grant(self, session: SubscriberSession, credit_bytes: int) -> None:
        """Add to a subscriber's credit.

        See `QueuePort.grant` for the arguments.
        """
        session.credit_bytes += credit_bytes
        self._tell_publishers(session)

    def acknowledge(self, session: SubscriberSession, source: str, scn: Scn) -> None:
        """Record that a subscriber's destinations have committed everything of a source up to an SCN.

        Acknowledgements of an ended session do not count: a newer one may have begun with less, because the destination
        lost what the older one had acknowledged.

        See `QueuePort.acknowledge` for the arguments.

        Raises:
            ProtocolError: the session did not subscribe to the source, or is an apply process's and acknowledges more
                than it was sent; nothing has changed.
        """
        subscription = self._subscriptions.get((session.component, source))
        if source not in session.sources:
            raise ProtocolError(f"{session.component} acknowledges LCRs of {source}, which it does not take")
        # A stream that was closed orderly may be read to its end, as long as there is no newer one.
        is_over = session.ended is not None or (
            subscription is not None and subscription.session not in {None, session}
        )
        if subscription is None or is_over or scn <= subscription.acknowledged_scn:
            return
        staged = self._sources[source]
        # An apply process has what it was sent, or what it claimed when it subscribed. A propagation forwards what the
        # queue behind it reported: if both queues restarted empty, that may be ahead of what either was sent.
        if scn > max(subscription.sent_scn, staged.log.position) and not subscription.is_propagation:
            # Accepting it would let the publisher purge what the destination does not have.
            raise unsent(session.component, source, scn, subscription.sent_scn)
        subscription.acknowledged_scn = scn
        if self._keeps:
            staged.release()

    def dequeue(self, session: SubscriberSession) -> Delivery | None:
        """Return the next batch for the subscriber; None without a batch or without credit."""
        if session.ended is not None or session.credit_bytes <= 0:
            return None
        for turn in range(len(session.sources)):
            source = session.sources[(session.turn + turn) % len(session.sources)]
            subscription = self._subscriptions[session.component, source]
            delivery = self._sources[source].next_for(subscription)
            if delivery is not None:
                session.turn = (session.turn + turn + 1) % len(session.sources)
                session.credit_bytes -= len(delivery.data)
                subscription.begins = False
                subscription.dequeued_rows += delivery.header.row_count
                subscription.dequeued_us = self._clock.time_us()
                for label in delivery.header.labels:
                    self._tracks.note(label, source, "DEQUEUED", peer=session.component)
                if not self._keeps:
                    self._sources[source].pass_on(subscription)
                    self._tell_publishers(session)
                return delivery
        return None

    def close_subscriber(self, session: SubscriberSession) -> None:
        """Note that the stream has ended; idempotent."""
        for source in session.sources:
            subscription = self._subscriptions.get((session.component, source))
            if subscription is not None and subscription.session is session:
                subscription.session = None
                if not self._keeps:
                    staged = self._sources[source]
                    staged.clear(staged.floor_scn)
                    self._tell_publishers(session)

    # ----------------------------------------------------------------------- time, positions, statistics

    def housekeeping(self) -> float:
        """Retry failed spilling, and drop what was held for refused subscribers.

        Returns the seconds until the next call.
        """
        for source in self._sources.values():
            if any(each.gone_scn is not None for each in source.takers):
                source.release()
        retry_s = self._space.retry()
        return SAVE_PERIOD_S if retry_s is None else max(0.0, min(SAVE_PERIOD_S, retry_s))

    def positions_to_save(self) -> Positions | None:
        """Return acknowledged positions if they changed and a period has passed since the last save; None: nothing to do."""
        if not self._saves.is_due or self._is_saved:
            return None
        return self._saves.begin(self._acknowledged())

    def save_positions(self, positions: Positions) -> None:
        """Make positions durable; may be called without the lock.

        Does nothing if the queue has adopted another topology, or closed, since it returned these positions.
        """
        self._saves.save(positions)

    def positions_saved(self, positions: Positions, problem: OSError | None) -> None:
        """Report the outcome of `save_positions`.

        Ignored if the queue has adopted another topology, or closed, in the meantime.

        Args:
            positions: the positions that were to be saved.
            problem: why that failed; None: it succeeded.
        """
        if self._saves.ended(positions, problem):
            for (subscriber, source), subscription in self._subscriptions.items():
                subscription.saved_scn = positions[source][subscriber]

    def close(self) -> None:
        """Save the positions a last time, if they are kept here, and remove the spill files; idempotent.

        Raises:
            OSError: the positions could not be saved.
        """
        self._spill.close()
        if self._keeps and not self._is_saved:
            self._saves.save_now(self._acknowledged(), self._saves.places)
            for each in self._subscriptions.values():
                each.saved_scn = each.acknowledged_scn

    @property
    def state(self) -> str:
        """ENABLED or PAUSED FOR FLOW CONTROL."""
        return "ENABLED" if self._space.free_bytes > 0 else "PAUSED FOR FLOW CONTROL"

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the batches in memory."""
        return self._space.waiting_bytes

    def status(self) -> QueueStatus:
        """Return the statistics (V$BUFFERED_QUEUES, V$BUFFERED_SUBSCRIBERS)."""
        sources, space, totals = self._sources, self._space, self._totals
        heads = [head for each in sources.values() if (head := each.log.first_entry) is not None]
        return QueueStatus(
            name=f"queue:{self.name}",
            kind="queue",
            site=self._spec.site,
            state=self.state,
            problem=space.spill_problem or self._saves.problem or space.read_problem,
            queue=self.name,
            rows=sum(each.log.rows_from(each.log.base) for each in sources.values()),
            rows_total=totals.enqueued,
            spilled_rows=space.spilled_rows,
            spilled_rows_total=totals.spilled,
            batches=space.entries,
            memory_bytes=space.memory_bytes,
            memory_bytes_max=self._spec.memory_bytes_max,
            spill_bytes=self._spill.used_bytes,
            spill_bytes_max=self._spec.spill_bytes_max,
            oldest_enqueued_us=min((head.enqueued_us for head in heads), default=0),
            average_age_s=space.average_age_s,
            last_enqueued_us=totals.enqueued_us,
            last_dequeued_us=max((each.dequeued_us for each in self._subscriptions.values()), default=0),
            given_up_rows_total=totals.given_up,
            rewinds_total=totals.rewinds,
            sources={name: each.status() for name, each in sources.items()},
            subscribers=tuple(sources[each.source].subscriber_status(each) for each in self._subscriptions.values()),
        )

    # ----------------------------------------------------------------------- inside

    @property
    def _is_saved(self) -> bool:
        """Whether all acknowledged positions are on disk."""
        return all(each.saved_scn == each.acknowledged_scn for each in self._subscriptions.values())

    def _acknowledged(self) -> dict[str, dict[str, Scn]]:
        positions: dict[str, dict[str, Scn]] = {}
        for (subscriber, source), subscription in self._subscriptions.items():
            positions.setdefault(source, {})[subscriber] = subscription.acknowledged_scn
        return positions

    def _tell_publishers(self, session: SubscriberSession) -> None:
        for name in session.sources:
            source = self._sources.get(name)
            if source is not None and source.publisher is not None:
                source.publisher.tell()

    def _window(self, free: int) -> int:
        """Return the credit for each publisher.

        Everything in flight must fit into the free bytes, even as tiny batches, each of which costs an entry.
        """
        if free <= 0 or not (self._keeps or self._is_taken()):
            return 0
        publishers = sum(each.publisher is not None for each in self._sources.values())
        share = free * BATCH_BYTES_MIN // (BATCH_BYTES_MIN + ENTRY_BYTES) // max(1, publishers)
        # Some credit as long as anything is free: room is made only when nothing is.
        return max(1, min(WINDOW_BYTES_MAX, share))

    def _is_taken(self) -> bool:
        """Return whether a subscriber has credit beyond the pending bytes, or nothing is held for any subscriber."""
        waiting = self.waiting_bytes
        return any(
            each.session is not None and each.session.credit_bytes > waiting for each in self._subscriptions.values()
        ) or not any(each.is_held for each in self._sources.values())
