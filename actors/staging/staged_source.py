"""One source in a queue: the log of its batches, the publisher that sends them, and the subscribers that take them.

Everything that moves the log is here, because each step relies on the result of the others. The steps append batches,
send them to subscribers, drop what all subscribers have, and decide where a publisher must begin again. The rules are those
of `actors.staging.queue`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from actors.staging.queue_log import SourceLog, fitted, mark
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.links.ports import Delivery
from headrace.status.queues import LostCommits, QueueSource, QueueSubscriber

if TYPE_CHECKING:
    from actors.staging.queue_log import Entry
    from actors.staging.queue_sessions import PublisherSession, SubscriberSession, Subscription
    from actors.staging.queue_space import QueueSpace, QueueTotals
    from actors.staging.refusals import Refusals
    from headrace.base.clock import Clock

__all__ = ["StagedSource"]


class StagedSource:
    """One source's log and its rules. Owned by one queue.

    More than 25 methods: each is a rule of when the log moves, and most call one another.

    Args:
        space: the queue's space; entries that leave the log free it.
        refusals: the queue's refusals.
        totals: the queue's totals.
        clock: clock for temporary holds, and for statistics.
        keeps: False: the queue passes on.

    Attributes:
        log: its batches.
        publisher: the session that sends them; None: no publisher is connected.
        takers: its subscribers, connected or not.
    """

    def __init__(
        self, source: str, space: QueueSpace, refusals: Refusals, totals: QueueTotals, clock: Clock, *, keeps: bool
    ) -> None:
        self.log = SourceLog(source, FIRST_SCN)
        self.publisher: PublisherSession | None = None
        self.takers: Sequence[Subscription] = ()
        self._space, self._refusals, self._totals, self._clock = space, refusals, totals, clock
        self._keeps = keeps

    # ----------------------------------------------------------------------- what is held, and for whom

    @property
    def is_held(self) -> bool:
        """Whether batches are held for any subscriber."""
        return any(each.is_held for each in self.takers) or bool(self._held_still())

    @property
    def durable_scn(self) -> Scn:
        """The SCN that every subscriber except refused ones has durably, as far as it is saved.

        A queue that keeps nothing does not save it either: the source's site does.
        """
        durable = [
            min(each.saved_scn, each.acknowledged_scn) if self._keeps else each.acknowledged_scn
            for each in self.takers
            if each.is_held
        ]
        durable += self._held_still()
        return min(durable, default=self.log.position)

    @property
    def floor_scn(self) -> Scn:
        """The SCN up to which nothing is needed here.

        Every subscriber except refused ones has everything up to it durably, saved or not. If the queue keeps nothing,
        the subscriber was sent it.
        """
        had = [
            each.acknowledged_scn if self._keeps or each.session is None else each.sent_scn
            for each in self.takers
            if each.is_held
        ]
        had += self._held_still()
        return min(had, default=self.log.position)

    @property
    def next_numbers(self) -> list[int]:
        """The numbers of the entries that connected subscribers read next."""
        return [each.number for each in self.takers if each.session is not None]

    def _held_still(self) -> list[Scn]:
        """Return the positions that are temporarily held for refused subscribers (`REFUSED_HOLD_S`)."""
        return [each.held_scn for each in self.takers if not each.is_held and self._clock.monotonic() < each.held_until]

    def _readers(self) -> list[Subscription]:
        """Return the subscribers that need the next parts of an open transaction.

        A subscriber that is disconnected, or waits, gets the transaction from its beginning anyway.
        """
        return [each for each in self.takers if each.session is not None and each.awaits_scn is None]

    # ----------------------------------------------------------------------- what is added and dropped

    def append(self, delivery: Delivery) -> None:
        """Add an admitted batch to the log."""
        log = self.log
        if not delivery.header.continues:
            self._drop(log.drop_open())
            for subscription in self.takers:
                subscription.number = min(subscription.number, log.end)
        entry = log.append(delivery, now_s=self._clock.monotonic(), now_us=self._clock.time_us())
        if entry is None:
            # The publisher has only now stated where it begins: subscribers that seemed to be served need what is
            # below.
            needed = [each.sent_scn for each in self.takers if each.session is not None]
            behind = [scn for scn in needed if FIRST_SCN < scn < log.first_scn]
            if behind:
                self.rewind(min(behind))
            return
        self._space.add(log.source, log.end - 1, entry)
        # Not needed if every subscriber is ahead of the queue, or if there is none.
        self.release()

    def release(self) -> None:
        """Drop what no subscriber needs here any longer."""
        self._drop(self.log.release(self.floor_scn))

    def clear(self, scn: Scn) -> None:
        """Drop everything; the next batch follows `scn`."""
        self._drop(self.log.clear(scn))

    def skip(self) -> bool:
        """Continue at the floor if every subscriber is ahead of the queue; False if not all are.

        Changes below the floor may be purged already, so they are not requested.
        """
        floor = self.floor_scn
        if floor <= self.log.position:
            return False
        self.clear(floor)
        return True

    def pass_on(self, subscription: Subscription) -> None:
        """Drop what the only subscriber was sent."""
        self._drop(self.log.pass_on(subscription.sent_scn, subscription.number))

    def give_up_parts(self) -> None:
        """Make room for a transaction larger than the queue (Bounds in `actors.staging.queue`)."""
        readers = self._readers()
        if self.log.open_from is None or (not readers and self.is_held):
            return
        dropped = self.log.behead(min((each.number for each in readers), default=self.log.end))
        self._totals.given_up += sum(entry.header.row_count for _, entry in dropped)
        self._drop(dropped)

    def rewind(self, scn: Scn) -> None:
        """Drop all batches and request them again from `scn`, or from a lower SCN."""
        self.restart(min(scn, max(self.log.position, self.floor_scn)))

    def restart(self, scn: Scn) -> None:
        """Drop all batches and request those after `scn`."""
        self._totals.rewinds += 1
        self.clear(scn)
        publisher = self.publisher
        if publisher is not None:
            publisher.rewind_scn, publisher.is_rewinding, publisher.in_transaction = scn, True, False
            publisher.is_ordered = False
            publisher.told_durable_scn = Scn(-1)  # it may be less than what was reported before
            publisher.tell()

    def take_rewind(self, publisher: PublisherSession) -> Scn | None:
        """Return where the publisher must begin again, once; None: it continues."""
        rewind, is_ordered = publisher.rewind_scn, publisher.is_ordered
        if rewind is None:
            return None
        publisher.rewind_scn, publisher.is_ordered = None, False
        # The subscriber that needed it may have learned since that its destinations have more.
        return self.log.position if not is_ordered and self.skip() else rewind

    def _drop(self, entries: Iterable[tuple[int, Entry]]) -> None:
        self._space.remove(self.log.source, entries)

    # ----------------------------------------------------------------------- what subscribers are sent

    def begin(self, subscription: Subscription, session: SubscriberSession, needed: Scn) -> None:
        """Begin a subscriber's stream; what it needs and is gone is requested again.

        Args:
            subscription: the subscriber's subscription to this source.
            session: session of the stream.
            needed: it needs everything after this; FIRST_SCN: it never had anything.

        Raises:
            LogGone: it needs changes that are gone.
            QueueError: the end of its refusal cannot be recorded.
        """
        self._admit(subscription, needed)
        begin = needed if needed > FIRST_SCN else self._beginning(subscription)
        subscription.began(session, begin)
        subscription.sent_scn = needed
        if self._keeps:
            subscription.begins = needed == FIRST_SCN
            self._begin_at(subscription, begin)
        else:
            # Pending batches were mined for an earlier stream. For FIRST_SCN, the capture process's mark states where
            # it begins.
            self.restart(needed)
            subscription.number = self.log.end

    def next_for(self, subscription: Subscription) -> Delivery | None:
        """Return the next batch for a subscriber, or a mark; None: there is nothing for it, or not yet."""
        log = self.log
        if subscription.awaits_scn is not None and not self._begin_at(subscription, subscription.awaits_scn):
            return None
        subscription.number = max(subscription.number, log.base)
        if subscription.begins and (begin := self._beginning(subscription)) > FIRST_SCN:
            if subscription.acknowledged_scn > subscription.saved_scn:
                return None  # it copies its tables by this mark: a restarted queue must hold what follows it, too
            return self._mark(subscription, begin)
        while subscription.number < log.end:
            entry = log.entry(subscription.number)
            if entry is None:  # given-up parts of a large transaction that others have
                if not self._begin_at(subscription, subscription.sent_scn):
                    return None
                continue
            previous = entry.header.previous_scn
            if previous > subscription.sent_scn:
                return self._mark(subscription, previous)
            data = self._space.bytes_of(entry)
            if data is None:
                # The redo log still has it: restart where every subscriber can continue.
                self.rewind(self.floor_scn)
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

    def refuse_below(self, first_scn: Scn) -> None:
        """Refuse subscribers that need what is no longer available up to `first_scn`, and continue with the others.

        Raises:
            QueueError: a refusal cannot be recorded; nothing has changed.
        """
        lacking = [each for each in self.takers if FIRST_SCN < each.needed_scn < first_scn]
        # Before any subscriber learns of it: an apply process that knows does not return, and a restarted queue must
        # know by itself.
        self._refusals.record(
            self.log.source, {each.subscriber: first_scn for each in lacking if not each.is_propagation}
        )
        for subscription in lacking:
            subscription.refuse(first_scn, self._clock.monotonic())
            if subscription.is_propagation:
                # The subscribers behind it need something in between, and request it soon.
                subscription.acknowledged_scn = first_scn
        self.restart(max(first_scn, self.floor_scn))

    def _admit(self, subscription: Subscription, needed: Scn) -> None:
        """Note that a subscriber asks for less than it had acknowledged; refuse it if that is known to be gone."""
        gone = subscription.gone_scn
        if gone is not None and FIRST_SCN < needed < gone:
            raise subscription.refusal(needed, gone)
        if gone is not None:
            self._refusals.record(subscription.source, {subscription.subscriber: None})
            # It starts from scratch: what follows the others' positions is held already.
            held = self.floor_scn if needed == FIRST_SCN else FIRST_SCN
            subscription.acknowledged_scn, subscription.gone_scn = max(subscription.acknowledged_scn, gone, held), None
        elif FIRST_SCN < needed < subscription.acknowledged_scn and not subscription.is_propagation:
            subscription.lost = LostCommits(
                acknowledged_scn=subscription.acknowledged_scn, found_scn=needed, at_us=self._clock.time_us()
            )

    def _beginning(self, subscription: Subscription) -> Scn:
        """Return where a subscriber that never had anything begins: its assigned position, or the oldest entry."""
        return max(subscription.acknowledged_scn, self.log.first_scn)

    def _begin_at(self, subscription: Subscription, scn: Scn) -> bool:
        """Deliver from an SCN on; what is gone is requested again. False: not yet.

        A transaction with given-up parts is not requested again while another subscriber is in the middle of it, which
        would have to begin it again. A subscriber that reconnects repeatedly would keep the others from ever completing
        the transaction.
        """
        log = self.log
        start = log.start_for(scn)
        if (
            start is None
            and scn >= log.first_scn
            and any(each is not subscription and log.is_inside(each.number) for each in self._readers())
        ):
            subscription.awaits_scn = scn
            return False
        if start is None:
            # Everything here is dropped, including what is held before the transaction for slower subscribers.
            self.rewind(min(scn, self.floor_scn) if scn >= log.first_scn else scn)
            start = log.end
        subscription.number, subscription.awaits_scn = start, None
        return True

    def _mark(self, subscription: Subscription, through: Scn) -> Delivery:
        delivery = mark(subscription.source, subscription.sent_scn, through)
        subscription.sent_scn = through
        return delivery

    # ----------------------------------------------------------------------- statistics

    def status(self) -> QueueSource:
        """Return the positions of the source."""
        return QueueSource(
            position_scn=self.log.position,
            oldest_scn=self.log.first_scn,
            durable_scn=self.durable_scn,
            publisher=self.publisher.component if self.publisher else "",
            open_transaction=self.log.open_from is not None,
        )

    def subscriber_status(self, subscription: Subscription) -> QueueSubscriber:
        """Return what is pending for a subscriber, and its statistics (V$BUFFERED_SUBSCRIBERS)."""
        log = self.log
        # A disconnected subscriber resumes at its acknowledged position, about the first remaining entry.
        number = log.base if subscription.session is None else subscription.number
        first = log.first_after(subscription.acknowledged_scn)
        return subscription.status(
            rows=log.rows_from(number),
            held_alone_s=self._held_alone_s(subscription),
            unacknowledged_s=0.0 if first is None else self._clock.monotonic() - first[1].enqueued_s,
        )

    def _held_alone_s(self, subscription: Subscription) -> float:
        """Return for how long something has existed that another subscriber has acknowledged and this one has not.

        0: nothing exists, or this subscriber is refused.

        No subscriber acknowledges parts of a transaction that is larger than the queue. There it is what this subscriber
        has not read, while another has read it, or waits because it cannot get the transaction from its beginning
        before.
        """
        if not subscription.is_held:
            return 0.0
        log = self.log
        first = log.first_after(subscription.acknowledged_scn)
        others = max((each.acknowledged_scn for each in self.takers if each is not subscription), default=FIRST_SCN)
        if first is not None and first[0] <= others:
            return self._clock.monotonic() - first[1].enqueued_s
        readers, unread = self._readers(), log.entry(subscription.number)
        if unread is None or subscription not in readers:
            return 0.0
        is_full = log.open_from is not None and self._space.free_bytes <= 0
        waits = log.is_inside(subscription.number) and any(
            each.session is not None and each.awaits_scn is not None for each in self.takers
        )
        is_alone = waits or (is_full and any(each.number > subscription.number for each in readers))
        return self._clock.monotonic() - unread.enqueued_s if is_alone else 0.0
