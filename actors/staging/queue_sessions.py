"""Sessions of a queue's publishers and subscribers, and the queue's state of each subscriber."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.errors import COPY_ONE_AGAIN, HeadraceError, LogGone, ProtocolError, QueueError, printable
from headrace.lcr.scn import FIRST_SCN, Scn, scn_text
from headrace.links.staging import PublisherNews
from headrace.status.queues import LostCommits, QueueSubscriber

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["REFUSED_HOLD_S", "PublisherSession", "SubscriberSession", "Subscription", "end_older", "unsent"]

# What was acknowledged before a refusal is still held for this time: an old driver that was suspended may have been
# refused while the newest one's stream is broken. The newest one notices that within 15 s (`protos.wire.transport`),
# retries every 5 s at most, and a driver starts within half a minute.
REFUSED_HOLD_S = 120.0


class PublisherSession:
    """One publisher's stream into the queue."""

    def __init__(self, component: str, incarnation: str, source: str, tell: Callable[[], None] | None = None) -> None:
        self.component, self.incarnation, self.source = component, incarnation, source
        self.tell = tell or _nobody_waits
        self.ended: HeadraceError | None = None
        # since the stream began: accepted bytes, and the most that was ever granted
        self.accepted_bytes = self.granted_bytes = 0
        self.in_transaction = False  # the last batch was open, so the next one may continue it
        self.rewind_scn: Scn | None = None  # not reported yet
        self.is_ordered = False  # the operator requested the rewind, whatever the subscribers have
        self.is_rewinding = False  # reported or not: arriving batches were sent before the publisher knew
        self.told = PublisherNews(through_scn=Scn(-1), accepted_bytes=-1, credit_bytes=-1)
        self.told_durable_scn = Scn(-1)


class SubscriberSession:
    """One subscriber's stream out of the queue."""

    def __init__(self, component: str, incarnation: str, sources: tuple[str, ...], credit_bytes: int) -> None:
        self.component, self.incarnation, self.sources = component, incarnation, sources
        self.credit_bytes = credit_bytes
        self.ended: HeadraceError | None = None
        self.turn = 0  # the source that is served next, so that none starves the others


class Subscription:
    """One subscriber and one source, whether the subscriber is connected or not.

    Args:
        subscriber: name of the subscriber.
        source: the source site.
        acknowledged: what its destinations have committed, as far as it is saved.
        is_propagation: whether it forwards a refusal to the queue behind it instead of being refused itself.
    """

    def __init__(self, subscriber: str, source: str, acknowledged: Scn, *, is_propagation: bool = False) -> None:
        self.subscriber, self.source, self.is_propagation = subscriber, source, is_propagation
        self.session: SubscriberSession | None = None
        self.number = 0  # number of the next entry to deliver
        self.sent_scn = FIRST_SCN  # position of the last delivery
        self.begins = False  # it never had anything, and nothing was delivered on this stream
        # It needs given-up parts of a large transaction that others are in the middle of, and waits for them; None: it
        # does not.
        self.awaits_scn: Scn | None = None
        self.acknowledged_scn = acknowledged
        self.saved_scn = acknowledged
        self.before_scn = acknowledged  # acknowledged position when this stream began, which may have asked for less
        self.dequeued_rows = 0
        self.dequeued_us = 0
        # Changes up to here that it lacks are gone; None: none are gone. Nothing is held for it until it returns with a
        # sufficient position.
        self.gone_scn: Scn | None = None
        self.held_until = 0.0  # monotonic time until which `held_scn` applies to a refused subscriber
        self.lost: LostCommits | None = None

    @property
    def needed_scn(self) -> Scn:
        """The SCN that it is known to have: it needs everything after it."""
        return self.acknowledged_scn if self.session is None else max(self.acknowledged_scn, self.sent_scn)

    @property
    def is_held(self) -> bool:
        """Whether what it lacks is held for it: always, unless it is refused."""
        return self.gone_scn is None or self.is_propagation

    @property
    def held_scn(self) -> Scn:
        """For a refused subscriber: a newer process of it needs nothing up to here."""
        return max(self.before_scn, self.gone_scn or FIRST_SCN)

    def began(self, session: SubscriberSession, needed: Scn) -> None:
        """Note that a stream has begun.

        Args:
            session: session of the stream.
            needed: its destination has everything up to here; less than was acknowledged means lost commits.
        """
        self.session, self.before_scn, self.awaits_scn = session, self.acknowledged_scn, None
        self.acknowledged_scn = min(self.acknowledged_scn, needed)

    def status(self, *, rows: int, held_alone_s: float, unacknowledged_s: float) -> QueueSubscriber:
        """Return its statistics (V$BUFFERED_SUBSCRIBERS).

        Args:
            rows: number of rows pending for it.
            held_alone_s: as in `QueueSubscriber`.
            unacknowledged_s: as in `QueueSubscriber`.
        """
        return QueueSubscriber(
            subscriber=self.subscriber,
            source=self.source,
            connected=self.session is not None,
            credit_bytes=self.session.credit_bytes if self.session else 0,
            sent_scn=self.sent_scn,
            acknowledged_scn=self.acknowledged_scn,
            gone_scn=self.gone_scn,
            lost=self.lost,
            rows_total=self.dequeued_rows,
            last_dequeued_us=self.dequeued_us,
            rows=rows,
            held_alone_s=held_alone_s,
            unacknowledged_s=unacknowledged_s,
        )

    def refuse(self, gone_scn: Scn, now: float) -> None:
        """End its session, if any, because it needs changes that are gone.

        What a newer process of it may still need is held for `REFUSED_HOLD_S`.

        Args:
            gone_scn: changes up to here are gone.
            now: monotonic time in seconds.
        """
        self.gone_scn, self.held_until = gone_scn, now + REFUSED_HOLD_S
        if self.session is not None:
            self.session.ended = self.refusal(self.needed_scn, gone_scn)
            self.session = None

    def refusal(self, needed_scn: Scn, gone_scn: Scn) -> LogGone:
        """Return the error that explains the refusal.

        Args:
            needed_scn: it needs everything after this.
            gone_scn: everything up to this is gone.
        """
        return LogGone(
            f"{self.subscriber} needs the changes of {self.source} after SCN {scn_text(needed_scn)}, but up to SCN"
            f" {scn_text(gone_scn)} they are gone from the redo log: its destination has less than it had acknowledged",
            hint=COPY_ONE_AGAIN,
            source=self.source,
            needed_scn=needed_scn,
            first_scn=gone_scn,
        )


def _nobody_waits() -> None:
    """Do nothing: the publisher polls for news after every change."""


def unsent(component: str, source: str, scn: Scn, sent: Scn) -> ProtocolError:
    """Return the error for an acknowledgement of changes that were never sent.

    Args:
        component: the acknowledging component.
        source: source of the changes.
        scn: the acknowledged SCN.
        sent: the SCN up to which changes were sent.
    """
    return ProtocolError(
        f"{component} acknowledges the changes of {printable(source)} up to SCN {scn_text(scn)}, but was only sent"
        f" those up to {scn_text(sent)}",
        hint="it reconnects; if this recurs, the peer is another version of Headrace, or not Headrace",
    )


def end_older(session: PublisherSession | SubscriberSession, incarnation: str, queue: str) -> None:
    """End a session because the same component opens a new one.

    Args:
        session: the existing session.
        incarnation: incarnation of the new session.
        queue: name of the queue.

    Raises:
        QueueError: the existing session belongs to a newer incarnation.
    """
    if session.incarnation > incarnation:
        raise QueueError(
            f"a newer incarnation of {session.component} is connected to queue {queue}",
            hint="the older process must end; if clocks differ, this heals when the newer one's stream breaks",
        )
    session.ended = QueueError(f"a newer stream of {session.component} replaced this one", hint="nothing to do")
