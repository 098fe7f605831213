"""Data that a log writer read from one log stream and has not written yet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from headrace.base.clock import Clock
from headrace.base.errors import DatabaseError, DatabaseUnavailable, UnsupportedType
from headrace.databases.ports import LogChunk, LogStream
from headrace.lcr.batch import TableVersion
from headrace.lcr.scn import FIRST_SCN, Scn

__all__ = ["CheckStream", "StreamIntake"]

# A stream that is far behind is read until a record is full, for at most this long. Its transactions are late anyway,
# and where the CPU is the bottleneck, batches of 50 KB cost ten times the CPU time of batches of 1 MB (measured on two
# cores with other work).
FILL_S = 0.25
FILL_SHARE = 64  # below this share of a record there is no waiting: a few small transactions are no backlog
GULPS_MAX = 256  # reads in one step, so that a step ends even if only keepalives arrive


class CheckStream(Protocol):
    """`SourceDatabase.check_stream` of one stream's options."""

    def __call__(self, described: Sequence[TableVersion], *, describers: Collection[int]) -> None:
        """Check the described tables."""
        ...


class StreamIntake:
    """The intake of one stream: a new stream sends again what an older one's intake held.

    Args:
        stream: the stream.
        check: called whenever the stream describes a table, before that is written; None: no check.
        record_bytes: gulps are joined until they have that many bytes.
        clock: clock for the time spent on joining.

    Attributes:
        stream: as given.
        check: as given.
        chunks: data that was read and not written.
        problem: why the stream broke; None: it is intact.
        progress_scn: position up to which the stream has read the log.
    """

    def __init__(self, stream: LogStream, check: CheckStream | None, record_bytes: int, clock: Clock) -> None:
        self.stream, self.check = stream, check
        self._record_bytes, self._clock = record_bytes, clock
        self.chunks: list[LogChunk] = []
        self.problem: DatabaseError | None = None
        self.progress_scn = self._confirmed_scn = FIRST_SCN

    @property
    def is_full(self) -> bool:
        """Whether it holds enough for a record: more data is waiting."""
        return sum(len(chunk.data) for chunk in self.chunks) >= self._record_bytes

    def take(self, timeout_s: float, behind_scn: Scn, until_s: Callable[[float], float]) -> None:
        """Read until no data is waiting or a record is full. A break ends it; data before the break counts.

        Args:
            timeout_s: how long to wait for data.
            behind_scn: as for `LogWriter.step`.
            until_s: caps a wait at the time of other due work.
        """
        taken_bytes, fill_until, wait_s = 0, 0.0, timeout_s
        for _ in range(GULPS_MAX):
            try:
                chunk = self.stream.read(wait_s)
            except (DatabaseUnavailable, UnsupportedType) as error:
                self.problem = error
                return
            if chunk is None:
                return
            self.progress_scn = max(self.progress_scn, chunk.end_scn)
            if chunk.data:
                self.chunks.append(chunk)
                taken_bytes += len(chunk.data)
            if taken_bytes >= self._record_bytes:
                return
            wait_s = 0.0
            if self.progress_scn < behind_scn and taken_bytes * FILL_SHARE >= self._record_bytes:
                fill_until = fill_until or self._clock.monotonic() + until_s(FILL_S)
                wait_s = max(0.0, fill_until - self._clock.monotonic())

    def written(self) -> None:
        """Note that the read data is durable."""
        self.chunks = []

    def confirm(self, scn: Scn, *, is_repeated: bool = False) -> None:
        """Confirm to the source what it may discard.

        Args:
            scn: everything up to here; sent if it moved.
            is_repeated: send it in any case, as a sign of life.
        """
        if scn > self._confirmed_scn or is_repeated:
            self._confirmed_scn = max(scn, self._confirmed_scn)
            self.stream.confirm(self._confirmed_scn)
