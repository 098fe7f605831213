"""A source's redo log and its redo receivers in one process, without a wire: frames are passed directly, cut anywhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.base.clock import VirtualClock
from headrace.links.standby import RedoFrame, StandbyPlace
from headrace.redo.standby.standby_log import StandbyLog
from headrace.redo.writing.log_writer import LogWriter
from tests.support.redo.redo_logs import SOURCE

__all__ = ["RECEIVER", "Stream", "cut_frames", "log_bytes", "receive", "standby_log"]

RECEIVER = "dbs1@dbs3"


def standby_log(folder: Path, **settings: Any) -> StandbyLog:
    return StandbyLog(folder, SOURCE, **{"redo_bytes_max": 1 << 30, "clock": VirtualClock(), **settings})


class Stream:
    """One stream from a log writer to a standby redo log.

    Args:
        writer: of the source; the receiver is registered there.
        standby: of the receiver.
        incarnation: of the stream.
    """

    def __init__(self, writer: LogWriter, standby: StandbyLog, incarnation: str, receiver: str = RECEIVER) -> None:
        standby.rollback()
        self.standby = standby
        self.shipment = writer.shipping.begin(receiver, incarnation, standby.place)

    def frames(self) -> Iterator[RedoFrame]:
        while (frame := self.shipment.next_frame()) is not None:
            yield frame

    def acknowledge(self, place: StandbyPlace | None = None) -> None:
        self.shipment.acknowledge(place or self.standby.place)


def cut_frames(frames: Iterator[RedoFrame], size: Callable[[], int]) -> Iterator[RedoFrame]:
    """Cut the same bytes into smaller frames."""
    for frame in frames:
        start = 0
        while start < len(frame.data):
            data = frame.data[start : start + size()]
            yield replace(frame, offset=frame.offset + start, data=data)
            start += len(data)


def receive(
    writer: LogWriter,
    standby: StandbyLog,
    incarnation: str,
    size: Callable[[], int] = lambda: 1 << 20,
    *,
    receiver: str = RECEIVER,
) -> Stream:
    """Send everything that is durable, and acknowledge it."""
    stream = Stream(writer, standby, incarnation, receiver)
    for frame in cut_frames(stream.frames(), size):
        standby.take(frame)
        standby.sync()
    stream.acknowledge()
    return stream


def log_bytes(folder: Path) -> dict[str, bytes]:
    """Return every segment's bytes, by name."""
    found = {}
    for path in sorted(folder.glob("*.redo")):
        with contextlib.suppress(FileNotFoundError):  # just archived, or recreated
            found[path.name] = path.read_bytes()
    return found
