"""The two roles of a hop: who publishes batches into a queue, and who subscribes to it.

Whatever carries the bytes: hosts are given both ends by `headrace.links.serving.Links`, and know nothing of the wire.

A publisher connects, is told where to begin, and sends as far as its credit goes; what is durable behind the queue
comes back to it, and so does a wish for earlier changes (`PublisherProgress.rewind_scn`). A subscriber says where it
begins, takes what arrives, gives credit back, and acknowledges what its destinations have committed. Every stream is
used once: after an error it is closed, and another one is asked for.
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
    """What a queue needs to know of a batch without decoding it; the fields mean what they mean in `LcrBatch`.

    Args:
        source: name of the source site.
        previous_scn: `through_scn` of the batch before.
        through_scn: everything up to here that passes the rules has been sent, this batch included.
        continues: the first transaction began in an earlier batch.
        is_open: the last transaction goes on in the next batch; then `through_scn == previous_scn`.
        transaction_count: transactions that have rows in the batch.
        row_count: row LCRs.
        last_commit_time_us: of the last committed transaction, microseconds since the epoch; 0 when there is none.
        labels: of tracked transactions in the batch.
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
        """A position without data."""
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
    """A batch on its way to a subscriber: its header and its serialized bytes."""

    header: BatchHeader
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """What a queue answers a publisher that connects.

    Args:
        needed_scn: send everything after this; FIRST_SCN: begin wherever you do, with a mark that says where.
        credit_bytes: how many bytes may be on their way at once.
    """

    needed_scn: Scn
    credit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherProgress:
    """How a publisher's stream stands.

    Args:
        accepted_scn: the queue's position: it owns everything up to here.
        accepted_bytes: bytes of this stream's batches the queue has taken since it began.
        durable_scn: committed at every subscriber up to here; FIRST_SCN when nothing is known. Goes back only with
            a rewind, when a destination came back from a backup.
        in_flight_bytes: sent, not yet accepted.
        credit_bytes: how many bytes may be on their way at once; 0: paused for flow control.
        rewind_scn: send everything after this again, forget what was planned; reported once. None: go on.
    """

    accepted_scn: Scn
    accepted_bytes: int
    durable_scn: Scn
    in_flight_bytes: int
    credit_bytes: int
    rewind_scn: Scn | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of a batch that is on its way: its bytes on the wire, and whether it was the last."""

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
    """Makes the pieces of a batch smaller on their way: `protos.wire.compression.Compressor`."""

    def compress(self, piece: memoryview) -> bytes | None:
        """Make a piece smaller; None: it would not become smaller, and travels as it is."""
        ...


class Outlet(Protocol):
    """Where a capture process sends its batches, once it knows where to begin.

    A queue, or the small one that it mounts for its apply process. Belongs to one thread.
    """

    def poll(self) -> PublisherProgress:
        """How the stream stands now.

        Raises:
            HeadraceError: the stream has ended.
        """
        ...

    def send_nowait(self, header: BatchHeader, data: bytes) -> None:
        """Put a batch on its way.

        Args:
            header: of the batch.
            data: the encoded batch, header included. Larger than the credit: it is sent when nothing else is in flight.

        Raises:
            WouldBlock: there is no credit; the host is woken when there may be.
            HeadraceError: the stream has ended.
        """
        ...

    def gone(self, first_scn: Scn) -> None:
        """Tell that nothing up to `first_scn` can be sent any more; the next progress with a rewind says how to go on."""
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
        """Put a batch on its way piece by piece: each one that is drawn from the answer is sent then. Draw all of them.

        Args:
            header: of the batch.
            data: the encoded batch, as for `send_nowait`.
            piece_bytes: most bytes of the batch in a piece.

        Raises:
            WouldBlock: there is no credit; the host is woken when there may be.
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
            needed: sources wanted, each with the position after which to begin: the first batch of a source has
                exactly this `previous_scn`. FIRST_SCN: never had anything; the first is a mark to where it begins.
            credit_bytes: how many bytes may be on their way or waiting here at first; `grant` more as they are
                taken. The last batch may exceed it.

        Raises:
            PropagationError: the queue cannot be reached.
            HeadraceError: the queue refuses.
        """
        ...

    def subscribe_nowait(self, needed: Mapping[str, Scn], credit_bytes: int) -> None:
        """As `subscribe`, without waiting for the queue.

        `is_open` says when it has answered, and `poll` raises what it refuses with.

        Args:
            needed: as for `subscribe`.
            credit_bytes: as for `subscribe`.
        """
        ...

    def poll(self) -> Delivery | None:
        """The next batch; None: there is none now. Batches that arrived before the stream ended are answered first.

        Raises:
            HeadraceError: the stream has ended.
        """
        ...

    def grant(self, credit_bytes: int) -> None:
        """Let the queue send so many bytes in addition: what was taken from here."""
        ...

    def acknowledge(self, source: str, scn: Scn) -> None:
        """Tell the queue that everything up to `scn` is committed at the destination. May be lost with the stream.

        Args:
            source: one of those subscribed to.
            scn: of that source.
        """
        ...

    def close(self) -> None:
        """End the stream; idempotent."""
        ...


class RedoWatch(Protocol):
    """A capture process's view of how far the redo is durable that it mines, and its word on what it needs of it.

    Belongs to one thread.
    """

    def connect(self) -> RedoPosition:
        """Open the stream, once; answers the position now.

        Raises:
            PropagationError: who writes the redo cannot be reached.
            HeadraceError: it refuses.
        """
        ...

    def poll(self) -> RedoPosition:
        """How far redo is durable now.

        Raises:
            HeadraceError: the stream has ended.
        """
        ...

    def checkpoint(self, scn: Scn) -> Scn:
        """Tell that this capture process needs no redo below `scn` any more.

        Answers what is on record, the highest that it told.

        Raises:
            PropagationError: it cannot be reached; tell it again later.
        """
        ...

    def mine_again(self, scn: Scn) -> Scn:
        """Ask to keep redo from `scn` on, below what is on record; until that is told, or a checkpoint above.

        Answers what is on record.

        Raises:
            PropagationError: it cannot be reached.
        """
        ...

    def close(self) -> None:
        """End the stream; idempotent."""
        ...
