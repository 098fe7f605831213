"""What a source site and its redo receivers say to each other, apart from how it travels.

The bytes of a redo log travel as they are, so segment numbers, offsets and SCNs are the same on both sides.
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

FRAME_BYTES = 1 << 20  # of redo in one frame: an fsync and an acknowledgement per MiB cost little next to the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyPlace:
    """How far a redo receiver has the redo log durably.

    Args:
        segment: number of the segment; 0: it has nothing.
        offset: bytes of that segment, up to the end of a record.
        fingerprint: of all records of that segment up to there, a footer's aside (`headrace.redo.records.fingerprint`). Two redo
            logs that agree in it hold the same bytes: headers carry checksums of payloads, and times.
        scn: every transaction committed up to here is before this place.
    """

    segment: int = 0
    offset: int = 0
    fingerprint: int = 0
    scn: Scn = FIRST_SCN


@dataclass(frozen=True, slots=True, kw_only=True)
class RedoFrame:
    """A piece of a redo segment, cut anywhere.

    Args:
        segment: number of the segment.
        offset: of the first byte.
        data: at most `FRAME_BYTES`.
        source_scn: how far redo was durable at the source when it was sent.
    """

    segment: int
    offset: int
    data: bytes
    source_scn: Scn = FIRST_SCN


class Shipped(Enum):
    """What of a redo log a receiver is sent."""

    REDO = 0  # all that is durable
    ARCHIVED = 1  # complete segments
    NOTHING = 2  # segments come to it as files; it only says how far it is


class Shipment(Protocol):
    """The frames for one stream of a redo receiver.

    One thread calls `next_frame` and `close`; any thread `acknowledge`.
    """

    def next_frame(self) -> RedoFrame | None:
        """The next frame of durable redo; None: the receiver was sent all of it.

        Raises:
            HeadraceError: the stream ends with it: a newer stream of this receiver began, or redo is gone or damaged.
        """
        ...

    def acknowledge(self, place: StandbyPlace) -> None:
        """The receiver has everything up to a place durably; `fingerprint` is not looked at.

        Raises:
            HeadraceError: the stream ends with it.
        """
        ...

    def close(self) -> None:
        """The stream has ended; idempotent."""
        ...


class RedoShipper(Protocol):
    """What is needed of a log writer (`headrace.redo.standby.shipping.RedoShipping`)."""

    def begin(self, receiver: str, incarnation: str, place: StandbyPlace, shipped: Shipped = Shipped.REDO) -> Shipment:
        """Begin a stream; an older one of the same receiver ends.

        Args:
            receiver: its name, such as dbs1@dbs3.
            incarnation: orders the streams of one receiver; greater is newer.
            place: where the receiver is.
            shipped: what it is sent.

        Raises:
            HeadraceError: it is no receiver of this redo log, a newer stream of it began, or what it needs is not here.
        """
        ...


class RedoReception(Protocol):
    """A redo receiver's end of the stream on which a source ships its redo. Belongs to one thread."""

    def connect(self, place: StandbyPlace, *, shipped: Shipped) -> None:
        """Open the stream, once.

        Args:
            place: what is durable here: redo from there on is wanted.
            shipped: what of it.

        Raises:
            PropagationError: the source cannot be reached.
            LogGone: it does not have what is wanted any more.
            RedoError: what is durable here is not of its redo log.
        """
        ...

    def take_nowait(self) -> RedoFrame | None:
        """The next frame; None: none has come.

        Raises:
            HeadraceError: the stream has ended, and every frame that came was taken.
        """
        ...

    def acknowledge(self, place: StandbyPlace) -> None:
        """Tell the source up to where redo is durable here. May be lost with the stream."""
        ...

    def grant(self, credit_bytes: int) -> None:
        """So many bytes can be taken in addition: as many as were written."""
        ...

    def close(self) -> None:
        """End the stream; idempotent."""
        ...


class _Checkpoints(Protocol):
    def record(self, capture: str, scn: Scn) -> Scn:
        """Take note of what a capture needs; answers what is on record."""
        ...

    def mine_again(self, capture: str, scn: Scn) -> Scn:
        """Keep redo from below what is on record; answers what is on record."""
        ...


class RedoWriter(Protocol):
    """What capture processes need of a log writer, or of a standby redo log."""

    @property
    def position(self) -> RedoPosition:
        """How far redo is durable; a value that is replaced, never changed."""
        ...

    @property
    def required_checkpoints(self) -> _Checkpoints:
        """What the captures need."""
        ...
