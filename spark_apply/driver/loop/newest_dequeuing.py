"""Dequeuing by the newest driver alone.

The source may have discarded what a newer driver has applied. An older driver that was asleep could ask the queue for
it, and the queue would request changes that no longer exist. Therefore the driver asks the destination for the newest
epoch before a stream begins, and again when it is open: the driver may have slept in between
(`spark_apply.driver.loop.dequeuing`).

Only the loop's thread uses this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.errors import DatabaseUnavailable
from headrace.databases.progress import check_epoch
from headrace.lcr.scn import Scn
from spark_apply.driver.loop.dequeuing import Dequeuing

if TYPE_CHECKING:
    from headrace.base.clock import Clock
    from headrace.databases.ports import DestinationDatabase
    from headrace.links.ports import Delivery
    from headrace.links.serving import Links
    from spark_apply.apply_config import ApplyConfig
    from spark_apply.driver.loop.destination_problem import DestinationProblem
    from spark_apply.driver.reader import ApplyReader

__all__ = ["DEQUEUE_RETRY_S", "NewestDequeuing"]

DEQUEUE_RETRY_S = 1.0  # after the destination did not answer when dequeuing should begin


class NewestDequeuing:
    """Dequeues while this driver is the newest.

    Args:
        destination: knows the newest epoch.
        reader: knows the SCN from which it needs the queue.
        links: makes the streams.
        clock: clock for retries.
        problem: notes that the destination does not answer.

    Attributes:
        told_scn: the SCN that this driver acknowledged to the queue as durable.
    """

    def __init__(
        self,
        config: ApplyConfig,
        *,
        epoch: int,
        destination: DestinationDatabase,
        reader: ApplyReader,
        links: Links,
        clock: Clock,
        problem: DestinationProblem,
    ) -> None:
        self._topology, self._apply, self._epoch = config.topology, config.apply, epoch
        self._destination, self._reader, self._clock, self._problem = destination, reader, clock, problem
        self._stream = Dequeuing(config, links, clock)
        self._begin_at: float | None = None  # when to begin a stream; retried until the destination answers
        # When to ask the destination for the newest epoch, with a stream open.
        self._confirm_at: float | None = None
        self.told_scn = Scn(0)

    @property
    def problem(self) -> str:
        """Why the queue delivers nothing; empty: it delivers."""
        return self._stream.problem

    @property
    def due_at(self) -> float | None:
        """When `housekeep` is next due, by the clock; None: unknown."""
        return min((at for at in (self._begin_at, self._confirm_at) if at is not None), default=None)

    @property
    def has_batch(self) -> bool:
        """Whether a batch has arrived that was not taken."""
        return bool(self._stream.inbox)

    @property
    def is_away(self) -> bool:
        """Whether nothing arrives until another stream begins, and everything that had arrived was taken."""
        return self._begin_at is not None and not self.has_batch

    def take(self) -> Delivery:
        """Take the next delivery from the stream."""
        return self._stream.take()

    def tell(self, durable: Scn) -> None:
        """Acknowledge to the queue what is durable at the destination, if that has moved."""
        if durable > self.told_scn:
            self.told_scn = durable
            self._stream.durable(durable)

    def begin_again(self) -> None:
        """End the stream, and begin another from the SCN that the reader needs.

        Raises:
            FencedError: a newer driver runs.
            LogGone: the queue refuses, because the needed changes are gone.
        """
        self._stream.end()
        self._confirm_at = None
        self._begin()

    def hear(self) -> None:
        """Process what has arrived from the queue; a broken stream is replaced after a pause.

        Raises:
            FencedError: a newer driver runs.
            LogGone: the queue refuses, because the needed changes are gone.
        """
        again_at = self._stream.hear()
        if again_at is not None:
            self._begin_at, self._confirm_at = again_at, None
        elif self._stream.has_opened():
            self._confirm()

    def housekeep(self, now: float) -> None:
        """Do what is due.

        Args:
            now: monotonic seconds.

        Raises:
            FencedError: a newer driver runs.
            LogGone: the queue refuses, because the needed changes are gone.
        """
        if self._begin_at is not None and now >= self._begin_at:
            self._begin()
        if self._confirm_at is not None and now >= self._confirm_at:
            self._confirm()

    def end(self) -> None:
        """End the stream."""
        self._stream.end()

    def _begin(self) -> None:
        self._begin_at = self._retry_unless_newest()
        if self._begin_at is None:
            self._begin_at = self._stream.begin(self._reader.needed_scn)

    def _confirm(self) -> None:
        self._confirm_at = self._retry_unless_newest()
        if self._confirm_at is None:
            self._stream.confirm()

    def _retry_unless_newest(self) -> float | None:
        """Return when to ask again because the destination does not answer; None: it did, and no newer driver runs."""
        try:
            progress = self._destination.progress(self._topology, self._apply)
        except DatabaseUnavailable as error:
            self._problem.note(error)
            return self._clock.monotonic() + DEQUEUE_RETRY_S
        # While the queue is away nothing else asks the destination, and its problem would hide the queue's.
        self._problem.clear()
        check_epoch(0 if progress is None else progress.epoch, apply=self._apply, epoch=self._epoch)
        return None
