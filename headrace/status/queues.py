"""The status of a queue (V$BUFFERED_QUEUES, V$BUFFERED_PUBLISHERS, V$BUFFERED_SUBSCRIBERS)."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.status.component import ComponentStatus

__all__ = ["LostCommits", "QueueSource", "QueueStatus", "QueueSubscriber"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSource:
    """One source's changes in a queue.

    Args:
        position_scn: everything up to here arrived.
        oldest_scn: what follows this is still here.
        durable_scn: what every subscriber has durably; told to the publisher.
        publisher: the capture process or propagation that brings them; empty: none is connected.
        open_transaction: the last batch ended inside a transaction.
    """

    position_scn: int = 0
    oldest_scn: int = 0
    durable_scn: int = 0
    publisher: str = ""
    open_transaction: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCommits:
    """What a subscriber's destination lost: a failover, or a restored backup.

    Args:
        acknowledged_scn: what it had acknowledged.
        found_scn: what it still had.
        at_us: when that was found, microseconds since the epoch.
    """

    acknowledged_scn: int
    found_scn: int
    at_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSubscriber:
    """One subscriber of one source's changes in a queue.

    Args:
        subscriber: the apply process or propagation.
        source: whose changes it takes.
        connected: it has a session.
        credit_bytes: bytes that it takes without asking again.
        sent_scn: it was sent everything up to here.
        acknowledged_scn: it has everything up to here durably.
        gone_scn: it is refused, because changes that it needs are gone up to here; None: it is not.
        lost: what its destination lost last; None: nothing is known.
        rows_total: rows that it was sent.
        last_dequeued_us: when it was sent something last, microseconds since the epoch.
        rows: rows that wait for it.
        held_alone_s: how long something is held for it alone, in seconds.
        unacknowledged_s: how long it has not acknowledged what is here, in seconds.
        waiting_bytes: bytes that wait for it, where it reads a capture process directly; None: it does not.
    """

    subscriber: str = ""
    source: str = ""
    connected: bool = False
    credit_bytes: int = 0
    sent_scn: int = 0
    acknowledged_scn: int = 0
    gone_scn: int | None = None
    lost: LostCommits | None = None
    rows_total: int = 0
    last_dequeued_us: int = 0
    rows: int = 0
    held_alone_s: float = 0.0
    unacknowledged_s: float = 0.0
    waiting_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus(ComponentStatus):
    """A queue that is open. `rows_total` of it: rows that were enqueued.

    Args:
        queue: its name in the topology.
        rows: rows that are here.
        spilled_rows: those of them that are on disk.
        spilled_rows_total: rows that were spilled.
        batches: batches that are here.
        memory_bytes: what they take in memory.
        memory_bytes_max: bound of that.
        spill_bytes: what they take on disk.
        spill_bytes_max: bound of that.
        oldest_enqueued_us: when the oldest batch came, microseconds since the epoch; 0: it is empty.
        average_age_s: how old what is here is, in seconds.
        last_enqueued_us: when something came last, microseconds since the epoch.
        last_dequeued_us: when a subscriber was sent something last, microseconds since the epoch.
        given_up_rows_total: rows that it gave up, and requests again.
        rewinds_total: how often it requested changes again.
        sources: by site, whose changes come here.
        subscribers: who takes them.
    """

    queue: str = ""
    rows: int = 0
    spilled_rows: int = 0
    spilled_rows_total: int = 0
    batches: int = 0
    memory_bytes: int = 0
    memory_bytes_max: int = 0
    spill_bytes: int = 0
    spill_bytes_max: int = 0
    oldest_enqueued_us: int = 0
    average_age_s: float = 0.0
    last_enqueued_us: int = 0
    last_dequeued_us: int = 0
    given_up_rows_total: int = 0
    rewinds_total: int = 0
    sources: dict[str, QueueSource] = field(default_factory=dict)
    subscribers: tuple[QueueSubscriber, ...] = ()
