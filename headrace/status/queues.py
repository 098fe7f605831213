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
        oldest_scn: everything after this is still here.
        durable_scn: position that every subscriber has durably; reported to the publisher.
        publisher: connected capture process or propagation; empty: none.
        open_transaction: the last batch ended inside a transaction.
    """

    position_scn: int = 0
    oldest_scn: int = 0
    durable_scn: int = 0
    publisher: str = ""
    open_transaction: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCommits:
    """Commits that a subscriber's destination lost, by a failover or a restored backup.

    Args:
        acknowledged_scn: position that it had acknowledged.
        found_scn: position that it still had.
        at_us: time when that was found, microseconds since the epoch.
    """

    acknowledged_scn: int
    found_scn: int
    at_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSubscriber:
    """One subscriber of one source's changes in a queue.

    Args:
        subscriber: the apply process or propagation.
        source: site whose changes it takes.
        connected: it has a session.
        credit_bytes: bytes that it takes without another grant.
        sent_scn: everything up to here was sent to it.
        acknowledged_scn: it has everything up to here durably.
        gone_scn: it is refused, because changes that it needs are gone up to here; None: it is not refused.
        lost: what its destination lost last; None: nothing is known.
        rows_total: rows sent to it.
        last_dequeued_us: time of the last send to it, microseconds since the epoch.
        rows: its backlog in rows.
        held_alone_s: how long the queue has held something for it alone, in seconds.
        unacknowledged_s: how long it has not acknowledged the queue's content, in seconds.
        waiting_bytes: its backlog in bytes, if it reads a capture process directly; None: it does not.
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
    """An open queue. Its `rows_total` counts enqueued rows.

    Args:
        queue: its name in the topology.
        rows: rows in the queue.
        spilled_rows: those of them that are on disk.
        spilled_rows_total: rows that were spilled.
        batches: batches in the queue.
        memory_bytes: their size in memory.
        memory_bytes_max: bound of `memory_bytes`.
        spill_bytes: their size on disk.
        spill_bytes_max: bound of `spill_bytes`.
        oldest_enqueued_us: enqueue time of the oldest batch, microseconds since the epoch; 0: the queue is empty.
        average_age_s: average age of the content, in seconds.
        last_enqueued_us: time of the last enqueue, microseconds since the epoch.
        last_dequeued_us: time of the last send to a subscriber, microseconds since the epoch.
        given_up_rows_total: rows that it discarded, and requests again.
        rewinds_total: its requests for earlier changes.
        sources: state per source, by site.
        subscribers: its subscribers.
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
