"""What a site asks its database all the time, on a connection and a thread of its own.

Job
    Know where the source's log is, whether the database answers at all, and what else has changed in it.

Main path
    PositionSampler.start -> its thread -> the source's position, ten times a second; a look at everything else once a
    second.

Durable when
    Never: another process asks anew.
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
SERVER_INTERVAL_S = 1.0  # a site that is no source only wants to know whether its server answers
RECONNECT_INTERVAL_S = 1.0  # do not try an unreachable database ten times a second
LOOK_INTERVAL_S = 1.0  # how often the claim, the log that the source keeps for us, and heartbeats are checked
SAMPLES_KEPT = 50  # reported at once: the controller may ask only every five seconds
# Without an answer for this long the database counts as gone: a checkpoint on a slow disk can delay one for seconds.
ANSWER_MAX_S = 10.0
HEARTBEAT = b"heartbeat"
_STATEMENT = "ALTER DATABASE "  # a hint that is one


class PositionSampler:
    """The thread that asks, and its last answers; any thread may read them.

    Args:
        name: of the site's component.
        clock: dates the answers.
        open_source: opens a connection to the site's database.
        is_source: whether something is captured from it.
        keep_claim: called once a second while the database answers.
        look: called with the connection once a second while the site is a source.

    Attributes:
        samples: when the database was asked (microseconds since the epoch) and where its log ended then (SCN), newest
            last; replaced whole.
        problem: why the database does not answer; empty: it does, or was never asked.
        fix: the statement that makes it answer; empty: none is known.
        held_up_by: transactions for which a slot or a snapshot waits now.
        gone: the source says that its log is lost; whoever reports it sets it back to None.
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
        """Begin to ask; idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"{self._name}-sampler", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread soon; its connection closes then."""
        self._stop.set()

    @property
    def is_answering(self) -> bool:
        """Whether the database answered a moment ago."""
        return self.has_answered and not self.problem and self._clock.monotonic() - self._answered_at < ANSWER_MAX_S

    @property
    def source_scn(self) -> Scn:
        """Where the log ended a moment ago; FIRST_SCN: the database does not answer, and old facts say nothing."""
        samples = self.samples
        return Scn(samples[-1][1]) if samples and self.is_answering else FIRST_SCN

    def end_of_log_beyond(self, scn: Scn, *, for_s: float) -> Scn:
        """Where the log was at the last sample, if it has been beyond a position for some time.

        Args:
            scn: the position.
            for_s: seconds.

        Returns:
            FIRST_SCN: it has not.
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
                # what else a database may need that does not answer, whoever shows it knows
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
    """Markers that move a source's log on when nothing has come through it for a while.

    Args:
        clock: measures how long.

    Attributes:
        written: how many, since this process began.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen_bytes, self._seen_at = -1, 0.0  # of the log, when it last brought something
        self.written = 0

    def write_if_silent(self, source: SourceDatabase, data_bytes: int, interval_s: float) -> None:
        """Write one if the log has brought nothing for the interval.

        Args:
            source: a connection to the source.
            data_bytes: what the log has brought since this process began.
            interval_s: seconds.
        """
        now = self._clock.monotonic()
        if data_bytes != self._seen_bytes:
            self._seen_bytes, self._seen_at = data_bytes, now
        elif now - self._seen_at >= interval_s:
            source.write_marker(HEARTBEAT)
            self.written += 1
            self._seen_at = now
