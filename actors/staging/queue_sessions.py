"""Who is connected to a queue, and what the queue knows of its subscribers."""

from __future__ import annotations

from protos.staging import PublisherNews
from streams.errors import COPY_ONE_AGAIN, LogGone, QueueError, StreamsError
from streams.scn import FIRST_SCN, Scn, scn_text

__all__ = ["PublisherSession", "SubscriberSession", "Subscription", "end_older"]


class PublisherSession:
    """One publisher's stream into the queue."""

    def __init__(self, component: str, incarnation: str, source: str) -> None:
        self.component, self.incarnation, self.source = component, incarnation, source
        self.ended: StreamsError | None = None
        self.accepted_bytes = 0
        self.in_transaction = False  # the last batch was open, so the next one may continue it
        self.rewind_scn: Scn | None = None  # not yet told
        self.is_rewinding = False  # told or not: what comes was sent before the publisher knew
        self.told = PublisherNews(through_scn=Scn(-1), accepted_bytes=-1, credit_bytes=-1)
        self.told_durable_scn = Scn(-1)


class SubscriberSession:
    """One subscriber's stream out of the queue."""

    def __init__(self, component: str, incarnation: str, sources: tuple[str, ...], credit_bytes: int) -> None:
        self.component, self.incarnation, self.sources = component, incarnation, sources
        self.credit_bytes = credit_bytes
        self.ended: StreamsError | None = None
        self.turn = 0  # which source is asked first, so that none starves the others


class Subscription:
    """One subscriber and one source, whether the subscriber is connected or not.

    Args:
        subscriber: its name.
        source: the source site.
        acknowledged: what its destinations have committed, as far as is remembered.
    """

    def __init__(self, subscriber: str, source: str, acknowledged: Scn) -> None:
        self.subscriber, self.source = subscriber, source
        self.session: SubscriberSession | None = None
        self.number = 0  # of the next entry to hand out
        self.sent_scn = FIRST_SCN  # position of what was handed out last
        self.begins = False  # it never had anything, and was handed out nothing on this stream
        self.acknowledged_scn = acknowledged
        self.saved_scn = acknowledged
        self.dequeued_rows = 0
        self.dequeued_us = 0
        # Nothing it lacks up to here can be had any more; None: it can. Until it needs less, nothing is held for it.
        self.gone_scn: Scn | None = None
        self.lost: tuple[Scn, Scn, int] | None = None  # it went back from the first to the second SCN, and when

    @property
    def needed_scn(self) -> Scn:
        """What it has, as far as is known: it needs everything after."""
        return self.acknowledged_scn if self.session is None else max(self.acknowledged_scn, self.sent_scn)

    def refuse(self, gone_scn: Scn) -> None:
        """End its session, if it has one: what it needs up to `gone_scn` is gone."""
        self.gone_scn = gone_scn
        if self.session is not None:
            self.session.ended = self.refusal(self.needed_scn, gone_scn)
            self.session = None

    def refusal(self, needed_scn: Scn, gone_scn: Scn) -> LogGone:
        """Why it gets nothing."""
        return LogGone(
            f"{self.subscriber} needs the changes of {self.source} after SCN {scn_text(needed_scn)}, but up to SCN"
            f" {scn_text(gone_scn)} they are gone from the redo log: its destination has less than it had acknowledged",
            hint=COPY_ONE_AGAIN, source=self.source, needed_scn=needed_scn, first_scn=gone_scn,
        )


def end_older(session: PublisherSession | SubscriberSession, incarnation: str, queue: str) -> None:
    """End a session because the same component opens another one.

    Raises:
        QueueError: the session is of a newer incarnation than the one that wants to replace it.
    """
    if session.incarnation > incarnation:
        raise QueueError(
            f"a newer incarnation of {session.component} is connected to queue {queue}",
            hint="the older process must end; if clocks differ, this heals when the newer one's stream breaks",
        )
    session.ended = QueueError(f"a newer stream of {session.component} replaced this one", hint="nothing to do")
