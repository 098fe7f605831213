"""Dequeuing for the apply process: one stream from its queue after the other.

Every stream asks anew where the queue serves, because its port changes when it restarts. When a stream breaks or cannot
be opened, the host decides where to continue: only the reader knows what it has taken, and only the destination knows
whether a newer driver runs.

All streams of a driver carry its epoch. A driver that was frozen and thaws after its successor began therefore does not
replace the successor's stream, and the queue does not mistake its old position for a loss of commits. While the
successor's stream is broken, the old driver can open one. Therefore a driver acknowledges nothing on a stream until the
host has found, after the stream was opened, that no newer driver runs (`Dequeuing.confirm`). Acknowledged changes are
purged at the source.

An apply process that has never applied anything first asks where its queue begins for it (`ask_beginning`).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.base.backoff import Backoff
from headrace.base.errors import HeadraceError, LogGone, PropagationError
from headrace.lcr.scn import FIRST_SCN, Scn

if TYPE_CHECKING:
    from headrace.base.clock import Clock
    from headrace.links.ports import Delivery, Subscriber
    from headrace.links.serving import Links
    from spark_apply.apply_config import ApplyConfig

__all__ = ["CREDIT_BYTES", "Dequeuing", "ask_beginning"]

# Bytes of batches in flight or pending in the driver: several groups, so that servers never wait for the queue.
CREDIT_BYTES = 16 << 20
OPEN_TIMEOUT_S = 10.0  # a node under full load answers within this; afterwards the address is asked for again
_BEGINNING_POLL_S = 0.1  # bounds the delay until the answer, or a request to end the driver, is noticed


class Dequeuing:
    """Dequeues from one queue. One thread uses it; it never waits.

    Args:
        links: makes its streams.
        clock: clock for the pauses between streams.
    """

    def __init__(self, config: ApplyConfig, links: Links, clock: Clock) -> None:
        self._queue, self._source = config.queue, config.source.site
        self._links, self._clock, self._backoff = links, clock, Backoff()
        self._stream: Subscriber | None = None
        self._opened = self._is_confirmed = False
        self._begun_at = 0.0
        self._durable = FIRST_SCN
        self.problem = "not connected to the queue yet"
        self.inbox: deque[Delivery] = deque()
        """Deliveries that have arrived and were not taken. It outlives its stream until the next one begins."""

    def begin(self, needed: Scn) -> float | None:
        """Dequeue everything after an SCN; end the stream before.

        Return when to begin again, by the clock, if the stream cannot be opened.

        Raises:
            LogGone: the queue refuses, because the needed changes are gone.
        """
        self.end()
        self._begun_at = self._clock.monotonic()
        try:
            self._stream = self._links.subscriber(self._queue)
            self._stream.subscribe_nowait({self._source: needed}, CREDIT_BYTES)
        except LogGone:
            raise
        except HeadraceError as error:
            return self._broke(error)
        return None

    def end(self) -> None:
        """End the stream and drop arrived deliveries that were not taken. Idempotent."""
        self.inbox.clear()
        self._close()

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        self._opened = self._is_confirmed = False
        if stream is not None:
            stream.close()

    def hear(self) -> float | None:
        """Move arrived deliveries into the inbox. Return when to begin again, by the clock, if the stream broke.

        Raises:
            LogGone: the queue refuses, because the needed changes are gone.
        """
        stream = self._stream
        if stream is None:
            return None
        try:
            while (delivery := stream.poll()) is not None:
                self.inbox.append(delivery)
        except LogGone:
            self.end()
            raise
        except HeadraceError as error:
            return self._broke(error)
        if not stream.is_open and self._clock.monotonic() > self._begun_at + OPEN_TIMEOUT_S:
            return self._broke(PropagationError(f"queue {self._queue} did not answer within {OPEN_TIMEOUT_S:g} s"))
        return None

    def has_opened(self) -> bool:
        """Return whether the queue has accepted the stream since the last call.

        Then find out whether a newer driver runs, and call `confirm`.
        """
        if self._opened or self._stream is None or not self._stream.is_open:
            return False
        self._opened, self.problem = True, ""
        self._backoff.reset()
        return True

    def confirm(self) -> None:
        """Allow acknowledgements: after the stream was opened, no newer driver was found."""
        self._is_confirmed = True
        self._acknowledge()

    def take(self) -> Delivery:
        """Return the next batch of the inbox, and return its credit unless its stream has ended."""
        delivery = self.inbox.popleft()
        if self._stream is not None:
            self._stream.grant(len(delivery.data))
        return delivery

    def durable(self, scn: Scn) -> None:
        """Acknowledge that everything up to `scn` is durable at the destination."""
        self._durable = scn
        self._acknowledge()

    def _acknowledge(self) -> None:
        if self._stream is not None and self._is_confirmed and self._durable > FIRST_SCN:
            self._stream.acknowledge(self._source, self._durable)

    def _broke(self, error: HeadraceError) -> float:
        self.problem = error.message
        if self._stream is not None and self._stream.is_open:
            self._backoff.reset()  # the queue had answered, even if the host did not ask in between
        # The inbox stays: otherwise a stream that always breaks before the loop works would prevent all progress.
        self._close()
        return self._clock.monotonic() + self._backoff.next_s()


def ask_beginning(
    config: ApplyConfig, links: Links, *, should_end: Callable[[], bool], problem: Callable[[str], None]
) -> Scn:
    """Ask where the queue begins for an apply process that has never applied anything.

    From then on the queue keeps everything for it. Return FIRST_SCN if the driver had to end before the queue knew.

    Args:
        config: configuration of the apply process.
        links: makes its streams.
        should_end: checked repeatedly; True ends the wait.
        problem: receives the reason why there is no answer yet.
    """
    backoff = Backoff()
    while not should_end():
        try:
            with contextlib.closing(links.subscriber(config.queue)) as stream:
                stream.subscribe({config.source.site: FIRST_SCN}, credit_bytes=1)
                problem("the queue does not know yet where its LCRs begin")
                while not should_end():
                    if (delivery := stream.poll()) is not None:
                        return delivery.header.through_scn if delivery.header.is_progress_mark else FIRST_SCN
                    time.sleep(_BEGINNING_POLL_S)
        except HeadraceError as error:
            problem(error.message)
            time.sleep(backoff.next_s())
    return FIRST_SCN
