"""The two roles of a hop: who publishes batches into a queue, and who subscribes to it.

The ports do not depend on the wire: hosts get both ends from `headrace.links.serving.Links`.

A publisher connects, learns where to begin, and sends within its credit. The queue reports what is durable behind it,
and requests earlier changes when it needs them (`PublisherProgress.rewind_scn`). A subscriber says where it begins,
takes what arrives, grants credit, and acknowledges what its destinations have committed. A stream is used once: after
an error it is closed and replaced by a new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.lcr.scn import Scn

if TYPE_CHECKING:
    from headrace.lcr.batch import LcrBatch
    from headrace.lcr.tracking import Label

__all__ = [
    "BatchHeader",
    "Delivery",
    "Outlet",
    "Piece",
    "PieceCompressor",
    "Publisher",
    "PublisherProgress",
    "RedoPosition",
    "RedoWatch",
    "Resume",
    "Subscriber",
    "header_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    """A batch's description for a queue, readable without decoding; the fields mean the same as in `LcrBatch`.

    Args:
        source: name of the source site.
        previous_scn: `through_scn` of the batch before.
        through_scn: everything up to here that passes the rules has been sent, this batch included.
        continues: the first transaction began in an earlier batch.
        is_open: the last transaction continues in the next batch; then `through_scn == previous_scn`.
        transaction_count: transactions that have rows in the batch.
        row_count: row LCRs.
        last_commit_time_us: time of the last commit, microseconds since the epoch; 0: none.
        labels: labels of tracked transactions in the batch.
    """

    source: str
    previous_scn: Scn
    through_scn: Scn
    continues: bool = False
    is_open: bool = False
    transaction_count: int = 0
    row_count: int = 0
    last_commit_time_us: int = 0
    labels: tuple[Label, ...] = ()

    @property
    def is_progress_mark(self) -> bool:
        """Whether the batch has a position without data."""
        return self.transaction_count == 0


def header_of(batch: LcrBatch) -> BatchHeader:
    """Make the header of a batch."""
    transactions = batch.transactions
    committed = len(transactions) - batch.is_open
    return BatchHeader(
        source=batch.source,
        previous_scn=batch.previous_scn,
        through_scn=batch.through_scn,
        continues=batch.continues,
        is_open=batch.is_open,
        transaction_count=len(transactions),
        row_count=batch.row_count,
        last_commit_time_us=int(transactions.commit_time_us[committed - 1]) if committed else 0,
        labels=batch.labels,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A batch in flight to a subscriber: its header and its serialised bytes."""

    header: BatchHeader
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """A queue's answer to a publisher that connects.

    Args:
        needed_scn: send everything after this; FIRST_SCN: begin anywhere, with a progress mark that says where.
        credit_bytes: bytes that may be in flight at once.
    """

    needed_scn: Scn
    credit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherProgress:
    """State of a publisher's stream.

    Args:
        accepted_scn: the queue's position: it owns everything up to here.
        accepted_bytes: bytes of this stream's batches that the queue has taken since the stream began.
        durable_scn: committed at every subscriber up to here; FIRST_SCN: unknown. Moves back only with a rewind, when a
            destination was restored from a backup.
        in_flight_bytes: sent, not yet accepted.
        credit_bytes: bytes that may be in flight at once; 0: paused for flow control.
        rewind_scn: send everything after this again and forget the plan so far; reported once. None: continue.
    """

    accepted_scn: Scn
    accepted_bytes: int
    durable_scn: Scn
    in_flight_bytes: int
    credit_bytes: int
    rewind_scn: Scn | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of a batch in flight: its size on the wire in bytes, and whether it is the last."""

    size: int
    is_last: bool


@dataclass(frozen=True, slots=True, order=True)
class RedoPosition:
    """How far redo is durable: everything before byte `offset` of segment `segment`.

    Args:
        segment: number of the segment; segments below it are complete.
        offset: bytes of that segment.
        scn: every transaction committed up to here is in the redo log before this position.
    """

    segment: int
    offset: int
    scn: Scn


class PieceCompressor(Protocol):
    """Compresses the pieces of a batch for transport: `protos.wire.compression.Compressor`."""

    def compress(self, piece: memoryview) -> bytes | None:
        """Compress a piece; None: it would not become smaller, and is sent as it is."""
        ...


class Outlet(Protocol):
    """A capture process's stream for its batches, opened with a known start.

    It leads to a queue, or to the small one that the capture process mounts for its apply process. Belongs to one
    thread.
    """

    def poll(self) -> PublisherProgress:
        """Return the current state of the stream.

        Raises:
            HeadraceError: the stream has ended.
        """
        ...

    def send_nowait(self, header: BatchHeader, data: bytes) -> None:
        """Send a batch.

        Args:
            header: the batch's header.
            data: the encoded batch, header included. A batch larger than the credit is sent when nothing else is in
                flight.

        Raises:
            WouldBlock: the credit is used up; the host is woken when there may be more.
            HeadraceError: the stream has ended.
        """
        ...

    def gone(self, first_scn: Scn) -> None:
        """Report that nothing up to `first_scn` can be sent any more; the next rewind says how to continue."""
        ...

    def close(self) -> None:
        """End the stream; idempotent."""
        ...


class Publisher(Outlet, Protocol):
    """The publishing end of a stream into a queue, for one source."""

    def connect(self) -> Resume:
        """Open the stream; once.

        Raises:
            PropagationError: the queue cannot be reached.
            HeadraceError: the queue refuses.
        """
        ...

    def begin_nowait(self, header: BatchHeader, data: bytes, piece_bytes: int) -> Iterator[Piece]:
        """Send a batch piece by piece: each piece is sent when it is drawn from the iterator. Draw all of them.

        Args:
            header: the batch's header.
            data: the encoded batch, as for `send_nowait`.
            piece_bytes: bound of the batch's bytes in one piece.

        Raises:
            WouldBlock: the credit is used up; the host is woken when there may be more.
            HeadraceError: the stream has ended.
        """
        ...


class Subscriber(Protocol):
    """The subscribing end of a stream out of a queue. Belongs to one thread."""

    @property
    def is_open(self) -> bool:
        """Whether the queue has taken the stream."""
        ...

    def subscribe(self, needed: Mapping[str, Scn], credit_bytes: int) -> None:
        """Open the stream; once.

        Args:
            needed: wanted sources, each with the position after which to begin: the first batch of a source has exactly
                this `previous_scn`. FIRST_SCN: the subscriber has nothing; the first batch is a mark of where it
                begins.
            credit_bytes: initial bound of the bytes in flight or waiting here; `grant` more as they are taken. The last
                batch may exceed it.

        Raises:
            PropagationError: the queue cannot be reached.
            HeadraceError: the queue refuses.
        """
        ...

    def subscribe_nowait(self, needed: Mapping[str, Scn], credit_bytes: int) -> None:
        """Open the stream like `subscribe`, without waiting for the queue.

        `is_open` shows when the queue has answered, and `poll` raises its refusal.

        Args:
            needed: as for `subscribe`.
            credit_bytes: as for `subscribe`.
        """
        ...

    def poll(self) -> Delivery | None:
        """Return the next batch; None: there is none now. Batches that arrived before the stream ended come first.

        Raises:
            HeadraceError: the stream has ended.
        """
        ...

    def grant(self, credit_bytes: int) -> None:
        """Add credit in bytes, for batches that were taken from here."""
        ...

    def acknowledge(self, source: str, scn: Scn) -> None:
        """Report that everything up to `scn` is committed at the destination. The report may be lost with the stream.

        Args:
            source: a subscribed source.
            scn: position in that source.
        """
        ...

    def close(self) -> None:
        """End the stream; idempotent."""
        ...


class RedoWatch(Protocol):
    """A capture process's stream from the keeper of the redo that it mines: durable position in, needed redo out.

    Belongs to one thread.
    """

    def connect(self) -> RedoPosition:
        """Open the stream, once; return the current position.

        Raises:
            PropagationError: the writer of the redo cannot be reached.
            HeadraceError: the writer refuses.
        """
        ...

    def poll(self) -> RedoPosition:
        """Return the position up to which redo is durable.

        Raises:
            HeadraceError: the stream has ended.
        """
        ...

    def checkpoint(self, scn: Scn) -> Scn:
        """Report that this capture process needs no redo below `scn` any more.

        Returns the recorded position: the highest that it reported.

        Raises:
            PropagationError: the writer cannot be reached; report again later.
        """
        ...

    def mine_again(self, scn: Scn) -> Scn:
        """Request that redo from `scn` on is kept, below the recorded position, until the next checkpoint above `scn`.

        Returns the recorded position.

        Raises:
            PropagationError: the writer cannot be reached.
        """
        ...

    def close(self) -> None:
        """End the stream; idempotent."""
        ...
