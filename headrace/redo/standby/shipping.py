"""Redo shipping: the bytes of a source's redo log for its redo receivers, and the durable place of each receiver.

Job
    Send every receiver the redo that is durable here and nothing else. Know what may be purged and confirmed because
    all receivers have it.

Main path
    RedoShipping.begin (the receiver reports its place) -> Shipment.next_frame -> gRPC -> redo receiver
    Shipment.acknowledge -> RedoShipping.keep_from, which bounds purging; RedoShipping.confirmable, which bounds the
    confirmation to the source's database.

States (of one receiver)
    AWAY       it has no open stream. Memory only.
    SHIPPING   it has one. Memory only.
    Its name, its newest incarnation and its place are in `redo_receivers.json` next to the segments. The place is a
    lower bound: a lagging place only keeps redo longer.

Durable when
    A frame is cut from bytes that were fsynced before, so what a receiver has can never be cut off here. A newer
    incarnation is on disk before its stream begins. After that, an older one, which may have another disk, cannot cause
    a purge.

Worked flow
    redo ends in segment 3; receiver at (2, 500) -> the headers of segment 2 up to 500 are the same here -> frames from
    (2, 500) on -> acknowledge(3, 100): segments 1 and 2 may go; with `transport: sync` the SCN of (3, 100) is confirmed
    the receiver's folder was restored, it is at (1, 80), segment 1 is gone -> LogGone: only that receiver is refused
    the redo log here was lost and begun anew: the receiver is at (7, 10), redo ends in segment 1 -> refused

Source: Oracle Streams Concepts and Administration 10.2, "Real-Time Downstream Capture" (redo transport services).
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace.base.clock import Clock, SystemClock
from headrace.base.durable_file import replace_file
from headrace.base.errors import LogGone, ProtocolError, QueueError, RedoError
from headrace.lcr.scn import FIRST_SCN, Scn, scn_text
from headrace.links.ports import RedoPosition
from headrace.links.standby import FRAME_BYTES, RedoFrame, Shipped, StandbyPlace
from headrace.redo.records import fingerprint
from headrace.redo.segments import FIRST_SEGMENT, PREAMBLE_BYTES, RedoReader, list_segments, open_segment, write_error
from headrace.status.redo import ShippedRedo

__all__ = ["RedoShipping", "fingerprint_up_to"]

_FILE = "redo_receivers.json"
# A synchronised clock is wrong by less than a second. After a clock that was further ahead is corrected, it would shut
# out its own receiver for as long as it was ahead.
AHEAD_MAX_S = 300
STALLED_S = 10.0  # of an awaited receiver that takes nothing: an fsync on a busy disk may take some seconds
_START_OVER = (
    "or remove its standby redo log and start it: it begins anew with the redo that is left, and only destinations that"
    " lack what is missing are refused"
)


@dataclass(slots=True)
class _Receiver:
    """State of one receiver. `is_sync`: the source waits for it."""

    is_sync: bool = False
    incarnation: str = ""
    place: StandbyPlace = field(default_factory=StandbyPlace)
    shipment: _Shipment | None = None
    seen: tuple[int, int] | None = None  # its place at the last look, while it lags
    seen_at: float = 0.0


class RedoShipping:
    """The receivers of one redo log. Any thread may call any method; only the log writer calls `save` and `register`.

    Args:
        folder: the segments' folder.
        source: source site of the log.
        position: returns the position up to which redo is durable.
        clock: the source's clock; no receiver's may be far ahead of it.

    Raises:
        RedoError: the saved state is damaged.
    """

    def __init__(
        self, folder: Path, source: str, position: Callable[[], RedoPosition], clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._folder, self._source, self._position = folder, source, position
        self._path = folder / _FILE
        self._lock = threading.RLock()
        self._receivers = self._read()
        self._saved = self._as_document()

    # ------------------------------------------------------------------ the log writer's side

    @property
    def keep_from(self) -> int | None:
        """The lowest segment that a receiver may still request; None: there is no receiver."""
        with self._lock:
            return min((each.place.segment for each in self._receivers.values()), default=None)

    @contextlib.contextmanager
    def unmoved(self) -> Iterator[int | None]:
        """Yield `keep_from`, while no place moves and no stream begins, for purging by it.

        So a new stream does not request a segment that is just being purged.
        """
        with self._lock:
            yield self.keep_from

    def confirmable(self, scn: Scn) -> Scn:
        """Return the position that may be confirmed to the source's database: what every sync receiver has durably."""
        with self._lock:
            return min([scn, *(each.place.scn for each in self._receivers.values() if each.is_sync)])

    def is_awaited(self, scn: Scn) -> bool:
        """Whether an acknowledgement that allows a further confirmation can arrive at any moment."""
        with self._lock:
            return any(
                each.is_sync and each.shipment is not None and each.place.scn < scn for each in self._receivers.values()
            )

    @property
    def has_sync(self) -> bool:
        """Whether the source waits for a receiver."""
        with self._lock:
            return any(each.is_sync for each in self._receivers.values())

    def holding_back(self, segment: int) -> tuple[str, ...]:
        """Return the receivers that lack redo below a segment."""
        with self._lock:
            return tuple(name for name, each in self._receivers.items() if each.place.segment < segment)

    def awaited_in_vain(self) -> tuple[str, ...]:
        """Return the receivers for which the source waits, and that are away."""
        with self._lock:
            return tuple(name for name, each in self._receivers.items() if each.is_sync and each.shipment is None)

    def stalled(self) -> tuple[str, ...]:
        """Return the receivers for which the source waits, and that have a stream but took nothing for some seconds.

        Call this periodically.
        """
        now, end = self._clock.monotonic(), self._position()
        with self._lock:
            found = []
            for name, each in self._receivers.items():
                place = (each.place.segment, each.place.offset)
                if not each.is_sync or each.shipment is None or each.place.scn >= end.scn:
                    each.seen = None
                elif each.seen != place:
                    each.seen, each.seen_at = place, now
                elif now - each.seen_at >= STALLED_S:
                    found.append(name)
            return tuple(found)

    def register(self, receivers: Mapping[str, bool]) -> None:
        """Keep redo for these receivers, and for no others.

        Args:
            receivers: name -> whether the source waits for it (`transport: sync`).
        """
        with self._lock:
            self._receivers = {name: self._receivers.get(name) or _Receiver() for name in receivers}
            for name, is_sync in receivers.items():
                self._receivers[name].is_sync = is_sync
            self._save()

    def save(self) -> None:
        """Make the current state durable.

        Raises:
            RedoFull: no space.
        """
        with self._lock:
            self._save()

    def status(self) -> tuple[ShippedRedo, ...]:
        """Return the progress of each receiver."""
        with self._lock:
            return tuple(
                ShippedRedo(
                    receiver=name,
                    transport="sync" if each.is_sync else "async",
                    state="AWAY" if each.shipment is None else "SHIPPING",
                    durable_scn=each.place.scn,
                    segment=each.place.segment,
                )
                for name, each in self._receivers.items()
            )

    # ------------------------------------------------------------------ the receivers' side

    def begin(self, receiver: str, incarnation: str, place: StandbyPlace, shipped: Shipped = Shipped.REDO) -> _Shipment:
        """Begin a stream, as `headrace.links.standby.RedoShipper.begin` defines it.

        Args:
            receiver: name of the receiver.
            incarnation: orders the streams of one receiver; greater is newer.
            place: the receiver's place.
            shipped: what to send.

        Raises:
            QueueError: it is no receiver of this redo log, a newer stream of it began, or its clock is far ahead.
            LogGone: redo that it lacks was purged.
            RedoError: it has redo that this redo log does not have.
        """
        with self._lock:
            known = self._receivers.get(receiver)
            if known is None:
                raise QueueError(
                    f"the redo log of {self._source} has no receiver {receiver}",
                    hint="one of the two still runs an older topology file: it is about to be replaced",
                    receiver=receiver,
                )
            if incarnation < known.incarnation:
                raise self._replaced(receiver)
            if incarnation != known.incarnation:
                self._check_clock(receiver, incarnation)
                known.incarnation, known.shipment = incarnation, None
                self._save()
            before = known.place
            if (place.segment, place.offset) < (before.segment, before.offset):
                known.place = place  # what it lacks is kept during the check
        try:
            shipment = _Shipment(self, receiver, self._start(receiver, place, shipped), shipped)
        except BaseException:
            with self._lock:
                if known.incarnation == incarnation and known.place is place:
                    known.place = before
            raise
        with self._lock:
            if self._receivers.get(receiver) is not known or known.incarnation != incarnation:
                shipment.close()
                raise self._replaced(receiver)
            # Also when it is below the earlier one: its folder may have been restored, and what it lacks still exists
            # here.
            known.place, known.shipment = place, shipment
            self._save()
        return shipment

    def acknowledged(self, shipment: _Shipment, place: StandbyPlace) -> None:
        """Note that a receiver has more.

        Args:
            shipment: shipment of its stream.
            place: its place.
        """
        with self._lock:
            known = self._current(shipment)
            durable = self._position()
            sent = (durable.segment, durable.offset) if shipment.shipped is Shipped.NOTHING else shipment.sent
            if (place.segment, place.offset) > sent:
                raise ProtocolError(
                    f"{shipment.receiver} acknowledged redo that it was not sent", receiver=shipment.receiver
                )
            if (place.segment, place.offset) > (known.place.segment, known.place.offset):
                known.place = place

    def ended(self, shipment: _Shipment) -> None:
        """Note that a stream has ended; idempotent."""
        with self._lock:
            known = self._receivers.get(shipment.receiver)
            if known is not None and known.shipment is shipment:
                known.shipment = None

    def check_current(self, shipment: _Shipment) -> None:
        """Raise if a newer stream of the same receiver began."""
        with self._lock:
            self._current(shipment)

    @property
    def position(self) -> RedoPosition:
        """The position up to which redo is durable."""
        return self._position()

    @property
    def folder(self) -> Path:
        """Folder of the segments."""
        return self._folder

    # ------------------------------------------------------------------ inside

    def _current(self, shipment: _Shipment) -> _Receiver:
        known = self._receivers.get(shipment.receiver)
        if known is None or known.shipment is not shipment:
            raise self._replaced(shipment.receiver)
        return known

    def _check_clock(self, receiver: str, incarnation: str) -> None:
        """Refuse an incarnation (`protos.wire.transport.new_incarnation`) from the future.

        If it were recorded, every later one would be refused.
        """
        began_ns = incarnation.partition("-")[0]
        ahead_s = int(began_ns) // 10**9 - self._clock.time_us() // 10**6 if began_ns.isdecimal() else 0
        if ahead_s > AHEAD_MAX_S:
            raise QueueError(
                f"a stream of {receiver} is refused: its clock is ahead by {timedelta(seconds=ahead_s)} of the clock of"
                f" the source, {self._source}",
                hint="set the clock of whichever machine is wrong: it goes on by itself then",
                receiver=receiver,
            )

    def _replaced(self, receiver: str) -> QueueError:
        return QueueError(
            f"a newer stream of {receiver} began",
            hint="the newer one goes on. If none runs, a clock was ahead when the last one began, or is behind now:"
            f" set the clocks; or stop site:{self._source}, remove {receiver} from {_FILE} in {self._folder}, and start it",
            receiver=receiver,
        )

    def _start(self, receiver: str, place: StandbyPlace, shipped: Shipped) -> tuple[int, int]:
        """Return where the frames for a receiver begin, after a check that it has the same redo log."""
        durable = self._position()
        numbers = [file.number for file in list_segments(self._folder)] or [FIRST_SEGMENT]
        if place.segment == 0:
            return numbers[0], 0
        if (place.segment, place.offset) > (durable.segment, durable.offset):
            raise self._another(
                receiver, place, f"redo ends at SCN {scn_text(durable.scn)} here, at SCN {scn_text(place.scn)} there"
            )
        if place.segment < numbers[0] and shipped is Shipped.NOTHING:
            return place.segment, place.offset  # the missing segments may arrive as files
        if place.segment < numbers[0]:
            raise LogGone(
                f"redo segments {place.segment} to {numbers[0] - 1} of {self._source} are gone: {receiver} has the redo"
                f" up to SCN {scn_text(place.scn)} only, and the source no longer keeps redo that its receivers had"
                " acknowledged",
                hint=f"restore a later copy of the standby redo log of {receiver}, {_START_OVER}",
                receiver=receiver,
                after_scn=place.scn,
            )
        if fingerprint_up_to(self._folder, place) != place.fingerprint:
            raise self._another(
                receiver, place, f"they differ in segment {place.segment}, before SCN {scn_text(place.scn)}"
            )
        return place.segment, place.offset

    def _another(self, receiver: str, place: StandbyPlace, why: str) -> RedoError:
        return RedoError(
            f"{receiver} has received another redo log of {self._source} than the one that is written now: {why}",
            hint="the source's redo log was lost or set back. Stop the topology, put a copy of the standby redo log of"
            f" {receiver} in its place and start again: nothing is lost then; {_START_OVER}",
            receiver=receiver,
            received_scn=place.scn,
        )

    def _read(self) -> dict[str, _Receiver]:
        if not self._path.exists():
            return {}
        try:
            return {
                name: _Receiver(
                    incarnation=entry["incarnation"],
                    place=StandbyPlace(segment=entry["segment"], offset=entry["offset"], scn=Scn(entry["scn"])),
                )
                for name, entry in json.loads(self._path.read_text(encoding="utf-8")).items()
            }
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RedoError(
                f"{_FILE} is damaged", hint="remove it: the receivers report their places again", segment=_FILE
            ) from error

    def _as_document(self) -> dict[str, Any]:
        return {
            name: {
                "incarnation": each.incarnation,
                "segment": each.place.segment,
                "offset": each.place.offset,
                "scn": each.place.scn,
            }
            for name, each in self._receivers.items()
        }

    def _save(self) -> None:
        document = self._as_document()
        if document == self._saved:
            return
        try:
            replace_file(self._path, json.dumps(document))
        except OSError as error:
            raise write_error(self._path, error) from error
        self._saved = document


class _Shipment:
    """The frames of one stream.

    Args:
        shipping: shipping of the redo log.
        receiver: name of the receiver.
        start: segment and offset of the first byte to send.
        shipped: what to send.
    """

    def __init__(self, shipping: RedoShipping, receiver: str, start: tuple[int, int], shipped: Shipped) -> None:
        self.receiver, self.shipped = receiver, shipped
        self._shipping = shipping
        self._segment, self._offset = start
        self._descriptor = -1

    @property
    def sent(self) -> tuple[int, int]:
        """Segment and offset behind the last sent byte."""
        return self._segment, self._offset

    def next_frame(self) -> RedoFrame | None:
        """Return the next frame of durable redo; None: the receiver was sent all of it."""
        self._shipping.check_current(self)
        durable = self._shipping.position
        if self.shipped is Shipped.NOTHING:
            return None
        if self.shipped is Shipped.ARCHIVED:  # the segments below the one that is written
            durable = RedoPosition(durable.segment, 0, durable.scn)
        while (self._segment, self._offset) < (durable.segment, durable.offset):
            if self._descriptor < 0:
                self._descriptor = open_segment(self._shipping.folder, self._segment)
            # A segment below the durable one is complete, so its end is its size.
            is_last = self._segment == durable.segment
            end = durable.offset if is_last else os.fstat(self._descriptor).st_size
            data = os.pread(self._descriptor, min(FRAME_BYTES, end - self._offset), self._offset)
            if data:
                frame = RedoFrame(segment=self._segment, offset=self._offset, data=data, source_scn=durable.scn)
                self._offset += len(data)
                return frame
            if is_last:
                raise RedoError(
                    f"redo segment {self._segment} is shorter than it was",
                    hint="check the disk",
                    segment=self._segment,
                    offset=self._offset,
                )
            self._close_segment()
            self._segment, self._offset = self._segment + 1, 0
        return None

    def acknowledge(self, place: StandbyPlace) -> None:
        """Note that the receiver has everything up to a place durably."""
        self._shipping.acknowledged(self, place)

    def close(self) -> None:
        """End the shipment; idempotent."""
        self._shipping.ended(self)
        self._close_segment()

    def _close_segment(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def fingerprint_up_to(folder: Path, place: StandbyPlace) -> int | None:
    """Return the fingerprint of a segment up to a place, without a footer; None: no record ends there.

    Args:
        folder: the segments' folder.
        place: only its segment and offset are used.
    """
    end = RedoPosition(place.segment, place.offset, FIRST_SCN)
    reader = RedoReader(folder, place.segment, PREAMBLE_BYTES)
    found = 0
    try:
        if reader.size_bytes < place.offset:
            return None
        while (header := reader.next_header(end)) is not None:
            found = fingerprint(header, found)
            reader.skip(header)
        behind = reader.offset
        if behind < place.offset:  # either the footer ends there, or no record does
            footer = reader.read_header()
            behind += 0 if footer is None else footer.record_bytes
        return found if behind == place.offset else None
    finally:
        reader.close()
