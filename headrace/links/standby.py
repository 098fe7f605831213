"""The protocol between a source site and its redo receivers, apart from the transport.

The bytes of a redo log are shipped unchanged, so segment numbers, offsets and SCNs are the same on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.links.ports import RedoPosition

__all__ = [
    "FRAME_BYTES",
    "RedoFrame",
    "RedoReception",
    "RedoShipper",
    "RedoWriter",
    "Shipment",
    "Shipped",
    "StandbyPlace",
]

FRAME_BYTES = 1 << 20  # of redo in one frame: one fsync and one acknowledgement per MiB are comparatively cheap


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyPlace:
    """The place up to which a redo receiver has the redo log durably.

    Args:
        segment: number of the segment; 0: the receiver has nothing.
        offset: bytes of that segment, up to the end of a record.
        fingerprint: fingerprint of all records of that segment up to there except a footer
            (`headrace.redo.records.fingerprint`). Equal fingerprints mean equal bytes: headers carry checksums of
            payloads, and times.
        scn: every transaction committed up to here is before this place.
    """

    segment: int = 0
    offset: int = 0
    fingerprint: int = 0
    scn: Scn = FIRST_SCN


@dataclass(frozen=True, slots=True, kw_only=True)
class RedoFrame:
    """A piece of a redo segment; its bounds ignore record borders.

    Args:
        segment: number of the segment.
        offset: offset of the first byte.
        data: at most `FRAME_BYTES` bytes.
        source_scn: position up to which redo was durable at the source when the frame was sent.
    """

    segment: int
    offset: int
    data: bytes
    source_scn: Scn = FIRST_SCN


class Shipped(Enum):
    """The part of a redo log that a receiver gets."""

    REDO = 0  # all durable redo
    ARCHIVED = 1  # complete segments
    NOTHING = 2  # segments reach it as files; it only reports its place


class Shipment(Protocol):
    """The frames for one stream of a redo receiver.

    One thread calls `next_frame` and `close`; any thread `acknowledge`.
    """

    def next_frame(self) -> RedoFrame | None:
        """Return the next frame of durable redo; None: the receiver was sent all of it.

        Raises:
            HeadraceError: the stream ends with it: a newer stream of this receiver began, or redo is gone or damaged.
        """
        ...

    def acknowledge(self, place: StandbyPlace) -> None:
        """Note that the receiver has everything up to a place durably; `fingerprint` is ignored.

        Raises:
            HeadraceError: the stream ends with it.
        """
        ...

    def close(self) -> None:
        """End the shipment; idempotent."""
        ...


class RedoShipper(Protocol):
    """The part of a log writer that ships redo (`headrace.redo.standby.shipping.RedoShipping`)."""

    def begin(self, receiver: str, incarnation: str, place: StandbyPlace, shipped: Shipped = Shipped.REDO) -> Shipment:
        """Begin a stream; an older one of the same receiver ends.

        Args:
            receiver: its name, such as dbs1@dbs3.
            incarnation: orders the streams of one receiver; greater is newer.
            place: the receiver's place.
            shipped: what to send.

        Raises:
            HeadraceError: it is no receiver of this redo log, a newer stream of it began, or the needed redo is not
                here.
        """
        ...


class RedoReception(Protocol):
    """A redo receiver's end of the stream on which a source ships its redo. Belongs to one thread."""

    def connect(self, place: StandbyPlace, *, shipped: Shipped) -> None:
        """Open the stream, once.

        Args:
            place: durable place here, after which redo is wanted.
            shipped: wanted part of the redo.

        Raises:
            PropagationError: the source cannot be reached.
            LogGone: the source no longer has the wanted redo.
            RedoError: the durable redo here is not of the source's redo log.
        """
        ...

    def take_nowait(self) -> RedoFrame | None:
        """Return the next frame; None: none has arrived.

        Raises:
            HeadraceError: the stream has ended, and every arrived frame was taken.
        """
        ...

    def acknowledge(self, place: StandbyPlace) -> None:
        """Report to the source the place up to which redo is durable here. The report may be lost with the stream."""
        ...

    def grant(self, credit_bytes: int) -> None:
        """Add credit in bytes: as many as were written."""
        ...

    def close(self) -> None:
        """End the stream; idempotent."""
        ...


class _Checkpoints(Protocol):
    def record(self, capture: str, scn: Scn) -> Scn:
        """Record the redo that a capture process needs; return the recorded position."""
        ...

    def mine_again(self, capture: str, scn: Scn) -> Scn:
        """Keep redo below the recorded position; return the recorded position."""
        ...


class RedoWriter(Protocol):
    """The part of a log writer, or of a standby redo log, that capture processes need."""

    @property
    def position(self) -> RedoPosition:
        """The position up to which redo is durable; the value is replaced, never changed."""
        ...

    @property
    def required_checkpoints(self) -> _Checkpoints:
        """Redo that the capture processes need."""
        ...
