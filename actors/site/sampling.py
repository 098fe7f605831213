"""Continuous queries of a site to its database, on a separate connection and thread.

Job
    Know the end of the source's log, whether the database answers, and what else has changed in it.

Main path
    PositionSampler.start -> its thread -> the source's position, ten times a second; all other checks once a second.

Durable when
    Never: a restarted process queries anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.base.errors import HeadraceError, LogGone
from headrace.lcr.scn import FIRST_SCN, Scn

if TYPE_CHECKING:
    from headrace.base.clock import Clock
    from headrace.databases.ports import SourceDatabase

__all__ = ["HEARTBEAT", "Heartbeats", "PositionSampler"]

SAMPLE_INTERVAL_S = 0.1  # the precision of the lag in seconds; a query costs the database a tenth of a millisecond
SERVER_INTERVAL_S = 1.0  # a site that is no source only checks whether its server answers
RECONNECT_INTERVAL_S = 1.0  # an unreachable database is not tried ten times a second
LOOK_INTERVAL_S = 1.0  # between checks of the claim, of the log that the source keeps for us, and of heartbeats
SAMPLES_KEPT = 50  # reported together: the controller may ask only every five seconds
# Without an answer for this long the database counts as gone. A checkpoint on a slow disk can delay an answer for
# seconds.
ANSWER_MAX_S = 10.0
HEARTBEAT = b"heartbeat"
_STATEMENT = "ALTER DATABASE "  # a hint with this prefix is a statement


class PositionSampler:
    """The querying thread and its last answers, which any thread may read.

    Args:
        clock: clock that dates the answers.
        open_source: opens a connection to the site's database.
        is_source: whether something is captured from it.
        keep_claim: called once a second while the database answers.
        look: called with the connection once a second while the site is a source.

    Attributes:
        samples: pairs of query time (microseconds since the epoch) and end of the log (SCN), newest last; replaced as a
            whole.
        problem: why the database does not answer; empty: it answers, or was never queried.
        fix: the statement that makes it answer; empty: none is known.
        held_up_by: transactions for which a slot or a snapshot waits now.
        gone: the source's error that its log is lost; the thread that reports it resets it to None.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        open_source: Callable[[], SourceDatabase],
        is_source: Callable[[], bool],
        keep_claim: Callable[[], None],
        look: Callable[[SourceDatabase], None],
    ) -> None:
        self._name, self._clock = name, clock
        self._open_source, self._is_source, self._keep_claim, self._look = open_source, is_source, keep_claim, look
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._answered_at = 0.0
        self.has_answered = False
        self.samples: tuple[tuple[int, int], ...] = ()
        self.problem, self.fix = "", ""
        self.held_up_by: tuple[str, ...] = ()
        self.gone: LogGone | None = None

    def start(self) -> None:
        """Start the thread; idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"{self._name}-sampler", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; it closes its connection."""
        self._stop.set()

    @property
    def is_answering(self) -> bool:
        """Whether the database has answered within `ANSWER_MAX_S`."""
        return self.has_answered and not self.problem and self._clock.monotonic() - self._answered_at < ANSWER_MAX_S

    @property
    def source_scn(self) -> Scn:
        """End of the log at the last sample; FIRST_SCN: the database does not answer, and old samples are useless."""
        samples = self.samples
        return Scn(samples[-1][1]) if samples and self.is_answering else FIRST_SCN

    def end_of_log_beyond(self, scn: Scn, *, for_s: float) -> Scn:
        """Return the end of the log at the last sample, if it has been beyond a position for some time.

        Args:
            scn: the position.
            for_s: this time, in seconds.

        Returns:
            FIRST_SCN if it has not been beyond the position for so long.
        """
        samples = self.samples
        since_us = next((asked_us for asked_us, sampled in samples if sampled > scn), None)
        is_beyond = since_us is not None and self._clock.time_us() - since_us > for_s * 1e6
        return Scn(samples[-1][1]) if is_beyond else FIRST_SCN

    def _run(self) -> None:
        source: SourceDatabase | None = None
        look_at = claim_at = 0.0
        while not self._stop.wait(self._pause_s(is_open=source is not None)):
            try:
                if source is None:
                    source = self._open_source()
                self._sample(source)
                if self._clock.monotonic() >= claim_at:
                    claim_at = self._clock.monotonic() + LOOK_INTERVAL_S
                    self._keep_claim()
                if self._is_source() and self._clock.monotonic() >= look_at:
                    look_at = self._clock.monotonic() + LOOK_INTERVAL_S
                    self.held_up_by = source.holding_up()
                    self._look(source)
            except LogGone as error:
                self.gone = error
            except HeadraceError as error:
                # Other hints of a failed connection are general advice, which each display of the problem adds itself.
                self.problem, self.fix = error.message, error.hint if error.hint.startswith(_STATEMENT) else ""
                if source is not None:
                    source.close()
                    source = None
        if source is not None:
            source.close()

    def _pause_s(self, *, is_open: bool) -> float:
        if not self.has_answered:
            return SAMPLE_INTERVAL_S
        if not is_open:
            return RECONNECT_INTERVAL_S
        return SAMPLE_INTERVAL_S if self._is_source() else SERVER_INTERVAL_S

    def _sample(self, source: SourceDatabase) -> None:
        asked_us = self._clock.time_us()
        scn = source.current_scn()
        # The time before the query: the answer covers commits up to then, not later ones.
        self.samples = (*self.samples[1 - SAMPLES_KEPT :], (asked_us, int(scn)))
        self._answered_at = self._clock.monotonic()
        self.has_answered, self.problem, self.fix = True, "", ""


class Heartbeats:
    """Writes markers that advance a source's log when it has brought nothing for a while.

    Args:
        clock: measures the silence.

    Attributes:
        written: number of markers since this process started.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen_bytes, self._seen_at = -1, 0.0  # bytes of the log, and when it last brought some
        self.written = 0

    def write_if_silent(self, source: SourceDatabase, data_bytes: int, interval_s: float) -> None:
        """Write a marker if the log has brought nothing for the interval.

        Args:
            source: connection to the source.
            data_bytes: bytes that the log has brought since this process started.
            interval_s: the interval, in seconds.
        """
        now = self._clock.monotonic()
        if data_bytes != self._seen_bytes:
            self._seen_bytes, self._seen_at = data_bytes, now
        elif now - self._seen_at >= interval_s:
            source.write_marker(HEARTBEAT)
            self.written += 1
            self._seen_at = now
